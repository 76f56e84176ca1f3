"""The drafter's confidence against the verdicts: counted by hand, and against scikit-learn."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import traces
from specviz import metrics
from specviz.errors import ParameterError
from specviz.metrics.signals import SIGNALS
from specviz.trace import Trace


@pytest.mark.parametrize("seed", range(6))
def test_the_area_is_scikit_learn_s_ties_and_all(seed):
    roc = pytest.importorskip("sklearn.metrics").roc_auc_score
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 8, 200) / 8  # many ties
    right = rng.random(200) < 0.2 + 0.6 * score
    group = rng.integers(0, 12, 200)
    found = metrics.area_under_roc(score, right, group, resamples=300)
    assert found.median == pytest.approx(roc(right, score), abs=1e-12)
    assert found.pairs == 12 and found.low < found.median < found.high
    # the bootstrap is the plain one: items of the drawn groups, one after another
    times = np.random.default_rng(0).multinomial(12, np.full(12, 1 / 12), 300)
    drawn = [np.concatenate([np.flatnonzero(group == g) for g in np.repeat(np.arange(12), t)]) for t in times]
    areas = [roc(right[rows], score[rows]) for rows in drawn]
    assert np.allclose(np.quantile(areas, (0.025, 0.975)), (found.low, found.high), atol=1e-12)


def test_an_area_without_both_outcomes_is_none():
    assert np.isnan(metrics.area_under_roc([0.1, 0.9], [True, True]).median)
    assert metrics.area_under_roc([1, 2], [False, True]).median == 1
    assert np.isnan(metrics.area_under_roc([1, 2], [False, True]).low), "of two no interval"


@pytest.fixture(scope="module")
def trace():
    return traces.build("cm_asd", prompts=12, tokens=60, seed=3, hostile=False)


def test_only_judged_nodes_count(trace):
    nodes, table = trace.nodes, metrics.signals(trace)
    judged = nodes[nodes["status"].isin(["accepted", "rejected"])]
    assert len(table) == len(judged) < len(nodes)
    assert {"unsent", "unjudged"} <= set(nodes["status"])
    assert table["accepted"].sum() == (judged["status"] == "accepted").sum()
    assert np.array_equal(table["first"], judged["rank"] == 0)


def test_the_ensemble_is_the_recorded_one(trace):
    table = metrics.signals(trace)
    assert np.allclose(table["ensemble"], table["score"], atol=1e-6), "equal weights over the complement"
    one = metrics.signals(trace, weights=(0, 1, 0))
    assert np.allclose(one["ensemble"], table["logit_margin"])
    sharp = metrics.signals(trace, margin_scale=3.0)["logit_margin"]
    judged = trace.nodes[trace.nodes["status"].isin(["accepted", "rejected"])]
    assert np.allclose(sharp, 1 / (1 + np.exp(-3 * judged["logit_margin"])), atol=1e-6)
    size = len(traces.PIECES)
    assert np.allclose(table["softmax_margin"], (judged["margin"] / (1 - 1 / size)).clip(upper=1), atol=1e-6)
    written = metrics.signals(trace, entropy="as_written")
    assert np.allclose(written["entropy"], judged["entropy"] / np.log(size), atol=1e-6)
    assert np.allclose(written["entropy"], 1 - table["entropy"])
    assert np.allclose(metrics.signals(trace, (0, 0, 0, 1))["ensemble"], table["variance"])


def test_a_logit_margin_follows_from_two_probabilities():
    trace = traces.build("speculative", prompts=3, tokens=40, hostile=False)
    table = metrics.signals(trace)
    tops = trace.tops("node").pivot_table(index=["prompt", "cycle", "node"], columns="place", values="p")
    both = table.merge(tops.reset_index(), on=["prompt", "cycle", "node"])
    assert len(both) == len(table) and (table["logit_margin"] < 1).all()
    assert np.allclose(both["logit_margin"], both[0] / (both[0] + both[1]), atol=1e-6)  # σ(ln p₁ − ln p₂)


def test_without_a_vocabulary_the_entropy_is_unknown():
    trace = traces.build("speculative", prompts=2, tokens=30, draft={"name": "d", "parameters": 1})
    table = metrics.signals(trace)
    assert table[["entropy", "ensemble"]].isna().all().all()
    assert "entropy" not in set(metrics.auroc(table)["signal"])
    assert metrics.signals(trace, vocabulary=64)["entropy"].notna().all()


def test_a_calibration_curve_counts_each_node_once(trace):
    table = metrics.signals(trace)
    curve = metrics.calibration_curve(table, bins=5)
    for name, rows in curve.groupby("signal"):
        assert rows["counted"].sum() == len(table) and rows["right"].sum() == table["accepted"].sum()
        for row in rows.itertuples():
            inside = table[name].between(row.low, row.high, inclusive="left") | (
                (row.high == 1) & (table[name] >= 1)
            )
            assert row.counted == inside.sum() and row.right == table["accepted"][inside].sum()
            assert row.mean == pytest.approx(table[name][inside].mean())
            assert row.rate_lo < row.rate < row.rate_hi or row.rate in (0, 1)
    first = metrics.calibration_curve(table, outcome="first")
    assert first[first["signal"] == "score"]["right"].sum() == table["first"].sum() < table["accepted"].sum()


def test_what_predicts_and_what_does_not(trace):
    table = metrics.signals(trace)
    table["variance"] = np.random.default_rng(0).random(len(table))
    rated = metrics.auroc(table).set_index("signal")
    assert rated.loc["ensemble", "low"] > 0.5 > rated.loc["variance", "low"]
    assert rated.loc["variance", "gain_hi"] < 0 and rated.loc["ensemble", "gain"] == 0
    assert set(rated.index) == set(SIGNALS)
    table["score"] = table["accepted"]
    assert metrics.auroc(table).iloc[0][["signal", "auroc", "ece"]].tolist() == ["score", 1.0, 0.0]
    table["score"] = np.inf
    assert set(metrics.auroc(table)["signal"]) == {*SIGNALS} - {"score"}


def test_texts_of_separate_runs_are_drawn_separately():
    stores = [traces.build("cm_asd", seed=seed, tokens=60, hostile=False)._stores[0] for seed in range(12)]
    for store in stores:
        store.run["prompts"][0]["tokens"] = [1]
    repeated = metrics.auroc(metrics.signals(Trace(stores)))
    assert set(repeated["prompts"]) == {1}, "all have one prompt"
    tokens = copy.deepcopy(stores)
    for number, (one, two) in enumerate(zip(stores, tokens)):
        one.run["prompts"][0]["id"] = f"q{number}"
        two.run["prompts"][0]["tokens"] = [number + 1]  # another suite's prompt of the same id
    assert set(metrics.auroc(metrics.signals(Trace(tokens)))["prompts"]) == {12}
    for trace in (Trace(stores), Trace(stores).redact()):
        rated = metrics.auroc(metrics.signals(trace))
        assert set(rated["prompts"]) == {12} and rated["low"].notna().all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"weights": (0.5, 0.2, 0.2)}, "sum to 1"), ({"weights": (1.5, -0.5, 0)}, "sum to 1"),
     ({"margin_scale": 0}, "margin_scale"), ({"vocabulary": 1}, "vocabulary")],
)  # fmt: skip
def test_what_no_signal_is_made_of(trace, wrong, said):
    with pytest.raises(ParameterError, match=said):
        metrics.signals(trace, **wrong)


def test_what_is_asked_for_must_be_there(trace):
    table = metrics.signals(trace)
    with pytest.raises(ParameterError, match="outcome"):
        metrics.calibration_curve(table, outcome="right")
    with pytest.raises(ParameterError, match=r"among must be a list of .*ensemble.*, not \['hunch'\]"):
        metrics.calibration_curve(table, among=["hunch"])
    with pytest.raises(ParameterError, match="than"):
        metrics.auroc(table, than="hunch")
