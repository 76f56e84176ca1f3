"""Loads EAGLE drafters from published folders, with the various publishers' tensor names and config keys.

- The authors (SafeAILab/EAGLE): ``layers.0.*``, ``fc.*`` in generations 1 and 2; ``midlayer.*``,
  ``fc.weight``, ``norm.weight``, ``lm_head.weight``, ``d2t``, ``t2d`` in generation 3. The config is that of
  a Llama with one layer.
- SpecForge, SGLang, NVIDIA: the same, with or without the prefix ``model.``; ``eagle_config`` names the
  target layers to read.
- vLLM, speculators: ``layers.0.*`` for the layer of generation 3, too, with its config under
  ``transformer_layer_config`` and flags that enable norms; ``fusion_fc.*`` and ``transformer.*`` in
  generation 1.

Tensors take precedence over the config: a bias exists if its tensor does. Unknown settings that would change
the arithmetic are rejected.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specviz.errors import ModelError
from specviz.models.eagle import HEAD, LAYERS, Eagle, Variant
from specviz.models.eight_bits import unpack
from specviz.models.llama import ROPES

if TYPE_CHECKING:
    from specviz.models.protocols import Settings

KEYS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "hidden_act", "rms_norm_eps", "max_position_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters",
)  # fmt: skip
NEEDED = "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"
FOLLOWS = "t2d", "rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq"  # derivable, so ignored
FUSED = "norm.weight", "d2t", "layers.0.hidden_norm.weight"  # present only in generation 3
FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
# Config keys for unsupported arithmetic: the value that has no effect, and the meaning of others.
OTHERWISE: dict[str, tuple[float | bool, str]] = {
    "kv_lora_rank": (0, "latent attention"),
    "attention_multiplier": (1.0, "scaled attention"),
    "residual_multiplier": (1.0, "scaled residuals"),
    "embedding_multiplier": (1.0, "scaled embeddings"),
    "scale_emb": (1.0, "scaled embeddings"),
    "scale_depth": (1.0, "scaled residuals"),
    "logit_scale": (1.0, "scaled scores"),
    "logits_scaling": (1.0, "scaled scores"),
    "partial_rotary_factor": (1.0, "rotary positions in a part of each head"),
    "layernorms": (False, "norms around its layer"),
    "add_para_norm": (False, "norms around its layer"),
}


def is_eagle(path: Path, config: Settings) -> bool:
    """Whether a folder holds the tensors of an EAGLE drafter.

    Raises
    ------
    SafetensorError
        If the tensors cannot be read.
    """
    names = set(_own(path))
    if any(name.startswith("midlayer.") for name in names) or "layers.0.hidden_norm.weight" in names:
        return True
    if not any(name.startswith("layers.0.") for name in names):
        return False
    # Even without fc: a model has a norm before its first attention or at its end, a drafter has neither.
    return "fc.weight" in names or (
        claims(config) and not names & {"norm.weight", "layers.0.input_layernorm.weight"}
    )


def claims(config: Settings) -> bool:
    """Whether a config may belong to an EAGLE drafter; only the tensors can decide."""
    called = " ".join(map(str, config.get("architectures") or ())).lower()
    marked = "eagle" in called or {"eagle_config", "draft_vocab_size", "speculators_model_type"} & set(config)
    return bool(marked) or config.get("num_hidden_layers") == 1


def load_eagle(path: Path) -> tuple[Eagle, Settings]:
    """Load a folder's drafter in float32, and its ``config.json``.

    The drafter's own embeddings, if any, keep their stored format.

    Raises
    ------
    ModelError
        If a tensor is missing, unknown or of a wrong shape or type (the message names it), or if the config
        lacks a required field or requires an unsupported feature.
    """
    stated = json.loads((path / "config.json").read_text(encoding="utf-8"))
    stored: dict[str, Tensor] = {}
    for name, (file, key) in _own(path).items():
        with safe_open(file, "pt") as tensors:
            stored[name] = tensors.get_tensor(key)
    stored = unpack(stored)
    fused = any(name.startswith("midlayer.") or name in FUSED for name in stored)
    if fused:  # some publishers name this layer like a plain one
        stored = {name.replace("layers.0.", "midlayer."): value for name, value in stored.items()}
    config = _config(path.name, stated, stored)
    with torch.device("meta"):  # shapes only
        net = Eagle(config, *_form(path.name, stated, config, stored, fused))
    wanted = net.state_dict()
    for name, value in wanted.items():
        if name not in stored:
            raise ModelError(
                f"{path.name} has no tensor {name}: an EAGLE-{net.generation} drafter of its config needs it"
            )
        if stored[name].shape != value.shape:
            raise ModelError(
                f"{path.name}: tensor {name} is {_shape(stored[name])}, but its config needs {_shape(value)}"
            )
    if unknown := sorted(set(stored) - set(wanted) - set(FOLLOWS)):
        raise ModelError(
            f"{path.name} has tensors that are unknown for an EAGLE-{net.generation} drafter: "
            f"{', '.join(unknown[:3])}"
        )
    for name in wanted:
        kind = stored[name].dtype
        if kind not in FLOATS if name != "d2t" else kind.is_floating_point:
            what = str(kind).removeprefix("torch.")
            raise ModelError(f"{path.name}: tensor {name} holds {what}, and only plain weights are supported")
    taken = {name: stored[name].float() for name in wanted if name not in ("embed_tokens.weight", "d2t")}
    if net.embed_tokens is not None:
        taken["embed_tokens.weight"] = stored["embed_tokens.weight"]
    if net.d2t is not None:
        taken["d2t"] = stored["d2t"].long()
    net.load_state_dict(taken, assign=True)
    net.rotary = LlamaRotaryEmbedding(config)
    if net.tokens is not None:
        _check_tokens(path.name, net.tokens, config.vocab_size)
    return net.eval(), stated


def read_layers(config: Settings, states: int, depth: int) -> tuple[int, ...]:
    """The layers of a target with `depth` layers whose states generation 3 reads; 0 is the embedding.

    At the top level of a config (vLLM, speculators), number j means the input of layer j, counted from 0,
    which is the numbering used here. Under ``eagle_config`` (SpecForge, SGLang, NVIDIA), number j means the
    output of layer j, which is j + 1 here. The top level takes precedence. If neither names layers, they are
    those of the authors' code: 2, depth // 2 and depth - 3.
    """
    top, nested = _named(config)
    if top:
        return tuple(top)
    if nested:
        return tuple(layer + 1 for layer in nested)
    return (2, depth // 2, depth - 3)[:states]


def _named(config: Settings) -> tuple[list[int], list[int]]:
    under = config.get("eagle_config") or {}
    return [int(j) for j in config.get(LAYERS) or ()], [int(j) for j in under.get(LAYERS) or ()]


def _config(name: str, stated: Settings, stored: dict[str, Tensor]) -> LlamaConfig:
    """Build the layer's config; raise `ModelError` for unsupported features."""
    layer = _table(name, stated, "transformer_layer_config") or stated
    _table(name, stated, "speculators_config")
    if missing := [key for key in NEEDED if not layer.get(key)]:
        raise ModelError(f"the config.json of {name} lacks {', '.join(missing)}")
    if stated.get("quantization_config") or layer.get("quantization_config"):
        raise ModelError(f"{name} is quantised, and quantised drafters are not supported: use the original")
    number = layer.get("num_hidden_layers", 1)
    number = max([number, *(int(n.split(".")[1]) + 1 for n in stored if n.startswith("layers."))])
    if number > 1:
        raise ModelError(f"{name} has {number} layers, and only EAGLE drafters with one layer are supported")
    rope = _table(name, layer, "rope_parameters") or _table(name, layer, "rope_scaling")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPES:
        raise ModelError(f"{name} uses {kind} rotary positions; supported are {', '.join(ROPES)}")
    if "sliding_attention" in (layer.get("layer_types") or ()):
        raise ModelError(f"{name} uses a sliding window, which is not supported for a drafter")
    every = {**rope, **layer, **stated}
    for key, (plain, meaning) in OTHERWISE.items():
        if every.get(key) not in (None, plain):
            raise ModelError(f"{name} uses {meaning} ({key} in its config), which is not supported")
    if _table(name, stated, "eagle_config").get("use_aux_hidden_state") is False:
        raise ModelError(f"{name} reads one state as if it were fused (use_aux_hidden_state in its config)")
    bias = any("mlp." in each and each.endswith(".bias") for each in stored) or bool(layer.get("mlp_bias"))
    fields = {key: layer[key] for key in KEYS if layer.get(key) is not None}
    return LlamaConfig(**fields, num_hidden_layers=1, mlp_bias=bias)


def _table(name: str, config: Settings, key: str) -> Settings:
    table = config.get(key) or {}
    if not isinstance(table, dict):
        raise ModelError(f"{key} in the config.json of {name} is not a table of values")
    return table


def _form(
    name: str, stated: Settings, config: LlamaConfig, stored: dict[str, Tensor], fused: bool
) -> tuple[int, int | None, int, Variant, int]:
    """The arguments of `Eagle` after the config."""
    every = {**(stated.get("eagle_config") or {}), **(stated.get("transformer_layer_config") or {}), **stated}
    attention = "midlayer.self_attn." if fused else "layers.0.self_attn."
    qkv_bias = any(f"{attention}{part}_proj.bias" in stored for part in "qkv")
    qkv_bias |= bool(every.get("attention_bias") or every.get("qkv_bias"))
    wide = every.get("target_hidden_size") or config.hidden_size
    other = wide != config.hidden_size
    own = {
        "embeddings": "embed_tokens.weight" in stored or other,
        "head": "lm_head.weight" in stored or other,
    }
    if not fused:
        if other:
            raise ModelError(
                f"{name}: a drafter of generation 1 must be as wide as its target, which is {wide}"
            )
        bias = "fc.bias" in stored or bool(every.get("bias"))
        return 1, None, 1, Variant(bias, qkv_bias, f"{attention}o_proj.bias" in stored, **own), wide
    reduced = "d2t" in stored
    rows = every.get("draft_vocab_size") or every.get("truncated_vocab_size")
    rows = rows or (len(stored["d2t"]) if reduced else config.vocab_size)
    reduced |= rows != config.vocab_size
    own["head"] |= reduced or bool(every.get("tie_word_embeddings"))
    own["head"] &= every.get(HEAD) != "target"
    variant = Variant(
        fc_bias="fc.bias" in stored,
        qkv_bias=qkv_bias,
        o_bias=f"{attention}o_proj.bias" in stored,
        norm_before_fc="input_norm.weight" in stored or bool(every.get("norm_before_fc")),
        fc_norm=any(each.startswith("fc_norm.") for each in stored) or bool(every.get("fc_norm")),
        norm_before_residual=bool(every.get("norm_before_residual")),
        norm_output=bool(every.get("norm_output")),
        **own,
    )
    top, nested = _named(stated)
    return 3, rows if reduced else None, len(top or nested) or 3, variant, wide


def _check_tokens(name: str, tokens: Tensor, vocabulary: int) -> None:
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise ModelError(
            f"{name}: d2t leads to tokens {low} to {high}, and the vocabulary has {vocabulary:,} (0 to "
            f"{vocabulary - 1})"
        )
    if len(tokens.unique()) < len(tokens):
        raise ModelError(f"{name}: d2t maps to one token twice")


def _own(path: Path) -> dict[str, tuple[Path, str]]:
    """Locate each tensor: from its name in the authors' scheme to its file and the name there."""
    places: dict[str, tuple[Path, str]] = {}
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            places |= {key.removeprefix("model."): (file, key) for key in list(tensors.keys())}
    if "fusion_fc.weight" in places:  # speculators' names of generation 1
        places = {
            name.replace("fusion_fc.", "fc.", 1).replace("transformer.", "layers.0.", 1): place
            for name, place in places.items()
        }
    return places


def _shape(value: torch.Tensor) -> str:
    return " x ".join(map(str, value.shape))
