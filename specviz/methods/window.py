"""Lookahead's window: guesses of the tokens to come, bettered by the target's own passes (Jacobi iteration).

Fu et al. 2024 ("Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"), section 3.1.
The window is W columns wide and N - 1 rows high, each row the answer to the row above one step
before. A pass reads it as a comb: row 0 hangs below the root as a chain, the other cells of a column hang
below that column's cell of row 0, column 0 below the root itself. So the cell of row r in column i stands
i + r places after the root, and what the target says of the last row is the next one.

How it is filled at the beginning and how it moves on is the authors' implementation
(https://github.com/hao-ai-lab/LookaheadDecoding): it moves one place a step, also where a step commits more.
"""

from __future__ import annotations

import numpy as np

SEED = 0  # of the first row: it is drawn, yet a function of the prompt


class Window:
    """The 2D window.

    Parameters
    ----------
    width : int
        Columns W once it is full; 0: no window.
    ngram : int
        N: a column, the root or the cell above it included, makes an n-gram with the target's answer.
    prompt : sequence of int
        The first row is drawn from it.

    Attributes
    ----------
    rows : list of arrays
        Row 0 has one cell less than the others, for the root is its first. One row at the beginning, N - 1
        when it is full, none when there is no room left for it.
    """

    def __init__(self, width: int, ngram: int, prompt: list[int]) -> None:
        self.ngram = ngram
        # Each step of the filling takes a column off, so it begins with N - 2 more than it will have.
        first = np.random.default_rng(SEED).choice(np.asarray(prompt, np.int64), width + ngram - 3)
        self.rows: list[np.ndarray] = [first] if width else []

    @property
    def columns(self) -> int:
        """Columns that it has now."""
        return len(self.rows[0]) + 1 if self.rows else 0

    def comb(self, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Its cells as nodes below the root: tokens and parents, row by row.

        Columns that would reach deeper than `depth` are given up for good: the text has no room for them.
        """
        last = len(self.rows) - 1
        columns = min(self.columns, depth - last + 1)
        if columns < 1 + (len(self.rows) < self.ngram - 1):  # while it fills, the next step takes one off
            self.rows = []
            return np.empty(0, np.int64), np.empty(0, np.int64)
        self.rows = [self.rows[0][: columns - 1], *(row[:columns] for row in self.rows[1:])]
        above = [np.arange(-1, columns - 2)]  # row 0 is a chain
        if last:  # row 1 hangs below it, the others each below the row above
            above += [np.arange(-1, columns - 1), np.arange(columns - 1, last * columns - 1)]
        return np.concatenate(self.rows), np.concatenate(above)

    def move(self, root: int, after: np.ndarray) -> np.ndarray:
        """Take the target's answers and go one place on.

        Parameters
        ----------
        root : int
            The token below which the comb hung.
        after : array of int, shape [nodes]
            What the target would write after each node of the comb.

        Returns
        -------
        array of int, shape [columns, N]
            The n-gram of each column; none while the window fills.
        """
        none = np.empty((0, self.ngram), np.int64)
        if not self.rows:
            return none
        first, *others = self.rows
        if not others:
            self.rows = [first[1:], after]
            return none
        new = after[-len(others[0]) :]
        if len(self.rows) < self.ngram - 1:
            self.rows = [row[1:] for row in (*self.rows, new)]
            return none
        grams = np.stack([np.append(root, first), *others, new], 1)
        self.rows = [others[0][1:], *others[1:], new]
        return grams


def nodes(width: int, ngram: int) -> int:
    """Most nodes that a window has, while it fills or later: W (N - 1) - 1, if it is not very narrow."""
    last = np.arange(ngram - 1)
    columns = width + ngram - 2 - last
    return int((columns - 1 + last * columns).max()) if width else 0


def widest(width: int, ngram: int, most: int) -> int:
    """Columns of the widest window of at most `width` whose nodes are never more than `most`."""
    return max(w for w in range(width + 1) if nodes(w, ngram) <= most)
