"""Tasks of the bundled encoder-decoders: translations between English and German, summaries in either."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from town.corpus import tasks
from town.corpus.meaning import Split

SHARES = {("translation", "en"): 0.4, ("translation", "de"): 0.4, ("summarization", "en"): 0.1,
          ("summarization", "de"): 0.1}  # fmt: skip
SENTENCES = {None: 0.7, 2: 0.1, 3: 0.1, 4: 0.05, 5: 0.05}  # of a text to translate; None: as in chats


def draw(rng: random.Random, split: Split, kind: str, language: str, **given: Any) -> tasks.Sample:
    """One task: a translation out of `language` into the other one, or a summary (`SHARES` names the four)."""
    if kind == "translation":
        given["target"] = "de" if language == "en" else "en"
    return tasks.sample(rng, split, kind, language, **given)


def stream(seed: int | str, split: Split) -> Iterator[tasks.Sample]:
    """Tasks of a split without end; the same seed gives the same tasks."""
    rng = random.Random(f"pairs:{seed}:{split}")
    while True:
        kind, language = rng.choices(tuple(SHARES), tuple(SHARES.values()))[0]
        given: dict[str, Any] = {}
        if kind == "translation":
            given["sentences"] = rng.choices(tuple(SENTENCES), tuple(SENTENCES.values()))[0]
        yield draw(rng, split, kind, language, **given)
