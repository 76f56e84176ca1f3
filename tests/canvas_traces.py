"""Traces of canvases for the views: runs of a tiny random model, with tokens that break careless code."""

from __future__ import annotations

from functools import cache
from typing import Any

import specviz as sv
from specviz import schema
from specviz.trace import Trace
from specviz.trace.files import encode_pieces
from specviz.trace.reading import StoredRun
from traces import HOSTILE, WHOLE, WORDS

VOCABULARY, MASK, EOS = 37, 5, 3


@cache
def model(seed: int = 3, shift: int = 0, sharp: float = 1.0) -> Any:
    """A bidirectional model of a few thousand weights; the higher `sharp`, the more confident it is."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from specviz.models.diffusion import Diffusion

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    net = LlamaForCausalLM(config).to(torch.float64).eval().requires_grad_(False)
    for name, weight in net.named_parameters():
        if weight.ndim > 1:
            weight.mul_(4 if "embed" in name else 10)
    net.lm_head.weight.mul_(sharp)
    for layer in net.model.layers:
        layer.self_attn.is_causal = False
    made = Diffusion(net, name="tiny", mask=MASK, shift=shift)
    made.eos = (EOS,)
    return made


def build(
    method: str = "ssd",
    prompts: int = 1,
    cells: int = 24,
    seed: int = 3,
    hostile: bool = True,
    first: int = 7,
    shift: int = 0,
    sharp: float = 1.0,
    **more: Any,
) -> Trace:
    """A run over short prompts, with every token's bytes replaced by those of `traces`."""
    asked = [[first + i, 11, 9, 20 + i] for i in range(prompts)]
    made = sv.generate(model(seed, shift, sharp), asked, method, max_new_tokens=cells, whole=True, **more)
    texts = [*WORDS, *WHOLE]
    pieces = {token: texts[token % len(texts)] for token in range(VOCABULARY)} | {EOS: b"<eos>"}
    if hostile:  # every other token
        pieces |= {token: HOSTILE[token // 2 % len(HOSTILE)] for token in range(0, VOCABULARY, 2)}
    pieces = {token: piece + b"%d" % token for token, piece in pieces.items()}  # all distinct
    run = made._stores[0].run | {"pieces": encode_pieces(pieces)}
    return Trace([StoredRun(run, table=made.arrow([c.name for c in schema.COLUMNS]))])
