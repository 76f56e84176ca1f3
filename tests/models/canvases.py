"""Tiny random masked-diffusion models."""

from __future__ import annotations

import torch
from families import make

from specviz.models.diffusion import Diffusion

MASK = 5


def tiny(seed: int = 0, shift: int = 0, dtype: torch.dtype = torch.float64, eos=(3,), **changes) -> Diffusion:
    """A bidirectional model of a few thousand weights."""
    net = make("qwen2" if shift else "llama", seed, **changes).to(dtype)
    net.config._attn_implementation = "sdpa"
    for layer in net.model.layers:
        layer.self_attn.is_causal = False
    model = Diffusion(net, name="tiny", mask=MASK, shift=shift)
    model.eos = tuple(eos)
    return model


def plain(model: Diffusion, text: list[int]) -> torch.Tensor:
    """transformers' logits at each position of a text, with full attention."""
    everything = torch.zeros(1, 1, len(text), len(text), dtype=model.dtype)
    with torch.no_grad():
        scores = model.net(torch.tensor([text]), attention_mask=everything, use_cache=False).logits[0]
    scores[:, model.mask] = -torch.inf
    return torch.cat((scores[:1], scores[:-1])) if model.shift else scores
