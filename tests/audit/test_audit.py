"""The audit passes correct decoders and reports every planted bug as a bug."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import planted
import pytest
import torch
from planted import SmallTree
from tiny import llama
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import MixtralConfig, MixtralForCausalLM

import specviz
from specviz import audit
from specviz.audit.batches import _Rows
from specviz.audit.law import ChiSquare, LawResult
from specviz.audit.reference import Reference, reference_of
from specviz.audit.result import COLUMNS, AuditResult, Difference, Drawn, Row
from specviz.audit.text import Decoding, _measure
from specviz.cli.auditing import _print_result
from specviz.errors import ModelError, ParameterError
from specviz.loop import reduce
from specviz.loop.cycle import decode
from specviz.methods import speculative
from specviz.methods.autoregressive import Autoregressive
from specviz.methods.base import Verdict
from specviz.methods.sampling import Sampling
from specviz.models import Model, kernels
from specviz.suites.frozen import frozen
from specviz.trace import Trace

PROMPTS = [[first, 5, 9, first + 3] for first in range(2, 14)]
LENGTH = 24


@pytest.fixture(scope="module")
def pair():
    target = llama(seed=0, eos=(1, 7), name="target")
    return target, llama(seed=5, eos=(1, 7), like=target, noise=0.15, name="drafter")


def run(pair, methods, prompts=PROMPTS, **rest):
    rest = {"max_new_tokens": LENGTH, "sampled": 0, "laws": False} | rest
    return audit.run(pair[0], pair[1], prompts, methods, **rest)


def test_what_is_right_holds(pair):
    steps = []
    methods = [
        "autoregressive",
        "speculative",
        "speculative:draft_length=1",
        "bild:rollback=0,cap=3,review_end=true",
        "cm_asd:tau_base=0,gamma=0,top_beta=1",
        "cm_asd:top_beta=1,gap=as_described,controller=early_stop,alpha=0.7",
        "specdec:tau_base=0",
        "oracle:least=1",
        SmallTree,
    ]
    result = run(pair, methods, sampled=3, progress=lambda *step: steps.append(step))
    assert result.holds, [str(difference) for _, difference in result.differences]
    assert [row.method for row in result.rows[:9]] == [
        "autoregressive", "speculative", "speculative (draft_length=1)",
        "bild (rollback=0, cap=3, review_end=True)", "cm_asd (tau_base=0, gamma=0, top_beta=1)",
        "cm_asd (alpha=0.7, top_beta=1, gap=as_described, controller=early_stop)", "specdec (tau_base=0)",
        "oracle (least=1)", "small-tree",
    ]  # fmt: skip
    # Only methods that are exact in sampling are sampled.
    sampled = [row for row in result.rows if row.sampling != "greedy"]
    assert [row.method for row in sampled] == [
        "autoregressive",
        "speculative",
        "speculative (draft_length=1)",
    ]
    assert all(row.equal == row.prompts == len(PROMPTS) for row in result.rows[:9])
    assert len({row.tokens for row in result.rows[:9]}) == 1
    assert steps[-1] == (len(PROMPTS) + 3, len(PROMPTS) + 3)
    assert [tuple(row) for row in result.table()] == [COLUMNS] * 12
    assert "every method holds" in result.summary
    assert "\n" not in result.summary
    assert str(result.bound) in result.summary
    read = json.loads(result.to_json())
    assert read["holds"] and read["rows"][0]["verdict"] == "holds"


def test_the_default_is_every_exact_method(pair):
    result = run(pair, None, PROMPTS[:1])
    assert [row.method for row in result.rows][:1] == ["autoregressive"]
    assert {
        "autoregressive", "speculative", "bild (rollback=0, cap=2, review_end=True)",
        "early_exit (rollback=0, cap=2, review_end=True)",
    } <= {row.method for row in result.rows}  # fmt: skip
    assert result.holds
    assert "1 thread: 1 prompt, 0 ties" in result.summary


GREEDY = {
    "sibling_in_the_mask": SmallTree,
    "wrong_depth": SmallTree,
    "trim_instead_of_gather": SmallTree,
    "stale_row": "speculative",
    "off_by_one_bonus": "speculative",
    "eos_in_mid_block": "speculative",
    "shifted_vocabulary": "autoregressive",
    "rollback_keeps_the_token": "bild:rollback=0,cap=3,review_end=true",
    "accepts_one_too_far": "cm_asd:top_beta=1",
    "token_from_the_wrong_row": "cm_asd:top_beta=1,adaptive_drafting=false",
    "turned_gap": "cm_asd:top_beta=1",
    "turned_threshold": "cm_asd:top_beta=1",
    "longer_window": "cm_asd:top_beta=1",
    "shorter_window": "cm_asd:top_beta=1,controller=early_stop",
}


@pytest.mark.parametrize("name", GREEDY)
def test_planted_bugs(pair, name):
    with getattr(planted, name)():
        result = run(pair, ["autoregressive", GREEDY[name]], PROMPTS[:6])
    row = result.rows[-1]
    assert row.bug > 0
    assert not row.holds
    assert not result.holds
    assert row.method in result.summary
    assert all(d.verdict == "bug" for d in row.differences)
    if name != "shifted_vocabulary":  # every method has this bug, so only the stock module contradicts it
        assert result.rows[0].holds


LAW = ["wrong_residual", "untempered_q"]


@pytest.mark.parametrize("name", LAW)
def test_planted_bugs_in_sampling(pair, name):
    tempered = partial(audit.law.check, settings=audit.law.SETTINGS[1:2], length=1)  # all settings take long
    with getattr(planted, name)(), patch.object(audit.law, "check", tempered):
        result = run(pair, ["speculative"], PROMPTS[:1], max_new_tokens=2, laws=True)
    assert not result.holds
    assert any(not each.holds and each.error > 1e-3 for each in result.laws)
    assert any(line["bug"] == 1 and line["sampling"].startswith("law") for line in result.table())
    assert "distribution" in result.summary


def test_sixteen_bugs_are_planted():
    assert len({*GREEDY, *LAW}) == 16


# -- bugs that only a pass or a record can show -------------------------------------------------------


def test_a_pass_that_is_off_is_a_bug_though_no_token_changed(pair):
    real = speculative.Speculative.verify

    def nudged(self, draft, scores):
        scores += 0.01  # the same for all tokens: no argmax changes
        return real(self, draft, scores)

    with patch.object(speculative.Speculative, "verify", nudged):
        result = run(pair, ["speculative"], PROMPTS[:3])
    assert result.rows[0].bug == 3
    assert "though no token changed" in str(result.rows[0].differences[0])


@pytest.mark.parametrize("column", ["out_p", "node_p", "pred_top_p"])
def test_a_wrong_record_is_a_bug(pair, column):
    real = reduce.Batch.columns

    def wrong(batch):
        found = real(batch)
        values, count = found[column]
        return found | {column: (values * np.float32(0.9), count)}

    with patch.object(reduce.Batch, "columns", wrong):
        result = run(pair, ["speculative"], PROMPTS[:3])
    assert result.rows[0].bug == 3
    assert "recorded" in str(result.rows[0].differences[0])


@pytest.mark.parametrize("column", ["out_p", "node_p", "pred_top_p"])
def test_a_wrong_record_is_a_bug_of_its_own_text(pair, column):
    """The tables of all texts are read at once, and each is compared with its own part."""
    real, reads = reduce.Batch.columns, []

    def wrong(batch):
        columns = real(batch)
        values, count = columns[column]
        second = np.repeat(np.array(columns["prompt"]) == 1, np.maximum(count, 0))
        return columns | {column: (np.where(second, values * np.float32(0.9), values), count)}

    def tops(trace, group, real=Trace.tops):
        reads.append(group)
        return real(trace, group)

    with patch.object(reduce.Batch, "columns", wrong), patch.object(Trace, "tops", tops):
        result = run(pair, ["speculative"], PROMPTS[:3])
    assert [difference.prompt for difference in result.rows[0].differences] == [1]
    assert "recorded" in str(result.rows[0].differences[0])
    assert len(reads) == 2  # for the decisions and for the probabilities, whatever the number of texts


def test_a_decision_that_the_record_does_not_repeat_is_a_bug(pair):
    with patch.object(speculative, "accepts", lambda p, q, u: u * q.to(u.dtype) < 0.5 * p.to(u.dtype)):
        result = run(pair, ["speculative"], PROMPTS[:3], sampled=3)
    row = result.rows[-1]
    assert row.bug
    assert "recorded decisions" in str(row.differences[0])


def test_a_method_that_raises_is_a_bug_and_the_audit_goes_on(pair):
    class Breaks(Autoregressive):
        name = "breaks"

        def draft(self, left):
            if self.session.prompt == PROMPTS[1] and left < 20:
                raise RuntimeError("broken\nhere")
            return super().draft(left)

    result = run(pair, ["autoregressive", Breaks], PROMPTS[:3])
    row = result.rows[1]
    assert (row.prompts, row.equal, row.bug) == (3, 2, 1)
    assert "RuntimeError: broken here" in str(row.differences[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tokens: tokens[:1] + tokens, "where the autoregressive text has"),  # a duplicate
        (lambda tokens: tokens[1:], "where the autoregressive text has"),  # a token dropped
    ],
)
def test_duplicated_and_dropped_tokens(pair, change, words):
    class Changed(Autoregressive):
        name = "changed"

        def verify(self, draft, scores):
            verdict = super().verify(draft, scores)
            self.count = getattr(self, "count", 0) + 1
            if self.count == 5:
                # The text gets a token that the cache does not, or the other way round.
                return Verdict([], [], int(scores[0].argsort()[-2]), "plain", [])
            return verdict

    row = run(pair, ["autoregressive", Changed], PROMPTS[:1]).rows[1]
    assert row.bug == 1
    assert words in str(row.differences[0])


# -- ties, noise, and the rule -----------------------------------------------------------------------


def twins(distance, eos=(1,)):
    """A target in which token 40 has the logit of token 41, up to a relative `distance`."""
    target = llama(seed=0, eos=eos, name="twins")
    with torch.no_grad():
        head = target.net.lm_head.weight
        head[40] = head[41] * (1 + distance)
        head[40:42] *= 3  # so that they often lead
    return type(target)(target.net, name="twins")


class Flips(Autoregressive):
    """Take the other twin wherever the two lead, from logits that carry an added error."""

    name = "flips"
    error = 0.0

    def verify(self, draft, scores):
        best, second = scores[0].topk(2).indices.tolist()
        if {best, second} == {40, 41}:
            scores[0, second] = scores[0, best] + self.error
            return Verdict([], [], second, "plain", [])
        return super().verify(draft, scores)


def flipped(distance, error=0.0):
    target = twins(distance)
    Flips.error = error
    row = run((target, target), ["autoregressive", Flips], PROMPTS).rows[1]
    verdicts = [d for d in row.differences if {d.expected, d.actual} == {40, 41}]
    assert verdicts
    return row, verdicts


def test_a_tie():
    row, found = flipped(0.0)
    assert {d.verdict for d in found} == {"tie"}
    assert (row.bug, row.noise) == (0, 0)
    assert row.tie
    assert not row.holds  # in more than 1 % of the prompts


def test_kernel_noise():
    row, found = flipped(1e-6)
    assert "noise" in {d.verdict for d in found}
    assert row.bug == 0
    noise = next(d for d in found if d.verdict == "noise")
    assert noise.gap_double > 1e-6
    assert abs(noise.gap) <= row.bound
    assert noise.gap_alone is not None
    assert f"{row.bound:.1e}" in noise.reason


def test_a_gap_beyond_the_bound_is_a_bug():
    row, _ = flipped(0.01)
    assert row.bug
    row, _ = flipped(1e-6, error=0.01)  # the gap is small in float64, but not in the pass that decided
    assert row.bug


def test_the_one_rule():
    def holds(prompts, tie=0, noise=0, bug=0):
        equal = prompts - tie - noise - bug
        return Row("m", "", "greedy", 1e-4, prompts, 0, equal, tie, noise, 0, bug).holds

    assert holds(300, tie=2, noise=1)
    assert not holds(300, tie=2, noise=2)
    assert not holds(300, bug=1)
    assert not holds(99, tie=1)
    assert not holds(0)


# -- the reference -----------------------------------------------------------------------------------


class Narrow(TorchDispatchMode):
    """Record operations that return float32."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(torch.is_tensor(each) and each.dtype == torch.float32 for each in tree_leaves(result)):
            self.seen.append(str(func))
        return result


def test_float64_is_float64_throughout(pair):
    reference = Reference(pair[0])
    text = list(range(2, 40))
    reference.double(text[:1], text[1:])  # builds the float64 model
    with Narrow() as narrow:
        exact = reference.double(text[:1], text[1:])
    assert exact.dtype == torch.float64
    assert not narrow.seen
    assert (exact[:9] - reference.double(text[:1], text[1:10])).abs().max() < 1e-12
    assert 1e-8 < (reference.rows(text[:1], text[1:]).double() - exact).abs().max() < 1e-3
    with patch.object(audit.reference, "Wide", nullcontext), Narrow() as narrow:
        reference.double(text[:1], text[1:])
    assert narrow.seen  # otherwise the norms, among others, would have rounded


def test_a_model_of_experts_has_a_reference():
    """transformers runs experts by grouped products, which have no float64 version."""
    config = MixtralConfig(
        vocab_size=48, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    net = MixtralForCausalLM(config).eval()
    reference = Reference(SimpleNamespace(net=net, layers=1, name="experts"))
    before = net.config._experts_implementation
    text = list(range(2, 20))
    exact = reference.double(text[:1], text[1:])
    assert exact.dtype == torch.float64
    assert 1e-9 < (reference.rows(text[:1], text[1:]).double() - exact).abs().max() < 1e-4
    assert net.config._experts_implementation == before  # only the copy is changed


def test_the_bound_has_limits(pair):
    reference = Reference(pair[0])
    real = reference.double
    text = ([2, 3], list(range(4, 24)))
    fair = reference.bound([text])
    assert fair.low <= fair.value <= fair.high
    assert fair.value == pytest.approx(8 * fair.measured) or fair.value == fair.low
    reference.double = lambda *a: real(*a) + 5.0  # as if every one of our float32 logits were wrong
    assert reference.bound([text]).value == pytest.approx(reference.bound([text]).high)
    assert "lowered to its limit" in str(reference.bound([text]))
    assert reference.bound([text]).high < 0.1


def test_half_precision_has_a_wider_bound():
    target = llama(seed=0, name="half")
    half = type(target)(target.net.to(torch.bfloat16), name="half")
    result = run((half, half), ["autoregressive"], PROMPTS[:2], max_new_tokens=8)
    assert result.dtype == "bfloat16"
    assert result.bound.value > 1e-2


# -- arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (["bild"], "lossy by design"),
        (["bild:rollback=0"], "what makes it exact: bild:rollback=0.0,cap=2,review_end=true"),
        (["bild:rolback=0"], "did you mean rollback"),
        (["speculative:draft_length=many"], "cannot be 'many'"),
        (["speculative:draft_length"], "name=value"),
        (["bild:rollback=0,rollback=1"], "sets rollback twice"),
        (["speculativ"], "did you mean speculative"),
    ],
)
def test_bad_methods(pair, methods, words):
    with pytest.raises(ParameterError, match=words):
        run(pair, methods)


def test_bad_prompts_drafts_and_models(pair):
    with pytest.raises(ParameterError, match="at least one prompt"):
        run(pair, None, [])
    with pytest.raises(ParameterError, match="drafts="):
        audit.run(pair[0], None, PROMPTS, ["speculative"])
    with pytest.raises(ModelError, match="only the first layers"):
        run((pair[0].first(1), pair[1]), ["autoregressive"])


CLOSE = 15, 61, 71, 82, 89  # prompts of `audit` on which two tokens of `town` nearly tie in bfloat16


@pytest.fixture(scope="module")
def invariant_town():
    try:
        return specviz.load("town", dtype="bfloat16", invariant=True)
    except ModelError as why:
        pytest.skip(str(why))


def test_a_target_in_packed_matrices_is_audited(pair):
    if kernels.ONEDNN not in kernels.candidates(torch.device("cpu"), torch.float32):
        pytest.skip("oneDNN's layout does not serve this processor")
    target = Model(pair[0].net, name="target", kernels=kernels.ONEDNN)
    result = run((target, pair[1]), ["speculative", "prompt_lookup"], PROMPTS[:2], max_new_tokens=8)
    assert result.holds and result.kernels == "onednn" and result.rows[0].tokens > 8


@pytest.mark.parametrize("layout", ["int8", "int4", "w8a8"])
def test_a_target_that_rounds_to_integers_is_refused(layout, monkeypatch):
    target = llama(seed=0, name="target")
    monkeypatch.setattr(target, "kernels", layout)
    with pytest.raises(ModelError, match=f"kernels='{layout}' rounds target to integers, .*kernels='plain'$"):
        audit.run(target, [[1, 2]], "autoregressive", max_new_tokens=2, laws=False)


def test_on_an_invariant_model_a_method_is_compared_with_its_own_text(invariant_town):
    """In bfloat16 the stock module rounds differently, which is not the method's fault."""
    prompts = [frozen("audit")[number]["messages"] for number in CLOSE]
    result = run((invariant_town, []), ["autoregressive", "unispec"], prompts, max_new_tokens=16, sampled=0)
    own, drafted = result.rows
    assert drafted.equal == drafted.prompts == len(CLOSE) and not drafted.differences
    assert own.spared == len(CLOSE) and drafted.spared == 0 and result.holds
    assert own.bug == 0 and own.equal + own.tie + own.noise + own.reference_noise == len(CLOSE)


def test_on_an_invariant_model_no_rounding_explains_another_token(invariant_town):
    class Wrong(Autoregressive):
        """Write the second most likely token where it is nearly as likely as the first."""

        def verify(self, draft, scores):
            verdict = super().verify(draft, scores)
            best = scores[0].topk(2)
            if float(best.values[0] - best.values[1]) < 0.1:
                verdict.token = int(next(i for i in best.indices.tolist() if i != verdict.token))
            return verdict

    prompts = [frozen("audit")[number]["messages"] for number in CLOSE]
    result = run((invariant_town, []), [Wrong], prompts, max_new_tokens=16, sampled=0)
    found = [difference for _, difference in result.differences]
    assert found and {each.verdict for each in found} == {"bug"} and not result.holds
    ids, reference = invariant_town.encode(prompts[0]), reference_of(invariant_town)
    bound = _measure(invariant_town, reference, [ids], 16)
    rows = _Rows(invariant_town, reference, Decoding(Sampling(), 16, bound.value))
    cycles = [
        list(decode(invariant_town, ids, kind(), max_new_tokens=16)) for kind in (Wrong, Autoregressive)
    ]
    assert [each.verdict for each in rows.compare(0, ids, *cycles, True)] == ["bug"], "in a batch, too"
    ordinary = specviz.load("town", dtype="bfloat16", invariant=False)
    result = run((ordinary, []), [Wrong], prompts, max_new_tokens=16, sampled=0)
    assert "noise" in {difference.verdict for _, difference in result.differences}


def test_a_row_that_decides_otherwise_from_equal_logits_is_a_bug(pair):
    reference = reference_of(pair[0])
    rows = _Rows(pair[0], reference, Decoding(Sampling(1.0), 8, 1e-4))
    alone = list(decode(pair[0], PROMPTS[0], Autoregressive(), sampling=Sampling(1.0), max_new_tokens=8))
    other = [*alone[:-1], replace(alone[-1], tokens=[(alone[-1].tokens[0] + 1) % 40])]
    (found,) = rows.compare(0, PROMPTS[0], other, alone, False)
    assert found.verdict == "bug" and "all logits are equal to the bit" in found.reason
    (found,) = rows.compare(0, PROMPTS[0], other, alone, False, True)
    assert found.verdict == "noise"  # the model that drafts may have rounded


def test_sampled_rows_of_an_invariant_model_are_compared_bit_for_bit(pair):
    reference = reference_of(pair[0])
    rows = _Rows(pair[0], reference, Decoding(Sampling(1.0), 8, 1e-4))
    alone = list(decode(pair[0], PROMPTS[0], Autoregressive(), sampling=Sampling(1.0), max_new_tokens=8))
    off = [*alone[:-1], replace(alone[-1], scores=[row + 1e-5 for row in alone[-1].scores])]
    rows.invariant = False
    assert rows.compare(0, PROMPTS[0], off, alone, False) == []  # within the bound
    rows.invariant = True
    assert [each.verdict for each in rows.compare(0, PROMPTS[0], off, alone, False)] == ["bug"]


def test_the_share_of_texts_that_differ_is_printed(pair):
    result = run(pair, ["autoregressive"], PROMPTS[:1], max_new_tokens=2, threads=1)
    rows = [
        Row("a", "", "greedy", 1e-4, 8, 80, equal=5, tie=2, noise=1),
        Row("b", "", "temperature 1", 1e-4, 8),
    ]
    ordinary = replace(result, rows=rows, invariant=False)
    assert ordinary.parted == (3, 8) and "3 of 8 greedy texts differ (37.5%)" in ordinary.summary
    assert json.loads(ordinary.to_json())["parted"] == [3, 8]
    assert "differ" not in replace(ordinary, invariant=True).summary  # bits were compared


def test_threads_are_given_back(pair):
    before = torch.get_num_threads()
    result = run(pair, ["autoregressive"], PROMPTS[:1], max_new_tokens=2, threads=1)
    assert result.threads == 1
    assert torch.get_num_threads() == before


def test_laws_that_hold_are_one_row_a_method_and_a_breach_stands_apart():
    result = AuditResult(
        model="m", device="cpu", dtype="float32", threads=1, max_new_tokens=4, bound=1e-4, rows=[],
        laws=[
            LawResult("a", "temperature 1", 1e-17, 1e-9, 9), LawResult("a", "top-k 2", 3e-16, 1e-9, 9),
            LawResult("a", "top-p 0.9", 0.02, 1e-9, 9), LawResult("b", "temperature 1", 2e-17, 1e-9, 9),
        ],
        drawn=[
            Drawn("a", "d", "temperature 1", 0, ChiSquare(1.0, 3, 0.4, 120, 4)),
            Drawn("a", "d", "temperature 1", 1, ChiSquare(9.0, 3, 0.03, 120, 4)),
        ],
    )  # fmt: skip
    lines = [(line["method"], line["sampling"], line["bug"], line["verdict"]) for line in result.table()]
    assert lines == [
        ("a", "law, 2 settings: off by at most 3e-16", 0, "holds"),
        ("a", "law, top-p 0.9: off by 2e-02", 1, "does not hold"),
        ("b", "law, temperature 1: off by 2e-17", 0, "holds"),
        ("a", "chi-square, 2 settings: 120 draws, least p = 0.03", 0, "holds"),
    ]


def test_what_is_printed_is_visible_and_in_number(capsys):
    odd = Difference(0, 1, "bug", "a token\x1b[31m")
    result = AuditResult(
        model="m\x1b", device="cpu", dtype="float32", threads=1, max_new_tokens=4, bound=1e-4,
        rows=[Row("unispec", "", "greedy", 1e-4, 1, 4, tie=1, bug=1, differences=[odd] * 41)],
        laws=[], drawn=[], left_out={"calm": "needs\x1b early exits"},
    )  # fmt: skip
    _print_result(result)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "calm (needs⟨U+001B⟩ early exits)" in out
    assert "unispec, greedy: prompt 0, token 1: bug: a token⟨U+001B⟩[31m\n" in out
    assert "the result has 1 more difference (--json)\n" in out
    assert "1 prompt, 1 tie, 0 kernel noise, 0 reference noise, 1 bug, 1 of 1 greedy text differs" in out


@pytest.mark.parametrize("tied", [True, False])
def test_the_model_is_widened_without_a_second_copy_where_it_is(monkeypatch, tied):
    """A GPU may have no room for one."""
    target = llama(seed=0)
    if tied:
        target.net.lm_head.weight = target.net.model.embed_tokens.weight
    target.net.register_buffer("places", torch.arange(3))
    real = torch.nn.Parameter.__deepcopy__
    copied = []
    monkeypatch.setattr(torch.nn.Parameter, "__deepcopy__", lambda *given: copied.append(1) or real(*given))
    wide = reference_of(target).wide_net
    assert not copied
    assert {each.dtype for each in wide.parameters()} == {torch.float64}
    assert {each.dtype for each in target.net.parameters()} == {torch.float32}
    assert wide.places.dtype == torch.int64 and wide.model.rotary_emb.inv_freq.dtype == torch.float64
    assert (wide.lm_head.weight is wide.model.embed_tokens.weight) == tied
    for one, other in zip(wide.parameters(), target.net.parameters(), strict=True):
        assert torch.equal(one, other.double()) and one.data_ptr() != other.data_ptr()
