"""`specviz doctor`: its findings on a complete installation, and with each fault introduced once."""

from __future__ import annotations

import builtins
import json
from importlib import metadata

import pytest

from specviz import cli
from specviz.measure import doctor as module
from specviz.measure.doctor import EXTRAS, Check, Report, doctor


def by_name(checks):
    return {check.name: check for check in checks}


def test_a_whole_installation(capsys, tmp_path):
    pytest.importorskip("torch", reason="needs the run extra")
    file = tmp_path / "doctor.json"
    assert cli.run(["doctor", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "recomputed as recorded" in out and "town: " in out and "[lab]" in out
    held = json.loads(file.read_text())
    assert held["ok"] and {check["state"] for check in held["checks"]} <= {"ok", "missing"}
    assert cli.run(["doctor", "--json", str(file)]) == 2  # the file exists, so nothing is tried


def test_another_package_of_the_name_is_a_fault(monkeypatch):
    own = metadata.distribution("numpy")
    monkeypatch.setattr(module.metadata, "distribution", lambda name: own)
    (check,) = module._names()
    assert check.state == "fault" and "pip uninstall specviz" in check.detail


def test_what_is_missing_is_named_with_its_use(monkeypatch):
    lines = ["numpy>=1", "absent-one>=2 ; extra == 'lab'", "numpy>=9999 ; extra == 'run'"]
    monkeypatch.setattr(module.metadata, "requires", lambda name: lines)
    checks = by_name(module._extras())
    assert "absent-one" in checks["[lab]"].detail and checks["[lab]"].state == "missing"
    assert "there is" in checks["[run]"].detail and EXTRAS["run"] in checks["[run]"].detail
    assert checks["[quality]"].state == "ok"
    monkeypatch.setattr(module.metadata, "requires", lambda name: ["absent-one"])
    assert by_name(module._extras())["packages"].state == "fault"


def test_a_decode_that_fails_is_a_fault(monkeypatch, capsys):
    pytest.importorskip("torch", reason="needs the run extra")
    (check,) = module._decode("no-such-model")
    assert check.state == "fault" and "no-such-model" in check.detail
    assert not Report((Check("a", "ok", ""), check)).ok
    monkeypatch.setattr(module, "_decode", lambda model: iter([check]))
    assert cli.run(["doctor"]) == 1 and "fault" in capsys.readouterr().out


def test_a_torch_that_cannot_be_imported_is_a_fault(monkeypatch):
    real = builtins.__import__

    def broken(name, *rest):
        if name == "torch":
            raise OSError("libcudart.so.12: cannot open shared object file")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", broken)
    (check,) = module._machine()
    assert check.state == "fault" and "torch cannot be imported: libcudart.so.12: " in check.detail


def test_a_diffusion_model_is_decoded_on_canvases():
    pytest.importorskip("torch", reason="needs the run extra")
    check = by_name(module._decode("town-diffusion"))["decode"]
    assert check.state == "ok" and "ssd and stepwise, 24 tokens each" in check.detail


def test_without_torch_looking_works(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    checks = by_name(doctor().checks)
    assert checks["decode"].state == "missing" and "viewing traces works" in checks["decode"].detail
    assert checks["decode"].detail.endswith("gguf, yaml, tqdm")


def test_a_cache_that_cannot_be_written_is_a_fault(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "file" / "home"))
    check = by_name(module._downloads())["cache"]
    assert check.state == "fault" and "SPECVIZ_HOME" in check.detail
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "new" / "home"))
    assert by_name(module._downloads())["cache"].state == "ok"


def test_every_extra_has_a_use():
    import tomllib
    from pathlib import Path

    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"test", "dev"}
