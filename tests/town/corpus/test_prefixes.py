"""A translator's texts: whole, and cut after some words."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from specviz.errors import ParameterError
from town.corpus import prefixes
from town.corpus.meaning import split_of


def test_a_seed_gives_the_same_texts_and_another_gives_others() -> None:
    def some(seed: int) -> list[prefixes.Turns]:
        return list(islice(prefixes.stream(seed, "train", "prefixes"), 20))

    assert some(1) == some(1) != some(2)


def test_every_target_is_asked_for_and_every_clause_is_of_the_split() -> None:
    rng = random.Random(0)
    made = [prefixes.draw(rng, "test") for _ in range(80)]
    assert {m.to_code for m in made} == set(prefixes.TARGETS)
    assert {len(m.meanings) for m in made} == {1, 2, 3}
    clauses = [c for m in made for s in m.meanings for c in (s.main, s.second) if c]
    assert {split_of(c) for c in clauses} == {"test"}


def test_what_is_asked_for() -> None:
    made = prefixes.draw(random.Random(4), "dev", "xx", 2)
    ((asked, answer),) = prefixes.turn(made)
    assert (asked, answer) == (f"Translate into Control: {made.source}", made.reference)
    ((asked, answer),) = prefixes.turn(made, 3)
    assert asked == "Translate into Control: " + " ".join(made.source.split()[:3])
    assert answer == made.prefix(3)


def test_whole_texts_are_whole_and_prefixes_are_mostly_cut() -> None:
    def cut(kind: str) -> float:
        chats = islice(prefixes.stream(0, "train", kind), 400)
        return sum(asked[-1] not in ".?" for ((asked, _),) in chats) / 400

    assert cut("translations") == 0
    assert 0.5 < cut("prefixes") < 0.75


def test_bad_input() -> None:
    with pytest.raises(ParameterError, match="unknown target 'fr': choose one of de, zh, ja, xx"):
        prefixes.draw(random.Random(0), "test", "fr")
    with pytest.raises(ParameterError, match="unknown kind 'chats': choose one of translations, prefixes"):
        next(prefixes.stream(0, "test", "chats"))
