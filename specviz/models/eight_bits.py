"""Matrices stored in eight bits: whole numbers from −127 to 127, and a scale for each row.

Beside a tensor of int8 lies ``NAME.scale``, float32 of the same shape but for a last axis of one; what was
stored is their product. That is half the bytes of float16, and no weight moves by more than half a scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

SCALE = ".scale"
LEVELS = 127


def pack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices in eight bits; norms, offsets and ids as they are."""
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
    """The tensors of a file; matrices that lie in eight bits are given in float32."""
    whole = dict(tensors)
    for scaled in [name for name in tensors if name.endswith(SCALE)]:
        name = scaled.removesuffix(SCALE)
        if name in whole and whole[name].dtype == torch.int8:
            whole[name] = whole[name].float() * whole.pop(scaled)
    return whole
