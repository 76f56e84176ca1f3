"""Interactive plotly views with hover and zoom, whose points open their traces.

plotly comes with the lab extra. A figure displayed in a notebook embeds plotly.js (4.8 MB) and makes no
network request; an exported page does the same. External text passes through `specviz.escape.plotly`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from specviz.calibration import Calibration
from specviz.errors import ParameterError, TraceError, install, plural
from specviz.escape import html, plotly
from specviz.paths import expanded
from specviz.trace import Trace
from specviz.view import payoff, plotlyjs
from specviz.view.axes import FIGURE_STYLE, Look, look
from specviz.view.calibrated import LOOKS, WHAT, roomy
from specviz.view.canvas import Row
from specviz.view.static import Page
from specviz.view.tradeoff import based, columns_of, curves, on_front
from specviz.view.updates import Traces

if TYPE_CHECKING:
    import pandas as pd
    from plotly.basedatatypes import BaseTraceType
    from plotly.graph_objects import Figure

MARKS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross"}
CONFIG = {"displaylogo": False, "responsive": True, "showSendToCloud": False}  # as in plots.js
TOOLS = {"bgcolor": "rgba(0,0,0,0)", "color": "#777777", "activecolor": "#0072b2"}  # on white and on black
CLICK = "<b>click: its trace</b>"  # in a point's hover text
OPENS = "A click on a point opens its trace; so does its line in the list of points."
NO_PAGES = (
    "No point opens a trace here: pages=FOLDER writes a player for each point whose trace is known, and this "
    "figure beside them."
)
NOT_DECODED = (
    "A calibration keeps times and no traces, so no point opens one here: traces={g: trace} and pages=FOLDER "
    "let the points of those sizes open theirs; specviz calibrate --pages FOLDER decodes a text at each."
)


def _plotly() -> ModuleType:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ParameterError(f"an interactive figure needs plotly: {install('lab')}") from None
    return go


class Interactive(Page):
    """A plotly figure that displays itself in a notebook without a network and can be saved as a page.

    Attributes
    ----------
    figure : plotly.graph_objects.Figure
        The plotly figure, with ``figure.show()``, ``figure.update_layout(...)`` and so on. Its points have
        the addresses of their traces' pages as ``customdata``.
    title : str
    note : str
        Caption if no point has an address: it says why, and how to get points that open traces.
    """

    def __init__(self, figure: Figure, title: str, note: str = NO_PAGES) -> None:
        self.figure = figure.update_layout(modebar=TOOLS)
        self.title = title
        self.note = note

    @property
    def caption(self) -> str:
        """Text that says what a click on a point does."""
        return OPENS if any(link for _, link in self._points()) else self.note

    def _points(self) -> Iterator[tuple[str, str]]:
        """Each point's hover text as HTML, and its link or an empty string."""
        for part in self.figure.data:
            if part.hoverinfo == "skip" or part.text is None or isinstance(part.text, str):
                continue
            links = part.customdata if part.customdata is not None else [None] * len(part.text)
            for words, link in zip(part.text, links):
                yield _plain(words.removesuffix(f"<br>{CLICK}")), link if isinstance(link, str) else ""

    def _list(self) -> str:
        """The points as a list, for readers without a pointer: their texts, and links to their traces."""
        items = (
            f'<li><a href="{html(link)}" target="_blank" rel="noopener">{words}</a></li>'
            if link
            else f"<li>{words}</li>"
            for words, link in dict.fromkeys(self._points())
        )
        shown = "".join(items)
        return f"<details><summary>The points as a list</summary><ul>{shown}</ul></details>" if shown else ""

    def _html(self, name: str, include: bool | str = True) -> str:
        fragment: str = self.figure.to_html(
            full_html=False,
            include_plotlyjs=include,
            post_script=plotlyjs.text("click.js") + 'openTraces(document.getElementById("{plot_id}"));',
            div_id=name,
            config=CONFIG,
        )
        return f'<div class="specviz-figure">{fragment}</div><p>{html(self.caption)}</p>{self._list()}'

    def _page(self) -> str:
        """The complete page; its links are relative to it."""
        heading = _plain(self.figure.layout.title.text or "")
        lines = "".join(f"<p>{line}</p>" for line in (heading, html(self.caption)) if line)
        body = f'<h1>{html(self.title)}</h1>{lines}<div id="figure"></div>{self._list()}'
        style, boot = (plotlyjs.text(f"interactive.{kind}") for kind in ("css", "js"))
        figures = f"[{self.figure.to_json()}]"
        return plotlyjs.document(self.title, style, body, boot, figures, plotlyjs.script())

    def _repr_html_(self) -> str:
        return FIGURE_STYLE + self._html(f"specviz-{id(self):x}")

    def __repr__(self) -> str:
        return f"<Interactive: {self.title}>"


def _plain(words: str) -> str:
    """Convert plotly text, which may contain tags, to HTML without them."""
    return html(unescape(re.sub("</?b>", "", words.replace("<br>", ", "))))


def sweep(
    points: pd.DataFrame,
    pages: str | Path | None = None,
    curve: str | None = None,
    size: str | None = None,
    quality: str = "BLEU",
    force: bool = False,
) -> Interactive:
    """Interactive version of `specviz.view.sweep`: a click on a point opens its trace.

    Parameters
    ----------
    points : DataFrame
        As in `specviz.view.sweep`; a point can be opened if its column ``trace`` has a trace or the name of a
        trace's file.
    pages : path, optional
        A folder for the points' pages: each trace's player is written there, and so is this figure, as
        ``index.html``, whose points open them. Without it, a point only names its trace's file.
    curve, size, quality
        As in `specviz.view.sweep`.
    force : bool
        Whether to replace existing pages.

    Returns
    -------
    Interactive
        In a notebook, a click opens the page by its path relative to the notebook's folder.

    Raises
    ------
    TraceError
        If a column is missing, a trace cannot be opened or a page exists (unless `force`).
    ParameterError
        If plotly is not installed.
    """
    go = _plotly()
    curve, size = columns_of(points, curve, size)
    points = points.reset_index(drop=True)
    given: list[Trace | str | None] = list(points["trace"]) if "trace" in points else [None] * len(points)
    names = _players(given, pages, "point", force)
    figure = go.Figure()
    best, base = on_front(points), based(points)
    figure.add_scatter(
        x=best["speed"], y=best["quality"], mode="lines", name="Pareto front", hoverinfo="skip",
        line={"color": "rgba(136,136,136,0.4)", "width": 8},
    )  # fmt: skip
    rows: Sequence[Row] = points.to_dict("records")
    _add_curves(figure, rows, points.drop(base.index), names, curve, size)
    for i in base.index.tolist():
        _add_base(figure, rows[i], names[i], float(points["quality"].min()), i == base.index[0])
    sizes = f"larger marks: larger {plotly(size)}" if size else ""
    figure.update_layout(
        template="plotly_white", height=520, margin={"t": 30, "b": 50, "l": 60, "r": 10}, hovermode="closest",
        xaxis_title="speed relative to the base", yaxis_title=plotly(quality),
        legend={"title": {"text": sizes}},
    )  # fmt: skip
    return _with_pages(Interactive(figure, "Quality against speed"), pages, force)


def why_it_pays(traces: Traces, pages: str | Path | None = None, force: bool = False) -> Interactive:
    """Interactive version of `specviz.view.why_it_pays`: a click on a method opens its trace.

    Parameters
    ----------
    traces
        As in `specviz.view.why_it_pays`.
    pages : path, optional
        A folder for the methods' pages: each trace's player is written there, and so is this figure, as
        ``index.html``, whose points open them. Without it, points only show a hover text.
    force : bool
        Whether to replace existing pages.

    Returns
    -------
    Interactive
        In a notebook, a click opens the page by its path relative to the notebook's folder.

    Raises
    ------
    TraceError
        As in `specviz.view.why_it_pays`, or if a page exists (unless `force`).
    ParameterError
        If plotly is not installed.
    """
    go = _plotly()
    table, prompts, runs = payoff.payoff(traces)
    names = _players(runs, pages, "method", force)
    x, y, outside = payoff.ranges(table, prompts)
    figure = go.Figure()
    for speedup, part in payoff.lines(x, y).items():
        _add_speedup(figure, speedup, *part, above=part[1][-1] > 0.999 * y[1])
    for number, (row, page) in enumerate(zip(table.to_dict("records"), names)):
        base = row["method"] == payoff.PLAIN
        hue, mark = ("#000000", "x-thin-open") if base else look(number - 1)
        if not base:
            own = prompts[prompts["name"] == row["name"]]
            figure.add_scatter(
                x=own["cost"], y=own["tau"], mode="markers", showlegend=False, legendgroup=str(number),
                marker={"color": hue, "symbol": MARKS[mark], "size": 4, "opacity": 0.4},
                hovertemplate=f"{plotly(row['name'])}, one prompt: τ %{{y:.2f}}, "
                "cost %{x:.2f}<extra></extra>",
            )  # fmt: skip
        symbol = MARKS.get(mark, mark) + ("-open" if row["exactness"] == "lossy" else "")
        spread = {axis: _spread(row, name, hue) for axis, name in (("error_x", "cost"), ("error_y", "tau"))}
        figure.add_scatter(
            x=[row["cost"]], y=[row["tau"]], mode="markers", name=plotly(payoff.words(row)),
            legendgroup=str(number), text=[_method(row, page)], customdata=[page], **spread,
            marker={"color": hue, "symbol": symbol, "size": 13, "line": {"width": 2, "color": hue}},
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    figure.update_layout(
        template="plotly_white", height=520, margin={"t": 60, "b": 50, "l": 60, "r": 40}, hovermode="closest",
        title={"text": plotly(payoff.heading(table, outside)).replace("; ", "<br>"), "font": {"size": 13}},
        legend={"orientation": "h", "yanchor": "top", "y": -0.2},
        xaxis={"title": {"text": payoff.X_NAME, "standoff": 4}, "range": x},
        yaxis={"title": payoff.Y_NAME, "range": y},
    )  # fmt: skip
    return _with_pages(Interactive(figure, "Why it pays"), pages, force)


def curve(
    calibration: Calibration,
    traces: Mapping[int, Trace] | None = None,
    pages: str | Path | None = None,
    force: bool = False,
) -> Interactive:
    """Interactive version of `specviz.view.curve` for τ/t: a click on a size opens a text decoded with it.

    Parameters
    ----------
    calibration : Calibration
    traces : mapping of int to Trace, optional
        Draft size to the trace of a text decoded with it; a calibration keeps no traces.
    pages : path, optional
        A folder for these traces' players and for this figure, ``index.html``, whose points open them.
    force : bool
        Whether to replace existing pages.

    Returns
    -------
    Interactive
        In a notebook, a click opens the page by its path relative to the notebook's folder.

    Raises
    ------
    ParameterError
        If a trace's size was not measured, or plotly is not installed.
    SpecvizError
        If the calibration was interrupted.
    TraceError
        If a page exists (unless `force`).
    """
    _ = calibration.g  # raises if it was interrupted
    sizes, given = [point.g for point in calibration.points], dict(traces or {})
    if strangers := [each for each in given if each not in sizes]:
        raise ParameterError(f"size {strangers[0]} was not measured: there are {', '.join(map(str, sizes))}")
    order = [given.get(size) for size in sizes]
    names = _players(order, pages, "size", force)
    made = Interactive(_curve(calibration, names), "Calibration", NOT_DECODED)
    return _with_pages(made, pages, force)


def _curve(calibration: Calibration, pages: Sequence[str | None]) -> Figure:
    """Draw the measured sizes and the fits through them; each point has its page's name."""
    go = _plotly()
    g, tau, s, *quartiles = calibration.measured()
    least, most = float((tau / s).min()), float((tau / s).max())
    room = 0.25 * (most - least) + 1e-9  # a fit may swing far beyond the points
    low, high = max(0.0, least - room), most + room
    figure = go.Figure()
    near = 0.8 < calibration.fits["paper"].g / calibration.fits["monotone"].g < 1.25
    for name, line in (("paper", "dash"), ("monotone", "solid")):
        fit, cost, hue = calibration.fits[name], np.array(calibration.fits[name].s), LOOKS[name][2]
        speed = np.array(fit.tau) / np.where(cost > 0, cost, np.nan)
        common: Look = {"hoverinfo": "skip", "legendgroup": name}
        figure.add_scatter(
            x=calibration.sizes, y=speed, mode="lines", name=LOOKS[name][0],
            line={"color": hue, "dash": line, "width": 1.6}, **common,
        )  # fmt: skip
        figure.add_scatter(
            x=[fit.g], y=np.clip(speed[[fit.g - int(g[0])]], low, high), mode="markers+text",
            marker={"symbol": "diamond", "size": 11, "color": hue}, text=[f"g* = {fit.g}"], showlegend=False,
            textposition="bottom center" if near and name == "monotone" else "top center",
            textfont={"color": hue}, cliponaxis=False, **common,
        )  # fmt: skip
    words = []
    for size, page, taken, *times in zip(g, pages, tau, *(1e3 * each for each in (s, *quartiles))):
        best = ", g*" if size == calibration.g else ""
        parts = [
            f"<b>g = {size}</b>{best}",
            f"{1e3 * taken / times[0]:,.0f} tokens/s",
            f"τ {taken:.2f}",
            "a cycle {:.2f} ms, quartiles {:.2f} to {:.2f}".format(*times),
        ]
        words.append("<br>".join([*parts, *([CLICK] if page is not None else [])]))
    figure.add_scatter(
        x=g, y=tau / s, mode="markers", name="measured", text=words, customdata=pages,
        marker={"color": "#000000", "size": 8},
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    figure.update_layout(
        template="plotly_white", height=480, margin={"t": 50, "b": 50, "l": 70, "r": 10}, hovermode="closest",
        title={"text": plotly(calibration.summary), "font": {"size": 12}},
        legend={"orientation": "h", "yanchor": "top", "y": -0.2},
        xaxis={"title": {"text": "draft size g", "standoff": 4}, "type": "log", "tickvals": roomy(g)},
        yaxis={"title": WHAT["speed"], "range": [low, high]},
    )  # fmt: skip
    return figure


def _add_speedup(figure: Figure, speedup: float, x: Sequence[float], y: Sequence[float], above: bool) -> None:
    """Add the line τ = speedup · cost, labelled after its end: above the plot or on the right."""
    even = speedup == 1
    figure.add_scatter(
        x=x, y=y, mode="lines+text", hoverinfo="skip", showlegend=even, name=payoff.EVEN,
        line={"color": "#000000" if even else "#888888", "dash": "solid" if even else "dot", "width": 1.5},
        text=["", "" if even else f"{speedup:g}×"], cliponaxis=False,
        textposition="top center" if above else "middle right",
        textfont={"color": "#888888", "size": 10},
    )  # fmt: skip


def _spread(row: Row, name: str, hue: str) -> Look:
    """Plotly error bars for an interval; invisible if there is no interval."""
    low, high = row[f"{name}_lo"], row[f"{name}_hi"]
    there = low == low
    return {
        "type": "data", "symmetric": False, "visible": there, "color": hue, "thickness": 1.4, "width": 3,
        "array": [high - row[name]] if there else [], "arrayminus": [row[name] - low] if there else [],
    }  # fmt: skip


def _method(row: Row, page: str | None) -> str:
    """Hover text of a method's point."""

    def figure(name: str) -> str:
        low, high = row[f"{name}_lo"], row[f"{name}_hi"]
        return f"{row[name]:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low == low else "")

    parts = [
        f"<b>{plotly(row['name'])}</b>, {plotly(row['exactness'])}",
        f"τ {figure('tau')}",
        f"cost {figure('cost')} plain passes: target's pass {row['forward']:.2f}, drafting "
        f"{row['draft_cost']:.2f}, rest {row['rest']:.2f}",
        f"speedup {figure('speedup')}, over {plural(row['prompts'], 'prompt')}",
    ]
    return "<br>".join([*parts, *([CLICK] if page is not None else [])])


def _add_curves(
    figure: Figure, rows: Sequence[Row], rest: pd.DataFrame, pages: Sequence[str | None], curve: str | None,
    size: str | None,
) -> None:  # fmt: skip
    """Add one line per curve of the points except the base; each point has its page's name."""
    for x, y, area, hue, mark, label, at in curves(rest, curve, size):
        figure.add_scatter(
            x=x, y=y, mode="lines+markers", name=plotly(label), line={"color": hue, "width": 1.5},
            marker={"color": hue, "symbol": MARKS[mark], "size": 1.6 * np.sqrt(area), "opacity": 0.9},
            text=[_point(rows[i], pages[i]) for i in at], customdata=[pages[i] for i in at],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip


def _add_base(figure: Figure, row: Row, page: str | None, least: float, first: bool) -> None:
    """Add the base's cross, and lines at its quality and, unless all points are above it, 1 below."""
    mark = {"symbol": "x-thin-open", "size": 14, "color": "#000000", "line": {"width": 3}}
    figure.add_scatter(
        x=[row["speed"]], y=[row["quality"]], mode="markers", name="base", text=[_point(row, page)],
        marker=mark, customdata=[page], hovertemplate="%{text}<extra></extra>", showlegend=first,
    )  # fmt: skip
    figure.add_hline(row["quality"], line={"dash": "dash", "width": 1})
    if row["quality"] - 1 >= least:
        figure.add_hline(row["quality"] - 1, line={"dash": "dot", "width": 1})


def _players(
    traces: Sequence[Trace | str | None], folder: str | Path | None, kind: str, force: bool
) -> Sequence[str | None]:
    """Write a player for each existing trace; return the pages' names, which contain no external text."""
    if folder is None:
        return [None] * len(traces)
    pages = expanded(folder, TraceError)
    index = pages / "index.html"
    if index.exists() and not force:
        raise TraceError(f"{index} exists: choose another folder, or replace it with force=True")
    return [
        None if trace is None else trace.to_html(pages / f"{kind}-{i}.html", force=force).name
        for i, trace in enumerate(map(_opened, traces))
    ]


def _with_pages(made: Interactive, folder: str | Path | None, force: bool) -> Interactive:
    """Write the figure into its points' folder, then prefix its links so that they work in the notebook."""

    if folder is None:
        return made
    pages = expanded(folder, TraceError)

    def prefix(part: BaseTraceType) -> None:
        if part.customdata is not None:
            part.customdata = [name and quote(f"{pages.as_posix()}/{name}") for name in part.customdata]

    made.to_html(pages / "index.html", force=force)
    made.figure.for_each_trace(prefix)
    return made


def _opened(given: Trace | str | None) -> Trace | None:
    """Open a value of a sweep's ``trace`` column, which is a trace, the name of its file, or empty."""
    if isinstance(given, str):
        return Trace.open(given) if given else None
    return given if isinstance(given, Trace) else None


HIDDEN = ("quality_lo", "quality_hi", "front", "base", "area", "trace")


def _point(row: Row, page: str | None) -> str:
    """Hover text of a point: every column that has a value, except the hidden ones."""
    parts = []
    for name, value in row.items():
        if name in HIDDEN or value is None or value != value:
            continue
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        parts.append(f"{plotly(name)} {plotly(shown)}")
    if page is not None:
        parts.append(CLICK)
    elif isinstance(row.get("trace"), str) and row["trace"]:
        parts.append(plotly(row["trace"]))
    return "<br>".join(parts)
