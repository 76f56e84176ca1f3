"""GGUF files on torch: the weights of each type, the families, and damaged or unsupported files."""

from __future__ import annotations

import ctypes
import hashlib
import random
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gguf", reason="gguf is not installed")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")  # it writes the K-quants

import gguf
from gguf_files import file, random_model, scores, served

import specviz
from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models.gguf.header import read_header
from specviz.models.gguf.reading import load_gguf, type_of
from specviz.models.llamacpp.library import library
from specviz.models.llamacpp.model import LlamaCpp
from specviz.models.loading import load

TEXT = [0, 2, 300, 41, 17, 999, 2048, 3071, 5, 77, 1234, 600]
# Largest error of a weight, in standard deviations of its matrix.
ROUNDING = {
    "F32": 0.0, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 3e-2, "Q4_0": 0.5, "Q4_1": 0.4, "Q5_0": 0.3, "Q5_1": 0.2,
    "Q4_K": 0.5, "Q6_K": 0.2,
}  # fmt: skip


def rewritten(
    source: Path, out: Path, type: str | None = None, drop: str = "", split: int = 0, **fields: Any
) -> Path:
    """Copy a GGUF file with its matrices in another type, other metadata, without a tensor, or in parts."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, fields.pop("architecture", "llama"), split_max_tensors=split)
    for key, field in reader.fields.items():
        name = key.replace(".", "_")
        if key.startswith("GGUF.") or key == "general.architecture" or name in fields:
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], inner)
    for key, value in fields.items():
        kind = gguf.GGUFValueType.get_type(value)
        if kind == gguf.GGUFValueType.INT32:  # llama.cpp reads only unsigned ones
            kind = gguf.GGUFValueType.UINT32
        inner = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
        writer.add_key_value(NAMES[key], value, kind, inner)
    for tensor in reader.tensors:
        if tensor.name == drop:
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if type is None or values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            kind = gguf.GGMLQuantizationType[type]
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    for key, values in EXTRA.get(out.name, {}).items():
        writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


NAMES = {
    "llama_expert_count": "llama.expert_count",
    "llama_rope_scaling_type": "llama.rope.scaling.type",
    "llama_rope_scaling_factor": "llama.rope.scaling.factor",
    "llama_rope_scale_linear": "llama.rope.scale_linear",
    "split_count": "split.count",
    "general_type": "general.type",
    "llama_rope_dimension_count": "llama.rope.dimension_count",
    "llama_rope_scaling_attn_factor": "llama.rope.scaling.attn_factor",
    "llama_attention_causal": "llama.attention.causal",
    "llama_attention_head_count": "llama.attention.head_count",
    "llama_attention_head_count_kv": "llama.attention.head_count_kv",
    "llama_feed_forward_length": "llama.feed_forward_length",
    "tokenizer_ggml_eos_token_id": "tokenizer.ggml.eos_token_id",
    "tokenizer_chat_template": "tokenizer.chat_template",
    "llama_block_count": "llama.block_count",
}
EXTRA: dict[str, dict[str, np.ndarray]] = {
    "factors.gguf": {"rope_freqs.weight": np.linspace(1, 4, 32, dtype=np.float32)},
    "stranger.gguf": {"blk.0.ffn_gate_exps.weight": np.ones((4, 4), np.float32)},
}


def on_torch(path: Path, **options: Any) -> Any:
    return load(f"gguf:{path}", backend="torch", **options)


@pytest.mark.parametrize("type", ROUNDING)
def test_weights_of_every_type_come_back(type: str, tmp_path: Path) -> None:
    if type in ("Q4_K", "Q6_K"):  # written by llama.cpp itself
        path = file("q4_k_m")
        assert type in {gguf.GGMLQuantizationType(t.type).name for t in read_header(path).tensors.values()}
    else:
        path = rewritten(file("f32"), tmp_path / f"{type}.gguf", type)
    model = on_torch(path, kernels="plain")
    want = dict(random_model().net.named_parameters())
    types = {t.name: gguf.GGMLQuantizationType(t.type).name for t in read_header(path).tensors.values()}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.layers)
    compared = 0
    for name, weight in model.net.named_parameters():
        spread = float(want[name].std()) if want[name].ndim > 1 else 1.0
        difference = float((weight - want[name]).abs().max())
        assert difference <= max(ROUNDING.values()) * spread, name
        if weight.ndim > 1 and types[names.get_name(name, try_suffixes=(".weight",))] == type:
            compared += 1
            assert difference <= ROUNDING[type] * spread, name
    assert compared >= 2
    assert model.source.startswith("GGUF, ")
    assert model.name.endswith("from GGUF)") == (type in ("F32", "F16", "BF16"))
    assert ("dequantised" in model.name) == ("dequantised" in model.source)


@pytest.mark.parametrize(("ftype", "width", "types"), [
    ("Q2_K", 256, {"Q2_K", "Q3_K"}), ("Q3_K_M", 256, {"Q3_K", "Q5_K"}), ("Q5_K_M", 256, {"Q5_K", "Q6_K"}),
    ("Q4_K_M", 192, {"Q5_0", "Q8_0"}),  # its rows are no multiple of 256, like SmolLM2's
    ("IQ4_NL", 192, {"IQ4_NL"}), ("IQ4_XS", 256, {"IQ4_XS"}), ("IQ3_S", 256, {"IQ3_S"}),
])  # fmt: skip
def test_what_llama_cpp_quantises_is_read_as_it_reads_it(
    ftype: str, width: int, types: set[str], tmp_path: Path
) -> None:
    lib = library()
    given, path = lib.llama_model_quantize_default_params(), tmp_path / f"{ftype}.gguf"
    given.ftype, given.nthread = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{ftype}"), 1
    source = str(file("f32", width)).encode()
    assert not lib.llama_model_quantize(source, str(path).encode(), ctypes.byref(given))
    stored = {gguf.GGMLQuantizationType(t.type).name for t in read_header(path).tensors.values()}
    assert types <= stored
    context = load(f"gguf:{path}", threads=1).open([TEXT[:1]], len(TEXT))
    theirs = context.forward(Draft.chain(np.array(TEXT[1:]))).logits[0].numpy()
    context.close()
    model = on_torch(path)
    assert np.abs(scores(model, TEXT) - theirs).max() < 0.6  # llama.cpp rounds activations too
    bits = re.search(r"\d", type_of(read_header(path)))[0]
    assert model.name.endswith(f"({bits}-bit, dequantised)")


@pytest.mark.parametrize("type", ["f32", "f16", "q8_0", "q4_k_m"])
def test_torch_and_llama_cpp_say_the_same_of_one_file(type: str) -> None:
    """Both read the rounded weights of the file, not the original ones."""
    model, other = on_torch(file(type)), served(type)
    assert scores(model, TEXT).std() > 1.5
    context = other.open([TEXT[:1]], len(TEXT))
    theirs = context.forward(Draft.chain(np.array(TEXT[1:]))).logits[0].numpy()
    context.close()
    bound = 1e-4 if type == "f32" else 0.6 if type == "q4_k_m" else 0.3  # llama.cpp rounds activations too
    assert np.abs(scores(model, TEXT) - theirs).max() < bound
    assert model.eos == other.eos


def test_a_file_on_torch_decodes_like_any_model() -> None:
    model = on_torch(file("q8_0"))
    plain = specviz.generate(model, [TEXT], "autoregressive", max_new_tokens=16)
    drafted = specviz.generate(model, [TEXT], "unispec", max_new_tokens=16)
    assert plain.outputs["token"].tolist() == drafted.outputs["token"].tolist()
    assert plain.run["model"]["source"] == "GGUF, Q8_0, dequantised; not the publisher's checkpoint"
    assert plain.run["model"]["content"] == model.content


def test_the_content_covers_all_parts_of_a_split_file(tmp_path: Path) -> None:
    rewritten(file("f32", 64), tmp_path / "x.gguf", split=8)
    first, *_, last = parts = sorted(tmp_path.iterdir())
    split = LlamaCpp(first)
    assert split.files == parts and len(parts) > 2
    whole = b"".join(path.read_bytes() for path in parts)
    assert split.content == hashlib.sha256(whole).hexdigest()
    for part in parts:
        with pytest.raises(ModelError, match=rf"{part.name} is one of {len(parts)} parts of a model: run it"):
            on_torch(part)
    before, data = split.digest, bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    assert LlamaCpp(first).content != split.content and LlamaCpp(first).digest != before


def test_the_content_is_that_of_the_file_in_any_format() -> None:
    one, half = on_torch(file("q8_0")), on_torch(file("q8_0"), dtype="bfloat16")
    assert half.dtype == torch.bfloat16
    assert one.content == half.content != on_torch(file("f16")).content


def test_longer_contexts(tmp_path: Path) -> None:
    path = rewritten(file("f32"), tmp_path / "factors.gguf")
    model, before = on_torch(path), on_torch(file("f32"))
    factors = torch.linspace(1, 4, 32)
    want = before.net.model.rotary_emb.inv_freq / factors
    torch.testing.assert_close(model.net.model.rotary_emb.inv_freq, want)
    same = on_torch(rewritten(file("f32"), tmp_path / "same.gguf", split_count=0))  # 0: joined from parts
    assert same.content == before.content != model.content
    linear = rewritten(
        file("f32"), tmp_path / "linear.gguf", llama_rope_scaling_type="linear", llama_rope_scaling_factor=2.0
    )
    want = before.net.model.rotary_emb.inv_freq / 2
    torch.testing.assert_close(on_torch(linear).net.model.rotary_emb.inv_freq, want)
    for fields in (
        {"llama_rope_scaling_factor": 2.0},
        {"llama_rope_scale_linear": 2.0},
    ):  # as llama.cpp reads them
        untyped = rewritten(file("f32"), tmp_path / f"{next(iter(fields))}.gguf", **fields)
        torch.testing.assert_close(on_torch(untyped).net.model.rotary_emb.inv_freq, want)
    for number, fields in enumerate(({}, {"llama_rope_scaling_factor": 0.0})):
        unscaled = rewritten(
            file("f32"), tmp_path / f"{number}.gguf", llama_rope_scaling_type="linear", **fields
        )
        torch.testing.assert_close(on_torch(unscaled).net.model.rotary_emb.inv_freq, want * 2)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"architecture": "gemma3"},
            r"has the architecture 'gemma3'; torch supports only llama, qwen2, qwen3",
        ),
        ({"llama_expert_count": 8}, r"has experts, which is not supported on torch: run it on llama.cpp"),
        ({"llama_rope_scaling_type": "yarn"}, r"rope scaling of the type 'yarn'"),
        ({"llama_rope_dimension_count": 16}, r"rotary positions on only part of each head"),
        (
            {"llama_rope_scaling_attn_factor": 2.0},
            r"scaled rotary positions, which is not supported on torch",
        ),
        ({"llama_attention_causal": False}, r"is not supported: its attention looks both ways"),
        (
            {"llama_attention_head_count_kv": [2, 1]},
            r"has layers of different shapes, which is not supported",
        ),
        ({"llama_attention_head_count": 0}, r"is damaged: its llama.attention.head_count is 0"),
        ({"llama_block_count": 3}, r"is damaged: it lacks 9 weights"),
        ({"split_count": 3}, r"x.gguf is one of 3 parts of a model: run it on llama.cpp"),
        ({"general_type": "adapter"}, r"x.gguf holds a LoRA adapter: merge it into its model"),
        ({"llama_block_count": 1 << 30}, r"is damaged: it has 20 tensors for 1073741824 layers"),
        ({"type": "MXFP4"}, r"has tensors of the type MXFP4, and torch supports only F32, F16, BF16,"),
        ({"drop": "blk.1.ffn_up.weight"}, r"lacks 1 weights .first model.layers.1.mlp.up_proj.weight"),
    ],
)
def test_what_torch_does_not_serve_is_refused_in_a_line(fields: Any, line: str, tmp_path: Path) -> None:
    path = rewritten(file("f32"), tmp_path / "x.gguf", **fields)
    with pytest.raises(ModelError, match=line) as error:
        on_torch(path)
    assert "\n" not in str(error.value)


def test_a_number_of_each_layer_is_one_where_all_are_equal(tmp_path: Path) -> None:
    fields: Any = {"llama_attention_head_count_kv": [2, 2], "llama_feed_forward_length": [512, 512]}
    model = on_torch(rewritten(file("f32"), tmp_path / "x.gguf", **fields))
    assert (
        model.open([TEXT], 1)
        .forward(Draft.empty())
        .logits[0]
        .equal(on_torch(file("f32")).open([TEXT], 1).forward(Draft.empty()).logits[0])
    )


@pytest.mark.parametrize("backend", ["torch", "llama.cpp"])
def test_damage_that_both_ways_of_running_a_file_meet(backend: str, tmp_path: Path) -> None:
    odd: Any = {"llama_attention_causal": False}
    with pytest.raises(ModelError, match="not supported: its attention looks both ways"):
        load(f"gguf:{rewritten(file('f32'), tmp_path / 'embeds.gguf', **odd)}", backend=backend)
    odd = {"tokenizer_chat_template": b"\xff{{ messages }}"}
    with pytest.raises(ModelError, match=r"its tokenizer\.chat_template is not a UTF-8 string"):
        load(f"gguf:{rewritten(file('f32'), tmp_path / 'bytes.gguf', **odd)}", backend=backend)
    odd = {"tokenizer_ggml_eos_token_id": 99999}
    assert load(f"gguf:{rewritten(file('f32'), tmp_path / 'end.gguf', **odd)}", backend=backend).eos == (1, 4)


def test_a_tensor_that_no_llama_has_is_named(tmp_path: Path) -> None:
    path = rewritten(file("f32"), tmp_path / "stranger.gguf")
    line = r"has 1 tensors that a LlamaForCausalLM does not use .first 'blk.0.ffn_gate_exps.weight'.: run it"
    with pytest.raises(ModelError, match=line):
        on_torch(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model at all")
    (tmp_path / "empty.gguf").write_bytes(b"")
    (tmp_path / "old.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    for name, line in (
        ("none.gguf", "cannot read .*none.gguf: No such file"),
        ("text.gguf", "is not a GGUF file .it begins with b'no m'"),
        ("empty.gguf", "cannot read .*empty.gguf"),
        ("old.gguf", "is GGUF of version 1; only versions 2 and 3"),
        ("", "cannot read"),
    ):
        with pytest.raises(ModelError, match=line):
            on_torch(tmp_path / name)
    for options, line in (
        ({"tokenizer": "town"}, "brings its own tokenizer"),
        ({"threads": 2}, "threads works only on llama.cpp"),
        ({"device": "tpu"}, "no device 'tpu'"),
    ):
        with pytest.raises(ModelError, match=line):
            on_torch(file("f32"), **options)
    with pytest.raises(ModelError, match=r"backend must be torch or llama.cpp; got 'onnx'"):
        load(f"gguf:{file('f32')}", backend="onnx")
    with pytest.raises(ModelError, match=r"backend works only with a GGUF file"):
        load("town", backend="llama.cpp")


def test_damaged_files_end_in_a_line(tmp_path: Path) -> None:
    """A file cut anywhere or with changed header bytes gives a one-line error or a model."""
    whole = file("q8_0").read_bytes()
    end = min(t.offset for t in read_header(file("q8_0")).tensors.values())
    rng = random.Random(0)
    path = tmp_path / "x.gguf"
    lines = []
    for number in range(60):
        if number % 2:
            path.write_bytes(whole[: rng.randrange(4, len(whole))])
        else:
            damaged = bytearray(whole)
            place = rng.choice((rng.randrange(4, 600), rng.randrange(4, end), rng.randrange(end - 2000, end)))
            damaged[place : place + 8] = rng.randbytes(8)
            path.write_bytes(damaged)
        try:
            load_gguf(path, torch.device("cpu"), torch.float32, "x", "plain")
        except ModelError as error:
            lines.append(str(error))
    assert len(lines) >= 30  # at least the cut ones
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    ("type", "number"), [("f16", torch.float16), ("f32", torch.float32), ("q8_0", torch.float32)]
)
def test_the_stored_format_is_the_file_s(type: str, number: torch.dtype) -> None:
    assert specviz.load(f"gguf:{file(type)}", backend="torch", dtype="stored").dtype == number
