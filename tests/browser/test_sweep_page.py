"""Plots as pages in a real browser: a click or a link opens a trace; from disk, no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import traces
from specviz.calibration import Calibration, Fit, Point
from specviz.view import interactive

pytest.importorskip("plotly", reason="needs the lab extra")
EVIL = "<img src=x onerror=alert(1)>"
BOLD = """(words) => [...document.querySelectorAll(".hoverlayer tspan")]
  .some((node) => node.textContent.includes(words) && getComputedStyle(node).fontWeight === "700")"""


def calibrated() -> Calibration:
    """A handmade calibration of four sizes."""
    sizes = [1, 2, 4, 8]
    points = [Point(g, [20], [20 // (1 + i)], [[0.02 + 0.01 * i]] * 2) for i, g in enumerate(sizes)]
    setting = {
        "method": "unispec",
        "model": {"name": EVIL},
        "device": "CPU",
        "threads": 2,
        "dtype": "float32",
    }
    tau = [1 + 0.4 * i for i in range(8)]
    fits = {
        name: Fit(g, [0.001 + 0.001 * i for i in range(8)], tau)
        for name, g in (("paper", 3), ("monotone", 4))
    }
    return Calibration(setting, "draft_size", {}, points, fits, "monotone", spent=3.0)


def write_pages(folder: Path) -> Path:
    """Write every plot whose points open a trace."""
    files = [str(traces.build("bild", tokens=20, seed=n).save(folder / f"{n}.parquet")) for n in (0, 1)]
    points = pd.DataFrame(
        {"group": EVIL, "quality": [30.0, 20.0, 25.0], "speed": [1.0, 2.0, 1.5], "fallback": [None, 0.3, 0.9],
         "base": [True, False, False], "trace": [None, *files]}
    )  # fmt: skip
    interactive.sweep(points, pages=folder / "pages")
    runs = [traces.build(name, prompts=2) for name in ("autoregressive", "speculative", "bild")]
    interactive.why_it_pays(runs, pages=folder / "pays")
    texts = {g: traces.build("unispec", tokens=20, seed=g) for g in (2, 8)}
    interactive.curve(calibrated(), texts, folder / "sizes")
    interactive.curve(calibrated()).to_html(folder / "untraced.html")
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    return write_pages(tmp_path_factory.mktemp("sweep"))


def test_a_click_opens_the_point_s_trace(open_page, pages, shoot):
    page = open_page(offline=True)
    page.goto((pages / "pages/index.html").as_uri())
    page.wait_for_selector(".scatterlayer .point")
    shoot(page, "sweep")
    box = page.locator(".scatterlayer .trace").nth(1).locator(".point").nth(1).bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 2, y)
    page.mouse.move(x, y)
    page.wait_for_selector(".hoverlayer .hovertext")
    said = page.locator(".hoverlayer").text_content()
    assert "fallback 0.9" in said and EVIL in said, "what comes from outside is text"
    # plotly may redraw the label at any time, so one script in the page finds and reads it.
    # The policy forbids style attributes, yet plotly's styles must work.
    page.wait_for_function(BOLD, arg="click: its trace")
    bar = page.locator(".modebar").evaluate("(node) => getComputedStyle(node).position")
    assert bar == "absolute", "and its style sheet"
    with page.context.expect_page() as opened:
        page.mouse.click(x, y)
    there = opened.value
    there.wait_for_selector(".player")
    assert there.url == (pages / "pages/point-2.html").as_uri()


def test_a_click_opens_a_method_s_trace(open_page, pages, shoot):
    page = open_page(offline=True)
    page.goto((pages / "pays/index.html").as_uri())
    page.wait_for_selector(".scatterlayer .point")
    shoot(page, "why-it-pays")
    # The last trace of the plot is the last method's point.
    box = page.locator(".scatterlayer .trace").last.locator(".point").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x - 2, y)
    page.mouse.move(x, y)
    page.wait_for_selector(".hoverlayer .hovertext")
    assert "lossy" in page.locator(".hoverlayer").text_content()
    with page.context.expect_page() as opened:
        page.mouse.click(x, y)
    there = opened.value
    there.wait_for_selector(".player")
    assert there.url == (pages / "pays/method-2.html").as_uri()


def test_a_size_opens_what_was_decoded_with_it(open_page, pages, shoot):
    page = open_page(offline=True)
    page.goto((pages / "sizes/index.html").as_uri())
    page.wait_for_selector(".scatterlayer .point")
    shoot(page, "calibration")
    box = page.locator(".scatterlayer .trace").last.locator(".point").nth(1).bounding_box()
    page.mouse.move(box["x"], box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".hoverlayer .hovertext")
    assert "g = 2" in page.locator(".hoverlayer").text_content()
    with page.context.expect_page() as opened:
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.value.wait_for_selector(".player")
    assert opened.value.url == (pages / "sizes/size-1.html").as_uri()


def test_the_list_opens_the_same_without_a_mouse(open_page, pages):
    page = open_page(offline=True)
    page.goto((pages / "sizes/index.html").as_uri())
    assert "A click on a point opens its trace" in page.locator("main").inner_text()
    page.locator("summary").press("Enter")
    links = page.locator("li a")
    assert [each.get_attribute("href") for each in links.all()] == ["size-1.html", "size-3.html"]
    assert page.locator("li").count() == 4 and page.locator("main img").count() == 0
    with page.context.expect_page() as opened:
        links.last.press("Enter")
    opened.value.wait_for_selector(".player")


def test_a_plot_without_traces_says_so(open_page, pages):
    page = open_page(offline=True)
    page.goto((pages / "untraced.html").as_uri())
    page.wait_for_selector(".scatterlayer .point")
    assert (
        "keeps times and no traces" in page.locator("main > p").last.inner_text()
        and page.locator("a[href]").count() == 0
    )


def test_lines_across_a_plot_have_the_page_s_colour(open_page, pages):
    page = open_page(dark=True, offline=True)
    page.goto((pages / "pages/index.html").as_uri())
    lines = page.locator(".shapelayer path")
    lines.first.wait_for(state="attached")  # a level line has no height
    strokes = lines.evaluate_all("(all) => all.map((n) => getComputedStyle(n).stroke)")
    words = page.locator(".xtick text").first.evaluate("(n) => getComputedStyle(n).fill")
    assert len(strokes) == 2 and set(strokes) == {words}
