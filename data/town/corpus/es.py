"""Spanish for the corpus: lexicon, agreement, clitics, tenses and moods, word order.

"you" is *usted* (third person, masculine agreement). Contractions and the linking of enclitics happen
in :func:`join`: a piece that starts with a hyphen is attached to the preceding word ("comprar" + "-lo").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from town.corpus.meaning import (
    ANIMALS,
    DITRANSITIVE,
    DRINKS,
    FOOD,
    MASS,
    NAMES,
    PEOPLE,
    SPEAKERS,
    STEADY,
    Clause,
    Entity,
    Gap,
    Pick,
    Piece,
    Place,
    Sentence,
    once,
)

CODE = "es"
LANGUAGES = {
    "en": "inglés", "de": "alemán", "fr": "francés", "es": "español", "zh": "chino", "ja": "japonés",
    "vi": "vietnamita",
}

# --- agreement --------------------------------------------------------------------------

YO, EL, NOSOTROS, ELLOS = range(4)  # the persons that the corpus uses, in the order of the verb tables


class Agr(NamedTuple):
    """The features that a verb, adjective or pronoun agrees with."""

    person: int
    plural: bool
    fem: bool


DEFAULT = Agr(EL, False, False)

# --- nouns ------------------------------------------------------------------------------

# gender and words; all words of a concept share the gender, so that a pronoun fits any of them
NOUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "child": ("m", ("niño",)), "woman": ("f", ("mujer", "señora")), "man": ("m", ("hombre", "señor")),
    "girl": ("f", ("chica", "muchacha")), "boy": ("m", ("chico", "muchacho")), "friend": ("m", ("amigo",)),
    "neighbor": ("f", ("vecina",)), "doctor": ("f", ("doctora", "médica")),
    "teacher": ("m", ("profesor", "maestro")), "student": ("f", ("estudiante", "alumna")),
    "farmer": ("m", ("agricultor", "granjero")), "driver": ("m", ("conductor", "chófer")),
    "cook": ("m", ("cocinero",)), "painter": ("f", ("pintora",)), "guest": ("m", ("invitado", "huésped")),
    "mother": ("f", ("madre", "mamá")), "father": ("m", ("padre", "papá")), "sister": ("f", ("hermana",)),
    "brother": ("m", ("hermano",)),
    "dog": ("m", ("perro",)), "cat": ("m", ("gato",)), "horse": ("m", ("caballo",)), "bird": ("m", ("pájaro",)),
    "bread": ("m", ("pan",)), "apple": ("f", ("manzana",)), "cheese": ("m", ("queso",)), "soup": ("f", ("sopa",)),
    "cake": ("m", ("pastel",)), "fish": ("m", ("pescado",)), "rice": ("m", ("arroz",)), "egg": ("m", ("huevo",)),
    "water": ("f", ("agua",)), "tea": ("m", ("té",)), "coffee": ("m", ("café",)), "milk": ("f", ("leche",)),
    "book": ("m", ("libro",)), "letter": ("f", ("carta",)), "newspaper": ("m", ("periódico", "diario")),
    "map": ("m", ("mapa", "plano")),
    "car": ("m", ("coche", "auto")), "bicycle": ("f", ("bicicleta", "bici")), "key": ("f", ("llave",)),
    "bag": ("f", ("bolsa",)), "chair": ("f", ("silla",)), "table": ("f", ("mesa",)), "lamp": ("f", ("lámpara",)),
    "clock": ("m", ("reloj",)), "ticket": ("m", ("billete", "boleto")), "picture": ("m", ("cuadro",)),
    "phone": ("m", ("teléfono", "móvil")), "umbrella": ("m", ("paraguas",)), "coat": ("m", ("abrigo",)),
    "shoe": ("m", ("zapato",)), "gift": ("m", ("regalo", "obsequio")), "flower": ("f", ("flor",)),
    "window": ("f", ("ventana",)), "door": ("f", ("puerta",)), "machine": ("f", ("máquina",)),
    "boat": ("m", ("barco",)), "cup": ("f", ("taza",)), "ball": ("f", ("pelota",)), "box": ("f", ("caja",)),
    "camera": ("f", ("cámara",)),
    "house": ("f", ("casa",)), "school": ("f", ("escuela",)), "market": ("m", ("mercado",)),
    "station": ("f", ("estación",)), "garden": ("m", ("jardín",)), "kitchen": ("f", ("cocina",)),
    "park": ("m", ("parque",)), "city": ("f", ("ciudad",)), "village": ("m", ("pueblo",)),
    "hospital": ("m", ("hospital",)), "library": ("f", ("biblioteca",)), "office": ("f", ("oficina",)),
    "river": ("m", ("río",)), "bridge": ("m", ("puente",)), "shop": ("f", ("tienda",)),
    "museum": ("m", ("museo",)), "hotel": ("m", ("hotel",)), "street": ("f", ("calle",)),
    "forest": ("m", ("bosque",)),
}
_PLAIN = {"á": "a", "é": "e", "í": "i", "ó": "o", "ú": "u"}


def _plural(word: str) -> str:
    if word == "paraguas":
        return word
    if word[-1] in "aeiouáé":
        return word + "s"
    if word.endswith(("ón", "ín")):
        return word[:-2] + _PLAIN[word[-2]] + "nes"
    return {"joven": "jóvenes"}.get(word) or (word[:-1] + "ces" if word.endswith("z") else word + "es")


PLURALS = {w: _plural(w) for _, words in NOUNS.values() for w in words}
NUMBERS = ("cero", "un", "dos", "tres", "cuatro", "cinco", "seis", "siete", "ocho", "nueve", "diez", "once", "doce")

# --- adjectives -------------------------------------------------------------------------


class Adjective(NamedTuple):
    """The four forms; whether it may precede the noun ("", "may", "must"), and its form there."""

    ms: str
    fs: str
    mp: str
    fp: str
    estar: bool = False  # as a complement: estar, not ser
    before: str = ""
    short: str = ""  # masculine singular before the noun

    def form(self, agr: Agr) -> str:
        return (self.fp if agr.plural else self.fs) if agr.fem else self.mp if agr.plural else self.ms


def _adjective(ms: str, estar: bool = False, before: str = "", short: str = "") -> Adjective:
    fs = ms[:-1] + "a" if ms.endswith("o") else ms
    return Adjective(ms, fs, _plural(ms), _plural(fs), estar, before, short)


ADJECTIVES: dict[str, tuple[Adjective, ...]] = {
    "old": (_adjective("viejo", before="may"),), "new": (_adjective("nuevo", before="may"),),
    "big": (_adjective("grande"),), "small": (_adjective("pequeño", before="may"),),
    "red": (_adjective("rojo"),), "blue": (_adjective("azul"),), "green": (_adjective("verde"),),
    "white": (_adjective("blanco"),), "black": (_adjective("negro"),), "heavy": (_adjective("pesado"),),
    "expensive": (_adjective("caro"), _adjective("costoso")), "cheap": (_adjective("barato"),),
    "beautiful": (_adjective("hermoso", before="may"), _adjective("bonito")),
    "young": (_adjective("joven"),), "tired": (_adjective("cansado", estar=True),),
    "happy": (_adjective("feliz", estar=True), _adjective("contento", estar=True)),
    "clean": (_adjective("limpio", estar=True),), "empty": (_adjective("vacío", estar=True),),
    "warm": (_adjective("caliente", estar=True),), "cold": (_adjective("frío", estar=True),),
    "good": (_adjective("bueno", before="must", short="buen"),), "long": (_adjective("largo"),),
}
WARM_TO_THE_TOUCH = ("caliente",)
COSY = (_adjective("cálido"),)  # a warm coat, a warm kitchen

# --- verbs ------------------------------------------------------------------------------


class Verb(NamedTuple):
    """Four forms (yo, él, nosotros, ellos) of each simple tense."""

    infinitive: str
    present: tuple[str, ...]
    preterite: tuple[str, ...]
    imperfect: tuple[str, ...]
    future: tuple[str, ...]
    conditional: tuple[str, ...]
    subjunctive: tuple[str, ...]
    past_subjunctive: tuple[str, ...]
    participle: str
    reflexive: bool


_SPELL = {"c": "qu", "g": "gu", "z": "c"}  # before e, for verbs in -ar
_ACCENT = {"a": "á", "e": "é", "i": "í", "o": "ó", "u": "ú"}


def _verb(
    infinitive: str, *, stem: str = "", yo: str = "", present: str = "", preterite: str = "", imperfect: str = "",
    future: str = "", subjunctive: str = "", participle: str = "", reflexive: bool = False,
) -> Verb:
    """A verb from its infinitive; `stem` is the stressed stem (cerrar, cierr-), the rest exceptions."""
    root, kind = infinitive[:-2], infinitive[-2].replace("í", "i")
    strong = stem or root
    first = yo or strong + "o"
    vowel = {"a": "a", "e": "e", "i": "e"}[kind]
    now = tuple(present.split()) or (first, strong + vowel, root + {"a": "a"}.get(kind, kind) + "mos", strong + vowel + "n")
    soft = root[:-1] + _SPELL[root[-1]] if kind == "a" and root[-1] in _SPELL else root
    past = tuple(preterite.split()) or (
        (soft + "é", root + "ó", root + "amos", root + "aron") if kind == "a"
        else (root + "í", root + "ió", root + "imos", root + "ieron")
    )
    was = tuple(imperfect.split()) or tuple(
        root + e for e in (("aba", "aba", "ábamos", "aban") if kind == "a" else ("ía", "ía", "íamos", "ían"))
    )
    will = future or infinitive.replace("ír", "ir")
    if subjunctive:
        wish = tuple(subjunctive.split())
    elif kind == "a":
        hard = strong[:-1] + _SPELL[strong[-1]] if strong[-1] in _SPELL else strong
        wish = (hard + "e", hard + "e", soft + "emos", hard + "en")
    else:
        own = first[:-1]
        wish = (own + "a", own + "a", (own if yo else root) + "amos", own + "an")
    base = past[ELLOS][:-3]
    return Verb(
        infinitive, now, past, was, tuple(will + e for e in ("é", "á", "emos", "án")),
        tuple(will + e for e in ("ía", "ía", "íamos", "ían")), wish,
        (base + "ra", base + "ra", base[:-1] + _ACCENT[base[-1]] + "ramos", base + "ran"),
        participle or root + ("ado" if kind == "a" else "ido"), reflexive,
    )


VERBS: dict[str, Verb] = {v.infinitive: v for v in (
    _verb("haber", present="he ha hemos han", preterite="hube hubo hubimos hubieron", future="habr",
          subjunctive="haya haya hayamos hayan"),
    _verb("ser", present="soy es somos son", preterite="fui fue fuimos fueron", imperfect="era era éramos eran",
          subjunctive="sea sea seamos sean"),
    _verb("estar", present="estoy está estamos están", preterite="estuve estuvo estuvimos estuvieron",
          subjunctive="esté esté estemos estén"),
    _verb("tener", stem="tien", yo="tengo", preterite="tuve tuvo tuvimos tuvieron", future="tendr"),
    _verb("querer", stem="quier", preterite="quise quiso quisimos quisieron", future="querr"),
    _verb("poder", stem="pued", preterite="pude pudo pudimos pudieron", future="podr"),
    _verb("ir", present="voy va vamos van", preterite="fui fue fuimos fueron", imperfect="iba iba íbamos iban",
          subjunctive="vaya vaya vayamos vayan"),
    _verb("dar", present="doy da damos dan", preterite="di dio dimos dieron", subjunctive="dé dé demos den"),
    _verb("decir", stem="dic", yo="digo", preterite="dije dijo dijimos dijeron", future="dir", participle="dicho"),
    _verb("traer", yo="traigo", preterite="traje trajo trajimos trajeron", participle="traído"),
    _verb("ver", yo="veo", preterite="vi vio vimos vieron", imperfect="veía veía veíamos veían",
          participle="visto"),
    _verb("leer", preterite="leí leyó leímos leyeron", participle="leído"),
    _verb("conocer", yo="conozco"), _verb("recoger", yo="recojo"),
    _verb("dormir", stem="duerm", preterite="dormí durmió dormimos durmieron",
          subjunctive="duerma duerma durmamos duerman"),
    _verb("reír", present="río ríe reímos ríen", preterite="reí rio reímos rieron",
          subjunctive="ría ría riamos rían", participle="reído", reflexive=True),
    _verb("reunir", stem="reún", reflexive=True), _verb("encontrar", stem="encuentr"),
    _verb("enviar", stem="enví"), _verb("extraviar", stem="extraví"), _verb("mostrar", stem="muestr"), _verb("cerrar", stem="cierr"),
    _verb("perder", stem="pierd"), _verb("pensar", stem="piens"), _verb("volver", stem="vuelv", participle="vuelto"),
    _verb("escribir", participle="escrito"), _verb("abrir", participle="abierto"),
    _verb("creer", preterite="creí creyó creímos creyeron", participle="creído"),
    _verb("levantar", reflexive=True),
    *(_verb(v) for v in (
        "comprar", "vender", "hallar", "entregar", "redactar", "lavar", "declarar", "comer", "beber", "tomar", "limpiar", "reparar", "arreglar", "llevar",
        "transportar", "necesitar", "amar", "adorar", "ayudar", "visitar", "llamar", "invitar", "pintar", "cocinar",
        "preparar", "buscar", "olvidar", "enseñar", "mandar", "trabajar", "esperar", "aguardar", "cantar", "bailar",
        "vivir", "viajar", "llegar", "regresar", "correr", "deber", "desear",
    )),
)}
VERBS["encontrarse"] = VERBS["encontrar"]._replace(reflexive=True)


class Frame(NamedTuple):
    """How a concept is expressed: the verb and the preposition of its object."""

    verb: str
    case: str = ""


WORDS: dict[str, tuple[Frame, ...]] = {
    "have": (Frame("tener"),), "buy": (Frame("comprar"),), "sell": (Frame("vender"),), "see": (Frame("ver"),),
    "find": (Frame("encontrar"), Frame("hallar")), "eat": (Frame("comer"),),
    "drink": (Frame("beber"), Frame("tomar")), "read": (Frame("leer"),), "write": (Frame("escribir"), Frame("redactar"),),
    "open": (Frame("abrir"),), "close": (Frame("cerrar"),), "clean": (Frame("limpiar"), Frame("lavar"),),
    "repair": (Frame("reparar"), Frame("arreglar")), "carry": (Frame("llevar"), Frame("transportar")),
    "lose": (Frame("perder"), Frame("extraviar"),), "need": (Frame("necesitar"),), "love": (Frame("querer"), Frame("amar")),
    "know": (Frame("conocer"),), "meet": (Frame("encontrarse", "con"), Frame("reunir", "con")),
    "help": (Frame("ayudar"),), "visit": (Frame("visitar"),), "call": (Frame("llamar"),),
    "pick_up": (Frame("recoger"),), "invite": (Frame("invitar"),), "paint": (Frame("pintar"),),
    "cook": (Frame("cocinar"), Frame("preparar")), "look_for": (Frame("buscar"),), "forget": (Frame("olvidar"),),
    "give": (Frame("dar"), Frame("entregar"),), "show": (Frame("mostrar"), Frame("enseñar")), "bring": (Frame("traer"),),
    "send": (Frame("enviar"), Frame("mandar")),
    "sleep": (Frame("dormir"),), "work": (Frame("trabajar"),), "wait": (Frame("esperar"), Frame("aguardar")),
    "sing": (Frame("cantar"),), "laugh": (Frame("reír"),), "dance": (Frame("bailar"),), "live": (Frame("vivir"),),
    "get_up": (Frame("levantar"),),
    "go": (Frame("ir"),), "travel": (Frame("viajar"),), "arrive": (Frame("llegar"),),
    "come_back": (Frame("volver"), Frame("regresar")), "run": (Frame("correr"),),
    "be": (Frame("estar"),), "be_at": (Frame("estar"),),
    "say": (Frame("decir"), Frame("declarar"),), "think": (Frame("pensar"),), "believe": (Frame("creer"),), "hope": (Frame("esperar"),),
}
LOVE_A_THING = (Frame("adorar"), Frame("amar"))
MODALS = {"want": (("querer", ""), ("desear", "")), "can": (("poder", ""),), "must": (("tener", "que"), ("deber", ""))}
STATES = frozenset(("have", "need", "love", "know", "live", "be", "be_at", "think", "believe", "hope"))
GOING_ON = ("work", "look_for", "sleep", "wait")  # imperfect when they are the reason for something

# --- adverbs, times, places ---------------------------------------------------------------

ADVERBS = {
    "quickly": ("rápidamente", "rápido"), "slowly": ("lentamente", "despacio"),
    "carefully": ("con cuidado", "cuidadosamente"), "often": ("a menudo", "con frecuencia"),
    "always": ("siempre",), "alone": ("solo",),
}
FREQUENCY = ("often", "always")
TIMES = {
    "yesterday": ("ayer",), "today": ("hoy",), "tomorrow": ("mañana",), "now": ("ahora", "en este momento"),
    "this_morning": ("esta mañana",), "this_evening": ("esta noche",), "last_week": ("la semana pasada",),
    "next_week": ("la próxima semana", "la semana que viene"), "every_day": ("todos los días", "cada día"),
    "at_night": ("por la noche", "de noche"), "on_monday": ("el lunes",), "on_tuesday": ("el martes",),
    "on_wednesday": ("el miércoles",), "on_thursday": ("el jueves",), "on_friday": ("el viernes",),
    "on_saturday": ("el sábado",), "on_sunday": ("el domingo",),
}
HABITS = ("every_day", "at_night")  # times that require the imperfect
RELATIONS = {"near": ("cerca de",), "behind": ("detrás de",), "in_front_of": ("delante de", "frente a"), "from": ("de",)}

LINKS = {"that": "que", "because": "porque", "when": "cuando", "if": "si", "and": "y", "but": "pero"}
SUBJECTS = ("yo", "él", "nosotros", "ellos")
OBJECTS = ("me", "lo", "nos", "los")
DATIVES = ("me", "le", "nos", "les")
REFLEXIVES = ("me", "se", "nos", "se")

# --- fixed phrases ------------------------------------------------------------------------

PHRASES: dict[str, tuple[str, ...]] = {
    "translate": ("Traduzca al {language}: {text}", "Traduzca este texto al {language}: {text}",
                  "Traducción al {language}: {text}", "¿Cómo se dice en {language}? {text}"),
    "summarize": ("Resuma este texto: {text}", "Resuma este texto en una frase: {text}",
                  "Haga un resumen de este texto: {text}"),
    "summary_opening": ("", "En resumen:", "En pocas palabras:"),
    "answer_question": ("Lea el texto: {text} Pregunta: {question}",
                        "Texto: {text} Responda a la pregunta: {question}", "{text} {question}"),
    "passage": ("[{number}] {text}", "[{number}]: {text}"),
    "use_passages": ("Responda con ayuda de los pasajes. {passages} Pregunta: {question}",
                     "Estos son los pasajes. {passages} Responda a la pregunta: {question}",
                     "Use los pasajes para responder. {passages} {question}"),
    "from_passage": ("Según el pasaje {number}: {answer}", "El pasaje {number} dice: {answer}",
                     "En el pasaje {number} se lee: {answer}"),
    "solve": ("Resuelva paso a paso: {problem}", "Resuelva este problema paso a paso: {problem}", "{problem}"),
    "step_first": ("Primero, {equation}.", "Primero calculamos: {equation}.", "Para empezar, {equation}."),
    "step_next": ("Después, {equation}.", "Luego, {equation}.", "A continuación, {equation}."),
    "conclusion": ("Por lo tanto: {sentence}", "Conclusión: {sentence}", "Respuesta: {sentence}"),
    "tell_about": ("Hábleme {who}.", "Cuénteme algo {who}.", "¿Qué sabe usted acerca {who}?",
                   "¿Puede hablarme {who}?"),
    "tell_opening": ("", "Con mucho gusto.", "Claro.", "Por supuesto."),
    "ask_more": ("Gracias. {question}", "Gracias. Una pregunta más: {question}", "Y otra cosa: {question}"),
    "write_code": ("{task}", "{task} Gracias.", "¿Puede ayudarme? {task}", "Por favor, ayúdeme. {task}"),
    "code_opening": ("Aquí está la función:", "Este es el código:", "Claro, aquí está la función:"),
}
_FUNCTION = ("Escriba una función de Python {name} que ", "Escriba en Python una función {name} que ")


def _task(*rest: str) -> tuple[str, ...]:
    return tuple(start + end for end in rest for start in _FUNCTION)


CODE_TASKS: dict[str, tuple[str, ...]] = {
    "sum": _task("devuelva la suma de los números de la lista {a}.", "calcule la suma de los números de la lista {a}."),
    "product": _task("devuelva el producto de los números de la lista {a}.",
                     "calcule el producto de los números de la lista {a}."),
    "maximum": _task("devuelva el número más grande de la lista {a}.", "encuentre el número mayor de la lista {a}."),
    "minimum": _task("devuelva el número más pequeño de la lista {a}.", "encuentre el número menor de la lista {a}."),
    "average": _task("devuelva la media de los números de la lista {a}.",
                     "calcule el promedio de los números de la lista {a}."),
    "count_above": _task("cuente cuántos números de la lista {a} son mayores que {k}.",
                         "devuelva cuántos números de la lista {a} son mayores que {k}."),
    "keep_even": _task("devuelva los números pares de la lista {a}.", "deje solo los números pares de la lista {a}."),
    "keep_below": _task("devuelva los números de la lista {a} que son menores que {k}.",
                        "deje solo los números de la lista {a} menores que {k}."),
    "scale": _task("devuelva la lista {a} con cada número multiplicado por {k}.",
                   "multiplique por {k} cada número de la lista {a}."),
    "shift": _task("devuelva la lista {a} con {k} sumado a cada número.", "sume {k} a cada número de la lista {a}."),
    "reverse": _task("devuelva la lista {a} en orden inverso.", "devuelva la lista {a} al revés."),
    "contains": _task("indique si la lista {a} contiene el número {k}.",
                      "compruebe si el número {k} está en la lista {a}."),
}

# --- choosing and small parts -------------------------------------------------------------

T = TypeVar("T")

_WEIGHTS = {n: tuple(1 / (r + 1) ** 1.3 for r in range(n)) for n in range(1, 7)}


def _choose(pick: Pick, key: str, options: Sequence[T]) -> T:
    """One of `options`, the first being the most usual (Zipf-like weights)."""
    return options[0] if len(options) == 1 else pick(key, options, _WEIGHTS[len(options)])


def _agreement(entity: Entity | Gap | None, head: Agr | None = None) -> Agr:
    if entity is None:
        return DEFAULT
    if isinstance(entity, Gap):
        return head or DEFAULT
    if entity.concept in SPEAKERS:
        return {"i": Agr(YO, False, False), "you": DEFAULT, "we": Agr(NOSOTROS, True, False)}[entity.concept]
    fem = NAMES[entity.concept] == "f" if entity.concept in NAMES else NOUNS[entity.concept][0] == "f"
    plural = entity.number > 1 and entity.concept not in MASS
    return Agr(ELLOS if plural else EL, plural, fem)


def _is_pronoun(entity: object) -> bool:
    return isinstance(entity, Entity) and (entity.pronoun or entity.concept in SPEAKERS)


def _is_person(entity: object) -> bool:
    return isinstance(entity, Entity) and (
        entity.concept in NAMES or entity.concept in PEOPLE or entity.concept in SPEAKERS
    )


def _strong(entity: Entity, case: str = "") -> str:
    """The stressed pronoun, alone or after a preposition: ella, a mí, conmigo."""
    agr = _agreement(entity)
    if entity.concept == "you":
        word = "usted"
    elif agr.person == YO:
        if case == "con":
            return "conmigo"
        word = "mí" if case else "yo"
    else:
        word = SUBJECTS[agr.person]
        if agr.fem:
            word = {"él": "ella", "ellos": "ellas"}.get(word, word)
    return f"{case} {word}".strip()


def _accusative(agr: Agr) -> str:
    word = OBJECTS[agr.person]
    return word.replace("o", "a") if agr.fem and word in ("lo", "los") else word


def _options(concept: str, noun: str) -> tuple[Adjective, ...]:
    """The adjectives for a concept that suit the noun: a warm soup is not a warm coat."""
    if concept == "warm" and noun not in FOOD and noun not in DRINKS:
        return COSY
    return ADJECTIVES[concept]


def _adjectives(concepts: Sequence[str], noun: str, key: str, pick: Pick, agr: Agr) -> tuple[list[str], list[str]]:
    """The adjectives before and after the noun of the concept `noun`."""
    before: list[str] = []
    after: list[str] = []
    for concept in concepts:
        adjective = _choose(pick, f"{key}.adjective.{concept}", _options(concept, noun))
        early = adjective.before == "must"
        # "un viejo amigo" is not "un amigo viejo", so adjectives of people follow the noun
        if adjective.before == "may" and noun not in PEOPLE and noun not in NAMES and noun not in ANIMALS:
            early = pick(f"{key}.adjective.{concept}.side", (False, True), (3, 1))
        if early and not before:
            short = adjective.short and not agr.fem and not agr.plural
            before.append(adjective.short if short else adjective.form(agr))
        else:
            after.append(adjective.form(agr))
    return before, " y ".join(after).split() if after else []


def _group(entity: Entity, key: str, pick: Pick, case: str = "", use: str = "") -> str:
    """A noun with its words, after the preposition `case`; no relative clause.

    `use`: "object" may leave out the indefinite plural article, "negated" may say "ningún".
    """
    agr = _agreement(entity)
    if _is_pronoun(entity):
        return _strong(entity, case)
    if entity.concept in NAMES:
        noun = entity.concept
    else:
        noun = _choose(pick, f"noun.{entity.concept}", NOUNS[entity.concept][1])
        noun = PLURALS[noun] if agr.plural else noun
    before, after = _adjectives(entity.adjectives, entity.concept, key, pick, agr)
    article = ("las" if agr.fem else "los") if agr.plural else "la" if agr.fem else "el"
    stressed = noun == "agua" and not before  # el agua fría
    if stressed:
        article = "el"
    number = ""
    if entity.counted and agr.plural:
        number = NUMBERS[entity.number] if entity.number < len(NUMBERS) else str(entity.number)
    owner = entity.owner
    tail = ""
    if owner is not None and _is_pronoun(owner):
        person = _agreement(owner).person
        if person == NOSOTROS:
            article = ("nuestra" if agr.fem else "nuestro") + ("s" if agr.plural else "")
        else:
            article = ("mi" if person == YO else "su") + ("s" if agr.plural else "")
    elif entity.concept in NAMES:
        article = article if entity.adjectives else ""
    elif not entity.definite:
        if number or entity.concept in MASS:
            article = ""
        elif agr.plural:
            some = "unas" if agr.fem else "unos"
            if use == "negated":
                article = ""
            elif use == "object":
                article = pick(f"{key}.article", ("", some), (2, 1))
            else:
                article = some
        else:
            article = "una" if agr.fem else "un"
            if use == "negated" and not entity.counted:
                article = pick(f"{key}.article", (article, "ninguna" if agr.fem else "ningún"), (2, 1))
    if owner is not None and not _is_pronoun(owner):
        tail = _group(owner, f"{key}.owner", pick, "de")
    return " ".join(w for w in (case, article, number, *before, noun, *after, tail) if w)


def _noun(
    entity: Entity, name: str, slot: str, pick: Pick, case: str = "", use: str = "", flat: bool = False
) -> list[Piece]:
    """A noun phrase with its relative clause. `name` keys the choices, `slot` is the slot of the pieces."""
    out = [Piece(_group(entity, name, pick, case, use), slot)]
    if entity.relative is not None:
        inner = _clause(
            entity.relative, f"{name}.relative", pick, flat=slot if flat else f"{slot}.relative", head=entity,
            order=False,
        )
        # a name is already definite: its relative clause takes commas
        marks = [Piece(",", "mark")] if entity.concept in NAMES else []
        out += [*marks, *inner, *marks]
    return out


def _place(place: Place, verb: str | None, key: str, pick: Pick) -> str:
    fem = NOUNS[place.concept][0] == "f"
    noun = _choose(pick, f"noun.{place.concept}", NOUNS[place.concept][1])
    before, after = _adjectives((place.adjective,) if place.adjective else (), place.concept, key, pick, Agr(EL, False, fem))
    article = ("la" if fem else "el") if place.definite else "una" if fem else "un"
    if place.relation in RELATIONS and (place.relation, verb) != ("from", "pick_up"):  # recoger en la estación
        word = _choose(pick, f"{key}.relation", RELATIONS[place.relation])
    elif place.relation == "to":
        word = "hasta" if verb == "run" else "a"
    elif verb == "arrive":
        word = "a"
    else:
        word = "junto a" if place.concept == "river" else "en"
    return " ".join((word, article, *before, noun, *after))


# --- clauses ------------------------------------------------------------------------------


def _tense(clause: Clause, mode: str, path: str, pick: Pick) -> str:
    """The Spanish tense and mood.

    `mode`: "" or the requirement of the link: "if", "because", "subjunctive" and "past wish" (subjunctive
    after a present or past main clause), "shifted" (after a past verb of thinking), "said" (after a past
    "say").
    """
    tense = clause.tense
    if mode == "subjunctive":
        return "perfect subjunctive" if tense == "past" else "subjunctive"
    if mode == "past wish":
        return "pluperfect subjunctive" if tense == "past" and clause.verb not in STATES else "past_subjunctive"
    if mode == "if" and tense == "future":
        tense = "present"
    lasting = (
        clause.verb in STATES or clause.modal is not None or clause.time in HABITS
        or (clause.adverb in FREQUENCY and clause.time is None) or (mode == "because" and clause.verb in GOING_ON)
    )
    if mode in ("shifted", "said"):
        if tense != "past":
            return "imperfect" if tense == "present" else "conditional"
        if lasting:
            return "imperfect"
        return pick(f"{path}.verb.tense", ("pluperfect", "preterite"), (2, 1)) if mode == "said" else "pluperfect"
    if tense == "past":
        return "imperfect" if lasting else "preterite"
    return tense


COMPOUND = {
    "pluperfect": "imperfect", "perfect subjunctive": "subjunctive", "pluperfect subjunctive": "past_subjunctive",
}


def _personal_a(entity: Entity, verb: str | None) -> str:
    """The "a" before a person or a known animal as direct object."""
    if verb == "have":
        return ""
    if _is_person(entity):
        return "" if verb == "paint" and not entity.definite else "a"
    known = entity.concept in ANIMALS and entity.definite
    return "a" if known and verb not in ("buy", "sell") else ""


def _clause(
    clause: Clause, path: str, pick: Pick, mode: str = "", flat: str = "", head: Entity | None = None,
    order: bool = True, same: bool = False,
) -> list[Piece]:
    """The pieces of one clause, without marks around it.

    `flat`: the only slot of all pieces (a relative clause). `head`: the referent of its gap.
    `order`: the time may come first by choice. `same`: the subject is that of the main clause.
    """

    def at(name: str) -> str:
        return flat or f"{path}.{name}"

    def noun(entity: Entity, name: str, case: str = "", use: str = "") -> list[Piece]:
        return _noun(entity, f"{path}.{name}", at(name), pick, case, use, bool(flat))

    asks = clause.asks
    subject, obj, recipient = clause.subject, clause.object, clause.recipient
    place, time = clause.place, clause.time
    agr = _agreement(subject, _agreement(head))
    asked_recipient = asks == "whom" and clause.verb in DITRANSITIVE
    if asks == "who":
        subject, agr = None, DEFAULT
    elif asks == "where":
        place = None
    elif asks == "when":
        time = None
    elif asked_recipient:
        recipient = None
    elif asks in ("what", "whom", "how_many"):
        obj = None

    # the complement, which chooses between ser and estar, and the verb
    said: list[Piece] = []
    be = ""
    if clause.complement is not None:
        who = subject if isinstance(subject, Entity) else head
        if clause.complement in ("warm", "cold") and _is_person(who):
            be = "tener"  # tener calor, tener frío
            said = [Piece("calor" if clause.complement == "warm" else "frío", at("complement"))]
        else:
            concept = who.concept if who is not None else ""
            adjective = _choose(pick, f"{path}.complement.word", _options(clause.complement, concept))
            tasty = clause.complement == "good" and (concept in FOOD or concept in DRINKS)
            be = "estar" if adjective.estar or tasty else "ser"
            said = [Piece(adjective.form(agr), at("complement"))]
    frame = Frame("")
    if clause.verb is not None:
        frames = WORDS[clause.verb]
        if clause.verb == "love" and isinstance(obj, Entity) and not _is_person(obj) and obj.concept not in ANIMALS:
            frames = LOVE_A_THING
        frame = _choose(pick, f"{path}.verb.word", frames)
        if clause.verb == "be" and be:
            frame = Frame(be)

    # clitics: (rank, word, slot), and the constituents after the verb
    clitics: list[tuple[int, str, str]] = []
    after: list[tuple[list[Piece], bool]] = []  # pieces, heavy
    if isinstance(obj, Entity):
        if _is_pronoun(obj) and not frame.case:
            clitics.append((2, _accusative(_agreement(obj)), at("object")))
            if obj.concept == "you":
                after.append(([Piece("a usted", at("object"))], False))
        else:
            if clause.verb == "love" and not (obj.definite or obj.counted or _is_person(obj) or obj.concept in ANIMALS):
                obj = replace(obj, definite=True)  # in general: adorar el queso, adorar las flores
            case = frame.case or _personal_a(obj, clause.verb)
            use = "" if case else "negated" if clause.negated else "object"
            after.append((noun(obj, "object", case, use), obj.relative is not None))
    if recipient is not None:
        dative = DATIVES[_agreement(recipient).person]
        if _is_pronoun(recipient):
            clitics.append((1, dative, at("recipient")))
            if recipient.concept == "you":
                after.append(([Piece("a usted", at("recipient"))], False))
        else:
            # the doubling clitic anticipates the recipient and belongs to the verb
            double = bool(clitics) or pick(f"{path}.recipient.double", (True, False), (3, 1))
            if double:
                clitics.append((1, dative, at("verb")))
            after.append((noun(recipient, "recipient", "a"), recipient.relative is not None))
    elif asked_recipient:
        clitics.append((1, "le", at("verb")))
    clitics.sort()
    if len(clitics) == 2 and clitics[0][1] in ("le", "les"):
        clitics[0] = (1, "se", clitics[0][2])

    # adverb
    ahead: list[Piece] = []
    middle: list[Piece] = []
    late: list[Piece] = []
    if clause.adverb is not None:
        word = _choose(pick, f"{path}.adverb.word", ADVERBS[clause.adverb])
        if clause.adverb == "alone":
            word = ("sola" if agr.fem else "solo") + ("s" if agr.plural else "")
        piece = [Piece(word, at("adverb"))]
        if clause.adverb == "always":
            early = not clause.negated and asks is None and pick(f"{path}.adverb.position", (True, False), (2, 1))
            ahead, middle = (piece, []) if early else ([], piece)
        elif clause.adverb == "alone" or not (isinstance(obj, Entity) and obj.definite):
            late = piece
        else:
            early = pick(f"{path}.adverb.position", (False, True), (2, 1))
            late, middle = ([], piece) if early else (piece, [])

    # what follows the verb, in order
    heavy = any(h for _, h in after)
    time_piece = [Piece(_choose(pick, f"{path}.time.word", TIMES[time]), at("time"))] if time else []
    place_piece = [Piece(_place(place, clause.verb, f"{path}.place", pick), at("place"))] if place else []
    front = clause.front
    if front is None and time and order and asks is None:
        front = "time" if heavy else pick(f"{path}.time.position", (None, "time"), (3, 1))
    lead: list[Piece] = []
    if front == "time":
        lead, time_piece = time_piece, []
    elif front == "place" and place_piece:
        lead, place_piece = [*place_piece, *([Piece(",", "mark")] if order else [])], []
    light = [p for pieces, h in after if not h for p in pieces]
    loaded = [p for pieces, h in after if h for p in pieces]
    where = [*place_piece, *time_piece]
    if place_piece and time_piece and not heavy and not pick(f"{path}.place.position", (True, False), (3, 1)):
        where = [*time_piece, *place_piece]
    tail = [*said, *middle, *light, *late, *where, *loaded]

    # the verb complex
    slot = at("verb")
    group: list[Piece] = []
    tense = ""
    verb = None
    if clause.verb is not None:
        verb = whole = VERBS[frame.verb]
        particle = ""
        if clause.modal:
            word, particle = _choose(pick, f"{path}.verb.modal", MODALS[clause.modal])
            verb = VERBS[word]
        tense = _tense(clause, mode, path, pick)
        if clause.modal in ("can", "must") and tense == "imperfect" and mode in ("", "because") and not (
            clause.time in HABITS or clause.adverb in FREQUENCY or clause.verb in STATES
        ):
            tense = pick(f"{path}.verb.aspect", ("imperfect", "preterite"), (2, 1))
        if tense in COMPOUND:
            words = f"{getattr(VERBS['haber'], COMPOUND[tense])[agr.person]} {verb.participle}"
        else:
            words = getattr(verb, tense)[agr.person]
        bound = [(0, REFLEXIVES[agr.person], slot)] if whole.reflexive else []
        bound += clitics
        enclitic = bool(clause.modal and bound) and pick(f"{path}.clitics", (True, False), (2, 1))
        no = [Piece("no", slot)] if clause.negated else []
        group = [*no, *([] if enclitic else [Piece(w, s) for _, w, s in bound]), Piece(words, slot)]
        if clause.modal:
            infinitive = whole.infinitive.removesuffix("se")
            if enclitic and len(bound) > 1 and infinitive[-2] in _ACCENT:  # comprárselo
                infinitive = infinitive[:-2] + _ACCENT[infinitive[-2]] + "r"
            group += [Piece(f"{particle} {infinitive}".strip(), slot)]
            group += [Piece(f"-{w}", s) for _, w, s in bound] if enclitic else []
    else:
        group = [Piece(w, s) for _, w, s in clitics if s != slot]

    # the subject
    subject_pieces: list[Piece] = []
    if isinstance(subject, Entity):
        if not _is_pronoun(subject):
            subject_pieces = noun(subject, "subject")
        elif verb is None:
            subject_pieces = [Piece(_strong(subject), at("subject"))]
        elif _is_person(subject):
            # the pronoun is dropped if the verb form identifies the person
            clear = subject.concept == "we" or (subject.concept == "i" and _tells(verb, tense)) or subject.pronoun or same
            said_it = subject.concept == "you" and not same  # only the pronoun distinguishes usted from ella
            if said_it or pick(f"{path}.subject.said", (not clear, clear), (6, 1)):
                subject_pieces = [Piece(_strong(subject), at("subject"))]

    if asks is None:
        relative = _relative(clause, frame, head, path, pick, at)
        bare = relative and subject_pieces and group and not (tail or _is_pronoun(subject) or clause.modal)
        if bare and pick(f"{path}.subject.position", (False, True), (2, 1)):  # el libro que compró Anna
            return [*lead, *relative, *ahead, *group, *subject_pieces]
        return [*lead, *relative, *subject_pieces, *ahead, *group, *tail]
    straight = asks == "yes_no" and (not group or not subject_pieces or pick(f"{path}.question", (False, True), (2, 1)))
    if straight:
        return [*lead, *subject_pieces, *ahead, *group, *tail]
    asking = _question_word(clause, frame, path, pick, at)
    if isinstance(subject, Entity) and subject.relative is not None:
        return [*lead, *asking, *ahead, *group, *tail, *subject_pieces]
    return [*lead, *asking, *ahead, *group, *subject_pieces, *tail]


def _tells(verb: Verb, tense: str) -> bool:
    """Whether the form of yo differs from that of él and usted."""
    forms = getattr(VERBS["haber"], COMPOUND[tense]) if tense in COMPOUND else getattr(verb, tense)
    return forms[YO] != forms[EL]


def _relative(
    clause: Clause, frame: Frame, head: Entity | None, path: str, pick: Pick, at: Callable[[str], str]
) -> list[Piece]:
    """The relative pronoun, when the clause has a gap."""
    if isinstance(clause.subject, Gap):
        return [Piece("que", at("subject"))]
    if not isinstance(clause.object, Gap):
        return []
    agr = _agreement(head)
    which = (("las que" if agr.fem else "los que") if agr.plural else "la que" if agr.fem else "el que")
    whom = "quienes" if agr.plural else "quien"
    if frame.case:
        return [Piece(_choose(pick, f"{path}.who", (f"{frame.case} {which}", f"{frame.case} {whom}")), at("object"))]
    if head is not None and _is_person(head):
        return [Piece(_choose(pick, f"{path}.who", (f"a {which}", f"a {whom}", "que")), at("object"))]
    return [Piece("que", at("object"))]


def _question_word(clause: Clause, frame: Frame, path: str, pick: Pick, at: Callable[[str], str]) -> list[Piece]:
    asks = clause.asks
    if asks == "who":
        return [Piece("quién", at("subject"))]
    if asks == "what":
        return [Piece(f"{frame.case} qué".strip(), at("object"))]
    if asks == "whom":
        if clause.verb in DITRANSITIVE:
            return [Piece("a quién", at("recipient"))]
        return [Piece(f"{frame.case or 'a'} quién", at("object"))]
    if asks == "where":
        relation = clause.place.relation if clause.place else ""
        if relation == "from" and clause.verb != "pick_up":
            word = "de dónde"
        elif relation == "to" or clause.verb in ("arrive", "go", "travel"):
            word = _choose(pick, f"{path}.where", ("adónde", "a dónde"))
        else:
            word = "dónde"
        return [Piece(word, at("place"))]
    if asks == "when":
        return [Piece("cuándo", at("time"))]
    if asks == "how_many":
        if not isinstance(clause.object, Entity):
            return [Piece("cuántos", at("object"))]
        mass = clause.object.concept in MASS
        many = replace(
            clause.object, counted=False, definite=False, owner=None, pronoun=False, relative=None,
            number=1 if mass else 2,
        )
        agr = _agreement(many)
        words = _group(many, f"{path}.object", pick, use="negated")  # no article
        return [Piece(f"cuánt{'a' if agr.fem else 'o'}{'s' if agr.plural else ''} {words}", at("object"))]
    return []


# --- the language interface -----------------------------------------------------------------


def _points_back(clause: Clause) -> bool:
    """Whether an object or owner of the clause is a pronoun, which would then precede its noun."""
    return any(
        isinstance(e, Entity) and (e.pronoun or (e.owner is not None and e.owner.pronoun))
        for e in (clause.object, clause.recipient)
    )


def _mode(main: Clause, link: str | None, second: Clause | None) -> str:
    """The mode that the link and the main clause impose on the second clause's verb."""
    if link == "that":
        if main.verb == "hope" or (main.negated and main.verb in ("think", "believe")):
            return "past wish" if main.tense == "past" else "subjunctive"
        if main.tense == "past":
            return "said" if main.verb == "say" else "shifted"
    ahead = link == "when" and second is not None and second.tense != "past"
    if ahead and "future" in (main.tense, second.tense if second else ""):
        return "subjunctive"
    return link if link in ("if", "because") else ""


def pieces(sentence: Sentence, pick: Pick) -> list[Piece]:
    """The sentence in surface order, its final mark included; accepts partial sentences."""
    pick = once(pick, only=STEADY)
    main, link, second = sentence.main, sentence.link, sentence.second
    empty = main == Clause(None, None, tense=main.tense)
    early = (
        link in ("when", "if") and second is not None and main.asks is None and main.front is None
        and main.subject is not None and not _points_back(second) and pick("link.position", (False, True), (3, 1))
    )
    out = [] if empty else _clause(main, "main", pick, order=not early and link != "that")
    if link is not None or second is not None:
        free = link in ("and", "but", None)
        inner: list[Piece] = []
        if second is not None:
            same = isinstance(main.subject, Entity) and main.subject == second.subject and not early
            inner = _clause(second, "second", pick, _mode(main, link, second), order=free, same=same)
        joint = [Piece(LINKS[link], "link")] if link else []
        if early:
            out = [*joint, *inner, Piece(",", "mark"), *out]
        else:
            comma = [Piece(",", "mark")] if link == "but" and out else []
            out = [*out, *comma, *joint, *inner]
    asks = main.asks or (second.asks if second else None)
    if asks:
        out = [Piece("¿", "mark"), *out]
    merged: list[Piece] = []
    for piece in out:
        if merged and merged[-1].slot == piece.slot and piece.slot != "mark":
            glued = piece.text[1:] if piece.text.startswith("-") else f" {piece.text}"
            merged[-1] = Piece(merged[-1].text + glued, piece.slot)
        else:
            merged.append(piece)
    merged.append(Piece("?" if asks else ".", "mark"))
    return merged


_MARKS = re.compile(r" -| (?=[,.?])|(?<=¿) |,(?= ?[,.?])")
_CONTRACTION = re.compile(r"\b(a|de) el\b", re.IGNORECASE)
_AND = re.compile(r"\by (?=[ií]|hi(?!e))", re.IGNORECASE)


def join(pieces: Sequence[Piece]) -> str:
    """The text of pieces: spaces, contractions, enclitics, capitals. Without a closing mark it stays open."""
    text = " ".join(piece.text for piece in pieces)
    text = _MARKS.sub("", text)
    text = _CONTRACTION.sub(r"\1l", text)
    text = _AND.sub("e ", text)
    start = 1 if text[:1] == "¿" else 0
    return text[:start] + text[start:start + 1].upper() + text[start + 1:]


def noun_phrase(entity: Entity, pick: Pick, use: str = "about") -> str:
    """An entity alone; `use` "about" puts "de" before it (hábleme *del médico*), any other use nothing."""
    text = join(_noun(entity, "who", "who", pick, "de" if use == "about" else ""))
    return text if entity.concept in NAMES and use != "about" else text[:1].lower() + text[1:]
