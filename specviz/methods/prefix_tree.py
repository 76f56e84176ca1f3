"""Token sequences merged into one tree: what they share at their beginnings is read once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..draft import ROOT

END = -1  # fills the row of a shorter sequence


@dataclass(frozen=True)
class PrefixTree:
    """A tree whose paths are the beginnings of some sequences.

    Nodes stand in the order of the sequences that brought them, so the first n of them are a tree too: that
    of the first sequences, as far as n nodes reach.

    Attributes
    ----------
    tokens, parents : arrays of int, shape [n]
        As in `Draft`.
    row : array of int, shape [n]
        The first sequence that leads through each node.
    level : array of int, shape [n]
        Depth, 1 below the root.
    count : array of int, shape [n]
        Sequences that lead through each node.
    """

    tokens: np.ndarray
    parents: np.ndarray
    row: np.ndarray
    level: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


def merge(rows: np.ndarray) -> PrefixTree:
    """Merge sequences, given as rows [m, longest] with -1 after their ends."""
    if not rows.size:
        return PrefixTree(*[np.empty(0, np.int64)] * 5)
    order = np.lexsort(rows.T[::-1])  # side by side stands what begins alike
    rows = rows[order]
    there = rows != END
    new = np.ones(rows.shape, bool)  # whether a cell is the first of its node
    np.logical_or.accumulate(rows[1:] != rows[:-1], 1, out=new[1:])
    new &= there
    row, level = np.nonzero(new)
    size = len(row)
    at = np.full((len(rows), rows.shape[1] + 1), ROOT)  # the node of each cell, the root's first
    at[row, level + 1] = np.arange(size)
    np.maximum.accumulate(at, 0, out=at)
    node, line = at[:, 1:][there], np.broadcast_to(order[:, None], rows.shape)[there]
    first = np.full(size, len(rows))
    np.minimum.at(first, node, line)
    place = np.empty(size + 1, np.int64)
    sort = np.lexsort((level, first))
    place[sort], place[ROOT] = np.arange(size), ROOT
    parents = place[at[row, level]]
    count = np.bincount(node, minlength=size)
    return PrefixTree(*(of[sort] for of in (rows[new], parents, first, level + 1, count)))


def until(rows: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The rows, empty after the first token that is one of `ends`: nothing after it could be emitted."""
    ended = (rows[..., None] == ends).any(-1)
    if not ended.any():
        return rows
    after = (ended.cumsum(1) - ended) > 0
    return np.where(after, END, rows)
