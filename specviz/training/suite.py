"""Writes ``data/suites``: prompts of the test split, every kind of work in every language, or mixed."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

from specviz.corpus import tasks
from specviz.corpus.meaning import CODES

FILE = Path(__file__).parents[2] / "data" / "suites" / "town.jsonl"
MULTI = FILE.with_name("multi-town.jsonl.gz")
EACH = 10  # prompts a kind
CELL = 80  # prompts of a kind in a language
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


def cell(kind: str, code: str, each: int = CELL) -> list[dict[str, object]]:
    """Different prompts of one kind of work in one language; no other cell has a part in their chance.

    Translations are into the language: from English as in Multi-SpecBench, into English from German as in
    Spec-Bench.
    """
    rng = random.Random(f"multi-town:{kind}:{code}")
    found: dict[tuple[str, ...], dict[str, object]] = {}
    while len(found) < each:
        if kind == "translation":
            source = "de" if code == "en" else "en"
            sample = tasks.sample(rng, "test", kind, source, target=code, references=REFERENCES - 1)
            more: dict[str, object] = {"from": source}
        else:
            sample = tasks.sample(rng, "test", kind, code, references=REFERENCES - 1)
            more = {"messages": sample.messages} if len(sample.turns) > 1 else {}
        users = tuple(user for user, _ in sample.turns)
        if users not in found:
            found[users] = {
                "id": f"{kind}-{code}-{len(found):02d}", "kind": kind, "language": code, "turns": list(users),
                **more, "references": [sample.turns[-1][1], *sample.references],
            }  # fmt: skip
    return list(found.values())


def lines(entries: list[dict[str, object]]) -> bytes:
    """Entries as a file has them."""
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries).encode()


def main() -> int:
    """Write the suites (two minutes: exercises of arithmetic that are in no other split are rare)."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_bytes(lines(entries()))
    cells = [entry for kind in tasks.KINDS for code in CODES for entry in cell(kind, code)]
    MULTI.write_bytes(gzip.compress(lines(cells), 9, mtime=0))
    for file in (FILE, MULTI):
        print(f"{file}: {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
