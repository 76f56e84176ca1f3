"""Plot predicted speedup over draft length: where drafting pays and where it stops paying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from specviz.errors import ParameterError
from specviz.view.axes import GREY, axes, literal, look, whole_numbers

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Row: TypeAlias = Mapping[str, Any]  # one row of a report

WANTED = ("method", "draft", "nodes", "speedup", "low", "high", "label")


def advice(table: pd.DataFrame, confirmed: Sequence[Row] = (), ax: Axes | None = None) -> Axes:
    """Plot each method's and drafter's predicted speedup over draft length, at the best other parameters.

    Parameters
    ----------
    table : DataFrame
        ``sv.advise(...).table``: ``method``, ``draft``, ``nodes`` (maximum draft length in tokens),
        ``label``, ``speedup`` and its interval ``low``, ``high``.
    confirmed : sequence of dict, optional
        The advice's ``confirmed``: speedups measured on other prompts, drawn as crosses.
    ax : Axes, optional
        Default: the axes of a new figure.

    Returns
    -------
    Axes

    Raises
    ------
    ParameterError
        If the table is not from an advice, or no setting in it drafts.
    """
    missing = [name for name in WANTED if name not in table]
    if missing:
        raise ParameterError(f"this is not the table of an advice: it has no column {missing[0]}")
    drafting = table[table["nodes"] > 0]
    if drafting.empty:
        raise ParameterError("nothing to draw: no setting uses drafts")
    ax = axes(ax, (6.4, 3.6))
    ax.axhline(1, color=GREY, lw=0.8, ls="--", label="without drafts")
    measured = {str(row["label"]): row["measured"] for row in confirmed}
    families = sorted(
        set(zip(drafting["method"], drafting["draft"]))
    )  # sorted, so that colours do not depend on the order of speed
    for number, (method, draft) in enumerate(families):
        group = drafting[(drafting["method"] == method) & (drafting["draft"] == draft)]
        best = group.loc[group.groupby("nodes")["speedup"].idxmax()].sort_values("nodes")
        hue, marker = look(number)
        name = literal(f"{method}, {draft}" if draft else str(method))
        ax.plot(best["nodes"], best["speedup"], color=hue, marker=marker, ms=4, lw=1.4, label=name)
        ax.fill_between(best["nodes"], best["low"], best["high"], color=hue, alpha=0.12, lw=0)
        for label, nodes in zip(group["label"], group["nodes"]):
            if label in measured:
                value, low, high = measured[label]
                bars = [[max(0.0, value - low)], [max(0.0, high - value)]]
                ax.errorbar([nodes], [value], yerr=bars, color=hue, marker="x", ms=8)
    if drafting["label"].isin(measured).any():
        ax.plot([], [], color=GREY, ls="", marker="x", ms=8, label="measured")
    whole_numbers(ax.xaxis)
    ax.set(xlabel="maximum draft length in tokens", ylabel="speedup", ylim=(0, None))
    ax.legend(frameon=False, fontsize=8, loc="lower left")
    return ax
