"""Ban meaningless names: participles used as nouns, and prepositions that are easily misread."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BANNED = {
    "found", "said", "told", "known", "asked", "taught", "guessed", "spare", "beside", "together", "behind",
}  # fmt: skip
# Remaining uses per package or module; they may only shrink. Some are keys of published file formats.
LEFT = {
    "measure": 2, "replays": 1,
}  # fmt: skip


def identifiers(node: ast.AST) -> Iterator[str | None]:
    """The names that a node of a syntax tree uses or binds."""
    match node:
        case ast.Name():
            yield node.id
        case ast.Attribute():
            yield node.attr
        case ast.arg() | ast.keyword():
            yield node.arg
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.alias():
            yield from (node.name, node.asname)


def uses(text: str) -> int:
    """How often a source uses one of the names as an identifier, f-strings included."""
    return sum(name in BANNED for node in ast.walk(ast.parse(text)) for name in identifiers(node))


def test_identifiers_say_what_they_hold():
    counts = Counter[str]()
    for path in sorted((ROOT / "specviz").rglob("*.py")):
        counts[path.relative_to(ROOT / "specviz").parts[0]] += uses(path.read_text(encoding="utf8"))
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        counts[path.stem] += uses(path.read_text(encoding="utf8"))
    grown = {room: n for room, n in counts.items() if n > LEFT.get(room, 0)}
    assert not grown, f"name what these hold ({', '.join(sorted(BANNED))}): {grown}"


def test_the_check_can_fail():
    assert uses("found = told(said=1)\nf'{known.asked}'") == 5
    assert uses('"found"  # told') == 0
