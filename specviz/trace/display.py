"""Functions of other packages with which a trace displays and summarises itself, without importing them.

`specviz.TRACE_HOOKS` names them, so that a trace displays itself however it was made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import specviz


@cache
def hook(name: str) -> Callable[..., Any]:
    """Return the function of a hook; its module is imported when first needed.

    Raises
    ------
    ImportError
        If that module, or a library that it needs, is not installed.
    """
    module, _, function = specviz.TRACE_HOOKS[name].partition(":")
    function_of_hook: Callable[..., Any] = getattr(import_module(module), function)
    return function_of_hook
