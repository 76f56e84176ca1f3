"""Costs from a trace alone: sums over batches, shares, relative costs, and their pictures."""

from __future__ import annotations

import sys

import pytest
from tiny import llama

import specviz
from specviz import metrics, view
from specviz.errors import TraceError
from specviz.metrics.costs import Shape
from specviz.trace import Recorder
from specviz.view.costs import FIGURES
from traces import SHAPE, build, metadata, piece

TARGET = {"name": "town", "parameters": 1, "shape": SHAPE}
CEILINGS = metrics.Ceilings(100e9, 10e9, {10_000: 50e9, 10_000_000: 20e9}, "a <machine>", "float32", 1)


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="module")
def traces():
    """Two prompts decoded by three methods."""
    target = llama(seed=0, eos=(), name="town")
    drafter = llama(seed=5, eos=(), like=target, noise=0.1, name="town-draft", layers=2)
    prompts = [[3, 4, 5], [9, 6]]
    return {
        name: specviz.generate(target, prompts, name, draft=drafter, max_new_tokens=12)
        for name in ("autoregressive", "speculative", "bild")
    }


def batch(starts):
    """Two rows, each a prompt of 5 and one cycle of 2 nodes; their passes start at `starts`."""
    run = metadata("speculative", prompts=2, model=TARGET)
    run["prompts"] = [{"tokens": [2, 3, 4, 5, 6]}] * 2
    recorder = Recorder(run, record="judged", piece=piece)
    for row, start in enumerate(starts):
        recorder.add({
            "prompt": row, "row": row, "cycle": 1, "context": 5, "keep": 0, "start": 0.0, "duration": 1.0,
            "node_token": [3, 4], "node_parent": [-1, -1 if row else 0],
            "node_position": [1, 1 if row else 2], "node_source": ["model"] * 2,
            "node_status": ["accepted", "rejected"],
            "out_position": [0, 1], "out_token": [3, 5], "out_origin": ["draft", "correction"],
            "pass_model": ["target"], "pass_rows": [2], "pass_tokens": [3], "pass_start": [start],
            "pass_duration": [0.5],
        })  # fmt: skip
    return recorder.close()


def test_rows_of_a_batch_share_the_weights():
    together, apart = (metrics.pass_costs(batch(starts)) for starts in ([1.0, 1.0], [1.0, 2.0]))
    shape = Shape(SHAPE)
    assert len(together) == 1 and len(apart) == 2
    # A chain's nodes see 6 and 7 tokens, a tree's two siblings 6 each; the root 5.
    assert together["seen"].tolist() == [5 + 6 + 7 + 5 + 6 + 6]
    assert together["flops"].tolist() == [shape.flops(6, 35, 6)]
    assert together["flops"].sum() == apart["flops"].sum()
    assert together["weights"].iloc[0] == shape.weights(1) + 6 * 16 * 4
    assert apart["weights"].sum() - together["weights"].sum() == shape.weights(1)
    assert together["computed"].tolist() == [shape.flops(6, 2 * 3 * 7, 6)]


def test_costs_relative_to_a_baseline(traces):
    with pytest.raises(TraceError, match="no trace is called 'plain'"):
        metrics.relative_costs(traces, "plain")
    found = metrics.relative_costs(traces, "autoregressive").set_index("name")
    base, own = found.loc["autoregressive"], found.loc["bild"]
    assert base[["relative_flops", "relative_bytes", "relative_intensity", "speedup"]].tolist() == [1] * 4
    passes = metrics.pass_costs(traces["bild"])
    passes = passes[~passes["prefill"]]
    assert own["flops"] == pytest.approx(passes["flops"].sum() / metrics.output(traces["bild"]))
    assert own["relative_intensity"] == pytest.approx(own["relative_flops"] / own["relative_bytes"])
    summary = metrics.cost_summary(traces["bild"]).set_index(["part", "model"])
    both = summary.loc[("decode", "target"), "flops"] + summary.loc[("decode", "draft"), "flops"]
    assert summary.loc[("decode", "all"), "flops"] == both
    with pytest.raises(TraceError, match="different prompts"):
        metrics.relative_costs(traces | {"fewer": traces["bild"].select(prompt=0)}, "autoregressive")


def test_a_record_without_shapes_says_so(tmp_path):
    with pytest.raises(TraceError, match="shape of town"):
        metrics.pass_costs(build("autoregressive"))
    wrongs = ({}, SHAPE | {"layers": -1}, SHAPE | {"more": 1}, {**SHAPE, "encoder": {"layers": 1}}, "two")
    for i, wrong in enumerate(wrongs):
        with pytest.raises(TraceError, match=r"model\.shape"):
            build("autoregressive", path=tmp_path / f"{i}.parquet", model=TARGET | {"shape": wrong})


def test_ceilings():
    assert CEILINGS.bandwidth(20_000) == 50e9
    assert CEILINGS.bandwidth(5e6) == 20e9
    assert CEILINGS.seconds(1e9, 1e6, 5e6) == pytest.approx(0.01), "computing is slower"
    assert CEILINGS.seconds(1e6, 1e9, 5e6) == pytest.approx(0.05), "moving is slower"


def test_pictures_show_what_the_tables_hold(traces):
    names = [*traces]
    ax = view.costs_figure(traces)
    table = metrics.relative_costs(traces, "autoregressive").set_index("name")
    tops = [bar.get_y() + bar.get_height() for bar in ax.patches]
    want = [table.loc[name, figure] for name in names[1:] for figure in FIGURES]
    assert tops == pytest.approx(want)
    assert f"bild: {table.loc['bild', 'relative_flops']:.2f} times its FLOPs" in view.costs_words(traces)


def test_a_run_cut_off_in_its_prefill_has_costs_and_none_per_token():
    recorder = Recorder(metadata("speculative", model=TARGET), piece=piece)
    recorder.add(
        {
            "cycle": 0,
            "prompt": 0,
            "start": 0.0,
            "duration": 0.5,
            "context": 9,
            "pass_model": ["target"],
            "pass_tokens": [8],
            "pass_start": [0.0],
            "pass_duration": [0.5],
        }
    )
    cut = recorder.close()
    table = metrics.cost_summary(cut)
    assert (table["flops"] > 0).all() and table["flops_per_token"].isna().all()
    both = metrics.relative_costs({"cut": cut, "whole": build("speculative", model=TARGET)}, "whole")
    assert both[["flops", "bytes", "intensity"]].isna().any(axis=1).tolist() == [True, False]
