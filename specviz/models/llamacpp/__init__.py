"""GGUF files on llama.cpp: models and contexts with the usual interface, and a writer for GGUF files.

Names are resolved on first use: importing this loads no llama.cpp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specviz.models.llamacpp.context import LlamaCppContext
    from specviz.models.llamacpp.model import LlamaCpp
    from specviz.models.llamacpp.writer import write_gguf

__all__ = ["LlamaCpp", "LlamaCppContext", "write_gguf"]

_HOMES = {"LlamaCpp": "model", "LlamaCppContext": "context", "write_gguf": "writer"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
