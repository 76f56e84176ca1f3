"""The sliders of an advice in JupyterLab: they move the surface, and a click on a point opens its trace."""

from __future__ import annotations

import json
import re

import pytest

api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
pytest.importorskip("plotly", reason="needs the lab extra")
api.expect.set_options(timeout=60_000)

CELL = """
import numpy as np
import specviz as sv
from specviz.metrics.speedups import Drafter, PassTimes, Setting
from specviz.widgets.surface import SpeedupSurface

passes = PassTimes([1, 17], [10, 110], [1, 4], np.array([[10.0, 11.0], [18.0, 20.0]]), np.ones((2, 2)), 0.5)
drafter = Drafter("copied", 0.0, 0.2, 0.1, [Setting("prompt_lookup", 2.0, 1.6)])
SpeedupSurface(passes, [drafter], {"prompt_lookup": "prompt_lookup"}, lambda name: sv.open(sv.example(name)))
"""
# Mimics plotly's click event on the only point: a headless browser cannot point into a WebGL scene.
CLICK = """(plot) => plot.emit("plotly_click", {points: [{
  curveNumber: 2, pointNumber: 0, x: 2, y: 0.5, z: 1.4, data: plot.data[2], fullData: plot._fullData[2],
}], event: {}})"""


def test_sliders_and_a_click(run_notebook, tmp_path, shoot):
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    cell = {
        "cell_type": "code",
        "metadata": {},
        "source": CELL,
        "outputs": [],
        "execution_count": None,
        "id": "a",
    }
    book = tmp_path / "surface.ipynb"
    book.write_text(json.dumps({"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    page = run_notebook(book)
    plot = page.locator(".js-plotly-plot")
    api.expect(plot).to_have_count(1)
    words = page.get_by_text("drafting pays from")
    api.expect(words).to_have_count(1)
    before = words.inner_text()
    page.locator(".widget-slider [role=slider], .widget-slider .noUi-handle").last.press("ArrowRight")
    api.expect(words).not_to_have_text(before)
    api.expect(words).to_have_text(re.compile("times the plain speed"))
    ends = "(plot) => [0, plot.data[0].y.length - 1].map((i) => plot.data[0].y[i])"
    assert plot.evaluate(ends) == [0, pytest.approx(0.98)], "the surface stands over acceptances"
    plot.evaluate(CLICK)
    api.expect(page.locator(".sv.player")).to_have_count(1)
    shoot(page, "lab-light-surface")
