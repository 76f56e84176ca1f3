"""Draw a drafter's memory with matplotlib: how often it is right, how full it is, how it warms up.

Each view takes ``ax=``, draws only on it, and returns it. The numbers are from `specviz.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specviz import metrics
from specviz.errors import TraceError
from specviz.paths import expanded
from specviz.trace import Trace
from specviz.view.axes import DASHES, GREY, LOOKS, Look, axes, legend, literal, look, note, whole_numbers

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

READINGS = {
    "judged": "share of judged nodes that were accepted",
    "text": "share of sent nodes that are in the final text",
}
MOST_LEVELS = 10  # of a tree


def acceptance_by_score(
    trace: Trace, ax: Axes | None = None, bins: int = 10, reading: str = "judged"
) -> Axes:
    """Plot how often nodes are right by score, and how scores are distributed: UniSpec's Figure 3.

    Points are the share of right nodes in each interval of the score, one line per source, with 95 %
    intervals; grey bars are the share of sent nodes in that interval (the paper's sample density).

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    bins : int
    reading : {"judged", "text"}
        The nodes that the share counts; see `specviz.metrics.by_score`.

    Returns
    -------
    Axes
    """
    table = metrics.by_score(trace, bins, reading)
    ax = axes(ax, (6.4, 3.6))
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="score", ylabel="share")
    sources = sorted(name for name in table["source"].unique() if name != "all")
    if not sources:
        return note(ax, "no sent node has a score")
    whole = table[table["source"] == "all"]
    middle = (whole["low"] + whole["high"]) / 2
    ax.bar(middle, whole["share"], width=0.94 / bins, color=GREY, alpha=0.4, label="share of the nodes")
    shift = 0.12 / bins
    for number, name in enumerate(sources):
        rows = table[(table["source"] == name) & (table["counted"] > 0)]
        middle = (rows["low"] + rows["high"]) / 2 + shift * (number - (len(sources) - 1) / 2)
        _points(ax, middle, rows, number, f"right: {literal(name)}")
    ax.set_title(f"Right by score: {READINGS[reading]}", size=9, loc="left", pad=18)
    legend(ax)
    return ax


def right_by(trace: Trace, ax: Axes | None = None) -> Axes:
    """Plot how often nodes are right by tree level, one line per source.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional

    Returns
    -------
    Axes
        The share axis is logarithmic, because few of a tree's deep nodes can be right. A share of zero is
        drawn at its lower edge.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator

    table = metrics.by_source(trace)
    table = table[table["counted"] > 0]
    cut = (table["depth"] > MOST_LEVELS).any()
    table = table[table["depth"] <= MOST_LEVELS]
    ax = axes(ax, (6.4, 3.2))
    notes = [f"depth {MOST_LEVELS + 1} and above: not drawn"] if cut else []
    if (table["right"] == 0).any():
        notes.append("at the lower edge: none is right")
    ax.set(xlabel="\n".join(["level of the tree (1: below the root)", *notes]), ylabel="share that is right")
    if not len(table):
        return note(ax, "no node has a rating")
    above = table.loc[table["right"] > 0, "rate_lo"] if table["right"].any() else table["rate_hi"]
    edge = above.min() / 2  # where a logarithmic axis shows zero
    table = table.assign(rate=table["rate"].clip(lower=edge), rate_lo=table["rate_lo"].clip(lower=edge))
    ax.set_yscale("log")
    sources = sorted(table["source"].unique())  # same colours as in `acceptance_by_score`
    for number, name in enumerate(sources):
        rows = table[table["source"] == name]
        shift = 0.08 * (number - (len(sources) - 1) / 2)
        _points(
            ax,
            rows["depth"] + shift,
            rows,
            number,
            f"{literal(name)} ({int(table.loc[table['source'] == name, 'sent'].sum()):,} nodes)",
        )
    ax.set_xlim(0.5, max(table["depth"].max(), 2) + 0.5)
    whole_numbers(ax.xaxis)
    ax.set_ylim(bottom=edge)
    ax.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    for set_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
    ax.set_title(f"Right by depth: {READINGS['text']}", size=9, loc="left", pad=18)
    legend(ax)
    return ax


def store_growth(trace: Trace, ax: Axes | None = None) -> Axes:
    """Plot how many tokens a store has successors for, by cycle: one line per run, marks at text starts.

    Parameters
    ----------
    trace : Trace
        See `specviz.metrics.learnt` for the runs that can be counted.
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    table = metrics.learnt(trace)
    ax = axes(ax, (6.4, 3.0))
    for number, part in enumerate(trace.split()):
        rows = table[table["run"] == part.run["run"]].reset_index(drop=True)
        colour, _ = look(number)
        about = part.run["memory"]["start"]
        state = "cold" if about["state"] == "cold" else f"warm: {about['known']:,} entries at the start"
        share = rows["root_known"].mean()
        name = f"{literal(part.run['method'])} ({state}; root in the store in {share:.0%} of the cycles)"
        ax.plot(rows.index + 1, rows["tokens"], DASHES[number % 4], color=colour, lw=1.6, label=name)
        begins = rows.index[~rows["prompt"].duplicated()]
        ax.plot(begins + 1, rows["tokens"][begins], ls="", marker="|", color=colour, ms=7)
    ax.set(xlabel="cycles", ylabel="tokens learnt", xlim=(0, None), ylim=(0, None))
    ax.set_title("How full the store is", size=9, loc="left")
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return ax


def warm_up(trace: Trace, ax: Axes | None = None, window: int = 7) -> Axes:
    """Plot τ by number of the text, to show how memory pays as a run proceeds; one colour per run.

    Parameters
    ----------
    trace : Trace
        Runs over the same prompts; comparing a warm start with a cold start shows the most.
    ax : Axes, optional
    window : int
        Number of texts in the centred window that the line pools.

    Returns
    -------
    Axes
    """
    table = metrics.by_prompt(trace)
    ax = axes(ax, (6.4, 3.2))
    ax.axhline(1, color=GREY, lw=1, ls="--")
    for number, part in enumerate(trace.split()):
        rows = table[table["run"] == part.run["run"]]
        colour, marker = look(number)
        place = np.arange(1, len(rows) + 1)
        state = ((part.run["memory"] or {}).get("start") or {}).get("state")
        name = literal(part.run["method"]) + (f" ({state})" if state else "")
        ax.plot(place, rows["tau"], ls="", marker=marker, ms=3.5, color=colour, alpha=0.45)
        sums = rows[["emitted", "steps"]].rolling(window, center=True, min_periods=1).sum()
        ax.plot(place, sums["emitted"] / sums["steps"], color=colour, lw=1.8, label=name)
    whole_numbers(ax.xaxis)
    ax.set(xlabel="number of the text", ylabel="τ, tokens per cycle")
    ax.set_title(f"τ of each text and of the {window} around it", size=9, loc="left", pad=18)
    legend(ax)
    return ax


def store(memory: str | Path | Mapping[str, np.ndarray], ax: Axes | None = None) -> Axes:
    """Plot a store's contents: the target's probability of each token's successors, by rank.

    Parameters
    ----------
    memory : path or mapping of name to array
        A file that ``Method.save`` wrote, or its arrays: ``tokens`` [vocabulary, k], -1 for an empty place,
        and ``p`` [vocabulary, k] if the method keeps probabilities.
    ax : Axes, optional

    Returns
    -------
    Axes
        Boxes are the quartiles over the stored successors, whiskers the 5th and 95th percentiles; the line is
        the share of all tokens that have a successor of this rank.

    Raises
    ------
    TraceError
        If the file cannot be read, or `memory` is not a store of successors.
    """
    arrays = _arrays(memory)
    filled = arrays["tokens"] >= 0
    size, k = filled.shape
    ranks = np.arange(k)
    ax = axes(ax, (6.4, 3.2))
    p = arrays.get("p")
    if p is not None and filled.any():
        stats: list[Look] = []
        for rank in ranks:
            of_rank = p[filled[:, rank], rank]
            low, q1, middle, q3, high = (
                np.quantile(of_rank, (0.05, 0.25, 0.5, 0.75, 0.95)) if len(of_rank) else [np.nan] * 5
            )
            stats.append({"whislo": low, "q1": q1, "med": middle, "q3": q3, "whishi": high, "fliers": []})
        blue = LOOKS[0][0]
        line = {"color": blue}
        ax.bxp(
            stats, positions=ranks, widths=0.6, showfliers=False, patch_artist=True,
            boxprops={"facecolor": blue, "alpha": 0.35, "edgecolor": blue}, medianprops=line | {"lw": 2},
            whiskerprops=line, capprops=line,
        )  # fmt: skip
    share = filled.mean(0)
    ax.plot(ranks, share, color=LOOKS[1][0], marker="s", ms=4, lw=1.4, label="share of the tokens with one")
    ax.set(xlabel="rank of the successor (0: the most likely)", ylabel="probability; share", ylim=(0, 1.02))
    ax.set_xticks(ranks, [str(rank) for rank in ranks])
    ax.set_xlim(-0.6, k - 0.4)
    ax.set_title(
        f"{int(filled[:, 0].sum()):,} of {size:,} tokens have successors ({filled[:, 0].mean():.0%})",
        size=9,
        loc="left",
        pad=18,
    )
    legend(ax)
    return ax


def _arrays(memory: str | Path | Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    if isinstance(memory, str | Path):
        path = expanded(memory, TraceError)
        if not path.is_file():
            raise TraceError(f"{path} does not exist")
        try:
            from safetensors import SafetensorError
            from safetensors.numpy import load_file
        except ImportError:
            raise TraceError(
                "reading a store file needs the package safetensors: pip install safetensors"
            ) from None
        try:
            arrays = load_file(path)
        except (OSError, SafetensorError) as error:
            raise TraceError(f"{path} cannot be read as a store: {error}") from None
    elif isinstance(memory, Mapping):
        arrays = {name: np.asarray(array) for name, array in memory.items()}
    else:
        raise TraceError(
            f"a store can be drawn from its file or its arrays, not from {type(memory).__name__}: pass what "
            "Method.save wrote, or method.store.arrays()"
        )
    tokens, p = arrays.get("tokens"), arrays.get("p")
    if tokens is None or tokens.ndim != 2 or not tokens.size or (p is not None and p.shape != tokens.shape):
        has = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items()) or "nothing"
        raise TraceError(f"a store of successors has tokens [vocabulary, k]; this has {has}")
    return arrays


def _points(ax: Axes, x: pd.Series, rows: pd.DataFrame, number: int, label: str) -> None:
    colour, marker = look(number)
    rate = rows["rate"]
    spread = np.array([rate - rows["rate_lo"], rows["rate_hi"] - rate]).clip(min=0)
    ax.errorbar(
        x, rate, spread, color=colour, marker=marker, ms=4.5, lw=1.3, elinewidth=1, capsize=2, label=label
    )
