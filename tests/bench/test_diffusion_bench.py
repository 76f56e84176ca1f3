"""`specviz bench diffusion` counts what it says it counts. Nothing here judges a time."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from specviz.bench import diffusion
from specviz.models.diffusion import Diffusion

MASK = 7


class Spelling(Diffusion):
    """Chats are read as a token for each of their first letters."""

    def encode(self, prompt):
        if isinstance(prompt[0], int):
            return prompt
        return [1 + sum(map(ord, message["content"])) % 6 for message in prompt] + [1, 2]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    sizes = {"vocab_size": 37, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 320}
    net = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.35)
    for layer in net.model.layers:
        layer.self_attn.is_causal = False
    return Spelling(net, mask=MASK, shift=1)


@pytest.fixture
def small(monkeypatch):
    """Canvases of few cells."""
    for name, value in {"LENGTH": 8, "SHORT": 8, "LONG": 16, "DRAFTS": (2, 4), "GROWING": (8, 16)}.items():
        monkeypatch.setattr(diffusion, name, value)


def test_every_part_measures_and_every_bar_is_told(model, small, tmp_path):
    told = []
    names = ["exact:8", *(name for name in diffusion.PARTS if name != "exact")]
    found = diffusion.bench(model, parts=names, prompts=2, rounds=1, tick=lambda *a: told.append(a))
    assert all(done <= of for done, of, _ in told)
    ends = {name.partition(":")[0]: (done, of) for done, of, name in told}
    assert all(done == of for done, of in ends.values())
    said = json.loads(found.write(tmp_path / "found.json").read_text())
    assert len(said["bars"]) == 6
    assert said["bars"][0]["value"] == 0  # bugs
    assert said["setting"]["prompts"]["time"] == 2
    for part in found.table, *found.parts:
        assert all(len(row) == len(part.columns) for row in part.cells())
