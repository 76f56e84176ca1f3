"""What training-free drafters remember, each token's likeliest successors, and the trees that grow from it.

Token Recycling (Luo et al. 2025) calls it the adjacency matrix; UniSpec keeps the probabilities beside it (Do
et al., Algorithm 1; line numbers below are its). It lives on the host: what a pass teaches is small and comes
over with the verdict, and a tree is built without waiting for the device. Pure arrays, so that what happened
in a run can be replayed from its record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..draft import ROOT, Draft

EMPTY = -1
GHOSTS = 12  # candidates beyond those that are sent which are recorded all the same, at most, best first


class Adjacency:
    """The `k` likeliest successors of every token, by rank: Token Recycling's adjacency matrix.

    Attributes
    ----------
    tokens : array of int32, shape [vocabulary, k]
        Best first; -1 where nothing is known.
    """

    def __init__(self, vocabulary: int, k: int) -> None:
        self.tokens = np.full((vocabulary, k), EMPTY, np.int32)

    @property
    def known(self) -> int:
        """Tokens of which a successor is known."""
        return int((self.tokens[:, 0] != EMPTY).sum())

    @property
    def bytes(self) -> int:
        """Memory, fixed from the start: 4 bytes an entry, 4.8 MB at a vocabulary of 150 k and k = 8."""
        return self.tokens.nbytes

    def learn(self, words: np.ndarray, tokens: np.ndarray) -> None:
        """Set the successors of `words` [n] to `tokens` [n, k].

        Of several nodes with the same word the last one stays.
        """
        self.tokens[words] = tokens

    def forget(self, words: np.ndarray) -> None:
        """Let nothing follow `words`: behind an end token no node could be emitted."""
        self.tokens[words[words < len(self.tokens)]] = EMPTY

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved."""
        return {"tokens": self.tokens}


class Store(Adjacency):
    """The same with the target's probabilities beside them.

    Attributes
    ----------
    p : array of float32, shape [vocabulary, k]
        Their probabilities under the target when they were last seen; 0 where nothing is known.
    """

    def __init__(self, vocabulary: int, k: int) -> None:
        super().__init__(vocabulary, k)
        self.p = np.zeros((vocabulary, k), np.float32)

    @property
    def bytes(self) -> int:
        """Memory, fixed from the start: 8 bytes an entry, 12 MB at a vocabulary of 150 k and k = 10."""
        return self.tokens.nbytes + self.p.nbytes

    def learn(self, words: np.ndarray, tokens: np.ndarray, p: np.ndarray) -> None:  # type: ignore[override]
        """Set the successors of `words` [n] to `tokens` [n, k] with probabilities `p` [n, k].

        Of several nodes with the same word the last one stays (lines 41-44, in order).
        """
        self.tokens[words], self.p[words] = tokens, p

    def arrays(self) -> dict[str, np.ndarray]:
        """What is saved."""
        return {"tokens": self.tokens, "p": self.p}


@dataclass(frozen=True)
class Growth:
    """How UniSpec grows a tree: its parameters of the same names.

    Parameters
    ----------
    depth, candidates : int
        Most levels; nodes that are expanded on each.
    threshold : float
        Nodes of a lower score are not expanded.
    scores : bool
        Whether scores come from the store's probabilities; otherwise 2 to the minus rank.
    least : bool
        Whether a node scores the least probability of its path instead of their product.
    drop_root : bool
        Whether the root's own token is no neighbour.
    """

    depth: int
    candidates: int
    threshold: float = 0.0
    scores: bool = True
    least: bool = False
    drop_root: bool = True


@dataclass(frozen=True)
class Grown:
    """All candidates of a tree, level by level: arrays [n].

    Parameters
    ----------
    tokens, parents : arrays of int
        A parent stands before its children; -1 is the root.
    score : array of float32
        Never more than the parent's.
    near : array of bool
        Which come from the root's neighbours, not from the store.
    """

    tokens: np.ndarray
    parents: np.ndarray
    score: np.ndarray
    near: np.ndarray

    def cut(self, size: int, threshold: float) -> tuple[Draft, Rest]:
        """Line 30: the draft of the `size` nodes of highest score, and of the others the best few.

        Of equal scores the earlier node is better. A node scores at most what its parent does and stands
        behind it, so what is cut off leaves a tree.
        """
        best = np.argsort(-self.score, kind="stable")[: size + GHOSTS]
        sent, rest = np.sort(best[:size]), best[size:]
        place = np.empty(len(self.tokens) + 1, np.int64)
        place[np.concatenate([sent, rest])] = np.arange(len(best))
        place[ROOT] = ROOT
        source = np.where(self.near, "neighbour", "store")
        draft = Draft(
            self.tokens[sent].astype(np.int64),
            place[self.parents[sent]],
            signals={"score": self.score[sent]},
            source=source[sent].tolist(),
            stop="budget" if len(rest) else "store" if len(sent) else "none",
        )
        status = np.where(self.score[rest] < threshold, "pruned", "unsent")
        score = self.score[rest]
        parents = place[self.parents[rest]].tolist()
        return draft, Rest(self.tokens[rest].tolist(), parents, score, source[rest].tolist(), status.tolist())


class Rest(NamedTuple):
    """Candidates that were not sent; their numbers go on from the draft's.

    Parameters
    ----------
    tokens, parents : list of int
    score : array of float32
    source : list of str
    status : list of str
        ``pruned`` where the score is below the threshold, ``unsent`` where the draft was full.
    """

    tokens: list[int]
    parents: list[int]
    score: np.ndarray
    source: list[str]
    status: list[str]


def grow(store: Store, root: int, near: tuple[np.ndarray, np.ndarray] | None, how: Growth) -> Grown:
    """Lines 16-29: every candidate below `root`.

    Parameters
    ----------
    store : Store
    root : int
        The last token of the text.
    near : (tokens, p) of arrays [k], or None
        What the target would have written in the root's place (the cache C of lines 45-46); it widens the
        first level.
    how : Growth
    """
    known = store.tokens
    # Without scores a node counts by its rank: the tree is then the same whatever the target thought.
    by_rank = (0.5 ** np.arange(1, known.shape[1] + 1)).astype(np.float32)
    token, p = known[root], store.p[root] if how.scores else by_rank
    own = len(token)
    if near is not None:  # lines 19-20
        token, p = np.append(token, near[0]), np.append(p, near[1] if how.scores else by_rank)
    good = token != EMPTY
    if how.drop_root:
        good[own:] &= token[own:] != root
    order = np.argsort(-p, kind="stable")
    order = order[good[order]]
    # Of a token that both hold, the better score stays.
    order = order[np.sort(np.unique(token[order], return_index=True)[1])]
    levels = [(token[order], np.full(len(order), ROOT), p[order])]
    first, count = 0, len(order)
    for _ in range(how.depth - 1):  # lines 22-29
        token, _, score = levels[-1]
        leaves = np.argsort(-score, kind="stable")[: how.candidates]  # line 27
        leaves = leaves[score[leaves] >= how.threshold] if how.scores else leaves  # line 28
        child = known[token[leaves]]
        at, rank = np.nonzero(child != EMPTY)
        if not len(at):
            break
        above, p = score[leaves, None], store.p[token[leaves]] if how.scores else by_rank
        score = np.minimum(above, p) if how.least else above * p
        levels.append((child[at, rank], first + leaves[at], score[at, rank]))
        first, count = count, count + len(at)
    tokens, parents, scores = (np.concatenate(each) for each in zip(*levels))
    return Grown(tokens, parents, scores, np.append(order >= own, np.zeros(count - len(order), bool)))
