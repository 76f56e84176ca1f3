"""A target's own answers to prompts: what its drafters learn, in a file that grows as they come.

Line 1 names the target, by the hash of its weights and tokenizer. Each other line is an answer (`Row`). A run
that was cut off goes on after the last whole line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypedDict

from specviz.errors import ModelError, ParameterError, PromptError
from specviz.files import checked, parsed
from specviz.loop.batch import decode_batch
from specviz.methods import find
from specviz.methods.sampling import Sampling

if TYPE_CHECKING:
    from specviz.models.torch_model import TorchModel

FORMAT = "specviz answers 1"
ROWS = 64  # texts that are decoded together
SHARE = 1024  # prompts that are sorted by their length together: an unfinished run has answers of all kinds
LOOP, TIMES = 20, 3  # so many tokens, that come so often, are a loop
Say = Callable[[str], None]


class Header(TypedDict):
    """The first line: whose answers these are, and how they were made."""

    format: str
    model: str
    content: str
    max_new_tokens: int
    temperature: float
    sampled: float
    seed: int


class Row(TypedDict):
    """An answer: token ids with the end token, and the temperature that it was drawn at (0: greedy)."""

    number: int
    kind: str
    temperature: float
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Answers:
    """The answers of a file.

    Attributes
    ----------
    model, content : str
        The target's name and hash.
    rows : list of Row
        By number.
    """

    model: str
    content: str
    rows: list[Row]

    @property
    def tokens(self) -> int:
        """Of all answers together."""
        return sum(len(row["answer"]) for row in self.rows)

    def check(self, target: TorchModel) -> None:
        """Refuse another model's answers.

        Raises
        ------
        ModelError
        """
        if self.content != target.content:
            raise ModelError(
                f"these are answers of {self.model} ({self.content[:8]}), and the target is {target.name} "
                f"({target.content[:8]}): make its own with specviz models answers"
            )


@dataclass(frozen=True)
class AnswerOptions:
    """How prompts are answered; `answer` says what each means."""

    max_new_tokens: int = 128
    sampled: float = 0.0
    temperature: float = 0.7
    rows: int = ROWS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.sampled <= 1:
            raise ParameterError(f"sampled must lie in 0 .. 1, got {self.sampled}")
        for name in ("max_new_tokens", "temperature", "rows"):
            if not getattr(self, name) > 0:
                raise ParameterError(f"{name} must be positive, got {getattr(self, name)}")

    def temperature_of(self, number: int) -> float:
        """Of a prompt, by its number: an even spread, in which every tenth prompt is greedy up to 0.9."""
        drawn = int(number * self.sampled) > int((number - 1) * self.sampled)
        return self.temperature if number and drawn else 0.0


def answer(
    target: TorchModel,
    prompts: Sequence[Sequence[int]],
    out: Path,
    options: AnswerOptions | None = None,
    kinds: Sequence[str] = (),
    say: Say = print,
    every: float = 60.0,
) -> Answers:
    """Let a target answer prompts, in batches, into a file; go on where it ends.

    Parameters
    ----------
    target : Model
    prompts : sequence of sequences of int
    out : Path
        The file. One that was cut off, of the same target and options, is gone on with.
    options : AnswerOptions, optional
        `max_new_tokens` of an answer; the share of prompts that are answered by drawing (`sampled`) at
        `temperature`, the others greedily; `rows` that are decoded together; the `seed` of what is drawn.
    kinds : sequence of str, optional
        Kinds of work, one for each prompt.
    every : float
        Seconds between lines of progress.

    Raises
    ------
    ModelError
        If the file is of another target or other options.
    PromptError
        If its prompts are others.
    """
    options = options or AnswerOptions()
    header = Header(
        format=FORMAT, model=target.name, content=target.content, max_new_tokens=options.max_new_tokens,
        temperature=options.temperature, sampled=options.sampled, seed=options.seed,
    )  # fmt: skip
    rows = _saved(out, header)
    for row in rows:
        if row["number"] >= len(prompts) or row["prompt"] != list(prompts[row["number"]]):
            raise PromptError(f"{out} answers other prompts: name another file, or delete it")
    there = {row["number"] for row in rows}
    left = [number for number in range(len(prompts)) if number not in there]
    began = spoken = time.monotonic()
    tokens = done = 0
    with out.open("a", encoding="utf-8") as file:
        for row in _decoded(target, prompts, left, options):
            row["kind"] = kinds[row["number"]] if kinds else ""
            rows.append(row)
            file.write(json.dumps(row, separators=(",", ":")) + "\n")
            file.flush()
            tokens, done, now = tokens + len(row["answer"]), done + 1, time.monotonic()
            if now - spoken > every or done == len(left):
                spoken, minutes = now, (now - began) / done * (len(left) - done) / 60
                say(
                    f"{target.name}: {len(there) + done:,} of {len(prompts):,} prompts answered, "
                    f"{tokens:,} tokens, {tokens / (now - began):.0f} tokens/s, {minutes:.0f} min left"
                )
    return Answers(target.name, target.content, sorted(rows, key=lambda row: row["number"]))


def read(path: str | Path) -> Answers:
    """The answers of a file.

    Raises
    ------
    ModelError
        If it is none, or damaged; the line says where.
    """
    path = Path(path).expanduser()
    try:
        with path.open(encoding="utf-8") as file:
            header = _header(file.readline(), path)
            rows = list(_rows(file, path))
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    return Answers(header["model"], header["content"], sorted(rows, key=lambda row: row["number"]))


def cut_loop(tokens: Sequence[int]) -> int:
    """How much of an answer is no loop: all, or as far as the first of three equal runs of 20 tokens goes."""
    places: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) - LOOP + 1):
        each = places.setdefault(tuple(tokens[start : start + LOOP]), [])
        each.append(start)
        if len(each) == TIMES:
            return each[0] + LOOP
    return len(tokens)


def _decoded(
    target: TorchModel, prompts: Sequence[Sequence[int]], numbers: Sequence[int], options: AnswerOptions
) -> Iterator[Row]:
    """Answers of some prompts, as they end; looping ones are cut."""
    shares = [numbers[first : first + SHARE] for first in range(0, len(numbers), SHARE)]
    for share, temperature in product(shares, (0.0, options.temperature)):
        some = [number for number in share if options.temperature_of(number) == temperature]
        some.sort(key=lambda number: -len(prompts[number]))  # the longest first: the storage need not grow
        written: dict[int, list[int]] = {number: [] for number in some}
        batch = decode_batch(
            target, [list(prompts[number]) for number in some], find("autoregressive")(), rows=options.rows,
            numbers=some, sampling=Sampling(temperature), max_new_tokens=options.max_new_tokens,
            seed=options.seed,
        )  # fmt: skip
        for cycle in chain.from_iterable(batch):
            written[cycle.prompt] += cycle.tokens
            if cycle.end is not None:
                tokens = written.pop(cycle.prompt)
                yield Row(
                    number=cycle.prompt, kind="", temperature=temperature,
                    prompt=list(prompts[cycle.prompt]), answer=tokens[: cut_loop(tokens)],
                )  # fmt: skip


def _saved(out: Path, header: Header) -> list[Row]:
    """The answers that a file holds already; a new file, or one without a last line's end, is mended."""
    if not out.exists():
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(header) + "\n", encoding="utf-8")
        except OSError as error:
            raise ModelError(f"cannot write {out}: {error.strerror or error}") from error
        return []
    whole = out.read_bytes()
    if not whole.endswith(b"\n"):  # a kill came in the middle of a line
        with out.open("r+b") as file:
            file.truncate(whole.rfind(b"\n") + 1)
    with out.open(encoding="utf-8") as lines:
        old = _header(lines.readline(), out)
        different = [key for key, value in header.items() if key != "model" and old.get(key) != value]
        if different:
            raise ModelError(f"{out} was made with another {different[0]}: name another file, or delete it")
        return list(_rows(lines, out))


def _header(line: str, path: Path) -> Header:
    header = parsed(line, f"{path}, line 1", error=ModelError) if line.strip() else None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelError(f"{path} holds no answers: make them with specviz models answers")
    return checked(Header, header, f"{path}, line 1", error=ModelError)


def _rows(lines: IO[str], path: Path) -> Iterator[Row]:
    for number, line in enumerate(lines, 2):
        where = f"{path}, line {number}"
        yield checked(Row, parsed(line, where, error=ModelError), where, error=ModelError)
