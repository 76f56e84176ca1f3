"""``specviz app``: what the command gives its server, without starting one."""

from __future__ import annotations

import os

import pytest

from specviz import cli
from specviz.cli import serving

pytest.importorskip("voila", reason="needs the app extra")


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Keep the model that each app would serve, and run in an empty folder."""
    models = []
    monkeypatch.setattr(serving, "_serve", lambda scratch, folder, model, *others: models.append(model))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    return models


def test_a_model_of_this_folder_is_served_from_another_one(served, tmp_path, folders):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    (tmp_path / "pair").mkdir()
    (tmp_path / "mine").symlink_to(folders.target)
    (tmp_path / "town").mkdir()  # names come first
    for model in ("gguf:./m.gguf", "bergamot:pair", "./mine", "town", "gguf:town"):
        assert cli.run(["app", "traces", "--model", model]) == 0
    assert served == [
        f"gguf:{tmp_path / 'm.gguf'}", f"bergamot:{tmp_path / 'pair'}",
        str((tmp_path / "mine").resolve()), "town", "gguf:town",
    ]  # fmt: skip


def test_folders_of_the_environment_are_absolute(served, tmp_path, monkeypatch):
    for name in serving.FOLDERS:
        monkeypatch.setenv(name, name.lower())
    assert cli.run(["app", "traces"]) == 0
    assert [os.environ[name] for name in serving.FOLDERS] == [
        str(tmp_path / name.lower()) for name in serving.FOLDERS
    ]


def test_a_port_that_does_not_exist_is_refused(served, capsys):
    assert cli.run(["app", "traces", "--port", "70000"]) == 2
    assert "--port takes a number up to 65535, got 70000" in capsys.readouterr().err


def test_the_address_holds_any_token():
    assert serving.address_of("::", 8866, "a&b #c/") == "http://[::1]:8866/?token=a%26b%20%23c%2F"


def test_an_address_whose_requests_would_be_refused_is_refused(served, capsys):
    for ip in ("127.0.0.1", "0.0.0.0"):
        assert cli.run(["app", "traces", "--ip", ip]) == 0
    assert cli.run(["app", "traces", "--ip", "192.168.1.5"]) == 2
    said = capsys.readouterr().err
    assert "not to 192.168.1.5: drop --ip" in said and said.count("\n") == 1 and len(served) == 2
