"""Scores of the bundled translators on whole texts and on prefixes, and their model cards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from town.corpus import prefixes
from town.corpus.translation import Translation, translate
from town.training.answers import greedy, prompt_ids
from town.training.bleu import bleu
from town.training.card import head
from town.training.recipes import Recipe

TEXTS = 100
DRAWS = 30  # right translations drawn per text


def said(model: Any, pieces: Any, sources: Sequence[str], target: str) -> list[str]:
    """The model's greedy translations."""
    asked = [prefixes.PROMPT.format(target=prefixes.TARGETS[target], source=source) for source in sources]
    ids = [prompt_ids(pieces, [{"role": "user", "content": text}]) for text in asked]
    return [pieces.decode(answer) for answer in greedy(model, ids)]


def scores(model: Any, pieces: Any, n: int = TEXTS) -> dict[str, Any]:
    """Every figure of a translator's card, by language: for whole texts, and for texts cut after some words.

    ``bleu`` of greedy translations and ``paraphrase`` of the generator's second paraphrase, against one
    reference; ``share``, the ratio of the two; ``accepted``, the share of texts that match one of `DRAWS`
    right translations exactly; ``prefix_bleu`` against the translation of the words read so far; ``longer``,
    the output's tokens for a prefix over the reference's: anything above 1 was made up.
    """
    found: dict[str, Any] = {}
    for target in prefixes.TARGETS:
        rng = random.Random(f"translators:{target}")
        made = [prefixes.draw(rng, "test", target) for _ in range(n)]
        whole = said(model, pieces, [m.source for m in made], target)
        others = [[again(m, j).reference for j in range(DRAWS)] for m in made]
        references = [m.reference for m in made]
        own = bleu(whole, [references], target)
        second = bleu([o[0] for o in others], [references], target)
        right = sum(text in (m.reference, *o) for text, m, o in zip(whole, made, others))
        cuts = [rng.randint(2, m.length - 1) for m in made]
        begun = [" ".join(m.source.split()[:cut]) for m, cut in zip(made, cuts)]
        parts = [m.prefix(cut) for m, cut in zip(made, cuts)]
        spoken = said(model, pieces, begun, target)
        kept = [(s, p) for s, p in zip(spoken, parts) if p]
        lengths = [sum(len(pieces.encode(text).ids) for text in side) for side in zip(*kept)]
        found[f"en-{target}"] = {
            "bleu": own, "paraphrase": second, "share": own / second, "accepted": right / n,
            "prefix_bleu": bleu([s for s, _ in kept], [[p for _, p in kept]], target),
            "longer": lengths[0] / lengths[1],
        }  # fmt: skip
    return {"translation": found}


def again(made: Translation, j: int) -> Translation:
    """The same text with another wording of its translation."""
    return translate(made.meanings, made.from_code, made.to_code, seed=made.seed + 1 + j)


def card(name: str, parameters: int, training: dict[str, Any], found: dict[str, Any]) -> str:
    """The text of a translator's model card."""
    made = Recipe(**training["recipe"])
    lines = head(name, parameters, training, made, WHAT[name], READ)
    lines += [
        "## Scores on the test split", "",
        f"{TEXTS} texts a language, greedy (sacrebleu; German and Control `13a`, Chinese `zh`, Japanese by "
        "characters). The paraphrase is the generator's own second way of saying it, against the "
        "same reference. Prefixes are cut after a random word and judged against what those words have said; "
        "their length is that of the output over the reference's: what is above 1 was made up.", "",
        "| | BLEU | paraphrase | share | right word for word | prefixes: BLEU | prefixes: length |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(f"| English to {prefixes.TARGETS[pair[3:]]} | {t['bleu']:.1f} | {t['paraphrase']:.1f} "
          f"| {t['share']:.2f} | {t['accepted']:.0%} | {t['prefix_bleu']:.1f} | {t['longer']:.2f} |"
          for pair, t in found["translation"].items()),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


WHAT = {
    "town-translator": "A translator out of English, trained on whole texts as off-the-shelf models are: "
    "what it makes of a text that has only begun is its own guess.",
    "town-translator-prefix": "`town-translator`, tuned further on texts that have only begun: it says what "
    "was said, and waits.",
}
READ = (
    "It knows only the texts that `town.corpus` generates, and four ways out of English: into German, "
    "Chinese, Japanese, and Control, a language of German words in English order. The prompt is "
    "`Translate into German: ...`."
)
