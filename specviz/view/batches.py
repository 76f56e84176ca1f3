"""Throughput against latency, one line per method, one point per batch size (UniSpec's Table 8 as a
figure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from specviz.errors import TraceError
from specviz.metrics import Estimate
from specviz.view.axes import axes, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row: TypeAlias = Mapping[str, Any]  # a line of a report

HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
MARKERS = "osD^vPX"  # a line is told by its marker, too


def latency_throughput(rows: Sequence[Row], ax: Axes | None = None) -> Axes:
    """Tokens per second of the whole batch over the seconds that a prompt takes in it.

    Up and to the left is better. Each line follows one decoder through its batch sizes, which label its
    points; crosses span the intervals if the rows have them.

    Parameters
    ----------
    rows : list of dict
        ``decoder``, ``batch``, ``speed`` (tokens per second), ``latency`` (seconds): numbers, or estimates
        with median, low and high, as `specviz.measure.benches.batches.bench` gives them.
    ax : Axes, optional
        Default: a new figure's.

    Returns
    -------
    Axes

    Raises
    ------
    TraceError
        If there are no rows.
    """
    if not rows:
        raise TraceError("nothing to draw: no batch size was measured")
    ax = axes(ax, (6.4, 4.0))
    for i, name in enumerate(dict.fromkeys(row["decoder"] for row in rows)):
        own = sorted((row for row in rows if row["decoder"] == name), key=lambda row: row["batch"])
        x, y = ([_spread(row[key]) for row in own] for key in ("latency", "speed"))
        hue, marker = HUES[i % len(HUES)], MARKERS[i % len(MARKERS)]
        middle = [point[0] for point in x], [point[0] for point in y]
        ax.errorbar(
            *middle, yerr=_bars(y), xerr=_bars(x), color=hue, marker=marker, ms=5, lw=1.4, elinewidth=0.7,
            label=literal(str(name)),
        )  # fmt: skip
        for row, at in zip(own, zip(*middle)):
            ax.annotate(str(row["batch"]), at, (4, 4), textcoords="offset points", fontsize=7, color=hue)
    ax.set(xlabel="latency: seconds per prompt", ylabel="throughput: tokens per second")
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.set_title("numbers next to the points: prompts decoded together", fontsize=8, loc="left")
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return ax


def _spread(value: float | Estimate) -> tuple[float, float, float]:
    """Middle, and how far the spread reaches below and above."""
    if isinstance(value, float | int):
        return float(value), 0.0, 0.0
    return float(value.median), float(value.median - value.low), float(value.high - value.median)


def _bars(points: list[tuple[float, float, float]]) -> list[list[float]]:
    return [[max(0.0, below) for _, below, _ in points], [max(0.0, above) for *_, above in points]]
