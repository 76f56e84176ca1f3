"""The masked-diffusion objective: hide some cells of an answer and predict them from the rest.

LLaDA (Nie et al. 2025) masks a share t of an answer's cells and divides the loss of the masked ones by t. A
share drawn from (0, 1) (eq. 3) and a count drawn from 1 ... n (t = count / n; section 2.4, for likelihoods)
give the same mean. The count is steadier, since every text weighs the same, and is used here for training and
scoring. Answers are padded with the end token, which the model learns to write like any other.

Decoding goes block by block, and masks drawn from all cells almost never produce a text as decoding meets it:
all before a block written, all after it masked. So some texts can get such masks (`hide_blocks`). Their loss
is the same bound, of one block given those before it, summed over blocks (BD3-LM, Arriola et al. 2025),
except that the canvas after the block is present, masked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCKS = (4, 8, 16, 32)  # cells per block; one size is drawn for each text

Cells = NDArray[np.bool_]


class Masks(NamedTuple):
    """The masked cells of a batch of canvases, those to predict, and the weights of their losses.

    Attributes
    ----------
    learnt : array of bool [rows, length]
        Masked cells whose tokens are predicted.
    masked : array of bool [rows, length]
        All masked cells.
    weights : array of float [learnt cells]
        Weights of their losses, row by row; the weighted sum is the batch's bound per cell.
    """

    learnt: Cells
    masked: Cells
    weights: NDArray[np.float64]


def hide(cells: Cells, rng: np.random.Generator) -> tuple[Cells, NDArray[np.float64]]:
    """Draw the masked cells, bool like `cells`, and return them with each row's masked share t, [rows].

    One draw for the batch, spread evenly over its rows, makes each row's count uniform and the batch's mean
    steady.
    """
    rows, count = len(cells), cells.sum(1)
    masks = 1 + (count * ((rng.random() + rng.permutation(rows) / rows) % 1.0)).astype(np.int64)
    order = np.where(cells, rng.random(cells.shape), 2.0).argsort(1).argsort(1)
    return order < masks[:, None], masks / count


def hide_blocks(
    canvas: NDArray[np.int64], cells: Cells, end: int, rng: np.random.Generator,
) -> tuple[Cells, Cells, NDArray[np.float64]]:  # fmt: skip
    """Masks of answers that are written block by block: one random block of each text stands for all.

    Blocks before it are written, blocks after it are masked, and some of its own cells are masked (`hide`). A
    text's last block is the one that holds its first end token, where decoding stops.

    Returns
    -------
    tuple of (learnt bool like `cells`, masked bool like `cells`, weights float [rows])
        ``learnt`` marks the masked cells of the block; a row's weight is its number of blocks over t.
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
    """Draw a batch's masks: by blocks for the share `blockwise` of its texts, else over the whole canvas.

    Parameters
    ----------
    canvas : array of int [rows, length]
    cells : array of bool [rows, length]
        Which places belong to the answer.
    end : int
        The end token.
    blockwise : float
    rng : Generator
        Seeded by the batch, it gives the same texts the same masks each time.
    """
    learnt, shares = hide(cells, rng)
    masked, weights = learnt.copy(), 1 / shares
    count = int(cells.sum())
    if some := round(len(canvas) * blockwise):
        rows = rng.permutation(len(canvas))[:some]  # a batch may be sorted by length
        learnt[rows], masked[rows], weights[rows] = hide_blocks(canvas[rows], cells[rows], end, rng)
        count = int(np.rint((weights[:, None] * learnt).sum()))
    return Masks(learnt, masked, np.repeat(weights / count, learnt.sum(1)))
