"""Compare a drafter's guesses with the target's texts by depth, and diagnose failing heads."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from specviz.draft import Draft
from specviz.errors import ModelError, PromptError, plural
from specviz.escape import markdown
from specviz.files import write_text
from specviz.finetune.eagle_loss import EagleLoss, unroll, words
from specviz.finetune.training import read_card, share_text, tasks
from specviz.loop.drafters import load_drafter
from specviz.loop.run import generate
from specviz.metrics.interval import LEAST as TEXTS
from specviz.metrics.interval import RESAMPLES
from specviz.models import load
from specviz.models.additions import HeadModel
from specviz.models.eagle_model import EagleModel
from specviz.models.layers import embeddings
from specviz.models.loading import find

if TYPE_CHECKING:
    from specviz.finetune.training import Prompts
    from specviz.loop.drafters import Loadable
    from specviz.models.eagle import Eagle
    from specviz.models.model import Model
    from specviz.models.protocols import Model as Drafter
    from specviz.models.protocols import Prompt
    from specviz.trace import Trace

DEPTH = 4  # guesses per chain
SHARES = "forced", "begun", "looped"
CARD_BEGIN = "Acceptance by depth (`specviz models check`)"
SHIFTS = {-1: "the token that it has just read", 1: "one token further on", 2: "two tokens further on"}
GAIN, LEAST = 1.5, 0.1  # a change explains a fault if it exceeds this factor and difference
RUN, VARIED = 4, 0.75  # a usable text has more than this share of distinct runs of four tokens
POOR = 0.15  # a head whose first guess is right less often than this does not work

Guesses: TypeAlias = "tuple[int, list[np.ndarray]]"  # by depth, the tokens of chains from this place on


@dataclass(frozen=True)
class DraftCheck:
    """How often a drafter's guesses match the target's tokens, by depth.

    Attributes
    ----------
    drafter, target : str
    texts : int
        Number of the target's greedy texts.
    depths : data frame
        By depth, the share of right guesses if all guesses before them were right: `forced`, reading the
        text's own tokens, at every place; `begun`, the same at places where a cycle of the loop begins;
        `looped`, in a run that drafts chains. For each share the number of `places`, and whether `forced` and
        `begun` agree with `looped`: whether zero lies in the 95 % bootstrap interval of their difference. The
        texts are resampled, both shares from the same ones: within a text, chains overlap, so their places
        are not independent. Not available where fewer than six texts have places.
    """

    drafter: str
    target: str
    texts: int
    depths: pd.DataFrame

    @property
    def reason(self) -> str:
        """Whether the shares agree, and if not, the likely reason."""
        if self.depths["forced agrees"].isna().all():
            return f"Fewer than {TEXTS} texts have guesses: give more prompts to compare the shares."
        apart = self.depths.index[~self.depths["forced agrees"].fillna(True)].tolist()
        if not apart:
            return (
                f"At every position and in the loop the shares agree at each depth that {TEXTS} texts reach: "
                "the 95 % interval of their difference, bootstrapped over texts, includes zero."
            )
        where = (
            f"At every position and in the loop the shares differ at depth {', '.join(map(str, apart))} (the "
            f"95 % interval of their difference, bootstrapped over texts, excludes zero)"
        )
        if not self.depths["begun agrees"].all():
            return (
                f"{where}, and they also differ at the positions where the loop's cycles begin: in the loop "
                f"the drafter reads something else than in a finished text."
            )
        harder = self.depths.loc[apart[0], "forced"] > self.depths.loc[apart[0], "looped"]
        return (
            f"{where}. At the positions where the loop's cycles begin they agree at each depth: a cycle "
            "begins after a token that the target wrote itself, and the next tokens are "
            f"{'harder' if harder else 'easier'} to guess there than elsewhere."
        )

    def __str__(self) -> str:
        return "\n\n".join([f"{self.drafter} on {self.target}", self.depths.to_string(), self.reason])

    def card(self, prompts: str) -> str:
        """The section for a drafter's card; `prompts` names the source of the prompts."""
        lines = [
            f"{CARD_BEGIN}, on {plural(self.texts, 'greedy answer')} to prompts of {markdown(prompts)}: "
            "how often a guess is right if all guesses before it were.",
            "",
            "| depth | every position | where cycles begin | in the loop |",
            "| ---: | ---: | ---: | ---: |",
        ]
        for depth, row in self.depths.iterrows():
            cells = [f"{share_text(row[share])} of {row[f'{share} places']:,.0f}" for share in SHARES]
            lines.append(f"| {depth} | {' | '.join(cells)} |")
        return "\n".join([*lines, "", self.reason, ""])


@dataclass(frozen=True)
class HeadCheck(DraftCheck):
    """The check of an EAGLE head or of blockwise heads, with a diagnosis.

    Attributes
    ----------
    variations : data frame
        The share of right first guesses of the unchanged head, and with one thing changed.
    verdict : str
        Which change would help, or that none does.
    """

    variations: pd.DataFrame
    verdict: str

    def __str__(self) -> str:
        return "\n\n".join([super().__str__(), self.variations.to_string(), self.verdict])


def check_draft(draft: Loadable, model: Loadable, prompts: Prompts, max_new_tokens: int = 48) -> DraftCheck:
    """Compare a drafter's guesses with the target's greedy texts, on finished texts and in the loop.

    For an EAGLE head and for blockwise heads, likely causes of a failure are tested as well (`HeadCheck`).

    Parameters
    ----------
    draft : draft model, blockwise heads or EAGLE head, or anything else that `specviz.load` takes
    model : Model, or anything else that `specviz.load` takes
    prompts : sequence
        As `specviz.generate` takes them, but a list; of a conversation the first turn counts.
    max_new_tokens : int

    Raises
    ------
    ModelError
        If it is none of these, or does not fit the target, or the target is not causal.
    PromptError
        If there are no prompts, one is not valid, or the texts are too short to guess in.
    """
    given = [task.prompt for task in tasks(prompts)]
    target: Model = load(model)
    drafter = load_drafter(target, draft, None, None)
    if target.kind != "causal" or drafter.kind not in ("causal", "heads", "eagle"):
        raise ModelError(
            f"{drafter.name} is {drafter.kind}, its target {target.kind}: only EAGLE heads, blockwise heads "
            "and draft models of causal targets are checked"
        )
    texts = _greedy(target, given, max_new_tokens)
    begun, looped = _looped(target, drafter, texts, max_new_tokens)
    reading: Reading | None = None
    if isinstance(drafter, EagleModel):
        reading = EagleReading(drafter, target, texts)
        guesses = [(2, best) for best in reading.guesses(drafter.layers, DEPTH)]
    else:
        guesses = [_guesses(drafter, target, prompt, text) for prompt, text in texts]
        if isinstance(drafter, HeadModel):
            reading = HeadsReading(drafter, target, texts)
    depths = _depth_table(_chains(texts, guesses), _chains(texts, guesses, begun), looped)
    if reading is None:
        return DraftCheck(drafter.name, target.name, len(texts), depths)
    return _diagnosed(reading, depths, _texts(target, _raw(target, given), max_new_tokens))


def _diagnosed(reading: Reading, depths: pd.DataFrame, bare: list[tuple[int, list[int]]]) -> HeadCheck:
    """The check with the shares that changes would give; `bare` are texts without the chat template."""
    drafter, target = reading.drafter, reading.target
    changes = {"as it is": float(depths["forced"].iloc[0])} | reading.layers() | reading.shifts()
    if bare:
        other = type(reading)(drafter, target, bare)
        changes["texts without the chat template"] = other.share(other.own)
    return HeadCheck(
        drafter.name, target.name, len(reading.texts), depths,
        pd.DataFrame({"first guess right": changes}).round(3), verdict(changes),
    )  # fmt: skip


def write_card(check: DraftCheck, drafter: str | Path, prompts: str) -> Path:
    """Write the depth table into a drafter's card, in place of an earlier one.

    Parameters
    ----------
    check : DraftCheck
    drafter : str or Path
        Bundled name or folder.
    prompts : str
        Source of the texts' prompts.

    Raises
    ------
    ModelError
        If the drafter's folder has no card, or its card is not UTF-8.
    """
    folder = find(drafter) or Path(drafter)
    path = folder / "README.md"
    if not path.is_file():
        raise ModelError(f"{folder} has no card (README.md) to write the depths into")
    before, begin, section = read_card(path.read_bytes(), folder).partition(CARD_BEGIN)
    after = section.strip().split("\n\n")[3:] if begin else []  # skip the old line, table and reason
    parts = [before.rstrip(), check.card(prompts).rstrip(), *after]
    return write_text(path, "\n\n".join(parts) + "\n", force=True)


def verdict(shares: dict[str, float]) -> str:
    """Say which change helps, from the shares of right first guesses; "as it is" is the unchanged head's."""
    base = shares["as it is"]
    best = max(shares, key=lambda name: shares[name])
    if shares[best] > max(GAIN * base, base + LEAST):
        return f"{best} would make its first guess right {shares[best]:.0%} of the time, not {base:.0%}"
    if base < POOR:
        return (
            f"its first guess is right {base:.0%} of the time and none of these changes helps: its weights "
            f"are for another target, or not trained"
        )
    return f"its first guess is right {base:.0%} of the time, and none of these changes makes it better"


@dataclass
class Reading:
    """A drafter that reads finished texts of its target; entry i of its guesses is for token i + 2.

    Parameters
    ----------
    drafter : EagleModel or HeadModel
    target : Model
    texts : list of (int, list of int)
        Length of the prompt, and all tokens.

    Attributes
    ----------
    own : tuple of int
        Layers whose states the drafter reads.
    """

    drafter: EagleModel | HeadModel
    target: Model
    texts: list[tuple[int, list[int]]]
    places: ClassVar = SHIFTS  # other places with which guesses are compared

    def __post_init__(self) -> None:
        self.own: tuple[int, ...] = getattr(self.drafter, "layers", (self.target.layers,))
        every = range(self.target.layers + 1)
        around = {layer + step for layer in self.own for step in (-1, 0, 1)}
        self.near = tuple(sorted(around & set(every)))
        self.states = [self._read(text) for _, text in self.texts]

    def _read(self, text: list[int]) -> dict[int, torch.Tensor]:
        context = self.target.open([[*text, text[-1]]], 1)
        context.prefill([0], self.near)
        states = context.states.pop(0)
        context.close()
        return {layer: value.float() for layer, value in states.items()}

    def guesses(self, layers: Sequence[int], steps: int) -> list[list[np.ndarray]]:
        """For each text and step, the most likely tokens of the chains from every place."""
        raise NotImplementedError

    def share(self, layers: Sequence[int], shift: int = 0) -> float:
        """The share of right first guesses when reading `layers`, compared `shift` places further on."""
        hits = count = 0
        for (prompt, text), (best, *_) in zip(self.texts, self.guesses(layers, 1)):
            ids = np.array(text)
            places = np.arange(len(best)) + 2 + shift
            at = (places >= prompt) & (places < len(ids))
            hits += int((best[at] == ids[places[at]]).sum())
            count += int(at.sum())
        return hits / max(count, 1)

    def layers(self) -> dict[str, float]:
        """Shares of right first guesses with neighbouring layers in place of those that the head reads."""
        own, shares = self.own, {}
        moved = [tuple(layer + step for layer in own) for step in (-1, 1)]
        moved += [(*own[:i], own[i] + step, *own[i + 1 :]) for i in range(len(own)) for step in (-1, 1)]
        for layers in dict.fromkeys(moved):
            if set(layers) <= set(self.near):
                many = "s" * (len(layers) > 1)
                shares[f"reading layer{many} {', '.join(map(str, layers))}"] = self.share(layers)
        return shares

    def shifts(self) -> dict[str, float]:
        """Shares of right first guesses when they are compared with tokens at other places."""
        return {f"taking its guess as {what}": self.share(self.own, by) for by, what in self.places.items()}


class EagleReading(Reading):
    """An EAGLE head that reads finished texts of its target, in float32."""

    drafter: EagleModel

    @cached_property
    def widened(self) -> tuple[Eagle, EagleLoss]:
        """The head in float32, and what computes its scores."""
        return copy.deepcopy(self.drafter.net).float(), EagleLoss(self.target.net)

    @torch.no_grad()
    def guesses(self, layers: Sequence[int], steps: int) -> list[list[np.ndarray]]:
        """See `Reading.guesses`."""
        net, loss = self.widened
        table, of = embeddings(self.target.net), words(net)
        every = []
        for (_, text), states in zip(self.texts, self.states):
            embedded = F.embedding(torch.tensor([text], device=table.device), table).float()
            read = torch.cat([states[layer] for layer in layers], -1)[None]
            best = []
            for out in unroll(net, embedded, read, steps):
                tokens = loss._words(net, out[0]).argmax(-1)
                best.append((tokens if of is None else of[tokens]).cpu().numpy())
            every.append(best)
        return every


class HeadsReading(Reading):
    """Blockwise heads that read finished texts of their target, in the target's number format."""

    drafter: HeadModel
    # Heads begin as the target's own, so all untrained ones guess the token before.
    places: ClassVar = {by: place for by, place in SHIFTS.items() if by > 0}

    def guesses(self, layers: Sequence[int], steps: int) -> list[list[np.ndarray]]:
        """See `Reading.guesses`; before the answer nothing is guessed."""
        every = []
        for (prompt, _), states in zip(self.texts, self.states):
            read = states[layers[0]].to(self.target.dtype)
            best = np.full((steps, len(read)), -1)
            for at in range(max(prompt - 2 - max(SHIFTS), 0), len(read)):
                best[:, at] = self.drafter.guesses(read[at], steps).argmax(-1).cpu().numpy()
            every.append(list(best))
        return every


def _whole(trace: Trace) -> Trace:
    """The trace, if Ctrl-C has not cut it short."""
    if not trace.run["complete"]:
        raise KeyboardInterrupt
    return trace


def _texts(target: Model, prompts: list[list[int]], most: int) -> list[tuple[int, list[int]]]:
    """Greedy texts of the target that are long enough and do not repeat themselves."""
    if not prompts:
        return []
    own = _whole(generate(target, prompts, "autoregressive", max_new_tokens=most)).outputs
    texts = []
    for number, prompt in enumerate(prompts):
        answer = own[own["prompt"] == number]["token"].tolist()
        if _varied(answer):
            texts.append((len(prompt), [*prompt, *answer]))
    return texts


def _varied(answer: list[int]) -> bool:
    """Whether an answer has at least four tokens and does not repeat itself."""
    runs = [tuple(answer[i : i + RUN]) for i in range(len(answer) - RUN + 1)]
    return len(set(runs)) > VARIED * len(runs)


def _raw(target: Model, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Encode the text prompts without the chat template; none if the target has no template."""
    if not getattr(target.tokenizer, "chat_template", None):
        return []
    return [target.text.encode(prompt, raw=True) for prompt in prompts if isinstance(prompt, str)]


def _greedy(target: Model, prompts: Sequence[Prompt], most: int) -> list[tuple[int, list[int]]]:
    """Greedy texts of the target for the check.

    Raises
    ------
    PromptError
        If the texts are too short.
    """
    texts = _texts(target, [target.encode(prompt) for prompt in prompts], most)
    if not texts:
        raise PromptError(
            f"{target.name}'s texts are too short or too uniform for guessing: give other prompts"
        )
    return texts


def _guesses(drafter: Drafter, target: Model, prompt: int, text: list[int]) -> Guesses:
    """The chains that a draft model or heads guess if they read the text's own tokens."""
    heads = isinstance(drafter, HeadModel)
    context = (target if heads else drafter).open([text[:prompt]], len(text) - prompt)
    read = context.forward([Draft.chain(text[prompt:-1])], (-1,) if heads else ())
    context.close()
    if isinstance(drafter, HeadModel):
        n = min(DEPTH, drafter.most - 1)
        best = torch.stack([drafter.guesses(state, n).argmax(-1) for state in read.hidden[-1][0]], 1)
        return prompt + 1, list(best.cpu().numpy())  # a state writes the next token, heads those after it
    tokens = read.logits[0].argmax(-1).cpu().numpy()
    return prompt, [tokens[depth:] for depth in range(DEPTH)]


def _chains(
    texts: list[tuple[int, list[int]]],
    guesses: Sequence[Guesses],
    begun: Sequence[np.ndarray] | None = None,
) -> np.ndarray:
    """Right guesses and places [texts, depths, 2], if all guesses before were right.

    `begun` limits each text to chains from these places. Default: from every place of the answer.
    """
    depths = max(len(chains) for _, chains in guesses)  # of a short text fewer; heads may be fewer than DEPTH
    counts = np.zeros((len(texts), depths, 2), int)
    for number, ((prompt, text), (first, chains)) in enumerate(zip(texts, guesses)):
        places = np.arange(first, len(text))
        alive = places >= prompt if begun is None else np.isin(places, begun[number])
        for depth, best in enumerate(chains):
            ids = np.array(text[first + depth :])[: len(best)]
            hit, alive = best[: len(ids)] == ids, alive[: len(ids)]
            counts[number, depth] = (hit & alive).sum(), alive.sum()
            alive = alive & hit
    return counts


def _looped(
    target: Model, drafter: Drafter | EagleModel, texts: list[tuple[int, list[int]]], most: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Decode with drafted chains; return where cycles begin, and right guesses and places as `_chains`."""
    if isinstance(drafter, EagleModel):
        method, chain = "eagle", {"depth": DEPTH, "branches": 1, "draft_size": DEPTH}
    elif isinstance(drafter, HeadModel):
        method, chain = "blockwise", {"k": min(DEPTH + 1, drafter.most)}  # one is the target's own token
    else:
        method, chain = "speculative", {"draft_length": DEPTH}
    prompts = [text[:prompt] for prompt, text in texts]
    trace = _whole(generate(target, prompts, method, draft=drafter, max_new_tokens=most, **chain))
    cycles = trace.cycles[(trace.cycles["cycle"] > 0) & (trace.cycles["sent"] > 0)]
    begun = [cycles.loc[cycles["prompt"] == n, "context"].to_numpy() for n in range(len(texts))]
    judged = trace.nodes[trace.nodes["status"].isin(["accepted", "rejected"])]
    counts = np.zeros((len(texts), DEPTH, 2), int)
    at = judged["prompt"].to_numpy(), judged["depth"].to_numpy() - 1
    np.add.at(counts, at, np.stack([judged["status"] == "accepted", np.ones(len(judged))], 1).astype(int))
    return begun, counts


def _depth_table(forced: np.ndarray, begun: np.ndarray, looped: np.ndarray) -> pd.DataFrame:
    """Table of the shares by depth, and whether each agrees with the loop's within chance."""
    rows = []
    for depth in range(forced.shape[1]):
        row: dict[str, float | int | bool | None] = {}
        each = forced[:, depth], begun[:, depth], looped[:, depth]
        for name, counts in zip(SHARES, each):
            right, places = counts.sum(0).tolist()
            row |= {name: round(right / places, 3) if places else math.nan, f"{name} places": places}
        for name, counts in zip(SHARES, each[:2]):
            row[f"{name} agrees"] = _agree(counts, each[2])
        rows.append(row)
    table = pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1, name="depth"))
    return table.astype({f"{name} agrees": "boolean" for name in SHARES[:2]})


def _agree(one: np.ndarray, other: np.ndarray) -> bool | None:
    """Whether two shares of the same texts, [texts, 2], differ by no more than chance; None if too few."""
    if min((one[:, 1] > 0).sum(), (other[:, 1] > 0).sum()) < TEXTS:
        return None
    draws = np.random.default_rng(0).integers(len(one), size=(RESAMPLES, len(one)))
    (a, n), (b, m) = (counts[draws].sum(1).T for counts in (one, other))
    there = (n > 0) & (m > 0)
    low, high = np.quantile(a[there] / n[there] - b[there] / m[there], (0.025, 0.975))
    return bool(low <= 0 <= high)
