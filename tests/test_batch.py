"""Batched prompts: every row equals the result of its prompt alone."""

from __future__ import annotations

import html
from contextlib import contextmanager
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from identities import validate
from tiny import llama

import specviz
from specviz import audit, metrics
from specviz.draft import Draft
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.loop import batch as batched
from specviz.loop.batch import decode_batch
from specviz.loop.cycle import decode
from specviz.methods import find
from specviz.methods.sampling import Sampling, Uniforms
from specviz.models.context import Context, Store

LENGTHS = (3, 40, 1, 17, 70, 5)  # the fifth leaves room for few tokens
COLD = ("unispec", "lookahead", "token_recycling", "spectra")
METHODS = ("autoregressive", "speculative", "bild", "cm_asd", "specdec", "prompt_lookup", *COLD)


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    target = llama(seed=0, eos=(1, 7), max_length=80, name="target")
    # Its context is shorter: on the longest prompt it soon stops drafting.
    drafter = llama(seed=5, eos=(1, 7), max_length=74, like=target, noise=0.15, name="drafter")
    for model in (target, drafter):
        model.net.double()
    return target, drafter


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(8, 48, size=n).tolist() for n in LENGTHS]


def values(method):
    return {"keep": "prompt"} if method in COLD else {}


def together(pair, prompts, method, rows, **options):
    """The cycles of each prompt."""
    found = [[] for _ in prompts]
    with torch.inference_mode(False):
        for cycles in decode_batch(pair[0], prompts, method, rows=rows, drafter=pair[1], **options):
            for cycle in cycles:
                found[cycle.prompt].append(cycle)
    return found


def shape(cycles):
    """The decisions of a cycle, without its times."""
    return [
        (c.number, c.context, c.keep, c.tokens, c.origins, c.end, c.status, [(p[0], p[2]) for p in c.passes])
        for c in cycles
    ]


def check(pair, prompts, method, rows, **options):
    found = together(pair, prompts, method, rows, **options)
    for number, prompt in enumerate(prompts):
        alone = decode(pair[0], prompt, method.again(), prompt=number, drafter=pair[1], **options)
        assert shape(found[number]) == shape(alone), f"prompt {number}"


SETTINGS = [Sampling(), Sampling(1.0), Sampling(0.8, 10, 0.9)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [1, 3])
def test_every_row_is_its_single_run(pair, prompts, method, rows):
    kind = find(method)
    for sampling in SETTINGS if rows == 3 else SETTINGS[:1]:
        check(pair, prompts, kind(**values(method)), rows, sampling=sampling, max_new_tokens=14, seed=3)


def test_rows_that_all_begin_at_once(pair, prompts):
    check(pair, prompts, find("speculative")(draft_length=3), 8, max_new_tokens=30)


def test_a_drafter_that_asks_for_its_own_passes(pair, prompts):
    from audit.planted import SmallTree  # its draft is not a generator

    check(pair, prompts[:4], SmallTree(), 3, max_new_tokens=10)


def test_a_drafter_that_reads_other_tokens_than_the_prompt(pair, prompts):
    from audit.planted import SmallTree

    class ShortSighted(SmallTree):  # its drafter starts with the last two tokens
        def start(self, session):
            self.session = session
            room = session.limit + self.extra_cache_slots
            self.drafter = session.open(session.drafter, session.prompt[-2:], room, "draft")
            self.drafter.prefill()

    check(pair, prompts[:4], ShortSighted(), 3, max_new_tokens=10)


def test_the_record_of_a_batch(pair, prompts, tmp_path):
    target, drafter = pair
    options = {"draft": drafter, "max_new_tokens": 12, "record": "judged"}
    alone = specviz.generate(target, prompts, "speculative", **options)
    trace = specviz.generate(target, prompts, "speculative", batch=3, out=tmp_path / "b.parquet", **options)
    validate(trace)
    assert trace.texts == alone.texts
    assert trace.run["prompts"] == alone.run["prompts"]
    assert (trace.recheck()["agrees"]).all()
    for name in ("nodes", "outputs"):
        a, b = (getattr(t, name).drop(columns=["run", "row"]) for t in (trace, alone))
        for column in a:
            if a[column].dtype.kind == "f":
                np.testing.assert_allclose(a[column], b[column], atol=1e-6)
            else:
                assert a[column].astype(str).equals(b[column].astype(str)), column
    cycles, passes = trace.cycles, trace.passes
    assert cycles.groupby("prompt")["row"].nunique().eq(1).all()
    assert set(cycles["row"]) == {0, 1, 2}
    # Each row's own tokens in shared passes: those of the root and the nodes.
    steps = cycles[cycles["cycle"] > 0]
    fed = passes[(passes["model"] == "target") & (passes["cycle"] > 0)]
    assert fed["tokens"].tolist() == (1 + steps["sent"]).tolist()
    shared = fed.groupby("start")
    assert (shared.size() == shared["rows"].first()).all()
    assert metrics.target_passes(trace) == fed["start"].nunique() < metrics.target_passes(alone)
    # Cycles that ran in one batch start at the same time; the batch's time counts each moment once.
    assert steps.groupby("start")["duration"].nunique().eq(1).all()
    once = cycles.drop_duplicates("start")
    assert metrics.seconds(trace) == pytest.approx(once["duration"].sum())
    assert specviz.open(tmp_path / "b.parquet").texts == alone.texts
    one = trace.select(prompt=1)
    assert all(html.escape(text) in one._repr_html_() for text in one.outputs["text"])


def test_an_interruption_ends_every_row(pair, prompts, monkeypatch):
    target, drafter = pair
    monkeypatch.setattr("specviz.trace.recorder.BATCH", 2)
    run = specviz.stream(target, prompts[:3], draft=drafter, max_new_tokens=12, batch=3)
    for _ in range(9):
        cycle = next(run)
    run.close("interrupted")
    last = run.trace.cycles.groupby("prompt").last()
    assert len(last) == 3 and cycle.number == 2
    assert last["end"].isin(["interrupted", "eos"]).all() and (last["end"] == "interrupted").any()
    validate(run.trace)


def test_a_warm_memory_is_every_rows_own(pair, prompts):
    target, _ = pair
    method = find("unispec")(keep="prompt")
    method.prepare(target)
    warm = find("unispec")()
    specviz.generate(target, prompts[:2], warm, max_new_tokens=10)
    method.loaded = {name: array.copy() for name, array in warm.store.arrays().items()}
    check(pair, prompts, method, 3, max_new_tokens=8)
    assert (method.loaded["tokens"] == warm.store.arrays()["tokens"]).all()


# -- bugs that must be detected -----------------------------------------------------------------------


@contextmanager
def swapped_uniforms():
    """Rows draw each other's random numbers."""
    real = Uniforms.__init__
    with patch.object(
        Uniforms, "__init__", lambda self, seed, prompt=0, update=0: real(self, seed, prompt ^ 1)
    ):
        yield


@contextmanager
def forgotten_rewind():
    """The last row's drafter keeps rejected tokens."""
    real = Context.rewind

    def rewind(self, length, rows=None):
        if rows is None or rows[0] != self.rows - 1:
            real(self, length, rows)

    with patch.object(Context, "rewind", rewind):
        yield


@contextmanager
def wrong_row():
    """Tokens are committed to the neighbour's row."""
    real = Context.extend

    def extend(self, tokens, rows=None):
        shifted = None if rows is None or len(rows) < 2 else [*rows[1:], rows[0]]
        real(self, tokens, shifted or rows)

    with patch.object(Context, "extend", extend):
        yield


@contextmanager
def stale_padding():
    """Padding is written to slot 0 instead of the spare one."""
    real = Store.aim

    def aim(self, start, count, end, rows=None, slots=None, index=None):
        if index is not None:
            spare, size = self.data.shape[4] - 1, self.data.shape[4]
            index = torch.where(index % size == spare, index - spare, index)
        real(self, start, count, end, rows, slots, index)

    with patch.object(Store, "aim", aim):
        yield


@contextmanager
def unmoved_row():
    """When a row leaves, the last one takes its number but not its place in the storage."""
    real = Context.drop

    def drop(self, row):
        before = self.store.data[:, :, row].clone()
        real(self, row)
        self.store.data[:, :, row] = before

    with patch.object(Context, "drop", drop):
        yield


@pytest.mark.parametrize("bug", [swapped_uniforms, forgotten_rewind, wrong_row, stale_padding, unmoved_row])
def test_a_planted_bug_is_seen(pair, prompts, bug):
    sampling = Sampling(1.0) if bug is swapped_uniforms else Sampling()
    method, options = find("speculative")(), {"sampling": sampling, "max_new_tokens": 14}
    alone = [
        shape(decode(pair[0], prompt, method.again(), prompt=i, drafter=pair[1], **options))
        for i, prompt in enumerate(prompts)
    ]
    with bug():
        try:
            found = [shape(cycles) for cycles in together(pair, prompts, method, 3, **options)]
        except (specviz.SpecvizError, IndexError, RuntimeError):  # not the errors of a broken bug
            return
    assert found != alone


def test_a_row_cannot_be_rewound_beyond_its_end(pair, prompts):
    context = pair[0].open(prompts[:2], 8)
    shared = batched.Shared(context, "target", None, prompts[:2])
    shared.extend(0, np.array([9, 9]))
    held = shared.length(0)
    for _ in range(2):  # with tokens that are not written yet, and without
        with pytest.raises(ModelError, match=f"rewind of row 0 to {held + 1} tokens: it holds {held}"):
            shared.rewind(0, held + 1)
        shared.settle()
    shared.rewind(0, held - 1)
    assert shared.length(0) == held - 1


def test_the_audit_tells_a_sound_batch_from_a_broken_one(pair, prompts):
    target, drafter = pair
    given = {"max_new_tokens": 8, "sampled": 3, "batch": 3}
    result = audit.batches(target, drafter, prompts[:4], ["speculative", "bild"], **given)
    assert result.holds and [row.equal for row in result.rows] == [4, 4, 3, 3], result.summary
    with stale_padding():
        broken = audit.batches(target, drafter, prompts[:4], ["speculative"], **given)
    assert not broken.holds


# -- refused before any work -------------------------------------------------------------------------


def test_refusals(pair, prompts, monkeypatch):
    target, drafter = pair
    monkeypatch.setattr(type(target), "open", lambda *a: pytest.fail("something was opened"))

    def refused(error, match, given=prompts, method="speculative", **options):
        with pytest.raises(error, match=match) as caught:
            specviz.generate(target, given, method, draft=drafter, **({"batch": 3} | options))
        assert "\n" not in str(caught.value)

    refused(ParameterError, "batch must be a whole number of at least 1, got 0", batch=0)
    refused(PromptError, r"the prompt is empty \(prompt 2 of 3\)", given=[[3], [], [4]])
    refused(PromptError, r"prompt 2 of 2 has 80 tokens and leaves no room", given=[[3], [4] * 80])
    refused(ParameterError, "unispec learns from prompt to prompt .* keep='prompt'", method="unispec")
    refused(PromptError, "prompt 2 is a conversation", given=["a", {"turns": ["a", "b"]}])
    source = specviz.streams.fixed_lag("a b c")
    refused(ParameterError, "retranslate decodes streams", given=source, method="retranslate")


def test_rows_are_prefilled_one_by_one_where_lengths_differ_much(pair, prompts):
    found = together(pair, [prompts[4], prompts[0]], find("autoregressive")(), 2, max_new_tokens=2)
    assert [cycles[0].passes[0][1] for cycles in found] == [1, 1]
    found = together(pair, [prompts[0], prompts[5]], find("autoregressive")(), 2, max_new_tokens=2)
    assert [cycles[0].passes[0][1] for cycles in found] == [2, 2]
    assert batched.WASTE < 2


@pytest.mark.parametrize(("rows", "fed"), [((0, 2), [29, 23]), ((1, 2), [2 * 29]), ((0, 1, 3), [2 * 29, 20])])
def test_new_rows_feed_none_between_them_and_need_no_mask(pair, prompts, monkeypatch, rows, fed):
    texts, calls, call = prompts[: max(rows) + 1], [], Context._call
    new = prompts[1][:30], prompts[4][:24], prompts[4][:21]
    context = pair[0].open(texts, 40)
    context.prefill()
    shared = batched.Shared(context, "target", None, [])
    parts = [batched.Part(shared, Mock(place=row, passes=[])) for row in rows]
    monkeypatch.setattr(Context, "_call", lambda self, given: calls.append(given) or call(self, given))
    for part, tokens in zip(parts, new):
        texts[part.text.place] = tokens
        shared.place(part.text.place, tokens, 40)
        part.prefill()
    shared.prefill((1,))
    assert [each.ids.numel() for each in calls] == fed and all(each.mask is None for each in calls)
    alone = [pair[0].open([text], 40) for text in texts]
    for part in parts:
        alone[part.text.place].prefill(hidden=(1,))
        torch.testing.assert_close(part.text.session.states[1], alone[part.text.place].states[0][1])
    for one, two in zip(context.forward([Draft.empty()] * len(texts)).logits, alone):
        torch.testing.assert_close(one, two.forward(Draft.empty()).logits[0])


def test_a_backend_without_rows_is_refused_by_name(pair, prompts, monkeypatch):
    target, drafter = pair
    monkeypatch.setattr(drafter, "batches", False, raising=False)
    with pytest.raises(ModelError, match="drafter runs on a backend that decodes one prompt"):
        specviz.generate(target, prompts, "speculative", draft=drafter, batch=2)
    specviz.generate(target, prompts[:2], "autoregressive", max_new_tokens=2, batch=2)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_rows_of_encoder_decoders(name):
    from models.seq2seq import VOCABULARY, make

    from specviz.models.encoder_decoder import EncoderDecoder

    target, drafter = (EncoderDecoder(make(name, seed)) for seed in (0, 1))
    rng = np.random.default_rng(1)
    given = [rng.integers(3, VOCABULARY, size=n).tolist() for n in (4, 19, 2, 11, 7)]
    for method, sampling in (("autoregressive", Sampling()), ("speculative", Sampling(1.0))):
        for rows in (2, 3):
            check((target, drafter), given, find(method)(), rows, sampling=sampling, max_new_tokens=12)
    check((target, target.first(1)), given, find("speculative")(), 3, max_new_tokens=12)


def test_the_room_of_a_row_counts_what_is_written():
    from models.seq2seq import make

    from specviz.models.encoder_decoder import EncoderDecoder

    prompts = [[3, 4, 5], [6]]
    shared = batched.Shared(EncoderDecoder(make("t5")).open(prompts, 5), "target", None, prompts)
    first, second = (batched.Part(shared, Mock(place=row)) for row in (0, 1))
    second.extend([7, 8])  # queued
    assert (first.room, second.room) == (5, 3)
    second.reserve(3)
    assert (first.room, second.room) == (5, 3)
    first.reserve(9)
    assert first.room >= 9


def test_a_last_row_that_keeps_its_whole_draft_adds_nothing(pair, prompts):
    check(pair, prompts[:3], find("oracle")(least=0.0), 2, max_new_tokens=6)


def test_a_batch_is_exact_up_to_ties(pair, prompts):
    def label(**options):
        run = specviz.generate(pair[0], prompts[:2], "autoregressive", max_new_tokens=2, **options)
        return run.run["exactness"]

    assert [label(batch=rows) for rows in (1, 2)] == ["exact", "exact up to ties"]
    assert [label(batch=rows, temperature=0.7) for rows in (1, 2)] == ["exact", "exact in law"]
    # Rounding may change one row of a few; a second changed row is a bug.
    few = audit.Row("autoregressive", "", "T=1, 8 rows", 1e-4, prompts=20, equal=19, noise=1, spared=1)
    assert few.holds
    assert not audit.Row("autoregressive", "", "T=1", 1e-4, prompts=20, equal=19, noise=1).holds
    assert not audit.Row("autoregressive", "", "T=1", 1e-4, prompts=20, equal=18, noise=2, spared=1).holds
    assert not audit.Row("autoregressive", "", "T=1", 1e-4, prompts=20, equal=19, bug=1, spared=1).holds


def test_the_audit_of_batches_samples_what_samples(pair, prompts):
    given = {"batch": 2, "max_new_tokens": 6, "sampled": 2}
    result = audit.batches(*pair, prompts[:2], ["autoregressive", "cm_asd", "specdec"], **given)
    assert [(row.method, "T" in row.sampling or "temperature" in row.sampling) for row in result.rows][
        3:
    ] == [("autoregressive", True)]
    assert [row.method for row in result.rows] == ["autoregressive", "cm_asd", "specdec", "autoregressive"]
    assert all(row.spared == 1 for row in result.rows)
