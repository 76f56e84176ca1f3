"""A drafter's arithmetic: against the papers' formulas, in parts, in trees, and against its training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from eagles import CONFIG, FORMATS, ROWS, Reference, published, raw, reduced, states, target
from torch import Tensor
from transformers import LlamaConfig

import specviz as sv
from specviz.finetune.eagle_loss import DECAY
from specviz.models import load
from specviz.models.additions import EagleHead
from specviz.models.eagle import Eagle, Variant
from specviz.models.eagle_model import EagleContext, EagleModel
from specviz.models.layers import over_all
from town.training.eagle import ReadingLoss

torch.set_num_threads(1)
TEXT = [5, 11, 2, 30, 7, 7, 19, 36]  # seven pairs
CLOSE = {"atol": 3e-4, "rtol": 1e-4}  # the table of angles is in float32


def drafter(name: str, folder: Path) -> tuple[EagleModel, Reference]:
    made = published(name)
    model = target()
    found = load(made.write(folder / "head")).on(model)
    assert (found.generation, found.layers) == (made.generation, made.layers)
    return found, Reference(made, model.net)


def opened(model: EagleModel, room: int = 40) -> EagleContext:
    return model.open([TEXT], room)


def pairs(model: EagleModel, first: int = 0, last: int = len(TEXT) - 1) -> tuple[Tensor, Tensor]:
    """Tokens and target states of the text's pairs."""
    found = states(model.target, model.layers, TEXT)
    return torch.tensor(TEXT)[first + 1 : last + 1], found[first:last]


@pytest.mark.parametrize("name", FORMATS)
def test_a_tree_says_what_the_formulas_say_of_its_paths(name: str, tmp_path: Path) -> None:
    model, reference = drafter(name, tmp_path)
    context = opened(model)
    tokens, given = pairs(model)
    whole = opened(model).read(tokens, given)
    context.read(tokens[:1], given[:1])
    context.read(tokens[1:4], given[1:4])
    state, logits = context.read(tokens[4:], given[4:])
    text = tokens.tolist()
    for one, other in zip((state, logits), whole):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    want = reference.path(text, given, [])
    torch.testing.assert_close(state[0], want[0], **CLOSE)
    torch.testing.assert_close(over_all(logits[0].double(), model.tokens, 37), want[1], **CLOSE)
    #        root - 3 - 9 - 1
    #              \   \ 8
    #               6 - 9 - 4
    # For each level: tokens, their parents among the nodes read, and the rows whose states they read.
    levels = [([3, 6], None, [0, 0]), ([9, 8, 9], [0, 0, 1], [0, 0, 1]), ([1, 4], [2, 4], [0, 2])]
    paths: list[list[int]] = []
    for read, above, rows in levels:
        known = len(paths)
        paths += [([] if above is None else paths[above[i]]) + [token] for i, token in enumerate(read)]
        at = None if above is None else torch.tensor(above)
        state, logits = context.grow(torch.tensor(read), state[rows], at)
        for i, path in enumerate(paths[known:]):
            want = reference.path(text, given, path)
            torch.testing.assert_close(state[i], want[0], **CLOSE)
            torch.testing.assert_close(over_all(logits[i].double(), model.tokens, 37), want[1], **CLOSE)


@pytest.mark.parametrize("name", ["authors, EAGLE-1", "authors, EAGLE-3"])
def test_what_is_read_takes_the_place_of_the_tree(name: str, tmp_path: Path) -> None:
    model, _ = drafter(name, tmp_path)
    tokens, given = pairs(model)
    whole = opened(model).read(tokens, given)
    context = opened(model)
    state, _ = context.read(tokens[:3], given[:3])
    context.grow(torch.tensor([8, 9, 10, 11, 12, 13]), state.expand(6, -1), None)
    tree = context.store.data[..., 3:9, :].clone()
    context.store.data[..., 9:, :] = torch.nan  # slots after the tree must not be read
    context.read(tokens[3:5], given[3:5])
    assert not torch.isclose(context.store.data[..., 3:5, :], tree[..., :2, :]).any()
    torch.testing.assert_close(context.store.data[..., 5:9, :], tree[..., 2:, :], atol=0, rtol=0)
    context.store.data[..., 5:, :] = torch.nan  # the rest of the tree must not be read either
    found = context.read(tokens[5:], given[5:])
    for one, other in zip(found, whole):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
    # A second tree starts where the text now ends.
    first, second = opened(model), context
    first.read(tokens, given)
    grown = [each.grow(torch.tensor([4]), whole[0], None)[0] for each in (first, second)]
    torch.testing.assert_close(*grown, atol=1e-9, rtol=0)


def test_numbers_of_positions_are_as_exact_in_any_format(tmp_path: Path) -> None:
    head = load(published("authors, EAGLE-3").write(tmp_path / "head"))
    half, whole = (
        opened(head.on(target(dtype=dtype))).model.arithmetic.rotary(4096)[0]
        for dtype in (torch.bfloat16, torch.float32)
    )
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, whole.bfloat16())


def test_a_target_that_was_trained_is_read_anew(tmp_path: Path) -> None:
    model, _ = drafter("with the target's head", tmp_path)
    tokens, given = pairs(model)
    before = opened(model).read(tokens, given)[1]
    with torch.no_grad():
        model.target.net.lm_head.weight.mul_(2)
    torch.testing.assert_close(opened(model).read(tokens, given)[1], 2 * before, **CLOSE)


def test_embeddings_and_a_head_that_are_the_targets_are_not_kept_twice(tmp_path: Path) -> None:
    model = target()
    made = published("vllm, EAGLE-1")
    made.raw["embed_tokens.weight"] = model.net.get_input_embeddings().weight.detach().float()
    made.raw["lm_head.weight"] = model.net.lm_head.weight.detach().float()
    head = load(made.write(tmp_path / "head"))
    found = head.on(model)
    assert found.net.embed_tokens is None and found.net.lm_head is None
    assert found.parameters == head.parameters - 2 * 37 * 16
    opened(found)
    assert found.arithmetic.embedding.data_ptr() == model.net.model.embed_tokens.weight.data_ptr()
    assert head.net.embed_tokens is not None  # the loaded head is unchanged
    other = head.on(target(rms_norm_eps=1e-3))
    assert other.net.embed_tokens is None
    with torch.no_grad():
        model.net.lm_head.weight[3, 2] += 1
    assert head.on(model).net.lm_head is not None


# -- targets --------------------------------------------------------------------------------------------

TARGETS = [("llama", True), ("llama", False), ("gpt2", False), ("gemma", False), ("qwen3", True)]


@pytest.mark.parametrize("kind", ["authors, EAGLE-1", "authors, EAGLE-3"])
@pytest.mark.parametrize(("name", "plain"), TARGETS)
def test_any_causal_target_gives_its_states(name: str, plain: bool, kind: str, tmp_path: Path) -> None:
    model = target(name, torch.float32)
    model = type(model)(model.net, name="village", plain=plain)
    head = load(published(kind).write(tmp_path / "head"))
    found = head.on(model)
    context = model.open([TEXT], 4)
    context.prefill(hidden=found.layers)
    got = torch.cat([context.states[0][layer] for layer in found.layers], -1)
    torch.testing.assert_close(got, states(model, found.layers, TEXT)[:-1], atol=1e-4, rtol=1e-4)
    options = {"max_new_tokens": 8, "draft_size": 6}
    trace = sv.generate(model, TEXT, "eagle", draft=head, **options)
    plainly = sv.generate(model, TEXT, "autoregressive", max_new_tokens=8)
    assert trace.outputs.token.tolist() == plainly.outputs.token.tolist()
    assert len(trace.nodes)


def test_asking_transformers_for_states_changes_nothing_here() -> None:
    """The hooks that transformers leaves on a model only record states, so the model still is plain."""
    model = target("llama", torch.float32)
    net = model.net
    states(model, (1,), TEXT)
    assert any(part._forward_hooks for part in net.modules())
    again = type(model)(net, name="village")
    assert again.plain and again.first(2).plain
    wanted = sv.generate(model, TEXT, "autoregressive", max_new_tokens=6).outputs.token.tolist()
    assert sv.generate(again, TEXT, "autoregressive", max_new_tokens=6).outputs.token.tolist() == wanted
    net.model.layers[1].register_forward_hook(lambda *_: None)
    assert not type(model)(net).plain  # a user's own hook would not be called


# -- training -------------------------------------------------------------------------------------------


def trained(generation: int, model: object, rows: int | None = None) -> EagleHead:
    """A random drafter, built as the recipes build it."""
    config = LlamaConfig(**{key: value for key, value in CONFIG.items() if key != "architectures"})
    net = Eagle(config, generation, rows)
    names = {"midlayer.": "", "layers.0.": ""}
    tensors = raw(generation, rows=rows or 37)
    with torch.no_grad():
        for name, value in net.named_parameters():
            for start in names:
                name = name.removeprefix(start)
            value.copy_(tensors[name])
        if rows is not None:
            net.d2t.copy_(reduced()["d2t"])
    return EagleHead(net.eval(), {"target": "village", "eagle_aux_hidden_state_layer_ids": [1, 4, 6]}, "head")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("rows", [None, ROWS])
def test_the_training_time_test_is_what_drafting_does(rows: int | None, family: str) -> None:
    """EAGLE-3's loss equals a sum over real drafting, in which every position starts a chain."""
    model = target(family)
    head = trained(3, model, rows)
    steps = 4
    loss = ReadingLoss(model.net, (1, 4, 6), steps)
    said = np.array([[False, False, True, True, False, True, True, True]])
    net = head.net.double()
    got, shown = loss(net, np.array([TEXT]), said, 1.0)
    drafting = EagleModel(head, model)
    tokens, given = pairs(drafting)
    with torch.no_grad():
        p = model.net(torch.tensor([TEXT])).logits[0].softmax(-1)
    kept = torch.arange(37) if net.tokens is None else net.tokens
    want, first = 0.0, 0.0
    for i in range(len(TEXT) - 2):
        context = opened(drafting)
        state, logits = context.read(tokens[: i + 1], given[: i + 1])
        for step in range(min(steps, len(TEXT) - 2 - i)):
            if step:
                above = torch.tensor([step - 2]) if step > 1 else None
                state, logits = context.grow(tokens[i + step][None], state, above)
            if said[0, i + 2] and said[0, i + 2 + step]:
                q = logits[0].log_softmax(-1)
                wanted = p[i + 1 + step, kept] / p[i + 1 + step, kept].sum()
                cross = -float((wanted * q).sum())
                want += DECAY**step * cross
                first += cross if step == 0 else 0.0
    assert float(got) == pytest.approx(want, rel=1e-5)
    assert float(shown) == pytest.approx(first, rel=1e-5)


def test_features_are_learnt_as_they_are_drafted() -> None:
    """EAGLE-1's loss equals a sum over a drafter's steps at every position."""
    model = target()
    head = trained(1, model)
    said = np.array([[False, False, True, True, False, True, True, True]])
    got, shown = ReadingLoss(model.net)(head.net.double(), np.array([TEXT]), said, 1.0)
    drafting = EagleModel(head, model)
    tokens, given = pairs(drafting)
    with torch.no_grad():
        p = model.net(torch.tensor([TEXT])).logits[0].softmax(-1)
    wanted = states(model, (8,), TEXT)
    cross, imitated = 0.0, 0.0
    for i in np.flatnonzero(said[0, 2:]).tolist():
        state, logits = opened(drafting).read(tokens[: i + 1], given[: i + 1])
        cross -= float((p[i + 1] * logits[0].log_softmax(-1)).sum())
        imitated += float(torch.nn.functional.smooth_l1_loss(state[0], wanted[i + 1], reduction="mean"))
    assert float(shown) == pytest.approx(cross, rel=1e-5)
    assert float(got) == pytest.approx(cross + imitated, rel=1e-5)


def test_a_recipes_drafter_has_the_names_that_are_published() -> None:
    first, third = trained(1, None).net, trained(3, None, ROWS).net
    assert first.variant == Variant(head=False) and third.variant == Variant()
    assert set(published("authors, EAGLE-3").tensors()) - {"t2d"} == set(third.state_dict())
    ours = set(published("authors, EAGLE-1").tensors()) - {"fc.bias", "embed_tokens.weight"}
    assert ours == set(first.state_dict())
