"""Attention whose every row depends on its own text alone, bit for bit.

A product of matrices may add in another order when it has more rows or columns, so a token that is verified
among others can get other bits than one that is decoded alone, and a text parts from the target's. Here every
sum has one order, whatever shares the pass:

- scores are products over a head's width, whose order does not depend on the number of rows or slots as long
  as there are enough rows (`ROWS`) and at least `BLOCK` slots;
- the sum of a row's weights is exact: they are rounded to multiples of `GRID` and added in float64;
- values are added in blocks of `BLOCK` positions, in rising order of slots within a block. A masked slot has
  a weight of exactly 0, and along a path slots rise with positions, so nodes of other paths between them
  change nothing. The blocks are added in rising order.

Which products keep their order is not promised by any library: `keeps` and `fixed_order` test it where the
code runs, on the shapes at hand, before a model may call itself invariant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from specviz.models.devices import send

if TYPE_CHECKING:
    from specviz.models.layers import Lines

BLOCK = 64  # positions whose values are added in one product
ROWS = (8, 16, 32)  # least rows of attention's products, tried in turn: below, another kernel may serve
QUERIES = 128  # of a long pass that are computed at once
# Pieces of the input and least rows that a product is tried with, cheapest first.
WAYS = ((1, 4), (1, 8), (2, 4), (3, 4), (4, 4), (1, 16), (2, 16), (4, 16))
GRID = 2.0**-36  # weights are multiples of it, so that float64 adds 2^17 of them without rounding
ROUNDING = 1.5 * GRID * 2.0**23  # added and taken away again, it leaves a float32 on the grid
_tried_products: dict[tuple[object, ...], bool] = {}  # see `keeps`
MOST_NODES = 128  # of a draft: behind them a product may be too long to keep its order
LENGTHS = (1, 40, BLOCK, 150, 700, 5000)  # of texts after which attention is tried
WIDTHS = (2, 3, 4, 5, 8, 9, 13, 17, 33, 64, 129)  # rows at which products are compared


class Tail(NamedTuple):
    """Slots from the block of a draft's root on, which do not stand in the order of their positions.

    Attributes
    ----------
    start : int
        Their first slot, a multiple of `BLOCK`: up to here a slot's number is its position.
    blocks : list of tensor of int
        The slots of each further block of positions, rising.
    """

    start: int
    blocks: list[torch.Tensor]


def tail(root: int, offsets: np.ndarray, first: int, device: torch.device) -> Tail:
    """The `Tail` of a draft below the token at position `root`.

    Parameters
    ----------
    root : int
        Position of the draft's root, and its slot.
    offsets : array of int [n]
        How far behind the root each node's position lies.
    first : int
        Slot of the first node.
    """
    start = root // BLOCK * BLOCK
    slots = np.concatenate([np.arange(start, root + 1), np.arange(first, first + len(offsets))])
    numbers = np.concatenate([np.arange(start, root + 1), root + np.asarray(offsets)]) // BLOCK
    return Tail(start, [send(slots[numbers == number], device) for number in np.unique(numbers)])


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor,
    scale: float | None = None, tails: Sequence[Tail] | None = None, *, rows: int = ROWS[0],
) -> torch.Tensor:  # fmt: skip
    """Grouped-query attention in one order of additions.

    Parameters
    ----------
    query : tensor [rows, heads, queries, dim]
    key, value : tensor [rows, key-value heads, slots, dim], float32
        As many slots as fill whole blocks.
    mask : tensor [rows or 1, 1, queries, slots]
        Added to the scores: 0 where a query sees a slot, else -inf.
    tails : sequence of Tail, optional
        For each row, where its slots are not in the order of their positions. None: they are.
    rows : int
        Least rows of a product.

    Returns
    -------
    tensor [rows, heads, queries, dim]
        In the format of `query`.
    """
    texts, heads, queries, dim = query.shape
    if queries > QUERIES:
        parts = zip(query.split(QUERIES, 2), mask.split(QUERIES, 2))
        return torch.cat([attend(q, key, value, m, scale, tails, rows=rows) for q, m in parts], 2)
    groups, slots = key.shape[1], key.shape[2]
    lines = heads // groups * queries  # the heads of a group are further rows
    x = query.reshape(texts * groups, lines, dim).float() * (dim**-0.5 if scale is None else scale)
    if lines < rows:
        x = F.pad(x, (0, 0, 0, rows - lines))
    weights = torch.bmm(x, key.flatten(0, 1).transpose(1, 2))
    seen = weights.view(texts, groups, -1, slots)[:, :, :lines]  # padded rows see all, and are dropped
    seen.unflatten(2, (-1, queries)).add_(mask[:, :, None])
    weights.sub_(weights.amax(-1, keepdim=True)).exp_().add_(ROUNDING).sub_(ROUNDING)
    total = weights.sum(-1, keepdim=True, dtype=torch.float64)
    values = value.flatten(0, 1)
    if tails is None:
        out = _summed(_blocks(weights, values))
    else:
        by_row = zip(weights.split(groups), values.split(groups), tails)
        out = torch.cat([_by_position(*row) for row in by_row])
    out = out.div_(total)[:, :lines]
    return out.reshape(texts, heads, queries, dim).to(query.dtype)


def _blocks(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """What each block of slots adds, [groups, blocks, lines, dim], of weights [groups, lines, slots]."""
    by_block = weights.unflatten(2, (-1, BLOCK)).transpose(1, 2)
    return torch.matmul(by_block, values.unflatten(1, (-1, BLOCK)))


def _summed(parts: torch.Tensor) -> torch.Tensor:
    return parts.sum(1) if parts.shape[1] > 1 else parts[:, 0]


def _by_position(weights: torch.Tensor, values: torch.Tensor, tail: Tail) -> torch.Tensor:
    """The sum of one row's values, whose last slots stand out of order."""
    parts = [_blocks(weights[..., : tail.start], values[:, : tail.start])] if tail.start else []
    for slots in tail.blocks:
        part = torch.bmm(weights.index_select(2, slots), values.index_select(1, slots))
        parts.append(part[:, None])
    return _summed(torch.cat(parts, 1) if len(parts) > 1 else parts[0])


# ---------------------------------------------------------------- whether it is so here


def settle(lines: Iterable[Lines]) -> str:
    """Make products keep their order, in pieces of the input where a whole one does not.

    Returns
    -------
    str
        Which one cannot; empty if all do.
    """
    alike: dict[tuple[torch.Size, ...], list[Lines]] = {}
    for line in lines:
        alike.setdefault(tuple(weight.shape for weight in line.weights), []).append(line)
    for shapes, group in alike.items():
        for pieces, least in WAYS:
            group[0].cut(pieces, least)
            if keeps(group[0]):
                break
        else:
            shape = " x ".join(map(str, shapes[0]))
            return f"a product with {shape} weights changes with the number of rows"
        for line in group[1:]:
            line.cut(pieces, least)
    return ""


def keeps(product: Lines) -> bool:
    """Whether a product gives rows of random numbers the bits that it gives each of them alone.

    Of products alike in shape, layout and format one is tried, once for each number of threads.
    """
    first = product.weights[0]
    key = (
        product.layout, product.pieces, product.least, first.dtype, product.bias is None,
        tuple(tuple(weight.shape) for weight in product.weights), torch.get_num_threads(),
    )  # fmt: skip
    if key not in _tried_products:
        _tried_products[key] = _keeps(product)
    return _tried_products[key]


@torch.inference_mode()
def _keeps(product: Lines) -> bool:
    size, width = product.weights[0].shape
    numbers = torch.Generator().manual_seed(size)
    x = torch.randn(WIDTHS[-1], width, generator=numbers).to(product.weights[0])

    def added(rows: torch.Tensor) -> torch.Tensor:
        return product.add(rows, rows.new_ones(len(rows), size))

    for computed in (product, added)[: 1 + (len(product.weights) == 1)]:  # one matrix's output may be added
        alone = {row: computed(x[row : row + 1])[0] for n in WIDTHS for row in (0, n // 2, n - 1)}
        for n in WIDTHS:
            several = computed(x[:n])
            if not all(torch.equal(several[row], alone[row]) for row in (0, n // 2, n - 1)):
                return False
    return True


@cache
def fixed_order(dim: int, threads: int) -> int:
    """How many rows attention's products need to keep their order on this machine; 0 if none helps.

    Tried on random numbers: a token among others and alone, among other texts, slots behind and between that
    are masked, and passes of many lengths.
    """
    state = torch.random.get_rng_state()
    torch.manual_seed(dim)
    try:
        with torch.inference_mode():
            return next((n for n in ROWS if all(_tried(dim, each, n) for each in LENGTHS)), 0)
    finally:
        torch.random.set_rng_state(state)


def _tried(dim: int, length: int, rows: int) -> bool:
    """Whether the last token's row is the same in passes of several shapes over `length` tokens."""
    slots = (length + MOST_NODES + BLOCK) // BLOCK * BLOCK
    query, key, value = (torch.randn(1, 1, 40, dim), *torch.randn(2, 1, 1, slots, dim))
    nothing = torch.full((1, 1, 40, slots), -torch.inf)
    nothing[..., :length] = 0
    least = -(-length // BLOCK) * BLOCK
    one, short = query[:, :, :1], nothing[:, :, :1, :least]
    alone = attend(one, key[:, :, :least], value[:, :, :least], short, rows=rows)
    for queries in (2, 5, 9, 40):
        many = attend(query[:, :, :queries], key, value, nothing[:, :, :queries], rows=rows)
        last = query[:, :, queries - 1 : queries]
        single = attend(last, key[:, :, :least], value[:, :, :least], short, rows=rows)
        if not (torch.equal(many[:, :, :1], alone) and torch.equal(many[:, :, -1:], single)):
            return False
    three = [each.repeat(3, 1, 1, 1) for each in (one, key, value)]
    batch = attend(three[0], three[1], three[2], nothing[:, :, :1], rows=rows)
    if not all(torch.equal(each, alone[0]) for each in batch):
        return False
    # The last tokens move to later slots, as those of a path through a tree do.
    moved, root = min(length - 1, 5), length - 1 - min(length - 1, 5)
    later = np.sort(np.random.default_rng(length).choice(MOST_NODES, moved, replace=False)) + root + 1
    offsets = np.ones(MOST_NODES, np.int64)
    offsets[later - root - 1] = 1 + np.arange(moved)
    for each in (key, value):
        each[:, :, later] = each[:, :, root + 1 : length].clone()
    path = torch.full((1, 1, 1, slots), -torch.inf)
    path[..., : root + 1], path[..., later] = 0, 0
    tails = [tail(root, offsets, root + 1, key.device)]
    return torch.equal(attend(one, key, value, path, tails=tails, rows=rows), alone)
