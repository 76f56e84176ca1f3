"""Where the time goes: phases come from the record, and a speedup is τ over the cost of a cycle."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specviz
from specviz.errors import TraceError
from specviz.loop import Run
from specviz.measure.advice.devices import PRESETS, pass_seconds
from specviz.measure.phases import PHASES, SUMS, Phases, phases_of
from specviz.replays import costs, markdown, page, replays
from specviz.replays.costs import Cost, cost_of, modelled, pooled

PROMPT = "Wie heißt die Hauptstadt?"


def decoded(record="judged", method="unispec", **options):
    """Decode two prompts; return the sums by prompt, and the trace."""
    run = Run(
        specviz.load("town"), [PROMPT, "Zwei Katzen."], method, max_new_tokens=12, record=record, **options
    )
    phases, sums = phases_of(run), []
    for cycle in run:
        phases.take(cycle)
        if cycle.end is not None:
            sums.append(phases.sums())
    return sums, run.trace


@pytest.mark.parametrize(("method", "draft"), [("unispec", None), ("speculative", "town-draft")])
def test_sums_are_those_of_the_record(method, draft):
    sums, trace = decoded(method=method, draft=draft)
    assert len(sums) == 2
    for number, mine in enumerate(sums):
        assert list(mine) == list(SUMS)
        cycles = trace.cycles[(trace.cycles["prompt"] == number) & (trace.cycles["cycle"] > 0)]
        assert mine["cycles"] == len(cycles) and mine["emitted"] == cycles["emitted"].sum()
        assert mine["context"] == cycles["context"].sum()
        for name in PHASES:
            assert mine[name] == pytest.approx(cycles[f"{name}_time"].sum(), abs=1e-9), name
        ends = cycles["start"] + cycles["duration"]
        gaps = (cycles["start"].iloc[1:].to_numpy() - ends.iloc[:-1].to_numpy()).sum()
        assert mine["between"] == pytest.approx(gaps, abs=1e-6)
        passes = trace.passes[(trace.passes["prompt"] == number) & (trace.passes["cycle"] > 0)]
        target = passes[passes["model"] == "target"]
        assert (mine["passes"], mine["fed"]) == (len(target), target["tokens"].sum())
        others = passes[passes["model"] != "target"]
        assert (mine["draft_passes"], mine["draft_fed"]) == (len(others), others["tokens"].sum())
        assert bool(mine["draft_passes"]) == (draft is not None)


def test_a_run_without_a_record_is_timed_all_the_same():
    sums, _ = decoded(record=None)
    assert len(sums) == 2 and all(each["forward"] > 0 and each["cycles"] for each in sums)
    assert Phases(None).sums() == {}


def test_a_text_that_ends_with_its_prefill_leaves_the_others_their_costs():
    sums, _ = decoded()
    nothing = phases_of(Run(specviz.load("town"), [PROMPT], "unispec")).sums()
    assert nothing == dict.fromkeys(SUMS, 0)
    both, one = cost_of("a", "", "", [*sums, nothing], [*sums, nothing]), cost_of("a", "", "", sums, sums)
    assert both.speedup == pytest.approx(1) and both.sums == one.sums


def amounts(**given):
    return dict.fromkeys(SUMS, 1.0) | given


AMOUNT = st.floats(1e-3, 1e3)
EVERY = st.fixed_dictionaries(dict.fromkeys(SUMS, AMOUNT))


@given(st.lists(EVERY, min_size=1, max_size=4), st.lists(EVERY, min_size=1, max_size=4))
def test_the_speedup_is_that_of_the_clock(mine, plain):
    made = cost_of("a", "b", "c", mine, plain)
    rates = [
        sum(each["emitted"] for each in side) / sum(each[name] for each in side for name in costs.PHASES)
        for side in (mine, plain)
    ]
    assert made.speedup == pytest.approx(rates[0] / rates[1])
    assert made.break_even * made.speedup == pytest.approx(made.tau)
    assert sum(made.shares.values()) == pytest.approx(1)
    shown = json.loads(page.projected(made))
    unscaled = shown["gain"] * (1 + shown["plain"]) / (sum(shown["here"]) + shown["rest"])
    assert unscaled == pytest.approx(made.speedup), "the page's projection begins at what was measured"


def test_a_text_without_times_gives_no_cost():
    assert cost_of("a", "", "", [{}], [amounts()]) is None
    assert cost_of("a", "", "", [], []) is None
    assert cost_of("a", "", "", [amounts(emitted=0)], [amounts()]) is None


def test_tasks_are_pooled_by_contender_and_model():
    one = Cost("a", "qa", "m", 2, amounts(emitted=3), amounts(), {"l4": [1.0, 0.0]})
    other = replace(one, task="code", sums=amounts(emitted=6, cycles=2), elsewhere={"l4": [4.0, 3.0]})
    (both,) = pooled([one, other])
    assert (both.tau, both.texts, both.by) == (3, 4, ""), "one model goes without saying"
    assert both.elsewhere["l4"] == [3.0, 2.0], "weighed by the cycles"
    assert [each.by for each in pooled([one, replace(one, by="n")])] == ["m", "n"]


def test_another_device_prices_the_passes_by_their_mean_size():
    model, draft = specviz.load("town"), specviz.load("town-draft")
    sums = amounts(cycles=4, passes=4, fed=20, context=400, draft_passes=8, draft_fed=8)
    plain = amounts(cycles=10, emitted=10, passes=10, fed=10, context=1000)
    cost = Cost("x", "", "", 1, sums, plain)
    for name, device in PRESETS.items():
        one = pass_seconds(device, model, 1, 100)
        wanted = [pass_seconds(device, model, 5, 100) / one, 2 * pass_seconds(device, draft, 1, 100) / one]
        assert modelled(cost, "speculative", model, draft)[name] == pytest.approx(wanted)
    assert modelled(cost, "speculative", model, None) == {}, "a drafter whose shape nobody knows"
    heads = replace(cost, sums=sums | {"draft_passes": 0, "draft_fed": 0})
    assert modelled(heads, "blockwise", model, draft) == {}, "heads that run no passes of their own"
    assert modelled(cost, "calm", model, None) == {}
    assert set(modelled(heads, "unispec", model, None)) == set(PRESETS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A replay of a drafting method on the toy model."""
    return specviz.replay(
        "ssbd/table2", quick=True, number=2, max_new_tokens=12, tick=lambda *_: None,
        out=tmp_path_factory.mktemp("costs") / "replay",
    )  # fmt: skip


def test_a_replay_says_where_its_time_goes(finished):
    tasks = ["English→German", "English→Chinese", "English→Japanese"]
    assert sorted(each.task for each in finished.costs) == sorted(tasks)
    (cost,) = pooled(finished.costs)
    assert cost.contender == "retranslate beta=0.2" and cost.sums["fed"] > cost.sums["passes"]
    assert replays.opened(finished.path).costs == finished.costs
    assert cost.row()[0] in markdown.markdown(finished) and "Where the time goes" in markdown.markdown(
        finished
    )
    written = page.write(finished).read_text("utf8")
    assert "Where the time goes" in written and "class='projection'" in written


def test_an_older_replay_has_no_costs_and_a_damaged_one_is_refused(finished, tmp_path):
    content = json.loads((finished.path / "replay.json").read_text("utf8"))
    older = {name: value for name, value in content.items() if name != "costs"}
    (tmp_path / "replay.json").write_text(json.dumps(older), "utf8")
    assert replays.opened(tmp_path).costs == []
    for name, value in (("cycles", 0), ("forward", 0.0), ("emitted", 0), ("passes", 0)):
        content["costs"][0]["plain"][name] = value
        (tmp_path / "replay.json").write_text(json.dumps(content), "utf8")
        with pytest.raises(TraceError, match=r"costs\[0\]") as raised:
            replays.opened(tmp_path)
        assert "\n" not in str(raised.value)
        content["costs"][0]["plain"][name] = 1
    content["costs"][0]["elsewhere"] = {"l4": [0.0, 0.0]}
    (tmp_path / "replay.json").write_text(json.dumps(content), "utf8")
    with pytest.raises(TraceError, match="costs nothing"):
        replays.opened(tmp_path)
