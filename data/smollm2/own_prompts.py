"""``python -m smollm2.own_prompts OUT``: prompts that SmolLM2 writes itself, across all it was tuned for.

A chat-tuned model that is given the start of a user's turn continues it as a user would (Magpie, Xu et
al., arXiv 2406.08464), so the drafters see more than the topics of `topics`. Most turns start with a word or
two, so that every kind of work comes up. Raw continuations are saved next to OUT; an interrupted run resumes.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import specviz as sv
from specviz.finetune.answers import AnswerOptions, Answers, answer

if TYPE_CHECKING:
    from specviz.models.additions import Target

NUMBER, TOKENS, TEMPERATURE, SEED = 9_000, 120, 0.8, 5
# How turns start, and with what weight.
BEGINNINGS = {
    "": 8, "Write": 2, "Explain": 1, "Describe": 1, "What": 3, "Who": 1, "When": 1, "where": 1, "who": 1,
    "how": 1, "what": 1, "How": 2, "Why": 2, "Is": 1, "If": 1, "Imagine": 1, "Compose": 1, "Give": 1,
    "List": 1, "My": 1, "I": 1, "We": 1, "Compare": 1, "A": 2, "There are": 1, "Tom": 1, "Maria": 1,
    "In": 1, "The": 1, "Rewrite": 1, "Write a Python function": 1,
    "Summarize this text in two sentences.\n\n": 2, "Summarize: ": 1,
    "Read the text and answer.\n\nText:": 1, "Let's": 1, "Pretend": 1, "Suppose": 1, "Which": 1,
}  # fmt: skip


def write(target: Target, number: int, out: Path) -> Answers:
    """Let the target continue the starts of turns, in batches, and save its continuations to a file."""
    opened = target.encode([{"role": "user", "content": "\N{BULLET}"}])
    turn = opened[: opened.index(target.text.plain("\N{BULLET}")[0])]
    draw = random.Random(1)
    drawn = draw.choices(list(BEGINNINGS), list(BEGINNINGS.values()), k=number)
    begun = [[*turn, *target.text.plain(beginning)] for beginning in drawn]
    return answer(target, begun, out, AnswerOptions(TOKENS, (TEMPERATURE,), rows=96, seed=SEED), drawn)


def prompts(target: Target, written: Answers) -> Iterator[dict[str, str]]:
    """Continuations that ended, have three words or more, are mostly ASCII, and are not duplicates."""
    seen: set[str] = set()
    for row in sorted(written.rows, key=lambda row: row["number"]):
        *turn, last = row["answer"]
        text = (row["kind"] + target.decode(turn)).strip()
        plain = sum(letter.isascii() for letter in text) >= 0.97 * len(text)
        if last in target.eos and len(text.split()) >= 3 and plain and "<|" not in text and text not in seen:
            seen.add(text)
            yield {"id": f"own-{row['number']}", "kind": "own", "prompt": text}


def main() -> None:
    """Write the prompts to OUT."""
    out = Path(sys.argv[1])
    target = sv.load("smollm2", dtype="bfloat16", invariant=False)
    written = write(target, NUMBER, out.with_suffix(".written"))
    with out.open("w", encoding="utf-8") as file:
        for each in prompts(target, written):
            file.write(json.dumps(each, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
