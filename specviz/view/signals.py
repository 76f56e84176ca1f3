"""Draw the drafter's confidence with matplotlib: whether it predicts acceptance, and how it is used.

Each view takes ``ax=``, draws only on it, and returns it. The numbers are from `specviz.metrics.signals`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz import metrics
from specviz.errors import ParameterError, plural
from specviz.escape import visible
from specviz.metrics.signals import SIGNALS, signal_names
from specviz.schema import Signal
from specviz.trace import Trace
from specviz.view.axes import (
    FATE_LOOKS,
    GREY,
    LOOKS,
    Look,
    axes,
    legend_right,
    note,
    over_cycles,
    panel,
    placed,
    whole_numbers,
)
from specviz.view.control import MOST
from specviz.view.picture import FATE_WORDS, first_run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

NAMES = {
    "score": "score",
    "ensemble": "ensemble",
    "confidence": "largest probability",
    "entropy": "1 − entropy",
    "logit_margin": "logit margin",
    "softmax_margin": "softmax margin",
    "variance": "logit variance",
}
OUTCOMES = {"accepted": "share accepted", "first": "share that is the target's top token"}
SMALL = {"fontsize": 7.5, "title_fontsize": 7.5}
FEW = 10  # a bin with fewer nodes is drawn hollow


def _looks(name: str) -> Look:
    """A signal's colour and marker, the same in every picture; the recorded C_t is black."""
    if name == "score":
        return {"color": "black", "marker": "*", "ms": 7}
    if name not in SIGNALS:  # a method's own signal; its line is dotted
        return {"color": "#555555", "marker": "X", "ms": 5, "ls": ":"}
    colour, marker = LOOKS[[n for n in SIGNALS if n != "score"].index(name)]
    return {"color": colour, "marker": marker, "ms": 4.5}


def reliability(
    trace: Trace,
    signals: str | Sequence[str] | None = None,
    ax: Axes | None = None,
    bins: int = 10,
    outcome: str = "accepted",
    **options: Any,
) -> Axes:
    """Plot acceptance against confidence: is a drafter that says 0.8 accepted eight times in ten?

    Each signal is a line: the share of judged nodes accepted in each of `bins` equal intervals, at their mean
    signal, with 95 % Wilson intervals; bins of fewer than 10 nodes are hollow. Only the largest probability
    should follow the diagonal; for the others, the slope shows how well they separate good drafts from bad.

    Parameters
    ----------
    trace : Trace
        All prompts and runs are pooled.
    signals : str or sequence of str, optional
        Signals from `specviz.metrics.signals.SIGNALS` or the method's own; default: all that the trace has. A
        method's own signal that leaves [0, 1] is rescaled from its range, which the legend gives.
    ax : Axes, optional
    bins : int
    outcome : {"accepted", "first"}
        As in `specviz.metrics.calibration_curve`.
    **options
        ``weights``, ``margin_scale``, ``entropy``, ``vocabulary`` of `specviz.metrics.signals`.

    Returns
    -------
    Axes
        The legend gives each signal's area under the ROC curve with a 95 % interval over prompts.

    Raises
    ------
    ParameterError
        If a signal or the outcome does not exist, or the number of bins is invalid.
    """
    table, chosen = _chosen(trace, signals, options)
    curve = metrics.calibration_curve(table, bins, outcome)
    rated = metrics.auroc(table, outcome).set_index("signal").T.to_dict()
    ax = axes(ax, (5.6, 4.6))
    ax.plot([0, 1], [0, 1], color=GREY, lw=1, ls="--")
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="the drafter's confidence", ylabel=OUTCOMES[outcome])
    if not len(curve):
        return note(ax, "no judged node has a signal")
    present = [name for name in chosen if (curve["signal"] == name).any()]
    for number, name in enumerate(present):
        shift = 0.004 * (number - (len(present) - 1) / 2)  # keeps the intervals from overlapping
        _curve(table, name, curve[curve["signal"] == name], _rated(table, name, rated[name]), shift, ax)
    ax.set_title(_counted(table, outcome), size=9, loc="left")
    there = [rated[name][end] == rated[name][end] for end in ("auroc", "low") for name in present]
    above = "AUROC" + ", 95 %" * any(there[len(present) :]) if any(there) else None
    ax.legend(framealpha=0.85, edgecolor="none", loc="lower right", title=above, **SMALL)
    return ax


def _curve(table: pd.DataFrame, name: str, rows: pd.DataFrame, label: str, shift: float, ax: Axes) -> None:
    """Draw one signal's line; a method's own signal that leaves [0, 1] is rescaled from its range."""
    look, x = _looks(name), rows["mean"]
    if name not in SIGNALS and not table[name].dropna().between(0, 1).all():
        least, most = table[name].min(), table[name].max()
        x = (x - least) / ((most - least) or 1.0)
        label += f" (from {least:.3g} to {most:.3g})"
    x = x + shift
    ax.plot(x, rows["rate"], lw=1.4, label=label, **look)
    ax.vlines(x, rows["rate_lo"], rows["rate_hi"], color=look["color"], lw=0.9, alpha=0.6)
    few = rows["counted"] < FEW
    ax.plot(x[few], rows["rate"][few], **look | {"ls": "none", "mfc": "white"})


def _chosen(
    trace: Trace, signals: str | Sequence[str] | None, options: dict[str, Any]
) -> tuple[pd.DataFrame, list[str]]:
    """The table of signals, and the names of those to draw."""
    table = metrics.signals(trace, **options)
    names = signal_names(table)
    chosen = [signals] if isinstance(signals, str) else list(signals or names)
    for name in chosen:
        if name not in names:
            raise ParameterError(f"no signal {name!r}; there is {', '.join(names)}")
    if signals is None and np.allclose(table["score"], table["ensemble"], atol=1e-5):
        chosen.remove("ensemble")  # the recorded C_t is the same ensemble
    return table, chosen


def _rated(table: pd.DataFrame, name: str, row: Mapping[Hashable, float]) -> str:
    between = f" [{row['low']:.2f}, {row['high']:.2f}]" if row["low"] == row["low"] else ""
    return _title(table, name) + (f": {row['auroc']:.3f}{between}" if row["auroc"] == row["auroc"] else "")


def _title(table: pd.DataFrame, name: str) -> str:
    if name == "score" and table["threshold"].notna().any():  # an allowed gap follows from it
        return "C_t, as recorded"
    return NAMES.get(name) or name.replace("_", " ")


def _counted(table: pd.DataFrame, outcome: str) -> str:
    n, texts = len(table), len(table[["run", "prompt"]].drop_duplicates())
    what = "accepted" if outcome == "accepted" else "the target's top token"
    share = f", {table[outcome].mean():.0%} {what}" if n else ""
    return f"{plural(n, 'judged token')} of {plural(texts, 'text')}{share}"


def auroc(
    trace: Trace,
    signals: str | Sequence[str] | None = None,
    ax: Axes | None = None,
    outcome: str = "accepted",
    **options: Any,
) -> Axes:
    """Plot how well each signal separates accepted from rejected tokens: one row per signal, best on top.

    Parameters
    ----------
    trace, signals, ax, outcome, **options
        As in `reliability`.

    Returns
    -------
    Axes
        Area under the ROC curve (0.5: chance) with its 95 % interval over prompts. On the right, each
        signal's difference from the ensemble, with its interval (`specviz.metrics.auroc`); without an
        ensemble, from the recorded score or the first signal.
    """
    table, chosen = _chosen(trace, signals, options)
    present = [name for name in chosen if np.isfinite(table[name]).any()]
    chosen = [name for name in present if table.loc[np.isfinite(table[name]), outcome].nunique() == 2]
    ax = axes(ax, (6.4, 0.9 + 0.36 * max(1, len(chosen))))
    ax.set_title(_counted(table, outcome), size=9, loc="left")
    if not chosen:
        ax.set(xticks=[], yticks=[])
        same = "no AUROC: all judged tokens have the same outcome"
        return note(ax, same if present else "no judged node has a signal")
    than = next((name for name in ("ensemble", "score") if name in chosen), chosen[0])
    rated = metrics.auroc(table, outcome, than=than)
    rated = rated[rated["signal"].isin(chosen)].reset_index(drop=True)
    ax.axvline(0.5, color=GREY, lw=1, ls="--")
    for place, row in enumerate(rated.to_dict("records")):
        look = _looks(row["signal"])
        ax.plot(row["auroc"], place, **look | {"ls": "none"})
        ax.hlines(place, row["low"], row["high"], color=look["color"], lw=1.6)
        apart = "" if row["signal"] == than else f"  {row['gain']:+.3f}"
        if apart and row["gain_lo"] == row["gain_lo"]:
            apart += f" [{row['gain_lo']:+.3f}, {row['gain_hi']:+.3f}]"
        figures = f"{row['auroc']:.3f}{apart}".replace("-", "−")
        ax.text(1.01, place, figures, transform=ax.get_yaxis_transform(), size=8, va="center")
    ax.set_yticks(range(len(rated)), [_title(table, name) for name in rated["signal"]], size=8)
    ax.set(xlabel="AUROC for acceptance" if outcome == "accepted" else "AUROC for the target's top token")
    ax.set_ylim(len(rated) - 0.4, -0.6)
    ax.set_xlim(min(0.45, *rated["low"].dropna(), *rated["auroc"]) - 0.02, 1)
    if len(rated) > 1:
        ax.text(1.01, 1.02, f"and against {_title(table, than)}", transform=ax.transAxes, size=8, va="bottom")
    return ax


def signal_lanes(
    trace: Trace, signals: str | Sequence[str] | None = None, prompt: int | None = None,
    ax: Axes | None = None, most: int = MOST,
) -> Axes:  # fmt: skip
    """Draw a method's own signals over the cycles of one prompt, one panel each.

    A node signal is drawn as one mark per node, by the node's status; a cycle signal is drawn as a line.

    Parameters
    ----------
    trace : Trace
        Its first run is used.
    signals : str or sequence of str, optional
        Signals from ``trace.signals``; default: all that were recorded.
    prompt : int, optional
        Default: the first.
    ax : Axes, optional
        Its area is divided among the panels, which are its ``child_axes``.
    most : int
        Maximum number of cycles drawn.

    Returns
    -------
    Axes

    Raises
    ------
    ParameterError
        If a signal does not exist.
    """
    run, index = first_run(trace, prompt)
    one = run.select(prompt=index)
    cycles = one.cycles[one.cycles["cycle"] > 0].head(most)
    nodes, about = placed(one.nodes, cycles), one.signals.set_index("signal")
    levels = dict(zip(one.signals["signal"], one.signals["level"]))
    names = [name for name, level in levels.items() if _column(name, level) in (*nodes, *cycles)]
    chosen = [signals] if isinstance(signals, str) else list(signals or names)
    for name in chosen:
        if name not in names:
            raise ParameterError(
                f"no signal {name!r}; there is {', '.join(names) or 'none: none was recorded'}"
            )
    ax = over_cycles(ax, len(cycles), 0.9 + 1.3 * max(1, len(chosen)))
    if not chosen:
        return note(ax, "the method recorded no signal of its own")
    room, panels = 1 / len(chosen), []
    for number, name in enumerate(chosen):
        panels.append(panel(ax, 1 - (number + 0.86) * room, 0.72 * room))
        _lane(Signal(name, **about.loc[name, ["unit", "meaning", "level"]]), nodes, cycles, panels[-1])
    left = int((one.cycles["cycle"] > 0).sum()) - len(cycles)
    panels[-1].set_xlabel("cycle" + (f" ({left} more cycles are in the trace)" if left else ""))
    if marked := [each for each in panels if each.get_legend_handles_labels()[0]]:
        legend_right(marked[0], fontsize=7.5)
    return ax


def _column(name: str, level: str) -> str:
    """The signal's column name in the table of nodes or cycles."""
    return name if level == "node" else f"control_{name}"


def _lane(signal: Signal, nodes: pd.DataFrame, cycles: pd.DataFrame, ax: Axes) -> None:
    """Draw one signal over the cycles."""
    column = _column(signal.name, signal.level)
    if signal.level == "node":
        for fate, look in FATE_LOOKS.items():
            rows = nodes[(nodes["status"] == fate) & nodes[column].notna()]
            if len(rows):
                ax.scatter(rows["x"], rows[column], label=FATE_WORDS[fate], **look)
    else:
        look = {"color": "black", "lw": 1.2, "marker": "."}  # the dot shows a value without neighbours
        ax.step(range(1, len(cycles) + 1), cycles[column], where="mid", **look)
    if not (nodes if signal.level == "node" else cycles)[column].notna().any():
        note(ax, "not recorded", size=8)
        ax.set_yticks([])
    ax.set_title(visible(signal.meaning), size=8, loc="left", pad=2, parse_math=False)
    ax.set_ylabel(visible(signal.heading), parse_math=False)
    ax.set_xlim(0.5, len(cycles) + 0.5)
    whole_numbers(ax.xaxis)


READINGS = {
    "as_written": "τ_t = τ_base + γ (1 − C): the formula, wider if uncertain",
    "as_described": "τ_t = τ_base + γ C: the prose, stricter if uncertain",
}


def threshold_readings(
    tau_base: float = 0.1,
    gamma: float = 0.5,
    over: str = "confidence",
    trace: Trace | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot the two readings of CM-ASD's gap τ_t and of its entropy confidence.

    The formula widens the allowed gap when the drafter is uncertain, but the prose says that verification
    gets stricter. Likewise, the "entropy confidence" H/log |V| rises with uncertainty; its complement is the
    usable confidence. Over entropy the two contradictions cancel: the formulas as written give the same curve
    as the gap of the prose with the complement.

    Parameters
    ----------
    tau_base, gamma : float
        In nats; at least 0.
    over : {"confidence", "entropy"}
        The x axis: C itself, or H/log |V|, from which C follows in either reading.
    trace : Trace, optional
        Its judged nodes are drawn as dots at their gap and their C_t (recorded, else the ensemble) or
        uncertainty; a dot below a curve is accepted by that reading, as far as the gap decides.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ParameterError
        If `tau_base` or `gamma` is negative, or `over` is not a valid axis.
    """
    if tau_base < 0 or gamma < 0 or over not in ("confidence", "entropy"):
        raise ParameterError(
            "tau_base and gamma must be at least 0, and over must be 'confidence' or 'entropy'"
        )
    ax = axes(ax, (5.6, 3.6))
    x = np.linspace(0, 1, 101)
    falls, rises = tau_base + gamma * (1 - x), tau_base + gamma * x
    if over == "confidence":
        lines = [(falls, READINGS["as_written"]), (rises, READINGS["as_described"])]
        ax.set_xlabel("C, the drafter's confidence")
    else:
        written, complement = "C = H/log |V| (as written)", "C = 1 − H/log |V| (complement)"
        words = "gap as written, {}\n= gap as described, {}"
        lines = [(rises, words.format(complement, written)), (falls, words.format(written, complement))]
        ax.set_xlabel("H / log |V|, the drafter's uncertainty")
    top = max(2 * (tau_base + gamma), 0.2)
    for number, (y, label) in enumerate(lines):
        ax.plot(x, y, color=LOOKS[number][0], ls=("-", "--")[number], lw=2, label=label)
    if trace is not None:
        _dots(trace, over, top, ax)
    ax.axhline(tau_base, color=GREY, lw=0.8, ls=":")
    ax.text(0.5, tau_base, "τ_base", size=8, color="#555555", ha="center", va="bottom")  # below both curves
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.03 * top, top * 1.04), ylabel="largest gap allowed, nats")
    ax.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.0), borderpad=0)
    return ax


def _dots(trace: Trace, over: str, top: float, ax: Axes) -> None:
    """Draw the judged nodes as dots; those above the axes are drawn at its edge."""
    table = metrics.signals(trace)
    table = table[table["gap"].notna()]
    across = table["score"].fillna(table["ensemble"]) if over == "confidence" else 1 - table["entropy"]
    for status, look in (
        ("accepted", {"s": 9, "alpha": 0.35}),
        ("rejected", {"s": 16, "alpha": 0.7, "lw": 0.9}),
    ):
        rows = table["accepted"] == (status == "accepted")
        label = f"{status} ({rows.sum():,})"
        ax.scatter(across[rows], table["gap"][rows].clip(upper=top), label=label, **FATE_LOOKS[status] | look)
