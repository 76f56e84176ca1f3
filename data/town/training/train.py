"""The training loop: reads shards, updates a model, and can resume after being killed."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from specviz.finetune.checkpoint import rate_at, read_checkpoint, write_checkpoint
from specviz.finetune.optimizer import Optimizer
from town.training.recipes import Recipe
from town.training.shards import Shard, batch_stream, batches
from town.training.tokenizer import PAD

Loss = Callable[[Any, np.ndarray, np.ndarray, float], tuple[torch.Tensor, torch.Tensor]]


def extra_weight(recipe: Recipe, progress: float) -> float:
    """A loss's last argument at `progress`: prompt weight, or for diffusion the share of blockwise texts."""
    if recipe.part == "diffusion":
        return recipe.blockwise if progress >= recipe.blockwise_from else 0.0
    return recipe.prompt_weight if progress < recipe.prompt_until else 0.0


def upload(values: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy an array to the device; for a GPU, without blocking the host."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def loss_sums(
    model: Any, tokens: np.ndarray, answer: np.ndarray, prompt_weight: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed loss of a batch on the host: weighted (for the gradient), and of the answers alone.

    Logits are computed only for tokens that count: the vocabulary projection is a fifth of a pass. The host
    derives these positions from the batch itself, without a GPU sync, so it can prepare the next batch. On a
    GPU the pass runs in bfloat16, the loss in float32. (transformers syncs once per pass, for packed texts.)
    """
    device = model.device
    following, said = tokens[:, 1:].ravel(), answer[:, 1:].ravel()
    counted = np.flatnonzero(said if prompt_weight == 0 else following != model.config.pad_token_id)
    ids, at, wanted = (upload(v, device) for v in (tokens[:, :-1].copy(), counted, following[counted]))
    spoken = upload(said[counted].astype(np.float32), device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        scores = hidden.index_select(0, at) @ model.lm_head.weight.T
    each = cross_entropy(scores.float(), wanted, reduction="none")
    return each @ (spoken + prompt_weight * (1 - spoken)), each.detach() @ spoken


@torch.inference_mode()
def evaluate_loss(model: Any, shard: Shard, size: int = 2048, loss_sums: Loss = loss_sums) -> float:
    """Mean loss per answer token over a shard, in nats."""
    made = batches(shard, size, random.Random(0))
    total = sum(loss_sums(model, tokens, answer, 0.0)[1] for tokens, answer in made)
    return float(total) / sum(int(answer[:, 1:].sum()) for _, answer in made)


def train(
    recipe: Recipe,
    model: Any,
    shard: Callable[[int], Shard],
    dev: Shard,
    checkpoint: Path,
    *,
    minutes: float | None = None,
    every: float = 60.0,
    device: str = "cpu",
    stop_after: int | None = None,
    loss_sums: Loss = loss_sums,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> dict[str, Any]:
    """Train `model` in place and return the figures for its card.

    Parameters
    ----------
    shard : callable
        Returns training shard 0, 1, 2 ...
    dev : Shard
        Chats of the dev split, for the curve.
    checkpoint : Path
        Read first if it exists, written every `every` seconds and at the end.
    minutes : float, optional
        Spread the schedule over this much training time instead of the recipe's tokens.
    stop_after : int, optional
        Return after this many updates of this call, with the schedule unfinished.
    loss_sums : callable
        The summed loss of a batch, weighted (for the gradient) and of the answers alone.

    Returns
    -------
    dict
        ``tokens`` read, ``seconds`` trained, ``updates``, ``curve``: list of (tokens, train loss,
        dev loss) in nats per answer token, and ``done``.
    """
    model.to(device).train()
    optimizer = Optimizer(model, recipe.matrix_rate, recipe.rate)
    state: dict[str, Any] = {
        "place": [0, 0], "tokens": 0, "seconds": 0.0, "updates": 0, "curve": [], "recipe": asdict(recipe)
    }  # fmt: skip
    if checkpoint.exists():
        state = read_checkpoint(checkpoint, optimizer)
        optimizer.steps = state["updates"]
        say(f"{recipe.name}: going on after {state['tokens']:,} tokens")
    number, at = state["place"]
    stream = batch_stream(shard, recipe.micro, recipe.seed, (number, at), recipe.texts == "pairs")
    began, done_before = time.monotonic(), state["seconds"]
    saved = spoken = began
    updates, here = 0, state["tokens"]
    running: torch.Tensor | None = None  # smoothed train loss; copied to the host only for display
    while True:
        state["seconds"] = done_before + time.monotonic() - began
        progress = state["seconds"] / (60 * minutes) if minutes else state["tokens"] / recipe.tokens
        finished = progress >= 1
        if finished or progress * 20 >= len(state["curve"]):
            shown = None if running is None else float(running)
            state["curve"].append((state["tokens"], shown, evaluate_loss(model, dev, loss_sums=loss_sums)))
        now = time.monotonic()
        if finished or now - saved > every or (stop_after is not None and updates >= stop_after):
            write_checkpoint(checkpoint, optimizer, state)
            saved = now
        if finished or now - spoken > 15:
            speed = (state["tokens"] - here) / max(now - began, 1e-9)
            left = (state["seconds"] / max(progress, 1e-9) - state["seconds"]) / 60
            say(
                f"{recipe.name}: {min(progress, 1):6.1%}  {state['tokens']:,} tokens  {speed:,.0f}/s  "
                f"loss {math.nan if running is None else float(running):.3f}  "
                f"dev {state['curve'][-1][2]:.3f}  "
                f"{max(left, 0):.1f} min left"
            )
            spoken = now
        if finished or (stop_after is not None and updates >= stop_after):
            return state | {"done": finished}
        group = [next(stream) for _ in range(max(1, recipe.step // recipe.micro))]
        count = sum(int(answer[:, 1:].sum()) for _, (_, answer) in group)
        weight = extra_weight(recipe, progress)
        losses = []
        for place, (tokens, answer) in group:
            weighted, loss = loss_sums(model, tokens, answer, weight)
            (weighted / count).backward()
            losses.append(loss / count)
            state["tokens"] += int((tokens != PAD).sum())
            state["place"] = list(place)
        optimizer.step(rate_at(progress))
        state["updates"] += 1
        updates += 1
        mean = torch.stack(losses).sum()
        running = mean if running is None else running.lerp(mean, 0.02)
