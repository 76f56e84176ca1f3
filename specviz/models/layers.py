"""Building blocks of the plain functions: linear layers, norms, rotary positions and a decoder."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from specviz.errors import ModelError
from specviz.models import ordered
from specviz.models.attention import attend
from specviz.models.kernels import PLAIN, Pieces, Product, lay, padded
from specviz.models.ranks import here, whole

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.context import PassInput, States, Store
    from specviz.models.protocols import Positions
    from specviz.models.t5 import Bias

Function: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
ACTIVATIONS: dict[str, Function] = {
    "relu": torch.relu_,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
}
RECORDS = "transformers.utils.output_capturing"
SMALL = 1 << 24  # most elements of all projections that `Rest` copies into one tensor


class Lines:
    """Linear layers that read the same input, computed as one product with concatenated outputs.

    Parameters
    ----------
    *parts : torch.nn.Linear
        Read, never changed.
    layout : str
        Layout of their matrices (`specviz.models.kernels`).
    invariant : bool, optional
        Whether a row of the product must not depend on the number of rows.

    Attributes
    ----------
    weights : list of tensor [out, in]
        Each layer's weight, as the model holds it.
    cut : ordered.Cut
        How an invariant product is computed.
    """

    def __init__(self, *parts: torch.nn.Linear, layout: str, invariant: bool = False) -> None:
        self.layout, self.invariant = layout, invariant
        self.cut = ordered.WAYS[0]
        self.weights = [whole(part.weight.detach()) for part in parts]
        # Layouts are shared by parameter, so `lay` gets the parameters; for PLAIN it gets gathered shards.
        own = self.weights if layout == PLAIN else [part.weight for part in parts]
        self.product: Product = lay(own, layout)
        self.bias = (
            None if parts[0].bias is None else torch.cat([whole(part.bias.detach()) for part in parts])
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute all outputs, concatenated: [tokens, out]."""
        y = self._in_order(x) if self.invariant else self.product(x)
        return y if self.bias is None else y.add_(self.bias)

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        """Compute the output of a single layer, added to `to`."""
        y = self._in_order(x, to) if self.invariant else self.product.add(x, to)
        return y if self.bias is None else y.add_(self.bias)

    def _in_order(self, x: torch.Tensor, to: torch.Tensor | None = None) -> torch.Tensor:
        """Compute the product in blocks of row counts that `cut` allows: others may use other kernels."""
        rows = x.shape[0]
        if rows > self.cut.most:
            y = torch.cat([self._in_order(part) for part in x.split(self.cut.most)])
            return y if to is None else y.add_(to)
        y = self.product(x) if rows >= self.cut.least else self.product(padded(x, self.cut.least))[:rows]
        return y if to is None else y.add_(to)

    def divide(self, cut: ordered.Cut) -> None:
        """Compute the invariant product according to `cut`."""
        if cut.pieces != self.cut.pieces:
            self.product = Pieces(self.weights, self.layout, cut.pieces)
        self.cut = cut


class Rest:
    """Keys and values of the layers that a token skipped by an early exit (CALM's state propagation).

    The hidden state at the exit replaces the input of every later layer. Only the norms and the projections
    to keys and values of these layers are computed, all layers at once.

    Parameters
    ----------
    lines : list of Lines
        Each layer's projections to queries, keys and values.
    queries : int
        Number of output columns that are queries.
    norm : RMSNorm or None
        The norm before each layer's projections, if there is one.
    scales : list of tensor [size]
        The weights of each layer's norm.
    """

    def __init__(
        self, lines: list[Lines], queries: int, norm: RMSNorm | None, scales: Sequence[torch.Tensor]
    ) -> None:
        self.lines, self.norm = lines, norm
        self.scales = torch.stack(list(scales))[:, None] if scales else torch.empty(0)
        self.ones = torch.ones_like(scales[0]) if scales else torch.empty(0)
        # Small matrices are copied into one tensor, so that one batched product serves all layers.
        small = sum(w.numel() for line in lines for w in line.weights[1:]) <= SMALL
        self.matrices = torch.stack([torch.cat(line.weights[1:]).t() for line in lines]) if small else None
        biases = [line.bias for line in lines if line.bias is not None]
        self.bias = torch.stack([bias[queries:] for bias in biases])[:, None] if biases else None

    def __call__(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """Compute keys and values, concatenated, of all layers after the first `layer`: [layers, 1, out].

        `x` [1, size] is the hidden state at the exit.
        """
        skipped = self.lines[layer:]
        if self.norm is None:
            read = x.expand(len(skipped), 1, -1)
        else:
            read = (self.norm(x, self.ones) * self.scales[layer:]).to(x.dtype)
        if self.matrices is not None:
            y = torch.bmm(read, self.matrices[layer:])
        else:
            made = [[torch.mm(x, w.t()) for w in line.weights[1:]] for x, line in zip(read, skipped)]
            y = torch.stack([torch.cat(both, 1) for both in made])
        return y if self.bias is None else y.add_(self.bias[layer:])


def hooked(part: torch.nn.Module) -> bool:
    """Whether a module has hooks that may change its output, so that the module itself must be called.

    The hooks that transformers installs to record hidden states do not count: they only observe.
    """
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    return any(getattr(hook, "__module__", None) != RECORDS for hook in hooks)


def embeddings(net: PreTrainedModel) -> torch.Tensor:
    """A model's input embeddings, one row per token."""
    weight = net.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight


def compact(logits: torch.Tensor) -> torch.Tensor:
    """Logits in float32, without the rows of padding in their memory: a record may hold them for long."""
    logits = logits.float()
    return logits.clone() if logits.untyped_storage().nbytes() > logits.nbytes else logits


def over_all(scores: torch.Tensor, tokens: torch.Tensor | None, vocabulary: int) -> torch.Tensor:
    """Expand logits [..., rows] of some tokens (None: all) to the vocabulary, with −inf for the others."""
    if tokens is None:
        return scores
    full = scores.new_full((*scores.shape[:-1], vocabulary), -torch.inf)
    return full.index_copy_(-1, tokens, scores)


def head_rows(net: PreTrainedModel, tokens: torch.Tensor) -> torch.nn.Linear:
    """A model's head, cut to the rows of some tokens.

    Raises
    ------
    ModelError
        If there is no token, or one occurs twice or is outside the head.
    """
    weight = net.get_output_embeddings().weight.detach()
    ids = tokens.unique()  # sorted
    if not 0 < len(ids) == len(tokens) or ids[0] < 0 or ids[-1] >= len(weight):
        raise ModelError(
            f"a drafter's head names a token twice, or one beyond the {len(weight):,} of its target, or "
            "none: its file is damaged"
        )
    rows = weight[tokens.to(weight.device)]
    head = torch.nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    head.weight = torch.nn.Parameter(rows, False)
    return head


def stamp(net: torch.nn.Module) -> list[tuple[int, int]]:
    """Fingerprint of the parameters that changes when a model is moved, converted or trained."""
    return [(here(p).data_ptr(), p._version) for p in net.parameters()]


class RMSNorm:
    """RMSNorm of `x` [tokens, size] with a given weight, in the format and on the device of `like`."""

    def __init__(self, eps: float, like: torch.Tensor, invariant: bool = False) -> None:
        self.eps, self.invariant = eps, invariant
        # The CPU has no fused RMSNorm: torch composes it from eight kernels.
        self.composed = like.device.type == "cpu"
        self.short = like.dtype.itemsize == 2
        shape = (1, 1) if invariant or self.short else (1, 1, 1)
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.ground = torch.full(shape, eps, dtype=dtype, device=like.device)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if not self.composed:
            return F.rms_norm(x, weight.shape, weight, self.eps)
        if self.invariant or self.short:  # the product below sums a single row in a different order
            wide = x.to(self.ground.dtype)
            length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
            square = torch.addcmul(self.ground, length, length, value=1 / weight.shape[0])
            return (wide * square.rsqrt_()).mul_(weight).to(x.dtype)
        # eps + x.x / size in one kernel: a batched product of each row with itself.
        square = torch.baddbmm(self.ground, x.unsqueeze(1), x.unsqueeze(2), alpha=1 / weight.shape[0])
        return (x * square.rsqrt_().view(-1, 1)).mul_(weight)


def layer_norm(module: torch.nn.LayerNorm) -> Function:
    """Convert a layer norm module to a plain function."""
    weight, bias = module.weight.detach(), module.bias.detach()
    return partial(
        F.layer_norm, normalized_shape=module.normalized_shape, weight=weight, bias=bias, eps=module.eps
    )


def activation(name: str, invariant: bool = False) -> Function:
    """A nonlinearity by its name in transformers, as a single kernel if torch has one."""
    function: Function = ACTIVATIONS.get(name) or ACT2FN[name]
    return ordered.steady(function) if invariant and name != "relu" else function


class Rotary:
    """Tables of a model's rotary positions, which grow with the requested length.

    Parameters
    ----------
    module : transformers' rotary embedding
    like : tensor
        In the model's number format, on its device.
    """

    def __init__(self, module: torch.nn.Module, like: torch.Tensor) -> None:
        self.module, self.like = module, like[:1]
        self.table: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines of at least the first `length` positions, each [positions, 1, dim]."""
        if self.table is None or len(self.table[0]) < length:
            length = 1 << (length - 1).bit_length()  # a power of two, so that the table seldom grows
            cos, sin = self.module(self.like, torch.arange(length, device=self.like.device)[None])
            sign = torch.ones_like(sin[0, 0])
            sign[: len(sign) // 2] = -1.0  # rotate_half's minus, folded into the table
            self.table = cos[0, :, None], (sin[0] * sign)[:, None]
        return self.table


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate queries or keys by their positions, in place."""
    left, right = x.chunk(2, -1)
    swapped = torch.cat((right, left), -1)
    return x.mul_(cos).addcmul_(swapped, sin)


class PlainFunction:
    """A model's forward pass as one function; the model is read, never changed.

    Parameters
    ----------
    net : transformers model
    invariant : bool, optional
        Whether a row's numbers must not depend on the other rows of a pass (`specviz.models.ordered`).
    """

    dim: int  # of a head
    bias: Bias | None = None  # relative position bias that attention adds to its scores, if any
    cap: float | None = None  # soft cap of attention's scores, if any

    def __init__(self, net: PreTrainedModel, invariant: bool = False) -> None:
        self.net, self.read, self.invariant = net, stamp(net), invariant
        self.sums = ordered.SUMS[0]  # how invariant attention computes its sums
        self.rest: Rest | None = None  # created when a pass first exits early

    @abstractmethod
    def lines(self) -> Iterator[Lines]:
        """Yield the products whose summation order must be fixed for an invariant model."""

    def stale(self) -> bool:
        """Whether the model was moved, converted or trained since this function was built."""
        return stamp(self.net) != self.read


class Sights(NamedTuple):
    """The masks of an invariant decoder's pass: over the text, and over the encoder's states."""

    text: ordered.Sight
    source: ordered.Sight


Sees: TypeAlias = "torch.Tensor | bool | Sights | None"  # a mask, as `attention.attend` takes it, or sights


class Decoder(PlainFunction):
    """Base of the decoders of encoder-decoders; a family adds its embedding and its layer.

    Parameters
    ----------
    net : transformers model
    layout : str
        Layout of its matrices (`specviz.models.kernels`).
    heads, dim : int
        Number of attention heads, and the width of each.
    crossed : list of linear layers
        Projections of the encoder's states to keys and values, layer by layer.
    norms : sequence
        The norms of each layer: of attention, cross-attention and feed-forward.
    groups : iterator
        The linear layers: `products` groups per layer, each of layers that read the same input.
    invariant : bool, optional
        See `PlainFunction`.
    """

    products = 6  # per layer: two each of attention (the first: qkv), cross-attention and feed-forward
    size: int
    heads: int
    head: Lines
    scale: float | None = None  # of attention's scores; None: derived from the width of a head
    norm: RMSNorm | None = None  # the norm at the start of each layer, if there is one
    scales: Sequence[torch.Tensor] = ()  # that norm's weights, one per layer

    def __init__(
        self, net: PreTrainedModel, layout: str, heads: int, dim: int, crossed: list[torch.nn.Linear],
        norms: Sequence[tuple[Function, Function, Function]], groups: Iterator[tuple[torch.nn.Linear, ...]],
        invariant: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(net, invariant)
        self.heads, self.dim = heads, dim
        self.crossed = Lines(*crossed, layout=layout)  # applied to one prompt at a time if invariant
        products = (Lines(*group, layout=layout, invariant=invariant) for group in groups)
        self.weights = [(each, list(islice(products, self.products))) for each in norms]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.weights)

    def lines(self) -> Iterator[Lines]:
        """See `PlainFunction.lines`."""
        yield self.head
        for _, products in self.weights:
            yield from products

    @abstractmethod
    def embed(self, ids: torch.Tensor, positions: Positions) -> torch.Tensor:
        """The first layer's input, [rows, n, size]."""

    @abstractmethod
    def layer(self, i: int, x: torch.Tensor, rows: int, mask: Sees, store: Store) -> torch.Tensor:
        """Layer `i`'s output for input `x` [rows * n, size]."""

    @abstractmethod
    def final(self, x: torch.Tensor) -> torch.Tensor:
        """The head's input for the last layer's output [tokens, size]."""

    @abstractmethod
    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Logits of final states [tokens, size]."""

    def __call__(self, given: PassInput, store: Store) -> States:
        """Run a pass; see `EncoderDecoder.run`."""
        (rows, n), keep, hidden, leave = given.ids.shape, given.keep, given.hidden, given.leave
        x = self.embed(given.ids, given.positions)
        wanted = {0: x[:, -keep:]} if 0 in hidden else {}
        x, depth = x.view(-1, self.size), self.depth
        mask = self._sights(given, store) if self.invariant else given.mask
        for i in range(depth):
            entered = x
            x = self.layer(i, x, rows, mask, store)
            if i + 1 in hidden:
                wanted[i + 1] = x.view(rows, n, -1)[:, -keep:]
            if leave is not None and i + 1 < depth and leave.asks(i + 1, entered, x):
                self.propagate(i + 1, x, store)
                break
        if keep < n and not (keep == 0 and depth in hidden):
            x = x.view(rows, n, -1)[:, n - keep :].reshape(-1, self.size)
        last = self.final(x).view(rows, -1, self.size)
        if depth in hidden:
            wanted[depth] = last
        return last, wanted

    def _sights(self, given: PassInput, store: Store) -> Sights:
        """The masks of an invariant pass, which are the same in all layers."""
        (rows, n), heads, sums, source = given.ids.shape, self.heads, self.sums, store.source
        assert isinstance(given.mask, torch.Tensor) and source is not None and source.mask is not None
        text = ordered.sight(given.mask, rows, heads, heads, given.tails, sums)
        return Sights(text, ordered.sight(source.mask.expand(-1, -1, n, -1), rows, heads, heads, None, sums))

    def attend(self, i: int, y: torch.Tensor, rows: int, mask: Sees, store: Store) -> torch.Tensor:
        """Layer `i`'s attention over the text; `y` holds queries, keys and values, concatenated."""
        y = y.view(rows, -1, 3, self.heads, self.dim).permute(2, 0, 3, 1, 4)
        both = store.write_both(i, y[1:])
        if isinstance(mask, Sights):
            return ordered.attend(y[0].transpose(1, 2), *both, mask.text, self.scale or self.dim**-0.5)
        out = attend(y[0], *both, mask, self.scale)
        return out.transpose(1, 2).reshape(-1, self.heads * self.dim)

    def attend_source(self, i: int, y: torch.Tensor, rows: int, mask: Sees, store: Store) -> torch.Tensor:
        """Layer `i`'s attention over the encoder's states; `y` holds the queries."""
        assert store.source is not None
        y = y.view(rows, -1, self.heads, self.dim)
        if isinstance(mask, Sights):
            return ordered.attend(y, *store.source.pairs[i], mask.source, self.scale or self.dim**-0.5)
        y = y.transpose(1, 2)
        out = F.scaled_dot_product_attention(y, *store.source.pairs[i], store.source.mask, scale=self.scale)
        return out.transpose(1, 2).reshape(-1, self.heads * self.dim)

    def propagate(self, layer: int, x: torch.Tensor, store: Store) -> None:
        """Store keys and values of layers after the first `layer`, from one token's state `x` [1, size]."""
        if self.rest is None:
            lines = [products[0] for _, products in self.weights]
            self.rest = Rest(lines, self.heads * self.dim, self.norm, self.scales)
        y = self.rest(layer, x)
        store.fill(layer, y.view(-1, 2, 1, self.heads, 1, self.dim))

    def cross(self, states: torch.Tensor) -> torch.Tensor:
        """Compute every layer's keys and values from the encoder's states [rows, tokens, size].

        Returns
        -------
        tensor [layers, 2, rows, heads, tokens, dim]
        """
        rows, tokens, _ = states.shape
        both = self.crossed(states.flatten(0, 1)).view(rows, tokens, -1, 2, self.heads, self.dim)
        return both.permute(2, 3, 0, 4, 1, 5).contiguous()
