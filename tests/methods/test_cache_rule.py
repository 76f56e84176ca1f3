"""Fast-dLLM's own dual-cache rule, against its procedure written with transformers' modules."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

import specviz
from specviz import metrics
from specviz.errors import TraceError
from specviz.models.diffusion import Diffusion

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from canvases import tiny

torch.set_num_threads(1)
RULE = {"cache": "dual", "cache_rule": "fast_dllm", "whole": True}
LENGTH, BLOCK = 12, 4


class Replaced(CacheLayerMixin):
    """Keys and values of a whole canvas; a pass over a block replaces those of the block."""

    at: slice | None = None

    def update(self, key, value, *_, **__):
        if self.at is None:
            self.keys, self.values = key.clone(), value.clone()
        else:
            self.keys[:, :, self.at], self.values[:, :, self.at] = key, value
        return self.keys, self.values

    def lazy_initialization(self, *_):
        pass

    def get_mask_sizes(self, *_):
        return self.keys.shape[-2], 0

    def get_seq_length(self):
        return 0

    def get_max_length(self):
        return -1


@torch.no_grad()
def published(model: Diffusion, prompt: list[int], threshold: float) -> tuple[list[int], int]:
    """Write a canvas by Fast-dLLM's procedure for Dream (shifted) or LLaDA; count its passes."""
    text = torch.tensor([[*prompt, *[model.mask] * LENGTH]])
    places = torch.arange(text.shape[1])[None]
    cache, passes = Cache(layers=[Replaced() for _ in range(model.layers)]), 0

    def scores(part: slice, at: slice | None) -> torch.Tensor:
        nonlocal passes
        passes += 1
        for layer in cache.layers:
            layer.at = at
        n = text[:, part].shape[1]
        sees = torch.zeros(1, 1, n, text.shape[1], dtype=model.dtype)
        given = {"position_ids": places[:, part], "past_key_values": cache, "use_cache": True}
        logits = model.net(text[:, part], attention_mask=sees, **given).logits[0]
        logits[:, model.mask] = -torch.inf
        return torch.cat((logits[:1], logits[:-1])) if model.shift else logits

    for low in range(len(prompt), text.shape[1], BLOCK):
        block = slice(low, low + BLOCK)
        of = scores(slice(None), None)[block]
        first = True
        while (text[0, block] == model.mask).any():
            if not first:
                of = scores(block, block)
            p, token = of.softmax(-1).max(-1)
            p[text[0, block] != model.mask] = -1
            chosen = p > threshold
            chosen[p.argmax()] = True
            if first and model.shift:
                chosen = torch.arange(BLOCK) == 0  # whatever its probability
            text[0, block][chosen] = token[chosen]
            first = False
    return text[0, len(prompt) :].tolist(), passes


def cells_of(trace: specviz.Trace) -> dict[int, int]:
    table = trace.outputs
    return dict(zip(table["position"].tolist(), table["token"].tolist()))


@pytest.mark.parametrize("shift", [0, 1], ids=["in place", "shifted"])
@pytest.mark.parametrize("threshold", [1.0, 0.12])
def test_texts_are_those_of_the_published_procedure(shift: int, threshold: float) -> None:
    parted = fewer = 0
    for seed in range(6):
        model = tiny(seed, shift)
        prompt = [9, 2, 11, 4][: 2 + seed % 3]
        wanted, passes = published(model, prompt, threshold)
        given = RULE | {"max_new_tokens": LENGTH, "block": BLOCK}
        trace = specviz.generate(model, [prompt], "fast_dllm", threshold=threshold, **given)
        assert cells_of(trace) == dict(enumerate(wanted))
        assert len(trace.passes.query("cycle > 0")) == passes
        ours = specviz.generate(
            model, [prompt], "fast_dllm", threshold=threshold, **given | {"cache_rule": "predictor"}
        )
        parted += cells_of(ours) != cells_of(trace)
        fewer += passes < LENGTH
    assert bool(parted) or not shift  # the other rule writes another text
    assert bool(fewer) == (threshold < 1)


@pytest.mark.parametrize("shift", [0, 1], ids=["in place", "shifted"])
@pytest.mark.parametrize("tree", ["chain", "mix"])
def test_ssd_writes_what_stepwise_writes(shift: int, tree: str) -> None:
    accepted = begun = 0
    for seed in range(5):
        model, rng = tiny(seed, shift), np.random.default_rng(seed)
        prompts = [rng.integers(6, 20, size=n).tolist() for n in (3, 5)]
        given = RULE | {"max_new_tokens": LENGTH, "block": BLOCK}
        steps = specviz.generate(model, prompts, "stepwise", **given)
        ssd = specviz.generate(model, prompts, "ssd", draft_length=3, tree=tree, batch=2, **given)
        columns = ["prompt", "position", "token"]
        one, other = (
            trace.outputs.sort_values(["prompt", "cycle"], kind="stable")[columns] for trace in (steps, ssd)
        )
        assert one.to_numpy().tolist() == other.to_numpy().tolist()
        accepted += int((ssd.nodes["status"] == "accepted").sum())
        # In a new block, a shifted model places the first cell first, so a chain begins there.
        root = ssd.nodes[(ssd.nodes["parent"] == -1) & (ssd.nodes["node"] == 0)]
        placed = ssd.outputs.groupby(["prompt", "cycle"])["position"].count().groupby("prompt").cumsum()
        before = [placed.get((prompt, cycle - 1), 0) for prompt, cycle in zip(root["prompt"], root["cycle"])]
        new = root[np.array(before) % BLOCK == 0]
        assert (new["position"] % BLOCK == 0).all() or not shift
        begun += len(new)
    assert accepted and begun


def test_what_reads_states_asks_for_the_other_rule() -> None:
    options = RULE | {"max_new_tokens": 8, "block": 4}
    stepwise, ssd = (
        specviz.generate(tiny(0, 1), [[9, 2, 11]], *method, **options | more)
        for method, more in ((["stepwise"], {}), (["ssd"], {"draft_length": 3}))
    )
    question = specviz.whatif(stepwise)
    assert "used Fast-dLLM's cache rule" in repr(question)
    for refused in (
        lambda: question.ssd(draft_length=[2]),
        lambda: metrics.acceptance_limit(stepwise, [2], [1]),
        lambda: metrics.failures(ssd),
    ):
        with pytest.raises(TraceError, match="cache_rule='predictor'"):
            refused()
    assert ssd.nodes["status"].isin(["accepted", "rejected"]).any()
    assert len(metrics.recheck(ssd)) == 0


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_counts_need_no_states(cache: str) -> None:
    options = RULE | {"cache": cache, "max_new_tokens": 8, "block": 4}
    stepwise = specviz.generate(tiny(0, 1), [[9, 2, 11]], "stepwise", **options)
    ssd = specviz.generate(tiny(0, 1), [[9, 2, 11]], "ssd", draft_length=3, **options)
    table = metrics.by_canvas(ssd, stepwise).iloc[0]
    assert (table["placed"], table["stepwise"], table["passes"]) == (8, 8, len(ssd.cycles) - 1)
    assert metrics.step_reduction(stepwise).median == 0
    assert metrics.valid_tokens_per_second(ssd) > 0
    assert metrics.compare_canvases({"ssd": ssd}, stepwise)["same_order"].tolist() == [1]
    if cache == "none":  # the rule does not apply
        assert len(metrics.recheck(ssd)) and metrics.recheck(ssd)["agrees"].all()
        assert specviz.whatif(stepwise).ssd(draft_length=2).badge == "exact"
        assert metrics.acceptance_limit(stepwise, [2], [1])["steps"].tolist() == [8]


@pytest.mark.parametrize("tree", ["chain", "mix"])
def test_by_the_other_rule_a_refresh_limits_no_draft(tree):
    """`refresh` has an effect only under `predictor`."""
    text = "Translate into German: The doctor bought a red bicycle."
    options = {
        "cache": "dual",
        "cache_rule": "fast_dllm",
        "draft_length": 4,
        "tree": tree,
        "max_new_tokens": 16,
    }
    runs = [specviz.generate("town-diffusion", text, "ssd", refresh=n, **options) for n in (2, 8)]
    assert runs[0].texts == runs[1].texts and len(runs[0].cycles) == len(runs[1].cycles)
