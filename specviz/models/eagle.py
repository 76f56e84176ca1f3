"""EAGLE's drafters: one transformer layer that reads the target's hidden states beside its tokens.

Generation 1 (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty"), whose
weights EAGLE-2 (Li et al. 2024, "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees") drafts
with too: with f_i the target's state at token i behind its final norm and e_i the embedding of that token,

    x = fc [e_(i+1); f_i]          f^_(i+1) = layer(x)          q(t_(i+2)) = target's head of f^_(i+1)

where the layer has no norm before its attention. Behind the last state that the target has given, its own f^
stands for f: the drafter goes on by itself, feature by feature.

Generation 3 (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test") does not imitate states. It reads those of a low, a middle and a high layer at once,

    g_i = fc [low_i; middle_i; high_i]          a_(i+1) = layer([norm e_(i+1); norm g_i]), beside g_i
    q(t_(i+2)) = lm_head norm a_(i+1)           and further on a stands for g

with a head of its own, whose rows may be the commonest tokens only: row j is token j + d2t[j].

A folder is as published: ``config.json`` of a Llama of one layer, ``model.safetensors`` with the names below
(``layers.0.`` in generation 1, ``midlayer.`` in generation 3).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

LAYERS = "eagle_aux_hidden_state_layer_ids"  # where a config says which layers generation 3 reads


class Attention(nn.Module):
    """The projections of an attention that reads `width` numbers a token."""

    def __init__(self, config: LlamaConfig, width: int, bias: bool) -> None:
        super().__init__()
        dim = config.head_dim
        self.q_proj = nn.Linear(width, config.num_attention_heads * dim, bias=bias)
        self.k_proj = nn.Linear(width, config.num_key_value_heads * dim, bias=bias)
        self.v_proj = nn.Linear(width, config.num_key_value_heads * dim, bias=bias)
        self.o_proj = nn.Linear(config.num_attention_heads * dim, config.hidden_size, bias=False)


class Layer(nn.Module):
    """The one layer: generation 3 has norms of what it reads."""

    def __init__(self, config: LlamaConfig, generation: int, bias: bool) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config, size * (1 + (generation == 3)), bias)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        if generation == 3:
            self.hidden_norm = LlamaRMSNorm(size, eps)
            self.input_layernorm = LlamaRMSNorm(size, eps)


class Eagle(nn.Module):
    """A drafter's weights, and their arithmetic but for the attention itself, which training and drafting differ in.

    Parameters
    ----------
    config : LlamaConfig
        Of the layer; `vocab_size` is the target's.
    generation : int
        1 or 3.
    draft_vocabulary : int, optional
        Rows of generation 3's head. Default: the whole vocabulary.
    states : int
        Target's layers that generation 3 reads.
    bias, qkv_bias : bool
        Whether ``fc``, and the projections to queries, keys and values, have one.
    """

    d2t: Tensor | None

    def __init__(
        self, config: LlamaConfig, generation: int, draft_vocabulary: int | None = None, states: int = 3,
        bias: bool = False, qkv_bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config, self.generation = config, generation
        size = config.hidden_size
        self.states = states if generation == 3 else 1
        self.fc = nn.Linear(size * (self.states if generation == 3 else 2), size, bias=bias)
        layer = Layer(config, generation, qkv_bias)
        if generation == 3:
            rows = draft_vocabulary or config.vocab_size
            self.midlayer = layer
            self.norm = LlamaRMSNorm(size, config.rms_norm_eps)
            self.lm_head = nn.Linear(size, rows, bias=False)
            offsets = None if draft_vocabulary is None else torch.zeros(rows, dtype=torch.long)
            self.register_buffer("d2t", offsets)
        else:
            self.layers = nn.ModuleList([layer])
        self.rotary = LlamaRotaryEmbedding(config)

    def get_output_embeddings(self) -> Any:
        """Generation 3's own head, by transformers' name."""
        return getattr(self, "lm_head", None)

    @property
    def layer(self) -> Any:
        """The one layer."""
        return self.midlayer if self.generation == 3 else self.layers[0]

    def fuse(self, states: Tensor) -> Tensor:
        """What the target's states [..., width * layers] count as: the first input of the layer, [..., width]."""
        return self.fc(states) if self.generation == 3 else states

    def enter(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention reads, and what its output is added to; `states` are fused, or the layer's own."""
        if self.generation == 3:
            layer = self.layer
            both = layer.input_layernorm(embedded), layer.hidden_norm(states)
            return torch.cat(both, -1), states
        x = self.fc(torch.cat((embedded, states), -1))
        return x, x

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output: what stands for the next state."""
        layer = self.layer
        x = x + layer.self_attn.o_proj(attended)
        return x + layer.mlp(layer.post_attention_layernorm(x))
