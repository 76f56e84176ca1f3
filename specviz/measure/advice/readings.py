"""Predictions of the target and the drafters at every position of a finished text, for the simulation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from specviz.audit import answer_files
from specviz.audit.answer_files import Answer
from specviz.audit.answers import sampling_of as answer_sampling
from specviz.draft import Draft
from specviz.errors import ModelError, PromptError
from specviz.loop.cycle import decode
from specviz.loop.dense import Branching, best, epsilon, forced, read_in_blocks, tails
from specviz.methods import find
from specviz.methods.sampling import Sampling, TemperatureLast
from specviz.models.additions import HeadModel
from specviz.models.protocols import Model, Pass
from specviz.suites.files import Prompt
from specviz.whatifs.texts import FLOOR, WIDEN, TextRecord

TEMPERATURES = (0.7, 1.0)  # at which acceptance along greedy texts is computed
LONGEST = 16  # tokens of the longest simulated draft
PROBED = 12  # tokens read one by one to measure the rounding between passes of different shape


@dataclass(eq=False)
class Text:
    """A text of the target, without drafts.

    Parameters
    ----------
    name : str
        Its prompt's id, or its number.
    kind : str
        Its kind of work; empty if its prompt names none.
    ids, tokens : list of int
        Token ids of the prompt, and of the answer with its end token.
    end : str
        Why it ended: ``eos``, ``length`` or ``context``.
    limit : int
        Maximum number of tokens that could be written.
    eos : frozenset of int
        Ids that end a text.
    end_assumed : bool
        Whether the last of `tokens` only stands for an end token that the answer does not state. `read`
        replaces it by the likeliest one.
    """

    name: str
    kind: str
    ids: list[int]
    tokens: list[int]
    end: str
    limit: int
    eos: frozenset[int]
    end_assumed: bool = False

    def state_end(self, rows: torch.Tensor) -> None:
        """Replace an assumed end token by the likeliest one, given the logits [places, vocabulary]."""
        if self.end_assumed:
            ends = sorted(self.eos)
            self.tokens[-1] = ends[int(rows[-1, ends].argmax())]
            self.end_assumed = False

    def record(self, full: int) -> TextRecord:
        """A record without drafts or ties; `full` is the length of the drafter's context."""
        n = len(self.tokens)
        unset, blank = np.full((2, n), -1), np.full((4, n), np.nan)
        return TextRecord(
            0, 0, np.array(self.ids, np.int64), np.array(self.tokens, np.int64), self.end, self.limit, full,
            unset[0], blank[0], blank[1], unset[1], np.ones(n), blank[2], blank[3],
        )  # fmt: skip


@dataclass(eq=False)
class Reading:
    """A text with the predictions of the target and of each drafter.

    Parameters
    ----------
    text : Text
    own : array of bool [tokens]
        Whether each token is the target's most likely one; all true for a sampled text, which is not checked.
    close : bool
        Whether the target's two best tokens are ever closer than the rounding between passes of different
        shape.
    records : dict of str to TextRecord
        By draft model: its drafts along a greedy text.
    close_drafts : dict of str to bool
        By drafter: whether its two best tokens are ever as close.
    widths : dict of str to float
        The rounding, as `roundings` gives it; empty for a sampled text.
    odds : dict of str to array [tokens]
        By draft model, for a sampled text: the probability that its draft of each token would be accepted.
    guesses : dict of str to array [tokens, most - 1]
        By heads: their tokens for each position and the next ones; -1 where there are none.
    copied : array [tokens], optional
        For a text read as if sampled: the probability that a copy of each token would be accepted.
    sampled : dict of float to dict of str to array [tokens]
        For a greedy text, by temperature and draft model: the probability that its draw at each position
        would be accepted; under the empty name, the probability of the text's own token.
    """

    text: Text
    own: np.ndarray
    close: bool
    records: dict[str, TextRecord] = field(default_factory=dict)
    close_drafts: dict[str, bool] = field(default_factory=dict)
    widths: Rounding = field(default_factory=dict)
    odds: dict[str, np.ndarray] = field(default_factory=dict)
    guesses: dict[str, np.ndarray] = field(default_factory=dict)
    copied: np.ndarray | None = None
    sampled: dict[float, dict[str, np.ndarray]] = field(default_factory=dict)

    def near(self, draft: str, stop: float) -> bool:
        """Whether a draft model's confidence is ever as close to a threshold: a run may draft on or not."""
        p = self.records[draft].draft_p
        return bool((np.abs(p - stop) < self.widths.get(draft, 0.0) * p).any())

    def at(self, temperature: float) -> Reading:
        """This greedy text, read as if it had been sampled at one of `TEMPERATURES`."""
        odds = dict(self.sampled[temperature])
        return Reading(self.text, np.ones_like(self.own), False, self.records, odds=odds, copied=odds.pop(""))


def write_text(model: Model, prompt: Prompt, ids: list[int], name: str, most: int, sampling: Sampling,
               number: int, seed: int) -> Text:  # fmt: skip
    """Decode the target's own text after a prompt, without drafts."""
    tokens: list[int] = []
    end = "length"
    method = find("autoregressive")()
    for cycle in decode(model, ids, method, max_new_tokens=most, sampling=sampling, seed=seed, prompt=number):
        tokens += cycle.tokens
        end = cycle.end or end
    limit = min(most, model.left(len(ids)))
    return Text(name, str(prompt.get("kind") or ""), ids, tokens, end, limit, frozenset(model.eos))


def texts_of(answers: Sequence[Answer], model: Model) -> list[Text]:
    """Finished texts as token ids.

    Raises
    ------
    PromptError
        If an answer is empty or has no tokens that `model` could have written; the message names its line.
    """
    return [_text(answer, model, number) for number, answer in enumerate(answers)]


def sampling_of(answers: Sequence[Answer]) -> Sampling:
    """Sampling of finished texts, as their lines record it; greedy if they record none.

    Raises
    ------
    PromptError
        If they were sampled differently.
    """
    settings = list(dict.fromkeys(map(answer_sampling, answers)))
    if len(settings) > 1:
        ways = "; ".join(
            f"temperature {each.temperature:g}, top_k {each.top_k}, top_p {each.top_p:g}"
            f"{', temperature last' * isinstance(each, TemperatureLast)}"
            for each in settings[:3]
        )
        raise PromptError(
            f"the file holds answers of {len(settings)} kinds of sampling ({ways}): keep answers of one kind "
            "in it, or pass a temperature, which is then taken for all"
        )
    return settings[0]


def _text(answer: Answer, model: Model, number: int) -> Text:
    ids, tokens, why = answer_files.tokenised(answer, model)
    assumed = False
    ended = next((i for i, token in enumerate(tokens) if token in model.eos), None)
    if ended is not None:
        tokens = tokens[: ended + 1]
    elif answer.ids and answer.ids[-1] in model.eos:
        tokens = [*tokens, answer.ids[-1]]
    elif answer.end == "stop" and model.eos:
        tokens, assumed = [*tokens, model.eos[0]], True
    room = model.left(len(ids))
    if not why and not tokens:
        why = "the answer is empty: remove the line"
    if not why and len(tokens) > room:
        why = f"it exceeds the context of {model.max_length} tokens"
    if why:
        raise PromptError(f"{answer.where}: {why}")
    end = "eos" if tokens[-1] in model.eos else "length"
    limit = len(tokens) if end == "length" else max(len(tokens), min(room, answer.limit or room))
    name = answer.name or str(number)
    return Text(name, answer.kind, ids, tokens, end, limit, frozenset(model.eos), assumed)


def read(text: Text, model: Model, drafters: Sequence[Model], sampling: Sampling, width: Rounding) -> Reading:
    """Have the target and each drafter read a text once."""
    if not sampling.greedy:
        return _read_sampled(text, model, drafters, sampling)
    heads = [each for each in drafters if each.kind == "heads"]
    chains = [each for each in drafters if each.kind != "heads"]
    with ExitStack() as stack:
        context = stack.enter_context(closing(model.open([text.ids], len(text.tokens))))
        token, lead, states, sampled = _predictions(
            context, text, bool(heads), {each.name: _blocks(each, text, stack) for each in chains}
        )
    reading = Reading(text, token == np.array(text.tokens), bool((lead < width[model.name]).any()))
    reading.sampled, reading.widths = sampled, width
    for each in drafters:
        if isinstance(each, HeadModel):
            reading.guesses[each.name], close = _guesses(each, states, len(text.tokens), width[model.name])
            reading.close_drafts[each.name] = close
        else:
            record = reading.records[each.name] = _record(text, each)
            near = record.draft_lead < width[each.name] * record.draft_p
            reading.close_drafts[each.name] = bool(near.any())
    return reading


def _blocks(drafter: Model, text: Text, stack: ExitStack) -> Iterator[tuple[int, Pass]]:
    """Read a text with a draft model, block by block, up to the end of its context."""
    tokens = text.tokens[: max(0, drafter.left(len(text.ids)))]
    if not tokens:
        return iter(())
    return read_in_blocks(stack.enter_context(closing(drafter.open([text.ids], len(tokens)))), tokens)


def _predictions(
    context: Branching, text: Text, wanted: bool, drafters: dict[str, Iterator[tuple[int, Pass]]]
) -> tuple[np.ndarray, np.ndarray, list[torch.Tensor], dict[float, dict[str, np.ndarray]]]:
    """The target's best token at each position, its lead over the second one as a share of its probability,
    the hidden state before it if `wanted`, and the odds of acceptance at `TEMPERATURES`, for which `drafters`
    read the same blocks."""
    tokens = text.tokens
    token, lead, states = [], [], list[torch.Tensor]()
    odds = {t: {name: np.zeros(len(tokens)) for name in ("", *drafters)} for t in TEMPERATURES}
    for begin, result in read_in_blocks(context, tokens, (-1,) if wanted else ()):
        rows = result.logits[0]
        if begin + len(rows) == len(tokens):
            text.state_end(rows)
        chosen, p = best(rows, 2)
        two = p.gather(1, chosen)
        token.append(chosen[:, 0].cpu().numpy())
        lead.append((1 - two[:, 1] / two[:, 0]).cpu().numpy())
        if wanted:
            states += list(result.hidden[-1][0].clone())
        theirs = {
            name: each[1].logits[0] for name, blocks in drafters.items() if (each := next(blocks, None))
        }
        _sample(odds, begin, rows, tokens[begin : begin + len(rows)], theirs)
    return np.concatenate(token), np.concatenate(lead), states, odds


def _sample(
    odds: dict[float, dict[str, np.ndarray]], begin: int, rows: torch.Tensor, tokens: list[int],
    theirs: dict[str, torch.Tensor],
) -> None:  # fmt: skip
    """Fill in a block's odds of acceptance: p for a copied token, Σ min(p, q) for a draw from q."""
    at = torch.tensor(tokens, device=rows.device)[:, None]
    for temperature, made in odds.items():
        p = (rows / temperature).softmax(-1)
        made[""][begin : begin + len(tokens)] = p.gather(1, at)[:, 0].float().cpu().numpy()
        for name, logits in theirs.items():
            q = (logits.to(p.device) / temperature).softmax(-1)
            n, width = len(q), min(q.shape[1], p.shape[1])
            both = torch.minimum(p[:n, :width], q[:, :width]).sum(-1)
            made[name][begin : begin + n] = both.float().clamp(max=1).cpu().numpy()


def _record(text: Text, drafter: Model) -> TextRecord:
    """A draft model's token at each position, and its continuations of tokens that differ from the text."""
    left = max(0, drafter.left(len(text.ids)))
    record = text.record(len(text.ids) + left)
    tokens = text.tokens[:left]
    if not tokens:
        return record
    with closing(drafter.open([text.ids], len(tokens))) as context:
        chosen, p, _ = forced(context, tokens, 2)
        n = len(tokens)
        record.draft[:n], record.draft_p[:n], record.draft_lead[:n] = chosen[:, 0], p[:, 0], p[:, 0] - p[:, 1]
        wrong = {i: t for i, t in enumerate(chosen[:, 0].tolist()) if t != tokens[i] and t not in text.eos}
        if hasattr(context, "branch"):
            room = {i: min(LONGEST - 1, n - i - 1) for i in wrong}
            for at, token, p_token, lead in tails(context, len(text.ids), wrong, room, text.eos):
                record.tails.setdefault(at, []).append((token, p_token, lead))
    return record


def _guesses(heads: HeadModel, states: list[torch.Tensor], n: int, width: float) -> tuple[np.ndarray, bool]:
    """Tokens that heads draft at each position, from the state before it, and whether any choice is close."""
    guesses, close = np.full((n, heads.most - 1), -1, np.int64), False
    for at in range(1, n):
        rows = heads.guesses(states[at - 1], heads.most - 1)
        chosen, p = best(rows, 2)
        two = p.gather(1, chosen)
        close |= bool((two[:, 0] - two[:, 1] < width * two[:, 0]).any())
        guesses[at] = chosen[:, 0].cpu().numpy()
    return guesses, close


def _read_sampled(text: Text, model: Model, drafters: Sequence[Model], sampling: Sampling) -> Reading:
    """Read a sampled text: the probability that each token came from an accepted draft.

    A position emits x with probability p(x), and as an accepted draft with min(p(x), q(x)). Given the text,
    its token was therefore drafted with probability min(1, q(x) / p(x)), whose mean over x is Σ min(p, q).
    Positions are independent given the text (Leviathan et al. 2023, Algorithm 1).
    """
    reading = Reading(text, np.ones(len(text.tokens), bool), False)
    p = _probabilities(text, model, sampling, len(text.tokens))
    for each in drafters:
        if each.kind == "heads":
            continue
        reading.odds[each.name] = np.zeros(len(text.tokens))
        left = min(len(text.tokens), max(0, each.left(len(text.ids))))
        q = _probabilities(text, each, sampling, left)
        reading.odds[each.name][:left] = np.minimum(1, q / np.maximum(p[:left], 1e-30))
        reading.records[each.name] = text.record(len(text.ids) + max(0, each.left(len(text.ids))))
    return reading


def _probabilities(text: Text, model: Model, sampling: Sampling, n: int) -> np.ndarray:
    """The probability of each of the text's first n tokens under `sampling`."""
    tokens = text.tokens[:n]
    if not tokens:
        return np.empty(0)
    parts = []
    with closing(model.open([text.ids], n)) as context:
        for begin, result in read_in_blocks(context, tokens):
            if begin + len(result.logits[0]) == len(text.tokens):
                text.state_end(result.logits[0])  # the target reads the text before its drafters
                tokens = text.tokens
            rows = sampling.probabilities(result.logits[0])
            at = torch.tensor(tokens[begin : begin + len(rows)], device=rows.device)
            parts.append(rows.gather(1, at[:, None])[:, 0].double().cpu().numpy())
    return np.concatenate(parts)


Rounding: TypeAlias = dict[str, float]  # by model: a lead below this share of the probability is a tie


def roundings(text: Text, models: Sequence[Model]) -> Rounding:
    """Rounding margin of each model: `WIDEN` times the largest gap between one-token and longer passes.

    The gap is between logits, which round alike where the model is sure and where it is not; probabilities
    near 1 do not show it. Two logits that differ by g have probabilities that differ by at most the share g
    of the larger one.
    """
    widths = {}
    for model in models:
        if model.kind == "heads":
            continue
        tokens = text.tokens[: max(0, min(PROBED, model.left(len(text.ids))))]
        differences = np.zeros(1)
        if tokens:
            with closing(model.open([text.ids], len(tokens))) as context:
                many = np.concatenate([_largest(each) for _, each in read_in_blocks(context, tokens)])
            with closing(model.open([text.ids], len(tokens))) as context:
                differences = np.abs(_one_by_one(context, tokens) - many)
        widths[model.name] = max(FLOOR * epsilon(model.dtype), WIDEN * float(differences.max()))
    return widths


def _one_by_one(context: Branching, tokens: list[int]) -> np.ndarray:
    """The largest logit at each position, with one pass per token."""
    context.prefill()
    largest = []
    for token in tokens:
        largest.append(_largest(context.forward(Draft.empty())))
        context.commit([])
        context.extend([[token]])
    return np.concatenate(largest)


def _largest(result: Pass) -> np.ndarray:
    largest: np.ndarray = result.logits[0].amax(-1).double().cpu().numpy()
    return largest


def check_served(model: Model) -> None:
    """Refuse a target whose texts cannot be read position by position.

    Raises
    ------
    ModelError
    """
    if model.kind != "causal":
        raise ModelError(f"advice is for causal models, and {model.name} is {model.kind}")
