"""Count by call where the host would wait for a GPU, so that it can be tested without one."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Calls that read a whole tensor; for a scalar torch calls `_local_scalar_dense` on the way.
WHOLE = {"tolist", "cpu", "numpy", "__array__"}
INSIDE = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "item", "is_nonzero"}
MADE = {"tensor", "as_tensor", "asarray", "scalar_tensor"}  # from host data, on a device if one is named


class Waits(TorchFunctionMode):
    """Counts what would make the host wait: reads of a device's values, and blocking copies of host data.

    A read waits until the device has done all its queued work. So does ``torch.tensor(..., device=...)``,
    and a ``to`` a device without ``non_blocking``.

    Parameters
    ----------
    device : str
        Reads of its tensors count.

    Attributes
    ----------
    reads, sends : Counter
        How often, by the line of the package (``file.py:line``) that caused it.
    """

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.device = device
        self.reads: Counter[str] = Counter()
        self.sends: Counter[str] = Counter()
        self.inside = _Inside(self)

    def __enter__(self) -> Waits:
        self.inside.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.inside.__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in WHOLE and args[0].ndim and args[0].device.type == self.device:
            self.reads[asked()] += 1
        elif name in MADE:
            if kwargs.get("device") is not None and not torch.is_tensor(args[0]):
                self.sends[asked()] += 1
        elif name == "to":
            where = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.device | str)]
            ours = "/specviz/" in sys._getframe(1).f_code.co_filename  # elsewhere it may be no move
            if ours and where and "non_blocking" not in kwargs:
                self.sends[asked()] += 1
        elif name in ("__getitem__", "__setitem__"):
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(key, list | range) for key in keys):
                self.sends[asked()] += 1
        return function(*args, **kwargs)


class _Inside(TorchDispatchMode):
    """Counts at operator level: implicit reads, such as those of an index or a comparison."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        keys = args[1] if name in ("index", "index_put", "index_put_") else ()
        if name in INSIDE or any(k is not None and k.dtype in (torch.bool, torch.uint8) for k in keys):
            self.waits.reads[asked()] += 1
        return function(*args, **(kwargs or {}))


def asked() -> str:
    """The innermost line of the package on the stack."""
    frame = sys._getframe(1)
    while frame is not None and "/specviz/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
