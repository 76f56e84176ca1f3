"""Acceptance by position and by context, and the selection of the places where drafts begin.

The first position's rate is over places where a cycle begins, and a cycle begins where the last one ended:
usually after a rejection. So it is a rate over hard places, and the longer the drafts, the harder they are: a
long draft covers the easy places, and the next cycle begins at the place that stopped it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import TraceError
from specviz.metrics import by_position, drafts
from specviz.trace import Counts, Trace

if TYPE_CHECKING:
    import pandas as pd

BINS = 4  # bins of the context's length
LEAST = 8  # least cycles per bin
AFTER = ("a rejection", "a draft accepted to its end", "no draft", "the prompt")


def positions(source: Trace | Counts) -> pd.DataFrame | None:
    """`specviz.metrics.by_position`; None if the source does not say which steps had a draft."""
    try:
        return by_position(source)
    except TraceError:
        return None


def draft_counts(trace: Trace) -> pd.DataFrame:
    """One row per cycle after the prefill, in order: ``context``, its draft's ``sent`` tokens and ``depth``,
    and how many were ``accepted``. `contexts`, `starts` and `by_length` take it as `steps`."""
    keys = ["run", "prompt", "cycle"]
    cycles = trace.cycles
    steps = cycles[cycles["cycle"] > 0][[*keys, "context"]].reset_index(drop=True)
    steps = steps.merge(drafts(trace).rename(columns={"drafted": "sent"}), how="left", on=keys)
    outputs = trace.outputs
    accepted = outputs[outputs["origin"] == "draft"].groupby(keys, observed=True).size().rename("accepted")
    steps = steps.merge(accepted.reset_index(), how="left", on=keys)
    return steps.fillna({"accepted": 0}).sort_values(keys, ignore_index=True)


def contexts(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """Acceptance by the number of tokens before the cycle, in quarters of the cycles.

    Returns
    -------
    DataFrame
        One row per bin: ``low`` and ``high`` (tokens), ``cycles``; ``first``, the share of cycles with a
        draft whose first drafted token was accepted; ``accepted`` tokens per cycle; ``forward``, seconds of
        the target's pass. Empty if there are too few cycles.
    """
    import pandas as pd

    from specviz.explanations.costs import steps_of

    steps = steps.dropna(subset="context")
    columns = ["low", "high", "cycles", "first", "accepted", "forward"]
    if len(steps) < BINS * LEAST:
        return pd.DataFrame(columns=columns)
    times = steps_of(trace)[["run", "prompt", "cycle", "forward_time", "share"]]
    times["forward_time"] /= times["share"]  # of the whole pass, shared or not
    steps = steps.merge(times, how="left", on=["run", "prompt", "cycle"])
    edges = np.quantile(steps["context"], np.linspace(0, 1, BINS + 1)[1:-1])
    steps["bin"] = np.searchsorted(edges, steps["context"].to_numpy(), side="left")
    rows = []
    for _, some in steps.groupby("bin"):
        had = some[some["sent"] > 0]
        first = float((had["accepted"] > 0).mean()) if len(had) else float("nan")
        rows.append(
            (int(some["context"].min()), int(some["context"].max()), len(some), first,
             float(some["accepted"].mean()), float(some["forward_time"].mean()))
        )  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def starts(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """The first position's acceptance by how the previous cycle ended: why it is no rate over all places.

    Returns
    -------
    DataFrame
        One row for each of `AFTER` that occurs: ``after``; ``cycles`` with a draft that began there; their
        ``share`` of all; ``rate``, the share of them whose first drafted token was accepted.
    """
    import pandas as pd

    # The last token shows how the draft ended. Its length does not: it includes other branches and tokens
    # cut at the text's end, none of which were rejected.
    last = trace.outputs.groupby(["run", "prompt", "cycle"], observed=True)["origin"].last().rename("last")
    steps = steps.merge(last.reset_index(), how="left", on=["run", "prompt", "cycle"])
    before = steps.groupby(["run", "prompt"], observed=True)[["sent", "last"]].shift()
    whole = before["last"].isin(["bonus", "draft"]) | ((before["last"] == "fallback") & (before["sent"] > 0))
    after = np.select(
        [before["sent"].isna(), before["last"].isin(["correction", "resampled"]), whole],
        [AFTER[3], AFTER[0], AFTER[1]],
        AFTER[2],
    )
    had = (steps["sent"] > 0).to_numpy()
    groups = pd.DataFrame({"after": after, "hit": steps["accepted"] > 0})[had].groupby("after")["hit"]
    table = groups.agg(cycles="size", rate="mean").reindex([name for name in AFTER if name in groups.groups])
    table["share"] = table["cycles"] / max(had.sum(), 1)
    return table.reset_index()[["after", "cycles", "share", "rate"]]


def places(trace: Trace) -> float:
    """Share of all judged places of the texts at which the draft was right; each place counts once.

    A chain's accepted tokens and the target's correction after them are the places that were judged.
    """
    origin = trace.outputs["origin"]
    right, wrong = (origin == "draft").sum(), origin.isin(["correction", "resampled"]).sum()
    return float(right) / float(right + wrong) if right + wrong else float("nan")


def by_length(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """The first position's rate if drafts had been shorter, with the same tokens right at the same places.

    Modelled: each judged place keeps its outcome, and each cycle of at most k drafted tokens begins where the
    one before ended. Places without a drafted token (the target's bonus tokens) end a draft.

    Returns
    -------
    DataFrame
        One row per draft length ``k``, from 1 to the longest: ``first``, the rate of the first position;
        ``tau``, tokens per cycle. Empty if drafts are not chains.
    """
    import pandas as pd

    if not steps["depth"].max() >= 2 or (steps["depth"] != steps["sent"]).any():
        return pd.DataFrame(columns=["k", "first", "tau"])
    longest = int(steps["depth"].max())
    outputs = trace.outputs
    outputs = outputs[outputs["kept"].to_numpy()].sort_values(["run", "prompt", "position"])
    origin = outputs["origin"]
    codes = np.select([origin == "draft", origin.isin(["correction", "resampled"])], [1, 0], -1)
    texts = [codes[rows] for rows in outputs.groupby(["run", "prompt"], observed=True).indices.values()]
    rows = []
    for k in range(1, longest + 1):
        begun = hits = cycles_of_k = tokens = 0
        for text in texts:
            at, tokens = 0, tokens + len(text)
            while at < len(text):  # one iteration per cycle
                wrong = np.flatnonzero(text[at : at + k] != 1)
                run = int(wrong[0]) if len(wrong) else min(k, len(text) - at)
                begun += text[at] >= 0
                hits += run > 0
                cycles_of_k += 1
                at += run + 1
        rows.append((k, hits / begun if begun else float("nan"), tokens / cycles_of_k))
    return pd.DataFrame(rows, columns=["k", "first", "tau"])


def even_rate(depths: np.ndarray, cost: float, times: np.ndarray | None = None) -> float:
    """The acceptance rate per token at which drafts of these lengths would write `cost` tokens per step.

    Assumes that every token is accepted with the same probability, independently of those before it
    (Leviathan et al. 2023, section 3.1): a draft of d tokens gives 1 + α + ... + α^d. NaN if even α = 1 does
    not reach `cost`. `times` is the count of each draft; default 1.
    """
    lengths, place = np.unique(np.asarray(depths, np.int64), return_inverse=True)
    times = np.bincount(place, times, len(lengths))
    if not len(lengths) or cost <= 1:
        return 0.0 if len(lengths) else float("nan")
    powers = np.arange(int(lengths.max()) + 1)

    def tau(rate: float) -> float:
        return float((np.cumsum(rate**powers)[lengths] * times).sum() / times.sum())

    if tau(1.0) < cost:
        return float("nan")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tau(middle) < cost else (low, middle)
    return high
