"""Token sequences merged into one tree, so that shared prefixes are read once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..draft import ROOT

END = -1  # pads the rows of shorter sequences


@dataclass(frozen=True)
class PrefixTree:
    """A tree whose paths are the prefixes of some sequences.

    Nodes are in the order of the sequences that added them, so the first n nodes are also a tree: that of the
    first sequences, as far as n nodes reach.

    Attributes
    ----------
    tokens, parents : arrays of int, shape [n]
        As in `Draft`.
    row : array of int, shape [n]
        Index of the first sequence through each node.
    level : array of int, shape [n]
        Depth, 1 below the root.
    count : array of int, shape [n]
        Number of sequences through each node.
    """

    tokens: np.ndarray
    parents: np.ndarray
    row: np.ndarray
    level: np.ndarray
    count: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


def merge(rows: np.ndarray) -> PrefixTree:
    """Merge sequences, given as rows [m, longest] padded with -1."""
    if not rows.size:
        return PrefixTree(*[np.empty(0, np.int64)] * 5)
    order = np.lexsort(rows.T[::-1])  # puts rows with a common prefix next to each other
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
    """Cut each row after its first token in `ends`: nothing after it could be emitted."""
    ended = (rows[..., None] == ends).any(-1)
    if not ended.any():
        return rows
    after = (ended.cumsum(1) - ended) > 0
    return np.where(after, END, rows)
