"""Layouts of linear layers: each computes the product, the fastest is chosen, and a choice can be pinned."""

from __future__ import annotations

import copy
import errno
import gc
import json
import os
import weakref
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from canvases import tiny as canvas
from eagles import published, target
from families import PLAIN, make, scores
from seq2seq import make as make_pair

import specviz
from specviz import cli
from specviz.draft import Draft
from specviz.errors import ModelError, ParameterError
from specviz.loop.machine import drafter_identity
from specviz.models import choices, kernels, ordered
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.layers import Lines, RMSNorm
from specviz.models.model import Model

torch.set_num_threads(1)
SHAPES = ((96, 64), (64, 64), (31, 17), (200, 40))
ROWS = (1, 2, 3, 4, 5, 8, 9, 17)
ALL = (*kernels.LAYOUTS, *([kernels.FP16] if kernels.multiplies_halves() else []))
TREE = Draft(np.array([3, 4, 5, 6]), np.array([-1, -1, 0, 2]))
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 3, 1, 4], [7, 3]]


@pytest.fixture
def unpinned(monkeypatch, tmp_path) -> Path:
    """No layout is pinned and nothing is measured yet."""
    monkeypatch.delenv(kernels.VARIABLE)
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    return tmp_path / "kernels"


@pytest.mark.parametrize("dtype", kernels.FORMATS)
@pytest.mark.parametrize("layout", ALL)
def test_a_layout_computes_the_product(layout: str, dtype: torch.dtype) -> None:
    halves = layout == kernels.FP16 and dtype == torch.float32
    if not halves and layout not in kernels.candidates(torch.device("cpu"), dtype):
        pytest.skip(f"{layout} does not serve {dtype} on this processor")
    torch.manual_seed(0)
    for width, inputs in SHAPES:
        parts = [torch.randn(width, inputs).to(dtype), torch.randn(5, inputs).to(dtype)]
        parts = [part.half().float() if halves else part for part in parts]
        both, one = kernels.lay(parts, layout), kernels.lay(parts[:1], layout)
        for rows in ROWS:
            x, to = torch.randn(rows, inputs).to(dtype), torch.randn(rows, width).to(dtype)
            want = x.double() @ torch.cat(parts).double().t()
            bound = (1e-5 if dtype == torch.float32 else 2e-2) * float(want.abs().max())
            assert (both(x).double() - want).abs().max() <= bound
            kept = to.clone()
            assert (one.add(x, to).double() - (want[:, :width] + to.double())).abs().max() <= 2 * bound
            assert torch.equal(to, kept)  # the addend is unchanged


def of_four_bits(kind: str, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix as a GGUF type stores it, and its 4-bit numbers from 0 to 15."""
    numbers = torch.randint(0, 16, (outputs, inputs // 32, 32))
    numbers[..., 0] = 0  # each group contains its lowest number
    scales = torch.rand(outputs, inputs // 32, 1).half().float() + 0.01
    if kind == "Q4_1":
        numbers[..., 1] = 15
        weight = numbers * scales + torch.randn(scales.shape).half().float()
    else:
        weight = (numbers - 8) * scales * torch.where(torch.rand(scales.shape) < 0.5, -1, 1)
    return weight.flatten(1), numbers.flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_the_numbers_of_a_four_bit_file_come_back(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, numbers = of_four_bits(kind, 32, 96)
    weight[:16, :32] = 0  # an all-zero group
    numbers[:16, :32] = 0 if kind == "Q4_1" else 8
    got = kernels.four_bits(weight.to(dtype))
    assert got is not None
    assert torch.equal(got[0].flatten(1)[16:], numbers[16:].int())
    back = (got[0] * got[1] + got[2]).flatten(1)
    assert (back - weight).abs().max() <= 2 * torch.finfo(dtype).eps * weight.abs().max()


@pytest.mark.parametrize("matrix", [torch.randn(32, 96), torch.zeros(24, 96), torch.zeros(32, 40)])
def test_other_matrices_are_not_taken_for_four_bits(matrix: torch.Tensor) -> None:
    assert kernels.four_bits(matrix) is None
    assert kernels.four_bits(matrix.bfloat16()) is None


served = pytest.mark.skipif(
    not kernels._multiplies_whole_numbers(), reason="torch has no products with whole numbers on this machine"
)


@served
@pytest.mark.parametrize("layout", kernels.WHOLE_NUMBERS)
def test_products_with_whole_numbers(layout: str) -> None:
    torch.manual_seed(0)
    parts = [of_four_bits("Q4_1", outputs, 64)[0].bfloat16() for outputs in (32, 16)]
    both, one = kernels.lay(parts, layout), kernels.lay(parts[:1], layout)
    assert isinstance(both, kernels.Int4 if layout == kernels.INT4 else kernels.Int8)
    x, to = torch.randn(9, 64).bfloat16(), torch.randn(9, 32).bfloat16()
    want = x.double() @ torch.cat(parts).double().t()
    assert (both(x).double() - want).abs().max() <= 2e-2 * want.abs().max()
    assert (one.add(x, to).double() - want[:, :32] - to.double()).abs().max() <= 3e-2 * want.abs().max()
    if layout == kernels.INT4:  # matrices not stored in four bits use eight
        assert isinstance(kernels.lay([torch.randn(32, 64).bfloat16()], layout), kernels.Int8)


@served
@pytest.mark.parametrize("width", [8, 24, 40, 2730])
def test_inputs_of_any_number_are_multiplied_in_eight_bits(width: int) -> None:
    """Without padding to 16 inputs, torch's product reads past a row: wrong sums, or a crash."""
    torch.manual_seed(0)
    product = kernels.Int8([torch.randn(37, width).bfloat16()])
    numbers = product.matrix[:, :width].double() * product.scale.double()[:, None]
    for rows in (1, 5, 9):
        x = torch.randn(rows, width).bfloat16()
        want = x.double() @ numbers.t()
        assert (product(x).double() - want).abs().max() <= 2e-2 * want.abs().max()


eight_bits = pytest.mark.skipif(
    not kernels.multiplies_eight_bits(), reason="no exact products of eight bits on this processor"
)


@pytest.mark.parametrize("kind", [kernels.W8A8Product, kernels.W8A8Fbgemm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_eight_bits_by_eight_bits(dtype: torch.dtype, kind: type, monkeypatch) -> None:
    """Close to the exact product; a row's bits do not depend on the other rows; a zero row gives zeros."""
    if not kernels.levels(kind):
        pytest.skip(f"no exact {kind.__name__} on this processor")
    monkeypatch.setitem(kernels.KINDS, kernels.W8A8, partial(kind, most=kernels.levels(kind)))
    torch.manual_seed(0)
    for width, inputs in SHAPES:
        parts = [torch.randn(width, inputs).to(dtype), torch.randn(5, inputs).to(dtype)]
        both, one = kernels.lay(parts, kernels.W8A8), kernels.lay(parts[:1], kernels.W8A8)
        x, to = torch.randn(9, inputs).to(dtype), torch.randn(9, width).to(dtype)
        x[3] = 0
        got, want = both(x), x.double() @ torch.cat(parts).double().t()
        assert got.dtype == dtype
        assert (got.double() - want).abs().max() <= 3e-2 * want.abs().max()
        assert (
            one.add(x, to).double() - want[:, :width] - to.double()
        ).abs().max() <= 4e-2 * want.abs().max()
        assert not got[3].any()
        assert all(torch.equal(both(x[i : i + 1])[0], got[i]) for i in range(9))


@pytest.mark.parametrize("kind", [kernels.W8A8Product, kernels.W8A8Fbgemm])
def test_where_sums_of_eight_bits_overflow_weights_have_seven(monkeypatch, kind: type) -> None:
    def begin(self, weights, most: int) -> None:
        self.weight = weights[0]

    def overflowing(self, x):
        # Inputs are shifted to start at 0, and pairs are added in 16 bits.
        pairs = ((x[:, None] + 128) * self.weight).unflatten(-1, (-1, 2)).sum(-1)
        return pairs.clamp(-(2**15), 2**15 - 1).sum(-1) - 128 * self.weight.sum(-1)

    def fail(self, x):
        raise RuntimeError("not on this processor")

    products = overflowing, lambda self, x: x @ self.weight.t(), lambda self, x: x @ self.weight.t() + 1, fail
    monkeypatch.setattr(kind, "__init__", begin)
    for product, most in zip(products, (63, 127, 0, 0), strict=True):
        monkeypatch.setattr(kind, "__call__", product)
        assert kernels.levels.__wrapped__(kind) == most


def test_a_processor_with_instructions_for_eight_bits_uses_them() -> None:
    """Otherwise a wrong product would be skipped silently."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx2" not in flags or torch.backends.quantized.engine not in ("x86", "fbgemm"):
        pytest.skip("this processor has no AVX2, or torch no FBGEMM")
    assert kernels.levels(kernels.W8A8Fbgemm) >= (127 if "avx512_vnni" in flags else 63)


@eight_bits
def test_the_product_with_finer_weights_serves_or_else_fbgemms(monkeypatch) -> None:
    for exact, kind in (
        ({kernels.W8A8Product: 63, kernels.W8A8Fbgemm: 0}, kernels.W8A8Product),
        ({kernels.W8A8Product: 127, kernels.W8A8Fbgemm: 63}, kernels.W8A8Product),
        ({kernels.W8A8Product: 127, kernels.W8A8Fbgemm: 127}, kernels.W8A8Fbgemm),
    ):
        monkeypatch.setattr(kernels, "levels", exact.get)
        assert isinstance(kernels.lay([torch.randn(8, 16)], kernels.W8A8), kind)
        assert kernels.multiplies_eight_bits()


@eight_bits
def test_the_drafter_of_a_large_model_lies_in_eight_bits(monkeypatch, tmp_path) -> None:
    """Its rounding changes no text; a pinned layout and float64 apply to the drafter too."""
    monkeypatch.delenv(kernels.VARIABLE)
    small, options = target(dtype=torch.float32), {"max_new_tokens": 20, "draft_size": 5, "depth": 2}
    head = specviz.load(published("authors, EAGLE-3").write(tmp_path / "head"))
    assert head.on(small).kernels == small.kernels
    assert "kernels" not in drafter_identity(head.on(small), small)
    monkeypatch.setattr(choices, "large", lambda net: True)
    drafter = head.on(small)
    assert drafter.kernels == "w8a8" != small.kernels
    assert drafter_identity(drafter, small)["kernels"] == "w8a8"  # calibrations are kept apart
    drafted = specviz.generate(small, [PROMPTS[0]], "eagle", draft=drafter, **options)
    assert drafted.run["draft"]["kernels"] == "w8a8"
    assert drafted.texts == specviz.generate(small, [PROMPTS[0]], "autoregressive", max_new_tokens=20).texts
    assert isinstance(drafter.arithmetic.head.product, kernels.W8A8Product | kernels.W8A8Fbgemm)
    assert head.on(target()).kernels == "plain"  # for a float64 target
    monkeypatch.setenv(kernels.VARIABLE, "transposed")
    assert head.on(small).kernels == small.kernels


@served
def test_whole_numbers_are_taken_by_name_where_they_can_be(monkeypatch) -> None:
    with pytest.raises(ModelError, match=r"\(--dtype bfloat16\) on a CPU; town is in float32 on cpu: change"):
        specviz.load("town", dtype="float32", kernels="int8")
    with pytest.raises(ModelError, match=r"stored in four bits .* use 'int8'"):
        specviz.load("town", kernels="int4")
    model = specviz.load("town", kernels="int8")
    assert (model.dtype, model.kernels) == (torch.bfloat16, "int8")
    traces = [
        specviz.generate(model, PROMPTS[0], method, max_new_tokens=16)
        for method in ("autoregressive", "unispec")
    ]
    assert traces[1].run["backend"]["kernels"] == "int8"
    assert all(len(trace_tokens(trace, 0)) > 1 for trace in traces)
    monkeypatch.setattr(kernels, "_multiplies_whole_numbers", lambda: False)
    with pytest.raises(ModelError, match="kernels='int8' needs products that torch does not"):
        specviz.load("town", kernels="int8")


@served
def test_the_variable_may_say_whole_numbers(monkeypatch, capsys) -> None:
    """As with the command-line option: for every model, in four bits if it is stored that way."""
    monkeypatch.setenv(kernels.VARIABLE, "int4")
    model = specviz.load("town")
    assert (model.dtype, model.kernels) == (torch.bfloat16, "int8")
    assert specviz.load("town", kernels="auto").dtype == torch.bfloat16
    monkeypatch.setattr(kernels, "_reported", set())
    assert [specviz.load("town", dtype="float32").kernels for _ in range(2)] == ["plain", "plain"]
    (line,) = capsys.readouterr().err.splitlines()
    assert "SPECVIZ_KERNELS=int4 needs dtype='bfloat16'" in line and line.endswith("town uses plain")
    monkeypatch.setenv(kernels.VARIABLE, "transposed")
    words = ["generate", "autoregressive", "-m", "town", "-p", "a", "-n", "2", "--kernels"]
    assert cli.run([*words, "int8"]) == 0
    assert cli.run([*words, "int8", "--dtype", "float32"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_each_matrix_is_packed_once(monkeypatch) -> None:
    """On all cores, and then by each product: what was packed first must still be there."""
    made = []
    monkeypatch.setitem(
        kernels.KINDS, kernels.TRANSPOSED, lambda own: made.append(len(own)) or kernels.Transposed(own)
    )
    net = make("llama")
    Model(net, kernels=kernels.TRANSPOSED)
    assert sorted(made) == sorted([1, *[3, 1, 2, 1] * net.config.num_hidden_layers])


def test_a_matrix_that_changes_is_examined_again() -> None:
    weight = torch.nn.Parameter(torch.randn(20, 8).half().float(), requires_grad=False)
    assert kernels.in_halves(weight) and kernels.in_halves(weight)
    weight[-1] = 1e-9
    assert not kernels.in_halves(weight)
    weight[-1] = 1
    assert kernels.in_halves(weight)


halves_here = pytest.mark.skipif(
    not kernels.multiplies_halves(), reason="torch has no product with weights in float16 here"
)


def in_float16(net) -> None:
    """Round a model's weights to values that float16 represents."""
    with torch.no_grad():
        for weight in net.parameters():
            weight.copy_(weight.half())


@halves_here
def test_a_row_by_float16_weights_has_the_bits_that_it_has_alone() -> None:
    torch.manual_seed(0)
    for width, inputs in SHAPES:
        product = kernels.lay([torch.randn(width, inputs)], kernels.FP16)
        x = torch.randn(kernels.PADDED, inputs)
        alone = torch.cat([product(x[i : i + 1]) for i in range(len(x))])
        for rows in range(1, kernels.PADDED):
            first = int(torch.randint(len(x) - rows, ()))
            assert torch.equal(product(x[first : first + rows]), alone[first : first + rows]), rows


@halves_here
def test_a_product_by_float16_weights_that_is_not_padded_is_noticed(monkeypatch) -> None:
    if all(n == padded for n, padded in enumerate(kernels.rows_alike())):
        pytest.skip("every number of rows is computed alike here")
    layer = torch.nn.Linear(96, 64, bias=False)
    assert ordered.keeps(Lines(layer, layout=kernels.FP16, invariant=True))
    monkeypatch.setattr(kernels, "rows_alike", lambda: tuple(range(kernels.PADDED)))
    monkeypatch.setattr(ordered, "_tried_products", {})
    layer = torch.nn.Linear(96, 64, bias=False)
    assert not ordered.keeps(Lines(layer, layout=kernels.FP16, invariant=True))


@halves_here
def test_float16_weights_are_taken_unasked_only_where_they_are_the_models(unpinned, monkeypatch) -> None:
    def timed(matrices, layouts, rows=kernels.ROWS):
        return {each: {n: [1.0 + (each != kernels.FP16)] * 3 for n in rows} for each in layouts}

    monkeypatch.setattr(kernels, "measure", timed)
    net, others = make("llama"), make("llama")
    assert Model(others).kernels != kernels.FP16
    with pytest.raises(ModelError, match="needs weights that float16 holds exactly"):
        Model(others, kernels=kernels.FP16)
    monkeypatch.setenv(kernels.VARIABLE, kernels.FP16)
    assert Model(others).kernels == kernels.PLAIN
    monkeypatch.delenv(kernels.VARIABLE)
    assert kernels.FP16 not in Model(others).layouts
    in_float16(net)
    model = Model(net)
    assert model.kernels == kernels.FP16 and kernels.FP16 in model.layouts
    assert model.geometry["weight_bytes"] == 2
    with torch.no_grad():
        net.lm_head.weight.add_(1e-4)  # training makes them inexact in float16
    model.open([[1, 2]], 1)
    assert model.kernels != kernels.FP16
    assert model.geometry["weight_bytes"] == 4
    with pytest.raises(ModelError, match="kernels='fp16' does not support float64"):
        Model(make("llama").double(), kernels=kernels.FP16)


def test_a_row_of_eight_bits_is_not_scaled_otherwise_than_it_was_rounded() -> None:
    """The product with a unit vector is the weight, up to half a rounding step of its row."""
    torch.manual_seed(0)
    matrix = torch.randn(64, 64).bfloat16()
    product = kernels.lay([matrix], kernels.INT8)
    off = (product(torch.eye(64, dtype=torch.bfloat16)).T.float() - matrix.float()).abs()
    step = matrix.float().abs().amax(1, keepdim=True) / 127
    assert bool((off.mean(1) < 0.3 * step[:, 0]).all())
    assert bool((off <= 0.5 * step + matrix.float().abs() * 2**-8 + 1e-6).all())


@pytest.mark.parametrize(("layout", "size"), [(kernels.INT8, 1), (kernels.PLAIN, 2)])
def test_the_geometry_says_how_many_bytes_are_read(layout: str, size: int) -> None:
    model = Model(make("llama").bfloat16(), kernels=layout)
    assert model.geometry["weight_bytes"] == size


def test_few_rows_are_those_of_a_padded_pass() -> None:
    torch.manual_seed(0)
    product = kernels.lay([torch.randn(96, 64)], "onednn")
    x = torch.randn(kernels.LEAST, 64)
    padded = torch.cat([x[:1], torch.zeros(kernels.LEAST - 1, 64)])
    assert torch.equal(product(x[:1]), product(padded)[:1])


@pytest.mark.parametrize("layout", ALL)
@pytest.mark.parametrize("name", PLAIN)
def test_trees_say_what_transformers_says(name: str, layout: str) -> None:
    net = make(name)
    if layout == kernels.FP16:
        in_float16(net)
    found = Model(net, kernels=layout).open([[1, 2, 3], [4]], 8).forward([TREE, Draft.empty()])
    paths = ([], [3], [4], [3, 5], [3, 5, 6])
    want = torch.stack([scores(net, [1, 2, 3, *path]) for path in paths])
    torch.testing.assert_close(found.logits[0], want, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(found.logits[1][0], scores(net, [4]), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("layout", ALL)
def test_methods_run_on_every_layout(layout: str, tmp_path: Path) -> None:
    """Drafts, trees, early exit, CALM and batches give the autoregressive text of the same layout."""
    net, other = make("llama", num_hidden_layers=4, layer_types=None), make("llama", seed=1)
    if layout == kernels.FP16:
        in_float16(net)
        in_float16(other)
    model, small = Model(net, name="big", kernels=layout), Model(other, kernels=layout)
    small.name = "small"
    options = {"max_new_tokens": 16}
    plain = specviz.generate(model, PROMPTS, "autoregressive", **options)
    assert plain.run["backend"]["kernels"] == layout
    texts = [trace_tokens(plain, i) for i in range(len(PROMPTS))]
    for method, more in (
        ("speculative", {"draft": small}),
        ("unispec", {"draft_size": 8}),
        ("prompt_lookup", {}),
        ("calm", {"threshold": 1.0}),
        ("prompt_lookup", {"batch": 2}),
    ):
        trace = specviz.generate(model, PROMPTS, method, **options, **more)
        assert [trace_tokens(trace, i) for i in range(len(PROMPTS))] == texts, method
    left = specviz.generate(model, PROMPTS, "calm", threshold=0.01, **options)
    assert (left.cycles["control_layers"].dropna() < model.layers).any(), "no pass ended early"
    trusting = {"fallback": 0.0, "rollback": 1e6}
    early = specviz.generate(model, PROMPTS, "early_exit", **trusting, **options)
    assert "accepted" in set(early.nodes["status"])


@pytest.mark.parametrize("layout", ALL)
def test_an_eagle_drafter_shares_its_targets_layout_and_head(layout: str, tmp_path: Path) -> None:
    net = target(dtype=torch.float32).net
    if layout == kernels.FP16:
        in_float16(net)
    model = Model(net, kernels=layout)
    folder = tmp_path / "head"
    published("authors, EAGLE-3").write(folder)
    drafter = specviz.load(str(folder)).on(model)
    text = [3, 1, 4, 1, 5]
    found = specviz.generate(model, [text], "eagle", draft=drafter, max_new_tokens=12)
    want = specviz.generate(model, [text], "autoregressive", max_new_tokens=12)
    assert trace_tokens(found, 0) == trace_tokens(want, 0)


def test_a_canvas_runs_on_every_layout() -> None:
    scored = []
    for layout in kernels.LAYOUTS:
        model = canvas(dtype=torch.float32)
        model = type(model)(model.net, mask=model.mask, shift=model.shift, kernels=layout)
        trace = specviz.generate(model, [[1, 2]], "stepwise", block=4, max_new_tokens=8)
        assert trace.run["backend"]["kernels"] == layout
        scored.append(trace.outputs.sort_values("position")["token"].tolist())
    assert len(set(map(tuple, scored))) == 1


def test_the_fastest_is_measured_once_and_kept(unpinned: Path, monkeypatch) -> None:
    calls = []

    def timed(matrices, layouts, rows=kernels.ROWS):
        calls.append(len(matrices))
        cost = {"plain": 3.0, "transposed": 2.0, "onednn": 1.0, "onednn-unpadded": 4.0}
        return {layout: {n: [cost[layout]] * 3 for n in rows} for layout in layouts}

    monkeypatch.setattr(kernels, "measure", timed)
    assert Model(make("llama")).kernels == "onednn"
    (kept,) = unpinned.glob("*.json")
    assert json.loads(kept.read_text())["measured"]["fastest"] == "onednn"
    assert Model(make("llama", seed=1)).kernels == "onednn"  # the same shapes are not measured again
    assert len(calls) == 1
    assert Model(make("qwen2")).kernels == "onednn"
    assert len(calls) == 2
    kept.write_text(json.dumps({"measured": {"milliseconds": {}, "fastest": "transposed"}}))
    assert Model(make("llama")).kernels == "transposed"
    for damaged in ("", "[]", '{"measured": {"milliseconds": {}, "fastest": "gone"}}'):
        kept.write_text(damaged)
        assert Model(make("llama")).kernels == "onednn"
    assert len(calls) == 5
    monkeypatch.setattr(kernels, "TIMING", kernels.TIMING + 1)
    assert Model(make("llama")).kernels == "onednn"
    assert len(calls) == 6


def test_what_other_work_disturbed_is_not_kept(unpinned: Path, monkeypatch) -> None:
    times = {layout: [float(n)] * 3 for n, layout in enumerate(kernels.LAYOUTS, 1)} | {
        "plain": [1.0, 9.0, 9.0]
    }
    monkeypatch.setattr(
        kernels, "measure", lambda m, layouts: {layout: {1: times[layout]} for layout in layouts}
    )
    assert Model(make("llama")).kernels == "plain"  # the least time counts
    assert not list(unpinned.glob("*"))


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv(kernels.VARIABLE)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "file"))
    assert Model(make("llama")).kernels in kernels.LAYOUTS


def test_a_cache_that_cannot_be_searched_means_measuring_again(unpinned: Path, monkeypatch) -> None:
    inside, stat = str(unpinned), Path.stat

    def closed(path: Path, **options: bool):
        if str(path).startswith(inside):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", closed)
    assert Model(make("llama")).kernels in kernels.LAYOUTS


def test_a_measurement_times_every_layout(unpinned: Path) -> None:
    times = kernels.measure(
        [[torch.randn(64, 32)], [torch.randn(8, 64), torch.randn(8, 64)]], kernels.LAYOUTS
    )
    assert set(times) == set(kernels.LAYOUTS)
    assert all(
        set(by) == set(kernels.ROWS) and all(min(each) > 0 for each in by.values()) for by in times.values()
    )


def test_a_layout_is_pinned_by_argument_and_by_environment(unpinned: Path, monkeypatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "plain")
    assert Model(make("llama")).kernels == "plain"
    assert Model(make("llama"), kernels="onednn").kernels == "onednn"
    assert (
        specviz.generate("town", "Hello", "autoregressive", kernels="transposed", max_new_tokens=2).run[
            "backend"
        ]["kernels"]
        == "transposed"
    )
    assert not unpinned.exists()  # nothing was measured
    monkeypatch.setenv(kernels.VARIABLE, "fast")
    with pytest.raises(
        ModelError,
        match=r"SPECVIZ_KERNELS is auto, plain, transposed, onednn, onednn-unpadded, fp16, int8, int4, w8a8; "
        "got "
        "'fast'",
    ):
        Model(make("llama"))
    with pytest.raises(ModelError, match=r"kernels is auto, plain"):
        Model(make("llama"), kernels="mkl")
    loaded = Model(make("llama"), kernels="plain")
    with pytest.raises((ModelError, ParameterError), match="already loaded"):
        specviz.generate(loaded, [[1, 2]], "autoregressive", kernels="onednn", max_new_tokens=2)


def test_both_onednn_layouts_share_a_packed_matrix() -> None:
    if kernels.ONEDNN not in kernels.candidates(torch.device("cpu"), torch.float32):
        pytest.skip("torch does not pack matrices for oneDNN here")
    weight = torch.nn.Parameter(torch.randn(16, 8))
    padded, unpadded = (kernels.lay([weight], layout) for layout in (kernels.ONEDNN, kernels.UNPADDED))
    assert padded.unpadded is unpadded


def test_without_the_private_operators_the_plain_product_serves(unpinned: Path, monkeypatch) -> None:
    kernels._packs.cache_clear()

    def gone(*arguments):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    monkeypatch.setattr(kernels.OneDNN, "__init__", gone)
    try:
        assert kernels.candidates(torch.device("cpu"), torch.float32) == ("plain", "transposed")
        assert Model(make("llama")).kernels in ("plain", "transposed")
        with pytest.raises(ModelError, match="kernels='onednn' does not support float32 on cpu here"):
            Model(make("llama"), kernels="onednn")
        monkeypatch.setenv(kernels.VARIABLE, "onednn")  # it applies to every model
        assert Model(make("llama")).kernels == "plain"
    finally:
        kernels._packs.cache_clear()


@pytest.mark.parametrize("kind", [kernels.OneDNN, kernels.Unpadded])
@pytest.mark.parametrize("wrong", [1, 2, 3, 5])
def test_operators_that_compute_something_else_are_not_used(kind, wrong, monkeypatch) -> None:
    kernels._packs.cache_clear()
    product = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda self, x: product(self, x) * (len(x) != wrong))
    try:
        assert "onednn" not in kernels.candidates(torch.device("cpu"), torch.float32)
    finally:
        kernels._packs.cache_clear()


def test_a_model_that_was_moved_or_trained_is_laid_out_anew() -> None:
    net = make("llama")
    model = Model(net, kernels="onednn")
    before = model.open([[1, 2, 3]], 4).forward(Draft.empty()).logits[0]
    with torch.no_grad():
        net.lm_head.weight.mul_(2)
    after = model.open([[1, 2, 3]], 4).forward(Draft.empty()).logits[0]
    torch.testing.assert_close(after, 2 * before, atol=1e-3, rtol=1e-3)
    first = model.content
    model.net.to(torch.float64)
    with pytest.raises(ModelError, match="does not support float64"):
        model.open([[1, 2, 3]], 4)
    unpinned = Model(net.to(torch.float32))
    unpinned.net.to(torch.float64)
    exact = unpinned.open([[1, 2, 3]], 4).forward(Draft.empty()).logits[0]
    assert unpinned.kernels == "plain"  # float64 is the reference for the others
    torch.testing.assert_close(exact, after, atol=1e-3, rtol=1e-3)
    assert unpinned.content != first
    copied = copy.deepcopy(net)  # training and the audit copy models in a layout
    assert Model(copied.double()).kernels == "plain"


def test_the_first_layers_share_what_is_laid_out() -> None:
    model = Model(make("llama"), kernels="onednn")
    first = model.first(1)
    assert first._llama.head.product is model._llama.head.product
    assert first._llama.weights[0][1].product is model._llama.weights[0][1].product


def test_layouts_are_timed_on_weights_from_memory(unpinned: Path, monkeypatch) -> None:
    """A layout that is timed after itself, or after one with the same weights, would find them in a cache."""
    calls: list[tuple[str, int]] = []
    read = torch.Tensor.sum

    def lay(weights, layout):
        return lambda x: calls.append((layout, len(x)))

    def evict(x):
        assert x.numel() * x.element_size() == kernels.EVICTING
        calls.append(("other memory", 0))
        return read(x)

    monkeypatch.setattr(kernels, "lay", lay)
    assert kernels.measure([[torch.randn(8, 8)]], kernels.LAYOUTS, rows=(1, 5))
    assert calls[::2] == calls[1::2]  # it stays in a cache: each timed pass follows another with its weights
    calls.clear()
    monkeypatch.setattr(kernels, "SAMPLE", 256)  # bytes of the matrix
    monkeypatch.setattr(torch.Tensor, "sum", evict)
    times = kernels.measure([[torch.randn(8, 8)]], kernels.LAYOUTS, rows=(1, 5))
    assert all("other memory" in (one, two) for (one, _), (two, _) in pairwise(calls))
    assert {n for layout, n in calls if layout == "onednn"} == {4, 5}  # padded, as from a pass
    assert ("onednn-unpadded", 5) not in calls  # from four rows on it is the same product as onednn
    assert times["onednn-unpadded"][5] == times["onednn"][5]
    assert times["onednn-unpadded"][1] != times["onednn"][1]


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_short_pass_is_padded_once_and_not_in_every_product(family, monkeypatch) -> None:
    model = Model(make(family), kernels="onednn")
    unpadded = Model(model.net, kernels="onednn-unpadded")
    filled, padded = [], kernels.padded
    monkeypatch.setattr(kernels, "padded", lambda x, least: filled.append(len(x)) or padded(x, least))
    for tokens in ([1], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5]):
        chain = Draft.chain(np.array(tokens[1:], int))
        one, two = (each.open([tokens[:1]], 8).forward(chain) for each in (model, unpadded))
        torch.testing.assert_close(one.logits[0], two.logits[0], rtol=1e-4, atol=1e-5)
    assert filled == [1, 2, 3]  # the head's rows


@pytest.mark.parametrize("layout", ALL)
def test_logits_take_no_memory_for_padding(layout: str, tmp_path: Path) -> None:
    nets = target(dtype=torch.float32).net, make_pair("t5", dtype=torch.float32)
    if layout == kernels.FP16:
        for net in nets:
            in_float16(net)
    model, translator = Model(nets[0], kernels=layout), EncoderDecoder(nets[1], kernels=layout)
    published("authors, EAGLE-3").write(tmp_path / "head")
    drafter = specviz.load(str(tmp_path / "head")).on(model)
    states = torch.zeros(1, drafter.net.fc.in_features)
    held = [each.open([[3, 1, 4]], 4).forward(Draft.empty()).logits[0] for each in (model, translator)]
    for logits in (*held, drafter.open([[3, 1, 4]], 4).read(torch.tensor([1]), states)[1]):
        assert len(logits) == 1 and logits.untyped_storage().nbytes() == logits.nbytes


@pytest.mark.parametrize("invariant", [False, True])
def test_a_norm_in_16_bits_is_computed_in_float32(invariant) -> None:
    x, weight = torch.randn(5, 64).bfloat16(), torch.randn(64).bfloat16()
    want = torch.nn.functional.rms_norm(x.float(), (64,), weight.float(), 1e-5).bfloat16()
    made = RMSNorm(1e-5, weight, invariant)(x, weight)
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made, want, rtol=2**-8, atol=0)


def test_layouts_that_lost_are_freed(unpinned: Path) -> None:
    net = make("llama")
    groups = [[part.weight for part in (net.lm_head,)]]
    kernels.measure(groups, kernels.LAYOUTS)
    gc.collect()
    assert not kernels._laid[net.lm_head.weight]
    kept = kernels.lay(groups[0], "onednn")
    reference = weakref.ref(kept)
    del kept
    gc.collect()
    assert reference() is None


def test_the_content_tells_weights_and_tokenizers_apart() -> None:
    one, same, other = Model(make("llama")), Model(make("llama")), Model(make("llama", seed=1))
    assert one.content == same.content != other.content
    assert len(one.content) == 64
    trace = specviz.generate(one, [[1, 2, 3]], "autoregressive", max_new_tokens=2)
    assert trace.run["model"]["content"] == one.content
    with torch.no_grad():
        one.net.model.norm.weight[0] += 1e-3
    assert one.content != same.content
    assert specviz.load("town").content != Model(specviz.load("town").net).content  # without its tokenizer


def trace_tokens(trace, prompt: int) -> list[int]:
    """The tokens decoded for a prompt."""
    rows = trace.outputs
    return rows[rows["prompt"] == prompt].sort_values("position")["token"].tolist()
