"""The decoder of BART and Marian as one plain function over the model's own weights.

It computes the same results as the transformers modules, but uses text positions rather than cache slots,
because siblings in a token tree have the same position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from specviz.models.layers import Decoder, Lines, Sees, activation, layer_norm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.context import Store
    from specviz.models.protocols import Net, Positions

CLASSES = ("BartForConditionalGeneration", "MarianMTModel")


class Bart(Decoder):
    """A forward pass of a BART or Marian decoder over a context's storage and its encoder's keys and values.

    Parameters
    ----------
    net : transformers model for which `refusal` returns None
        Read, never changed; see `Llama`.
    layers : int
        Number of the decoder's layers to run.
    layout : str
        Layout of its matrices (`specviz.models.kernels`).
    invariant : bool, optional
        See `PlainFunction`.
    """

    def __init__(self, net: Net, layers: int, layout: str, invariant: bool = False) -> None:
        config, stack = net.config, net.model.decoder
        blocks = stack.layers[:layers]
        heads = config.decoder_attention_heads
        crossed = [part for b in blocks for part in (b.encoder_attn.k_proj, b.encoder_attn.v_proj)]
        norms = [
            (
                layer_norm(b.self_attn_layer_norm),
                layer_norm(b.encoder_attn_layer_norm),
                layer_norm(b.final_layer_norm),
            )
            for b in blocks
        ]
        super().__init__(net, layout, heads, config.d_model // heads, crossed, norms, groups(net), invariant)
        self.size = config.d_model
        words, places = stack.embed_tokens, stack.embed_positions
        self.embedding = words.weight.detach()
        # BART's embedding module applies the scale itself; for Marian, the decoder does.
        self.grow = getattr(words, "embed_scale", getattr(stack, "embed_scale", 1.0))
        self.places = places.weight.detach()[getattr(places, "offset", 0) :]
        self.start = layer_norm(stack.layernorm_embedding) if hasattr(stack, "layernorm_embedding") else None
        self.head = Lines(net.lm_head, layout=layout, invariant=invariant)
        self.final_bias: torch.Tensor = net.final_logits_bias
        self.act = activation(config.activation_function, invariant)

    def final(self, x: torch.Tensor) -> torch.Tensor:
        """Return the states unchanged: each layer already ends with a norm."""
        return x

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Logits of final states [tokens, size]."""
        return self.head(last).add_(self.final_bias)

    def embed(self, ids: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Embed tokens and positions."""
        x = F.embedding(ids, self.embedding)
        x = self.places[positions] + (x if self.grow == 1.0 else x * self.grow)
        return x if self.start is None else self.start(x)

    def layer(self, i: int, x: torch.Tensor, rows: int, mask: Sees, store: Store) -> torch.Tensor:
        """Layer `i`'s output; each part ends with its norm."""
        (first, second, third), (qkv, o, q, c, wide, down) = self.weights[i]
        x = first(o.add(self.attend(i, qkv(x), rows, mask, store), x))
        x = second(c.add(self.attend_source(i, q(x), rows, mask, store), x))
        return third(down.add(self.act(wide(x)), x))


def groups(net: Net) -> Iterator[tuple[torch.nn.Linear, ...]]:
    """The decoder's linear layers, layer by layer, grouped by shared input."""
    for layer in net.model.decoder.layers:
        a, c = layer.self_attn, layer.encoder_attn
        yield from ((a.q_proj, a.k_proj, a.v_proj), (a.out_proj,), (c.q_proj,), (c.out_proj,))
        yield from ((layer.fc1,), (layer.fc2,))


def refusal(net: PreTrainedModel) -> str | None:
    """Why `Bart` cannot compute the same as `net`; None if it can."""
    if not getattr(net.config, "share_encoder_decoder_embeddings", True):
        return "its encoder and its decoder have separate vocabularies"
    return None


def fold_bad_words(net: PreTrainedModel) -> None:
    """Move bad words of one token into the head's bias; Marian's models use them to forbid padding.

    Such a word has the score −inf at every position, so verification needs no logits processor for it. End
    tokens among the bad words are ignored, as in transformers.
    """
    config, bias = net.generation_config, getattr(net, "final_logits_bias", None)
    if bias is None or not config.bad_words_ids:
        return
    ends = config.eos_token_id
    ends = set(ends) if isinstance(ends, list) else {ends}
    single = [word[0] for word in config.bad_words_ids if len(word) == 1 and word[0] not in ends]
    with torch.no_grad():
        bias[0, single] = -torch.inf
    config.bad_words_ids = [word for word in config.bad_words_ids if len(word) > 1] or None
