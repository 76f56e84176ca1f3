"""Scores of the bundled models: translations against the generator's own, answers, losses, acceptance.

``python -m town.training.evaluate`` prints the bars of the models in ``data/models`` and exits with
status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from town.corpus import tasks, translation
from town.training import canvases, eagle_cards, pairs, translators
from town.training.answers import greedy, load, prompt_ids
from town.training.bleu import bleu
from town.training.card import card
from town.training.recipes import RECIPES
from town.training.tokenizer import encode_chat

ROOT = Path(__file__).parents[2] / "models"
PAIRS = (("en", "de"), ("en", "ja"))
Decode = Callable[[Any, Sequence[Sequence[int]]], list[list[int]]]  # model, prompts: answers, no end tokens
BLEU_BAR = 0.85
DIFFUSION_BAR = 0.65
RATE_BAR = (0.55, 0.85)
DRAFTED = 4
LONGEST = 128  # tokens of an answer, in a run
TEXTS = 40  # per kind, for its loss and its answers
JUDGED = ("summarization", "qa", "arithmetic", "rag", "code")  # kinds whose right answers can be listed


def drawn(kind: str, n: int, **given: Any) -> list[tasks.Sample]:
    """`n` chats of the test split."""
    rng = random.Random(f"evaluate:{kind}:{given.get('target')}")
    return [tasks.sample(rng, "test", kind, **given) for _ in range(n)]


def say_answers(
    model: Any, pieces: Any, samples: Sequence[tasks.Sample], decode: Decode = greedy
) -> list[str]:
    """Greedy answers of the model to the last turns."""
    return [pieces.decode(ids) for ids in decode(model, [prompt_ids(pieces, s.messages) for s in samples])]


def translations(
    model: Any, pieces: Any, source: str, target: str, n: int = 150, decode: Decode = greedy
) -> dict[str, float]:
    """BLEU of greedy test translations and of the generator's second paraphrase against one reference.

    Reference and paraphrase are independent draws of the generator. ``share`` is the ratio of the two BLEU
    scores; ``accepted`` is the share of translations that match one of 30 draws exactly.
    """
    samples = drawn("translation", n, language=source, target=target)
    said = say_answers(model, pieces, samples, decode)

    # Every sample has its own seeds: equal seeds would make the same choices in all of them.
    def say(j: int) -> list[str]:
        return [translation.say(s.meaning, target, 100 * i + j) for i, s in enumerate(samples)]

    draws = [say(j) for j in range(30)]
    accepted = sum(text in right for text, right in zip(said, zip(*draws)))
    own, paraphrase = bleu(said, draws[:1], target), bleu(draws[1], draws[:1], target)
    return {"bleu": own, "paraphrase": paraphrase, "share": own / paraphrase, "accepted": accepted / n}


def answered(model: Any, pieces: Any, kind: str, n: int = TEXTS, decode: Decode = greedy) -> float:
    """The share of greedy answers that match one of 40 right answers drawn from the generator exactly."""
    samples = drawn(kind, n, references=40)
    said = say_answers(model, pieces, samples, decode)
    return sum(text in (s.turns[-1][1], *s.references) for text, s in zip(said, samples)) / n


def losses(model: Any, pieces: Any, samples: Sequence[tasks.Sample]) -> dict[str, float]:
    """Loss of the last answers in nats per token and bits per character, and the entropy of their choices.

    The entropy of the choices is what remains once the content is fixed: no model can stay below it for long.
    """
    import torch
    from torch.nn.functional import cross_entropy

    total = tokens = characters = 0.0
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


def acceptance(target: Any, draft: Any, entries: Sequence[Any], longest: int = LONGEST) -> dict[str, float]:
    """A/D of a greedy draft of `DRAFTED` tokens, by kind and over all ("all"), as a run's summary prints it.

    Parameters
    ----------
    target, draft : Model
    entries : list of dict
        Prompts as `specviz.generate` takes them, with their ``kind``. Every turn is decoded; the later turns
        of a conversation follow the target's own answers.
    longest : int
        Most tokens of an answer.
    """
    import specviz
    from specviz.metrics import acceptance_rate

    trace = specviz.generate(
        target, list(entries), "speculative", draft=draft, draft_length=DRAFTED, max_new_tokens=longest
    )
    prompts = trace.prompts
    of_kind = {
        str(kind): acceptance_rate(trace.select(prompt=some["prompt"]))
        for kind, some in prompts.groupby("kind", sort=False)
    }
    return of_kind | {"all": acceptance_rate(trace)}


def suite(folder: Path) -> list[dict[str, Any]]:
    """The prompts of the suite ``town.jsonl``, turn by turn, as ``--prompts town`` yields them."""
    lines = (folder / "town.jsonl").read_text(encoding="utf-8").splitlines()
    return [{"turns": entry["turns"], "kind": entry["kind"]} for entry in map(json.loads, lines)]


def scores(name: str, out: Path, models: Path = ROOT, device: str = "cpu") -> dict[str, Any]:
    """Every figure of a model's card."""
    from tokenizers import Tokenizer

    pieces = Tokenizer.from_file(str(out / "tokenizer.json"))
    model = load(out).to(device)
    if RECIPES[name].texts != "chats":
        return translators.scores(model, pieces)
    diffusion = RECIPES[name].part == "diffusion"
    decode = canvases.stepwise if diffusion else greedy
    found: dict[str, Any] = {
        "translation": {f"{a}-{b}": translations(model, pieces, a, b, decode=decode) for a, b in PAIRS},
        "losses": {kind: (canvases.losses if diffusion else losses)(model, pieces, drawn(kind, TEXTS))
                   for kind in tasks.KINDS},
        "answered": {kind: answered(model, pieces, kind, decode=decode) for kind in JUDGED},
    }  # fmt: skip
    if diffusion:
        found["canvas"] = canvases.by_length(model, pieces)
    elif name != "town" and (models / "town" / "model.safetensors").exists():
        from specviz.models import load as ready

        target, draft = ready(models / "town", device), ready(out, device)
        found["acceptance"] = acceptance(target, draft, suite(models.parent / "suites"))
    return found


def shapes(file: Path) -> list[list[int]]:
    """Shapes of the tensors of a safetensors file."""
    from safetensors import safe_open

    with safe_open(file, "pt") as stored:
        return [stored.get_slice(name).get_shape() for name in stored.keys()]  # noqa: SIM118


def write_card(name: str, out: Path, models: Path = ROOT, device: str = "cpu") -> dict[str, Any]:
    """Score the model in `out`, write ``scores.json`` and ``README.md`` into it, and return the scores."""
    made = RECIPES[name]
    if made.part == "eagle":
        found = eagle_cards.scores(made, out, models, device)
    elif made.texts == "pairs":
        found = pairs.scores(made, out, models)
    else:
        found = scores(name, out, models, device)
    training = json.loads((out / "training.json").read_text(encoding="utf-8"))
    parameters = sum(math.prod(shape) for shape in shapes(out / "model.safetensors"))
    (out / "scores.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write = {"chats": card, "pairs": pairs.card}.get(made.texts, translators.card)
    if made.part in ("diffusion", "eagle"):
        write = canvases.card if made.part == "diffusion" else eagle_cards.card
    (out / "README.md").write_text(write(name, parameters, training, found), encoding="utf-8")
    return found


def bars(models: Path = ROOT) -> list[tuple[str, float, bool]]:
    """The bars that the bundled models must meet, read from ``scores.json``: (bar, value, met)."""
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
    for name in ("town-translator", "town-translator-prefix"):
        for pair, t in found[name]["translation"].items():
            what = f"{name}, {pair}: BLEU {t['bleu']:.1f} of the paraphrase's {t['paraphrase']:.1f}"
            rows.append((f"{what}, share >= {BLEU_BAR}", t["share"], t["share"] >= BLEU_BAR))
    large, small = found["town-t5"]["translation"], found["town-t5-small"]["translation"]
    for pair, t in large.items():
        what = f"town-t5, {pair}: BLEU {t['bleu']:.1f} of the paraphrase's {t['paraphrase']:.1f}"
        rows.append((f"{what}, share >= {BLEU_BAR}", t["share"], t["share"] >= BLEU_BAR))
        weaker = small[pair]["bleu"] / t["bleu"]
        rows.append((f"{pair}: town-t5-small's BLEU over town-t5's, < 0.95", weaker, weaker < 0.95))
    agrees = found["town-t5-small-aligned"]["agreement"]
    gained = agrees["town-t5-small-aligned"] - agrees["town-t5-small"]
    t = found["town-diffusion"]["translation"]["en-de"]
    what = f"town-diffusion, en-de: BLEU {t['bleu']:.1f} of the paraphrase's {t['paraphrase']:.1f}"
    rows.append((f"{what}, share >= {DIFFUSION_BAR}", t["share"], t["share"] >= DIFFUSION_BAR))
    rows.append(("agreement with town-t5 that the alignment gained, > 0", gained, gained > 0))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the bars; given a name, score that model first. Returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m town.training.evaluate", description=__doc__)
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
