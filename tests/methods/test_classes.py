"""A method's class is accepted wherever its name is: no registration is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the run extra")

import specviz as sv
from specviz import audit, methods
from specviz.errors import ParameterError
from specviz.measure.timing import lineup

CELL = """
import specviz as sv


class Echo(sv.Method):
    parameters = (sv.Parameter("most", 3, 1, 16, "tokens", "Most tokens that are copied."),)

    def draft(self, left):
        text = self.session.text
        return sv.Draft.chain(text[: min(self.most, left - 1)], source="prompt")


trace = sv.generate("town", "The cook saw the cook.", Echo, most=2, max_new_tokens=12)
assert trace.run["method"] == "echo" and trace.run["parameters"] == {"most": 2}
"""


class Copies(sv.Method):
    """Draft the beginning of the text."""

    parameters = (sv.Parameter("most", 3, 1, 16, "tokens", "Most tokens that are copied."),)

    def draft(self, left: int) -> sv.Draft:
        return sv.Draft.chain(self.session.text[: min(self.most, left - 1)], source="prompt")


def test_a_class_decodes_and_streams_like_its_instance():
    options = {"max_new_tokens": 12}
    own = sv.generate("town", "The cook saw", Copies, most=2, **options)
    assert own.run["parameters"] == {"most": 2} and own.run["method"] == "copies"
    plain = sv.generate("town", "The cook saw", "autoregressive", **options)
    assert own.text == plain.text == sv.generate("town", "The cook saw", Copies(most=2), **options).text
    assert sum(len(cycle.tokens) for cycle in sv.stream("town", "The cook saw", Copies, **options)) == 12
    assert sv.generate("town", ["The cook", "A dog"], Copies, batch=2, **options).texts[0]
    sampled = sv.generate("town", "The cook saw", Copies, temperature=1.0, **options)
    assert sampled.recheck()["agrees"].all()


def test_audits_take_a_class():
    prompts = ["The cook saw the cook."]
    for result in (
        audit.run("town", None, prompts, Copies, max_new_tokens=8, sampled=0, laws=False),
        audit.batches("town", None, prompts * 2, [Copies], max_new_tokens=8, sampled=0),
    ):
        assert result.holds and {row.method for row in result.rows} == {"copies"}
    greedy = [audit.law.SETTINGS[0]]
    for given in ("prompt_lookup", Copies, Copies(most=2)):
        assert all(law.holds for law in audit.law.check(given, greedy))
    with pytest.raises(ParameterError, match="an instance or a function that makes one, got 3"):
        audit.law.check(3)


def test_plans_explorers_and_lineups_take_a_class(tmp_path):
    results = sv.run(
        models="town", methods=[Copies], suites={"own": ["The cook saw"]}, number=1, warm_up=0, timed=False,
        max_new_tokens=6, out=tmp_path / "run",
    )  # fmt: skip
    assert "copies" in set(results.table()["method"])
    with pytest.raises(ParameterError, match="copies is a class of this process: run it without workers"):
        sv.run(models="town", methods=[Copies], suites={"own": ["The cook saw"]}, number=1, workers=1)
    assert [entrant.method for entrant in lineup([], [Copies])] == ["copies"]
    pytest.importorskip("anywidget", reason="needs the lab extra")
    assert sv.explore(Copies, "town", "The cook saw").method == "copies"


def test_an_instance_stands_for_its_class_with_its_parameters(tmp_path):
    results = sv.run(
        models="town", methods=[Copies(most=2)], number=1, warm_up=0,
        suites={"own": ["The cook saw"]}, timed=False, max_new_tokens=6, out=tmp_path / "run",
    )  # fmt: skip
    assert {"copies": "most=2"}.items() <= dict(results.table()[["method", "parameters"]].to_numpy()).items()
    again = {"models": "town", "suites": {"own": ["The cook saw"]}, "number": 1}
    with pytest.raises(ParameterError, match="methods holds copies most=2 twice"):
        sv.run(methods=[Copies(most=2), {"method": Copies, "most": 2}], **again)
    with pytest.raises(ParameterError, match="already has its parameters; drop most"):
        sv.run(methods=[{"method": Copies(), "most": 2}], **again)
    with pytest.raises(ParameterError, match=r"methods\[0\] must be a name, a class or a method, got 3"):
        sv.run(methods=[3], **again)
    with pytest.raises(ParameterError, match="copies has no draft size to calibrate"):
        sv.calibrate("town", Copies(most=2))
    with pytest.raises(ParameterError, match="calibration determines draft_size"):
        sv.calibrate("town", sv.method("unispec", draft_size=16))
    with pytest.raises(ParameterError, match="rounds must be a whole number of at least 1"):
        sv.calibrate("town", sv.method("unispec", draft_size="calibrated"), rounds=0)
    with pytest.raises(ParameterError, match="is an instance: pass its class, and its parameters by"):
        lineup([], [Copies(most=2)])


def test_explorers_take_an_instance_and_run_other_classes():
    pytest.importorskip("anywidget", reason="needs the lab extra")
    explorer = sv.explore(Copies(most=2), "town", "The cook saw", max_new_tokens=6)
    assert explorer.values == {"most": 2}
    with pytest.raises(ParameterError, match="already has its parameters; drop most"):
        sv.explore(Copies(), "town", "The cook saw", most=2)

    class Nothing(sv.Method):
        def draft(self, left: int) -> sv.Draft:
            return sv.Draft.empty()

    for given, name in ((Nothing, "nothing"), (Copies(most=3), "copies")):
        explorer.run(given)
        assert explorer.wait(60) and explorer.results[-1].method == name, explorer.panel.error


def test_traces_and_what_ifs_take_a_class_for_its_name():
    trace = sv.generate("town", "The cook saw", Copies, max_new_tokens=6)
    for given in ("copies", Copies, Copies(most=2), ["speculative", Copies]):
        assert trace.select(method=given).run["method"] == "copies"
    with pytest.raises(sv.TraceError, match="no such run"):
        trace.select(method=sv.method("speculative"))
    lookup = type(sv.method("prompt_lookup"))
    questions = sv.whatif(trace)
    assert questions.can_answer("draft_length", lookup) == questions.can_answer("draft_length", lookup.name)


def test_a_class_is_found_by_its_name_once_it_was_given():
    assert methods.name_of(Copies) == "copies" and methods.find("copies") is Copies
    assert methods.of_session("copies") is Copies and "copies" not in sv.list_methods()
    assert sv.method(Copies, most=4).most == 4

    class Speculative(sv.Method):
        pass

    options = {"models": "town", "suites": {"own": ["The cook"]}, "number": 1}
    for call in (
        lambda: methods.name_of(Speculative),
        lambda: sv.generate("town", "The cook", Speculative),
        lambda: sv.generate("town", "The cook", Speculative()),
        lambda: sv.run(methods=[Speculative()], **options),
        lambda: audit.run("town", None, ["The cook"], Speculative()),
        lambda: sv.check.method(Speculative),
    ):
        with pytest.raises(ParameterError, match="name of the installed method 'speculative'"):
            call()
    other = type("Other", (Copies,), {"name": "copies"})
    with pytest.raises(ParameterError, match="two classes named 'copies'"):
        sv.run(methods=[{"method": Copies, "most": 1}, {"method": other, "most": 2}], **options)
    assert methods.find("copies") is other, "of several classes of one name the last one has it"
    assert methods.find(Copies) is methods.find("copies")
    with pytest.raises(ParameterError, match="dict is not a method"):
        sv.generate("town", "The cook", dict)


def test_a_class_of_a_notebook_s_cell_runs(tmp_path):
    (tmp_path / "cell.py").write_text(CELL, encoding="utf8")
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "cell.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
