"""Properties of every language; the files next to this one contain the hand-checked sentences."""

from __future__ import annotations

import random
import re
import string
import unicodedata

import pytest

from town.corpus import language, world
from town.corpus import meaning as m
from town.corpus.meaning import Clause as C
from town.corpus.meaning import Entity as E
from town.corpus.meaning import Place, Sentence, keyed_pick, once, paraphrases, partial, random_pick

ALL = (*m.CODES, "xx")
ANNA, DAVID = E("Anna"), E("David")
SLOTS = {f"{c}.{s}" for c in ("main", "second") for s in m.SLOTS}
SLOTS |= {f"{c}.{s}.relative" for c in ("main", "second") for s in ("subject", "object", "recipient")}

# The form of a sentence, and strings that never occur in one.
_SPACED = r"  | [,.]|,[,.]|\bNone\b"
SHAPE = {"zh": r"[^ ,.?]+[。？]", "ja": r"[^ ,.?]+[。？]", "fr": r"[A-ZÀÉÊŒ][\w' ,-]*( \?|\.)",
         "es": r"¿[A-ZÁÉÓ][\w ,]*\?|[A-ZÁÉÓ][\w ,]*\."}  # fmt: skip
WRONG = {
    "en": _SPACED + r"| \?|(?i:\b(an?|the) (an?|the)\b|\ba [aeiou]|\ban [^aeiou])",
    "de": _SPACED + r"| \?|\b(in|zu|von|bei) dem [A-Z]\w+[.?]", "xx": _SPACED + r"| \?",
    "fr": _SPACED + r"|(?i:\b(de|à) les?\b|\b([ldjmns]e|la|que) (?!huit|onze)[aâeéèêhiîoôuœ]|\bsi ils?\b|de du|de des|à du)",
    "es": _SPACED + r"| \?|(?i:\b(de|a) el\b|\by h?i(?!e)|\b(el|la|los|las|un|una) (el|la|los|las|un|una)\b|\bla agua\b)",
    "zh": r"，，|的的|了了|(?<!现)在在|会会|不没|很很|大大|None",
    "ja": r"。。|、、|、。|はは|がは|をを|にに|ででは|None",
    "vi": _SPACED + r"| \?|\b(?!luôn)(\w+) \1\b",
}  # fmt: skip


@pytest.fixture(scope="module")
def meanings() -> list[Sentence]:
    rng = random.Random(5)
    return [world.sentence(rng, None, question=i % 5 == 0, links=0.4) for i in range(1500)]


def _first(key, options, weights=None):
    return options[0]


def _say(code, sentence, pick=_first):
    spoken = language(code)
    return spoken.join(spoken.pieces(sentence, pick))


def _every(code, sentence, most=500):
    return list(paraphrases(lambda pick: _say(code, sentence, pick), most))


def _slots(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("code", ALL)
def test_random_sentences(code, meanings):
    spoken, pick = language(code), random_pick(random.Random(1))
    for meaning in meanings:
        found = spoken.pieces(meaning, pick)
        assert {p.slot for p in found} <= SLOTS | {"link", "mark"}
        assert all(p.text and p.text == p.text.strip() for p in found), found
        text = spoken.join(found)
        assert re.fullmatch(SHAPE.get(code, r"\w.*\w[.?]"), text), text
        assert not re.search(WRONG[code], text), text
        assert text[0] == text[0].upper()
        assert text == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("code", ALL)
def test_any_part_can_be_said(code, meanings):
    spoken, rng = language(code), random.Random(2)
    for i, meaning in enumerate(meanings[:400]):
        said = {s for s in (*sorted(SLOTS), "link") if rng.random() < 0.4}
        part = partial(meaning, said)
        if part is not None:
            spoken.join(spoken.pieces(part, keyed_pick(i)))
        opening = spoken.pieces(meaning, keyed_pick(i))[: rng.randint(0, 2)]
        if not any(p.slot == "mark" for p in opening):  # an unfinished text has no full stop
            assert not spoken.join(opening).endswith((".", "?", "。", "？"))
    assert spoken.join([]) == ""


@pytest.mark.parametrize("code", ALL)
def test_a_part_repeats_the_choices_of_the_whole(code):
    whole = Sentence(C("repair", E("doctor"), E("car"), time="every_day", place=Place("garden")))
    part = partial(whole, {"main.subject", "main.verb", "main.object"})
    for seed in range(20):
        says, again = ([p.text.removeprefix("把") for p in language(code).pieces(s, keyed_pick(seed))
                        if p.slot in ("main.subject", "main.object")] for s in (whole, part))  # fmt: skip
        assert says == again


@pytest.mark.parametrize("code", ALL)
def test_paraphrases_are_distinct_and_neither_few_nor_endless(code, meanings):
    counts = []
    for meaning in meanings[:120]:
        texts = _every(code, meaning, 64)
        assert len(texts) == len(set(texts))
        counts.append(len(texts))
    assert 4 <= sum(counts) / len(counts) <= 30


# Words that have both meanings: いる; à.
SAME = {"ja": {frozenset(("be_at", "have"))}, "fr": {frozenset(("at", "to"))}}


@pytest.mark.parametrize("code", m.CODES)
def test_every_concept_has_its_own_words(code):
    """Each concept has a word, and no word stands for another concept of the same kind."""
    box = E("box")
    shown = {
        **dict.fromkeys(("name", "person", "animal", "food", "drink", "readable", "thing"), lambda c: C(None, E(c, definite=False))),
        "place": lambda c: C(None, None, place=Place(c)), "time": lambda c: C(None, None, time=c),
        "adverb": lambda c: C("sing", ANNA, adverb=c), "adjective": lambda c: C("be", box, complement=c),
        "verb": lambda c: C(c, ANNA, complement="new") if c == "be" else C(c, ANNA, box, DAVID, None, Place("house")), "modal": lambda c: C("sing", ANNA, modal=c),
        "link": lambda c: Sentence(C("say", ANNA), c, C("sing", DAVID)),
        "relation": lambda c: C("wait", ANNA, place=Place("school", c)), "speaker": lambda c: C("see", ANNA, E(c)),
    }  # fmt: skip
    taken: dict[str, str] = {}
    for kind, concepts in m.concepts().items():
        for concept in concepts:
            meaning = shown[kind](concept)
            texts = _every(code, meaning if isinstance(meaning, Sentence) else Sentence(meaning))
            assert texts, concept
            assert all(texts), concept
            for text in texts:
                other = taken.setdefault(text, concept)
                assert other == concept or frozenset((other, concept)) in SAME.get(code, ()), (other, concept, text)


# Two words for one thing: a text uses one of them throughout.
WORDS = {
    "en": ("bicycle", "bike", "bicycle"), "de": ("box", "Kiste", "Schachtel"), "xx": ("box", "Kiste", "Schachtel"),
    "fr": ("doctor", "médecin", "docteure"), "es": ("doctor", "doctora", "médica"), "zh": ("doctor", "医生", "大夫"),
    "ja": ("doctor", "医者", "医師"), "vi": ("woman", "phụ nữ", "đàn bà"),
}  # fmt: skip


@pytest.mark.parametrize("code", ALL)
def test_a_text_keeps_to_one_word(code):
    concept, *words = WORDS[code]
    thing = E(concept)
    heard = set()
    for seed in range(60):
        pick = once(random_pick(random.Random(seed)), only=m.STEADY)
        text = _say(code, Sentence(C("see", ANNA, thing), "but", C("look_for", DAVID, thing)), pick).lower()
        text += _say(code, Sentence(C("paint", ANNA, thing)), pick).lower()
        said = [w for w in words if w.lower() in text]
        assert len(said) == 1, text
        heard |= set(said)
    assert heard == set(words)
    for text in _every(code, Sentence(C("see", ANNA, thing), "but", C("look_for", DAVID, thing)), 200):
        assert sum(w.lower() in text.lower() for w in words) == 1, text


@pytest.mark.parametrize("code", m.CODES)
def test_phrases(code):
    spoken = language(code)
    assert code == spoken.CODE
    assert set(spoken.LANGUAGES) == set(m.CODES)
    assert len(set(spoken.LANGUAGES.values())) == len(m.CODES)
    assert spoken.PHRASES.keys() == m.PHRASES.keys()
    assert spoken.CODE_TASKS.keys() == m.CODE_TASKS.keys()
    wanted = {name: set(slots) for name, slots in m.PHRASES.items()}
    wanted |= {name: _slots(text) | {"name", "a"} for name, text in m.CODE_TASKS.items()}
    for name, variants in (*spoken.PHRASES.items(), *spoken.CODE_TASKS.items()):
        assert 2 <= len(set(variants)) == len(variants) <= 4
        for text in variants:
            assert _slots(text) == wanted[name], text


@pytest.mark.parametrize("code", m.CODES)
def test_noun_phrases(code):
    say = language(code).noun_phrase
    assert len({say(E(n), _first) for n in m.NAMES}) == len(m.NAMES)
    assert len({say(E(p), _first) for p in m.PEOPLE}) == len(m.PEOPLE)
    assert all(say(E(k, owner=ANNA), _first) for k in m.KIN)
