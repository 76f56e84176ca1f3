"""Gemma 2 as one plain function, based on that of the Llama family.

Differences from Llama (Gemma 2, arXiv 2408.00118, section 2): attention scores and logits are soft-capped,
``cap * tanh(score / cap)``; every other layer sees only a window of the last positions; norms precede and
follow each part, and their weights are offsets from 1; embeddings are scaled by the root of their width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from specviz.models import llama, ordered
from specviz.models.attention import attend
from specviz.models.context import PassInput, States, Store
from specviz.models.kernels import padded
from specviz.models.layers import RMSNorm, activation, turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.protocols import Net, Storage

CLASS = "Gemma2ForCausalLM"
ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")


def describes(net: PreTrainedModel) -> bool:
    """Whether `net` is a Gemma 2 model that `Gemma2` computes."""
    return (
        type(net).__name__ == CLASS
        and type(net).__module__.startswith("transformers.models.")
        and net.config.hidden_activation in ACTIVATIONS
        and llama.runs_plainly(net)
    )


class WideNorm(RMSNorm):
    """RMSNorm with weight and arithmetic in at least float32; the result has the format of `x`."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if self.composed:
            return super().__call__(x, weight)
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, self.eps).to(x.dtype)


def scale_of(norm: torch.nn.Module) -> torch.Tensor:
    """A norm's factor 1 + weight, in at least float32: bfloat16 would lose small weights."""
    weight = norm.weight
    assert isinstance(weight, torch.Tensor)
    return 1.0 + weight.detach().to(torch.promote_types(weight.dtype, torch.float32))


class Gemma2(llama.Llama):
    """A forward pass of a Gemma 2 model over a context's storage; for the parameters see `Llama`."""

    def __init__(self, net: Net, layers: int, layout: str, invariant: bool = False) -> None:
        super().__init__(net, layers, layout, invariant)
        config, stack = net.config, net.model.layers[:layers]
        self.cap = config.attn_logit_softcapping
        self.head_cap = config.final_logit_softcapping
        self.window = config.sliding_window
        self.slides = [kind == "sliding_attention" for kind in config.layer_types[:layers]]
        self.root = torch.tensor(self.size**0.5).to(self.embedding)
        self.norm = WideNorm(self.eps, self.embedding, invariant)
        self.act = activation(config.hidden_activation, invariant)
        self.last = scale_of(net.model.norm)
        self.weights = [
            each._replace(
                before=scale_of(layer.input_layernorm), after=scale_of(layer.pre_feedforward_layernorm)
            )
            for each, layer in zip(self.weights, stack)
        ]
        self.closing = [
            (scale_of(layer.post_attention_layernorm), scale_of(layer.post_feedforward_layernorm))
            for layer in stack
        ]

    def __call__(self, given: PassInput, store: Storage) -> States:
        """Run a pass; see `Model.run`. `keep` is an int, since these are causal models."""
        ids, keep, hidden, leave = given.ids, given.keep, given.hidden, given.leave
        assert isinstance(keep, int) and isinstance(store, Store)
        rows, n = ids.shape
        turning, depth, norm = self.heads + self.groups, len(self.weights), self.norm
        cos, sin = (table[given.positions] for table in self.rotary(store.reach))
        x = F.embedding(ids, self.embedding) * self.root
        wanted = {0: x[:, -keep:]} if 0 in hidden else {}
        x, tokens = padded(x.view(-1, self.size), self.least), rows * n
        masks = (given.mask, self._near(given, store))
        sights = self._sights(given, masks)
        for i, (before, qkv, _, o, after, gate_up, down) in enumerate(self.weights):
            entered = x
            y = qkv(norm(x, before))[:tokens].view(rows, n, turning + self.groups, self.dim)
            turned = turn(y.narrow(2, 0, turning), cos, sin)
            new = y.narrow(2, self.heads, 2 * self.groups).view(rows, n, 2, self.groups, self.dim)
            keys, values = store.write_both(i, new.permute(2, 0, 3, 1, 4))
            if keep == 0 and i + 1 == depth and depth not in hidden:
                break  # as in `Llama`
            queries, near = turned.narrow(2, 0, self.heads), self.slides[i]
            if sights is not None:
                out = ordered.attend(queries, keys, values, sights[near], self.scale, self.cap)
            else:
                window = self.window if near else None
                out = attend(
                    queries.transpose(1, 2), keys, values, masks[near], self.scale, self.cap, window
                ).transpose(1, 2).reshape(rows * n, -1)  # fmt: skip
            x = norm(o(padded(out, self.least)), self.closing[i][0]).add_(x)
            gate, up = gate_up(norm(x, after)).chunk(2, -1)
            x = norm(down(self.act(gate).mul_(up)), self.closing[i][1]).add_(x)
            if i + 1 in hidden:
                wanted[i + 1] = x[:tokens].view(rows, n, -1)[:, -keep:]
            if leave is not None and i + 1 < depth and leave.asks(i + 1, entered[:tokens], x[:tokens]):
                self.propagate(i + 1, x[:tokens], cos, sin, store)
                break
        x = x[:tokens]
        if keep < n and not (keep == 0 and depth in hidden):
            x = x.view(rows, n, -1)[:, n - keep :].reshape(-1, self.size)
        last = norm(x, self.last).view(rows, -1, self.size)
        if depth in hidden:
            wanted[depth] = last
        return last, wanted

    def scores(self, last: torch.Tensor) -> torch.Tensor:
        """See `Llama.scores`; soft-capped."""
        scores = self.head(last)
        return scores if self.head_cap is None else capped(scores, self.head_cap)

    def _sights(
        self, given: PassInput, masks: tuple[torch.Tensor | bool | None, torch.Tensor | bool | None]
    ) -> tuple[ordered.Sight, ordered.Sight] | None:
        """For an invariant model, the masks of full and of sliding layers; else None."""
        if not self.invariant:
            return None
        rows = len(given.ids)
        whole, near = masks
        assert isinstance(whole, torch.Tensor) and isinstance(near, torch.Tensor)
        sight = ordered.sight(whole, rows, self.heads, self.groups, given.tails, self.sums)
        # Weights are added in order of positions, which includes the positions before the window.
        lines = ordered.sight(near, rows, self.heads, self.groups, None, self.sums).mask
        return sight, sight._replace(mask=lines)

    def _near(self, given: PassInput, store: Store) -> torch.Tensor | bool | None:
        """The mask of a sliding layer: `given.mask` without the positions before each query's window.

        None stays None, because `attend` then applies the window itself.
        """
        mask, positions, n = given.mask, given.positions, given.ids.shape[1]
        reach = positions.stop if isinstance(positions, slice) else store.reach
        if reach <= self.window or not isinstance(mask, torch.Tensor):
            return mask
        slots, device = store.data.shape[4], mask.device
        if isinstance(positions, slice):
            where = torch.arange(positions.start, positions.stop, device=device)[None]
            places = torch.arange(slots, device=device)[None]
        else:  # tokens fed by this pass have positions other than their slot numbers
            where = positions
            places = torch.arange(slots, device=device).repeat(len(where), 1)
            if store.slots is None:
                places[:, store.start : store.start + n] = where
            else:
                places.scatter_(1, store.slots, where)
        read = mask.shape[-1]
        far = (places[:, None, :read] <= where[:, :, None] - self.window)[:, None, None]
        each = mask.view(len(mask), 1, -1, n, read)
        return each.masked_fill(far, -torch.inf).view(-1, 1, mask.shape[2], read)


def capped(scores: torch.Tensor, cap: float) -> torch.Tensor:
    """Soft-cap logits in place."""
    return scores.div_(cap).tanh_().mul_(cap)
