"""Loads masked-diffusion checkpoints of the LLaDA and Dream families without running their own code.

LLaDA (Nie et al. 2025, arXiv:2502.09992) is a Llama with other tensor names, Dream (Ye et al. 2025,
arXiv:2508.15487) a Qwen2 with the same names; in both, every position attends to all others. The published
config and weights are therefore loaded into transformers' own modules, configured as not causal. Any other
feature that a config requires is rejected.

A checkpoint is in memory only once, whatever its size: modules are built without storage, and each tensor is
copied from its file to its final place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)
from transformers.utils import logging

from specviz.errors import ModelError, one_line, plural
from specviz.files import read_json
from specviz.models import choices
from specviz.models.diffusion import Diffusion
from specviz.models.llama import ROPES
from specviz.models.torch_model import no_room

if TYPE_CHECKING:
    from specviz.models.protocols import AnyTokenizer, Settings

INDEX = "model.safetensors.index.json"
# The only files fetched from a hub: no code, no pickles.
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    INDEX,
    "*.safetensors",
)
FORMATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MODULES: dict[type, type[PreTrainedModel]] = {LlamaConfig: LlamaForCausalLM, Qwen2Config: Qwen2ForCausalLM}
Plain: TypeAlias = str | int | float | bool | None
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)

# Field: its published default (for a config.json without it), and the values that are supported here.
LLADA: dict[str, tuple[Plain, tuple[Plain, ...]]] = {
    "block_type": ("sequential", ("llama",)),
    "layer_norm_type": ("default", ("rms",)),
    "activation_type": ("swiglu", ("silu",)),
    "rope": (False, (True,)),
    "alibi": (False, (False, None)),
    "attention_layer_norm": (False, (False, None)),
    "layer_norm_with_affine": (True, (True,)),
    "bias_for_layer_norm": (None, (False, None)),
    "include_bias": (False, (False, None)),
    "input_emb_norm": (False, (False, None)),
    "scale_logits": (False, (False, None)),
    "block_group_size": (1, (1,)),
    "clip_qkv": (None, (None,)),
    "rope_scaling": (None, (None,)),
    "rope_parameters": (None, (None,)),
    "quantization_config": (None, (None,)),
}
DREAM: dict[str, tuple[Plain, tuple[Plain, ...]]] = {
    "hidden_act": ("silu", ("silu", "swish")),
    "use_sliding_window": (False, (False, None)),
    "quantization_config": (None, (None,)),
}
# Our names and LLaDA's, without the final `.weight` or `.bias`.
LLADA_NAMES = {
    "model.embed_tokens": "model.transformer.wte",
    "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out",
}
LLADA_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "post_attention_layernorm": "ff_norm",
    "mlp.gate_proj": "ff_proj",  # its output goes through the SiLU
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
}


@dataclass(frozen=True)
class Family:
    """The differences between families: config reader, weight names, and the shift of predictions."""

    config: Callable[[Fields], PreTrainedConfig]
    published: Callable[[str], str]
    shift: int


def family(config: Settings) -> str | None:
    """The family that a ``config.json`` names: ``LLaDA``, ``Dream``, or None."""
    named = config.get("architectures")
    architectures = named if isinstance(named, list) else []
    if config.get("model_type") == "llada" or "LLaDAModelLM" in architectures:
        return "LLaDA"
    if config.get("model_type") == "Dream" or "DreamModel" in architectures:
        return "Dream"
    return None


def read_config(folder: Path) -> Settings:
    """Read a folder's ``config.json``; return an empty dict if it cannot be read."""
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def complete(folder: Path) -> bool:
    """Whether all weight files exist; in a hub's cache a download may have been interrupted."""
    try:
        return bool(_weight_files(folder, folder.name))
    except ModelError:
        return False


def load_checkpoint(
    folder: Path,
    name: str,
    device: torch.device,
    dtype: torch.dtype | str,
    tokenizer: AnyTokenizer | None = None,
    kernels: str | None = None,
) -> Diffusion:
    """Load a checkpoint of one of the families.

    Parameters
    ----------
    folder : Path
        With config.json, safetensors weights (one file, or several with an index), and a tokenizer.
    name : str
    device : torch.device
    dtype : torch.dtype or ``auto``
        ``auto`` is the stored format; if several are mixed, that of most weights.
    tokenizer : transformers tokenizer, optional
        Default: the one in the folder.
    kernels : str, optional
        See `Diffusion`.

    Raises
    ------
    ModelError
        If the config requires an unsupported feature, names no usable mask token, or does not match the
        weights (all checked before any weight is read); or if the weights or the tokenizer do not load.

    Notes
    -----
    In half precision, the published LLaDA rotates queries and keys in float32; transformers' modules rotate
    them in the format of the weights.
    """
    fields = Fields(read_config(folder), name)
    kind = FAMILIES[str(family(fields.config))]
    config = kind.config(fields)
    mask = _mask(fields, config.vocab_size)
    config.eos_token_id = _eos(folder, fields)
    config.is_causal = False
    stored = _stored(_weight_files(folder, name), name)
    if config.num_hidden_layers > len(stored):  # checked before the modules are built
        raise fields.refuse(f"it has {len(stored):,} tensors for {config.num_hidden_layers:,} layers")
    net = _empty(config, device)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    # By name in the checkpoint: our name, and the parameter without storage.
    parameters = {kind.published(ours): (ours, p) for ours, p in net.named_parameters(remove_duplicate=False)}
    wanted = {key: (ours, p) for key, (ours, p) in parameters.items() if ours not in tied}
    _check(wanted, stored, {kind.published(ours) for ours in tied}, name)
    words = tokenizer if tokenizer is not None else _tokenizer(folder, name, kind is FAMILIES["Dream"])
    if mask not in words.get_vocab().values():
        raise ModelError(
            f"the tokenizer of {name} has no token {mask}, the mask_token_id of its config.json; "
            "pass the model's own with tokenizer="
        )
    _fill(net, wanted, stored, device, dtype, name)
    if config.tie_word_embeddings:
        net.lm_head.weight = net.model.embed_tokens.weight
    net = choices.convert(net.eval(), kernels, auto=False)
    return Diffusion(net, words, name, mask=mask, shift=kind.shift, kernels=kernels)


# -- config -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fields:
    """A config.json with checked access to its fields."""

    config: Settings
    name: str

    def refuse(self, why: str) -> ModelError:
        """The error for a config that is not supported."""
        return ModelError(f"{self.name} is not supported: {why}")

    def only(self, computed: Mapping[str, tuple[Plain, tuple[Plain, ...]]]) -> None:
        """Reject fields with values that are not supported here."""
        for field, (default, values) in computed.items():
            value = self.config.get(field, default)
            if value not in values:
                raise self.refuse(
                    f"{field} is {json.dumps(value):.60} in its config.json, and this backend supports only "
                    f"{' or '.join(json.dumps(v) for v in values if v is not None) or 'none'}"
                )

    def count(self, field: str, default: int | None = None) -> int:
        """Read a positive integer."""
        value = self.config.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.refuse(
                f"its config.json needs a positive whole number as {field}, but has {value!r:.60}"
            )
        return value

    def number(self, field: str, default: float) -> float:
        """Read a positive number."""
        value = self.config.get(field, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise self.refuse(f"its config.json needs a positive number as {field}, but has {value!r:.60}")
        return float(value)

    def heads(self, hidden: int, heads: int, groups: int) -> None:
        """Reject head counts that do not divide the width evenly."""
        if hidden % (2 * heads) or heads % groups:
            raise self.refuse(
                f"width {hidden}, {heads} heads and {groups} key-value heads do not fit together"
            )


def _llada(fields: Fields) -> PreTrainedConfig:
    fields.only(LLADA)
    hidden, heads = fields.count("d_model"), fields.count("n_heads")
    groups = _llada_groups(fields, heads)
    fields.heads(hidden, heads, groups)
    # A Llama with a bias for queries, keys and values has one for the output, too; a Qwen2 does not.
    kind = Qwen2Config if fields.config.get("include_qkv_bias") else LlamaConfig
    return kind(
        vocab_size=fields.count("embedding_size", fields.count("vocab_size")),
        hidden_size=hidden,
        intermediate_size=fields.count("mlp_hidden_size", fields.count("mlp_ratio", 4) * hidden),
        num_hidden_layers=fields.count("n_layers"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=fields.count("max_sequence_length", 1024),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-5),
        rope_parameters={"rope_type": "default", "rope_theta": fields.number("rope_theta", 1e4)},
        tie_word_embeddings=bool(fields.config.get("weight_tying", True)),
        bos_token_id=None,
    )


def _llada_groups(fields: Fields, heads: int) -> int:
    """Number of key-value heads, from their count or from the older switch for a single one."""
    single = fields.config.get("multi_query_attention")
    switched = heads if single is None else 1 if single else heads
    groups = fields.count("n_kv_heads", switched)
    if single is not None and groups != switched:
        raise fields.refuse(
            f"its config.json has n_kv_heads {groups} and multi_query_attention {single!r:.60}"
        )
    return groups


def _dream(fields: Fields) -> PreTrainedConfig:
    fields.only(DREAM)
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    groups = fields.count("num_key_value_heads", heads)
    fields.heads(hidden, heads, groups)
    rope = _dream_rope(fields)
    try:
        return Qwen2Config(
            vocab_size=fields.count("vocab_size"),
            hidden_size=hidden,
            intermediate_size=fields.count("intermediate_size"),
            num_hidden_layers=fields.count("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=groups,
            max_position_embeddings=fields.count("max_position_embeddings", 32768),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope_parameters=rope,
            tie_word_embeddings=bool(fields.config.get("tie_word_embeddings", False)),
            bos_token_id=None,
        )
    except (StrictDataclassError, ValueError, KeyError, TypeError) as error:  # from the rope fields
        raise fields.refuse(one_line(error, 200)) from None


def _dream_rope(fields: Fields) -> Settings:
    """Rotary parameters, from two fields or from the single field that newer transformers versions write."""
    field = "rope_parameters" if fields.config.get("rope_parameters") else "rope_scaling"
    rope = fields.config.get(field) or {}
    turned = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else None
    if turned not in ROPES:
        raise fields.refuse(
            f"{field} is {json.dumps(rope):.60} in its config.json, and this backend supports only the "
            f"types {', '.join(ROPES)}"
        )
    return {"rope_theta": fields.number("rope_theta", 1e4)} | rope | {"rope_type": turned}


def _llada_name(ours: str) -> str:
    part, _, kind = ours.rpartition(".")
    if part in LLADA_NAMES:
        return f"{LLADA_NAMES[part]}.{kind}"
    _, _, layer, part = part.split(".", 3)  # model.layers.N.part
    return f"model.transformer.blocks.{layer}.{LLADA_LAYER[part]}.{kind}"


FAMILIES = {"LLaDA": Family(_llada, _llada_name, 0), "Dream": Family(_dream, str, 1)}


def _mask(fields: Fields, vocabulary: int) -> int:
    mask = fields.config.get("mask_token_id")
    if mask is None:
        raise fields.refuse("its config.json names no mask_token_id, which a diffusion model needs")
    if isinstance(mask, bool) or not isinstance(mask, int) or not 0 <= mask < vocabulary:
        raise fields.refuse(f"its mask_token_id {mask!r:.60} is outside its vocabulary of {vocabulary}")
    return mask


def _eos(folder: Path, fields: Fields) -> list[int] | None:
    """Ids that end a text, from the generation config, else from the config; None without any."""
    path = folder / "generation_config.json"
    generation = read_json(path, dict, error=ModelError) if path.is_file() else {}
    for source in (generation, fields.config):
        given = source.get("eos_token_id")
        ids = given if isinstance(given, list) else [-1 if given is None else given]
        if any(type(i) is not int for i in ids):
            raise fields.refuse(f"its eos_token_id {given!r:.60} is not a token id")
        if valid := [i for i in ids if i >= 0]:  # as in `torch_model.eos`
            return valid
    return None


# -- weights ----------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A stored tensor, as described by the file's header."""

    file: Path
    shape: tuple[int, ...]
    format: str


def _empty(config: PreTrainedConfig, device: torch.device) -> PreTrainedModel:
    """Build the modules with bidirectional attention and without storage."""
    with torch.device("meta"):
        net = MODULES[type(config)](config)
    net.model.rotary_emb = type(net.model.rotary_emb)(config).to(device)  # no file stores its buffers
    for layer in net.model.layers:
        layer.self_attn.is_causal = False
    return net


def _weight_files(folder: Path, name: str) -> list[Path]:
    index = folder / INDEX
    if not index.is_file():
        whole = folder / "model.safetensors"
        if not whole.is_file():
            raise ModelError(
                f"{name} has neither {whole.name} nor {INDEX} (other formats can run code and are not read)"
            )
        return [whole]
    entries = read_json(index, dict, error=ModelError).get("weight_map")
    files = sorted({str(file) for file in entries.values()}) if isinstance(entries, dict) else []
    if not files or any(Path(file).name != file or not file.endswith(".safetensors") for file in files):
        raise ModelError(
            f"{INDEX} of {name} names no safetensors files next to it: fetch the checkpoint again"
        )
    absent = [file for file in files if not (folder / file).is_file()]
    if absent:
        raise ModelError(
            f"{name} lacks {len(absent)} of the {len(files)} weight files that {INDEX} names "
            f"(first {absent[0]}): fetch the checkpoint again"
        )
    return [folder / file for file in files]


def _stored(files: Sequence[Path], name: str) -> dict[str, Stored]:
    """List every tensor of the files; only their headers are read."""
    tensors = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                for key in opened.keys():  # noqa: SIM118 - no mapping
                    part = opened.get_slice(key)
                    tensors[key] = Stored(file, tuple(part.get_shape()), part.get_dtype())
        except READ_ERRORS as error:
            raise ModelError(
                f"{file.name} of {name} is not a safetensors file: {one_line(error, 200)}"
            ) from None
    return tensors


def _check(wanted: Settings, stored: dict[str, Stored], tied: set[str], name: str) -> None:
    """Check that the files hold exactly the tensors that the config describes.

    `tied` tensors (the head of a checkpoint with tied weights) may also exist; they are not read.
    """
    lacking = [key for key in wanted if key not in stored]
    beyond = [key for key in sorted(stored) if key not in wanted and key not in tied]
    faults = [
        f"{verb} {plural(len(keys), 'tensor')} ({', '.join(keys[:3])}{', ...' * (len(keys) > 3)})"
        for verb, keys in (("lacks", lacking), ("has in addition", beyond))
        if keys
    ]
    if faults:
        raise ModelError(f"the weights of {name} do not match its config.json: it {' and '.join(faults)}")
    for key, (_, parameter) in wanted.items():
        part = stored[key]
        if part.shape != tuple(parameter.shape):
            raise ModelError(
                f"{key} of {name} is {list(part.shape)} in {part.file.name}, and {list(parameter.shape)} "
                "by its config.json"
            )
        if part.format not in FORMATS:
            raise ModelError(f"{key} of {name} is stored as {part.format}; {', '.join(FORMATS)} are read")


def _fill(
    net: PreTrainedModel, wanted: dict[str, tuple[str, nn.Parameter]], stored: dict[str, Stored],
    device: torch.device, dtype: torch.dtype | str, name: str,
) -> None:  # fmt: skip
    """Load the tensors into the modules, file by file; each is copied once, to its final place."""
    sizes: dict[torch.dtype, int] = {}
    for key, (_, parameter) in wanted.items():
        own = FORMATS[stored[key].format]
        sizes[own] = sizes.get(own, 0) + parameter.numel()
    number = dtype if isinstance(dtype, torch.dtype) else max(sizes, key=sizes.__getitem__)
    # Largest first: a tensor is mapped on top of the copies made so far, so the last ones should be small.
    order = sorted(wanted, key=lambda key: (stored[key].file, -wanted[key][1].numel()))
    try:
        for key in order:
            # Reopened for each tensor: only closing releases the mapped pages of the file.
            with safe_open(stored[key].file, "pt") as opened:
                tensor = opened.get_tensor(key).to(device, number, copy=True)
            module, _, kind = wanted[key][0].rpartition(".")
            setattr(net.get_submodule(module), kind, nn.Parameter(tensor, requires_grad=False))
    except READ_ERRORS as error:
        reason = " ".join(str(error).split())
        if "memory" in reason:
            raise no_room(name, device, sum(sizes.values()) * number.itemsize) from None
        raise ModelError(f"{stored[key].file.name} of {name} cannot be read: {reason[:200]}") from None


# -- tokenizer ---------------------------------------------------------------------------------------


def _tokenizer(folder: Path, name: str, qwen: bool) -> AnyTokenizer:
    """Load the tokenizer in the folder with transformers' own classes.

    Dream's custom class splits and merges like Qwen2's, using the same two files.
    """
    kind: type[PreTrainedTokenizerBase] | None = None
    if (folder / "tokenizer.json").is_file():
        kind = PreTrainedTokenizerFast
    elif qwen and (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        kind = Qwen2Tokenizer
    if kind is None:
        need = "tokenizer.json, or vocab.json and merges.txt" if qwen else "tokenizer.json"
        raise ModelError(f"{name} has no tokenizer next to its weights ({need}); pass one with tokenizer=")
    try:
        with _quiet():  # transformers would warn about the unknown model type
            return kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare exceptions
        raise ModelError(f"the tokenizer of {name} does not load: {one_line(error, 200)}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
