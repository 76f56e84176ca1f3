"""Print replays on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from specviz.errors import plural
from specviz.measure.report import Column, print_lines, print_table
from specviz.measure.rows import Results
from specviz.replays.answers import answers
from specviz.replays.costs import HEADINGS, IN_WORDS, pooled
from specviz.replays.layout import ARROW, BADGES, ORDER, OVERVIEW, TIMES, grid, overview, shown, verdict_lines
from specviz.replays.published import list_published
from specviz.replays.recipes import CURVES, FIGURES, RECIPES, SETTINGS
from specviz.replays.replays import Replay, Replays

ROOMY = 100  # a terminal with at least this many columns also shows ratios


def show(result: Results | Replay | Replays, console: Console) -> None:
    """Print a run, a replay, or the overview of several."""
    if isinstance(result, Replay):
        show_replay(result, console)
    elif isinstance(result, Replays):
        show_overview(result, console)
    else:
        result.show(console)


def show_replay(replay: Replay, console: Console) -> None:
    """Print a replay: claims, printed and measured numbers, costs, and setup."""
    print_lines(
        console, f"{replay.table} ({replay.place}): {replay.caption}",
        *(f"{BADGES[word]} {word}: {claim}. {why}" for word, claim, why in verdict_lines(replay)), "",
    )  # fmt: skip
    if replay.measured:
        table = grid(replay)
        narrow = console.is_terminal and console.width < ROOMY
        many = len(table.headings)
        columns = [
            Column(name, right=True, drop_rank=many - i if i > table.names and name != "order" else None)
            if i >= table.names
            else Column(name, folds=16)
            for i, name in enumerate(table.headings)
        ]
        rows = table.rows
        if narrow:
            rows = [[cell.partition(f" ({TIMES}")[0] for cell in row] for row in rows]
        print_table(console, columns, without_repeats(rows, table.names))
        print_lines(console, f"printed {ARROW} measured here{'' if narrow else f' ({TIMES}ratio)'}. {ORDER}")
        hidden = len(replay.cells) - len(shown(replay))
        if hidden:
            print_lines(console, f"{hidden} further numbers: specviz bench report {replay.path} --html")
    if costs := pooled(replay.costs):
        print_lines(console, "", "Where the time goes:")
        columns = [Column(HEADINGS[0], folds=16)]
        columns += [
            Column(name, right=True, drop_rank=i) for i, name in enumerate(reversed(HEADINGS[1:]), 1)
        ][::-1]
        print_table(console, columns, [each.row() for each in costs])
        print_lines(console, IN_WORDS)
    print_lines(
        console,
        *(f"not measured: {which}: {why} ({plural(n, 'number')})" for which, why, n in replay.missing()),
        "Set-up:",
        *(f"  {each['what']}: the paper {each['paper']}; here {each['here']}" for each in replay.setup),
        *(f"note: {note}" for note in replay.remarks()),
        *(f"in print: {text}" for text in replay.errata),
        f"{replay.table}: {replay.summary}",
    )


def without_repeats(rows: Sequence[Sequence[str]], names: int) -> list[list[str]]:
    """Blank each name that repeats the one above it, if all names to its left do too."""
    out, above = [], list[str]()
    for row in rows:
        same = next((i for i in range(names - 1) if not above or row[i] != above[i]), names - 1)
        out.append([*("" for _ in range(same)), *row[same:]])
        above = list(row)
    return out


def show_overview(every: Replays, console: Console) -> None:
    """Print one line per table, then the answers and the tables that were not replayed."""
    columns = [Column("table"), *(Column(name, right=True) for name in OVERVIEW)]
    print_table(console, columns, [[each.table, *overview(each)] for each in every.tables])
    print_lines(
        console,
        *(f"{each.paper}: {each.words}; {each.counts}" for each in answers(every.tables)),
        *(f"not replayed: {table}: {why}" for table, why in every.left.items()),
        f"{every.path}: {len(every.tables)} tables replayed, {len(every.left)} not (reasons above)",
    )


def show_recipes(console: Console) -> None:
    """Print the tables that can be replayed, and those that cannot."""
    published = zip(list_published()["name"], list_published()["caption"])
    rows = [[name, RECIPES[name].model if name in RECIPES else "–", str(text)] for name, text in published]
    rows += [[name, recipe.model, f"{recipe.caption} (drawn only)"] for name, recipe in CURVES.items()]
    print_table(console, [Column("table"), Column("bundled model"), Column("what it shows", folds=40)], rows)
    left = SETTINGS | FIGURES
    print_lines(console, *(f"{table} is not replayed: {why}" for table, why in left.items()))
