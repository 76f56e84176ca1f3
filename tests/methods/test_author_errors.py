"""A method author's mistakes are reported in one line that says what to write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the run extra")

import torch

import specviz as sv
from specviz.errors import ParameterError
from specviz.methods.kinds import SizedMethod

SIZE = sv.Parameter("size", 3, 1, 4)


def method(base: type[sv.Method] = sv.Method, **body: object) -> type[sv.Method]:
    return type("Mine", (base,), body)


def decode(kind: type[sv.Method]) -> sv.Trace:
    return sv.generate("town", "The cook", kind, max_new_tokens=4)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"parameters": SIZE}, r"Mine\.parameters is a tuple of Parameter.*ends in a comma"),
        ({"parameters": (SIZE, SIZE)}, r"has 'size' twice"),
        ({"parameters": (sv.Parameter("draft", 3),)}, r"would hide Method\.draft"),
        ({"parameters": (sv.Parameter("memory", 3),)}, r"would hide Hooks\.memory"),
        ({"parameters": (sv.Parameter("session", 3),)}, r"would hide Method\.session"),
        ({"parameters": (sv.Parameter("resize", 3),), "base": SizedMethod}, r"hide SizedMethod\.resize"),
        ({"parameters": (sv.Parameter("unsized", 3),), "base": SizedMethod}, r"hide SizedMethod\.unsized"),
        ({"signals": sv.Signal("x")}, r"Mine\.signals is a tuple of Signal"),
        ({"signals": ("x",)}, r"Mine\.signals is a tuple of Signal"),
        ({"name": "two words"}, r"cannot be called 'two words'"),
        ({"name": 3}, r"cannot be called 3"),
        ({"pseudocode": (("draft", "x" * 257),)}, r"Mine\.pseudocode is at most 64 pairs \(when, line\)"),
        ({"pseudocode": (("", "x"),) * 65}, r"Mine\.pseudocode is at most 64 pairs"),
        ({"pseudocode": (("draft", "x", "y"),)}, r"Mine\.pseudocode is at most 64 pairs"),
        ({"pseudocode": (3,)}, r"Mine\.pseudocode is at most 64 pairs"),
        ({"pseudocode": None}, r"Mine\.pseudocode is at most 64 pairs"),
    ],
)
def test_a_class_that_declares_wrongly_is_refused(body: dict[str, object], message: str):
    with pytest.raises(TypeError, match=message):
        method(**body)


def test_a_class_may_repeat_the_parameters_of_its_base():
    width, limit = sv.Parameter("width", 3, 1, 4), sv.Parameter("limit", 2)
    base = method(parameters=(width,), width=3, limit=5)
    longer = method(base, parameters=(width, sv.Parameter("k", 2)))
    assert longer(width=4).values == {"width": 4, "k": 2}
    with pytest.raises(TypeError, match=r"'limit' would hide Mine\.limit"):
        method(base, parameters=(width, limit))


@pytest.mark.parametrize(
    ("name", "default", "message"),
    [
        ("size", 9, r"size must lie in \[1, 4\], got 9"),
        ("size", None, "a default is True, False, a number or a string"),
        ("a size", 3, "cannot be called 'a size'"),
    ],
)
def test_a_parameter_has_a_name_and_a_legal_default(name: str, default: object, message: str):
    with pytest.raises(ParameterError, match=message):
        sv.Parameter(name, default, 1, 4)


@pytest.mark.parametrize(("default", "choices"), [(3, (3, 4)), (True, ("a",)), ("a", ("a", 1))])
def test_choices_are_strings(default: object, choices: tuple[object, ...]):
    with pytest.raises(ParameterError, match="size: choices are strings, for a default that is one"):
        sv.Parameter("size", default, choices=choices)


@pytest.mark.parametrize("name", ["seed", "temperature", "batch", "out"])
def test_a_parameter_does_not_take_the_name_of_an_option(name: str):
    kind = method(parameters=(sv.Parameter(name, 1),), draft=lambda self, left: sv.Draft.empty())
    with pytest.raises(ParameterError, match=f"'{name}', which is an option of every run: rename it"):
        decode(kind)


@pytest.mark.parametrize(
    "tokens",
    ["ab", None, 7, {1, 2}, [1.5], [[1, 2]], np.array([1.5]), np.array([[1]]), torch.tensor([0.5])],
)
def test_tokens_that_are_no_ids_are_refused(tokens: object):
    with pytest.raises(ParameterError, match="a draft's tokens are ids"):
        sv.Draft.chain(tokens)


@pytest.mark.parametrize("tokens", [(1, 2), range(1, 3), [1, 2], np.array([1, 2]), torch.tensor([1, 2])])
def test_ids_come_as_any_row_of_whole_numbers(tokens: object):
    assert [int(token) for token in sv.Draft.chain(tokens).tokens] == [1, 2]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"source": 3}, "source is a string, or one string for each node"),
        ({"source": ["a", "b"]}, "source is a string, or one string for each node"),
        ({"stop": 4}, "stop is a word"),
        ({"signals": {"confidence": 0.5}}, "give one value for each node"),
    ],
)
def test_what_a_draft_says_of_itself_is_checked(more: dict[str, object], message: str):
    with pytest.raises(ParameterError, match=message):
        sv.Draft.chain([1], **more)


def test_a_generator_yields_contexts_and_returns_a_draft():
    def yields(self: sv.Method, left: int) -> Iterator[object]:
        yield 3

    with pytest.raises(ParameterError, match=r"yields a context that session\.open gave.*got 3"):
        decode(method(draft=yields))


@pytest.mark.parametrize("batch", [1, 2])
def test_verify_returns_a_verdict(batch: int):
    kind = method(
        draft=lambda self, left: sv.Draft.empty(), verify=lambda self, draft, scores: None,
        guarantee=lambda self, sampling, dtype: "lossy",
    )  # fmt: skip
    with pytest.raises(ParameterError, match=r"mine\.verify must return a Verdict, got NoneType"):
        sv.generate("town", ["The cook", "A dog"], kind, max_new_tokens=4, batch=batch)


def test_a_guarantee_is_one_of_four_words():
    kind = method(draft=lambda self, left: sv.Draft.empty(), guarantee=lambda self, sampling, dtype: "sure")
    with pytest.raises(
        ParameterError, match="must return one of exact, exact up to ties, exact in law, lossy, got 'sure'"
    ):
        decode(kind)


def test_one_instance_does_not_decode_two_texts_in_turns():
    one = sv.method("unispec", draft_size=4)
    first, second = (sv.stream("town", text, one, max_new_tokens=8) for text in ("The cook", "A dog"))
    next(first), next(first), next(second)
    with pytest.raises(ParameterError, match="this unispec has begun another text: give each unfinished run"):
        next(first)
    assert second.finish().text == sv.generate("town", "A dog", "autoregressive", max_new_tokens=8).text
    own = sv.stream("town", "The cook", one.again(), max_new_tokens=8)
    assert own.finish().text == sv.generate("town", "The cook", "autoregressive", max_new_tokens=8).text
