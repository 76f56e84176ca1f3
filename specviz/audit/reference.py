"""The target computed without any of our code: stock transformers, whole texts, no cache; and in float64.

A GGUF file has neither float64 nor a stock module: its reference is the same file read one token at a time in
a separate context, without drafts or trees (`Stepwise`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import ModelError
from ..loop.dense import epsilon
from ..models.protocols import Model
from ..rules.speculative import common_prefix

if TYPE_CHECKING:
    from ..models.diffusion import Diffusion
    from ..models.llamacpp.model import LlamaCpp

Net: TypeAlias = Any  # a transformers module, of any family
Value: TypeAlias = Any  # an argument or the result of any function of torch
FACTOR = 8.0  # the bound is this many times the largest rounding error that was measured ...
FLOOR, CAP = 2.0, 1024.0  # ... between these multiples of eps times the largest logit ...
SHARE = 0.05  # ... and never more than this share of the largest logit
WIDTHS = (2, 4, 16, 64)  # tokens per pass at which llama.cpp's kernels are compared with that for one


class Wide(TorchFunctionMode):
    """Turns every cast to float32 into one to float64.

    Norms, rotary angles and attention weights are cast to float32 explicitly, whatever the model's format, so
    a model in float64 would still round there.
    """

    def __torch_function__(
        self, func: Callable[..., Value], types: Sequence[type], args: Sequence[Value] = (),
        kwargs: Mapping[str, Value] | None = None,
    ) -> Value:  # fmt: skip
        def wide(value: Value) -> Value:
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


@dataclass(frozen=True)
class Bound:
    """How far rounding may move a logit, and where the number comes from.

    Parameters
    ----------
    value : float
        In logits.
    measured : float
        Largest difference between the stock module's logits in the model's format and in float64.
    rows : int
        Predictions over which it was measured.
    low, high : float
        Limits of `value`; the upper one keeps a bug that moves every logit from hiding in its own bound.
    against : str
        What the error was measured against.
    """

    value: float
    measured: float
    rows: int
    low: float
    high: float
    against: str = "float64"

    @classmethod
    def of(cls, measured: float, scale: float, rows: int, eps: float, against: str = "float64") -> Bound:
        """The bound for a measured error, with logits as large as `scale`."""
        low, high = FLOOR * eps * scale, min(CAP * eps, SHARE) * scale
        return cls(min(max(FACTOR * measured, low), high), measured, rows, low, high, against)

    def __str__(self) -> str:
        limits = {self.high: ", lowered to its limit", self.low: ", raised to its limit"}
        return (
            f"{self.value:.1e} = {FACTOR:g} x {self.measured:.1e}, the largest error of {self.rows} "
            f"predictions against {self.against}{limits.get(self.value, '')}"
        )


def reference_of(model: Model) -> Reference | Stepwise:
    """The reference of a model's predictions."""
    if getattr(model, "backend", {}).get("name") == "llama.cpp":
        return Stepwise(model)
    return Crossed(model) if model.kind == "encoder-decoder" else Reference(model)


class Reference:
    """A model's predictions by transformers' own forward, over whole texts.

    Parameters
    ----------
    model : Model
        Its transformers module (`net`) is used, and none of our code.

    Raises
    ------
    ModelError
        If the model does not run on transformers, or only part of it is used.
    """

    name, exactly = "the stock module", "in float64"

    def __init__(self, model: Model | Diffusion) -> None:
        self.net: Net = getattr(model, "net", None)
        if self.net is None:
            raise ModelError(f"{model.name} does not run on transformers, the audit's reference")
        if model.layers < self.depth:
            raise ModelError(f"{model.name} is only the first layers of a model: audit the whole model")

    @property
    def depth(self) -> int:
        """Layers of the whole model."""
        return int(self.net.config.get_text_config().num_hidden_layers)

    def forward(self, net: Net, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Logits that predict each token of `text` after `prompt`, by one call of the module."""
        tokens = torch.tensor([[*prompt, *text[:-1]]], device=net.device)
        return net(input_ids=tokens, use_cache=False, logits_to_keep=len(text)).logits[0]

    def measured(self, prompt: list[int], text: list[int]) -> tuple[list[int], list[int]]:
        """The part of a text over which rounding is measured: prompt and output, except the first token."""
        ids = [*prompt, *text]
        return ids[:1], ids[1:]

    @torch.inference_mode()
    def rows(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Logits that predict each token of `text` after `prompt`: float32 [len(text), vocabulary]."""
        return self.forward(self.net, prompt, text).float()

    @torch.inference_mode()
    def double(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """As `rows`, in float64 on the CPU."""
        with Wide():
            return self.forward(self.wide_net, prompt, text)

    @cached_property
    def wide_net(self) -> Net:
        """A copy of the module in float64 on the CPU."""
        with torch.inference_mode(False):  # our own code may read it, and needs version counters
            # No second copy on the model's own device, which may have no room for it.
            memo = {id(each): _widened(each) for each in (*self.net.parameters(), *self.net.buffers())}
            net = copy.deepcopy(self.net, memo).eval()
        if net.config._attn_implementation not in ("eager", "sdpa"):
            net.set_attn_implementation("eager")
        experts = getattr(net, "_can_set_experts_implementation", None)  # our own modules lack it
        if experts is not None and experts():
            net.set_experts_implementation("eager")  # grouped matrix products do not support float64
        return net

    def bound(self, texts: Sequence[tuple[list[int], list[int]]]) -> Bound:
        """Measure the rounding error at every place of (prompt, text) pairs."""
        measured, scale, count = 0.0, 0.0, 0
        for prompt, text in texts:
            part = self.measured(prompt, text)
            if not part[1]:
                continue
            exact, rows = self.double(*part), self.rows(*part)
            measured = max(measured, distance(rows, exact))
            scale = max(scale, float(exact[exact.isfinite()].abs().max()))
            count += len(exact)
        self._bound = Bound.of(measured, scale, count, torch.finfo(self.net.dtype).eps)
        return self._bound

    def bound_at(self, ids: Sequence[int]) -> float:
        """How far rounding may move a logit after `ids`: the last value of `bound`, for any `ids`."""
        return self._bound.value


class Crossed(Reference):
    """An encoder-decoder's predictions by transformers' own forward, over whole prompts and texts."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.prefix: Sequence[int] = getattr(model, "prefix", ())

    @property
    def depth(self) -> int:
        """Layers of the whole decoder."""
        config = self.net.config
        return int(getattr(config, "num_decoder_layers", None) or config.decoder_layers)

    def forward(self, net: Net, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Logits that predict each token of `text` after `prompt`, by one call of the module."""
        source = torch.tensor([prompt], device=net.device)
        tokens = torch.tensor([[*self.prefix, *text[:-1]]], device=net.device)
        return net(input_ids=source, decoder_input_ids=tokens, use_cache=False).logits[0][-len(text) :]

    def measured(self, prompt: list[int], text: list[int]) -> tuple[list[int], list[int]]:
        """The part of a text over which rounding is measured: the whole output."""
        return prompt, text


class Stepwise:
    """A GGUF file's predictions, read one token at a time.

    llama.cpp uses different kernels for one token and for many, so a verified text may diverge from one
    written token by token. The difference between the kernels is measured over whole texts by `bound`, and at
    the place where two texts diverge by `bound_at`.

    Parameters
    ----------
    model : LlamaCpp
        Its file is read, in a separate context.
    """

    name, exactly = "the file read token by token", "token by token"

    def __init__(self, model: Model) -> None:
        self.model = cast("LlamaCpp", model)
        self._native = self.model.take(model.max_length, 1)
        self._epsilon = epsilon(self.model.dtype)
        self._ids: list[int] = []
        self._scale = 0.0

    def rows(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Logits that predict each token of `text` after `prompt`: float32 [len(text), vocabulary]."""
        ids = [*prompt, *text[:-1]]
        # Tokens that were read before in the same way need not be read again.
        shared = min(common_prefix(self._ids, ids), len(prompt) - 1)
        self._native.remove(0, shared)
        self._ids = []  # invalid until all is read
        rows = [self._read(i, ids[i : i + 1], i >= len(prompt) - 1) for i in range(shared, len(ids))]
        self._ids = ids
        return torch.cat([row for row in rows if row is not None])

    def double(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """As `rows`, converted to float64: a GGUF file has no more exact values."""
        return self.rows(prompt, text).double()

    def bound(self, texts: Sequence[tuple[list[int], list[int]]]) -> Bound:
        """Measure how far the kernels for many tokens differ from that for one, over (prompt, text) pairs."""
        measured, scale, count = 0.0, 0.0, 0
        for prompt, text in texts:
            if not text:
                continue
            exact = self.rows(prompt, text)
            for width in WIDTHS:
                rows = self._blocks([*prompt, *text[:-1]], width)[len(prompt) - 1 :]
                measured = max(measured, distance(rows, exact))
            scale = max(scale, float(exact.abs().max()))
            count += len(exact)
        self._scale = scale
        return Bound.of(measured, scale, count, self._epsilon, "the same file read one token at a time")

    def bound_at(self, ids: Sequence[int]) -> float:
        """How far the kernels may move a logit after `ids`, measured there at several widths."""
        exact = self.rows(ids, [0])
        noise = max(distance(self._blocks(ids, width)[-1:], exact) for width in WIDTHS)
        return Bound.of(noise, self._scale, 1, self._epsilon).value

    def _blocks(self, ids: Sequence[int], width: int) -> Tensor:
        """Logits after every token of `ids`, read `width` tokens per pass."""
        self._native.remove(0, 0)
        parts = [self._read(i, ids[i : i + width], True) for i in range(0, len(ids), width)]
        self._native.remove(0, 0)
        self._ids = []
        return torch.cat([part for part in parts if part is not None])

    def _read(self, place: int, ids: Sequence[int], wanted: bool) -> Tensor | None:
        """Run one pass over `ids` after the `place` tokens read before."""
        native, n = self._native, len(ids)
        native.tokens[:n] = ids
        native.positions[:n] = range(place, place + n)
        native.counts[:n], native.lists[:n], native.outputs[:n] = 1, native.alone[0], wanted
        native.decode(n)
        return native.logits(n) if wanted else None


def _widened(tensor: Tensor) -> Tensor:
    """A copy of a parameter or buffer on the CPU, in float64 unless it holds integers."""
    dtype = torch.float64 if tensor.is_floating_point() else tensor.dtype
    wide = tensor.detach().to("cpu", dtype, copy=True)
    return torch.nn.Parameter(wide, False) if isinstance(tensor, torch.nn.Parameter) else wide


def distance(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference; infinite if a value is NaN."""
    gap = (a.cpu().double() - b.cpu().double()).abs()
    gap = torch.where(a.cpu() == b.cpu(), 0.0, gap)  # equal infinities
    return float(gap.nan_to_num(torch.inf).max())
