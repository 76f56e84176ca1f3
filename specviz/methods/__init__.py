"""The methods: one file a paper or a family, found by entry point (group ``specviz.methods``).

Another package adds a method by naming its class in its own entry points:

    [project.entry-points."specviz.methods"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

from ..errors import ModelError, ParameterError, SpecvizError, loading
from .base import Method, Parameter, Session, Unsent, Verdict, near

__all__ = ["GROUP", "Method", "Parameter", "Session", "Unsent", "Verdict", "find", "make", "names", "near"]

GROUP = "specviz.methods"


@cache
def _points() -> dict[str, metadata.EntryPoint]:
    """Entry points by name; a name of ours is never replaced by another package's."""
    points: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=GROUP):
        if point.name not in points or point.value.startswith("specviz."):
            points[point.name] = point
    return points


def names(writes: str | None = None) -> list[str]:
    """Names of all methods that `specviz.generate` takes; importing none of them.

    Parameters
    ----------
    writes : {"prompt", "stream", "canvas"}, optional
        Only those that continue prompts, that decode sources which arrive in updates, or that write the
        canvases of a diffusion model.
    """

    def kind(method: type[Method]) -> str:
        return "stream" if method.streams else "canvas" if method.canvas else "prompt"

    return sorted(name for name in _points() if writes is None or kind(find(name)) == writes)


def make(name: str, **parameters: Any) -> Method:
    """A method with its parameters, to hand to several runs: one that remembers then stays warm between them.

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


def find(name: str) -> type[Method]:
    """The method's class.

    Raises
    ------
    ParameterError
        If there is no such method; near names are offered.
    ModelError
        If torch is not installed.
    SpecvizError
        If the package that declares it cannot be imported, or declares no `Method`.
    """
    points = _points()
    if name not in points:
        nothing = "no method is installed: install specviz-lm (pip install -e . in a checkout)"
        raise ParameterError(f"unknown method {name!r}" + near(name, points, nothing))
    point = points[name]
    try:
        with loading():
            method = point.load()
    except ModelError:
        raise
    except Exception as error:  # another package's fault must not look like ours, nor break the rest
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
