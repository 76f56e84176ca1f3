"""`python -m tests.benchmarks diffusion` counts correctly. No test here judges a time."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from benchmarks import diffusion
from benchmarks.__main__ import main

from specviz.errors import ParameterError
from specviz.measure.canvases import Way, ssd, stepwise, write
from specviz.measure.report import Estimate
from specviz.methods.ssd import SSD
from specviz.replays.canvases import suite, turning

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from canvases import MASK, tiny

PROMPTS = [[9, 8, 11, 2], [1, 2, 6], [12, 30, 7, 7, 20]]
LOAD = {"bytes": 10**9, "tensors": 3, "shards": 2, "largest": 10**8, "seconds": 1.0}
LOAD |= {"resident_ratio": 1.2, "anonymous_ratio": 1.0, "whole_ratio": 1.5}


@pytest.fixture(scope="module")
def model():
    """A tiny model that encodes each message of a chat as one token, computed from its letters."""
    made = tiny(3, shift=1, dtype=torch.float32)
    of_chats = lambda chat: [8 + sum(map(ord, said["content"])) % 20 for said in chat] + [1, 2]
    made.encode = lambda prompt: prompt if isinstance(prompt[0], int) else of_chats(prompt)
    return made


@pytest.fixture
def small(monkeypatch):
    """Use small canvases, few settings, and no large checkpoint."""
    few = {"LENGTH": 16, "SHORT": 8, "LONG": 16, "DRAFTS": (2, 4), "GROWING": (8, 16), "REFRESH": (8,)}
    for name, value in few.items():
        monkeypatch.setattr(diffusion, name, value)
    monkeypatch.setattr(diffusion, "loaded", lambda: LOAD)


def test_every_part_measures_and_tells_its_bars(model, small, tmp_path):
    told = []
    names = ["exact:8", *list(diffusion.PARTS)[1:]]
    found = diffusion.bench(model, parts=names, number=2, rounds=1, tick=lambda *a: told.append(a))
    assert all(done <= of for done, of, _ in told)
    last = {name.partition(":")[0]: (done, of) for done, of, name in told}
    assert list(last) == list(diffusion.PARTS)
    assert all(done == of for done, of in last.values())
    said = json.loads(found.write(tmp_path / "found.json").read_text())
    values = {bar["name"].split(",")[0]: bar for bar in said["bars"]}
    assert len(said["bars"]) == 8
    assert values["ssd is stepwise in 8 settings"]["held"]  # 2 policies, 2 lengths, 2 trees
    assert not values["peak memory of loading 1.00 GB over its size"]["held"]
    assert not found.held
    assert said["setting"]["prompts"]["time"] == 2
    for part in (found.table, *found.parts):
        assert all(len(row) == len(part.columns) for row in part.cells())
        assert any(any(cell != "–" for cell in row[1:]) for row in part.cells())
    rows = next(part for part in found.parts if part.title.startswith("Tables 1 and 3")).rows
    assert {row["differ"] for row in rows if row["way"].startswith("ssd")} == {0}
    assert all(row["fewer"] <= row["bound"] for row in rows if row["bound"])


def test_a_bug_is_found_and_named(model, small, monkeypatch):
    def wrong(self, draft, told):
        told.token = (told.token + 1) % MASK
        return right(self, draft, told)

    right = SSD.judge
    monkeypatch.setattr(SSD, "judge", wrong)
    found = diffusion.bench(model, parts=["exact:8"], number=1, rounds=1)
    assert not found.bars[0].held
    assert found.bars[0].value == 8  # every setting
    assert {row["verdict"] for row in found.parts[0].rows} == {"bug"}


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_both_trees_from_each_state_add_up_to_their_runs(model, cache):
    """A run of SSD advances from each state by as many tokens as its tree accepts there."""
    policy = {"block": 4, "cache": cache, "refresh": 6, "whole": True}
    more = 0
    for prompt in PROMPTS:
        counts = diffusion.side_by_side(model, prompt, 3, policy, 24)
        assert len(counts) == 24
        more += sum(mix > chain for chain, mix in counts)
        for which, tree in enumerate(("chain", "mix")):
            at = passes = 0
            while at < len(counts):
                at += 1 + counts[at][which]
                passes += 1
            (text,) = write(model, [prompt], ssd(3, tree, **policy), 24)
            assert text.passes == passes
    assert more


def test_what_was_written(model):
    policy = {"block": 4, "cache": "dual", "refresh": 8, "whole": True}
    alone = [write(model, [prompt], stepwise(**policy), 12)[0] for prompt in PROMPTS]
    together = write(model, PROMPTS, stepwise(**policy), 12, batch=2)
    assert [text.order for text in together] == [text.order for text in alone]
    text = alone[0]
    assert (text.passes, text.canvases, len(text.marks)) == (12, 12, 12)
    assert text.refreshes == 2  # the first pass, and after eight tokens
    assert sorted(cell for cell, _ in text.order) == list(range(12))
    tokens = [token for _, token in sorted(text.order)]
    assert text.text([tokens[5]]) == tokens[: tokens.index(tokens[5])]
    assert text.text([]) == tokens


def test_bounds():
    assert diffusion.bound(4, {"cache": "none", "refresh": 8}) == pytest.approx(0.8)
    assert diffusion.bound(4, {"cache": "dual", "refresh": 8}) == pytest.approx(0.75)  # 2 passes for 8 tokens
    assert diffusion.bound(3, {"cache": "dual", "refresh": 32}) == pytest.approx(0.75)
    assert diffusion.bound(5, {"cache": "dual", "refresh": 32}) == pytest.approx(1 - 6 / 32)


def test_words():
    assert diffusion.spelt({"block": 8, "cache": "none", "refresh": 8}) == "B 8, cache none"
    assert diffusion.spelt(diffusion.PAPER) == "B 8, cache dual, refresh 8"
    assert ssd(4, "mix").label == "ssd, mix, N 4"
    assert Way("fast_dllm", {"threshold": 0.9}).label == "fast_dllm, τ 0.9"


def test_where_arithmetic_begins_to_bound():
    def row(batch, times):
        return {"way": "x", "batch": batch, "times": Estimate(times, times, times, 3), "fed": 10.0 * batch}

    assert "from batch 2 to 4 throughput grows 1.25 times; past 20" in turning(
        [row(1, 1.0), row(2, 2.0), row(4, 2.5), row(8, 2.6)]
    )
    assert "up to 4" in turning([row(1, 1.0), row(2, 1.6), row(4, 3.0)])


def test_prompts_are_mixed_and_the_same_every_time():
    found = suite(24)
    assert found == suite(24)
    kinds = Counter(entry["kind"] for entry in found)
    assert kinds.pop("translation") == 12
    assert list(kinds.values()) == [2] * 6
    assert all(entry["language"] == "de" for entry in found if entry["kind"] == "translation")
    shots = suite(24, 2)
    assert [entry["prompt"][4:] for entry in shots] == [entry["prompt"] for entry in found]
    assert [said["role"] for said in shots[0]["prompt"]] == ["user", "assistant"] * 2 + ["user"]


def test_what_cannot_be_measured_is_refused(model, folders, capsys):
    for name in ("nothing", "exact:7", "time:8", ""):
        with pytest.raises(ParameterError, match=r"no part .*: choose of exact, passes"):
            diffusion.bench(model, parts=[name])
    assert main(["diffusion", "--model", str(folders.target), "--parts", "time"]) == 2
    assert "is none" in capsys.readouterr().err
