"""The tasks: their form, their facts, and that equal seeds give equal samples."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

from specviz.errors import ParameterError
from town.corpus import tasks
from town.corpus.meaning import CODE_TASKS, CODES, Clause, Entity, Sentence


def _samples(kind: str, n: int = 40, split: str = "train", **given: object) -> list[tasks.Sample]:
    rng = random.Random(f"{kind}:{split}")
    return [tasks.sample(rng, split, kind, CODES[i % 7], **given) for i in range(n)]  # type: ignore[arg-type]


def test_the_stream_is_seeded() -> None:
    first = list(islice(tasks.stream(3, "train"), 100))
    assert first == list(islice(tasks.stream(3, "train"), 100))
    assert first[:50] != list(islice(tasks.stream(4, "train"), 50))
    assert {s.kind for s in first} == set(tasks.KINDS)


def test_references_do_not_disturb_the_stream() -> None:
    one, other = random.Random(1), random.Random(1)
    for _ in range(30):
        bare, full = tasks.sample(one, "train"), tasks.sample(other, "train", references=3)
        assert bare.turns == full.turns
        assert full.turns[-1][1] not in full.references
        assert len(set(full.references)) == len(full.references) <= 3


@pytest.mark.parametrize("kind", tasks.KINDS)
def test_every_kind_in_every_language(kind: str) -> None:
    for sample in _samples(kind, 70):
        assert sample.kind == kind
        assert len(sample.turns) == (2 if kind == "conversation" else 1)
        assert (sample.target is not None) == (kind == "translation") == bool(sample.meaning)
        assert sample.messages[-1]["role"] == "user"
        assert sample.bits >= 0
        assert sample.sentences
        for turn in sample.turns:
            for text in turn:
                assert text.strip() == text
                assert text
                assert "  " not in re.sub(r"\n +", "", text)
                assert "{" not in text


def test_weights_are_shares() -> None:
    for weights in (tasks.KIND_WEIGHTS, tasks.LANGUAGE_WEIGHTS, tasks.PAIR_WEIGHTS):
        assert sum(weights.values()) == pytest.approx(1)
    assert set(tasks.LANGUAGE_WEIGHTS) == set(CODES)
    assert len(tasks.PAIR_WEIGHTS) == 42


@pytest.mark.parametrize(
    ("split", "given"),
    [("all", {}), (None, {}), ("train", {"kind": "poetry"}), ("train", {"language": "it"}),
     ("train", {"kind": "translation", "language": "en", "target": "en"})],
)  # fmt: skip
def test_unknown_options_are_refused(split: str, given: dict[str, str]) -> None:
    with pytest.raises(ParameterError):
        tasks.sample(random.Random(0), split, **given)  # type: ignore[arg-type]


def test_the_steps_of_arithmetic_are_right_and_follow() -> None:
    for sample in _samples("arithmetic", 140):
        answer = sample.turns[0][1]
        steps = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", answer)
        assert len(steps) in (2, 3)
        for (a, sign, b, result), following in zip(steps, [*steps[1:], None]):
            assert int(result) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
            assert following is None or following[0] == result
        spoken = re.sub(r"\d+ [+-] \d+ = \d+", "", answer)
        if int(steps[-1][3]) > 12:  # smaller numbers may be spelled out
            assert steps[-1][3] in spoken
        for number in (steps[0][0], *(b for _, _, b, _ in steps)):
            assert int(number) <= 12 or number in sample.turns[0][0]


def test_retrieval_names_a_passage_that_is_there() -> None:
    for sample in _samples("rag", 70):
        user, answer = sample.turns[0]
        numbers = re.findall(r"\d", answer.split("\n")[0])
        assert numbers
        assert numbers[0] in "123"
        lines = user.split("\n")
        assert len(lines) == 3


def test_a_summary_is_one_short_sentence_about_the_start() -> None:
    for sample in _samples("summarization", 40):
        user, answer = sample.turns[0]
        assert len(answer) < 0.7 * len(user)
        assert len(re.findall(r"[.。!！?？]", answer)) == 1


def _run(text: str) -> object:
    source = text[text.index("def ") :]
    space: dict[str, object] = {}
    exec(source, space)
    return space[re.match(r"def (\w+)", source).group(1)]  # type: ignore[union-attr]


def _right(task: str, numbers: list[int], k: int) -> object:
    product = 1
    for n in numbers:
        product *= n
    return {
        "sum": sum(numbers), "product": product, "maximum": max(numbers), "minimum": min(numbers),
        "average": sum(numbers) / len(numbers), "count_above": sum(n > k for n in numbers),
        "keep_even": [n for n in numbers if n % 2 == 0], "keep_below": [n for n in numbers if n < k],
        "scale": [n * k for n in numbers], "shift": [n + k for n in numbers], "reverse": numbers[::-1],
        "contains": k in numbers,
    }[task]  # fmt: skip


def test_every_program_runs_and_is_right() -> None:
    assert set(tasks.PROGRAMS) == set(CODE_TASKS)
    seen = set()
    for sample in _samples("code", 300, references=4):
        ((task, name, a, k),) = sample.sentences[0]  # type: ignore[misc]
        seen.add(task)
        assert name in sample.turns[0][0]
        assert a in sample.turns[0][0]
        assert k is None or str(k) in sample.turns[0][0]
        for text in (sample.turns[0][1], *sample.references):
            for numbers in ([3, -1, 8, 50, 12], [k or 5], [7, 7, 2]):
                assert _run(text)(list(numbers)) == _right(task, numbers, k or 0), text  # type: ignore[operator]
    assert seen == set(CODE_TASKS)


def test_prompts_are_even_over_kinds() -> None:
    chats = list(tasks.prompts(21, seed=2))
    assert len(chats) == 21
    assert chats == list(tasks.prompts(21, seed=2))
    assert all(chat[-1]["role"] == "user" for chat in chats)
    assert sum(len(chat) == 3 for chat in chats) == 3  # the conversations


def test_a_question_has_one_answer_in_the_text() -> None:
    """Anna and Ben both danced, so no question asks who."""
    anna, ben = (Sentence(Clause("dance", Entity(n), time=t)) for n, t in (("Anna", "yesterday"), ("Ben", "on_monday")))
    found = [tasks._fact(random.Random(i), [anna], [anna, ben]) for i in range(60)]
    assert {f[0].asks for f in found if f} >= {"when", "who"}
    assert all(f[0].time for f in found if f and f[0].asks == "who")  # the day distinguishes them
