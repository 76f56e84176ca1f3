"""The live ribbon and the player of a stream in a real browser: by key and mouse, from disk, no network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from bridge import AGAIN, stop_clock
from ribbons import FLICKERS, C, H, W, stream

import specviz as sv
from specviz.trace import Recorder

pytest.importorskip("anywidget", reason="needs the lab extra")

HOSTILE = [[*range(H, C)], [*range(C, C + 15), W], [W, *range(H, C)]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("flicker")
    runs = [stream(FLICKERS, mode=mode) for mode in ("rt", "ssbd", "cd")]
    sv.flicker(runs, live=True).to_html(folder / "live.html")
    sv.flicker(runs).to_html(folder / "still.html")
    sources = ["<b>", "</script><script>alert(1)</script>", "\u202eabc"]
    sv.flicker([stream(HOSTILE, sources=sources)], live=True).to_html(folder / "hostile.html")
    grown = [[W + i % 20 for i in range(1 + n // 3)] for n in range(120)]
    sv.flicker([stream(grown, mode=mode) for mode in ("rt", "ssbd")], live=True).to_html(folder / "long.html")
    stream(FLICKERS, k=1).to_html(folder / "player.html")
    stream(FLICKERS, mode="cd").to_html(folder / "carried.html")
    carried = stream(FLICKERS, k=1)
    unknown = Recorder(
        {name: carried.run[name] for name in ("run", "method", "eos", "prompts", "parameters")}
    )
    for row in carried.arrow([column.name for column in sv.schema.COLUMNS]).to_pylist():
        unknown.add(row | {"reused": None})
    unknown.close().to_html(folder / "unknown.html")
    sources = [f"{'😀' * 60}a{' b' * n}" for n in range(4)]
    stream(FLICKERS, sources=sources).to_html(folder / "emoji.html")
    return folder


@pytest.fixture
def show(open_page, pages):
    def opened(name, dark=False, **more):
        page = open_page(dark, offline=True, reduced_motion="reduce", **more)
        page.goto((pages / f"{name}.html").as_uri())
        root = {"still": ".specviz"} | dict.fromkeys(("player", "carried", "emoji", "unknown"), ".player")
        root = root.get(name, ".flicker")
        page.wait_for_selector(root)
        if name != "still":
            page.locator(root).focus()
        return page

    return opened


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def said(page) -> str:
    return page.locator(".flicker .live").inner_text()


def test_keys_move_the_cursor(show):
    page = show("live")
    assert said(page).startswith("Update 3")
    press(page, "Home")
    assert said(page).startswith("Update 0") and "3 new" in said(page)
    press(page, "ArrowRight")
    assert "SSBD, β = 0.2: 2 erased, 1 kept, 2 rewritten, 1 new" in said(page)
    assert page.locator("tr.now th").inner_text().startswith("1, 0.5 s")
    assert page.locator(".screen").nth(1).inner_text().strip() == "w0 w5 w6 w7", (
        "what was erased is gone from the display"
    )
    press(page, "d")
    assert page.locator(".now .draft-line").nth(1).inner_text() == "draft:  w0× w1 w2"
    press(page, "?")
    assert page.locator(".flicker .overlay").is_visible()
    press(page, "Escape", "p")
    assert page.locator(".flicker.projector").count() == 1
    page.locator(".flicker tbody tr").nth(2).click()
    assert said(page).startswith("Update 2")


def test_sliders_say_how_sure_they_are(show):
    page = show("live")
    badge = page.locator("th .what")
    assert badge.all_inner_texts() == ["", "β: recorded", ""]
    press(page, "Home", "ArrowRight", "]")
    assert badge.nth(1).inner_text() == "β: exact before update 1"
    assert page.locator(".flicker tbody .unknown").count() == 3
    assert "the text diverges here" in page.locator(".flicker tbody .unknown").first.inner_text()
    assert "SSBD, β = 0.25: needs a rerun" in said(page)
    press(page, "[", "[")
    assert badge.nth(1).inner_text() == "β: exact" and page.locator(".flicker tbody .unknown").count() == 0
    press(page, "+", "+")
    assert badge.all_inner_texts() == ["k: exact", "β: exact, k: exact", "k: exact"]
    assert "2 hidden" in said(page) and page.locator(".screen").first.inner_text().strip() == "w0 w5"
    values = page.evaluate("[specviz.get('beta'), specviz.get('k'), specviz.get('update')]")
    assert values == [0.15, 2, 1], "Python hears of it"


def test_keys_work_where_the_focus_is(show):
    page = show("live")
    page.locator("input[aria-label='β']").focus()
    press(page, "Home", "p", "]")
    assert page.evaluate("[specviz.get('beta'), specviz.get('update')]") == [0.05, 3], "the slider's own Home"
    assert page.locator(".flicker.projector").count() == 1
    drafts = page.locator(".flicker .sv-drafts")
    drafts.focus()
    press(page, " ")
    assert drafts.is_checked() and not page.evaluate("specviz.get('playing')")


def test_it_plays_at_the_stream_s_own_pace(show):
    page = show("live")
    stop_clock(page)
    press(page, "Home", " ")
    page.wait_for_selector("button[aria-label='pause (space)']")
    page.clock.run_for(1500)
    assert page.evaluate("[specviz.get('update'), specviz.get('playing')]") == [3, True]
    page.clock.run_for(1000)
    page.wait_for_selector("button[aria-label='play (space)']")
    assert page.evaluate("[specviz.get('update'), specviz.get('playing')]") == [3, False]


def test_two_views_play_at_the_pace_of_one(show):
    page = show("long")
    page.evaluate(AGAIN, "flicker")
    stop_clock(page)
    page.evaluate("specviz.set('update', 0), specviz.set('playing', true)")
    page.clock.run_for(3000)
    assert page.evaluate("specviz.get('update')") == 6
    page.get_by_role("button", name="pause (space)").nth(1).click()
    page.clock.run_for(3000)
    assert page.evaluate("[specviz.get('update'), specviz.get('playing')]") == [6, False]


def test_hostile_text_stays_text(show):
    page = show("hostile")
    assert page.locator(".flicker tbody img, tbody script").count() == 0
    assert "</script><script>alert(1)</script>" in page.locator(".flicker tbody").inner_text()
    assert "猫は座る。" in page.locator(".flicker tbody").inner_text()
    assert "\u202e" not in page.content()


def test_a_long_stream_draws_the_rows_around_its_cursor(show):
    page = show("long")
    assert page.locator(".flicker tbody tr").count() == 15
    press(page, "Home", *["ArrowRight"] * 30)
    assert page.locator(".flicker tbody tr").count() == 15
    assert page.locator("tr.now th").inner_text().startswith("30, 15 s")
    box = page.locator(".map").first.bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + box["height"] * 0.5)
    assert said(page).startswith("Update 60")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_serious_violation(dark, show, axe, shoot):
    faults = set()
    for name in ("live", "still", "player", "carried"):
        page = show(name, dark)
        states = {"live": [["Home", "ArrowRight", "d"], ["+", "]"], ["p"]], "still": [[]]}.get(
            name, [["PageDown"], ["ArrowRight"]]
        )
        for number, keys in enumerate(states):
            press(page, *keys)
            if name == "still":
                page.locator(".sv-drafts").check()
            shoot(page, f"flicker-{name}-{number}-{'dark' if dark else 'light'}")
            faults.update(axe(page, "body"))
    assert not faults, "\n".join(sorted(faults))


def test_a_narrow_page_does_not_scroll_sideways(show):
    for name in ("live", "still", "player"):
        page = show(name, viewport={"width": 420, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


def test_the_player_steps_over_updates(show):
    page = show("player")
    line, chosen = page.locator(".said").first, page.locator("select[aria-label=update]")
    press(page, "Home")
    assert line.inner_text().startswith("Update 0, cycle 0: the source continues with")
    press(page, "PageDown")
    assert chosen.locator("option:checked").inner_text() == "1"
    assert "8 of 10 rows of its prompt stay in the cache" in line.inner_text()
    assert page.locator(".player .text .t").count() == 0, "the update's own text is still empty"
    assert page.locator(".cache header").inner_text().endswith("8 from before + 1 forwarded − 0 dropped = 9")
    assert page.locator(".prompt summary b").inner_text().strip() == "src2 src3"
    press(page, "ArrowRight")
    assert "the previous output is the draft: 3 tokens" in line.inner_text()
    assert "accepts 1 of 3" in line.inner_text()
    assert "max p − p = 0.30 > β/(1 − β) = 0.25" in page.locator(".why").inner_text()
    assert page.locator(".cache header").inner_text().endswith("9 from before + 4 forwarded − 2 dropped = 11")
    press(page, "ArrowLeft", "ArrowLeft")
    assert line.inner_text().startswith("Update 0, cycle 4") and "the display shows 2" in line.inner_text()
    chosen.select_option(label="3")
    assert line.inner_text().startswith("Update 3, cycle 0: the source continues with")
    press(page, "End", "PageUp")
    assert line.inner_text().startswith("Update 2, cycle 0")


def test_the_player_draws_no_number_of_cache_rows_that_is_unknown(show):
    page = show("unknown")
    press(page, "Home", "PageDown")
    assert "an unknown number of 10 rows" in page.locator(".said").first.inner_text()
    assert (
        page.locator(".cache header").inner_text().endswith("unknown from before + 1 forwarded − 0 dropped")
    )
    assert page.locator(".cache .old").inner_text() == "unknown"
    press(page, "ArrowRight")
    assert page.locator(".cache header").inner_text().endswith("9 from before + 4 forwarded − 2 dropped = 11")


def test_the_player_cuts_no_character_of_a_source(show):
    page = show("emoji")
    press(page, "Home", "PageDown")
    line = page.locator(".prompt summary")
    assert line.text_content() == f"Source so far: … {'😀' * 49}a b"
    assert line.locator("b").text_content() == " b"


def test_the_player_says_that_nobody_judged_what_was_carried_on(show):
    page = show("carried")
    press(page, "Home", "PageDown", "ArrowRight")
    assert "the target is not asked; 3 tokens written" in page.locator(".said").first.inner_text()
    assert (
        page.locator(".cache header").inner_text().endswith("12 from before + 0 forwarded − 0 dropped = 12")
    )
    assert "does not verify it" in page.locator(".why").inner_text()
