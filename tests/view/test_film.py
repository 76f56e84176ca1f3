"""A range of cycles as a GIF: one frame per cycle, each with the requested duration."""

from __future__ import annotations

import pytest

import specviz as sv
from specviz.errors import ParameterError, TraceError
from traces import build

images = pytest.importorskip("PIL.Image", reason="needs matplotlib (the lab extra)")
pytest.importorskip("matplotlib", reason="needs the lab extra")


def test_a_frame_a_cycle(tmp_path):
    trace = sv.open(sv.example("prompt_lookup"))
    with images.open(trace.to_gif(tmp_path / "a.gif", range(9, 12), seconds=0.5)) as film:
        assert (film.format, film.n_frames, film.info["duration"], film.info["loop"]) == ("GIF", 3, 500, 0)
        frames = []
        for i in range(3):
            film.seek(i)
            frames.append(film.convert("RGB").tobytes())
    assert len(set(frames)) == 3
    with images.open(build("tree", tokens=20, seed=5).to_gif(tmp_path / "b.gif")) as film:
        assert film.n_frames <= 12


def test_a_film_of_a_selected_prompt(tmp_path):
    trace = build("tree", prompts=3, tokens=20, seed=5, hostile=False)
    whole = trace.to_gif(tmp_path / "a.gif", [1, 2], prompt=2).read_bytes()
    one = trace.select(prompt=2)
    assert one.to_gif(tmp_path / "b.gif", [1, 2]).read_bytes() == whole
    assert one.to_gif(tmp_path / "c.gif", [1, 2]).read_bytes() == whole
    assert trace.to_gif(tmp_path / "d.gif", [1, 2]).read_bytes() != whole
    with pytest.raises(ParameterError, match="prompt 1 has no cycle 1"):
        one.to_gif(tmp_path / "e.gif", [1], prompt=1)


def test_the_newest_text_is_shown(drawn_words):
    """Line breaks make a text too tall for its axes: its beginning gives way."""
    from dataclasses import replace

    from specviz.view import film
    from specviz.view.picture import picture

    shown = picture(build("speculative", tokens=60, hostile=False), 0)
    for count in (film.LINES, film.LINES + 1, 40):
        drawn_words.clear()
        spans = [replace(shown.spans[0], text=f"line {i}\n") for i in range(count)]
        film._frame(None, replace(shown, spans=tuple(spans)), spans[0].cycle, False, 1.0)
        assert f"line {count - 1}⏎" in drawn_words and not any("more tokens" in word for word in drawn_words)
        assert ("…" in drawn_words) == (count > film.LINES) == ("line 0⏎" not in drawn_words)


def test_frames_are_read_as_they_were_written(tmp_path):
    """Each frame keeps its own colours and replaces the one before it."""
    from PIL import ImageDraw

    from specviz.view.moving import write_gif

    frames = []
    for i, hue in enumerate(("#d55e00", "#0072b2", "#d55e00", "#ffffff")):
        frame = images.new("RGB", (60, 40), "white")
        ImageDraw.Draw(frame).rectangle((10 * i, 5, 10 * i + 12, 30), hue)
        frames.append(frame)
    small = [each.convert("P", palette=images.Palette.ADAPTIVE, colors=4) for each in frames]
    with images.open(write_gif(small, [100, 200, 300, 400], tmp_path / "a.gif", False)) as film:
        for i, frame in enumerate(frames):
            film.seek(i)
            assert film.info["duration"] == 100 * (i + 1)
            assert film.convert("RGB").tobytes() == frame.tobytes()


def test_what_no_film_can_show(tmp_path):
    trace = build("speculative", tokens=20)
    for cycles, words in (([99], "no cycle 99"), ([], "from 1 to 200"), ([0], "no cycle 0")):
        with pytest.raises(ParameterError, match=words):
            trace.to_gif(tmp_path / "a.gif", cycles)
    with pytest.raises(ParameterError, match=r"from 0\.02 to 60"):
        trace.to_gif(tmp_path / "a.gif", seconds=0)
    (tmp_path / "a.gif").write_bytes(b"")
    with pytest.raises(TraceError, match="exists"):
        trace.to_gif(tmp_path / "a.gif", [1])
