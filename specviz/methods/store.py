"""What training-free drafters remember: for each token its likeliest successors, as the target rated them.

Token Recycling (Luo et al. 2025) calls it the adjacency matrix; UniSpec keeps the probabilities beside it
(Do et al., Algorithm 1, lines 1-2 and 38-44). It lives on the host: what a pass teaches is small and comes
over with the verdict, and a tree is built from it without waiting for the device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..signals import top

EMPTY = -1


class Store:
    """The `k` likeliest successors of every token: two arrays [vocabulary, k].

    Attributes
    ----------
    tokens : array of int32, shape [vocabulary, k]
        Best first; -1 where nothing is known.
    p : array of float32, shape [vocabulary, k]
        Their probabilities under the target when they were last seen; 0 where nothing is known.
    """

    def __init__(self, vocabulary: int, k: int) -> None:
        self.tokens = np.full((vocabulary, k), EMPTY, np.int32)
        self.p = np.zeros((vocabulary, k), np.float32)

    @property
    def known(self) -> int:
        """Tokens of which a successor is known."""
        return int((self.tokens[:, 0] != EMPTY).sum())

    @property
    def bytes(self) -> int:
        """Memory, fixed from the start: 8 bytes an entry, 12 MB at a vocabulary of 150 k and k = 10."""
        return self.tokens.nbytes + self.p.nbytes

    def learn(self, words: np.ndarray, tokens: np.ndarray, p: np.ndarray) -> None:
        """Set the successors of `words` [n] to `tokens` [n, k] with probabilities `p` [n, k].

        Of several nodes with the same word the last one stays (Algorithm 1, lines 41-44, in order).
        """
        self.tokens[words], self.p[words] = tokens, p

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved."""
        return {"tokens": self.tokens, "p": self.p}


def successors(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` likeliest tokens of each row of logits [n, vocabulary], and their probabilities.

    UniSpec's lines 39-40. Both [n, k], best first; of equal first ones the first id, as argmax has it.
    """
    best, tokens = top(scores, k)
    # A top-k may order equals as it likes.
    first = torch.where(best == best[:, :1], tokens, scores.shape[-1]).amin(-1, keepdim=True)
    tokens = torch.cat([first, torch.where(tokens == first, tokens[:, :1], tokens)[:, 1:]], 1)
    return tokens, (best - torch.logsumexp(scores, -1, keepdim=True)).exp()
