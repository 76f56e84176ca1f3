"""A few damaged files of each format; the same ones each time. ``python -m tests.fuzz`` tries thousands."""

from __future__ import annotations

import pytest

from .formats import FORMATS
from .harness import fuzz

INPUTS = {"trace": 60, "partial": 60, "run": 60, "replay": 25, "plan": 80, "model": 25}


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_a_result_or_one_line(name):
    report = fuzz(name, INPUTS.get(name, 150))
    assert not report.crashes, f"{name}: {report}"
    assert report.refused > 3
    assert report.results + report.refused == INPUTS.get(name, 150)
