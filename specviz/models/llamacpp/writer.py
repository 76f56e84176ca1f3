"""Writes a model in transformers' format as a GGUF file for llama.cpp.

The weights are the same under other names, with one exception: for llama and mistral models, llama.cpp
rotates pairs of adjacent values while transformers rotates the two halves of a head, so the rows of the query
and key projections are reordered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ModelError
from specviz.files import replacing
from specviz.models.llamacpp.library import MISSING
from specviz.paths import expanded

if TYPE_CHECKING:
    from gguf import GGUFWriter

    from specviz.models.protocols import AnyTokenizer, Settings, Spec

NAMES = {"f32": "float32", "f16": "float16", "q8_0": "Q8_0", "q4_k_m": "Q4_K_M"}
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
VERSION = 1  # of the output; changes whenever the same model gives a different file
TURNED = ("llama", "mistral")  # model types whose queries and keys llama.cpp rotates in adjacent pairs
ROW = 32  # block size of Q8_0: rows must be a multiple of this
# Patterns that split text before the merges, and llama.cpp's names for them.
PATTERNS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits +
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": name
    for digits, name in ((r"\p{N}{1,3}", "llama-bpe"), (r"\p{N}", "qwen2"))
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """The result of writing a GGUF file.

    Parameters
    ----------
    path : Path
    type : str
        The requested type.
    tensors : dict of str to list of str
        Names of the tensors, by number format.
    """

    path: Path
    type: str
    tensors: dict[str, list[str]]

    def __str__(self) -> str:
        size = self.path.stat().st_size / 1e6
        many = ", ".join(f"{len(names)} in {kind}" for kind, names in self.tensors.items())
        return f"{self.path} ({size:.1f} MB; tensors: {many})"


def write_gguf(model: Spec, path: str | Path, type: str = "f16", force: bool = False) -> Written:
    """Write a model as a GGUF file.

    Parameters
    ----------
    model : Model, or anything else that `specviz.load` takes
        Of the Llama family (llama, mistral without a sliding window, qwen2, qwen3), with a byte-level BPE.
    path : str or Path
    type : {"f32", "f16", "q8_0", "q4_k_m"}
        Number format of the matrices; norms stay in float32. Q8_0 needs rows that are multiples of 32; other
        matrices are written as F16. Q4_K_M is made by llama.cpp's own quantizer, which needs multiples of 256
        and otherwise uses a format with smaller blocks, or F16.
    force : bool
        Whether an existing file may be replaced.

    Returns
    -------
    Written
        The file, and the number format of each tensor.

    Raises
    ------
    ModelError
        If the model is of another family or has a part without a counterpart in GGUF, if the file exists or
        cannot be written, or if a required package is missing. No partial file is left.
    """
    if type not in NAMES:
        raise ModelError(f"no GGUF type {type!r}; choose one of {', '.join(NAMES)}")
    if find_spec("gguf") is None:
        raise ModelError(MISSING)
    path = expanded(path, ModelError)
    if path.is_dir():
        raise ModelError(f"{path} is a folder; name a file")
    if path.exists() and not force:
        raise ModelError(f"{path} exists: choose another path, or overwrite it with force")
    source = _Source(model)
    try:
        with replacing(path) as part:
            if type == "q4_k_m":
                with TemporaryDirectory(dir=path.parent) as folder:
                    whole = Path(folder) / "whole.gguf"
                    _write(source, whole, "f32")
                    _quantize(whole, part)
            else:
                _write(source, part, type)
            formats = tensors(part)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from error
    return Written(path, type, formats)


def tensors(path: Path) -> dict[str, list[str]]:
    """Names of a GGUF file's tensors, by number format."""
    from gguf import GGUFReader

    by_format: dict[str, list[str]] = {}
    for tensor in GGUFReader(path).tensors:
        by_format.setdefault(tensor.tensor_type.name, []).append(tensor.name)
    return by_format


class _Source:
    """The model to write: config, weights by name and tokenizer."""

    def __init__(self, model: Spec) -> None:
        from specviz.models.loading import load
        from specviz.models.torch_model import TorchModel

        # Ignore environment variables for decoding: the file must depend only on the model.
        stored = isinstance(model, str | Path) and not str(model).startswith("gguf:")
        options: Settings = {"dtype": "float32", "kernels": "plain", "invariant": False} if stored else {}
        loaded = load(model, **options)
        if not isinstance(loaded, TorchModel) or loaded.kind == "diffusion":
            raise ModelError(
                f"{loaded.name} is no causal language model of its own on torch: choose one to write as GGUF"
            )
        self.tokenizer: AnyTokenizer = loaded.tokenizer
        self.name, self.config, self._net = loaded.name, loaded.net.config, loaded.net
        self.eos, self._path, self._layers = loaded.eos, loaded.path, loaded.layers
        self._check()
        # transformers ties no head that a checkpoint stores with other values, whatever the config says.
        self.tied = self._net.get_output_embeddings().weight is self._net.get_input_embeddings().weight

    def _check(self) -> None:
        kind, config = self.config.model_type, self.config

        def refuse(reason: str) -> ModelError:
            return ModelError(f"{self.name} ({kind}) cannot be written as GGUF: {reason}")

        if kind not in ARCHITECTURES:
            raise refuse(f"only the families {', '.join(ARCHITECTURES)} are supported")
        if self._path is not None:
            raise refuse(f"it comes from a GGUF file already, {self._path}")
        if self._layers < config.num_hidden_layers:  # made by `first`
            raise refuse(f"it has {self._layers} of {config.num_hidden_layers} layers: write the whole model")
        if (rows := len(self._net.get_output_embeddings().weight)) < config.vocab_size:
            raise refuse(
                f"its head has {rows} of {config.vocab_size} tokens: write the model that it is cut out of"
            )
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type", "default") != "default":
            raise refuse(
                f"its rotary positions are scaled ({rope['rope_type']}); convert it with llama.cpp's script"
            )
        if rope.get("partial_rotary_factor", 1) != 1:
            raise refuse("it rotates only part of each head")
        if getattr(config, "sliding_window", None) and getattr(
            config, "use_sliding_window", kind == "mistral"
        ):
            raise refuse("it has a sliding window")
        if config.hidden_act != "silu":
            raise refuse(f"its activation is {config.hidden_act}, not silu")
        if self.tokenizer is None:
            raise refuse("it has no tokenizer")
        if not self.eos:
            raise refuse("it names no end token: set eos_token_id in its generation config")
        if len(self.eos) > 3:
            raise refuse(f"it has {len(self.eos)} end tokens, and a GGUF file can name three")
        self.vocabulary = json.loads(self.tokenizer.backend_tokenizer.to_str())
        self.pre = _pre_tokenizer(self.vocabulary, refuse)

    def weights(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each tensor in float32, with its name in transformers."""
        import torch

        for name, tensor in sorted(self._net.state_dict().items()):
            if not (self.tied and name == "lm_head.weight"):
                yield name, tensor.detach().to("cpu", torch.float32).numpy()


def _pre_tokenizer(vocabulary: Settings, refuse: Callable[[str], ModelError]) -> str:
    """llama.cpp's name for how a tokenizer splits text before the merges."""
    model = vocabulary["model"]
    if model["type"] != "BPE" or model.get("byte_fallback"):
        raise refuse("its tokenizer is not byte-level BPE")
    normalizer = (vocabulary.get("normalizer") or {}).get("type")
    pre = vocabulary.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers", [pre])
    kinds = [step.get("type") for step in steps]
    plain = kinds and kinds[-1] == "ByteLevel" and not steps[-1].get("add_prefix_space")
    if plain and normalizer is None and steps[-1].get("use_regex", True):
        if len(steps) == 1:
            return "gpt-2"
        if kinds[:-1] == ["Digits"] and steps[0].get("individual_digits"):
            return "smollm"
    if plain and kinds == ["Split", "ByteLevel"] and steps[0].get("behavior") == "Isolated":
        scheme = PATTERNS.get((steps[0].get("pattern") or {}).get("Regex", ""))
        # Qwen first composes characters (NFC), which llama.cpp omits; composed text is split identically.
        if scheme is not None and normalizer in (None, "NFC" if scheme == "qwen2" else None):
            return scheme
    parts = [normalizer, *kinds]
    raise refuse(
        "llama.cpp has no name for how its tokenizer splits text "
        f"({', '.join(map(str, filter(None, parts)))})"
    )


def _write(source: _Source, path: Path, type: str) -> None:
    import gguf

    config = source.config
    architecture = ARCHITECTURES[config.model_type]
    out = gguf.GGUFWriter(path, architecture)
    _describe(out, source, type)
    _words(out, source)
    heads = config.num_attention_heads
    groups = {"q_proj": heads, "k_proj": getattr(config, "num_key_value_heads", None) or heads}
    kind = next(each for each in gguf.MODEL_ARCH if gguf.MODEL_ARCH_NAMES[each] == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, data in source.weights():
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new is None:
            raise ModelError(
                f"{source.name} cannot be written as GGUF: its tensor {name} has no name in GGUF"
            )
        module = name.split(".")[-2]
        if module in groups and config.model_type in TURNED:
            data = turned(data, groups[module])
        if data.ndim == 1 or type == "f32":
            out.add_tensor(new, np.ascontiguousarray(data))
        elif type == "q8_0" and data.shape[-1] % ROW == 0:
            eight = gguf.GGMLQuantizationType.Q8_0
            out.add_tensor(new, gguf.quants.quantize(np.ascontiguousarray(data), eight), raw_dtype=eight)
        else:
            out.add_tensor(new, np.ascontiguousarray(data, dtype=np.float16))
    try:
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
    finally:
        out.close()


def turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows (or a bias) of a projection from halves of each head to pairs: 0, d/2, 1, d/2 + 1 ..."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _describe(out: GGUFWriter, source: _Source, type: str) -> None:
    """Write the model's shape under llama.cpp's keys."""
    import gguf

    config = source.config
    files = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}
    out.add_name(source.name)
    out.add_file_type(gguf.LlamaFileType[files[type]])
    out.add_quantization_version(gguf.GGML_QUANT_VERSION)
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_block_count(config.num_hidden_layers)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    out.add_key_length(size)
    out.add_value_length(size)
    out.add_rope_dimension_count(size)
    rope = getattr(config, "rope_parameters", None) or {}
    out.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_vocab_size(config.vocab_size)


def _words(out: GGUFWriter, source: _Source) -> None:
    """Write the tokenizer: pieces, merges, roles of special tokens and chat template."""
    from gguf import TokenType

    words, size = source.tokenizer, source.config.vocab_size
    pieces = {i: piece for piece, i in source.vocabulary["model"]["vocab"].items()}
    kinds = dict.fromkeys(pieces, TokenType.NORMAL)
    for added in source.vocabulary["added_tokens"]:
        pieces[added["id"]] = added["content"]
        kinds[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    if max(pieces) >= size:
        raise ModelError(f"{source.name} cannot be written as GGUF: its tokenizer has more ids than its head")
    # A head may be padded: its last ids are never generated.
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(source.pre)
    out.add_token_list([pieces.get(i, f"[PAD{i}]") for i in range(size)])
    out.add_token_types([kinds.get(i, TokenType.UNUSED) for i in range(size)])
    merges = source.vocabulary["model"]["merges"]
    out.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    for add, token in zip((out.add_eos_token_id, out.add_eot_token_id, out.add_eom_token_id), source.eos):
        add(token)
    if words.bos_token_id is not None:
        out.add_bos_token_id(words.bos_token_id)
    if words.pad_token_id is not None:
        out.add_pad_token_id(words.pad_token_id)
    out.add_add_bos_token(words("a")["input_ids"][:1] == [words.bos_token_id])
    if template := words.chat_template:
        if isinstance(template, dict):  # several templates, by name
            template = [{"name": name, "template": each} for name, each in template.items()]
        out.add_chat_template(template)


def _quantize(source: Path, target: Path) -> None:
    """Convert a file to Q4_K_M with llama.cpp's own quantizer."""
    import ctypes

    from specviz.models.llamacpp.library import last_message, library

    lib = library()
    given = lib.llama_model_quantize_default_params()
    given.ftype = lib.LLAMA_FTYPE_MOSTLY_Q4_K_M
    given.nthread = 1
    last_message()
    if lib.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(given)):
        raise ModelError(f"llama.cpp could not quantize the model: {last_message() or 'no reason given'}")
