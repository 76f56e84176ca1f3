"""The encoder-decoder's context: the prompts' encodings, and the text that the decoder writes.

The storage holds the decoder's text as it holds a causal text, with the start token in slot 0. Callers see a
different numbering: `length` counts the prompt and the written text, and the start token takes the place of
the prompt's last token. Token i of a text is therefore in slot i - (len(prompt) - 1).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from specviz.models import ordered
from specviz.models.context import Context, PassInput, States, Store, longest, to_device
from specviz.models.devices import send

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.encoder_decoder import EncoderDecoder
    from specviz.models.layers import Decoder


class Source:
    """The encoded prompts that a decoder attends to through cross-attention.

    Parameters
    ----------
    prompts : sequence of sequences of int
        One prompt per row.
    states : tensor [rows, tokens, size]
        The encoder's last hidden states.
    crossed : tensor [layers, 2, rows, heads, slots, dim]
        Keys and values that the decoder's layers compute from `states`, one slot per token. For an invariant
        decoder the slots are padded to whole blocks (`specviz.models.ordered`).
    mask : tensor [rows, 1, 1, slots] or None
        Added to the attention scores to hide the padding of shorter prompts. An invariant decoder always has
        one.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        states: torch.Tensor,
        crossed: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> None:
        self.prompts = list(prompts)  # a copy: a context drops rows of its own list
        self.states, self.crossed, self.mask = states, crossed, mask
        self.pairs = [(pair[0], pair[1]) for pair in crossed.unbind(0)]
        self.part: tuple[slice, Source] | None = None  # the last result of `of`

    def repeated(self, rows: int) -> Source:
        """Repeat the single row `rows` times, without copying."""
        layers, two, _, *rest = self.crossed.shape
        states = self.states.expand(rows, -1, -1)
        mask = None if self.mask is None else self.mask.expand(rows, -1, -1, -1)
        return Source(list(self.prompts) * rows, states, self.crossed.expand(layers, two, rows, *rest), mask)

    def apart(self) -> list[Source]:
        """Split into one source per row, without padding."""
        return [
            Source([prompt], self.states[row : row + 1, :n], self.crossed[:, :, row : row + 1, :, :n], None)
            for row, prompt in enumerate(self.prompts)
            for n in [len(prompt)]
        ]

    def of(self, rows: slice | None) -> Source:
        """The source of some rows, as views; None selects all rows."""
        if rows is None or len(self.prompts) == 1 or rows == slice(0, len(self.prompts)):
            return self
        if self.part is None or self.part[0] != rows:
            mask = None if self.mask is None else self.mask[rows]
            own = Source(self.prompts[rows], self.states[rows], self.crossed[:, :, rows], mask)
            self.part = rows, own
        return self.part[1]


def joined(rows: list[Source], invariant: bool) -> Source:
    """Join sources of one row each, padding the shorter ones; `invariant` says whether the decoder is."""
    lengths = [len(row.prompts[0]) for row in rows]
    width, first = max(lengths), rows[0]
    layers, two, _, heads, _, dim = first.crossed.shape
    dtype, slots = first.states.dtype, width
    if invariant:  # masks have the number format in which attention computes
        dtype, slots = torch.promote_types(dtype, torch.float32), ordered.whole_blocks(width)
    states = first.states.new_zeros(len(rows), width, first.states.shape[-1])
    crossed = first.crossed.new_zeros(layers, two, len(rows), heads, slots, dim)
    mask = first.states.new_zeros(len(rows), 1, 1, slots, dtype=dtype)
    for i, (row, n) in enumerate(zip(rows, lengths)):
        states[i, :n], crossed[:, :, i, :, :n] = row.states[0, :n], row.crossed[:, :, 0, :, :n]
        mask[i, ..., n:] = -torch.inf
    prompts = [row.prompts[0] for row in rows]
    return Source(prompts, states, crossed, mask if invariant or min(lengths) < width else None)


class Encoder:
    """A model's encoder, shared with drafters made of the model's first layers.

    Such a drafter reads the same prompts as its target, so an encoding is reused as long as some context
    holds it.
    """

    def __init__(self, net: PreTrainedModel) -> None:
        self.net, self.config = net.get_encoder(), net.config
        # Keys: whether the decoder is invariant, and the prompts.
        self.encodings: weakref.WeakValueDictionary[tuple[bool, tuple[tuple[int, ...], ...]], Source] = (
            weakref.WeakValueDictionary()
        )

    def read(self, prompts: Sequence[Sequence[int]], decoder: Decoder) -> tuple[Source, int]:
        """Encode the prompts, with keys and values for the layers of `decoder`, or reuse an encoding.

        For an invariant decoder each prompt is encoded in a separate pass.

        Returns
        -------
        Source
        int
            Number of tokens fed to the encoder.
        """
        key = decoder.invariant, tuple(map(tuple, prompts))
        source, fed, layers = self.encodings.get(key), 0, decoder.depth
        if source is None:
            parts = [[prompt] for prompt in prompts] if decoder.invariant else [prompts]
            sources = [self._encoded(part, decoder) for part in parts]
            source = joined(sources, True) if decoder.invariant else sources[0]
            fed = sum(map(len, prompts))
            self.encodings[key] = source
        elif len(source.pairs) < layers:
            source = source_for(source, decoder)
            self.encodings[key] = source
        if len(source.pairs) > layers:
            source = Source(prompts, source.states, source.crossed[:layers], source.mask)
        return source, fed

    def _encoded(self, prompts: Sequence[Sequence[int]], decoder: Decoder) -> Source:
        """Encode the prompts in one pass."""
        fed, width = sum(map(len, prompts)), max(map(len, prompts))
        device = self.net.device
        ids = torch.full((len(prompts), width), self.config.pad_token_id or 0)
        seen = torch.zeros(len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.as_tensor(prompt)
            seen[row, : len(prompt)] = 1
        mask = padding = None
        if fed < seen.numel():
            padding = send(seen, device)
            mask = torch.zeros(seen.shape, dtype=self.net.dtype, device=device)
            mask = mask.masked_fill_(padding == 0, -torch.inf)[:, None, None]
        states = self.net(input_ids=send(ids, device), attention_mask=padding).last_hidden_state
        return Source(prompts, states, decoder.cross(states), mask)


class TargetsEncoder(Encoder):
    """The target's encoder; the drafter's layers compute their own keys and values from its states."""

    def __init__(self, target: EncoderDecoder) -> None:
        super().__init__(target.net)
        self.target = target

    def read(self, prompts: Sequence[Sequence[int]], decoder: Decoder) -> tuple[Source, int]:
        """See `Encoder.read`; nothing is fed if a context of the target has already read these prompts."""
        source, fed = self.target.encoder.read(prompts, self.target.decoder)
        return source_for(source, decoder), fed


def source_for(source: Source, decoder: Decoder) -> Source:
    """Compute the source for `decoder` from prompts that were encoded for another decoder."""
    prompts, states, mask = source.prompts, source.states, source.mask
    fits = mask is None or (mask.dtype == states.dtype and mask.shape[-1] == states.shape[1])
    if fits and not decoder.invariant:
        return Source(prompts, states, decoder.cross(states), mask)
    rows = [
        Source([prompt], own, decoder.cross(own), None)
        for prompt, row in zip(prompts, states)
        for own in [row[None, : len(prompt)]]
    ]
    return joined(rows, decoder.invariant)


class EncoderDecoderContext(Context):
    """Rows of prompts and the texts written after them; created by `EncoderDecoder.open`.

    The prompts are encoded once, by `prefill` or the first pass; the rest works as in `Context`. A prompt can
    be neither extended nor rewound.
    """

    model: EncoderDecoder
    store: Store
    joint = True

    def __init__(self, model: EncoderDecoder, prompts: Sequence[Sequence[int]], room: int) -> None:
        longest(prompts, model.max_length, f"the encoder of {model.name}")
        self.prompts = [to_device(list(prompt), model).tolist() for prompt in prompts]
        super().__init__(model, [model.prefix] * len(prompts), room)
        self.least = [len(prompt) for prompt in prompts]
        self.source: Source | None = None  # of all rows
        self.own: list[Source | None] = [None] * self.rows  # of each row, after rows were replaced or dropped

    @property
    def length(self) -> list[int]:
        """Committed tokens of each row: its prompt and the text written after it."""
        start = len(self.model.prefix)
        return [least + filled - start for least, filled in zip(self.least, self.filled)]

    @property
    def tokens(self) -> list[list[int]]:
        """The committed tokens of each row (copied from the device)."""
        start = len(self.model.prefix)
        written = self.ids.tolist()
        return [prompt + written[row][start : self.filled[row]] for row, prompt in enumerate(self.prompts)]

    def replace(self, row: int, prompt: Sequence[int], room: int = 0) -> None:
        """See `Context.replace`; the new prompt is encoded when its row is next computed."""
        longest([prompt], self.model.max_length, f"the encoder of {self.model.name}")
        new = to_device(list(prompt), self.model).tolist()
        super().replace(row, self.model.prefix, room)
        self.prompts[row], self.least[row] = new, len(new)
        self._apart()
        self.own[row] = None

    def drop(self, row: int) -> None:
        """See `Context.drop`."""
        super().drop(row)
        self._apart()
        last = self.rows
        self.own[row], self.prompts[row] = self.own[last], self.prompts[last]
        del self.own[last], self.prompts[last]

    def due(self, row: int) -> int:
        """See `Context.due`; counts the encoder's tokens, too."""
        encoded = self.source is not None or self.own[row] is not None
        return super().due(row) + (0 if encoded else len(self.prompts[row]))

    def prefill(self, rows: Sequence[int] | None = None, hidden: tuple[int, ...] = ()) -> int:
        """Encode the prompts and compute every pending token except the last of each row.

        Returns
        -------
        int
            Number of tokens fed, including the encoder's; the encoder is fed none if another context holds
            the encoding of the same prompts.
        """
        return self._read() + super().prefill(rows, hidden)

    def close(self) -> None:
        """Free the storage and the encoding."""
        super().close()
        self.source = None
        self.own = []

    def _beginning(self, lengths: Sequence[int], room: int) -> EncoderDecoderContext:
        (prompt,), least, rows = self.prompts, self.least[0], len(lengths)
        branch = EncoderDecoderContext(self.model, [prompt] * rows, room + max(lengths) - least)
        text = self.tokens[0]
        branch.extend([text[least:length] for length in lengths])
        self._read()
        assert self.source is not None
        branch.source = self.source.repeated(rows)
        return branch

    @torch.inference_mode()
    def _read(self) -> int:
        """Encode the prompts that are not yet encoded; return the number of tokens fed."""
        fed = 0
        if self.source is None and not any(self.own):
            self.source, fed = self.model.encoder.read(self.prompts, self.model.decoder)
        elif self.source is None:
            for row, prompt in enumerate(self.prompts):
                if self.own[row] is None:
                    self.own[row], new = self.model.encoder.read([prompt], self.model.decoder)
                    fed += new
            self.source = joined([own for own in self.own if own is not None], self.model.invariant)
        self.store.source = self.source
        return fed

    def _apart(self) -> None:
        """Split the encoding into one per row, before a row changes."""
        if self.source is not None:
            self.own = [*self.source.apart()]
        self.source = self.store.source = None

    def _chain(self, start: int, count: int) -> torch.Tensor | None:
        if self.model.decoder.bias is None:
            return super()._chain(start, count)
        mask = self.model.decoder.bias.chain(start, count)
        if self.model.invariant:  # whole blocks are read
            beyond = self._slots_read(start + count) - mask.shape[-1]
            mask = F.pad(mask.to(self.kind), (0, beyond), value=-torch.inf)
        return mask

    def _call(self, given: PassInput) -> States:
        if self.source is None:
            self._read()
        assert self.source is not None
        self.store.source = self.source.of(self.store.rows)
        bias = self.model.decoder.bias
        if bias is not None and not isinstance(given.positions, slice):
            assert given.mask is not None  # a pass with explicit positions always has one
            given.mask = given.mask + bias.between(given.positions, self._places(given.positions))
        return super()._call(given)

    def _places(self, positions: torch.Tensor) -> torch.Tensor:
        """Text positions of the slots that a pass reads, [rows, slots]; new tokens are at `positions`."""
        end = self.store.read[0].shape[2]
        width = self.store.data.shape[4]
        places = torch.arange(width, device=positions.device).repeat(len(positions), 1)
        if self.store.slots is None:
            places[:, self.store.start : self.store.start + positions.shape[1]] = positions
        else:
            places.scatter_(1, self.store.slots, positions)
        return places[:, :end]
