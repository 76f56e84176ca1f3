"""Animate recorded decodes at their recorded pace as a GIF, for a page that runs no script."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import ParameterError, TraceError
from specviz.escape import visible
from specviz.files import write_bytes
from specviz.trace import Trace
from specviz.view.picture import KINDS, PHASES, Picture, Span, picture, run_names
from specviz.view.updates import check_one_text

if TYPE_CHECKING:
    from PIL.Image import Image as ImageType
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

WIDTH, SIZE, EDGE, HEAD = 820, 16, 18, 62  # pixels: width, text size, margin, height of a lane's title
PAPER, INK, SOFT, GHOST, LOST = "#ffffff", "#1f2328", "#59636e", "#9aa4af", "#c0392b"
TICK, HOLD = 0.05, 3.0  # duration of a frame, and extra time on the last one, in seconds
SEEN = 3  # frames that rejected tokens stay visible; the rest of a cycle takes less than one
LONG = 40  # maximum number of characters of a lane's title


@dataclass(frozen=True)
class Lane:
    """One decode, which can render its text at any moment."""

    title: str
    shown: Picture
    columns: int
    stay: float = 0.0  # minimum recorded seconds for which rejected tokens are shown

    @property
    def end(self) -> float:
        """Seconds from the first cycle's start to the last one's end."""
        last = self.shown.cycles[-1]
        return last.start + sum(last.times) - self.shown.cycles[0].start

    def words(self, now: float) -> list[tuple[str, str]]:
        """Text and colour of written, drafted and recently rejected tokens `now` seconds after the start."""
        first, parts = self.shown.cycles[0].start, []
        for cycle in self.shown.cycles:
            own = [s for s in self.shown.spans if s.cycle == cycle.number]
            begin, end = cycle.start - first, cycle.start - first + sum(cycle.times)
            judged = begin + sum(cycle.times[: PHASES.index("verify") + 1])
            refused = [(cycle.lost, LOST)] if now < min(judged + self.stay, self.end) else []
            if now >= end:
                drafted = list(takewhile(lambda span: span.kind in ("draft", "unreviewed"), own))
                parts += [*_coloured(drafted), *refused, *_coloured(own[len(drafted) :])]
                continue
            if now >= begin + cycle.times[0] and cycle.sent:
                drafted = own[: cycle.accepted]
                if now < judged:
                    parts += [*((s.text, GHOST) for s in drafted), (cycle.lost, GHOST)]
                else:
                    parts += [*_coloured(drafted), (cycle.lost, LOST)]
            break
        return parts

    def heading(self, now: float) -> str:
        """The numbers of tokens, passes and seconds up to `now`."""
        begin = self.shown.cycles[0].start
        done = [c for c in self.shown.cycles if c.start - begin + sum(c.times) <= now]
        tokens = sum(c.emitted for c in done)
        passes = f"{sum(c.passes for c in done):3d} passes of the target"
        if not any(c.passes for c in self.shown.cycles):  # an imported trace may have none
            passes = f"{len(done):3d} cycles"
        return f"{tokens:3d} tokens   {passes}   {min(now, self.end):4.1f} s"


def _coloured(spans: Sequence[Span]) -> list[tuple[str, str]]:
    """Text and colour of written spans."""
    return [(s.text, KINDS[s.kind].hue if s.kind != "plain" else INK) for s in spans]


def gif(
    traces: Sequence[Trace], path: Path | str, prompt: int = 0, slower: float = 2.0, force: bool = False
) -> Path:
    """Write a GIF that shows several methods decoding one prompt simultaneously.

    Drafted tokens are grey until the target has verified them; then they get the colour of their verdict,
    and rejected ones are struck out for a moment.

    Parameters
    ----------
    traces : sequence of Trace
        Traces of one run each, with times; one lane per trace, from top to bottom.
    path : Path or str
    prompt : int
        Index of the prompt.
    slower : float
        Seconds of the GIF per recorded second.
    force : bool
        Replace the file if it exists.

    Returns
    -------
    Path

    Raises
    ------
    ParameterError
        If there is no trace, `slower` is not positive, or a trace has no cycle of that prompt.
    TraceError
        If a trace wrote a canvas, decoded a stream or has no times; if the file exists (unless `force`) or
        cannot be written.

    Examples
    --------
    >>> names = ("autoregressive", "prompt_lookup")
    >>> specviz.view.gif([specviz.open(specviz.example(n)) for n in names], "decode.gif")  # doctest: +SKIP
    """
    if not traces or not slower > 0:
        raise ParameterError("a moving picture needs at least one trace, and slower above 0")
    for trace in traces:
        check_one_text(trace.split()[0])
    pictures = [picture(trace, prompt) for trace in traces]
    names = [visible(name) for name in run_names([trace.run for trace in traces])]
    names = [name if len(name) <= LONG else name[: LONG - 1] + "…" for name in names]
    if not all(p.cycles for p in pictures):
        raise ParameterError(
            f"not every trace holds prompt {prompt}: choose a prompt that all of them decoded"
        )
    if not all(math.isfinite(c.start + sum(c.times)) for p in pictures for c in p.cycles):
        raise TraceError("a moving picture needs times, which a what-if's trace has not: decode instead")
    font = _font(SIZE)
    columns = int((WIDTH - 2 * EDGE) // font.getlength("m"))
    lanes = [Lane(name, p, columns, SEEN * TICK / slower) for name, p in zip(names, pictures)]
    rows = max(len(_laid(lane.words(float("inf")), columns)) for lane in lanes)
    times, now, longest = [0.0], 0.0, max(lane.end for lane in lanes)
    while now < longest:
        now += TICK / slower
        times.append(now)
    frames: list[ImageType] = []
    durations: list[int] = []
    from PIL import Image

    palette = _palette([colour for _, colour in _kinds(lanes)])
    for now in times:
        image = _frame(lanes, now, rows, slower).quantize(palette=palette, dither=Image.Dither.NONE)
        if frames and image.tobytes() == frames[-1].tobytes():
            durations[-1] += round(TICK * 1000)
        else:
            frames.append(image)
            durations.append(round(TICK * 1000))
    durations[-1] += round(HOLD * 1000)
    return write_gif(frames, durations, Path(path), force)


def write_gif(frames: Sequence[ImageType], milliseconds: Sequence[int], path: Path, force: bool) -> Path:
    """Write frames of one size as a looping GIF, with each frame's duration in milliseconds."""
    data = io.BytesIO()
    frames[0].save(
        data, "GIF", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0, optimize=True
    )
    return write_bytes(path, data.getvalue(), force)


@cache
def _font(size: int, bold: bool = False) -> FreeTypeFont:
    """Matplotlib's bundled monospaced font, which is the same on every machine."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    name = "DejaVuSansMono-Bold.ttf" if bold else "DejaVuSansMono.ttf"
    return ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / name), size)


def _laid(words: Sequence[tuple[str, str]], columns: int) -> list[list[tuple[str, str]]]:
    """Wrap coloured characters into rows of at most `columns`, at spaces if possible; keep line breaks."""
    letters = [(letter, colour) for text, colour in words for letter in visible(text)]
    rows: list[list[tuple[str, str]]] = [[]]
    for letter, colour in letters:
        if letter == "\n":
            rows.append([])
            continue
        if len(rows[-1]) >= columns:
            space = next(
                (i for i in range(columns - 1, columns // 2, -1) if rows[-1][i][0] == " "), columns - 1
            )
            rows.append(rows[-1][space + 1 :])
            rows[-2] = rows[-2][: space + 1]
        rows[-1].append((letter, colour))
    return rows


def _kinds(lanes: Sequence[Lane]) -> list[tuple[str, str]]:
    """The legend: what occurs in the lanes, and its colour."""
    cycles = [cycle for lane in lanes for cycle in lane.shown.cycles]
    entries = [("drafted", GHOST)] if any(c.sent for c in cycles) else []
    entries += [("rejected", LOST)] if any(c.lost for c in cycles) else []
    used = {span.kind for lane in lanes for span in lane.shown.spans}
    hues = {name: kind.hue for name, kind in KINDS.items()} | {"plain": INK}
    return entries + [(KINDS[name].word, hues[name]) for name in KINDS if name in used]


def _palette(colours: Sequence[str]) -> ImageType:
    """An image with these colours, those of the text, and their blends with the paper at letters' edges.

    One palette serves all frames, so that still frames compare equal.
    """
    from PIL import Image, ImageColor

    inks, steps = dict.fromkeys([INK, SOFT, GHOST, LOST, *colours]), 12  # more would be too close to white
    white, mixed = ImageColor.getrgb(PAPER), []
    for ink in map(ImageColor.getrgb, inks):
        for step in range(1, steps + 1):
            mixed += [round(w + (c - w) * step / steps) for w, c in zip(white, ink)]
    image = Image.new("P", (1, 1))
    image.putpalette([*white, *mixed])
    return image


def _frame(lanes: Sequence[Lane], now: float, rows: int, slower: float) -> ImageType:
    from PIL import Image, ImageDraw

    tall = HEAD + rows * (SIZE + 6)
    image = Image.new("RGB", (WIDTH, tall * len(lanes) + EDGE + 2 * SIZE), PAPER)
    draw = ImageDraw.Draw(image)
    for i, lane in enumerate(lanes):
        _lane(draw, lane, now, EDGE + i * tall)
    below, small = tall * len(lanes) + EDGE - 4, _font(SIZE - 3)
    names = dict.fromkeys(lane.shown.model.partition(" (")[0] for lane in lanes)
    pace = f"{slower:g} times slower than" if slower > 1 else f"{1 / slower:g} times faster than"
    note = f"{', '.join(names)}, {'as' if slower == 1 else pace} recorded"
    draw.text((EDGE, below + SIZE), note, SOFT, small)
    x = float(EDGE)
    for word, colour in _kinds(lanes):
        draw.text((x, below), word, colour, small)
        if colour == LOST:
            _strike(draw, x, below, small.getlength(word))
        x += small.getlength(word + "  ")
    return image


def _lane(draw: ImageDraw, lane: Lane, now: float, top: int) -> None:
    font, bold = _font(SIZE), _font(SIZE, True)
    draw.text((EDGE, top), lane.title, INK, bold)
    draw.text((WIDTH - EDGE, top), lane.heading(now), SOFT, _font(SIZE - 2), anchor="ra")
    wide = font.getlength("m")
    for row, letters in enumerate(_laid(lane.words(now), lane.columns)):
        y = top + HEAD // 2 + row * (SIZE + 6)
        x = float(EDGE)
        for colour, run in groupby(letters, key=lambda pair: pair[1]):
            text = "".join(letter for letter, _ in run)
            draw.text((x, y), text, colour, font)
            if colour == LOST:
                _strike(draw, x, y, wide * len(text))
            x += wide * len(text)


def _strike(draw: ImageDraw, x: float, y: float, wide: float) -> None:
    draw.line((x, y + SIZE * 0.6, x + wide, y + SIZE * 0.6), LOST, 1)
