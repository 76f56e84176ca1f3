"""The masked-diffusion model of `town`: its shape, its canvases and its loss (`specviz.finetune.masking`).

Answers are padded with ``<|end|>``. A cell is predicted at the position before it, as in the causal model
that the run starts from (Dream, Ye et al. 2025).
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from specviz.finetune.masking import draw_masks
from town.training.recipes import Recipe
from town.training.tokenizer import BEGIN, END, MASK, PAD, SIZE, STOP

LONGER = (
    (0.5, 0, 8),
    (0.35, 8, 64),
    (0.15, 64, 248),
)  # cells of padding after the longest answer: share, from, to
CELLS = 4096  # most tokens per pass: rows are dropped to stay below it when the padding is long


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
        bos_token_id=BEGIN,
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


def save(net: Any, folder: Path) -> None:
    """Write a model in 16 bit with the names and the configuration of Dream's checkpoints."""
    net.to(torch.float16).save_pretrained(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    for name in ("layer_types", "transformers_version"):
        config.pop(name)
    config |= {"architectures": ["DreamModel"], "model_type": "Dream", "eos_token_id": END,
               "mask_token_id": MASK}  # fmt: skip
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def answers_only(
    tokens: np.ndarray, answer: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Build a batch's canvases and mark their cells: the last answer of each chat, padded with ``<|end|>``.

    Returns
    -------
    tuple of (tokens int64 [rows, length], cells bool [rows, length])
    """
    rows, width = tokens.shape
    asked = ~answer & (tokens != PAD)
    begin = width - asked[:, ::-1].argmax(1)  # after the last token that is not the assistant's
    _, least, most = LONGER[rng.choice(len(LONGER), p=[share for share, *_ in LONGER])]
    width += int(rng.integers(least, most))
    canvas = np.full((rows, width), END, np.int64)
    canvas[:, : tokens.shape[1]] = np.where(tokens == PAD, END, tokens)
    cells = np.arange(width) >= begin[:, None]
    kept = rng.permutation(rows)[: max(1, CELLS // width)]
    return canvas[kept], cells[kept]


def masked_loss(
    model: Any, tokens: np.ndarray, answer: np.ndarray, blockwise: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss of a batch, weighted by 1/t, returned twice to match `town.training.train.loss_sums`.

    The share `blockwise` of the texts is masked by `hide_blocks`, the rest by `hide`. The masks are seeded by
    the batch itself, so that a resumed run and every evaluation on the dev texts use the same ones.
    """
    rng = np.random.default_rng(zlib.crc32(tokens.tobytes()))
    canvas, cells = answers_only(tokens, answer, rng)
    learnt, masked, weights = draw_masks(canvas, cells, END, blockwise, rng)
    each = costs(model, canvas, learnt, masked)
    weights *= answer.sum()
    loss = each @ torch.from_numpy(weights.astype(np.float32)).to(each.device)
    return loss, loss.detach()


def costs(model: Any, canvas: np.ndarray, told: np.ndarray, masked: np.ndarray | None = None) -> torch.Tensor:
    """Loss in nats of every cell in `told`, row by row, float32; `masked` (default: `told`) are hidden."""
    at = np.flatnonzero(told)
    hidden = told if masked is None else masked
    ids, place, wanted = (
        torch.from_numpy(v).to(model.device)
        for v in (np.where(hidden, MASK, canvas), at - 1, canvas.ravel()[at])
    )
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.device.type == "cuda"):
        state = model.model(input_ids=ids, attention_mask={"full_attention": None}, use_cache=False)
        scores = state.last_hidden_state.flatten(0, 1).index_select(0, place) @ model.lm_head.weight.T
    return cross_entropy(scores.float(), wanted, reduction="none")
