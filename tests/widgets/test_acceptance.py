"""The interactive rejection rule: the exact rule's law is p, and each shortcut's is not."""

from __future__ import annotations

import numpy as np
import pytest
from traitlets import TraitError

pytest.importorskip("anywidget", reason="needs the lab extra")

from specviz.errors import ParameterError
from specviz.rules.speculative import residual
from specviz.widgets.acceptance import RULES, Acceptance, P

rng = np.random.default_rng(0)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_the_right_rule_gives_p(n):
    for _ in range(20):
        p, q = rng.dirichlet(np.full(n, 0.4)), rng.dirichlet(np.full(n, 0.4))
        widget = Acceptance(p, q)
        assert np.allclose(widget.law, p)
        left = residual(p, q)  # as in the decoder
        assert np.allclose(np.minimum(p, q) + (1 - np.minimum(p, q).sum()) * left / left.sum(), widget.law)


@pytest.mark.parametrize("rule", RULES[1:])
def test_each_shortcut_bends_the_law(rule):
    law = Acceptance(rule=rule).law
    assert law.sum() == pytest.approx(1) and np.abs(law - P).sum() / 2 > 0.05


def test_equal_distributions_leave_nothing_to_draw():
    assert np.allclose(Acceptance([0.5, 0.5], [0.5, 0.5]).law, 0.5)


@pytest.mark.parametrize(
    ("p", "q", "rule"),
    [([1], [1], "right"), ([0.5, 0.4], [0.5, 0.5], "right"), ([0.5, 0.5], [1, 0, 0], "right"),
     ([1.5, -0.5], [0.5, 0.5], "right"), ([0.5, 0.5], [0.5, 0.5], "wrong")],
)  # fmt: skip
def test_what_is_no_distribution_is_one_line(p, q, rule):
    with pytest.raises(ParameterError):
        Acceptance(p, q, rule)
    widget = Acceptance([0.5, 0.5], [0.5, 0.5])
    for values in ({"p": p, "q": q, "rule": rule}, {"p": [0.2] * 5}):
        with pytest.raises(TraitError):
            widget.set_state(values)
    assert (widget.p, widget.q, widget.rule) == ([0.5, 0.5], [0.5, 0.5], "right")
    widget.set_state({"p": [0.2] * 5, "q": [0.2] * 5})  # both at once
    assert widget.law.tolist() == pytest.approx([0.2] * 5)
