"""Escape text for a terminal, Markdown, CSV, an error or a page, with one function for each.

Names of devices, prompts, paths and results from others are untrusted. Every writer passes such text through
the function of its format; nothing else in the package escapes.
"""

from __future__ import annotations

import base64
import hashlib
import html as standard
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# Characters that would vanish, control a terminal, or reorder the text around them: controls, format
# characters, line separators, tags, lone surrogates. Joiners stay (emoji and Persian need them).
UNSEEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff\xa0]"
)
BLANKS = re.compile("^ +$| {2,}|(?<=\n) +| +(?=\n)")
# In Markdown: characters that begin code, a table's cell, emphasis, an image, or a link and its definition.
MARKS = re.compile(r"[\\`|*~]|(?<=!)\[|\](?=[(\[:])")
FORMULA = re.compile(r"[\s⇥]*[=+\-@|%]")  # text that a spreadsheet computes, also after blanks
STYLE = re.compile('<style(?: id="[^"]*")?>(.*?)</style>', re.DOTALL)
NUMBER = re.compile(r"[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?%?")


def written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, by Python's surrogateescape
        return f"⟨0x{code - 0xDC00:02X}⟩"
    return {9: "⇥", 0xA0: "⍽"}.get(code) or f"⟨U+{code:04X}⟩"


def visible(text: str) -> str:
    """Text for a terminal: every unseen character except line breaks and plain spaces is written out.

    A tab is ``⇥``, a no-break space ``⍽``, any other ``⟨U+202E⟩`` by its code point.
    """
    return UNSEEN.sub(written_out, text)


def spaced(text: str) -> str:
    """:func:`visible`, with spaces that would be lost (several, alone, at a line's edge) as ``␣``."""
    return BLANKS.sub(lambda match: "␣" * len(match[0]), visible(text))


def line(text: object) -> str:
    """:func:`visible` text in one line: line breaks become spaces."""
    return visible(" ".join(re.split(r"[\r\n]+", str(text))))


def html(text: object) -> str:
    """Text for a page, inside an element or an attribute."""
    return standard.escape(visible(str(text)))


def plotly(text: object) -> str:
    """Text for a plotly figure, which interprets tags but would show a quotation mark's entity literally."""
    return standard.escape(spaced(str(text)), quote=False)


def markdown(text: object) -> str:
    """Text for Markdown, in a line or a table's cell: it cannot open a tag, picture, link, code or cell."""
    safe = " ".join(line(text).split()).replace("&", "&amp;").replace("<", "&lt;")
    return MARKS.sub(r"\\\g<0>", safe)


def cell(value: object) -> object:
    """A cell of a CSV file: a text that a spreadsheet would compute gets a leading apostrophe."""
    if not isinstance(value, str):
        return value
    text = visible(value)
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def csv(frame: pd.DataFrame) -> str:
    """A table as CSV: one column per name, nothing rounded, every text passed through `cell`."""
    from pandas.api.types import is_numeric_dtype

    safe = {cell(name): v if is_numeric_dtype(v) else v.map(cell) for name, v in frame.items()}
    return frame.from_dict(safe).to_csv(index=False)


def script_sources(*scripts: str) -> str:
    """The ``script-src`` of a page's Content-Security-Policy: inline scripts, each allowed by its hash."""
    digests = (hashlib.sha256(script.encode()).digest() for script in dict.fromkeys(scripts))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def content_policy(page: str, *scripts: str, modules: bool = False) -> str:
    """An offline page's Content-Security-Policy: its own styles and scripts by their hashes, no requests.

    Parameters
    ----------
    page : str
        HTML with the page's style blocks. A style attribute is not allowed: it has no hash here.
    *scripts : str
        Contents of the page's inline scripts.
    modules : bool
        Whether one of them loads modules from blobs, which it makes from text in the page.

    Returns
    -------
    str
        The ``content`` attribute of a meta element.
    """
    styles = script_sources(*STYLE.findall(page)) or "'none'"
    run = " ".join(filter(None, (script_sources(*scripts), "blob:" if modules else ""))) or "'none'"
    return (
        f"default-src 'none'; script-src {run}; style-src {styles}; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
