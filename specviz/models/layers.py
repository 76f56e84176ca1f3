"""What the plain functions of the model families share: linear layers, and RMSNorm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from specviz.models.kernels import PLAIN, lay
from specviz.models.ranks import here, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.context import Store
    from specviz.models.t5 import Bias

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu_,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
}
RECORDS = "transformers.utils.output_capturing"
SMALL = 1 << 24  # elements of all projections that are copied side by side


class Lines:
    """Linear layers that read the same input: one product, and the biases side by side.

    Parameters
    ----------
    *parts : torch.nn.Linear
        Read, never changed.
    layout : str
        How their matrices lie (`specviz.models.kernels`).

    Attributes
    ----------
    weights : list of tensor [out, in]
        Each layer's own, as the model holds it.
    """

    def __init__(self, *parts: torch.nn.Linear, layout: str) -> None:
        self.weights = [whole(part.weight.detach()) for part in parts]
        # A matrix that is laid out is shared by all who read the parameter; one in shards is only gathered.
        self.product = lay(self.weights if layout == PLAIN else [part.weight for part in parts], layout)
        self.bias = (
            None if parts[0].bias is None else torch.cat([whole(part.bias.detach()) for part in parts])
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """All outputs side by side, [tokens, out]."""
        y = self.product(x)
        return y if self.bias is None else y.add_(self.bias)

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        """The output of a single layer added to `to`."""
        y = self.product.add(x, to)
        return y if self.bias is None else y.add_(self.bias)


class Rest:
    """What each layer makes of one state that it is given to read: for the layers that a token skipped.

    CALM's state propagation: the state in which a token left stands for the input of every layer behind. Of
    these only the norms and the projections to keys and values are computed, all layers at once.

    Parameters
    ----------
    lines : list of Lines
        Each layer's projections to queries, keys and values.
    queries : int
        Columns of the queries.
    norm : RMSNorm, optional
        Through which the layers read, where they do.
    scales : list of tensor [size]
        The weights of each layer's norm.
    """

    def __init__(
        self, lines: list[Lines], queries: int, norm: RMSNorm | None, scales: list[torch.Tensor]
    ) -> None:
        self.lines, self.norm = lines, norm
        self.scales = torch.stack(scales)[:, None] if scales else torch.empty(0)
        self.ones = torch.ones_like(scales[0]) if scales else torch.empty(0)
        # Small matrices are copied side by side: one batched product does for all.
        small = sum(w.numel() for line in lines for w in line.weights[1:]) <= SMALL
        self.matrices = torch.stack([torch.cat(line.weights[1:]).t() for line in lines]) if small else None
        biases = [line.bias for line in lines if line.bias is not None]
        self.bias = torch.stack([bias[queries:] for bias in biases])[:, None] if biases else None

    def __call__(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """Keys and values side by side, of the layers behind the first `layer`: [layers, 1, out].

        `x` [1, size] is the state.
        """
        skipped = self.lines[layer:]
        if self.norm is None:
            read = x.expand(len(skipped), 1, -1)
        else:
            read = self.norm(x, self.ones) * self.scales[layer:]
        if self.matrices is not None:
            y = torch.bmm(read, self.matrices[layer:])
        else:
            made = [[torch.mm(x, w.t()) for w in line.weights[1:]] for x, line in zip(read, skipped)]
            y = torch.stack([torch.cat(both, 1) for both in made])
        return y if self.bias is None else y.add_(self.bias[layer:])


def hooked(part: torch.nn.Module) -> bool:
    """Whether a module has hooks that change what it computes, so that they must be called.

    Those that transformers leaves where states were asked for do not: they take notes while somebody asks.
    """
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    return any(getattr(hook, "__module__", None) != RECORDS for hook in hooks)


def stamp(net: torch.nn.Module) -> list[tuple[int, int]]:
    """What changes when a model is moved, converted or trained."""
    return [(here(p).data_ptr(), p._version) for p in net.parameters()]


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
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]
    function: Callable[[torch.Tensor], torch.Tensor] = ACT2FN[name]
    return function


class Decoder:
    """What the decoders of encoder-decoders share: a family adds its layers and `__call__`.

    Parameters
    ----------
    net : transformers model
        Read, never changed; `stale` says when its parameters are no longer those that were read.
    layout : str
        How its matrices lie (`specviz.models.kernels`).
    heads, dim : int
        Of its attention.
    crossed : list of linear layers
        Those that make keys and values of the encoder's states, layer by layer.
    """

    weights: list[tuple]
    norm: RMSNorm | None = None  # with which its layers begin, if they do
    bias: Bias | None = None  # what the attention adds to scores for the distance of two places, if it does

    def __init__(
        self, net: PreTrainedModel, layout: str, heads: int, dim: int, crossed: list[torch.nn.Linear]
    ) -> None:
        self.net, self.read = net, stamp(net)
        self.heads, self.dim = heads, dim
        self.crossed = Lines(*crossed, layout=layout)
        self.rest: Rest | None = None  # made when a pass first leaves early

    def stale(self) -> bool:
        """Whether the model was moved, converted or trained since it was read."""
        return stamp(self.net) != self.read

    def propagate(self, layer: int, x: torch.Tensor, store: Store) -> None:
        """Keys and values of the layers behind the first `layer`, of one token's state `x` [1, size]."""
        if self.rest is None:
            lines = [next(part for part in each if isinstance(part, Lines)) for each in self.weights]
            scales = [] if self.norm is None else [first for first, *_ in self.weights]
            self.rest = Rest(lines, self.heads * self.dim, self.norm, scales)
        y = self.rest(layer, x)
        store.fill(layer, y.view(-1, 2, 1, self.heads, 1, self.dim))

    def cross(self, states: torch.Tensor) -> torch.Tensor:
        """Keys and values that every layer makes of the encoder's states [rows, tokens, size].

        Returns
        -------
        tensor [layers, 2, rows, heads, tokens, dim]
        """
        rows, tokens, _ = states.shape
        both = self.crossed(states.flatten(0, 1)).view(rows, tokens, -1, 2, self.heads, self.dim)
        return both.permute(2, 3, 0, 4, 1, 5).contiguous()
