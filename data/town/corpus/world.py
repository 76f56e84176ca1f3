"""Draws sensible meanings: who does what to whom, where and when.

Selection lists say which objects, places and adjectives suit a verb or a noun; every list has a
fixed shuffled order and is drawn from with Zipf weights. A split is respected by redrawing a
clause until :func:`~town.corpus.meaning.split_of` gives the one asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate
from typing import Literal, TypeVar, cast

from town.corpus.meaning import (
    ANIMALS,
    DITRANSITIVE,
    DRINKS,
    FOOD,
    INTRANSITIVE,
    KIN,
    MASS,
    MOTION,
    NAMES,
    PEOPLE,
    PLACES,
    SPEAKERS,
    SPEECH,
    TIME_TENSES,
    TIMES,
    TRANSITIVE,
    Asks,
    Clause,
    Entity,
    Gap,
    Place,
    Sentence,
    Split,
    Tense,
    asked,
    split_of,
)  # fmt: skip

T = TypeVar("T")

ROLES = tuple(p for p in PEOPLE if p not in KIN)
_YOUNG = ("child", "girl", "boy")

# --- what suits what ----------------------------------------------------------------------

_GOODS = (
    "car", "bicycle", "bag", "chair", "table", "lamp", "clock", "ticket", "picture", "phone", "umbrella",
    "coat", "shoe", "gift", "flower", "machine", "boat", "cup", "ball", "box", "camera", "book", "newspaper",
    "map",
)  # fmt: skip
_SMALL = (
    "key", "bag", "ticket", "umbrella", "phone", "coat", "book", "map", "letter", "camera", "ball", "gift", "shoe",
)  # fmt: skip
_BEINGS = (*ROLES, *NAMES, *ANIMALS)
_PERSONS = (*ROLES, *NAMES, *KIN)
OBJECTS: dict[str, tuple[str, ...]] = {
    "have": (*_GOODS, "key", "apple", "egg", "cake", "dog", "cat", "horse", "bird"),
    "buy": (*_GOODS, *FOOD, "milk", "tea", "coffee", "horse"),
    "sell": (*_GOODS, "apple", "bread", "cheese", "fish", "egg", "cake", "horse"),
    "see": (*_BEINGS, "car", "bicycle", "boat", "picture", "flower", "machine", "ball", "bag"),
    "find": (*_SMALL, "picture", "box", "dog", "cat", "egg", "apple", "clock", "flower"),
    "eat": FOOD,
    "drink": DRINKS,
    "read": ("book", "letter", "newspaper", "map"),
    "write": ("letter", "book"),
    "open": ("door", "window", "box", "bag", "letter", "book", "gift", "umbrella"),
    "close": ("door", "window", "box", "bag", "book", "umbrella"),
    "clean": (
        "car", "bicycle", "bag", "chair", "table", "lamp", "clock", "window", "door", "machine", "boat", "cup",
        "shoe", "camera",
    ),
    "repair": (
        "machine", "car", "bicycle", "clock", "phone", "lamp", "camera", "boat", "door", "window", "chair",
        "umbrella",
    ),
    "carry": ("bag", "chair", "table", "lamp", "box", "picture", "gift", "umbrella", "book", "bicycle", "boat"),
    "lose": _SMALL,
    "need": (*_GOODS, "key", *FOOD, "milk", "water", "coffee"),
    "love": (*NAMES, *ANIMALS, "flower", "book", "car", *KIN),
    "know": _PERSONS,
    "meet": _PERSONS,
    "help": _PERSONS,
    "visit": _PERSONS,
    "call": _PERSONS,
    "pick_up": (*_PERSONS, "letter", "ticket", "gift", "bag", "box", "cake", "book"),
    "invite": _PERSONS,
    "paint": ("flower", "boat", "horse", "bird", "dog", "cat", "woman", "girl", "boy", "man", "apple"),
    "cook": ("soup", "fish", "rice", "egg"),
    "look_for": (*_SMALL, "dog", "cat", "child", "doctor", "teacher", "friend", "clock", "lamp"),
    "forget": ("key", "bag", "ticket", "umbrella", "phone", "coat", "book", "map", "camera", "gift"),
    "give": (*_SMALL, "flower", "cup", "box", "picture", "bicycle", "clock", "newspaper", "lamp", "key", "letter", "apple", "cake", "water", "tea", "egg", "bread"),
    "show": ("picture", "book", "letter", "map", "car", "camera", "clock", "boat", "gift", "ticket", "phone"),
    "bring": ("book", "letter", "newspaper", "map", "chair", "flower", "gift", "cup", "umbrella", "coat", "bag",
              "bread", "soup", "cake", "water", "tea", "coffee", "milk"),
    "send": ("letter", "picture", "gift", "book", "ticket", "flower", "map", "box"),
}
_ALL = tuple(PLACES)
_FOOD_PLACES = ("kitchen", "house", "garden", "park", "hotel", "market", "station", "office")
_DESK = ("library", "office", "garden", "park", "house", "school", "hotel", "kitchen", "station")
_YARD = ("garden", "house", "street", "village", "kitchen")
_LOSE = tuple(p for p in _ALL if p not in ("river", "bridge"))
_GOALS = tuple(p for p in _ALL if p not in ("bridge", "street"))  # nobody just "goes to a street"
WHERE: dict[str, tuple[str, ...]] = {
    "buy": ("market", "shop", "city", "village", "station"), "sell": ("market", "shop", "city", "village"),
    "see": _ALL, "meet": _ALL, "find": _LOSE, "lose": _LOSE, "look_for": _LOSE,
    "forget": ("house", "school", "station", "kitchen", "hospital", "library", "office", "shop", "museum", "hotel"),
    "eat": _FOOD_PLACES, "drink": _FOOD_PLACES, "cook": ("kitchen", "garden", "house", "hotel"),
    "read": _DESK, "write": _DESK, "clean": _YARD, "repair": _YARD,
    "help": ("kitchen", "garden", "school", "hospital", "market", "office", "station", "street"),
    "visit": ("hospital", "hotel", "village", "city", "office"),
    "pick_up": ("station", "school", "hotel", "hospital", "office", "library", "shop"),
    "paint": ("garden", "park", "school", "kitchen", "museum", "forest"),
    "give": ("school", "office", "park", "market", "station", "garden", "kitchen"),
    "show": ("school", "office", "park", "museum", "library", "house"),
    "sleep": ("house", "hotel", "garden", "hospital", "library", "park", "forest", "kitchen"),
    "work": ("office", "hospital", "school", "hotel", "museum", "shop", "library", "garden", "market", "kitchen",
             "city", "village", "station"),
    "wait": tuple(p for p in _ALL if p not in ("city", "village", "river")),
    "sing": ("park", "garden", "kitchen", "street", "school", "forest", "house"),
    "laugh": ("school", "kitchen", "garden", "library", "office"),
    "dance": ("park", "garden", "kitchen", "street", "hotel", "house"),
    "live": ("house", "city", "village", "hotel", "forest"),
    "go": _GOALS, "travel": ("city", "village", "river", "museum", "forest"),
    "arrive": ("station", "hotel", "city", "village", "house", "hospital", "school", "museum", "market", "office"),
    "come_back": _GOALS, "run": ("park", "forest", "street", "station", "house", "river", "bridge", "garden", "school"),
    "be_at": _ALL,
}  # fmt: skip
_LANDMARKS = ("house", "school", "market", "station", "hospital", "library", "museum", "hotel", "bridge", "shop")
_AROUND = frozenset(("wait", "meet", "see", "find", "live", "be_at", "lose", "sing", "work"))  # near, behind, ...

_LOOK = ("old", "new", "big", "small", "beautiful")
_COLOURS = ("red", "blue", "green", "white", "black")
_PRICE = ("expensive", "cheap")
FITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*NAMES, *KIN, *SPEAKERS), ("tired", "happy", "young", "old")),
    **dict.fromkeys(ROLES, ("old", "young", "tired", "happy")),
    **dict.fromkeys(("doctor", "teacher", "student", "driver", "cook", "painter"),
                    ("young", "good", "old", "tired", "happy")),
    **dict.fromkeys(_YOUNG, ("small", "tired", "happy")),
    **dict.fromkeys(ANIMALS, ("small", "black", "old", "white", "young", "big", "tired", "beautiful")),
    **dict.fromkeys(FOOD, ("good", "expensive", "cheap", "warm", "cold")),
    **dict.fromkeys(DRINKS, ("warm", "cold", "good")),
    "apple": ("red", "green", "big", "small", "good"), "egg": ("white", "big", "small", "warm"),
    "fish": ("big", "small", "good", "expensive"), "cheese": ("good", "old", "expensive", "cheap"),
    "cake": ("big", "small", "good", "warm"), "bread": ("warm", "good", "old", "white"),
    **dict.fromkeys(("car", "bicycle", "boat"), (*_LOOK, *_COLOURS, *_PRICE, "clean")),
    **dict.fromkeys(("bag", "box"), (*_LOOK, *_COLOURS, "heavy", "empty", "expensive")),
    **dict.fromkeys(("chair", "table", "lamp"), (*_LOOK, *_COLOURS, *_PRICE, "clean", "heavy")),
    **dict.fromkeys(("clock", "phone", "camera", "machine"), ("old", "new", "good", "small", *_PRICE, "heavy")),
    **dict.fromkeys(("umbrella", "coat", "shoe"), ("old", "new", *_COLOURS, *_PRICE, "beautiful")),
    "coat": ("old", "new", "long", "warm", *_COLOURS, *_PRICE), "key": ("small", "old", "new", "heavy"),
    "ticket": ("expensive", "cheap", "new"), "picture": (*_LOOK, *_PRICE), "gift": ("beautiful", "small", *_PRICE),
    "flower": ("red", "white", "blue", "beautiful", "small"), "window": ("big", "small", "old", "new", "clean"),
    "door": ("old", "new", "heavy", "white", "green", "blue"), "cup": ("empty", "white", "blue", "clean", "small"),
    "ball": ("red", "blue", "new", "small", "old"), "book": ("good", "old", "new", "long", "heavy", "expensive"),
    "letter": ("long", "old", "beautiful"), "newspaper": ("old", "new"), "map": ("old", "new", "good", "big"),
    **dict.fromkeys(PLACES, _LOOK), "river": ("long", "cold", "beautiful"), "street": ("long", "old", "new"),
    "bridge": ("long", "old", "new", "beautiful"), "house": ("old", "new", "big", "white", "empty", "red"),
    "hotel": ("expensive", "old", "new", "cheap", "big"), "kitchen": ("clean", "small", "big", "warm"),
    "forest": ("old", "big", "beautiful", "green"), "park": ("big", "small", "beautiful", "green"),
    "office": ("new", "small", "empty", "big"), "market": ("old", "big", "small"),
}  # fmt: skip
_MANNER = ("quickly", "slowly", "carefully")
HOW: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("read", "write", "clean", "repair", "cook", "paint"), (*_MANNER, "often")),
    **dict.fromkeys(("eat", "drink"), ("quickly", "slowly", "often")),
    **dict.fromkeys(("open", "close", "carry"), _MANNER),
    **dict.fromkeys(("run", "come_back", "go"), ("quickly", "slowly", "alone", "often")),
    **dict.fromkeys(("sleep", "work", "wait", "sing", "laugh", "dance", "live", "travel"),
                    ("alone", "often", "always")),
    **dict.fromkeys(("buy", "see", "meet", "help", "visit", "call", "invite"), ("often", "always")),
    "laugh": ("often", "always"), "wait": ("alone", "always"), "live": ("alone",),
}  # fmt: skip
_ANIMAL_VERBS = ("see", "eat", "drink", "run", "sleep", "come_back", "wait", "be", "be_at")
_STATIVE = frozenset(("have", "love", "know", "need", "be", "be_at", "live"))
_VERBS = (*TRANSITIVE, *DITRANSITIVE, *INTRANSITIVE, *MOTION, "be", "be_at")
_LASTING = ("car", "bicycle", "boat", "camera", "clock", "dog", "cat", "horse", "shoe")
_MISHAPS = frozenset(("lose", "forget"))  # only in the past: nobody means to
_HOLDING = frozenset(("show", "give", "bring", "sell", "lose", "carry", "eat", "drink", "forget", "send"))
_GONE = frozenset(("sell", "eat", "drink", "lose", "forget", "give", "send", "bring"))
_FEELINGS = ("tired", "happy")
# Adjectives that clash with an action (nobody writes an old letter or cooks a cold soup).
_UNFIT = {
    "write": frozenset(("old", "new", "heavy", "expensive", "cheap")), "cook": frozenset(("warm", "cold", "old")),
    **dict.fromkeys(("buy", "sell", "find"), frozenset(("warm", "cold"))),
}  # fmt: skip
_ONE_BY_ONE = frozenset(("open", "close", "repair", "forget", "look_for", "love", "clean"))  # not twelve at once
# What comes first between two people: nobody looks for somebody who is already there.
_NEARER = {"look_for": 0, "call": 1,  "see": 2, "meet": 3, "pick_up": 4, "visit": 4, "help": 4}
# Possible reasons for an action: a feeling, or another action of the same person.
_REASONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sleep", "wait", "drink"), ("tired",)), "come_back": ("tired", "look_for"),
    **dict.fromkeys(("sing", "laugh", "dance", "cook", "write"), ("happy",)), "paint": ("happy", "love"),
    **dict.fromkeys(("invite", "help", "give", "bring", "show", "send"), ("happy", "love")),
    **dict.fromkeys(("call", "visit", "meet"), ("love", "need", "need", "look_for")), "look_for": ("love", "need"),
    **dict.fromkeys(("go", "run", "travel"), ("need", "look_for")), **dict.fromkeys(("open", "get_up"), ("look_for",)),
    **dict.fromkeys(("buy", "carry"), ("need",)), **dict.fromkeys(("clean", "repair"), ("need", "love")),
    "be": ("work", "run", "find"),
}  # fmt: skip
# The same, with another person's action.
_OTHERS_REASONS: dict[str, tuple[str, ...]] = {
    "laugh": ("sing", "dance"), "sing": ("dance", "arrive"), "dance": ("sing",), "wait": ("work", "sleep", "look_for"),
    "get_up": ("arrive", "come_back", "call", "look_for"), "come_back": ("call", "look_for", "arrive"),
}  # fmt: skip
_STORES = ("market", "shop", "city", "village")
# Actions that somebody may omit after another one ("but she did not ...").
_UNDONE: dict[str, tuple[str, ...]] = {
    "sing": ("dance", "laugh", "work"), "dance": ("sing", "laugh", "eat"), "laugh": ("sing", "dance"),
    "sleep": ("eat", "drink", "get_up"), "work": ("eat", "drink", "sleep"), "eat": ("drink", "sleep"),
    "drink": ("eat", "sleep"), "cook": ("eat", "drink"), "be": ("sleep", "eat", "drink", "work", "laugh"),
    "wait": ("sleep", "eat", "drink", "come_back"), "get_up": ("eat", "drink", "work"),
    **dict.fromkeys(MOTION, ("wait", "eat", "drink", "work", "buy", "read")),
}  # fmt: skip
_ELSE_UNDONE = ("wait", "eat", "drink", "go", "work", "buy", "read")

# --- drawing ------------------------------------------------------------------------------


@cache
def _ranked(options: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    order = sorted(set(options))
    random.Random(len(order) * 31 + 7).shuffle(order)
    return tuple(order), tuple(accumulate(1 / (i + 2) ** 0.85 for i in range(len(order))))


def draw(rng: random.Random, options: Sequence[str]) -> str:
    """One of `options`, the i-th of a fixed shuffled order with probability ~ 1 / (i + 2)^0.85 (Zipf-like)."""
    order, cumulative = _ranked(tuple(options))
    return rng.choices(order, cum_weights=cumulative)[0]


def adjective(rng: random.Random, concept: str) -> str:
    """An adjective that suits the noun of `concept`."""
    return draw(rng, FITS[concept])


def person(rng: random.Random, avoid: frozenset[str] = frozenset(), speakers: bool = True) -> Entity:
    """Someone who can act: a name, a role, a relative of somebody, or (`speakers`) I, you, we.

    Nobody in `avoid` (concepts) is returned.
    """
    while True:
        kind = rng.random()
        if kind < 0.4:
            who = Entity(draw(rng, tuple(NAMES)))
        elif kind < 0.55 and speakers:
            who = Entity(draw(rng, SPEAKERS))
        elif kind < 0.66:
            if rng.random() < 0.6:
                owner = Entity(rng.choice(SPEAKERS))
            else:
                owner = Entity(draw(rng, tuple(NAMES)))
            if owner.concept in avoid:
                continue
            who = Entity(draw(rng, KIN), owner=owner)
        else:
            many = rng.random() < 0.12
            who = Entity(draw(rng, ROLES), number=2 if many else 1)
            if rng.random() < 0.2 and not many:
                who = replace(who, definite=False)
            if rng.random() < 0.15:
                who = replace(who, adjectives=(adjective(rng, who.concept),))
        if who.concept not in avoid:
            return who


def thing(rng: random.Random, concept: str, definite: bool | None = None, bare: bool = False) -> Entity:
    """A thing, food, animal or person by its concept, with number and adjectives; `bare`: no adjectives."""
    if concept in NAMES:
        return Entity(concept)
    if concept in KIN:
        return Entity(concept, owner=Entity(rng.choice(SPEAKERS)))
    if definite is None:
        definite = rng.random() < (0.6 if concept in PEOPLE else 0.45)
    number, counted = 1, False
    if concept == "shoe":
        number = 2
    elif concept not in MASS:
        roll = rng.random()
        if roll < 0.06:
            number = 2
        elif roll < 0.2 and not definite and concept not in PEOPLE:
            number, counted = rng.choice((2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 12)), True
    adjectives: tuple[str, ...] = ()
    if not bare and rng.random() < 0.25:
        adjectives = (adjective(rng, concept),)
        if rng.random() < 0.15:
            other = adjective(rng, concept)
            if not any({other, adjectives[0]} <= group for group in _EXCLUSIVE) and other != adjectives[0]:
                adjectives = (other, adjectives[0])
    return Entity(concept, number, counted, definite, adjectives)


_EXCLUSIVE = (
    {"old", "new", "young"}, {"big", "small", "long"}, {*_COLOURS}, {"heavy", "small"}, {"warm", "cold"},
    {*_PRICE}, {*_FEELINGS}, {"good", "cheap"},
)  # fmt: skip


def place(rng: random.Random, verb: str, tense: Tense = "past") -> Place:
    """A place that suits the verb."""
    concept = draw(rng, WHERE[verb])
    relation = "at"
    if verb in ("go", "travel"):
        relation = "to"
    elif verb == "come_back":
        relation = rng.choice(("to", "from"))
    elif verb == "pick_up":
        relation = "from" if rng.random() < 0.5 else "at"
    elif verb == "run" and concept not in ("park", "forest", "street", "garden"):
        relation = "to"
    elif verb in _AROUND and concept in _LANDMARKS and rng.random() < 0.35:
        relation = "near" if verb in ("live", "work") else rng.choice(("near", "behind", "in_front_of"))
    if concept == "bridge" and relation == "from":
        concept = "station"
    definite = rng.random() < (0.7 if verb == "live" else 0.92) or concept in ("kitchen", "street")
    extra = adjective(rng, concept) if rng.random() < (0.1 if definite else 0.6) else None
    return Place(concept, relation, definite, extra)


def _tense(rng: random.Random, time: str | None) -> Tense:
    if time:
        return cast(Tense, rng.choice(TIME_TENSES[time]))
    return rng.choices(("past", "present", "future"), (6, 3, 1.5))[0]  # type: ignore[return-value]


def _is_person(entity: object) -> bool:
    return isinstance(entity, Entity) and (entity.concept in PEOPLE or entity.concept in NAMES)


def _sex(entity: Entity) -> str | None:
    """The sex of one person; None for groups, children, speakers and things."""
    if entity.number > 1:
        return None
    sex = NAMES.get(entity.concept) or PEOPLE.get(entity.concept)
    return sex if sex in ("f", "m") else None


def _own(rng: random.Random, subject: Entity, item: Entity) -> Entity:
    """`item` as the subject's own: my key, her key."""
    if subject.concept in SPEAKERS:
        owner = Entity(subject.concept)
    else:
        owner = Entity(subject.concept, pronoun=True)
    number = 2 if item.concept == "shoe" else 1
    return replace(item, number=number, owner=owner, definite=True, counted=False)


def _relative(rng: random.Random, head: Entity, tense: Tense, avoid: frozenset[str]) -> Clause | None:
    """A relative clause that suits its head, with a gap as subject or object; None if none suits."""
    when: Tense = "present" if tense == "present" and rng.random() < 0.5 else "past"
    if head.concept in PEOPLE and rng.random() < 0.65:
        verb = draw(rng, ("buy", "sell", "read", "repair", "lose", "find", "drink", "eat", "look_for", "live",
                          "work", "sing", "wait", "know", "help", "clean"))  # fmt: skip
        if verb in OBJECTS:
            options = [c for c in OBJECTS[verb] if c not in avoid and c not in KIN]
            item = thing(rng, draw(rng, options), bare=True)
            return Clause(verb, Gap(), item, tense=when)
        return Clause(verb, Gap(), place=replace(place(rng, verb), definite=True, adjective=None), tense=when)
    verbs = [
        v for v in ("know", "meet", "help", "visit", "invite", "call", "see", "find", "buy", "sell", "read", "write",
                    "repair", "lose", "need", "look_for", "clean", "carry", "cook", "forget", "paint")
        if head.concept in OBJECTS[v]
    ]  # fmt: skip
    if not verbs:
        return None
    if head.concept in NAMES or head.concept in KIN:
        return None
    who = person(rng, avoid)
    who = replace(who, adjectives=(), definite=True)
    verb = draw(rng, verbs)
    return Clause(verb, who, Gap(), tense="present" if verb in ("know", "need") and when == "present" else "past")


def _clause(
    rng: random.Random,
    *,
    subject: Entity | None = None,
    tense: Tense | None = None,
    time: Literal["free"] | str | None = "free",
    plain: bool = False,
    avoid: frozenset[str] = frozenset(),
    verbs: tuple[str, ...] = _VERBS,
) -> Clause:
    """One clause. `plain`: no fronting, relative clause or modal. `avoid`: people who must not recur."""
    if subject is None:
        if rng.random() < 0.07:
            subject = thing(rng, draw(rng, ANIMALS), definite=rng.random() < 0.85)
            subject = replace(subject, counted=False, number=min(subject.number, 2))
        else:
            subject = person(rng, avoid)
    if subject.concept in ANIMALS:
        verbs = tuple(v for v in _ANIMAL_VERBS if v in verbs) or _ANIMAL_VERBS
    verb = draw(rng, verbs)
    if verb in _MISHAPS and tense in ("present", "future"):
        verb = "look_for"
    if time == "free":
        time = draw(rng, TIMES) if rng.random() < 0.4 else None
        if verb == "find" and time in ("every_day", "at_night"):
            time = None
        if verb in _MISHAPS:
            tense = "past"
    when = tense or _tense(rng, time)
    if time and when not in TIME_TENSES[time]:
        time = None
    brief = when == "future" or time not in (None, "last_week", "every_day")
    if brief and verb in _STATIVE and verb not in ("be", "be_at"):
        time = None
        when = tense if tense and tense != "future" else ("past" if when == "past" else "present")
    if verb == "live" and time not in (None, "last_week"):
        time = None
    taken = avoid | {subject.concept} | ({subject.owner.concept} if subject.owner else frozenset())
    negated = rng.random() < 0.1
    modal = None
    if not plain and verb not in _STATIVE and when != "future" and not negated and verb not in _MISHAPS and rng.random() < 0.12:
        modal = draw(rng, ("want", "can", "must"))
        if subject.concept in ANIMALS and modal == "must":
            modal = "want"
    item: Entity | None = None
    recipient = complement = spot = how = None
    if verb in OBJECTS:
        options = tuple(c for c in OBJECTS[verb] if c not in taken)
        if verb == "eat" and subject.concept in ANIMALS:
            options = tuple(c for c in options if c in ("apple", "bread", "fish", "cheese"))
        if verb == "drink" and subject.concept in ANIMALS:
            options = ("water", "milk")
        concept = draw(rng, options or OBJECTS[verb])
        item = thing(rng, concept)
        if concept not in DRINKS:
            item = replace(item, adjectives=tuple(a for a in item.adjectives if a not in _UNFIT.get(verb, ())))
        if negated or modal or verb in _ONE_BY_ONE or (verb == "write" and concept == "book"):
            item = replace(item, counted=False, number=item.number if not item.counted else 1)
        if verb == "have":
            item = replace(item, definite=False)
        owner_ok = _sex(subject) or subject.concept in SPEAKERS
        if concept in _SMALL and verb in ("lose", "look_for", "find", "forget", "need", "show") and owner_ok:
            if rng.random() < 0.6:
                item = _own(rng, subject, item)
        elif owner_ok and rng.random() < 0.55 and (
            concept in KIN
            or (verb in ("sell", "repair", "clean", "love", "look_for", "paint") and concept in _LASTING)
        ):  # fmt: skip
            item = _own(rng, subject, item)
        elif concept in KIN:
            names = [n for n in NAMES if n not in taken]
            item = replace(item, owner=Entity(draw(rng, names)) if subject.concept != "i" else Entity("i"))
        elif (
            verb in ("repair", "find", "read", "clean", "see") and concept in (*_SMALL, *_LASTING)
            and concept not in ANIMALS and rng.random() < 0.15
        ):  # fmt: skip
            names = [n for n in NAMES if n not in taken]
            item = replace(item, owner=Entity(draw(rng, names)), definite=True, counted=False)
        if verb in DITRANSITIVE:
            if item.owner is None and verb == "show":
                item = replace(item, counted=False, number=1 if item.counted else item.number)
            recipient = replace(person(rng, taken, speakers=False), adjectives=())
            taken |= {recipient.concept}
            if rng.random() < 0.12 and subject.concept not in ("i", "we"):
                recipient = Entity("i")
    if verb in ("live", "be_at", "go", "travel", "arrive") or (verb in WHERE and rng.random() < 0.33):
        spot = place(rng, verb)
    if verb == "be":
        fitting = FITS[subject.concept]
        if subject.concept in NAMES or subject.concept in KIN or subject.concept in SPEAKERS:
            complement = draw(rng, _FEELINGS if time else (*_FEELINGS, "tired", "happy", "young", "old"))
        else:
            complement = draw(rng, [a for a in fitting if a != "good" and a not in subject.adjectives])
        if time and complement not in _FEELINGS:
            time = None
        if when == "future":
            complement = draw(rng, _FEELINGS)
    if not negated and not modal and verb in HOW and rng.random() < 0.2:
        how = draw(rng, HOW[verb])
        if how in ("often", "always") and (time is not None or when == "future"):
            how = None
        if how in ("often", "always") and item and item.counted:
            how = None
        if how == "alone" and (subject.number > 1 or subject.concept == "we"):
            how = None
    if negated or verb == "be":
        subject = replace(subject, definite=True, adjectives=() if verb == "be" else subject.adjectives)
    if negated and time in ("every_day", "at_night"):
        time = None
    if item and item.concept in ("window", "door") and spot:
        spot = Place("kitchen")
    front: Literal["time", "place"] | None = None
    if not plain:
        if time and rng.random() < 0.3:
            front = "time"
        elif spot and not time and spot.relation not in ("to", "from") and verb not in (
            "be_at", "live", "arrive", "be") and not negated and rng.random() < 0.08:  # fmt: skip
            front = "place"
        if rng.random() < 0.12 and not recipient:
            role: Entity | None = None
            if item and not (spot or time or how or negated) and not item.counted:
                role = item
            elif not item or rng.random() < 0.6:
                role = subject
            if (
                role is not None and role.owner is None and role.number == 1 and not role.adjectives
                and role.concept not in SPEAKERS and role.concept not in NAMES
            ):  # fmt: skip
                extra = _relative(rng, role, when, taken | {item.concept if item else ""})
                if extra:
                    role_full = replace(role, definite=True, relative=extra)
                    if role is item:
                        item = role_full
                    else:
                        subject = role_full
    return Clause(
        verb, subject, item, recipient, complement, spot, time, how, when, negated, modal, None, front
    )


def _until(split: Split | None, make: Callable[[], Clause | None], tries: int = 2000) -> Clause | None:
    """The first clause from `make` that belongs to the split; None after `tries`."""
    for _ in range(tries):
        clause = make()
        if clause and (split is None or split_of(clause) == split):
            return clause
    return None


def _mentioned(clause: Clause) -> list[Entity]:
    """Every entity of a clause, owners and relative clauses included."""
    found: list[Entity] = []
    for entity in (clause.subject, clause.object, clause.recipient):
        if isinstance(entity, Entity):
            found.append(entity)
            if entity.owner:
                found.append(entity.owner)
            if entity.relative:
                found.extend(_mentioned(entity.relative))
    return found


def _taken(*clauses: Clause) -> frozenset[str]:
    return frozenset(e.concept for c in clauses for e in _mentioned(c))


def _refers_back(clause: Clause) -> Entity | None:
    """The subject of `clause` as a pronoun, if it is unambiguous."""
    subject = clause.subject
    if not isinstance(subject, Entity):
        return None
    if subject.concept in SPEAKERS:
        return Entity(subject.concept)
    sex = _sex(subject)
    others = [e for e in _mentioned(clause) if e is not subject and not (e.pronoun and e.concept == subject.concept)]
    if sex is None or any(_is_person(e) and (_sex(e) in (sex, None)) for e in others):
        return None
    return Entity(subject.concept, pronoun=True)


def _joined(rng: random.Random, split: Split | None, main: Clause, link: str) -> Clause | None:
    """A second clause for `main`; its tense agrees, and its subject may refer back."""
    tense: Tense
    if link == "that":
        tense = "past" if main.tense == "past" else rng.choice(("past", "present", "future", "future"))  # type: ignore[assignment]
        if main.verb == "hope":
            tense = "future"
    elif link in ("when", "if", "because"):
        tense = "past" if main.tense == "past" else "present"
    else:
        tense = main.tense
    back = _refers_back(main)
    verbs = tuple(v for v in _VERBS if v != main.verb)
    if link in ("when", "if"):
        verbs = ("come_back", "arrive", "sing", "call", "open", "find", "sleep", "see", "get_up", "visit", "laugh",
                 "buy", "eat", "cook", "work", "meet", "help", "dance", "bring")  # fmt: skip
        if main.tense == "past":
            verbs = ("come_back", "arrive", "call", "open", "find", "see", "get_up", "close", "meet", "forget", "lose")
    verbs = tuple(v for v in verbs if v != main.verb)

    def make() -> Clause | None:
        use_back = back is not None and rng.random() < (0.75 if link == "because" else 0.5)
        if back and use_back and link in ("because", "but"):
            return _aside(rng, back, tense, link, main)
        subject = back if use_back else None
        if subject is None:
            subject = person(rng, _taken(main))
            subject = replace(subject, definite=True)
        options = verbs if link != "because" else _others_reasons(main)
        if not options:
            return None
        clause = _clause(rng, subject=subject, tense=tense, time=None, plain=True, avoid=_taken(main), verbs=options)
        if clause.verb == "be" and link in ("because", "and", "but"):
            clause = replace(clause, complement=draw(rng, _FEELINGS))
        if link in ("when", "if", "because"):
            clause = replace(clause, negated=clause.negated and link == "if")
        if link in ("when", "if") and clause.adverb in ("often", "always"):
            clause = replace(clause, adverb=None)
        return clause

    return _until(split, make, 400)


def sentence(
    rng: random.Random, split: Split | None = "train", *, question: bool = False, links: float = 0.22
) -> Sentence:
    """A sensible sentence of one split.

    Parameters
    ----------
    rng : random.Random
        The only source of randomness.
    split : "train", "dev", "test" or None
        The split of every clause (None: any).
    question : bool
        A question instead of a statement.
    links : float
        The share of sentences with two clauses.

    Returns
    -------
    Sentence
    """
    if question:
        while True:
            clause = _until(None, lambda: _clause(rng, plain=True))
            options = list(_questions(clause, split)) if clause else []
            if options:
                return Sentence(rng.choice(options))
    if rng.random() < links:
        link = rng.choices(("that", "because", "when", "if", "and", "but"), (5, 4, 3, 2, 3, 3))[0]
        while True:
            main = _until(split, lambda: _first(rng, link))
            second = _joined(rng, split, main, link) if main else None
            if main and second:
                return Sentence(main, link, second)
    main = _until(split, lambda: _clause(rng))
    if main is None:
        raise RuntimeError(f"no clause of the split {split!r} found")
    return Sentence(main)


def _first(rng: random.Random, link: str) -> Clause:
    """A main clause that a clause with `link` can follow."""
    if link == "that":
        verb = draw(rng, SPEECH)
        tense: Tense = "present" if verb == "hope" else rng.choice(("past", "present"))  # type: ignore[assignment]
        time = draw(rng, TIMES) if rng.random() < 0.15 and tense == "past" and verb == "say" else None
        if time and "past" not in TIME_TENSES[time]:
            time = None
        who = replace(person(rng), definite=True)
        negated = verb == "believe" and rng.random() < 0.15
        return Clause(verb, who, tense=tense, time=time, negated=negated)
    if link == "if":
        return replace(_clause(rng, tense=rng.choice(("future", "future", "present")), time=None, plain=True),
                       front=None)  # fmt: skip
    if link == "when":
        tense = rng.choice(("past", "past", "present", "future"))  # type: ignore[assignment]
        clause = _clause(rng, tense=tense, time=None, plain=True)
        return replace(clause, negated=False)
    return _clause(rng, time="free" if rng.random() < 0.3 else None, plain=True)


# --- questions ----------------------------------------------------------------------------


def _named(entity: Entity | Gap | None, by: Entity | Gap | None = None) -> Entity | Gap | None:
    """An entity without pronouns: the referent of "she"; "her" stays if the subject `by` is the owner."""
    if not isinstance(entity, Entity) or entity.concept in SPEAKERS:
        return entity
    owner = entity.owner
    if owner and not (isinstance(by, Entity) and by.concept == owner.concept):
        named = _named(owner)
        owner = named if isinstance(named, Entity) else None
    return replace(entity, pronoun=False, owner=owner)


def _spelled(clause: Clause) -> Clause:
    """A clause whose subject and object are named, so that it can be understood alone."""
    recipient = _named(clause.recipient)
    return replace(
        clause, subject=_named(clause.subject), object=_named(clause.object, clause.subject),
        recipient=recipient if isinstance(recipient, Entity) else None, front=None,
    )  # fmt: skip


def _questions(clause: Clause, split: Split | None) -> list[Clause]:
    """Every question of the split about a fact of `clause`, with more or less of its other facts."""
    full = _spelled(clause)
    if isinstance(full.subject, Entity):
        full = replace(full, subject=replace(full.subject, definite=True, relative=None))
    asks: list[Asks] = []
    owner = full.object.owner if isinstance(full.object, Entity) else None
    if (
        isinstance(full.subject, Entity) and _is_person(full.subject) and full.subject.number == 1
        and (owner is None or owner.concept != full.subject.concept)  # "Who lost Anna's key?" would reveal it
    ):  # fmt: skip
        asks.append("who")
    if isinstance(full.object, Entity):
        if full.object.counted and not clause.negated:
            asks.append("how_many")
        elif not _is_person(full.object) and full.object.concept not in ANIMALS:
            asks.append("what")
        elif _is_person(full.object):
            asks.append("whom")
    if full.recipient and full.recipient.concept not in SPEAKERS:
        asks.append("whom")
    if full.place:
        asks.append("where")
    if full.time and full.time not in ("every_day", "at_night", "now"):
        asks.append("when")
    asks.append("yes_no")
    found = []
    for ask in asks:
        whole = replace(full, asks=ask)
        if ask == "who":  # the owner must be mentioned
            whole = replace(whole, object=_named(whole.object))
        about = asked(whole)
        drops = [s for s in ("time", "place", "adverb") if s != about and getattr(full, s) is not None]
        if full.verb in ("live", "be_at", "go", "travel", "arrive") and "place" in drops:
            drops.remove("place")
        if ask != "yes_no" and clause.negated:
            continue
        for mask in range(2 ** len(drops)):
            short = replace(whole, **{s: None for i, s in enumerate(drops) if mask >> i & 1})  # type: ignore[arg-type]
            if split is None or split_of(short) == split:
                found.append(short)
    return found


def may_answer(ask: Clause, clause: Clause) -> bool:
    """Whether a question could also be about `clause`: all that it states is true of `clause` as well."""

    def concept(value: object) -> object:
        return getattr(value, "concept", value)

    return (ask.verb, ask.negated) == (clause.verb, clause.negated) and all(
        concept(getattr(ask, s)) == concept(getattr(clause, s))
        for s in ("subject", "object", "recipient", "complement", "place", "time", "adverb")
        if s != asked(ask) and getattr(ask, s) is not None
    )


def question(rng: random.Random, clause: Clause) -> tuple[Clause, Clause] | None:
    """A question about a fact of `clause` and the whole clause that answers it.

    Both are of the split of `clause`. Pronouns in the question are replaced by their referents. None when
    no question about this clause belongs to its split.

    Returns
    -------
    (Clause, Clause) or None
    """
    split = split_of(clause)
    options = _questions(clause, split)
    rng.shuffle(options)
    named = _spelled(clause)
    for ask in options:
        about = asked(ask)
        plain = replace(clause, front=None)
        shorter = {s: None for s in ("time", "place", "adverb") if getattr(ask, s) is None and s != about}
        answers = [replace(plain, **shorter), replace(named, **shorter), plain, named]  # type: ignore[arg-type]
        if about != "subject" and isinstance(named.subject, Entity) and _sex(named.subject):
            short = Entity(named.subject.concept, pronoun=True)
            answers.insert(0, replace(named, subject=short, **shorter))  # type: ignore[arg-type]
        for answer in answers:
            value = getattr(answer, about or "verb")
            if isinstance(value, Entity) and value.pronoun:
                continue
            if split_of(answer) == split:
                return ask, answer
    return None


# --- stories ------------------------------------------------------------------------------


@dataclass
class _Scene:
    """The state of a story: everything mentioned so far."""

    people: list[Entity] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # people mentioned
    things: dict[str, Entity] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    extras: list[Entity] = field(default_factory=list)  # other people mentioned
    last: str | None = None  # the last subject
    fresh: str | None = None  # a thing just mentioned, with no other referent for "it" since
    holders: dict[str, str] = field(default_factory=dict)  # who has the thing
    near: int = 0  # how close the two people are (see _NEARER)
    verbs: list[str] = field(default_factory=list)


def _mention(rng: random.Random, scene: _Scene, who: Entity, pronoun_share: float = 0.65) -> Entity:
    """How the story refers to one of its people now."""
    if who.concept not in scene.told:
        return who
    sex = _sex(who)
    rivals = [p for p in (*scene.people, *scene.extras) if p.concept != who.concept and p.concept in scene.told]
    clear = sex is not None and all(_sex(p) not in (sex, None) for p in rivals)
    if clear and scene.last == who.concept and rng.random() < pronoun_share:
        return Entity(who.concept, pronoun=True)
    return replace(who, definite=True, adjectives=())


def _protagonists(rng: random.Random) -> list[Entity]:
    first = _lead(rng)
    if rng.random() < 0.5:
        return [first]
    while True:
        second = _lead(rng)
        if _sex(second) != _sex(first):
            return [first, second]


def _lead(rng: random.Random) -> Entity:
    if rng.random() < 0.6:
        return Entity(draw(rng, tuple(NAMES)))
    concept = draw(rng, [r for r in ROLES if r != "child"])
    adjectives = (adjective(rng, concept),) if rng.random() < 0.3 else ()
    return Entity(concept, definite=rng.random() < 0.1, adjectives=adjectives)


_AFTER = ("show", "give", "bring", "clean", "repair", "sell", "lose", "carry", "open", "read", "eat", "drink", "forget",
          "close", "send", "look_for", "find", "paint", "cook", "need")  # fmt: skip


def _event(rng: random.Random, scene: _Scene, tense: Tense, time: str | None) -> Clause:
    """The next thing that happens."""
    who = rng.choices(scene.people, [3, 1][: len(scene.people)])[0]
    subject = _mention(rng, scene, who)
    others = [p for p in scene.people if p.concept != who.concept]
    known = [c for c in scene.things if c not in scene.gone]
    avoid = frozenset(p.concept for p in (*scene.people, *scene.extras)) | frozenset(scene.things)
    roll = rng.random()
    recent = frozenset(scene.verbs[-4:])
    if known and roll < 0.45:
        concept = rng.choice(known)
        verbs = [v for v in _AFTER if concept in OBJECTS[v] and v not in recent]
        if scene.holders.get(concept) != who.concept:
            verbs = [v for v in verbs if v not in _HOLDING]
        verbs = [v for v in verbs if v not in ("find", "look_for", "need")]
        if tense != "past":
            verbs = [v for v in verbs if v not in _MISHAPS]
        if verbs:
            verb = draw(rng, verbs)
            item = replace(scene.things[concept], owner=None, definite=True, adjectives=(), counted=False)
            if scene.fresh == concept and item.number == 1 and concept not in MASS and rng.random() < 0.7:
                item = Entity(concept, pronoun=True)
            recipient = None
            if verb in DITRANSITIVE:
                if others:
                    recipient = _mention(rng, scene, others[0], 0.5)
                else:
                    recipient = replace(person(rng, avoid, speakers=False), adjectives=(), owner=None)
                    recipient = replace(recipient, definite=recipient.concept in NAMES)
                    if recipient.concept in KIN:
                        recipient = Entity(draw(rng, [n for n in NAMES if n not in avoid]))
            indoors = concept in ("window", "door")
            where = place(rng, verb, tense) if verb in WHERE and not indoors and rng.random() < 0.3 else None
            return Clause(verb, subject, item, recipient, place=where, time=time, tense=tense)
    meetings = [v for v in ("meet", "see", "visit", "help", "call", "invite", "look_for", "pick_up")
                if v not in recent and _NEARER.get(v, scene.near) >= scene.near]  # fmt: skip
    if others and meetings and roll < 0.62:
        verb = draw(rng, meetings)
        other = _mention(rng, scene, others[0], 0.5)
        where = place(rng, verb, tense) if verb in WHERE and rng.random() < 0.5 else None
        return Clause(verb, subject, other, place=where, time=time, tense=tense)
    once = tuple(v for v in INTRANSITIVE if v != "live")
    things = tuple(v for v in (*once, *MOTION, "buy", "find", "eat", "drink", "read", "write", "open", "cook",
                              "lose", "paint", "be", "repair", "clean", "sell", "close")
                 if v not in recent and not (v == "find" and tense == "present"))  # fmt: skip
    clause = _clause(rng, subject=subject, tense=tense, time=None, plain=True, avoid=avoid, verbs=things)
    if isinstance(clause.object, Entity) and clause.object.owner is None:
        clause = replace(clause, object=replace(clause.object, definite=clause.object.concept in ("door", "window")))
    got = clause.object
    if isinstance(got, Entity) and got.owner and got.owner.pronoun and not _clear(scene, clause, got.owner):
        clause = replace(clause, object=replace(got, owner=None, definite=False))
    if clause.verb == "be":
        clause = replace(clause, complement=draw(rng, _FEELINGS))
    if tense == "past" and clause.adverb in ("often", "always"):
        clause = replace(clause, adverb=None)
    return replace(clause, time=time, negated=False)


def story(rng: random.Random, split: Split | None, n: int) -> list[Sentence]:
    """`n` sentences about one or two people and what they do.

    The first mention of somebody is indefinite unless it is a name; later ones are definite noun phrases,
    names or, if unambiguous in all of the languages, pronouns. Times and tenses agree.

    Parameters
    ----------
    rng : random.Random
    split : "train", "dev", "test" or None
        The split of every clause.
    n : int

    Returns
    -------
    list[Sentence]
    """
    scene = _Scene(people=_protagonists(rng))
    tense: Tense = "past" if rng.random() < 0.9 else "present"
    opening = draw(rng, [t for t in TIMES if tense in TIME_TENSES[t] and t not in ("at_night", "now", "today")
                         and (t == "every_day") == (tense == "present")])  # fmt: skip
    told: list[Sentence] = []
    while len(told) < n:
        time = opening if not told and rng.random() < 0.8 else None
        clause = _until(split, partial(_event, rng, scene, tense, time), 1000)
        if clause is None:
            return story(rng, split, n)  # a dead end: no clause of the split can follow
        if time and rng.random() < 0.6:
            clause = replace(clause, front="time")
        link, second = None, None
        back = _refers_back(clause)
        if rng.random() < 0.22 and isinstance(clause.subject, Entity):
            if clause.subject.pronoun:
                back = clause.subject
            if back is not None and _clear(scene, clause, back):
                kind = rng.choice(("because", "and", "but"))
                second = _until(split, partial(_aside, rng, back, tense, kind, clause, scene.verbs), 200)
                if second and any(
                    _is_person(e) and e.concept != back.concept and not (e.pronoun and _clear(scene, clause, e))
                    for e in _mentioned(second)
                ):
                    second = None  # a new person only in passing would make later pronouns unclear
                link = kind if second else None
        _remember(scene, clause)
        if second:
            scene.fresh = None
        if second and isinstance(second.object, Entity):
            scene.things.setdefault(second.object.concept, second.object)
            scene.gone.add(second.object.concept)
        told.append(Sentence(clause, link, second))
    return told


def _clear(scene: _Scene, clause: Clause, pronoun: Entity) -> bool:
    """Whether the pronoun can mean only one person of the story so far and of `clause`."""
    sex = _sex(pronoun)
    people = [p for p in (*scene.people, *scene.extras) if p.concept in scene.told] + _mentioned(clause)
    return all(
        _sex(p) not in (sex, None) for p in people if p.concept != pronoun.concept and _is_person(p)
    )  # fmt: skip


def _others_reasons(main: Clause) -> tuple[str, ...]:
    if main.negated or not isinstance(main.subject, Entity):
        return ()
    if main.verb == "be" and main.complement == "happy":
        return ("arrive", "come_back", "sing", "find")
    if main.verb == "open" and isinstance(main.object, Entity) and main.object.concept == "door":
        return ("arrive", "come_back", "call")
    return _OTHERS_REASONS.get(main.verb or "", ())


def _reason(rng: random.Random, subject: Entity, tense: Tense, main: Clause) -> Clause | None:
    """A reason for `subject` to do what `main` describes; None if the drawn reason does not suit."""
    kinds = ("tired",) if main.negated else _REASONS.get(main.verb or "", ())
    if not kinds:
        return None
    kind = rng.choice(kinds)
    if main.verb == "be" and main.complement != {"find": "happy"}.get(kind, "tired"):
        return None
    if kind in _FEELINGS:
        return Clause("be", subject, complement=kind, tense=tense)
    item = main.recipient or main.object
    if kind == "love" or (kind == "need" and isinstance(item, Entity) and not _is_person(item)):
        if not isinstance(item, Entity) or item.number > 1 or item.concept in (*MASS, *SPEAKERS):
            return None
        if _is_person(item) and _sex(item) in (None, _sex(subject)):
            return None  # the pronoun's referent must be clear
        if kind == "love" and not _is_person(item) and item.concept not in (*_LASTING, *OBJECTS["love"]):
            return None
        return Clause(kind, subject, Entity(item.concept, pronoun=True), tense=tense)
    if kind == "need" and main.verb in MOTION and (main.place is None or main.place.concept not in _STORES):
        return None
    if main.verb == "open" and isinstance(item, Entity) and item.concept not in ("box", "bag", "door"):
        return None
    clause = _clause(rng, subject=subject, tense=tense, time=None, plain=True, avoid=_taken(main), verbs=(kind,))
    return replace(clause, negated=False, place=None)


def _aside(
    rng: random.Random, subject: Entity, tense: Tense, link: str, main: Clause, recent: Sequence[str] = ()
) -> Clause | None:
    """Something else that `subject` is, does or leaves undone; None if the one drawn does not suit."""
    if link == "because":
        return _reason(rng, subject, tense, main)
    if link == "but":
        if main.verb not in ("be", "sleep") and rng.random() < 0.25:
            return Clause("be", subject, complement="tired", tense=tense)
        verbs = _UNDONE.get(main.verb or "", _ELSE_UNDONE)
    else:
        verbs = ("be", *(v for v in INTRANSITIVE if v != "live"), "go", "come_back", "run", "drink", "eat")
    verbs = tuple(v for v in verbs if v != main.verb and v not in recent)
    if not verbs:
        return None
    clause = _clause(rng, subject=subject, tense=tense, time=None, plain=True, avoid=_taken(main), verbs=verbs)
    if isinstance(clause.object, Entity):
        adjectives = clause.object.adjectives if link == "and" else ()
        clause = replace(clause, object=replace(clause.object, definite=False, counted=False, adjectives=adjectives))
    if tense == "past" and clause.adverb in ("often", "always"):
        clause = replace(clause, adverb=None)
    if clause.verb == "be":
        return replace(clause, complement=draw(rng, _FEELINGS), negated=False)
    if main.place and clause.verb not in MOTION:
        clause = replace(clause, place=None)
    if link == "but":
        place = clause.place if clause.verb == "go" else None
        return replace(clause, negated=not main.negated, adverb=None, place=place)
    return replace(clause, negated=False)


def _remember(scene: _Scene, clause: Clause) -> None:
    leads = {p.concept for p in scene.people}
    for entity in _mentioned(clause):
        if entity.concept in leads:
            scene.told.add(entity.concept)
        elif _is_person(entity):
            scene.told.add(entity.concept)
            scene.extras.append(entity)
    if isinstance(clause.subject, Entity):
        scene.last = clause.subject.concept
    item = clause.object
    scene.fresh = None
    if isinstance(item, Entity) and not _is_person(item):
        if item.concept not in scene.things:
            scene.things[item.concept] = replace(item, relative=None)
            if isinstance(clause.subject, Entity):
                scene.holders[item.concept] = clause.subject.concept
        if clause.place is None:
            scene.fresh = item.concept
        if clause.verb in _GONE and not clause.negated:
            scene.gone.add(item.concept)
    if _is_person(item):
        scene.near = max(scene.near, _NEARER.get(clause.verb or "", 0))
    scene.verbs.append(clause.verb or "")
