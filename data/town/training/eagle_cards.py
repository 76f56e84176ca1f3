"""Scores of the bundled EAGLE drafters, language by language, and their model cards."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from town.corpus import tasks
from town.corpus.meaning import CODES
from town.training.card import head
from town.training.recipes import Recipe

TEXTS = 60  # per language
BETWEEN = "translations"
STEPS = 4
WHAT = {
    1: "An EAGLE drafter of generation 1 on the frozen `town` (Li et al. 2024): one layer that goes on from "
    "the target's last states, imitates them, and speaks by the target's head. EAGLE-2 drafts with it too.",
    3: "An EAGLE drafter of generation 3 on the frozen `town` (Li et al. 2025): one layer that reads a low, "
    "a middle and the last state of the target at once, and speaks by a head of its own.",
}
# Three-minute runs of the recipe on a shared machine: dev cross-entropy, tokens read.
TRIED = {1.0: (1.66, "0.83 M"), 0.1: (1.84, "1.18 M")}


def drawn(n: int = TEXTS) -> dict[str, list[tasks.Sample]]:
    """`n` monolingual chats per language, and `n` translations between any two; all of the test split."""
    found: dict[str, list[tasks.Sample]] = {code: [] for code in (*CODES, BETWEEN)}
    for sample in tasks.stream("evaluate:eagle", "test"):
        mine = found[BETWEEN if sample.target else sample.language]
        if len(mine) < n:
            mine.append(sample)
        if all(len(some) == n for some in found.values()):
            return found
    raise AssertionError("the stream has no end")


def scores(made: Recipe, out: Path, models: Path, device: str = "cpu", n: int = TEXTS) -> dict[str, Any]:
    """Every figure of a card: by language of the chats, how often the most likely token is the target's.

    ``right``: the share of correct tokens 1, 2, 3 and 4 steps ahead, given the text's own tokens; after the
    first step the drafter reads its own states. ``of``: the number of tokens scored.
    """
    from tokenizers import Tokenizer

    from specviz.models.eagle_loading import load_eagle
    from town.training.answers import load
    from town.training.eagle import ReadingLoss
    from town.training.shards import batches, pack

    reader = models / str(made.target)
    pieces = Tokenizer.from_file(str(reader / "tokenizer.json"))
    loss = ReadingLoss(load(reader).to(device), made.states)
    model = load_eagle(out)[0].to(device)
    found = {}
    for code, samples in drawn(n).items():
        hits, counted = [0] * STEPS, [0] * STEPS
        shard = pack(pieces, (sample.turns for sample in samples), made.context)
        for tokens, answer in batches(shard, made.micro, random.Random(0)):
            right, of = loss.right(model, tokens, answer, STEPS)
            hits = [a + b for a, b in zip(hits, right)]
            counted = [a + b for a, b in zip(counted, of)]
        found[code] = {"right": [a / b for a, b in zip(hits, counted)], "of": counted}
    return {"texts": n, "ahead": found}


def card(name: str, parameters: int, training: dict[str, Any], found: dict[str, Any]) -> str:
    """The text of a model card."""
    made = Recipe(**training["recipe"])
    if made.texts == "english":
        knows = (
            "It learnt from the English texts of `town.corpus` alone, though its target knows seven "
            f"languages. `{name.removesuffix('-en')}` is the same, trained on all of them."
        )
    else:
        knows = (
            "It learnt from texts of `town.corpus` in all seven languages of its target. "
            f"`{name}-en` is the same, trained on the English ones alone."
        )
    lines = [
        *head(name, parameters, training, made, WHAT[made.generation], knows),
        "The loss is the first step's cross-entropy against the target's own distribution: it cannot fall "
        "below the entropy of that.", "",
        "## How well it guesses", "",
        f"How often its likeliest token is `{made.target}`'s, 1 to {STEPS} steps on, by language: "
        f"{found['texts']} chats of the test split wholly in each, and as many translations between them. In "
        "every step the text's own tokens are given, behind the first the drafter's own states, as when it "
        "drafts. These are shares of steps, not of accepted tokens: a draft goes on from tokens of its own.",
        "",
        f"| chats in | {' | '.join(str(i + 1) for i in range(STEPS))} | tokens |",
        "| --- |" + " ---: |" * (STEPS + 1),
        *(f"| {code}{' (never read)' * (made.texts == 'english' and code != 'en')} | "
          f"{' | '.join(f'{share:.3f}' for share in row['right'])} | {row['of'][0]:,} |"
          for code, row in found["ahead"].items()), "",
        "## How it differs from the papers", "",
        *_departures(made),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _departures(made: Recipe) -> list[str]:
    from specviz.finetune.eagle_loss import WORDS

    rates = (
        f"- Muon at a peak rate of {made.matrix_rate:g} for matrices, Adam at {made.rate:g} for the rest."
    )
    if made.generation == 1:
        (ours, read), (theirs, less) = TRIED[WORDS], TRIED[0.1]
        return [
            f"- The words' cross-entropy weighs {WORDS:.1f} beside the states' smooth L1, EAGLE's "
            "0.1. In trial runs of three minutes each on a shared machine dev cross-entropy was "
            f"{ours:.2f} with {WORDS:.1f} ({read} tokens read) and {theirs:.2f} with 0.1 ({less}); they did "
            "not read equally much.",
            rates,
        ]
    layers = ", ".join(map(str, made.states))
    return [
        f"- The training-time test takes {made.ahead} steps, the paper's 7.",
        f"- It reads layers {layers} of `{made.target}`, the last behind the final norm; the authors' code "
        "would read 2, 4 and 5 of eight.",
        "- Its head has the target's whole vocabulary, and began as the target's head; each layer's states "
        "are first brought to one size.",
        "- It learns the target's distribution on the corpus' answers, not on the target's own.",
        rates,
    ]
