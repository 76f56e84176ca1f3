"""The house's floors: a room imports only from below in its wing, or from the ground."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "specviz"
GROUND, LOOKING, RUNNING, APART, DOOR = "ground", "looking", "running", "apart", "door"

ROOMS: dict[str, tuple[str, float]] = {
    "errors": (GROUND, 0),
    "schema": (GROUND, 0.2),
    "files": (GROUND, 0.5),
    "paths": (GROUND, 0.5),
    "devices": (GROUND, 0.5),
    "calibration": (GROUND, 1),
    "draft": (GROUND, 1),
    "rules": (GROUND, 1.5),
    "streams": (GROUND, 1),
    "suites": (GROUND, 1.5),
    "trace": (GROUND, 2),
    "metrics": (LOOKING, 3),
    "whatifs": (LOOKING, 3.5),
    "check": (LOOKING, 3),
    "view": (LOOKING, 4),
    "widgets": (LOOKING, 5),
    "models": (RUNNING, 4),
    "methods": (RUNNING, 5),
    "loop": (RUNNING, 6),
    "audit": (RUNNING, 7),
    "measure": ("both", 7.5),
    "replays": ("both", 7.7),
    "finetune": (APART, 7),
    "cli": (DOOR, 8),
    "__init__": (DOOR, 8),
    "__main__": (DOOR, 9),
}
# Display hooks and summaries of the record load what draws them when they are asked, not before.
# The explorer decodes when a button is pressed.
ON_DEMAND = {
    ("trace", "metrics"), ("trace", "view"), ("trace", "widgets"), ("widgets", "loop"),
    ("widgets", "methods"), *(("check", room) for room in ("audit", "loop", "methods", "whatifs", "widgets")),
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if "data" not in p.parts)


def room(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imports(path: Path) -> list[tuple[str, bool]]:
    """Rooms that a module imports, and whether it does so only inside a function."""
    tree = ast.parse(path.read_text(encoding="utf8"))
    inner = {
        id(n)
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for n in ast.walk(f)
    }
    typing_only = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and ast.unparse(i.test).endswith("TYPE_CHECKING")
        for n in ast.walk(i)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: resolve against the module's package
                package = list(path.relative_to(ROOT.parent).with_suffix("").parts)[: -node.level]
                base = ".".join([*package, base] if base else package)
            names = [f"{base}.{a.name}" for a in node.names] if base == "specviz" else [base]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "specviz" and id(node) not in typing_only:
                found.append((parts[1] if len(parts) > 1 else "__init__", id(node) in inner))
    return found


def allowed(source: str, target: str, late: bool) -> bool:
    if source == target or target == "__init__":
        return True  # the package's own doors hold no code of their own
    if late and (source, target) in ON_DEMAND:
        return True
    wing, floor = ROOMS[source]
    other, below = ROOMS[target]
    if wing == APART:
        return other != DOOR
    if other == APART:
        return wing == DOOR and late  # the commands that train a user's own drafter, when they are called
    if below >= floor:
        return False
    return other in (GROUND, wing) or wing in (DOOR, "both")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_from_below(path):
    source = room(path)
    assert source in ROOMS, f"{source} has no floor: give it one in tests/test_layers.py and CONTRIBUTING.md"
    wrong = [target for target, late in imports(path) if not allowed(source, target, late)]
    assert not wrong, f"{path.relative_to(ROOT)} may not import {sorted(set(wrong))}"


def test_the_check_can_fail():
    assert not allowed("metrics", "loop", False)
    assert not allowed("view", "models", True)
    assert not allowed("models", "methods", False)
    assert not allowed("trace", "view", False)
    assert allowed("trace", "view", True)
    assert allowed("measure", "view", False)
