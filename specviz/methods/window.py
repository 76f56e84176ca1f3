"""Lookahead's window: guesses of future tokens, refined by the target's own passes (Jacobi iteration).

Fu et al. 2024 ("Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"), section 3.1.
The window is W columns wide and N - 1 rows high; each row is the target's answer to the row above, one step
earlier. A pass reads it as a comb: row 0 is a chain below the root, and the other cells of a column are a
chain below that column's cell of row 0, in column 0 below the root itself. So the cell of row r in column i
is i + r places after the root, and the target's answer to the last row is the next row.

The window is filled and moved as in the authors' implementation
(https://github.com/hao-ai-lab/LookaheadDecoding): one place per step, even if a step commits more tokens.
"""

from __future__ import annotations

import numpy as np

SEED = 0  # the first row is random, but depends on the prompt alone


class Window:
    """The 2D window.

    Parameters
    ----------
    width : int
        Number of columns W once it is full; 0: no window.
    ngram : int
        N: the root or a cell of row 0, the cells below it and the target's answer form an n-gram.
    prompt : sequence of int
        Tokens from which the first row is drawn.

    Attributes
    ----------
    rows : list of arrays
        Row 0 has one cell less than the others, because the root is its first. One row at the start, N - 1
        when the window is full, none when there is no room left for it.
    """

    def __init__(self, width: int, ngram: int, prompt: list[int]) -> None:
        self.ngram = ngram
        # Each filling step removes a column, so it starts with N - 2 more than it will have.
        first = np.random.default_rng(SEED).choice(np.asarray(prompt, np.int64), width + ngram - 3)
        self.rows: list[np.ndarray] = [first] if width else []

    @property
    def columns(self) -> int:
        """Current number of columns."""
        return len(self.rows[0]) + 1 if self.rows else 0

    def comb(self, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """The cells as nodes below the root: tokens and parents, row by row.

        Columns that would reach deeper than `depth` are dropped for good: the text has no room for them.
        """
        last = len(self.rows) - 1
        columns = min(self.columns, depth - last + 1)
        if columns < 1 + (len(self.rows) < self.ngram - 1):  # while it fills, the next step removes one
            self.rows = []
            return np.empty(0, np.int64), np.empty(0, np.int64)
        self.rows = [self.rows[0][: columns - 1], *(row[:columns] for row in self.rows[1:])]
        above = [np.arange(-1, columns - 2)]  # row 0 is a chain
        if last:  # row 1 is below it, the others each below the row above
            above += [np.arange(-1, columns - 1), np.arange(columns - 1, last * columns - 1)]
        return np.concatenate(self.rows), np.concatenate(above)

    def move(self, root: int, after: np.ndarray) -> np.ndarray:
        """Take in the target's answers and move one place on.

        Parameters
        ----------
        root : int
            The token below which the comb was read.
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
    """Maximum number of nodes of a window, even while it fills: W (N - 1) - 1, unless very narrow."""
    last = np.arange(ngram - 1)
    columns = width + ngram - 2 - last
    return int((columns - 1 + last * columns).max()) if width else 0


def widest(width: int, ngram: int, most: int) -> int:
    """Columns of the widest window, up to `width`, that never has more than `most` nodes."""
    return max(w for w in range(width + 1) if nodes(w, ngram) <= most)
