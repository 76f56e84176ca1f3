"""Looking at a trace: static HTML, an image, matplotlib plots, plain text. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specviz.view.plots import confidence, phases, reliability, timeline, token_strip

if TYPE_CHECKING:
    from specviz.trace import Trace

__all__ = ["confidence", "html", "page", "phases", "png", "reliability", "text", "timeline", "token_strip"]


def html(trace: Trace, most: int = 2) -> str:
    """A self-contained fragment for a notebook: no script, no network.

    Parameters
    ----------
    trace : Trace
    most : int
        How many prompts of each run are drawn; the rest is counted in words.

    Returns
    -------
    str
    """
    from specviz.view.picture import pictures
    from specviz.view.static import block

    return "".join(block(pictures(run, most)) for run in trace.split()[:8])


def png(trace: Trace) -> bytes:
    """The first prompt of the first run as an image, for front-ends that strip HTML."""
    from specviz.view.picture import pictures
    from specviz.view.plots import poster

    return poster(pictures(trace, 1)[0])


def text(trace: Trace, colour: bool = False, most: int = 2) -> str:
    """The trace as plain text with marks, and with ANSI colours if asked for."""
    from specviz.view.picture import pictures
    from specviz.view.terminal import block

    return "\n\n".join(block(p, colour) for run in trace.split() for p in pictures(run, most))


def page(trace: Trace, path: Path, force: bool = False) -> Path:
    """Write one offline HTML page with every run of the trace.

    Raises
    ------
    specviz.errors.TraceError
        If the file exists (unless `force`) or cannot be written.
    """
    from specviz.view.static import write

    return write(trace, Path(path), force)
