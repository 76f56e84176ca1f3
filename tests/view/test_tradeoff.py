"""Trade-off curves draw the table's values."""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest

from specviz import view
from specviz.errors import TraceError
from traces import build


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


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


def test_a_sweep_of_a_base_alone_or_without_sizes(points):
    alone = view.sweep(points[points["base"]])
    assert [line.get_label() for line in alone.lines if line.get_label()[0] != "_"] == [
        "Pareto front",
        "base",
    ]
    marks = view.sweep(points.assign(fallback=np.nan)).collections
    assert len({size for dots in marks for size in dots.get_sizes()}) == 1


def test_a_line_below_the_base_does_not_squeeze_the_points(points):
    assert "1 below" in [text.get_text() for text in view.sweep(points).texts]
    accuracy = points.assign(quality=points["quality"] / 100)
    ax = view.sweep(pd.concat([accuracy[:1], accuracy], ignore_index=True))
    assert not ax.texts and ax.get_ylim()[0] > 0.27
    assert [text.get_text() for text in ax.get_legend().texts].count("base") == 1
    pytest.importorskip("plotly")
    from specviz.view import interactive

    made = interactive.sweep(pd.concat([accuracy[:1], accuracy], ignore_index=True)).figure
    assert len(made.layout.shapes) == 2, "a line for each base, and none below them"
    assert sum(part.name == "base" and part.showlegend for part in made.data) == 1


def test_points_that_can_be_opened(points, tmp_path):
    pytest.importorskip("plotly")
    from specviz.view import interactive

    file = build("bild", tokens=10).save(tmp_path / "one.parquet")
    points["trace"] = ["", str(file), "", build("bild", tokens=10, seed=2), None]
    bare = interactive.sweep(points)
    said = [text for part in bare.figure.data if part.text is not None for text in part.text]
    assert len(said) == 5 and any(str(file) in text for text in said), "without pages it names the file"
    made = interactive.sweep(points, pages=tmp_path / "pages")
    links = {link for part in made.figure.data if part.customdata is not None for link in part.customdata}
    assert links == {None, *((tmp_path / f"pages/point-{i}.html").as_posix() for i in (1, 3))}
    assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == [
        "index.html",
        "point-1.html",
        "point-3.html",
    ]
    with pytest.raises(TraceError, match="exists"):
        interactive.sweep(points, pages=tmp_path / "pages")
    assert "plotly_click" in made._repr_html_()
