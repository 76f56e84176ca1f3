"""Plot quality against speed over a sweep in matplotlib. The plotly view has the same curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specviz import metrics
from specviz.errors import TraceError
from specviz.escape import visible
from specviz.view.axes import GREY, axes, literal, look

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def sweep(
    points: pd.DataFrame,
    curve: str | None = None,
    size: str | None = None,
    ax: Axes | None = None,
    quality: str = "BLEU",
) -> Axes:
    """Plot quality against speed over a sweep, with the Pareto front (BiLD's Figures 4, 5 and 10).

    Parameters
    ----------
    points : DataFrame
        A row for each run or setting: ``quality``, ``speed``, and a column for each parameter; ``base``
        marks the rows that speed is relative to.
    curve : str, optional
        Points with the same value in this column are joined; default ``rollback`` if present, else
        ``group``.
    size : str, optional
        A point's size grows with this column; default ``fallback`` if present.
    ax : Axes, optional
    quality : str
        Name of the quality score, for the axis label.

    Returns
    -------
    Axes
        × marks the base, with lines at its quality and, if a point is that low, 1 below it. The thick grey
        line is the front.

    Raises
    ------
    TraceError
        If a column is missing.
    """
    curve, size = columns_of(points, curve, size)
    ax = axes(ax, (6.2, 4.2))
    for x, y, marks, hue, mark, label, _ in curves(points, curve, size):
        ax.plot(x, y, color=hue, lw=1.2, alpha=0.8)
        ax.scatter(x, y, marks, color=hue, marker=mark, label=literal(label), alpha=0.85, linewidths=0)
    best = on_front(points)
    ax.plot(best["speed"], best["quality"], color=GREY, lw=5, alpha=0.35, zorder=0, label="Pareto front")
    for number, base in enumerate(based(points).to_dict("records")):
        label = "base" if number == 0 else ""
        ax.plot(base["speed"], base["quality"], "x", color="black", ms=9, mew=2, label=label)
        ax.axhline(base["quality"], color="black", lw=0.8, ls="--")
        if base["quality"] - 1 < points["quality"].min():
            continue  # a line far below the points would squeeze them
        ax.axhline(base["quality"] - 1, color="black", lw=0.8, ls=":")
        edge = ax.get_yaxis_transform()
        ax.text(1, base["quality"] - 1, "1 below", transform=edge, size=7, ha="right", va="bottom")
    ax.set(xlabel="speed relative to the base", ylabel=quality)
    legend_title = f"larger marks: larger {literal(size)}" if size else None
    ax.legend(framealpha=0.85, edgecolor="none", fontsize=8, title=legend_title, title_fontsize=8)
    return ax


SMALL, LARGE = 18.0, 110.0  # areas of the marks, square points


def columns_of(points: pd.DataFrame, curve: str | None, size: str | None) -> tuple[str | None, str | None]:
    """Choose the columns that separate the curves and size the marks, and check that they exist."""
    curve = curve or next((name for name in ("rollback", "group") if name in points), None)
    size = size or ("fallback" if "fallback" in points else None)
    for column in ("quality", "speed", *filter(None, (curve, size))):
        if column not in points:
            raise TraceError(f"the sweep has no column {column!r}; it has {', '.join(map(str, points))}")
    return curve, size


def based(points: pd.DataFrame) -> pd.DataFrame:
    """The rows that speed is relative to."""
    return points[points["base"].astype(bool)] if "base" in points else points[:0]


def on_front(points: pd.DataFrame) -> pd.DataFrame:
    """The Pareto front's rows from slowest to fastest, including the base if it is on the front."""
    return points[metrics.front(points["quality"], points["speed"])].sort_values("speed")


def curves(
    points: pd.DataFrame, curve: str | None, size: str | None
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, str, str, str, list[int]]]:
    """For each curve, its points in order of `size`: x, y, areas, colour, marker, label and rows."""
    rows = points.drop(based(points).index)
    value = rows[size].to_numpy(np.float64) if size else np.empty(0)
    if np.isfinite(value).any():
        low, span = np.nanmin(value), max(np.nanmax(value) - np.nanmin(value), 1e-9)
        rows = rows.assign(area=SMALL + (LARGE - SMALL) * np.nan_to_num((value - low) / span))
    else:
        rows = rows.assign(area=40.0)
    keys = [key for key in dict.fromkeys(["group" if "group" in rows else curve, curve]) if key]
    several = len(keys) > 1 and rows["group"].nunique() > 1
    series = []
    parts = rows.groupby(keys if several else curve, dropna=False, sort=True) if curve else [("", rows)]
    for number, (key, part) in enumerate(parts):
        part = part.sort_values([size, "speed"] if size else "speed")
        own = key if isinstance(key, tuple) else (key,)
        words = [f"{curve} {v:g}" if isinstance(v, float) else str(v) for v in own]
        hue, mark = look(number)
        x, y, area = (part[name].to_numpy(np.float64) for name in ("speed", "quality", "area"))
        series.append((x, y, area, hue, mark, visible(", ".join(words)), part.index.tolist()))
    return series
