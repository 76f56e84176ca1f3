"""A replay: a paper's table with the figures measured here for its numbers, and how the two compare.

A replay is a folder: ``replay.json`` holds the cells with their provenance, and the runs from which they were
computed are in folders below it. Everything shown (the setup, the comparisons, the verdicts on the paper's
claims) comes from that file alone, on any machine, without torch and without the recipe that made it.
`specviz.replays.running` makes replays; `terminal`, `markdown` and `page` show them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import TraceError, plural
from specviz.files import checked, read_json
from specviz.measure.report import Row, Settings, Values
from specviz.measure.rows import Results, write_json
from specviz.paths import expanded
from specviz.replays.cells import (
    FAILS,
    HOLDS,
    OPEN,
    Cell,
    Check,
    Comparison,
    Figure,
    Plain,
    Provenance,
    Tally,
    Verdict,
)
from specviz.replays.costs import Cost
from specviz.replays.judging import Judge, remarks, setup
from specviz.replays.published import claims, list_published, published, title
from specviz.replays.recipes import CURVES, FIGURES, Recipe

if TYPE_CHECKING:
    import pandas as pd

    from specviz.replays.sources.shared import Measurement

SCHEMA = 2
FILE, ALL = "replay.json", "replays.json"


@dataclass
class Replay:
    """A published table and its measurements.

    Parameters
    ----------
    table : str
        The table's name for `specviz.published`.
    title, caption, place : str
        The paper's title, the table's caption and its place in the paper.
    compare : tuple of str
        The columns whose values are contenders.
    cells : list of Cell
        In the order of the published rows.
    total : list of str
        A column, and its value that is the mean of the others; empty if there is none.
    metrics : list of str
        The most important ones first.
    drawn : bool
        Whether the paper draws a curve without printed values.
    comparisons : list of Comparison
    verdicts : list of Verdict
        What the measurements here say about the paper's claims.
    checks : list of Check
        Checks of the run itself.
    errata : list of str
        Where the paper disagrees with itself.
    theirs : dict
        Parts of the paper's setup that its table does not state: ``data``, ``precision`` ...
    defined : list of list of str
        Definitions that differ here: what, the paper's, ours.
    environment : dict
        Device, processor, threads, number format, clock, versions.
    notes : list of str
    runs : list of str
        Folders below `path` that hold the rows and their traces.
    traces : list of dict
        Without a run, the best, median and worst text: ``name``, ``of``, ``figure``, ``file``.
    figures : list of dict
        For each measured figure, what its comparisons need besides its cells: ``texts``, the number of texts
        (or parts) that were resampled, and ``derived``, whether it is a mean of other figures. Older replays
        have none.
    costs : list of Cost
        Where the time of each contender goes.
    settings : dict
        The settings that distinguish this replay from others of the same table.
    seconds : float
    created : str
    path : Path
    """

    table: str
    title: str
    caption: str
    place: str
    compare: tuple[str, ...]
    cells: list[Cell]
    total: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    drawn: bool = False
    comparisons: list[Comparison] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    errata: list[str] = field(default_factory=list)
    theirs: dict[str, str] = field(default_factory=dict)
    defined: list[list[str]] = field(default_factory=list)
    environment: Settings = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    traces: list[dict[str, str]] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    figures: list[dict[str, int]] = field(default_factory=list)
    settings: Settings = field(default_factory=dict)
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
        return list(self.cells[0].keys) if self.cells else []

    @property
    def shared_columns(self) -> list[str]:
        """The columns whose values both sides of a comparison share."""
        return [name for name in (*self.keys, "metric", "device", "model") if name not in self.compare]

    @property
    def sources(self) -> list[Provenance]:
        """The distinct provenances of the figures."""
        return list(dict.fromkeys(cell.source for cell in self.cells if cell.source is not None))

    @property
    def setup(self) -> list[dict[str, str]]:
        """Differences from the paper's setup: ``what``, ``paper``, ``here``, the last from the cells."""
        return setup(self.cells, self.theirs, self.defined)

    @property
    def device(self) -> str:
        """Where it was measured, in words."""
        return "; ".join(dict.fromkeys(source.place for source in self.sources)) or "nowhere"

    @property
    def measured(self) -> list[Cell]:
        """The cells that have a measured figure."""
        return [cell for cell in self.cells if cell.measured is not None]

    def frame(self) -> pd.DataFrame:
        """The published table with ``measured``, its interval, the ratio to the printed number, and ``why``.

        The provenance of each figure follows in columns that begin with ``here_``.
        """
        import pandas as pd

        frame = pd.DataFrame([cell.as_dict() for cell in self.cells]).drop(columns="figure")
        for name in ("measured", "low", "high"):
            frame[name] = pd.to_numeric(frame[name])
        ratio = frame["measured"] / frame["value"].where(lambda v: v != 0)
        frame.insert(list(frame).index("high") + 1, "ratio", ratio)
        empty = dict.fromkeys(Provenance().as_dict())
        here = pd.DataFrame([c.source.as_dict() if c.source is not None else empty for c in self.cells])
        return pd.concat([frame, here.add_prefix("here_")], axis=1)

    def compared(self) -> pd.DataFrame:
        """The comparisons as a table.

        Returns
        -------
        DataFrame
            The shared keys, ``metric``, ``device`` and ``model``; ``first`` and ``second``, the contenders;
            ``printed``, ``measured``, ``low``, ``high``, ``p``, ``verdict`` and ``clear`` as in `Comparison`.
        """
        import pandas as pd

        rows = []
        for each in self.comparisons:
            pair = self.cells[each.first], self.cells[each.second]
            first, second = (", ".join(str(c.column(name)) for name in self.compare) for c in pair)
            rows.append(
                [*(pair[0].column(name) for name in self.shared_columns), first, second, each.printed,
                 each.measured, each.low, each.high, each.p, each.verdict, each.clear]
            )  # fmt: skip
        names = ("first", "second", "printed", "measured", "low", "high", "p", "verdict", "clear")
        return pd.DataFrame(rows, columns=[*self.shared_columns, *names])

    def counts(self) -> dict[str, int]:
        """Count the cells, measured cells and figures, the comparisons by outcome, the claims by verdict.

        Several cells may share a figure, as a paper prints a row for each of its devices and models.
        Comparisons of means of figures that are compared themselves are not counted.
        """
        judged = [each for each in self.comparisons if not each.derived]
        kinds = Counter(each.verdict for each in judged)
        places = Counter(each.place for each in judged)
        claimed = Counter(each.verdict for each in self.verdicts)
        return {
            "cells": len(self.cells),
            "measured": len(self.measured),
            "figures": len({cell.figure for cell in self.measured}),
            "agrees": kinds["agrees"], "against": kinds["against"], "level": kinds["level"],
            "clear_agrees": places[0], "unclear": places[1], "clear_against": places[2],
            "holds": claimed[HOLDS], "fails": claimed[FAILS], "open": claimed[OPEN],
        }  # fmt: skip

    def tallies(self) -> list[Tally]:
        """Comparisons of each cell that clearly agree with the paper, are unclear, or clearly disagree."""
        kinds = [(cell.source, cell.metric) for cell in self.cells]  # several cells may show a measurement
        counts = {kind: [0, 0, 0] for kind in kinds}
        for each in self.comparisons:
            if each.place is not None:
                counts[kinds[each.first]][each.place] += 1
                counts[kinds[each.second]][each.place] += 1
        return [(0, 0, 0) if kind[0] is None else tuple(counts[kind]) for kind in kinds]  # type: ignore[misc]

    @property
    def summary(self) -> str:
        """One line: how much was measured, the verdicts on the claims, and the comparisons by outcome."""
        n = self.counts()
        if self.drawn:
            return f"{n['measured']} points of a curve that the paper draws without printed values"
        more = f", by {plural(n['figures'], 'figure')}" if n["figures"] < n["measured"] else ""
        line = f"{n['measured']} of {n['cells']} printed numbers{more} measured here"
        if self.verdicts:
            line += f"; claims: {n['holds']} hold here, {n['fails']} fail here, {n['open']} cannot be judged"
        judged = n["agrees"] + n["against"]
        if judged:
            line += (
                f"; of {plural(judged, 'comparison')} {n['agrees']} agree with the paper (by chance "
                f"{judged / 2:g}), {n['clear_agrees']} clearly; {n['clear_against']} clearly do not"
            )
        if n["level"]:
            line += f"; {n['level']} {'is' if n['level'] == 1 else 'are'} equal here"
        return line

    def missing(self) -> list[tuple[str, str, int]]:
        """The numbers that were not measured, by reason: (which rows, why, how many numbers)."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            if cell.measured is None:
                groups.setdefault(cell.why, []).append(cell)
        return [(self._in_common(cells), why, len(cells)) for why, cells in groups.items()]

    def _in_common(self, cells: Sequence[Cell]) -> str:
        """Describe some cells by the column values that set them apart from the others."""
        parts = []
        for name in (*self.keys, "metric", "model"):
            values = list(dict.fromkeys(str(cell.column(name)) for cell in cells))
            if len(values) < len({str(cell.column(name)) for cell in self.cells}) and len(values) <= 4:
                parts.append(f"{name.replace('_', ' ')} {', '.join(values)}")
        return "; ".join(parts) or "all of it"

    def remarks(self) -> list[str]:
        """The checks in sentences, then the notes."""
        return [*remarks(self.checks), *self.notes]

    @property
    def content(self) -> Settings:
        """The content of ``replay.json``."""
        sources = self.sources
        content = {key: getattr(self, name) for name, key in SAVED.items()}
        content["sources"] = [each.as_dict() for each in sources]
        content["cells"] = [
            c.as_dict() | {"source": None if c.source is None else sources.index(c.source)}
            for c in self.cells
        ]
        for name in PLAIN:
            content[name] = [each.as_dict() for each in content[name]]
        return {"specviz": "replay", "schema": SCHEMA} | content

    def save(self) -> Path:
        """Write ``replay.json`` atomically."""
        write_json(self.path / FILE, self.content)
        return self.path / FILE


# Field: its key in ``replay.json``.
SAVED = {each.name: each.name for each in fields(Replay) if each.name != "path"} | {"settings": "asked"}
PLAIN: dict[str, type[Plain]] = {
    "comparisons": Comparison, "verdicts": Verdict, "checks": Check, "costs": Cost,
}  # fmt: skip


@dataclass
class Replays:
    """The replays of a folder: every published table, either replayed or listed with the reason why not.

    Parameters
    ----------
    path : Path
    tables : list of Replay
    left : dict
        The other tables, each with the reason why it was not replayed.
    """

    path: Path
    tables: list[Replay] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Replays {self.path}: {len(self.tables)} tables replayed, {len(self.left)} not>"

    @property
    def complete(self) -> bool:
        """Whether every published table is accounted for."""
        every = {*list_published()["name"], *CURVES, *FIGURES}
        return {each.table for each in self.tables} | set(self.left) >= every

    def frame(self) -> pd.DataFrame:
        """One row per table: how much was measured, claims by verdict, and comparisons by outcome."""
        import pandas as pd

        rows = [{"table": r.table, **r.counts(), "seconds": r.seconds, "why": ""} for r in self.tables]
        rows += [{"table": table, "why": why} for table, why in self.left.items()]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return str(self.frame().to_html(max_rows=60))

    def save(self) -> Path:
        """Write ``replays.json`` atomically."""
        content = {"tables": [each.table for each in self.tables], "left": self.left}
        write_json(self.path / ALL, {"specviz": "replays", "schema": SCHEMA} | content)
        return self.path / ALL


# ---------------------------------------------------------------- reading


def of_version(content: Settings, file: Path, kind: str) -> None:
    """Reject content of another kind or version.

    Raises
    ------
    TraceError
    """
    if content.get("specviz") != kind or content.get("schema") != SCHEMA:
        raise TraceError(f"{file} was not written by this version of specviz replay")


def opened(path: str | Path) -> Replay:
    """Open the replay in a folder.

    Raises
    ------
    TraceError
        If it holds none, a damaged one, or one of another version.
    """
    path = expanded(path, TraceError)
    file = path / FILE
    if not file.is_file():
        raise TraceError(f"{path} is not the folder of a replay: it has no {FILE} (specviz replay makes one)")
    return of_content(read_json(file, Settings), file, path)


def of_content(content: Settings, file: Path, path: Path) -> Replay:
    """Build a replay from the content of ``replay.json``, after validation; errors name `file`.

    Raises
    ------
    TraceError
        If it is damaged or of another version.
    """
    from specviz.replays.schema import CheckedReplay

    of_version(content, file, "replay")
    checked(CheckedReplay, content, str(file), "the file is damaged: replay the table into another folder")
    content = {"costs": [], "figures": []} | dict(content)  # older replays have none
    values: Settings = {name: content[key] for name, key in SAVED.items()}
    sources = [Provenance.read(each) for each in content["sources"]]
    values |= {name: [kind.read(each) for each in values[name]] for name, kind in PLAIN.items()}
    values |= {"cells": [Cell.of(row, sources) for row in values["cells"]]}
    return Replay(**values | {"compare": tuple(values["compare"])}, path=path)


def opened_all(path: str | Path) -> Replays:
    """Open all replays in a folder.

    Raises
    ------
    TraceError
        If it holds none, damaged ones, or ones of another version.
    """
    from specviz.replays.schema import ReplaysFile

    path = expanded(path, TraceError)
    file = path / ALL
    if not file.is_file():
        raise TraceError(
            f"{path} is not a folder of replays: it has no {ALL} (specviz replay --all makes one)"
        )
    content = read_json(file, Settings)
    of_version(content, file, "replays")
    checked(ReplaysFile, content, str(file), "the file is damaged: run the same replay --all again")
    tables = [opened(path / table.replace("/", "-")) for table in content["tables"]]
    return Replays(path, tables, dict(content["left"]))


def opened_result(path: str | Path) -> Results | Replay | Replays:
    """Open a folder's run, replay or replays, or a recorded file.

    Raises
    ------
    TraceError
        If it is none of them.
    """
    path = expanded(path, TraceError)
    if path.suffix == ".parquet":
        from specviz.replays.recorded import results

        return results(path)
    if (path / ALL).is_file():
        return opened_all(path)
    if (path / FILE).is_file():
        return opened(path)
    if (path / "run.json").is_file():
        return Results(path)
    raise TraceError(
        f"{path} holds no result: it has neither run.json (specviz bench run) nor {FILE} (specviz replay)"
    )


# ---------------------------------------------------------------- comparing


def compared(table: str, recipe: Recipe, made: Measurement, settings: Settings) -> Replay:
    """Match a published table with a source's figures, cell by cell; a curve has only measured cells."""
    errata: list[str] = []
    if table in CURVES:
        caption, place = recipe.caption, re.sub(r".*/(\D+)(\d+)", lambda m: f"{m[1].title()} {m[2]}", table)
        cells = [
            Cell(dict(f.where), f.metric, None, "", "", "", "", f.value, f.low, f.high, "", i, f.source)
            for i, f in enumerate(made.figures)
        ]
    else:
        frame = published(table)
        caption, place, errata = (frame.attrs[name] for name in ("caption", "place", "known"))
        rows: Any = frame.drop(columns=["paper", "table"]).to_dict("records")
        cells = [measured_cell(row, recipe, made) for row in rows]
    notes = list(made.notes)
    if table in CURVES:  # which have no cells without a figure
        notes += [f"{_named(where)}: {why}" for where, why in made.absent]
    claimed = [] if table in CURVES else claims(table)
    judge = Judge(cells, made.figures, recipe.compare, made.checks, claimed, recipe.total or ())
    theirs = {**recipe.theirs, "precision": recipe.precision, "data": recipe.data or "does not say"}
    return Replay(
        table, title(table.partition("/")[0]), caption, place, recipe.compare, cells,
        list(recipe.total or ()), list(recipe.metrics), table in CURVES, judge.comparisons(),
        judge.verdicts(), made.checks, errata, theirs, [list(each) for each in recipe.differs],
        made.environment, notes, made.runs, made.traces, made.costs,
        [{"texts": each.texts, "derived": each.derived} for each in made.figures], settings,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip


def figures_of(cells: Sequence[Cell], replay: Replay, file: Path) -> dict[int, Figure]:
    """The figures that cells show, by number. A replay stores no draws, so intervals stand in for them.

    Raises
    ------
    TraceError
        If two cells give one figure different values.
    """
    shown: dict[int, list[Cell]] = {}
    for cell in cells:
        if cell.figure is not None:
            shown.setdefault(cell.figure, []).append(cell)
    figures = {}
    for number, (cell, *others) in sorted(shown.items()):
        if cell.measured is None or cell.source is None or any(c.measured != cell.measured for c in others):
            raise TraceError(f"{file} gives several values for one number: {number}")
        if replay.figures:
            texts, derived = replay.figures[number]["texts"], bool(replay.figures[number]["derived"])
        else:  # an older replay: references and bounds have no texts, so nothing is compared with them
            texts = 0 if cell.low == cell.high == cell.measured else cell.source.texts
            derived = bool(replay.total) and cell.keys.get(replay.total[0]) == replay.total[1]
        figures[number] = Figure(cell.keys, cell.metric, cell.measured, cell.low, cell.high, texts,
                                 source=cell.source, derived=derived)  # fmt: skip
    return figures


def judged(
    replay: Replay, cells: Sequence[Cell], figures: dict[int, Figure], before: Sequence[Comparison]
) -> Replay:
    """A replay with these cells and figures, compared and judged; `before` is as in `Judge`."""
    place = {number: i for i, number in enumerate(figures)}
    own = [replace(cell, figure=None if cell.figure is None else place[cell.figure]) for cell in cells]
    claimed = [] if replay.table in CURVES else claims(replay.table)
    judge = Judge(own, list(figures.values()), replay.compare, replay.checks, claimed, replay.total, before)
    facts = [{"texts": each.texts, "derived": each.derived} for each in figures.values()]
    return replace(
        replay, cells=own, comparisons=judge.comparisons(), verdicts=judge.verdicts(),
        figures=facts if replay.figures else [],  # an older replay has none
    )  # fmt: skip


def _named(where: Values) -> str:
    """Columns and their values in words."""
    return ", ".join(f"{name} {value}" for name, value in where.items())


def measured_cell(row: Row, recipe: Recipe, made: Measurement) -> Cell:
    """A published number with its figure, or with the reason why it has none."""
    cell = Cell(
        {name: value for name, value in row.items() if name not in PRINTED},
        **{name: row[name] for name in PRINTED}, measured=None, low=None, high=None, why="",
    )  # fmt: skip
    for number, each in enumerate(made.figures):
        if each.metric == row["metric"] and covers(each.where, row):
            here = {"measured": each.value, "low": each.low, "high": each.high}
            return replace(cell, **here, figure=number, source=each.source)  # type: ignore[arg-type]
    return replace(cell, why=reason(row, recipe, made))


PRINTED = ("metric", "value", "printed", "unit", "device", "model")


def covers(where: Values, row: Values) -> bool:
    """Whether a row has the given values in the given columns; lists give alternatives."""
    choices = {key: value if isinstance(value, list) else [value] for key, value in where.items()}
    return all(row.get(key) in values for key, values in choices.items())


def reason(row: Values, recipe: Recipe, made: Measurement) -> str:
    """Why nothing was measured for a row."""
    for where, why in (*made.absent, *recipe.absent):
        if covers(where, row):
            return str(why)
    return "the run gave no such number (too few prompts of this part, or they failed)"
