"""Experts of a mixture: how many weights a pass reads depends on which of them its tokens choose.

A token's pass through a layer reads its own few experts. A pass over n tokens reads all that any of them
chose: were every choice even and by itself, ``E (1 - (1 - k/E)^n)`` of E experts, k a token. Neighbouring
tokens of a real text choose alike, so `touched` counts what a model's own router does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn


class Counts(NamedTuple):
    """How many experts a layer has, and the parameters of one."""

    number: int
    elements: int


class Experts(NamedTuple):
    """Where a layer holds its experts: the module's name, the beginning of the names in the block around it,
    and how many there are."""

    name: str
    block: str
    counts: Counts


def holds(part: nn.Module) -> bool:
    """Whether a module's own parameters are stacks of matrices, one for each expert."""
    own = list(part.parameters(recurse=False))
    return any(p.ndim == 3 for p in own) and len({p.shape[0] for p in own}) == 1


def of_layer(layer: nn.Module) -> Experts | None:
    """The experts of a layer, if it has any."""
    for name, part in layer.named_modules():
        if holds(part):
            own = list(part.parameters(recurse=False))
            block = name.rpartition(".")[0]
            counts = Counts(own[0].shape[0], sum(p[0].numel() for p in own))
            return Experts(name, f"{block}." if block else "", counts)
    return None


@torch.inference_mode()
def choices(net: nn.Module, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Which experts the tokens of each text choose.

    Parameters
    ----------
    net : PreTrainedModel
        A causal mixture.
    texts : sequence of sequence of int

    Returns
    -------
    list of array of int, shape (layers, tokens, k)
    """
    chosen: list[torch.Tensor] = []

    def keep(_module: nn.Module, given: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
        """An experts' module is called with the ids of the chosen ones, the one tensor of whole numbers."""
        tensors = [each for each in (*given, *named.values()) if isinstance(each, torch.Tensor)]
        chosen.extend(each for each in tensors if not each.is_floating_point())

    hooks = [each.register_forward_pre_hook(keep, with_kwargs=True) for each in net.modules() if holds(each)]
    device, made = next(net.parameters()).device, []
    try:
        for text in texts:
            chosen.clear()
            net(torch.tensor([list(text)], device=device), use_cache=False)
            made.append(np.stack([each.reshape(len(text), -1).cpu().numpy() for each in chosen]))
    finally:
        for hook in hooks:
            hook.remove()
    return made


def touched(chosen: Sequence[np.ndarray], count: int, sizes: Sequence[int]) -> dict[int, float]:
    """Experts that a pass over so many neighbouring tokens reads in a layer, on average.

    Parameters
    ----------
    chosen : sequence of array of int, shape (layers, tokens, k)
        As `choices` gives them.
    count : int
        Experts of a layer.
    sizes : sequence of int
        Numbers of tokens; those longer than every text are left out.
    """
    sums = []
    for text in chosen:
        layers, tokens, _ = text.shape
        marked = np.zeros((layers, tokens + 1, count), np.int32)
        np.put_along_axis(marked[:, 1:], text, 1, 2)
        sums.append(marked.cumsum(1))
    made = {}
    for size in sizes:
        long = [each for each in sums if each.shape[1] > size]
        windows = [(each[:, size:] > each[:, :-size]).sum(-1).ravel() for each in long]
        if windows:
            made[size] = float(np.concatenate(windows).mean())
    return made
