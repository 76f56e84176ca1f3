"""Export runs and replays as Markdown, for an issue, or as CSV, for a script."""

from __future__ import annotations

from collections.abc import Sequence

from specviz import escape
from specviz.escape import markdown as safe
from specviz.measure.rows import Results
from specviz.replays.answers import answers
from specviz.replays.costs import HEADINGS, IN_WORDS, pooled
from specviz.replays.layout import ARROW, ORDER, OVERVIEW, TIMES, grid, overview, verdict_lines
from specviz.replays.replays import Replay, Replays


def csv(result: Results | Replay | Replays) -> str:
    """Export a run's table, a replay's numbers or an overview as CSV, without rounding."""
    frame = result.table() if isinstance(result, Results) else result.frame()
    return escape.csv(frame)


def markdown(result: Results | Replay | Replays) -> str:
    """Render a run, a replay, or an overview and its tables as Markdown."""
    if isinstance(result, Replay):
        lines = replay_lines(result)
    elif isinstance(result, Replays):
        rows = [[f"`{each.table}`", *overview(each)] for each in result.tables]
        lines = [
            f"- **{each.paper}**: {safe(each.words)}; {safe(each.counts)}" for each in answers(result.tables)
        ]
        lines += ["", *table(["table", *OVERVIEW], rows, 1), ""]
        lines += [f"- {safe(f'{name} was not replayed: {why}')}" for name, why in result.left.items()]
        for each in result.tables:
            lines += ["", *replay_lines(each)]
    else:
        shown = result.shown().astype(str)
        lines = [f"### specviz bench run: {safe(result.path.name)}", ""]
        headings = list(shown.columns)
        lines += [*table(headings, shown.to_numpy().tolist(), len(headings)), ""]
        lines += [f"- {safe(line)}" for line in (*result.places(), *result.notes())]
    return "\n".join([*lines, ""])


def replay_lines(replay: Replay) -> list[str]:
    """The lines of a replay: claims, numbers, costs, what was not measured, and what differs."""
    lines = [f"### `{replay.table}`: {safe(replay.caption)}", "", f"{safe(replay.summary)}.", ""]
    if replay.verdicts:
        rows = [[claim, verdict, why] for verdict, claim, why in verdict_lines(replay)]
        lines += [*table(["claim", "verdict", "numbers"], rows, 3), ""]
    if replay.measured:
        layout = grid(replay)
        lines += [f"Printed {ARROW} measured on {safe(replay.device)} ({TIMES}ratio). {ORDER}", ""]
        lines += [*table(layout.headings, layout.rows, layout.names), ""]
    if costs := pooled(replay.costs):
        lines += ["Where the time goes. " + IN_WORDS, ""]
        lines += [*table(HEADINGS, [each.row() for each in costs], 1), ""]
    items = [f"Not measured: {which}: {why} ({n})" for which, why, n in replay.missing()]
    items += [f"{each['what']}: the paper {each['paper']}; here {each['here']}" for each in replay.setup]
    items += [*replay.remarks(), *(f"in print: {text}" for text in replay.errata)]
    return [*lines, *(f"- {safe(item)}" for item in items)]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], names: int) -> list[str]:
    """The lines of a table whose first `names` columns are names, the others numbers."""
    rule = ["---" if i < names else "---:" for i in range(len(headings))]
    lines = (list(map(safe, row)) for row in (headings, *rows))
    first, *others = ("| " + " | ".join(line) + " |" for line in lines)
    return [first, "| " + " | ".join(rule) + " |", *others]
