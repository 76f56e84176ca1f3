"""Recipes on real models: their drafters and texts, and the columns that stay empty."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import specviz
from specviz.measure.sweep import Measured, Point
from specviz.measure.timing import BASELINE
from specviz.metrics.interval import LEAST
from specviz.models import bundled
from specviz.replays import contenders, replays, running
from specviz.replays.published import published
from specviz.replays.recipes import CURVES, RECIPES, Recipe
from specviz.replays.sources import beams, shared, thresholds
from specviz.replays.sources.shared import AGAIN, Measurement, RunOptions
from specviz.replays.tasks import tasks_of

WORDS = {"text": range(120, 251), "reference": range(30, 61)}  # lengths in words


def on_real(recipe: Recipe) -> Recipe:
    return replace(recipe, **{key: value for key, value in recipe.real.items() if key != "download"})


def options(tmp_path, suites=None, number=3):
    model = SimpleNamespace(
        name="m", kind="causal", device="cpu", dtype="float32", eos=(0,), encode=len, parameters=1
    )
    return RunOptions(model, {}, suites or {}, number, 8, 1, {}, tmp_path, tmp_path, {})


REAL = {name: on_real(recipe) for name, recipe in (RECIPES | CURVES).items() if recipe.real}
SUMMARIES = [name for name, recipe in REAL.items() if recipe.suite == "passages"]
TABLES = [name for name in REAL if name in RECIPES]


# ---------------------------------------------------------------- recipes


def test_bild_and_cm_asd_have_a_real_set_up_for_what_english_answers():
    bild = "table1", "table3", "table4", "table5", "figure2", "figure4", "figure5", "figure8"
    cm_asd = "table4", "table5", "figure2"
    assert set(SUMMARIES) == {f"bild/{name}" for name in bild} | {f"cm_asd/{name}" for name in cm_asd}
    assert {REAL[name].model for name in SUMMARIES} == {"smollm2"}


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_measured_or_has_a_reason_on_the_real_model_too(table):
    recipe, rows = REAL[table], published(table).to_dict("records")
    for where, why in recipe.absent:
        assert why and any(replays.covers(where, row) for row in rows), dict(where)
    for row in rows:
        contender = any(replays.covers(each.where, row) for each in recipe.rows)
        parts = all(
            row[column] in values or (column, row[column]) == recipe.total
            for column, values in recipe.parts.items() if column in row
        )  # fmt: skip
        assert (contender and parts) or any(replays.covers(where, row) for where, _ in recipe.absent), row


@pytest.mark.parametrize("table", SUMMARIES)
def test_drafters_grids_and_texts_of_a_real_set_up_are_there(table):
    recipe, bundled_one = REAL[table], (RECIPES | CURVES)[table]
    assert set(recipe.drafts.values()) <= set(bundled()) and "small" in recipe.drafts
    needed = {thresholds.ROLES.get(curve) for curve in recipe.options.get("curves", ())}
    assert needed - {None} <= set(recipe.drafts)
    for given, other in ((recipe.quick, bundled_one.quick), (recipe.whole, bundled_one.whole)):
        assert set(other) - {"decays"} <= set(given)
        assert given["prompts"] * max(1, len(tasks_of(recipe))) <= len(specviz.suite(recipe.suite))
    if recipe.source in ("thresholds", "beams"):
        assert recipe.quick["prompts"] >= LEAST, "fewer texts have no interval"


def test_aligned_and_unaligned_are_two_drafters():
    drafts = REAL["bild/table1"].drafts
    assert drafts == {"small": "smollm2-draft", "aligned": "smollm2-draft-aligned"}
    for table in ("bild/table1", "bild/figure4"):
        for recipe in (REAL[table], (RECIPES | CURVES)[table]):
            (ours,) = (ours for what, _, ours in recipe.differs if what == "unaligned, aligned")
            assert "trained further" in ours


# ---------------------------------------------------------------- texts


def test_passages_are_long_enough_to_be_summed_up():
    suite = specviz.suite("passages")
    assert len(suite) == 16 == len({entry["prompt"] for entry in suite})
    assert suite.kinds == ["summarization"] and suite.languages == ["en"]
    for entry in suite:
        order, text = entry["prompt"].split("\n\n")
        assert order == "Summarize this text in three sentences."
        assert len(text.split()) in WORDS["text"] and len(entry["reference"].split()) in WORDS["reference"]
    others = "".join(map(str, [*specviz.suite("everyday"), *specviz.suite("demo")]))
    assert not any(entry["prompt"][-60:] in others for entry in suite)


@pytest.mark.smollm2
def test_references_have_thirty_tokens_of_smollm2_s(smollm2_file):
    from specviz.models import load

    text = load("smollm2").text
    counts = [len(text.encode(entry["reference"], raw=True)) for entry in specviz.suite("passages")]
    assert min(counts) >= 30


def test_two_columns_of_summaries_have_texts_of_their_own(tmp_path):
    recipe, given, made = REAL["bild/table1"], options(tmp_path, number=6), Measurement()
    chosen = given.prompts(recipe, made, thresholds.bundled(recipe, given))
    ids = {task: [entry["id"] for entry in entries] for task, entries in chosen.items()}
    assert list(ids) == ["XSUM", "CNN/DailyMail"] and not made.absent
    assert len({*ids["XSUM"], *ids["CNN/DailyMail"]}) == 12
    toy = RECIPES["bild/table1"]
    assert set(given.prompts(toy, made, thresholds.bundled(toy, given))) == {"IWSLT", "XSUM"}
    assert made.absent == [({"dataset": name}, shared.SERVED) for name in ("WMT", "CNN/DailyMail")]


def test_a_table_without_tasks_takes_its_recipe_s_texts(tmp_path):
    given = options(tmp_path, number=3)
    texts = {name: thresholds.texts_of(recipe, given) for name, recipe in
             (("real", REAL["cm_asd/table5"]), ("toy", RECIPES["cm_asd/table5"]))}  # fmt: skip
    assert [entry["id"] for entry in texts["real"]] == ["passage-00", "passage-01", "passage-02"]
    assert len(texts["toy"]) == 3 and texts["toy"][0]["kind"] == "translation"
    own = options(tmp_path, {"": specviz.suite("everyday")}, number=2)
    assert len(thresholds.texts_of(REAL["cm_asd/table5"], own)) == 2


# ---------------------------------------------------------------- decoding


PAIR = {"small": "town-draft", "aligned": "town-draft-aligned"}  # always installed


@pytest.fixture
def causal(monkeypatch, tmp_path):
    def run(table, **more):
        recipe = REAL[table]
        drafts = {role: PAIR[role] for role in recipe.drafts}
        monkeypatch.setattr(running, "on_real", lambda _: replace(recipe, model="town", drafts=drafts))
        numbers = {"number": 2, "max_new_tokens": 8} | more
        return specviz.replay(table, quick=True, out=tmp_path, tick=lambda *_: None, **numbers)

    return run


@pytest.mark.parametrize("table", ["bild/table1", "bild/table3", "bild/table5", "bild/figure8"])
def test_a_causal_model_answers_bild_s_summaries(table, causal):
    replayed = causal(table)
    metrics = {cell.metric for cell in replayed.measured}
    assert "speedup" in metrics and "bleu" not in metrics
    for cell in replayed.cells:
        if cell.keys["dataset"] in ("IWSLT", "WMT"):
            assert cell.measured is None and "model of English" in cell.why
        elif cell.measured is not None:
            assert np.isfinite(cell.measured) and cell.source.suite == "passages"
    summed_up = {cell.keys["dataset"] for cell in replayed.measured}
    assert summed_up == set(tasks_of(REAL[table]))
    idle = [check for check in replayed.checks if check.kind == "idle target"]
    assert idle and all(check.of == 2 for check in idle)


def test_a_causal_model_answers_cm_asd_beside_its_beams(causal):
    replayed = causal("cm_asd/table4")
    values = {(cell.keys["method"], cell.metric): cell.measured for cell in replayed.cells}
    assert values["AR BART-base (b=5)", "speedup"] == 1 and values["CM-ASD", "speedup"] > 0
    assert values["SpecDec(k=25)", "rouge_l"] >= 0
    empty = {cell.keys["method"] for cell in replayed.cells if cell.measured is None}
    assert empty == {"GLAT+CTC", "DAT", "CMLM", "RewriteNAT"}


def test_curves_say_which_data_set_is_left_out(causal):
    replayed = causal("bild/figure4")
    assert {cell.keys["dataset"] for cell in replayed.cells} == {"XSUM"}
    assert any("model of English" in note for note in replayed.notes)


def test_latency_by_batch_on_a_causal_model(causal):
    replayed = causal("cm_asd/figure2")
    assert {cell.keys["method"] for cell in replayed.cells} == {"autoregressive", "specdec", "cm_asd"}


def test_without_beams_their_row_and_the_speedups_over_it_say_why(tmp_path, monkeypatch):
    """llama.cpp, for example, runs models that transformers does not."""
    labels = [each.label for each in contenders.lineup(SimpleNamespace(name="m"), None)]
    assert labels == [BASELINE]

    def decoded(label, seconds):
        sums = {"seconds": seconds, "accepted": 6, "cycles": 2, "score": 15}
        score = SimpleNamespace(name="BLEU", of=lambda sums: sums)
        arrays = {name: np.array([value, value], float) for name, value in sums.items()}
        return Measured(Point(label, "cm_asd"), arrays, ["a", "b"], score)

    every = {label: decoded(label, n) for label, n in ((BASELINE, 6), (AGAIN, 6), ("CM-ASD", 4))}
    monkeypatch.setattr(beams, "measured", lambda *_: (every, {}))
    monkeypatch.setattr(shared, "about", lambda model: {"device": "cpu"})
    monkeypatch.setattr(shared, "content", lambda model: None)
    monkeypatch.setattr(Measurement, "record", lambda *_: None)
    monkeypatch.setattr(Measurement, "ability", lambda *_, **__: None)
    recipe, given = RECIPES["cm_asd/table3"], options(tmp_path, number=2)
    made = beams.beams(replace(recipe, rows=(recipe.rows[0], recipe.rows[-1])), given)
    assert {figure.metric for figure in made.figures} >= {"bleu", "accepted_tokens"}
    assert "speedup" not in {figure.metric for figure in made.figures}
    reasons = {why for where, why in made.absent if where.get("metric") == "speedup" or "b=5" in str(where)}
    assert reasons == {"transformers does not run m, and beams are its own"}
