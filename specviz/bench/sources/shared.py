"""What every source is told, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specviz.bench.recipes import Best, Recipe, Row
from specviz.bench.report import Estimate
from specviz.bench.runner import calibrated
from specviz.suites import Suite

Where = Mapping[str, Any]
Tick = Callable[[int, int, str], None]

# A calibration in haste, where none was made before.
CALIBRATION: dict[str, Any] = {
    "sizes": (4, 8, 16, 32, 64), "prompts": 3, "warm_up": 5, "max_new_tokens": 48, "rounds": 1,
}  # fmt: skip


@dataclass
class How:
    """How a recipe is run.

    Parameters
    ----------
    model : Model
        Loaded.
    drafts : dict
        Role: name of the drafter.
    suite : Suite or None
        Prompts in place of the recipe's.
    device, dtype : str
    prompts, max_new_tokens, threads : int
    options : dict
        The recipe's numbers besides: ``rounds``.
    path : Path
        The replay's folder.
    shared : Path
        Where calibrations are kept that several replays use.
    memory : dict
        Measurements of this process that several tables are made of.
    tick : callable
        Told (done, of, what).
    """

    model: Any
    drafts: dict[str, str]
    suite: Suite | None
    device: str
    dtype: str
    prompts: int
    max_new_tokens: int
    threads: int
    options: dict[str, Any]
    path: Path
    shared: Path
    memory: dict[Any, Any]
    tick: Tick

    def best(self, method: str) -> tuple[int, str]:
        """The calibrated draft size of a method here, and where it comes from."""
        found = calibrated(self.model, method)
        if found is not None:
            return found, "as calibrated before"
        from specviz.bench.calibrate import calibrate

        key = ("g*", self.model.name, method, str(self.model.dtype))
        if key not in self.memory:
            made = calibrate(self.model, method, folder=self.shared, tick=self.tick, **CALIBRATION)
            self.memory[key] = made.g
        return self.memory[key], "calibrated in haste"

    def sized(self, row: Row) -> dict[str, Any]:
        """A row's parameters, the calibrated draft size put in."""
        values = dict(row.values)
        for name, value in values.items():
            if isinstance(value, Best):
                values[name] = max(1, round(self.best(row.method)[0] * value.times))
        return values


@dataclass
class Found:
    """What a source found.

    Parameters
    ----------
    rows : list of dict
        ``where`` (columns of the published table and their values), ``metric``, ``value``, ``low``, ``high``.
    absent : list of (where, reason)
    environment : dict
        Device, processor, threads, versions ...
    data : str
        The prompts in words.
    metrics : dict
        Metric: what ours is, where it says more than the recipe.
    notes : list of str
    runs : list of str
        Folders of runs, below the replay's.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    absent: list[tuple[Where, str]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def add(self, where: Where, metric: str, value: Any, low: Any = None, high: Any = None) -> None:
        """A figure; an `Estimate` brings its interval."""
        if isinstance(value, Estimate):
            value, low, high = value.median, value.low, value.high
        if value is None or value != value:
            return
        ends = [None if end is None or end != end else float(end) for end in (low, high)]
        row = {"where": dict(where), "metric": metric, "value": float(value), "low": ends[0], "high": ends[1]}
        self.rows.append(row)


def totals(found: Found, recipe: Recipe) -> None:
    """Add the means over the parts of a column, as the paper's own total has them.

    The interval of a mean of independent parts: their half widths, squared, add up.
    """
    if recipe.total is None:
        return
    column, name = recipe.total
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in found.rows:
        if column in row["where"]:
            rest = tuple(sorted((k, v) for k, v in row["where"].items() if k != column))
            groups.setdefault((rest, row["metric"]), []).append(row)
    for (rest, metric), rows in groups.items():
        if len(rows) < len(recipe.parts.get(column, ())):
            continue  # a mean of some parts is not the paper's
        value = float(np.mean([row["value"] for row in rows]))
        low = high = None
        if all(row["low"] is not None for row in rows):
            below, above = (
                float(np.sqrt(sum((row[end] - row["value"]) ** 2 for row in rows))) / len(rows)
                for end in ("low", "high")
            )
            low, high = value - below, value + above
        elif all(row["low"] is None for row in rows) and len({row["value"] for row in rows}) == 1:
            pass  # a reference's speedup is 1
        found.add(dict(rest) | {column: name}, metric, value, low, high)


def about(model: Any, **more: Any) -> dict[str, Any]:
    """Where something was measured that left no run's folder."""
    from specviz.bench.runner import quiet_clock, setting
    from specviz.loop.run import identity

    said = setting(model, [])
    return said | {"model": identity(model), "clock": quiet_clock(model.device)[1], **more}


def middle(value: Any) -> float:
    """The value of a figure, with or without an interval."""
    return float(value.median if isinstance(value, Estimate) else value)
