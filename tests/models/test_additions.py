"""Heads and slots on a target: what they compute, what they keep, and which models they fit."""

from __future__ import annotations

import json
from pathlib import Path

import added
import pytest
import torch
from safetensors.torch import save_file
from seq2seq import make

from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.loop.drafters import load_drafter
from specviz.models import Model, load
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.layers import head_rows

torch.set_num_threads(1)
PROMPT, TEXT = [3, 1, 4, 2], [1, 0, 3, 3, 2, 4, 0, 1, 2, 2]
ROOM = 24


@pytest.mark.parametrize("family", ["t5", "t5-gated", "mt5"])
def test_each_head_is_the_papers_layer_on_the_targets_head(family: str) -> None:
    model = added.target(family)
    made = added.heads(model)
    net = made.net.double()
    scale = model.net.config.d_model**-0.5 if getattr(model.net.config, "scale_decoder_outputs", False) else 1
    for state in added.states(model, PROMPT, TEXT[:3]):
        found = made.on(model).guesses(state, 4)
        for i in range(4):  # heads 2 to 5
            h = state + net.offset[i] + torch.relu(state @ net.up[i]) @ net.down[i]
            torch.testing.assert_close(found[i], model.net.lm_head(h * scale).float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["t5", "t5-gated", "mt5"])
def test_slots_say_what_the_trained_module_says(family: str) -> None:
    model = added.target(family)
    made = added.slots(model)
    drafter = made.on(model)
    context = drafter.open([PROMPT], ROOM)
    base = len(PROMPT)

    def check(written: list[int], n: int) -> None:
        assert context.tokens == [PROMPT + written]
        found = context.forward(Draft.chain(drafter.slots[:n])).logits[0][1:]
        torch.testing.assert_close(found, added.filled(model, made, PROMPT, written, n), atol=1e-5, rtol=0)

    context.prefill()
    check([], added.SLOTS)
    check([], 3)  # nothing is pending: the start is read again, the slots are not
    context.extend(TEXT[:4])
    check(TEXT[:4], 5)
    context.extend(TEXT[4:9])  # a block, of which two tokens are kept
    context.rewind(base + 6)
    context.extend([2])
    check([*TEXT[:6], 2], added.SLOTS)
    context.rewind(base + 2)
    check(TEXT[:2], 4)
    context.extend(TEXT[2:9])
    check(TEXT[:9], 6)


def test_rows_fill_as_many_slots_as_each_asks_for() -> None:
    model = added.target()
    made = added.slots(model)
    drafter = made.on(model)
    prompts, texts, asked = [PROMPT, [2, 0], [1]], [TEXT[:3], [], TEXT[:5]], [2, 7, 0]
    context = drafter.open(prompts, ROOM)
    context.extend(texts)
    drafts = [Draft.chain(drafter.slots[:n]) for n in asked]
    for _ in range(2):  # the second time from the cache
        found = context.forward(drafts).logits
        for prompt, text, n, logits in zip(prompts, texts, asked, found):
            if n:
                want = added.filled(model, made, prompt, text, n)
                torch.testing.assert_close(logits[1:], want, atol=1e-5, rtol=0)


def test_the_target_reads_the_prompt_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    model = added.target()
    calls = []
    run = model.encoder.net.forward
    monkeypatch.setattr(model.encoder.net, "forward", lambda *a, **k: (calls.append(1), run(*a, **k))[1])
    context = model.open([PROMPT], ROOM)
    assert context.prefill() == len(PROMPT)
    beside = added.slots(model).on(model).open([PROMPT], ROOM)
    assert beside.prefill() == 0
    beside.forward(Draft.empty())
    context.forward(Draft.empty())
    assert len(calls) == 1
    assert beside.source.states.data_ptr() == context.source.states.data_ptr()


def test_a_target_that_was_trained_is_read_again() -> None:
    model = added.target()
    made = added.slots(model)
    drafter = made.on(model)
    drafter.open([PROMPT], ROOM).forward(Draft.empty())
    with torch.no_grad():
        model.net.shared.weight.mul_(1.5)
    model.open([PROMPT], ROOM)
    found = drafter.open([PROMPT], ROOM).forward(Draft.chain(drafter.slots)).logits[0][1:]
    want = added.filled(model, made, PROMPT, [], added.SLOTS)
    torch.testing.assert_close(found, want, atol=1e-5, rtol=0)


def test_nothing_trained_is_changed_by_binding() -> None:
    model = added.target()
    for made in (added.heads(model), added.slots(model)):
        bound = made.on(model)
        assert bound.dtype == torch.float64
        assert {p.dtype for p in made.net.parameters()} == {torch.float32}
        assert bound.on(model) is bound
        assert bound.parameters == made.parameters > 0
        assert bound.vocabulary == model.vocabulary


@pytest.mark.parametrize("make_one", [added.heads, added.slots])
def test_whom_they_do_not_fit(make_one) -> None:
    model = added.target()
    made = make_one(model)
    other = EncoderDecoder(model.net, name="other")
    wide = EncoderDecoder(make("t5", d_model=20), name="large")
    with pytest.raises(ModelError, match=r"was trained on large, and other is a different model"):
        made.on(other)
    with pytest.raises(ModelError, match=r"was trained on large of width 16, and this one's is 20"):
        made.on(wide)
    line = f"{made.name} is not a model by itself but {made.kind} on large: decode with large and pass it as"
    with pytest.raises(ModelError, match=line):
        made.open([[1]], 3)


def test_slots_are_for_a_t5() -> None:
    from families import make as causal

    model = added.target()
    bart = EncoderDecoder(make("bart"), name="large")
    with pytest.raises(ModelError, match="was trained on a T5, and large is a bart"):
        added.slots(model).on(bart)
    llama = Model(causal("llama"), name="large")
    with pytest.raises(ModelError, match="was trained on large, and large is causal: use a drafter that"):
        added.slots(model).on(llama)
    assert added.heads(model).on(llama).guesses(torch.zeros(16), 2).shape == (
        2,
        37,
    )  # heads fit any model


def test_a_drafter_cut_out_of_its_target_names_it_as_it_is_loaded() -> None:
    line = "by itself but a drafter cut out of smollm2: decode with smollm2 and pass it as the draft$"
    with pytest.raises(ModelError, match=f"^smollm2-draft is not a model {line}"):
        load("smollm2-draft").encode("Who")


def test_kernels_are_those_of_the_target() -> None:
    for layout, line in (
        ("plain", "but an EAGLE drafter on town, and drafts in its layout or in eight bits: drop kernels="),
        ("mkl", "kernels is auto, pl"),
    ):
        with pytest.raises(ModelError, match=line):
            load("town-eagle", kernels=layout)
    town = load("town", dtype="float32", kernels="plain")
    assert load_drafter(town, "town-eagle", None, None, "w8a8").kernels == "plain"
    assert load_drafter(town, "town-draft", None, None, "transposed").kernels == "transposed"


def folder(path: Path, made, kind: str, **config: object) -> Path:
    path.mkdir()
    save_file(made.net.state_dict(), path / "model.safetensors")
    known = {"model_type": f"specviz-{kind}", "target": "large", "width": 16} | config
    (path / "config.json").write_text(json.dumps(known))
    return path


def test_folders(tmp_path: Path) -> None:
    model = added.target()
    one, two = added.heads(model), added.slots(model)
    shape = {"slots": added.SLOTS, "layers": 2, "heads": 2, "feed_forward": 24}
    heads = folder(tmp_path / "my-heads", one, "blockwise", heads=added.HEADS, inner=12)
    slots = folder(tmp_path / "my-slots", two, "slots", **shape)
    for path, made in ((heads, one), (slots, two)):
        found = load(path)
        assert (found.name, found.kind, found.most) == (path.name, made.kind, made.most)
        assert found.parameters == made.parameters
        for key, value in found.net.state_dict().items():
            torch.testing.assert_close(value, made.net.state_dict()[key])
    state = added.states(model, PROMPT, TEXT)[-1]
    torch.testing.assert_close(load(heads).on(model).guesses(state, 3), one.on(model).guesses(state, 3))
    for name, config in (
        ("few", {"slots": 3}), ("no-target", {"target": None}), ("no-layers", {"layers": None}),
    ):  # fmt: skip
        bad = folder(tmp_path / name, two, "slots", **(shape | config))
        if name == "no-target":
            (bad / "config.json").write_text(json.dumps({"model_type": "specviz-slots", "width": 16} | shape))
        with pytest.raises(ModelError, match=r"does not load as slots: \S") as raised:
            load(bad)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("tokens", [[0, 1, 1], [0, 10**6], [-1, 2]])
def test_a_head_of_tokens_that_its_target_lacks_or_has_twice_is_refused(tokens: list[int]) -> None:
    with pytest.raises(ModelError, match="names a token twice, or one beyond"):
        head_rows(added.target("t5").net, torch.tensor(tokens))
