"""`check.method` on third-party methods: sound ones pass, and each broken one fails in the right row."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the run extra")

import torch

import specviz as sv
from specviz.check import conformance
from specviz.check.conformance import CHECKS, Broken
from specviz.errors import ParameterError
from specviz.methods.sampling import ACCEPT, FINAL
from specviz.methods.tree import judge, judge_sampled


class LastWords(sv.Method):
    """Drafts the tokens that followed the last token's previous occurrence."""

    signals = (sv.Signal("age", "tokens", "How far back the copied token stands."),)

    def draft(self, left: int) -> sv.Draft:
        *before, last = self.session.text
        if last not in before or left < 2:
            return sv.Draft.empty()
        at = len(before) - before[::-1].index(last)
        tokens = self.session.text[at:][: min(4, left - 1)]
        age = np.full(len(tokens), len(before) - at + 1)
        return sv.Draft.chain(tokens, source="prompt", signals={"age": age})


class Believes(LastWords):
    """Accepts its first token, whatever the target says."""

    def guarantee(self, sampling: Any, dtype: str) -> str:
        return "exact up to ties" if sampling.greedy else "lossy"

    def verify(self, draft: sv.Draft, scores: Any) -> sv.Verdict:
        verdict = judge(draft, scores, self.session)[0]
        if not len(draft) or verdict.path:
            return verdict
        token = int(scores[1].argmax())
        status = ["accepted", *["unjudged"] * (len(draft) - 1)]
        return replace(verdict, path=[0], token=token, origin="bonus", status=status)


class GreedyOnly(LastWords):
    """Sound, and claims nothing about sampling."""

    guarantee = Believes.guarantee


class Misreports(LastWords):
    """Decides correctly, but records other probabilities."""

    guarantee = Believes.guarantee

    def verify(self, draft: sv.Draft, scores: Any) -> sv.Verdict:
        verdict = judge(draft, scores, self.session)[0]
        if len(draft):
            verdict.p = torch.full((len(draft),), 0.125)
        return verdict


class Biased(LastWords):
    """Draws its last token with biased uniforms, so its law is not the target's."""

    def guarantee(self, sampling: Any, dtype: str) -> str:
        return "exact up to ties" if sampling.greedy else "exact in law"

    def verify(self, draft: sv.Draft, scores: Any) -> sv.Verdict:
        session = self.session
        if session.sampling.greedy:
            return judge(draft, scores, session)[0]
        u, last = session.uniforms(ACCEPT, len(draft)), float(session.uniforms(FINAL, 1)[0])
        return judge_sampled(draft, scores, session.sampling, u, last * last)[0]


class Runs(LastWords):
    """Raises."""

    def draft(self, left: int) -> sv.Draft:
        raise ValueError("no\nidea")


class Silent(LastWords):
    """Declares a signal that it never emits."""

    signals = (*LastWords.signals, sv.Signal("weight", "", "Never given.", "cycle"))


class Rolls(sv.Method):
    """Drafts from its own random generator, which no seed controls."""

    chance = np.random.default_rng(0)

    def draft(self, left):
        return sv.Draft.chain(self.chance.choice(self.session.text, min(3, left - 1)))


class Fixed(sv.Method):
    """Drafts ids of the bundled vocabulary, whatever the target's is; its labels are wrong."""

    pseudocode = (("draft:whim", "x = 17"), ("commit", "text = text + accepted"))

    def draft(self, left):
        return sv.Draft.chain([17, 18, 19][: left - 1])


class Hoards(sv.Method):
    """Stores past tokens on the instance, and never resets them."""

    def __init__(self, **values):
        super().__init__(**values)
        self.after = {}

    def draft(self, left):
        tokens = [self.after[t] for t in self.session.text[-1:] if t in self.after][: left - 1]
        return sv.Draft.chain(tokens) if tokens else sv.Draft.empty()

    def learn(self, draft, result, verdict):
        self.after.update(zip(self.session.text, self.session.text[1:]))


PROMPTS = ["Can you tell me about the cook?", "The cook visited a doctor. The cook visited a"]


def report(method: type[sv.Method]) -> Any:
    return sv.check.method(method, prompts=PROMPTS)


class Corrupting(LastWords):
    """Correct until a drafted token is accepted."""

    name = "corrupting"

    def verify(self, draft, scores):
        verdict = super().verify(draft, scores)
        if verdict.path:
            verdict.token = 5
        return verdict


class Hopeless(sv.Method):
    """Drafts a token that the target never writes."""

    name = "hopeless"

    def draft(self, left):
        return sv.Draft.chain([3071]) if left > 1 else sv.Draft.empty()


def test_what_follows_an_accepted_token_is_checked_or_said_not_to_be():
    assert sv.check.method(Corrupting)["text"].state == "fail"
    result = sv.check.method(Hopeless)
    assert result["text"].state == "not tried" and "prompts=" in result["text"].detail
    assert result and result.headline.endswith("claims hold; not tried: text")


def test_a_sound_method_passes():
    result = report(LastWords)
    states = {row.check: row.state for row in result.rows}
    assert list(states) == list(CHECKS)
    assert states.pop("what-if") == "not claimed", "nobody can replay a stranger's method"
    assert set(states.values()) == {"pass"} and result, result
    assert result["trace"].detail.endswith("cycles survive Parquet; 1 signal")
    assert "tokens, greedy and sampled, are the target's own" in result["text"].detail
    text, html = repr(result), result._repr_html_()
    assert text.startswith("✓ last_words on town: all 7 claims hold") and len(text.splitlines()) == 9
    assert all(escape(row.detail) in html for row in result.rows) and "<script" not in html
    with pytest.raises(KeyError, match="available: decode, text"):
        result["texts"]


@pytest.mark.parametrize(
    ("method", "row", "words"),
    [
        (Believes, "text", "where the autoregressive text has"),  # and its record decides otherwise
        (Misreports, "record", "recorded probability"),
        (Biased, "sampling law", "probability is off by"),
        (Silent, "trace", "declares the signal 'weight' but never sets it"),
    ],
)
def test_a_broken_method_fails_in_its_row(method, row, words):
    result = report(method)
    failed = [each.check for each in result.rows if each.state == "fail"]
    assert failed == ["text", "record"] if method is Believes else failed == [row], result
    assert words in result[row].detail and not result
    assert "\n" not in result[row].detail and f"fails {', '.join(failed)}" in repr(result)


def test_a_method_that_raises_fails_in_every_row_it_reaches():
    result = report(Runs)
    assert result["decode"].detail == "it raised ValueError: no idea"
    assert {row.check for row in result.rows if row.state == "fail"} >= {"decode", "text", "sampling law"}


def test_chance_that_no_seed_repeats_is_named():
    result = report(Rolls)
    assert "draw from self.session.uniforms" in result["decode"].detail
    assert result["sampling law"].state == "not claimed" and not result


def test_memory_on_the_instance_is_named():
    result = report(Hoards)
    assert [row.check for row in result.rows if row.state == "fail"] == ["decode"], result
    assert "reset the state of the last prompt in start, or derive from" in result["decode"].detail


def test_ids_beyond_the_toy_vocabulary_have_no_law():
    result = report(Fixed)
    law = result["sampling law"]
    assert law.state == "not claimed" and "vocabulary of 3 tokens, but token 17 was drafted" in law.detail
    page = result["player"].detail
    assert "no draft here stopped for the label 'draft:whim'; it has no line for forward, verify" in page


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (
            "verfy:accepted",
            "label 'verfy' is not a phase of the loop: the phases are draft, forward, verify, commit",
        ),
        ("commit:bonsu", "label 'commit:bonsu' is never lit: 'bonsu' is not an origin, status or end"),
    ],
)
def test_labels_that_are_never_lit_are_named(label, words):
    trace = sv.generate("town", PROMPTS[0], LastWords, max_new_tokens=4)
    with pytest.raises(Broken, match=words):
        conformance._labels(((label, "a line"),), trace)


def test_labels_of_installed_methods_can_be_lit():
    trace = sv.generate("town", PROMPTS[0], LastWords, max_new_tokens=4)
    for name in sv.list_methods():
        conformance._labels(type(sv.method(name)).pseudocode, trace)


def test_installed_methods_are_checked_by_name_and_as_instances():
    result = report(sv.method("prompt_lookup", draft_length=3))
    assert result["what-if"].state == "pass", result
    assert result, result


def test_only_what_was_compared_is_claimed():
    """The text of a method that is lossy when sampling is compared greedily alone."""
    assert "tokens, greedy, are the target's own" in report(GreedyOnly)["text"].detail


def test_a_drafter_is_loaded_once(monkeypatch, capsys):
    from specviz.loop import drafters

    real, loads = drafters.load_if_needed, []
    monkeypatch.setattr(
        drafters, "load_if_needed", lambda model, *rest: (loads.append(model), real(model, *rest))[1]
    )
    assert report("speculative")
    assert [model for model in loads if isinstance(model, str)] == ["town", "town-draft"]
    assert capsys.readouterr().err.count("using town-draft") == 1
    with pytest.raises(ParameterError, match="blockwise needs heads on the target: pass draft="):
        report("blockwise")


def test_what_is_no_method_for_prompts_is_refused():
    with pytest.raises(ParameterError, match=r"use audit\.streams"):
        sv.check.method("retranslate")
    with pytest.raises(ParameterError, match="int is not a method"):
        sv.check.method(int)


def test_a_row_that_parts_at_a_near_tie_is_no_fault(monkeypatch):
    """Passes of two shapes round differently; the audit decides whether rounding explains the difference."""
    from specviz import audit

    prompts = ["Translate into German: Tom reads.", "Translate into German: Anna sleeps."]
    case = conformance.Case(LastWords, sv.load("town"), None, prompts)
    assert conformance._batch(case) == "2 prompts write the same text two at a time"
    real = conformance.Case.generate
    turned = type("Turned", (), {"texts": [case.trace.texts[0], "something else"]})
    monkeypatch.setattr(
        conformance.Case, "generate", lambda self, **o: turned if "batch" in o else real(self, **o)
    )
    words = "two at a time, 1 prompt of 2 part from the text alone, by rounding"
    assert conformance._batch(case) == words
    bug = type("Bug", (), {"holds": False})
    monkeypatch.setattr(audit, "batches", lambda *given, **more: bug)
    with pytest.raises(Broken, match="prompt 1 has a different text in a batch of 2 than alone"):
        conformance._batch(case)
