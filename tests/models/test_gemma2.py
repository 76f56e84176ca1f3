"""Gemma 2 against transformers: soft-capped scores, sliding layers, trees, rollback, and the audit."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from families import VOCABULARY, make, scores
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ordered import allowed, parted, tree
from transformers import Gemma2Config, Gemma2ForCausalLM
from transformers.models.gemma2 import modeling_gemma2

import specviz as sv
from specviz import audit
from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models import attention, gemma2
from specviz.models.model import Model

torch.set_num_threads(1)
WINDOW, LENGTH = 6, 30  # texts go far beyond the window
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=LENGTH)
TREE = Draft(np.array([3, 4, 5, 6, 7, 8]), np.array([-1, -1, 0, 2, 1, 3]))


@lru_cache
def pair(dtype: torch.dtype = torch.float32) -> tuple[Model, torch.nn.Module]:
    """A model under test with a short window and four layers, and its twin for transformers."""
    made = [make("gemma2", num_hidden_layers=4, layer_types=None, sliding_window=WINDOW) for _ in range(2)]
    return Model(made[0].to(dtype), name="gemma2"), made[1].to(dtype)


@pytest.fixture
def in_double(monkeypatch):
    """Keep transformers in float64: its Gemma 2 computes norms, softmax and angles in float32."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(
        modeling_gemma2.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim, dtype=x.dtype)
    )


def paths(draft: Draft) -> list[list[int]]:
    return [[int(draft.tokens[i]) for i in draft.path(node)] for node in range(-1, len(draft))]


def test_in_float64_it_says_what_transformers_says(in_double):
    """A prefill, a tree, its commit, a rollback, and two texts of different lengths in one pass."""
    served, net = pair(torch.float64)
    random = np.random.default_rng(0)
    texts = [random.integers(0, VOCABULARY, n).tolist() for n in (LENGTH, 4)]
    for prompts in (texts[:1], texts[1:], texts):
        context = served.open(prompts, 16)
        context.prefill()
        logits = [served._llama.scores(each) for each in _states(context, TREE)]
        for text, rows in zip(prompts, logits):
            want = torch.stack([_exact(net, text + path) for path in paths(TREE)])
            torch.testing.assert_close(rows, want, atol=1e-12, rtol=1e-12)
    wide = torch.tensor([texts[0]])
    assert not torch.allclose(net(wide).logits[0, -1], _full(net, wide), atol=1e-3), "the window is seen"


def _states(context, draft):
    """Final states in the model's own format, since `forward` returns float32 logits."""
    hidden = context.forward([draft] * context.rows, hidden=(-1,)).hidden[-1]
    context.commit([[0, 2]] * context.rows)
    context.rewind([n - 2 for n in context.length])
    again = context.forward([draft] * context.rows, hidden=(-1,)).hidden[-1]
    for one, two in zip(hidden, again):
        torch.testing.assert_close(one, two, atol=1e-12, rtol=0)
    return hidden


@torch.no_grad()
def _exact(net, tokens):
    return net(torch.tensor([tokens]), use_cache=False).logits[0, -1]


@torch.no_grad()
def _full(net, ids):
    """Logits without a window."""
    kinds, net.config.layer_types = net.config.layer_types, ["full_attention"] * 4
    try:
        return net(ids, use_cache=False).logits[0, -1]
    finally:
        net.config.layer_types = kinds


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_history_beyond_the_window(data):
    served, net = pair()
    texts = [list(text) for text in data.draw(st.lists(TOKENS, min_size=1, max_size=3))]
    context = served.open(texts, 40)
    for step in data.draw(st.lists(st.sampled_from(["extend", "pass", "rewind", "prefill"]), max_size=5)):
        if step == "extend":
            new = [data.draw(st.lists(st.integers(0, 36), max_size=3)) for _ in texts]
            context.extend(new)
            texts = [text + more for text, more in zip(texts, new)]
        elif step == "pass":
            drafts = [tree(np.random.default_rng(data.draw(st.integers(0, 99))), 5) for _ in texts]
            drafts = [Draft(each.tokens % VOCABULARY, each.parents) for each in drafts]
            _check(context, net, texts, drafts)
            chosen = [draft.path(data.draw(st.integers(-1, 4))) for draft in drafts]
            context.commit(chosen)
            texts = [t + [int(d.tokens[i]) for i in p] for t, d, p in zip(texts, drafts, chosen)]
        elif step == "rewind":
            lengths = [data.draw(st.integers(1, len(text))) for text in texts]
            context.rewind(lengths)
            texts = [text[:n] for text, n in zip(texts, lengths)]
        else:
            context.prefill()
        if context.room < 12:
            break
    _check(context, net, texts, [Draft.empty()] * len(texts))


def _check(context, net, texts, drafts):
    for text, draft, rows in zip(texts, drafts, context.forward(drafts).logits):
        want = torch.stack([scores(net, text + path) for path in paths(draft)])
        torch.testing.assert_close(rows, want, atol=1e-4, rtol=0)


def test_long_prefills_are_computed_in_parts(monkeypatch):
    served, net = pair()
    text = list(range(LENGTH))
    monkeypatch.setattr(attention, "MOST_SCORES", 4 * LENGTH * 7)  # seven queries at a time
    context = served.open([text], 8)
    context.prefill()
    _check(context, net, [text], [TREE])


@pytest.mark.parametrize("missing", ["cap", "head_cap", "window", "root", "closing"])
def test_each_part_is_needed(missing):
    served, net = pair()
    function = served.function("plain")
    neutral = {"cap": 1e6, "head_cap": None, "window": 64, "root": torch.ones(())}
    neutral["closing"] = [tuple(torch.ones_like(w) for w in both) for both in function.closing]
    setattr(function, missing, neutral[missing])
    broken = Model(served.net, name="broken")
    broken._llama = function
    text = list(range(LENGTH))
    rows = broken.open([text], 8).forward(TREE).logits[0]
    assert (rows[0] - scores(net, text)).abs().max() > 1e-3


def test_in_half_precision_small_norm_weights_keep_their_digits():
    """1 + 1/1000 is 1 in bfloat16, so a norm's factor is kept in float32."""
    net = make("gemma2").to(torch.bfloat16)
    weight = net.model.norm.weight
    weight.data.fill_(1e-3)
    assert (1.0 + weight).eq(1).all()
    half = Model(net, name="half")
    function, state = half.function("plain"), torch.arange(1.0, 17.0)[None]
    want = net.model.norm(state)
    torch.testing.assert_close(function.norm(state, function.last), want, rtol=1e-4, atol=0)
    rows = half.open([[1, 2, 3]], 8).forward(TREE).logits[0]
    want = torch.stack([scores(net, [1, 2, 3, *path]) for path in paths(TREE)])
    torch.testing.assert_close(rows, want, atol=0.15, rtol=0.1)


def test_through_transformers_modules_the_window_bounds_the_context():
    net = make("gemma2", sliding_window=WINDOW)
    modules = Model(net, plain=False)
    assert modules.max_length == WINDOW and pair()[0].max_length == 64
    rows = modules.open([[1, 2]], 4).forward(Draft.chain([3, 4])).logits[0]
    torch.testing.assert_close(rows[-1], scores(net, [1, 2, 3, 4]), atol=1e-4, rtol=0)


# ---------------------------------------------------------------- invariant


@lru_cache
def wide(window: int, dtype: torch.dtype = torch.float32) -> Model:
    """A random Gemma 2 with heads of 64, made invariant."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=61, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, query_pre_attn_scalar=64, sliding_window=window,
        max_position_embeddings=1024, initializer_range=0.2, attn_logit_softcapping=20.0,
        final_logit_softcapping=10.0,
    )  # fmt: skip
    return allowed(Model(Gemma2ForCausalLM(config).eval().to(dtype), name=f"wide-{window}"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [20, 130])
@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=2), seed=st.integers(0, 2**32 - 1))
def test_every_row_of_a_tree_is_the_row_of_its_own_path(window, dtype, lengths, seed):
    random = np.random.default_rng(seed)
    texts = [random.integers(2, 61, n).tolist() for n in lengths]
    drafts = [tree(random, int(random.integers(0, 30))) for _ in texts]
    assert parted(wide(window, dtype), texts, drafts, 3) == 0


@pytest.mark.parametrize("part", ["tanh", "window"])
def test_a_broken_part_of_it_shows(part, monkeypatch):
    target = wide(45)
    if part == "tanh":  # by rounding, and only in products with many rows
        monkeypatch.setattr(gemma2.ordered, "_tanh", lambda x: torch.tanh(x) * (1 + 1e-6 * (len(x) > 16)))
    else:  # trees lose the window
        original = gemma2.Gemma2._near

        def near(self, given, store):
            return original(self, given, store) if isinstance(given.positions, slice) else given.mask

        monkeypatch.setattr(gemma2.Gemma2, "_near", near)
    random = np.random.default_rng(1)
    texts = [random.integers(2, 61, length).tolist() for length in (40, 75, 100, 150)]
    assert any(parted(target, [text], [tree(random, 30)], 20) for text in texts)


def test_decoding_with_it_is_exact_and_audited():
    target = wide(20)
    prompts = [list(range(2, 60)), [5, 6, 7]]
    own = sv.generate(target, prompts, "autoregressive", max_new_tokens=24)
    trace = sv.generate(target, prompts, "unispec", draft_size=8, keep="prompt", max_new_tokens=24, batch=2)
    assert trace.run["exactness"] == "exact"
    own_tokens, tokens = (each.outputs[["prompt", "token"]].to_numpy() for each in (own, trace))
    assert np.array_equal(own_tokens, tokens)
    result = audit.run(target, [], prompts, ["unispec", "prompt_lookup"], max_new_tokens=16, sampled=0,
                       laws=False)  # fmt: skip
    assert result.holds and result.invariant


def test_an_odd_activation_is_left_to_transformers():
    net = make("gemma2", hidden_activation="relu")
    assert not gemma2.describes(net)
    with pytest.raises(ModelError, match="not a plain member"):
        Model(net, plain=True)


@pytest.mark.parametrize("cap", [50.0, None])
def test_without_soft_capping_the_window_holds_too(cap):
    made = [
        make(
            "gemma2", num_hidden_layers=4, layer_types=None, sliding_window=WINDOW, attn_logit_softcapping=cap
        )
        for _ in range(2)
    ]
    text = np.random.default_rng(0).integers(0, VOCABULARY, LENGTH).tolist()
    context = Model(made[0], name="gemma2").open([text], 8)
    context.prefill()
    rows = context.forward(Draft.empty()).logits[0][0]
    made[1].config._attn_implementation = "eager"
    with torch.no_grad():
        want = made[1](torch.tensor([text])).logits[0, -1].float()
    torch.testing.assert_close(rows, want, atol=1e-4, rtol=1e-4)
