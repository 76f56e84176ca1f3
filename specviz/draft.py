"""A draft: the tokens that a drafter proposes, as one tree in flat arrays.

Everything else (mask, depths, paths, the best subtree) is derived from ``parents``, so a chain, a
tree, Lookahead's comb and a diffusion canvas are the same object to the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from specviz import schema
from specviz.errors import ParameterError

ROOT = -1  # the parent of a first-level node: the last committed token


@dataclass(frozen=True, eq=False)
class Draft:
    """A token tree of n nodes below the last committed token.

    Parameters
    ----------
    tokens : array of int, shape [n]
        A list, a NumPy array, or a tensor that stays on the model's device; the draft never reads it.
    parents : array of int, shape [n]
        Index of each node's parent, always smaller than its own; -1 is the root.
    positions : array of int, shape [n], optional
        Offset of each node from the root's position. Default: its depth (first level 1).
    judge : array of bool, shape [n], optional
        Which nodes are candidates; the others are read but not judged. Default: all.
    q : array or tensor, shape [n, vocabulary], optional
        The distribution that each node was actually sampled from. None: the drafter was deterministic.
    signals : dict of str to array [n]
        The drafter's values for each node, recorded unchanged (``confidence``, ``entropy`` ..., or the
        method's own names; see `specviz.schema.Signal`).
    source : str or sequence of str
        Where the nodes come from (model, store, prompt ...), one for all or one for each.
    stop : str
        Why drafting stopped (``length``, ``fallback``, ``eos``, ``room`` ...).
    logits : tensor [n, vocabulary] or list of n rows
        The drafter's raw predictions where it chose each node; they are reduced to the record later.
    read : bool
        Whether the target reads it. False: the method decides without a pass.

    Raises
    ------
    ValueError
        If the arrays' lengths differ or a parent does not precede its child.
    ParameterError
        If the tokens are not ids, the source or the reason to stop is not a string, or a signal has the name
        of another column or a wrong number of values.
    """

    tokens: Any
    parents: np.ndarray
    positions: np.ndarray | None = None
    judge: np.ndarray | None = None
    q: Any = None
    signals: dict[str, Any] = field(default_factory=dict)
    source: str | Sequence[str] = "model"
    stop: str = "length"
    logits: Any = None
    read: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.tokens, list | tuple | range):
            tokens = np.asarray(self.tokens)
            if len(tokens) and (tokens.dtype.kind not in "iu" or tokens.ndim != 1):
                raise ParameterError(f"a draft's tokens are ids, whole numbers, got {self.tokens[:3]!r}")
            object.__setattr__(self, "tokens", tokens.astype(np.int64))
        elif not self._holds_ids():
            raise ParameterError(
                f"a draft's tokens are ids (a list, or an array or tensor of one dimension), got "
                f"{self.tokens!r:.60}"
            )
        parents = np.asarray(self.parents, np.int64).reshape(-1)
        object.__setattr__(self, "parents", parents)
        if len(self.tokens) != len(parents):
            raise ValueError(f"{len(self.tokens)} tokens need as many parents, got {len(parents)}")
        if len(parents) and ((parents >= np.arange(len(parents))).any() or parents.min() < ROOT):
            raise ValueError("a parent must come before its child (-1 is the root)")
        for name in ("positions", "judge"):
            value = getattr(self, name)
            if value is not None and len(value) != len(parents):
                raise ValueError(f"{name} has {len(value)} entries for {len(parents)} nodes")
        if not isinstance(self.source, str) and (
            not hasattr(self.source, "__len__") or len(self.source) != len(parents)
        ):
            raise ParameterError("a draft's source is a string, or one string for each node")
        if not isinstance(self.stop, str):
            raise ParameterError(f"a draft's stop is a word: why drafting ended, got {self.stop!r:.40}")
        if self.signals:
            schema.check_signals(self.signals, len(parents))

    def _holds_ids(self) -> bool:
        """Whether the tokens are whole numbers in a one-dimensional array or tensor; no value is read."""
        tokens = self.tokens
        if isinstance(tokens, np.ndarray):
            return tokens.ndim == 1 and tokens.dtype.kind in "iu"
        return hasattr(tokens, "is_floating_point") and tokens.ndim == 1 and not tokens.is_floating_point()

    @classmethod
    def chain(cls, tokens: Any, **rest: Any) -> Draft:
        """A draft in which every token follows the one before it; `tokens` as in the class."""
        if not hasattr(tokens, "__len__"):
            raise ParameterError(
                f"a draft's tokens are ids (a list, or an array or tensor of one dimension), got "
                f"{tokens!r:.60}"
            )
        return cls(tokens, np.arange(-1, len(tokens) - 1), **rest)

    @classmethod
    def empty(cls, stop: str = "none") -> Draft:
        """A draft without tokens: the pass reads only the root."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), stop=stop)

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def is_chain(self) -> bool:
        """Whether the draft is a chain at consecutive positions, so that plain causal attention suffices."""
        n = np.arange(len(self))
        plain = self.positions is None or np.array_equal(self.positions, n + 1)
        return bool(np.array_equal(self.parents, n - 1) and plain)

    @cached_property
    def depths(self) -> np.ndarray:
        """Depth of each node, shape [n]; the first level is 1."""
        return np.arange(1, len(self) + 1) if self.is_chain else depths(self.parents)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Offset of each node from the root's position, shape [n]."""
        return self.depths if self.positions is None else np.asarray(self.positions, np.int64)

    @cached_property
    def mask(self) -> np.ndarray:
        """Nodes of the draft that each node attends to, bool [n, n]: its ancestors and itself."""
        n = len(self)
        if self.is_chain:
            return np.tri(n, dtype=bool)
        seen = np.eye(n, dtype=bool)
        up = self.parents.copy()
        while (live := np.flatnonzero(up >= 0)).size:  # one round per level adds one ancestor to each node
            seen[live, up[live]] = True
            up[live] = self.parents[up[live]]
        return seen

    def path(self, node: int) -> list[int]:
        """Node indices from the first level down to `node`; empty for the root."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = int(self.parents[node])
        return nodes[::-1]

    @property
    def depth(self) -> int:
        """Length of the longest path."""
        return len(self) if self.is_chain else int(self.depths.max(initial=0))

    @property
    def width(self) -> int:
        """Number of nodes on the broadest level."""
        return min(len(self), 1) if self.is_chain else int(np.bincount(self.depths).max())


def depths(parents: np.ndarray) -> np.ndarray:
    """Depth of every node of a forest given by parents (-1: none), shape [n]; the first level is 1.

    Uses pointer doubling: the number of rounds is the logarithm of the depth.
    """
    depth = np.ones(len(parents), np.int64)
    up = parents.copy()
    while (live := np.flatnonzero(up >= 0)).size:
        depth[live] += depth[up[live]]
        up[live] = up[up[live]]
    return depth
