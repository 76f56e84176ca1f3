"""The stores of n-grams, and their merging into a tree, against lists and loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.draft import ROOT
from specviz.methods import chain
from specviz.methods.chain import Chain
from specviz.methods.pool import Pool
from specviz.methods.prefix_tree import END, merge, until

V = 4


def grams(length, most=12):
    return st.lists(
        st.lists(st.integers(0, V - 1), min_size=length, max_size=length), max_size=most
    )  # fmt: skip


class TestPool:
    @settings(max_examples=300, deadline=None)
    @given(batches=st.lists(grams(3), max_size=6), guesses=st.integers(1, 5))
    def test_the_last_met_stay(self, batches, guesses):
        """N-grams move to the front when they are met, and any beyond the G-th are dropped."""
        pool, slow = Pool(V, guesses, 2), {token: [] for token in range(V)}
        for batch in batches:
            pool.learn(np.array(batch, np.int64).reshape(-1, 3))
            for first, *rest in batch:
                if rest in slow[first]:
                    slow[first].remove(rest)
                slow[first] = [rest, *slow[first]][:guesses]
        assert {token: pool.get(token).tolist() for token in range(V)} == slow
        assert pool.entries == sum(map(len, slow.values()))

    def test_its_memory_is_fixed(self):
        pool = Pool(150_000, 15, 4)
        assert pool.bytes == 150_000 * 15 * 5 * 4
        before = {name: array.shape for name, array in pool.arrays().items()}
        pool.learn(np.random.default_rng(0).integers(0, 150_000, (5000, 5)))
        assert {name: array.shape for name, array in pool.arrays().items()} == before


class TestChain:
    @settings(max_examples=200, deadline=None)
    @given(batches=st.lists(grams(3), max_size=6), run=st.tuples(*[st.integers(0, V - 1)] * 2))
    def test_it_follows_what_came_last(self, batches, run):
        store, slow = Chain(2), {}
        for batch in batches:
            store.learn(np.array(batch, np.int64).reshape(-1, 3))
            slow |= {(a, b): c for a, b, c in batch}
        found, at = [], run
        while at in slow and len(found) < 7:
            found.append(slow[at])
            at = (at[1], slow[at])
        assert store.follow(list(run), 7) == found
        assert store.entries == len(slow)

    def test_a_collision_forgets_and_does_not_lie(self, monkeypatch):
        monkeypatch.setattr(chain, "SLOTS", 4)
        rng, store, seen = np.random.default_rng(0), Chain(2), set()
        asked = 0
        for _ in range(50):
            batch = rng.integers(0, 50, (5, 3))
            store.learn(batch)
            seen |= set(map(tuple, batch.tolist()))
            for a, b, _ in batch.tolist():
                if found := store.follow([a, b], 1):
                    assert (a, b, *found) in seen
                    asked += 1
        assert asked > 50
        assert store.entries <= 4


@st.composite
def sequences(draw):
    rows = draw(st.lists(st.lists(st.integers(0, V - 1), max_size=5), max_size=9))
    longest = max(map(len, rows), default=0) + draw(st.integers(0, 1))
    return rows, np.array([row + [END] * (longest - len(row)) for row in rows], np.int64).reshape(
        len(rows), longest
    )


class TestPrefixTree:
    @settings(max_examples=300, deadline=None)
    @given(given_=sequences())
    def test_it_is_the_trie(self, given_):
        rows, array = given_
        tree, known, slow = merge(array), {(): ROOT}, []
        for number, row in enumerate(rows):
            for level in range(1, len(row) + 1):
                path = tuple(row[:level])
                if path not in known:
                    known[path] = len(slow)
                    count = sum(tuple(other[:level]) == path for other in rows)
                    slow.append((path[-1], known[path[:-1]], number, level, count))
        columns = (tree.tokens, tree.parents, tree.row, tree.level, tree.count)
        assert list(zip(*(column.tolist() for column in columns))) == slow
        assert len(tree) == len(slow)

    @settings(max_examples=100, deadline=None)
    @given(given_=sequences(), ends=st.sets(st.integers(0, V - 1), max_size=2))
    def test_nothing_stands_behind_an_end(self, given_, ends):
        rows, array = given_
        for row, found in zip(rows, until(array, np.array(sorted(ends), np.int64)).tolist()):
            stop = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
            assert found == row[:stop] + [END] * (len(found) - stop)
