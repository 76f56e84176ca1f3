"""Every bench starts from the command line, with the models that it takes by default, and prints a table."""

from __future__ import annotations

import json
from functools import partial, update_wrapper
from inspect import signature

import pytest

from specviz import bench, cli
from specviz.bench import BENCHES
from specviz.suites import spread, suite

# The least that each can be asked for: by the options of the command line, and where it has none for it.
LEAST = {"prompts": ("--number", 1), "max_new_tokens": ("-n", 2), "rounds": ("--rounds", 1)}
OPTIONS = {
    "calibrate": ("--rounds", 2),
    "retranslation": ("--languages", "de", "--betas", "0.2", "--k", "3"),
    "bild": ("--tasks", "de-en"),
    "confidence": ("--tasks", "de-en"),
    "diffusion": ("--part", "limits", "--threads", 1),
    "eagle": ("--part", "table,cause,time", "--languages", "en,ja"),
}
SMALLER = {
    "retranslation": {"age": 10, "old": 10},
    "confidence": {"seeds": 1, "exact": 1, "batch": ()},  # batches are a bench of their own, too
    "batches": {"sizes": (1, 2)},
    "context": {"lengths": (64,)},
}
CONSTANTS = {
    "calibrate": {"NUMBERS": (5, 10), "SIZES": (1, 2, 3, 4)},
    "trees": {"WARM": 1},
    "stores": {"WARM": 1, "LARGE": 2000},
}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A file of few prompts, of every kind of work: some benches warm up on all that they do not measure."""
    path = tmp_path_factory.mktemp("few") / "few.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in spread(list(suite("town")), 16)), "utf8")
    return path


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_starts_and_ends_with_a_table(name, few, monkeypatch, capsys):
    for constant, value in CONSTANTS.get(name, {}).items():
        monkeypatch.setattr(f"specviz.bench.{name}.{constant}", value)
    real = bench.find

    def find(name):
        measure = real(name)
        return update_wrapper(partial(measure, **SMALLER.get(name, {})), measure)

    monkeypatch.setattr(bench, "find", find)
    known = signature(real(name)).parameters
    options = [option for key, given in LEAST.items() if key in known for option in given]
    options += ["--prompts", few] if "entries" in known else []
    status = cli.run(["bench", name, *map(str, options), *map(str, OPTIONS.get(name, ()))])
    out, err = capsys.readouterr()
    if name == "player" and "none is on the PATH" in err:
        pytest.skip("no Chromium")
    if status == 2 and "specviz models get" in err:
        pytest.skip(err.strip())
    assert status in (0, 1), err
    assert "─" * 10 in out  # the line below a table's headings
    assert out.splitlines()[-1].startswith(f"{name}: ")
