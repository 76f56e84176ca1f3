"""Does drafting pay: what a cycle emits compared with what it costs, in units of a plain pass."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError, TraceError
from specviz.metrics.costs import _prompt_keys
from specviz.metrics.cycles import _steps
from specviz.metrics.interval import LEAST, RESAMPLES, Estimate
from specviz.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

PER = ("run", "prompt")
FIGURES = ("tau", "cost", "speedup")
PLAIN = "autoregressive"


def break_even(traces: Mapping[str, Trace], baseline: str, per: str = "run") -> pd.DataFrame:
    """Tokens per cycle (τ) and the cost of a cycle in units of a plain pass; drafting pays if τ is larger.

    A plain pass is the baseline's mean cycle, over all prompts. A method's cost is the mean time of its own
    cycle divided by that; the prefill is not a cycle. τ counts the tokens of the texts, without those that a
    later cycle took back, which `specviz.metrics.tau` includes. So ``speedup`` = τ / cost is the ratio of
    tokens per second, without the prefill. Times are those recorded, each run measured by itself.

    Parameters
    ----------
    traces : mapping of name to Trace
        One run each, of the same prompts by one model on one machine, decoded one prompt at a time.
    baseline : str
        Name of the autoregressive run.
    per : str
        ``"run"``: one row per run, with intervals over prompts; ``"prompt"``: one row per run and prompt,
        each against the baseline's mean cycle on the same prompt.

    Returns
    -------
    DataFrame
        ``name``, ``method``, ``draft``, ``exactness``; ``tau``, tokens per cycle; ``cost``, and its parts
        ``forward`` (the target's pass), ``draft_cost`` (drafting) and ``rest`` (verify, commit and the time
        between); ``speedup``. Per run: ``prompts``, and 95 % bootstrap intervals over prompts ``tau_lo``,
        ``tau_hi`` and so on, NaN for fewer than six. Per prompt: ``prompt``.

    Raises
    ------
    TraceError
        If there is no such baseline or it is not autoregressive; if a trace holds several runs; if a run has
        other prompts, another model or machine; if it decoded a stream, a canvas or several rows at once; or
        if its record has no times.
    ParameterError
        If `per` is invalid.
    """
    import pandas as pd

    if per not in PER:
        raise ParameterError(f"per must be 'run' or 'prompt', not {per!r}")
    if baseline not in traces:
        raise TraceError(f"no trace is called {baseline!r}; there are {', '.join(map(str, traces))}")
    base = traces[baseline]
    for name, trace in traces.items():
        _check(str(name), trace, base)
    if base.run["method"] != PLAIN:
        raise TraceError(
            f"the baseline is {base.run['method']}, but a plain pass needs {PLAIN} decoding: add such a run"
        )
    plain = _sums(base)
    rows = []
    for name, trace in traces.items():
        sums = _sums(trace)
        about = {
            "name": str(name), "method": trace.run["method"], "draft": (trace.run["draft"] or {}).get("name"),
            "exactness": trace.run["exactness"],
        }  # fmt: skip
        if per == "prompt":
            each = [_figures(sums[:, [i]], plain[:, [i]]) for i in range(sums.shape[1])]
            numbers = sorted(set(trace.cycles["prompt"]))
            rows += [about | {"prompt": number} | figures for number, figures in zip(numbers, each)]
        else:
            rows.append(about | {"prompts": sums.shape[1]} | _figures(sums, plain) | intervals(sums, plain))
    return pd.DataFrame(rows)


def tau_difference(trace: Trace, base: Trace) -> Estimate:
    """Difference between two runs' τ over the same prompts.

    Each resample draws prompts and takes both runs' cycles of those, so that the interval does not include
    what makes a prompt easy or hard for both (paired bootstrap resampling: Koehn 2004, section 3). If the
    interval contains zero, the difference may be due to the choice of prompts.

    Parameters
    ----------
    trace, base : Trace
        One run each, or the same selection of its prompts.

    Returns
    -------
    Estimate
        τ of `trace` minus τ of `base`, each as in `specviz.metrics.tau`, in place of a median; a 95 %
        bootstrap interval over prompts, NaN for fewer than six; the number of prompts.

    Raises
    ------
    TraceError
        If one holds several runs, or they decoded different prompts.
    """
    if len(trace.split()) != 1 or len(base.split()) != 1:
        raise TraceError("τ is compared between two runs: pass each by itself (trace.split())")
    if _prompt_keys(trace) != _prompt_keys(base):
        raise TraceError("the two runs decoded other prompts: run both over the same")
    above, below = (_emitted_and_steps(each) for each in (trace, base))
    median = float(_ratio(*above.sum(1)) - _ratio(*below.sum(1)))
    low = high = float("nan")
    n = above.shape[1]
    if n >= LEAST:
        draws = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
        every = _ratio(*above[:, draws].sum(2)) - _ratio(*below[:, draws].sum(2))
        low, high = np.nanquantile(every, (0.025, 0.975)).tolist()
    return Estimate(median, low, high, n)


def _emitted_and_steps(trace: Trace) -> np.ndarray:
    """Emitted tokens and cycles of each prompt: [2, prompts]."""
    groups = _steps(trace).groupby("prompt", observed=True)
    table = groups.agg(emitted=("emitted", "sum"), steps=("cycle", "size"))
    return table.reindex(sorted(set(trace.cycles["prompt"])), fill_value=0).to_numpy(np.float64).T


def _check(name: str, trace: Trace, base: Trace) -> None:
    """Refuse a run whose cycles cannot be compared with the baseline's."""
    if len(trace.split()) != 1:
        raise TraceError(f"{name} holds several runs: pass each separately (trace.split()), or trace.join()")
    run = trace.run
    if run["canvas"] is not None or trace.has_streams:
        raise TraceError(f"{name} decoded a canvas or a stream; the figure needs prompts")
    timed = _steps(trace)["duration"]
    if run["record"] is None or run["replayed"] or not len(timed) or not np.isfinite(timed).all():
        raise TraceError(f"the record of {name} has no cycle times: decode it again with a record")
    if (trace.passes["rows"] > 1).any():
        raise TraceError(f"{name} decoded several rows at once, and they shared its passes: drop batch=")
    if _place(trace) != _place(base):
        raise TraceError(
            f"{name} used a different model, number format, machine or number of threads than "
            f"{base.run['method']}"
        )
    if _prompt_keys(trace) != _prompt_keys(base):
        raise TraceError(
            f"{name} decoded different prompts than {base.run['method']}: run both on the same prompts"
        )


def _place(trace: Trace) -> tuple[Hashable, ...]:
    """Model, number format and machine of a run."""
    run = trace.run
    about = [{k: (run["model"] or {}).get(k) for k in ("name", "content")}, run["machine"], run["backend"]]
    return (run["dtype"], run["threads"], json.dumps(about, sort_keys=True, default=str))


def _sums(trace: Trace) -> np.ndarray:
    """Cycles, tokens of the text and seconds (all, target's pass, drafting) of each prompt: [5, prompts]."""
    steps, outputs = _steps(trace), trace.outputs
    table = steps.groupby("prompt", observed=True, sort=True).agg(
        steps=("cycle", "size"), tokens=("cycle", "size"), all=("duration", "sum"),
        forward=("forward_time", "sum"), draft=("draft_time", "sum"),
    )  # fmt: skip
    table["tokens"] = outputs[outputs["kept"].to_numpy()].groupby("prompt", observed=True).size()
    # A prompt that ended at once has no cycle; a sum over it is zero, not missing.
    every = sorted(set(trace.cycles["prompt"]))
    return table.reindex(every).fillna(0).to_numpy(np.float64).T


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.full(np.shape(above), np.nan), where=np.asarray(below) > 0)


def gains(sums: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """τ, the cost of a cycle in plain passes, and the speedup; all such numbers are computed here.

    Parameters
    ----------
    sums : array [3 or more, ...]
        Cycles after the prefill, tokens of the texts, seconds of those cycles.
    plain : array [3 or more, ...]
        The same for decoding without drafts.

    Returns
    -------
    array [3, ...]
        Tokens per cycle; seconds per cycle over those of a plain cycle; the first over the second.
    """
    tau = _ratio(sums[1], sums[0])
    cost = _ratio(_ratio(sums[2], sums[0]), _ratio(plain[2], plain[0]))
    return np.stack([tau, cost, _ratio(tau, cost)])


def _figures(sums: np.ndarray, plain: np.ndarray) -> dict[str, float]:
    whole, unit = sums.sum(1), plain.sum(1)
    tau, cost, speedup = gains(whole, unit).tolist()
    forward, draft = (float(cost * _ratio(whole[i], whole[2])) for i in (3, 4))
    return {
        "tau": tau, "cost": cost, "forward": forward, "draft_cost": draft, "rest": cost - forward - draft,
        "speedup": speedup,
    }  # fmt: skip


def intervals(sums: np.ndarray, plain: np.ndarray) -> dict[str, float]:
    """95 % intervals of `gains` over texts, each drawn along with the plain run's time on it.

    Parameters
    ----------
    sums, plain : array [3 or more, texts]
        As for `gains`.

    Returns
    -------
    dict
        ``tau_lo``, ``tau_hi``, ``cost_lo`` ...; NaN with fewer than six texts.
    """
    bounds = np.full((2, len(FIGURES)), np.nan)
    n = sums.shape[1]
    if n >= LEAST:
        draws = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
        every = gains(sums[:, draws].sum(2), plain[:, draws].sum(2))
        varied = np.ptp(every, axis=1) > 0  # autoregressive decoding's τ is 1 whatever is drawn
        bounds[:, varied] = np.nanquantile(every[varied], (0.025, 0.975), axis=1)
    return {
        f"{name}_{end}": float(bounds[i, j])
        for j, name in enumerate(FIGURES)
        for i, end in enumerate(("lo", "hi"))
    }
