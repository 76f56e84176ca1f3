"""The columns match the trace's tables, and survive being packed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.front_end import unpack
from hypothesis import given, settings
from hypothesis import strategies as st

import specviz as sv
from specviz.errors import TraceError
from specviz.trace import Recorder
from specviz.view.picture import KINDS
from specviz.widgets.columns import CHUNK, END, Chunks, columns, pack
from traces import EOS, HOSTILE, build, cycles, metadata, piece


def same(found, wanted) -> None:
    """Check that numbers are equal as float32; a missing value is NaN or -1."""
    wanted = np.asarray(wanted, np.float64)
    found = np.asarray(found, np.float64)
    missing = np.isnan(wanted)
    np.testing.assert_array_equal(found[~missing], wanted[~missing].astype(np.float32))
    assert (np.isnan(found[missing]) | (found[missing] == -1)).all()


def check(trace, header, arrays) -> None:
    """Check every column against the trace's tables."""
    table, nodes, outputs, passes = trace.cycles, trace.nodes, trace.outputs, trace.passes
    assert arrays["cycle"].tolist() == table["cycle"].tolist()
    same(arrays["context"], table["context"])
    same(arrays["keep"], table["keep"])
    for at, count in (("node_at", table["drafted"]), ("out_at", table["emitted"])):
        assert np.diff(arrays[at].astype(np.int64)).tolist() == count.tolist()
    assert arrays["times"].size == 5 * len(table)
    np.testing.assert_allclose(
        arrays["times"].reshape(-1, 5).sum(1), np.nan_to_num(table["duration"].to_numpy(float)), rtol=1e-5
    )
    for name in ("token", "parent", "position", "q", "p", "rank", "confidence"):
        if f"node_{name}" in arrays:
            same(arrays[f"node_{name}"], nodes[name])
        else:
            assert nodes[name].isna().all()
    assert [header["words"]["status"][i] for i in arrays["node_status"]] == nodes["status"].tolist()
    assert arrays["out_token"].tolist() == outputs["token"].tolist()
    kinds = [header["kinds"][k]["name"] for k in arrays["out_kind"]]
    bild = trace.run["method"] == "bild"
    assert kinds == ["rollback" if bild and o == "correction" else o for o in outputs["origin"]]
    assert ((arrays["out_gone"].astype(int) < 0) == outputs["kept"].to_numpy()).all()
    assert np.diff(arrays["pass_at"].astype(int)).sum() == len(passes)
    if len(passes):
        same(arrays["pass_duration"], passes["duration"])
    ids = set(nodes["token"]) | set(outputs["token"])
    assert set(map(int, header["pieces"])) == ids


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "bild", "tree"])
@pytest.mark.parametrize("record", ["judged", None])
def test_columns_are_the_tables(method, record):
    trace = build(method, prompts=2, record=record)
    header, arrays = columns(trace)
    check(trace, header, arrays)
    edges = [(p["first"], p["last"]) for p in header["prompts"]]
    assert edges[0][0] == 0 and edges[0][1] == edges[1][0] and edges[1][1] == len(trace.cycles)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["autoregressive", "speculative", "bild", "tree"]),
    st.integers(0, 99),
    st.sampled_from([0.0, 1.0]),
    st.integers(1, 60),
)
def test_packed_and_unpacked(method, seed, temperature, tokens):
    trace = build(method, tokens=tokens, seed=seed, temperature=temperature)
    header, arrays = columns(trace)
    again, read = unpack(pack(header, arrays))
    assert again == json.loads(json.dumps(header))
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array.ravel())
        assert array.dtype.kind != "f" or array.dtype == np.float32
    check(trace, again, read)


def test_the_text_is_joined_to_whole_characters():
    trace = build("speculative", tokens=60, seed=3)
    header, arrays = columns(trace)
    words, by = header["words"]["text"], arrays["out_by"]
    shown = [words[i] for i in arrays["out_text"]]
    partial = [i for i, last in enumerate(by) if last != i]
    assert partial, "the trace has no character of several tokens"
    assert all(shown[i] == "" for i in partial)
    ends = [i for i, token in enumerate(arrays["out_token"]) if token == EOS]
    assert all(shown[i] == END for i in ends)


def test_nothing_unseen_is_sent():
    header, _ = columns(build("tree", tokens=80))
    said = [*header["pieces"].values(), *header["words"]["text"], *(p["text"] for p in header["prompts"])]
    assert not any(c in text for text in said for c in "\u202e\x00\x07\t")
    assert "⟨U+202E⟩abc" in header["pieces"].values()
    assert "⟨0xFF⟩⟨0xFE⟩" in header["pieces"].values()
    assert HOSTILE[0].decode() in header["pieces"].values()  # harmless as a text node, so left as it is


def test_candidates_come_in_chunks(tmp_path):
    recorder = Recorder(metadata("tree", prompts=9), record="judged", piece=piece)
    for cycle in cycles("tree", prompts=9, tokens=40):
        recorder.add(cycle)
    trace = recorder.close()
    chunks, tops = Chunks(trace), {g: trace.tops(g) for g in ("pred", "node")}
    assert len(chunks) == columns(trace)[0]["chunks"] == -(-len(trace.cycles) // CHUNK) > 1
    for group, table in tops.items():
        found = [chunks[i][1] for i in range(len(chunks))]
        assert np.concatenate([c[f"{group}_top_token"] for c in found]).tolist() == table["token"].tolist()
        same(np.concatenate([c[f"{group}_top_p"] for c in found]), table["p"])
    same(np.concatenate([chunks[i][1]["node_entropy"] for i in range(len(chunks))]), trace.nodes["entropy"])
    header, arrays = chunks[1]
    assert set(map(int, header["pieces"])) == {*arrays["pred_top_token"], *arrays["node_top_token"]}
    with pytest.raises(IndexError):
        chunks[len(chunks)]


def test_a_column_is_left_out_of_the_chunks_that_lack_it_throughout():
    names = ("entropy", "margin", "top_token", "top_p")
    recorder = Recorder(metadata("tree", prompts=12), record="judged", piece=piece)
    for number, cycle in enumerate(cycles("tree", prompts=12, tokens=40)):
        bare = number < CHUNK or number == CHUNK + 9
        recorder.add(cycle | (dict.fromkeys(map("node_{}".format, names)) if bare else {}))
    trace = recorder.close()
    chunks, edge = Chunks(trace), int(trace.cycles["drafted"][:CHUNK].sum())
    first, *later = (chunks[i][1] for i in range(len(chunks)))
    assert later and edge
    assert not {f"node_{name}" for name in names} & set(first) and "pred_top_token" in first
    for name in ("entropy", "margin"):
        same(np.concatenate([each[f"node_{name}"] for each in later]), trace.nodes[name][edge:])
    tops = trace.tops("node")
    assert (later[0]["node_top_token"] == -1).sum() == 3 * trace.cycles["drafted"][CHUNK + 9] > 0
    tokens = np.concatenate([each["node_top_token"] for each in later])
    assert tokens[tokens >= 0].tolist() == tops["token"].tolist()

    _, nothing = Chunks(build("autoregressive", tokens=9))[0]
    assert nothing["node_entropy"].tolist() == nothing["node_top_p"].tolist() == []  # no node lacks it


def test_what_a_later_cycle_takes_back():
    recorder = Recorder(metadata("speculative"), piece=piece)
    made = cycles("speculative", tokens=12, hostile=False)[:4]
    made[3]["keep"] = 1
    for cycle in made:
        recorder.add(cycle)
    _, arrays = columns(recorder.close())
    before = arrays["out_at"][3]
    assert arrays["out_gone"].tolist() == [-1] + [3] * (int(before) - 1) + [-1] * len(made[3]["out_token"])


def test_pack_stores_equal_and_constant_arrays_once():
    a = np.arange(1000, dtype=np.float32)
    once = len(pack({}, {"a": a}))
    assert len(pack({}, {"a": a, "b": a.copy(), "c": np.ones(5000, np.uint8)})) < once + 100
    _, read = unpack(pack({}, {"c": np.full(5000, 7, np.int16), "none": np.zeros(0, np.uint8)}))
    assert read["c"].tolist() == [7] * 5000
    assert read["none"].tolist() == []


def test_a_header_with_what_json_lacks():
    trace = build("bild", parameters={"fallback": float("nan"), "rollback": float("inf"), "x": [1.5]})
    header, arrays = columns(trace)
    assert header["run"]["parameters"] == {"fallback": None, "rollback": None, "x": [1.5]}
    pack(header, arrays)


def test_nothing_to_show_is_said():
    with pytest.raises(TraceError, match="no cycle"):
        columns(Recorder(metadata(), piece=piece).close())


def test_the_palette_is_the_pictures():
    """The views' colours are those of the still picture, kind by kind."""
    style = (Path(sv.__file__).parent / "widgets/shared.css").read_text(encoding="utf8")
    rules = [rule.strip() for rule in style.split("}")]
    for name, kind in KINDS.items():
        rule = next(r for r in rules if f".{name}" in r.split("{")[0].split(",") and "--hue" in r)
        assert kind.hue in rule, name
