"""The dense record: both models' predictions at every position of the final text."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import validate
from tiny import TableModel, llama

import specviz
from specviz.errors import ModelError, ParameterError
from specviz.loop import dense, densify
from specviz.trace import Trace

TARGET = TableModel(vocabulary=6, seed=1, name="target")
DRAFTER = TableModel(6, 3, near=TARGET, name="drafter")
NAMES = ("out_top_token", "out_top_p", "out_draft_token", "out_draft_p", "out_draft_rated")


def columns(trace):
    table = trace.arrow(["top_k", "out_token", *NAMES]).to_pydict()
    return {name: [x for row in table[name] for x in row or ()] for name in (*NAMES, "out_token")}


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "bild"])
def test_it_is_what_the_models_say(method):
    prompts = [[1, 2], [3]]
    trace = specviz.generate(TARGET, prompts, method, draft=DRAFTER, max_new_tokens=20)
    made = densify(trace, TARGET, DRAFTER)
    validate(made)
    found, at = columns(made), 0
    for number, prompt in enumerate(prompts):
        text = trace.outputs.query(f"prompt == {number}")["token"].tolist()
        for i in range(len(text)):
            own, small = (m.logits([*prompt, *text[:i]]).softmax(-1) for m in (TARGET, DRAFTER))
            for p, name in ((own, "top"), (small, "draft")):
                best = p.topk(5)
                assert found[f"out_{name}_token"][5 * at : 5 * at + 5] == best.indices.tolist()
                np.testing.assert_allclose(
                    found[f"out_{name}_p"][5 * at : 5 * at + 5], best.values, atol=1e-7
                )
            assert found["out_draft_rated"][at] == pytest.approx(float(own[small.argmax()]), abs=1e-7)
            at += 1
    assert made.run["dense"] == {"name": "drafter", "parameters": 0, "max_length": 64, "tail": 63}
    assert made.texts == trace.texts
    assert trace.run["dense"] is None  # the original is unchanged
    again = densify(trace, TARGET).arrow(["top_k", "out_token", "out_draft_p"])
    assert again.column(2).null_count == len(trace.cycles)


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=2),
    tail=st.sampled_from([0, 1, 4, 63]),
    limit=st.integers(1, 20),
    eos=st.sets(st.integers(0, 5), max_size=2),
    longest=st.sampled_from([12, 64]),
    held=st.sampled_from([1, 200, dense.HELD_SLOTS]),
)
def test_tails_are_what_the_drafter_writes_on(prompts, tail, limit, eos, longest, held):
    target = TableModel(6, 1, eos=eos, name="target")
    drafter = TableModel(6, 3, near=target, name="drafter", max_length=longest)
    trace = specviz.generate(target, prompts, "speculative", draft=drafter, max_new_tokens=limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "HELD_SLOTS", held)
        made = densify(trace, target, drafter, tail)
    validate(made)
    rows = made.tails[["prompt", "position", "token", "p", "margin"]]
    wanted = []
    for number, prompt in enumerate(prompts):
        text = trace.outputs.query(f"prompt == {number}")["token"].tolist()
        for at in range(min(len(text), longest - len(prompt))):
            before = [*prompt, *text[:at]]
            token = int(drafter.logits(before).argmax())
            if token == text[at]:
                continue
            behind = 0
            while token not in eos and behind < min(tail, limit - at - 1, longest - len(prompt) - at - 1):
                before.append(token)
                p = drafter.logits(before).softmax(-1)
                token, two = int(p.argmax()), p.topk(2).values
                wanted.append((number, at, token, float(two[0]), float(two[0] - two[1])))
                behind += 1
    assert rows.iloc[:, :3].values.tolist() == [list(row[:3]) for row in wanted]
    if wanted:
        np.testing.assert_allclose(rows[["p", "margin"]], [row[3:] for row in wanted], atol=1e-6)


def test_tails_of_real_networks():
    target = llama(seed=0, layers=2, eos=(), name="target")
    drafter = llama(seed=5, layers=2, eos=(), like=target, noise=0.3, name="drafter")
    trace = specviz.generate(target, [[3, 4, 5], [7, 8]], draft=drafter, max_new_tokens=30, draft_length=8)
    tails = densify(trace, target, drafter, 6).tails
    assert len(tails) > 40
    for (number, at), tail in tails.groupby(["prompt", "position"]):
        text = trace.outputs.query(f"prompt == {number}")["token"].tolist()
        tokens = [*trace.run["prompts"][number]["tokens"], *text[:at]]
        for row in [None, *tail.itertuples()]:
            p = drafter.net(torch.tensor([tokens])).logits[0, -1].detach().softmax(-1)
            if row is not None:
                assert row.token == int(p.argmax())
                assert row.p == pytest.approx(float(p.max()), abs=1e-5)
            tokens.append(int(p.argmax()))
        assert len(tail) == min(6, 29 - at)


def test_blocks_are_one_text(monkeypatch):
    target = llama(seed=0, layers=2, name="target")
    drafter = llama(seed=5, layers=2, like=target, noise=0.15, name="drafter")
    trace = specviz.generate(target, [[3, 4, 5]], draft=drafter, max_new_tokens=50)
    whole = columns(densify(trace, target, drafter))
    for size in (1, 7):
        monkeypatch.setattr(dense, "BLOCK", size)
        again = columns(densify(trace, target, drafter))
        for name in NAMES:
            np.testing.assert_allclose(again[name], whole[name], atol=1e-4)
    rows = target.net(torch.tensor([[3, 4, 5, *whole["out_token"][:-1]]])).logits[0, 2:].softmax(-1)
    np.testing.assert_allclose(whole["out_top_p"][::5], rows.max(-1).values.detach(), atol=1e-4)


def test_a_drafter_says_nothing_behind_its_context():
    short = TableModel(6, 3, near=TARGET, name="short", max_length=9)
    trace = specviz.generate(TARGET, [[1, 2, 3]], draft=short, max_new_tokens=20, record="dense")
    p = columns(trace)["out_draft_p"][::5]
    assert [x is None for x in p] == [False] * 6 + [True] * 14
    known = specviz.whatif(trace).texts[0]
    assert (known.draft >= 0).tolist() == [True] * 6 + [False] * 14


def test_it_is_written_with_the_run(tmp_path):
    path = tmp_path / "run.parquet"
    trace = specviz.generate(TARGET, [[1, 2]], draft=DRAFTER, max_new_tokens=12, record="dense", out=path)
    again = Trace.open(path)
    assert columns(again) == columns(trace)
    assert again.run["record"] == "dense"
    part = densify(
        specviz.generate(TARGET, [[1], [2]], max_new_tokens=5, draft=DRAFTER).select(prompt=1), TARGET
    )
    assert part.cycles["prompt"].unique().tolist() == [1]
    plain = specviz.generate(TARGET, [[1, 2]], draft=DRAFTER, max_new_tokens=5, record=None)
    assert len(columns(densify(plain, TARGET, DRAFTER))["out_top_p"]) == 25


@pytest.mark.parametrize("name", ["float16", "float32"])
def test_the_epsilon_of_a_format_that_torch_does_not_hold_is_torchs(name):
    epsilons = {dense.epsilon(dtype) for dtype in (name, getattr(torch, name))}
    assert epsilons == {torch.finfo(getattr(torch, name)).eps}


def test_what_is_refused():
    with pytest.raises(ParameterError, match="greedy runs"):
        specviz.generate(TARGET, [[1]], draft=DRAFTER, record="dense", temperature=0.5)
    trace = specviz.generate(TARGET, [[1, 2]], draft=DRAFTER, max_new_tokens=9)
    with pytest.raises(ModelError, match="made by target, not by drafter"):
        densify(trace, DRAFTER)
    with pytest.raises(ModelError, match=r"does not write this text \(prompt 0, position 0\)"):
        densify(trace, TableModel(6, 9, name="target"), DRAFTER)
    with pytest.raises(ModelError, match="vocabularies differ"):
        densify(trace, TARGET, TableModel(5, 9, name="other"))
    with pytest.raises(ParameterError, match="redacted"):
        densify(trace.redact(), TARGET)
    for wrong in (-1, 2.5, True):
        with pytest.raises(ParameterError, match="tail must be a whole number"):
            densify(trace, TARGET, DRAFTER, wrong)
    sampled = specviz.generate(TARGET, [[1]], draft=DRAFTER, max_new_tokens=5, temperature=1.0)
    with pytest.raises(ParameterError, match="sampled"):
        densify(sampled, TARGET)


def test_a_target_is_loaded_as_the_trace_says(monkeypatch):
    options = {"max_new_tokens": 4, "dtype": "bfloat16", "kernels": "plain"}
    trace = specviz.generate("town", "The cook saw", "autoregressive", **options)
    loaded = []
    check = dense._check_target
    monkeypatch.setattr(dense, "_check_target", lambda run, model: loaded.append(model) or check(run, model))
    assert densify(trace, "town").run["record"] == "dense"
    assert loaded[0].dtype == torch.bfloat16
    rounded = specviz.generate("town", "The cook saw", "autoregressive", **options | {"kernels": "int8"})
    densify(rounded, "town")
    assert (loaded[1].dtype, loaded[1].kernels) == (torch.bfloat16, "int8")
    with pytest.raises(ModelError, match="with dtype bfloat16, and town has dtype float32: pass the model's"):
        densify(trace, specviz.load("town"))
    other = specviz.load("town", dtype="bfloat16", kernels="plain")
    other.kernels = "onednn"  # it holds the same numbers in another order
    densify(trace, other)
    other.kernels = "w8a8"
    with pytest.raises(ModelError, match="with kernels plain, and town has kernels w8a8"):
        densify(trace, other)
    other.kernels = "plain"
    with torch.no_grad():
        other.net.model.norm.weight[0] += 1
    with pytest.raises(ModelError, match=r"with content .*, and town has content"):
        densify(trace, other)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("step", ["loop.run.densify", "trace.trace.write_parquet"])
def test_a_run_without_its_dense_record_is_whole(error, step, monkeypatch, tmp_path, capsys):
    path = tmp_path / "run.parquet"
    options = {"draft": DRAFTER, "max_new_tokens": 12, "record": "dense", "out": path}

    def stop(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"specviz.{step}", stop)
        run = specviz.stream(TARGET, [[1, 2]], **options)
        if error is KeyboardInterrupt:
            run.finish()
            assert "without its dense record" in capsys.readouterr().err
        else:
            with pytest.raises(error):
                run.finish()
        run.close()
    for trace in (run.trace, Trace.open(path)):
        assert trace.run["complete"] and trace.run["record"] == "judged" and trace.run["dense"] is None
    texts = run.trace.texts
    made = specviz.generate(TARGET, [[1, 2]], resume=True, **options)
    assert made.run["record"] == "dense" == Trace.open(path).run["record"]
    assert made.texts == texts


def test_a_turn_without_room_stays_among_the_prompts(tmp_path, capsys):
    market = "Tell me about the market."
    prompts = [{"turns": [market, market * 200]}, {"prompt": "The cook saw"}]
    path = tmp_path / "run.parquet"
    options = {"max_new_tokens": 8, "out": path, "record": "dense"}
    trace = specviz.generate("town", prompts, "prompt_lookup", **options)
    assert "the conversation ends before it" in capsys.readouterr().err
    for each in (trace, Trace.open(path)):
        assert each.cycles["prompt"].unique().tolist() == [0, 2]
        assert each.prompts["turn"].tolist()[:2] == [0, 1] and len(each.prompts) == 3
    part = densify(trace.select(prompt=2), "town")
    assert part.prompts["prompt"].tolist() == [2]
