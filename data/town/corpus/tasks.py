"""Chats of seven kinds of work in seven languages, from meanings drawn by `world`.

The language modules put the meanings into words. A sample belongs to one split, and so does every clause,
calculation and programming task in it (:func:`town.corpus.meaning.split_of`); only the frames around them
("Translate into ...") are shared.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from specviz.errors import ParameterError
from town.corpus import language, world
from town.corpus.meaning import (
    CODES,
    NAMES,
    PEOPLE,
    STEADY,
    Clause,
    Entity,
    Language,
    Pick,
    Sentence,
    Split,
    key,
    once,
    random_pick,
    split_of,
)

KINDS = ("conversation", "translation", "summarization", "qa", "arithmetic", "rag", "code")
# How often `sample` draws each kind, each language and each translation pair. The models are judged by
# translations between English and German or Japanese; the other kinds need fewer examples.
KIND_WEIGHTS = dict(zip(KINDS, (0.06, 0.58, 0.07, 0.07, 0.10, 0.06, 0.06), strict=True))
LANGUAGE_WEIGHTS = {"en": 0.22, "de": 0.18, "ja": 0.18, "fr": 0.105, "es": 0.105, "zh": 0.105, "vi": 0.105}
PAIR_WEIGHTS = {(a, b): 0.12 / 30 for a in CODES for b in CODES if a != b and "en" not in (a, b)}
PAIR_WEIGHTS |= {("en", b): 0.035 for b in ("fr", "es", "zh", "vi")}
PAIR_WEIGHTS |= {(b, "en"): 0.025 for b in ("fr", "es", "zh", "vi")}
PAIR_WEIGHTS |= {("de", "en"): 0.05, ("ja", "en"): 0.05, ("en", "de"): 0.27, ("en", "ja"): 0.27}


@dataclass(frozen=True)
class Sample:
    """One chat of the corpus.

    Attributes
    ----------
    kind, language : str
        One of `KINDS`; the language of the user (of the source, in a translation).
    turns : tuple of (str, str)
        The user's texts and the assistant's answers.
    sentences : tuple
        Keys of every meaning expressed (:func:`town.corpus.meaning.key`); all of them are of one split.
    references : tuple of str
        Other right answers to the last turn, as many as were requested (and exist).
    target : str or None
        The language to translate into.
    meaning : tuple of Sentence
        The meaning of a translation, for scoring it against any number of paraphrases.
    bits : float
        Information in the free choices of the last answer (words, order, opening): -log2 of their
        probability. Its mean is the entropy of the answer once its content is fixed, or slightly more, since
        two choices occasionally give the same text.
    """

    kind: str
    language: str
    turns: tuple[tuple[str, str], ...]
    sentences: tuple[object, ...]
    references: tuple[str, ...] = ()
    target: str | None = None
    meaning: tuple[Sentence, ...] = ()
    bits: float = 0.0

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat without its last answer, which the model is to generate."""
        said = [{"role": r, "content": t} for turn in self.turns for r, t in zip(("user", "assistant"), turn)]
        return said[:-1]


@dataclass(frozen=True)
class _Draft:
    """An unfinished sample; `answer` generates the last turn again, with different words each time."""

    user: str
    answer: Callable[[random.Random], str]
    sentences: tuple[object, ...]
    before: tuple[tuple[str, str], ...] = ()
    meaning: tuple[Sentence, ...] = ()


class _Dice(random.Random):
    """A random generator that counts the bits of its weighted choices in `spent`, forks included."""

    def __init__(self, seed: int, spent: list[float]) -> None:
        super().__init__(seed)
        self.spent = spent

    def choices(self, population, weights=None, *, cum_weights=None, k=1):  # type: ignore[no-untyped-def]
        i = super().choices(range(len(population)), weights)[0]
        share = weights[i] / sum(weights) if weights else 1 / len(population)
        self.spent.append(-math.log2(share))
        return [population[i]]


class _Voice:
    """One language and a source of randomness: everything that one speaker says in a sample.

    A voice always uses the same word for a thing; with `echo`, another voice, it uses that voice's words.
    """

    def __init__(self, code: str, rng: random.Random, echo: _Voice | None = None) -> None:
        self.code = code
        seed = rng.getrandbits(64)  # its own source, so that nothing else depends on how much is said
        self.rng = _Dice(seed, rng.spent) if isinstance(rng, _Dice) else random.Random(seed)
        self.language: Language = language(code)
        own, kept = random_pick(self.rng), echo.pick if echo else None

        def pick(name, options, weights=None):  # type: ignore[no-untyped-def]
            return (kept if kept and name.startswith(STEADY) else own)(name, options, weights)

        self.pick: Pick = once(pick, only=STEADY)

    def sentence(self, meaning: Sentence) -> str:
        return self.language.join(self.language.pieces(meaning, self.pick))

    def clause(self, clause: Clause) -> str:
        return self.sentence(Sentence(clause))

    def text(self, meanings: Sequence[Sentence]) -> str:
        return self.paragraph([self.sentence(m) for m in meanings])

    def paragraph(self, sentences: Sequence[str]) -> str:
        return ("" if self.code in ("zh", "ja") else " ").join(t for s in sentences if (t := s.strip()))

    def phrase(self, name: str, **slots: object) -> str:
        """One of the phrase's variants: the first one most often, so that a model has a best guess."""
        options = self.language.PHRASES[name]
        return self.rng.choices(options, [3.0 / 2**i for i in range(len(options))])[0].format(**slots)


def _keys(meanings: Sequence[Sentence]) -> tuple[object, ...]:
    return tuple(key(c) for m in meanings for c in (m.main, m.second) if c is not None)


# --- the kinds -----------------------------------------------------------------------------


def _fact(
    rng: random.Random, meanings: Sequence[Sentence], text: Sequence[Sentence] | None = None
) -> tuple[Clause, Clause] | None:
    """A question about one of the main clauses and its only answer in the `text` (default: `meanings`).

    Yes-or-no questions are rare.
    """
    clauses = [c for s in text or meanings for c in (s.main, s.second) if c]
    for meaning in rng.sample(meanings, len(meanings)):
        found = world.question(rng, meaning.main)
        if not found or (found[0].asks == "yes_no" and rng.random() >= 0.2):
            continue
        if sum(world.may_answer(found[0], c) for c in clauses) == 1:
            return found
    return None


def _conversation(rng: random.Random, split: Split, code: str) -> _Draft:
    """A request to tell about somebody, then a question about the answer."""
    while True:
        story = world.story(rng, split, rng.choice((2, 2, 3)))
        who = story[0].main.subject
        if not isinstance(who, Entity) or who.pronoun:
            continue
        who = replace(who, definite=True)  # the question has introduced them
        story[0] = replace(story[0], main=replace(story[0].main, subject=who))
        fact = _fact(rng, story)
        if fact:
            break
    voice = _Voice(code, rng)
    first = voice.phrase("tell_about", who=voice.language.noun_phrase(who, voice.pick, "about"))
    told = voice.paragraph([voice.phrase("tell_opening"), voice.text(story)])
    second = voice.phrase("ask_more", question=voice.clause(fact[0]))
    return _Draft(second, lambda r: _Voice(code, r, voice).clause(fact[1]), (*_keys(story), *map(key, fact)), ((first, told),))


def _translation(rng: random.Random, split: Split, code: str, target: str, sentences: int | None) -> _Draft:
    n = sentences or rng.choices((1, 2, 3), (16, 3, 1))[0]
    if n > 1:
        meanings = world.story(rng, split, n)
    else:
        meanings = [world.sentence(rng, split, question=rng.random() < 0.1)]
    voice = _Voice(code, rng)
    user = voice.phrase("translate", language=voice.language.LANGUAGES[target], text=voice.text(meanings))
    return _Draft(user, lambda r: _Voice(target, r).text(meanings), _keys(meanings), meaning=tuple(meanings))


def main_event(story: Sequence[Sentence]) -> Clause:
    """The part of a story that a summary keeps: who did what in its first sentence.

    Time, place (unless the verb requires it), manner, relative clauses and the second clause are left out.
    """
    first = story[0].main
    needs_place = ("live", "be_at", "go", "travel", "arrive", "come_back", "run")
    short = {s: replace(v, relative=None) for s in ("subject", "object") if isinstance(v := getattr(first, s), Entity)}
    place = first.place if first.verb in needs_place else None
    return replace(first, time=None, adverb=None, front=None, place=place, **short)  # type: ignore[arg-type]


def _summarization(rng: random.Random, split: Split, code: str) -> _Draft:
    """A story of three to five sentences, and its main event in one sentence."""
    while True:
        # A story's first sentence depends on the seed alone, not on how many follow: try it before the rest.
        seed = rng.getrandbits(64)
        if split_of(main_event(world.story(random.Random(seed), split, 1))) != split:
            continue
        story = world.story(random.Random(seed), split, rng.choice((3, 3, 4, 5)))
        event = main_event(story)
        if split_of(event) == split:
            break
    voice = _Voice(code, rng)
    user = voice.phrase("summarize", text=voice.text(story))

    def answer(r: random.Random) -> str:
        said = _Voice(code, r, voice)
        return said.paragraph([said.phrase("summary_opening"), said.clause(event)])

    return _Draft(user, answer, (*_keys(story), key(event)))


def _qa(rng: random.Random, split: Split, code: str) -> _Draft:
    """A text, a question about one of its facts, and the sentence that answers it."""
    while True:
        story = world.story(rng, split, rng.choice((2, 3, 3, 4)))
        fact = _fact(rng, story)
        if fact:
            break
    voice = _Voice(code, rng)
    user = voice.phrase("answer_question", text=voice.text(story), question=voice.clause(fact[0]))
    return _Draft(user, lambda r: _Voice(code, r, voice).clause(fact[1]), (*_keys(story), *map(key, fact)))


def _rag(rng: random.Random, split: Split, code: str) -> _Draft:
    """Three numbered passages about different people; the answer names the passage that contains it."""
    passages: list[list[Sentence]] = []
    leads: set[str] = set()
    while len(passages) < 3:
        story = world.story(rng, split, rng.choice((1, 1, 2)))
        subject = story[0].main.subject
        if isinstance(subject, Entity) and subject.concept not in leads:
            leads.add(subject.concept)
            passages.append(story)
    numbers = rng.sample(range(3), 3)
    fact, number = None, 0
    for number in numbers:
        fact = _fact(rng, passages[number], [s for p in passages for s in p])
        if fact:
            break
    if fact is None:
        return _rag(rng, split, code)
    found = fact
    voice = _Voice(code, rng)
    frame = rng.choice(voice.language.PHRASES["passage"])  # the same for all three
    text = "\n".join(frame.format(number=i + 1, text=voice.text(p)) for i, p in enumerate(passages))
    user = voice.phrase("use_passages", passages=text, question=voice.clause(found[0]))

    def answer(r: random.Random) -> str:
        said = _Voice(code, r, voice)
        return said.phrase("from_passage", number=number + 1, answer=said.clause(found[1]))

    return _Draft(user, answer, (*(k for p in passages for k in _keys(p)), *map(key, found)))


_COUNTED = (
    "apple", "egg", "book", "ticket", "picture", "flower", "cup", "ball", "box", "key", "bag", "chair", "lamp",
    "clock", "phone", "umbrella", "coat", "camera", "map", "letter",
)  # fmt: skip
_OWNERS = (*NAMES, "woman", "man", "teacher", "student", "farmer", "painter", "doctor", "cook")
_MORE, _LESS = ("buy", "find"), ("lose", "sell", "give")


@lru_cache(maxsize=100_000)
def _of(split: Split, meaning: object) -> bool:
    return split_of(meaning) == split


def _owned(who: str, what: str, number: int, **rest: Any) -> Clause:
    return Clause("have", Entity(who), _count(what, number), **rest)


def _count(concept: str, number: int) -> Entity:
    return Entity(concept, number, counted=True, definite=False)


@lru_cache(maxsize=1000)
def _calculations(split: Split, count: int) -> tuple[tuple[str, int, int], ...]:
    """Every (sign, count, amount) of the split whose result is neither too small nor too large."""
    steps = [("+", count, n) for n in range(2, 46) if count + n <= 199]
    steps += [("-", count, n) for n in range(2, min(45, count - 2) + 1)]
    return tuple(s for s in steps if split_of(s) == split)


def _steps(
    rng: random.Random, split: Split, who: str, what: str, count: int, left: int, others: tuple[str, ...]
) -> list[tuple[tuple[str, int, int], Clause]] | None:
    """`left` calculations from `count` on with the clauses that express them; None if the split has none."""
    if not left:
        return [] if _of(split, _owned(who, what, count, tense="present")) else None
    # Small amounts come more often: an exponential race draws without replacement by weight.
    options = sorted(_calculations(split, count), key=lambda s: rng.expovariate(3.0 if s[2] <= 12 else 1.0))
    for step in options[:40]:
        sign, _, amount = step
        clauses = [
            Clause(verb, Entity(who, pronoun=pronoun), _count(what, amount), Entity(name) if name else None)
            for verb in (_MORE if sign == "+" else _LESS)
            for name in (rng.sample(others, 2) if verb == "give" else (None,))
            for pronoun in (True, False)
        ]
        clauses = [c for c in clauses if _of(split, c)]
        if clauses:
            after = count + amount if sign == "+" else count - amount
            rest = _steps(rng, split, who, what, after, left - 1, others)
            if rest is not None:
                return [(step, rng.choice(clauses)), *rest]
    return None


def _arithmetic(rng: random.Random, split: Split, code: str) -> _Draft:
    """Somebody has some, gets some, gives some away: how many now? One calculation per line of the answer."""
    sexes = {**NAMES, **PEOPLE}
    while True:
        who, what = rng.choice(_OWNERS), rng.choice(_COUNTED)
        count = rng.choice((rng.randint(3, 20), rng.randint(10, 60), rng.randint(20, 99)))
        start = _owned(who, what, count)
        if not _of(split, start):
            continue
        asks = _owned(who, what, 2, tense="present", time=rng.choice(("now", None)), asks="how_many")
        if _of(split, asks):
            break
    others = [n for n in NAMES if NAMES[n] != sexes[who]]  # so that the pronoun is clear in every language
    steps = _steps(rng, split, who, what, count, rng.choice((2, 2, 3)), tuple(others))
    if steps is None:
        return _arithmetic(rng, split, code)
    clauses = [start, *(clause for _, clause in steps)]
    equations = []
    for (sign, before, amount), _ in steps:
        count = before + amount if sign == "+" else before - amount
        equations.append(f"{before} {sign} {amount} = {count}")
    final = _owned(who, what, count, tense="present")
    voice = _Voice(code, rng)
    problem = voice.paragraph([*(voice.clause(c) for c in clauses), voice.clause(asks)])
    user = voice.phrase("solve", problem=problem)

    def answer(r: random.Random) -> str:
        said = _Voice(code, r, voice)
        lines = [said.phrase("step_next" if i else "step_first", equation=e) for i, e in enumerate(equations)]
        return said.paragraph([*lines, said.phrase("conclusion", sentence=said.clause(final))])

    keys = (*map(key, clauses), key(asks), key(final), *(key(step) for step, _ in steps))
    return _Draft(user, answer, keys)


# --- code ----------------------------------------------------------------------------------

# Right ways to write each function: {f} its name, {a} the list, {x} an element, {r} the result, {k} a number.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "sum": (
        "return sum({a})",
        "{r} = 0\nfor {x} in {a}:\n    {r} += {x}\nreturn {r}",
    ),
    "product": (
        "{r} = 1\nfor {x} in {a}:\n    {r} *= {x}\nreturn {r}",
        "{r} = 1\nfor {x} in {a}:\n    {r} = {r} * {x}\nreturn {r}",
    ),
    "maximum": (
        "return max({a})",
        "{r} = {a}[0]\nfor {x} in {a}:\n    if {x} > {r}:\n        {r} = {x}\nreturn {r}",
    ),
    "minimum": (
        "return min({a})",
        "{r} = {a}[0]\nfor {x} in {a}:\n    if {x} < {r}:\n        {r} = {x}\nreturn {r}",
    ),
    "average": (
        "return sum({a}) / len({a})",
        "{r} = 0\nfor {x} in {a}:\n    {r} += {x}\nreturn {r} / len({a})",
    ),
    "count_above": (
        "{r} = 0\nfor {x} in {a}:\n    if {x} > {k}:\n        {r} += 1\nreturn {r}",
        "return len([{x} for {x} in {a} if {x} > {k}])",
    ),
    "keep_even": (
        "return [{x} for {x} in {a} if {x} % 2 == 0]",
        "{r} = []\nfor {x} in {a}:\n    if {x} % 2 == 0:\n        {r}.append({x})\nreturn {r}",
    ),
    "keep_below": (
        "return [{x} for {x} in {a} if {x} < {k}]",
        "{r} = []\nfor {x} in {a}:\n    if {x} < {k}:\n        {r}.append({x})\nreturn {r}",
    ),
    "scale": (
        "return [{x} * {k} for {x} in {a}]",
        "{r} = []\nfor {x} in {a}:\n    {r}.append({x} * {k})\nreturn {r}",
    ),
    "shift": (
        "return [{x} + {k} for {x} in {a}]",
        "{r} = []\nfor {x} in {a}:\n    {r}.append({x} + {k})\nreturn {r}",
    ),
    "reverse": (
        "return {a}[::-1]",
        "{r} = []\nfor {x} in {a}:\n    {r}.insert(0, {x})\nreturn {r}",
    ),
    "contains": (
        "return {k} in {a}",
        "for {x} in {a}:\n    if {x} == {k}:\n        return True\nreturn False",
    ),
}
_STEMS: dict[str, tuple[str, ...]] = {
    "sum": ("total", "sum_all", "add_up"), "product": ("product", "multiply_all", "multiply"),
    "maximum": ("largest", "maximum", "biggest"), "minimum": ("smallest", "minimum", "least"),
    "average": ("average", "mean", "mean_value"), "count_above": ("count_above", "how_many", "count_big"),
    "keep_even": ("evens", "keep_even", "only_even"), "keep_below": ("below", "keep_small", "less_than"),
    "scale": ("scale", "multiply_by", "stretch"), "shift": ("shift", "increase", "add_to"),
    "reverse": ("reverse", "backwards", "flip"), "contains": ("contains", "has_number", "includes"),
}  # fmt: skip
_SHAPES = ("{}", "{}_list", "get_{}", "{}_of", "my_{}", "find_{}")
_LISTS = {
    "numbers": "number", "values": "value", "items": "item", "xs": "x", "data": "entry", "scores": "score",
    "prices": "price", "ages": "age", "points": "point", "weights": "weight",
}  # fmt: skip


def _code(rng: random.Random, split: Split, code: str) -> _Draft:
    """A short Python function, in one of a few right ways."""
    while True:
        task = rng.choice(tuple(PROGRAMS))
        name = rng.choice(_SHAPES).format(rng.choice(_STEMS[task]))
        a = rng.choice(tuple(_LISTS))
        k = rng.randint(2, 50) if "{k}" in PROGRAMS[task][0] else None
        meaning = (task, name, a, k)
        if split_of(meaning) == split:
            break
    voice = _Voice(code, rng)
    task_said = rng.choice(voice.language.CODE_TASKS[task]).format(name=name, a=a, k=k)
    user = voice.phrase("write_code", task=task_said)

    def answer(r: random.Random) -> str:
        said = _Voice(code, r)
        body = r.choices(PROGRAMS[task], (3, 1))[0]
        body = body.format(a=a, k=k, x=_LISTS[a], r="total" if task in ("sum", "average") else "result")
        lines = "\n".join("    " + line for line in body.split("\n"))
        return f"{said.phrase('code_opening')}\ndef {name}({a}):\n{lines}"

    return _Draft(user, answer, (key(meaning),))


_MAKERS: dict[str, Callable[[random.Random, Split, str], _Draft]] = {
    "conversation": _conversation, "summarization": _summarization, "qa": _qa, "arithmetic": _arithmetic,
    "rag": _rag, "code": _code,
}  # fmt: skip

# --- public functions -------------------------------------------------------------------


def sample(
    rng: random.Random,
    split: Split,
    kind: str | None = None,
    language: str | None = None,
    *,
    target: str | None = None,
    sentences: int | None = None,
    references: int = 0,
) -> Sample:
    """One chat of a split.

    Parameters
    ----------
    rng : random.Random
        The only source of randomness.
    split : "train", "dev" or "test"
    kind, language, target : str, optional
        Drawn with the weights above when not given; `target` is for translations only.
    sentences : int, optional
        Length of the text to translate; mostly one when not given.
    references : int
        How many other right answers to the last turn to give (fewer if there are fewer).

    Raises
    ------
    ParameterError
        For an unknown split, kind or language, and for a translation into its own language.
    """
    for name, value, options in (("split", split, ("train", "dev", "test")), ("kind", kind, KINDS),
                                 ("language", language, CODES), ("target", target, CODES)):  # fmt: skip
        if (value is not None and value not in options) or (name == "split" and value is None):
            raise ParameterError(f"unknown {name} {value!r}: choose one of {', '.join(options)}")
    kind = kind or rng.choices(KINDS, tuple(KIND_WEIGHTS.values()))[0]
    if kind == "translation":
        pairs = [p for p in PAIR_WEIGHTS if p[0] == (language or p[0]) and p[1] == (target or p[1])]
        if not pairs:
            raise ParameterError(f"cannot translate from {language} into {target}: choose two different languages")
        language, target = rng.choices(pairs, [PAIR_WEIGHTS[p] for p in pairs])[0]
        made = _translation(rng, split, language, target, sentences)
    else:
        language = language or rng.choices(tuple(LANGUAGE_WEIGHTS), tuple(LANGUAGE_WEIGHTS.values()))[0]
        made = _MAKERS[kind](rng, split, language)
        target = None
    spent: list[float] = []
    answer = made.answer(_Dice(rng.getrandbits(64), spent))
    others: dict[str, None] = {}
    again = random.Random(rng.getrandbits(64))  # its own source, so that `references` changes no later sample
    for _ in range(4 * references):
        if len(others) < references and (other := made.answer(again)) != answer:
            others[other] = None
    turns = (*made.before, (made.user, answer))
    return Sample(kind, language, turns, made.sentences, tuple(others), target, made.meaning, sum(spent))


def stream(seed: int | str, split: Split) -> Iterator[Sample]:
    """Chats of a split without end; the same seed gives the same chats."""
    rng = random.Random(f"{seed}:{split}")
    while True:
        yield sample(rng, split)


def prompts(n: int, seed: int = 0, split: Split = "test") -> Iterator[list[dict[str, str]]]:
    """`n` prompts of a split, evenly over kinds and languages, as chats that end with the user's turn."""
    rng = random.Random(f"{seed}:prompts")
    for i in range(n):
        kind, code = KINDS[i % len(KINDS)], CODES[(i // len(KINDS) + i) % len(CODES)]
        yield sample(rng, split, kind, code).messages
