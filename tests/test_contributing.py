"""The recipe of CONTRIBUTING runs unchanged, and its method passes the conformance check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the run extra")
pytest.importorskip("anywidget", reason="needs the lab extra")

import specviz as sv

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
PROMPTS = ["The cook saw the cook. The cook saw the", "Can you tell me about the cook?"]


def test_the_recipe_stands_first_and_is_short():
    assert TEXT.index("```python") < TEXT.index("## Set up") < TEXT.index("## The house")
    first, _, whole = BLOCKS[:3]
    assert len([line for line in first.splitlines() if line.strip()]) == 7
    assert len(whole.splitlines()) <= 40


def test_the_seven_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(BLOCKS[0], "CONTRIBUTING.md", "exec"), names)
    trace = names["trace"]
    plain = sv.generate("town", "The cook saw the cook.", "autoregressive", max_new_tokens=24)
    assert trace.text == plain.text and trace.cycles["drafted"].sum() > 0
    exec(compile(BLOCKS[1], "CONTRIBUTING.md", "exec"), names)
    assert len(names["trace"].texts) == 2 and (tmp_path / "echo.html").exists()


def test_the_whole_file_is_a_method_that_passes():
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(BLOCKS[2], "CONTRIBUTING.md", "exec"), names)
    method = names["LongestMatch"]
    trace = sv.generate("town", PROMPTS[0], method, max_new_tokens=24, temperature=0.8)
    assert trace.nodes["age"].notna().all() and (trace.cycles["control_matched"].iloc[1:] >= 0).all()
    result = sv.check.method(method, prompts=PROMPTS)
    assert result, result
    assert result["sampling law"].state == "pass" and "2 signals" in result["trace"].detail


def generator(draft):
    return draft
    yield  # makes it a generator


def drafting(draft):
    return type("Own", (sv.Method,), {"draft": draft})


@pytest.mark.parametrize(
    ("draft", "line"),
    [
        (lambda self, left: [1, 2], "must return a Draft, got list: return sv.Draft.chain"),
        (lambda self, left: None, "must return a Draft, got NoneType"),
        (lambda self, left: sv.Draft.chain([1] * 40), "drafted 40 tokens although only 8 may"),
        (lambda self, left: generator(sv.Draft.chain([1] * 40)), "drafted 40 tokens although only 8 may"),
        (lambda self, left: sv.Draft.chain([1.5]), "a draft's tokens are ids, whole numbers"),
        (lambda self, left: sv.Draft.chain([1], q=[[0.5]]), "which the inherited verifier does not use"),
        (sv.Method.draft, r"drafts nothing: write draft\(self, left\)"),
    ],
)
def test_first_mistakes_get_one_line(draft, line):
    with pytest.raises(sv.errors.ParameterError, match=line):
        sv.generate("town", PROMPTS[0], drafting(draft), max_new_tokens=8, temperature=0.8)


def test_the_table_names_every_package():
    table = TEXT[TEXT.index("| wing |") : TEXT.index("## Habits")]
    folder = Path(sv.__file__).parent
    for path in folder.iterdir():
        if path.suffix == ".py" and not path.name.startswith("__"):
            assert f"`{path.name}`" in table, path.name
        elif path.is_dir() and any(path.glob("*.py")):
            assert f"`{path.name}/`" in table, path.name
