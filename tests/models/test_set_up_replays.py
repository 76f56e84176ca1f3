"""Replays of the papers' setups on tiny checkpoints: UniSpec with EAGLE's heads, and SSD on LLaDA."""

from __future__ import annotations

import eagles
import pytest
import torch
from checkpoints import tokenizer
from families import make
from test_diffusion_checkpoints import LLADA, tensors, write
from test_eagle_loading import FIRST, THIRD
from test_published_checkpoints import pickled

import specviz
from specviz import cli
from specviz.models.converting import convert
from specviz.replays import setups
from specviz.replays.sources import shared
from specviz.suites import Suite

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Use this test's own checkpoints, and texts in place of the papers'."""
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))

    def texts(self):
        recipe_tasks = self.recipe.parts[next(iter(self.recipe.parts))]
        return {
            task: Suite([{"id": f"{task} {i}", "prompt": f"the mill {i}", **part} for i in range(4)], task)
            for task, part in recipe_tasks.items()
        }

    monkeypatch.setattr(setups.Chosen, "suites", texts)


def test_unispec_beside_the_published_heads(tmp_path, monkeypatch):
    monkeypatch.setattr(eagles, "VOCABULARY", 261)
    monkeypatch.setitem(eagles.CONFIG, "vocab_size", 261)
    monkeypatch.setattr(shared.RunOptions, "best", lambda self, method, values: 4)
    part = setups.Setups().parts["llama31-eagle"]
    words = {"vocab_size": 261, "num_hidden_layers": 8, "max_position_embeddings": 512}
    make("llama", seed=5, **words).save_pretrained(part.model.path, max_shard_size="8KB")
    tokenizer(part.model.path)
    for role, name in (("eagle", FIRST), ("eagle3", THIRD)):
        head = eagles.published(name)
        head.write(part.drafts[role].path)
        pickled(part.drafts[role].path, head.tensors())
        convert(part.drafts[role].path)
    made = specviz.replay("unispec/table3", setup="paper", part="llama31-eagle", dtype="float32", quick=True,
                          number=6, max_new_tokens=6, out=tmp_path / "out")  # fmt: skip
    assert {cell.keys["method"] for cell in made.measured} == {"EAGLE-2", "EAGLE-3", "UNISPEC (ours)"}


def test_ssd_on_a_published_llada(tmp_path):
    part = setups.Setups().parts["llada-math"]
    part.model.path.parent.mkdir()
    write(part.model.path, LLADA | {"max_sequence_length": 256}, tensors(LLADA), shards=2)
    command = ["replay", "ssd/table3", "--setup", "paper", "--part", "llada-math", "--dtype", "float32",
               "--quick", "--number", "2", "-n", "16", "--out", str(tmp_path / "out")]  # fmt: skip
    assert cli.run(command) == 0
    made = specviz.replays.replays.opened(tmp_path / "out")
    assert made.measured
    assert made.sources[0].model == "LLaDA-8B-Instruct"
    assert any(what == "setup" and "precision" in paper for what, paper, _ in made.defined)
