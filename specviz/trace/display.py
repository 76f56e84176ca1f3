"""What a trace shows and sums itself up with: functions of other packages, which the trace does not import.

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
    """The function of a hook; its module is imported when it is first wanted.

    Raises
    ------
    ImportError
        If that module, or a library that it needs, is not installed.
    """
    module, _, function = specviz.TRACE_HOOKS[name].partition(":")
    function_of_hook: Callable[..., Any] = getattr(import_module(module), function)
    return function_of_hook
