"""matplotlib views of a trace. Each takes ``ax=``, draws only on it, and returns it."""

from __future__ import annotations

import io
import logging
import unicodedata
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.view.picture import KINDS, PHASES, Picture, picture, visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from specviz.trace import Trace

PHASE_HUES = {"draft": "#56b4e9", "forward": "#0072b2", "verify": "#e69f00", "commit": "#999999"}
CJK = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Hiragino Sans",
    "PingFang SC",
    "Yu Gothic",
    "Microsoft YaHei",
    "WenQuanYi Micro Hei",
    "Noto Sans SC",
    "Droid Sans Fallback",
)


def fonts(first: str = "DejaVu Sans") -> list[str]:
    """A font that matplotlib brings, and whatever installed one has Chinese and Japanese characters."""
    from matplotlib import font_manager

    have = set(font_manager.get_font_names())
    return [first, *[name for name in CJK if name in have][:2]]


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def _columns(text: str) -> int:
    """Width of a text in terminal columns: wide characters count two."""
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text
    )


def _one(trace: Trace, prompt: int | None) -> Picture:
    """The picture of a prompt, by default the first, of the trace's first run."""
    run = trace.split()[0]
    numbers = list(dict.fromkeys(run.cycles["prompt"].tolist())) or [0]
    return picture(run, int(numbers[0] if prompt is None else prompt), len(numbers))


def token_strip(
    trace: Trace, prompt: int | None = None, ax: Axes | None = None, columns: int = 96, lines: int = 14
) -> Axes:
    """The text, each token on the colour of how it came about, with its mark.

    Parameters
    ----------
    trace : Trace
    prompt : int, optional
        Which prompt; default the first.
    ax : Axes, optional
    columns, lines : int
        Where lines break, and after how many the rest is left out (and said so).

    Returns
    -------
    Axes
    """
    return _strip(_one(trace, prompt), _axes(ax, (10, 3)), columns, lines)


def _strip(shown: Picture, ax: Axes, columns: int, lines: int) -> Axes:
    from matplotlib.patches import Rectangle

    family = fonts("DejaVu Sans Mono")  # columns are counted, so the letters must be as wide as each other
    box = ax.get_window_extent().width / ax.get_figure(root=True).dpi * 72  # type: ignore[union-attr]  # points
    size = min(11.0, 1.6 * box / columns)
    x, y, used = 0, 0, set()
    for count, span in enumerate(shown.spans):
        kind = KINDS[span.kind]
        for i, part in enumerate(visible(span.text).split("\n")):
            if i:
                x, y = 0, y + 1
            text = (kind.mark if i == 0 else "") + part
            width = _columns(text)
            if x and x + width > columns:
                x, y = 0, y + 1
            if y >= lines:
                break
            if text:
                alpha = 0.0 if span.kind == "plain" else 0.28
                ax.add_patch(Rectangle((x, y), width, 0.82, color=kind.hue, alpha=alpha, lw=0))
                ax.text(x, y + 0.42, text, family=family, size=size, va="center", parse_math=False)
                x += width
                used.add(span.kind)
        if y >= lines:
            ax.text(0, lines + 0.3, f"… {len(shown.spans) - count} more tokens", size=8, color="#555555")
            break
    rows = min(y + 1, lines)
    ax.set(xlim=(0, columns), ylim=(rows + 0.9, -0.2))
    ax.axis("off")
    handles = [Rectangle((0, 0), 1, 1, color=KINDS[k].hue, alpha=0.35) for k in KINDS if k in used]
    names = [f"{KINDS[k].mark} {KINDS[k].word}".strip() for k in KINDS if k in used]
    if handles:
        ax.legend(
            handles,
            names,
            loc="upper left",
            bbox_to_anchor=(0, 0),
            ncols=len(handles),
            frameon=False,
            fontsize=8,
            handlelength=1.2,
        )
    return ax


def timeline(trace: Trace, prompt: int | None = None, ax: Axes | None = None) -> Axes:
    """Cycles along time, each a bar divided by phase.

    Parameters
    ----------
    trace : Trace
    prompt : int, optional
    ax : Axes, optional

    Returns
    -------
    Axes
        Time in milliseconds from the first cycle after the prefill.
    """
    return _timeline(_one(trace, prompt), _axes(ax, (10, 1.4)))


def _timeline(shown: Picture, ax: Axes) -> Axes:
    cycles = shown.cycles
    begin = cycles[0].start if cycles else 0.0
    left = np.array([(c.start - begin) * 1e3 for c in cycles])
    for i, name in enumerate(PHASES):
        width = np.array([c.times[i] * 1e3 for c in cycles])
        ax.barh(np.zeros(len(cycles)), width, left=left, height=0.8, color=PHASE_HUES[name], label=name)
        left = left + width
    if 0 < len(cycles) <= 60:
        for c in cycles:
            ax.text(
                (c.start - begin) * 1e3,
                0.46,
                f"{c.accepted}/{c.drafted}" if c.drafted else f"{c.emitted}",
                size=6.5,
                va="bottom",
            )
    ax.set(xlabel="ms", yticks=[], ylim=(-0.45, 0.75))
    ax.set_title("Cycles (accepted/drafted above)", size=9, loc="left")
    ax.legend(loc="upper right", bbox_to_anchor=(1, 1.4), ncols=4, frameon=False, fontsize=8, handlelength=1)
    ax.spines[["top", "left", "right"]].set_visible(False)
    return ax


def confidence(trace: Trace, prompt: int | None = None, ax: Axes | None = None) -> Axes:
    """The drafter's confidence in each draft token, by output position, and what became of it."""
    return _confidence(_one(trace, prompt), _axes(ax, (10, 1.8)))


def _confidence(shown: Picture, ax: Axes) -> Axes:
    looks: dict[str, dict[str, Any]] = {
        "accepted": {"marker": "o", "color": "#0072b2", "s": 14},
        "rejected": {"marker": "x", "color": "#d55e00", "s": 22},
        "unjudged": {"marker": ".", "color": "#999999", "s": 10},
    }
    for status, look in looks.items():
        dots = [(b.position, b.confidence) for b in shown.beliefs if b.status == status]
        if dots:
            ax.scatter(*zip(*dots), label=status, **look)
    if shown.threshold is not None:
        ax.axhline(shown.threshold, ls="--", lw=1, color="#444444", label=f"threshold {shown.threshold:g}")
    if not shown.beliefs:
        ax.text(
            0.5, 0.5, "this method drafts without a confidence", transform=ax.transAxes, ha="center", size=9
        )
    else:
        ax.legend(loc="lower right", bbox_to_anchor=(1, 1.0), ncols=4, frameon=False, fontsize=8)
    ax.set(ylim=(-0.04, 1.04))
    ax.set_xlabel("output position", size=8)
    ax.set_title("Drafter's confidence", size=9, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def reliability(trace: Trace, ax: Axes | None = None, bins: int = 10) -> Axes:
    """Confidence against acceptance: is a drafter that says 0.8 accepted eight times in ten?

    Judged nodes of all prompts, in `bins` equal intervals of confidence; the bars' height is the share
    accepted, the number above how many nodes. Nodes behind a rejection were never judged and do not count.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    bins : int

    Returns
    -------
    Axes
        Its title gives the expected calibration error: the mean distance from the diagonal, by count.
    """
    ax = _axes(ax, (4.2, 4))
    nodes = trace.nodes
    # BiLD may keep the end of a text that the target never read: nobody judged that.
    judged = nodes[nodes["status"].isin(["accepted", "rejected"]) & nodes["p"].notna()]
    sure = judged["confidence"].to_numpy(float)
    took = (judged["status"] == "accepted").to_numpy(float)
    took, sure = took[np.isfinite(sure)], sure[np.isfinite(sure)]
    ax.plot([0, 1], [0, 1], color="#888888", lw=1, ls="--")
    ax.set(
        xlim=(0, 1), ylim=(0, 1.08), xlabel="drafter's confidence", ylabel="share accepted", aspect="equal"
    )
    if not len(sure):
        ax.text(0.5, 0.5, "no judged node has a confidence", ha="center")
        return ax
    which = np.minimum((sure * bins).astype(int), bins - 1)
    count = np.bincount(which, minlength=bins)
    full = count > 0
    share = np.bincount(which, took, bins)[full] / count[full]
    mean = np.bincount(which, sure, bins)[full] / count[full]
    centre = (np.flatnonzero(full) + 0.5) / bins
    ax.bar(centre, share, width=0.94 / bins, color="#56b4e9", edgecolor="#0072b2")
    for x, y, n in zip(centre, share, count[full]):
        ax.text(x, y + 0.01, str(n), ha="center", va="bottom", size=7)
    error = float((np.abs(share - mean) * count[full]).sum() / count.sum())
    ax.set_title(f"{len(sure)} judged tokens, calibration error {error:.3f}", size=9)
    return ax


def phases(trace: Trace, ax: Axes | None = None) -> Axes:
    """Where a cycle's time goes: the mean of each phase, a bar for each run.

    Parameters
    ----------
    trace : Trace
        One run or many.
    ax : Axes, optional

    Returns
    -------
    Axes
        Milliseconds a cycle, the prefill left out.
    """
    runs = trace.split()
    ax = _axes(ax, (6, 0.6 + 0.5 * len(runs)))
    left = np.zeros(len(runs))
    tables = [run.cycles[run.cycles["cycle"] > 0] for run in runs]
    parts = {name: np.array([t[f"{name}_time"].mean() for t in tables]) * 1e3 for name in PHASES}
    whole = np.array([t["duration"].mean() for t in tables]) * 1e3
    for name, width in parts.items():
        ax.barh(np.arange(len(runs)), np.nan_to_num(width), left=left, color=PHASE_HUES[name], label=name)
        left = left + np.nan_to_num(width)
    ax.barh(
        np.arange(len(runs)),
        np.maximum(np.nan_to_num(whole) - left, 0),
        left=left,
        color="#dddddd",
        label="rest",
    )
    ax.set_yticks(np.arange(len(runs)), [f"{run.run['method']}" for run in runs])
    ax.invert_yaxis()
    ax.set_xlabel("ms a cycle (mean)")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False, fontsize=8, handlelength=1)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def poster(shown: Picture) -> bytes:
    """One prompt's picture as PNG: headline, text, cycles and confidence.

    Returns
    -------
    bytes
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    columns = sum(_columns(s.text) + len(KINDS[s.kind].mark) for s in shown.spans)
    lines = min(14, 1 + columns // 90 + sum(s.text.count("\n") for s in shown.spans))
    heights = [0.32 + 0.24 * lines, 1.15, 1.5 if shown.beliefs else 0.0]
    used = [h for h in heights if h]
    figure = Figure(figsize=(10, 0.75 + sum(used)), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = np.atleast_1d(figure.subplots(len(used), 1, height_ratios=used))
    names = " ← ".join(filter(None, (shown.model, shown.draft)))
    line = "   ".join(f"{name} {value}" for name, value, _ in shown.headline)
    figure.suptitle(
        f"{shown.method}  ({shown.exactness})   {names}\n{line}",
        size=9.5,
        x=0.01,
        ha="left",
        family=fonts(),
        parse_math=False,
    )
    _strip(shown, axes[0], 96, lines)
    _timeline(shown, axes[1])
    if shown.beliefs:
        _confidence(shown, axes[2])
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box stands for what no font has
        figure.savefig(out, format="png")
    return out.getvalue()
