"""Layering: a subpackage imports only from lower ones in its wing, or from the ground level."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import numpy as np
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).parents[1] / "specviz"
GROUND, LOOKING, RUNNING, APART, DOOR = "ground", "looking", "running", "apart", "door"

ROOMS: dict[str, tuple[str, float]] = {
    "escape": (GROUND, 0),
    "errors": (GROUND, 0.1),
    "schema": (GROUND, 0.2),
    "paths": (GROUND, 0.4),
    "files": (GROUND, 0.5),
    "arguments": (GROUND, 0.5),
    "chats": (GROUND, 0.5),
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
    "explanations": (LOOKING, 4.5),
    "widgets": (LOOKING, 5),
    "models": (RUNNING, 4),
    "methods": (RUNNING, 5),
    "loop": (RUNNING, 6),
    "audit": (RUNNING, 7),
    "measure": ("both", 7.5),
    "replays": ("both", 7.7),
    "site": ("both", 7.9),
    "finetune": (APART, 7),
    "cli": (DOOR, 8),
    "__init__": (DOOR, 8),
    "__main__": (DOOR, 9),
}
# The explorer decodes when a button is pressed.
# So does the check of a method.
ON_DEMAND = {
    ("widgets", "loop"), ("widgets", "methods"),
    *(("check", room) for room in ("audit", "loop", "methods", "whatifs", "widgets")),
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if "data" not in p.parts)


def room(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def nodes_within(tree: ast.AST, wanted) -> set[int]:
    """Identities of the nodes nested inside those that are `wanted`."""
    return {id(inner) for outer in ast.walk(tree) if wanted(outer) for inner in ast.walk(outer)}


def imported(path: Path) -> list[tuple[str, bool]]:
    """The package's names that a module imports, in full, and whether only inside a function.

    ``from a import b`` gives ``a.b``, a module or a name in ``a``. Imports for typing are left out.
    """
    tree = ast.parse(path.read_text(encoding="utf8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    inner = nodes_within(tree, lambda n: isinstance(n, functions))
    typing_only = nodes_within(
        tree, lambda n: isinstance(n, ast.If) and ast.unparse(n.test).endswith("TYPE_CHECKING")
    )
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: resolve against the module's package
                package = list(path.relative_to(ROOT.parent).with_suffix("").parts)[: -node.level]
                base = ".".join([*package, base] if base else package)
            names = [f"{base}.{a.name}" for a in node.names]
        else:
            continue
        if id(node) not in typing_only:
            found += [(name, id(node) in inner) for name in names if name.split(".")[0] == "specviz"]
    return found


def imports(path: Path) -> list[tuple[str, bool]]:
    """Subpackages that a module imports, and whether only inside a function."""
    return [(f"{name}.__init__".split(".")[1], late) for name, late in imported(path)]


def module_cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of modules that import each other in a cycle."""
    names = sorted(graph)
    links = np.array([[other in graph[name] for other in names] for name in names], bool)
    count, group = connected_components(links, connection="strong")
    groups = [{names[i] for i in np.flatnonzero(group == n)} for n in range(count)]
    return [each for each in groups if len(each) > 1]


@cache
def import_graph() -> dict[str, set[str]]:
    """The modules that each module imports, including imports inside functions."""
    paths = {
        ".".join(p.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): p
        for p in modules()
    }
    graph: dict[str, set[str]] = {}
    for name, path in paths.items():
        targets = {t if t in paths else t.rpartition(".")[0] for t, _ in imported(path)}
        graph[name] = (targets & set(paths)) - {name, "specviz"}
    return graph


def allowed(source: str, target: str, late: bool) -> bool:
    if source == target or target == "__init__":
        return True  # the root contains no code of its own
    if late and (source, target) in ON_DEMAND:
        return True
    wing, floor = ROOMS[source]
    other, below = ROOMS[target]
    if wing == APART:
        return other != DOOR
    if other == APART:
        return wing == DOOR and late  # commands that train a user's drafter import it when called
    if below >= floor:
        return False
    return other in (GROUND, wing) or wing in (DOOR, "both")


def test_imports_only_from_below():
    new = {room(path) for path in modules()} - set(ROOMS)
    assert not new, f"{new} have no floor: give them one in tests/test_layers.py and CONTRIBUTING.md"
    wrong = [
        f"{path.relative_to(ROOT)} may not import {target}"
        for path in modules()
        for target in sorted({each for each, late in imports(path) if not allowed(room(path), each, late)})
    ]
    assert not wrong, "\n".join(wrong)


def test_the_check_can_fail():
    assert not allowed("metrics", "loop", False)
    assert not allowed("view", "models", True)
    assert not allowed("models", "methods", False)
    assert not allowed("trace", "view", False)
    assert not allowed("trace", "view", True)
    assert not allowed("widgets", "loop", False)
    assert allowed("widgets", "loop", True)
    assert allowed("measure", "view", False)


def test_no_import_cycle_spans_two_rooms():
    """Imports inside functions count; the root, which resolves its names lazily, does not."""
    graph = import_graph()
    assert "specviz.trace.trace" in graph["specviz.trace"]
    wide = [group for group in module_cycles(graph) if len({name.split(".")[1] for name in group}) > 1]
    assert not wide, f"a cycle of {len(wide[0])} modules: {sorted(wide[0])}"


def test_a_cycle_is_noticed():
    graph = import_graph()
    assert "specviz.trace" in graph["specviz.metrics.cycles"]
    graph = graph | {"specviz.trace.trace": {"specviz.metrics.cycles"}}
    (wide,) = (group for group in module_cycles(graph) if "specviz.trace.trace" in group)
    assert {"specviz.trace", "specviz.metrics.cycles"} <= wide
