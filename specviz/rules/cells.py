"""The rules of self speculative decoding: which masked cells to draft, in which tree, and which to accept.

Gao et al. 2025, section 3.2.2 and Algorithm 1 (appendix A). `specviz.methods.ssd` uses these functions while
it decodes; the what-ifs use them to replay a record without a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..draft import ROOT, Draft
from ..schema import Metadata
from .parameters import Parameter

SSD = (
    Parameter("draft_length", 4, 1, 64, "tokens", "Number of cells drafted per cycle.", "N"),
    Parameter(
        "tree", "chain", choices=("chain", "mix"),
        meaning="A chain of N canvases, or mix-order: each but the last also gets its successor, 2N − 1 "
            "canvases.",
    ),
    Parameter(
        "tail", "stepwise", choices=("stepwise", "shorter"),
        meaning="If fewer than N cells are masked: one token per pass, as in the paper, or fewer drafts.",
    ),
)  # fmt: skip
# Log-odds and logits of canvases are compared on a grid, so that values that are equal in theory are equal
# here, whatever the shape of the pass that computed them; values at an edge of the grid may still differ.
# (Half precision has coarser steps of its own.)
COARSE = 2.0**-12
FINE = 2.0**-30  # for a run in float64


class Cells(NamedTuple):
    """The cells of a draft.

    Parameters
    ----------
    cells, parents : arrays of int [nodes]
        As `Draft` takes them.
    stop : str
        Why there are no more: ``length`` (N cells), ``refresh`` or ``room`` (a refresh comes next, or the
        canvas ends), ``read`` (no pass has read more cells), ``first`` (none has read any), ``tail`` (fewer
        than N are masked).
    """

    cells: np.ndarray
    parents: np.ndarray
    stop: str


def pick_cells(
    masked: np.ndarray, belief: np.ndarray, block: int, room: int, draft_length: int, tree: str, tail: str,
    first: bool = False,
) -> Cells:  # fmt: skip
    """Pick the masked cells with the surest drafts, those of the current block first.

    Parameters
    ----------
    masked : array of bool [cells]
    belief : array of float [cells]
        Log-odds of each cell's draft; -inf if no pass has read it.
    block : int
        Cells per block.
    room : int
        Number of tokens that the pass may place, including its own.
    draft_length, tree, tail
        SSD's parameters.
    first : bool
        Whether a block's first cell is placed before its others; see `starts_with_first`.
    """
    none = np.zeros(0, np.int64)
    cells = np.flatnonzero(masked & (belief > -np.inf))
    if not len(cells):
        return Cells(none, none, "first")  # no pass has read a cell yet: line 4
    if masked.sum() < draft_length and tail == "stepwise":
        return Cells(none, none, "tail")  # lines 8 and 9, with every masked cell counted as a candidate
    ahead = cells // block - int(masked.argmax()) // block
    cells, ahead = cells[ahead <= 1], ahead[ahead <= 1]
    # Section 3.2.2: the current block first, then the next one, each by confidence; line 7.
    waits = (cells % block > 0) & first
    order = cells[np.lexsort((-belief[cells], waits, ahead))][:draft_length]
    most = max(room - 1, 0)  # the pass itself places one more
    stop = "length"
    if most < len(order):
        stop = "room" if room == masked.sum() else "refresh"
    elif len(order) < draft_length:
        stop = "read"
    order = order[:most]
    if tree == "mix" and len(order) > 1:
        return Cells(*mix_order(order, block), stop)
    return Cells(order, np.arange(-1, len(order) - 1), stop)


def mix_order(order: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The mix-order tree (section 5.2, figure 4b): cells and parents.

    The chain is followed by its skips: a skip fills node k's canvas with the chain's cell after next. A skip
    has no children. A skip over a block's last cell is left out, because stepwise decoding has no such state.
    """
    n = len(order)
    skips = np.arange(1, n)
    skips = skips[order[skips] // block == order[skips - 1] // block]
    cells = np.concatenate((order, order[skips]))
    return cells, np.concatenate((np.arange(-1, n - 1), skips - 2))


def judge_cells(draft: Draft, place: Callable[[int], tuple[int, int] | None]) -> tuple[list[int], list[str]]:
    """The accepted path of a draft, and each node's status.

    A node is accepted if its parent's canvas would unmask this cell with this token next. The same token
    placed a step later is another state.

    Parameters
    ----------
    draft : Draft
        Its positions are cells.
    place : callable
        ``place(node)`` returns the cell and token that a canvas places next (-1: the root's), or None.
    """
    cells, tokens, path = draft.offsets, draft.tokens, [ROOT]
    status = ["unjudged"] * len(draft)
    while (step := place(path[-1])) is not None:
        children = np.flatnonzero(draft.parents == path[-1])
        right = (cells[children] == step[0]) & (tokens[children] == step[1])
        for child, good in zip(children.tolist(), right.tolist()):
            status[child] = "accepted" if good else "rejected"
        if not right.any():
            break
        path.append(int(children[right][0]))
    return path[1:], status


def caches_by_block(canvas: Metadata) -> bool:
    """Whether a run used Fast-dLLM's dual cache, whose passes depend on the block's start as well.

    `canvas` is that entry of the run's metadata.
    """
    return canvas.get("cache") == "dual" and canvas.get("cache_rule") == "fast_dllm"


def starts_with_first(canvas: Metadata) -> bool:
    """Whether a block's first cell is placed before its others, however sure they are.

    A shifted model predicts a block's first cell at the position before the block, which Fast-dLLM's dual
    cache computes only in a refresh.
    """
    return caches_by_block(canvas) and bool(canvas.get("shift"))
