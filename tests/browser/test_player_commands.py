"""The player apart from stepping: opening on an instructive cycle, search, zoom, save, addresses."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import specviz as sv
from specviz.escape import content_policy
from traces import build

expect: Any = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)").expect
pytest.importorskip("anywidget", reason="needs the lab extra")

NARROW = {"width": 390, "height": 844}
SVG = "{http://www.w3.org/2000/svg}"
# For each drawn node, its words as displayed and whether they are inside the drawing.
WORDS = """(svg) => { const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("g.node[data-i]:not([display=none])")].map((g) => {
    const word = g.querySelector(".word"), box = word.getBoundingClientRect();
    return [+g.dataset.i, word.textContent, box.left >= frame.left && box.right <= frame.right + 1];
  }); }"""


@pytest.fixture(scope="module")
def lookup() -> Any:
    return sv.open(sv.example("prompt_lookup"))


@pytest.fixture
def opened(open_page: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """``opened(trace, address="", **context)``: the trace's page, from disk and without a network."""

    def show(trace: Any, address: str = "", **context: Any) -> Any:
        page = open_page(offline=True, **context)
        page.goto(trace.to_html(tmp_path / "page.html", force=True).as_uri() + address)
        expect(page.locator(".sv.player .tree")).to_be_visible()
        page.locator(".sv.player").focus()
        return page

    return show


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def at(page: Any) -> int:
    return int(re.match(r"cycle (\d+)", page.locator(".where").inner_text())[1])


def test_it_opens_on_a_cycle_that_accepts_and_rejects(opened, lookup):
    for prompt in (0, 2):
        one = lookup.select(prompt=prompt)
        table = one.cycles
        teaches = table[(table["accepted"] > 0) & (table["judged"] > table["accepted"])]["cycle"].iloc[0]
        assert at(opened(one)) == teaches == sv.player(one).cycle
    page = opened(lookup)
    page.locator("select[aria-label='prompt']").select_option("2")
    assert at(page) == teaches


def test_keys_find_rejections_waits_and_words(opened, lookup):
    one = lookup.select(prompt=0)
    page, table = opened(one, "#cycle=0"), one.cycles.set_index("cycle")
    rejects = set(table[table["judged"] > table["accepted"]].index)
    found = []
    for _ in range(len(rejects)):
        press(page, "x")
        found.append(at(page))
    assert sorted(found) == found and set(found) == rejects
    expect(page.locator(".fate")).to_contain_text("rejected")
    press(page, "Shift+X")
    assert at(page) == found[-2]
    longest = table.loc[1:, "duration"].nlargest(3).index.tolist()
    waits = []
    for _ in range(3):
        press(page, "w")
        waits.append(at(page))
    assert set(waits) == set(longest)

    nodes, outputs = one.nodes, one.outputs
    holds = set(nodes[nodes["text"].str.lower().str.contains("room")]["cycle"])
    holds |= set(outputs[outputs["text"].str.lower().str.contains("room")]["cycle"])
    press(page, "Home", "/")
    page.keyboard.type("Room")  # letters that are commands elsewhere
    met = []
    for _ in range(len(holds)):
        press(page, "Enter")
        met.append(at(page))
    assert set(met) == holds
    press(page, "Shift+Enter")
    assert at(page) == met[-2]
    press(page, "Escape", "/")
    page.keyboard.type("no such word")
    press(page, "Enter")
    expect(page.locator(".find output")).to_have_text("no token has this text")
    press(page, "Escape", "Home", "ArrowRight")  # the keys control the player again
    assert at(page) == 1
    page.get_by_role("button", name="the next rejection").click()
    page.get_by_role("button", name="the next long wait").click()
    assert at(page) in longest


def test_words_over_several_tokens_are_found(opened):
    trace = build("speculative", tokens=40, hostile=False)
    page, text = opened(trace, "#cycle=0"), trace.text.strip()
    press(page, "/")
    page.keyboard.type(text[: len(text) // 2][-12:])
    press(page, "Enter")
    expect(page.locator(".find output")).to_have_text("")
    assert at(page) > 0


def test_the_time_line_zooms_and_pans(opened, lookup):
    page = opened(lookup.select(prompt=0), "#cycle=12")
    line, view = page.locator(".overview"), page.locator(".overview svg")
    shown = lambda: [float(x) for x in view.get_attribute("viewBox").split()]
    whole = shown()
    press(page, "+")
    assert shown()[2] < whole[2]
    press(page, "+", "+", "+")
    assert shown()[2] == 8  # cycles; no further
    expect(page.get_by_role("button", name="zoom into")).to_be_disabled()
    area = view.bounding_box()
    x, y, cycle = area["x"] + area["width"] / 2, area["y"] + area["height"] / 2, at(page)
    before = page.locator(".overview .cursor").bounding_box()["x"]
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - area["width"] / 4, y, steps=4)
    page.mouse.up()
    after = page.locator(".overview .cursor").bounding_box()["x"]
    assert at(page) == cycle and before - after == pytest.approx(area["width"] / 4, abs=3)
    page.mouse.click(area["x"] + 3, y)  # a click jumps there
    assert at(page) != cycle
    press(page, ".", ".")
    page.mouse.wheel(-400, 0)
    press(page, "End")  # the shown cycle is scrolled into view
    assert page.locator(".overview .cursor").bounding_box()["x"] >= area["x"]
    press(page, "0")
    assert shown() == whole
    expect(line).not_to_have_class(re.compile("zoomed"))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    expect(line).to_have_class(re.compile("zoomed"))
    page.get_by_role("button", name="all cycles").click()
    page.get_by_role("button", name="zoom into").click()
    page.get_by_role("button", name="zoom out").click()
    assert shown() == whole


def test_the_address_says_where(opened, lookup):
    page = opened(lookup, "#prompt=3&cycle=7")
    chooser = page.locator("select[aria-label='prompt']")
    assert at(page) == 7 and chooser.input_value() == "2"
    press(page, "ArrowRight")
    page.wait_for_url(re.compile(r"#prompt=3&cycle=8$"))
    page.evaluate("location.hash = '#cycle=5'")
    expect(page.locator(".where")).to_contain_text("cycle 5 /")
    assert chooser.input_value() == "0"
    for wrong in ("#cycle=-4", "#cycle=<img src=x onerror=alert(1)>", "#prompt=x&cycle=1e9", "#run=99", "#%"):
        page.evaluate("(to) => { location.hash = to; }", wrong)
    expect(page.locator(".where")).to_contain_text("cycle 5 /")
    assert at(opened(lookup, "#prompt=99&cycle=999999999")) > 0  # clamped to the last cycle
    page = opened(lookup.select(prompt=[1, 3]), "#prompt=4&cycle=2")  # numbers, as the page shows them
    expect(page.locator("select[aria-label='prompt'] option:checked")).to_have_text(re.compile("^4: "))
    expect(page.locator(".where")).to_contain_text("cycle 2 /")


def test_the_view_is_saved_as_svg_and_png(opened, tmp_path):
    for method, dark in (("bild", False), ("tree", True)):  # with tokens that break careless escaping
        page = opened(build(method, tokens=60, seed=5), dark=dark)
        files = []
        for key in ("v", "Shift+V"):
            with page.expect_download() as loading:
                press(page, key)
            assert re.fullmatch(rf"{method}-cycle-\d+\.(svg|png)", loading.value.suggested_filename)
            files.append(tmp_path / loading.value.suggested_filename)
            loading.value.save_as(files[-1])
        picture = ElementTree.parse(files[0]).getroot()
        names = {node.tag.removeprefix(SVG) for node in picture.iter()}
        assert names <= {"svg", "g", "rect", "path", "text", "line"}
        attributes = {name for node in picture.iter() for name in node.attrib}
        assert not {
            name for name in attributes if name.startswith("on") or name in ("style", "class", "href")
        }
        said = "".join(picture.itertext())
        assert method in said and "Why" in said and page.locator(".whys .word").inner_text()[2:-2] in said
        grounds = [node.get("fill") for node in picture.iter(f"{SVG}rect")]
        assert grounds[0] == ("rgb(22,22,22)" if dark else "rgb(255,255,255)")
        content = files[1].read_bytes()
        wide, tall = struct.unpack(">II", content[16:24])
        assert content[:4] == b"\x89PNG" and wide == 2 * int(picture.get("width")) > 2000 and tall > 1000
        assert not page.locator(".sv.player.saved").count()


@pytest.mark.parametrize("dark", [False, True])
def test_a_chain_uses_its_card(opened, lookup, shoot, dark):
    page = opened(
        build("speculative", tokens=40, hostile=False), dark=dark, viewport={"width": 1280, "height": 900}
    )
    shoot(page, f"chain-signals-{dark}")
    bottom = "(n) => n.getBoundingClientRect().bottom"
    drawn, card = (page.locator(name).evaluate(bottom) for name in (".tree .legend", ".tree"))
    assert card - drawn < 40
    page = opened(lookup.select(prompt=0), dark=dark, viewport={"width": 1280, "height": 900})
    shoot(page, f"chain-words-{dark}")
    boxes = [box.bounding_box() for box in page.locator("g.node[data-i]:visible .box").all()]
    card = page.locator(".tree").bounding_box()
    assert max(b["x"] + b["width"] for b in boxes) - card["x"] > 0.85 * card["width"]
    assert max(b["y"] for b in boxes) - min(b["y"] for b in boxes) > 0.4 * card["height"]


def test_every_token_can_be_read_on_a_phone(opened, lookup, shoot):
    trees = build("unispec", nodes=64, seed=0, tokens=60, hostile=False)
    for name, trace in (("chain", lookup.select(prompt=0)), ("tree", trees)):
        page = opened(trace, viewport=NARROW)
        shoot(page, f"phone-{name}")
        cycle = at(page)
        nodes = trace.nodes[trace.nodes["cycle"] == cycle].set_index("node")
        words = page.locator(".tree > .scroll > svg").evaluate(WORDS)
        read = 0
        for i, word, inside in words:
            if i not in nodes.index or nodes["status"][i] in (
                "below_budget",
                "unsent",
            ):
                continue
            text = nodes["text"][i]
            assert word == text.replace(" ", "␣").replace("\n", "⏎") and inside, (i, word, text)
            read += 1
        assert read == (~nodes["status"].isin(["below_budget", "unsent"])).sum() > 0
        if name == "chain":
            scroll = page.locator(".tree .scroll")
            assert scroll.evaluate("(n) => n.scrollWidth - n.clientWidth") <= 1
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_a_page_allows_its_own_styles_alone(opened, lookup, open_page, tmp_path):
    trace = build("bild", tokens=30)
    pages = [
        trace.to_html(tmp_path / "player.html"),
        sv.race([trace, build("tree")]).to_html(tmp_path / "race.html"),
    ]
    pages.append(sv.view.examples({"bild": trace}, which=[0]).to_html(tmp_path / "examples.html"))
    for path in pages:
        text = path.read_text(encoding="utf8")
        policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
        assert "unsafe-inline" not in policy and "default-src 'none'" in policy
        assert " style=" not in text.split("</head>")[1].split("<script")[0]
        page = open_page(offline=True)
        page.goto(path.as_uri())  # a style without a hash would be an error in the console
        shown = page.locator("main .sv, main.specviz").first
        expect(shown).to_have_css("background-color", "rgb(255, 255, 255)")
        assert content_policy(text).split("style-src ")[1].split(";")[0] in policy
        changed = text.replace("<style>", "<style>main{display:none}", 1)
        assert content_policy(changed).split("style-src ")[1].split(";")[0] not in policy
