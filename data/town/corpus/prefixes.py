"""Training and test texts of the translators: whole English texts, and texts that have only begun.

The bundled translators translate English into four languages: German, Chinese, Japanese and the control
language (German words in English order).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from specviz.errors import ParameterError
from specviz.replays.translations import TARGETS
from town.corpus import world
from town.corpus.meaning import Sentence, Split
from town.corpus.translation import Translation, translate

TARGET_WEIGHTS = {"de": 0.27, "zh": 0.25, "ja": 0.28, "xx": 0.20}
LENGTHS = {1: 0.35, 2: 0.4, 3: 0.25}  # sentences of a text
PROMPT = "Translate into {target}: {source}"
KINDS = ("translations", "prefixes")
WHOLE = 0.3  # the share of whole texts among the prefixes
Turns = tuple[tuple[str, str], ...]


def draw(rng: random.Random, split: Split, target: str | None = None, sentences: int | None = None) -> Translation:
    """An English text of a split and its translation.

    Parameters
    ----------
    rng : random.Random
        The only source of randomness.
    split : "train", "dev" or "test"
    target : str, optional
        A key of `TARGETS`; drawn by weight when not given.
    sentences : int, optional
        How many; drawn by weight when not given.

    Raises
    ------
    ParameterError
        For a target that the translators do not support.
    """
    if target is not None and target not in TARGETS:
        raise ParameterError(f"unknown target {target!r}: choose one of {', '.join(TARGETS)}")
    code = target or rng.choices(tuple(TARGET_WEIGHTS), tuple(TARGET_WEIGHTS.values()))[0]
    n = sentences or rng.choices(tuple(LENGTHS), tuple(LENGTHS.values()))[0]
    meanings: list[Sentence] = [world.sentence(rng, split)] if n == 1 else world.story(rng, split, n)
    return translate(meanings, "en", code, seed=rng.getrandbits(40))


def turn(made: Translation, words: int | None = None) -> Turns:
    """The chat of one translation: of the whole text, or of its first `words` words."""
    prompt, answer = made.source, made.reference
    if words is not None:
        prompt, answer = " ".join(made.source.split()[:words]), made.prefix(words)
    return ((PROMPT.format(target=TARGETS[made.to_code], source=prompt), answer),)


def stream(seed: int | str, split: Split, kind: str) -> Iterator[Turns]:
    """Chats of a split without end; the same seed gives the same chats.

    ``translations`` are of whole texts, as off-the-shelf models learn them. Of ``prefixes``, seven in ten
    stop after a random number of words, and the answer is the translation of those words.
    """
    if kind not in KINDS:
        raise ParameterError(f"unknown kind {kind!r}: choose one of {', '.join(KINDS)}")
    rng = random.Random(f"{kind}:{seed}:{split}")
    while True:
        made = draw(rng, split)
        cut = kind == "prefixes" and rng.random() >= WHOLE
        yield turn(made, rng.randint(1, made.length - 1) if cut and made.length > 1 else None)
