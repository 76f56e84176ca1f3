"""Uncertainty of a number over texts: a bootstrap over the texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEAST = 6  # texts for an interval: with five, even the whole range misses the median in 6 of 100 cases


@dataclass(frozen=True)
class Estimate:
    """A median of paired measurements with its 95 % bootstrap interval over the pairs."""

    median: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """The estimate from one value per pair; its interval is NaN for fewer than six."""
        finite = np.asarray(values, np.float64)
        finite = finite[np.isfinite(finite)]
        if not len(finite):
            return cls(float("nan"), float("nan"), float("nan"), 0)
        low = high = float("nan")
        if len(finite) >= LEAST:
            draws = np.random.default_rng(0).choice(finite, (RESAMPLES, len(finite)))
            low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975)).tolist()
        return cls(float(np.median(finite)), low, high, len(finite))

    def columns(self, name: str) -> dict[str, float]:
        """The value as `name`, and its interval as ``NAME_lo`` and ``NAME_hi``."""
        return {name: self.median, f"{name}_lo": self.low, f"{name}_hi": self.high}

    def __str__(self) -> str:
        has_interval = self.low == self.low
        return f"{self.median:.3f}" + (f" [{self.low:.3f}, {self.high:.3f}]" if has_interval else "")


def pooled(above: np.ndarray, below: np.ndarray, chance: float = 0.05) -> Estimate:
    """A ratio of sums over texts, in place of a median, with its bootstrap interval.

    There is no interval for fewer than six texts, or if all have the same ratio (τ of autoregressive
    decoding).

    Parameters
    ----------
    above, below : array [texts]
        Numerator and denominator of each text.
    chance : float
        Probability that the interval misses; 0.05 for a 95 % interval.
    """
    above, below = np.asarray(above), np.asarray(below)
    n = len(above)
    if not n or not below.sum():
        return Estimate.of([])
    low = high = float("nan")
    if n >= LEAST and not np.allclose(above * below.sum(), below * above.sum(), rtol=1e-12, atol=0):
        draws = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
        under = below[draws].sum(1)
        ratios = above[draws].sum(1)[under > 0] / under[under > 0]
        low, high = np.quantile(ratios, (chance / 2, 1 - chance / 2)).tolist()
    return Estimate(float(above.sum() / below.sum()), low, high, n)
