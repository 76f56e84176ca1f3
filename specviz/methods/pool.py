"""The one-to-many store: for each token, the n-grams that began with it, most recent first.

Lookahead's n-gram pool (Fu et al. 2024, section 3.2), with the authors' eviction rule: for each first token,
the G n-grams that were met last are kept.
"""

from __future__ import annotations

import numpy as np


class Pool:
    """N-grams by their first token.

    Attributes
    ----------
    grams : array of int32, shape [vocabulary, G, N - 1]
        The tokens after each first token; no n-gram occurs twice.
    met : array of uint32, shape [vocabulary, G]
        When each was last met, by a clock that counts n-grams; 0: an empty slot.
    """

    def __init__(self, vocabulary: int, guesses: int, length: int) -> None:
        # Zeros are allocated on first use, so an empty pool costs no time, and memory only as it fills.
        self.grams = np.zeros((vocabulary, guesses, length), np.int32)
        self.met = np.zeros((vocabulary, guesses), np.uint32)
        self.clock = np.zeros(1, np.uint32)

    @property
    def entries(self) -> int:
        """Number of stored n-grams."""
        return int(np.count_nonzero(self.met))

    @property
    def bytes(self) -> int:
        """Maximum size in bytes: 4 N per n-gram, 45 MB for a vocabulary of 150 k, G = 15 and N = 5."""
        return self.grams.nbytes + self.met.nbytes

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save, by name."""
        return {"grams": self.grams, "met": self.met, "clock": self.clock}

    def get(self, token: int) -> np.ndarray:
        """Continuations of a token, [at most G, N - 1], most recent first."""
        met = self.met[token]
        order = np.argsort(met)[::-1][: np.count_nonzero(met)]
        return self.grams[token, order]

    def learn(self, grams: np.ndarray) -> None:
        """Add n-grams [m, N], the most recent last."""
        if not len(grams):
            return
        now = self.clock[0] + np.arange(1, len(grams) + 1, dtype=np.uint32)
        self.clock[0] += len(grams)
        order = np.lexsort(grams.T)  # groups equal n-grams, in order
        grams, now = grams[order], now[order]
        last = np.append((grams[1:] != grams[:-1]).any(1), True)  # of equal n-grams, the last one counts
        token, rest, now = grams[last, 0], grams[last, 1:], now[last]
        same = (self.grams[token] == rest[:, None]).all(-1) & (self.met[token] > 0)
        present = same.any(1)
        self.met[token[present], same[present].argmax(1)] = now[present]
        token, rest, now = token[~present], rest[~present], now[~present]
        # For each token the newest n-gram replaces the oldest, the second newest the second oldest, and so
        # on, as long as it is newer: the G that were met last remain.
        order = np.lexsort((-now.astype(np.int64), token))
        token, rest, now = token[order], rest[order], now[order]
        first = np.searchsorted(token, token)
        nth = np.arange(len(token)) - first
        fits = nth < self.met.shape[1]
        token, rest, now, nth = token[fits], rest[fits], now[fits], nth[fits]
        place = np.argsort(self.met[token], 1, kind="stable")[np.arange(len(token)), nth]
        newer = now > self.met[token, place]
        token, place = token[newer], place[newer]
        self.grams[token, place], self.met[token, place] = rest[newer], now[newer]
