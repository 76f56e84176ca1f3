"""The live widget in a browser with a fake kernel: the messages it sends while typing, and its display."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
pytest.importorskip("anywidget", reason="needs the lab extra")

from bridge import stop_clock

from specviz.widgets import assets

STATE = {
    "title": "town, live", "source": "", "mode": "ssbd", "beta": 0.2, "k": 2, "target_language": "German",
    "modes": ["rt", "ssbd", "cd"], "languages": ["German", "Chinese", "Japanese"], "shown": {}, "figures": {},
    "error": "", "theme": "auto",
}  # fmt: skip
STAGE = """async ([source, style, state]) => {
  const heard = {};
  document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
  window.sent = [];
  window.saved = [];
  window.model = {
    get: (name) => state[name],
    set: (name, value) => {
      state[name] = value;
      window.changed = name;
      for (const act of heard[`change:${name}`] ?? []) act();
    },
    on: (name, act) => (heard[name] ??= []).push(act), off: () => {},
    save_changes: () => window.saved.push([window.changed, state[window.changed]]),
    send: (message) => window.sent.push(message),
  };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  (await import(url)).default.render({ model: window.model, el: document.body });
}"""
HOSTILE = "<img src=x onerror=alert(1)>"
SHOWN = {
    "kept": "Die Bäckerin verkauft ",
    "new": "frisches Brot",
    "erased": f"Brötchen {HOSTILE}",
    "hidden": 2,
}
FIGURES = {
    "exactness": "lossy", "ms": 12.3, "updates": 4, "skipped": 1, "erased": 3, "all_erased": 9, "drafted": 12,
    "accepted": 9, "all_drafted": 40, "all_accepted": 30, "reused": 19, "prompt": 24, "tokens": 15,
}  # fmt: skip


@pytest.fixture
def stage(open_page: Any) -> Any:
    def staged(dark: bool = False, **more: Any) -> Any:
        page = open_page(dark, viewport={"width": 1000, "height": 720})
        page.goto("data:text/html,<!doctype html><html lang=en><title>live</title><body style='margin:0'>")
        stop_clock(page)
        page.evaluate(STAGE, [assets.script("live"), assets.style("live"), STATE | more])
        return page

    return staged


def sources(page: Any) -> list[str]:
    return [value for name, value in page.evaluate("window.saved") if name == "source"]


def test_words_are_sent_as_they_end(stage):
    page = stage()
    box = page.locator("textarea")
    box.press_sequentially("Tom reads a", delay=5)
    assert sources(page) == ["Tom ", "Tom reads "]
    page.clock.run_for(1000)  # a pause sends the unfinished word
    assert sources(page)[2:] == ["Tom reads a"]
    box.press_sequentially(" book. ")
    assert sources(page)[2:] == ["Tom reads a", "Tom reads a ", "Tom reads a book. "]
    box.press("Escape")
    assert box.input_value() == "" and sources(page)[-1] == ""
    box.press_sequentially("今日", delay=5)
    assert sources(page)[-2:] == ["今", "今日"], "a script without spaces sends each letter"
    send = "(n) => n.dispatchEvent(new InputEvent('input', { isComposing: true }))"
    box.evaluate("(n) => { n.value = '今日h'; }")
    box.evaluate(send)
    page.clock.run_for(1000)
    assert sources(page)[-1] == "今日", "an input method has not decided yet"
    box.evaluate("(n) => { n.value = '今日は'; n.dispatchEvent(new CompositionEvent('compositionend')); }")
    assert sources(page)[-1] == "今日は"
    page.get_by_role("button", name="Done").click()
    assert page.evaluate("window.sent") == [{"do": "finish"}]


def test_a_text_types_itself(stage):
    page = stage()
    box = page.locator("textarea")
    box.fill("Tom reads a book.")
    box.press("Control+Enter")
    page.clock.run_for(2000)
    assert page.evaluate("window.sent") == [{"do": "finish"}]
    found = sources(page)
    assert found[found.index("") + 1 :] == ["Tom", "Tom reads", "Tom reads a", "Tom reads a book."]
    assert (
        page.get_by_role("button", name="▶ Type it").is_visible() and box.input_value() == "Tom reads a book."
    )


def test_stopping_loses_no_text(stage):
    page = stage()
    box = page.locator("textarea")
    box.fill("Tom reads a book.")
    box.press("Control+Enter")
    page.clock.run_for(600)
    box.press_sequentially("x")
    assert box.input_value() == "Tom reads", "one types when it has ended"
    page.get_by_role("button", name="Stop").click()
    assert box.input_value() == "Tom reads a book." and sources(page)[-1] == "Tom reads"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_kept_new_erased_and_masked_are_told_apart(stage, axe, shoot, dark):
    page = stage(dark, source="The baker sells fresh bread")
    page.evaluate(
        "([s, f]) => { window.model.set('shown', s); window.model.set('figures', f); }", [SHOWN, FIGURES]
    )
    out = page.locator(".out")
    assert out.inner_text() == "Die Bäckerin verkauft frisches Brot ▒▒"
    assert out.locator("ins").inner_text() == "frisches Brot"
    assert page.locator(".gone del").inner_text() == SHOWN["erased"], "as text, not as an element"
    weight = lambda selector: page.locator(selector).evaluate("(n) => getComputedStyle(n).fontWeight")
    assert weight(".out ins") > weight(".out span"), "not by colour alone"
    told = page.locator(".figures").inner_text()
    for words in (
        "12.3 ms",
        "0.75",
        "9 of 12 drafted",
        "0.75 over all",
        "3 tokens",
        "19 of 24",
        "1 overtaken",
    ):
        assert words in told
    assert page.locator(".badge.lossy").inner_text() == "lossy"
    spoken = page.locator("[aria-live]")
    assert spoken.text_content() == "", "not while one types"
    page.clock.run_for(1500)
    assert spoken.text_content() == "Die Bäckerin verkauft frisches Brot"
    shoot(page, f"live-{'dark' if dark else 'light'}")
    page.clock.resume()  # for axe
    assert axe(page, ".live") == []


def test_settings_go_to_python_and_come_from_it(stage):
    page = stage()
    beta, k = page.get_by_label("β"), page.get_by_label("mask k")
    assert beta.input_value() == "0.2" and k.input_value() == "2"
    beta.evaluate(
        "(n) => { n.value = 0.5; n.dispatchEvent(new Event('input')); n.dispatchEvent(new Event('change')); }"
    )
    page.get_by_label("into").select_option("Japanese")
    page.get_by_label("mode").select_option("cd")
    assert page.evaluate("window.saved") == [["beta", 0.5], ["target_language", "Japanese"], ["mode", "cd"]]
    said = {"k": 40, "error": "<b>no</b> room", "target_language": "Control", "waiting": True}
    page.evaluate("(said) => { for (const name in said) window.model.set(name, said[name]); }", said)
    assert k.input_value() == "40" and page.get_by_label("into").input_value() == "Control"
    assert page.get_by_role("alert").inner_text() == "<b>no</b> room"
    status = page.get_by_role("status").filter(has_text="waiting until another decode has ended …")
    assert status.is_visible()
    page.evaluate("window.model.set('waiting', false)")
    assert status.count() == 0


def test_without_languages_it_offers_none(stage):
    page = stage(languages=[])
    assert page.get_by_label("into").count() == 0 and page.get_by_label("mode").count() == 1


def test_done_ends_the_typing_with_the_whole_text(stage):
    page = stage()
    box = page.locator("textarea")
    box.fill("Tom reads a book.")
    box.press("Control+Enter")
    page.clock.run_for(600)
    page.get_by_role("button", name="Done").click()
    page.clock.run_for(2000)
    assert box.input_value() == sources(page)[-1] == "Tom reads a book."
    assert page.evaluate("window.sent") == [{"do": "finish"}]
