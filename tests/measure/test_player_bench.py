"""The player's bench measures in a browser, and reports in one line if something is missing."""

from __future__ import annotations

import shutil
import sys

import pytest

pytest.importorskip("anywidget", reason="needs the lab extra")

from benchmarks import player

from specviz.errors import SpecvizError


def test_a_browser_or_playwright_is_missing(monkeypatch):
    pytest.importorskip("playwright", reason="needs playwright (the test extra)")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SpecvizError, match="none is on the PATH: install one") as told:
        player.bench()
    assert "\n" not in str(told.value)
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(SpecvizError, match="pip install playwright"):
        player.bench()


def test_it_measures_trees_and_a_page():
    pytest.importorskip("playwright", reason="needs playwright (the test extra)")
    if not any(shutil.which(name) for name in player.BROWSERS):
        pytest.skip("no Chromium")
    report = player.bench(number=40, max_new_tokens=8, rounds=2)
    assert [(row["cycles"], row["nodes"]) for row in report.rows] == [(40, 8), (4, 16)]
    assert all(row["median"] > 0 and row["opened"] > 0 for row in report.rows)
    assert [bar.name.split(",")[0] for bar in report.bars] == [
        "first send", "open", "median step", "page of 200 tokens", "scripts and styles",
        "a later view's",
    ]  # fmt: skip


def test_its_trees_are_what_they_should_be():
    trace = player.synthetic(4, 64)
    nodes = trace.nodes
    assert trace.cycles["depth"].eq(10).all() and trace.cycles["drafted"].eq(64).all()
    assert set(nodes["source"]) == set(player.SOURCES) and nodes["score"].notna().all()
    assert (nodes["position"] >= 1).all() and trace.cycles["end"].iloc[-1] == "length"
    assert player.synthetic(200, 4, tokens=30).cycles["emitted"].sum() >= 30
