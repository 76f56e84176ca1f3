"""Mixture-of-experts routing: which experts a pass reads, and thus how many weights.

Each token reads only k experts of a layer. A pass over n tokens reads every expert that any of them chose:
with uniform, independent choices, ``E (1 - (1 - k/E)^n)`` of E experts. Neighbouring tokens of real text
choose similar experts, so `touched` measures the model's own router.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn


class Counts(NamedTuple):
    """The number of experts in a layer, and the number of parameters of each."""

    number: int
    elements: int


class Experts(NamedTuple):
    """A layer's experts: the module's name, the name prefix of the block around it, and the counts."""

    name: str
    block: str
    counts: Counts


def holds(part: nn.Module) -> bool:
    """Whether a module's own parameters are stacks of matrices with one matrix per expert."""
    own = list(part.parameters(recurse=False))
    return any(p.ndim == 3 for p in own) and len({p.shape[0] for p in own}) == 1


def of_layer(layer: nn.Module) -> Experts | None:
    """The experts of a layer, or None."""
    for name, part in layer.named_modules():
        if holds(part):
            own = list(part.parameters(recurse=False))
            block = name.rpartition(".")[0]
            counts = Counts(own[0].shape[0], sum(p[0].numel() for p in own))
            return Experts(name, f"{block}." if block else "", counts)
    return None


@torch.inference_mode()
def choices(net: nn.Module, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Record which experts the tokens of each text choose.

    Parameters
    ----------
    net : PreTrainedModel
        A causal mixture-of-experts model.
    texts : sequence of sequence of int

    Returns
    -------
    list of array of int, shape (layers, tokens, k)
    """
    chosen: list[torch.Tensor] = []

    def keep(_module: nn.Module, given: tuple[torch.Tensor, ...], named: dict[str, torch.Tensor]) -> None:
        """Keep the ids of the chosen experts: the only integer tensor among the module's arguments."""
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
    """Average number of experts per layer that a pass over neighbouring tokens reads, by pass size.

    Parameters
    ----------
    chosen : sequence of array of int, shape (layers, tokens, k)
        The result of `choices`.
    count : int
        Experts of a layer.
    sizes : sequence of int
        Numbers of tokens in a pass; sizes longer than every text are left out.
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
