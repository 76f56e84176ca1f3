"""EAGLE drafters: one transformer layer that reads the target's hidden states together with its tokens.

Generation 1 (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty"), whose
weights are also used by EAGLE-2 (Li et al. 2024, "EAGLE-2: Faster Inference of Language Models with Dynamic
Draft Trees"): with f_i the target's state at token i after its final norm and e_i the embedding of that
token,

    x = fc [e_(i+1); f_i]          f^_(i+1) = layer(x)          q(t_(i+2)) = target's head of f^_(i+1)

where the layer has no norm before its attention. Beyond the target's last state, the drafter uses its own f^
in place of f and continues autoregressively.

Generation 3 (Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test") does not imitate the target's states. It reads those of a low, a middle and a high layer,

    g_i = fc [low_i; middle_i; high_i]          a_(i+1) = layer([norm e_(i+1); norm g_i]), residual from g_i
    q(t_(i+2)) = lm_head norm a_(i+1)           beyond the target's last state, a replaces g

with its own head, whose rows may cover only the most common tokens: row j is token j + d2t[j].

Drafters published since then differ in their norms and may have their own embeddings and head (`Variant`).

A folder has the published form: ``config.json`` of a Llama with one layer, and ``model.safetensors`` with the
names below (``layers.0.`` in generation 1, ``midlayer.`` in generation 3); `eagle_loading` handles others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding

LAYERS = "eagle_aux_hidden_state_layer_ids"  # config key for the layers that generation 3 reads


@dataclass(frozen=True)
class Variant:
    """Differences between published drafters of one generation; defaults are those of the EAGLE-3 authors.

    Attributes
    ----------
    fc_bias, qkv_bias, o_bias : bool
        Whether ``fc``, the query, key and value projections, and the attention's output projection have a
        bias.
    norm_before_fc : bool
        Whether the concatenated target states pass through a norm before they are fused (``input_norm``).
    fc_norm : bool
        Whether each target state passes through its own norm before they are fused.
    norm_before_residual : bool
        Whether the residual of the attention is g after its norm rather than before.
    norm_output : bool
        Whether a replaces g after the last norm rather than before.
    embeddings : bool
        Whether the drafter has its own embeddings; otherwise it uses the target's.
    head : bool
        Whether the drafter has its own head; otherwise it uses the target's.
    """

    fc_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    embeddings: bool = False
    head: bool = True


HEAD = "head"  # config key: "target" if the rows of the head are the target's
FIRST = Variant(head=False)  # the authors' generation 1, although some of its drafters have a bias


def attention_shape(config: LlamaConfig) -> tuple[int, int, int]:
    """Query heads, key-value heads, and the width of a head."""
    groups, dim = config.num_key_value_heads, config.head_dim
    assert groups is not None and dim is not None  # a LlamaConfig fills in both
    return config.num_attention_heads, groups, dim


class Attention(nn.Module):
    """The projections of an attention whose input has `width` numbers per token."""

    def __init__(self, config: LlamaConfig, width: int, variant: Variant) -> None:
        super().__init__()
        (heads, groups, dim), bias = attention_shape(config), variant.qkv_bias
        self.q_proj = nn.Linear(width, heads * dim, bias=bias)
        self.k_proj = nn.Linear(width, groups * dim, bias=bias)
        self.v_proj = nn.Linear(width, groups * dim, bias=bias)
        self.o_proj = nn.Linear(heads * dim, config.hidden_size, bias=variant.o_bias)


class Layer(nn.Module):
    """The drafter's layer; in generation 3 it has norms for both of its inputs."""

    def __init__(self, config: LlamaConfig, generation: int, variant: Variant) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config, size * (1 + (generation == 3)), variant)
        self.mlp = LlamaMLP(config)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        if generation == 3:
            self.hidden_norm = LlamaRMSNorm(size, eps)
            self.input_layernorm = LlamaRMSNorm(size, eps)


class Eagle(nn.Module):
    """A drafter's weights and arithmetic, except the attention, which differs between training and drafting.

    Parameters
    ----------
    config : LlamaConfig
        Config of the layer; `vocab_size` is the target's.
    generation : int
        1 or 3.
    draft_vocabulary : int, optional
        Rows of generation 3's head. Default: the whole vocabulary.
    states : int
        Number of the target's layers that generation 3 reads.
    variant : Variant, optional
        Default: the authors' variant.
    target_size : int, optional
        Width of the target's states. Default: the layer's own.
    """

    d2t: Tensor | None
    embed_tokens: nn.Embedding | None
    lm_head: nn.Linear | None
    midlayer: Layer
    norm: LlamaRMSNorm
    input_norm: LlamaRMSNorm
    fc_norm: nn.ModuleList

    def __init__(
        self, config: LlamaConfig, generation: int, draft_vocabulary: int | None = None, states: int = 3,
        variant: Variant | None = None, target_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        variant = variant or (Variant() if generation == 3 else FIRST)
        self.config, self.generation, self.variant = config, generation, variant
        size, eps = config.hidden_size, config.rms_norm_eps
        self.target_size = target_size or size
        self.states = states if generation == 3 else 1
        wide = self.target_size * self.states
        self.fc = nn.Linear(wide + size * (generation == 1), size, bias=variant.fc_bias)
        layer = Layer(config, generation, variant)
        offsets = None
        if generation == 3:
            self.midlayer = layer
            self.norm = LlamaRMSNorm(size, eps)
            if variant.norm_before_fc:
                self.input_norm = LlamaRMSNorm(wide, eps)
            if variant.fc_norm:
                self.fc_norm = nn.ModuleList(LlamaRMSNorm(self.target_size, eps) for _ in range(states))
            if draft_vocabulary is not None:
                offsets = torch.zeros(draft_vocabulary, dtype=torch.long)
        else:
            self.layers = nn.ModuleList([layer])
        self.register_buffer("d2t", offsets)
        rows = draft_vocabulary or config.vocab_size
        own = nn.Embedding(config.vocab_size, size) if variant.embeddings else None
        self.register_module("embed_tokens", own)
        self.register_module("lm_head", nn.Linear(size, rows, bias=False) if variant.head else None)
        self.rotary = LlamaRotaryEmbedding(config)

    def get_output_embeddings(self) -> nn.Linear | None:
        """The drafter's own head (transformers' method name); None if it uses the target's."""
        return self.lm_head

    @property
    def layer(self) -> Layer:
        """The drafter's layer."""
        if self.generation == 3:
            return self.midlayer
        (layer,) = self.layers
        assert isinstance(layer, Layer)
        return layer

    @property
    def tokens(self) -> Tensor | None:
        """The token of each row of the head; None if the head covers the whole vocabulary."""
        if self.d2t is None:
            return None
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse the target's states [..., width * layers] to the state [..., width] that the layer reads."""
        if self.generation == 1:
            return states
        if self.variant.norm_before_fc:
            states = self.input_norm(states)
        if self.variant.fc_norm:
            parts = states.chunk(self.states, -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts)], -1)
        return self.fc(states)

    def enter(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the attention's input and its residual; `states` are fused ones or the drafter's own."""
        if self.generation == 3:
            layer = self.layer
            normed = layer.hidden_norm(states)
            both = layer.input_layernorm(embedded), normed
            return torch.cat(both, -1), normed if self.variant.norm_before_residual else states
        x = self.fc(torch.cat((embedded, states), -1))
        return x, x

    def leave(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the layer's output, which replaces the next state of the target."""
        layer = self.layer
        x = x + layer.self_attn.o_proj(attended)
        return x + layer.mlp(layer.post_attention_layernorm(x))
