"""The decoder of T5 and mT5 as one plain function over the model's own weights.

It computes the same results as the transformers modules, but derives the relative position bias from text
positions rather than cache slots, because siblings in a token tree have the same position.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from specviz.models.layers import Decoder, Lines, RMSNorm, Sees, activation

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.t5.modeling_t5 import T5Attention

    from specviz.models.context import Store
    from specviz.models.protocols import Net, Positions

CLASSES = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration")
FEW = 64  # longest chain whose biases are cached


class Bias:
    """Relative position bias: the number that each head adds to a key's score, by distance from the query.

    Parameters
    ----------
    attention : T5Attention
        The decoder's first self-attention, whose buckets all layers share.

    Attributes
    ----------
    table : tensor [heads, distances]
        The last entry applies to all larger distances.
    """

    def __init__(self, attention: T5Attention) -> None:
        buckets = attention.relative_attention_num_buckets
        far = max(attention.relative_attention_max_distance, buckets)
        weight = attention.relative_attention_bias.weight.detach()
        before = -torch.arange(far + 1, device=weight.device)
        bucket = attention._relative_position_bucket(
            before, False, buckets, attention.relative_attention_max_distance
        )
        self.table = weight[bucket].t().contiguous()
        self.chains: dict[int, torch.Tensor] = {}

    def chain(self, start: int, count: int) -> torch.Tensor:
        """The causal mask with biases of `count` tokens after `start` others, [1, heads, count, slots].

        Counted from the last slot, the mask does not depend on `start`, so it is a slice of a mask cached for
        each small count.
        """
        end = start + count
        kept = self.chains.get(count)
        if kept is None or kept.shape[-1] < end:
            size = 1 << (max(end, 256) - 1).bit_length() if count <= FEW else end
            device = self.table.device
            back = torch.arange(size - 1, -1, -1, device=device)  # slots from the last one
            distance = torch.arange(1 - count, 1, device=device)[:, None] + back
            kept = self.table[:, distance.clamp(0, self.table.shape[1] - 1)]
            kept = kept.masked_fill_(distance < 0, -torch.inf)[None]
            if count <= FEW:
                self.chains[count] = kept
        return kept[..., kept.shape[-1] - end :]

    def between(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Biases for queries at positions [rows, n] and keys at [rows, slots]: [rows, heads, n, slots]."""
        distance = (queries[:, :, None] - keys[:, None]).clamp_(0, self.table.shape[1] - 1)
        return self.table[:, distance].transpose(0, 1)


class T5(Decoder):
    """A forward pass of a T5 decoder over a context's storage and its encoder's keys and values.

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

    scale = 1.0

    def __init__(self, net: Net, layers: int, layout: str, invariant: bool = False) -> None:
        config, stack = net.config, net.decoder
        blocks = stack.block[:layers]
        crossed = [
            part for b in blocks for part in (b.layer[1].EncDecAttention.k, b.layer[1].EncDecAttention.v)
        ]
        self.embedding = stack.embed_tokens.weight.detach()
        self.norm: RMSNorm = RMSNorm(config.layer_norm_epsilon, self.embedding, invariant)
        scales = [[part.layer_norm.weight.detach() for part in block.layer] for block in blocks]
        self.scales = [own for own, *_ in scales]
        first, second, third = ([partial(self.norm, weight=w) for w in part] for part in zip(*scales))
        super().__init__(
            net, layout, config.num_heads, config.d_kv, crossed, list(zip(first, second, third)), groups(net),
            invariant,
        )  # fmt: skip
        self.size = config.d_model
        self.head = Lines(net.lm_head, layout=layout, invariant=invariant)
        # T5 1.0 scales the states before its tied head; 1.1 and mT5 do not.
        scaled = getattr(config, "scale_decoder_outputs", False)
        self.shrink = config.d_model**-0.5 if scaled else 1.0
        self.last = stack.final_layer_norm.weight.detach()
        self.bias = Bias(stack.block[0].layer[0].SelfAttention)
        self.act, self.gated = activation(config.dense_act_fn, invariant), config.is_gated_act

    def final(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the final norm to states [tokens, size]."""
        return self.norm(x, self.last)

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Logits of final states [tokens, size]."""
        return self.head(last if self.shrink == 1.0 else last * self.shrink)

    def embed(self, ids: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Embed the tokens only; their positions enter through the mask's biases."""
        return F.embedding(ids, self.embedding)

    def layer(self, i: int, x: torch.Tensor, rows: int, mask: Sees, store: Store) -> torch.Tensor:
        """Layer `i`'s output; each part starts with its norm."""
        (first, second, third), (qkv, o, q, c, wide, down) = self.weights[i]
        x = o.add(self.attend(i, qkv(first(x)), rows, mask, store), x)
        x = c.add(self.attend_source(i, q(second(x)), rows, mask, store), x)
        y = wide(third(x))
        if self.gated:
            gate, up = y.chunk(2, -1)
            y = self.act(gate).mul_(up)
        else:
            y = self.act(y)
        return down.add(y, x)


def groups(net: Net) -> Iterator[tuple[torch.nn.Linear, ...]]:
    """The decoder's linear layers, layer by layer, grouped by shared input."""
    for block in net.decoder.block:
        own, cross, feed = block.layer
        a, c, m = own.SelfAttention, cross.EncDecAttention, feed.DenseReluDense
        wide = (m.wi_0, m.wi_1) if net.config.is_gated_act else (m.wi,)
        yield from ((a.q, a.k, a.v), (a.o,), (c.q,), (c.o,), wide, (m.wo,))


def refusal(net: PreTrainedModel) -> str | None:
    """Why `T5` cannot compute the same as `net`; None if it can."""
    if net.dtype == torch.float16:
        return "T5's states overflow float16: load it with dtype='bfloat16' or 'float32'"
    return None
