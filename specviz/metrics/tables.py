"""Several metrics at once: of each run, and of several traces side by side; the front of many runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from specviz.errors import ParameterError, TraceError
from specviz.metrics import cycles
from specviz.metrics.quality import quality
from specviz.metrics.tokens import MODEL
from specviz.metrics.updates import by_stream
from specviz.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

# Metrics of the cycles, by the field's name for them or their own.
OF_CYCLES: dict[str, Callable[[Trace], float | str]] = {
    "exactness": cycles.exactness, "texts": lambda trace: len(trace.texts), "output": cycles.output,
    "steps": cycles.steps, "emitted": cycles.emitted, "drafted": cycles.drafted, "sent": cycles.sent,
    "accepted": cycles.accepted, "tau": cycles.tau, "A/D": cycles.acceptance_rate,
    "A/O": cycles.accepted_share, "mean_accepted": cycles.mean_accepted,
    "mean_drafted": cycles.mean_drafted, "mean_sent": cycles.mean_sent, "draft_time": cycles.draft_time,
    "tokens_per_second": cycles.tokens_per_second,
    "tokens_per_second_with_prefill": lambda trace: cycles.tokens_per_second(trace, prefill=True),
    "seconds": cycles.seconds, "target_passes": cycles.target_passes, "draft_passes": cycles.draft_passes,
    "target_share": cycles.target_share, "fallback_share": cycles.fallback_share,
    "rollback_share": cycles.rollback_share, "peak_memory": cycles.peak_memory,
}  # fmt: skip
# Metrics without meaning for a stream's update (one draft, then token by token), or with another name.
NOT_OF_STREAMS = {
    "texts", "drafted", "mean_accepted", "mean_drafted", "mean_sent", "draft_time", "target_share",
    "fallback_share", "rollback_share", "draft_passes", "peak_memory",
}  # fmt: skip


def _measure(trace: Trace) -> dict[str, float | str]:
    """A trace's metrics: those of cycles; for streams their own, and the cycle metrics that apply."""
    streams = trace.has_streams
    measures = {
        name: measure(trace)
        for name, measure in OF_CYCLES.items()
        if not (streams and name in NOT_OF_STREAMS)
    }
    if not streams:
        return measures
    try:
        table = by_stream(trace)
    except ParameterError:  # without sacrebleu, count the model's own tokens
        table = by_stream(trace, MODEL)
    whole = table.sum(numeric_only=True)
    more: dict[str, float | str] = {"streams": len(table), "updates": int(whole["updates"])}
    for prefix in ("", "draft_"):
        below = whole[f"{prefix}tokens"]
        more[f"{prefix}NE"] = whole[f"{prefix}erased"] / below if below else float("nan")
    more["tokenizer"] = ", ".join(table["tokenizer"].unique())
    more |= {name: float(table[name].mean()) for name in ("AL", "LAAL", "AL_seconds", "LAAL_seconds")}
    more["reused_share"] = table["reused"].sum(skipna=False) / whole["prompt_tokens"]
    more |= dict.fromkeys(("BLEU", "chrF"), float("nan"))
    with suppress(ParameterError, TraceError):  # without sacrebleu or references
        scores = quality(trace, resamples=1)
        more |= {"BLEU": scores["bleu"].median, "chrF": scores["chrf"].median}
    return measures | more | {"peak_memory": cycles.peak_memory(trace)}


def summary(trace: Trace) -> pd.DataFrame:
    """One row per run: every metric of this module, by its name or the field's (``tau``, ``A/D``, ``A/O``).

    ``tokens_per_second`` excludes the prefill's time, ``seconds`` includes it. `peak_memory` is in bytes,
    `seconds` and `draft_time` are in seconds, the shares are per token of the texts.

    For a run of streams, metrics without meaning there are replaced by ``streams`` and ``updates``; ``NE``
    and ``draft_NE`` (`normalized_erasure` of displays and of outputs), with the ``tokenizer`` used to count
    them; ``AL`` and the others of `lagging`, means over streams; ``reused_share`` of the prompts' tokens;
    ``BLEU`` and ``chrF`` of the last outputs (`quality`), NaN without references or sacrebleu.
    """
    import pandas as pd

    names = ("run", "method")
    rows = [{name: part.run[name] for name in names} | _measure(part) for part in trace.split()]
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
        One row per name; ``speedup`` = tokens per second / the baseline's, of decoding alone;
        ``speedup_with_prefill``, the same with the prefill's time included. Both are ratios of totals, not
        means of ratios.

    Raises
    ------
    TraceError
        If there is no such baseline.
    """
    import pandas as pd

    if baseline not in traces:
        raise TraceError(f"no trace is called {baseline!r}; there are {', '.join(map(str, traces))}")
    table = pd.DataFrame([{"name": name, **_measure(trace)} for name, trace in traces.items()])
    base = table[table["name"] == baseline].iloc[0]
    for name in ("", "_with_prefill"):
        table[f"speedup{name}"] = table[f"tokens_per_second{name}"] / base[f"tokens_per_second{name}"]
    return table


def front(quality: ArrayLike, speed: ArrayLike) -> np.ndarray:
    """The Pareto front: points that no other point beats (at least as good in both, better in one).

    Parameters
    ----------
    quality, speed : sequence of float
        Values of each point; larger is better. A point with a NaN is on no front and beats none.

    Returns
    -------
    array of bool
    """
    x, y = np.asarray(quality, np.float64), np.asarray(speed, np.float64)
    at_least = (x[:, None] >= x) & (y[:, None] >= y)  # [i, j]: i is at least as good as j in both
    beaten = (at_least & ~at_least.T).any(0)
    unbeaten: np.ndarray = ~beaten & np.isfinite(x) & np.isfinite(y)
    return unbeaten
