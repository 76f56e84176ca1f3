"""Confidence signals against their definitions, and against those recomputed from the record."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specviz.loop import predictions
from specviz.loop.predictions import Predictions
from specviz.methods import signals
from specviz.models.layers import over_all


@pytest.fixture
def logits():
    torch.manual_seed(0)
    return torch.randn(7, 50, dtype=torch.float64) * 3


def test_definitions(logits):
    p = logits.softmax(-1).numpy()
    best = np.sort(p)[:, ::-1]
    entropy = -(p * np.log(p)).sum(-1)
    for found, expected in (
        (signals.confidence(logits), best[:, 0]),
        (signals.margin(logits), best[:, 0] - best[:, 1]),
        (signals.entropy(logits), entropy),
        (signals.entropy_share(logits), entropy / math.log(50)),
        (signals.entropy_complement(logits), 1 - entropy / math.log(50)),
        (signals.softmax_margin(logits), (best[:, 0] - best[:, 1]) / (1 - 1 / 50)),
        (signals.logit_margin(logits), np.diff(np.sort(logits.numpy()))[:, -1]),
        (signals.logit_margin_sigmoid(logits, 0.3), 1 / (1 + np.exp(-0.3 * np.log(best[:, 0] / best[:, 1])))),
        (signals.variance(logits), logits.numpy().var(-1)),
        (signals.variance_share(logits), 1 / (1 + 2 * math.log(50) / logits.numpy().var(-1))),
    ):
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_extremes():
    flat, sure = torch.zeros(4), torch.tensor([0.0, -math.inf, -math.inf, -math.inf])
    assert signals.confidence(flat).item() == pytest.approx(0.25)
    assert signals.entropy_complement(flat).item() == pytest.approx(0)
    assert signals.margin(flat).item() == signals.variance_share(flat).item() == 0
    assert signals.entropy_share(flat).item() == 1
    assert signals.logit_margin_sigmoid(flat).item() == 0.5  # not 0: a margin is never negative
    for signal in (signals.confidence, signals.entropy_complement, signals.margin, signals.softmax_margin):
        assert signal(sure).item() == pytest.approx(1)
    assert signals.logit_margin_sigmoid(sure).item() == 1


WEIGHTS = [(1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0.1, 0.2, 0.3, 0.4), (1 / 3,) * 3 + (0,)]


@pytest.mark.parametrize("complement", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_ensemble_is_the_weighted_sum_of_the_signals(logits, weights, complement):
    first = signals.entropy_complement if complement else signals.entropy_share
    each = (
        first(logits),
        signals.logit_margin_sigmoid(logits, 0.7),
        signals.softmax_margin(logits),
        signals.variance_share(logits),
    )
    expected = sum(w * signal for w, signal in zip(weights, each))
    found = signals.ensemble(logits, weights, 0.7, complement)
    assert found.dtype == torch.float32 and found.shape == (7,)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(signals.ensemble(logits[2], weights, 0.7, complement), expected[2], atol=1e-6)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_ensemble_is_a_number_whatever_the_logits(weights):
    rows = torch.tensor(
        [
            [0.0] * 5,
            [0.0, 1e-9, 0, 0, 0],
            [400.0, -400, 0, 0, 0],
            [0.0, *[-math.inf] * 4],
            [1e4, 1e4, 0, 0, 0],
        ]
    )
    for complement in (True, False):
        found = signals.ensemble(rows, weights, 1.0, complement)
        assert ((found >= 0) & (found <= 1)).all()


def test_a_large_mean_does_not_swallow_the_variance(logits):
    shifted = (logits + 300).float()
    np.testing.assert_allclose(signals.variance(shifted), logits.numpy().var(-1), rtol=1e-3)


def test_the_record_reduces_to_the_same_numbers(logits):
    tokens = [3, 49, 0, 7, 12, 30, 30]
    work = Predictions(spread=True)
    work.add(logits[:4])
    work.add(list(logits[4:]))
    reduced = work.reduce(range(7), tokens)
    p = logits.softmax(-1)
    np.testing.assert_allclose(reduced.entropy, signals.entropy(logits), atol=1e-9)
    np.testing.assert_allclose(reduced.top_p[:, 0], signals.confidence(logits), atol=1e-9)
    np.testing.assert_allclose(reduced.top_p[:, 0] - reduced.top_p[:, 1], signals.margin(logits), atol=1e-9)
    np.testing.assert_allclose(reduced.lead, signals.logit_margin(logits), atol=1e-9)
    np.testing.assert_allclose(reduced.variance, signals.variance(logits), atol=1e-9)
    np.testing.assert_allclose(reduced.p, p[torch.arange(7), tokens])
    ranks = [(row > row[t]).sum().item() for row, t in zip(logits, tokens)]
    assert reduced.rank.tolist() == ranks
    assert reduced.top_token.tolist() == logits.topk(5).indices.tolist()
    assert work.reduce([], []) is None


@pytest.mark.parametrize("among", [True, False])  # whether all tokens that are looked up are in the head
def test_rows_of_a_small_head_are_reduced_over_it(among, monkeypatch):
    few = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)) * 3
    ids = torch.arange(100, 180, 2)
    tokens = ids[[3, 0, 39, 7, 7, 12]].tolist()
    alone, wide = Predictions(spread=True), Predictions(spread=True)
    alone.add(few)
    wanted = alone.reduce(range(6), [3, 0, 39, 7, 7, 12])
    wide.add(list(over_all(few, ids, 500)))
    widths, real = [], predictions.top
    monkeypatch.setattr(predictions, "top", lambda rows, k: (widths.append(rows.shape[1]), real(rows, k))[1])
    found = wide.reduce([*range(6)] + [2] * (not among), tokens + [101] * (not among))
    assert widths == [40 if among else 500]
    for name in ("entropy", "top_p", "lead", "variance"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-5, atol=1e-6)
    assert found.top_token.tolist() == ids[torch.from_numpy(wanted.top_token)].tolist()
    np.testing.assert_allclose(found.p[:6], wanted.p, rtol=1e-5)
    assert found.rank[:6].tolist() == wanted.rank.tolist()
    assert among or (found.p[6], found.rank[6]) == (0, 40)


def test_a_row_with_a_token_ruled_out_has_an_entropy(logits):
    logits[0, 5] = logits[2, 9] = -torch.inf
    work = Predictions()
    work.add(logits)
    np.testing.assert_allclose(work.reduce([], []).entropy, signals.entropy(logits), atol=1e-9)


def test_the_first_of_equals_stands_first():
    logits = torch.tensor(
        [[0.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0], [5.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    )
    work = Predictions()
    work.add(logits)
    reduced = work.reduce([0, 0], [7, 2])
    assert reduced.top_token[0, 0] == logits[0].argmax() == 1
    assert len(set(reduced.top_token[0].tolist())) == 5
    assert reduced.top_token[1, 0] == 0
    assert reduced.rank.tolist() == [0, 6]


@pytest.mark.parametrize("vocabulary", [40, 9001])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_ranked_begins_with_argmax_where_more_than_k_are_equal(vocabulary, k):
    logits = torch.zeros(3, vocabulary)
    logits[0, 7::3] = 4.0  # many ties
    logits[1, [30, 12]] = 4.0
    logits[2, 5] = 4.0
    tokens = signals.ranked(logits, k)
    assert tokens[:, 0].tolist() == logits.argmax(-1).tolist() == [7, 12, 5]
    assert all(len(set(row)) == k for row in tokens.tolist())


@pytest.mark.parametrize("k", [5, 64])
@pytest.mark.parametrize("vocabulary", [3, 100, 2100, 8192, 9001])
def test_top(vocabulary, k):
    torch.manual_seed(vocabulary)
    logits = torch.randn(6, vocabulary)
    values, places = signals.top(logits, k)
    expected = logits.topk(min(k, vocabulary))
    assert torch.equal(values, expected.values)
    assert torch.equal(logits.gather(1, places), values)


def test_a_head_over_a_part_of_the_vocabulary_is_rated_by_that_part():
    """|V| counts only the tokens in the drafter's vocabulary, in the run as in the recheck of its record."""
    few = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    whole = torch.full((3, 500), -torch.inf)
    whole[:, 100:140] = few
    assert signals.sayable(whole) == 40 and signals.sayable(few) == 40
    assert torch.allclose(signals.entropy_share(whole), signals.entropy_share(few))
    assert torch.allclose(signals.softmax_margin(whole), signals.softmax_margin(few))
    assert torch.allclose(signals.variance(whole), signals.variance(few))
    weights = (0.25, 0.25, 0.25, 0.25)
    assert torch.allclose(signals.ensemble(whole, weights), signals.ensemble(few, weights))
