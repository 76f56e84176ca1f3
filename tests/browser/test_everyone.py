"""Requirements on every page: usable by keyboard alone, no axe-core findings, motion can be turned off."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
pytest.importorskip("anywidget", reason="needs the lab extra")
pytest.importorskip("plotly", reason="needs the lab extra")

sys.path.insert(0, str(Path(__file__).parents[1]))
from bridge import LISTEN, Bridge
from test_explore_page import Slow, everywhere, screen
from test_report_page import write_report
from test_sweep_page import write_pages

import specviz as sv
from specviz.measure.advice.ranking import Prediction
from specviz.measure.advice.result import Advice
from specviz.measure.advice.simulation import Candidate
from specviz.widgets.app import App, Setting
from specviz.widgets.explore import Explorer
from specviz.widgets.live_race import LiveRace
from traces import build

EVIL = "<img src=x onerror=alert(1)>"
PAGES = {  # each view, and the selector to wait for
    "sweep/pages/index": ".scatterlayer .point", "sweep/pays/index": ".scatterlayer .point",
    "sweep/sizes/index": ".scatterlayer .point",
    "report/report": "main h2", "report/run": "main h2", "advice": "main h1", "diff": "main h1",
}  # fmt: skip
# Controls that are not for the mouse only; a group navigated with arrow keys counts once.
USABLE = """() => [...document.querySelectorAll(
    "a[href], button, input, select, textarea, summary, [tabindex='0']")]
  .filter((node) => !node.disabled && node.tabIndex >= 0)
  .filter((node) => node.checkVisibility({ visibilityProperty: true }))
  .map((node, i) => { node.dataset.stop = i; return i; })"""
# No sideways scrolling two frames later, since plotly redraws.
# It is a function, because a page may not evaluate a text later.
SETTLED = """() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(
  () => done(document.documentElement.scrollWidth <= innerWidth))))"""
STOP = """() => { const node = document.activeElement, ring = getComputedStyle(node);
  return [node.dataset?.stop ?? "", ring.outlineStyle !== "none" || ring.boxShadow !== "none"]; }"""


def advice() -> Advice:
    """Handmade advice of three settings."""
    setting = {
        "model": {"name": EVIL}, "texts": 7, "tokens": 70, "between": [1, 20], "clock": "none",
        "device": "cpu", "threads": 1, "dtype": "float64", "temperature": 0, "left_out": {},
        "confirmed_on": 0, "given_as": {"small": EVIL},
    }  # fmt: skip
    draft = Candidate("speculative", "small", (("draft_length", 4),), 4)
    rest = {"cycle": 1.4, "forward": 1.1, "drafting": 0.2, "rest": 0.1, "certain": True}
    plain = {"cycle": 1.0, "forward": 0.9, "drafting": 0.0, "rest": 0.1, "certain": True}
    speeds = [(draft, 2.4, 1.7, rest), (Candidate("autoregressive"), 1.0, 1.0, plain)]
    predictions = [
        Prediction(
            each, tau, tau, tau, "exact", 0.6, 90 * up, 80 * up, 99 * up, up, 0.9 * up, 1.1 * up, **parts
        )
        for each, tau, up, parts in speeds
    ]
    return Advice(setting, predictions, None, [], [])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("everyone")
    for name, write in (("sweep", write_pages), ("report", write_report)):
        (root / name).mkdir()
        write(root / name)
    advice().to_html(root / "advice.html")
    sv.diff(build("speculative", seed=1), build("speculative", seed=1, tokens=20)).to_html(root / "diff.html")
    return root


def walked(page: Any) -> Iterator[tuple[str, bool]]:
    """The successive Tab stops, and whether each is visible."""
    for _ in range(len(page.evaluate(USABLE)) + 3):
        page.keyboard.press("Tab")
        yield tuple(page.evaluate(STOP))


@pytest.mark.parametrize("view", PAGES)
def test_a_page_is_for_everyone(view, pages, open_page, axe, shoot):
    page = open_page(offline=True, reduced_motion="reduce")
    page.goto((pages / f"{view}.html").as_uri())
    page.wait_for_selector(PAGES[view])
    for details in page.locator("details").all():
        details.evaluate("(node) => { node.open = true; }")
    if page.locator(".figure").count():
        page.locator(".figure").first.scroll_into_view_if_needed()
        page.wait_for_selector(".scatterlayer .point")
    name = view.replace("/", "-")
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(SETTLED)
            shoot(page, f"everyone-{name}-{theme}-{width}")
        assert not axe(page, "body"), theme
    stops = dict(walked(page))
    stops.pop("", None)
    assert sorted(map(int, stops)) == page.evaluate(USABLE), "Tab comes everywhere"
    assert all(stops.values()), "and one sees where one is"
    assert page.evaluate("document.getAnimations().length") == 0


def reach(page: Any, name: str, key: str = "Tab") -> int:
    """Press a key until the element with this name has the focus; returns the number of presses."""
    own = "() => { const n = document.activeElement; return n.getAttribute('aria-label') ?? n.textContent; }"
    for times in range(1, 80):
        page.keyboard.press(key)
        if page.evaluate(own).strip() == name:
            return times
    raise AssertionError(f"{name} is not reached by {key}")


def test_a_live_race_by_keyboard_alone(open_page, axe, shoot):
    page = screen(open_page, reduced_motion="reduce")
    decoder = Slow(cycles=60)
    one = LiveRace(decoder, "town", "Who is here?", ["autoregressive", "speculative"])
    bridge = Bridge(page, one.panel, "live_race")
    page.evaluate(LISTEN)
    bridge.until(lambda: one.panel.state == "done")
    page.wait_for_timeout(1200)  # the last words may be announced a second late
    times = [at for at, _ in page.evaluate("window.heard")]
    assert len(times) >= 3 and all(b - a > 900 for a, b in pairwise(times)), times
    assert page.evaluate("document.getAnimations().length") == 0
    decoder.how["cycles"] = 1000
    reach(page, "method 2")
    page.keyboard.type("bild")
    reach(page, "prompt")
    page.keyboard.press("Control+a")
    page.keyboard.type("What now?")
    reach(page, "▶ Race")
    page.keyboard.press("Enter")
    bridge.until(lambda: one.panel.state == "running")
    reach(page, "■ Stop")
    page.keyboard.press("Enter")
    bridge.until(lambda: one.panel.state == "stopped")
    assert one.panel.prompt == "What now?" and one.panel.entrants == ["autoregressive", "bild"]
    everywhere(page, shoot, axe, "live_race")


def test_a_decode_is_stopped_saved_and_used_by_keyboard_alone(open_page, axe, shoot):
    page = screen(open_page)
    one = Explorer(Slow(cycles=1000), "town", "speculative", "Who is here?")
    bridge = Bridge(page, one.panel, "explore")
    bridge.until(lambda: one.panel.state == "running")
    reach(page, "■ Stop")
    page.keyboard.press("Enter")
    bridge.until(lambda: one.panel.state == "stopped" and page.locator("tbody tr").count())
    reach(page, "save run 1")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
        bridge.until(lambda: bridge.messages[-1]["do"] == "file")
    assert download.value.suggested_filename == "speculative-1.parquet"
    reach(page, "open run 1 in the player", "Shift+Tab")
    page.keyboard.press("Enter")
    bridge.until(lambda: one.panel.chosen == 1)
    everywhere(page, shoot, axe, "explore")


def test_a_whole_decode_is_announced_at_most_once_a_second(open_page):
    page = screen(open_page)
    one = Explorer(Slow(cycles=80), "town", "speculative", "Who is here?")
    bridge = Bridge(page, one.panel, "explore")
    page.evaluate(LISTEN)
    bridge.until(lambda: one.panel.state == "done" and one.panel.answer.get("run"))
    bridge.until(lambda: any("a row was added" in words for _, words in page.evaluate("window.heard")))
    page.wait_for_timeout(1200)
    times = [at for at, _ in page.evaluate("window.heard")]
    assert len(times) >= 3 and all(b - a > 900 for a, b in pairwise(times)), page.evaluate("window.heard")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, tokens in (("one", 12), ("two", 20)):
        build("speculative", seed=1, tokens=tokens).save(tmp_path / f"{name}.parquet")
    (tmp_path / "three.parquet").write_bytes(b"PAR1 and nothing else")
    return tmp_path


def test_traces_are_found_opened_and_compared_by_keyboard_alone(open_page, folder, axe, shoot):
    page = screen(open_page, reduced_motion="reduce")
    table = sv.runs(folder)
    bridge = Bridge(page, table.panel, "runs")
    everywhere(page, shoot, axe, "runs")
    reach(page, "Search the traces")
    page.keyboard.type("two")
    assert page.locator("tbody tr").count() == 1
    page.keyboard.press("Control+a")
    page.keyboard.press("Backspace")
    reach(page, "one.parquet")
    page.keyboard.press("Enter")
    bridge.until(lambda: table.panel.chosen == [0])
    for name in ("one", "two"):
        reach(page, f"compare {name}.parquet", "Shift+Tab" if name == "one" else "Tab")
        page.keyboard.press("Space")
    reach(page, "Differences", "Shift+Tab")
    page.keyboard.press("Enter")
    bridge.until(lambda: table.panel.chosen == [0, 2] or table.panel.error)
    assert not table.panel.error
    stops = dict(walked(page))
    stops.pop("", None)
    assert sorted(map(int, stops)) == page.evaluate(USABLE) and all(stops.values())


def test_a_trace_that_is_saved_keeps_the_focus_and_one_not_read_yet_its_mark(open_page, folder):
    page = screen(open_page)
    table = sv.runs(folder)
    table.receive("new.parquet", (folder / "one.parquet").read_bytes())
    bridge = Bridge(page, table.panel, "runs")
    page.get_by_role("button", name="Save", exact=True).focus()
    page.keyboard.press("Enter")
    bridge.until(lambda: (folder / "new.parquet").exists() and not table.panel.rows[-1]["uploaded"])
    assert page.evaluate("document.activeElement.textContent") == "new.parquet"
    mark = page.get_by_role("checkbox", name="compare two.parquet")
    mark.check()
    rows = table.panel.rows
    for later, marked in ((True, True), (False, False)):  # whether more rows follow
        table.panel.reading, table.panel.rows = later, rows[:1]
        table.panel.rows, table.panel.reading = rows, False
        bridge.carry()
        assert mark.is_checked() == marked


def test_the_button_of_a_section_shows_it_again(open_page, tmp_path, monkeypatch):
    shown: list[str] = []
    monkeypatch.setattr(App, "_show", lambda self, section: shown.append(section))
    page = screen(open_page)
    bridge = Bridge(page, App(Setting(str(tmp_path), None, str(tmp_path))).head, "app")
    for _ in range(2):
        page.get_by_role("button", name="Decode").click()
        bridge.carry()
    assert shown == ["Decode"] * 3


def test_every_bad_file_of_a_batch_is_named_and_hidden_marks_are_counted(open_page, folder):
    page = screen(open_page)
    table = sv.runs(folder)
    bridge = Bridge(page, table.panel, "runs")
    table.panel.limit = 1000
    bridge.carry()
    drop = lambda *sizes: page.locator("input[type=file]").set_input_files(
        [{"name": f"{n}.parquet", "mimeType": "", "buffer": bytes(n)} for n in sizes]
    )
    drop(10, 2000, 20)
    bridge.until(lambda: all(f"{n}.parquet" in page.locator(".error").text_content() for n in (10, 20, 2000)))
    drop(30)
    bridge.until(lambda: "30.parquet" in page.locator(".error").text_content())
    assert len(page.locator(".error").text_content().splitlines()) == 1
    page.get_by_role("button", name="one.parquet").click()
    bridge.until(lambda: table.panel.chosen == [0])
    assert page.get_by_role("alert").count() == 0
    page.get_by_role("checkbox", name="compare one.parquet").check()
    page.get_by_label("Search the traces").fill("two")
    page.get_by_role("button", name="1 marked").click()
    assert page.get_by_role("button", name="marked").count() == 0
    page.get_by_label("Search the traces").fill("")
    assert not page.get_by_role("checkbox", name="compare one.parquet").is_checked()


def test_the_player_s_commands_by_keyboard_alone(open_page, tmp_path, axe, shoot):
    page = open_page(offline=True, reduced_motion="reduce")
    page.goto(sv.open(sv.example("prompt_lookup")).to_html(tmp_path / "player.html").as_uri())
    page.locator(".sv.player .tree").wait_for()
    page.evaluate(LISTEN)
    faults: set[str] = set()
    commands: list[Callable[[], Any]] = [
        lambda: page.keyboard.press("x"), lambda: page.keyboard.press("w"), lambda: page.keyboard.press("+"),
        lambda: (page.keyboard.press("/"), page.keyboard.type("e"), page.keyboard.press("Enter")),
        lambda: (page.keyboard.press("Escape"), page.keyboard.press("0")),
    ]  # fmt: skip
    reach(page, "play (space)")
    before = page.locator(".where").inner_text()
    for command in commands:
        command()
        faults.update(axe(page, "body"))
    assert page.locator(".where").inner_text() != before
    with page.expect_download() as download:
        page.keyboard.press("v")
    assert download.value.suggested_filename.endswith(".svg")
    page.get_by_label("cycles per second").select_option(index=2)
    page.keyboard.press("Home")
    page.evaluate("window.heard.length = 0")
    page.locator(".sv.player").focus()
    page.keyboard.press("Space")
    page.wait_for_timeout(3500)
    page.keyboard.press("Space")
    times = [at for at, _ in page.evaluate("window.heard")]
    assert times and all(b - a > 900 for a, b in pairwise(times)), page.evaluate("window.heard")
    assert page.evaluate("document.getAnimations().length") == 0
    shoot(page, "everyone-player")
    assert not faults, "\n".join(sorted(faults))
