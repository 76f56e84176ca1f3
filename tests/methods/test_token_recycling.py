"""Token Recycling: its tree is the template filled from the matrix, and its text is the target's."""

from __future__ import annotations

import json
from itertools import combinations, product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_prompt_lookup import Looping
from tiny import llama

import specviz
from specviz import audit
from specviz.draft import ROOT
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import find
from specviz.methods.sampling import Sampling
from specviz.methods.template import Template, bundled, ordered, read
from specviz.methods.token_recycling import TokenRecycling
from specviz.rules.store import EMPTY, Adjacency
from town.template import expected, grow

V = 7
TARGET = Looping(vocabulary=V, seed=1, name="target", max_length=128)


@st.composite
def templates(draw, k=4, most=14):
    """A tree of rank paths in random order, parents before children."""
    paths = [()]
    for _ in range(draw(st.integers(1, most))):
        path = (*draw(st.sampled_from(paths)), draw(st.integers(0, k - 1)))
        if path not in paths:
            paths.append(path)
    return paths[1:]


def made(paths, k=4, **values):
    method = TokenRecycling(candidates=k, **values)
    method.paths, method.extra_cache_slots = paths, len(paths)
    return method


@settings(max_examples=200, deadline=None)
@given(paths=templates(), seed=st.integers(0, 10_000), left=st.integers(1, 6))
def test_the_tree_is_the_template_filled(paths, seed, left):
    rng = np.random.default_rng(seed)
    method = made(paths)
    method.session = SimpleNamespace(control={})
    method.store = Adjacency(V, 4)
    for word in rng.permutation(V)[: rng.integers(0, V + 1)]:
        method.store.tokens[word] = rng.permutation(V)[:4]
    method.root, method.tree = int(rng.integers(V)), Template(paths)
    draft = method.draft(left)
    filled = {(): method.root}
    for path in sorted(paths, key=len):
        if path[:-1] in filled and len(path) < left:
            token = method.store.tokens[filled[path[:-1]], path[-1]]
            if token != EMPTY:
                filled[path] = int(token)
    sent = [path for path in paths if path in filled]
    assert draft.tokens.tolist() == [filled[path] for path in sent]
    numbers = {path: i for i, path in enumerate(sent)} | {(): ROOT}
    assert draft.parents.tolist() == [numbers[path[:-1]] for path in sent]
    deepest = max(map(len, paths))
    whole = "budget" if len(sent) == len(paths) else "store"
    expects = "room" if left < 2 else "none" if not sent else "room" if deepest >= left else whole
    assert draft.stop == expects
    if sent:
        assert method.session.control["empty"] == len(paths) - len(sent)


@settings(max_examples=150, deadline=None)
@given(
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=8), g=st.integers(1, 40), k=st.integers(1, 9),
    limit=st.integers(1, 40), eos=st.sets(st.integers(0, V - 1), max_size=2),
)  # fmt: skip
def test_greedy_equals_autoregressive(prompt, g, k, limit, eos):
    rest = {"max_new_tokens": limit, "eos": eos}
    plain = list(decode(TARGET, prompt, find("autoregressive")(), **rest))
    cycles = list(decode(TARGET, prompt, TokenRecycling(draft_size=g, candidates=k), **rest))
    assert [t for c in cycles for t in c.tokens] == [t for c in plain for t in c.tokens]
    assert cycles[-1].end == plain[-1].end
    drafts = [cycle.draft for cycle in cycles if cycle.draft is not None]
    assert all(len(draft) <= g for draft in drafts)
    room = limit
    for cycle in cycles[1:]:
        assert cycle.draft.depth < room or not len(cycle.draft)
        room -= len(cycle.tokens)


def test_every_node_teaches_the_rejected_too():
    model = llama(seed=5, vocabulary=24, eos=())
    method = TokenRecycling(draft_size=12, candidates=3)
    seen = {}
    for cycle in decode(model, [3, 4, 5], method, max_new_tokens=40):
        if cycle.draft is None or cycle.end is not None:
            continue
        words = [seen["root"] if seen else 5, *cycle.draft.tokens.tolist()]
        best = cycle.scores.topk(3).indices.tolist()
        last = dict(zip(words, best))  # if a token is at several nodes, the last one counts
        assert {word: method.store.tokens[word].tolist() for word in last} == last
        seen["root"] = cycle.tokens[-1]
        seen["rejected"] = seen.get("rejected", 0) + cycle.status.count("rejected")
    assert seen["rejected"] > 10


def test_on_a_real_model_with_a_record():
    model = llama(seed=5, vocabulary=24, eos=())
    plain = specviz.generate(model, [[3, 4, 5]], "autoregressive", max_new_tokens=60)
    trace = specviz.generate(model, [[3, 4, 5]], "token_recycling", max_new_tokens=60, draft_size=12)
    assert trace.outputs["token"].tolist() == plain.outputs["token"].tolist()
    assert trace.recheck()["agrees"].all()
    assert set(trace.nodes["source"]) == {"store"}
    assert {"accepted", "rejected"} <= set(trace.nodes["status"])
    assert trace.cycles["drafted"].max() == 12
    assert trace.run["memory"]["start"]["state"] == "cold"
    assert trace.run["memory"]["end"]["known"] > 0


def test_sampling_has_the_targets_law():
    for result in audit.law.check(TokenRecycling, settings=[Sampling(1.0), Sampling(0.9, top_k=2)]):
        assert result.holds, result


def test_sampled_decisions_are_repeated_from_the_record():
    model = llama(seed=6, vocabulary=16, eos=())
    trace = specviz.generate(
        model, [[3, 4, 5], [1, 2]], "token_recycling", max_new_tokens=60, temperature=0.8, seed=4,
        draft_size=12,
    )  # fmt: skip
    again = trace.recheck()
    assert len(again) > 50
    assert again["agrees"].all()
    assert (again["status"] == "accepted").any()


def test_memory_is_kept_saved_and_loaded(tmp_path):
    model = llama(seed=5, vocabulary=24, eos=())
    method = TokenRecycling(draft_size=12)
    specviz.generate(model, [[3, 4]], method, max_new_tokens=20)
    warm = specviz.generate(model, [[3, 4]], method, max_new_tokens=20)
    assert warm.run["memory"]["start"]["state"] == "warm"
    path = method.save(tmp_path / "x.store", model)
    again = TokenRecycling(draft_size=12, keep="prompt")
    again.load(path, model)
    trace = specviz.generate(model, [[3, 4], [3, 4]], again, max_new_tokens=20)
    taus = trace.cycles.groupby("prompt")["emitted"].apply(list)
    assert taus[0] == taus[1]
    assert trace.run["memory"]["start"]["state"] == "warm"
    with pytest.raises(ParameterError, match="made with candidates=8, and the method has 4"):
        TokenRecycling(candidates=4).load(path, model)
    with pytest.raises(ParameterError, match="memory of token_recycling, not of unispec"):
        find("unispec")().load(path, model)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 5))
def test_greedy_growth_is_the_best_tree(data, n):
    """Compare with every tree of n nodes over levels of three, two and one ranks."""
    rate = st.floats(0.01, 1)
    rates = [[data.draw(rate) for _ in range(width)] for width in (3, 2, 1)]
    every = [path for depth in (1, 2, 3) for path in product(*(range(len(r)) for r in rates[:depth]))]
    whole = [
        tree for tree in combinations(every, n) if all(len(p) == 1 or p[:-1] in tree for p in tree)
    ]  # fmt: skip
    best = max(expected(rates, tree) for tree in whole)
    found = grow(rates, n)
    assert len(found) == n
    assert expected(rates, found) == pytest.approx(best)


def test_the_authors_tree_has_their_80_nodes():
    method = TokenRecycling(template="authors")
    assert [len(level.at) for level in Template(method.paths).levels] == [8, 21, 25, 15, 8, 3]
    # The deepest path takes the likeliest token at each level; a narrower matrix drops paths it cannot fill.
    assert (0, 0, 0, 0, 0, 0) in method.paths and (7, 0) in method.paths
    assert max(max(path) for path in TokenRecycling(template="authors", candidates=4).paths) == 3


def test_the_bundled_template_is_what_its_rates_grow():
    about = json.loads(bundled().read_text(encoding="utf8"))
    paths = read(bundled(), 8)
    assert paths == grow(about["rates"], len(paths))
    assert paths[:80] == grow(about["rates"], 80)
    assert len(TokenRecycling().paths) == 80
    assert TokenRecycling(draft_size=7).paths == paths[:7]
    narrow = TokenRecycling(candidates=2, draft_size=20)
    assert narrow.paths == [path for path in paths if max(path) < 2][:20]
    assert about["model"] == "town"
    assert "dev split" in about["prompts"]


def test_a_template_of_ones_own(tmp_path):
    file = tmp_path / "t.json"
    file.write_text("[[1, 0], [0], [1], [0, 0]]")
    method = TokenRecycling(template=str(file))
    assert method.paths == [(1,), (1, 0), (0,), (0, 0)]  # parents first, otherwise in the file's order
    assert TokenRecycling(template=str(file), draft_size=3).paths == [(1,), (1, 0), (0,)]
    file.write_text('{"paths": [[0]]}')
    assert TokenRecycling(template=str(file)).paths == [(0,)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[0], [1", "is not JSON"), ("{}", "a list of rank paths"), ("[]", "a list of rank paths"),
        ('[[0], "x"]', 'holds "x"'), ("[[0], []]", r"holds \[\]"), ("[[0.5]]", r"holds \[0.5\]"),
        ("[[true]]", r"holds \[true\]"), ("[[0], [8]]", "ranks go from 0 to 7"),
        ("[[-1]]", "ranks go from 0 to 7"),
        ("[[0], [1, 0]]", r"\[1, 0\] without its parent \[1\]"), ("[[0], [0]]", "twice"),
        (json.dumps([[0] * (i + 1) for i in range(513)]), "513 nodes, and at most 512"),
    ],
)  # fmt: skip
def test_a_bad_template_is_refused(text, words, tmp_path):
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(ParameterError, match=words) as caught:
        TokenRecycling(template=str(file))
    assert "\n" not in str(caught.value)


def test_bad_values(tmp_path):
    with pytest.raises(ParameterError, match="cannot be read"):
        TokenRecycling(template=str(tmp_path / "none.json"))
    for values, words in (({"draft_size": 0}, "draft_size"), ({"candidates": 0}, "candidates")):
        with pytest.raises(ParameterError, match=words):
            TokenRecycling(**values)


@settings(max_examples=100, deadline=None)
@given(paths=templates(), data=st.data())
def test_any_order_becomes_a_tree(paths, data):
    shuffled = data.draw(st.permutations(paths))
    found = ordered([list(path) for path in shuffled], "t", 4)
    assert sorted(found) == sorted(paths)
    assert all(len(p) == 1 or p[:-1] in found[:i] for i, p in enumerate(found))
    tree = Template(found)
    assert sorted(np.concatenate([level.at for level in tree.levels])) == list(range(1, len(found) + 1))
