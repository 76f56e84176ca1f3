"""The masked-diffusion objective: some cells of an answer are hidden and predicted from the rest.

LLaDA (Nie et al. 2025): a share t of an answer's cells is masked, and the loss of the masked ones divided by
t. A share drawn from (0, 1) (eq. 3) and a count drawn from 1 ... n (t = count / n; section 2.4, for
likelihoods) give the same mean. The second is steadier, since every text weighs the same, and is what is
trained and scored here. Answers are padded with the end token, which the model learns to write as any other.

Decoding goes block by block, and masks drawn from all cells almost never leave a text as it is met there: all
before a block written, all after it masked. So some texts can have such masks (`hide_blocks`). Theirs is the
same bound, of one block given those before it, summed over blocks (BD3-LM, Arriola et al. 2025), but that the
canvas after the block stands there, masked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCKS = (4, 8, 16, 32)  # cells of a block, one of them drawn for each text

Cells = NDArray[np.bool_]


class Masks(NamedTuple):
    """What is hidden of a batch of canvases, and what of it is learnt.

    Attributes
    ----------
    learnt : array of bool [rows, length]
        Masked cells whose tokens are predicted.
    masked : array of bool [rows, length]
        All masked cells.
    weights : array of float [cells learnt]
        Of their losses, row by row, such that the sum is the bound of the batch a cell.
    """

    learnt: Cells
    masked: Cells
    weights: NDArray[np.float64]


def hide(cells: Cells, rng: np.random.Generator) -> tuple[Cells, NDArray[np.float64]]:
    """Which cells are masked, bool like `cells`, and the share t of each row that is, [rows].

    One draw for the batch, spread evenly over its rows: each row's count is uniform, the batch's mean steady.
    """
    rows, count = len(cells), cells.sum(1)
    masks = 1 + (count * ((rng.random() + rng.permutation(rows) / rows) % 1.0)).astype(np.int64)
    order = np.where(cells, rng.random(cells.shape), 2.0).argsort(1).argsort(1)
    return order < masks[:, None], masks / count


def hide_blocks(
    canvas: NDArray[np.int64], cells: Cells, end: int, rng: np.random.Generator,
) -> tuple[Cells, Cells, NDArray[np.float64]]:  # fmt: skip
    """The masks of answers that are written block by block: one block of each, drawn, stands for all.

    Blocks before it are written, those after it all masked; of its own cells some are (`hide`). A text's
    blocks are those up to the one that holds its first end token, where decoding stops.

    Returns
    -------
    tuple of (learnt bool like `cells`, masked bool like `cells`, weights float [rows])
        ``learnt`` are the masked cells of the block; the weight of a row's is its blocks over t.
    """
    place = cells.cumsum(1) - 1
    size = rng.choice(BLOCKS, len(cells))[:, None]
    ends = np.take_along_axis(place, (cells & (canvas == end)).argmax(1)[:, None], 1)
    count = ends // size + 1
    at = (rng.random(count.shape) * count).astype(np.int64)
    learnt, shares = hide(cells & (place // size == at), rng)
    return learnt, learnt | (cells & (place // size > at)), count[:, 0] / shares


def draw_masks(
    canvas: NDArray[np.int64], cells: Cells, end: int, blockwise: float, rng: np.random.Generator
) -> Masks:
    """Masks of a batch: the share `blockwise` of its texts by blocks, the others over the whole canvas.

    Parameters
    ----------
    canvas : array of int [rows, length]
    cells : array of bool [rows, length]
        Which of its places are the answer's.
    end : int
        The end token.
    blockwise : float
    rng : Generator
        One seeded by the batch lets every look at the same texts see the same masks.
    """
    learnt, shares = hide(cells, rng)
    masked, weights = learnt.copy(), 1 / shares
    count = int(cells.sum())
    if some := round(len(canvas) * blockwise):
        learnt[:some], masked[:some], weights[:some] = hide_blocks(canvas[:some], cells[:some], end, rng)
        count = int(np.rint((weights[:, None] * learnt).sum()))
    return Masks(learnt, masked, np.repeat(weights / count, learnt.sum(1)))
