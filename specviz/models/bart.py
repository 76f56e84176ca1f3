"""The decoder of BART and Marian as one plain function over the model's own weights.

It computes what the transformers modules compute, but takes positions from the places in the text, where they
take them from slots: the siblings of a token tree stand at the same place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from specviz.models.attention import attend
from specviz.models.layers import Decoder, Lines, activation

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.context import Exit, Store
    from specviz.models.protocols import Positions

CLASSES = ("BartForConditionalGeneration", "MarianMTModel")


class Bart(Decoder):
    """A forward pass of a BART or Marian decoder over a context's storage and its encoder's keys and values.

    Parameters
    ----------
    net : transformers model that `refusal` has no word against
        Read, never changed; see `Llama`.
    layers : int
        How many of the decoder's layers to run.
    layout : str
        How its matrices lie (`specviz.models.kernels`).
    """

    def __init__(self, net: Any, layers: int, layout: str) -> None:
        config, stack = net.config, net.model.decoder
        blocks = stack.layers[:layers]
        heads = config.decoder_attention_heads
        crossed = [part for b in blocks for part in (b.encoder_attn.k_proj, b.encoder_attn.v_proj)]
        super().__init__(net, layout, heads, config.d_model // heads, crossed)
        self.size = config.d_model
        words, places = stack.embed_tokens, stack.embed_positions
        self.embedding = words.weight.detach()
        # BART's embedding multiplies by itself, Marian's decoder does.
        self.grow = getattr(words, "embed_scale", getattr(stack, "embed_scale", 1.0))
        self.places = places.weight.detach()[getattr(places, "offset", 0) :]
        self.start = _norm(stack.layernorm_embedding) if hasattr(stack, "layernorm_embedding") else None
        self.head = Lines(net.lm_head, layout=layout)
        self.final_bias: torch.Tensor = net.final_logits_bias
        self.act = activation(config.activation_function)
        self.weights = []
        products = (Lines(*group, layout=layout) for group in groups(net))
        for layer in blocks:
            self.weights.append(
                (
                    next(products),
                    next(products),
                    _norm(layer.self_attn_layer_norm),
                    next(products),
                    next(products),
                    _norm(layer.encoder_attn_layer_norm),
                    next(products),
                    next(products),
                    _norm(layer.final_layer_norm),
                )
            )

    def final(self, x: torch.Tensor) -> torch.Tensor:
        """States as they are: each layer ends with its norm."""
        return x

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Scores of final states [tokens, size]."""
        return self.head(last).add_(self.final_bias)

    def __call__(
        self,
        ids: torch.Tensor,
        positions: Positions,
        mask: torch.Tensor | None,
        store: Store,
        keep: int,
        hidden: tuple[int, ...] = (),
        leave: Exit | None = None,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Feed `ids` [rows, n]; see `EncoderDecoder.run`."""
        rows, n = ids.shape
        heads, dim, source = self.heads, self.dim, store.source
        assert source is not None
        x = F.embedding(ids, self.embedding)
        x = self.places[positions] + (x if self.grow == 1.0 else x * self.grow)
        x = x if self.start is None else F.layer_norm(x, *self.start)
        wanted = {0: x[:, -keep:]} if 0 in hidden else {}
        x = x.view(-1, self.size)
        for i, (qkv, o, first, q, c, second, wide, down, third) in enumerate(self.weights):
            entered = x
            y = qkv(x).view(rows, n, 3, heads, dim).permute(2, 0, 3, 1, 4)
            keys, values = store.write_both(i, y[1:])
            out = attend(y[0], keys, values, mask)
            x = F.layer_norm(o.add(out.transpose(1, 2).reshape(-1, self.size), x), *first)
            y = q(x).view(rows, n, heads, dim).transpose(1, 2)
            keys, values = source.pairs[i]
            out = F.scaled_dot_product_attention(y, keys, values, source.mask)
            x = F.layer_norm(c.add(out.transpose(1, 2).reshape(-1, self.size), x), *second)
            x = F.layer_norm(down.add(self.act(wide(x)), x), *third)
            if i + 1 in hidden:
                wanted[i + 1] = x.view(rows, n, -1)[:, -keep:]
            if leave is not None and i + 1 < len(self.weights) and leave.asks(i + 1, entered, x):
                self.propagate(i + 1, x, store)
                break
        return x.view(rows, n, -1)[:, n - keep :], wanted


def _norm(module: torch.nn.LayerNorm) -> tuple[tuple[int, ...], torch.Tensor, torch.Tensor, float]:
    """What `layer_norm` takes beside the states."""
    return module.normalized_shape, module.weight.detach(), module.bias.detach(), module.eps


def groups(net: Any) -> Iterator[tuple[torch.nn.Linear, ...]]:
    """The decoder's linear layers, layer by layer; those that read the same input together."""
    for layer in net.model.decoder.layers:
        a, c = layer.self_attn, layer.encoder_attn
        yield from ((a.q_proj, a.k_proj, a.v_proj), (a.out_proj,), (c.q_proj,), (c.out_proj,))
        yield from ((layer.fc1,), (layer.fc2,))


def refusal(net: PreTrainedModel) -> str | None:
    """Why the function above would not compute what `net` does; None if it does."""
    if not getattr(net.config, "share_encoder_decoder_embeddings", True):
        return "its encoder and its decoder have vocabularies of their own"
    return None
