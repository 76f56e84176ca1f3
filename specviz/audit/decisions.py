"""Recorded decisions: can each be decided again, and are the recorded probabilities the target's?"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..methods import find, names, of_session
from ..methods.kinds import SampledTreeMethod
from ..methods.sampling import Sampling
from .result import Difference

ROUNDING = 1e-6  # probabilities are recorded in float32
LOGS = 1e-4  # and their logarithms differ from the logits' difference by what a softmax rounds
TINY = 1e-30  # below it float32 keeps fewer digits


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
        for prompt, words in _again(trace, texts) + _gaps(trace) + _windows(trace):
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


def _gaps(trace: Any) -> list[tuple[int, str]]:
    """Gaps that do not follow from the recorded probabilities, thresholds not from the confidences."""
    nodes, run = trace.nodes, trace.run
    nodes = nodes[nodes["gap"].notna() & (nodes["p"] > TINY)]
    if not len(nodes):
        return []
    first = trace.tops("pred")
    first = first.loc[first["place"] == 0, ["prompt", "cycle", "node", "p"]]
    first = first.rename(columns={"node": "parent", "p": "most"})
    nodes = nodes.merge(first, on=["prompt", "cycle", "parent"])
    off = np.abs(np.log(nodes["most"].to_numpy(np.float64) / nodes["p"].to_numpy(np.float64)) - nodes["gap"])
    wrong = nodes[off > LOGS * (1 + nodes["gap"].abs())]
    found = [
        (int(prompt), f"the recorded gap {some.iloc[0]['gap']:.6g} of a node is not that of the recorded "
         f"probabilities, in cycle {some.iloc[0]['cycle']}")
        for prompt, some in wrong.groupby("prompt", observed=True)
    ]  # fmt: skip
    if run["method"] != "cm_asd":
        return found
    given, score = run["parameters"], nodes["score"].to_numpy(np.float64)
    moved = {"as_written": 1 - score, "as_described": score}[given["gap"]] * given["adaptive_verification"]
    off = np.abs(given["tau_base"] + given["gamma"] * moved - nodes["threshold"])
    wrong = nodes[off > ROUNDING * (1 + nodes["threshold"])]
    return found + [
        (int(prompt), f"the recorded threshold {some.iloc[0]['threshold']:.6g} of a node does not follow "
         f"from its confidence, in cycle {some.iloc[0]['cycle']}")
        for prompt, some in wrong.groupby("prompt", observed=True)
    ]  # fmt: skip


def _windows(trace: Any) -> list[tuple[int, str]]:
    """Cycles of CM-ASD that sent more or fewer tokens than the recorded confidences allow."""
    run = trace.run
    if run["method"] != "cm_asd" or not run["parameters"]["adaptive_drafting"]:
        return []
    given, ends = run["parameters"], run["eos"] or []
    nodes = trace.nodes
    found = []
    for (prompt, cycle), chain in nodes.groupby(["prompt", "cycle"], observed=True):
        over = chain["token"].isin(ends).cumsum().shift(fill_value=0) > 0  # behind an end token
        drafted = chain[~over]
        claim = given["alpha"] * given["k_max"] * drafted["score"].mean()
        # The mean was taken in float64 of float32 numbers; a claim at a whole number may fall on either side.
        windows = {
            min(given["k_max"], max(given["k_min"], int(np.floor(claim + away))))
            for away in (-ROUNDING * given["k_max"], ROUNDING * given["k_max"])
        }
        sent = int((chain["status"] != "unsent").sum())
        if sent not in {min(window, len(drafted)) for window in windows}:
            found.append((int(prompt), f"{sent} tokens were sent in cycle {cycle}, where the window of the "
                          f"recorded confidences holds {min(windows)}"))  # fmt: skip
    return found


def _tables(trace: Any) -> dict[str, Any]:
    keep = trace.cycles[["prompt", "cycle", "keep"]]
    nodes = trace.nodes
    nodes = nodes[nodes["status"].isin(["accepted", "rejected"])].merge(keep, on=["prompt", "cycle"])
    name = trace.run["method"]
    kind = find(name) if name in names() else of_session(name)
    # A younger sibling's p is what the elder ones left of it.
    if kind is not None and issubclass(kind, SampledTreeMethod):
        nodes = nodes[~nodes.duplicated(["prompt", "cycle", "parent"])]
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
