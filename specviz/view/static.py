"""Render a picture as self-contained static HTML: no script, no network, one style block.

All external text (tokens, prompts, names) passes through :func:`specviz.escape.html`. The rest of the page is
numbers and specviz's own text.
"""

from __future__ import annotations

import re
from collections import deque
from importlib.resources import files
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import plural
from specviz.escape import content_policy, html, spaced
from specviz.files import write_text
from specviz.trace import Trace
from specviz.view.lattices import figure
from specviz.view.picture import (
    FATE_WORDS,
    FATES,
    KINDS,
    PHASES,
    Numbers,
    Picture,
    Span,
    badge,
    excerpt,
    headline,
    milliseconds,
    pictures,
    prompts,
)

if TYPE_CHECKING:
    import pandas as pd

MOST_SPANS = 1200  # the text stops after this many, and a note says so; the trace itself has them all
MOST_CYCLES = 240
MOST_RUNS = 8  # in a notebook's output
DRAWN = 960  # approximate width of a lane in pixels; labels that do not fit are left out
# Marks on the bars of a class, as path data on a tile of 6 by 6 pixels: neighbours differ without colour.
TILES = {
    "p-draft": "M0 6L6 0", "p-verify": "M2 3h2", "p-commit": "M0 0L6 6M0 6L6 0", "p-rest": "M0 0L6 6",
    "d-draft": "M0 6L6 0", "d-verdict": "M0 0L6 6M0 6L6 0", "d-text": "M2 3h2",
}  # fmt: skip
# Characters that look like the confidence lane's marks, for its caption.
DOTS = {
    "accepted": "●",
    "rejected": "×",
    "unjudged": "•",
    "unreviewed": "?",
    "cut": "│",
    "unsent": "○",
    "below_budget": "△",
}
WORD = re.compile(r"[^\w]*(?!nan\b|inf\b)[^\W\d_]{2}")  # start of a cell that contains words
SIGNS = re.compile("⟨(?:0x[0-9A-F]{2}|U\\+[0-9A-F]{4,6})⟩|[⇥⍽␣]")


def style() -> str:
    """The CSS of the style block."""
    return files("specviz.view").joinpath("style.css").read_text(encoding="utf8")


def shown_token(text: str) -> str:
    """Escape a token's text; show line breaks, spaces that would be lost and invisible characters."""
    signed = SIGNS.sub(lambda match: f'<i class="sign">{match[0]}</i>', html(spaced(text)))
    return signed.replace("\n", '<i class="sign">⏎</i>\n')


def _title(span: Span) -> str:
    kind = KINDS[span.kind]
    p = f", target probability {span.p:.3f}" if isfinite(span.p) else ""
    ids = " ".join(map(str, span.tokens))
    return f"{kind.word}: {kind.meaning}; cycle {span.cycle}, position {span.position}, id {ids}{p}"


def text_lane(shown: Picture) -> str:
    """Render the text with each token coloured and marked by its origin; dropped drafts can be shown."""
    lost = deque(c for c in shown.cycles if c.lost)
    out: list[str] = []

    def drop(last: float) -> None:
        while lost and lost[0].number <= last:
            out.append(f'<del title="sent and dropped">{shown_token(lost.popleft().lost)}</del>')

    for span in shown.spans[:MOST_SPANS]:
        kind = KINDS[span.kind]
        # dropped tokens come before the token that the target wrote in their place
        drop(span.cycle - 1 if span.kind in ("draft", "unreviewed") else span.cycle)
        mark = f"<sup>{kind.mark}</sup>" if kind.mark else ""
        edge = " e" if span.opens else ""
        title = html(_title(span))
        word = span.text.lstrip(" ")  # the mark is above the letters, not above the space before them
        space = span.text[: len(span.text) - len(word)] if word else ""
        # wrapped, so that a mark moves to the next line with its word
        body = (
            f"{mark}{shown_token(span.text)}"
            if len(space) != 1
            else f" <span>{mark}{shown_token(word)}</span>"
        )
        out.append(f'<span class="t {span.kind}{edge}" title="{title}">{body}</span>')
    if len(shown.spans) <= MOST_SPANS:
        drop(inf)
    else:
        out.append(f'<em class="note"> … {len(shown.spans) - MOST_SPANS} more tokens are in the trace</em>')
    return f'<div class="text" dir="auto">{"".join(out)}</div>'


def legend(shown: Picture) -> str:
    """Render the legend: the kinds that occur, each with its number of tokens."""
    items = []
    for name, count in shown.counts:
        kind = KINDS[name]
        mark = f"<b>{kind.mark}</b> " if kind.mark else ""
        title = html(kind.meaning)
        items.append(f'<span><span class="t {name}" title="{title}">{mark}{kind.word}</span> {count}</span>')
    if not items:
        return '<p class="note">No token was written.</p>'
    show = ""
    if any(c.lost for c in shown.cycles):
        show = '<label class="show"><input type="checkbox" class="sv-lost"> show dropped drafts</label>'
    return f'<div class="legend"><span>Tokens:</span>{"".join(items)}{show}</div>'


def tiles(prefix: str) -> str:
    """The SVG patterns of `TILES` with this prefix, to which the style refers."""
    return "".join(
        f'<pattern id="sv-{name}" class="{name}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6"/><path d="{mark}"/></pattern>'
        for name, mark in TILES.items()
        if name.startswith(prefix)
    )


def _figure(caption: str, keys: str, height: int, drawing: str) -> str:
    label = html(re.sub("<[^>]*>", "", caption))
    return (
        f"<figure><figcaption>{caption}{keys}</figcaption>"
        f'<svg width="100%" height="{height}" role="img" aria-label="{label}">{drawing}</svg></figure>'
    )


def cycle_lane(shown: Picture) -> str:
    """Render cycles along time: each is a bar divided by phase, labelled accepted/sent if there is room."""
    cycles = shown.cycles[:MOST_CYCLES]
    if not cycles:
        return '<p class="note">No cycle was recorded.</p>'
    begin = cycles[0].start
    end = max(c.start + sum(c.times) for c in cycles)
    if not end > begin:
        return '<p class="note">No cycle times were recorded.</p>'
    scale = 100 / (end - begin)
    bars = []
    for c in cycles:
        left = x = (c.start - begin) * scale
        phases = ", ".join(f"{name} {milliseconds(t)}" for name, t in zip(PHASES, c.times) if t > 0)
        counts = f"{c.drafted} drafted, {c.sent} sent, {c.judged} judged, {c.accepted} accepted, "
        label = f"cycle {c.number}: {counts if shown.drafts else ''}{c.emitted} emitted; {phases}"
        parts = []
        for name, seconds in zip(PHASES, c.times):
            w = seconds * scale
            if w > 0.005:
                parts.append(f'<rect x="{x:.2f}%" y="16" width="{w:.2f}%" height="24" class="p-{name}"/>')
            x += w
        room = (x - left) * DRAWN / 100 / (7 * (len(c.label) + 1))  # a gap between labels
        if shown.drafts and room > 1:
            narrow = ' class="wide"' if room < 2 else ""  # too long for a narrow page
            parts.append(
                f'<text x="{(left + x) / 2:.2f}%" y="11" text-anchor="middle"{narrow}>{c.label}</text>'
            )
        edge = f'<line x1="{left:.2f}%" x2="{left:.2f}%" y1="14" y2="43"/>'
        bars.append(f"<g><title>{html(label)}</title>{''.join(parts)}{edge}</g>")
    pause = sum(c.pause for c in cycles[:-1])
    base = '<line x1="0" x2="100%" y1="28" y2="28" class="ax"/>' if pause * scale > 0.3 else ""
    last = milliseconds(end - begin)
    ticks = f'<text x="0" y="54">0</text><text x="100%" y="54" text-anchor="end">{last}</text>'
    whole = sum(shown.phases.values())
    keys = "".join(
        f'<span><i class="p-{name}"></i>{name} {milliseconds(t)} ({t / whole:.0%})</span>'
        for name, t in shown.phases.items()
    )
    if base:
        between = f"— between cycles {milliseconds(pause)}"
        keys += f'<span title="recording and other work; not part of any cycle">{between}</span>'
    caption = f"{len(shown.cycles)} cycles along time, {milliseconds(whole)} in all"
    if len(shown.cycles) > MOST_CYCLES:
        caption += f" (the first {MOST_CYCLES} are drawn)"
    if shown.prefill and sum(shown.prefill.times) > 0:
        caption += f", after a prefill of {milliseconds(sum(shown.prefill.times))}"
    caption += "." + (" Above each, where there is room: draft tokens accepted/sent." if shown.drafts else "")
    caption += " –: nothing was sent." if shown.drafts and not all(c.sent for c in cycles) else ""
    return _figure(caption, keys, 57, f"{tiles('p-')}{base}{''.join(bars)}{ticks}")


def confidence_lane(shown: Picture) -> str:
    """Render the drafter's confidence in each draft token by output position, with the token's fate."""
    if shown.why_no_beliefs:
        return f'<p class="note">{shown.why_no_beliefs}</p>'
    beliefs = [b for b in shown.beliefs if isfinite(b.value)]
    drawn = beliefs[: 4 * MOST_CYCLES]
    drawn.sort(key=lambda b: (b.status == "accepted", b.status == "rejected"))  # the important ones on top
    last = max(b.position for b in drawn) + 1
    top, low = 6, 70
    dots = []
    for b in drawn:
        x, y = f"{(b.position + 0.5) * 100 / last:.2f}%", low - b.value * (low - top)
        if b.status == "cut":
            shape = f'<line x1="{x}" x2="{x}" y1="{y - 4:.1f}" y2="{y + 4:.1f}"/>'
        elif b.status in ("rejected", "below_budget", "unreviewed"):
            kind = "no" if b.status == "rejected" else "sym"
            shape = f'<text x="{x}" y="{y:.1f}" class="{kind}">{DOTS[b.status]}</text>'
        else:
            size, kind = {"accepted": (3.5, "ok"), "unsent": (3, "unsent")}.get(b.status, (2, b.status))
            shape = f'<circle cx="{x}" cy="{y:.1f}" r="{size}" class="{kind}"/>'
        caption = f"position {b.position}: {shown.belief} {b.value:.3f}, {FATE_WORDS[b.status]}"
        more = f"; {html(b.more)}" if b.more else ""
        dots.append(f"<g><title>{caption}{more}</title>{shape}</g>")
    line = ""
    if shown.threshold is not None:
        y = low - min(shown.threshold, 1.0) * (low - top)
        title = f"{shown.threshold_name} {shown.threshold:g}"
        line = f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}" class="th"><title>{title}</title></line>'
    axis = (
        f'<line x1="0" x2="100%" y1="{low}" y2="{low}" class="ax"/>'
        f'<line x1="0" x2="100%" y1="{top}" y2="{top}" class="ax"/>'
        '<text x="0" y="82">position 0</text>'
        f'<text x="100%" y="82" text-anchor="end">position {last - 1}</text>'
    )
    used = {b.status for b in drawn}
    keys = "".join(f"<span>{DOTS[n]} {what}</span>" for n, what in FATES.items() if n in used)
    if line:
        keys += f"<span>╌ {shown.threshold_name} {shown.threshold:g}</span>"
    caption = f"{shown.sentence}, from 0 to 1, by position in the output."
    if len(beliefs) > len(drawn):
        caption += f" The first {len(drawn)} of {len(beliefs)}."
    return _figure(caption, keys, 85, f"{axis}{line}{''.join(dots)}")


def chips(numbers: Numbers, whose: str = "") -> str:
    """Render metrics, each with its meaning on hover, preceded by their owner's label."""
    owner = f'<span class="whose">{html(whose)}</span>' if whose else ""
    each = "".join(
        f'<span class="chip" title="{html(why)}"><b>{html(value)}</b> {html(n)}</span>'
        for n, value, why in numbers
    )
    return f'<div class="chips">{owner}{each}</div>'


def head(shown: Picture) -> str:
    """Render a run's method, models and exactness."""
    models = html(shown.model)
    models += f" ← {html(shown.draft)}" if shown.draft else ""
    return (
        f'<div class="head"><strong>{html(shown.method)}</strong> '
        f'<span class="models">{models}</span> '
        f'<span class="badge {badge(shown.exactness)}" title="Whether the text is the target\'s own">'
        f"{html(shown.exactness)}</span></div>"
    )


def section(shown: Picture, alone: bool = False) -> str:
    """Render one text's picture, without the style block and the method's name.

    Parameters
    ----------
    shown : Picture
    alone : bool
        Whether it is the only text of its run, so that its numbers need no label.
    """
    kind = f" ({html(shown.kind)})" if shown.kind else ""
    name = shown.name.capitalize()
    prompt = f'<p class="note">{name}{kind}. The prompt is not in the trace.</p>'
    if shown.prompt:
        summary = f"{name}{kind}: <q>{html(excerpt(shown.prompt))}</q>"
        whole = f'<pre dir="auto">{html(shown.prompt)}</pre>'
        prompt = f'<details class="prompt"><summary>{summary}</summary>{whole}</details>'
    note = f'<p class="note">{html(shown.note)}</p>' if shown.note else ""
    own = chips(shown.numbers, "" if alone else "This text:")
    lattice = ""
    if shown.canvas is not None:
        lattice = figure(shown.canvas)
    lanes = (text_lane(shown), legend(shown), lattice, cycle_lane(shown), confidence_lane(shown))
    return prompt + note + own + "".join(lanes)


def more_texts(count: int) -> str:
    """Message that this many texts of a run are not shown."""
    return f"{plural(count, 'more text')}: trace.select(prompt=…) shows each."


def _run(trace: Trace, shown: list[Picture], anchor: str = "") -> str:
    """Render one run: its name, its totals if it has several texts, and the given pictures."""
    count = len(prompts(trace))
    totals = chips(headline(trace), f"All {count} texts:") if count > 1 else ""
    parts = []
    for one in shown:
        at = f' id="{anchor}-{one.index + 1}"' if anchor else ""
        parts.append(f"<section{at}>{section(one, count == 1)}</section>")
    if count > len(shown):
        parts.append(f'<p class="note">{more_texts(count - len(shown))}</p>')
    at = f' id="{anchor}"' if anchor else ""
    return f'<div class="run"{at}>{head(shown[0])}{totals}{"".join(parts)}</div>'


def more_runs(count: int) -> list[str]:
    """Message (in a list) that counts the runs not shown out of `count`; empty if all are shown."""
    rest = count - MOST_RUNS
    return [f"{rest} more runs: trace.select(run=…) shows each."] if rest > 0 else []


def block(trace: Trace, most: int) -> str:
    """Render a trace as a notebook fragment: up to `most` texts of each of its first runs."""
    runs = trace.split()
    more = "".join(f'<p class="note">{line}</p>' for line in more_runs(len(runs)))
    body = "".join(_run(run, pictures(run, most)) for run in runs[:MOST_RUNS])
    return f'<div class="specviz"><style>{style()}</style>{body}{more}</div>'


def table(frame: pd.DataFrame) -> str:
    """Render a data frame as a plain HTML table with escaped cells and left-aligned text columns."""
    cells = [["" if v is None or v != v else str(v) for v in row] for row in frame.itertuples(index=False)]
    sides = [
        ' class="words"' if any(WORD.match(row[i]) for row in cells) else "" for i in range(frame.shape[1])
    ]
    names = "".join(f"<th{side}>{html(c)}</th>" for side, c in zip(sides, frame.columns))
    rows = "".join(
        "<tr>" + "".join(f"<td{side}>{html(v)}</td>" for side, v in zip(sides, row)) + "</tr>"
        for row in cells
    )
    # a wide table scrolls, also by keyboard
    words = html("Table of " + ", ".join(list(filter(None, map(str, frame.columns)))[:3]))
    place = f'<div class="table" tabindex="0" role="group" aria-label="{words}">'
    return f"{place}<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table></div>"


class Page:
    """Base class of views that display themselves in a notebook and can be saved as one offline page."""

    def _page(self) -> str:
        """The complete page."""
        raise NotImplementedError

    def to_html(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the view as one offline page; overwrite an existing file only with `force`.

        Raises
        ------
        TraceError
            If the file exists (unless `force`) or cannot be written.
        """
        return write_text(Path(path), self._page(), force)


def document(title: str, parts: list[str]) -> str:
    """Build a complete offline page around fragments; its policy forbids scripts and all requests."""
    head, body = f"<style>{style()}</style>", "".join(parts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(head + body)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'{head}</head><body class="specviz-page">'
        f'<main class="specviz"><h1>{html(title)}</h1>{body}</main></body></html>'
    )


def fragment(shown: Picture, anchor: str = "") -> str:
    """Render one method's name and one text's picture, for a page that already has the style."""
    at = f' id="{anchor}"' if anchor else ""
    return f'<section class="run"{at}>{head(shown)}{section(shown)}</section>'
