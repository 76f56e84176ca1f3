"""What drafting would bring at another context, batch, cost and acceptance, from passes that were timed.

A model: each drafted token is accepted with one chance, whatever came before it (Leviathan et al. 2023,
section 3.1), and where several rows are decoded at another context than they were timed at, what both cost
more is multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FINE = np.linspace(0.0, 0.999, 1000)


@dataclass(frozen=True)
class Setting:
    """A setting that was predicted, as a point.

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
        """The acceptance of each drafted token that gives this τ."""
        return float(np.interp(self.tau, written(np.full(len(FINE), self.sent), FINE), FINE))


@dataclass(frozen=True, eq=False)
class Drafter:
    """A method with its drafter.

    Parameters
    ----------
    name : str
    ms : float
        Of drafting one token.
    fixed, per_token : float
        Milliseconds of a cycle beside its passes, and of each drafted token.
    settings : sequence of Setting
    """

    name: str
    ms: float
    fixed: float
    per_token: float
    settings: Sequence[Setting]


@dataclass(frozen=True, eq=False)
class PassTimes:
    """Passes of the target as they were timed.

    Parameters
    ----------
    sizes, contexts, batches : list of int
        Tokens of a row in a pass, tokens before it, and rows; rising.
    ms : array [sizes, contexts]
        Of one row.
    many : array [batches, sizes]
        Of so many rows over one row's, after one context.
    plain : float
        Milliseconds of a cycle without drafts beside its pass.
    """

    sizes: Sequence[int]
    contexts: Sequence[int]
    batches: Sequence[int]
    ms: np.ndarray
    many: np.ndarray
    plain: float

    def __call__(self, tokens: np.ndarray, context: float, batch: int) -> np.ndarray:
        """A pass over so many tokens of each row, in milliseconds: array like `tokens`."""
        column = np.array([np.interp(context, self.contexts, row) for row in self.ms])
        column = column * self.many[list(self.batches).index(batch)]
        return np.interp(tokens, self.sizes, column)

    def one(self, context: float, batch: int) -> float:
        """A cycle without drafts, in milliseconds."""
        return float(self(np.ones(1), context, batch)[0]) + self.plain


def cycle_cost(
    passes: PassTimes, fixed: float, sent: np.ndarray, context: float, batch: int, cost: float
) -> np.ndarray:
    """A cycle's time in those without drafts, if drafting a token costs `cost` of them; array like `sent`."""
    spent = passes(1 + sent, context, batch) + fixed
    cycle: np.ndarray = spent / passes.one(context, batch) + sent * cost
    return cycle


def written(sent: np.ndarray, rate: np.ndarray) -> np.ndarray:
    """Tokens of a cycle that drafts so many, each accepted with this chance, below 1."""
    tokens: np.ndarray = (1 - rate ** (sent + 1)) / (1 - rate)
    return tokens
