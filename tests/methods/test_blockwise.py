"""Blockwise decoding: the target's own text, and fewer passes the better the heads are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from identities import validate

import specviz
from specviz.errors import ModelError, ParameterError
from specviz.loop import decode
from specviz.methods import find

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import added

torch.set_num_threads(1)
PROMPTS = [[3, 1, 4, 2], [2], [0, 0, 1], [4, 3]]


class Foreseeing:
    """Heads that predict the target's text; the given state tells them the place."""

    kind = "heads"

    def __init__(self, model, prompt: list[int], text: list[int], wrong: int = 99) -> None:
        self.states = added.states(model, prompt, text)
        self.text, self.wrong = text, wrong
        self.asked: list[tuple[int, int]] = []

    def guesses(self, state, n: int):
        (place,) = ((self.states - state).abs().amax(1) < 1e-4).nonzero()[:, 0].tolist()
        self.asked.append((place, n))
        scores = torch.zeros(n, added.VOCABULARY)
        for i, token in enumerate(self.text[place + 1 :][:n]):  # text[place] is the target's own next token
            scores[i, (token + (i >= self.wrong)) % added.VOCABULARY] = 9.0
        return scores


def greedy(model, prompt, limit, eos=()):
    cycles = decode(model, prompt, find("autoregressive")(), max_new_tokens=limit, eos=eos)
    return [t for c in cycles for t in c.tokens]


def blockwise(model, drafter, prompt, limit, k, eos=()):
    method = find("blockwise")(k=k)
    return list(decode(model, prompt, method, drafter=drafter, max_new_tokens=limit, eos=eos))


@pytest.fixture(scope="module")
def model():
    return added.target("mt5", seed=4)


@pytest.mark.parametrize("k", [1, 2, 4, added.HEADS + 1])
@pytest.mark.parametrize("eos", [(), (1,), (0, 3)])
def test_it_is_the_targets_text(model, k, eos) -> None:
    drafter = added.heads(model).on(model)
    accepted = 0
    for prompt in PROMPTS:
        for limit in (1, 2, 5, 23):
            cycles = blockwise(model, drafter, prompt, limit, k, eos)
            assert [t for c in cycles for t in c.tokens] == greedy(model, prompt, limit, eos)
            accepted += sum(c.status.count("accepted") for c in cycles)
            assert all(len(c.draft) <= k - 1 for c in cycles if c.draft is not None)
            assert [len(c.passes) for c in cycles[1:]] == [1] * (
                len(cycles) - 1
            )  # the target's pass, and none of a drafter
    assert accepted > 0 or k == 1 or eos
    assert accepted == 0 or k > 1


@pytest.mark.parametrize("k", [2, 3, 7])
def test_heads_that_foresee_the_text_need_a_kth_of_the_passes(model, k) -> None:
    prompt, limit = PROMPTS[3], 22
    text = greedy(model, prompt, limit)
    drafter = Foreseeing(model, prompt, text)
    cycles = blockwise(model, drafter, prompt, limit, k)
    assert [t for c in cycles for t in c.tokens] == text
    assert {s for c in cycles for s in c.status} == {"accepted"}
    sizes = [len(c.tokens) for c in cycles[1:]]
    full, rest = divmod(limit - 1, k)  # the first pass has no state to draft from
    assert sizes == [1] + [k] * full + ([rest] if rest else [])
    # Each block is drafted from the state that predicted the token before it.
    assert [place for place, _ in drafter.asked] == [i * k for i in range(len(drafter.asked))]


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_the_state_is_that_of_the_token_accepted_last(model, wrong) -> None:
    prompt, limit, k = PROMPTS[3], 20, 6
    text = greedy(model, prompt, limit)
    drafter = Foreseeing(model, prompt, text, wrong)
    cycles = blockwise(model, drafter, prompt, limit, k)
    assert [t for c in cycles for t in c.tokens] == text
    assert {len(c.tokens) for c in cycles[2:-1]} == {wrong + 1}
    assert [place for place, _ in drafter.asked] == [i * (wrong + 1) for i in range(len(drafter.asked))]


def test_an_end_token_in_a_block_ends_the_text(model) -> None:
    prompt = PROMPTS[3]
    text = greedy(model, prompt, 22)
    eos = next(t for i, t in enumerate(text) if i > 3 and t not in text[:i])
    drafter = Foreseeing(model, prompt, text)
    cycles = blockwise(model, drafter, prompt, 22, 7, (eos,))
    assert [t for c in cycles for t in c.tokens] == text[: text.index(eos) + 1]
    assert cycles[-1].end == "eos"
    assert "cut" in cycles[-1].status


def test_the_record(model) -> None:
    trace = specviz.generate(
        model, PROMPTS, "blockwise", draft=added.heads(model), k=5, max_new_tokens=20, record="all"
    )
    validate(trace)
    assert set(trace.nodes["source"]) == {"heads"}
    assert trace.nodes["entropy"].notna().all() and trace.nodes["confidence"].notna().all()
    assert set(trace.passes["model"]) == {"target"}
    assert trace.run["draft"]["kind"] == "heads"
    assert trace.run["exactness"] == "exact up to ties"


def test_a_batch_is_what_each_prompt_gives_alone(model) -> None:
    options = {"draft": added.heads(model), "k": 4, "max_new_tokens": 20}
    alone = specviz.generate(model, PROMPTS, "blockwise", **options)
    for rows in (2, 4):
        found = specviz.generate(model, PROMPTS, "blockwise", batch=rows, **options)
        assert found.texts == alone.texts
        assert len(found.nodes) == len(alone.nodes)


def test_what_is_refused(model) -> None:
    heads, slots = added.heads(model), added.slots(model)
    with pytest.raises(ParameterError, match=r"has heads for 7: set k to at most that"):
        specviz.generate(model, PROMPTS, "blockwise", draft=heads, k=8)
    unset = specviz.generate(model, PROMPTS[:1], "blockwise", draft=heads, max_new_tokens=8)
    assert unset.run["parameters"]["k"] == 7  # the default, 10, is lowered to the number of heads
    method = specviz.method("blockwise")
    for drafter, longest in ((added.heads(model, number=3), 4), (heads, 7)):
        trace = specviz.generate(model, PROMPTS[:1], method, draft=drafter, max_new_tokens=8)
        assert trace.run["parameters"]["k"] == longest, "a method that serves again begins from its default"
    with pytest.raises(ParameterError, match="blockwise decodes greedily"):
        specviz.generate(model, PROMPTS, "blockwise", draft=heads, temperature=1.0)
    with pytest.raises(ParameterError, match=r"k must lie in \[1, 64\]"):
        specviz.generate(model, PROMPTS, "blockwise", draft=heads, k=65)
    with pytest.raises(ParameterError, match="blockwise needs heads on the target: pass draft="):
        specviz.generate(model, PROMPTS, "blockwise")
    with pytest.raises(ModelError, match="blockwise drafts with heads on the target; slots is slots"):
        specviz.generate(model, PROMPTS, "blockwise", draft=slots)
    with pytest.raises(ModelError, match="specdec drafts with a draft model; heads is heads"):
        specviz.generate(model, PROMPTS, "specdec", draft=heads)
    with pytest.raises(ModelError, match="heads is not a model by itself"):
        specviz.generate(heads, PROMPTS, "blockwise", draft=heads)
    with pytest.raises(ParameterError, match="record='dense' runs the drafter at every position"):
        specviz.generate(model, PROMPTS, "blockwise", draft=heads, k=3, record="dense")
