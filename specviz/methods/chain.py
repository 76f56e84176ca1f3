"""The many-to-one store: for each run of n - 1 tokens the one that followed it last.

UniSpec's Appendix B (Do et al.), after Ou et al. 2024 and Le et al. 2025. It is followed again and again,
each token of the answer ending the run that is looked up next, into one chain.
"""

from __future__ import annotations

import numpy as np

SLOTS = 1 << 17
FACTOR = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: multiplicative hashing
WORD = (1 << 64) - 1
EMPTY = -1


class Chain:
    """Runs of n - 1 tokens and what followed, in a hash table of fixed size.

    A run has one slot, which it loses to a later run of the same hash. The run itself is kept with what
    followed it, so the answer always followed just this run.

    Attributes
    ----------
    runs : array of int32, shape [SLOTS, n - 1]
        -1 where the slot is empty.
    next : array of int32, shape [SLOTS]
    """

    def __init__(self, length: int) -> None:
        self.runs = np.full((SLOTS, length), EMPTY, np.int32)
        self.next = np.full(SLOTS, EMPTY, np.int32)
        self.factors = [pow(FACTOR, i + 1, 1 << 64) for i in range(length)]

    @property
    def entries(self) -> int:
        """Runs that it holds."""
        return int((self.next != EMPTY).sum())

    @property
    def bytes(self) -> int:
        """Memory, fixed from the start whatever the vocabulary: 4 n bytes a slot, 1.6 MB for n = 3."""
        return self.runs.nbytes + self.next.nbytes

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved."""
        return {"runs": self.runs, "next": self.next}

    def learn(self, grams: np.ndarray) -> None:
        """Take n-grams [m, n], in their order."""
        runs = grams[:, :-1]
        mixed = (runs.astype(np.uint64) * np.array(self.factors, np.uint64)).sum(1)
        slot = (mixed >> np.uint64(64 - SLOTS.bit_length() + 1)).astype(np.int64)
        self.runs[slot], self.next[slot] = runs, grams[:, -1]

    def follow(self, run: list[int], most: int) -> list[int]:
        """What follows a run of n - 1 tokens, one token after another, at most `most`."""
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
