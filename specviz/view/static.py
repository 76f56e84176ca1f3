"""A picture as self-contained static HTML: no script, no network, one style block.

Every text that came from outside (tokens, prompts, names) passes through :func:`html.escape`; nothing else
is written into the page but numbers and our own words.
"""

from __future__ import annotations

import contextlib
import os
from html import escape
from importlib.resources import files
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import TraceError
from specviz.view.picture import KINDS, PHASES, STATUS_MARKS, Picture, Span, pictures, visible

if TYPE_CHECKING:
    import pandas as pd

    from specviz.trace import Trace

MOST_SPANS = 1200  # beyond this the static text stops and says so; the trace itself holds everything
MOST_CYCLES = 240
PHASE_HUES = {"draft": "#56b4e9", "forward": "#0072b2", "verify": "#e69f00", "commit": "#999999"}


def style() -> str:
    """The style block's text."""
    return files("specviz.view").joinpath("style.css").read_text(encoding="utf8")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if isfinite(seconds) else "not recorded"


def _shown(text: str) -> str:
    """A token's text with line breaks and control characters visible, escaped."""
    return escape(visible(text)).replace("\n", '<i class="nl">⏎</i>\n')


def _title(span: Span) -> str:
    kind = KINDS[span.kind]
    p = f", target probability {span.p:.3f}" if isfinite(span.p) else ""
    ids = " ".join(map(str, span.tokens))
    return f"{kind.word}: {kind.meaning}; cycle {span.cycle}, position {span.position}, id {ids}{p}"


def text_lane(picture: Picture) -> str:
    """The text, each token coloured and marked by how it came about; rejected drafts can be shown."""
    lost = {c.number: c.lost for c in picture.cycles if c.lost}
    out = []
    for span in picture.spans[:MOST_SPANS]:
        kind = KINDS[span.kind]
        if span.kind not in ("draft", "plain", "bonus") and span.cycle in lost:
            out.append(f'<del title="drafted and dropped">{_shown(lost.pop(span.cycle))}</del>')
        mark = f"<sup>{kind.mark}</sup>" if kind.mark else ""
        edge = " e" if span.opens else ""
        title = escape(_title(span), quote=True)
        out.append(f'<span class="t {span.kind}{edge}" title="{title}">{mark}{_shown(span.text)}</span>')
    if len(picture.spans) > MOST_SPANS:
        out.append(f'<em class="note"> … {len(picture.spans) - MOST_SPANS} more tokens are in the trace</em>')
    return f'<div class="text" dir="auto">{"".join(out)}</div>'


def legend(picture: Picture) -> str:
    """The kinds that occur, in words, with how many tokens each has."""
    counts: dict[str, int] = {}
    for span in picture.spans:
        counts[span.kind] = counts.get(span.kind, 0) + len(span.tokens)
    items = []
    for name, kind in KINDS.items():
        if name in counts:
            mark = f"<sup>{kind.mark}</sup>" if kind.mark else ""
            title = escape(kind.meaning, quote=True)
            items.append(f'<span class="t {name}" title="{title}">{mark}{kind.word}</span> {counts[name]}')
    show = ""
    if any(c.lost for c in picture.cycles):
        show = '<label class="show"><input type="checkbox" class="sv-lost"> show dropped drafts</label>'
    return f'<div class="legend">{" ".join(f"<span>{i}</span>" for i in items)}{show}</div>'


def cycle_lane(picture: Picture, width: int = 960, height: int = 54) -> str:
    """Cycles along time: each a bar divided by phase, accepted over drafted above where there is room."""
    cycles = picture.cycles[:MOST_CYCLES]
    end = max((c.start + sum(c.times) for c in cycles), default=0.0)
    if not cycles or end <= 0:
        return '<p class="note">No cycle times were recorded.</p>'
    begin = cycles[0].start
    scale = width / (end - begin)
    bars = []
    for c in cycles:
        left = (c.start - begin) * scale
        label = f"cycle {c.number}: {c.emitted} out, {c.accepted} of {c.drafted} accepted; " + ", ".join(
            f"{name} {_ms(t)}" for name, t in zip(PHASES, c.times)
        )
        parts, x = [], left
        for name, seconds in zip(PHASES, c.times):
            w = seconds * scale
            if w > 0.05:
                parts.append(
                    f'<rect x="{x:.1f}" y="16" width="{w:.1f}" height="24" fill="{PHASE_HUES[name]}"/>'
                )
            x += w
        count = f"{c.accepted}/{c.drafted}" if c.drafted else str(c.emitted)
        if x - left > 6 * len(count):
            parts.append(f'<text x="{(left + x) / 2:.1f}" y="12" text-anchor="middle">{count}</text>')
        bars.append(f'<g><title>{escape(label)}</title>{"".join(parts)}<path d="M{left:.1f} 14v30"/></g>')
    ticks = (
        f'<text x="0" y="{height - 1}">0</text>'
        f'<text x="{width}" y="{height - 1}" text-anchor="end">{_ms(end - begin)}</text>'
    )
    keys = " ".join(f'<span><i style="background:{PHASE_HUES[n]}"></i>{n}</span>' for n in PHASES)
    more = (
        f" The first {MOST_CYCLES} of {len(picture.cycles)} cycles."
        if len(picture.cycles) > MOST_CYCLES
        else ""
    )
    said = f"Cycles to scale of time; numbers are accepted/drafted.{more}"
    return (
        f'<figure><figcaption>{said} {keys}</figcaption><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{said}">{"".join(bars)}{ticks}</svg></figure>'
    )


def confidence_lane(picture: Picture, width: int = 960, height: int = 84) -> str:
    """What the drafter believed of each judged token, by output position, and what became of it."""
    beliefs = [b for b in picture.beliefs if isfinite(b.confidence)]
    if not beliefs:
        return '<p class="note">No confidence lane: this method drafts without one.</p>'
    beliefs = beliefs[: 4 * MOST_CYCLES]
    last = max(b.position for b in beliefs) + 1
    top, low = 6, height - 14
    dots = []
    for b in beliefs:
        x, y = (b.position + 0.5) * width / last, low - b.confidence * (low - top)
        status = b.status if b.status in STATUS_MARKS else "unjudged"
        if status == "accepted":
            shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="ok"/>'
        elif status == "rejected":
            shape = f'<path d="M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6" class="no"/>'
        else:
            shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" class="un"/>'
        dots.append(
            f"<g><title>position {b.position}: confidence {b.confidence:.3f}, {status}</title>{shape}</g>"
        )
    line = ""
    if picture.threshold is not None:
        y = low - min(picture.threshold, 1.0) * (low - top)
        title = f"fallback threshold {picture.threshold:g}"
        line = f'<path d="M0 {y:.1f}H{width}" class="th"><title>{title}</title></path>'
    axis = (
        f'<path d="M0 {low}H{width}M0 {top}H{width}" class="ax"/><text x="0" y="{height - 2}">0</text>'
        f'<text x="{width}" y="{height - 2}" text-anchor="end">output position {last}</text>'
    )
    said = "The drafter's confidence in each draft token (top is 1): ● accepted, × rejected, dot not judged."
    said += " Dashed: the fallback threshold." if line else ""
    return (
        f'<figure><figcaption>{said}</figcaption><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(said, quote=True)}">{axis}{line}{"".join(dots)}</svg></figure>'
    )


def headline(picture: Picture) -> str:
    """Method, models, exactness and the metrics, each with its meaning on hover."""
    badge = {"exact": "yes", "exact up to ties": "ties", "lossy": "lossy"}.get(picture.exactness, "lossy")
    models = escape(picture.model) + (f" ← {escape(picture.draft)}" if picture.draft else "")
    chips = "".join(
        f'<span class="chip" title="{escape(why, quote=True)}"><b>{escape(value)}</b> {escape(name)}</span>'
        for name, value, why in picture.headline
    )
    return (
        f'<div class="head"><strong>{escape(picture.method)}</strong> <span class="models">{models}</span> '
        f'<span class="badge {badge}" title="Whether the text is the target\'s own">'
        f"{escape(picture.exactness)}</span></div>"
        f'<div class="chips">{chips}</div>'
    )


def section(picture: Picture) -> str:
    """One prompt's picture, without the style block."""
    which = f"Prompt {picture.index + 1} of {picture.of}" if picture.of > 1 else "Prompt"
    text = f'<pre dir="auto">{escape(visible(picture.prompt))}</pre>'
    prompt = f'<details class="prompt"><summary>{which}</summary>{text}</details>'
    if not picture.prompt:
        prompt = f'<p class="note">{which}: not in the trace.</p>'
    note = f'<p class="note">{escape(picture.note)}</p>' if picture.note else ""
    return (
        prompt + note + text_lane(picture) + legend(picture) + cycle_lane(picture) + confidence_lane(picture)
    )


def block(pictures: list[Picture]) -> str:
    """The pictures of one run as a fragment for a notebook's output."""
    body = "<hr>".join(section(p) for p in pictures)
    rest = pictures[0].of - len(pictures)
    more = f'<p class="note">{rest} more prompts: trace.select(prompt=…) shows each.</p>' if rest > 0 else ""
    return f'<div class="specviz"><style>{style()}</style>{headline(pictures[0])}{body}{more}</div>'


def table(frame: pd.DataFrame) -> str:
    """A data frame as a plain HTML table, every cell escaped."""
    head = "".join(f"<th>{escape(str(c))}</th>" for c in frame.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape('' if v is None or v != v else str(v))}</td>" for v in row) + "</tr>"
        for row in frame.itertuples(index=False)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def document(title: str, parts: list[str]) -> str:
    """A whole offline page around fragments; its policy forbids scripts and every request."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<style>:root{color-scheme:light dark}"
        "body{margin:0 auto;max-width:1020px;padding:1em;background:Canvas;color:CanvasText}"
        f"{style()}</style>"
        f'</head><body><main class="specviz"><h1>{escape(title)}</h1>{"".join(parts)}</main></body></html>'
    )


def fragment(shown: Picture) -> str:
    """One run's headline and one prompt's picture, for a page that has the style already."""
    return f"<section>{headline(shown)}{section(shown)}</section>"


def write_text(path: Path, text: str, force: bool = False) -> Path:
    """Write a file whole or not at all.

    Raises
    ------
    TraceError
        If it exists (unless `force`), or the disk or folder refuses.
    """
    if path.exists() and not force:
        raise TraceError(f"{path} exists: choose another path, or overwrite it with --force (force=True)")
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf8")
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def write(trace: Trace, path: Path, force: bool = False, most: int = 20) -> Path:
    """Write a trace's page: each run's headline and its first `most` prompts."""
    parts = []
    for run in trace.split():
        shown = pictures(run, most)
        parts += [headline(shown[0]), *(f"<section>{section(p)}</section><hr>" for p in shown)]
        if shown[0].of > most:
            parts.append(f'<p class="note">{shown[0].of - most} more prompts are in the trace.</p>')
    return write_text(path, document("specviz trace", parts), force)
