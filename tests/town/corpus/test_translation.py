"""Translations, their paraphrases and their prefixes."""

import random

import pytest

from specviz.errors import SpecvizError
from town.corpus import language, world
from town.corpus.meaning import Clause, Entity, Sentence
from town.corpus.translation import translate, units

PAIRS = [("en", "de"), ("de", "en"), ("en", "xx"), ("de", "xx")]


def _meanings(count):
    rng = random.Random(1)
    for i in range(count):
        yield world.story(rng, None, 2) if i % 4 == 0 else world.sentence(rng, None, question=i % 4 == 1)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_prefixes_grow_to_the_reference(source, target):
    for i, meaning in enumerate(_meanings(60)):
        t = translate(meaning, source, target, i)
        assert t.prefix(0) == ""
        assert t.prefix(t.length) == t.reference
        before = []
        for n in range(t.length + 1):
            said = t.said(n)
            assert len(said) >= len(before)
            assert all(old <= new for old, new in zip(before, said))
            before = said
            if n < t.length:  # open: the last sentence has no closing mark yet
                assert t.prefix(n) == "" or len(said) < len(t.meanings) or t.prefix(n)[-1] not in ".?" or (
                    not said[-1])  # fmt: skip


def test_prefix_waits_for_the_german_verb():
    meaning = Sentence(Clause("call", Entity("Anna"), Entity("Ben"), tense="present"))
    t = translate(meaning, "de", "en", 0)
    assert t.source == "Anna ruft Ben an."
    assert t.prefix(1) == t.prefix(2) == "Anna"
    assert t.prefix(3) == "Anna Ben"
    assert t.prefix(4) == t.reference
    assert t.reference in ("Anna is calling Ben.", "Anna calls Ben.", "Anna is phoning Ben.", "Anna phones Ben.")


@pytest.mark.parametrize("n", [-1, 5])
def test_no_such_prefix(n):
    t = translate(Sentence(Clause("sleep", Entity("Anna"))), "de", "en", 2)
    with pytest.raises(ValueError, match="prefix"):
        t.prefix(n)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_paraphrases(source, target):
    sizes = []
    for i, meaning in enumerate(_meanings(60)):
        t = translate(meaning, source, target, i, most=40)
        assert " ".join(texts[0] for texts in t.accepted) == t.reference
        for texts in t.accepted:
            assert 1 <= len(texts) == len(set(texts)) <= 40
            sizes.append(len(texts))
    assert 3 < sum(sizes) / len(sizes) < 30


def test_same_seed_same_text():
    meaning = world.story(random.Random(5), "train", 4)
    one, two = translate(meaning, "en", "de", 7), translate(meaning, "en", "de", 7)
    assert (one.source, one.reference, one.accepted) == (two.source, two.reference, two.accepted)
    assert len({translate(meaning, "en", "de", seed).reference for seed in range(20)}) > 5


def test_a_story_keeps_its_words():
    bike = Entity("bicycle", definite=False)
    story = [Sentence(Clause("buy", Entity("Anna"), bike)), Sentence(Clause("sell", Entity("Anna"), Entity("bicycle")))]
    for seed in range(20):
        text = translate(story, "de", "en", seed).reference
        assert ("bike" in text) != ("bicycle" in text)


def test_units():
    assert units("Anna ruft an.", "de") == ["Anna", "ruft", "an."]
    assert units("安娜。", "zh") == ["安", "娜", "。"]


def test_unknown_language():
    with pytest.raises(SpecvizError, match=r"'it'.*en, de"):
        language("it")
