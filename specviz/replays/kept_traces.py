"""Choose which kept traces to show: the best, median and worst prompt, and each contender's median."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specviz.measure.report import Row, Values
from specviz.measure.rows import Results, fast, key_of, speed, words
from specviz.replays.cells import AGAIN, Provenance


def marked(
    results: Results, contenders: Sequence[tuple[str, Values, str | None]] = ()
) -> tuple[Row, dict[str, tuple[Row, str]]] | None:
    """The fastest contender with traces, and its best, median and worst prompt with their figures.

    The control, one decoder under a second name, does not count as a contender.
    `contenders` (method, parameters, drafter) restricts the choice; if it is empty, all are eligible.
    """
    good = [row for row in results.records() if row["error"] is None]
    cells = [
        cell for cell in results.cells
        if cell["cell"] != cell["against"] and not cell["method"].endswith(f"_{AGAIN}")
        and (not contenders or (cell["method"], cell["parameters"], cell["draft"]) in contenders)
    ]  # fmt: skip
    ranked = [(cell, *ranked_rows(results, cell, good)) for cell in cells]
    cell, rows, unit = max(ranked, key=lambda each: median_value(each[1]), default=({}, [], ""))
    if not rows:
        return None
    places = {"best": rows[-1], "median": rows[len(rows) // 2], "worst": rows[0]}
    return cell, {name: (row, f"{value:.2f} {unit}") for name, (value, row) in places.items()}


def median_value(rows: Sequence[tuple[float, Row]]) -> float:
    """The figure of the middle row of ranked rows; minus infinity without rows."""
    return rows[len(rows) // 2][0] if rows else float("-inf")


def ranked_rows(results: Results, cell: Values, good: Sequence[Row]) -> tuple[list[tuple[float, Row]], str]:
    """A contender's rows with a trace, sorted by speedup (without times by tokens per cycle); the unit."""
    base = {(row["round"], row["prompt"]): row for row in good if row["cell"] == cell["against"]}
    timed, counted = [], []
    for row in (row for row in good if row["cell"] == cell["cell"]):
        key = key_of(row["cell"], row["round"], row["prompt"])
        if not (results.path / "traces" / f"{key}.parquet").exists():
            continue
        other = base.get((row["round"], row["prompt"]))
        if other is not None and fast(row) and fast(other):
            timed.append((speed(row) / speed(other), row))
        if row["steps"]:
            counted.append((row["tokens"] / row["steps"], row))
    rows, unit = (timed, "× as fast") if timed else (counted, "tokens per cycle")
    return sorted(rows, key=lambda each: each[0]), unit


def median_row(results: Results, cell: Values, language: str = "") -> Row | None:
    """The median prompt of a contender with traces, among those in `language` if there are any."""
    good = [row for row in results.records() if row["error"] is None]
    if any(row.get("language") == language for row in good):
        good = [row for row in good if row["language"] == language]
    rows, _ = ranked_rows(results, cell, good)
    return rows[len(rows) // 2][1] if rows else None


def contender_of(results: Results, source: Provenance) -> Row | None:
    """Find the run's contender that a figure was measured on; the figure's settings may list more."""

    def same(cell: Values) -> bool:
        drafters = Path(cell["draft"] or "").name, Path(source.drafter).name
        settings = words(cell["parameters"])
        return (
            cell["method"] == source.method
            and drafters[0] == drafters[1]
            and (not settings or f"{source.settings} ".startswith(f"{settings} "))
        )

    return max(filter(same, results.cells), key=lambda cell: len(cell["parameters"]), default=None)
