"""Render a picture as plain text for a terminal."""

from __future__ import annotations

from specviz.errors import plural
from specviz.escape import spaced, visible
from specviz.view.lattices import rows
from specviz.view.picture import KINDS, Numbers, Picture


def head(picture: Picture, totals: Numbers = (), texts: int = 1, colour: bool = False) -> str:
    """A run's method, models and exactness, plus its totals if it has several texts."""
    names = " ← ".join(filter(None, (picture.model, picture.draft)))
    first = (
        f"{_paint(visible(picture.method), '1', colour)}  {visible(names)}  [{visible(picture.exactness)}]"
    )
    return first + (f"\nall {texts} texts:  {_line(totals)}" if texts > 1 else "")


def block(picture: Picture, colour: bool = False) -> str:
    """One text: its numbers, the text with marks, the first cycles and the share of time in each phase.

    Parameters
    ----------
    picture : Picture
    colour : bool
        Use ANSI colours; the marks are shown either way.

    Returns
    -------
    str
    """
    lines = [f"{picture.name}:  {_line(picture.numbers)}"]
    if picture.note:
        lines.append(visible(picture.note))
    body: list[str] = []
    for span in picture.spans:
        kind = KINDS[span.kind]
        bar = "|" if span.opens and not colour and span.kind != "plain" and body else ""
        word = span.text.lstrip(" ")
        space = " " if span.text == f" {word}" and word else ""
        shown = space + kind.mark + spaced(word if space else span.text)
        body.append(bar + _paint(shown.replace("\n", "⏎\n"), kind.code, colour))
    lines += ["", "".join(body), ""]
    if picture.counts:
        words = (
            _paint(f"{KINDS[k].mark}{KINDS[k].word}", KINDS[k].code, colour) + f" {count}"
            for k, count in picture.counts
        )
        lines.append("tokens: " + "  ".join(words))
    if picture.canvas is not None:
        lines += ["", *rows(picture.canvas, colour=colour), ""]
    elif picture.drafts:
        strip = " ".join(c.label for c in picture.cycles[:32])
        more = " …" if len(picture.cycles) > 32 else ""
        none = " (–: nothing sent)" if any(c.label == "–" for c in picture.cycles[:32]) else ""
        lines.append(f"accepted/sent by cycle{none}: {strip}{more}")
    if whole := sum(picture.phases.values()):
        many = len(picture.cycles)
        shares = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in picture.phases.items())
        lines.append(f"time: {whole * 1e3:.1f} ms in {plural(many, 'cycle')}: {shares}")
    return "\n".join(lines)


def _line(numbers: Numbers) -> str:
    return "  ".join(f"{name} {value}" for name, value, _ in numbers)


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code else text
