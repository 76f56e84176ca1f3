"""Draw the lattice of a canvas: cells across, passes down, with each pass's drafts, verdicts and placements.

It renders with matplotlib, as static SVG inside a trace's display, in sentences, and as plain text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from specviz.escape import html, spaced
from specviz.trace import Trace
from specviz.view.axes import Look, axes, bare, fonts
from specviz.view.canvas import STATES, WHY, Canvas, Pass, canvas

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MOST = 80  # maximum number of passes drawn
NARROW = 7  # a narrower cell, in points, has no room for a label
LETTERS = 10  # maximum length of a token's text above its cell
SHADES = 5  # number of shades for a probability
FAINTEST = 0.34  # minimum opacity of a placed cell
VAIN = 0.28  # maximum opacity of a drafted cell that was not placed
DARKEST = 0.42  # maximum opacity of a cell that stays masked
MASKED = "masked and read: darker means more confident (blank: masked, not read)"
OUTLINED = ("rejected", "drafted", "cut")
INK, GRID, FRAME, THREAD = "#1b1b1b", "#e3e3e3", "#555555", "#9db7c8"


def short(text: str, letters: int = LETTERS) -> str:
    """A token's text, shortened to fit above or in a cell."""
    text = spaced(text[1:] if text.startswith(" ") and len(text) > 1 else text).replace("\n", "⏎")
    return text if len(text) <= letters else text[: letters - 1] + "…"


def lattice(trace: Trace, prompt: int | None = None, ax: Axes | None = None, most: int = MOST) -> Axes:
    """Draw how a canvas was filled: one column per cell, one row per pass.

    Each cell is labelled with its final token. A cell that a pass drafted or placed has its state's colour
    and sign (`STATES` in `specviz.view.canvas`): filled if it was placed, outlined if its draft was rejected.
    A deeper colour means a higher probability: for a placed token, in the pass that placed it; for a rejected
    draft, the drafter's. Masked cells that the pass read are shaded grey by the probability of their most
    likely token. Thick lines are block borders, the frame marks the current block, and R marks a pass that
    recomputed every position. On the right are the number of tokens placed and why no more were.

    Parameters
    ----------
    trace : Trace
        Its first run is used: stepwise, ssd, fast_dllm, entropy_bounded or another that writes canvases.
    prompt : int, optional
        Default: the first.
    ax : Axes, optional
    most : int
        Maximum number of passes drawn.

    Returns
    -------
    Axes

    Raises
    ------
    TraceError
        If the run wrote no canvases, or only its text was recorded.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    shown = canvas(trace, prompt)
    width = _used(shown)
    passes = shown.passes[:most]
    ax = axes(ax, (min(20.0, 3.4 + 0.27 * width), 1.7 + 0.2 * len(passes)))
    signs = _fill(ax, shown, passes, width)
    lines = [[(x, 0), (x, len(passes))] for x in range(width + 1)]
    lines += [[(0, y), (width, y)] for y in range(len(passes) + 1)]
    ax.add_collection(LineCollection(lines, colors=GRID, linewidths=0.5))
    borders = [[(x, 0), (x, len(passes))] for x in range(0, width + 1, shown.block)]
    ax.add_collection(LineCollection(borders, colors=FRAME, linewidths=1.4))
    for block, first, last in _stretches(passes):
        corner, wide = (block * shown.block, first), min(shown.block, width - block * shown.block)
        ax.add_patch(Rectangle(corner, wide, last - first, fill=False, ec=INK, lw=2.2, zorder=4))
    _mark(ax, signs)
    threads = [  # from each placement down to the last pass
        [(placed.cell + 0.5, y + 1), (placed.cell + 0.5, len(passes))]
        for y, one in enumerate(passes)
        for placed in one.placed
    ]
    ax.add_collection(LineCollection(threads, colors=THREAD, linewidths=1.0))
    for y, one in enumerate(passes):
        note = WHY[one.why][0]
        words = f"{len(one.placed)}{f'  {note}' if note else ''}"
        ax.text(width + 0.4, y + 0.5, words, size=7, va="center", color=INK)
    _dress(ax, shown, passes, width)
    _keys(ax, shown)
    return ax


def _dress(ax: Axes, shown: Canvas, passes: Sequence[Pass], width: int) -> None:
    """Set the limits, the cells' tokens, the pass numbers and the title."""
    ax.set_xlim(0, width)
    ax.set_ylim(len(passes), 0)
    ax.set_yticks(
        np.arange(len(passes)) + 0.5, [f"{'R  ' if p.refreshed else ''}{p.number}" for p in passes], size=7
    )
    figure = ax.get_figure(root=True)
    assert figure is not None
    cell = ax.get_window_extent().width / figure.dpi * 72 / width
    step = int(NARROW // cell) + 1  # labels of every narrow cell would overprint one another
    ax.set_xticks(
        np.arange(0, width, step) + 0.5, [short(word) for word in shown.words[:width:step]], rotation=90,
        size=7.5, family=fonts(), parse_math=False,
    )  # fmt: skip
    bare(ax)
    ax.set_ylabel("pass")
    ax.set_xlabel(_below(shown, width, len(passes)), loc="left", size=8)
    ax.set_title(f"{shown.name}\n{_title(shown)}", loc="left", size=9, parse_math=False)


Signs = dict[str, list[tuple[float, float, str]]]  # for each state, its signs' positions and ink


def _fill(ax: Axes, shown: Canvas, passes: Sequence[Pass], width: int) -> Signs:
    """Colour the cells and return the signs to draw in them."""
    from matplotlib.collections import PolyCollection

    faces, boxes, signs = [], [], Signs()
    for y, one in enumerate(passes):
        for x, state, p in _row(shown, one, width):
            if state == "masked" and p != p:
                continue
            faces.append(_colour(state, p))
            boxes.append([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1)])
            if STATES[state].sign:
                signs.setdefault(state, []).append((x + 0.5, y + 0.5, _ink(state, faces[-1])))
    ax.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors="none"))
    return signs


def _mark(ax: Axes, signs: Signs) -> None:
    """Draw the signs, and outlines around drafted cells that were not placed."""
    from matplotlib.collections import PolyCollection

    for state, places in signs.items():
        for ink in dict.fromkeys(ink for *_, ink in places):
            some = [(x, y) for x, y, own in places if own == ink]
            ax.scatter(*zip(*some), zorder=5, **_marker(state, ink))
    for state, dashes in (("drafted", ":"), ("cut", ":"), ("rejected", (0, (2, 1.2)))):
        vain = [_inner(x - 0.5, y - 0.5) for x, y, _ in signs.get(state, ())]
        outlines = PolyCollection(
            vain, facecolors="none", edgecolors=STATES[state].hue, linestyles=[dashes], zorder=3
        )
        ax.add_collection(outlines)


def _used(shown: Canvas) -> int:
    """Number of cells up to the end of the last block with a placed or drafted cell."""
    there = np.flatnonzero(shown.order >= 0)
    last = int(there[-1]) if len(there) else 0
    last = max([last, *(n.cell for one in shown.passes for n in one.nodes)])
    return min(shown.length, (last // shown.block + 1) * shown.block)


def _row(shown: Canvas, one: Pass, width: int) -> list[tuple[int, str, float]]:
    """The cells in a pass: (cell, state, probability); the probability is NaN if the cell was not read."""
    now = one.states()
    cells = []
    for cell in range(width):
        if cell in now:
            state, p = now[cell]
        elif 0 <= shown.order[cell] < one.begun:
            state, p = "final", 1.0
        else:
            state, p = "masked", one.read.get(cell, float("nan"))
        cells.append((cell, state, p))
    return cells


def _depth(state: str, p: float) -> float:
    """Opacity of a cell's colour."""
    p = 0.0 if p != p else p
    if state == "final":
        return 1.0
    if state in ("masked", *OUTLINED):
        return (DARKEST if state == "masked" else VAIN) * p
    return FAINTEST + (1 - FAINTEST) * p


def _colour(state: str, p: float) -> tuple[float, float, float, float]:
    red, green, blue = bytes.fromhex(STATES[state].hue.removeprefix("#"))
    return red / 255, green / 255, blue / 255, _depth(state, p)


def _dark(face: Sequence[float]) -> bool:
    """Whether white is the better ink on this colour, drawn on white."""
    mixed = [1 - face[3] * (1 - c) for c in face[:3]]
    return 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2] < 0.52


def _ink(state: str, face: Sequence[float]) -> str:
    """Colour of a cell's sign; for a drafted cell that was not placed, the state's own colour."""
    return STATES[state].hue if state in OUTLINED else "white" if _dark(face) else INK


def _inner(x: float, y: float) -> list[tuple[float, float]]:
    """A cell's outline, inside the grid lines."""
    return [(x + 0.06, y + 0.08), (x + 0.94, y + 0.08), (x + 0.94, y + 0.92), (x + 0.06, y + 0.92)]


def _marker(state: str, ink: str) -> Look:
    from matplotlib.path import Path

    tick = Path([(-0.8, 0.0), (-0.2, -0.7), (0.9, 0.8)])
    unequal = Path(
        [(-0.8, 0.35), (0.8, 0.35), (-0.8, -0.35), (0.8, -0.35), (-0.45, -1.0), (0.45, 1.0)],
        [1, 2, 1, 2, 1, 2],
    )
    bars = Path([(-0.35, -0.9), (-0.35, 0.9), (0.35, -0.9), (0.35, 0.9)], [1, 2, 1, 2])
    marks: Look = {
        "accepted": tick, "bonus": "+", "correction": unequal, "parallel": bars, "rejected": "x",
        "cut": "|", "plain": "o", "drafted": "o",
    }  # fmt: skip
    look: Look = {"marker": marks[state], "s": 22, "linewidths": 1.2}
    if state == "plain":
        return look | {"s": 8, "color": ink}
    if state in ("bonus", "rejected", "cut"):
        return look | {"color": ink}
    return look | {"facecolors": "none", "edgecolors": ink}


def _stretches(passes: Sequence[Pass]) -> list[tuple[int, int, int]]:
    """Consecutive passes with the same current block: (block, start, stop)."""
    stretches: list[tuple[int, int, int]] = []
    for y, one in enumerate(passes):
        if stretches and stretches[-1][::2] == (one.block, y):
            stretches[-1] = (one.block, stretches[-1][1], y + 1)
        elif one.block >= 0:
            stretches.append((one.block, y, y + 1))
    return stretches


def _title(shown: Canvas) -> str:
    placed, passes = sum(len(p.placed) for p in shown.passes), len(shown.passes)
    refreshes = sum(p.refreshed for p in shown.passes)
    fresh = f", {refreshes} of them refreshes (R)" if shown.cached else ""
    rate = f", {placed / passes:.2f} a pass" if passes else ""
    return f"{placed} cells placed in {passes} passes{rate}{fresh}"


def _below(shown: Canvas, width: int, drawn: int) -> str:
    words = [f"cells 0 to {width - 1} of {shown.length}, blocks of {shown.block}"]
    if width < shown.length:
        words.append("later cells stayed masked")
    if drawn < len(shown.passes):
        words.append(f"{len(shown.passes) - drawn} more passes are in the trace")
    return "; ".join(words)


def _occurring(shown: Canvas) -> list[str]:
    """States that occur in some pass, in the order of the legends."""
    used = {state for one in shown.passes for state, _ in one.states().values()} | {"final", "masked"}
    return [state for state in STATES if state in used]


def _word(state: str) -> str:
    """A state's name in a legend."""
    return MASKED if state == "masked" else STATES[state].word


def _keys(ax: Axes, shown: Canvas) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    marks: list[Artist | tuple[Artist, ...]] = []
    names = _occurring(shown)
    for name in names:
        face = _colour(name, 0.75)
        vain = name in OUTLINED
        patch = Patch(
            facecolor=face, edgecolor=STATES[name].hue if vain else "#999999", lw=0.9 if vain else 0.5,
            ls="--" if name == "rejected" else ":" if vain else "-",
        )  # fmt: skip
        if name == "final":
            marks.append((patch, Line2D([], [], ls="none", marker="|", ms=9, mec=THREAD)))
            continue
        if name == "masked":
            marks.append(patch)
            continue
        look = _marker(name, _ink(name, face))
        filled = look.get("color")
        sign = Line2D(
            [], [], ls="none", marker=look["marker"], ms=3 if name == "plain" else 5, mew=1.2,
            mec=filled or look["edgecolors"], mfc=filled or "none",
        )  # fmt: skip
        marks.append((patch, sign))
    figure = ax.get_figure(root=True)
    assert figure is not None
    below = ax.transAxes + ScaledTranslation(0, -20 / 72, figure.dpi_scale_trans)
    words = list(map(_word, names))
    ax.legend(
        marks, words, frameon=False, fontsize=7.5, ncols=len(names),
        loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, borderaxespad=0, borderpad=0,
        columnspacing=1.2, handlelength=1.1, handleheight=1.1,
    )  # fmt: skip


# ---------------------------------------------------------------- plain text

LINES, COLUMNS = 40, 64  # maximum numbers of passes and cells in a terminal
CODES = {
    "accepted": "34", "bonus": "32", "correction": "32", "plain": "32", "parallel": "35", "rejected": "31",
    "drafted": "36",
}  # fmt: skip


def rows(shown: Canvas, colour: bool = False) -> list[str]:
    """The lattice as lines of text: one character per cell, ``|`` at block borders, ``-`` for final cells."""
    width, passes = min(_used(shown), COLUMNS), shown.passes[:LINES]
    lines = []
    for one in passes:
        cells = []
        for cell, state, _ in _row(shown, one, width):
            sign = {"final": "-", "masked": "·"}.get(state) or STATES[state].sign
            code = CODES.get(state)
            cells.append("|" * (cell % shown.block == 0 and cell > 0))
            cells.append(f"\x1b[{code}m{sign}\x1b[0m" if colour and code else sign)
        fresh = "R" if one.refreshed else " "
        lines.append(f"{fresh}{one.number:>3} {''.join(cells)}  {len(one.placed)} {WHY[one.why][0]}".rstrip())
    keys = "  ".join(f"{STATES[n].sign} {STATES[n].word}" for n in _occurring(shown) if STATES[n].sign)
    more = f"; {len(shown.passes) - LINES} more passes are in the trace" if len(shown.passes) > LINES else ""
    if width < _used(shown):
        more += f"; cells 0 to {width - 1} of {shown.length}"
    heading = f"canvas: {_title(shown)}; one column per cell, one row per pass{more}"
    return [heading, *lines, f"{keys}  - final  · masked"]


# ---------------------------------------------------------------- static HTML

DRAWN = 940  # width of a page in pixels
WIDE, TALL, ABOVE, LEFT, RIGHT = 15, 13, 62, 34, 104  # pixels: cell width and height; margins
STROKES = {  # each sign as path data, centred on 0 0
    "accepted": "m-4 0l2.6 3l5-6",
    "bonus": "m-4 0h8m-4-4v8",
    "correction": "m-4-1.5h8m-8 3h8m-6 2.5l4-8",
    "plain": "m-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0",
    "parallel": "m-2-4v8m4 0v-8",
    "rejected": "m-3.5-3.5l7 7m0-7l-7 7",
    "cut": "m0-4v8",
    "drafted": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0",
}


@cache
def style() -> str:
    """The figure's CSS, which comes after the style of a page."""
    return files("specviz.view").joinpath("lattice.css").read_text(encoding="utf8")


def figure(shown: Canvas, most: int = MOST) -> str:
    """Render the lattice as a static HTML figure with its sentences folded below; tokens are escaped."""
    width, passes = _used(shown), shown.passes[:most]
    if not passes:
        return '<p class="note">No pass was recorded.</p>'
    high, across = len(passes) * TALL, width * WIDE
    drawing = _drawing(shown, passes, width)
    caption = (
        f"The canvas: {_title(shown)}; one column per cell, one row per pass; "
        f"{_below(shown, width, len(passes))}."
    )
    keys = "".join(
        f'<span title="{html(STATES[n].meaning)}">{_key(n)}{_word(n)}</span>' for n in _occurring(shown)
    )
    words = "".join(f"<li>{html(one.sentence)}</li>" for one in passes)
    whole, tall = LEFT + across + RIGHT, ABOVE + high + 4
    scale = min(1.4, max(1.0, DRAWN / whole))  # a narrow lattice is drawn larger
    return (
        f'<style>{style()}</style><figure class="lattice"><figcaption>{html(caption)}{keys}</figcaption>'
        '<div class="table" tabindex="0" '
        f'role="region" aria-label="the canvas, pass by pass"><svg width="{scale * whole:.0f}" '
        f'height="{scale * tall:.0f}" viewBox="-{LEFT} -{ABOVE} {whole} {tall}" role="img" '
        f'aria-label="{html(caption)}">'
        f'{drawing}</svg></div><details class="prompt"><summary>The passes in words</summary><ul>{words}</ul>'
        "</details></figure>"
    )


def _drawing(shown: Canvas, passes: Sequence[Pass], width: int) -> str:
    """The figure's SVG: cells, lines, frames of the current blocks, tokens above, notes on the right."""
    high, across = len(passes) * TALL, width * WIDE
    threads = "".join(
        f"M{p.cell * WIDE + WIDE / 2:g} {(y + 1) * TALL}V{high}"
        for y, one in enumerate(passes)
        for p in one.placed
        if y + 1 < len(passes)
    )
    finals = "".join(
        f"M{p.cell * WIDE} {(y + 1) * TALL}h{WIDE}V{high}h-{WIDE}z"
        for y, one in enumerate(passes)
        for p in one.placed
    )
    lines = "".join(f"M0 {y * TALL}h{across}" for y in range(len(passes) + 1))
    lines += "".join(f"M{x * WIDE} 0v{high}" for x in range(width + 1))
    borders = "".join(f"M{x * WIDE} 0v{high}" for x in range(0, width + 1, shown.block))
    frames = "".join(
        f'<rect x="{b * shown.block * WIDE}" y="{first * TALL}" '
        f'width="{min(shown.block, width - b * shown.block) * WIDE}" height="{(last - first) * TALL}" '
        'class="l-frame"/>'
        for b, first, last in _stretches(passes)
    )
    heads = "".join(
        f'<text transform="translate({x * WIDE + WIDE / 2 + 4:g} -4)rotate(-90)">{html(short(word))}</text>'
        for x, word in enumerate(shown.words[:width])
        if word
    )
    rows = "".join(
        f'<g><title>{html(one.sentence)}</title><rect x="-{LEFT}" y="{y * TALL}" '
        f'width="{LEFT + across + RIGHT}" height="{TALL}" class="l-row"/>'
        f'<text x="-5" y="{(y + 0.78) * TALL:g}" text-anchor="end">'
        f'{"R " if one.refreshed else ""}{one.number}</text><text x="{across + 6}" y="{(y + 0.78) * TALL:g}">'
        f"{len(one.placed)} {WHY[one.why][0]}</text></g>"
        for y, one in enumerate(passes)
    )
    fills, signs = _paths(shown, passes, width)
    return (
        f'<path class="l-final" d="{finals}"/>{fills}'
        f'<path class="l-grid" d="{lines}"/><path class="l-thread" d="{threads}"/>'
        f'<path class="l-border" d="{borders}"/>{frames}{signs}{heads}{rows}'
    )


def _paths(shown: Canvas, passes: Sequence[Pass], width: int) -> tuple[str, str]:
    """SVG paths of the cells' fills and of their signs, one path per class."""
    fills: dict[str, str] = {}
    signs: dict[str, str] = {}
    for y, one in enumerate(passes):
        for x, state, p in _row(shown, one, width):
            if state == "final" or (state == "masked" and p != p):
                continue
            shade = min(SHADES - 1, int(SHADES * (0.0 if p != p else p)))
            key = f"l-{state} s{shade}"
            inside = 1.5 if state in OUTLINED else 0
            wide, tall = WIDE - 2 * inside, TALL - 2 * inside
            box = f"M{x * WIDE + inside:g} {y * TALL + inside:g}h{wide:g}v{tall:g}h-{wide:g}z"
            fills[key] = fills.get(key, "") + box
            if state in STROKES:
                ink = _class(state, p)
                at = f"M{x * WIDE + WIDE / 2:g} {y * TALL + TALL / 2:g}"
                signs[ink] = signs.get(ink, "") + at + STROKES[state]
    return (
        "".join(f'<path class="{key}" d="{path}"/>' for key, path in sorted(fills.items())),
        "".join(f'<path class="l-sign {ink}" d="{path}"/>' for ink, path in signs.items()),
    )


def _class(state: str, p: float) -> str:
    """CSS class that colours a cell's sign."""
    return f"vain-{state}" if state in OUTLINED else "deep" if _dark(_colour(state, p)) else "pale"


def _key(name: str) -> str:
    """A state's sample for the legend, as SVG."""
    stroke = STROKES.get(name)
    ink, inside = _class(name, 0.7), 1 if name in OUTLINED else 0
    sign = f'<path class="l-sign {ink}" d="M7.5 6.5{stroke}"/>' if stroke else ""
    sign += '<path class="l-thread" d="M7.5 0v13"/>' if name == "final" else ""
    return (
        f'<svg width="{WIDE}" height="{TALL}" class="l-key" aria-hidden="true"><rect x="{inside}" '
        f'y="{inside}" width="{WIDE - 2 * inside}" height="{TALL - 2 * inside}" class="l-{name} s3"/>'
        f"{sign}</svg>"
    )
