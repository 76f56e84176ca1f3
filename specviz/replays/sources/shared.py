"""What every source takes, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from specviz.measure.claims import BootstrapEstimate
from specviz.measure.report import Estimate, Settings, Tick, Values
from specviz.measure.timing import calibrated, counter
from specviz.metrics.interval import RESAMPLES
from specviz.models.protocols import Model
from specviz.replays.recipes import Best, Recipe, Row
from specviz.suites import Suite

if TYPE_CHECKING:
    from specviz.trace import Trace

Where = Values
T = TypeVar("T")

# A calibration in haste, where none was made before.
CALIBRATION: Settings = {
    "sizes": (4, 8, 16, 32, 64), "number": 3, "warm_up": 5, "max_new_tokens": 48, "rounds": 1,
}  # fmt: skip


@dataclass
class RunOptions:
    """How a recipe is run."""

    model: Any  # a model, once it is loaded
    drafts: dict[str, str]  # role: name of the drafter
    suite: Suite | None  # prompts in place of the recipe's
    number: int  # of prompts
    max_new_tokens: int
    threads: int  # on a CPU
    extra: Settings  # the recipe's other numbers: ``rounds``, thresholds
    path: Path  # the replay's folder
    shared: Path  # where calibrations are kept that several replays use
    memory: dict[tuple, Any]  # models and measurements of this process that several tables need
    tick: Tick = lambda done, of, what: None

    @property
    def rounds(self) -> int:
        """How often everything is timed."""
        return int(self.extra.get("rounds", 1))

    def counter(self, of: int) -> Callable[[str], None]:
        """Progress by single steps: called with what was done."""
        return counter(self.tick, of)

    def once(self, key: tuple[str, ...], make: Callable[[], T]) -> T:
        """What `make` gives; a process makes it once for all tables with the same models and numbers."""
        numbers = self.number, self.max_new_tokens
        key_of_all = (*key, self.model.name, *self.drafts.items(), *numbers)
        if key_of_all not in self.memory:
            self.memory[key_of_all] = make()
        result: T = self.memory[key_of_all]
        return result

    def best(self, method: str) -> tuple[int, str]:
        """The calibrated draft size of a method here, and where it comes from."""
        stored = calibrated(self.model, method)
        if stored is not None:
            return stored, "as calibrated before"
        from specviz.measure.calibrate import calibrate

        key = ("g*", self.model.name, method, str(self.model.dtype))
        if key not in self.memory:
            made = calibrate(self.model, method, folder=self.shared, tick=self.tick, **CALIBRATION)
            self.memory[key] = made.g
        return self.memory[key], "calibrated in haste"

    def sized(self, row: Row) -> Settings:
        """A row's parameters, the calibrated draft size put in."""
        values = dict(row.values)
        for name, value in values.items():
            if isinstance(value, Best):
                values[name] = max(1, round(self.best(row.method)[0] * value.times))
        return values


@dataclass(frozen=True)
class Figure:
    """A measured figure."""

    where: Where  # columns of the published table and their values
    metric: str  # the paper's
    value: float
    low: float | None = None  # its interval
    high: float | None = None
    texts: int = 0  # how many it was measured on
    draws: np.ndarray | None = field(default=None, repr=False, compare=False)  # values on resampled texts

    @property
    def estimate(self) -> BootstrapEstimate:
        """To derive another figure from."""
        low, high = (float("nan") if end is None else end for end in (self.low, self.high))
        return BootstrapEstimate(self.value, low, high, self.texts, self.draws)


@dataclass
class Measurement:
    """What a source measured for a table."""

    figures: list[Figure] = field(default_factory=list)
    absent: list[tuple[Where, str]] = field(default_factory=list)  # rows without a figure, and why
    environment: Settings = field(default_factory=dict)  # device, processor, threads, versions ...
    data: str = ""  # the prompts in words
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # folders of runs, below the replay's
    # Recorded texts, below the replay's folder: ``name``, ``of``, ``figure``, ``file``.
    traces: list[dict[str, str]] = field(default_factory=list)

    def record(
        self, options: RunOptions, of: str, ratios: np.ndarray, decode: Callable[[int], Trace]
    ) -> None:
        """Decode the best, the median and the worst text again, recorded; `ratios` [texts] are speedups."""
        order = np.argsort(ratios)
        for name, i in (("best", order[-1]), ("median", order[len(order) // 2]), ("worst", order[0])):
            file = options.path / "traces" / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            decode(int(i)).save(file, force=True)
            words = f"{ratios[i]:.2f} × as fast"
            self.traces.append({"name": name, "of": of, "figure": words, "file": f"traces/{file.name}"})

    def add(self, where: Where, metric: str, value: Any, low: Any = None, high: Any = None) -> None:
        """A figure; an `Estimate` brings its interval. A value that is missing is left out."""
        draws, texts = getattr(value, "values", None), 0
        if isinstance(value, Estimate):
            value, low, high, texts = value.median, value.low, value.high, value.pairs
        if value is None or value != value:
            return
        low, high = (None if end is None or end != end else float(end) for end in (low, high))
        self.figures.append(Figure(dict(where), metric, float(value), low, high, texts, draws))


def exact(value: float = 1.0) -> Estimate:
    """What needs no measuring, as a reference's speedup over itself."""
    return Estimate(value, value, value, 0)


def totals(made: Measurement, recipe: Recipe) -> None:
    """Add the means over the parts of a column, as the paper's own total has them.

    The parts are other texts, so their draws are combined in an order of each part's own, the same one for
    all contenders.
    """
    if recipe.total is None:
        return
    column, name = recipe.total
    parts = {part: np.random.default_rng(i) for i, part in enumerate(recipe.parts.get(column, ()))}
    orders = {part: random.permutation(RESAMPLES) for part, random in parts.items()}
    groups: dict[Any, dict[str, Figure]] = {}
    for each in made.figures:
        if column in each.where:
            rest = tuple(sorted((k, v) for k, v in each.where.items() if k != column))
            groups.setdefault((rest, each.metric), {})[each.where[column]] = each
    for (rest, metric), figures in groups.items():
        if len(figures) < len(orders):
            continue  # a mean of some parts is not the paper's
        value = float(np.mean([each.value for each in figures.values()]))
        mean = exact(value)
        if any(each.low is None or each.high is None or each.low < each.high for each in figures.values()):
            draws = [each.draws[orders[p]] for p, each in figures.items() if each.draws is not None]
            complete = len(draws) == len(figures)
            texts = sum(each.texts for each in figures.values())
            mean = BootstrapEstimate.on(value, np.mean(draws, 0) if complete else None, texts)
        made.add(dict(rest) | {column: name}, metric, mean)


def about(model: Model) -> Settings:
    """Where something was measured that left no run's folder."""
    from specviz.loop.machine import identity
    from specviz.measure.timing import quiet_clock, setting

    place = setting(model, [])
    place["kernels"] = getattr(model, "kernels", None)
    return place | {"model": identity(model), "clock": quiet_clock(model.device)[1]}


def middle(value: Estimate | float) -> float:
    """The value of a figure, with or without an interval."""
    return float(value.median if isinstance(value, Estimate) else value)
