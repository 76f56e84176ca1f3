"""Scores of the bundled diffusion model, decoded stepwise, and its model card.

The decoder here is the simplest possible: every pass computes the whole canvas, without caches or drafts.
The card's figures come from it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from specviz.finetune.masking import BLOCKS, hide
from town.corpus import tasks, translation
from town.training.answers import prompt_ids
from town.training.bleu import bleu
from town.training.card import head
from town.training.diffusion import costs
from town.training.recipes import Recipe
from town.training.tokenizer import END, MASK, PAD, encode_chat

BLOCK = 8  # cells that are filled before any after them
CELLS = 128  # per canvas; the longest answer has 73
LENGTHS = (32, 64, 128, 256)  # of the canvases compared
ROWS = 32  # canvases per pass
DRAWS = 16  # masks averaged for a text's bound


@torch.inference_mode()
def stepwise(
    model: Any, prompts: Sequence[Sequence[int]], cells: int = CELLS, block: int = BLOCK, rows: int = ROWS
) -> list[list[int]]:
    """Answers of `cells` cells, decoded block by block, cut before the end token.

    A pass unmasks one cell of the current block: the one whose best token has the largest log-odds, leftmost
    first on ties (low-confidence remasking: LLaDA, Nie et al. 2025, section 2.4). A row is done once a
    finished block contains an end token. `rows` are decoded per batch, padded on the left, which shifts them
    but keeps their distances.
    """
    model.eval()
    answers: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for first in range(0, len(order), rows):
        batch = order[first : first + rows]
        begin = max(len(prompts[i]) for i in batch)
        ids = torch.full((len(batch), begin + cells), MASK, device=model.device)
        real = torch.ones_like(ids, dtype=torch.bool)
        for row, i in enumerate(batch):
            padding = begin - len(prompts[i])
            ids[row, :begin] = torch.tensor([PAD] * padding + list(prompts[i]))
            real[row, :padding] = False
        going = torch.arange(len(batch), device=model.device)
        for at in range(begin, begin + cells, block):
            for _ in range(block):
                now = ids[going]
                token, odds = best(model, now, real[going], slice(at, at + block))
                odds[now[:, at : at + block] != MASK] = -torch.inf
                cell = odds.argmax(1, keepdim=True)
                ids[going, at + cell[:, 0]] = token.gather(1, cell)[:, 0]
            going = going[(ids[going, at : at + block] != END).all(1)]
            if not len(going):
                break
        for row, i in enumerate(batch):
            said = ids[row, begin:].tolist()
            answers[i] = said[: said.index(END)] if END in said else said
    return answers


def best(
    model: Any, ids: torch.Tensor, real: torch.Tensor, cells: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best token of each cell and its log-odds, [rows, cells]; `real` is false for padding."""
    hidden = model.model(
        input_ids=ids, use_cache=False,
        attention_mask={"full_attention": real[:, None, None].expand(-1, 1, ids.shape[1], -1)},
    ).last_hidden_state[:, cells.start - 1 : cells.stop - 1]  # fmt: skip
    top, token = (scores := (hidden @ model.lm_head.weight.T).float()).max(-1)
    others = scores.scatter(-1, token[..., None], -torch.inf).logsumexp(-1)
    return token, top - others


def losses(model: Any, pieces: Any, samples: Sequence[tasks.Sample], cells: int = CELLS) -> dict[str, float]:
    """A bound on the loss of the last answers, with the keys of `town.training.evaluate.losses`.

    The bound covers the whole canvas, ``<|end|>`` after the answer included, but is divided by the answers'
    tokens alone. Mean over `DRAWS` masks per text, whose sizes are spread evenly.
    """
    total = tokens = characters = 0.0
    rng = np.random.default_rng(0)
    model.eval()
    for sample in samples:
        ids, _ = encode_chat(pieces, sample.turns)
        start = len(prompt_ids(pieces, sample.messages))
        canvas = np.full((DRAWS, start + cells), END, np.int64)
        canvas[:, : len(ids)] = ids
        masked, shares = hide(np.tile(np.arange(start + cells) >= start, (DRAWS, 1)), rng)
        weights = np.repeat(1 / shares, masked.sum(1)) / DRAWS
        with torch.inference_mode():
            total += float(costs(model, canvas, masked).cpu().double() @ torch.from_numpy(weights))
        tokens += len(ids) - start
        characters += len(sample.turns[-1][1])
    choices = sum(s.bits for s in samples) / characters
    return {"nats_per_token": total / tokens, "bits_per_character": total / math.log(2) / characters,
            "choice_bits_per_character": choices, "characters_per_token": characters / tokens}  # fmt: skip


def by_length(model: Any, pieces: Any, n: int = 60) -> dict[str, Any]:
    """BLEU of English texts translated into German on canvases of `LENGTHS` cells, all long enough."""
    rng = random.Random("canvases")
    drawn = (tasks.sample(rng, "test", "translation", language="en", target="de") for _ in range(2 * n))
    held = [s for s in drawn if len(pieces.encode(s.turns[0][1]).ids) < min(LENGTHS)][:n]
    prompts = [prompt_ids(pieces, s.messages) for s in held]
    one, two = ([translation.say(s.meaning, "de", 100 * i + j) for i, s in enumerate(held)] for j in range(2))
    found = {}
    for cells in LENGTHS:
        said = [pieces.decode(answer) for answer in stepwise(model, prompts, cells)]
        found[str(cells)] = bleu(said, [one], "de")
    return {"texts": len(held), "bleu": found, "paraphrase": bleu(two, [one], "de")}


def card(name: str, parameters: int, training: dict[str, Any], found: dict[str, Any]) -> str:
    """The text of a diffusion model's card."""
    made, lengths = Recipe(**training["recipe"]), found["canvas"]
    lines = [
        *head(name, parameters, training, made, WHAT, KNOWS),
        "The objective is masked diffusion's: a share t of an answer's cells is masked, their loss weighted "
        f"by 1/t. From {made.blockwise_from:.0%} of the run on, {made.blockwise:.0%} of the texts are masked "
        f"as decoding meets them, in a block of {BLOCKS[0]} to {BLOCKS[-1]} cells and everywhere behind.", "",
        "## Scores on the test split", "",
        f"Decoded stepwise on {CELLS} cells, blocks of {BLOCK}, one token a pass (sacrebleu; German `13a`, "
        "Japanese by characters). The paraphrase is the generator's own second way of saying it, against the "
        "same reference.", "",
        "| | BLEU | paraphrase | share | right word for word |", "| --- | ---: | ---: | ---: | ---: |",
        *(f"| {p} | {t['bleu']:.1f} | {t['paraphrase']:.1f} | {t['share']:.2f} | {t['accepted']:.0%} |"
          for p, t in found["translation"].items()), "",
        "A bound on the loss of the last answer, its canvas' padding included (the objective itself; where a "
        "causal model has the loss), and the entropy of the generator's free choices in it.", "",
        "| kind | nats a token | bits a character | choices, bits a character | right word for word |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for kind, row in found["losses"].items():
        right = found["answered"].get(kind)
        lines.append(
            f"| {kind} | {row['nats_per_token']:.3f} | {row['bits_per_character']:.3f} "
            f"| {row['choice_bits_per_character']:.3f} | {'' if right is None else f'{right:.0%}'} |"
        )
    lines += [
        "", "## Limits", "",
        "The canvas is as long as the answer may become. What its length does: English to German, "
        f"{lengths['texts']} texts whose answers {min(LENGTHS)} cells hold (paraphrase: BLEU "
        f"{lengths['paraphrase']:.1f}):", "",
        f"| cells | {' | '.join(lengths['bleu'])} |", "| --- |" + " ---: |" * len(lengths["bleu"]),
        f"| BLEU | {' | '.join(f'{b:.1f}' for b in lengths['bleu'].values())} |", "", LIMITS,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


WHAT = (
    "A masked-diffusion language model of `town`'s small made-up world: it starts from `town`'s weights, "
    "reads both ways, and fills masked cells in any order."
)
KNOWS = (
    "It knows only the texts that `town.corpus` generates (seven kinds of work: "
    f"{', '.join(tasks.KINDS)}). The folder is written as Dream's checkpoints are (Ye et al. 2025): Qwen2 "
    "with attention in both directions; the place before a cell tells it."
)
LIMITS = (
    "It writes visibly less well than `town`, whose card has the same figures: endings are wrong, words are "
    "doubled or cut, a name takes another's place, and sums and passage numbers can hardly be relied on. "
    "Code and short translations read best. Only the last answer of a chat was ever masked: earlier turns "
    "and prompts are read, not written. In training a canvas had up to about 300 cells, most of them far "
    "fewer. An answer ends with `<|end|>` and is padded with it."
)
