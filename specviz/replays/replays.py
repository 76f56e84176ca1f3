"""A replay: a paper's table with what was measured here for each of its numbers, and how the two compare.

A replay is a folder: ``replay.json`` holds the cells, and the runs that they were computed from lie in
folders below it. Each cell has what was printed, what was measured and their ratio; each two contenders in a
column have a verdict: whether they stand in the same order here, and clearly so. Reading needs no torch, and
``replay.json`` alone suffices: a result from another machine is kept as that file, and names its device
wherever it is shown. `specviz.replays.running` makes replays; `terminal`, `markdown` and `page` show them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.errors import TraceError
from specviz.files import checked, read_json
from specviz.measure.report import Row, Settings, Values, plural
from specviz.measure.rows import Results, write_json
from specviz.replays.published import list_published, published
from specviz.replays.recipes import CURVES, FIGURES, Recipe

if TYPE_CHECKING:
    import pandas as pd

    from specviz.replays.sources.shared import Figure, Measurement

SCHEMA = 1
FILE, ALL = "replay.json", "replays.json"
SAME = 1e-12  # the largest difference that counts as none
FEWEST = 6  # texts that can make a comparison clear

Tally = tuple[int, int, int]  # comparisons: clearly the paper's way, unclear, clearly not


@dataclass
class Cell:
    """A number of a published table, and what was measured here for it."""

    keys: Row  # the table's key columns and their values
    metric: str
    value: float | None  # what the paper printed; None for a curve without printed values
    printed: str  # the same as the paper has it
    unit: str
    device: str
    model: str
    measured: float | None  # None where nothing was measured
    low: float | None
    high: float | None
    why: str  # the reason for that, else empty

    @classmethod
    def of(cls, row: Values) -> Cell:
        """From a row of ``replay.json``."""
        names = [each.name for each in fields(cls)[1:]]
        keys = {name: value for name, value in row.items() if name not in names}
        return cls(keys, **{name: row[name] for name in names})

    def as_dict(self) -> Row:
        """As a row of ``replay.json``."""
        return self.keys | {each.name: getattr(self, each.name) for each in fields(self)[1:]}

    def column(self, name: str) -> Any:
        """The value of a column: a key, ``metric``, ``device`` or ``model``."""
        return self.keys[name] if name in self.keys else getattr(self, name)

    @property
    def ratio(self) -> float | None:
        """What was measured over what was printed; None where either is missing, or zero was printed."""
        return self.measured / self.value if self.measured is not None and self.value else None


@dataclass(frozen=True)
class Comparison:
    """Two contenders of a column that were both printed and both measured.

    It is clear whether other texts of the kind would say the same: the 95 % interval of the measured
    difference, both sides resampled jointly, leaves zero out.
    """

    first: int  # numbers of their cells
    second: int
    printed: float  # the first's figure less the second's
    measured: float
    clear: bool

    @property
    def verdict(self) -> str:
        """``agrees``, ``against``, ``tied`` (the same was printed) or ``level`` (the same was measured)."""
        if abs(self.printed) < SAME:
            return "tied"
        if abs(self.measured) < SAME:
            return "level"
        return "agrees" if self.printed * self.measured > 0 else "against"

    @property
    def place(self) -> int | None:
        """Place in a `Tally`; None where nothing can agree."""
        if self.verdict not in ("agrees", "against"):
            return None
        return 1 if not self.clear else 0 if self.verdict == "agrees" else 2


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
    cells : list of Cell
        In the order of the published rows.
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
    settings : dict
        What tells this replay from another one of the same table.
    seconds : float
    created : str
    path : Path
    """

    table: str
    caption: str
    place: str
    compare: tuple[str, ...]
    cells: list[Cell]
    clear: list[list[int]]
    setup: list[dict[str, str]]
    environment: Settings
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    traces: list[dict[str, str]] = field(default_factory=list)
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
        """The columns that are the same in both sides of a comparison."""
        return [name for name in (*self.keys, "metric", "device", "model") if name not in self.compare]

    @property
    def device(self) -> str:
        """Where it was measured, in words."""
        place = self.environment
        if not place:
            return "nowhere"
        cpu = place.get("device") == "cpu"
        return f"{place['device']} ({place['processor']})" if cpu else str(place["device"])

    @property
    def measured(self) -> list[Cell]:
        """The cells that have a measured figure."""
        return [cell for cell in self.cells if cell.measured is not None]

    def frame(self) -> pd.DataFrame:
        """The published table with ``measured``, its interval, the ratio to what was printed, and ``why``."""
        import pandas as pd

        frame = pd.DataFrame([cell.as_dict() for cell in self.cells])
        for name in ("measured", "low", "high"):
            frame[name] = pd.to_numeric(frame[name])
        ratio = frame["measured"] / frame["value"].where(lambda v: v != 0)
        frame.insert(list(frame).index("high") + 1, "ratio", ratio)
        return frame

    def verdicts(self) -> list[Comparison]:
        """Every two contenders of a column that were both printed and both measured."""
        columns: dict[tuple, list[tuple[int, float, float]]] = {}
        for i, cell in enumerate(self.cells):
            if cell.measured is not None and cell.value is not None:
                at = tuple(cell.column(name) for name in self.shared_columns)
                columns.setdefault(at, []).append((i, cell.value, cell.measured))
        clear = set(map(tuple, self.clear))
        return [
            Comparison(a, b, printed - other_printed, here - other_here, (a, b) in clear)
            for column in columns.values()
            for (a, printed, here), (b, other_printed, other_here) in combinations(column, 2)
        ]

    def comparisons(self) -> pd.DataFrame:
        """The `verdicts` as a table.

        Returns
        -------
        DataFrame
            The column's keys, ``metric``, ``device`` and ``model``; ``first`` and ``second``, the contenders;
            ``printed``, ``measured``, ``verdict`` and ``clear`` as in `Comparison`.
        """
        import pandas as pd

        rows = []
        for each in self.verdicts():
            pair = self.cells[each.first], self.cells[each.second]
            first, second = (", ".join(str(c.column(name)) for name in self.compare) for c in pair)
            rows.append(
                [*(pair[0].column(name) for name in self.shared_columns), first, second, each.printed,
                 each.measured, each.verdict, each.clear]
            )  # fmt: skip
        columns = [*self.shared_columns, "first", "second", "printed", "measured", "verdict", "clear"]
        return pd.DataFrame(rows, columns=columns)

    def counts(self) -> dict[str, int]:
        """Cells, measured ones, figures; comparisons that go the paper's way, or not; the clear ones.

        One figure may answer several cells: a paper prints a row for each of its devices and models.
        """
        verdicts = self.verdicts()
        kinds = Counter(each.verdict for each in verdicts)
        places = Counter(each.place for each in verdicts)
        return {
            "cells": len(self.cells),
            "measured": len(self.measured),
            "figures": len({(cell.metric, cell.measured, cell.low, cell.high) for cell in self.measured}),
            "agrees": kinds["agrees"], "against": kinds["against"], "level": kinds["level"],
            "clear_agrees": places[0], "unclear": places[1], "clear_against": places[2],
        }  # fmt: skip

    def tallies(self) -> list[Tally]:
        """Of every cell's comparisons, how many clearly go the paper's way, are unclear, clearly do not."""
        counts = [[0, 0, 0] for _ in self.cells]
        for each in self.verdicts():
            if each.place is not None:
                counts[each.first][each.place] += 1
                counts[each.second][each.place] += 1
        return [(right, unclear, wrong) for right, unclear, wrong in counts]

    @property
    def summary(self) -> str:
        """One line: how much was measured, and how much of it goes the paper's way."""
        n = self.counts()
        if self.table in CURVES:
            return f"{n['measured']} figures of a curve that the paper draws without printed values"
        more = f", beside {plural(n['figures'], 'figure')}" if n["figures"] < n["measured"] else ""
        line = f"{n['measured']} of {n['cells']} printed numbers{more} measured here"
        judged = n["agrees"] + n["against"]
        if judged:
            line += (
                f"; of {judged} comparisons {n['agrees']} go the paper's way ({n['clear_agrees']} clearly), "
                f"{n['against']} do not ({n['clear_against']} clearly)"
            )
        if n["level"]:
            line += f"; {n['level']} {'is' if n['level'] == 1 else 'are'} level here"
        return line

    def missing(self) -> list[tuple[str, str, int]]:
        """What was not measured: (which rows, why, how many numbers), one for each reason."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            if cell.measured is None:
                groups.setdefault(cell.why, []).append(cell)
        return [(self._in_common(cells), why, len(cells)) for why, cells in groups.items()]

    def _in_common(self, cells: Sequence[Cell]) -> str:
        """What some cells have in common and others have not."""
        parts = []
        for name in (*self.keys, "metric", "model"):
            values = list(dict.fromkeys(str(cell.column(name)) for cell in cells))
            if len(values) < len({str(cell.column(name)) for cell in self.cells}) and len(values) <= 4:
                parts.append(f"{name.replace('_', ' ')} {', '.join(values)}")
        return "; ".join(parts) or "all of it"

    def save(self) -> Path:
        """Write ``replay.json``, whole or not at all."""
        content = {key: getattr(self, name) for name, key in SAVED.items()}
        content["cells"] = [cell.as_dict() for cell in self.cells]
        write_json(self.path / FILE, {"specviz": "replay", "schema": SCHEMA} | content)
        return self.path / FILE


# Field: its key in ``replay.json``.
SAVED = {each.name: each.name for each in fields(Replay) if each.name != "path"} | {"settings": "asked"}


@dataclass
class Replays:
    """The replays of a folder: every published table, replayed, or listed with the reason.

    Parameters
    ----------
    path : Path
    tables : list of Replay
    left : dict
        Table: why it was not replayed.
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
        """One row a table: how much of it was measured, and how much goes the paper's way."""
        import pandas as pd

        rows = [{"table": r.table, **r.counts(), "seconds": r.seconds, "why": ""} for r in self.tables]
        rows += [{"table": table, "why": why} for table, why in self.left.items()]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return self.frame()._repr_html_()  # type: ignore[no-any-return, operator]

    def save(self) -> Path:
        """Write ``replays.json``, whole or not at all."""
        content = {"tables": [each.table for each in self.tables], "left": self.left}
        write_json(self.path / ALL, {"specviz": "replays", "schema": SCHEMA} | content)
        return self.path / ALL


# ---------------------------------------------------------------- reading


def _content(file: Path, kind: str) -> Settings:
    content = read_json(file, Settings)
    if content.get("specviz") != kind or content.get("schema") != SCHEMA:
        raise TraceError(f"{file} was not written by this version of specviz replay")
    return content


def opened(path: str | Path) -> Replay:
    """The replay of a folder.

    Raises
    ------
    TraceError
        If it holds none, a damaged one, or one of a newer version.
    """
    from specviz.replays.schema import CheckedReplay

    file = Path(path) / FILE
    if not file.is_file():
        raise TraceError(f"{path} is no folder of a replay: it has no {FILE} (specviz replay makes one)")
    content = _content(file, "replay")
    checked(CheckedReplay, content, str(file), "the file is damaged: replay the table into another folder")
    values = {name: content[key] for name, key in SAVED.items()}
    values |= {"cells": [Cell.of(row) for row in values["cells"]], "compare": tuple(values["compare"])}
    return Replay(**values, path=Path(path))


def opened_all(path: str | Path) -> Replays:
    """The replays of a folder.

    Raises
    ------
    TraceError
        If it holds none, or damaged ones.
    """
    from specviz.replays.schema import ReplaysFile

    file = Path(path) / ALL
    if not file.is_file():
        raise TraceError(f"{path} is no folder of replays: it has no {ALL} (specviz replay --all makes one)")
    content = _content(file, "replays")
    checked(ReplaysFile, content, str(file), "the file is damaged: give the same replay --all again")
    tables = [opened(Path(path) / table.replace("/", "-")) for table in content["tables"]]
    return Replays(Path(path), tables, dict(content["left"]))


def opened_result(path: str | Path) -> Results | Replay | Replays:
    """What a folder holds: a run, a replay, or several.

    Raises
    ------
    TraceError
        If it is none of them.
    """
    path = Path(path)
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
    """A published table and what a source measured, cell by cell; of a curve without printed values alone."""
    if table in CURVES:
        import pandas as pd

        frame = pd.DataFrame({"model": [], "device": []})
        caption, place = recipe.caption, f"Figure {table.rpartition('figure')[2]}"
        figures: list[Figure | None] = list(made.figures)
        cells = [
            Cell(dict(f.where), f.metric, None, "", "", "", "", f.value, f.low, f.high, "")
            for f in made.figures
        ]
    else:
        frame = published(table)
        caption, place = frame.attrs["caption"], frame.attrs["place"]
        rows: Any = frame.drop(columns=["paper", "table"]).to_dict("records")
        figures = [
            next((f for f in made.figures if f.metric == row["metric"] and covers(f.where, row)), None)
            for row in rows
        ]
        cells = [measured_cell(row, f, recipe, made) for row, f in zip(rows, figures)]
    replay = Replay(
        table, caption, place, recipe.compare, cells, [], differences(frame, recipe, made), made.environment,
        made.notes, made.runs, made.traces, settings,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )  # fmt: skip
    for each in replay.verdicts():
        first, second = figures[each.first], figures[each.second]
        if first is not None and second is not None and ahead(first, second):
            replay.clear.append([each.first, each.second])
    return replay


def measured_cell(row: Row, figure: Figure | None, recipe: Recipe, made: Measurement) -> Cell:
    """A published number with its figure, or with the reason why it has none."""
    if figure is None:
        here: Row = {"measured": None, "low": None, "high": None, "why": reason(row, recipe, made)}
    else:
        here = {"measured": figure.value, "low": figure.low, "high": figure.high, "why": ""}
    return Cell.of(row | here)


def ahead(a: Figure, b: Figure) -> bool:
    """Whether it is clear which of two figures is larger: 95 % of the differences have one sign.

    Both are resampled on the same texts, where they were measured on the same ones. On fewer than `FEWEST`
    texts nothing is clear: five that all go one way are no rarer than 1 in 16.
    """
    measured = [each for each in (a, b) if each.texts or each.low != each.value]
    if any(each.low is None or each.texts < FEWEST for each in measured):
        return False
    if len(measured) == 2 and a.texts == b.texts and a.draws is not None and b.draws is not None:
        low, high = np.nanquantile(a.draws - b.draws, (0.025, 0.975))
        return bool(low > 0 or high < 0)
    return a.estimate.low > b.estimate.high or b.estimate.low > a.estimate.high


def covers(where: Values, row: Values) -> bool:
    """Whether columns and values are those of a row; several values of a column are a choice."""
    choices = {key: value if isinstance(value, list) else [value] for key, value in where.items()}
    return all(row.get(key) in values for key, values in choices.items())


def reason(row: Values, recipe: Recipe, made: Measurement) -> str:
    """Why nothing was measured for a row."""
    for where, why in (*made.absent, *recipe.absent):
        if covers(where, row):
            return str(why)
    return "the run gave no such figure (too few prompts of this part, or they failed)"


def differences(frame: pd.DataFrame, recipe: Recipe, made: Measurement) -> list[dict[str, str]]:
    """How the set-up differs from the paper's."""

    def words(column: str) -> str:
        return ", ".join(dict.fromkeys(filter(None, frame[column]))) or "does not say"

    here = made.environment
    device = str(here.get("device"))
    if device.startswith("cpu") and here.keys() >= {"processor", "threads"}:
        device += f" ({here['processor']}), {plural(here['threads'], 'thread')}"
    model = here.get("model", {})
    size = model.get("parameters")
    ours = f"{model.get('name')}" + (f" ({size / 1e6:.1f} M parameters)" if size else "")
    rows = [
        ("model", words("model"), ours), ("device", words("device"), device),
        ("precision", recipe.precision, str(here.get("dtype"))),
        ("data", recipe.data or "does not say", made.data),
        *recipe.differs,
    ]  # fmt: skip
    return [{"what": what, "paper": paper, "here": ours} for what, paper, ours in rows]
