"""The explorer notebook as a page without code, under Voila."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

BOOK = Path(__file__).parents[2] / "notebooks/explorer.ipynb"
# Voila's own template requests these for icons; the page works without them.
ICONS = (
    "https://cdn.jsdelivr.net/npm/@fortawesome/fontawesome-free@%5E5/css/all.min.css",
    "https://cdn.jsdelivr.net/npm/@fortawesome/fontawesome-free@%5E5/css/v4-shims.min.css",
)
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="a decode needs torch (the test extra)")
api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
expect = api.expect
expect.set_options(timeout=60_000)


def test_the_explorer_is_a_page(serve_page, open_page, shoot, axe, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))  # nothing is downloaded there
    page = open_page(allowed=ICONS)
    page.goto(serve_page(BOOK))
    panel = page.locator(".sv.explore")
    expect(panel).to_be_visible()
    assert page.locator(".jp-CodeMirrorEditor:visible, .cm-editor:visible").count() == 0, "no code on a page"
    expect(panel.locator("tbody tr")).to_have_count(1)  # it starts with a decode
    expect(page.locator(".sv.live_race .leader")).to_contain_text("finished first")
    code = panel.locator("code.code")
    line = code.inner_text()
    panel.locator("input[type=range]").first.press("ArrowRight")
    expect(code).not_to_have_text(line)
    panel.get_by_role("button", name="Decode").first.click()
    expect(panel.locator("tbody tr")).to_have_count(2)
    panel.get_by_role("button", name="Player").first.click()
    player = page.locator(".sv.player")
    player.focus()
    where = player.locator(".where")
    page.keyboard.press("End")
    last = where.inner_text()
    player.get_by_role("button", name="back (←)").click()
    expect(where).not_to_have_text(last)
    shoot(page, "voila")
    assert not axe(page, ".sv.explore")
