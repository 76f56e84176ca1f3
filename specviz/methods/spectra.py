"""SPECTRA: n-grams from the target itself, looked up in two ways, and a datastore.

Le et al. 2025 ("SPECTRA: Faster Large Language Model Inference with Optimized Internal and External
Speculation"); the two stores are described in UniSpec's Appendix B (Do et al.). We found no public code, so
many details are our reading:

- Internal: n-grams come from Lookahead's window and from the text as it is written. They are stored twice, by
  their first token (one-to-many, Lookahead's pool) and by the tokens before the last (many-to-one, followed
  into one chain).
- External: a datastore of tokens is searched for the text's last tokens, as in REST (He et al. 2024). The
  user chooses the text from which it is built.
- The draft size is divided as follows. The window gets at most half, as in Lookahead. The chain comes next,
  because it has the longest context; then n-grams, most recent first, alternate with the datastore's
  continuations, most frequent first. A prefix that several candidates share is sent once, with the source of
  the first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np

from ..errors import ParameterError
from ..models.protocols import Model
from ..paths import expanded
from ..rules.parameters import Value
from .base import Parameter
from .chain import Chain
from .datastore import REMEDY, Datastore
from .lookahead import DRAFT_SIZE, GUESSES, NGRAM, WINDOW, Lookahead
from .memory import KEEP
from .pool import Pool
from .prefix_tree import END


class Spectra(Lookahead):
    """Drafts from the target's guesses, its own text, and a separate datastore of text."""

    name = "spectra"
    trees = True
    title = "SPECTRA"
    paper = "Le et al. 2025"
    parameters = (
        replace(DRAFT_SIZE, meaning=f"{DRAFT_SIZE.meaning[:-1]}; 60 in UniSpec's Table 17."),
        WINDOW, NGRAM, GUESSES,
        Parameter("run", 2, 1, 8, "tokens", "Number of last tokens by which the chain looks up the next "
            "one.", "n - 1"),
        Parameter("chain", 10, 0, 64, "tokens", "Maximum length of the chain; 0: none.", "G"),
        Parameter(
            "datastore", "",
            meaning="A datastore file or a UTF-8 text file (specviz datastore builds a datastore); empty: "
                "none.",
        ),
        Parameter("longest", 8, 1, 64, "tokens", "Maximum number of last tokens to look up in the "
            "datastore."),
        Parameter("reach", 10, 1, 64, "tokens", "Maximum number of tokens copied from the datastore after a "
            "match."),
        KEEP,
    )  # fmt: skip
    shape = ("ngram", "guesses", "run")
    files = ("datastore",)
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    from the last n − 1 tokens: the one that followed, again and again"),
        ("draft", "    n-grams that begin with x_t"),
        ("draft", "    what follows the longest run of last tokens in the datastore"),
        ("draft", "    T = these in turn, as one tree;  W = the window"),
        ("forward", "    p = target(text + W + T)   # one pass over both branches"),
        ("verify", "    from the root down T, as long as a child survives:"),
        ("verify:accepted", "        go to the child that the target writes itself"),
        ("verify:rejected", "        its siblings are rejected"),
        ("commit", "    text = text + path + [the target's next token]"),
        ("commit", "    both stores += the columns of W, with argmax p where each ends"),
        ("commit", "    both stores += the n-grams of the text"),
        ("commit", "    W moves on: its first row goes, the new one is its last"),
    )
    run: int
    chain: int
    datastore: str
    longest: int
    reach: int
    from_text = True
    external: Datastore | None = None
    opened_for: Any = None  # the model whose tokens the datastore holds

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        if self.run >= self.ngram:
            raise ParameterError(f"run must be less than ngram, got {self.run} and {self.ngram}")
        if self.datastore and not expanded(self.datastore, ParameterError).is_file():
            raise ParameterError(f"{self.datastore}: there is no such file; {REMEDY}")

    def fresh(self, vocabulary: int) -> Internal:
        return Internal(vocabulary, self.guesses, self.ngram, self.run)

    def prepare(self, target: Model) -> None:
        if self.datastore and self.opened_for is not target:
            self.external, self.opened_for = Datastore.open(self.datastore, target), target
        super().prepare(target)

    def like(self, other: Self) -> None:
        super().like(other)
        self.external, self.opened_for = other.external, other.opened_for  # never written to

    @property
    def deepest(self) -> int:
        return max(super().deepest, self.chain, self.reach if self.external else 0)

    def guess(self, depth: int) -> tuple[np.ndarray, np.ndarray]:
        text = self.text[: self.length]
        most = self.draft_size - self.cells
        guesses = []
        if self.length >= self.run:
            chain = self.store.chain.follow(text[-self.run :].tolist(), min(self.chain, depth))
            if chain:
                guesses.append((np.array([chain], np.int64), "chain", 0.0))
        grams, _ = super().guess(depth)
        guesses.append((grams, "ngram", 1.0))
        if self.external is not None:
            reach = min(self.reach, depth)
            guesses.append((self.external.continuations(text, self.longest, reach, most), "datastore", 1.5))
        size = sum(len(rows) for rows, *_ in guesses), max(rows.shape[1] for rows, *_ in guesses)
        every = np.full(size, END)
        end = 0
        for rows, *_ in guesses:
            every[end : end + len(rows), : rows.shape[1]] = rows
            end += len(rows)
        turn = np.concatenate([np.arange(len(rows)) + first for rows, _, first in guesses])
        order = np.argsort(turn, kind="stable")
        source = np.repeat([name for _, name, _ in guesses], [len(rows) for rows, *_ in guesses])
        return every[order], source[order]


class Internal:
    """Both stores, which learn the same n-grams."""

    def __init__(self, vocabulary: int, guesses: int, ngram: int, run: int) -> None:
        self.pool, self.chain = Pool(vocabulary, guesses, ngram - 1), Chain(run)
        self.get = self.pool.get

    @property
    def entries(self) -> int:
        """Number of n-grams in both."""
        return self.pool.entries + self.chain.entries

    @property
    def bytes(self) -> int:
        """Size of both in bytes."""
        return self.pool.bytes + self.chain.bytes

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save, by name."""
        return self.pool.arrays() | self.chain.arrays()

    def learn(self, grams: np.ndarray) -> None:
        """Add n-grams [m, N]; the chain learns all runs in them, the last one last."""
        if not len(grams):
            return
        self.pool.learn(grams)
        length = self.chain.runs.shape[1] + 1
        first = np.arange(grams.shape[1] - length + 1)
        self.chain.learn(grams[:, first[:, None] + np.arange(length)].reshape(-1, length))
