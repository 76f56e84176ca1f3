"""The player's page, opened from disk without a network: stepping by key and mouse, queries, predictions."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bridge import AGAIN, stop_clock
from town_runs import town_run

import specviz as sv
from specviz.trace import Recorder
from specviz.widgets.columns import CHUNK
from traces import build, cycles, metadata, piece

expect: Any = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)").expect

SEEN = """(root) => [".where", ".said", ".text"].map((name) => root.querySelector(name).innerText)
  .concat([...root.querySelectorAll("g.node:not([display=none])")]
    .map((g) => g.className.baseVal + g.textContent).join())"""
TEXT = """(n) => [...n.querySelectorAll(".t")].flatMap((t) => [...t.childNodes])
  .filter((c) => c.nodeType === 3).map((c) => c.data).join("")"""
BACKGROUND = "(n) => getComputedStyle(n).backgroundColor"


@pytest.fixture
def opened(open_page: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """``opened(trace, **context)``: the page of a trace, from disk and without a network."""

    def show(trace: Any, **context: Any) -> Any:
        page = open_page(offline=True, **context)
        path = trace.to_html(tmp_path / "page.html", force=True)
        page.goto(path.as_uri() + "#cycle=1")
        expect(page.locator(".sv.player .tree")).to_be_visible()
        page.locator(".sv.player").focus()
        return page

    return show


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def seen(page: Any) -> list[str]:
    """The visible state: position, explanation, text, marks of the draft."""
    return page.locator(".sv.player").evaluate(SEEN)


def test_keys_and_buttons_step(opened):
    trace = sv.open(sv.example("prompt_lookup")).select(prompt=0)
    page = opened(trace)
    last = int(trace.cycles["cycle"].iloc[-1])
    where = page.locator(".where")
    expect(where).to_have_text(f"cycle 1 / {last}")
    before = seen(page)
    press(page, "ArrowRight")
    assert all(a != b for a, b in zip(before, seen(page)))
    press(page, "ArrowLeft")
    assert seen(page) == before
    page.get_by_role("button", name="on (→)").click()
    expect(where).to_have_text(f"cycle 2 / {last}")
    press(page, "End")
    expect(where).to_have_text(f"cycle {last} / {last}")
    # the whole text is present, as in the trace
    text = page.locator(".player .text").evaluate(TEXT)
    assert text.removesuffix("■").strip() == trace.text.strip()
    press(page, "Home")
    expect(page.locator(".said")).to_contain_text("prefill")
    page.locator(".overview input").evaluate("(n) => { n.value = 3; n.dispatchEvent(new Event('input')); }")
    expect(where).to_have_text(f"cycle 3 / {last}")
    page.locator(".player .text .t").first.click()  # to the cycle that produced it
    expect(where).to_have_text(f"cycle 1 / {last}")


def test_substeps_hide_the_verdict_until_its_turn(opened):
    page = opened(build("speculative", tokens=30, hostile=False))
    press(page, "s", "ArrowRight")
    verdicts = page.locator("g.node.accepted:visible, g.node.rejected:visible, g.node.extra:visible")
    for phase, judged in (("draft", False), ("verify", True), ("commit", True)):
        expect(page.locator(".said")).to_contain_text(phase)
        assert (verdicts.count() > 0) == judged
        assert page.locator(".code .lit").count() > 0
        press(page, "ArrowRight")
    expect(page.locator(".where")).to_have_text(re.compile("cycle 3"))


def test_it_plays_and_stops(opened):
    page = opened(build("speculative", tokens=30))
    page.locator("select[aria-label='cycles per second']").select_option("16")
    page.locator(".sv.player").focus()
    stop_clock(page)
    press(page, " ")
    expect(page.get_by_role("button", name="pause (space)")).to_have_attribute("title", "pause (space)")
    page.clock.run_for(280)
    expect(page.locator(".where")).to_have_text(re.compile(r"cycle 5 /"))
    press(page, " ")
    expect(page.get_by_role("button", name="play (space)")).to_be_visible()
    page.clock.run_for(250)
    expect(page.locator(".where")).to_have_text(re.compile(r"cycle 5 /"))


def test_two_views_play_at_the_speed_of_one(opened):
    page = opened(build("speculative", tokens=60, hostile=False, cut=False))
    page.evaluate(AGAIN, "player")
    stop_clock(page)

    def plays(count: int) -> None:
        before = page.evaluate("specviz.get('cycle')")
        page.clock.run_for(1000)
        assert page.evaluate("specviz.get('cycle')") == before + count

    page.evaluate("specviz.set('speed', 2), specviz.set('playing', true)")  # as Python does
    plays(2)
    for view in (1, 0):
        for name, count in (("pause (space)", 0), ("play (space)", 2)):
            page.get_by_role("button", name=name).nth(view).click()
            plays(count)


GREEDY = (
    r"The target's own choice is (‘.*’ \(p = [\de.-]+\); this token is its \d+(st|nd|rd|th) "
    r"\(p = [\de.-]+\): rejected|this token too \(p = [\de.-]+\): accepted)"
)
BILD = (
    r"−ln p = [\de.-]+ (≤|>) α_RB = 2\.00|"
    r"Not sent: the drafter's confidence [\d.]+ is (below|not above) [\d.]+"
)


@pytest.mark.parametrize(("name", "said"), [("speculative", GREEDY), ("bild", BILD)])
def test_a_node_says_why(opened, name, said):
    page = opened(town_run(name).select(prompt=0))
    page.locator("g.node[data-i='0']").hover()
    expect(page.locator(".why")).to_have_text(re.compile(said))
    expect(page.locator(".tops .top")).not_to_have_count(0)
    press(page, "ArrowDown")
    assert page.evaluate("document.activeElement.dataset.i") is not None


def test_a_finger_is_told_why_too(opened):
    phone = {"has_touch": True, "is_mobile": True, "viewport": {"width": 390, "height": 844}}
    page = opened(build("speculative", tokens=30, hostile=False), **phone)
    said = set()
    for node in (0, 1):
        page.locator(f"g.node[data-i='{node}']").tap()
        expect(page.locator(f"g.node[data-i='{node}']")).to_have_class(re.compile(r"\blit\b"))
        said.add(page.locator(".why").inner_text())
    assert len(said) == 2


def test_sampling_says_u_and_the_ratio(opened):
    page = opened(build("speculative", temperature=1.0, tokens=30))
    page.locator("g.node[data-i='0']").hover()
    why = page.locator(".why").inner_text()
    pattern = r"u = ([\d.e-]+) [<≥] p/q = [\d.e-]+/[\d.e-]+ = ([\d.e-]+): (?:accepted|rejected).*"
    u, ratio = re.fullmatch(pattern, why).groups()
    assert ("accepted" in why) == (float(u) < float(ratio))


def test_predictions_are_scored(opened):
    trace = build("speculative", tokens=40, hostile=False, cut=False)
    page = opened(trace)
    page.evaluate("specviz.set('score', [5, 9])")  # as an earlier view left it
    press(page, "m")
    first = trace.nodes[trace.nodes["cycle"] == 1]
    expect(page.locator(".said")).to_contain_text("Which survive?")
    assert page.locator("g.node.accepted:visible, g.node.rejected:visible").count() == 0
    assert page.locator(".overview .kept").evaluate("(n) => getComputedStyle(n).display") == "none"
    press(page, "ArrowDown", "ArrowDown", "Enter")  # selecting the second node includes the first
    for i, pressed in enumerate(("true", "true", "false")):
        expect(page.locator(f"g.node[data-i='{i}']")).to_have_attribute("aria-pressed", pressed)
    press(page, "r")
    truth = (first["status"] == "accepted").tolist()
    right = sum(guess == real for guess, real in zip([True, True, False, False], truth))
    expect(page.locator(".score")).to_contain_text(f"Score: {right} of {len(truth)} nodes")
    assert page.evaluate("specviz.get('score')") == [5 + right, 9 + len(truth)]
    press(page, "ArrowRight")  # the next cycle, again without its verdict
    assert page.locator("g.node.accepted:visible, g.node.rejected:visible, g.node.extra:visible").count() == 0
    page.locator("g.node[data-i='0']").click()
    page.locator("g.node[data-i='0']").click()  # deselected
    expect(page.locator("g.node[data-i='0']")).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="reveal").click()
    expect(page.locator(".score")).to_contain_text("of 2 drafts entirely right")


def test_a_prediction_starts_without_the_verdict(opened):
    trace = build("speculative", tokens=40, hostile=False, cut=False)
    page = opened(trace)
    press(page, "m")
    nodes = trace.nodes[trace.nodes["status"] == "rejected"]
    assert nodes["node"].max() > 0
    for _ in range(nodes["cycle"].nunique()):
        press(page, "x")
        expect(page.locator("g.node.lit")).to_have_attribute("data-i", "0")  # not the rejected one
    page.locator(".overview input").evaluate("(n) => { n.value = 2; n.dispatchEvent(new Event('input')); }")
    press(page, "r", "ArrowRight")
    for row, phase in ((2, "commit"), (3, "draft")):
        page.locator(".overview input").evaluate(
            "(n, at) => { n.value = at; n.dispatchEvent(new Event('input')); }", row
        )
        expect(page.locator(".phases [aria-pressed=true]")).to_have_text(phase)


def test_the_keyboard_never_leaves_the_player(opened):
    page = opened(build("speculative", tokens=60, hostile=False, cut=False))
    focused = lambda selector: page.evaluate(f"document.activeElement.matches('{selector}')")
    press(page, "ArrowUp")
    assert focused("g.node")
    press(page, "Home")  # the prefill has no nodes
    assert focused(".sv.player")
    press(page, "ArrowRight", "m")
    page.get_by_role("button", name="reveal").focus()
    press(page, "Enter")
    assert focused(".sv.player") and page.get_by_role("button", name="reveal").is_disabled()
    for name in ("zoom into", "zoom out"):
        page.get_by_role("button", name=name).focus()
        press(page, "Enter", "Enter", "Enter", "Enter", "Enter")
        assert focused(".sv.player"), name
    press(page, "End", "?")
    assert focused(".overlay *")
    page = opened(build("speculative", tokens=400, hostile=False, cut=False))
    press(page, "End")
    page.locator(".earlier").focus()
    press(page, "Enter")
    assert focused(".player .text")


def test_the_list_of_keys_opens_in_view(opened):
    page = opened(build("speculative", tokens=40), viewport={"width": 390, "height": 500})
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    press(page, "?")
    page.wait_for_timeout(100)
    top = page.locator(".player .overlay").bounding_box()["y"]
    assert -1 <= top < 500


def test_words_stand_for_codes(opened):
    trace = build("speculative", tokens=40, hostile=False)
    page = opened(trace)
    row = trace.nodes[trace.nodes["status"] == "unjudged"].iloc[0]
    page.evaluate("(cycle) => { location.hash = `#cycle=${cycle}`; }", int(row["cycle"]))
    node = page.locator(f"g.node[data-i='{row['node']}']")
    expect(node).to_have_attribute("aria-label", re.compile(", not judged"))
    node.hover()
    expect(page.locator(".fate")).to_have_text("· not judged")
    page = opened(build("bild", tokens=60))
    stops = set()
    for _ in range(8):
        stops.add(page.locator(".tree header").inner_text().partition("stopped: ")[2].partition("\n")[0])
        press(page, "ArrowRight")
    assert stops - {""} <= {"uncertain", "length limit"} and len(stops) > 1


def test_the_targets_own_token_has_no_probability_of_a_draft(opened):
    trace = build("speculative", tokens=60, hostile=False, cut=False)
    page = opened(trace)
    rejects = trace.cycles[trace.cycles["judged"] > trace.cycles["accepted"]]["cycle"]
    for _ in range(len(rejects)):
        press(page, "x")
        page.locator("g.node.extra:visible").hover()
        expect(page.locator(".tops").first.locator(".top")).not_to_have_count(0)
        expect(page.locator(".tops").first.locator(".top.beyond")).to_have_count(0)


def test_a_rollback_that_never_happens_is_explained(opened):
    page = opened(
        build("bild", parameters={"fallback": 0.6, "rollback": float("inf"), "cap": 10}, hostile=False)
    )
    for _ in range(9):
        if page.locator("g.node.accepted:visible").count():
            break
        press(page, "ArrowRight")
    page.locator("g.node.accepted").first.hover()
    expect(page.locator(".why")).to_contain_text("≤ α_RB = ∞: kept")


def test_a_text_alone_claims_no_numbers(opened):
    page = opened(build("speculative", record=None, tokens=20))
    expect(page.locator(".cache")).to_be_hidden()
    expect(page.locator(".said")).to_contain_text("drafts and verdicts are not recorded")
    expect(page.locator(".tree header")).to_contain_text("not recorded")
    press(page, "Home")
    expect(page.locator(".said")).to_contain_text("an unrecorded number of tokens")


def test_hostile_tokens_are_text(opened):
    for method in ("tree", "bild"):
        page = opened(build(method, tokens=120, seed=5), dark=True)
        press(page, "m", "ArrowRight", "m")
        for _ in range(12):
            press(page, "ArrowRight", "ArrowDown")
        assert page.locator("main img, main b b, main script").count() == 0
        assert "\u202e" not in page.locator("#place").inner_text()


def test_probabilities_say_what_bent_them(opened):
    """At a temperature the candidates' probabilities are the model's own, and a verdict's are not."""
    pytest.importorskip("torch", reason="needs the run extra")

    class Echo(sv.Method):
        def draft(self, left: int) -> sv.Draft:
            return sv.Draft.chain(self.session.text[: min(4, left - 1)])

    for options, words in (({"temperature": 0.8, "top_k": 9}, "temperature 0.8, top-k 9"), ({}, "")):
        page = opened(sv.generate("town", "The cook saw", Echo, max_new_tokens=4, **options))
        headings = page.locator(".whys h4")
        before = f", before {words}" if words else ""
        expect(headings).to_have_text([f"the {who}'s candidates{before}" for who in ("drafter", "target")])
        sentence = page.locator("p.why")
        expect(sentence).to_contain_text(f"at {words}" if words else "The target's own choice is")
        number = page.locator(".top.own.beyond .number")
        expect(number).to_have_text("" if words else re.compile("[0-9]"))


def test_candidates_of_far_cycles_arrive(opened):
    recorder = Recorder(metadata("tree", prompts=9), piece=piece)
    for cycle in cycles("tree", prompts=9, tokens=40):
        recorder.add(cycle)
    trace = recorder.close()
    assert len(trace.cycles) > CHUNK
    page = opened(trace)
    page.locator("select[aria-label='prompt']").select_option("8")
    page.locator(".sv.player").focus()
    press(page, "ArrowRight")
    expect(page.locator(".tops .top")).not_to_have_count(0)
    press(page, "[")
    expect(page.locator("select[aria-label='prompt']")).to_have_value("7")


def test_every_method_and_an_empty_record(opened, tmp_path):
    for i, method in enumerate(("autoregressive", "tree", "bild")):
        build(method, path=tmp_path / f"t/{i}.parquet", record=None if method == "bild" else "judged")
    page = opened(sv.open(tmp_path / "t"))
    for name in ("autoregressive", "tree", "bild"):
        page.get_by_role("button", name=re.compile(f"^{name}")).click()
        expect(page.locator(".player > .head strong")).to_have_text(name)
        page.locator(".sv.player").focus()
        press(page, "End", "ArrowLeft", "m", "r", "m", "?", "Escape", "p", "p", "s", "ArrowLeft", "ArrowLeft")
        assert seen(page)[1]
    expect(page.locator(".sv.player")).to_contain_text("Only the text was recorded")


def test_a_page_is_small(tmp_path):
    trace = build("speculative", tokens=200)
    assert trace.to_html(tmp_path / "a.html").stat().st_size < 1_000_000


def test_themes(opened):
    trace = build("tree", tokens=20)
    pages = [opened(trace, dark=dark) for dark in (False, True)]
    colours = [page.locator(".sv.player").evaluate(BACKGROUND) for page in pages]
    assert colours == ["rgb(255, 255, 255)", "rgb(22, 22, 22)"]


def test_a_replayed_setting_says_that_it_is_no_run(opened):
    trace = sv.open(sv.example("prompt_lookup"))
    page = opened(sv.whatif(trace).prompt_lookup(draft_length=8).trace(draft_length=8))
    expect(page.locator(".player .note")).to_contain_text(
        f"A what-if, not a run: replayed from run {trace.run['run']}"
    )
    expect(opened(trace).locator(".player .note")).to_have_count(0)


def test_python_hears_where_the_view_stands(opened):
    trace = build("speculative", prompts=2, tokens=30, hostile=False)
    page = opened(trace)
    lengths = trace.cycles.groupby("prompt").size()
    page.evaluate("specviz.set('cycle', 999)")
    assert page.evaluate("specviz.get('cycle')") == lengths[0] - 1
    page.evaluate("specviz.set('cycle', 2), specviz.set('prompt', 1)")
    assert page.evaluate("[specviz.get('prompt'), specviz.get('cycle')]") == [1, 2]
    expect(page.locator(".where")).to_have_text(f"cycle 2 / {lengths[1] - 1}")
