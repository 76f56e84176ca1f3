"""matplotlib views of what passes cost: the roofline, the times that it allows, and BiLD's Figure 8.

Each takes ``ax=``, draws only on it, and returns it; ``*_words`` says the same in sentences. The numbers are
those of `specviz.metrics.costs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz import metrics
from specviz.errors import plural
from specviz.escape import visible
from specviz.metrics import Ceilings
from specviz.trace import Trace
from specviz.view.axes import GREY, Look, axes, bar_look, bar_places, legend, literal, look
from specviz.view.picture import name_of
from specviz.view.updates import Traces, named

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

FIGURES = {
    "relative_flops": "FLOPs",
    "relative_bytes": "bytes moved",
    "relative_intensity": "FLOPs a byte",
    "speedup": "speed",
}
AREA = 1400  # square points, of all of a run's time


def roofline(traces: Traces, ceilings: Ceilings, ax: Axes | None = None) -> Axes:
    """Where passes lie under the machine's ceilings: arithmetic intensity against what was computed a second.

    A point is all passes of a run by one model over one number of tokens; its area is their share of the
    run's time in passes, its colour the model, its form the run; prefills are hollow. Lines are the ceilings:
    the flat one of computing, the sloping ones of memory and of a block as large as each model, read again
    and again from a cache. How far a point lies below them is what calling kernels and small matrices cost.

    Parameters
    ----------
    traces : Trace, list of Trace, or dict of name to Trace
    ceilings : Ceilings
        Measured where the runs ran: `specviz.measure.benches.ceilings.measure`, or `Ceilings.read`.
    ax : Axes, optional

    Returns
    -------
    Axes
        Both scales are logarithmic.

    Raises
    ------
    TraceError
        If a model's shape or the passes' times are not known.
    """
    ax = axes(ax, (7.2, 4.4))
    points = _points(traces, ceilings)
    hues = _hues(points)
    labels = dict.fromkeys(points["label"])
    forms = {str(label): look(number)[1] for number, label in enumerate(labels)}
    for row in points.sort_values("share", ascending=False).to_dict("records"):  # the small ones on top
        hue = hues[row["model"]]
        face, edge = ("none", hue) if row["prefill"] else (hue, "white")
        ax.scatter(
            row["intensity"], row["flops"] / row["duration"] / 1e9, s=max(AREA * row["share"], 8),
            marker=forms[row["label"]], alpha=0.6, lw=0.7, facecolor=face, edgecolor=edge,
        )  # fmt: skip
    low, high = (
        points["intensity"].min() / 2,
        max(points["intensity"].max(), ceilings.compute / ceilings.memory) * 2,
    )
    _ceilings(ax, ceilings, low, high)
    ax.set(xscale="log", yscale="log", xlim=(low, high))
    ax.set(xlabel="arithmetic intensity, FLOPs a byte", ylabel="GFLOP/s")
    ax.set_title(f"Passes under the ceilings of {literal(_machine(ceilings))}", size=9, loc="left")
    _keys(ax, hues, forms, loc="upper left")
    return ax


def _ceilings(ax: Axes, ceilings: Ceilings, low: float, high: float) -> None:
    """The lines: a flat one of computing, and one for each memory."""
    flat = ceilings.compute / 1e9
    slopes = [(ceilings.memory, f"memory {ceilings.memory / 1e9:.3g} GB/s", ":")]
    for number, (size, rate) in enumerate(sorted(ceilings.cache.items(), reverse=True)):
        slopes.append((rate, f"{size / 1e6:.3g} MB again {rate / 1e9:.3g} GB/s", ("--", "-.")[number % 2]))
    fastest = max(rate for rate, _, _ in slopes)
    ax.plot([ceilings.compute / fastest, high], [flat, flat], color="#444444", lw=1.2)
    ax.annotate(
        f"compute {flat:.3g} GFLOP/s", (high, flat), (-2, 3), textcoords="offset points", ha="right", size=7
    )
    for rate, label, style in slopes:
        ridge = ceilings.compute / rate
        ax.plot([low, ridge], [low * rate / 1e9, flat], color="#444444", lw=1.0, ls=style, label=label)


def pass_times(traces: Traces, ceilings: Ceilings, ax: Axes | None = None) -> Axes:
    """The time that the roofline allows beside the time that passes took, a pair of bars a run.

    Parameters
    ----------
    traces : Trace, list of Trace, or dict of name to Trace
    ceilings : Ceilings
    ax : Axes, optional

    Returns
    -------
    Axes
        Milliseconds in passes per token of the texts, without the prefill, divided by model.

    Raises
    ------
    TraceError
        As `roofline`.
    """
    runs = named(traces)
    ax = axes(ax, (7.2, 0.9 + 0.7 * len(runs)))
    points = _points(traces, ceilings)
    hues = _hues(points)
    spent = points[~points["prefill"]].groupby(["label", "model"], sort=False)[["roofline", "duration"]].sum()
    labels = list(dict.fromkeys(points["label"]))
    for row, label in enumerate(labels):
        tokens = points.loc[points["label"] == label, "of"].iloc[0]
        for place, name in ((-0.2, "roofline"), (0.2, "duration")):
            left = 0.0
            for model, hue in hues.items():
                if (label, model) not in spent.index:
                    continue
                wide = 1e3 * float(spent.loc[(label, model), name]) / tokens
                fill: Look = {"color": hue}
                if name == "roofline":
                    fill = {"facecolor": "none", "edgecolor": hue, "hatch": "////", "lw": 1}
                ax.barh(row + place, wide, left=left, height=0.36, **fill)
                left += wide
            name_of_bar = "roofline" if name == "roofline" else "measured"
            ax.text(left, row + place, f" {name_of_bar} {left:.3g} ms", va="center", size=7)
    ax.set_yticks(range(len(labels)), [visible(label) for label in labels], size=8, parse_math=False)
    ax.invert_yaxis()
    ax.margins(x=0.18)
    ax.set_xlabel("ms in passes per token, without the prefill")
    _keys(ax, hues, {}, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(hues))
    return ax


def costs_figure(
    traces: Mapping[str, Trace],
    baseline: str = "autoregressive",
    prefill: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """FLOPs, bytes moved, arithmetic intensity and speed over the baseline's: BiLD's Figure 8.

    Parameters
    ----------
    traces : dict of name to Trace
        Of the same prompts.
    baseline : str
        Which of them the others are set against: the line at 1.
    prefill : bool
        Whether the prompt's costs and time are inside.
    ax : Axes, optional

    Returns
    -------
    Axes
        Bars rise or fall from 1, on a logarithmic scale: what halves is as long as what doubles. All figures
        are per token of the texts.

    Raises
    ------
    TraceError
        As `specviz.metrics.relative_costs`.
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
    """`costs_figure` in sentences."""
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


def roofline_words(traces: Traces, ceilings: Ceilings) -> str:
    """`roofline` and `pass_times` in sentences."""
    caches = "".join(
        f", {rate / 1e9:.3g} GB/s from {size / 1e6:.3g} MB" for size, rate in sorted(ceilings.cache.items())
    )
    lines = [
        f"{_machine(ceilings)}: {ceilings.compute / 1e9:.3g} GFLOP/s, "
        f"{ceilings.memory / 1e9:.3g} GB/s from memory{caches}."
    ]
    points = _points(traces, ceilings)
    for (label, model, prefill), rows in points.groupby(["label", "model", "prefill"], sort=False):
        whole = rows[["flops", "bytes", "duration", "roofline", "passes"]].sum()
        lines.append(
            f"{label}, {model}{', prefill' if prefill else ''}: {whole['passes']:.0f} passes, "
            f"{whole['flops'] / whole['bytes']:.3g} FLOPs a byte, "
            f"{whole['flops'] / whole['duration'] / 1e9:.3g} GFLOP/s; they took "
            f"{1e3 * whole['duration']:.3g} ms, {whole['duration'] / whole['roofline']:.2f} times the "
            f"roofline's {1e3 * whole['roofline']:.3g} ms."
        )
    return visible("\n".join(lines))


def _machine(ceilings: Ceilings) -> str:
    """Where ceilings were measured."""
    threads = f", {plural(ceilings.threads, 'thread')}" if ceilings.threads else ""
    return f"{ceilings.device}{threads}, {ceilings.dtype}"


def _points(traces: Traces, ceilings: Ceilings) -> pd.DataFrame:
    """One row per run, model and size of pass: sums, intensity, and share of the run's time in passes."""
    import pandas as pd

    tables = []
    for given, run in named(traces):
        table = metrics.roofline_times(run, ceilings)
        names = {"target": name_of(run.run["model"]), "draft": name_of(run.run["draft"])}
        table["model"] = table["model"].map(lambda model, names=names: names[str(model)])
        sums = ["flops", "bytes", "duration", "roofline"]
        groups = table.groupby(["model", "prefill", "tokens", "rows"], sort=False)
        own = groups[sums].sum().join(groups.size().rename("passes")).reset_index()
        own["share"] = own["duration"] / own["duration"].sum()
        tables.append(own.assign(label=given or run.run["method"], of=len(run.outputs)))
    points = pd.concat(tables, ignore_index=True)
    return points.assign(intensity=points["flops"] / points["bytes"])


def _hues(points: pd.DataFrame) -> dict[str, str]:
    """A colour a model."""
    models = dict.fromkeys(points["model"])
    return {str(model): look(number)[0] for number, model in enumerate(models)}


def _keys(ax: Axes, hues: Mapping[str, str], forms: Mapping[str, str], **place: Any) -> None:
    """Legends: colours of models, forms of runs, and what lines have a label."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [Patch(color=hue, label=literal(model)) for model, hue in hues.items()]
    for words, form in forms.items():
        handles.append(Line2D([], [], ls="", marker=form, color=GREY, ms=6, label=literal(words)))
    handles += [line for line in ax.lines if not str(line.get_label()).startswith("_")]
    ax.legend(handles=handles, frameon=False, fontsize=7, **place)
