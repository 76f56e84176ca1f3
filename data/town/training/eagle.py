"""The loss of the corpus' EAGLE drafters: the target reads every batch, as no text comes twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from specviz.finetune.eagle_loss import EagleLoss, chains


class ReadingLoss:
    """`EagleLoss` on states that a frozen target computes for each batch.

    Parameters
    ----------
    target : transformers model
    layers : tuple of int
        Layers whose states generation 3 reads.
    steps : int
        Steps of the training-time test (generation 3).
    """

    def __init__(self, target: Any, layers: tuple[int, ...] = (), steps: int = 1) -> None:
        self.target, self.layers = target.eval().requires_grad_(False), layers
        self.loss = EagleLoss(self.target, steps)

    def __call__(
        self, model: Any, tokens: np.ndarray, answer: np.ndarray, prompt_weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss for the gradient, and the first step's cross-entropy; prompts never count."""
        return self.loss(model, tokens, answer, self.states(tokens))

    def right(
        self, model: Any, tokens: np.ndarray, answer: np.ndarray, steps: int
    ) -> tuple[list[int], list[int]]:
        """Hits of the drafter's most likely token, 1 ... `steps` steps ahead, and the guesses counted."""
        hits = [int(step.sum()) for step in self.loss.hits(model, tokens, answer, steps, self.states(tokens))]
        counted = [int(chains(answer, step).sum()) for step in range(steps)]
        return hits + [0] * (steps - len(hits)), counted

    @torch.no_grad()
    def states(self, tokens: np.ndarray) -> torch.Tensor:
        """The target's states of the layers that are read, then of the last, [rows, n, layers + 1, width]."""
        ids = torch.from_numpy(tokens).to(self.target.device)
        read = self.target.get_decoder()(input_ids=ids, use_cache=False, output_hidden_states=True)
        return torch.stack([read.hidden_states[layer] for layer in (*self.layers, -1)], 2)
