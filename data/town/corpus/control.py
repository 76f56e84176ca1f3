"""A control language: German words in English order, without clause-final or split verbs.

Translating into it needs as many word choices as German does, but no waiting for the verb.
"""

from __future__ import annotations

from town.corpus import de
from town.corpus.de import CODE_TASKS, LANGUAGES, PHRASES, join, noun_phrase
from town.corpus.meaning import Clause, Entity, Gap, Pick, Piece, Sentence, asked, once

__all__ = ["CODE", "CODE_TASKS", "LANGUAGES", "PHRASES", "join", "noun_phrase", "pieces"]
CODE = "xx"


def _entity(entity: Entity, slot: str, pick: Pick, case: str) -> list[Piece]:
    found = [Piece(de._head(entity, slot, pick, case), slot)]
    clause = entity.relative
    if clause is None:
        return found
    noun = de._choose(pick, f"noun.{entity.concept}", de._NOUN_FORMS[entity.concept])
    subject = isinstance(clause.subject, Gap)
    role = 0 if subject else 2 if clause.verb in de.DATIVE else 1
    word = de._RELATIVES["p" if entity.number != 1 else noun.gender].split()[role]
    gap = Entity(entity.concept, entity.number) if subject else None
    text = join([Piece(word, slot), *_clause(clause, f"{slot}.relative", pick, gap=gap)], capital=False)
    return [*found, Piece(text, f"{slot}.relative")]


def _clause(clause: Clause, name: str, pick: Pick, main: bool = False, gap: Entity | None = None) -> list[Piece]:
    subject = clause.subject if isinstance(clause.subject, Entity) else gap
    person = de._person(subject) if clause.asks != "who" else "s"
    about = asked(clause)
    first: list[Piece] = []
    who: list[Piece] = []
    if about and about != "verb":
        first = [Piece(de._question_word(clause, name, pick), f"{name}.{about}")]
    if isinstance(clause.subject, Entity) and about != "subject":
        who = _entity(clause.subject, f"{name}.subject", pick, "nom")

    doing: list[Piece] = []
    if clause.verb:
        finite, bracket = de._complex(clause, name, pick, person, False)
        parts = [finite, "nicht" if clause.negated else "", bracket]
        verb = de._choose(pick, f"{name}.verb", de._VERB_FORMS[clause.verb])
        if bracket and bracket == verb.particle:
            parts = [bracket + finite, parts[1]]
        if about and about != "subject":
            first.append(Piece(parts[0], f"{name}.verb"))
            parts = parts[1:]
        doing = [Piece(p, f"{name}.verb") for p in parts if p]

    item: list[Piece] = []
    if isinstance(clause.object, Entity) and about != "object":
        item = _entity(clause.object, f"{name}.object", pick, "dat" if clause.verb in de.DATIVE else "acc")
    if clause.recipient and about != "recipient":
        to = _entity(clause.recipient, f"{name}.recipient", pick, "dat")
        pronoun = isinstance(clause.object, Entity) and clause.object.pronoun
        first_to = not pronoun and pick(f"{name}.dative", (True, False), (2, 1))
        item = [*to, *item] if first_to else [*item, *to]
    tail: list[Piece] = []
    if clause.complement:
        word = de._choose(pick, f"{name}.complement", de.ADJECTIVES[clause.complement]).split("/")[0]
        tail.append(Piece(word, f"{name}.complement"))
    if clause.adverb:
        tail.append(Piece(de._choose(pick, f"{name}.adverb", de.ADVERBS[clause.adverb]), f"{name}.adverb"))
    if clause.place and about != "place":
        where = Piece(de._place(clause.place, f"{name}.place", pick), f"{name}.place")
        before = bool(clause.adverb) and pick(f"{name}.where", (False, True), (2, 1))
        tail = [where, *tail] if before and not clause.complement else [*tail, where]
    if clause.time and about != "time":
        when = Piece(de._choose(pick, f"{name}.time", de.TIMES[clause.time]), f"{name}.time")
        leading = clause.front == "time"
        if main and not clause.asks and pick(f"{name}.front", (leading, not leading), (5, 2)):
            first = [when]
        else:
            places = [p for p in tail if p.slot == f"{name}.place"]
            early = bool(places) and tail[-1] is places[0] and pick(f"{name}.order", (False, True), (3, 1))
            tail = [*tail[:-1], when, *places] if early else [*tail, when]
    return [*first, *who, *doing, *item, *tail]


def pieces(sentence: Sentence, pick: Pick) -> list[Piece]:
    """The sentence in surface order (see :class:`~town.corpus.meaning.Language`)."""
    pick = once(pick)
    body = _clause(sentence.main, "main", pick, main=True)
    if sentence.link:
        comma = [Piece(",", "mark")] if sentence.link != "and" and body else []
        body = [*body, *comma, Piece(de._link(sentence.link, sentence, pick), "link")]
    if sentence.second:
        body = [*body, *_clause(sentence.second, "second", pick)]
    return [*body, Piece("?" if sentence.main.asks else ".", "mark")]
