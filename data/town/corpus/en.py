"""English: do-support, agreement, articles, relative clauses, free positions of adverbs and times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from town.corpus.meaning import (
    MASS,
    MOTION,
    NAMES,
    PEOPLE,
    SPEAKERS,
    Clause,
    Entity,
    Gap,
    Pick,
    Piece,
    Place,
    Sentence,
    asked,
    once,
)  # fmt: skip

CODE = "en"
LANGUAGES = {
    "en": "English", "de": "German", "fr": "French", "es": "Spanish", "zh": "Chinese", "ja": "Japanese",
    "vi": "Vietnamese",
}  # fmt: skip

# Singular and plural; the default plural adds "s". The first word is the usual one.
NOUNS: dict[str, tuple[str, ...]] = {
    "child": ("child children", "kid"), "woman": ("woman women",), "man": ("man men",), "girl": ("girl",),
    "boy": ("boy",), "friend": ("friend",), "neighbor": ("neighbor",), "doctor": ("doctor",),
    "teacher": ("teacher",), "student": ("student",), "farmer": ("farmer",), "driver": ("driver",),
    "cook": ("cook", "chef"), "painter": ("painter",), "guest": ("guest",), "mother": ("mother",),
    "father": ("father",), "sister": ("sister",), "brother": ("brother",), "dog": ("dog",), "cat": ("cat",),
    "horse": ("horse",), "bird": ("bird",), "bread": ("bread",), "apple": ("apple",), "cheese": ("cheese",),
    "soup": ("soup",), "cake": ("cake",), "fish": ("fish fish",), "rice": ("rice",), "egg": ("egg",),
    "water": ("water",), "tea": ("tea",), "coffee": ("coffee",), "milk": ("milk",), "book": ("book",),
    "letter": ("letter",), "newspaper": ("newspaper", "paper"), "map": ("map",), "car": ("car",),
    "bicycle": ("bicycle", "bike"), "key": ("key",), "bag": ("bag",), "chair": ("chair",), "table": ("table",),
    "lamp": ("lamp",), "clock": ("clock",), "ticket": ("ticket",), "picture": ("picture",),
    "phone": ("phone", "telephone"), "umbrella": ("umbrella",), "coat": ("coat",), "shoe": ("shoe",),
    "gift": ("gift", "present"), "flower": ("flower",), "window": ("window",), "door": ("door",),
    "machine": ("machine",), "boat": ("boat",), "cup": ("cup",), "ball": ("ball",), "box": ("box boxes",),
    "camera": ("camera",), "house": ("house",), "school": ("school",), "market": ("market",),
    "station": ("station",), "garden": ("garden",), "kitchen": ("kitchen",), "park": ("park",),
    "city": ("city cities", "town"), "village": ("village",), "hospital": ("hospital",),
    "library": ("library libraries",), "office": ("office",), "river": ("river",), "bridge": ("bridge",),
    "shop": ("shop", "store"), "museum": ("museum",), "hotel": ("hotel",), "street": ("street", "road"),
    "forest": ("forest", "woods"),
}  # fmt: skip
ADJECTIVES: dict[str, tuple[str, ...]] = {
    "old": ("old",), "new": ("new",), "big": ("big", "large"), "small": ("small", "little"), "red": ("red",),
    "blue": ("blue",), "green": ("green",), "white": ("white",), "black": ("black",), "heavy": ("heavy",),
    "expensive": ("expensive", "costly"), "cheap": ("cheap", "inexpensive"),
    "beautiful": ("beautiful", "lovely"), "young": ("young",), "tired": ("tired",), "happy": ("happy",),
    "clean": ("clean",), "empty": ("empty",), "warm": ("warm",), "cold": ("cold",), "good": ("good",),
    "long": ("long",),
}  # fmt: skip
_ADJECTIVE_ORDER = (
    "good", "beautiful", "expensive", "cheap", "big", "small", "long", "heavy", "empty", "clean", "warm", "cold",
    "happy", "tired", "new", "old", "young", "red", "blue", "green", "white", "black",
)  # fmt: skip
ADVERBS = {
    "quickly": ("quickly",), "slowly": ("slowly",), "carefully": ("carefully",), "often": ("often", "frequently"),
    "always": ("always",), "alone": ("alone",),
}  # fmt: skip
TIMES: dict[str, tuple[str, ...]] = {
    "yesterday": ("yesterday",), "today": ("today",), "tomorrow": ("tomorrow",), "now": ("now", "right now"),
    "this_morning": ("this morning",), "this_evening": ("this evening", "tonight"), "last_week": ("last week",),
    "next_week": ("next week",), "every_day": ("every day",), "at_night": ("at night",), "on_monday": ("on Monday",),
    "on_tuesday": ("on Tuesday",), "on_wednesday": ("on Wednesday",), "on_thursday": ("on Thursday",),
    "on_friday": ("on Friday",), "on_saturday": ("on Saturday",), "on_sunday": ("on Sunday",),
}  # fmt: skip
AT = {
    "house": "in", "school": "at", "market": "at", "station": "at", "garden": "in", "kitchen": "in", "park": "in",
    "city": "in", "village": "in", "hospital": "in", "library": "in", "office": "in", "river": "by", "bridge": "on",
    "shop": "in", "museum": "in", "hotel": "in", "street": "in", "forest": "in",
}  # fmt: skip
RELATIONS: dict[str, tuple[str, ...]] = {
    "at": ("at",), "to": ("to",), "from": ("from",), "near": ("near", "close to"), "behind": ("behind",),
    "in_front_of": ("in front of",),
}  # fmt: skip
# Places that take "arrive in"; all others take "arrive at".
_ARRIVE_IN = frozenset(("city", "village", "garden", "kitchen", "forest", "park"))

# base, past, -ing; then "+particle" (the object may precede it) or "/preposition".
VERBS: dict[str, tuple[str, ...]] = {
    "have": ("have had having",), "buy": ("buy bought buying", "purchase"), "sell": ("sell sold selling",),
    "see": ("see saw seeing",), "find": ("find found finding",), "eat": ("eat ate eating",),
    "drink": ("drink drank drinking",), "read": ("read read reading",), "write": ("write wrote writing",),
    "open": ("open",), "close": ("close", "shut shut shutting"), "clean": ("clean",),
    "repair": ("repair", "fix"), "carry": ("carry carried carrying",), "lose": ("lose lost losing",),
    "need": ("need",), "love": ("love",), "know": ("know knew knowing",), "meet": ("meet met meeting",),
    "help": ("help",), "visit": ("visit visited visiting",), "call": ("call", "phone"), "pick_up": ("pick+up",),
    "invite": ("invite",), "paint": ("paint",), "cook": ("cook",), "look_for": ("look/for", "search/for"),
    "forget": ("forget forgot forgetting",), "give": ("give gave giving",), "show": ("show",),
    "bring": ("bring brought bringing",), "send": ("send sent sending",), "sleep": ("sleep slept sleeping",),
    "work": ("work",), "wait": ("wait",), "sing": ("sing sang singing",), "laugh": ("laugh",), "dance": ("dance",),
    "live": ("live",), "get_up": ("get got getting/up",), "go": ("go went going",), "travel": ("travel",),
    "arrive": ("arrive",), "come_back": ("come came coming/back", "return"), "run": ("run ran running",),
    "be": ("be",), "be_at": ("be",), "say": ("say said saying",), "think": ("think thought thinking",),
    "believe": ("believe",), "hope": ("hope",),
}  # fmt: skip
MODALS = {"want": ("want to",), "can": ("can",), "must": ("must", "have to")}
LINKS: dict[str, tuple[str, ...]] = {
    "that": ("that", ""), "because": ("because",), "when": ("when",), "if": ("if",), "and": ("and",),
    "but": ("but",),
}  # fmt: skip
_STATIVE = frozenset(("have", "need", "love", "know", "believe", "think", "hope", "say", "see", "be", "be_at",
                      "forget", "find", "lose", "live"))  # fmt: skip
_NUMBERS = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_SUBJECT = {"i": "I", "you": "you", "we": "we", "f": "she", "m": "he", "n": "it", "pl": "they"}
_OBJECT = {"i": "me", "you": "you", "we": "us", "f": "her", "m": "him", "n": "it", "pl": "them"}
_OWNER = {"i": "my", "you": "your", "we": "our", "f": "her", "m": "his", "n": "its", "pl": "their"}


class _Verb(NamedTuple):
    base: str
    past: str
    ing: str
    particle: str = ""  # "picked Ben up"
    preposition: str = ""  # "looked for Ben"


def _verb(entry: str) -> _Verb:
    head, _, preposition = entry.partition("/")
    head, _, particle = head.partition("+")
    base, *rest = head.split()
    if rest:
        past, ing = rest
    elif base.endswith("e"):
        past, ing = base + "d", base[:-1] + "ing"
    else:
        past, ing = base + "ed", base + "ing"
    return _Verb(base, past, ing, particle, preposition)


_VERBS = {concept: tuple(map(_verb, entries)) for concept, entries in VERBS.items()}


def _third(base: str) -> str:
    if base in ("have", "be", "do", "go"):
        return {"have": "has", "be": "is", "do": "does", "go": "goes"}[base]
    if base.endswith(("s", "x", "ch", "sh")):
        return base + "es"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + "s"


def _zipf(options: Sequence[object]) -> list[float]:
    return [4.0, 1.5, 1.0, 0.7][: len(options)]


def _choose(pick: Pick, key: str, options: Sequence[str]) -> str:
    return options[0] if len(options) == 1 else pick(key, options, _zipf(options))


# --- noun phrases -------------------------------------------------------------------------


def _class(entity: Entity) -> str:
    """The pronoun class of an entity: i, you, we, f, m, n or pl."""
    if entity.concept in SPEAKERS:
        return entity.concept
    if entity.number != 1:
        return "pl"
    if entity.concept == "child":
        return "pl"  # "they": the sex is unknown
    return NAMES.get(entity.concept) or PEOPLE.get(entity.concept) or "n"


def _possessive(owner: Entity, slot: str, pick: Pick) -> str:
    if owner.pronoun or owner.concept in SPEAKERS:
        return _OWNER[_class(owner)]
    text = _head(owner, f"{slot}.owner", pick, "subject", False)
    return text + ("'" if text.endswith("s") and owner.number != 1 else "'s")


def _article(following: str) -> str:
    return "an" if following[0] in "aeiou" else "a"


def _noun(entity: Entity | Place, slot: str, pick: Pick, plural: bool) -> str:
    singular, _, many = _choose(pick, f"noun.{entity.concept}", NOUNS[entity.concept]).partition(" ")
    return (many or singular + "s") if plural else singular


def _head(entity: Entity, slot: str, pick: Pick, case: str, negated: bool) -> str:
    """An entity without its relative clause."""
    if entity.pronoun or entity.concept in SPEAKERS:
        return (_SUBJECT if case == "subject" else _OBJECT)[_class(entity)]
    if entity.concept in NAMES:
        return entity.concept
    mass = entity.concept in MASS
    plural = entity.number != 1 and not mass
    words = [_choose(pick, f"{slot}.{a}", ADJECTIVES[a])
             for a in sorted(entity.adjectives, key=_ADJECTIVE_ORDER.index)]  # fmt: skip
    words.append(_noun(entity, slot, pick, plural))
    if entity.counted and not mass:
        words.insert(0, _NUMBERS[entity.number] if entity.number < len(_NUMBERS) else str(entity.number))
    if entity.owner:
        words.insert(0, _possessive(entity.owner, slot, pick))
    elif entity.definite:
        words.insert(0, "the")
    elif entity.counted and not mass:
        pass
    elif mass or plural:
        some = "any" if negated else "some"
        words.insert(0, pick(f"{slot}.some", ("", some), (3, 1)))
    else:
        words.insert(0, _article(words[0]))
    return " ".join(w for w in words if w)


def _entity(
    entity: Entity, slot: str, pick: Pick, case: str = "object", negated: bool = False
) -> list[Piece]:
    found = [Piece(_head(entity, slot, pick, case, negated), slot)]
    if entity.relative:
        found.append(Piece(_relative(entity, slot, pick), f"{slot}.relative"))
    return found


def _relative(head: Entity, slot: str, pick: Pick) -> str:
    clause = head.relative
    assert clause is not None
    being = head.concept in PEOPLE
    options: tuple[str, ...]
    weights: tuple[int, ...]
    if isinstance(clause.subject, Gap):
        options, weights = (("who", "that"), (4, 1)) if being else (("that", "which"), (2, 1))
    else:
        options, weights = (("that", "", "whom"), (3, 3, 1)) if being else (("that", "", "which"), (3, 3, 1))
    word = pick(f"{slot}.relative.pronoun", options, weights)
    # The head's number decides the verb's: "the men who buy".
    subject = _agreeing(head) if isinstance(clause.subject, Gap) else None
    inner = _clause(clause, f"{slot}.relative", pick, "relative", gap=subject)
    return join([Piece(word, slot), *inner], capital=False)


def _agreeing(head: Entity) -> Entity:
    """An entity with the same agreement as `head`."""
    return Entity(head.concept, head.number)


def _place(place: Place, slot: str, pick: Pick, verb: str | None) -> str:
    if place.relation == "at":
        word = AT[place.concept]
        if verb == "arrive":
            word = "in" if place.concept in _ARRIVE_IN else "at"
    else:
        word = _choose(pick, f"{slot}.relation", RELATIONS[place.relation])
    words = [_choose(pick, f"{slot}.{place.adjective}", ADJECTIVES[place.adjective])] if place.adjective else []
    noun = _noun(place, slot, pick, False)
    words.append(noun)
    if place.definite or noun == "woods":
        words.insert(0, "the")
    else:
        words.insert(0, _article(words[0]))
    return " ".join((word, *words))


# --- clauses ------------------------------------------------------------------------------


def _be(person: str, past: bool) -> str:
    if past:
        return "was" if person in ("i", "f", "m", "n") else "were"
    return "am" if person == "i" else "is" if person in ("f", "m", "n") else "are"


def _complex(
    clause: Clause, name: str, pick: Pick, person: str, mode: str, support: bool
) -> tuple[str, str, _Verb]:
    """The auxiliary ("" when there is none) and the rest of the verb. `support` forces an auxiliary."""
    assert clause.verb is not None
    verb = pick(f"{name}.verb", _VERBS[clause.verb], _zipf(_VERBS[clause.verb])) if (
        len(_VERBS[clause.verb]) > 1) else _VERBS[clause.verb][0]  # fmt: skip
    third = person in ("f", "m", "n")
    tense = clause.tense
    if mode == "condition" and tense == "future":
        tense = "present"

    def finite(base: str, past: str) -> tuple[str, str]:
        if tense == "future":
            return pick(f"{name}.future", ("will", "going"), (4, 1)), base
        if support:
            return ("did" if tense == "past" else "does" if third else "do"), base
        return "", past if tense == "past" else _third(base) if third else base

    if clause.modal == "can":
        aux, rest = {"past": ("could", verb.base), "present": ("can", verb.base),
                     "future": ("will", "be able to " + verb.base)}[tense]  # fmt: skip
    elif clause.modal == "must":
        if tense == "present" and not clause.negated and not support:
            word = pick(f"{name}.must", ("must", "have to"), (2, 1))
        else:
            word = "have to"
        if word == "must":
            aux, rest = "must", verb.base
        else:
            aux, rest = finite("have", "had")
            rest += " to " + verb.base
    elif clause.modal == "want":
        aux, rest = finite("want", "wanted")
        rest += " to " + verb.base
    elif tense == "future":
        aux, rest = finite(verb.base, verb.past)
    elif verb.base == "be":
        aux, rest = _be(person, tense == "past"), ""
    elif tense == "present" and mode not in ("condition", "habit") and _ongoing(clause, pick):
        aux, rest = _be(person, False), verb.ing
    else:
        aux, rest = finite(verb.base, verb.past)
    if aux == "going":
        aux, rest = _be(person, False), "going to " + rest
    return aux, rest, verb


def _ongoing(clause: Clause, pick: Pick) -> bool:
    """Whether a present tense takes the -ing form."""
    if clause.verb in _STATIVE or clause.time in ("every_day", "at_night") or clause.adverb in ("often", "always"):
        return False
    if clause.time in ("now", "today"):
        return True
    return pick("text.ongoing", (True, False), (2, 1))


def _negative(aux: str, name: str, pick: Pick) -> str:
    if aux in ("am", "must"):
        return aux + " not"
    full = "cannot" if aux == "can" else aux + " not"
    short = {"will": "won't", "can": "can't"}.get(aux, aux + "n't")
    return pick(f"{name}.not", (full, short), (3, 2))


def _clause(
    clause: Clause, name: str, pick: Pick, mode: str = "main", gap: Entity | None = None
) -> list[Piece]:
    """`mode`: main, habit (main, no -ing), sub, condition (no future: after if and when) or relative (`gap`: its head as subject)."""
    subject = clause.subject if isinstance(clause.subject, Entity) else gap
    person = _class(subject) if subject else "n"
    if subject and subject.concept == "child" and subject.number == 1 and not subject.pronoun:
        person = "n"  # "the child sings", though "they sing"
    if clause.asks == "who":
        person = "n"
    about = asked(clause)
    inverted = clause.asks is not None and clause.asks != "who"
    early: list[Piece] = []  # before the subject
    late: dict[str, list[Piece]] = {}

    # The question word.
    if about and about != "verb":
        word = {"who": "who", "what": "what", "where": "where", "when": "when"}.get(clause.asks or "", "")
        if clause.asks == "whom":
            word = pick(f"{name}.whom", ("who", "whom"), (3, 2))
        elif clause.asks == "how_many":
            counted = clause.object
            assert isinstance(counted, Entity)
            one = Entity(counted.concept, 2, False, False, counted.adjectives)
            word = "how much" if counted.concept in MASS else "how many"
            noun = _noun(one, f"{name}.object", pick, counted.concept not in MASS)
            extra = [_choose(pick, f"{name}.object.{a}", ADJECTIVES[a])
                     for a in sorted(one.adjectives, key=_ADJECTIVE_ORDER.index)]  # fmt: skip
            word = " ".join((word, *extra, noun))
        if word:
            early.append(Piece(word, f"{name}.{about}"))

    # Time and place before the subject.
    front = clause.front if mode == "main" and not clause.asks else None
    if mode == "main" and clause.time and not clause.asks and clause.front != "place":
        front = "time" if pick(f"{name}.front", (clause.front == "time", clause.front != "time"), (5, 1)) else None
    if clause.time and about != "time":
        late["time"] = [Piece(_choose(pick, f"{name}.time", TIMES[clause.time]), f"{name}.time")]
    if clause.place and about != "place":
        late["place"] = [Piece(_place(clause.place, f"{name}.place", pick, clause.verb), f"{name}.place")]
    if front and front in late:
        early.extend(late.pop(front))
        if pick(f"{name}.comma", (False, True), (1, 1)):
            early.append(Piece(",", "mark"))

    said: list[Piece] = []
    if isinstance(clause.subject, Entity) and about != "subject":
        said = _entity(clause.subject, f"{name}.subject", pick, "subject")

    # The verb, with the adverb if it precedes the last part.
    particle = preposition = ""
    adverb = [Piece(_choose(pick, f"{name}.adverb", ADVERBS[clause.adverb]), f"{name}.adverb")] if clause.adverb else []
    object_said = isinstance(clause.object, Entity) and about != "object"
    before = clause.adverb in ("often", "always")
    if clause.adverb in ("quickly", "slowly", "carefully") and clause.verb and not clause.negated:
        before = pick(f"{name}.manner", (False, True), (3, 2)) if object_said else False
    verb_slot = f"{name}.verb"
    doing: list[Piece] = []
    if clause.verb:
        aux, rest, verb = _complex(clause, name, pick, person, mode, clause.negated or inverted)
        particle, preposition = verb.particle, verb.preposition
        if preposition and clause.verb in ("get_up", "come_back"):
            rest, preposition = f"{rest} {preposition}".strip(), ""
        if inverted and said:
            negative = _negative(aux, name, pick) if clause.negated else aux
            if clause.negated and negative.endswith("not"):
                negative = negative[: -len("not")].strip() if negative != "cannot" else "can"
                early.append(Piece(negative, verb_slot))
                said = [*said, Piece("not", verb_slot)]
            else:
                early.append(Piece(negative, verb_slot))
            aux = ""
        elif clause.negated and aux:
            aux = _negative(aux, name, pick)
        if before:
            doing = [Piece(aux, verb_slot), *adverb, Piece(rest, verb_slot)]
        else:
            doing = [Piece(f"{aux} {rest}".strip(), verb_slot)]
    elif before:
        doing = adverb
    if before:
        adverb = []

    # Objects: the particle follows a pronoun, and precedes or follows a noun.
    after: list[Piece] = []
    item: list[Piece] = []
    pronoun = False
    if object_said:
        assert isinstance(clause.object, Entity)
        item = _entity(clause.object, f"{name}.object", pick, "object", clause.negated)
        pronoun = clause.object.pronoun or clause.object.concept in SPEAKERS
    person_said: list[Piece] = []
    if clause.recipient and about != "recipient":
        person_said = _entity(clause.recipient, f"{name}.recipient", pick)
    if person_said and item:
        # An indefinite thing comes last: "gave the teacher a book"; a pronoun always first: "gave it to the teacher".
        short = clause.recipient is not None and (clause.recipient.pronoun or clause.recipient.concept in SPEAKERS)
        to_first = not pronoun and pick(f"{name}.dative", (True, False), (5, 1) if short else (2, 1))
        if to_first:
            after = [*person_said, *item]
        else:
            after = [*item, Piece("to", f"{name}.recipient"), *person_said]
    elif person_said:
        after = [Piece("to", f"{name}.recipient"), *person_said]
    else:
        after = item
    if particle:
        end = [Piece(particle, verb_slot)]
        has_relative = isinstance(clause.object, Entity) and clause.object.relative
        if pronoun:
            after = [*after, *end]
        elif has_relative or not item:
            after = [*end, *after]
        else:
            after = [*end, *after] if pick(f"{name}.particle", (True, False), (1, 1)) else [*after, *end]
    if preposition:
        after = [Piece(preposition, verb_slot), *after]
    if about == "recipient":
        after.append(Piece("to", f"{name}.recipient"))
    if about == "place" and clause.place and clause.place.relation == "from":
        after.append(Piece("from", f"{name}.place"))
    if clause.complement:
        words = ADJECTIVES[clause.complement]
        if clause.complement == "small":  # "little" is attributive only
            words = words[:1]
        after.append(Piece(_choose(pick, f"{name}.complement", words), f"{name}.complement"))

    # Manner, place and time.
    where = late.get("place", [])
    if bool(adverb and where) and pick(f"{name}.where", (False, True), (2, 1)):
        tail = [*where, *adverb]
    else:
        tail = [*adverb, *where]
    when = late.get("time", [])
    free = when and where and clause.verb not in ("be_at", "live", *MOTION) and not adverb
    swap = pick(f"{name}.order", (False, True), (6, 1)) if free else False
    tail = [*when, *tail] if swap else [*tail, *when]
    found = [*early, *said, *doing, *after, *tail]
    return [p for p in found if p.text]


def pieces(sentence: Sentence, pick: Pick) -> list[Piece]:
    """The sentence in surface order (see :class:`~town.corpus.meaning.Language`)."""
    pick = once(pick)
    link, second = sentence.link, sentence.second
    mark = "?" if sentence.main.asks else "."
    dependent = link in ("when", "if")
    body = _clause(sentence.main, "main", pick, "habit" if dependent else "main")
    rest: list[Piece] = []
    if second:
        mode = "condition" if dependent else "main" if link in (None, "and", "but") else "sub"
        rest = _clause(second, "second", pick, mode)
    if link:
        word = _choose(pick, "link", LINKS[link])
        joint = [Piece(word, "link")] if word else []
        if link == "but" or (link == "and" and pick("link.comma", (True, False), (1, 1))):
            joint = [Piece(",", "mark"), *joint]
        if dependent and body and rest and not sentence.main.asks and pick("link.first", (False, True), (2, 1)):
            return [*joint, *rest, Piece(",", "mark"), *body, Piece(mark, "mark")]
        rest = [*joint, *rest]
    elif body and rest:
        rest = [Piece(",", "mark"), *rest]
    return [*body, *rest, Piece(mark, "mark")]


def join(pieces: Sequence[Piece], capital: bool = True) -> str:
    """The text of pieces. A comma before another mark is dropped; `capital`: the first letter is."""
    words: list[str] = []
    for piece in pieces:
        if piece.text in (",", ".", "?", "!") and words:
            if words[-1].endswith(","):
                words[-1] = words[-1][:-1]
            words[-1] += piece.text
        elif piece.text and piece.text != ",":
            words.append(piece.text)
    text = " ".join(words)
    return text[:1].upper() + text[1:] if capital else text


def noun_phrase(entity: Entity, pick: Pick, use: str = "about") -> str:
    """An entity alone, in object form: "her", "the doctor who sings"."""
    return join(_entity(entity, use, once(pick)), capital=False)


PHRASES: dict[str, tuple[str, ...]] = {
    "translate": ("Translate into {language}: {text}", "Please translate this into {language}: {text}",
                  "How do you say this in {language}? {text}"),
    "summarize": ("Summarize this text in one sentence: {text}", "Please summarize in one sentence: {text}",
                  "What is the main point of this text? {text}"),
    "summary_opening": ("", "In short: ", "In brief: "),
    "answer_question": ("Read this text: {text} Question: {question}", "{text} Question: {question}",
                        "Answer with the help of the text. {text} {question}"),
    "passage": ("[{number}] {text}", "Passage {number}: {text}"),
    "use_passages": ("Use the passages to answer. {passages} Question: {question}",
                     "Answer the question with the help of these passages. {passages} {question}"),
    "from_passage": ("Passage {number} says: {answer}", "According to passage {number}: {answer}"),
    "solve": ("{problem}", "Solve step by step: {problem}", "Work this out in steps: {problem}"),
    "step_first": ("First, {equation}.", "First we calculate {equation}."),
    "step_next": ("Then {equation}.", "Next, {equation}."),
    "conclusion": ("So: {sentence}", "Answer: {sentence}"),
    "tell_about": ("Tell me something about {who}.", "What do you know about {who}?",
                   "Can you tell me about {who}?"),
    "tell_opening": ("", "Of course. ", "Gladly. "),
    "ask_more": ("Thank you. {question}", "One more thing: {question}", "I see. {question}"),
    "write_code": ("{task}", "Please help me with this task. {task}", "Here is a task: {task}"),
    "code_opening": ("Here is the function:", "This function does it:"),
}  # fmt: skip
_W = "Write a Python function {name} that returns "
_I = "Implement {name} in Python so that it returns "
CODE_TASKS: dict[str, tuple[str, ...]] = {
    key: tuple(f"{frame}{what}." for frame in (_W, _I) for what in whats)
    for key, whats in {
        "sum": ("the sum of the numbers in the list {a}", "the total of all numbers in the list {a}"),
        "product": ("the product of the numbers in the list {a}",),
        "maximum": ("the largest number in the list {a}", "the maximum of the list {a}"),
        "minimum": ("the smallest number in the list {a}", "the minimum of the list {a}"),
        "average": ("the average of the numbers in the list {a}", "the mean of the list {a}"),
        "count_above": ("how many numbers in the list {a} are greater than {k}",),
        "keep_even": ("the even numbers of the list {a}", "only the even numbers in the list {a}"),
        "keep_below": ("the numbers of the list {a} that are less than {k}",),
        "scale": ("the list {a} with every number multiplied by {k}",),
        "shift": ("the list {a} with {k} added to every number",),
        "reverse": ("the list {a} in reverse order", "the list {a} reversed"),
        "contains": ("whether the list {a} contains the number {k}",),
    }.items()
}
