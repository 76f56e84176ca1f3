"""The causal context: rows of text, with the KV cache of all rows in one storage.

Slot i of a row holds its token i. During verification a draft's nodes occupy the slots after the committed
tokens, so committing a prefix of a chain moves nothing and committing a path is one gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import torch

from specviz.draft import Draft
from specviz.errors import ModelError, PromptError, plural
from specviz.models import ordered
from specviz.models.devices import send

if TYPE_CHECKING:
    from transformers.cache_utils import Cache

    from specviz.models.additions import Target
    from specviz.models.eagle_model import EagleModel
    from specviz.models.encoder_decoder_context import Source
    from specviz.models.llamacpp.context import LlamaCppContext
    from specviz.models.protocols import Path, Positions, TextModel, Tokens
    from specviz.models.torch_model import TorchModel

States: TypeAlias = tuple[torch.Tensor, dict[int, torch.Tensor]]  # final states, and states by layer


@dataclass
class Pass:
    """The results of one forward pass.

    Attributes
    ----------
    logits : list of tensor [1 + n, vocabulary]
        Per row, float32 on the device: entry 0 predicts the token after the last committed one, entry 1 + i
        the token after node i.
    fed : list of int
        Tokens fed per row (not counting padding).
    hidden : dict of int to list of tensor [1 + n, size]
        For each requested layer and each row, the hidden states at the same positions. 0 is the embedding,
        i the output of layer i; the last is taken after the final norm, as in transformers.
    layers : int or None
        For a pass with an exit rule, the number of layers that its token went through.
    """

    logits: list[torch.Tensor]
    fed: list[int]
    hidden: dict[int, list[torch.Tensor]]
    layers: int | None = None

    @property
    def tokens(self) -> int:
        """Total tokens fed, over all rows."""
        return sum(self.fed)


@dataclass
class PassInput:
    """The inputs of a pass over an aimed store, and the results that it must return.

    Attributes
    ----------
    ids : tensor of int [rows, n]
    positions : slice or tensor of int [rows, n]
    mask : tensor [rows or 1, 1 or heads, group * n, slots], bool or None
        See `specviz.models.attention.attend`; for invariant models see `specviz.models.ordered.sight`.
    keep : int or tensor
        Number of columns, counted from the last, whose states go to `logits`. With 0 none do, and the
        `hidden` states of all columns are returned. For a canvas model, a tensor of indices into the
        flattened [rows * n].
    hidden : tuple of int
        Layers whose states are returned.
    leave : Exit, optional
        Exit point that is evaluated after each layer except the last.
    tails : list of Tail, optional
        For an invariant model's pass over trees; see `specviz.models.ordered.sight`.
    windows : sequence of Windows
        For an invariant model's pass over canvases that share its storage; replaces `mask`.
    results : tensor of int [rows * n]
        Index of each token's result among the queries of all `windows`.
    """

    ids: torch.Tensor
    positions: Positions
    mask: torch.Tensor | bool | None
    keep: int | torch.Tensor
    hidden: tuple[int, ...] = ()
    leave: Exit | None = None
    tails: list[ordered.Tail] | None = None
    windows: Sequence[ordered.Windows] = ()
    results: torch.Tensor | None = None


class Exit:
    """Early-exit point after a layer, in a pass of one token; exposes the hidden state to an exit rule.

    Attributes
    ----------
    layer : int
        Number of layers that the token has gone through, at least 1.
    before, after : tensor [1, size]
        Its hidden state before and after the last of these layers, without the final norm.
    """

    layer: int
    before: torch.Tensor
    after: torch.Tensor

    def __init__(self, model: Target, rule: Callable[[Exit], bool]) -> None:
        self.model, self.rule = model, rule
        self.left = False
        self._logits: torch.Tensor | None = None

    def logits(self) -> torch.Tensor:
        """The prediction at this exit: logits from the final norm and head, float32 [1, vocabulary].

        Computed on the first call after each layer, at the cost of one run of the head.
        """
        if self._logits is None:
            self._logits = self.model.logits(self.model.last(self.after)[None])[0]
        return self._logits

    @property
    def seen(self) -> bool:
        """Whether the logits at this exit were computed."""
        return self._logits is not None

    def asks(self, layer: int, before: torch.Tensor, after: torch.Tensor) -> bool:
        """Apply the rule after a layer; return whether to exit."""
        self.layer, self.before, self.after, self._logits = layer, before, after, None
        self.left = self.rule(self)
        return self.left


NOTHING = Draft.empty()
LARGE_MASK = 1 << 23  # elements of a mask above which a prefill after other tokens is run in parts
KEPT_MASKS = 64 << 20  # most bytes of the masks of chains that a context keeps


class Layers(Protocol):
    """Tensors by index."""

    def __getitem__(self, layer: int, /) -> torch.Tensor: ...


class StorageShape(NamedTuple):
    """Shape, number format and device of a storage."""

    layers: int
    rows: int
    heads: int
    slots: int
    dim: int  # of a head
    dtype: torch.dtype
    device: torch.device


class Store:
    """The KV cache of all layers, in one tensor [layers, 2, rows, heads, slots, dim].

    The tensor is allocated once and its address never changes. `aim` sets where the next pass writes and how
    far it reads; each layer then calls `write` in turn.
    """

    def __init__(self, shape: StorageShape) -> None:
        *sizes, dtype, device = (shape.layers, 2, *shape[1:])
        # Zeros, not garbage: a masked slot is still multiplied by a weight of 0, and 0 times NaN is NaN.
        self.data = torch.zeros(*sizes, dtype=dtype, device=device)
        self.flat = self.data.flatten(0, 1)
        self.reach = shape.slots  # number of positions that a pass may use
        self.block = 1  # a pass reads a multiple of this many slots
        self.cache: Cache | None = None  # wrapper for transformers, created when first needed
        self.read: Layers = ()  # keys and values that a pass reads, two entries per layer
        self.target: Sequence[torch.Tensor] = ()  # where a pass writes, per layer
        self.start = 0  # the first slot that a pass writes, if its rows are aligned
        self.rows: slice | None = None  # rows of the next pass; None: all
        self.index: torch.Tensor | None = None
        self.slots: torch.Tensor | None = None
        self.source: Source | None = None  # encoded prompts, for a decoder with cross-attention

    @property
    def parts(self) -> tuple[Store, ...]:
        """This store alone; a `Spread` has one store per device."""
        return (self,)  # not kept as an attribute: a reference cycle would be freed late

    def aim(
        self, start: int, count: int, end: int, rows: slice | None = None, slots: torch.Tensor | None = None,
        index: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Let the next pass write slots start ... start + count of `rows` and read their slots 0 ... end.

        Rows of different lengths instead write to `slots` [rows, tokens]; `index` [rows * heads * tokens] are
        the corresponding entries of the storage viewed as [rows * heads * slots].
        """
        self.start, self.rows, self.slots, self.index = start, rows, slots, index
        flat = self.flat if rows is None else self.flat[:, rows]
        self.read = flat.narrow(3, 0, -(-end // self.block) * self.block).unbind(0)
        if index is None:
            data = self.data if rows is None else self.data[:, :, rows]
            self.span = data.narrow(4, start, count)
            self.target = self.span.unbind(0)
        else:
            self.target = self.data.flatten(2, 4).unbind(0)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's new keys and values [rows, heads, tokens, dim]; return all that the pass reads."""
        if self.index is not None:
            return self.write_both(layer, torch.stack((key, value)))
        target = self.target[layer]
        target[0].copy_(key)
        target[1].copy_(value)
        return self.read[2 * layer], self.read[2 * layer + 1]

    def write_both(self, layer: int, new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Same as `write`, with keys and values in one tensor [2, rows, heads, tokens, dim]."""
        if self.index is None:
            self.target[layer].copy_(new)
        else:
            flat = new.reshape(2, -1, new.shape[-1]).to(self.data.dtype)
            self.target[layer].index_copy_(1, self.index, flat)
        return self.read[2 * layer], self.read[2 * layer + 1]

    def fill(self, layer: int, new: torch.Tensor) -> None:
        """Store keys and values of all layers from `layer` on, [layers, 2, rows, heads, tokens, dim]."""
        self.span[layer:].copy_(new)


class Spread:
    """The storage of a model whose layers are on several devices: one `Store` per run of layers.

    Parameters
    ----------
    places : list of (torch.device, int)
        Devices in layer order, with the number of layers on each.
    shape : StorageShape
        Shape of the whole storage.
    """

    def __init__(self, places: list[tuple[torch.device, int]], shape: StorageShape) -> None:
        self.parts = tuple(Store(shape._replace(layers=n, device=device)) for device, n in places)
        self._layers = [(part, i) for part in self.parts for i in range(len(part.data))]
        self.reach = self.parts[0].reach
        self.block = 1
        self.cache: Cache | None = None
        self.source: Source | None = None

    @property
    def data(self) -> torch.Tensor:
        """The first part's tensor; all parts have the same shape except for the number of layers."""
        return self.parts[0].data

    @property
    def read(self) -> Layers:
        """The first part's keys and values to read."""
        return self.parts[0].read

    def aim(
        self, start: int, count: int, end: int, rows: slice | None = None, slots: torch.Tensor | None = None,
        index: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """See `Store.aim`."""
        for part in self.parts:
            there = None if index is None else index.to(part.data.device)
            part.aim(start, count, end, rows, slots, there)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Store.write`; uses the layer's device."""
        part, number = self._layers[layer]
        return part.write(number, key, value)


def storage(model: Target, rows: int, slots: int) -> Store | Spread:
    """Allocate the storage of `rows` x `slots` tokens on the devices of the model's layers."""
    shape, places = model.shape(rows, slots), getattr(model, "places", None)
    return Spread(places, shape) if places else Store(shape)


class Context:
    """A batch of rows of committed text over one model; created by `Model.open`.

    Attributes
    ----------
    joint : bool
        Whether a prefill reads all new prompts at once, whichever rows are given.
    length : list of int
        Committed tokens of each row.
    filled : list of int
        How many of them have a slot: all of them for a causal model.
    cached : list of int
        How many of these have keys and values in the storage; the next pass computes the rest.
    """

    joint = False

    def __init__(self, model: Target, prompts: Sequence[Sequence[int]], room: int) -> None:
        self.model = model
        self.rows = len(prompts)
        # For masks: an invariant model's are the same for all heads, and at least float32.
        self.group = 1 if model.invariant else model.group
        self.kind = model.attention_dtype
        self.slots = longest(prompts, model.max_length, model.name) + room
        self.filled = [len(prompt) for prompt in prompts]
        self.cached = [0] * self.rows
        self.least = [1] * self.rows  # tokens that a rewind must keep
        self.states: dict[int, dict[int, torch.Tensor]] = {}  # by row and layer, see `prefill`
        self._drafts: dict[int, Draft] = {}  # by row, the draft that the last pass read
        self._triangles: dict[int, torch.Tensor] = {}
        self.store, self.ids = self._allocated(self.slots)
        for row, prompt in enumerate(prompts):
            self.ids[row, : len(prompt)] = to_device(prompt, model)

    def _allocated(self, slots: int) -> tuple[Store | Spread, torch.Tensor]:
        """Allocate storage and ids of `slots` slots per row; several rows get one more, for padding."""
        model, width = self.model, slots + int(self.rows > 1)
        if model.invariant:  # whole blocks are read
            width = ordered.whole_blocks(width)
        try:
            store = storage(model, self.rows, width)
            store.block = ordered.BLOCK if model.invariant else 1
            ids = torch.zeros(self.rows, width, dtype=torch.long, device=model.device)
        except RuntimeError as error:
            raise memory_error(error, f"a cache of {self.rows} x {slots} tokens for", model) from None
        store.reach = min(slots, model.max_length)
        return store, ids

    # -- committed text -----------------------------------------------------------------------

    @property
    def length(self) -> list[int]:
        """Committed tokens of each row."""
        return self.filled

    @property
    def tokens(self) -> list[list[int]]:
        """The committed tokens of each row (copied from the device)."""
        ids = self.ids.tolist()
        return [ids[row][: self.filled[row]] for row in range(self.rows)]

    @property
    def room(self) -> int:
        """Number of tokens that still fit after the longest row, draft nodes included."""
        return min(self.slots, self.model.max_length) - max(self.filled)

    def extend(self, tokens: Tokens | Sequence[Tokens], rows: Sequence[int] | None = None) -> None:
        """Commit tokens that were not in a draft; the next pass computes them.

        Parameters
        ----------
        tokens : list of lists of int, one per row (an empty list leaves its row unchanged)
            For a context of one row, also a flat list or a tensor on the device.
        rows : sequence of int, optional
            The rows to extend. Default: all.

        Raises
        ------
        ModelError
            If the tokens do not fit into the room of the context.
        """
        each = for_rows(tokens, self.rows)
        rows = self._which(rows, each, "extend got tokens")
        for row, new in zip(rows, each):
            check_fits(self, row, self.filled[row], len(new), len(new))
        self._write(rows, each)
        for row, new in zip(rows, each):
            if len(new):
                self.filled[row] += len(new)
                self._drafts.pop(row, None)

    def _write(self, rows: Sequence[int], tokens: Sequence[Tokens]) -> None:
        """Write tokens after the rows' texts, for several rows in one copy."""
        new = [(row, self.filled[row], each) for row, each in zip(rows, tokens) if len(each)]
        if len(new) == 1:
            ((row, start, each),) = new
            self.ids[row, start : start + len(each)] = to_device(each, self.model)
        elif new:
            width = self.ids.shape[1]
            at = [row * width + start + i for row, start, each in new for i in range(len(each))]
            if any(torch.is_tensor(each) for *_, each in new):
                values = torch.cat([to_device(each, self.model) for *_, each in new])
            else:
                values = to_device([token for *_, each in new for token in each], self.model)
            self.ids.view(-1).index_copy_(0, send(at, self.ids.device), values)

    def commit(self, paths: Path | Sequence[Path], rows: Sequence[int] | None = None) -> None:
        """Commit a path of nodes of each draft that the last pass read, and drop the other nodes.

        Parameters
        ----------
        paths : list of lists of int, one per row
            Node indices from the first level down; an empty list keeps none. For one row, also a flat list.
        rows : sequence of int, optional
            The rows to commit. Default: all.

        Raises
        ------
        ModelError
            If no draft is open or the nodes are not a path from the root.
        """
        each = [[int(node) for node in path] for path in for_rows(paths, self.rows)]
        rows = self._which(rows, each, "commit got paths")
        for row, path in zip(rows, each):
            if row not in self._drafts:
                raise ModelError("commit must follow forward: there is no draft to keep nodes of")
            check_path(self._drafts[row], path, row)
        for row, path in zip(rows, each):
            self._keep(row, path, self._drafts.pop(row))

    @torch.no_grad()
    def _keep(self, row: int, path: list[int], draft: Draft) -> None:
        start, count = self.filled[row], len(path)
        if path != list(range(count)):
            nodes = [start + node for node in path]
            source = send(nodes, self.ids.device)
            for part in self.store.parts:
                data = part.data[:, :, row]
                there = source if data.device == source.device else send(nodes, data.device)
                kept = data.index_select(3, there)  # a copy, so the two may overlap
                data[..., start : start + count, :] = kept
            self.ids[row, start : start + count] = self.ids[row].index_select(0, source)
        self.filled[row] = start + count
        # A node read at a position other than its depth is kept as text but recomputed.
        offsets = draft.offsets
        right = next((i for i, node in enumerate(path) if offsets[node] != i + 1), count)
        self.cached[row] = start + right

    def rewind(self, length: int | Sequence[int], rows: Sequence[int] | None = None) -> None:
        """Drop everything after the first `length` tokens (one number, or one per row).

        `rows` restricts this to some rows. Raises `ModelError` for a length that a row cannot be cut to.
        """
        some = range(self.rows) if rows is None else rows
        lengths = [length] * len(some) if isinstance(length, int) else list(length)
        held = self.length
        for row, new in zip(some, lengths, strict=True):
            if not self.least[row] <= new <= held[row]:
                raise ModelError(
                    f"rewind of row {row} to {new} tokens: it holds {held[row]}, and at least "
                    f"{self.least[row]} must remain"
                )
        for row, new in zip(some, lengths):
            self.filled[row] += new - held[row]
            self.cached[row] = min(self.cached[row], self.filled[row])
            self._drafts.pop(row, None)

    def _which(self, rows: Sequence[int] | None, given: Sequence[Tokens], what: str) -> Sequence[int]:
        """The rows that the entries of `given` belong to; `what` starts the error for a wrong number."""
        if len(given) != (self.rows if rows is None else len(rows)):
            held = f"the context has {self.rows}" if rows is None else f"{len(rows)} were named"
            raise ModelError(f"{what} for {plural(len(given), 'row')}; {held}")
        return range(self.rows) if rows is None else rows

    @torch.no_grad()
    def reserve(self, room: int) -> None:
        """Ensure that `room` more tokens fit after the longest row; computed keys and values are kept.

        The storage at least doubles when it grows, up to the model's context, so that a stream reallocates a
        few times rather than at every update. Nodes with equal positions may need more slots than that.

        Raises
        ------
        ModelError
            If the larger storage does not fit into memory.
        """
        wanted = max(self.filled) + room
        if wanted > self.slots:
            self._grow(max(wanted, min(2 * self.slots, self.model.max_length)))

    @torch.no_grad()
    def _grow(self, slots: int) -> None:
        store, ids = self._allocated(slots)
        end = max(n + len(self._drafts.get(row, NOTHING)) for row, n in enumerate(self.filled))
        for new, old in zip(store.parts, self.store.parts):
            new.data[..., :end, :] = old.data[:, :, : self.rows, :, :end]
        ids[:, :end] = self.ids[: self.rows, :end]
        self.store, self.ids, self.slots = store, ids, slots
        self._triangles.clear()  # masks are as long as the storage

    @torch.no_grad()
    def branch(self, lengths: Sequence[int], room: int) -> Context:
        """Create a context whose rows are prefixes of this one's text, copying the computed keys and values.

        Parameters
        ----------
        lengths : list of int
            For each row, the number of committed tokens that it starts with.
        room : int
            See `Model.open`.

        Raises
        ------
        ModelError
            If this context has several rows, a length is out of range, or the storage does not fit into
            memory.
        """
        if self.rows != 1 or not self.least[0] <= min(lengths) <= max(lengths) <= self.length[0]:
            raise ModelError(
                f"branch takes lengths from {self.least[0]} to {self.length[0]} and needs a context of one "
                f"row; this one has {self.rows}"
            )
        rows = self._beginning(lengths, room)
        end = max(rows.filled)
        for new, old in zip(rows.store.parts, self.store.parts):
            new.data[..., :end, :] = old.data[:, :, :1, :, :end]  # dropped rows keep their place in it
        rows.cached = [min(self.cached[0], filled) for filled in rows.filled]
        return rows

    def _beginning(self, lengths: Sequence[int], room: int) -> Context:
        """Create a context of prefixes of this one's text, with nothing computed."""
        text = self.tokens[0]
        return Context(self.model, [text[:length] for length in lengths], room)

    def replace(self, row: int, prompt: Sequence[int], room: int = 0) -> None:
        """Restart a row with another prompt; the other rows do not change.

        Parameters
        ----------
        row : int
        prompt : list of int
        room : int
            Tokens that must fit after this prompt; the storage grows if necessary.

        Raises
        ------
        PromptError, ModelError
            See `Model.open`.
        """
        longest([prompt], self.model.max_length, self.model.name)
        ids = to_device(prompt, self.model)
        if (wanted := len(prompt) + room) > self.slots:
            # At least by a quarter: otherwise prompts of rising length would copy the whole cache each time.
            self._grow(max(wanted, min(self.slots + self.slots // 4, self.model.max_length)))
        self.ids[row, : len(prompt)] = ids
        self.filled[row], self.cached[row] = len(prompt), 0
        self._drafts.pop(row, None)

    def drop(self, row: int) -> None:
        """Remove a row; the last row takes its place and index. The storage keeps its size."""
        last = self.rows - 1
        if last == 0:
            raise ModelError("a context must keep at least one row: close it instead")
        self._drafts.clear()
        if row != last:
            end = self.filled[last]
            for part in self.store.parts:
                part.data[:, :, row, :, :end] = part.data[:, :, last, :, :end]
            self.ids[row, :end] = self.ids[last, :end]
            for each in (self.filled, self.cached, self.least):
                each[row] = each[last]
        del self.filled[last], self.cached[last], self.least[last]
        self.rows = last

    def close(self) -> None:
        """Free the storage."""
        self.store = self.ids = None  # type: ignore[assignment]

    # -- passes -----------------------------------------------------------------------------

    def due(self, row: int) -> int:
        """Number of tokens that a prefill of this row computes."""
        return max(self.filled[row] - 1 - self.cached[row], 0)

    def prefill(self, rows: Sequence[int] | None = None, hidden: tuple[int, ...] = ()) -> int:
        """Compute every pending token except the last of each row, without logits; return the number fed.

        `rows` (ascending) restricts this to some rows. `hidden` names layers, as for `forward`, whose states
        [fed, size] are then in `states`, by row and layer.
        """
        some = range(self.rows) if rows is None else rows
        for row in some:
            self._drafts.pop(row, None)
        counts = [Context.due(self, row) for row in some]
        wanted = self._layers(hidden)
        self.states = {}
        if any(counts):
            first, end = some[0], some[-1] + 1
            fresh = len(some) == end - first and not any(self.cached[first:end])
            fed = self._head if fresh else self._rest
            for row, states in zip(some, fed(some, counts, wanted)):
                self.states[row] = {layer: states[at] for layer, at in zip(hidden, wanted)}
                self.cached[row] = max(self.filled[row] - 1, self.cached[row])
        return sum(counts)

    def forward(
        self,
        drafts: Draft | Sequence[Draft],
        hidden: Sequence[int] = (),
        rows: Sequence[int] | None = None,
        leave: Callable[[Exit], bool] | None = None,
    ) -> Pass:
        """Run one pass over the pending tokens and the drafts' nodes.

        Parameters
        ----------
        drafts : Draft, or one per row
            ``Draft.empty()`` reads the root alone.
        hidden : sequence of int
            Layers whose hidden states are returned (see `Pass`); negative numbers count from the last.
        rows : sequence of int, ascending, optional
            The rows that take part; `drafts` and the result then have one entry for each of them, and the
            other rows do not change. Default: all.
        leave : callable, optional
            Exit rule, called with an `Exit` after each layer except the last; the pass exits if it returns
            True. The final norm and head then give the prediction from the state at that layer, and the keys
            and values of the skipped layers are computed from the same state, so that the cache has no gaps
            (CALM's state propagation). Requires one row, one pending token and no nodes.

        Raises
        ------
        ModelError
            If nodes or positions exceed the room or the model's context, the device is out of memory, or
            the model or the input does not allow an early exit.
        """
        drafts = [drafts] if isinstance(drafts, Draft) else list(drafts)
        some = range(self.rows) if rows is None else rows
        if len(drafts) != len(some):
            raise ModelError(f"forward got {plural(len(drafts), 'draft')} for {plural(len(some), 'row')}")
        if leave is not None:
            return self._leave(drafts, hidden, leave)
        nodes = [len(draft) for draft in drafts]
        # With nothing pending, the last committed token is fed again to get the root's prediction.
        starts = [min(self.cached[row], self.filled[row] - 1) for row in some]
        counts = [self.filled[row] - start for row, start in zip(some, starts)]
        for row, draft in zip(some, drafts):
            if n := len(draft):
                check_fits(self, row, self.filled[row], n, int(draft.offsets.max()))
        self._write(some, [draft.tokens for draft in drafts])
        wanted = self._layers(hidden)
        keep = 1 + max(nodes)
        last, states = self._run(some, starts, counts, drafts, keep, wanted)
        for row in some:
            self.cached[row] = self.filled[row]
        self._drafts |= zip(some, drafts)
        sizes, ends = [1 + n for n in nodes], [(row - some[0] + 1) * keep for row in some]
        real: torch.Tensor | None = None
        if len(last) * keep > sum(sizes):  # the other columns are padding
            columns = [np.arange(end - size, end) for end, size in zip(ends, sizes)]
            real = send(np.concatenate(columns), last.device)

        def selected(padded: torch.Tensor) -> torch.Tensor:
            flat = padded.flatten(0, 1)
            return flat if real is None else flat.index_select(0, real)

        # The last step runs outside inference mode, so that its results are ordinary tensors.
        with torch.no_grad():
            logits = self.model.logits(selected(last)[None])[0].split(sizes)
            by_layer = {
                layer: list(selected(states[at]).clone().split(sizes)) for layer, at in zip(hidden, wanted)
            }
        return Pass(list(logits), [count + n for count, n in zip(counts, nodes)], by_layer)

    def _layers(self, hidden: Sequence[int]) -> tuple[int, ...]:
        """Resolve layer numbers; negative ones count from the last."""
        depth = self.model.layers
        wanted = tuple(layer % (depth + 1) if layer < 0 else layer for layer in hidden)
        if any(layer > depth for layer in wanted):
            raise ModelError(
                f"{self.model.name} has {depth} layers; asked for the hidden state of {max(wanted)}"
            )
        return wanted

    @torch.no_grad()
    def _leave(self, drafts: list[Draft], hidden: Sequence[int], leave: Callable[[Exit], bool]) -> Pass:
        """Run a pass over the one pending token until the rule `leave` exits."""
        model, end = self.model, self.filled[0]
        model.check_leaves()
        pending = end - min(self.cached[0], end - 1)
        if self.rows != 1 or pending != 1 or len(drafts[0]) or len(hidden):
            raise ModelError(
                "a pass that may exit early reads one pending token of one row, without nodes or hidden "
                f"states; this one has {plural(self.rows, 'row')}, {plural(pending, 'pending token')}, "
                f"{plural(len(drafts[0]), 'node')} and {plural(len(hidden), 'hidden state')}: call prefill "
                "first, or read without leave"
            )
        door = Exit(model, leave)
        with torch.inference_mode():
            self.store.aim(end - 1, 1, end)
            ids, mask = self.ids[:, end - 1 : end], self._chain(end - 1, 1)
            last, _ = self._call(PassInput(ids, slice(end - 1, end), mask, 1, leave=door))
        self.cached, self._drafts = [end], {0: drafts[0]}
        # The rule may have computed the logits already; a clone made here is an ordinary tensor.
        logits = door.logits().clone() if door.left and door.seen else model.logits(last)[0]
        return Pass([logits], [1], {}, door.layer if door.left else model.layers)

    def _head(
        self, rows: Sequence[int], counts: list[int], hidden: tuple[int, ...]
    ) -> list[dict[int, torch.Tensor]]:
        """Feed the first slots of adjacent rows; return each row's states of the layers `hidden`.

        Ragged rows need no padding mask: slots after a row's end are masked by later passes.
        """
        parts = []
        span = None if len(rows) == len(self.ids) else slice(rows[0], rows[-1] + 1)
        ids = self.ids if span is None else self.ids[span]
        for start, end in self._parts(max(counts), max(counts)):
            with torch.inference_mode():
                self.store.aim(start, end - start, end, span)
                mask, columns = self._chain(start, end - start), slice(start, end)
                states = self._call(PassInput(ids[:, columns], columns, mask, 0, hidden))[1]
            parts.append((start, states))
        return [
            {at: torch.cat([each[at][i, : max(n - start, 0)] for start, each in parts]) for at in hidden}
            for i, n in enumerate(counts)
        ]

    def _rest(
        self, rows: Sequence[int], counts: list[int], hidden: tuple[int, ...]
    ) -> list[dict[int, torch.Tensor]]:
        """Like `_head`, after the slots of each row that are computed already."""
        made: dict[int, list[dict[int, torch.Tensor]]] = {row: [] for row in rows}
        # Each token has a line of a mask, which is as long as the text, also in the rows between those given.
        lines = (
            self.group * (rows[-1] + 1 - rows[0]) * max(self.cached[row] + n for row, n in zip(rows, counts))
        )
        for start, end in self._parts(max(counts), max(ordered.LINES, LARGE_MASK // lines)):
            fed = {row: min(end, n) - start for row, n in zip(rows, counts) if n > start or not start}
            starts = [self.cached[row] + start for row in fed]
            _, states = self._run(list(fed), starts, list(fed.values()), None, 0, hidden)
            for row, n in fed.items():  # rows are aligned at their right ends
                at = row - next(iter(fed)), slice(end - start - n, end - start)
                made[row].append({layer: state[at] for layer, state in states.items()})
        return [{at: torch.cat([each[at] for each in made[row]]) for at in hidden} for row in rows]

    def _parts(self, count: int, most: int) -> list[tuple[int, int]]:
        """Start and end of each part, of `most` tokens, of a prefill of `count` tokens.

        An invariant pass always needs a mask that grows with the square of its tokens, so its parts are
        shorter, which changes no bit of the result.
        """
        if self.joint:
            most = count
        elif self.model.invariant:
            most = ordered.LINES
        return [(start, min(start + most, count)) for start in range(0, count, most)]

    @torch.no_grad()
    def _run(
        self, rows: Sequence[int], starts: list[int], counts: list[int], drafts: list[Draft] | None,
        keep: int, hidden: tuple[int, ...],
    ) -> States:  # fmt: skip
        """Feed slots starts ... starts + counts of some rows, followed by their drafts' nodes.

        Rows are aligned at their right ends, so that the last `keep` columns hold all roots and nodes. The
        result covers all rows from the first to the last given; rows between them are fed padding. For a
        prefill (`keep` 0) it has the states of all columns.
        """
        with torch.inference_mode():
            fed = [count + len(draft) for count, draft in zip(counts, drafts)] if drafts else counts
            chains = drafts is None or all(draft.is_chain for draft in drafts)
            span = None if len(rows) == len(self.ids) else slice(rows[0], rows[-1] + 1)
            whole = span is None or len(rows) == rows[-1] + 1 - rows[0]
            if whole and chains and len(set(starts)) == 1 and len(set(fed)) == 1:
                start, count = starts[0], fed[0]
                self.store.aim(start, count, start + count, span)
                ids, columns = self.ids if span is None else self.ids[span], slice(start, start + count)
                given = PassInput(ids[:, columns], columns, self._chain(start, count), keep, hidden)
            elif len(rows) == 1 and drafts is not None:
                given = PassInput(*self._tree(starts[0], counts[0], drafts[0], span), keep, hidden)
            else:
                part = self._ragged(rows, starts, counts, fed, drafts, chains)
                given = PassInput(*part, keep, hidden)
            if drafts is not None and self.model.invariant and not chains:
                given.tails = self._tails(rows, starts, counts, drafts)
            last, states = self._call(given)
        return last, states

    def _call(self, given: PassInput) -> States:
        try:
            return self.model.run(given, self.store)
        except RuntimeError as error:
            raise memory_error(error, f"a pass of {given.ids.numel()} tokens through", self.model) from None

    def _chain(self, start: int, count: int) -> torch.Tensor | None:
        """The mask of `count` tokens after `start` others: a slice of a mask cached for each small count.

        A single token sees everything and a prefill from slot 0 is causal, so neither needs a mask unless
        whole blocks are read.
        """
        beyond = self.store.block - 1  # slots after its tokens that a pass may read
        if not beyond and (count == 1 or start == 0):
            return None
        kept = self._triangles.get(count)
        if kept is None:
            small = count <= 64  # drafts repeat; a long text after a cached one is read once
            size = self.store.data.shape[4] if small else start
            near = np.zeros((count, count + beyond), np.float32)
            near[~np.tri(count, count + beyond, dtype=bool)] = -np.inf
            device = self.model.device
            kept = torch.zeros(self.group, count, size + count + beyond, dtype=self.kind, device=device)
            kept[:, :, size:] = send(near, device, self.kind)
            kept = kept.view(1, 1, -1, size + count + beyond)
            if small:
                masks = self._triangles
                while masks and kept.nbytes + sum(mask.nbytes for mask in masks.values()) > KEPT_MASKS:
                    del masks[next(iter(masks))]  # the oldest
                masks[count] = kept
        first = kept.shape[-1] - beyond - count - start
        return kept[..., first : first + self._slots_read(start + count)]

    def _slots_read(self, end: int) -> int:
        """Number of slots read by a pass that reaches up to `end`."""
        return -(-end // self.store.block) * self.store.block

    def _tree(
        self, start: int, count: int, draft: Draft, row: slice | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Aim the storage; return ids, positions and mask of a row: `count` tokens, then a tree."""
        width, end = count + len(draft), start + count + len(draft)
        near = np.zeros((width, width), np.float32)
        near[:count][~np.tri(count, width, dtype=bool)] = -np.inf
        near[count:, count:][~draft.mask] = -np.inf
        positions = np.concatenate([np.arange(start, start + count), start + count - 1 + draft.offsets])
        self.store.reach = max(self.store.reach, int(positions.max()) + 1)
        self.store.aim(start, width, end, row)
        device, slots = self.ids.device, self._slots_read(end)
        mask = torch.zeros(self.group, width, slots, dtype=self.kind, device=device)
        mask[..., start:end] = send(near, device)
        mask[..., end:] = -torch.inf
        ids = self.ids if row is None else self.ids[row]
        return ids[:, start:end], send(positions[None], device), mask.view(1, 1, -1, slots)

    def _tails(
        self, rows: Sequence[int], starts: list[int], counts: list[int], drafts: list[Draft]
    ) -> list[ordered.Tail]:
        """The tails for an invariant model's pass over trees, for each row from the first to the last."""
        device, each = self.ids.device, dict(zip(rows, zip(starts, counts, drafts)))
        tails = []
        for row in range(rows[0], rows[-1] + 1):
            start, count, draft = each.get(row, (0, 1, NOTHING))
            tails.append(ordered.tail(start + count - 1, draft.offsets, start + count, device))
        return tails

    def _ragged(
        self, rows: Sequence[int], starts: list[int], counts: list[int], fed: list[int],
        drafts: list[Draft] | None, chains: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        """Aim the storage; return ids, positions and mask for rows of different lengths, and for trees."""
        first, size = rows[0], rows[-1] + 1 - rows[0]
        device, width, heads = self.ids.device, max(fed), self.store.data.shape[3]
        end = max(start + n for start, n in zip(starts, fed))
        at = np.array(rows) - first
        padding_slot = self.store.data.shape[4] - 1
        if width == 1 and len(rows) == size:
            slots = positions = np.array(starts)[:, None]
        else:
            begin, columns = np.zeros(size, np.int64), np.full(size, width)  # columns of left padding
            begin[at], columns[at] = starts, width - np.array(fed)
            slots = begin[:, None] + np.arange(width) - columns[:, None]
            padding = np.arange(width) < columns[:, None]
            positions = np.where(padding, 0, slots)
            slots[padding] = padding_slot
        if not chains:
            assert drafts is not None
            for i, start, count, draft in zip(at.tolist(), starts, counts, drafts):
                if len(draft):
                    positions[i, width - len(draft) :] = start + count - 1 + draft.offsets
        self.store.reach = max(self.store.reach, int(positions.max()) + 1)
        entry = (np.arange(first, first + size)[:, None] * heads + np.arange(heads)) * (padding_slot + 1)
        index = (entry[:, :, None] + slots[:, None]).reshape(-1)
        sent = send(np.concatenate([positions.ravel(), slots.ravel(), index]), device)
        where, slot, index = sent.split([size * width, size * width, len(index)])
        where, slot = where.view(size, width), slot.view(size, width)
        self.store.aim(0, width, end, slice(first, first + size), slot, index)
        ids = self.ids[first : first + size].gather(1, slot)
        group, kind, read = self.group, self.kind, self._slots_read(end)
        # In a chain, slots are in text order, so a token sees all slots before it. Padding sees slot 0,
        # because a query that sees nothing is NaN.
        last = where if chains else torch.where(slot == padding_slot, 0, slot)
        beyond = torch.arange(read, device=device) > last[..., None]
        mask = torch.zeros(beyond.shape, dtype=kind, device=device).masked_fill_(beyond, -torch.inf)
        if not chains:
            assert drafts is not None
            for i, start, count, draft in zip(at.tolist(), starts, counts, drafts):
                if n := len(draft):
                    low = start + count
                    near = np.where(draft.mask, 0.0, -np.inf)
                    mask[i, width - n :, low : low + n] = send(near, device, kind)
        mask = mask[:, None, None].expand(-1, 1, group, -1, -1)
        return ids, where, mask.reshape(size, 1, group * width, read)


def nested(values: Sequence[object] | torch.Tensor) -> bool:
    """Whether `values` is a sequence of rows rather than one row of numbers."""
    first = values[0] if len(values) else 0
    return not isinstance(first, int | np.integer) and not (
        isinstance(first, torch.Tensor) and not first.ndim
    )


def for_rows(values: Tokens | Sequence[Tokens], rows: int) -> Sequence[Tokens]:
    """One entry per row; for a single row the entry may be given without the outer list."""
    if rows == 1 and (torch.is_tensor(values) or not nested(values)):
        return [cast("Tokens", values)]
    return cast("Sequence[Tokens]", values)


def longest(prompts: Sequence[Sequence[int]], most: int | None = None, name: str = "") -> int:
    """The length of the longest prompt.

    Raises
    ------
    PromptError
        If a prompt is empty, or longer than `most`.
    """
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise PromptError("the prompt is empty; give at least one token")
    length = max(len(prompt) for prompt in prompts)
    if most is not None and length > most:
        raise PromptError(f"the prompt has {length} tokens, but {name} takes at most {most}")
    return length


def check_ids(low: int, high: int, model: TextModel) -> None:
    """Check that ids from `low` to `high` are in the vocabulary; raise `PromptError` otherwise."""
    if not 0 <= low <= high < model.vocabulary:
        wrong = int(high if high >= model.vocabulary else low)
        raise PromptError(f"token id {wrong} is outside {model.name}'s vocabulary of {model.vocabulary}")


def check_path(draft: Draft, path: Sequence[int], row: int) -> None:
    """Check that nodes are a path from the root of a draft; raise `ModelError` otherwise."""
    parents, count = draft.parents, len(draft)
    if any(not 0 <= node < count or parents[node] != before for before, node in zip([-1, *path], path)):
        raise ModelError(f"commit of row {row}: nodes {list(path)} are not a path from the root")


def check_fits(context: Context | LlamaCppContext, row: int, held: int, tokens: int, reach: int) -> None:
    """Check that `tokens` more fit after the `held` ones of a row, at positions up to `reach` further."""
    if held + tokens > context.slots:
        raise ModelError(
            f"row {row} holds {held} of {context.slots} tokens; {tokens} more do not fit: open with more room"
        )
    model = context.model
    if held + reach > model.max_length:
        raise ModelError(
            f"{model.name} takes at most {model.max_length} tokens; position {held + reach - 1} exceeds that"
        )


def to_device(tokens: Tokens, model: Target) -> torch.Tensor:
    """Convert tokens to a tensor on the model's device; tokens from the host are checked first."""
    if torch.is_tensor(tokens):
        return send(tokens, model.device, torch.long)
    array = np.require(tokens, np.int64, "W")  # torch warns about read-only arrays
    if len(array):
        check_ids(array.min(), array.max(), model)
    return send(array, model.device)


def memory_error(error: RuntimeError, what: str, model: TorchModel | EagleModel) -> Exception:
    """Turn an out-of-memory error into a `ModelError`, or return `error`; the model's name follows `what`."""
    full = isinstance(error, torch.OutOfMemoryError)  # on a GPU; on a CPU only the message tells
    if not full and "can't allocate memory" not in str(error) and "out of memory" not in str(error):
        return error
    ways = ["lower max_new_tokens", "decode fewer prompts at once", "shorten the prompt"]
    if model.dtype.itemsize > 2:
        ways.append(f"load with dtype='bfloat16' (now {str(model.dtype).removeprefix('torch.')})")
    advice = f"{', '.join(ways[:-1])}, or {ways[-1]}"
    return ModelError(f"out of memory on {model.device} for {what} {model.name}: {advice}")
