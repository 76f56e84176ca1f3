"""A trace as Chrome trace events: the format's rules, and the trace's own numbers."""

from __future__ import annotations

import json
from collections import defaultdict

import numpy as np
import pytest

import specviz as sv
from specviz.errors import TraceError
from specviz.trace import Recorder
from traces import build, metadata


def events_of(trace, folder):
    file = json.loads(trace.to_perfetto(folder / "t.json", force=True).read_text(encoding="utf8"))
    assert file["displayTimeUnit"] in ("ms", "ns") and isinstance(file["traceEvents"], list)
    return file["traceEvents"]


def check_format(events) -> None:
    """Check the format's requirements on all events, complete events, counters and metadata."""
    tracks = defaultdict(list)
    for event in events:
        assert {"name", "ph", "pid", "tid", "ts"} <= set(event)
        assert isinstance(event["name"], str) and type(event["pid"]) is type(event["tid"]) is int
        assert isinstance(event["ts"], int | float) and event["ts"] >= 0
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
        elif event["ph"] == "C":
            assert event["args"] and all(isinstance(v, int | float) for v in event["args"].values())
        else:
            assert event["ph"] == "M" and event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for track, slices in tracks.items():  # slices of a track are nested or disjoint
        assert track in named
        ends = []
        for begin, minus in sorted(slices):
            while ends and ends[-1] <= begin + 1e-4:
                ends.pop()
            assert not ends or begin - minus <= ends[-1] + 1e-4
            ends.append(begin - minus)


@pytest.mark.parametrize("name", ["prompt_lookup", "unispec", "autoregressive"])
def test_slices_and_counters_are_the_traces(name, tmp_path):
    trace = sv.open(sv.example(name))
    events = events_of(trace, tmp_path)
    check_format(events)
    table = trace.cycles
    cycles = [
        e for e in events if e["ph"] == "X" and (e["name"].startswith("cycle") or e["name"] == "prefill")
    ]
    assert len(cycles) == len(table)
    np.testing.assert_allclose([e["ts"] for e in cycles], 1e6 * table["start"], atol=1e-3)
    np.testing.assert_allclose([e["dur"] for e in cycles], 1e6 * table["duration"], atol=2e-3)
    assert [e["args"]["accepted"] for e in cycles] == table["accepted"].tolist()
    assert "".join(e["args"]["text"] for e in cycles if e["args"]["prompt"] == 0).strip()
    for phase in ("draft", "forward", "verify", "commit"):
        spent = sum(e["dur"] for e in events if e["name"] == phase)
        assert spent == pytest.approx(1e6 * table[f"{phase}_time"].sum(), rel=1e-4, abs=0.1)
    passes = [e for e in events if e["name"].endswith(" pass")]
    assert len(passes) == len(trace.passes)
    counts = [e["args"] for e in events if e["name"] == "draft tokens"]
    assert [c["accepted"] for c in counts] == [*table["accepted"], 0]
    assert [sum(c.values()) for c in counts] == [*table["sent"], 0]


def test_runs_and_batch_rows_have_tracks_of_their_own(tmp_path):
    build("bild", path=tmp_path / "t/a.parquet", prompts=2)
    build("tree", path=tmp_path / "t/b.parquet", seed=5)
    events = events_of(sv.open(tmp_path / "t"), tmp_path)
    check_format(events)
    assert {e["pid"] for e in events} == {1, 2}
    text = json.dumps(events, ensure_ascii=False)
    assert "\u202e" not in text and "\\u0000" not in text


def test_rows_of_a_batch_are_counted_as_one(tmp_path):
    entries = [entry["turns"][0] for entry in sv.suite("town")[:3]]
    trace = sv.generate("town", entries, "prompt_lookup", batch=3, max_new_tokens=16)
    events = events_of(trace, tmp_path)
    check_format(events)
    named = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert any("batch row 1" in name for name in named)
    counts = [e for e in events if e["name"] == "draft tokens"]
    assert len({e["ts"] for e in counts}) == len(counts) < len(trace.cycles)
    assert sum(e["args"]["accepted"] for e in counts) == trace.cycles["accepted"].sum()
    assert sum(sum(e["args"].values()) for e in counts) == trace.cycles["sent"].sum()


def test_what_has_no_times_is_refused(tmp_path):
    trace = build("bild", record=None)
    with pytest.raises(TraceError, match="no times"):
        trace.to_perfetto(tmp_path / "t.json")
    assert not (tmp_path / "t.json").exists()
    build("tree").to_perfetto(tmp_path / "t.json")
    with pytest.raises(TraceError, match="exists"):
        build("tree").to_perfetto(tmp_path / "t.json")


def test_a_character_of_several_tokens_is_one_character(tmp_path):
    cat = "猫".encode()
    recorder = Recorder(metadata("autoregressive"), piece=lambda token: cat[token : token + 1])
    recorder.add(
        {"cycle": 1, "start": 0.0, "duration": 1.0, "out_token": [0, 1, 2], "out_position": [0, 1, 2]}
    )
    recorder.add({"cycle": 2, "start": 1.0, "duration": 1.0, "out_token": [0], "out_position": [3]})
    cycles = [e for e in events_of(recorder.close(), tmp_path) if e["name"].startswith("cycle")]
    assert [e["args"]["text"] for e in cycles if e["ph"] == "X"] == ["猫", r"\xe7"]


def test_a_cycle_has_the_text_of_its_own_prompt_and_update(tmp_path):
    recorder = Recorder(metadata("autoregressive", prompts=2), piece=lambda token: b"%d" % token)
    times = {"duration": 1.0, "out_position": [0], "out_origin": ["plain"]}
    for token, (prompt, update) in enumerate([(0, 0), (0, 1), (1, 0)]):
        place = {"prompt": prompt, "update": update, "start": 2.0 * token}
        recorder.add({"cycle": 0, "source": "x", "arrival": 0.0, "duration": 0.5} | place)
        recorder.add({"cycle": 1, "out_token": [token]} | times | place | {"start": 2.0 * token + 0.5})
    cycles = [e for e in events_of(recorder.close(), tmp_path) if e["name"].startswith("cycle")]
    assert [e["args"]["text"] for e in cycles if e["ph"] == "X"] == ["0", "1", "2"]
