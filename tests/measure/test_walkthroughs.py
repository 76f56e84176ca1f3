"""The kernel used to measure a walkthrough's memory: it cannot import torch."""

from __future__ import annotations

import pytest

from specviz.errors import SpecvizError

nbformat = pytest.importorskip("nbformat", reason="needs nbclient (the test extra)")
pytest.importorskip("nbclient", reason="needs nbclient (the test extra)")


def book(path, code):
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)]), path)
    return path


def test_the_peak_is_the_kernels(tmp_path):
    from benchmarks.walkthroughs import bench

    report = bench(
        [book(tmp_path / "large.ipynb", "kept = bytearray(120_000_000); kept[::4096] = b'x' * 29297")]
    )
    assert 120 < report.rows[0]["peak"] < 1000
    assert report.held and "large" in str(report.table.frame())


def test_torch_is_out_of_reach(tmp_path):
    from benchmarks.walkthroughs import peak

    with pytest.raises(SpecvizError, match=r"needs\.ipynb does not run without torch: ModuleNotFoundError"):
        peak(book(tmp_path / "needs.ipynb", "import torch"))
