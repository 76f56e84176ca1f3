"""A text to look things up in: its tokens and a suffix array over them.

What REST does (He et al. 2024, "REST: Retrieval-Based Speculative Decoding"): the longest run of a text's
last tokens that stands in the datastore is found, and what follows it there, most frequent first, is a draft.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ParameterError, PromptError
from ..models.protocols import Model
from .files import read, write
from .memory import fingerprint
from .prefix_tree import END, merge

SORTED = 64  # tokens by which suffixes are ordered; no draft looks further
SAMPLE = 256  # places whose continuations are compared, at most; evenly spaced among all that match
REMEDY = "build one with specviz datastore TEXTFILE"


class Datastore:
    """Tokens and the order of their suffixes.

    Parameters
    ----------
    tokens : array of int, shape [n]
    suffixes : array of int, shape [n], optional
        Where each suffix begins, in the order of the suffixes; made if not given.

    Raises
    ------
    ParameterError
        If there are no tokens.
    """

    def __init__(self, tokens: Any, suffixes: np.ndarray | None = None) -> None:
        self.tokens = np.asarray(tokens, np.int32)
        if not len(self.tokens):
            raise ParameterError("the datastore is empty: build it from a text with at least one word")
        self.suffixes = suffix_array(self.tokens) if suffixes is None else suffixes

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def build(cls, path: str | Path, model: Model) -> Datastore:
        """The datastore of a text file in UTF-8, in the tokens of `model`.

        Raises
        ------
        ParameterError
            If the file is missing, no text, or empty.
        """
        path = Path(path)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise ParameterError(
                f"{path}: {(error.strerror or str(error)).lower()}; name a text file"
            ) from None
        except UnicodeDecodeError:
            raise ParameterError(f"{path} is not UTF-8 text") from None
        if not text.strip():
            raise ParameterError(f"{path} is empty: a datastore needs a text with at least one word")
        try:
            return cls(model.encode(text, raw=True))
        except PromptError as error:
            raise ParameterError(f"{path}: {error}") from None

    @classmethod
    def open(cls, path: str | Path, model: Model) -> Datastore:
        """A saved datastore, or that of a text file, whichever the file is.

        Raises
        ------
        ParameterError
            If it is missing, damaged, or of another vocabulary than the model's.
        """
        path = Path(path)
        try:
            with path.open("rb") as file:
                saved = b"\0" in file.read(
                    8
                )  # such a file begins with a number of eight bytes, a text does not
        except OSError:
            saved = True
        return cls.load(path, model) if saved else cls.build(path, model)

    def save(self, path: str | Path, model: Model) -> Path:
        """Write it to a file; `model` is the one whose vocabulary it speaks."""
        about = {"specviz": "datastore", "vocabulary": fingerprint(model)}
        return write(path, {"tokens": self.tokens, "suffixes": self.suffixes}, about)

    @classmethod
    def load(cls, path: str | Path, model: Model) -> Datastore:
        """Read what `save` wrote.

        Raises
        ------
        ParameterError
            If the file is missing, damaged, no datastore, or of another vocabulary.
        """
        arrays, about = read(path, REMEDY)
        if about.get("specviz") != "datastore":
            raise ParameterError(f"{path} is not a specviz datastore; {REMEDY}")
        if about.get("vocabulary") != fingerprint(model):
            raise ParameterError(
                f"{path} was made for another vocabulary than {model.name}'s; build it again with "
                f"--model {model.name}"
            )
        tokens, suffixes = arrays.get("tokens"), arrays.get("suffixes")
        whole = (
            tokens is not None
            and suffixes is not None
            and tokens.dtype == suffixes.dtype == np.int32
            and tokens.ndim == 1
            and tokens.shape == suffixes.shape
            and len(tokens) > 0
            and 0 <= tokens.min() <= tokens.max() < model.vocabulary
            and np.array_equal(np.sort(suffixes), np.arange(len(tokens)))
        )
        if not whole:
            raise ParameterError(f"{path} is damaged; {REMEDY}")
        return cls(tokens, suffixes)

    @cached_property
    def _order(self) -> memoryview:
        return memoryview(self.suffixes.data)  # its items are plain numbers, which are faster one by one

    @cached_property
    def _words(self) -> bytes:
        # Four bytes per token, the highest first: slices compare as token sequences do.
        return self.tokens.astype(">u4").tobytes()

    def places(self, run: np.ndarray) -> tuple[int, int]:
        """Which suffixes begin with a run of tokens: from, to (excluded)."""
        key = np.asarray(run).astype(">u4").tobytes()
        words, size = self._words, len(key)

        def head(place: int) -> bytes:
            return words[4 * place : 4 * place + size]

        order: Any = self._order
        low = bisect_left(order, key, key=head)
        return low, bisect_right(order, key, low, key=head)

    def match(self, text: np.ndarray, longest: int) -> tuple[int, int, int]:
        """The longest run of the text's last tokens that stands here: length, and suffixes from, to."""
        match = (0, 0, 0)
        low, high = 0, min(longest, len(text))
        while low < high:  # where a run stands, so do the shorter ones
            length = (low + high + 1) // 2
            begin, end = self.places(text[len(text) - length :])
            if begin < end:
                low, match = length, (length, begin, end)
            else:
                high = length - 1
        return match

    def continuations(self, text: np.ndarray, longest: int, depth: int, most: int) -> np.ndarray:
        """How the text's last tokens go on here.

        Parameters
        ----------
        text : array of int, shape [length]
        longest : int
            Most last tokens that are looked for.
        depth, most : int
            Most levels and most nodes of the tree that the continuations make.

        Returns
        -------
        array of int, shape [m, depth]
            The paths of the tree of the most frequent beginnings, -1 after their ends; the most frequent
            first. Nothing if the last token does not occur here.
        """
        length, begin, end = self.match(text, longest)
        places = self.suffixes[begin:end]
        if len(places) > SAMPLE:
            places = places[np.linspace(0, len(places) - 1, SAMPLE).astype(np.int64)]
        at = places[:, None] + length + np.arange(depth)
        rows = np.where(at < len(self), self.tokens[np.minimum(at, len(self) - 1)], END)
        tree = merge(rows)
        # A node is met no more often than its parent, so the most frequent ones are a tree.
        best = np.lexsort((tree.level, -tree.count))[:most]
        inner = tree.parents[best]
        leaves = best[~np.isin(best, inner)]
        return np.where(np.arange(depth) < tree.level[leaves, None], rows[tree.row[leaves]], END)


def suffix_array(tokens: np.ndarray) -> np.ndarray:
    """Where each suffix begins, in their order, int32 [n]; an end comes before any token.

    By prefix doubling (Manber and Myers 1993): ordered by 1, 2, 4 ... tokens, until all differ or the
    order by `SORTED` tokens is reached.
    """
    n = len(tokens)
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    width = 1
    order = np.argsort(rank, kind="stable")
    while width < SORTED and rank.max() < n - 1:
        following = np.zeros(n, np.int64)
        following[: max(n - width, 0)] = rank[width:] + 1
        key = rank * (n + 1) + following
        order = np.argsort(key, kind="stable")
        sorted_key = key[order]
        rank = np.empty(n, np.int64)
        rank[order] = np.concatenate([[0], np.cumsum(sorted_key[1:] != sorted_key[:-1])])
        width *= 2
    return order.astype(np.int32)
