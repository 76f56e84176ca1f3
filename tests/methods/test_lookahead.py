"""Lookahead: its two branches against a version by hand, its text against the target's, and its memory."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import validate
from test_prompt_lookup import Looping
from test_window import Slow
from tiny import TableModel, llama

import specviz
from specviz import audit
from specviz.draft import Draft
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import find, lookahead
from specviz.methods.lookahead import Lookahead
from specviz.methods.pool import Pool
from specviz.methods.sampling import Sampling
from specviz.methods.window import Window

V = 6
TARGET = Looping(vocabulary=V, seed=1, name="target", max_length=128)
PROMPTS = st.lists(st.integers(0, V - 1), min_size=1, max_size=8)


def paths(draft, judged):
    """The token paths of a draft's nodes: of those that are judged, or of the others."""
    tokens = draft.tokens.tolist()
    return [
        tuple(tokens[j] for j in draft.path(i)) for i in range(len(draft)) if bool(draft.judge[i]) is judged
    ]


def by_hand(target, prompt, limit, size, width, ngram, guesses, from_text):
    """Yield each cycle's (window, guesses, emitted), computed with lists and loops."""
    text = list(prompt)
    pool: dict[int, list[tuple]] = {}

    def meet(gram):
        first, rest = gram[0], gram[1:]
        pool[first] = [rest, *(other for other in pool.get(first, []) if other != rest)][:guesses]

    def written(new):
        for end in range(max(len(text) - new, ngram - 1) + 1, len(text) + 1):
            meet(tuple(text[end - ngram : end]))

    def writes(path):
        return int(target.logits([*text, *path]).argmax())

    window = Slow(Window(width, ngram, prompt).rows[0] if width else [], width, ngram)
    if not width:
        window.cells = {}
    if from_text:
        written(len(text))
    while (left := limit - (len(text) - len(prompt))) > 0:
        cells, tried = [], []
        if left > 1:
            cells = window.paths(left - 1)
            for rest in pool.get(text[-1], []):
                for level in range(1, min(len(rest), left - 1) + 1):
                    if rest[:level] not in tried and len(cells) + len(tried) < size:
                        tried.append(rest[:level])
        best = max(
            (p for p in tried if all(writes(p[:i]) == p[i] for i in range(len(p)))), key=len, default=()
        )
        emitted = [*best, writes(best)]
        for gram in window.move(text[-1], writes) if left > 1 else []:
            meet(gram)
        text += emitted
        if from_text:
            written(len(emitted))
        yield cells, tried, emitted


@settings(max_examples=100, deadline=None)
@given(
    prompt=PROMPTS, limit=st.integers(1, 40), size=st.integers(1, 40), window=st.integers(1, 6),
    ngram=st.integers(3, 5), guesses=st.integers(1, 5), from_text=st.booleans(),
)  # fmt: skip
def test_it_is_lookahead_by_hand(prompt, limit, size, window, ngram, guesses, from_text):
    method = Lookahead(draft_size=size, window=window, ngram=ngram, guesses=guesses, from_text=from_text)
    cycles = list(decode(TARGET, prompt, method, max_new_tokens=limit))[1:]
    width = lookahead.widest(window, ngram, size // 2)
    slow = list(by_hand(TARGET, prompt, limit, size, width, ngram, guesses, from_text))
    assert len(cycles) == len(slow)
    for cycle, (cells, tried, emitted) in zip(cycles, slow):
        draft = cycle.draft
        if len(draft):
            assert paths(draft, False) == cells
            assert sorted(paths(draft, True)) == sorted(tried)
            assert len(draft) <= size
            assert np.array_equal(draft.offsets, draft.depths)
        else:
            assert not cells
            assert not tried
        assert cycle.tokens == emitted
        if tried and len(draft) < size:
            assert draft.stop == ("room" if limit - cycle.keep < ngram else "store")


@settings(max_examples=100, deadline=None)
@given(
    prompt=PROMPTS, size=st.integers(1, 40), ngram=st.integers(3, 5), from_text=st.booleans(),
    limit=st.integers(1, 40), eos=st.sets(st.integers(0, V - 1), max_size=2),
)  # fmt: skip
def test_greedy_equals_autoregressive(prompt, size, ngram, from_text, limit, eos):
    rest = {"max_new_tokens": limit, "eos": eos}
    plain = list(decode(TARGET, prompt, find("autoregressive")(), **rest))
    cycles = list(
        decode(TARGET, prompt, Lookahead(draft_size=size, ngram=ngram, from_text=from_text), **rest)
    )
    assert [t for c in cycles for t in c.tokens] == [t for c in plain for t in c.tokens]
    assert cycles[-1].end == plain[-1].end


def recorded(**options):
    """Run a real model whose random text comes to repeat itself; also tell if the text is its own."""
    model = llama(seed=5, vocabulary=24, eos=())
    plain = specviz.generate(model, [[3, 4, 5]], "autoregressive", max_new_tokens=60)
    trace = specviz.generate(model, [[3, 4, 5]], "lookahead", max_new_tokens=60, draft_size=24, **options)
    return trace, trace.outputs["token"].tolist() == plain.outputs["token"].tolist()


@pytest.mark.parametrize("from_text", [False, True])
def test_on_a_real_model_with_a_record(from_text):
    trace, same = recorded(from_text=from_text)
    assert same
    again = trace.recheck()
    assert len(again) > 5
    assert again["agrees"].all()
    assert (again["status"] == "accepted").any()
    nodes = trace.nodes
    assert set(nodes["source"]) == {"window", "ngram"}
    assert (nodes.loc[nodes["source"] == "window", "status"] == "unjudged").all()
    assert (nodes.loc[nodes["source"] == "ngram", "status"] != "unjudged").any()
    outputs = trace.outputs.merge(
        nodes[nodes["source"] == "ngram"].groupby("cycle").size().rename("tried").reset_index(), how="left"
    )
    assert (outputs.loc[outputs["tried"].isna(), "origin"] == "plain").all()
    assert trace.cycles["control_columns"].max() > 1
    validate(trace)


def test_to_the_end_of_the_models_context():
    model = llama(seed=5, vocabulary=24, eos=(), max_length=40)
    prompt = [3, 4, 5, 3, 4, 5] * 3
    plain = specviz.generate(model, [prompt], "autoregressive", max_new_tokens=99)
    trace = specviz.generate(model, [prompt], "lookahead", max_new_tokens=99, draft_size=60, from_text=True)
    assert trace.outputs["token"].tolist() == plain.outputs["token"].tolist()
    assert len(trace.outputs) == 22
    nodes = trace.nodes.merge(trace.cycles[["cycle", "context"]], on="cycle")
    assert (nodes["context"] + nodes["position"]).max() == 39


def test_the_window_reads_what_the_target_would_write():
    """The window's answers are the target's own predictions after those paths, and so are the n-grams'."""
    model = llama(seed=6, vocabulary=24, eos=())
    method = Lookahead(draft_size=30, from_text=True)
    text, checked = [3, 4, 5], 0
    for cycle in decode(model, list(text), method, max_new_tokens=30):
        if cycle.draft is not None and len(cycle.draft) and cycle.number % 4 == 0:
            draft, best = cycle.draft, cycle.scores.argmax(-1)
            tokens = draft.tokens.tolist()
            for node in range(len(draft)):
                path = [tokens[i] for i in draft.path(node)]
                own = model.open([[*text, *path]], 1).forward(Draft.empty()).logits[0][0]
                assert int(own.argmax()) == int(best[node + 1])
                torch.testing.assert_close(own, cycle.scores[node + 1], atol=1e-3, rtol=0)
                checked += 1
        text += cycle.tokens
    assert checked > 60


def test_a_pass_of_the_window_alone_is_a_pass():
    cycles = list(decode(TARGET, [1, 2], Lookahead(), max_new_tokens=3))
    first = cycles[1]
    assert len(first.draft)
    assert not any(first.draft.judge)
    assert len(first.scores) == len(first.draft) + 1
    assert first.origins == ["plain"]


def filled(**options):
    """A factory of methods that hold two n-grams for each token of a vocabulary of three."""

    def make():
        method = Lookahead(ngram=3, guesses=2, keep="prompt", from_text=True, **options)
        pool = Pool(3, 2, 2)
        pool.learn(np.array([[t, (t * 2 + i) % 3, (t + i) % 3] for t in range(3) for i in range(2)]))
        method.loaded = pool.arrays()
        return method

    return make


@pytest.mark.parametrize("size", [4, 12])
def test_sampling_has_the_targets_law(size):
    make = filled(draft_size=size)
    cycles = decode(TableModel(vocabulary=3), [0, 1], make(), max_new_tokens=3)
    judged = [status for cycle in cycles for status in cycle.status if status in ("accepted", "rejected")]
    assert len(judged) > 1  # otherwise the law would be that of plain decoding
    for result in audit.law.check(make, settings=[Sampling(1.0), Sampling(0.9, top_k=2)]):
        assert result.holds, result


def test_sampled_decisions_are_repeated_from_the_record():
    model = llama(seed=6, vocabulary=16, eos=())
    trace = specviz.generate(
        model, [[3, 4, 5], [1, 2]], "lookahead", max_new_tokens=60, temperature=0.8, from_text=True, seed=4
    )
    again = trace.recheck()
    assert len(again) > 30
    assert again["agrees"].all()
    assert (again["status"] == "accepted").any()


class TestMemory:
    def test_it_stays_or_goes(self):
        model = llama(seed=5, vocabulary=24, eos=())
        for keep in ("run", "prompt"):
            method = Lookahead(keep=keep, draft_size=60, ngram=5)
            trace = specviz.generate(model, [[3, 4], [3, 4]], method, max_new_tokens=40)
            assert trace.run["memory"]["start"]["state"] == "cold"
            assert trace.run["memory"]["end"]["known"] > 0
            # While its window fills, a new text has only the n-grams of earlier texts.
            first = trace.nodes[trace.nodes["cycle"] < 4].groupby("prompt")["source"].agg(set)
            assert first[0] == {"window"}
            assert ("ngram" in first[1]) == (keep == "run")

    def test_it_is_saved_and_loaded(self, tmp_path):
        model = llama(seed=5, vocabulary=24, eos=())
        method = Lookahead()
        specviz.generate(model, [[3, 4]], method, max_new_tokens=20)
        path = method.save(tmp_path / "x.store", model)
        again = Lookahead(keep="prompt")
        again.load(path, model)
        trace = specviz.generate(model, [[3, 4], [3, 4]], again, max_new_tokens=20)
        assert trace.run["memory"]["start"]["state"] == "warm"
        emitted = trace.cycles.groupby("prompt")["emitted"].apply(list)
        assert emitted[0] == emitted[1]
        assert max(emitted[0]) > 1
        with pytest.raises(ParameterError, match="made with ngram=3, and the method has 4"):
            Lookahead(ngram=4).load(path, model)


def test_bad_values():
    for values in ({"draft_size": 0}, {"window": 0}, {"ngram": 2}, {"guesses": 0}, {"from_text": "x"}):
        with pytest.raises(ParameterError, match=next(iter(values))):
            Lookahead(**values)


# -- bugs that the tests above must catch ---------------------------------------------------------


def leaking():
    """The guesses attend to the window."""
    real = Draft.mask.func

    def mask(self):
        seen = real(self).copy()
        if self.judge is not None:
            seen |= np.tri(len(self), dtype=bool) & np.asarray(self.judge)[:, None] & ~np.asarray(self.judge)
        return seen

    return patch.object(Draft, "mask", property(mask))


def misplaced():
    """The window's positions are one too high."""
    real = Draft.offsets.func

    def offsets(self):
        found = real(self)
        return found if self.judge is None else np.where(self.judge, found, found + 1)

    return patch.object(Draft, "offsets", property(offsets))


def stale():
    """The n-grams start from the previous token."""
    real = Lookahead.guess

    def guess(self, depth):
        self.length -= 1
        found = real(self, depth)
        self.length += 1
        return found

    return patch.object(Lookahead, "guess", guess)


@pytest.mark.parametrize("mistake", [leaking, misplaced])
def test_a_wrong_pass_is_seen(mistake):
    with mistake(), pytest.raises(AssertionError):
        test_the_window_reads_what_the_target_would_write()


def test_a_stale_guess_is_seen():
    arguments = [1, 2, 3, 1, 2], 30, 40, 3, 3, 4, True
    check = test_it_is_lookahead_by_hand.hypothesis.inner_test
    check(*arguments)
    with stale(), pytest.raises(AssertionError):
        check(*arguments)
