"""Tiny random models of each family, built in memory, and plain logits for comparison."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM as Auto
from transformers import (
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY = 37

# Grouped heads, head sizes other than hidden / heads, biases, tied and untied heads: each occurs.
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
}
CONFIGS = {
    "llama": LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5),
    "llama3-rope": LlamaConfig(
        **SIZES,
        num_attention_heads=4,
        num_key_value_heads=4,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 100.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "qwen2": Qwen2Config(**SIZES, num_attention_heads=4, num_key_value_heads=1),
    "qwen3": Qwen3Config(**SIZES, num_attention_heads=4, num_key_value_heads=2, head_dim=8),
    "mistral": MistralConfig(
        **SIZES, num_attention_heads=2, num_key_value_heads=1, head_dim=6, sliding_window=None
    ),
    "gemma": GemmaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=1, head_dim=8),
    "gemma2": Gemma2Config(
        **SIZES,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=12,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
        sliding_window=64,
    ),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=64),
}
PLAIN = ("llama", "llama3-rope", "qwen2", "qwen3", "mistral", "gemma2")
CASES = [(name, False) for name in CONFIGS] + [(name, True) for name in PLAIN]


def make(name: str, seed: int = 0, **changes: object) -> PreTrainedModel:
    """A random model of the family, with weights large enough for attention to matter."""
    torch.manual_seed(seed)
    config = CONFIGS[name].__class__(**{**CONFIGS[name].to_dict(), **changes})
    net = Auto.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape) * (0.35 if parameter.ndim > 1 else 0.1))
            if parameter.ndim == 1 and name not in ("gpt2", "gemma", "gemma2"):
                parameter.add_(1.0)
    return net


@torch.no_grad()
def scores(net: PreTrainedModel, tokens: list[int], positions: list[int] | None = None) -> torch.Tensor:
    """transformers' logits after `tokens`: a single text, no cache, and no mask but ones."""
    ids = torch.tensor([tokens])
    where = torch.tensor([positions]) if positions is not None else None
    # Without the mask of ones, transformers takes a jump in the positions for the start of another text.
    return (
        net(ids, attention_mask=torch.ones_like(ids), position_ids=where, use_cache=False)
        .logits[0, -1]
        .float()
    )
