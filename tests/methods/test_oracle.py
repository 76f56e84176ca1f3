"""The oracle of BiLD's Figure 2 against its one-sentence definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import validate
from test_specdec import LARGE, POOR, SHORT, SMALL, text
from tiny import llama

import specviz
from specviz import metrics
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import find, oracle
from specviz.methods.oracle import Oracle


def by_hand(large, small, prompt, least, limit, eos):
    """Section 3.1: the small model's token unless the large one finds it too unlikely."""
    y, engaged = list(prompt), 0
    while len(y) - len(prompt) < limit:
        p = large.logits(y).softmax(-1)
        token = int(small.logits(y).argmax()) if len(y) < small.max_length else None
        if token is None or float(p[token]) < least:
            token, engaged = int(p.argmax()), engaged + 1
        y.append(token)
        if token in eos:
            break
    return y[len(prompt) :], engaged


@settings(max_examples=80, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    small=st.sampled_from([SMALL, POOR, LARGE, SHORT]),
    least=st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9, 1.0]),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, 5), max_size=2),
)
def test_it_is_section_3_1(prompt, small, least, limit, eos):
    cycles = list(decode(LARGE, prompt, Oracle(least=least), drafter=small, max_new_tokens=limit, eos=eos))
    found, engaged = by_hand(LARGE, small, prompt, least, limit, eos)
    assert text(cycles) == found
    assert all(len(c.tokens) == 1 for c in cycles[1:])
    assert cycles[-1].control["engaged"] == pytest.approx(engaged / len(found))


def test_the_ends_of_the_scale():
    rest = {"drafter": SMALL, "max_new_tokens": 25}
    own = text(decode(LARGE, [1, 2], find("autoregressive")(), max_new_tokens=25))
    small = text(decode(SMALL, [1, 2], find("autoregressive")(), max_new_tokens=25))
    assert text(decode(LARGE, [1, 2], Oracle(least=1), **rest)) == own
    assert text(decode(LARGE, [1, 2], Oracle(least=0), **rest)) == small
    assert own != small


def test_the_record_repeats_each_decision():
    large = llama(seed=0, eos=(1,), name="large")
    small = llama(seed=5, eos=(1,), like=large, noise=0.15, name="small")
    trace = specviz.generate(large, [[3, 4], [5, 6]], "oracle", draft=small, max_new_tokens=30, least=0.2)
    validate(trace)
    table = metrics.recheck(trace)
    assert set(table["rule"]) == {"oracle"} and table["agrees"].all()
    assert {"accepted", "rejected"} <= set(table["status"])
    for number, cycles in trace.cycles.query("cycle > 0").groupby("prompt"):
        outputs = trace.outputs
        share = (outputs.loc[outputs["prompt"] == number, "origin"] != "draft").mean()
        assert cycles["control_engaged"].iloc[-1] == pytest.approx(share)
        assert 0 < share < 1
    assert metrics.accepted_share(trace) == pytest.approx((table["status"] == "accepted").mean())


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan"), "x"])
def test_out_of_range(bad):
    with pytest.raises(ParameterError, match="least"):
        Oracle(least=bad)


def test_what_is_broken_is_noticed(monkeypatch):
    def verify(self, draft, scores, old=Oracle.verify):
        self.least, kept = self.least * 1.5, self.least
        found = old(self, draft, scores)
        self.least = kept
        return found

    monkeypatch.setattr(oracle.Oracle, "verify", verify)
    found = [text(decode(LARGE, [i], Oracle(least=0.2), drafter=POOR, max_new_tokens=25)) for i in range(6)]
    right = [by_hand(LARGE, POOR, [i], 0.2, 25, ())[0] for i in range(6)]
    assert np.sum([a != b for a, b in zip(found, right)])
