"""Matrices stored in eight bits: integers from −127 to 127, with one scale per row.

Each int8 tensor comes with ``NAME.scale``, float32 of the same shape except for a last axis of one; the
weights are their product. This takes half the bytes of float16 and moves no weight by more than half a scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

SCALE = ".scale"
IDS = "tokens", "d2t", "t2d"  # tensors of token ids, the only ones that may hold integers
LEVELS = 127


def pack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Quantise matrices to eight bits; norms, offsets and ids stay unchanged."""
    packed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if not value.is_floating_point() or value.ndim < 2 or name.endswith(SCALE):
            packed[name] = value
            continue
        scale = value.float().abs().amax(-1, keepdim=True) / LEVELS
        steps = torch.where(scale > 0, value.float() / scale, 0.0)
        packed |= {name: steps.round().to(torch.int8), name + SCALE: scale}
    return packed


def unpack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert 8-bit matrices to float32; other tensors stay unchanged.

    Raises
    ------
    ValueError
        If a tensor other than token ids then still holds integers.
    """
    whole = dict(tensors)
    for scaled in [name for name in tensors if name.endswith(SCALE)]:
        name = scaled.removesuffix(SCALE)
        if name in whole and whole[name].dtype == torch.int8:
            whole[name] = whole[name].float() * whole.pop(scaled)
    for name, value in whole.items():
        if name not in IDS and not value.is_floating_point():
            kind = str(value.dtype).removeprefix("torch.")
            raise ValueError(f"its {name:.60} holds {kind} without a scale: fetch or save it again")
    return whole
