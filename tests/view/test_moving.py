"""The moving picture: each lane ends with its text, drafts precede their verdicts, and it plays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from canvas_traces import build
from ribbons import stream

import specviz as sv
from specviz import metrics
from specviz.errors import ParameterError, TraceError
from specviz.view import moving
from specviz.view.moving import GHOST, LOST, Lane, _laid
from specviz.view.picture import PHASES, picture
from traces import build as build_chain

NAMES = ("autoregressive", "prompt_lookup")


@pytest.fixture(scope="module")
def runs():
    return [sv.open(sv.example(name)) for name in NAMES]


def test_a_lane_ends_with_its_text(runs):
    for run in runs:
        lane = Lane("", picture(run, 0), 80)
        text = "".join(word for word, _ in lane.words(lane.end))
        assert text.rstrip("■") == run.select(prompt=0).text.rstrip()
        assert not lane.words(0.0) and lane.heading(0.0).strip().startswith("0 tokens")
        assert f"{len(run.select(prompt=0).cycles) - 1} passes" in lane.heading(lane.end)


def test_a_draft_is_grey_until_it_is_judged(runs):
    lane = Lane("", picture(runs[1], 0), 80)
    cycle = next(c for c in lane.shown.cycles if 0 < c.accepted < c.sent)
    begin = cycle.start - lane.shown.cycles[0].start
    judged = begin + sum(cycle.times[: PHASES.index("verify") + 1])
    for now in (begin + cycle.times[0] + 1e-6, judged - 1e-6):
        colours = [colour for _, colour in lane.words(now)]
        assert GHOST in colours and LOST not in colours, "the target has not read it yet"
    colours = [colour for _, colour in lane.words(judged + 1e-6)]
    assert LOST in colours and GHOST not in colours
    after = begin + sum(cycle.times) + 1e-6
    assert LOST not in [colour for _, colour in lane.words(after)]
    staying = replace(lane, stay=0.01).words(after)
    assert [word for word, colour in staying if colour == LOST] == [cycle.lost], "long enough to be seen"


def test_passes_are_the_target_s():
    """BiLD's cycles may end without a target pass; a record from elsewhere may have no passes."""
    trace = build_chain("bild", tokens=80, seed=1)
    shown = picture(trace, 0)
    count, end = len(shown.cycles), Lane("", shown, 80).end + 1e-9
    assert sum(c.passes for c in shown.cycles) == metrics.target_passes(trace) == count
    for without, words in ((1, f"{count - 1} passes of the target"), (count, f"{count} cycles")):
        cycles = [replace(c, passes=0) if i < without else c for i, c in enumerate(shown.cycles)]
        assert f" {words} " in Lane("", replace(shown, cycles=tuple(cycles)), 80).heading(end)


def test_rows_break_at_spaces():
    rows = _laid([("one two three\nfour", "#000")], 8)
    assert ["".join(letter for letter, _ in row) for row in rows] == ["one two ", "three", "four"]


def test_it_plays(runs, tmp_path):
    from PIL import Image

    path = sv.view.gif(runs, tmp_path / "a.gif", slower=0.5)
    with Image.open(path) as image:
        assert image.n_frames > 20 and image.info["loop"] == 0
    assert path.stat().st_size < 2e6
    with pytest.raises(TraceError, match="exists"):
        sv.view.gif(runs, path)


def test_its_legend_names_what_occurs_in_its_colours(tmp_path):
    from PIL import Image, ImageColor

    runs = [build_chain("bild", tokens=60, seed=seed, hostile=False) for seed in (1, 2)]
    lanes = [Lane("", picture(run, 0), 80) for run in runs]
    words = [word for word, _ in moving._kinds(lanes)]
    assert {"drafted", "rejected", "fallback", "rollback"} <= set(words) and "bonus" not in words
    titles = []
    lane = moving._lane
    monkey = pytest.MonkeyPatch()
    monkey.setattr(
        moving, "_lane", lambda draw, one, *more: titles.append(one.title) or lane(draw, one, *more)
    )
    with monkey.context(), Image.open(sv.view.gif(runs, tmp_path / "a.gif", slower=4)) as image:
        seen = set()
        for i in range(image.n_frames):
            image.seek(i)
            seen |= {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    assert set(titles) == {"bild #1", "bild #2"}
    hues = ["white", LOST, GHOST, *(colour for _, colour in moving._kinds(lanes))]
    assert {ImageColor.getrgb(hue) for hue in hues} <= seen


def test_bad_input_is_one_line(runs, tmp_path):
    for traces, prompt, slower in (([], 0, 1.0), (runs, 99, 1.0), (runs, 0, 0.0)):
        with pytest.raises((ParameterError, TraceError)):
            sv.view.gif(traces, tmp_path / "b.gif", prompt, slower)


def test_what_wrote_no_text_from_left_to_right_is_refused_alike(runs, tmp_path):
    """A film, a moving picture and a draft's tree show one growing text: not a canvas, not a stream."""
    moving = stream([[3, 4, 1], [3, 5, 6, 1]])
    with pytest.raises(TraceError, match=r"decodes a stream: use specviz\.flicker"):
        sv.view.draft_tree(moving)  # cycle numbers restart in each update
    with pytest.raises(TraceError, match=r"decodes a stream: use specviz\.flicker"):
        moving.to_gif(tmp_path / "a.gif")
    pytest.importorskip("torch", reason="needs the run extra")
    canvas = build("stepwise")
    for trace, why in ((moving, "decodes a stream"), (canvas, r"wrote a canvas: use view\.lattice")):
        with pytest.raises(TraceError, match=why):
            sv.view.gif([runs[0], trace], tmp_path / "a.gif")
    with pytest.raises(TraceError, match="needs times"):
        sv.view.gif([sv.whatif(runs[1]).prompt_lookup(draft_length=[2]).trace(0)], tmp_path / "a.gif")
    assert not list(tmp_path.iterdir())
