"""Plot a speedup as a waterfall of its factors, next to acceptance by position; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from specviz.view.axes import GREY, axes, bar_look, drawable, literal, new_figure, note, whole_numbers

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHOLE, GAIN, LOSS = 0, 2, 1  # looks of the bars: a total, a gain, a loss


def waterfall(
    bars: Sequence[tuple[str, float, float]], name: str, badge: str, positions: pd.DataFrame | None = None,
    places: float = float("nan"),
) -> Figure:  # fmt: skip
    """Draw the factors of a speedup and, if `positions` are given, acceptance at each draft position.

    Parameters
    ----------
    bars : sequence of (name, low, high)
        Each bar's start and end, in multiples of plain decoding's speed; the first and last are totals.
    name, badge : str
        The run's name, and the badge that says how certain the numbers are.
    positions : DataFrame, optional
        ``position``, ``rate`` and ``given``, as returned by `specviz.metrics.by_position`.
    places : float
        Share of all judged positions at which the draft was right, drawn as a line.
    """
    both = positions is not None and len(positions) > 0
    figure = new_figure((10.5 if both else 6.5, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, width_ratios=(3, 2)) if both else [figure.subplots()]
    steps(bars, axes(panels[0], (0, 0)))
    title = f"{name}: why it runs at this speed" + (f" [{badge}]" if badge else "")
    panels[0].set_title(drawable(literal(title)), fontsize=10, loc="left")
    if both and positions is not None:
        by_position(positions, places, axes(panels[1], (0, 0)))
    return figure


def steps(bars: Sequence[tuple[str, float, float]], ax: Axes) -> Axes:
    """Draw the bars, one above the other."""
    if not bars:
        ax.set_axis_off()
        return note(ax, "the cost of a plain step is unknown")
    rows = np.arange(len(bars))[::-1]
    top = max(max(low, high) for _, low, high in bars)
    for row, (_, low, high) in zip(rows, bars):
        total = row in (rows[0], rows[-1])
        look = bar_look(WHOLE if total else GAIN if high >= low else LOSS)
        ax.barh(row, high - low, left=low, height=0.62, **look)
        words = f"{high:.2f}" if total else f"{high - low:+.2f}"
        ax.annotate(words, (max(low, high), row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    for row, (_, _, high) in zip(rows[:-1], bars[:-1]):
        ax.plot([high, high], [row - 0.69, row - 0.31], color=GREY, lw=0.8)
    ax.axvline(1, color=GREY, lw=1, ls=":")
    ax.set_yticks(rows, [drawable(name) for name, *_ in bars])
    ax.set(xlim=(0, 1.14 * top), xlabel="times the speed of plain decoding")
    ax.tick_params(axis="y", length=0)
    return ax


def by_position(positions: pd.DataFrame, places: float, ax: Axes) -> Axes:
    """Plot acceptance at each position in the draft."""
    x = positions["position"].to_numpy()
    ax.plot(x, positions["rate"], "o-", color="#0072b2", ms=4, label="of all drafts")
    given = positions["given"].to_numpy(np.float64)
    if np.isfinite(given).any():
        ax.plot(x, given, "s--", color="#d55e00", ms=4, label="of those that reached it")
    if np.isfinite(places):
        ax.axhline(places, color=GREY, lw=1, ls=":", label="of all judged positions")
    ax.set(ylim=(0, 1.02), xlabel="position in the draft", ylabel="accepted")
    whole_numbers(ax.xaxis)
    ax.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1, borderpad=0)
    return ax
