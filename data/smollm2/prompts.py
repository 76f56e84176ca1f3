"""``python -m smollm2.prompts FOLDER OUT``: the prompts whose answers SmolLM2's drafters are trained on.

They are written from the templates in `topics` or made from free texts (`sources`). The same package versions
always give the same prompts.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from smollm2 import sources, topics

# Number of prompts per kind of work.
SHARES = {
    "conversation": 2200, "coding": 500, "qa": 1300, "math_reasoning": 1000, "translation": 800,
    "summarization": 700, "rag": 500,
}  # fmt: skip


def lines(text: str) -> list[str]:
    """Split a list into its entries: at semicolons if it has any, else at line ends."""
    return [entry.strip() for entry in text.strip().split(";" if ";" in text else "\n")]


def plural(word: str) -> str:
    """The plural of a regular noun."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2:-1] not in "aeiou" else word + "s"


def conversation(draw: random.Random, common: dict[str, list[str]]) -> str:
    """A prompt about a topic or a common word."""
    if draw.random() < 0.6:
        topic, other = draw.sample(lines(topics.TOPICS), 2)
        return draw.choice(lines(topics.ASKING)).format(topic=topic, other=other)
    kind = draw.choice(sorted(topics.WORDS))
    word = draw.choice(common[kind][:150])
    return draw.choice(topics.WORDS[kind]).format(word=word, words=plural(word))


def coding(draw: random.Random) -> str:
    """A request for a small program."""
    language, task = draw.choice(topics.LANGUAGES), draw.choice(lines(topics.TASKS))
    return draw.choice(lines(topics.CODE)).format(language=language, task=task)


def question(draw: random.Random, named: dict[str, list[str]]) -> str:
    """A question about a named person or thing."""
    kind = draw.choice(sorted(topics.NAMED))
    return draw.choice(topics.NAMED[kind]).format(word=draw.choice(named[kind]))


def arithmetic(draw: random.Random) -> str:
    """An arithmetic word problem."""
    name, friend = draw.sample(topics.NAMES.split(), 2)
    things, more = draw.sample(topics.THINGS.split(), 2)
    number = draw.randint
    return draw.choice(lines(topics.SUMS)).format(
        name=name, friend=friend, things=things, more=more, a=number(40, 150), b=number(5, 60),
        c=number(3, 20), d=number(4, 25), e=number(2, 9), f=number(2, 6), g=number(2, 12),
        h=20 * number(5, 40), k=2 * number(5, 20), p=5 * number(1, 12),
    )  # fmt: skip


def reading(draw: random.Random, entries: list[tuple[str, str]]) -> str:
    """A question that one of two or three passages answers, with the passages."""
    drawn = draw.sample(entries, draw.choice((1, 2, 3)))
    texts = "\n\n".join(f"{term}: {body}" for term, body in drawn)
    return draw.choice(topics.READING).format(texts=texts, term=draw.choice(drawn)[0])


def prompts(folder: Path) -> Iterator[dict[str, str]]:
    """Prompts of all kinds, shuffled so that the first thousand are a fair sample of the whole."""
    share = sources.fetch(folder)
    common, named = sources.nouns(share)
    entries, passages, german = sources.terms(share), sources.passages(share), sources.german(share)

    def of_text(templates: list[str], texts: list[str]) -> Callable[[random.Random], str]:
        return lambda draw: draw.choice(templates).format(text=draw.choice(texts))

    makers: dict[str, Callable[[random.Random], str]] = {
        "conversation": lambda draw: conversation(draw, common),
        "coding": coding,
        "qa": lambda draw: question(draw, named),
        "math_reasoning": arithmetic,
        "translation": of_text(topics.TRANSLATING, german),
        "summarization": of_text(topics.SUMMARISING, passages),
        "rag": lambda draw: reading(draw, entries),
    }
    made: dict[str, str] = {}
    for kind, number in SHARES.items():
        draw, end = random.Random(kind), len(made) + number
        while len(made) < end:
            made.setdefault(makers[kind](draw), kind)
    mixed = list(made.items())
    random.Random(0).shuffle(mixed)
    for number, (prompt, kind) in enumerate(mixed):
        yield {"id": f"{kind}-{number}", "kind": kind, "prompt": prompt}


def main() -> None:
    """Write the prompts to OUT."""
    folder, out = map(Path, sys.argv[1:])
    with out.open("w", encoding="utf-8") as file:
        for each in prompts(folder):
            file.write(json.dumps(each, ensure_ascii=False) + "\n")
    print("\n".join(f"| `{name}` {version} | {sources.PACKAGES[name]} |"
                    for name, version in sources.versions(folder).items()))  # fmt: skip


if __name__ == "__main__":
    main()
