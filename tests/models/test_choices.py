"""Default choices for a large model: measured once, kept, and never a reason to fail."""

from __future__ import annotations

import copy

import pytest
import torch
from checkpoints import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM

import specviz as sv
from specviz.models import choices, kernels
from specviz.models.model import Model


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch, tmp_path):
    """A machine without measurements, and a cache without bundled models."""
    monkeypatch.delenv("SPECVIZ_INVARIANT")
    monkeypatch.setattr(kernels, "SAMPLE", 1 << 10)
    monkeypatch.setenv(
        "SPECVIZ_HOME", str(tmp_path / "tried")
    )  # the load below measures and keeps the result
    if not choices.way(sv.load("town", invariant=False), kernels.LAYOUTS).layout:
        pytest.skip("no product of this machine keeps its order")
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))


def cost(monkeypatch, seconds):
    """Let an invariant pass take `seconds`, and any other pass 1 s."""
    monkeypatch.setattr(choices, "_times", lambda *given: ([1.0, 1.0], [seconds, seconds]))


def forbid(monkeypatch, name):
    def refuse(*given):
        raise AssertionError(f"{name} measured again")

    monkeypatch.setattr(choices, name, refuse)


@pytest.mark.parametrize(("seconds", "made"), [(1.09, True), (1.11, False)])
def test_a_model_is_invariant_where_that_is_cheap(seconds, made, monkeypatch):
    cost(monkeypatch, seconds)
    assert sv.load("town").invariant is made
    forbid(monkeypatch, "_times")
    forbid(monkeypatch, "_tried")
    assert sv.load("town").invariant is made
    assert not sv.load("town", invariant=False).invariant


def test_a_verdict_is_made_anew_where_the_check_tries_more(monkeypatch):
    cost(monkeypatch, 1.0)
    assert sv.load("town").invariant
    monkeypatch.setattr(choices.ordered, "CHECK", choices.ordered.CHECK + 1)
    monkeypatch.setattr(choices, "_tried", lambda *given: choices.Way(fault="it changes its order"))
    assert not sv.load("town").invariant


def test_the_variable_and_the_size_of_a_model_come_first(monkeypatch):
    forbid(monkeypatch, "_times")
    monkeypatch.setenv("SPECVIZ_INVARIANT", "0")
    assert not sv.load("town").invariant
    monkeypatch.setenv("SPECVIZ_INVARIANT", "1")
    assert sv.load("town").invariant
    monkeypatch.delenv("SPECVIZ_INVARIANT")
    monkeypatch.setattr(kernels, "SAMPLE", 1 << 30)
    model = sv.load("town")
    assert not model.invariant
    assert model.dtype == torch.float32
    assert not sv.load("town-t5").invariant


def test_rotary_frequencies_stay_in_float32(monkeypatch):
    """Rounding them to a narrower format, by up to 0.4 %, would shift the angles at distant positions."""
    before = sv.load("town", dtype="float32", invariant=False).net
    wanted = before.model.rotary_emb.inv_freq.clone()
    monkeypatch.setattr(choices, "_format", lambda *_: choices.BFLOAT16)
    monkeypatch.setattr(choices, "large", lambda net: True)
    nets = {
        "chosen": choices.convert(copy.deepcopy(before), None, True),
        "in memory": sv.load(copy.deepcopy(before), dtype="bfloat16").net,
        "by name": sv.load("town", dtype="bfloat16", invariant=False).net,
    }
    for name, net in nets.items():
        kept = net.model.rotary_emb
        assert net.dtype == torch.bfloat16, name
        for each in (kept.inv_freq, kept.original_inv_freq):
            assert each.dtype == torch.float32 and torch.equal(each, wanted), name


def test_angles_that_change_with_the_length_end_a_text():
    """Beyond its original training length, Phi-3's `longrope` uses other angles for the whole pass."""
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 1e4}
    config = Phi3Config(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=128, original_max_position_embeddings=32, rope_parameters=rope,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    assert sv.load(Phi3ForCausalLM(config)).max_length == 32


def test_a_model_given_in_memory_stays_as_it_is(monkeypatch):
    cost(monkeypatch, 1.0)
    model = sv.load("town", invariant=False)
    assert not sv.load(model).invariant
    with pytest.raises(sv.errors.ModelError, match="town is not invariant: load its files with invariant=T"):
        sv.load(model, invariant=True)
    assert not model.invariant
    made = sv.load("town", invariant=True)
    assert sv.load(made, invariant=True) is made
    with pytest.raises(sv.errors.ModelError, match="town is invariant already: load its files with invaria"):
        sv.load(made, invariant=False)


def test_a_cost_measured_beside_other_work_is_not_kept(monkeypatch):
    monkeypatch.setattr(choices, "_times", lambda *given: ([1.0, 9.0, 9.0], [1.2, 1.2, 1.2]))
    assert not sv.load("town").invariant
    cost(monkeypatch, 1.0)
    assert sv.load("town").invariant


def faster(monkeypatch, dtype):
    """Make products in one format faster, on a processor with bfloat16 instructions."""

    def measure(matrices, layouts, rows=kernels.ROWS):
        time = 1.0 if matrices[0][0].dtype == dtype else 2.0
        return {layout: {n: [time, time] for n in rows} for layout in layouts}

    monkeypatch.setattr(choices, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(kernels, "measure", measure)


@pytest.mark.parametrize("asked", [None, "auto"])
def test_the_faster_format_is_taken_and_made_exact(asked, monkeypatch):
    net = sv.load("town", dtype="float32", invariant=False).net
    if not choices._settles(net, choices.BFLOAT16, choices._layouts(net, choices.BFLOAT16)):
        pytest.skip("no product in bfloat16 of this machine keeps its order")
    faster(monkeypatch, torch.bfloat16)
    cost(monkeypatch, 3.0)  # bfloat16 texts would differ otherwise, so the cost is ignored
    model = sv.load("town", dtype=asked)
    assert model.dtype == torch.bfloat16
    assert model.invariant
    assert sv.load("town", dtype="float32").dtype == torch.float32
    assert not sv.load("town", dtype="bfloat16").invariant
    trace = sv.generate(model, "A walk by the sea", method="prompt_lookup", max_new_tokens=24)
    own = sv.generate(model, "A walk by the sea", method="autoregressive", max_new_tokens=24)
    assert trace.texts == own.texts
    assert trace.run["exactness"] == "exact"


def test_the_format_of_integer_kernels_is_not_a_choice(monkeypatch):
    if not kernels._multiplies_whole_numbers():
        pytest.skip("torch has no products with 8-bit weights here")
    cost(monkeypatch, 3.0)
    model = sv.load("town", kernels="int8")
    assert (model.kernels, model.dtype, model.chosen_format) == ("int8", torch.bfloat16, False)
    assert not model.invariant


def test_a_format_whose_passes_cannot_be_invariant_is_not_taken(monkeypatch):
    faster(monkeypatch, torch.bfloat16)
    monkeypatch.setattr(choices, "_settles", lambda *given: False)
    assert sv.load("town").dtype == torch.float32


def test_attention_counts_for_a_format_with_each_number_of_threads(monkeypatch):
    faster(monkeypatch, torch.bfloat16)
    fixed = choices.ordered.fixed_order

    def varying(dim, threads, *rest, **names):
        return fixed(dim, threads, *rest, **names) if threads == 1 else None

    monkeypatch.setattr(choices.ordered, "fixed_order", varying)
    monkeypatch.setattr(choices.ordered, "settle", lambda lines: "")
    assert sv.load("town", invariant=False).dtype == torch.bfloat16
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert sv.load("town", invariant=False).dtype == torch.float32


def test_a_chosen_format_that_is_not_invariant_after_all_says_so(monkeypatch, capsys):
    faster(monkeypatch, torch.bfloat16)
    monkeypatch.setattr(choices, "_settles", lambda *given: True)
    monkeypatch.setattr(choices, "_tried", lambda *given: choices.Way(fault="it changes its order"))
    model = sv.load("town")
    assert model.dtype == torch.bfloat16 and not model.invariant
    (line,) = capsys.readouterr().err.splitlines()
    assert "it changes its order; load with invariant=False to accept this, or with dtype='float32'" in line
    sv.load("town", dtype="float32")
    assert not capsys.readouterr().err


def test_the_cost_is_that_of_the_layout_an_invariant_model_takes(monkeypatch):
    """The model's own layout cannot keep its order, but another one can."""
    cost(monkeypatch, 1.0)
    monkeypatch.delenv(kernels.VARIABLE)
    monkeypatch.setattr(choices, "has_bfloat16", lambda device: False)

    def measure(matrices, layouts, rows=kernels.ROWS):
        return {each: {n: [2.0 - (each == kernels.TRANSPOSED)] * 2 for n in rows} for each in layouts}

    def settle(lines):
        own = list(lines)
        return "it changes" if own[0].layout == kernels.TRANSPOSED else original(own)

    original = choices.ordered.settle
    monkeypatch.setattr(kernels, "measure", measure)
    monkeypatch.setattr(choices.ordered, "settle", settle)
    assert sv.load("town", invariant=False).kernels == kernels.TRANSPOSED
    assert not sv.load("town", kernels=kernels.TRANSPOSED).invariant
    model = sv.load("town")
    assert model.invariant and model.kernels != kernels.TRANSPOSED


def with_heads(number):
    """A model whose matrices have the same shapes for any number of heads."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=number, num_key_value_heads=number,
    )  # fmt: skip
    return Model(LlamaForCausalLM(config).eval(), kernels=kernels.PLAIN)


def test_a_kept_way_is_for_one_width_of_a_head(monkeypatch):
    tried = []

    def noted(model, others):
        tried.append(model.dim)
        return choices.Way(fault="it changes its order")

    monkeypatch.setattr(choices, "_tried", noted)
    for heads in (2, 4, 4):
        choices.way(with_heads(heads), ())
    assert tried == [16, 8]


def test_a_kept_way_is_for_one_format_of_attention(monkeypatch):
    model = with_heads(2)
    monkeypatch.setattr(choices, "_tried", lambda *given: choices.Way(fault="it changes its order"))
    places = []
    monkeypatch.setattr(kernels, "remembered", lambda kind, where, tried: places.append(where) or tried()[0])
    for number in (torch.bfloat16, torch.float32, torch.float64):
        model.net.to(number)
        choices.way(model, ())
    assert [each["attention"] for each in places] == ["torch.float32", "torch.float32", "torch.float64"]


def test_a_kept_cost_is_for_one_width_of_a_head(monkeypatch):
    monkeypatch.setattr(Model, "make_invariant", lambda self: None)
    monkeypatch.setattr(choices, "_times", lambda model, *_: ([1.0], [3.0 if model.dim == 16 else 1.0]))
    assert [choices._cheap(with_heads(heads)) for heads in (2, 4)] == [False, True]


def test_float32_stays_where_it_is_faster_or_the_processor_has_nothing_else(monkeypatch):
    faster(monkeypatch, torch.float32)
    assert sv.load("town", invariant=False).dtype == torch.float32
    faster(monkeypatch, torch.bfloat16)
    monkeypatch.setattr(choices, "has_bfloat16", lambda device: False)
    assert sv.load("town", invariant=False).dtype == torch.float32
    assert sv.load("town-t5").dtype == torch.float32


@pytest.fixture
def halves(monkeypatch):
    """Make products with float16 weights the fastest, if torch has them."""
    if not kernels.multiplies_halves():
        pytest.skip("torch has no product with weights in float16 here")

    def measure(matrices, layouts, rows=kernels.ROWS):
        return {each: {n: [2.0 - (each == kernels.FP16)] * 2 for n in rows} for each in layouts}

    monkeypatch.setattr(kernels, "measure", measure)
    monkeypatch.delenv(kernels.VARIABLE)


def matrices(model):
    return [part.weight for group in choices.groups(model.net) for part in group]


@pytest.fixture
def folder(tmp_path):
    """A checkpoint whose weights are not exact in float16."""
    checkpoint(tmp_path / "model")
    return str(tmp_path / "model")


def test_weights_are_rounded_to_float16_where_that_is_fastest(halves, folder, monkeypatch):
    cost(monkeypatch, 1.0)
    given, model = sv.load(folder, dtype="float32"), sv.load(folder)
    assert given.kernels != kernels.FP16
    assert (model.kernels, model.dtype, model.invariant) == (kernels.FP16, torch.float32, True)
    for own, rounded in zip(matrices(given), matrices(model)):
        assert torch.equal(own.half().float(), rounded) and not torch.equal(own, rounded)
    text = [3, 1, 4, 1, 5, 9, 2, 3, 1, 4]
    trace = sv.generate(model, text, method="prompt_lookup", max_new_tokens=24)
    own = sv.generate(model, text, method="autoregressive", max_new_tokens=24)
    assert trace.outputs["token"].tolist() == own.outputs["token"].tolist()
    assert trace.run["exactness"] == "exact"


@pytest.mark.parametrize(
    ("bfloat16", "float32", "taken"),
    [
        (1.09, 2.0, choices.BFLOAT16),
        (1.11, 2.0, choices.HALVES),
        (1.01, 0.99, choices.FLOAT32),
        (0.9, 0.8, choices.FLOAT32),
    ],
)
def test_bfloat16_is_taken_instead_of_rounded_weights_if_it_is_close(bfloat16, float32, taken, monkeypatch):
    """In it every model is invariant; it never replaces float32 that is faster."""
    times = {choices.FLOAT32: float32, choices.BFLOAT16: bfloat16, choices.HALVES: 1.0}
    able = choices.Format(milliseconds=times, invariant=dict.fromkeys(times, True))
    net = sv.load("town", dtype="float32", invariant=False).net
    monkeypatch.setattr(choices, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(kernels, "remembered", lambda *given: able)
    assert choices._format(net, tuple(times)) == taken
    only = {**able.invariant, choices.BFLOAT16: False}
    monkeypatch.setattr(
        kernels, "remembered", lambda *given: choices.Format(milliseconds=times, invariant=only)
    )
    assert choices._format(net, tuple(times)) != choices.BFLOAT16


def test_weights_stay_where_rounding_gains_nothing(halves, folder, monkeypatch):
    def untouched(**options):
        exact = matrices(sv.load(folder, dtype="float32", invariant=False))
        return all(map(torch.equal, exact, matrices(sv.load(folder, invariant=False, **options))))

    assert untouched(kernels="transposed")
    monkeypatch.setenv(kernels.VARIABLE, "transposed")
    assert untouched()
    monkeypatch.delenv(kernels.VARIABLE)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "in_reach", lambda net: False)
        assert untouched()
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "fits", lambda net: False)
        assert untouched()
    monkeypatch.setattr(choices, "_settles", lambda *given: False)
    monkeypatch.setattr(kernels, "remembered", lambda kind, where, measure: measure()[0])
    assert untouched()


@pytest.mark.parametrize("bfloat16", [False, True])
def test_fp16_by_name_rounds_whatever_is_fastest(bfloat16, halves, folder, monkeypatch):
    monkeypatch.setattr(choices, "has_bfloat16", lambda device: bfloat16)
    for options in ({}, {"dtype": "float32"}):
        model = sv.load(folder, kernels="fp16", invariant=False, **options)
        assert (model.kernels, model.dtype) == (kernels.FP16, torch.float32)
        assert all(map(kernels.in_halves, matrices(model)))
    monkeypatch.setenv(kernels.VARIABLE, "fp16")
    assert sv.load(folder, invariant=False).kernels == kernels.FP16


def test_weights_too_large_for_float16_are_refused_by_name(halves, folder, monkeypatch):
    monkeypatch.setattr(kernels, "in_reach", lambda net: False)
    with pytest.raises(sv.errors.ModelError, match="a weight is too large for float16"):
        sv.load(folder, kernels="fp16")
