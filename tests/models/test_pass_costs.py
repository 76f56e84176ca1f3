"""The cost of passes, computed from the record, against PyTorch's own counter around the passes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from families import CONFIGS, PLAIN, VOCABULARY, make
from seq2seq import CONFIGS as FAMILIES
from seq2seq import make as make_pair
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig

import specviz
from specviz import metrics
from specviz.draft import Draft
from specviz.loop.clock import Watched
from specviz.metrics.costs import Shape
from specviz.models import kernels
from specviz.models.additions import EagleHead
from specviz.models.eagle import Eagle
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
    """FLOPs of `run`'s products by PyTorch's counter, and the result of `run`.

    The counter has no entry for the CPU's fused attention, so attention is split into products. A norm is no
    matrix product, but `RMSNorm` computes its sum of squares by one (baddbmm), which is left out.
    """
    norms = {torch.ops.aten.baddbmm: lambda *shapes, out_shape=None, **more: 0}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=norms) as counter:
        result = run()
    return counter.get_total_flops(), result


def unfinished(model, tokens, slots):
    """FLOPs of the last layer that a prefill of a plain function omits: all after its keys and values."""
    inner = model.config.num_attention_heads * model.dim
    attention = inner * model.config.hidden_size + 2 * inner * slots
    return 2 * tokens * (attention + 3 * model.config.hidden_size * model.config.intermediate_size)


@pytest.fixture
def counted(monkeypatch):
    """Collect the counter's FLOPs for every recorded pass, in order."""
    found = []
    forward, prefill, read, grow = Watched.forward, Watched.prefill, Watched.read, Watched.grow

    def watched(context, draft, hidden=()):
        flops, result = count(lambda: forward(context, draft, hidden))
        found.append(flops)
        return result

    def watched_prefill(context, hidden=()):
        model = context.model
        start = context.cached[0] if model.kind == "causal" else 0
        flops, tokens = count(lambda: prefill(context, hidden))
        if tokens and model.kind == "causal":
            if model.plain and model.layers not in hidden:
                flops += unfinished(model, tokens, start + tokens)
            elif not model.plain:  # transformers always run the head: on one row here, which is not used
                flops -= 2 * model.config.hidden_size * VOCABULARY
        if tokens:
            found.append(flops)
        return tokens

    def drafting(honest):
        def watched(context, *given):
            flops, result = count(lambda: honest(context, *given))
            found.append(flops)
            return result

        return watched

    monkeypatch.setattr(Watched, "read", drafting(read))
    monkeypatch.setattr(Watched, "grow", drafting(grow))
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
    # The counter exceeds the useful work only by masked attention scores.
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


def test_an_encoder_keeps_its_format_whatever_the_layout_of_the_decoder():
    if not kernels._multiplies_whole_numbers():
        pytest.skip("torch has no products with 8-bit weights here")
    model = EncoderDecoder(make_pair("t5").bfloat16(), kernels="int8")
    shape = Shape(model.geometry)
    named = model.net.encoder.named_parameters()
    encoder = sum(p.numel() for name, p in named if "embed" not in name and "relative" not in name)
    assert shape.reader == 2 * encoder + sum(weight.numel() for weight in model.decoder.crossed.weights)
    context = model.open([[1, 2, 3]], 4)
    context.prefill()
    assert shape.source_slot * 3 == context.source.crossed.nbytes


EAGLES = [
    (1, {}, {"depth": 3, "branches": 3}),
    (1, {}, {"tree": "static"}),
    (3, {}, {"depth": 4, "branches": 2}),
    (3, {"draft_vocabulary": 5, "states": 2}, {"depth": 3, "branches": 4}),
]


def test_each_update_of_a_stream_reads_its_own_source():
    stream = specviz.streams.fixed_lag("Tom was tired and Anna read a book.")
    run = specviz.generate("town-t5", stream, "retranslate", beta=0.2)
    costs = metrics.pass_costs(run)
    sources = run.updates["source"].tolist()
    begun = costs[costs["prefill"]]
    prompts = [[9] * n for n in run.updates["prompt_tokens"]]
    alone = metrics.pass_costs(specviz.generate("town-t5", prompts, "autoregressive", max_new_tokens=4))
    plain = alone[alone["prefill"]]
    assert len(begun) == len(sources) == 3 and begun["tokens"].nunique() > 2
    for name in ("tokens", "flops", "bytes"):
        assert begun[name].tolist() == plain[name].tolist()


def eagle(target, generation, **more):
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=target.config.hidden_size, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=24, head_dim=6,
    )  # fmt: skip
    torch.manual_seed(0)
    net = Eagle(config, generation, **more).requires_grad_(False)
    layers = list(range(net.states))
    return EagleHead(net, {"target": target.name, "eagle_aux_hidden_state_layer_ids": layers}, "head")


@pytest.mark.parametrize(("generation", "made", "values"), EAGLES)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}])
def test_passes_of_an_eagle_drafter_cost_what_pytorch_counts(counted, generation, made, values, sampling):
    target = ready("llama", True)
    drafter = eagle(target, generation, **made).on(target)
    trace = specviz.generate(
        target, [*PROMPTS, [5, 6]], "eagle", draft=drafter, max_new_tokens=9, **values, **sampling
    )
    costs = metrics.pass_costs(trace)
    assert len(costs) == len(counted) > 10
    assert costs["computed"].tolist() == counted
    own = costs[costs["model"] == "draft"]
    inner = 4 * 6
    masked = own["computed"] - own["flops"]
    assert (masked % (4 * inner) == 0).all() and (masked >= 0).all() and masked.any()
    first = ~own.duplicated(["prompt", "cycle"])
    assert (masked[first] == 0).all(), "behind the text's last pair stands no node yet"
    # A pass reads every weight, but the fusing matrix only if it reads states of the target.
    head = drafter.net.lm_head or target.net.lm_head
    whole = 4 * (drafter.parameters + (drafter.net.lm_head is None) * head.weight.numel())
    shape = Shape(drafter.geometry)
    assert shape.weights(1) == whole
    fused = 4 * drafter.net.fc.weight.numel() * (generation == 3)
    wanted = whole - np.where(first, 0, fused) + own["tokens"] * shape.embedded
    assert own["weights"].tolist() == wanted.tolist()
    together = metrics.pass_costs(
        specviz.generate(
            target, [*PROMPTS, [5, 6]], "eagle", draft=drafter, max_new_tokens=9, batch=2, **values,
            **sampling,
        )
    )  # fmt: skip
    keys = ["prompt", "cycle", "tokens", "flops", "bytes"]
    found = together[together["model"] == "draft"].sort_values(["prompt", "cycle", "start"])
    assert found[keys].to_numpy().tolist() == own[keys].to_numpy().tolist()


def test_costs_of_eagle_are_set_against_a_baselines(tmp_path):
    target = ready("llama", True)
    drafter = eagle(target, 3).on(target)
    traces = {
        "autoregressive": specviz.generate(target, PROMPTS, "autoregressive", max_new_tokens=8),
        "eagle": specviz.generate(target, PROMPTS, "eagle", draft=drafter, max_new_tokens=8),
    }
    traces["eagle"].save(tmp_path / "eagle.parquet")
    read = specviz.open(tmp_path / "eagle.parquet")
    assert read.run["draft"]["shape"] == drafter.geometry
    costs = metrics.relative_costs(traces | {"eagle": read}, "autoregressive").set_index("name")
    summary = metrics.cost_summary(read).set_index(["part", "model"])
    assert costs.loc["eagle", "flops"] == summary.loc[("decode", "all"), "flops_per_token"]
    assert summary.loc[("decode", "draft"), "flops"] > 0
    assert costs.loc["eagle", "relative_flops"] > 1


@pytest.mark.parametrize("name", CONFIGS)
def test_the_weights_of_a_pass_are_the_models(name):
    model = ready(name, name in PLAIN)
    shape = Shape(model.geometry)
    embedding = 0 if model.geometry["tied"] else VOCABULARY * model.config.hidden_size
    places = 64 * 16 if name == "gpt2" else 0  # learned positions, of which only rows are read too
    assert shape.weights(1) == 4 * (model.parameters - embedding - places)
    assert shape.weights(1) - shape.weights(0) == 4 * VOCABULARY * model.config.hidden_size
    opened = model.open([[1, 2, 3]], 4)
    assert shape.slot * 7 == opened.store.data.numel() * 4


def test_a_batch_with_ragged_rows():
    model = ready("llama", True)
    opened = model.open([[1, 2, 3, 4, 5], [6, 7]], 8)
    shape = Shape(model.geometry)
    whole = count(opened.prefill)[0] + 2 * unfinished(model, 4, 4)
    assert whole == shape.flops(2 * 4, 2 * 16, 0), "padded to the longer prompt"
    drafts = [Draft.chain([1, 2, 3]), Draft(np.array([4, 5]), np.array([-1, -1]))]
    # Two rows of 4 tokens each, over 8 slots; the head runs on 4 of one and 3 of the other.
    assert count(lambda: opened.forward(drafts))[0] == shape.flops(2 * 4, 2 * 4 * 8, 4 + 3)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
def test_a_prefill_ends_when_the_last_keys_are_written(name):
    model = ready(name, True)
    for hidden, left_out in (((), 1), ((1,), 1), ((2,), 0)):
        opened = model.open([[1, 2, 3, 4, 5]], 8)
        flops = count(partial(opened.prefill, hidden=hidden))[0]
        assert flops + left_out * unfinished(model, 4, 4) == Shape(model.geometry).flops(4, 4 * 4, 0)


def test_an_early_exit_costs_its_layers():
    model = ready("llama", True)
    first, whole = Shape(model.first(1).geometry), Shape(model.geometry)
    assert first.widths["layers"] == 1
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
    with pytest.raises(specviz.TraceError, match="exit after different layers"):
        metrics.pass_costs(trace)
