"""Write ``data/suites``: the users' prompts, and under ``frozen`` those of benches, replays and the audit.

The output is deterministic. Frozen suites come from the test split, except ``practice``, which is of the dev
split.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from specviz.measure.pairs import SENTENCES, TASKS
from specviz.replays.canvases import SHOTS
from specviz.replays.translations import TARGETS
from town.corpus import pairs, prefixes, tasks
from town.corpus.meaning import CODES
from town.corpus.translation import Translation

FILE = Path(__file__).parents[1] / "suites" / "town.jsonl"
LESSONS = FILE.with_name("walkthroughs.jsonl")
FROZEN = FILE.parent / "frozen"
MULTI = FILE.with_name("multi-town.jsonl.gz")
EACH = 10  # prompts per kind
CELL = 80  # prompts per kind and language
REFERENCES = 8


def entries(each: int = EACH, seed: int = 0) -> list[dict[str, object]]:
    """The suite's lines; the ``README.md`` next to the suite explains the fields."""
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
    """Distinct prompts of one kind of work in one language, drawn independently of all other cells.

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


def chats(n: int, split: Any = "test") -> Iterator[dict[str, object]]:
    """Chats of every kind of work in turn, for the audit (test split) and for methods to learn from (dev)."""
    for i, chat in enumerate(tasks.prompts(n, split=split)):
        yield {"id": f"{split}-{i:04d}", "messages": chat}


def paired(n: int) -> Iterator[dict[str, object]]:
    """Translations and summaries for encoder-decoders, with their right answers."""
    for task, (kind, language, into) in TASKS.items():
        for i in range(n):
            rng = random.Random(f"pairs:{task}:0:{i}")
            given = {"sentences": rng.choice(SENTENCES)} if kind == "translation" else {}
            made = pairs.draw(rng, "test", kind, language, references=REFERENCES - 1, **given)
            ((asked, answer),) = made.turns
            right = list(dict.fromkeys((answer, *made.references)))
            yield {"task": task, "id": f"{task}-{i:03d}", "kind": kind, "language": into, "prompt": asked,
                   "reference": right}  # fmt: skip


def streamed(n: int) -> Iterator[dict[str, object]]:
    """English texts to translate as they arrive; text `i` is the same for every target language."""
    for code in TARGETS:
        for i in range(n):
            made = prefixes.draw(random.Random(f"streams:0:{i}"), "test", code)
            yield {"id": f"{code}-{i:02d}", "source": made.source, "from": made.from_code, "to": code,
                   "references": references(made)}  # fmt: skip


def references(made: Translation) -> list[str]:
    """Right translations of a whole text, all different, the best one first."""
    gap = "" if made.to_code in ("zh", "ja") else " "
    first = [sentence[0] for sentence in made.accepted]
    joined = (
        gap.join(own or other for own, other in zip(sentences, first))
        for sentences in zip_longest(*made.accepted)
    )
    return list(dict.fromkeys(joined))[:REFERENCES]


def written(n: int) -> Iterator[dict[str, object]]:
    """Prompts for diffusion models, each preceded by examples of the dev split.

    First a mix that alternates between translations from English into German and the other six kinds in
    turn; then equally many of each kind.
    """
    others = [kind for kind in tasks.KINDS if kind != "translation"]
    for only in (None, *tasks.KINDS):
        for i in range(n):
            rng = random.Random(f"diffusion:{i}")
            given: dict[str, Any] = {}
            kind = only
            if only is None:
                given = {} if i % 2 else {"language": "en", "target": "de"}
                kind = others[i // 2 % len(others)] if i % 2 else "translation"
            made = tasks.sample(rng, "test", kind, **given)
            given |= {"language": made.language}
            shots = [list(tasks.sample(rng, "dev", kind, **given).turns[-1]) for _ in range(SHOTS)]
            yield {"group": only or "mix", "id": f"{kind}-{i:03d}", "kind": kind,
                   "language": made.target or made.language, "messages": made.messages, "shots": shots,
                   "reference": [made.turns[-1][1]]}  # fmt: skip


def walkthroughs() -> Iterator[dict[str, object]]:
    """The prompts of walkthroughs 07 and 11: chats in three languages, long texts, translations."""

    def entry(group: str, sample: tasks.Sample, i: int) -> dict[str, object]:
        return {"id": f"{group}-{i:02d}", "kind": sample.kind,
                "language": sample.target or sample.language, "messages": sample.messages}  # fmt: skip

    for language in ("en", "de", "ja"):
        rng = random.Random(f"table 3 {language}")
        for i, kind in enumerate(tasks.KINDS * 2):
            origin, to = language, {}
            if kind == "translation":
                origin, to = "de" if language == "en" else "en", {"target": language}
            yield entry(f"kinds-{language}", tasks.sample(rng, "test", kind, origin, **to), i)
    for language in ("de", "ja"):
        rng = random.Random(f"long {language}")
        for i in range(8):
            made = tasks.sample(rng, "test", "translation", "en", target=language, sentences=6)
            yield entry(f"long-{language}", made, i)
    rng = random.Random("evaluate:translation:de")
    for i in range(16):
        made = tasks.sample(rng, "test", "translation", language="en", target="de")
        yield entry("translations", made, i)


WRITERS: dict[str, Callable[[], Iterator[dict[str, object]]]] = {
    "audit": lambda: chats(2000),
    "practice": lambda: chats(300, "dev"),
    "pairs": lambda: paired(400),
    "streams": lambda: streamed(200),
    "canvases": lambda: written(200),
}


def lines(entries: list[dict[str, object]]) -> bytes:
    """Entries as the bytes of a JSON Lines file."""
    return "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries).encode()


def main() -> int:
    """Write the suites (takes minutes: arithmetic exercises that are in no other split are rare)."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_bytes(lines(entries()))
    cells = [entry for kind in tasks.KINDS for code in CODES for entry in cell(kind, code)]
    MULTI.write_bytes(gzip.compress(lines(cells), 9, mtime=0))
    LESSONS.write_bytes(lines(list(walkthroughs())))
    FROZEN.mkdir(exist_ok=True)
    files = [FROZEN / f"{name}.jsonl.gz" for name in WRITERS]
    for file, write in zip(files, WRITERS.values()):
        file.write_bytes(gzip.compress(lines(list(write())), 9, mtime=0))
    for file in (FILE, MULTI, LESSONS, *files):
        print(f"{file}: {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
