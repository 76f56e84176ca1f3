"""Views of calibrations draw the record's values."""

from __future__ import annotations

import copy

import matplotlib
import numpy as np
import pytest

from specviz import view
from specviz.calibration import Calibration, Fit, Point
from specviz.errors import ParameterError, SpecvizError

matplotlib.use("agg")


@pytest.fixture
def found():
    sizes = [1, 2, 4, 8]
    points = [Point(g, [20], [20 // (1 + i)], [[0.02 + 0.01 * i]] * 2) for i, g in enumerate(sizes)]
    setting = {
        "method": "unispec",
        "model": {"name": "town"},
        "device": "CPU",
        "threads": 2,
        "dtype": "float32",
    }
    curve = np.linspace(0.001, 0.01, 8)
    fits = {
        "paper": Fit(7, (curve - 0.009).tolist(), np.linspace(1, 4, 8).tolist()),
        "monotone": Fit(4, curve.tolist(), np.linspace(1, 4, 8).tolist()),
    }
    return Calibration(setting, "draft_size", {}, points, fits, "monotone", spent=3.0)


def test_curves(found):
    g, tau, s, _, _ = found.measured()
    for what, expected in (("tau", tau), ("speed", tau / s)):
        ax = view.curve(found, what)
        assert np.allclose(ax.lines[0].get_ydata(), expected)
        assert np.allclose(ax.lines[0].get_xdata(), g)
    assert {t.get_text() for t in ax.texts} == {"g* = 7", "g* = 4"}
    agreed = copy.deepcopy(found)
    agreed.fits["paper"] = agreed.fits["monotone"]
    (_, above), (_, below) = (text.get_position() for text in view.curve(agreed).texts)
    assert below < 0 < above, "the labels of fits that agree do not overprint each other"
    low, high = ax.get_ylim()
    assert 0 <= low < high < 2 * (tau / s).max()  # an oscillating fit does not hide the points
    words = [t.get_text() for t in view.curve(found, "s").get_legend().get_texts()]
    assert any("from −8 to 1" in word for word in words)
    with pytest.raises(ParameterError, match="no fit 'best'"):
        view.curve(found, fits=["best"])
    with pytest.raises(ParameterError, match="what must be"):
        view.curve(found, "time")
    assert view.calibration_png(found)[:4] == b"\x89PNG"


def test_a_curve_to_point_at(found, tmp_path):
    pytest.importorskip("plotly")
    from specviz.view import interactive
    from traces import build

    bare = interactive.curve(found)
    places = lambda made: [part.textposition for part in made.figure.data if part.textposition]
    assert places(bare) == ["top center"] * 2 and "0,0,0,0" in bare.figure.layout.modebar.bgcolor
    agreed = copy.deepcopy(found)
    agreed.fits["paper"] = agreed.fits["monotone"]
    assert places(interactive.curve(agreed)) == ["top center", "bottom center"]
    assert "keeps times and no traces" in bare.caption and "no traces" in bare._repr_html_()
    made = interactive.curve(found, {2: build("unispec", tokens=8)}, tmp_path / "pages")
    points = made.figure.data[-1]
    g, tau, s, _, _ = found.measured()
    assert np.allclose(points.y, tau / s) and points.x.tolist() == g.tolist()
    assert list(points.customdata) == [None, (tmp_path / "pages/size-1.html").as_posix(), None, None]
    assert ["click: its trace" in words for words in points.text] == [False, True, False, False]
    assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == ["index.html", "size-1.html"]
    with pytest.raises(ParameterError, match="size 3 was not measured: there are 1, 2, 4, 8"):
        interactive.curve(found, {3: build("unispec", tokens=8)}, tmp_path / "pages", force=True)


def test_an_interrupted_calibration_is_one_line(found):
    found.fits, found.chosen = {}, ""
    draws = [view.curve, view.calibration_png, view.deviation]
    draws += [lambda c: view.by_prompts({1: c}), lambda c: view.by_device([c])]
    for draw in draws:
        with pytest.raises(SpecvizError, match="this calibration was interrupted"):
            draw(found)
    pytest.importorskip("plotly")
    from specviz.view import interactive

    with pytest.raises(SpecvizError, match="this calibration was interrupted"):
        interactive.curve(found)


def test_devices_and_prompts(found):
    other = copy.deepcopy(found)
    other.setting |= {"device": "GPU $x$", "threads": None}
    other.fits["monotone"] = Fit(8, found.fits["monotone"].s, found.fits["monotone"].tau)
    ax = view.by_device([found, other])
    assert [bar.get_width() for bar in ax.patches] == [4, 8]
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[0].startswith("CPU, 2 threads")
    assert names[1].startswith("GPU $x$")
    with pytest.raises(ParameterError):
        view.by_device([])
    ax = view.by_prompts({5: other, 1: found})
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "1 prompt: g* = 4, took 3 s", "5 prompts: g* = 8, took 3 s",
    ]  # fmt: skip
    one, five = ax.lines
    assert one.get_marker() != five.get_marker() and one.get_linestyle() != five.get_linestyle()
    ax = view.deviation(found)
    assert any("within 3 %" in t.get_text() for t in ax.get_legend().get_texts())
    matplotlib.pyplot.close("all")
