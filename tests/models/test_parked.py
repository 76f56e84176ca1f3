"""Originals of packed weights move to files: numbers and later changes stay, and the disk may be full."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.draft import Draft
from specviz.models import parked
from specviz.models.kernels import PLAIN, TRANSPOSED, lay
from specviz.models.model import Model

PROMPT = [[3, 1, 4, 1, 5]]


def tiny(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def logits(model: Model) -> torch.Tensor:
    context = model.open(PROMPT, 4)
    context.prefill()
    return context.forward(Draft.empty("end")).logits[0]


@pytest.fixture(autouse=True)
def every_size(monkeypatch, tmp_path):
    monkeypatch.setattr(parked, "LEAST", 1)
    monkeypatch.setattr(parked, "FREE", 0.0)
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))


def test_a_packed_model_parks_the_matrices_and_computes_the_same(tmp_path):
    net = tiny()
    values = {name: p.clone() for name, p in net.named_parameters()}
    before = logits(Model(net, kernels=PLAIN))
    assert not any(parked._is_parked(p) for p in net.parameters()), (
        "the plain layout reads the weights themselves"
    )
    model = Model(net, kernels=TRANSPOSED)
    matrices = {name for name, p in net.named_parameters() if p.ndim == 2}
    assert {name for name, p in net.named_parameters() if parked._is_parked(p)} == matrices - {
        "model.embed_tokens.weight"
    }
    assert all(torch.equal(p, values[name]) for name, p in net.named_parameters())
    torch.testing.assert_close(logits(model), before)
    assert not any((tmp_path / "home").iterdir()), "the files have no names"


def test_a_second_model_shares_the_laid_out_matrices():
    net = tiny()
    model = Model(net, kernels=TRANSPOSED)
    addresses = [p.data_ptr() for p in net.parameters()]
    first = model.first(1)
    assert [p.data_ptr() for p in net.parameters()] == addresses
    ours, theirs = model.plain_function, first.plain_function
    assert ours.head.product is theirs.head.product
    assert ours.weights[0].down.product is lay([net.model.layers[0].mlp.down_proj.weight], TRANSPOSED)


def test_a_changed_weight_keeps_its_change():
    net = tiny()
    model = Model(net, kernels=TRANSPOSED)
    before = logits(model)
    net.lm_head.weight.mul_(2)
    assert parked._is_parked(net.lm_head.weight)
    changed = net.lm_head.weight.clone()
    torch.testing.assert_close(logits(model), 2 * before)
    Model(net, kernels=TRANSPOSED)  # drops the pages of newly parked weights alone
    assert torch.equal(net.lm_head.weight, changed)


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_weights_stay_in_memory_if_they_cannot_be_written(monkeypatch, tmp_path, fault):
    if fault == "full":
        monkeypatch.setattr(parked, "FREE", 0.1)
        usage = SimpleNamespace(total=1000, used=950, free=50)
        monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    else:
        (tmp_path / "home").write_text("a file, so no folder can be made")
    net = tiny()
    before = logits(Model(net, kernels=PLAIN))
    torch.testing.assert_close(logits(Model(net, kernels=TRANSPOSED)), before)
    assert not any(parked._is_parked(p) for p in net.parameters())
