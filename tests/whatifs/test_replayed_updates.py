"""What-ifs of streams: every update marked exact is the rerun's, cycle for cycle."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from identities import validate
from tiny import TableModel

import specviz
from specviz import metrics
from specviz.errors import ParameterError, TraceError
from specviz.streams import Stream, Update
from specviz.whatifs import whatif
from specviz.whatifs.updates import PARTS

V = 6
COLUMNS = ["prompt", "update", "source", "arrival", "prompt_tokens", "reused", "drafted", "accepted",
           "unreviewed", "emitted", "cycles", "end", "ids", "shown", "shown_text"]  # fmt: skip


class Calm(TableModel):
    """A table whose scores depend little on the source: outputs agree from update to update."""

    def __init__(self, seed):
        super().__init__(V, seed=seed, eos=(1,), max_length=40)
        plain = lambda text: [ord(c) - ord("a") for c in text]
        self.text = SimpleNamespace(tokenizer=self, specials={}, begin=None, plain=plain, source=False)

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
    """Check that a replayed trace equals the first updates of each of the rerun's streams."""
    both = told.updates[COLUMNS].merge(real.updates[COLUMNS], on=["prompt", "update"], suffixes=("", "_real"))
    assert len(both) == len(told.updates)
    if both["reused"].isna().any():
        assert both["reused"].isna().all(), "one of the runs carries tokens"
        both["reused"] = both["reused_real"]
    for name in COLUMNS[2:]:
        assert both[name].astype(str).tolist() == both[f"{name}_real"].astype(str).tolist(), name
    keys = ["prompt", "update", "cycle"]
    for table, columns in (
        ("nodes", ["node", "token", "status"]),
        ("outputs", ["position", "token", "origin"]),
        ("passes", ["model", "tokens"]),
    ):
        one, other = (getattr(trace, table)[[*keys, *columns]] for trace in (told, real))
        if table == "passes" and told.run["parameters"]["mode"] == "cd":  # tokens read along with the prompt
            one, other = one[one["cycle"] > 0].reset_index(drop=True), other[other["cycle"] > 0]
        kept = other.merge(told.updates[keys[:2]], on=keys[:2])
        pd.testing.assert_frame_equal(one, kept, check_dtype=False, check_categorical=False)


@settings(max_examples=25, deadline=None, phases=[Phase.generate])
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
    for place in answer.places.itertuples():
        if place.why == PARTS:  # and that token does make the texts diverge
            said, says = (texts(each)[place.prompt, place.update] for each in (trace, real))
            assert says[: place.position] == said[: place.position]
            assert says[place.position] == place.token != said[place.position]


def texts(trace):
    """Each update's tokens, the end included."""
    return trace.outputs.groupby(["prompt", "update"])["token"].agg(list)


SOME = [["ab", "abc", "abcd", "abcdab", "abcdabc"], ["c", "cc", "ccd"]]


def test_a_display_hides_what_it_hides():
    for model in MODELS:
        trace = run(model, SOME, beta=0.2, k=1)
        answer = whatif(trace).retranslate(tokenize="model", k=range(5))
        assert answer.badge == "exact"
        assert answer.why == "no stream's text would diverge"
        for k in range(5):
            real = run(model, SOME, beta=0.2, k=k)
            assert answer.table["NE"][k] == metrics.normalized_erasure(real, tokenize="model")
            assert answer.trace(k=k).updates["shown"].tolist() == real.updates["shown"].tolist()
        assert answer.table["NE"].is_monotonic_decreasing
        assert answer.table["A/D"].nunique() == answer.table["target_passes"].nunique() == 1


def test_what_a_run_from_scratch_tells_of_verification():
    """The text of re-translation is that of β = 0, however it is drafted or masked."""
    for model in MODELS:
        answer = whatif(run(model, SOME, mode="rt")).retranslate(
            tokenize="model", mode="ssbd", beta=0, k=[0, 2], mask=["display", "draft"]
        )
        assert answer.badge == "exact"
        for i, row in enumerate(answer.table.itertuples()):
            real = run(model, SOME, beta=0.0, k=row.k, mask=row.mask)
            same(answer.trace(i), real)
        masked = answer.table.set_index(["k", "mask"])
        assert masked.loc[(2, "draft"), "A/O"] <= masked.loc[(2, "display"), "A/O"]
        assert masked.loc[(2, "draft"), "drafted"] < masked.loc[(2, "display"), "drafted"]


def test_the_bias_is_told_to_the_first_text_that_parts():
    told = of = parted = 0
    betas = [0.0, 0.1, 0.17, 0.23, 0.4, 0.6]
    for model in MODELS:
        answer = whatif(run(model, SOME, beta=0.2)).retranslate(tokenize="model", beta=betas)
        for i, beta in enumerate(betas):
            same(answer.trace(i), run(model, SOME, beta=beta))
        told, of = told + answer.table["updates"].sum(), of + answer.table["of"].sum()
        parted += (answer.places["why"] == PARTS).sum()
        assert (answer.places["why"] == PARTS).all()  # the verified tokens are enough to tell
    assert parted > len(MODELS)
    assert 0.3 < told / of < 1


def test_a_bias_of_one_half_keeps_every_token():
    """However sure the target is of another token, and whatever the record holds."""

    class Sure(Calm):
        def logits(self, text):
            return 100 * super().logits(text)

    for seed in range(4):
        trace = run(Sure(seed), SOME, beta=0.9)
        answer = whatif(trace).retranslate(tokenize="model", beta=[0.5, 0.6])
        assert answer.badge == "exact"
        same(answer.trace(0), run(Sure(seed), SOME, beta=0.5))


def test_what_the_record_leaves_open_is_said():
    """The target never verified the tokens after those carried over unreviewed."""
    trace = run(MODELS[0], SOME, mode="cd")
    answer = whatif(trace).retranslate(tokenize="model", mode="ssbd", beta=[0.0, 0.2, 1.0])
    assert answer.table["updates"].tolist() == [2, 2, 8]
    same(answer.trace(2), run(MODELS[0], SOME, beta=1.0))  # from β = 0.5 on every token stays
    assert set(answer.places["why"]) == {
        "the record does not hold the target's probability of this token here"
    }
    assert set(answer.places["update"]) == {1}


def test_a_run_that_was_cut_off_is_told_to_there():
    cycles = specviz.stream(
        MODELS[1], Stream([Update(s) for s in SOME[0]]), "retranslate", template="a{source}f", k=0
    )
    for cycle in cycles:
        if cycle.update == 2 and cycle.number == 1 and cycle.end is None:
            break
    cycles.close()
    answer = whatif(cycles.trace).retranslate(tokenize="model", k=2)
    assert cycles.trace.updates["shown"][1] > 0
    assert answer.table["updates"].tolist() == [2]
    assert answer.places["why"].tolist() == ["the run was stopped here"]
    assert answer.trace(0).updates["shown"].tolist() == [
        max(0, n - 2) for n in cycles.trace.updates["shown"][:2]
    ]


def test_ties_are_not_called_exact():
    class Even(Calm):
        def logits(self, text):
            found = super().logits(text)
            order = found.argsort()
            found[order[-2]] = found[order[-1]] - 1e-7  # the two best are almost equal
            return found

    trace = run(Even(0), SOME, beta=0.0)
    answer = whatif(trace).retranslate(tokenize="model", mode=["ssbd", "rt"])
    assert answer.table["updates"][0] == len(trace.updates)  # the run's own setting reproduces the run
    assert answer.table["updates"][1] < len(trace.updates)
    assert "two choices are closer here than the rounding error between passes of different shapes" in set(
        answer.places["why"]
    )


def test_it_says_what_it_can_and_cannot():
    trace = run(MODELS[0], SOME, beta=0.2)
    ask = whatif(trace)
    assert ask.can_answer("k")[0] == ask.can_answer("beta")[0] == "exact"
    assert "no text" in ask.can_answer("k")[1]
    assert ask.can_answer("second_pass")[0] == "needs a rerun"
    assert "What if, of run" in repr(ask) and "beta: exact" in repr(ask)
    assert ask.ask(beta=0.2).table["updates"].tolist() == [8]
    assert ask.speculative(draft_length=2).badge == "needs a rerun"
    row = ask.retranslate(tokenize="model", mask=["display", "draft"], k=2).row(mask="draft")
    assert row == 1
    for values, line in (
        ({"beta": 1.5}, r"beta must lie in \[0, 1\], got 1.5"),
        ({"k": -1}, "k must be at least 0, got -1"),
        ({"mask": "screen"}, "mask must be one of display, draft, got 'screen'"),
        ({"template": "town"}, "retranslate has no parameter 'template'"),
    ):
        with pytest.raises(ParameterError, match=line):
            ask.retranslate(**values)
    still = specviz.generate(TableModel(6, 1), [1, 2], "autoregressive", max_new_tokens=5)
    with pytest.raises(TraceError, match="this run of autoregressive did not arrive in updates"):
        whatif(still).retranslate(beta=0.1)


def test_on_the_bundled_model():
    words = [
        "A",
        "cook",
        "opened",
        "a",
        "letter",
        "on",
        "Friday",
        "and",
        "he",
        "worked",
        "at",
        "the",
        "station",
        ".",
    ]
    stream = Stream([Update(" ".join(words[:n])) for n in range(2, len(words) + 1, 3)])
    town = specviz.load("town")
    trace = specviz.generate(town, stream, "retranslate", beta=0.2, k=2)
    answer = whatif(trace).retranslate(beta=[0.0, 0.2, 0.6], mask=["display", "draft"])
    for i, row in enumerate(answer.table.itertuples()):
        real = specviz.generate(town, stream, "retranslate", beta=row.beta, k=2, mask=row.mask)
        assert row.updates
        same(answer.trace(i), real)
        if row.badge == "exact":
            assert metrics.normalized_erasure(real) == row.NE
    timed = whatif(trace).clock(answer)
    assert timed.badge in ("modelled", "needs a rerun")
    assert (timed.table["seconds"] > 0).all()


def test_where_the_last_update_is_not_known_nothing_is_last():
    cycles = specviz.stream(
        MODELS[1], Stream([Update(s) for s in SOME[0]]), "retranslate", template="a{source}f", k=0
    )
    for cycle in cycles:
        if cycle.update == 1 and cycle.end is not None:
            break
    cycles.close()
    shown = cycles.trace.updates["shown"]
    told = whatif(cycles.trace).retranslate(tokenize="model", k=[0, 1]).trace(k=1).updates["shown"]
    assert shown.min() > 0
    assert told.tolist() == (shown - 1).tolist()


def test_a_selected_stream_of_an_unfinished_run_was_finished(tmp_path):
    streams = [Stream([Update(s) for s in SOME[0]]) for _ in range(2)]
    cycles = specviz.stream(MODELS[1], streams, "retranslate", template="a{source}f", k=0)
    for cycle in cycles:
        if cycle.prompt == 1 and cycle.end is not None:
            break
    cycles.close()
    shown = cycles.trace.updates.query("prompt == 0")["shown"]
    part = cycles.trace.select(prompt=0)
    for trace in (cycles.trace, part, specviz.open(part.save(tmp_path / "part.parquet"))):
        told = whatif(trace).retranslate(tokenize="model", k=1).trace(0).updates.query("prompt == 0")["shown"]
        assert told.tolist() == [*(shown[:-1] - 1).clip(lower=0), shown.iloc[-1]]


def test_a_draft_is_cut_to_the_room_there_is():
    sources = [["ab", "abcde" * 6, "abcde" * 6 + "abc"]]  # room for 12, 8 and 5 tokens
    for model in MODELS:
        model.eos = ()
        trace = run(model, sources, limit=12, beta=0.9)
        answer = whatif(trace).retranslate(tokenize="model", beta=[0.6, 0.9], k=[0, 1], mask="draft")
        assert answer.table["updates"].tolist()[::2] == [3, 3]
        for i, row in enumerate(answer.table.itertuples()):
            same(answer.trace(i), run(model, sources, limit=12, beta=row.beta, k=row.k, mask="draft"))
        model.eos = (1,)
    assert trace.updates["drafted"].tolist() == [0, 8, 5]


def test_an_encoder_decoders_prefill_reads_its_prefix():
    stream = specviz.streams.fixed_lag("The cook went to the village. She was tired.", words=2)
    real = specviz.generate("town-t5", stream, "retranslate", target_language="German", max_new_tokens=24)
    own = whatif(real).retranslate().trace(0)
    first = [trace.passes.query("cycle == 0")["tokens"].tolist() for trace in (own, real)]
    assert first[0] == first[1]
