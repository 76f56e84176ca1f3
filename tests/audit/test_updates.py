"""The audit of streams passes correct decoders, finds planted bugs, and checks equation 3's law."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest

from specviz import audit
from specviz.audit import updates as auditing
from specviz.errors import ParameterError
from specviz.loop import updates as loop
from specviz.methods import retranslate
from specviz.methods.retranslate import Retranslate
from specviz.methods.sampling import Sampling
from specviz.models import load
from specviz.streams import Stream, Update

# The source grows, shrinks, changes, stays the same, and starts anew.
SOURCES = [
    "Paul's brother does", "Paul's brother does not write the book", "Paul's brother",
    "Paul's brother does not read", "Paul's brother does not read", "The tall farmer visits the",
]  # fmt: skip
STREAMS = [Stream([Update(source) for source in SOURCES])]
SETTINGS = [f"retranslate:{how}" for how in ("mode=rt", "beta=0", "beta=0,second_pass=true")]
ONE = (Sampling(1.0),)


@pytest.fixture(scope="module")
def target():
    return load("town")


def run(target, methods=SETTINGS, streams=STREAMS, **rest):
    rest = {"max_new_tokens": 24, "laws": False, "sampled": 0, "threads": 1} | rest
    return audit.streams(target, streams, methods, **rest)


def accepted(target):
    """Count the draft tokens by status: planted bugs need both accepted and rejected ones."""
    from specviz import generate

    nodes = generate(target, STREAMS, Retranslate(beta=0.0), max_new_tokens=24).nodes
    return nodes["status"].value_counts().to_dict()


def test_right_decoders_hold(target):
    found = accepted(target)
    assert found["accepted"] > 9 and found["rejected"] > 2
    result = run(target, sampled=1)
    assert result.holds, result.differences
    assert [row.prompts for row in result.rows] == [6] * 6
    assert {row.equal for row in result.rows} == {6}
    assert len({row.tokens for row in result.rows[:3]}) == 1
    assert "6 updates" in result.summary


def test_laws():
    masked = {"beta": 0.2, "k": 1, "mask": "draft"}
    twice = {"beta": 0.3, "second_pass": True}
    for values in ({"beta": 0.0}, {"mode": "rt"}, {"beta": 0.3}, {"beta": 1.0}, twice, masked):
        (result,) = auditing.check(partial(Retranslate, **values), ONE)
        assert result.holds, result
        assert result.cells > 7


# -- planted bugs --------------------------------------------------------------------------------------


def bugs(target, how="beta=0", **rest):
    result = run(target, [f"retranslate:{how}"], **rest)
    assert not result.holds
    return [str(difference) for _, difference in result.differences if difference.verdict == "bug"]


def test_an_end_token_in_the_draft_is_found(target):
    def kept(self, previous):
        return list(previous)

    with patch.object(Retranslate, "_draft", kept):
        assert any("end token" in words for words in bugs(target))
        (law,) = auditing.check(partial(Retranslate, beta=0.3), ONE)
        assert not law.holds


def test_a_bias_at_zero_is_found(target):
    real = retranslate.keeps
    with patch.object(retranslate, "keeps", lambda scores, tokens, beta: real(scores, tokens, 0.4)):
        assert any("update" in words for words in bugs(target))
    with patch.object(retranslate, "biased", lambda p, beta: 0.9 * p + 0.1):
        (law,) = auditing.check(partial(Retranslate, beta=0.0), ONE)
        assert not law.holds


@pytest.mark.parametrize("by", [-1, 1])
def test_off_by_one_at_the_divergence_is_found(target, by):
    real = Retranslate.verify

    def verify(self, draft, scores):
        verdict = real(self, draft, scores)
        at = len(verdict.path) + by
        if len(draft) and 0 <= at < len(scores):
            verdict.token = int(scores[at].argmax())
        return verdict

    with patch.object(Retranslate, "verify", verify):
        assert bugs(target)
        law = auditing.check(partial(Retranslate, beta=0.3), ONE)[0]
        assert not law.holds


def test_a_stale_cache_is_found(target):
    """Rows after the shared part are kept when the source shrinks or changes."""

    def one_too_many(one, other, real=loop.common_prefix):
        return min(len(one), len(other), real(one, other) + 1)

    with patch.object(loop, "common_prefix", one_too_many):
        found = bugs(target)
    assert found
    where = {words.split(":")[0] for words in found}
    assert all("update" in each for each in where)
    with patch.object(loop, "common_prefix", lambda one, other: min(len(one), len(other)) - 1):
        assert bugs(target, "mode=rt")  # re-translation reads the cache too


def test_a_refused_token_that_is_drawn_again_is_found():
    real = Retranslate.start

    def start(self, session):
        real(self, session)
        type(self).refused = property(lambda self: None, lambda self, value: None)

    with patch.object(Retranslate, "start", start):
        try:
            (law,) = auditing.check(partial(Retranslate, beta=0.0, second_pass=True), ONE)
        finally:
            del Retranslate.refused
    assert not law.holds


def test_a_stream_that_raises_is_given_up(target):
    real = Retranslate.verify

    def verify(self, draft, scores):
        if len(draft) and len(self.session.prompt) < 14:
            raise RuntimeError("no more")
        return real(self, draft, scores)

    with patch.object(Retranslate, "verify", verify):
        result = run(target, SETTINGS[1:2], sampled=0)
    (row,) = result.rows
    assert row.bug >= 2 and row.prompts == 6
    assert any("no more" in str(d) for _, d in result.differences)
    assert any("was not reached" in str(d) for _, d in result.differences)


# -- what it compares with, and what it refuses --------------------------------------------------------


def test_a_gguf_file_is_audited_by_the_same_rule():
    pytest.importorskip("llama_cpp", reason="needs the llamacpp extra")
    model = load("gguf:town-translator")
    result = run(model, SETTINGS[:2])
    assert result.holds, result.differences
    assert [row.prompts for row in result.rows] == [6, 6]
    real = retranslate.keeps
    with patch.object(retranslate, "keeps", lambda scores, tokens, beta: real(scores, tokens, 0.4)):
        assert bugs(model)


def test_what_cannot_be_audited(target):
    with pytest.raises(ParameterError, match=r"audit.run"):
        run(target, ["autoregressive"])
    with pytest.raises(ParameterError, match=r"audit.streams"):
        audit.run(target, None, [[5, 6]], ["retranslate:beta=0"])
    with pytest.raises(ParameterError, match="lossy"):
        run(target, ["retranslate"])
    with pytest.raises(ParameterError, match="at least one"):
        audit.streams(target, [])


def test_a_model_without_the_marks_continues_the_bare_source(target):
    assert auditing.default(target)[0] == "retranslate:mode=rt"
    with patch.object(target.text, "specials", {}):
        assert auditing.default(target)[0] == "retranslate:mode=rt,template={source}"
