"""Loads a GGUF file of the Llama family as a transformers model on torch, with dequantised weights.

Each tensor is dequantised separately, by the `gguf` package's functions, and placed directly into the model:
no second copy of the model is written to disk. llama.cpp rotates the rows of queries and keys in pairs, and
transformers in halves, so those rows are reordered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specviz.errors import ModelError, one_line
from specviz.models import choices
from specviz.models.gguf.header import BIDIRECTIONAL, Header, Tensor, read_header
from specviz.models.gguf.tokenizer import tokenizer
from specviz.models.model import Model
from specviz.models.torch_model import no_room

if TYPE_CHECKING:
    from specviz.models.protocols import Net

Config: TypeAlias = LlamaConfig | Qwen2Config | Qwen3Config
TYPES = (  # supported tensor types
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
)  # fmt: skip
WHOLE = ("F32", "F16", "BF16")
STORED = {"F16": torch.float16, "BF16": torch.bfloat16}  # others are dequantised to float32


@dataclass(frozen=True)
class Family:
    """The transformers classes for an architecture."""

    config: type[Config]
    model: type[PreTrainedModel]
    turned: bool  # whether the rows of queries and keys are in llama.cpp's order


FAMILIES = {
    "llama": Family(LlamaConfig, LlamaForCausalLM, True),
    "qwen2": Family(Qwen2Config, Qwen2ForCausalLM, False),
    "qwen3": Family(Qwen3Config, Qwen3ForCausalLM, False),
}
ROTARY = "rope_freqs.weight"  # frequency factors for Llama 3.1's longer context
VALUES = 1 << 19  # dequantised at a time, few enough to stay in the processor's cache


def load_gguf(
    path: Path,
    device: torch.device,
    dtype: torch.dtype | str,
    name: str,
    kernels: str | None = None,
    *,
    fastest: bool = False,
) -> Model:
    """Load a GGUF file's model on torch.

    Parameters
    ----------
    path : Path
    device : torch.device
    dtype : torch.dtype or ``auto``
        Format of the dequantised weights. ``auto`` keeps F16 and BF16 weights as stored and dequantises
        others to float32.
    name : str
        Name of the file; the origin of the weights is appended to it to form the model's name.
    kernels : str, optional
        See `Model`.
    fastest : bool
        Whether to convert the weights to the format in which the model is fastest (`specviz.models.choices`).

    Raises
    ------
    ModelError
        If the file is damaged, has an unsupported architecture or type, or does not fit into memory.
    """
    header = read_header(path)
    if (parts := header.fields.get("split.count", 1)) not in (0, 1):  # 0: joined from parts
        raise ModelError(
            f"{path} is one of {parts} parts of a model: run it on llama.cpp, which reads the others, or "
            "join them with llama-gguf-split --merge"
        )
    if header.fields.get("general.type") == "adapter":
        raise ModelError(f"{path} holds a LoRA adapter: merge it into its model and load that")
    kind = type_of(header)
    name = f"{name} ({origin(kind)})"
    family, config = _config(header, name)
    number = STORED.get(kind, torch.float32) if dtype == "auto" else dtype
    assert isinstance(number, torch.dtype)
    words, end = tokenizer(header.fields, name)
    try:
        net = _empty(family, config, device)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ModelError(
            f"{path} is damaged: its metadata does not describe a model: {one_line(error)}"
        ) from None
    digest = hashlib.sha256()
    try:
        _fill(net, header, family, config, device, number, digest, name)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise no_room(name, device, sum(p.numel() for p in net.parameters()) * number.itemsize) from None
    if config.tie_word_embeddings:
        net.lm_head.weight = net.model.embed_tokens.weight
    if not end:
        raise ModelError(f"{name} is not supported: its vocabulary names no end token, so no text would end")
    net.generation_config = GenerationConfig(eos_token_id=list(end))
    net = net.eval().requires_grad_(False)
    model = Model(choices.convert(net, kernels, auto=fastest), words, name, kernels=kernels)
    model.path = path
    digest.update(words.backend_tokenizer.to_str().encode("utf8", "surrogatepass"))
    model.source = f"GGUF, {kind}" + (
        "" if kind in WHOLE else ", dequantised; not the publisher's checkpoint"
    )
    model.keep_content(digest.hexdigest())
    return model


def origin(kind: str) -> str:
    """The origin of weights of a type, for a model's name: ``4-bit, dequantised``."""
    bits = next(filter(str.isdigit, kind), "?")
    return f"{kind} from GGUF" if kind in WHOLE else f"{bits}-bit, dequantised"


def type_of(header: Header) -> str:
    """The type that most of the weights have, such as ``Q4_1``."""
    sizes: dict[str, int] = {}
    for tensor in header.tensors.values():
        if tensor.name.startswith("blk."):
            kind = _type(tensor, header.path)
            sizes[kind] = sizes.get(kind, 0) + int(np.prod(tensor.shape))
    return max(sizes, key=sizes.__getitem__) if sizes else "unknown"


def _type(tensor: Tensor, path: Path) -> str:
    from gguf import GGMLQuantizationType

    try:
        name = GGMLQuantizationType(tensor.type).name
    except ValueError:
        name = f"number {tensor.type}"
    if name not in TYPES:
        raise ModelError(
            f"{path.name} has tensors of the type {name}, and torch supports only {', '.join(TYPES)}: run "
            f"it on llama.cpp (gguf:{path.name})"
        )
    return name


def _config(header: Header, name: str) -> tuple[Family, Config]:
    """Build the transformers config from the file's metadata; reject unsupported features by name."""
    fields, path = header.fields, header.path
    kind = fields.get("general.architecture")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ModelError(
            f"{path.name} has the architecture {str(kind)[:40]!r}; torch supports only "
            f"{', '.join(FAMILIES)}: run it on llama.cpp (backend='llama.cpp')"
        )
    family = FAMILIES[kind]

    def number(key: str, least: float = 1, default: Any = None) -> Any:
        value = fields.get(f"{kind}.{key}", default)
        if isinstance(value, list) and value:  # one value per layer
            if len(set(value)) > 1:
                raise refuse("layers of different shapes")
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise ModelError(f"{path} is damaged: its {kind}.{key} is {str(value)[:40]}")
        return value

    def refuse(what: str) -> ModelError:
        return ModelError(f"{name} has {what}, which is not supported on torch: run it on llama.cpp")

    if fields.get(f"{kind}.attention.causal") is False:
        raise ModelError(f"{name} is not supported: {BIDIRECTIONAL}")
    for key, usual, what in (
        ("expert_count", 0, "experts"), ("attention.sliding_window", 0, "a sliding window"),
        ("rope.scaling.attn_factor", 1, "scaled rotary positions"),
    ):  # fmt: skip
        if fields.get(f"{kind}.{key}", usual) != usual:
            raise refuse(what)
    # As in llama.cpp, a factor without a type is linear; files from 2023 use another key.
    factors = ("rope.scaling.factor", "rope.scale_linear")
    factor = next((each for each in factors if fields.get(f"{kind}.{each}")), factors[0])
    scaling = fields.get(f"{kind}.rope.scaling.type", "linear" if f"{kind}.{factor}" in fields else "none")
    if scaling not in ("none", "linear"):
        raise refuse(f"rope scaling of the type {str(scaling)[:40]!r}")
    hidden, heads = number("embedding_length"), number("attention.head_count")
    dim = number("attention.key_length", default=hidden // heads)
    if number("attention.value_length", default=dim) != dim:
        raise refuse("keys and values of different sizes")
    if number("rope.dimension_count", default=dim) != dim:
        raise refuse("rotary positions on only part of each head")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{path} is damaged: it has no embedding")
    rope = {"rope_type": "default", "rope_theta": float(number("rope.freq_base", 1e-9, 10000.0))}
    if scaling == "linear" and fields.get(f"{kind}.{factor}"):  # llama.cpp treats 0 or no factor as 1
        rope |= {"rope_type": "linear", "factor": float(number(factor, 1e-9))}
    layers = number("block_count")
    if layers > len(header.tensors):
        raise ModelError(f"{path} is damaged: it has {len(header.tensors)} tensors for {layers} layers")
    given = dict(
        vocab_size=embedding.shape[0], hidden_size=hidden, head_dim=dim, num_hidden_layers=layers,
        intermediate_size=number("feed_forward_length"), num_attention_heads=heads,
        num_key_value_heads=number("attention.head_count_kv", default=heads),
        max_position_embeddings=number("context_length"), rope_parameters=rope,
        rms_norm_eps=number("attention.layer_norm_rms_epsilon", 0),
        tie_word_embeddings="output.weight" not in header.tensors,
        **({"attention_bias": "blk.0.attn_q.bias" in header.tensors} if family.config is LlamaConfig else {}),
    )  # fmt: skip
    try:
        config = family.config(**given)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ModelError(
            f"{path} is damaged: its metadata does not describe a model: {one_line(error)}"
        ) from None
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None  # set by the generation config
    return family, config


def _empty(family: Family, config: Config, device: torch.device) -> PreTrainedModel:
    """Build the modules on the meta device, except the rotary buffers, which are in no file."""
    with torch.device("meta"):
        net = family.model(config)
    net.model.rotary_emb = type(net.model.rotary_emb)(config).to(device)
    return net


def _fill(
    net: PreTrainedModel, header: Header, family: Family, config: Config, device: torch.device,
    number: torch.dtype, digest: hashlib._Hash, name: str,
) -> None:  # fmt: skip
    """Dequantise the tensors one by one into the modules."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    wanted = dict(net.named_parameters())
    if config.tie_word_embeddings:
        wanted.pop("lm_head.weight", None)
    data = np.memmap(header.path, mode="r")
    names = get_tensor_name_map(MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    stored = {key: names.get_name(key, try_suffixes=(".weight", ".bias")) or key for key in wanted}
    if extra := sorted(header.tensors.keys() - {*stored.values(), ROTARY}):
        raise ModelError(
            f"{name} has {len(extra)} tensors that a {type(net).__name__} does not use (first "
            f"{extra[0][:60]!r}): run it on llama.cpp"
        )
    if missing := sorted(key for key in wanted if stored[key] not in header.tensors):
        raise ModelError(f"{header.path} is damaged: it lacks {len(missing)} weights (first {missing[0]})")
    order: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    if family.turned:
        order = {
            "q_proj": lambda t: halves(t, config.num_attention_heads),
            "k_proj": lambda t: halves(t, config.num_key_value_heads or config.num_attention_heads),
        }
    # Tensors are hashed in order while the next ones are dequantised. Those that are not kept in float32 wait
    # for the one before, so that only two are in memory twice.
    with ThreadPoolExecutor(1) as hashing:
        hashed: Future[None] | None = None
        for key in sorted(wanted):
            tensor = header.tensors[stored[key]]
            values = torch.from_numpy(dequantise(data, tensor, header.path))
            if tuple(values.shape) != tuple(wanted[key].shape):
                raise ModelError(
                    f"{header.path} is damaged: its {tensor.name} is {list(values.shape)}, not "
                    f"{list(wanted[key].shape)}"
                )
            module, _, kind = key.rpartition(".")
            if turn := order.get(module.rpartition(".")[2]):
                values = turn(values)
            kept = values.to(device, number)
            if hashed and kept is not values:
                hashed.result()
            hashing.submit(digest.update, f"{key} {list(values.shape)}".encode())
            hashed = hashing.submit(digest.update, values.contiguous().numpy().data)
            setattr(net.get_submodule(module), kind, nn.Parameter(kept, requires_grad=False))
    if ROTARY in header.tensors:
        factors = torch.from_numpy(dequantise(data, header.tensors[ROTARY], header.path)).to(device)
        rotary: Net = net.model.rotary_emb
        if factors.shape != rotary.inv_freq.shape:
            raise ModelError(f"{header.path} is damaged: its {ROTARY} has {len(factors)} factors")
        digest.update(f"{ROTARY} {list(factors.shape)}".encode())
        digest.update(factors.cpu().numpy().data)
        rotary.inv_freq = rotary.inv_freq / factors
        rotary.original_inv_freq = rotary.inv_freq


def halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows [heads * dim, ...] so that rotary positions rotate the two halves of each head."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def dequantise(data: np.ndarray, tensor: Tensor, path: Path) -> np.ndarray:
    """Dequantise a tensor to float32."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    name = _type(tensor, path)
    kind = GGMLQuantizationType[name]
    block, size = GGML_QUANT_SIZES[kind]
    if not tensor.shape or tensor.shape[-1] % block:
        raise ModelError(f"{path} is damaged: a row of {tensor.name} is not a multiple of {block}")
    count = int(np.prod(tensor.shape)) // block * size
    if tensor.offset + count > len(data):
        raise ModelError(f"{path} is damaged: it ends inside {tensor.name}; fetch it again")
    raw = np.asarray(data[tensor.offset : tensor.offset + count])
    if name == "F32":
        return raw.view(np.float32).reshape(tensor.shape).copy()
    # Blocks are independent of each other, so they need not be taken by row: the function is slow on many
    # small groups of rows, and it would hold a large tensor's values twice.
    blocks = raw.reshape(-1, size)
    values, step = np.empty((len(blocks), block), np.float32), VALUES // block
    for start in range(0, len(blocks), step):
        part = blocks[start : start + step]
        values[start : start + step] = dequantize(part.reshape(1, -1), kind).reshape(-1, block)
    return values.reshape(tensor.shape)
