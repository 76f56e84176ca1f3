"""Training data: shards of tokenised chats, made on first use and kept in a cache folder.

A shard is a safetensors file of flat arrays. The same seed and number always give the same shard, so a
resumed run continues where it stopped. A batch holds chats of similar length, padded, each in its own
row: no chat attends to another.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from town.corpus import pairs as corpus_pairs
from town.corpus import prefixes, tasks
from town.corpus.meaning import Split
from town.training.tokenizer import PAD, encode_chat, encode_pair

CHATS = 4096  # per shard; about 220,000 tokens
Turns = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Shard:
    """Chats as flat arrays.

    Attributes
    ----------
    tokens : array of uint16 [n]
    answer : array of uint8 [n]
        1 for the assistant's tokens.
    starts : array of int64 [chats + 1]
    """

    tokens: np.ndarray
    answer: np.ndarray
    starts: np.ndarray

    def chat(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and answer marks of one chat."""
        at = slice(self.starts[i], self.starts[i + 1])
        return self.tokens[at], self.answer[at]

    def __len__(self) -> int:
        return len(self.starts) - 1


def pack(tokenizer: Any, chats: Iterable[Turns], longest: int, texts: str = "chats") -> Shard:
    """Tokenise chats, dropping those longer than `longest` tokens."""
    encode = encode_pair if texts == "pairs" else encode_chat
    tokens, answer, starts = [], [], [0]
    for turns in chats:
        ids, said = encode(tokenizer, turns)
        if len(ids) <= longest:
            tokens += ids
            answer += said
            starts.append(len(tokens))
    return Shard(np.array(tokens, np.uint16), np.array(answer, np.uint8), np.array(starts, np.int64))


def turns(texts: str, seed: int | str, split: Split) -> Iterator[Turns]:
    """An endless stream of chats of one kind of texts (`Recipe.texts`)."""
    if texts == "english":
        return (s.turns for s in tasks.stream(seed, split) if {s.language, s.target} <= {"en", None})
    if texts in ("chats", "pairs"):
        return (sample.turns for sample in (tasks if texts == "chats" else corpus_pairs).stream(seed, split))
    return prefixes.stream(seed, split, texts)


def made_by(tokenizer: Any, *files: Path) -> str:
    """Hash of everything that shapes a shard: the tokenizer, the corpus' source code and `files`.

    Shards with a different hash are stale and are not read.
    """
    digest = hashlib.blake2b(tokenizer.to_str().encode(), digest_size=4)
    for file in [*sorted(Path(tasks.__file__).parent.glob("*.py")), *files]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def corpus_shard(
    cache: Path,
    tokenizer: Any,
    seed: int,
    number: int,
    longest: int,
    chats: int = CHATS,
    texts: str = "chats",
) -> Shard:
    """Shard `number` of the training corpus, read from the cache or made now."""
    file = cache / f"{texts}-{made_by(tokenizer)}-{seed}-{longest}-{chats}-{number:05d}.safetensors"
    if not file.exists():
        write(file, pack(tokenizer, islice(turns(texts, f"{seed}:{number}", "train"), chats), longest, texts))
    return read(file)


class Ahead:
    """Corpus shards that worker processes make in advance: 0, 1, 2 ... or starting from any number.

    A GPU reads faster than one core generates (about 100,000 tokens/s). Close it to end the processes.

    Parameters
    ----------
    cache, seed, longest, chats
        As for :func:`corpus_shard`.
    tokenizer : Path
        The file ``tokenizer.json``.
    workers : int
        Number of processes; up to twice as many shards are in progress or waiting.
    """

    def __init__(
        self,
        cache: Path,
        tokenizer: Path,
        seed: int,
        longest: int,
        workers: int,
        chats: int = CHATS,
        texts: str = "chats",
    ) -> None:
        # Spawned, not forked: a process that has started CUDA or threads cannot be forked safely.
        self.pool = ProcessPoolExecutor(workers, get_context("spawn"))
        self.workers = workers
        self.given = cache, tokenizer, seed, longest, chats, texts
        self.coming: dict[int, Future[Shard]] = {}

    def __call__(self, number: int) -> Shard:
        """Return shard `number`, waiting until it is made."""
        for n in range(number, number + 2 * self.workers + 1):
            if n not in self.coming:
                self.coming[n] = self.pool.submit(_make, *self.given, n)
        return self.coming.pop(number).result()

    def close(self) -> None:
        """End the processes; shards they have not started are not made."""
        self.pool.shutdown(cancel_futures=True)


def _make(
    cache: Path, tokenizer: Path, seed: int, longest: int, chats: int, texts: str, number: int
) -> Shard:
    return corpus_shard(cache, _tokenizer(tokenizer), seed, number, longest, chats, texts)


@lru_cache(maxsize=1)
def _tokenizer(file: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file))


def write(file: Path, shard: Shard) -> None:
    """Write a shard atomically, so that a killed process leaves no partial file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")
    save_file({"tokens": shard.tokens, "answer": shard.answer, "starts": shard.starts}, part)
    os.replace(part, file)


def read(file: Path) -> Shard:
    """Read a shard."""
    return Shard(**load_file(file))


def batches(
    shard: Shard, size: int, rng: random.Random, pairs: bool = False
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The chats of a shard as batches of at most about `size` tokens each, in random order.

    With `pairs`, prompts and answers are padded separately when they are read (an encoder-decoder's two
    sides), so both must have similar lengths within a batch.

    Returns
    -------
    list of (tokens int64 [rows, length], answer bool [rows, length])
        Padded on the right with ``<pad>``; padding does not count as answer.
    """
    lengths = np.diff(shard.starts)
    said = np.add.reduceat(shard.answer.astype(np.int64), shard.starts[:-1])
    padded = np.stack((lengths - said, said) if pairs else (lengths,))  # lengths of the sides that are padded
    order = sorted(range(len(shard)), key=lambda i: padded[-1, i] + rng.random() * 8 ** (not pairs))
    if pairs:
        slabs = [order[first : first + 512] for first in range(0, len(order), 512)]
        order = [i for slab in slabs for i in sorted(slab, key=lambda i: padded[0, i])]
    made: list[tuple[np.ndarray, np.ndarray]] = []
    row: list[int] = []
    for i in [*order, -1]:
        if row and (i < 0 or padded[:, [*row, i]].max(1).sum() * (len(row) + 1) > size):
            width = max(lengths[j] for j in row)
            tokens = np.full((len(row), width), PAD, np.int64)
            answer = np.zeros((len(row), width), bool)
            for r, j in enumerate(row):
                ids, marks = shard.chat(j)
                tokens[r, : len(ids)], answer[r, : len(ids)] = ids, marks
            made.append((tokens, answer))
            row = []
        row.append(i)
    rng.shuffle(made)
    return made


def batch_stream(
    shard: Callable[[int], Shard], size: int, seed: int, start: tuple[int, int] = (0, 0), pairs: bool = False
) -> Iterator[tuple[tuple[int, int], tuple[np.ndarray, np.ndarray]]]:
    """Batches of shard 0, 1, 2 ... without end, each with the position (shard, batch) to resume from."""
    number, first = start
    while True:
        made = batches(shard(number), size, random.Random(f"{seed}:{number}"), pairs)
        for at in range(first, len(made)):
            yield (number, at + 1), made[at]
        number, first = number + 1, 0
