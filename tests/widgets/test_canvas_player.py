"""The canvas data that is sent to the player and the race."""

from __future__ import annotations

import numpy as np
import pytest

import traces

pytest.importorskip("torch", reason="needs the run extra")
pytest.importorskip("anywidget", reason="needs the lab extra")
from canvas_traces import build

import specviz as sv
from specviz.errors import TraceError
from specviz.widgets import assets
from specviz.widgets.columns import Chunks, columns
from specviz.widgets.player import CanvasPlayer


def test_cells_order_and_odds_are_sent():
    trace = build("ssd", prompts=2, tree="mix", cache="dual")
    header, arrays = columns(trace)
    outputs = trace.outputs
    assert header["canvas"]["length"] == 24 and header["canvas"]["cache"] == "dual"
    assert arrays["out_position"].tolist() == outputs["position"].tolist()
    assert arrays["out_order"].tolist() == outputs["order"].tolist()
    np.testing.assert_allclose(arrays["out_odds"], outputs["odds"], rtol=1e-6)
    assert arrays["node_position"].tolist() == trace.nodes["position"].tolist()
    cycles = trace.cycles
    later = (cycles["cycle"] > 0).to_numpy()
    assert arrays["block"][later].tolist() == cycles["block"][later].tolist()
    assert (arrays["refreshed"][later] == cycles["refreshed"][later].astype(int)).all()
    assert "score" not in [row[0] for row in header["signals"]]  # log-odds do not fit a lane that starts at 0
    # a cell shows its own token; nothing is taken back
    assert (arrays["out_gone"] == -1).all() and (arrays["out_by"] == np.arange(len(outputs))).all()
    chunk = Chunks(trace)[0][1]
    told = trace.arrow(["pred_position", "pred_odds"]).to_pydict()
    assert chunk["pred_position"].tolist() == [c for row in told["pred_position"] for c in row or ()]
    flat = [x for row in told["pred_odds"] for x in row or ()]
    np.testing.assert_allclose(chunk["pred_odds"], flat, rtol=1e-6)


def test_only_such_traces_get_the_canvas_files(tmp_path):
    assert isinstance(sv.player(build("ssd")), CanvasPlayer)
    assert not isinstance(sv.player(traces.build("speculative")), CanvasPlayer)
    with_canvas = build("ssd").to_html(tmp_path / "a.html").read_text(encoding="utf8")
    without = traces.build("speculative").to_html(tmp_path / "b.html").read_text(encoding="utf8")
    assert "class CanvasLane" in with_canvas and "CanvasLane" not in without
    for name in assets.ADDED:
        own = assets.text(f"{name}.js") + assets.text(f"{name}.css")
        assert len(own.encode()) < 20_000
        assert assets.script("player") in assets.script(name)  # the race includes the player's script


def test_canvases_race_in_the_order_of_placing():
    runs = [build(name) for name in ("stepwise", "ssd")]
    race = sv.race(runs)
    (field,) = race.fields
    assert field.filled and any("fill canvases" in note for note in field.notes)
    for lane, run in zip(field.lanes, runs):
        assert lane.tokens["position"].tolist() == list(range(24))
        assert lane.tokens["cell"].tolist() == run.outputs["position"].tolist()
        assert lane.parts == -1
    assert "order of placing" in str(race.data) or b"order of placing" in race.data
    with pytest.raises(TraceError, match="no common order"):
        sv.race([runs[0], traces.build("speculative")])


def test_lanes_that_say_the_same_in_another_order_do_not_part():
    from dataclasses import replace

    from specviz.widgets.lanes import _parted

    base, other = sv.race([build("stepwise"), build("ssd")]).fields[0].lanes
    shuffled = {name: values[::-1] for name, values in other.tokens.items()}
    assert _parted(replace(other, tokens=shuffled), base).parts == -1
    wrong = other.tokens | {"id": np.append(other.tokens["id"][:-1], 999)}
    assert _parted(replace(other, tokens=wrong), base).parts == 23
