"""Accessibility of the pages: axe-core reports no serious fault, light and dark, in every state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from town_runs import town_run

import specviz as sv
from traces import build

pytest.importorskip("anywidget", reason="needs the lab extra")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    runs = [town_run(name).select(prompt=0) for name in ("autoregressive", "speculative", "bild")]
    for run in runs[1:]:
        run.to_html(folder / f"{run.run['method']}.html")
    build("unispec", tokens=20, seed=3, nodes=24).to_html(folder / "tree.html")
    sv.race(runs).to_html(folder / "race.html")
    return folder


def states(page: Any, view: str) -> list[tuple[str, Callable[[], Any]]]:
    """A reader's actions on a view, each with a name for the resulting picture."""
    press = page.keyboard.press
    if view == "race":
        return [
            ("middle", lambda: [press("ArrowRight") for _ in range(12)]),
            ("finish", lambda: press("End")),
            ("keys", lambda: press("?")),
        ]
    if view == "tree":
        return [
            ("cycle", lambda: [press("ArrowRight"), press("ArrowDown")]),
            ("growth", lambda: [press("g"), *(press("ArrowRight") for _ in range(12))]),
        ]
    if view == "bild":
        return [("cycle", lambda: [press("ArrowRight") for _ in range(3)])]
    return [
        ("cycle", lambda: [press("ArrowRight") for _ in range(4)]),
        ("draft", lambda: [press("Shift+ArrowLeft") for _ in range(2)]),
        ("predict", lambda: [press("m"), press("ArrowRight")]),
        ("projector", lambda: [press("m"), press("p")]),
        ("keys", lambda: [press("p"), press("?")]),
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", ["speculative", "bild", "tree", "race"])
def test_no_serious_violation(view, dark, pages, open_page, axe, shoot):
    page = open_page(dark, offline=True, reduced_motion="reduce")
    page.goto((pages / f"{view}.html").as_uri())
    root = ".sv.race" if view == "race" else ".sv.player"
    page.locator(root).focus()
    faults = set()
    for name, reach in states(page, view):
        reach()
        shoot(page, f"{view}-{'dark' if dark else 'light'}-{name}")
        faults.update(axe(page, "body"))
    assert not faults, "\n".join(sorted(faults))


def test_a_narrow_page_does_not_scroll_sideways(pages, open_page, shoot):
    for view in ("speculative", "tree", "race"):
        page = open_page(offline=True)
        page.set_viewport_size({"width": 420, "height": 900})
        page.goto((pages / f"{view}.html").as_uri())
        page.locator(".sv.race, .sv.player").focus()
        page.keyboard.press("End")
        shoot(page, f"{view}-narrow")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
