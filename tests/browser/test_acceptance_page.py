"""The rejection rule in a browser: after a drag or a choice of rule, the law is the one Python computes."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="needs the lab extra")

from test_race_page import swipe

from specviz.widgets.acceptance import RULES, Acceptance
from specviz.widgets.player import player
from traces import build


def outcome(page):
    """The law shown in the right panel."""
    label = page.locator(".acceptance svg").nth(1).get_attribute("aria-label")
    return [float(value) for value in re.findall(r" (\d\.\d\d)", label)]


def state(page, name):
    return page.evaluate("name => globalThis.specviz.get(name)", name)


def test_a_finger_scrolls_the_page_and_drags_the_bars(open_page, tmp_path):
    page = open_page(has_touch=True, viewport={"width": 390, "height": 320})
    page.goto(Acceptance().to_html(tmp_path / "rule.html").as_uri())
    assert page.locator("[data-of=q0]").get_attribute("aria-label") == "q of token A"
    grip = page.locator("[data-of=q0] .grip")
    grip.scroll_into_view_if_needed()
    before = page.evaluate("scrollY")
    swipe(page, grip.bounding_box(), -40)
    page.wait_for_function("() => globalThis.specviz.get('q')[0] > 0.3")
    page.wait_for_timeout(300)  # a page that scrolls has done so by then
    assert page.evaluate("scrollY") == before
    name = page.locator(".acceptance .name").first
    swipe(page, name.bounding_box(), -100)
    page.wait_for_function("bound => scrollY > bound", arg=before + 30)
    q = state(page, "q")
    grip.dispatch_event("pointerdown")
    page.evaluate("dispatchEvent(new PointerEvent('pointercancel'))")
    page.evaluate("dispatchEvent(new PointerEvent('pointermove', { clientY: 0 }))")
    assert state(page, "q") == q


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_dragging(open_page, axe, shoot, tmp_path, dark):
    file = Acceptance().to_html(tmp_path / "rule.html")
    page = open_page(dark=dark, viewport={"width": 900, "height": 500})
    page.goto(file.as_uri())
    page.locator(".acceptance .handle").first.wait_for()
    assert np.allclose(outcome(page), Acceptance().law, atol=0.005)
    assert "from p: 0.000" in page.locator(".figures").inner_text()

    box = page.locator("[data-of=q0] .grip").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 5, box["y"] - 60, steps=4)
    page.mouse.up()
    q = state(page, "q")
    assert q[0] > 0.3 and sum(q) == pytest.approx(1)
    assert np.allclose(outcome(page), state(page, "p"), atol=0.005)

    page.locator("[data-of=p1]").focus()
    before = state(page, "p")[1]
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # the redrawn bar keeps the focus
    assert state(page, "p")[1] == pytest.approx(before + 0.04)

    for rule in RULES[1:]:
        page.locator("select").select_option(rule)
        law = Acceptance(state(page, "p"), state(page, "q"), rule).law
        assert np.allclose(outcome(page), law, atol=0.006), rule
    shoot(page, f"acceptance-{'dark' if dark else 'light'}")
    assert not axe(page, "body")


def test_a_browser_that_shows_no_view_is_not_sent_to_a_missing_picture(open_page, tmp_path):
    pages = {
        "view": Acceptance().to_html(tmp_path / "rule.html"),
        "view (DecompressionStream is not defined); the static picture is below": player(build()).to_html(
            tmp_path / "player.html"
        ),
    }
    for words, path in pages.items():
        page = open_page()
        page.add_init_script("delete globalThis.DecompressionStream")
        page.goto(path.as_uri())
        line = page.get_by_role("alert")
        line.wait_for()
        assert words in line.inner_text() and page.locator(".still").is_visible() == (
            "below" in line.inner_text()
        )
