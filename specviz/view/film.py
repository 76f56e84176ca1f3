"""Animate a range of cycles as a GIF: the text so far, and the draft that each cycle judged."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import ParameterError
from specviz.metrics import drafts
from specviz.trace import Trace
from specviz.view.axes import new_figure, note, png
from specviz.view.drafts import draft_tree
from specviz.view.moving import write_gif
from specviz.view.picture import Picture, Span, first_run, picture
from specviz.view.plots import _ruler, flow, strip
from specviz.view.updates import check_one_text

if TYPE_CHECKING:
    from PIL.Image import Image

MOST = 200  # frames
FIRST = 12  # cycles, if none are chosen
SIZE = (9.6, 5.4)  # inches
ROWS = 7  # minimum height of a draft, in rows
LINES, WORDS = 5, 60  # maximum lines of text, and maximum number of its last tokens shown


def write(
    trace: Trace, path: Path, cycles: Iterable[int] | None, prompt: int | None, seconds: float, force: bool
) -> Path:
    """Write the GIF for `Trace.to_gif` and return its path."""
    run, number = first_run(trace, prompt)
    check_one_text(run)
    one = run.select(prompt=number)
    there = [int(cycle) for cycle in one.cycles["cycle"] if cycle > 0]
    chosen = there[:FIRST] if cycles is None else list(cycles)
    if missing := [cycle for cycle in chosen if cycle not in there]:
        raise ParameterError(
            f"prompt {number} has no cycle {missing[0]!r}: it has cycles 1 to {max(there, default=0)}"
        )
    if not 0 < len(chosen) <= MOST:
        raise ParameterError(f"{len(chosen)} cycles: a film can show from 1 to {MOST}")
    if not 0.02 <= seconds <= 60:
        raise ParameterError(f"seconds is {seconds!r}: a frame can last from 0.02 to 60 s")
    shown = picture(one, number)
    drafted = (drafts(one).set_index("cycle")["drafted"] > 0).to_dict()
    deepest = one.cycles.set_index("cycle")["depth"][chosen].max()
    frames = [_frame(one, shown, cycle, drafted[cycle], float(deepest)) for cycle in chosen]
    return write_gif(frames, [round(1000 * seconds)] * len(frames), Path(path), force)


def _newest(spans: Sequence[Span], width: float, measure: Callable[[str], float]) -> tuple[Span, ...]:
    """The last spans, as many as fit into `LINES` lines; an ellipsis stands for those before them."""
    last = list(spans[-WORDS:])
    while True:
        gap = [replace(last[0], text="…", kind="plain")] if len(last) < len(spans) else []
        if len(last) < 2 or flow([*gap, *last], width, measure)[-1][1] < LINES:
            return (*gap, *last)
        del last[0]


def _frame(one: Trace, shown: Picture, cycle: int, drafted: bool, deepest: float) -> Image:
    from PIL import Image as images

    figure = new_figure(SIZE)
    ax = figure.add_axes((0.03, 0.625, 0.94, 0.35))
    spans = [span for span in shown.spans if span.cycle <= cycle]
    newest = _newest(spans, ax.get_window_extent().width, _ruler(figure.dpi))
    strip(replace(shown, spans=newest), ax, LINES)
    ax = figure.add_axes((0.03, 0.08, 0.94, 0.46))
    if drafted:
        draft_tree(one, cycle, shown.index, ax)
        lowest, top = ax.get_ylim()
        ax.set(xlim=(-0.75, deepest + 0.9), ylim=(max(lowest, ROWS), top))  # same limits in every frame
    else:
        ax.axis("off")
        note(ax, f"cycle {cycle}: nothing was drafted; the target writes one token")
    return images.open(io.BytesIO(png(figure))).convert("P", palette=images.Palette.ADAPTIVE, colors=128)
