"""A report in a real browser: plots are drawn offline, links open the player, hostile names stay text."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import traces
from specviz.measure.phases import SUMS
from specviz.measure.report import Estimate
from specviz.measure.rows import begin, key_of, write_json
from specviz.replays import page, replays
from specviz.replays.costs import Cost
from specviz.replays.published import claims
from specviz.replays.recipes import RECIPES, SETTINGS
from specviz.replays.sources.shared import Measurement

pytest.importorskip("plotly", reason="needs the lab extra")
EVIL = "<img src=x onerror=alert(1)>"


def results(folder: Path) -> None:
    """A handmade run of two cells and three prompts, with traces."""
    shared = {"model": EVIL, "draft": None, "suite": "prompts", "temperature": 0.0, "against": 0}
    cells = [{"cell": 0, "method": "autoregressive", "parameters": {}, **shared},
             {"cell": 1, "method": "unispec", "parameters": {"draft_size": 4}, **shared}]  # fmt: skip
    plan = {"cells": cells, "suites": {"prompts": {"digest": "0", "prompts": 3}}, "seeds": [0], "timed": True}
    begin(folder, plan, {"prompts": [{"id": EVIL, "prompt": "a"}] * 3}, "2026-11-22")
    said = {"device": "cpu", "processor": EVIL, "threads": 1, "dtype": "float32", "clock": "wall clock",
            "model": {"name": EVIL, "parameters": 10}, "drafts": {}, "versions": {"python": "3"}}  # fmt: skip
    write_json(folder / "environments" / "e.json", said)
    for cell in cells:
        for prompt in range(3):
            seconds = 1.0 if cell["cell"] == 0 else (0.5, 1.5, 0.9)[prompt]
            row = {"round": 0, "seed": 0, "prompt": prompt, "id": EVIL, "kind": ("qa", "code")[prompt % 2],
                   "language": "en", "ids": [[1, 2, 3]], "text": [EVIL], "tokens": 3, "prompt_tokens": 2,
                   "steps": 3 if cell["cell"] == 0 else 2, "sent": 1, "accepted": 1, "end": "length",
                   "prefill_seconds": 0.1, "decode_seconds": seconds, "wall_seconds": seconds, "timed": True,
                   "clock": "wall clock", "peak_memory": 1, "device_memory": None, "environment": "e",
                   "sitting": f"s{prompt}", "error": None, "memory": None, "exactness": "exact", "place": 0,
                   "started": "now"}  # fmt: skip
            key = key_of(cell["cell"], 0, prompt)
            write_json(folder / "rows" / f"{key}.json", cell | row)
            if cell["cell"]:
                (folder / "traces").mkdir(exist_ok=True)
                traces.build("unispec", prompts=1, tokens=12, seed=prompt).save(
                    folder / "traces" / f"{key}.parquet"
                )


def write_report(root: Path) -> Path:
    """The page of a replay with a run below it, and the run's own page next to its rows."""
    results(root / "unispec-table3" / "run")
    place = {"device": EVIL, "processor": "P", "threads": 1, "dtype": "float32"}
    found = Measurement(environment=place)
    found.on(suite=EVIL, model="m", device=EVIL)
    for i, method in enumerate(("EAGLE-2", "EAGLE-3", "UNISPEC (ours)")):
        found.by(*(("unispec", {"draft_size": 4}) if i == 2 else (method,)))
        found.add({"method": method, "language": "EN"}, "speedup", Estimate(1.0 + i, 0.8 + i, 1.2 + i, 9))
        found.add({"method": method, "language": "EN"}, "tau", 2.0 + i)
    found.runs, found.notes = ["run"], [EVIL]
    plain = dict.fromkeys(SUMS, 0) | {"cycles": 10, "emitted": 10, "passes": 10, "fed": 10, "forward": 1.0}
    sums = plain | {"emitted": 20, "fed": 50, "forward": 1.5, "draft": 0.5}
    found.costs = [
        Cost(EVIL, "qa", "m", 3, sums, plain, {"h100": [1.0, 0.25]}),
        Cost("b", "", "", 3, sums, plain),
    ]
    made = replays.compared("unispec/table3", RECIPES["unispec/table3"], found, {"table": "unispec/table3"})
    made = replace(made, path=root / "unispec-table3")
    page.write(replays.opened_result(root / "unispec-table3" / "run"), root / "run.html")
    return page.write(replays.Replays(root, [made], dict(SETTINGS)))


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    return write_report(tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_report_opens_offline(open_page, report, shoot, dark):
    assert report.stat().st_size < 5_000_000
    there = open_page(dark=dark, offline=True)
    there.goto(report.as_uri())
    there.locator("[data-figure='0']").scroll_into_view_if_needed()  # drawn once visible
    there.wait_for_selector("[data-figure='0'] .scatterlayer .point")
    there.wait_for_selector("[data-figure='1'] .scatterlayer .point")
    shoot(there, f"report-{'dark' if dark else 'light'}")
    assert there.locator("main img").count() == 0, "what comes from outside is text"
    assert EVIL in there.locator("main").text_content()
    assert there.locator("h3", has_text="unispec/table3: ").count() == 1
    for link in there.locator("nav a, .links a").all():  # every link has a target
        assert there.locator(link.get_attribute("href")).count() == 1
    verdicts = " ".join(there.locator(".verdict").all_text_contents())
    for words in ("clearly as in the paper", "hold", "fail here", "cannot be judged here"):
        assert words in verdicts, "in words, not in colours alone"
    shown = there.locator(".claims li").count()
    assert shown == 2 * len(claims("unispec/table3")), "on the first screen, and with the table"
    assert there.locator("td.n", has_text="\N{CHECK MARK}").count() > 0
    assert there.locator("[data-figure='0'] .scatterlayer .trace").count() == 2, "printed, and measured here"
    wide = there.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wide, "nothing runs out of the page"


def test_sliders_and_devices_project_the_speedups(open_page, report):
    there = open_page(offline=True)
    there.goto(report.as_uri())
    place = there.locator(".projection")
    assert place.is_visible() and "modelled" in place.text_content()
    shown = place.locator("[data-cost]")

    def after(control, value):
        place.locator(control).first.evaluate(
            "(it, value) => { it.value = value; it.dispatchEvent(new Event('input')); }", value
        )
        return shown.all_text_contents()

    assert shown.all_text_contents() == ["1.00", "1.00"]  # τ 2; a cycle takes 1.5 passes and 0.5 of drafting
    assert after("input", "0") == ["1.33", "1.33"], "a pass that costs what one token does"
    assert after("label:nth-of-type(3) input", "0") == ["2.00", "2.00"], "and drafts that cost nothing"
    assert after("select", "h100") == ["2.00", "–"], "one has no model of that device"
    assert [after("input", "1"), after("label:nth-of-type(3) input", "1")][1] == ["1.60", "–"]
    bars = there.locator("td .bar .draft")
    assert bars.count() == 2 and "25 · 75 · 0 · 0 · 0" in bars.first.locator("xpath=../..").text_content()


def test_its_links_open_the_player(open_page, report):
    there = open_page(offline=True)
    there.goto(report.as_uri())
    for name, figure in (("best", "1.83"), ("median", "1.10"), ("worst", "0.69")):
        link = there.get_by_role("link", name=f"{name}: {figure}")
        assert link.count() == 1
    there.get_by_role("link", name="worst:").click()
    there.wait_for_selector(".player")


def click_on(there, point) -> str:
    """The address that a click on a point opens."""
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    there.mouse.move(x - 2, y)
    there.mouse.move(x, y)
    there.wait_for_selector(".hoverlayer .hovertext")
    with there.context.expect_page() as opened:
        there.mouse.click(x, y)
    opened.value.wait_for_selector(".player")
    return opened.value.url


def test_a_click_on_a_measured_point_opens_its_trace(open_page, report):
    there = open_page(offline=True)
    there.goto(report.as_uri())
    plot = there.locator("[data-figure='0']")
    plot.scroll_into_view_if_needed()
    there.wait_for_selector("[data-figure='0'] .scatterlayer .point")
    assert "A click on a measured point opens" in there.locator("main").text_content()
    link = there.get_by_role("link", name="UNISPEC (ours) · EN")
    median = link.get_attribute("href")
    assert median == "report-pages/unispec-table3-run-c001-r0-p0002.html", "the median of 0.69, 1.10 and 1.83"
    point = plot.locator(".scatterlayer .trace").nth(1).locator(".point").nth(2)
    assert click_on(there, point) == (report.parent / median).as_uri()


def test_a_click_on_a_run_s_contender_opens_its_trace(open_page, report):
    there = open_page(offline=True)
    there.goto((report.parent / "run.html").as_uri())
    there.locator("[data-figure='0']").scroll_into_view_if_needed()
    there.wait_for_selector("[data-figure='0'] .scatterlayer .point")
    opened = click_on(there, there.locator("[data-figure='0'] .scatterlayer .point").first)
    assert opened.endswith("run-pages/run-c001-r0-p0002.html")


def test_a_narrow_window_scrolls_tables_alone(open_page, report):
    there = open_page(offline=True, viewport={"width": 380, "height": 800})
    there.goto(report.as_uri())
    there.locator("[data-figure='0']").scroll_into_view_if_needed()
    there.wait_for_selector("[data-figure='0'] .scatterlayer .point")
    assert there.evaluate("document.documentElement.scrollWidth <= innerWidth + 1")
