"""Trade-off and control loop as pages in a real browser: a click opens a trace, from disk, no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import traces
from specviz.view import interactive

pytest.importorskip("plotly", reason="needs the lab extra")
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    files = [str(traces.build("bild", tokens=20, seed=n).save(folder / f"{n}.parquet")) for n in (0, 1)]
    points = pd.DataFrame(
        {"group": EVIL, "quality": [30.0, 20.0, 25.0], "speed": [1.0, 2.0, 1.5], "fallback": [None, 0.3, 0.9],
         "base": [True, False, False], "trace": [None, *files]}
    )  # fmt: skip
    interactive.sweep(points, pages=folder / "pages")
    runs = [traces.build(name, prompts=2) for name in ("autoregressive", "speculative", "bild")]
    interactive.why_it_pays(runs, pages=folder / "pays")
    looped = traces.build("cm_asd", prompts=2, tokens=60, seed=3)  # its tokens are hostile
    interactive.control_loop(looped, 1).to_html(folder / "loop.html")
    return folder


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
    with page.context.expect_page() as opened:
        page.mouse.click(x, y)
    there = opened.value
    there.wait_for_selector(".player")
    assert there.url == (pages / "pages/point-2.html").as_uri()


def test_hostile_tokens_stay_text(open_page, pages, shoot):
    page = open_page(offline=True)
    page.goto((pages / "loop.html").as_uri())
    page.wait_for_selector(".scatterlayer .point")
    shoot(page, "control-loop")
    points = page.locator(".scatterlayer .point")
    for i in range(0, min(points.count(), 30)):
        box = points.nth(i).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("main img").count() == 0


def test_a_click_opens_a_method_s_trace(open_page, pages, shoot):
    page = open_page(offline=True)
    page.goto((pages / "pays/index.html").as_uri())
    page.wait_for_selector(".scatterlayer .point")
    shoot(page, "why-it-pays")
    # The last trace of the plot is the last method's own point.
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
