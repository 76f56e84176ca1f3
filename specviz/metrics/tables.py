"""Several metrics at once: of each run, and of several traces side by side."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pandas as pd

from specviz.errors import ParameterError, TraceError
from specviz.metrics.cycles import (
    acceptance_rate,
    accepted,
    accepted_share,
    draft_passes,
    draft_time,
    drafted,
    emitted,
    exactness,
    fallback_share,
    mean_accepted,
    mean_drafted,
    mean_sent,
    output,
    peak_memory,
    rollback_share,
    seconds,
    sent,
    steps,
    target_passes,
    target_share,
    tau,
    tokens_per_second,
)
from specviz.metrics.quality import quality
from specviz.metrics.tokens import MODEL
from specviz.metrics.updates import by_stream
from specviz.trace import Trace

# What a stream's update, one draft and then token by token, gives no sense, or another name.
NOT_OF_STREAMS = (
    "texts",
    "drafted",
    "mean_accepted",
    "mean_drafted",
    "mean_sent",
    "draft_time",
    "target_share",
    "fallback_share",
    "rollback_share",
    "draft_passes",
    "peak_memory",
)


def _measure(trace: Trace) -> dict[str, Any]:
    """A trace's metrics: those of cycles, or of streams with what of the others says something there."""
    measures = _of_cycles(trace)
    if not len(trace.updates):
        return measures
    for name in NOT_OF_STREAMS:
        del measures[name]
    try:
        table = by_stream(trace)
    except ParameterError:  # without sacrebleu by the model's own tokens
        table = by_stream(trace, MODEL)
    whole = table.sum(numeric_only=True)
    names = table["tokenizer"].unique()
    more: dict[str, Any] = {"streams": len(table), "updates": int(whole["updates"])}
    for prefix in ("", "draft_"):
        below = whole[f"{prefix}tokens"]
        more[f"{prefix}NE"] = whole[f"{prefix}erased"] / below if below else float("nan")
    more["tokenizer"] = ", ".join(names)
    more |= {name: float(table[name].mean()) for name in ("AL", "LAAL", "AL_seconds", "LAAL_seconds")}
    more["reused_share"] = whole["reused"] / whole["prompt_tokens"]
    more |= dict.fromkeys(("BLEU", "chrF"), float("nan"))
    with suppress(ParameterError, TraceError):  # without sacrebleu or references
        scores = quality(trace, resamples=1)
        more |= {"BLEU": scores["bleu"].median, "chrF": scores["chrf"].median}
    return measures | more | {"peak_memory": peak_memory(trace)}


def _of_cycles(trace: Trace) -> dict[str, Any]:
    return {
        "exactness": exactness(trace),
        "texts": len(trace.texts),
        "output": output(trace),
        "steps": steps(trace),
        "emitted": emitted(trace),
        "drafted": drafted(trace),
        "sent": sent(trace),
        "accepted": accepted(trace),
        "tau": tau(trace),
        "A/D": acceptance_rate(trace),
        "A/O": accepted_share(trace),
        "mean_accepted": mean_accepted(trace),
        "mean_drafted": mean_drafted(trace),
        "mean_sent": mean_sent(trace),
        "draft_time": draft_time(trace),
        "tokens_per_second": tokens_per_second(trace),
        "tokens_per_second_with_prefill": tokens_per_second(trace, prefill=True),
        "seconds": seconds(trace),
        "target_passes": target_passes(trace),
        "draft_passes": draft_passes(trace),
        "target_share": target_share(trace),
        "fallback_share": fallback_share(trace),
        "rollback_share": rollback_share(trace),
        "peak_memory": peak_memory(trace),
    }


def summary(trace: Trace) -> pd.DataFrame:
    """One row a run: every metric of this module, by its name or the field's (``tau``, ``A/D``, ``A/O``).

    ``tokens_per_second`` leaves the prefill's time out; ``seconds`` has it inside. `peak_memory` is in
    bytes, `seconds` and `draft_time` in seconds, the shares are per token of the texts.

    A run of streams has, in place of what says nothing there, ``streams`` and ``updates``; ``NE`` and
    ``draft_NE`` (`normalized_erasure` of displays and of outputs) with the ``tokenizer`` that they were
    counted by; ``AL`` and the others of `lagging`, means over streams; ``reused_share`` of the prompts'
    tokens; ``BLEU`` and ``chrF`` of the last outputs (`quality`), NaN without references or sacrebleu.
    """
    rows = []
    for part in trace.split():
        rows.append({"run": part.run["run"], "method": part.run["method"], **_measure(part)})
    return pd.DataFrame(rows)


def compare(traces: Mapping[str, Trace], baseline: str) -> pd.DataFrame:
    """The metrics of several traces side by side, with their speedup.

    Parameters
    ----------
    traces : mapping of name to Trace
        A trace of several runs is pooled.
    baseline : str
        The name that the others are compared with; usually autoregressive decoding.

    Returns
    -------
    DataFrame
        One row a name; ``speedup`` = tokens per second / the baseline's, of decoding alone;
        ``speedup_with_prefill`` the same with the prefill's time inside. Both are ratios of totals, not
        means of ratios.

    Raises
    ------
    TraceError
        If there is no such baseline.
    """
    if baseline not in traces:
        raise TraceError(f"no trace is called {baseline!r}; there are {', '.join(map(str, traces))}")
    table = pd.DataFrame([{"name": name, **_measure(trace)} for name, trace in traces.items()])
    base = table[table["name"] == baseline].iloc[0]
    for name, column in (
        ("speedup", "tokens_per_second"),
        ("speedup_with_prefill", "tokens_per_second_with_prefill"),
    ):
        table[name] = table[column] / base[column]
    return table
