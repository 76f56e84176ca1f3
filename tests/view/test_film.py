"""A stretch of cycles as a GIF: a frame a cycle, each for as long as was asked."""

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
