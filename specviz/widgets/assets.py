"""Assembles the front-end sources: the shared scripts and styles, followed by each view's own."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from specviz.view.flicker import styles

ADDED = ("canvas",)  # extra modules that the player loads only for traces that need them

# Matches a comment line, a line's indentation, or a comment after code. A comment after code may not contain
# quotation marks, so that strings are never cut; the tests ensure that no template literal spans lines.
UNSENT = re.compile(r"""^\t*(?://.*)?|(?<=[;{},)\]]) // [^"'`\n]*$""", re.MULTILINE)

# Matches a style sheet's comments, and line breaks whose removal does not merge two words.
UNSTYLED = re.compile(r" ?/\*.*?\*/|(?<=[{};,])\n", re.DOTALL)


@cache
def text(name: str) -> str:
    """Read one front-end file without comments and indentation; a script keeps its line breaks."""
    whole = files("specviz.widgets").joinpath(name).read_text(encoding="utf8")
    return UNSENT.sub("", whole) if name.endswith(".js") else UNSTYLED.sub("", whole)


# The scripts, in addition to `shared.js`, that go before a view's own.
PLAYER = ("save.js", "tree.js", "overview.js", "find.js")
BEFORE = {
    "player": PLAYER, "canvas": (*PLAYER, "player.js"), "explore": ("tokens.js",),
    "live_race": ("tokens.js",),
}  # fmt: skip

STYLED = ("player.js", "tokens.js")  # those of them that have a style sheet


@cache
def script(name: str) -> str:
    """ES module of a view (``player``, ``race`` ...), `shared.js` first; ``canvas`` extends ``player``."""
    return "".join(map(text, ("shared.js", *BEFORE.get(name, ()), f"{name}.js")))


@cache
def style(name: str) -> str:
    """The style sheet of a view, `shared.css` first; ``flicker`` also gets the static view's styles."""
    still = styles() if name == "flicker" else ""
    under = "".join(
        text(f"{each.removesuffix('.js')}.css") for each in BEFORE.get(name, ()) if each in STYLED
    )
    return text("shared.css") + still + under + text(f"{name}.css")
