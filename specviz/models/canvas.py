"""Canvases of a masked-diffusion model: a prompt followed by cells, which are masked until a token is placed.

For each row, a pass reads the current state (the *root*) and one canvas per node of a draft: the state with
the tokens of the node and its ancestors in place. All canvases form one batch (equation 5 of SSD, Gao et al.
2025).

Without a cache, every canvas is computed in full. With the dual cache (Fast-dLLM, Wu et al. 2025, section
3.2), a *refresh*, a pass over all positions, stores their keys and values. The passes between refreshes
compute only a *window*, the current block (and the position before it, if that predicts a masked cell), and
read everything before and after it from the cache. Positions whose token was placed after they were last
computed also belong to the window: after a block boundary, this is the last one placed.

The canvases of a draft are packed after the shared slots. Each writes its own window there; at other
positions it sees the results of its nearest ancestor in the same pass, or else the cache. It thus computes
the same pass as stepwise decoding at that state, and only the windows of accepted canvases are copied. For an
invariant model (`specviz.models.ordered`), each canvas reads its keys and values from a copy in order of
positions, so that its sums equal those of the stepwise pass bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from specviz.draft import Draft
from specviz.errors import ModelError, PromptError
from specviz.models import ordered
from specviz.models.context import (
    PassInput,
    StorageShape,
    Store,
    check_ids,
    check_path,
    longest,
    memory_error,
)
from specviz.models.devices import send

if TYPE_CHECKING:
    from specviz.models.diffusion import Diffusion

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
KEPT = 64  # packings to cache: those of a block repeat


@dataclass
class Read:
    """The predictions of one pass for a row's masked cells.

    Attributes
    ----------
    logits : tensor [cells read, vocabulary]
        On the device; float32, or float64 for a float64 model.
    canvas : array of int [cells read]
        The canvas of each cell: -1 for the root, i for node i. Ascending.
    cell : array of int [cells read]
        The cell's index in its canvas, 0 being the first after the prompt; ascending within a canvas. Covers
        the current block and the next one, as far as the pass computed them.
    block : array of int [1 + nodes]
        The current block of each canvas, the root first; -1 if no cell is masked.
    refreshed : bool
        Whether the pass computed every position.
    fed : int
        Number of positions fed.
    rows : int
        Number of rows that were computed in the same batch, including this one.
    """

    logits: torch.Tensor
    canvas: IntArray
    cell: IntArray
    block: IntArray
    refreshed: bool
    fed: int
    rows: int


@dataclass
class Layout:
    """The contents of a row's pass; row 0 of each array is the root, row 1 + i the canvas of node i."""

    canvases: IntArray  # tokens [1 + nodes, positions]
    block: IntArray  # current block [1 + nodes]
    computed: BoolArray  # each canvas' window [1 + nodes, positions]
    read: BoolArray  # cells whose predictions are returned [1 + nodes, cells]
    refreshed: bool  # whether every position of the state is computed


@dataclass
class Packing:
    """The reusable part of a pass: it depends on windows and parents only, not on tokens."""

    owner: IntArray  # [1 + nodes, positions]: canvas whose keys and values each sees; 0: the root's or cached
    slot: IntArray  # slots of each canvas' own keys and values, [1 + nodes, positions]
    slots: IntArray  # [fed]
    positions: IntArray  # [fed]
    seen: BoolArray  # [fed, slots]
    computed: BoolArray  # [1 + nodes, positions]: positions at which each canvas feeds a token
    device: Sent | None = None  # see `Canvas._sent`


class Sent(NamedTuple):
    """A row's packing on the device."""

    positions: torch.Tensor  # [1, fed]
    mask: torch.Tensor | bool | None
    entries: torch.Tensor  # entries in the storage's first row
    seen: Seen | None  # replaces the mask for an invariant model


class Seen(NamedTuple):
    """The windows that the queries of an invariant model's pass see: see `PassInput`."""

    windows: list[ordered.Windows]
    results: torch.Tensor


class Passing:
    """A store without a cache: a pass over whole canvases sees only its own keys and values.

    Parameters
    ----------
    reach : int
        Positions of a canvas.
    slots : int
        For an invariant model, the slots read per canvas, a multiple of the block size; else 0.
    """

    def __init__(self, reach: int, slots: int = 0) -> None:
        self.reach, self.slots = reach, slots

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.slots:
            return self._filled(key), self._filled(value)
        return key, value

    def write_both(self, layer: int, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.write(layer, new[0], new[1])

    def _filled(self, new: torch.Tensor) -> torch.Tensor:
        return F.pad(new, (0, 0, 0, self.slots - new.shape[2]))


class Canvas:
    """A batch of rows of prompts followed by cells; created by `Diffusion.open`.

    Parameters
    ----------
    model : Diffusion
    prompts : list of lists of int
    length : int
        Cells of each row.
    block : int
        Cells of a block; the last block may be shorter (equation 3).
    cache : {"none", "dual"}
    refresh : int
        With the dual cache, a pass recomputes every position once this many tokens were placed since the last
        refresh.
    cache_rule : {"predictor", "fast_dllm"}
        The passes of the dual cache. ``predictor``: if the position before a block predicts its first cell,
        it belongs to the window while that cell is masked, and `refresh` decides when everything is
        recomputed. ``fast_dllm``: as in Fast-dLLM's published code, everything is recomputed at the start of
        each block, and the window is the block alone; with a shift, only that first pass predicts the first
        cell.
    canvases : int
        Maximum nodes of a draft.

    Attributes
    ----------
    text : list of array of int
        The prompt and the cells of each row, on the host.
    since : list of int
        Tokens placed since the last refresh; at least `refresh` if the next pass is a refresh.
    masked, stale : list of array of bool [positions]
        Whether a position has no token yet; whether its token was placed after it was last computed.
    """

    def __init__(
        self, model: Diffusion, prompts: Sequence[Sequence[int]], length: int, *, block: int = 8,
        cache: str = "none", refresh: int = 8, cache_rule: str = "predictor", canvases: int = 0,
    ) -> None:  # fmt: skip
        width = longest(prompts)
        if width + length > model.max_length:
            raise PromptError(
                f"the prompt has {width} tokens, and {length} more cells exceed the {model.max_length} "
                f"positions of {model.name}"
            )
        for prompt in prompts:
            check_ids(min(prompt), max(prompt), model)
        self.model, self.length, self.block, self.cache = model, length, block, cache
        self.refresh = refresh
        self.by_block = cache == "dual" and cache_rule == "fast_dllm"
        self.begin = [len(prompt) for prompt in prompts]
        blank = [model.mask] * length
        self.text = [np.array([*prompt, *blank], np.int64) for prompt in prompts]
        self.masked = [np.arange(begin + length) >= begin for begin in self.begin]
        self.since = [refresh] * len(prompts)
        self.stale = [np.zeros(begin + length, bool) for begin in self.begin]
        self._read: dict[int, tuple[Draft, Layout, Packing | None]] = {}
        self._packings: dict[tuple[bytes, bytes], Packing] = {}
        self.slots = width + length
        if cache == "dual":
            window = min(block + model.shift + 1, self.slots)
            extra = canvases * window + (len(prompts) > 1)  # the last slot is for the padding of ragged rows
            rows, slots = len(prompts), self.slots + extra
            dtype, device = model.attention_dtype, model.device
            shape = StorageShape(model.layers, rows, model.heads, slots, model.dim, dtype, device)
            try:
                self.store = Store(shape)
            except RuntimeError as error:
                raise memory_error(error, f"a cache of {rows} x {slots} positions for", model) from None
            self.store.reach = self.slots
            self._layers = self.store.data.flatten(2, 4).unbind(0)

    # -- placed tokens --------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.text)

    @property
    def tokens(self) -> list[list[int]]:
        """Prompt and cells of each row, masks included."""
        return [text.tolist() for text in self.text]

    def cells(self, row: int = 0) -> IntArray:
        """A row's cells [length]; cells without a token hold the mask token."""
        return self.text[row][self.begin[row] :]

    def open_cells(self, row: int = 0) -> BoolArray:
        """Which of a row's cells are masked, bool [length]."""
        return self.masked[row][self.begin[row] :]

    def placed(self, row: int = 0) -> int:
        """Number of tokens placed in a row."""
        return self.length - int(self.open_cells(row).sum())

    def room(self, row: int = 0) -> int:
        """Number of tokens that the next pass may place before a refresh: those of a draft and one more."""
        left = self.length - self.placed(row)
        if self.cache == "none":
            return left
        if self.by_block:
            still = self.open_cells(row)
            block = int(still.argmax()) // self.block * self.block
            return int(still[block : block + self.block].sum())
        since = 0 if self.since[row] >= self.refresh else self.since[row]
        return min(left, self.refresh - since)

    def fill(self, cells: Sequence[int], tokens: Sequence[int], row: int = 0) -> None:
        """Place tokens that were not in a draft.

        Raises
        ------
        ModelError
            If a cell is not masked or occurs twice.
        """
        at = np.asarray(cells, np.int64) + self.begin[row]
        if not self.masked[row][at].all() or len(np.unique(at)) < len(at):
            raise ModelError(f"row {row}: cells {list(cells)} are not all masked, or one is named twice")
        self.text[row][at] = tokens
        self.masked[row][at] = False
        self.stale[row][at] = True
        self.since[row] += len(at)

    def commit(self, path: Sequence[int], row: int = 0) -> None:
        """Commit the canvas at the end of a path of the draft last read; an empty path keeps the root.

        Raises
        ------
        ModelError
            If no draft is open or the nodes are not a path from the root.
        """
        if row not in self._read:
            raise ModelError("commit must follow forward: there is no draft to keep nodes of")
        draft, layout, packing = self._read.pop(row)
        check_path(draft, path, row)
        if not len(path):
            return
        last = 1 + path[-1]
        at = self.begin[row] + np.asarray(draft.positions)[list(path)]
        self.text[row] = layout.canvases[last].copy()
        self.masked[row][at] = False
        self.since[row] += len(path)
        if packing is not None:
            self._keep(row, packing, last)

    @torch.inference_mode()
    def _keep(self, row: int, packing: Packing, last: int) -> None:
        """Copy the keys and values that a canvas sees into the row's slots."""
        to = np.flatnonzero(packing.owner[last])
        source = packing.slot[packing.owner[last, to], to]
        both = send(np.stack((source, to)), self.store.data.device)
        data = self.store.data[:, :, row]
        data.index_copy_(3, both[1], data.index_select(3, both[0]))

    def close(self) -> None:
        """Free the storage."""
        self.store = None  # type: ignore[assignment]
        self._layers, self._packings = (), {}

    # -- passes ---------------------------------------------------------------------------------

    def forward(self, drafts: Draft | Sequence[Draft], rows: Sequence[int] | None = None) -> list[Read]:
        """Run one pass over the rows' states and their drafts' canvases.

        Parameters
        ----------
        drafts : Draft, or one per row
            Their ``positions`` are cells. ``Draft.empty()`` reads the root alone.
        rows : sequence of int, ascending, optional
            The rows that take part. Default: all.

        Returns
        -------
        list of Read
            One for each row that takes part.

        Raises
        ------
        ModelError
            If a draft places a token in a cell that is not masked, or the device is out of memory.
        """
        drafts = [drafts] if isinstance(drafts, Draft) else list(drafts)
        some = list(range(self.rows)) if rows is None else list(rows)
        if len(drafts) != len(some):
            raise ModelError(f"forward got {len(drafts)} drafts for {len(some)} rows")
        layouts = [self._layout(row, draft) for row, draft in zip(some, drafts)]
        whole = self.cache == "none"
        packings = [] if whole else [self._packing(d, x) for d, x in zip(drafts, layouts)]
        logits: dict[int, torch.Tensor] = {}
        # Refreshing rows feed many more tokens than the others, which would be mostly padding in one batch.
        parts = ([i for i, x in enumerate(layouts) if x.refreshed == each] for each in (True, False))
        try:
            for part in filter(None, parts):
                mine = [layouts[i] for i in part]
                if whole:
                    scores = self._whole(mine)
                else:
                    scores = self._windows([some[i] for i in part], mine, [packings[i] for i in part])
                for i, each in zip(part, scores):
                    logits[i] = each
        except RuntimeError as error:
            fed = sum(int(x.computed.sum()) for x in layouts)
            raise memory_error(error, f"a pass of {fed} positions through", self.model) from None
        reads = []
        for i, (row, draft, layout) in enumerate(zip(some, drafts, layouts)):
            self._read[row] = draft, layout, None if whole else packings[i]
            self.stale[row][:] = False
            if layout.refreshed and not whole:
                self.since[row] = 0
            canvas, cell = np.nonzero(layout.read)
            fed = int(layout.computed.sum())
            rows_fed = sum(other.refreshed == layout.refreshed for other in layouts)
            reads.append(Read(logits[i], canvas - 1, cell, layout.block, layout.refreshed, fed, rows_fed))
        return reads

    def _layout(self, row: int, draft: Draft) -> Layout:
        begin, shift, text = self.begin[row], self.model.shift, self.text[row]
        nodes = len(draft)
        canvases = np.repeat(text[None], 1 + nodes, 0)
        masked = np.repeat(self.masked[row][None], 1 + nodes, 0)
        computed = np.repeat(self.stale[row][None], 1 + nodes, 0)
        if nodes:
            at = begin + np.asarray(draft.positions)
            if not (begin <= at.min() and at.max() < len(text) and self.masked[row][at].all()):
                raise ModelError(f"row {row}: a draft places tokens in cells that are not masked")
            canvas, ancestor = np.nonzero(draft.mask)
            canvases[1 + canvas, at[ancestor]] = np.asarray(draft.tokens)[ancestor]
            masked[1 + canvas, at[ancestor]] = False
            computed[1:] = False
            computed[1 + np.arange(nodes), at] = True  # the newly placed token is not computed yet
        still = masked[:, begin:]
        block = np.where(still.any(1), still.argmax(1) // self.block, -1)
        low = begin + np.maximum(block, 0) * self.block
        positions = np.arange(len(text))
        refreshed = self.cache == "none" or self.since[row] >= self.refresh
        if self.by_block:  # refresh while no token of the current block is placed
            refreshed = bool(still[0, low[0] - begin : low[0] - begin + self.block].all())
        inside = (positions >= low[:, None]) & (positions < (low + self.block)[:, None])
        computed |= inside & (block >= 0)[:, None]
        if shift:  # the position before the block predicts its first cell, while that is masked
            first = np.flatnonzero((block >= 0) & masked[np.arange(len(masked)), low])  # `length` is positive
            computed[first, low[first] - 1] = True
        if self.cache == "none":
            computed[:] = True
        elif refreshed:
            computed[0] = True  # the root; the canvases of a draft read its keys and values
        cells = np.arange(self.length)
        read = still & (cells < ((block + 2) * self.block)[:, None]) & (block >= 0)[:, None]
        read &= computed[:, begin - shift : len(text) - shift]
        return Layout(canvases, block, computed, read, refreshed)

    def _packing(self, draft: Draft, layout: Layout) -> Packing:
        """Assign slots and visibility; reuse a cached packing for the same windows and parents."""
        key = (layout.computed.tobytes(), draft.parents.tobytes())
        kept = self._packings.get(key)
        if kept is not None:
            return kept
        computed = layout.computed
        count, positions = computed.shape
        # The last canvas that computed a position, from the root to this one; 0 (the cache) if none did.
        owner = np.zeros((count, positions), np.int64)
        for node, parent in enumerate(draft.parents, 1):
            owner[node] = np.where(computed[node], node, owner[1 + parent])
        slot = np.repeat(np.arange(positions)[None], count, 0)
        canvas, at = np.nonzero(computed)
        own = canvas > 0
        slot[canvas[own], at[own]] = self.slots + np.arange(own.sum())
        end = self.slots + int(own.sum())
        if end > self.store.data.shape[4]:
            raise ModelError(f"a draft of {count - 1} nodes needs more room: open with canvases={count - 1}")
        allowed = np.zeros((count, end), bool)
        allowed[np.arange(count)[:, None], slot[owner, np.arange(positions)]] = True
        made = Packing(owner, slot, slot[canvas, at], at, allowed[canvas], computed)
        if not layout.refreshed and count == 1:  # packings of drafts seldom repeat
            if len(self._packings) >= KEPT:
                self._packings.clear()
            self._packings[key] = made
        return made

    @torch.inference_mode()
    def _windows(self, rows: list[int], layouts: list[Layout], packings: list[Packing]) -> list[torch.Tensor]:
        """Run a pass with the dual cache; return each row's logits."""
        model, store = self.model, self.store
        device = model.device
        if len(rows) == 1:
            (layout,), (packing,) = layouts, packings
            end = packing.seen.shape[1]
            ids = send(layout.canvases[layout.computed][None], device)
            if packing.device is None:
                packing.device = self._sent(packing)
            positions, mask, entries, seen = packing.device
            if self.rows > 1:
                entries = entries + rows[0] * store.data.shape[3] * store.data.shape[4]
        else:
            fed = [len(packing.positions) for packing in packings]
            width, end = max(fed), max(packing.seen.shape[1] for packing in packings)
            padding_slot = store.data.shape[4] - 1
            host = np.zeros((3, len(rows), width), np.int64)
            host[2] = padding_slot
            for i, (layout, packing) in enumerate(zip(layouts, packings)):
                n = fed[i]
                host[0, i, :n], host[1, i, :n] = layout.canvases[layout.computed], packing.positions
                host[2, i, :n] = packing.slots
            heads, slots = store.data.shape[3:5]
            entry = (np.array(rows)[:, None] * heads + np.arange(heads)) * slots
            entries = send((entry[:, :, None] + host[2][:, None]).reshape(-1), device)
            ids, positions = send(host[:2], device).unbind()
            mask, seen = self._seen(packings, width, end)
        self._aim(rows, end, entries)
        given = PassInput(ids, positions, mask, self._places(layouts, ids.shape[1]))
        if seen is not None:
            given.windows, given.results = seen
        scores = model.run(given, store)
        return list(scores.split([int(layout.read.sum()) for layout in layouts]))

    def _sent(self, packing: Packing) -> Sent:
        """A row's packing on the device."""
        device, heads, slots = self.model.device, *self.store.data.shape[3:5]
        entries = (np.arange(heads)[:, None] * slots + packing.slots).reshape(-1)
        both = send(np.concatenate((packing.positions, entries)), device)
        n = len(packing.positions)
        mask, seen = self._seen([packing], n, packing.seen.shape[1])
        return Sent(both[:n][None], mask, both[n:], seen)

    def _seen(
        self, packings: list[Packing], width: int, end: int
    ) -> tuple[torch.Tensor | bool | None, Seen | None]:
        """Visibility of the first `end` slots for each row's `width` queries: a mask, or windows."""
        model = self.model
        if model.invariant:
            return None, _windows_of(packings, width, model)
        if len(packings) == 1 and packings[0].seen.all():
            return False, None
        rows, group = len(packings), model.group
        seen = np.zeros((rows, width, end), bool)
        for i, packing in enumerate(packings):
            n, slots = packing.seen.shape
            seen[i, :n, :slots] = packing.seen
            seen[i, n:, 0] = True  # padding must see something: a query that sees nothing is NaN
        mask = send(np.where(seen, np.float32(0), np.float32(-np.inf)), model.device, model.dtype)
        return mask[:, None].expand(-1, group, -1, -1).reshape(rows, 1, group * width, end), None

    def _aim(self, rows: list[int], end: int, entries: torch.Tensor) -> None:
        """Aim the storage: write to `entries` of [rows * heads * slots]; read `rows` up to slot `end`."""
        store = self.store
        store.index, store.target = entries, self._layers
        if len(rows) == self.rows:
            store.read = store.flat.narrow(3, 0, end).unbind(0)
        elif rows[-1] - rows[0] + 1 == len(rows):
            store.read = store.flat[:, rows[0] : rows[-1] + 1].narrow(3, 0, end).unbind(0)
        else:
            store.read = _Some(store.flat.narrow(3, 0, end), send(np.array(rows), store.data.device))

    def _places(self, layouts: list[Layout], width: int) -> torch.Tensor:
        """Indices into the flattened pass of the positions that predict the cells read."""
        shift = self.model.shift
        places = []
        for i, layout in enumerate(layouts):
            index = np.cumsum(layout.computed).reshape(layout.computed.shape) - 1  # of each fed position
            begin = layout.computed.shape[1] - self.length
            places.append(i * width + index[:, begin - shift : index.shape[1] - shift][layout.read])
        return send(np.concatenate(places), self.model.device)

    @torch.inference_mode()
    def _whole(self, layouts: list[Layout]) -> list[torch.Tensor]:
        """Run a pass without a cache, with every canvas as a separate row; return each row's logits."""
        model = self.model
        lengths = np.repeat([x.canvases.shape[1] for x in layouts], [len(x.canvases) for x in layouts])
        width = int(lengths.max())
        ids = np.full((len(lengths), width), model.mask, np.int64)
        inside = np.arange(width) < lengths[:, None]
        ids[inside] = np.concatenate([layout.canvases.ravel() for layout in layouts])
        mask: torch.Tensor | bool = False
        store, group = Passing(width), model.group
        if model.invariant:
            store, group = Passing(width, ordered.whole_blocks(width)), 1
            inside = np.arange(store.slots) < lengths[:, None]
        if not inside.all() or model.invariant:
            mask = send(
                np.where(inside, np.float32(0), np.float32(-np.inf)), model.device, model.attention_dtype
            )
            mask = mask[:, None, None].expand(-1, 1, group * width, -1)
        at = np.arange(len(lengths) * width).reshape(-1, width)
        places, first = [], 0
        for layout in layouts:
            count, positions = layout.canvases.shape
            begin, shift = positions - self.length, model.shift
            places.append(at[first : first + count, begin - shift : positions - shift][layout.read])
            first += count
        positions = send(np.arange(width)[None], model.device).expand(len(ids), -1)
        read = send(np.concatenate(places), model.device)
        scores = model.run(PassInput(send(ids, model.device), positions, mask, read), store)
        return list(scores.split([int(layout.read.sum()) for layout in layouts]))


def _windows_of(packings: list[Packing], width: int, model: Diffusion) -> Seen:
    """Build the windows of all canvases, for rows that are fed `width` tokens each.

    Canvases that compute every position get separate windows; the others would be mostly padding with them.
    """
    positions = max(packing.owner.shape[1] for packing in packings)
    counts = [len(packing.owner) for packing in packings]
    row = np.repeat(np.arange(len(packings)), counts)
    lie = np.zeros((len(row), ordered.whole_blocks(positions)), np.int64)
    have = np.zeros(lie.shape, bool)
    fed = np.zeros((len(row), positions), bool)
    flat = np.zeros((len(row), positions), np.int64)  # query index of each fed position
    first = 0
    for i, packing in enumerate(packings):
        count, length = packing.owner.shape
        part = slice(first, first + count)
        lie[part, :length] = packing.slot[packing.owner, np.arange(length)]
        have[part, :length], fed[part, :length] = True, packing.computed
        flat[part, :length] = i * width + np.cumsum(packing.computed).reshape(count, length) - 1
        first += count
    whole = (fed == have[:, :positions]).all(1)
    windows, results, done = [], np.zeros(len(packings) * width, np.int64), 0
    for some in (np.flatnonzero(whole), np.flatnonzero(~whole)):
        if not len(some):
            continue
        most = max(1, int(fed[some].sum(1).max()))
        order = np.argsort(~fed[some], 1, kind="stable")[:, :most]  # fed positions come first
        own = np.take_along_axis(fed[some], order, 1)
        queries = np.where(own, np.take_along_axis(flat[some], order, 1), 0)
        at = done + np.arange(queries.size).reshape(queries.shape)
        results[queries[own]] = at[own]
        done += queries.size
        sent = send(np.concatenate((row[some][:, None], lie[some], queries), 1), model.device)
        seen = np.where(have[some], np.float32(0), np.float32(-np.inf))
        mask = send(seen, model.device, model.attention_dtype)[:, None, None].expand(-1, 1, most, -1)
        windows.append(ordered.Windows(sent[:, :1, None], sent[:, None, 1:-most], sent[:, -most:], mask))
    return Seen(windows, send(results, model.device))


class _Some:
    """Non-adjacent rows of the storage; they are gathered when a layer reads them."""

    def __init__(self, data: torch.Tensor, rows: torch.Tensor) -> None:
        self.data, self.rows = data, rows

    def __getitem__(self, layer: int) -> torch.Tensor:
        return self.data[layer].index_select(0, self.rows)
