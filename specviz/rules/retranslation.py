"""The rules of re-translation: how much of the previous output is drafted, kept and displayed.

Zeng, Deng, Shu and Wang, "Self-Speculative Biased Decoding for Faster Re-translation", Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Collection

from .arrays import Number
from .parameters import Parameter

RETRANSLATE = (
    Parameter(
        "mode", "ssbd", choices=("rt", "ssbd", "cd"),
        meaning="rt writes each update from scratch, ssbd verifies the previous update's output, cd "
            "continues after it without verifying.",
    ),
    Parameter("beta", 0.2, 0, 1, "probability", "How strongly verification favours the draft (ssbd).", "β"),
    Parameter("k", 0, 0, None, "tokens", "Number of last output tokens to mask until the last update."),
    Parameter(
        "mask", "display", choices=("display", "draft"),
        meaning="Where the masked tokens are hidden: only on the display, or also from the next draft.",
    ),
)  # fmt: skip


def exactness(mode: str, beta: float, greedy: bool) -> str:
    """One of `schema.EXACTNESS`; even from scratch, a prompt's rows are computed in several passes."""
    if mode == "cd" or (mode == "ssbd" and beta > 0):
        return "lossy"
    return "exact up to ties" if greedy else "exact in law"


def without_end(output: list[int], eos: Collection[int]) -> list[int]:
    """An output without its end token."""
    return output[:-1] if output and output[-1] in eos else output


def drafted(previous: list[int], k: int, mask: str, eos: Collection[int]) -> list[int]:
    """The draft from the output of the previous update (line 1).

    Its end token is left out: once accepted, it would freeze the output. (From β = 0.5 on, no draft token is
    ever rejected.)
    """
    tokens = without_end(previous, eos)
    return tokens[: max(0, len(tokens) - k)] if mask == "draft" else tokens


def displayed(tokens: int, k: int, last: bool) -> int:
    """How many of an output's tokens are displayed: all but the last k, or all in the last update."""
    return tokens if last else max(0, tokens - k)


def biased(p: Number, beta: float) -> Number:
    """Equation 3 at the draft's own token: (1 - β) p + β."""
    return (1 - beta) * p + beta


def keeps(most: Number, p: Number, beta: float) -> Number:
    """Lines 6 and 7: is the draft's token the argmax of the biased distribution?

    `most` is the largest probability, `p` the token's own. For β < 1 this is max p - p(y) ≤ β / (1 - β).
    """
    return (1 - beta) * most <= biased(p, beta)
