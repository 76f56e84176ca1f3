"""A speedup on another machine is predicted from acceptance here and pass times there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from benchmarks import projection

import specviz
from specviz.errors import ParameterError, PromptError
from specviz.measure.phases import SUMS
from specviz.measure.timing import threads


def sums(**given):
    return dict.fromkeys(SUMS, 0.0) | given


# A cycle emits two tokens, sends 4.5 to the target, and takes three drafter passes.
MINE = sums(
    cycles=10, emitted=20, context=1000, passes=10, fed=45, draft_passes=30, draft_fed=30, draft=2.0,
    forward=15.0, verify=0.5, commit=0.25, between=0.25,
)  # fmt: skip
PLAIN = sums(cycles=20, emitted=20, context=2000, passes=20, fed=20, forward=20.0, verify=1.0)


@pytest.fixture
def times(monkeypatch):
    """Make a pass's seconds depend on the model's name and the pass size; return a list of the calls."""
    read = []

    def timed(model, sizes, context, rounds):
        read.append((model, tuple(sizes), context))
        return {g: {"target": 1.0 + 0.1 * (g - 1), "draft": 0.2 * g}[model] for g in sizes}

    monkeypatch.setattr(projection, "timed", timed)
    return read


def test_the_passes_are_those_there_and_the_loop_that_here(times):
    # A pass of 4.5 tokens takes 1.35; drafting still takes 0.2 a cycle, and the loop 0.1 and 0.05.
    wanted = 2 * (1.0 + 0.05) / (1.35 + 0.2 + 0.1)
    assert projection.predicted(MINE, PLAIN, "target", None, 3) == pytest.approx(wanted)
    assert times == [("target", (1, 4, 5), 100)]


def test_a_draft_model_is_timed_there(times):
    wanted = 2 * (1.0 + 0.05) / (1.35 + 3 * 0.2 + 0.1)
    assert projection.predicted(MINE, PLAIN, "target", "draft", 3) == pytest.approx(wanted)
    assert ("draft", (1, 1), 100) in times


def test_it_names_what_it_changes_and_refuses_what_has_one_way(monkeypatch):
    model = specviz.load("town")
    names = [name for name, _, _ in projection.changes(model)]
    assert any(name.startswith("bfloat16") for name in names)
    monkeypatch.setattr(projection, "changes", lambda model: [])
    with pytest.raises(ParameterError, match="nothing to project to"):
        projection.bench(model, [], [{"prompt": "a"}])


def test_prompts_without_room_are_refused_before_the_model_is_copied(monkeypatch):
    monkeypatch.setattr(projection, "changes", lambda model: pytest.fail("copied"))
    with pytest.raises(PromptError, match="no prompt leaves room for 9999 new tokens: lower"):
        projection.bench(specviz.load("town"), [], [{"prompt": "a"}], max_new_tokens=9999)


def test_a_row_holds_both_settings_and_the_bar_the_median_error():
    with threads(2):
        report = projection.bench(
            specviz.load("town"), [], [{"prompt": "Wer bist du?"}] * 2, max_new_tokens=6, rounds=1,
            tick=lambda *_: None,
        )  # fmt: skip
    measured_here = report.setting["threads"], report.setting["clock"]
    assert measured_here == (1, "processor time"), "not the circumstances of the command"
    assert {row["contender"] for row in report.rows} == {"prompt_lookup", "unispec 5"}
    for row in report.rows:
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
        assert row["tau"] >= 1 and row["tau_there"] >= 1
    errors = sorted(abs(row["error"]) for row in report.rows)
    middle = len(errors) // 2
    assert report.bars[0].value == pytest.approx((errors[middle] + errors[~middle]) / 2)


def test_a_model_on_a_gpu_is_refused_before_anything_is_decoded():
    with pytest.raises(ParameterError, match="m is on cuda:0: projections are checked on a CPU"):
        projection.bench(SimpleNamespace(name="m", device="cuda:0"), [], [])
