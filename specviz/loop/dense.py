"""The dense record: both models' predictions at every position of a finished text.

A run records the predictions that its own drafts needed. A what-if also needs what the drafter would have
predicted at positions where no draft began. One teacher-forced pass of each model over the final text
provides that, and it is added to the trace.

Where the drafter's first token differs from the text, a draft continues after it in vain. That
continuation, the *tail* of the position, depends only on the text before it and on that token, not on where
the draft began. The drafter writes all tails of a text at once, as rows of one context.
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
from ..models.kernels import PLAIN, rounding
from ..models.protocols import Model, Pass
from ..trace import Trace, is_trace
from ..trace.dense import attach
from ..trace.files import Record
from .drafters import Loadable, load_drafter, load_if_needed
from .machine import content, load_options, number_format
from .predictions import TOP

BLOCK = 64  # tokens per pass; limits how many logits are held at once
TAIL = 63  # tokens after a wrong first token: a draft has at most 64
HELD_SLOTS = 1 << 15  # approximate slots of a context whose rows are tails
TIE = 1e-3  # a text's token may be this much less probable than the best one: rounding depends on the block
ROUGH = 16  # the same tolerance in units of the number format's epsilon; the larger one applies
TAILS = {"tail_position": np.int64, "tail_token": np.int64, "tail_p": np.float32, "tail_margin": np.float32}
NOTHING = Draft.empty()
Branching: TypeAlias = Any  # a context whose rows can be copied (`branch`)

Entry = tuple[int, int, float, float]  # a token of a tail: position, token, probability, margin to the second


def densify(trace: Trace, model: Loadable, draft: Loadable | None = None, tail: int = TAIL) -> Trace:
    """Return the trace with its dense record, which `specviz.whatif` reads.

    Parameters
    ----------
    trace : Trace
        One greedy run, with its prompts.
    model : Model
        The target that decoded it. One given by name is loaded in the trace's number format and layout.
    draft : Model, optional
        The draft model to record. Without it, only the target's side is recorded.
    tail : int
        How many tokens the drafter writes after its first token, if that differs from the text; 0 for no
        tails. What-ifs count the rejected tokens of a draft with a threshold exactly up to this length, and
        give bounds beyond it.

    Returns
    -------
    Trace
        A new one, in memory, with the columns ``out_top_*``, ``out_draft_*`` and ``tail_*`` filled
        (`specviz.schema`).

    Raises
    ------
    ParameterError
        If the trace was sampled, decoded a stream or a canvas, or holds no prompts, or `tail` is invalid.
    ModelError
        If these models did not write this text, or the target's weights, number format or rounding layout
        differ from the trace's.
    """
    run = is_trace(trace).run
    tail = check_int("tail", tail, 0)
    saved = load_options(model, run)
    layout = {"kernels": saved["kernels"]} if rounding(saved.get("kernels", PLAIN)) else {}
    model = load_if_needed(model, None, saved.get("dtype"), **layout)
    draft = None if draft is None else load_drafter(model, draft, None, None)
    if (run["sampling"] or {}).get("temperature"):
        raise ParameterError("a sampled text cannot be replayed: densify a greedy run (temperature 0)")
    if run["canvas"] is not None or trace.has_streams:
        kind = "a stream" if run["canvas"] is None else "a canvas"
        raise ParameterError(
            f"{run['method']} decoded {kind}, whose record holds what a what-if needs: densify a run that "
            "decoded prompts from left to right"
        )
    _check_target(run, model)
    if draft is not None:
        model.check_vocabulary(draft)
    outputs = trace.outputs
    outputs = outputs[outputs["kept"]]
    recorded = trace.cycles["top_k"].max()  # length of the run's own top lists
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
    """The drafter's columns for one text: one row per token, and for ``tail_*`` one row per tail token."""
    token, p = np.zeros((len(text), top_k), np.int64), np.full((len(text), top_k), np.nan, np.float32)
    written: list[Entry] = []
    full = draft.left(len(prompt))  # the drafter predicts nothing beyond its own context
    if full > 0:
        forced_text = text[:full]
        with closing(draft.open([prompt], len(forced_text))) as context:
            token[:full], p[:full], _ = forced(context, forced_text, top_k)
            wrong = {i: t for i, t in enumerate(token[:full, 0].tolist()) if t != text[i] and t not in ends}
            end = min(full, most or full)  # no draft reaches beyond this position
            written = tails(context, len(prompt), wrong, {i: min(tail, end - i - 1) for i in wrong}, ends)
    columns: dict[str, np.ndarray] = {"out_draft_token": token, "out_draft_p": p}
    for i, (name, kind) in enumerate(TAILS.items()):
        columns[name] = np.array([entry[i] for entry in written], kind)
    return columns | {"tail": np.bincount(columns["tail_position"], minlength=len(text))}


def _target(
    prompt: list[int], text: list[int], model: Model, top_k: int, drafter: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The target's columns for one text, and its probabilities of the drafter's first tokens."""
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
    """Predictions at each position of `text`, which follows a single-row context, given the text before it.

    Afterwards the context holds the text without its last token, all computed.

    Returns
    -------
    tokens, p : arrays [len(text), top_k]
        Best first.
    p_rated : array [len(text)]
        The probability of the token of `rated` (default: of `text`) at each position.
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
    """Feed `text` after a single-row context in blocks; yield the pass of each block.

    Yields
    ------
    begin : int
        First position of the block.
    result : Pass
        Row i predicts the token at position ``begin + i``; `hidden` names the layers whose states it holds.
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
    """The k best tokens of each row of logits, [rows, k], and all probabilities, [rows, vocabulary]."""
    return ranked(rows, k), rows.softmax(-1)


def tails(
    context: Branching, start: int, wrong: dict[int, int], room: dict[int, int], ends: frozenset[int]
) -> list[Entry]:
    """Let the drafter continue its own wrong tokens greedily, each tail up to an end token or its room.

    Parameters
    ----------
    context : Context
        A single-row context that holds the text.
    start : int
        Number of tokens before the text.
    wrong : dict of int to int
        By position in the text, the token that the tail follows.
    room : dict of int to int
        By position, the maximum length of the tail.
    ends : set of int

    Returns
    -------
    list of (position, token, probability, margin over the second)
        Tail by tail, in ascending order of position.
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
    """Write tails as rows of one context, with one pass and one synchronisation per token."""
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
    """Epsilon of the number format a model computes in; quantized files round operands to eight bits."""
    if isinstance(dtype, torch.dtype):
        return torch.finfo(dtype).eps
    return {"float32": 2.0**-23, "float16": 2.0**-10}.get(dtype, 2.0**-8)


def _check_target(run: Record, model: Model) -> None:
    """Refuse a model that is not the run's: other weights, or others after rounding."""
    about, backend = run["model"] or {}, run["backend"] or {}
    if about and about.get("name") != model.name:
        raise ModelError(f"the trace was made by {about.get('name')}, not by {model.name}")
    for name, there, here in (
        ("dtype", run["dtype"], number_format(model)),
        ("kernels", backend.get("kernels"), getattr(model, "kernels", None)),
        ("content", about.get("content"), content(model)),
    ):
        same = rounding(there) == rounding(here) if name == "kernels" else there == here
        if not same and None not in (there, here):
            raise ModelError(
                f"the trace was decoded with {name} {there}, and {model.name} has {name} {here}: pass the "
                "model's name, or load it as the trace says"
            )


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
