"""Train, dev and test share no sentence, in any language.

What counts as a sentence: every text is cut behind `.`, `!`, `?`, their wide forms and line ends. Excluded are the
frames, the fixed phrases around the content: a turn is matched against the variants of its kind's phrases
(``PHRASES`` of the language), and what stands in their slots is the content. Openings ("In short:") are taken off the
front of an answer; step phrases leave their equation; the phrase around a noun ("Tell me about {who}.") leaves
nothing; slots with nothing between them are read as one. A function of the code tasks is one sentence (its lines
are Python's, shared by all).
"""

from __future__ import annotations

import random
import re
from functools import cache

import pytest

from town.corpus import language, tasks
from town.corpus.meaning import CODES, split_of

SPLITS = ("train", "dev", "test")


@cache
def _patterns(code: str, name: str) -> list[re.Pattern[str]]:
    found = []
    for variant in sorted(language(code).PHRASES[name], key=len, reverse=True):
        merged = re.sub(r"\{(\w+)\}\s*\{question\}", r"{\1}", variant.strip())  # their boundary is unmarked
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.*)", re.escape(merged))
        found.append(re.compile(pattern, re.DOTALL))
    return found


def _slots(code: str, name: str, text: str) -> dict[str, str]:
    for pattern in _patterns(code, name):
        if match := pattern.fullmatch(text.strip()):
            return match.groupdict()
    raise AssertionError(f"{text!r} is no {name} of {code}")


def _without(code: str, name: str, text: str) -> str:
    for variant in sorted(language(code).PHRASES[name], key=len, reverse=True):
        if variant.strip() and text.startswith(variant.strip()):
            return text[len(variant.strip()) :].strip()
    return text


def _cut(text: str) -> list[str]:
    return [s.strip() for s in re.findall(r"[^.。!！?？\n]+[.。!！?？]?", text) if s.strip(" .。!！?？¿¡\n")]


def _content(sample: tasks.Sample) -> list[str]:
    code, (user, answer) = sample.language, sample.turns[-1]
    if sample.kind == "conversation":
        told = _without(code, "tell_opening", sample.turns[0][1])
        return [*_cut(told), *_cut(_slots(code, "ask_more", user)["question"]), *_cut(answer)]
    if sample.kind == "translation":
        return [*_cut(_slots(code, "translate", user)["text"]), *_cut(answer)]
    if sample.kind == "summarization":
        return [*_cut(_slots(code, "summarize", user)["text"]), *_cut(_without(code, "summary_opening", answer))]
    if sample.kind == "qa":
        found = _slots(code, "answer_question", user)
        return [*(s for part in found.values() for s in _cut(part)), *_cut(answer)]
    if sample.kind == "rag":
        found = _slots(code, "use_passages", user)
        passages = [_slots(code, "passage", p)["text"] for p in found["passages"].split("\n")]
        said = _slots(code, "from_passage", answer)["answer"]
        return [*(s for p in passages for s in _cut(p)), *_cut(found.get("question", "")), *_cut(said)]
    if sample.kind == "arithmetic":
        steps = re.findall(r"\d+ [+-] \d+ = \d+", answer)
        last = answer[answer.rindex(steps[-1]) :]
        conclusions = [_cut(p.groupdict()["sentence"]) for q in _patterns(code, "conclusion")
                       if (p := re.search(q, last))]  # fmt: skip
        return [*_cut(_slots(code, "solve", user)["problem"]), *steps, *conclusions[0]]
    return [_slots(code, "write_code", user)["task"], answer[answer.index("def ") :]]


def _said(split: str, kind: str, each: int) -> set[tuple[str, str]]:
    rng = random.Random(f"{split}:{kind}")
    found = set()
    for code in CODES:
        for _ in range(each):
            sample = tasks.sample(rng, split, kind, code)  # type: ignore[arg-type]
            found |= {(kind == "code", s) for s in _content(sample)}
    return found


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, set[tuple[str, str]]]]:
    """Sentences by split and kind: some 3,000 chats of train, 450 each of dev and test."""
    counts = {"train": 65, "dev": 9, "test": 9}
    return {
        split: {kind: _said(split, kind, counts[split] // (3 if kind == "arithmetic" else 1)) for kind in tasks.KINDS}
        for split in SPLITS
    }


@pytest.mark.parametrize(("one", "other"), [("train", "dev"), ("train", "test"), ("dev", "test")])
def test_splits_share_no_sentence(said: dict, one: str, other: str) -> None:
    first = set().union(*said[one].values())
    second = set().union(*said[other].values())
    assert len(first) > 500
    assert len(second) > 500
    assert not {s for _, s in first & second}


def test_the_cutting_finds_sentences(said: dict) -> None:
    """A test of the test: sentences recur within a split, so disjointness does not come from bad cutting."""
    again = set().union(*(_said("train", kind, 10) for kind in ("translation", "arithmetic", "code")))
    assert again & set().union(*said["train"].values())
    lengths = [len(s) for kind in ("translation", "qa") for _, s in said["test"][kind]]
    assert sum(lengths) / len(lengths) < 80


def test_every_meaning_of_a_sample_is_of_its_split() -> None:
    rng = random.Random(0)
    for split in SPLITS:
        for kind in tasks.KINDS:
            for _ in range(3):
                sample = tasks.sample(rng, split, kind)  # type: ignore[arg-type]
                assert {_split_of_key(k) for k in sample.sentences} == {split}


def _split_of_key(found: object) -> str:
    import hashlib

    bucket = int.from_bytes(hashlib.blake2b(repr(found).encode(), digest_size=4).digest(), "big") % 20
    return {0: "test", 1: "dev"}.get(bucket, "train")


def test_the_key_function_is_the_one_tested() -> None:
    assert split_of(("+", 3, 4)) == _split_of_key((("+", 3, 4),))
