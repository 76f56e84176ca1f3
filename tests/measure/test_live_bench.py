"""The bench of live decoding measures the right quantities."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("anywidget", reason="needs the lab extra")
pytest.importorskip("playwright", reason="needs playwright (the test extra)")
pytest.importorskip("zmq", reason="needs jupyterlab (the test extra)")

from benchmarks import live, player

from specviz.models import load


@pytest.mark.skipif(not any(shutil.which(name) for name in player.BROWSERS), reason="no Chromium")
def test_it_pairs_plain_and_shown_decodes_and_draws_their_messages():
    report = live.bench(load("town"), max_new_tokens=8, rounds=1)
    assert [row["method"] for row in report.rows] == list(live.METHODS)
    assert all(row["plain"] > 0 and row["ratio"].median > 0 and row["race"].median > 0 for row in report.rows)
    assert len(report.bars) == 3 and report.bars[-1].value > 0
