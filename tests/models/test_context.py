"""The context against transformers: after any history, a tree's logits are those of single passes."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import lru_cache

import numpy as np
import pytest
import torch
from families import CASES, VOCABULARY, make, scores
from hypothesis import given, settings
from hypothesis import strategies as st

from specviz.draft import Draft
from specviz.errors import ModelError, PromptError
from specviz.models import context as contexts
from specviz.models.context import Context
from specviz.models.model import Model, _attention

torch.set_num_threads(1)
TOKEN = st.integers(0, VOCABULARY - 1)
TEXT = st.lists(TOKEN, min_size=1, max_size=6)
ROOM = 40


@lru_cache
def model(name: str, plain: bool) -> tuple[Model, object]:
    """The model under test, and an untouched twin for comparison."""
    return Model(make(name), name=name, plain=plain), make(name)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 6))
    parents = np.array([draw(st.integers(-1, i - 1)) for i in range(n)], np.int64)
    if draw(st.booleans()):
        parents = np.arange(-1, n - 1)
    tokens = np.array([draw(TOKEN) for _ in range(n)], np.int64)
    positions = (
        np.array([draw(st.integers(1, 8)) for _ in range(n)]) if n and draw(st.integers(0, 3)) == 0 else None
    )
    judge = np.array([draw(st.booleans()) for _ in range(n)]) if n and draw(st.booleans()) else None
    return Draft(torch.from_numpy(tokens) if draw(st.booleans()) else tokens, parents, positions, judge)


def check(context: Context, net: object, texts: list[list[int]], made: list[Draft]) -> None:
    """Compare all logits of a pass with the twin's on each path alone."""
    found = context.forward(made)
    for row, draft in enumerate(made):
        text, tokens = texts[row], [int(t) for t in draft.tokens]
        assert found.logits[row].shape == (1 + len(draft), VOCABULARY)
        assert found.logits[row].dtype == torch.float32
        for node in range(-1, len(draft)):
            path = draft.path(node)
            where = [*range(len(text)), *(len(text) - 1 + int(draft.offsets[i]) for i in path)]
            want = scores(net, text + [tokens[i] for i in path], where)
            torch.testing.assert_close(found.logits[row][1 + node], want, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "plain"), CASES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_history_gives_the_one_by_one_scores(name: str, plain: bool, data: st.DataObject) -> None:
    served, net = model(name, plain)
    texts = data.draw(st.lists(TEXT, min_size=1, max_size=3))
    rows = len(texts)
    context = served.open(texts, ROOM)
    texts = [list(text) for text in texts]
    for step in data.draw(
        st.lists(st.sampled_from(["extend", "pass", "pass", "rewind", "prefill"]), min_size=2, max_size=6)
    ):
        if step == "extend" and context.room > 12:
            new = [data.draw(st.lists(TOKEN, max_size=3)) for _ in range(rows)]
            context.extend(new)
            texts = [text + more for text, more in zip(texts, new)]
        elif step == "pass" and context.room > 12:
            made = [data.draw(drafts()) for _ in range(rows)]
            check(context, net, texts, made)
            if data.draw(st.integers(0, 3)):  # the next step may also drop a draft
                paths = [draft.path(data.draw(st.integers(-1, len(draft) - 1))) for draft in made]
                context.commit(paths)
                texts = [t + [int(d.tokens[i]) for i in p] for t, d, p in zip(texts, made, paths)]
        elif step == "rewind":
            lengths = [data.draw(st.integers(1, len(text))) for text in texts]
            context.rewind(lengths)
            texts = [text[:n] for text, n in zip(texts, lengths)]
        elif step == "prefill":
            context.prefill()
        assert context.tokens == texts
        assert context.length == [len(text) for text in texts]
        assert all(cached <= length for cached, length in zip(context.cached, context.length))
    check(context, net, texts, [Draft.empty()] * rows)


@pytest.mark.parametrize(("name", "plain"), CASES)
def test_a_branch_goes_on_from_any_place(name: str, plain: bool) -> None:
    mine, net = model(name, plain)
    base = mine.open([[3, 1, 4, 1, 5]], ROOM)
    base.prefill()
    base.forward(Draft.chain([9, 2, 6]))
    base.commit([0, 1])
    base.extend([5])  # not computed yet
    text = base.tokens[0]
    for lengths in ([8, 1, 6, 6], [5], [8, 8]):
        rows = base.branch(lengths, ROOM)
        texts = [[*text[:length], 7] for length in lengths]
        rows.extend([[7]] * len(lengths))
        check(rows, net, texts, [Draft.empty()] * len(lengths))
        check(rows, net, texts, [Draft.chain([2, 2])] * len(lengths))
        rows.close()
    check(base, net, [text], [Draft.chain([8])])  # the base is unchanged
    for wrong in ([9], [0, 3]):
        with pytest.raises(ModelError, match="lengths from 1 to 8"):
            base.branch(wrong, ROOM)
    with pytest.raises(ModelError, match="this one has 2"):
        mine.open([[1], [2]], ROOM).branch([1], ROOM)


@pytest.mark.parametrize(("name", "plain"), CASES)
def test_hidden_states_are_those_of_transformers(name: str, plain: bool) -> None:
    served, net = model(name, plain)
    texts, draft = [[1, 2, 3], [4, 5, 6, 7, 8]], Draft.chain(np.array([9, 10]))
    context = served.open(texts, ROOM)
    context.prefill()
    found = context.forward([draft, Draft.empty()], hidden=(0, 1, -1))
    with torch.no_grad():
        first = net(torch.tensor([[1, 2, 3, 9, 10]]), output_hidden_states=True).hidden_states
        second = net(torch.tensor([texts[1]]), output_hidden_states=True).hidden_states
    for layer in (0, 1, -1):
        torch.testing.assert_close(found.hidden[layer][0], first[layer][0, 2:], atol=1e-4, rtol=0)
        torch.testing.assert_close(found.hidden[layer][1], second[layer][0, 4:], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "plain"), CASES)
def test_the_first_layers_alone_are_a_model(name: str, plain: bool) -> None:
    served, net = model(name, plain)
    short = served.first(1)
    key = "n_layer" if name == "gpt2" else "num_hidden_layers"
    twin = make(name, **{key: 1, "layer_types": None} if name.startswith(("qwen", "gemma2")) else {key: 1})
    twin.load_state_dict({k: v for k, v in net.state_dict().items() if k in twin.state_dict()})
    draft = Draft(np.array([3, 4, 5]), np.array([-1, -1, 0]))
    opened = short.open([[1, 2, 3]], ROOM)
    opened.prefill()
    check(opened, twin, [[1, 2, 3]], [draft])
    check(served.open([[1, 2, 3]], ROOM), net, [[1, 2, 3]], [draft])  # the whole model is unchanged
    with pytest.raises(ModelError, match="has 2 layers"):
        served.first(3)


@pytest.mark.parametrize("plain", [False, True])
def test_half_precision(plain: bool) -> None:
    net = make("llama")
    half = Model(make("llama").to(torch.bfloat16), plain=plain)
    draft = Draft(np.array([3, 4, 5]), np.array([-1, -1, 0]))
    found = half.open([[1, 2, 3]], ROOM).forward(draft).logits[0]
    assert found.dtype == torch.float32
    want = torch.stack([scores(net, [1, 2, 3, *more]) for more in ([], [3], [4], [3, 5])])
    assert (found - want).abs().max() < 0.05 * want.abs().max()


def test_storage_keeps_its_address_and_a_chain_is_not_moved() -> None:
    served, _ = model("llama", True)
    context = served.open([[1, 2, 3]], ROOM)
    address = context.store.data.data_ptr()
    found = context.forward(Draft.chain(np.array([4, 5, 6])))
    assert found.tokens == 6
    before = context.store.data.clone()
    context.commit([0, 1])
    assert torch.equal(context.store.data, before)
    context.extend([7])
    assert context.forward(Draft.empty()).tokens == 1
    assert context.store.data.data_ptr() == address
    assert context.tokens == [[1, 2, 3, 4, 5, 7]]


def test_a_tensor_of_tokens_extends_one_row() -> None:
    served, _ = model("llama", True)
    context = served.open([[1, 2]], ROOM)
    context.extend(torch.tensor([3, 4]))
    context.extend(context.forward(Draft.empty()).logits[0][0].argmax().view(1))
    assert context.tokens[0][:4] == [1, 2, 3, 4]
    assert context.length == [5]


def test_scores_are_ordinary_tensors() -> None:
    served, _ = model("llama", True)
    for one in (served, model("gpt2", False)[0]):
        found = one.open([[1, 2]], ROOM).forward(Draft.empty()).logits[0]
        assert not found.is_inference()
        found.div_(2.0)  # a sampler may work in place


def test_what_does_not_fit_is_refused() -> None:
    served, _ = model("gpt2", False)
    context = served.open([[1, 2, 3]], 4)
    assert context.room == 4
    with pytest.raises(ModelError, match="5 more do not fit: open with more room"):
        context.extend([1] * 5)
    with pytest.raises(ModelError, match="more do not fit"):
        context.forward(Draft.chain(np.arange(5)))
    context = served.open([[1] * 60], 30)
    assert context.room == 4
    with pytest.raises(ModelError, match="at most 64 tokens"):
        context.forward(Draft.chain(np.arange(5)))
    wide = Draft(np.arange(8), np.full(8, -1))  # many nodes, but all within the context
    assert len(context.forward(wide).logits[0]) == 9
    with pytest.raises(PromptError, match="65 tokens"):
        served.open([[1] * 65], 4)
    with pytest.raises(PromptError, match="empty"):
        served.open([[]], 4)
    with pytest.raises(PromptError, match="token id 37 is outside"):
        served.open([[37]], 4)
    with pytest.raises(PromptError, match="token id -1 is outside"):
        context.extend([-1])


def test_a_model_that_was_trained_or_moved_is_read_again() -> None:
    net = make("llama")
    served = Model(net, plain=True)
    served.open([[1, 2]], 4).forward(Draft.empty())
    with torch.no_grad():
        net.lm_head.weight.mul_(2.0)
        net.model.layers[1].mlp.down_proj.weight.mul_(2.0)
    check(served.open([[1, 2]], 8), net, [[1, 2]], [Draft.chain(np.array([3]))])
    net.to(torch.float64)
    check(served.open([[1, 2]], 8), net, [[1, 2]], [Draft.chain(np.array([3]))])


def test_misuse_is_refused() -> None:
    served, _ = model("llama", True)
    context = served.open([[1, 2, 3]], 8)
    with pytest.raises(ModelError, match="commit must follow forward"):
        context.commit([0])
    context.forward(Draft(np.array([1, 2, 3]), np.array([-1, 0, -1])))
    with pytest.raises(ModelError, match="not a path"):
        context.commit([0, 2])
    for wrong in ([1], [-1], [-1, 0], [3]):
        with pytest.raises(ModelError, match="not a path"):
            context.commit(wrong)
    with pytest.raises(ModelError, match="rewind"):
        context.rewind(0)
    with pytest.raises(ModelError, match="rewind"):
        context.rewind(4)
    with pytest.raises(ModelError, match=r"forward got 2 drafts for 1 row$"):
        context.forward([Draft.empty()] * 2)
    with pytest.raises(ModelError, match="hidden state of 7"):
        context.forward(Draft.empty(), hidden=(7,))
    batch = served.open([[1], [2]], 8)
    with pytest.raises(ModelError, match="extend got tokens for 1 row; the context has 2"):
        batch.extend([[1]])


def test_out_of_memory_says_what_to_lower() -> None:
    served, _ = model("llama", True)
    with pytest.raises(ModelError, match=r"lower max_new_tokens.* dtype='bfloat16' \(now float32\)$"):
        served.open([[1]], 1 << 45)
    half = Model(make("llama").to(torch.bfloat16))
    with pytest.raises(ModelError, match=r"decode fewer prompts at once, or shorten the prompt$"):
        half.open([[1]], 1 << 45)


def test_a_second_long_turn_behind_a_cached_one() -> None:
    net = make("llama", max_position_embeddings=256)
    served = Model(net, plain=True)
    text = [i % VOCABULARY for i in range(180)]
    context = served.open([text[:40]], 200)
    context.prefill()
    context.extend(text[40:])
    assert context.prefill() == 140
    check(context, net, [text], [Draft.chain(np.array([1, 2]))])


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_long_prefill_after_other_tokens_runs_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its mask would grow with the square of its tokens. Of three rows the middle one has none."""
    net, fed = make("llama", max_position_embeddings=256), []
    served = Model(net, plain=True)
    run = served.run
    monkeypatch.setattr(
        served, "run", lambda given, store: (fed.append(given.ids.shape[1]), run(given, store))[1]
    )
    monkeypatch.setattr(contexts, "LARGE_MASK", served.group * rows * 180 * 50)
    monkeypatch.setattr(contexts.ordered, "LINES", 16)
    texts = [[(i + row) % VOCABULARY for i in range(180 - 30 * row)] for row in range(rows)]
    texts[1:-1] = [text[:40] for text in texts[1:-1]]
    context = served.open([text[:40] for text in texts], 200)
    context.prefill()
    context.extend([text[40:] for text in texts])
    long = [row for row, text in enumerate(texts) if len(text) > 40]
    assert context.prefill(long, hidden=(1,)) == sum(map(len, texts)) - 40 * rows
    assert fed[0] == 39 and max(fed[1:]) == 50
    for row in long:
        with torch.no_grad():
            states = net(torch.tensor([texts[row]]), output_hidden_states=True).hidden_states[1][0, 39:-1]
        torch.testing.assert_close(context.states[row][1], states, atol=1e-4, rtol=0)
    check(context, net, texts, [Draft.chain(np.array([1, 2]))] * rows)


def test_the_masks_of_chains_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    served, net = model("qwen2", True)
    context = served.open([[1, 2, 3]], ROOM)
    context.prefill()
    monkeypatch.setattr(contexts, "KEPT_MASKS", 1 << 14)
    for length in (*range(1, 12), *range(11, 0, -1)):
        check(context, net, [[1, 2, 3]], [Draft.chain(np.arange(length))])
        assert 0 < sum(mask.nbytes for mask in context._triangles.values()) <= 1 << 14
    assert len(context._triangles) > 1


def test_a_branch_after_rows_were_dropped() -> None:
    served, net = model("llama", True)
    base = served.open([[1, 2, 3], [4, 5, 6, 7], [8, 9, 10]], ROOM)
    base.prefill()
    base.drop(1)
    base.drop(1)
    for rows in (3, 2):
        branch = base.branch([3] * rows, ROOM)
        check(branch, net, [[1, 2, 3]] * rows, [Draft.empty()] * rows)


def test_a_row_keeps_its_draft_when_another_is_replaced_by_a_longer_one() -> None:
    served, net = model("llama", True)
    context = served.open([[1, 2, 3], [4, 5]], 4)
    context.forward([Draft.chain(np.array([6, 7, 8])), Draft.empty()])
    context.replace(1, [9] * 12, 4)
    context.commit([[0, 1]], [0])
    assert context.cached[0] == 5
    check(context, net, [[1, 2, 3, 6, 7], [9] * 12], [Draft.empty()] * 2)


def test_another_thread_waits_until_modules_have_their_own_attention_again() -> None:
    config = make("gpt2").config
    own, entered, ended = config._attn_implementation, threading.Event(), threading.Event()

    def other() -> None:
        with _attention(config):
            entered.set()
            ended.wait(10)

    thread = threading.Thread(target=other)
    with _attention(config):
        thread.start()
        entered.wait(0.2)  # in vain
    ended.set()
    thread.join()
    assert config._attn_implementation == own


@pytest.mark.parametrize("prompt", [[1] * 5000, [1, VOCABULARY]])
def test_a_prompt_that_does_not_fit_leaves_the_context_as_it_was(prompt: list[int]) -> None:
    context = model("llama", True)[0].open([[1, 2, 3]], 4)
    slots = context.slots
    with pytest.raises((PromptError, ModelError)):
        context.replace(0, prompt)
    assert context.tokens == [[1, 2, 3]] and context.slots == slots
    assert context.prefill() == 2


@pytest.mark.parametrize("plain", [True, False])
def test_a_closed_context_frees_its_storage_at_once(plain: bool) -> None:
    context = model("llama", plain)[0].open([[1, 2, 3]], 4)
    context.prefill()
    context.forward(Draft.empty())
    data = weakref.ref(context.store.data)
    gc.disable()
    try:
        context.close()
        assert data() is None
    finally:
        gc.enable()
