"""Loads the llama.cpp library when first needed, silences it, and keeps its last errors for our messages."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from types import ModuleType

from specviz.errors import ModelError, install

ERROR = 4  # GGML_LOG_LEVEL_ERROR
CONTINUES = 5  # GGML_LOG_LEVEL_CONT
MISSING = f"llama.cpp is not installed; a GGUF file needs it: {install('llamacpp')}"

_lines: deque[str] = deque(maxlen=8)  # the library's latest error messages
_keep: list[Callable[..., None]] = []  # keeps the callback alive while the library uses it


@cache
def library() -> ModuleType:
    """llama-cpp-python's low-level module, with its backend started.

    Raises
    ------
    ModelError
        If it is not installed or does not load.
    """
    try:
        from llama_cpp import llama_cpp as llama
    except ImportError:
        raise ModelError(MISSING) from None
    except (OSError, RuntimeError) as error:  # its shared library does not load
        raise ModelError(f"llama.cpp does not load: {' '.join(str(error).split())[:200]}") from None
    level = 0

    @llama.llama_log_callback
    def heard(new: int, text: bytes, _: int | None) -> None:
        nonlocal level
        if new != CONTINUES:
            level = new
        if level == ERROR:
            _lines.append(text.decode("utf8", "replace"))

    _keep.append(heard)
    llama.llama_log_set(heard, ctypes.c_void_p(0))
    llama.llama_backend_init()
    return llama


def last_message() -> str:
    """Return the library's errors since the last call, in one line, innermost reason first; clear them."""
    words = " ".join("".join(_lines).split())
    _lines.clear()
    return words[:300]


def versions() -> dict[str, str]:
    """The version of the library's Python package."""
    return {"llama-cpp-python": metadata.version("llama-cpp-python")}


@cache
def system() -> str:
    """The library's build options and the machine features that it uses."""
    return library().llama_print_system_info().decode("utf8", "replace").strip(" |")


def ends_the_process(whole: bool) -> bool:
    """Whether special kernels would abort the process for a file's matrices; `whole` if not quantized.

    llama.cpp's AMX kernels for quantized matrices do so in passes of several tokens (seen with
    llama-cpp-python 0.3.36 on Intel Xeons, also in its own generation). Plain kernels are then used instead.
    """
    return "AMX_INT8 = 1" in system() and not whole


@contextmanager
def special_kernels(allowed: bool) -> Iterator[None]:
    """Allow or forbid special kernels for models that llama-cpp-python's own classes load within the block.

    Those classes have no argument for this.
    """
    names, name = vars(library()), "llama_model_default_params"
    defaults = names[name]

    def changed() -> ctypes.Structure:
        given = defaults()
        given.use_extra_bufts = allowed
        return given

    if not allowed:
        names[name] = changed
    try:
        yield
    finally:
        names[name] = defaults
