"""Device helpers: copying host values, converting networks, and supported number formats."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def send(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy host values to a tensor on `device` without synchronising; a tensor already there is not copied.

    ``torch.tensor(values, device=...)`` would wait until a GPU had finished its queued work. CUDA copies
    unpinned memory before the call returns, so later changes to `values` do no harm.
    """
    import torch

    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=device.type == "cuda")


def to_format(net: torch.nn.Module, dtype: torch.dtype, device: torch.device | None = None) -> None:
    """Convert a network to a number format, except the frequencies of its rotary positions.

    Angles are computed in float32 in any format, as after `from_pretrained`. A 16-bit frequency is off by up
    to 0.4 %, which gives wrong angles for positions some hundreds of tokens away.
    """
    kept = {
        (module, name): buffer
        for module in net.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name.endswith("inv_freq")
    }
    net.to(device=device, dtype=dtype)
    for (module, name), buffer in kept.items():
        setattr(module, name, buffer if device is None else buffer.to(device))


@cache
def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    features = _features() if device.type == "cpu" else {}
    return any(has for name, has in features.items() if "bf16" in name)


def emulates(device: str, number: str) -> bool:
    """Whether torch reports no instructions for a 16-bit format on a processor: passes in it may be slow."""
    name = {"bfloat16": "bf16", "float16": "fp16"}.get(number)
    if name is None or device != "cpu":
        return False
    return not any(has for feature, has in _features().items() if name in feature)


def _features() -> dict[str, bool]:
    """Whether this processor has each set of instructions that torch knows, by name."""
    import torch

    if hasattr(torch.cpu, "get_capabilities"):
        return {name: has for name, has in torch.cpu.get_capabilities().items() if isinstance(has, bool)}
    # Older versions of torch test single sets. Processors with AMX tiles multiply bfloat16 by them.
    tests = {"avx512_bf16": "_is_avx512_bf16_supported", "amx_bf16": "_is_amx_tile_supported"}
    return {name: getattr(torch.cpu, test)() for name, test in tests.items() if hasattr(torch.cpu, test)}
