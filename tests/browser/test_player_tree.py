"""Large trees in the player: they fit their lane, grow level by level, and show each node's source."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specviz as sv
from specviz.trace import Recorder
from traces import build, cycles, metadata

expect: Any = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)").expect
pytest.importorskip("anywidget", reason="needs the lab extra")

SIZES = {64: 0, 128: 2}  # tree size: seed
SMALL, LARGE = {"width": 1280, "height": 800}, {"width": 1920, "height": 1080}
SHOWN = "g.node[data-i]:not([display=none])"
# For each drawn node: its number, its class, and the centre of its box.
PLACES = """(svg) => [...svg.querySelectorAll("g.node[data-i]:not([display=none])")].map((g) => {
  const box = g.querySelector(".box").getBBox();
  return [+g.dataset.i, g.getAttribute("class"), Math.round(box.x), Math.round(2 * box.y + box.height) / 2];
})"""
MIDDLE = "(n) => Math.round(2 * n.getBBox().y + n.getBBox().height) / 2"
BOTTOM = "(n) => n.getBoundingClientRect().bottom"
OVERFLOW = "(n) => [n.scrollHeight - n.clientHeight, n.scrollWidth - n.clientWidth]"


@pytest.fixture(scope="module")
def traces() -> dict[int, Any]:
    return {n: build("unispec", nodes=n, seed=seed, tokens=60, hostile=False) for n, seed in SIZES.items()}


@pytest.fixture
def opened(open_page: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """``opened(trace, **context)``: the trace's page at its third cycle."""

    def show(trace: Any, **context: Any) -> Any:
        page = open_page(offline=True, **context)
        page.goto(trace.to_html(tmp_path / "page.html", force=True).as_uri() + "#cycle=1")
        expect(page.locator(".sv.player .tree")).to_be_visible()
        page.locator(".sv.player").focus()
        press(page, "ArrowRight", "ArrowRight")
        return page

    return show


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def drawn(page: Any) -> dict[int, tuple[str, int, float]]:
    return {i: (name, x, y) for i, name, x, y in page.locator(".tree > .scroll > svg").evaluate(PLACES)}


@pytest.mark.parametrize("nodes", [4, *SIZES])
def test_all_lanes_stand_on_one_screen(nodes, traces, opened, shoot):
    trace = traces.get(nodes) or build("speculative", tokens=40, hostile=False)
    for viewport, projector in ((SMALL, False), (LARGE, True)):
        page = opened(trace, viewport=viewport, dark=projector)
        if projector:
            press(page, "p")
        shoot(page, f"tree-{nodes}-{'projector-dark' if projector else 'light'}")
        for _ in range(3):
            press(page, "ArrowRight")
            for lane in (".tree", ".time", ".cache"):
                assert page.locator(lane).evaluate(BOTTOM) <= viewport["height"], lane
            assert page.locator(".signal[display=inline]").count() >= 2
            assert max(page.locator(".tree .scroll").evaluate(OVERFLOW)) <= 1
            assert page.locator(".tree .scroll").evaluate(BOTTOM) >= max(
                line.evaluate(BOTTOM) for line in page.locator(".signal[display=inline] .axis").all()
            )


@pytest.mark.parametrize("nodes", SIZES)
def test_the_text_goes_on_along_the_top(nodes, traces, opened):
    trace = traces[nodes]
    page = opened(trace)
    for cycle in (3, 4, 5, 6):
        own = trace.nodes[trace.nodes["cycle"] == cycle].reset_index(drop=True)
        found = drawn(page)
        assert set(found) == set(range(len(own) + 1)), "every node, and the target's token"
        path = [*own.index[own["status"] == "accepted"], len(own)]
        assert len({found[i][2] for i in path}) == 1, "in one line"
        assert found[path[0]][2] == page.locator(".node.root rect").evaluate(MIDDLE), "behind the root"
        assert all(found[i][2] > found[path[0]][2] for i in found if i not in path), "above all others"
        # one column per level, and no two nodes in one place
        levels = own.groupby("position").groups
        for level in levels.values():
            beside = [i for i in level if i not in path]
            assert len({found[i][1] for i in beside}) <= 1
            assert len({found[i][2] for i in beside}) == len(beside)
        # a rejection is reported only where the text continued, not among siblings of accepted nodes
        last = path[-2] if len(path) > 1 else -1
        refused = ((own["parent"] == last) & (own["status"] == "rejected")).any()
        assert (" and rejects " in page.locator(".said").inner_text()) == refused
        heads = page.locator(".heads text").all_text_contents()
        assert heads[1 : len(levels) + 1] == [f"{number} · {len(level)}" for number, level in levels.items()]
        press(page, "ArrowRight")


def test_a_small_tree_is_drawn_in_boxes(opened):
    page = opened(build("tree", tokens=40, hostile=False))
    assert page.locator(".spotted:visible").count() == 0
    assert page.locator(f"{SHOWN} .word").count() >= 12
    press(page, "z")  # the same, fitted or not
    assert page.locator(".spotted:visible").count() == 0


@pytest.mark.parametrize("nodes", SIZES)
def test_boxes_at_full_size_do_not_lie_over_each_other(traces, opened, nodes):
    page = opened(traces[nodes])
    press(page, "z", "ArrowRight")
    assert page.locator(f"{SHOWN}.unsent").count() or page.locator(f"{SHOWN}.below_budget").count()
    boxes = page.locator(f"{SHOWN} .box").evaluate_all(
        "(all) => all.map((box) => box.getBBox()).map((b) => [b.x, b.y, b.x + b.width, b.y + b.height])"
    )
    assert len(boxes) > nodes
    for i, (left, top, right, bottom) in enumerate(boxes):
        for west, north, east, south in boxes[:i]:
            assert right <= west or east <= left or bottom <= north or south <= top


def test_a_draft_grows_level_by_level(traces, opened, shoot):
    trace = traces[64]
    page = opened(trace)
    own = trace.nodes[trace.nodes["cycle"] == 4]
    said, shown = page.locator(".said"), page.locator(SHOWN)
    press(page, "g", "End", "ArrowLeft", "Home")
    for _ in range(3):  # prefill and three full cycles
        page.locator(".overview input").evaluate(
            "(n) => { n.value = 4; n.dispatchEvent(new Event('input')); }"
        )
    levels = own.groupby("position").size()
    for level, size in levels.items():
        expect(said).to_contain_text(f"level {level} of {len(levels)}: {size} token")
        assert shown.count() == levels[:level].sum()
        assert page.locator(".spot.below_budget[d^=M], .spot.unsent[d^=M]").count() == 0
        sources = own[own["position"] == level]["source"].value_counts()
        if sources.get("store"):
            expect(said).to_contain_text(f"{sources['store']} from the store")
        if level == 5:
            shoot(page, "tree-growth-level-5")
        press(page, "ArrowRight")
    cut = own["status"].value_counts()
    expect(said).to_contain_text(f"budget cut: the target reads 64 of {64 + cut['below_budget']}")
    assert page.locator(f"{SHOWN}.below_budget").count() == cut["below_budget"]
    assert page.locator(f"{SHOWN}.accepted, {SHOWN}.rejected").count() == 0
    shoot(page, "tree-growth-cut")
    press(page, "ArrowRight")
    expect(said).to_contain_text("verify")
    assert page.locator(f"{SHOWN}.accepted").count() == cut["accepted"]
    press(page, "ArrowLeft")  # back to the cut
    expect(said).to_contain_text("budget cut")
    # the same by the slider, without growth mode
    press(page, "g")
    page.locator(".growth input").focus()
    press(page, "Home")
    expect(said).to_contain_text("level 1 of")
    press(page, "ArrowRight")
    expect(said).to_contain_text("level 2 of")
    assert shown.count() == levels[:2].sum()


def test_a_node_says_where_it_comes_from(traces, opened):
    trace = traces[64]
    page = opened(trace)
    own = trace.nodes[trace.nodes["cycle"] == 3].reset_index(drop=True)
    why = page.locator(".why")
    names = {"ngram": "n-gram pool"}
    for status in ("accepted", "rejected", "unjudged", "below_budget"):
        row = own[own["status"] == status].iloc[0]
        page.locator(f"g.node[data-i='{row.name}']").dispatch_event("pointermove")
        expect(why).to_have_text(
            re.compile(
                rf"^From the {names.get(row.source, row.source)}, score [\d.]+, level {row.position}\. "
            )
        )
    text = why.inner_text()
    least, own_score = re.search(r"lowest of their scores is (0\.\d+); this one has (0\.\d+)", text).groups()
    sent = own[~own["status"].isin(["below_budget", "unsent"])]
    assert float(least) == pytest.approx(sent["score"].min(), rel=0.05) and float(own_score) <= float(least)
    legend = page.locator(".tree .legend")
    for word in ("over the budget", "n-gram pool", "store"):
        expect(legend).to_contain_text(word)


def test_words_come_where_one_looks(traces, opened, shoot):
    trace = traces[128]
    page = opened(trace)
    own = trace.nodes[trace.nodes["cycle"] == 3].reset_index(drop=True)
    tips = page.locator(".tips text[display=inline]")
    assert tips.count() == 0
    unjudged = own[(own["status"] == "unjudged") & (own["position"] == 4)]
    family = own[own["parent"] == unjudged.iloc[0]["parent"]]
    page.locator(f"g.node[data-i='{unjudged.index[0]}']").hover(force=True)
    shoot(page.locator(".tree"), "tree-128-hover")
    expect(page.locator(".tips text.lit[display=inline]")).to_have_count(1)
    assert tips.count() >= len(family)
    assert page.locator(".ring").get_attribute("d")
    page.mouse.move(2, 2)
    expect(tips).to_have_count(0)
    # by key: level by level, from the top
    page.locator(".sv.player").focus()
    press(page, "ArrowDown")
    assert "accepted" in page.evaluate("document.activeElement.getAttribute('class')")


def test_predict_mode_gives_no_verdict_away(traces, opened):
    page = opened(traces[64])
    straight = drawn(page)
    press(page, "m")
    expect(page.locator(".said")).to_contain_text("Which survive?")
    own = traces[64].nodes
    row = int(re.search(r"\d+", page.locator(".where").inner_text())[0])
    own = own[own["cycle"] == row].reset_index(drop=True)
    found = drawn(page)
    assert straight and set(found) == set(own.index), "the target's token is not there yet"
    for _, level in own[~own["status"].isin(["below_budget", "unsent"])].groupby(["parent"]):
        rows = [found[i][2] for i in level.index]
        assert rows == sorted(rows), "siblings stand in the draft's own order"
    assert page.locator(f"{SHOWN}.accepted, {SHOWN}.rejected, {SHOWN}.extra").count() == 0


def test_predict_mode_draws_a_draft_that_ends_the_text(open_page, tmp_path):
    """Accepted down to its deepest level, with no token of the target after it."""
    pytest.importorskip("torch", reason="needs the run extra")
    trace = sv.generate(
        "town", ["The doctor bought a red bicycle."], "eagle", max_new_tokens=24, record="all"
    )
    last = int(trace.cycles["cycle"].max())
    own = trace.nodes[trace.nodes["cycle"] == last]
    assert own["parent"].duplicated().any()
    assert own[own["status"] == "accepted"]["position"].max() == own["position"].max()
    page = open_page(offline=True)
    page.goto(sv.player(trace, cycle=last, predict=True).to_html(tmp_path / "page.html").as_uri())
    expect(page.locator(".said")).to_contain_text("Which survive?")
    assert set(drawn(page)) == set(range(len(own)))
    node = page.locator("g.node[data-i='0']")
    node.focus()
    press(page, " ")
    expect(node).to_have_attribute("aria-pressed", "true")
    expect(page.locator("button[aria-label='play (space)']")).to_be_visible()  # it is not playing


def test_the_legend_names_only_signals_that_the_cycle_has(opened):
    for trace, there in ((sv.open(sv.example("prompt_lookup")), False), (build("tree", hostile=False), True)):
        legend = opened(trace).locator(".tree .legend")
        expect(legend).to_contain_text("rejected")
        assert ("drafter's" in legend.inner_text()) == there


def test_more_nodes_than_can_be_drawn(opened):
    recorder = Recorder(metadata("tree"), piece=lambda token: b" t%d" % token)
    made = cycles("tree", tokens=40, hostile=False)
    n = 900
    for cycle in made[:6]:
        if cycle["cycle"] == 3:
            lists = {k: list(v)[:1] * n for k, v in cycle.items() if k.startswith("node_") and v is not None}
            cycle |= lists | {"node_parent": [-1] * n, "node_token": list(range(2, n + 2))}
            cycle["node_status"] = ["rejected"] * 12 + ["below_budget"] * (n - 12)
            cycle["node_top_token"] = cycle["node_top_p"] = None
            cycle["out_token"], cycle["out_origin"] = cycle["out_token"][-1:], ["correction"]
            for name in ("out_position", "out_p"):
                cycle[name] = list(cycle[name])[:1]
            cycle["pred_node"], cycle["pred_entropy"] = [-1], [1.0]
            cycle["pred_top_token"], cycle["pred_top_p"] = [2, 3, 4], [0.5, 0.3, 0.1]
        recorder.add(cycle)
    page = opened(recorder.close())
    expect(page.locator(".tree header")).to_contain_text("500 of the cut nodes are not drawn")
    assert page.locator(SHOWN).count() == 401  # including the target's token


VSCODE = {
    "vscode-light": ("#ffffff", "#3b3b3b", "rgb(255, 255, 255)"),
    "vscode-dark": ("#1f1f1f", "#cccccc", "rgb(31, 31, 31)"),
    "vscode-high-contrast": ("#000000", "#ffffff", "rgb(0, 0, 0)"),
    "vscode-high-contrast-light vscode-high-contrast": ("#ffffff", "#292929", "rgb(255, 255, 255)"),
}


def test_vscode_themes(traces, opened, shoot):
    # an isolated page would keep the host's styles out
    page = opened(traces[64], viewport={"width": 1100, "height": 900}, bypass_csp=True)
    player = page.locator(".sv.player")
    for name, (back, fore, wanted) in VSCODE.items():
        # ipywidgets loads JupyterLab's light variables
        page.add_style_tag(
            content=f":root{{--jp-layout-color0:white;--jp-content-font-color1:#000;"
            f"--vscode-editor-background:{back};--vscode-editor-foreground:{fore};"
            f"--vscode-contrastBorder:#6fc3df}}"
        )
        page.evaluate("(name) => { document.body.className = name; }", name)
        expect(player).to_have_css("background-color", wanted)
        expect(player).to_have_class(re.compile("dark")) if "#f" not in back else None
        line = page.locator(".tree").evaluate("(n) => getComputedStyle(n).borderTopColor")
        assert (line == "rgb(111, 195, 223)") == ("contrast" in name)
        shoot(page, f"tree-{name.split()[0]}")


def test_right_to_left_tokens_keep_the_sentence_in_order(opened, shoot):
    words = ["", "", " שלום", " עולם", "ים", " hello", " السلام", " كتاب", "؟", " 3.5", " (GPU)", " ספר"]
    recorder = Recorder(metadata("speculative"), piece=lambda t: words[t % len(words)].encode())
    for cycle in cycles("speculative", tokens=40, seed=4, hostile=False):
        recorder.add(cycle)
    page = opened(recorder.close())
    said = page.locator(".said").inner_text()
    assert said.count("‘\u2068") == said.count("\u2069’") > 0
    assert said.count("‘") == said.count("‘\u2068")
    shoot(page, "player-right-to-left")
