"""Plot a method's costs and savings relative to a baseline, as in BiLD's Figure 8.

`costs_words` gives the same numbers in sentences. They come from `specviz.metrics.relative_costs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from specviz import metrics
from specviz.escape import visible
from specviz.trace import Trace
from specviz.view.axes import axes, bar_look, bar_places, legend, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = {
    "relative_flops": "FLOPs",
    "relative_bytes": "bytes moved",
    "relative_intensity": "FLOPs a byte",
    "speedup": "speed",
}


def costs_figure(
    traces: Mapping[str, Trace],
    baseline: str = "autoregressive",
    prefill: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Plot FLOPs, bytes moved, arithmetic intensity and speed relative to the baseline: BiLD's Figure 8.

    Parameters
    ----------
    traces : dict of name to Trace
        Runs over the same prompts.
    baseline : str
        The run that the others are compared with: the line at 1.
    prefill : bool
        Whether to include the prefill's costs and time.
    ax : Axes, optional

    Returns
    -------
    Axes
        Bars rise or fall from 1 on a logarithmic scale, so halving is as long as doubling. All figures
        are per output token.

    Raises
    ------
    TraceError
        For the reasons given in `specviz.metrics.relative_costs`.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    table = metrics.relative_costs(traces, baseline, prefill)
    rows = table[table["name"] != baseline]
    ax = axes(ax, (7.2, 3.4))
    for number, (_, row) in enumerate(rows.iterrows()):
        x, wide = bar_places(number, len(rows), len(FIGURES))
        y, name = np.array([row[name] for name in FIGURES], float), literal(str(row["name"]))
        ax.bar(x, y - 1, bottom=1, width=0.92 * wide, label=name, **bar_look(number))
        for at, value in zip(x, y):
            shift, side = (2, "bottom") if value >= 1 else (-2, "top")
            ax.annotate(f"{value:.3g}", (at, value), (0, shift), textcoords="offset points", size=7,
                        ha="center", va=side)  # fmt: skip
    ax.axhline(1, color="black", lw=1)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_locator(LogLocator(2))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    ax.margins(y=0.12)
    ax.set_xticks(range(len(FIGURES)), list(FIGURES.values()))
    scope = f"{literal(baseline)}'s, prefill {'included' if prefill else 'excluded'}"
    ax.set_title(f"Costs per token relative to {scope}", size=9, loc="left", pad=18)
    legend(ax)
    return ax


def costs_words(traces: Mapping[str, Trace], baseline: str = "autoregressive", prefill: bool = False) -> str:
    """Describe the numbers of `costs_figure` in sentences."""
    table = metrics.relative_costs(traces, baseline, prefill)
    base = table[table["name"] == baseline].iloc[0]
    inside = "prefill included" if prefill else "without the prefill"
    lines = [
        f"{baseline}: {base['flops'] / 1e6:.3g} MFLOPs and {base['bytes'] / 1e6:.3g} MB a token, "
        f"{base['intensity']:.3g} FLOPs a byte, {1e3 * base['seconds']:.3g} ms ({inside})."
    ]
    for _, row in table[table["name"] != baseline].iterrows():
        lines.append(
            f"{row['name']}: {row['relative_flops']:.2f} times its FLOPs, {row['relative_bytes']:.2f} times "
            f"its bytes, {row['relative_intensity']:.2f} times its intensity; {row['speedup']:.2f} times as "
            "fast."
        )
    return visible("\n".join(lines))
