"""Custom signals of a method: recorded, described in the file, shown, plotted and rated, declared or not."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import specviz as sv
import traces
from specviz import metrics, schema, view
from specviz.draft import Draft
from specviz.errors import ParameterError, TraceError
from specviz.schema import Signal
from specviz.trace import Recorder, Trace

AGE = Signal("age", "tokens", "How far back the copied token stands.")
HITS = Signal("hits", "texts", "Places where the last token stood before.", "cycle")


def recorded(path: Path | None = None, close: bool = True, **more: object) -> Trace:
    """A run whose nodes have ``age`` (declared, negative too) and, in odd cycles, ``luck`` (not declared)."""
    run = traces.metadata("tree", prompts=2) | {"signals": schema.as_metadata((AGE, HITS))} | more
    recorder = Recorder(run, path, piece=traces.piece)
    for cycle in traces.cycles("tree", prompts=2, hostile=False):
        if nodes := len(cycle.get("node_token", ())):
            cycle |= {
                "signal:age": np.arange(nodes) - 2.0,
                "control_name": ["hits"],
                "control_value": [nodes],
            }
            if cycle["cycle"] % 2:
                cycle["signal:luck"] = np.where(np.arange(nodes) > 0, 0.5, np.nan)
        recorder.add(cycle)
    if close:
        return recorder.close()
    recorder.flush()
    return sv.open(recorder.partial)


def check(trace: Trace) -> None:
    nodes = trace.nodes
    nodes = nodes[nodes["run"] == "tree-0"]
    assert np.array_equal(nodes["age"], nodes["node"] - 2)
    odd = (nodes["cycle"] % 2 == 1) & (nodes["node"] > 0)
    assert (nodes.loc[odd, "luck"] == 0.5).all() and nodes.loc[~odd, "luck"].isna().all()
    about = trace.signals.set_index("signal")
    assert about.loc["age"].tolist() == ["tree-0", "node", "tokens", AGE.meaning]
    assert about.loc["hits"].tolist() == ["tree-0", "cycle", "texts", HITS.meaning]
    assert about.loc["luck"].tolist() == ["tree-0", "node", "", ""]


def test_signals_survive_the_file_beside_other_methods(tmp_path):
    recorded(tmp_path / "own.parquet")
    check(sv.open(tmp_path / "own.parquet"))
    traces.build("bild", path=tmp_path / "bild.parquet")
    both = sv.open(tmp_path)
    check(both)
    assert both.nodes.loc[both.nodes["method"] == "bild", ["age", "luck"]].isna().all().all()
    both.save(tmp_path / "copies")
    check(sv.open(tmp_path / "copies"))
    check(both.redact())


def test_a_run_that_was_cut_off_keeps_its_signals(tmp_path):
    check(recorded(tmp_path / "own.parquet", close=False))


def test_a_file_from_before_the_signals_opens(tmp_path):
    trace = traces.build("bild", path=tmp_path / "new.parquet")
    table = pq.read_table(tmp_path / "new.parquet")
    run = json.loads(table.schema.metadata[b"specviz"])
    del run["signals"]
    old = table.drop_columns(list(schema.ADDED)).replace_schema_metadata(
        {b"specviz": json.dumps(run).encode()}
    )
    pq.write_table(old, tmp_path / "old.parquet")
    opened = sv.open(tmp_path / "old.parquet")
    assert opened.nodes.equals(trace.nodes) and opened.texts == trace.texts
    assert "window" in set(opened.signals["signal"]), "a controller's value is a signal of the cycle"
    (tmp_path / "new.parquet").unlink()
    recorded(tmp_path / "own.parquet")
    check(sv.open(tmp_path))


@pytest.mark.parametrize("name", ["token", "node_age", "q", "a b", "", "x" * 65])
def test_a_name_that_cannot_be_a_signal_s(name):
    if name not in ("node_age", "q"):
        with pytest.raises(ParameterError, match="cannot be called"):
            Signal(name)
        with pytest.raises(ParameterError, match="cannot be called"):
            Draft.chain(np.zeros(2, int), signals={name: [1, 2]})
    recorder = Recorder({"run": "r", "method": "m"})
    recorder.add({"cycle": 1, f"signal {name}": [1.0]})
    with pytest.raises(TraceError, match="no columns"):
        recorder.close()


def test_a_signal_of_another_length_is_refused_where_the_draft_is_made():
    with pytest.raises(ParameterError, match="'age' has 3 values for 2 nodes"):
        Draft.chain(np.zeros(2, int), signals={"age": [1, 2, 3]})
    with pytest.raises(ParameterError, match="level is 'node' or 'cycle'"):
        Signal("age", level="text")


@pytest.mark.parametrize("words", [{"unit": "x" * 257}, {"meaning": "x" * 257}, {"meaning": 3}])
def test_a_description_that_no_record_holds_is_refused_where_it_is_declared(words):
    with pytest.raises(ParameterError, match=r"'age': (unit|meaning) is a text of at most 256 characters"):
        Signal("age", **words)


def test_more_signals_than_a_trace_holds_are_refused_while_it_is_recorded(tmp_path, monkeypatch, capsys):
    names = [f"s{i}" for i in range(65)]
    controls = [{"control_name": [n], "control_value": [1.0]} for n in names]
    for level, cycles in (
        ("node", [{"node_token": [1], f"signal:{n}": [1.0]} for n in names]),
        ("cycle", controls),
    ):
        recorder = Recorder({"run": "r", "method": "m"})
        for number, cycle in enumerate(cycles[:64], 1):
            recorder.add({"cycle": number, **cycle})
        recorder.flush()
        recorder.add({"cycle": 65, **cycles[64]})
        with pytest.raises(TraceError, match=f"at most 64 {level} signals"):
            recorder.flush()
        saved = pa.Table.from_batches(recorder._batches)
        resumed = Recorder({"run": "r", "method": "m"}, tmp_path / "a.parquet", saved=saved, force=True)
        resumed.add({"cycle": 64, **cycles[63]})
        resumed.flush()
        resumed.add({"cycle": 65, **cycles[64]})
        with pytest.raises(TraceError, match=f"at most 64 {level} signals"):
            resumed.close()
        text = Recorder({"run": "r", "method": "m"}, record=None)
        for number, cycle in enumerate(cycles, 1):
            text.add({"cycle": number, **cycle})
        assert len(text.close().cycles) == 65, "without a record there are no signals to count"
    monkeypatch.setattr("specviz.trace.recorder.DISTINCT", 100)
    recorder = Recorder({"run": "r", "method": "m"}, tmp_path / "r.parquet")
    for number, cycle in enumerate(controls):
        recorder.add({"cycle": number, **cycle})
    trace = recorder.close()
    for again in (trace, Trace.open(tmp_path / "r.parquet")):
        assert (
            sum(name.startswith("control_") for name in again.cycles) == 64 and "control_s0" in again.cycles
        )
    assert capsys.readouterr().err.count("more than 64 signals of its cycles") == 1


@pytest.mark.parametrize("name", ["token", "confidence", "<b>", "x" * 65, "a.b"])
def test_a_file_whose_signals_are_called_like_columns_is_refused(tmp_path, name):
    recorded(tmp_path / "own.parquet")
    table = pq.read_table(tmp_path / "own.parquet")
    at = table.schema.get_field_index("signal_name")
    names = [[name for _ in row] if row else row for row in table.column(at).to_pylist()]
    pq.write_table(
        table.set_column(at, "signal_name", pa.array(names, pa.list_(pa.string()))), tmp_path / "b.parquet"
    )
    with pytest.raises(TraceError, match="cannot be called"):
        _ = sv.open(tmp_path / "b.parquet").nodes


def test_a_file_with_too_few_values_or_wrong_declarations_is_refused(tmp_path):
    recorder = Recorder({"run": "r", "method": "m"})
    recorder.add({"cycle": 1, "node_token": [1, 2], "signal_name": ["age"], "signal_value": [1.0]})
    with pytest.raises(TraceError, match="1 of signal_value; its nodes and names require 2"):
        recorder.close()
    plain = {"name": "age", "unit": "", "meaning": "", "level": "node"}
    wrongs = (3, {"name": "age"}, plain | {"name": "token"}, plain | {"unit": "x" * 300})
    for i, wrong in enumerate(wrongs):
        with pytest.raises(TraceError, match="signals"):
            recorded(tmp_path / f"{i}.parquet", signals=[wrong])


def test_metrics_rate_the_signals(monkeypatch):
    trace = recorded()
    table = metrics.signals(trace)
    judged = trace.nodes[trace.nodes["status"].isin(["accepted", "rejected"])]
    assert np.array_equal(table["age"], judged["node"] - 2)
    rated = metrics.auroc(table).set_index("signal")
    expected = metrics.area_under_roc(table["age"], table["accepted"]).median
    assert rated.loc["age", "auroc"] == pytest.approx(expected) and np.isnan(rated.loc["age", "ece"])
    assert np.isfinite(rated.loc["confidence", "ece"])
    curve = metrics.calibration_curve(table, bins=4).query("signal == 'age'")
    assert curve["low"].min() >= table["age"].min() and curve["high"].max() <= table["age"].max()
    assert curve["counted"].sum() == len(table)
    assert metrics.auroc(table, than="age").set_index("signal").loc["age", "gain"] == 0
    module, groups = sys.modules["specviz.metrics.signals"], []  # the package has a function of that name
    area = module._area
    monkeypatch.setattr(module, "_area", lambda s, r, g, n, m: groups.append(n) or area(s, r, g, n, m))
    about = metrics.signal_summary(trace).set_index("signal")
    assert set(groups) == {1}  # groups need quadratic memory, and no interval is wanted
    assert about.loc["age", ["unit", "low", "high"]].tolist() == ["tokens", -2, 9]
    assert about.loc["age", "auroc"] == pytest.approx(expected)
    assert about.loc["hits", "counted"] == (trace.cycles["cycle"] > 0).sum()
    plain = metrics.signals(traces.build("cm_asd"))
    assert list(plain) == ["run", "prompt", "text", "cycle", "node", *metrics.signals.__globals__["SIGNALS"],
                           "accepted", "first", "gap", "threshold"]  # fmt: skip


def test_signals_are_plotted():
    import matplotlib.pyplot as plt

    trace = recorded()
    ax = view.signal_lanes(trace)
    assert [panel.get_ylabel() for panel in ax.child_axes] == ["age, tokens", "luck", "hits, texts"]
    assert ax.child_axes[0].get_title(loc="left") == AGE.meaning
    line = ax.child_axes[2].lines[0]
    cycles = trace.select(prompt=0).cycles
    assert np.array_equal(line.get_ydata(), cycles.loc[cycles["cycle"] > 0, "control_hits"])
    assert len(view.signal_lanes(trace, "age").child_axes) == 1
    empty = trace.nodes.assign(at=1, x=1.0, luck=np.nan)
    view.signals._lane(Signal("luck"), empty, cycles, panel := plt.figure().subplots())
    assert panel.texts[0].get_text() == "not recorded"
    one = view.signal_lanes(trace, "hits", most=1).child_axes[0]
    assert "more cycles are in the trace" in one.get_xlabel()
    assert one.lines[0].get_marker() == ".", "one cycle has no line"
    one.figure.canvas.draw()
    assert all(float(tick).is_integer() for tick in one.get_xticks())
    with pytest.raises(ParameterError, match="no signal 'tokens'; there is age, luck, hits"):
        view.signal_lanes(trace, "tokens")
    ax = view.reliability(trace, ["age", "confidence"])
    assert any(
        "age" in text.get_text() and "from -2 to 9" in text.get_text() for text in ax.get_legend().texts
    )
    assert "age" in {label.get_text() for label in view.auroc(trace).get_yticklabels()}
    assert view.signal_lanes(traces.build("autoregressive"), []).child_axes
    plt.close("all")


def test_static_pictures_say_a_node_s_own_signals():
    assert "age -1 tokens" in view.html(recorded())


def test_the_player_gets_lanes_and_values(tmp_path):
    pytest.importorskip("anywidget", reason="needs the lab extra")
    from specviz.widgets.columns import Chunks, columns

    trace = recorded()
    header, arrays = columns(trace)
    rows = {row[0]: row for row in header["signals"]}
    assert rows["own_age"][1:] == ("age, tokens", AGE.meaning, -2.0, 9.0)
    assert rows["own_luck"][1:] == ("luck", "", 0.0, 0.5)
    assert header["controls"] == [("control_hits", "hits, texts", HITS.meaning, 0.0, 12.0)]
    assert "control_hits" in arrays
    ages = np.concatenate([chunk[1]["node_own_age"] for chunk in Chunks(trace)])
    assert np.array_equal(ages, trace.nodes["age"].astype(np.float32))
    own = recorded(signals=schema.as_metadata((Signal("confidence", "votes", "Votes <b>."),)))
    assert {row[0]: row for row in columns(own)[0]["signals"]}["confidence"][1:3] == (
        "confidence, votes",
        "Votes <b>.",
    )
    page = trace.to_html(tmp_path / "page.html").read_text(encoding="utf8")
    shutil.rmtree(tmp_path)
    assert len(page) > 1000
