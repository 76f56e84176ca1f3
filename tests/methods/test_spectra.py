"""SPECTRA: three sources in one tree, a text that is the target's, and its memory and datastore."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import validate
from test_lookahead import PROMPTS, TARGET, V, paths
from tiny import TableModel, llama

import specviz
from specviz import audit
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import find
from specviz.methods.datastore import Datastore
from specviz.methods.sampling import Sampling
from specviz.methods.spectra import Internal, Spectra


def with_datastore(tokens, **values):
    method = Spectra(**values)
    method.external = Datastore(tokens)
    return method


@settings(max_examples=100, deadline=None)
@given(
    prompt=PROMPTS, size=st.integers(1, 40), run=st.integers(1, 3), chain=st.integers(0, 6),
    store=st.lists(st.integers(0, V - 1), min_size=1, max_size=60),
    limit=st.integers(1, 40), eos=st.sets(st.integers(0, V - 1), max_size=2),
)  # fmt: skip
def test_greedy_equals_autoregressive(prompt, size, run, chain, store, limit, eos):
    rest = {"max_new_tokens": limit, "eos": eos}
    plain = list(decode(TARGET, prompt, find("autoregressive")(), **rest))
    method = with_datastore(store, draft_size=size, run=run, chain=chain, ngram=4)
    cycles = list(decode(TARGET, prompt, method, **rest))
    assert [t for c in cycles for t in c.tokens] == [t for c in plain for t in c.tokens]
    assert cycles[-1].end == plain[-1].end
    left = limit
    for cycle in cycles[1:]:
        draft = cycle.draft
        assert len(draft) <= size
        assert draft.depth < left
        if len(draft):
            above = draft.parents[draft.judge]
            assert not eos & set(draft.tokens[above[above >= 0]].tolist())  # nothing follows an end token
            if len(draft) < size and draft.judge.any():
                full = draft.depths[draft.judge].max() == left - 1
                assert draft.stop == ("room" if full and left <= max(chain, method.reach) else "store")
        left -= len(cycle.tokens)


def guessed(method, text, depth):
    """The method's guesses after a text, with their sources."""
    method.text, method.length, method.cells = np.array(text), len(text), 0
    rows, source = method.guess(depth)
    return [(str(name), [t for t in row if t >= 0]) for name, row in zip(source, rows.tolist())]


def test_the_chain_comes_first_then_the_others_take_turns():
    method = with_datastore([1, 2, 5, 1, 2, 5, 1, 2, 4], ngram=3, run=2, chain=4, reach=2, longest=2)
    method.store = Internal(V, 15, 3, 2)
    method.store.learn(np.array([[2, 3, 0], [1, 2, 3], [2, 3, 4], [2, 4, 4]]))
    assert guessed(method, [0, 1, 2], 8) == [
        ("chain", [3, 4]),
        ("ngram", [4, 4]),
        ("datastore", [5, 1]),
        ("ngram", [3, 4]),
        ("datastore", [4]),
        ("ngram", [3, 0]),
    ]
    assert guessed(method, [0, 1, 2], 1) == [
        ("chain", [3]), ("ngram", [4]), ("datastore", [5]), ("ngram", [3]), ("datastore", [4]), ("ngram", [3])
    ]  # fmt: skip


def test_both_stores_hold_what_the_text_said():
    method = Spectra(draft_size=1, ngram=4, run=2)  # too small for a window: only the text fills the store
    text = [1, 2, 3]
    for cycle in decode(TARGET, list(text), method, max_new_tokens=20):
        text += cycle.tokens
    text = text[:-1] if len(cycle.tokens) == 1 else text[: -len(cycle.tokens)]  # the last cycle is unlearned
    grams = {tuple(text[i : i + 4]) for i in range(len(text) - 3)}
    known = {(t, *rest) for t in range(V) for rest in map(tuple, method.store.pool.get(t).tolist())}
    assert known == grams
    follows = {(a, b): c for a, b, c in zip(text, text[1:], text[2:])}
    assert {run: method.store.chain.follow(list(run), 1) for run in follows} == {
        run: [token] for run, token in follows.items()
    }


def test_on_a_real_model_with_a_record(tmp_path):
    model = llama(seed=5, vocabulary=24, eos=())
    plain = specviz.generate(model, [[3, 4, 5]], "autoregressive", max_new_tokens=60)
    text = plain.outputs["token"].tolist()
    file = Datastore(text[:30]).save(tmp_path / "x.datastore", model)
    trace = specviz.generate(
        model, [[3, 4, 5]], "spectra", max_new_tokens=60, draft_size=40, datastore=str(file)
    )
    assert trace.outputs["token"].tolist() == text
    assert trace.recheck()["agrees"].all()
    nodes = trace.nodes
    assert set(nodes["source"]) == {"window", "chain", "ngram", "datastore"}
    accepted = set(nodes.loc[nodes["status"] == "accepted", "source"])
    assert "datastore" in accepted
    assert accepted & {"chain", "ngram"}
    validate(trace)


def test_sampling_has_the_targets_law():
    def make():
        method = with_datastore([0, 1, 2, 1, 0, 2, 2, 1], draft_size=12, ngram=3, guesses=2, keep="prompt")
        store = Internal(3, 2, 3, 2)
        store.learn(np.array([[t, (t * 2 + i) % 3, (t + i) % 3] for t in range(3) for i in range(2)]))
        method.loaded = store.arrays()
        return method

    sources = set()
    for cycle in decode(TableModel(vocabulary=3), [0, 1], make(), max_new_tokens=3):
        sources |= set(cycle.draft.source) if cycle.draft is not None and len(cycle.draft) else set()
    assert sources == {"window", "chain", "ngram", "datastore"}
    for result in audit.law.check(make, settings=[Sampling(1.0), Sampling(0.9, top_k=2)]):
        assert result.holds, result


def test_a_datastore_is_opened_once_for_all_rows(tmp_path, monkeypatch):
    model = llama(seed=0)
    file = Datastore(list(range(3, 9)) * 5).save(tmp_path / "x.datastore", model)
    opened, real = [], Datastore.open
    monkeypatch.setattr(Datastore, "open", lambda *given: opened.append(given) or real(*given))
    options = {"datastore": str(file), "keep": "prompt", "max_new_tokens": 12}
    together = specviz.generate(model, [[3, 4], [5], [6, 7, 8]], "spectra", batch=2, **options)
    assert len(opened) == 1
    assert together.texts == specviz.generate(model, [[3, 4], [5], [6, 7, 8]], "spectra", **options).texts


def test_the_audit_leaves_a_datastore_out_on_its_toy_vocabulary(tmp_path):
    path = Datastore([0, 1, 2]).save(tmp_path / "x", TableModel(vocabulary=5))
    results = audit.text._enumerated(lambda: Spectra(datastore=str(path)))
    assert all(result.holds for result in results), results


def test_sampled_decisions_are_repeated_from_the_record():
    model = llama(seed=6, vocabulary=16, eos=())
    method = with_datastore(list(range(16)) * 3)
    trace = specviz.generate(model, [[3, 4, 5], [1, 2]], method, max_new_tokens=60, temperature=0.8, seed=4)
    again = trace.recheck()
    assert len(again) > 30
    assert again["agrees"].all()


def test_it_is_saved_and_loaded(tmp_path):
    model = llama(seed=5, vocabulary=24, eos=())
    method = Spectra(ngram=4)
    specviz.generate(model, [[3, 4]], method, max_new_tokens=20)
    path = method.save(tmp_path / "x.store", model)
    again = Spectra(ngram=4, keep="prompt")
    again.load(path, model)
    trace = specviz.generate(model, [[3, 4], [3, 4]], again, max_new_tokens=20)
    assert trace.run["memory"]["start"]["state"] == "warm"
    emitted = trace.cycles.groupby("prompt")["emitted"].apply(list)
    assert emitted[0] == emitted[1]
    assert max(emitted[0]) > 1
    with pytest.raises(ParameterError, match="made with run=2, and the method has 3"):
        Spectra(ngram=4, run=3).load(path, model)
    with pytest.raises(ParameterError, match="the memory of spectra, not of lookahead"):
        find("lookahead")().load(path, model)


def test_bad_values(tmp_path):
    for values, words in (
        ({"run": 3}, "run must be less than ngram, got 3 and 3"),
        ({"chain": -1}, "chain"),
        ({"datastore": str(tmp_path / "none")}, "no such file; build one with"),
        ({"datastore": str(tmp_path)}, "no such file"),
        ({"datastore": 3}, "datastore must be a string"),
    ):
        with pytest.raises(ParameterError, match=words):
            Spectra(**values)


def test_a_datastore_of_another_vocabulary_is_refused(tmp_path):
    path = Datastore([0, 1, 2]).save(tmp_path / "x", TableModel(vocabulary=5))
    with pytest.raises(ParameterError, match="another vocabulary than target's"):
        list(decode(TARGET, [1, 2], Spectra(datastore=str(path)), max_new_tokens=4))
    model = llama(vocabulary=24)
    with pytest.raises(ParameterError, match="another vocabulary"):
        specviz.generate(model, [[1, 2]], "spectra", datastore=str(path), out=tmp_path / "traces")
    assert not (tmp_path / "traces").exists()  # refused before anything is written
    method = Spectra(datastore=str(Datastore([3, 4, 5]).save(path, model)))
    specviz.generate(model, [[3, 4]], method, max_new_tokens=4)
    with pytest.raises(ParameterError, match="another vocabulary"):
        specviz.generate(llama(vocabulary=25), [[3, 4]], method)


def test_what_shares_a_beginning_belongs_to_the_first():
    method = with_datastore([1, 2] * 9, ngram=3, draft_size=30)
    cycles = list(decode(TARGET, [1, 2, 1, 2, 1], method, max_new_tokens=6))
    draft = cycles[1].draft
    tried = paths(draft, True)
    assert len(tried) == len(set(tried))
    assert draft.source[int(np.flatnonzero(draft.judge)[0])] == "chain"
