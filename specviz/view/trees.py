"""Draw the verification tree of one cycle over a canvas: one canvas per row, its cells across.

As in figures 2 and 4 of SSD (Gao et al. 2025), each node's canvas is its parent's with one more token, and a
child is accepted if the pass would have placed the same token in the same cell next in the parent's canvas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError, TraceError
from specviz.escape import spaced
from specviz.trace import Trace
from specviz.view.axes import axes, bare, fonts
from specviz.view.canvas import STATES, WHY, Canvas, Node, Pass, canvas
from specviz.view.lattices import FRAME, GRID, INK, OUTLINED, short
from specviz.view.picture import FATE_WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

STEP, GAP = 0.55, 1.1  # in cells: indent per tree level; space between the tree and the cells
INKS = {"drafted": "#2a7fae"}  # its hue is too light for text
LETTERS = 9  # maximum length of a token's text in a cell


def canvases(
    trace: Trace, cycle: int | None = None, prompt: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the verification tree of a cycle, each node with its canvas.

    Each row is a canvas of the pass. The root is the state; a node is its parent's canvas with one more
    token, shown in the colour and with the sign of its status. The frame in a row is the cell and token that
    the pass would place next in that canvas. It is solid on the verified path, where stepwise decoding does
    the same. A node is accepted if its cell and token match its parent's frame. The drafter's log-odds and
    probability are on the right.

    Parameters
    ----------
    trace : Trace
        Its first run is used, from a method that writes canvases.
    cycle : int, optional
        Counted from 1. Default: the first cycle with the highest number of accepted tokens.
    prompt : int, optional
        Default: the first.
    ax : Axes, optional

    Returns
    -------
    Axes
        `canvases_words` describes the same in sentences.

    Raises
    ------
    TraceError
        If the run wrote no canvases, or only its text was recorded.
    ParameterError
        If the cycle does not exist.
    """
    shown = canvas(trace, prompt)
    one = _chosen(shown, cycle)
    rows = _rows(one)
    first, last = _span(shown, one)
    deep = max(depth for _, depth in rows)
    left = STEP * deep + GAP  # x of the first cell
    cells = last - first
    ax = axes(ax, (min(18.0, 0.58 * (left + cells) + 3.0), 1.5 + 0.36 * len(rows)))
    _edges(ax, rows)
    for y, (node, depth) in enumerate(rows):
        name = "root" if node is None else _label(one, node)
        ax.text(STEP * depth + 0.12, y + 0.5, name, size=8, va="center", color=INK, zorder=3,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip
        _row_of_cells(ax, y, left, range(first, last), shown, one, node)
        note = "the current state" if node is None else _note(node)
        ax.text(left + cells + 0.25, y + 0.5, note, size=7.5, va="center", color=INK)
    for border in range(first, last + 1, shown.block):
        ax.plot([left + border - first] * 2, [0, len(rows)], color=FRAME, lw=1.6, zorder=6)
    _dress(ax, shown, one, range(first, last), left, len(rows))
    return ax


def _dress(ax: Axes, shown: Canvas, one: Pass, cells: range, left: float, rows: int) -> None:
    """Set the limits, the cell numbers, the title and the key."""
    ax.set_xlim(0, left + len(cells))
    ax.set_ylim(rows, 0)
    ax.set_xticks(left + np.arange(len(cells)) + 0.5, [str(cell) for cell in cells], size=7)
    ax.xaxis.tick_top()
    ax.set_yticks([])
    bare(ax, above=False)
    ax.set_title(f"{shown.name}\n{_title(one)}", loc="left", size=9, parse_math=False)
    ax.set_xlabel(
        "framed: what the pass would place next in this canvas (solid: verified); ▒ masked; skip: the cell "
        "after the next one, placed next",
        loc="left", size=8,
    )  # fmt: skip


def _edges(ax: Axes, rows: list[tuple[Node | None, int]]) -> None:
    """Draw the tree on the left: a line from each node up to its parent."""
    at = {(-1 if node is None else node.index): (depth, y) for y, (node, depth) in enumerate(rows)}
    for node in (node for node, _ in rows if node is not None):
        (above, begin), (depth, end) = at[node.parent], at[node.index]
        x = STEP * above + 0.3
        kept = node.status == "accepted"
        hue = STATES["drafted" if node.status == "unjudged" else node.status].hue
        ax.plot(
            [x, x, STEP * depth + 0.08], [begin + 0.72, end + 0.5, end + 0.5], color=hue,
            lw=2.0 if kept else 1.0, ls="-" if kept else (0, (3, 2)), solid_capstyle="butt", zorder=1,
        )  # fmt: skip


def _row_of_cells(
    ax: Axes, y: int, left: float, cells: range, shown: Canvas, one: Pass, node: Node | None
) -> None:
    """Draw one canvas: the contents of its cells, and the frame around the pass's next placement."""
    from matplotlib.patches import Rectangle

    texts = _filled(shown, one, node)
    following = one.root if node is None else node.next
    verified = node is None or node.status == "accepted"
    for cell in cells:
        x = left + cell - cells.start
        face, ink, words, dashes = "white", "#a8a8a8", "▒", ""  # masked
        if node is not None and node.cell == cell:
            state = "drafted" if node.status == "unjudged" else node.status
            words = f"{STATES[state].sign} {short(node.text, LETTERS)}"
            face, ink = STATES[state].hue, "white"
            if state in OUTLINED:
                face, ink = "white", INKS.get(state, STATES[state].hue)
                dashes = "--" if state == "rejected" else ":"
        elif cell in texts:
            text, drafted = texts[cell]
            words = short(text, LETTERS)
            face, ink = ("#bcd9ec", INK) if drafted else (STATES["final"].hue, FRAME)
        ax.add_patch(Rectangle((x, y + 0.1), 1, 0.8, facecolor=face, edgecolor=GRID, lw=0.6, zorder=2))
        if dashes:
            ax.add_patch(_frame(x, y, ink, dashes, 1.3))
        if following is not None and following[0] == cell:
            words, ink = short(following[1], LETTERS), INK if verified else "#6b6b6b"
            edge, width, dashes = (INK, 1.6, "-") if verified else ("#8a8a8a", 0.9, ":")
            ax.add_patch(_frame(x, y, edge, dashes, width))
        if words:
            ax.text(x + 0.5, y + 0.5, words, size=6.6, ha="center", va="center", color=ink, zorder=5,
                    family=fonts(), parse_math=False, clip_on=True)  # fmt: skip


def _frame(x: float, y: float, colour: str, dashes: str, width: float) -> Rectangle:
    from matplotlib.patches import Rectangle

    corner = x + 0.05, y + 0.15
    return Rectangle(corner, 0.9, 0.7, fill=False, zorder=4, ec=colour, ls=dashes, lw=width)


def canvases_words(trace: Trace, cycle: int | None = None, prompt: int | None = None) -> str:
    """Describe `canvases` in sentences: one for the cycle, one per canvas, one for its placements."""
    shown = canvas(trace, prompt)
    one = _chosen(shown, cycle)
    lines = [f"{shown.name}. {_title(one)}."]
    for node, _ in _rows(one):
        following = one.root if node is None else node.next
        after = f"; next there: {_cell(*following)}" if following else ""
        if node is None:
            lines.append(f"The state itself{after}.")
        else:
            parent = "the root" if node.parent < 0 else f"node {node.parent}"
            name = "skip" if _skips(one, node) else "node"
            lines.append(
                f"{name} {node.index} after {parent}: {_cell(node.cell, node.text, node.odds)}: "
                f"{FATE_WORDS.get(node.status, node.status)}{after}."
            )
    lines.append(f"{one.sentence}.")
    return "\n".join(lines)


def _chosen(shown: Canvas, cycle: int | None) -> Pass:
    if not shown.passes:
        raise TraceError("no pass was recorded: the run was cut off before its first")
    if cycle is None:
        return max(shown.passes, key=lambda one: one.accepted)
    drafting = next((one for one in shown.passes if one.number == cycle), None)
    if drafting is None:
        raise ParameterError(f"there is no cycle {cycle}: the text has cycles 1 to {len(shown.passes)}")
    return drafting


def _skips(one: Pass, node: Node) -> bool:
    """Whether a node is a skip of the mix-order tree: a leaf that places the cell after next."""
    return node.parent != node.index - 1


def _label(one: Pass, node: Node) -> str:
    return f"{node.index} skip" if _skips(one, node) else str(node.index)


def _rows(one: Pass) -> list[tuple[Node | None, int]]:
    """The canvases from top to bottom with their depths; a skip comes directly below its parent."""
    rows: list[tuple[Node | None, int]] = [(None, 0)]

    def below(parent: int, depth: int) -> None:
        children = sorted((n for n in one.nodes if n.parent == parent), key=lambda n: not _skips(one, n))
        for node in children:
            rows.append((node, depth))
            below(node.index, depth + 1)

    below(-1, 1)
    return rows


def _span(shown: Canvas, one: Pass) -> tuple[int, int]:
    """The cells of all blocks that the pass drafted in, placed in, or would place in."""
    cells = [n.cell for n in one.nodes] + [p.cell for p in one.placed]
    cells += [n.next[0] for n in one.nodes if n.next] + ([one.root[0]] if one.root else [])
    low, high = min(cells) // shown.block, max(cells) // shown.block + 1
    return low * shown.block, min(shown.length, high * shown.block)


def _filled(shown: Canvas, one: Pass, node: Node | None) -> dict[int, tuple[str, bool]]:
    """A canvas's tokens by cell, except the node's own: (text, whether an ancestor drafted it)."""
    texts = {
        int(cell): (shown.words[cell], False)
        for cell in np.flatnonzero((shown.order >= 0) & (shown.order < one.begun))
    }
    parent = -1 if node is None else node.parent
    while parent >= 0:
        above = one.nodes[parent]
        texts[above.cell] = (above.text, True)
        parent = above.parent
    return texts


def _note(node: Node) -> str:
    return f"log-odds {node.odds:+.2f}  p {node.p:.2f}  {FATE_WORDS.get(node.status, node.status)}"


def _cell(cell: int, text: str, odds: float) -> str:
    return f"‘{spaced(text)}’ in cell {cell} (log-odds {odds:+.2f})"


def _title(one: Pass) -> str:
    drafted = f"{len(one.nodes)} canvases besides the state, " if one.nodes else "only the state, "
    why = f": {WHY[one.why][1]}" if one.why != "none" else ""
    fresh = " (a refresh)" if one.refreshed else ""
    return f"cycle {one.number}{fresh}: {drafted}{one.accepted} accepted, {len(one.placed)} placed{why}"
