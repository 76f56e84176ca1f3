"""The plots of a report's page, as the data of plotly figures, which the page's script draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from specviz.escape import html as text
from specviz.measure.rows import Results
from specviz.replays.cells import Cell
from specviz.replays.layout import distinguishing, metric_name, shown
from specviz.replays.replays import Replay

PLOTS = 2  # most metrics drawn per table
LABEL = 30  # characters per line of a plot's label
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "x")
UNITS = {"throughput": "tokens/s", "latency": "s", "forward_time": "s", "calibration_time": "s"}  # of curves
LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}
Figure = dict[str, Any]  # plotly's: data and layout
CLICK = "click: the trace of its median prompt"
Opened = Mapping[str, str]  # contender: link to its trace
Labelled = tuple[str, Figure]  # a description, and the figure
Span = tuple[float | None, float | None, float | None]  # a value and its interval


def run_figures(results: Results, links: Mapping[int, str]) -> tuple[list[Labelled], Opened]:
    """Plot each contender's speedup, by three averages, and τ; also return what a click opens.

    `links` maps a cell of the run to what a click on its contender opens, if anything.
    """
    table = results.table()
    references = {cell["cell"] for cell in results.cells if cell["cell"] == cell["against"]}
    table = table[~table["cell"].isin(references)]
    contenders: Any = table.fillna("").itertuples()
    labels = [
        " ".join(filter(None, [str(r.method), str(r.draft or "") and Path(str(r.draft)).name, r.parameters]))
        + (f" ({r.suite}, {r.model})" if len(set(table["suite"] + table["model"])) > 1 else "")
        for r in contenders
    ]
    out, to = [], [links.get(cell, "") for cell in table["cell"]]
    for title, names in (
        ("speedup over the reference", ("pooled_speedup", "request_speedup", "paired_speedup")),
        ("tokens per cycle (τ)", ("tau",)),
    ):
        traces = [
            dots("here", name.partition("_")[0], labels,
                 list(zip(table[name], table[f"{name}_low"], table[f"{name}_high"])), symbol, links=to)
            for name, symbol in zip(names, SYMBOLS) if table[name].notna().any()
        ]  # fmt: skip
        if traces:
            out.append((f"{title}, by method", dot_plot(title, traces, one=title.startswith("speedup"))))
    return out, {label: link for label, link in zip(labels, to) if link}


def replay_figures(replay: Replay, links: Mapping[int, str]) -> tuple[list[Labelled], Opened]:
    """Plot printed and measured values by contender, for a table's first metrics; also what clicks open."""
    cells = [replay.cells[i] for i in shown(replay)]
    measured = list(dict.fromkeys(c.metric for c in cells if c.measured is not None))
    first = [name for name in replay.metrics if name in measured]
    metrics = list(dict.fromkeys([*first, *(m for m in measured if not m.endswith("_gain"))]))
    metrics = sorted(metrics, key=lambda m: m != "speedup")[:PLOTS]
    opened: dict[str, str] = {}
    plots = (
        metric_figure(replay, metric, [c for c in cells if c.metric == metric], links, opened)
        for metric in metrics
    )
    return [plot for plot in plots if plot is not None], opened


def metric_figure(
    replay: Replay, metric: str, cells: Sequence[Cell], links: Mapping[int, str], opened: dict[str, str]
) -> Labelled | None:
    """Plot a metric, printed and measured; None if nothing was. Adds what clicks open to `opened`."""
    keys = [key for key in replay.keys if key not in replay.compare]
    spread = [key for key in distinguishing(replay) if key in replay.keys]
    spread = [key for key in spread if 1 < len({str(cell.keys[key]) for cell in cells}) <= 4]
    labels = [", ".join(contender(name, str(c.column(name))) for name in replay.compare) for c in cells]
    labels = [" · ".join([label, *(str(c.keys[k]) for k in spread)]) for label, c in zip(labels, cells)]
    own: dict[tuple[str, str], Cell] = {}
    for label, cell in zip(labels, cells):
        if cell.measured is not None:  # once, even if the paper printed it for several devices
            own[label, named(cell, keys)] = cell
    if not own:
        return None
    to = [links.get(-1 if cell.figure is None else cell.figure, "") for cell in own.values()]
    names = [label if column in label else f"{label}, {column}" for label, column in own]
    opened |= {name: link for name, link in zip(names, to) if link}
    spans: list[Span] = [(cell.measured, cell.low, cell.high) for cell in own.values()]
    traces = [dots("here", "measured here", [label for label, _ in own], spans, "diamond",
                   [column for _, column in own], to)]  # fmt: skip
    if any(cell.value is not None for cell in cells):
        where = [named(cell, [*keys, "device", "model"]) for cell in cells]
        values: list[Span] = [(cell.value, None, None) for cell in cells]
        traces.insert(0, dots("printed", "printed", labels, values, "circle-open", where))
    axis = axis_of(metric, cells[0].unit)
    return f"{replay.table}, {axis}: printed and measured", dot_plot(axis, traces, metric == "speedup")


def curve_figures(replay: Replay, links: Mapping[int, str]) -> tuple[list[Labelled], Opened]:
    """Plot curves as the paper draws them: quality by speed, or a metric by what varies.

    Clicks open nothing, as a curve's settings are swept in one process, which keeps no traces.
    """
    metrics = list(dict.fromkeys(cell.metric for cell in replay.cells))
    if "speedup" in metrics and {"dataset", "curve", "setting"} <= set(replay.cells[0].keys):
        datasets = dict.fromkeys(c.keys["dataset"] for c in replay.cells)
        return [trade_off(replay, each) for each in datasets], {}
    along, out = replay.compare[-1], []
    for metric in metrics[:PLOTS]:
        lines: dict[str, list[tuple[Any, Any, str]]] = {}
        for cell in replay.cells:
            if cell.metric == metric and cell.measured is not None and cell.column(along) is not None:
                name = ", ".join(str(cell.column(key)) for key in replay.compare[:-1]) or "measured here"
                lines.setdefault(name, []).append((cell.column(along), cell.measured, ""))
        axis = axis_of(metric, UNITS.get(metric, ""))
        out.append((f"{replay.table}: {axis} by {along}", chart(along, axis, lines, "lines+markers")))
    return out, {}


def trade_off(replay: Replay, dataset: str) -> Labelled:
    """Plot quality by speed for every setting on a data set."""
    settings: dict[tuple[str, str], dict[str, float | None]] = {}
    for cell in replay.cells:
        if cell.keys["dataset"] == dataset:
            settings.setdefault((cell.keys["curve"], cell.keys["setting"]), {})[cell.metric] = cell.measured
    quality = next(name for values in settings.values() for name in values if name != "speedup")
    lines: dict[str, list[tuple[Any, Any, str]]] = {}
    for (curve, setting), values in settings.items():
        if None in (values["speedup"], values[quality]):  # not measured, as a model was missing
            continue
        lines.setdefault(curve, []).append((values["speedup"], values[quality], setting))
    axes = axis_of("speedup", "x"), f"{axis_of(quality, '')}, {dataset}"
    return f"{replay.table}: {axes[1]} by {axes[0]}", chart(*axes, lines, "markers")


def chart(x: str, y: str, lines: Mapping[str, Sequence[tuple[Any, Any, str]]], mode: str) -> Figure:
    """Plot curves of (x, y, words), each with its own marker symbol."""
    traces = []
    for i, (name, points) in enumerate(lines.items()):
        xs, ys, words = zip(*points)
        traces.append({
            "type": "scatter", "mode": mode, "name": text(name), "meta": f"curve{i}",
            "x": [text(each) if isinstance(each, str) else round(each, 6) for each in xs],
            "y": [round(float(each), 6) for each in ys], "text": [text(each) for each in words],
            "hovertemplate": "%{x}, %{y}<br>%{text}<extra>" + text(name) + "</extra>",
            "marker": {"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 9, "opacity": 0.85},
        })  # fmt: skip
    return {
        "data": traces,
        "layout": {
            "height": 380, "margin": {"t": 40, "b": 46, "l": 10, "r": 14}, "showlegend": len(traces) > 1,
            "legend": LEGEND, "xaxis": {"title": {"text": text(x)}}, "yaxis": {"title": {"text": text(y)}},
            "shapes": [], "hovermode": "closest",
        },
    }  # fmt: skip


def contender(key: str, value: str) -> str:
    """A contender's name; a bare number is preceded by its column's name."""
    return f"{key.replace('_', ' ')} {value}" if value.replace(".", "", 1).isdigit() else value


def named(cell: Cell, keys: Sequence[str]) -> str:
    """Identify a number by some of its columns."""
    return ", ".join(str(cell.column(key)) for key in keys if str(cell.column(key)) not in ("", "-"))


def dots(
    kind: str, name: str, labels: Sequence[str], values: Sequence[Span], symbol: str,
    hover: Sequence[str] | None = None, links: Sequence[str] = (),
) -> Figure:  # fmt: skip
    """A scatter of values by label, with intervals if there are any; `links` are what clicks open."""

    def clean(value: float | None) -> float | None:
        return None if value is None or value != value else round(float(value), 6)

    def gap(above: float | None, below: float | None) -> float | None:
        return None if above is None or below is None else clean(above - below)

    trace: Figure = {
        "type": "scatter", "mode": "markers", "name": text(name), "meta": kind,
        "x": [clean(value) for value, _, _ in values],
        "y": ["<br>".join(map(text, wrap(label, LABEL))) for label in labels],
        "marker": {"symbol": symbol, "size": 9, "opacity": 1 if kind == "here" else 0.75},
    }  # fmt: skip
    if any(clean(low) is not None for _, low, _ in values):
        above = [gap(high, value) for value, _, high in values]
        below = [gap(value, low) for value, low, _ in values]
        trace["error_x"] = {"type": "data", "symmetric": False, "array": above, "arrayminus": below,
                            "thickness": 1.2, "width": 3}  # fmt: skip
    if any(links):
        trace["customdata"] = [*links]
        hover = ["" if hover is None else each for each in hover or labels]
        hover = ["; ".join(filter(None, [each, to and CLICK])) for each, to in zip(hover, links)]
    if hover is not None:
        trace["text"] = [text(each) for each in hover]
        trace["hovertemplate"] = "%{y}: %{x}<br>%{text}<extra>" + text(name) + "</extra>"
    return trace


def axis_of(metric: str, unit: str) -> str:
    """A metric with its unit, for an axis."""
    unit = "times as fast" if unit == "x" else unit
    return metric_name(metric) + (f" ({unit})" if unit else "")


def dot_plot(axis: str, traces: list[Figure], one: bool = False) -> Figure:
    """Lay out traces, with contenders in the table's order from the top; `one` draws a line at 1."""
    labels = {label for trace in traces for label in trace["y"]}
    rows, tall = max(4, len(labels)), max((label.count("<br>") for label in labels), default=0)
    line = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "meta": "one"}
    return {
        "data": traces,
        "layout": {
            "height": 110 + (26 + 10 * tall) * rows,
            "margin": {"t": 34, "b": 46, "l": 10, "r": 14}, "showlegend": True, "legend": LEGEND,
            "yaxis": {"autorange": "reversed", "type": "category"},
            "xaxis": {"rangemode": "tozero", "title": {"text": text(axis)}},
            "shapes": [line] if one else [], "hovermode": "closest",
        },
    }  # fmt: skip
