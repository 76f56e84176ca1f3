"""Mixtures of experts: the weights that a pass reads depend on the experts its tokens choose."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import specviz
from specviz import metrics
from specviz.metrics.costs import Shape
from specviz.models import experts, geometry
from specviz.models.model import Model

WIDTHS = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip


def qwen() -> torch.nn.Module:
    config = Qwen3MoeConfig(
        **WIDTHS, head_dim=8, intermediate_size=48, moe_intermediate_size=24, num_experts=8,
        num_experts_per_tok=2, decoder_sparse_step=1, tie_word_embeddings=False,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(config)


def mixtral() -> torch.nn.Module:
    config = MixtralConfig(**WIDTHS, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2)
    return MixtralForCausalLM(config)


FAMILIES = {"qwen3_moe": (qwen, 8, 3 * 32 * 24), "mixtral": (mixtral, 6, 3 * 32 * 24)}


@pytest.fixture(params=FAMILIES)
def mixture(request):
    """A random mixture of experts, its number of experts and one expert's number of elements."""
    make, count, elements = FAMILIES[request.param]
    torch.manual_seed(0)
    net = make()
    for name, parameter in net.named_parameters():
        if parameter.ndim > 1 and "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3)  # so that the routers separate tokens
    return Model(net.eval(), name=request.param, plain=False), count, elements


def test_its_counts_are_those_of_its_parameters(mixture):
    model, count, elements = mixture
    own = model.geometry["experts"]
    assert (own["count"], own["chosen"], own["elements"]) == (count, 2, elements)
    assert own["shared"] == 32 * count, "the router"
    shape = Shape(model.geometry)
    embedding = 96 * 32
    assert shape.weights(1, 10_000) == pytest.approx(4 * (model.parameters - embedding))
    idle = 3 * (count - 2) * elements
    assert shape.weights(1, 1) == pytest.approx(4 * (model.parameters - embedding - idle))


def test_its_flops_are_those_of_its_products(mixture):
    model, _, _ = mixture
    model.net.set_experts_implementation("eager")
    ids = torch.arange(12)[None]
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model.net(ids, use_cache=False)
    counted = counter.get_total_flops()
    shape = Shape(model.geometry)
    products = shape.flops(12, 0, 12)
    assert products <= counted <= shape.flops(12, 12 * 12, 12), "with or without the fused attention's"


def test_what_tokens_choose_is_counted(mixture):
    model, count, _ = mixture
    shape = Shape(model.geometry)
    rng = np.random.default_rng(1)
    texts = rng.integers(0, 96, (6, 80)).tolist()
    chosen = experts.choices(model.net, texts)
    assert [each.shape for each in chosen] == [(3, 80, 2)] * 6
    counts = experts.touched(chosen, count, [1, 2, 4, 8, 200])
    assert counts[1] == 2 and 200 not in counts
    assert list(counts.values()) == sorted(counts.values())
    by_hand = [
        len(set(text[layer, i : i + 4].ravel())) for text in chosen for layer in range(3) for i in range(77)
    ]
    assert counts[4] == pytest.approx(np.mean(by_hand))
    even = [rng.random((3, 4000, count)).argsort(-1)[..., :2]]
    for size, measured in experts.touched(even, count, [2, 4, 8]).items():
        expected = float(shape.touched(size))
        assert measured == pytest.approx(expected, rel=0.02)
        assert 2 < counts[size] < 1.02 * expected, "a router that prefers some experts reads fewer"
    assert not any(each._forward_pre_hooks for each in model.net.modules())


def test_tokens_that_choose_alike_touch_fewer(mixture):
    model, count, _ = mixture
    chosen = experts.choices(model.net, [[7] * 30])
    first = [chosen[0][:1]]  # the first layer's router sees equal tokens only
    assert experts.touched(first, count, [8])[8] == 2
    assert float(Shape(model.geometry).touched(8)) > 4


def test_passes_of_a_run_are_priced(mixture):
    model, _, elements = mixture
    trace = specviz.generate(model, [[3, 4, 5, 3, 4], [6, 7]], "prompt_lookup", max_new_tokens=12, batch=2)
    costs = metrics.pass_costs(trace)
    shape = Shape(model.geometry)
    for row in costs[~costs["prefill"]].itertuples():
        fed = row.tokens
        assert row.weights == pytest.approx(shape.weights(1, fed) + fed * shape.embedded)
    more = shape.weights(1, 2) - shape.weights(1, 1)
    assert more == pytest.approx(4 * 3 * elements * (float(shape.touched(2)) - 2))


def test_a_mixture_whose_layers_differ_has_no_shape():
    config = Qwen3MoeConfig(
        **WIDTHS, head_dim=8, intermediate_size=48, moe_intermediate_size=24, num_experts=8,
        num_experts_per_tok=2, mlp_only_layers=[1],
    )  # fmt: skip
    assert Model(Qwen3MoeForCausalLM(config).eval(), name="mixed", plain=False).geometry is None


def test_a_files_counts_come_from_its_metadata():
    layers, hidden, heads, inner, count, vocabulary = 2, 64, 4, 32, 8, 100
    attention = hidden * 16 * (2 * heads + 2 * heads)
    matrices = layers * (attention + count * hidden + count * 3 * hidden * inner) + 2 * vocabulary * hidden
    values = {
        "general.architecture": "qwen3moe", "qwen3moe.block_count": layers,
        "qwen3moe.embedding_length": hidden, "qwen3moe.attention.head_count": heads,
        "qwen3moe.feed_forward_length": 999, "qwen3moe.expert_count": count,
        "qwen3moe.expert_used_count": 2, "qwen3moe.expert_feed_forward_length": inner,
    }  # fmt: skip
    meta = {name: str(value) for name, value in values.items()}.get
    made = geometry.gguf(meta, matrices + 5 * hidden, 4 * (matrices + 5 * hidden), 2, vocabulary)
    own = {"count": 8, "chosen": 2, "elements": 3 * hidden * inner, "shared": count * hidden}
    assert made["experts"] == own and made["gated"] and not made["tied"]
    assert geometry.gguf(meta, matrices + 10**6, 1, 2, vocabulary) is None
    more = {**values, "qwen3moe.expert_used_count": 9}
    meta = {name: str(value) for name, value in more.items()}.get
    assert geometry.gguf(meta, matrices + 5 * hidden, 1, 2, vocabulary) is None
