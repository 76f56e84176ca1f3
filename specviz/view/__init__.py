"""Views of a trace or a calibration: static HTML, images, matplotlib plots and plain text, without torch.

`interactive` has plotly versions of some views, which show values on hover and can be zoomed.
"""

from __future__ import annotations

from specviz.trace import Trace
from specviz.view import flicker, interactive, picture, plots, static, terminal, updates
from specviz.view.advised import advice
from specviz.view.axes import subplots
from specviz.view.calibrated import by_device, by_prompts, calibration_png, curve, deviation
from specviz.view.control import control_loop
from specviz.view.costs import costs_figure, costs_words
from specviz.view.drafts import draft_tree
from specviz.view.examples import examples
from specviz.view.flicker import drawn as ribbon
from specviz.view.heat import heat_map
from specviz.view.lattices import lattice
from specviz.view.layers import exit_layers
from specviz.view.moving import gif
from specviz.view.payoff import why_it_pays
from specviz.view.plots import confidence, phases, timeline, token_strip
from specviz.view.signals import auroc, reliability, signal_lanes, threshold_readings
from specviz.view.states import aligned
from specviz.view.stores import acceptance_by_score, right_by, store, store_growth, warm_up
from specviz.view.tradeoff import sweep
from specviz.view.trees import canvases, canvases_words

__all__ = [
    "acceptance_by_score", "advice", "aligned", "auroc", "by_device", "by_prompts", "calibration_png",
    "canvases", "canvases_words", "confidence", "control_loop", "costs_figure", "costs_words", "curve",
    "deviation", "draft_tree", "examples", "exit_layers", "gif", "heat_map", "html", "interactive",
    "lattice", "phases", "png", "reliability", "ribbon", "right_by", "signal_lanes", "store",
    "store_growth", "subplots", "sweep", "text", "threshold_readings", "timeline", "token_strip", "warm_up",
    "why_it_pays",
]  # fmt: skip


def html(trace: Trace, most: int = 2) -> str:
    """A self-contained fragment for a notebook: no script, no network.

    Parameters
    ----------
    trace : Trace
    most : int
        Maximum number of texts drawn per run; a note gives the number left out.

    Returns
    -------
    str
    """
    runs = trace.split()
    streams = [run for run in runs if updates.is_stream(run)]
    others = [run.run["run"] for run in runs if run not in streams]
    parts = [flicker.notebook(streams, most)] if streams else []
    if others:
        parts.append(static.block(trace.select(run=others) if streams else trace, most))
    return "".join(parts)


def png(trace: Trace) -> bytes:
    """The first text of the first run as an image, for front-ends that strip HTML."""
    return (flicker if updates.is_stream(trace.split()[0]) else plots).poster(trace)


def text(trace: Trace, colour: bool = False, most: int = 2, rest: bool = True) -> str:
    """Render the trace as plain text with marks, optionally with ANSI colours.

    Up to `most` texts of each of the first runs are shown; `rest` adds how many texts and runs are left out.
    """
    parts = []
    runs = trace.split()
    for run in runs[: static.MOST_RUNS]:
        count = len(picture.prompts(run))
        if updates.is_stream(run):
            parts += [flicker.plain(updates.ribbon(run, n), colour) for n in picture.prompts(run)[:most]]
        else:
            shown = picture.pictures(run, most)
            parts.append(terminal.head(shown[0], picture.headline(run) if count > 1 else (), count, colour))
            parts += [terminal.block(one, colour) for one in shown]
        if rest and count > most:
            parts.append(static.more_texts(count - most))
    return "\n\n".join([*parts, *(static.more_runs(len(runs)) if rest else [])])
