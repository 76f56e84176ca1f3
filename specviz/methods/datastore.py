"""A datastore to retrieve drafts from: the tokens of a text and a suffix array over them.

As in REST (He et al. 2024, "REST: Retrieval-Based Speculative Decoding"): the longest run of a text's last
tokens that occurs in the datastore is looked up, and its continuations there, most frequent first, are
drafted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ParameterError, PromptError
from ..models.protocols import Model
from ..paths import expanded
from .files import read, write
from .memory import fingerprint
from .prefix_tree import END, merge

SORTED = 64  # suffixes are ordered by this many tokens; no draft looks further
SAMPLE = 256  # maximum number of matches whose continuations are counted, evenly spaced among all
REMEDY = "build one with specviz datastore TEXTFILE"


class Datastore:
    """Tokens and the order of their suffixes.

    Parameters
    ----------
    tokens : array of int, shape [n]
    suffixes : array of int, shape [n], optional
        Start of each suffix, in sorted order; computed if not given.

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
        """Build a datastore from a UTF-8 text file, in the tokens of `model`.

        Raises
        ------
        ParameterError
            If the file is missing, not UTF-8 text, or empty.
        """
        path = expanded(path, ParameterError)
        try:
            text = path.read_text(encoding="utf-8-sig")  # with plain line ends
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
        """Load a saved datastore, or build one if the file is text.

        Raises
        ------
        ParameterError
            If the file is missing, damaged or empty, or made for another vocabulary than the model's.
        """
        path = expanded(path, ParameterError)
        try:
            with path.open("rb") as file:
                # A saved file begins with an 8-byte length, which has zero bytes; text has none.
                saved = b"\0" in file.read(8)
        except OSError:
            saved = True
        return cls.load(path, model) if saved else cls.build(path, model)

    def save(self, path: str | Path, model: Model) -> Path:
        """Save to a file; `model` must be the model whose tokens the datastore holds."""
        about = {"specviz": "datastore", "vocabulary": fingerprint(model)}
        return write(path, {"tokens": self.tokens, "suffixes": self.suffixes}, about)

    @classmethod
    def load(cls, path: str | Path, model: Model) -> Datastore:
        """Load a file written by `save`.

        Raises
        ------
        ParameterError
            If the file is missing, damaged, not a datastore, or made for another vocabulary.
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
        return memoryview(self.suffixes.data)  # items are plain ints, faster to read one at a time

    @cached_property
    def _words(self) -> bytes:
        # Four big-endian bytes per token, so that byte slices compare like token sequences.
        return self.tokens.astype(">u4").tobytes()

    def places(self, run: np.ndarray) -> tuple[int, int]:
        """The range of suffixes that begin with a run of tokens: start and end (exclusive)."""
        key = np.asarray(run).astype(">u4").tobytes()
        words, size = self._words, len(key)

        def head(place: int) -> bytes:
            return words[4 * place : 4 * place + size]

        order: Any = self._order
        low = bisect_left(order, key, key=head)
        return low, bisect_right(order, key, low, key=head)

    def match(self, text: np.ndarray, longest: int) -> tuple[int, int, int]:
        """The longest run of the text's last tokens that occurs here: its length and range of suffixes."""
        match = (0, 0, 0)
        low, high = 0, min(longest, len(text))
        while low < high:  # if a run occurs, so do the shorter ones
            length = (low + high + 1) // 2
            begin, end = self.places(text[len(text) - length :])
            if begin < end:
                low, match = length, (length, begin, end)
            else:
                high = length - 1
        return match

    def continuations(self, text: np.ndarray, longest: int, depth: int, most: int) -> np.ndarray:
        """Continuations of the text's last tokens in the datastore.

        Parameters
        ----------
        text : array of int, shape [length]
        longest : int
            Maximum number of last tokens to match.
        depth, most : int
            Maximum levels and nodes of the tree that the continuations form.

        Returns
        -------
        array of int, shape [m, depth]
            Paths of the tree of the most frequent beginnings, most frequent first, padded with -1. Empty if
            the last token does not occur here.
        """
        length, begin, end = self.match(text, longest)
        places = self.suffixes[begin:end]
        if len(places) > SAMPLE:
            places = places[np.linspace(0, len(places) - 1, SAMPLE).astype(np.int64)]
        at = places[:, None] + length + np.arange(depth)
        rows = np.where(at < len(self), self.tokens[np.minimum(at, len(self) - 1)], END)
        tree = merge(rows)
        # A node is never more frequent than its parent, so the most frequent nodes form a tree.
        best = np.lexsort((tree.level, -tree.count))[:most]
        inner = tree.parents[best]
        leaves = best[~np.isin(best, inner)]
        return np.where(np.arange(depth) < tree.level[leaves, None], rows[tree.row[leaves]], END)


def suffix_array(tokens: np.ndarray) -> np.ndarray:
    """Start of each suffix in sorted order, int32 [n]; the end of the text sorts before any token.

    Prefix doubling (Manber and Myers 1993): suffixes are ordered by their first 1, 2, 4 ... tokens, until all
    differ or `SORTED` tokens are compared.
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
