"""Joined runs of one text each: only the run's name, the prompt numbers and the clock change."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from identities import validate
from tiny import llama

import specviz as sv
import traces
from specviz import cli, metrics
from specviz.errors import TraceError
from specviz.metrics.cycles import batch_rows
from specviz.trace import Recorder, Trace

matplotlib.use("agg")
METHODS = ("autoregressive", "speculative", "bild")
TEXTS = 7


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """A folder of runs of one text each; each seed gives a text with its own prompt."""
    folder = tmp_path_factory.mktemp("apart") / "traces"
    for method in METHODS:
        for seed in range(TEXTS):
            traces.build(
                method, tokens=30 + seed, seed=seed, cut=False, path=folder / f"{method}{seed}.parquet"
            )
    return Trace.open(folder)


def test_each_method_is_one_run_of_all_texts(apart):
    joined = apart.join()
    assert [run.run["method"] for run in joined.split()] == sorted(METHODS)
    for run in joined.split():
        parts = apart.select(method=run.run["method"])
        assert run.texts == [text for part in parts.split() for text in part.texts]
        assert [p["tokens"] for p in run.run["prompts"]] == [
            part.run["prompts"][0]["tokens"] for part in parts.split()
        ]
        assert sorted(set(run.cycles["prompt"])) == list(range(TEXTS))
        for metric in (metrics.tau, metrics.acceptance_rate, metrics.seconds, metrics.output):
            assert metric(run) == pytest.approx(metric(parts), nan_ok=True)
        for name in ("token", "status", "p", "q"):
            assert run.nodes[name].tolist() == pytest.approx(parts.nodes[name].tolist(), nan_ok=True)
        validate(run)


def test_a_clock_goes_on_from_text_to_text(apart):
    for run in apart.join().split():
        begun = run.cycles.groupby("prompt")["start"].min().to_numpy()
        ended = (run.cycles["start"] + run.cycles["duration"]).groupby(run.cycles["prompt"]).max().to_numpy()
        assert (begun[1:] - ended[:-1] > -1e-9).all() and batch_rows(run) == 1
        since = run.passes["start"] - run.passes.merge(run.cycles, on=["prompt", "cycle"])["start_y"]
        assert np.nanmin(since) >= -1e-9


def test_views_of_one_run_take_it(apart, tmp_path):
    with pytest.raises(TraceError, match=r"there are 7; if .* pass trace\.join\(\)"):
        sv.view.why_it_pays(apart)
    joined = apart.join()
    runs = {run.run["method"]: run for run in joined.split()}
    table = metrics.break_even(runs, "autoregressive").set_index("name")
    assert table["prompts"].tolist() == [TEXTS] * 3 and np.isfinite(table.loc["speculative", "speedup_lo"])
    assert sv.view.why_it_pays(joined).get_title(loc="left")
    assert len(sv.race(joined.select(prompt=3, method=["autoregressive", "speculative"])).fields) == 1
    path = runs["bild"].save(tmp_path / "bild.parquet")
    assert sv.open(path).texts == runs["bild"].texts and sv.open(path).join().texts == runs["bild"].texts


def test_what_differs_in_more_than_its_texts_stays_apart(tmp_path):
    for name, more in (("a", {}), ("b", {"threads": 2}), ("c", {"dtype": "bfloat16"})):
        traces.build("speculative", path=tmp_path / f"{name}.parquet", run=name, **more)
    traces.build("speculative", seed=1, path=tmp_path / "d.parquet")
    assert [len(run.prompts) for run in Trace.open(tmp_path).join().split()] == [2, 1, 1]


def test_a_run_folder_is_shown_by_method(apart, tmp_path, capsys):
    folder = tmp_path / "traces"
    for number, part in enumerate(apart.split()):
        part.save(folder / f"{number}.parquet")
    assert cli.run(["show", str(folder)]) == 0
    out = capsys.readouterr().out
    lines = [line.split()[0] for line in out.splitlines() if line.startswith(METHODS)]
    assert lines[:3] == sorted(METHODS) and "6 more texts: " in out and "more run" not in out
    assert cli.run(["show", str(folder), "--prompt", str(TEXTS)]) == 0
    round_two = {"path": folder / "again.parquet", "run": "again"}
    traces.build("speculative", cut=False, tokens=30, **round_two)
    capsys.readouterr()
    assert cli.run(["show", str(folder)]) == 0
    assert "14 more runs: specviz show FILE shows one of the folder" in capsys.readouterr().out


def test_runs_without_prompts_or_times_are_joined_too(tmp_path):
    for name, more in (("a", {"prompts": None}), ("b", {"prompts": [{}]})):
        run = traces.metadata("speculative") | {"run": name, **more}
        recorder = Recorder(run, tmp_path / f"{name}.parquet", record=None)
        recorder.add(
            {"cycle": 1, "prompt": 0, "out_token": [5], "out_position": [0], "out_origin": ["plain"]}
        )
        recorder.close()
    (joined,) = Trace.open(tmp_path).join().split()
    assert len(joined.texts) == 2 and joined.cycles["start"].isna().all()


def test_stores_that_began_empty_each_are_no_store_of_all_texts(tmp_path):
    """A joined run's UniSpec store is not filled by the earlier texts, as with ``keep="prompt"``."""
    target = llama(seed=1, vocabulary=24, eos=(), name="target")
    prompts = [5, 6, 7, 8], [9, 10, 11], [5, 6, 8]
    given = {"max_new_tokens": 12, "record": "all"}
    for number, prompt in enumerate(prompts):
        sv.generate(target, [prompt], "unispec", **given, out=tmp_path / f"{number}.parquet")
    joined = sv.open(tmp_path).join()
    whole = sv.generate(target, prompts, "unispec", keep="prompt", **given)
    assert joined.run["memory"] == {"start": whole.run["memory"]["start"]}
    assert metrics.learnt(joined).iloc[:, 1:].equals(metrics.learnt(whole).iloc[:, 1:])
    both = [sv.whatif(trace).unispec(draft_size=(4, 24)).table for trace in (joined, whole)]
    assert both[0].equals(both[1]) and both[0]["badge"].iloc[1] == "exact"
    later = sv.generate(target, prompts, "unispec", **given).select(prompt=[1, 2])
    assert later.join().run["memory"] is None, "the first text filled the store"
    later.save(tmp_path / "later.parquet")
    assert sv.open(tmp_path / "later.parquet").join().run["memory"] is not None, "this is a run as it is"


def test_a_selection_keeps_no_piece_of_other_texts():
    whole = sv.generate(llama(seed=1, vocabulary=24), [[22, 23], [5, 6]], "autoregressive", max_new_tokens=1)
    alone = whole.select(prompt=1).join()
    assert alone.text == whole.select(prompt=1).text
    assert {1, 5, 6, *alone.outputs["token"]} <= set(alone.pieces) < set(whole.pieces)
    assert 23 not in alone.pieces


def test_another_round_is_no_further_text(tmp_path):
    for name in ("first", "second"):
        traces.build("speculative", path=tmp_path / f"{name}.parquet", run=name)
    both = Trace.open(tmp_path)
    with pytest.raises(
        TraceError, match=r"speculative decoded 1 of 2 prompts more than once .* select\(run="
    ):
        both.join()
    assert len(both.select(run="first").join().prompts) == 1


def test_redacted_runs_are_not_joined_as_different_texts(tmp_path):
    for name in ("first", "second"):
        traces.build("speculative", path=tmp_path / f"{name}.parquet", run=name)
    both = Trace.open(tmp_path).redact()
    with pytest.raises(TraceError, match=r"prompts of speculative were redacted.* its 2 runs .*select\(run="):
        both.join()
    assert len(both.select(run="first", prompt=0).join().prompts) == 1


def test_a_joined_run_keeps_why_the_first_incomplete_one_stopped(tmp_path):
    for seed, stopped in enumerate([None, "interrupted", "a bug"]):
        recorder = Recorder(traces.metadata(seed=seed), tmp_path / f"{seed}.parquet", piece=traces.piece)
        for cycle in traces.cycles(seed=seed):
            recorder.add(cycle)
        recorder.close(stopped is None, stopped)
    run = Trace.open(tmp_path).join().run
    assert (run["complete"], run["stopped"]) == (False, "interrupted")
