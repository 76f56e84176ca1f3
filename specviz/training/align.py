"""Prediction alignment: a draft model fine-tuned on what its target would say (BiLD, section 3.5.1).

The target answers the prompts greedily; the draft learns the answers, not the prompts. It then agrees more
often with the target, so that more of what it drafts is accepted. For any pair of one kind and vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch.nn.functional import cross_entropy

from specviz.errors import ModelError, ParameterError, PromptError
from specviz.models import load
from specviz.models.loading import find
from specviz.training.optimizer import Optimizer
from specviz.training.train import rate_at, read_checkpoint, write_checkpoint

Pair = tuple[list[int], list[int]]  # a prompt and the target's answer
HELD_OUT = 10  # every tenth prompt is kept from the draft, to measure by
ROWS = 32  # prompts that the target answers together
CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Aligned:
    """A draft that was aligned.

    Attributes
    ----------
    path : Path
        Its folder.
    before, after : float
        How often the draft's most likely token was the target's, on answers that it did not learn from.
    learnt, held_out : int
        Answers it learnt from, and was measured on.
    tokens : int
        Of all answers.
    """

    path: Path
    before: float
    after: float
    learnt: int
    held_out: int
    tokens: int

    def __str__(self) -> str:
        return (
            f"{self.path} (agreement with the target on {self.held_out} held-out answers: "
            f"{self.before:.3f} before, {self.after:.3f} after)"
        )


def align(
    target: Any,
    draft: Any,
    prompts: Sequence[Any],
    out: str | Path,
    *,
    epochs: float = 3,
    rate: float = 5e-4,
    batch: int = 16,
    max_new_tokens: int = 128,
    seed: int = 0,
    device: str = "cpu",
    force: bool = False,
    every: float = 60.0,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Aligned:
    """Fine-tune `draft` on `target`'s greedy answers to `prompts` and write it as a new model.

    What is under way lies in ``OUT.partial``: the answers, then a checkpoint. The same call goes on from it.

    Parameters
    ----------
    target, draft : Model, or anything else that `specviz.load` takes
        Of one kind, with one vocabulary. Neither is changed.
    prompts : sequence
        As `specviz.generate` takes them: texts, chats or token ids. Every tenth, and at least the last, is
        held out and only measured on.
    out : str or Path
        The folder to write: weights in the draft's number format, tokenizer, a card.
    epochs : float
        How often each answer is read.
    rate : float
        Peak learning rate; it rises for 3 % of the run, then falls to zero as a cosine.
    batch : int
        Texts of an update.
    max_new_tokens : int
        Most tokens of an answer; one that has not ended by then is learnt without an end.
    seed : int
        Of the order in which answers are read.
    force : bool
        Whether an existing folder may be replaced.
    every : float
        Seconds between checkpoints, and between lines of progress.

    Raises
    ------
    ModelError
        If the two are not of one kind or vocabulary, cannot be trained, or `out` exists.
    PromptError
        If there are fewer than two prompts, or one cannot be read or leaves no room for an answer.
    ParameterError
        If a value is out of range.
    """
    for name, value in (("epochs", epochs), ("rate", rate), ("batch", batch),
                        ("max_new_tokens", max_new_tokens)):  # fmt: skip
        if not value > 0:
            raise ParameterError(f"{name} must be positive, got {value}")
    path = Path(out).expanduser()
    partial = path.with_name(path.name + ".partial")
    if path.exists() and not (force and (path / "config.json").is_file()):
        more = ", or overwrite it with --force" if (path / "config.json").is_file() else ""
        raise ModelError(f"{path} exists: choose another folder{more}")
    if len(prompts) < 2:
        raise PromptError("alignment needs two prompts or more: one is held out to measure by")
    teacher, learner = load(target, device), load(draft, device)
    for model in (teacher, learner):
        if not hasattr(model, "net"):
            raise ModelError(
                f"{model.name} runs in llama.cpp: alignment needs a model in transformers' format"
            )
    if teacher.kind != learner.kind:
        raise ModelError(
            f"{teacher.name} is of kind {teacher.kind} and {learner.name} {learner.kind}: a draft model must "
            "be of the target's kind"
        )
    teacher.check_vocabulary(learner)
    asked = [_encoded(teacher, number, prompt) for number, prompt in enumerate(prompts, 1)]
    kept = _length(teacher, learner, asked, max_new_tokens)

    settings = [epochs, rate, batch, kept, seed, teacher.name, learner.name, asked]
    mark = hashlib.blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()
    _resumed(partial, mark, force)
    answered = _answers(partial, teacher, asked, kept, say)
    pairs = list(zip(asked, answered))
    apart = range(HELD_OUT - 1, len(pairs), HELD_OUT) or [len(pairs) - 1]
    held = [pairs[i] for i in apart]
    learnt = [pair for i, pair in enumerate(pairs) if i not in apart]

    net = deepcopy(learner.net).float().requires_grad_(True)
    prefix = getattr(learner, "prefix", None)
    before = agreement(net, held, batch, prefix)
    _learn(net, learnt, partial, epochs, rate, batch, seed, prefix, every, say)
    after = agreement(net, held, batch, prefix)

    found = Aligned(path, before, after, len(learnt), len(held), sum(len(answer) for _, answer in pairs))
    made = partial / "model"
    shutil.rmtree(made, ignore_errors=True)
    net.to(_stored(draft, learner)).save_pretrained(made)
    if learner.tokenizer is not None:
        learner.tokenizer.save_pretrained(made)
    (made / "README.md").write_text(_card(found, teacher.name, learner.name, epochs, rate), encoding="utf-8")
    _replace(made, path)
    shutil.rmtree(partial)
    return found


def agreement(net: Any, pairs: Sequence[Pair], batch: int = 16, prefix: Sequence[int] | None = None) -> float:
    """How often the most likely token is the answer's, its tokens before given."""
    hits = total = 0
    net.eval()
    with torch.inference_mode():
        for first in range(0, len(pairs), batch):
            scores, wanted = _scores(net, pairs[first : first + batch], prefix)
            hits += int((scores.argmax(-1) == wanted).sum())
            total += len(wanted)
    return hits / total


def _encoded(model: Any, number: int, prompt: Any) -> list[int]:
    try:
        return model.encode(prompt)
    except PromptError as error:
        raise PromptError(f"prompt {number}: {error}") from None


def _length(teacher: Any, learner: Any, asked: Sequence[Sequence[int]], most: int) -> int:
    """Most tokens of an answer that both models have room for behind the longest prompt."""
    longest = max(map(len, asked))
    room = min(model.left(longest) for model in (teacher, learner))
    if room < 1:
        raise PromptError(
            f"prompt {[len(a) for a in asked].index(longest) + 1} has {longest} tokens and leaves no room "
            "for an answer: shorten it"
        )
    return min(most, room)


def _stored(draft: Any, learner: Any) -> torch.dtype:
    """The number format of the draft's weights where they lie; they were loaded in float32."""
    if not isinstance(draft, str | Path):
        return learner.dtype
    from transformers import AutoConfig

    source = find(str(draft)) or str(draft).removeprefix("hf:")
    return AutoConfig.from_pretrained(source, local_files_only=True).dtype or learner.dtype


def _resumed(partial: Path, mark: str, force: bool) -> None:
    """Make ready the folder of what is under way, if it is this alignment's."""
    file = partial / "settings"
    if partial.exists() and (not file.is_file() or file.read_text(encoding="utf-8") != mark):
        if not force:
            raise ModelError(
                f"{partial} is left of another alignment: delete it, or overwrite it with --force"
            )
        shutil.rmtree(partial)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        file.write_text(mark, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"cannot write {partial}: {error.strerror or error}") from error


def _answers(
    partial: Path, teacher: Any, asked: Sequence[Sequence[int]], most: int, say: Callable[[str], None]
) -> list[list[int]]:
    """The target's greedy answers with their end tokens, from the folder or made now."""
    file = partial / "answers.safetensors"
    if not file.exists():
        found: list[list[int]] = [[] for _ in asked]
        order = sorted(range(len(asked)), key=lambda i: len(asked[i]))
        for first in range(0, len(order), ROWS):
            rows = order[first : first + ROWS]
            for i, answer in zip(rows, greedy(teacher, [asked[i] for i in rows], most)):
                found[i] = answer
            say(f"{teacher.name}: {min(first + ROWS, len(order)):,} of {len(order):,} prompts answered")
        part = file.with_suffix(".part")
        starts = np.cumsum([0, *map(len, found)])
        save_file({"tokens": np.array(list(chain.from_iterable(found)), np.int64), "starts": starts}, part)
        os.replace(part, file)
    stored = load_file(file)
    ends = stored["starts"].tolist()
    return [stored["tokens"][a:b].tolist() for a, b in pairwise(ends)]


def greedy(model: Any, prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """Greedy continuations of all prompts together, at most `most` tokens; an end token is kept.

    What a generation config may ask for (penalties, forced words) is left out, as in `specviz.generate`.
    """
    from transformers import GenerationConfig
    from transformers.cache_utils import DynamicCache, EncoderDecoderCache

    width = max(map(len, prompts))
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    given: dict[str, Any] = {"input_ids": ids.to(model.device), "attention_mask": mask.to(model.device)}
    prefix = getattr(model, "prefix", None)
    if prefix:
        given["decoder_input_ids"] = torch.tensor([prefix] * len(prompts), device=model.device)
        # Its layers are made as they are met: a decoder may be deeper than what the config calls its depth.
        given["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
    net, own = model.net, model.net.generation_config
    net.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=list(model.eos) or None, pad_token_id=0,
        decoder_start_token_id=prefix[0] if prefix else None,
    )  # fmt: skip
    try:
        with torch.inference_mode():
            found = net.generate(**given, max_new_tokens=most)[:, len(prefix) if prefix else width :].tolist()
    finally:
        net.generation_config = own
    answers = []
    for row in found:
        end = next((i + 1 for i, token in enumerate(row) if token in model.eos), len(row))
        answers.append(row[:end])
    return answers


def _scores(
    net: Any, pairs: Sequence[Pair], prefix: Sequence[int] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [n, vocabulary] for every token of the answers, and those tokens [n]."""
    device = net.device

    def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.tensor([len(row) for row in rows], device=device)
        mask = torch.arange(int(lengths.max()), device=device) < lengths[:, None]
        ids = torch.zeros(mask.shape, dtype=torch.long, device=device)
        ids[mask] = torch.tensor([token for row in rows for token in row], device=device)
        return ids, mask

    if prefix is not None:
        asked, there = padded([prompt for prompt, _ in pairs])
        written, mask = padded([[*prefix, *answer] for _, answer in pairs])
        logits = net(
            input_ids=asked, attention_mask=there.long(), decoder_input_ids=written[:, :-1], use_cache=False
        ).logits
        begins = torch.full((len(pairs),), len(prefix), device=device)
    else:
        written, mask = padded([[*prompt, *answer] for prompt, answer in pairs])
        read = mask[:, :-1].long()
        logits = net(input_ids=written[:, :-1], attention_mask=read, use_cache=False).logits
        begins = torch.tensor([len(prompt) for prompt, _ in pairs], device=device)
    said = mask & (torch.arange(mask.shape[1], device=device) >= begins[:, None])
    return logits[said[:, 1:]].float(), written[said]


def _learn(
    net: Any, pairs: Sequence[Pair], partial: Path, epochs: float, rate: float, batch: int, seed: int,
    prefix: Sequence[int] | None, every: float, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Train `net` in place on the answers, going on from the checkpoint in `partial` if there is one."""
    optimizer = Optimizer(net, rate, rate)
    each = -(-len(pairs) // batch)
    updates = max(1, round(epochs * each))
    done, file = 0, partial / CHECKPOINT
    if file.exists():
        done = optimizer.steps = read_checkpoint(file, optimizer)["updates"]
        say(f"going on after {done:,} of {updates:,} updates")
    else:
        say(f"{len(pairs):,} answers to learn, {updates:,} updates")
    spoken = began = time.monotonic()
    here, running = done, None
    net.train()
    while done < updates:
        order = list(range(len(pairs)))
        random.Random(f"{seed}:{done // each}").shuffle(order)
        first = done % each * batch
        scores, wanted = _scores(net, [pairs[i] for i in order[first : first + batch]], prefix)
        loss = cross_entropy(scores, wanted)
        loss.backward()
        optimizer.step(rate_at(done / updates))
        done += 1
        running = loss.detach() if running is None else running.lerp(loss.detach(), 0.05)
        now = time.monotonic()
        if now - spoken > every or done == updates:
            left = (now - began) / (done - here) * (updates - done) / 60
            say(f"{done:,} of {updates:,} updates  loss {float(running):.3f}  {left:.1f} min left")
            write_checkpoint(file, net, optimizer, {"updates": done})
            spoken = now


def _replace(made: Path, path: Path) -> None:
    """Put a whole folder in its place; what was there goes only when the new one is."""
    old = path.with_name(path.name + ".old")
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path, old)
    os.replace(made, path)
    shutil.rmtree(old, ignore_errors=True)


def _card(found: Aligned, target: str, draft: str, epochs: float, rate: float) -> str:
    name = found.path.name
    return (
        f"# {name}\n\n`{draft}`, fine-tuned on the greedy answers of `{target}` (prediction alignment, BiLD, "
        f"section 3.5.1) by `specviz models align`.\n\n| | |\n| --- | --- |\n"
        f"| answers learnt | {found.learnt:,}, {epochs:g} times, peak rate {rate:g} |\n"
        f"| tokens of all answers | {found.tokens:,} |\n"
        f"| agreement on {found.held_out:,} held-out answers | {found.before:.3f} before, "
        f"{found.after:.3f} after |\n"
    )
