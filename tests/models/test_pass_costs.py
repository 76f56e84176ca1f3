"""What passes cost: counted from the record, against PyTorch's own counter around the passes themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import CONFIGS, PLAIN, VOCABULARY, make
from seq2seq import CONFIGS as FAMILIES
from seq2seq import make as make_pair
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import specviz
from specviz import metrics
from specviz.draft import Draft
from specviz.loop.clock import Watched
from specviz.metrics.costs import Shape
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.model import Model

torch.set_num_threads(1)
PROMPTS = [[3, 4, 5, 6, 7, 3, 4], [9]]
METHODS = {
    "autoregressive": {},
    "speculative": {"draft_length": 3},
    "bild": {"fallback": 0.2, "rollback": 3.0},
    "unispec": {"draft_size": 8},
    "lookahead": {"draft_size": 20, "window": 4},
}


def count(run):
    """FLOPs of the products that `run` calls, by PyTorch's counter, and what `run` gave.

    The counter knows no fused attention kernel of the CPU, so attention is composed of its products. A norm
    is no product of matrices, but `RMSNorm` has its sum of squares made by one (baddbmm): left out.
    """
    norms = {torch.ops.aten.baddbmm: lambda *shapes, out_shape=None, **more: 0}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=norms) as counter:
        result = run()
    return counter.get_total_flops(), result


@pytest.fixture
def counted(monkeypatch):
    """Of every pass that is recorded from now on, what the counter found, in order."""
    found = []
    forward, prefill = Watched.forward, Watched.prefill

    def watched(context, draft, hidden=()):
        flops, result = count(lambda: forward(context, draft, hidden))
        found.append(flops)
        return result

    def watched_prefill(context):
        flops, tokens = count(lambda: prefill(context))
        if tokens:
            # transformers' causal models have no pass without a head: one row of it, which nobody reads.
            idle = context.model.kind == "causal" and not context.model.plain
            found.append(flops - idle * 2 * context.model.config.hidden_size * VOCABULARY)
        return tokens

    monkeypatch.setattr(Watched, "forward", watched)
    monkeypatch.setattr(Watched, "prefill", watched_prefill)
    return found


def ready(name, plain, seed=0, layers=None):
    net = make(name, seed)
    net.generation_config.eos_token_id = None
    net.config.eos_token_id = None
    return Model(net, name=f"{name}-{seed}", plain=plain, layers=layers)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "plain"), [("llama", True), ("qwen3", True), ("llama", False), ("gpt2", False)]
)
def test_every_pass_costs_what_pytorch_counts(counted, method, name, plain):
    target, drafter = ready(name, plain), ready(name, plain, seed=1, layers=1)
    trace = specviz.generate(target, PROMPTS, method, draft=drafter, max_new_tokens=14, **METHODS[method])
    costs = metrics.pass_costs(trace)
    assert len(costs) == len(counted) > 10
    assert costs["computed"].tolist() == counted
    # What the counter has and the work has not are masked scores alone.
    inner = target.config.num_attention_heads * target.dim
    masked = (costs["computed"] - costs["flops"]).where(costs["model"] == "target").dropna()
    assert (masked % (4 * target.layers * inner) == 0).all() and (masked >= 0).all()
    assert (masked[costs["tokens"] == 1] == 0).all(), "a single token sees all there is"


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("shared", [False, True])
def test_an_encoder_decoders_passes_cost_what_pytorch_counts(counted, name, shared):
    target = EncoderDecoder(make_pair(name), name=name)
    drafter = target.first(1) if shared else EncoderDecoder(make_pair(name, seed=1), name="drafter")
    for each in (target, drafter):
        each.eos = ()
    trace = specviz.generate(target, PROMPTS, "speculative", draft=drafter, max_new_tokens=10, draft_length=3)
    costs = metrics.pass_costs(trace)
    assert len(costs) == len(counted) > 10
    assert costs["computed"].tolist() == counted
    prefills = costs[costs["prefill"]]
    once = len(PROMPTS) * (1 if shared else 2)
    whole = [len(PROMPTS[prompt]) + len(target.prefix) - 1 for prompt in prefills["prompt"]]
    assert (prefills["tokens"] == whole).sum() == once, (
        "a drafter that shares the encoder does not read again"
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_the_weights_of_a_pass_are_the_models(name):
    model = ready(name, name in PLAIN)
    shape = Shape(model.geometry)
    embedding = 0 if model.geometry["tied"] else VOCABULARY * model.config.hidden_size
    places = 64 * 16 if name == "gpt2" else 0  # learned positions: of these, too, only rows are read
    assert shape.weights(1) == 4 * (model.parameters - embedding - places)
    assert shape.weights(1) - shape.weights(0) == 4 * VOCABULARY * model.config.hidden_size
    opened = model.open([[1, 2, 3]], 4)
    assert shape.slot * 7 == opened.store.data.numel() * 4


def test_a_batch_with_ragged_rows():
    model = ready("llama", True)
    opened = model.open([[1, 2, 3, 4, 5], [6, 7]], 8)
    shape = Shape(model.geometry)
    assert count(opened.prefill)[0] == shape.flops(2 * 4, 2 * 16, 0), "padded to the longer prompt"
    drafts = [Draft.chain([1, 2, 3]), Draft(np.array([4, 5]), np.array([-1, -1]))]
    # Two rows of 4 tokens each, over 8 slots; the head for 4 of each, though one has 3.
    assert count(lambda: opened.forward(drafts))[0] == shape.flops(2 * 4, 2 * 4 * 8, 2 * 4)


def test_an_early_exit_costs_its_layers():
    model = ready("llama", True)
    first, whole = Shape(model.first(1).geometry), Shape(model.geometry)
    assert first.known["layers"] == 1
    assert 2 * first.slot == whole.slot
    assert first.flops(5, 40, 0) * 2 == whole.flops(5, 40, 0)
    assert first.flops(5, 40, 1) - first.flops(5, 40, 0) == 2 * 16 * VOCABULARY


def test_a_model_with_other_matrices_has_no_shape():
    net = make("llama")
    net.model.layers[1].extra = torch.nn.Linear(4, 4)
    model = Model(net, name="odd", plain=False)
    assert model.geometry is None
    trace = specviz.generate(model, [[3, 4]], "autoregressive", max_new_tokens=3)
    with pytest.raises(specviz.TraceError, match="shape of odd"):
        metrics.pass_costs(trace)


def test_passes_that_leave_early_are_not_counted():
    trace = specviz.generate(ready("llama", True), PROMPTS[:1], "calm", max_new_tokens=4)
    with pytest.raises(specviz.TraceError, match="leave behind different layers"):
        metrics.pass_costs(trace)
