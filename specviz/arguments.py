"""Check arguments against a function's declarations: types from annotations, limits from `Range`."""

from __future__ import annotations

import builtins
import functools
import inspect
import operator
import os
import types
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from specviz.errors import ParameterError, SpecvizError

PLAIN = (type(None), bool, int, float, complex, str, bytes, list, tuple, dict, set)
FOREIGN_MODULES = {"builtins", "numpy", "pathlib"}  # their classes never stand in for ours
Function = TypeVar("Function", bound=Callable[..., Any])


MOST = 2**63 - 1  # largest number in a record


@dataclass(frozen=True)
class Range:
    """Legal values of a number, both ends included: ``Annotated[int, Range(1)]``."""

    low: float
    high: float | None = None

    def __str__(self) -> str:
        if self.high in (None, MOST):
            return f"of at least {self.low}" + (" and below 2**63" if self.high else "")
        return f"from {self.low} to {self.high}"


SEED = Range(0, 2**64 - 1)


def check_int(name: str, value: Any, low: int, high: int | None = None) -> int:
    """`value` as an int in this range.

    Raises
    ------
    ParameterError
    """
    return check(name, value, Annotated[int, Range(low, high)])


def check(name: str, value: Any, hint: Any) -> Any:
    """`value`, if it has a declared type and is within its range; NumPy's numbers become Python's.

    Raises
    ------
    ParameterError
        If not; the message names the argument, what it must be and what it is.
    """
    if isinstance(value, str | os.PathLike) and "\0" in str(value):
        raise ParameterError(f"{name} must not hold a null character")
    if not _fits(value, hint):
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:80]} …"
        raise ParameterError(f"{name} must be {_described(hint)}, got {' '.join(shown.split())}")
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return operator.index(value) if base is int else float(value) if base is float else value


def check_fields(instance: Any) -> None:
    """Check the fields of a new dataclass instance against their annotations."""
    hints = get_type_hints(type(instance), include_extras=True)
    for field in fields(instance):
        value = check(field.name, getattr(instance, field.name), hints[field.name])
        object.__setattr__(instance, field.name, value)


def check_threads(threads: int) -> int:
    """Check that a number of threads does not exceed this machine's processors, and return it.

    More threads never compute faster, and far more end the process in a way that cannot be caught.

    Raises
    ------
    ParameterError
        If it is below 1, or above the number of logical processors.
    """
    most = os.cpu_count() or 1
    if isinstance(threads, bool) or not hasattr(threads, "__index__") or not 1 <= threads <= most:
        raise ParameterError(
            f"threads must be from 1 to {most}, this machine's number of processors; got {threads!r}"
        )
    return operator.index(threads)


def checked(function: Function) -> Function:
    """Wrap a function to check its arguments when called, and to turn system errors into one line.

    Only plain and NumPy values, and arguments annotated with plain types, are checked: an object of another
    class may have the interface that an annotation means.
    """
    signature = inspect.signature(function)
    hints: dict[str, Any] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # let Python report a missing or unknown argument
            return function(*args, **kwargs)
        if not hints:
            hints.update(_hints(function))
        for name, value in bound.arguments.items():
            given = name in hints and value is not signature.parameters[name].default
            # for an argument that should be a trace, the function's own error says how to make one
            own = given and getattr(hints[name], "__name__", "") == "Trace"
            judged = isinstance(value, PLAIN) or type(value).__module__ in FOREIGN_MODULES
            if given and not own and (judged or _plain(hints[name])):
                check(name, value, hints[name])
        try:
            return function(*args, **kwargs)
        except OSError as error:
            if error.strerror is None or isinstance(error, BrokenPipeError):
                raise
            where = "" if error.filename is None else f": {error.filename}"
            raise SpecvizError(f"{error.strerror}{where}") from error

    return call  # type: ignore[return-value]


class _ByName(type):
    """Type of stand-ins; the attributes of a module that is not imported are stand-ins, too."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)


class _Unresolved(metaclass=_ByName):
    """Stands for a class that only type checkers import: an object fits if its class has the name."""


@functools.cache
def _stand_in(name: str) -> type:
    return _ByName(name, (_Unresolved,), {})


# Names in annotations that a module may import only for type checkers.
_IMPORTED = {
    "Path": Path, "Sequence": Sequence, "Iterable": Iterable, "Mapping": Mapping, "Callable": Callable,
    "Annotated": Annotated, "Range": Range,
}  # fmt: skip


class _Names(dict[str, Any]):
    """Names that a module imports only for type checkers; of them, Trace and torch are checked by name."""

    def __missing__(self, name: str) -> Any:
        return _stand_in(name) if name in ("Trace", "torch") else Any


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's parameters as types, without those that cannot be evaluated."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    names = ChainMap(inner.__globals__, vars(builtins), _Names(_IMPORTED))
    hints = {}
    for name, parameter in inspect.signature(function).parameters.items():
        hint = parameter.annotation
        several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if hint is parameter.empty or several:
            continue
        try:
            hints[name] = eval(hint, {}, names) if isinstance(hint, str) else hint
        except (AttributeError, TypeError, SyntaxError):
            continue
    return hints


def _plain(hint: Any) -> bool:
    """Whether an annotation names only plain types and paths."""
    if get_origin(hint) is Literal or hint in (None, Path):
        return True
    inner = get_args(hint)
    return all(_plain(each) for each in inner if not isinstance(each, Range)) if inner else hint in PLAIN


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has a declared type and is in its range."""
    if hint is Any:
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = next((each for each in inner[1:] if isinstance(each, Range)), None)
        return _fits(value, inner[0]) and (
            limits is None or limits.low <= value <= (float("inf") if limits.high is None else limits.high)
        )
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return any(value is each or (isinstance(value, str) and value == each) for each in inner)
    if hint in (None, type(None)):
        return value is None
    if hint is bool:
        return type(value).__name__ in ("bool", "bool_")  # Python's and NumPy's
    if hint is int:
        whole = hasattr(value, "__index__") and not isinstance(value, type)
        return whole and not _fits(value, bool) and not hasattr(value, "__len__")
    if hint is float:
        number = hasattr(value, "__float__") and not isinstance(value, str) and not hasattr(value, "__len__")
        return number and not isinstance(value, type) and not _fits(value, bool) and value == value
    if hint is Path:
        return isinstance(value, str | os.PathLike)
    kind = origin or hint
    if kind is Callable or getattr(kind, "__name__", "") == "Callable":
        return callable(value)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False) is True:
        return True  # not distinguished here
    if issubclass(kind, _Unresolved):
        return any(each.__name__ == kind.__name__ for each in type(value).__mro__)
    if kind in (Sequence, Iterable, Collection) and isinstance(value, str | bytes):
        return False
    if kind is Sequence and hasattr(value, "tolist"):
        value = value.tolist()  # NumPy's and pandas' arrays are sequences here, too
    if not isinstance(value, kind):
        return False
    if inner and issubclass(kind, Sequence) and kind is not tuple:
        return all(_fits(each, inner[0]) for each in value)
    return True


def _described(hint: Any) -> str:
    """Describe a declared type in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([_described(inner[0]), *(str(each) for each in inner[1:] if isinstance(each, Range))])
    if origin in (Union, types.UnionType, Literal):
        words = [repr(each) if origin is Literal else _described(each) for each in inner]
        words = list(dict.fromkeys(words))
        return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    simple = {
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        str: "a string",
        Path: "a path",
    }
    if hint in simple:
        return simple[hint]
    kind = origin or hint
    if hint in (None, type(None)):
        return "None"
    if kind in (Sequence, list, tuple, Iterable):
        return "a list" + (f" ({_described(inner[0])} each)" if inner and inner[0] is not Any else "")
    name = getattr(kind, "__name__", str(kind))
    return {"Callable": "a function", "Mapping": "a dict"}.get(name, f"a {name}")
