"""The picture of one cycle's tree shows every node once, in its place, with its verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

import specviz
import traces
from specviz import view
from specviz.errors import ParameterError, TraceError
from specviz.view import drafts
from specviz.view.drafts import HELD, SIGNS

matplotlib = pytest.importorskip("matplotlib", reason="needs the plot extra")
matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    matplotlib.pyplot.close("all")


@pytest.fixture(scope="module")
def trace():
    return traces.build("unispec", nodes=24, tokens=40, seed=1, hostile=False)


def labels(ax):
    """Each text that starts with a sign: the sign and its position."""
    found = [(t.get_text(), *t.get_position()) for t in ax.texts]
    signs = {sign for sign, *_ in SIGNS.values()}
    return [(text[0], x, y) for text, x, y in found if text[:1] in signs and text[1:2] == " "]


def test_every_node_stands_once_with_its_sign_and_level(trace):
    for cycle in (1, 2, 3):
        nodes = trace.nodes[(trace.nodes["cycle"] == cycle) & (trace.nodes["prompt"] == 0)]
        for held in (False, True):
            here = nodes if held else nodes[~nodes["status"].isin(HELD)]
            found = labels(view.draft_tree(trace, cycle=cycle, held=held))
            assert sorted(sign for sign, *_ in found) == sorted(SIGNS[s][0] for s in here["status"])
            assert sorted(int(x) + 1 for _, x, _ in found) == sorted(here["depth"])
            assert len({(x, y) for _, x, y in found}) == len(here), "two nodes stand on one another"


def test_the_accepted_path_is_the_first_row(trace):
    body = trace.cycles[trace.cycles["accepted"] > 0]
    ax = view.draft_tree(trace)
    kept = [y for sign, _, y in labels(ax) if sign == "✓"]
    assert len(kept) == body["accepted"].max() and set(kept) == {0}
    assert f"{body['accepted'].max()} accepted" in ax.get_title(loc="left")


def test_a_line_break_in_a_sentence_is_a_sign(trace):
    shown = replace(drafts._tree(trace, 1, 0, False), own="\n it's", origin="bonus")
    assert shown.sentence.endswith("; then “⏎ it's”, bonus")


def test_letters_that_no_font_has_are_boxes(monkeypatch, recwarn):
    from specviz.view import axes

    monkeypatch.setattr(axes, "_glyphs", lambda: frozenset(map(ord, "abc □")))
    assert axes.drawable("cab 猫x") == "cab □□"
    monkeypatch.undo()
    ax = view.draft_tree(traces.build("unispec", nodes=24, tokens=60, seed=2))  # Chinese, control characters
    ax.figure.canvas.draw()
    assert not [str(w.message) for w in recwarn if "missing from font" in str(w.message)]


def test_the_window_of_lookahead_is_drawn_but_is_no_draft(tmp_path):
    run = specviz.generate("town", "The cook saw the cook. The cook saw", "lookahead", max_new_tokens=24)
    nodes, every = run.nodes, specviz.metrics.drafts(run)
    ax = view.draft_tree(run)
    there = every[every["drafted"] > 0]
    cycle = int(ax.get_title(loc="left").split(":")[0].removeprefix("cycle "))
    here = nodes[nodes["cycle"] == cycle]
    window = int((here["source"] == "window").sum())
    assert f"{len(here) - window} nodes sent, with a window of {window}; " in ax.get_title(loc="left")
    assert [sign for sign, *_ in labels(ax)].count(SIGNS["window"][0]) == window > 0
    assert f"{SIGNS['window'][0]} only read" in ax.get_xlabel()
    alone = int(every[(every["cycle"] > 0) & (every["drafted"] == 0)]["cycle"].iloc[0])
    with pytest.raises(ParameterError, match=f"cycle {alone} has no draft"):
        view.draft_tree(run, cycle=alone)
    film = run.to_gif(tmp_path / "film.gif", cycles=[alone, int(there["cycle"].iloc[0])])
    assert film.stat().st_size


def test_what_has_no_tree_is_refused(trace):
    with pytest.raises(ParameterError, match="cycle 999 has no draft"):
        view.draft_tree(trace, cycle=999)
    with pytest.raises(TraceError, match="no cycle with a recorded draft"):
        view.draft_tree(traces.build("autoregressive", tokens=5))
