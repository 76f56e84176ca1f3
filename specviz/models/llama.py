"""The Llama family as one plain function over the model's own weights.

It uses the parameters of the transformers modules directly and computes the same numbers in fewer steps: for
a small model on a CPU, the modules' Python code costs as much as the arithmetic. Models outside the family
run through transformers' modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F

from specviz.models import ordered
from specviz.models.attention import attend
from specviz.models.context import PassInput, States, Store
from specviz.models.kernels import LEAST, ONEDNN, packed, padded
from specviz.models.layers import Lines, PlainFunction, Rest, RMSNorm, Rotary, activation, hooked, turn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.protocols import Net, Storage

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")  # types whose angles do not depend on the current length


def describes(net: PreTrainedModel) -> bool:
    """Whether `net` is a plain member of the family, which `Llama` computes completely."""
    return (
        type(net).__name__ in CLASSES
        and type(net).__module__.startswith("transformers.models.")
        and net.config.hidden_act in ("silu", "swish")
        and runs_plainly(net)
    )


def runs_plainly(net: PreTrainedModel) -> bool:
    """Whether a plain function can use a network's weights directly, without its modules."""
    rope = net.config.rope_parameters or {}
    linear = [net.lm_head, *(part for group in groups(net) for part in group)]
    return (
        rope.get("rope_type", "default") in ROPES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and all(type(part) is torch.nn.Linear for part in linear)  # not quantised, no adapter
        and not any(hooked(part) for part in net.modules())
        and len({p.device for p in net.parameters()}) == 1
        and (getattr(net, "tp_size", None) or 1) == 1  # only the modules combine results from shards
    )


def groups(net: Net) -> Iterator[tuple[torch.nn.Linear, ...]]:
    """The linear layers of each layer in turn, grouped by shared input."""
    for layer in net.model.layers:
        a, m = layer.self_attn, layer.mlp
        yield from ((a.q_proj, a.k_proj, a.v_proj), (a.o_proj,), (m.gate_proj, m.up_proj), (m.down_proj,))


class LayerWeights(NamedTuple):
    """A layer's norms and products; `norms` are those of queries and keys, if it has them."""

    before: torch.Tensor
    qkv: Lines
    norms: tuple[torch.Tensor, torch.Tensor] | None
    o: Lines
    after: torch.Tensor
    gate_up: Lines
    down: Lines


class Llama(PlainFunction):
    """A forward pass of a Llama-family model over a context's storage.

    Parameters
    ----------
    net : transformers model that ``describes`` accepts
        Read, never changed; `stale` tells whether its parameters have changed since.
    layers : int
        Number of layers to run; fewer than all give an early-exit drafter.
    layout : str
        Layout of its matrices (`specviz.models.kernels`).
    invariant : bool, optional
        Whether a row's numbers must not depend on the other rows of a pass (`specviz.models.ordered`).
    """

    def __init__(self, net: Net, layers: int, layout: str, invariant: bool = False) -> None:
        super().__init__(net, invariant)
        first = net.model.layers[0].self_attn
        self.embedding = net.model.embed_tokens.weight.detach()
        parts = [(net.lm_head,), *islice(groups(net), 4 * layers)]
        with packed(([part.weight for part in group] for group in parts), layout):  # the largest matrix first
            self.head, *lines = (Lines(*group, layout=layout, invariant=invariant) for group in parts)
        self.least = LEAST if layout == ONEDNN else 0  # rows of a pass's products
        self.heads = net.config.num_attention_heads
        self.groups = net.config.num_key_value_heads
        self.dim = first.head_dim
        self.scale = first.scaling
        self.size = net.config.hidden_size
        self.last = net.model.norm.weight.detach()
        self.weights: list[LayerWeights] = []
        products = iter(lines)
        for layer in net.model.layers[:layers]:
            before, after = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
            a, (qkv, o, gate_up, down) = layer.self_attn, islice(products, 4)
            norms = (a.q_norm.weight.detach(), a.k_norm.weight.detach()) if hasattr(a, "q_norm") else None
            self.weights.append(LayerWeights(before.detach(), qkv, norms, o, after.detach(), gate_up, down))
        self.eps = net.config.rms_norm_eps
        self.norm = RMSNorm(self.eps, self.embedding, invariant)
        self.act = activation("silu", invariant)
        self.rotary = Rotary(net.model.rotary_emb, self.embedding)

    def __call__(self, given: PassInput, store: Storage) -> States:
        """Run a pass; see `Model.run`. If `keep` holds places, return their final states [places, size]."""
        ids, positions, mask, keep = given.ids, given.positions, given.mask, given.keep
        hidden, leave = given.hidden, given.leave
        (rows, n), dim, heads, groups = ids.shape, self.dim, self.heads, self.groups
        turning = heads + groups
        cos, sin = self.rotary(store.reach)
        cos, sin = cos[positions], sin[positions]  # [n, 1, dim], or [rows, n, 1, dim]
        norm = self.norm
        x = F.embedding(ids, self.embedding)
        columns = slice(None) if isinstance(keep, torch.Tensor) else slice(-keep, None)
        wanted = {0: x[:, columns]} if 0 in hidden else {}
        # Short passes are padded once here, not in every product; attention sees the real rows alone.
        x, tokens, least = padded(x.view(-1, self.size), self.least), rows * n, self.least
        depth = len(self.weights)
        seen, windows = None, given.windows
        # In the last layer, places that are not kept only need keys and values written: all of them in a
        # prefill.
        stops = isinstance(keep, int) and keep == 0 and depth not in hidden
        last_kept = keep if rows == 1 and isinstance(keep, torch.Tensor) and not windows else None
        if self.invariant and not windows:
            assert isinstance(mask, torch.Tensor)
            seen = ordered.sight(mask, rows, heads, groups, given.tails, self.sums)
        own = [(each, each.sight(heads, groups, self.sums)) for each in windows]
        for i, (before, qkv, norms, o, after, gate_up, down) in enumerate(self.weights):
            entered = x
            y = qkv(norm(x, before))
            y = (y[:tokens] if y.shape[0] > tokens else y).view(rows, n, turning + groups, dim)
            turned = self._rotated(y, norms, cos, sin)
            if norms is None:  # keys and values are still contiguous
                new = y.narrow(2, heads, 2 * groups).view(rows, n, 2, groups, dim).permute(2, 0, 3, 1, 4)
                keys, values = store.write_both(i, new)
            else:
                key, value = turned.narrow(2, heads, groups), y.narrow(2, turning, groups)
                keys, values = store.write(i, key.transpose(1, 2), value.transpose(1, 2))
            if stops and i + 1 == depth:
                break
            queries = turned.narrow(2, 0, heads)
            if i + 1 == depth and last_kept is not None:
                queries, x = queries.index_select(1, last_kept), padded(x.index_select(0, last_kept), least)
                tokens = len(last_kept)
                if isinstance(mask, torch.Tensor):
                    kept = mask.view(1, -1, n, mask.shape[-1]).index_select(2, last_kept)
                    mask = kept.view(1, 1, -1, kept.shape[-1])
                    if seen is not None:
                        seen = ordered.sight(mask, 1, heads, groups, None, self.sums)
            if own:
                assert given.results is not None
                each = [w.attend(queries, keys, values, sight, self.scale) for w, sight in own]
                out = torch.cat(each).index_select(0, given.results)
            elif seen is not None:
                out = ordered.attend(queries, keys, values, seen, self.scale)
            else:
                out = attend(queries.transpose(1, 2), keys, values, mask, self.scale)
                out = out.transpose(1, 2).reshape(-1, heads * dim)
            x = o.add(padded(out, least), x)
            gate, up = gate_up(norm(x, after)).chunk(2, -1)
            x = down.add(self.act(gate).mul_(up), x)
            if i + 1 in hidden:
                wanted[i + 1] = x[:tokens].view(rows, n, -1)[:, columns]
            if leave is not None and i + 1 < depth and leave.asks(i + 1, entered[:tokens], x[:tokens]):
                assert isinstance(store, Store)
                self.propagate(i + 1, x[:tokens], cos, sin, store)
                break
        x = x[:tokens]
        if isinstance(keep, torch.Tensor):
            return norm(x if last_kept is not None else x.index_select(0, keep), self.last), wanted
        if keep < n and not (keep == 0 and depth in hidden):
            x = x.view(rows, n, -1)[:, n - keep :].reshape(-1, self.size)
        last = norm(x, self.last).view(rows, -1, self.size)
        if depth in hidden:
            wanted[depth] = last
        return last, wanted

    def _rotated(
        self,
        y: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> torch.Tensor:
        """Normalise and rotate a layer's queries and keys [rows, n, heads + groups, dim]."""
        turned = y.narrow(2, 0, self.heads + self.groups)
        if norms is not None:
            queries, keys = turned.split((self.heads, self.groups), 2)
            queries = F.rms_norm(queries, (self.dim,), norms[0], self.eps)
            turned = torch.cat((queries, F.rms_norm(keys, (self.dim,), norms[1], self.eps)), 2)
        return turn(turned, cos, sin)

    def lines(self) -> Iterator[Lines]:
        """See `PlainFunction.lines`."""
        yield self.head
        for layer in self.weights:
            yield from (layer.qkv, layer.o, layer.gate_up, layer.down)

    def final(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the final norm to states [tokens, size]."""
        return self.norm(x, self.last)

    def scores(self, last: torch.Tensor) -> torch.Tensor:
        """Logits of final states [tokens, size]."""
        return self.head(last)

    def propagate(
        self, layer: int, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, store: Store
    ) -> None:
        """Store keys and values of layers after the first `layer`, from one token's state `x` [1, size]."""
        groups, dim = self.groups, self.dim
        if self.rest is None:
            lines, scales = [each.qkv for each in self.weights], [each.before for each in self.weights]
            self.rest = Rest(lines, self.heads * dim, self.norm, scales)
        y = self.rest(layer, x).view(-1, 2, groups, dim)
        key = y[:, 0]
        if norms := [each.norms[1] for each in self.weights[layer:] if each.norms is not None]:
            each = torch.stack(norms)[:, None]
            key.copy_(F.rms_norm(key, (dim,), None, self.eps) * each)
        turn(key, cos, sin)
        store.fill(layer, y.view(-1, 2, 1, groups, 1, dim))
