"""What every source is told, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.measure.claims import Drawn
from specviz.measure.report import Estimate
from specviz.measure.timing import calibrated
from specviz.metrics.interval import RESAMPLES
from specviz.replays.recipes import Best, Recipe, Row
from specviz.suites import Suite

if TYPE_CHECKING:
    from specviz.trace import Trace

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
        from specviz.measure.calibrate import calibrate

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
        ``where`` (columns of the published table and their values), ``metric``, ``value``, ``low``, ``high``;
        ``texts``, how many it was measured on, and ``drawn``, its values on texts drawn anew (or None).
    absent : list of (where, reason)
    environment : dict
        Device, processor, threads, versions ...
    data : str
        The prompts in words.
    notes : list of str
    runs : list of str
        Folders of runs, below the replay's.
    traces : list of dict
        Recorded texts, below the replay's folder: ``name``, ``of``, ``figure``, ``file``.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    absent: list[tuple[Where, str]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    traces: list[dict[str, str]] = field(default_factory=list)

    def record(self, how: How, of: str, ratios: Any, decode: Callable[[int], Trace]) -> None:
        """Decode the best, the median and the worst text again, recorded; `ratios` [texts] are speedups."""
        order = np.argsort(ratios)
        for name, i in (("best", order[-1]), ("median", order[len(order) // 2]), ("worst", order[0])):
            file = how.path / "traces" / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            decode(int(i)).save(file, force=True)
            words = f"{ratios[i]:.2f} × as fast"
            self.traces.append({"name": name, "of": of, "figure": words, "file": f"traces/{file.name}"})

    def add(self, where: Where, metric: str, value: Any, low: Any = None, high: Any = None) -> None:
        """A figure; an `Estimate` brings its interval."""
        drawn, texts = getattr(value, "values", None), 0
        if isinstance(value, Estimate):
            value, low, high, texts = value.median, value.low, value.high, value.pairs
        if value is None or value != value:
            return
        ends = [None if end is None or end != end else float(end) for end in (low, high)]
        self.rows.append(
            {"where": dict(where), "metric": metric, "value": float(value), "low": ends[0], "high": ends[1],
             "texts": texts, "drawn": drawn}
        )  # fmt: skip


def known(value: float = 1.0) -> Estimate:
    """What needs no measuring, as a reference's speedup over itself."""
    return Estimate(value, value, value, 0)


def figure(row: Mapping[str, Any]) -> Drawn:
    """A row's figure, to derive another one from."""
    low, high = (float("nan") if row[end] is None else row[end] for end in ("low", "high"))
    return Drawn(row["value"], low, high, row["texts"], row["drawn"])


def totals(found: Found, recipe: Recipe) -> None:
    """Add the means over the parts of a column, as the paper's own total has them.

    The parts are other texts, so their draws are put together in an order of each part's own, the same one
    for all contenders.
    """
    if recipe.total is None:
        return
    column, name = recipe.total
    parts = {part: np.random.default_rng(i) for i, part in enumerate(recipe.parts.get(column, ()))}
    orders = {part: random.permutation(RESAMPLES) for part, random in parts.items()}
    groups: dict[Any, dict[str, dict[str, Any]]] = {}
    for row in found.rows:
        if column in row["where"]:
            rest = tuple(sorted((k, v) for k, v in row["where"].items() if k != column))
            groups.setdefault((rest, row["metric"]), {})[row["where"][column]] = row
    for (rest, metric), rows in groups.items():
        if len(rows) < len(orders):
            continue  # a mean of some parts is not the paper's
        value = float(np.mean([row["value"] for row in rows.values()]))
        made = known(value)
        if any(row["low"] is None or row["low"] < row["high"] for row in rows.values()):
            drawn = [row["drawn"][orders[p]] for p, row in rows.items() if row["drawn"] is not None]
            whole = len(drawn) == len(rows)
            texts = sum(row["texts"] for row in rows.values())
            made = Drawn.on(value, np.mean(drawn, 0) if whole else None, texts)
        found.add(dict(rest) | {column: name}, metric, made)


def about(model: Any, **more: Any) -> dict[str, Any]:
    """Where something was measured that left no run's folder."""
    from specviz.loop.machine import identity
    from specviz.measure.timing import quiet_clock, setting

    said = setting(model, [])
    said["kernels"] = getattr(model, "kernels", None)
    return said | {"model": identity(model), "clock": quiet_clock(model.device)[1], **more}


def middle(value: Any) -> float:
    """The value of a figure, with or without an interval."""
    return float(value.median if isinstance(value, Estimate) else value)
