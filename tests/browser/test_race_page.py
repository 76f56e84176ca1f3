"""The race's offline page in a real browser: from disk, without a network, by key and by mouse."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from specviz.trace import Recorder
from traces import build, cycles, metadata, piece

pytest.importorskip("anywidget", reason="needs the lab extra")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    from specviz.widgets.race import race

    slow = metadata("tree") | {"threads": 3}
    recorder = Recorder(slow, None, "judged", piece=piece)
    for row in cycles("tree"):
        recorder.add(row)
    folder = tmp_path_factory.mktemp("race")
    one = race([build("autoregressive"), build("speculative"), build("bild")])
    race([build("autoregressive"), recorder.close()]).to_html(folder / "unlike.html")
    race([build(name, prompts=2) for name in ("bild", "tree")]).to_html(folder / "two.html")
    return one.to_html(folder / "race.html")


@pytest.fixture
def page(open_page, shoot, path, request):
    page = open_page(offline=True)
    page.goto(path.as_uri())
    page.wait_for_selector(".race .strip .runner")
    yield page
    shoot(page, f"race-{request.node.name.removeprefix('test_')}")


def clock(page) -> str:
    return page.locator(".race .clock").inner_text()


def swipe(page, box, down: int) -> None:
    """Move a finger down from the middle of a box."""
    session = page.context.new_cdp_session(page)
    at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    send = lambda kind, *points: session.send(
        "Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(points)}
    )
    send("touchStart", at)
    for step in range(1, 11):
        send("touchMove", at | {"y": at["y"] + down * step / 10})
    send("touchEnd")


def cells(page) -> int:
    return page.locator(".race .cell").count()


def test_keys_step_through_the_race(page):
    page.locator(".race").focus()
    before = clock(page)
    page.keyboard.press("End")
    assert clock(page) != before and cells(page) > 0
    assert "finished first" in page.locator(".race .leader").inner_text()
    page.keyboard.press("Home")
    assert cells(page) == 0 and "prefill" in page.locator(".race .runner").first.inner_text()
    seen = set()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
        seen.add((clock(page), cells(page), page.locator(".race [aria-live='polite']").inner_text()))
    assert len(seen) >= 7, "each step shows and says something else"
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    assert cells(page) == 0
    page.keyboard.press("?")
    assert page.locator(".race .overlay").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".race .overlay").is_visible()
    wide = page.locator(".race .clock").evaluate("e => e.getBoundingClientRect().height")
    page.keyboard.press("p")
    assert page.locator(".race .clock").evaluate("e => e.getBoundingClientRect().height") > wide


def test_mouse_scrubs_and_jumps(page):
    box = page.locator(".race .chart").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.4)
    middle, shown = clock(page), cells(page)
    assert shown > 0
    page.locator(".race .waits button").first.click()
    assert clock(page) != middle
    page.get_by_role("button", name="start (Home)").click()
    assert cells(page) == 0
    page.locator(".race .controls select").select_option("6")
    page.get_by_role("button", name="play (space)").click()
    page.locator(".race .cell").nth(3).wait_for()
    page.get_by_role("button", name="pause (space)").click()
    assert page.evaluate("specviz.get('time')") > 0 and page.evaluate("specviz.get('playing')") is False


def test_a_time_that_is_set_stops_the_race_and_stays_within_it(page):
    state = lambda: page.evaluate("[specviz.get('time'), specviz.get('playing')]")
    page.evaluate("specviz.set('playing', true)")
    page.evaluate("specviz.set('time', 0.01)")
    assert state() == [0.01, False]
    page.evaluate("specviz.set('time', 1e9)")
    page.locator(".race").focus()
    end = state()
    page.keyboard.press("End")
    assert state() == end
    page.evaluate("specviz.set('time', 0.01), specviz.set('playing', true)")  # in one message
    assert state() == [0.01, True]
    page.evaluate("specviz.set('playing', false), specviz.set('time', 0)")
    page.evaluate("specviz.state.time = 0.01, specviz.set('playing', true)")  # in the other order
    assert state() == [0.01, True]


def test_a_block_holds_the_tokens_of_one_pass(page):
    from specviz.widgets.lanes import fields

    page.locator(".race").focus()
    page.keyboard.press("End")
    lane = fields([build("autoregressive"), build("speculative"), build("bild")])[0].lanes[1]
    row = page.locator(".race .strip .row").nth(2)
    first = row.locator(".block").first  # blocks are prepended as they scroll into view
    width, cell = (
        first.bounding_box()["width"],
        page.locator(".race .ruler span").first.bounding_box()["width"],
    )
    assert round(width / cell) in set(lane.blocks["tokens"].tolist())
    assert row.locator(".cell").count() <= lane.output
    assert row.locator(".flag, .runner.finished").count() == 1


def test_a_prompt_that_is_not_there_is_the_last(page, path):
    page.goto(path.with_name("two.html").as_uri() + "#prompt=9")
    page.wait_for_selector(".race .strip .runner")
    chooser = page.locator(".race select[aria-label='prompt']")
    assert chooser.input_value() == "1"
    page.evaluate("specviz.set('time', 0.03)")
    page.evaluate("specviz.set('prompt', 0)")
    assert chooser.input_value() == "0" and clock(page) == "0.00 ms"
    assert page.evaluate("specviz.get('time')") == 0.03, "Python alone resets it, before it may set another"
    page.evaluate("specviz.set('prompt', 1), specviz.set('time', 0.02)")  # in one message
    assert chooser.input_value() == "1" and clock(page) == "20.0 ms"
    page.evaluate("specviz.set('prompt', 99)")
    assert chooser.input_value() == "1" and page.locator(".race .strip .runner").count() == 2


def test_a_finger_scrolls_past_the_chart_and_ends_no_drag(open_page, path):
    page = open_page(offline=True, has_touch=True, viewport={"width": 390, "height": 500})
    page.goto(path.as_uri())
    page.wait_for_selector(".race .strip .runner")
    page.locator(".race .chart").scroll_into_view_if_needed()
    box = page.locator(".race .chart").bounding_box()
    before = page.evaluate("scrollY")
    swipe(page, box, 120)
    page.wait_for_function("bound => scrollY < bound", arg=before - 50)
    shown = clock(page)
    page.locator(".race .chart").evaluate(
        "(n) => n.dispatchEvent(new PointerEvent('pointermove', { clientX: 300 }))"
    )
    assert clock(page) == shown, "a drag that the page took over is over"


def test_the_chart_is_drawn_again_when_the_width_changes_and_only_then(page):
    drawn = page.locator(".race .chart svg").element_handle()
    page.locator(".race").evaluate("n => { n.style.paddingBottom = '300px'; }")
    page.wait_for_timeout(200)
    assert drawn.evaluate("n => n.isConnected"), "the height alone moves nothing in the chart"
    page.set_viewport_size({"width": 700, "height": 600})
    page.wait_for_function("n => !n.isConnected", arg=drawn)
    assert page.locator(".race .chart svg").evaluate("n => n.clientWidth") < 700


def test_hostile_tokens_are_only_text(page):
    page.locator(".race").focus()
    page.keyboard.press("End")
    assert page.locator(".race img, .race script, .race iframe").count() == 0
    assert page.evaluate("document.querySelectorAll('.race [onerror], .race [onclick]').length") == 0
    words = " ".join(page.locator(".race .cell bdi").all_inner_texts())
    assert "<" in words and "\u202e" not in words


def test_clocks_that_differ_are_marked(page, path):
    page.goto(path.with_name("unlike.html").as_uri())
    page.wait_for_selector(".race .strip .runner")
    page.locator(".race").focus()
    page.keyboard.press("End")
    assert "Not comparable" in page.locator(".race .warn").inner_text()
    assert "not comparable" in page.locator(".race .leader").inner_text()
    assert "×" not in page.locator(".race tbody").inner_text()


def test_the_page_is_small_and_closed(path):
    text = path.read_text(encoding="utf8")
    assert len(text) < 1_000_000
    assert "connect-src" not in text and "default-src 'none'" in text
    assert "<img" not in text


@pytest.mark.parametrize("width", [700, 390])
def test_the_speedups_are_in_view_on_narrow_pages(open_page, path, width):
    page = open_page(offline=True, viewport={"width": width, "height": 900})
    page.goto(path.as_uri())
    heads = page.locator(".board thead th")
    heads.first.wait_for()
    words = heads.all_inner_texts()
    for name in ("method", "speedup, decoding", "with prefill"):
        box = heads.nth(words.index(name)).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, name
