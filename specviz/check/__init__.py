"""Checks for the exercises: each runs a student's function on many cases and says *what* is wrong.

A check also runs known wrong variants on the same cases. If the student's answers equal such a variant's
wherever that variant is wrong, the mistake has a name; else the smallest failing case is shown. It needs
no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .exercise import judge
from .result import Result

__all__ = ["Result", "bild_rollback", "greedy_verifier", "rejection_rule", "tree_mask"]


def greedy_verifier(function: Callable[..., Any]) -> Result:
    """Check ``function(drafted, best, eos) -> tokens``.

    Parameters
    ----------
    function : callable
        `drafted`: list of n token ids. `best`: list of 1 + n ids, the target's argmax in the place of each
        drafted token and in the place after the last. `eos`: the id that ends the text. It returns the
        list of tokens that the cycle emits (Leviathan et al. 2023, Algorithm 1, with argmaxes in place of
        samples).

    Returns
    -------
    Result
        True if all cases are right; it shows itself in a notebook.
    """
    from .greedy import EXERCISE

    return judge(EXERCISE, function)


def rejection_rule(function: Callable[..., Any]) -> Result:
    """Check ``function(drafted, draft_logits, target_logits, temperature, u) -> (kept, law)``.

    Parameters
    ----------
    function : callable
        `drafted`: list of n token ids, drawn at the temperature. `draft_logits`: array [n, vocabulary].
        `target_logits`: array [1 + n, vocabulary]. `u`: list of n numbers in [0, 1). It returns how many
        drafted tokens are accepted, and the distribution [vocabulary] that the next token is drawn from
        (Leviathan et al. 2023, Algorithm 1, lines 8-15).

    Returns
    -------
    Result
        True if all cases are right; it shows itself in a notebook.
    """
    from .rejection import EXERCISE

    return judge(EXERCISE, function)


def bild_rollback(function: Callable[..., Any]) -> Result:
    """Check ``function(drafted, p, threshold) -> tokens``.

    Parameters
    ----------
    function : callable
        `drafted`: list of n token ids that the small model wrote. `p`: array [1 + n, vocabulary], the large
        model's distribution in the place of each and in the place after the last. `threshold`: α_RB in nats.
        It returns the list of tokens that take the block's place (Kim et al. 2023, Algorithm 1, lines 9-16,
        greedy).

    Returns
    -------
    Result
        True if all cases are right; it shows itself in a notebook.
    """
    from .rollback import EXERCISE

    return judge(EXERCISE, function)


def tree_mask(function: Callable[..., Any]) -> Result:
    """Check ``function(parents) -> (mask, depth)``.

    Parameters
    ----------
    function : callable
        `parents`: list of n node numbers, each smaller than its child's; -1 is the root. It returns the mask,
        bool [n, n], true where the node of the row sees the node of the column, and the depths, int [n], 1 on
        the first level. The right answers are those of `specviz.draft.Draft`.

    Returns
    -------
    Result
        True if all cases are right; it shows itself in a notebook.
    """
    from .tree import EXERCISE

    return judge(EXERCISE, function)
