"""Mutants: find the operators and constants of a file that can be changed, and apply a change."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

# The files of each area, and a pattern for the names of their functions; each area gives as many mutants.
AREAS: dict[str, tuple[tuple[str, ...], str]] = {
    "loop": (("specviz/loop/*.py",), ""),
    "rules": (("specviz/rules/*.py",), ""),
    "models": (
        ("specviz/models/context.py", "specviz/models/attention.py", "specviz/models/kernels.py",
         "specviz/models/canvas.py", "specviz/models/encoder_decoder_context.py",
         "specviz/models/ordered.py", "specviz/models/choices.py", "specviz/models/layers.py",
         "specviz/models/llama.py", "specviz/models/gemma2.py"),
        "",
    ),
    "verifiers": (
        ("specviz/methods/*.py",), r"verify|verdict|judge|accept|residual|reject|walk|goes_on|learn",
    ),
    "whatifs": (("specviz/whatifs/*.py",), ""),
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
SLOW = {  # test folders
    "audit", "benchmarks", "browser", "measure", "replays", "suites", "town", "view",
    "test_binder.py", "test_cli.py", "test_cli_streams.py", "test_notebooks.py", "test_package.py",
}  # fmt: skip
USUAL = {  # packages whose files are mostly tested by test files of other packages
    "loop": ("tests/test_loop.py", "tests/test_batch.py"), "methods": ("tests/methods/test_methods.py",),
}  # fmt: skip
LOGIC = {ast.And: ("and", "or"), ast.Or: ("or", "and")}


@dataclass(frozen=True, order=True)
class Mutant:
    """One change.

    Parameters
    ----------
    file : str
        Relative to the repository.
    line : int
        Line of the change, from 1.
    start, end : int
        Bytes of the file that are replaced.
    before, after : str
    """

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before} -> {self.after}"

    def applied(self, source: bytes) -> bytes:
        """Return the file's content with the change applied."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    def record(self) -> dict[str, str | int]:
        """Return the mutant as a dict of plain values."""
        return asdict(self)


def mutants(source: bytes, file: str, functions: str = "") -> list[Mutant]:
    """List every change that can be made in a file, in its functions whose names match a pattern.

    Docstrings, annotations, decorators, assertions, error messages and code outside of functions are not
    changed.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def offset(node: ast.AST, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return starts[line - 1] + column

    def change(low: int, high: int, before: str, after: str) -> Mutant | None:
        """Change an operator, if it occurs exactly once between two offsets."""
        words = r"\s+".join(map(re.escape, before.split()))
        pattern = rf"\b{words}\b" if before[0].isalpha() else words
        hits = list(re.finditer(pattern.encode(), source[low:high]))
        if len(hits) != 1:
            return None
        start, end = (low + place for place in hits[0].span())
        return Mutant(file, source.count(b"\n", 0, start) + 1, start, end, before, after)

    def changes(node: ast.AST) -> Iterator[Mutant | None]:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, operator, right in zip(sides, node.ops, sides[1:]):
                yield change(offset(left, True), offset(right), *COMPARISONS[type(operator)])
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            yield change(offset(node.left, True), offset(node.right), *ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            for left, right in zip(node.values, node.values[1:]):
                yield change(offset(left, True), offset(right), *LOGIC[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield change(offset(node), offset(node.operand), "not", "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            after = not node.value if isinstance(node.value, bool) else node.value + 1
            before = source[offset(node) : offset(node, True)].decode()
            yield Mutant(file, node.lineno, offset(node), offset(node, True), before, str(after))

    return sorted({
        found
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef) and re.search(functions, function.name)
        for statement in function.body
        for node in _expressions(statement)
        for found in changes(node)
        if found is not None
    })  # fmt: skip


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and its sub-nodes, without declarations, assertions, error messages and f-strings."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert | ast.FunctionDef):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _expressions(child)


def chosen(root: Path, number: int, seed: int = 0) -> list[Mutant]:
    """Choose `number` mutants, equally many per area; a larger number extends a smaller selection."""
    random, orders = Random(seed), []
    for patterns, functions in AREAS.values():
        files = sorted({path for pattern in patterns for path in root.glob(pattern)})
        found = [mutants(path.read_bytes(), path.relative_to(root).as_posix(), functions) for path in files]
        for each in found:
            random.shuffle(each)
        found = [each for each in found if each]
        random.shuffle(found)
        longest = max(map(len, found), default=0)  # take one mutant of each file before a second of any
        orders.append([each[i] for i in range(longest) for each in found if i < len(each)])
    depth = max(map(len, orders), default=0)
    return [order[i] for i in range(depth) for order in orders if i < len(order)][:number]


def covering(root: Path, file: str, most: int = 3) -> list[str]:
    """List the test files that cover a file: first those named like it, then those that import it most."""
    package, stem = Path(file).parent.name, Path(file).stem
    names = [rf"{package}\.{stem}\b", rf"specviz\.{package} import .*\b{stem}\b", rf"\b{stem}\."]
    scores = {}
    for path in sorted(root.glob("tests/**/test_*.py")):
        if SLOW.intersection(path.relative_to(root).parts):
            continue
        text = path.read_text(encoding="utf8")
        near = stem.removesuffix("_context") in path.stem.split("test_")[-1]
        imports = sum(min(5, len(re.findall(name, text))) for name in names)
        score = 20 * near + 2 * (package in path.parts) + imports
        scores[path.relative_to(root).as_posix()] = score
    ranked = sorted((name for name in scores if scores[name] > 0), key=lambda name: -scores[name])
    usual = [name for name in USUAL.get(package, ()) if name in scores]
    return list(dict.fromkeys([*ranked[:most], *usual]))
