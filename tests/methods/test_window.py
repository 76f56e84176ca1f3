"""Lookahead's window against a version with a dict of cells and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.draft import Draft
from specviz.methods.window import Window, nodes, widest


class Slow:
    """The window as a dict of (row, column) to token; the tokens of column i continue the path to it."""

    def __init__(self, first, width, ngram):
        self.cells = {(0, i + 1): int(t) for i, t in enumerate(first)}
        self.width, self.ngram, self.last = width, ngram, 0

    def path(self, row, column):
        chain = [self.cells[0, i] for i in range(1, column + 1)]
        return (*chain, *(self.cells[r, column] for r in range(1, row + 1)))

    def paths(self, depth):
        """List all paths, after dropping the columns whose last cell is deeper than `depth`."""
        self.cells = {(r, i): t for (r, i), t in self.cells.items() if i + self.last <= depth}
        rows = {r for r, _ in self.cells} | {0}
        columns = {i for _, i in self.cells} | {0}
        if len(rows) <= self.last or (self.last < self.ngram - 2 and len(columns) < 2):
            self.cells = {}
        return [self.path(r, i) for r, i in sorted(self.cells)]

    def move(self, root, answer):
        """Advance the window; `answer` gives the target's token after a path."""
        if not self.cells:
            return []
        columns = sorted({i for _, i in self.cells} | {0})
        below = {i: answer(self.path(self.last, i)) for i in columns if (self.last, i) in self.cells}
        full = self.last == self.ngram - 2
        grams = []
        if full:
            for i in columns:
                above = root if i == 0 else self.cells[0, i]
                grams.append((above, *(self.cells[r, i] for r in range(1, self.last + 1)), below[i]))
        # The root has moved on by one position, so a cell that keeps its position moves one column left.
        # Once the window is full, the cell moves up one row in its own column instead.
        new = dict(self.cells) | {(self.last + 1, i): t for i, t in below.items()}
        if full:
            moved = {(r - 1, i): t for (r, i), t in new.items() if r > 1 or (r == 1 and i > 0)}
        else:
            moved = {(r, i - 1): t for (r, i), t in new.items() if i > (1 if r == 0 else 0)}
            self.last += 1
        self.cells = moved
        return grams


def answer(path):
    return (sum((i + 3) * t for i, t in enumerate(path)) * 7 + len(path)) % 11


def paths_of(tokens, parents):
    draft = Draft(tokens, parents)
    return [tuple(int(tokens[j]) for j in draft.path(i)) for i in range(len(draft))]


@settings(max_examples=200, deadline=None)
@given(width=st.integers(1, 6), ngram=st.integers(3, 6), depths=st.lists(st.integers(1, 14), max_size=16))
def test_it_is_the_window_by_hand(width, ngram, depths):
    window = Window(width, ngram, [3, 1, 4, 1, 5])
    slow = Slow(window.rows[0], width, ngram)
    root, grams = 2, 0
    for depth in [20, 20, *sorted(depths, reverse=True)]:
        tokens, parents = window.comb(depth)
        paths = paths_of(tokens, parents)
        assert paths == slow.paths(depth)
        assert max(map(len, paths), default=0) <= depth
        assert len(paths) <= nodes(width, ngram)
        after = np.array([answer(path) for path in paths], np.int64)
        found = window.move(root, after)
        assert [tuple(row) for row in found.tolist()] == slow.move(root, answer)
        grams += len(found)
        root = (root * 5 + 1) % 11
    if width > 1 and len(depths) > 8 and min(depths) > 12:
        assert grams


def test_it_fills_row_by_row_and_then_keeps_its_size():
    window, sizes, grams = Window(3, 5, [1, 2]), [], []
    for _ in range(6):
        tokens, _ = window.comb(99)
        sizes.append([len(row) for row in window.rows])
        grams.append(len(window.move(0, tokens + 1)))
    assert sizes == [[5], [4, 5], [3, 4, 4], [2, 3, 3, 3], [2, 3, 3, 3], [2, 3, 3, 3]]
    assert grams == [0, 0, 0, 3, 3, 3]


@pytest.mark.parametrize(("ngram", "most"), [(3, 1), (3, 30), (5, 30), (5, 59), (8, 12), (16, 10)])
def test_the_widest_that_fits(ngram, most):
    width = widest(15, ngram, most)
    window, sizes = Window(width, ngram, [1, 2, 3]), [0]
    for _ in range(2 * ngram):
        tokens, _ = window.comb(99)
        sizes.append(len(tokens))
        window.move(0, tokens)
    assert max(sizes) == nodes(width, ngram) <= most
    assert width == 15 or nodes(width + 1, ngram) > most


def test_no_columns_no_nodes():
    window = Window(0, 5, [1])
    assert len(window.comb(9)[0]) == len(window.move(1, np.empty(0, np.int64))) == 0
