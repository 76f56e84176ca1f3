"""matplotlib views of what is traded: quality for speed over a sweep; erasure by β, by mask and by language.

They draw tables with one row per setting (and language): `specviz.metrics.sweep` makes those of `sweep`, and
`trade_offs` those of the views of re-translation, as do the rows of its benchmark. Each
takes ``ax=``, draws only on it, and returns it. A figure may be a number or an `Estimate`, whose interval is
drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from specviz import metrics
from specviz.errors import TraceError
from specviz.escape import visible
from specviz.schema import Metadata
from specviz.trace import Trace
from specviz.view.axes import GREY, axes, bar_look, bar_places, legend, literal, look, whole_numbers
from specviz.view.updates import Traces, name, named

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Figure: TypeAlias = str | float | metrics.Estimate | None

RT, CD = "RT", "CD"
BETA = "β = "
MASKS = {"mask": "mask-k (draft and display)", "display": "display-only mask-k"}
FIGURES = {
    "bleu": "BLEU of the final outputs",
    "chrf": "chrF of the final outputs",
    "ne": "NE, tokens erased per final token",
    "ad": "A/D, accepted over sent",
    "ao": "A/O, kept over written",
    "tps": "output tokens/s",
    "speedup": "speedup over RT",
}
WINDOW = 15  # updates of a running median
APART = 0.09  # how far RT and CD stand from β = 0 and 1


def trade_offs(traces: Traces) -> pd.DataFrame:
    """One row per run: Table 3's and 4's columns, from traces.

    Parameters
    ----------
    traces : Trace, list of Trace, or dict of name to Trace
        Runs over the same streams, one a setting (and language); one of re-translation (RT) for each language
        gives the speedups.

    Returns
    -------
    DataFrame
        ``method`` (RT, CD, ``β = 0.2``, ``mask-3``, ``display-3``), ``language`` (what was translated into),
        ``ne``, ``ad``, ``ao`` (`Estimate` over streams), ``tps``, ``speedup`` over RT on the same streams;
        ``bleu`` and ``chrf`` where the streams have references. `specviz.metrics` defines them.
    """
    import pandas as pd

    runs = [run for _, run in named(traces)]
    bases: dict[str, Trace] = {}
    for run in runs:
        if label(run.run) == RT:
            bases.setdefault(_language(run.run), run)
    rows = []
    for run in runs:
        table = metrics.by_stream(run)
        language = _language(run.run)
        own: dict[str, Figure] = {"method": label(run.run), "language": language}
        accepted, written = table["accepted"].to_numpy(), table["emitted"].to_numpy()
        kept = accepted + table["unreviewed"].to_numpy()
        own["ne"] = metrics.pooled(table["erased"].to_numpy(), table["tokens"].to_numpy())
        drafted = table["drafted"].fillna(0).to_numpy()
        own["ad"] = metrics.pooled(accepted, drafted) if drafted.sum() else None
        own["ao"] = metrics.pooled(kept, written) if kept.sum() else None
        own["tps"] = float(table["emitted"].sum() / table["seconds"].sum())
        base = bases.get(language)
        own["speedup"] = metrics.speedup(run, base) if base is not None else None
        if run.prompts["reference"].notna().any():
            scores = metrics.quality(run)
            own |= {key: scores[key] for key in ("bleu", "chrf")}
        rows.append(own)
    return pd.DataFrame(rows)


def label(run: Metadata) -> str:
    """A run's setting as the paper's tables name it."""
    own = run["parameters"] or {}
    mode = own.get("mode")
    if mode is None:
        return name(run)
    if own.get("k"):
        return f"{'display' if own.get('mask') == 'display' else 'mask'}-{own['k']}"
    return {"rt": RT, "cd": CD}.get(mode, f"{BETA}{own.get('beta'):g}")


def _language(run: Metadata) -> str:
    return str((run["parameters"] or {}).get("target_language", ""))


def bias(results: pd.DataFrame, figure: str = "ne", ax: Axes | None = None) -> Axes:
    """β against a figure, one line per language; RT before β = 0, continuous decoding after β = 1 (Table 3).

    Parameters
    ----------
    results : DataFrame
        As `trade_offs` makes it.
    figure : str
        One of `FIGURES`.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    TraceError
        If the table has no such figure, or no setting with a β.
    """
    ax = axes(ax, (5.4, 3.2))
    swept = results[results["method"].str.startswith(BETA)]
    if not len(_having(swept, figure)):
        raise TraceError("no setting in the table has a β and this metric: run SSBD with several")
    for number, (language, rows) in enumerate(_by_language(results)):
        hue, mark = look(number)
        line = rows[rows["method"].str.startswith(BETA)]
        line = line.assign(beta=line["method"].str.removeprefix(BETA).astype(float)).sort_values("beta")
        x, y = line["beta"].to_numpy(float), _values(line, figure)
        ax.plot(x, y[0], color=hue, marker=mark, ms=5, lw=1.6, label=literal(language))
        ax.fill_between(x, y[1], y[2], color=hue, alpha=0.15, lw=0)
        for alone, at, form in ((RT, -APART, "<"), (CD, 1 + APART, ">")):
            there = _values(rows[rows["method"] == alone], figure)
            for value, low, high in there.T:
                ax.plot(at, value, form, ms=8, color=hue, mec="black", mew=0.6, clip_on=False)
                ax.vlines(at, low, high, color=hue, lw=1.2)
    ticks = [-APART, 0, 0.2, 0.4, 0.6, 0.8, 1, 1 + APART]
    ax.set_xticks(ticks, [RT, "0", "0.2", "0.4", "0.6", "0.8", "1", CD])
    ax.set(xlim=(-APART - 0.05, 1 + APART + 0.05), xlabel="β", ylabel=FIGURES.get(figure, figure))
    ax.axvspan(0.5, 1, color=GREY, alpha=0.1, lw=0)
    words = "every draft token is kept"
    ax.text(0.75, 1.0, words, transform=ax.get_xaxis_transform(), ha="center", va="bottom", size=7)
    if len(ax.lines) and ax.get_legend_handles_labels()[1] != [""]:
        legend(ax, loc="lower left", bbox_to_anchor=(0, 1.06))
    return ax


def masks(
    results: pd.DataFrame, figure: str = "ne", ax: Axes | None = None, base: str = f"{BETA}0.2"
) -> Axes:
    """k against a figure: mask-k beside display-only mask-k (Table 4).

    Parameters
    ----------
    results : DataFrame
        As `trade_offs` makes it.
    figure : str
    ax : Axes, optional
    base : str
        The setting without a mask.

    Returns
    -------
    Axes

    Raises
    ------
    TraceError
        If the table has no masked setting with this figure.
    """
    ax = axes(ax, (5.4, 3.2))
    drawn = 0
    languages = _by_language(results)
    for number, (language, rows) in enumerate(languages):
        for kind, (word, style) in enumerate(zip(MASKS.values(), ("-", "--"))):
            start = f"{list(MASKS)[kind]}-"
            line = rows[rows["method"].str.startswith(start)]
            if not len(_having(line, figure)):
                continue
            unmasked = _values(rows[rows["method"] == base], figure)[:, :1]
            k = np.append(np.zeros(unmasked.shape[1]), line["method"].str.removeprefix(start).astype(float))
            order = np.argsort(k)
            k, y = k[order], np.hstack([unmasked, _values(line, figure)])[:, order]
            hue, mark = look(number if len(languages) > 1 else kind)
            name = literal(f"{language}, {word}" if len(languages) > 1 else word)
            ax.plot(k, y[0], color=hue, marker=mark, ms=5, lw=1.6, ls=style, label=name)
            ax.fill_between(k, y[1], y[2], color=hue, alpha=0.12, lw=0)
            drawn += 1
    if not drawn:
        raise TraceError("no setting in the table has a mask and this metric: run SSBD with k above 0")
    ax.set(xlabel="k, hidden tokens", ylabel=FIGURES.get(figure, figure))
    whole_numbers(ax.xaxis)
    ax.legend(frameon=False, fontsize=8)
    return ax


def by_language(
    results: pd.DataFrame,
    figure: str = "ne",
    ax: Axes | None = None,
    methods: Sequence[str] = (RT, f"{BETA}0.2", CD),
) -> Axes:
    """A figure by language, bars side by side for the settings: what word order costs (Table 2).

    Parameters
    ----------
    results : DataFrame
        As `trade_offs` makes it.
    figure : str
    ax : Axes, optional
    methods : sequence of str
        Which settings, where the table has them.

    Returns
    -------
    Axes

    Raises
    ------
    TraceError
        If the table has none of the settings with this figure.
    """
    shown = _having(results[results["method"].isin(methods)], figure)
    if not len(shown):
        raise TraceError(f"the table has none of {', '.join(methods)} with this metric")
    ax = axes(ax, (5.4, 3.2))
    languages = list(dict.fromkeys(shown["language"]))
    there = [m for m in methods if (shown["method"] == m).any()]
    for number, method in enumerate(there):
        rows = shown[shown["method"] == method].drop_duplicates("language")
        y = _values(rows.set_index("language").reindex(languages), figure)
        x, wide = bar_places(number, len(there), len(languages))
        ax.bar(x, y[0], width=0.92 * wide, label=method, **bar_look(number))
        has_interval = np.isfinite(y[1])
        ax.vlines(x[has_interval], y[1][has_interval], y[2][has_interval], color="black", lw=1)
    ax.set_xticks(range(len(languages)), [literal(str(each)) for each in languages])
    ax.set(ylabel=FIGURES.get(figure, figure))
    legend(ax)
    return ax


def update_costs(traces: Traces, ax: Axes | None = None, prefill: bool = True) -> Axes:
    """What an update costs, by how many came before it: dots, and their running median, a colour a run.

    Parameters
    ----------
    traces : Trace, list of Trace, or dict of name to Trace
        A long stream decoded by each run; of several streams the median at each update.
    ax : Axes, optional
    prefill : bool
        Whether the prompt's time is inside.

    Returns
    -------
    Axes
        Number of the update against milliseconds.

    Raises
    ------
    TraceError
        If a run is none of a stream.
    """
    ax = axes(ax, (6.4, 3.2))
    for number, (given, run) in enumerate(named(traces)):
        updates = run.updates
        if not len(updates):
            raise TraceError(f"the run of {run.run['method']} has no updates, so it has no cost per update")
        spent = updates["duration"] + (updates["prefill"] if prefill else 0)
        each = 1e3 * spent.groupby(updates["update"]).median()
        hue, mark = look(number)
        ax.plot(each.index, each, ls="none", marker=mark, ms=3, color=hue, alpha=0.4)
        smooth = each.rolling(WINDOW, center=True, min_periods=1).median()
        ax.plot(smooth.index, smooth, color=hue, lw=1.8, label=literal(given or name(run.run)))
    inside = "including the prompt's time" if prefill else "without the prompt's time"
    ax.set(xlabel="update", ylabel="ms per update", ylim=(0, None))
    ax.set_title(f"Cost of an update, {inside}; lines: median of {WINDOW}", size=9, loc="left", pad=18)
    legend(ax)
    return ax


def sweep(
    points: pd.DataFrame,
    curve: str | None = None,
    size: str | None = None,
    ax: Axes | None = None,
    quality: str = "BLEU",
) -> Axes:
    """Quality against speed over a sweep, with the Pareto front (BiLD's Figures 4, 5 and 10).

    Parameters
    ----------
    points : DataFrame
        As `specviz.metrics.sweep` makes it: ``quality``, ``speed``, and a column for each parameter; ``base``
        marks what speed is relative to, ``quality_lo`` and ``quality_hi`` its interval.
    curve : str, optional
        Points of one value of this column are joined; default ``rollback`` where there is one, else
        ``group``.
    size : str, optional
        A point's size grows with this column; default ``fallback`` where there is one.
    ax : Axes, optional
    quality : str
        What the score is called.

    Returns
    -------
    Axes
        ×: the base, with lines at its quality and one point below it. The front is the thick grey line.

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
    for base in based(points).to_dict("records"):
        ax.plot(base["speed"], base["quality"], "x", color="black", ms=9, mew=2, label="base")
        ax.axhline(base["quality"], color="black", lw=0.8, ls="--")
        ax.axhline(base["quality"] - 1, color="black", lw=0.8, ls=":")
        edge = ax.get_yaxis_transform()
        ax.text(1, base["quality"] - 1, "1 below", transform=edge, size=7, ha="right", va="bottom")
    ax.set(xlabel="speed relative to the base", ylabel=quality)
    legend_title = f"larger marks: larger {literal(size)}" if size else None
    ax.legend(framealpha=0.85, edgecolor="none", fontsize=8, title=legend_title, title_fontsize=8)
    return ax


SMALL, LARGE = 18.0, 110.0  # areas of the marks, square points


def columns_of(points: pd.DataFrame, curve: str | None, size: str | None) -> tuple[str | None, str | None]:
    """Which columns part the curves and size the marks; checked."""
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
    """The Pareto front's rows from the slowest to the fastest, the base's among them if it is one."""
    return points[metrics.front(points["quality"], points["speed"])].sort_values("speed")


def curves(
    points: pd.DataFrame, curve: str | None, size: str | None
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, str, str, str, list[int]]]:
    """For each curve, its points in order of `size`: x, y, areas, colour, marker, label and rows."""
    rows = points.drop(based(points).index)
    if size:
        value = rows[size].to_numpy(np.float64)
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


def _by_language(results: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(each), rows) for each, rows in results.groupby("language", sort=False)]


def _having(rows: pd.DataFrame, figure: str) -> pd.DataFrame:
    return rows[rows[figure].notna()] if figure in rows else rows[:0]


def _values(rows: pd.DataFrame, figure: str) -> np.ndarray:
    """A figure of each row: [value, low, high; rows]; NaN where it is missing, or has no interval."""
    values_table = np.full((3, len(rows)), np.nan)
    for i, value in enumerate(rows[figure]):
        if hasattr(value, "median"):
            values_table[:, i] = value.median, value.low, value.high
        elif value is not None:
            values_table[0, i] = float(value)
    return values_table
