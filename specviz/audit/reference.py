"""The target computed without any of our code: stock transformers, whole texts, no cache; and in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import ModelError

FACTOR = 8.0  # the bound is this many times the largest rounding error that was measured ...
FLOOR, CAP = 2.0, 1024.0  # ... between these multiples of eps times the largest logit ...
SHARE = 0.05  # ... and never more than this share of the largest logit


class Wide(TorchFunctionMode):
    """Turns every cast to float32 into one to float64.

    Norms, rotary angles and attention weights ask for float32 by name, whatever the model's own format; a
    model cast to float64 would still round there.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
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
    """

    value: float
    measured: float
    rows: int
    low: float
    high: float

    def __str__(self) -> str:
        text = f"{self.value:.1e} = {FACTOR:g} x {self.measured:.1e}, the largest error of {self.rows}"
        text += " predictions against float64"
        if self.value in (self.low, self.high):
            text += f", {'raised' if self.value == self.low else 'lowered'} to its limit"
        return text


class Reference:
    """A model's predictions by transformers' own forward, over whole texts.

    Parameters
    ----------
    model : Model
        Its transformers module (`net`) is used; nothing else of it.

    Raises
    ------
    ModelError
        If the model does not run on transformers, or only part of it is used.
    """

    def __init__(self, model: Any) -> None:
        self.net: Any = getattr(model, "net", None)
        if self.net is None:
            raise ModelError(f"{model.name} does not run on transformers, with which the audit compares")
        if model.layers < self.net.config.get_text_config().num_hidden_layers:
            raise ModelError(f"{model.name} is only the first layers of a model: audit the whole model")
        self._double: Any = None

    @torch.inference_mode()
    def rows(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Logits that predict each token of `text` behind `prompt`: float32 [len(text), vocabulary]."""
        return _forward(self.net, [*prompt, *text[:-1]], len(text)).float()

    @torch.inference_mode()
    def double(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """The same in float64 on the CPU."""
        if self._double is None:
            self._double = copy.deepcopy(self.net).to("cpu", torch.float64).eval()
            if self._double.config._attn_implementation not in ("eager", "sdpa"):
                self._double.set_attn_implementation("eager")
        with Wide():
            return _forward(self._double, [*prompt, *text[:-1]], len(text))

    def bound(self, texts: Sequence[tuple[list[int], list[int]]]) -> Bound:
        """Measure the rounding error over (prompt, text) pairs, every place of them."""
        measured, scale, count = 0.0, 0.0, 0
        for prompt, text in texts:
            ids = [*prompt, *text]
            if len(ids) < 2:
                continue
            exact, found = self.double(ids[:1], ids[1:]), self.rows(ids[:1], ids[1:])
            measured = max(measured, distance(found, exact))
            scale = max(scale, float(exact.abs().max()))
            count += len(exact)
        eps = torch.finfo(self.net.dtype).eps
        low, high = FLOOR * eps * scale, min(CAP * eps, SHARE) * scale
        return Bound(min(max(FACTOR * measured, low), high), measured, count, low, high)


def _forward(net: Any, ids: list[int], keep: int) -> Tensor:
    tokens = torch.tensor([ids], device=net.device)
    return net(input_ids=tokens, use_cache=False, logits_to_keep=keep).logits[0]


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference; infinite where one is not a number."""
    gap = (a.cpu().double() - b.cpu().double()).abs()
    gap = torch.where(a.cpu() == b.cpu(), 0.0, gap)  # equal infinities
    return float(gap.nan_to_num(torch.inf).max())
