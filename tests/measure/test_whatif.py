"""The bench of what-ifs compares whole cycles with reruns, and reports differences."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks import whatif

from specviz.errors import ParameterError
from specviz.models import load
from specviz.whatifs import canvases as replayed
from specviz.whatifs import question

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import canvases

ENTRIES = [
    {"turns": ["Hello there", "And now?"], "kind": "conversation"},
    {"prompt": "One two three", "kind": "counting"},
]


@pytest.fixture(scope="module")
def pair(folders):
    return load(folders.target), load(folders.draft)


def test_it_holds_on_a_tiny_pair(pair):
    done = []
    report = whatif.bench(
        pair[0], [pair[1]], ENTRIES, number=3, max_new_tokens=24, tick=lambda *now: done.append(now)
    )
    assert len(report.rows) == len(done) == 30
    assert any(row["width"] for row in report.rows if row["question"] == "short tails")
    for row in report.rows:
        assert row["equal"] == row["inside"] == 1, row
    assert {row["question"] for row in report.rows} == set(whatif.QUESTIONS)
    assert report.as_dict()["rows"][0]["time"] is not None
    assert any("Median error of the modelled time" in note for note in report.notes)
    names = [bar.name for bar in report.bars if not bar.held]
    assert all("width" in name or "told" in name for name in names)  # these mean nothing with random weights


@pytest.mark.parametrize("broken", ["accepted", "drafted_high"])
def test_it_sees_what_is_wrong(pair, monkeypatch, broken):
    real = question.WhatIf._replay

    def planted(self, *given):
        """Change one cycle of one text by one."""
        walks = real(self, *given)
        steps = walks[1].steps
        steps[0] = steps[0]._replace(**{broken: getattr(steps[0], broken) + 1})
        return walks

    monkeypatch.setattr(question.WhatIf, "_replay", planted)
    some = whatif.QUESTIONS["draft length"]
    monkeypatch.setattr(whatif, "QUESTIONS", {"draft length": (*some[:3], some[3][:1])})
    report = whatif.bench(pair[0], [pair[1]], ENTRIES, number=3, max_new_tokens=8)
    (row,) = report.rows
    if broken == "accepted":
        assert row["equal"] == pytest.approx(2 / 3)
        assert not report.held
    else:
        assert row["width"] > 0  # an exact answer becomes a bounded one


def test_prompts():
    assert whatif.enough(ENTRIES, 2) == ["Hello there", "And now?"]
    many = whatif.enough(ENTRIES, 8)
    assert len(set(many)) == len(many) == 8
    assert many[3] == "Hello there\nAnd now?"
    assert whatif.enough([*ENTRIES, ENTRIES[0]], 9) == whatif.enough(ENTRIES, 9)
    for prompt in ("alone", [1, 2]):
        with pytest.raises(ParameterError, match="there are 1 prompts, and 2 are wanted"):
            whatif.enough([{"prompt": prompt}] * 2, 2)
    with pytest.raises(ParameterError, match="there are 9 prompts, and 10 are wanted"):
        whatif.enough(ENTRIES, 10)
    with pytest.raises(ParameterError, match="pass --draft"):
        whatif.bench(None, [], ENTRIES)


def test_canvases_against_reruns(monkeypatch):
    model = canvases.tiny(3, 1, eos=(3, 21))
    entries = [{"prompt": [1, 2, 8]}, {"prompt": [14, 2, 30, 31, 8]}, {"prompt": [9, 7]}]
    monkeypatch.setattr(whatif, "CHAINS", whatif.CHAINS[2:4])
    real, seen = replayed.ssd, []

    def planted(text, *setting, **more):
        """Change one drafted token of the second text."""
        walk = real(text, *setting, **more)
        seen.append(text.prompt)
        if text.prompt == 1:
            drafted = next(nodes for nodes in walk.nodes if nodes["node_token"])
            drafted["node_token"][0] += 1
        return walk

    for broken in (False, True):
        if broken:
            monkeypatch.setattr(replayed, "ssd", planted)
        report = whatif.bench(model, [], entries, number=3, max_new_tokens=16)
        assert len(report.rows) == 2 * len(whatif.POLICIES)
        for row in report.rows:
            assert row["equal"] == pytest.approx(2 / 3 if broken else 1), row
            assert row["passes"] == row["rerun"] > 0
        assert report.held != broken
    assert seen
