"""Runs of a plan: what they decode, what is on disk, interruptions, and refusals."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import specviz
import specviz.measure
from specviz.errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError
from specviz.measure import rows as files
from specviz.measure import running, timing, work
from specviz.measure.plan import Plan, name_of, read, read_suites
from specviz.metrics import Estimate
from specviz.models import bundled

WORDS = ("the", "cook", "lost", "her", "bag", "at", "the", "station", "and", "a", "doctor", "found", "it")
LEFT = ".0123456789abcdef.part"  # a temporary file, as a killed run leaves it


def entries(n, seed=0):
    rng = random.Random(seed)
    kinds = ("qa", "code")
    return [
        {"id": f"p{i}", "kind": kinds[i % 2], "prompt": " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))}
        for i in range(n)
    ]


def suite(path, n, seed=0):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries(n, seed)))
    return str(path)


@pytest.fixture
def plan(folders, tmp_path):
    """A plan with one model, its reference, two methods, three prompts, and two warm-up prompts."""
    return {
        "models": [{"model": str(folders.target), "draft": str(folders.draft)}],
        "methods": ["speculative", {"method": "prompt_lookup", "draft_length": [2, 4]}],
        "suites": [suite(tmp_path / "words.jsonl", 5)],
        "number": 3, "warm_up": 2, "max_new_tokens": 10,
    }  # fmt: skip


def same(results, *without):
    """Rows without the values that may vary from run to run."""
    gone = {
        "prefill_seconds", "decode_seconds", "wall_seconds", "peak_memory", "device_memory", "sitting",
        "started", "environment", "clock", "phases", *without,
    }  # fmt: skip
    return [{k: v for k, v in row.items() if k not in gone} for row in results.records()]


# ---------------------------------------------------------------- decoding, and the table


def test_rows_are_the_methods_texts(plan, folders, tmp_path):
    found = specviz.run(plan, out=tmp_path / "run")
    assert found.complete
    assert [(c["method"], c["against"]) for c in found.cells] == [
        ("autoregressive", 0), ("speculative", 0), ("prompt_lookup", 0), ("prompt_lookup", 0),
    ]  # fmt: skip
    assert len(found.rows()) == 12
    model = specviz.load(folders.target)
    for row in found.records():
        entry = found.prompts("words")[row["prompt"]]
        trace = specviz.generate(
            model, entry, row["method"], draft=folders.draft, max_new_tokens=10, **row["parameters"]
        )
        assert row["ids"] == [trace.outputs["token"].tolist()]
        assert row["tokens"] == len(row["ids"][0]) == specviz.metrics.emitted(trace)
        assert row["steps"] == specviz.metrics.steps(trace)
        assert row["sent"] == specviz.metrics.sent(trace)
        assert row["accepted"] == specviz.metrics.accepted(trace)
        assert row["prompt_tokens"] == len(trace.run["prompts"][0]["tokens"])
        assert row["exactness"] == trace.run["exactness"]
        assert row["id"] == entry["id"] and row["kind"] == entry["kind"] and row["error"] is None
        assert row["prefill_seconds"] > 0 and row["decode_seconds"] > 0 and row["timed"]
        assert row["environment"] in found.environments
    turns = [[r["place"] for r in found.records() if r["cell"] == cell] for cell in range(4)]
    assert turns == [[0, 3, 2], [1, 0, 3], [2, 1, 0], [3, 2, 1]]
    for number in range(3):  # decoded in that order, prompt by prompt
        sitting = sorted((r for r in found.records() if r["prompt"] == number), key=lambda r: r["place"])
        assert len({r["sitting"] for r in sitting}) == 1
        begun = [r["started"] for r in sitting]
        assert begun == sorted(begun)


def test_the_table_is_computed_from_the_rows(plan, tmp_path):
    found = specviz.run(plan, out=tmp_path / "run", seeds=[0, 1])
    table, rows = found.table(), found.rows()
    one = table.iloc[2]
    ours, base = (rows[rows["cell"] == cell] for cell in (2, 0))
    assert one["prompts"] == one["pairs"] == 3 and one["failures"] == 0
    assert one["tokens"] == ours["tokens"].sum()
    assert one["tau"] == pytest.approx(ours["tokens"].sum() / ours["steps"].sum())
    taken = [side["prefill_seconds"] + side["decode_seconds"] for side in (ours, base)]
    speeds = [(side["tokens"] / t).groupby(side["prompt"]).mean() for side, t in zip((ours, base), taken)]
    assert one["pooled_throughput"] == pytest.approx(ours["tokens"].sum() / taken[0].sum())
    assert one["request_throughput"] == pytest.approx(speeds[0].mean())
    assert one["request_speedup"] == pytest.approx(speeds[0].mean() / speeds[1].mean())
    assert one["pooled_speedup"] == pytest.approx(
        one["pooled_throughput"] / (base["tokens"].sum() / taken[1].sum())
    )
    assert one["decode_speedup"] == pytest.approx(
        (ours["tokens"].sum() / ours["decode_seconds"].sum())
        / (base["tokens"].sum() / base["decode_seconds"].sum())
    )
    assert one["same"] == 1 and np.isnan(table["same"].astype(float)[0])
    assert (table.iloc[0][["pooled_speedup", "tau", "paired_speedup"]] == 1).all()
    kinds = found.table(by="kind")
    assert kinds.groupby("cell")["tokens"].sum().tolist() == table["tokens"].tolist()
    assert set(kinds["kind"]) == {"qa", "code"}
    assert "speedup pooled" in found.shown()
    names = found.shown(), found.table()
    for name in {"model", "draft"} & set(names[0]):  # a folder is shown by its name alone
        assert list(names[0][name]) == [Path(text or "").name for text in names[1][name].fillna("")]
        assert any("/" in str(text) for text in names[1][name])
    with pytest.raises(ParameterError, match="broken down by"):
        found.table(by="weather")


def write(root, rows, cells, rounds=1):
    """Write a run from (cell, prompt, tokens, seconds, sitting) rows, repeated in each round."""
    plan = {
        "models": [{"model": "m"}], "seeds": list(range(rounds)), "timed": True,
        "suites": {"s": {"digest": "", "prompts": 9}},
        "cells": [
            {"cell": i, "model": "m", "method": name, "draft": None, "parameters": {}, "suite": "s",
             "temperature": 0.0, "against": 0} for i, name in enumerate(cells)
        ],
    }  # fmt: skip
    found = files.begin(root, plan, {"s": []}, "now")
    for number, (cell, prompt, tokens, seconds, sitting) in product(range(rounds), rows):
        row = {
            "cell": cell, "round": number, "seed": 0, "prompt": prompt, "kind": None, "error": None,
            "tokens": tokens, "steps": tokens, "ids": [[0]], "sitting": sitting, "timed": True,
            "prefill_seconds": 0.0, "decode_seconds": seconds, "peak_memory": 1, "device_memory": None,
        }  # fmt: skip
        files.write_json(root / "rows" / f"{files.key_of(cell, number, prompt)}.json", row)
    return found


def test_a_prompt_is_paired_with_itself_and_rounds_are_no_texts(tmp_path):
    ratios = [2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 0.5, 0.25]
    taken = [1.0, 40.0, 3.0, 20.0, 5.0, 70.0, 2.0, 9.0]  # for the reference; a wrong pairing would show
    rows = [(0, i, 10 + i, t, f"{i}") for i, t in enumerate(taken)]
    rows += [(1, i, 10 + i, t / r, f"{i}") for i, (t, r) in enumerate(zip(taken, ratios))]
    once, thrice = (
        write(tmp_path / str(n), rows, ("autoregressive", "a"), n).table().iloc[1] for n in (1, 3)
    )
    want = Estimate.of(ratios)
    assert (once["paired_speedup"], once["paired_speedup_low"], once["paired_speedup_high"]) == (
        want.median, want.low, want.high,
    )  # fmt: skip
    assert once["pooled_speedup"] == pytest.approx(sum(taken) / sum(t / r for t, r in zip(taken, ratios)))
    assert once["pooled_speedup_low"] < once["pooled_speedup"] < once["pooled_speedup_high"]
    assert thrice["pairs"] == once["pairs"] == 8
    for name in ("pooled", "request", "paired", "decode"):
        for end in ("", "_low", "_high"):  # resampled over prompts with a fixed seed
            assert thrice[f"{name}_speedup{end}"] == pytest.approx(once[f"{name}_speedup{end}"], rel=1e-12)
    few = [row for row in rows if row[1] < 5]
    one = write(tmp_path / "few", few, ("autoregressive", "a")).table().iloc[1]
    assert one["paired_speedup"] == 5 and np.isnan(one["paired_speedup_low"])  # five texts give no interval
    assert np.isnan(one["pooled_speedup_low"])


def test_pooled_and_request_averages_can_flip_the_winner(tmp_path):
    # a is quick on the short answer, b on the long one.
    rows = [(0, 0, 10, 1.0, "x"), (0, 1, 1000, 100.0, "x")]
    rows += [(1, 0, 10, 0.2, "x"), (1, 1, 1000, 100.0, "x")]
    rows += [(2, 0, 10, 1.0, "x"), (2, 1, 1000, 50.0, "x")]
    table = write(tmp_path / "r", rows, ("autoregressive", "a", "b")).table().set_index("method")
    assert table["pooled_speedup"]["a"] == pytest.approx(101 / 100.2)
    assert table["pooled_speedup"]["b"] == pytest.approx(101 / 51)
    assert table["request_speedup"]["a"] == pytest.approx((50 + 10) / (10 + 10))
    assert table["request_speedup"]["b"] == pytest.approx((10 + 20) / (10 + 10))
    assert table["paired_speedup"].tolist() == pytest.approx([1, 3, 1.5])


def test_a_pair_is_of_one_sitting(tmp_path):
    rows = [(0, 0, 10, 1.0, "x"), (1, 0, 10, 0.5, "x"), (0, 1, 10, 9.0, "x"), (1, 1, 10, 0.5, "y")]
    found = write(tmp_path / "r", rows, ("autoregressive", "a"))
    one = found.table().iloc[1]
    assert (one["prompts"], one["pairs"], one["pooled_speedup"]) == (2, 1, 2.0)
    assert any("up to 1 prompt of a cell without a pair" in note for note in found.notes())
    assert "tokens/s, mean" in found.shown()


def test_a_table_is_the_callers_own_and_follows_the_folder(tmp_path):
    rows = [(cell, prompt, 10, 1.0, "x") for cell, prompt in product((0, 1), range(3))]
    results = write(tmp_path / "r", rows, ("autoregressive", "a"))
    table = results.table("round")
    want = table.copy()
    table.loc[:, "tokens"] = 0
    assert results.table(["round"]).equals(want) and list(results.table()) != list(want)
    file = tmp_path / "r" / "rows" / "c001-r0-p0002.json"
    row = json.loads(file.read_text())
    for tokens in (40, 30, 20):  # decoded again, while the results are open
        files.write_json(file, row | {"tokens": tokens})
        os.utime(file, (tokens, tokens))  # a clock may be too coarse to tell the files apart
        assert results.table().iloc[1]["tokens"] == 20 + tokens
        assert results.shown()["tokens"].tolist() == ["30", str(20 + tokens)]
    file.unlink()
    assert results.table().iloc[1][["prompts", "failures"]].tolist() == [2, 0]
    files.write_json(file, row | {"error": "none"})
    assert results.table().iloc[1][["prompts", "failures"]].tolist() == [2, 1]


def test_one_row_is_missing(tmp_path):
    rows = [(cell, prompt, 10, 1.0, "x") for cell, prompt in product((0, 1), range(9))]
    assert "1 row is still missing" in write(tmp_path / "r", rows[1:], ("autoregressive", "a")).notes()


def test_failures_that_are_not_listed_are_counted(tmp_path, monkeypatch):
    """Of each failure, and not of each line: a line names all methods that failed alike on a prompt."""
    monkeypatch.setattr(files, "NOTES", 6)
    rows = [(cell, prompt, 10, 1.0, "x") for cell, prompt in product((0, 1), range(9))]
    results = write(tmp_path / "r", rows, ("autoregressive", "a"))
    for file in (tmp_path / "r" / "rows").glob("*.json"):
        files.write_json(file, json.loads(file.read_text()) | {"error": "none", "method": file.name[:4]})
    notes = results.notes()
    assert len(notes) == files.NOTES + 1 and notes[-2].startswith("failed: c000 and 1 more on ")
    listed = sum(2 for note in notes if note.startswith("failed: "))
    assert notes[-1] == f"... and {18 - listed} more failures (Results.failures() lists all)"


def test_a_row_without_tokens_has_no_speed(tmp_path):
    rows = [(cell, prompt, 10, 1.0, "x") for cell, prompt in product((0, 1), (0, 1))]
    found = write(tmp_path / "r", rows, ("autoregressive", "a"))
    file = tmp_path / "r" / "rows" / "c000-r0-p0000.json"
    files.write_json(file, json.loads(file.read_text()) | {"written": 0})
    one = found.table().iloc[1]
    assert (one["prompts"], one["pairs"], one["paired_speedup"]) == (2, 1, 1.0)


def test_prefill_and_decoding_are_timed_apart_when_the_device_is_done(plan, tmp_path, monkeypatch):
    events = []

    def clock():
        events.append("read")
        return float(events.count("read") ** 2)  # all spans differ in length

    monkeypatch.setattr(work, "clock_of", lambda model: (clock, "a clock"))
    monkeypatch.setattr(work, "synchroniser", lambda device: lambda: events.append("wait"))
    found = specviz.run(plan, out=tmp_path / "run", methods=["prompt_lookup"], number=1)
    assert events == ["wait", "read"] * 6
    first, second = sorted(found.records(), key=lambda row: row["place"])
    assert (first["prefill_seconds"], first["decode_seconds"]) == (4 - 1, 9 - 4)
    assert (second["prefill_seconds"], second["decode_seconds"]) == (25 - 16, 36 - 25)
    assert first["clock"] == "a clock"


def test_each_device_is_waited_for(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(str(device)))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    for device in ("cuda:1", "mps", "cpu"):
        timing.synchroniser(device)()
    assert waited == ["cuda:1", "mps"]


def test_the_clock_counts_threads_once():
    torch.set_num_threads(1)
    for own, name in (
        ({}, "processor time"),
        ({"threads": 2}, "wall clock"),
        ({"gpu_layers": -1}, "wall clock"),
    ):
        assert timing.clock_of(SimpleNamespace(device="cpu", **own))[1] == name


@pytest.mark.skipif(not work.CLEAR.exists(), reason="the system does not forget a peak")
def test_peak_memory_is_of_its_own_decode(plan, tmp_path):
    # In a separate process: other tests may have left this one's allocator more than a decode takes.
    life = get_context("spawn").Process(target=hungry_child, args=(plan, tmp_path / "run"))
    life.start()
    life.join(120)
    assert life.exitcode == 0
    rows = [json.loads(path.read_text("utf8")) for path in (tmp_path / "run" / "rows").glob("*.json")]
    peaks = [[row["peak_memory"] for row in rows if row["cell"] == cell] for cell in (0, 1)]
    assert max(peaks[0]) + (200 << 20) < min(peaks[1])


def hungry_child(plan, out):
    """A run in which prompt lookup allocates 384 MiB in each cycle and frees it at once."""
    from specviz.methods.prompt_lookup import PromptLookup

    verify = PromptLookup.verify

    def hungry(self, *args):
        np.ones(48 << 20)
        return verify(self, *args)

    PromptLookup.verify = hungry
    small = {"number": 2, "warm_up": 1, "max_new_tokens": 3}
    specviz.run(plan, out=out, methods=["prompt_lookup"], tick=lambda *_: None, **small)


def test_where_the_layers_lie_is_written_down(plan):
    settled = Plan.of(plan)
    (job, *_) = running.jobs_of(settled, {(0, 0, 0)}, running.Layouts({}, {}))
    bench = work.Bench(job, {})
    assert bench.environment["places"] == []
    bench.model.places = [(torch.device("cuda:0"), 3), (torch.device("cuda:1"), 2)]
    assert bench._environment()["places"] == [["cuda:0", 3], ["cuda:1", 2]]


def test_every_prompt_begins_with_the_same_memory(folders, tmp_path):
    """Earlier measurements and their order change nothing."""
    texts = entries(6)
    common = {
        "models": [str(folders.target)],
        "methods": ["token_recycling"],
        "warm_up": 2,
        "max_new_tokens": 12,
    }
    given = {"words": [texts[i] for i in (0, 1, 2, 3, 4, 5)]}
    one = specviz.run(common, suites=given, number=4, out=tmp_path / "a")
    turned = {"words": [texts[i] for i in (3, 2, 1, 0, 4, 5)]}
    other = specviz.run(common, suites=turned, number=4, out=tmp_path / "b")
    keep = ("id", "cell", "ids", "steps", "sent", "accepted", "memory")
    both = [sorted([[row[k] for k in keep] for row in r.records()], key=str) for r in (one, other)]
    assert both[0] == both[1]
    assert {row["memory"] for row in one.records()} == {None, "warm"}
    cold = specviz.run(common, suites=given, number=4, warm_up=0, out=tmp_path / "c")
    assert {row["memory"] for row in cold.records()} == {None, "cold"}
    assert [r["steps"] for r in cold.records()] != [r["steps"] for r in one.records()]


def test_streams_and_conversations(folders, tmp_path):
    streams = [specviz.streams.fixed_lag(" ".join(WORDS[i:]), 3) for i in (4, 7)]
    found = specviz.run(
        models=[str(folders.target)], methods=[{"method": "retranslate", "beta": [0.0, 0.4]}],
        suites={"heard": streams}, warm_up=0, max_new_tokens=6, out=tmp_path / "a", traces=True,
    )  # fmt: skip
    assert [c["parameters"] for c in found.cells] == [{"mode": "rt"}, {"beta": 0.0}, {"beta": 0.4}]
    assert found.table()["same"][1] == 1
    first = found.records()[0]
    assert len(first["ids"]) == len(list(streams[0]))
    assert found.trace(0, 0).run["method"] == "retranslate"
    chat = {"chat": [{"turns": ["the cook", "and the bag"]}]}
    found = specviz.run(
        models=[str(folders.target)],
        methods=["prompt_lookup"],
        suites=chat,
        max_new_tokens=6,
        out=tmp_path / "b",
    )
    assert [len(row["ids"]) for row in found.records()] == [2, 2]
    with pytest.raises(PromptError, match="prompt_lookup decodes fixed prompts"):
        specviz.run(methods=["prompt_lookup"], suites={"heard": streams}, out=tmp_path / "c")
    with pytest.raises(PromptError, match="retranslate decodes sources"):
        specviz.run(methods=["retranslate"], out=tmp_path / "c")


# ---------------------------------------------------------------- interrupted and resumed


def test_a_finished_run_decodes_nothing(plan, tmp_path, monkeypatch):
    found = specviz.run(plan, out=tmp_path / "run")
    monkeypatch.setattr(work, "rows", None)
    again = specviz.run(plan, out=tmp_path / "run")
    assert again.records() == found.records()


def child(plan, out):
    """One attempt at a run, in a separate process."""
    specviz.run(plan, out=out, tick=lambda *_: None)


def test_a_run_killed_ten_times_has_the_same_rows(plan, tmp_path):
    plan |= {"number": 14, "suites": [suite(tmp_path / "more.jsonl", 15)], "warm_up": 1}
    plan |= {"methods": ["speculative"], "max_new_tokens": 8}
    whole = specviz.run(plan, out=tmp_path / "whole")
    context = get_context("forkserver")
    context.set_forkserver_preload(["specviz.measure.running", "specviz.models.fetching"])
    rng = random.Random(0)
    out = tmp_path / "killed"
    kills, seen = 0, {}
    counts = []
    while True:
        life = context.Process(target=child, args=(plan, out))
        life.start()
        # Ten kills at random: before this attempt's first row, or some rows and moments later.
        if kills < 10:
            wanted = len(list(out.glob("rows/*.json"))) + rng.randint(0, 3)
            limit = time.monotonic() + 30
            while (
                len(list(out.glob("rows/*.json"))) < wanted and life.is_alive() and time.monotonic() < limit
            ):
                time.sleep(0.002)
            time.sleep(rng.random() * 0.02)
            assert life.is_alive(), "the plan is too short for ten kills"
            os.kill(life.pid, signal.SIGKILL)
            kills += 1
        life.join()
        now = {file: file.stat().st_mtime_ns for file in out.glob("rows/*.json")}
        assert all(now[file] == written for file, written in seen.items()), "a finished row was written again"
        assert all(json.loads(file.read_text()) for file in now)
        counts.append(len(now))
        seen = now
        if life.exitcode == 0:
            break
    assert kills == 10
    assert sum(0 < n < len(whole.wanted) for n in counts) >= 5
    killed = specviz.results(out)
    assert killed.complete
    assert same(killed) == same(whole)
    assert not list(out.glob("*/*.part"))
    unlike = [
        "pairs",
        "timed",
        *[
            c
            for c in whole.table()
            if c.startswith(("pooled_", "request_th", "request_s", "paired_", "decode_", "peak_", "prefill_"))
        ],
    ]
    assert killed.table().drop(columns=unlike).equals(whole.table().drop(columns=unlike))


def test_ctrl_c_leaves_a_folder_that_goes_on(plan, tmp_path, monkeypatch):
    from specviz.methods.prompt_lookup import PromptLookup

    calls = []
    verify = PromptLookup.verify

    def interrupt(self, *args):
        calls.append(1)
        if len(calls) == 60:
            raise KeyboardInterrupt
        return verify(self, *args)

    monkeypatch.setattr(PromptLookup, "verify", interrupt)
    with pytest.raises(
        KeyboardInterrupt, match=r"run keeps \d+ of 12 rows; run the same command again to continue"
    ) as caught:
        specviz.run(plan, out=tmp_path / "run")
    left = specviz.results(tmp_path / "run")
    assert 0 < len(left.records()) < 12
    assert f"keeps {len(left.records())} of 12 rows" in str(caught.value)
    before = left.records()
    found = specviz.run(plan, out=tmp_path / "run")
    assert found.complete
    assert [r for r in found.records() if r in before] == before


def test_failures_are_rows(plan, tmp_path, monkeypatch):
    from specviz.methods.speculative import Speculative

    verify = Speculative.verify

    def fail(self, draft, scores):
        if len(self.session.prompt) == fail.length:
            raise RuntimeError("no\nluck")
        return verify(self, draft, scores)

    long = {"id": "long", "prompt": "x" * 400}
    given = {"words": [*entries(2), long]}
    plan |= {"suites": given, "number": None}
    fail.length = len(specviz.load(plan["models"][0]["model"]).encode(entries(2)[1]["prompt"]))
    monkeypatch.setattr(Speculative, "verify", fail)
    found = specviz.run(plan, out=tmp_path / "run")
    assert found.complete
    failed = found.failures()
    assert failed["method"].tolist() == [
        "autoregressive",
        "speculative",
        "speculative",
        *["prompt_lookup"] * 2,
    ]
    assert "RuntimeError: no luck" in failed["error"].tolist()
    assert failed["error"].str.contains("PromptError: .* tokens").sum() == 4
    table = found.table()
    assert table["failures"].tolist() == [1, 2, 1, 1]
    assert table["prompts"].tolist() == [2, 1, 2, 2]
    assert table["pairs"][1] == 1
    monkeypatch.setattr(Speculative, "verify", verify)
    again = specviz.run(plan, out=tmp_path / "run")
    assert len(again.failures()) == 5
    again = specviz.run(plan, out=tmp_path / "run", retry=True)
    assert again.table()["failures"].tolist() == [1, 1, 1, 1]
    assert again.table()["pairs"].tolist() == [2, 2, 2, 2], "its reference was decoded again right before it"


def test_as_many_prompts_warm_up_as_are_wanted():
    given = {"models": "town", "methods": ["unispec"], "suites": {"words": entries(12)}}
    for number, warm_up in ((2, 5), (4, 4), (8, 3)):
        made = Plan.of(given, number=number, warm_up=warm_up).suites["words"]
        assert (len(made.entries), len(made.warm)) == (number, warm_up)
        assert not {each["id"] for each in made.entries} & {each["id"] for each in made.warm}


def test_a_measured_prompt_fills_no_memory():
    """Regression: a second line with the same text was taken for another prompt."""
    again = [each | {"id": f"again-{each['id']}"} for each in entries(6)]
    made = read_suites({"words": entries(6) + again}, 4, 5)["words"]
    assert made.warm and not {e["prompt"] for e in made.entries} & {e["prompt"] for e in made.warm}
    heard = [specviz.streams.fixed_lag("the cook lost", 3) for _ in range(3)]
    assert not read_suites({"heard": heard}, 1, 5)["heard"].warm


def test_memories_that_nothing_filled_are_named(folders, tmp_path):
    plan = {"models": str(folders.target), "methods": ["unispec"], "suites": {"w": entries(3)}}
    plan |= {"max_new_tokens": 4, "timed": False}
    made = specviz.run(plan, out=tmp_path / "all")
    note = "w: no prompt was left to fill memories, so they start empty: set number"
    assert note in made.notes() and made.warm == {"w": 0}
    stored = json.loads((tmp_path / "all" / "run.json").read_text("utf8"))
    assert "warm" in stored and stored["plan"]["warm_up"] == 5
    del stored["warm"]  # as runs have it that began before
    files.write_json(tmp_path / "all" / "run.json", stored)
    again = specviz.run(plan, out=tmp_path / "all", tick=lambda done, of, _: done == of or pytest.fail("run"))
    assert note not in again.notes() and again.complete
    some = specviz.run(plan, out=tmp_path / "some", number=2)
    assert some.warm == {"w": 1} and not [each for each in some.notes() if "left to fill" in each]


@pytest.mark.parametrize(
    ("name", "value"), [("device", "cuda"), ("dtype", "float64"), ("draft", "town-draft")]
)
def test_an_option_that_a_model_s_own_table_contradicts_is_refused(name, value):
    own = {"device": "cpu", "dtype": "float32", "draft": "town-draft-aligned"}
    plan = {"models": [{"model": "town"} | own], "methods": ["speculative"]}
    assert Plan.of(plan, **{name: own[name]}).models[0]["model"] == "town"
    with pytest.raises(ParameterError, match=rf"models\[0\] of the plan has its own {name}"):
        Plan.of(plan, **{name: value})


# ---------------------------------------------------------------- other processes


def test_processes_get_the_same_rows(plan, tmp_path):
    alone = specviz.run(plan, out=tmp_path / "alone", timed=False)
    found = specviz.run(plan, out=tmp_path / "pool", workers=2, timed=False)
    assert same(found) == same(alone)
    assert found.table()["pooled_speedup"].isna().all()
    assert not found.rows()["timed"].any()
    assert found.rows()["decode_seconds"].isna().all()
    assert "untimed" in " ".join(found.notes())
    assert not {"speedup pooled", "speedup paired", "tokens/s pooled"} & set(found.shown())


def worker(connection):
    work.attend()
    connection.send(os.getpid())
    time.sleep(60)


def parent_of_one(connection):
    """A run with one worker."""
    get_context("fork").Process(target=worker, args=(connection,)).start()
    time.sleep(60)


def test_workers_end_with_a_run_that_is_killed_and_do_not_hear_ctrl_c():
    ours, theirs = get_context("fork").Pipe()
    run = get_context("fork").Process(target=parent_of_one, args=(theirs,))
    run.start()
    theirs.close()
    pid = ours.recv()
    os.kill(pid, signal.SIGINT)
    assert not ours.poll(0.3)
    os.kill(run.pid, signal.SIGKILL)
    assert ours.poll(20), "the worker has outlived its run"
    with pytest.raises(EOFError):
        ours.recv()
    run.join()


class Cluster(Executor):
    """A fake Dask executor: hosts, workers and cores may change, and jobs run when submitted."""

    def __init__(self, *hosts, cores=2, later=None):
        self.hosts, self.cores, self.later, self.handed, self._client = list(hosts), cores, later, 0, self

    def scheduler_info(self, n_workers):
        return {"workers": {f"{host}:{i}": {"host": host} for i, host in enumerate(self.hosts)}}

    def run(self, function, on_error):
        assert on_error == "return"
        return {f"{host}:{i}": self.cores for i, host in enumerate(self.hosts)}

    def submit(self, function, job):
        future = Future()
        self.handed += 1
        if self.hosts:
            future.set_result(function(job))
        if self.later is not None:
            self.hosts, self.later = self.later, None
        return future


def test_a_cluster_without_workers(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "LOOK", 0.01)
    monkeypatch.setattr(running, "ALONE", 0.05)
    with pytest.raises(ParameterError, match="the cluster has no workers: start some first"):
        specviz.run(plan, out=tmp_path / "run", executor=Cluster())
    assert not (tmp_path / "run").exists()
    with pytest.raises(
        SpecvizError, match="no worker is left: start workers, then run the same command again"
    ):
        specviz.run(plan, out=tmp_path / "run", executor=Cluster(), timed=False)
    broken = Cluster("a", cores=ModuleNotFoundError("no specviz"))
    with pytest.raises(
        SpecvizError, match=r"cannot run specviz \(ModuleNotFoundError: no .*\): install it there"
    ):
        specviz.run(plan, out=tmp_path / "run", executor=broken, timed=False)
    gone = Cluster("a", cores=OSError("closed"))
    with pytest.raises(ParameterError, match="no workers"):
        specviz.run(plan, out=tmp_path / "run", executor=gone)


def test_a_cluster_is_refused_by_machine_and_while_it_works(plan, tmp_path):
    # three workers in all, none sharing its two cores
    assert sorted(running.machines(Cluster("a", "a", "b"), None)) == [(1, 2), (2, 2)]
    assert specviz.run(plan, out=tmp_path / "run", executor=Cluster("a", "a", "b")).complete
    with pytest.raises(ParameterError, match="3 worker"):
        specviz.run(plan, out=tmp_path / "no", executor=Cluster("a", "a", "b", "a"))
    # a worker is added, and the cores are shared from then on
    grown = Cluster("a", "a", later=["a", "a", "a"])
    with pytest.raises(ParameterError, match="3 worker"):
        specviz.run(plan, out=tmp_path / "grown", executor=grown)


def test_every_worker_of_a_cluster_has_work(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "AHEAD", 1)
    seen = []
    cluster = Cluster("a", "b", "c")
    specviz.run(plan, out=tmp_path / "run", executor=cluster, timed=False,
                      tick=lambda *_: seen.append(cluster.handed))  # fmt: skip
    assert seen[1] == 3  # before the first row is written


def hold_up(seconds):
    time.sleep(seconds)


def test_a_cluster_loses_a_worker_and_gets_the_same_table(plan, tmp_path):
    distributed = pytest.importorskip("distributed")
    plan |= {"number": 8, "suites": [suite(tmp_path / "more.jsonl", 10)], "timed": False}
    alone = specviz.run(plan, out=tmp_path / "alone")
    killed = []
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        assert len(set(pids.values())) == 2

        def tick(done, of, what):
            if done >= 6 and not killed:
                killed.append(next(iter(pids.values())))
                os.kill(killed[0], signal.SIGKILL)

        found = specviz.run(plan, out=tmp_path / "dask", executor=client.get_executor(), tick=tick)
    assert killed
    assert found.complete and not len(found.failures())
    assert same(found) == same(alone)
    assert found.table().drop(columns="peak_memory").equals(alone.table().drop(columns="peak_memory"))


class Doomed(Executor):
    """Finish `after` jobs, then set `error` on every future."""

    def __init__(self, error, after):
        self.error, self.left, self._max_workers = error, after, 1

    def submit(self, function, *args):
        future = Future()
        self.left -= 1
        if self.left < 0:
            future.set_exception(self.error)
        else:
            future.set_result(function(*args))
        return future


def test_a_worker_that_dies_for_good(plan, tmp_path):
    says = r"a worker died .*; in a script, call run\(\) under if .*__main__.*run keeps 4 of 12 rows\)$"
    with pytest.raises(SpecvizError, match=says) as caught:
        specviz.run(plan, out=tmp_path / "run", executor=Doomed(BrokenProcessPool("gone"), 1))
    assert "\n" not in str(caught.value)
    assert len(specviz.results(tmp_path / "run").records()) == 4
    KilledWorker = type("KilledWorker", (Exception,), {})
    found = specviz.run(plan, out=tmp_path / "run", executor=Doomed(KilledWorker("three times"), 1))
    assert found.complete
    assert found.failures()["error"].tolist() == ["KilledWorker: three times"] * 4
    assert specviz.run(plan, out=tmp_path / "run", retry=True).failures().empty
    with pytest.raises(ModelError, match="a model of other errors"):
        specviz.run(plan, out=tmp_path / "b", executor=Doomed(ModelError("a model of other errors"), 0))


def test_times_are_refused_where_cores_are_shared(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "cores", lambda: 2)
    for options, count in (({"threads": 3}, 1), ({"threads": 2}, 2), ({}, 3)):
        pool = Doomed(None, 0)
        pool._max_workers = count
        with pytest.raises(ParameterError, match="would not be timed correctly: use fewer, or do without"):
            specviz.run(plan, out=tmp_path / "run", executor=pool, **options)
    assert not (tmp_path / "run").exists()
    plan["models"][0]["device"] = "cuda"
    pool._max_workers = 2
    with pytest.raises(ParameterError, match="2 workers on one cuda device"):
        specviz.run(plan, out=tmp_path / "run", executor=pool)
    plan["models"][0].pop("device")
    plan["models"][0]["device_map"] = "auto"
    with pytest.raises(ParameterError, match="2 workers on one device_map device"):
        specviz.run(plan, out=tmp_path / "run", executor=pool)
    with pytest.raises(ParameterError, match="3 worker"):
        specviz.run(plan, out=tmp_path / "run", workers=3)
    assert running.machines(ThreadPoolExecutor(5), None) == [(1, 2)]  # threads decode one at a time
    assert running.machines(Executor(), 3) == [(3, 2)]
    with pytest.raises(ParameterError, match="pass workers="):
        running.machines(Executor(), None)


def test_what_methods_remember_does_not_depend_on_the_round_that_came_first(plan, tmp_path, monkeypatch):
    seeds = []
    decode = work.Bench._run

    def heard(self, job, cell, method, entry, number, record):
        seeds.append((record is None and number < 2, job.seed))
        return decode(self, job, cell, method, entry, number, record)

    monkeypatch.setattr(work.Bench, "_run", heard)
    plan |= {"seeds": [7], "temperature": 1.0, "number": 1, "warm_up": 1, "methods": ["unispec"]}
    specviz.run(plan, out=tmp_path / "run")
    assert {seed for _, seed in seeds} == {0, 7}


def test_a_draft_that_no_method_takes_is_refused(plan, folders):
    plan |= {"methods": ["eagle"]}
    with pytest.raises(ParameterError, match=r"no method here drafts with .*'eagle draft=NAME'"):
        Plan.of(plan)
    with pytest.raises(ParameterError, match=r"prompt_lookup takes no draft: drop draft=.*draft"):
        Plan.of(plan | {"methods": [{"method": "prompt_lookup", "draft": folders.draft}]})


def test_two_models_are_two_environments_that_mix_nothing(plan, folders, tmp_path):
    plan["models"].append({"model": folders.draft, "dtype": "float64"})
    plan |= {"methods": ["prompt_lookup"], "number": 1}
    found = specviz.run(plan, out=tmp_path / "run")
    assert len({each["dtype"] for each in found.environments.values()}) == 2
    assert not any("several environments" in note for note in found.notes())


# ---------------------------------------------------------------- refused before any work


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models = [,]", r"plan .*plan.toml is not TOML: .*line 1"),
        ("methds = ['unispec']", "a plan has no key 'methds'; did you mean methods"),
        ("models = ['town']", "a plan needs methods"),
        ("methods = ['unispek']", "unknown method 'unispek'; did you mean unispec"),
        ("methods = [{method = 'unispec', draft_sise = 3}]", "'draft_sise'; did you mean draft_size"),
        ("methods = [{method = 'unispec', draft_size = [8, 0]}]", "draft_size must .*, got 0"),
        ("methods = [{method = 'bild', rollback = [1, inf]}]", "rollback must be finite in a plan, got inf"),
        ("methods = [{draft_size = 3}]", r"methods\[0\] lacks its method"),
        ("methods = ['unispec', 'unispec']", "methods holds unispec twice"),
        ("methods = []", "methods is an empty list"),
        ("methods = ['unispec']\nmodels = ['twon']", "no model 'twon'; did you mean town"),
        ("methods = ['unispec']\nmodels = [{modl = 'town'}]", "has no key 'modl'; did you mean model"),
        ("methods = ['unispec']\nmodels = ['town', 'town']", "models holds 'town' twice"),
        ("methods = ['unispec']\nsuites = ['twon']", "no prompts 'twon'"),
        ("methods = ['unispec']\nsuites = ['bad.jsonl']", "bad.jsonl, line 2: not a JSON object"),
        ("methods = ['unispec']\nprompts = ['a.jsonl']", r"no key 'prompts'.* suites and files"),
        ("methods = ['unispec']\nprompts = 20", r"no key 'prompts': use number = 20 for how many"),
        ("methods = ['unispec']\nnumber = 0", "number must be a whole number of at least 1"),
        ("methods = ['unispec']\nseeds = [1, 1]", "seeds holds 1 twice"),
        ("methods = ['unispec']\ntemperature = -1", "temperature"),
        ("methods = ['unispec']\ntop_p = 0.9", "temperature 0 draws nothing"),
        ("methods = ['cm_asd']\ntemperature = [0, 1]", "cm_asd decodes greedily"),
        ("methods = ['unispec']\ntimed = 1", "timed must be true or false"),
        ("methods = ['speculative']\nmodels = ['town-translator']", "draft model for town-translator"),
    ],
)  # fmt: skip
def test_a_bad_plan_is_one_line_before_any_work(text, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "fine"}\nnot so\n')
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(SpecvizError, match=says) as caught:
        specviz.run("plan.toml", out="run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_plan_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text("methods = ['unispec']", encoding="utf-8-sig")
    assert read(file) == {"methods": ["unispec"]}


def test_a_folder_of_another_run_says_what_differs(plan, tmp_path):
    out = tmp_path / "run"
    specviz.run(plan, out=out, number=1, methods=["prompt_lookup"])
    plan |= {"number": 1, "methods": ["prompt_lookup"]}
    (tmp_path / "x").mkdir()
    changed = suite(tmp_path / "x" / "words.jsonl", 5, seed=1)
    for other, says in (
        ({"max_new_tokens": 11}, "its max_new_tokens is 10, here 11"),
        ({"methods": ["prompt_lookup", "unispec"]}, "it lacks unispec on .*target"),
        ({"methods": ["unispec"]}, "it has prompt_lookup on .*; it lacks unispec"),
        ({"suites": [changed]}, "its suite words has different prompts"),
    ):
        with pytest.raises(SpecvizError, match=says) as caught:
            specviz.run(plan | other, out=out)
        assert "\n" not in str(caught.value)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(SpecvizError, match="exists and is not the folder of a run"):
        specviz.run(plan, out=tmp_path / "full")
    with pytest.raises(TraceError, match="is not the folder of a run"):
        specviz.results(tmp_path / "full")


def test_a_damaged_or_changed_folder_is_named(plan, tmp_path):
    out = tmp_path / "run"
    plan |= {"number": 2}
    specviz.run(plan, out=out)
    file = out / "rows" / "c001-r0-p0001.json"
    file.write_text("{")
    with pytest.raises(TraceError, match=r"c001-r0-p0001.json is not JSON \("):
        specviz.results(out).table()
    file.unlink()
    assert len(specviz.results(out).missing) == 1
    (environment,) = (out / "environments").glob("*.json")
    said = json.loads(environment.read_text())
    (draft,) = said["drafts"]
    other = said | {"drafts": {draft: said["drafts"][draft] | {"kernels": "w8a8"}}}
    with pytest.raises(SpecvizError, match="draft has different kernels than when"):
        running.Keeper(specviz.results(out))({"environment": other})
    said["model"]["weights"] = "others"
    environment.write_text(json.dumps(said))
    with pytest.raises(SpecvizError, match="target has different weights than when"):
        specviz.run(plan, out=out)
    with files.locked(out), pytest.raises(SpecvizError, match="another run is writing"):
        specviz.run(plan, out=out)


def test_an_environment_without_its_models_is_named(tmp_path):
    found = write(tmp_path / "run", [], ("autoregressive",))
    file = tmp_path / "run" / "environments" / "e.json"
    place = {"device": "cpu", "processor": "P", "threads": 1, "dtype": "float32", "clock": "host"}
    place |= {"model": {"name": "m"}, "drafts": {"d": {"name": "d"}}}
    files.write_json(file, place)
    assert running.Keeper(found).environments == {"e": place}
    for damage in ({"model": None}, {"model": {}}, {"drafts": []}, {"drafts": {"d": {}}}):
        files.write_json(file, place | damage)
        with pytest.raises(TraceError, match=r"e\.json, (model|drafts).*: delete it and run the same plan"):
            running.Keeper(found)


def test_only_temporary_files_of_a_run_are_deleted(tmp_path):
    root = tmp_path / "run"
    write(root, [], ("autoregressive",))
    (root / "film.part").touch()
    (root / LEFT).touch()
    write(root, [], ("autoregressive",))
    assert (root / "film.part").exists() and not (root / LEFT).exists()
    (root / "run.json").unlink()
    with pytest.raises(SpecvizError, match="run exists and is not the folder of a run"), files.locked(root):
        pass
    (root / "film.part").unlink()
    (root / LEFT).touch()
    with files.locked(root):
        pass


def test_a_run_that_begins_is_left_alone_and_one_cut_off_there_goes_on(plan, tmp_path):
    out, plan["methods"] = tmp_path / "run", ["prompt_lookup"]
    settled = Plan.of(plan).settled
    with files.locked(out):  # the run is loading its model and has no row yet
        files.begin(out, settled, {}, "now")
        before = (out / "run.json").read_bytes()
        with pytest.raises(SpecvizError, match="another run is writing"):
            specviz.run(plan, out=out, max_new_tokens=3)
    assert (out / "run.json").read_bytes() == before
    (out / "run.json").rename(out / LEFT)
    assert specviz.run(plan, out=out).complete
    assert not list(out.rglob("*.part"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecvizError, match="file exists and is not the folder of a run"):
        specviz.run(plan, out=tmp_path / "file")
    with pytest.raises(TraceError, match="cannot write"):
        specviz.run(plan, out=tmp_path / "file" / "run")


def test_what_a_model_cannot_do_is_heard_at_once(plan, folders, tmp_path):
    with pytest.raises(ParameterError, match=r"ssd on .*target: ssd writes the canvases"):
        specviz.run(plan, methods=["ssd"], out=tmp_path / "run")
    assert not specviz.results(tmp_path / "run").records()
    plan |= {"methods": ["prompt_lookup"]}
    assert specviz.run(plan, out=tmp_path / "run").complete  # without rows, the plan may still be corrected
    with pytest.raises(ParameterError, match="loaded in this process"):
        specviz.run(plan, models=[specviz.load(folders.target)], executor=Doomed(None, 0), draft=None,
                          methods=["prompt_lookup"])  # fmt: skip


def test_models_in_memory(folders, tmp_path):
    model = specviz.load(folders.target)
    options = {"methods": ["prompt_lookup"], "suites": {"words": entries(2)}, "max_new_tokens": 4}
    found = specviz.run(models=[model], out=tmp_path / "run", **options)
    assert found.complete and found.table()["model"].tolist() == [model.name] * 2
    assert not work._models and not work._benches


def test_limits_of_draws_are_for_the_temperatures_that_draw(tmp_path):
    method = {"method": "speculative", "draft": "town-draft"}
    plan = {"models": ["town"], "methods": [method], "number": 1}
    plan |= {"temperature": [0.0, 0.8], "top_p": 0.9, "max_new_tokens": 6, "warm_up": 0, "timed": False}
    specviz.run(plan | {"traces": True}, out=tmp_path / "run")
    runs = specviz.open(tmp_path / "run" / "traces").split()
    drawn = {(run.run["sampling"]["temperature"], run.run["sampling"]["top_p"]) for run in runs}
    assert drawn == {(0.0, 1.0), (0.8, 0.9)}


def test_plans_cross_their_lists():
    plan = Plan.of(
        {"methods": [{"method": "unispec", "draft_size": [8, 16], "depth": [2, 3]}, "autoregressive"]},
        temperature=[0, 0.7], seeds=[0, 1], number=2,
    )  # fmt: skip
    assert len(plan.cells) == 10 and plan.rows == 40
    assert {c.temperature for c in plan.cells} == {0.0, 0.7}
    assert [c.against for c in plan.cells] == [0] * 5 + [5] * 5
    measured, warm = (
        {entry["id"] for entry in each} for each in (plan.suites["town"].entries, plan.suites["town"].warm)
    )
    assert (len(measured), len(warm)) == (2, 5) and not measured & warm
    assert Plan.of(plan.settled and {"methods": ["unispec"]}).digest != plan.digest


def test_numbers_of_numpy_and_ranges_are_pythons(monkeypatch, tmp_path):
    method = {"method": "unispec", "draft_size": [np.int64(8), np.int64(16)], "depth": np.arange(2, 4)}
    one = np.int64(1)
    numbers = {"max_new_tokens": np.int64(64), "warm_up": one, "number": one, "top_k": np.int32(5),
               "temperature": np.array([0.5, 1])}  # fmt: skip
    plan = Plan.of(methods=[method], seeds=range(3), **numbers)
    plain = {"max_new_tokens": 64, "warm_up": 1, "number": 1, "top_k": 5, "temperature": [0.5, 1.0]}
    method = {"method": "unispec", "draft_size": [8, 16], "depth": [2, 3]}
    assert plan.digest == Plan.of(methods=[method], seeds=[0, 1, 2], **plain).digest
    assert Plan.of(methods=["unispec"], seeds=[one]).digest == Plan.of(methods=["unispec"], seeds=1).digest
    with pytest.raises(ParameterError, match="draft_size must be a whole number"):
        specviz.method("unispec", draft_size=np.array([8, 16]))


@pytest.mark.parametrize("workers", [0, -1])
def test_a_run_needs_a_worker(plan, tmp_path, workers):
    with pytest.raises(ParameterError, match="workers must be a whole number of at least 1 or None"):
        specviz.run(plan, out=tmp_path / "run", workers=workers)
    assert not (tmp_path / "run").exists()


def test_a_folder_in_the_home_folder(plan, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    specviz.run(plan, out="~/run", number=1, methods=["prompt_lookup"])
    assert specviz.results("~/run").path == tmp_path / "home" / "run"
    suite(tmp_path / "home" / "p.jsonl", 2)
    assert list(read_suites("~/p.jsonl", 1, 1)) == ["p"]


# ---------------------------------------------------------------- the command


def test_the_command(plan, tmp_path, capsys, monkeypatch):
    from specviz import cli

    monkeypatch.chdir(tmp_path)
    model = plan["models"][0]
    order = ["bench", "run", "-m", model["model"], "-d", model["draft"], "--prompts", plan["suites"][0]]
    order += ["--number", "2", "-n", "6", "--method", "prompt_lookup draft_length=2 draft_length=3"]
    order += ["--method", "speculative", "-o", "run"]
    assert cli.run(order) == 0
    said = capsys.readouterr().out
    assert "pooled" in said and "draft_length=3" in said and "8 of 8 rows" in said
    assert cli.run([*order, "--seeds", "0,1"]) == 2
    assert "holds another run: its seeds is [0], here [0, 1]" in capsys.readouterr().err
    assert cli.run(["bench", "run", "--method", "spectra datastore=Tom's.store"]) == 2
    assert "close the quotation mark" in capsys.readouterr().err
    assert cli.run(["bench", "run", "--method", "prompt_lookup draft_lenth=2"]) == 2
    assert "did you mean draft_length" in capsys.readouterr().err
    assert cli.run(["bench", "run", "--workers", "2", "--dask", "tcp://x:1"]) == 2
    capsys.readouterr()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(work, "rows", interrupt)
    assert cli.run([*order, "--seeds", "0,1", "-o", "cut"]) == 130
    assert (
        capsys.readouterr().err
        == "specviz: interrupted: cut keeps 0 of 16 rows; run the same command again to continue\n"
    )
    assert cli.run(["bench", "bathces"]) == 2
    assert "did you mean batches" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_table_breaks_no_word(tmp_path, width):
    from rich.console import Console

    rows = [(c, i, 10, 1.0 + c * i, "x") for c in range(3) for i in range(7)]
    found = write(tmp_path / "r", rows, ("autoregressive", "prompt_lookup", "token_recycling"))
    console = Console(width=width, record=True, file=io.StringIO())
    found.show(console)
    text = console.export_text()
    assert all(word in text for word in ("autoregressive", "prompt_lookup", "token_recycling"))
    assert re.findall(r"\[[\d.]+, [\d.]+\]", text) and text.count("[") == text.count("]")
    assert not re.findall(r"\[[^\]]*\n", text)
    assert max(len(line) for line in text.splitlines() if str(tmp_path) not in line) <= width
    assert ("left out" in text) == (width < 120)


def test_the_last_line_counts_what_failed(tmp_path):
    from rich.console import Console

    found = write(tmp_path / "r", [(c, i, 10, 1.0, "x") for c in range(2) for i in range(2)],
                  ("autoregressive", "prompt_lookup"))  # fmt: skip
    file = sorted((tmp_path / "r" / "rows").glob("*.json"))[-1]
    file.write_text(json.dumps(json.loads(file.read_text()) | {"error": "out of memory"}))
    console = Console(width=200, record=True, file=io.StringIO())
    found.show(console)
    assert re.search(r": 4 of \d+ rows, 1 failed$", " ".join(console.export_text().split()))


def test_a_run_that_goes_on_keeps_its_kernels(plan, tmp_path, monkeypatch):
    """Another layout rounds differently, so a text may diverge from its reference."""
    monkeypatch.setenv("SPECVIZ_KERNELS", "plain")
    plan = plan | {"number": 2}
    first = running.run(plan, out=tmp_path / "run")
    used = {each["kernels"] for each in first.environments.values()}
    assert used == {"plain"}
    next(iter(sorted((tmp_path / "run" / "rows").glob("*.json")))).unlink()
    monkeypatch.setenv("SPECVIZ_KERNELS", "transposed")
    again = running.run(plan, out=tmp_path / "run")
    assert {each["kernels"] for each in again.environments.values()} == {"plain"}
    drafts = [draft for each in again.environments.values() for draft in each["drafts"].values()]
    assert drafts and {draft["kernels"] for draft in drafts} == {"plain"}
    assert not again.missing


def test_a_path_in_a_plan_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bundled()["town"], "town-draft")
    assert name_of(Path("town-draft"), "models[0]", {}) == "./town-draft"
    assert name_of("town-draft", "models[0]", {}) == "town-draft"
    with pytest.raises(ModelError, match="no model 'town'"):
        name_of(Path("town"), "models[0]", {})


def test_each_drafter_keeps_its_layout_under_each_target():
    """The layout is the recorded one, whatever the target's; llama.cpp has none in either role."""
    environments = {
        "a": {"kernels": "plain", "drafts": {"small": {"kernels": "w8a8"}, "gguf:small": {}}},
        "b": {"kernels": None, "drafts": {"small": {"kernels": "transposed"}}},
    }
    cells = [{"cell": 0, "model": "large"}, {"cell": 1, "model": "gguf:large"}]
    rows = [
        {"cell": 0, "environment": "a"}, {"cell": 1, "environment": "b"},
        {"cell": 0, "environment": "b"}, {"cell": 0, "environment": None},
    ]  # fmt: skip
    read = []

    class Read(SimpleNamespace):
        environments = property(lambda self: read.append(1) or environments)

    layouts = running.layouts_of(Read(cells=cells, records=lambda: rows))
    assert len(read) == 1, "once, not for every row: each reads the files"
    assert layouts.model == {"large": "plain"}
    assert layouts.drafters == {"large": {"small": "w8a8"}, "gguf:large": {"small": "transposed"}}


def test_no_two_suites_share_a_file():
    assert files.file_of("spec-bench") == "spec-bench"
    assert len({files.file_of(name) for name in ("a b", "a_b", "a/b", "a  b")}) == 4


def test_a_canvas_text_ends_with_its_first_end_token():
    from specviz.measure.rows import written
    from specviz.measure.work import text_of

    assert text_of([5, 7, 2, 9, 2], (2,)) == [5, 7, 2] and text_of([5, 7], (2,)) == [5, 7]
    rows = [{"tokens": 64, "written": 10}, {"tokens": 64, "written": None}, {"tokens": 64}]
    assert list(map(written, rows)) == [10, 64, 64]
