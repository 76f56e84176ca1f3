"""The demonstration's page in a real browser, from disk: its first screen, the race, the picker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import specviz as sv
from specviz.measure import demo
from specviz.measure.report import Estimate, Part, Report
from traces import build

METHODS = {"prompt_lookup": 32.6, "unispec": 31.6, "autoregressive": 20.0}
TALL = 800  # screen height in pixels


def report() -> Report:
    rows: list[dict[str, Any]] = [
        {"method": name, "exactness": "exact", "tau": 1.9, "tokens_per_second": speed, "speedup": speed / 20,
         "speedup_with_prefill": Estimate(speed / 20, speed / 21, speed / 19, 4), "same": "4/4"}
        for name, speed in METHODS.items()
    ]  # fmt: skip
    columns = [column for column in demo.COLUMNS if column[0] != "draft"]
    title = "unispec writes 32 tokens/s\nWith the prefill included: 1.2 times\n<b>smollm2</b>: 4 texts"
    setting = {"device": "cpu", "threads": 1, "dtype": "float32"}
    parts = [Part(demo.LOSSY, columns, rows[:1])]
    return Report("demo", title, setting, columns, rows, notes=demo.NOTES, parts=parts)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    traces = {name: sv.open(sv.example(name)).select(prompt=[0, 2, 3]) for name in reversed(METHODS)}
    return demo.write_page(report(), traces, tmp_path_factory.mktemp("demo") / "demo.html", False)


def test_a_prompt_without_a_kind_is_a_text(tmp_path):
    traces = {name: build(name, prompts=2) for name in ("speculative", "autoregressive")}
    for trace in traces.values():
        trace._stores[0].run["prompts"][0]["kind"] = None
    page = demo.write_page(report(), traces, tmp_path / "demo.html", False).read_text(encoding="utf8")
    assert re.findall(r'<option value="\d">(\d: \w+)<', page) == ["1: text", "2: translation"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_first_screen_says_what_won_and_races(open_page, path, axe, shoot, dark):
    assert path.stat().st_size < 1_500_000
    page = open_page(dark, offline=True, viewport={"width": 1280, "height": TALL}, reduced_motion="reduce")
    page.goto(path.as_uri())
    page.wait_for_selector("#place .sv.player")
    assert page.evaluate("document.documentElement.scrollHeight") <= 6 * TALL
    for place in (".result", "#first .strip", ".table"):
        assert page.locator(place).first.evaluate("e => e.getBoundingClientRect().bottom") <= TALL
    assert page.locator(".result").inner_text() == "unispec writes 32 tokens/s"
    assert page.locator("main b", has_text="smollm2").count() == 0, "what comes from outside is text"
    names = page.locator("#first .who .name").all_inner_texts()
    assert names == ["prompt_lookup", "unispec", "autoregressive"], "the fastest first, plain decoding last"
    shoot(page, f"demo-{'dark' if dark else 'light'}")
    assert not axe(page, "body")


def test_the_race_plays_by_itself_unless_motion_is_unwanted(open_page, path):
    page = open_page(offline=True)
    page.goto(path.as_uri())
    page.get_by_role("button", name="pause (space)").wait_for()
    clock = page.locator("#first .clock")
    before = clock.inner_text()
    page.wait_for_function("text => document.querySelector('#first .clock').textContent !== text", arg=before)
    calm = open_page(offline=True, reduced_motion="reduce")
    calm.goto(path.as_uri())
    calm.wait_for_selector("#place .sv.player")
    assert calm.locator("#first .clock").inner_text() == "0.00 ms"
    assert calm.locator("#first").get_by_role("button", name="play (space)").count() == 1


def test_method_and_prompt_are_chosen_by_key(open_page, path):
    page = open_page(offline=True, reduced_motion="reduce")
    page.goto(path.as_uri())
    page.wait_for_selector("#picture .text")
    assert page.locator("#picture .head strong").inner_text() == "prompt_lookup"
    page.locator("#run").focus()
    page.keyboard.press("ArrowDown")
    page.locator("#picture .head strong", has_text="unispec").wait_for()
    assert page.locator("#place .player > .head strong").inner_text() == "unispec"
    before = page.locator("#picture .text").inner_text()
    page.locator("#prompt").select_option("2")
    page.wait_for_function("text => document.querySelector('#picture .text').innerText !== text", arg=before)
    assert page.evaluate("specviz.get('prompt')") == 2
    page.evaluate("specviz.set('prompt', 1)")  # as the player's own picker does
    page.wait_for_function("() => document.getElementById('prompt').value === '1'")


def test_a_narrow_page_breaks_no_cell(open_page, path, shoot):
    page = open_page(offline=True, viewport={"width": 390, "height": TALL}, reduced_motion="reduce")
    page.goto(path.as_uri())
    page.wait_for_selector("#place .sv.player")
    shoot(page, "demo-narrow")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    lines = (
        "cells => cells.map(c => c.getBoundingClientRect().height / parseFloat(getComputedStyle(c).fontSize))"
    )
    heights = page.locator(".specviz .table td").evaluate_all(lines)
    assert max(height for height in heights if height) < 3, "a cell stands in one line"


def test_the_address_says_where(open_page, path):
    page = open_page(offline=True, reduced_motion="reduce")
    page.goto(f"{path.as_uri()}#run=2&prompt=3&cycle=2")
    page.locator("#picture .head strong", has_text="unispec").wait_for()
    assert page.evaluate("[specviz.get('prompt'), specviz.get('cycle')]") == [1, 2]
    assert page.locator("#prompt option:checked").inner_text().startswith("3: ")
    assert (
        page.locator(".player > .head select[aria-label='prompt'] option:checked").inner_text()[:3] == "3: "
    )
    page.evaluate("specviz.set('cycle', 1)")
    page.wait_for_url(re.compile(r"#run=2&prompt=3&cycle=1$"))
    page.evaluate("location.hash = '#run=1&cycle=2'")
    page.locator("#picture .head strong", has_text="prompt_lookup").wait_for()
    assert page.evaluate("[specviz.get('prompt'), specviz.get('cycle')]") == [0, 2]
    assert page.locator("#prompt").input_value() == "0"
    page.evaluate("location.hash = '#run=1&prompt=99&cycle=1'")
    page.wait_for_url(re.compile(r"#run=1&prompt=4&cycle=1$"))
    assert page.locator("#prompt").input_value() == "2"
    page.locator("#run").select_option("2")
    page.wait_for_url(re.compile(r"#run=3&prompt=4$"))  # the view chooses the cycle
