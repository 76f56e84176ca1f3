"""Training data: shards of tokenised chats, made when first needed and kept in a cache folder.

A shard is a safetensors file of flat arrays; the same seed and number give the same shard, so a
resumed run reads on where it stopped. Batches hold chats of like length side by side, padded, each
in a row of its own: no chat sees another.
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

CHATS = 4096  # a shard; about 220,000 tokens
Turns = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Shard:
    """Chats as flat arrays.

    Attributes
    ----------
    tokens : array of uint16 [n]
    answer : array of uint8 [n]
        1 where the assistant speaks.
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
    """Tokenise chats; those longer than `longest` tokens are left out."""
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
    """The chats of a kind of texts (`Recipe.texts`), without end."""
    if texts == "english":
        return (s.turns for s in tasks.stream(seed, split) if {s.language, s.target} <= {"en", None})
    if texts in ("chats", "pairs"):
        return (sample.turns for sample in (tasks if texts == "chats" else corpus_pairs).stream(seed, split))
    return prefixes.stream(seed, split, texts)


def made_by(tokenizer: Any, *files: Path) -> str:
    """A mark of what shapes a shard: the tokenizer, the corpus' source code and `files`.

    Shards of another mark are stale and are not read again.
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
    """Shard `number` of the training corpus, from the cache or made now."""
    file = cache / f"{texts}-{made_by(tokenizer)}-{seed}-{longest}-{chats}-{number:05d}.safetensors"
    if not file.exists():
        write(file, pack(tokenizer, islice(turns(texts, f"{seed}:{number}", "train"), chats), longest, texts))
    return read(file)


class Ahead:
    """Corpus shards that other processes make before they are asked for: 0, 1, 2 ... or on from any number.

    A GPU reads faster than one core writes (about 100,000 tokens/s). Close it to end the processes.

    Parameters
    ----------
    cache, seed, longest, chats
        As :func:`corpus_shard` takes them.
    tokenizer : Path
        The file ``tokenizer.json``.
    workers : int
        Processes; twice as many shards are under way or waiting.
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
        # Not forked: a process that has started CUDA or threads cannot be copied.
        self.pool = ProcessPoolExecutor(workers, get_context("spawn"))
        self.workers = workers
        self.given = cache, tokenizer, seed, longest, chats, texts
        self.coming: dict[int, Future[Shard]] = {}

    def __call__(self, number: int) -> Shard:
        """Shard `number`, when it is made."""
        for n in range(number, number + 2 * self.workers + 1):
            if n not in self.coming:
                self.coming[n] = self.pool.submit(_make, *self.given, n)
        return self.coming.pop(number).result()

    def close(self) -> None:
        """End the processes; what they have not begun is not made."""
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
    """Write a shard so that a killed process leaves no half of one."""
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

    With `pairs`, prompts and answers are padded each for themselves when they are read (an encoder-decoder's
    two sides), so that both must be of like length in a batch.

    Returns
    -------
    list of (tokens int64 [rows, length], answer bool [rows, length])
        Padded on the right with ``<pad>``; padding is no answer.
    """
    lengths = np.diff(shard.starts)
    said = np.add.reduceat(shard.answer.astype(np.int64), shard.starts[:-1])
    padded = np.stack((lengths - said, said) if pairs else (lengths,))  # what is padded, side by side
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
    """Batches of shard 0, 1, 2 ... without end, each with the place (shard, batch) to go on from after it."""
    number, first = start
    while True:
        made = batches(shard(number), size, random.Random(f"{seed}:{number}"), pairs)
        for at in range(first, len(made)):
            yield (number, at + 1), made[at]
        number, first = number + 1, 0
