"""Types: mypy looks at every package, and what escapes it stays rare."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ESCAPE = re.compile(r"\bAny\b|\bobject\b|\bcast\(")
MOST = {"models": 48, "view": 15, "widgets": 10, "metrics": 6, "whatifs": 3, "finetune": 3}
ALL = 537


def escapes(folder: Path) -> int:
    return sum(escapes_of(path.read_text(encoding="utf8")) for path in folder.rglob("*.py"))


def escapes_of(source: str) -> int:
    """In code, not in prose."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(str())):
                node.value.value = ""
    return len(ESCAPE.findall(ast.unparse(tree))) + source.count("type: ignore")


def test_prose_is_no_escape():
    code = 'x: Any = 1  # Any object\n"Any object."\ny: object = cast(int, x)  # type: ignore\n'
    assert escapes_of(code) == 4


def test_mypy_leaves_no_package_out():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["tool"]["mypy"]
    assert settings["files"] == ["specviz"] and not settings.get("exclude")
    assert settings["disallow_untyped_defs"] and settings["check_untyped_defs"]


def test_untyped_values_stay_rare():
    counts = {name: escapes(ROOT / "specviz" / name) for name in MOST}
    assert not {name: n for name, n in counts.items() if n > MOST[name]}
    assert escapes(ROOT / "specviz") <= ALL


@pytest.mark.slow
def test_mypy_passes():
    made = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout
