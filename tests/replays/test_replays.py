"""Replays: every published table is accounted for, and compared with the measurements."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import specviz
import specviz.measure
from specviz import cli, escape
from specviz.errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError, plural
from specviz.measure import work
from specviz.measure.claims import ratio, resampled
from specviz.measure.report import Estimate
from specviz.replays import (
    judging,
    kept_traces,
    layout,
    markdown,
    page,
    plots,
    replays,
    running,
    sources,
    tasks,
    terminal,
)
from specviz.replays.cells import Check
from specviz.replays.published import list_published, published
from specviz.replays.recipes import CURVES, FIGURES, RECIPES, SETTINGS, Recipe
from specviz.replays.sources.shared import Measurement, exact, totals
from specviz.suites import Suite

TABLES = list(list_published()["name"])
WORDS = ("the", "cook", "lost", "her", "bag", "at", "the", "station", "and", "a", "doctor", "found", "it")
NO_ROWS = ("batches", "limits", "lengths")  # sources whose rows follow from options


# ---------------------------------------------------------------- recipes


def test_every_published_table_has_a_recipe_or_a_reason():
    assert set(RECIPES) | set(SETTINGS) == set(TABLES)
    assert not set(RECIPES) & set(SETTINGS)


@pytest.mark.parametrize("table", RECIPES)
def test_a_recipe_speaks_the_words_of_its_table(table):
    recipe, rows = RECIPES[table], published(table).to_dict("records")
    keys = set(rows[0])
    for row in recipe.rows:
        assert any(replays.covers(row.where, each) for each in rows), f"{dict(row.where)} is not a row"
    for column, values in recipe.parts.items():
        if column in keys:
            assert set(values) <= {each[column] for each in rows}, column
    for where, why in recipe.absent:
        assert why and any(replays.covers(where, each) for each in rows), dict(where)
    assert set(recipe.compare) <= keys
    if recipe.total:
        assert any(each[recipe.total[0]] == recipe.total[1] for each in rows)
    for row in recipe.rows:
        assert row.role is None or row.role in recipe.drafts
    for given in (recipe.quick, recipe.whole):
        assert {"prompts", "max_new_tokens"} <= set(given)


@pytest.mark.parametrize("table", [t for t, recipe in RECIPES.items() if recipe.source not in NO_ROWS])
def test_every_row_of_a_table_is_measured_or_has_a_reason(table):
    recipe = RECIPES[table]
    for row in published(table).to_dict("records"):
        contender = any(replays.covers(each.where, row) for each in recipe.rows)
        parts = all(
            row[column] in values or (column, row[column]) == recipe.total
            for column, values in recipe.parts.items() if column in row
        )  # fmt: skip
        reason = any(replays.covers(where, row) for where, _ in recipe.absent)
        bound = row["metric"] == "step_reduction_bound"
        assert (contender and parts) or reason or bound, row


# ---------------------------------------------------------------- comparing


PLACE = {"device": "cpu", "processor": "P", "threads": 1, "dtype": "float32"}


CONTROL = Check("control", "a", "", 9, 9, 1.0, 0.99, 1.01)


def made(table="unispec/table3", rows=(), absent=(), checks=(CONTROL,)):
    found = Measurement(environment=PLACE, checks=list(checks))
    found.on(**PLACE, model="town", parameters=2_300_000, suite="ours", clock="wall clock")
    for where, metric, value in rows:
        part = {k: v for k, v in where.items() if k in ("task", "language")}
        found.on(
            task=", ".join(part.values()), settings=str({k: v for k, v in where.items() if k not in part})
        )
        found.add(where, metric, value)
    found.absent += absent
    return replays.compared(table, RECIPES[table], found, {"table": table})


def figure(value, by=0.05):
    return Estimate(value, value - by, value + by, 9)


def by_method(language, metric, **values):
    names = {"two": "EAGLE-2", "three": "EAGLE-3", "uni": "UNISPEC (ours)"}
    return [({"method": names[k], "language": language}, metric, v) for k, v in values.items()]


def test_cells_stand_beside_what_was_printed():
    found = made(rows=by_method("EN", "speedup", two=figure(1.5), uni=figure(3.0)))
    frame = found.frame()
    assert list(frame["printed"]) == list(published("unispec/table3")["printed"])
    here = frame[frame["measured"].notna()].set_index("method")
    assert set(here.index) == {"EAGLE-2", "UNISPEC (ours)"} and set(here["language"]) == {"EN"}
    for name, value in (("EAGLE-2", 1.5), ("UNISPEC (ours)", 3.0)):
        assert here.loc[name, "ratio"] == pytest.approx(value / here.loc[name, "value"])
    assert found.counts()["measured"] == 2 and found.counts()["cells"] == 18
    assert all(cell.why for cell in found.cells if cell.measured is None)


def test_directions_are_compared_within_a_column():
    printed = published("unispec/table3")
    values = printed[(printed.metric == "speedup") & (printed.language == "EN")].set_index("method")["value"]
    order = list(values.sort_values().index)
    names = {"EAGLE-2": "two", "EAGLE-3": "three", "UNISPEC (ours)": "uni"}
    like = {names[name]: figure(1.0 + i) for i, name in enumerate(order)}
    found = made(rows=by_method("EN", "speedup", **like) + by_method("JA", "speedup", two=figure(9.0)))
    counts = found.counts()
    assert (counts["agrees"], counts["against"], counts["clear_agrees"]) == (3, 0, 3)
    like[names[order[0]]], like[names[order[-1]]] = figure(3.0, 2.5), figure(1.0, 2.5)
    counts = made(rows=by_method("EN", "speedup", **like)).counts()
    assert (counts["agrees"], counts["against"], counts["clear_against"]) == (0, 3, 0)
    found = made(rows=by_method("EN", "speedup", **like))
    assert [marks for marks in found.tallies() if any(marks)] == [(0, 2, 0)] * 3
    like = {names[name]: figure(1.0 + i) for i, name in enumerate(order)}
    like[names[order[1]]] = like[names[order[0]]]  # tied with the one below it in the paper
    found = made(rows=by_method("EN", "speedup", **like))
    assert sorted(marks for marks in found.tallies() if any(marks)) == [(1, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_one_figure_beside_several_printed_numbers_is_one_figure():
    printed = published("unispec/table1")
    n = int(((printed.method == "PLD") & (printed.task == "MT") & (printed.metric == "speedup")).sum())
    found = made("unispec/table1", [({"method": "PLD", "task": "MT"}, "speedup", figure(1.2))])
    counts = found.counts()
    assert (counts["figures"], counts["measured"]) == (1, n) and n > 3
    assert f"{n} of {len(printed)} printed numbers, by 1 figure measured here" in found.summary


def test_a_tie_in_print_is_no_comparison():
    rows = [{"beta": b, "language": "English→Chinese"} for b in ("0.5", "1.0")]
    found = made("ssbd/table3", [(row, "ne", figure(i + 1.0)) for i, row in enumerate(rows)])
    assert list(found.compared()["verdict"]) == ["tied"]
    found = made(rows=by_method("EN", "speedup", two=figure(2.0), uni=figure(2.0)))
    assert list(found.compared()["verdict"]) == ["level"] and found.counts()["level"] == 1
    assert found.counts()["agrees"] == found.counts()["against"] == 0


def test_what_is_missing_says_why():
    found = made("cm_asd/table1", absent=[({"method": "CM-ASD"}, "no such model")])
    reasons = {why: n for _, why, n in found.missing()}
    assert reasons["no such model"] == 4, "what the run says comes first"
    assert any("German and English" in why for why in reasons)


def test_the_set_up_is_told_apart():
    told = {each["what"]: each for each in made(rows=by_method("EN", "tau", uni=figure(2.0))).setup}
    assert told["model"]["paper"] == "Llama-3.1-8B-Instruct" and "2.3 M" in told["model"]["here"]
    assert "1 thread" in told["device"]["here"] and told["precision"]["paper"] == "float16"
    assert told["data"]["here"] == "EN: ours, 9 texts" and {"speedup", "tau"} <= set(told)
    assert told["drafter"]["here"] == "" and "EAGLE" in told["drafter"]["paper"]


def on_texts(values):
    """The mean of `values` over texts, with its resampled interval."""
    values = np.asarray(values, float)
    return resampled(ratio, values, np.ones(len(values)))


def test_totals_are_means_of_all_parts_or_nothing():
    recipe = Recipe("run", ("method",), parts={"task": {"A": {}, "B": {}}}, total=("task", "AVG"))
    rng = np.random.default_rng(1)
    texts, found = {"A": rng.normal(1, 1, 40), "B": rng.normal(2, 3, 40)}, Measurement()
    for task, values in texts.items():
        found.add({"method": "m", "task": task}, "speedup", on_texts(values))
        found.add({"method": "more", "task": task}, "speedup", on_texts(values + 0.01))
        found.add({"method": "same", "task": task}, "speedup", exact(1.0))
    found.add({"method": "n", "task": "A"}, "speedup", figure(2.0))
    totals(found, recipe)
    mean, more, same = (each for each in found.figures if each.where["task"] == "AVG")
    assert [each.where["method"] for each in (mean, more, same)] == ["m", "more", "same"]
    assert mean.value == pytest.approx((texts["A"].mean() + texts["B"].mean()) / 2) and mean.texts == 79
    parts = [each for each in found.figures if each.where["method"] == "m" and each is not mean]
    widths = [each.high - each.low for each in parts]
    assert mean.high - mean.low == pytest.approx(np.hypot(*widths) / 2, rel=0.1)
    assert judging.difference(mean, more, 0.0).p < 0.01, "two that differ by the same on every text"
    assert mean.derived and not parts[0].derived
    assert same.low == same.high == same.value == 1.0


def test_a_mean_of_parts_with_few_texts_is_drawn_over_the_parts():
    names = "ABCDEFG"
    recipe = Recipe("run", ("method",), parts={"task": {name: {} for name in names}}, total=("task", "AVG"))
    rng = np.random.default_rng(2)
    found = Measurement()
    for task, mean in zip(names, rng.normal(1.3, 0.3, 7)):
        two = rng.normal(mean, 0.01, 2)
        found.add({"method": "m", "task": task}, "speedup", on_texts(two))
        found.add({"method": "more", "task": task}, "speedup", on_texts(two + 0.1))
    parts = np.array([each.value for each in found.figures if each.where["method"] == "m"])
    totals(found, recipe)
    mean, more = (each for each in found.figures if each.where["task"] == "AVG")
    assert mean.value == pytest.approx(parts.mean())
    wanted = 2 * 1.96 * parts.std() / np.sqrt(7)
    assert mean.high - mean.low == pytest.approx(wanted, rel=0.15), "as of a mean of seven"
    assert (mean.texts, mean.source.texts) == (7, 14)
    assert judging.difference(mean, more, 0.0).p < 0.05, "two that differ by the same in every part"
    assert found.notes == [
        "the interval of AVG is over its 7 parts: at least one of them has fewer than 6 texts"
    ]
    few = replace(recipe, parts={"task": {name: {} for name in names[:5]}})
    found = Measurement()
    for task in names[:5]:
        found.add({"method": "m", "task": task}, "speedup", on_texts([1.0, 2.0]))
    totals(found, few)
    assert found.figures[-1].low is None and not found.notes, "of five parts there is none"


def test_what_is_clear_is_so_on_the_same_texts():
    texts = np.random.default_rng(0).normal(5, 2, 12)

    def clear(one, two):
        found = Measurement()
        for value in (one, two):
            found.add({}, "tau", value)
        return judging.difference(*found.figures, 0.0).p <= 0.05

    assert clear(on_texts(texts), on_texts(texts + 0.1)), "though the intervals overlap by far"
    assert clear(on_texts(texts + 0.1), on_texts(texts))
    assert not clear(on_texts(texts), on_texts(texts + np.tile([0.1, -0.1], 6)))
    assert not clear(on_texts(texts[:5]), on_texts(texts[:5] + 0.1)), "of five texts all go one way by chance"
    assert not clear(on_texts(texts), on_texts(texts[:11] + 0.1)), "other texts: by the intervals"
    assert clear(figure(1.0, 0.3), figure(2.0, 0.3)) and not clear(figure(1.0, 0.3), figure(2.0, 0.8))
    assert not clear(1.0, 2.0), "without an interval nobody knows"


def test_of_a_large_table_without_measured_means_what_was_measured_is_shown():
    tasks = ["mean", *["QA"] * layout.MANY]
    cells = [SimpleNamespace(measured=None, column=lambda _, task=task: task) for task in tasks]
    large = SimpleNamespace(cells=cells, total=("task", "mean"))
    assert layout.shown(large) == [0]
    cells[3].measured = 1.0
    assert layout.shown(large) == [3]
    cells[0].measured = 1.0
    assert layout.shown(large) == [0]


# ---------------------------------------------------------------- running


@pytest.fixture
def tiny(folders):
    return specviz.load(folders.target)


def prompts(n=9):
    rng = np.random.default_rng(0)
    kinds = ("conversation", "translation", "summarization", "qa", "arithmetic", "rag", "code")
    return Suite(
        [{"id": f"p{i}", "kind": kinds[i % 7], "language": "en", "prompt": " ".join(rng.choice(WORDS, 6))}
         for i in range(n)], "tiny",
    )  # fmt: skip


def tiny_options(model):
    return {"model": model, "suite": prompts(16), "number": 7, "max_new_tokens": 6, "tick": lambda *_: None}


@pytest.fixture
def run(tiny, monkeypatch, tmp_path):
    from specviz.replays.sources import shared

    monkeypatch.setattr(shared.RunOptions, "best", lambda self, method, values: 4)
    monkeypatch.setattr(
        shared.RunOptions, "calibrated_words", lambda self, method, values: f"{method}: g* = 4"
    )

    def given(table="unispec/table12", **more):
        return specviz.replay(table, **{"out": tmp_path / "replay"} | tiny_options(tiny) | more)

    return given


@pytest.fixture(scope="module")
def once(folders, tmp_path_factory):
    """A finished replay for tests that only read it."""
    from specviz.replays.sources import shared

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared.RunOptions, "best", lambda self, method, values: 4)
        patch.setattr(shared.RunOptions, "calibrated_words", lambda self, method, values: f"{method}: g* = 4")
        folder = tmp_path_factory.mktemp("replays") / "replay"
        specviz.replay("unispec/table12", **tiny_options(specviz.load(folders.target)), out=folder)
    return folder


@pytest.fixture
def done(once, tmp_path):
    """A copy of the finished replay."""
    shutil.copytree(once, tmp_path / "replay")
    return replays.opened(tmp_path / "replay")


def test_a_finished_replay_of_weights_that_were_written_later_is_not_given(run, folders, tmp_path):
    shutil.copytree(folders.target, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    first = run(model=str(tmp_path / "model"))
    again = run(model=str(tmp_path / "model"))
    assert again.created == first.created
    os.utime(weights, (time.time() + 60, time.time() + 60))
    with pytest.raises(SpecvizError, match=r"model was written after .*replay was measured: give another"):
        run(model=str(tmp_path / "model"))


def test_a_resumed_replay_has_the_dates_and_the_seconds_of_its_rows(done, run):
    rows = [json.loads(file.read_text("utf8")) for file in (done.path / "run" / "rows").iterdir()]
    for file, row in zip((done.path / "run" / "rows").iterdir(), rows):
        row |= {"started": f"2020-01-0{1 + row['prompt'] % 2}T00:00:00.000+00:00", "wall_seconds": 10.0}
        file.write_text(json.dumps(row), "utf8")
    (done.path / "replay.json").unlink()
    again = run()
    both = "2020-01-01", "2020-01-02"
    assert {source.date for source in again.sources} <= {*both, " to ".join(both)}
    assert again.seconds > 10 * len(rows)


def test_rows_of_a_killed_replay_with_other_weights_are_refused(done, run, tiny):
    (done.path / "replay.json").unlink()  # it was killed when its rows were complete
    with torch.no_grad():
        next(tiny.net.parameters()).mul_(1.01)
    with pytest.raises(SpecvizError, match=r"has different weights than when .*run was started: delete"):
        run()


def test_a_replay_is_what_its_run_says(done, tmp_path):
    found = done
    assert found.counts()["measured"] == len(published("unispec/table12"))
    results = specviz.results(tmp_path / "replay" / "run")
    table = results.table("kind")
    cell = next(c for c in results.cells if c["parameters"].get("threshold") == 0.05)
    assert cell["parameters"]["draft_size"] == 4
    mine = table[(table["cell"] == cell["cell"]) & (table["kind"] == "code")].iloc[0]
    frame = found.frame()
    here = frame[(frame["threshold"] == 0.05) & (frame["task"] == "Code")].set_index("metric")["measured"]
    assert here["tau"] == pytest.approx(mine["tau"])
    assert here["speedup"] == pytest.approx(mine["request_speedup"])
    both = frame[(frame["threshold"] == 0.05) & (frame["metric"] == "speedup")].set_index("task")["measured"]
    assert both["Avg."] == pytest.approx(both.drop("Avg.").mean())
    assert "whether the model can do these tasks was not tested (no references)" in found.notes


def test_a_replay_is_written_and_read(tmp_path):
    found = replace(made(rows=by_method("EN", "speedup", two=figure(1.5))), path=tmp_path)
    found.save()
    again = replays.opened(tmp_path)
    assert again.cells == found.cells and again.summary == found.summary


def test_a_cell_is_a_row_of_the_file_and_back(done):
    content = json.loads((done.path / "replay.json").read_text("utf8"))
    rows, sources_ = content["cells"], [replays.Provenance.read(each) for each in content["sources"]]
    assert [replays.Cell.of(row, sources_) for row in rows] == done.cells
    assert len(sources_) == len(set(sources_)) and done.sources == sources_
    fixed = ["metric", "value", "printed", "unit", "device", "model", "measured", "low", "high", "why"]
    assert list(rows[0]) == [*done.keys, *fixed, "figure", "source"]


def test_what_is_finished_is_not_measured_again(done, run, monkeypatch, tmp_path):
    first = done
    for name in ("SPECVIZ_KERNELS", "SPECVIZ_INVARIANT"):  # as in the measured replay
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sources, "find", lambda name: pytest.fail("measured again"))
    assert run().created == first.created
    kept = (tmp_path / "replay" / "replay.json").read_bytes()
    with pytest.raises(SpecvizError, match="its max_new_tokens is 6, here 7") as told:
        run(max_new_tokens=7)
    assert "\n" not in str(told.value)
    assert (tmp_path / "replay" / "replay.json").read_bytes() == kept


def test_a_model_of_one_s_own_without_its_drafter_lacks_rows(run):
    found = run("unispec/table3", suite=Suite([{**p, "language": lang} for p in prompts(4)
                                               for lang in ("en", "ja", "de")
                                               for p in [{**p, "id": f"{p['id']}-{lang}"}]], "three"),
                number=3)  # fmt: skip
    reasons = {why for _, why, _ in found.missing()}
    assert any("--draft eagle3=NAME" in why for why in reasons)
    assert found.counts()["measured"] == 6, "UniSpec in three languages: speedup and τ"


def test_two_number_formats_are_two_runs(run):
    found = run("unispec/table10", number=2, suite=Suite(
        [{**p, "reference": ["the cook lost her bag"]} for p in prompts(14)], "tiny"))  # fmt: skip
    frame = found.frame()
    assert frame["measured"].notna().all() and len(found.runs) == 2
    rouge = frame[frame["metric"] == "rouge_1"]["measured"]
    assert ((rouge >= 0) & (rouge <= 100)).all()


def test_contexts_become_longer(run, tiny):
    tiny.max_length = 2400
    texts = [{**p, "reference": ["the cook lost her bag"]} for p in prompts(14)]
    found = run("unispec/table11", suite=Suite(texts, "tiny"))
    notes = [note for note in found.notes if note.startswith("context ")]
    lengths = [float(re.search(r"of (\d+) tokens", note)[1]) for note in notes]
    assert len(found.runs) == len(lengths) > 1 and lengths == sorted(set(lengths))
    measured = {cell.keys["context"] for cell in found.measured}
    assert [str(each) for each in sorted(measured)] == found.runs
    assert all(cell.why for cell in found.cells if cell.measured is None)


def test_a_prompt_without_room_is_left_out_and_named(run, tiny):
    texts = list(prompts(16))
    texts[3] = {**texts[3], "id": "the long one", "prompt": " ".join(WORDS) * tiny.max_length}
    found = run(suite=Suite(texts, "mixed"))
    assert found.counts()["measured"]
    (note,) = [note for note in found.notes if "left out" in note]
    assert note.startswith("mixed: 1 prompt of 16 left out") and "prompt the long one has" in note
    with pytest.raises(PromptError, match=r"1 prompt of 1 left out.*give shorter prompts") as told:
        run(suite=Suite([texts[3]], "long"), out=found.path / "other")
    assert "\n" not in str(told.value) and not (found.path / "other").exists()
    wrong = [{**texts[0], "prompt": [1, tiny.vocabulary]}, *texts[1:3]]
    with pytest.raises(PromptError, match=f"wrong, prompt {texts[0]['id']}: token id"):
        run(suite=Suite(wrong, "wrong"), out=found.path / "other")


@pytest.mark.parametrize(("kind", "kept"), [("causal", 3), ("diffusion", 2)])
def test_a_canvas_needs_room_for_all_of_its_tokens(kind, kept):
    model = SimpleNamespace(kind=kind, name="ten", encode=list, left=lambda length: 10 - length)
    suite = Suite([{"prompt": "x" * length} for length in (1, 6, 9, 10)], "four")
    suites, left_out = tasks.fitting({"": suite}, model, 4)
    assert len(suites[""]) == kept and f"four: {plural(4 - kept, 'prompt')} of 4 left out" in left_out[0]


@pytest.mark.parametrize("name", ["unispec/figure2", "unispec/figure3", "cm_asd/figure2", "bild/figure5"])
def test_a_curve_without_printed_values_is_measured_all_the_same(name, tmp_path):
    found = specviz.replay(name, quick=True, number=2, max_new_tokens=8, out=tmp_path, tick=lambda *_: None)
    assert found.cells and all(np.isfinite(cell.measured) for cell in found.cells)
    assert all(cell.printed == "" for cell in found.cells) and not found.comparisons
    assert bool(found.costs) == name.startswith("bild"), "others have no reference, or batches"
    assert "without printed values" in found.summary and replays.opened(tmp_path).summary == found.summary
    assert "→" not in "".join(cell for row in layout.grid(found).rows for cell in row)
    drawn, opened = plots.curve_figures(found, {})
    assert drawn and not opened
    if name == "cm_asd/figure2":
        drafters = {source.method: source.drafter for source in found.sources}
        assert not drafters["autoregressive"] and drafters["cm_asd"] == drafters["specdec"] == "town-t5-small"


BUNDLED = {
    "ssbd/table4": "comet", "ssd/table3": None, "ssd/table2": None, "bild/table4": "fallback",
    "cm_asd/table3": None, "unispec/table8": None,
}  # fmt: skip


@pytest.mark.parametrize("table", BUNDLED)
def test_the_bundled_models_answer_every_family(table, tmp_path):
    found = specviz.replay(table, quick=True, number=2, max_new_tokens=8, out=tmp_path, tick=lambda *_: None)
    lacking = {cell.metric for cell in found.cells if cell.measured is None}
    unfilled = {"speedup"} if table == "unispec/table8" else set()  # batches above two
    assert lacking <= {BUNDLED[table], *unfilled}
    assert all(cell.why for cell in found.cells if cell.measured is None)
    assert all(np.isfinite(cell.measured) for cell in found.cells if cell.measured is not None)
    assert found.environment["device"] == "cpu" and found.setup[0]["here"].startswith("town")
    names = [each["name"] for each in found.traces]
    assert names == ([] if table in ("ssd/table2", "unispec/table8") else ["best", "median", "worst"])
    if names and importlib.util.find_spec("plotly"):
        told = page.write(found).read_text(encoding="utf8")
        assert all(
            (tmp_path / "report-pages" / f"{table.replace('/', '-')}-{name}.html").exists() for name in names
        )
        assert all(f"{name}: " in told for name in names)


def test_replay_all_accounts_for_every_table(monkeypatch, tmp_path):
    seen = []

    def measure(recipe, settings, *_):
        table = settings["table"]
        seen.append(table)
        if table == "bild/table1":
            raise ModelError("no model 'town-t5'")
        path = tmp_path / table.replace("/", "-")
        it = replace(made("unispec/table3"), table=table, path=path)
        it.settings = settings
        it.save()
        return it

    monkeypatch.setattr(running, "measure", measure)
    found = running.replay_all(tmp_path, quick=True)
    every = {*RECIPES, *CURVES}
    assert found.complete and set(seen) == every
    assert found.left["bild/table1"] == "no model 'town-t5'" and {*SETTINGS, *FIGURES} < set(found.left)
    again = replays.opened_all(tmp_path)
    assert again.complete and again.left == found.left and len(again.tables) == len(every) - 1
    seen.clear()
    running.replay_all(tmp_path, quick=True)
    assert seen == ["bild/table1"], "what is finished is kept, what failed is tried again"
    for file in tmp_path.rglob("replay.json"):  # as written before these settings were stored
        content = json.loads(file.read_text())
        assert content["asked"].pop("quick") is True
        for key in running.LATER:
            content["asked"].pop(key, None)
        file.write_text(json.dumps(content))
    running.replay_all(tmp_path, quick=True)
    assert seen == ["bild/table1"] * 2
    with pytest.raises(SpecvizError, match="different settings"):
        running.replay_all(tmp_path, quick=False)
    assert not found.left.keys() & {"unispec/table1"}
    missing = replays.Replays(tmp_path, found.tables[1:], found.left)
    assert not missing.complete


def test_all_tables_with_other_settings_are_refused_before_one_is_measured(monkeypatch, tmp_path):
    """A table that was replayed alone, in the same folder, ended it all in the middle."""
    seen = []

    def measure(recipe, settings, options, tick):
        seen.append(settings["table"])
        it = replace(made("unispec/table3"), table=settings["table"], settings=settings, path=options.path)
        it.save()
        return it

    monkeypatch.setattr(running, "measure", measure)
    table = list(RECIPES)[2]
    chosen = [*list(RECIPES)[:3], "bild/table1"]  # of two papers, which two workers replay side by side
    monkeypatch.setattr(running, "RECIPES", {each: RECIPES[each] for each in chosen})
    monkeypatch.setattr(running, "CURVES", {})
    monkeypatch.setattr(running, "_side_by_side", lambda *_: pytest.fail("it begins"))
    specviz.replay(table, quick=True, out=tmp_path / table.replace("/", "-"))
    for workers in (1, 2):
        seen.clear()
        monkeypatch.setattr(work, "cores", lambda: 2)
        with pytest.raises(SpecvizError, match="holds a replay with different settings: its quick is True"):
            running.replay_all(tmp_path, workers=workers)
        assert not seen and not (tmp_path / "replays.json").exists()
    found = running.replay_all(tmp_path, quick=True)
    assert [each.table for each in found.tables] == list(running.RECIPES) and table not in seen


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate")])
def test_a_table_that_runs_out_of_memory_does_not_end_the_others(error, monkeypatch, tmp_path):
    def measure(*_):
        raise error

    monkeypatch.setattr(running, "measure", measure)
    found = running.replay_all(tmp_path, quick=True)
    assert found.complete and found.left["ssd/table3"].startswith("out of memory: give fewer")
    error = RuntimeError("a defect")
    with pytest.raises(RuntimeError, match="a defect"):
        running.replay_all(tmp_path, quick=True)


def test_without_plotly_all_tables_end_with_the_command_of_their_page(monkeypatch, tmp_path, capsys):
    from specviz.cli import replaying

    monkeypatch.setattr(replaying, "find_spec", lambda name: None)
    monkeypatch.setattr(page, "write", lambda *_, **__: pytest.fail("it needs plotly"))
    monkeypatch.setattr(running, "replay_all", lambda out, **_: replays.Replays(out, [], {"a/b": "none"}))
    assert cli.run(["replay", "--all", "--quick", "--out", str(tmp_path)]) == 0
    assert f"page: specviz bench report {tmp_path} --html" in capsys.readouterr().out


@pytest.fixture(scope="module")
def pool():
    """Replaces `processes` by the pool of its first call: starting two processes takes ten seconds."""
    from specviz.measure.running import processes

    pools = []
    with ExitStack() as stack:

        @contextmanager
        def kept(*given):
            if not pools:
                pools.append(stack.enter_context(processes(*given)))
            yield pools[0]

        yield kept


def test_papers_are_measured_side_by_side_as_in_turn(tmp_path, monkeypatch, pool):
    """Two real processes take a paper each; finished tables are kept, and other settings are refused."""
    tables = ["ssd/table2", "cm_asd/table2"]
    monkeypatch.setattr(running, "RECIPES", {table: RECIPES[table] for table in tables})
    monkeypatch.setattr(running, "CURVES", {})
    monkeypatch.setattr(work, "cores", lambda: 2)
    monkeypatch.setattr("specviz.measure.running.processes", pool)
    options = {"quick": True, "number": 2, "max_new_tokens": 4}
    seen = []
    found = running.replay_all(
        tmp_path / "two", workers=2, tick=lambda name: lambda *n: seen.append((name, *n)), **options
    )
    assert [each.table for each in found.tables] == tables and not found.left.keys() & {*tables}
    assert {each.environment["processes"] for each in found.tables} == {2}
    assert seen[-1] == ("2 processes", 2, 2, "tables")
    steps = [what for *_, what in seen if "cm_asd/table2" in what]
    assert all(re.search(r"cm_asd/table2 \d+ of \d+", what) for what in steps) and steps, (
        "within a table, too"
    )
    assert [each.table for each in replays.opened_all(tmp_path / "two").tables] == tables
    alone = running.replay_all(tmp_path / "one", **options)
    for one, other in zip(found.tables, alone.tables, strict=True):
        assert [cell.metric for cell in one.cells] == [cell.metric for cell in other.cells]
        assert [c.measured is None for c in one.cells] == [c.measured is None for c in other.cells]
        assert "processes" not in other.environment
    counted = [[cell.measured for cell in each.tables[0].cells] for each in (found, alone)]
    assert counted[0] == counted[1] and any(counted[0]), "what follows from options, and no clock"
    times = [(tmp_path / "two" / t.replace("/", "-") / "replay.json").stat().st_mtime_ns for t in tables]
    running.replay_all(tmp_path / "two", workers=2, **options)
    assert times == [
        (tmp_path / "two" / t.replace("/", "-") / "replay.json").stat().st_mtime_ns for t in tables
    ]
    with pytest.raises(SpecvizError, match="different settings"):
        running.replay_all(tmp_path / "two", workers=2, **{**options, "number": 3})


def test_a_table_that_cannot_be_measured_side_by_side_is_listed(tmp_path, monkeypatch, pool):
    monkeypatch.setattr(work, "cores", lambda: 2)
    monkeypatch.setattr("specviz.measure.running.processes", pool)
    options = {"quick": True, "number": 2, "max_new_tokens": 4, "model": "no-such-model"}
    found = running.replay_all(tmp_path / "two", workers=2, **options)
    assert found.complete and not found.tables
    assert found.left == running.replay_all(tmp_path / "one", **options).left
    assert "no model 'no-such-model'" in found.left["unispec/table3"]


def test_a_worker_that_dies_ends_in_one_line(tmp_path, monkeypatch):
    dead = Future()
    dead.set_exception(BrokenProcessPool("gone"))

    @contextmanager
    def pool(*_):
        yield SimpleNamespace(submit=lambda *_: dead)

    monkeypatch.setattr("specviz.measure.running.processes", pool)
    monkeypatch.setattr(work, "cores", lambda: 2)
    with pytest.raises(SpecvizError, match=r"a worker died .*with fewer workers"):
        running.replay_all(tmp_path, workers=2, quick=True)


def test_a_table_says_how_many_were_measured_at_once(tmp_path):
    given = {"quick": True, "number": 1, "max_new_tokens": 4, "out": tmp_path / "ssd-table2"}
    ((table, why),) = running._paper([("ssd/table2", given)], {running.SIDE_BY_SIDE: 2})
    assert (table, why) == ("ssd/table2", "")
    again = replays.opened(tmp_path / "ssd-table2")
    assert again.environment["processes"] == 2
    assert "<dt>processes</dt><dd>2</dd>" in page.write(again).read_text(encoding="utf8")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers must be a whole number"),
        ({"workers": 1000}, "1000 workers of 1 thread"),
        ({"workers": 2, "threads": 2 * (os.cpu_count() or 1)}, "would not be timed correctly"),
        ({"workers": 2, "threads": "2"}, "threads must be a whole number"),
        ({"workers": 2, "device": "cuda"}, "would share the GPU"),
        ({"workers": 2, "model": SimpleNamespace(name="mine")}, "a loaded model stays in its process"),
    ],
)
def test_bad_workers_are_refused(tmp_path, monkeypatch, options, says):
    monkeypatch.setattr(running, "measure", lambda *_: pytest.fail("work was done"))
    monkeypatch.setattr(work, "cores", lambda: 2)
    with pytest.raises(ParameterError, match=says):
        running.replay_all(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("unispec/tabel1", "unispec has no table 'tabel1'; did you mean table1"),
        ("unispek/table1", "did you mean unispec"),
        ("unispec/table4", "cannot be replayed: the paper's machines"),
    ],
)
def test_unknown_tables_are_named(table, says):
    with pytest.raises(ParameterError, match=says) as told:
        specviz.replay(table)
    assert "\n" not in str(told.value)


def test_bad_settings_are_refused_before_any_work(run, monkeypatch, tmp_path):
    monkeypatch.setattr(running, "measure", lambda *_: pytest.fail("work was done"))
    for more, says in (
        ({"draft": "x", "table": "unispec/table3"}, "--draft eagle=..., eagle3=..."),
        ({"draft": {"small": "x"}}, "no drafter 'small'"),
        ({"draft": "x"}, "this table has no drafter: drop --draft"),
        ({"number": 0}, "number must be a whole number"),
        ({"suite": "no-such-suite"}, "no-such-suite"),
        ({"chat": {"x": {1}}}, "chat must hold texts, numbers and booleans: .*set"),
    ):
        with pytest.raises(SpecvizError, match=says):
            run(more.pop("table", "unispec/table12"), **more)
    assert not (tmp_path / "replay").exists()
    one = Suite([{"prompt": "a", "kind": "arithmetic", "language": "en"}], "mine")
    with pytest.raises(ParameterError, match="no table has a task 'GSM8k'; did you mean GSM8K"):
        running.replay_all(tmp_path / "all", suite={"GSM8k": one})
    assert not (tmp_path / "all").exists()


def test_numbers_of_numpy_can_be_saved(run, monkeypatch):
    monkeypatch.setattr(running, "measure", lambda recipe, settings, *_: settings)
    eight = np.int64(8)
    settings = run("unispec/table12", number=eight, max_new_tokens=eight, threads=np.int64(1), quick=np.True_)
    assert json.loads(json.dumps(settings)) == settings and settings["prompts"] == 8


def test_a_missing_model_is_one_line(tmp_path):
    with pytest.raises(ModelError, match="no model 'town-eagel'") as told:
        specviz.replay("unispec/table1", model="town-eagel", out=tmp_path / "new")
    assert "\n" not in str(told.value) and not (tmp_path / "new" / "replay.json").exists()


@pytest.mark.parametrize(
    "what", ["", "{", '{"specviz": "replay", "schema": 9}', '{"specviz": "replay", "schema": 1}']
)
def test_damaged_folders_are_named(tmp_path, what):
    if what:
        (tmp_path / "replay.json").write_text(what)
    with pytest.raises(TraceError) as told:
        replays.opened(tmp_path)
    assert str(tmp_path) in str(told.value) and "\n" not in str(told.value)


def test_a_name_that_no_folder_can_have_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(running, "measure", lambda *_: pytest.fail("work was done"))
    for call in (lambda: specviz.replay("unispec/table1", out="\ud800"), lambda: running.replay_all("a\0b")):
        with pytest.raises(SpecvizError, match="cannot be a folder"):
            call()


def test_other_results_are_not_written_into(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    for call in (
        lambda: specviz.replay("unispec/table1", out=tmp_path),
        lambda: running.replay_all(tmp_path),
    ):
        with pytest.raises(SpecvizError, match="another kind of result"):
            call()


# ---------------------------------------------------------------- reports


def test_texts_of_a_replay(done):
    from io import StringIO

    from rich.console import Console

    found = done
    out = StringIO()
    terminal.show(found, Console(file=out, width=200))
    told = out.getvalue()
    assert "unispec/table12" in told and "→" in told and "Set-up:" in told and found.summary in told
    text = markdown.markdown(found)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    widths = [line.replace("\\|", "").count("|") for line in lines]
    tables = [width for width, before in zip(widths, [0, *widths]) if width != before]
    assert len(tables) == 3 and tables[:2] == sorted(tables[:2]), "claims, numbers, where the time goes"
    assert found.summary in text
    assert escape.markdown("a|b\nc") == "a\\|b c"


def test_the_page_of_a_replay(done, tmp_path):
    pytest.importorskip("plotly")
    found = done
    for cell in found.cells:
        cell.device = "<script>alert(1)</script>"
        cell.source = replace(cell.source, suite="<script>alert(2)</script>")
    file = page.write(found)
    told = file.read_text(encoding="utf8")
    assert len(told.encode()) < 5_000_000 and "<script>alert" not in told and "http-equiv" in told
    links = sorted(each.name for each in (tmp_path / "replay" / "report-pages").iterdir())
    assert links and all(f"href='report-pages/{name}'" in told for name in links)
    assert all(word in told for word in ("best:", "median:", "worst:"))
    with pytest.raises(TraceError, match="exists"):
        page.write(found)
    assert page.write(found, force=True) == file
    player = tmp_path / "replay" / "report-pages" / links[0]
    player.write_text("mine")
    file.unlink()
    with pytest.raises(TraceError, match="report-pages exists"):
        page.write(found)
    other = page.write(found, file.with_name("other.html")).read_text(encoding="utf8")
    assert f"href='other-pages/{links[0]}'" in other and player.read_text() == "mine"


def test_best_median_and_worst_are_those_of_the_rows(done, tmp_path):
    results = specviz.results(tmp_path / "replay" / "run")
    cell, chosen = kept_traces.marked(results)
    rows, base = (
        {r["prompt"]: r for r in results.records() if r["cell"] == c} for c in (cell["cell"], cell["against"])
    )
    taken = lambda row: (row["prefill_seconds"] + row["decode_seconds"]) / row["tokens"]
    ratios = sorted(taken(base[p]) / taken(rows[p]) for p in rows)
    got = {name: taken(base[row["prompt"]]) / taken(row) for name, (row, _) in chosen.items()}
    assert got == pytest.approx({"best": ratios[-1], "median": ratios[len(ratios) // 2], "worst": ratios[0]})


def test_the_page_of_a_run_and_of_all(done, tmp_path):
    pytest.importorskip("plotly")
    found = done
    results = replays.opened_result(tmp_path / "replay" / "run")
    told = page.write(results, tmp_path / "run.html").read_text(encoding="utf8")
    assert str(results.path.parent) not in told, "a page that is passed on names no folder of its machine"
    assert "unispec" in told and "data-figure" in told and "Environment" in told
    assert "threshold=0.05" in markdown.markdown(results)
    read = pd.read_csv(StringIO(markdown.csv(results)))
    assert read["tau"].tolist() == results.table()["tau"].tolist() and "paired_speedup_low" in read
    every = replays.Replays(tmp_path, [found], dict(SETTINGS))
    told = page.write(every, tmp_path / "all.html").read_text(encoding="utf8")
    assert "href='#unispec-table12'" in told and "id='unispec-table12'" in told
    assert all(why.replace("'", "&#x27;") in told for why in SETTINGS.values())
    assert "unispec/table12" in markdown.markdown(every)


def test_a_page_of_tables_from_two_machines_names_both():
    def table(*places):
        return SimpleNamespace(device="; ".join(places))

    one, other = "cpu (A), 1 thread, float32, onednn kernels", "cpu (B), 1 thread, float32, plain kernels"
    assert page.machines_of([table(one), table(one)]) == one
    assert page.machines_of([]) == ""
    both = page.machines_of([table(one), table(one, other)])
    assert both == "cpu (A), cpu (B); each table names its number format and kernels"


def test_pages_of_two_tables_do_not_meet(done, tmp_path):
    pytest.importorskip("plotly")
    other = replace(done, table="unispec/table13")
    told = page.write(replays.Replays(tmp_path, [done, other], {})).read_text(encoding="utf8")
    files = sorted(each.name for each in (tmp_path / "report-pages").iterdir())
    assert {name[:15] for name in files} == {"unispec-table12", "unispec-table13"}
    assert all(f"href='report-pages/{name}'" in told for name in files)


def test_a_recorded_result_is_shown_without_torch_and_names_its_device(tmp_path):
    """Its one file suffices on a machine that has neither the device nor torch."""
    found = made(rows=by_method("EN", "speedup", two=figure(1.5), uni=figure(3.0)))
    for cell in found.measured:
        cell.source = replace(cell.source, device="NVIDIA H100 80GB HBM3", threads=4)
    replace(found, path=tmp_path).save()
    code = f"""
import sys
import time
sys.modules["torch"] = None
from rich.console import Console
from specviz.replays import markdown, replays, terminal
found = replays.opened_result({str(tmp_path)!r})
terminal.show(found, Console(width=120))
print(markdown.markdown(found))
print(found.frame()[["printed", "measured"]].dropna())
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.count("measured on NVIDIA H100 80GB HBM3") == 1 and "1.5" in told
    assert found.device == "NVIDIA H100 80GB HBM3, float32"
    if importlib.util.find_spec("plotly"):
        page_ = page.write(replays.opened_result(tmp_path)).read_text(encoding="utf8")
        assert "seconds on NVIDIA H100 80GB HBM3" in page_


def test_a_run_without_traces_says_so(done, tmp_path):
    results = replays.opened_result(tmp_path / "replay" / "run")
    shutil.rmtree(results.path / "traces")
    assert kept_traces.marked(results) is None
    with pytest.raises(TraceError, match="holds no result"):
        replays.opened_result(tmp_path)


def test_the_commands(done, tmp_path, capsys):
    pytest.importorskip("plotly")
    ask = lambda *words: cli.run([*map(str, words)])
    assert ask("replay", "unispec/tabel1") == 2
    assert ask("replay") == 0
    assert ask("replay", "unispec/table1", "--all") == 2
    folder = tmp_path / "replay"
    assert ask("bench", "report", folder) == 0
    assert ask("bench", "report", folder, "--markdown") == 0
    capsys.readouterr()
    assert ask("bench", "report", folder, "--csv") == 0
    told = pd.read_csv(StringIO(capsys.readouterr().out))
    pd.testing.assert_series_equal(told["measured"], done.frame()["measured"])
    assert ask("bench", "report", folder, "--csv", "--html") == 2
    assert ask("bench", "report", folder, "--html") == 0 and (folder / "report.html").exists()
    assert ask("bench", "report", folder, "--html") == 2
    assert ask("bench", "report", folder, "--out", "x") == 2
    assert ask("bench", "report", tmp_path) == 2
