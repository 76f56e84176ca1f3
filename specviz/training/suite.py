"""Writes ``data/suites/town.jsonl``: prompts of the test split, every kind of work in mixed languages."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from specviz.corpus import tasks
from specviz.corpus.meaning import CODES

FILE = Path(__file__).parents[2] / "data" / "suites" / "town.jsonl"
EACH = 10  # prompts a kind
REFERENCES = 8


def entries(each: int = EACH, seed: int = 0) -> list[dict[str, object]]:
    """The suite's lines; ``README.md`` beside the suite says what the fields mean."""
    rng = random.Random(f"suite:{seed}")
    found = []
    for kind in tasks.KINDS:
        for i in range(each):
            target = None
            code = CODES[i % len(CODES)]
            if kind == "translation" and i >= len(CODES):  # the pairs that the models are judged by
                code, target = "en", ("de", "ja", "de")[i % 3]
            sample = tasks.sample(rng, "test", kind, code, target=target, references=REFERENCES - 1)
            users = [user for user, _ in sample.turns]
            found.append({
                "id": f"{kind}-{i:02d}", "kind": kind, "language": sample.language, "target": sample.target,
                "turns": users, "prompt": users[0], "messages": sample.messages,
                "references": [sample.turns[-1][1], *sample.references],
            })  # fmt: skip
    return found


def main() -> int:
    """Write the suite."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with FILE.open("w", encoding="utf-8") as file:
        for entry in entries():
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    print(FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
