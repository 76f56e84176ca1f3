"""Models that run forward passes. Names are resolved on first use: importing this loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specviz.models.context import Context, Pass
    from specviz.models.loading import load
    from specviz.models.model import Model
    from specviz.models.zoo import available, bundled

__all__ = ["Context", "Model", "Pass", "available", "bundled", "load"]

_HOMES = {
    "Context": "context", "Pass": "context", "Model": "model", "available": "zoo", "bundled": "zoo",
    "load": "loading",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
