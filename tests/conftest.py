"""Its place puts this folder on the path, so that every room's tests can import `traces`."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_calibration_of_this_machine(tmp_path_factory, monkeypatch):
    """What the person at this machine calibrated must not turn a test's draft size."""
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path_factory.getbasetemp() / "no-calibrations"))


@pytest.fixture(autouse=True)
def one_layout(monkeypatch):
    """What the person at this machine measured must not turn a test's last digits."""
    monkeypatch.setenv("SPECVIZ_KERNELS", "transposed")
