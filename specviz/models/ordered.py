"""Attention in which every row's result depends only on its own text, bit for bit.

A matrix product may sum in a different order if it has more rows or columns. A token verified together with
others can then get different bits than one decoded alone, and the text can diverge from the target's. Here
every sum has a fixed order, whatever else is in the pass:

- Scores are products over a head's width. Their order does not depend on the number of rows or slots if they
  are computed in a certain way (`Sums`) over at least `BLOCK` slots.
- A row's softmax adds its weights in ascending order of positions. A tree's rows are permuted into that order
  for it; masked slots come last and add exactly 0.
- Values are added in blocks of `BLOCK` positions, in ascending order of slots within a block. Along a path,
  slots ascend with positions, so nodes of other paths between them, with weights of 0, change nothing. The
  blocks are added in ascending order.

No library guarantees which products keep their order: `keeps` and `fixed_order` test it on the machine at
hand, with the shapes in use, before a model is marked as invariant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from specviz.models.devices import send
from specviz.models.kernels import LAYOUTS

if TYPE_CHECKING:
    from specviz.models.layers import Function, Lines

BLOCK = 64  # positions whose values are added in one product
LINES = 384  # most lines of a long pass that are computed at once
QUERIES = (2, 5, 9, 40, 66, 150, LINES)  # numbers of queries with which attention is tested
CHECK = 7  # version of the tests in `keeps` and `fixed_order`; raise it to invalidate saved results
_tried_products: dict[tuple[object, ...], bool] = {}  # see `keeps`
MOST_NODES = 128  # largest draft whose values are added in one product: longer ones may change their order
# Text lengths with which attention is tested. Some end shortly after a block boundary: the last product of a
# draft's values is then short, and torch may use another kernel for it.
LENGTHS = (1, 40, BLOCK, BLOCK + 1, BLOCK + 2, BLOCK + 3, 150, 700, 5000)
SINGLES = 8  # tokens tested alone for each length
WIDTHS = (2, 3, 4, 5, 8, 9, 13, 16, 17, 31, 32, 33, 64, 129)  # numbers of rows at which products are compared
EVERY = 33  # products of at most `SHORT` weights are also compared at each number of rows up to this one
SHORT = 1 << 22
# Nodes of drafts with which attention is tested; every other one after each text.
TREES = (5, 20, 37, 70, 100)
WIDE = (9, 40)  # numbers of queries in these tests
ROUNDED = 30_000  # least number of 16-bit sums that are compared for each of `WIDTHS`
CANCELLED = 6_000  # the same for sums that cancel, of which far more differ if their order changes
MANY = 30_000  # outputs of a row from which on three rows are compared, instead of all
LANES = 64  # most numbers that a vector loop processes at once; a remainder is computed one by one
SERIAL = 1 << 15  # elements up to which torch runs a loop on one thread


class Sums(NamedTuple):
    """How attention computes its sums so that they keep their order.

    Attributes
    ----------
    least : int
        Minimum lines of a product. Fewer are padded, because torch may use another kernel for them.
    fused : bool
        Whether the mask is added within the product of queries and keys, which is faster. MKL then uses other
        kernels from about 60 lines on, except for head widths 16, 64 and 256 (of ten widths tested).
    """

    least: int
    fused: bool


class Cut(NamedTuple):
    """How a product is computed, so that each row keeps its bits.

    Attributes
    ----------
    pieces : int
        Number of parts of the input, whose products are added in turn.
    least, most : int
        Rows computed at once: fewer are padded, more are computed in parts.
    """

    pieces: int
    least: int
    most: int


MOST_ROWS = 128  # most rows of one product
FEW_ROWS = 32  # rows up to which processors that multiply tiles of 16 rows use a single kernel
# Ways to test for a product, cheapest for short decoding passes first. Some layouts also pad by themselves.
WAYS = tuple(
    Cut(pieces, least, most)
    for pieces, least, most in (
        (1, 1, MOST_ROWS), (1, 1, FEW_ROWS), (1, 4, MOST_ROWS), (1, 4, FEW_ROWS), (1, 8, MOST_ROWS),
        (1, 8, FEW_ROWS), (2, 4, MOST_ROWS), (3, 4, MOST_ROWS), (4, 4, MOST_ROWS), (1, 16, MOST_ROWS),
        (2, 16, MOST_ROWS), (4, 16, MOST_ROWS),
    )
)  # fmt: skip


LEAST = (8, 16, 32)
SUMS = tuple(Sums(least, fused) for fused in (True, False) for least in LEAST)  # tested in this order


class Tail(NamedTuple):
    """Slots from the block of a draft's root on, which are not in order of positions.

    Attributes
    ----------
    start : int
        The first of these slots, a multiple of `BLOCK`; before it, slot and position numbers are equal.
    blocks : list of slice or tensor of int
        The slots of each further block of positions, ascending and relative to `start`.
    most : int
        Number of slots in the longest block.
    """

    start: int
    blocks: list[slice | torch.Tensor]
    most: int


def tail(root: int, offsets: np.ndarray, first: int, device: torch.device) -> Tail:
    """Build the `Tail` of a draft below the token at position `root`.

    Parameters
    ----------
    root : int
        Position and slot of the draft's root.
    offsets : array of int [n]
        Distance of each node's position from the root.
    first : int
        Slot of the first node.
    """
    start = root // BLOCK * BLOCK
    slots = np.concatenate([np.arange(start, root + 1), np.arange(first, first + len(offsets))]) - start
    numbers = np.concatenate([np.arange(start, root + 1), root + np.asarray(offsets)]) // BLOCK
    blocks = [slots[numbers == number] for number in np.unique(numbers)]
    return Tail(start, [_range(block, device) for block in blocks], max(map(len, blocks)))


def _range(slots: np.ndarray, device: torch.device) -> slice | torch.Tensor:
    """Convert ascending slots to a slice if they are contiguous, which avoids a copy; else to a tensor."""
    first, last = int(slots[0]), int(slots[-1])
    return slice(first, last + 1) if last - first + 1 == len(slots) else send(slots, device)


class Sight(NamedTuple):
    """Masks for the lines of a pass; a line is one query of one head.

    Attributes
    ----------
    mask : tensor [texts * key-value heads, lines, slots]
        Added to the scores: -inf if a line does not see a slot. Heads that share keys are adjacent.
    tails : sequence of Tail, optional
        One per text, if slots are not in order of positions.
    orders : list of (tensor, tensor) of int [key-value heads, lines, slots of the tail]
        For each tail, the permutation of its slots to the order of positions, and the inverse.
    sums : Sums
        How the sums are computed.
    """

    mask: torch.Tensor
    tails: Sequence[Tail] | None
    orders: list[tuple[torch.Tensor, torch.Tensor]]
    sums: Sums


def sight(
    mask: torch.Tensor, texts: int, heads: int, groups: int,
    tails: Sequence[Tail] | None = None, sums: Sums = SUMS[0],
) -> Sight:  # fmt: skip
    """Build the `Sight` for all layers of a pass.

    Parameters
    ----------
    mask : tensor [texts or 1, 1 or heads, queries, slots]
        Where a query sees a slot, 0 or the bias that a head adds to the score; else -inf. A mask per head
        requires that heads do not share keys.
    heads, groups : int
        Number of query heads, and of key-value heads.
    tails : sequence of Tail, optional
        See `Sight`.
    sums : Sums
        How the sums are computed.
    """
    sharing = heads // groups
    lines = mask.repeat_interleave(sharing, 2)
    if (missing := sums.least - lines.shape[2]) > 0:  # padding lines see everything and are dropped later
        lines = F.pad(lines, (0, 0, 0, missing))
    lines = lines.expand(texts, groups, -1, -1)
    orders = []
    for seen, each in zip(mask.expand(texts, -1, -1, -1), tails or ()):
        unseen = seen[0, :, each.start :].eq(-torch.inf).to(torch.uint8)
        order = unseen.argsort(stable=True, dim=-1)
        place = torch.arange(order.shape[1], device=order.device)
        inverse = torch.empty_like(order).scatter_(1, order, place.expand_as(order))
        padding = place.expand(max(missing, 0), -1)
        whole = (torch.cat([each.repeat_interleave(sharing, 0), padding]) for each in (order, inverse))
        there, back = (index.expand(groups, -1, -1) for index in whole)
        orders.append((there, back))
    return Sight(lines.flatten(0, 1), tails, orders, sums)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Sight, scale: float,
    cap: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Grouped-query attention with a fixed order of additions.

    Parameters
    ----------
    query : tensor [texts, queries, heads, dim]
    key, value : tensor [texts, key-value heads, slots, dim]
        The number of slots must be a multiple of `BLOCK`.
    cap : float, optional
        Scores become ``cap * tanh(score / cap)``.

    Returns
    -------
    tensor [texts * queries, heads * dim]
        In the format of `query`.
    """
    texts, queries, heads, dim = query.shape
    groups, rows = key.shape[1], seen.mask.shape[1]
    key, value = key.to(seen.mask.dtype), value.to(seen.mask.dtype)
    lines = heads // groups * queries
    if queries > 1:
        query = query.unflatten(2, (groups, -1)).transpose(1, 2)
    x = query.reshape(texts * groups, lines, dim)
    if rows == lines:
        x = x.to(key.dtype)
    else:
        x, few = key.new_zeros(texts * groups, rows, dim), x
        x[:, :lines].copy_(few)
    keys, values = key.flatten(0, 1).transpose(1, 2), value.flatten(0, 1)
    if rows <= LINES:
        out = _attended(x, keys, values, seen, scale, cap)
    else:
        out = torch.cat([_attended(*part, scale, cap) for part in _parts(x, keys, values, seen)], 1)
    if rows > lines:
        out = out[:, :lines]
    if queries > 1:
        out = out.reshape(query.shape).transpose(1, 2)
    return out.reshape(texts * queries, -1).to(query.dtype)


class Windows(NamedTuple):
    """Canvases that share a pass; each sees its own selection of the stored keys and values.

    Attributes
    ----------
    rows : tensor of int [canvases, 1, 1]
        The storage row of each canvas.
    slots : tensor of int [canvases, 1, positions]
        Slots of its keys and values, in order of positions, padded to whole blocks.
    queries : tensor of int [canvases, width]
        Indices of its tokens in the pass. Canvases with fewer tokens are padded with index 0.
    mask : tensor [canvases, 1, width, positions]
        0 for a position of the canvas, -inf for padding.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    queries: torch.Tensor
    mask: torch.Tensor

    def sight(self, heads: int, groups: int, sums: Sums) -> Sight:
        """Build the `Sight` for all layers; see the function of the same name."""
        return sight(self.mask, len(self.slots), heads, groups, None, sums)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: Sight, scale: float
    ) -> torch.Tensor:
        """Attend within each canvas; see the function of this name. Returns [canvases * width, heads * dim].

        Parameters
        ----------
        query : tensor [texts, queries, heads, dim]
        key, value : tensor [texts, key-value heads, slots, dim]
        """
        own = query.flatten(0, 1).index_select(0, self.queries.flatten())
        group = torch.arange(key.shape[1], device=key.device)[:, None]
        own = own.view(*self.queries.shape, *query.shape[2:])
        keys, values = (each[self.rows, group, self.slots] for each in (key, value))
        return attend(own, keys, values, seen, scale)


def _parts(
    x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: Sight
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Sight]]:
    """Yield the arguments of `_attended` for one part of the lines at a time."""
    count = -(-x.shape[1] // LINES)
    orders = [list(zip(*(index.tensor_split(count, 1) for index in both))) for both in seen.orders]
    for i, (lines, mask) in enumerate(zip(x.tensor_split(count, 1), seen.mask.tensor_split(count, 1))):
        yield lines, keys, values, Sight(mask, seen.tails, [each[i] for each in orders], seen.sums)


def _attended(
    x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: Sight, scale: float,
    cap: float | None,
) -> torch.Tensor:  # fmt: skip
    """Attention of lines [n, lines, dim] over keys [n, dim, slots] and values [n, slots, dim]."""
    if cap is None and seen.sums.fused:
        scores = torch.baddbmm(seen.mask, x, keys, alpha=scale)
    elif cap is None:
        scores = torch.bmm(x, keys).mul_(scale).add_(seen.mask)
    else:
        raw = torch.bmm(x, keys).mul_(scale / cap)
        scores = _tanh(raw.flatten(0, 1)).view_as(raw).mul_(cap).add_(seen.mask)
    if seen.tails is None:
        return _summed(_blocks(scores.softmax(-1), values))
    groups = len(scores) // len(seen.tails)
    for part, tail, (order, _) in zip(scores.split(groups), seen.tails, seen.orders):
        last = part[..., tail.start :]
        last.copy_(_arranged(last, order))
    weights = scores.softmax(-1)
    if len(seen.tails) == 1:
        return _by_position(weights, values, seen.tails[0], seen.orders[0])
    texts = zip(weights.split(groups), values.split(groups), seen.tails, seen.orders)
    return torch.cat([_by_position(*text) for text in texts])


def _arranged(columns: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Permute the last columns of scores or weights."""
    return columns.gather(-1, order)


def whole_blocks(slots: int) -> int:
    """Round `slots` up to a multiple of `BLOCK`, the number that an invariant pass reads."""
    return -(-slots // BLOCK) * BLOCK


def _blocks(weights: torch.Tensor, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(weights.split(BLOCK, 2), values.split(BLOCK, 1))


def _by_position(
    weights: torch.Tensor, values: torch.Tensor, tail: Tail, orders: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Sum one text's values, whose last slots are not in order of positions."""
    if tail.most > BLOCK + MOST_NODES:
        return _line_by_line(weights, values, tail, orders[0][0])
    last, own = _arranged(weights[..., tail.start :], orders[1]), values[:, tail.start :]
    rest = ((_taken(last, 2, slots), _taken(own, 1, slots)) for slots in tail.blocks)
    return _summed(chain(_blocks(weights[..., : tail.start], values[:, : tail.start]), rest))


def _taken(x: torch.Tensor, dim: int, slots: slice | torch.Tensor) -> torch.Tensor:
    if isinstance(slots, slice):
        return x.narrow(dim, slots.start, slots.stop - slots.start)
    return x.index_select(dim, slots)


def _line_by_line(
    weights: torch.Tensor, values: torch.Tensor, tail: Tail, order: torch.Tensor
) -> torch.Tensor:
    """`_by_position` for a large draft: each line reads the last values in its own order of positions."""
    (groups, lines, _), dim = weights.shape, values.shape[2]

    def padded(rows: torch.Tensor) -> torch.Tensor:  # each line is a separate product
        return F.pad(rows.reshape(groups * lines, 1, -1), (0, 0, 0, LEAST[-1] - 1))

    whole = list(_blocks(weights[..., : tail.start], values[:, : tail.start])) if tail.start else []
    out = padded(_summed(iter(whole)) if whole else values.new_zeros(groups, lines, dim))
    for i, start in enumerate(range(0, BLOCK * len(tail.blocks), BLOCK)):
        slots = tail.start + order[:, start : start + BLOCK].flatten()
        own = values.index_select(1, slots).view(groups * lines, BLOCK, dim)
        part = padded(weights[..., tail.start + start :][..., :BLOCK])
        out = torch.bmm(part, own) if not whole and not i else out.baddbmm_(part, own)
    return out[:, 0].view(groups, lines, dim)


def _summed(blocks: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    out = torch.bmm(*next(blocks))
    for weights, values in blocks:
        if values.shape[1] == 1:  # MKL rounds once for a single slot, but twice in longer blocks
            out.add_(weights * values)
        else:
            out.baddbmm_(weights, values)
    return out


def steady(function: Function) -> Function:
    """Wrap a nonlinearity [rows, width] so that its results do not depend on the number of rows.

    Different code computes the remainder of a vector loop, so rows are padded to whole vectors. Rows are
    processed in chunks small enough that torch does not split the loop between threads.
    """

    def computed(x: torch.Tensor) -> torch.Tensor:
        width = x.shape[-1]
        if not width % LANES and x.numel() <= SERIAL:
            return function(x.contiguous())
        filled = F.pad(x, (0, -width % LANES))
        most = max(1, SERIAL // filled.shape[-1])
        y = torch.cat([function(part.contiguous()) for part in filled.split(most)])
        return y[..., :width].contiguous()

    return computed


_tanh = steady(torch.tanh)


# ---------------------------------------------------------------- tests on this machine


def settle(lines: Iterable[Lines]) -> str:
    """Make products keep their order, if necessary by limiting rows or splitting the input.

    Returns
    -------
    str
        A description of the product that cannot; empty if all can.
    """
    alike: dict[tuple[torch.Size, ...], list[Lines]] = {}
    for line in lines:
        alike.setdefault(tuple(weight.shape for weight in line.weights), []).append(line)
    for shapes, group in alike.items():
        for cut in WAYS:
            group[0].divide(cut)
            if keeps(group[0]):
                break
        else:
            shape = " x ".join(map(str, shapes[0]))
            return f"a product with {shape} weights changes with the number of rows"
        for line in group[1:]:
            line.divide(cut)
    return ""


def keeps(product: Lines) -> bool:
    """Whether a product of random rows gives each row the same bits as when it is computed alone.

    One product of each shape, layout and format is tested, once for each number of threads.
    """
    first = product.weights[0]
    key = (
        product.layout, product.cut, first.dtype, product.bias is None,
        tuple(tuple(weight.shape) for weight in product.weights), torch.get_num_threads(),
    )  # fmt: skip
    if key not in _tried_products:
        _tried_products[key] = _keeps(product)
    return _tried_products[key]


@torch.inference_mode()
def _keeps(product: Lines) -> bool:
    size, width = product.weights[0].shape
    numbers = torch.Generator().manual_seed(size)
    # Different sums mostly round to the same 16-bit number, so many must be compared in 16-bit formats, or
    # sums that cancel, for which the layout must leave the weights unchanged.
    short = product.weights[0].dtype.itemsize == 2
    cancels = short and product.layout in LAYOUTS
    least = ROUNDED // size if short and not cancels else 0
    x = torch.randn(max(least, WIDTHS[-1]), width, generator=numbers).to(product.weights[0])
    if not _alike(product, x, whole=bool(least)):
        return False
    return not cancels or _alike(*_cancelling(product, numbers), whole=size < MANY)


@torch.inference_mode(
    False
)  # layouts are cached by the parameter's version, which inference tensors do not have
def _cancelling(product: Lines, numbers: torch.Generator) -> tuple[Lines, torch.Tensor]:
    """A product of the same shape with other weights, and rows whose sums cancel except for a small term.

    The remaining sum is then as small as its rounding errors, which depend on the order.
    """
    layers = []
    for weight in product.weights:
        half = torch.randn(len(weight), weight.shape[1] // 2, generator=numbers)
        rest = torch.randn(len(weight), weight.shape[1] % 2, generator=numbers)
        layer = torch.nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
        layer.weight = torch.nn.Parameter(torch.cat([half, half, rest], 1).to(weight), requires_grad=False)
        layers.append(layer)
    made = type(product)(*layers, layout=product.layout, invariant=True)
    made.divide(product.cut)
    size, width = product.weights[0].shape
    x = torch.randn(max(CANCELLED // size, WIDTHS[-1]), width // 2, generator=numbers)
    x = torch.cat([x, -x, torch.full((len(x), width % 2), 1e-4)], 1)
    x[:, 0] = 1e-4
    x[:, width // 2] = 0
    return made, x.to(product.weights[0])


def _alike(product: Lines, x: torch.Tensor, whole: bool) -> bool:
    """Whether rows get the same bits in each of `WIDTHS` as alone; tests all rows if `whole`, else three."""
    few = sum(weight.numel() for weight in product.weights) <= SHORT
    widths = sorted({*WIDTHS, *range(2, EVERY + 1)}) if few else WIDTHS
    alone: dict[int, torch.Tensor] = {}  # each row is computed alone once, for all widths
    for n in widths:
        for first in range(0, len(x) - n + 1, n) if whole and n in WIDTHS else [0]:
            several = product(x[first : first + n].clone())
            rows = list(range(n)) if whole else sorted({0, n // 2, n - 1})
            for row in rows:
                if (at := first + row) not in alone:
                    alone[at] = product(x[at : at + 1])
            single = torch.cat([alone[first + row] for row in rows])
            if not torch.equal(several if whole else several[rows], single):
                return False
    return True


@cache
def fixed_order(
    dim: int, threads: int, biased: bool = False, cap: float | None = None, dtype: torch.dtype = torch.float32
) -> Sums | None:
    """The first of `SUMS` with which attention keeps its order on this machine; None if there is none.

    Tested on random numbers: a token alone, with other tokens and with other texts; masked slots after and
    between the visible ones; and passes of many lengths. Scores have a bias if `biased`, are soft-capped by
    `cap`, and are computed in `dtype`.
    """
    with torch.random.fork_rng([]), torch.inference_mode():
        torch.default_generator.manual_seed(dim)  # the CPU's generator only
        every = (each for each in SUMS if all(_tried(dim, n, each, biased, cap, dtype) for n in LENGTHS))
        return next(every, None)


def _tried(dim: int, length: int, sums: Sums, biased: bool, cap: float | None, dtype: torch.dtype) -> bool:
    """Whether the last token's row is the same in passes of several shapes over `length` tokens."""
    slots = (length + MOST_NODES + BLOCK) // BLOCK * BLOCK
    query = torch.randn(1, QUERIES[-1], 1, dim, dtype=dtype)
    key, value = torch.randn(2, 1, 1, slots, dim, dtype=dtype)
    nothing = torch.full((1, 1, QUERIES[-1], slots), -torch.inf, dtype=dtype)
    added = torch.randn(QUERIES[-1], length, dtype=dtype) * biased
    nothing[..., :length] = added
    least, scale = -(-length // BLOCK) * BLOCK, dim**-0.5

    def attended(
        x: torch.Tensor, mask: torch.Tensor, tails: list[Tail] | None = None, texts: int = 1, heads: int = 1
    ) -> torch.Tensor:
        keys, values = (each[:, :, : mask.shape[-1]].repeat(texts, heads, 1, 1) for each in (key, value))
        seen = sight(mask, texts, heads, heads, tails, sums)
        return attend(x.repeat(texts, 1, heads, 1), keys, values, seen, scale, cap)

    one, short = query[:, :1], nothing[..., :least]
    singles = [attended(query[:, i : i + 1], short[:, :, i : i + 1])[0] for i in range(SINGLES)]
    alone = singles[0]
    for queries in QUERIES:
        single = attended(query[:, queries - 1 : queries], short[:, :, queries - 1 : queries])
        for mask in (nothing, short):
            many = attended(query[:, :queries], mask[:, :, :queries])
            if not (torch.equal(many[0], alone) and torch.equal(many[-1], single[0])):
                return False
    if not all(torch.equal(each, alone) for each in attended(one, nothing[:, :, :1], texts=3)):
        return False
    # Move the last tokens to later slots, like those of a path through a tree.
    moved, root, text = min(length - 1, 5), length - 1 - min(length - 1, 5), (key, value)
    random = np.random.default_rng(length)
    for nodes in (MOST_NODES, *TREES[LENGTHS.index(length) % 2 :: 2]):
        later = np.sort(random.choice(nodes, moved, replace=False)) + root + 1
        offsets = np.ones(nodes, np.int64)
        offsets[later - root - 1] = 1 + np.arange(moved)
        key, value = (each[:, :, : whole_blocks(root + 1 + nodes)].clone() for each in text)
        for own, each in zip((key, value), text):
            own[:, :, later] = each[:, :, root + 1 : length]
        path = torch.full((1, 1, QUERIES[-1], key.shape[2]), -torch.inf, dtype=dtype)
        path[..., : root + 1], path[..., later] = added[:, : root + 1], added[:, root + 1 :]
        tails = [tail(root, offsets, root + 1, key.device)]
        if nodes == MOST_NODES:
            rows = [attended(query[:, i : i + 1], path[:, :, i : i + 1], tails)[0] for i in range(SINGLES)]
            if not all(map(torch.equal, rows, singles)):
                return False
            continue
        for queries in WIDE:
            many = attended(query[:, :queries], path[:, :, :queries], tails, heads=3).unflatten(1, (3, dim))
            if not all(torch.equal(many[i, j], singles[i]) for i in range(SINGLES) for j in range(3)):
                return False
    return True
