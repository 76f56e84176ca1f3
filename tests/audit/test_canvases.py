"""The audit of canvases passes correct decoders, classes ties and noise, and reports every planted bug."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from specviz import audit
from specviz.errors import ParameterError
from specviz.methods import unmasking
from specviz.methods.ssd import SSD
from specviz.methods.unmasking import CellReading
from specviz.models.canvas import Canvas

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from canvases import tiny

PROMPTS = [[1, 2, 3], [4, 6], [8, 9, 10, 11]]
LENGTH = 12


def run(methods, model=None, prompts=PROMPTS, **rest):
    model = model or tiny(3, shift=1, dtype=torch.float32, eos=())
    return audit.canvases(model, prompts, methods, max_new_tokens=LENGTH, **rest)


def dual(method="ssd", **values):
    return {"method": method, "cache": "dual", "refresh": 5, "block": 4} | values


@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_right_holds(batch):
    steps = []
    methods = [
        "stepwise:block=4", dual("stepwise"), "ssd:block=4,tree=mix", dual(tail="shorter"),
        dual("fast_dllm", threshold=1), dual("fast_dllm", threshold=0.05), dual("entropy_bounded", bound=50),
    ]  # fmt: skip
    result = run(methods, batch=batch, progress=lambda *step: steps.append(step))
    assert result.holds, [str(difference) for _, difference in result.differences]
    assert [row.equal for row in result.rows[:5]] == [len(PROMPTS)] * 5
    assert all(row.tokens == row.steps == LENGTH * len(PROMPTS) for row in result.rows)
    assert result.rows[0].passes == result.rows[0].steps
    assert result.rows[2].passes < result.rows[2].steps
    assert [row.lossy for row in result.rows] == [False] * 5 + [True] * 2
    assert result.parted == (0, 5 * len(PROMPTS))  # lossy ones may differ
    assert result.rows[-1].verdict == f"lossy, {result.rows[-1].differ} differ"
    assert result.rows[-1].differ == result.rows[-1].prompts - result.rows[-1].equal
    assert result.rows[-1].passes < result.rows[-1].steps
    assert steps[-1] == (len(PROMPTS), len(PROMPTS))
    assert "every method holds" in result.summary
    assert json.loads(result.to_json())["rows"][2]["steps"] == LENGTH * len(PROMPTS)


@pytest.mark.parametrize("invariant", [False, True])
def test_logits_are_hashed_only_where_bits_are_compared(monkeypatch, invariant):
    """Each hash copies a row of logits from the model's device."""
    module, hashed = sys.modules["specviz.audit.canvases"], []
    real = module._hashed
    monkeypatch.setattr(module, "_hashed", lambda row: hashed.append(len(row)) or real(row))
    model = tiny(3, shift=1, dtype=torch.float32, eos=())
    model.invariant = invariant
    monkeypatch.setattr(model, "make_invariant", lambda: None)  # not possible on every processor
    run(["ssd:block=4"], model, PROMPTS[:1])
    assert bool(hashed) == invariant


def broken_guess(self, draft, told):
    """Take a cell other than the surest."""
    at = told.surest(-1)
    if len(draft) and at is not None:
        told.odds[at] -= 100
    return RIGHT(self, draft, told)


RIGHT = SSD.judge
BUGS = {
    "the second surest cell": lambda: patch.object(SSD, "judge", broken_guess),
    "a refresh does not cut": lambda: patch.object(
        Canvas, "room", lambda self, row=0: self.length - self.placed(row)
    ),
    "nothing is gathered": lambda: patch.object(Canvas, "_keep", lambda *_: None),
    "the rows of a draft stay": lambda: patch.object(
        Canvas, "_keep", lambda self, row, packing, last, right=Canvas._keep: right(self, row, packing, 1)
    ),
    "it raises": lambda: patch.object(SSD, "propose", lambda *_: 1 / 0),
}


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs(name):
    with BUGS[name]():
        every = 3 if name == "a refresh does not cut" else 9
        result = run([dual("stepwise", refresh=every), dual(refresh=every)])
    own, row = result.rows
    assert own.holds
    assert row.bug > 0
    assert not row.holds
    assert not result.holds
    assert all(d.verdict == "bug" for d in row.differences)
    if name == "the second surest cell":
        first = row.differences[0]
        assert first.cells[0] != first.cells[1] or first.expected != first.actual
        assert "where stepwise has cell" in first.reason
        assert f"step {first.position}" in str(first)


def test_a_bug_that_stepwise_shares_has_the_stock_module_against_it():
    right = unmasking.read_cells

    def off(reads, *rest):
        for read in reads:
            read.logits = read.logits * 1.5
        return right(reads, *rest)

    methods = [dual("stepwise"), dual()], [dual()], [dual("fast_dllm", threshold=0.05)]
    with patch("specviz.loop.unmasking.read_cells", off):
        results = [run(each) for each in methods]  # also where stepwise is not audited itself
    for row in (row for result in results for row in result.rows):
        assert row.bug > 0
        assert "stock module" in row.differences[0].reason


class Rightmost(SSD):
    """Break ties and near ties the other way round."""

    def judge(self, draft, reading):
        class Turned(CellReading):
            def surest(self, canvas):
                mine = np.flatnonzero((self.canvas == canvas) & self.work)
                return int(mine[-1]) if len(mine) else None

        return super().judge(draft, Turned(**vars(reading)))


@pytest.mark.parametrize(
    ("scale", "verdicts"), [(0, {"tie"}), (1e-5, {"noise", "reference noise"}), (1, {"bug"})]
)
def test_a_flip_is_a_tie_or_noise_or_a_bug(scale, verdicts):
    model = tiny(3, dtype=torch.float32, eos=(), tie_word_embeddings=False)
    with torch.no_grad():
        model.net.lm_head.weight.mul_(scale)
    result = run(["ssd:block=4", lambda: Rightmost(block=4)], model)
    assert result.rows[0].equal == len(PROMPTS)
    assert {d.verdict for d in result.rows[1].differences} <= verdicts
    assert len(result.rows[1].differences) == len(PROMPTS)
    assert not result.rows[1].holds
    for difference in result.rows[1].differences:
        assert difference.cells == (0, 3) or scale
        assert difference.position == 0
        assert difference.gap_double is not None


def test_what_is_refused():
    with pytest.raises(ParameterError, match=r"audit\.run"):
        run(["speculative"])
    with pytest.raises(ParameterError, match=r"audit\.canvases"):
        audit.run(tiny(3), None, PROMPTS, ["autoregressive"])
    with pytest.raises(ParameterError, match=r"audit\.canvases"):
        audit.batches(tiny(3), None, PROMPTS, ["autoregressive"])
    with pytest.raises(ParameterError, match="at least one prompt"):
        run(["ssd"], prompts=[])
    with pytest.raises(ParameterError, match="more than the canvas"):
        run(["ssd:draft_length=64"])
