"""Every bench starts from the command line, with the models that it takes by default, and prints a table."""

from __future__ import annotations

import json
from functools import partial, update_wrapper
from importlib import import_module
from inspect import signature

import benchmarks
import pytest
from benchmarks.__main__ import main

from specviz import cli
from specviz import measure as bench
from specviz.measure import BENCHES
from specviz.suites import spread, suite

# The least that each can be asked for: by the options of the command line, and where it has none for it.
LEAST = {"prompts": 1, "max_new_tokens": 2, "rounds": 1}
OPTIONS = {"prompts": "--number", "max_new_tokens": "-n", "rounds": "--rounds"}
OWN_OPTIONS = {
    "retranslation": ("--languages", "de", "--betas", "0.2", "--masks", "3", "--age", 10, "--old", 10),
    "bild": ("--tasks", "de-en"),
    "confidence": ("--tasks", "de-en", "--seeds", 1, "--exact", 1, "--batch"),  # batches are a bench, too
    "diffusion": ("--parts", "limits", "--threads", 1),
    "eagle": ("--parts", "table", "cause", "time", "--languages", "en", "ja"),
}
CONSTANTS = {
    "specviz.measure.calibrate": {"NUMBERS": (5, 10), "SIZES": (1, 2, 3, 4)},
    "specviz.measure.benches.trees": {"WARM": 1},
    "benchmarks.stores": {"WARM": 1, "LARGE": 2000},
}


@pytest.fixture(autouse=True)
def _smaller(monkeypatch):
    for module, values in CONSTANTS.items():
        for name, value in values.items():
            monkeypatch.setattr(f"{module}.{name}", value)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A file of few prompts, of every kind of work: some benches warm up on all that they do not measure."""
    path = tmp_path_factory.mktemp("few") / "few.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in spread(list(suite("town")), 16)), "utf8")
    return path


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_starts_and_ends_with_a_table(name, few, monkeypatch, capsys):
    real = bench.find
    smaller = {"batches": {"sizes": (1, 2)}}.get(name, {})
    monkeypatch.setattr(
        bench, "find", lambda name: update_wrapper(partial(real(name), **smaller), real(name))
    )
    taken = signature(real(name)).parameters
    least = LEAST | ({"rounds": 2} if name == "calibrate" else {})
    options = [word for key, value in least.items() if key in taken for word in (OPTIONS[key], value)]
    options += ["--prompts", few] if "entries" in taken else []
    ended_with_a_table(name, cli.run(["bench", name, *map(str, options)]), capsys)


@pytest.mark.parametrize("name", benchmarks.BENCHES)
def test_a_benchmark_of_the_project_does_too(name, few, capsys):
    taken = signature(import_module(f"benchmarks.{name}").bench).parameters
    options = [word for key, n in LEAST.items() if key in taken for word in ("--" + key.replace("_", "-"), n)]
    options += ["--suite", few] if "entries" in taken else []
    status = main([name, *map(str, options), *map(str, OWN_OPTIONS.get(name, ()))])
    ended_with_a_table(name, status, capsys)


def ended_with_a_table(name, status, capsys):
    out, err = capsys.readouterr()
    if name == "player" and "none is on the PATH" in err:
        pytest.skip("no Chromium")
    if status == 2 and "specviz models get" in err:
        pytest.skip(err.strip())
    assert status in (0, 1), err
    assert "─" * 10 in out  # the line below a table's headings
    assert out.splitlines()[-1].startswith(f"{name}: ")
