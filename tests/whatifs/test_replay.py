"""What-ifs: results marked exact equal a rerun's, cycle for cycle; bounded results are within bounds."""

from __future__ import annotations

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import validate
from tiny import TableModel, llama
from town_runs import town_run

import specviz
from specviz import methods
from specviz.errors import ParameterError, TraceError
from specviz.loop import decode, densify
from specviz.loop import dense as loop_dense
from specviz.schema import UNKNOWN
from specviz.trace import Trace
from specviz.whatifs import Costs, whatif
from specviz.whatifs import walk as replays
from specviz.whatifs.costs import price, timed
from specviz.whatifs.question import METHODS
from specviz.whatifs.texts import Rounding
from specviz.whatifs.walk import BiLDReplay


class Looping(TableModel):
    """A table that reads only the last two tokens, so that its texts repeat themselves."""

    def logits(self, text):
        return super().logits(text[-2:])


TARGET = TableModel(vocabulary=6, seed=1, name="target")
GOOD = TableModel(6, 3, near=TARGET, mix=0.6, name="good")
SHORT = TableModel(6, 3, near=TARGET, mix=0.8, name="short", max_length=14)
LOOPING = Looping(vocabulary=6, seed=1, name="looping", max_length=96)
FALLBACK = st.sampled_from([0.0, 0.3, 0.5, 0.6, 1.0])
ROLLBACK = st.sampled_from([0.2, 0.5, 2.0, 4.0, math.inf])
PROMPTS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=2)


def rerun(target, drafter, prompt, method, parameters, limit):
    """Run a real decode; returns the fields of a Step for each cycle, and the text."""
    rows, text, start = [], [], 0
    made = methods.find(method)(**parameters)
    for cycle in decode(target, prompt, made, drafter=drafter, max_new_tokens=limit):
        text += cycle.tokens
        if cycle.number == 0:
            continue
        count = cycle.status.count
        unsent = cycle.verdict.unsent
        sent = len(cycle.draft) - count("unreviewed")
        drafted = len(cycle.draft) + (len(unsent.tokens) if unsent else 0)
        rows.append((cycle.number, start, sent, drafted, count("accepted"), count("cut"), count("unreviewed"),
                     len(cycle.tokens), cycle.draft.stop))  # fmt: skip
        start += len(cycle.tokens)
    return rows, text


def agree(step, row):
    """Whether a replayed cycle agrees with the real one in every field that it fills."""
    number, start, sent, drafted, accepted, cut, unreviewed, emitted, stop = row
    same = (step.cycle, step.start, step.accepted, step.cut, step.unreviewed, step.emitted)
    inside = step.sent <= sent <= step.sent_high and step.drafted <= drafted <= step.drafted_high
    return same == (number, start, accepted, cut, unreviewed, emitted) and inside and step.stop in ("", stop)


def compare(answer, row, target, drafter, prompts, method, limit):
    """Check every text of a row against its rerun; returns the number of cycles that were only bounded."""
    parameters = {name: answer.table[name].iloc[row].item() for name in answer.parameters}
    loose = 0
    for walk, prompt in zip(answer.walks[row], prompts, strict=True):
        rows, text = rerun(target, drafter, prompt, method, parameters, limit)
        wrong = [pair for pair in zip(walk.steps, rows) if not agree(*pair)]
        assert not wrong, (parameters, wrong[0])
        if walk.place is None:
            assert len(walk.steps) == len(rows)
        elif walk.place.token is not None:
            assert text[walk.place.position] == walk.place.token
            first = rows[walk.place.cycle - 1]
            assert first[1] <= walk.place.position < first[1] + first[-2]
        loose += sum(not step.certain for step in walk.steps)
    return loose


def dense(target, drafter, prompts, method, limit, tail=63, **parameters):
    trace = specviz.generate(target, prompts, method, draft=drafter, max_new_tokens=limit, **parameters)
    return densify(trace, target, drafter, tail)


@pytest.fixture(scope="module")
def spec():
    """A dense run of speculative decoding."""
    return dense(TARGET, GOOD, [[1, 2], [3], [4, 4]], "speculative", 30, draft_length=4)


@pytest.fixture(scope="module")
def short():
    """A dense run of short drafts with short tails."""
    return dense(TARGET, GOOD, [[1, 2], [3], [4, 4]], "speculative", 30, 1, draft_length=2)


@pytest.fixture(scope="module")
def lossy():
    """A dense run of BiLD that accepts everything the small model writes."""
    return dense(TARGET, GOOD, [[1, 2], [3], [4, 4]], "bild", 30, rollback=math.inf, fallback=0.3)


@settings(max_examples=60, deadline=None)
@given(
    drafter=st.sampled_from([GOOD, SHORT, TARGET]),
    prompts=PROMPTS,
    own=st.sampled_from([None, (1, 0.0), (4, 0.0), (6, 0.5)]),
    gamma=st.sampled_from([1, 2, 3, 5, 8, 64]),
    stop=st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.95]),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, 5), max_size=2),
    tail=st.sampled_from([0, 1, 3, 63]),
)
def test_speculative(drafter, prompts, own, gamma, stop, limit, eos, tail):
    target = TableModel(6, 1, eos=eos, name="target")
    run = ("autoregressive", {}) if own is None else ("speculative", dict(zip(("draft_length", "stop"), own)))
    trace = dense(target, drafter, prompts, run[0], limit, tail, **run[1])
    answer = whatif(trace).speculative(draft_length=gamma, stop=stop)
    assert answer.badge == (
        "exact" if compare(answer, 0, target, drafter, prompts, "speculative", limit) == 0 else "bounded"
    )
    if stop == 0 or gamma <= tail + 1:  # a draft's tail is at least one shorter than the draft
        assert answer.badge == "exact"


@settings(max_examples=60, deadline=None)
@given(
    prompts=PROMPTS,
    ngrams=st.tuples(st.integers(1, 4), st.integers(1, 4)).map(sorted),
    count=st.integers(1, 8),
    limit=st.integers(1, 40),
    eos=st.sets(st.integers(0, 5), max_size=1),
)
def test_prompt_lookup(prompts, ngrams, count, limit, eos):
    target = Looping(6, 1, eos=eos, name="looping", max_length=96)
    trace = specviz.generate(target, prompts, "autoregressive", max_new_tokens=limit)
    answer = whatif(trace).prompt_lookup(ngram_min=ngrams[0], ngram_max=ngrams[1], draft_length=count)
    assert answer.badge == "exact"
    compare(answer, 0, target, None, prompts, "prompt_lookup", limit)


@settings(max_examples=120, deadline=None)
@given(
    drafter=st.sampled_from([GOOD, SHORT, TARGET]),
    prompts=PROMPTS,
    own=st.tuples(FALLBACK, ROLLBACK, st.sampled_from([2, 10])),
    other=st.tuples(FALLBACK, ROLLBACK, st.integers(1, 10)),
    review=st.tuples(st.booleans(), st.booleans()),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, 5), max_size=2),
    record=st.sampled_from([None, 0, 2, 63]),
)  # fmt: skip
def test_bild(drafter, prompts, own, other, review, limit, eos, record):
    names = ("fallback", "rollback", "cap")
    target = TableModel(6, 1, eos=eos, name="target")
    setting = dict(zip(names, own)) | {"review_end": review[0]}
    trace = specviz.generate(target, prompts, "bild", draft=drafter, max_new_tokens=limit, **setting)
    trace = trace if record is None else densify(trace, target, drafter, record)
    answer = whatif(trace).bild(**dict(zip(names, other)), review_end=review[1])
    loose = compare(answer, 0, target, drafter, prompts, "bild", limit)
    if record is not None:  # its own setting is always answerable
        assert whatif(trace).ask().badge == "exact"
    if record == 63:
        assert loose == 0
        assert not (answer.places["why"] == replays.UNRECORDED_TAIL).any()


def test_the_comparison_can_fail(monkeypatch):
    prompts = [[1, 2], [3]]
    trace = dense(TARGET, GOOD, prompts, "speculative", 25)

    def unsure(*_):
        return replays.DraftSize.exactly(0, 1, "unsure")

    def late(context, start, wrong, *rest, old=loop_dense.tails):
        """Each tail without its first token."""
        found = old(context, start, wrong, *rest)
        return [entry for before, entry in itertools.pairwise(found) if before[0] == entry[0]]

    for module, name, broken in (
        (replays, "following", lambda marks, old=replays.following: np.minimum(old(marks) + 1, len(marks))),
        (replays, "read_tail", unsure),
        (loop_dense, "tails", late),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, broken)
            trace = dense(TARGET, GOOD, prompts, "autoregressive", 25)
            with pytest.raises(AssertionError):
                compare(
                    whatif(trace).speculative(draft_length=8, stop=0.3),
                    0,
                    TARGET,
                    GOOD,
                    prompts,
                    "speculative",
                    25,
                )


@pytest.mark.parametrize("name", ["speculative", "bild", "prompt_lookup", "unispec"])
def test_a_recorded_run_is_its_own_replay(name):
    shipped = name in ("prompt_lookup", "unispec")
    trace = specviz.open(specviz.example(name)) if shipped else town_run(name)
    answer = whatif(trace).ask()
    assert answer.badge == "exact"
    steps = [step for walk in answer.walks[0] for step in walk.steps]
    cycles = trace.cycles.query("cycle > 0")
    for field in ("prompt", "cycle", "sent", "drafted", "accepted", "cut", "unreviewed", "emitted", "stop"):
        assert [getattr(step, field) for step in steps] == cycles[field].tolist(), field
    row, numbers = answer.table.iloc[0], trace.summary().iloc[0]
    for field in ("drafted", "accepted", "emitted", "tau", "A/D", "A/O", "target_passes", "draft_passes"):
        assert row[field] == pytest.approx(numbers[field]), field


@pytest.fixture(scope="module")
def town():
    return specviz.load("town"), specviz.load("town-draft")


def test_the_bundled_pair(town):
    """A few prompts through real networks; ``python -m tests.benchmarks whatif`` does a hundred."""
    entries = [
        "Translate into German: Tom was tired on Sunday.",
        "Tell me about the cook.",
        "What is 12 plus 7?",
    ]
    trace = specviz.generate(town[0], entries, draft=town[1], max_new_tokens=32, record="dense")
    found = whatif(trace)
    prompts = [record.ids.tolist() for record in found.texts]
    for setting in ({"draft_length": 7}, {"draft_length": 6, "stop": 0.5}):
        compare(found.ask(**setting), 0, *town, prompts, "speculative", 32)
    compare(found.prompt_lookup(ngram_max=2), 0, *town, prompts, "prompt_lookup", 32)
    trace = specviz.generate(town[0], entries, "bild", draft=town[1], max_new_tokens=32, record="dense")
    compare(whatif(trace).ask(fallback=0.8, rollback=1.0), 0, *town, prompts, "bild", 32)


# -- settings that cannot be answered -------------------------------------------------------------


class Level(TableModel):
    """A drafter whose two best tokens are equally likely."""

    def logits(self, text):
        row = super().logits(text).clone()
        best = row.topk(2).indices
        row[best[1]] = row[best[0]]
        return row


def test_a_tie_is_named_not_guessed():
    trace = dense(TARGET, Level(6, 3, name="level"), [[1, 2]], "speculative", 20)
    answer = whatif(trace).speculative(draft_length=3)
    assert answer.badge == "needs a rerun"
    assert answer.places.iloc[0][["prompt", "cycle", "position"]].tolist() == [0, 1, 0]
    assert "closer" in answer.places.iloc[0]["why"]
    level = Level(6, 1, name="level")
    trace = specviz.generate(level, [[1, 2]], "autoregressive", max_new_tokens=10)
    assert whatif(trace).prompt_lookup().badge == "needs a rerun"


class LevelOnce(TableModel):
    """A target whose two best tokens are equally likely after a text of `length` tokens."""

    length = 0

    def logits(self, text):
        row = super().logits(text).clone()
        if len(text) == self.length:
            best = row.topk(2).indices
            row[best[1]] = row[best[0]]
        return row


@pytest.mark.parametrize("method", ["autoregressive", "unispec"])
def test_a_tie_is_named_in_a_run_of_trees_too(method):
    for place in range(12):
        target = LevelOnce(6, 1, name="level")
        target.length = 2 + place
        trace = specviz.generate(target, [[1, 2]], method, max_new_tokens=12)
        answer = whatif(trace).prompt_lookup()
        assert answer.badge == "needs a rerun"
        assert answer.places["position"].tolist() == [place] and "closer" in answer.places["why"].item()


def test_a_record_without_the_target_s_predictions_does_not_rule_ties_out():
    trace = specviz.generate(TARGET, [[1, 2]], "autoregressive", max_new_tokens=10)
    replayed = whatif(trace).prompt_lookup().trace(0)
    answer = whatif(replayed).prompt_lookup()
    assert answer.badge == "needs a rerun" and "a tie would not be noticed" in answer.why
    assert answer.places["position"].tolist() == [0] and answer.places["why"].item() == replays.UNREAD


def test_a_threshold_on_a_confidence_is_a_tie():
    trace = dense(TARGET, GOOD, [[1, 2]], "speculative", 20)
    sure = float(whatif(trace).texts[0].draft_p[0])
    assert whatif(trace).speculative(stop=sure).badge == "needs a rerun"
    assert whatif(trace).speculative(stop=sure + 1e-3).badge != "needs a rerun"


@pytest.mark.parametrize(
    ("method", "values"),
    [("speculative", {"draft_length": [3, 5], "stop": 0.9}), ("bild", {"fallback": [0.9, 1.0]})],
)
def test_a_tie_between_tokens_that_are_not_sent_is_none(method, values):
    drafter = Level(6, 3, name="level")  # never surer than one half
    trace = dense(
        TARGET, drafter, [[1, 2]], method, 20, **{name: 0.9 for name in values if name != "draft_length"}
    )
    answer = getattr(whatif(trace), method)(**values)
    assert not len(answer.places) and answer.table["cycles"].tolist() == [20, 20]
    for row in range(2):
        compare(answer, row, TARGET, drafter, [[1, 2]], method, 20)
    name = "stop" if method == "speculative" else "fallback"
    assert whatif(trace).ask(**{name: 0.3}).badge == "needs a rerun"  # here such a token is sent


@pytest.mark.parametrize(("fallback", "on"), [(0, True), (0.5, None), (1, False)])
def test_every_confidence_is_above_0_and_none_above_1(fallback, on):
    replay = SimpleNamespace(fallback=fallback, rounding=Rounding(0.6, 0.6))  # everything is close
    assert BiLDReplay.goes_on(replay, 0.5) is on


def test_without_a_dense_record_holes_are_named():
    prompts = [[1, 2], [3], [2, 5]]
    trace = specviz.generate(TARGET, prompts, draft=GOOD, max_new_tokens=30, draft_length=3)
    found = whatif(trace)
    assert found.can_answer("draft_length")[0] == "needs a rerun"
    answer = found.ask(draft_length=2)
    assert answer.badge == "needs a rerun"
    assert "densify" in answer.why
    compare(answer, 0, TARGET, GOOD, prompts, "speculative", 30)
    assert sum(len(walk.steps) for walk in answer.walks[0]) > 3  # it answers up to there
    plain = whatif(specviz.generate(TARGET, prompts, "autoregressive", max_new_tokens=9))
    assert "densify" in plain.speculative().why


def test_a_run_that_was_stopped_is_told_up_to_there():
    run = specviz.stream(TARGET, [[1, 2]], draft=GOOD, max_new_tokens=40)
    for _ in range(5):
        next(run)
    run.close()
    for answer in (whatif(run.trace).prompt_lookup(), whatif(run.trace).ask()):
        assert answer.badge == "needs a rerun"
        assert answer.places.iloc[0]["position"] <= len(run.trace.outputs)


def test_a_later_turn_hangs_on_the_answer_before():
    target = llama(seed=0, layers=2, eos=(1,), name="target")
    drafter = llama(seed=5, layers=2, eos=(1,), like=target, noise=0.3, name="drafter")
    prompts = [[3, 4], [5, 6], [4, 5]]
    trace = specviz.generate(target, prompts, "bild", draft=drafter, max_new_tokens=30, fallback=0.3)
    trace = densify(trace, target, drafter)
    for number, prompt in enumerate(trace._stores[0].run["prompts"]):
        prompt["turn"] = number
    answer = whatif(trace).ask(fallback=1.0)
    assert answer.places["why"].iloc[-1] == replays.TURN
    assert answer.places["cycle"].tolist()[-1] == 1
    for chosen in (1, [0, 2]):  # the previous answer is not there, and another setting may change it
        part = whatif(trace.select(prompt=chosen))
        assert part.ask(fallback=1.0).places["why"].iloc[-1] == replays.TURN
        assert replays.TURN not in set(part.ask().places["why"])


def test_what_is_refused(spec, lossy):
    found = whatif(spec)
    for wrong, words in (
        ({"draft_length": 0}, r"draft_length must lie in \[1, 64\], got 0"),
        ({"draft_length": 2.5}, "must be a whole number"),
        ({"stop": "much"}, "stop must be a number"),
        ({"gamma": 3}, "speculative has no parameter 'gamma'"),
        ({"stop": []}, "stop has no values"),
    ):
        with pytest.raises(ParameterError, match=words):
            found.speculative(**wrong)
    with pytest.raises(ParameterError, match="ngram_min must be at most"):
        found.prompt_lookup(ngram_min=3, ngram_max=2)
    with pytest.raises(TraceError, match="needs them"):
        whatif(spec.redact())
    sampled = specviz.generate(TARGET, [[1, 2]], draft=GOOD, max_new_tokens=5, temperature=1.0)
    with pytest.raises(TraceError, match="greedy"):
        whatif(sampled)
    other = whatif(lossy)
    assert other.speculative().badge == "needs a rerun"
    assert "need not be the target's own" in other.speculative().why
    assert found.bild().badge == "needs a rerun"
    plain = whatif(dense(TARGET, GOOD, [[1, 2]], "autoregressive", 9))
    with pytest.raises(ParameterError, match="autoregressive cannot be replayed"):
        plain.ask(draft_length=3)
    assert plain.speculative(draft_length=4).badge == "exact"


def test_what_can_be_answered(spec, short, lossy):
    found = whatif(spec)
    assert found.can_answer("draft_length")[0] == "exact"
    assert found.can_answer("stop")[0] == "exact"
    assert "up to 63 more" in found.can_answer("stop")[1]
    assert "up to 1 more" in whatif(short).can_answer("stop")[1]
    nothing = whatif(dense(TARGET, GOOD, [[1, 2]], "autoregressive", 9, 0))
    assert nothing.can_answer("stop", "speculative")[0] == "bounded"
    assert "it was not recorded" in nothing.can_answer("stop", "speculative")[1]
    assert found.can_answer("temperature")[0] == "needs a rerun"
    assert found.can_answer("ngram_max", "prompt_lookup")[0] == "exact"
    assert found.can_answer("cap", "bild")[0] == "needs a rerun"
    assert whatif(lossy).can_answer("rollback")[0] == "exact"
    assert "draft_length: exact" in repr(found)


def test_the_parameters_are_the_methods_own():
    for name, parameters in METHODS.items():
        declared = {p.name: p for p in methods.find(name).parameters}
        if name not in ("unispec", "retranslate", "ssd"):  # some settings of these can be answered
            assert list(parameters) == list(declared)
        for each in parameters.values():
            assert each is declared[each.name]


# -- the table, the cell, the price ------------------------------------------------------------------


def test_the_table(spec, short):
    found = whatif(short)
    answer = found.ask(draft_length=[2, 12], stop=[0.0, 0.3])
    assert "beyond the 1 recorded tokens" in answer.why
    table = answer.table
    assert table[["draft_length", "stop"]].values.tolist() == [[2, 0], [2, 0.3], [12, 0], [12, 0.3]]
    assert (table["tau"] == table["emitted"] / table["cycles"]).all()
    assert answer.badges["tau"] == "exact"
    assert answer.badges["drafted"] == "bounded"
    for name in ("drafted", "sent", "A/D", "draft_passes"):
        assert (table[f"{name}_lo"] <= table[name]).all()
        assert (table[name] <= table[f"{name}_hi"]).all()
    assert table["badge"].tolist() == ["exact", "exact", "exact", "bounded"]
    told = whatif(spec).ask(draft_length=[2, 12], stop=[0.0, 0.3])  # the same texts, with longer tails
    assert told.badge == "exact"
    assert "drafted_lo" not in told.table
    assert (told.table["drafted"].between(table["drafted_lo"], table["drafted_hi"])).all()
    assert "drafted_lo" not in found.ask(draft_length=[2, 3]).table
    assert answer.row(draft_length=12, stop=0.3) == 3
    with pytest.raises(ParameterError, match="2 rows of the answer have draft_length=12"):
        answer.row(draft_length=12)
    with pytest.raises(ParameterError, match="no parameter 'cap'"):
        answer.row(cap=4)
    with pytest.raises(ParameterError, match="draft_length must be a number, not None"):
        answer.row(draft_length=None)


def test_a_row_without_drafts_leaves_the_other_rows_exact():
    """Its A/D has no value, and no bounds either."""
    trace = specviz.generate(TARGET, [[1, 2]], "autoregressive", max_new_tokens=20)
    answer = whatif(trace).prompt_lookup(ngram_min=[1, 16], ngram_max=16)
    assert (answer.table["sent"] > 0).tolist() == answer.table["A/D"].notna().tolist() == [True, False]
    assert set(answer.badges.values()) == {answer.badge} == {"exact"}
    assert not [name for name in answer.table if name.endswith(("_lo", "_hi"))]


def test_html_is_inert(lossy):
    answer = whatif(lossy).ask(fallback=1.0)
    answer.why = "<img src=x onerror=alert(1)>"
    answer.table["badge"] = "<b>exact</b>"
    page = answer._repr_html_()
    assert "<img" not in page
    assert "<b>exact" not in page
    assert "needs a rerun" in page
    assert len(page) < 20_000


@pytest.mark.parametrize("which", ["recorded", "spec", "short"])
def test_a_cell_is_a_trace(which, spec, short, tmp_path):
    trace = {"recorded": town_run("speculative"), "spec": spec, "short": short}[which]
    answer = whatif(trace).ask(draft_length=[2, 4, 9], stop=[0.0, 0.9, 0.3])
    for row, told in answer.table.iterrows():
        cell = answer.trace(row)
        validate(cell)
        assert cell.texts == trace.texts
        assert "replayed from run" in cell.run["replayed"]
        assert cell.cycles["duration"].isna().all()
        assert cell.run["timing"] is None
        steps = [step for walk in answer.walks[row] for step in walk.steps]
        mine = cell.cycles[cell.cycles["cycle"] > 0]
        assert mine["accepted"].tolist() == [step.accepted for step in steps]
        assert mine["sent"].tolist() == [step.sent for step in steps]
        assert mine["cut"].tolist() == [step.cut for step in steps]
        passes = cell.passes[cell.passes["cycle"] > 0]
        assert passes[passes["model"] == "target"]["tokens"].tolist() == (1 + mine["sent"]).tolist()
        unknown = int((cell.nodes["token"] == UNKNOWN).sum())
        assert (f"; {unknown} drafted tokens were not recorded" in cell.run["replayed"]) == (unknown > 0)
        loose = sum(not step.certain for step in steps)
        assert (f"in {loose} cycles more" in cell.run["replayed"]) == (loose > 0)
        numbers = cell.summary().iloc[0]
        assert numbers["draft_passes"] == sum(step.drafted for step in steps)
        if told["badge"] == "exact":
            for name in ("drafted", "accepted", "emitted", "tau", "A/D", "A/O", "target_passes"):
                assert numbers[name] == pytest.approx(told[name]), name
        assert cell._repr_html_()
        cell.save(tmp_path / f"{row}.parquet")
        assert Trace.open(tmp_path / f"{row}.parquet").texts == trace.texts
    with pytest.raises(ParameterError, match="rows 0 to 8"):
        answer.trace(9)


@pytest.mark.parametrize("which", ["recorded", "spec"])
def test_a_cell_of_the_runs_own_setting_is_the_run(which, spec):
    trace = {"recorded": town_run("speculative"), "spec": spec}[which]
    own = whatif(trace).ask().trace(0)
    seen = (own.nodes["token"] != UNKNOWN).to_numpy()
    assert (own.nodes["status"][~seen] == "cut").all()  # nothing after the end was verified
    assert own.nodes["status"].tolist() == trace.nodes["status"].tolist()
    for name in ("token", "parent", "depth"):
        assert own.nodes[name][seen].tolist() == trace.nodes[name][seen].tolist(), name
    for name in ("confidence", "margin", "q", "p"):
        np.testing.assert_allclose(own.nodes[name][seen], trace.nodes[name][seen], atol=1e-4, err_msg=name)
    was, now = (x.nodes["rank"][seen].to_numpy(np.float64) for x in (trace, own))
    near = was < 5  # among the candidates
    assert (now[near] == was[near]).all()
    assert np.isnan(now[~near]).all()
    names = ["prompt", "cycle", "model", "tokens"]
    first = [x.passes.query("cycle == 0")[names].values.tolist() for x in (own, trace)]
    assert first[0] == first[1]
    # The candidates are those of the run; after a wrong token only the drafter's first is recorded.
    keys = ["prompt", "cycle", "node", "place"]
    for group in ("pred", "node"):
        mine, theirs = (x.tops(group).set_index(keys) for x in (own, trace))
        mine = mine[mine["p"].notna()]
        theirs = theirs.loc[mine.index]
        assert len(mine) > 0.5 * len(trace.tops(group))
        assert (mine["token"] == theirs["token"]).mean() > 0.99  # equal ones may swap
        np.testing.assert_allclose(mine["p"], theirs["p"], atol=1e-4)
    read = own.tops("pred").groupby(["prompt", "cycle"]).size()
    ended = trace.cycles.query("cut > 0 or end == 'eos'").groupby("prompt")["cycle"].max()
    asked = trace.tops("pred").groupby(["prompt", "cycle"]).size().drop(list(ended.items()), errors="ignore")
    assert (read[asked.index] == asked).all()  # except the target's answers after the end


@pytest.mark.parametrize("model", ["town", "town-t5"])
def test_a_cell_has_the_runs_own_passes(model):
    """The drafter's catch-up after a full draft, and an encoder-decoder's prefill."""
    draft = {"town": "town-draft", "town-t5": "town-t5-small"}[model]
    prompts = ["Translate into German: Tom was tired. The doctor bought a red bicycle.", "The cat sleeps."]
    run = specviz.generate(model, prompts, "speculative", draft=draft, record="dense", max_new_tokens=24)
    answer = whatif(run).ask()
    own = answer.trace(0)
    assert answer.badge == "exact" and run.passes["tokens"].isin([2]).any()
    names = ["prompt", "cycle", "model", "tokens", "rows"]
    assert own.passes[names].values.tolist() == run.passes[names].values.tolist()
    assert own.run["draft"] == run.run["draft"] and own.run["draft"]["shape"]


@pytest.mark.parametrize("recorded", [True, False])
def test_cells_of_the_other_methods(recorded, spec, lossy):
    with pytest.raises(ParameterError, match="needs a rerun"):
        whatif(lossy).ask(fallback=1.0).trace(0)
    trace = town_run("bild") if recorded else lossy
    own = whatif(trace).ask().trace(0)
    validate(own)
    for name in ("token", "status", "source"):
        assert own.nodes[name].tolist() == trace.nodes[name].tolist()
    assert own.outputs["origin"].tolist() == trace.outputs["origin"].tolist()
    looked = whatif(specviz.open(specviz.example("autoregressive")) if recorded else spec)
    looked = looked.prompt_lookup().trace(0)
    validate(looked)
    assert set(looked.nodes["source"]) == {"prompt"}
    assert looked.run["draft"] is None


def test_prices():
    costs = {1: 5.0, 3: 9.0, 5: 13.0}
    assert price(costs, np.array([0.5, 1, 2, 5, 9]), "target").tolist() == pytest.approx([5, 5, 7, 13, 21])
    assert price({4: 3.0}, np.array([1, 8]), "target").tolist() == [3, 3]
    with pytest.raises(ParameterError, match="the cost of a pass of the draft"):
        price({}, np.ones(1), "draft")


def test_the_clock(spec, lossy):
    found = whatif(spec)
    answer = found.ask(draft_length=[1, 4, 8])
    timed = found.clock(answer)
    assert timed.badge == "modelled"
    assert timed.badges["seconds"] == "modelled"
    assert f"{found.error:.1%}" in timed.why
    assert "extrapolated" in timed.why
    steps = [step for walk in answer.walks[1] for step in walk.steps]  # the run's own setting
    real = spec.cycles.query("cycle > 0")["duration"].sum()
    assert found.costs.each(steps, True).sum() == pytest.approx(real, rel=0.05)
    flat = Costs({1: 2.0, 64: 2.0}, {1: 0.5}, 0.25, "made up")
    row = answer.table.iloc[2]
    expected = row["target_passes"] * 2.0 + row["draft_passes"] * 0.5 + row["cycles"] * 0.25
    assert found.clock(answer, flat).table["seconds"].iloc[2] == pytest.approx(expected)
    looked = found.clock(found.prompt_lookup(), flat).table.iloc[0]
    assert looked["seconds"] == pytest.approx(looked["cycles"] * 2.25)
    stopped = found.clock(whatif(lossy).ask(fallback=1.0), flat)
    assert stopped.badge == "needs a rerun"
    assert stopped.table["seconds"].notna().all() and stopped.table["tokens_per_second"].isna().all()


def test_one_size_of_pass_prices_no_larger_one():
    question = whatif(specviz.open(specviz.example("autoregressive")))
    answer = question.prompt_lookup(draft_length=[2, 5])
    with pytest.raises(ParameterError, match="pass of 6 tokens is unknown, because only passes of 1 token"):
        question.clock(answer)
    assert question.clock(answer, Costs({1: 2.0, 64: 2.0}, {}, 0.25, "made up")).badge == "modelled"


@pytest.mark.parametrize(("limit", "why"), [(2, "too few to check it"), (6, "the error on the other half")])
def test_cycles_without_a_pass_of_the_target_need_no_price_of_one(limit, why):
    """BiLD emits its last block unreviewed."""
    own = {"fallback": 0.0, "rollback": math.inf, "cap": 3, "record": "dense"}
    trace = specviz.generate(TARGET, [1, 2], "bild", draft=GOOD, max_new_tokens=limit, **own)
    steps = trace.cycles.query("cycle > 0")
    assert steps["unreviewed"].gt(0).tolist() == [False] * (limit > 2) + [True]
    question = whatif(trace)
    timed = question.clock(question.ask())
    assert timed.table["seconds"][0] > 0 and why in timed.why and "nan" not in timed.why


def test_the_prefill_is_no_price():
    trace = specviz.generate(TARGET, [[1, 2, 3], [4]], draft=GOOD, max_new_tokens=6)
    assert trace.cycles["duration"].notna().all()
    assert timed(trace)["cycle"].tolist() == [cycle for cycle in trace.cycles["cycle"] if cycle > 0]


def test_prices_of_another_device(tmp_path):
    rows = [
        {"model": model, "g": g, "median": ms} for model, ms in (("big", 8.0), ("small", 1.0)) for g in (1, 2)
    ]
    report = {"bench": "passes", "rows": rows, "setting": {"device": "a GPU"}}
    path = tmp_path / "passes.json"
    path.write_text(json.dumps(report))
    costs = Costs.read(path, rest=0.001)
    assert costs.target == {1: 0.008, 2: 0.008}
    assert costs.draft == {1: 0.001, 2: 0.001}
    assert costs.source == "passes of big and small measured on a GPU"
    third = [*rows, {"model": "other", "g": 1, "median": 2.0}]
    path.write_text(json.dumps(report | {"rows": third}))
    with pytest.raises(TraceError, match="big, small, other: measure a model with one drafter"):
        Costs.read(path)
    for broken in (report | {"bench": "speed"}, report | {"rows": []}, report | {"rows": [{"g": 1}]}, [1]):
        path.write_text(json.dumps(broken))
        with pytest.raises(
            TraceError, match=r"passes\.json is not a report of 'specviz bench passes --json'"
        ):
            Costs.read(path)
    path.write_text(json.dumps(report | {"rows": [rows[0] | {"median": -1}]}))
    with pytest.raises(TraceError, match="more than no time"):
        Costs.read(path)
