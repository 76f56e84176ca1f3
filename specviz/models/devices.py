"""Host values on their way to a device."""

from __future__ import annotations

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
