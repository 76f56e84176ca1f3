"""Shares with their denominators, ROUGE and the front of a sweep: counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

import traces
from specviz import metrics
from specviz.errors import TraceError


@pytest.mark.parametrize("seed", range(5))
def test_a_front_is_what_nobody_beats(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, (2, 40)).astype(float)  # ties in both
    x[3] = np.nan
    kept = metrics.front(x, y)
    for i in range(40):
        beats = (x >= x[i]) & (y >= y[i]) & ((x > x[i]) | (y > y[i]))
        assert kept[i] == (not beats.any() and i != 3)
    order = np.argsort(x[kept], kind="stable")
    assert (np.diff(y[kept][order]) <= 0).all(), "along the front more of one is less of the other"


def test_equal_ratios_have_no_interval():
    for above, below in ((np.full(7, 33.3), np.ones(7)), (np.full(7, 3), np.full(7, 2))):
        equal, other = metrics.pooled(above, below), metrics.pooled(above + np.arange(7) * 1e-6, below)
        assert np.isnan(equal.low) and other.low < other.median < other.high
        surer = metrics.pooled(above + np.arange(7) * 1e-6, below, 0.01)
        assert surer.low < other.low and other.high < surer.high


def test_the_denominators():
    trace = traces.build("bild", prompts=4, tokens=50, seed=1)
    cycles = trace.cycles[trace.cycles["cycle"] > 0]
    tokens, steps = int(trace.outputs["kept"].sum()), len(cycles)
    refused = cycles["rejected"].gt(0).sum()
    assert metrics.rollback_share(trace) == refused / tokens
    assert metrics.rollback_share(trace, "cycle") == refused / steps
    handed = cycles["stop"].isin(["fallback", "length"]).sum()
    assert metrics.fallback_share(trace, "cycle") == handed / steps
    assert metrics.fallback_share(trace) == handed / tokens
    for share in (metrics.fallback_share, metrics.rollback_share):
        with pytest.raises(TraceError, match="per must be one of token, cycle"):
            share(trace, "text")


def test_what_a_step_drafts_sends_and_costs():
    trace = traces.build("cm_asd", prompts=3, tokens=50, seed=1)
    cycles = trace.cycles[trace.cycles["cycle"] > 0]
    assert metrics.mean_drafted(trace) == 8 > metrics.mean_sent(trace) == cycles["sent"].mean()
    assert metrics.draft_time(trace) == pytest.approx(0.0005 * 8)
    assert metrics.mean_accepted(trace) == cycles["accepted"].mean()
    assert np.isnan(metrics.draft_time(traces.build("cm_asd", record=None)))


def test_who_wrote_the_text():
    trace = traces.build("bild", prompts=4, tokens=50, seed=1)
    own = trace.outputs["origin"].isin(["correction", "fallback", "plain", "bonus"]).sum()
    assert metrics.target_share(trace) == own / len(trace.outputs)
    assert metrics.target_share(trace) == pytest.approx(1 - metrics.accepted_share(trace))
    assert metrics.target_share(traces.build("autoregressive")) == 1


def said(*words: str, reference="the cat sat"):
    """A run with these texts."""
    from specviz.trace import Recorder

    pieces = [b"", b"", *(word.encode() for text in words for word in text.split(" "))]
    prompts = [{"tokens": [2, n], "reference": reference} for n in range(len(words))]
    about = traces.metadata("autoregressive", 0, len(words)) | {"prompts": prompts}
    recorder = Recorder(about, None, "judged", piece=lambda t: b" " + pieces[t])
    token = 2
    for number, text in enumerate(words):
        own = list(range(token, token + len(text.split(" "))))
        token += len(own)
        recorder.add({"prompt": number, "cycle": 0, "start": float(number), "duration": 0.25})
        at = {"start": number + 0.25, "duration": 0.25, "draft_time": 0.0}
        out = {"out_token": own, "out_position": list(range(len(own))), "out_origin": ["plain"] * len(own)}
        recorder.add({"prompt": number, "cycle": 1, "keep": 0, "end": "eos", **at, **out})
    return recorder.close()


def test_rouge_counts_words():
    pytest.importorskip("rouge_score")
    found = metrics.rouge(said("the cat", "the cat sat", "a dog"))
    # F of 2 of 2 and 2 of 3 is 0.8; its pairs: 1 of 1 and 1 of 2
    assert found["rouge1"].median == pytest.approx(100 * (0.8 + 1 + 0) / 3)
    assert found["rouge2"].median == pytest.approx(100 * (2 / 3 + 1 + 0) / 3)
    assert np.isnan(found["rougeL"].low) and found["texts"] == 3  # too few for an interval
    with pytest.raises(TraceError, match="reference"):
        metrics.rouge(said("the cat", reference=None))
