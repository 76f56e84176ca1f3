"""The front-end's texts: what the views share, in front of each one's own."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from specviz.view.flicker import styles

ADDED = ("canvas",)  # what the player gets besides, for traces that need it

# A comment's line, a line's indentation, a comment after code. The last has no quotation mark in it, so it
# is not a part of a string; and no template goes over a line's end (the tests see to it).
UNSENT = re.compile(r"""^\t*(?://.*)?|(?<=[;{},)\]]) // [^"'`\n]*$""", re.MULTILINE)

# A style sheet's comment, and a line's end where no two words would become one.
UNSTYLED = re.compile(r" ?/\*.*?\*/|(?<=[{};,])\n", re.DOTALL)


@cache
def text(name: str) -> str:
    """One file of the front-end as it is sent: without comments and indentation; a script keeps its lines."""
    whole = files("specviz.widgets").joinpath(name).read_text(encoding="utf8")
    return UNSENT.sub("", whole) if name.endswith(".js") else UNSTYLED.sub("", whole)


# What a view's own text is built on, beside `shared.js`.
PLAYER = ("save.js", "tree.js", "overview.js", "find.js")
BEFORE = {
    "player": PLAYER, "canvas": (*PLAYER, "player.js"), "explore": ("tokens.js",),
    "live_race": ("tokens.js",),
}  # fmt: skip

STYLED = ("player.js", "tokens.js")  # of those, what brings a style sheet


@cache
def script(name: str) -> str:
    """The ES module of a view (``player``, ``race`` ...), `shared.js` in front; ``canvas`` is a player's."""
    return "".join(map(text, ("shared.js", *BEFORE.get(name, ()), f"{name}.js")))


@cache
def style(name: str) -> str:
    """The style sheet of a view, `shared.css` in front; the ribbon's own is that of the still one."""
    still = styles() if name == "flicker" else ""
    under = "".join(
        text(f"{each.removesuffix('.js')}.css") for each in BEFORE.get(name, ()) if each in STYLED
    )
    return text("shared.css") + still + under + text(f"{name}.css")
