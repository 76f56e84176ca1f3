"""Speculative decoding: the greedy text equals the target's own, and the sampled text follows its law."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TableModel, llama

import specviz
from specviz import audit, metrics
from specviz.draft import Draft
from specviz.loop import decode
from specviz.methods import find, speculative
from specviz.methods.sampling import ACCEPT, DRAFT, Sampling
from specviz.methods.speculative import Speculative, residual, verify_sampled

TARGET = TableModel(vocabulary=6, seed=1, name="target")
DRAFTERS = [TableModel(6, 2, name="poor"), TableModel(6, 3, near=TARGET, name="good"), TARGET]


def tokens(model, prompt, method, **rest):
    return [t for cycle in decode(model, prompt, method, **rest) for t in cycle.tokens]


@settings(max_examples=150, deadline=None)
@given(
    drafter=st.sampled_from(DRAFTERS),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    gamma=st.integers(1, 7),
    limit=st.integers(1, 30),
    eos=st.sets(st.integers(0, 5), max_size=3),
)
def test_greedy_equals_autoregressive(drafter, prompt, gamma, limit, eos):
    rest = {"max_new_tokens": limit, "eos": eos}
    expected = tokens(TARGET, prompt, find("autoregressive")(), **rest)
    cycles = list(decode(TARGET, prompt, Speculative(draft_length=gamma), drafter=drafter, **rest))
    found = [t for cycle in cycles for t in cycle.tokens]
    assert found == expected
    assert len(found) <= limit
    assert not eos.intersection(found[:-1])  # an end token anywhere in a block ends the text
    assert cycles[-1].end == ("eos" if found[-1] in eos else "length")
    assert [c.end for c in cycles[:-1]] == [None] * (len(cycles) - 1)
    for cycle in cycles[1:]:
        assert len(cycle.draft) <= min(gamma, limit - cycle.keep - 1)
        accepted = cycle.status.count("accepted")
        assert cycle.origins[:accepted] == ["draft"] * accepted
        if cycle.end is None:  # emitted = accepted + 1, and the last token is the target's own
            assert len(cycle.tokens) == accepted + 1
            assert cycle.origins[-1] in ("bonus" if accepted == len(cycle.draft) else "correction", "plain")


@pytest.fixture(scope="module")
def pair():
    target = llama(seed=0, layers=2, eos=(1, 7), name="target")
    return target, llama(seed=5, layers=2, eos=(1, 7), like=target, noise=0.15, name="drafter")


@pytest.mark.parametrize("gamma", [1, 3, 6])
def test_greedy_on_a_real_network(pair, gamma):
    target, drafter = pair
    kept = 0
    for first in range(2, 7):
        prompt = [first, 5, 9, first]
        expected = specviz.generate(target, prompt, "autoregressive", max_new_tokens=24)
        found = specviz.generate(target, prompt, draft=drafter, max_new_tokens=24, draft_length=gamma)
        assert found.outputs["token"].tolist() == expected.outputs["token"].tolist()
        assert metrics.recheck(found)["agrees"].all()
        kept += metrics.accepted(found)
    assert kept > 10  # the drafter is good enough for this test to be meaningful


def test_a_drafter_that_is_the_target_is_always_right():
    cycles = list(decode(TARGET, [1, 2], Speculative(draft_length=4), drafter=TARGET, max_new_tokens=25))
    assert [c.origins for c in cycles[1:]] == [["draft"] * 4 + ["bonus"]] * 5


def test_the_drafter_computes_each_token_once():
    drafter = TableModel(6, 3, near=TARGET)
    cycles = list(decode(TARGET, [1, 2, 3], Speculative(draft_length=4), drafter=drafter, max_new_tokens=20))
    fed = [[tokens for name, _, tokens, *_ in c.passes if name == "draft"] for c in cycles]
    assert fed[0] == [2]  # the prompt without its last token
    for before, cycle, passes in zip(cycles, cycles[1:], fed[1:]):
        # After a fully accepted block, its last token is still to be read, followed by the bonus token.
        whole = before.number and len(before.tokens) == len(before.draft) + 1
        first = 2 if whole and len(before.draft) else 1
        assert passes == [first, *[1] * (len(cycle.draft) - 1)][: len(cycle.draft)]


def test_end_token_in_the_middle_of_a_block():
    text = tokens(TARGET, [1, 2], find("autoregressive")(), max_new_tokens=8)
    at = next(i for i, t in enumerate(text) if i and t not in text[:i])  # first occurs within the first block
    *_, last = decode(
        TARGET, [1, 2], Speculative(draft_length=7), drafter=TARGET, max_new_tokens=30, eos=[text[at]]
    )
    assert last.tokens == text[: at + 1]
    assert last.end == "eos"
    assert last.status == ["accepted"] * (at + 1) + ["cut"] * (6 - at)
    assert last.origins == ["draft"] * (at + 1)


def test_a_full_context_ends_the_text():
    small = TableModel(6, 1, max_length=12)
    *_, last = decode(small, [1, 2, 3], Speculative(), drafter=TARGET, max_new_tokens=50)
    assert last.end == "context"
    assert last.context + len(last.tokens) == 12


def test_a_drafter_with_a_shorter_context_stops_drafting():
    short = TableModel(6, 1, max_length=9)
    expected = tokens(TARGET, [1, 2, 3], find("autoregressive")(), max_new_tokens=20)
    cycles = list(decode(TARGET, [1, 2, 3], Speculative(), drafter=short, max_new_tokens=20))
    assert [t for c in cycles for t in c.tokens] == expected
    assert cycles[-1].draft.stop == "room"
    assert cycles[-1].origins == ["plain"]


# -- the law of sampling, by enumerating all outcomes ---------------------------------------------


def cells(points):
    """Midpoints and widths of the intervals into which `points` cut [0, 1]."""
    edges = np.unique(np.clip([0.0, 1.0, *points], 0, 1))
    middles, widths = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
    return [(u, w) for u, w in zip(middles, widths) if w > 1e-13]  # narrower ones are rounding errors


def law_of_cycle(target, drafter, text, gamma, sampling, verify=verify_sampled):
    """Probability of each block of tokens that one cycle can emit after `text`.

    The verifier is a step function of its uniforms. Its steps are at computable points, so it runs once in
    each cell, and the cell's volume is the probability of that outcome.
    """
    law: dict[tuple, float] = {}
    for drafted in itertools.product(range(target.vocabulary), repeat=gamma):
        q = torch.stack([sampling.probabilities(drafter.logits(text + drafted[:i])) for i in range(gamma)])
        chance = float(torch.prod(q[torch.arange(gamma), torch.tensor(drafted)]))
        if chance == 0:
            continue
        p = torch.stack([sampling.probabilities(target.logits(text + drafted[:i])) for i in range(gamma + 1)])
        draft = Draft.chain(torch.tensor(drafted), q=q)
        ratios = [float(p[i, t] / q[i, t]) for i, t in enumerate(drafted)]
        sums = [x for row in p for x in row.cumsum(0).tolist()]
        for i in range(gamma):
            rest = (p[i] - q[i]).clamp(min=0)
            sums += (rest.cumsum(0) / rest.sum().clamp(min=1e-300)).tolist()
        for last, width in cells(sums):
            for accepts in itertools.product(*(cells([r]) for r in ratios)):
                verdict = verify(draft, p, np.array([u for u, _ in accepts]), last)
                block = (*[drafted[i] for i in verdict.path], verdict.token)
                weight = chance * width * np.prod([w for _, w in accepts])
                law[block] = law.get(block, 0) + weight
    return law


def law_of_texts(target, drafter, length, gamma, sampling, verify=verify_sampled):
    """Probability of each text of `length` tokens, over several cycles."""
    done: dict[tuple, float] = {}
    open_texts = {(): 1.0}
    while open_texts:
        text, chance = open_texts.popitem()
        for block, weight in law_of_cycle(target, drafter, text, gamma, sampling, verify).items():
            longer = (*text, *block)[:length]
            place = done if len(longer) == length else open_texts
            place[longer] = place.get(longer, 0) + chance * weight
    return done


def law_of_target(target, length, sampling):
    law = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, t): chance * p
            for text, chance in law.items()
            for t, p in enumerate(sampling.probabilities(target.logits(text)).tolist())
        }
    return law


def distance(found, expected):
    return max(abs(found.get(text, 0) - expected.get(text, 0)) for text in {*found, *expected})


@pytest.mark.parametrize("gamma", [1, 2])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0), Sampling(0.7, top_k=2), Sampling(1.3, top_p=0.8)],
    ids=["plain", "top-k", "top-p"],
)
def test_the_law_of_sampling_is_the_targets(gamma, sampling):
    target = TableModel(3, 11)
    drafter = TableModel(3, 12, near=target, mix=0.5)
    found = law_of_texts(target, drafter, 3, gamma, sampling)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert distance(found, law_of_target(target, 3, sampling)) < 1e-9


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("residual", lambda p, q: p),
        ("residual", lambda p, q: (p - q).abs()),
        ("accepts", lambda p, q, u: u < p),
        ("accepts", lambda p, q, u: u < 1 - p),
        ("after", lambda p, q, kept: residual(p[0], q[0])),
        ("after", lambda p, q, kept: residual(p[kept], q[kept - 1])),
    ],
)
def test_the_law_test_can_fail(monkeypatch, name, broken):
    target, sampling = TableModel(3, 11), Sampling(1.0)
    drafter = TableModel(3, 12, near=target, mix=0.5)
    monkeypatch.setattr(speculative, name, broken)
    assert distance(law_of_texts(target, drafter, 2, 1, sampling), law_of_target(target, 2, sampling)) > 1e-3


def test_an_untempered_q_breaks_the_law(monkeypatch):
    """The law holds only if q is the distribution drawn from; the enumeration detects any other q."""
    target, sampling = TableModel(3, 11), Sampling(0.5)
    drafter = TableModel(3, 12, near=target, mix=0.5)

    def untempered(draft, p, u, last):
        logits = torch.stack([drafter.logits(tuple(draft.tokens[:i].tolist())) for i in range(len(draft))])
        return verify_sampled(Draft.chain(draft.tokens, q=logits.softmax(-1)), p, u, last)

    found = law_of_texts(target, drafter, 2, 1, sampling, untempered)
    assert distance(found, law_of_target(target, 2, sampling)) > 1e-3


def test_the_loop_draws_from_the_recorded_distributions():
    """In the running loop, q is the warped distribution at the drafted position and u decides as recorded."""
    drafter, sampling = DRAFTERS[1], Sampling(0.8, top_k=4, top_p=0.9)
    given_u = {}

    def uniforms(cycle, use, n):
        given_u[cycle, use] = u = np.random.default_rng([cycle, use]).random(n)
        return u

    seen = 0
    rest = {"sampling": sampling, "max_new_tokens": 40, "uniforms": uniforms}
    text = [1, 2, 3]
    for cycle in decode(TARGET, [1, 2, 3], Speculative(draft_length=3), drafter=drafter, **rest):
        if not cycle.number:
            continue
        drafted = [int(t) for t in cycle.draft.tokens]
        for i, token in enumerate(drafted):
            q = sampling.probabilities(drafter.logits(text + drafted[:i]))
            p = sampling.probabilities(TARGET.logits(text + drafted[:i]))
            assert torch.equal(cycle.draft.q[i], q)
            assert token == int(torch.searchsorted(q.cumsum(0), given_u[cycle.number, DRAFT][i], right=True))
            if cycle.status[i] == "unjudged" or cycle.end:
                continue
            kept = given_u[cycle.number, ACCEPT][i] < float(p[token] / q[token])
            assert kept == (cycle.status[i] == "accepted")
            seen += 1
        text += cycle.tokens
    assert seen > 20


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_recorded_decisions_can_be_decided_again(pair, temperature):
    target, drafter = pair
    trace = specviz.generate(
        target,
        [[3, 4], [5, 6, 7]],
        draft=drafter,
        max_new_tokens=40,
        temperature=temperature,
        top_p=0.95 if temperature else 1.0,
    )
    table = metrics.recheck(trace)
    assert len(table) > 20
    assert table["agrees"].all()
    assert {"accepted", "rejected"} <= set(table["status"])


def test_the_same_seed_gives_the_same_text(pair):
    target, drafter = pair

    def text(seed, prompts, at=0):
        trace = specviz.generate(
            target, prompts, draft=drafter, max_new_tokens=30, temperature=1.0, seed=seed
        )
        return trace.outputs.query(f"prompt == {at}")["token"].tolist()

    assert text(3, [[5, 6]]) == text(3, [[5, 6]])
    assert text(3, [[5, 6]]) != text(4, [[5, 6]])
    # The random numbers depend on the prompt's index, not on what was decoded before it.
    assert text(3, [[9], [5, 6]], 1) == text(3, [[8, 8], [5, 6]], 1)


# -- a draft model that stops when it is unsure -----------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    drafter=st.sampled_from(DRAFTERS),
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    gamma=st.integers(1, 7),
    stop=st.sampled_from([0.3, 0.5, 0.9, 1.0]),
    limit=st.integers(1, 30),
    eos=st.sets(st.integers(0, 5), max_size=3),
)
def test_it_stops_where_it_is_unsure(drafter, prompt, gamma, stop, limit, eos):
    rest = {"max_new_tokens": limit, "eos": eos}
    expected = tokens(TARGET, prompt, find("autoregressive")(), **rest)
    method = Speculative(draft_length=gamma, stop=stop)
    text = list(prompt)
    for cycle in decode(TARGET, prompt, method, drafter=drafter, **rest):
        if cycle.number:
            most, drafted = min(gamma, limit - cycle.keep - 1), []
            while len(drafted) < most and not (drafted and drafted[-1] in eos):
                p = drafter.logits(text + drafted).softmax(-1)
                if float(p.max()) < stop:
                    assert cycle.verdict.unsent.tokens == [int(p.argmax())]
                    assert cycle.draft.stop == "unsure" or not drafted
                    break
                drafted.append(int(p.argmax()))
            else:
                assert cycle.verdict.unsent is None
            assert [int(t) for t in cycle.draft.tokens] == drafted
        text += cycle.tokens
    assert text[len(prompt) :] == expected


def test_what_it_was_unsure_of_is_recorded(pair):
    target, drafter = pair
    trace = specviz.generate(target, [[3, 4], [5, 6, 7]], draft=drafter, max_new_tokens=40, stop=0.5)
    nodes = trace.nodes
    assert (nodes.loc[nodes["status"] == "unsent", "confidence"] < 0.5).all()
    assert (nodes.loc[nodes["status"] != "unsent", "confidence"] >= 0.5).all()
    assert (nodes["met"] == (nodes["status"] != "unsent")).all()
    assert {"unsent", "accepted"} <= set(nodes["status"])
    assert metrics.draft_passes(trace) == metrics.drafted(trace)
    assert metrics.recheck(trace)["agrees"].all()


@pytest.mark.parametrize("stop", [0.4, 0.6])
def test_the_law_of_sampling_holds_when_it_stops(stop):
    """Whether another token is drafted depends on the tokens before it, not on itself: the law of p holds."""
    for found in audit.law.check(lambda: Speculative(draft_length=2, stop=stop)):
        assert found.holds, found


def test_labels():
    assert Speculative().exactness(Sampling(), "float32") == "exact up to ties"
    assert Speculative().exactness(Sampling(0.7), "float32") == "exact in law"
    assert find("autoregressive")().exactness(Sampling(), "bfloat16") == "exact"


@pytest.mark.parametrize("more", [-16, 16])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}])
def test_heads_of_one_tokenizer_may_be_padded_differently(more, options):
    words = specviz.load("town").tokenizer
    target = specviz.load(llama(seed=0, vocabulary=len(words) + 32, eos=()).net, tokenizer=words)
    drafter = specviz.load(llama(seed=1, vocabulary=len(words) + 32 + more, eos=()).net, tokenizer=words)
    given = {"max_new_tokens": 12, "draft": drafter, **options}
    run = specviz.generate(target, [5, 6, 7], "speculative", **given)
    assert len(run.outputs) == 12 and run.run["dense"] is None
    if not options:
        assert run.texts == specviz.generate(target, [5, 6, 7], "autoregressive", max_new_tokens=12).texts


def test_an_array_of_probabilities_is_judged_as_a_tensor():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.rand(n, 9, generator=generator).softmax(-1) for n in (4, 3))
    u = np.array([0.1, 0.9, 0.4])
    one, other = (
        verify_sampled(Draft.chain(np.array([3, 5, 1]), q=each), p, u, 0.3) for each in (q, q.numpy())
    )
    assert (one.path, one.token, one.status) == (other.path, other.token, other.status)
