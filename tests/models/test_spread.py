"""A model spread over devices: its storage is split, and its texts stay the same."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from checkpoints import write
from tiny import llama

import specviz
from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models import Model
from specviz.models.context import Spread

CPU = torch.device("cpu")
PROMPTS = [[5, 9, 11, 9, 5, 9], [7, 8, 7], [3]]


def texts(model, method, **options):
    trace = specviz.generate(model, PROMPTS, method, max_new_tokens=20, **options)
    return trace.outputs[["prompt", "token"]].to_numpy().tolist()


@pytest.fixture
def halves():
    """A three-layer model, and the same with split storage, run by transformers' modules."""
    whole = llama(layers=3)
    parts = Model(whole.net, name="parts", plain=False)
    parts.places = [(CPU, 2), (CPU, 1)]
    return whole, parts


def test_a_storage_in_parts_serves_every_verb(halves):
    whole, parts = halves
    assert isinstance(parts.open([[1, 2]], 4).store, Spread)
    options = {"keep": "prompt"}
    for method in ("autoregressive", "token_recycling", "unispec", "lookahead"):
        given = options if method in ("token_recycling", "unispec") else {}
        assert texts(parts, method, **given) == texts(whole, method, **given), method
    assert texts(parts, "token_recycling", batch=2, **options) == texts(whole, "token_recycling", **options)
    tree = Draft(np.array([4, 5, 6, 7]), np.array([-1, -1, 1, 2]))
    found = []
    for model in (whole, parts):
        context = model.open([[5, 9, 11]], 5)
        scores = [context.forward(tree).logits[0]]
        context.commit([1, 2, 3])  # not a prefix, so keys and values move
        context.reserve(20)  # the storage grows
        scores.append(context.forward(tree).logits[0])
        context.commit([])
        rows = context.branch([4, 6], 6)
        rows.extend([[8], [9]])
        scores += rows.forward([tree, tree]).logits
        rows.commit([[0], [1, 2]])
        rows.drop(0)
        scores += rows.forward([Draft.empty()]).logits
        found.append(scores)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_device_map_on_one_device(tmp_path):
    pytest.importorskip("accelerate")
    folders = write(tmp_path)
    plain = specviz.load(folders.target)
    want = specviz.generate(plain, "the cook", "autoregressive", max_new_tokens=12).outputs["token"].tolist()
    for device_map in ("cpu", {"": "cpu"}):
        model = specviz.load(folders.target, device_map=device_map)
        assert model.places is None
        got = specviz.generate(model, "the cook", "speculative", draft=folders.draft, max_new_tokens=12)
        assert got.outputs["token"].tolist() == want
    with pytest.raises(ModelError, match=r"device_map places .* drop device="):
        specviz.load(folders.target, "cpu", device_map="auto")
    with pytest.raises(ModelError, match="drop device= and give a name"):
        specviz.load(plain.net, device_map="auto")
    with pytest.raises(ModelError, match="does not load as a language model"):
        specviz.load(folders.target, device_map="sideways")
    with pytest.raises(ModelError, match="town-diffusion is not one: drop device_map"):
        specviz.load("town-diffusion", device_map="auto")
    for option in ({"device_map": "auto"}, {"tp_plan": "auto"}, {"backend": "llama.cpp"}):
        with pytest.raises(ModelError, match=r"Bergamot translator.*: drop"):
            specviz.load("bergamot:somewhere", **option)


def test_what_cannot_be_spread_is_refused(halves):
    net = copy.deepcopy(halves[0].net)
    net.model.layers[1].to("meta")
    with pytest.raises(ModelError, match="offloaded"):
        Model(net)


def test_through_the_hooks_of_a_device_map(halves):
    """The hooks that move states between devices pass our cache through; here every device is the CPU."""
    accelerate = pytest.importorskip("accelerate")
    whole, _ = halves
    net = copy.deepcopy(whole.net)
    parts = ["embed_tokens", "rotary_emb", "norm", *(f"layers.{i}" for i in range(3))]
    everywhere = {f"model.{part}": "cpu" for part in parts} | {"lm_head": "cpu"}
    accelerate.dispatch_model(net, everywhere, skip_keys="past_key_values", force_hooks=True)
    assert net.model.layers[1]._hf_hook.execution_device == "cpu"
    model = Model(net, name="hooked", plain=False)
    model.places = [(CPU, 1), (CPU, 1), (CPU, 1)]
    assert texts(model, "token_recycling", keep="prompt", batch=2) == texts(whole, "autoregressive")
