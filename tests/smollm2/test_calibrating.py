"""The command that calibration prints for a downloaded model runs in the measured format and layout."""

from __future__ import annotations

import shlex

import pytest

pytest.importorskip("torch", reason="needs the run extra")

from specviz import cli


@pytest.mark.smollm2
def test_the_commands_that_are_printed_run(smollm2_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path))
    ask = ["generate", "unispec", "--model", "smollm2", "--threads", "1", "-p", "Hello", "-n", "3"]
    assert cli.run([*ask, "--set", "draft_size=calibrated"]) == 2
    order = shlex.split(capsys.readouterr().err.partition("run: specviz ")[2])
    few = ["--sizes", "1,2,3,4", "--number", "1", "--warm-up", "0", "--rounds", "1", "-n", "4"]
    assert cli.run([*order, *few]) == 0
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("to use it: specviz ")
    ]
    told = shlex.split(line.removesuffix("...").partition("specviz ")[2])
    assert cli.run([*told, "-p", "Hello", "-n", "3"]) == 0
    assert " by calibration\n" in capsys.readouterr().out
    assert cli.run([*ask, "--set", "draft_size=calibrated"]) == 0, "the order was of the setting that asked"
