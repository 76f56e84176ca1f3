"""The test pairs, and sweeps of settings over them: counts, scores, comparisons."""

from __future__ import annotations

import random

import numpy as np
import pytest

import specviz
from specviz.bench.pairs import TASKS, Score, suite
from specviz.bench.runner import BASELINE
from specviz.bench.sweep import BEAM, Point, front, pooled, sweep
from specviz.errors import ParameterError
from specviz.models import load


@pytest.fixture(scope="module")
def models():
    return load("town"), load("town-draft")


@pytest.mark.parametrize("task", TASKS)
def test_a_suite_is_its_seed(task):
    made = suite(task, 6)
    assert made == suite(task, 6)[:6] == suite(task, 9)[:6] != suite(task, 6, seed=1)
    for entry in made:
        assert entry["kind"], entry["language"] == TASKS[task][::2]
        assert entry["reference"] and len(set(entry["reference"])) == len(entry["reference"]) <= 8


def test_an_unknown_task():
    with pytest.raises(ParameterError, match="no task 'fr-en': choose one of de-en"):
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
        Point("stock", BEAM, {"beams": 1}, target),
    ]
    ticks = []
    found = sweep(points, entries, max_new_tokens=32, tick=ticks.append)
    assert sorted(ticks) == sorted(4 * [point.label for point in points])
    base = found[BASELINE]
    assert found["same"].texts == base.texts
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
    origins = trace.outputs["origin"]
    assert summed["own"] == (~origins.isin(["draft", "unreviewed"])).sum()
    assert summed["rollbacks"] == (origins == "correction").sum()
    assert summed["fallbacks"] == (origins == "fallback").sum()
    both = pooled([found, found])
    assert both["a"].sums["tokens"].shape == (8,)
    assert both["a"].quality.median == pytest.approx(found["a"].quality.median)


def test_settings_are_checked_before_anything_runs(models):
    target, draft = models
    points = [Point(BASELINE, BASELINE, model=target), Point("a", "bild", {"fallback": 2.0}, target, draft)]
    with pytest.raises(ParameterError, match="fallback must lie in"):
        sweep(points, suite("de-en", 1), tick=lambda label: pytest.fail("it ran"))


def test_nothing_beats_the_front():
    rng = random.Random(0)
    for _ in range(200):
        points = [(rng.randrange(6), rng.randrange(6)) for _ in range(rng.randrange(1, 12))]
        kept = front(points)
        for i, (x, y) in enumerate(points):
            better = [j for j, (a, b) in enumerate(points) if a >= x and b >= y and (a, b) != (x, y)]
            assert (i not in kept) if better else any(points[k] == (x, y) for k in kept)
        assert [points[k][0] for k in kept] == sorted(points[k][0] for k in kept)
        assert len(np.unique([points[k] for k in kept], axis=0)) == len(kept)
