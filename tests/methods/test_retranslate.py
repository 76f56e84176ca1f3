"""Re-translation: without a bias its text is that of decoding from scratch; a bias keeps more drafts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identities import validate
from tiny import TableModel, llama

import specviz
from models import seq2seq
from specviz.errors import ParameterError, PromptError, TraceError
from specviz.loop import decode
from specviz.loop.updates import decode_stream
from specviz.methods.autoregressive import Autoregressive
from specviz.methods.retranslate import TEMPLATES, Retranslate, keeps
from specviz.models import load
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.template import Template
from specviz.streams import Stream, Update

V = 6
# The source grows, shrinks, changes, stays the same, and is empty.
SOURCES = st.lists(st.text("abcdef", max_size=8), min_size=1, max_size=6)


class Calm(TableModel):
    """A table in which the source changes the logits only a little, so outputs agree between updates."""

    def logits(self, text):
        behind = text[text.index(V - 1) + 1 :] if V - 1 in text else text
        return super().logits(behind) + 0.4 * super().logits(text)


def prompt(text):
    """Letters and a closing mark: as in a real prompt, what follows the source cannot be reused."""
    return [0, *(ord(c) - ord("a") for c in text if c != "f"), V - 1]


def outputs(target, sources, limit=12, eos=(1,), **values):
    """Return the tokens of each update, and the cycles."""
    target.eos = tuple(eos)
    cycles = list(
        decode_stream(
            target,
            Stream([Update(s) for s in sources]),
            Retranslate(**values),
            template=prompt,
            max_new_tokens=limit,
        )
    )
    found = [[] for _ in sources]
    for cycle in cycles:
        found[cycle.update] += cycle.tokens
    return found, cycles


@settings(max_examples=150, deadline=None)
@given(
    sources=SOURCES,
    limit=st.integers(1, 14),
    eos=st.sets(st.integers(0, V - 1), max_size=2),
    seed=st.integers(0, 5),
    k=st.integers(0, 3),
    mask=st.sampled_from(["display", "draft"]),
    second_pass=st.booleans(),
)
def test_without_a_bias_every_update_is_written_as_from_scratch(
    sources, limit, eos, seed, k, mask, second_pass
):
    target = Calm(V, seed=seed, max_length=64)
    alone = []
    for source in sources:
        cycles = decode(target, prompt(source), Autoregressive(), max_new_tokens=limit, eos=eos)
        alone.append([t for cycle in cycles for t in cycle.tokens])
    rest = {"limit": limit, "eos": eos, "k": k, "mask": mask}
    assert outputs(target, sources, mode="rt", **rest)[0] == alone
    assert outputs(target, sources, beta=0.0, second_pass=second_pass, **rest)[0] == alone


@settings(max_examples=100, deadline=None)
@given(sources=SOURCES, limit=st.integers(1, 14), seed=st.integers(0, 5), beta=st.floats(0.5, 1.0))
def test_from_a_half_on_nothing_is_refused_and_the_text_is_that_of_continuous_decoding(
    sources, limit, seed, beta
):
    target = Calm(V, seed=seed, max_length=64)
    kept, cycles = outputs(target, sources, limit, beta=beta)
    assert not any("rejected" in cycle.status for cycle in cycles)
    going_on, cycles = outputs(target, sources, limit, mode="cd")
    assert going_on == kept
    for before, after in pairwise(kept):
        bare = before[:-1] if before[-1] == 1 else before
        assert after[: len(bare)] == bare


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1000), n=st.integers(1, 5), beta=st.sampled_from([0.0, 0.05, 0.2, 0.4, 0.5, 0.9, 1.0])
)
def test_a_draft_token_survives_where_it_is_the_argmax_of_the_biased_distribution(seed, n, beta):
    rng = np.random.default_rng(seed)
    scores = torch.from_numpy(rng.normal(size=(n, 7)) * rng.choice([0.3, 2.0, 20.0]))
    tokens = torch.from_numpy(rng.integers(0, 7, n))
    p = scores.softmax(-1)
    biased = (1 - beta) * p
    biased[torch.arange(n), tokens] += beta  # equation 3
    own = biased.gather(1, tokens[:, None])[:, 0]
    # A tie goes to the draft: at β = 0.5, rounding makes one if the target is sure of another token.
    assert keeps(scores, tokens, beta).tolist() == (own >= biased.max(-1).values).tolist()
    if beta < 1:  # the same condition as a distance
        near = p.max(-1).values - p.gather(1, tokens[:, None])[:, 0] <= beta / (1 - beta)
        assert keeps(scores, tokens, beta).tolist() == near.tolist()


def test_a_tie_goes_to_what_is_written_from_scratch_or_to_the_draft():
    scores, token = torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([1])
    assert keeps(scores, token, 0.0).tolist() == [False]  # the argmax is the first of the two
    assert keeps(scores, token, 0.01).tolist() == [True]


def test_a_bias_keeps_more_than_none():
    targets = [Calm(V, seed=seed, max_length=64) for seed in range(12)]
    sources = ["abc", "abcd", "abcdea", "abcdeab"]

    def accepted(beta):
        cycles = [c for t in targets for c in outputs(t, sources, beta=beta)[1]]
        return sum(cycle.status.count("accepted") for cycle in cycles)

    assert accepted(0.0) < accepted(0.2) < accepted(0.5)


class Frozen(Retranslate):
    """Keep the end token in the draft, as walkthrough 09 shows."""

    def _draft(self, previous):
        return list(previous)


def test_a_draft_that_keeps_its_end_freezes_the_text():
    """From β = 0.5 on, a drafted end token is always accepted: the first finished text never changes."""
    sources = ["ab", "abc", "abcd", "abcde", "abcdea"]
    frozen = grown = 0
    for seed in range(20):
        target, texts = Calm(V, seed=seed, max_length=64), {}
        target.eos = (1,)
        for kind in (Frozen, Retranslate):
            stream = Stream([Update(source) for source in sources])
            texts[kind] = [[] for _ in sources]
            for cycle in decode_stream(target, stream, kind(beta=0.5), template=prompt, max_new_tokens=12):
                texts[kind][cycle.update] += cycle.tokens
        ended = next((i for i, text in enumerate(texts[Frozen]) if text[-1:] == [1]), None)
        if ended is not None and ended < len(sources) - 1:
            assert all(text == texts[Frozen][ended] for text in texts[Frozen][ended:])
            frozen += 1
            grown += texts[Retranslate][-1] != texts[Retranslate][ended]
    assert frozen > 3 and grown > 3, "the method itself goes on"


def test_the_end_is_no_part_of_the_draft():
    target = Calm(V, seed=3, max_length=64)
    for eos in range(V - 1):
        for mode in ("ssbd", "cd"):
            texts, cycles = outputs(target, ["abc", "abcd"], eos=(eos,), mode=mode, beta=1.0)
            drafted = [t for c in cycles if c.verdict is not None for t in c.verdict.tokens]
            assert eos not in drafted
            assert len(drafted) == len(texts[0]) - (texts[0][-1] == eos)


def test_a_draft_longer_than_the_limit_is_cut():
    target = Calm(V, seed=2, max_length=20)
    target.eos = ()
    sources = stream(["abc", "abcd", "abcdeabcdeabcd"])  # leaves room for 15, 14 and 4 tokens
    cycles = list(decode_stream(target, sources, Retranslate(beta=1.0), template=prompt, max_new_tokens=99))
    drafted = [len(cycle.verdict.tokens) for cycle in cycles if cycle.number == 1]
    assert drafted == [0, 14, 4]
    assert [cycle.draft.stop for cycle in cycles if cycle.number == 1] == ["none", "room", "room"]
    assert [cycle.end for cycle in cycles if cycle.end] == ["context"] * 3
    texts, _ = outputs(target, ["abc", "abcd"], limit=1, eos=(), beta=0.2)
    assert [len(text) for text in texts] == [1, 1]


def test_what_is_masked():
    target = Calm(V, seed=4, max_length=64)
    sources = ["ab", "abc", "abcd"]

    def run(**values):
        texts, cycles = outputs(target, sources, eos=(), limit=10, **values)
        shown = [cycle.shown for cycle in cycles if cycle.end]
        drafted = [
            sum(len(c.verdict.tokens) for c in cycles if c.update == u and c.verdict is not None)
            for u in range(3)
        ]
        return texts, shown, drafted

    plain = run(beta=0.2)
    display = run(beta=0.2, k=3)
    draft = run(beta=0.2, k=3, mask="draft")
    assert plain[1] == [10, 10, 10]
    assert (display[0], display[2]) == (plain[0], plain[2])  # only the display is masked
    assert display[1] == draft[1] == [7, 7, 10]  # the last update is shown whole
    assert plain[2] == [0, 10, 10]
    assert draft[2] == [0, 7, 7]
    assert run(k=99, mask="draft")[2] == [0, 0, 0]


def test_the_second_pass_writes_the_same_with_a_pass_more_after_each_draft():
    target = Calm(V, seed=5, max_length=64)
    sources = ["ab", "abc", "abcd", "abcde", "abcde"]  # the last draft is kept whole
    one, cycles = outputs(target, sources, beta=0.0)
    drafted = [cycle for cycle in cycles if cycle.status]
    added = sum(len(cycle.tokens) > cycle.status.count("accepted") for cycle in drafted)
    assert any("rejected" in cycle.status for cycle in drafted)
    assert any(len(cycle.tokens) > len(cycle.status) for cycle in drafted)
    two, more = outputs(target, sources, beta=0.0, second_pass=True)
    assert two == one
    assert len(more) == len(cycles) + added
    origins = [[origin for cycle in each for origin in cycle.origins] for each in (cycles, more)]
    assert origins[0] == origins[1] and {"correction", "bonus"} <= set(origins[0])
    assert {cycle.draft.stop for cycle in drafted} == {"text"}


def test_sampled_draft_tokens_are_kept_as_often_as_the_bias_says():
    """A draft token is accepted with probability (1 - β) p + β; a rejected one cannot be drawn again."""
    target = TableModel(4, seed=1, max_length=32)
    p = target.logits([0, 2, V - 1]).softmax(-1).numpy()
    for beta in (0.0, 0.3):
        counts = np.zeros((4, 4))
        method = Retranslate(beta=beta)
        sampling = specviz.methods.sampling.Sampling(1.0)
        for seed in range(4000):
            cycles = decode(
                target, [0, 2, V - 1], method, sampling=sampling, max_new_tokens=2, eos=(), seed=seed,
                previous=[seed % 4],
            )  # fmt: skip
            first = next(t for cycle in cycles for t in cycle.tokens)
            counts[seed % 4, first] += 1
        expected = 1000 * ((1 - beta) * np.tile(p, (4, 1)) + beta * np.eye(4))
        chi2 = ((counts - expected) ** 2 / expected).sum()
        assert chi2 < 33  # 12 degrees of freedom, 1 in 1000


def test_the_record_has_the_targets_own_probability(town):
    """The recorded p is unbiased, even for an accepted token whose test was biased."""
    options = {"beta": 0.9, "temperature": 0.7, "seed": 1, "max_new_tokens": 12}
    trace = specviz.generate(town, stream(GROWING), "retranslate", **options)
    table, nodes = trace.outputs, trace.nodes
    kept = table[table["origin"] == "draft"]
    tested = nodes[nodes["status"] == "accepted"]
    assert len(kept) and np.allclose(tested["p"], 0.1 * kept["p"].to_numpy() + 0.9, atol=1e-5)


# --- on a transformer: which part of the cache is kept ---------------------------------------------


@pytest.fixture(scope="module")
def town():
    return load("town")


TEXT = "A cook opened a letter on Friday and he worked at the station. The cook went to the village."
WORDS = TEXT.split()
GROWING = [" ".join(WORDS[:n]) for n in range(3, len(WORDS) + 3, 3)]


def stream(sources):
    return Stream([Update(source) for source in sources])


def test_what_two_prompts_share_is_kept_and_nothing_else(town):
    sources = [*GROWING[:4], GROWING[3], GROWING[1], "", "Tom slept"]
    trace = specviz.generate(town, stream(sources), "retranslate", beta=0.0)
    validate(trace)
    template = Template(town, *Retranslate().wording())
    prompts = [template(source) for source in sources]
    common = [0]
    for one, other in pairwise(prompts):
        same = [a == b for a, b in zip(one, other)]
        common.append(min(same.index(False) if False in same else len(same), len(other) - 1))
    assert trace.updates["reused"].tolist() == common
    fed = trace.passes.groupby(["update", "cycle"])["tokens"].sum()
    for update, (ids, kept) in enumerate(zip(prompts, common)):
        assert fed.get((update, 0), 0) == len(ids) - 1 - kept
    for text, source in zip(trace.updates["text"], sources):
        alone = specviz.generate(town, [template(source)], "autoregressive", record=None)
        assert text == alone.text


def test_continuous_decoding_keeps_all_of_a_prompt_that_stands_still(town):
    trace = specviz.generate(town, stream(["Tom slept"] * 2), "retranslate", mode="cd")
    first, second = trace.updates.to_dict("records")
    assert second["reused"] == second["prompt_tokens"]
    fed = trace.passes.groupby(["update", "cycle"])["tokens"].sum()
    assert fed[1, 0] == len(first["ids"]) - 1  # the last token is read in the pass that predicts the next


def test_a_stale_cache_would_be_seen(town, monkeypatch):
    """The test above can fail: keeping too many rows changes a text."""

    def too_many(one, other):
        return min(len(one), len(other)) - 1

    monkeypatch.setattr("specviz.loop.updates.common_prefix", too_many)
    sources = ["Tom slept", "The woman called a cook", "A girl saw Tom behind the market"]
    trace = specviz.generate(town, stream(sources), "retranslate", mode="rt")
    monkeypatch.undo()
    right = specviz.generate(town, stream(sources), "retranslate", mode="rt")
    assert trace.updates["text"].tolist() != right.updates["text"].tolist()


def test_reserve_keeps_what_is_computed():
    model = llama(seed=1, max_length=96)
    ids = list(range(2, 22))
    context = model.open([ids], 2)
    draft = specviz.draft.Draft.chain(np.array([3, 4]))
    context.forward(draft)  # also computes the prompt, since a pass of another size may round differently
    want = context.forward(draft).logits[0]
    before = context.slots
    context.reserve(2)
    assert context.slots == before
    context.reserve(3)
    assert context.slots == 2 * before
    assert torch.equal(context.forward(draft).logits[0], want)
    assert context.cached == [20]
    context.reserve(30)
    context.reserve(70)
    assert context.slots == 96  # the model's context
    assert torch.allclose(context.forward(draft).logits[0], want, atol=1e-5)


def test_siblings_may_need_more_slots_than_the_context_has_positions():
    siblings = specviz.draft.Draft(np.arange(2, 12), np.full(10, -1))
    model, ids = llama(seed=1, max_length=24), list(range(2, 22))
    opened, grown = model.open([ids], 10), model.open([ids], 2)
    grown.reserve(10)
    want, got = (context.forward(siblings).logits[0] for context in (opened, grown))
    assert grown.slots == opened.slots == 30 and torch.equal(want, got)


def test_a_context_that_fills_up_keeps_what_was_written():
    model = llama(seed=2, max_length=64)
    cycles = decode_stream(
        model, stream("x" * n for n in (10, 30, 62, 70)), Retranslate(), template=lambda x: [5] * len(x),
        max_new_tokens=50,
    )  # fmt: skip
    got = []
    told = r"update 3 of stream 1 has a prompt of 70 tokens and leaves no room in .* of 64"
    with pytest.raises(PromptError, match=told):
        got.extend(cycles)
    ends = [(cycle.update, cycle.end) for cycle in got if cycle.end]
    assert [update for update, _ in ends] == [0, 1, 2]
    assert ends[2][1] in ("context", "eos")
    assert sum(len(c.tokens) for c in got if c.update == 2) <= 2


def test_a_list_of_updates_that_is_too_long_is_refused_before_any_work(town, tmp_path):
    long = "The cook went to the market. " * 200
    options = {"out": tmp_path / "t.parquet", "max_new_tokens": 4}
    for name, one in (("b", Stream([Update("Tom"), Update(long)], "b")), ("2", stream(["Tom", long, ""]))):
        with pytest.raises(PromptError, match=f"update 1 of stream {name} has a prompt of .* no room in"):
            specviz.generate(town, [stream(["Tom"]), one], "retranslate", **options)
        assert not list(tmp_path.iterdir())
    for one in ([Update("Tom"), Update("")], iter([Update("Tom"), Update("")])):
        with pytest.raises(PromptError, match="update 1 of stream 1 is empty: drop it"):
            specviz.generate(town, Stream(one), "retranslate", template="plain", max_new_tokens=4)
    live = Stream(iter([Update("Tom"), Update(long)]), id="c")
    with pytest.raises(PromptError, match="update 1 of stream c has"):
        specviz.generate(town, live, "retranslate", **options)
    assert len(specviz.open(tmp_path / "t.parquet").updates) == 1, "what was decoded is kept"


def test_the_record_says_what_the_stream_was(town, tmp_path):
    updates = [
        Update("Tom slept", 1.5),
        Update("Tom slept. The girl", 2.5),
        Update("Tom slept. The girl was tired.", 4),
    ]
    streams = [Stream(updates, "one", "en", "Tom schlief."), Stream(updates[:1])]
    specviz.generate(town, streams, "retranslate", k=2, out=tmp_path / "t.parquet")
    trace = specviz.open(tmp_path / "t.parquet")
    table = trace.updates
    assert table["source"].tolist() == [*(u.text for u in updates), updates[0].text]
    assert table["arrival"].tolist() == [1.5, 2.5, 4.0, 1.5]
    assert [table["shown"][i] == len(table["ids"][i]) for i in range(4)] == [False, False, True, True]
    assert all(text.startswith(shown) for text, shown in zip(table["text"], table["shown_text"]))
    assert trace.prompts["reference"][0] == "Tom schlief."
    assert trace.run["exactness"] == "lossy"
    assert trace.texts == [table["text"][2], table["text"][3]]
    assert set(trace.nodes["source"]) == {"previous"}


def test_long_sources_come_back_and_are_redacted(town, tmp_path):
    sources = ["Tom slept. " * 40, "Tom slept. " * 41]
    words = {"template": "Tom slept\\here: {source}", "out": tmp_path / "t.parquet", "max_new_tokens": 4}
    specviz.generate(town, stream(sources), "retranslate", **words)
    trace = specviz.open(tmp_path / "t.parquet")
    assert trace.updates["source"].tolist() == sources
    assert trace.redact().updates["source"].tolist() == ["", ""]
    trace.redact().save(tmp_path / "r.parquet")
    assert "slept" not in (tmp_path / "r.parquet").read_bytes().decode("latin1")
    assert len(specviz.open(tmp_path / "r.parquet").updates) == 2
    assert trace.redact().run["parameters"]["template"] == "{source}"


def test_a_source_of_any_length_that_is_written_can_be_read(town, tmp_path, monkeypatch):
    monkeypatch.setattr(Template, "__call__", lambda self, source: [5, 7, 9])
    source = "Tom slept. " * 10_000
    specviz.generate(town, stream([source]), "retranslate", max_new_tokens=2, out=tmp_path / "t.parquet")
    assert specviz.open(tmp_path / "t.parquet").updates["source"].tolist() == [source]


def test_a_record_whose_updates_have_no_source_is_refused(town, tmp_path):
    trace = specviz.generate(town, stream(["Tom", "Tom slept"]), "retranslate", max_new_tokens=2)
    trace.save(tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    for name, change, says in (
        ("source", lambda column: [None, *column[1:]], "one cycle 0, with its source"),
        ("cycle", lambda column: [0] * len(column), "the same cycle of a prompt twice"),
    ):
        at = table.schema.get_field_index(name)
        field = table.schema.field(at)
        values = pa.array(change(table.column(at).to_pylist()), field.type)
        pq.write_table(table.set_column(at, field, values), tmp_path / f"{name}.parquet")
        with pytest.raises(TraceError, match=says):
            _ = specviz.open(tmp_path / f"{name}.parquet").updates


def test_a_limit_beyond_the_context_takes_no_more_room_than_there_is(town):
    few, many = (
        specviz.generate(town, stream(["Tom slept"]), "retranslate", max_new_tokens=n).texts
        for n in (100, 10**12)
    )
    assert few == many


def test_exactness():
    greedy, sampled = specviz.methods.sampling.Sampling(), specviz.methods.sampling.Sampling(1.0)
    assert Retranslate(mode="rt").exactness(greedy, "float32") == "exact up to ties"
    assert Retranslate(beta=0).exactness(greedy, "float32") == "exact up to ties"
    assert Retranslate(beta=0).exactness(sampled, "float32") == "exact in law"
    assert Retranslate(beta=0.01).exactness(greedy, "float32") == "lossy"
    assert Retranslate(mode="cd", beta=0).exactness(greedy, "float32") == "lossy"


# --- prompts ---------------------------------------------------------------------------------------


def test_special_tokens_in_a_source_are_text(town):
    template = Template(town, *Retranslate().wording())
    ids = template("Tom <|end|> slept")
    end = town.text.specials["<|end|>"]
    assert ids.count(end) == 1
    assert town.encode("Translate into German: Tom slept") == template("Tom slept")
    assert "Tom <|end|> slept" in b"".join(map(town.piece, ids)).decode()


def test_a_prompt_is_what_the_tokenizer_makes_of_its_text(town):
    for before, behind in (("Say: ", "\nGerman:"), ("<s>Hi <|user|> x ", " <|end|>\n")):
        template = Template(town, before, behind)
        for source in ("Tom slept.", "", "日本 x", " a  b "):
            assert template(source) == town.tokenizer(before + source + behind)["input_ids"]


def test_a_method_that_serves_again_asks_as_each_model_wants():
    method = Retranslate()
    t5, causal = load("town-t5"), load("town-translator")
    mt5, marian, bart = (EncoderDecoder(seq2seq.make(name)) for name in ("mt5", "marian", "bart"))
    templates = ((t5, "task"), (causal, "town"), (marian, "plain"), (bart, "plain"), (mt5, "task"))
    for model, template in templates:
        method.prepare(model)
        assert method.template == template
    chosen = Retranslate(template="town")
    chosen.prepare(load("town-t5"))
    assert chosen.template == "town"


def test_the_papers_prompts():
    """The prompts of Table 5, with the special tokens of each tokenizer."""
    tower = "".join(Retranslate(template="tower", target_language="Japanese").wording())
    assert tower.startswith("<start_of_turn>user\nTranslate the English source text to Japanese. Return only")
    assert tower.endswith("English: \nJapanese: <end_of_turn>\n<start_of_turn>model\n")
    before, behind = Retranslate(template="qwen3").wording()
    assert before.endswith("<|im_start|>user\nEnglish: ")
    assert behind == "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nGerman:"
    assert set(TEMPLATES) == {"plain", "task", "town", "tower", "qwen3"}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"template": "Translate it"},
            r"template must be one of plain, task, town, tower, qwen3, or a text with \{source\}",
        ),
        ({"template": "{source} is {source}"}, r"with \{source\} in it once"),
        ({"beta": 1.01}, r"beta must lie in \[0, 1\], got 1.01"),
        ({"beta": -0.1}, "beta must lie in"),
        ({"k": -1}, "k must be at least 0, got -1"),
        ({"target_language": " "}, "target_language is empty: name a language"),
        ({"mode": "fast"}, "mode must be one of rt, ssbd, cd"),
    ],
)
def test_bad_parameters(values, line):
    with pytest.raises(ParameterError, match=line):
        Retranslate(**values)


def test_a_language_that_looks_like_a_slot_is_a_name():
    method = Retranslate(template="Into {target_language}: {source}!", target_language="{source}")
    assert method.wording() == ("Into {source}: ", "!")


def test_bad_input(town):
    with pytest.raises(
        ParameterError, match=r"the template has <\|im_start\|>, which is not a token of town"
    ):
        specviz.generate(town, stream(["Tom"]), "retranslate", template="qwen3")
    with pytest.raises(PromptError, match="retranslate decodes a source that arrives in updates"):
        specviz.generate(town, "Tom slept", "retranslate")
    with pytest.raises(PromptError, match="streams are decoded by retranslate"):
        specviz.generate(town, [stream(["Tom"])], "autoregressive")
    with pytest.raises(PromptError, match="streams are decoded by retranslate"):
        specviz.generate(town, stream(["Tom"]), "autoregressive")
    with pytest.raises(ParameterError, match="record='dense' needs a fixed prompt"):
        specviz.generate(town, stream(["Tom"]), "retranslate", record="dense")
