"""French for the corpus: lexicon, agreement, clitics, tenses and word order.

"you" is *vous* (one person, masculine agreement). Elision and contraction happen in :func:`join`,
so that pieces contain full words ("de le professeur"); a piece that starts with a hyphen is attached to
the preceding word ("a" + "-t-elle").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from town.corpus.meaning import (
    ANIMALS,
    DITRANSITIVE,
    MASS,
    NAMES,
    PEOPLE,
    SPEAKERS,
    STEADY,
    THINGS,
    Clause,
    Entity,
    Gap,
    Pick,
    Piece,
    Place,
    Sentence,
    once,
)

CODE = "fr"
LANGUAGES = {
    "en": "anglais", "de": "allemand", "fr": "français", "es": "espagnol", "zh": "chinois",
    "ja": "japonais", "vi": "vietnamien",
}

# --- agreement --------------------------------------------------------------------------

JE, IL, NOUS, VOUS, ILS = range(5)  # the persons that the corpus uses, in the order of the verb tables


class Agr(NamedTuple):
    """The features that a verb, adjective or participle agrees with."""

    person: int
    plural: bool
    fem: bool


DEFAULT = Agr(IL, False, False)

# --- nouns ------------------------------------------------------------------------------

# gender and words; all words of a concept share the gender, so that a pronoun fits any of them
NOUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "child": ("m", ("enfant",)), "woman": ("f", ("femme", "dame")), "man": ("m", ("homme",)),
    "girl": ("f", ("fille", "fillette")), "boy": ("m", ("garçon",)), "friend": ("m", ("ami", "copain")),
    "neighbor": ("f", ("voisine",)), "doctor": ("f", ("médecin", "docteure")),
    "teacher": ("m", ("professeur", "enseignant")), "student": ("f", ("étudiante", "élève")),
    "farmer": ("m", ("agriculteur", "fermier")), "driver": ("m", ("chauffeur", "conducteur")),
    "cook": ("m", ("cuisinier",)), "painter": ("f", ("peintre", "artiste")), "guest": ("m", ("invité", "convive")),
    "mother": ("f", ("mère", "maman")), "father": ("m", ("père", "papa")), "sister": ("f", ("sœur",)),
    "brother": ("m", ("frère",)),
    "dog": ("m", ("chien",)), "cat": ("m", ("chat",)), "horse": ("m", ("cheval",)),
    "bird": ("m", ("oiseau",)),
    "bread": ("m", ("pain",)), "apple": ("f", ("pomme",)), "cheese": ("m", ("fromage",)),
    "soup": ("f", ("soupe",)), "cake": ("m", ("gâteau",)), "fish": ("m", ("poisson",)),
    "rice": ("m", ("riz",)), "egg": ("m", ("œuf",)),
    "water": ("f", ("eau",)), "tea": ("m", ("thé",)), "coffee": ("m", ("café",)), "milk": ("m", ("lait",)),
    "book": ("m", ("livre", "bouquin")), "letter": ("f", ("lettre",)), "newspaper": ("m", ("journal", "quotidien")),
    "map": ("f", ("carte",)),
    "car": ("f", ("voiture", "auto")), "bicycle": ("m", ("vélo",)), "key": ("f", ("clé", "clef")),
    "bag": ("m", ("sac",)), "chair": ("f", ("chaise",)), "table": ("f", ("table",)),
    "lamp": ("f", ("lampe",)), "clock": ("f", ("horloge", "pendule")), "ticket": ("m", ("billet", "ticket")),
    "picture": ("m", ("tableau",)), "phone": ("m", ("téléphone", "portable")),
    "umbrella": ("m", ("parapluie",)), "coat": ("m", ("manteau", "pardessus")), "shoe": ("f", ("chaussure",)),
    "gift": ("m", ("cadeau", "présent")), "flower": ("f", ("fleur",)), "window": ("f", ("fenêtre",)),
    "door": ("f", ("porte",)), "machine": ("f", ("machine",)), "boat": ("m", ("bateau",)),
    "cup": ("f", ("tasse",)), "ball": ("f", ("balle",)), "box": ("f", ("boîte",)),
    "camera": ("m", ("appareil photo",)),
    "house": ("f", ("maison",)), "school": ("f", ("école",)), "market": ("m", ("marché",)),
    "station": ("f", ("gare",)), "garden": ("m", ("jardin",)), "kitchen": ("f", ("cuisine",)),
    "park": ("m", ("parc",)), "city": ("f", ("ville",)), "village": ("m", ("village",)),
    "hospital": ("m", ("hôpital",)), "library": ("f", ("bibliothèque",)), "office": ("m", ("bureau",)),
    "river": ("f", ("rivière",)), "bridge": ("m", ("pont",)), "shop": ("m", ("magasin",)),
    "museum": ("m", ("musée",)), "hotel": ("m", ("hôtel",)), "street": ("f", ("rue",)),
    "forest": ("f", ("forêt",)),
}


def _plural(noun: str) -> str:
    if noun == "appareil photo":
        return "appareils photo"
    if noun.endswith("al"):
        return noun[:-2] + "aux"
    if noun.endswith(("s", "x", "z")):
        return noun
    return noun + ("x" if noun.endswith("au") else "s")


PLURALS = {w: _plural(w) for _, words in NOUNS.values() for w in words}
NUMBERS = ("zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze")
VOWELS = "aâeéèêhiîoôuyœAEÉIOU"  # every h of the lexicon is mute

# --- adjectives -------------------------------------------------------------------------


class Adjective(NamedTuple):
    """The forms, and the rank before the noun (0: follows it)."""

    ms: str
    fs: str
    mp: str
    fp: str
    rank: int = 0
    vowel: str = ""  # masculine singular before a vowel

    def form(self, agr: Agr) -> str:
        return (self.fp if agr.plural else self.fs) if agr.fem else self.mp if agr.plural else self.ms


def _adjective(ms: str, fs: str = "", rank: int = 0, vowel: str = "") -> Adjective:
    fs = fs or (ms if ms.endswith("e") else ms + "e")
    mp = ms if ms.endswith(("x", "s")) else ms + ("x" if ms.endswith("au") else "s")
    return Adjective(ms, fs, mp, fs + "s", rank, vowel)


ADJECTIVES: dict[str, tuple[Adjective, ...]] = {
    "old": (_adjective("vieux", "vieille", 4, "vieil"),),
    "new": (_adjective("nouveau", "nouvelle", 1, "nouvel"),),
    "big": (_adjective("grand", rank=3),), "small": (_adjective("petit", rank=3),),
    "red": (_adjective("rouge"),), "blue": (_adjective("bleu"),), "green": (_adjective("vert"),),
    "white": (_adjective("blanc", "blanche"),), "black": (_adjective("noir"),),
    "heavy": (_adjective("lourd"),),
    "expensive": (_adjective("cher", "chère"), _adjective("coûteux", "coûteuse")),
    "cheap": (Adjective("bon marché", "bon marché", "bon marché", "bon marché"),),
    "beautiful": (_adjective("beau", "belle", 2, "bel"), _adjective("joli", rank=2)),
    "young": (_adjective("jeune", rank=4),), "tired": (_adjective("fatigué"),),
    "happy": (_adjective("heureux", "heureuse"), _adjective("content")), "clean": (_adjective("propre"),),
    "empty": (_adjective("vide"),), "warm": (_adjective("chaud"),), "cold": (_adjective("froid"),),
    "good": (_adjective("bon", "bonne", 2),), "long": (_adjective("long", "longue", 3),),
}

AGED = (ADJECTIVES["old"][0], _adjective("âgé"))  # of people
BRAND_NEW = (ADJECTIVES["new"][0], _adjective("neuf", "neuve"))  # of things

# --- verbs ------------------------------------------------------------------------------


class Verb(NamedTuple):
    """Five forms (je, il, nous, vous, ils) of each simple tense."""

    infinitive: str
    present: tuple[str, ...]
    imperfect: tuple[str, ...]
    future: tuple[str, ...]
    conditional: tuple[str, ...]
    subjunctive: tuple[str, ...]
    participle: str
    etre: bool
    reflexive: bool


IMPERFECT = ("ais", "ait", "ions", "iez", "aient")


def _verb(
    infinitive: str, present: str, future: str, participle: str, *, subjunctive: str = "", imperfect: str = "",
    etre: bool = False, reflexive: bool = False,
) -> Verb:
    now = tuple(present.split())
    stem = imperfect or now[NOUS].removesuffix("ons")
    soft = stem[:-1] if stem.endswith("ge") else stem  # mangeais, but mangions
    past = tuple((soft if e[0] == "i" else stem) + e for e in IMPERFECT)
    strong = now[ILS].removesuffix("ent")
    wish = subjunctive or f"{strong}e {strong}e {soft}ions {soft}iez {strong}ent"
    return Verb(
        infinitive, now, past, tuple(future + e for e in ("ai", "a", "ons", "ez", "ont")),
        tuple(future + e for e in IMPERFECT), tuple(wish.split()), participle, etre, reflexive,
    )


def _er(infinitive: str, strong: str = "", future: str = "", etre: bool = False, reflexive: bool = False) -> Verb:
    """A verb in -er; `strong` is the stem of je, il, ils where it differs (achet-, achèt-)."""
    stem = infinitive[:-2]
    strong = strong or stem
    weak = stem + "e" if stem.endswith("g") else stem
    present = f"{strong}e {strong}e {weak}ons {stem}ez {strong}ent"
    return _verb(
        infinitive, present, future or strong + "er", stem + "é", etre=etre, reflexive=reflexive
    )


VERBS: dict[str, Verb] = {v.infinitive: v for v in (
    _verb("avoir", "ai a avons avez ont", "aur", "eu", subjunctive="aie ait ayons ayez aient"),
    _verb("être", "suis est sommes êtes sont", "ser", "été", imperfect="ét",
          subjunctive="sois soit soyons soyez soient"),
    _verb("aller", "vais va allons allez vont", "ir", "allé", etre=True,
          subjunctive="aille aille allions alliez aillent"),
    _verb("vouloir", "veux veut voulons voulez veulent", "voudr", "voulu",
          subjunctive="veuille veuille voulions vouliez veuillent"),
    _verb("pouvoir", "peux peut pouvons pouvez peuvent", "pourr", "pu",
          subjunctive="puisse puisse puissions puissiez puissent"),
    _verb("devoir", "dois doit devons devez doivent", "devr", "dû"),
    _verb("offrir", "offre offre offrons offrez offrent", "offrir", "offert"),
    _verb("faire", "fais fait faisons faites font", "fer", "fait", subjunctive="fasse fasse fassions fassiez fassent"),
    _verb("apercevoir", "aperçois aperçoit apercevons apercevez aperçoivent", "apercevr", "aperçu"),
    _verb("vendre", "vends vend vendons vendez vendent", "vendr", "vendu"),
    _verb("voir", "vois voit voyons voyez voient", "verr", "vu"),
    _verb("boire", "bois boit buvons buvez boivent", "boir", "bu"),
    _verb("lire", "lis lit lisons lisez lisent", "lir", "lu"),
    _verb("écrire", "écris écrit écrivons écrivez écrivent", "écrir", "écrit"),
    _verb("ouvrir", "ouvre ouvre ouvrons ouvrez ouvrent", "ouvrir", "ouvert"),
    _verb("perdre", "perds perd perdons perdez perdent", "perdr", "perdu"),
    _verb("connaître", "connais connaît connaissons connaissez connaissent", "connaîtr", "connu"),
    _verb("rendre", "rends rend rendons rendez rendent", "rendr", "rendu"),
    _verb("peindre", "peins peint peignons peignez peignent", "peindr", "peint"),
    _verb("dormir", "dors dort dormons dormez dorment", "dormir", "dormi"),
    _verb("attendre", "attends attend attendons attendez attendent", "attendr", "attendu"),
    _verb("rire", "ris rit rions riez rient", "rir", "ri"),
    _verb("vivre", "vis vit vivons vivez vivent", "vivr", "vécu"),
    _verb("revenir", "reviens revient revenons revenez reviennent", "reviendr", "revenu", etre=True),
    _verb("courir", "cours court courons courez courent", "courr", "couru"),
    _verb("dire", "dis dit disons dites disent", "dir", "dit"),
    _verb("croire", "crois croit croyons croyez croient", "croir", "cru"),
    _er("acheter", "achèt"), _er("trouver"), _er("rédiger"), _er("laver"), _er("égarer"), _er("rechercher"),
    _er("expédier"), _er("déclarer"), _er("manger"), _er("fermer"),
    _er("nettoyer", "nettoi"), _er("réparer"), _er("porter"), _er("transporter"), _er("aimer"),
    _er("adorer"), _er("rencontrer"), _er("aider"), _er("appeler", "appell"), _er("téléphoner"),
    _er("passer", etre=True), _er("inviter"), _er("préparer"), _er("cuisiner"), _er("chercher"),
    _er("oublier"), _er("donner"), _er("montrer"), _er("apporter"), _er("envoyer", "envoi", "enverr"),
    _er("travailler"), _er("patienter"), _er("chanter"), _er("danser"), _er("habiter"),
    _er("lever", "lèv", etre=True, reflexive=True), _er("voyager"), _er("arriver", etre=True),
    _er("rentrer", etre=True), _er("penser"), _er("espérer", "espèr", "espérer"),
)}


VERBS["se rendre"] = VERBS["rendre"]._replace(etre=True, reflexive=True)


class Frame(NamedTuple):
    """How a concept is expressed: the verb, its completing infinitive or noun, and its object's case."""

    verb: str
    then: str = ""  # infinitive after it: aller chercher
    tail: str = ""  # fixed noun after it: avoir besoin
    case: str = ""  # preposition of the object: "", "à" or "de"


WORDS: dict[str, tuple[Frame, ...]] = {
    "have": (Frame("avoir"),), "buy": (Frame("acheter"),), "sell": (Frame("vendre"),),
    "see": (Frame("voir"), Frame("apercevoir")), "find": (Frame("trouver"),), "eat": (Frame("manger"),),
    "drink": (Frame("boire"),), "read": (Frame("lire"),), "write": (Frame("écrire"), Frame("rédiger")),
    "open": (Frame("ouvrir"),), "close": (Frame("fermer"),), "clean": (Frame("nettoyer"), Frame("laver")),
    "repair": (Frame("réparer"),), "carry": (Frame("porter"), Frame("transporter")),
    "lose": (Frame("perdre"), Frame("égarer")), "need": (Frame("avoir", tail="besoin", case="de"),),
    "love": (Frame("aimer"), Frame("adorer")), "know": (Frame("connaître"),),
    "meet": (Frame("rencontrer"),), "help": (Frame("aider"), Frame("donner", tail="un coup de main", case="à")),
    "visit": (Frame("rendre", tail="visite", case="à"), Frame("aller", then="voir")),
    "call": (Frame("appeler"), Frame("téléphoner", case="à")),
    "pick_up": (Frame("aller", then="chercher"), Frame("passer", then="prendre")),
    "invite": (Frame("inviter"),), "paint": (Frame("peindre"),),
    "cook": (Frame("préparer"), Frame("cuisiner")), "look_for": (Frame("chercher"), Frame("rechercher")),
    "forget": (Frame("oublier"),),
    "give": (Frame("donner"), Frame("offrir")), "show": (Frame("montrer"),), "bring": (Frame("apporter"),),
    "send": (Frame("envoyer"), Frame("expédier")),
    "sleep": (Frame("dormir"),), "work": (Frame("travailler"),),
    "wait": (Frame("attendre"), Frame("patienter")), "sing": (Frame("chanter"),),
    "laugh": (Frame("rire"),), "dance": (Frame("danser"),), "live": (Frame("vivre"), Frame("habiter")),
    "get_up": (Frame("lever"),),
    "go": (Frame("aller"), Frame("se rendre")), "travel": (Frame("voyager"), Frame("faire", tail="un voyage")), "arrive": (Frame("arriver"),),
    "come_back": (Frame("revenir"), Frame("rentrer")), "run": (Frame("courir"),),
    "be": (Frame("être"),), "be_at": (Frame("être"),),
    "say": (Frame("dire"), Frame("déclarer")), "think": (Frame("penser"),), "believe": (Frame("croire"),),
    "hope": (Frame("espérer"),),
}
MODALS = {"want": "vouloir", "can": "pouvoir", "must": "devoir"}
STATES = frozenset(("have", "need", "love", "know", "live", "be", "be_at", "think", "believe", "hope"))
GOING_ON = ("work", "look_for", "sleep", "wait")  # imparfait when they are the reason for something

# --- adverbs, times, places ---------------------------------------------------------------

ADVERBS = {
    "quickly": ("rapidement", "vite"), "slowly": ("lentement",), "carefully": ("soigneusement", "avec soin"),
    "often": ("souvent", "fréquemment"), "always": ("toujours",), "alone": ("seul", "tout seul"),
}
FREQUENCY = ("often", "always")  # directly after the conjugated verb
TIMES = {
    "yesterday": ("hier",), "today": ("aujourd'hui",), "tomorrow": ("demain",),
    "now": ("maintenant", "en ce moment"), "this_morning": ("ce matin",), "this_evening": ("ce soir",),
    "last_week": ("la semaine dernière", "la semaine passée"), "next_week": ("la semaine prochaine",),
    "every_day": ("tous les jours", "chaque jour"), "at_night": ("la nuit", "pendant la nuit"), "on_monday": ("lundi",),
    "on_tuesday": ("mardi",), "on_wednesday": ("mercredi",), "on_thursday": ("jeudi",),
    "on_friday": ("vendredi",), "on_saturday": ("samedi",), "on_sunday": ("dimanche",),
}
HABITS = ("every_day", "at_night")  # times that require the imparfait
RELATIONS = {"near": ("près de", "à côté de"), "behind": ("derrière",), "in_front_of": ("devant",), "from": ("de",)}
# "at" with a definite place: à or dans unless listed here; "en ville" and the like have no article
AT = {
    "house": ("dans", "à"), "garden": ("dans",), "kitchen": ("dans",), "park": ("dans", "à"), "city": ("dans", "en"),
    "forest": ("dans", "en"), "street": ("dans",), "shop": ("dans", "à"), "village": ("dans", "à"), "bridge": ("sur",),
    "river": ("au bord de",), "market": ("à",),
}
# "to" with a definite place: à unless listed here
TO = {"city": ("dans", "en"), "garden": ("dans",), "kitchen": ("dans",), "street": ("dans",), "forest": ("dans", "en"),
      "bridge": ("sur",), "river": ("au bord de",)}
SOME_PLACE = {"bridge": "sur", "river": "au bord de", "market": "sur"}  # otherwise: dans un, dans une

LINKS = {"that": "que", "because": "parce que", "when": "quand", "if": "si", "and": "et", "but": "mais"}
SUBJECTS = ("je", "il", "nous", "vous", "ils")
OBJECTS = ("me", "le", "nous", "vous", "les")
DATIVES = ("me", "lui", "nous", "vous", "leur")
STRONG = ("moi", "lui", "nous", "vous", "eux")
REFLEXIVES = ("me", "se", "nous", "vous", "se")
# possessives of je, il, nous, vous, ils: masculine, feminine, plural
POSSESSIVES = (("mon", "ma", "mes"), ("son", "sa", "ses"), ("notre", "notre", "nos"),
               ("votre", "votre", "vos"), ("leur", "leur", "leurs"))

# --- fixed phrases ------------------------------------------------------------------------

PHRASES: dict[str, tuple[str, ...]] = {
    "translate": ("Traduisez en {language} : {text}", "Traduisez ce texte en {language} : {text}",
                  "Traduction en {language} : {text}", "Comment dit-on en {language} : {text}"),
    "summarize": ("Résumez ce texte : {text}", "Résumez ce texte en une phrase : {text}",
                  "Faites un résumé de ce texte : {text}"),
    "summary_opening": ("", "En bref :", "En résumé :"),
    "answer_question": ("Lisez le texte : {text} Question : {question}",
                        "Texte : {text} Répondez à la question : {question}", "{text} {question}"),
    "passage": ("[{number}] {text}", "[{number}] : {text}"),
    "use_passages": ("Répondez à l'aide des passages. {passages} Question : {question}",
                     "Voici quelques passages. {passages} Répondez à la question : {question}",
                     "Utilisez les passages pour répondre. {passages} {question}"),
    "from_passage": ("D'après le passage {number} : {answer}", "Le passage {number} dit : {answer}",
                     "On lit dans le passage {number} : {answer}"),
    "solve": ("Résolvez étape par étape : {problem}", "Résolvez ce problème pas à pas : {problem}",
              "{problem}"),
    "step_first": ("D'abord, {equation}.", "On calcule d'abord : {equation}.", "Pour commencer, {equation}."),
    "step_next": ("Ensuite, {equation}.", "Puis {equation}.", "On calcule ensuite : {equation}."),
    "conclusion": ("Donc : {sentence}", "Conclusion : {sentence}", "Réponse : {sentence}"),
    "tell_about": ("Parlez-moi {who}.", "Dites-moi quelque chose au sujet {who}.",
                   "Que savez-vous {who} ?", "Pouvez-vous me parler {who} ?"),
    "tell_opening": ("", "Volontiers.", "Bien sûr.", "Avec plaisir."),
    "ask_more": ("Merci. {question}", "Merci. Encore une question : {question}", "Et encore ceci : {question}"),
    "write_code": ("{task}", "{task} Merci.", "Pouvez-vous m'aider ? {task}"),
    "code_opening": ("Voici la fonction :", "Voici le code :", "Bien sûr, voici la fonction :"),
}
_FUNCTION = ("Écrivez une fonction Python {name} qui ", "Écrivez en Python une fonction {name} qui ")


def _task(*rest: str) -> tuple[str, ...]:
    return tuple(start + end for end in rest for start in _FUNCTION)


CODE_TASKS: dict[str, tuple[str, ...]] = {
    "sum": _task("renvoie la somme des nombres de la liste {a}.", "calcule la somme des nombres de la liste {a}."),
    "product": _task("renvoie le produit des nombres de la liste {a}.",
                     "calcule le produit des nombres de la liste {a}."),
    "maximum": _task("renvoie le plus grand nombre de la liste {a}.", "trouve le plus grand nombre de la liste {a}."),
    "minimum": _task("renvoie le plus petit nombre de la liste {a}.", "trouve le plus petit nombre de la liste {a}."),
    "average": _task("renvoie la moyenne des nombres de la liste {a}.",
                     "calcule la moyenne des nombres de la liste {a}."),
    "count_above": _task("compte combien de nombres de la liste {a} sont supérieurs à {k}.",
                         "renvoie combien de nombres de la liste {a} sont plus grands que {k}."),
    "keep_even": _task("renvoie les nombres pairs de la liste {a}.", "ne garde que les nombres pairs de la liste {a}."),
    "keep_below": _task("renvoie les nombres de la liste {a} qui sont inférieurs à {k}.",
                        "ne garde que les nombres de la liste {a} plus petits que {k}."),
    "scale": _task("renvoie la liste {a} où chaque nombre est multiplié par {k}.",
                   "multiplie par {k} chaque nombre de la liste {a}."),
    "shift": _task("renvoie la liste {a} où {k} est ajouté à chaque nombre.",
                   "ajoute {k} à chaque nombre de la liste {a}."),
    "reverse": _task("renvoie la liste {a} dans l'ordre inverse.", "renvoie la liste {a} à l'envers."),
    "contains": _task("indique si la liste {a} contient le nombre {k}.",
                      "vérifie si le nombre {k} se trouve dans la liste {a}."),
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
        return {"i": Agr(JE, False, False), "you": Agr(VOUS, False, False), "we": Agr(NOUS, True, False)}[
            entity.concept
        ]
    fem = NAMES[entity.concept] == "f" if entity.concept in NAMES else NOUNS[entity.concept][0] == "f"
    plural = entity.number > 1 and entity.concept not in MASS
    return Agr(ILS if plural else IL, plural, fem)


def _is_pronoun(entity: object) -> bool:
    return isinstance(entity, Entity) and (entity.pronoun or entity.concept in SPEAKERS)


def _is_person(entity: object) -> bool:
    return isinstance(entity, Entity) and (entity.concept in NAMES or entity.concept in PEOPLE)


def _gendered(forms: Sequence[str], agr: Agr) -> str:
    """The pronoun of a person: il or elle, le or la, lui or elle, eux or elles."""
    word = forms[agr.person]
    if not agr.fem:
        return word
    return {"il": "elle", "ils": "elles", "le": "la", "eux": "elles"}.get(word, word)


def _strong(agr: Agr) -> str:
    return "elle" if agr.person == IL and agr.fem else _gendered(STRONG, agr)


def _participle(verb: Verb, agr: Agr | None) -> str:
    if agr is None:
        return verb.participle
    word = "du" if verb.participle == "dû" and (agr.fem or agr.plural) else verb.participle
    return word + ("e" if agr.fem else "") + ("s" if agr.plural else "")


def _adjectives(
    concepts: Sequence[str], kind: str, key: str, pick: Pick, agr: Agr, noun: str
) -> tuple[list[str], list[str]]:
    """The adjectives before and after `noun`, a word for the concept `kind`."""
    chosen = []
    for c in concepts:
        options = ADJECTIVES[c][:1] if c == "happy" else ADJECTIVES[c]  # content stays a complement
        if c == "old" and kind in PEOPLE:
            options = AGED
        elif c == "new" and kind in THINGS:
            options = BRAND_NEW
        chosen.append(_choose(pick, f"{key}.adjective.{c}", options))
    before = sorted((a for a in chosen if a.rank), key=lambda a: a.rank)
    after = [a.form(agr) for a in chosen if not a.rank]
    words: list[str] = []
    follower = noun
    for a in reversed(before):
        word = a.form(agr)
        if a.vowel and word == a.ms and not agr.plural and follower[0] in VOWELS:
            word = a.vowel
        words.insert(0, word)
        follower = word
    return words, (" et ".join(after).split() if after else [])


def _group(entity: Entity, key: str, pick: Pick, case: str = "", negated: bool = False) -> str:
    """A noun with its words, after the preposition `case`; no relative clause.

    `negated`: direct object under "ne ... pas", whose indefinite article becomes "de".
    """
    agr = _agreement(entity)
    if _is_pronoun(entity):
        return f"{case} {_strong(agr)}".strip()
    if entity.concept in NAMES:
        noun = entity.concept
    else:
        noun = _choose(pick, f"noun.{entity.concept}", NOUNS[entity.concept][1])
        noun = PLURALS[noun] if agr.plural else noun
    before, after = _adjectives(entity.adjectives, entity.concept, key, pick, agr, noun)
    first = before[0] if before else noun
    article = "les" if agr.plural else "la" if agr.fem else "le"
    number = ""
    if entity.counted and agr.plural:
        number = NUMBERS[entity.number] if entity.number < len(NUMBERS) else str(entity.number)
        first = number
    tail = ""
    owner = entity.owner
    if owner is not None and _is_pronoun(owner):
        forms = POSSESSIVES[_agreement(owner).person]
        masculine = not agr.fem or first[0] in VOWELS  # mon amie, son eau
        article = forms[2] if agr.plural else forms[0] if masculine else forms[1]
    elif entity.concept in NAMES:
        article = article if entity.adjectives else ""
    elif not entity.definite:
        if number:
            article = ""
        elif entity.concept in MASS:
            article = "de" if case == "de" or negated else f"de {article}"
        elif agr.plural:
            article = "de" if case == "de" or negated or before else "des"
        elif entity.counted or not negated:
            article = "une" if agr.fem else "un"
        else:
            article = "de"
        if case == "de" and article == "de":
            article = ""
    if owner is not None and not _is_pronoun(owner):
        tail = _group(owner, f"{key}.owner", pick, "de")
    return " ".join(w for w in (case, article, number, *before, noun, *after, tail) if w)


def _noun(
    entity: Entity, name: str, slot: str, pick: Pick, case: str = "", negated: bool = False, flat: bool = False
) -> list[Piece]:
    """A noun phrase with its relative clause. `name` keys the choices, `slot` is the slot of the pieces."""
    out = [Piece(_group(entity, name, pick, case, negated), slot)]
    if entity.relative is not None:
        inner = _clause(
            entity.relative, f"{name}.relative", pick, flat=slot if flat else f"{slot}.relative",
            head=_agreement(entity), order=False,
        )
        # a name is already definite: its relative clause takes commas
        marks = [Piece(",", "mark")] if entity.concept in NAMES else []
        out += [*marks, *inner, *marks]
    return out


def _place(place: Place, verb: str | None, key: str, pick: Pick) -> str:
    fem = NOUNS[place.concept][0] == "f"
    noun = _choose(pick, f"noun.{place.concept}", NOUNS[place.concept][1])
    adjectives = (place.adjective,) if place.adjective else ()
    before, after = _adjectives(adjectives, place.concept, key, pick, Agr(IL, False, fem), noun)
    if place.definite:
        article = "la" if fem else "le"
    else:
        article = "une" if fem else "un"
    if place.relation in RELATIONS and (place.relation, verb) != ("from", "pick_up"):  # chercher à la gare
        word = _choose(pick, f"{key}.relation", RELATIONS[place.relation])
    elif place.relation == "to" and verb in ("run", "travel"):
        word = "jusqu'à"
    elif not place.definite:
        word = SOME_PLACE.get(place.concept, "dans")
    else:
        if place.relation == "to" or verb == "arrive":
            options = TO.get(place.concept, ("à",))
        else:
            options = AT.get(place.concept, ("à", "dans"))
        word = _choose(pick, f"{key}.relation", options[:1] if place.adjective else options)
        article = "" if word == "en" else article
        return " ".join(w for w in (word, article, *before, noun, *after) if w)
    return " ".join((word, article, *before, noun, *after))


# --- clauses ------------------------------------------------------------------------------


def _tense(clause: Clause, mode: str) -> str:
    """The French tense. `mode`: "", "because", "subjunctive", "if", "when" (main clause in the future), "shifted"."""
    tense: str = clause.tense
    if mode == "subjunctive":
        return "past subjunctive" if tense == "past" else "subjunctive"
    if mode == "if" and tense == "future":
        tense = "present"
    if mode == "when" and tense == "present":
        tense = "future"
    lasting = (
        clause.verb in STATES or clause.modal is not None or clause.time in HABITS
        or (clause.adverb in FREQUENCY and clause.time is None) or (mode == "because" and clause.verb in GOING_ON)
    )
    if mode == "shifted":
        if tense == "past":
            return "imperfect" if lasting else "pluperfect"
        return "imperfect" if tense == "present" else "conditional"
    if tense == "past":
        return "imperfect" if lasting else "perfect"
    return tense


COMPOUND = {"perfect": "present", "pluperfect": "imperfect", "past subjunctive": "subjunctive"}


def _clause(
    clause: Clause, path: str, pick: Pick, mode: str = "", flat: str = "", head: Agr | None = None,
    order: bool = True,
) -> list[Piece]:
    """The pieces of one clause, without a closing mark.

    `flat`: the only slot of all pieces (a relative clause). `head`: the referent of its gap.
    `order`: the time may come first by choice.
    """

    def at(name: str) -> str:
        return flat or f"{path}.{name}"

    def noun(entity: Entity, name: str, case: str = "", negated: bool = False) -> list[Piece]:
        return _noun(entity, f"{path}.{name}", at(name), pick, case, negated, bool(flat))

    asks = clause.asks
    subject, obj, recipient = clause.subject, clause.object, clause.recipient
    place, time = clause.place, clause.time
    agr = _agreement(subject, head)
    if asks == "who":
        subject, agr = None, DEFAULT
    elif asks == "where":
        place = None
    elif asks == "when":
        time = None
    elif asks == "whom" and clause.verb in DITRANSITIVE:
        recipient = None
    elif asks in ("what", "whom"):
        obj = None

    # the verb and what its object takes
    frame = Frame("")
    if clause.verb is not None:
        frames = WORDS[clause.verb]
        if clause.verb in ("live", "go") and clause.place is None:
            frames = frames[:1]  # habiter and se rendre require a place
        if clause.negated and frames[-1].tail.startswith("un "):
            frames = frames[:1]
        frame = _choose(pick, f"{path}.verb.word", frames)
    complement = clause.complement
    sensation = clause.verb == "be" and complement in ("warm", "cold") and (
        agr.person in (JE, NOUS, VOUS) or _is_person(subject)
    )
    if sensation:
        frame = Frame("avoir")  # avoir chaud, avoir froid

    # clitics: (rank, word, slot), and what agrees with the participle
    clitics: list[tuple[int, str, str]] = []
    ahead: Agr | None = None
    after: list[tuple[str, list[Piece], bool]] = []  # constituent, pieces, heavy
    if isinstance(obj, Gap):
        ahead = head if not frame.case else None
    elif asks == "how_many":
        ahead = _how_many(obj) if obj is not None and not frame.case else None
    elif isinstance(obj, Entity) and _is_pronoun(obj):
        oagr = _agreement(obj)
        if frame.case == "de":
            if _is_person(obj) or obj.concept in SPEAKERS or obj.concept in ANIMALS:
                after.append(("object", [Piece(f"de {_strong(oagr)}", at("object"))], False))
            else:
                clitics.append((3, "en", at("object")))
        elif frame.case == "à":
            clitics.append((0 if oagr.person not in (IL, ILS) else 2, DATIVES[oagr.person], at("object")))
        else:
            clitics.append((0 if oagr.person not in (IL, ILS) else 1, _gendered(OBJECTS, oagr), at("object")))
            ahead = oagr
    elif isinstance(obj, Entity):
        if clause.verb == "love" and not (obj.definite or obj.counted or _is_person(obj) or obj.concept in ANIMALS):
            obj = replace(obj, definite=True)  # in general: aimer le fromage, aimer les fleurs
        negated = clause.negated and not frame.case and clause.verb != "love"
        after.append(("object", noun(obj, "object", frame.case, negated), obj.relative is not None))
    if recipient is not None:
        ragr = _agreement(recipient)
        if _is_pronoun(recipient) and not any(rank == 0 for rank, _, _ in clitics):
            clitics.append((0 if ragr.person not in (IL, ILS) else 2, DATIVES[ragr.person], at("recipient")))
        else:
            after.append(("recipient", noun(recipient, "recipient", "à"), recipient.relative is not None))
    clitics.sort()

    # adverb
    middle: list[Piece] = []
    manner: list[Piece] = []
    if clause.adverb is not None:
        word = _choose(pick, f"{path}.adverb.word", ADVERBS[clause.adverb])
        if clause.adverb == "alone":
            word = word.replace("seul", "seule" if agr.fem else "seul") + ("s" if agr.plural else "")
            if agr.fem:  # toute seule, toutes seules; but tout seuls
                word = word.replace("tout", "toutes" if agr.plural else "toute")
        piece = Piece(word, at("adverb"))
        if clause.adverb in FREQUENCY and clause.verb is not None:
            middle = [piece]
        else:
            manner = [piece]

    # what follows the verb, in order
    heavy = any(h for _, _, h in after)
    tail: list[Piece] = []
    time_piece = [Piece(_choose(pick, f"{path}.time.word", TIMES[time]), at("time"))] if time else []
    place_piece = [Piece(_place(place, clause.verb, f"{path}.place", pick), at("place"))] if place else []
    front = clause.front
    if front is None and time and order and asks is None:
        if heavy:
            front = "time"
        else:
            front = pick(f"{path}.time.position", (None, "time"), (3, 1))
    lead: list[Piece] = []
    if front == "time" and time_piece:
        lead, time_piece = time_piece, []
    elif front == "place" and place_piece:
        lead, place_piece = place_piece, []
    if lead and order:
        lead = [*lead, Piece(",", "mark")]
    light = [p for _, pieces, h in after if not h for p in pieces]
    loaded = [p for _, pieces, h in after if h for p in pieces]
    said: list[Piece] = []
    if complement is not None:
        if sensation:
            word = "chaud" if complement == "warm" else "froid"
        else:
            adjective = _choose(pick, f"{path}.complement.word", ADJECTIVES[complement])
            word = adjective.form(agr)
        said = [Piece(word, at("complement"))]
    if manner and light and clause.adverb != "alone":
        early = pick(f"{path}.adverb.position", (False, True), (2, 1))
        tail = [*manner, *light] if early else [*light, *manner]
    else:
        tail = [*light, *manner]
    tail = [*said, *tail]
    if place_piece and time_piece and not heavy:
        late = pick(f"{path}.place.position", (True, False), (3, 1))
        tail += [*place_piece, *time_piece] if late else [*time_piece, *place_piece]
    else:
        tail += [*place_piece, *time_piece]
    tail += loaded

    # subject
    pronoun = _is_pronoun(subject)
    subject_pieces: list[Piece] = []
    if isinstance(subject, Entity):
        if pronoun:
            subject_pieces = [Piece(_gendered(SUBJECTS, agr), at("subject"))]
        else:
            subject_pieces = noun(subject, "subject")

    clitic_pieces = [Piece(word, slot) for _, word, slot in clitics]
    if clause.verb is None:
        return [
            *lead, *_question_word(clause, frame, path, pick, at), *_relative(clause, frame, head, at),
            *subject_pieces, *clitic_pieces, *middle, *tail,
        ]

    # the verb complex
    whole = VERBS[frame.verb]
    verb = VERBS[MODALS[clause.modal]] if clause.modal else whole
    tense = _tense(clause, mode)
    if clause.modal in ("can", "must") and tense == "imperfect" and mode in ("", "because") and not (
        clause.time in HABITS or clause.adverb in FREQUENCY or clause.verb in STATES
    ):
        tense = pick(f"{path}.verb.aspect", ("imperfect", "perfect"), (2, 1))
    slot = at("verb")
    chained = bool(clause.modal or frame.then)
    reflexive = Piece(REFLEXIVES[agr.person], slot) if whole.reflexive else None
    bound = [*([reflexive] if reflexive else []), *clitic_pieces]
    auxiliary = ""
    if tense in COMPOUND:
        helper = VERBS["être" if verb.etre else "avoir"]
        auxiliary = getattr(helper, COMPOUND[tense])[agr.person]
        agreed = agr if verb.etre else None if chained else ahead
        rest = [Piece(_participle(verb, agreed), slot)]
    else:
        auxiliary = getattr(verb, tense)[agr.person]
        rest = []
    finite = Piece(auxiliary, slot)
    no, pas = ([Piece("ne", slot)], [Piece("pas", slot)]) if clause.negated else ([], [])
    if chained:
        before: list[Piece] = []
        if clause.modal and frame.then:  # veut aller la chercher
            rest += [Piece(whole.infinitive, slot)]
        rest += [*bound, Piece(frame.then or whole.infinitive, slot)]
    else:
        before = bound
    end = [*rest, *([Piece(frame.tail, slot)] if frame.tail else []), *tail]

    def straight(first: list[Piece]) -> list[Piece]:
        return [*first, *no, *before, finite, *pas, *middle, *end]

    if asks is None:
        return [*lead, *_relative(clause, frame, head, at), *straight(subject_pieces)]

    # questions
    asking = _question_word(clause, frame, path, pick, at)
    if asks == "who":
        return [*lead, *straight(asking)]
    if subject is None or isinstance(subject, Gap):
        return [*lead, *asking, *straight([])]
    particle = Piece("est-ce que", "mark")
    forms = ["particle"]
    if agr.person != JE:
        if pronoun or asks != "what" or frame.case:
            forms.append("inversion")
        elif not chained and not clause.negated and not subject.relative:
            forms.append("verb first")
    if asks == "where" and clause.verb == "be_at" and not pronoun and not (clause.modal or clause.negated):
        forms = ["verb first", "particle"]
    if asks == "yes_no":
        forms.append("tone")
    form = _choose(pick, f"{path}.question", forms)
    if form == "tone":  # Anna dort ?
        return [*lead, *straight(subject_pieces)]
    if form == "particle":
        return [*lead, *asking, particle, *straight(subject_pieces)]
    if form == "verb first":  # Qu'a acheté Anna ? Où est Anna ?
        return [*lead, *asking, *before, finite, *middle, *rest, *subject_pieces, *end[len(rest):]]
    name = _gendered(SUBJECTS, agr)
    joint = "-t-" if auxiliary[-1] in "ae" and name[0] in VOWELS else "-"
    inverted = Piece(joint + name, at("subject"))
    first = [] if pronoun else subject_pieces
    return [*lead, *asking, *first, *no, *before, finite, inverted, *pas, *middle, *end]


def _relative(clause: Clause, frame: Frame, head: Agr | None, at: Callable[[str], str]) -> list[Piece]:
    """The relative pronoun, when the clause has a gap."""
    if isinstance(clause.subject, Gap):
        return [Piece("qui", at("subject"))]
    if isinstance(clause.object, Gap):
        return [Piece({"": "que", "à": "à qui", "de": "dont"}[frame.case], at("object"))]
    return []


def _how_many(entity: Entity) -> Agr:
    agr = _agreement(entity)
    return agr if entity.concept in MASS else agr._replace(person=ILS, plural=True)


def _question_word(clause: Clause, frame: Frame, path: str, pick: Pick, at: Callable[[str], str]) -> list[Piece]:
    asks = clause.asks
    if asks == "who":
        return [Piece(_choose(pick, f"{path}.who", ("qui", "qui est-ce qui")), at("subject"))]
    if asks == "what":
        return [Piece({"": "que", "à": "à quoi", "de": "de quoi"}[frame.case], at("object"))]
    if asks == "whom":
        if clause.verb in DITRANSITIVE:
            return [Piece("à qui", at("recipient"))]
        return [Piece(f"{frame.case} qui".strip(), at("object"))]
    if asks == "where":
        word = "d'où" if clause.place and clause.place.relation == "from" and clause.verb != "pick_up" else "où"
        return [Piece(word, at("place"))]
    if asks == "when":
        return [Piece("quand", at("time"))]
    if asks == "how_many":
        words = "combien"
        if isinstance(clause.object, Entity):
            asked = replace(clause.object, counted=False, definite=False, owner=None, pronoun=False, relative=None,
                            number=1 if clause.object.concept in MASS else 2)
            words = f"combien {_group(asked, f'{path}.object', pick, 'de')}"
        return [Piece(f"{frame.case} {words}".strip(), at("object"))]
    return []


# --- the language interface -----------------------------------------------------------------


def _points_back(clause: Clause) -> bool:
    """Whether an object or owner of the clause is a pronoun, which would then precede its noun."""
    return any(
        isinstance(e, Entity) and (e.pronoun or (e.owner is not None and e.owner.pronoun))
        for e in (clause.object, clause.recipient)
    )


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
        mode = ""
        if link == "that":
            if main.negated and main.verb in ("think", "believe", "hope"):
                mode = "subjunctive"
            elif main.tense == "past":
                mode = "shifted"
        elif link in ("if", "because"):
            mode = link
        elif link == "when" and main.tense == "future":
            mode = "when"
        free = link in ("and", "but", None)
        inner = _clause(second, "second", pick, mode, order=free) if second is not None else []
        joint = [Piece(LINKS[link], "link")] if link else []
        if early:
            out = [*joint, *inner, Piece(",", "mark"), *out]
        else:
            comma = [Piece(",", "mark")] if link == "but" and out else []
            out = [*out, *comma, *joint, *inner]
    asks = main.asks or (second.asks if second else None)
    merged: list[Piece] = []
    for piece in out:
        if merged and merged[-1].slot == piece.slot and piece.slot != "mark":
            merged[-1] = Piece(f"{merged[-1].text} {piece.text}", piece.slot)
        else:
            merged.append(piece)
    merged.append(Piece("?" if asks else ".", "mark"))
    return merged


# y never starts a word that elides here; huit and onze do not elide
_ELISION = re.compile(
    r"\b(l|d|j|m|n|s|qu)(?:e|a(?<=\bla)) (?=[aâeéèêhiîoôuœAEÉIOU])(?!huit|onze)|\bsi (?=ils?\b)", re.IGNORECASE
)
_CONTRACTION = re.compile(r"\b(de|à) (les?)\b")
_CONTRACTED = {"de le": "du", "de les": "des", "à le": "au", "à les": "aux"}
_MARKS = re.compile(r" (?=[,.-])|,(?= ?[,.?])")


def _elide(match: re.Match[str]) -> str:
    return f"{match[1]}'" if match[1] else f"{match[0][0]}'"


def join(pieces: Sequence[Piece]) -> str:
    """The text of pieces: spaces, contractions, elision, capitals. Without a closing mark it stays open."""
    text = " ".join(piece.text for piece in pieces)
    text = _MARKS.sub("", text)
    text = _ELISION.sub(_elide, text)
    text = _CONTRACTION.sub(lambda m: _CONTRACTED[m[0]], text)
    return text[:1].upper() + text[1:]


def noun_phrase(entity: Entity, pick: Pick, use: str = "about") -> str:
    """An entity alone; `use` "about" puts "de" before it (parlez-moi *du médecin*), any other use nothing."""
    whole = _noun(entity, "who", "who", pick, "de" if use == "about" else "")
    text = join(whole)
    return text if entity.concept in NAMES and use != "about" else text[:1].lower() + text[1:]
