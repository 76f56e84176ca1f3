"""The Llama family as one plain function over the model's own weights.

It reads the very parameters of the transformers modules (nothing is copied) and computes the same
numbers in fewer steps: for a small model on a CPU the modules' Python costs as much as the
arithmetic. Models that it does not describe run through transformers' modules.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from specviz.models.attention import attend

CLASSES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROPES = ("default", "linear", "llama3", "yarn")  # those whose angles do not depend on the length so far


def describes(net: Any) -> bool:
    """Whether `net` is a plain member of the family: what the function below computes and no more."""
    if type(net).__name__ not in CLASSES or not type(net).__module__.startswith("transformers.models."):
        return False
    rope = net.config.rope_parameters or {}
    linear = [net.lm_head]
    for layer in net.model.layers:
        a, m = layer.self_attn, layer.mlp
        linear += [a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj]
    return (
        net.config.hidden_act in ("silu", "swish")
        and rope.get("rope_type", "default") in ROPES
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and all(type(part) is torch.nn.Linear for part in linear)  # not quantised, no adapter
        and not any(part._forward_hooks or part._forward_pre_hooks for part in net.modules())
        and len({p.device for p in net.parameters()}) == 1
    )


class Llama:
    """A forward pass of a Llama-family model over a context's storage.

    Parameters
    ----------
    net : transformers model that ``describes`` accepts
    layers : int
        How many of its layers to run: fewer than it has make the early-exit drafter.
    """

    def __init__(self, net: Any, layers: int) -> None:
        first = net.model.layers[0].self_attn
        self.net = net.model
        self.head = net.lm_head
        self.heads = net.config.num_attention_heads
        self.groups = net.config.num_key_value_heads
        self.dim = first.head_dim
        self.scale = first.scaling
        self.eps = net.config.rms_norm_eps
        self.weights = []  # looked up once: a module's attribute costs as much as a small kernel
        for layer in net.model.layers[:layers]:
            a, m = layer.self_attn, layer.mlp
            norms = (a.q_norm.weight, a.k_norm.weight) if hasattr(a, "q_norm") else None
            lines = [
                (p.weight, p.bias)
                for p in (a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj)
            ]
            self.weights.append(
                (layer.input_layernorm.weight, layer.post_attention_layernorm.weight, norms, *lines)
            )
        self.table: tuple[torch.Tensor, torch.Tensor] | None = None

    def rotary(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines of at least the first `length` positions, each [positions, 1, dim]."""
        weight = self.net.embed_tokens.weight
        if self.table is None or len(self.table[0]) < length or self.table[0].device != weight.device:
            length = 1 << (length - 1).bit_length()  # sizes come in classes: the table seldom grows
            cos, sin = self.net.rotary_emb(weight[:1], torch.arange(length, device=weight.device)[None])
            sign = torch.ones(self.dim, device=weight.device, dtype=sin.dtype)
            sign[: self.dim // 2] = -1.0  # rotate_half's minus, folded into the table
            self.table = cos[0, :, None], (sin[0] * sign)[:, None]
        return self.table

    def __call__(
        self,
        ids: torch.Tensor,
        positions: Any,
        mask: torch.Tensor | None,
        store: Any,
        keep: int,
        hidden: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Feed `ids` [rows, queries]; see `Context._run` for the arguments and what comes back."""
        rows, queries = ids.shape
        dim, heads, groups, eps = self.dim, self.heads, self.groups, self.eps
        cos, sin = self.rotary(store.reach)
        cos, sin = cos[positions], sin[positions]  # [queries, 1, dim], or [rows, queries, 1, dim]
        x = F.embedding(ids, self.net.embed_tokens.weight)
        wanted = {0: x[:, -keep:]} if 0 in hidden else {}
        size = (x.shape[-1],)
        x = x.view(-1, *size)
        for i, (before, after, norms, wq, wk, wv, wo, wg, wu, wd) in enumerate(self.weights):
            h = F.rms_norm(x, size, before, eps)
            q = F.linear(h, *wq).view(rows, queries, heads, dim)
            k = F.linear(h, *wk).view(rows, queries, groups, dim)
            v = F.linear(h, *wv).view(rows, queries, groups, dim)
            if norms is not None:
                q, k = F.rms_norm(q, (dim,), norms[0], eps), F.rms_norm(k, (dim,), norms[1], eps)
            both = torch.cat((q, k), 2)
            halves = both.view(rows, queries, heads + groups, 2, dim // 2).flip(3).view_as(both)
            both = (both * cos).addcmul_(halves, sin).transpose(1, 2)
            keys, values = store.write(i, both[:, heads:], v.transpose(1, 2))
            out = attend(both[:, :heads], keys, values, mask, self.scale)
            x = x + F.linear(out.transpose(1, 2).reshape(-1, heads * dim), *wo)
            h = F.rms_norm(x, size, after, eps)
            x = x + F.linear(F.silu(F.linear(h, *wg)).mul_(F.linear(h, *wu)), *wd)
            if i + 1 in hidden:
                wanted[i + 1] = x.view(rows, queries, *size)[:, -keep:]
        last = F.rms_norm(x.view(rows, queries, *size)[:, -keep:], size, self.net.norm.weight, eps)
        if len(self.weights) in hidden:
            wanted[len(self.weights)] = last
        return last, wanted
