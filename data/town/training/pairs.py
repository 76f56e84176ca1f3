"""Scores of the bundled encoder-decoders, and their model cards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from town.corpus import pairs, translation
from town.corpus.tasks import Sample
from town.training.answers import answered_pairs, greedy, load, pair_ids
from town.training.bleu import bleu
from town.training.card import head
from town.training.recipes import Recipe

TEXTS = 150  # per task
DRAWS = 30  # alternative right answers
SHOWN = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25)  # positions ahead that a card lists


def drawn(kind: str, language: str, n: int, **given: Any) -> list[Sample]:
    """Tasks of the test split."""
    rng = random.Random(f"pairs:{kind}:{language}")
    return [pairs.draw(rng, "test", kind, language, **given) for _ in range(n)]


def said(model: Any, pieces: Any, samples: Sequence[Sample]) -> list[str]:
    """The model's greedy answers."""
    prompts = [pair_ids(pieces, s.turns[0][0]) for s in samples]
    return [pieces.decode(answer) for answer in greedy(model, prompts)]


def translations(model: Any, pieces: Any, language: str, n: int) -> dict[str, float]:
    """BLEU of greedy translations and of the generator's second paraphrase (`evaluate.translations`)."""
    samples = drawn("translation", language, n)
    target = str(samples[0].target)
    draws = [
        [translation.say(s.meaning, target, 100 * i + j) for i, s in enumerate(samples)] for j in range(DRAWS)
    ]
    spoken = said(model, pieces, samples)
    right = sum(text in known for text, known in zip(spoken, zip(*draws)))
    own, second = bleu(spoken, draws[:1], target), bleu(draws[1], draws[:1], target)
    return {"bleu": own, "paraphrase": second, "share": own / second, "accepted": right / n}


def summaries(model: Any, pieces: Any, language: str, n: int) -> dict[str, float]:
    """ROUGE-L (F, percent) of greedy summaries and of the generator's second paraphrase, one reference."""
    from specviz.metrics.rouge import Rouge

    rouge = Rouge()
    samples = drawn("summarization", language, n, references=DRAWS)
    spoken = said(model, pieces, samples)
    answers = [s.turns[0][1] for s in samples]
    others = [s.references[0] if s.references else s.turns[0][1] for s in samples]

    def mean(texts: Sequence[str]) -> float:
        return sum(rouge(a, t)["rougeL"] for a, t in zip(answers, texts)) / n

    right = sum(text in (s.turns[0][1], *s.references) for text, s in zip(spoken, samples))
    return {"rouge_l": mean(spoken), "paraphrase": mean(others), "accepted": right / n}


def by_exit(model: Any, pieces: Any, n: int) -> dict[str, list[float]]:
    """BLEU of greedy translations when every token exits after decoder layer 1, 2 ... the last."""
    from torch.nn import ModuleList

    blocks = list(model.decoder.block)
    found: dict[str, list[float]] = {}
    for language, name in (("en", "en-de"), ("de", "de-en")):
        found[name] = []
        for layers in range(1, len(blocks) + 1):
            model.decoder.block = ModuleList(blocks[:layers])
            found[name].append(translations(model, pieces, language, n)["bleu"])
    return found


def test_answers(target: Any, pieces: Any, n: int) -> Any:
    """A shard of the target's greedy answers to `n` test prompts of each task."""
    samples = [s for kind, language in pairs.SHARES for s in drawn(kind, language, n)]
    return answered_pairs(target, pieces, [s.turns[0][0] for s in samples])


def agreement(model: Any, shard: Any) -> float:
    """How often the model's most likely token is the answer's, given the tokens before it."""
    import torch

    from town.training.encoder_decoders import PAD, scores, sides, states
    from town.training.shards import batches

    hits = total = 0
    with torch.inference_mode():
        for tokens, answer in batches(shard, 4096, random.Random(0), pairs=True):
            prompts, answers = sides(tokens, answer)
            at = answers != PAD
            best = scores(model, states(model, prompts, answers)[-1][at]).argmax(-1)
            hits += int((best == answers[at]).sum())
            total += int(at.sum())
    return hits / total


def guesses(part: Any, target: Any, shard: Any, places: int) -> dict[str, list[float]]:
    """Accuracy of heads or slots at each distance, from every position of every answer that `target` gave.

    ``right``: the share of correct guesses 1, 2 ... positions ahead. ``accepted``: the share of starts, among
    those with that much text left, from which all guesses up to there are correct. The first guess of heads
    is the target's own. ``mean``: accepted guesses per start.
    """
    import torch

    from town.training.encoder_decoders import PAD, ahead, encoded, scores, sides, slotted, states
    from town.training.shards import batches

    right, accepted, total = (torch.zeros(places) for _ in range(3))
    with torch.inference_mode():
        for tokens, answer in batches(shard, 2048, random.Random(0), pairs=True):
            prompts, answers = sides(tokens, answer)
            starts = torch.cat((torch.full_like(answers[:, :1], PAD), answers), 1)
            wanted = ahead(starts, places)[:, :-1]  # [rows, start, place]
            if hasattr(part, "slot_embeddings"):
                source, mask = encoded(target, prompts)
                found = torch.full_like(wanted, PAD)
                for cut in range(answers.shape[1]):
                    cuts = torch.full((len(answers),), cut)
                    state, _ = slotted(target, part, source, mask, answers, cuts)
                    best = scores(target, state[:, cut + 1 : cut + 1 + places]).argmax(-1)
                    found[:, cut, : best.shape[1]] = best
            else:
                state = states(target, prompts, answers)[-1]
                best = scores(target, part(state.flatten(0, 1))).argmax(-1).view(*state.shape[:2], -1)
                found = torch.cat((scores(target, state).argmax(-1)[..., None], best), -1)
            real = wanted != PAD
            hit = (found == wanted) & real
            right += hit.sum((0, 1))
            accepted += (hit.cumprod(-1) * real).sum((0, 1))
            total += real.sum((0, 1))
    share = total.clamp(min=1)
    return {"right": (right / share).tolist(), "accepted": (accepted / share).tolist(), "of": total.tolist(),
            "mean": [float(accepted.sum() / total[0])]}  # fmt: skip


def scores(made: Recipe, out: Path, models: Path) -> dict[str, Any]:
    """Every figure of a card."""
    from tokenizers import Tokenizer

    reader = out if made.part == "whole" else models / str(made.target)
    pieces = Tokenizer.from_file(str(reader / "tokenizer.json"))
    if made.part != "whole":
        from specviz.models.heads import load_heads
        from specviz.models.slots import load_slots

        target = load(models / str(made.target))
        part, _ = (load_heads if made.part == "heads" else load_slots)(out)
        shard = test_answers(target, pieces, TEXTS // 3)
        return {"guesses": guesses(part, target, shard, made.ahead + (made.part == "heads"))}
    model = load(out)
    found: dict[str, Any] = {
        "translation": {
            "en-de": translations(model, pieces, "en", TEXTS),
            "de-en": translations(model, pieces, "de", TEXTS),
        },
        "summarization": {code: summaries(model, pieces, code, TEXTS) for code in ("en", "de")},
    }
    if made.target:
        shard = test_answers(load(models / made.target), pieces, TEXTS)
        found["agreement"] = {str(made.start): agreement(load(models / str(made.start)), shard),
                              made.name: agreement(model, shard)}  # fmt: skip
    if made.exits != "last":
        found["exits"] = {made.name: by_exit(model, pieces, TEXTS)}
        if made.start:
            found["exits"][made.start] = by_exit(load(models / made.start), pieces, TEXTS)
    return found


def card(name: str, parameters: int, training: dict[str, Any], found: dict[str, Any]) -> str:
    """The text of a model card of an encoder-decoder, heads or slots."""
    made = Recipe(**training["recipe"])
    lines = head(name, parameters, training, made, WHAT[name], KNOWS)
    if "translation" in found:
        lines += [
            "## Scores on the test split", "",
            f"{TEXTS} texts a task, greedy. The paraphrase is the generator's own second way of saying it, "
            "against the same reference (BLEU by sacrebleu, `13a`; ROUGE-L by rouge-score, F).", "",
            "| translation | BLEU | paraphrase | share | right word for word |",
            "| --- | ---: | ---: | ---: | ---: |",
            *(f"| {pair} | {t['bleu']:.1f} | {t['paraphrase']:.1f} | {t['share']:.2f} | {t['accepted']:.0%} |"
              for pair, t in found["translation"].items()), "",
            "| summary | ROUGE-L | paraphrase | right word for word |", "| --- | ---: | ---: | ---: |",
            *(f"| {code} | {t['rouge_l']:.1f} | {t['paraphrase']:.1f} | {t['accepted']:.0%} |"
              for code, t in found["summarization"].items()),
        ]  # fmt: skip
    if "agreement" in found:
        lines += [
            "", f"## As a draft of `{made.target}`", "",
            "How often its most likely token is the target's, on the target's greedy answers to test "
            "prompts.", "",
            "| | agreement |", "| --- | ---: |",
            *(f"| {model} | {share:.3f} |" for model, share in found["agreement"].items()),
        ]  # fmt: skip
    if "exits" in found:
        lines += [
            "", "## Leaving early", "",
            "BLEU of greedy translations when every token leaves behind that decoder layer.", "",
            f"| | {' | '.join(str(i + 1) for i in range(made.layers))} |",
            "| --- |" + " ---: |" * made.layers,
            *(f"| {model}, {pair} | {' | '.join(f'{b:.1f}' for b in row)} |"
              for model, rows in found["exits"].items() for pair, row in rows.items()),
        ]  # fmt: skip
    if "guesses" in found:
        g = found["guesses"]
        lines += [
            "## How far it sees", "",
            f"From every place of `{made.target}`'s greedy answers to test prompts. Right: this guess is the "
            "token that stands there. Accepted: and so are all before it, a verifying pass gets this far."
            + (" The first place is the target's own head." if made.part == "heads" else "")
            + f" Accepted in the mean: {g['mean'][0]:.2f} tokens.", "",
            "| places ahead | right | accepted |", "| ---: | ---: | ---: |",
            *(f"| {i} | {g['right'][i - 1]:.3f} | {g['accepted'][i - 1]:.3f} |"
              for i in SHOWN if i <= len(g["right"])),
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


WHAT = {
    "town-t5": "The target among the encoder-decoders: T5's architecture, of `town`'s small made-up world.",
    "town-t5-small": "The draft of `town-t5`: one decoder layer, the same tokenizer.",
    "town-t5-small-aligned": "`town-t5-small`, fine-tuned on the greedy answers of `town-t5` to training "
    "prompts (BiLD, section 3.5.1).",
    "town-t5-exit": "`town-t5`, fine-tuned on the mean of its first and last decoder layers' losses: the "
    "first layer can draft for the whole (BiLD, section 7.2.1).",
    "town-t5-calm": "`town-t5`, fine-tuned on the losses of all decoder layers, later ones weighing more: "
    "a token may leave behind any of them (CALM, Schuster et al. 2022).",
    "town-t5-heads": "Blockwise decoding heads on the frozen `town-t5` (Stern et al. 2018): head i scores "
    "the token i places ahead.",
    "town-t5-slots": "A parallel drafter on the frozen encoder of `town-t5` (Spec-Drafter, Xia et al. 2023): "
    "masked slots behind the written tokens, all said in one pass.",
}
KNOWS = (
    "It knows only the texts that `town.corpus.pairs` draws: translations between English and German, "
    "and summaries in either. The prompt is the user's turn, `Translate into German: ...`."
)
