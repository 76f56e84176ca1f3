"""SpecDec against its two acceptance conditions, and the record of its decisions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import validate
from tiny import TableModel, llama

import specviz
from specviz import metrics
from specviz.draft import Draft
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import find, gap
from specviz.methods.sampling import Sampling
from specviz.methods.specdec import SpecDec

LARGE = TableModel(vocabulary=6, seed=1, name="large")
SMALL = TableModel(6, 3, near=LARGE, mix=0.6, name="small")
POOR = TableModel(6, 2, name="poor")
SHORT = TableModel(6, 3, near=LARGE, mix=0.8, name="short", max_length=14)


def passes(logits, token, tau, beta):
    """The two conditions, in log-probabilities."""
    logp = logits - math.log(np.exp(logits).sum())
    order = np.sort(logp)[::-1]
    return logp[token] >= order[min(beta, len(order)) - 1] and order[0] - logp[token] <= tau


def by_hand(large, small, prompt, k, beta, tau, limit, eos):
    """SpecDec with every pass recomputed."""
    y, start = list(prompt), len(prompt)
    while len(y) - start < limit:
        n = max(0, min(k, limit - (len(y) - start) - 1, small.max_length - len(y)))
        block = []
        for _ in range(n):
            block.append(int(small.logits(y + block).argmax()))
        emitted = []
        for token in block:
            row = large.logits(y + emitted).numpy()
            if not passes(row, token, tau, beta):
                break
            emitted.append(token)
        emitted.append(int(large.logits(y + emitted).argmax()))
        for token in emitted:
            y.append(token)
            if token in eos:
                return y[start:]
    return y[start:]


def text(cycles):
    return [t for cycle in cycles for t in cycle.tokens]


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    small=st.sampled_from([SMALL, POOR, LARGE, SHORT]),
    k=st.integers(1, 10),
    beta=st.integers(1, 7),
    tau=st.sampled_from([0.0, 0.3, 1.0, 2.5, 50.0]),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, 5), max_size=2),
)
def test_it_is_the_two_conditions(prompt, small, k, beta, tau, limit, eos):
    method = SpecDec(draft_length=k, top_beta=beta, tau_base=tau)
    found = text(decode(LARGE, prompt, method, drafter=small, max_new_tokens=limit, eos=eos))
    assert found == by_hand(LARGE, small, prompt, k, beta, tau, limit, eos)
    assert len(found) <= limit


@pytest.mark.parametrize("strict", [{"top_beta": 1}, {"tau_base": 0}, {"top_beta": 1, "tau_base": 0}])
@pytest.mark.parametrize("small", [SMALL, POOR, SHORT])
def test_either_strict_limit_gives_the_targets_own_text(strict, small):
    for first in range(6):
        own = text(decode(LARGE, [first, 2], find("autoregressive")(), max_new_tokens=25))
        method = SpecDec(**strict)
        assert text(decode(LARGE, [first, 2], method, drafter=small, max_new_tokens=25)) == own
        assert method.exactness(Sampling(), "float32") == "exact up to ties"


def test_labels():
    assert SpecDec().exactness(Sampling(), "float32") == "lossy"
    assert SpecDec(**SpecDec.exact).exactness(Sampling(), "float32") == "exact up to ties"
    assert SpecDec(**SpecDec.exact).exactness(Sampling(1.0), "float32") == "lossy"


def test_tokens_that_tie_at_the_top_pass():
    """p(y) ≥ p(y1) holds for every tied token, although argmax returns the first."""
    scores = torch.tensor([[1.0, 3.0, 3.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    for token, kept in ((1, [0]), (2, [0]), (0, [])):
        verdict = gap.verify_gap(Draft.chain(np.array([token])), scores, 0.0, 1)
        assert verdict.path == kept
        assert verdict.token == 1


def test_ranks_and_gaps():
    torch.manual_seed(0)
    scores = torch.randn(6, 9)
    tokens = torch.tensor([3, 0, 8, 2, 2])
    logp = scores.double().log_softmax(-1).numpy()
    here = logp[np.arange(5), tokens]
    np.testing.assert_allclose(gap.gaps(scores, scores.argmax(-1), tokens), logp[:5].max(1) - here, atol=1e-6)
    for beta in range(1, 10):
        least = np.sort(logp[:5])[:, ::-1][:, beta - 1]
        assert (gap.ranks(scores, tokens) < beta).tolist() == (here >= least).tolist()


@pytest.fixture(scope="module")
def pair():
    large = llama(seed=0, eos=(1,), name="large")
    return large, llama(seed=5, eos=(1,), like=large, noise=0.15, name="small")


def test_the_record_repeats_each_decision(pair):
    large, small = pair
    trace = specviz.generate(
        large, [[3, 4], [5, 6], [7]], "specdec", draft=small, max_new_tokens=40, tau_base=0.5, draft_length=5
    )
    validate(trace)
    table, nodes = metrics.recheck(trace), trace.nodes
    assert set(table["rule"]) == {"gap"} and table["agrees"].all()
    judged = nodes["status"].isin(["accepted", "rejected"])
    assert len(table) == judged.sum() > 10
    assert {"accepted", "rejected", "unjudged"} <= set(nodes["status"])
    assert (nodes["gap"].notna() == (judged | (nodes["status"] == "cut"))).all()
    assert (nodes["threshold"] == 0.5).all()
    assert nodes[["logit_margin", "variance", "entropy", "margin"]].notna().all(axis=None)
    assert ((nodes["gap"] > 0) & (nodes["status"] == "accepted")).any()  # so the method is lossy here
    wrong = nodes[judged].copy()
    own = (nodes["p"] < 1) & (nodes["status"] == "rejected")
    assert (wrong["rank"][own[judged]] > 0).all()


@pytest.mark.parametrize(
    "bad",
    [{"tau_base": -0.1}, {"top_beta": 0}, {"draft_length": 0}, {"draft_length": 65}, {"tau_base": math.nan}],
)
def test_out_of_range(bad):
    with pytest.raises(ParameterError, match=next(iter(bad))):
        SpecDec(**bad)


@pytest.mark.parametrize("name", ["specdec", "cm_asd", "oracle"])
def test_sampling_is_refused_before_work(name, tmp_path):
    with pytest.raises(ParameterError, match="greedily"):
        specviz.generate(LARGE, [1], name, draft=SMALL, temperature=0.5, out=tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())


def differing():
    """Count the prompts, of six, whose text differs from the one by hand."""
    policy = {"draft_length": 4, "top_beta": 2, "tau_base": 0.8}
    found = [
        text(decode(LARGE, [first, 2], SpecDec(**policy), drafter=SMALL, max_new_tokens=25))
        for first in range(6)
    ]
    right = [by_hand(LARGE, SMALL, [first, 2], 4, 2, 0.8, 25, ()) for first in range(6)]
    return sum(a != b for a, b in zip(found, right))


def test_the_unbroken_rule_differs_nowhere():
    assert differing() == 0


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("gaps", lambda scores, best, tokens, old=gap.gaps: -old(scores, best, tokens)),
        ("gaps", lambda scores, best, tokens, old=gap.gaps: old(scores[1:], best[1:], tokens)),
        ("gaps", lambda scores, best, tokens, old=gap.gaps: 0.5 * old(scores, best, tokens)),
        ("ranks", lambda scores, tokens, old=gap.ranks: old(scores, tokens) - 1),
        ("ranks", lambda scores, tokens, old=gap.ranks: old(scores, tokens) + 1),
    ],
)
def test_a_broken_rule_is_noticed(monkeypatch, name, broken):
    monkeypatch.setattr(gap, name, broken)
    assert differing()
