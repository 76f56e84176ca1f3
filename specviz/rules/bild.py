"""BiLD's two policies: when the small model falls back, and which tokens the large one rolls back.

Kim et al. 2023, sections 3.3 and 3.4, Algorithm 1.
"""

from __future__ import annotations

from .arrays import Number
from .parameters import Parameter

BILD = (
    Parameter(
        "fallback", 0.5, 0, 1, "probability",
        "The small model keeps drafting while its largest probability is above this.", "α_FB",
    ),
    Parameter(
        "rollback", 2.0, 0, None, "nats",
        "A token is rolled back if the large model's -log p of it is above this.", "α_RB",
    ),
    Parameter("cap", 10, 1, 64, "tokens", "Maximum number of tokens that the small model writes in a row."),
    Parameter(
        "review_end", False,
        meaning="Whether the large model also verifies a block in which the small model ended the text; "
            "Algorithm 1 (line 2) stops without verifying.",
    ),
)  # fmt: skip


def goes_on(confidence: Number, fallback: float) -> Number:
    """Line 4: max p_S > α_FB. At equality it falls back, although section 3.3's rule (<) would not."""
    return confidence > fallback


def rolls_back(distance: Number, rollback: float) -> Number:
    """Line 10, equation 3: a token is rolled back if its -log p_L is above α_RB; at equality it is kept."""
    return distance > rollback


def guarantee(fallback: float, rollback: float, review_end: bool) -> str:
    """Whether the text is the large model's: one of `schema.EXACTNESS`."""
    if fallback == 1:  # no probability is above 1: every token is the large model's
        return "exact"
    # With a rollback distance of 0, only a token of probability 1, the likeliest, survives the review.
    return "exact up to ties" if rollback == 0 and review_end else "lossy"
