"""UniSpec replayed: cycles marked exact are the rerun's; model drafts start where the record says."""

from __future__ import annotations

import dataclasses

import pytest
from identities import validate
from tiny import llama

import specviz
from specviz.errors import TraceError
from specviz.whatifs.texts import read_texts
from specviz.whatifs.tree import STALE, TreeReplay, Trees, read_lessons

PROMPTS = [[3, 4, 5], [7, 8, 9, 3, 4], [3, 4], [11, 5, 7]]
FIELDS = ("cycle", "keep", "sent", "drafted", "accepted", "cut", "emitted", "stop")


@pytest.fixture(scope="module")
def model():
    return llama(seed=5, vocabulary=24, eos=(1,))


def record(model, **parameters):
    return specviz.generate(
        model, PROMPTS, "unispec", record="all", max_new_tokens=40, candidates=6, **parameters
    )


def replay(trace, **changed):
    texts, rounding = read_texts(trace)
    parameters = trace.run["parameters"] | changed
    trees = Trees(texts, read_lessons(trace, texts, 6), 24, parameters)
    return [trees(record, frozenset(trace.run["eos"]), rounding) for record in texts]


def real(trace):
    cycles = trace.cycles[trace.cycles["cycle"] > 0]
    return [
        [tuple(row[name] for name in FIELDS) for row in some.to_dict("records")]
        for _, some in cycles.groupby("prompt")
    ]


def told(walk):
    return [(s.cycle, s.start, s.sent, s.drafted, s.accepted, s.cut, s.emitted, s.stop) for s in walk.steps]


@pytest.mark.parametrize("keep", ["run", "prompt"])
@pytest.mark.parametrize("rest", [{}, {"scores": False}, {"neighbours": False, "score": "least"}])
def test_the_same_setting_is_the_run_itself(model, keep, rest):
    trace = record(model, draft_size=12, keep=keep, **rest)
    walks = replay(trace)
    assert [told(walk) for walk in walks] == real(trace)
    assert all(walk.modelled is None and walk.place is None for walk in walks)


@pytest.mark.parametrize("keep", ["run", "prompt"])
@pytest.mark.parametrize(
    "changed", [{"draft_size": 4}, {"draft_size": 11}, {"threshold": 0.2}, {"draft_size": 20}]
)
def test_exact_cycles_are_the_reruns(model, keep, changed):
    trace = record(model, draft_size=12, keep=keep)
    again = record(model, **{"draft_size": 12, "keep": keep} | changed)
    exact = 0
    for walk, rows in zip(replay(trace, **changed), real(again)):
        upto = len(rows) if walk.modelled is None else walk.modelled.cycle - 1
        assert told(walk)[:upto] == rows[:upto]
        exact += upto
        assert sum(step.emitted for step in walk.steps) == sum(
            row[-2] for row in rows
        )  # the text is unchanged
    assert exact > 0


@pytest.mark.parametrize("keep", ["run", "prompt"])
def test_of_the_runs_own_setting_both_stores_are_one(model, monkeypatch, keep):
    seen, draft = [], TreeReplay.draft

    def checked(self, start, count, root):
        words = [word for word in range(24) if word not in self.eos]
        for kept, own in ((self.run.store.tokens, self.run.own.tokens), (self.run.store.p, self.run.own.p)):
            assert kept[words].tolist() == own[words].tolist()
        seen.append(start)
        return draft(self, start, count, root)

    monkeypatch.setattr(TreeReplay, "draft", checked)
    replay(record(model, draft_size=12, keep=keep))
    assert any(seen)


def test_a_model_stays_one_while_the_store_does(model):
    walks = replay(record(model, draft_size=12), draft_size=3)
    firsts = [walk.modelled for walk in walks]
    assert firsts[-1] is not None
    begun = next(i for i, place in enumerate(firsts) if place)
    assert all(place is not None and place.cycle == 1 for place in firsts[begun + 1 :])
    alone = [walk.modelled for walk in replay(record(model, draft_size=12, keep="prompt"), draft_size=3)]
    assert all(place is None or place.cycle > 1 for place in alone)


def test_a_text_that_was_not_replayed_to_its_end_taught_less(model):
    """Later texts' stores lack the tokens of its unreplayed part, so none of them is exact."""
    trace = record(model, draft_size=12)
    texts, rounding = read_texts(trace)
    trees = Trees(texts, read_lessons(trace, texts, 6), 24, trace.run["parameters"] | {"draft_size": 3})
    wide = dataclasses.replace(rounding, target=2.0)  # every position is a tie
    halted = trees(texts[0], frozenset(), wide)
    assert halted.place is not None and halted.modelled is None
    assert trees(texts[1], frozenset(), rounding).modelled.cycle == 1


def test_a_record_of_what_was_judged_is_not_enough(model):
    trace = specviz.generate(model, PROMPTS, "unispec", max_new_tokens=10)
    texts, _ = read_texts(trace)
    with pytest.raises(TraceError, match="record='all'"):
        read_lessons(trace, texts, 10)


def test_the_answer(model):
    trace = record(model, draft_size=12)
    ask = specviz.whatif(trace)
    assert ask.can_answer("draft_size")[0] == "modelled"
    assert ask.can_answer("depth")[0] == "needs a rerun"
    assert (
        repr(ask).splitlines()[-1] == "Ask it with .unispec(draft_size=24); a list asks for several at once."
    )
    other = specviz.generate(model, PROMPTS[:1], "token_recycling", max_new_tokens=4)
    assert repr(specviz.whatif(other)).endswith(
        "(1 text):\n  Nothing: token_recycling cannot be replayed from a trace."
    )
    same = ask.unispec()
    assert same.badge == "exact"
    assert same.table["tau"].iloc[0] == trace.summary()["tau"].iloc[0]
    answer = ask.ask(draft_size=[3, 12], threshold=[0.05, 0.3])
    assert answer.table["badge"].tolist() == ["modelled", "modelled", "exact", "modelled"]
    assert "exact for" in answer.why
    assert set(answer.places["why"]) == {STALE}
    assert answer.badges["tau"] == "modelled"
    cell = same.trace(0)
    assert cell.texts == trace.texts
    columns = ["token", "parent", "status", "source", "score", "depth"]
    assert cell.nodes[columns].equals(trace.nodes[columns])
    assert (cell.cycles["sent"] == trace.cycles["sent"]).all()
    assert cell.outputs["origin"].tolist() == trace.outputs["origin"].tolist()
    validate(cell)
    assert "only modelled" in answer.trace(0).run["replayed"]


def test_what_cannot_be_asked(model):
    warm = specviz.method("unispec", draft_size=12, candidates=6)
    for expected in ("exact", "needs a rerun"):
        trace = specviz.generate(model, PROMPTS, warm, record="all", max_new_tokens=20)
        answer = specviz.whatif(trace).unispec()
        assert answer.badge == expected
    assert "warm" in answer.why
    judged = specviz.generate(model, PROMPTS, "unispec", max_new_tokens=10)
    assert "record='all'" in specviz.whatif(judged).unispec().why
    assert (
        "not in a run of speculative"
        in specviz.whatif(specviz.generate(model, PROMPTS, "speculative", draft=model, max_new_tokens=10))
        .unispec()
        .why
    )


def test_more_candidates_than_words():
    """The store then has fewer columns than the setting asks for, in the run and in the record."""
    trace = specviz.generate(
        llama(seed=3, vocabulary=8, eos=()),
        [[3, 4]],
        "unispec",
        candidates=10,
        record="all",
        max_new_tokens=9,
    )
    with pytest.raises(TraceError, match=r"holds 8 successors per token, .* set candidates to 8 or less"):
        specviz.whatif(trace).unispec(draft_size=3)
