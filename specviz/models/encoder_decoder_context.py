"""The encoder-decoder's context: the prompts' encoding beside the text that the decoder writes.

The decoder's text lies in the storage as a causal text does, its start token in slot 0. To those outside that
token stands in the place of the prompt's last one: `length` counts the prompt and what was written, so that
the token i of a text has the slot i - (len(prompt) - 1).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from specviz.devices import send
from specviz.errors import PromptError
from specviz.models.context import Context, _tensor

if TYPE_CHECKING:
    from specviz.models.encoder_decoder import EncoderDecoder


class Source:
    """What a decoder attends to beside its own text.

    Parameters
    ----------
    prompts : sequence of sequences of int
        The rows' prompts.
    states : tensor [rows, tokens, size]
        The encoder's last states.
    crossed : tensor [layers, 2, rows, heads, tokens, dim]
        Keys and values that the decoder's layers make of them.
    mask : tensor [rows, 1, 1, tokens] or None
        Added to the scores: shorter prompts are padded.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        states: torch.Tensor,
        crossed: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> None:
        self.prompts, self.states, self.crossed, self.mask = prompts, states, crossed, mask
        self.pairs = [pair.unbind(0) for pair in crossed.unbind(0)]

    def repeated(self, rows: int) -> Source:
        """The one row's, as often as said, without a copy."""
        layers, two, _, *rest = self.crossed.shape
        states = self.states.expand(rows, -1, -1)
        return Source(list(self.prompts) * rows, states, self.crossed.expand(layers, two, rows, *rest), None)


class Encoder:
    """A model's encoder, which the model shares with those of its first layers.

    A drafter that is the first layers of its target reads the prompts that the target has read: the last
    encoding is found again as long as some context holds it.
    """

    def __init__(self, net: Any) -> None:
        self.net, self.config = net.get_encoder(), net.config
        self.last: weakref.ref[Source] | None = None

    def read(self, prompts: Sequence[Sequence[int]], decoder: Any) -> tuple[Source, int]:
        """The prompts' encoding, with keys and values for the layers of `decoder`.

        Returns
        -------
        Source
        int
            How many tokens were fed.
        """
        known = self.last() if self.last is not None else None
        fed = 0
        if known is None or known.prompts != prompts:
            fed, longest = sum(map(len, prompts)), max(map(len, prompts))
            device = self.net.device
            ids = torch.full((len(prompts), longest), self.config.pad_token_id or 0)
            seen = torch.zeros(len(prompts), longest, dtype=torch.long)
            for row, prompt in enumerate(prompts):
                ids[row, : len(prompt)] = torch.as_tensor(prompt)
                seen[row, : len(prompt)] = 1
            mask = padding = None
            if fed < seen.numel():
                padding = send(seen, device)
                mask = torch.zeros(seen.shape, dtype=self.net.dtype, device=device)
                mask = mask.masked_fill_(padding == 0, -torch.inf)[:, None, None]
            states = self.net(input_ids=send(ids, device), attention_mask=padding).last_hidden_state
            known = Source(prompts, states, decoder.cross(states), mask)
            self.last = weakref.ref(known)
        layers = len(decoder.weights)
        if len(known.pairs) < layers:
            known = Source(prompts, known.states, decoder.cross(known.states), known.mask)
            self.last = weakref.ref(known)
        elif len(known.pairs) > layers:
            known = Source(prompts, known.states, known.crossed[:layers], known.mask)
        return known, fed


class EncoderDecoderContext(Context):
    """Rows of prompts and of texts written behind them; made by `EncoderDecoder.open`.

    The prompts are encoded once, by `prefill` or the first pass; the rest is as in `Context`. A prompt cannot
    be extended nor rewound.
    """

    model: Any

    def __init__(self, model: EncoderDecoder, prompts: Sequence[Sequence[int]], room: int) -> None:
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise PromptError("the prompt is empty; give at least one token")
        longest = max(len(prompt) for prompt in prompts)
        if longest > model.max_length:
            raise PromptError(
                f"the prompt has {longest} tokens, but the encoder of {model.name} takes at most "
                f"{model.max_length}"
            )
        self.prompts = [_tensor(list(prompt), model).tolist() for prompt in prompts]
        super().__init__(model, [model.prefix] * len(prompts), room)
        self.least = [len(prompt) for prompt in prompts]
        self.source: Source | None = None

    @property
    def length(self) -> list[int]:
        """Committed tokens of each row: its prompt, and what was written behind it."""
        start = len(self.model.prefix)
        return [least + filled - start for least, filled in zip(self.least, self.filled)]

    @property
    def tokens(self) -> list[list[int]]:
        """The committed tokens of each row (copied from the device)."""
        start = len(self.model.prefix)
        written = self.ids.tolist()
        return [prompt + written[row][start : self.filled[row]] for row, prompt in enumerate(self.prompts)]

    def prefill(self) -> int:
        """Encode the prompts and compute all that is pending but the last token of each row.

        Returns
        -------
        int
            How many tokens were fed, the encoder's counted; 0 of these where a context of the same prompts
            has the encoding.
        """
        return self._read() + super().prefill()

    def close(self) -> None:
        """Free the storage and the encoding."""
        super().close()
        self.source = None

    def _slots(self, lengths: list[int]) -> list[int]:
        start = len(self.model.prefix)
        return [length - least + start for length, least in zip(lengths, self.least)]

    def _beginning(self, lengths: Sequence[int], room: int) -> EncoderDecoderContext:
        (prompt,), least, rows = self.prompts, self.least[0], len(lengths)
        begun = EncoderDecoderContext(self.model, [prompt] * rows, room + max(lengths) - least)
        text = self.tokens[0]
        begun.extend([text[least:length] for length in lengths])
        self._read()
        begun.source = self.source.repeated(rows)  # type: ignore[union-attr]
        return begun

    @torch.inference_mode()
    def _read(self) -> int:
        """Encode the prompts, unless it was done; give how many tokens were fed."""
        fed = 0
        if self.source is None:
            self.source, fed = self.model.encoder.read(self.prompts, self.model.decoder)
        self.store.source = self.source
        return fed

    def _chain(self, start: int, count: int) -> torch.Tensor | None:
        if self.model.decoder.bias is None:
            return super()._chain(start, count)
        return self.model.decoder.bias.chain(start, count)

    def _call(
        self, ids: torch.Tensor, positions: Any, mask: torch.Tensor | None, keep: int, *more: Any
    ) -> Any:
        if self.store.source is None:
            self._read()
        bias = self.model.decoder.bias
        if bias is not None and not isinstance(positions, slice):
            mask = mask + bias.between(positions, self._places(positions))
        return super()._call(ids, positions, mask, keep, *more)

    def _places(self, positions: torch.Tensor) -> torch.Tensor:
        """Where the slots that a pass reads stand in the text, [rows, slots]: new ones where it says."""
        end = self.store.read[0].shape[2]
        width = self.store.data.shape[4]
        places = torch.arange(width, device=positions.device).repeat(self.rows, 1)
        if self.store.index is None:
            places[:, end - positions.shape[1] : end] = positions
        else:
            places[self.store.index] = positions
        return places[:, :end]
