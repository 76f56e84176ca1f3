"""Why does an EAGLE head accept nothing? What it says beside the target's texts, as is and otherwise."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from specviz import metrics
from specviz.errors import ModelError, PromptError
from specviz.finetune.eagle_loss import EagleLoss, unroll, words
from specviz.loop.run import generate
from specviz.models import load
from specviz.models.additions import EagleHead
from specviz.models.eagle_model import EagleModel
from specviz.models.layers import embeddings

if TYPE_CHECKING:
    from specviz.loop.drafters import Loadable
    from specviz.models.model import Model
    from specviz.models.protocols import Prompt

DEPTH = 4  # guesses in a row
SHIFTS = {-1: "the token that it has just read", 1: "one token further on", 2: "two tokens further on"}
GAIN, LEAST = 1.5, 0.1  # a change explains a fault if it multiplies and adds so much
RUN, VARIED = 4, 0.75  # the least share of different runs of four tokens in a text that says something
POOR = 0.15  # a first guess that is right less often is at a loss


@dataclass(frozen=True)
class HeadCheck:
    """How often a head's guesses are the target's words.

    Attributes
    ----------
    head, target : str
    depths : data frame
        By depth: `forced`, the share of right guesses where all before were right and the text's own tokens
        were read; `looped`, of a run that drafts chains; `places` of each, and whether they `agree` within
        95 % of chance.
    variations : data frame
        The share of right first guesses as the head is, and with one thing changed.
    verdict : str
        What would help, or that nothing of this does.
    """

    head: str
    target: str
    depths: pd.DataFrame
    variations: pd.DataFrame
    verdict: str

    def __str__(self) -> str:
        tables = [f"{self.head} on {self.target}", self.depths.to_string(), self.variations.to_string()]
        return "\n\n".join([*tables, self.verdict])


def check_head(
    head: Loadable, model: Loadable, prompts: Sequence[Prompt], max_new_tokens: int = 48
) -> HeadCheck:
    """Compare a head's guesses with the target's greedy texts, and try what may be wrong with it.

    Parameters
    ----------
    head : EagleHead, or what `specviz.load` takes
    model : Model, or what `specviz.load` takes
    prompts : sequence
        As `specviz.generate` takes them.
    max_new_tokens : int

    Raises
    ------
    ModelError
        If it is no EAGLE head, or does not fit the target: the line says why.
    PromptError
        If there are no prompts, or the texts are too short to guess in.
    """
    addition = load(head)
    if not isinstance(addition, EagleHead):
        raise ModelError(f"{addition.name} is no EAGLE head; heads of other kinds are not checked")
    if not prompts:
        raise PromptError("there is no prompt; give one or more")
    target: Model = load(model)
    drafter = addition.on(target)
    texts = _texts(target, [target.encode(prompt) for prompt in prompts], max_new_tokens)
    if not texts:
        raise PromptError(
            f"{target.name}'s texts are too short or too uniform to guess in: give other prompts"
        )
    reading = Reading(drafter, target, texts)
    forced, right = reading.by_depth()
    looped = _looped(target, drafter, prompts, max_new_tokens)
    changes = {"as it is": right} | reading.layers() | reading.shifts()
    bare = _texts(target, _raw(target, prompts), max_new_tokens)
    if bare:
        changes["texts without the chat template"] = Reading(drafter, target, bare).share(drafter.layers)
    return HeadCheck(
        addition.name, target.name, _beside(forced, looped),
        pd.DataFrame({"first guess right": changes}).round(3), verdict(changes),
    )  # fmt: skip


def verdict(shares: dict[str, float]) -> str:
    """What helps, by the share of right first guesses as the head is ("as it is") and with each change."""
    base = shares["as it is"]
    best = max(shares, key=lambda name: shares[name])
    if shares[best] > max(GAIN * base, base + LEAST):
        return f"{best} would make its first guess right {shares[best]:.0%} of the time, not {base:.0%}"
    if base < POOR:
        return (
            f"its first guess is right {base:.0%} of the time and none of these changes helps: its weights "
            "are of another target, or not trained"
        )
    return f"its first guess is right {base:.0%} of the time, and none of these changes makes it better"


@dataclass
class Reading:
    """A head over finished texts of its target.

    Parameters
    ----------
    drafter : EagleModel
    target : Model
    texts : list of (int, list of int)
        Tokens of the prompt, and all tokens.
    """

    drafter: EagleModel
    target: Model
    texts: list[tuple[int, list[int]]]

    def __post_init__(self) -> None:
        self.net = copy.deepcopy(self.drafter.net).float()
        self.loss = EagleLoss(self.target.net)
        every = range(self.target.layers + 1)
        around = {layer + step for layer in self.drafter.layers for step in (-1, 0, 1)}
        self.near = tuple(sorted(around & set(every)))
        self.states = [self._read(text) for _, text in self.texts]

    def _read(self, text: list[int]) -> dict[int, torch.Tensor]:
        context = self.target.open([[*text, text[-1]]], 1)
        context.prefill([0], self.near)
        states = context.states.pop(0)
        context.close()
        return {layer: value.float() for layer, value in states.items()}

    @torch.no_grad()
    def guesses(self, layers: Sequence[int], steps: int) -> list[list[np.ndarray]]:
        """For each text and step the likeliest tokens of the chains from every place."""
        table, of = embeddings(self.target.net), words(self.net)
        every = []
        for (_, text), states in zip(self.texts, self.states):
            embedded = F.embedding(torch.tensor([text], device=table.device), table).float()
            read = torch.cat([states[layer] for layer in layers], -1)[None]
            best = []
            for out in unroll(self.net, embedded, read, steps):
                tokens = self.loss._words(self.net, out[0]).argmax(-1)
                best.append((tokens if of is None else of[tokens]).cpu().numpy())
            every.append(best)
        return every

    def by_depth(self) -> tuple[list[tuple[int, int]], float]:
        """Right guesses and places by depth, where all guesses before were right; the first's share."""
        counts = np.zeros((DEPTH, 2), int)
        for (prompt, text), chains in zip(self.texts, self.guesses(self.drafter.layers, DEPTH)):
            ids, alive = np.array(text), None
            for step, best in enumerate(chains):
                hit = best == ids[2 + step : 2 + step + len(best)]
                at = np.arange(len(best)) + 2 + step >= prompt
                alive = at if alive is None else alive[: len(best)] & at
                counts[step] += int((hit & alive).sum()), int(alive.sum())
                alive = alive & hit
        return [(int(a), int(b)) for a, b in counts], counts[0, 0] / max(counts[0, 1], 1)

    def share(self, layers: Sequence[int], shift: int = 0) -> float:
        """The share of right first guesses, reading other layers, or meant for another place."""
        hits = count = 0
        for (prompt, text), (best, *_) in zip(self.texts, self.guesses(layers, 1)):
            ids = np.array(text)
            places = np.arange(len(best)) + 2 + shift
            at = (places >= prompt) & (places < len(ids))
            hits += int((best[at] == ids[places[at]]).sum())
            count += int(at.sum())
        return hits / max(count, 1)

    def layers(self) -> dict[str, float]:
        """With neighbouring layers in place of those that it reads."""
        own, shares = self.drafter.layers, {}
        moved = [tuple(layer + step for layer in own) for step in (-1, 1)]
        moved += [(*own[:i], own[i] + step, *own[i + 1 :]) for i in range(len(own)) for step in (-1, 1)]
        for layers in dict.fromkeys(moved):
            if set(layers) <= set(self.near):
                shares[f"reading layers {', '.join(map(str, layers))}"] = self.share(layers)
        return shares

    def shifts(self) -> dict[str, float]:
        """With its guesses taken as those of another place."""
        layers = self.drafter.layers
        return {f"taking its guess for {what}": self.share(layers, by) for by, what in SHIFTS.items()}


def _texts(target: Model, prompts: list[list[int]], most: int) -> list[tuple[int, list[int]]]:
    """Greedy texts of the target that are long enough to guess in, and that do not go round in circles."""
    if not prompts:
        return []
    own = generate(target, prompts, "autoregressive", max_new_tokens=most).outputs
    texts = []
    for number, prompt in enumerate(prompts):
        answer = own[own["prompt"] == number]["token"].tolist()
        if _varied(answer):
            texts.append((len(prompt), [*prompt, *answer]))
    return texts


def _varied(answer: list[int]) -> bool:
    """Whether a text goes on, rather than round in circles or to its end at once."""
    runs = [tuple(answer[i : i + RUN]) for i in range(len(answer) - RUN + 1)]
    return len(set(runs)) > VARIED * len(runs)


def _raw(target: Model, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The prompts without the chat template, where the target has one."""
    if not getattr(target.tokenizer, "chat_template", None):
        return []
    return [target.text.encode(prompt, raw=True) for prompt in prompts if isinstance(prompt, str)]


def _looped(
    target: Model, drafter: EagleModel, prompts: Sequence[Prompt], most: int
) -> list[tuple[int, int]]:
    """Right guesses and places by depth in a run that drafts chains."""
    trace = generate(
        target, list(prompts), "eagle", draft=drafter, max_new_tokens=most, depth=DEPTH, branches=1,
        draft_size=DEPTH,
    )  # fmt: skip
    table = metrics.by_depth(trace)
    counts = table.set_index("depth")[["accepted", "judged"]].reindex(range(1, DEPTH + 1), fill_value=0)
    return [(int(right), int(judged)) for right, judged in counts.to_numpy()]


def _beside(forced: list[tuple[int, int]], looped: list[tuple[int, int]]) -> pd.DataFrame:
    """Shares by depth, and whether they differ by more than chance."""
    rows = []
    for (a, n), (b, m) in zip(forced, looped):
        both = (a + b) / max(n + m, 1)
        width = 1.96 * math.sqrt(both * (1 - both) * (1 / max(n, 1) + 1 / max(m, 1)))
        one, other = (x / y if y else math.nan for x, y in ((a, n), (b, m)))
        rows.append((round(one, 3), n, round(other, 3), m, not abs(one - other) > width + 1e-9))
    names = "forced", "places", "looped", "places in the loop", "agree"
    return pd.DataFrame(rows, columns=names, index=pd.RangeIndex(1, len(rows) + 1, name="depth"))
