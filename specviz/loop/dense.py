"""The dense record: what both models say at every place of a finished text, from one more pass of each.

A run records the predictions that its own drafts needed. A what-if needs others: what the drafter would have
predicted where no draft began. Over the final text that is one teacher-forced pass of each model, so it is
added to the trace.

Where the drafter's own first token is not the text's, a draft goes on after it, in vain. What it would write
there follows from the text before and that token, wherever the draft began: the place's tail. The drafter
writes all tails of a text at once, as rows of one context.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, TypeAlias

import numpy as np
import torch

from ..arguments import check_int
from ..draft import Draft
from ..errors import ModelError, ParameterError
from ..methods.sampling import exact_type
from ..methods.signals import ranked
from ..models.protocols import Model, Pass
from ..trace import Trace, is_trace
from ..trace.dense import attach
from ..trace.files import Record
from .drafters import Loadable, load_drafter, load_if_needed
from .predictions import TOP

BLOCK = 64  # tokens of a pass: what is held of a text's logits at once
TAIL = 63  # tokens after a wrong one: a draft has 64 at most
HELD_SLOTS = 1 << 15  # slots of a context whose rows are tails, about
TIE = 1e-3  # a text's token may be this much less probable than the best one, for blocks round differently,
ROUGH = 16  # or so many times the number format's epsilon
TAILS = {"tail_position": np.int64, "tail_token": np.int64, "tail_p": np.float32, "tail_margin": np.float32}
NOTHING = Draft.empty()
Branching: TypeAlias = Any  # a context whose rows can be copied (`branch`)

Entry = tuple[int, int, float, float]  # of a tail: its place, a token, its probability, its lead


def densify(trace: Trace, model: Loadable, draft: Loadable | None = None, tail: int = TAIL) -> Trace:
    """The trace with its dense record, which `specviz.whatif` reads.

    Parameters
    ----------
    trace : Trace
        Of one greedy run, with its prompts.
    model : Model
        The target that made it.
    draft : Model, optional
        The draft model to record; without one only the target's side is recorded.
    tail : int
        How many tokens the drafter writes after its own first token, if that differs from the text; 0: no
        tails. The number of rejected tokens of a draft with a threshold is exact up to this length and
        bounded beyond.

    Returns
    -------
    Trace
        A new one, in memory; the columns ``out_top_*``, ``out_draft_*``, ``tail_*`` are filled
        (`specviz.schema`).

    Raises
    ------
    ParameterError
        If the trace was sampled or holds no prompts, or `tail` is not a valid length.
    ModelError
        If these models do not write this text.
    """
    run = is_trace(trace).run
    tail = check_int("tail", tail, 0)
    model = load_if_needed(model, None, None)
    draft = None if draft is None else load_drafter(model, draft, None, None)
    if (run["sampling"] or {}).get("temperature"):
        raise ParameterError("a sampled text cannot be replayed: densify a greedy run (temperature 0)")
    if run["canvas"] is not None or trace.has_streams:
        kind = "a stream" if run["canvas"] is None else "a canvas"
        raise ParameterError(
            f"{run['method']} decoded {kind}, whose record holds what a what-if needs: densify a run that "
            "decoded prompts from left to right"
        )
    if run["model"] and run["model"].get("name") != model.name:
        raise ModelError(f"the trace was made by {run['model'].get('name')}, not by {model.name}")
    if draft is not None:
        model.check_vocabulary(draft)
    outputs = trace.outputs
    outputs = outputs[outputs["kept"]]
    recorded = trace.cycles["top_k"].max()  # lists that the run has already are as long
    top_k = min([TOP if recorded != recorded else int(recorded), model.vocabulary,
                 *([draft.vocabulary] if draft is not None else [])])  # fmt: skip
    ends, most = frozenset(run["eos"] or ()), (run["sampling"] or {}).get("max_new_tokens")
    texts = []
    for number in sorted(outputs["prompt"].unique().tolist()):
        text = outputs.loc[outputs["prompt"] == number].sort_values("position")["token"]
        prompt = run["prompts"][number].get("tokens")
        if not prompt:
            raise ParameterError("the trace holds no prompts (it was redacted), so nothing can be recomputed")
        columns: dict[str, np.ndarray] = {}
        if draft is not None:
            columns = _drafter(prompt, text.tolist(), draft, top_k, tail, ends, most)
        columns |= _target(prompt, text.tolist(), model, top_k, columns)
        _check(number, text.to_numpy(), columns, run, model)
        texts.append(columns)
    columns = {name: np.concatenate([part[name] for part in texts]) for name in (texts[0] if texts else {})}
    about = None
    if draft is not None:
        about = {name: getattr(draft, name) for name in ("name", "parameters", "max_length")} | {"tail": tail}
    order = outputs.sort_values(["prompt", "position"], kind="stable").index.to_numpy()
    return attach(trace, order, columns, top_k, about, model.piece)


def _drafter(
    prompt: list[int], text: list[int], draft: Model, top_k: int, tail: int, ends: frozenset[int],
    most: int | None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The drafter's columns of one text, one row per token; of ``tail_*`` one row per token of a tail."""
    token, p = np.zeros((len(text), top_k), np.int64), np.full((len(text), top_k), np.nan, np.float32)
    written: list[Entry] = []
    full = draft.left(len(prompt))  # beyond its own context the drafter predicts nothing
    if full > 0:
        forced_text = text[:full]
        with closing(draft.open([prompt], len(forced_text))) as context:
            token[:full], p[:full], _ = forced(context, forced_text, top_k)
            wrong = {i: t for i, t in enumerate(token[:full, 0].tolist()) if t != text[i] and t not in ends}
            end = min(full, most or full)  # no draft goes beyond these positions
            written = tails(context, len(prompt), wrong, {i: min(tail, end - i - 1) for i in wrong}, ends)
    columns: dict[str, np.ndarray] = {"out_draft_token": token, "out_draft_p": p}
    for i, (name, kind) in enumerate(TAILS.items()):
        columns[name] = np.array([entry[i] for entry in written], kind)
    return columns | {"tail": np.bincount(columns["tail_position"], minlength=len(text))}


def _target(
    prompt: list[int], text: list[int], model: Model, top_k: int, drafter: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The target's columns of one text, and what it thinks of the drafter's first tokens."""
    first = drafter["out_draft_token"][:, 0].tolist() if drafter else None
    with closing(model.open([prompt], len(text))) as context:
        token, p, rated = forced(context, text, top_k, first)
    columns = {"out_top_token": token, "out_top_p": p}
    if drafter:
        no_draft = np.isnan(drafter["out_draft_p"][:, 0])
        columns["out_draft_rated"] = np.where(no_draft, np.nan, rated).astype(np.float32)
    return columns


def forced(
    context: Branching, text: list[int], top_k: int, rated: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a model predicts at each place of `text` after a context of one row, given the text before it.

    The context then holds the text but its last token, all computed.

    Returns
    -------
    tokens, p : arrays [len(text), top_k]
        Best first.
    p_rated : array [len(text)]
        The probability of each place's token of `rated` (default: of `text`).
    """
    rated = text if rated is None else rated
    device = context.model.device
    parts = []
    for begin, result in read_in_blocks(context, text):
        tokens, p = best(result.logits[0], top_k)
        p_rated = p.gather(1, torch.tensor(rated[begin : begin + BLOCK], device=device)[:, None])
        parts.append([x.cpu().numpy() for x in (tokens, p.gather(1, tokens), p_rated[:, 0])])
    tokens_of_text, p_of_text, p_rated_of_text = (np.concatenate(part) for part in zip(*parts))
    return tokens_of_text, p_of_text, p_rated_of_text


def read_in_blocks(
    context: Branching, text: list[int], hidden: tuple[int, ...] = ()
) -> Iterator[tuple[int, Pass]]:
    """Have a model read `text` after a context of one row, given the text before each place.

    Yields
    ------
    begin : int
        The first place of a block.
    result : Pass
        Its row i predicts the token at place ``begin + i``; `hidden` names the layers whose states it holds.
    """
    context.prefill()
    for begin in range(0, len(text), BLOCK):
        block = text[begin : begin + BLOCK]
        draft = Draft.chain(torch.tensor(block[:-1], dtype=torch.long, device=context.model.device))
        yield begin, context.forward(draft, hidden)
        context.commit(list(range(len(block) - 1)))
        if begin + len(block) < len(text):
            context.extend([block[-1:]])


def best(rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best tokens of each row of logits [rows, k], and every token's probability [rows, vocabulary]."""
    return ranked(rows, k), rows.softmax(-1)


def tails(
    context: Branching, start: int, wrong: dict[int, int], room: dict[int, int], ends: frozenset[int]
) -> list[Entry]:
    """What a drafter writes after its own tokens, greedily, each tail to an end token or its room.

    Parameters
    ----------
    context : Context
        Of one row, with the text.
    start : int
        Tokens before the text.
    wrong : dict of int to int
        By position in the text the token that a tail follows.
    room : dict of int to int
        By position the most tokens of its tail.
    ends : set of int

    Returns
    -------
    list of (position, token, probability, lead over the second)
        Tail by tail, the positions rising.
    """
    places = [at for at in wrong if room[at] > 0]
    if not places:
        return []
    most = max(room[at] for at in places)
    some = max(1, HELD_SLOTS // (start + places[-1] + 1 + most))
    entries: list[Entry] = []
    for batch in (places[i : i + some] for i in range(0, len(places), some)):
        with closing(context.branch([start + at for at in batch], 1 + most)) as rows:
            entries += _tail_batch(rows, batch, wrong, room, ends)
    return entries


def _tail_batch(
    rows: Branching, places: list[int], wrong: dict[int, int], room: dict[int, int], ends: frozenset[int]
) -> list[Entry]:
    """Tails as rows of one context: one pass a token, one synchronisation a pass."""
    written: list[list[Entry]] = [[] for _ in places]
    new = [[wrong[at]] for at in places]
    while any(new):
        rows.extend(new)
        scores = torch.cat(rows.forward([NOTHING] * len(places)).logits)
        tokens, p = best(scores, 2)
        two = p.gather(1, tokens).to(exact_type(p.device))
        best_two = torch.cat([tokens[:, :1].to(two.dtype), two], 1).tolist()  # the synchronisation
        for i, at in enumerate(places):
            if new[i]:
                token, first, second = best_two[i]
                written[i].append((at, int(token), first, first - second))
                new[i] = [int(token)] if token not in ends and len(written[i]) < room[at] else []
    return [entry for tail in written for entry in tail]


def epsilon(dtype: torch.dtype | str) -> float:
    """Of the numbers that a model computes with; quantized files round what they multiply to eight bits."""
    if isinstance(dtype, torch.dtype):
        return torch.finfo(dtype).eps
    return {"float32": 2.0**-23, "float16": 2.0**-10}.get(dtype, 2.0**-8)


def _check(number: int, text: np.ndarray, columns: dict[str, np.ndarray], run: Record, model: Model) -> None:
    """Refuse a text that the models could not have written, as far as the record shows."""
    token, p = columns["out_top_token"], columns["out_top_p"]
    tie = max(TIE, ROUGH * epsilon(model.dtype))
    fits = (token == text[:, None]) & (p >= p[:, :1] - tie)
    written = fits.any(1)
    if run["exactness"] == "lossy" and "out_draft_token" in columns:
        written |= (columns["out_draft_token"] == text[:, None]).any(1)
    if run["exactness"] == "lossy" and "out_draft_token" not in columns:
        return
    if not written.all():
        at = int(np.argmin(written))
        raise ModelError(
            f"{model.name} does not write this text (prompt {number}, position {at}): these are not the "
            "weights that made the trace"
        )
