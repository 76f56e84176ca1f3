"""Draw calibrations with matplotlib. Each view takes ``ax=``, draws only on it, and returns it; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specviz.calibration import Calibration
from specviz.errors import ParameterError, plural
from specviz.view.axes import DASHES, Look, axes, look, new_figure, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# For each fit: its name in the legend, line style and colour.
LOOKS = {
    "paper": ("the paper's fit", "--", "#d55e00"),
    "grid": ("measured points, joined", ":", "#555555"),
    "monotone": ("monotone fit", "-", "#0072b2"),
}
WHAT = {"s": "t(g), ms per cycle", "tau": "τ(g), tokens per cycle", "speed": "τ/t, tokens/s"}


def curve(
    calibration: Calibration,
    what: str = "speed",
    fits: Sequence[str] = ("paper", "monotone"),
    ax: Axes | None = None,
) -> Axes:
    """Plot measured points of t(g), τ(g) or their ratio, and the fits through them (Figure 2).

    The axis is logarithmic in g because small sizes are close to each other. A fit may swing far beyond the
    points; it is clipped at the edge of the plot, and the legend gives its range.

    Parameters
    ----------
    calibration : Calibration
    what : {"speed", "s", "tau"}
    fits : sequence of {"paper", "grid", "monotone"}
        The fits to draw.
    ax : Axes, optional

    Returns
    -------
    Axes
        Error bars on t(g) span its quartiles over rounds; diamonds on the ratio mark each fit's g*.

    Raises
    ------
    ParameterError
        If the curve or a fit does not exist.
    SpecvizError
        If the calibration was interrupted, so that it has no fits.
    """
    _ = fits and calibration.g  # raises if there are none
    for name in fits:
        if name not in calibration.fits:
            raise ParameterError(f"no fit {name!r}; there is {', '.join(calibration.fits) or 'none'}")
    if what not in WHAT:
        raise ParameterError(f"what must be one of {', '.join(WHAT)}, got {what!r}")
    ax = axes(ax, (6, 3.4))
    g, tau, s, low, high = calibration.measured()
    points = {"s": 1e3 * s, "tau": tau, "speed": tau / s}[what]
    if what == "s":
        spread = np.abs(1e3 * np.stack([low, high]) - points).clip(0)
        ax.errorbar(g, points, spread, fmt="o", color="black", ms=4, lw=1, label="measured, quartiles")
    else:
        ax.plot(g, points, "o", color="black", ms=4, label="measured")
    room = 0.25 * (points.max() - points.min()) + 1e-9
    bottom, top = max(0.0, points.min() - room), points.max() + room
    marked: list[int] = []
    for name in fits:
        fit, (label, line, colour) = calibration.fits[name], LOOKS[name]
        cost, taken = np.array(fit.s), np.array(fit.tau)
        values = {"s": 1e3 * cost, "tau": taken, "speed": taken / np.where(cost > 0, cost, np.nan)}[what]
        label += _beyond(values, bottom, top)
        ax.plot(calibration.sizes, values, line, color=colour, lw=1.6, label=label)
        if what == "speed":
            least_g = calibration.points[0].g
            at = float(np.clip(values[fit.g - least_g], bottom, top))
            near = any(0.8 < fit.g / other < 1.25 for other in marked)  # the other side of the curve is free
            _diamond(ax, fit.g, at, colour, fit.g == least_g, (at >= top - room / 2) != near)
            marked.append(fit.g)
    ax.set(xscale="log", ylim=(bottom, top), xlabel="draft size g", ylabel=WHAT[what])
    _sizes(ax, g)
    ax.legend(frameon=False, fontsize=8, loc="best" if what == "speed" else "upper left")  # the others rise
    return ax


def _beyond(values: np.ndarray, bottom: float, top: float) -> str:
    """A fit's range for the legend if it leaves the axes, else an empty string."""
    peak, least = float(np.nanmax(values)), float(np.nanmin(values))
    return f", from {_round(least)} to {_round(peak)}" if peak > top or least < bottom else ""


def _diamond(ax: Axes, g: int, at: float, colour: str, first: bool, below: bool) -> None:
    """Mark and label a fit's g* on its curve."""
    from matplotlib.patheffects import withStroke

    ax.plot([g], [at], "D", color=colour, ms=8, mec="white", zorder=4, clip_on=False)
    ax.annotate(
        f"g* = {g}", (g, at), (6 if first else 0, -14 if below else 9), textcoords="offset points",
        ha="left" if first else "center", size=8, color=colour, zorder=5,
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )  # fmt: skip


def calibration_png(calibration: Calibration) -> bytes:
    """Draw t(g), τ(g) and their ratio side by side as PNG.

    Returns
    -------
    bytes
    """
    figure = new_figure((13, 3.6), layout="constrained")
    for ax, what in zip(figure.subplots(1, 3), ("s", "tau", "speed")):
        curve(calibration, what, ax=ax)
    figure.suptitle(calibration.summary, size=9, parse_math=False)
    return png(figure)


def by_device(calibrations: Sequence[Calibration], ax: Axes | None = None) -> Axes:
    """Plot the g* of several calibrations, one bar each (Figure 5).

    Parameters
    ----------
    calibrations : sequence of Calibration
        Calibrations of different devices, models or methods; settings that they share are omitted from the
        names.
    ax : Axes, optional

    Returns
    -------
    Axes
        Each bar is labelled with g* and the expected tokens per second.

    Raises
    ------
    ParameterError
        If `calibrations` is empty.
    """
    if not calibrations:
        raise ParameterError("no calibration was given")
    ax = axes(ax, (8, 0.8 + 0.45 * len(calibrations)))
    names = [
        (c.device, c.setting["model"]["name"], c.setting["method"], c.setting["dtype"]) for c in calibrations
    ]
    differing = [i for i in range(4) if i == 0 or len({name[i] for name in names}) > 1]
    y = np.arange(len(calibrations))
    sizes = [c.g for c in calibrations]
    ax.barh(y, sizes, height=0.62, color="#56b4e9", edgecolor="#0072b2")
    for row, c in enumerate(calibrations):
        fit, at = c.fits[c.chosen], c.g - c.points[0].g
        ax.text(c.g, row, f"  {c.g}  ({fit.tau[at] / fit.s[at]:,.0f} tokens/s)", va="center", size=8)
    ax.set_yticks(
        y,
        ["\n".join([n[0], ", ".join(n[i] for i in differing[1:])]).strip() for n in names],
        size=8,
        parse_math=False,
    )
    ax.invert_yaxis()
    ax.set(xlabel="calibrated draft size g*", xlim=(0, 1.3 * max(sizes)))
    return ax


def by_prompts(calibrations: Mapping[int, Calibration], ax: Axes | None = None) -> Axes:
    """Plot throughput curves and g* of calibrations with different numbers of prompts (Figure 6).

    Parameters
    ----------
    calibrations : mapping of int to Calibration
        Number of prompts to the calibration that used them.
    ax : Axes, optional

    Returns
    -------
    Axes
        Monotone fits, each relative to its own best; if they coincide, more prompts change nothing. The
        legend gives g* and the measuring time in seconds.

    Raises
    ------
    SpecvizError
        If a calibration was interrupted.
    """
    from matplotlib import colormaps

    _ = [c.g for c in calibrations.values()]  # raises if one was interrupted
    ax = axes(ax, (6.4, 3.4))
    colours = colormaps["viridis"](np.linspace(0, 0.85, max(1, len(calibrations))))
    for i, (colour, (number, c)) in enumerate(zip(colours, sorted(calibrations.items()))):
        fit = c.fits["monotone"]
        speed = np.array(fit.tau) / np.array(fit.s)
        label = f"{plural(number, 'prompt')}: g* = {fit.g}, took {c.spent:.0f} s"
        best: Look = {"marker": look(i)[1], "markevery": [fit.g - c.points[0].g], "ms": 8, "mec": "white"}
        ax.plot(c.sizes, speed / speed.max(), DASHES[i % 4], color=colour, lw=1.6, label=label, **best)
    ax.set(xscale="log", xlabel="draft size g", ylabel="τ/t over its best")
    _sizes(ax, np.array(sorted({p.g for c in calibrations.values() for p in c.points})))
    ax.legend(frameon=False, fontsize=8)
    return ax


def deviation(calibration: Calibration, ax: Axes | None = None) -> Axes:
    """Plot the loss away from g*: the throughput of every size relative to the best (Table 13).

    Parameters
    ----------
    calibration : Calibration
    ax : Axes, optional

    Returns
    -------
    Axes
        Monotone fit and measured points; the band covers the sizes that lose at most 3 %.

    Raises
    ------
    SpecvizError
        If the calibration was interrupted.
    """
    _ = calibration.g  # raises if it was interrupted
    ax = axes(ax, (6.4, 3))
    fit = calibration.fits["monotone"]
    share = np.array(fit.tau) / np.array(fit.s)
    best = share.max()
    g, tau, s, _, _ = calibration.measured()
    near = calibration.sizes[share >= 0.97 * best]
    ax.axvspan(
        near[0], near[-1], color="#009e73", alpha=0.15, lw=0, label=f"within 3 %: {near[0]} to {near[-1]}"
    )
    ax.plot(calibration.sizes, share / best, color=LOOKS["monotone"][2], lw=1.6, label="monotone fit")
    ax.plot(g, tau / s / best, "o", color="black", ms=4, label="measured")
    ax.set(xscale="log", xlabel="draft size g", ylabel="τ/t over its best")
    _sizes(ax, g)
    ax.legend(frameon=False, fontsize=8)
    return ax


def _round(x: float) -> str:
    """Format a number with three significant digits, or as a whole number from 100 upwards."""
    return (f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}").replace("-", "−")


def roomy(g: np.ndarray) -> list[int]:
    """The sizes whose labels do not overlap on a logarithmic axis."""
    ticks = [int(g[0])]
    for each in g[1:]:
        if each >= 1.35 * ticks[-1]:
            ticks.append(int(each))
    return ticks


def _sizes(ax: Axes, g: np.ndarray) -> None:
    """Set ticks at those measured sizes whose labels do not overlap on a logarithmic axis."""
    from matplotlib.ticker import NullFormatter

    ticks = roomy(g)
    ax.set_xticks(ticks, [str(each) for each in ticks])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.minorticks_off()
