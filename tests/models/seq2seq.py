"""Tiny random encoder-decoders of each family, built in memory, and plain logits for comparison."""

from __future__ import annotations

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    MarianConfig,
    MT5Config,
    PreTrainedModel,
    T5Config,
)

VOCABULARY = 37
START = 2

# Few buckets and a short distance, so that the bias separates near, far and farthest in a short text.
T5_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 1,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": START,
}
BART_SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 64,
    "decoder_start_token_id": START,
    "pad_token_id": START,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "forced_eos_token_id": None,
}
CONFIGS = {
    "t5": T5Config(**T5_SIZES, feed_forward_proj="relu"),
    "t5-gated": T5Config(**T5_SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "mt5": MT5Config(**T5_SIZES),
    "bart": BartConfig(**BART_SIZES, scale_embedding=True),
    "bart-forced": BartConfig(**BART_SIZES),
    "marian": MarianConfig(**BART_SIZES, scale_embedding=True, activation_function="swish"),
}


def make(name: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: object) -> PreTrainedModel:
    """A random model of the family, with weights large enough for attention to matter."""
    torch.manual_seed(seed)
    config = CONFIGS[name].__class__(**{**CONFIGS[name].to_dict(), **changes})
    net = AutoModelForSeq2SeqLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for key, parameter in net.named_parameters():
            if parameter.requires_grad:  # Marian's sinusoids stay as they are
                scale = 1.5 if "relative" in key else 0.35 if parameter.ndim > 1 else 0.1
                parameter.copy_(torch.randn(parameter.shape) * scale + float(key.endswith("norm.weight")))
        if hasattr(net, "final_logits_bias"):
            net.final_logits_bias.copy_(torch.randn(net.final_logits_bias.shape))
    if name == "bart-forced":
        net.generation_config.forced_bos_token_id = 0
    return net


def prefix(net: PreTrainedModel) -> list[int]:
    """The tokens that the decoder starts with."""
    forced = net.generation_config.forced_bos_token_id
    return [START] if forced is None else [START, forced]


@torch.no_grad()
def scores(net: PreTrainedModel, prompt: list[int], text: list[int]) -> torch.Tensor:
    """transformers' logits after `text`, given `prompt`: a single text and no cache."""
    ids = torch.tensor([prompt]), torch.tensor([prefix(net) + text])
    return net(input_ids=ids[0], decoder_input_ids=ids[1], use_cache=False).logits[0, -1].float()
