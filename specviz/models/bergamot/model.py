"""Bergamot translators ready to run: the interface of `EncoderDecoder` with a recurrent decoder.

The decoder has no keys and values for its text. Instead, the slots of the cache hold its state after each
token, so a rollback selects an earlier state at no cost. A pass reads a chain of tokens. A tree is not
supported: each branch would need its own state, starting from its parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models import ordered
from specviz.models.bergamot import net as modules
from specviz.models.context import Exit, Pass, StorageShape, Store
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.encoder_decoder_context import Encoder, EncoderDecoderContext
from specviz.models.layers import Decoder, Function, Lines, Sees, layer_norm
from specviz.models.torch_model import TorchModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specviz.models.protocols import Net, Positions

HALVES = 2  # a state is stored in two halves, in place of a key and a value


class RecurrentDecoder(Decoder):
    """The decoder's pass over a chain of tokens, as a plain function over the modules' weights."""

    products = 5  # per layer: the recurrence's forget gate and candidate are one

    def __init__(self, net: Net, layers: int, layout: str, invariant: bool = False) -> None:
        config, blocks = net.config, net.decoder.layers[:layers]
        heads = config.decoder_attention_heads
        crossed = [part for b in blocks for part in (b.encoder_attn.k_proj, b.encoder_attn.v_proj)]
        norms = [(layer_norm(b.rnn_norm), layer_norm(b.encoder_norm), layer_norm(b.ffn.norm)) for b in blocks]
        super().__init__(net, layout, heads, config.d_model // heads, crossed, norms, groups(net), invariant)
        self.size = config.d_model
        self.embedding = net.get_input_embeddings().weight.detach()
        self.places = modules.places(config.max_position_embeddings, self.embedding)
        self.head = Lines(net.lm_head, layout=layout, invariant=invariant)
        self.sigmoid: Function = ordered.steady(torch.sigmoid) if invariant else torch.sigmoid

    def embed(self, ids: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Embed tokens and positions; the start token is embedded as zeros."""
        places = self.places[positions]
        x = F.embedding(ids, self.embedding) * self.size**0.5
        if not isinstance(positions, slice):
            x = x * (positions > 0)[..., None]
        elif positions.start == 0:
            x[:, 0] = 0
        return x + places

    def layer(self, i: int, x: torch.Tensor, rows: int, mask: Sees, store: Store) -> torch.Tensor:
        """Layer `i`'s output; each part ends with its norm."""
        (first, second, third), (gates, q, c, wide, down) = self.weights[i]
        x = first(self.recur(i, gates(x), rows, store) + x)
        x = second(c.add(self.attend_source(i, q(x), rows, mask, store), x))
        return third(down.add(torch.relu_(wide(x)), x))

    def recur(self, i: int, y: torch.Tensor, rows: int, store: Store) -> torch.Tensor:
        """The recurrence's outputs [rows * n, size]; `y` holds forget gates and candidates, concatenated.

        One fused kernel per token, so that each state is computed exactly as in token-by-token decoding.
        """
        forget, new = y.split(self.size, 1)
        forget, new = self.sigmoid(forget).view(rows, -1, self.size), new.view(rows, -1, self.size)
        new = new * (1 - forget)
        state, padding = self.before(i, rows, store)
        state = state.to(new.dtype)  # an invariant model's storage may have a wider format
        if padding is not None:  # on the left; it leaves the state unchanged
            forget, new = forget.masked_fill(padding, 1.0), new.masked_fill(padding, 0.0)
        states = torch.empty_like(new)
        for t in range(new.shape[1]):
            state = torch.addcmul(new[:, t], forget[:, t], state, out=states[:, t])
        store.write_both(i, self.split(states))
        return torch.relu(states).view(-1, self.size)

    def before(self, i: int, rows: int, store: Store) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The state before a pass's first token [rows, size], and a mask of padding columns or None."""
        kept = store.data[i]  # [2, rows, heads, slots, dim]
        if store.rows is not None:
            kept = kept[:, store.rows]
        if store.slots is None:
            start = store.start
            if start == 0:
                return kept.new_zeros(rows, self.size), None
            return kept[:, :, :, start - 1].transpose(0, 1).reshape(rows, self.size), None
        slots = store.slots
        width = slots.shape[1]
        # The slots if there were no padding.
        aligned = slots[:, -1:] - torch.arange(width - 1, -1, -1, device=slots.device)
        padding = slots != aligned
        first = torch.where(padding, slots[:, -1:], slots).amin(1)  # slot of the row's first token
        index = (first - 1).clamp(min=0).view(1, rows, 1, 1, 1).expand(2, -1, kept.shape[2], 1, kept.shape[4])
        state = kept.gather(3, index)[:, :, :, 0].transpose(0, 1).reshape(rows, self.size)
        return state * (first > 0)[:, None], padding[..., None]

    def split(self, states: torch.Tensor) -> torch.Tensor:
        """Reshape states [rows, n, size] to the storage's form, [2, rows, heads, n, dim]."""
        rows, n, _ = states.shape
        return states.view(rows, n, HALVES, -1, self.dim).permute(2, 0, 3, 1, 4)

    def final(self, x: torch.Tensor) -> torch.Tensor:
        """Return the states unchanged: each layer already ends with a norm."""
        return x

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Logits of final states [tokens, size]."""
        return self.head(last)


class BergamotContext(EncoderDecoderContext):
    """An `EncoderDecoderContext` that accepts only chains as drafts."""

    def forward(
        self, drafts: Draft | Sequence[Draft], hidden: Sequence[int] = (), rows: Sequence[int] | None = None,
        leave: Callable[[Exit], bool] | None = None,
    ) -> Pass:  # fmt: skip
        """See `Context.forward`.

        Raises
        ------
        ModelError
            If a draft branches, and as in `Context.forward`.
        """
        for draft in [drafts] if isinstance(drafts, Draft) else drafts:
            if len(draft) and not draft.is_chain:
                raise ModelError(TREES.format(self.model.name))
        return super().forward(drafts, hidden, rows, leave)


TREES = (
    "{0} has a recurrent decoder, whose state runs along one text: it can only read a chain, because a tree "
    "would need a state for each branch; use a method that drafts chains (speculative, prompt_lookup, "
    "retranslate)"
)


class Bergamot(EncoderDecoder):
    """A Bergamot translator with the interface of `specviz.models.protocols.Model`.

    Parameters
    ----------
    net : Net
        Already on its device and in its number format.
    tokenizer : transformers tokenizer
    name : str
    kernels : str, optional
        Layout of the decoder's matrices; see `Model`.
    """

    trees = False
    leaves = False
    template = "plain"  # for re-translation: the model was trained on bare source texts

    def __init__(
        self, net: Net, tokenizer: PreTrainedTokenizerBase | None, name: str, kernels: str | None = None
    ) -> None:
        self.prefix = [net.config.decoder_start_token_id]
        TorchModel.__init__(self, net, tokenizer, name, kernels, encoder=True)
        self.encoder = Encoder(net)
        self.layers = net.config.decoder_layers
        self.decoder = self._laid()

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> BergamotContext:
        """Open a context of `prompts`, not yet encoded; for arguments and errors see `Model.open`."""
        self._refresh()
        return BergamotContext(self, prompts, room)

    def first(self, layers: int) -> EncoderDecoder:
        """Raise `ModelError`: the skipped layers' states would be missing for the tokens that follow."""
        raise ModelError(
            f"{self.name} has a recurrent decoder, which always runs all its layers: use another drafter"
        )

    def check_leaves(self) -> None:
        """Raise `ModelError`: passes cannot exit early."""
        self.first(1)

    def shape(self, rows: int, slots: int) -> StorageShape:
        """Shape of the storage for a context of `rows` x `slots` written tokens."""
        decoder = self.decoder
        heads = decoder.heads // HALVES
        return StorageShape(self.layers, rows, heads, slots, decoder.dim, self.attention_dtype, self.device)

    def function(self, layout: str, invariant: bool = False) -> Decoder:
        """See `TorchModel.function`."""
        return RecurrentDecoder(self.net, self.layers, layout, invariant)

    def _groups(self) -> Iterator[tuple[torch.nn.Linear, ...]]:
        return groups(self.net)


def groups(net: Net) -> Iterator[tuple[torch.nn.Linear, ...]]:
    """The decoder's linear layers, layer by layer, grouped by shared input."""
    for layer in net.decoder.layers:
        yield layer.rnn.forget, layer.rnn.candidate
        yield from ((layer.encoder_attn.q_proj,), (layer.encoder_attn.out_proj,))
        yield from ((layer.ffn.fc1,), (layer.ffn.fc2,))
