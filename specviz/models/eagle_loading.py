"""EAGLE drafters from folders as they are published: the weight names of the three generations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LlamaConfig

from specviz.errors import ModelError
from specviz.models.eagle import LAYERS, Eagle

LEFT_OUT = ("embed_tokens.weight", "t2d", "rotary_emb.inv_freq")  # the target's, or what follows from d2t


def is_eagle(path: Path) -> bool:
    """Whether a folder's tensors are an EAGLE drafter's."""
    names = set(_own(_files(path)))
    return "fc.weight" in names and any(n.startswith(("midlayer.", "layers.0.")) for n in names)


def load_eagle(path: Path) -> tuple[Eagle, dict[str, Any]]:
    """The drafter of a folder in float32, and its ``config.json``.

    Raises
    ------
    ModelError
        If a tensor is missing, of another shape, or unknown; the line names it.
    """
    said = json.loads((path / "config.json").read_text(encoding="utf-8"))
    where = _own(_files(path))
    stored: dict[str, Tensor] = {}
    for name, (file, key) in where.items():
        with safe_open(file, "pt") as tensors:
            stored[name] = tensors.get_tensor(key)
    fused = any("hidden_norm" in name for name in stored)
    config = LlamaConfig.from_dict(
        {name: value for name, value in said.items() if name != "head_dim" or value}
    )
    if fused:  # published under the name of a plain layer, too
        stored = {name.replace("layers.0.", "midlayer."): value for name, value in stored.items()}
    fc, head = stored["fc.weight"], stored.get("lm_head.weight")
    rows = None if "d2t" not in stored else len(stored["d2t"])
    states = fc.shape[1] // fc.shape[0] if fused else 1
    net = Eagle(
        config, 3 if fused else 1, rows, states, "fc.bias" in stored,
        any(name.endswith("q_proj.bias") for name in stored),
    )  # fmt: skip
    del head
    wanted = net.state_dict()
    for name, value in wanted.items():
        if name not in stored:
            raise ModelError(f"{path.name} has no tensor {name}: an EAGLE-{net.generation} drafter needs it")
        if stored[name].shape != value.shape:
            raise ModelError(
                f"{path.name}: tensor {name} is {_shape(stored[name])}, and its config wants {_shape(value)}"
            )
    if unknown := sorted(set(stored) - set(wanted) - set(LEFT_OUT)):
        raise ModelError(f"{path.name} has tensors that no EAGLE drafter has: {', '.join(unknown[:3])}")
    net.load_state_dict({name: stored[name] for name in wanted})
    return net.float().eval(), said


def read_layers(config: dict[str, Any], states: int, depth: int) -> tuple[int, ...]:
    """The layers whose states generation 3 reads, of a target of `depth`; 0 is the embedding.

    A config may name them, at its top or under ``eagle_config``. Else they are those of the authors' code: 2, the
    middle, and the third from above.
    """
    named = config.get(LAYERS) or (config.get("eagle_config") or {}).get(LAYERS)
    if named:
        return tuple(int(layer) for layer in named)
    return (2, depth // 2, depth - 3)[:states]


def _files(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def _own(files: list[Path]) -> dict[str, tuple[Path, str]]:
    """Where each tensor lies: its name without a leading ``model.``, the file and the name there."""
    found = {}
    for file in files:
        with safe_open(file, "pt") as tensors:
            found |= {key.removeprefix("model."): (file, key) for key in tensors.keys()}
    return found


def _shape(value: torch.Tensor) -> str:
    return " x ".join(map(str, value.shape))
