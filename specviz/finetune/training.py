"""Training on a user's own models: the target answers the prompts, and what is under way lies in a folder.

``OUT.partial`` holds a mark of the settings, the answers, then a checkpoint; the same call goes on from it.
The folder itself appears whole, at the end.
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
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from specviz.errors import ModelError, ParameterError, PromptError
from specviz.files import replacing
from specviz.finetune.checkpoint import rate_at, read_checkpoint, write_checkpoint
from specviz.finetune.optimizer import Optimizer
from specviz.models.loading import find

if TYPE_CHECKING:
    from specviz.models.protocols import Drafter, Net, Prompt, Spec, TextModel
    from specviz.models.torch_model import TorchModel

Pair = tuple[list[int], list[int]]  # a prompt and the target's answer
Say = Callable[[str], None]
HELD_OUT = 10  # every tenth prompt is kept from what learns, to measure by
ROWS = 32  # prompts that the target answers together
CHECKPOINT = "checkpoint.safetensors"


def positive(**values: float) -> None:
    """Check that settings are above zero.

    Raises
    ------
    ParameterError
        Naming the first that is not.
    """
    for name, value in values.items():
        if not value > 0:
            raise ParameterError(f"{name} must be positive, got {value}")


@dataclass(frozen=True)
class Settings:
    """How a drafter is trained; `specviz.finetune.align.align` says what each means."""

    epochs: float
    rate: float
    batch: int
    max_new_tokens: int
    seed: int
    every: float
    say: Say

    def __post_init__(self) -> None:
        names = ("epochs", "rate", "batch", "max_new_tokens")
        positive(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Trained:
    """A drafter that was trained.

    Attributes
    ----------
    path : Path
        Its folder.
    learnt, held_out : int
        Answers it learnt from, and was measured on.
    tokens : int
        Of all answers.
    """

    path: Path
    learnt: int
    held_out: int
    tokens: int


def print_line(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


def vacant(out: str | Path, force: bool) -> Path:
    """The folder to write, if it is free or holds a model that may be replaced.

    Raises
    ------
    ModelError
        If it does not.
    """
    path = Path(out).expanduser()
    if path.exists() and not (force and (path / "config.json").is_file()):
        more = ", or overwrite it with --force" if (path / "config.json").is_file() else ""
        raise ModelError(f"{path} exists: choose another folder{more}")
    return path


def encoded(target: TextModel, prompts: Sequence[Prompt]) -> list[list[int]]:
    """The prompts' ids.

    Raises
    ------
    PromptError
        If one cannot be read; it says which.
    """
    ids = []
    for number, prompt in enumerate(prompts, 1):
        try:
            ids.append(target.encode(prompt))
        except PromptError as error:
            raise PromptError(f"prompt {number}: {error}") from None
    return ids


def length(models: Sequence[Drafter], prompts: Sequence[Sequence[int]], most: int) -> int:
    """Most tokens of an answer that all models have room for behind the longest prompt.

    Raises
    ------
    PromptError
        If there is none.
    """
    longest = max(map(len, prompts))
    room = min(model.left(longest) for model in models)
    if room < 1:
        raise PromptError(
            f"prompt {[len(a) for a in prompts].index(longest) + 1} has {longest} tokens and leaves no room "
            "for an answer: shorten it"
        )
    return min(most, room)


def stored(given: Spec, model: TorchModel) -> torch.dtype:
    """The number format of a model's weights where they lie; they were loaded in float32."""
    if not isinstance(given, str | Path):
        return model.dtype
    from transformers import AutoConfig

    source = find(str(given)) or str(given).removeprefix("hf:")
    return AutoConfig.from_pretrained(source, local_files_only=True).dtype or model.dtype


def begun(path: Path, settings: Sequence[Any], force: bool) -> Path:
    """The folder of what is under way, new or of the same settings.

    Raises
    ------
    ModelError
        If it is of other settings, or cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    mark = hashlib.blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()
    file = partial / "settings"
    if partial.exists() and (not file.is_file() or file.read_text(encoding="utf-8") != mark):
        if not force:
            raise ModelError(f"{partial} is left of another run: delete it, or overwrite it with --force")
        shutil.rmtree(partial)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        file.write_text(mark, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"cannot write {partial}: {error.strerror or error}") from error
    return partial


def answers(
    partial: Path, target: TorchModel, prompts: Sequence[Sequence[int]], most: int, say: Say
) -> list[list[int]]:
    """The target's greedy answers with their end tokens, from the folder or made now."""
    file = partial / "answers.safetensors"
    if not file.exists():
        texts: list[list[int]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for first in range(0, len(order), ROWS):
            rows = order[first : first + ROWS]
            for i, answer in zip(rows, greedy(target, [prompts[i] for i in rows], most)):
                texts[i] = answer
            say(f"{target.name}: {min(first + ROWS, len(order)):,} of {len(order):,} prompts answered")
        starts = np.cumsum([0, *map(len, texts)])
        with replacing(file) as part:
            save_file(
                {"tokens": np.array(list(chain.from_iterable(texts)), np.int64), "starts": starts}, part
            )
    read = load_file(file)
    ends = read["starts"].tolist()
    return [read["tokens"][a:b].tolist() for a, b in pairwise(ends)]


def greedy(model: TorchModel, prompts: Sequence[Sequence[int]], most: int) -> list[list[int]]:
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
    net: Net = model.net
    own = net.generation_config
    net.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=list(model.eos) or None, pad_token_id=0,
        decoder_start_token_id=prefix[0] if prefix else None,
    )  # fmt: skip
    try:
        with torch.inference_mode():
            continued = net.generate(**given, max_new_tokens=most)[:, len(prefix or ()) or width :].tolist()
    finally:
        net.generation_config = own
    answers = []
    for row in continued:
        end = next((i + 1 for i, token in enumerate(row) if token in model.eos), len(row))
        answers.append(row[:end])
    return answers


def parted(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """What is learnt, and what is held out: every tenth, and at least the last."""
    apart = range(HELD_OUT - 1, len(pairs), HELD_OUT) or [len(pairs) - 1]
    return [pair for i, pair in enumerate(pairs) if i not in apart], [pairs[i] for i in apart]


def learn(
    net: torch.nn.Module,
    optimizer: Optimizer,
    loss: Callable[[list[Pair]], tuple[torch.Tensor, torch.Tensor]],
    pairs: Sequence[Pair],
    partial: Path,
    settings: Settings,
) -> None:
    """Train `net` in place on the answers, going on from the checkpoint in `partial` if there is one.

    Parameters
    ----------
    loss : callable
        Of a batch: what the gradient is of, and what is shown.
    settings : Settings
        Its seed is that of the answers' order, and of what is drawn in an update.
    """
    batch, say = settings.batch, settings.say
    each = -(-len(pairs) // batch)
    updates = max(1, round(settings.epochs * each))
    done, file = 0, partial / CHECKPOINT
    if file.exists():
        done = optimizer.steps = read_checkpoint(file, optimizer)["updates"]
        say(f"going on after {done:,} of {updates:,} updates")
    else:
        say(f"{len(pairs):,} answers to learn, {updates:,} updates")
    spoken = began = time.monotonic()
    here, running = done, None
    net.train()
    device = next(net.parameters()).device
    drawing = [device] if device.type == "cuda" else []
    while done < updates:
        order = list(range(len(pairs)))
        random.Random(f"{settings.seed}:{done // each}").shuffle(order)
        first = done % each * batch
        with torch.random.fork_rng(drawing):  # dropout and noise are the update's own, resumed or not
            torch.manual_seed(random.Random(f"{settings.seed}:{done}:draws").getrandbits(63))
            total, shown = loss([pairs[i] for i in order[first : first + batch]])
            total.backward()
        optimizer.step(rate_at(done / updates))
        done += 1
        running = shown.detach() if running is None else running.lerp(shown.detach(), 0.05)
        now = time.monotonic()
        if now - spoken > settings.every or done == updates:
            left = (now - began) / (done - here) * (updates - done) / 60
            say(f"{done:,} of {updates:,} updates  loss {float(running):.3f}  {left:.1f} min left")
            write_checkpoint(file, optimizer, {"updates": done})
            spoken = now
    net.eval()


def publish(partial: Path, path: Path, write: Callable[[Path], None], card: str) -> None:
    """Write a whole folder, put it in its place and end what was under way; what was there goes last."""
    made, old = partial / "model", path.with_name(path.name + ".old")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    write(made)
    (made / "README.md").write_text(card, encoding="utf-8")
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path, old)
    os.replace(made, path)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(partial)
