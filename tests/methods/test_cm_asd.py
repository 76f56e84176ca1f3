"""CM-ASD against its equations written down, and the record of its decisions."""

from __future__ import annotations

import pytest
from tiny import llama

import specviz
from specviz.errors import ParameterError
from specviz.methods.cm_asd import CMASD

EXACT = CMASD.exact


@pytest.fixture(scope="module")
def pair():
    large = llama(seed=0, eos=(1,), name="large")
    return large, llama(seed=5, eos=(1,), like=large, noise=0.15, name="small")


@pytest.mark.parametrize("controller", ["look_ahead", "early_stop"])
@pytest.mark.parametrize("adaptive", [True, False])
def test_the_exact_setting_is_the_targets_own_text(pair, controller, adaptive):
    large, small = pair
    prompts = [[3, 4], [5, 6], [7], [9, 2, 3]]
    own = specviz.generate(large, prompts, "autoregressive", max_new_tokens=40)
    found = specviz.generate(
        large, prompts, "cm_asd", draft=small, max_new_tokens=40, controller=controller,
        adaptive_drafting=adaptive, **EXACT,
    )  # fmt: skip
    assert found.texts == own.texts
    assert found.run["exactness"] == "exact up to ties"
    assert {"accepted", "rejected"} <= set(found.nodes["status"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"w_entropy": 1.0}, "must sum to 1"),
        ({"k_min": 5, "k_max": 4}, "k_min must be at most k_max"),
        ({"w_entropy": 1.5}, "w_entropy"),
        ({"gap": "sideways"}, "as_written, as_described"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(ParameterError, match=said):
        CMASD(**given)
