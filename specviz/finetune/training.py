"""Training on a user's own models: the target answers the prompts, and unfinished work is kept in a folder.

``OUT.partial`` holds hashes of the settings, the answers, perhaps the target's states of them, then a
checkpoint; repeating the call continues from there. The folder itself appears complete, at the end.
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
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import torch
from typing_extensions import TypedDict

from specviz.arguments import check_int
from specviz.errors import ModelError, ParameterError, PromptError, plural
from specviz.escape import markdown
from specviz.files import read_json, replacing, temporary, write_text
from specviz.finetune import checkpoint
from specviz.finetune.answers import AnswerOptions, Answers, answer, check_apart, digest
from specviz.finetune.checkpoint import rate_at, read_checkpoint, write_checkpoint, writing
from specviz.finetune.optimizer import Optimizer
from specviz.loop.checks import check_prompts
from specviz.models.devices import has_bfloat16
from specviz.models.kernels import rounding
from specviz.models.loading import find
from specviz.models.schema import Card
from specviz.paths import expanded

if TYPE_CHECKING:
    from specviz.models.additions import Target
    from specviz.models.protocols import Drafter, Prompt, Spec, TextModel
    from specviz.models.torch_model import TorchModel
    from specviz.trace.files import Record

Say = Callable[[str], None]
Mark: TypeAlias = "Sequence[Any]"  # settings that must be equal for a run to be continued, for JSON
Prompts: TypeAlias = "Sequence[Prompt | Record]"  # as `specviz.generate` takes them, a list
P = ParamSpec("P")
Made = TypeVar("Made")
HELD_OUT = 10  # every tenth prompt is held out for measurement
MEASURED = 400  # held-out answers to measure at most: more would take longer than a short training
ANSWERS = "answers.jsonl"
CHECKPOINT = "checkpoint.safetensors"
CURVE = "curve.json"
SCORES = "scores.json"
LIKE = 32  # batches sorted by size at a time, so that little of a batch is padding
POINTS = 10  # lines of a card's loss curve


class Task(NamedTuple):
    """A prompt to answer, and its kind of work, which may be empty."""

    prompt: Prompt
    kind: str


class Pair(NamedTuple):
    """A prompt and the target's answer, as token ids, and where they come from.

    Attributes
    ----------
    number, row : int
        Number of the prompt, and row of the answer among the answers.
    kind : str
        Kind of work; may be empty.
    drawn : bool
        Whether the answer was sampled; otherwise it is greedy.
    """

    prompt: list[int]
    answer: list[int]
    number: int = 0
    row: int = 0
    kind: str = ""
    drawn: bool = False


def positive(**values: float) -> None:
    """Check that settings are positive and finite.

    Raises
    ------
    ParameterError
        If one is not; the message names the first.
    """
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ParameterError(f"{name} must be positive, got {value}")


@dataclass(frozen=True)
class Settings:
    """How a drafter is trained; `specviz.finetune.align.align` explains the fields."""

    epochs: float
    rate: float
    batch: int
    max_new_tokens: int | None  # None: the default, or the answers are given
    seed: int
    every: float
    say: Say
    tokens: int | None = None

    def __post_init__(self) -> None:
        positive(epochs=self.epochs, rate=self.rate)
        check_int("batch", self.batch, 1)
        for name in ("max_new_tokens", "tokens"):
            if (value := getattr(self, name)) is not None:
                check_int(name, value, 1)


class Curve(TypedDict):
    """Loss curve of a training: updates done, seconds so far, and the loss at each checkpoint."""

    updates: list[int]
    seconds: list[float]
    loss: list[float]


@dataclass(frozen=True)
class Trained:
    """A trained drafter.

    Attributes
    ----------
    path : Path
        Its folder.
    learnt, held_out : int
        Number of answers it learnt from, and was measured on.
    tokens : int
        Number of tokens in the answers it learnt from.
    measure : str
        What `before` and `after` are.
    before, after : tuple of float
        One number, or one for each head or step; NaN where no held-out answer is long enough.
    """

    path: Path
    learnt: int
    held_out: int
    tokens: int
    measure: str
    before: tuple[float, ...]
    after: tuple[float, ...]

    def __str__(self) -> str:
        before, after = (", ".join(map(share_text, each)) for each in (self.before, self.after))
        return (
            f"{self.path} ({self.measure}, on {plural(self.held_out, 'held-out answer')}: {before} before, "
            f"{after} after)"
        )


def print_line(line: str) -> None:
    """Print a line of progress to standard error."""
    print(line, file=sys.stderr, flush=True)


def vacant(out: str | Path, force: bool) -> Path:
    """Return the folder to write, if it does not exist or holds a model that may be replaced.

    Raises
    ------
    ModelError
        If it exists and may not be replaced.
    """
    path = expanded(out, ModelError)
    if path.exists() and not (force and (path / "config.json").is_file()):
        more = ", or overwrite it with --force" if (path / "config.json").is_file() else ""
        raise ModelError(f"{path} exists: choose another folder{more}")
    if path.exists() and not os.access(path, os.W_OK):  # it could not be moved away
        raise ModelError(f"{path} is read-only: make it writable, or choose another folder")
    return path


def alone(train: Callable[P, Made]) -> Callable[P, Made]:
    """Decorate a training that has a parameter `out`: no other process may work in the same ``OUT.partial``.

    Raises
    ------
    ModelError
        If another process does.
    """

    @wraps(train)
    def run(*args: P.args, **options: P.kwargs) -> Made:
        out = expanded(signature(train).bind(*args, **options).arguments["out"], ModelError)
        with checkpoint.alone(unfinished(out)):
            return train(*args, **options)

    return run


def unfinished(path: Path) -> Path:
    """The folder of unfinished work on `path`.

    Raises
    ------
    ModelError
        If `path` has no name, as the current folder.
    """
    if not path.name:
        raise ModelError(f"{path} exists: choose another folder")
    return path.with_name(path.name + ".partial")


def tasks(prompts: Prompts) -> list[Task]:
    """The prompts as texts, chats or token ids, with their kinds; of a conversation the first turn.

    Raises
    ------
    PromptError
        If there are none, one is not valid, or a single text is given instead of a list.
    """
    if isinstance(prompts, str | Path):
        raise PromptError("prompts is a list; for a file use list(sv.suite(FILE))")
    if hasattr(prompts, "tolist"):  # an array, or a column of a table
        prompts = prompts.tolist()
    if isinstance(prompts, Sequence) and not prompts:
        raise PromptError("there are no prompts; give one or more")
    return [
        Task(entry.get("prompt") or entry["turns"][0], str(entry.get("kind", "")))
        for entry in check_prompts(prompts)
    ]


def to_learn(prompts: Prompts | Answers, settings: Settings) -> list[Task] | Answers:
    """Return answers as they are, and prompts as `tasks`: two or more, no question of a suite.

    Raises
    ------
    PromptError
        If there are fewer, or one is not valid or is a suite's question.
    ParameterError
        If answers are given and `settings` say how long they may be.
    """
    if isinstance(prompts, Answers):
        if settings.max_new_tokens is not None:
            raise ParameterError("max_new_tokens has no effect on answers that are given: drop it")
        return prompts
    if len(made := tasks(prompts)) < 2:
        raise PromptError("training needs two prompts or more: one is held out for measuring")
    check_apart([task.prompt for task in made])
    return made


def check_format(model: Spec) -> None:
    """Raise `ModelError` if a model in memory is not in float32, in which training computes."""
    number = str(getattr(model, "dtype", torch.float32)).removeprefix("torch.")
    if (hasattr(model, "net") or isinstance(model, torch.nn.Module)) and number != "float32":
        name = getattr(model, "name", "the model")
        raise ModelError(f"{name} is in {number}: load it with dtype='float32' for training")


def encoded(target: TextModel, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Encode the prompts as token ids.

    Raises
    ------
    PromptError
        If one cannot be read; the message says which.
    """
    ids = []
    for number, prompt in enumerate(prompts, 1):
        try:
            ids.append(target.encode(prompt))
        except PromptError as error:
            raise PromptError(f"prompt {number}: {error}") from None
    return ids


def check_room(models: Sequence[Drafter], prompts: Sequence[Sequence[int]]) -> None:
    """Raise `PromptError` if a prompt leaves a model no room for an answer."""
    longest = max(map(len, prompts))
    if min(model.left(longest) for model in models) < 1:
        raise PromptError(
            f"prompt {[len(a) for a in prompts].index(longest) + 1} has {longest} tokens and leaves no room "
            "for an answer: shorten it"
        )


def stored(given: Spec, model: TorchModel) -> torch.dtype:
    """The number format in which a model's weights are stored; they were loaded in float32."""
    if hasattr(model, "tokens") or (model.source or "").startswith("GGUF"):
        return torch.float16  # the format of trimmed drafts; training writes no GGUF formats
    if not isinstance(given, str | Path):
        return model.dtype
    from transformers import AutoConfig

    source = find(given) or str(given).removeprefix("hf:")
    return AutoConfig.from_pretrained(source, local_files_only=True).dtype or model.dtype


def begun(path: Path, settings: Mark, force: bool, answers: Mark = ()) -> Path:
    """Return the folder of unfinished work, either new or left by a run with the same settings.

    `force` deletes the work of a run with other settings, but not answers made with equal settings `answers`.

    Raises
    ------
    ModelError
        If it was left by a run with other settings or by an earlier version, or cannot be written.
    """
    partial = unfinished(path)
    marks = [_mark(answers), _mark(settings)]
    file = partial / "settings"
    old = file.read_text(encoding="utf-8").split() if file.is_file() else []
    # A run that was killed at its very beginning has not yet written its settings.
    if old != marks and partial.is_dir() and not all(map(temporary, partial.iterdir())):
        stay = ("settings", ANSWERS) if answers and old[:1] == marks[:1] else ()
        if not force:
            raise ModelError(
                f"{partial} was left by another run or an earlier version: continue it with that run's "
                "command and version, choose another --out, or overwrite it with "
                f"--force{' (its answers stay)' * bool(stay)}"
            )
        with writing(partial):
            for each in sorted(partial.iterdir()):  # a kill here leaves a run that can be continued
                if each.is_dir():
                    shutil.rmtree(each)
                elif not each.name.startswith(stay):
                    each.unlink()
    try:
        if old != marks:
            with replacing(file) as part:
                part.write_text("\n".join(marks), encoding="utf-8")
    except OSError as error:
        raise ModelError(f"cannot write {partial}: {error.strerror or error}") from error
    return partial


def _mark(settings: Mark) -> str:
    """Hash of settings; 3 and 3.0 are the same."""
    content = json.dumps(json.loads(json.dumps(settings), parse_int=float))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def gather(
    target: Target, others: Sequence[Drafter], prompts: Sequence[Task] | Answers, path: Path,
    mark: Mark, force: bool, settings: Settings,
) -> tuple[Path, Answers]:  # fmt: skip
    """Return the folder of unfinished work, and the target's answers: those given, or made now from prompts.

    Parameters
    ----------
    others : sequence of Model
        Models that must have room for the answers, too.
    mark : sequence
        The settings that must be equal for an earlier run to be continued.

    Raises
    ------
    ModelError
        If the answers are another model's, or the folder was left by another run.
    PromptError
        If a prompt cannot be read or leaves no room for an answer, or no prompt would be learnt.
    """
    if isinstance(prompts, Answers):
        prompts.check(target)
        texts = digest((row["prompt"], row["answer"]) for row in prompts.rows)
        return begun(path, [*mark, prompts.header, texts], force), prompts
    ids = encoded(target, [task.prompt for task in prompts])
    room = settings.max_new_tokens or AnswerOptions.max_new_tokens
    parted([Pair(each, [], number) for number, each in enumerate(ids)])  # refuse before the answers
    check_room((target, *others), ids)
    layout = rounding(target.kernels)
    # Earlier versions kept layers' states with the answers; the empty list stands for none.
    partial = begun(path, mark, force, [room, [], target.file_content, layout, ids])
    kinds = [task.kind for task in prompts]
    options = AnswerOptions(room)
    return partial, answer(target, ids, partial / ANSWERS, options, kinds, settings.say, settings.every)


def pairs_of(answers: Answers, drawn: bool | None = None) -> list[Pair]:
    """Answers as pairs: only the sampled ones (`drawn`), only the greedy ones (False), or by default both.

    They are in the order of the prompts: the order of the lines depends on whether their run was interrupted.
    """
    rows = sorted(enumerate(answers.rows), key=lambda each: (each[1]["number"], each[1]["temperature"]))
    return [
        Pair(row["prompt"], row["answer"], row["number"], place, row["kind"], row["temperature"] > 0)
        for place, row in rows
        if drawn is None or (row["temperature"] > 0) == drawn
    ]


def parted(pairs: Sequence[Pair], say: Say = lambda line: None) -> tuple[list[Pair], list[Pair]]:
    """Split answers into those to learn and those held out: every tenth prompt's or the last's, at most 400.

    A prompt that is held out is not learnt from under any other number either.

    Raises
    ------
    PromptError
        If none is left to learn.
    """
    numbers = sorted({pair.number for pair in pairs})
    apart = {number for number in numbers if number % HELD_OUT == HELD_OUT - 1}
    if len(apart) in (0, len(numbers)):
        apart = set(numbers[-1:])
    held = [pair for pair in pairs if pair.number in apart]
    prompts = {tuple(pair.prompt) for pair in held}
    learnt = [pair for pair in pairs if tuple(pair.prompt) not in prompts]
    if not learnt:
        raise PromptError("every prompt is held out or repeats one that is: give two different prompts")
    if left := len(pairs) - len(held) - len(learnt):
        say(f"left out, as their prompts are held out under another number: {plural(left, 'answer')}")
    # A random sample, since prompts of one kind often follow one another.
    return learnt, held if len(held) <= MEASURED else random.Random(0).sample(held, MEASURED)


def draft_tokens(eos: Sequence[int], counts: Counter[int], number: int, say: Say) -> list[int]:
    """Tokens that a draft can write: the target's end tokens and the most common ones of `counts`, sorted."""
    common = (token for token, _ in counts.most_common())
    tokens = list(dict.fromkeys((*eos, *common)))[:number]  # end tokens first: texts must end
    if len(tokens) < number:
        say(f"the answers have {len(tokens):,} different tokens: the draft can write these, not {number:,}")
    return sorted(tokens)


def count(pairs: Sequence[Pair]) -> int:
    """Number of tokens in the answers."""
    return sum(len(pair.answer) for pair in pairs)


def some(pairs: Sequence[Pair], tokens: int | None, seed: int) -> list[Pair]:
    """Select answers with at most `tokens` tokens in total; a smaller selection is part of a larger one.

    They are taken in an order drawn by `seed`; None selects all, in their own order.

    Raises
    ------
    PromptError
        If the first answer in this order has more.
    """
    if tokens is None:
        return list(pairs)
    order = list(range(len(pairs)))
    random.Random(seed).shuffle(order)
    sums = accumulate(len(pairs[i].answer) for i in order)
    if not (kept := [pairs[i] for i, total in zip(order, sums) if total <= tokens]):
        raise PromptError(f"{tokens:,} tokens hold no whole answer: raise --tokens")
    return kept


def batches(sizes: Sequence[tuple[int, ...]], batch: int, seed: str) -> list[list[int]]:
    """Group places of answers into batches of similar size, in an order drawn by `seed`; each place once."""
    draw, order = random.Random(seed), list(range(len(sizes)))
    draw.shuffle(order)
    made = []
    for first in range(0, len(order), batch * LIKE):
        part = sorted(order[first : first + batch * LIKE], key=sizes.__getitem__)
        made += [part[at : at + batch] for at in range(0, len(part), batch)]
    draw.shuffle(made)
    return made


def share_text(share: float) -> str:
    """A share for display; a dash if nothing was counted."""
    return "–" if math.isnan(share) else f"{share:.3f}"


CHAIN = 4  # guesses per chain for a card's τ


def chain_tau(runs: Sequence[Sequence[int]]) -> float:
    """Tokens per cycle that chains of four guesses would give in greedy answers.

    Parameters
    ----------
    runs : sequence of sequences of int
        For each answer and each place in it, the number of consecutive right guesses from there, at most
        four.
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
    """Scores of a drafter for a list of models: tokens learnt, and τ on greedy held-out answers."""
    tau = chain_tau([run for pair, run in zip(pairs, runs) if not pair.drawn and len(run)])
    return Card(tokens=tokens) if math.isnan(tau) else Card(tokens=tokens, tau=round(tau, 3))


def kinds_table(pairs: Sequence[Pair], runs: Sequence[Sequence[int]], chain: int = CHAIN) -> list[str]:
    """Card lines with first-guess accuracy and τ on greedy held-out answers, in all and by kind of work.

    `chain` is the number of guesses per chain.
    """
    greedy = [(pair.kind, run) for pair, run in zip(pairs, runs) if not pair.drawn and len(run)]
    kinds = sorted({kind for kind, _ in greedy if kind})
    lines = [
        "", f"Greedy held-out answers: the first guess, and τ of chains of {chain}.", "",
        "| kind of work | answers | first guess right | τ |", "| --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    for name, kind in [("all", None), *((markdown(kind), kind) for kind in kinds)]:
        some = [run for each, run in greedy if kind in (None, each)]
        places = sum(map(len, some))
        first = sum(value > 0 for run in some for value in run)
        if places:
            lines.append(f"| {name} | {len(some):,} | {first / places:.3f} | {chain_tau(some):.2f} |")
    return lines if greedy else []


def learn(
    net: torch.nn.Module,
    others: float,
    loss: Callable[[list[Pair]], tuple[torch.Tensor, torch.Tensor]],
    pairs: Sequence[Pair],
    partial: Path,
    settings: Settings,
    size: Callable[[Pair], tuple[int, ...]] = lambda pair: (len(pair.prompt) + len(pair.answer),),
) -> Curve:
    """Train `net` in place on the answers, continuing from the checkpoint in `partial` if there is one.

    If the device has instructions for bfloat16, products are computed in it; weights, their gradients and
    the momentum stay in float32.

    Parameters
    ----------
    others : float
        Peak rate of all parameters but matrices, as a share of the settings' rate.
    loss : callable
        Takes a batch and returns the loss for the gradient and the loss to show.
    settings : Settings
        Its seed determines the order of the answers and the random draws of each update.
    size : callable
        Size of an answer, as numbers to sort by; answers of similar size share a batch.
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
        kept = bisect_right(curve["updates"], done)  # a kill may have come between the two writes
        curve = Curve(
            updates=curve["updates"][:kept], seconds=curve["seconds"][:kept], loss=curve["loss"][:kept]
        )
        say(f"resuming after {done:,} of {updates:,} updates")
    else:
        say(f"{plural(len(pairs), 'answer')} to learn, {plural(updates, 'update')}")
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
        with torch.random.fork_rng(drawing):  # an update has the same dropout and noise, resumed or not
            torch.manual_seed(random.Random(f"{settings.seed}:{done}:draws").getrandbits(63))
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                total, shown = loss([pairs[i] for i in order[done % each]])
            total.backward()
        optimizer.step(rate_at((done + 0.5) / updates))
        done += 1
        running = shown.detach() if running is None else running.lerp(shown.detach(), 0.05)
        now = time.monotonic()
        if now - spoken > settings.every or done == updates:
            if not math.isfinite(float(running)):
                raise ModelError(
                    f"after {done:,} updates the loss is not finite: lower the rate, with --force (it keeps "
                    "the answers)"
                )
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


def card(made: Trained, about: str, facts: Mapping[str, str], epochs: float, rate: float) -> str:
    """Begin a drafter's card: a sentence and facts, in Markdown, then what was learnt and measured."""
    facts = {
        **facts,
        "training answers": f"{made.learnt:,}, {epochs:g} times, peak rate {rate:g}",
        "tokens of these answers": f"{made.tokens:,}",
    }
    lines = [
        f"# {markdown(made.path.name)}", "", about, "", "| | |", "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in facts.items()), "",
        f"{made.measure.capitalize()}, on {plural(made.held_out, 'held-out answer')}:", "",
        "| | before | after |", "| ---: | ---: | ---: |",
    ]  # fmt: skip
    for number, values in enumerate(zip(made.before, made.after), 1):
        which = number if len(made.after) > 1 else ""
        lines.append(f"| {which} | {' | '.join(map(share_text, values))} |")
    return "".join(line + "\n" for line in lines)


def measured(held: Sequence[Pair], runs: Sequence[Sequence[int]], curve: Curve, chain: int = CHAIN) -> str:
    """Card lines on the held-out answers and the training."""
    return "".join(line + "\n" for line in (*kinds_table(held, runs, chain), *curve_table(curve)))


def curve_table(curve: Curve) -> list[str]:
    """Card lines with the training time and the loss curve."""
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
    """Decode the bytes of a drafter's card (`ModelError` if they are not UTF-8)."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelError(f"{folder / 'README.md'} is not UTF-8: save it again as UTF-8") from None


def publish(
    partial: Path, path: Path, write: Callable[[Path], None], card: str, scores: Card | None = None
) -> None:
    """Write a complete folder, move it into place, then delete what it replaces and the unfinished work.

    Raises
    ------
    ModelError
        If it cannot be written; the unfinished work stays.
    """
    made, old = partial / "model", partial / "old"
    shutil.rmtree(made, ignore_errors=True)
    with writing(made):
        made.mkdir()
        write(made)
        if card:
            (made / "README.md").write_text(card, encoding="utf-8")
        if scores:
            (made / SCORES).write_text(json.dumps(scores) + "\n", encoding="utf-8")
        usual = (made / "config.json").stat().st_mode  # safetensors lets no other user read its files
        for weights in made.glob("*.safetensors"):
            weights.chmod(usual)
    with writing(path):
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)  # a kill may have left it
            os.replace(path, old)
        os.replace(made, path)
    shutil.rmtree(partial, ignore_errors=True)  # the replaced model may have files that cannot be deleted
