"""A target's own answers to prompts, for its drafters to learn from, in a file that grows as they are made.

Line 1 identifies the target by the hash of its weights and tokenizer. Each other line is an answer (`Row`).
An interrupted run continues after the last whole line.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NotRequired

import torch
from pydantic import Field
from typing_extensions import TypedDict

from specviz.arguments import check_int
from specviz.errors import ModelError, ParameterError, PromptError, plural
from specviz.files import checked, parsed, replacing
from specviz.finetune.checkpoint import alone, writing
from specviz.methods.sampling import Sampling
from specviz.metrics.loops import cut_loop
from specviz.models.context import NOTHING
from specviz.models.kernels import rounding
from specviz.paths import expanded

if TYPE_CHECKING:
    from specviz.models.additions import Target
    from specviz.models.protocols import Prompt

FORMAT = "specviz answers 1"
ROWS = 64  # texts per batch
SHARE = 1024  # prompts sorted by length at a time, so that an unfinished run has answers of all kinds
RUN = 8  # words of a question that a prompt must not contain; shorter ones occur by chance
WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]|\w+")  # a character, where words have no spaces
LOOKS = 16  # tokens after which a text is searched for a loop
Say = Callable[[str], None]


class Header(TypedDict):
    """The first line: the model that gave the answers, and the settings."""

    format: str
    model: str
    content: str
    max_new_tokens: int
    temperatures: list[float]
    seed: int
    dtype: NotRequired[str]  # of the passes; the repository's own files lack these two
    kernels: NotRequired[str | None]  # the layout of the target's matrices, if it rounds


Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Row(TypedDict):
    """An answer: token ids, with the end token if it ended, and the temperature (0: greedy)."""

    number: Annotated[int, Field(ge=0)]
    kind: str
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    prompt: Ids
    answer: Ids


@dataclass(frozen=True)
class Answers:
    """The answers of a file.

    Attributes
    ----------
    path : Path
    header : Header
    rows : list of Row
        In the file's order.
    """

    path: Path
    header: Header
    rows: list[Row]

    @property
    def tokens(self) -> int:
        """Number of tokens in all answers."""
        return sum(len(row["answer"]) for row in self.rows)

    def check(self, target: Target) -> None:
        """Check that the answers are the target's, and that it has all their tokens.

        Raises
        ------
        ModelError
        """
        model, content = self.header["model"], self.header["content"]
        if content != target.file_content:
            raise ModelError(
                f"{self.path} holds answers of {model} ({content[:8]}), but the target is {target.name} "
                f"({target.file_content[:8]}): make its answers with specviz models answers"
            )
        for line, row in enumerate(self.rows, 2):
            if (largest := max(*row["prompt"], *row["answer"])) >= target.vocabulary:
                raise ModelError(
                    f"{self.path}, line {line} is damaged: it holds token {largest}, and {target.name} has "
                    f"{target.vocabulary:,} tokens"
                )


@dataclass(frozen=True)
class AnswerOptions:
    """How prompts are answered.

    Attributes
    ----------
    max_new_tokens : int
        Maximum number of tokens per answer.
    temperatures : tuple of float
        Every prompt is answered once at each; 0 is greedy.
    rows : int
        Texts per batch.
    seed : int
        Seed of the sampling.
    """

    max_new_tokens: int = 128
    temperatures: tuple[float, ...] = (0.0,)
    rows: int = ROWS
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise ParameterError("temperatures must be one or more numbers from 0 (greedy) on")
        for temperature in self.temperatures:
            Sampling(temperature)
        if len(set(self.temperatures)) < len(self.temperatures):
            raise ParameterError("temperatures repeats a value and would repeat its answers: drop one")
        for name in ("max_new_tokens", "rows"):
            check_int(name, getattr(self, name), 1)


def answer(
    target: Target,
    prompts: Sequence[Sequence[int]],
    out: str | Path,
    options: AnswerOptions | None = None,
    kinds: Sequence[str] = (),
    say: Say = print,
    every: float = 60.0,
) -> Answers:
    """Let a target answer prompts in batches, and append the answers to a file.

    Parameters
    ----------
    target : Model
    prompts : sequence of sequences of int
    out : str or Path
        The file. If an interrupted run with the same target and options left one, it is continued.
    options : AnswerOptions, optional
    kinds : sequence of str, optional
        Kind of work of each prompt.
    every : float
        Seconds between lines of progress.

    Raises
    ------
    ModelError
        If the target cannot answer in batches, the file was made with another target or options, or it cannot
        be written.
    PromptError
        If the file answers other prompts.
    """
    options, out = options or AnswerOptions(), expanded(out, ModelError)
    _check_answers(target)
    header = Header(
        format=FORMAT, model=target.name, content=target.file_content, max_new_tokens=options.max_new_tokens,
        temperatures=list(options.temperatures), seed=options.seed,
        dtype=str(target.dtype).removeprefix("torch."), kernels=rounding(target.kernels),
    )  # fmt: skip
    with alone(out):
        return _answers(target, prompts, out, options, header, kinds, say, every)


def _answers(
    target: Target, prompts: Sequence[Sequence[int]], out: Path, options: AnswerOptions, header: Header,
    kinds: Sequence[str], say: Say, every: float,
) -> Answers:  # fmt: skip
    """Continue the file `out`; see `answer`."""
    header, rows = _saved(out, header)
    for row in rows:
        if row["number"] >= len(prompts) or row["prompt"] != list(prompts[row["number"]]):
            raise PromptError(f"{out} answers different prompts: name another file or delete it")
    there = {(row["number"], row["temperature"]) for row in rows}
    left = len(prompts) * len(options.temperatures) - len(there)
    began = spoken = time.monotonic()
    earlier = sum(len(row["answer"]) for row in rows)
    tokens = done = 0  # of this run, whose speed is shown
    with writing(out), out.open("a", encoding="utf-8") as file:
        for row in _decoded(target, prompts, there, options):
            row["kind"] = kinds[row["number"]] if kinds else ""
            rows.append(row)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
            tokens, done, now = tokens + len(row["answer"]), done + 1, time.monotonic()
            if now - spoken > every or done == left:
                spoken, minutes = now, (now - began) / done * (left - done) / 60
                say(
                    f"{target.name}: {len(there) + done:,} of {len(there) + left:,} answers, "
                    f"{earlier + tokens:,} tokens, "
                    f"{tokens / (now - began):.0f} tokens/s, {minutes:.0f} min left"
                )
    return Answers(out, header, rows)


def _check_answers(target: Target) -> None:
    """Refuse a target that cannot answer in batches."""
    if not hasattr(target, "net"):
        raise ModelError(
            f"{target.name} runs on llama.cpp, which answers one prompt at a time: load it on torch"
        )
    if target.kind not in ("causal", "encoder-decoder"):
        raise ModelError(
            f"{target.name} is of kind {target.kind}: only causal models and encoder-decoders can answer"
        )


def check_apart(prompts: Sequence[Prompt], names: Sequence[str] = ()) -> None:
    """Refuse prompts that are or contain suites' questions: drafters would be measured on memorised answers.

    The suites are those of the package and those of questions that were fetched before.

    Parameters
    ----------
    prompts : sequence of str or of chats
    names : sequence of str
        Further suites, as `specviz.suite` takes them.

    Raises
    ------
    PromptError
        If a prompt is a suite's question, or contains one of eight words or more; the message names both.
    """
    if not any(map(_texts_of, prompts)):  # token ids alone: nothing to compare
        return
    from specviz.suites import suite
    from specviz.suites.catalogue import bundled, cached_questions

    whole: dict[str, str] = {}  # a question, and its suite
    begins: dict[str, dict[str, str]] = {}  # the first words of a long one, its words, and its suite
    for questions in chain(map(suite, (*bundled(), *names)), cached_questions()):
        turns = (turn for entry in questions for turn in entry.get("turns") or [entry["prompt"]])
        for text in chain.from_iterable(map(_texts_of, turns)):
            whole.setdefault(_alike(text), questions.name)
            if len(words := WORD.findall(text.casefold())) >= RUN:
                begins.setdefault(" ".join(words[:RUN]), {}).setdefault(" ".join(words), questions.name)
    wrong: dict[int, str] = {}
    for number, each in enumerate(prompts, 1):
        for text in _texts_of(each):
            if what := _question_in(text, whole, begins):
                wrong.setdefault(number, what)
    if wrong:
        first, *others = wrong
        listed = ", ".join(map(str, others[:8])) + ", …" * (len(others) > 8)
        more = f" (likewise {plural(len(others), 'other prompt')}: {listed})" if others else ""
        raise PromptError(
            f"prompt {first} {wrong[first]}{more}: remove {'them' if others else 'it'}, or drafters will be "
            "measured on memorised answers"
        )


def _question_in(text: str, whole: Mapping[str, str], begins: Mapping[str, Mapping[str, str]]) -> str:
    """What a prompt is or contains, in words; empty if no suite's question."""
    if name := whole.get(_alike(text)):
        return f"is a question of the suite {name}"
    words = WORD.findall(text.casefold())
    for at in range(len(words) - RUN + 1):
        if some := begins.get(" ".join(words[at : at + RUN])):
            rest = " ".join(words[at:]) + " "
            for question, name in some.items():
                if rest.startswith(f"{question} "):
                    return f"contains a question of the suite {name}"
    return ""


def _texts_of(prompt: Prompt) -> list[str]:
    """The texts of a prompt: itself, or a chat's user messages; none for token ids."""
    if isinstance(prompt, str):
        return [prompt]
    return [each["content"] for each in prompt if isinstance(each, dict) and each["role"] == "user"]


def _alike(text: str) -> str:
    """Normalise a text for comparison: case and spacing do not count."""
    return " ".join(text.casefold().split())


def read(path: str | Path) -> Answers:
    """Read a file of answers.

    Raises
    ------
    ModelError
        If it cannot be read, holds no answers, or is damaged; the message names the line.
    """
    path = expanded(path, ModelError)
    try:
        with path.open(encoding="utf-8") as file:
            header = read_header(file.readline(), path)
            rows = list(_rows(file, path))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not rows:
        raise ModelError(f"{path} holds no answer yet: repeat the models answers command")
    return Answers(path, header, rows)


def digest(texts: Iterable[tuple[list[int], list[int]]]) -> str:
    """Short hash of prompts and their answers."""
    made = hashlib.blake2b(digest_size=8)
    for text in texts:
        made.update(json.dumps(text).encode())
    return made.hexdigest()


def _decoded(
    target: Target,
    prompts: Sequence[Sequence[int]],
    there: set[tuple[int, float]],
    options: AnswerOptions,
) -> Iterator[Row]:
    """Yield the missing answers as they end; cut those that loop."""
    shares = [range(first, min(first + SHARE, len(prompts))) for first in range(0, len(prompts), SHARE)]
    for share, temperature in product(shares, options.temperatures):
        numbers = [number for number in share if (number, temperature) not in there]
        # Longest first, so the storage never has to grow; `_answer_batch` takes them from the end.
        numbers.sort(key=lambda number: len(prompts[number]))
        texts = [_Text(number, prompts[number], options) for number in numbers]
        for text in _answer_batch(target, texts, temperature, options) if texts else ():
            end = cut_loop(text.answer)
            yield Row(number=text.number, kind="", temperature=temperature, prompt=text.prompt,
                      answer=text.answer[:end])  # fmt: skip


class _Text:
    """An answer in progress, and its random generator."""

    def __init__(self, number: int, prompt: Sequence[int], options: AnswerOptions) -> None:
        self.number, self.prompt = number, list(prompt)
        self.answer: list[int] = []
        self.chance = random.Random(f"{options.seed}:{number}").random


def _answer_batch(
    target: Target, waiting: list[_Text], temperature: float, options: AnswerOptions
) -> Iterator[_Text]:
    """Decode texts in a batch, one token each per pass; a waiting text takes the place of one that ends."""
    texts = [waiting.pop() for _ in range(min(options.rows, len(waiting)))]
    room = options.max_new_tokens
    with closing(target.open([text.prompt for text in texts], room)) as context:
        for place in range(len(texts)):
            context.prefill([place])
        while texts:
            scores = torch.cat(context.forward([NOTHING] * len(texts)).logits)
            tokens = scores.argmax(-1).tolist() if not temperature else _drawn(scores / temperature, texts)
            for text, token in zip(texts, tokens):
                text.answer.append(token)
            context.extend([[token] for token in tokens])
            for place in reversed(range(len(texts))):
                text = texts[place]
                most = min(room, target.left(len(text.prompt)))  # per text: a long prompt cuts no other
                length = len(text.answer)
                looping = length % LOOKS == 0 and cut_loop(text.answer) < length
                if text.answer[-1] not in target.eos and length < most and not looping:
                    continue
                yield text
                if waiting:
                    texts[place] = waiting.pop()
                    context.replace(place, texts[place].prompt, room)
                    context.prefill([place])
                    continue
                if len(texts) > 1:
                    context.drop(place)
                texts[place] = texts[-1]
                texts.pop()


def _drawn(scores: torch.Tensor, texts: Sequence[_Text]) -> list[int]:
    """Sample a token from each row of scores with that text's random generator."""
    mass = scores.softmax(-1).cumsum(-1)
    chances = torch.tensor([[text.chance()] for text in texts], dtype=mass.dtype, device=mass.device)
    # A chance just below 1 rounds to 1 in float32, but it must still select a token that has mass.
    whole = mass[:, -1:]
    drawn = torch.minimum(chances * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    return torch.searchsorted(mass, drawn, right=True)[:, 0].tolist()


def _saved(out: Path, header: Header) -> tuple[Header, list[Row]]:
    """Load the header and answers of a file; create a missing file, and cut off an unfinished last line."""
    if not out.exists():
        try:
            with replacing(out) as part:
                part.write_text(json.dumps(header) + "\n", encoding="utf-8")
        except OSError as error:
            raise ModelError(f"cannot write {out}: {error.strerror or error}") from error
        return header, []
    try:
        whole = out.read_bytes()
        first, *lines = whole.decode("utf-8", "replace").splitlines(keepends=True) or [""]
    except OSError as error:
        raise ModelError(f"cannot read {out}: {error.strerror or error}") from error
    old = read_header(first, out)  # before any repair: the file may be something else
    different = [key for key, value in header.items() if key != "model" and old.get(key) != value]
    if different:
        raise ModelError(f"{out} {_difference(old, header, different)}name another file or delete it")
    if not whole.endswith(b"\n"):  # the run was killed in the middle of a line
        with out.open("r+b") as file:
            file.truncate(whole.rfind(b"\n") + 1)
            if not lines:  # the header itself is whole
                file.write(whole + b"\n")
        lines = lines[:-1]
    return old, list(_rows(lines, out))


def _difference(old: Header, new: Header, keys: Sequence[str]) -> str:
    """Describe the first key by which headers differ, and how to get the old number format again."""
    if (key := keys[0]) not in old:
        return f"does not say its {key}: "
    layout = old.get("kernels") or "plain"
    ways = {"dtype": f"--dtype {old.get('dtype')}", "kernels": f"SPECVIZ_KERNELS={layout}"}
    again = " and ".join(ways[each] for each in keys if key in ways)
    values = ("plain" if (value := each.get(key)) is None else str(value)[:20] for each in (old, new))
    return f"was made with a different {key} ({', now '.join(values)}): {again and f'repeat with {again}, '}"


def read_header(line: str, path: Path) -> Header:
    """Read the first line of a file of answers (`ModelError` if it is none)."""
    header = parsed(line, f"{path}, line 1", error=ModelError) if line.strip() else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelError(f"{path} holds no answers: make them with specviz models answers")
    return checked(Header, header, f"{path}, line 1", error=ModelError)


def _rows(lines: Iterable[str], path: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, 2):
        where = f"{path}, line {number}"
        yield checked(Row, parsed(line, where, error=ModelError), where, error=ModelError)
