"""What-ifs of streams: every update that is called exact is what a rerun does, cycle for cycle."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tiny import TableModel

import specviz
from specviz import metrics
from specviz.errors import ParameterError, TraceError
from specviz.methods.retranslate import Retranslate
from specviz.replay import whatif
from specviz.streams import Stream, Update
from specviz.trace import validate

V = 6
COLUMNS = ["prompt", "update", "source", "arrival", "prompt_tokens", "reused", "drafted", "accepted",
           "unreviewed", "emitted", "cycles", "end", "ids", "shown", "shown_text"]  # fmt: skip


class Calm(TableModel):
    """A table in which the source moves the scores only a little: outputs agree from update to update."""

    def __init__(self, seed):
        super().__init__(V, seed=seed, eos=(1,), max_length=40)
        plain = lambda text: [ord(c) - ord("a") for c in text]
        self.text = SimpleNamespace(tokenizer=self, specials={}, begin=None, plain=plain)

    def logits(self, text):
        behind = text[text.index(V - 1) + 1 :] if V - 1 in text else text
        return super().logits(behind) + 0.4 * super().logits(text)


MODELS = [Calm(seed) for seed in range(4)]
SOURCES = st.lists(st.text("abcde", max_size=7), min_size=1, max_size=6)
BETA = st.sampled_from([0.0, 0.02, 0.1, 0.2, 0.3, 0.45, 0.5, 1.0])
VALUES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["ssbd", "ssbd", "ssbd", "rt", "cd"]),
        "beta": BETA,
        "k": st.integers(0, 3),
        "mask": st.sampled_from(["display", "draft"]),
    }
)


def run(model, sources, limit=10, record="judged", second_pass=False, **values):
    streams = [Stream([Update(s, float(i)) for i, s in enumerate(each)]) for each in sources]
    return specviz.generate(
        model, streams, "retranslate", template="a{source}f", max_new_tokens=limit, record=record,
        second_pass=second_pass, **values,
    )  # fmt: skip


def same(told, real):
    """A replayed trace is the first updates of each of the rerun's streams."""
    both = told.updates[COLUMNS].merge(real.updates[COLUMNS], on=["prompt", "update"], suffixes=("", "_real"))
    assert len(both) == len(told.updates)
    for name in COLUMNS[2:]:
        assert both[name].astype(str).tolist() == both[f"{name}_real"].astype(str).tolist(), name
    keys = ["prompt", "update", "cycle"]
    for table, columns in (
        ("nodes", ["node", "token", "status"]),
        ("outputs", ["position", "token", "origin"]),
        ("passes", ["model", "tokens"]),
    ):
        one, other = (getattr(trace, table)[[*keys, *columns]] for trace in (told, real))
        if table == "passes" and told.run["parameters"]["mode"] == "cd":  # of what it reads with the prompt
            one, other = one[one["cycle"] > 0].reset_index(drop=True), other[other["cycle"] > 0]
        kept = other.merge(told.updates[keys[:2]], on=keys[:2])
        pd.testing.assert_frame_equal(one, kept, check_dtype=False, check_categorical=False)


@settings(max_examples=40, deadline=None, phases=[Phase.generate])
@given(
    model=st.sampled_from(MODELS),
    sources=st.lists(SOURCES, min_size=1, max_size=2),
    own=VALUES,
    asked=VALUES,
    limit=st.integers(1, 12),
    record=st.sampled_from(["judged", "all"]),
    second_pass=st.booleans(),
)
def test_what_is_exact_is_what_a_rerun_does(model, sources, own, asked, limit, record, second_pass):
    trace = run(model, sources, limit, record, second_pass, **own)
    answer = whatif(trace).retranslate(tokenize="model", **asked)
    real = run(model, sources, limit, second_pass=second_pass, **asked)
    row = answer.table.iloc[0]
    if row["updates"]:
        told = answer.trace(0)
        validate(told)
        same(told, real)
        counted = metrics.by_stream(told, "model")
        for name in ("tokens", "erased", "accepted", "drafted", "emitted"):
            assert row[name] == counted[name].sum()
        assert row["target_passes"] == metrics.target_passes(told)
    whole = row["updates"] == row["of"]
    assert (row["badge"] == "exact") == whole == (len(answer.places) == 0)
    if whole:
        assert row["NE"] == pytest.approx(metrics.normalized_erasure(real, tokenize="model"), nan_ok=True)
        assert row["A/D"] == pytest.approx(metrics.acceptance_rate(real), nan_ok=True)
        assert row["A/O"] == pytest.approx(metrics.accepted_share(real), nan_ok=True)
    texts = real.updates.set_index(["prompt", "update"])["ids"]
    before = trace.updates.set_index(["prompt", "update"])["ids"]
    for place in answer.places.itertuples():
        if place.why == "the text parts here":  # and so it does
            assert texts[place.prompt, place.update] != before[place.prompt, place.update]
