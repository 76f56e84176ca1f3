"""The decision rules: what they decide at equality, and that arrays and tensors give the same decision."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.draft import Draft
from specviz.errors import ParameterError
from specviz.methods import signals
from specviz.methods.retranslate import keeps
from specviz.rules import bild, cells, gap, ngrams, retranslation, speculative
from specviz.rules.parameters import Parameter

SEEDS = st.integers(0, 10_000)
CM_ASD = {p.name: p.default for p in gap.CM_ASD}


def test_no_rule_and_no_what_if_needs_torch():
    names = [
        "arrays",
        "bild",
        "cells",
        "gap",
        "ngrams",
        "parameters",
        "retranslation",
        "speculative",
        "store",
    ]
    modules = [f"specviz.rules.{name}" for name in names] + ["specviz.whatifs"]
    code = f"import sys; sys.modules['torch'] = None; import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# -- speculative decoding ----------------------------------------------------------------------------


def test_a_token_is_rejected_at_equality():
    p, q = np.array([0.0, 0.25, 0.25, 1.0], np.float32), np.array([0.5, 0.5, 0.5, 1.0], np.float32)
    u = np.array([0.0, 0.5, 0.5 - 2**-24, 1 - 2**-24])
    assert speculative.accepts(p, q, u).tolist() == [False, False, True, True]
    tensors = map(torch.from_numpy, (p, q, u))
    assert speculative.accepts(*tensors).tolist() == [False, False, True, True]


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, narrow=st.sampled_from([np.float32, np.float64]))
def test_accepts_of_arrays_and_tensors(seed, narrow):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(8), 2).astype(narrow)
    u = np.floor(rng.random(8) * 2**24) / 2**24
    u[0] = float(p[0]) / float(q[0]) if p[0] < q[0] else 0.5  # close to equality
    found = speculative.accepts(*map(torch.from_numpy, (p, q, u)))
    assert speculative.accepts(p, q, u).tolist() == found.tolist()
    assert found.tolist() == [float(a) * float(b) < float(c) for a, b, c in zip(u, q, p)]


def test_where_rounding_leaves_nothing_the_residual_is_p():
    p = np.array([0.25, 0.5, 0.25], np.float32)
    for q in (p, p + 1e-3):
        assert speculative.residual(p, q).tolist() == p.tolist()
        assert speculative.residual(torch.from_numpy(p), torch.from_numpy(q)).tolist() == p.tolist()


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, size=st.sampled_from([3, 50_000]))
def test_the_residual_of_arrays_and_tensors(seed, size):
    rng = np.random.default_rng(seed)
    p, q = rng.random((2, size)).astype(np.float32)
    expected = np.maximum(p - q, 0)
    for found in (
        speculative.residual(p, q),
        speculative.residual(torch.from_numpy(p), torch.from_numpy(q)).numpy(),
    ):
        np.testing.assert_array_equal(found, expected if expected.any() else p)


def test_drafting_goes_on_at_the_stop_itself():
    assert not speculative.is_unsure(0.5, 0.5)
    assert speculative.is_unsure(np.nextafter(0.5, 0), 0.5)


@pytest.mark.parametrize(
    ("n", "accepted", "status"),
    [
        (0, 0, []),
        (3, 0, ["rejected", "unjudged", "unjudged"]),
        (3, 2, ["accepted", "accepted", "rejected"]),
        (2, 2, ["accepted", "accepted"]),
    ],
)
def test_chain_status(n, accepted, status):
    assert speculative.chain_status(n, accepted) == status


def test_origins_prefixes_and_reach():
    assert speculative.next_origin(0, False) == "plain"
    assert speculative.next_origin(2, False) == "bonus"
    assert speculative.next_origin(2, True) == "correction"
    assert speculative.next_origin(2, True, "resampled") == "resampled"
    assert speculative.common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert speculative.common_prefix([1], [1, 2]) == 1
    assert speculative.common_prefix([], [1]) == 0
    assert speculative.reach(4, 9, 9) == (4, "length")
    assert speculative.reach(4, 3, 9) == (3, "room")
    assert speculative.reach(4, 9, -1) == (0, "room")


# -- BiLD --------------------------------------------------------------------------------------------


def test_at_equality_bild_falls_back_and_keeps():
    assert not bild.goes_on(0.5, 0.5)
    assert bild.goes_on(np.nextafter(0.5, 1), 0.5)
    assert not bild.rolls_back(2.0, 2.0)
    assert bild.rolls_back(np.nextafter(2.0, 3), 2.0)
    distances = np.array([1.0, 2.0, 3.0])
    assert bild.rolls_back(distances, 2.0).tolist() == [False, False, True]
    assert bild.rolls_back(torch.from_numpy(distances), 2.0).tolist() == [False, False, True]


# -- CM-ASD and SpecDec ------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    seed=SEEDS,
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    weights=st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any),
    scale=st.sampled_from([0.0, 0.5, 3.0]),
    entropy=st.sampled_from(["complement", "as_written"]),
)
def test_confidence_from_signals_is_the_ensemble(seed, spread, weights, scale, entropy):
    """A what-if computes it from the recorded signals, the method from the logits."""
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, spread, (5, 40)))
    recorded = [signals.entropy, signals.logit_margin, signals.margin, signals.variance]
    shares = [weight / sum(weights) for weight in weights]
    values = CM_ASD | dict(zip(gap.WEIGHTS, shares)) | {"margin_scale": scale, "entropy": entropy}
    found = gap.confidence(np.stack([signal(logits) for signal in recorded], -1), 40, values)
    expected = signals.ensemble(logits, tuple(shares), scale, entropy == "complement")
    np.testing.assert_allclose(found, expected, atol=1e-6)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=5), st.integers(2, 1000))
def test_shares_of_arrays_and_tensors(values, vocabulary):
    array, tensor = np.array(values), torch.tensor(values, dtype=torch.float64)
    for share in (gap.entropy_share, gap.margin_share, gap.variance_share):
        np.testing.assert_array_equal(share(array, vocabulary), share(tensor, vocabulary))


def test_the_confidence_is_cut_to_0_and_1():
    signals = [(0.5, np.array([-3.0, 0.25, 9.0])), (0.5, np.array([0.0, 0.5, 0.0]))]
    assert gap.blend(signals).tolist() == [0, 0.375, 1]


def test_weights_that_sum_to_1_but_for_rounding_give_a_sure_drafter_its_whole_window():
    values = CM_ASD | dict.fromkeys(gap.WEIGHTS[:3], 0.33333)
    assert not gap.problem(values)
    sure = gap.confidence(np.array([0.0, 1000.0, 1.0, 1.0]), 40, values)
    assert gap.window(float(sure), values) == values["k_max"]
    logits = 1000 * torch.eye(1, 40)
    sure = signals.ensemble(logits, tuple(values[name] for name in gap.WEIGHTS))
    assert gap.window(float(sure), values) == values["k_max"]


@pytest.mark.parametrize("reading", ["as_written", "as_described"])
@pytest.mark.parametrize("adaptive", [True, False])
def test_thresholds_of_numbers_arrays_and_tensors(reading, adaptive):
    values = CM_ASD | {"gap": reading, "gamma": 2.0, "adaptive_verification": adaptive}
    sure = [0.0, 0.25, 1.0]
    expected = [0.1 + adaptive * 2 * (c if reading == "as_described" else 1 - c) for c in sure]
    assert [gap.threshold(c, values) for c in sure] == expected
    np.testing.assert_array_equal(gap.threshold(np.array(sure), values), expected)
    np.testing.assert_array_equal(gap.threshold(torch.tensor(sure, dtype=torch.float64), values), expected)


def test_a_gap_may_reach_its_threshold_and_a_rank_not_beta():
    gaps, ranks = np.array([0.5, 0.6, 0.5, 0.0]), np.array([2, 0, 3, 0])
    assert gap.passes(gaps, ranks, 0.5, 3).tolist() == [True, False, False, True]
    assert gap.passes(torch.from_numpy(gaps), torch.from_numpy(ranks), 0.5, 3).tolist() == [
        True,
        False,
        False,
        True,
    ]
    assert gap.passes(0.5, 2, 0.5, 3) and not gap.passes(0.5, 3, 0.5, 3)


@pytest.mark.parametrize(
    ("tokens", "window", "expected"),
    [
        ([5, 6, 7], 2, (2, "window")),
        ([5, 6, 7], 9, (3, "room")),
        ([5, 6, 1], 3, (3, "eos")),
        ([5, 1], 9, (2, "eos")),
        ([5, 6], 9, (2, "window")),  # drafting stopped at the window
    ],
)
def test_what_is_sent(tokens, window, expected):
    assert gap.sent(tokens, window, {1}, 3, "room") == expected


# -- the others --------------------------------------------------------------------------------------


def test_lookup():
    values = {"ngram_max": 2, "ngram_min": 1, "draft_length": 3}
    text = np.array([4, 5, 6, 7, 8, 4, 5])
    for left, eos, expected in (
        (9, (), ([6, 7, 8], "length")),
        (3, (), ([6, 7], "room")),
        (1, (), ([], "room")),
        (9, (7,), ([6, 7], "eos")),
    ):
        tokens, stop = ngrams.lookup(text, values, left, eos)
        assert (tokens.tolist(), stop) == expected
    assert ngrams.lookup(text[:3], values, 9, ())[1] == "none"
    tokens, stop = ngrams.lookup(np.array([4, 5, 4]), values, 9, ())
    assert (tokens.tolist(), stop) == ([5, 4], "text")
    assert "at most ngram_max" in ngrams.problem(values | {"ngram_min": 3})


def test_a_child_is_right_in_cell_and_token():
    parents = np.array([-1, -1, -1, 0, 0])
    draft = Draft(np.array([8, 8, 9, 8, 5]), parents, positions=np.array([3, 1, 3, 4, 4]))
    for placed, path, status in (
        ([(3, 8), (4, 8)], [0, 3], ["accepted", "rejected", "rejected", "accepted", "rejected"]),
        ([(3, 8), (5, 8)], [0], ["accepted", "rejected", "rejected", "rejected", "rejected"]),
        ([(3, 7)], [], ["rejected", "rejected", "rejected", "unjudged", "unjudged"]),
        ([], [], ["unjudged"] * 5),
    ):
        steps = iter(placed)
        assert cells.judge_cells(draft, lambda _, steps=steps: next(steps, None)) == (path, status)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS, beta=st.sampled_from([0.1, 0.5, 1.0]))
def test_the_bias_of_numbers_and_of_logits(seed, beta):
    scores = torch.from_numpy(np.random.default_rng(seed).normal(0, 1, (6, 5)))
    tokens = torch.arange(6) % 5
    p = scores.softmax(-1).numpy()
    found = [bool(retranslation.keeps(row.max(), row[t], beta)) for row, t in zip(p, tokens.tolist())]
    assert found == keeps(scores, tokens, beta).tolist()


def test_an_end_is_never_drafted_and_a_mask_hides_the_last():
    assert retranslation.drafted([3, 4, 1], 0, "display", {1}) == [3, 4]
    assert retranslation.drafted([3, 4, 1], 1, "draft", {1}) == [3]
    assert retranslation.drafted([3, 4], 5, "draft", {1}) == []
    assert retranslation.displayed(4, 3, last=False) == 1
    assert retranslation.displayed(4, 3, last=True) == 4


@pytest.mark.parametrize("tail", ["stepwise", "shorter"])
def test_the_last_cells_are_placed_one_by_one_where_the_tail_says_so(tail):
    masked, belief = np.array([False, True, True]), np.array([-np.inf, 1.0, 2.0])
    found = cells.pick_cells(masked, belief, 3, 3, 3, "chain", tail)
    assert (found.stop == "tail") == (tail == "stepwise")


def test_a_blocks_first_cell_is_drafted_first_where_it_is_placed_first():
    masked, belief = np.ones(6, bool), np.array([1.0, 3.0, 2.0, 1.0, 4.0, 5.0])
    picked = {
        first: cells.pick_cells(masked, belief, 3, 6, 5, "chain", "shorter", first) for first in (False, True)
    }
    assert picked[False].cells.tolist() == [1, 2, 0, 5, 4]
    assert picked[True].cells.tolist() == [0, 1, 2, 3, 5]
    masked[0] = False  # the block already has a token
    assert cells.pick_cells(masked, belief, 3, 6, 3, "chain", "shorter", True).cells.tolist() == [1, 2, 3]


def test_a_text_that_is_not_taken_is_answered_with_what_is():
    with pytest.raises(ParameterError, match="x must be one of a, b, got 'c'"):
        Parameter("x", "a", choices=("a", "b")).check("c")
    with pytest.raises(ParameterError, match="x must be a string, got 1"):
        Parameter("x", "a").check(1)


def test_a_number_that_is_refused_is_written_as_it_is():
    with pytest.raises(ParameterError, match=r"x must lie in \[0, 1,000,000\], got an integer of too many"):
        Parameter("x", 1.0, 0, 1e6).check(10**5000)
    for parameter in (Parameter("x", True), Parameter("x", "a"), Parameter("x", "a", choices=("a",))):
        with pytest.raises(ParameterError, match="got an integer of too many digits"):
            parameter.check(10**5000)
    with pytest.raises(ParameterError, match=r"x must lie in \[0, 1\], got 1\.0000001$"):
        Parameter("x", 0.5, 0, 1).check(1.0000001)
    for parameter in (Parameter("x", 1, 0, 9), Parameter("x", 0.5, 0)):  # no float is as large
        with pytest.raises(ParameterError, match=r"^x must .*, got 10{39}$"):
            parameter.check(10**400)


def test_every_rules_parameter_is_legal():
    for parameters in (
        speculative.SPECULATIVE, bild.BILD, gap.SPECDEC, gap.CM_ASD, ngrams.PROMPT_LOOKUP, cells.SSD,
        retranslation.RETRANSLATE,
    ):  # fmt: skip
        for parameter in parameters:
            assert isinstance(parameter, Parameter)
            assert parameter.check(parameter.default) == parameter.default
