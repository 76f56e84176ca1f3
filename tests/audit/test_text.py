"""Failures during the audit are bugs, reference noise is its own class, and laws are tested by drawing."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock, patch

import planted
import pytest
import torch
from tiny import llama

import specviz
from specviz import audit
from specviz import methods as catalogue
from specviz.audit import law, setup, text
from specviz.audit.reference import Reference
from specviz.audit.result import COLUMNS, Difference, Row
from specviz.methods import speculative
from specviz.methods.autoregressive import Autoregressive
from specviz.methods.base import Verdict
from specviz.methods.sampling import Sampling
from specviz.methods.speculative import Speculative
from specviz.methods.unispec import UniSpec
from specviz.models import load
from specviz.streams import fixed_lag

PROMPTS = [[first, 5, 9, first + 3] for first in range(2, 10)]


@pytest.fixture(scope="module")
def pair():
    target = llama(seed=0, eos=(1, 7), name="target")
    return target, llama(seed=5, eos=(1, 7), like=target, noise=0.15, name="drafter")


def run(pair, methods, prompts=PROMPTS, **rest):
    rest = {"max_new_tokens": 16, "sampled": 0, "laws": False} | rest
    return audit.run(pair[0], pair[1], prompts, methods, **rest)


def test_no_draft_leaves_out_the_default_methods_that_need_one(pair):
    found = audit.run(pair[0], [], PROMPTS[:1], max_new_tokens=2, sampled=0, laws=False)
    assert {"autoregressive", "prompt_lookup"} <= {row.method for row in found.rows}
    assert not any(row.method.startswith(("speculative", "bild")) for row in found.rows)
    with pytest.raises(specviz.ParameterError, match="need at least one draft"):
        audit.run(pair[0], [], PROMPTS[:1], ["speculative"])


def test_the_reference_reads_a_text_once_for_all_methods(pair, monkeypatch):
    """Once to judge the text, and once for the recorded probabilities."""
    reads, plain = Counter(), Reference.rows

    def counted(self, prompt, read):
        reads[tuple(prompt), tuple(read)] += 1
        return plain(self, prompt, read)

    monkeypatch.setattr(Reference, "rows", counted)
    methods = ["prompt_lookup", "speculative", "token_recycling", "unispec"]
    found = run(pair, methods, PROMPTS[:3])
    assert all(row.holds and row.equal == 3 for row in found.rows) and len(found.rows) == len(methods)
    assert [reads[key] for key in reads if list(key[0]) in PROMPTS] == [2, 2, 2]


def test_a_place_in_float64_is_read_once_and_forgotten():
    made = text._Audit(
        None, SimpleNamespace(double=Mock(return_value=torch.eye(3))), text.Decoding(law.GREEDY, 4, 0.0)
    )
    for _ in range(2):
        assert made.exact([1], [2]).tolist() == [0, 0, 1]
    assert made.reference.double.call_count == 1 and made.exact([1], [2]).untyped_storage().nbytes() == 12
    made.forget()
    assert made.exact([1, 2], []).tolist() == [0, 0, 1] and made.reference.double.call_count == 2


@pytest.mark.parametrize("name", ["town", "town-t5"])
def test_a_pass_of_width_one_is_after_what_was_written(name):
    """Of an encoder-decoder, the width-1 pass follows the source and then the decoder's own text."""
    target = load(name)
    prompt = target.encode("Translate English to German: The baker sells bread.")
    trace = specviz.generate(target, [prompt], "autoregressive", max_new_tokens=6)
    written = trace.outputs["token"].tolist()
    audited = text._Audit(target, None, text.Decoding(law.GREEDY, 8, 0.0))
    assert [int(audited.single(prompt, written[:n]).argmax()) for n in range(len(written))] == written


# -- a loop or a pass that fails -----------------------------------------------------------------------


def no_text(*_args, **_rest):
    raise RuntimeError("no text\ntoday")


def test_without_an_autoregressive_text_nothing_holds(pair):
    with patch.object(text._Audit, "alone", no_text):
        row = run(pair, ["speculative"], PROMPTS[:2]).rows[0]
    assert (row.prompts, row.bug, row.equal, row.tie, row.noise) == (2, 2, 0, 0, 0)
    assert "RuntimeError: no text today" in str(row.differences[0])


def test_an_autoregressive_loop_that_raises_is_a_bug_of_all(pair):
    real = Autoregressive.verify

    def verify(self, draft, scores):
        if self.session.prompt == PROMPTS[1] and self.session.cycle == 3:
            raise RuntimeError("broken")
        return real(self, draft, scores)

    bound = audit.reference.Bound(1e-4, 1e-5, 1, 0.0, 1.0)  # measuring it would raise the same failure
    with (
        patch.object(text, "_measure", lambda *_: bound),
        patch.object(Autoregressive, "verify", verify),
    ):
        own, other = run(pair, ["autoregressive", "speculative"], PROMPTS[:3]).rows
    assert (own.bug, own.equal) == (other.bug, other.equal) == (1, 2)
    assert "autoregressive decoding raised RuntimeError: broken" in str(other.differences[0])


def twins(nearness):
    """A target in which tokens 40 and 41 often lead and differ by a relative `nearness` only."""
    target = llama(seed=0, eos=(1,), name="twins")
    with torch.no_grad():
        head = target.net.lm_head.weight
        head[40] = head[41] * (1 + nearness)
        head[40:42] *= 3
    return type(target)(target.net, name="twins")


class Second(Autoregressive):
    """Take the other twin wherever the two lead."""

    name = "second"

    def verify(self, draft, scores):
        best, second = scores[0].topk(2).indices.tolist()
        if {best, second} == {40, 41}:
            scores[0, second] = scores[0, best]
            return Verdict([], [], second, "plain", [])
        return super().verify(draft, scores)


@pytest.mark.parametrize("nearness", [0.0, 1e-6])  # otherwise a tie and noise
def test_a_pass_of_width_one_that_raises_makes_a_bug(nearness):
    target = twins(nearness)
    with patch.object(text._Audit, "single", no_text):
        row = run((target, target), ["autoregressive", Second]).rows[1]
    assert row.bug
    assert (row.tie, row.noise, row.reference_noise) == (0, 0, 0)
    assert "a pass of width 1 there raised RuntimeError: no text today" in str(row.differences[0])
    row = run((target, target), ["autoregressive", Second]).rows[1]
    assert row.bug == 0 and row.tie + row.noise + row.reference_noise


# -- reference noise -------------------------------------------------------------------------------------


def swapped(real):
    """The autoregressive verifier with a rounding error that swaps the twins, so float64 contradicts it."""

    def verify(self, draft, scores):
        best, second = scores[0].topk(2).indices.tolist()
        if {best, second} == {40, 41}:
            scores[0, second] = scores[0, best]
            return Verdict([], [], second, "plain", [])
        return real(self, draft, scores)

    return verify


def test_noise_of_the_autoregressive_row_is_seen_and_counted():
    target = twins(1e-6)
    with patch.object(Autoregressive, "verify", swapped(Autoregressive.verify)):
        result = run((target, target), ["autoregressive", "speculative"])
    row = result.rows[1]
    found = [d for d in row.differences if d.verdict == "reference noise"]
    assert found and row.reference_noise and row.bug == 0
    assert all(d.gap_double < -1e-6 for d in found)  # float64 sides with the method
    assert "that of the autoregressive text" in found[0].reason
    assert f"{row.bound:.1e}" in found[0].reason
    assert "reference noise" in str(found[0]) and "reference noise" in result.summary
    line = result.table()[1]
    assert line["reference noise"] == row.reference_noise
    assert not row.holds  # in more than 1 % of the prompts
    assert json.loads(result.to_json())["rows"][1]["reference_noise"] == row.reference_noise


def test_reference_noise_counts_towards_the_one_percent():
    def holds(noise, reference_noise):
        equal = 300 - noise - reference_noise
        return Row("m", "", "greedy", 1e-4, 300, 0, equal, 0, noise, reference_noise, 0).holds

    assert holds(1, 2) and holds(0, 3)
    assert not holds(1, 3)


@pytest.mark.parametrize(
    ("near", "verdict"), [(1.9, "noise"), (1.0, "bug")], ids=["within the bound", "beyond it"]
)
def test_float64_may_side_with_neither(near, verdict):
    """Three tokens nearly tie: the method takes one, the reference another, float64 the third."""
    read, other, exact = (torch.zeros(4) for _ in range(3))
    read[:3] = torch.tensor([2.0, 1.95, near])
    other[:3] = torch.tensor([1.95, 2.0, 1.9])
    exact[:3] = torch.tensor([1.9, 1.9, 2.0])
    reference = SimpleNamespace(bound_at=lambda ids: 0.2, exactly="in float64")
    target = SimpleNamespace(piece=lambda token: str(token).encode())
    judge = SimpleNamespace(
        exact=lambda *_: exact, single=lambda prompt, prefix: read, target=target, reference=reference
    )
    one = text.Text(0, [3], [0], [read])
    assert text._Audit.place(judge, one, 0, 1, other, "the stock module").verdict == verdict


# -- the law, drawn from the model -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def varied():
    """A pair whose first tokens vary at temperature 1."""
    target = llama(seed=0, vocabulary=16, eos=(1,), name="target")
    with torch.no_grad():
        target.net.lm_head.weight *= 0.6
    drafter = llama(seed=6, vocabulary=16, eos=(1,), name="drafter")
    return type(target)(target.net, name="target"), drafter


def drawn(pair, methods, **rest):
    rest = {"sampled": 1, "laws": True, "max_new_tokens": 4, "draws": 120} | rest
    with patch.object(law, "check", lambda make: []):  # the enumeration has its own tests
        return run(pair, methods, [[3, 4, 5]], **rest)


def test_the_audit_draws_from_the_model_too(varied):
    result = drawn(varied, ["speculative"])
    assert result.holds, result.summary
    (each,) = result.drawn
    assert (each.method, each.draft, each.prompt) == ("speculative", "drafter", 0)
    assert each.test.draws == 120 and each.test.cells > 4
    line = result.table()[-1]
    assert tuple(line) == COLUMNS
    assert line["sampling"].startswith("chi-square, temperature 1: 120 draws, p = ")
    assert json.loads(result.to_json())["drawn"][0]["verdict"] == "holds"
    with patch.object(speculative, "accepts", lambda p, q, u: u >= 0):  # the law is the drafter's
        broken = drawn(varied, ["speculative"])
    assert not broken.holds
    assert "chi-square" in broken.summary
    assert drawn(varied, ["speculative"], sampled=0).drawn == []


@pytest.mark.slow
def test_a_method_that_remembers_is_drawn_warm(varied):
    (each,) = drawn(varied, ["token_recycling"], draws=2000).drawn
    assert each.holds, str(each)
    with planted.undivided_siblings():
        (each,) = drawn(varied, ["token_recycling"], draws=2000).drawn
    assert not each.holds


def test_what_a_method_remembers_is_audited_with_it(varied):
    method = catalogue.make("unispec")
    specviz.generate(varied[0], [3, 4, 5], method, max_new_tokens=30)
    known = method.store.entries
    with patch.object(UniSpec, "prepare", autospec=True, side_effect=UniSpec.prepare) as prepare:
        result = run(varied, [method], [[3, 4, 5]], sampled=1, laws=True, max_new_tokens=4, draws=120)
    assert result.holds, result.summary
    assert prepare.call_args_list[0].args[0].store.entries >= known > 2
    assert method.store.entries == known  # the audit decodes with a copy


def test_progress_counts_the_tests_of_the_law(varied):
    steps = []
    methods = ["autoregressive", "speculative"]
    run(varied, methods, [[3, 4, 5]], sampled=1, laws=True, max_new_tokens=4, draws=120,
        progress=lambda *step: steps.append(step))  # fmt: skip
    assert steps == [(done, 4) for done in range(1, 5)]  # a greedy, a sampled prompt, and two tests


def test_a_method_that_raises_has_no_law(varied):
    class Breaks(Speculative):
        name = "breaks"

        def verify(self, draft, scores):
            if not self.session.sampling.greedy:
                raise RuntimeError("broken")
            return super().verify(draft, scores)

    result = run(varied, [Breaks], [[3, 4, 5]], sampled=1, laws=True, max_new_tokens=2, draws=120)
    assert not result.holds
    assert not result.laws[0].holds and "RuntimeError: broken" in result.laws[0].reason
    assert not result.drawn[0].holds and "RuntimeError: broken" in str(result.drawn[0])
    assert result.summary.count("RuntimeError: broken") == 2
    json.loads(result.to_json())


def test_a_law_without_variety_is_not_drawn(varied):
    target = varied[0]
    first = law.first_tokens(target, text.Reference(target), [3, 4, 5], 50, 2, Sampling(0.001))
    assert len(law.cells_of(first, 50)) == 1
    result = drawn(varied, ["speculative"], temperature=0.001)
    assert result.drawn == [] and "first tokens that vary" in result.left_out["chi-square"]


def test_prompts_may_be_one_text_or_hold_messages():
    model = load("town")
    chat = [{"role": "user", "content": "What does the baker do?"}]
    assert setup.encoded(model, "Hello") == setup.encoded(model, ["Hello"]) == [model.encode("Hello")]
    given = [{"messages": chat}, {"turns": [chat[0]["content"], "And then?"]}]
    assert setup.encoded(model, given) == [model.encode(chat)] * 2
    assert setup.encoded(model, given[0]) == [model.encode(chat)]


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0, "top_k": 5}, {"seed": -1}, {"max_new_tokens": 0}, {"sampled": -1}, {"top_p": 0.0}],
    ids=str,
)
def test_wrong_settings_are_the_callers_and_no_bug(pair, wrong):
    streams = [fixed_lag("one two three")]
    for call in (
        lambda: audit.run(*pair, PROMPTS[:1], ["autoregressive"], laws=False, **wrong),
        lambda: audit.batches(*pair, PROMPTS[:1], ["autoregressive"], **wrong),
        lambda: audit.streams("town", streams, ["retranslate:beta=0"], laws=False, **wrong),
    ):
        with pytest.raises(specviz.ParameterError):
            call()


def test_a_calibrated_size_is_refused_before_any_work(pair):
    for method in ("speculative:draft_length=calibrated", "unispec:draft_size=calibrated"):
        for call in (run, lambda pair, methods: audit.batches(*pair, PROMPTS[:1], methods)):
            with pytest.raises(specviz.ParameterError, match="an audit needs a fixed one"):
                call(pair, [method])


def test_only_a_method_that_takes_ties_may_part_from_an_invariant_text(monkeypatch):
    judge = object.__new__(text._Audit)
    judge.invariant = True
    one = text.Text(0, [1], [2], [None])
    for gap, takes_ties, verdict in ((0.0, True, "tie"), (0.0, False, "bug"), (0.125, True, "bug")):
        made = Difference(0, 0, "noise", "", gap=gap)
        monkeypatch.setattr(judge, "place", lambda *_, made=made: made, raising=False)
        assert judge.parted(one, 0, one, "the autoregressive text", takes_ties).verdict == verdict
