"""CM-ASD against its equations in NumPy, and the record of its decisions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from identities import validate
from test_specdec import LARGE, POOR, SHORT, SMALL, passes, text
from tiny import llama

import specviz
from specviz import metrics
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import cm_asd, find, gap
from specviz.methods.cm_asd import CMASD, WEIGHTS
from specviz.methods.sampling import Sampling
from specviz.methods.specdec import SpecDec

EXACT = CMASD.exact
CLOSE = (
    1e-5  # a claim this near to an integer, or a gap this near to its threshold, may be rounded either way
)


class Unclear(Exception):
    """Raised when rounding decides, so that the example proves nothing."""


def confidence(logits, method):
    """The unified score of one row of logits."""
    size = len(logits)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    z, best = np.sort(logits)[::-1], np.sort(p)[::-1]
    share = -(p * np.log(p)).sum() / math.log(size)
    spread = ((logits - logits.mean()) ** 2).mean()
    signals = (
        1 - share if method.entropy == "complement" else share,
        1 / (1 + math.exp(-method.margin_scale * (z[0] - z[1]))),
        min(1, (best[0] - best[1]) / (1 - 1 / size)),
        spread / (spread + 2 * math.log(size)),
    )
    return sum(getattr(method, name) * signal for name, signal in zip(WEIGHTS, signals))


def window(mean, method):
    claim = method.alpha * mean * method.k_max
    if abs(claim - round(claim)) < CLOSE:
        raise Unclear
    return min(method.k_max, max(method.k_min, math.floor(claim)))


def block_of(small, method, text, n, eos):
    """Return the tokens that are sent, their confidences, and the number of drafted tokens."""
    tokens, sure = [], []
    early = method.controller == "early_stop" and method.adaptive_drafting
    for _ in range(n):
        row = small.logits(text + tokens).numpy()
        tokens.append(int(row.argmax()))
        sure.append(confidence(row, method))
        if early:
            k = window(sum(sure) / len(sure), method)
            if k < len(tokens):
                return tokens[:-1], sure[:-1], len(tokens)
            if k == len(tokens) or tokens[-1] in eos:
                return tokens, sure, len(tokens)
    drafted = len(tokens)
    if method.adaptive_drafting and not early and n:
        end = next((i + 1 for i, token in enumerate(tokens) if token in eos), n)
        k = min(end, window(sum(sure[:end]) / end, method))
        tokens, sure = tokens[:k], sure[:k]
    return tokens, sure, drafted


def by_hand(large, small, method, prompt, limit, eos):
    """Return the text, and for each cycle how many tokens were drafted, sent and accepted."""
    y, start, cycles = list(prompt), len(prompt), []
    while len(y) - start < limit:
        n = max(0, min(method.k_max, limit - (len(y) - start) - 1, small.max_length - len(y)))
        block, sure, drafted = block_of(small, method, y, n, eos)
        emitted = []
        for token, c in zip(block, sure):
            tau = method.tau_base
            if method.adaptive_verification:
                tau += method.gamma * (c if method.gap == "as_described" else 1 - c)
            row = large.logits(y + emitted).numpy()
            lag = row.max() - row[token]
            if lag > 0 and abs(lag - tau) < CLOSE:
                raise Unclear
            if not passes(row, token, tau, method.top_beta):
                break
            emitted.append(token)
        kept = len(emitted)
        emitted.append(int(large.logits(y + emitted).argmax()))
        end = next((i for i, token in enumerate(emitted) if token in eos), None)
        over = end is not None and end < kept  # an accepted token ended the text
        emitted = emitted if end is None else emitted[: end + 1]
        y += emitted
        cycles.append((drafted, len(block), end + 1 if over else kept))
        if end is not None:
            break
    return y[start:], cycles


def told(cycles):
    """Count the drafted, sent and accepted tokens of each decoded cycle."""
    return [
        (len(c.draft) + (len(c.verdict.unsent.tokens) if c.verdict.unsent else 0), len(c.draft),
         c.status.count("accepted"))
        for c in cycles
        if c.number
    ]  # fmt: skip


PARTS = st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any)
POLICY = {
    "alpha": st.sampled_from([0.3, 0.7, 1.0]),
    "window": st.tuples(st.integers(1, 10), st.integers(1, 10)).map(sorted),
    "tau_base": st.sampled_from([0.0, 0.1, 0.7, 3.0]),
    "gamma": st.sampled_from([0.0, 0.4, 2.0]),
    "top_beta": st.integers(1, 6),
    "weights": PARTS.map(lambda parts: [part / sum(parts) for part in parts]),
    "margin_scale": st.sampled_from([0.2, 1.0, 4.0]),
    "entropy": st.sampled_from(["complement", "as_written"]),
    "gap": st.sampled_from(["as_written", "as_described"]),
    "adaptive_drafting": st.booleans(),
    "adaptive_verification": st.booleans(),
    "controller": st.sampled_from(["look_ahead", "early_stop"]),
}


def policy(weights, window, **rest):
    return CMASD(**dict(zip(WEIGHTS, weights)), **dict(zip(("k_min", "k_max"), window)), **rest)


@settings(max_examples=300, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    small=st.sampled_from([SMALL, POOR, LARGE, SHORT]),
    limit=st.integers(1, 25),
    eos=st.sets(st.integers(0, 5), max_size=2),
    given=st.fixed_dictionaries(POLICY),
)
def test_it_is_algorithm_1(prompt, small, limit, eos, given):
    method = policy(**given)
    try:
        expected, cycles = by_hand(LARGE, small, method, prompt, limit, eos)
    except Unclear:
        assume(False)
    found = list(decode(LARGE, prompt, method, drafter=small, max_new_tokens=limit, eos=eos))
    assert text(found) == expected
    assert told(found) == cycles
    assert len(expected) <= limit


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    small=st.sampled_from([SMALL, POOR, SHORT]),
    limit=st.integers(1, 20),
    eos=st.sets(st.integers(0, 5), max_size=1),
    strict=st.sampled_from([{"top_beta": 1}, {"tau_base": 0, "gamma": 0}, EXACT]),
    given=st.fixed_dictionaries(POLICY),
)
def test_a_strict_setting_is_the_targets_own_text(prompt, small, limit, eos, strict, given):
    method = policy(**given | strict)
    own = text(decode(LARGE, prompt, find("autoregressive")(), max_new_tokens=limit, eos=eos))
    assert text(decode(LARGE, prompt, method, drafter=small, max_new_tokens=limit, eos=eos)) == own
    assert method.exactness(Sampling(), "float32") == "exact up to ties"


@pytest.fixture(scope="module")
def pair():
    large = llama(seed=0, eos=(1,), name="large")
    return large, llama(seed=5, eos=(1,), like=large, noise=0.15, name="small")


PROMPTS = [[3, 4], [5, 6], [7], [9, 2, 3]]


@pytest.mark.parametrize("controller", ["look_ahead", "early_stop"])
@pytest.mark.parametrize("adaptive", [True, False])
def test_real_networks_too(pair, controller, adaptive):
    large, small = pair
    own = specviz.generate(large, PROMPTS, "autoregressive", max_new_tokens=40)
    found = specviz.generate(
        large, PROMPTS, "cm_asd", draft=small, max_new_tokens=40, controller=controller,
        adaptive_drafting=adaptive, **EXACT,
    )  # fmt: skip
    assert found.texts == own.texts
    assert {"accepted", "rejected"} <= set(found.nodes["status"])


def test_neither_adapts_is_specdec():
    """With both adaptations off, CM-ASD is SpecDec: Table III's "w/o confidence"."""
    off = {"adaptive_drafting": False, "adaptive_verification": False, "k_max": 5, "tau_base": 0.6}
    for first in range(6):
        rest = {"drafter": SMALL, "max_new_tokens": 25, "eos": (5,)}
        found = list(decode(LARGE, [first, 2], CMASD(**off), **rest))
        other = list(decode(LARGE, [first, 2], SpecDec(draft_length=5, tau_base=0.6), **rest))
        assert text(found) == text(other)
        assert told(found) == told(other)
        assert [c.status for c in found] == [c.status for c in other]


@pytest.mark.parametrize(
    ("mean", "given", "expected"),
    [
        (0.0, {}, 1),
        (0.999, {}, 9),  # rounded down: ten only at full confidence
        (1.0, {}, 10),
        (0.55, {}, 5),
        (0.55, {"k_min": 7}, 7),
        (1.0, {"alpha": 0.55}, 5),
        (0.5, {"alpha": 0.5, "k_max": 8, "k_min": 3}, 3),
        (1.0, {"alpha": 0.0, "k_min": 2}, 2),
        (0.9, {"k_min": 6, "k_max": 6}, 6),
    ],
)
def test_windows(mean, given, expected):
    assert CMASD(**given).window(mean) == expected


def test_the_two_readings_of_the_threshold():
    sure = torch.tensor([0.0, 0.25, 1.0])
    written = CMASD(tau_base=0.1, gamma=2).threshold(sure)
    described = CMASD(tau_base=0.1, gamma=2, gap="as_described").threshold(sure)
    np.testing.assert_allclose(written, [2.1, 1.6, 0.1], rtol=1e-6)  # widest where the drafter is least sure
    np.testing.assert_allclose(described, [0.1, 0.6, 2.1], rtol=1e-6)
    fixed = CMASD(tau_base=0.1, gamma=2, adaptive_verification=False).threshold(sure)
    np.testing.assert_allclose(fixed, [0.1] * 3, rtol=1e-6)


def early(sure, monkeypatch, eos=(), **given):
    """Count the tokens drafted and sent when the drafter has these confidences."""
    method = CMASD(controller="early_stop", **given)
    said = iter(sure)
    monkeypatch.setattr(CMASD, "confidence", lambda self, row: torch.tensor(next(said)))
    cycles = decode(LARGE, [1], method, drafter=SMALL, max_new_tokens=len(sure) + 1, eos=eos)
    next(cycles)
    return told([next(cycles)])[0][:2]


@pytest.mark.parametrize(
    ("sure", "given", "expected"),
    [
        ([0.0] * 10, {}, (1, 1)),  # k_min, and no draft is wasted
        ([1.0] * 10, {}, (10, 10)),
        ([1.0, 0.0] + [1.0] * 8, {}, (8, 8)),  # the mean so far, not the last token's confidence
        ([1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], {"alpha": 0.8}, (4, 4)),
        ([0.45] * 10, {}, (4, 4)),
        ([0.0] * 10, {"k_min": 3}, (3, 3)),
        ([0.31, 0.0, 0.0] + [0.0] * 7, {}, (2, 1)),  # the second was one too many
    ],
)
def test_the_early_stopping_controller(sure, given, expected, monkeypatch):
    found = early(sure, monkeypatch, **given)
    assert found == expected
    assert found[0] - found[1] in (0, 1)


def test_it_may_send_more_than_the_look_ahead_controller(monkeypatch):
    """Early stopping cannot foresee that confidence will drop, so it sends all that its window allows."""
    sure = [1.0] * 5 + [0.0] * 5
    assert CMASD().window(sum(sure) / 10) == 5
    assert early(sure, monkeypatch) == (7, 7)
    assert CMASD().window(sum(sure[:7]) / 7) == 7


@pytest.mark.parametrize("controller", ["look_ahead", "early_stop"])
@pytest.mark.parametrize("reading", ["as_written", "as_described"])
def test_the_record_repeats_each_decision(pair, controller, reading):
    large, small = pair
    method = {"controller": controller, "gap": reading, "gamma": 1.0, "alpha": 0.9, "k_max": 8}
    trace = specviz.generate(large, PROMPTS, "cm_asd", draft=small, max_new_tokens=40, **method)
    validate(trace)
    table, nodes = metrics.recheck(trace), trace.nodes
    assert set(table["rule"]) == {"gap"} and table["agrees"].all()
    judged = nodes["status"].isin(["accepted", "rejected"])
    assert len(table) == judged.sum() > 10
    assert {"accepted", "rejected", "unjudged", "unsent"} <= set(nodes["status"])
    assert (nodes["gap"].notna() == (judged | (nodes["status"] == "cut"))).all()
    # Recompute the ensemble from the recorded signals.
    size = large.vocabulary
    score = sum(
        [
            1 - nodes["entropy"] / math.log(size),
            1 / (1 + np.exp(-nodes["logit_margin"])),
            np.minimum(1, nodes["margin"] / (1 - 1 / size)),
        ]
    )
    np.testing.assert_allclose(score / 3, nodes["score"], atol=1e-5)
    sent = nodes["status"] != "unsent"
    moved = 1 - nodes["score"] if reading == "as_written" else nodes["score"]
    np.testing.assert_allclose(nodes["threshold"][sent], 0.1 + moved[sent], rtol=1e-6)
    assert nodes["threshold"][~sent].isna().all()
    assert (nodes["met"].astype(bool) == sent).all()
    # The windows as well: as many are sent as the mean confidence of the drafted tokens allows.
    cycles = trace.cycles.query("drafted > 0").set_index(["prompt", "cycle"])
    mean = nodes.groupby(["prompt", "cycle"])["score"].mean()
    plain = ~nodes["token"].isin([1]).groupby([nodes["prompt"], nodes["cycle"]]).any()
    np.testing.assert_allclose(cycles["control_confidence"][plain], mean[plain], rtol=1e-6)
    assert (cycles["sent"] == np.minimum(cycles["control_window"], cycles["drafted"])).all()
    assert (cycles["stop"] == "window").sum() > 5
    if controller == "early_stop":
        assert (cycles["drafted"] - cycles["sent"]).isin([0, 1]).all()
    else:
        assert (cycles["drafted"] == 8).mean() > 0.5


def test_nothing_behind_an_end_token_is_sent():
    """In look-ahead the drafter continues after an end token, but its confidence there must not count."""
    ended = 0
    for first in range(6):
        method = CMASD(tau_base=50, top_beta=6)
        cycles = list(decode(LARGE, [first, 2], method, drafter=SMALL, max_new_tokens=25, eos=(3,)))
        for cycle in cycles[1:]:
            assert 3 not in cycle.draft.tokens.tolist()[:-1]
        *_, last = cycles
        if last.draft.stop == "eos":
            ended += 1
            assert last.end == "eos" and last.tokens[-1] == 3
            assert len(last.draft) == last.status.count("accepted")
    assert ended


def test_no_token_accepted_does_not_stall():
    method = CMASD(**EXACT)
    cycles = list(decode(LARGE, [1, 2], method, drafter=POOR, max_new_tokens=20))
    alone = [c for c in cycles[1:] if not c.verdict.path]
    assert alone and all(c.origins == ["correction"] for c in alone if len(c.draft))


def test_labels():
    greedy = Sampling()
    for setting, label in (
        ({}, "lossy"),
        (EXACT, "exact up to ties"),
        ({"top_beta": 1}, "exact up to ties"),
        ({"tau_base": 0, "gamma": 0}, "exact up to ties"),
        ({"tau_base": 0}, "lossy"),
        ({"tau_base": 0, "adaptive_verification": False}, "exact up to ties"),
        ({"gamma": 0}, "lossy"),
    ):
        assert CMASD(**setting).exactness(greedy, "float32") == label, setting
    assert CMASD(**EXACT).exactness(Sampling(1.0), "float32") == "lossy"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"w_entropy": 1.0}, "must sum to 1.*= 1.66667"),
        (dict.fromkeys(WEIGHTS, 0.0), "must sum to 1"),
        ({"w_entropy": 0.33, "w_margin": 0.33, "w_softmax": 0.33}, "0.99"),
        ({"k_min": 5, "k_max": 4}, "k_min must be at most k_max, got 5 and 4"),
        ({"w_entropy": 1.5}, "w_entropy"),
        ({"w_entropy": -0.1}, "w_entropy"),
        ({"gap": "sideways"}, "as_written, as_described"),
        ({"entropy": "none"}, "complement, as_written"),
        ({"controller": "none"}, "look_ahead, early_stop"),
        ({"alpha": 1.1}, "alpha"),
        ({"gamma": -1}, "gamma"),
        ({"tau_base": -1}, "tau_base"),
        ({"top_beta": 0}, "top_beta"),
        ({"k_min": 0}, "k_min"),
        ({"adaptive_drafting": 1}, "adaptive_drafting must be True or False"),
        ({"margin_scale": -1}, "margin_scale"),
        ({"margin_scale": math.inf}, "margin_scale"),
        ({"gamma": math.inf}, "gamma"),
        ({"top_beta": 10**30}, "top_beta"),
    ],
)
def test_what_cannot_be_is_refused(given, said):
    with pytest.raises(ParameterError, match=said) as caught:
        CMASD(**given)
    assert "\n" not in str(caught.value)


def test_thirds_in_a_few_digits_sum_to_one():
    CMASD(w_entropy=0.333333, w_margin=0.333333, w_softmax=0.333333)


# ------------------------------------------------------------ the tests above can fail


def differing():
    """Count the runs, of twelve, whose text or cycles differ from Algorithm 1's."""
    count = 0
    for first in range(6):
        for controller in ("look_ahead", "early_stop"):
            method = CMASD(alpha=0.9, tau_base=0.2, gamma=1.5, top_beta=3, controller=controller)
            found = list(decode(LARGE, [first, 2], method, drafter=SMALL, max_new_tokens=25))
            count += (text(found), told(found)) != by_hand(LARGE, SMALL, method, [first, 2], 25, ())
    return count


def test_the_unbroken_method_differs_nowhere():
    assert differing() == 0


def one_too_far(verify):
    def broken(draft, scores, threshold, beta):
        verdict = verify(draft, scores, threshold, beta)
        if len(verdict.path) < len(draft):
            verdict.path = [*verdict.path, len(verdict.path)]
        return verdict

    return broken


@pytest.mark.parametrize(
    ("where", "name", "broken"),
    [
        (CMASD, "window", lambda self, mean, old=CMASD.window: old(self, mean) + 1),
        (CMASD, "window", lambda self, mean, old=CMASD.window: max(1, old(self, mean) - 1)),
        (CMASD, "window", lambda self, mean: max(1, round(self.alpha * mean * self.k_max))),
        (CMASD, "threshold", lambda self, c: self.tau_base + self.gamma * c),
        (CMASD, "threshold", lambda self, c: self.tau_base - self.gamma * (1 - c)),
        (CMASD, "confidence", lambda self, rows, old=CMASD.confidence: 0.8 * old(self, rows)),
        (cm_asd, "verify_gap", one_too_far(gap.verify_gap)),
        (gap, "gaps", lambda scores, best, tokens, old=gap.gaps: -old(scores, best, tokens)),
    ],
)
def test_algorithm_1_notices_what_is_broken(monkeypatch, where, name, broken):
    monkeypatch.setattr(where, name, broken)
    assert differing()
