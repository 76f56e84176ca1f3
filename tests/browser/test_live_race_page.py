"""The live race in a browser: columns that grow in turn, stopping, and the reader's choices."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
pytest.importorskip("anywidget", reason="needs the lab extra")

from bridge import Bridge
from test_explore_page import Slow, everywhere, runs_models, screen

import specviz as sv
from specviz.widgets.live_race import LiveRace

METHODS = ["autoregressive", "speculative"]


@runs_models
def test_methods_race_while_they_decode(open_page, shoot, axe):
    page = screen(open_page)
    one = sv.race(live=True, model="town", methods=[*METHODS, "bild:fallback=0.5"], max_new_tokens=48)
    bridge = Bridge(page, one.panel, "live_race")
    bridge.until(lambda: one.panel.state in ("done", "error"))  # it starts with a race
    assert one.panel.error == ""
    columns = page.locator(".column")
    assert columns.count() == 3
    for i, (trace, finish) in enumerate(zip(one.traces, one.panel.finishes, strict=True)):
        words = columns.nth(i).locator(".t").all_inner_texts()
        assert len(words) == len(trace.outputs)
        speed = finish["speed"]
        assert f"{speed:.{0 if speed >= 100 else 1}f} tokens/s" in columns.nth(i).inner_text()
    first = min(range(3), key=lambda i: one.panel.finishes[i]["seconds"])
    assert "①" in columns.nth(first).locator("h3").inner_text()
    assert "finished first" in page.locator(".leader").inner_text()
    assert "Each clock counts only its own method's cycles" in page.locator(".live_race").inner_text()
    everywhere(page, shoot, axe, "live_race")


def test_columns_grow_by_turns_until_the_race_is_stopped(open_page, shoot):
    page = screen(open_page)
    one = LiveRace(Slow(cycles=1000), "town", "Who is here?", METHODS)
    bridge = Bridge(page, one.panel, "live_race")
    grown: Any = page.locator(".column").nth(1).locator(".t")
    bridge.until(lambda: grown.count() > 8)
    assert page.locator(".column").nth(0).locator(".t").count() > 6
    assert page.locator(".live_race img").count() == 0 and page.locator("del").first.is_visible()
    shoot(page, "live-race-running")
    page.get_by_role("button", name="Stop").focus()
    page.keyboard.press("Escape")
    bridge.until(lambda: one.panel.state == "stopped")
    assert page.evaluate("document.activeElement.textContent") == "▶ Race"
    page.keyboard.press("Enter")
    bridge.until(lambda: one.panel.state == "running")
    assert page.evaluate("document.activeElement.textContent") == "■ Stop"
    page.keyboard.press("Escape")
    bridge.until(lambda: one.panel.state == "stopped")
    assert page.get_by_role("button", name="Race").is_enabled()
    assert page.locator(".leader").inner_text().startswith("Stopped")


def test_the_reader_chooses_who_races(open_page):
    page = screen(open_page)
    decoder = Slow(cycles=2)
    one = LiveRace(decoder, "town", "Who is here?", METHODS)
    bridge = Bridge(page, one.panel, "live_race")
    bridge.until(lambda: one.panel.state == "done")
    page.get_by_label("method 3").select_option("bild")
    page.get_by_role("textbox", name="prompt").fill("What now?")
    page.keyboard.press("Control+Enter")
    bridge.until(lambda: len(decoder.runs) == 5 and one.panel.state == "done")
    assert [run.name for run in decoder.runs[2:]] == [*METHODS, "bild"]
    assert page.locator(".column").count() == 3 and one.panel.prompt == "What now?"
    page.get_by_label("method 3").select_option("autoregressive")
    page.get_by_role("button", name="Race").click()
    bridge.until(lambda: one.panel.error)
    assert (
        page.get_by_role("alert").inner_text().startswith("a live race needs different methods or settings")
    )


def test_a_race_that_is_shown_again_has_its_own_names(open_page):
    page = screen(open_page)
    one = LiveRace(Slow(cycles=2), "town", "Who is here?", [*METHODS, "bild"])
    Bridge(page, one.panel, "live_race").until(lambda: one.panel.state == "done")
    page.get_by_label("method 3").select_option("none")
    assert page.locator(".column").count() == 3
    one.panel.entrants = ["bild", "speculative"]
    Bridge(page, one.panel, "live_race").carry()
    assert [words.split(" ")[-1] for words in page.locator(".column h3").all_inner_texts()] == [
        *METHODS,
        "bild",
    ]
    assert "bild" in page.locator(".leader").inner_text()
