"""Shared fixtures. This file also puts the folder on the path, so that every test can import `traces`."""

from __future__ import annotations

import gc
import os
import sys

import pytest

# Set before torch is imported. Two workers share the cores, where waiting threads would otherwise spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(autouse=True)
def no_calibration_of_this_machine(tmp_path_factory, monkeypatch):
    """Keep this machine's own calibration from changing a test's draft size."""
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path_factory.getbasetemp() / "no-calibrations"))


@pytest.fixture(scope="module", autouse=True)
def nothing_old_is_collected():
    """Keep objects of earlier modules out of the garbage collections that timed code triggers."""
    gc.collect()
    gc.freeze()
    blocks = getattr(sys.modules.get("specviz.measure.timing"), "_blocks", [])
    blocks.append(None)  # otherwise the first block of `settled` would unfreeze them
    yield
    blocks.pop()


@pytest.fixture(autouse=True)
def one_layout(monkeypatch):
    """Keep this machine's own measurements and settings from changing a test's last digits.

    SPECVIZ_TEST_KERNELS runs the tests in another layout.
    """
    monkeypatch.setenv("SPECVIZ_KERNELS", os.environ.get("SPECVIZ_TEST_KERNELS", "transposed"))
    monkeypatch.setenv("SPECVIZ_INVARIANT", "0")


@pytest.fixture(scope="session")
def smollm2_file():
    """SmolLM2's GGUF file, downloaded once into this user's cache; skips the test without a network."""
    from specviz.errors import ModelError
    from specviz.models import downloads

    try:
        return downloads.get("smollm2")
    except ModelError as error:
        pytest.skip(f"SmolLM2 is not here: {error}")


@pytest.fixture(scope="session")
def bergamot():
    """Bergamot's translator from English to Portuguese, downloaded once; skips the test without a network."""
    from specviz.errors import ModelError
    from specviz.models import downloads, load

    try:
        downloads.get("bergamot-en-pt")
    except ModelError as error:
        pytest.skip(f"the translator is not here: {error}")
    return load("bergamot:en-pt")


@pytest.fixture(scope="session")
def smollm2(smollm2_file):
    """SmolLM2 on torch in float32, in the layout that its published speeds refer to."""
    import torch

    from specviz.models import kernels, load

    layout = (
        kernels.ONEDNN if kernels.ONEDNN in kernels.candidates(torch.device("cpu"), torch.float32) else None
    )
    return load("smollm2", dtype="float32", kernels=layout or kernels.PLAIN, invariant=False)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A target, a good draft of it, and one with another vocabulary."""
    from checkpoints import write

    return write(tmp_path_factory.mktemp("models"))
