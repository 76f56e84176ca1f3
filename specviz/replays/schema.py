"""What ``replay.json`` and ``replays.json`` hold, as the gate checks them; imported when one is read."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from specviz.files import whole_text
from specviz.measure.schema import Environment, Seconds, Text
from specviz.replays.recipes import CURVES, RECIPES

SMALL = 50  # cells of a table that is shown whole, so that it needs no column of totals
TRADE_OFF = {"dataset", "curve", "setting"}  # columns of a curve of quality by speed
MOST_CELLS = 5_000  # all are compared with each other

Figure = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False)]
Name = Annotated[Text, Field(max_length=200)]


def _table(name: str) -> str:
    if name not in RECIPES and name not in CURVES:
        raise ValueError("is a table that no paper has")
    return name


def _below(name: str) -> str:
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ValueError("lies outside the folder")
    return name


@with_config(ConfigDict(extra="allow"))
class Cell(TypedDict):
    """A published number and what was measured; the table's own columns stand beside these."""

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


class Difference(TypedDict):
    """What of the set-up differs."""

    what: Text
    paper: Text
    here: Text


class TraceFile(TypedDict):
    """The best, median or worst text of a replay without a run."""

    name: Text
    of: Text
    figure: Text
    file: Text


class ReplayFile(TypedDict):
    """``replay.json``."""

    table: Annotated[str, AfterValidator(_table)]
    caption: Text
    place: Text
    compare: Annotated[list[Text], Field(min_length=1)]
    cells: Annotated[list[Cell], Field(min_length=1, max_length=MOST_CELLS)]
    clear: list[Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=2, max_length=2)]]
    setup: list[Difference]
    environment: Environment
    notes: list[Text]
    runs: list[Annotated[str, AfterValidator(_below)]]
    traces: list[TraceFile]
    asked: dict[str, Any]
    seconds: Seconds
    created: Text


def _consistent(replay: ReplayFile) -> ReplayFile:
    cells, here = replay["cells"], replay["environment"]
    columns = set(cells[0])
    for number, cell in enumerate(cells):
        if set(cell) != columns:
            raise ValueError(f"has cells[{number}] with other columns than cells[0]")
        own = [value for name, value in cell.items() if name not in Cell.__annotations__]
        if not all(isinstance(value, str | int | float | None) for value in own):
            raise ValueError(f"has cells[{number}] with a column that is neither a text nor a number")
        for value in own:
            if isinstance(value, str):
                whole_text(value)
        interval = [cell["low"] is not None, cell["high"] is not None]
        if any(interval) and not all([*interval, cell["measured"] is not None]):
            raise ValueError(f"has cells[{number}] with half an interval")
    if missing := set(replay["compare"]) - columns:
        raise ValueError(f"compares by {min(missing)[:40]!r}, which no cell has")
    if any(number >= len(cells) for pair in replay["clear"] for number in pair):
        raise ValueError("has clear comparisons of cells that are not there")
    if here and not {"device", "processor"} <= set(here):
        raise ValueError("has an environment without device and processor")
    recipe = RECIPES.get(replay["table"])
    if recipe is None:
        _check_curve(cells)
    elif recipe.total is not None and recipe.total[0] not in columns and len(cells) > SMALL:
        raise ValueError(f"has no column {recipe.total[0]!r}")
    return replay


def _check_curve(cells: list[Cell]) -> None:
    """A curve of quality by speed has both of every setting."""
    if not set(cells[0]) >= TRADE_OFF or all(cell["metric"] != "speedup" for cell in cells):
        return
    datasets: dict[object, dict[tuple[object, object], set[str]]] = {}
    for cell in cells:
        values: dict[str, object] = {**cell}
        settings = datasets.setdefault(values["dataset"], {})
        settings.setdefault((values["curve"], values["setting"]), set()).add(cell["metric"])
    for settings in datasets.values():
        first = next(iter(settings.values()))
        if len(first) < 2 or "speedup" not in first or any(each != first for each in settings.values()):
            raise ValueError("has a curve's setting without its speedup or its quality")


CheckedReplay = Annotated[ReplayFile, AfterValidator(_consistent)]


class ReplaysFile(TypedDict):
    """``replays.json``."""

    tables: list[Annotated[str, AfterValidator(_table)]]
    left: dict[Text, Text]
