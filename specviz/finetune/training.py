"""Training on a user's own models: the target answers the prompts, and what is under way lies in a folder.

``OUT.partial`` holds a mark of the settings, the answers, perhaps the target's states of them, then a
checkpoint; the same call goes on from it.
The folder itself appears whole, at the end.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from typing_extensions import TypedDict

from specviz.errors import ModelError, ParameterError, PromptError
from specviz.files import read_json, replacing, write_text
from specviz.finetune.answers import AnswerOptions, Answers, answer
from specviz.finetune.checkpoint import rate_at, read_checkpoint, write_checkpoint
from specviz.finetune.optimizer import Optimizer
from specviz.models.devices import has_bfloat16
from specviz.models.loading import find
from specviz.models.schema import Card

if TYPE_CHECKING:
    from specviz.models.additions import Target
    from specviz.models.protocols import Drafter, Prompt, Spec, TextModel
    from specviz.models.torch_model import TorchModel

Say = Callable[[str], None]
HELD_OUT = 10  # every tenth prompt is kept from what learns, to measure by
MEASURED = 400  # of the answers that are kept apart: more take longer than a short training
CHECKPOINT = "checkpoint.safetensors"
CURVE = "curve.json"
SCORES = "scores.json"
LIKE = 32  # batches that are sorted by size together: little of a batch is then padding
POINTS = 10  # lines of a card's loss curve


class Pair(NamedTuple):
    """A prompt and the target's answer, as token ids, and where they come from.

    Attributes
    ----------
    number, row : int
        Of the prompt, and of the answer's line among the answers.
    kind : str
        Of work; may be empty.
    drawn : bool
        Whether the answer was drawn; else it is greedy.
    """

    prompt: list[int]
    answer: list[int]
    number: int = 0
    row: int = 0
    kind: str = ""
    drawn: bool = False


def positive(**values: float) -> None:
    """Check that settings are above zero, and finite.

    Raises
    ------
    ParameterError
        Naming the first that is not.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
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
    tokens: int | None = None

    def __post_init__(self) -> None:
        names = ("epochs", "rate", "batch", "max_new_tokens")
        positive(**{name: getattr(self, name) for name in names})
        positive(tokens=1 if self.tokens is None else self.tokens)


class Curve(TypedDict):
    """How a training went: updates done, seconds so far and the loss there, each time one was kept."""

    updates: list[int]
    seconds: list[float]
    loss: list[float]


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
        Of the answers that it learnt from.
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


def check_room(models: Sequence[Drafter], prompts: Sequence[Sequence[int]]) -> None:
    """Refuse a prompt (`PromptError`) that leaves a model no room for an answer."""
    longest = max(map(len, prompts))
    if min(model.left(longest) for model in models) < 1:
        raise PromptError(
            f"prompt {[len(a) for a in prompts].index(longest) + 1} has {longest} tokens and leaves no room "
            "for an answer: shorten it"
        )


def stored(given: Spec, model: TorchModel) -> torch.dtype:
    """The number format of a model's weights where they lie; they were loaded in float32."""
    if hasattr(model, "tokens") or (model.source or "").startswith("GGUF"):
        return torch.float16  # a trimmed draft's are, and a GGUF file has none that training gives
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
    own = file.is_file() and file.read_text(encoding="utf-8") == mark
    # A run that was killed at its very beginning has not yet said whose it is.
    if not own and partial.is_dir() and any(each.suffix != ".part" for each in partial.iterdir()):
        if not force:
            raise ModelError(f"{partial} is left of another run: delete it, or overwrite it with --force")
        shutil.rmtree(partial)
    try:
        if not own:
            with replacing(file) as part:
                part.write_text(mark, encoding="utf-8")
    except OSError as error:
        raise ModelError(f"cannot write {partial}: {error.strerror or error}") from error
    return partial


def gather(
    target: Target, others: Sequence[Drafter], prompts: Sequence[Prompt] | Answers, path: Path,
    mark: Sequence[Any], force: bool, settings: Settings, layers: Sequence[int] = (),
) -> tuple[Path, Answers]:  # fmt: skip
    """The folder of what is under way, and the target's answers: those given, or made now of prompts.

    Parameters
    ----------
    others : sequence of Model
        What must have room for the answers, too.
    mark : sequence
        The settings that a run which goes on must share.
    layers : sequence of int
        Layers whose states are kept beside answers that are made now.

    Raises
    ------
    ModelError
        If the answers are another model's, or the folder is left of another run.
    PromptError
        If a prompt cannot be read or leaves no room for an answer.
    """
    if isinstance(prompts, Answers):
        prompts.check(target)
        return begun(path, [*mark, prompts.header, prompts.digest], force), prompts
    ids = encoded(target, prompts)
    check_room((target, *others), ids)
    partial = begun(path, [*mark, settings.max_new_tokens, ids], force)
    options = AnswerOptions(max_new_tokens=settings.max_new_tokens, layers=tuple(layers))
    file = partial / "answers.jsonl"
    return partial, answer(target, ids, file, options, say=settings.say, every=settings.every)


def pairs_of(answers: Answers, drawn: bool | None = None) -> list[Pair]:
    """Answers as pairs: the greedy ones, the `drawn` ones, or by default both.

    In the order of the prompts: that of the lines depends on whether their run was cut off.
    """
    rows = sorted(enumerate(answers.rows), key=lambda each: (each[1]["number"], each[1]["temperature"]))
    return [
        Pair(row["prompt"], row["answer"], row["number"], place, row["kind"], row["temperature"] > 0)
        for place, row in rows
        if drawn is None or (row["temperature"] > 0) == drawn
    ]


def parted(pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
    """What is learnt, and what is measured by: of every tenth prompt, and at least the last, 400 answers.

    Of a prompt that is held out nothing is learnt, under whatever number it stands again.

    Raises
    ------
    PromptError
        If all are answers to one prompt.
    """
    numbers = sorted({pair.number for pair in pairs})
    apart = {number for number in numbers if number % HELD_OUT == HELD_OUT - 1}
    if len(apart) in (0, len(numbers)):
        apart = set(numbers[-1:])
    held = [pair for pair in pairs if pair.number in apart]
    prompts = {tuple(pair.prompt) for pair in held}
    learnt = [pair for pair in pairs if tuple(pair.prompt) not in prompts]
    if not learnt:
        raise PromptError(
            "there are answers to one prompt alone: add another, which is held out for measuring"
        )
    # Drawn: prompts of one kind often stand one after the other.
    return learnt, held if len(held) <= MEASURED else random.Random(0).sample(held, MEASURED)


def digest(pairs: Sequence[Pair]) -> str:
    """What tells these prompts and answers from others."""
    content = json.dumps([[list(pair.prompt), list(pair.answer)] for pair in pairs])
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def count(pairs: Sequence[Pair]) -> int:
    """Tokens of the answers."""
    return sum(len(pair.answer) for pair in pairs)


def some(pairs: Sequence[Pair], tokens: int | None, seed: int) -> list[Pair]:
    """So many tokens of the answers, in an order drawn by `seed`: fewer are a part of more; None: all.

    Raises
    ------
    PromptError
        If the first answer has more.
    """
    if tokens is None:
        return list(pairs)
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)
    sums = accumulate(len(pairs[i].answer) for i in order)
    if not (kept := [pairs[i] for i, total in zip(order, sums) if total <= tokens]):
        raise PromptError(f"{tokens:,} tokens hold no whole answer: raise --tokens")
    return kept


def batches(sizes: Sequence[int], batch: int, seed: str) -> list[list[int]]:
    """Places of answers in batches of like size, in an order drawn by `seed`; each place once."""
    draw, order = random.Random(seed), list(range(len(sizes)))
    draw.shuffle(order)
    made = []
    for first in range(0, len(order), batch * LIKE):
        part = sorted(order[first : first + batch * LIKE], key=sizes.__getitem__)
        made += [part[at : at + batch] for at in range(0, len(part), batch)]
    draw.shuffle(made)
    return made


CHAIN = 4  # guesses in a row of the chains that a card's τ is of


def chain_tau(runs: Sequence[Sequence[int]]) -> float:
    """Tokens per cycle that chains of four guesses would give in greedy answers.

    Parameters
    ----------
    runs : sequence of sequences of int
        For each answer and each place in it how many guesses from there on are right, at most four.
    """
    tokens = cycles = 0
    for run in runs:
        place = 0
        while place < len(run):
            place += run[place] + 1
            cycles += 1
        tokens += len(run)
    return tokens / cycles if cycles else math.nan


def scores(pairs: Sequence[Pair], runs: Sequence[Sequence[int]], tokens: int) -> Card:
    """What a list of models shows of a drafter: tokens learnt, and τ of greedy held-out answers."""
    tau = chain_tau([run for pair, run in zip(pairs, runs) if not pair.drawn and len(run)])
    return Card(tokens=tokens) if math.isnan(tau) else Card(tokens=tokens, tau=round(tau, 3))


def kinds_table(pairs: Sequence[Pair], runs: Sequence[Sequence[int]]) -> list[str]:
    """A card's lines: the first guess and τ of greedy held-out answers, in all and by kind of work."""
    greedy = [(pair.kind, run) for pair, run in zip(pairs, runs) if not pair.drawn and len(run)]
    kinds = sorted({kind for kind, _ in greedy if kind})
    lines = [
        "", f"Greedy held-out answers: the first guess, and τ of chains of {CHAIN}.", "",
        "| kind of work | answers | first guess right | τ |", "| --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    for kind in ["all", *kinds]:
        some = [run for each, run in greedy if kind in ("all", each)]
        places = sum(map(len, some))
        first = sum(value > 0 for run in some for value in run)
        if places:
            lines.append(f"| {kind} | {len(some):,} | {first / places:.3f} | {chain_tau(some):.2f} |")
    return lines if greedy else []


def learn(
    net: torch.nn.Module,
    others: float,
    loss: Callable[[list[Pair]], tuple[torch.Tensor, torch.Tensor]],
    pairs: Sequence[Pair],
    partial: Path,
    settings: Settings,
    size: Callable[[Pair], int] = lambda pair: len(pair.prompt) + len(pair.answer),
) -> Curve:
    """Train `net` in place on the answers, going on from the checkpoint in `partial` if there is one.

    Where the device has instructions for bfloat16, products are computed in it; weights, their gradients and
    the momentum stay in float32.

    Parameters
    ----------
    others : float
        The peak rate of what is no matrix, as a share of the settings' rate.
    loss : callable
        Of a batch: what the gradient is of, and what is shown.
    settings : Settings
        Its seed is that of the answers' order, and of what is drawn in an update.
    size : callable
        Of an answer: those of like size share a batch.
    """
    batch, say = settings.batch, settings.say
    each = -(-len(pairs) // batch)
    updates = max(1, round(settings.epochs * each))
    device = next(net.parameters()).device
    half = has_bfloat16(device)
    dtype = torch.bfloat16 if half else torch.float32
    optimizer = Optimizer(net, settings.rate, others * settings.rate, dtype)
    done, file = 0, partial / CHECKPOINT
    curve = Curve(updates=[], seconds=[], loss=[])
    if file.exists():
        done = optimizer.steps = read_checkpoint(file, optimizer)["updates"]
        curve = read_json(partial / CURVE, Curve, error=ModelError)
        kept = bisect_right(curve["updates"], done)  # a kill may have come between the two files
        curve = Curve(
            updates=curve["updates"][:kept], seconds=curve["seconds"][:kept], loss=curve["loss"][:kept]
        )
        say(f"going on after {done:,} of {updates:,} updates")
    else:
        say(f"{len(pairs):,} answers to learn, {updates:,} updates")
    spoken = began = time.monotonic()
    here, before = done, curve["seconds"][-1] if curve["seconds"] else 0.0
    running = torch.tensor(curve["loss"][-1], device=device) if curve["loss"] else None
    net.train()
    drawing = [device] if device.type == "cuda" else []
    sizes = list(map(size, pairs))
    epoch, order = -1, [[0]]
    while done < updates:
        if epoch != done // each:
            epoch = done // each
            order = batches(sizes, batch, f"{settings.seed}:{epoch}")
        with torch.random.fork_rng(drawing):  # dropout and noise are the update's own, resumed or not
            torch.manual_seed(random.Random(f"{settings.seed}:{done}:draws").getrandbits(63))
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                total, shown = loss([pairs[i] for i in order[done % each]])
            total.backward()
        optimizer.step(rate_at(done / updates))
        done += 1
        running = shown.detach() if running is None else running.lerp(shown.detach(), 0.05)
        now = time.monotonic()
        if now - spoken > settings.every or done == updates:
            if not math.isfinite(float(running)):
                raise ModelError(f"after {done:,} updates the loss is no number any more: lower the rate")
            left = (now - began) / (done - here) * (updates - done) / 60
            say(f"{done:,} of {updates:,} updates  loss {float(running):.3f}  {left:.1f} min left")
            curve["updates"].append(done)
            curve["seconds"].append(before + now - began)
            curve["loss"].append(float(running))
            write_text(partial / CURVE, json.dumps(curve), True)
            write_checkpoint(file, optimizer, {"updates": done})
            spoken = now
    net.eval()
    return curve


def measured(held: Sequence[Pair], runs: Sequence[Sequence[int]], curve: Curve) -> str:
    """What a card says of the held-out answers, and of the training."""
    return "".join(line + "\n" for line in (*kinds_table(held, runs), *curve_table(curve)))


def curve_table(curve: Curve) -> list[str]:
    """A card's lines: how long it took, and the loss on the way."""
    last = len(curve["updates"]) - 1
    kept = sorted({round(last * i / (POINTS - 1)) for i in range(POINTS)})
    lines = [
        "", f"Trained in {curve['seconds'][-1] / 3600:.2f} hours. The loss on the way:", "",
        "| updates | minutes | loss |", "| ---: | ---: | ---: |",
    ]  # fmt: skip
    for i in kept:
        minutes = curve["seconds"][i] / 60
        lines.append(f"| {curve['updates'][i]:,} | {minutes:.1f} | {curve['loss'][i]:.3f} |")
    return lines


def read_card(content: bytes, folder: Path) -> str:
    """A drafter's card, from the bytes of its file (`ModelError` if they are no text)."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{folder / 'README.md'} is not UTF-8: save it again as UTF-8") from None


def publish(
    partial: Path, path: Path, write: Callable[[Path], None], card: str, scores: Card | None = None
) -> None:
    """Write a whole folder, put it in its place and end what was under way; what was there goes last."""
    made, old = partial / "model", path.with_name(path.name + ".old")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    write(made)
    if card:
        (made / "README.md").write_text(card, encoding="utf-8")
    if scores:
        (made / SCORES).write_text(json.dumps(scores) + "\n", encoding="utf-8")
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path, old)
    os.replace(made, path)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(partial)
