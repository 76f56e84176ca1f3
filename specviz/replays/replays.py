"""`replay`: a paper's table asked again here, and what came out beside what was printed, cell by cell.

A replay is a folder: ``replay.json`` holds the cells, and the runs that they were computed from lie beside
it. Of every cell it says what was printed, what was measured and their ratio; of every two contenders in a
column whether they stand in the same order here, and clearly so; and what of the set-up is another one.
Reading needs no torch, and ``replay.json`` alone suffices: a result that was measured on another machine's
device is kept as that file, and names the device wherever it is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.arguments import check_threads
from specviz.errors import ParameterError, SpecvizError, TraceError, loading
from specviz.measure.report import Column, print_table
from specviz.measure.rows import read_json, write_json
from specviz.replays.published import LAST, list_published, published
from specviz.replays.recipes import CURVES, FIGURES, RECIPES, SETTINGS, Recipe

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
FILE, ALL = "replay.json", "replays.json"
SAME = 1e-12  # a difference that is none
FEWEST = 6  # texts that can make a comparison clear
MANY = 90  # cells of a table that a terminal shows whole
ROOMY = 100  # columns of a terminal that shows ratios, too
MANY_COLUMNS = 6  # of numbers; what would be more stands in further rows
TIMES = "\N{MULTIPLICATION SIGN}"

Tick = Callable[[int, int, str], None]


@dataclass
class Replay:
    """A published table and what was measured for it.

    Parameters
    ----------
    table : str
        As `specviz.published` takes it.
    caption, place : str
    compare : tuple of str
        The columns whose values are contenders.
    cells : list of dict
        The published rows in their order, each with ``measured``, ``low`` and ``high`` (None where nothing
        was measured) and ``why`` (the reason, else empty).
    clear : list of (int, int)
        Numbers of two contenders' cells of which it is clear which one is ahead here.
    setup : list of dict
        What differs: ``what``, ``paper``, ``here``.
    environment : dict
        Device, processor, threads, number format, clock, versions.
    notes : list of str
    runs : list of str
        Folders below `path` that hold the rows and their traces.
    traces : list of dict
        Where there is no run, the best, median and worst text: ``name``, ``of``, ``figure``, ``file``.
    asked : dict
        What tells this replay from another one of the same table.
    seconds : float
    created : str
    path : Path
    """

    table: str
    caption: str
    place: str
    compare: tuple[str, ...]
    cells: list[dict[str, Any]]
    clear: list[list[int]]
    setup: list[dict[str, str]]
    environment: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    traces: list[dict[str, str]] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    created: str = ""
    path: Path = Path()

    def __repr__(self) -> str:
        return f"<Replay {self.table}: {self.summary}>"

    def _repr_html_(self) -> str:
        return self.frame()._repr_html_()  # type: ignore[no-any-return, operator]

    @property
    def keys(self) -> list[str]:
        """The table's key columns."""
        return [name for name in self.cells[0] if name not in (*LAST, *OURS, "printed")]

    @property
    def device(self) -> str:
        """Where it was measured, in words."""
        said = self.environment
        if not said:
            return "nowhere"
        return (
            f"{said['device']} ({said['processor']})" if said.get("device") == "cpu" else f"{said['device']}"
        )

    def frame(self) -> pd.DataFrame:
        """The published table with ``measured``, its interval, the ratio to what was printed, and ``why``."""
        import pandas as pd

        made = pd.DataFrame(self.cells)
        for name in ("measured", "low", "high"):
            made[name] = pd.to_numeric(made[name])
        made.insert(
            list(made).index("high") + 1, "ratio", made["measured"] / made["value"].where(lambda v: v != 0)
        )
        return made

    def comparisons(self) -> pd.DataFrame:
        """Every two contenders of a column that were both printed and both measured.

        Returns
        -------
        DataFrame
            The column's keys, ``metric``, ``device`` and ``model``; ``first`` and ``second``, the contenders;
            ``printed`` and ``measured``, the first's figure less the second's; ``verdict``: ``agrees``,
            ``against``, ``tied`` where the paper printed the same number, or ``level`` where the same was
            measured; ``clear``, whether other texts of the kind would say the same: the 95 % interval of the
            measured difference, both sides drawn together, leaves zero out.
        """
        import pandas as pd

        held, clear = self.held, set(map(tuple, self.clear))
        rows = []
        for one, two, printed, here in self._pairs():
            a, b = self.cells[one], self.cells[two]
            group = [a[name] for name in held]
            verdict = verdict_of(printed, here)
            first, second = (", ".join(str(c[name]) for name in self.compare) for c in (a, b))
            rows.append(
                dict(zip(held, group))
                | {"first": first, "second": second, "printed": printed, "measured": here,
                   "verdict": verdict, "clear": (one, two) in clear}
            )  # fmt: skip
        columns = [*held, "first", "second", "printed", "measured", "verdict", "clear"]
        return pd.DataFrame(rows, columns=columns)

    def counts(self) -> dict[str, int]:
        """Cells, measured ones, figures; comparisons that go the paper's way, or not; the clear ones.

        One figure may stand beside several cells: a paper prints a row for each of its devices and models.
        """
        found = self.comparisons()
        right, wrong = found[found["verdict"] == "agrees"], found[found["verdict"] == "against"]
        clear = int(right["clear"].sum()), int(wrong["clear"].sum())
        here = [cell for cell in self.cells if cell["measured"] is not None]
        figures = {tuple(cell[name] for name in ("metric", "measured", "low", "high")) for cell in here}
        return {
            "cells": len(self.cells),
            "measured": len(here),
            "figures": len(figures),
            "agrees": len(right), "against": len(wrong), "level": int((found["verdict"] == "level").sum()),
            "clear_agrees": clear[0], "unclear": len(right) + len(wrong) - sum(clear),
            "clear_against": clear[1],
        }  # fmt: skip

    @property
    def summary(self) -> str:
        """One line: how much was measured, and how much of it goes the paper's way."""
        n = self.counts()
        if self.table in CURVES:
            return f"{n['measured']} figures of a curve that the paper draws without printed values"
        said = f"{n['measured']} of {n['cells']} printed numbers measured here"
        if n["figures"] < n["measured"]:
            said = f"{n['measured']} of {n['cells']} printed numbers, beside {n['figures']} "
            said += f"figure{'s' * (n['figures'] != 1)} measured here"
        judged = n["agrees"] + n["against"]
        if judged:
            said += (
                f"; of {judged} comparisons {n['agrees']} go the paper's way ({n['clear_agrees']} clearly), "
                f"{n['against']} do not ({n['clear_against']} clearly)"
            )
        said += f"; {n['level']} {'is' if n['level'] == 1 else 'are'} level here" if n["level"] else ""
        return said

    def missing(self) -> list[tuple[str, str, int]]:
        """What was not measured: (which rows, why, how many numbers), one for each reason."""
        groups: dict[str, list[dict[str, Any]]] = {}
        for cell in self.cells:
            if cell["measured"] is None:
                groups.setdefault(cell["why"], []).append(cell)
        return [(self._told(cells), why, len(cells)) for why, cells in groups.items()]

    def _told(self, cells: Sequence[Mapping[str, Any]]) -> str:
        """What some cells have in common and others have not."""
        found = []
        for name in (*self.keys, "metric", "model"):
            mine = list(dict.fromkeys(str(cell[name]) for cell in cells))
            everyone = {str(cell[name]) for cell in self.cells}
            if len(mine) < len(everyone) and len(mine) <= 4:
                found.append(f"{name.replace('_', ' ')} {', '.join(mine)}")
        return "; ".join(found) or "all of it"

    # ------------------------------------------------------------ in and out

    def save(self) -> Path:
        """Write ``replay.json``, whole or not at all."""
        said = {name: getattr(self, name) for name in KEPT}
        write_json(self.path / FILE, {"specviz": "replay", "schema": SCHEMA} | said)
        return self.path / FILE

    def show(self, console: Any) -> None:
        """Print the comparison on a rich console."""
        from rich.text import Text

        def line(text: str = "") -> None:
            console.print(Text(text), soft_wrap=not console.is_terminal)

        line(f"{self.table} ({self.place}): {self.caption}")
        line()
        if any(cell["measured"] is not None for cell in self.cells):
            headings, rows, left = self.grid()
            narrow = console.is_terminal and console.width < ROOMY
            columns = [
                Column(name, right=True, spare=len(headings) - i if i > left and name != "order" else None)
                if i >= left
                else Column(name, folds=16)
                for i, name in enumerate(headings)
            ]
            shown = [[cell.partition(f" ({TIMES}")[0] for cell in row] if narrow else row for row in rows]
            print_table(console, columns, once(shown, left))
            line(f"printed {ARROW} measured here{'' if narrow else f' ({TIMES}ratio)'}. {ORDER}")
            hidden = len(self.cells) - len(self.shown())
            if hidden:
                line(f"{hidden} further numbers: specviz bench report {self.path} --html")
        for which, why, number in self.missing():
            line(f"not measured: {which}: {why} ({number} number{'s' * (number != 1)})")
        line("Set-up:")
        for each in self.setup:
            line(f"  {each['what']}: the paper {each['paper']}; here {each['here']}")
        for note in self.notes:
            line(f"note: {note}")
        line(f"{self.table}: {self.summary}")

    def markdown(self) -> str:
        """The same for an issue: a table, what was not measured, what differs."""
        headings, rows, left = self.grid()
        said = [f"### `{self.table}`: {self.caption}", "", f"{self.summary}.", ""]
        if any(cell["measured"] is not None for cell in self.cells):
            said += [
                f"Printed {ARROW} measured on {self.device} ({TIMES}ratio). {ORDER}", "",
                "| " + " | ".join(map(cellular, headings)) + " |",
                "|" + "".join(" --- |" if i < left else " ---: |" for i in range(len(headings))),
                *("| " + " | ".join(map(cellular, row)) + " |" for row in rows), "",
            ]  # fmt: skip
        said += [f"- Not measured: {which}: {why} ({n})" for which, why, n in self.missing()]
        said += [f"- {s['what']}: the paper {s['paper']}; here {s['here']}" for s in self.setup]
        return "\n".join([*said, *(f"- {note}" for note in self.notes), ""])

    def grid(self) -> tuple[list[str], list[list[str]], int]:
        """The table as it is shown: headings, rows of texts, and how many columns are names."""
        numbers = self.shown()
        cells = [self.cells[i] for i in numbers]
        needed = self.needed()
        across = [name for name in needed if name in ("task", "language", "dataset")]
        down = [name for name in needed if name not in across]
        if len({(*(cell[name] for name in across), cell["metric"]) for cell in cells}) > MANY_COLUMNS:
            across, down = [], across + down
        down = [name for name in down if len({cell[name] for cell in cells}) > 1] + list(self.compare)
        columns: dict[tuple, None] = {}
        lines: dict[tuple, dict[tuple, str]] = {}
        agreed, rows_agreed = self.agreement(), dict[tuple, list[Agreement]]()
        for number, cell in zip(numbers, cells):
            at = (*(str(cell[name]) for name in across), cell["metric"])
            columns[at] = None
            row = lines.setdefault(tuple(str(cell[name]) for name in down), {})
            here = "–"
            if cell["measured"] is not None:
                here = said(cell["measured"], cell["printed"])
                here += f" ({TIMES}{cell['measured'] / cell['value']:.2f})" if cell["value"] else ""
            row[at] = f"{cell['printed']} {ARROW} {here}" if cell["value"] is not None else here
            rows_agreed.setdefault(tuple(str(cell[name]) for name in down), []).append(agreed[number])
        names = [" ".join([*at[:-1], metric_name(at[-1])]) for at in columns]
        places = [{value: i for i, value in enumerate(dict.fromkeys(column))} for column in zip(*lines)]
        ordered = sorted(lines, key=lambda at: [place[value] for place, value in zip(places, at)])
        rows = [[*at, *(lines[at].get(c, "") for c in columns)] for at in ordered]
        headings = [*(name.replace("_", " ") for name in down), *names]
        judged = [marks(added(rows_agreed[at])) for at in ordered]
        if any(judged):
            headings.append("order")
            rows = [[*row, mark] for row, mark in zip(rows, judged)]
        return headings, rows, len(down)

    def needed(self) -> list[str]:
        """Columns besides the contenders' without which two numbers would stand in one place."""
        names = [name for name in (*self.keys, "device", "model") if name not in self.compare]
        for name in reversed(names):
            rest = [*(other for other in names if other != name), *self.compare, "metric"]
            if len({tuple(cell[key] for key in rest) for cell in self.cells}) == len(self.cells):
                names.remove(name)
        return names

    def shown(self) -> list[int]:
        """Numbers of the cells that are shown: of a large table its means."""
        recipe = RECIPES.get(self.table)
        if len(self.cells) <= MANY or recipe is None or recipe.total is None:
            return list(range(len(self.cells)))
        column, total = recipe.total
        return [i for i, cell in enumerate(self.cells) if cell[column] == total]

    def agreement(self) -> list[Agreement]:
        """Of every cell's comparisons, how many clearly go the paper's way, are unclear, clearly do not."""
        counts, clear = [[0, 0, 0] for _ in self.cells], set(map(tuple, self.clear))
        for a, b, printed, here in self._pairs():
            verdict = verdict_of(printed, here)
            if verdict in ("agrees", "against"):
                place = 1 if (a, b) not in clear else 0 if verdict == "agrees" else 2
                counts[a][place] += 1
                counts[b][place] += 1
        return [(right, unclear, wrong) for right, unclear, wrong in counts]

    def _pairs(self) -> list[tuple[int, int, float, float]]:
        """Every two measured contenders of a column: their numbers, and the differences printed and here."""
        groups: dict[tuple, list[int]] = {}
        for i, cell in enumerate(self.cells):
            if cell["measured"] is not None and cell["value"] is not None:
                groups.setdefault(tuple(cell[name] for name in self.held), []).append(i)
        found = []
        for cells in groups.values():
            for a, b in combinations(cells, 2):
                one, two = self.cells[a], self.cells[b]
                found.append((a, b, one["value"] - two["value"], one["measured"] - two["measured"]))
        return found

    @property
    def held(self) -> list[str]:
        """The columns that are the same in both sides of a comparison."""
        return [name for name in (*self.keys, "metric", "device", "model") if name not in self.compare]


ARROW = "\N{RIGHTWARDS ARROW}"
MARKS = ("\N{CHECK MARK}", "?", "\N{BALLOT X}")
ORDER = (
    f"order: comparisons with the column's other rows: {MARKS[0]} clearly the paper's way, "
    f"{MARKS[1]} unclear, {MARKS[2]} clearly not"
)
Agreement = tuple[int, int, int]
OURS = ("measured", "low", "high", "ratio", "why")
KEPT = (
    "table", "caption", "place", "compare", "cells", "clear", "setup", "environment", "notes", "runs",
    "traces", "asked", "seconds", "created",
)  # fmt: skip


def said(value: float, printed: str) -> str:
    """A number to as many digits as its neighbour was printed with."""
    if not printed:
        return f"{value:.3g}"
    digits = len(printed.partition(".")[2])
    sign = "+" if printed.startswith("+") else ""
    return f"{value:{sign}.{digits}f}"


def once(rows: Sequence[Sequence[str]], names: int) -> list[list[str]]:
    """Rows in which a name that stands below the same one, as all in front of it do, is left out."""
    found, above = [], list[str]()
    for row in rows:
        same = next((i for i in range(names - 1) if not above or row[i] != above[i]), names - 1)
        found.append([*("" for _ in range(same)), *row[same:]])
        above = list(row)
    return found


def metric_name(metric: str) -> str:
    """A metric as a heading."""
    names = {"tau": "τ", "ne": "NE", "a_d": "A/D", "a_o": "A/O", "comet": "COMET", "bleu": "BLEU",
             "relative_bleu": "relative BLEU"}  # fmt: skip
    if metric.startswith("rouge_"):
        return metric.replace("_", "-").upper()
    return names.get(metric, metric.replace("_", " "))


def marks(counts: Sequence[int]) -> str:
    """Comparisons that clearly go the paper's way, are unclear, clearly do not."""
    return " ".join(f"{mark}{n}" for mark, n in zip(MARKS, counts) if n)


def added(all_counts: Sequence[Agreement]) -> list[int]:
    """Such numbers of several cells."""
    return [sum(numbers) for numbers in zip(*all_counts)]


def cellular(text: str) -> str:
    """A text that ends no cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def verdict_of(printed: float, here: float) -> str:
    """Of the difference of two printed figures, and that of the measured ones: whether their signs agree."""
    if abs(printed) < SAME:
        return "tied"
    if abs(here) < SAME:
        return "level"
    return "agrees" if printed * here > 0 else "against"


def ahead(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether it is clear which of two figures is larger: 95 % of the differences have one sign.

    Both are drawn on the same texts, where they were measured on the same ones. On fewer than `FEWEST` texts
    nothing is clear: five that all go one way are no rarer than 1 in 16.
    """
    measured = [each for each in (a, b) if each["texts"] or each["low"] != each["value"]]
    if any(each["low"] is None or each["texts"] < FEWEST for each in measured):
        return False
    if len(measured) == 2 and a["texts"] == b["texts"] and a["drawn"] is not None and b["drawn"] is not None:
        low, high = np.nanquantile(a["drawn"] - b["drawn"], (0.025, 0.975))
        return bool(low > 0 or high < 0)
    return bool(a["low"] > b["high"] or b["low"] > a["high"])


# ---------------------------------------------------------------- running


def find(table: str) -> Recipe:
    """The recipe of a table.

    Raises
    ------
    ParameterError
        If there is no such table, or none of it can be measured; near names are offered.
    """
    if table in RECIPES or table in CURVES:
        return RECIPES.get(table) or CURVES[table]
    if table in FIGURES:
        raise ParameterError(f"{table} has no replay of its own: {FIGURES[table]}")
    if table in SETTINGS:
        raise ParameterError(f"{table} cannot be replayed: {SETTINGS[table]}")
    published(table)  # refuses what no paper has
    raise ParameterError(f"{table} has no recipe")


@loading()
def replay(
    table: str,
    *,
    model: Any = None,
    draft: Any = None,
    suite: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    quick: bool = False,
    prompts: int | None = None,
    max_new_tokens: int | None = None,
    threads: int = 1,
    out: str | Path | None = None,
    tick: Tick | None = None,
    memory: dict[Any, Any] | None = None,
    shared: Path | None = None,
) -> Replay:
    """Measure here what a paper printed, and set the two beside each other.

    Parameters
    ----------
    table : str
        As `specviz.published` takes it: ``"unispec/table1"``.
    model : str or Model, optional
        In place of the bundled one that the recipe names: a folder, ``hf:<id>``, or a loaded model.
    draft : str or mapping, optional
        Its drafter; a mapping from roles where the recipe has several (``small``, ``aligned`` ...).
    suite : str or Suite, optional
        Prompts in place of the bundled ones, as `specviz.suite` takes them.
    device, dtype : str
    quick : bool
        Few prompts and short answers: minutes rather than tens of them, with wide intervals.
    prompts, max_new_tokens : int, optional
        Default: the recipe's.
    threads : int
        On a CPU.
    out : path, optional
        The folder; default ``specviz-replays/PAPER-TABLE``. What is finished there is not measured again.
    tick : callable
        Told (done, of, what); default: a progress bar where it is seen.
    memory, shared : dict, path, optional
        What several replays share: loaded models and measurements, and the folder of calibrations.

    Returns
    -------
    Replay

    Raises
    ------
    ParameterError, ModelError, PromptError, SpecvizError
        With one line that says what to do. The folder of a replay with other settings is refused and kept.

    Examples
    --------
    >>> found = specviz.replay("unispec/table3", quick=True)  # doctest: +SKIP
    >>> found.frame()[["method", "language", "metric", "value", "measured", "ratio"]]  # doctest: +SKIP
    """
    recipe = find(table)
    path = Path(out) if out is not None else Path("specviz-replays") / table.replace("/", "-")
    numbers = dict(recipe.quick if quick else recipe.whole)
    numbers |= {k: v for k, v in (("prompts", prompts), ("max_new_tokens", max_new_tokens)) if v is not None}
    from specviz.arguments import check_int

    for name in ("prompts", "max_new_tokens"):
        check_int(name, numbers[name], 1)
    check_threads(check_int("threads", threads, 1))
    drafts = roles(recipe, model, draft)
    chosen = read_suite(suite)
    asked = {
        "table": table, "model": name_of(model, recipe.model), "drafts": drafts,
        "suite": chosen.digest if chosen is not None else recipe.suite, "device": device, "dtype": dtype,
        "threads": threads, **numbers,
    }  # fmt: skip
    there = finished(path, asked)
    if there is not None:
        return there
    memory, shared = {} if memory is None else memory, shared or path / "calibrations"
    return measure(table, recipe, asked, numbers, model, drafts, chosen, path, shared, memory, tick)


def show_recipes(console: Any) -> None:
    """Print what can be replayed, and what not, on a rich console."""
    from rich.text import Text

    rows = []
    entries: Any = list_published().itertuples()
    for entry in entries:
        recipe = RECIPES.get(entry.name)
        rows.append([entry.name, "–" if recipe is None else recipe.model, str(entry.caption)])
    rows += [[name, recipe.model, f"{recipe.caption} (drawn only)"] for name, recipe in CURVES.items()]
    print_table(console, [Column("table"), Column("bundled model"), Column("what it shows", folds=40)], rows)
    for table, why in (SETTINGS | FIGURES).items():
        console.print(Text(f"{table} is not replayed: {why}"), soft_wrap=not console.is_terminal)


def measure(
    table: str, recipe: Recipe, asked: dict[str, Any], numbers: dict[str, Any], model: Any,
    drafts: dict[str, str], suite: Any, path: Path, shared: Path, memory: dict[Any, Any], tick: Tick | None,
) -> Replay:  # fmt: skip
    """Run a recipe and compare."""
    from specviz.measure.calibrate import bar
    from specviz.measure.timing import threads
    from specviz.replays import sources

    begin = perf_counter()
    with threads(asked["threads"]), bar() if tick is None else nullcontext(tick) as told:
        how = sources.How(
            loaded(model, recipe, asked, memory), drafts, suite, numbers["prompts"],
            numbers["max_new_tokens"], asked["threads"], numbers, path, shared, memory, told,
        )  # fmt: skip
        found = sources.find(recipe.source)(recipe, how)
    made = compared(table, recipe, found, asked)
    made = replace(made, seconds=perf_counter() - begin, path=path)
    made.save()
    return made


def loaded(model: Any, recipe: Recipe, asked: Mapping[str, Any], memory: dict[Any, Any]) -> Any:
    """The model; one of this process' replays loads it once."""
    if model is not None and not isinstance(model, str | Path):
        return model
    key = ("model", asked["model"], asked["device"], asked["dtype"])
    if key not in memory:
        from specviz.models import load

        memory[key] = load(asked["model"], asked["device"], asked["dtype"])
    return memory[key]


def roles(recipe: Recipe, model: Any, draft: Any) -> dict[str, str]:
    """Role of each drafter: its name.

    Raises
    ------
    ParameterError
        For a role that the recipe has not, or a model of one's own without the drafters that it needs.
    """
    needed = dict(recipe.drafts)
    if draft is None:
        given: dict[str, str] = {}
    elif isinstance(draft, Mapping):
        given = {str(role): str(name) for role, name in draft.items()}
    elif len(needed) > 1:
        words = ", ".join(f"{role}=..." for role in needed)
        raise ParameterError(f"this table needs several drafters: say which is which, as --draft {words}")
    else:
        given = dict.fromkeys(needed, str(draft))
    for role in given:
        if role not in needed:
            known = ", ".join(needed) or "none"
            raise ParameterError(f"this table has no drafter {role!r}; it has {known}")
    own = model is not None and name_of(model, recipe.model) != recipe.model
    return {role: given.get(role, "" if own else name) for role, name in needed.items()}


def name_of(model: Any, default: str) -> str:
    """A model's name."""
    if model is None:
        return default
    return str(model) if isinstance(model, str | Path) else str(model.name)


def read_suite(given: Any) -> Any:
    """A suite by its name, or as it is."""
    if given is None:
        return None
    if isinstance(given, str | Path):
        from specviz.suites import suite

        return suite(str(given))
    return given


class OtherSettings(SpecvizError):
    """A folder holds a replay that was made in another way."""


def finished(path: Path, asked: Mapping[str, Any]) -> Replay | None:
    """The replay that a folder holds, if it is of the same settings; None where it holds none.

    Raises
    ------
    SpecvizError
        If it is of other settings, or the folder holds something else.
    """
    if not (path / FILE).exists():
        if (path / "run.json").exists() or (path / ALL).exists():
            raise SpecvizError(f"{path} holds another kind of result: choose another folder")
        return None
    there = opened(path)
    wrong = [
        f"its {key} is {there.asked.get(key)}, here {asked.get(key)}"
        for key in {**there.asked, **asked}
        if there.asked.get(key) != json.loads(json.dumps(asked.get(key)))
    ]
    if wrong:
        raise OtherSettings(
            f"{path} holds a replay with other settings: {'; '.join(wrong)}. Give the same ones, or another "
            "folder"
        )
    return there


def opened(path: str | Path) -> Replay:
    """The replay of a folder.

    Raises
    ------
    TraceError
        If it holds none, a damaged one, or one of a newer version.
    """
    file = Path(path) / FILE
    if not file.is_file():
        raise TraceError(f"{path} is no folder of a replay: it has no {FILE} (specviz replay makes one)")
    told = read_json(file)
    if told.get("specviz") != "replay" or told.get("schema") != SCHEMA:
        raise TraceError(f"{file} was not written by this version of specviz replay")
    try:
        kept = {name: told[name] for name in KEPT}
        for cell in kept["cells"]:
            cell["measured"], cell["value"], cell["printed"]
    except (KeyError, TypeError) as error:
        raise TraceError(f"{file} is damaged (it lacks {error})") from None
    return Replay(**kept | {"compare": tuple(kept["compare"]), "path": Path(path)})


@dataclass
class Replays:
    """The replays of a folder: every published table, replayed, or listed with the reason.

    Parameters
    ----------
    path : Path
    found : list of Replay
    left : dict
        Table: why it was not replayed.
    """

    path: Path
    found: list[Replay] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Replays {self.path}: {len(self.found)} tables replayed, {len(self.left)} not>"

    @property
    def complete(self) -> bool:
        """Whether every published table is accounted for."""
        known = {*list_published()["name"], *CURVES, *FIGURES}
        return {each.table for each in self.found} | set(self.left) >= known

    def frame(self) -> pd.DataFrame:
        """One row a table: how much of it was measured, and how much goes the paper's way."""
        import pandas as pd

        rows = [{"table": r.table, **r.counts(), "seconds": r.seconds, "why": ""} for r in self.found]
        rows += [{"table": table, "why": why} for table, why in self.left.items()]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return self.frame()._repr_html_()  # type: ignore[no-any-return, operator]

    def save(self) -> Path:
        """Write ``replays.json``, whole or not at all."""
        names = [r.table for r in self.found]
        write_json(
            self.path / ALL, {"specviz": "replays", "schema": SCHEMA, "tables": names, "left": self.left}
        )
        return self.path / ALL

    def show(self, console: Any) -> None:
        """Print the overview on a rich console."""
        from rich.text import Text

        columns = [Column("table"), *(Column(name, right=True) for name in OVERVIEW)]
        print_table(console, columns, [[r.table, *counted(r)] for r in self.found])
        lines = [f"not replayed: {table}: {why}" for table, why in self.left.items()]
        lines.append(
            f"{self.path}: {len(self.found)} tables replayed, {len(self.left)} listed with the reason"
        )
        for text in lines:
            console.print(Text(text), soft_wrap=not console.is_terminal)

    def markdown(self) -> str:
        """The overview and every table, for an issue."""
        rows = [[f"`{r.table}`", *counted(r)] for r in self.found]
        said = ["| table | " + " | ".join(OVERVIEW) + " |", "| --- |" + " ---: |" * len(OVERVIEW)]
        said += ["| " + " | ".join(row) + " |" for row in rows] + [""]
        said += [f"- `{table}` was not replayed: {why}" for table, why in self.left.items()] + [""]
        return "\n".join(said) + "\n" + "\n".join(r.markdown() for r in self.found)


OVERVIEW = (
    "measured",
    "paper's way",
    f"{MARKS[0]} clearly",
    f"{MARKS[1]} unclear",
    f"{MARKS[2]} clearly not",
    "seconds",
)


def counted(made: Replay) -> list[str]:
    """A replay's line of the overview."""
    n = made.counts()
    judged = n["agrees"] + n["against"]
    shares = [f"{n['agrees']} of {judged}", n["clear_agrees"], n["unclear"], n["clear_against"]]
    middle = list(map(str, shares)) if judged else ["–"] * 4
    return [f"{n['measured']} of {n['cells']}", *middle, f"{made.seconds:.0f}"]


@loading()
def replay_all(
    out: str | Path,
    *,
    model: Any = None,
    draft: Any = None,
    suite: Any = None,
    device: str = "cpu",
    dtype: str = "float32",
    quick: bool = False,
    prompts: int | None = None,
    max_new_tokens: int | None = None,
    threads: int = 1,
    tick: Callable[[str], Tick] | None = None,
) -> Replays:
    """Replay every published table and curve into a folder; what cannot be is listed with its reason.

    Parameters
    ----------
    out : path
        A folder for each table, and ``replays.json``. What is finished there is not measured again.
    tick : callable
        Given a table's name, what is told of its progress.

    Other parameters, and errors, are those of `replay`; an error of one table is its reason, and the others
    go on.
    """
    path = Path(out)
    if (path / FILE).exists() or (path / "run.json").exists():
        raise SpecvizError(f"{path} holds another kind of result: choose another folder")
    made, memory = Replays(path), dict[Any, Any]()
    chosen = read_suite(suite)
    made.left |= SETTINGS | FIGURES
    for table in [*RECIPES, *CURVES]:
        own = draft  # of several drafters those that this table has
        if isinstance(draft, Mapping):
            own = {role: name for role, name in draft.items() if role in find(table).drafts} or None
        try:
            made.found.append(
                replay(
                    table, model=model, draft=own, suite=chosen, device=device, dtype=dtype, quick=quick,
                    prompts=prompts, max_new_tokens=max_new_tokens, threads=threads,
                    out=path / table.replace("/", "-"), tick=tick(table) if tick else None,
                    memory=memory, shared=path / "calibrations",
                )
            )  # fmt: skip
        except SpecvizError as error:
            if isinstance(error, OtherSettings):
                raise
            made.left[table] = str(error)
        made.save()
    return made


def opened_all(path: str | Path) -> Replays:
    """The replays of a folder.

    Raises
    ------
    TraceError
        If it holds none, or damaged ones.
    """
    file = Path(path) / ALL
    if not file.is_file():
        raise TraceError(f"{path} is no folder of replays: it has no {ALL} (specviz replay --all makes one)")
    told = read_json(file)
    if told.get("specviz") != "replays" or told.get("schema") != SCHEMA:
        raise TraceError(f"{file} was not written by this version of specviz replay")
    found = [opened(Path(path) / table.replace("/", "-")) for table in told["tables"]]
    return Replays(Path(path), found, dict(told["left"]))


# ---------------------------------------------------------------- comparing


def compared(table: str, recipe: Recipe, found: Any, asked: dict[str, Any]) -> Replay:
    """A published table and what a source found, cell by cell."""
    if table in CURVES:
        return drawn(table, recipe, found, asked)
    frame = published(table)
    rows: Any = frame.drop(columns=["paper", "table"]).to_dict("records")
    cells, figures = [], list[Any]()
    for row in rows:
        figure = next(
            (f for f in found.rows if f["metric"] == row["metric"] and covers(f["where"], row)), None
        )
        figures.append(figure)
        why = "" if figure else reason(row, recipe, found)
        taken = {name: figure[name] if figure else None for name in ("value", "low", "high")}
        cells.append(
            {**row, "measured": taken["value"], "low": taken["low"], "high": taken["high"], "why": why}
        )
    made = Replay(
        table, frame.attrs["caption"], frame.attrs["place"], recipe.compare, cells, [],
        differences(frame, recipe, found), found.environment, found.notes, found.runs, found.traces, asked,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    made.clear = [[a, b] for a, b, *_ in made._pairs() if ahead(figures[a], figures[b])]
    return made


def drawn(table: str, recipe: Recipe, found: Any, asked: dict[str, Any]) -> Replay:
    """What a source found for a curve that the paper draws without a printed value."""
    import pandas as pd

    cells = [
        {**row["where"], "metric": row["metric"], "value": None, "printed": "", "unit": "", "device": "",
         "model": "", "measured": row["value"], "low": row["low"], "high": row["high"], "why": ""}
        for row in found.rows
    ]  # fmt: skip
    nothing = pd.DataFrame({"model": [], "device": []})
    return Replay(
        table, recipe.caption, f"Figure {table.rpartition('figure')[2]}", recipe.compare, cells, [],
        differences(nothing, recipe, found), found.environment, found.notes, found.runs, found.traces, asked,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def covers(where: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether columns and values are those of a row; several values of a column are a choice."""
    for key, value in where.items():
        choices = value if isinstance(value, list | tuple) else (value,)
        if row.get(key) not in choices:
            return False
    return True


def reason(row: Mapping[str, Any], recipe: Recipe, found: Any) -> str:
    """Why nothing stands beside a row."""
    for where, why in (*found.absent, *recipe.absent):
        if covers(where, row):
            return str(why)
    return "the run gave no such figure (too few prompts of this part, or they failed)"


def differences(frame: Any, recipe: Recipe, found: Any) -> list[dict[str, str]]:
    """What of the set-up is another one."""

    def words(column: str) -> str:
        return ", ".join(dict.fromkeys(filter(None, frame[column]))) or "does not say"

    here = found.environment
    threads = here.get("threads")
    cpu = str(here.get("device", "")).startswith("cpu")
    device = f"{here.get('device')} ({here.get('processor')})" if cpu else str(here.get("device"))
    device += f", {threads} thread{'s' * (threads != 1)}" if cpu else ""
    model = here.get("model", {})
    size = model.get("parameters")
    ours = f"{model.get('name')}" + (f" ({size / 1e6:.1f} M parameters)" if size else "")
    told = [
        ("model", words("model"), ours), ("device", words("device"), device),
        ("precision", recipe.precision, str(here.get("dtype"))),
        ("data", recipe.data or "does not say", found.data),
        *recipe.differs,
    ]  # fmt: skip
    return [{"what": what, "paper": paper, "here": ours} for what, paper, ours in told]
