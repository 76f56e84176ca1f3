"""An explanation's page in a real browser: its links open the worst cycles in the player."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import specviz
import traces


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_its_links_open_the_player_at_the_worst_cycles(open_page, tmp_path, shoot, dark):
    explained = specviz.explain(traces.build("unispec", prompts=3, tokens=40, seed=2).select(prompt=[1, 2]))
    there = open_page(dark=dark, offline=True)
    there.goto(explained.to_html(tmp_path / "why & how.html").as_uri())
    assert explained.sentence in there.locator("main").text_content()
    links = there.locator("li a")
    assert links.count() == len(explained.worst)
    shoot(there, f"explanation-{'dark' if dark else 'light'}")
    assert there.evaluate("document.documentElement.scrollWidth <= innerWidth")
    row = explained.worst.iloc[1]
    links.nth(1).click()
    there.wait_for_selector(".player")
    state = there.evaluate("[specviz.state.prompt, specviz.state.cycle]")
    assert state == [row["prompt"] - 1, row["cycle"]]
