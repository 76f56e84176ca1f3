"""The llama.cpp library: loaded when first needed, silent, its last complaint kept for our messages."""

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

_lines: deque[str] = deque(maxlen=8)  # what the library complained of last
_keep: list[Callable[..., None]] = []  # the callback must outlive the library's use of it


@cache
def library() -> ModuleType:
    """llama-cpp-python's low-level module, its backend started.

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
    """What the library complained of since it was last asked, in one line; the innermost reason first."""
    words = " ".join("".join(_lines).split())
    _lines.clear()
    return words[:300]


def versions() -> dict[str, str]:
    """The version of the library's Python package."""
    return {"llama-cpp-python": metadata.version("llama-cpp-python")}


@cache
def system() -> str:
    """How the library was built and what it uses of this machine."""
    return library().llama_print_system_info().decode("utf8", "replace").strip(" |")


def ends_the_process(whole: bool) -> bool:
    """Whether the library's special kernels would end the process on a file's matrices, `whole` or quantized.

    llama.cpp's AMX kernels for quantized matrices do, at passes of several tokens (seen with llama-cpp-python
    0.3.36 on Intel Xeons, by its own generation too). Plain ones take their place.
    """
    return "AMX_INT8 = 1" in system() and not whole


@contextmanager
def special_kernels(allowed: bool) -> Iterator[None]:
    """Within, whether a model that llama-cpp-python's own classes load gets kernels for special processors.

    Those classes have no argument for it.
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
