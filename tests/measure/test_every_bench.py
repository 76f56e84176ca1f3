"""Every bench starts from the command line with its default models, and prints a table."""

from __future__ import annotations

import json
from functools import wraps
from importlib import import_module
from inspect import signature

import benchmarks
import pytest
from benchmarks.__main__ import main

from specviz import cli
from specviz.measure import BENCHES, find
from specviz.measure.benches import advise, batches
from specviz.measure.report import Report
from specviz.suites import spread, suite

# The smallest value of each option.
LEAST = {"number": 1, "max_new_tokens": 2, "rounds": 1, "context": 4, "largest": 2,
         "exact_number": 1, "exact_tokens": 2, "sums": 1}  # fmt: skip
CANVASES = {"model": "town-diffusion", "cells": 16}
OWN_OPTIONS = {
    "answers": ("--number", 2, "--sampled", 2),
    "retranslation": ("--languages", "de", "--betas", "0.2", "--masks", "3", "--age", 10, "--old", 10),
    "calibrate": ("--rounds", 2),
    "bild": ("--tasks", "de-en"),
    "confidence": ("--tasks", "de-en", "--seeds", 1, "--exact", 1, "--batch"),  # batches are a bench, too
    "diffusion": ("--parts", "limits", "--threads", 1),
    "eagle": ("--parts", "table", "cause", "time", "--languages", "en", "ja"),
}
CONSTANTS = {
    "benchmarks.calibrate": {"NUMBERS": (5, 10)},
    "specviz.measure.advice.prices": {"ROUNDS": 2, "PILOTS": 1, "PILOT_TOKENS": 2},
    "specviz.measure.calibrate": {"SIZES": (1, 2, 3, 4)},
    "specviz.measure.benches.ceilings": {"BLOCK": 1 << 22, "LEAST": 1e-4, "_largest_cache": lambda: 0},
    "specviz.measure.benches.trees": {"WARM": 1},
    "benchmarks.answers": {"LENGTHS": (6, 8, 12)},
    "benchmarks.stores": {"WARM": 1, "LARGE": 2000},
}


# These benches have tests of their own, so here only their command, models and prompts are tested.
TESTED = ("drafters", "diffusion", "eagle", "live", "player", "retranslation", "whatif")


@pytest.fixture(autouse=True)
def _smaller(monkeypatch):
    for module, values in CONSTANTS.items():
        for name, value in values.items():
            monkeypatch.setattr(f"{module}.{name}", value)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A small file with prompts of every kind, since some benches warm up on all prompts left over."""
    path = tmp_path_factory.mktemp("few") / "few.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in spread(list(suite("town")), 16)), "utf8")
    return path


def streams_hold(report):
    """A row for each bias and each mask: more bias keeps more of a draft, up to all of it."""
    rows = {row["setting"]: row for row in report["rows"]}
    biases = [f"β = {beta:g}" for beta in (0, 0.1, 0.2, 0.3, 0.5)]
    masks = [f"β = 0.2, {mask}-{k}" for mask in ("mask", "display") for k in (3, 5)]
    assert list(rows) == ["RT", *biases, *masks]
    kept, passes = ([rows[name][key] for name in biases] for key in ("ad", "passes"))
    assert kept == sorted(kept) and 0 < kept[0] < kept[-1] == 1
    assert passes == sorted(passes, reverse=True) and rows["RT"]["passes"] > passes[0]
    assert all(row["speed"] > 0 and 0 < row["kept"] < 1 for row in rows.values())
    assert [bar["limit"] for bar in report["bars"]] == [0, 2.3, 0.5, 90]
    assert report["bars"][0]["value"] == 0, "the text of RT at every update"


def canvases_hold(report):
    """Each tree saves passes and writes stepwise decoding's text; a pass over one to six canvases costs."""
    base, *others = report["rows"]
    ways = [f"ssd, {tree}, N {n}" for n in (3, 4, 5) for tree in ("chain", "mix")]
    assert [row["way"] for row in others[:6]] == ways and base["way"] == "stepwise" and base["passes"] == 16
    assert all(0 < row["saved"] < 1 and row["same"] == "1 of 1" for row in others[:6])
    (costs,) = (part["rows"] for part in report["parts"])
    assert [row["canvases"] for row in costs] == [1, 2, 3, 4, 5, 6] and costs[0]["times"] == 1
    assert all(row["ms"]["median"] > 0 and row["times"] > 0 for row in costs)
    saved, over = report["bars"]
    assert saved["value"] == others[2]["saved"] and over["value"] == others[2]["over"]["median"] > 0


HOLD = {"streams": streams_hold, "canvases": canvases_hold}  # what a bench's JSON must say


@pytest.fixture(autouse=True)
def _recorded(request, monkeypatch):
    """A bench of `TESTED` measures nothing; check that it is called with models, drafts and prompts."""
    name = getattr(request.node, "callspec", None) and request.getfixturevalue("name")
    if name not in TESTED:
        yield
        return
    module = f"specviz.measure.benches.{name}" if name in BENCHES else f"benchmarks.{name}"
    real, given = import_module(module).bench, {}

    @wraps(real)
    def bench(*some, **options):
        given.update(signature(real).bind(*some, **options).arguments)
        setting = {"device": "cpu", "threads": 1, "dtype": "float32"}
        return Report(name, "", setting, [("text", "not measured", "")], [{"text": name}])

    monkeypatch.setattr(f"{module}.bench", bench)
    yield
    assert given
    for each in signature(real).parameters.values():
        if each.kind is not each.KEYWORD_ONLY:
            value = given[each.name][0] if isinstance(given[each.name], list) else given[each.name]
            assert hasattr(value, "kind") or "id" in value


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_starts_and_ends_with_a_table(name, few, tmp_path, capsys):
    taken = signature(find(name)).parameters
    least = LEAST | {"batches": {"sizes": "1,2"}, "canvases": CANVASES}.get(name, {})
    options = [w for key, n in least.items() if key in taken for w in ("--" + key.replace("_", "-"), n)]
    options += ["--prompts", few] if "entries" in taken else []
    report = tmp_path / "report.json"
    ended_with_a_table(name, cli.run(["bench", name, "--json", str(report), *map(str, options)]), capsys)
    HOLD.get(name, lambda written: None)(json.loads(report.read_text("utf8")))


def test_loads_that_are_advised_are_decoded_in_real_batches(few, tmp_path, capsys, monkeypatch):
    report = tmp_path / "loads.json"
    least = {
        "number": 2,
        "max-new-tokens": 6,
        "rounds": 1,
        "exact-number": 1,
        "exact-tokens": 2,
        "batches": 2,
    }
    options = [word for name, n in least.items() for word in (f"--{name}", str(n))]
    words = ["bench", "advise", "-m", "town", *options]
    complete = [*words, "--prompts", str(few), "--json", str(report)]
    decode_batch = batches.decode_batch

    def interrupted(*given, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batches, "decode_batch", interrupted)
        assert cli.run(complete) == 130
    assert "1 of 1 rounds are kept: run the same command again to continue" in capsys.readouterr().err
    assert batches.decode_batch is decode_batch and not report.exists()
    decoded = []
    monkeypatch.setattr(advise, "once", lambda *given: decoded.append(given[4]) or batches.once(*given))
    assert cli.run(complete) in (0, 1)
    assert sorted(decoded) == [1] * 10 + [2] * 10, "each setting once to warm up, and once in the round"
    assert "Batches: tokens/s of all rows, predicted and run" in capsys.readouterr().out
    written = json.loads(report.read_text("utf8"))
    parts = written["parts"]
    assert not any("intervals around" in bar["name"] for bar in written["bars"]), "two prompts have none"
    unjudged = f"{len(written['rows'])} settings not judged"
    assert any(unjudged in note for note in written["notes"])
    missed = [note for note in written["notes"] if note.startswith("missed: ")]
    assert len(missed) == sum(abs(row["off"]) > advise.NEAR for row in written["rows"])
    rows = next(part["rows"] for part in parts if part["title"].startswith("Batches"))
    assert [row["batch"] for row in rows] == [1] * 5 + [2] * 5
    assert all(row["run"] > 0 and row["predicted"] > 0 for row in rows)
    assert cli.run([*words[:-1], "1", "--prompts", str(few)]) == 2
    assert cli.run([*words[:-1], "9", "--prompts", str(few)]) == 2


def test_a_prediction_without_an_interval_has_its_own_reason():
    rows = [{"covered": None}, {"covered": True}]
    for number, reason in (
        (5, "an interval needs 6 prompts or more"),
        (6, "its timings are too noisy"),
    ):
        (note,) = advise._unjudged(rows, number)
        assert note.endswith(f": 1 setting not judged, because {reason}")
    assert advise._unjudged(rows[1:], 5) == []


@pytest.mark.parametrize("name", benchmarks.BENCHES)
def test_a_benchmark_of_the_project_does_too(name, few, capsys):
    taken = signature(import_module(f"benchmarks.{name}").bench).parameters
    options = [word for key, n in LEAST.items() if key in taken for word in ("--" + key.replace("_", "-"), n)]
    options += ["--suite", few] if "entries" in taken else []
    status = main([name, *map(str, options), *map(str, OWN_OPTIONS.get(name, ()))])
    ended_with_a_table(name, status, capsys)


def ended_with_a_table(name, status, capsys):
    out, err = capsys.readouterr()
    if name == "app" and "none is on the PATH" in err:
        pytest.skip("no Chromium")
    if status == 2 and "specviz models get" in err:
        pytest.skip(err.strip())
    assert status in (0, 1), err
    assert "─" * 10 in out  # the rule below a table's headings
    assert out.splitlines()[-1].startswith(f"{name}: ")


def test_the_project_lists_its_benches(capsys):
    assert main([]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines == benchmarks.BENCHES
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert not stopped.value.code
