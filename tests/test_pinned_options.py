"""``--kernels`` and ``--invariant``: the target has what they ask for, or the command stops."""

from __future__ import annotations

import pytest

from specviz import cli
from specviz.models import choices

ASK = ("--prompt", "a", "-n", "2")
COMMANDS = {
    "generate": ("generate", "autoregressive", *ASK),
    "generate with a drafter": ("generate", "speculative", *ASK),
    "demo": ("demo", "-m", "town"),
    "advise": ("advise", "town"),
    "audit": ("audit", "--number", "1"),
    "answers": ("audit", "-m", "town", "--answers", "answers.jsonl"),
    "bench": ("bench", "batches"),
    "bench of one model": ("bench", "passes"),
    "calibrate": ("calibrate", "unispec"),
    "replay": ("replay", "unispec/table3", "-m", "town", "--quick"),
}


@pytest.fixture(params=COMMANDS)
def command(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    return COMMANDS[request.param]


def test_kernels_that_the_target_cannot_have_stop_the_command(command, capsys):
    assert cli.run([*command, "--dtype", "float64", "--kernels", "onednn"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "kernels='onednn' does not support float64 on cpu here: use 'plain', or drop it" in line


def test_a_target_that_cannot_be_invariant_stops_the_command(command, capsys, monkeypatch):
    monkeypatch.setattr(choices, "way", lambda *given: choices.Way(fault="its sums change their order"))
    assert cli.run([*command, "--invariant"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "town cannot be invariant: its sums change their order" in line


def test_a_drafter_may_fall_back(capsys, monkeypatch):
    way = choices.way

    def only_of_the_target(model, others):
        return choices.Way(fault="its sums change") if model.name == "town-draft" else way(model, others)

    monkeypatch.setattr(choices, "way", only_of_the_target)
    assert cli.run(["generate", "speculative", "-d", "town-draft", *ASK, "--invariant"]) == 0
    assert "exact" in capsys.readouterr().out


def test_the_variable_is_0_or_1(capsys, monkeypatch):
    monkeypatch.setenv("SPECVIZ_INVARIANT", "true")
    assert cli.run(["generate", "autoregressive", *ASK]) == 2
    assert "SPECVIZ_INVARIANT is 0 or 1; got 'true'" in capsys.readouterr().err
