"""The stores of training-free drafters, each token's likeliest successors, and the trees that grow from them.

Token Recycling (Luo et al. 2025) calls its store the adjacency matrix; UniSpec's also keeps the probabilities
(Do et al., Algorithm 1, to which line numbers below refer). A store is on the host: the rows that a pass
yields are small and are copied with the verdict, and a tree is built without waiting for the device. A store
is plain arrays, so that a run can be replayed from its record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..draft import ROOT, Draft, depths
from .parameters import Parameter, Settings

EMPTY = -1
GHOSTS = 12  # maximum number of unsent candidates that are recorded, best first

SCORES = ("product", "least", "edge")
UNISPEC = (
    Parameter(
        "draft_size", 24, 1, 512, "tokens",
        "Number of tree nodes sent, without the root; the paper calibrates it (110 or 111 on an A100).", "g",
    ),
    Parameter("depth", 10, 1, 64, "tokens", "Maximum number of tree levels.", "d"),
    Parameter("candidates", 10, 1, 64, "tokens", "Successors kept per token; nodes expanded per level.", "k"),
    Parameter(
        "threshold", 0.05, 0, 1, "probability", "Nodes below this score are not expanded; 0: off.", "r"
    ),
    Parameter(
        "scores", True,
        meaning="Score by the target's probabilities instead of by rank, to which no threshold applies "
            "(Table 2).",
    ),
    Parameter(
        "neighbours", True,
        meaning="Widen the first level with alternatives to the root token (line 19; Table 2).",
    ),
    Parameter(
        "score", "product", choices=SCORES,
        meaning="A node's score: the product of the path's probabilities, their minimum, or its own "
            "probability (Algorithm 1 leaves its ⊕ open; the paper's Table 12 agrees with the last).",
    ),
    Parameter(
        "root_token", "drop", choices=("drop", "keep"),
        meaning="Whether the root's own token is a candidate if it is a neighbour, as always when greedy; "
            "the paper leaves this open.",
    ),
)  # fmt: skip


class Adjacency:
    """The `k` likeliest successors of every token, by rank: Token Recycling's adjacency matrix.

    Attributes
    ----------
    tokens : array of int32, shape [vocabulary, k]
        Best first; -1 if there is none.
    """

    def __init__(self, vocabulary: int, k: int) -> None:
        self.tokens = np.full((vocabulary, k), EMPTY, np.int32)

    @property
    def entries(self) -> int:
        """Number of tokens that have a successor."""
        return int((self.tokens[:, 0] != EMPTY).sum())

    @property
    def bytes(self) -> int:
        """Size in bytes, fixed: 4 per successor, 4.8 MB for a vocabulary of 150 k and k = 8."""
        return self.tokens.nbytes

    def learn(self, words: np.ndarray, tokens: np.ndarray) -> None:
        """Set the successors of `words` [n] to `tokens` [n, k].

        If a word occurs several times, the last one counts.
        """
        self.tokens[words] = tokens

    def forget(self, words: np.ndarray) -> None:
        """Clear the successors of `words`: after an end token, no node could be emitted."""
        self.tokens[words[words < len(self.tokens)]] = EMPTY

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save, by name."""
        return {"tokens": self.tokens}


class Store(Adjacency):
    """The adjacency matrix with the target's probabilities.

    Attributes
    ----------
    p : array of float32, shape [vocabulary, k]
        The successors' probabilities under the target when last seen; 0 if there is none.
    """

    def __init__(self, vocabulary: int, k: int) -> None:
        super().__init__(vocabulary, k)
        self.p = np.zeros((vocabulary, k), np.float32)

    @property
    def bytes(self) -> int:
        """Size in bytes, fixed: 8 per successor, 12 MB for a vocabulary of 150 k and k = 10."""
        return self.tokens.nbytes + self.p.nbytes

    def learn(self, words: np.ndarray, tokens: np.ndarray, p: np.ndarray) -> None:  # type: ignore[override]
        """Set the successors of `words` [n] to `tokens` [n, k] with probabilities `p` [n, k].

        If a word occurs several times, the last one counts (lines 41-44, in order).
        """
        self.tokens[words], self.p[words] = tokens, p

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays to save, by name."""
        return {"tokens": self.tokens, "p": self.p}


@dataclass(frozen=True)
class Growth:
    """Settings with which UniSpec grows a tree.

    Parameters
    ----------
    depth, candidates : int
        Maximum number of levels, and of nodes expanded on each.
    threshold : float
        Nodes with a lower score are not expanded; 0 if scores come from ranks.
    scores : bool
        Whether scores come from the store's probabilities; otherwise from 2^-rank.
    score : {"product", "least", "edge"}
        Whether a node's score is the product of its path's probabilities, their minimum, or its own.
    drop_root : bool
        Whether the root's own token is dropped from the neighbours.
    neighbours : bool
        Whether the root's neighbours widen the first level.
    stop : {"length", "room"}
        What limits the depth: the setting, or what may still be emitted.
    """

    depth: int
    candidates: int
    threshold: float = 0.0
    scores: bool = True
    score: str = "product"
    drop_root: bool = True
    neighbours: bool = True
    stop: str = "length"

    @classmethod
    def of(cls, values: Settings, left: int) -> Growth:
        """From UniSpec's parameters, no deeper than what may be emitted before the target's own token."""
        return cls(
            min(values["depth"], left - 1), values["candidates"],
            values["threshold"] if values["scores"] else 0.0, values["scores"],
            values["score"], values["root_token"] == "drop", values["neighbours"],
            "room" if left <= values["depth"] else "length",
        )  # fmt: skip


@dataclass(frozen=True)
class Grown:
    """All candidates of a tree, level by level: arrays [n].

    Parameters
    ----------
    tokens, parents : arrays of int
        A parent precedes its children; -1 is the root.
    score : array of float32
        Never more than the parent's, unless nodes score by their own edge.
    near : array of bool
        Which nodes come from the root's neighbours, not from the store.
    """

    tokens: np.ndarray
    parents: np.ndarray
    score: np.ndarray
    near: np.ndarray

    def cut(self, size: int, growth: Growth) -> tuple[Draft, Rest]:
        """Line 30: a draft of the `size` nodes with the highest scores, and the best few of the others.

        Of equal scores the earlier node wins. A node scores at most as much as its parent and comes after it,
        so the selection is a tree. If nodes score by their edge alone, a node may score more than its parent;
        its ancestors then come with it.
        """
        rank = self.with_ancestors(growth.depth) if growth.score == "edge" else self.score
        best = np.argsort(-rank, kind="stable")[: size + GHOSTS]
        sent, rest = np.sort(best[:size]), best[size:]
        place = np.empty(len(self.tokens) + 1, np.int64)
        place[np.concatenate([sent, rest])] = np.arange(len(best))
        place[ROOT] = ROOT
        source = np.where(self.near, "neighbour", "store")
        if len(rest):
            stop = "budget"
        elif depths(self.parents).max(initial=0) == growth.depth:
            stop = growth.stop
        else:
            stop = "store" if len(sent) else "none"
        draft = Draft(
            self.tokens[sent].astype(np.int64),
            place[self.parents[sent]],
            signals={"score": self.score[sent]},
            source=source[sent].tolist(),
            stop=stop,
        )
        parents = place[self.parents[rest]].tolist()
        return draft, Rest(self.tokens[rest].tolist(), parents, self.score[rest], source[rest].tolist())

    def with_ancestors(self, depth: int) -> np.ndarray:
        """The highest score among each node and its descendants."""
        below = np.flatnonzero(self.parents != ROOT)
        rank = self.score.copy()
        for _ in range(depth):
            np.maximum.at(rank, self.parents[below], rank[below])
        return rank


class Rest(NamedTuple):
    """Candidates that were not sent because better ones filled the draft; they are ``below_budget``.

    Numbering continues from the draft. A score below the threshold means only that they were not expanded.

    Parameters
    ----------
    tokens, parents : list of int
    score : array of float32
    source : list of str
    """

    tokens: list[int]
    parents: list[int]
    score: np.ndarray
    source: list[str]


def grow(store: Store, root: int, neighbours: tuple[np.ndarray, np.ndarray], growth: Growth) -> Grown:
    """Lines 16-29: grow every candidate below `root`.

    Parameters
    ----------
    store : Store
    root : int
        The last token of the text.
    neighbours : (tokens, p) of arrays [k]
        The target's likeliest tokens in the root's place (the cache C of lines 46-47), which widen the first
        level.
    growth : Growth
    """
    successors = store.tokens
    # Without scores, nodes count by rank: the tree then does not depend on the target's probabilities.
    by_rank = (0.5 ** np.arange(1, successors.shape[1] + 1)).astype(np.float32)
    token, p = successors[root], store.p[root] if growth.scores else by_rank
    own = len(token)
    if growth.neighbours:  # lines 19-20
        token = np.append(token, neighbours[0])
        p = np.append(p, neighbours[1] if growth.scores else by_rank)
    good = token != EMPTY
    if growth.drop_root:
        good[own:] &= token[own:] != root
    order = np.argsort(-p, kind="stable")
    order = order[good[order]]
    # If both contain a token, its better score is kept.
    order = order[np.sort(np.unique(token[order], return_index=True)[1])]
    levels = [(token[order], np.full(len(order), ROOT), p[order])]
    first, count = 0, len(order)
    for _ in range(growth.depth - 1):  # lines 22-29
        token, _, score = levels[-1]
        leaves = np.argsort(-score, kind="stable")[: growth.candidates]  # line 27
        leaves = leaves[score[leaves] >= growth.threshold]  # line 28
        child = successors[token[leaves]]
        at, rank = np.nonzero(child != EMPTY)
        if not len(at):
            break
        above, p = score[leaves, None], store.p[token[leaves]] if growth.scores else by_rank
        if growth.score == "edge":
            score = np.broadcast_to(p, child.shape)  # by rank, one row serves all
        else:
            score = np.minimum(above, p) if growth.score == "least" else above * p
        levels.append((child[at, rank], first + leaves[at], score[at, rank]))
        first, count = count, count + len(at)
    tokens, parents, scores = (np.concatenate(each) for each in zip(*levels))
    return Grown(tokens, parents, scores, np.append(order >= own, np.zeros(count - len(order), bool)))
