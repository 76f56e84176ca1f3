"""Seconds of a draft-verify step and of a plain step, from a trace or from another tool's counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import TraceError
from specviz.metrics import Estimate, interval, output
from specviz.metrics import seconds as seconds_of
from specviz.metrics.payoff import gains, intervals
from specviz.metrics.rosetta import differing_settings
from specviz.trace import Counts, Trace

if TYPE_CHECKING:
    import pandas as pd

PLAIN = "autoregressive"
LEAST_STEPS = 5  # least number of steps without a draft that can stand for plain ones
PARTS = ("forward", "draft", "rest")
NUMBERED = re.compile(r"(line|request) \d+")  # ids that are places in a file, not a request's own


@dataclass(frozen=True)
class Costs:
    """Means over the steps of a run, in seconds; NaN if the source does not give them.

    Parameters
    ----------
    steps, tokens : float
        Number of draft-verify steps, and of the texts' tokens that they wrote.
    cycle : float
        A whole step.
    forward, draft, rest : float
        The target's pass, drafting, and the remainder: verifying, committing, and the time between.
    by_text : DataFrame
        ``steps``, ``tokens`` and ``seconds`` of each text, indexed by its place among all texts of a trace,
        or by its name in another tool's log.
    """

    steps: float
    tokens: float
    cycle: float
    forward: float
    draft: float
    rest: float
    by_text: pd.DataFrame

    @property
    def tau(self) -> float:
        """Tokens of the texts per step."""
        return self.tokens / self.steps if self.steps else float("nan")


@dataclass(frozen=True)
class Plain:
    """Cost of a plain step in seconds, and how it is known.

    Parameters
    ----------
    cycle, forward, rest : float
        The whole step, the target's pass and the remainder; NaN if the split is not known.
    badge : {"exact", "modelled"}
        ``exact``: measured over the same prompts by the same model and setting; ``modelled``: measured in
        other cycles or another setting, and assumed to be the same.
    source : str
    low, high : float
        95 % interval of `cycle` over the cycles that stand for plain ones; it does not cover the error of
        using other cycles.
    by_text : DataFrame, optional
        As in `Costs`, if the same texts were decoded.
    """

    cycle: float
    forward: float
    rest: float
    badge: str
    source: str
    low: float = float("nan")
    high: float = float("nan")
    by_text: pd.DataFrame | None = None


def steps_of(trace: Trace) -> pd.DataFrame:
    """The cycles after the prefill; ``share`` is a row's part of a shared cycle, applied to the times."""
    cycles = trace.cycles
    steps = cycles[cycles["cycle"] > 0].copy()
    sharing = steps.groupby(["run", "start"], observed=True)["cycle"].transform("size")
    steps["share"] = 1.0 / sharing.where(steps["start"].notna(), 1).fillna(1)
    for name in ("duration", "forward_time", "draft_time"):
        steps[name] *= steps["share"]
    return steps


def of_trace(trace: Trace) -> Costs:
    """The mean costs of a trace's steps.

    Raises
    ------
    TraceError
        If it holds streams, canvases or a replayed run, or has no step.
    """
    import pandas as pd

    for part in trace.split():
        if part.run["canvas"] is not None or part.has_streams:
            raise TraceError(
                f"run {part.run['run']} is a stream or a canvas: explain covers only drafts of prompts"
            )
        if part.run["replayed"]:
            raise TraceError(f"run {part.run['run']} was replayed by a what-if, so it has no measured times")
    steps = steps_of(trace)
    if not len(steps):
        raise TraceError("the trace holds no draft-verify cycles, so there is nothing to explain")
    n = len(steps)
    whole = seconds_of(trace, prefill=False) / n if steps["duration"].notna().all() else float("nan")
    forward, draft = (float(steps[name].sum(min_count=1)) / n for name in ("forward_time", "draft_time"))
    draft = 0.0 if np.isnan(draft) and whole == whole else draft
    outputs = trace.outputs
    kept = outputs[outputs["kept"].to_numpy()].groupby(["run", "prompt"], observed=True).size()
    texts = steps.groupby(["run", "prompt"], observed=True, sort=False).agg(
        steps=("cycle", "size"), seconds=("duration", "sum")
    )
    texts["tokens"] = kept.reindex(texts.index, fill_value=0)
    # If each text has a separate run, all prompts have the same number: only their order identifies them.
    every = [(part.run["run"], i) for part in trace.split() for i in sorted(set(part.cycles["prompt"]))]
    texts.index = pd.Index(map({key: place for place, key in enumerate(every)}.__getitem__, texts.index))
    return Costs(n, float(output(trace)), whole, forward, draft, whole - forward - draft, texts)


def of_counts(counts: Counts) -> Costs:
    """The mean costs of steps that another tool counted; NaN if it does not say how many there were.

    Raises
    ------
    TraceError
        If there were none.
    """
    table = counts.requests
    texts = table[["steps", "emitted"]].astype("float64").rename(columns={"emitted": "tokens"})
    if counts.origin == "mlx-lm" and not counts.plain:  # the first step of a text is not timed
        texts["steps"] -= 1
        texts["tokens"] -= counts.steps.groupby("request")["emitted"].first().to_numpy(np.float64)
        texts = texts.clip(lower=0)  # a text may end inside its first draft
    steps, tokens = texts["steps"].sum(skipna=False), texts["tokens"].sum(skipna=False)
    if steps == 0 and counts.plain:
        raise TraceError(
            f"{counts.where}: its answers have one token each, the prefill's, so no step is timed"
        )
    if steps == 0:
        raise TraceError(f"{counts.where} counts no verify step: explain needs answers of several tokens")
    first = table["first"].where(table["first"].notna(), table["prefill"])
    texts["seconds"] = table["seconds"] - first
    texts.index = table["id"]
    cycle = (
        float(texts["seconds"].sum(min_count=1)) / steps if texts["seconds"].notna().all() else float("nan")
    )
    draft = counts.drafting / steps
    return Costs(steps, tokens, cycle, float("nan"), draft, cycle - draft, texts)


def within(trace: Trace) -> Plain | None:
    """Cost of a plain step from the run's own steps without a draft; None if there are too few.

    Time that they spent on fruitless drafting is left out, since plain decoding does not draft. A batch gives
    none: a row that ran alone paid for a whole pass, which its other cycles shared.
    """
    steps = steps_of(trace)
    if (steps["share"] < 1).any():
        return None
    empty = steps[(steps["sent"] == 0) & (steps["unreviewed"] == 0)]
    empty = empty[empty["duration"].notna() & empty["forward_time"].notna()]
    if len(empty) < LEAST_STEPS:
        return None
    cost = (empty["duration"] - empty["draft_time"].fillna(0)).to_numpy()
    forward = float(empty["forward_time"].mean())
    numbers = np.random.default_rng(0)  # one resample at a time: all at once would take 16 kB per cycle
    draws = [numbers.choice(cost, len(cost)).mean() for _ in range(interval.RESAMPLES)]
    low, high = np.quantile(draws, (0.025, 0.975)).tolist()
    mean = float(cost.mean())
    source = f"the {len(empty)} cycles of this run without a draft"
    return Plain(mean, forward, mean - forward, "modelled", source, low, high)


def of_plain_run(trace: Trace, plain: Trace) -> Plain:
    """Cost of a plain step from an autoregressive run.

    Raises
    ------
    TraceError
        If that run is not autoregressive, used another model, or has no times.
    """
    methods = {part.run["method"] for part in plain.split()}
    if methods != {PLAIN}:
        raise TraceError(
            f"a plain run must be {PLAIN} decoding, but this one is {', '.join(sorted(methods))}"
        )
    own, other = (_model(each) for each in (trace, plain))
    if own != other:
        raise TraceError(f"the plain run used {other} and this one {own}: both must use the same model")
    costs = of_trace(plain)
    if np.isnan(costs.cycle):
        raise TraceError("the plain run has no cycle times")
    differing = differing_settings(trace, plain)
    decoded, plainly = _prompts(trace), _prompts(plain)
    redacted = not all(decoded + plainly)
    # One of them may have decoded each several times, with other seeds.
    same = not redacted and set(decoded) == set(plainly)
    source = f"an autoregressive run of {'the same' if same else 'other'} prompts"
    if redacted:
        source = "an autoregressive run of perhaps other prompts (not recorded)"
    if differing:
        source += f" (other {' and '.join(differing)})"
    badge = "exact" if same and not differing else "modelled"
    cycle, rest = costs.cycle + 0.0, costs.cycle - costs.forward
    # Even a plain step records a few microseconds of drafting; they count as part of the rest.
    by_text = costs.by_text if same and decoded == plainly else None
    return Plain(cycle, costs.forward, rest, badge, source, by_text=by_text)


def of_plain_counts(counts: Counts, plain: Counts) -> Plain:
    """Cost of a plain step from the same tool's run without speculation.

    Raises
    ------
    TraceError
        If that run used speculation, is another tool's, or has no times.
    """
    if not plain.plain:
        raise TraceError(f"{plain.where} used speculation: a plain run must have no drafts")
    if plain.origin != counts.origin:
        raise TraceError(f"{counts.where} is from {counts.origin}, but {plain.where} is from {plain.origin}")
    costs = of_counts(plain)
    if np.isnan(costs.cycle):
        why = "does not say how long decoding took"
        if not np.isnan(plain.column("seconds")).any():
            why = "has only request times that include the prefill, not decoding times"
        raise TraceError(
            f"{plain.where} {why}: drop it, or compare whole requests (specviz import, --baseline)"
        )
    if costs.cycle <= 0:
        raise TraceError(f"{plain.where}: no time passed after the first tokens, so a step has no cost")
    ids, others = (sorted(map(str, each.requests["id"])) for each in (counts, plain))
    lengths = [sorted(each.column("prompt_tokens").tolist()) for each in (counts, plain)]
    alike = lengths[0] == lengths[1]  # NaN, an unknown length, is not equal to itself
    unknown = all(length != length for each in lengths for length in each)
    named = ids == others and not any(map(NUMBERED.fullmatch, ids))
    same = alike and named
    which = "requests with the same prompt lengths" if alike else "other requests"
    which = "the same requests" if same else "requests of the same names" if named and unknown else which
    nan = float("nan")
    badge = "exact" if same else "modelled"
    return Plain(costs.cycle, nan, nan, badge, f"{plain.where}, {which} without speculation")


def ratio(costs: Costs, plain: Plain) -> Estimate:
    """Tokens per second relative to plain decoding (`specviz.metrics.payoff.gains`), with an interval.

    The interval is over texts if both decoded the same ones; otherwise it is that of the plain step's cost.
    """
    sums = np.array([costs.steps, costs.tokens, costs.steps * costs.cycle])
    value = float(gains(sums, np.array([1, 1, plain.cycle]))[2])
    both = plain.by_text
    if both is not None and len(both) == len(costs.by_text) >= interval.LEAST:
        frames = [frame[list(SUMS)] for frame in (costs.by_text, both.reindex(costs.by_text.index))]
        own, other = (frame.to_numpy(np.float64).T for frame in frames)
        if not np.isnan(other).any():
            bounds = intervals(own, other)
            return Estimate(value, bounds["speedup_lo"], bounds["speedup_hi"], len(costs.by_text))
    scale = value / plain.cycle
    return Estimate(value, scale * plain.low, scale * plain.high, len(costs.by_text))


SUMS = ("steps", "tokens", "seconds")


def _model(trace: Trace) -> str:
    parts = {f"{(part.run['model'] or {}).get('name')} ({part.run['dtype']})" for part in trace.split()}
    return ", ".join(sorted(parts))


def _prompts(trace: Trace) -> list[tuple[int, ...]]:
    """The decoded prompts as token ids, in order; empty where the record does not hold them."""
    prompts = []
    for part in trace.split():
        every = dict(enumerate(part.run["prompts"] or []))
        for i in sorted(set(part.cycles["prompt"].tolist())):
            prompts.append(tuple(every.get(i, {}).get("tokens") or ()))
    return prompts
