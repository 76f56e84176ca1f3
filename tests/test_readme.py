"""Run the Python of README and docs/ page by page, block after block in one namespace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from benchmarks.__main__ import parsed

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The line above a block that is left out, with the reason.
MARK = re.compile(r"<!-- not run: (.+?) -->\n\Z")

# Run in a separate process, in an empty folder: each block compiled with its line of README.
PROCESS = """
import json, sys
name = sys.argv[1]
namespace = {"__name__": "__main__"}
for line, code in json.load(sys.stdin):
    print(f"{name}:{line}", flush=True)
    exec(compile("\\n" * (line - 1) + code, name, "exec"), namespace)
"""


class Block(NamedTuple):
    """A block of README: the line of its first statement, its code, why it is not run (empty: it is)."""

    line: int
    code: str
    reason: str


def blocks(text):
    found = []
    for match in BLOCK.finditer(text):
        mark = MARK.search(text[: match.start()])
        line = text[: match.start(1)].count("\n") + 1
        found.append(Block(line, match[1], mark[1].strip() if mark else ""))
    return found


def run(given, folder, name="README.md"):
    environment = os.environ | {
        "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
        "SPECVIZ_CALIBRATIONS": str(folder / "calibrations"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", PROCESS, name],
        input=json.dumps([(block.line, block.code) for block in given if not block.reason]),
        text=True, capture_output=True, cwd=folder, env=environment, check=False,
    )  # fmt: skip


def test_blocks_and_their_marks_are_read():
    text = "a\n```python\nx = 1\n```\n\n<!-- not run: slow -->\n```python\ny()\n```\n```\nno python\n```\n"
    text += "<!-- not run: slow -->\n\n```python\nz = 1\n```\n"
    assert blocks(text) == [(3, "x = 1\n", ""), (8, "y()\n", "slow"), (16, "z = 1\n", "")]


@pytest.mark.parametrize("code", ["unknown", "x = "])
def test_a_block_that_fails_is_seen(code, tmp_path):
    done = run([Block(1, "x = 1\n", ""), Block(5, code, "")], tmp_path)
    assert done.returncode == 1
    assert 'File "README.md", line 5' in done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p.read_text("utf8"))], ids=lambda p: p.name)
def test_every_block_runs(page, tmp_path):
    parts = blocks(page.read_text(encoding="utf8"))
    for block in parts:
        compile(block.code, page.name, "exec")  # code that is not run must still compile
    done = run(parts, tmp_path, page.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{page.name}:{block.line}\n" in done.stdout for block in parts if not block.reason)


def test_there_is_something_to_run():
    assert blocks(README.read_text("utf8")) and len(blocks((ROOT / "docs/python.md").read_text("utf8"))) >= 5


def test_readme_stays_short_and_its_pictures_light():
    assert len(README.read_text("utf8").splitlines()) < 200
    assert (ROOT / "docs" / "decode.gif").stat().st_size < 2e6


def batch_mark(kind):
    from specviz.errors import ParameterError
    from specviz.loop.checks import check_batchable

    for mark, parameters in (("✓", {}), ("(✓)", {"keep": "prompt"})):
        with suppress(ParameterError):
            check_batchable(kind(**parameters), [])
            return mark
    return "–"


def test_the_table_of_methods_is_that_of_the_code():
    pytest.importorskip("torch", reason="needs the run extra")
    from specviz import methods

    rows = re.findall(r"^\| `(\w+)` \|.*\| (\S+) \| (\S+) \|$", README.read_text("utf8"), re.M)
    kinds = {name: methods.find(name) for name in methods.names()}
    marks = {name: ("–" if kind.only_greedy else "✓", batch_mark(kind)) for name, kind in kinds.items()}
    assert {name: given for name, *given in rows} == {name: [*given] for name, given in marks.items()}


FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(specviz\s[^`]+)`")
BENCH = re.compile(r"`(?:python -m tests\.)?benchmarks (\w[^`]*)`")
# In place of a command these show only its form, and nothing after them is checked.
PLACEHOLDERS = ("COMMAND", "...")


def commands(text):
    """The arguments of each `specviz` command in a page's code: blocks without a language, lines, tables."""
    for language, block in FENCED.findall(text):
        for line in [] if language else block.replace("\\\n", " ").splitlines():
            for part in line.partition("  #")[0].split("&&"):
                words = part.split()
                if words and words[0].endswith("specviz") and len(words) > 1:
                    yield words[1:]
    for code in INLINE.findall(FENCED.sub("", text)):
        yield code.split()[1:]


def test_commands_are_read():
    text = "a `specviz bench\ntrees` or `--out`\n\n| `specviz app DIR` | `x` |\n\n"
    text += "```python\nspecviz demo\n```\n```\n$HOME/specviz demo && specviz show \\\n  demo  # look\n```\n"
    assert list(commands(text)) == [["demo"], ["show", "demo"], ["bench", "trees"], ["app", "DIR"]]


@cache
def root():
    import typer

    from specviz.cli import app

    return typer.main.get_command(app)


def test_every_command_exists():
    """Each `specviz` command in README and docs exists, with the options given there."""
    for page in PAGES:
        for words in commands(page.read_text("utf8")):
            check_command(root(), words, f"{page.name}: specviz {' '.join(words)}")


def test_every_bench_of_the_project_exists():
    """Each `benchmarks NAME` in README and docs exists, with the options given there."""
    written = [line for page in PAGES for line in BENCH.findall(page.read_text("utf8"))]
    assert {line.split()[0] for line in written} >= {"projection", "overhead", "calibrate"}
    for line in written:
        parsed(line.split())
    for line in ("nonsense", "overhead --size 3"):
        with pytest.raises(SystemExit):
            parsed(line.split())


@pytest.mark.parametrize("line", ["nonsense", "bench nonsense", "streams", "audit --none 3", "--nonsense"])
def test_a_command_that_does_not_exist_is_seen(line):
    with pytest.raises(AssertionError, match=f"here: {line}"):
        check_command(root(), line.split(), f"here: {line}")


@pytest.mark.parametrize("line", ["COMMAND --help", "models ... --none", "--help", "bench trees --number 2"])
def test_a_command_that_exists_or_shows_a_form_passes(line):
    check_command(root(), line.split(), line)


def check_command(command, words, line):
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] in PLACEHOLDERS:
            return
        assert words[0] in command.list_commands(None), f"{line}: no such command"
        command, words = command.get_command(None, words[0]), words[1:]
    options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}
    assert not hasattr(command, "commands") or command.invoke_without_command, line
    wrong = [w.partition("=")[0] for w in words if w.startswith("--") and w.partition("=")[0] not in options]
    assert not wrong, f"{line}: no option {wrong}"
