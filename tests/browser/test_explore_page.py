"""The explorer in a browser: streaming text, stop, save, and a slider that is dragged."""

from __future__ import annotations

import threading
import time
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
pytest.importorskip("anywidget", reason="needs the lab extra")

from bridge import BLANK, LISTEN, Bridge
from pretended import Decoder
from town_runs import town_run

import specviz as sv
from specviz.methods.base import Parameter
from specviz.widgets import assets, explore
from specviz.widgets.explore import Explorer

runs_models = pytest.mark.skipif(find_spec("torch") is None, reason="a decode needs torch (the test extra)")
DRAG = """([at]) => {
  const slide = document.querySelector("input[type=range]");
  slide.value = at;
  slide.dispatchEvent(new Event("input"));
}"""
# What an announcer says by each of some times, when its timers run only then.
LATE = """(times) => {
  const timers = [], one = new Announcer();
  let now = 0;
  window.setTimeout = (act, wait) => timers.push({ act, at: now + wait });
  window.setInterval = (act, wait) => timers.push({ act, at: now + wait, wait });
  one.say("a");
  one.say("b");
  return times.map((at, i) => {
    now = at;
    for (const timer of timers.splice(0)) {
      if (timer.at > now) { timers.push(timer); continue; }
      timer.act();
      while (timer.wait && timer.at <= now) timer.at += timer.wait; // an interval keeps its beat
      if (timer.wait) timers.push(timer);
    }
    if (!i) one.say("c");
    return one.node.textContent;
  });
}"""
WORDS = "(all) => all.map((node) => node.lastChild.textContent)"  # without the token marks


class Slow(Decoder):
    """A fake decoder that waits between cycles, like a large model."""

    def start(self, model: str, text: str, method: str, values: Any, *, dense: bool = False) -> Any:
        run = super().start(model, text, method, values)
        inner = run._going

        def slowly() -> Any:
            for cycle in inner:
                time.sleep(0.02)
                yield cycle

        run._going = slowly()
        return run


def screen(open_page: Any, **more: Any) -> Any:
    return open_page(viewport={"width": 1280, "height": 900}, **more)


def everywhere(page: Any, shoot: Any, axe: Any, view: str) -> None:
    """Check a view wide and narrow, light and dark: no horizontal scrolling, no axe-core findings."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            shoot(page, f"{view}-{theme}-{width}")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        assert not axe(page, f".{view}")


@runs_models
def test_a_decode_is_seen_stepped_questioned_and_saved(open_page, shoot, axe, tmp_path):
    page = screen(open_page)
    one = sv.explore("bild", "town", max_new_tokens=48)
    bridge = Bridge(page, one.panel, "explore")
    bridge.until(lambda: one.panel.state == "done")  # it starts with a decode
    trace = one.results[0].trace
    assert one.panel.error == ""
    kept = "".join(page.locator(".growing .t").evaluate_all(WORDS))
    assert kept.replace("■", "").replace(" ", "") == trace.text.replace(" ", "")
    origins = trace.outputs["origin"].tolist()
    names = page.locator(".growing .t").evaluate_all("(all) => all.map((n) => n.classList[1])")
    assert names == [{"correction": "rollback"}.get(name, name) for name in origins]
    assert "tokens/s" in page.locator(".rate").inner_text()
    assert page.locator(".idea").inner_text().startswith("A small model writes until it is uncertain")
    assert page.get_by_text("A/O: share of the text that came from drafts").is_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="save run 1").click()
        bridge.until(lambda: bridge.messages[-1]["do"] == "file")
    download.value.save_as(tmp_path / "saved.parquet")
    assert sv.open(tmp_path / "saved.parquet").text == trace.text
    page.get_by_role("button", name="open run 1 in the player").click()
    bridge.until(lambda: one.panel.chosen == 1)
    assert type(one.children[1]).__name__ == "Player"
    page.locator("input[type=range]").first.press("ArrowRight")
    bridge.until(lambda: one.panel.answer["badge"])
    assert one.panel.answer["words"] in page.locator(".answer").inner_text()
    everywhere(page, shoot, axe, "explore")


@runs_models
def test_another_prompt_and_method_by_keyboard_alone(open_page):
    page = screen(open_page)
    one = sv.explore("speculative", "town", "The cook saw", max_new_tokens=12)
    bridge = Bridge(page, one.panel, "explore")
    bridge.until(lambda: one.panel.state == "done")
    page.keyboard.press("Tab")  # the model picker
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "method"
    page.keyboard.type("prompt")  # selects the menu entry that starts with it
    bridge.until(lambda: one.method == "prompt_lookup")
    assert page.locator(".field").count() == len(one.panel.parameters)
    page.get_by_role("textbox", name="prompt").focus()
    page.keyboard.press("Control+a")
    page.keyboard.type("The baker sold")
    page.keyboard.press("Control+Enter")
    bridge.until(lambda: len(one.panel.rows) == 2 and one.panel.state == "done")
    assert one.results[1].method == "prompt_lookup"
    assert one.results[1].trace.prompts["text"][0].count("The baker sold") == 1
    assert "'The baker sold'" in page.locator("code.code").inner_text()


def test_text_appears_while_it_is_decoded_until_it_is_stopped(open_page, shoot):
    page = screen(open_page)
    one = Explorer(Slow(cycles=1000), "town", "speculative", "Who is here?")
    bridge = Bridge(page, one.panel, "explore")
    page.evaluate(LISTEN)
    shown = page.locator(".growing .t")
    sizes = set()
    bridge.until(lambda: sizes.add(shown.count()) or len(sizes) > 10)  # it grows
    bridge.until(lambda: len(page.evaluate("window.heard")) >= 3)
    assert one.panel.state == "running"
    dropped = page.locator(".growing del").first
    # a dropped line break is shown as a sign, which does not break lines of the kept text
    assert dropped.text_content() == "<img src=x onerror=alert(1)>⏎"
    assert page.locator(".explore img").count() == 0
    assert "line-through" in dropped.evaluate("(n) => getComputedStyle(n).textDecoration")
    shoot(page, "explore-running")
    page.get_by_role("checkbox", name="show dropped drafts").uncheck()
    assert not dropped.is_visible()
    page.keyboard.press("Escape")
    bridge.until(lambda: one.panel.state == "stopped")
    assert len(one.results) == 1 and not one.results[0].trace.run["complete"]
    assert "stopped" in page.locator(".state").inner_text()
    assert page.get_by_role("button", name="Player").is_visible()
    times = [at for at, _ in page.evaluate("window.heard")]
    assert all(b - a > 900 for a, b in pairwise(times)), times


def test_announcements_do_not_catch_up_after_a_late_one(open_page):
    page = screen(open_page)
    page.goto(BLANK)
    page.add_script_tag(content=assets.text("shared.js") + assets.text("tokens.js"))
    assert page.evaluate(LATE, [1750, 2000, 2750]) == ["b", "b", "c"]


def test_the_keyboard_stays_in_the_panel(open_page):
    page = screen(open_page)
    decoder = Slow(cycles=2)
    one = Explorer(decoder, "town", "speculative", "Who is here?")
    bridge = Bridge(page, one.panel, "explore")
    focus = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    bridge.until(lambda: one.panel.state == "done")
    decoder.how["cycles"] = 1000
    page.get_by_role("button", name="open run 1").focus()
    page.keyboard.press("Enter")
    bridge.until(lambda: one.panel.chosen == 1)
    assert page.evaluate(focus) == "open run 1 in the player"
    page.get_by_role("button", name="▶ Decode", exact=True).focus()
    page.keyboard.press("Enter")
    bridge.until(lambda: one.panel.state == "running")
    assert page.evaluate(focus) == "■ Stop"
    page.keyboard.press("Escape")
    bridge.until(lambda: one.panel.state == "stopped")
    assert page.evaluate(focus) == "▶ Decode"
    one.panel.answer = {"run": 1, "badge": "needs a rerun", "words": "x", "text": "", "why": "y"}
    bridge.carry()
    page.locator(".answer button").focus()
    page.keyboard.press("Enter")
    bridge.until(lambda: one.panel.state == "running")
    assert page.evaluate(focus) == "■ Stop"
    one.stop()
    assert one.wait(20)


def test_a_reader_who_wants_no_motion_gets_none(open_page):
    for wish, name in (("reduce", "none"), ("no-preference", "sv-appear")):
        page = screen(open_page, reduced_motion=wish)
        one = Explorer(Decoder(), "town", "speculative", "Who is here?")
        bridge = Bridge(page, one.panel, "explore")
        bridge.until(lambda one=one: one.panel.rows)
        style = "(n) => getComputedStyle(n).animationName"
        assert page.locator(".growing .new").first.evaluate(style) == name


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (Decoder(fails=ValueError("two\nlines")), "ValueError: two lines"),
        (Decoder(), "the prompt is empty; give at least one token"),
    ],
    ids=["decode", "prompt"],
)
def test_an_error_is_one_line(open_page, decoder, words):
    page = screen(open_page)
    one = Explorer(decoder, "town", "speculative", "" if "empty" in words else "Who is here?")
    bridge = Bridge(page, one.panel, "explore")
    bridge.until(lambda: one.panel.state == "error")
    assert page.get_by_role("alert").inner_text() == words
    assert page.get_by_role("button", name="Decode").first.is_enabled()


def test_a_view_that_opens_later_shows_the_whole_text(open_page):
    one = Explorer(Decoder(), "town", "speculative", "Who is here?")
    one.run()
    assert one.wait(20)
    page = screen(open_page)
    bridge = Bridge(page, one.panel, "explore")
    bridge.carry()
    assert page.locator(".growing .t").count() == 12 and len(one.results) == 1


def test_a_second_explorer_waits_for_its_turn(open_page):
    gate = threading.Event()
    first = Explorer(Decoder(gate=gate), "town", "speculative", "Who is here?")
    first.run()
    try:
        one = Explorer(Decoder(), "town", "speculative", "Who is here?")
        page = screen(open_page)
        bridge = Bridge(page, one.panel, "explore")
        bridge.until(lambda: one.panel.state == "waiting")
        assert "waiting until another decode has ended" in page.locator(".state").inner_text()
    finally:
        gate.set()
    bridge.until(lambda: one.panel.rows)
    assert first.wait(20)


@pytest.fixture
def answered() -> Explorer:
    """An explorer with one result, from a recorded trace."""
    trace = town_run("bild")
    own = trace.run["parameters"]
    real = (
        Parameter("fallback", own["fallback"], 0, 1),
        Parameter("rollback", own["rollback"], 0, None),
        Parameter("cap", own["cap"], 1, 64),
        Parameter("review_end", own["review_end"]),
    )
    one = Explorer(Decoder(real, made=trace), "town", "bild", "Who is here?")
    one.run()
    assert one.wait(20) and one.panel.answer["run"] == 1, one.panel.error
    return one


def test_a_drag_is_one_round_trip(open_page, answered, shoot, monkeypatch):
    monkeypatch.setattr(explore, "TABLE", 60.0)  # a busy machine answers slowly
    page = screen(open_page)
    own = answered.panel
    bridge = Bridge(page, own, "explore")
    bridge.carry()
    line, code = page.locator(".answer"), page.locator("code.code")
    before = line.inner_text()
    page.evaluate(DRAG, ["0.9"])
    assert page.evaluate("window.outbox") == [["send", {"do": "tabulate", "name": "fallback"}]]
    assert line.inner_text() == before, "the answer is on its way"
    bridge.carry()
    bridge.carry()
    seen = set()
    for at in ("0.9", "0.7", "0.3", "0.05"):
        page.evaluate(DRAG, [at])
        answered.set(fallback=float(at))  # Python's figures for it
        assert own.answer["words"] in line.inner_text() and code.inner_text() == own.code
        assert (own.answer["text"] or own.answer["why"]) in line.inner_text()
        seen.add(line.inner_text())
    assert len(seen) == 4
    assert page.evaluate("window.outbox") == []
    shoot(page, "explore-drag")
    page.evaluate("() => document.querySelector('input[type=range]').dispatchEvent(new Event('change'))")
    (saved,) = page.evaluate("window.outbox")
    assert saved[:2] == ["set", "values"] and saved[2]["fallback"] == 0.05
    # another setting makes the table stale: the next drag requests a new one
    page.locator("input[type=range]").nth(2).evaluate(
        "(n) => { n.value = 3; n.dispatchEvent(new Event('change')); }"
    )
    page.evaluate(DRAG, ["0.4"])
    assert page.evaluate("window.outbox.filter(([what]) => what === 'send').length") == 1
