"""JupyterLab in use: a walkthrough run to its end, each widget by mouse and by key."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

BOOKS = Path(__file__).parents[2] / "notebooks"
api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
pytest.importorskip("anywidget", reason="needs the lab extra")
expect = api.expect

expect.set_options(timeout=60_000)


def step_player(page: Any, player: Any) -> None:
    """Step forward and back by key and by mouse, and check that the display follows."""
    where, said, text = player.locator(".where"), player.locator(".said"), player.locator(".text .t")
    player.focus()
    page.keyboard.press("Home")
    expect(where).to_have_text(re.compile(r"cycle 0 / \d+"))
    expect(said).to_contain_text("prefill")
    assert text.count() == 0
    page.keyboard.press("ArrowRight")
    expect(where).to_have_text(re.compile(r"cycle 1 / \d+"))
    first = text.count()
    assert first > 0
    player.get_by_role("button", name="on (→)").click()
    expect(where).to_have_text(re.compile(r"cycle 2 / \d+"))
    assert text.count() > first
    before = said.inner_text()
    text.first.click()  # the token leads to the cycle that produced it
    expect(where).to_have_text(re.compile(r"cycle 1 / \d+"))
    assert said.inner_text() != before
    page.keyboard.press("End")
    expect(said).to_contain_text("the text ends")


def test_walkthrough_04(run_notebook, open_page, lab, shoot):
    page = run_notebook(BOOKS / "04_player.ipynb")
    players, race = page.locator(".sv.player"), page.locator(".sv.race")
    expect(players).to_have_count(3)
    expect(race).to_have_count(1)
    cells = page.locator(".jp-Notebook .jp-Cell").count()

    for number in (0, 2):
        step_player(page, players.nth(number))
        shoot(players.nth(number), f"lab-light-player-{number}")

    # A node explains its verdict; the pointer and the keys select it.
    player = players.first
    player.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    player.locator("g.node[data-i='0']").hover()
    word = player.locator(".whys .word")
    first = word.inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(word).not_to_have_text(first)
    expect(player.locator(".why")).to_contain_text(re.compile(r"p = |Not judged|Bonus|Correction"))

    # Predict mode: nothing is revealed before the reader has predicted it.
    guess = players.nth(1)
    guess.focus()
    expect(guess.locator(".said")).to_contain_text("Which survive?")
    assert guess.locator("g.node.accepted:visible, g.node.rejected:visible").count() == 0
    guess.locator("g.node[data-i='0']").click()
    expect(guess.locator("g.node[data-i='0']")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("r")
    expect(guess.locator(".score")).to_contain_text(re.compile(r"Score: \d+ of \d+ nodes"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    guess.get_by_role("button", name="reveal").click()
    expect(guess.locator(".score")).to_contain_text("drafts")
    shoot(guess, "lab-light-predict")

    # The race, by key and by mouse.
    clock = race.locator(".clock")
    race.focus()
    page.keyboard.press("End")
    expect(race.locator(".leader")).to_contain_text("finished first")
    done = clock.inner_text()
    shoot(race, "lab-light-race")
    page.keyboard.press("Home")
    expect(clock).not_to_have_text(done)
    for _ in range(5):  # three prefills come first, then tokens
        race.get_by_role("button", name="next cycle (→)").click()
    expect(race.locator(".cell")).not_to_have_count(0)

    # The widgets' keys must not trigger notebook shortcuts: `m` makes a cell Markdown, `x` cuts it.
    player.focus()
    for key in ("m", "m", "x", "Enter", "?", "Escape"):
        page.keyboard.press(key)
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    assert page.locator(".jp-Notebook.jp-mod-commandMode, .jp-Notebook.jp-mod-editMode").count() == 1

    # The file written by the last cell opens from disk, without a server or a network.
    file = lab[2] / "decode.html"
    assert file.stat().st_size < 1_000_000
    offline = open_page(offline=True)
    offline.goto(file.as_uri())
    step_player(offline, offline.locator(".sv.player"))


# Such a short draft takes several cycles, however good the drafter is.
EXPLORER = """
import specviz as sv
sv.explore("speculative", "town", "Translate into German: The doctor bought a red bicycle in the old market.",
           draft="town-draft", draft_length=1, max_new_tokens=12)
"""


LIVE = """
import specviz as sv
sv.live("town", k=2, max_new_tokens=32)
"""


def notebook(path: Path, *cells: str) -> Path:
    """A notebook with these cells."""
    nbformat = pytest.importorskip("nbformat", reason="needs jupyterlab (the test extra)")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, path)
    return path


@pytest.fixture(params=[EXPLORER], ids=["explorer"])
def explorer(request, tmp_path):
    """A notebook with one cell."""
    if find_spec("torch") is None:
        pytest.skip("a decode needs torch (the test extra)")
    return notebook(tmp_path / "explorer.ipynb", request.param)


def decode(page: Any, panel: Any) -> None:
    """Move a slider by key and check that the line of code follows, a decode runs and its row appears."""
    rows = panel.locator("tbody tr")
    expect(rows).not_to_have_count(0)  # it starts with a decode
    before = rows.count()
    code = panel.locator("code.code")
    line = code.inner_text()
    slider = panel.locator("input[type=range]").first
    slider.focus()
    slider.press("ArrowRight")
    expect(code).not_to_have_text(line)
    panel.get_by_role("button", name="Decode").first.click()
    expect(rows).to_have_count(before + 1)
    expect(rows.last).to_contain_text(panel.locator("input[type=number]").first.input_value())


def test_the_explorer_decodes(run_notebook, explorer, shoot, axe):
    page = run_notebook(explorer, dark=True)
    panel = page.locator(".sv.explore")
    expect(panel).to_have_class(re.compile(r"\bdark\b"))  # the theme is the notebook's
    decode(page, panel)
    decode(page, panel)
    shoot(panel, "lab-dark-explorer")
    expect(panel.locator(".growing .t").first).to_be_visible()
    assert "draft_length=3" in panel.locator("code.code").inner_text()
    panel.locator("tbody tr").last.get_by_role("button", name="Player").click()
    expect(page.locator(".sv.player")).to_be_in_viewport(ratio=0.3)
    step_player(page, page.locator(".sv.player"))
    panel.get_by_role("button", name="Decode without drafts").click()
    expect(panel.locator("tbody tr")).to_have_count(4)
    panel.get_by_role("button", name="Replay all results").click()
    race = page.locator(".sv.race")
    race.focus()
    page.keyboard.press("End")
    expect(race.locator(".leader")).to_contain_text("finished first")
    shoot(page, "lab-dark-explorer-race")
    for view in (".sv.explore", ".sv.race"):  # in the notebook's dark colours
        assert not axe(page, view)


RACE = """
import specviz as sv
sv.race(live=True, model="town", prompt="Translate into German: Tom was tired.", max_new_tokens=12)
"""


@pytest.mark.parametrize("explorer", [RACE], ids=["race"], indirect=True)
def test_a_race_runs_live_and_can_be_played_again(run_notebook, explorer, shoot, axe):
    page = run_notebook(explorer)
    panel = page.locator(".sv.live_race")
    expect(panel.locator(".leader")).to_contain_text("finished first")
    expect(panel.locator(".column")).to_have_count(2)
    again = page.locator(".sv.race")
    expect(again).to_be_visible()
    shoot(page, "lab-live-race")
    box = panel.get_by_role("textbox", name="prompt")
    box.fill("Translate into German: The cat slept.")
    box.press("ControlOrMeta+Enter")
    expect(panel.locator(".growing").first).to_contain_text("Katze")
    assert not axe(page, ".sv.live_race")


@pytest.mark.parametrize("explorer", [LIVE], ids=["live"], indirect=True)
def test_a_translation_appears_while_one_types(run_notebook, explorer, shoot, axe):
    page = run_notebook(explorer)
    view = page.locator(".sv.live")
    box, out, told = view.locator("textarea"), view.locator(".out"), view.locator(".figures")
    box.click()
    box.press_sequentially("Tom reads ", delay=20)
    expect(out).to_contain_text("Tom")
    expect(out.locator(".mask")).to_be_visible()
    box.press_sequentially("a book.", delay=20)
    expect(out).to_have_text(re.compile(r"^Tom liest ein ▒▒$"))  # a pause also sends the last word
    assert box.input_value() == "Tom reads a book."
    expect(told).to_contain_text("cache rows kept")
    updates = int(told.locator("div", has_text="updates").locator("b").last.inner_text())
    assert updates >= 2
    shoot(view, "lab-live")
    view.get_by_role("button", name="Done").click()
    expect(out).to_have_text("Tom liest ein Buch.")
    box.press("Escape")
    expect(out).to_have_text("")
    box.fill("The cat sleeps in the old house near the river.")
    box.press("ControlOrMeta+Enter")
    expect(view.get_by_role("button", name="Type it")).to_be_visible()
    expect(out).to_contain_text("Die Katze")
    shoot(view, "lab-live-typed")
    assert not axe(page, ".sv.live")


RIBBON = """
import specviz as sv
heard = sv.streams.fixed_lag("The cook went to the village. She was tired.", 2)
sv.flicker(sv.generate(sv.load("town-translator"), heard, "retranslate", target_language="German"))
"""
CELLS = """(ribbon) => [...ribbon.querySelectorAll("tbody tr")].map((row) => ({
    row: getComputedStyle(row).backgroundColor,
    cells: [...row.querySelectorAll("td, th")].map((cell) => {
        const style = getComputedStyle(cell);
        return [style.textAlign, style.verticalAlign, style.backgroundColor];
    }),
}))"""
STATIC = """
import specviz as sv
from IPython.display import HTML, display
from specviz.view import static
trace = sv.open(sv.example("prompt_lookup"))
table = HTML(f'<div class="specviz"><style>{static.style()}</style>{static.table(trace.summary())}</div>')
parts = [sv.view.examples({"lookup": trace}, which=[0]), table]
"""
LAYOUT = """(tables) => tables.map((table) => {
  const style = (node, ...names) => names.map((name) => getComputedStyle(node)[name]);
  return [style(table, "tableLayout", "fontSize", "marginTop", "borderTopStyle"),
    [...table.rows].map((row) => style(row, "backgroundColor")),
    [...table.querySelectorAll("th, td")].map((cell) => style(cell, "textAlign", "verticalAlign",
      "backgroundColor", "paddingTop", "paddingLeft", "whiteSpace", "fontSize", "lineHeight", "fontWeight",
      "borderTopStyle", "borderBottomStyle", "maxWidth"))];
})"""
FIGURES = """
import matplotlib.pyplot as plt
import specviz as sv
tree = sv.open(sv.example("unispec"))
fig, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
sv.view.acceptance_by_score(tree, ax=axes[0])
sv.view.right_by(tree, ax=axes[1]);
"""
OWN = """
import specviz as sv
sv.view.draft_tree(sv.open(sv.example("unispec")), 12)
"""
# The colours of a picture's corner and of its darkest and lightest pixels, as rendered by the page.
LIT = """async (img) => {
    await img.decode();
    const sheet = new OffscreenCanvas(img.naturalWidth, img.naturalHeight), pen = sheet.getContext("2d");
    pen.filter = getComputedStyle(img).filter;
    pen.drawImage(img, 0, 0);
    const { data } = pen.getImageData(0, 0, sheet.width, sheet.height);
    const light = [];
    for (let i = 0; i < data.length; i += 4) light.push(data[i] + data[i + 1] + data[i + 2]);
    const least = light.reduce((x, y) => Math.min(x, y)), most = light.reduce((x, y) => Math.max(x, y));
    return [light[0] / 3, least / 3, most / 3];
}"""


def test_outputs_keep_their_look_in_both_themes(run_notebook, set_theme, open_page, tmp_path, shoot):
    """Figures follow the theme; JupyterLab's styles change no cell of a ribbon or a static table."""
    codes = OWN, FIGURES, RIBBON, f"{STATIC}display(*parts)"  # a later view must not change a ribbon
    page = run_notebook(notebook(tmp_path / "static.ipynb", *codes))
    cells = page.locator(".jp-CodeCell")
    own, given, flicker, views = (cells.nth(i).locator(".jp-OutputArea-output") for i in range(len(codes)))
    for dark in (False, True):
        set_theme(page, dark)
        shade = "dark" if dark else "light"
        for name, outputs in (("own", own), ("given", given)):  # a picture once, without a repr
            expect(outputs).to_have_count(1)
            picture = outputs.locator("img.specviz-figure")
            expect(picture).to_be_visible()
            assert picture.get_attribute("alt")
            ground, least, most = picture.evaluate(LIT)
            wanted = (ground < 30 and most > 200) if dark else (ground == 255 and least < 60)
            assert wanted, (name, ground, least, most)
            shoot(outputs, f"lab-{shade}-figure-{name}")
        # JupyterLab right-aligns table cells and stripes table rows, but must not do so in a ribbon.
        ribbon, clear = flicker.locator(".ribbon").first, "rgba(0, 0, 0, 0)"
        rows = ribbon.evaluate(CELLS)
        assert len(rows) > 3
        shoot(ribbon, f"lab-{shade}-ribbon")
        for row in rows:
            assert row["row"] == clear
            assert {tuple(cell) for cell in row["cells"]} <= {("left", "top", clear), ("start", "top", clear)}
        if not dark:  # each cell of a table looks as on a page without JupyterLab's styles
            expect(views.locator(".specviz")).to_have_count(2)
            shoot(views.locator(".specviz").first, "lab-examples")
            shoot(views.locator(".specviz").last, "lab-table")
            inside = views.locator(".specviz table").evaluate_all(LAYOUT)
            scope: dict[str, Any] = {}
            exec(STATIC, scope)  # the notebook's views, on a plain page
            plain = open_page()
            plain.set_content("".join(part._repr_html_() for part in scope["parts"]))
            outside = plain.locator("table").evaluate_all(LAYOUT)
            assert len(inside) == 2 and sum(len(cells) for *_, cells in inside) > 20
            assert inside == outside


def test_a_slider_of_a_walkthrough_asks_again(run_notebook, shoot):
    """Walkthrough 05 answers for another draft length and n-gram, by key, without a model."""
    page = run_notebook(BOOKS / "05_what_if.ipynb")
    control = page.locator(".widget-interact")
    expect(control).to_have_count(1)
    answer = control.locator(".jp-OutputArea-output")
    expect(answer).to_contain_text(re.compile(r"τ \d\.\d+ .* drafted tokens accepted"))
    for place in (0, 1):
        before = answer.inner_text()
        handle = control.locator(".widget-slider [role=slider], .widget-slider .noUi-handle").nth(place)
        handle.focus()
        handle.press("ArrowLeft")
        handle.press("ArrowLeft")
        expect(answer).not_to_have_text(before)
        expect(answer).to_contain_text("drafted tokens accepted")
    shoot(control, "lab-light-what-if")
