"""What the plain functions of the model families share: linear layers laid for a CPU, and RMSNorm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

KERNELS = {
    "relu": torch.relu_,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
}
SMALL = 1 << 20, 1 << 25  # elements of a matrix, and of a model, that is laid anew for a CPU


class Lines:
    """Linear layers that read the same input: their matrices [in, out], and the biases side by side.

    With `pack` the matrices lie side by side in one buffer whose rows are the inputs, so that one product
    does for all. On a CPU the product of 4 to 16 tokens with a matrix that fits into the cache then costs
    0.6 of what it costs in torch's own layout, and that of one token no more.
    """

    def __init__(self, *parts: Any, pack: bool) -> None:
        weights = [part.weight.detach() for part in parts]
        if pack and all(weight.numel() <= SMALL[0] for weight in weights):
            self.matrices = [torch.cat(weights).t().contiguous()]
        else:
            self.matrices = [weight.t() for weight in weights]  # views
        self.bias = None if parts[0].bias is None else torch.cat([part.bias.detach() for part in parts])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """All outputs side by side, [tokens, out]."""
        y = (
            torch.mm(x, self.matrices[0])
            if len(self.matrices) == 1
            else torch.cat([torch.mm(x, matrix) for matrix in self.matrices], 1)
        )
        return y if self.bias is None else y.add_(self.bias)

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        """The output of a single layer added to `to`."""
        y = torch.addmm(to, x, self.matrices[0])
        return y if self.bias is None else y.add_(self.bias)


def packs(net: Any) -> bool:
    """Whether a model is small enough, and where, for its matrices to be laid anew."""
    size = sum(p.numel() for p in net.parameters())
    return net.device.type == "cpu" and net.dtype == torch.float32 and size <= SMALL[1]


def stamp(net: Any) -> list[tuple[int, int]]:
    """What changes when a model is moved, converted or trained."""
    return [(p.data_ptr(), p._version) for p in net.parameters()]


class RMSNorm:
    """RMSNorm of `x` [tokens, size] by a weight, for models in the format and on the device of `like`."""

    def __init__(self, eps: float, like: torch.Tensor) -> None:
        self.eps = eps
        # The CPU has no fused RMSNorm: torch composes it of eight kernels.
        self.composed = like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64)
        self.ground = torch.full((1, 1, 1), eps, dtype=like.dtype, device=like.device)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if not self.composed:
            return F.rms_norm(x, weight.shape, weight, self.eps)
        # eps + x.x / size in one kernel: a batched product of each row with itself.
        square = torch.baddbmm(self.ground, x.unsqueeze(1), x.unsqueeze(2), alpha=1 / len(weight))
        return (x * square.rsqrt_().view(-1, 1)).mul_(weight)


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A feed-forward layer's nonlinearity by transformers' name, in one kernel where torch has one."""
    return KERNELS.get(name) or ACT2FN[name]


class Decoder:
    """What the decoders of encoder-decoders share: a family adds its layers and `__call__`.

    Parameters
    ----------
    net : transformers model
        Read, never changed. A small one on a CPU is copied into a layout that is faster there; `stale` says
        when its parameters are no longer those that were read.
    heads, dim : int
        Of its attention.
    crossed : list of linear layers
        Those that make keys and values of the encoder's states, layer by layer.
    """

    bias: Any = None  # what the attention adds to scores for the distance of two places, if it does

    def __init__(self, net: Any, heads: int, dim: int, crossed: list[Any]) -> None:
        self.net, self.read = net, stamp(net)
        self.heads, self.dim = heads, dim
        self.crossed = Lines(*crossed, pack=packs(net))

    def stale(self) -> bool:
        """Whether the model was moved, converted or trained since it was read."""
        return stamp(self.net) != self.read

    def cross(self, states: torch.Tensor) -> torch.Tensor:
        """Keys and values that every layer makes of the encoder's states [rows, tokens, size].

        Returns
        -------
        tensor [layers, 2, rows, heads, tokens, dim]
        """
        rows, tokens, _ = states.shape
        found = self.crossed(states.flatten(0, 1)).view(rows, tokens, -1, 2, self.heads, self.dim)
        return found.permute(2, 3, 0, 4, 1, 5).contiguous()
