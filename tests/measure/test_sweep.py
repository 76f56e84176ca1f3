"""The test pairs, and sweeps of settings over them: counts, scores and comparisons."""

from __future__ import annotations

import pytest
from benchmarks import bild, confidence

import specviz
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.measure import claims
from specviz.measure.pairs import TASKS, Score, suite
from specviz.measure.sweep import BEAM, Point, sweep
from specviz.measure.timing import BASELINE
from specviz.models import load


@pytest.fixture(scope="module")
def models():
    return load("town"), load("town-draft")


@pytest.mark.parametrize("task", TASKS)
def test_a_suite_starts_where_it_is_told_to(task):
    made = suite(task, 6)
    assert made == suite(task, 9)[:6] and made[2:] == suite(task, 4, start=2)
    for entry in made:
        assert (entry["kind"], entry["language"]) == TASKS[task][::2]
        assert entry["reference"] and len(set(entry["reference"])) == len(entry["reference"]) <= 8


def test_an_unknown_task():
    with pytest.raises(ParameterError, match="unknown task 'fr-en': choose one of de-en"):
        suite("fr-en", 1)


def test_scores_are_those_of_the_libraries():
    sacrebleu = pytest.importorskip("sacrebleu")
    entries = suite("de-en", 12)
    said = [" ".join(entry["reference"][-1].split()[: 3 + i]) for i, entry in enumerate(entries)]
    score = Score(entries)
    columns = [[(e["reference"] + [""] * 8)[i] or None for e in entries] for i in range(8)]
    wanted = sacrebleu.corpus_bleu(said, columns, tokenize="13a").score
    assert score.name == "BLEU" and score.of(score.statistics(said).sum(0)) == pytest.approx(wanted)
    summaries = suite("sum-en", 5)
    rouge = Score(summaries)
    right = rouge.statistics([entry["reference"][0] for entry in summaries])
    assert rouge.name == "ROUGE-L" and rouge.of(right.sum(0)) == pytest.approx(100)
    assert rouge.of(rouge.statistics(["nothing of it"] * 5).sum(0)) < 20


def test_a_sweep_counts_what_a_trace_has(models):
    target, draft = models
    entries = suite("de-en", 4)
    points = [
        Point(BASELINE, BASELINE, model=target),
        Point("a", "bild", {"fallback": 0.6, "rollback": 1.0}, target, draft),
        Point("same", "speculative", {"draft_length": 3}, target, draft),
        Point("instance", specviz.method("speculative", draft_length=3), {}, target, draft),
        Point("stock", BEAM, {"beams": 1}, target),
    ]
    ticks = []
    found = sweep(points, entries, max_new_tokens=32, tick=ticks.append)
    assert sorted(ticks) == sorted(4 * [point.label for point in points])
    base = found[BASELINE]
    assert found["same"].texts == base.texts
    instance = found["instance"]
    assert (instance.point.method, instance.point.values) == ("speculative", {"draft_length": 3})
    assert instance.sums["drafted"].tolist() == found["same"].sums["drafted"].tolist()
    assert found["stock"].sums["tokens"].sum() == base.sums["tokens"].sum()
    assert found["same"].lost(base).median == 0 and base.over(base).median == 1
    trace = specviz.generate(
        target, entries, "bild", draft=draft, max_new_tokens=32, fallback=0.6, rollback=1
    )
    summed = {name: values.sum() for name, values in found["a"].sums.items()}
    assert summed["tokens"] == specviz.metrics.emitted(trace)
    assert summed["accepted"] == specviz.metrics.accepted(trace)
    assert summed["drafted"] == specviz.metrics.drafted(trace)
    assert summed["sent"] == specviz.metrics.sent(trace)
    assert summed["own"] == (~trace.outputs["origin"].isin(["draft", "unreviewed"])).sum()
    tokens = specviz.metrics.output(trace)
    assert summed["rollbacks"] / tokens == pytest.approx(specviz.metrics.rollback_share(trace)) != 0
    assert summed["fallbacks"] / tokens == pytest.approx(specviz.metrics.fallback_share(trace)) != 0
    both = confidence.pooled([found, found])
    assert both["a"].sums["tokens"].shape == (8,)
    assert both["a"].quality.median == pytest.approx(found["a"].quality.median)


def test_settings_are_checked_before_anything_runs(models):
    target, draft = models
    points = [Point(BASELINE, BASELINE, model=target), Point("a", "bild", {"fallback": 2.0}, target, draft)]
    with pytest.raises(ParameterError, match="fallback must lie in"):
        sweep(points, suite("de-en", 1), tick=lambda label: pytest.fail("it ran"))


def test_labels_entries_and_rounds_are_checked_before_anything_is_loaded():
    point, entries = Point("a", BASELINE, model="no such model"), suite("de-en", 1)
    with pytest.raises(ParameterError, match="points holds 'a' twice"):
        sweep([point, point], entries)
    with pytest.raises(PromptError, match=r"prompt 2 is a conversation, .* another: give it one turn"):
        sweep([point], [*entries, {"turns": ["One", "Two"]}])
    with pytest.raises(ParameterError, match="rounds must be a whole number of at least 1"):
        sweep([point], entries, rounds=0)
    with pytest.raises(ParameterError, match="max_new_tokens must be a whole number of at least 1 and below"):
        sweep([point], entries, max_new_tokens=2**63)


def test_an_unknown_model_is_refused_before_another_is_loaded(monkeypatch):
    monkeypatch.setattr("specviz.measure.sweep.load_if_needed", lambda *_: pytest.fail("a model was loaded"))
    points = [Point(BASELINE, BASELINE, model="town"), Point("a", BASELINE, model="no such model")]
    with pytest.raises(ModelError, match="no such model"):
        sweep(points, suite("de-en", 1))


def test_a_model_given_by_name_is_loaded_once():
    points = [Point(label, BASELINE, model="town") for label in "ab"]
    found = sweep(points, suite("de-en", 1), max_new_tokens=4)
    assert found["a"].texts == found["b"].texts and found["a"].point.model is found["b"].point.model


# -- the benches built on them -------------------------------------------------------------------------


def test_bench_bild(models, monkeypatch):
    monkeypatch.setattr(claims, "RESAMPLES", 20)
    target, draft = models
    ticks = []
    found = bild.bench(
        target, [draft, load("town-draft-aligned")], tasks=["sum-en"], number=2, max_new_tokens=12,
        tick=lambda done, of, label: ticks.append((done, of)),
    )  # fmt: skip
    assert ticks[-1][0] == ticks[-1][1] == len(ticks)
    greedy = found.rows[0]
    assert greedy["speed"].median == 1 and greedy["lost"] is None
    titles = [part.title for part in found.parts]
    assert any("Figure 5" in title for title in titles) and any("Table 5" in title for title in titles)
    windows = next(part for part in found.parts if "fixed windows" in part.title)
    assert len(windows.rows) == 8 and all(row["lost"].median == 0 for row in windows.rows)
    names = [bar.name for bar in found.bars]
    assert any(name.startswith("BiLD over greedy, at most 0.2 lost") for name in names)
    with pytest.raises(ParameterError, match="takes two drafts"):
        bild.bench(target, [draft])


def test_bench_confidence(models, monkeypatch):
    monkeypatch.setattr(claims, "RESAMPLES", 20)
    target, draft = models
    found = confidence.bench(
        target, [draft], tasks=["de-en"], number=2, seeds=2, exact=2, max_new_tokens=16, batch=()
    )
    rows = {row["label"]: row for row in found.rows}
    assert rows["greedy (transformers)"]["relative"] == pytest.approx(100)
    assert rows["speculative, k 4"]["relative"] == pytest.approx(100)
    assert rows["CM-ASD"]["sent"] <= rows["CM-ASD"]["drafted"] and len(rows["CM-ASD"]["scores"]) == 2
    assert rows["CM-ASD"]["drafting"] > 0
    table = next(part for part in found.parts if part.title.startswith("Table III"))
    assert [row["label"] for row in table.rows][:3] == [
        "CM-ASD",
        "w/o adaptive drafting",
        "w/o adaptive verification",
    ]
    areas = next(part for part in found.parts if part.title.startswith("AUROC"))
    assert {row["signal"] for row in areas.rows} >= {"entropy", "logit_margin", "softmax_margin", "ensemble"}
    assert [bar.held for bar in found.bars] == [True, True]
    with pytest.raises(ParameterError, match="seeds must be at least 1"):
        confidence.bench(target, [draft], seeds=0)
