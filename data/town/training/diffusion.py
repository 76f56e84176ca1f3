"""The masked-diffusion objective: some cells of an answer are hidden, all of them are told from the rest.

LLaDA (Nie et al. 2025): a share t of an answer's cells is masked, and the loss of the masked ones divided by
t. A share drawn from (0, 1) (eq. 3) and a count drawn from 1 ... n (t = count / n; section 2.4, for
likelihoods) give the same mean. The second is steadier, since every text weighs the same, and is what is
trained and scored here. Answers are padded with ``<|end|>``, which the model learns to write as any other
token. A cell is told by the place before it, as in the causal model that the run starts from (Dream, Ye et
al. 2025).

Decoding goes block by block, and masks drawn from all cells almost never leave a text as it is met there: all
before a block written, all behind it masked. So a recipe can give some texts such masks (`hide_blocks`).
Theirs is the same bound, of one block given those before it, summed over blocks (BD3-LM, Arriola et al.
2025), but that the canvas behind the block stands there, masked.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from town.training.recipes import Recipe
from town.training.tokenizer import BEGIN, END, MASK, PAD, SIZE, STOP

LONGER = (
    (0.5, 0, 8),
    (0.35, 8, 64),
    (0.15, 64, 248),
)  # cells of padding behind the longest answer: share, from, to
BLOCKS = (4, 8, 16, 32)  # cells of a block, one of them drawn for each text
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
    """Write a model in 16 bit under the names and with the configuration of Dream's checkpoints."""
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


def hide(cells: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Which cells are masked, bool like `cells`, and the share t of each row that is, [rows].

    One draw for the batch, spread evenly over its rows: each row's count is uniform, the batch's mean steady.
    """
    rows, count = len(cells), cells.sum(1)
    masks = 1 + (count * ((rng.random() + rng.permutation(rows) / rows) % 1.0)).astype(np.int64)
    order = np.where(cells, rng.random(cells.shape), 2.0).argsort(1).argsort(1)
    return order < masks[:, None], masks / count


def hide_blocks(
    canvas: np.ndarray, cells: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The masks of answers that are written block by block: one block of each, drawn, stands for all.

    Blocks before it are written, those behind it all masked; of its own cells some are (`hide`). A text's
    blocks are those up to the one that holds its first ending token, where decoding stops.

    Returns
    -------
    tuple of (told bool like `cells`, masked bool like `cells`, weights float [rows])
        ``told`` are the masked cells of the block; the weight of a row's is its blocks over t.
    """
    place = cells.cumsum(1) - 1
    size = rng.choice(BLOCKS, len(cells))[:, None]
    ends = np.take_along_axis(place, (cells & (canvas == END)).argmax(1)[:, None], 1)
    blocks = ends // size + 1
    at = (rng.random(blocks.shape) * blocks).astype(np.int64)
    told, shares = hide(cells & (place // size == at), rng)
    return told, told | (cells & (place // size > at)), blocks[:, 0] / shares


def masked_loss(
    model: Any, tokens: np.ndarray, answer: np.ndarray, blockwise: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss of a batch, weighted by 1/t; twice, as `town.training.train.loss_sums` gives it.

    The share `blockwise` of the texts has the masks of `hide_blocks`, the others those of `hide`. Masks are
    drawn from the batch itself, so that a resumed run and every look at the dev texts see the same.
    """
    rng = np.random.default_rng(zlib.crc32(tokens.tobytes()))
    canvas, cells = answers_only(tokens, answer, rng)
    told, shares = hide(cells, rng)
    masked, weights = told.copy(), 1 / shares
    count = int(cells.sum())
    if some := round(len(canvas) * blockwise):
        told[:some], masked[:some], weights[:some] = hide_blocks(canvas[:some], cells[:some], rng)
        count = int(np.rint((weights[:, None] * told).sum()))
    each = costs(model, canvas, told, masked)
    weights = np.repeat(weights * answer.sum() / count, told.sum(1))
    loss = each @ torch.from_numpy(weights.astype(np.float32)).to(each.device)
    return loss, loss.detach()


def costs(model: Any, canvas: np.ndarray, told: np.ndarray, masked: np.ndarray | None = None) -> torch.Tensor:
    """Nats of every cell that is to be told, row by row, float32; `masked` (default: those) are hidden."""
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
