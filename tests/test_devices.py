"""A thread count above the machine's is refused in one line, before any work, wherever one is accepted."""

from __future__ import annotations

import os

import pytest
import typer

import specviz
import specviz.measure
from specviz import audit, cli
from specviz.arguments import check_threads
from specviz.errors import ParameterError
from specviz.measure import BENCHES, timing

MANY = 100_000
# Every command with --threads, and its required arguments.
COMMANDS = {
    "demo": (),
    "generate": ("autoregressive", "--prompt", "Hello", "--out", "out"),
    "audit": ("--json", "out.json"),
    "replay": ("unispec/table3", "--out", "out"),
    "calibrate": (),
    "advise": ("town", "--prompts", "town"),
    **{f"bench {name}": ("--json", "out.json") for name in BENCHES},
    "bench run": ("--untimed", "--number", "1", "--method", "prompt_lookup", "--out", "out"),
    "models align": ("town-draft", "--target", "town", "--prompts", "town", "--out", "out"),
    "models eagle": ("town", "--prompts", "town", "--out", "out"),
    "models diffusion": ("town", "--texts", "texts.jsonl", "--out", "out"),
    "models heads": ("town", "--prompts", "town", "--out", "out"),
    "models answers": ("town", "--prompts", "prompts.txt", "--out", "out"),
    "models check": ("town-eagle", "--target", "town"),
}


def with_threads(command, path=()):
    """The commands below this one that take --threads."""
    if hasattr(command, "commands"):
        for name in command.list_commands(None):  # bench commands are created on demand
            yield from with_threads(command.get_command(None, name), (*path, name))
    elif any(parameter.name == "threads" for parameter in command.params):
        yield " ".join(path)


def test_every_command_is_asked_here():
    assert set(with_threads(typer.main.get_command(cli.app))) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_more_than_there_are(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status = cli.run([*command.split(), *COMMANDS[command], "--threads", str(MANY)])
    (line,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert f"got {MANY}" in line and str(os.cpu_count()) in line
    assert not list(tmp_path.iterdir())


def test_python_refuses_them_too(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert check_threads(4) == 4
    with timing.threads(1) as count:
        assert count == 1
    for refused in (
        lambda: check_threads(5),
        lambda: check_threads(0),
        lambda: timing.threads(5).__enter__(),
        lambda: audit.run("town", prompts=["Hello"], threads=5),
        lambda: specviz.load("gguf:town-translator", threads=5),
        lambda: specviz.run(methods=["prompt_lookup"], number=1, threads=5, timed=False),
    ):
        with pytest.raises(ParameterError, match="from 1 to 4, this machine's number of processors"):
            refused()
