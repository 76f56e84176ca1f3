"""Where tensors are computed: host values on their way to a device, and threads of this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from specviz.errors import ParameterError

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


def check_threads(threads: int) -> int:
    """A number of threads that this machine has processors for.

    More than that never computes faster, and far more of them end the process where no error can be caught.

    Raises
    ------
    ParameterError
        If it is below 1, or above the number of logical processors.
    """
    most = os.cpu_count() or 1
    if not 1 <= threads <= most:
        raise ParameterError(
            f"threads must be from 1 to {most}, the number of processors of this machine; got {threads}"
        )
    return threads
