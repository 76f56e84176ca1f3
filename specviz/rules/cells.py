"""Which masked cells of a canvas self speculative decoding drafts, and as what tree: NumPy alone.

Gao et al. 2025, section 3.2.2 and Algorithm 1 (appendix A). `specviz.methods.ssd` drafts by it, and the
what-ifs replay it from a record, where there is no model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Picked(NamedTuple):
    """Cells that are drafted.

    Parameters
    ----------
    cells, parents : arrays of int [nodes]
        As `Draft` takes them.
    stop : str
        Why there are no more: ``length`` (N of them), ``refresh`` or ``room`` (behind them comes a refresh or
        the canvas ends), ``read`` (no more cells have been read), ``first`` (none has), ``tail`` (fewer
        than N are masked).
    """

    cells: np.ndarray
    parents: np.ndarray
    stop: str


def picked(
    masked: np.ndarray, belief: np.ndarray, block: int, room: int, draft_length: int, tree: str, tail: str
) -> Picked:
    """The surest drafts, those of the block in work first.

    Parameters
    ----------
    masked : array of bool [cells]
    belief : array of float [cells]
        Log-odds of each cell's draft; -inf where no pass has read it.
    block : int
        Cells of a block.
    room : int
        Tokens that may follow from the pass, the one that it places itself included.
    draft_length, tree, tail
        SSD's parameters.
    """
    none = np.zeros(0, np.int64)
    cells = np.flatnonzero(masked & (belief > -np.inf))
    if not len(cells):
        return Picked(none, none, "first")  # nothing has been read yet: line 4
    if masked.sum() < draft_length and tail == "stepwise":
        return Picked(none, none, "tail")  # lines 8 and 9, which count the cells that can be drafted
    ahead = cells // block - int(masked.argmax()) // block
    cells, ahead = cells[ahead <= 1], ahead[ahead <= 1]
    # Section 3.2.2: the block in work first, then the next one, each by confidence; line 7.
    order = cells[np.lexsort((-belief[cells], ahead))][:draft_length]
    most = max(room - 1, 0)  # the pass itself places one more
    stop = "length"
    if most < len(order):
        stop = "room" if room == masked.sum() else "refresh"
    elif len(order) < draft_length:
        stop = "read"
    order = order[:most]
    if tree == "mix" and len(order) > 1:
        return Picked(*mixed(order, block), stop)
    return Picked(order, np.arange(-1, len(order) - 1), stop)


def mixed(order: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The mix-order tree (section 5.2, figure 4b): cells and parents.

    Behind the chain stand its skips: the canvas of node k, given the cell that is the chain's after next.
    Nothing grows from them. A skip over a block's last cell is left out: no state of stepwise decoding has
    it.
    """
    n = len(order)
    skips = np.arange(1, n)
    skips = skips[order[skips] // block == order[skips - 1] // block]
    cells = np.concatenate((order, order[skips]))
    return cells, np.concatenate((np.arange(-1, n - 1), skips - 2))
