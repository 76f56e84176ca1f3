"""The exercises' notebook: the teacher's passes every check; the students' contains no solution."""

from __future__ import annotations

import json
import os
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from specviz import cli
from specviz.check.students import copy_exercises, solves, without_solutions
from specviz.errors import SpecvizError
from specviz.paths import walkthroughs

NAME, SSD = "12_exercises.ipynb", "11c_ssd_in_numbers.ipynb"
CHECKS = ("greedy_verifier", "rejection_rule", "bild_rollback", "tree_mask")


@pytest.fixture(scope="module")
def teacher():
    return json.loads((walkthroughs() / NAME).read_text(encoding="utf8"))


@pytest.fixture(scope="module")
def students(tmp_path_factory):
    """The students' copies by name."""
    paths = {path.name: path for path in copy_exercises(tmp_path_factory.mktemp("students"))}
    assert set(paths) == {SSD, NAME}
    for path in paths.values():
        assert not any(solves(cell) for cell in json.loads(path.read_text(encoding="utf8"))["cells"])
        for picture in re.findall(r"stills/\w+[.]png", path.read_text(encoding="utf8")):
            assert (path.parent / picture).is_file()
    return {name: json.loads(path.read_text(encoding="utf8")) for name, path in paths.items()}


@pytest.fixture(scope="module")
def student(students):
    return students[NAME]


def lines(cells):
    return {line.strip() for cell in cells for line in "".join(cell["source"]).splitlines()}


def test_every_exercise_has_its_parts(teacher):
    """Stub, solution, check; a hint and a folded explanation; a goal, a prediction, dots and a time box."""
    cells = teacher["cells"]
    for name in CHECKS:
        at = [i for i, c in enumerate(cells) if f"def {name}(" in "".join(c["source"])]
        assert len(at) == 2 and at[1] == at[0] + 1, name
        assert "NotImplementedError" in "".join(cells[at[0]]["source"])
        assert solves(cells[at[1]])
        assert cells[at[1]]["metadata"]["jupyter"] == {"source_hidden": True}
        assert "".join(cells[at[1] + 1]["source"]) == f"sv.check.{name}({name})"
        assert "<summary>Hint" in "".join(cells[at[1] + 2]["source"])
        assert "<summary>Solution" in "".join(cells[at[1] + 3]["source"])
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    for word in ("**Goal.**", "**Predict.**", "&nbsp; ●"):
        assert text.count(word) >= 4, word


def test_no_solution_is_left(teacher, student):
    solutions = [c for c in teacher["cells"] if solves(c)]
    assert len(solutions) >= 2 * len(CHECKS)
    kept = [c for c in teacher["cells"] if not solves(c)]
    telling = {line for line in lines(solutions) - lines(kept) if len(line) > 12}
    assert len(telling) > 25
    text = json.dumps(student, ensure_ascii=False)
    assert not [line for line in telling if json.dumps(line, ensure_ascii=False)[1:-1] in text]
    assert "olution" not in text
    assert [c["source"] for c in student["cells"]] == [c["source"] for c in kept]
    assert text.count("<summary>Hint") == len(CHECKS)


def test_outputs_go_too(teacher):
    """The output of a solved check reveals the answer."""
    book = json.loads(json.dumps(teacher))
    code = next(c for c in book["cells"] if c["cell_type"] == "code" and not solves(c))
    code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "secret"}]
    assert "secret" not in json.dumps(without_solutions(book))


def executed(book, folder):
    """The notebook's code cells after running it from top to bottom."""
    nbformat = pytest.importorskip("nbformat", reason="needs the test extra")
    nbclient = pytest.importorskip("nbclient", reason="needs the test extra")
    book = nbformat.reads(json.dumps(book), 4)
    client = nbclient.NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}
    )
    client.execute(env=os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"})
    return [c for c in book.cells if c.cell_type == "code"]


def verdicts(cells):
    checks = [c for c in cells if c.source.startswith("sv.check.")]
    assert [c.source for c in checks] == [f"sv.check.{n}({n})" for n in CHECKS]
    return [c.outputs[0]["data"]["text/plain"] for c in checks]


def test_the_teachers_copy_passes_every_check(teacher, tmp_path):
    for verdict in verdicts(executed(teacher, tmp_path)):
        assert verdict.startswith("✓")


def test_the_students_copy_runs_and_waits(student, tmp_path):
    for verdict in verdicts(executed(student, tmp_path)):
        assert verdict.startswith("…") and "not implemented yet" in verdict


def test_a_stub_does_not_stop_the_appendix(students, capsys):
    """Its later cells need no solution, so its check must not raise."""
    code = ["".join(cell["source"]) for cell in students[SSD]["cells"] if cell["cell_type"] == "code"]
    at = next(i for i, source in enumerate(code) if "def surest(" in source)
    no_rows = SimpleNamespace(arrow=lambda columns: pa.table({name: [] for name in columns}))
    variables = {"np": np, "stepwise": no_rows}
    for source in code[at : at + 2]:
        exec(source, variables)
    assert capsys.readouterr().out.startswith("not implemented yet")


def test_the_command(tmp_path, capsys):
    assert cli.run(["exercises", str(tmp_path / "class")]) == 0
    assert str(tmp_path / "class" / NAME) in capsys.readouterr().out
    assert cli.run(["exercises", str(tmp_path / "class")]) == 2
    assert "--force" in capsys.readouterr().err
    assert cli.run(["exercises", str(tmp_path / "class"), "--force"]) == 0


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecvizError, match="cannot write"):
        copy_exercises(tmp_path / "file")


def test_nothing_is_written_where_one_notebook_is_there(tmp_path):
    (tmp_path / NAME).write_text("my own")
    with pytest.raises(SpecvizError, match="--force"):
        copy_exercises(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_text() == "my own"
