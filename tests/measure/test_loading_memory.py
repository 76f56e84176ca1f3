"""The checkpoint used to measure the memory of a load, and the report about it."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest
from benchmarks import loading
from safetensors import safe_open

from specviz.errors import ModelError, SpecvizError
from specviz.models import load


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WIDTH", 32), ("INNER", 96), ("ROWS", 300), ("HEADS", 2)):
        monkeypatch.setattr(loading, name, value)


def test_the_checkpoint_is_one_of_its_family(small: None, tmp_path: Path) -> None:
    made = loading.write(tmp_path / "synthetic", 100_000, 3)
    files = sorted((tmp_path / "synthetic").glob("*.safetensors"))
    held = []
    for file in files:
        with safe_open(file, "pt") as opened:
            held += [opened.get_tensor(key) for key in opened.keys()]  # noqa: SIM118 - no mapping
    assert len(files) == 3
    assert sum(t.nbytes for t in held) == made["bytes"] >= 100_000
    assert (len(held), max(t.nbytes for t in held)) == (made["tensors"], made["largest"])
    model = load(tmp_path / "synthetic", dtype="stored")
    assert (model.kind, str(model.dtype), 2 * model.parameters) == (
        "diffusion",
        "torch.bfloat16",
        made["bytes"],
    )


@pytest.mark.skipif(not loading.CLEAR.exists(), reason="needs /proc")
def test_the_figures(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.tempfile, "tempdir", str(tmp_path))
    found = loading.loading(0.0001, shards=2)
    assert found["peak"] >= found["before"] > found["anonymous_before"] > 0
    assert found["anonymous_peak"] >= found["anonymous"] > 0
    assert found["resident_ratio"] * found["bytes"] == pytest.approx(found["peak"] - found["before"])
    assert (found["shards"], found["dtype"]) == (2, "stored")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not loading.CLEAR.exists(), reason="needs /proc")
def test_a_load_that_fails_ends_and_is_told(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = threading.active_count()
    loading.write(tmp_path / "synthetic", 100_000, 1)
    with pytest.raises(ModelError, match="no dtype 'int3'"):
        loading._measure(str(tmp_path / "synthetic"), "int3")
    assert threading.active_count() == threads
    failed = subprocess.CompletedProcess([], 1, "", "Traceback ...\nValueError: too large\n")
    monkeypatch.setattr(loading.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SpecvizError, match="loads the checkpoint failed: ValueError: too large"):
        loading.loading(0.0001)


def test_elsewhere_than_on_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "CLEAR", tmp_path / "none")
    with pytest.raises(SpecvizError, match="run this on Linux"):
        loading.loading()
