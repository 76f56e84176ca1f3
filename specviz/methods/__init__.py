"""The decoding methods, one file per paper or family, and the functions that look them up.

Anything that takes a method's name also takes its class or an instance, so a class in a notebook cell needs
no registration. If several classes have the same name, the last one passed wins; a class with the name of an
installed method is refused. A package registers its method by name in its own entry points (group
``specviz.methods``):

    [project.entry-points."specviz.methods"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from typing import Any, TypeAlias

from ..errors import ModelError, ParameterError, SpecvizError, loading, near
from ..schema import Signal
from .base import Method, Parameter, Session, Unsent, Verdict
from .kinds import CALIBRATED, SizedMethod

__all__ = [
    "GROUP", "Given", "Make", "Method", "Parameter", "Session", "Signal", "Unsent", "Verdict", "as_list",
    "factory", "find", "make", "name_of", "names", "of_session", "settings_of",
]  # fmt: skip

GROUP = "specviz.methods"
NO_METHOD = "a method must be a name, a class, an instance or a function that makes one, got {!r:.80}"
Make: TypeAlias = Callable[[], Method]  # makes a fresh method
Given: TypeAlias = str | Method | type[Method] | Make  # a method as a caller passes it
_classes: dict[str, type[Method]] = {}  # classes passed by callers and declared by no package


@cache
def _points() -> dict[str, metadata.EntryPoint]:
    """Entry points by name; another package never replaces a built-in name."""
    points: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=GROUP):
        if point.name not in points or point.value.startswith("specviz."):
            points[point.name] = point
    return points


def names(writes: str | None = None) -> list[str]:
    """Sorted names of the installed methods; without `writes`, none is imported.

    Parameters
    ----------
    writes : {"prompt", "stream", "canvas"}, optional
        Only methods that continue prompts, that decode sources arriving in updates, or that write the
        canvases of a diffusion model; those that cannot be imported are reported on stderr. Default: all.
    """

    def kind(name: str) -> str:
        try:
            method = find(name)
        except ModelError:  # torch is missing, which every method needs
            raise
        except SpecvizError as error:
            print(f"specviz: {error}", file=sys.stderr)
            return ""
        return "stream" if method.streams else "canvas" if method.canvas else "prompt"

    return sorted(name for name in _points() if writes is None or kind(name) == writes)


def make(name: str | type[Method], **parameters: Any) -> Method:
    """Create a method to pass to several runs; one with a memory stays warm between them.

    Examples
    --------
    >>> method = specviz.method("unispec", draft_size=16)
    >>> specviz.generate(model, first, method); specviz.generate(model, second, method)  # doctest: +SKIP
    >>> method.save("town.store", model)  # doctest: +SKIP

    Raises
    ------
    ParameterError
        If there is no such method or parameter, or a value is out of range.
    """
    return find(name)(**parameters)


def as_list(given: Any) -> list[Any]:
    """Methods as a list; a single name, class, instance or function that makes one becomes a list of one."""
    if isinstance(given, str | Method) or callable(given):
        return [given]
    if not isinstance(given, Iterable):
        raise ParameterError(NO_METHOD.format(given))
    return list(given)


def name_of(given: str | type[Method]) -> str:
    """The name of a method; a class is also registered, so that `find` returns it by this name."""
    return given if isinstance(given, str) else find(given).name


def settings_of(
    given: str | Method | type[Method], parameters: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """A method's name and parameters; for an instance, those that were set and make a difference.

    Raises
    ------
    ParameterError
        If parameters are passed with an instance.
    """
    if not isinstance(given, Method):
        return name_of(given), dict(parameters)
    if parameters:
        raise ParameterError(f"the method already has its parameters; drop {', '.join(parameters)}")
    own = {name: value for name, value in given.values.items() if name in given.chosen}
    if isinstance(given, SizedMethod) and given.calibrated:
        own[given.size] = CALIBRATED
    kind = type(given)
    for p in kind.parameters:  # measurements made before name no defaults
        if own.get(p.name) == p.default and p.name not in kind.set_by_model:
            rest = {name: value for name, value in own.items() if name != p.name}
            with suppress(ParameterError):  # where the value that replaces the default is not legal
                own = rest if kind(**rest).values == kind(**own).values else own
    return name_of(kind), own


def factory(given: Given) -> Make:
    """A function that makes a fresh method from a name (``name:key=value,key=value``), class or instance."""
    if isinstance(given, Method):
        find(type(given))
        return given.again
    if isinstance(given, type):
        return find(given)
    if callable(given):
        return given
    if not isinstance(given, str):
        raise ParameterError(NO_METHOD.format(given))
    name, _, settings = given.partition(":")
    kind = find(name.strip())
    defaults = {p.name: p.default for p in kind.parameters}
    values: dict[str, bool | str | float] = {}
    for setting in filter(None, settings.split(",")):
        key, equals, word = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ParameterError(f"write {name}:name=value, not {given!r}")
        if key in values:
            raise ParameterError(f"{given!r} sets {key} twice: drop one of them")
        default = defaults.get(key, "")
        try:
            if isinstance(default, bool):
                values[key] = {"true": True, "1": True, "false": False, "0": False}[word.lower()]
            else:
                free = isinstance(default, str) or (key == getattr(kind, "size", "") and word == CALIBRATED)
                values[key] = word if free else float(word)
        except (KeyError, ValueError):
            raise ParameterError(f"{key} of {name} cannot be {word!r}") from None
    kind(**values)
    return partial(kind, **values)


def of_session(name: str) -> type[Method] | None:
    """The class passed under this name in this process; None if none was, or a package declares the name."""
    return None if name in _points() else _classes.get(name)


def find(name: str | type[Method]) -> type[Method]:
    """Find a method's class by name; a class is checked, registered and returned.

    Raises
    ------
    ParameterError
        If there is no such method (the message suggests similar names), or the class is not a `Method` or
        has the name of an installed one.
    ModelError
        If torch is not installed.
    SpecvizError
        If the package that declares it cannot be imported, or declares no `Method` of this name.
    """
    if isinstance(name, type):
        if not issubclass(name, Method):
            raise ParameterError(f"{name.__name__} is not a method: derive it from specviz.methods.Method")
        if name.name in _points() and find(name.name) is not name:
            raise ParameterError(
                f"the class {name.__name__} has the name of the installed method {name.name!r}: give it its "
                f"own "
                'name, such as name = "mine"'
            )
        _classes[name.name] = name
        return name
    if isinstance(name, Method):
        raise ParameterError(f"{name!r} is an instance: pass its class, and its parameters by name")
    if not isinstance(name, str):
        raise ParameterError(f"a method must be a name or a class, got {name!r:.80}")
    points = _points()
    if name not in points:
        if name in _classes:
            return _classes[name]
        nothing = "no method is installed: install specviz-lm (pip install -e . in a checkout)"
        raise ParameterError(f"unknown method {name!r}" + near(name, sorted(points), nothing))
    point = points[name]
    try:
        with loading():
            method = point.load()
    except ModelError:
        raise
    except Exception as error:  # isolate errors in third-party entry points
        raise SpecvizError(
            f"method {name!r} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise SpecvizError(f"method {name!r} ({point.value}) is not a specviz.methods.Method")
    if method.name != name:
        raise SpecvizError(
            f"method {name!r} ({point.value}) calls itself {method.name!r}: the names must agree"
        )
    return method
