"""Rechecking decisions over canvases from the record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from canvases import tiny

import specviz
from specviz import metrics
from specviz.trace import Trace

PROMPTS = [[1, 2, 3], [4, 5], [6]]


@pytest.fixture(scope="module", params=["float32", "float64"])
def trace(request, tmp_path_factory):
    model = tiny(3, shift=1, dtype=getattr(torch, request.param), eos=())
    path = tmp_path_factory.mktemp("recheck") / f"{request.param}.parquet"
    specviz.generate(
        model, PROMPTS, "ssd", cache="dual", refresh=5, block=4, draft_length=3, tree="mix",
        max_new_tokens=16, out=path,
    )  # fmt: skip
    return path


def test_every_judged_node_is_decided_again(trace):
    trace = Trace.open(trace)
    table = metrics.recheck(trace)
    judged = trace.nodes["status"].isin(["accepted", "rejected"])
    assert len(table) == judged.sum() > 20
    assert set(table["status"]) == {"accepted", "rejected"}
    assert set(table["rule"]) == {"surest"}
    assert table["agrees"].all()
    assert (table["expected"] == (table["status"] == "accepted")).all()
    assert (table.loc[table["status"] == "accepted", "margin"] >= 0).all()


def tampered(path, to, name, change):
    """Copy the record with one column changed."""
    table = pq.read_table(path)
    column = [change(row, i) for i, row in enumerate(table.to_pylist())]
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    pq.write_table(table.set_column(at, field, pa.array(column, field.type)), to)
    return Trace.open(to)


def first_judged(row, status):
    return next((i for i, s in enumerate(row["node_status"] or ()) if s == status), None)


def other_odds(row, _):
    """The cell placed first is no longer the surest."""
    odds = row["pred_odds"]
    node = first_judged(row, "accepted")
    if node is None:
        return odds
    return [
        value - 50 if canvas == row["node_parent"][node] and cell == row["node_position"][node] else value
        for value, canvas, cell in zip(odds, row["pred_node"], row["pred_position"])
    ]


def other_top(row, _):
    """Swap the top two tokens at an accepted node's cell."""
    top, k = row["pred_top_token"], row["top_k"]
    node = first_judged(row, "accepted")
    if node is None:
        return top
    top = list(top)
    for i, (canvas, cell) in enumerate(zip(row["pred_node"], row["pred_position"])):
        if canvas == row["node_parent"][node] and cell == row["node_position"][node]:
            top[i * k], top[i * k + 1] = top[i * k + 1], top[i * k]
    return top


def other_status(row, _):
    """A rejected node is recorded as accepted although its cell or token was not placed."""
    status = row["node_status"]
    node = None if status is None else first_judged(row, "rejected")
    return status if node is None or "accepted" in status else ["accepted" if i == node else s
                                                                for i, s in enumerate(status)]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change"),
    [("pred_odds", other_odds), ("pred_top_token", other_top), ("node_status", other_status)],
)
def test_a_tampered_record_is_found(trace, tmp_path, name, change):
    found = metrics.recheck(tampered(trace, tmp_path / "tampered.parquet", name, change))
    wrong = found[~found["agrees"]]
    assert len(wrong)
    if name == "node_status":
        assert (wrong["status"] == "accepted").all()
    else:
        assert "accepted" in set(wrong["status"])


def test_stepwise_judges_nothing():
    trace = specviz.generate(tiny(1), [[1, 2]], "stepwise", block=4, max_new_tokens=8)
    assert len(metrics.recheck(trace)) == 0


def test_equal_cells_and_equal_tokens():
    """If everything ties, cells go from left to right with the lowest ids, and the record agrees."""
    model = tiny(1, eos=(), tie_word_embeddings=False)
    model.net.lm_head.weight.data.zero_()
    trace = specviz.generate(model, [[1, 2]], "ssd", block=4, draft_length=3, max_new_tokens=12)
    table = metrics.recheck(trace)
    assert table["agrees"].all()
    assert (table["status"] == "accepted").all()
    assert np.array_equal(trace.outputs["position"], np.arange(12))
