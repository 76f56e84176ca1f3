"""Draw why drafting pays with matplotlib: tokens per cycle against the cost of a cycle."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from specviz.errors import TraceError, plural
from specviz.metrics.payoff import PLAIN, break_even
from specviz.trace import Trace
from specviz.view.axes import GREY, axes, literal, look
from specviz.view.updates import Traces, distinct, named

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# Speedups whose lines are drawn, break-even first; one whose label would overlap an earlier label is skipped.
SPEEDUPS = (1.0, 0.75, 0.5, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0)
APART = 0.06  # minimum distance between two labels, as a fraction of the figure's width or height
MARGIN = 0.12  # space around the points, as a fraction of the range
MOST = (0.05, 0.95)  # quantiles of the prompts' dots that the limits include at least
EVEN = "break-even, τ = cost: above it drafting pays"
X_NAME, Y_NAME = "cost of a cycle, in plain passes", "τ, tokens per cycle"


def payoff(traces: Traces) -> tuple[pd.DataFrame, pd.DataFrame, list[Trace]]:
    """The figure's rows per run, baseline first; its rows per run and prompt; and the runs in that order.

    Raises
    ------
    TraceError
        If not exactly one run is autoregressive, or for the reasons given in `specviz.metrics.break_even`.
    """
    pairs = named(traces)
    plain = [run for _, run in pairs if run.run["method"] == PLAIN]
    if len(plain) != 1:
        several = "; if they are one method over several texts, pass trace.join()" if plain else ""
        raise TraceError(f"the figure needs one run of {PLAIN} decoding, but there are {len(plain)}{several}")
    pairs.sort(key=lambda pair: pair[1] is not plain[0])
    runs = [run for _, run in pairs]
    names = distinct([given or _title(run) for given, run in pairs], runs)
    of = dict(zip(names, runs))
    return break_even(of, names[0]), break_even(of, names[0], per="prompt"), runs


def _title(run: Trace) -> str:
    """Name a run by its method and drafter."""
    draft = (run.run["draft"] or {}).get("name")
    return str(run.run["method"]) + (f", {draft}" if draft else "")


def ranges(
    table: pd.DataFrame, prompts: pd.DataFrame
) -> tuple[tuple[float, float], tuple[float, float], int]:
    """Limits of x and y that fit every run's intervals and most prompts; how many prompts fall outside."""
    bounds = []
    for name in ("cost", "tau"):
        runs = table[[name, f"{name}_lo", f"{name}_hi"]].to_numpy(np.float64)
        most = np.nanquantile(prompts[name], MOST)
        low = float(min(np.nanmin(runs), most[0]))
        high = float(max(np.nanmax(runs), most[1]))
        room = MARGIN * max(high - low, 0.5)
        bounds.append((max(0.0, low - room), high + room))
    x, y = bounds
    inside = prompts["cost"].between(*x) & prompts["tau"].between(*y)
    return x, y, int((~inside).sum())


Segment: TypeAlias = "tuple[tuple[float, float], tuple[float, float]]"


def lines(x: tuple[float, float], y: tuple[float, float]) -> dict[float, Segment]:
    """The visible lines of equal speedup by speedup, each as returned by `line`."""
    kept: dict[float, Segment] = {}
    ends: list[tuple[float, float]] = []
    for speedup in SPEEDUPS:
        if (part := line(speedup, x, y)) is not None:
            end = (part[0][1] - x[0]) / (x[1] - x[0]), (part[1][1] - y[0]) / (y[1] - y[0])
            if all(max(abs(end[0] - h), abs(end[1] - v)) >= APART for h, v in ends):
                kept[speedup] = part
                ends.append(end)
    return kept


def line(
    speedup: float, x: tuple[float, float], y: tuple[float, float]
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """The part of τ = speedup · cost within the limits, as its xs and ys; None if it is outside."""
    low, high = max(x[0], y[0] / speedup), min(x[1], y[1] / speedup)
    return ((low, high), (speedup * low, speedup * high)) if low < high else None


def why_it_pays(traces: Traces, ax: Axes | None = None) -> Axes:
    """Plot τ against the cost of a cycle; drafting pays for methods above the break-even line.

    Parameters
    ----------
    traces : Trace, list of Trace, or dict of name to Trace
        Runs over the same prompts, exactly one autoregressive, decoded prompt by prompt with a record.
    ax : Axes, optional

    Returns
    -------
    Axes
        One mark per run (hollow: lossy) with 95 % intervals over prompts, one small dot per prompt; the
        break-even line τ = cost, and lines of equal speedup. The data are from `specviz.metrics.break_even`.

    Raises
    ------
    TraceError
        If not exactly one run is autoregressive, or for the reasons given in `specviz.metrics.break_even`.
    """
    table, prompts, _ = payoff(traces)
    x, y, outside = ranges(table, prompts)
    ax = axes(ax, (8.6, 4.2))
    shown = lines(x, y)
    if (even := shown.pop(1.0, None)) is not None:
        ax.plot(*even, color="black", lw=1.2, label=EVEN)
        ax.fill_between([x[0], *even[0], x[1]], [max(y[0], x[0]), *even[1], min(y[1], x[1])], y[1],
                        color="#009e73", alpha=0.06, lw=0)  # fmt: skip
    for speedup, part in shown.items():
        ax.plot(*part, color=GREY, lw=0.8, ls=":")
        ax.annotate(f"{speedup:g}×", (part[0][1], part[1][1]), color=GREY, fontsize=7, ha="right", va="top")
    for number, row in enumerate(table.to_dict("records")):
        base = row["method"] == PLAIN
        hue, mark = ("black", "x") if base else look(number - 1)
        lossy = row["exactness"] == "lossy"
        own = prompts[prompts["name"] == row["name"]]
        if not base:
            ax.plot(own["cost"], own["tau"], ls="none", marker=mark, ms=3, color=hue, alpha=0.35)
        ax.hlines(row["tau"], row["cost_lo"], row["cost_hi"], color=hue, lw=1.2)
        ax.vlines(row["cost"], row["tau_lo"], row["tau_hi"], color=hue, lw=1.2)
        ax.plot(row["cost"], row["tau"], ls="none", marker=mark, ms=8, color=hue, mew=1.6,
                mfc="white" if lossy else hue, label=literal(words(row)))  # fmt: skip
    ax.set(xlim=x, ylim=y, xlabel=X_NAME, ylabel=Y_NAME)
    ax.set_title(literal(heading(table, outside)), fontsize=9, loc="left")
    ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def words(row: Mapping[Hashable, str | float]) -> str:
    """A run's legend entry: its name, exactness and speedup."""
    if row["method"] == PLAIN:
        return f"{row['name']}: the plain pass"
    return f"{row['name']} ({row['exactness']}): {row['speedup']:.2f}×"


def heading(table: pd.DataFrame, outside: int) -> str:
    """The figure's title: the number of prompts, how times were measured, and how many dots are outside."""
    count = plural(int(table["prompts"].iloc[0]), "prompt")
    if table[["tau_lo", "cost_lo"]].isna().all(axis=None):
        count += ", too few for intervals"
    text = f"{count}; times measured in separate runs, without the prefill"
    return text + (f"; {plural(outside, 'dot')} outside" if outside else "")
