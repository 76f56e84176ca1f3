"""Pictures of canvases match the record for every cell, pass and state."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import matplotlib
import matplotlib.pyplot as pyplot
import numpy as np
import pytest
from identities import validate

import traces

pytest.importorskip("torch", reason="needs the run extra")
from canvas_traces import build

from specviz import metrics, view
from specviz.errors import ParameterError, TraceError
from specviz.trace import Recorder
from specviz.view import lattices, states
from specviz.view.canvas import STATES, WHY, canvas
from specviz.view.picture import picture

matplotlib.use("agg")
RUNS = {
    "stepwise": {}, "ssd": {}, "mix": {"tree": "mix"}, "dual": {"tree": "mix", "cache": "dual", "refresh": 5},
    "parallel": {"threshold": 0.02}, "equally sure": {"tree": "mix", "sure": 0.1, "sharp": 6.0},
    "first": {"tree": "mix", "cache": "dual", "refresh": 5, "cache_rule": "fast_dllm", "shift": 1,
              "block": 8},
}  # fmt: skip

NOW = ("accepted", "bonus", "correction", "plain", "parallel")  # states of a cell that is placed in this pass


def of(name: str, **more):
    method = {"stepwise": "stepwise", "parallel": "fast_dllm"}.get(name, "ssd")
    return build(method, **RUNS[name], **more)


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    pyplot.close("all")


@pytest.mark.parametrize("name", RUNS)
def test_a_canvas_is_what_the_record_says(name):
    trace = of(name)
    shown = canvas(trace)
    outputs = trace.outputs.set_index("position")
    assert sorted(shown.order.tolist()) == list(range(24))
    for cell in range(24):
        assert (shown.order[cell], shown.tokens[cell]) == (outputs["order"][cell], outputs["token"][cell])
    placed = 0
    for one, (_, row) in zip(shown.passes, trace.cycles.iloc[1:].iterrows()):
        assert (one.begun, len(one.placed), len(one.nodes)) == (placed, row["emitted"], row["drafted"])
        placed = one.ended
        for node in one.nodes:  # a verified child is the cell its parent's pass would place next
            following = one.root if node.parent < 0 else one.nodes[node.parent].next
            if node.status in ("accepted", "rejected"):
                assert (following[0] == node.cell and following[1] == node.text) == (
                    node.status == "accepted"
                )
        path = [n for n in one.nodes if n.status == "accepted"]
        tip = path[-1].next if path else one.root
        if one.placed[-1].origin not in ("draft", "parallel"):
            assert tip is not None and tip[0] == one.placed[-1].cell
    if name == "dual":
        assert [one.refreshed for one in shown.passes] == trace.cycles["refreshed"].iloc[1:].tolist()
        assert sum(one.refreshed for one in shown.passes) > 2


def test_why_a_pass_placed_no_more_is_counted_as_the_metrics_do():
    trace = build("ssd", prompts=6, cells=32)
    found = Counter(
        one.why for i in range(6) for one in canvas(trace, i).passes if one.nodes and one.why != "end"
    )
    chains = metrics.failures(trace).set_index("cause")["chains"]
    ended = {"none": 0, "order": 0, "token": 0, "border": 0}
    for i in range(6):  # the picture of a text's last pass names it as the last
        last = canvas(trace, i).passes[-1]
        if last.nodes and last.why == "end":
            ended["none"] += 1
    for cause in ("order", "token", "border"):
        assert 0 <= chains[cause] - found[cause] <= 6
    assert sum(chains) == sum(found.values()) + ended["none"]
    assert found["order"] and found["token"] and found["border"]


def test_the_lattice_has_a_row_a_pass_and_a_sign_a_state():
    trace = of("dual")
    shown, ax = canvas(trace), view.lattice(trace)
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == [f"{'R  ' if one.refreshed else ''}{one.number}" for one in shown.passes]
    heads = [text.get_text() for text in ax.get_xticklabels()]
    assert heads == [lattices.short(word) for word in shown.words]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    there = {state for one in shown.passes for state, _ in one.states().values()}
    assert {STATES[state].word for state in there} <= set(legend)
    # independent of the colours, each drafted or placed state has its own sign
    signs = [STATES[state].sign for state in STATES if state not in ("final", "masked")]
    assert len(set(signs)) == len(signs) and all(signs)
    notes = [text.get_text() for text in ax.texts]
    assert notes == [
        f"{len(one.placed)}{'  ' * bool(WHY[one.why][0])}{WHY[one.why][0]}" for one in shown.passes
    ]
    few = view.lattice(trace, most=3)
    assert f"{len(shown.passes) - 3} more passes" in few.get_xlabel()


def test_a_wide_canvas_says_what_is_cut_and_labels_what_fits():
    shown = canvas(of("stepwise"))
    lines = lattices.rows(shown)
    assert "; cells" not in lines[0]
    wide = replace(shown, length=256, words=shown.words + ("x",) * 232, order=np.arange(256))
    assert lattices.rows(wide)[0].endswith("; cells 0 to 63 of 256")
    ax = pyplot.figure(figsize=(20, 6)).subplots()
    lattices._dress(ax, wide, wide.passes, 256)
    assert 256 / 4 <= len(ax.get_xticks()) <= 256 / 2
    assert lattices.MASKED in lattices.figure(shown), "the page's legend explains the shades"
    assert (lattices.short("\n"), lattices.short(" a\nb")) == ("⏎", "a⏎b"), "no font has a line break"


def test_frames_skip_passes_whose_block_was_not_recorded():
    one = canvas(of("stepwise")).passes[0]
    passes = [replace(one, block=block) for block in (0, 0, -1, 0, 1)]
    assert lattices._stretches(passes) == [(0, 0, 2), (0, 3, 4), (1, 4, 5)]


def test_each_cell_of_a_pass_has_one_state():
    shown = canvas(of("mix"))
    for one in shown.passes:
        row = lattices._row(shown, one, 24)
        assert [cell for cell, *_ in row] == list(range(24))
        now = [cell for cell, state, _ in row if state in NOW]
        assert sorted(now) == sorted(p.cell for p in one.placed)
        assert sum(state == "final" for _, state, _ in row) == one.begun
        refused = {n.cell for n in one.nodes if n.status == "rejected"} - set(now)
        assert {cell for cell, state, _ in row if state == "rejected"} == refused


@pytest.mark.parametrize("name", RUNS)
def test_a_display_holds_the_lattice_and_is_safe(name):
    trace = of(name, prompts=2)
    html = view.html(trace)
    assert html.count('<figure class="lattice">') == 2
    tags = set(re.findall(r"<(\w+)", html))
    assert not {"script", "img"} & tags and not re.search(r"<[^>]* on\w+=", html)
    assert name == "parallel" or "&lt;" in html.split("</style>", 1)[1]  # none of its tokens needs escaping
    assert "\u202e" not in html
    assert len(html.encode()) < 300_000
    for one in canvas(trace).passes:
        assert '<text x="-5"' in html and f">{'R ' if one.refreshed else ''}{one.number}</text>" in html
    text = repr(trace)
    assert "canvas: 24 cells placed" in text and view.png(trace)[:4] == b"\x89PNG"


def test_the_text_stands_in_the_order_of_its_cells():
    trace = build("stepwise", hostile=False)
    shown = picture(trace, 0)
    assert [span.position for span in shown.spans] == sorted(span.position for span in shown.spans)
    order = canvas(trace).order
    for span in shown.spans:  # each names the cycle that placed it
        assert span.cycle == order[span.position] + 1
    assert any(np.diff([span.cycle for span in shown.spans]) < 0)


def test_a_trees_canvases_and_its_words():
    trace = of("mix")
    shown = canvas(trace)
    for one in shown.passes[1:4]:
        ax = view.canvases(trace, cycle=one.number)
        texts = [text.get_text() for text in ax.texts]
        assert "root" in texts and sum("log-odds" in text for text in texts) == len(one.nodes)
        skips = [node for node in one.nodes if node.parent != node.index - 1]
        assert sum(text.endswith("skip") for text in texts) == len(skips) > 0
        words = view.canvases_words(trace, cycle=one.number).splitlines()
        assert len(words) == 3 + len(one.nodes)
        assert sum("accepted" in line for line in words[2:-1]) == one.accepted
    best = max(one.accepted for one in shown.passes)
    assert f"{best} accepted" in view.canvases(trace).get_title(loc="left")
    with pytest.raises(ParameterError, match="no cycle 99"):
        view.canvases(trace, cycle=99)
    assert view.canvases(build("stepwise"), cycle=2).get_title(loc="left").endswith("1 placed")


def test_states_are_aligned_and_saved_passes_counted():
    base, other = build("stepwise", cache="dual", refresh=5), of("dual")
    both = states.align(base, other)
    assert both.same == 24 and not both.parted
    passes = len(other.cycles) - 1
    assert len(both.saved) == 24 - passes > 0
    ax = view.aligned(base, other)
    assert f"{24 - passes} saved" in ax.get_title(loc="left")
    empty = [p for p in ax.patches if p.get_facecolor()[:3] == (1.0, 1.0, 1.0)]
    assert len(empty) == 24 - passes


def test_what_is_not_the_same_is_not_aligned():
    base = build("stepwise")
    for other, said in (
        (build("ssd", cells=32), "length is 24 and 32"),
        (of("dual"), "cache is none and dual"),
        (build("ssd", block=6), "block is 8 and 6"),
        (traces.build("speculative"), "left to right"),
    ):
        with pytest.raises(TraceError, match=said):
            view.aligned(base, other)
    with pytest.raises(TraceError, match="must be from stepwise"):
        view.aligned(of("ssd"), base)
    with pytest.raises(TraceError, match="different prompts"):
        view.aligned(base, build("ssd", first=8))
    parted = states.align(base, of("parallel"))
    assert parted.parted and parted.same < 24
    assert f"They diverge at state {parted.same}" in view.aligned(base, of("parallel")).get_title(loc="left")


def test_views_that_are_not_for_canvases_say_so():
    trace = of("mix")
    for draw, said in (
        (
            lambda: view.costs_words({"ssd": trace}, "ssd"),
            "canvases, and the cost of such passes is not counted",
        ),
        (lambda: view.examples(trace), "fills a canvas with one model"),
        (lambda: view.right_by(trace), "at their state"),
        (lambda: view.acceptance_by_score(trace), "log-odds"),
        (lambda: view.lattice(traces.build("bild")), "no canvas to show"),
        (lambda: view.lattice(build("ssd", record=None)), "only the text was recorded"),
    ):
        with pytest.raises(TraceError, match=said):
            draw()
    assert "canvas" not in view.html(build("ssd", record=None)).split("</style>", 1)[1]


def test_a_run_cut_off_before_its_first_pass_says_so():
    whole = build("ssd")
    recorder = Recorder(dict(whole.run))
    recorder.add({"cycle": 0, "prompt": 0, "start": 0.0, "duration": 0.5})
    with pytest.raises(TraceError, match="no pass was recorded"):
        view.canvases(recorder.close())


@pytest.mark.parametrize("name", RUNS)
def test_a_canvas_fulfils_what_every_trace_does(name):
    validate(of(name))
    validate(of(name, prompts=2))
