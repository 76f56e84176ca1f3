"""What-ifs of canvases: the predicted SSD cycles are those of a rerun, node for node."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import specviz
from specviz import metrics
from specviz.draft import Draft
from specviz.errors import ParameterError, TraceError
from specviz.rules.cells import pick_cells
from specviz.trace import Recorder, Trace, written
from specviz.whatifs.canvases import Memory, judge

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from canvases import tiny

PROMPTS = [[1, 2, 8, 11], [9, 7], [14, 2, 30, 31, 8], [4, 4, 6]]
CELLS = 14
NODES = ["prompt", "cycle", "node", "token", "parent", "depth", "position", "source", "status"]
OUTPUTS = ["prompt", "cycle", "position", "token", "origin", "order", "kept"]
CYCLES = ["prompt", "cycle", "context", "keep", "depth", "width", "stop", "end", "block", "refreshed"]
CYCLES += ["drafted", "sent", "accepted", "cut", "emitted"]
PASSES = ["prompt", "cycle", "model", "rows", "tokens"]
POLICIES = [{"cache": "none"}, {"cache": "dual", "refresh": 3}, {"cache": "dual", "refresh": 5}]


def words(frame: pd.DataFrame, columns: list[str]) -> list[tuple]:
    """Rows without the difference between a category and a string, or between kinds of missing values."""
    frame = frame[columns].astype(object)
    return list(frame.where(frame.notna(), None).itertuples(index=False, name=None))


def check_same(rerun: Trace, replayed: Trace) -> None:
    assert words(replayed.nodes, NODES) == words(rerun.nodes, NODES)
    assert words(replayed.outputs, OUTPUTS) == words(rerun.outputs, OUTPUTS)
    assert words(replayed.cycles, CYCLES) == words(rerun.cycles, CYCLES)
    assert words(replayed.passes, PASSES) == words(rerun.passes, PASSES)
    for group, columns in (("nodes", ["score", "confidence"]), ("outputs", ["odds", "p"])):
        mine, theirs = (getattr(trace, group)[columns].to_numpy(float) for trace in (replayed, rerun))
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    known = replayed.nodes["p"].notna().to_numpy()  # tokens outside the record's top 5 have no probability
    for name in ("p", "rank"):
        mine, theirs = (trace.nodes[name].to_numpy(float)[known] for trace in (replayed, rerun))
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def run(seed: int, shift: int, method: str, eos: tuple = (3, 21), **options) -> Trace:
    model = tiny(seed, shift, eos=eos)
    return specviz.generate(model, PROMPTS, method, **{"block": 4, "max_new_tokens": CELLS} | options)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p['cache']}{p.get('refresh', '')}")
@pytest.mark.parametrize("shift", [0, 1])
def test_a_replay_is_the_rerun(shift: int, policy: dict) -> None:
    base = run(3 + shift, shift, "stepwise", **policy)
    found = specviz.whatif(base).ssd(draft_length=[2, 5], tree=["chain", "mix"], tail=["stepwise", "shorter"])
    assert found.badge == "exact"
    shorter = 0
    for _, row in found.table.iterrows():
        setting = {name: row[name] for name in found.parameters}
        rerun = run(3 + shift, shift, "ssd", **policy, **setting)
        check_same(rerun, found.trace(**setting))
        assert row["target_passes"] == metrics.target_passes(rerun)
        assert row["tau"] == pytest.approx(metrics.tau(rerun))
        assert row["A/O"] == pytest.approx(metrics.accepted_share(rerun))
        shorter += row["tail"] == "shorter" and (rerun.cycles["stop"] == "room").sum()
        pd.testing.assert_frame_equal(metrics.failures(rerun), metrics.failures(found.trace(**setting)))
    assert shorter or policy["cache"] == "dual"
    assert metrics.accepted(rerun), "nothing was accepted: the test says nothing"


def test_from_ssd_as_from_stepwise() -> None:
    policy = {"cache": "dual", "refresh": 5}
    base, other = run(1, 1, "stepwise", **policy), run(1, 1, "ssd", draft_length=2, tree="mix", **policy)
    one, two = (
        specviz.whatif(trace).ssd(draft_length=4, tree="chain", tail="shorter") for trace in (base, other)
    )
    pd.testing.assert_frame_equal(one.table, two.table)
    check_same(two.trace(0), one.trace(0))
    own = specviz.whatif(other).ask(draft_length=2)  # parameters that are not named stay unchanged
    check_same(other, own.trace(0))


def test_a_text_that_ends_inside_a_chain_cuts_it() -> None:
    cut, setting = 0, {"draft_length": 5, "tail": "shorter"}
    for seed in range(4):  # the first block contains an end token, whatever else it says
        same = {"eos": tuple(range(37)), "block": 2, "max_new_tokens": 8}
        base, rerun = run(seed, 0, "stepwise", **same), run(seed, 0, "ssd", **same, **setting)
        answer = specviz.whatif(base).ssd(**setting)
        check_same(rerun, answer.trace(0))
        assert answer.table["A/O"][0] == metrics.accepted_share(rerun), "padding is no text"
        cut += int(rerun.cycles["cut"].sum())
        assert metrics.emitted(rerun) == metrics.emitted(base) == 2 * len(PROMPTS)
    assert cut


def test_scores_and_confidences_are_not_capped_at_sure() -> None:
    model = tiny(3, eos=(), tie_word_embeddings=False)
    with torch.no_grad():
        model.net.lm_head.weight *= 20
    model._llama = type(model._llama)(model.net, model.layers, model.kernels)
    options = {"block": 4, "max_new_tokens": CELLS, "sure": 1.0}
    base = specviz.generate(model, PROMPTS, "stepwise", **options)
    rerun = specviz.generate(model, PROMPTS, "ssd", draft_length=3, **options)
    replayed = specviz.whatif(base).ssd(draft_length=3).trace(0)
    check_same(rerun, replayed)
    for trace in (rerun, replayed):
        score, confidence = (trace.nodes[name].to_numpy(float) for name in ("score", "confidence"))
        assert (score > 1).any()
        np.testing.assert_allclose(confidence, 1 / (1 + np.exp(-score)), rtol=1e-5)
        assert metrics.recheck(trace)["agrees"].all()
    odds = [
        np.concatenate(t.arrow(["pred_odds"])["pred_odds"].drop_null().to_pylist()) for t in (rerun, replayed)
    ]
    assert odds[0].max() > 1
    np.testing.assert_allclose(odds[0], odds[1], rtol=1e-5, atol=1e-6)


def test_mix_order_never_accepts_fewer_from_a_state() -> None:
    more = 0
    for seed in range(4):
        for text in written(run(seed, seed % 2, "stepwise")):
            memory, masked = Memory(text.length), np.ones(text.length, bool)
            for state in range(len(text)):
                room, kept = text.length - state, {}
                for tree in ("chain", "mix"):
                    cells, parents, _ = pick_cells(masked, memory.odds, text.block, room, 4, tree, "shorter")
                    draft = Draft(memory.token[cells], parents, positions=cells)
                    kept[tree] = len(judge(text, state, draft)[0])
                assert kept["mix"] >= kept["chain"]
                more += kept["mix"] > kept["chain"]
                memory.learn(text.readings[state])
                masked[text.cell[state]] = False
    assert more


def test_float32_near_ties_are_counted() -> None:
    model = tiny(2, 0, torch.float32, eos=())
    with torch.no_grad():
        model.net.lm_head.weight[:] = 0  # every token equally likely, at every position
    model._llama = type(model._llama)(model.net, model.layers, model.kernels)
    base = specviz.generate(model, PROMPTS[0], "stepwise", block=4, max_new_tokens=8)
    found = specviz.whatif(base).ssd(draft_length=2)
    assert found.badge == "modelled" and found.places["cycle"].tolist() == [1]
    assert "only modelled from a near-tie on" in found.trace(0).run["replayed"]
    base._stores[0].run["backend"] = {"invariant": True}
    alike = specviz.whatif(base).ssd(draft_length=2)
    assert alike.badge == "exact" and not len(alike.places)
    for answer in (found, alike):
        assert "closer than the rounding error between passes of different shapes" in answer.why
    assert "closer" not in specviz.whatif(run(3, 0, "stepwise")).ssd(draft_length=2).why


def test_what_cannot_be_asked_is_one_line() -> None:
    base = run(3, 0, "stepwise")
    question = specviz.whatif(base)
    assert "draft_length: exact" in repr(question)
    assert ".ssd(draft_length=4)" in repr(question)
    for name in ("block", "cache", "refresh"):
        assert question.can_answer(name, "ssd")[0] == "needs a rerun"
    assert question.can_answer("draft_length", "ssd")[0] == "exact"
    assert question.can_answer("draft_length", "speculative")[0] == "needs a rerun"
    with pytest.raises(ParameterError, match="draft_length of 15 exceeds the canvas' 14 cells"):
        question.ssd(draft_length=15)
    with pytest.raises(ParameterError, match="no parameter 'block'"):
        question.ssd(block=4)
    with pytest.raises(TraceError, match="rerun"):
        question.clock(question.ssd())
    assert question.speculative().badge == "needs a rerun"
    lossy = specviz.whatif(run(3, 0, "fast_dllm", threshold=0.01))
    assert lossy.can_answer("draft_length", "ssd")[0] == "needs a rerun"
    with pytest.raises(TraceError, match="skipped states"):
        lossy.ssd()


def test_a_run_that_was_stopped_names_the_place(tmp_path: Path) -> None:
    whole = run(3, 0, "stepwise")
    table = whole.arrow([column.name for column in specviz.schema.COLUMNS]).to_pylist()
    recorder = Recorder(whole.run)
    for row in table:
        if row["prompt"] == 0 and row["cycle"] < 6:
            recorder.add(row | {"end": "interrupted" if row["cycle"] == 5 else None})
    found = specviz.whatif(recorder.close()).ssd(draft_length=3)
    assert found.badge == "needs a rerun"
    assert found.places["position"].tolist() == [5] and found.table["A/O"].isna().all()
    assert json.loads(found.table.to_json(orient="records"))[0]["emitted"] == 5
