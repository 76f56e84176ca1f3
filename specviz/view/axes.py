"""Shared helpers of the matplotlib views: axes, fonts, colours, markers, legends and PNG export."""

from __future__ import annotations

import base64
import io
import logging
import warnings
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from specviz.escape import html, visible

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Look: TypeAlias = dict[str, Any]  # keyword arguments for a matplotlib artist

# Okabe and Ito's colours, each with a marker, so that series also differ without colour.
LOOKS = (
    ("#0072b2", "o"), ("#d55e00", "s"), ("#009e73", "^"),
    ("#cc79a7", "D"), ("#e69f00", "v"), ("#56b4e9", "P"),
)  # fmt: skip
HATCHES = ("", "///", "...", "xx", "\\\\\\")
DASHES = ("-", "--", "-.", ":")
SCREEN = 84  # dots per inch of a figure in a notebook
GREY = "#888888"  # legible on white and on black
# How a draft node is drawn, by its status.
FATE_LOOKS: dict[str, Look] = {
    "accepted": {"marker": "o", "color": "#0072b2", "s": 15},
    "rejected": {"marker": "x", "color": "#d55e00", "s": 24},
    "unjudged": {"marker": ".", "color": "#777777", "s": 14},
    "unreviewed": {"marker": "$?$", "color": "#56b4e9", "s": 28},
    "cut": {"marker": "|", "color": "#777777", "s": 28},
    "unsent": {"marker": "o", "facecolors": "none", "edgecolors": "#777777", "s": 15},
    "below_budget": {"marker": "^", "facecolors": "none", "edgecolors": "#777777", "s": 15},
}
CJK = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Hiragino Sans", "PingFang SC", "Yu Gothic", "Microsoft YaHei",
    "WenQuanYi Micro Hei", "Noto Sans SC", "Droid Sans Fallback",
)  # fmt: skip


def axes(ax: Axes | None, size: tuple[float, float], boxed: bool = False) -> Axes:
    """Prepare the given axes, or new ones of this size in inches; no top and right spines unless `boxed`."""
    if ax is None:
        import matplotlib.pyplot as plt

        ax = plt.subplots(figsize=size, layout="constrained")[1]
    if (figure := ax.get_figure(root=True)) is not None:
        for each in (ax, figure):  # the notebook looks it up on the object that it shows
            vars(each)["_repr_html_"] = partial(notebook_html, figure)
    if not boxed:
        ax.spines[["top", "right"]].set_visible(False)
    return ax


def subplots(
    rows: int = 1, columns: int = 1, *, figsize: tuple[float, float], sharex: bool = False,
    sharey: bool = False, height_ratios: Sequence[float] | None = None,
) -> tuple[Figure, Axes | np.ndarray]:  # fmt: skip
    """Matplotlib's `subplots`, for a figure that follows a notebook's light or dark theme like the views.

    Parameters
    ----------
    rows, columns : int
    figsize : tuple of float
        Width and height in inches.
    sharex, sharey : bool
        Whether the subplots share their x or y axis.
    height_ratios : sequence of float, optional
        Relative heights of the rows.

    Returns
    -------
    (Figure, Axes or ndarray of Axes)
        As matplotlib returns them: one Axes, or an array of them.
    """
    import matplotlib.pyplot as plt

    figure, made = plt.subplots(
        rows, columns, figsize=figsize, sharex=sharex, sharey=sharey, height_ratios=height_ratios,
        layout="constrained",
    )  # fmt: skip
    for ax in np.ravel(made):
        axes(ax, figsize)
    return figure, made


def over_cycles(ax: Axes | None, cycles: int, height: float) -> Axes:
    """Frameless axes, wide enough for this many cycles, for panels that share an axis of cycles."""
    ax = axes(ax, (min(14.0, max(6.5, 2.2 + 0.32 * cycles)), height))
    ax.axis("off")
    return ax


def placed(nodes: pd.DataFrame, cycles: pd.DataFrame) -> pd.DataFrame:
    """Add ``at``, the cycle's number from 1, and ``x``, the node's place on the cycle axis, to the nodes.

    The numbers continue across the updates of a stream, although each update counts its cycles from 0.
    Nodes of cycles not in `cycles` are dropped.
    """
    numbers = {key: i for i, key in enumerate(zip(cycles["update"], cycles["cycle"]), 1)}
    at = np.array([numbers.get(key, 0) for key in zip(nodes["update"], nodes["cycle"])], int)
    longest = int(nodes["node"].max()) + 1 if len(nodes) else 1
    return nodes.assign(at=at, x=at - 0.4 + 0.8 * (nodes["node"] + 0.5) / longest)[at > 0]


def panel(ax: Axes, low: float, height: float) -> Axes:
    """Inset axes of the same width as `ax`, without top and right spines."""
    return axes(ax.inset_axes((0, low, 1, height)), (0, 0))


def bare(ax: Axes, above: bool = True) -> None:
    """Strip ticks and spines from axes that show a table; `above` puts the column labels on top."""
    if above:
        ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def literal(text: str) -> str:
    """Make an external name safe for matplotlib: `visible`, with dollar signs escaped."""
    return visible(text).replace("$", r"\$")


def look(number: int) -> tuple[str, str]:
    """Colour and marker of the n-th series; the first 36 pairs differ."""
    count = len(LOOKS)
    return LOOKS[number % count][0], LOOKS[(number + number // count) % count][1]


def bar_look(number: int) -> Look:
    """Fill of the n-th of several adjacent bars."""
    return {"color": look(number)[0], "hatch": HATCHES[number % len(HATCHES)], "edgecolor": "white"}


def bar_places(number: int, count: int, places: int) -> tuple[np.ndarray, float]:
    """Positions of the n-th of `count` bars in each of the `places` groups, and the spacing of the bars."""
    wide = 0.8 / count
    return np.arange(places) + (number - (count - 1) / 2) * wide, wide


def whole_numbers(*axis: Axis) -> None:
    """Put ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for each in axis:
        each.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def note(ax: Axes, text: str, **more: Any) -> Axes:
    """Write a sentence in the middle of axes that have nothing to show."""
    ax.text(0.5, 0.5, text, ha="center", transform=ax.transAxes, **more)
    return ax


def legend(ax: Axes, *entries: Sequence[Any], **more: Any) -> None:
    """Add a one-row legend without a frame, above the axes unless `more` gives a location."""
    count = len(entries[0]) if entries else len(ax.get_legend_handles_labels()[0])
    plain: Look = {"frameon": False, "fontsize": 8, "handlelength": 1.2, "borderpad": 0, "borderaxespad": 0}
    if "loc" not in more:
        plain |= {"loc": "lower left", "bbox_to_anchor": (0, 1.01)}
    ax.legend(*entries, ncols=max(1, count), **(plain | more))


def legend_right(ax: Axes, height: float = 1.02, **more: Any) -> None:
    """Add a `legend` above the axes, aligned to the right."""
    legend(ax, loc="lower right", bbox_to_anchor=(1, height), **more)


def new_figure(size: tuple[float, float], **options: Any) -> Figure:
    """Create a white figure of this size in inches that pyplot does not keep."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    made = Figure(figsize=size, dpi=100, facecolor="white", **options)
    FigureCanvasAgg(made)
    return made


DARK = (
    'body[data-jp-theme-light="false"]', "body.vscode-dark",
    "body.vscode-high-contrast:not(.vscode-high-contrast-light)", 'html[theme="dark"]',
)  # fmt: skip
FLIP = "filter:invert(.933) hue-rotate(180deg)"
# In a dark notebook, a picture on white has its lightness inverted; hues stay.
FIGURE_STYLE = (
    "<style>.specviz-figure{max-width:100%;height:auto}"
    + ",".join(f"{host} .specviz-figure" for host in DARK)
    + f"{{{FLIP}}}@media (prefers-color-scheme:dark){{.specviz-page .specviz-figure{{{FLIP}}}}}</style>"
)


def image(content: bytes, alt: str, scale: float = 1.0) -> str:
    """Embed a PNG in HTML that follows the theme; `scale` is the number of its pixels per page pixel."""
    wide = int.from_bytes(content[16:20], "big") / scale
    source = base64.b64encode(content).decode("ascii")
    return (
        f'{FIGURE_STYLE}<img class="specviz-figure" width="{wide:.0f}" alt="{html(alt)}" '
        f'src="data:image/png;base64,{source}">'
    )


def notebook_html(figure: Figure) -> str | None:
    """Render a figure as notebook output and close it; None if the backend is not the inline one."""
    import matplotlib.pyplot as plt

    if "inline" not in plt.get_backend():
        return None
    every = (each for ax in figure.axes for each in (ax, *ax.child_axes))
    drawn = [ax for ax in every if isinstance(ax, plt.Axes)]
    titles = [ax.get_title(place) for ax in drawn for place in ("left", "center")]
    labels = [(ax.get_ylabel(), ax.get_xlabel()) for ax in drawn]
    content = png(figure, 2 * SCREEN, tight=True)
    plt.close(figure)  # otherwise it would be shown again at the end of the cell
    words = " ".join(filter(None, titles)) or "; ".join(map(" by ".join, filter(all, labels))) or "figure"
    return image(content, words, 2)


def png(figure: Figure, dpi: float | None = None, tight: bool = False) -> bytes:
    """Render a figure as PNG; characters that no font has become boxes."""
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(out, format="png", dpi=dpi or figure.dpi, bbox_inches="tight" if tight else None)
    return out.getvalue()


@cache
def fonts() -> list[str]:
    """Matplotlib's own font, and up to two installed fonts with Chinese and Japanese characters."""
    from matplotlib import font_manager

    have = set(font_manager.get_font_names())
    return ["DejaVu Sans", *[name for name in CJK if name in have][:2]]


@cache
def _glyphs() -> frozenset[int]:
    """Code points that the fonts of `fonts` can draw."""
    from matplotlib import font_manager

    return frozenset().union(
        *(font_manager.get_font(font_manager.findfont(name)).get_charmap() for name in fonts())
    )


def drawable(text: str) -> str:
    """Replace each character that no font has with a box, to avoid a warning."""
    return "".join(c if ord(c) in _glyphs() else "□" for c in text)
