"""Parts of replays over prompts: warm-up texts, earlier turns, number formats, pooled ratios, ROUGE."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specviz import metrics
from specviz.errors import ModelError
from specviz.measure.plan import Plan, others
from specviz.metrics.rouge import Rouge
from specviz.models import load
from specviz.replays.judging import remarks
from specviz.replays.recipes import RECIPES
from specviz.replays.sources.prompts import (
    ALONE,
    LONGEST,
    NO_CONTEXT,
    NO_MORE,
    Group,
    add_figures,
    divided,
    in_dtype,
    is_new,
    joined,
    lengthened,
    planned,
    with_context,
)
from specviz.replays.sources.shared import Measurement, RunOptions

ENTRIES = [
    {"turns": ["Hello there", "And now?"], "kind": "conversation"},
    {"prompt": "One two three", "kind": "arithmetic", "reference": ["four five", "six"]},
    {"prompt": "red green", "kind": "summarization", "reference": "blue"},
    {"prompt": "One two", "kind": "arithmetic", "reference": ["three"]},
    {"prompt": "red", "kind": "summarization", "reference": "green"},
]


@pytest.fixture(scope="module")
def model(folders):
    return load(folders.target)


def test_what_is_measured_and_what_warms_up_are_different_prompts():
    assert others(ENTRIES, ENTRIES[:3], 3) == ENTRIES[3:]
    assert others(ENTRIES, ENTRIES[2:3], 1) == ENTRIES[:1]
    more = others(ENTRIES, ENTRIES[2:3], 5)
    assert len(more) == len(ENTRIES) - 1 and ENTRIES[2] not in more
    assert others(ENTRIES, ENTRIES[:3], 0) == others(ENTRIES, ENTRIES, 5) == []


def test_pooled_is_a_ratio_of_sums():
    found = metrics.pooled(np.array([10, 1, 1] * 2), np.ones(6, int))
    assert found.median == 4
    assert found.low < 4 < found.high
    assert np.isnan(metrics.pooled(np.array([10, 1, 1, 10, 1]), np.ones(5, int)).low)
    same = np.arange(2, 9)
    assert np.isnan(metrics.pooled(same, same).low)
    assert np.isnan(metrics.pooled(np.array([]), np.array([])).median)


def test_rouge_reads_every_script():
    rouge = Rouge()
    assert rouge("A cat sat.", "a Cat sat")["rouge2"] == 100
    assert rouge(["x", "the cat"], "the dog")["rouge1"] == 50  # the better reference counts
    assert rouge("Übung", "übung")["rouge1"] == 100
    assert rouge("本が好き", "本も好き")["rouge1"] == 75
    assert rouge("là", "la")["rouge1"] == 0


def test_earlier_turns_stand_in_front(model):
    entry = ENTRIES[1]
    found = with_context(entry, ENTRIES[1:], 100, model)
    *earlier, last = found["prompt"]
    assert last == {"role": "user", "content": "One two three"}
    assert [turn["role"] for turn in earlier[:2]] == ["user", "assistant"]
    assert len(model.encode(found["prompt"])) <= 100
    assert "One two three" not in [turn["content"] for turn in earlier]
    assert len(with_context(entry, ENTRIES[1:], 10**6, model)["prompt"]) == 7
    assert found["reference"] == entry["reference"], "or nobody sees whether the model can do the task"


def test_a_larger_context_counts_where_more_stands_before_the_prompt(model):
    met: set[str] = set()
    longer = {n: lengthened(ENTRIES[:2], ENTRIES[2:], n, model) for n in (1, 60, 61, 10**6)}
    new = {n: [is_new(each, met) for each in entries] for n, entries in longer.items()}
    assert new[1] == [False, False], "nothing fits"
    assert new[60] == [True, True]
    assert longer[60][0]["prompt"][-1]["content"] == "Hello there", "of a conversation, the first turn"
    assert new[61] == [False, False], "no more fits than before"
    assert new[10**6] == [True, True]


def test_a_task_without_a_new_context_has_its_own_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(RunOptions, "best", lambda self, method, values: 4)
    recipe = RECIPES["unispec/table11"]
    model = SimpleNamespace(
        name="m", max_length=LONGEST + 16 + 128, tokenizer=SimpleNamespace(chat_template="any"),
        encode=lambda turns: "".join(turn["content"] for turn in turns),
    )  # fmt: skip
    options = RunOptions(model, {}, {}, 2, 8, 1, {}, tmp_path, tmp_path, {})
    chat = {"id": "1", "kind": "conversation", "turns": ["How are you?", "And now?"]}
    alone = {"id": "2", "kind": "qa", "prompt": "Who was here?", "reference": ["The cook."]}
    made, met = Measurement(), set()
    groups = [
        planned(options, [row], [], dict(row.plan), ([chat, alone], []), met, recipe, made)
        for row in recipe.rows[:2]
    ]
    (measured,) = groups[0].plan["suites"]["prompts"].entries
    assert [turn["content"] for turn in measured["prompt"]] == ["Who was here?", "The cook.", "How are you?"]
    assert groups[1] is None
    assert made.absent == [
        ({"context": 1024, "task": "QA"}, NO_CONTEXT),
        ({"context": 2048, "task": "MT"}, NO_MORE),
        ({"context": 2048, "task": "QA"}, NO_CONTEXT),
    ]


def test_warm_up_prompts_without_context_are_never_measured(monkeypatch, tmp_path):
    """With a context only some kinds are left; the plan took a warm-up prompt of each other kind instead."""
    monkeypatch.setattr(RunOptions, "best", lambda self, method, values: 4)
    recipe = RECIPES["unispec/table11"]
    model = SimpleNamespace(
        name="m", max_length=LONGEST + 16 + 128, tokenizer=SimpleNamespace(chat_template="any"),
        encode=lambda turns: "".join(turn["content"] for turn in turns), open=None,
    )  # fmt: skip
    options = RunOptions(model, {}, {}, 3, 8, 1, {}, tmp_path, tmp_path, {})
    chosen = [{"id": f"q{i}", "kind": "qa", "prompt": f"Who {i}?", "reference": f"He {i}."} for i in range(3)]
    warm = [{"id": kind, "kind": kind, "prompt": "Hello"} for kind in ("code", "rag")]
    row = recipe.rows[0]
    group = planned(options, [row], [], dict(row.plan), (chosen, warm), set(), recipe, Measurement())
    (suite,) = Plan.of(**group.plan).suites.values()
    assert [entry["id"] for entry in suite.entries] == ["q0", "q1", "q2"]
    assert [entry["id"] for entry in suite.warm] == ["code", "rag"]


def test_the_control_is_named_by_what_ran_and_not_by_its_group():
    """Notes once said "control: 1.0 run twice under two names"."""
    times = {"timed": True, "prefill_seconds": 1.0, "decode_seconds": 1.0, "tokens": 4, "error": None}
    rows = [{"cell": cell, "round": 0, "prompt": i, "sitting": "a", "text": ["x"], **times}
            for cell in (0, 1) for i in range(6)]  # fmt: skip
    cells = [{"cell": 0, "against": 0, "method": "autoregressive"},
             {"cell": 1, "against": 0, "method": "autoregressive_again"}]  # fmt: skip
    results = SimpleNamespace(cells=cells, records=lambda: rows, prompts=lambda name: [{}] * 6)
    recipe, made = RECIPES["unispec/table6"], Measurement()
    for name in (ALONE, "1.0"):
        add_figures(recipe, None, Group(name, [], [], {}), results, made)
    assert [line.partition(" run twice")[0] for line in remarks(made.checks)] == [
        "control: autoregressive", "control: autoregressive, 1.0",
    ]  # fmt: skip


def test_a_task_that_the_number_of_prompts_does_not_reach_says_so():
    recipe, made = RECIPES["unispec/table1"], Measurement()
    divided(recipe, SimpleNamespace(suites={}, number=3, peers=()), made)
    assert {where["task"] for where, _ in made.absent} < set(recipe.parts["task"]) and len(made.absent) == 4
    whys = {why for _, why in made.absent}
    assert whys == {"with 3 prompts in all, none is left for this task: raise --number"}


def test_another_number_format_is_a_copy(model):
    before = [p.clone() for p in model.net.parameters()]
    half = in_dtype(model, "float16")
    assert half.dtype == torch.float16 and half.encode("a") == model.encode("a")
    assert all(torch.equal(a, b) for a, b in zip(before, model.net.parameters()))
    assert in_dtype(model, "float32") is model
    assert half.net.model.rotary_emb.inv_freq.dtype == torch.float32
    assert half.requested_kernels is None and half.text.chat == {} and not half.invariant
    with pytest.raises(ModelError, match="x has one number format, its file's"):
        in_dtype(SimpleNamespace(name="x", dtype="Q8_0"), "float16")


def test_another_number_format_keeps_kernels_chat_variables_and_invariance(folders, monkeypatch):
    model = load(folders.target, kernels="plain")
    model.text.chat = {"enable_thinking": False}
    wide = in_dtype(model, "float64")
    assert wide.requested_kernels == "plain" and wide.text.chat == {"enable_thinking": False}
    assert not wide.invariant
    model.invariant = True
    monkeypatch.setattr(type(model), "make_invariant", lambda self: setattr(self, "invariant", True))
    assert in_dtype(model, "float64").invariant


def test_environments_that_differ_are_all_shown():
    one, other = ({"device": "cpu", "dtype": dtype, "threads": 1} for dtype in ("float32", "float16"))
    assert joined([one, other, one]) == {"device": "cpu", "dtype": "float32; float16", "threads": 1}
    assert joined([]) == {}
