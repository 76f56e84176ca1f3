"""Comparable figures over texts: ratios, scores and differences, with intervals over texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from specviz.errors import ParameterError
from specviz.measure.report import Estimate
from specviz.metrics.interval import LEAST, RESAMPLES
from specviz.metrics.tokens import ABSENT


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """A quotient; NaN where the divisor is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(below) > 0, above / np.asarray(below, float), np.nan)


def quotient(
    tokens: np.ndarray, taken: np.ndarray, their_tokens: np.ndarray, their_taken: np.ndarray
) -> np.ndarray:
    """The ratio of two speeds, or of tokens per cycle; NaN where either is unknown or the second is zero."""
    return ratio(ratio(tokens, taken), ratio(their_tokens, their_taken))


@dataclass(frozen=True)
class BootstrapEstimate(Estimate):
    """An estimate that keeps its value on every resampled set of texts, so that two can be compared.

    Parameters
    ----------
    values : array [draws], optional
        None if there are too few texts.
    """

    values: np.ndarray | None = field(default=None, repr=False, compare=False)

    @classmethod
    def on(cls, value: float, values: np.ndarray | None, texts: int) -> BootstrapEstimate:
        """An estimate whose interval holds 95 % of the resampled values, without those that are undefined."""
        low = high = float("nan")
        if values is not None:
            values = np.where(np.isfinite(values), values, np.nan)
            low, high = np.nanquantile(values, (0.025, 0.975)).tolist()
        return cls(float(value), low, high, texts, values)

    def times(self, factor: float) -> BootstrapEstimate:
        """The estimate in another unit, or with the opposite sign."""
        return derived(lambda value: factor * value, self)


def derived(function: Callable[..., Any], *figures: BootstrapEstimate) -> BootstrapEstimate:
    """Apply a function to figures of the same texts."""
    values = [each.values for each in figures if each.values is not None]
    complete = len(values) == len(figures)
    made = function(*values) if complete else None
    return BootstrapEstimate.on(function(*(each.median for each in figures)), made, figures[0].pairs)


def resampled(function: Callable[..., Any], *arrays: np.ndarray) -> BootstrapEstimate:
    """Apply a function to sums over texts, with a 95 % interval over resampled texts (six at least).

    The draws are the same in every call, so compared figures are resampled jointly.
    """
    n = len(arrays[0])
    value = float(function(*(a.sum(0) for a in arrays)))
    if n < LEAST or value != value:
        return BootstrapEstimate(value, float("nan"), float("nan"), n)
    return BootstrapEstimate.on(value, function(*(drawn(n, RESAMPLES) @ a for a in arrays)), n)


@lru_cache(maxsize=2)  # 214 MB each for 13,368 texts
def drawn(n: int, draws: int) -> np.ndarray:
    """How often each draw takes each of n texts, float [draws, n]."""
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), draws).astype(float)
    counts.flags.writeable = False
    return counts


class Quality:
    """BLEU and chrF of final outputs, with several references per text.

    Parameters
    ----------
    tokenize : str
        BLEU's tokenizer, as sacrebleu names it.
    right : sequence of (sequence of str)
        The references of each text.

    Raises
    ------
    ParameterError
        If sacrebleu is not installed.
    """

    def __init__(self, tokenize: str, right: Sequence[Sequence[str]]) -> None:
        try:
            from sacrebleu.metrics.bleu import BLEU
            from sacrebleu.metrics.chrf import CHRF
        except ImportError:
            raise ParameterError(ABSENT) from None
        self.rated: Any = BLEU(tokenize=tokenize, effective_order=True)
        self.letters: Any = CHRF()
        self.tokenize, self.right = tokenize, right

    def statistics(self, texts: Sequence[str]) -> np.ndarray:
        """Summands of corpus BLEU, [texts, 10]: matches and n-grams by order, and both lengths."""
        scores = [self.rated.sentence_score(text, list(right)) for text, right in zip(texts, self.right)]
        return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores], float)

    def bleu(self, sums: np.ndarray) -> np.ndarray:
        """Corpus BLEU of summed statistics [..., 10]."""

        def one(numbers: np.ndarray) -> float:
            whole = numbers.round().astype(int).tolist()
            return self.rated.compute_bleu(whole[:4], whole[4:8], *whole[8:]).score

        return np.apply_along_axis(one, -1, sums)

    def chrf(self, texts: Sequence[str]) -> float:
        """Corpus chrF."""
        most = max(map(len, self.right))
        columns = [[right[i] if i < len(right) else None for right in self.right] for i in range(most)]
        return float(self.letters.corpus_score(list(texts), columns).score)
