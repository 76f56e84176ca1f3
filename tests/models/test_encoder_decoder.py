"""The encoder-decoder's context against transformers: after any history, a tree's logits are those of single
passes of transformers' own module.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seq2seq import CONFIGS, START, VOCABULARY, make, prefix, scores

from specviz.draft import Draft
from specviz.errors import ModelError, PromptError
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.encoder_decoder_context import EncoderDecoderContext
from specviz.models.kernels import LAYOUTS

torch.set_num_threads(1)
TOKEN = st.integers(0, VOCABULARY - 1)
TEXT = st.lists(TOKEN, min_size=1, max_size=6)
NAMES = sorted(CONFIGS)
ROOM = 40


@lru_cache
def model(name: str) -> tuple[EncoderDecoder, object]:
    """The model under test, and an untouched twin for comparison."""
    return EncoderDecoder(make(name), name=name), make(name)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 6))
    parents = np.array([draw(st.integers(-1, i - 1)) for i in range(n)], np.int64)
    if draw(st.booleans()):
        parents = np.arange(-1, n - 1)
    tokens = np.array([draw(TOKEN) for _ in range(n)], np.int64)
    return Draft(torch.from_numpy(tokens) if draw(st.booleans()) else tokens, parents)


def check(
    context: EncoderDecoderContext, net: object, prompts: list[list[int]], texts: list[list[int]], made: list
) -> None:
    """Compare all logits of a pass with the twin's on each path alone."""
    found = context.forward(made)
    for row, draft in enumerate(made):
        tokens = [int(t) for t in draft.tokens]
        assert found.logits[row].shape == (1 + len(draft), VOCABULARY)
        assert found.logits[row].dtype == torch.float32
        for node in range(-1, len(draft)):
            want = scores(net, prompts[row], texts[row] + [tokens[i] for i in draft.path(node)])
            torch.testing.assert_close(found.logits[row][1 + node], want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_history_gives_the_one_by_one_scores(name: str, data: st.DataObject) -> None:
    served, net = model(name)
    prompts = data.draw(st.lists(TEXT, min_size=1, max_size=3))
    rows = len(prompts)
    context, texts = served.open(prompts, ROOM), [[] for _ in prompts]
    for step in data.draw(
        st.lists(st.sampled_from(["extend", "pass", "pass", "rewind", "prefill"]), min_size=2, max_size=6)
    ):
        if step == "extend" and context.room > 12:
            new = [data.draw(st.lists(TOKEN, max_size=3)) for _ in range(rows)]
            context.extend(new)
            texts = [text + more for text, more in zip(texts, new)]
        elif step == "pass" and context.room > 12:
            made = [data.draw(drafts()) for _ in range(rows)]
            check(context, net, prompts, texts, made)
            if data.draw(st.integers(0, 3)):  # the next step may also drop a draft
                paths = [draft.path(data.draw(st.integers(-1, len(draft) - 1))) for draft in made]
                context.commit(paths)
                texts = [t + [int(d.tokens[i]) for i in p] for t, d, p in zip(texts, made, paths)]
        elif step == "rewind":
            kept = [data.draw(st.integers(0, len(text))) for text in texts]
            context.rewind([len(prompt) + n for prompt, n in zip(prompts, kept)])
            texts = [text[:n] for text, n in zip(texts, kept)]
        elif step == "prefill":
            context.prefill()
        assert context.tokens == [prompt + text for prompt, text in zip(prompts, texts)]
        assert context.length == [len(tokens) for tokens in context.tokens]
    check(context, net, prompts, texts, [Draft.empty()] * rows)


@pytest.mark.parametrize("name", NAMES)
def test_siblings_far_into_a_text(name: str) -> None:
    """Beyond the last bucket of T5's relative distances, with two levels of siblings."""
    served, net = model(name)
    prompt, text = [3, 4, 5], [(7 * i) % VOCABULARY for i in range(25)]
    context = served.open([prompt], ROOM)
    context.extend(text)
    context.prefill()
    tree = Draft(np.array([5, 6, 7, 8, 9, 10]), np.array([-1, -1, 0, 0, 1, 2]))
    check(context, net, [prompt], [text], [tree])
    context.commit([1, 4])  # not a chain, so it is gathered
    check(context, net, [prompt], [[*text, 6, 9]], [Draft.chain([1, 2, 3])])


@pytest.mark.parametrize("name", NAMES)
def test_a_branch_goes_on_from_any_place(name: str) -> None:
    served, net = model(name)
    prompt = [3, 1, 4]
    base = served.open([prompt], ROOM)
    base.extend([9, 2])
    base.forward(Draft.chain([6, 5]))
    base.commit([0])
    base.extend([8])  # not computed yet
    text = [9, 2, 6, 8]
    for lengths in ([7, 3, 5, 5], [4], [7, 7]):
        rows = base.branch(lengths, ROOM)
        rows.extend([[7]] * len(lengths))
        texts = [[*text[: length - 3], 7] for length in lengths]
        assert rows.tokens == [prompt + each for each in texts]
        check(rows, net, [prompt] * len(lengths), texts, [Draft.empty()] * len(lengths))
        check(rows, net, [prompt] * len(lengths), texts, [Draft.chain([2, 2])] * len(lengths))
        rows.close()
    check(base, net, [prompt], [text], [Draft.chain([8])])  # the base is unchanged
    with pytest.raises(ModelError, match="lengths from 3 to 7"):
        base.branch([2], ROOM)


@pytest.mark.parametrize("name", NAMES)
def test_a_storage_that_grew_holds_what_it_held(name: str) -> None:
    served, net = model(name)
    context = served.open([[3, 4]], 3)
    context.extend([5, 6])
    context.forward(Draft.chain([7]))
    context.commit([0])
    with pytest.raises(ModelError, match="open with more room"):
        context.extend([1])
    context.reserve(6)
    check(context, net, [[3, 4]], [[5, 6, 7]], [Draft.chain([8, 9, 10])])


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_are_those_of_transformers(name: str) -> None:
    served, net = model(name)
    prompts, draft = [[1, 2, 3], [4, 5]], Draft.chain(np.array([9, 10]))
    context = served.open(prompts, ROOM)
    context.extend([[6], []])
    found = context.forward([draft, Draft.empty()], hidden=(0, 1, -1))
    texts = ([6, 9, 10], [])
    for row, (prompt, text) in enumerate(zip(prompts, texts)):
        ids = {"input_ids": torch.tensor([prompt]), "decoder_input_ids": torch.tensor([prefix(net) + text])}
        with torch.no_grad():
            want = net(**ids, output_hidden_states=True).decoder_hidden_states
        for layer in (0, 1, -1):
            rows = want[layer][0, -1 - len((draft, Draft.empty())[row]) :]
            torch.testing.assert_close(found.hidden[layer][row], rows, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_layers_alone_are_a_model(name: str) -> None:
    served, net = model(name)
    key = "num_decoder_layers" if "t5" in name else "decoder_layers"
    twin = make(name, **{key: 1})
    twin.load_state_dict({k: v for k, v in net.state_dict().items() if k in twin.state_dict()})
    draft = Draft(np.array([3, 4, 5]), np.array([-1, -1, 0]))
    check(served.first(1).open([[1, 2, 3]], ROOM), twin, [[1, 2, 3]], [[]], [draft])
    check(served.open([[1, 2, 3]], ROOM), net, [[1, 2, 3]], [[]], [draft])  # the whole is unchanged
    with pytest.raises(ModelError, match="has 3 layers"):
        served.first(4)


def test_the_encoder_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    served = EncoderDecoder(make("t5"))
    calls = []
    run = served.encoder.net.forward
    monkeypatch.setattr(served.encoder.net, "forward", lambda *a, **k: (calls.append(1), run(*a, **k))[1])
    short = served.first(1)
    context = served.open([[3, 4, 5]], ROOM)
    assert context.prefill() == 3
    beside = short.open([[3, 4, 5]], ROOM)
    assert beside.prefill() == 0  # the target has already read it
    for _ in range(3):
        beside.extend([7])
        beside.forward(Draft.empty())
        context.forward(Draft.chain([7, 8]))
        context.commit([0])
    assert len(calls) == 1
    assert beside.source.crossed.data_ptr() == context.source.crossed.data_ptr()
    beside.close()
    context.close()
    again = short.open([[3, 4, 5]], ROOM)  # the encoded prompt was freed
    again.forward(Draft.empty())
    whole = served.open([[3, 4, 5]], ROOM)  # the encoder's states are reused; the deeper layers are computed
    assert whole.prefill() == 0
    assert len(calls) == 2
    assert len(whole.source.pairs) == 3
    other = served.open([[3, 4, 6]], ROOM)
    assert other.prefill() == 3
    check(other, make("t5"), [[3, 4, 6]], [[]], [Draft.empty()])


def test_a_prompt_is_due_until_it_is_encoded() -> None:
    context = model("t5")[0].open([[3, 4, 5], [6, 7]], ROOM)
    due = lambda: [context.due(row) for row in range(2)]
    assert due() == [3, 2] and context.prefill() == 5
    assert due() == [0, 0]
    context.replace(1, [8, 9, 10, 11])
    assert due() == [0, 4] and context.prefill() == 4
    assert due() == [0, 0]


def test_a_model_that_was_trained_or_moved_is_read_again() -> None:
    net = make("t5", dtype=torch.float32)
    served = EncoderDecoder(net)
    held = served.open([[1, 2]], 4)
    held.forward(Draft.empty())
    with torch.no_grad():
        net.decoder.block[1].layer[2].DenseReluDense.wo.weight.mul_(2.0)
        net.encoder.block[0].layer[1].DenseReluDense.wo.weight.mul_(2.0)
    found = served.open([[1, 2]], 8).forward(Draft.empty()).logits[0][0]
    torch.testing.assert_close(found, scores(net, [1, 2], []), atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_layout_says_what_transformers_says(name: str, layout: str) -> None:
    net = make(name, dtype=torch.float32)
    served = EncoderDecoder(net, kernels=layout)
    assert served.kernels == layout
    draft = Draft(np.array([3, 4, 5]), np.array([-1, -1, 0]))
    found = served.open([[1, 2, 3], [4]], ROOM).forward([draft, Draft.empty()])
    want = torch.stack([scores(net, [1, 2, 3], path) for path in ([], [3], [4], [3, 5])])
    torch.testing.assert_close(found.logits[0], want, atol=2e-4, rtol=0)
    torch.testing.assert_close(found.logits[1][0], scores(net, [4], []), atol=2e-4, rtol=0)


def test_the_geometry_says_the_bytes_of_the_layout_and_of_the_cache() -> None:
    net = make("t5", dtype=torch.float32, d_kv=32)
    served = EncoderDecoder(net, kernels="plain")

    def sizes() -> list[float]:
        return [served.geometry[f"{part}_bytes"] for part in ("weight", "cache", "activation")]

    assert sizes() == [4, 4, 4]
    net.to(torch.bfloat16)
    served.open([[1, 2]], 4)
    assert sizes() == [2, 2, 2]
    try:
        served.make_invariant()
    except ModelError as error:
        pytest.skip(str(error))
    assert sizes() == [2, 4, 2] and served.first(1).geometry["cache_bytes"] == 4


def test_half_precision() -> None:
    for name in NAMES:
        net, half = make(name, dtype=torch.float32), EncoderDecoder(make(name).to(torch.bfloat16))
        found = half.open([[1, 2, 3]], ROOM).forward(Draft.chain([3, 4])).logits[0]
        assert found.dtype == torch.float32
        want = torch.stack([scores(net, [1, 2, 3], path) for path in ([], [3], [3, 4])])
        assert (found - want).abs().max() < 0.06 * want.abs().max()


def test_what_does_not_fit_is_refused() -> None:
    served, _ = model("bart")
    with pytest.raises(PromptError, match="65 tokens, but the encoder of bart takes at most 64"):
        served.open([[1] * 65], 4)
    with pytest.raises(PromptError, match="empty"):
        served.open([[1], []], 4)
    with pytest.raises(PromptError, match="token id 37 is outside"):
        served.open([[37]], 4)
    assert (served.left(64), served.left(65), served.left(1)) == (63, 0, 63)
    assert model("bart-forced")[0].left(9) == 62
    context = served.open([[1] * 60], 100)
    context.extend([3] * 61)
    assert context.room == 2
    with pytest.raises(ModelError, match="at most 64 tokens"):
        context.forward(Draft.chain([1, 2, 3]))
    assert len(context.forward(Draft([1, 2, 3], np.full(3, -1))).logits[0]) == 4  # none is beyond the context
    with pytest.raises(ModelError, match="at least 60 must remain"):
        context.rewind(59)
    assert model("t5")[0].left(9000) > 1 << 30  # relative distances have no limit


def refused(net: object, line: str) -> None:
    with pytest.raises(ModelError, match=line) as caught:
        EncoderDecoder(net, name="mine")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_served_is_refused_by_name() -> None:
    refused(make("t5").to(torch.float16), r"mine \(t5\) is not supported: T5's states overflow float16")
    kept = make("t5").to(torch.float16)
    kept.decoder.block[0].layer[2].DenseReluDense.wo.float()  # as transformers loads it
    refused(kept, "T5's states overflow float16: load it with")
    hooked = make("bart")
    hooked.model.decoder.layers[0].register_forward_hook(lambda *_: None)
    refused(hooked, "its decoder has hooks")
    net = make("t5")
    net.config.decoder_start_token_id = net.generation_config.decoder_start_token_id = None
    refused(net, "names a decoder_start_token_id")

    class Adapter(torch.nn.Linear):
        pass

    changed = make("marian")
    changed.model.decoder.layers[1].fc1 = Adapter(16, 24)
    refused(changed, r"its decoder holds the module Adapter \(quantised, or an adapter\)")
    two = make("marian", share_encoder_decoder_embeddings=False, tie_word_embeddings=False)
    refused(two, "separate vocabularies")
    mixed = make("t5")
    mixed.decoder.block[0].layer[0].layer_norm.float()
    refused(mixed, "several number formats")


def test_the_start_stands_in_the_place_of_the_prompts_last_token() -> None:
    served, _ = model("bart-forced")
    assert served.prefix == [START, 0]
    context = served.open([[3, 4, 5]], ROOM)
    assert (context.length, context.filled) == ([3], [2])
    context.extend([6])
    assert (context.length, context.filled, context.tokens) == ([4], [3], [[3, 4, 5, 6]])
