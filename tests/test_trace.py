"""The record: written cheaply, read lazily, never trusted."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import validate

import traces
from specviz import schema
from specviz.errors import TraceError
from specviz.paths import example
from specviz.trace import PARTIAL, Recorder, Trace, arrow_schema, metadata, whole_characters
from specviz.trace.files import KEY

METHODS = ["autoregressive", "speculative", "bild", "tree"]
TESTS = Path(__file__).parent


def python(code: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, with this folder on its path."""
    code = f"import sys; sys.path[:0] = {[str(TESTS.parent), str(TESTS)]!r}\n" + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, **options)


def everything(path: Path) -> Trace:
    """Open a trace and read all of it."""
    trace = Trace.open(path)
    for name in ("cycles", "nodes", "outputs", "passes", "tails", "texts", "prompts", "runs"):
        getattr(trace, name)
    trace.tops("pred")
    trace.tops("node")
    return trace


def opened(path: Path) -> tuple[Trace | None, str]:
    """The trace, or why it is none; any other exception is a failure."""
    try:
        return everything(path), ""
    except TraceError as error:
        return None, str(error)


# ------------------------------------------------------------ writing and reading


def test_importing_loads_nothing_heavy():
    heavy = "{'torch', 'pandas', 'pyarrow', 'matplotlib', 'transformers'}"
    done = python(f"import specviz.trace, specviz.metrics; print({heavy} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stdout + done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_a_file_says_what_memory_says(method, tmp_path):
    path = tmp_path / "run.parquet"
    saved = traces.build(method, prompts=3, path=path)
    held = traces.build(method, prompts=3)
    assert list(tmp_path.iterdir()) == [path]
    for name in ("cycles", "nodes", "outputs", "passes", "prompts", "runs"):
        assert getattr(saved, name).equals(getattr(held, name)), name
    assert saved.tops("pred").equals(held.tops("pred"))
    assert saved.texts == held.texts
    assert saved.run == held.run
    validate(saved)


def test_values_arrive_unchanged(tmp_path):
    path = tmp_path / "run.parquet"
    cycle = {
        "prompt": 0,
        "cycle": 1,
        "keep": 0,
        "duration": 0.25,
        "node_token": np.array([5, 6, 7]),
        "node_parent": [-1, 0, 0],
        "node_status": ["accepted", "rejected", "accepted"],
        "node_rank": np.array([0, np.nan, 3]),
        "node_q": [0.5, None, float("nan")],
        "node_met": np.array([True, False, True]),
        "node_top_token": np.array([[1, 2], [3, 4], [5, 6]]),
        "node_top_p": np.array([[0.6, 0.1], [0.5, 0.2], [0.4, 0.3]]),
        "pred_node": [-1, 0],
        "pred_top_token": [11, 12, 13, 14],
        "pred_top_p": [0.9, 0.05, 0.8, 0.1],
        "top_k": 2,
        "out_token": (5, 7, 9),
        "out_position": np.arange(3),
        "out_origin": ["draft", "draft", "bonus"],
        "control_name": ["window", "gap"],
        "control_value": [4, 0.5],
    }
    recorder = Recorder({"run": "r", "method": "m", "sampling": {"seed": 7}}, path)
    recorder.add({"prompt": 0, "cycle": 0, "node_token": None})
    recorder.add(cycle)
    trace = recorder.close()
    nodes = trace.nodes
    assert nodes["token"].tolist() == [5, 6, 7]
    assert nodes["depth"].tolist() == [1, 2, 2]
    assert nodes["rank"].isna().tolist() == [False, True, False]
    assert nodes["q"].isna().tolist() == [False, True, True]
    assert nodes["met"].tolist() == [True, False, True]
    row = trace.cycles.iloc[1]
    assert (row["drafted"], row["judged"], row["accepted"], row["emitted"]) == (3, 3, 2, 3)
    assert (row["seed"], row["row"], row["update"], row["duration"]) == (7, 0, 0, 0.25)
    assert (row["control_window"], row["control_gap"]) == (4, 0.5)
    tops = trace.tops("pred")
    assert tops["node"].tolist() == [-1, -1, 0, 0]
    assert tops["place"].tolist() == [0, 1, 0, 1]
    assert tops["token"].tolist() == [11, 12, 13, 14]
    assert trace.tops("node")["node"].tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_allclose(trace.tops("node")["p"], [0.6, 0.1, 0.5, 0.2, 0.4, 0.3], rtol=1e-6)
    assert trace.outputs["token"].tolist() == [5, 7, 9]


def test_many_batches_keep_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr("specviz.trace.recorder.BATCH", 7)
    monkeypatch.setattr("specviz.trace.files.GROUP_BYTES", 20_000)
    trace = traces.build("tree", prompts=4, tokens=80, path=tmp_path / "run.parquet")
    assert pq.ParquetFile(tmp_path / "run.parquet").num_row_groups > 1
    monkeypatch.undo()
    assert trace.nodes.equals(traces.build("tree", prompts=4, tokens=80).nodes)


def test_columns_of_many_cycles_are_those_cycles(tmp_path):
    one_by_one = Recorder({"run": "r", "method": "m", "sampling": {"seed": 7}})
    one_by_one.add({"cycle": 0})
    one_by_one.add({"cycle": 1, "node_token": [5, 6], "node_q": np.array([0.5, np.nan]), "stop": "length"})
    one_by_one.add({"cycle": 2, "node_token": []})
    together = Recorder({"run": "r", "method": "m", "sampling": {"seed": 7}}, tmp_path / "run.parquet")
    together.extend(
        {
            "cycle": [0, 1, 2],
            "stop": (None, "length", None),
            "node_token": ([5, 6], np.array([-1, 2, 0])),
            "node_q": (np.array([0.5, np.nan]), np.array([-1, 2, -1])),
        },
        3,
    )
    names = [c.name for c in schema.COLUMNS]
    assert together.close().arrow(names).to_pylist() == one_by_one.close().arrow(names).to_pylist()
    recorder = Recorder({"run": "r", "method": "m"})
    with pytest.raises(TraceError, match=r"column node_token cannot hold .*: 2 entries for 1"):
        recorder.extend({"cycle": [0], "node_token": ([5, 6], np.array([1]))}, 1)


def test_a_cycle_with_a_wrong_column_or_length_is_refused():
    def close(cycle):
        recorder = Recorder({"run": "r", "method": "m"})
        recorder.add({"cycle": 0, **cycle})
        recorder.close()

    with pytest.raises(TraceError, match="node_tokens"):
        close({"node_tokens": [1]})
    with pytest.raises(TraceError, match=r"2 of tail_token; tail_position requires 1"):
        close({"tail_position": [0], "tail_token": [1, 2]})
    with pytest.raises(TraceError, match=r"1 of node_parent; node_token requires 2"):
        close({"node_token": [1, 2], "node_parent": [-1]})
    with pytest.raises(TraceError, match="pred_top_token"):
        close({"pred_node": [-1], "pred_top_token": [1, 2], "top_k": 3})
    with pytest.raises(TraceError, match="column node_token cannot hold"):
        close({"node_token": ["a"]})
    with pytest.raises(TraceError, match="column node_token cannot hold"):
        close({"node_token": np.array([2**40])})
    for column, value in (("stop", "x" * 300), ("node_source", ["é" * 129])):
        with pytest.raises(TraceError, match=f"column '{column}' has words longer than 256 bytes"):
            close({column: value})


def test_record_none_keeps_the_text_alone(tmp_path):
    full = traces.build("bild", prompts=2)
    bare = traces.build("bild", prompts=2, record=None, path=tmp_path / "run.parquet")
    assert bare.texts == full.texts
    assert len(bare.nodes) == len(bare.passes) == 0
    assert bare.cycles["emitted"].sum() == full.cycles["emitted"].sum()


def test_an_empty_run_opens(tmp_path):
    trace = Recorder({"run": "r", "method": "m"}, tmp_path / "run.parquet").close(False, "nothing to do")
    assert len(trace.cycles) == len(trace.nodes) == len(trace.outputs) == 0
    assert trace.text == ""
    assert trace.run["complete"] is False
    assert trace.run["stopped"] == "nothing to do"


@pytest.mark.parametrize(
    "change",
    [{"pseudocode": [["draft", "x" * 257]]}, {"pseudocode": [["", "x"]] * 65}, {"prompts": [{"turn": "1"}]}],
)
def test_metadata_that_no_reader_accepts_is_refused_before_the_first_cycle(tmp_path, change):
    with pytest.raises(TraceError, match=rf"the run's metadata, {next(iter(change))}.* (long|not '1')"):
        Recorder(traces.metadata() | change, tmp_path / "run.parquet")
    assert not list(tmp_path.iterdir())


def test_prompts_that_no_file_holds_are_refused_or_stay_in_the_partial(tmp_path, monkeypatch):
    path, run = tmp_path / "run.parquet", traces.metadata()
    long = [{"tokens": [7] * 10_000}]
    traces.build(path=path)
    monkeypatch.setattr("specviz.trace.files.RUN_LIMIT", 20_000)
    with pytest.raises(TraceError, match="decode the prompts in several runs"):
        Recorder(run | {"prompts": long}, tmp_path / "long.parquet")
    recorder = Recorder(run | {"prompts": []}, tmp_path / "long.parquet", piece=traces.piece)
    for cycle in traces.cycles():
        recorder.add(cycle)
    recorder.run["prompts"] += long
    with pytest.raises(TraceError, match=r"cannot write .*several runs; the run is in .*partial, which can"):
        recorder.close()
    assert len(Trace.open(tmp_path / "_long.parquet.partial").cycles) == len(Trace.open(path).cycles)
    assert not (tmp_path / "long.parquet").exists()
    memory = Recorder(run | {"prompts": long}).close()
    with pytest.raises(TraceError, match="save parts of it"):
        memory.save(tmp_path / "long.parquet")


def test_a_late_prompt_that_no_reader_accepts_is_refused_when_it_is_written(tmp_path):
    for path in (None, tmp_path / "run.parquet"):
        recorder = Recorder(traces.metadata() | {"prompts": []}, path)
        recorder.run["prompts"].append({"reference": "x" * ((1 << 20) + 1)})
        for cycle in traces.cycles():
            recorder.add(cycle)
        with pytest.raises(TraceError, match=r"prompts\[0\]\.reference is too long") as refusal:
            recorder.close().save(tmp_path / "saved.parquet")
    assert "the run is in" in str(refusal.value) and "also be opened" not in str(refusal.value)
    assert not (tmp_path / "saved.parquet").exists()


def test_a_file_holds_its_metadata_once(tmp_path):
    path = tmp_path / "run.parquet"
    Recorder(traces.metadata() | {"prompts": [{"tokens": [7] * 50_000}]}, path).close()
    metadata = pq.read_metadata(path).metadata
    assert list(metadata) == [KEY] and len(metadata[KEY]) > 150_000
    assert pq.read_schema(path).metadata == metadata


def test_the_partial_stays_until_the_file_opens(tmp_path, monkeypatch):
    def broken(path):
        raise TraceError("damaged")

    recorder = Recorder(traces.metadata(), tmp_path / "run.parquet")
    monkeypatch.setattr("specviz.trace.trace.open_file", broken)
    with pytest.raises(TraceError, match=r"damaged; the run is in .*partial"):
        recorder.close()
    assert recorder.partial.exists()


def test_late_fields_are_saved(tmp_path):
    recorder = Recorder(traces.metadata(), tmp_path / "run.parquet")
    recorder.run["peak_memory"] = {"process": np.int64(17), "device": None}
    assert recorder.close().run["peak_memory"]["process"] == 17


# ------------------------------------------------------------ files that cannot be written


def test_an_existing_file_is_not_replaced_unless_forced(tmp_path):
    path = tmp_path / "run.parquet"
    traces.build("bild", path=path)
    before = path.read_bytes()
    with pytest.raises(TraceError, match="exists"):
        Recorder(traces.metadata(), path)
    assert path.read_bytes() == before
    recorder = Recorder(traces.metadata("tree"), path, force=True)
    assert path.read_bytes() == before  # the old run stays until the new one is whole
    recorder.close()
    assert Trace.open(path).run["method"] == "tree"


def test_a_cut_off_run_is_not_replaced(tmp_path):
    (tmp_path / "_run.parquet.partial").write_bytes(b"something")
    with pytest.raises(TraceError, match="interrupted run"):
        Recorder(traces.metadata(), tmp_path / "run.parquet")


def test_an_unwritable_folder_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write") as caught:
        Recorder(traces.metadata(), tmp_path / "file" / "run.parquet")
    assert "\n" not in str(caught.value)
    with pytest.raises(TraceError, match="must end in"):
        Recorder(traces.metadata(), tmp_path / "run.json")


FULL_DISK = """
    import resource, traces
    from pathlib import Path
    from specviz.errors import TraceError
    from specviz.trace import files, recorder as room
    room.BATCH = 20
    files.GROUP_BYTES = {group}
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))  # as on a full disk
    recorder = room.Recorder(traces.metadata("tree", prompts=20), Path(sys.argv[1]), piece=traces.piece)
    try:
        for cycle in traces.cycles("tree", prompts=20):
            recorder.add(cycle)
        if {shrink}:
            recorder.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        recorder.close()
    except TraceError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_full_disk_while_recording_keeps_what_was_written(tmp_path):
    path = tmp_path / "run.parquet"
    done = python(FULL_DISK.format(limit=400_000, group=1 << 20, shrink=False), str(path))
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert "cannot write" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["_run.parquet.partial"]
    trace = Trace.open(tmp_path / "_run.parquet.partial")
    assert len(trace.cycles) >= 20
    assert f"{len(trace.cycles)} cycles are in" in done.stdout
    assert trace.nodes.equals(traces.build("tree", prompts=20).nodes[: len(trace.nodes)])


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_full_disk_at_the_end_leaves_the_whole_run(tmp_path):
    path = tmp_path / "run.parquet"
    done = python(FULL_DISK.format(limit=10_000_000, group=1 << 20, shrink=True), str(path))
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["_run.parquet.partial"]
    trace = Trace.open(tmp_path / "_run.parquet.partial")
    assert len(trace.cycles) == len(traces.build("tree", prompts=20).cycles)


# ------------------------------------------------------------ cut-off runs


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_run_opens_to_its_last_whole_batch(tmp_path):
    path = tmp_path / "run.parquet"
    done = python(
        """
        import os, signal, traces
        from pathlib import Path
        from specviz.trace import recorder as room
        room.BATCH = 10
        recorder = room.Recorder(traces.metadata("tree", prompts=5), Path(sys.argv[1]), piece=traces.piece)
        prompts, recorder.run["prompts"] = recorder.run["prompts"], []
        for i, cycle in enumerate(traces.cycles("tree", prompts=5)):
            if not cycle["cycle"]:  # a loop may learn its prompts one by one
                recorder.run["prompts"].append(prompts[cycle["prompt"]])
            recorder.add(cycle)
            if i == 37:
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(path),
    )
    assert done.returncode == -signal.SIGKILL
    assert not path.exists()
    with pytest.raises(TraceError, match="interrupted run"):
        Trace.open(path)
    trace = Trace.open(tmp_path / ("_run.parquet" + PARTIAL))
    whole = traces.build("tree", prompts=5)
    assert len(trace.cycles) == 30
    assert trace.nodes.equals(whole.nodes[: len(trace.nodes)])
    assert whole.texts[0] == trace.texts[0]  # the pieces are there
    count = len(trace.prompts)
    assert 1 < count < 5
    assert trace.prompts.equals(whole.prompts[:count])
    assert trace.run["complete"] is False
    assert trace.run["stopped"] == "cut off"
    validate(trace)


def test_a_partial_cut_anywhere_opens_or_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("specviz.trace.recorder.BATCH", 5)
    recorder = Recorder(
        traces.metadata("speculative", prompts=3), tmp_path / "run.parquet", piece=traces.piece
    )
    for cycle in traces.cycles("speculative", prompts=3):
        recorder.add(cycle)
    whole = recorder.partial.read_bytes()
    cut = tmp_path / "cut.parquet.partial"
    counts = set()
    for size in range(0, len(whole), len(whole) // 40):
        cut.write_bytes(whole[:size])
        trace, complaint = opened(cut)
        assert trace or size < 10_000, complaint
        counts.add(len(trace.cycles) if trace else 0)
    assert {0, 5, 10} <= counts
    recorder.close()


# ------------------------------------------------------------ folders and other tools


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        traces.build(method, prompts=2, path=where / f"{method}.parquet")
    return where


def test_a_folder_is_one_trace(folder):
    trace = Trace.open(folder)
    parts = [Trace.open(folder / f"{m}.parquet") for m in sorted(METHODS)]
    assert trace.runs["method"].tolist() == sorted(METHODS)
    assert len(trace.nodes) == sum(len(p.nodes) for p in parts)
    assert trace.texts == [text for part in parts for text in part.texts]
    assert len(trace.summary()) == 4
    validate(trace)


def test_select(folder):
    trace = Trace.open(folder)
    bild = trace.select(method="bild")
    assert set(bild.cycles["method"]) == {"bild"}
    one = bild.select(prompt=1)
    alone = Trace.open(folder / "bild.parquet")
    assert set(one.cycles["prompt"]) == {1}
    assert one.text == alone.texts[1]
    assert one.outputs["kept"].all()
    assert one.prompts["prompt"].tolist() == [1]
    assert trace.select(run=["tree-0", "bild-0"], prompt=[0, 1]).runs["method"].tolist() == ["bild", "tree"]
    assert len(trace.select(method=["bild", "tree"]).split()) == 2
    with pytest.raises(TraceError, match="no such run"):
        trace.select(method="medusa")
    with pytest.raises(TraceError, match=r"no such prompt; there are 2 \(0 to 1\)"):
        trace.select(prompt=9)
    with pytest.raises(TraceError, match="holds 8 texts"):
        _ = trace.text
    with pytest.raises(TraceError, match="holds 4 runs"):
        _ = trace.run


def test_parts_keep_their_tables(folder):
    trace = Trace.open(folder)
    first = trace.split()
    first.pop(0).select(prompt=0)
    again = trace.split()
    assert [part.run["method"] for part in again] == sorted(METHODS)
    assert [part is other for part, other in zip(first, again[1:])] == [True] * 3
    for part, method in zip(again, sorted(METHODS)):
        alone = Trace.open(folder / f"{method}.parquet")
        assert part.cycles is part.split()[0].cycles and part.cycles.equals(alone.cycles)
        assert part.outputs.equals(alone.outputs)
    one = trace.select(prompt=1)
    assert [set(part.cycles["prompt"]) for part in one.split()] == [{1}] * 4
    assert one is one.select(prompt=[1]) is one.select(run=trace.runs["run"]) is not trace
    assert one.select(method="bild").runs["method"].tolist() == ["bild"]
    assert one.select(prompt=0).cycles.empty and trace.select(prompt=[0, 1]).cycles.equals(trace.cycles)


def test_a_run_that_goes_on_is_seen_by_us_and_passed_over_by_others(tmp_path):
    import dask.dataframe
    import pandas as pd

    whole = traces.build("bild", path=tmp_path / "traces/bild.parquet")
    recorder = Recorder(traces.metadata("tree"), tmp_path / "traces/tree.parquet", piece=traces.piece)
    for cycle in traces.cycles("tree"):
        recorder.add(cycle)
    recorder.flush()
    for read in (pd.read_parquet, dask.dataframe.read_parquet):
        assert len(read(tmp_path / "traces")) == len(whole.cycles)
    for folder in (tmp_path, tmp_path / "traces"):  # the folder of a demonstration holds them one down
        assert sorted(Trace.open(folder).runs["method"]) == ["bild", "tree"]
    recorder.close()


def test_pandas_duckdb_and_dask_read_a_folder_as_one_table(folder):
    import dask.dataframe
    import duckdb
    import pandas as pd

    cycles = Trace.open(folder).cycles
    expected = cycles.groupby("method", observed=True)["emitted"].sum().sort_index()

    def emitted(table: pd.DataFrame) -> pd.Series:
        count = table["out_token"].map(
            lambda tokens: len(tokens) if isinstance(tokens, np.ndarray | list) else 0
        )
        return count.groupby(table["method"].astype(str)).sum().sort_index()

    frames = [pd.read_parquet(folder), dask.dataframe.read_parquet(folder).compute()]
    frames.append(duckdb.sql(f"select * from '{folder}/*.parquet'").df())
    for frame in frames:
        assert list(frame.columns) == [c.name for c in schema.COLUMNS]
        assert emitted(frame).to_dict() == expected.to_dict()
    counted = duckdb.sql(
        f"""select method, count(*)
        from (select method, unnest(node_status) as status from '{folder}/*.parquet')
        where status = 'accepted' group by method"""
    ).fetchall()
    accepted = cycles.groupby("method", observed=True)["accepted"].sum()
    assert dict(counted) == {m: n for m, n in accepted.to_dict().items() if n}


def test_saving_and_opening_again(folder, tmp_path):
    trace = Trace.open(folder)
    trace.select(prompt=0).save(tmp_path / "all")
    again = Trace.open(tmp_path / "all")
    assert again.nodes.equals(trace.select(prompt=0).nodes)
    trace.select(method="bild").save(tmp_path / "one.parquet")
    assert Trace.open(tmp_path / "one.parquet").texts == trace.select(method="bild").texts
    with pytest.raises(TraceError, match="exists"):
        trace.select(method="bild").save(tmp_path / "one.parquet")
    with pytest.raises(TraceError, match="need a folder"):
        trace.save(tmp_path / "four.parquet")


def test_runs_of_any_names_have_files_of_their_own(tmp_path):
    names = ["甲", "乙", "exp a.1", "exp a_1", "exp_a_1", "EXP_A_1", "_hidden", ".hidden", "", "long" * 50]
    for number, name in enumerate(names):
        traces.build("bild", path=tmp_path / "runs" / f"{number}.parquet", run=name)
    Trace.open(tmp_path / "runs").save(tmp_path / "all")
    again = Trace.open(tmp_path / "all")
    assert sorted(again.runs["run"]) == sorted(names)
    files = [path.name for path in (tmp_path / "all").iterdir()]
    assert len({name.lower() for name in files}) == len(names)
    assert not any(name[0] in "._" for name in files)


def test_prompts_that_are_not_selected_are_not_written(tmp_path):
    prompts = traces.metadata(prompts=3)["prompts"]
    only = 500  # a token that occurs in one prompt alone
    prompts[0]["tokens"][0] = only
    recorder = Recorder(
        traces.metadata() | {"prompts": prompts}, tmp_path / "run.parquet", piece=traces.piece
    )
    for cycle in traces.cycles(prompts=3):
        recorder.add(cycle)
    one = recorder.close().select(prompt=1)
    again = Trace.open(one.save(tmp_path / "one.parquet"))
    assert again.prompts.equals(one.prompts) and again.prompts["prompt"].tolist() == [1]
    assert again.nodes.equals(one.nodes) and again.texts == one.texts
    assert again.summary().equals(one.summary()) and len(again.select(prompt=0).cycles) == 0
    assert again.run["prompts"][::2] == [{"selected": False}] * 2 and only not in again.pieces
    written = json.dumps(again.run)
    assert "q0" not in written and "q2" not in written and "q1" in written
    shared = one.redact()
    assert shared.prompts["prompt"].tolist() == [1] and shared.run["prompts"][0] == {"selected": False}
    again.save(tmp_path / "again.parquet")
    assert Trace.open(tmp_path / "again.parquet").run == again.run


def test_the_same_run_twice_is_refused(tmp_path):
    traces.build("bild", path=tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes())
    with pytest.raises(TraceError, match="same run"):
        Trace.open(tmp_path)


# ------------------------------------------------------------ text


def test_text_joins_tokens_until_characters_are_complete():
    cat, seat = "猫".encode(), "座".encode()
    shown = whole_characters(
        [(1, b"a"), (2, cat[:1]), (3, cat[1:2]), (4, cat[2:]), (5, seat[:2]), (6, seat[2:])]
    )
    assert shown == [("a", [1]), ("猫", [2, 3, 4]), ("座", [5, 6])]
    # A token can end one character and begin the next.
    assert whole_characters([(1, cat[:2]), (2, cat[2:] + seat[:1]), (3, seat[1:])]) == [("猫座", [1, 2, 3])]
    assert whole_characters([(1, b"\xff"), (2, b"a")]) == [("\ufffd", [1]), ("a", [2])]
    assert whole_characters([(1, cat[:2])]) == [("\ufffd", [1])]


@settings(max_examples=50, deadline=None)
@given(st.text(), st.randoms(use_true_random=False))
def test_however_a_text_is_cut_it_shows_whole(text, random):
    data = text.encode("utf8", "replace")
    cuts = sorted(random.randrange(len(data) + 1) for _ in range(5))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]
    shown = whole_characters(enumerate(pieces))
    assert "".join(t for t, _ in shown) == data.decode()
    assert [i for _, ids in shown for i in ids] == list(range(6))


def test_text_leaves_end_tokens_out_and_keeps_hostile_text_as_it_is():
    recorder = Recorder(traces.metadata(), piece=traces.piece)
    script = traces.PIECES.index(traces.HOSTILE[0])
    recorder.add({"cycle": 0, "out_token": [script, 2, traces.EOS], "out_position": [0, 1, 2]})
    trace = recorder.close()
    assert trace.text == traces.HOSTILE[0].decode() + " the"
    assert trace.tokens() == [(traces.HOSTILE[0].decode(), [script]), (" the", [2]), ("<eos>", [traces.EOS])]
    assert trace.outputs["text"].tolist()[1] == " the"
    assert trace.prompts["text"][0]


def test_keep_takes_tokens_back():
    recorder = Recorder(traces.metadata(), piece=traces.piece)
    for i, (keep, tokens) in enumerate([(0, [2, 3, 4]), (1, [5, 6]), (None, [7]), (2, [8])]):
        position = np.arange(len(tokens)) + (3 if keep is None else keep)
        recorder.add({"cycle": i, "keep": keep, "out_token": tokens, "out_position": position})
    trace = recorder.close()
    assert trace.outputs["token"][trace.outputs["kept"]].tolist() == [2, 5, 8]
    assert trace.text == "".join(traces.piece(i).decode() for i in (2, 5, 8))
    recorder = Recorder(traces.metadata())
    recorder.add({"cycle": 0, "keep": 1})
    with pytest.raises(TraceError, match="keeps 1 of 0"):
        _ = recorder.close().text


def test_pieces_of_bytes_that_are_no_text_show_in_the_tables():
    trace = traces.build("speculative", tokens=200)
    assert trace.nodes["text"].str.contains(r"\\x").any()
    assert trace.nodes["text"].notna().all()


# ------------------------------------------------------------ sharing


def test_redacting_drops_prompts_paths_and_machines(tmp_path):
    secret = {
        "model": {"name": "/home/ada/models/town", "parameters": 3},
        "tokenizer": "C:\\ada\\town",
        "machine": {"processor": "ada-pc", "device": "cpu", "system": "ada-host"},
        "parameters": {"length": 4, "store": "/home/ada/store.bin"},
        "run": "/home/ada/one",
        "calibration": {"parameter": "length", "value": 4, "device": "ada-pc, 2 threads"},
        "backend": {"name": "llama.cpp", "system": "ada", "threads": 2},
    }
    only = 500  # a token that occurs in a prompt alone
    prompts = traces.metadata(prompts=2)["prompts"]
    prompts[0]["tokens"][0] = only
    recorder = Recorder(
        traces.metadata() | secret | {"prompts": prompts}, tmp_path / "run.parquet", piece=traces.piece
    )
    for cycle in traces.cycles(prompts=2):
        recorder.add(cycle)
    trace = recorder.close()
    assert trace.pieces[only] == b" t500"
    assert trace.prompts["reference"].notna().all()
    shared = trace.redact()
    shared.save(tmp_path / "shared.parquet")
    shared = Trace.open(tmp_path / "shared.parquet")
    text = json.dumps(shared.run)
    for word in ("ada", "Katze", "secret", "q0"):
        assert word not in text, word
    assert all("tokens" not in p and "reference" not in p for p in shared.run["prompts"])
    assert shared.run["model"]["name"] == "town"
    assert shared.run["machine"] == {"device": "cpu"}
    assert shared.run["run"] == "one" and set(shared.cycles["run"]) == {"one"}
    assert shared.run["calibration"] == {"parameter": "length", "value": 4, "device": None}
    assert shared.run["backend"] == {"name": "llama.cpp", "threads": 2}
    assert shared.prompts["tokens"].tolist() == [7, 7]
    used = set(trace.nodes["token"]) | set(trace.outputs["token"])
    used |= set(trace.tops("pred")["token"]) | set(trace.tops("node")["token"])
    assert set(shared.pieces) == used
    assert shared.nodes.drop(columns="run").equals(trace.nodes.drop(columns="run"))
    assert shared.texts == trace.texts
    assert shared.redact().run == shared.run


def test_redacted_runs_have_names_of_their_own(tmp_path):
    for name in ("a", "b"):
        traces.build(path=tmp_path / f"{name}.parquet", run=f"{name}/one")
    shared = Trace.open(tmp_path).redact()
    assert list(shared.runs["run"]) == ["one", "one-2"] and set(shared.cycles["run"]) == {"one", "one-2"}
    shared.save(tmp_path / "shared")
    assert Trace.open(tmp_path / "shared").texts == shared.texts


# ------------------------------------------------------------ hostile files


def forge(path: Path, table: pa.Table | None = None, run: object = None, raw: bytes | None = None) -> Path:
    """A trace file with another table or other metadata."""
    whole = path.with_name("whole.parquet")
    if not whole.exists():
        traces.build("tree", path=whole)
    table = pq.read_table(whole) if table is None else table
    if run is None:
        run = json.loads(pq.read_schema(whole).metadata[KEY])
    text = json.dumps(run).encode() if raw is None else raw
    pq.write_table(table.replace_schema_metadata({KEY: text}), path)
    return path


def whole(tmp_path: Path) -> tuple[pa.Table, dict]:
    path = forge(tmp_path / "plain.parquet")
    return pq.read_table(path), json.loads(pq.read_schema(path).metadata[KEY])


def test_forging_itself_is_no_error(tmp_path):
    trace = Trace.open(forge(tmp_path / "run.parquet"))
    assert len(trace.nodes)


def test_a_missing_or_empty_place(tmp_path):
    with pytest.raises(TraceError, match="does not exist"):
        Trace.open(tmp_path / "none.parquet")
    with pytest.raises(TraceError, match="holds no traces"):
        Trace.open(tmp_path)


def test_a_truncated_file(tmp_path):
    path = forge(tmp_path / "run.parquet")
    data = path.read_bytes()
    for size in (0, 4, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(TraceError, match="complete Parquet file"):
            Trace.open(path)
    path.write_bytes(data[:-8] + b"\xff\xff\xff\x7fPAR1")
    with pytest.raises(TraceError, match="metadata is longer"):
        Trace.open(path)


def test_a_damaged_file_is_one_line(tmp_path):
    """Bytes turned over anywhere: a clear line, or a trace; never another exception."""
    path = forge(tmp_path / "run.parquet")
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 8):
            damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        _, complaint = opened(path)
        refused += bool(complaint)
        assert "\n" not in complaint
    assert refused > 10


def test_a_damaged_partial_is_one_line(tmp_path):
    recorder = Recorder(traces.metadata("tree"), tmp_path / "run.parquet", piece=traces.piece)
    for cycle in traces.cycles("tree"):
        recorder.add(cycle)
    recorder.flush()
    data = recorder.partial.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 8):
            damaged[at] ^= int(rng.integers(1, 256))
        recorder.partial.write_bytes(damaged)
        _, complaint = opened(recorder.partial)
        refused += bool(complaint)
        assert "\n" not in complaint
    assert refused > 10


def test_a_foreign_file(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
    with pytest.raises(TraceError, match="not a specviz trace"):
        Trace.open(tmp_path / "foreign.parquet")
    for name in ("replays-toys", "town-diffusion"):
        with pytest.raises(TraceError, match=r"is not a trace, but 'recorded .*specviz\.results"):
            Trace.open(Path(__file__).parents[1] / "data" / "runs" / f"{name}.parquet")
    (tmp_path / "text.parquet").write_text("hello, this is not a trace at all")
    with pytest.raises(TraceError, match="not a complete Parquet file"):
        Trace.open(tmp_path / "text.parquet")
    (tmp_path / "text.parquet.partial").write_text("hello, this is not a trace at all")
    with pytest.raises(TraceError, match="cannot be read"):
        Trace.open(tmp_path / "text.parquet.partial")


def test_an_older_version_s_words_are_read_as_today_s(tmp_path):
    """Schema 5 called what UniSpec's budget left out pruned or unsent, by its score."""
    trace = Trace.open(example("unispec"))
    file = trace.save(tmp_path / "new.parquet")
    table = pq.read_table(file)
    rows, old = table["node_status"].to_pylist(), {"below_budget": ["pruned", "unsent"]}
    rows = [
        None
        if row is None
        else [old.get(word, [word])[i % len(old.get(word, [word]))] for i, word in enumerate(row)]
        for row in rows
    ]
    run = json.loads(table.schema.metadata[b"specviz"]) | {"schema": 5}
    at = table.schema.get_field_index("node_status")
    table = table.set_column(at, "node_status", pa.array(rows, pa.list_(pa.string())))
    pq.write_table(table.replace_schema_metadata({b"specviz": json.dumps(run)}), tmp_path / "old.parquet")
    again = Trace.open(tmp_path / "old.parquet")
    assert again.nodes["status"].tolist() == trace.nodes["status"].tolist()
    assert "below_budget" in set(again.nodes["status"]) and again.run["schema"] == schema.VERSION
    assert again.recheck()["agrees"].all()
    assert again.save(tmp_path / "saved.parquet") and not {"pruned", "unsent"} & set(
        Trace.open(tmp_path / "saved.parquet").nodes["status"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": schema.VERSION + 1}, "newer specviz"),
        ({"schema": min(schema.OLDER) - 1}, "older specviz .*: record it again"),
        ({"schema": "1"}, "schema version"),
        ({"schema": True}, "schema version"),
        ({"run": None}, "metadata, run"),
        ({"method": 3}, "metadata, method"),
        ({"prompts": {"0": 1}}, "metadata, prompts"),
        ({"prompts": [{"tokens": [-1]}]}, "metadata, prompts"),
        ({"prompts": [{"tokens": [1], "kind": {"a": 1}}]}, "metadata, prompts"),
        ({"prompts": [{"tokens": [1], "reference": ["a", 3]}]}, "metadata, prompts"),
        ({"prompts": [{"tokens": [1], "segmented": 3}]}, "metadata, prompts"),
        ({"prompts": [{"tokens": [1], "length": "7"}]}, "metadata, prompts"),
        ({"prompts": [{"tokens": [1], "turn": "1"}]}, "metadata, prompts"),
        ({"pieces": {"1": "!!"}}, "metadata, pieces holds"),
        ({"pieces": {"x": "AA=="}}, "pieces"),
        ({"pieces": [1]}, "metadata, pieces"),
        ({"eos": ["1"]}, "metadata, eos"),
        ({"complete": "yes"}, "metadata, complete"),
        ({"threads": True}, "metadata, threads"),
        ({"model": {"name": ["x"]}}, "metadata, model"),
        ({"run": "another"}, "rows have a different run"),
        ({"tokenizer": "\ud800"}, "not JSON"),
    ],
)
def test_metadata_of_the_wrong_kind(tmp_path, change, message):
    _, run = whole(tmp_path)
    path = forge(tmp_path / "run.parquet", run=run | change)
    with pytest.raises(TraceError, match=message):
        everything(path)


@pytest.mark.parametrize("raw", [b"", b"nonsense", b"[1]", b"{" * 100_000, b"[" * 100_000, b"\xff"])
def test_metadata_that_is_no_object(tmp_path, raw):
    with pytest.raises(TraceError, match="metadata"):
        Trace.open(forge(tmp_path / "run.parquet", raw=raw))


def replaced(table: pa.Table, name: str, values: object) -> pa.Table:
    i = table.schema.get_field_index(name)
    array = (
        values
        if isinstance(values, pa.Array | pa.ChunkedArray)
        else pa.array(values, table.schema.field(i).type)
    )
    return table.set_column(i, pa.field(name, array.type), array)


def changed(table: pa.Table, name: str, change) -> pa.Table:
    return replaced(table, name, [change(v) for v in table.column(name).to_pylist()])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("node_parent", lambda v: v and [len(v)] * len(v), "before its child"),
        ("node_parent", lambda v: v and [-2] * len(v), "negative"),
        ("node_parent", lambda v: v and list(range(len(v))), "before its child"),
        ("node_parent", lambda v: v and v[:-1], "node_"),
        ("node_token", lambda v: v and [-5] * len(v), "negative"),
        ("node_token", lambda v: v and [None] * len(v), "empty"),
        ("node_status", lambda v: v and ["fine"] * len(v), "unknown word 'fine'"),
        ("node_source", lambda v: v and ["x" * 1000] * len(v), "longer than"),
        ("pred_node", lambda v: v and [99] * len(v), "does not exist"),
        ("out_origin", lambda v: v and ["<script>"] * len(v), "unknown word"),
        ("out_position", lambda v: v and [-1] * len(v), "negative"),
        ("tail_position", lambda v: [-1], "negative"),
        ("tail_token", lambda v: [None], "empty"),
        ("tail_token", lambda v: [-7], "negative"),
        ("prompt", lambda v: None, "empty cells"),
        ("prompt", lambda v: -1, "negative"),
        ("prompt", lambda v: 1, r"more prompts than the metadata \(1\)"),
        ("pass_rows", lambda v: v and [None] * len(v), "empty"),
        ("cycle", lambda v: -3, "negative"),
        ("keep", lambda v: -1, "negative"),
        ("keep", lambda v: 1_000_000, "keeps"),
        ("top_k", lambda v: 2_000_000_000, "top_k times|out of range"),
        ("top_k", lambda v: 0, "node_top_token|pred_top_token"),
        ("node_top_token", lambda v: v and v[:-1], "node_top_token"),
        ("end", lambda v: "boom", "unknown word"),
        ("method", lambda v: "other", "different method"),
    ],
)
def test_numbers_that_cannot_be(tmp_path, name, change, message):
    table, _ = whole(tmp_path)
    path = forge(tmp_path / "run.parquet", changed(table, name, change))
    with pytest.raises(TraceError, match=message):
        everything(path)


def test_columns_of_the_wrong_type(tmp_path):
    table, _ = whole(tmp_path)
    n = len(table)
    for name, values, message in [
        ("node_token", pa.array(["x"] * n), "node_token"),
        ("node_token", pa.array([[1.5]] * n), "node_token"),
        ("node_token", pa.array([[[1]]] * n), "node_token"),
        ("run", pa.array([{"a": 1}] * n), "run"),
        ("start", pa.array([1] * n), "start"),
    ]:
        with pytest.raises(TraceError, match=message):
            Trace.open(forge(tmp_path / "run.parquet", replaced(table, name, values)))
    with pytest.raises(TraceError, match="missing"):
        Trace.open(forge(tmp_path / "run.parquet", table.drop_columns(["out_u"])))
    twice = table.append_column("keep", table.column("keep"))
    with pytest.raises(TraceError, match="twice"):
        Trace.open(forge(tmp_path / "run.parquet", twice))


def test_extension_types_and_pickles_are_not_loaded(tmp_path):
    """pandas metadata and extension types can name code; neither is read."""
    table, run = whole(tmp_path)
    payload = base64.b64encode(b"cos\nsystem\n(S'touch pwned'\ntR.").decode()
    pandas = {
        "index_columns": [payload],
        "columns": [{"name": "run", "pandas_type": "object", "numpy_type": payload}],
    }
    field = table.schema.field("keep").with_metadata(
        {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": b"cos\nsystem\n."}
    )
    i = table.schema.get_field_index("keep")
    metadata = {KEY: json.dumps(run).encode(), b"pandas": json.dumps(pandas).encode()}
    forged = table.set_column(i, field, table.column("keep"))
    path = tmp_path / "run.parquet"
    pq.write_table(forged.replace_schema_metadata(metadata), path)
    opened(path)  # the column's storage is ours, so it may open
    assert list(Trace.open(tmp_path / "plain.parquet").cycles.index) == list(range(len(table)))
    uuid = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16] * len(table), pa.binary(16)))
    with pytest.raises(TraceError, match="keep"):
        Trace.open(forge(tmp_path / "run.parquet", replaced(table, "keep", uuid)))


def test_a_small_file_cannot_fill_the_memory(tmp_path):
    n = 1_000_000  # run-length coding makes a million equal rows a small file
    fixed = {"run": "tree-0", "method": "tree", "prompt": 0, "row": 0, "update": 0, "cycle": 0}
    columns = [pa.repeat(pa.scalar(fixed.get(f.name), f.type), n) for f in arrow_schema()]
    path = forge(tmp_path / "run.parquet", pa.table(columns, schema=arrow_schema()))
    assert path.stat().st_size < 300_000
    with pytest.raises(TraceError, match="in memory"):
        Trace.open(path)


def test_a_compressed_stream_is_refused(tmp_path):
    """Its buffers could claim any size."""
    table, run = whole(tmp_path)
    path = tmp_path / "_run.parquet.partial"
    for compression, fine in ((None, True), ("zstd", False), ("lz4", False)):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        names = table.schema.with_metadata({KEY: json.dumps(run).encode()})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, names, options=options) as stream:
            stream.write_table(table)
        if fine:
            assert len(Trace.open(path).cycles) == len(table)
        else:
            with pytest.raises(TraceError, match="compressed"):
                Trace.open(path)


def test_a_stream_whose_offsets_point_outside_is_not_read(tmp_path):
    recorder = Recorder(traces.metadata("tree"), tmp_path / "run.parquet", piece=traces.piece)
    for cycle in traces.cycles("tree"):
        recorder.add(cycle)
    recorder.flush()
    data = recorder.partial.read_bytes()
    n = len(Trace.open(recorder.partial).cycles)
    offsets = np.array([0, 0, *range(12, 12 * n, 12)], np.int32).tobytes()  # prefill, then 12 nodes a cycle
    assert n > 3
    assert data.count(offsets) > 5
    recorder.partial.write_bytes(data.replace(offsets, np.full(n + 1, 10**9, np.int32).tobytes()))
    assert len(Trace.open(recorder.partial).cycles) == 0


def test_an_empty_batch_whose_offset_points_outside_is_dropped(tmp_path):
    """Arrow's own validation lets it pass, and reading it would end the process."""
    recorder = Recorder(traces.metadata(), tmp_path / "run.parquet")
    data = recorder.partial.read_bytes()  # the header and an empty batch
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(data))
    body = [message.body.size if message.body else 0 for message in messages][-1]
    assert body > 0
    recorder.partial.write_bytes(data[:-body] + b"\x01" * body)
    done = python(
        """
        import test_trace
        from pathlib import Path
        print(len(test_trace.everything(Path(sys.argv[1])).cycles))
        """,
        str(recorder.partial),
    )
    assert done.stdout == "0\n", done.stderr


def test_absurd_depth_is_no_problem():
    n = 200_000
    recorder = Recorder(traces.metadata())
    recorder.add({"cycle": 1, "node_token": np.zeros(n, np.int64), "node_parent": np.arange(-1, n - 1)})
    assert recorder.close().nodes["depth"].iloc[-1] == n


# ------------------------------------------------------------ identities


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_synthetic_traces_fulfil_the_identities(method, seed):
    validate(traces.build(method, prompts=3, seed=seed, temperature=float(seed % 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["node_status"].__setitem__(slice(None), ["accepted"] * len(c["node_status"])), "parent"),
        (lambda c: c.update(out_origin=["bonus"] * len(c["out_token"])), "differ in number"),
        (lambda c: c.update(out_position=np.asarray(c["out_position"]) * 2 + c["keep"] * -1), "gaps|keep"),
        (lambda c: c.update(out_position=np.asarray(c["out_position"]) + 1), "'keep' ends"),
        (lambda c: c.update(cycle=c["cycle"] + 1000), "previous cycle is missing"),
        (
            lambda c: c.update(tail_position=[c["keep"] + 99], tail_token=[2]),
            "a tail is at a token that was not emitted",
        ),
    ],
)
def test_validate_finds_what_does_not_add_up(change, message):
    cycles = traces.cycles("tree", tokens=60)
    victim = next(c for c in cycles[1:] if len(c["out_token"]) > 2)
    change(victim)
    recorder = Recorder(traces.metadata("tree"))
    for cycle in cycles:
        recorder.add(cycle)
    with pytest.raises(TraceError, match=message):
        validate(recorder.close())


def test_the_schema_has_one_meaning_a_column():
    names = [c.name for c in schema.COLUMNS]
    assert len(names) == len(set(names)) == len(arrow_schema())
    assert set(schema.FLAT) <= set(names)
    assert set(metadata.Run.__annotations__) == set(schema.RUN_FIELDS)


def test_select_takes_an_iterator():
    trace = traces.build("speculative")
    assert trace.select(prompt=iter([0])).texts == trace.select(prompt=[0]).texts
