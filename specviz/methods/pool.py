"""The one-to-many store: for each token the n-grams that began with it, the last used ones first.

Lookahead's n-gram pool (Fu et al. 2024, section 3.2), with the authors' rule for what is forgotten: of each
first token the G n-grams stay that were met last.
"""

from __future__ import annotations

import numpy as np


class Pool:
    """N-grams by their first token.

    Attributes
    ----------
    grams : array of int32, shape [vocabulary, G, N - 1]
        What followed each token; no n-gram stands twice.
    met : array of uint32, shape [vocabulary, G]
        When each was met last, by a clock that counts n-grams; 0: the place is empty.
    """

    def __init__(self, vocabulary: int, guesses: int, length: int) -> None:
        # Zeros are not written until they are used, so an empty pool costs no time, and memory as it fills.
        self.grams = np.zeros((vocabulary, guesses, length), np.int32)
        self.met = np.zeros((vocabulary, guesses), np.uint32)
        self.clock = np.zeros(1, np.uint32)

    @property
    def entries(self) -> int:
        """N-grams that it holds."""
        return int(np.count_nonzero(self.met))

    @property
    def bytes(self) -> int:
        """Most memory: 4 N bytes an n-gram, 45 MB at a vocabulary of 150 k, G = 15 and N = 5."""
        return self.grams.nbytes + self.met.nbytes

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved."""
        return {"grams": self.grams, "met": self.met, "clock": self.clock}

    def get(self, token: int) -> np.ndarray:
        """What followed a token, [at most G, N - 1], the last met first."""
        met = self.met[token]
        order = np.argsort(met)[::-1][: np.count_nonzero(met)]
        return self.grams[token, order]

    def learn(self, grams: np.ndarray) -> None:
        """Meet n-grams [m, N], in their order."""
        if not len(grams):
            return
        now = self.clock[0] + np.arange(1, len(grams) + 1, dtype=np.uint32)
        self.clock[0] += len(grams)
        order = np.lexsort(grams.T)  # equal ones side by side, in their order
        grams, now = grams[order], now[order]
        last = np.append((grams[1:] != grams[:-1]).any(1), True)  # met twice at once counts as met last
        token, rest, now = grams[last, 0], grams[last, 1:], now[last]
        same = (self.grams[token] == rest[:, None]).all(-1) & (self.met[token] > 0)
        present = same.any(1)
        self.met[token[present], same[present].argmax(1)] = now[present]
        token, rest, now = token[~present], rest[~present], now[~present]
        # Of each token the newest takes the place of the oldest, the second newest that of the second
        # oldest, and so on, as long as it is newer: what stays are the G that were met last.
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
