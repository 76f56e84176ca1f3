"""The many-to-one store: for each run of n - 1 tokens, the token that followed it last.

Described in UniSpec's Appendix B (Do et al.), after Ou et al. 2024 and Le et al. 2025. Repeated lookups give
a chain: each token that is returned ends the run that is looked up next.
"""

from __future__ import annotations

import numpy as np

SLOTS = 1 << 17
FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: multiplicative hashing
WORD = (1 << 64) - 1
EMPTY = -1


class Chain:
    """Runs of n - 1 tokens and the token after each, in a hash table of fixed size.

    A run has one slot, which a later run with the same hash overwrites. The run is stored with its successor,
    so a collision never returns the successor of another run.

    Attributes
    ----------
    runs : array of int32, shape [SLOTS, n - 1]
        -1 in empty slots.
    next : array of int32, shape [SLOTS]
    """

    def __init__(self, length: int) -> None:
        self.runs = np.full((SLOTS, length), EMPTY, np.int32)
        self.next = np.full(SLOTS, EMPTY, np.int32)
        self.factors = [pow(FACTOR, i + 1, 1 << 64) for i in range(length)]

    @property
    def entries(self) -> int:
        """Number of stored runs."""
        return int((self.next != EMPTY).sum())

    @property
    def bytes(self) -> int:
        """Size in bytes, fixed for any vocabulary: 4 n per slot, 1.6 MB for n = 3."""
        return self.runs.nbytes + self.next.nbytes

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save, by name."""
        return {"runs": self.runs, "next": self.next}

    def learn(self, grams: np.ndarray) -> None:
        """Store n-grams [m, n] in order; later ones overwrite earlier ones."""
        runs = grams[:, :-1]
        mixed = (runs.astype(np.uint64) * np.array(self.factors, np.uint64)).sum(1)
        slot = (mixed >> np.uint64(64 - SLOTS.bit_length() + 1)).astype(np.int64)
        self.runs[slot], self.next[slot] = runs, grams[:, -1]

    def follow(self, run: list[int], most: int) -> list[int]:
        """The chain of at most `most` tokens that follows a run of n - 1 tokens."""
        tokens: list[int] = []
        run = list(run)
        while len(tokens) < most:
            mixed = sum(token * factor for token, factor in zip(run, self.factors)) & WORD
            slot = mixed >> (64 - SLOTS.bit_length() + 1)
            if self.runs[slot].tolist() != run:
                break
            tokens.append(int(self.next[slot]))
            run = [*run[1:], tokens[-1]]
        return tokens
