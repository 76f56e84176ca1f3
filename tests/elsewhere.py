"""A simulated device: tensors of the CPU that claim to be on ``cuda:0``, and mix as badly.

It refuses what a GPU would refuse: tensors of both devices in one call, a NumPy array of a tensor that was
not copied back. So tests detect these errors without a GPU. It does not reproduce a GPU's numerics.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
ANYWHERE = {"copy_", "to", "__setitem__"}  # copies between devices are allowed
KINDS = {"device": CUDA, "is_cuda": True, "is_cpu": False}


class There(torch.Tensor):
    """A tensor that claims to be on ``cuda:0``."""


def there(x: Any) -> Any:
    """View the same memory as if on the device."""
    return x.as_subclass(There) if isinstance(x, torch.Tensor) else x


def here(x: Any) -> Any:
    """View the same memory as on the CPU."""
    return x.as_subclass(torch.Tensor) if isinstance(x, There) else x


def move(net: torch.nn.Module) -> torch.nn.Module:
    """A network with all its parameters and buffers on the device."""
    for module in net.modules():
        for name, p in module._parameters.items():
            if p is not None:
                module._parameters[name] = torch.nn.Parameter(there(p.detach()), requires_grad=False)
        for name, b in module._buffers.items():
            module._buffers[name] = there(b)
    return net


class Elsewhere(TorchFunctionMode):
    """While active, tensors can be on ``cuda`` and be sent there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        away = any(isinstance(x, There) for x in tensors)
        if name == "as_subclass" or function is torch.device:
            return function(*args, **kwargs)
        if name == "__get__" and away:
            kind = getattr(function.__self__, "__name__", "")
            if kind in KINDS:
                return KINDS[kind]
        if away and name in ("numpy", "__array__"):
            raise TypeError("can't convert a tensor on cuda:0 to NumPy: use .cpu() first")
        strangers = [x for x in tensors if not isinstance(x, There) and x.ndim]
        if name == "__getitem__":  # a device tensor takes CPU indices, but not the other way round
            strangers = [] if isinstance(args[0], There) else strangers
        if away and strangers and name not in ANYWHERE:
            raise RuntimeError(f"{name}: tensors on cuda:0 and on cpu in one call")
        places = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.device)]
        if places:
            away = places[0].type == "cuda"
            args, kwargs = tree_map(_cpu, (args, kwargs))
        elif name == "cpu":
            away = False
        elif name == "to":
            away = isinstance(args[0], There)
        inner_args, inner_kwargs = tree_map(here, (args, kwargs))
        out = function(*inner_args, **inner_kwargs)
        if away and args and isinstance(args[0], There) and out is inner_args[0]:  # changed in place
            return args[0]
        return tree_map(there if away else here, out)


def _cpu(x: Any) -> Any:
    return CPU if isinstance(x, torch.device) else x
