"""Schemas that validate ``replay.json`` and ``replays.json``; imported only when one is read."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import PurePath
from typing import Annotated, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from specviz.files import whole_text
from specviz.measure.report import Settings
from specviz.measure.schema import Environment, PhaseSums, Seconds, Text

TRADE_OFF = {"dataset", "curve", "setting"}  # columns of a curve of quality by speed
MOST_CELLS = 5_000  # more than any table has
MOST_COMPARISONS = 200_000

Figure = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Name = Annotated[Text, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Table = Annotated[str, Field(pattern=r"^[a-z0-9_]{1,40}/[a-z0-9_]{1,40}$")]  # may lack a recipe


def _below(name: str) -> str:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ValueError("lies outside the folder")
    return name


@with_config(ConfigDict(extra="allow"))
class Cell(TypedDict):
    """A published number and its measurement; the table's own columns are further keys."""

    metric: Name
    value: Figure | None
    printed: Annotated[Text, Field(max_length=40)]
    unit: Name
    device: Name
    model: Name
    measured: Figure | None
    low: Figure | None
    high: Figure | None
    why: Text
    figure: Count | None
    source: Count | None


class Source(TypedDict):
    """What a figure was measured on."""

    model: Name
    weights: Name
    parameters: Count
    drafter: Name
    drafter_weights: Name
    method: Name
    settings: Text
    suite: Text
    task: Name
    language: Name
    texts: Count
    max_new_tokens: Count
    rounds: Count
    device: Text
    processor: Text
    threads: Count
    dtype: Name
    kernels: Name
    clock: Name
    date: Name
    tried: NotRequired[Annotated[int, Field(ge=1)]]


class Compared(TypedDict):
    """Two contenders, as `cells.Comparison`."""

    first: Count
    second: Count
    printed: Figure
    measured: Figure
    low: Figure | None
    high: Figure | None
    p: Annotated[float, Field(ge=0, le=1)]
    clear: bool
    split: bool
    derived: bool


class Judged(TypedDict):
    """A claim, as `cells.Verdict`."""

    claim: Text
    question: Literal["order", "pays", "faster", "size", "lossless"]
    verdict: Literal["holds here", "fails here", "cannot be judged here"]
    numbers: Text
    reason: Text


class Check(TypedDict):
    """A check that a run makes on itself, as `cells.Check`."""

    kind: Literal["control", "ability", "same texts", "idle target"]
    contender: Text
    task: Name
    count: Count
    of: Count
    value: Figure | None
    low: Figure | None
    high: Figure | None
    text: Text
    by: NotRequired[Text]


class TraceFile(TypedDict):
    """The best, median or worst text of a replay without a run."""

    name: Text
    of: Text
    figure: Text
    file: Text
    contender: NotRequired[Text]  # and task: as in the figures' source
    task: NotRequired[Text]


class Cost(TypedDict):
    """Where a contender's time goes, as `costs.Cost`."""

    contender: Text
    task: Name
    by: Text
    texts: Count
    sums: PhaseSums
    plain: PhaseSums
    elsewhere: dict[Name, Annotated[list[Figure], Field(min_length=2, max_length=2)]]


class FigureFacts(TypedDict):
    """What comparisons need of a figure besides its cells."""

    texts: Count
    derived: bool


class ReplayFile(TypedDict):
    """``replay.json``."""

    table: Table
    title: Text
    caption: Text
    place: Text
    compare: Annotated[list[Text], Field(min_length=1)]
    cells: Annotated[list[Cell], Field(min_length=1, max_length=MOST_CELLS)]
    sources: Annotated[list[Source], Field(max_length=MOST_CELLS)]
    total: Annotated[list[Text], Field(max_length=2)]
    metrics: list[Name]
    drawn: bool
    comparisons: Annotated[list[Compared], Field(max_length=MOST_COMPARISONS)]
    verdicts: Annotated[list[Judged], Field(max_length=1000)]
    checks: Annotated[list[Check], Field(max_length=MOST_CELLS)]
    errata: list[Text]
    theirs: dict[Name, Text]
    defined: list[Annotated[list[Text], Field(min_length=3, max_length=3)]]
    environment: Environment
    notes: list[Text]
    runs: list[Annotated[str, AfterValidator(_below)]]
    traces: list[TraceFile]
    costs: NotRequired[Annotated[list[Cost], Field(max_length=MOST_CELLS)]]
    figures: NotRequired[Annotated[list[FigureFacts], Field(max_length=MOST_CELLS)]]
    asked: Settings
    seconds: Seconds
    created: Text


def _consistent(replay: ReplayFile) -> ReplayFile:
    cells, here = replay["cells"], replay["environment"]
    columns = set(cells[0])
    for number, cell in enumerate(cells):
        if set(cell) != columns:
            raise ValueError(f"has cells[{number}] with columns that differ from cells[0]")
        if cell["measured"] is not None and (cell["figure"] is None or cell["source"] is None):
            raise ValueError(f"has cells[{number}] with a number without a source")
        own = [value for name, value in cell.items() if name not in Cell.__annotations__]
        if not all(isinstance(value, str | int | float | None) for value in own):
            raise ValueError(f"has cells[{number}] with a column that is neither a string nor a number")
        for value in own:
            if isinstance(value, str):
                whole_text(value)
        interval = [cell["low"] is not None, cell["high"] is not None]
        if any(interval) and not all([*interval, cell["measured"] is not None]):
            raise ValueError(f"has cells[{number}] with half an interval")
    figures = replay.get("figures") or []
    if figures and max((cell["figure"] or 0 for cell in cells), default=0) >= len(figures):
        raise ValueError("has a cell with a figure that does not exist")
    for number, check in enumerate(replay["checks"]):
        if check["kind"] == "control" and (check["low"] is None) != (check["high"] is None):
            raise ValueError(f"has checks[{number}] with half an interval")
    if missing := set(replay["compare"]) - columns:
        raise ValueError(f"compares by {min(missing)[:40]!r}, which no cell has")
    for each in replay["comparisons"]:
        both = each["first"], each["second"]
        if max(both) >= len(cells) or any(cells[number]["measured"] is None for number in both):
            raise ValueError("compares cells that do not exist or were not measured")
    if any(cell["source"] is not None and cell["source"] >= len(replay["sources"]) for cell in cells):
        raise ValueError("has a cell with a source that does not exist")
    if here and not {"device", "processor"} <= set(here):
        raise ValueError("has an environment without device and processor")
    for number, cost in enumerate(replay.get("costs", [])):
        sums, plain = cost["sums"], cost["plain"]
        needed = sums["cycles"], *(plain[name] for name in ("cycles", "emitted", "passes", "forward"))
        if not all(needed) or not any(sums[name] for name in ("draft", "forward", "verify", "commit")):
            raise ValueError(f"has costs[{number}] of no cycles, or of none that took time")
        if not all(sum(there) > 0 and min(there) >= 0 for there in cost["elsewhere"].values()):
            raise ValueError(f"has costs[{number}] with a device on which a cycle costs nothing")
    if replay["drawn"]:
        _check_curve(cells)
    elif replay["total"] and (len(replay["total"]) != 2 or replay["total"][0] not in columns):
        raise ValueError("has a total without its column")
    return replay


def _check_curve(cells: list[Cell]) -> None:
    """Check that a curve of quality by speed has both values for every setting."""
    if not set(cells[0]) >= TRADE_OFF or all(cell["metric"] != "speedup" for cell in cells):
        return
    datasets: dict[Hashable, dict[tuple[Hashable, Hashable], set[str]]] = {}
    for cell in cells:
        values: Settings = {**cell}
        settings = datasets.setdefault(values["dataset"], {})
        settings.setdefault((values["curve"], values["setting"]), set()).add(cell["metric"])
    for settings in datasets.values():
        first = next(iter(settings.values()))
        if len(first) < 2 or "speedup" not in first or any(each != first for each in settings.values()):
            raise ValueError("has a curve's setting without its speedup or its quality")


CheckedReplay = Annotated[ReplayFile, AfterValidator(_consistent)]


class ReplaysFile(TypedDict):
    """``replays.json``."""

    tables: list[Table]
    left: dict[Text, Text]
