"""Draw CM-ASD's feedback loop: confidence, window, gap and accepted tokens, cycle by cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specviz import schema
from specviz.errors import TraceError
from specviz.escape import visible
from specviz.trace import Trace
from specviz.view.axes import (
    FATE_LOOKS,
    GREY,
    Look,
    legend_right,
    note,
    over_cycles,
    panel,
    placed,
    whole_numbers,
)
from specviz.view.picture import FATE_WORDS, FATES, certainty, first_run, name_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

# How a node is drawn in its window's bar, by its status.
BARS: dict[str, Look] = {
    "accepted": {"color": "#0072b2"},
    "rejected": {"color": "#d55e00", "hatch": "////", "edgecolor": "white"},
    "unjudged": {"color": "#bbbbbb"},
    "unreviewed": {"color": "#56b4e9", "hatch": "....", "edgecolor": "white"},
    "cut": {"color": "#dddddd", "hatch": "||", "edgecolor": "white"},
    "unsent": {"facecolor": "none", "edgecolor": "#999999", "ls": ":"},
    "below_budget": {"facecolor": "none", "edgecolor": "#999999", "ls": "--"},
}
MOST = 80  # maximum number of cycles drawn


@dataclass(frozen=True)
class Loop:
    """The data that the panels draw: the control loop of one prompt.

    Parameters
    ----------
    nodes : DataFrame
        One row per drafted node: ``x`` (the cycle's number plus the node's offset within the cycle),
        ``cycle``, ``status``, ``text``, ``value`` (certainty), ``threshold`` and ``gap`` (nats; NaN if
        there is none).
    cycles : DataFrame
        One row per cycle: ``cycle``, ``window`` (k_j; NaN if the method has none), ``mean`` (the certainty
        that set the window; without a controller, the mean over the nodes sent), and a count for each fate.
    certainty : str
        Name of the certainty in ``value``.
    allowed : (str, str)
        Name of the quantity compared with the threshold, and the threshold's symbol.
    least : float
        A threshold on the certainty itself (BiLD's α_FB); NaN if there is none.
    title : str
    note : str
        How many cycles are left out, or empty.
    """

    nodes: pd.DataFrame
    cycles: pd.DataFrame
    certainty: str
    allowed: tuple[str, str]
    least: float
    title: str
    note: str


def loop(trace: Trace, prompt: int | None = None, most: int = MOST) -> Loop:
    """Reduce one prompt of a trace's first run to its control loop.

    Raises
    ------
    TraceError
        If nothing was drafted.
    """
    import pandas as pd

    run, index = first_run(trace, prompt)
    one = run.select(prompt=index)
    facts, nodes, cycles = one.run, one.nodes, one.cycles
    parameters = facts["parameters"] or {}
    if not len(nodes):
        raise TraceError(f"{facts['method']} drafted nothing here, so there is no control loop to show")
    cycles = cycles[cycles["cycle"] > 0]
    nodes = placed(nodes, cycles)
    # In a tree, a node's score is that of its path; in a method with an allowed gap, the score is C_t.
    scored = bool(nodes["score"].notna().any() and nodes["threshold"].notna().any())
    value = "score" if scored else certainty(nodes, facts.get("canvas") is not None)
    threshold, gap, allowed = nodes["threshold"], nodes["gap"], ("gap to the target's top token", "τ_t")
    if facts["method"] in schema.ROLLBACK and isinstance(parameters.get("rollback"), int | float):
        judged = nodes["status"].isin(["accepted", "rejected"]) & nodes["p"].notna()
        with np.errstate(divide="ignore"):
            gap = pd.Series(-np.log(nodes["p"].to_numpy(float)), nodes.index).where(judged)
        threshold = gap.notna().map({True: float(parameters["rollback"])})
        allowed = ("−ln p of the large model", "α_RB")
    table = nodes[["status", "text", "position", "x"]].assign(
        cycle=nodes["at"],
        value=nodes[value],
        threshold=threshold,
        gap=gap,
    )
    sent = table[~table["status"].isin(["unsent", "below_budget", "unreviewed"])]
    shape = cycles.assign(cycle=np.arange(1, len(cycles) + 1))
    about = shape[["cycle"]].assign(window=shape.get("control_window", np.nan))
    about["mean"] = about["cycle"].map(sent.groupby("cycle")["value"].mean())
    if "control_confidence" in shape and shape["control_confidence"].notna().any():
        about["mean"] = shape["control_confidence"]  # CM-ASD's, over all drafted tokens
    for fate in FATES:
        about[fate] = about["cycle"].map((table["status"] == fate).groupby(table["cycle"]).sum()).fillna(0)
    left = len(about) - most
    models = " ← ".join(filter(None, (name_of(facts["model"]), name_of(facts["draft"]))))
    least = parameters.get("fallback")
    return Loop(
        table[table["cycle"].between(1, most)],
        about[about["cycle"] <= most],
        "confidence C_t" if scored else value,
        allowed,
        float(least) if isinstance(least, int | float) else float("nan"),
        visible(f"{facts['method']}: {models}, text {index + 1}"),
        f"{left} more cycles are in the trace" if left > 0 else "",
    )


def control_loop(trace: Trace, prompt: int | None = None, ax: Axes | None = None, most: int = MOST) -> Axes:
    """Draw confidence, window, verdicts and gaps over the cycles of one prompt, in three panels.

    Each cycle is a column, and its draft tokens run from left to right. Top: the drafter's confidence
    in each token (CM-ASD's C_t, otherwise its largest probability) and the mean that sets the window. Middle:
    the length of the window k_j (black) and the verdicts on the draft. Bottom: the gap of each judged token
    and, as a dash, the largest allowed gap (τ_t; BiLD's distance and α_RB); gaps larger than the panel are
    drawn at its edge (▲).

    Parameters
    ----------
    trace : Trace
        Its first run is used.
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
    TraceError
        If nothing was drafted.
    """
    shown = loop(trace, prompt, most)
    count = len(shown.cycles)
    ax = over_cycles(ax, count, 6.0)
    tall = ((0.68, 0.32), (0.36, 0.24), (0.0, 0.28))  # bottom and height of each panel
    panels = [panel(ax, bottom, height) for bottom, height in tall]
    _certainty(shown, panels[0])
    _window(shown, panels[1])
    _gaps(shown, panels[2])
    for each in panels:
        each.set_xlim(0.5, count + 0.5)
        for edge in np.arange(1.5, count):
            each.axvline(edge, color=GREY, lw=0.4, alpha=0.35)
        whole_numbers(each.xaxis)
    for each in panels[:2]:
        each.set_xticklabels([])
    panels[2].set_xlabel("cycle" + (f" ({shown.note})" if shown.note else ""))
    return ax


def _certainty(shown: Loop, ax: Axes) -> None:
    nodes, cycles = shown.nodes, shown.cycles
    if cycles["mean"].notna().any():
        look: Look = {"color": "black", "lw": 1.1, "alpha": 0.7, "marker": ".", "ms": 4}
        ax.plot(cycles["cycle"], cycles["mean"], label="mean", **look)
    for fate, look in FATE_LOOKS.items():
        rows = nodes[nodes["status"] == fate]
        if len(rows):
            ax.scatter(rows["x"], rows["value"], clip_on=False, zorder=3, label=FATE_WORDS[fate], **look)
    if np.isfinite(shown.least):
        ax.axhline(shown.least, ls="--", lw=1, color="#444444", label=f"fallback threshold {shown.least:g}")
    ax.set(ylim=(0, 1.03), ylabel=shown.certainty, yticks=(0, 0.5, 1))
    if not nodes["value"].notna().any():
        note(ax, "the drafter gave no confidence", size=9)
    legend_right(ax, 1.03, fontsize=7.5)
    ax.set_title(shown.title, size=9, loc="left", pad=22, parse_math=False)


def _window(shown: Loop, ax: Axes) -> None:
    cycles = shown.cycles
    base = np.zeros(len(cycles))
    for fate, look in BARS.items():
        count = cycles[fate].to_numpy(float)
        if count.any():
            ax.bar(cycles["cycle"], count, bottom=base, width=0.7, lw=0.8, label=FATE_WORDS[fate], **look)
        base += count
    if cycles["window"].notna().any():
        x, y = cycles["cycle"].to_numpy(float), cycles["window"].to_numpy(float)
        ax.hlines(y, x - 0.42, x + 0.42, color="black", lw=2, label="window k_j")
    whole_numbers(ax.yaxis)
    ax.set(ylim=(0, max(1.0, base.max() * 1.08)), ylabel="draft tokens")
    legend_right(ax, fontsize=7.5)


def _gaps(shown: Loop, ax: Axes) -> None:
    nodes = shown.nodes
    judged = nodes[nodes["gap"].notna()]
    if not nodes["threshold"].notna().any():
        ax.set(yticks=[], ylabel="gap")
        note(ax, "no gap was allowed or recorded: another rule accepts tokens", size=9)
        return
    limit = float(nodes["threshold"].max())
    top = max(2.2 * limit, 0.25)
    step = 0.4 / max(1, int(nodes.groupby("cycle").size().max()))
    tested = nodes[nodes["threshold"].notna()]
    left, right, label = tested["x"] - step, tested["x"] + step, f"allowed, {shown.allowed[1]}"
    ax.hlines(tested["threshold"], left, right, color="black", lw=1.4, label=label)
    ax.vlines(judged["x"], 0, judged["gap"].clip(upper=top), color=GREY, lw=0.6, alpha=0.7)
    for fate in ("accepted", "rejected", "unjudged", "cut"):
        rows = judged[judged["status"] == fate]
        inside, beyond = rows[rows["gap"] <= top], rows[rows["gap"] > top]
        if len(inside):
            look = {"label": FATE_WORDS[fate], **FATE_LOOKS[fate]}
            ax.scatter(inside["x"], inside["gap"], clip_on=False, zorder=3, **look)
        if len(beyond):
            words = f"{FATE_WORDS[fate]}, beyond {top:.2g} nats"
            look = FATE_LOOKS[fate] | {"marker": "^", "s": 22, "label": words}
            ax.scatter(beyond["x"], np.full(len(beyond), top), zorder=3, clip_on=False, **look)
    ax.set(ylim=(0, top), ylabel="gap, nats")
    legend_right(ax, fontsize=7.5)
    ax.set_title(shown.allowed[0], size=8, loc="left", pad=15)
