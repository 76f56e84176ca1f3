"""Prompt lookup: it drafts what transformers' version drafts, and its text is the target's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TableModel, llama

import specviz
from specviz import audit, metrics
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import find
from specviz.methods.prompt_lookup import PromptLookup
from specviz.methods.sampling import Sampling
from specviz.rules.ngrams import continuation


class Looping(TableModel):
    """A table that sees only the last two tokens, so its texts repeat themselves."""

    def logits(self, text):
        return super().logits(text[-2:])


TARGET = Looping(vocabulary=6, seed=1, name="target", max_length=128)
TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def by_hand(text, longest, shortest, count):
    """The definition, as plain loops."""
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        for i in range(len(text) - n):
            if text[i : i + n] == text[len(text) - n :]:
                return text[i + n : i + n + count]
    return []


@settings(max_examples=300, deadline=None)
@given(text=TEXT, longest=st.integers(1, 5), shortest=st.integers(1, 5), count=st.integers(1, 8))
def test_the_match(text, longest, shortest, count):
    found = continuation(np.array(text), longest, shortest, count)
    assert found.tolist() == by_hand(text, longest, shortest, count)


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(st.integers(2, 5), min_size=2, max_size=30),
    longest=st.integers(1, 4),
    count=st.integers(1, 8),
)
def test_it_is_what_transformers_takes(text, longest, count):
    generator = pytest.importorskip("transformers.generation.candidate_generator")
    theirs = generator.PromptLookupCandidateGenerator(
        num_output_tokens=count, max_matching_ngram_size=longest, max_length=1000
    )
    ids = torch.tensor([text])
    expected = theirs.get_candidates(ids)[0][0, len(text) :].tolist()
    assert continuation(np.array(text), longest, 1, count).tolist() == expected


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    ngrams=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
    count=st.integers(1, 7),
    limit=st.integers(1, 40),
    eos=st.sets(st.integers(0, 5), max_size=2),
)
def test_greedy_equals_autoregressive(prompt, ngrams, count, limit, eos):
    rest = {"max_new_tokens": limit, "eos": eos}
    plain = list(decode(TARGET, prompt, find("autoregressive")(), **rest))
    method = PromptLookup(ngram_min=ngrams[0], ngram_max=ngrams[1], draft_length=count)
    cycles = list(decode(TARGET, prompt, method, **rest))
    text = [t for cycle in plain for t in cycle.tokens]
    assert [t for cycle in cycles for t in cycle.tokens] == text
    assert cycles[-1].end == plain[-1].end
    assert {name for cycle in cycles for name, *_ in cycle.passes} <= {"target"}
    so_far = list(prompt)
    for cycle in cycles[1:]:
        left = limit - (len(so_far) - len(prompt))
        expected = by_hand(so_far, ngrams[1], ngrams[0], min(count, left - 1)) if left > 1 else []
        ends = [i for i, t in enumerate(expected) if t in eos]
        assert cycle.draft.tokens.tolist() == (expected[: ends[0] + 1] if ends else expected)
        so_far += cycle.tokens


def test_a_text_that_repeats_itself_comes_in_blocks():
    cycles = list(decode(TARGET, [1, 2], PromptLookup(), max_new_tokens=100))
    assert sum(len(c.tokens) for c in cycles[-5:]) > 25
    assert {c.draft.stop for c in cycles[1:]} >= {"none", "length"}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_recorded_decisions_can_be_decided_again(temperature):
    target = llama(seed=0, layers=2, eos=(1,), name="target")
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 9, 9, 9]]
    trace = specviz.generate(
        target, prompts, "prompt_lookup", max_new_tokens=50, temperature=temperature, ngram_max=2
    )
    table = metrics.recheck(trace)
    assert len(table) > 10
    assert table["agrees"].all()
    assert set(trace.nodes["source"]) == {"prompt"}
    if temperature:
        assert (trace.nodes.query("status in ('accepted', 'rejected')")["q"] == 1).all()


def test_the_law_of_sampling_is_the_targets():
    for found in audit.law.check(lambda: PromptLookup(ngram_max=2, draft_length=2)):
        assert found.holds, found


def test_labels_and_ranges():
    assert PromptLookup().exactness(Sampling(), "float32") == "exact up to ties"
    assert PromptLookup().exactness(Sampling(1.0), "float32") == "exact in law"
    assert not PromptLookup.needs_draft
    with pytest.raises(ParameterError, match="ngram_min must be at most ngram_max, got 3 and 2"):
        PromptLookup(ngram_min=3, ngram_max=2)
