"""Its place puts this folder on the path, so that every room's tests can import `traces`."""

from __future__ import annotations

import gc
import os
import sys

import pytest
from checkpoints import write


@pytest.fixture(autouse=True)
def no_calibration_of_this_machine(tmp_path_factory, monkeypatch):
    """What the person at this machine calibrated must not turn a test's draft size."""
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path_factory.getbasetemp() / "no-calibrations"))


@pytest.fixture(scope="module", autouse=True)
def nothing_old_is_collected():
    """Objects of earlier modules stay out of the garbage collections that timed code asks for."""
    gc.collect()
    gc.freeze()
    blocks = getattr(sys.modules.get("specviz.measure.timing"), "_blocks", [])
    blocks.append(None)  # else the first block of `settled` would unfreeze them
    yield
    blocks.pop()


@pytest.fixture(autouse=True)
def one_layout(monkeypatch):
    """What the person at this machine measured or set must not turn a test's last digits.

    SPECVIZ_TEST_KERNELS runs the tests in another layout.
    """
    monkeypatch.setenv("SPECVIZ_KERNELS", os.environ.get("SPECVIZ_TEST_KERNELS", "transposed"))
    monkeypatch.setenv("SPECVIZ_INVARIANT", "0")


@pytest.fixture(scope="session")
def smollm2_file():
    """SmolLM2's GGUF file, downloaded once into this user's cache; without a network the test is skipped."""
    from specviz.errors import ModelError
    from specviz.models import downloads

    try:
        return downloads.get("smollm2")
    except ModelError as error:
        pytest.skip(f"SmolLM2 is not here: {error}")


@pytest.fixture(scope="session")
def bergamot():
    """Bergamot's translator from English to Portuguese, downloaded once; without a network skipped."""
    from specviz.errors import ModelError
    from specviz.models import downloads, load

    try:
        downloads.get("bergamot-en-pt")
    except ModelError as error:
        pytest.skip(f"the translator is not here: {error}")
    return load("bergamot:en-pt")


@pytest.fixture(scope="session")
def smollm2(smollm2_file):
    """SmolLM2 on torch in float32, in the layout that its speeds are stated for."""
    import torch

    from specviz.models import kernels, load

    layout = (
        kernels.ONEDNN if kernels.ONEDNN in kernels.candidates(torch.device("cpu"), torch.float32) else None
    )
    return load("smollm2", dtype="float32", kernels=layout or kernels.PLAIN, invariant=False)


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A target, a good draft of it, and one with another vocabulary."""
    root = tmp_path_factory.mktemp("models")
    return write(root)
