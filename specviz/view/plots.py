"""Draw a trace with matplotlib. Each view takes ``ax=``, draws only on it, and returns it."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from specviz.escape import spaced, visible
from specviz.trace import Trace
from specviz.view.axes import (
    FATE_LOOKS,
    Look,
    axes,
    bar_look,
    fonts,
    legend,
    legend_right,
    new_figure,
    note,
    png,
    whole_numbers,
)
from specviz.view.picture import (
    FATE_WORDS,
    FATES,
    KINDS,
    PHASE_HUES,
    PHASES,
    Picture,
    Span,
    first_run,
    name_of,
    phase_times,
    picture,
    pictures,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.backend_bases import RendererBase

SIZE = 11.0  # text size in points
LINE = 21.0  # distance between lines of text in points
BELOW = 28.0  # height of the legend in points
WIDEST = 110  # maximum number of characters in a line of a poster's heading


def _one(trace: Trace, prompt: int | None) -> Picture:
    """The picture of one prompt (default: the first) of the trace's first run."""
    return picture(*first_run(trace, prompt))


def token_strip(trace: Trace, prompt: int | None = None, ax: Axes | None = None, lines: int = 14) -> Axes:
    """Draw the text with each token's background coloured by its origin and its mark above it.

    Lines are broken when the figure is drawn, so that they fit the axes at any size.

    Parameters
    ----------
    trace : Trace
    prompt : int, optional
        Default: the first.
    ax : Axes, optional
        Default: new axes as tall as the text needs.
    lines : int
        Maximum number of lines; a note counts the tokens left out. Low axes show fewer lines.

    Returns
    -------
    Axes
    """
    shown = _one(trace, prompt)
    inner = 9.8  # inches of a 10 inch figure
    return strip(shown, axes(ax, (10, _height(shown, inner, lines) + 0.1)), lines)


Place = tuple[float, int, str, float, str, Span]  # x, line, text, width, mark, span


def flow(spans: Sequence[Span], width: float, measure: Callable[[str], float]) -> list[Place]:
    """Lay out spans as lines of text; a line breaks before a word that would cross the edge.

    Parameters
    ----------
    spans : sequence of Span
    width : float
        Width of a line, in the unit of `measure`.
    measure : callable
        Returns the width of a text.

    Returns
    -------
    list of (x, line, text, width, mark, span)
        A span that contains a line break, or is wider than a line, has several places; only the first has
        its mark. A space at the start of a new line is kept because it belongs to its token.
    """
    places: list[Place] = []
    x, line = 0.0, 0
    for span in spans:
        mark = KINDS[span.kind].mark
        for i, part in enumerate(spaced(span.text).replace("\n", "⏎\n").split("\n")):
            if i:
                x, line = 0.0, line + 1
            while part:
                size = measure(part)
                fits = len(part)
                if x + size > width:
                    if x:  # move the start of the word too, unless it fills the line
                        first = _word_start(places, line, span, part)
                        moved, places = places[first:], places[:first]
                        x, line = 0.0, line + 1
                        for _, _, text, wide, its, whose in moved:
                            places.append((x, line, text, wide, its, whose))
                            x += wide
                        continue
                    while fits > 1 and size > width:
                        fits -= 1
                        size = measure(part[:fits])
                places.append((x, line, part[:fits], size, mark, span))
                x, mark, part = x + size, "", part[fits:]
    return places


def _word_start(places: list[Place], line: int, span: Span, part: str) -> int:
    """Index of the first place to move to the next line so that the word continued by `part` stays whole."""
    end = first = len(places)
    if not part[0].isalnum() or not part[0].isascii():  # scripts without spaces break anywhere
        return end
    while first and places[first - 1][1] == line:
        text = places[first - 1][2]
        if text[-1] in " ⏎":
            return first
        first -= 1
        if text[0] == " ":
            break
    starts_line = first == 0 or places[first - 1][1] < line
    return end if starts_line else first


@cache
def _ruler(dpi: float) -> Callable[[str], float]:
    """Create a function that measures a text's width in pixels, without a figure."""
    from matplotlib.backends.backend_agg import RendererAgg

    return _measure(RendererAgg(8, 8, dpi))


def _measure(renderer: RendererBase) -> Callable[[str], float]:
    """Create a function that measures a text's width in the renderer's pixels."""
    from matplotlib.font_manager import FontProperties

    font = FontProperties(family=fonts(), size=SIZE)

    @cache
    def width(text: str) -> float:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            # A trailing space has no ink and would not be measured.
            both, mark = (
                renderer.get_text_width_height_descent(t, font, False)[0] for t in (text + "|", "|")
            )
        return float(both - mark)

    return width


def _height(shown: Picture, inches: float, lines: int) -> float:
    """Height in inches of a strip of this width, including its legend."""
    places = flow(shown.spans, inches * 72, _ruler(72.0))
    last = places[-1][1] + 1 if places else 1
    return (min(last, lines) * LINE + (14 if last > lines else 0) + BELOW) / 72


def strip(shown: Picture, ax: Axes, lines: int) -> Axes:
    """Draw `token_strip` from an existing picture."""
    from matplotlib.artist import Artist
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle
    from matplotlib.text import Text
    from matplotlib.transforms import IdentityTransform

    class Words(Artist):
        """Text that is laid out again within its axes each time it is drawn."""

        def draw(self, renderer: RendererBase) -> None:
            if not self.get_visible():
                return
            box = ax.get_window_extent(renderer)
            point: float = np.asarray(renderer.points_to_pixels(1.0)).item()
            # half a point more: the height is a rounded multiple of LINE
            most = max(1, min(lines, int((box.height / point - BELOW + 0.5) // LINE)))
            measure = _measure(renderer)
            places = flow(shown.spans, box.width, measure)
            for x, line, text, width, mark, span in places:
                if line >= most:
                    break
                base = box.y1 - (line * LINE + 16) * point
                kind = KINDS[span.kind]
                corner = (box.x0 + x, base - 4 * point)
                gap = min(1.5 * point, width / 3)
                tall = 15 * point if span.kind != "plain" else 1.2 * point
                alpha = 0.28 if span.kind != "plain" else 1.0
                self._paint(renderer, Rectangle(corner, width - gap, tall, color=kind.hue, alpha=alpha, lw=0))
                self._write(renderer, box.x0 + x, base, text, SIZE, "black")
                if mark:
                    lead = measure(text[: len(text) - len(text.lstrip(" "))])
                    self._write(renderer, box.x0 + x + lead, base + 11 * point, mark, 6.5, "black")
            left = {id(span) for _, line, *_, span in places if line >= most}
            if left:
                base = box.y1 - (most * LINE + 10) * point
                self._write(renderer, box.x0, base, f"… {len(left)} more tokens", 8, "#555555")

        def _paint(self, renderer: RendererBase, artist: Artist) -> None:
            artist.set_transform(IdentityTransform())
            if (figure := ax.get_figure()) is not None:
                artist.set_figure(figure)
            artist.draw(renderer)

        def _write(
            self, renderer: RendererBase, x: float, y: float, text: str, size: float, colour: str
        ) -> None:
            self._paint(
                renderer,
                Text(x, y, text, family=fonts(), size=size, color=colour, va="baseline", parse_math=False),
            )

    ax.axis("off")
    ax.add_artist(Words())
    used = [k for k in KINDS if any(s.kind == k for s in shown.spans)]
    if not used:
        ax.text(0, 0.5, "no token was written", transform=ax.transAxes, size=9)
        return ax
    handles = [
        Line2D([], [], color=KINDS[k].hue, lw=1.2)
        if k == "plain"
        else Rectangle((0, 0), 1, 1, color=KINDS[k].hue, alpha=0.35)
        for k in used
    ]
    names = [f"{KINDS[k].mark} {KINDS[k].word}".strip() for k in used]
    legend(ax, handles, names, loc="lower left", bbox_to_anchor=(0, 0))
    return ax


def timeline(trace: Trace, prompt: int | None = None, ax: Axes | None = None) -> Axes:
    """Draw cycles along time, each as a bar divided by phase; time between bars belongs to no cycle.

    Parameters
    ----------
    trace : Trace
    prompt : int, optional
    ax : Axes, optional

    Returns
    -------
    Axes
        Time in milliseconds from the first cycle after the prefill.
    """
    return _timeline(_one(trace, prompt), axes(ax, (10, 1.5)))


def _phase_look(name: str) -> Look:
    """Colour and hatch of a phase's bars."""
    number = {"forward": 0, "draft": 1}.get(name, PHASES.index(name))  # the usually longest bars stay plain
    return bar_look(number) | {"color": PHASE_HUES[name], "lw": 0}


def _timeline(shown: Picture, ax: Axes) -> Axes:
    cycles = shown.cycles
    begin = cycles[0].start if cycles else 0.0
    first = left = np.array([(c.start - begin) * 1e3 for c in cycles])
    for i, name in enumerate(PHASES):
        width = np.array([c.times[i] * 1e3 for c in cycles])
        if name in shown.phases:
            label = f"{name} {shown.phases[name] * 1e3:.1f} ms"
            ax.barh(np.zeros(len(cycles)), width, left=left, height=0.8, label=label, **_phase_look(name))
        left = left + width
    ax.vlines(first, -0.4, 0.5, color="#555555", lw=0.6)
    if shown.drafts and len(cycles) <= 40:
        for c, x in zip(cycles, first):
            ax.text(x, 0.46, f" {c.label}", size=6.5, va="bottom")
    ax.set(xlabel="time in ms", yticks=[], ylim=(-0.45, 0.8))
    timed = len(left) > 0 and left[-1] > 0
    if timed:
        ax.set_xlim(0, left[-1])
    else:
        ax.set(xticks=[], xlabel="no times were recorded")
    above = ", accepted/sent above each" if timed and shown.drafts and len(cycles) <= 40 else ""
    ax.set_title(f"{len(cycles)} cycles{above}", size=9, loc="left")
    if shown.phases:
        legend_right(ax, handlelength=1, columnspacing=1.2)
    ax.spines[["top", "left", "right"]].set_visible(False)
    return ax


def confidence(trace: Trace, prompt: int | None = None, ax: Axes | None = None) -> Axes:
    """Plot the drafter's confidence in each draft token by output position, with the token's verdict.

    For a drafter that scores the nodes of a tree (UniSpec), the scores are plotted instead.

    Parameters
    ----------
    trace : Trace
    prompt : int, optional
    ax : Axes, optional

    Returns
    -------
    Axes
        Position in the output (0 is the first token written) on x; the drafter's largest probability, or
        the node's score, on y.
    """
    return _confidence(_one(trace, prompt), axes(ax, (10, 1.8)))


def _confidence(shown: Picture, ax: Axes) -> Axes:
    for status in FATES:
        dots = [(b.position, b.value) for b in shown.beliefs if b.status == status]
        if dots:
            ax.scatter(*zip(*dots), label=FATE_WORDS[status], clip_on=False, **FATE_LOOKS[status])
    if shown.threshold is not None:
        ax.axhline(shown.threshold, ls="--", lw=1, color="#444444", label=f"threshold {shown.threshold:g}")
    if shown.why_no_beliefs:
        note(ax, shown.why_no_beliefs, size=9)
    else:
        legend_right(ax, 1.06)
    ax.set(ylim=(-0.04, 1.04), yticks=(0, 0.5, 1))
    whole_numbers(ax.xaxis)
    ax.set_xlabel("position in the output")
    ax.set_title(shown.sentence.removeprefix("The ").capitalize(), size=9, loc="left")
    return ax


def phases(trace: Trace, ax: Axes | None = None) -> Axes:
    """Plot how a cycle's time is spent: the mean of each phase, one bar per run.

    Parameters
    ----------
    trace : Trace
        One run or several.
    ax : Axes, optional

    Returns
    -------
    Axes
        Milliseconds per cycle, excluding the prefill; a bar's length is the mean time of a cycle.
    """
    runs = trace.split()
    ax = axes(ax, (8, 0.9 + 0.5 * len(runs)))
    mean = np.zeros((len(runs), len(PHASES)))
    names = []
    for row, run in enumerate(runs):
        table = run.cycles[run.cycles["cycle"] > 0]
        if len(table):
            mean[row] = phase_times(table).mean(0) * 1e3
        names.append(visible("\n← ".join(filter(None, (run.run["method"], name_of(run.run["draft"]))))))
    y = np.arange(len(runs))
    for i, name in enumerate(PHASES):
        if mean[:, i].any():
            left = mean[:, :i].sum(1)
            ax.barh(y, mean[:, i], left=left, height=0.7, label=name, **_phase_look(name))
    ax.set_yticks(y, names, size=8, parse_math=False)
    ax.invert_yaxis()
    ax.set_xlabel("ms per cycle (mean)")
    if mean.any():
        legend(ax, loc="lower left", bbox_to_anchor=(0, 1.02), handlelength=1)
    return ax


def poster(trace: Trace) -> bytes:
    """Draw a trace's first text as PNG: its run, numbers, text, cycles (if they were timed) and confidence.

    Returns
    -------
    bytes
    """
    shown = pictures(trace.split()[0], 1)[0]
    # Inches, laid out by hand so that the text gets exactly the space that it was measured for.
    wide, left, inner, lines = 10.0, 0.45, 9.4, 14
    names = " ← ".join(filter(None, (shown.model, shown.draft)))
    which = f"   {shown.name}" if shown.of > 1 else ""
    numbers = "   ".join(f"{name} {value}" for name, value, _ in shown.numbers)
    above = visible(f"{shown.method}  ({shown.exactness})   {names}{which}\n{numbers}").split("\n")
    head = [part for line in above for part in textwrap.wrap(line, WIDEST) or [""]]
    timed = any(sum(cycle.times) > 0 for cycle in shown.cycles)
    heights = [0.18 + 0.16 * len(head), _height(shown, inner, lines)]
    heights += [1.45 * timed, 1.6 * (not shown.why_no_beliefs)]
    tall = sum(heights) + 0.05
    figure = new_figure((wide, tall))

    def room(below: float, above: float, row: int) -> Axes:
        low = tall - sum(heights[: row + 1]) + below
        return figure.add_axes((left / wide, low / tall, inner / wide, (heights[row] - below - above) / tall))

    figure.text(
        left / wide, 1 - 0.1 / tall, "\n".join(head), size=9.5, va="top", family=fonts(), parse_math=False
    )
    strip(shown, room(0, 0, 1), lines)
    if timed:
        _timeline(shown, room(0.5, 0.32, 2))
    if heights[3]:
        _confidence(shown, room(0.5, 0.32, 3))
    return png(figure)
