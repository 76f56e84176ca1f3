"""Checks of the exercises, and of a user's method (`method`).

The check of an exercise runs a student's function on many cases and says *what* is wrong. It also runs known
wrong variants on the same cases. If the student's answers equal such a variant's wherever that variant is
wrong, the mistake is identified; otherwise the smallest failing case is shown. This check needs no torch. It
keeps the best result of each exercise in ``specviz-exercises.json`` in the working directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import loading
from .exercise import Student, judge
from .result import Result
from .score import keep

if TYPE_CHECKING:
    from ..loop.drafters import Loadable
    from ..methods import Method
    from ..models.protocols import Prompt
    from .conformance import Conformance

__all__ = ["Result", "bild_rollback", "greedy_verifier", "method", "rejection_rule", "tree_mask"]


@loading()
def method(
    given: Method | type[Method] | str, model: Loadable = "town", *, draft: Loadable | None = None,
    prompts: str | Sequence[Prompt] | None = None,
) -> Conformance:  # fmt: skip
    """Check that a method keeps its claims, and return a table with a row for each claim.

    Rows: ``decode`` (it runs and respects the limit on new tokens), ``text`` (each token is the target's own,
    by the audit), ``record`` (the recorded numbers reproduce the method's decisions), ``sampling law``
    (enumerated over a toy vocabulary), ``batch``, ``trace`` (it survives Parquet, with the method's signals),
    ``what-if`` and ``player``.

    Parameters
    ----------
    given : class, Method or str
        The method; a class is used with its default parameters.
    model : Model, or anything else that `specviz.load` takes
    draft : like `model`, optional
        For a method that drafts with a model. Default: the one bundled with a bundled target.
    prompts : list of str, optional
        Default: a few prompts of the bundled suite ``town``.

    Returns
    -------
    Conformance
        True if nothing fails; a notebook displays it as a table. ``result["text"]`` is a row.

    Raises
    ------
    ParameterError, ModelError
        If it is not a method, decodes streams or canvases, or needs a draft that is missing or does not fit.
    """
    from .conformance import check

    return check(given, model, draft, prompts)


def greedy_verifier(function: Student) -> Result:
    """Check ``function(drafted, best, eos) -> tokens``.

    Parameters
    ----------
    function : callable
        `drafted`: list of n token ids. `best`: list of 1 + n ids, the target's argmax at the position of each
        drafted token and at the position after the last. `eos`: the id that ends the text. It returns the
        list of tokens that the cycle emits (Leviathan et al. 2023, Algorithm 1, with argmaxes in place of
        samples).

    Returns
    -------
    Result
        True if all cases are right; a notebook displays it.
    """
    from .greedy import EXERCISE

    return keep(judge(EXERCISE, function))


def rejection_rule(function: Student) -> Result:
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
        True if all cases are right; a notebook displays it.
    """
    from .rejection import EXERCISE

    return keep(judge(EXERCISE, function))


def bild_rollback(function: Student) -> Result:
    """Check ``function(drafted, p, threshold) -> tokens``.

    Parameters
    ----------
    function : callable
        `drafted`: list of n token ids that the small model wrote. `p`: array [1 + n, vocabulary], the large
        model's distribution at the position of each and at the position after the last. `threshold`: α_RB in
        nats. It returns the list of tokens that replace the block (Kim et al. 2023, Algorithm 1, lines 9-16,
        greedy).

    Returns
    -------
    Result
        True if all cases are right; a notebook displays it.
    """
    from .rollback import EXERCISE

    return keep(judge(EXERCISE, function))


def tree_mask(function: Student) -> Result:
    """Check ``function(parents) -> (mask, depth)``.

    Parameters
    ----------
    function : callable
        `parents`: list of n node numbers, each smaller than its child's; -1 is the root. It returns the mask,
        bool [n, n], true if the row's node attends to the column's node, and the depths, int [n], 1 on the
        first level. The right answers are those of `specviz.draft.Draft`.

    Returns
    -------
    Result
        True if all cases are right; a notebook displays it.
    """
    from .tree import EXERCISE

    return keep(judge(EXERCISE, function))
