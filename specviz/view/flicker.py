"""Draw the flicker ribbon of a stream: one row per update, words across, runs side by side.

It renders as HTML without a script, as matplotlib axes or as plain text. All external text is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import groupby
from math import isfinite
from typing import TYPE_CHECKING

from specviz.escape import html, spaced, visible
from specviz.trace import Trace
from specviz.view import updates
from specviz.view.axes import Look, axes, fonts, new_figure, png, whole_numbers
from specviz.view.picture import badge, prompts
from specviz.view.static import MOST_RUNS, Page, chips, document, more_runs, style
from specviz.view.updates import (
    FATES,
    REUSES,
    Ribbon,
    Row,
    Run,
    alike,
    distinct,
    ribbon,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIRST, LAST = 12, 3  # rows of a long stream that are not folded
MOST_ROWS = 400  # later rows are left out and a note says so; the trace itself has them all
LONG = 160  # kept words longer than this many characters lose their beginning
TAIL = 48  # characters of them that remain
SIDE_BY_SIDE = 4  # maximum number of runs side by side in a notebook
MAP = 150  # maximum height of the map of all updates in pixels
HUES = {"kept": "#0072b2", "rewritten": "#d55e00", "new": "#009e73", "hidden": "#8a8a8a", "erased": "#222222"}


def styles() -> str:
    """The ribbon's CSS, which comes after the style sheet of a page or widget."""
    return files("specviz.view").joinpath("ribbon.css").read_text(encoding="utf8")


# ---------------------------------------------------------------- HTML


def _text(text: str) -> str:
    return html(spaced(text)).replace("\n", "⏎\n")


def _run(run: Run, whole: bool) -> str:
    """Render a run of words; a long run of kept words has its beginning replaced by a character count."""
    text, lead = run.text, ""
    if run.fate == "kept" and not whole and len(text) > LONG:
        cut = text.find(" ", len(text) - TAIL)
        text = text[cut if cut >= 0 else len(text) - TAIL :]
        lead = f'<i class="more">… {len(run.text) - len(text)} characters kept </i>'
    marks = {"draft": "u", "unreviewed": "unseen-draft"}.get(run.reuse, "")
    if run.fate == "kept":
        inner = _text(text)
        return lead + (f'<span class="{marks}">{inner}</span>' if marks else inner)
    tag = "i" if run.fate == "hidden" else "b"
    gap = text[: len(text) - len(text.lstrip(" "))]
    names = f"{run.fate} {marks}".strip()
    return f'{gap}<{tag} class="{names}">{_text(text[len(gap) :])}</{tag}>'


def _words(row: Row, whole: bool) -> str:
    """Render the display with the erased words at the first change, followed by the hidden words."""
    parts = [_run(run, whole) for run in row.runs]
    if row.erased:
        at = sum(run.fate == "kept" for run in row.runs)
        gone = "".join(row.erased)
        gap = " " if gone[:1] == " " else ""
        parts.insert(at, f"{gap}<s>{_text(gone.strip(' '))}</s>")
    return "".join(parts)


def marks(status: str, text: str) -> tuple[str, str]:
    """CSS class and text that mark a draft token of this status."""
    if status == "rejected":
        return "no", f"×{text}"
    return {"accepted": "u", "unreviewed": "unseen-draft"}.get(status, "idle"), text


def _drafted(row: Row) -> str:
    parts = [marks(status, _text(text)) for text, status in row.draft]
    spans = "".join(f'<span class="{kind}">{text}</span>' for kind, text in parts)
    return f'<p class="draft-line">draft: {spans or "none"}</p>'


def _cell(one: Ribbon, row: Row, slowest: float, cache: bool, whole: bool) -> str:
    language = f' lang="{one.language}"' if one.language else ""
    bar = ""
    if slowest > 0 and row.seconds == row.seconds:
        read, wrote = (100 * max(0.0, t) / slowest for t in (row.prefill, row.seconds))
        bars = ((0.0, read), (read, wrote))
        rects = "".join(f'<rect x="{x:.1f}%" width="{wide:.1f}%" height="100%"/>' for x, wide in bars)
        bar = f'<svg class="took" aria-hidden="true">{rects}</svg>'
    return (
        f'<td><div class="out" dir="auto"{language}>{_words(row, whole)}</div>{_drafted(row)}'
        f'<p class="said">{" · ".join(row.notes(cache))}</p>{bar}</td>'
    )


def _source(row: Row, cache: bool) -> str:
    common, gone, new = row.source
    arrival = f" <small>{row.arrival:g} s</small>" if isfinite(row.arrival) else ""
    lead = '<i class="more">… </i>' if common else ""
    lost = f"<s>{_text(gone.strip())}</s> " if gone.strip() else ""
    change = (
        f"<b>{_text(new.strip())}</b>" if new.strip() else "" if lost else '<i class="more">no change</i>'
    )
    kept = f'<p class="said">{row.cache}</p>' if cache and row.cache else ""
    return (
        f'<th scope="row"><span class="at">{row.update}{arrival}</span>'
        f'<span dir="auto">{lead}{lost}{change}</span>{kept}</th>'
    )


def overview(one: Ribbon, width: int) -> str:
    """Map all updates of a run, one thin row each; a word's fate is readable without colour."""
    rows = one.rows[:MOST_ROWS]
    tall = max(2.0, min(12.0, MAP / max(1, len(rows))))
    drawn = []
    for i, row in enumerate(rows):
        y, x = (i + 0.5) * tall, 0
        for fate in ("kept", "rewritten", "new", "hidden"):
            n = row.count(fate)
            if not n:
                continue
            a, b = 100 * x / width, 100 * (x + n) / width
            if fate == "hidden":
                place = f'x="{a:.2f}%" width="{b - a:.2f}%" y="{y - 0.35 * tall:.1f}"'
                drawn.append(f'<rect class="m-hidden" {place} height="{0.7 * tall:.1f}"/>')
            else:
                thick = tall * (0.3 if fate == "kept" else 0.8)
                place = f'x1="{a:.2f}%" x2="{b:.2f}%" y1="{y:.1f}" y2="{y:.1f}"'
                drawn.append(f'<line class="m-{fate}" {place} stroke-width="{thick:.1f}"/>')
            x += n
        if row.erased:
            a, b = 100 * row.kept / width, 100 * (row.kept + len(row.erased)) / width
            drawn.append(f'<line class="m-erased" x1="{a:.2f}%" x2="{b:.2f}%" y1="{y:.1f}" y2="{y:.1f}"/>')
    total = {fate: sum(row.count(fate) for row in rows) for fate in FATES}
    totals = ", ".join(f"{n:,} {fate}" for fate, n in total.items() if n)
    first = f"the first {len(rows)} of " if len(rows) < len(one.rows) else ""
    label = html(f"map of {first}{len(one.rows)} updates, words over all of them: {totals}")
    return (
        f'<svg class="map" width="100%" height="{len(rows) * tall:.0f}" role="img" aria-label="{label}">'
        f"<title>{label}</title>{''.join(drawn)}</svg>"
    )


def keys(ribbons: Sequence[Ribbon]) -> str:
    """Legend of the marks that occur."""
    rows = [row for one in ribbons for row in one.rows]
    samples = {
        "kept": "words",
        "rewritten": '<b class="rewritten key">words</b>',
        "new": '<b class="new key">words</b>',
        "hidden": '<i class="hidden key">words</i>',
        "erased": "<s>words</s>",
    }
    items = [
        f'<span title="{html(meaning)}"><span class="out">{samples[n]}</span> {n}</span>'
        for n, meaning in FATES.items()
        if any(row.count(n) for row in rows)
    ]
    used = {reuse for row in rows for reuse in row.reuse}
    for reuse, mark, meaning in (
        ("draft", "u", "from the draft"),
        ("unreviewed", "unseen-draft", "from the draft, unseen"),
    ):
        if reuse in used:
            items.append(
                f'<span title="{REUSES[reuse]}"><span class="out {mark}">words</span> {meaning}</span>'
            )
    if any(row.prefill + row.seconds > 0 for row in rows):
        for before, meaning in (("", "time to read the prompt"), ('<rect width="0"/>', "time to write")):
            bar = f'<svg class="took key" aria-hidden="true">{before}<rect width="100%" height="100%"/></svg>'
            items.append(f"<span>{bar} {meaning}</span>")
    if any(row.draft for row in rows):
        items.append('<label class="show"><input type="checkbox" class="sv-drafts"> show drafts</label>')
    return f'<div class="keys">{"".join(items)}</div>'


def figure(ribbons: Sequence[Ribbon]) -> str:
    """Render ribbons over one source side by side, without the style block.

    Parameters
    ----------
    ribbons : sequence of Ribbon
    """
    first = ribbons[0]
    width, most, same_source = updates.widest(ribbons), updates.slowest(ribbons), updates.same_cache(ribbons)
    shared = tuple(n for n in first.numbers if all(n in one.numbers for one in ribbons))
    heads = "".join(
        f'<th scope="col"><strong>{html(one.name)}</strong> '
        f'<span class="badge {badge(one.exactness)}">{html(one.exactness)}</span>'
        f"{chips(tuple(n for n in one.numbers if len(ribbons) == 1 or n not in shared))}</th>"
        for one in ribbons
    )
    maps = "".join(f"<td>{overview(one, width)}</td>" for one in ribbons)
    columns = '<colgroup><col class="src">' + "<col>" * len(ribbons) + "</colgroup>"
    count = min(len(first.rows), MOST_ROWS)

    def rows(low: int, high: int) -> str:
        lines = []
        for i in range(low, high):
            final = i == len(first.rows) - 1
            cells = "".join(_cell(one, one.rows[i], most, not same_source, final) for one in ribbons)
            lines.append(f"<tr>{_source(first.rows[i], same_source)}{cells}</tr>")
        return f"<tbody>{''.join(lines)}</tbody>"

    top = (
        '<thead><tr><th scope="col"><strong>Source</strong><br><small>what each update adds</small></th>'
        f"{heads}</tr>"
        f'<tr class="maps"><th scope="row"><small>all updates at a glance</small></th>{maps}</tr></thead>'
    )
    if count > FIRST + LAST + 1:
        middle = f"updates {first.rows[FIRST].update} to {first.rows[count - LAST - 1].update}"
        body = (
            f"<table>{columns}{top}{rows(0, FIRST)}</table><details><summary>{middle}</summary>"
            f"<table>{columns}{rows(FIRST, count - LAST)}</table></details>"
            f"<table>{columns}{rows(count - LAST, count)}</table>"
        )
    else:
        body = f"<table>{columns}{top}{rows(0, count)}</table>"
    left = len(first.rows) - count
    more = f'<p class="note">{left:,} more updates are in the trace.</p>' if left else ""
    return f'<div class="ribbon">{_head(ribbons, shared)}{keys(ribbons)}{body}{more}</div>'


def _head(ribbons: Sequence[Ribbon], shared: tuple[tuple[str, str, str], ...]) -> str:
    """Render the stream, the models, the shared numbers, and each ribbon's note."""
    first = ribbons[0]
    notes = "".join(f'<p class="note">{html(one.name)}: {html(one.note)}</p>' for one in ribbons if one.note)
    which = f"stream {first.index + 1} of {first.of}" if first.of > 1 else "stream"
    title = f" ({html(first.title)})" if first.title else ""
    models = ", ".join(dict.fromkeys(html(one.model) for one in ribbons))
    return (
        f'<div class="head"><strong>{which.capitalize()}{title}</strong> <span class="models">{models}</span>'
        f"{chips(shared) if len(ribbons) > 1 else ''}</div>{notes}"
    )


def block(figures: Sequence[str]) -> str:
    """Wrap figures in a self-contained fragment for a notebook."""
    return f'<div class="specviz wide"><style>{style()}{styles()}</style>{"".join(figures)}</div>'


def notebook(runs: Sequence[Trace], most: int) -> str:
    """Render runs of streams as a notebook fragment, with runs over the same source side by side.

    Parameters
    ----------
    runs : sequence of Trace
        Traces of one run each.
    most : int
        Maximum number of streams drawn per run.
    """
    groups: list[list[tuple[Ribbon, Trace]]] = []
    left = 0
    for run in runs[:MOST_RUNS]:
        indices = prompts(run)
        left += len(indices) - len(indices[:most])
        for index in indices[:most]:
            one = ribbon(run, index)
            fits = (
                g for g in groups if len(g) < SIDE_BY_SIDE and run is not g[-1][1] and alike(g[0][0], one)
            )
            group = next(fits, None)
            if group is None:
                groups.append(group := [])
            group.append((one, run))
    figures = []
    for group in groups:
        names = distinct([one.name for one, _ in group], [run for _, run in group])
        figures.append(figure([replace(one, name=label) for (one, _), label in zip(group, names)]))
    more = f'<p class="note">{left} more streams: trace.select(prompt=…) shows each.</p>' if left else ""
    more += "".join(f'<p class="note">{line}</p>' for line in more_runs(len(runs)))
    return block([*figures, more])


class Flicker(Page):
    """A flicker ribbon that displays itself in a notebook; created by `specviz.flicker`.

    Attributes
    ----------
    ribbons : list of Ribbon
        One per column.
    """

    def __init__(self, ribbons: Sequence[Ribbon]) -> None:
        self.ribbons = list(ribbons)

    def _page(self) -> str:
        return document("specviz flicker", [block([figure(self.ribbons)])])

    def _repr_html_(self) -> str:
        return block([figure(self.ribbons)])

    def __repr__(self) -> str:
        return "\n\n".join(plain(one) for one in self.ribbons)


# ---------------------------------------------------------------- text


def plain(one: Ribbon, colour: bool = False, most: int = 40) -> str:
    """Render a ribbon for a terminal: ``[-erased-]``, ``{+new+}``, ``{~rewritten~}``, ``⟦hidden⟧``.

    Parameters
    ----------
    one : Ribbon
    colour : bool
        Use ANSI colours; the marks are shown either way.
    most : int
        Maximum number of rows; a line counts those left out.
    """
    paint = {"new": "32;1", "rewritten": "33;1", "hidden": "2", "erased": "9;2"}
    around = {"new": ("{+", "+}"), "rewritten": ("{~", "~}"), "hidden": ("⟦", "⟧"), "erased": ("[-", "-]")}

    def marked(text: str, fate: str) -> str:
        gap = text[: len(text) - len(text.lstrip(" "))]
        word = spaced(text[len(gap) :])
        left, right = around.get(fate, ("", ""))
        word = f"{left}{word}{right}"
        code = paint.get(fate)
        return gap + (f"\x1b[{code}m{word}\x1b[0m" if colour and code else word)

    lines = [
        f"{visible(one.name)}  [{visible(one.exactness)}]  "
        + "  ".join(f"{n} {v}" for n, v, _ in one.numbers)
    ]
    for row in one.rows[:most]:
        parts = []
        marks = [(run.fate, run.text) for run in row.runs]
        if row.erased:
            marks.insert(sum(run.fate == "kept" for run in row.runs), ("erased", "".join(row.erased)))
        for fate, group in groupby(marks, key=lambda mark: mark[0]):
            parts.append(marked("".join(text for _, text in group), fate))
        lines.append(f"{row.update:4d}  " + "".join(parts).strip().replace("\n", "⏎"))
    if len(one.rows) > most:
        lines.append(f"      … {len(one.rows) - most} more updates")
    lines.append(
        "      [-erased-] {~rewritten~} {+new+}" + " ⟦hidden⟧" * any(r.count("hidden") for r in one.rows)
    )
    return "\n".join(lines)


# ---------------------------------------------------------------- matplotlib


def drawn(trace: Trace, prompt: int | None = None, ax: Axes | None = None, words: bool | None = None) -> Axes:
    """Draw the ribbon of one run for a paper: one row per update, one unit of width per word.

    Kept words are thin bars, rewritten ones hatched, new ones filled, hidden ones outlined; erased words are
    struck through.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    prompt : int, optional
    ax : Axes, optional
    words : bool, optional
        Whether to write the words; default: only for up to 12 updates of up to 16 words.

    Returns
    -------
    Axes
    """
    return _draw(ribbon(trace, prompt), ax, words)


def _draw(one: Ribbon, ax: Axes | None, words: bool | None) -> Axes:
    from matplotlib.patches import Patch

    wide = updates.widest([one])
    if words is None:
        words = len(one.rows) <= 12 and wide <= 16
    ax = axes(ax, (10, 0.9 + max(1.2, (0.34 if words else 0.08) * len(one.rows))))
    looks: dict[str, Look] = {
        "kept": {"alpha": 0.35, "lw": 0},
        "rewritten": {"alpha": 0.55, "hatch": "////", "edgecolor": "white", "lw": 0},
        "new": {"alpha": 0.55, "lw": 0},
        "hidden": {"fill": False, "edgecolor": HUES["hidden"], "ls": ":", "lw": 0.9},
    }
    used: dict[str, None] = {}
    for y, row in enumerate(one.rows):
        x = 0
        for fate in looks:
            n = row.count(fate)
            if n:
                tall = 0.35 if fate == "kept" and not words else 0.86
                ax.barh(y, n, left=x, height=tall, color=HUES[fate], **looks[fate])
                used[fate] = None
            x += n
        if row.erased:
            ends = [row.kept, row.kept + len(row.erased)]
            at = y + 0.3 if words else y
            ax.plot(ends, [at, at], color=HUES["erased"], lw=1.4, solid_capstyle="butt")
            used["erased"] = None
        for i, word in enumerate(row.words if words else ()):
            text = spaced(word.strip() or word)
            text = text if len(text) <= 14 else text[:13] + "…"
            ax.text(i + 0.5, y, text, ha="center", va="center", size=7, family=fonts(), parse_math=False)
    used_fates = [fate for fate in FATES if fate in used]
    patches = {
        f: Patch(**look if f == "hidden" else look | {"facecolor": HUES[f]}) for f, look in looks.items()
    }
    handles = [patches[f] if f in patches else ax.plot([], [], color=HUES[f], lw=1.4)[0] for f in used_fates]
    ax.legend(
        handles, used_fates, frameon=False, fontsize=8, ncols=5, loc="lower right",
        bbox_to_anchor=(1, 1.0), borderpad=0, borderaxespad=0.3,
    )  # fmt: skip
    ax.set(xlim=(0, wide), ylim=(len(one.rows) - 0.45, -0.55), xlabel="words", ylabel="update")
    whole_numbers(ax.xaxis, ax.yaxis)
    ax.set_title(visible(one.name), size=9, loc="left", parse_math=False)
    return ax


def poster(trace: Trace) -> bytes:
    """Draw the ribbon of a trace's first stream as PNG.

    Returns
    -------
    bytes
    """
    one = ribbon(trace.split()[0])
    tall = 1.5 + max(1.2, 0.34 * min(len(one.rows), 24))
    made = new_figure((10, tall), layout="constrained")
    _draw(one, made.subplots(), None)
    line = "   ".join(f"{n} {v}" for n, v, _ in one.numbers)
    stream = f", stream {one.index + 1} of {one.of}" if one.of > 1 else ""
    words = visible(f"{one.model} ({one.exactness}){stream}   {line}")
    made.suptitle(words, size=9, x=0.01, ha="left", family=fonts(), parse_math=False)
    return png(made)
