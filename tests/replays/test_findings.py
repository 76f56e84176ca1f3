"""Regressions of replays, finding by finding, each with its numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import specviz
from specviz.errors import ModelError, ParameterError, TraceError
from specviz.measure import claims as claims_of_texts
from specviz.measure.claims import quotient, ratio, resampled
from specviz.measure.pairs import Score
from specviz.measure.sweep import Point
from specviz.metrics.rouge import Rouge
from specviz.replays import (
    dry_run,
    judging,
    kits,
    markdown,
    page,
    plots,
    recipes,
    replays,
    running,
    setups,
    tasks,
    terminal,
)
from specviz.replays.cells import (
    ABILITY,
    CONTROL,
    FAILS,
    HOLDS,
    IDLE,
    OPEN,
    SAME,
    Cell,
    Check,
    Provenance,
)
from specviz.replays.published import claims, published
from specviz.replays.recipes import RECIPES
from specviz.replays.sources import canvases, shared, thresholds
from specviz.replays.sources.shared import Measurement, RunOptions, exact
from specviz.rules.store import Grown, Growth
from specviz.suites import Suite

QUIET = Check(CONTROL, "autoregressive", "", 40, 40, 1.0, 0.98, 1.02)


def suite(n=4, name="mine", **labels):
    return Suite([{"id": str(i), "prompt": f"p{i}", **labels} for i in range(n)], name)


def mean(values):
    values = np.asarray(values, float)
    return resampled(ratio, values, np.ones(len(values)))


def replay(table, figures, checks=(QUIET,), absent=()):
    """Replay `table` with (where, metric, value) figures; each method is a separate contender."""
    place = {"device": "cpu", "processor": "P"}
    made = Measurement(absent=list(absent), environment=place, checks=list(checks))
    for where, metric, value in figures:
        task = {k: v for k, v in where.items() if k in ("task", "language", "dataset")}
        own = ", ".join(f"{k}={v}" for k, v in where.items() if k not in task)
        made.on(model="m", task=", ".join(task.values()), method=own, device="cpu", texts=9)
        made.add(where, metric, value)
    return replays.compared(table, RECIPES[table], made, {"table": table})


def verdict_of(made, claim):
    (one,) = (each for each in made.verdicts if each.claim == claim)
    return one


LANGUAGES = ("EN", "JA", "DE")
NAMES = ("EAGLE-2", "EAGLE-3", "UNISPEC (ours)")


def speeds(level, spread=0.02, texts=24):
    """Speedups in the order of the paper's Table 3, `level` times as large."""
    rng = np.random.default_rng(0)
    printed = specviz.published("unispec/table3")
    out = []
    for row in printed[printed.metric == "speedup"].to_dict("records"):
        values = level * row["value"] * rng.normal(1, spread, texts)
        out.append(({"method": row["method"], "language": row["language"]}, "speedup", mean(values)))
    return out


# ---------------------------------------------------------------- 1: the user's texts fill their column


def test_texts_fill_the_column_of_their_kind_and_language_alone():
    mine = suite(kind="translation", language="de", **{"from": "en"})
    for table, column in (("cm_asd/table1", "EN-DE"), ("bild/table1", None)):
        parts = tasks.tasks_of(RECIPES[table])
        got = {task: tasks.own_prompts({tasks.PLAIN: mine}, task, part) for task, part in parts.items()}
        assert [task for task, (prompts, _) in got.items() if prompts] == ([column] if column else [])
        assert all(why for prompts, why in got.values() if not prompts)
    with pytest.raises(ParameterError, match=r"no prompt of kind translation, from de, language en") as told:
        tasks.check_suites(RECIPES["bild/table1"], {tasks.PLAIN: mine})
    assert "\n" not in str(told.value)
    unsaid = suite()
    with pytest.raises(ParameterError, match="--suite 'EN-DE=SUITE'"):
        tasks.check_suites(RECIPES["cm_asd/table1"], {tasks.PLAIN: unsaid})
    prompts, _ = tasks.own_prompts({"EN-DE": unsaid}, "EN-DE", {"task": "en-de"})
    assert {(p["kind"], p["language"]) for p in prompts} == {("translation", "de")}
    with pytest.raises(ParameterError, match="no task 'EN-DA' to measure; it has EN-DE, DE-EN"):
        tasks.check_suites(RECIPES["cm_asd/table1"], {"EN-DA": mine})
    with pytest.raises(ParameterError, match="--suite DE-EN"):
        tasks.check_suites(RECIPES["cm_asd/table1"], {"DE-EN": mine})


def options(tmp_path, suites=None, number=3, **more):
    model = SimpleNamespace(name="m", kind="diffusion", device="cpu", dtype="float32", eos=(0,), encode=len)
    values = (model, {}, suites or {}, number, 8, 1, {}, tmp_path, tmp_path, {})
    return RunOptions(*values, **more)


def test_the_target_of_figures_is_the_one_that_wrote_them():
    small, large = (
        SimpleNamespace(name=name, parameters=n, content=name * 20) for name, n in (("s", 1), ("l", 2))
    )
    made = Measurement()
    for model in (large, small, large):
        thresholds.of(made, SimpleNamespace(point=Point("p", "autoregressive", model=model)))
        assert (made.source.model, made.source.parameters) == (model.name, model.parameters)
        assert made.source.weights == model.content[:16]


@pytest.mark.parametrize(("name", "value"), [("SPECVIZ_KERNELS", "int8"), ("SPECVIZ_INVARIANT", "1")])
def test_a_replay_with_other_kernels_is_another_replay(tmp_path, monkeypatch, name, value):
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(running, "measure", lambda recipe, settings, given, tick: settings)
    settings = [running.replay("unispec/table3", out=tmp_path / "none")]
    monkeypatch.setenv(name, value)
    settings += [running.replay("unispec/table3", out=tmp_path / "none")]
    differing = {key for key in settings[0] if settings[0][key] != settings[1][key]}
    assert differing == {name.removeprefix("SPECVIZ_").lower()} <= {*running.LATER}


def test_a_model_that_was_trained_since_is_another_one(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "measure", lambda recipe, settings, given, tick: settings)
    model = specviz.load("town")
    before = running.replay("unispec/table3", model=model, out=tmp_path / "none")
    with torch.no_grad():
        next(model.net.parameters()).add_(1)
    after = running.replay("unispec/table3", model=model, out=tmp_path / "none")
    assert before.pop("weights") != after.pop("weights") and before == after


def test_two_tasks_never_share_prompts(tmp_path):
    arithmetic, code = suite(5, kind="arithmetic"), suite(2, kind="code")
    every = Suite([*arithmetic, *({**p, "id": f"c{p['id']}"} for p in code)], "mine")
    made = Measurement()
    given = options(tmp_path, {tasks.PLAIN: every})
    chosen = canvases.prompts_of(RECIPES["ssd/table1"], given, made)
    ids = {task: [p["id"] for p in some] for task, some in chosen.items()}
    assert ids == {"GSM8K": ["0", "1", "2"], "MATH": ["3", "4"], "HumanEval": ["c0", "c1"]}
    remedy = "name a suite with --suite 'MBPP=SUITE'"
    why = f"no prompt of mine is left for it, as other columns took them: {remedy}"
    assert made.absent == [({"task": "MBPP"}, why)]


@pytest.mark.parametrize(
    ("name", "kind", "column", "other"),
    [
        ("gsm8k", "arithmetic", "GSM8K", "MATH"),
        ("math:tenth", "arithmetic", "MATH", "GSM8K"),
        ("spec-bench", "arithmetic", "GSM8K", "MATH"),
        ("mbpp", "code", "MBPP", "HumanEval"),
    ],
)
def test_a_data_set_fills_one_column_alone(tmp_path, name, kind, column, other):
    made, given = Measurement(), options(tmp_path, {tasks.PLAIN: suite(9, name, kind=kind)})
    chosen = canvases.prompts_of(RECIPES["ssd/table1"], given, made)
    assert {task: len(some) for task, some in chosen.items()} == {column: 3}
    why = f"{name} fills another column of its kind: name a suite with --suite '{other}=SUITE'"
    assert ({"task": other}, why) in made.absent


def test_a_data_set_fills_the_column_of_its_name():
    columns = ["XSUM", "CNN/DailyMail"]
    filled = {"xsum": columns[:1], "cnn-dailymail:validation": columns[1:], "mine.jsonl": columns}
    for name, expected in (filled | {"wikipedia:en": columns[:1]}).items():
        assert tasks.filled_by(suite(name=name), columns) == expected
    assert tasks.filled_by(suite(name="wmt14:de-en"), ["IWSLT", "WMT"]) == ["WMT"]


# ---------------------------------------------------------------- 2: counts


def test_identities_copies_and_one_contender_under_two_names_are_not_counted():
    rows = RECIPES["ssd/table3"].rows
    rng = np.random.default_rng(0)
    base = rng.normal(60, 1, 12)
    figures = []
    for i, row in enumerate(rows):
        where = {**row.where, "task": "MATH"}
        figures += [
            (where, "step_reduction", mean(base + 3 * i)),
            (where, "verification_nodes", exact(4 + i)),
        ]
    figures += [
        ({"method": "-", "draft_length": n}, "step_reduction_bound", exact(75 + n)) for n in (3, 4, 5)
    ]
    made = replay("ssd/table3", figures)
    assert {made.cells[each.first].metric for each in made.comparisons} == {"step_reduction"}
    assert made.counts()["agrees"] + made.counts()["against"] == 15 and made.counts()["figures"] == 15
    assert "by chance 7.5" in made.summary
    # It once counted 27: node counts 4 < 5 < 6 and bounds N / (N + 1) tell nothing about the model.

    figures = [({"draft_size": n, "task": "MT"}, "tau", mean(base)) for n in (95, 100, 105)]
    found = Measurement(checks=[QUIET])
    found.on(method="unispec", settings="draft_size=4", task="MT")
    for where, metric, value in figures:
        found.add(where, metric, value)
    made = replays.compared("unispec/table13", RECIPES["unispec/table13"], found, {})
    assert not made.comparisons, "the sizes collapse at a small g*: one contender"
    assert verdict_of(made, "UniSpec pays at every draft size around it").verdict == OPEN


def test_one_figure_beside_five_models_counts_once():
    texts = np.random.default_rng(0).normal(2, 0.1, 12)
    figures = [
        ({"method": m, "task": "MT"}, "speedup", mean(texts + i)) for i, m in enumerate(("PLD", "SPECTRA"))
    ]
    made = replay("unispec/table1", figures)
    assert len(made.measured) > 10 and made.counts()["figures"] == 2 and len(made.comparisons) == 1


def test_a_pair_of_measurements_in_several_rows_counts_once():
    base = np.random.default_rng(0).normal(2, 0.1, 24)
    made = Measurement(checks=[QUIET])
    for size in (25, 50, 75, 100, 125):  # at a small g* three rows are one contender, and two another
        large = size >= 100
        made.on(method="unispec", settings=f"draft_size={1 + large}")
        made.add({"found_by": "grid search", "draft_size": size}, "tau", mean(base + large))
    found = replays.compared("unispec/table16", RECIPES["unispec/table16"], made, {})
    (one,) = found.comparisons
    assert one.clear and found.counts()["clear_agrees"] == 1
    assert one.p < 1e-6, "it is paid for once"
    assert [tally for tally in found.tallies() if any(tally)] == [(1, 0, 0)] * 5
    rises = verdict_of(found, "τ rises with the draft size")
    assert rises.verdict == HOLDS and "1 of 1 clearly so" in rises.reason


def test_a_speedup_is_a_copy_of_its_throughput():
    rng = np.random.default_rng(0)
    figures = []
    for i, row in enumerate(r for r in RECIPES["ssd/table1"].rows if r.method == "ssd"):
        where = {**row.where, "task": "GSM8K"}
        value = mean(rng.normal(2 + i, 0.1, 12))
        figures += [(where, "throughput", value.times(10.0)), (where, "speedup", value)]
    made = replay("ssd/table1", figures)
    counted = [made.cells[each.first].metric for each in made.comparisons]
    assert len(counted) == 3 and len(set(counted)) == 1


def test_a_model_that_cannot_do_the_task_gets_no_verdict():
    rng = np.random.default_rng(0)
    words = ["cook", "bag", "station", "doctor", "garden", "letter", "river", "window", "horse", "table"]
    right = [" ".join(rng.choice(words, 8)) for _ in range(12)]
    noise = ["".join(rng.choice(list("qxzvwk "), 40)) for _ in range(12)]
    bad, good = shared.ability("EN", "m", noise, right), shared.ability("EN", "m", right, right)
    assert bad.count == 0 and "cannot do this task" in bad.text and good.count == 1
    assert shared.ability("EN", "m", right, [None] * 12) is None
    copied = shared.ability("EN", "m", noise, right, originals=right)
    assert copied.count == 0, "worse than a copy of the source"
    unable = [replace(bad, task=language) for language in LANGUAGES]
    made = replay("unispec/table3", speeds(2.0), (QUIET, *unable))
    assert not made.comparisons and {each.verdict for each in made.verdicts} == {OPEN}
    assert all("cannot do this task" in each.reason for each in made.verdicts if each.question != "lossless")


def test_an_answer_within_a_long_text_is_an_answer():
    """Short references have no trigrams, and beside a long text their few weighed nothing."""
    numbers = [str(n) for n in (15, 7, 42, 128, 3, 96, 11, 250, 8, 64)]
    prose = [f"First we add what was sold; then the answer is {n}. " + "So it goes. " * 60 for n in numbers]
    for texts in (numbers, prose):
        able = shared.ability("GSM8K", "m", texts, numbers)
        assert able.count == 1 and "100 % similar to their own" in able.text
        assert shared.ability("GSM8K", "m", texts[1:] + texts[:1], numbers).count == 0
    assert shared.alike("It is 150.", "15", False) == 0 and shared.alike("15", "15", True) == 1
    assert shared.alike("東京です", "東京", False) == 1
    german = [f"{word} und dann noch viel mehr davon" for word in ("eins", "zwei", "drei", "vier", "fuenf")]
    english = [f"{word[:4]} and then much more of it" for word in german]
    more = [f"{a} {b}" for a, b in zip(english, english)]  # a copy with something after it
    assert shared.ability("EN-DE", "m", more, german, english).count == 0


def test_of_many_texts_a_sample_is_tested(monkeypatch):
    rng, seen = np.random.default_rng(0), []
    right = ["".join(rng.choice(list("abcdefgh"), 20)) for _ in range(3 * shared.MOST_TESTED)]
    alike = shared.alike
    monkeypatch.setattr(shared, "alike", lambda *given: seen.append(given) or alike(*given))
    check = shared.ability("EN", "m", right, right)
    assert (check.count, check.of, len(seen)) == (1, shared.MOST_TESTED, shared.MOST_TESTED**2)
    assert check.text.endswith("judging by 200 of 600 texts")
    assert {right.index(text) % 3 for text, _, _ in seen} == {0}, "spread evenly"
    assert "judging" not in shared.ability("EN", "m", right[:9], right[:9]).text


def judged(rows, claim, checks=(QUIET,), compare=("method",)):
    """The verdict on a claim; a row is (keys, metric, printed value, values by text, task, other fields)."""
    cells, figures = [], []
    for number, (keys, metric, printed, values, task, more) in enumerate(rows):
        own = " ".join(str(v) for k, v in keys.items() if k in compare)
        made, name, more = mean(values), more.get("name", own), {k: v for k, v in more.items() if k != "name"}
        source = Provenance(model="m", method=name, task=task, texts=len(values), date="2026")
        figures.append(shared.Figure(keys, metric, made.median, made.low, made.high, len(values), made.values,
                                     source, **more))  # fmt: skip
        value = None if printed == "nan" else float(printed)
        cells.append(Cell(keys, metric, value, printed, "x", "d", "M", made.median, made.low,
                          made.high, "", number, source))  # fmt: skip
    (verdict,) = judging.Judge(cells, figures, compare, list(checks), [claim]).verdicts()
    return verdict


def test_a_mean_of_tasks_that_the_model_cannot_do_gets_none_either():
    rng = np.random.default_rng(0)
    rows = []
    for method, level in (("PLD", 1.1), ("UNI", 1.6)):
        parts = {task: level + 0.05 * rng.standard_normal(30) for task in "AB"}
        rows += [({"method": method, "task": t}, "speedup", "1.5", v, t, {}) for t, v in parts.items()]
        whole = np.mean(list(parts.values()), 0)
        rows.append(({"method": method, "task": "AVG"}, "speedup", "1.5", whole, "AVG", {"derived": True}))
    claim = {"question": "order", "of": {"metric": "speedup", "task": "AVG"}, "check": "best",
             "over": "method", "is": "UNI", "text": ""}  # fmt: skip
    assert judged(rows, claim).verdict == HOLDS
    able, unable = (
        Check(ABILITY, "m", task, n, 30, 0.9, 0.05, None, "no") for task, n in (("A", 1), ("B", 0))
    )
    assert judged(rows, claim, (QUIET, able, unable)).verdict == OPEN


def test_tasks_with_few_texts_are_tested_at_once():
    from specviz.replays.sources import prompts

    recipe, rng = RECIPES["unispec/table1"], np.random.default_rng(0)
    words = ["cook", "bag", "station", "doctor", "garden", "letter", "river", "window", "horse", "table"]
    kinds = 2 * [part["kind"] for part in recipe.parts["task"].values()]
    entries = [{"kind": kind, "reference": [" ".join(rng.choice(words, 8))]} for kind in kinds]
    noise = ["".join(rng.choice(list("qxzvwk "), 40)) for _ in kinds]

    def tested(texts, some, recipe=recipe):
        rows = [{"prompt": i, "kind": some[i]["kind"], "text": [text]} for i, text in enumerate(texts)]
        made = Measurement()
        prompts.check_ability(recipe, rows, some, made)
        return made

    (able,) = tested([entry["reference"][0] for entry in entries], entries).checks
    (unable,) = tested(noise, entries).checks
    assert (able.task, able.count, able.of) == ("", 1, 14)
    assert (unable.task, unable.count, unable.of) == ("", 0, 14)
    # Each text answers the other prompt of its kind: right in form alone.
    (formal,) = tested([entry["reference"][0] for entry in entries[7:] + entries[:7]], entries).checks
    assert not formal.count
    swapped = [entry["reference"][0] for entry in entries[7:] + entries[:7]]
    (formal,) = tested(swapped, entries, RECIPES["unispec/table15"]).checks
    assert not formal.count and RECIPES["unispec/table15"].parts == {}
    claim = {"question": "order", "of": {"metric": "speedup"}, "check": "best", "over": "method", "is": "UNI",
             "text": ""}  # fmt: skip
    rows = [
        ({"method": method, "task": "QA"}, "speedup", "1.5", level + 0.05 * rng.standard_normal(30), "QA", {})
        for method, level in (("PLD", 1.1), ("UNI", 1.6))
    ]
    assert judged(rows, claim, (QUIET, able)).verdict == HOLDS
    assert judged(rows, claim, (QUIET, unable)).verdict == OPEN
    note = "whether the model can do these tasks was not tested"
    few, none = tested(noise[:4], entries[:4]), tested(noise, [{"kind": kind} for kind in kinds])
    assert not few.checks and few.notes == [f"{note} (too few references)"]
    assert not none.checks and none.notes == [f"{note} (no references)"]
    made = Measurement()
    for _ in range(2):
        made.ability("EN-DE", ["a"], [None])
    assert made.notes == ["whether the model can do EN-DE was not tested (no references)"]


def test_what_rises_rises_in_every_group_whatever_their_order():
    rng = np.random.default_rng(1)
    groups = {}
    for language, slope in (("de", -0.002), ("zh", -0.002), ("ja", 0.5)):
        base = 1 + 0.2 * rng.standard_normal(30)
        groups[language] = [
            ({"language": language, "beta": str(b)}, "a_d", f"{50 + b}",
             base + slope * b + 0.02 * rng.standard_normal(30), language, {})
            for b in range(4)
        ]  # fmt: skip
    claim = {"question": "order", "of": {"metric": "a_d"}, "check": "rising", "over": "beta", "text": ""}
    said = [
        judged([row for name in order for row in groups[name]], claim, compare=("beta",)).verdict
        for order in (("de", "zh", "ja"), ("ja", "de", "zh"))
    ]
    assert said == [OPEN, OPEN]
    assert judged(groups["ja"], claim, compare=("beta",)).verdict == HOLDS


def test_a_series_with_level_neighbours_shows_its_ends():
    rng = np.random.default_rng(1)
    base = 1 + 0.2 * rng.standard_normal(30)
    rows = [
        ({"beta": str(b)}, "a_d", f"{50 + b}", base + level + 0.02 * rng.standard_normal(30), str(b), {})
        for b, level in enumerate((0, 0, 0.5, 0.5))
    ]
    claim = {"question": "order", "of": {"metric": "a_d"}, "check": "rising", "over": "beta", "text": ""}
    steady = judged(rows, claim, compare=("beta",))
    assert steady.verdict == HOLDS and steady.numbers.startswith("3 against 0: ")
    assert (
        steady.reason == "2 of 4 clearly so, 0 clearly not; these are the ends, and neighbours may be level"
    )
    last = (
        {"beta": "4"},
        "a_d",
        "54",
        *rows[-1][3:5],
        {"name": "3"},
    )  # shows the measurement of the row before
    copied = judged([*rows, last], claim, compare=("beta",))
    assert (copied.verdict, copied.reason) == (steady.verdict, steady.reason)
    assert copied.numbers == steady.numbers.replace("3 against", "4 against")
    rows[1][3][:] -= 0.1  # a step clearly goes the other way
    assert judged(rows, claim, compare=("beta",)).numbers.startswith("1 against 0: ")


def test_a_size_is_that_of_its_own_cell_up_to_rounding_and_the_control():
    rng = np.random.default_rng(2)
    claim = {"question": "size", "of": {"metric": "speedup"}, "text": ""}

    def rows(*pairs, spread=0.03):
        return [
            ({"method": "M", "task": str(i)}, "speedup", printed,
             value + spread * rng.standard_normal(30), str(i), {})
            for i, (printed, value) in enumerate(pairs)
        ]  # fmt: skip

    assert judged(rows(("3.0", 1.2), ("1.2", 3.0)), claim).verdict == FAILS, "each within the other's range"
    assert judged(rows(("1.5", 1.53)), claim).verdict == HOLDS, "1.5 stands for 1.45 to 1.55"
    assert judged(rows(("1.51", 1.53), spread=0.005), claim).verdict == OPEN, "the control is 2 % off"
    assert judged(rows(("1.51", 1.63), spread=0.005), claim).verdict == FAILS
    assert judged(rows(("1.5", 1.5), ("nan", 1.5)), claim).verdict == HOLDS, "one cell prints nothing"
    right = [judged(rows(*[("2", 2.0)] * 6, spread=0.4), claim).verdict for _ in range(40)]
    assert right.count(FAILS) <= 2

    def of_nine():
        return [
            ({"method": "M", "task": str(i)}, "tau", "2.000", 2 + 0.4 * rng.standard_normal(30), str(i), {})
            for i in range(9)
        ]

    claim = {"question": "size", "of": {"metric": "tau"}, "text": ""}
    exact = [judged(of_nine(), claim).verdict for _ in range(40)]
    assert exact.count(FAILS) <= 4, "one of nine intervals misses in a third of the tables"


# ---------------------------------------------------------------- 3: order, pays and size


def test_the_order_may_hold_where_nothing_pays():
    made = replay("unispec/table3", speeds(0.3))
    said = verdict_of(made, "In Japanese and German UniSpec is the fastest")
    assert (
        said.question == "order"
        and said.verdict == HOLDS
        and said.reason == "4 of 4 clearly so, 0 clearly not"
    )
    pays = verdict_of(made, "UniSpec speeds decoding up in every language")
    assert pays.verdict == FAILS and "0 of 3 clearly above 1, 3 clearly below" in pays.reason
    size = verdict_of(made, "The size of UniSpec's speedup")
    assert size.verdict == FAILS and size.reason.endswith(" are clearly not what was printed")
    made = replay("unispec/table3", speeds(1.0))
    assert verdict_of(made, "UniSpec speeds decoding up in every language").verdict == HOLDS
    assert verdict_of(made, "The size of UniSpec's speedup").verdict == HOLDS


def test_figure_3_compares_ssd_with_the_plain_decoder():
    rng = np.random.default_rng(0)
    figures = []
    for length, plain, ours in (("128", 92.6, 90.1), ("512", 80.0, 70.0)):
        for (method, n), value in {("Origin", "-"): plain, ("Origin+SSD", "3"): ours}.items():
            where = {"method": method, "draft_length": n, "generation_length": length, "shots": "-"}
            figures.append((where | {"task": "GSM8K"}, "throughput", mean(rng.normal(value, 0.2, 12))))
    made = replay("ssd/figure3", figures)
    said = verdict_of(made, "SSD is faster at every length")
    assert said.verdict == FAILS and "90.1" not in said.numbers and "70" in said.numbers
    assert made.counts()["clear_against"] == 2


# ---------------------------------------------------------------- 4: clear differences


def test_the_control_is_never_clear_and_bounds_what_is():
    """One decoder under two names, at 10.3 and 10.9 tokens/s, was once called clearly different."""
    rng = np.random.default_rng(0)
    texts = rng.normal(10.3, 0.05, 14)
    figures = [({"method": m, "language": "EN"}, "speedup", mean(v))
               for m, v in (("EAGLE-2", texts), ("EAGLE-3", texts * 10.9 / 10.3))]  # fmt: skip
    found = Measurement()
    found.control("autoregressive", texts * 10.9 / 10.3, texts)
    (control,) = found.checks
    assert control.value == pytest.approx(10.9 / 10.3) and control.low <= control.value <= control.high
    assert not any(each.clear for each in replay("unispec/table3", figures, [control]).comparisons)
    assert not any(each.clear for each in replay("unispec/table3", figures, []).comparisons), "no control"
    assert all(each.clear for each in replay("unispec/table3", figures, [QUIET]).comparisons)
    taus = [(where, "tau", value) for where, _, value in figures]
    assert all(each.clear for each in replay("unispec/table3", taus, [control]).comparisons), (
        "counts have no clock"
    )


def test_a_control_that_wrote_nothing_is_none_and_a_replay_can_be_saved(tmp_path):
    made = Measurement()
    for speed in (np.zeros(8), np.zeros(0)):
        made.control("stepwise", speed, speed)
    assert not made.checks
    made.control("stepwise", np.ones(8), np.array([0.0] * 6 + [2, 2]))
    (control,) = made.checks
    assert control.value == 2 and np.isfinite([control.low, control.high]).all()
    tokens, one = np.array([8.0] * 6), np.ones(6)
    theirs = np.array([0.0, 0, 0, 0, 0, 4])  # a draw may lack the only text with tokens
    few = resampled(quotient, tokens, one, theirs, one)
    assert few.median == 12 and np.isfinite([few.low, few.high]).all() and np.isnan(few.values).any()
    assert np.isnan(resampled(quotient, tokens, one, np.zeros(6), one).median)
    made.add({}, "speedup", np.inf)
    made.add({}, "speedup", 1.0, 0.5, np.inf)
    (figure,) = made.figures
    assert (figure.value, figure.low, figure.high) == (1.0, 0.5, None)
    figures = [({"method": m, "language": "EN"}, "speedup", few) for m in NAMES]
    replace(replay("unispec/table3", figures), path=tmp_path).save()
    assert replays.opened(tmp_path).measured


def test_resampling_draws_once_for_each_number_of_texts():
    assert claims_of_texts.drawn(12, 50) is claims_of_texts.drawn(12, 50)
    assert (claims_of_texts.drawn(12, 50).sum(1) == 12).all()
    with pytest.raises(ValueError, match="read-only"):
        claims_of_texts.drawn(12, 50)[0, 0] = 1


def test_copies_are_not_paid_for(monkeypatch):
    """Holm's family held the same difference twice, as a speedup and as a throughput."""
    monkeypatch.setattr(replays, "claims", lambda table: [])
    rng = np.random.default_rng(0)
    rows = [r for r in RECIPES["ssd/table1"].rows if r.method == "ssd"]
    speeds_of = [mean(rng.normal(2 + i / 20, 0.05, 12)) for i in range(len(rows))]
    alone, both = (
        replay("ssd/table1", [
            ({**row.where, "task": task}, metric, value.times(scale))
            for row, value in zip(rows, speeds_of) for task in ("GSM8K", "MATH")
            for metric, scale in metrics
        ])
        for metrics in ([("speedup", 1.0)], [("throughput", 10.0), ("speedup", 1.0)])
    )  # fmt: skip
    p = [each.p for each in alone.comparisons]
    assert [each.p for each in both.comparisons] == pytest.approx(p) and len(p) == 6 and 0.05 < max(p) < 1


def test_a_mean_of_parts_varies_as_much_as_its_parts_do():
    """Each part's draws vary too little, by its own number of texts, and costs a degree of freedom."""
    parts = {"task": {name: {} for name in "ABCDEFG"}}
    recipe = recipes.Recipe("run", ("method",), parts=parts, total=("task", "AVG"))
    rng, ratios = np.random.default_rng(0), []
    for _ in range(20):
        texts, made = rng.normal(0, 1, (7, 6)), Measurement()
        for task, values in zip("ABCDEFG", texts):
            made.add({"method": "m", "task": task}, "tau", mean(values))
        shared.totals(made, recipe)
        figure = made.figures[-1]
        ratios.append(figure.draws.std() / np.sqrt((texts.var(1, ddof=1) / 6).sum() / 49))
    assert np.mean(ratios) == pytest.approx(1, abs=0.03), "0.91 without"
    assert figure.texts == 42 - 7 + 1 and figure.source.texts == 42


def test_few_texts_and_many_comparisons_are_paid_for():
    texts = np.random.default_rng(0).normal(2, 0.01, 3)
    figures = [({"method": m, "language": "EN"}, "tau", mean(texts + i)) for i, m in enumerate(NAMES)]
    assert not any(each.clear for each in replay("unispec/table3", figures).comparisons), "three texts"
    assert judging.chance(1.0, np.full(9, 1.0), 6) == 2.0**-5
    ps = [0.01, 0.04, 0.03, 0.005]
    assert judging.holm(ps) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    rng = np.random.default_rng(1)
    level = 0
    for _ in range(100):  # nothing differs: in 95 of 100 tables none of ten comparisons may be clear
        values = rng.normal(size=(10, 12))
        found = [
            SimpleNamespace(value=v.mean(), texts=12, metric="tau", low=None, high=None,
                            source=shared.NOWHERE, draws=mean(v + 5).values - 5)
            for v in values
        ]  # fmt: skip
        ps = judging.holm([judging.difference(each, 0.0, 0.0).p for each in found])
        level += min(ps) <= 0.05
    assert level <= 12


def test_the_best_of_many_settings_is_paid_for():
    """With sixteen identical settings, the fastest is seldom called faster."""
    random, wrong = np.random.default_rng(0), {1: 0, 16: 0}
    for _ in range(200):
        found = random.normal(0, 1, (16, 12))
        best = found[found.mean(1).argmax()]
        draws = best[random.integers(0, 12, (500, 12))].mean(1)
        for tried in wrong:
            source = replace(shared.NOWHERE, texts=12, tried=tried)
            figure = shared.Figure({}, "bleu", float(best.mean()), texts=12, draws=draws, source=source)
            wrong[tried] += judging.difference(figure, 0.0, 0.0).p <= 0.05
    assert wrong[1] > 40  # of 200
    assert wrong[16] <= 10, wrong


def test_the_normal_approximation_is_students():
    stats = pytest.importorskip("scipy.stats")
    draws = judging.NORMAL
    for texts in (8, 14, 60):
        scale = np.sqrt(texts / (texts - 1))
        for t in (0.5, 1.5, 2.5):
            p = judging.chance(t * scale, draws / draws.std(), texts)
            assert p == pytest.approx(2 * stats.t.sf(t, texts - 1), rel=0.03)


# ---------------------------------------------------------------- 5: the large model hardly worked


def test_runs_in_which_the_large_model_hardly_worked_are_named():
    where = {"method": "BiLD", "dataset": "CNN/DailyMail"}
    idle = Check(IDLE, "method=BiLD", "CNN/DailyMail", 40, 40)
    made = replay(
        "bild/figure8", [(where, "speedup", mean(np.full(40, 3.0) + np.arange(40) / 99))], [QUIET, idle]
    )
    (said,) = made.verdicts
    assert "in 40 of 40 texts the large model never ran" in said.reason
    assert any("the small model wrote them alone" in line for line in made.remarks())


# ---------------------------------------------------------------- lossless


def test_lossless_is_a_matter_of_texts():
    rows = [({"method": m, "language": language}, "tau", mean(np.arange(1.0, 9.0))) for m in NAMES[2:]
            for language in LANGUAGES]  # fmt: skip
    checks = [Check(SAME, "method=UNISPEC (ours)", language, 8, 8) for language in LANGUAGES]
    claim = "UniSpec writes the target's own text"
    assert verdict_of(replay("unispec/table3", rows, checks), claim).verdict == HOLDS
    checks[1] = replace(checks[1], count=7)
    said = verdict_of(replay("unispec/table3", rows, checks), claim)
    assert said.verdict == FAILS and said.numbers == "23 of 24 texts are the reference's"
    assert verdict_of(replay("unispec/table3", rows, []), claim).verdict == OPEN
    made = replay("unispec/table3", rows, [*checks, *checks])  # older replays repeat them
    assert verdict_of(made, claim).numbers == said.numbers and len(made.remarks()) == 2
    # Texts in another format are no evidence for this one.
    checks[1] = replace(checks[1], by="another bfloat16")
    said = verdict_of(replay("unispec/table3", rows, checks), claim)
    assert said.verdict == HOLDS and said.numbers == "16 of 16 texts are the reference's"


def test_texts_of_a_contender_in_several_rows_are_counted_once():
    made = Measurement()
    made.by("unispec", {"draft_size": 2})
    for mine in (["a", "b"], ["a", "b"], ["a", "x"]):
        made.same_texts("QA", mine, ["a", "b"])
    assert [(check.count, check.of) for check in made.checks] == [(2, 2), (1, 2)]


def test_every_task_needs_all_tasks():
    tasks_of = list(RECIPES["unispec/table1"].parts["task"])
    claim, values = "UniSpec speeds decoding up in every task", 1.5 + 0.02 * np.arange(-6, 6)
    rows = [({"method": "UNISPEC (ours)", "task": task}, "speedup", mean(values)) for task in tasks_of]
    (one, every) = (verdict_of(replay("unispec/table1", some), claim) for some in (rows[:1], rows))
    assert every.verdict == HOLDS and "judged for" not in every.reason
    assert one.verdict == OPEN and one.reason.endswith("1 of 1 clearly above 1, 0 clearly below; "
                                                       "judged for 1 of 7 tasks")  # fmt: skip
    slow = [({"method": "UNISPEC (ours)", "task": "MT"}, "speedup", mean(values / 3))]
    assert verdict_of(replay("unispec/table1", slow), claim).verdict == FAILS, "one is enough"
    # A claim that does not say "every" holds of what was measured, and says of how much.
    figures = [({"method": m}, "speedup", mean(v * values)) for m, v in (("SpecDec(k=10)", 1), ("CM-ASD", 2))]
    held = verdict_of(replay("cm_asd/table1", [({**w, "task": "EN-DE"}, *more) for w, *more in figures]),
                      "CM-ASD is faster than SpecDec with drafts of 10")  # fmt: skip
    assert held.verdict == HOLDS and held.reason.endswith("judged for 1 of 4 tasks")


def test_a_part_that_changes_nothing_does_not_make_it_faster():
    """A rival that is the same contender here vanished from the verdict: 1 of 1 was clearly slower."""
    rng = np.random.default_rng(0)
    rows = [
        ({"method": method, "task": "QA"}, "speedup", "1.5", level + 0.02 * rng.standard_normal(30), "QA",
         {"name": name})
        for method, level, name in (
            ("whole", 2.0, "A"), ("w/o part", 1.5, "B"), ("w/o other", 2.0, "A"), ("w/o third", 2.0, "A")
        )
    ]  # fmt: skip
    claim = {"question": "order", "of": {"metric": "speedup"}, "check": "best", "over": "method",
             "is": "whole", "text": ""}  # fmt: skip
    assert judged(rows[:2], claim).verdict == HOLDS
    for count, words in ((3, "1 more comparison"), (4, "2 more comparisons")):
        judgement = judged(rows[:count], claim)
        assert judgement.verdict == OPEN
        assert judgement.reason.endswith(f"0 clearly not; in {words} both sides are the same contender here")
    rows[1] = (*rows[1][:3], rows[1][3] + 1, *rows[1][4:])
    assert judged(rows, claim).verdict == FAILS


def test_every_language_needs_something_to_compare():
    claim, ours = "In Japanese and German UniSpec is the fastest", "UNISPEC (ours)"
    assert verdict_of(replay("unispec/table3", speeds(1.0)), claim).verdict == HOLDS
    alone = [each for each in speeds(1.0) if each[0]["language"] != "DE" or each[0]["method"] == ours]
    half = verdict_of(replay("unispec/table3", alone), claim)
    assert half.verdict == OPEN and half.reason.endswith("judged for 1 of 2 languages")


def test_a_baseline_with_an_exact_figure_needs_no_comparison():
    methods = [dict(row.where)["method"] for row in RECIPES["cm_asd/table3"].rows]
    values = 1.5 + 0.02 * np.arange(-6, 6)
    figures = [({"method": m, "task": "EN-DE"}, "speedup", mean(values)) for m in methods]
    missing = verdict_of(replay("cm_asd/table3", figures[1:]), "The whole method is the fastest").reason
    beams = ({"method": methods[0], "task": "EN-DE"}, "speedup", 1.0)
    exact = verdict_of(
        replay("cm_asd/table3", [beams, *figures[1:]]), "The whole method is the fastest"
    ).reason
    assert missing.endswith("judged for 7 of 8 methods") and "judged for" not in exact
    two = replay("cm_asd/table3", [beams, figures[-1]])
    nothing = verdict_of(two, "The whole method is the fastest")
    assert nothing.verdict == OPEN and "judged for" not in nothing.reason


def test_what_cannot_be_compared_has_the_reason_of_what_is_missing():
    claim, ours = "In Japanese and German UniSpec is the fastest", "UNISPEC (ours)"
    rivals = [each for each in speeds(1.0) if each[0]["method"] != ours]
    made = replay("unispec/table3", rivals, absent=[({"method": ours}, "no store")])
    assert verdict_of(made, claim).reason == "no store"
    alone = [each for each in speeds(1.0) if each[0]["method"] == ours]
    heads = [({"method": "EAGLE-2"}, "no head"), ({"method": "EAGLE-3"}, "no other head")]
    assert verdict_of(replay("unispec/table3", alone, absent=heads), claim).reason == "no head; no other head"


@pytest.mark.parametrize("older", [False, True])
def test_an_honest_result_is_judged_as_its_makers_did(tmp_path, older):
    """Differences on the same texts are clear that the cells' own intervals cannot show."""
    rng = np.random.default_rng(0)
    texts = rng.normal(5, 2, 24)
    figures = []
    for i, row in enumerate(RECIPES["cm_asd/table3"].rows):
        noise = 0.05 * rng.standard_normal(24)
        where = {**row.where, "task": "EN-DE"}
        figures += [(where, "accepted_tokens", mean(texts + 0.3 * i + noise)),
                    (where, "draft_latency", 3.0 + i),
                    (where, "bleu", mean(np.full(24, 90.0 + i)))]  # fmt: skip
    made = replace(replay("cm_asd/table3", figures), path=tmp_path)
    made.save()
    if older:
        content = json.loads((tmp_path / "replay.json").read_text("utf8"))
        del content["figures"]
        (tmp_path / "replay.json").write_text(json.dumps(content), "utf8")
    there = replays.opened(tmp_path)
    again, changed = kits.rejudged(there, tmp_path)
    assert verdict_of(made, "The whole method accepts most").verdict == HOLDS
    assert verdict_of(again, "The whole method accepts most").verdict == HOLDS
    if not older:
        assert not changed and [v.verdict for v in again.verdicts] == [v.verdict for v in made.verdicts]
        assert again.counts() == made.counts()
        bleu = [each for each in made.comparisons if made.cells[each.first].metric == "bleu"]
        assert bleu and all(each.clear for each in bleu), "constants that differ"


def test_facts_of_figures_are_checked(tmp_path):
    made = replace(replay("unispec/table3", speeds(1.5)), path=tmp_path)
    made.save()
    for damage in ([{"texts": -1, "derived": False}] * 99, [{"texts": 9}] * 99, made.figures[:1]):
        content = made.content | {"figures": damage}
        with pytest.raises(TraceError, match="damaged"):
            replays.of_content(content, tmp_path / "replay.json", tmp_path)


# ---------------------------------------------------------------- 6, 13: contents of a result


def test_the_set_up_is_what_was_measured_not_what_was_typed(tmp_path):
    """A folder named Qwen3-4B is reported by its own name and weights digest, not from the recipes."""
    figures = speeds(1.0)
    made = replay("unispec/table3", figures)
    for cell in made.measured:
        cell.source = replace(
            cell.source, model="Qwen3-4B", weights="abc123", suite="flores", kernels="plain"
        )
    here = {each["what"]: each["here"] for each in made.setup}
    assert "Qwen3-4B" in here["model"] and "abc123" in here["model"] and "flores" in here["data"]
    assert "plain kernels" in here["device"]
    text = markdown.csv(made)
    assert "here_weights" in text.splitlines()[0] and "abc123" in text


def test_a_stored_replay_is_shown_without_today_s_recipes(tmp_path, monkeypatch):
    made = replace(replay("unispec/table3", speeds(1.0)), path=tmp_path)
    before = markdown.markdown(made)
    made.save()
    content = json.loads((tmp_path / "replay.json").read_text("utf8"))
    content["table"] = "unispec/table99"  # from a later version, or a removed table
    (tmp_path / "replay.json").write_text(json.dumps(content))
    for module in (replays, terminal, running):
        for name in ("RECIPES", "CURVES"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, {})
    monkeypatch.setattr(recipes, "RECIPES", {})
    again = replays.opened(tmp_path)
    assert markdown.markdown(again) == before.replace("unispec/table3", "unispec/table99")
    pytest.importorskip("plotly")
    assert "unispec/table99" in page.write(again).read_text("utf8")


def test_a_control_with_half_an_interval_is_refused_in_one_line(tmp_path):
    made = replace(replay("unispec/table3", speeds(1.0)), path=tmp_path)
    made.save()
    content = json.loads((tmp_path / "replay.json").read_text("utf8"))
    content["checks"][0]["high"] = None
    (tmp_path / "replay.json").write_text(json.dumps(content))
    with pytest.raises(TraceError, match="half an interval"):
        replays.opened(tmp_path)


def test_a_curve_leaves_out_what_was_not_measured():
    cells = [SimpleNamespace(metric="tau", measured=value, column=lambda name, at=at: at)
             for at, value in (("1", 1.2), ("2", None), ("3", 1.5))]  # fmt: skip
    made = SimpleNamespace(cells=cells, compare=("draft_size",), table="unispec/figure6")
    (figure,), _ = plots.curve_figures(made, {})
    assert figure[1]["data"][0]["y"] == [1.2, 1.5] and figure[1]["data"][0]["x"] == ["1", "3"]


def test_the_first_lines_of_a_page_are_its_verdicts(tmp_path):
    pytest.importorskip("plotly")
    made = replace(replay("unispec/table3", speeds(0.3)), path=tmp_path)
    text = page.write(made).read_text("utf8")
    body = text[text.index("<main>") :]
    assert body.index("fails here") < body.index("UniSpec speeds decoding up in every language")
    assert body.index("UniSpec speeds decoding up") < body.index("How the run was made")
    assert body.index("UniSpec speeds decoding up") < body.index("class='figure'")


# ---------------------------------------------------------------- 8: below the budget


def test_the_edge_s_own_probability_is_a_score_and_leaves_a_tree():
    tokens, parents = np.arange(6), np.array([-1, -1, 0, 2, 1, 4])
    score = np.array([0.1, 0.6, 0.9, 0.95, 0.2, 0.3], np.float32)
    grown = Grown(tokens, parents, score, np.zeros(6, bool))
    draft, _ = grown.cut(3, Growth(10, 10, 0.05, score="edge"))
    assert sorted(draft.tokens.tolist()) == [0, 2, 3], "the surest nodes, with their doubtful ancestor"
    assert draft.parents.tolist() == [-1, 0, 1]


# ---------------------------------------------------------------- 7: whose calibration


def calibration(points, texts=4):
    """A calibration from (draft size, tokens per cycle, seconds per cycle)."""
    from specviz.calibration import Calibration, Point
    from specviz.measure import fits

    made = [
        Point(g, [int(100 * tau)] * texts, [100] * texts, [[100 * seconds] * texts])
        for g, tau, seconds in points
    ]
    found = Calibration({}, "draft_size", {"prompts": texts}, made)
    found.fits = fits.fit(*(found.measured()[i] for i in (0, 2, 1)))
    return found


POINTS = [(4, 1.6, 1.0), (8, 1.9, 1.1), (16, 2.2, 1.3), (32, 2.4, 1.9), (64, 2.5, 3.0)]


def test_the_paper_s_fit_decides_and_ours_is_printed_beside_it(tmp_path, monkeypatch):
    found = calibration(POINTS)
    assert found.fits["paper"].g != found.fits["monotone"].g, "else this shows nothing"
    for fit in ("paper", "monotone"):
        given = options(tmp_path, fit=fit)
        monkeypatch.setattr(RunOptions, "calibration", lambda self, method, values: found)
        assert given.best("unispec") == found.fits[fit].g
        words = given.calibrated_words("unispec")
        assert f"{found.fits['paper'].g} by the paper's fit" in words
        assert "4 prompts of your own calibration, which may be among those measured here" in words
        given.memory["g*"] = found  # calibrated here, on bundled prompts
        words = given.calibrated_words("unispec")
        assert "4 prompts of the bundled suite town, which may be among those measured here" in words
        given = replace(given, practice=({"prompt": "a"},))
        assert "on 4 other prompts" in (words := given.calibrated_words("unispec")) and "among" not in words
        assert f"{found.fits['monotone'].g} by ours" in words and "5 sizes from 4 to 64" in words
    ends = calibration([(g, 1.0, 1.0 / g) for g in (4, 8, 16, 32)])
    monkeypatch.setattr(RunOptions, "calibration", lambda self, method, values: ends)
    assert "(32 is at the end of the range)" in options(tmp_path).calibrated_words("unispec")
    with pytest.raises(ParameterError, match="fit must be 'paper' or 'ours'"):
        specviz.replay("unispec/table1", fit="best", out=tmp_path / "none")


def test_a_draft_size_is_calibrated_on_all_texts_and_for_the_row_s_own_parameters(tmp_path, monkeypatch):
    from specviz.measure import calibrate

    calls = []

    def made(model, method, **how):
        calls.append((method, how))
        return calibration(POINTS)

    monkeypatch.setattr(calibrate, "calibrate", made)
    monkeypatch.setattr("specviz.calibration.stored", lambda where: running.find("none"))  # there is none
    monkeypatch.setattr("specviz.loop.machine.calibration_setting", lambda model, method: {})
    given = options(tmp_path, number=4)
    given = replace(given, model=SimpleNamespace(name="m", dtype="d", device="cpu"))
    (lookahead,) = (row for row in RECIPES["unispec/table17"].rows if row.method == "lookahead" and row.ours
                    and row.calibrated)  # fmt: skip
    assert given.sized(lookahead)["draft_size"] == given.best("lookahead", {"ngram": 5})
    assert calls[0][1]["ngram"] == 5 and calls[0][1]["number"] == shared.CALM[0] and len(calls) == 1
    edge = running.with_options("unispec/table13", RECIPES["unispec/table13"], "authors", "edge")
    sizes = [given.sized(row)["draft_size"] for row in edge.rows]
    assert calls[1][1]["score"] == "edge" and len(calls) == 2
    assert sizes[3] == calibration(POINTS).fits["paper"].g
    given = replace(given, practice=tuple({"prompt": f"p{i}"} for i in range(4)))
    given.best("unispec")
    assert len(calls[2][1]["suite"]) == 2, "half of the other prompts; the rest warm up"


def test_a_calibration_is_on_other_prompts_of_the_run_s_own_suite():
    from specviz.replays.sources import prompts

    recipe = RECIPES["unispec/table15"]
    mine = Suite([{"id": str(i), "prompt": f"p{i}", "kind": "qa", "language": "en"} for i in range(20)], "m")
    given = SimpleNamespace(suites={tasks.PLAIN: mine}, number=4, peers=())
    (chosen, warm), rest = prompts.divided(recipe, given, Measurement())
    used = [entry["id"] for entry in (*chosen, *warm)]
    assert len(used) == 7 and not {entry["id"] for entry in rest} & set(used) and len(rest) == 13
    sizes = shared.IN_CALM["sizes"]
    assert max(sizes) == 256 and max(shared.IN_HASTE["sizes"]) == 64


def test_table_14_and_figure_6_are_drawn(tmp_path, monkeypatch):
    from specviz.replays import plots
    from specviz.replays.recipes import CURVES
    from specviz.replays.sources import curves

    found = calibration(POINTS)
    monkeypatch.setattr(curves, "practised", lambda recipe, options, made: found)
    monkeypatch.setattr(Measurement, "begin", classmethod(lambda cls, options: cls()))
    for table, source in (("unispec/curve14", curves.fitted), ("unispec/figure6", curves.samples)):
        made = replays.compared(table, CURVES[table], source(CURVES[table], None), {"table": table})
        names = {
            name
            for _, figure in plots.curve_figures(made, {})[0]
            for name in (t["name"] for t in figure["data"])
        }
        assert "ours" in names and len(names) >= 2 and made.drawn
    assert made.place == "Figure 6" and {c.keys["prompts"] for c in made.cells} == {1, 2, 3, 4}


# ---------------------------------------------------------------- 8, 9, 10


def test_one_run_serves_every_table_of_the_same_prompts():
    """One run fills nine tables; two benches once measured them with different averages."""
    from specviz.measure import BENCHES

    assert not {"ablation", "temperature", "precision", "context", "threshold", "deviation"} & set(BENCHES)
    peers = running.peers_of(True, {"model": "town"})
    assert len(peers["peers", "unispec/table1"]) == 8 and ("peers", "ssd/table1") not in peers
    recipe = RECIPES["unispec/table2"]
    rows = [row for each in (recipe, *peers["peers", "unispec/table2"]) for row in each.rows]
    assert len({(row.method, str(dict(row.values))) for row in rows}) < len(rows), "contenders are shared"


def test_a_real_model_is_taken_where_it_is_downloaded(monkeypatch, real_models):
    from specviz import models

    recipe = RECIPES["unispec/table1"]
    monkeypatch.setattr(models, "available", lambda: {"town": None})
    assert running.on_real(recipe) is recipe and recipe.model == "town"
    monkeypatch.setattr(models, "available", lambda: {"smollm2": None, "bergamot-en-pt": None})
    assert (running.on_real(recipe).model, running.on_real(recipe).suite) == ("smollm2", "everyday")
    streams = running.on_real(RECIPES["ssbd/table3"])
    assert streams.model == "bergamot:en-pt" and any("Portuguese" in ours for _, _, ours in streams.differs)
    assert running.on_real(RECIPES["unispec/table3"]).model == "town", "languages are the toy's"


@pytest.mark.parametrize("table", ["bild/table1", "cm_asd/table4", "unispec/table1", "bild/figure2"])
def test_naming_the_real_model_is_the_same_as_naming_none(table, monkeypatch, tmp_path, real_models):
    from specviz import models

    monkeypatch.setattr(models, "available", lambda: {"smollm2": None})
    monkeypatch.setattr(running, "measure", lambda recipe, settings, given, tick: (recipe, settings))
    out = tmp_path / "none"
    recipe, settings = running.replay(table, out=out)
    assert recipe.model == settings["model"] == "smollm2"
    assert running.replay(table, model="smollm2", out=out) == (recipe, settings)
    assert running.replay(table, model="town-t5", out=out)[0].model != "smollm2"


def test_texts_of_one_s_own_for_a_named_real_model_keep_its_drafters(monkeypatch, tmp_path, real_models):
    from specviz import models

    monkeypatch.setattr(models, "available", lambda: {"smollm2": None})
    monkeypatch.setattr(running, "measure", lambda recipe, settings, given, tick: (recipe, settings))
    given = {"suite": suite(kind="summarization", language="en"), "out": tmp_path / "none"}
    recipe, settings = running.replay("bild/table1", model="smollm2", **given)
    assert settings["drafts"] == {"small": "smollm2-draft", "aligned": "smollm2-draft-aligned"}
    assert recipe.parts == RECIPES["bild/table1"].parts
    assert running.replay("bild/table1", **given)[0].model == "town-t5"
    loaded = SimpleNamespace(name="smollm2 (4-bit, dequantised)")
    assert running.recipe_for(RECIPES["bild/table1"], loaded, None).suite == "passages"
    assert running.roles(recipe, loaded, None) == settings["drafts"]
    assert not running.named(Path("smollm2"), "smollm2")
    folders = running.roles(recipe, loaded, {"small": Path("smollm2-draft")})
    assert folders == settings["drafts"] | {"small": "./smollm2-draft"}


def test_a_translator_s_own_language_pair_stays_with_texts_of_one_s_own(monkeypatch, real_models):
    from specviz import models

    monkeypatch.setattr(models, "available", lambda: {"bergamot-en-pt": None})
    labels = {"kind": "translation", "from": "en", "source": "A cat."}
    own = {code: suite(language=code, **labels) for code in ("pt", "zh")}
    recipe = running.recipe_for(RECIPES["ssbd/table3"], "bergamot:en-pt", own["pt"])
    tasks.check_suites(recipe, {tasks.PLAIN: own["pt"]})
    with pytest.raises(ParameterError, match="language pt"):
        tasks.check_suites(recipe, {tasks.PLAIN: own["zh"]})
    bundled = running.recipe_for(RECIPES["ssbd/table3"], None, own["zh"])
    tasks.check_suites(bundled, {tasks.PLAIN: own["zh"]})
    assert bundled.model == "town-translator"


def test_a_table_gets_the_drafters_of_the_recipe_that_it_follows(monkeypatch, tmp_path, real_models):
    from specviz import models

    drafts = {}

    def measure(recipe, settings, *_):
        drafts[settings["table"]] = settings["drafts"]
        raise ModelError("not measured")

    monkeypatch.setattr(models, "available", lambda: {"smollm2": None})
    monkeypatch.setattr(running, "measure", measure)
    all_tables = running.replay_all(tmp_path, quick=True, draft={"small": "a", "heads": "b"})
    assert drafts["cm_asd/table1"] == {"small": "a", "heads": "b"}
    assert drafts["cm_asd/table4"] == {"small": "a"}, "SmolLM2's recipe has no heads"
    assert not [why for why in all_tables.left.values() if "drafter" in why]


def test_bild_s_figures_are_about_what_they_are_about():
    """Figure 5 has windows 3 to 10, Figure 7 BiLD's curve and five decays, and Figure 8 counts."""
    from specviz.replays import contenders
    from specviz.replays.recipes import CURVES

    figure = CURVES["bild/figure5"]
    for whole in (figure.whole, figure.real["whole"]):
        assert set(whole["windows"]) == set(range(3, 11))
    decays = {p.values.get("decay") for p in contenders.leaving(None, SimpleNamespace(name="m"))}
    assert decays - {None} == {0, 1, 2, 4, 8} == set(CURVES["bild/figure7"].whole["decays"])
    assert CURVES["bild/figure7"].options["curves"] == ["CALM", "early exit"]
    metrics = set(specviz.published("bild/figure8")["metric"])
    assert metrics == {"speedup", "byte_reduction", "intensity_ratio"}
    assert RECIPES["bild/figure8"].options["costs"]


def settings_of(curve, numbers):
    """The settings of a curve of BiLD's for a recipe's numbers."""
    return thresholds.CURVES[curve](SimpleNamespace(model=None, drafter=lambda role: None), numbers)


def check_grid(numbers):
    """Check that BiLD without rollback and without fallback is measured at all of a recipe's numbers."""
    from specviz.replays import contenders

    points = settings_of("without", numbers)
    kept, blind = (
        [p.values for p in points if p.group == group]
        for group in (contenders.NO_ROLLBACK, contenders.NO_FALLBACK)
    )
    assert [values["fallback"] for values in kept] == numbers["fallbacks"]
    wanted = [(window, r) for window in numbers["windows"] for r in numbers["rollbacks"]]
    assert [(values["cap"], values["rollback"]) for values in blind] == wanted
    assert len(points) == 1 + len(kept) + len(blind), "and greedy decoding"


def test_figure_5_is_measured_at_all_numbers_of_its_recipe():
    """Only those were measured that also were in a fixed grid, which lacks the quick recipe's 0.6."""
    from specviz.replays.recipes import CURVES

    recipe = CURVES["bild/figure5"]
    for numbers in (recipe.quick, recipe.whole, recipe.real["quick"], recipe.real["whole"]):
        check_grid(numbers)


@pytest.mark.parametrize("table", ["bild/figure5", "bild/table3", "bild/table4"])
def test_the_paper_s_own_models_are_measured_with_every_window(table):
    """Their setups once had window 10 alone, though the recipes promise the fastest of 3 to 10."""
    from specviz.replays.recipes import CURVES

    recipe = RECIPES.get(table) or CURVES[table]
    for part in setups.Setups().of(table):
        chosen = setups.choose(table, recipe, "paper", part.name)
        numbers = chosen.recipe.whole
        assert set(numbers["windows"]) == set(range(3, 11))
        check_grid(numbers)
        named = chosen.recipe.options["curves"]
        runs = sum(len(settings_of(curve, numbers)) + 1 for curve in named)
        assert dry_run.contenders(chosen) == runs, "and a control for each curve"
        drawn = {p.values.get("draft_length") for p in settings_of(recipes.REJECTION, numbers)}
        assert drawn - {None} == set(range(3, 11))


# ---------------------------------------------------------------- 11 and others


def test_rouge_lsum_stands_beside_rouge_l():
    right, text = "the cook lost her bag. a doctor found it.", "a doctor found it. the cook lost her bag."
    scores = Rouge()(right, text)
    assert scores["rougeLsum"] == pytest.approx(100) and scores["rougeL"] < 60
    theirs = [theirs for what, theirs, _ in RECIPES["bild/table1"].differs if what == "ROUGE-L"]
    assert theirs == ["CNN/DailyMail's is ROUGE-Lsum, judging by its size"]


def test_texts_without_references_have_no_score_and_stop_nothing():
    score = Score([{"prompt": "a", "kind": "translation"}])
    assert score.name == "" and np.isnan(score.of(score.statistics(["x"]).sum(0)))


def test_a_conversation_is_read_by_its_first_turn():
    entry = {"id": "1", "turns": ["a", "b"], "reference": ["of b"], "kind": "qa"}
    assert tasks.single(entry) == {"id": "1", "prompt": "a", "kind": "qa"}
    assert tasks.single({"prompt": "a"}) == {"prompt": "a"}


def test_conversations_without_a_kind_are_ssd_s_prompts_and_others_are_refused(tmp_path):
    talks = [{"id": str(i), "turns": [f"first {i}", "and then?"], "reference": ["it"]} for i in range(4)]
    recipe, made = RECIPES["ssd/table1"], Measurement()
    given = {"MATH": Suite(talks, "talks")}
    tasks.check_suites(recipe, given)
    chosen = canvases.prompts_of(recipe, options(tmp_path, given), made)
    wanted = [{"id": str(i), "prompt": f"first {i}", "kind": "arithmetic"} for i in range(3)]
    assert chosen == {"MATH": wanted}
    stated = {"MATH": Suite([{**each, "kind": "conversation"} for each in talks], "talks")}
    with pytest.raises(ParameterError, match=r"--suite MATH: talks has no prompt of kind arithmetic"):
        tasks.check_suites(recipe, stated)


def test_what_fails_leaves_what_was_decoded(tmp_path):
    made = Measurement()
    made.add({"task": "A"}, "tau", 2.0)
    with made.keeping({"task": "B"}):
        raise ParameterError("no such thing")
    assert len(made.figures) == 1 and made.absent == [({"task": "B"}, "no such thing")]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"table": "ssd/table3", "template": "x {source}"}, "template is for sources that arrive in updates"),
        ({"table": "ssd/table3", "score": "edge"}, "score applies to UniSpec"),
        ({"table": "unispec/table12", "score": "best"}, "score must be one of product, least, edge"),
        ({"table": "unispec/figure3", "score": "edge"}, "figure3 is of the paper's own score alone: drop"),
        ({"table": "unispec/table1", "baselines": "mine"}, "baselines must be 'authors' or 'ours'"),
        ({"table": "unispec/table3", "baselines": "ours"}, "has no baseline with parameters of ours"),
        ({"table": "bild/table1", "fit": "ours"}, "fit decides a calibrated draft size"),
        ({"table": "unispec/figure5", "number": 4}, "drop number and max_new_tokens"),
        ({"table": "unispec/figure6", "max_new_tokens": 4}, "drop number and max_new_tokens"),
        ({"table": "unispec/curve14", "number": 4}, "drop number and max_new_tokens"),
    ],
)
def test_options_that_a_table_cannot_use_are_refused_by_name(more, says, tmp_path):
    with pytest.raises(ParameterError, match=says):
        specviz.replay(**more, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_of_the_options_for_all_tables_each_gets_those_that_it_can_use(monkeypatch, tmp_path):
    options = {"number": 4, "max_new_tokens": 8, "baselines": "ours", "fit": "ours", "score": "edge",
               "template": "qwen3"}  # fmt: skip
    seen = {}

    def replay(table, **given):
        seen[table] = set(options) - set(given)
        raise ModelError("not measured")

    monkeypatch.setattr(running, "replay", replay)
    running.replay_all(tmp_path, quick=True, **options)
    assert seen["unispec/table1"] == {"template"}
    assert seen["unispec/table3"] == {"baselines", "template"}
    assert seen["unispec/figure6"] == {"number", "max_new_tokens", "baselines", "score", "template"}
    assert seen["bild/table1"] == {"baselines", "fit", "score", "template"}
    assert seen["ssbd/table2"] == {"baselines", "fit", "score"}
    with pytest.raises(ParameterError, match="no table has a drafter 'smal'; the roles are aligned, "):
        running.replay_all(tmp_path, draft={"smal": "mine"})
    with pytest.raises(ParameterError, match="chat is for one model, and the tables use several"):
        running.replay_all(tmp_path, chat={"enable_thinking": False})


def test_a_chat_template_s_variables_are_given_or_refused():
    text = SimpleNamespace(tokenizer=SimpleNamespace(chat_template="{{ enable_thinking }}"), chat={})
    model = SimpleNamespace(name="m", text=text)
    with running.chatting(model, {"enable_thinking": False}):
        assert text.chat == {"enable_thinking": False}
    assert text.chat == {}
    with (
        pytest.raises(ParameterError, match="does not read 'thinking'"),
        running.chatting(model, {"thinking": 1}),
    ):
        pass
    with (
        pytest.raises(ParameterError, match="has no chat template"),
        running.chatting(SimpleNamespace(name="m"), {"a": 1}),
    ):
        pass


def test_the_authors_settings_are_the_default_and_ours_an_option():
    recipe = RECIPES["unispec/table1"]
    mine = running.with_options("unispec/table1", recipe, "ours", None)
    values = {row.method: (dict(row.values), dict(own.values)) for row, own in zip(recipe.rows, mine.rows)}
    assert values["lookahead"] == ({"draft_size": 120, "ngram": 5}, {})
    assert values["spectra"] == ({"draft_size": 60}, {})
    assert values["unispec"][0] == values["unispec"][1]


def test_provenance_is_plain_data():
    source = Provenance(model="m", threads=1, device="cpu", processor="P", dtype="float32", kernels="plain")
    assert Provenance.read(source.as_dict()) == source
    assert source.place == "cpu (P), 1 thread, float32, plain kernels"
    assert [c for c in claims("unispec/table3") if c["question"] == "pays"]


# ---------------------------------------------------------------- what a user brings


def test_suites_of_one_kind_and_one_language_fill_what_they_can():
    gsm8k = suite(kind="arithmetic", language="en")
    parts = tasks.tasks_of(RECIPES["ssd/table1"])
    got = {task: bool(tasks.own_prompts({"GSM8K": gsm8k}, task, part)[0]) for task, part in parts.items()}
    assert got == {"GSM8K": True, "MATH": False, "HumanEval": False, "MBPP": False}
    german = suite(kind="translation", language="de", source="A cat.", **{"from": "en"})
    parts = tasks.tasks_of(RECIPES["ssbd/table2"])
    got = {task: tasks.own_prompts({tasks.PLAIN: german}, task, part) for task, part in parts.items()}
    assert [task for task, (prompts, _) in got.items() if prompts] == ["English→German"]
    assert "language de" in got["English→Chinese"][1], "a reason, before anything is decoded"
    french = suite(kind="translation", language="de", **{"from": "fr"})
    with pytest.raises(ParameterError, match="no prompt of kind translation, from en, language de"):
        tasks.check_suites(RECIPES["ssbd/table2"], {tasks.PLAIN: french})
    chats = Suite([{"id": "a", "prompt": [{"role": "user", "content": "b"}]}], "mine")
    instruction = Suite([{"id": "a", "prompt": "Translate: A cat.", "kind": "translation"}], "mine")
    for without in (chats, instruction):
        with pytest.raises(ParameterError, match="prompt a has no source text"):
            tasks.check_suites(RECIPES["ssbd/table2"], {"English→German": without})


def test_a_role_that_a_model_lacks_leaves_its_rows_empty(tmp_path):
    from specviz.replays import contenders
    from specviz.replays.sources import thresholds

    drafts = running.roles(RECIPES["cm_asd/table1"], "my-model", {"small": "my-draft"})
    assert drafts == {"small": "my-draft", "heads": ""}
    given = options(tmp_path)
    given.drafts = drafts
    assert given.drafter("heads") is None
    assert "name one with --draft heads=NAME" in thresholds.no_drafter(given, "heads")
    labels = [point.label for point in contenders.lineup(SimpleNamespace(name="m"), None)]
    assert not any(label.startswith("blockwise") for label in labels)


def test_how_many_prompts_is_a_number_and_no_suite(tmp_path):
    from specviz.cli import replaying

    with pytest.raises(ParameterError, match="for a count, use --number 8"):
        replaying._suites(["8"])
    for command, given in (
        (replaying._drafters, ["small=a", "small=b"]), (replaying._suites, ["MBPP=a", "MBPP=b"]),
        (replaying._variables, ["thinking=true", "thinking=false"]),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match="is given twice: "):
            command(given)
    assert replaying._suites(["GSM8K=gsm8k", "MBPP=mbpp"]) == {"GSM8K": "gsm8k", "MBPP": "mbpp"}
    assert replaying._suites(["flores:en-de=here.tsv"]) == "flores:en-de=here.tsv"
    file = tmp_path / "lr=1.jsonl"
    assert replaying._suites([str(file)]) == {f"{tmp_path}/lr": "1.jsonl"}
    file.touch()
    assert replaying._suites([str(file)]) == replaying._drafters([str(file)]) == str(file)


def test_what_a_cycle_costs_stands_beside_a_speedup():
    figures = [({"method": m, "language": "EN"}, metric, value) for m in NAMES
               for metric, value in (("speedup", mean(np.full(12, 0.5) + np.arange(12) / 999)),
                                     ("tau", mean(np.full(12, 2.0) + np.arange(12) / 999)))]  # fmt: skip
    told = verdict_of(replay("unispec/table3", figures), "UniSpec speeds decoding up in every language")
    assert "a cycle writes 2.01 tokens and costs as much as 3.97 plain tokens" in told.numbers


def test_a_page_of_all_tables_begins_with_whether_it_pays(tmp_path):
    pytest.importorskip("plotly")
    from specviz.replays.answers import answers

    made = replace(replay("unispec/table3", speeds(0.3)), path=tmp_path)
    every = replays.Replays(tmp_path, [made], {})
    (each,) = answers([made])
    assert each.words == "does not pay here" and each.count(FAILS) >= 2
    assert each.evidence[1].claim == "UniSpec speeds decoding up in every language"
    text = page.write(every).read_text("utf8")
    body = text[text.index("<main>") :]
    assert body.index("does not pay here") < body.index("Fails here") < body.index("id='overview'")
    assert "UniSpec speeds decoding up in every language" in body[: body.index("Fails here")]
    assert "does not pay here" in markdown.markdown(every)
    (other,) = answers([replay("unispec/table3", speeds(1.0))])
    assert other.words == "pays here"


def test_the_largest_model_decides_whether_a_paper_pays():
    from specviz.replays.answers import answers

    def of(model, parameters, value, table="unispec/table3"):
        made = replay("unispec/table3", speeds(value))
        made = replace(made, table=table, verdicts=made.verdicts if table == made.table else [])
        cells = []
        for each in made.cells:
            if each.source is not None:
                each = replace(each, source=replace(each.source, model=model, parameters=parameters))
            cells.append(each)
        return replace(made, cells=cells)

    small, large = of("toy", 2_000_000, 0.3), of("real", 135_000_000, 1.0)
    for tables in ([small, large], [large, small]):
        (each,) = answers(tables)
        assert each.words == "pays here, on real" and len(each.claims) == 2 * len(small.verdicts)
    (each,) = answers([small, small])
    assert each.words == "does not pay here"
    (each,) = answers([small, of("real", 135_000_000, 1.0, "unispec/table15")])
    assert each.words == "does not pay here, on toy", "the larger one has no claim that it pays"
    formats = [small, of("toy (float32)", 2_000_000, 1.0)]
    assert answers(formats)[0].words == "pays in some cases", "a number format is no other model"
    (each,) = answers([*formats, of("real", 135_000_000, 1.0, "unispec/table15")])
    assert each.words == "pays in some cases, on toy"


OWN = {"unispec": "unispec", "ssbd": "retranslate", "ssd": "ssd", "bild": "bild", "cm_asd": "CM-ASD"}


@pytest.mark.parametrize("table", [table for table in RECIPES if claims(table)])
def test_a_paper_pays_by_its_own_method_against_plain_decoding(table):
    for claim in claims(table):
        if claim["question"] == "pays":
            cells = published(table)
            for row in RECIPES[table].rows:
                there = [each for each in cells.to_dict("records") if replays.covers(row.where, each)]
                keys = [{k: each[k] for k in claim["of"]} for each in there]
                if any(replays.covers(claim["of"], each) for each in keys):
                    name = row.method or row.values["point"]
                    assert name == OWN[table.partition("/")[0]] or (
                        "is" in claim and name == "autoregressive"
                    )


def test_cm_asd_pays_if_it_is_faster_than_greedy_decoding():
    """It is always faster than beam search, the paper's reference."""
    from specviz.replays.answers import answers

    seconds = np.random.default_rng(0).normal(1, 0.02, 24)
    for greedy, words in ((3.2, "does not pay here"), (2.2, "pays here")):
        speed = {"AR BART-base (b=1)": greedy, "CM-ASD": 2.8}
        figures = [({"method": m}, "speedup", mean(x * seconds)) for m, x in speed.items()]
        made = replay("cm_asd/table4", figures)
        assert verdict_of(made, "CM-ASD is faster than beam search on summaries").verdict == HOLDS
        (each,) = answers([made])
        assert each.words == words and "greedy" in each.evidence[1].claim


@pytest.mark.parametrize(("printed", "verdict"), [("5.0", "fails here"), ("5", "holds here")])
def test_a_printed_zero_is_a_digit(printed, verdict):
    """5.0 stands for 4.95 to 5.05, and 5 for 4.5 to 5.5."""
    values = 4.6 + 0.02 * np.random.default_rng(0).standard_normal(30)
    claim = {"question": "size", "of": {"metric": "tau"}, "check": "size", "text": ""}
    assert judged([({"method": "A"}, "tau", printed, values, "T", {})], claim).verdict == verdict


def test_a_control_of_too_few_texts_silences_no_other():
    noise = judging.noise_of([QUIET])
    few = replace(QUIET, low=None, high=None)
    assert judging.noise_of([QUIET, few]) == noise < judging.noise_of([few])
