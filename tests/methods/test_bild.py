"""BiLD against a literal transcription of Algorithm 1, and the record of its decisions."""

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
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import bild, find
from specviz.methods.bild import BiLD
from specviz.methods.draft_model import DraftModel
from specviz.methods.sampling import DRAFT, FINAL, Sampling, draw

LARGE = TableModel(vocabulary=6, seed=1, name="large")
SMALL = TableModel(6, 3, near=LARGE, mix=0.6, name="small")
POOR = TableModel(6, 2, name="poor")


def algorithm_1(large, small, prompt, fallback, rollback, cap, limit, eos, review_end, choose=None):
    """Algorithm 1 with every pass recomputed; `choose` picks a token from logits."""
    choose = choose or (lambda logits, *_: int(logits.argmax()))
    y, run, cycle, start = list(prompt), [], 1, len(prompt)

    def review():
        """Lines 9-16."""
        nonlocal y, run, cycle
        for m, token in enumerate(run):
            p = large.logits(y + run[:m])
            if -float(p.log_softmax(-1)[token]) > rollback:
                y, run = [*y, *run[:m], choose(p, cycle, FINAL, 0)], []
                break
        else:
            y, run = [*y, *run, choose(large.logits(y + run), cycle, FINAL, 0)], []
        cycle += 1

    def ended(text):
        return len(text) - start >= limit or (len(text) > start and text[-1] in eos)

    while not ended(y):
        longest = min(cap, limit - (len(y) - start) - review_end)
        while True:
            if len(run) == longest:
                break
            p = small.logits(y + run)
            if not float(p.softmax(-1).max()) > fallback:
                break
            run.append(choose(p, cycle, DRAFT, len(run)))
            if run[-1] in eos:
                break
        if not review_end and run and ended(y + run):
            y, run = y + run, []
        else:
            before = len(y)
            review()
            at = next((i for i, t in enumerate(y[before:], before) if t in eos), None)
            y = y[: at + 1] if at is not None else y
    return y[start:]


def run(method, prompt, small=SMALL, **rest):
    return list(decode(LARGE, prompt, method, drafter=small, **rest))


def text(cycles):
    return [t for cycle in cycles for t in cycle.tokens]


POLICY = {
    "prompt": st.lists(st.integers(0, 5), min_size=1, max_size=4),
    "small": st.sampled_from([SMALL, POOR, LARGE]),
    "fallback": st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9, 1.0]),
    "rollback": st.sampled_from([0.0, 0.3, 1.0, 2.0, 4.0, math.inf]),
    "cap": st.integers(1, 10),
    "limit": st.integers(1, 25),
    "eos": st.sets(st.integers(0, 5), max_size=2),
    "review_end": st.booleans(),
}


@settings(max_examples=200, deadline=None)
@given(**POLICY)
def test_it_is_algorithm_1(prompt, small, fallback, rollback, cap, limit, eos, review_end):
    method = BiLD(fallback=fallback, rollback=rollback, cap=cap, review_end=review_end)
    found = text(run(method, prompt, small, max_new_tokens=limit, eos=eos))
    assert found == algorithm_1(LARGE, small, prompt, fallback, rollback, cap, limit, eos, review_end)


@settings(max_examples=60, deadline=None)
@given(**POLICY, top_p=st.sampled_from([0.8, 1.0]))
def test_it_is_algorithm_1_with_sampling(
    prompt, small, fallback, rollback, cap, limit, eos, review_end, top_p
):
    sampling = Sampling(0.9, top_p=top_p)

    def uniforms(cycle, use, n):
        return np.random.default_rng([cycle, use]).random(n)

    def choose(logits, cycle, use, i):
        return int(draw(sampling.probabilities(logits), float(uniforms(cycle, use, i + 1)[i])))

    method = BiLD(fallback=fallback, rollback=rollback, cap=cap, review_end=review_end)
    rest = {"max_new_tokens": limit, "eos": eos, "sampling": sampling, "uniforms": uniforms}
    expected = algorithm_1(LARGE, small, prompt, fallback, rollback, cap, limit, eos, review_end, choose)
    assert text(run(method, prompt, small, **rest)) == expected


def test_no_probability_is_above_one_so_all_tokens_are_the_large_models():
    cycles = run(BiLD(fallback=1), [1, 2], max_new_tokens=12)
    expected = text(decode(LARGE, [1, 2], find("autoregressive")(), max_new_tokens=12))
    assert text(cycles) == expected
    assert [c.origins for c in cycles[1:]] == [["fallback"]] * 12
    assert all(len(c.draft) == 0 for c in cycles[1:])


def test_rollback_zero_is_the_large_models_own_text():
    expected = text(decode(LARGE, [1, 2], find("autoregressive")(), max_new_tokens=20))
    for fallback in (0, 0.5):
        cycles = run(BiLD(fallback=fallback, rollback=0, review_end=True), [1, 2], POOR, max_new_tokens=20)
        assert text(cycles) == expected
        # Only a token of probability 1 has distance 0, and none has it here, so every draft is rolled back.
        assert all(c.origins == ["correction"] for c in cycles[1:] if len(c.draft))


def test_never_falling_back_nor_rolling_back_leaves_the_cap():
    cycles = run(BiLD(fallback=0, rollback=math.inf, cap=4), [1, 2], max_new_tokens=15)
    assert [c.origins for c in cycles[1:]] == [["draft"] * 4 + ["fallback"]] * 3
    assert [c.draft.stop for c in cycles[1:]] == ["length"] * 3


def test_an_unreviewed_end_costs_no_pass():
    method = BiLD(fallback=0, rollback=math.inf, cap=10, review_end=False)
    *_, last = run(method, [1, 2], max_new_tokens=6)
    assert last.origins == last.status == ["unreviewed"] * 6  # the target did not verify it
    assert [name for name, *_ in last.passes] == ["draft"] * 6


def test_the_small_model_is_rewound_to_the_committed_text():
    small = TableModel(6, 3, near=LARGE, mix=0.6)
    for cycle in run(BiLD(fallback=0.4, rollback=1.0), [1, 2, 3], small, max_new_tokens=40):
        fed = [tokens for name, _, tokens, *_ in cycle.passes if name == "draft"]
        assert all(n <= 2 for n in fed[:1] if cycle.number)  # at most the last kept token and the correction
        assert all(n == 1 for n in fed[1:])


@pytest.mark.parametrize("name", ["fallback", "rollback"])
def test_zero_is_a_legal_threshold(name):
    assert BiLD(**{name: 0}).values[name] == 0


@pytest.mark.parametrize(
    "bad", [{"fallback": 1.01}, {"fallback": -0.1}, {"rollback": -1}, {"cap": 0}, {"cap": 2.5}]
)
def test_out_of_range(bad):
    with pytest.raises(ParameterError, match=next(iter(bad))):
        BiLD(**bad)


def test_labels():
    greedy = Sampling()
    assert BiLD().exactness(greedy, "float32") == "lossy"
    assert BiLD(fallback=1).exactness(greedy, "float32") == "exact"
    assert BiLD(rollback=0, review_end=True).exactness(greedy, "float32") == "exact up to ties"
    assert BiLD(rollback=0).exactness(greedy, "float32") == "lossy"


@pytest.fixture(scope="module")
def pair():
    large = llama(seed=0, eos=(1,), name="large")
    return large, llama(seed=5, eos=(1,), like=large, noise=0.15, name="small")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("record", ["judged", "all"])
def test_the_record_repeats_each_decision(pair, temperature, record):
    large, small = pair
    options = {"draft": small, "max_new_tokens": 40, "fallback": 0.35, "rollback": 2.0}
    options |= {"top_p": 0.9} if temperature else {}
    options["review_end"] = True  # otherwise the last block is not verified
    trace = specviz.generate(
        large, [[3, 4], [5, 6]], "bild", temperature=temperature, record=record, **options
    )
    table = metrics.recheck(trace)
    assert table["agrees"].all()
    nodes = trace.nodes
    assert len(table) == nodes["status"].isin(["accepted", "rejected"]).sum() > 10
    assert {"accepted", "rejected", "unsent"} <= set(nodes["status"])
    # The fallback decisions agree as well: the small model continues only while it is sure.
    assert ((nodes["confidence"] > 0.35) == nodes["met"].astype(bool)).all()
    assert ((nodes["status"] == "unsent") == ~nodes["met"].astype(bool)).all()
    stops = trace.cycles.set_index(["prompt", "cycle"])["stop"]
    unsent = nodes[nodes["status"] == "unsent"].set_index(["prompt", "cycle"])
    assert (stops.loc[unsent.index] == "fallback").all()
    assert {"draft", "fallback", "correction"} <= set(trace.outputs["origin"])
    if record == "all":  # then every node that the target read has a p
        assert nodes.loc[nodes["status"] == "unjudged", "p"].notna().all()
    else:
        assert nodes.loc[nodes["status"] == "unjudged", "p"].isna().all()


def test_an_unreviewed_end_is_neither_accepted_nor_sent(pair):
    large, small = pair
    options = {"draft": small, "max_new_tokens": 30, "fallback": 0.0, "cap": 4}
    trace = specviz.generate(large, [[3, 4], [5, 6], [7]], "bild", rollback=3.0, **options)
    validate(trace)
    nodes, cycles = trace.nodes, trace.cycles
    ends = cycles[cycles["unreviewed"] > 0]
    assert len(ends) and (ends["end"].notna() & (ends["sent"] == 0) & (ends["accepted"] == 0)).all()
    assert (ends["emitted"] == ends["unreviewed"]).all()
    left = nodes[nodes["status"] == "unreviewed"]
    assert len(left) == ends["unreviewed"].sum()
    assert left["p"].isna().all() and left["confidence"].notna().all()
    assert nodes.loc[nodes["status"] == "accepted", "p"].notna().all()
    # A/D ignores the unreviewed last blocks.
    judged = cycles[cycles["unreviewed"] == 0]
    assert metrics.acceptance_rate(trace) == judged["accepted"].sum() / judged["sent"].sum()
    assert metrics.accepted(trace) == judged["accepted"].sum()


def differing():
    """Count the prompts, of six, whose text differs from Algorithm 1's."""
    policy = {"fallback": 0.45, "rollback": 1.5}
    found = [text(run(BiLD(**policy), [first, 2], max_new_tokens=25)) for first in range(6)]
    right = [algorithm_1(LARGE, SMALL, [first, 2], 0.45, 1.5, 10, 25, (), False) for first in range(6)]
    return sum(a != b for a, b in zip(found, right))


def test_unbroken_policies_differ_nowhere():
    assert differing() == 0


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("goes_on", lambda sure, fallback: sure > 0.9 * fallback),
        ("goes_on", lambda sure, fallback: sure < fallback),
        ("rolls_back", lambda distance, rollback: distance > 0.9 * rollback),
        ("rolls_back", lambda distance, rollback: distance < rollback),
        ("distances", lambda scores, tokens: -scores[1:].log_softmax(-1).gather(1, tokens[:, None])[:, 0]),
        ("distances", lambda scores, tokens: 1 - scores[:-1].softmax(-1).gather(1, tokens[:, None])[:, 0]),
        ("distances", lambda scores, tokens: torch.zeros(len(tokens))),
    ],
)
def test_algorithm_1_notices_a_broken_policy(monkeypatch, name, broken):
    monkeypatch.setattr(bild, name, broken)
    assert differing()


def test_a_rollback_that_keeps_the_token_is_noticed(monkeypatch):
    """The small model's cache must drop the token that was rolled back."""

    def follow(self, kept, token):
        self.length += kept + 1
        self.context.rewind(min(self.length, self.context.length[0]))

    monkeypatch.setattr(DraftModel, "follow", follow)
    assert differing()
