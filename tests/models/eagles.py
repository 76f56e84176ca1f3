"""Tiny random EAGLE checkpoints in each publisher's format, and a slow reference for their output.

`Reference` follows the papers' formulas over the raw tensors, in float64, one query and one head at a time,
without a cache: a path through a tree is read as a text of its own.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from families import VOCABULARY, make
from safetensors.torch import save_file
from torch import Tensor

from specviz.models.model import Model

WIDTH, DEPTH, ROWS = 16, 8, 20  # the target's; rows of a reduced head
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
    "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1,
    "vocab_size": VOCABULARY, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500.0,
    "max_position_embeddings": 64, "tie_word_embeddings": False, "torch_dtype": "float16", "pad_token_id": 0,
    "bos_token_id": 1,
}  # fmt: skip


@dataclass
class Published:
    """A checkpoint folder to be written.

    Attributes
    ----------
    generation : int
    config : dict
        Content of ``config.json``.
    raw : dict of str to tensor
        Tensors by the authors' names, without the layer's prefix, as `Reference` reads them.
    layer : str
        Prefix of the layer's tensor names.
    rename : dict of str to str
        Replacements for other prefixes.
    more : dict of str to tensor
        Tensors that `Reference` does not read.
    layers : tuple of int
        Layers of an 8-layer target whose states it reads, in transformers' numbering.
    """

    generation: int
    config: dict[str, Any]
    raw: dict[str, Tensor]
    layer: str
    rename: dict[str, str] = field(default_factory=dict)
    more: dict[str, Tensor] = field(default_factory=dict)
    layers: tuple[int, ...] = (2, 4, 5)

    def tensors(self) -> dict[str, Tensor]:
        found = dict(self.more)
        for name, value in self.raw.items():
            inside = name.startswith(("self_attn", "mlp", "input_lay", "hidden_norm", "post_"))
            name = self.layer + name if inside else name
            for start, other in self.rename.items():
                if name.startswith(start):
                    name = other + name.removeprefix(start)
                    break
            found[name] = value
        return found

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file({key: x.contiguous() for key, x in self.tensors().items()}, folder / "model.safetensors")
        return folder


def target(name: str = "llama", dtype: torch.dtype = torch.float64, **changes: Any) -> Model:
    """A tiny target, in float64 so that it agrees closely with the reference."""
    depth = {"n_layer": DEPTH} if name == "gpt2" else {"num_hidden_layers": DEPTH}
    kinds = {"layer_types": ["full_attention"] * DEPTH} if name == "qwen3" else {}
    return Model(make(name, seed=5, **depth, **kinds, **changes).to(dtype), name="village")


def raw(
    generation: int, *, width: int = WIDTH, wide: int = WIDTH, dim: int = 4, kv: int = 2,
    rows: int = VOCABULARY, states: int = 3, bias: tuple[str, ...] = (), own: tuple[str, ...] = (),
    seed: int = 0,
) -> dict[str, Tensor]:  # fmt: skip
    """Random tensors of a drafter, large enough for every part to matter."""
    torch.manual_seed(seed)
    fused = generation == 3
    reads = width * (1 + fused)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, wide * states if fused else 2 * width),
        "self_attn.q_proj.weight": (4 * dim, reads), "self_attn.k_proj.weight": (kv * dim, reads),
        "self_attn.v_proj.weight": (kv * dim, reads), "self_attn.o_proj.weight": (width, 4 * dim),
        "mlp.gate_proj.weight": (24, width), "mlp.up_proj.weight": (24, width),
        "mlp.down_proj.weight": (width, 24), "post_attention_layernorm.weight": (width,),
    }  # fmt: skip
    if fused:
        shapes |= {f"{name}.weight": (width,) for name in ("hidden_norm", "input_layernorm", "norm")}
        shapes["lm_head.weight"] = (rows, width)
    extra = {
        "embed_tokens.weight": (VOCABULARY, width), "lm_head.weight": (rows, width),
        "input_norm.weight": (wide * states,), "fc_norm.0.weight": (wide,), "fc_norm.1.weight": (wide,),
        "fc_norm.2.weight": (wide,),
    }  # fmt: skip
    shapes |= {name: extra[name] for name in own}
    shapes |= {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in bias}
    return {
        name: torch.randn(shape) * (0.35 if len(shape) > 1 else 0.2) + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


def reduced(seed: int = 0) -> dict[str, Tensor]:
    """``d2t`` and ``t2d`` of a head with 20 of the 37 tokens."""
    kept = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(seed))[:ROWS].sort().values
    flags = torch.zeros(VOCABULARY, dtype=torch.bool)
    flags[kept] = True
    return {"d2t": kept - torch.arange(ROWS), "t2d": flags}


def published(name: str) -> Published:
    """Build the checkpoint of a format in `FORMATS`."""
    made = FORMATS[name]()
    if "d2t" in made.more:
        made.raw["d2t"] = made.more.pop("d2t")
    return made


def _without(*keys: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in CONFIG.items() if key not in keys} | more


QKV = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
EMBEDDED = ("embed_tokens.weight",)
CUT = {"draft_vocab_size": ROWS}
IDS = "eagle_aux_hidden_state_layer_ids"


def _authors_first() -> Published:
    """SafeAILab's for Vicuna: fc has a bias, which the config need not state; embeddings are included."""
    return Published(1, CONFIG, raw(1, bias=("fc",), own=EMBEDDED), "layers.0.", layers=(8,))


def _authors_qwen2() -> Published:
    config = CONFIG | {"model_type": "qwen2", "qkv_bias": True, "bias": False, "use_sliding_window": False}
    return Published(1, config, raw(1, bias=QKV, own=EMBEDDED, seed=1), "layers.0.", layers=(8,))


def _vllm_first() -> Published:
    """All names are below ``model.`` except an included head's."""
    tensors = raw(1, own=(*EMBEDDED, "lm_head.weight"), seed=2)
    below = {name: f"model.{name}" for name in ("layers.0.", "fc.", "embed_tokens.")}
    config = CONFIG | {"architectures": ["EagleLlamaForCausalLM"], "model_type": "eagle"}
    return Published(1, config, tensors, "layers.0.", below, layers=(8,))


def _nested(layer: dict[str, Any], **more: Any) -> dict[str, Any]:
    verifier = {"name_or_path": "brook/Village-1B", "architectures": ["LlamaForCausalLM"]}
    told = {"algorithm": more["speculators_model_type"], "verifier": verifier}
    return {"transformer_layer_config": layer, "speculators_config": told, "torch_dtype": "bfloat16"} | more


def _speculators_first() -> Published:
    config = _nested(CONFIG, speculators_model_type="eagle", layernorms=False, fusion_bias=True)
    tensors = raw(1, bias=("fc",), seed=3)
    return Published(1, config, tensors, "transformer.", {"fc.": "fusion_fc."}, layers=(8,))


def _authors_third() -> Published:
    return Published(3, CONFIG | CUT, raw(3, rows=ROWS), "midlayer.", more=reduced())


def _authors_whole() -> Published:
    """For Vicuna: the head has every token, so d2t is zeros."""
    zeros = {
        "d2t": torch.zeros(VOCABULARY, dtype=torch.long),
        "t2d": torch.ones(VOCABULARY, dtype=torch.bool),
    }
    return Published(3, CONFIG | {"draft_vocab_size": VOCABULARY}, raw(3, seed=1), "midlayer.", more=zeros)


def _specforge() -> Published:
    """Its own head size, with embeddings; the layers are listed under ``eagle_config``."""
    below = {"eagle_config": {IDS: [0, 3, 6], "use_aux_hidden_state": True}}
    config = (
        CONFIG
        | CUT
        | below
        | {"architectures": ["LlamaForCausalLMEagle3"], "head_dim": 6, "rope_scaling": None}
    )
    tensors = raw(3, rows=ROWS, dim=6, kv=1, own=EMBEDDED, seed=2)
    return Published(
        3, config | {"num_key_value_heads": 1}, tensors, "midlayer.", more=reduced(1), layers=(1, 4, 7)
    )


def _nvidia() -> Published:
    """Biases and Llama 3's rotary positions; all names but the head's are below ``model.``."""
    rope = {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    config = CONFIG | {"rope_scaling": rope, "attention_bias": True, "eagle_config": {IDS: [1, 3, 4]}}
    tensors = raw(3, bias=(*QKV, "self_attn.o_proj", "fc", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
    below = {name: f"model.{name}" for name in ("midlayer.", "fc.", "norm.")}
    return Published(3, config | {"draft_vocab_size": None}, tensors, "midlayer.", below)


def _speculators_third() -> Published:
    config = _nested(
        CONFIG, speculators_model_type="eagle3", norm_before_residual=True, target_hidden_size=None, **CUT,
        **{IDS: [1, 3, 6]},
    )  # fmt: skip
    tensors = raw(3, rows=ROWS, own=EMBEDDED, seed=4)
    return Published(3, config, tensors, "layers.0.", more=reduced(2), layers=(1, 3, 6))


def _speculators_norms() -> Published:
    """All optional norms at once; two states."""
    config = _nested(
        CONFIG, speculators_model_type="eagle3", norm_before_residual=True, norm_before_fc=True, fc_norm=True,
        norm_output=True, **CUT, **{IDS: [0, 7]},
    )  # fmt: skip
    own = "input_norm.weight", "fc_norm.0.weight", "fc_norm.1.weight"
    tensors = raw(3, rows=ROWS, states=2, own=own, seed=5)
    return Published(3, config, tensors, "layers.0.", more=reduced(3), layers=(0, 7))


def _narrow() -> Published:
    """Narrower than its target, with its own embeddings and head."""
    config = CONFIG | {"hidden_size": 12, "head_dim": 4, "target_hidden_size": WIDTH}
    return Published(3, config, raw(3, width=12, own=EMBEDDED, seed=6), "midlayer.")


def _targets_head() -> Published:
    """No head and no embeddings: it uses the target's."""
    tensors = raw(3, seed=7)
    del tensors["lm_head.weight"]
    return Published(3, CONFIG | {"draft_vocab_size": None, "head_dim": None}, tensors, "midlayer.")


FORMATS = {
    "authors, EAGLE-1": _authors_first,
    "authors, EAGLE-1, Qwen2": _authors_qwen2,
    "vllm, EAGLE-1": _vllm_first,
    "speculators, EAGLE-1": _speculators_first,
    "authors, EAGLE-3": _authors_third,
    "authors, EAGLE-3, whole vocabulary": _authors_whole,
    "specforge, EAGLE-3": _specforge,
    "nvidia, EAGLE-3": _nvidia,
    "speculators, EAGLE-3": _speculators_third,
    "speculators, EAGLE-3, all norms": _speculators_norms,
    "narrower than its target": _narrow,
    "with the target's head": _targets_head,
}


class Reference:
    """The formulas, over raw tensors, in float64."""

    def __init__(self, made: Published, net: Any) -> None:
        self.generation = made.generation
        self.raw = {name: value.double() for name, value in made.raw.items()}
        layer = made.config.get("transformer_layer_config", made.config)
        self.flags = made.config
        self.eps, self.theta = layer["rms_norm_eps"], layer["rope_theta"]
        self.scaling = layer.get("rope_scaling")
        self.heads, self.kv = layer["num_attention_heads"], layer["num_key_value_heads"]
        self.dim = layer.get("head_dim") or layer["hidden_size"] // self.heads
        self.embedding = self.raw.get("embed_tokens.weight", net.get_input_embeddings().weight.double())
        self.head = self.raw.get("lm_head.weight", net.get_output_embeddings().weight.double())
        self.vocabulary = net.get_input_embeddings().weight.shape[0]

    def linear(self, name: str, x: Tensor) -> Tensor:
        y = self.raw[f"{name}.weight"] @ x
        return y + self.raw[f"{name}.bias"] if f"{name}.bias" in self.raw else y

    def norm(self, name: str, x: Tensor) -> Tensor:
        return self.raw[f"{name}.weight"] * x / math.sqrt(float((x * x).mean()) + self.eps)

    def turned(self, x: Tensor, position: int) -> Tensor:
        """Rotate one head's vector to a position; its halves are real and imaginary parts."""
        half = self.dim // 2
        out = x.clone()
        for i in range(half):
            frequency = self.theta ** (-2 * i / self.dim)
            if self.scaling:  # as in Llama 3
                old, factor = self.scaling["original_max_position_embeddings"], self.scaling["factor"]
                low, high = self.scaling["low_freq_factor"], self.scaling["high_freq_factor"]
                length = 2 * math.pi / frequency
                if length > old / low:
                    frequency /= factor
                elif length > old / high:
                    smooth = (old / length - low) / (high - low)
                    frequency *= (1 - smooth) / factor + smooth
            angle = position * frequency
            a, b = float(x[i]), float(x[i + half])
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def fuse(self, states: Tensor) -> Tensor:
        """g from the target's concatenated states at one token."""
        if self.generation == 1:
            return states
        if self.flags.get("norm_before_fc"):
            states = self.norm("input_norm", states)
        if self.flags.get("fc_norm"):
            number = sum(name.startswith("fc_norm.") for name in self.raw)
            parts = states.chunk(number)
            states = torch.cat([self.norm(f"fc_norm.{i}", part) for i, part in enumerate(parts)])
        return self.linear("fc", states)

    def read(self, tokens: list[int], given: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The last pair's state and logits, for a text of pairs of a token and its g or f."""
        keys, values, first, last = [], [], None, len(tokens) - 1
        for place, (token, g) in enumerate(zip(tokens, given)):
            e = self.embedding[token]
            if self.generation == 3:
                normed = self.norm("hidden_norm", g)
                x = torch.cat((self.norm("input_layernorm", e), normed))
                base = normed if self.flags.get("norm_before_residual") else g
            else:
                x = base = self.linear("fc", torch.cat((e, g)))
            k = self.linear("self_attn.k_proj", x).view(self.kv, self.dim)
            keys.append([self.turned(head, place) for head in k])
            values.append(self.linear("self_attn.v_proj", x).view(self.kv, self.dim))
            if place == last:
                first = base, self.linear("self_attn.q_proj", x).view(self.heads, self.dim)
        assert first is not None
        base, queries = first
        heads = []
        for number, query in enumerate(queries):
            group = number // (self.heads // self.kv)
            query = self.turned(query, last)
            scores = torch.stack([query @ key[group] for key in keys]) / math.sqrt(self.dim)
            weights = scores.softmax(0)
            heads.append(sum(w * value[group] for w, value in zip(weights, values)))
        x = base + self.linear("self_attn.o_proj", torch.cat(heads))
        y = self.norm("post_attention_layernorm", x)
        gate = self.linear("mlp.gate_proj", y)
        x = x + self.linear("mlp.down_proj", gate * torch.sigmoid(gate) * self.linear("mlp.up_proj", y))
        normed = self.norm("norm", x) if self.generation == 3 else x
        logits = self.head @ normed
        if "d2t" in self.raw:
            full = torch.full((self.vocabulary,), -math.inf, dtype=torch.float64)
            for row, offset in enumerate(self.raw["d2t"].long().tolist()):
                full[row + offset] = logits[row]
            logits = full
        return (normed if self.flags.get("norm_output") else x), logits

    def path(self, tokens: list[int], states: Tensor, path: list[int]) -> tuple[Tensor, Tensor]:
        """State and logits at the end of a path that the drafter reads after the text's pairs."""
        given = [self.fuse(state) for state in states.double()]
        state, logits = self.read(tokens, given)
        for token in path:
            tokens, given = [*tokens, token], [*given, state]
            state, logits = self.read(tokens, given)
        return state, logits


@torch.no_grad()
def states(model: Model, layers: tuple[int, ...], text: list[int]) -> Tensor:
    """The target's states at each token of a text, from transformers: [n, width * layers]."""
    out = model.net(input_ids=torch.tensor([text]), use_cache=False, output_hidden_states=True)
    return torch.cat([out.hidden_states[layer][0] for layer in layers], -1)
