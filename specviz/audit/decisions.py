"""Checks of recorded decisions: can each be repeated, and are the recorded probabilities the target's?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from torch import Tensor

from ..methods import find, names, of_session
from ..methods.kinds import SampledTreeMethod
from ..methods.sampling import Sampling
from ..trace import Trace
from .result import Difference

Decoded: TypeAlias = tuple[int, Trace, dict[int, list[int]]]  # first prompt, trace, texts by its prompts
Faults: TypeAlias = Iterator[tuple[Any, str]]  # pairs of a prompt and a sentence
ROUNDING = 1e-6  # probabilities are recorded in float32
LOGS = 1e-4  # a softmax's rounding, in differences of log probabilities
TINY = 1e-30  # below it float32 keeps fewer digits


class Records:
    """A method's traces, and the faults in them.

    Parameters
    ----------
    traces : list of (first prompt, Trace, texts by prompt of the trace)
    sampling : Sampling
        As decoded; recorded probabilities of tested and drawn tokens are warped by it.
    bound : float
        Bound on a logit's error. A probability is then off by at most half as much, over the temperature.
    most : int
        Number of texts whose recorded probabilities are compared with the stock module's.

    Attributes
    ----------
    bugs : list of Difference
    """

    def __init__(self, traces: list[Decoded], sampling: Sampling, bound: float, most: int) -> None:
        self.sampling, self.bound = sampling, bound
        self.bugs: list[Difference] = []
        self._texts: dict[int, tuple[list[int], list[int], dict[str, pd.DataFrame]]] = {}
        for first, trace, texts in traces:
            for prompt, words in (*_again(trace, texts), *_gaps(trace), *_windows(trace)):
                self.bugs.append(Difference(first + int(prompt), -1, "bug", words))
            prompts = [p["tokens"] for p in trace.run["prompts"]]
            tables = _tables(trace)
            for prompt in sorted(texts)[:: max(1, len(texts) // most)][:most]:
                if texts[prompt]:
                    own = {name: table[table["prompt"] == prompt] for name, table in tables.items()}
                    self._texts[first + prompt] = prompts[prompt], texts[prompt], own

    def compare(self, number: int, rows_of: Callable[[list[int], list[int]], Tensor]) -> None:
        """Compare a prompt's recorded probabilities with the target's, if it is among those to compare.

        Parameters
        ----------
        number : int
            Index of the prompt.
        rows_of : callable
            The target's logits that predict each token of a text after a prompt: `Reference.rows`.
        """
        if number not in self._texts:
            return
        prompt, text, tables = self._texts.pop(number)
        rows = rows_of(prompt, text)
        plain = rows.softmax(-1).cpu().numpy()
        warped = plain if self.sampling.greedy else self.sampling.probabilities(rows).cpu().numpy()
        # Dividing logits by a temperature scales the error of the probabilities.
        drawn = self.bound if self.sampling.greedy else self.bound * max(1, 0.5 / self.sampling.temperature)
        worst = _compare(tables, plain, warped, self.bound, drawn)
        if worst is not None:
            self.bugs.append(Difference(number, *worst))


def _again(trace: Trace, texts: dict[int, list[int]]) -> Faults:
    """Decisions that the record does not repeat, and recorded texts that differ from the emitted ones."""
    again = trace.recheck()
    for prompt, some in again[~again["agrees"]].groupby("prompt", observed=True):
        first = some.iloc[0]
        words = (
            f"{len(some)} recorded decisions do not follow from the rule ({first['rule']}) and the recorded "
        )
        yield prompt, f"{words}numbers; the first in cycle {first['cycle']}, node {first['node']}"
    outputs = trace.outputs
    written = outputs[outputs["kept"]].groupby("prompt", observed=True)["token"].apply(list).to_dict()
    for prompt, text in texts.items():
        if written.get(prompt, []) != text:
            yield prompt, "the recorded text differs from the emitted one"


def _gaps(trace: Trace) -> Faults:
    """Gaps that do not follow from the recorded probabilities, or thresholds not from the confidences."""
    nodes, run = trace.nodes, trace.run
    nodes = nodes[nodes["gap"].notna() & (nodes["p"] > TINY)]
    if not len(nodes):
        return
    first = trace.tops("pred")
    first = first.loc[first["place"] == 0, ["prompt", "cycle", "node", "p"]]
    first = first.rename(columns={"node": "parent", "p": "most"})
    nodes = nodes.merge(first, on=["prompt", "cycle", "parent"])
    gap = np.log(nodes["most"].to_numpy(np.float64) / nodes["p"].to_numpy(np.float64))
    yield from _wrong(nodes, "gap", gap, LOGS, "does not match the recorded probabilities")
    if run["method"] == "cm_asd":
        given, score = run["parameters"], nodes["score"].to_numpy(np.float64)
        moved = {"as_written": 1 - score, "as_described": score}[given["gap"]] * given[
            "adaptive_verification"
        ]
        threshold = given["tau_base"] + given["gamma"] * moved
        yield from _wrong(nodes, "threshold", threshold, ROUNDING, "does not follow from its confidence")


def _wrong(nodes: pd.DataFrame, column: str, expected: np.ndarray, limit: float, words: str) -> Faults:
    """Prompts in which a column differs from the expected values by more than a relative error."""
    off = np.abs(expected - nodes[column]) > limit * (1 + nodes[column].abs())
    for prompt, some in nodes[off].groupby("prompt", observed=True):
        first = some.iloc[0]
        yield (
            prompt,
            f"the recorded {column} {first[column]:.6g} of a node {words}, in cycle {first['cycle']}",
        )


def _windows(trace: Trace) -> Faults:
    """Cycles of CM-ASD that sent more or fewer tokens than the recorded confidences allow."""
    run = trace.run
    if run["method"] != "cm_asd" or not run["parameters"]["adaptive_drafting"]:
        return
    given, ends = run["parameters"], run["eos"] or []
    for (prompt, cycle), chain in trace.nodes.groupby(["prompt", "cycle"], observed=True):
        over = chain["token"].isin(ends).cumsum().shift(fill_value=0) > 0  # after an end token
        drafted = chain[~over]
        claim = given["alpha"] * given["k_max"] * drafted["score"].mean()
        # The mean was taken in float64 of float32 numbers: a claim near an integer may fall on either side.
        windows = {
            min(given["k_max"], max(given["k_min"], int(np.floor(claim + away))))
            for away in (-ROUNDING * given["k_max"], ROUNDING * given["k_max"])
        }
        sent = int((chain["status"] != "unsent").sum())
        if sent not in {min(window, len(drafted)) for window in windows}:
            words = f"{sent} tokens were sent in cycle {cycle}, where the window of the recorded confidences"
            yield prompt, f"{words} holds {min(windows)}"


def _tables(trace: Trace) -> dict[str, pd.DataFrame]:
    """Recorded probabilities, with the columns that locate them in a text."""
    keep = trace.cycles[["prompt", "cycle", "keep"]]
    nodes = trace.nodes
    nodes = nodes[nodes["status"].isin(["accepted", "rejected"])].merge(keep, on=["prompt", "cycle"])
    name = trace.run["method"]
    kind = find(name) if name in names() else of_session(name)
    # A younger sibling's p is reduced by the elder ones.
    if kind is not None and issubclass(kind, SampledTreeMethod):
        nodes = nodes[~nodes.duplicated(["prompt", "cycle", "parent"])]
    tops = trace.tops("pred").merge(keep, on=["prompt", "cycle"])
    depths = trace.nodes[["prompt", "cycle", "node", "depth"]]
    tops = tops.merge(depths, how="left", on=["prompt", "cycle", "node"])
    tops["depth"] = tops["depth"].fillna(0)
    columns = ["prompt", "token", "p", "keep", "depth"]
    outputs = trace.outputs[["prompt", "token", "p", "position"]]
    return {"outputs": outputs, "nodes": nodes[columns], "tops": tops[columns]}


def _compare(
    tables: dict[str, pd.DataFrame], plain: np.ndarray, warped: np.ndarray, bound: float, drawn: float
) -> tuple[int, str, str] | None:
    """The worst recorded probability of a text, if it exceeds its bound: position, verdict, reason.

    `drawn` is the bound for tested and drawn tokens, whose probabilities are warped.
    """
    worst = (0.0, 0.0, -1, "")  # excess over the limit, error, position, table
    for name, p, limit, at in (
        ("outputs", warped, drawn + ROUNDING, lambda t: t["position"]),
        ("nodes", warped, drawn + ROUNDING, lambda t: t["keep"] + t["depth"] - 1),
        ("tops", plain, bound + ROUNDING, lambda t: t["keep"] + t["depth"]),
    ):
        table = tables[name]
        table = table[table["p"].notna()]
        place = at(table).to_numpy(np.int64)
        inside = (place >= 0) & (place < len(p))  # after the end there is nothing to compare with
        table, place = table[inside], place[inside]
        if not len(table):
            continue
        gap = np.abs(p[place, table["token"].to_numpy(np.int64)] - table["p"].to_numpy(np.float64))
        i = int(gap.argmax())
        if gap[i] - limit > worst[0]:
            worst = (float(gap[i] - limit), float(gap[i]), int(place[i]), name)
    beyond, off, where, name = worst
    if not name:
        return None
    of = {"outputs": "an emitted token", "nodes": "a judged node", "tops": "a candidate"}[name]
    return where, "bug", f"the recorded probability of {of} is off by {off:.1e} (bound {off - beyond:.1e})"
