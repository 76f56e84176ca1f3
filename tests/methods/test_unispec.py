"""UniSpec: its tree is Algorithm 1's, its text the target's, and its memory is saved and loaded unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_prompt_lookup import Looping
from tiny import TableModel, llama

import specviz
from specviz import audit
from specviz.draft import ROOT
from specviz.errors import ModelError, ParameterError
from specviz.loop import decode
from specviz.methods import find
from specviz.methods.sampling import Sampling
from specviz.methods.unispec import UniSpec
from specviz.rules.store import EMPTY, Grown, Growth, Store

V = 7
TARGET = Looping(vocabulary=V, seed=1, name="target", max_length=128)


def by_hand(store, root, near, depth, k, r, g, product=True, drop=True):
    """Lines 16-30 as loops over nodes: the (path, score) pairs that are sent, and the number of all nodes."""
    first = list(zip(store.tokens[root], store.p[root])) + list(zip(*near))
    first = [(t, p) for i, (t, p) in enumerate(first) if t != EMPTY and not (drop and i >= k and t == root)]
    best: dict[int, float] = {}
    for token, p in sorted(first, key=lambda pair: -pair[1]):
        best.setdefault(int(token), float(p))
    levels = [[((token,), p) for token, p in best.items()]]
    for _ in range(depth - 1):
        leaves = sorted(levels[-1], key=lambda node: -node[1])[:k]
        leaves = [node for node in leaves if node[1] >= r]
        level = []
        for path, score in leaves:
            for token, p in zip(store.tokens[path[-1]], store.p[path[-1]]):
                if token != EMPTY:
                    level.append(((*path, int(token)), score * float(p) if product else min(score, float(p))))
        if not level:
            break
        levels.append(level)
    nodes = [node for level in levels for node in level]
    return sorted(nodes, key=lambda node: -node[1])[:g], len(nodes)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10_000), depth=st.integers(1, 5), k=st.integers(1, V),
    r=st.sampled_from([0, 0.05, 0.3]),
    g=st.integers(1, 30), score=st.sampled_from(["product", "least"]), root=st.sampled_from(["drop", "keep"]),
)  # fmt: skip
def test_the_tree_is_algorithm_1(seed, depth, k, r, g, score, root):
    rng = np.random.default_rng(seed)
    method = UniSpec(draft_size=g, depth=depth, candidates=k, threshold=r, score=score, root_token=root)
    method.session = type("S", (), {"control": {}})()
    method.store = Store(V, k)
    for word in rng.permutation(V)[: rng.integers(1, V + 1)]:
        p = np.sort(rng.dirichlet(np.ones(V)))[::-1][:k].astype(np.float32)
        method.store.learn(np.array([word]), rng.permutation(V)[None, :k], p[None])
    method.root = int(rng.integers(V))
    near = np.sort(rng.dirichlet(np.ones(V)))[::-1][:k].astype(np.float32)
    method.near = rng.permutation(V)[:k].astype(np.int32), near
    draft = method.draft(64)
    sent, known = by_hand(
        method.store, method.root, method.near, depth, k, r, g, score == "product", root == "drop"
    )
    assert len(draft) == len(sent) == min(g, known)
    scores = np.asarray(draft.signals["score"]) if len(draft) else np.empty(0)
    # The scores are the same; the paper does not say which of two equal ones is sent.
    assert np.allclose(np.sort(scores)[::-1], [s for _, s in sent], rtol=1e-6)
    if sent:
        edge = sent[-1][1] * (1 + 1e-6)
        paths = {tuple(int(draft.tokens[j]) for j in draft.path(i)) for i in range(len(draft))}
        assert len(paths) == len(draft)
        assert {path for path, s in sent if s > edge} <= paths
    for i, parent in enumerate(draft.parents):
        assert parent == ROOT or scores[i] <= scores[parent]


@pytest.mark.parametrize(
    ("size", "depth", "left", "stop"),
    [(9, 3, 64, "length"), (9, 3, 4, "length"), (9, 3, 3, "room"), (9, 9, 64, "store"), (1, 3, 3, "budget")],
)
def test_it_says_why_a_tree_is_no_larger(size, depth, left, stop):
    method = UniSpec(draft_size=size, depth=depth, candidates=1, neighbours=False)
    method.session = type("S", (), {"control": {}})()
    method.store, method.root, method.near = Store(V, 1), 0, (np.array([EMPTY]), np.zeros(1, np.float32))
    method.store.learn(np.arange(4), np.arange(1, 5)[:, None], np.ones((4, 1)))  # 0 1 2 3 4
    assert method.draft(left).stop == stop


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=8), g=st.integers(1, 20),
    depth=st.integers(1, 6), k=st.integers(1, V), flags=st.tuples(st.booleans(), st.booleans()),
    limit=st.integers(1, 40), eos=st.sets(st.integers(0, V - 1), max_size=2),
)  # fmt: skip
def test_greedy_equals_autoregressive(prompt, g, depth, k, flags, limit, eos):
    rest = {"max_new_tokens": limit, "eos": eos}
    plain = list(decode(TARGET, prompt, find("autoregressive")(), **rest))
    method = UniSpec(draft_size=g, depth=depth, candidates=k, scores=flags[0], neighbours=flags[1])
    cycles = list(decode(TARGET, prompt, method, **rest))
    text = [t for cycle in plain for t in cycle.tokens]
    assert [t for cycle in cycles for t in cycle.tokens] == text
    assert cycles[-1].end == plain[-1].end
    assert max(len(cycle.draft) for cycle in cycles if cycle.draft is not None or limit < 1) <= g


def test_what_a_full_draft_leaves_out_is_below_the_budget_whatever_its_score():
    score = np.array([0.75, 0.5, 0.25], np.float32)
    grown = Grown(np.array([7, 8, 9]), np.full(3, ROOT), score, np.zeros(3, bool))
    draft, rest = grown.cut(1, Growth(1, 3, threshold=0.5))
    assert (draft.tokens.tolist(), rest.tokens) == ([7], [8, 9]), "0.5 is at the threshold, 0.25 below it"


@pytest.mark.parametrize("name", ["unispec", "token_recycling"])
def test_nothing_is_drafted_behind_an_end_token(name):
    seen = 0
    for end in range(V):
        method = find(name)(draft_size=30, candidates=V)
        for prompt in ([1, 2], [3, 0], [5, 4], [0, 6]):
            for cycle in decode(TARGET, prompt, method, max_new_tokens=40, eos={end}):
                if cycle.draft is not None and len(cycle.draft):
                    at = np.flatnonzero(cycle.draft.tokens == end)
                    seen += len(at)
                    assert not np.isin(cycle.draft.parents, at).any()
    assert seen > 100


def test_on_a_real_model_with_a_record():
    model = llama(seed=5, vocabulary=24, eos=())
    plain = specviz.generate(model, [[3, 4, 5]], "autoregressive", max_new_tokens=60)
    trace = specviz.generate(model, [[3, 4, 5]], "unispec", max_new_tokens=60, draft_size=12)
    assert trace.outputs["token"].tolist() == plain.outputs["token"].tolist()
    assert trace.recheck()["agrees"].all()
    nodes = trace.nodes
    assert {"store", "neighbour"} >= set(nodes["source"].unique())
    assert nodes["score"].between(0, 1).all()
    assert nodes["status"].isin(["accepted", "rejected", "unjudged", "below_budget", "cut"]).all()
    assert "below_budget" in set(nodes["status"])
    parents = nodes.merge(
        nodes[["cycle", "node", "score"]], left_on=["cycle", "parent"], right_on=["cycle", "node"]
    )
    assert (parents["score_x"] <= parents["score_y"]).all()
    assert trace.run["memory"]["start"]["state"] == "cold"
    assert trace.run["memory"]["end"]["known"] > 0


def test_sampling_has_the_targets_law():
    for result in audit.law.check(UniSpec, settings=[Sampling(1.0), Sampling(0.9, top_k=2)]):
        assert result.holds, result


def test_sampled_decisions_are_repeated_from_the_record():
    model = llama(seed=6, vocabulary=16, eos=())
    trace = specviz.generate(
        model, [[3, 4, 5], [1, 2]], "unispec", max_new_tokens=60, temperature=0.8, draft_size=12, seed=4
    )
    again = trace.recheck()
    assert len(again) > 50
    assert again["agrees"].all()
    assert (again["status"] == "accepted").any()


class TestMemory:
    def test_it_stays_or_goes(self):
        model = llama(seed=5, vocabulary=24, eos=())
        known = {}
        for keep in ("run", "prompt"):
            method = UniSpec(keep=keep)
            trace = specviz.generate(model, [[3, 4], [7, 8, 9]], method, max_new_tokens=5)
            assert trace.run["memory"]["start"]["state"] == "cold"
            first = trace.cycles[(trace.cycles["prompt"] == 1) & (trace.cycles["cycle"] == 1)]
            known[keep] = method.store.entries
            if keep == "prompt":
                assert first["drafted"].iloc[0] == 0
        assert known["run"] > known["prompt"]
        method = UniSpec()
        specviz.generate(model, [[3, 4]], method, max_new_tokens=20)
        trace = specviz.generate(model, [[3, 4]], method, max_new_tokens=20)
        assert trace.run["memory"]["start"]["state"] == "warm"

    def test_it_is_saved_and_loaded(self, tmp_path):
        model = llama(seed=5, vocabulary=24, eos=())
        method = UniSpec()
        with pytest.raises(ParameterError, match="has an empty memory"):
            method.save(tmp_path / "x", model)
        specviz.generate(model, [[3, 4]], method, max_new_tokens=20)
        path = method.save(tmp_path / "x.store", model)
        assert [p.name for p in tmp_path.iterdir()] == ["x.store"]
        again = UniSpec(keep="prompt")
        again.load(path, model)
        trace = specviz.generate(model, [[3, 4], [3, 4]], again, max_new_tokens=20)
        assert trace.run["memory"]["start"]["state"] == "warm"
        taus = trace.cycles.groupby("prompt")["emitted"].apply(list)
        assert taus[0] == taus[1]  # each prompt begins with the loaded memory

    def test_a_wrong_file_is_refused(self, tmp_path):
        model = llama(seed=5, vocabulary=24, eos=())
        method = UniSpec()
        specviz.generate(model, [[3, 4]], method, max_new_tokens=5)
        path = method.save(tmp_path / "x.store", model)
        with pytest.raises(ParameterError, match="no such file"):
            UniSpec().load(tmp_path / "y.store", model)
        with pytest.raises(ParameterError, match="another vocabulary"):
            UniSpec().load(path, llama(seed=5, vocabulary=25))
        with pytest.raises(ParameterError, match="made with candidates=10, and the method has 4"):
            UniSpec(candidates=4).load(path, model)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ParameterError, match="cannot be read"):
            UniSpec().load(path, model)
        path.write_bytes(whole[:-400] + b"\x7f" * 400)
        with pytest.raises(ParameterError, match="damaged"):
            UniSpec().load(path, model)

    def test_its_file_is_as_open_as_any_other(self, tmp_path):
        model = llama(seed=5, vocabulary=24, eos=())
        method = UniSpec()
        specviz.generate(model, [[3, 4]], method, max_new_tokens=5)
        (tmp_path / "other").touch()
        path = method.save(tmp_path / "x.store", model)
        assert path.stat().st_mode == (tmp_path / "other").stat().st_mode

    def test_it_says_what_it_is(self):
        assert repr(UniSpec(depth=3)).startswith("<unispec: draft_size=24, depth=3, ")
        assert repr(UniSpec(draft_size="calibrated")).startswith("<unispec: draft_size='calibrated', ")
        assert repr(UniSpec()).endswith("; memory cold>")

    def test_another_vocabulary_is_refused(self, tmp_path):
        method = UniSpec()
        list(decode(TARGET, [1, 2], method, max_new_tokens=4))
        with pytest.raises(ModelError, match="vocabulary of 7 tokens, and the model has 5"):
            list(decode(TableModel(vocabulary=5), [1, 2], method, max_new_tokens=4))
        loaded = UniSpec()
        loaded.load(method.save(tmp_path / "x.store", TARGET), TARGET)
        for other in (method, loaded):  # refused before any work: no trace is started
            with pytest.raises(ModelError, match="vocabulary of 7 tokens, and the model has 24"):
                specviz.generate(llama(vocabulary=24), [[3, 4]], other, out=tmp_path / "run.parquet")
        assert [path.name for path in tmp_path.iterdir()] == ["x.store"]

    def test_where_nothing_can_be_written(self, tmp_path):
        method = UniSpec()
        list(decode(TARGET, [1, 2], method, max_new_tokens=4))
        (tmp_path / "a file").touch()
        (tmp_path / "folder").mkdir()
        for path in (tmp_path / "a file" / "x.store", tmp_path / "folder"):
            with pytest.raises(ParameterError, match=r"cannot be written .*; name another file"):
                method.save(path, TARGET)
        assert {path.name for path in tmp_path.iterdir()} == {"a file", "folder"}

    def test_numbers_that_are_no_probabilities_are_refused(self, tmp_path):
        for value in (np.nan, 1.5, -0.1):
            method = UniSpec()
            list(decode(TARGET, [1, 2], method, max_new_tokens=4))
            method.store.p[2, 1] = value
            path = method.save(tmp_path / "x.store", TARGET)
            with pytest.raises(ParameterError, match="damaged: p holds numbers that are not probabilities"):
                UniSpec().load(path, TARGET)

    def test_what_is_known_at_the_start_is_said(self, tmp_path):
        model = llama(seed=5, vocabulary=24, eos=())
        method = UniSpec(keep="prompt")
        for _ in range(2):  # the second run starts without the first one's memory
            memory = specviz.generate(model, [[3, 4]], method, max_new_tokens=20).run["memory"]
            assert (memory["start"]["state"], memory["start"]["known"]) == ("cold", 0)
        path = method.save(tmp_path / "x.store", model)
        again = UniSpec()
        again.load(path, model)
        start = specviz.generate(model, [[3, 4]], again, max_new_tokens=20).run["memory"]["start"]
        assert (start["state"], start["known"]) == ("warm", memory["end"]["known"])


def test_bad_values():
    for values, words in (({"draft_size": 0}, "draft_size"), ({"candidates": 0}, "candidates"),
                          ({"threshold": 2}, "threshold"), ({"score": "sum"}, "score")):  # fmt: skip
        with pytest.raises(ParameterError, match=words):
            UniSpec(**values)
