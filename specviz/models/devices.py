"""Devices: host values on their way to one, and what it computes in."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def send(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Host values as a tensor on `device`, without waiting for it; a tensor that is there stays as it is.

    ``torch.tensor(values, device=...)`` would wait until a GPU had done all that it was given. CUDA takes a
    copy of unpinned memory before the call returns, so nothing can change under it.
    """
    import torch

    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=device.type == "cuda")


@cache
def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    features = torch.cpu.get_capabilities() if device.type == "cpu" else {}
    return any(has is True for name, has in features.items() if "bf16" in name)
