"""Trade-off curves: what is drawn is what the table holds."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from ribbons import FLICKERS, stream

from specviz import view
from specviz.errors import TraceError
from specviz.view.tradeoff import APART, CD, RT, label
from traces import build


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def around(value):
    return SimpleNamespace(median=value, low=value - 0.1, high=value + 0.1)


NE = {
    RT: 1.7,
    "β = 0": 1.5,
    "β = 1": 0.0,
    "β = 0.2": 1.0,
    CD: 0.0,
    "mask-3": 0.5,
    "mask-5": 0.3,
    "display-3": 0.6,
}


@pytest.fixture
def results():
    rows = [{"method": m, "language": c, "ne": around(v + d), "ad": None if m == RT else 0.5}
            for c, d in (("de", 0.0), ("ja", 1.0)) for m, v in NE.items()]  # fmt: skip
    return pd.DataFrame(rows)


def test_the_bias_by_beta(results):
    ax = view.bias(results)
    lines = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    assert set(lines) == {"de", "ja"}
    assert lines["ja"].get_xdata().tolist() == [0, 0.2, 1], "in order of β, whatever the table's"
    assert np.allclose(lines["ja"].get_ydata(), [2.5, 2.0, 1.0])
    alone = sorted(
        (float(x), float(y))
        for line in ax.lines
        for x, y in [(line.get_xdata()[0], line.get_ydata()[0])]
        if len(line.get_xdata()) == 1
    )
    assert np.allclose(alone, [(-APART, 1.7), (-APART, 2.7), (1 + APART, 0), (1 + APART, 1)])
    with pytest.raises(TraceError, match="no setting in the table has a β"):
        view.bias(results, "speedup")


def test_the_masks_by_k(results):
    ax = view.masks(results[results["language"] == "de"])
    drawn = {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in ax.lines}
    assert drawn == {
        "mask-k (draft and display)": ([0, 3, 5], [1.0, 0.5, 0.3]),
        "display-only mask-k": ([0, 3], [1.0, 0.6]),
    }
    with pytest.raises(TraceError, match="mask"):
        view.masks(results[results["method"] == RT])


def test_by_language(results):
    ax = view.by_language(results)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["de", "ja"]
    assert np.allclose([bar.get_height() for bar in ax.patches], [1.7, 2.7, 1.0, 2.0, 0.0, 1.0])
    assert view.by_language(results, ax=ax) is ax
    with pytest.raises(TraceError, match="none of AR"):
        view.by_language(results, methods=("AR",))


def test_what_an_update_costs():
    ax = view.update_costs({"mine": stream(FLICKERS)})
    dots, line = ax.lines
    assert np.allclose(dots.get_ydata(), [10 + 5 * 4, 10 + 5 * 4, 10 + 5, 10 + 5]), (
        "milliseconds, prompt inside"
    )
    assert line.get_label() == "mine"
    bare = view.update_costs(stream(FLICKERS), prefill=False)
    assert np.allclose(bare.lines[0].get_ydata(), [20, 20, 5, 5])
    with pytest.raises(TraceError, match="no updates"):
        view.update_costs(build("bild", tokens=8))


def test_settings_have_the_paper_s_names():
    runs = [stream(FLICKERS, mode="rt"), stream(FLICKERS, mode="cd"), stream(FLICKERS, beta=0.5)]
    runs += [stream(FLICKERS, k=3), stream(FLICKERS, k=3, mask="draft")]
    assert [label(run.run) for run in runs] == [RT, CD, "β = 0.5", "display-3", "mask-3"]


def test_a_table_of_traces():
    pytest.importorskip("sacrebleu")
    rt, ssbd = stream(FLICKERS, mode="rt"), stream(FLICKERS)
    table = view.trade_offs([rt, ssbd]).set_index("method")
    assert table.loc[RT, "ne"].median == table.loc["β = 0.2", "ne"].median == 2.0
    assert table.loc[RT, "ad"] is None and table.loc["β = 0.2", "ad"].median == 5 / 9
    assert table.loc["β = 0.2", "speedup"].median > 1 and table.loc[RT, "speedup"].median == 1
    assert view.bias(view.trade_offs([rt, ssbd]), "ne").lines


@pytest.fixture
def points():
    rows = [(0.5, 1.0, 30.0, 1.0), (0.9, 1.0, 31.0, 0.8), (0.5, 4.0, 29.0, 1.6), (0.9, 4.0, 28.0, 1.2)]
    table = pd.DataFrame(rows, columns=["fallback", "rollback", "quality", "speed"])
    base = pd.DataFrame({"quality": [31.5], "speed": [1.0], "base": [True]})
    return pd.concat([base, table.assign(base=False)], ignore_index=True)


def test_a_sweep_is_curves_a_base_and_a_front(points):
    ax = view.sweep(points)
    x, y = (np.concatenate([dots.get_offsets()[:, i] for dots in ax.collections]) for i in (0, 1))
    assert sorted(zip(x, y)) == sorted(zip(points["speed"][1:], points["quality"][1:]))
    assert [dots.get_label() for dots in ax.collections] == ["rollback 1", "rollback 4"]
    small, large = ax.collections[0].get_sizes()
    assert small < large, "in order of fallback, a larger one with a larger mark"
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["Pareto front"].get_xydata().tolist() == [[1.0, 31.5], [1.6, 29.0]]
    assert lines["base"].get_xydata().tolist() == [[1.0, 31.5]]
    assert view.sweep(points, ax=ax) is ax
    with pytest.raises(TraceError, match="no column 'lambda'"):
        view.sweep(points, curve="lambda")


def test_points_that_can_be_opened(points, tmp_path):
    pytest.importorskip("plotly")
    from specviz.view import interactive

    file = build("bild", tokens=10).save(tmp_path / "one.parquet")
    points["trace"] = ["", str(file), "", "", ""]
    bare = interactive.sweep(points)
    said = [text for part in bare.figure.data if part.text is not None for text in part.text]
    assert len(said) == 5 and any(str(file) in text for text in said), "without pages it names the file"
    made = interactive.sweep(points, pages=tmp_path / "pages")
    links = {link for part in made.figure.data if part.customdata is not None for link in part.customdata}
    assert links == {None, (tmp_path / "pages/point-1.html").as_posix()}
    assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == ["index.html", "point-1.html"]
    with pytest.raises(TraceError, match="exists"):
        interactive.sweep(points, pages=tmp_path / "pages")
    assert "plotly_click" in made._repr_html_()


def test_the_loop_to_point_at():
    pytest.importorskip("plotly")
    from specviz.view import interactive

    trace = build("cm_asd", tokens=60, seed=2)
    figure = interactive.control_loop(trace).figure
    dots = [part for part in figure.data if part.type == "scatter" and part.text is not None]
    assert sum(len(part.x) for part in dots if part.yaxis == "y") == len(trace.nodes)
    said = " ".join(text for part in dots for text in part.text)
    assert "≤ τ_t" in said and "> τ_t" in said and "<img" not in said and "&lt;/script" in said
