"""The masked-diffusion objective: some cells of an answer are hidden, all of them are told from the rest.

LLaDA (Nie et al. 2025, eq. 3): a share t of an answer's cells, drawn anew for each text, is masked, and the
loss of the masked ones is divided by t. Answers are padded with ``<|end|>``, which the model learns to write
as any other token. A cell is told by the place before it, as in the causal model that the run starts from
(Dream, Ye et al. 2025).
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from specviz.training.recipes import Recipe
from specviz.training.tokenizer import END, MASK, PAD, SIZE, STOP

LEAST = 1e-3  # the smallest share of cells that is masked
LONGER = (
    (0.6, 0, 8),
    (0.3, 8, 48),
    (0.1, 48, 240),
)  # cells of padding behind the longest answer: share, from, to
CELLS = 4096  # most tokens of a pass: what is padded longer has fewer rows


def build(recipe: Recipe, causal: Any = None) -> Any:
    """A bidirectional transformer of the recipe's shape, seeded, or with the weights of a causal Llama."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(recipe.seed)
    net = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=SIZE,
        hidden_size=recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        intermediate_size=recipe.feed_forward,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        eos_token_id=[END, STOP],
        pad_token_id=PAD,
        attn_implementation="sdpa",
    ))  # fmt: skip
    for name, value in net.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(value)
    if causal is not None:
        missing, extra = net.load_state_dict(causal.state_dict(), strict=False)
        assert not extra and all(name.endswith("bias") for name in missing)
    for layer in net.model.layers:
        layer.self_attn.is_causal = False
    return net


def answers_only(
    tokens: np.ndarray, answer: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A batch's canvases and their cells: the last answer of each chat, padded with ``<|end|>``.

    Returns
    -------
    tuple of (tokens int64 [rows, length], cells bool [rows, length])
    """
    rows, width = tokens.shape
    asked = ~answer & (tokens != PAD)
    begin = width - asked[:, ::-1].argmax(1)  # behind the last token that somebody else said
    _, least, most = LONGER[rng.choice(len(LONGER), p=[share for share, *_ in LONGER])]
    width += int(rng.integers(least, most))
    canvas = np.full((rows, width), END, np.int64)
    canvas[:, : tokens.shape[1]] = np.where(tokens == PAD, END, tokens)
    cells = np.arange(width) >= begin[:, None]
    kept = rng.permutation(rows)[: max(1, CELLS // width)]
    return canvas[kept], cells[kept]


def masked_loss(
    model: Any, tokens: np.ndarray, answer: np.ndarray, prompt_weight: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss of a batch, as `specviz.training.train.loss_sums` gives that of chats: by 1/t, twice.

    Masks are drawn from the batch itself, so that a resumed run and every look at the dev texts see the same.
    """
    rng = np.random.default_rng(zlib.crc32(tokens.tobytes()))
    canvas, cells = answers_only(tokens, answer, rng)
    rows = len(canvas)
    # One draw for the batch, spread evenly over its rows: each share is uniform, the batch's mean steady.
    shares = np.maximum((rng.random() + rng.permutation(rows) / rows) % 1.0, LEAST)
    masked = cells & (rng.random(canvas.shape) < shares[:, None])
    at = np.flatnonzero(masked)
    device = model.device
    ids = torch.from_numpy(np.where(masked, MASK, canvas)).to(device)
    weights = np.repeat(1 / shares * answer.sum() / max(cells.sum(), 1), canvas.shape[1])[at]
    place, wanted, weight = (
        torch.from_numpy(v).to(device) for v in (at, canvas.ravel()[at], weights.astype(np.float32))
    )
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.model(
            input_ids=ids, attention_mask={"full_attention": None}, use_cache=False
        ).last_hidden_state
        scores = hidden.flatten(0, 1).index_select(0, place - 1) @ model.lm_head.weight.T
    loss = cross_entropy(scores.float(), wanted, reduction="none") @ weight
    return loss, loss.detach()
