"""Runs from the outside: prompts, records, interruptions, refusals before any work."""

from __future__ import annotations

import copy
import subprocess
import sys
from contextlib import closing
from itertools import chain, count
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TableModel, llama

import specviz
from specviz import metrics
from specviz.errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError
from specviz.loop import decode, reduce
from specviz.loop.cycle import ending
from specviz.loop.drafters import load_drafter
from specviz.loop.machine import calibration_setting, identity, machine_of
from specviz.methods import find
from specviz.schema import column_of
from specviz.trace import Recorder
from specviz.trace.files import GROWTH

METHODS = ("autoregressive", "speculative", "bild")


@pytest.fixture(scope="module")
def pair():
    target = llama(seed=0, eos=(1, 7), name="target")
    return target, llama(seed=5, eos=(1, 7), like=target, noise=0.15, name="drafter")


@pytest.fixture
def table():
    target = TableModel(vocabulary=6, seed=1, name="target")
    return target, TableModel(6, 3, near=target, name="drafter")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_record_adds_up(pair, method, temperature):
    target, drafter = pair
    reviewed = {"review_end": True} if method == "bild" else {}  # otherwise the end may come without a pass
    trace = specviz.generate(
        target,
        [[3, 4, 5], [9]],
        method,
        draft=drafter,
        max_new_tokens=30,
        temperature=temperature,
        **reviewed,
    )
    cycles, nodes, outputs, passes = trace.cycles, trace.nodes, trace.outputs, trace.passes
    assert trace.run["complete"] is True
    for prompt, length in ((0, 3), (1, 1)):
        own = cycles[cycles["prompt"] == prompt]
        out = outputs[outputs["prompt"] == prompt]
        assert own["cycle"].tolist() == list(range(len(own)))
        assert out["position"].tolist() == list(range(len(out)))
        assert own["keep"].tolist() == [0, *np.cumsum(own["emitted"])[:-1]]
        assert (own["context"] == own["keep"] + length).all()
        assert own["end"].notna().tolist() == [False] * (len(own) - 1) + [True]
        assert own["end"].iloc[-1] == ("eos" if out["token"].iloc[-1] in target.eos else "length")
        assert own["emitted"].iloc[0] == 0
    steps = cycles[cycles["cycle"] > 0]
    # If nothing was cut: emitted = accepted + steps.
    whole = steps[steps["end"].isna()]
    assert (whole["emitted"] == whole["accepted"] + 1).all()
    assert (outputs["origin"] == "draft").sum() == (nodes["status"] == "accepted").sum()
    assert outputs["p"].between(0, 1).all()
    assert outputs["u"].notna().any() == (temperature > 0)
    fed = passes[(passes["model"] == "target") & (passes["cycle"] > 0)]
    assert fed["tokens"].tolist() == (1 + steps["sent"]).tolist()  # the root and the nodes that were sent
    # A prompt is computed except for its last token; a prompt of one token needs no prefill.
    assert passes[passes["cycle"] == 0]["tokens"].tolist() == [2] * (1 + (method != "autoregressive"))
    phases = steps[["draft_time", "forward_time", "verify_time", "commit_time"]]
    np.testing.assert_allclose(phases.sum(axis=1), steps["duration"], rtol=1e-6)
    assert (np.diff(cycles["start"]) >= cycles["duration"][:-1]).all()
    inside = passes.merge(cycles[["prompt", "cycle", "start", "duration"]], on=["prompt", "cycle"])
    assert (inside["start_x"] >= inside["start_y"] - 1e-9).all()
    ends = inside["start_y"] + inside["duration_y"]
    assert (inside["start_x"] + inside["duration_x"] <= ends + 1e-9).all()


def test_greedy_probabilities_are_the_plain_softmax(table):
    target, drafter = table
    trace = specviz.generate(target, [1, 2], draft=drafter, max_new_tokens=20, record="all")
    text = [1, 2]
    for (_, cycle), nodes in trace.nodes.groupby(["prompt", "cycle"]):
        for i, node in enumerate(nodes.itertuples()):
            before = text + nodes["token"].tolist()[:i]
            p = target.logits(before).softmax(-1)
            q = drafter.logits(before).softmax(-1)
            assert node.p == pytest.approx(float(p[node.token]), abs=1e-6)
            assert node.q == pytest.approx(float(q[node.token]), abs=1e-6)
            assert node.rank == int((p > p[node.token]).sum())
            best = q.sort(descending=True).values
            assert node.confidence == pytest.approx(float(best[0]), abs=1e-6)
            assert node.margin == pytest.approx(float(best[0] - best[1]), abs=1e-6)
            assert node.entropy == pytest.approx(-float((q * q.log()).sum()), abs=1e-6)
        text += trace.outputs[trace.outputs["cycle"] == cycle]["token"].tolist()
    out = trace.outputs
    for i, row in enumerate(out.itertuples()):
        p = target.logits([1, 2, *out["token"].tolist()[:i]]).softmax(-1)
        assert row.p == pytest.approx(float(p[row.token]), abs=1e-6)
    tops = trace.tops("pred")
    assert (tops.groupby("cycle")["node"].max() == trace.nodes.groupby("cycle")["node"].max()).all()


def test_sampled_probabilities_are_the_warped_ones(table):
    target, drafter = table
    trace = specviz.generate(
        target, [1, 2], draft=drafter, max_new_tokens=30, temperature=0.7, top_k=3, record="judged"
    )
    from specviz.methods.sampling import Sampling

    sampling, out = Sampling(0.7, 3), trace.outputs
    for i, row in enumerate(out.itertuples()):
        p = sampling.probabilities(target.logits([1, 2, *out["token"].tolist()[:i]]))
        assert row.p == pytest.approx(float(p[row.token]), abs=1e-6)
    judged = trace.nodes["status"].isin(["accepted", "rejected"])
    assert trace.nodes.loc[judged, ["p", "q", "u"]].notna().all(axis=None)
    assert trace.nodes.loc[~judged, ["p", "u"]].isna().all(axis=None)


@pytest.mark.parametrize("method", METHODS)
def test_many_cycles_reduced_together_are_what_each_is_alone(pair, method, monkeypatch):
    from specviz.loop import reduce

    target, drafter = pair
    options = {"draft": drafter, "max_new_tokens": 40, "record": "all"}
    together = specviz.generate(target, [3, 4, 5], method, **options)
    monkeypatch.setattr(reduce, "HELD_LOGITS", 0)
    alone = specviz.generate(target, [3, 4, 5], method, **options)
    for name in ("nodes", "outputs"):
        a, b = (getattr(t, name).drop(columns="run") for t in (together, alone))
        assert a.columns.equals(b.columns)
        for column in a:
            if a[column].dtype.kind == "f":
                np.testing.assert_allclose(a[column], b[column], atol=1e-6)
            else:
                assert a[column].astype(str).equals(b[column].astype(str))


def test_variables_of_a_chat_template_make_another_setting(pair):
    target = copy.copy(pair[0])
    target.text = copy.copy(target.text)
    target.text.chat = {"enable_thinking": False}
    assert identity(target) == identity(pair[0]) | {"chat": {"enable_thinking": False}}


def test_a_calibration_is_of_the_drafter_where_the_method_has_one(pair):
    target, drafter = pair
    named = {
        name: calibration_setting(target, find(name)(), drafter)["draft"]
        for name in ("speculative", "unispec")
    }
    assert named == {"speculative": identity(drafter), "unispec": None}


def test_a_split_model_names_all_devices():
    for devices, named in ((["cpu", "cpu"], "2 × cpu"), (["cpu", "cuda:1"], "cpu + cuda:1")):
        there = SimpleNamespace(size=2, gather=lambda mine, devices=devices: [mine, *devices[1:]])
        assert machine_of(SimpleNamespace(device="cpu", ranks=there))["device"] == named


def test_of_a_tree_only_the_predictions_that_are_kept_are_held(pair):
    from specviz.loop import reduce

    reducer = reduce.Reducer(SimpleNamespace(due=lambda cycles: False), "judged", None)
    for cycle in decode(pair[0], [3, 4, 5], find("token_recycling")(), max_new_tokens=20):
        if cycle.draft is not None and not cycle.draft.is_chain:
            reducer.add(cycle)
            assert len(reducer.held[-1].scores) == 1 + cycle.status.count("accepted") < len(cycle.scores)
    assert reducer.held


@pytest.mark.parametrize("few", ["specviz.trace.recorder.BATCH", "specviz.loop.reduce.HELD_LOGITS"])
@pytest.mark.parametrize("method", ["bild", "speculative", "token_recycling"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_batches_join(pair, temperature, method, few, monkeypatch):
    target, drafter = pair
    options = {"draft": drafter, "max_new_tokens": 40, "temperature": temperature}
    together = specviz.generate(target, [[3, 4, 5], [9]], method, **options)
    monkeypatch.setattr(few, 3)
    apart = specviz.generate(target, [[3, 4, 5], [9]], method, **options)
    phases = [f"{phase}_time" for phase in ("draft", "forward", "verify", "commit")]
    for name in ("cycles", "nodes", "outputs"):
        timed = ["run", "start", "duration", *phases]
        a, b = (getattr(t, name).drop(columns=timed, errors="ignore") for t in (together, apart))
        assert a.equals(b)
    assert apart.tops("pred").drop(columns="run").equals(together.tops("pred").drop(columns="run"))
    cycles = apart.cycles
    assert (np.diff(cycles["start"]) >= cycles["duration"][:-1]).all()  # cycles do not overlap


def test_reduced_cycles_wait_until_many_can_be_recorded(pair, monkeypatch):
    calls = []
    for owner, name in ((reduce.Batch, "columns"), (Recorder, "_convert")):
        real = getattr(owner, name)

        def counted(*arguments, name=name, real=real):
            calls.append(name)
            return real(*arguments)

        monkeypatch.setattr(owner, name, counted)
    monkeypatch.setattr(reduce, "HELD_LOGITS", 0)  # nothing but the last cycle is held
    monkeypatch.setattr("specviz.trace.recorder.BATCH", 8)
    trace = specviz.generate(pair[0], [3, 4, 5], draft=pair[1], max_new_tokens=80)
    cycles = len(trace.cycles)
    assert calls.count("columns") > cycles - 2 > 16
    assert calls.count("_convert") <= 1 + cycles // 8


LISTS = {"node_token": 1, "node_parent": 1, "node_q": 1, "node_met": 1, column_of("age"): 1}
LISTS |= {"node_top_token": 2, "node_top_p": 2}  # entries per node
OPTIONAL = (("node_q",), ("node_met",), (column_of("age"),), ("node_top_token", "node_top_p"))


def recorded_cycle(number, nodes, given):
    """A cycle's columns as `Recorder.add` takes them; -1 nodes are no draft."""
    cycle = {"prompt": 0, "cycle": number, "stop": ["cap", None, "end"][number % 3]}
    if nodes < 0:
        return cycle
    names = ["node_token", "node_parent", *(name for i in given for name in OPTIONAL[i])]
    lists = {name: number + np.arange(LISTS[name] * nodes) / 8 for name in names}
    for name in ("node_token", "node_top_token"):
        if name in lists:
            lists[name] = (8 * lists[name]).astype(int)
    lists["node_parent"] = np.full(nodes, -1)
    if "node_met" in lists:
        lists["node_met"] = np.arange(number, number + nodes) % 3 == 0
    return cycle | lists | ({"top_k": 2} if "node_top_p" in lists else {})


def part_of(cycles):
    """These cycles' columns as they are after their reduction."""
    columns = {name: tuple(cycle[name] for cycle in cycles) for name in ("prompt", "cycle", "stop")}
    columns["top_k"] = np.array([cycle.get("top_k", np.nan) for cycle in cycles])
    for name in LISTS:
        if any(name in cycle for cycle in cycles):
            entries = np.concatenate([cycle[name] for cycle in cycles if name in cycle])
            counts = np.array([len(cycle[name]) if name in cycle else -1 for cycle in cycles])
            columns[name] = entries.tolist() if name == "node_token" else entries, counts
    return columns


CYCLE = st.tuples(st.integers(-1, 3), st.sets(st.integers(0, len(OPTIONAL) - 1)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(CYCLE, min_size=1, max_size=3), min_size=1, max_size=5))
def test_parts_join_to_the_columns_of_their_cycles(parts):
    """Whatever list columns a part has, with entries or without, and with two cycles as with one."""
    number = count()
    parts = [[recorded_cycle(next(number), *each) for each in part] for part in parts]
    alone, joined = Recorder({"run": "r", "method": "m"}), Recorder({"run": "r", "method": "m"})
    for cycle in chain.from_iterable(parts):
        alone.add(cycle)
    columns = reduce.joined([part_of(part) for part in parts])
    joined.extend(columns, reduce.cycle_count(columns))
    expected, trace = alone.close(), joined.close()
    assert trace.cycles.equals(expected.cycles)
    assert trace.nodes.equals(expected.nodes)
    assert trace.tops("node").equals(expected.tops("node"))


def test_without_a_record_the_text_is_left(pair):
    target, drafter = pair
    whole = specviz.generate(target, [3, 4], draft=drafter, max_new_tokens=20)
    bare = specviz.generate(target, [3, 4], draft=drafter, max_new_tokens=20, record=None)
    assert bare.outputs["token"].tolist() == whole.outputs["token"].tolist()
    assert metrics.steps(bare) == metrics.steps(whole)
    assert len(bare.nodes) == 0


@pytest.mark.parametrize("method", METHODS)
def test_interrupted(table, method, monkeypatch, tmp_path):
    target, drafter = table
    whole = specviz.generate(target, [1, 2], method, draft=drafter, max_new_tokens=50)
    calls = []
    real = target.logits

    def logits(text):
        calls.append(text)
        if len(calls) > 40:
            raise KeyboardInterrupt
        return real(text)

    monkeypatch.setattr(target, "logits", logits)
    path = tmp_path / "run.parquet"
    trace = specviz.generate(target, [[1, 2], [3]], method, draft=drafter, max_new_tokens=50, out=path)
    assert trace.run["complete"] is False
    assert trace.run["stopped"] == "interrupted"
    assert trace.cycles["end"].iloc[-1] == "interrupted"
    found = trace.outputs["token"].tolist()
    assert 3 < len(found) < 50
    assert found == whole.outputs["token"].tolist()[: len(found)]
    assert specviz.open(path).texts == trace.texts
    assert len(trace.nodes) or method == "autoregressive"
    assert trace.nodes["status"].notna().all()


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        (reduce.Batch, "columns", 4),
        (reduce, "joined", 4),
        (Recorder, "_convert", 4),
        (Recorder, "_new_pieces", 5),
    ],
)
def test_interrupted_while_cycles_become_columns(pair, batch, owner, name, expected, monkeypatch, tmp_path):
    calls, real = [], getattr(owner, name)

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(owner, name, interrupted)
    monkeypatch.setattr(reduce, "HELD_LOGITS", 48 * 40)  # so that there are many
    monkeypatch.setattr("specviz.trace.recorder.BATCH", 8)
    options = {"draft": pair[1], "max_new_tokens": 80, "batch": batch, "out": tmp_path / "run.parquet"}
    run, seen = specviz.stream(pair[0], [[3, 4, 5], [9]], **options), {}
    for cycle in run:
        seen.setdefault(cycle.prompt, []).extend(cycle.tokens)
    texts = run.trace.outputs.groupby("prompt")["token"].agg(list).to_dict()
    assert run.trace.run["stopped"] == "interrupted"
    assert len(calls) == expected
    assert seen  # the values a caller received are in the record
    for prompt, tokens in seen.items():
        assert texts[prompt][: len(tokens)] == tokens
    last = run.trace.cycles.groupby("prompt").tail(1)
    assert last["end"].notna().all()
    assert last["end"].iloc[-1] == "interrupted"
    cycles = run.trace.cycles.drop_duplicates("start")
    assert (np.diff(cycles["start"]) >= cycles["duration"][:-1] - 1e-9).all()


def test_an_error_in_a_reduction_loses_no_cycle_before_it(pair, monkeypatch):
    calls, real = count(1), reduce.Batch.columns

    def failing(batch):
        if next(calls) > 3:
            raise ValueError("no such column")
        return real(batch)

    monkeypatch.setattr(reduce.Batch, "columns", failing)
    monkeypatch.setattr(reduce, "HELD_LOGITS", 0)  # nothing but the last cycle is held
    run, seen = specviz.stream(pair[0], [3, 4, 5], draft=pair[1], max_new_tokens=80), []
    with pytest.raises(ValueError, match="no such column"):
        seen.extend(run)
    assert run.trace.cycles["cycle"].tolist() == [0, 1, 2]
    assert "no such column" in run.trace.run["stopped"]


def test_a_part_of_numbers_joins_a_part_without():
    """An array's NaN stands for null; next to a list's entries it would stay a number."""
    empty = ([], np.array([-1])), ([None], np.array([1]))
    for entries, counts in empty:
        parts = [{"prompt": (0,), "node_u": (entries, counts)}]
        parts += [{"prompt": (0,), "node_u": (np.array([np.nan, 0.5], np.float32), np.array([2]))}]
        for order in (parts, parts[::-1]):
            values, _ = reduce.joined(order)["node_u"]
            assert pa.array(values, pa.float32(), from_pandas=True).null_count == 1 + len(entries)


def test_an_error_in_a_run_is_raised_and_the_record_kept(table, monkeypatch, tmp_path):
    target = table[0]
    real = target.logits

    def logits(text):
        if len(text) > 12:
            raise ModelError("out of memory: lower max_new_tokens")
        return real(text)

    monkeypatch.setattr(target, "logits", logits)
    with pytest.raises(ModelError, match="lower max_new_tokens"):
        specviz.generate(target, [1, 2], "autoregressive", out=tmp_path / "run.parquet")
    trace = specviz.open(tmp_path / "run.parquet")
    assert "out of memory" in trace.run["stopped"]
    assert len(trace.outputs) == 11


def test_closing_a_failed_run_keeps_its_error(table, monkeypatch):
    def full(*_):
        raise TraceError("the disk is full")

    run = specviz.stream(table[0], [1, 2], "autoregressive", max_new_tokens=4)
    monkeypatch.setattr(run.recorder, "_close", full)
    with pytest.raises(TraceError, match="the disk is full"), closing(run):
        run.finish()


def test_streaming(table):
    target, drafter = table
    whole = specviz.generate(target, [1, 2], draft=drafter, max_new_tokens=30)
    run = specviz.stream(target, [1, 2], draft=drafter, max_new_tokens=30)
    assert run.trace is None
    assert [t for cycle in run for t in cycle.tokens] == whole.outputs["token"].tolist()
    assert run.trace.texts == whole.texts
    early = specviz.stream(target, [1, 2], draft=drafter, max_new_tokens=30)
    emitted = [next(early).tokens for _ in range(4)]
    early.close()
    assert early.trace.run["complete"] is False
    assert early.trace.outputs["token"].tolist() == [t for tokens in emitted for t in tokens]
    unused = specviz.stream(target, [1, 2], draft=drafter)
    unused.close()
    assert len(unused.trace.cycles) == 0


def test_contexts_are_closed(table, monkeypatch):
    target, drafter = table
    opened = []
    for model in table:
        real = model.open
        monkeypatch.setattr(model, "open", lambda *a, real=real: opened.append(real(*a)) or opened[-1])
    run = decode(target, [1, 2], find("speculative")(), drafter=drafter)
    next(run)
    next(run)
    assert [c.closed for c in opened] == [False, False]
    run.close()
    assert [c.closed for c in opened] == [True, True]


@pytest.mark.parametrize(
    ("emitted", "eos", "left", "expected"),
    [
        ([5, 6, 7], {9}, 10, (3, None)),
        ([5, 6, 7], {6}, 10, (2, "eos")),
        ([5, 6, 7], {5, 7}, 10, (1, "eos")),
        ([5, 6, 7], {7}, 3, (3, "eos")),
        ([5, 6, 7], {7}, 2, (2, "length")),
        ([5, 6, 7], (), 3, (3, "length")),
        ([], (), 3, (0, None)),
    ],
)
def test_ending(emitted, eos, left, expected):
    assert ending(emitted, frozenset(eos), left, "length") == expected


# -- prompts ---------------------------------------------------------------------------------------


def test_prompt_forms(table):
    target, drafter = table

    def ids(prompt):
        trace = specviz.generate(target, prompt, draft=drafter, max_new_tokens=2)
        return [p["tokens"] for p in trace.run["prompts"]]

    assert ids("abc") == [target.encode("abc")]
    assert ids([1, 2]) == ids(np.array([1, 2])) == ids({"prompt": [1, 2]}) == [[1, 2]]
    assert ids([[1, 2], [3]]) == ids(([1, 2], {"prompt": [3]})) == [[1, 2], [3]]
    assert ids(["ab", "c"]) == [target.encode("ab"), target.encode("c")]


def test_what_a_prompt_says_of_itself_is_kept(table):
    target, drafter = table
    said = {"id": "q1", "kind": "translation", "language": "de", "reference": "…"}
    trace = specviz.generate(target, [{"prompt": [1, 2], **said, "more": 1}], draft=drafter, max_new_tokens=2)
    assert trace.run["prompts"] == [{"tokens": [1, 2], **said}]


def test_turns_are_one_conversation(table, monkeypatch):
    target, drafter = table
    asked = []

    def encode(messages):
        asked.append([(m["role"], m["content"]) for m in messages])
        return [len(m["content"]) % 6 for m in messages]

    monkeypatch.setattr(target, "encode", encode)
    trace = specviz.generate(
        target, {"turns": ["hello", "and then"], "id": 7}, draft=drafter, max_new_tokens=5
    )
    first, second = trace.texts
    assert asked[-1] == [("user", "hello"), ("assistant", first), ("user", "and then")]
    assert [(p["id"], p["turn"]) for p in trace.run["prompts"]] == [(7, 0), (7, 1)]
    assert len(first) == len(second) == 5


@pytest.mark.parametrize(
    "bad",
    ["", "  ", [], [[]], ["a", ""], {"text": "a"}, {"prompt": "a", "turns": ["b"]}, {"turns": []},
     {"turns": "ab"}, {"turns": ["a", ""]}, 7, [[1], 3.5], None],
)  # fmt: skip
def test_prompts_that_are_none(table, bad):
    with pytest.raises(PromptError):
        specviz.generate(table[0], bad, draft=table[1])


# -- refused before any work -----------------------------------------------------------------------


def test_refusals(table, tmp_path, monkeypatch):
    target, drafter = table

    def refused(error, match, model=target, prompt=(1, 2), method="speculative", **options):
        path = tmp_path / "never.parquet"
        with pytest.raises(error, match=match) as caught:
            specviz.generate(model, list(prompt), method, **{"draft": drafter, "out": path, **options})
        assert "\n" not in str(caught.value)
        assert issubclass(error, SpecvizError)
        assert not list(tmp_path.iterdir())

    refused(ParameterError, "did you mean bild", method="bil")
    refused(ParameterError, "did you mean draft_length", draft_lenght=3)
    refused(ParameterError, r"draft_length must lie in \[1, 64\], got 0", draft_length=0)
    refused(ParameterError, "max_new_tokens", max_new_tokens=0)
    refused(ParameterError, "max_new_tokens", max_new_tokens=2.5)
    refused(ParameterError, "seed", seed=-1)
    refused(ParameterError, "temperature", temperature=-0.1)
    refused(ParameterError, "top_p", top_p=0.0)
    for limit in ({"top_p": 0.9}, {"top_k": 5}):
        refused(ParameterError, "temperature 0 draws nothing: raise temperature, or drop them", **limit)
    refused(ParameterError, r"no parameter 'max_tokens'; did you mean max_new_tokens\?", max_tokens=9)
    refused(ParameterError, "record", record="everything")
    refused(ParameterError, "pass draft=", draft=None)
    refused(ModelError, "no model", model=None)
    refused(ModelError, "is in float64, not in bfloat16: load it so, or drop dtype=", dtype="bfloat16")
    refused(ModelError, "vocabularies differ", draft=TableModel(5))
    refused(PromptError, "64 tokens and leaves no room in target's context of 64", prompt=[1] * 64)
    refused(PromptError, "leaves no room in small", draft=TableModel(6, max_length=2, name="small"))
    assert target.opened == drafter.opened == 0
    assert specviz.load(target, "cpu", "float64") is target
    with pytest.raises(ModelError, match="target is already loaded: drop tokenizer="):
        specviz.load(target, tokenizer="x")
    (tmp_path / "there.parquet").write_bytes(b"")
    with pytest.raises(TraceError, match="exists"):
        specviz.generate(target, [1], draft=drafter, out=tmp_path / "there.parquet")
    monkeypatch.setattr("specviz.trace.files.RUN_LIMIT", GROWTH + 15_000)
    with pytest.raises(TraceError, match="decode the prompts in several runs"):
        specviz.generate(target, [[1] * 60] * 99, draft=drafter, out=tmp_path / "long.parquet")
    for field in ("reference", "id"):
        for out in ({}, {"out": tmp_path / "long.parquet"}):
            entry = {"prompt": "a", field: "x" * ((1 << 20) + 1)}
            with pytest.raises(TraceError, match=rf"the run's metadata, prompts\[0\]\.{field} is too long"):
                specviz.generate("town", [entry], "autoregressive", max_new_tokens=2, **out)
    assert target.opened == drafter.opened == 0 and not list(tmp_path.glob("*long*"))
    specviz.generate(target, [[1] * 60] * 9, draft=drafter, max_new_tokens=2, out=tmp_path / "long.parquet")


def test_a_loaded_drafter_may_be_on_another_device_of_the_same_kind():
    def on(place, dtype):
        what = {
            "device": place,
            "dtype": dtype,
            "kind": "causal",
            "name": place,
            "open": None,
            "encode": None,
        }
        return SimpleNamespace(**what)

    target, other = on("cuda:0", torch.float32), on("cuda:1", torch.bfloat16)
    assert load_drafter(target, other, None, None) is other
    assert load_drafter(target, other, "cuda:0", "float32") is other
    with pytest.raises(ModelError, match="cpu is on cpu, not on cuda"):
        load_drafter(target, on("cpu", torch.float32), None, None)


def test_an_output_folder_gets_a_new_file(table, tmp_path):
    for _ in range(2):
        specviz.generate(table[0], [1], draft=table[1], max_new_tokens=3, out=tmp_path / "runs")
    assert len(list((tmp_path / "runs").glob("speculative-*.parquet"))) == 2
    assert len(specviz.open(tmp_path / "runs").runs) == 2


def test_a_file_in_the_home_folder(table, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for resume in (False, True):
        trace = specviz.generate(table[0], [1], "autoregressive", out="~/a.parquet", resume=resume)
    trace.save("~/b.parquet")
    assert specviz.open("~/b.parquet").texts == specviz.open("~/a.parquet").texts == trace.texts
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_a_file_that_exists_is_refused_before_anything_is_loaded(tmp_path):
    file = tmp_path / "run.parquet"
    file.write_bytes(b"")
    with pytest.raises(TraceError, match="exists"):
        specviz.generate("no-such-model", "Hello", out=file)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_that_are_no_numbers_are_refused(temperature, batch):
    model = llama(seed=0)
    with torch.no_grad():
        model.net.model.norm.weight[0] = torch.nan
    with pytest.raises(ModelError, match="not numbers"):
        specviz.generate(model, [[3, 4], [5]], "autoregressive", temperature=temperature, batch=batch)


def test_a_token_that_the_drafter_cannot_read_ends_its_drafts(monkeypatch):
    """Heads of one tokenizer may be padded differently, and a sample may be a padding row."""
    target, drafter = llama(seed=0, eos=()), llama(seed=1, eos=(), vocabulary=24)
    monkeypatch.setattr(type(target), "check_vocabulary", lambda self, other: None)
    wide = {"max_new_tokens": 30, "temperature": 50.0}
    for batch in (1, 2):
        trace = specviz.generate(target, [[3, 4], [5, 6]], draft=drafter, batch=batch, **wide)
        assert [len(each) for _, each in trace.outputs.groupby("prompt")] == [30, 30]
        assert trace.outputs["token"].max() >= 24, "else this shows nothing"


@pytest.mark.parametrize(
    ("name", "value"), [("repetition_penalty", 1.2), ("no_repeat_ngram_size", 3), ("bad_words_ids", [[4, 5]])]
)
def test_processors_of_the_whole_prefix_are_refused_by_name(name, value):
    model = llama(seed=0)
    setattr(model.net.generation_config, name, value)
    with pytest.raises(ModelError, match=name):
        specviz.generate(model, [3, 4], "autoregressive")


def test_processors_that_are_off_are_no_matter():
    model = llama(seed=0)
    want = specviz.generate(model, [3, 4], "autoregressive", max_new_tokens=3).outputs["token"].tolist()
    model.net.generation_config.repetition_penalty = 1.0
    model.net.generation_config.no_repeat_ngram_size = 0
    trace = specviz.generate(model, [3, 4], "autoregressive", max_new_tokens=3)
    assert trace.outputs["token"].tolist() == want and want


def test_vocabularies_that_differ_on_real_models():
    with pytest.raises(ModelError, match="48"):
        specviz.generate(llama(seed=0), [3], draft=llama(seed=1, vocabulary=40))


# -- the public functions --------------------------------------------------------------------------


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, specviz; specviz.__version__; specviz.list_methods(); specviz.ParameterError\n"
        "heavy = {'torch', 'transformers', 'pandas', 'pyarrow', 'matplotlib', 'plotly'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert set(specviz.__all__) <= set(dir(specviz))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_door_opens():
    for name in [*specviz.__all__, "__version__"]:
        assert getattr(specviz, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specviz.nothing  # noqa: B018


def test_without_a_record_no_logits_are_held(pair):
    target, drafter = pair
    run = specviz.stream(target, [3, 4, 5], draft=drafter, max_new_tokens=20, record=None)
    for _, cycle in zip(range(4), run):
        assert cycle.number == 0 or cycle.scores is not None  # scores are kept on request
    assert run.reducer.held and run.reducer.rows == 0
    assert all(cycle.scores is None and cycle.draft is None for cycle in run.reducer.held)
    run.close()
