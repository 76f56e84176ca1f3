"""The player's page of a trace that fills a canvas: cells out of order, a tree of canvases, the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs the run extra")
pytest.importorskip("anywidget", reason="needs the lab extra")
from canvas_traces import build

import specviz as sv
from specviz.view.canvas import canvas
from specviz.widgets.columns import SHORT

expect: Any = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)").expect

CELLS = """(n) => [...n.querySelectorAll(".cell")].map((cell) => cell.classList.contains("t"))"""


@pytest.fixture
def opened(open_page: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """``opened(trace, **context)``: the page of a trace, from disk and without a network."""

    def show(trace: Any, **context: Any) -> Any:
        page = open_page(offline=True, **context)
        page.goto(trace.to_html(tmp_path / "page.html", force=True).as_uri() + "#cycle=1")
        expect(page.locator(".sv.player .tree")).to_be_visible()
        page.locator(".sv.player").focus()
        return page

    return show


def test_cells_fill_out_of_order_and_masks_are_shown(opened):
    trace = build("ssd", tree="mix", cache="dual", refresh=5)
    shown, page = canvas(trace), opened(trace)
    text = page.locator(".player .canvas")
    page.keyboard.press("Home")
    expect(page.locator(".said")).to_contain_text("24 masked cells")
    for one in shown.passes:
        page.keyboard.press("ArrowRight")
        assert text.evaluate(CELLS) == (shown.order < one.ended).astype(bool).tolist()
        expect(page.locator(".block.work .cell")).to_have_count(8)
        said = page.locator(".said").inner_text()
        assert f"{len(one.placed)} cell" in said and all(f"in cell {p.cell}" in said for p in one.placed[:6])
        assert ("a refresh" in said) == one.refreshed
    page.locator(".canvas .cell").nth(int(shown.order.argmin())).click()  # jumps to the cycle that placed it
    expect(page.locator(".where")).to_have_text(f"cycle 1 / {len(shown.passes)}")


SURE = {"sure": 0.1, "sharp": 6.0}  # most cells are equally sure, so the leftmost comes first
FIRST = {"cache": "dual", "refresh": 5, "cache_rule": "fast_dllm", "shift": 1, "block": 8}


@pytest.mark.parametrize("more", [{}, SURE, FIRST], ids=["surest", "leftmost", "first of a block"])
def test_each_node_has_its_cell_its_canvas_and_its_verdict(opened, more):
    trace = build("ssd", tree="mix", **more)
    shown, page = canvas(trace), opened(trace)
    for one in shown.passes[:6]:
        if one.nodes:
            badges = page.locator(".badge-cell:visible text").all_text_contents()
            own = [p.cell for p in one.placed if p.origin != "draft"]
            assert sorted(map(int, badges)) == sorted([*(n.cell for n in one.nodes), *own])
            for node in one.nodes:
                label = page.locator(f"g.node[data-i='{node.index}']").get_attribute("aria-label")
                assert label.startswith(f"cell {node.cell}: ") and SHORT[node.status] in label
                page.locator(f"g.node[data-i='{node.index}']").hover()
                why = page.locator(".why")
                expect(why).to_contain_text(f"Cell {node.cell}, from the last pass")
                following = one.root if node.parent < 0 else one.nodes[node.parent].next
                if node.status == "rejected" and following[0] != node.cell:
                    expect(why).to_contain_text(f"in cell {following[0]} ")
                    expect(page.locator(".tops").first).to_contain_text(f"cell {following[0]}")
                if node.status == "accepted":
                    expect(why).to_contain_text("accepted")
        page.keyboard.press("ArrowRight")


def test_the_phases_of_a_cycle(opened):
    trace = build("ssd")
    page = opened(trace)
    for key in ("ArrowRight", "s", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(".said")).to_contain_text("draft: the last pass’s guesses are 4 canvases")
    expect(page.locator(".cell.guess.open")).to_have_count(4)
    page.keyboard.press("ArrowRight")
    expect(page.locator(".said")).to_contain_text("verify: one pass over all of them")
    assert page.locator(".cell.guess.accepted, .cell.guess.rejected").count() > 0
    page.keyboard.press("ArrowRight")
    expect(page.locator(".cell.guess")).to_have_count(0)
    assert page.locator(".code .lit").count() > 0
    page.keyboard.press("m")  # predict mode
    expect(page.locator(".said")).to_contain_text("Which survive?")


def test_other_methods_and_hostile_tokens(opened):
    for method, more in (("stepwise", {}), ("fast_dllm", {"threshold": 0.02})):
        page = opened(build(method, **more))
        page.keyboard.press("End")
        expect(page.locator(".canvas .cell.t")).to_have_count(24)
        assert page.locator(".player img").count() == 0
        if method == "fast_dllm":
            assert page.locator(".canvas .cell.parallel").count() > 0
            expect(page.locator(".why")).to_contain_text("cells at once")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_serious_violation_and_a_picture(dark, open_page, tmp_path, axe, shoot):
    trace = build("ssd", tree="mix", cache="dual", refresh=5, hostile=False)
    page = open_page(dark, offline=True, reduced_motion="reduce")
    page.goto(trace.to_html(tmp_path / "page.html").as_uri())
    page.locator(".sv.player").focus()
    theme, faults = "dark" if dark else "light", set()
    for name, pressed in (
        ("cycle", ["ArrowRight", "ArrowRight"]),
        ("draft", ["Shift+ArrowLeft"] * 2),
        ("still", []),
    ):
        for key in pressed:
            page.keyboard.press(key)
        if name == "still":
            page.locator(".still > summary").click()
        faults.update(axe(page, "body"))
        shoot(page, f"canvas-{theme}-{name}")
    assert not faults, "\n".join(sorted(faults))


def test_a_narrow_page_and_the_race(open_page, tmp_path, shoot):
    build("ssd").to_html(tmp_path / "player.html")
    sv.race([build("stepwise"), build("ssd")]).to_html(tmp_path / "race.html")
    for name in ("player", "race"):
        page = open_page(offline=True, viewport={"width": 420, "height": 900})
        page.goto((tmp_path / f"{name}.html").as_uri())
        page.locator(f".sv.{name}").focus()
        page.keyboard.press("End")
        shoot(page, f"canvas-{name}-narrow")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator(".strip .who").first).to_have_text("order of placing")
