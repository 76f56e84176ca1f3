"""Language-independent meanings of the corpus' texts.

A :class:`Sentence` is built from concepts (``"doctor"``, ``"buy"``), never from
words, so that every language realises the same meaning by its own grammar and
a translation is right by construction. A language file turns a sentence into
:class:`Piece` objects; each piece names the slot of the meaning that it expresses,
which is how a *prefix* of one language maps to its partial translation in another.

Nothing here draws at random except through a :data:`Pick`. One realiser thus
serves three needs: a random text (:func:`random_pick`), the same choices again for
a part of the text (:func:`keyed_pick`) and every accepted paraphrase
(:func:`paraphrases`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol, TypeVar

T = TypeVar("T")

# --- concepts ---------------------------------------------------------------------------

# Each name and role has one fixed sex, so that "the doctor ... she" has one right translation.
NAMES = {
    "Anna": "f", "Ben": "m", "Clara": "f", "David": "m", "Emma": "f", "Felix": "m",
    "Julia": "f", "Leo": "m", "Maria": "f", "Paul": "m", "Sara": "f", "Tom": "m",
}
PEOPLE = {
    "child": "n", "woman": "f", "man": "m", "girl": "f", "boy": "m", "friend": "m", "neighbor": "f",
    "doctor": "f", "teacher": "m", "student": "f", "farmer": "m", "driver": "m", "cook": "m",
    "painter": "f", "guest": "m", "mother": "f", "father": "m", "sister": "f", "brother": "m",
}
KIN = ("mother", "father", "sister", "brother", "friend", "neighbor")  # always with an owner
SPEAKERS = ("i", "you", "we")  # always pronouns; "you" is one person, addressed politely but plainly
ANIMALS = ("dog", "cat", "horse", "bird")
FOOD = ("bread", "apple", "cheese", "soup", "cake", "fish", "rice", "egg")
DRINKS = ("water", "tea", "coffee", "milk")
READABLE = ("book", "letter", "newspaper", "map")
THINGS = (
    "car", "bicycle", "key", "bag", "chair", "table", "lamp", "clock", "ticket", "picture", "phone",
    "umbrella", "coat", "shoe", "gift", "flower", "window", "door", "machine", "boat", "cup", "ball",
    "box", "camera",
)
PLACES = (
    "house", "school", "market", "station", "garden", "kitchen", "park", "city", "village", "hospital",
    "library", "office", "river", "bridge", "shop", "museum", "hotel", "street", "forest",
)
MASS = frozenset(("bread", "cheese", "soup", "rice", "water", "tea", "coffee", "milk"))  # not counted
ADJECTIVES = (
    "old", "new", "big", "small", "red", "blue", "green", "white", "black", "heavy", "expensive",
    "cheap", "beautiful", "young", "tired", "happy", "clean", "empty", "warm", "cold", "good", "long",
)
ADVERBS = ("quickly", "slowly", "carefully", "often", "always", "alone")
TIMES = (  # one phrase each; "past", "present", "future": the tenses it goes with
    "yesterday", "today", "tomorrow", "now", "this_morning", "this_evening", "last_week", "next_week",
    "every_day", "at_night", "on_monday", "on_tuesday", "on_wednesday", "on_thursday", "on_friday",
    "on_saturday", "on_sunday",
)
TIME_TENSES = {
    "yesterday": ("past",), "today": ("past", "present", "future"), "tomorrow": ("future",),
    "now": ("present",), "this_morning": ("past",), "this_evening": ("future", "past"),
    "last_week": ("past",), "next_week": ("future",), "every_day": ("past", "present"),
    "at_night": ("past", "present"),
} | {t: ("past", "future") for t in TIMES if t.startswith("on_")}
RELATIONS = ("at", "to", "from", "near", "behind", "in_front_of")  # "at": in, at or on, depending on the noun

# Verbs by frame. The object kinds are those that make sense with the verb.
TRANSITIVE = {
    "have": "thing", "buy": "thing", "sell": "thing", "see": "any", "find": "thing", "eat": "food",
    "drink": "drink", "read": "readable", "write": "letter", "open": "openable", "close": "openable",
    "clean": "solid", "repair": "machine", "carry": "solid", "lose": "solid", "need": "thing",
    "love": "any", "know": "person", "meet": "person", "help": "person", "visit": "person",
    "call": "person", "pick_up": "any", "invite": "person", "paint": "any", "cook": "food",
    "look_for": "any", "forget": "solid",
}
DITRANSITIVE = ("give", "show", "bring", "send")
INTRANSITIVE = ("sleep", "work", "wait", "sing", "laugh", "dance", "live", "get_up")
MOTION = ("go", "travel", "arrive", "come_back", "run")  # with a place: to (arrive: at), come_back also from
COPULAS = ("be", "be_at")  # be: complement is an adjective; be_at: a place
SPEECH = ("say", "think", "believe", "hope")  # main clause of a "that" link
MODALS = ("want", "can", "must")
LINKS = ("that", "because", "when", "if", "and", "but")

# --- meanings ---------------------------------------------------------------------------

Tense = Literal["past", "present", "future"]
Asks = Literal["yes_no", "who", "what", "whom", "where", "when", "how_many"]


@dataclass(frozen=True)
class Gap:
    """The slot of a relative clause that its head fills ("the man *who* bought bread")."""


@dataclass(frozen=True)
class Entity:
    """A person, animal or thing in one mention.

    ``pronoun`` means that it was mentioned before and is now he, she, it or they
    (each language takes the gender from its own noun for ``concept``).
    ``counted`` gives the number ("three apples"). ``relative`` is a clause with one
    :class:`Gap` as subject or object. ``owner``: "Anna's book", "her book" (owner.pronoun),
    "my sister" (owner concept ``i``).
    """

    concept: str
    number: int = 1
    counted: bool = False
    definite: bool = True
    adjectives: tuple[str, ...] = ()  # at most two
    owner: Entity | None = None
    pronoun: bool = False
    relative: Clause | None = None


@dataclass(frozen=True)
class Place:
    concept: str
    relation: str = "at"
    definite: bool = True
    adjective: str | None = None


@dataclass(frozen=True)
class Clause:
    """One verb and its constituents; a missing slot is not expressed.

    ``verb`` or ``subject`` are None only in the partial meanings of a prefix: a language must then
    realise the fragment that is left ("the doctor", "the doctor bought"). ``asks`` makes it a
    question about that slot; the slot's content, if any, is the answer and is not expressed
    (``how_many`` asks for the object's number and includes its noun); :func:`asked` gives the slot.
    The question word is a piece of the slot that it asks for. A present tense after ``if`` or ``when``
    with a main clause in the future means the future. ``front`` puts that constituent first.
    """

    verb: str | None
    subject: Entity | Gap | None
    object: Entity | Gap | None = None
    recipient: Entity | None = None
    complement: str | None = None
    place: Place | None = None
    time: str | None = None
    adverb: str | None = None
    tense: Tense = "past"
    negated: bool = False
    modal: str | None = None
    asks: Asks | None = None
    front: Literal["time", "place"] | None = None


@dataclass(frozen=True)
class Sentence:
    """A main clause, or two joined by a link.

    ``that``: main is say/think/believe/hope and ``second`` its content. ``because``, ``when``, ``if``:
    ``second`` is subordinate and follows (``if`` and ``when`` may also come first, as the language
    picks). ``and``, ``but``: two main clauses.
    """

    main: Clause
    link: str | None = None
    second: Clause | None = None


@dataclass(frozen=True)
class Piece:
    """A stretch of surface text and the slot that it expresses.

    ``slot`` is ``"main.subject"``, ``"main.subject.relative"``, ``"main.verb"`` (every word of a verb
    complex: auxiliaries, participles, particles, negation, modal), ``"main.object"``,
    ``"main.object.relative"``, ``"main.recipient"``, ``"main.complement"``, ``"main.place"``,
    ``"main.time"``, ``"main.adverb"``, ``"link"`` (conjunction), the same with ``second.``, or ``"mark"``
    (punctuation, question particles). One piece may hold several words; split it if another slot's words
    come in between.
    """

    text: str
    slot: str


SLOTS = ("subject", "verb", "object", "recipient", "complement", "place", "time", "adverb")


def asked(clause: Clause) -> str | None:
    """The slot that a question asks for; ``"verb"`` for a yes-no question, None for a statement."""
    if clause.asks in ("whom", "what"):
        return "recipient" if clause.asks == "whom" and clause.verb in DITRANSITIVE else "object"
    slots = {"who": "subject", "where": "place", "when": "time", "how_many": "object", "yes_no": "verb"}
    return slots.get(clause.asks or "")


def partial(sentence: Sentence, said: set[str]) -> Sentence | None:
    """The part of a meaning whose slots are in `said`; None when there is none.

    A verb includes its tense, modal and negation. A question counts as one once its question word is in
    `said`. A relative clause is kept only when its own slot is in `said`. A second clause without its link is
    kept.
    """

    def cut(clause: Clause, name: str) -> Clause | None:
        kept: dict[str, object] = {}
        for slot in SLOTS:
            value = getattr(clause, slot)
            if value is not None and f"{name}.{slot}" not in said:
                value = None
            if isinstance(value, Entity) and value.relative and f"{name}.{slot}.relative" not in said:
                value = replace(value, relative=None)
            kept[slot] = value
        if all(v is None for v in kept.values()):
            return None
        front = clause.front if clause.front and kept[clause.front] is not None else None
        asks = clause.asks if f"{name}.{asked(clause)}" in said else None
        return replace(clause, front=front, asks=asks, **kept)  # type: ignore[arg-type]

    main = cut(sentence.main, "main")
    second = cut(sentence.second, "second") if sentence.second else None
    if main is None and second is None:
        return None
    link = sentence.link if "link" in said or (main and second) else None
    return Sentence(main or Clause(None, None, tense=sentence.main.tense), link, second)


# --- choosing ---------------------------------------------------------------------------


class Pick(Protocol):
    """Chooses one of `options`; `key` names the choice (slot path and what is chosen)."""

    def __call__(self, key: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T: ...


def random_pick(rng: random.Random) -> Pick:
    """Choices from a random generator."""

    def pick(key: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        return options[0] if len(options) == 1 else rng.choices(options, weights)[0]

    return pick


def keyed_pick(seed: int) -> Pick:
    """Choices that depend on `seed` and the key alone, so that a part of a text repeats those of the whole."""

    def pick(key: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        if len(options) == 1:
            return options[0]
        word = hashlib.blake2b(f"{seed}:{key}".encode(), digest_size=8).digest()
        return random.Random(int.from_bytes(word, "big")).choices(options, weights)[0]

    return pick


# Choices that a text keeps from sentence to sentence: the word for a thing, the narrative past tense.
STEADY = ("noun.", "text.")


def once(pick: Pick, only: str | tuple[str, ...] = "") -> Pick:
    """Wrap `pick` so that the same key always gets the same answer (keys that start with `only`).

    Use it within one sentence, so that equal keys agree; over a story with ``only=STEADY``, so that
    it keeps the same word for the same thing (a language names that choice ``noun.<concept>``).
    """
    made: dict[str, object] = {}

    def again(key: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
        if not key.startswith(only):
            return pick(key, options, weights)
        if key not in made:
            made[key] = pick(key, options, weights)
        return made[key]  # type: ignore[return-value]

    return again


def paraphrases(say: Callable[[Pick], str], most: int = 64) -> Iterator[str]:
    """Every distinct text that `say` can produce, first options first, at most `most` of them.

    `say` is run once for each path through its choices (a depth-first search over the picks).
    """
    seen: set[str] = set()
    path: list[tuple[int, int]] = []  # (chosen, number of options) of each pick so far
    while True:
        at = 0

        def pick(key: str, options: Sequence[T], weights: Sequence[float] | None = None) -> T:
            nonlocal at
            if at == len(path):
                path.append((0, len(options)))
            at += 1
            return options[path[at - 1][0]]

        text = say(pick)
        if text not in seen:
            seen.add(text)
            yield text
        del path[at:]
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path or len(seen) >= most:
            return
        path[-1] = (path[-1][0] + 1, path[-1][1])


# --- splits -----------------------------------------------------------------------------

Split = Literal["train", "dev", "test"]


def key(meaning: object) -> tuple[object, ...]:
    """The features that decide a meaning's split: its concepts, without those some language leaves unsaid.

    Number, definiteness, tense and the referent of a pronoun vanish in one language or another; two
    meanings that differ only there can share a surface text, so they must share a split.
    """
    if isinstance(meaning, Sentence):
        return ("s", key(meaning.main), meaning.second and key(meaning.second))
    if isinstance(meaning, Clause):
        values = {s: getattr(meaning, s) for s in SLOTS}
        if meaning.asks == "how_many" and isinstance(meaning.object, Entity):
            values["object"] = replace(meaning.object, counted=False)
        elif meaning.asks and meaning.asks != "yes_no":
            values[asked(meaning) or ""] = None  # the answer is not said
        slots = tuple(None if v is None else key(v) for v in values.values())
        return ("c", meaning.asks is not None, *slots)
    if isinstance(meaning, Entity):
        # A pronoun may be dropped or merged with another, so none of its features count.
        if meaning.pronoun or meaning.concept in SPEAKERS:
            return ("pronoun",)
        number = meaning.number if meaning.counted else None
        return (meaning.concept, number, meaning.relative and key(meaning.relative))
    if isinstance(meaning, Place):
        return (meaning.concept, meaning.relation)
    if isinstance(meaning, Gap):
        return ("gap",)
    return (meaning,)


def split_of(meaning: object) -> Split:
    """The only split that may contain `meaning`: 5 % dev, 5 % test, the rest train."""
    word = hashlib.blake2b(repr(key(meaning)).encode(), digest_size=4).digest()
    bucket = int.from_bytes(word, "big") % 20
    return "test" if bucket == 0 else "dev" if bucket == 1 else "train"


# --- what every language must provide -----------------------------------------------------

# Fixed phrases of the tasks: key -> slots. Each language gives two to four right variants of each.
PHRASES: dict[str, tuple[str, ...]] = {
    "translate": ("language", "text"),     # "Translate into {language}: {text}"
    "summarize": ("text",),                # "Summarize this text: {text}" (one sentence wanted)
    "summary_opening": (),                 # "In short:" (may be the empty string)
    "answer_question": ("text", "question"),   # "Read: {text} Question: {question}"
    "passage": ("number", "text"),         # "[{number}] {text}"
    "use_passages": ("passages", "question"),  # "Use the passages to answer. {passages} {question}"
    "from_passage": ("number", "answer"),  # "Passage {number} says: {answer}" (answer: a whole sentence)
    "solve": ("problem",),                 # "Solve step by step: {problem}" (may be just "{problem}")
    "step_first": ("equation",),           # "First, {equation}." equation: "12 + 5 = 17"
    "step_next": ("equation",),            # "Then {equation}."
    "conclusion": ("sentence",),           # "So: {sentence}" (sentence: "Anna has 14 apples.")
    "tell_about": ("who",),                # "Tell me something about {who}." who: a noun phrase as this sentence needs it
    "tell_opening": (),                    # "Gladly." / "Of course." (may be empty)
    "ask_more": ("question",),             # "Thank you. {question}" / "One more thing: {question}"
    "write_code": ("task",),               # "{task}" with a polite or plain frame around it
    "code_opening": (),                    # "Here is the function:"
}
# Programming tasks; {name} is the function's name, {a} its first argument, {k} a number.
CODE_TASKS: dict[str, str] = {
    "sum": "Write a Python function {name} that returns the sum of the numbers in the list {a}.",
    "product": "... the product of the numbers in the list {a}.",
    "maximum": "... the largest number in the list {a}.",
    "minimum": "... the smallest number in the list {a}.",
    "average": "... the average of the numbers in the list {a}.",
    "count_above": "... how many numbers in the list {a} are greater than {k}.",
    "keep_even": "... the even numbers of the list {a}.",
    "keep_below": "... the numbers of the list {a} that are less than {k}.",
    "scale": "... the list {a} with every number multiplied by {k}.",
    "shift": "... the list {a} with {k} added to every number.",
    "reverse": "... the list {a} in reverse order.",
    "contains": "... whether the list {a} contains the number {k}.",
}
CODES = ("en", "de", "fr", "es", "zh", "ja", "vi")


class Language(Protocol):
    """The module-level interface of a language module (``data/town/corpus/en.py`` ...).

    Attributes
    ----------
    CODE : str
    LANGUAGES : dict[str, str]
        The name of each of the seven languages in this one, in the form "translate" needs.
    PHRASES, CODE_TASKS : dict[str, tuple[str, ...]]
        The phrases above; every key, each with its variants as format strings.
    """

    CODE: str
    LANGUAGES: dict[str, str]
    PHRASES: dict[str, tuple[str, ...]]
    CODE_TASKS: dict[str, tuple[str, ...]]

    def pieces(self, sentence: Sentence, pick: Pick) -> list[Piece]:
        """The sentence in surface order, its final mark included; accepts partial sentences."""
        ...

    def join(self, pieces: Sequence[Piece]) -> str:
        """The text of pieces: spaces, contractions, elision, capitals.

        Without a closing mark (the pieces of a prefix) it stays open: no full stop is added.
        """
        ...

    def noun_phrase(self, entity: Entity, pick: Pick, use: str = "about") -> str:
        """An entity alone, in the form that the phrase named by `use` needs ("about": tell_about's {who})."""
        ...


def concepts() -> dict[str, tuple[str, ...]]:
    """Every concept that a language must have words for, by part of speech."""
    return {
        "name": tuple(NAMES), "person": tuple(PEOPLE), "speaker": SPEAKERS, "animal": ANIMALS,
        "food": FOOD, "drink": DRINKS, "readable": READABLE, "thing": THINGS, "place": PLACES,
        "adjective": ADJECTIVES, "adverb": ADVERBS, "time": TIMES, "relation": RELATIONS,
        "verb": (*TRANSITIVE, *DITRANSITIVE, *INTRANSITIVE, *MOTION, *COPULAS, *SPEECH),
        "modal": MODALS, "link": LINKS,
    }


assert {f.name for f in fields(Clause)} >= set(SLOTS)
