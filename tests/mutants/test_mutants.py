"""The planter of mutants, on a toy module: each operator once, no declarations, survivors reported."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.planting import AREAS, chosen, covering, mutants
from tests.mutants.warm import pairs, probed

TOY = '''"""A module with 1 < 2 in its docstring."""

LIMIT = 3


def accepts(p: float, q: float = 0.5) -> bool:
    """Whether p < q."""
    é = "é"; return p < q and not q == 1  # what follows a letter of two bytes


def other(n: int) -> int:
    if n is None:
        raise ValueError(f"{n + 1} is not in {n} < 3")
    return n + 2 * LIMIT if n in (4, True) else n // 5
'''
TEST = """from specviz.rules.toy import accepts

def test_accepts():
    assert accepts(0.2, 0.5) and not accepts(0.6, 0.5)
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "specviz" / "rules").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "specviz" / "__init__.py").touch()
    (tmp_path / "specviz" / "rules" / "__init__.py").touch()
    (tmp_path / "specviz" / "rules" / "toy.py").write_text(TOY, encoding="utf8")
    (tmp_path / "tests" / "test_toy.py").write_text(TEST)
    return tmp_path


def test_every_operator_is_changed_once_and_nothing_else():
    found = mutants(TOY.encode(), "toy.py")
    assert [(m.line, m.before, m.after) for m in found] == [
        (8, "<", "<="), (8, "and", "or"), (8, "not", ""), (8, "==", "!="), (8, "1", "2"),
        (12, "is", "is not"),
        (14, "+", "-"), (14, "2", "3"), (14, "*", "+"), (14, "in", "not in"), (14, "4", "5"),
        (14, "True", "False"), (14, "//", "*"), (14, "5", "6"),
    ]  # fmt: skip
    for each in found:
        changed = each.applied(TOY.encode())
        ast.parse(changed)
        assert changed != TOY.encode()
    assert {m.line for m in mutants(TOY.encode(), "toy.py", "accept")} == {8}


def test_choice_and_cover_follow_from_the_seed(root):
    first, again = chosen(root, 6), chosen(root, 6)
    assert first == again and first[:3] == chosen(root, 3) and len(set(first)) == 6
    assert first != chosen(root, 6, seed=1)
    assert covering(root, "specviz/rules/toy.py") == ["tests/test_toy.py"]


def test_every_area_of_the_repository_has_mutants_and_tests():
    planted = chosen(command.ROOT, 10)
    assert len(planted) == 10
    for patterns, _ in AREAS.values():
        assert any(Path(m.file).match(pattern) for m in planted for pattern in patterns)
    assert all(covering(command.ROOT, m.file) for m in planted)


def test_a_probe_stands_before_what_a_mutant_changes():
    found = dict(enumerate(mutants(TOY.encode(), "toy.py")))
    names = {"reached": set()}
    names["__reached__"] = names["reached"].add
    exec(compile(probed(TOY.encode(), found), "toy.py", "exec"), names)
    lines = lambda: {found[number].line for number in names["reached"]}
    names["accepts"](0.2)
    assert lines() == {8}
    with pytest.raises(TypeError):
        names["other"](None)
    assert lines() == {8, 12}
    names["other"](2)
    assert lines() == {8, 12, 14} and names["reached"] == set(found)


def test_a_changed_file_has_the_same_functions():
    for each in chosen(command.ROOT, 20):
        source = (command.ROOT / each.file).read_bytes()
        before, *others = (
            compile(content, each.file, "exec", dont_inherit=True)
            for content in (source, each.applied(source), probed(source, {0: each}))
        )
        for other in others:
            found = list(pairs(before, other))
            assert all((old.co_name, old.co_freevars) == (new.co_name, new.co_freevars) for old, new in found)
            assert any(old.co_code != new.co_code or old.co_consts != new.co_consts for old, new in found)


def test_survivors_are_printed_and_a_record_goes_on(root, tmp_path_factory, capsys, monkeypatch):
    record = tmp_path_factory.mktemp("record") / "mutants.jsonl"
    (planted,) = (m for m in mutants(TOY.encode(), "specviz/rules/toy.py", "accept") if m.before == "and")
    (alive,) = (m for m in mutants(TOY.encode(), "specviz/rules/toy.py", "accept") if m.before == "<")
    monkeypatch.setattr(command, "chosen", lambda *_: [planted, alive])
    options = {"number": 2, "seed": 0, "jobs": 1, "limit": 60, "minutes": 5}
    assert command.run(root, record, **options) == 1
    out = capsys.readouterr().out
    assert "killed: specviz/rules/toy.py:8: and -> or" in out
    assert "survived: specviz/rules/toy.py:8: < -> <=" in out
    assert "1 killed, 1 survived" in out
    assert (root / "specviz" / "rules" / "toy.py").read_text(encoding="utf8") == TOY
    assert [json.loads(line)["outcome"] for line in record.read_text().splitlines()] == ["killed", "survived"]
    monkeypatch.setattr(command, "warmly", lambda *_: pytest.fail("it is in the record"))
    assert command.run(root, record, **options) == 1
    assert command.run(root, record, **options | {"minutes": 0}) == 1


def test_tests_that_fail_without_a_mutant_end_the_run(root, tmp_path, monkeypatch):
    (root / "tests" / "test_toy.py").write_text("def test_never():\n    assert False\n")
    monkeypatch.setattr(command, "chosen", lambda *_: mutants(TOY.encode(), "specviz/rules/toy.py", "accept"))
    record = tmp_path / "mutants.jsonl"
    with pytest.raises(SystemExit, match="fail without a mutant"):
        command.run(root, record, number=1, seed=0, jobs=1, limit=60, minutes=5)
    assert not record.exists()
