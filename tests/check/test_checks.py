"""The checks: right functions pass, mistakes are named, and student output and errors stay contained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specviz import check
from specviz.check import greedy, rejection, rollback, score, tree
from specviz.check.exercise import judge, same
from specviz.check.result import TODO, words

EXERCISES = {e.name: e for e in (m.EXERCISE for m in (greedy, rejection, rollback, tree))}
NAMED = [(name, i) for name, e in EXERCISES.items() for i in range(len(e.mistakes))]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory, because the checks keep the score in a file there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def unpacked(exercise, answer):
    """An answer in the form that a student's function returns."""
    if len(exercise.parts) > 1:
        return answer
    return lambda *given: answer(*given)[0]


def test_needs_no_torch():
    code = (
        "import sys, specviz as sv; sv.check.tree_mask(lambda parents: None); sv.check.rejection_rule(len)\n"
        "print([m for m in ('torch', 'transformers', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", EXERCISES)
def test_the_right_answer_passes(name):
    exercise = EXERCISES[name]
    result = getattr(check, name)(unpacked(exercise, exercise.answer))
    assert result
    assert f"all {len(exercise.cases)} cases" in repr(result)
    assert "Go further" in repr(result)


@pytest.mark.parametrize(("name", "number"), NAMED)
def test_every_known_mistake_is_named(name, number):
    """Even the rarest mistake is named, and not mistaken for another that explains it as well."""
    exercise = EXERCISES[name]
    mistake = exercise.mistakes[number]
    result = judge(exercise, unpacked(exercise, mistake.answer))
    assert not result
    assert result.says == "Likely mistake: " + mistake.says
    kinds = [kind for kind, _, _ in result.rows]
    assert {"given", "yours", "right"} <= set(kinds)
    yours, right = ([v for k, _, v in result.rows if k == kind] for kind in ("yours", "right"))
    assert yours != right


def test_what_no_known_mistake_explains_is_shown_by_its_smallest_case():
    result = check.greedy_verifier(lambda drafted, best, eos: [t + 1 for t in drafted])
    assert "This is none of the mistakes that the check recognises" in result.says
    shown = {name: value for _, name, value in result.rows}
    assert shown["drafted"] == "[1]"
    assert shown["yours returned ✗"] == "[2]"


def test_two_mistakes_do_not_hide_each_other():
    """The mistake at the end of the text is reported once the rest is right."""

    def both(drafted, best, eos):
        kept = greedy.matching(drafted, best)
        return drafted if kept == len(drafted) else [*drafted[:kept], best[kept]]

    assert "no bonus token" in check.greedy_verifier(both).says

    def one(drafted, best, eos):
        kept = greedy.matching(drafted, best)
        return [*drafted[:kept], best[kept]]

    assert "after the end of the text" in check.greedy_verifier(one).says


def test_an_unclipped_residual():
    def rule(drafted, draft_logits, target_logits, temperature, u):
        return rejection.answer(
            drafted, draft_logits, target_logits, temperature, u,
            law=lambda p, q, kept: p[kept] if kept == len(q) else p[kept] - q[kept],
        )  # fmt: skip

    assert "negative" in check.rejection_rule(rule).says


def stub(parents):
    raise NotImplementedError("your turn")


def crash(parents):
    depth = []
    return depth[len(parents)]


def endless(parents):
    while True:
        pass


def silent(parents):
    print("hello")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (crash, "IndexError: list index out of range, in line"),
        (endless, "does not finish"),
        (silent, "returned nothing (None)"),
        (lambda parents: np.eye(len(parents)), "two things"),
        (lambda parents: (np.eye(3), [1]), "shape [1, 1]"),
        (lambda parents: ([[1, 0], [1]], [1]), "shape [1, 1]"),
        (lambda parents: (np.zeros((1, 1)) - np.inf, [1]), "not what is added to the scores"),
        (lambda parents: ([["x"]], [1]), "array of numbers"),
        (lambda parents: (np.eye(len(parents)), [0.5] * len(parents)), "integers"),
        (lambda parents, more: 0, "called as tree_mask(parents), and yours takes (parents, more)"),
        (3, "without calling it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "f",  # the same in every process
)
def test_what_has_no_right_form_is_said_in_one_line(function, says, capsys):
    result = check.tree_mask(function)
    assert not result
    assert says in result.says
    assert "\n" not in result.says
    assert capsys.readouterr() == ("", "")


def test_the_line_of_an_error_is_shown_and_a_print_comes_with_the_example():
    assert "return depth[len(parents)]" in check.tree_mask(crash).says
    assert ("given", "yours printed", "hello") in check.tree_mask(silent).rows


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda drafted, best, eos: 2, "not their number"),
        (lambda drafted, best, eos: "12", "a list of token ids"),
        (lambda drafted, best, eos: [1.5], "integers"),
    ],
)
def test_tokens_are_a_list_of_ints(function, says):
    assert says in check.greedy_verifier(function).says


class Unreadable:
    """Like a tensor that needs a gradient."""

    def __array__(self, *_, **__):
        raise RuntimeError("call detach() first")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (([1], [1, 0, 0]), "not the tokens"),
        ((1, 2), "not a single number"),
        ((1.0, [1, 0, 0]), "integer"),
        ((1, [1, 0]), "shape [3]"),
        ((1, [np.nan, 0, 0]), "NaN"),
        (([[1], [1, 0]], [1, 0, 0]), "not the tokens"),
        ((1, [np.ones((2, 3)), np.ones((1, 3))]), "law must be an array of numbers"),
        ((1, Unreadable()), "law must be an array of numbers"),
        (7, "law (a distribution); it returned something of type int."),
    ],
)
def test_kept_and_law_have_a_form(answer, says):
    result = check.rejection_rule(lambda drafted, draft_logits, target_logits, temperature, u: answer)
    assert says in result.says


def test_a_stub_is_told_kindly():
    result = check.tree_mask(stub)
    assert not result
    assert result.state == TODO
    assert "not implemented yet" in repr(result)
    assert "Error" not in repr(result)


def test_the_score_keeps_the_best_state_of_each_exercise(folder):
    assert repr(check.tree_mask(stub)).endswith("\n  0 of 4 right (specviz-exercises.json)")
    assert check.tree_mask(tree.answer).score.startswith("1 of 4 right")
    assert "1 of 4 right" in check.tree_mask(crash)._repr_html_()  # a later mistake takes nothing away
    assert check.greedy_verifier(len).score.startswith("1 of 4 right")
    states = json.loads((folder / score.FILE).read_text("utf8"))
    assert states == {"tree_mask": "right", "greedy_verifier": "wrong"}
    assert set(score.EXERCISES) == set(EXERCISES)


@pytest.mark.parametrize("content", ["{", '{"tree_mask": "best"}'])
def test_a_damaged_score_file_is_left_alone(content, folder):
    (folder / score.FILE).write_text(content)
    result = check.tree_mask(tree.answer)
    assert result
    assert result.score.startswith("The score was not kept: specviz-exercises.json")
    assert result.score.endswith(": delete it to begin again")
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [(score.FILE, content)]


def test_arguments_are_copies():
    def spoils(parents):
        answer = tree.answer(parents)
        parents.clear()
        return answer

    assert check.tree_mask(spoils)


def test_html_is_escaped():
    class Evil:
        def __repr__(self):
            return "<script>alert(1)</script>"

    html = check.greedy_verifier(lambda drafted, best, eos: [Evil()])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "<b>" not in check.greedy_verifier(lambda drafted, best, eos: f"<b>{drafted}")._repr_html_()


def test_words_are_short():
    assert words(np.array([[0.5, 0.25], [1, 0]])) == "0.50 0.25\n1.00 0.00"
    assert words(np.array([True, False])) == "1 0"
    assert len(words(list(range(10_000)))) < 200
    assert len(words("x" * 10_000)) < 200


def test_arrays_agree_up_to_rounding_only():
    assert same(np.array([0.1, 0.9]), np.array([0.1 + 1e-9, 0.9]))
    assert not same(np.array([0.1, 0.9]), np.array([0.1 + 1e-3, 0.9]))
    assert not same(np.array([0.1]), np.array([0.1, 0.9]))
