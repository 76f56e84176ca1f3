"""The experiments compare what they say, on the same texts, and their figures are the runs' own."""

from __future__ import annotations

import io
import json
import sys
from itertools import takewhile

import numpy as np
import pytest
import torch
from rich.console import Console

import specviz
from specviz import metrics
from specviz.bench import experiments, find, passes
from specviz.bench.compare import Contender, compare, others, tabulate
from specviz.errors import ParameterError
from specviz.metrics.rouge import Rouge
from specviz.models import load

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


def plain(report):
    """The report as JSON gives it back; the setting is stated and nothing is promised."""
    data = json.loads(json.dumps(report.as_dict()))
    assert data["bars"] == []
    assert {"device", "threads", "dtype", "model", "draft_size"} <= data["setting"].keys()
    assert any("The paper" in note for note in data["notes"])
    assert len(report.cells()) == len(data["rows"])
    for width in (80, 120):
        console = Console(width=width, file=io.StringIO())
        report.show(console)
        lines = console.file.getvalue().splitlines()[3:]
        assert max(map(len, takewhile(str.strip, lines))) <= width
        left_out = [line for line in lines if line.startswith("left out")]
        assert not any("[95%]" in line for line in left_out)
    return data


def test_what_is_measured_and_what_warms_up_are_different_prompts():
    assert others(ENTRIES, ENTRIES[:3]) == ENTRIES[3:]
    assert others(ENTRIES, ENTRIES[2:3]) == ENTRIES[:1]
    assert others(ENTRIES, ENTRIES) == []


def test_a_comparison_counts_what_the_runs_wrote(model):
    g = {"draft_size": 6}
    contenders = [Contender("autoregressive"), Contender("a", "unispec", g)]
    found = compare(model, contenders, ENTRIES[:3], [], max_new_tokens=12)
    alone = specviz.generate(model, ENTRIES[:3], "unispec", max_new_tokens=12, **g)
    mine = found["a"]
    written = [token for text in mine.timed.texts for token in text]
    assert written == alone.outputs["token"].tolist()  # cold, so as if it were alone
    assert mine.tau().median == metrics.tau(alone)
    assert mine.nodes() == alone.cycles["sent"].sum() / metrics.steps(alone)
    assert mine.kinds == ["conversation", "conversation", "arithmetic", "summarization"]
    of_one = alone.select(prompt=2)
    assert mine.tau("arithmetic").median == metrics.tau(of_one)
    assert mine.same(found["autoregressive"]) == "4/4"
    assert mine.over(mine).median == 1
    assert mine.over(found["autoregressive"], "conversation").pairs == 2
    rows, columns = tabulate(found)
    assert [key for key, _, _ in columns] == ["conversation", "arithmetic", "summarization"]
    assert rows[0]["arithmetic"] == "1.00 1.00"
    assert rows[1]["arithmetic_tau"].median == metrics.tau(of_one)


def test_a_store_is_warm_only_with_what_is_not_measured(model):
    contender = [Contender("a", "unispec", {"draft_size": 6})]
    options = {"max_new_tokens": 12}
    cold = compare(model, contender, ENTRIES[:3], [], **options)["a"]
    warm = compare(model, contender, ENTRIES[:3], ENTRIES[:3], **options)["a"]
    again = compare(model, contender, ENTRIES[:3], [], rounds=2, **options)["a"]
    assert warm.tau().median > cold.tau().median
    assert again.steps == cold.steps * 2  # every round begins anew
    assert again.kinds == cold.kinds * 2


def test_pooled_is_a_ratio_of_sums():
    found = metrics.pooled(np.array([10, 1, 1] * 2), np.ones(6, int))
    assert found.median == 4
    assert found.low < 4 < found.high
    assert np.isnan(metrics.pooled(np.array([10, 1, 1, 10, 1]), np.ones(5, int)).low)
    same = np.arange(2, 9)
    assert np.isnan(metrics.pooled(same, same).low)
    assert np.isnan(metrics.pooled(np.array([]), np.array([])).median)


@pytest.mark.parametrize("name", ["ablation", "threshold", "deviation"])
def test_settings_of_unispec_write_the_same_text(model, name):
    ticks = []
    report = find(name)(
        model, [], ENTRIES, prompts=2, max_new_tokens=8, size=6, tick=lambda *a: ticks.append(a)
    )
    data = plain(report)
    assert data["bench"] == name
    assert ticks[-1][0] == ticks[-1][1] == len(ticks) == 3 * len(data["rows"])
    base, *rest = data["rows"]
    assert base["tau"]["median"] == base["speedup"]["median"] == 1
    assert base["nodes"] == 0
    assert {row["same"] for row in rest} == {"3/3"}
    assert all(row["tau"]["median"] > 1 and row["speedup"]["pairs"] == 3 for row in rest)
    assert all(row["conversation_tau"]["pairs"] == 2 for row in rest)
    if name == "ablation":
        assert [row["g"] for row in rest] == [6, experiments.FIXED, 6, 6]
        assert len({round(row["tau"]["median"], 6) for row in rest}) > 1
    if name == "threshold":
        assert [row["r"] for row in rest] == list(experiments.THRESHOLDS)
        sent = [row["nodes"] for row in rest]
        assert sent == sorted(sent, reverse=True)
    if name == "deviation":
        assert base["g"] is None
        assert [row["g"] for row in rest] == ["3", "4", "5", "6 (g*)", "7", "8", "9", "12"]
        sent = [row["nodes"] for row in rest]
        assert sent == sorted(sent)


def test_the_draft_size_is_the_methods_own_unless_asked(model, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path))
    assert experiments.best_size(model, None)[0] == specviz.method("unispec").draft_size
    with pytest.raises(ParameterError, match="draft_size"):
        find("ablation")(model, [], ENTRIES, size=10**6)
    found = specviz.calibrate(
        model, "unispec", ["Hello there", "red green"], sizes=[1, 2, 3, 4], max_new_tokens=8, warm_up=0
    )
    assert experiments.best_size(model, None) == (found.g, "as calibrated")


def test_temperature_compares_within_a_temperature(model):
    report = find("temperature")(model, [], ENTRIES, prompts=2, max_new_tokens=8)
    data = plain(report)
    cold = [row for row in data["rows"] if row["temperature"] == 0]
    hot = [row for row in data["rows"] if row["temperature"] == 1]
    assert [row["method"] for row in cold] == [row["method"] for row in hot]
    assert {"autoregressive", "prompt_lookup", "unispec"} <= {row["method"] for row in hot}
    assert cold[0]["speedup"]["median"] == hot[0]["speedup"]["median"] == 1
    assert {row["same"] for row in cold[1:]} == {"3/3"}
    assert {row["same"] for row in hot} == {None}
    assert hot[0]["tau"]["median"] == 1


def test_rounds_of_a_sampled_run_have_their_own_seeds(model):
    contender = [Contender("autoregressive", temperature=1.0)]
    texts = compare(model, contender, ENTRIES[:1], [], max_new_tokens=8, rounds=2)[
        "autoregressive"
    ].timed.texts
    assert texts[:2] != texts[2:]
    again = compare(model, contender, ENTRIES[:1], [], max_new_tokens=8)["autoregressive"].timed.texts
    assert again == texts[:2]


def test_precision_copies_the_model_and_rates_its_texts(model):
    before = [p.clone() for p in model.net.parameters()]
    data = plain(find("precision")(model, [], ENTRIES, prompts=2, max_new_tokens=8, size=4))
    assert all(torch.equal(a, b) for a, b in zip(before, model.net.parameters()))
    assert data["setting"]["dtype"] == "float32, float16, bfloat16"
    rows = {(row["kind"], row["dtype"], row["method"]): row for row in data["rows"]}
    assert {kind for kind, _, _ in rows} == {"arithmetic", "summarization", "all"}
    assert len(rows) == 3 * 3 * 2
    own, other = rows["all", "float32", "autoregressive"], rows["all", "float32", "unispec"]
    assert other["same"] == other["float32"] == "2/2"
    assert all(own[name] == other[name] for name in experiments.ROUGE)
    assert {row["tau"]["median"] for (_, _, method), row in rows.items() if method == "autoregressive"} == {1}
    half = experiments.in_dtype(model, "float16")
    assert half.dtype == torch.float16
    assert half.encode("a") == model.encode("a")
    assert experiments.in_dtype(model, "float32") is model


def test_precision_without_references_or_rouge(model, monkeypatch):
    with pytest.raises(ParameterError, match="reference"):
        find("precision")(model, [], ENTRIES[:1])
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(ParameterError, match=r"rouge-score: pip install -e \"\.\[quality\]\""):
        find("precision")(model, [], ENTRIES)


def test_rouge_reads_every_script():
    rouge = Rouge()
    assert rouge("A cat sat.", "a Cat sat")["rouge2"] == 100
    assert rouge(["x", "the cat"], "the dog")["rouge1"] == 50  # the better reference
    assert rouge("Übung", "übung")["rouge1"] == 100
    assert rouge("本が好き", "本も好き")["rouge1"] == 75
    assert rouge("là", "la")["rouge1"] == 0


def test_context_times_a_long_model_and_reads_earlier_turns(model):
    entries = [e | {"prompt": e["prompt"]} for e in ENTRIES[1:]]
    report = experiments.context(
        model, [], entries, prompts=2, max_new_tokens=8, rounds=3, size=4, lengths=(16, 40)
    )
    data = plain(report)
    random = [row for row in data["rows"] if row["model"] == "random Llama"]
    own = [row for row in data["rows"] if row["model"] == model.name]
    assert [row["context"] for row in random] == [16, 40]
    assert all("tau" not in row and row["ratio"]["pairs"] == 3 for row in random)
    assert [row["same"] for row in own] == ["2/2"] * len(own)
    assert len(own) == 2  # as they are, and behind earlier turns up to 128 tokens
    assert own[0]["context"] < own[1]["context"] <= 128
    assert all(row["tau"]["pairs"] == 2 for row in own)


def test_earlier_turns_stand_in_front(model):
    entry = ENTRIES[1]
    found = experiments.behind(entry, ENTRIES[1:], 100, model)
    *earlier, last = found["prompt"]
    assert last == {"role": "user", "content": "One two three"}
    assert [turn["role"] for turn in earlier[:2]] == ["user", "assistant"]
    assert len(model.encode(found["prompt"])) <= 100
    assert "One two three" not in [turn["content"] for turn in earlier]
    assert len(experiments.behind(entry, ENTRIES[1:], 10**6, model)["prompt"]) == 7


def test_the_long_model_is_always_the_same():
    one, two = experiments.long_model(64), experiments.long_model(128)
    assert one.max_length == 64
    assert all(torch.equal(a, b) for a, b in zip(one.net.parameters(), two.net.parameters()))


def test_a_timed_tree_has_branches(model, monkeypatch):
    kind = type(model.open([[1]], 1))
    forward, seen = kind.forward, []
    monkeypatch.setattr(
        kind, "forward", lambda self, draft: (seen.append(draft.parents.tolist()), forward(self, draft))[1]
    )
    passes.measure(model, (1, 8), context=10, rounds=1, branches=3)
    assert [-1, -1, -1, 0, 0, 0, 1] in seen
    seen.clear()
    passes.measure(model, (1, 4), context=10, rounds=1)
    assert [-1, 0, 1] in seen
