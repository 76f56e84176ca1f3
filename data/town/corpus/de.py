"""German: gender and case, three adjective endings, verb second and verb last, split verbs, two past tenses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from town.corpus.meaning import (
    MASS,
    NAMES,
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

T = TypeVar("T")

CODE = "de"
LANGUAGES = {
    "en": "Englische", "de": "Deutsche", "fr": "Französische", "es": "Spanische", "zh": "Chinesische",
    "ja": "Japanische", "vi": "Vietnamesische",
}  # fmt: skip

# Gender, singular, plural; a "*" marks weak nouns ("den Bauern"). Variants of things share one gender,
# because a pronoun may refer back to any of them.
NOUNS: dict[str, tuple[str, ...]] = {
    "child": ("n Kind Kinder",), "woman": ("f Frau Frauen",), "man": ("m Mann Männer",),
    "girl": ("n Mädchen Mädchen",), "boy": ("m* Junge Jungen",), "friend": ("m Freund Freunde",),
    "neighbor": ("f Nachbarin Nachbarinnen",), "doctor": ("f Ärztin Ärztinnen",), "teacher": ("m Lehrer Lehrer",),
    "student": ("f Studentin Studentinnen",), "farmer": ("m* Bauer Bauern",),
    "driver": ("m Fahrer Fahrer",), "cook": ("m Koch Köche",), "painter": ("f Malerin Malerinnen",),
    "guest": ("m Gast Gäste",), "mother": ("f Mutter Mütter",), "father": ("m Vater Väter",),
    "sister": ("f Schwester Schwestern",), "brother": ("m Bruder Brüder",), "dog": ("m Hund Hunde",),
    "cat": ("f Katze Katzen",), "horse": ("n Pferd Pferde",), "bird": ("m Vogel Vögel",), "bread": ("n Brot Brote",),
    "apple": ("m Apfel Äpfel",), "cheese": ("m Käse Käse",), "soup": ("f Suppe Suppen",),
    "cake": ("m Kuchen Kuchen",), "fish": ("m Fisch Fische",), "rice": ("m Reis Reis",), "egg": ("n Ei Eier",),
    "water": ("n Wasser Wasser",), "tea": ("m Tee Tees",), "coffee": ("m Kaffee Kaffees",), "milk": ("f Milch Milch",),
    "book": ("n Buch Bücher",), "letter": ("m Brief Briefe",), "newspaper": ("f Zeitung Zeitungen",),
    "map": ("f Landkarte Landkarten", "f Karte Karten"), "car": ("n Auto Autos",),
    "bicycle": ("n Fahrrad Fahrräder", "n Rad Räder"), "key": ("m Schlüssel Schlüssel",),
    "bag": ("f Tasche Taschen",), "chair": ("m Stuhl Stühle",), "table": ("m Tisch Tische",),
    "lamp": ("f Lampe Lampen",), "clock": ("f Uhr Uhren",), "ticket": ("f Fahrkarte Fahrkarten",),
    "picture": ("n Bild Bilder", "n Gemälde Gemälde"), "phone": ("n Telefon Telefone",),
    "umbrella": ("m Regenschirm Regenschirme", "m Schirm Schirme"), "coat": ("m Mantel Mäntel",),
    "shoe": ("m Schuh Schuhe",), "gift": ("n Geschenk Geschenke",), "flower": ("f Blume Blumen",),
    "window": ("n Fenster Fenster",), "door": ("f Tür Türen",), "machine": ("f Maschine Maschinen",),
    "boat": ("n Boot Boote",), "cup": ("f Tasse Tassen",), "ball": ("m Ball Bälle",),
    "box": ("f Kiste Kisten", "f Schachtel Schachteln"), "camera": ("f Kamera Kameras",),
    "house": ("n Haus Häuser",), "school": ("f Schule Schulen",), "market": ("m Markt Märkte",),
    "station": ("m Bahnhof Bahnhöfe",), "garden": ("m Garten Gärten",), "kitchen": ("f Küche Küchen",),
    "park": ("m Park Parks",), "city": ("f Stadt Städte",), "village": ("n Dorf Dörfer",),
    "hospital": ("n Krankenhaus Krankenhäuser", "f Klinik Kliniken"), "library": ("f Bibliothek Bibliotheken", "f Bücherei Büchereien"),
    "office": ("n Büro Büros",), "river": ("m Fluss Flüsse",), "bridge": ("f Brücke Brücken",),
    "shop": ("m Laden Läden", "n Geschäft Geschäfte"), "museum": ("n Museum Museen",), "hotel": ("n Hotel Hotels",),
    "street": ("f Straße Straßen",), "forest": ("m Wald Wälder",),
}  # fmt: skip
# Predicative form; the attributive stem after a "/" where it differs.
ADJECTIVES: dict[str, tuple[str, ...]] = {
    "old": ("alt",), "new": ("neu",), "big": ("groß",), "small": ("klein",), "red": ("rot",), "blue": ("blau",),
    "green": ("grün",), "white": ("weiß",), "black": ("schwarz",), "heavy": ("schwer",),
    "expensive": ("teuer/teur",), "cheap": ("billig", "günstig"), "beautiful": ("schön", "hübsch"),
    "young": ("jung",), "tired": ("müde/müd",), "happy": ("glücklich", "froh"), "clean": ("sauber",),
    "empty": ("leer",), "warm": ("warm",), "cold": ("kalt",), "good": ("gut",), "long": ("lang",),
}  # fmt: skip
_ADJECTIVE_ORDER = (
    "good", "beautiful", "expensive", "cheap", "big", "small", "long", "heavy", "empty", "clean", "warm", "cold",
    "happy", "tired", "new", "old", "young", "red", "blue", "green", "white", "black",
)  # fmt: skip
ADVERBS: dict[str, tuple[str, ...]] = {
    "quickly": ("schnell", "rasch"), "slowly": ("langsam",), "carefully": ("vorsichtig", "sorgfältig"),
    "often": ("oft", "häufig"), "always": ("immer",), "alone": ("allein", "alleine"),
}  # fmt: skip
TIMES: dict[str, tuple[str, ...]] = {
    "yesterday": ("gestern",), "today": ("heute",), "tomorrow": ("morgen",), "now": ("jetzt", "gerade"),
    "this_morning": ("heute Morgen",), "this_evening": ("heute Abend",), "last_week": ("letzte Woche", "vorige Woche"),
    "next_week": ("nächste Woche",), "every_day": ("jeden Tag", "täglich"), "at_night": ("nachts", "in der Nacht"),
    "on_monday": ("am Montag",), "on_tuesday": ("am Dienstag",), "on_wednesday": ("am Mittwoch",),
    "on_thursday": ("am Donnerstag",), "on_friday": ("am Freitag",), "on_saturday": ("am Samstag", "am Sonnabend"),
    "on_sunday": ("am Sonntag",),
}  # fmt: skip
# Location (dative), goal (":acc" or ":dat" after the preposition), origin (dative).
_IN = ("in", "in:acc", "aus")
AT: dict[str, tuple[str, str, str]] = {
    "house": _IN, "school": ("in", "in:acc", "aus"), "market": ("auf", "auf:acc", "von"),
    "station": ("an", "zu:dat", "von"), "garden": _IN, "kitchen": _IN, "park": ("in", "in:acc", "aus"), "city": _IN,
    "village": _IN, "hospital": _IN, "library": _IN, "office": _IN, "river": ("an", "an:acc", "von"),
    "bridge": ("auf", "auf:acc", "von"), "shop": _IN, "museum": _IN, "hotel": _IN, "street": ("auf", "auf:acc", "von"),
    "forest": _IN,
}  # fmt: skip
# Destinations that also take "zu".
_ZU = frozenset(("school", "market", "river", "bridge", "shop", "museum", "hotel", "hospital", "library"))
RELATIONS: dict[str, tuple[str, ...]] = {
    "at": ("in",), "to": ("in",), "from": ("aus",), "near": ("in der Nähe von",), "behind": ("hinter",),
    "in_front_of": ("vor",),
}  # fmt: skip

# infinitive, er-present, ich-past, participle; "an|rufen" is separable; "+" takes sein.
VERBS: dict[str, tuple[str, ...]] = {
    "have": ("haben hat hatte gehabt",), "buy": ("kaufen",), "sell": ("verkaufen verkauft verkaufte verkauft",),
    "see": ("sehen sieht sah gesehen",), "find": ("finden findet fand gefunden",),
    "eat": ("essen isst aß gegessen",), "drink": ("trinken trinkt trank getrunken",),
    "read": ("lesen liest las gelesen",), "write": ("schreiben schreibt schrieb geschrieben",),
    "open": ("öffnen öffnet öffnete geöffnet", "auf|machen macht machte gemacht"),
    "close": ("schließen schließt schloss geschlossen", "zu|machen macht machte gemacht"),
    "clean": ("putzen", "reinigen"), "repair": ("reparieren repariert reparierte repariert",),
    "carry": ("tragen trägt trug getragen",), "lose": ("verlieren verliert verlor verloren",),
    "need": ("brauchen", "benötigen benötigt benötigte benötigt"), "love": ("lieben",),
    "know": ("kennen kennt kannte gekannt",), "meet": ("treffen trifft traf getroffen",),
    "help": ("helfen hilft half geholfen",), "visit": ("besuchen besucht besuchte besucht",),
    "call": ("an|rufen ruft rief gerufen",), "pick_up": ("ab|holen",), "invite": ("ein|laden lädt lud geladen",),
    "paint": ("malen",), "cook": ("kochen",), "look_for": ("suchen",), "forget": ("vergessen vergisst vergaß vergessen",),
    "give": ("geben gibt gab gegeben",), "show": ("zeigen",), "bring": ("bringen bringt brachte gebracht",),
    "send": ("schicken", "senden sendet sandte gesandt"), "sleep": ("schlafen schläft schlief geschlafen",),
    "work": ("arbeiten arbeitet arbeitete gearbeitet",), "wait": ("warten wartet wartete gewartet",),
    "sing": ("singen singt sang gesungen",), "laugh": ("lachen",), "dance": ("tanzen",),
    "live": ("wohnen", "leben"), "get_up": ("auf|stehen steht stand gestanden +",),
    "go": ("gehen geht ging gegangen +",), "travel": ("reisen reist reiste gereist +", "fahren fährt fuhr gefahren +"),
    "arrive": ("an|kommen kommt kam gekommen +",),
    "come_back": ("zurück|kommen kommt kam gekommen +", "zurück|kehren kehrt kehrte gekehrt +"),
    "run": ("laufen läuft lief gelaufen +", "rennen rennt rannte gerannt +"), "be": ("sein ist war gewesen +",),
    "be_at": ("sein ist war gewesen +",), "say": ("sagen",), "think": ("denken denkt dachte gedacht", "meinen"),
    "believe": ("glauben",), "hope": ("hoffen",),
}  # fmt: skip
MODALS: dict[str, tuple[str, ...]] = {"want": ("wollen",), "can": ("können",), "must": ("müssen",)}
LINKS: dict[str, tuple[str, ...]] = {
    "that": ("dass",), "because": ("weil", "denn", "da"), "when": ("wenn",), "if": ("wenn", "falls"), "and": ("und",),
    "but": ("aber",),
}  # fmt: skip
DATIVE = frozenset(("help",))  # verbs whose object is in the dative
_NUMBERS = ("keine", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf")
_CASES = ("nom", "acc", "dat", "gen")
_DEFINITE = {"m": "der den dem des", "f": "die die der der", "n": "das das dem des", "p": "die die den der"}
_EIN = {"m": ("", "en", "em", "es"), "f": ("e", "e", "er", "er"), "n": ("", "", "em", "es"),
        "p": ("e", "e", "en", "er")}  # fmt: skip
_WEAK = {"m": ("e", "en", "en", "en"), "f": ("e", "e", "en", "en"), "n": ("e", "e", "en", "en"),
         "p": ("en", "en", "en", "en")}  # fmt: skip
_MIXED = {"m": ("er", "en", "en", "en"), "f": ("e", "e", "en", "en"), "n": ("es", "es", "en", "en"),
          "p": ("en", "en", "en", "en")}  # fmt: skip
_STRONG = {"m": ("er", "en", "em", "en"), "f": ("e", "e", "er", "er"), "n": ("es", "es", "em", "en"),
           "p": ("e", "e", "en", "er")}  # fmt: skip
_PRONOUNS = {
    "i": "ich mich mir", "you": "Sie Sie Ihnen", "we": "wir uns uns", "m": "er ihn ihm", "f": "sie sie ihr",
    "n": "es es ihm", "p": "sie sie ihnen",
}  # fmt: skip
_RELATIVES = {"m": "der den dem", "f": "die die der", "n": "das das dem", "p": "die die denen"}
_OWNERS = {"i": "mein", "you": "Ihr", "we": "unser", "m": "sein", "n": "sein", "f": "ihr", "p": "ihr"}
_CONTRACTED = {
    "in dem": "im", "in das": "ins", "an dem": "am", "an das": "ans", "von dem": "vom", "zu dem": "zum",
    "zu der": "zur", "bei dem": "beim",
}  # fmt: skip


class _Noun(NamedTuple):
    gender: str
    weak: bool
    singular: str
    plural: str

    def form(self, case: str, plural: bool) -> str:
        if plural:
            return self.plural + ("n" if case == "dat" and self.plural[-1] not in "ns" else "")
        if self.weak and case != "nom":
            return self.singular + ("n" if self.singular[-1] in "er" else "en")
        if case == "gen" and self.gender != "f":
            one = len(re.findall("[aeiouäöüy]+", self.singular.lower())) < 2 and self.singular[-1] not in "eikp"
            return self.singular + ("es" if one or self.singular[-1] in "sßxz" else "s")
        return self.singular


class _Verb(NamedTuple):
    particle: str
    infinitive: str  # without the particle
    third: str
    past: str
    participle: str
    sein: bool


def _parse_verb(entry: str) -> _Verb:
    sein = entry.endswith(" +")
    infinitive, *forms = entry.removesuffix(" +").split()
    particle, bar, rest = infinitive.partition("|")
    if not bar:
        particle, rest = "", infinitive
    stem = rest.removesuffix("en")
    third, past, participle = forms or (stem + "t", stem + "te", "ge" + stem + "t")
    return _Verb(particle, rest, third, past, particle + participle, sein)


_NOUN_FORMS = {
    concept: tuple(_Noun(g[0], "*" in g, s, p) for g, s, p in (v.split() for v in variants))
    for concept, variants in NOUNS.items()
}
_VERB_FORMS = {concept: tuple(map(_parse_verb, variants)) for concept, variants in VERBS.items()}
_SEIN = {"i": "bin", "s": "ist", "p": "sind"}
_HABEN = {"i": "habe", "s": "hat", "p": "haben"}
_WERDEN = {"i": "werde", "s": "wird", "p": "werden"}
_MODAL = {"want": ("will", "wollen", "wollte"), "can": ("kann", "können", "konnte"), "must": ("muss", "müssen", "musste")}


def _choose(pick: Pick, key: str, options: Sequence[T]) -> T:
    return options[0] if len(options) == 1 else pick(key, options, (4.0, 1.5, 1.0, 0.7)[: len(options)])


# --- noun phrases -------------------------------------------------------------------------


def _gender(entity: Entity) -> str:
    """i, you, we for speakers; else m, f, n or p, as pronouns require (a girl is "sie")."""
    if entity.concept in SPEAKERS:
        return entity.concept
    if entity.number != 1:
        return "p"
    if entity.concept == "girl":
        return "f"
    return NAMES.get(entity.concept) or _NOUN_FORMS[entity.concept][0].gender


def _person(entity: Entity | None) -> str:
    """The verb form: i, s (er) or p (wir, sie, Sie)."""
    if entity is None:
        return "s"
    gender = _gender(entity)
    return "i" if gender == "i" else "p" if gender in ("we", "you", "p") else "s"


def _adjectives(names: Sequence[str], endings: Mapping[str, tuple[str, ...]], gender: str, case: str, slot: str,
                pick: Pick) -> list[str]:  # fmt: skip
    words = []
    for name in sorted(names, key=_ADJECTIVE_ORDER.index):
        forms = ADJECTIVES[name][:1] if name == "happy" else ADJECTIVES[name]  # "froh" is predicative only
        form = _choose(pick, f"{slot}.{name}", forms)
        words.append(form.split("/")[-1] + endings[gender][_CASES.index(case)])
    return words


def _head(entity: Entity, slot: str, pick: Pick, case: str, negated: bool = False) -> str:
    """An entity without its relative clause; `negated`: with "kein"."""
    at = _CASES.index(case)
    if entity.pronoun or entity.concept in SPEAKERS:
        return _PRONOUNS[_gender(entity)].split()[at]
    if entity.concept in NAMES:
        return _named(entity.concept) if case == "gen" else entity.concept
    mass = entity.concept in MASS
    plural = entity.number != 1 and not mass
    noun = _choose(pick, f"noun.{entity.concept}", _NOUN_FORMS[entity.concept])
    gender = "p" if plural else noun.gender
    before: list[str] = []
    after = ""
    endings = _WEAK
    counted = [_NUMBERS[entity.number] if 1 < entity.number < len(_NUMBERS) else str(entity.number)] if (
        entity.counted and plural) else []  # fmt: skip
    owner = entity.owner
    if owner and (owner.pronoun or owner.concept in SPEAKERS):
        before = [_OWNERS[_gender(owner)] + _EIN[gender][at]]
        endings = _MIXED
    elif owner and owner.concept in NAMES:
        if pick(f"{slot}.of", (False, True), (4, 1)):
            before = [_DEFINITE[gender].split()[at]]
            after = f"von {owner.concept}"
        else:
            before = [_named(owner.concept)]
            endings = _STRONG
    elif owner:
        before = [_DEFINITE[gender].split()[at]]
        if pick(f"{slot}.of", (False, True), (2, 1)):
            after = _prepositional("von", _head(owner, f"{slot}.owner", pick, "dat"))
        elif owner.owner is None or owner.owner.concept not in NAMES:
            after = _head(owner, f"{slot}.owner", pick, "gen")
        else:
            after = _prepositional("von", _head(owner, f"{slot}.owner", pick, "dat"))
    elif entity.definite:
        before = [_DEFINITE[gender].split()[at]]
    elif negated and not counted:
        before = ["kein" + _EIN[gender][at]]
        endings = _MIXED
    elif mass or plural:
        endings = _STRONG
        if plural and not counted:
            some = pick(f"{slot}.some", ("", "einig"), (3, 1))
            before = [some + _STRONG["p"][at]] if some else []
    else:
        before = ["ein" + _EIN[gender][at]]
        endings = _MIXED
    words = [*before, *counted, *_adjectives(entity.adjectives, endings, gender, case, slot, pick)]
    return " ".join(w for w in (*words, noun.form(case, plural), after) if w)


def _named(name: str) -> str:
    """A name in the genitive: Annas, Felix'."""
    return name + ("’" if name[-1] in "sxzß" else "s")


def _prepositional(preposition: str, phrase: str) -> str:
    """A preposition and its noun phrase, contracted: im Garten, zum Bahnhof."""
    first, _, rest = phrase.partition(" ")
    short = _CONTRACTED.get(f"{preposition} {first}") if rest else None
    return f"{short} {rest}" if short else f"{preposition} {phrase}"


def _entity(entity: Entity, slot: str, pick: Pick, case: str, negated: bool = False) -> list[Piece]:
    head = _head(entity, slot, pick, case, negated)
    found = [Piece(head, slot)]
    if negated and head.startswith("kein"):  # it negates the verb
        none, _, rest = head.partition(" ")
        found = [Piece(none, slot.rpartition(".")[0] + ".verb"), Piece(rest, slot)]
    if entity.relative:
        found += [Piece(",", "mark"), Piece(_relative(entity, slot, pick), f"{slot}.relative"), Piece(",", "mark")]
    return found


def _relative(head: Entity, slot: str, pick: Pick) -> str:
    clause = head.relative
    assert clause is not None
    noun = _choose(pick, f"noun.{head.concept}", _NOUN_FORMS[head.concept])
    gender = "p" if head.number != 1 else noun.gender
    subject = isinstance(clause.subject, Gap)
    case = "nom" if subject else "dat" if clause.verb in DATIVE else "acc"
    word = _RELATIVES[gender].split()[_CASES.index(case)]
    inner = _clause(clause, f"{slot}.relative", pick, "last", gap=Entity(head.concept, head.number) if subject else None)
    return join([Piece(word, slot), *inner], capital=False)


def _place(place: Place, slot: str, pick: Pick) -> str:
    noun = _choose(pick, f"noun.{place.concept}", _NOUN_FORMS[place.concept])
    case = "dat"
    at, to, from_ = AT[place.concept]
    if place.relation == "at":
        preposition = at
    elif place.relation == "to":
        if place.concept in _ZU:
            to = pick(f"{slot}.to", (to, "zu:dat"), (3, 2))
        preposition, case = to.split(":")
    elif place.relation == "from":
        preposition = from_
    else:
        preposition = RELATIONS[place.relation][0]
    index = _CASES.index(case)
    names = [place.adjective] if place.adjective else []
    if place.relation == "near" and pick(f"{slot}.near", (True, False), (2, 1)):
        preposition, case, index = "in der Nähe", "gen", 3
    if place.definite:
        words = [_DEFINITE[noun.gender].split()[index], *_adjectives(names, _WEAK, noun.gender, case, slot, pick)]
    else:
        words = ["ein" + _EIN[noun.gender][index], *_adjectives(names, _MIXED, noun.gender, case, slot, pick)]
    phrase = " ".join((*words, noun.form(case, False)))
    if preposition.startswith("in der Nähe von"):
        return "in der Nähe " + _prepositional("von", phrase)
    return _prepositional(preposition, phrase)


# --- clauses ------------------------------------------------------------------------------


def _present(verb: _Verb, person: str) -> str:
    if verb.infinitive == "sein":
        return _SEIN[person]
    if verb.infinitive == "haben":
        return _HABEN[person]
    if person == "p":
        return verb.infinitive
    return verb.third if person == "s" else verb.infinitive.removesuffix("n")


def _past(form: str, person: str) -> str:
    if person != "p":
        return form
    return form + ("n" if form.endswith("e") else "en")


def _complex(clause: Clause, name: str, pick: Pick, person: str, last: bool) -> tuple[str, str]:
    """The finite verb and the right bracket (particle, participle, infinitives).

    `last`: the clause is verb-final, so that the whole complex is the right bracket.
    """
    assert clause.verb is not None
    verb = _choose(pick, f"{name}.verb", _VERB_FORMS[clause.verb])
    whole = verb.particle + verb.infinitive
    finite, bracket, front = "", "", False
    if clause.modal:
        one, infinitive, past = _MODAL[clause.modal]
        if clause.tense == "future":
            finite, bracket = _WERDEN[person], f"{whole} {infinitive}"
            front = True  # "dass sie es wird kaufen können"
        else:
            finite = _past(past, person) if clause.tense == "past" else infinitive if person == "p" else one
            bracket = whole
    elif clause.tense == "future":
        soon = clause.time in ("tomorrow", "next_week", "this_evening")
        if soon and pick(f"{name}.future", (False, True), (3, 2)):
            finite, bracket = _present(verb, person), verb.particle
        else:
            finite, bracket = _WERDEN[person], whole
    elif clause.tense == "past" and verb.infinitive not in ("sein", "haben") and pick(
        "text.perfect", (False, True), (1, 1)
    ):
        finite, bracket = (_SEIN if verb.sein else _HABEN)[person], verb.participle
    else:
        finite = _past(verb.past, person) if clause.tense == "past" else _present(verb, person)
        bracket = verb.particle
    if not last:
        return finite, bracket
    if bracket == verb.particle:
        return "", verb.particle + finite
    return "", f"{finite} {bracket}" if front else f"{bracket} {finite}"


def _clause(
    clause: Clause, name: str, pick: Pick, mode: str = "second", gap: Entity | None = None
) -> list[Piece]:
    """`mode`: the position of the finite verb, second, first or last (`gap`: the head that is subject)."""
    subject = clause.subject if isinstance(clause.subject, Entity) else gap
    person = _person(subject) if clause.asks != "who" else "s"
    about = asked(clause)
    slots: dict[str, list[Piece]] = {}
    case = "dat" if clause.verb in DATIVE else "acc"
    item, to = clause.object, clause.recipient
    none = bool(
        clause.negated and clause.verb and isinstance(item, Entity) and about in (None, "verb") and not item.definite and item.owner is None
        and not item.pronoun and not item.counted and item.concept not in NAMES and item.concept not in SPEAKERS
    )  # fmt: skip
    if isinstance(clause.subject, Entity) and about != "subject":
        slots["subject"] = _entity(clause.subject, f"{name}.subject", pick, "nom")
    if isinstance(item, Entity) and about != "object":
        slots["object"] = _entity(item, f"{name}.object", pick, case, none)
    if to and about != "recipient":
        slots["recipient"] = _entity(to, f"{name}.recipient", pick, "dat")
    if clause.time and about != "time":
        slots["time"] = [Piece(_choose(pick, f"{name}.time", TIMES[clause.time]), f"{name}.time")]
    if clause.adverb:
        word = _choose(pick, f"{name}.adverb", ADVERBS[clause.adverb])
        if clause.adverb == "carefully" and clause.verb in ("open", "close", "carry", "eat", "drink"):
            word = "vorsichtig"
        slots["adverb"] = [Piece(word, f"{name}.adverb")]
    if clause.place and about != "place":
        slots["place"] = [Piece(_place(clause.place, f"{name}.place", pick), f"{name}.place")]
    if clause.complement:
        word = _choose(pick, f"{name}.complement", ADJECTIVES[clause.complement]).split("/")[0]
        slots["complement"] = [Piece(word, f"{name}.complement")]

    # The constituent before the verb.
    first: list[Piece] = []
    if mode == "second":
        if about and about != "verb":
            first = [Piece(_question_word(clause, name, pick), f"{name}.{about}")]
        elif about != "verb":
            front: str | None = clause.front if clause.front in slots else None
            if clause.time and clause.front != "place" and "subject" in slots:
                leading = clause.front == "time"
                front = "time" if pick(f"{name}.front", (leading, not leading), (5, 2)) else None
            chosen = front or next((s for s in ("subject", "time", "place", "object") if s in slots), None)
            if chosen:
                first = slots.pop(chosen)

    finite, bracket = _complex(clause, name, pick, person, mode == "last") if clause.verb else ("", "")
    middle = _middle(clause, name, pick, slots, none)
    end = [Piece(bracket, f"{name}.verb")] if bracket else []
    # A relative clause before a short right bracket may follow it instead.
    if end and len(middle) > 2 and middle[-1].text == "," and middle[-2].slot.endswith(".relative") and pick(
        f"{name}.after", (True, False), (3, 2)
    ):
        middle, end = middle[:-3], [*end, *middle[-3:]]
    doing = [Piece(finite, f"{name}.verb")] if finite else []
    return [p for p in (*first, *doing, *middle, *end) if p.text]


def _question_word(clause: Clause, name: str, pick: Pick) -> str:
    if clause.asks == "who":
        return "wer"
    if clause.asks == "what":
        return "was"
    if clause.asks == "whom":
        return "wem" if asked(clause) == "recipient" or clause.verb in DATIVE else "wen"
    if clause.asks == "when":
        return "wann"
    if clause.asks == "where":
        relation = clause.place.relation if clause.place else None
        if relation == "from":
            return "woher" if clause.verb == "come_back" else "wo"
        return "wohin" if relation == "to" or (relation is None and clause.verb in ("go", "travel")) else "wo"
    item = clause.object
    assert isinstance(item, Entity)
    mass = item.concept in MASS
    noun = _choose(pick, f"noun.{item.concept}", _NOUN_FORMS[item.concept])
    case = "dat" if clause.verb in DATIVE else "acc"
    gender = noun.gender if mass else "p"
    adjectives = _adjectives(item.adjectives, _STRONG, gender, case, f"{name}.object", pick)
    return " ".join(("wie viel" if mass else "wie viele", *adjectives, noun.form(case, not mass)))


def _is_pronoun(entity: Entity | Gap | None) -> bool:
    return isinstance(entity, Entity) and (entity.pronoun or entity.concept in SPEAKERS)


def _middle(
    clause: Clause, name: str, pick: Pick, slots: dict[str, list[Piece]], none: bool
) -> list[Piece]:
    """The middle field, between the two parts of the verb; `none`: "kein" negates already."""
    order: list[str] = ["subject"]
    item, to = clause.object, clause.recipient
    if _is_pronoun(item) and "object" in slots:
        order.append("object")
    if _is_pronoun(to) and "recipient" in slots:
        order.append("recipient")
    rest = [s for s in ("recipient", "object") if s in slots and s not in order]
    definite = isinstance(item, Entity) and (item.definite or item.owner is not None or item.concept in NAMES)
    late_object = "object" in rest and not definite
    known = [s for s in rest if not (s == "object" and late_object)]
    time = ["time"] if "time" in slots else []
    # "gestern den Arzt" or "den Arzt gestern".
    if time and known and pick(f"{name}.time.order", (True, False), (3, 1)):
        order += [*time, *known]
    else:
        order += [*known, *time]
    negation = ["not"] if clause.negated and clause.verb and not none else []
    often = ["adverb"] if clause.adverb in ("often", "always") and "adverb" in slots else []
    manner = ["adverb"] if "adverb" in slots and not often else []
    place = ["place"] if "place" in slots else []
    order += often if not negation else []
    fixed = clause.verb in ("go", "travel", "be_at", "live", "run", "come_back") or (
        clause.place is not None and clause.place.relation in ("to", "from"))  # fmt: skip
    if late_object:
        if clause.negated and not none:  # "nicht drei Äpfel"
            order += negation
            negation = []
        if place and not fixed:
            first = pick(f"{name}.place.order", (True, False), (3, 2))
            order += [*place, *manner, "object"] if first else [*manner, "object", *place]
        else:
            order += [*manner, "object", *place]
    else:
        order += [*negation, *(often if negation else [])]
        if place and manner and not fixed and pick(f"{name}.place.order", (True, False), (1, 1)):
            order += [*place, *manner]
        else:
            order += [*manner, *place]
    order.append("complement")
    found: list[Piece] = []
    for slot in order:
        if slot == "not":
            found.append(Piece("nicht", f"{name}.verb"))
        else:
            found.extend(slots.get(slot, ()))
    return found


def pieces(sentence: Sentence, pick: Pick) -> list[Piece]:
    """The sentence in surface order (see :class:`~town.corpus.meaning.Language`)."""
    pick = once(pick)
    link, second, main = sentence.link, sentence.second, sentence.main
    mark = Piece("?" if main.asks else ".", "mark")
    comma = Piece(",", "mark")
    first = "first" if main.asks == "yes_no" else "second"
    if second is None:
        word = [Piece(_link(link, sentence, pick), "link")] if link else []
        return [*_clause(main, "main", pick, first), *word, mark]
    if link is None:
        body, rest = _clause(main, "main", pick, first), _clause(second, "second", pick)
        return [*body, *([comma] if body else []), *rest, mark]
    joint = [Piece(_link(link, sentence, pick), "link")]
    last = link not in ("and", "but") and joint[0].text != "denn"
    rest = _clause(second, "second", pick, "last" if last else "second")
    body = _clause(main, "main", pick, first)
    if link in ("when", "if") and body and rest and not main.asks and pick("link.first", (False, True), (2, 1)):
        body = _clause(main, "main", pick, "first")  # the clause before it is its first constituent
        return [*joint, *rest, comma, *body, mark]
    return [*body, *([comma] if link != "and" and body else []), *joint, *rest, mark]


def _link(link: str, sentence: Sentence, pick: Pick) -> str:
    if link == "when" and sentence.main.tense == "past":
        return "als"
    return _choose(pick, "link", LINKS[link])


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
    """An entity alone, in the accusative: "über den Arzt"."""
    return join(_entity(entity, use, once(pick), "acc"), capital=False)


PHRASES: dict[str, tuple[str, ...]] = {
    "translate": ("Übersetzen Sie ins {language}: {text}", "Bitte übersetzen Sie das ins {language}: {text}",
                  "Übersetzen Sie diesen Text ins {language}: {text}"),
    "summarize": ("Fassen Sie diesen Text in einem Satz zusammen: {text}",
                  "Bitte fassen Sie in einem Satz zusammen: {text}",
                  "Was ist das Wichtigste in diesem Text? {text}"),
    "summary_opening": ("", "Kurz gesagt: ", "In Kürze: "),
    "answer_question": ("Lesen Sie diesen Text: {text} Frage: {question}", "{text} Frage: {question}",
                        "Antworten Sie mit Hilfe des Textes. {text} {question}"),
    "passage": ("[{number}] {text}", "Abschnitt {number}: {text}"),
    "use_passages": ("Antworten Sie mit Hilfe der Abschnitte. {passages} Frage: {question}",
                     "Beantworten Sie die Frage anhand dieser Abschnitte. {passages} {question}"),
    "from_passage": ("In Abschnitt {number} steht: {answer}", "Laut Abschnitt {number}: {answer}"),
    "solve": ("{problem}", "Lösen Sie Schritt für Schritt: {problem}", "Rechnen Sie in Schritten: {problem}"),
    "step_first": ("Zuerst rechnen wir {equation}.", "Zuerst: {equation}."),
    "step_next": ("Dann rechnen wir {equation}.", "Dann: {equation}."),
    "conclusion": ("Also: {sentence}", "Antwort: {sentence}"),
    "tell_about": ("Erzählen Sie mir etwas über {who}.", "Was wissen Sie über {who}?",
                   "Können Sie mir etwas über {who} sagen?"),
    "tell_opening": ("", "Gern. ", "Natürlich. "),
    "ask_more": ("Danke. {question}", "Noch eine Frage: {question}", "Ich verstehe. {question}"),
    "write_code": ("{task}", "Bitte helfen Sie mir bei dieser Aufgabe. {task}", "Hier ist eine Aufgabe: {task}"),
    "code_opening": ("Hier ist die Funktion:", "Diese Funktion tut es:"),
}  # fmt: skip
_W = "Schreiben Sie eine Python-Funktion {name}, die {what} zurückgibt."
_I = "Wir brauchen in Python eine Funktion {name}, die {what} zurückgibt."
CODE_TASKS: dict[str, tuple[str, ...]] = {
    key: tuple(frame.replace("{what}", what) for frame in (_W, _I) for what in whats)
    for key, whats in {
        "sum": ("die Summe der Zahlen in der Liste {a}", "die Summe aller Zahlen der Liste {a}"),
        "product": ("das Produkt der Zahlen in der Liste {a}",),
        "maximum": ("die größte Zahl in der Liste {a}", "das Maximum der Liste {a}"),
        "minimum": ("die kleinste Zahl in der Liste {a}", "das Minimum der Liste {a}"),
        "average": ("den Durchschnitt der Zahlen in der Liste {a}", "den Mittelwert der Liste {a}"),
        "count_above": ("die Anzahl der Zahlen in der Liste {a}, die größer als {k} sind,",),
        "keep_even": ("die geraden Zahlen der Liste {a}", "nur die geraden Zahlen in der Liste {a}"),
        "keep_below": ("die Zahlen der Liste {a}, die kleiner als {k} sind,",),
        "scale": ("die Liste {a} mit jeder Zahl mal {k}",),
        "shift": ("die Liste {a} mit jeder Zahl plus {k}",),
        "reverse": ("die Liste {a} in umgekehrter Reihenfolge", "die umgedrehte Liste {a}"),
        "contains": ("einen Wahrheitswert",),
    }.items()
}
CODE_TASKS["contains"] = (
    "Schreiben Sie eine Python-Funktion {name}, die prüft, ob die Liste {a} die Zahl {k} enthält.",
    "Wir brauchen in Python eine Funktion {name}, die angibt, ob die Zahl {k} in der Liste {a} steht.",
)
