"""A check of the integer identities that every trace satisfies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.errors import TraceError
from specviz.trace.files import KEYS
from specviz.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


def validate(trace: Trace) -> None:
    """Check the integer identities that every trace satisfies.

    In each cycle: an accepted node's parent is accepted or the root, and no two accepted nodes share
    a parent; there are as many tokens of origin ``draft`` as accepted nodes, and as many of origin
    ``unreviewed`` as unreviewed nodes; output positions start at `keep` and rise by one; every text's cycles
    are numbered without a gap; a tail belongs to an output of its cycle. Lengths, indices and words are
    checked whenever a trace is read.

    Raises
    ------
    TraceError
        Names the first run, prompt and cycle that breaks one.
    """
    nodes, outputs, cycles = trace.nodes, trace.outputs, trace.cycles
    canvases = [part.run["run"] for part in trace.split() if part.run.get("canvas") is not None]
    if canvases:  # a canvas' `position` is the cell, its `order` is when the cell was filled
        position = outputs["position"].mask(outputs["run"].isin(canvases), outputs["order"])
        outputs = outputs.assign(position=position)

    def fail(rows: pd.DataFrame, what: str) -> None:
        if len(rows):
            at = rows.iloc[0]
            raise TraceError(f"run {at['run']}, prompt {at['prompt']}, cycle {at['cycle']}: {what}")

    keys = list(KEYS)
    accepted = nodes[nodes["status"] == "accepted"]
    parents = accepted[[*keys, "parent"]]
    fail(accepted[parents.duplicated().to_numpy()], "two accepted nodes share a parent")
    by_node = accepted[[*keys, "node"]].rename(columns={"node": "parent"})
    inner = parents[parents["parent"] >= 0].merge(by_node, how="left", indicator=True)
    fail(inner[inner["_merge"] == "left_only"], "an accepted node has a parent that was not accepted")
    with_draft = cycles[cycles["drafted"] > 0]
    for origin, status in (("draft", "accepted"), ("unreviewed", "unreviewed")):
        tokens = outputs[outputs["origin"] == origin].groupby(keys, observed=True).size().rename("tokens")
        joined = with_draft.merge(tokens.reset_index(), how="left", on=keys).fillna({"tokens": 0})
        fail(
            joined[joined["tokens"] != joined[status]],
            f"{status} nodes and emitted {origin} tokens differ in number",
        )
    first = (
        outputs.groupby(keys, observed=True, sort=False)["position"]
        .agg(["min", "max", "count"])
        .reset_index()
    )
    first = first.merge(cycles[[*keys, "keep"]], on=keys)
    fail(first[(first["max"] - first["min"] + 1) != first["count"]], "output positions have gaps")
    fail(
        first[first["keep"].notna() & (first["keep"] != first["min"])],
        "output does not start where 'keep' ends",
    )
    tails = trace.tails.merge(first, on=keys, how="left")
    inside = (tails["position"] >= tails["min"]) & (tails["position"] <= tails["max"])
    fail(tails[~inside], "a tail is at a token that was not emitted")
    ordered = cycles.sort_values(keys)
    step = ordered.groupby(["run", "prompt", "row", "update"], observed=True)["cycle"].diff()
    fail(ordered[(step.notna() & (step != 1)).to_numpy()], "the previous cycle is missing")
