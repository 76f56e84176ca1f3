"""plotly views for pointing and zooming: the control loop, and points that open their traces.

plotly is the lab extra. A figure that shows itself in a notebook brings plotly.js along (4.8 MB) and asks no
one for it; an exported page does the same. Token texts pass through `specviz.escape.plotly`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError, TraceError, install
from specviz.escape import html, plotly, script_sources
from specviz.trace import Trace
from specviz.view import payoff
from specviz.view.axes import FIGURE_STYLE, Look, look
from specviz.view.canvas import Row
from specviz.view.control import MOST, Loop, loop
from specviz.view.picture import FATES
from specviz.view.static import Page
from specviz.view.tradeoff import based, columns_of, curves, on_front
from specviz.view.updates import Traces

if TYPE_CHECKING:
    import pandas as pd
    from plotly.basedatatypes import BaseTraceType
    from plotly.graph_objects import Figure

SIGNS = {
    "accepted": ("circle", "#0072b2"),
    "rejected": ("x", "#d55e00"),
    "unjudged": ("circle", "#bbbbbb"),
    "unreviewed": ("diamond", "#56b4e9"),
    "cut": ("line-ns-open", "#777777"),
    "unsent": ("circle-open", "#777777"),
    "below_budget": ("triangle-up-open", "#777777"),
}
MARKS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross"}
# What a click does: the point's link, which this module wrote itself, in a new tab. {plot_id} is plotly's.
OPEN = """document.getElementById("{plot_id}").on("plotly_click", (event) => {
  const link = event.points.map((point) => point.customdata).find((to) => typeof to === "string" && to);
  if (link) window.open(link, "_blank", "noopener");
});"""
POLICY = "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data: blob:"
OWN_SCRIPTS = 3  # that plotly writes; one more would come from the data, and is not run
SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)


def _plotly() -> ModuleType:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ParameterError(f"an interactive figure needs plotly: {install('lab')}") from None
    return go


class Interactive(Page):
    """A plotly figure that shows itself in a notebook without a network, and writes itself as a page.

    Attributes
    ----------
    figure : plotly.graph_objects.Figure
        As plotly has it: ``figure.show()``, ``figure.update_layout(...)``. Its points have the addresses of
        their traces as ``customdata``.
    """

    def __init__(self, figure: Figure, title: str) -> None:
        self.figure = figure
        self.title = title

    def _html(self, name: str) -> str:
        fragment: str = self.figure.to_html(
            full_html=False,
            include_plotlyjs=True,
            post_script=OPEN,
            div_id=name,
            config={"displaylogo": False, "responsive": True},
        )
        return fragment

    def _page(self) -> str:
        """The whole page; its links are relative to it."""
        title, figure = html(self.title), self._html("figure")
        policy = POLICY.format(script_sources(*SCRIPT.findall(figure)[:OWN_SCRIPTS]))
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width,initial-scale=1"></head>'
            '<body style="margin:0 auto;max-width:1100px"><main>'
            f'<h1 style="font:600 20px system-ui;margin:12px">{title}</h1>'
            f"{figure}</main></body></html>"
        )

    def _repr_html_(self) -> str:
        return f'{FIGURE_STYLE}<div class="specviz-figure">{self._html(f"specviz-{id(self):x}")}</div>'

    def __repr__(self) -> str:
        return f"<Interactive: {self.title}>"


def control_loop(trace: Trace, prompt: int | None = None, most: int = 4 * MOST) -> Interactive:
    """`specviz.view.control_loop` to point at and zoom into: each token with its signals and its gap.

    Parameters
    ----------
    trace, prompt, most
        As there.

    Returns
    -------
    Interactive
        Three panels over one axis of cycles.

    Raises
    ------
    TraceError
        If nothing was drafted.
    ParameterError
        If plotly is not installed.
    """
    go = _plotly()
    from plotly.subplots import make_subplots

    shown = loop(trace, prompt, most)
    figure = make_subplots(
        rows=3, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.36, 0.28, 0.36]
    )
    nodes, cycles = shown.nodes, shown.cycles
    line = go.Scatter(
        x=cycles["cycle"],
        y=cycles["mean"],
        mode="lines",
        name="mean",
        line={"color": "#333333", "width": 1.2},
    )
    figure.add_trace(line, 1, 1)
    for fate in FATES:
        if (nodes["status"] == fate).any():
            _add_fate(figure, shown, fate)
    _add_limits(figure, shown)
    figure.update_layout(
        barmode="stack", template="plotly_white", height=640, margin={"t": 40, "b": 40, "l": 60, "r": 10},
        title={"text": plotly(shown.title), "font": {"size": 14}}, legend={"groupclick": "togglegroup"},
    )  # fmt: skip
    figure.update_yaxes(title_text=shown.certainty, range=[0, 1.05], row=1, col=1)
    figure.update_yaxes(title_text="draft tokens", row=2, col=1)
    figure.update_yaxes(title_text=f"{shown.allowed[0]}, nats", title_font={"size": 11}, row=3, col=1)
    figure.update_xaxes(range=[0.4, len(cycles) + 0.6])
    figure.update_xaxes(title_text="cycle", row=3, col=1)
    return Interactive(figure, "Control loop")


def _add_limits(figure: Figure, shown: Loop) -> None:
    """The window of each cycle, and the gap that was allowed at each token."""
    go = _plotly()
    nodes, cycles = shown.nodes, shown.cycles
    if cycles["window"].notna().any():
        figure.add_trace(
            go.Scatter(
                x=cycles["cycle"], y=cycles["window"], mode="markers", name="window k_j",
                marker={"symbol": "line-ew-open", "color": "#000000", "size": 18, "line": {"width": 3}},
                hovertemplate="cycle %{x}: window %{y}<extra></extra>",
            ), 2, 1,
        )  # fmt: skip
    tested = nodes[nodes["threshold"].notna()]
    if len(tested):
        figure.add_trace(
            go.Scatter(
                x=tested["x"], y=tested["threshold"], mode="markers", name=f"allowed, {shown.allowed[1]}",
                marker={"symbol": "line-ew-open", "color": "#000000", "size": 8, "line": {"width": 2}},
                hovertemplate=f"{shown.allowed[1]} %{{y:.3f}}<extra></extra>",
            ), 3, 1,
        )  # fmt: skip
        top = 2.2 * float(tested["threshold"].max())
        figure.update_yaxes(range=[-0.03 * max(top, 0.25), max(top, 0.25)], row=3, col=1)


def _add_fate(figure: Figure, shown: Loop, fate: str) -> None:
    """The draft tokens of one fate: as points, in the bars of their cycles, and by their gaps."""
    go = _plotly()
    nodes, cycles = shown.nodes, shown.cycles
    rows = nodes[nodes["status"] == fate]
    sign, hue = SIGNS[fate]
    words = [_hover(row, fate, shown.certainty, shown.allowed[1]) for row in rows.to_dict("records")]
    common: Look = {
        "mode": "markers",
        "marker": {"symbol": sign, "color": hue, "size": 7},
        "hovertemplate": "%{text}<extra></extra>",
        "name": fate,
        "legendgroup": fate,
    }
    figure.add_trace(go.Scatter(x=rows["x"], y=rows["value"], text=words, **common), 1, 1)
    figure.add_trace(
        go.Bar(
            x=cycles["cycle"], y=cycles[fate], name=fate, legendgroup=fate, showlegend=False, width=0.7,
            marker={"color": hue if fate not in ("unsent", "below_budget") else "#ffffff", "line": {"color":
            hue, "width": 1},
                    "pattern": {"shape": {"rejected": "/", "unreviewed": "."}.get(fate, "")}},
            hovertemplate=f"cycle %{{x}}: %{{y}} {fate}<extra></extra>",
        ), 2, 1,
    )  # fmt: skip
    gaps = rows["gap"].notna().to_numpy()
    if gaps.any():
        figure.add_trace(
            go.Scatter(
                x=rows["x"][gaps], y=rows["gap"][gaps],
                text=[w for w, there in zip(words, gaps) if there], showlegend=False, **common,
            ), 3, 1,
        )  # fmt: skip


def _hover(row: Row, fate: str, certainty: str, allowed: str) -> str:
    parts = [f"‘{plotly(row['text'])}’", f"cycle {row['cycle']}, {fate}"]
    if np.isfinite(row["value"]):
        parts.append(f"{certainty} {row['value']:.3f}")
    if np.isfinite(row["gap"]) and np.isfinite(row["threshold"]):
        sign = "≤" if row["gap"] <= row["threshold"] else ">"
        parts.append(f"gap {row['gap']:.3f} {sign} {allowed} {row['threshold']:.3f}")
    elif np.isfinite(row["gap"]):
        parts.append(f"gap {row['gap']:.3f}")
    return "<br>".join(parts)


def sweep(
    points: pd.DataFrame,
    pages: str | Path | None = None,
    curve: str | None = None,
    size: str | None = None,
    quality: str = "BLEU",
    force: bool = False,
) -> Interactive:
    """`specviz.view.sweep` to point at: a click on a point opens its trace.

    Parameters
    ----------
    points : DataFrame
        As `specviz.metrics.sweep` makes it; where its column ``trace`` names a file, the point can be opened.
    pages : path, optional
        A folder for the points' pages: each trace's player is written there, and so is ``index.html``, this
        figure, whose points open them. Without it a point only says which file its trace is in.
    curve, size, quality
        As in `specviz.view.sweep`.
    force : bool
        Whether to replace existing pages.

    Returns
    -------
    Interactive
        In a notebook a click opens the page by its path from the notebook's folder.

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
    names = _pages(points, Path(pages), force) if pages is not None else [None] * len(points)
    figure = go.Figure()
    best, base = on_front(points), based(points)
    figure.add_scatter(
        x=best["speed"], y=best["quality"], mode="lines", name="Pareto front", hoverinfo="skip",
        line={"color": "rgba(136,136,136,0.4)", "width": 8},
    )  # fmt: skip
    rows: Sequence[Row] = points.to_dict("records")
    _add_curves(figure, rows, points.drop(base.index), names, curve, size)
    for i in base.index.tolist():
        _add_base(figure, rows[i], names[i])
    sizes = f"larger marks: larger {plotly(size)}" if size else ""
    figure.update_layout(
        template="plotly_white", height=520, margin={"t": 30, "b": 50, "l": 60, "r": 10}, hovermode="closest",
        xaxis_title="speed relative to the base", yaxis_title=plotly(quality),
        legend={"title": {"text": sizes}},
    )  # fmt: skip
    made = Interactive(figure, "Quality against speed")
    if pages is not None:
        made.to_html(Path(pages) / "index.html", force=force)
        figure.for_each_trace(lambda part: _prefix(part, Path(pages).as_posix()))
    return made


def why_it_pays(traces: Traces, pages: str | Path | None = None, force: bool = False) -> Interactive:
    """`specviz.view.why_it_pays` to point at: a click on a method opens its trace.

    Parameters
    ----------
    traces
        As there.
    pages : path, optional
        A folder for the methods' pages: each trace's player is written there, and so is ``index.html``, this
        figure, whose points open them. Without it a point only says what it is.
    force : bool
        Whether to replace existing pages.

    Returns
    -------
    Interactive
        In a notebook a click opens the page by its path from the notebook's folder.

    Raises
    ------
    TraceError
        As there, or if a page exists (unless `force`).
    ParameterError
        If plotly is not installed.
    """
    go = _plotly()
    table, prompts, runs = payoff.payoff(traces)
    names = _players(runs, Path(pages), force) if pages is not None else [None] * len(runs)
    x, y, outside = payoff.ranges(table, prompts)
    figure = go.Figure()
    for speedup in (1.0, *payoff.SPEEDUPS):
        if (part := payoff.line(speedup, x, y)) is not None:
            _add_speedup(figure, speedup, *part)
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
        template="plotly_white", height=520, margin={"t": 40, "b": 50, "l": 60, "r": 10}, hovermode="closest",
        title={"text": plotly(payoff.heading(table, outside)), "font": {"size": 13}},
        legend={"orientation": "h", "yanchor": "top", "y": -0.15},
        xaxis={"title": payoff.X_NAME, "range": x}, yaxis={"title": payoff.Y_NAME, "range": y},
    )  # fmt: skip
    made = Interactive(figure, "Why it pays")
    if pages is not None:
        made.to_html(Path(pages) / "index.html", force=force)
        figure.for_each_trace(lambda part: _prefix(part, Path(pages).as_posix()))
    return made


def _add_speedup(figure: Figure, speedup: float, x: Sequence[float], y: Sequence[float]) -> None:
    """The line τ = speedup · cost, its number at the upper end."""
    even = speedup == 1
    figure.add_scatter(
        x=x, y=y, mode="lines+text", hoverinfo="skip", showlegend=even, name=payoff.EVEN,
        line={"color": "#000000" if even else "#888888", "dash": "solid" if even else "dot", "width": 1.5},
        text=["", "" if even else f"{speedup:g}×"], textposition="bottom left",
        textfont={"color": "#888888", "size": 10},
    )  # fmt: skip


def _spread(row: Row, name: str, hue: str) -> Look:
    """plotly's error bars of an interval; none where there is none."""
    low, high = row[f"{name}_lo"], row[f"{name}_hi"]
    there = low == low
    return {
        "type": "data", "symmetric": False, "visible": there, "color": hue, "thickness": 1.4, "width": 3,
        "array": [high - row[name]] if there else [], "arrayminus": [row[name] - low] if there else [],
    }  # fmt: skip


def _method(row: Row, page: str | None) -> str:
    """What a method's point says."""

    def figure(name: str) -> str:
        low, high = row[f"{name}_lo"], row[f"{name}_hi"]
        return f"{row[name]:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low == low else "")

    parts = [
        f"<b>{plotly(row['name'])}</b>, {plotly(row['exactness'])}",
        f"τ {figure('tau')}",
        f"cost {figure('cost')} plain passes: target's pass {row['forward']:.2f}, drafting "
        f"{row['draft_cost']:.2f}, rest {row['rest']:.2f}",
        f"speedup {figure('speedup')}, over {row['prompts']} prompts",
    ]
    return "<br>".join([*parts, *(["<b>click: its trace</b>"] if page is not None else [])])


def _players(runs: Sequence[Trace], folder: Path, force: bool) -> list[str | None]:
    """Write each run's page; their names, of which none comes from outside."""
    _check_index(folder, force)
    return [run.to_html(folder / f"method-{i}.html", force=force).name for i, run in enumerate(runs)]


def _add_curves(
    figure: Figure, rows: Sequence[Row], rest: pd.DataFrame, pages: Sequence[str | None], curve: str | None,
    size: str | None,
) -> None:  # fmt: skip
    """A line a curve of the points but the base; each point names its page."""
    for x, y, area, hue, mark, label, at in curves(rest, curve, size):
        figure.add_scatter(
            x=x, y=y, mode="lines+markers", name=plotly(label), line={"color": hue, "width": 1.5},
            marker={"color": hue, "symbol": MARKS[mark], "size": 1.6 * np.sqrt(area), "opacity": 0.9},
            text=[_point(rows[i], pages[i]) for i in at], customdata=[pages[i] for i in at],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip


def _add_base(figure: Figure, row: Row, page: str | None) -> None:
    """The base's cross, and lines at its quality and one point below."""
    mark = {"symbol": "x-thin-open", "size": 14, "color": "#000000", "line": {"width": 3}}
    figure.add_scatter(
        x=[row["speed"]], y=[row["quality"]], mode="markers", name="base", text=[_point(row, page)],
        marker=mark, customdata=[page], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    figure.add_hline(row["quality"], line={"dash": "dash", "width": 1})
    figure.add_hline(row["quality"] - 1, line={"dash": "dot", "width": 1})


def _prefix(part: BaseTraceType, folder: str) -> None:
    """Links that are right from the folder of the notebook, too."""
    if part.customdata is not None:
        part.customdata = [name and f"{folder}/{name}" for name in part.customdata]


def _pages(points: pd.DataFrame, folder: Path, force: bool) -> list[str | None]:
    """Write each point's page; their names, of which none comes from outside."""
    names: list[str | None] = []
    _check_index(folder, force)
    for i, file in enumerate(points["trace"] if "trace" in points else [None] * len(points)):
        if not isinstance(file, str) or not file:
            names.append(None)
            continue
        names.append(f"point-{i}.html")
        Trace.open(file).to_html(folder / f"point-{i}.html", force=force)
    return names


def _check_index(folder: Path, force: bool) -> None:
    """Refuse a folder that holds such a figure already (unless `force`)."""
    if (folder / "index.html").exists() and not force:
        raise TraceError(
            f"{folder / 'index.html'} exists: choose another folder, or replace it with force=True"
        )


HIDDEN = ("quality_lo", "quality_hi", "front", "base", "area", "trace")


def _point(row: Row, page: str | None) -> str:
    """What a point says: every column that is a number or a word."""
    parts = []
    for name, value in row.items():
        if name in HIDDEN or value is None or value != value:
            continue
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        parts.append(f"{plotly(name)} {plotly(shown)}")
    if isinstance(row.get("trace"), str) and row["trace"]:
        parts.append(plotly(row["trace"]) if page is None else "<b>click: its trace</b>")
    return "<br>".join(parts)
