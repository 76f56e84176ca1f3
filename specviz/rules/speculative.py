"""The rules of speculative decoding: when drafting stops, what is accepted, and what follows.

Leviathan, Kalman and Matias 2023, Algorithm 1; line numbers below are theirs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from ..draft import ROOT, Draft
from .arrays import Array, Number
from .parameters import Parameter

SPECULATIVE = (
    Parameter(
        "draft_length", 4, 1, 64, "tokens", "Maximum number of tokens that the draft model writes per "
            "cycle.", "γ"
    ),
    Parameter(
        "stop", 0.0, 0, 1, "probability",
        "The draft model stops when its largest probability is below this; 0: off.",
    ),
)  # fmt: skip


def is_unsure(confidence: Number, stop: float) -> Number:
    """Whether the drafter's largest probability is too small to continue drafting."""
    return confidence < stop


def accepts(p: Array, q: Array, u: Array) -> Array:
    """Line 9: accept where u < p(x) / q(x); bool [n].

    Written as u q < p, with `u` in the widest float, in which the product of two float32 is exact, so that
    the decision can be repeated from the recorded numbers. At equality the token is rejected, so that a token
    with p = 0 never passes, not even with u = 0.
    """
    return u * q < p


def residual(p: Array, q: Array) -> Array:
    """Lines 11-14: max(0, p - q), [vocabulary], not normalised; p itself if rounding leaves nothing."""
    rest = (p - q).clip(0)
    return rest + p * (rest.sum() <= 0)


def common_prefix(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Length of the common prefix of two sequences."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def chain_status(n: int, accepted: int) -> list[str]:
    """The status of each of a chain's n nodes when the first `accepted` were accepted."""
    return (["accepted"] * accepted + ["rejected"] + ["unjudged"] * n)[:n]


def next_origin(drafted: int, rejected: bool, instead: str = "correction") -> str:
    """The origin of the token after the accepted ones; `instead` if it replaces a rejected one."""
    return instead if rejected else "bonus" if drafted else "plain"


def reach(longest: int, left: int, room: int) -> tuple[int, str]:
    """How many tokens to draft, and why no more: ``length`` or ``room``.

    Parameters
    ----------
    longest : int
        Maximum that the method itself sets.
    left : int
        Tokens that may still be emitted, without the target's own.
    room : int
        Free slots of the drafter's context: the draft must fit even if all of it is accepted.
    """
    n = max(0, min(longest, left, room))
    return n, "length" if n == longest else "room"


def longest_path(draft: Draft, right: np.ndarray) -> tuple[int, np.ndarray]:
    """The deepest node that is right and has only right ancestors; of equals, the first.

    Parameters
    ----------
    draft : Draft
    right : array of bool [nodes]
        Whether each node's token is what the target writes after its parent.

    Returns
    -------
    last : int
        That node, or `ROOT`.
    alive : array of bool [nodes]
        Which nodes are right and have only right ancestors.
    """
    alive = ~(draft.mask & ~right).any(1)
    return (int(np.where(alive, draft.depths, 0).argmax()) if alive.any() else ROOT), alive
