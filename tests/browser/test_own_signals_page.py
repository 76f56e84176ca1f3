"""A method's own signals in the player: a lane per node signal, a value per cycle signal."""

from __future__ import annotations

from typing import Any

import pytest

from specviz.trace import Recorder
from traces import cycles, metadata, piece

expect: Any = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)").expect
pytest.importorskip("anywidget", reason="needs the lab extra")

SIGNALS = [
    {"name": "age", "unit": "tokens", "meaning": "How far back it stands.", "level": "node"},
    {"name": "hits", "unit": "", "meaning": "Places <b>before</b>.", "level": "cycle"},
]


def test_own_signals_are_shown(open_page, tmp_path, shoot):
    recorder = Recorder(metadata("tree") | {"signals": SIGNALS}, piece=piece)
    for cycle in cycles("tree", hostile=False):
        if nodes := len(cycle.get("node_token", ())):
            cycle |= {"signal:age": [i - 2.0 for i in range(nodes)], "control_name": ["hits"]}
            cycle["control_value"] = [cycle["cycle"] + 0.25]
        recorder.add(cycle)
    page = open_page(offline=True)
    page.goto(recorder.close().to_html(tmp_path / "page.html").as_uri() + "#cycle=1")
    page.locator(".sv.player").focus()
    expect(page.locator(".sv.player .signals")).to_have_text("hits 1.25")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".sv.player .signals b")).to_have_text("2.25")
    expect(page.locator(".sv.player .signals span")).to_have_attribute("title", "Places <b>before</b>.")
    lane = page.locator("g.signal", has_text="age, tokens")
    expect(lane).to_be_visible()
    zero = float(lane.locator("line.axis").get_attribute("y1"))
    stems = lane.locator("path.stem:not(.lit)").evaluate_all(
        "(all) => all.map((p) => p.getAttribute('d')).join('')"
    )
    heights = [
        float(part.split("V")[1].split("a")[0].split("m")[0].split("M")[0])
        for part in stems.split("M")[1:]
        if "V" in part
    ]
    assert min(heights) < zero < max(heights), "what is below zero hangs below the axis"
    shoot(page, "own-signals")


def test_a_node_without_q_shows_its_confidence(open_page, tmp_path):
    recorder = Recorder(metadata("speculative"), piece=piece)
    for cycle in cycles("speculative", hostile=False):
        if len(cycle.get("node_token", ())):
            cycle["node_q"] = [0.25, float("nan"), float("nan"), 0.5]
            cycle["node_confidence"] = [0.75, 0.75, float("nan"), 0.75]
        recorder.add(cycle)
    page = open_page(offline=True)
    page.goto(recorder.close().to_html(tmp_path / "page.html").as_uri() + "#cycle=1")
    for node, words in enumerate(("q 0.25", "confidence 0.75", "belief not recorded", "q 0.50")):
        label = page.locator(f"g.node[data-i='{node}']").get_attribute("aria-label")
        assert f"drafter {words}, " in label
