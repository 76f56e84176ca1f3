"""Recorded decisions: can each be decided again, and are the recorded probabilities the target's?"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..sampling import Sampling
from .result import Difference

ROUNDING = 1e-6  # probabilities are recorded in float32


def recorded(
    traces: list[tuple[int, Any, dict[int, list[int]]]],
    reference: Any,
    sampling: Sampling,
    bound: float,
    most: int,
) -> list[Difference]:
    """What the traces of a method get wrong.

    Parameters
    ----------
    traces : list of (first prompt, Trace, texts by prompt of the trace)
    reference : Reference
    sampling : Sampling
        As decoded; recorded probabilities of tested and drawn tokens are warped by it.
    bound : float
        Of a logit's error. A probability then moves by no more than half as much, so it bounds that too.
    most : int
        Texts whose recorded probabilities are compared with the stock module's.

    Returns
    -------
    list of Difference
        All bugs.
    """
    found = []
    for first, trace, texts in traces:
        for prompt, words in _again(trace, texts):
            found.append(Difference(first + prompt, -1, "bug", words))
        prompts = [p["tokens"] for p in trace.run["prompts"]]
        picks = sorted(texts)[:: max(1, len(texts) // most)][:most]
        tables = _tables(trace)
        for prompt in picks:
            if texts[prompt]:
                rows = reference.rows(prompts[prompt], texts[prompt])
                plain = rows.softmax(-1).cpu().numpy()
                warped = plain if sampling.greedy else sampling.probabilities(rows).cpu().numpy()
                if (worst := _compare(tables, prompt, plain, warped, bound)) is not None:
                    found.append(Difference(first + prompt, *worst))
    return found


def _again(trace: Any, texts: dict[int, list[int]]) -> list[tuple[int, str]]:
    """Decisions that the record does not repeat, and recorded texts that are not what was emitted."""
    found = []
    again = trace.recheck()
    for prompt, some in again[~again["agrees"]].groupby("prompt", observed=True):
        first = some.iloc[0]
        words = (
            f"{len(some)} recorded decisions are not what the rule ({first['rule']}) makes of the recorded"
        )
        found.append(
            (int(prompt), f"{words} numbers; the first in cycle {first['cycle']}, node {first['node']}")
        )
    outputs = trace.outputs
    written = outputs[outputs["kept"]].groupby("prompt", observed=True)["token"].apply(list).to_dict()
    for prompt, text in texts.items():
        if written.get(prompt, []) != text:
            found.append((prompt, "the recorded text is not the emitted one"))
    return found


def _tables(trace: Any) -> dict[str, Any]:
    keep = trace.cycles[["prompt", "cycle", "keep"]]
    nodes = trace.nodes
    nodes = nodes[nodes["status"].isin(["accepted", "rejected"])].merge(keep, on=["prompt", "cycle"])
    tops = trace.tops("pred").merge(keep, on=["prompt", "cycle"])
    depths = trace.nodes[["prompt", "cycle", "node", "depth"]]
    tops = tops.merge(depths, how="left", on=["prompt", "cycle", "node"])
    tops["depth"] = tops["depth"].fillna(0)
    return {"outputs": trace.outputs, "nodes": nodes, "tops": tops}


def _compare(
    tables: dict[str, Any], prompt: int, plain: np.ndarray, warped: np.ndarray, bound: float
) -> tuple[int, str, str] | None:
    """The worst recorded probability of a text, if it is beyond the bound: position, verdict, reason."""
    worst = (0.0, -1, "")
    for name, p, at in (
        ("outputs", warped, lambda t: t["position"]),
        ("nodes", warped, lambda t: t["keep"] + t["depth"] - 1),
        ("tops", plain, lambda t: t["keep"] + t["depth"]),
    ):
        table = tables[name]
        table = table[(table["prompt"] == prompt) & table["p"].notna()]
        place = at(table).to_numpy(np.int64)
        inside = (place >= 0) & (place < len(p))  # behind the end there is nothing to compare with
        table, place = table[inside], place[inside]
        if not len(table):
            continue
        gap = np.abs(p[place, table["token"].to_numpy(np.int64)] - table["p"].to_numpy(np.float64))
        i = int(gap.argmax())
        if gap[i] > worst[0]:
            worst = (float(gap[i]), int(place[i]), name)
    limit = bound + ROUNDING
    if worst[0] <= limit:
        return None
    what = {"outputs": "an emitted token", "nodes": "a judged node", "tops": "a candidate"}[worst[2]]
    return worst[1], "bug", f"the recorded probability of {what} is off by {worst[0]:.1e} (bound {limit:.1e})"
