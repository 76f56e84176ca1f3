"""The rejection rule to drag: p and q, what is accepted, what is left, and the law that results."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import traitlets as t

from specviz.errors import ParameterError
from specviz.widgets.assets import script, style
from specviz.widgets.stateful import Stateful

RULES = ("right", "resample from p", "accept iff p >= q", "argmax draft")
P, Q = (0.5, 0.25, 0.15, 0.1, 0.0), (0.2, 0.45, 0.05, 0.1, 0.2)


class Acceptance(Stateful):
    """Two distributions that can be dragged, and what a verifier's rule makes of them.

    The browser computes what it shows while a bar is dragged; `law` computes the same here.

    Parameters
    ----------
    p, q : sequence of float
        The target's and the drafter's probabilities of the same tokens, two to eight of them.
    rule : str
        ``right``, or one of three shortcuts that are not: ``resample from p`` (after a rejection),
        ``accept iff p >= q``, ``argmax draft`` (the drafter takes its likeliest token, and its softmax is
        used as q all the same).

    Raises
    ------
    ParameterError
        If p and q are no distributions over the same tokens, or there is no such rule.

    Examples
    --------
    >>> from specviz.widgets.acceptance import Acceptance
    >>> Acceptance([0.6, 0.4], [0.5, 0.5]).law.tolist()
    [0.6, 0.4]
    """

    _esm = script("acceptance")
    _css = style("acceptance")
    NAME = "the rejection rule"
    STATE = ("p", "q", "rule")
    p: t.List[float] = t.List(t.Float()).tag(sync=True)
    q: t.List[float] = t.List(t.Float()).tag(sync=True)
    rule = t.Enum(RULES, "right").tag(sync=True)

    def __init__(self, p: Iterable[float] = P, q: Iterable[float] = Q, rule: str = "right") -> None:
        both = [np.array([float(value) for value in each]) for each in (p, q)]
        fine = [len(each) >= 2 and (each >= 0).all() and abs(each.sum() - 1) < 1e-6 for each in both]
        if not all(fine) or len(both[0]) != len(both[1]) or len(both[0]) > 8:
            raise ParameterError(
                "p and q must be probabilities of the same two to eight tokens, and each must sum to 1"
            )
        super().__init__(b"", {"p": both[0].tolist(), "q": both[1].tolist(), "rule": rule})

    @property
    def law(self) -> np.ndarray:
        """The law of the token that comes out, array [tokens]; with the right rule it is p."""
        p, q = np.array(self.p), np.array(self.q)
        with np.errstate(divide="ignore", invalid="ignore"):
            accept = np.where(q > 0, np.minimum(1, p / q), 0.0)
        drafted, rest = q, np.maximum(p - q, 0)
        if self.rule == "accept iff p >= q":
            accept = (p >= q).astype(float)
        if self.rule == "argmax draft":
            drafted = np.eye(len(q))[q.argmax()]
        if self.rule == "resample from p" or not rest.any():
            rest = p
        kept = drafted * accept
        law: np.ndarray = kept + (1 - kept.sum()) * rest / rest.sum()
        return law

    def _page(self) -> str:
        return self._document("acceptance", "specviz: the rejection rule", "")
