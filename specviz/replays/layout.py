"""Lay out a replay as a table, for every renderer: which cells, in which columns, in which words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specviz.replays.cells import FAILS, HOLDS, OPEN, Cell, Tally
from specviz.replays.replays import Replay

MANY = 90  # largest number of cells of a table that is shown whole
MANY_COLUMNS = 6  # of numbers; a table with more uses rows instead
TIMES, ARROW = "\N{MULTIPLICATION SIGN}", "\N{RIGHTWARDS ARROW}"
MARKS = ("\N{CHECK MARK}", "?", "\N{BALLOT X}")
ORDER = (
    f"order: comparisons with the column's other rows: {MARKS[0]} clearly as in the paper, {MARKS[1]} "
    f"unclear, {MARKS[2]} clearly not"
)
OVERVIEW = (
    "measured", "claims hold", "fail", "cannot be judged", "same order", "by chance", "seconds",
)  # fmt: skip
VERDICTS = (HOLDS, FAILS, OPEN)  # the order in which they are shown
BADGES = dict(zip(VERDICTS, (MARKS[0], MARKS[2], MARKS[1])))
METRICS = {
    "tau": "τ", "ne": "NE", "a_d": "A/D", "a_o": "A/O", "comet": "COMET", "bleu": "BLEU",
    "relative_bleu": "relative BLEU",
}  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A replay as a table of strings, whose first `names` columns are names."""

    headings: list[str]
    rows: list[list[str]]
    names: int


def grid(replay: Replay) -> Grid:
    """Build the displayed table: contenders as rows, tasks or languages and metrics as columns."""
    numbers = shown(replay)
    cells = [replay.cells[i] for i in numbers]
    needed = distinguishing(replay)
    across = [name for name in needed if name in ("task", "language", "dataset")]
    down = [name for name in needed if name not in across]
    if len({(*(cell.keys[name] for name in across), cell.metric) for cell in cells}) > MANY_COLUMNS:
        across, down = [], across + down
    down = [name for name in down if len({cell.column(name) for cell in cells}) > 1] + list(replay.compare)
    columns: dict[tuple, None] = {}
    lines: dict[tuple, dict[tuple, str]] = {}
    tallies, row_tallies = replay.tallies(), dict[tuple, list[Tally]]()
    for number, cell in zip(numbers, cells):
        column = (*(str(cell.column(name)) for name in across), cell.metric)
        row = tuple(str(cell.column(name)) for name in down)
        columns[column] = None
        lines.setdefault(row, {})[column] = cell_text(cell)
        row_tallies.setdefault(row, []).append(tallies[number])
    names = [" ".join([*column[:-1], metric_name(column[-1])]) for column in columns]
    places = [{value: i for i, value in enumerate(dict.fromkeys(values))} for values in zip(*lines)]
    ordered = sorted(lines, key=lambda row: [place[value] for place, value in zip(places, row)])
    rows = [[*row, *(lines[row].get(c, "") for c in columns)] for row in ordered]
    headings = [*(name.replace("_", " ") for name in down), *names]
    judged = [marks([sum(each) for each in zip(*row_tallies[row])]) for row in ordered]
    if any(judged):
        headings.append("order")
        rows = [[*row, mark] for row, mark in zip(rows, judged)]
    return Grid(headings, rows, len(down))


def cell_text(cell: Cell) -> str:
    """A cell's text: the printed value, the measured one and their ratio."""
    here = "–"
    if cell.measured is not None:
        here = like_printed(cell.measured, cell.printed)
        here += f" ({TIMES}{cell.ratio:.2f})" if cell.ratio is not None else ""
    return f"{cell.printed} {ARROW} {here}" if cell.value is not None else here


def distinguishing(replay: Replay) -> list[str]:
    """Columns, besides the contenders', that are needed to tell all numbers apart."""
    names = [name for name in (*replay.keys, "device", "model") if name not in replay.compare]
    for name in reversed(names):
        rest = [*(other for other in names if other != name), *replay.compare, "metric"]
        if len({tuple(cell.column(key) for key in rest) for cell in replay.cells}) == len(replay.cells):
            names.remove(name)
    return names


def shown(replay: Replay) -> list[int]:
    """Indices of the displayed cells: of a large table its means, or without measured means all measured."""
    if len(replay.cells) <= MANY or not replay.total:
        return list(range(len(replay.cells)))
    column, total = replay.total
    means = [i for i, cell in enumerate(replay.cells) if cell.column(column) == total]
    measured = [i for i, cell in enumerate(replay.cells) if cell.measured is not None]
    return means if not measured or set(means) & set(measured) else measured


def overview(replay: Replay) -> list[str]:
    """A replay's row of the overview, in the columns of `OVERVIEW`."""
    n = replay.counts()
    judged = n["agrees"] + n["against"]
    claims = [str(n[name]) for name in ("holds", "fails", "open")] if replay.verdicts else ["–"] * 3
    order = [f"{n['agrees']} of {judged}", f"{judged / 2:g}"] if judged else ["–"] * 2
    return [f"{n['measured']} of {n['cells']}", *claims, *order, f"{replay.seconds:.0f}"]


def verdict_lines(replay: Replay) -> list[tuple[str, str, str]]:
    """The claims, those that hold first: (verdict, claim, numbers and reason)."""
    ordered = sorted(replay.verdicts, key=lambda each: VERDICTS.index(each.verdict))
    return [(v.verdict, v.claim, "; ".join(filter(None, [v.numbers, v.reason]))) for v in ordered]


def like_printed(value: float, printed: str) -> str:
    """Format a number with as many decimals as the printed one."""
    if not printed:
        return f"{value:.3g}"
    digits = len(printed.partition(".")[2])
    sign = "+" if printed.startswith("+") else ""
    return f"{value:{sign}.{digits}f}"


def metric_name(metric: str) -> str:
    """A metric's name as a heading."""
    if metric.startswith("rouge_"):
        return metric.replace("_", "-").upper()
    return METRICS.get(metric, metric.replace("_", " "))


def marks(counts: Sequence[int]) -> str:
    """A `Tally` in marks."""
    return " ".join(f"{mark}{n}" for mark, n in zip(MARKS, counts) if n)
