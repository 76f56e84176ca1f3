"""The front-end's texts: what the views share, in front of each one's own."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


def names() -> list[str]:
    """The files of the front-end."""
    return sorted(f.name for f in files("specviz.widgets").iterdir() if f.name.endswith((".js", ".css")))


@cache
def text(name: str) -> str:
    """One file of the front-end."""
    return files("specviz.widgets").joinpath(name).read_text(encoding="utf8")


BEFORE = {"player": ("tree.js",)}  # what a view's own text is built on, beside `shared.js`


@cache
def script(name: str) -> str:
    """The ES module of a view (``player``, ``race`` ...), `shared.js` in front."""
    return "".join(map(text, ("shared.js", *BEFORE.get(name, ()), f"{name}.js")))


@cache
def style(name: str) -> str:
    """The style sheet of a view, `shared.css` in front."""
    return text("shared.css") + text(f"{name}.css")
