"""README's Python is run, block after block in one namespace, as a reader would run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The line above a block that is left out, with the reason.
MARK = re.compile(r"<!-- not run: (.+?) -->\n\Z")

# Run in a process of its own, in an empty folder: each block compiled with its line of README.
PROCESS = """
import json, sys
name = "README.md"
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


def run(given, folder):
    environment = os.environ | {
        "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(README.parent),
        "SPECVIZ_CALIBRATIONS": str(folder / "calibrations"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", PROCESS],
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


def test_every_block_runs(tmp_path):
    found = blocks(README.read_text(encoding="utf8"))
    assert len(found) >= 5
    for block in found:
        compile(block.code, "README.md", "exec")  # what is not run is Python all the same
    done = run(found, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"README.md:{block.line}\n" in done.stdout for block in found if not block.reason)
