"""A few damaged files of each format, the same ones each time. ``python -m tests.fuzz`` tries thousands."""

from __future__ import annotations

import pytest

from .formats import FORMATS
from .harness import fuzz

INPUTS = {"trace": 60, "partial": 60, "run": 40, "replay": 25, "plan": 80, "imports": 80, "model": 12,
          "returned": 25, "scores": 60, "adapter": 25}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_give_a_result_or_one_line(name):
    report = fuzz(name, INPUTS.get(name, 150))
    assert not report.crashes, f"{name}: {report}"
    assert report.refused > 3 or name == "card"  # damaged figures are left out of the card
    assert report.results + report.refused == INPUTS.get(name, 150)


ONCE = [
    ("partial", 65),  # a list of tokens without probabilities
    ("trace", 1722),  # tokens without positions
    ("trace", 3847),  # a cycle of tokens without a context length
    ("trace", 1593),  # a cycle without a context length
    ("trace", 1551),  # a signal without a name
    ("trace", 2996),  # a controller's value without its name
    ("run", 994),  # a plan without seeds, like a run without rows: nothing to break down
]


@pytest.mark.parametrize(("name", "number"), ONCE)
def test_what_once_ended_in_a_traceback(name, number):
    assert not (report := fuzz(name, 1, first=number)).crashes, report
