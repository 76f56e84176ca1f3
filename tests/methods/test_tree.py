"""Verifying trees: the greedy rule against a walk by hand, and the sampling rule against the target's law."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.audit.law import _cut
from specviz.draft import ROOT, Draft
from specviz.methods import tree
from specviz.methods.sampling import Sampling

V = 4


@st.composite
def drafts(draw, most=9, judged=True):
    n = draw(st.integers(0, most))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    tokens = draw(st.lists(st.integers(0, V - 1), min_size=n, max_size=n))
    judge = draw(st.lists(st.booleans(), min_size=n, max_size=n)) if judged else [True] * n
    judge = [own and (p == ROOT or judge[p]) for own, p in zip(judge, parents)]  # judged nodes form a tree
    return Draft(np.array(tokens, np.int64), np.array(parents, np.int64), judge=np.array(judge, bool))


def by_hand(draft, best):
    """Algorithm 3 as published: keep all guesses that still agree, one token at a time."""
    text, alive = [], [ROOT]
    while True:
        token = best[1 + alive[0]]
        text.append(int(token))
        nodes = range(len(draft))
        alive = [
            i for i in nodes if draft.parents[i] in alive and draft.judge[i] and draft.tokens[i] == token
        ]
        if not alive:
            return text


@settings(max_examples=300, deadline=None)
@given(draft=drafts(), data=st.data())
def test_greedy_is_the_walk(draft, data):
    # The target's token depends only on the text, so nodes with the same text have the same answer.
    answer: dict[tuple, int] = {}
    best = []
    for node in range(-1, len(draft)):
        text = tuple(int(draft.tokens[i]) for i in draft.path(node))
        if text not in answer:
            answer[text] = data.draw(st.integers(0, V - 1))
        best.append(answer[text])
    verdict = tree.judge_greedy(draft, np.array(best))
    expected = by_hand(draft, best)
    assert [verdict.tokens[i] for i in verdict.path] + [verdict.token] == expected
    assert draft.path(verdict.path[-1]) == verdict.path if verdict.path else True
    for i, status in enumerate(verdict.status):
        on_path = draft.parents[i] == ROOT or draft.parents[i] in verdict.path
        assert (status == "accepted") == (i in verdict.path)
        if status == "rejected":
            assert on_path
            assert draft.judge[i]
            assert draft.tokens[i] != best[1 + draft.parents[i]]
        if not draft.judge[i]:
            assert status == "unjudged"
    last = verdict.path[-1] if verdict.path else ROOT
    refused = any(s == "rejected" and draft.parents[i] == last for i, s in enumerate(verdict.status))
    assert verdict.origin == ("plain" if not any(draft.judge) else "correction" if refused else "bonus")


def session(sampling, u, last):
    return SimpleNamespace(sampling=sampling, uniforms=lambda use, n: u[:n] if n != 1 or use == 1 else [last])


TREES = {
    "chain": ([1, 2, 0], [-1, 0, 1]),
    "siblings": ([2, 0, 1], [-1, -1, -1]),
    "siblings that repeat a token": ([2, 0, 2, 0], [-1, -1, -1, -1]),
    "one behind a repeated one": ([2, 2, 0, 1], [-1, -1, -1, -1]),
    "all there is, twice": ([0, 1, 2, 3, 3], [-1] * 5),
    "a tree": ([1, 3, 0, 2, 2], [-1, -1, 0, 0, 1]),
    "repeats with children": ([1, 1, 0, 2, 0], [-1, -1, 0, 1, 1]),
}


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=3), Sampling(1.3, top_p=0.8)])
@pytest.mark.parametrize("shape", TREES)
def test_sampling_keeps_the_law(shape, sampling):
    """The law of the next token, summed over all cells of the uniforms.

    A decision or the final draw changes at finitely many places of its uniform. These are located, so the
    volumes of the cells between them are exact.
    """
    tokens, parents = TREES[shape]
    draft = Draft(np.array(tokens), np.array(parents))
    rng = np.random.default_rng(3)
    rows: dict[tuple, torch.Tensor] = {}

    def row(text):
        if text not in rows:
            rows[text] = torch.from_numpy(rng.normal(0, 1.5, V))
        return rows[text]

    texts = [tuple(tokens[i] for i in draft.path(node)) for node in range(-1, len(draft))]
    scores = torch.stack([row(text) for text in texts])
    law: dict[int, float] = {}
    cells = [({}, 1.0)]
    while cells:
        fixed, volume = cells.pop()

        def judged(more, last=0.5, fixed=fixed):
            u = np.full(len(tokens), 0.5)
            u[[*fixed, *more]] = [*fixed.values(), *more.values()]
            return tree.judge_sampled(draft, scores, sampling, u, last)[0]

        def first(last, judged=judged):
            verdict = judged({}, last)
            return int(verdict.tokens[verdict.path[0]] if verdict.path else verdict.token)

        if new := [i for i in np.flatnonzero(~np.isnan(judged({}).u)) if i not in fixed]:
            decisions = _cut(lambda u, i=new[0], judged=judged: judged({i: u}).status[i], np.array([]))
            cells += [({**fixed, new[0]: u}, volume * width) for u, width in decisions]
        else:
            for last, width in _cut(first, np.array([])):
                law[first(last)] = law.get(first(last), 0) + volume * width
    p = sampling.probabilities(scores[0]).numpy()
    assert np.allclose([law.get(token, 0) for token in range(V)], p, rtol=0, atol=1e-9)
    assert sum(law.values()) == pytest.approx(1)


@settings(max_examples=200, deadline=None)
@given(draft=drafts(), seed=st.integers(0, 10_000))
def test_sampled_decisions_can_be_repeated(draft, seed):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(0, 2, (len(draft) + 1, V))).float()
    u = rng.random(len(draft)).astype(np.float32).astype(np.float64)
    verdict, _ = tree.judge_sampled(draft, scores, Sampling(1.0), u, float(rng.random()))
    p = None if verdict.p is None else verdict.p.double().numpy()
    for i in np.flatnonzero(~np.isnan(verdict.u)):
        accepted = verdict.u[i] * float(verdict.q[i]) < p[i]
        assert verdict.status[i] == ("accepted" if accepted else "rejected")
    last = verdict.path[-1] if verdict.path else ROOT
    refused = {
        verdict.tokens[i]
        for i, s in enumerate(verdict.status)
        if s == "rejected" and draft.parents[i] == last
    }
    assert verdict.token not in refused
    for i, status in enumerate(verdict.status):
        if status != "unjudged":
            assert draft.parents[i] in (ROOT, *verdict.path)


@pytest.mark.parametrize("kinds", [(torch.int64,), (torch.float32, torch.int64, torch.float64)])
def test_bringing_keeps_values_and_shapes(kinds):
    given_ = [torch.arange(6).reshape(2, 3).to(kind) for kind in kinds]
    for found, tensor in zip(tree.bring(*given_), given_):
        assert found.shape == tuple(tensor.shape)
        assert found.tolist() == tensor.tolist()
