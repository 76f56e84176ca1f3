"""Blockwise decoding heads of a causal model or an encoder-decoder (Stern et al. 2018, "Blockwise Parallel
Decoding").

The model's own head is head 1 and predicts the next token. Head i = 2, 3 ... predicts the token i positions
ahead from the same hidden state (an encoder-decoder's is the decoder's). With h the state after the last
norm, [width],

    h_i = h + offset_i + relu(h up_i) down_i        (section 4: a feed-forward layer with a residual)

and the model's own head turns h_i into logits.

A folder holds ``config.json`` with ``model_type`` "specviz-blockwise", ``target``, ``heads`` (excluding the
model's own), ``width`` and ``inner``. Its ``model.safetensors`` holds ``up`` [heads, width, inner],
``down`` [heads, inner, width] and ``offset`` [heads, width]; row 0 belongs to head 2. If it also holds
``tokens``, the heads predict only these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from specviz.models.eight_bits import unpack

if TYPE_CHECKING:
    from specviz.models.protocols import Settings
    from specviz.models.torch_model import TorchModel

Weights = TypeVar("Weights", bound=nn.Module)
TYPE = "specviz-blockwise"


class BlockwiseHeads(nn.Module):
    """Computes the states of heads 2, 3 ... from the model's last state.

    Parameters
    ----------
    heads : int
        Number of heads, not counting the model's own.
    width, inner : int
        Width of the state, and of each head's hidden layer.
    tokens : tensor of int, optional
        Tokens that the heads can predict. Default: the target's whole vocabulary.
    """

    tokens: Tensor | None

    def __init__(self, heads: int, width: int, inner: int, tokens: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("tokens", tokens)
        self.up = nn.Parameter(torch.randn(heads, width, inner) * width**-0.5)
        self.down = nn.Parameter(torch.zeros(heads, inner, width))
        self.offset = nn.Parameter(torch.zeros(heads, width))

    def forward(self, state: Tensor, heads: int | None = None) -> Tensor:
        """States [n, heads, width] of the first `heads` heads from the model's normed state [n, width]."""
        up, down, offset = (p[:heads] for p in (self.up, self.down, self.offset))
        inner = torch.einsum("nd,hdr->hnr", state, up).relu()
        return state[:, None] + offset + (inner @ down).transpose(0, 1)


def load_heads(folder: Path) -> tuple[BlockwiseHeads, Settings]:
    """Load a folder's heads in float32, and its ``config.json``."""
    return loaded(folder, BlockwiseHeads, ("heads", "width", "inner"))


def whose(config: Settings, target: TorchModel) -> bool:
    """Whether a config names this target: by content hash if it has one, else by name."""
    content = config.get("content")
    return target.name == config["target"] if content is None else target.file_content == content


def loaded(folder: Path, kind: Callable[..., Weights], sizes: Sequence[str]) -> tuple[Weights, Settings]:
    """Load a folder's weights in float32 and its ``config.json``; `sizes` are config keys for `kind`."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = unpack(load_file(folder / "model.safetensors"))
    few = {"tokens": tensors["tokens"].long()} if "tokens" in tensors else {}
    net = kind(*(config[name] for name in sizes), **few)
    net.load_state_dict(tensors)
    return net.float().eval(), config
