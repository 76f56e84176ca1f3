"""Interactive view of the rejection rule: p, q, the accepted mass, the residual and the output law."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from specviz.errors import loading
from specviz.widgets.assets import script, style

with loading():
    import traitlets as t

    from specviz.widgets.stateful import Stateful

RULES = ("right", "resample from p", "accept iff p >= q", "argmax draft")
P, Q = (0.5, 0.25, 0.15, 0.1, 0.0), (0.2, 0.45, 0.05, 0.1, 0.2)


class Acceptance(Stateful):
    """Two draggable distributions and the law that a verifier's rule produces from them.

    The browser computes the law while a bar is dragged; `law` computes the same in Python.

    Parameters
    ----------
    p, q : sequence of float
        The target's and the drafter's probabilities of the same two to eight tokens.
    rule : str
        ``right``, or one of three incorrect shortcuts: ``resample from p`` (after a rejection),
        ``accept iff p >= q``, ``argmax draft`` (the drafter always takes its most likely token, yet its
        softmax is still used as q).

    Raises
    ------
    ParameterError
        If p and q are not distributions over the same two to eight tokens, or `rule` does not exist.

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
        super().__init__(b"", {"p": [float(x) for x in p], "q": [float(x) for x in q], "rule": rule})

    @t.validate("p", "q")
    def _legal_value(self, proposal: t.Bunch) -> list[float]:
        values = {"p": self.p, "q": self.q} | {proposal["trait"].name: proposal["value"]}
        both = [np.array(each) for each in values.values()]
        fine = [len(each) >= 2 and (each >= 0).all() and abs(each.sum() - 1) < 1e-6 for each in both]
        if not all(fine) or len(both[0]) != len(both[1]) or len(both[0]) > 8:
            raise t.TraitError(
                "p and q must be probabilities of the same two to eight tokens, and each must sum to 1"
            )
        return list(proposal["value"])

    @property
    def law(self) -> np.ndarray:
        """The distribution of the output token, array [tokens]; it equals p under the ``right`` rule."""
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
