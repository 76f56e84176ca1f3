"""Layouts of linear layers, and which of them is fastest for a model on this machine.

The kernel determines how much more a pass over several tokens costs than a pass over one. On a CPU, torch's
default product is slow between 2 and 64 rows; oneDNN's product, over a matrix packed for it once, processes
nine rows in little more time than one. Weights that float16 represents exactly can be stored in float16,
which halves the bytes read, while the product is still computed in float32: FBGEMM does this on x86. A small
model whose matrices fit into the cache is faster with transposed matrices. The layout is therefore measured
for each model, never assumed.

The operators that pack a matrix for oneDNN are those that torch's own compiler calls. They are private: if
they are missing or compute wrong results, the plain product is used. The same holds for FBGEMM's operators.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch.utils.weak import WeakIdKeyDictionary

from specviz.errors import ModelError, TraceError
from specviz.files import write_text
from specviz.paths import home

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PLAIN, TRANSPOSED, ONEDNN, UNPADDED = "plain", "transposed", "onednn", "onednn-unpadded"
LAYOUTS = (PLAIN, TRANSPOSED, ONEDNN, UNPADDED)  # these keep the weights unchanged
FP16 = "fp16"  # keeps the weights unchanged if float16 represents them exactly
INT8, INT4 = "int8", "int4"
WHOLE_NUMBERS = (INT8, INT4)  # these change the model, so they are used only on request
W8A8 = "w8a8"  # 8-bit weights and inputs: changes the model, too; the default for drafters of large models
GROUP = 32  # number of 4-bit weights that share a scale
LEVELS = 127  # largest 8-bit integer used
FEWER_LEVELS = 63  # likewise for weights, where pairs of products are added in 16 bits: they cannot overflow
EVEN = 16  # input widths of 8-bit products must be multiples of this, or torch reads past the end of a row
TINY = torch.finfo(torch.float32).tiny
AUTO = "auto"
VARIABLE = "SPECVIZ_KERNELS"
FORMATS = (torch.float32, torch.bfloat16, torch.float16)  # formats with more layouts than the plain one
PADDED = 160  # rows up to which a product with float16 weights is padded
LEAST = 4  # rows of a padded oneDNN product: on some processors fewer rows cost more than four
ROWS = (1, 2, 5, 9)  # rows of the timed passes: plain decoding, short drafts and a longer one
SAMPLE = 96 << 20  # bytes of matrices timed in each layout, enough that they evict each other from the caches
EVICTING = 64 << 20  # bytes read before each timing of a large model, so that no weights are in the caches
TIMING = 2  # version of `measure`; raise it to invalidate saved results
ROUNDS = 5  # timed rounds, after one warm-up round
CALM = 1.5  # ratio of median to least time above which other work disturbed the measurement
MOST = 1.5  # seconds after which no further round begins


class Measured(BaseModel):
    """A measurement that `remembered` saves."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Fastest(Measured):
    """The least times of passes by layout and number of rows, and the fastest layout."""

    milliseconds: dict[str, dict[int, float]]
    fastest: Literal["plain", "transposed", "onednn", "onednn-unpadded", "fp16"]


Kept = TypeVar("Kept", bound=Measured)
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
# Everything a measurement depends on; identifies it in the cache.
Place: TypeAlias = dict[str, str | int | list[str] | list[tuple[int, ...]]]


def padded(x: torch.Tensor, least: int) -> torch.Tensor:
    """`x` padded to at least `least` rows."""
    rows = x.shape[0]  # cheaper than len(x), which is Python code
    return x if rows >= least else F.pad(x, (0, 0, 0, least - rows))


class Product:
    """A matrix product with weights in some layout."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        """Compute the product, added to `to`."""
        return self(x).add_(to)


class Plain(Product):
    """torch's own product with each matrix as the model stores it; nothing is copied."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self.matrices = [weight.t() for weight in weights]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self.matrices) == 1:
            return torch.mm(x, self.matrices[0])
        return torch.cat([torch.mm(x, matrix) for matrix in self.matrices], 1)

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return torch.addmm(to, x, self.matrices[0])


class Transposed(Product):
    """The matrices concatenated and transposed in one buffer, so that one product serves all."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self.matrix = torch.cat(list(weights)).t().contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, self.matrix)

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return torch.addmm(to, x, self.matrix)


class Unpadded(Product):
    """The matrices concatenated, in the blocked layout of oneDNN's product over several rows."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        whole = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.packed = torch.ops.mkldnn._reorder_linear_weight(whole.contiguous(), LEAST)
        self.product = torch.ops.mkldnn._linear_pointwise.default
        self.sum = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x, self.packed, None, "none", [], "")

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return self.sum(x, to, self.packed, None, "add")


class OneDNN(Product):
    """`Unpadded`, but passes over fewer than `LEAST` rows are padded: on some processors that is faster."""

    def __init__(self, weights: Sequence[torch.Tensor], unpadded: Product | None = None) -> None:
        self.unpadded = unpadded or Unpadded(weights)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.unpadded(x) if len(x) >= LEAST else self.unpadded(padded(x, LEAST))[: len(x)]

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return self.unpadded.add(x, to) if len(x) >= LEAST else self(x).add_(to)


class HalfWeights(Product):
    """The matrices concatenated, in float16; inputs and outputs are float32.

    FBGEMM computes a few rows at a time, and one or two rows alone in a different order than more. A pass is
    therefore padded to a number of rows that are all computed in the same way.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        whole = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.packed = torch.ops.quantized.linear_prepack_fp16(whole.float().contiguous(), None)
        self.product = torch.ops.quantized.linear_dynamic_fp16.default
        self.rows = rows_alike()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        filled = padded(x, self.rows[rows] if rows < len(self.rows) else rows)
        return self.product(filled.contiguous(), self.packed)[:rows]


@cache
def rows_alike() -> tuple[int, ...]:
    """For each number of rows up to `PADDED`, the next number for which FBGEMM computes all rows alike.

    Determined by experiment: the reference bits of a row are those that most numbers of rows give it. The
    grouping of rows depends on the processor's instructions, so no fixed table works everywhere.
    """
    numbers = torch.Generator().manual_seed(0)
    weight, x = torch.randn(16, 96, generator=numbers), torch.randn(PADDED, 96, generator=numbers)
    packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
    with torch.inference_mode():
        made = [torch.ops.quantized.linear_dynamic_fp16(x[:n], packed) for n in range(1, PADDED + 1)]
    usual = []
    for row in range(PADDED):
        each = torch.stack([y[row] for y in made[row:]])
        kinds, counts = each.unique(dim=0, return_counts=True)
        usual.append(kinds[counts.argmax()])
    alike = [torch.equal(y, torch.stack(usual[: len(y)])) for y in made]
    least, rows = PADDED, [PADDED]
    for n in range(PADDED - 1, 0, -1):
        least = n if alike[n - 1] else least
        rows.append(least)
    return (0, *reversed(rows))


class Int8(Product):
    """The matrices concatenated, as 8-bit integers with one scale per output."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        whole = torch.cat(list(weights)).float()
        # The operator reads scales in the inputs' format, so the integers are computed from rounded scales.
        self.scale = (whole.abs().amax(1) / LEVELS).clamp_min(TINY).to(weights[0].dtype)
        numbers = whole.div_(self.scale.float()[:, None]).round_().clamp_(-LEVELS, LEVELS)
        self.lacking = -whole.shape[1] % EVEN
        self.matrix = F.pad(numbers.to(torch.int8), (0, self.lacking))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.lacking:
            x = F.pad(x, (0, self.lacking))
        return torch.ops.aten._weight_int8pack_mm(x.contiguous(), self.matrix, self.scale)


def in_eight_bits(weights: Sequence[torch.Tensor], most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise the concatenated matrices to int8 [out, in] within ±`most`, and a scale per output [out]."""
    whole = torch.cat(list(weights)).float()
    scale = (whole.abs().amax(1) / most).clamp_min(TINY)
    return whole.div_(scale[:, None]).round_().to(torch.int8), scale


class W8A8Product(Product):
    """The matrices concatenated, as 8-bit integers with one scale per output, by oneDNN's product.

    Inputs are quantised likewise, with one scale per row. Integers are added exactly, so a row's product does
    not depend on the other rows.

    Parameters
    ----------
    weights : sequence of tensor [out, in]
    most : int
        Largest integer of the weights, see `levels`.
    """

    def __init__(self, weights: Sequence[torch.Tensor], most: int) -> None:
        numbers, self.scale = in_eight_bits(weights, most)
        self.packed = torch.ops.onednn.qlinear_prepack(numbers, None)
        self.zero = torch.zeros(len(self.scale), dtype=torch.long)
        self.product = torch.ops.onednn.qlinear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = wide.abs().amax(1, keepdim=True).div_(LEVELS).clamp_min_(TINY)
        # The operator takes unsigned integers, with 128 for zero; adding 0.5 makes the truncation round.
        numbers = (wide / scale).add_(128.5).to(torch.uint8)
        y = self.product(
            numbers, 1.0, 128, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return y.mul_(scale).to(x.dtype)


class W8A8Fbgemm(Product):
    """`W8A8Product` by FBGEMM, which quantises the inputs itself.

    On x86 it is faster than oneDNN for few rows: it takes 0.6 of the time for one row, 0.8 for ten.

    It uses one scale for all rows. Each row is therefore divided by its largest magnitude, and two extra
    inputs with zero weights fix the ends of the range: a row's rounding does not depend on the others.
    """

    def __init__(self, weights: Sequence[torch.Tensor], most: int) -> None:
        numbers, scale = in_eight_bits(weights, most)
        zero = torch.zeros(len(scale), dtype=torch.long)
        with warnings.catch_warnings():  # torch deprecates quantised tensors; `W8A8Product` is the fallback
            warnings.simplefilter("ignore", UserWarning)
            table = torch._make_per_channel_quantized_tensor(F.pad(numbers, (0, 2)), scale.double(), zero, 0)
            self.packed = torch.ops.quantized.linear_prepack(table, None)
        self.ends = torch.tensor([[1.0, -(LEVELS + 1) / LEVELS]])  # the range for which 128 represents zero
        self.product = torch.ops.quantized.linear_dynamic.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        most = wide.abs().amax(1, keepdim=True).clamp_min_(TINY)
        y = self.product(torch.cat((wide / most, self.ends.expand(len(x), -1)), 1), self.packed, False)
        return y.mul_(most).to(x.dtype)


def eight_by_eight(weights: Sequence[torch.Tensor]) -> Product:
    """The 8-bit by 8-bit product that adds exactly here: with finer weights, or else the faster one."""
    kind = max((W8A8Fbgemm, W8A8Product), key=levels)
    return kind(weights, levels(kind))


class Int4(Product):
    """The matrices concatenated, as the 4-bit integers stored in their file (see `four_bits`)."""

    def __init__(self, bits: Sequence[Sequence[torch.Tensor]], dtype: torch.dtype) -> None:
        numbers, scales, lows = (torch.cat(each) for each in zip(*bits))
        self.matrix = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.flatten(1), 1)
        # For the operator, an integer q means scale * (q - 8) + zero.
        pairs = torch.stack((scales, lows + 8 * scales), -1)[:, :, 0]
        self.scales = pairs.transpose(0, 1).to(dtype).contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), self.matrix, GROUP, self.scales)


def four_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Recover the 4-bit integers (0 to 15) of a dequantised matrix, with each group's scale and least value.

    In each group of 32, GGUF's Q4_1 spans the least to the greatest value; Q4_0 maps the value of greatest
    magnitude to -8. Returns None for other matrices, and for shapes that torch's product does not support.

    Parameters
    ----------
    weight : tensor [out, in]

    Returns
    -------
    tuple of tensor [out, in / 32, 32], [out, in / 32, 1], [out, in / 32, 1]
    """
    if weight.shape[0] % 16 or weight.shape[1] % GROUP:
        return None
    if len(weight) > 16 and not four_bits(weight[:16]):  # most other matrices fail within the first rows
        return None
    groups = weight.detach().float().unflatten(1, (-1, GROUP))
    lows, highs = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    eighth = torch.where(highs > -lows, highs, lows) / -8
    bound = 3 * torch.finfo(weight.dtype).eps * groups.abs().amax(-1, keepdim=True)
    for scales, least in (((highs - lows) / 15, lows), (eighth, -8 * eighth)):
        numbers = ((groups - least) / torch.where(scales == 0, 1, scales)).round_().clamp_(0, 15)
        if bool(((numbers * scales + least) - groups).abs().le(bound).all()):
            return numbers.int(), scales, least
    return None


def four_or_eight(weights: Sequence[torch.Tensor]) -> Int4 | Int8:
    """The matrices in four bits if all were stored in four bits, else in eight."""
    bits = [bits for weight in weights if (bits := four_bits(weight))]
    return Int4(bits, weights[0].dtype) if len(bits) == len(weights) else Int8(weights)


KINDS: dict[str, Callable[[Sequence[torch.Tensor]], Product]] = {
    PLAIN: Plain,
    TRANSPOSED: Transposed,
    ONEDNN: OneDNN,
    UNPADDED: Unpadded,
    FP16: HalfWeights,
    INT8: Int8,
    INT4: four_or_eight,
    W8A8: eight_by_eight,
}


def width(layout: str, dtype: torch.dtype) -> float:
    """Bytes per weight in a layout, including the scales of 4-bit groups."""
    narrow = {FP16: 2, INT8: 1, W8A8: 1, INT4: 0.5 + 2 * dtype.itemsize / GROUP}
    return narrow.get(layout, dtype.itemsize)


class Pieces(Product):
    """A product summed over parts of the input, for kernels that split long sums by the number of rows."""

    def __init__(self, weights: Sequence[torch.Tensor], layout: str, pieces: int) -> None:
        parts = torch.cat(list(weights)).chunk(pieces, 1)
        self.sizes = [part.shape[1] for part in parts]
        self.products = [KINDS[layout]([part.contiguous()]) for part in parts]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = zip(self.products, x.split(self.sizes, 1))
        return self._added(others, first[0](first[1].contiguous()))

    def add(self, x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        return self._added(zip(self.products, x.split(self.sizes, 1)), to)

    @staticmethod
    def _added(parts: Iterable[tuple[Product, torch.Tensor]], y: torch.Tensor) -> torch.Tensor:
        for product, x in parts:
            y = product.add(x.contiguous(), y)
        return y


# Laid-out matrices, by the first weight of each product. They are shared, for example with a drafter made of
# a model's first layers or one that uses its target's head.
_laid: WeakIdKeyDictionary = WeakIdKeyDictionary()
_reported: set[str | None] = set()  # values of the variable that a model could not have
_chosen: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by model: device, format and candidates; the fastest
_exact: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by weight: its version, and whether float16 holds it


def lay(weights: Sequence[torch.Tensor], layout: str) -> Product:
    """The product with weights [out, in] that read the same input, in a layout; cached while it is in use.

    With ``int4``, matrices that were not stored in four bits use eight.

    Returns
    -------
    Product
        Called with x [rows, in], it returns all outputs, concatenated: [rows, out]. ``add(x, to)`` adds the
        output of a single matrix to `to`.
    """
    if layout == PLAIN:  # views, so there is nothing to share
        return Plain([weight.detach() for weight in weights])
    key = layout, *((id(w), w.data_ptr(), w._version, w.dtype) for w in weights)
    shelf = _laid.setdefault(weights[0], weakref.WeakValueDictionary())
    product = shelf.get(key)
    if product is None:
        own = [weight.detach() for weight in weights]
        # The two oneDNN layouts share a packed matrix.
        product = OneDNN(own, lay(weights, UNPADDED)) if layout == ONEDNN else KINDS[layout](own)
        shelf[key] = product
    return product


@contextmanager
def packed(groups: Iterable[Sequence[torch.Tensor]], layout: str) -> Iterator[None]:
    """Pack the matrices of several products on all cores. Meanwhile, `lay` returns them at once."""
    products = [] if layout == PLAIN else on_each_core(lambda group: lay(group, layout), groups)
    yield
    del products  # from here on, those who use them keep them alive


def on_each_core(function: Callable[[T], R], values: Iterable[T]) -> list[R]:
    """Call a function that runs on one thread for many values, on as many threads as there are cores."""
    inference = torch.is_inference_mode_enabled()  # threads do not inherit it

    def call(value: T) -> R:
        with torch.inference_mode(inference):
            return function(value)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(call, values))


def choose(layout_name: str | None, net: PreTrainedModel, groups: Iterable[Sequence[torch.nn.Linear]]) -> str:
    """Choose the layout for a model: the requested one, the environment's, or the fastest.

    Parameters
    ----------
    layout_name : str or None
        One of `LAYOUTS` or `WHOLE_NUMBERS`, or `FP16` or `W8A8`. ``auto`` and None use the environment
        variable ``SPECVIZ_KERNELS``, else a measurement, which considers ``fp16`` only if it changes no
        weight. A model that cannot have the variable's layout uses ``plain``. If the variable is ``int4``,
        weights that were not stored in four bits use eight.
    net : transformers model
        On its device, in its format.
    groups : iterable of sequences of linear layers
        Each group holds the layers that read the same input. Enough groups are timed to exceed a cache.

    Raises
    ------
    ModelError
        If the layout is unknown, or the requested one cannot serve this model here.
    """
    layout_name = check(layout_name)
    pinned = check(os.environ.get(VARIABLE), VARIABLE) if layout_name is None else None
    possible = candidates(net.device, net.dtype)
    if (layout_name or pinned) in WHOLE_NUMBERS:
        return _whole_numbers(layout_name, pinned, net, groups)
    if (layout_name or pinned) == W8A8 and len(possible) > 1 and multiplies_eight_bits():
        return W8A8
    possible = keeping(net)
    if pinned:
        return pinned if pinned in possible else PLAIN  # the variable must not fail for other models
    if layout_name:
        if layout_name not in possible:
            if layout_name == FP16 and takes_halves(net):
                raise ModelError(f"kernels={FP16!r} needs weights that float16 holds exactly: drop it")
            number = str(net.dtype).removeprefix("torch.")
            raise ModelError(
                f"kernels={layout_name!r} does not support {number} on {net.device} here: use "
                f"{' or '.join(map(repr, possible))}, or drop it"
            )
        return layout_name
    if len(possible) == 1 or not fits(net):
        return PLAIN
    where = net.device, net.dtype, possible
    if _chosen.get(net, (None,))[0] != where:
        _chosen[net] = where, _fastest(net, groups, possible)
    return _chosen[net][1]


def check(layout_name: str | None, name: str = "kernels") -> str | None:
    """Check a layout's name; return None for ``auto`` and for no name.

    Raises
    ------
    ModelError
        If the name is unknown.
    """
    if layout_name in (None, "", AUTO):
        return None
    names = AUTO, *LAYOUTS, FP16, *WHOLE_NUMBERS, W8A8
    if layout_name not in names:
        raise ModelError(f"{name} is {', '.join(names)}; got {layout_name!r}")
    return layout_name


def _whole_numbers(
    layout_name: str | None, pinned: str | None, net: PreTrainedModel,
    groups: Iterable[Sequence[torch.nn.Linear]],
) -> str:  # fmt: skip
    """The integer layout that was requested, or that the environment variable pins for every model."""
    name, model = layout_name or pinned, Path(getattr(net, "name_or_path", "") or type(net).__name__).name
    fault = ""
    if net.device.type != "cpu" or net.dtype != torch.bfloat16:
        here = f"{str(net.dtype).removeprefix('torch.')} on {net.device}"
        fault = f"needs dtype='bfloat16' (--dtype bfloat16) on a CPU; {model} is in {here}"
    elif not _multiplies_whole_numbers():
        fault = "needs products that torch does not have on this machine"
    if fault and layout_name:
        raise ModelError(f"kernels={name!r} {fault}: change that, or choose other kernels")
    if fault:  # the variable must not fail for other models
        if name not in _reported:
            _reported.add(name)
            print(f"specviz: {VARIABLE}={name} {fault}: {model} uses {PLAIN}", file=sys.stderr)
        return PLAIN
    if name == INT8 or any(four_bits(part.weight) for group in groups for part in group):
        return INT8 if name == INT8 else INT4
    if layout_name is None:  # for example a drafter's weights, with the variable set for the target
        return INT8
    raise ModelError(
        "kernels='int4' needs weights stored in four bits (a GGUF file of type Q4_0 or Q4_1), which this "
        "model does not have: use 'int8'"
    )


def rounding(layout_name: str | None) -> str | None:
    """Return the layout if it rounds weights or inputs; None if it only changes their order."""
    return None if layout_name in LAYOUTS else layout_name


def trial(tried: Callable[P, bool]) -> Callable[P, bool]:
    """Decorate a test of an operator: errors mean False, and the random state is preserved."""

    @wraps(tried)
    def works(*args: P.args, **kwargs: P.kwargs) -> bool:
        with torch.random.fork_rng([]), torch.inference_mode():
            try:
                return tried(*args, **kwargs)
            except (AttributeError, RuntimeError, NotImplementedError, TypeError):
                return False

    return works


def near(made: Iterable[torch.Tensor], want: torch.Tensor, bound: float) -> bool:
    """Whether each result is within `bound` of the first rows of `want`."""
    return all(bool((got.double() - want[: len(got)]).abs().max() <= bound) for got in made)


@cache
@trial
def _multiplies_whole_numbers() -> bool:
    """Whether torch's products with 8-bit and 4-bit weights exist and compute correct results."""
    x, whole = torch.randn(5, 64).bfloat16(), torch.randint(0, 16, (32, 2, 32)).bfloat16()
    whole[..., 0], whole[..., 1] = 0, 15
    weight = whole.flatten(1)
    want = x.double() @ weight.double().t()
    return near((Int8([weight])(x), four_or_eight([weight])(x)), want, 5e-2 * float(want.abs().max()))


def keeping(net: torch.nn.Module) -> tuple[str, ...]:
    """The layouts that work for a model on this machine and change none of its weights."""
    first = next(net.parameters())
    possible = candidates(first.device, first.dtype)
    return (*possible, FP16) if takes_halves(net) and all(map(in_halves, matrices(net))) else possible


def matrices(net: torch.nn.Module) -> list[torch.Tensor]:
    """The weights of all linear layers, tied ones once."""
    layers = [layer for layer in net.modules() if isinstance(layer, torch.nn.Linear)]
    return list({id(layer.weight): layer.weight for layer in layers}.values())


def round_to_halves(net: torch.nn.Module) -> None:
    """Round the weights of all linear layers to float16 values, and use the `FP16` layout from now on.

    Raises
    ------
    ModelError
        If a weight is too large for float16.
    """
    if not in_reach(net):
        raise ModelError(f"kernels={FP16!r} cannot hold this model: a weight is too large for float16")
    on_each_core(_round, matrices(net))
    first = next(net.parameters())
    _chosen[net] = (first.device, first.dtype, keeping(net)), FP16


def _round(weight: torch.Tensor) -> None:
    values = weight.detach()
    if not in_halves(weight):  # leaves shared weights that are already rounded untouched
        values.copy_(values.half())
        _exact[weight] = values._version, True


def in_reach(net: torch.nn.Module) -> bool:
    """Whether all weights are within the range of float16."""
    most = torch.finfo(torch.float16).max
    extremes = (torch.aminmax(weight.detach()) for weight in matrices(net))
    return all(bool(max(-low, high) <= most) for low, high in extremes)


def takes_halves(net: torch.nn.Module) -> bool:
    """Whether a model is in float32 on a CPU that supports products with float16 weights."""
    first = next(net.parameters())
    return first.device.type == "cpu" and first.dtype == torch.float32 and multiplies_halves()


def in_halves(weight: torch.Tensor) -> bool:
    """Whether float16 represents a matrix exactly; remembered until the matrix changes."""
    values = weight.detach()
    version, exact = _exact.get(weight, (None, False))
    if version != values._version:
        # Most other matrices fail within the first rows.
        exact = all(torch.equal(part.half().float(), part) for part in (values[:16], values))
        _exact[weight] = values._version, exact
    return exact


@cache
@trial
def multiplies_halves() -> bool:
    """Whether torch's product with float16 weights exists and computes correct results."""
    numbers = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=numbers) for shape in ((5, 64), (32, 64)))
    weight = weight.half().float()
    made = HalfWeights([weight])
    results = made(x), made(x[:1]), made.add(x, torch.zeros(5, 32))
    return near(results, x.double() @ weight.double().t(), 1e-4)


@cache
def levels(kind: type[W8A8Product | W8A8Fbgemm]) -> int:
    """Largest integer of the weights for which a product of two 8-bit matrices adds exactly, or 0.

    A processor without dedicated instructions adds pairs of products in 16 bits, which overflow if weights
    have eight bits, but not if they have seven.
    """
    return next((most for most in (LEVELS, FEWER_LEVELS) if adds_exactly(kind, most)), 0)


@trial
def adds_exactly(kind: type[W8A8Product | W8A8Fbgemm], most: int) -> bool:
    """Whether a product of two 8-bit matrices exists and adds exactly for weights of at most `most`."""
    x = torch.randint(-LEVELS, LEVELS + 1, (5, 64)).float()
    weight = torch.randint(-most, most + 1, (6, 64)).float()
    x[:, 0], weight[:, 0] = LEVELS, most  # makes all scales 1, so that the integers are multiplied as given
    x[0], weight[0], weight[1, 1:] = LEVELS, most, -most
    return torch.equal(kind([weight], most)(x).round(), x @ weight.t())


def multiplies_eight_bits() -> bool:
    """Whether torch multiplies 8-bit matrices here and adds exactly."""
    return bool(levels(W8A8Fbgemm) or levels(W8A8Product))


def candidates(device: torch.device, dtype: torch.dtype) -> tuple[str, ...]:
    """The layouts that work for a device and a number format; only plain for float64, the reference."""
    if torch.device(device).type != "cpu" or dtype not in FORMATS:
        return (PLAIN,)
    if _packs(dtype):
        return LAYOUTS
    # A processor that cannot pack 16-bit matrices multiplies transposed ones element by element.
    return (PLAIN, TRANSPOSED) if dtype == torch.float32 else (PLAIN,)


@cache
@trial
def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN's operators exist and compute correct results in this format."""
    weight, x = torch.randn(96, 64).to(dtype), torch.randn(5, 64).to(dtype)
    want = x.double() @ weight.double().t()
    bound = (1e-4 if dtype == torch.float32 else 5e-2) * float(want.abs().max())
    products = Unpadded([weight]), OneDNN([weight])
    made = (packed(x[:rows]) for packed in products for rows in (1, 2, 3, 5))
    sums = (packed.add(x, x.new_zeros(5, 96)) for packed in products)
    return near((*made, *sums), want, bound)


def fits(net: torch.nn.Module) -> bool:
    """Whether a second copy of the matrices fits into free memory, with a margin of the same size."""
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    free = 1 << 33  # assumed if the system does not report it
    with suppress(OSError, ValueError), open("/proc/meminfo", encoding="utf8") as lines:
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    return 2 * size <= free


def _fastest(
    net: PreTrainedModel, groups: Iterable[Sequence[torch.nn.Linear]], possible: Sequence[str]
) -> str:
    """The layout whose passes over `ROWS` rows take the least time, as measured now or at an earlier load."""

    def measured() -> tuple[Fastest, bool]:
        size = 2 * SAMPLE if FP16 in possible else SAMPLE  # so that float16 weights exceed a cache, too
        times = measure(sample(([part.weight for part in group] for group in groups), size), possible)
        # Other work on the machine only ever adds time, so the minimum is the best estimate.
        least = {layout: {n: min(each) for n, each in by.items()} for layout, by in times.items()}
        best = min(least, key=lambda layout: sum(least[layout].values()))
        return Fastest.model_validate({"milliseconds": least, "fastest": best}), calm(times)

    return remembered(Fastest, about(net) | {"layouts": list(possible)}, measured).fastest


def about(net: PreTrainedModel) -> Place:
    """Everything a measurement of a model's products depends on."""
    return {
        "machine": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "dtype": str(net.dtype).removeprefix("torch."),
        "shapes": sorted({tuple(p.shape) for p in net.parameters() if p.ndim == 2}),
        "parameters": sum(p.numel() for p in net.parameters()),
        "rows": str(ROWS),
        "timing": TIMING,
    }


def remembered(kind: type[Kept], where: Place, measure: Callable[[], tuple[Kept, bool]]) -> Kept:
    """Load a measurement saved on this machine, or measure now.

    Parameters
    ----------
    kind : subclass of `Measured`
    where : dict
        Everything the measurement depends on.
    measure : callable
        Returns the measurement and whether it was undisturbed; only then is it saved for later loads.
    """
    path = home() / "kernels" / f"{hashlib.sha256(json.dumps(where).encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        return kind.model_validate(json.loads(path.read_text(encoding="utf8"))["measured"])
    result, undisturbed = measure()
    if undisturbed:
        with suppress(TraceError):  # if the cache cannot be written, the next load measures again
            write_text(path, json.dumps({**where, "measured": result.model_dump()}), force=True)
    return result


def sample(groups: Iterable[list[torch.Tensor]], least: int) -> list[list[torch.Tensor]]:
    """The first groups of matrices that together have at least `least` bytes, or all groups."""
    chosen, size = [], 0
    for group in groups:
        chosen.append(group)
        size += sum(weight.numel() * weight.element_size() for weight in group)
        if size >= least:
            break
    return chosen


def calm(times: Mapping[str, Mapping[int, Sequence[float]]]) -> bool:
    """Whether times from `measure` were undisturbed by other work."""
    return all(median(each) <= CALM * min(each) for by in times.values() for each in by.values())


@torch.inference_mode()
def measure(
    matrices: Sequence[Sequence[torch.Tensor]], layouts: Sequence[str], rows: Sequence[int] = ROWS
) -> dict[str, dict[int, list[float]]]:
    """Milliseconds that products with `matrices` take on one thread, by layout and number of rows.

    A pass finds none of its weights in the caches if the model is larger, so other memory is then read before
    each timing. Matrices of less than `SAMPLE` bytes stay in the caches, so an untimed pass precedes each of
    theirs. From `LEAST` rows on, oneDNN's two layouts are the same product, which is timed once. Below, the
    padded one gets padded rows, as from a pass.

    Parameters
    ----------
    matrices : list of lists of tensor [out, in]
        Each list holds the matrices that read the same input.
    """
    products = {layout: [lay(group, layout) for group in matrices] for layout in layouts}
    large = sum(weight.nbytes for group in matrices for weight in group) >= SAMPLE
    sizes, other = {*rows, LEAST}, torch.zeros(EVICTING // 4 if large else 0)
    inputs = {n: [group[0].new_ones(n, group[0].shape[1]) for group in matrices] for n in sizes}
    spent: dict[str, dict[int, list[float]]] = {layout: {n: [] for n in rows} for layout in layouts}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the choice, and thus the text, does not depend on the thread count
    start = time.perf_counter()
    try:
        for turn in range(1 + ROUNDS):
            for n in rows:
                shared = n >= LEAST and ONEDNN in layouts and UNPADDED in layouts
                for layout in layouts:
                    if shared and layout == UNPADDED:
                        continue
                    read = inputs[max(n, LEAST) if layout == ONEDNN else n]
                    other.sum()
                    for _ in range(1 if large else 2):
                        begin = time.perf_counter()
                        for product, x in zip(products[layout], read):
                            product(x)
                    if turn:  # the first round is warm-up
                        spent[layout][n].append(1e3 * (time.perf_counter() - begin))
                if shared:
                    spent[UNPADDED][n] = list(spent[ONEDNN][n])
            if turn and time.perf_counter() - start > MOST:
                break
    finally:
        torch.set_num_threads(threads)
    return spent


@cache
def processor() -> str:
    """Name of the processor."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
