"""The dense record: what both models say at every place of a finished text, from one more pass of each.

A run records what its own drafts asked. A what-if asks elsewhere: what the drafter would have said where no
draft began. Over the final text that is one teacher-forced pass of each model, so it is added to the trace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..draft import Draft
from ..errors import ModelError, ParameterError
from ..signals import top
from ..trace import Trace
from ..trace.dense import attach
from .reduce import TOP

BLOCK = 64  # tokens of a pass: what is held of a text's logits at once
TIE = 1e-3  # a text's token may be this much less probable than the best one, for blocks round differently,
ROUGH = 16  # or so many times the number format's epsilon


def densify(trace: Trace, model: Any, draft: Any = None) -> Trace:
    """The trace with its dense record, which `specviz.whatif` reads.

    Parameters
    ----------
    trace : Trace
        Of one greedy run, with its prompts.
    model : Model
        The target that made it.
    draft : Model, optional
        The draft model to be asked about; without one only the target's side is recorded.

    Returns
    -------
    Trace
        A new one, in memory; the columns ``out_top_*``, ``out_draft_*`` are filled (`specviz.schema`).

    Raises
    ------
    ParameterError
        If the trace was sampled, or holds no prompts.
    ModelError
        If the text is not one that these models write.
    """
    run = trace.run
    if (run["sampling"] or {}).get("temperature"):
        raise ParameterError("a sampled text cannot be replayed: densify a greedy run (temperature 0)")
    if run["model"] and run["model"].get("name") != model.name:
        raise ModelError(f"the trace was made by {run['model'].get('name')}, not by {model.name}")
    if draft is not None:
        model.check_vocabulary(draft)
    outputs = trace.outputs
    outputs = outputs[outputs["kept"]]
    top_k = min([TOP, model.vocabulary, *([draft.vocabulary] if draft is not None else [])])
    found = []
    for number in sorted(outputs["prompt"].unique().tolist()):
        text = outputs.loc[outputs["prompt"] == number].sort_values("position")["token"]
        prompt = run["prompts"][number].get("tokens")
        if not prompt:
            raise ParameterError("the trace holds no prompts (it was redacted), so nothing can be recomputed")
        found.append(_columns(prompt, text.tolist(), model, draft, top_k))
        _check(number, text.to_numpy(), found[-1], run, model)
    columns = {name: np.concatenate([part[name] for part in found]) for name in (found[0] if found else {})}
    about = None
    if draft is not None:
        about = {name: getattr(draft, name) for name in ("name", "parameters", "max_length")}
    order = outputs.sort_values(["prompt", "position"], kind="stable").index.to_numpy()
    return attach(trace, order, columns, top_k, about, model.piece)


def _columns(prompt: list[int], text: list[int], model: Any, draft: Any, top_k: int) -> dict[str, np.ndarray]:
    """The dense columns of one text, one row a token."""
    columns: dict[str, np.ndarray] = {}
    first = None
    if draft is not None:
        # Behind its own context the drafter says nothing.
        room = max(0, min(len(text), draft.max_length - len(prompt)))
        token, p = np.zeros((len(text), top_k), np.int64), np.full((len(text), top_k), np.nan, np.float32)
        if room:
            token[:room], p[:room], _ = forced(draft, prompt, text[:room], top_k)
        columns |= {"out_draft_token": token, "out_draft_p": p}
        first = token[:, 0].tolist()
    columns["out_top_token"], columns["out_top_p"], rated = forced(model, prompt, text, top_k, first)
    if first is not None:
        columns["out_draft_rated"] = np.where(np.isnan(p[:, 0]), np.nan, rated).astype(np.float32)
    return columns


def forced(
    model: Any, prompt: list[int], text: list[int], top_k: int, asked: list[int] | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a model predicts at each place of `text` behind `prompt`, the text before it given.

    Returns
    -------
    tokens, p : arrays [len(text), top_k]
        Best first.
    asked : array [len(text)]
        The probability of each place's token of `asked` (default: of `text`).
    """
    asked = text if asked is None else asked
    parts = []
    context = model.open([prompt], len(text))
    try:
        context.prefill()
        for begin in range(0, len(text), BLOCK):
            block = text[begin : begin + BLOCK]
            draft = Draft.chain(torch.tensor(block[:-1], dtype=torch.long, device=model.device))
            rows = context.forward(draft).logits[0]
            p = rows.softmax(-1)
            tokens = top(rows, top_k)[1]
            first = rows.argmax(-1, keepdim=True)  # of equals the first, as drafter and verifier have it
            tokens = torch.cat([first, torch.where(tokens == first, tokens[:, :1], tokens)[:, 1:]], 1)
            rated = p.gather(1, torch.tensor(asked[begin : begin + BLOCK], device=model.device)[:, None])
            parts.append([x.cpu().numpy() for x in (tokens, p.gather(1, tokens), rated[:, 0])])
            if begin + len(block) < len(text):
                context.commit(list(range(len(block) - 1)))
                context.extend([block[-1:]])
    finally:
        context.close()
    found = [np.concatenate(part) for part in zip(*parts)]
    return found[0], found[1], found[2]


def _check(
    number: int, text: np.ndarray, said: dict[str, np.ndarray], run: dict[str, Any], model: Any
) -> None:
    """Whether the models could have written the text, as far as the record knows."""
    token, p = said["out_top_token"], said["out_top_p"]
    tie = max(TIE, ROUGH * torch.finfo(model.dtype).eps)
    fits = (token == text[:, None]) & (p >= p[:, :1] - tie)
    written = fits.any(1)
    if run["exactness"] == "lossy" and "out_draft_token" in said:
        written |= (said["out_draft_token"] == text[:, None]).any(1)
    if run["exactness"] == "lossy" and "out_draft_token" not in said:
        return
    if not written.all():
        at = int(np.argmin(written))
        raise ModelError(
            f"{model.name} does not write this text (prompt {number}, position {at}): these are not the "
            "weights that made the trace"
        )
