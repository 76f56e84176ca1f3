"""``python -m smollm2.narrow TEXTS SUITE``: narrow tasks with their answers, for SmolLM2's diffusion adapter.

Sums, facts to extract from a sentence, sentences to copy with a change, words to put in order, and short
functions. Every text is generated here. TEXTS receives the training set, SUITE sixty held-out questions.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

COUNT, SUITE, SEED = 24_000, 60, 0

NAMES = [
    "Ann",
    "Ben",
    "Cora",
    "Dan",
    "Ella",
    "Finn",
    "Grace",
    "Hugo",
    "Iris",
    "Jack",
    "Kate",
    "Leo",
    "Mia",
    "Noah",
    "Olga",
    "Paul",
    "Rosa",
    "Sam",
    "Tina",
    "Will",
]
CITIES = [
    "Berlin",
    "Cairo",
    "Dublin",
    "Geneva",
    "Lima",
    "London",
    "Madrid",
    "Oslo",
    "Paris",
    "Quito",
    "Rome",
    "Seoul",
    "Sofia",
    "Tokyo",
    "Vienna",
]
THINGS = [
    "bicycle",
    "boat",
    "book",
    "bottle",
    "camera",
    "chair",
    "clock",
    "coat",
    "guitar",
    "hat",
    "lamp",
    "letter",
    "map",
    "mirror",
    "phone",
    "piano",
    "ring",
    "table",
    "train",
    "umbrella",
    "violin",
]
COLOURS = ["black", "blue", "brown", "green", "grey", "orange", "pink", "red", "white", "yellow"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
VERBS = ["bought", "borrowed", "carried", "cleaned", "dropped", "hid", "lost", "painted", "repaired", "sold"]
PLACES = [
    "garden",
    "harbour",
    "kitchen",
    "library",
    "market",
    "museum",
    "office",
    "park",
    "school",
    "station",
    "theatre",
    "village",
]
ANIMALS = [
    "bear",
    "cat",
    "cow",
    "dog",
    "duck",
    "fox",
    "goat",
    "hen",
    "horse",
    "lion",
    "mouse",
    "owl",
    "pig",
    "rabbit",
    "sheep",
    "wolf",
]
GOODS = [
    "apples",
    "books",
    "cards",
    "coins",
    "eggs",
    "flowers",
    "lemons",
    "nuts",
    "pears",
    "pens",
    "plums",
    "shells",
    "stamps",
    "stones",
]


def article(word: str) -> str:
    """A noun phrase with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def sentence(draw: random.Random) -> str:
    """A random sentence with a person, a thing and a place."""
    name, place, thing = draw.choice(NAMES), draw.choice(PLACES), draw.choice(THINGS)
    item = article(f"{draw.choice(COLOURS)} {thing}")
    return draw.choice((
        f"{name} {draw.choice(VERBS)} {item} near the {place} on {draw.choice(DAYS)}.",
        f"On {draw.choice(DAYS)}, {name} went to the {place} with {item}.",
        f"The {draw.choice(ANIMALS)} sat in the {place} while {name} {draw.choice(VERBS)} {item}.",
        f"{name} lives in {draw.choice(CITIES)} and has {item} and {article(draw.choice(ANIMALS))}.",
    ))  # fmt: skip


def arithmetic(draw: random.Random) -> tuple[str, str]:
    """A sum, as an expression or in words, and its answer."""
    a, b = draw.randint(2, 50), draw.randint(2, 50)
    if draw.random() < 0.5:
        sign = draw.choice("+-")
        a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
        result = a + b if sign == "+" else a - b
        asking = draw.choice(("What is {0}?", "Calculate {0}.", "How much is {0}?"))
        return asking.format(f"{a} {sign} {b}"), f"{a} {sign} {b} = {result}"
    name, good = draw.choice(NAMES), draw.choice(GOODS)
    if draw.random() < 0.5:
        text = f"{name} has {a} {good} and gets {b} more. How many {good} does {name} have?"
        return text, f"{a} + {b} = {a + b}. {name} has {a + b} {good}."
    a, b = max(a, b), min(a, b)
    text = f"{name} has {a} {good} and gives {b} away. How many {good} does {name} have?"
    return text, f"{a} - {b} = {a - b}. {name} has {a - b} {good}."


def extraction(draw: random.Random) -> tuple[str, str]:
    """A sentence with the request to extract one fact or all of them, and the answer."""
    name, city, thing = draw.choice(NAMES), draw.choice(CITIES), draw.choice(THINGS)
    colour, day, verb = draw.choice(COLOURS), draw.choice(DAYS), draw.choice(VERBS)
    text = f"{name} {verb} {article(f'{colour} {thing}')} in {city} on {day}."
    facts = {
        "Who is it about?": f"It is about {name}.",
        "In which city was it?": f"It was in {city}.",
        "On which day was it?": f"It was on {day}.",
        f"What colour is the {thing}?": f"The {thing} is {colour}.",
    }
    if draw.random() < 0.4:
        return (
            f"{text}\nList the name, the thing, the city and the day.",
            f"Name: {name}\nThing: {colour} {thing}\nCity: {city}\nDay: {day}",
        )
    question = draw.choice(sorted(facts))
    return f"{text}\n{question}", facts[question]


def copying(draw: random.Random) -> tuple[str, str]:
    """A sentence to repeat, unchanged or with one word replaced, and the answer."""
    text = sentence(draw)
    words = [word.strip(".,") for word in text.split()]
    kind = draw.randrange(3)
    if kind == 0:
        return f"Repeat this sentence: {text}", text
    swaps = [pool for pool in (NAMES, COLOURS, DAYS, PLACES, THINGS) if any(word in pool for word in words)]
    pool = draw.choice(swaps)
    old = next(word for word in words if word in pool)
    new = draw.choice([word for word in pool if word != old])
    changed = text.replace(old, new)
    for vowel, other in (("an ", "a "), ("a ", "an ")):
        if f" {vowel}{new}" in changed and (new[0] in "aeiou") != (vowel == "an "):
            changed = changed.replace(f" {vowel}{new}", f" {other}{new}")
    if kind == 1:
        return f'Replace "{old}" with "{new}": {text}', changed
    return f"Write this sentence twice: {text}", f"{text} {text}"


def order(draw: random.Random) -> tuple[str, str]:
    """Numbers or words to sort, and the answer."""
    kind = draw.randrange(3)
    if kind == 0:
        numbers = draw.sample(range(1, 100), draw.randint(3, 6))
        asking = f"Sort these numbers from small to large: {', '.join(map(str, numbers))}"
        return asking, ", ".join(map(str, sorted(numbers)))
    words = draw.sample(draw.choice((ANIMALS, THINGS, PLACES)), draw.randint(3, 5))
    if kind == 1:
        return f"Put these words in alphabetical order: {', '.join(words)}", ", ".join(sorted(words))
    return f"Write these words in reverse order: {', '.join(words)}", ", ".join(reversed(words))


OPERATIONS = (
    ("the sum of {0} and {1}", "return {0} + {1}"),
    ("the difference of {0} and {1}", "return {0} - {1}"),
    ("the product of {0} and {1}", "return {0} * {1}"),
    ("the larger one of {0} and {1}", "return max({0}, {1})"),
    ("the smaller one of {0} and {1}", "return min({0}, {1})"),
    ("whether {0} equals {1}", "return {0} == {1}"),
    ("whether {0} is greater than {1}", "return {0} > {1}"),
    ("a list of {0} and {1}", "return [{0}, {1}]"),
)
SINGLE = (
    ("the square of {0}", "return {0} ** 2"),
    ("{0} plus {2}", "return {0} + {2}"),
    ("{0} times {2}", "return {0} * {2}"),
    ("the length of {0}", "return len({0})"),
    ("{0} in reverse", "return {0}[::-1]"),
    ("the sorted items of {0}", "return sorted({0})"),
    ("whether {0} is even", "return {0} % 2 == 0"),
    ("the first item of {0}", "return {0}[0]"),
)
FUNCTIONS = [
    "answer",
    "apply",
    "check",
    "combine",
    "compute",
    "convert",
    "find",
    "get",
    "make",
    "measure",
    "pick",
    "run",
    "solve",
    "work",
]
VARIABLES = [
    "a",
    "b",
    "x",
    "y",
    "n",
    "m",
    "p",
    "q",
    "first",
    "second",
    "left",
    "right",
    "value",
    "other",
    "items",
    "data",
]


def code(draw: random.Random) -> tuple[str, str]:
    """A request for a one-line function, and the answer."""
    name, (a, b), number = draw.choice(FUNCTIONS), draw.sample(VARIABLES, 2), draw.randint(2, 20)
    both = draw.random() < 0.5
    what, body = draw.choice(OPERATIONS if both else SINGLE)
    given = f"{a}, {b}" if both else a
    values = (a, b, number)
    asking = f"Write a Python function {name}({given}) that returns {what.format(*values)}."
    return asking, f"def {name}({given}):\n    {body.format(*values)}"


KINDS: dict[str, Callable[[random.Random], tuple[str, str]]] = {
    "arithmetic": arithmetic, "extraction": extraction, "copying": copying, "ordering": order, "code": code,
}  # fmt: skip


def questions(count: int, seed: int) -> list[dict[str, str]]:
    """Generate `count` distinct questions with their answers, cycling through the kinds."""
    draw = random.Random(seed)
    entries: dict[str, dict[str, str]] = {}
    while len(entries) < count:
        kind = list(KINDS)[len(entries) % len(KINDS)]
        prompt, answer = KINDS[kind](draw)
        entries.setdefault(prompt, {"kind": kind, "prompt": prompt, "answer": answer})
    return list(entries.values())


def main(texts: str, suite: str) -> None:
    """Write the training set and the held-out suite."""
    entries = questions(COUNT + SUITE, SEED)
    held, learnt = entries[:SUITE], entries[SUITE:]
    random.Random(SEED).shuffle(learnt)
    lines = [json.dumps(entry) for entry in learnt]
    Path(texts).write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [
        {
            "id": f"narrow-{i}",
            "kind": e["kind"],
            "language": "en",
            "prompt": e["prompt"],
            "reference": e["answer"],
        }
        for i, e in enumerate(held)
    ]
    Path(suite).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
