"""The sampler: sense, splits, determinism, references in stories."""

import random
from dataclasses import replace

import pytest

from town.corpus import language, world
from town.corpus import meaning as m
from town.corpus.meaning import Entity, Sentence, split_of


def _sentences(seed, split, count, **options):
    rng = random.Random(seed)
    return [world.sentence(rng, split, **options) for _ in range(count)]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_every_clause_is_of_its_split(split):
    for s in _sentences(1, split, 300):
        assert split_of(s.main) == split
        assert s.second is None or split_of(s.second) == split
    rng = random.Random(2)
    for _ in range(40):
        for s in world.story(rng, split, 4):
            assert split_of(s.main) == split
            assert s.second is None or split_of(s.second) == split


@pytest.fixture(scope="module")
def of_every_split():
    found = []
    for split, count in (("train", 1500), ("dev", 500), ("test", 500)):
        rng = random.Random(3)
        meanings = _sentences(4, split, count) + _sentences(5, split, count // 10, question=True)
        while len(meanings) < count * 2:
            told = world.story(rng, split, 4)
            pairs = [world.question(rng, s.main) for s in told]
            meanings += told + [Sentence(c) for pair in pairs if pair for c in pair]
        found += [(s, split) for s in meanings]
    return found


@pytest.mark.parametrize("code", m.CODES)
def test_no_text_is_in_two_splits(code, of_every_split):
    spoken, rng, texts = language(code), random.Random(6), {}
    for s, split in of_every_split:
        text = spoken.join(spoken.pieces(s, m.random_pick(rng)))
        assert texts.setdefault(text, split) == split, text


def test_deterministic():
    assert _sentences(6, "train", 50) == _sentences(6, "train", 50) != _sentences(7, "train", 50)
    assert world.story(random.Random(8), "test", 5) == world.story(random.Random(8), "test", 5)


def test_sense():
    for s in _sentences(9, "train", 3000):
        for clause in filter(None, (s.main, s.second)):
            assert clause.asks is None
            assert isinstance(clause.subject, Entity)
            if clause.time:
                assert clause.tense in m.TIME_TENSES[clause.time]
            if clause.verb in m.TRANSITIVE or clause.verb in m.DITRANSITIVE:
                assert isinstance(clause.object, Entity)
                assert clause.object.pronoun or clause.object.concept in world.OBJECTS[clause.verb]
                assert clause.object.concept != clause.subject.concept
            assert (clause.recipient is not None) == (clause.verb in m.DITRANSITIVE)
            for entity in world._mentioned(clause):
                assert not set(entity.adjectives) - set(world.FITS.get(entity.concept, ()))
                assert entity.concept not in m.KIN or entity.owner or entity.pronoun
                assert not (entity.counted and entity.concept in m.MASS)
                assert entity.concept not in m.NAMES or not (entity.adjectives or entity.owner or entity.relative)
            assert not (clause.modal == "must" and clause.negated)


def test_all_of_the_language_is_used():
    seen = {"links": set(), "verbs": set(), "modals": set(), "times": set(), "relations": set(), "relative": 0}
    concepts = set()
    for s in _sentences(10, "train", 8000):
        seen["links"].add(s.link)
        for clause in filter(None, (s.main, s.second)):
            seen["verbs"].add(clause.verb)
            seen["modals"].add(clause.modal)
            seen["times"].add(clause.time)
            seen["relations"].add(clause.place and clause.place.relation)
            concepts |= {e.concept for e in world._mentioned(clause)}
            seen["relative"] += any(e.relative for e in world._mentioned(clause))
    need = m.concepts()
    assert seen["links"] >= set(m.LINKS)
    assert seen["verbs"] == set(need["verb"])
    assert seen["modals"] >= set(m.MODALS)
    assert seen["times"] >= set(m.TIMES)
    assert seen["relations"] >= set(m.RELATIONS)
    assert seen["relative"] > 100
    for kind in ("name", "person", "animal", "food", "drink", "readable", "thing"):
        assert set(need[kind]) <= concepts, set(need[kind]) - concepts


def test_words_are_zipf_like():
    rng = random.Random(11)
    counts = dict.fromkeys(m.NAMES, 0)
    for _ in range(20000):
        counts[world.draw(rng, tuple(m.NAMES))] += 1
    ordered = sorted(counts.values(), reverse=True)
    assert ordered[0] > 3 * ordered[-1] > 0


def test_pronouns_have_one_antecedent():
    rng = random.Random(12)
    pronouns = 0
    for _ in range(400):
        told = []  # everybody mentioned so far
        for s in world.story(rng, "train", 5):
            for clause in filter(None, (s.main, s.second)):
                for entity in world._mentioned(clause):
                    if entity.pronoun and world._is_person(entity):
                        pronouns += 1
                        sex = world._sex(entity)
                        rivals = {e.concept for e in told if world._sex(e) in (sex, None)} - {entity.concept}
                        assert not rivals
                        assert entity.concept in {e.concept for e in told + world._mentioned(clause) if not e.pronoun}
                told += [e for e in world._mentioned(clause) if world._is_person(e) and not e.pronoun]
    assert pronouns > 300


def test_questions():
    rng = random.Random(13)
    kinds = set()
    for s in _sentences(14, "train", 500):
        pair = world.question(rng, s.main)
        if pair is None:
            continue
        ask, answer = pair
        kinds.add(ask.asks)
        assert split_of(ask) == split_of(answer) == "train"
        slot = m.asked(ask)
        assert getattr(ask, slot) is not None
        value = getattr(answer, slot)
        assert value is not None
        assert not (isinstance(value, Entity) and value.pronoun)
    assert kinds == {"yes_no", "who", "what", "whom", "where", "when", "how_many"}


def test_reasons_suit():
    """Reasons come from the table of the verb; who buys something because they need it needs that thing."""
    seen = set()
    for s in _sentences(16, "train", 3000, links=1.0):
        if s.link != "because" or s.main.negated or s.second.subject.concept != s.main.subject.concept:
            continue
        kind = s.second.complement if s.second.verb == "be" else s.second.verb
        assert kind in world._REASONS[s.main.verb]
        assert not s.second.negated
        if kind == "need" and s.main.verb == "buy":
            assert s.second.object.pronoun
            assert s.second.object.concept == s.main.object.concept
        seen.add(kind)
    assert seen == {"tired", "happy", "love", "need", "look_for", "work", "run", "find"}


def test_two_people_come_nearer():
    rng = random.Random(17)
    for _ in range(300):
        near, leads = 0, None
        for s in world.story(rng, "train", 4):
            step = world._NEARER.get(s.main.verb)
            pair = {e.concept for e in (s.main.subject, s.main.object) if isinstance(e, Entity)}
            if step is not None and len(pair) == 2:
                assert leads is None or pair != leads or step >= near
                near, leads = max(near, step), pair


def test_a_question_that_other_clauses_answer_is_known():
    told = m.Clause("sing", Entity("Anna"), time="yesterday")
    ask = replace(told, asks="who")
    assert world.may_answer(ask, replace(told, subject=Entity("Ben")))
    assert not world.may_answer(ask, replace(told, time="on_monday"))
    assert not world.may_answer(ask, replace(told, negated=True))
    assert world.may_answer(replace(told, asks="when"), replace(told, time="on_monday"))


def test_a_question_has_one_split_whatever_its_answer():
    first = next(s.main for s in _sentences(15, "train", 200) if s.main.place)
    other = replace(first, place=m.Place("school" if first.place.concept != "school" else "park"), asks="where")
    assert m.key(replace(first, asks="where")) == m.key(other)


def test_partial_question_waits_for_its_word():
    s = Sentence(m.Clause("buy", Entity("Anna"), Entity("bread"), asks="what"))
    assert m.partial(s, {"main.subject"}).main.asks is None
    assert m.partial(s, {"main.subject", "main.object"}).main.asks == "what"
