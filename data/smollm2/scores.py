"""``python -m smollm2.scores ADAPTER``: compare a diffusion adapter with SmolLM2 on the suite ``narrow``.

Prints the card's table: how many answers are right, and the loss of the right answers. For a diffusion model
the loss is an upper bound, the objective averaged over masks (`specviz.finetune.masking`); for a causal model
it is exact.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import closing

import numpy as np
import torch

import specviz as sv
from specviz.draft import Draft
from specviz.finetune.masking import hide
from specviz.models import Model
from specviz.models.diffusion import Diffusion

DRAWS = 8  # masks averaged for an answer's bound
CELLS = 64


def nats_of_causal(model: Model, prompt: list[int], answer: list[int]) -> float:
    """Loss of the answer's tokens in nats, end token included."""
    with torch.no_grad():
        scores = model.net(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float()
    return float(-scores.log_softmax(-1)[range(len(answer)), answer].sum())


def nats_of_diffusion(model: Diffusion, prompt: list[int], answer: list[int], seed: int) -> float:
    """An upper bound on the answer's loss in nats, on a canvas as long as the answer."""
    rng, total = np.random.default_rng(seed), 0.0
    for _ in range(DRAWS):
        masked, share = hide(np.ones((1, len(answer)), bool), rng)
        with closing(model.open([prompt], len(answer), block=len(answer))) as canvas:
            there = np.flatnonzero(~masked[0])
            canvas.fill(there, np.array(answer)[there])
            read = canvas.forward(Draft.empty())[0]
        wanted = np.array(answer)[read.cell]
        chances = read.logits.float().log_softmax(-1)[range(len(wanted)), wanted]
        total -= float(chances.sum()) / share[0]
    return total / DRAWS


def main(adapter: str) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    entries = list(sv.suite("narrow"))
    base, model = sv.load("smollm2", dtype="float32"), sv.load(adapter)
    written = {
        base.name: sv.generate(base, entries, "autoregressive", max_new_tokens=CELLS, batch=10).texts,
        model.name: sv.generate(
            model, entries, "stepwise", max_new_tokens=CELLS, batch=10, block=8, cache="dual", refresh=8
        ).texts,
    }
    nats = {base.name: 0.0, model.name: 0.0}
    tokens = 0
    for seed, entry in enumerate(entries):
        prompt = base.encode(entry["prompt"])
        answer = [*base.tokenizer(entry["reference"], add_special_tokens=False)["input_ids"], base.eos[0]]
        nats[base.name] += nats_of_causal(base, prompt, answer)
        nats[model.name] += nats_of_diffusion(model, prompt, answer, seed)
        tokens += len(answer)
    kinds = list(dict.fromkeys(entry["kind"] for entry in entries))
    heads = f"{len(entries)} questions of `narrow`", "nats a token of the right answer", "right", *kinds
    print(f"| {' | '.join(heads)} |")
    print("| --- | ---: | ---: |" + " ---: |" * len(kinds))
    for name, texts in written.items():
        right = Counter(e["kind"] for e, text in zip(entries, texts) if text.strip() == e["reference"])
        each = " | ".join(str(right[kind]) for kind in kinds)
        print(f"| `{name}` | {nats[name] / tokens:.2f} | {right.total()} | {each} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
