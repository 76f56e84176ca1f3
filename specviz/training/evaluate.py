"""What the bundled models can do: translations against the generator's own, answers, losses, acceptance.

``python -m specviz.training.evaluate`` prints the bars of the models in ``data/models`` and exits with
status 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specviz.corpus import tasks, translation
from specviz.training.answers import greedy, load, prompt_ids
from specviz.training.card import card
from specviz.training.recipes import RECIPES
from specviz.training.tokenizer import END, PAD, encode_chat

ROOT = Path(__file__).parents[2] / "data" / "models"
PAIRS = (("en", "de"), ("en", "ja"))
# sacrebleu's ja-mecab needs a dictionary that is not installed: Japanese is scored by characters.
SCHEMES = {"de": "13a", "ja": "char", "zh": "zh"}
BLEU_BAR = 0.85
RATE_BAR = (0.55, 0.85)
DRAFTED = 4
JUDGED = ("summarization", "qa", "arithmetic", "rag", "code")  # kinds whose right answers can be listed
Chat = tuple[str, list[dict[str, str]]]  # kind and messages


def drawn(kind: str, n: int, **given: Any) -> list[tasks.Sample]:
    """`n` chats of the test split."""
    rng = random.Random(f"evaluate:{kind}:{given.get('target')}")
    return [tasks.sample(rng, "test", kind, **given) for _ in range(n)]


def say_answers(model: Any, pieces: Any, samples: Sequence[tasks.Sample]) -> list[str]:
    """The model's greedy answers to the last turns."""
    return [pieces.decode(ids) for ids in greedy(model, [prompt_ids(pieces, s.messages) for s in samples])]


def bleu(said: Sequence[str], references: Sequence[Sequence[str]], code: str) -> float:
    """Corpus BLEU of sacrebleu; `references` holds one list a reference, each as long as `said`."""
    import sacrebleu

    scheme = SCHEMES.get(code, "13a")
    return float(sacrebleu.corpus_bleu(list(said), [list(r) for r in references], tokenize=scheme).score)


def translations(model: Any, pieces: Any, source: str, target: str, n: int = 150) -> dict[str, float]:
    """BLEU of greedy test translations and of the generator's second paraphrase against one reference.

    Reference and paraphrase are independent draws of the generator. ``share`` is the quotient of the two;
    ``accepted`` the share of translations that are among 30 draws word for word.
    """
    samples = drawn("translation", n, language=source, target=target)
    said = say_answers(model, pieces, samples)
    # Every sample has seeds of its own: equal seeds would make the same choices in all of them.
    def say(j: int) -> list[str]:
        return [translation.say(s.meaning, target, 100 * i + j) for i, s in enumerate(samples)]

    draws = [say(j) for j in range(30)]
    accepted = sum(text in right for text, right in zip(said, zip(*draws)))
    own, paraphrase = bleu(said, draws[:1], target), bleu(draws[1], draws[:1], target)
    return {"bleu": own, "paraphrase": paraphrase, "share": own / paraphrase, "accepted": accepted / n}


def answered(model: Any, pieces: Any, kind: str, n: int = 40) -> float:
    """The share of greedy answers that the generator accepts word for word (40 draws of right answers)."""
    samples = drawn(kind, n, references=40)
    said = say_answers(model, pieces, samples)
    return sum(text in (s.turns[-1][1], *s.references) for text, s in zip(said, samples)) / n


def losses(model: Any, pieces: Any, kind: str, n: int = 40) -> dict[str, float]:
    """Loss of the last answer's tokens in nats, the same in bits a character, and the entropy of its choices.

    The choices' entropy is what is left once the content is settled: no model can be below it for long.
    """
    import torch
    from torch.nn.functional import cross_entropy

    total = tokens = characters = 0.0
    samples = drawn(kind, n)
    model.eval()
    with torch.inference_mode():
        for sample in samples:
            ids, _ = encode_chat(pieces, sample.turns)
            start = len(prompt_ids(pieces, sample.messages))
            row = torch.tensor([ids], device=model.device)
            scores = model(input_ids=row[:, :-1]).logits[0, start - 1 :].float()
            total += float(cross_entropy(scores, row[0, start:], reduction="sum"))
            tokens += len(ids) - start
            characters += len(sample.turns[-1][1])
    choices = sum(s.bits for s in samples) / characters
    return {"nats_per_token": total / tokens, "bits_per_character": total / math.log(2) / characters,
            "choice_bits_per_character": choices, "characters_per_token": characters / tokens}  # fmt: skip


def accepted_of(predicted: Sequence[int], text: Sequence[int], drafted: int = DRAFTED) -> tuple[int, int]:
    """Accepted and drafted tokens of a greedy draft, from its prediction at each place of the target's text.

    A cycle drafts up to `drafted` tokens and stops behind an ``<|end|>``; the target keeps the part that
    agrees and adds one token. Up to the first disagreement the draft has read the target's own text, so
    predictions made on that text are all that is needed. `text` ends with ``<|end|>``.
    """
    accepted = proposed = at = 0
    while at < len(text):
        agree = 0
        while agree < drafted and at + agree < len(text) and predicted[at + agree] == text[at + agree]:
            agree += 1
        accepted += agree
        if at + agree == len(text):
            proposed += agree
        elif agree < drafted and predicted[at + agree] == END:
            proposed += agree + 1
        else:
            proposed += drafted
        at += agree + 1
    return accepted, proposed


def acceptance(target: Any, draft: Any, pieces: Any, chats: Sequence[Chat]) -> dict[str, float]:
    """A/D of a greedy 4-token draft over (kind, messages), by kind and overall ("all")."""
    import torch

    prompts = [prompt_ids(pieces, messages) for _, messages in chats]
    answers = greedy(target, prompts, longest=128)
    counts: dict[str, list[int]] = {}
    draft.eval()
    with torch.inference_mode():
        for (kind, _), prompt, answer in zip(chats, prompts, answers):
            text = [*answer, END]
            row = torch.tensor([[*prompt, *text[:-1]]], device=draft.device)
            scores = draft(input_ids=row).logits[0, len(prompt) - 1 :]
            scores[:, PAD] = -torch.inf
            found = accepted_of(scores.argmax(-1).tolist(), text)
            for name in (kind, "all"):
                pair = counts.setdefault(name, [0, 0])
                pair[0] += found[0]
                pair[1] += found[1]
    return {kind: a / d for kind, (a, d) in counts.items()}


def suite_chats(folder: Path) -> list[Chat]:
    """Kind and messages of each prompt of the suite ``town.jsonl``."""
    lines = (folder / "town.jsonl").read_text(encoding="utf-8").splitlines()
    return [(entry["kind"], entry["messages"]) for entry in map(json.loads, lines)]


def scores(name: str, out: Path, models: Path = ROOT, device: str = "cpu") -> dict[str, Any]:
    """Every figure of a model's card."""
    from tokenizers import Tokenizer

    pieces = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = load(out).to(device)
    found: dict[str, Any] = {
        "translation": {f"{a}-{b}": translations(model, pieces, a, b) for a, b in PAIRS},
        "losses": {kind: losses(model, pieces, kind) for kind in tasks.KINDS},
        "answered": {kind: answered(model, pieces, kind) for kind in JUDGED},
    }
    if name != "town" and (models / "town" / "model.safetensors").exists():
        chats = suite_chats(models.parent / "suites")
        found["acceptance"] = acceptance(load(models / "town").to(device), model, pieces, chats)
    return found


def write_card(name: str, out: Path, models: Path = ROOT, device: str = "cpu") -> dict[str, Any]:
    """Score the model in `out` and write ``scores.json`` and ``README.md`` beside it; returns the scores."""
    found = scores(name, out, models, device)
    training = json.loads((out / "training.json").read_text(encoding="utf-8"))
    parameters = sum(p.numel() for p in load(out).parameters())
    (out / "scores.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (out / "README.md").write_text(card(name, parameters, training, found), encoding="utf-8")
    return found


def bars(models: Path = ROOT) -> list[tuple[str, float, bool]]:
    """The bars that the bundled models must meet, from their ``scores.json``: what, how much, met or not."""
    found = {n: json.loads((models / n / "scores.json").read_text(encoding="utf-8")) for n in RECIPES}
    town, draft = found["town"], found["town-draft"]
    rows = []
    for pair, t in town["translation"].items():
        what = f"{pair}: BLEU {t['bleu']:.1f} of the paraphrase's {t['paraphrase']:.1f}, share >= {BLEU_BAR}"
        rows.append((what, t["share"], t["share"] >= BLEU_BAR))
    for pair, t in draft["translation"].items():
        weaker = t["bleu"] / town["translation"][pair]["bleu"]
        rows.append((f"{pair}: the draft's BLEU over the target's, < 0.9", weaker, weaker < 0.9))
    for name in ("town-draft", "town-draft-aligned"):
        rate = found[name]["acceptance"]["all"]
        rows.append((f"{name}: A/D of 4 drafted tokens, {RATE_BAR[0]} to {RATE_BAR[1]}", rate,
                     RATE_BAR[0] <= rate <= RATE_BAR[1]))  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the bars; with a name, score that model anew first. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m specviz.training.evaluate", description=__doc__)
    parser.add_argument("names", nargs="*", help="models to score anew")
    given = parser.parse_args(arguments)
    for name in given.names:
        write_card(name, ROOT / name)
    rows = bars()
    for what, value, met in rows:
        print(f"{'ok  ' if met else 'MISS'} {value:6.3f}  {what}")
    return 0 if all(met for _, _, met in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
