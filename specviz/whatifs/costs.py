"""The cost of passes, and the time that a replayed run would have taken: a model, not a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specviz.errors import ParameterError, TraceError
from specviz.metrics.costs import Report, reading_report
from specviz.trace import Trace
from specviz.whatifs.walk import Step, Walk


@dataclass(frozen=True)
class Costs:
    """Seconds of passes over g tokens, and of the rest of a cycle.

    Parameters
    ----------
    target, draft : dict of int to float
        Seconds of one pass over g tokens.
    rest : float
        Seconds of a cycle that are not spent in its passes.
    source : str
        Where the numbers come from.
    """

    target: Mapping[int, float]
    draft: Mapping[int, float]
    rest: float
    source: str

    @classmethod
    def of(cls, trace: Trace) -> Costs:
        """The means over a run's own cycles: s(g) for the pass sizes that the run has.

        Means, not medians, because other load on the machine affects every run. The cost of a drafter's pass
        includes what the method does around it; nearly all of these passes are over one token, so all get
        the same cost.

        Raises
        ------
        TraceError
            If no times were recorded.
        """
        return cls.fit(timed(trace))

    @classmethod
    def fit(cls, cycles: pd.DataFrame) -> Costs:
        """The means over some cycles, as `timed` gives them."""
        sizes = cycles[cycles["fed"].notna()].groupby("fed")["forward_time"].mean()
        drafting = cycles["draft_passes"] > 0
        draft_time = cycles["draft_time"].where(drafting, 0)
        rest = cycles["duration"] - draft_time - cycles["forward_time"]
        passes = cycles["draft_passes"][drafting].sum()
        one = {1: float(cycles["draft_time"][drafting].sum() / passes)} if drafting.any() else {}
        target = {int(g): float(s) for g, s in zip(sizes.index.to_numpy(), sizes.to_numpy())}
        return cls(target, one, float(rest.mean()), "the trace's own passes")

    @classmethod
    def read(cls, report: Report, rest: float = 0.0) -> Costs:
        """Read a report of ``specviz bench passes --json``, made on this machine or another one.

        Parameters
        ----------
        report : path or dict
        rest : float
            Seconds of a cycle that are not spent in its passes; the report does not hold them.

        Raises
        ------
        TraceError
            If it is not a valid report of passes.
        """
        with reading_report(report, "passes") as content:
            if content["bench"] != "passes":
                raise ValueError("it is from another bench")
            prices: dict[str, dict[int, float]] = {}
            for row in content["rows"]:
                if not row.get("used", True):  # another layout or format than the model ran in
                    continue
                prices.setdefault(str(row["model"]), {})[int(row["g"])] = float(row["median"]) / 1e3
            if len(prices) > 2:
                raise ValueError(f"it has passes of {', '.join(prices)}: measure a model with one drafter")
            target, *draft = prices.values()
            source = f"passes of {' and '.join(prices)} measured on {content['setting']['device']}"
            costs = cls(target, draft[0] if draft else {}, rest, source)
        if not all(seconds > 0 for seconds in (*costs.target.values(), *costs.draft.values())):
            where = "the report" if isinstance(report, Mapping) else report
            raise TraceError(f"{where}: a pass must take more than no time")
        return costs

    def seconds(self, walks: list[Walk], drafter: bool) -> float:
        """Seconds of all cycles, without the prefill; bounded draft sizes count as their mean.

        Parameters
        ----------
        walks : list of Walk
        drafter : bool
            Whether drafting takes passes.

        Raises
        ------
        ParameterError
            If there is no price for a kind of pass that the cycles have.
        """
        return float(np.sum(self.each([step for walk in walks for step in walk.steps], drafter)))

    def each(self, steps: list[Step], drafter: bool) -> np.ndarray:
        """Seconds of each cycle, [cycles]."""
        sent = np.array([(s.sent + s.sent_high) / 2 for s in steps])
        draft_passes = np.array([(s.drafted + s.drafted_high) / 2 for s in steps])
        verified = np.array([not s.unreviewed for s in steps])
        total = np.full(len(steps), self.rest)
        if verified.any():  # a pass also reads the root
            total += np.where(verified, price(self.target, sent + 1, "target"), 0)
        if drafter and draft_passes.any():
            total += draft_passes * price(self.draft, np.ones(1), "draft")[0]
        return total


def timed(trace: Trace) -> pd.DataFrame:
    """Timed cycles after the prefill, with ``fed``, the target pass' tokens, and ``draft_passes``.

    Raises
    ------
    TraceError
        If no cycle has times.
    """
    cycles = trace.cycles
    cycles = cycles[(cycles["cycle"] > 0) & cycles["duration"].notna()]
    if not len(cycles):
        raise TraceError("the trace holds no times, so it gives no s(g): pass costs")
    keys = ["prompt", "update", "cycle"]
    passes = trace.passes
    fed = passes[passes["model"] == "target"].groupby(keys)["tokens"].sum().rename("fed")
    drafted = passes[passes["model"] == "draft"].groupby(keys).size().rename("draft_passes")
    return cycles.join(fed, on=keys).join(drafted, on=keys).fillna({"draft_passes": 0})


def price(costs: Mapping[int, float], g: np.ndarray, model: str) -> np.ndarray:
    """Seconds of passes over `g` tokens, linear between measured sizes and beyond the largest.

    Passes below the smallest measured size cost as much as one of that size.
    """
    if not costs:
        raise ParameterError(f"the cost of a pass of the {model} is unknown: pass costs that include it")
    x = np.array(sorted(costs), np.float64)
    y = np.array([costs[int(each)] for each in x])
    slope = 0.0
    if len(x) > 1:
        slope = max(0.0, float(np.polyfit(x, y, 1)[0]))
    return np.interp(g, x, y) + slope * np.maximum(g - x[-1], 0)
