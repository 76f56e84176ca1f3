"""Predicts the gain from drafting at another context, batch, cost and acceptance, from timed passes.

The model: each drafted token is accepted with the same probability, whatever came before it (Leviathan et al.
2023, section 3.1). If several rows are decoded at another context than they were timed at, the factors by
which context and rows slow a pass down are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FINE = np.linspace(0.0, 0.999, 1000)


@dataclass(frozen=True)
class Setting:
    """A predicted setting, as a point.

    Parameters
    ----------
    label : str
    sent, tau : float
        Drafted and written tokens of its mean cycle.
    """

    label: str
    sent: float
    tau: float

    @property
    def rate(self) -> float:
        """The acceptance probability per drafted token that gives this τ."""
        return float(np.interp(self.tau, written(np.full(len(FINE), self.sent), FINE), FINE))


@dataclass(frozen=True, eq=False)
class Drafter:
    """A method with its drafter.

    Parameters
    ----------
    name : str
    ms : float
        Milliseconds of drafting one token.
    fixed, per_token : float
        Milliseconds of a cycle outside its passes: a fixed part, and a part per drafted token.
    settings : sequence of Setting
    """

    name: str
    ms: float
    fixed: float
    per_token: float
    settings: Sequence[Setting]


@dataclass(frozen=True, eq=False)
class PassTimes:
    """Times of the target's passes, as measured.

    Parameters
    ----------
    sizes, contexts, batches : list of int
        Tokens per row in a pass, tokens before it, and rows; ascending.
    ms : array [sizes, contexts]
        Milliseconds of a pass of one row.
    many : array [batches, sizes]
        Time of a pass of several rows divided by that of one row, after one context.
    plain : float
        Milliseconds of a cycle without drafts, outside its pass.
    """

    sizes: Sequence[int]
    contexts: Sequence[int]
    batches: Sequence[int]
    ms: np.ndarray
    many: np.ndarray
    plain: float

    def __call__(self, tokens: np.ndarray, context: float, batch: int) -> np.ndarray:
        """Milliseconds of a pass over `tokens` of each row: array like `tokens`."""
        column = np.array([np.interp(context, self.contexts, row) for row in self.ms])
        column = column * self.many[list(self.batches).index(batch)]
        return np.interp(tokens, self.sizes, column)

    def one(self, context: float, batch: int) -> float:
        """Milliseconds of a cycle without drafts."""
        return float(self(np.ones(1), context, batch)[0]) + self.plain


def cycle_cost(
    passes: PassTimes, fixed: float, sent: np.ndarray, context: float, batch: int, cost: float
) -> np.ndarray:
    """A cycle's time in cycles without drafts, if drafting a token costs `cost` of those, for each `sent`."""
    spent = passes(1 + sent, context, batch) + fixed
    cycle: np.ndarray = spent / passes.one(context, batch) + sent * cost
    return cycle


def written(sent: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Tokens written by a cycle that drafts `sent`, each accepted with probability `rate`, below 1."""
    tokens: np.ndarray = (1 - rate ** (sent + 1)) / (1 - rate)
    return tokens
