"""Randomness: counter-based uniforms, the warped distribution, and drawing by inverse CDF.

Every uniform number is a function of (seed, prompt, update, cycle, use), so that a run can be repeated, a row
of a batch draws the same numbers as its single run, and an accept can be recomputed from the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from ..arguments import MOST, Range, check_fields
from ..errors import ParameterError
from ..models.devices import send
from .signals import top

# Uses of a cycle's uniforms: each use has its own stream, so that a longer draft does not shift the numbers
# of another use.
DRAFT, ACCEPT, FINAL = 0, 1, 2
LIKELIEST = 128  # number of top tokens among which top-p searches first
COLDEST = 1e-30  # a logit of 1e8 divided by it still fits float32 and bfloat16


class Uniforms:
    """Uniform numbers in [0, 1) for one text, from Philox-4x64 keyed by seed and prompt (and its update).

    Numbers for ACCEPT have 24 bits, so that the recorded float32 is exactly the number used; those that draw
    a token have 53.
    """

    def __init__(self, seed: int, prompt: int = 0, update: int = 0) -> None:
        self.key = np.array([seed % 2**64, prompt], np.uint64)
        self.update = update

    def __call__(self, cycle: int, use: int, n: int) -> np.ndarray:
        """Draw `n` numbers for a use in a cycle, float64 [n]."""
        # Philox counts in the lowest word; update, cycle and use sit in higher ones, so streams never meet.
        counter = np.array([0, use, cycle, self.update], np.uint64)
        u = np.random.Generator(np.random.Philox(key=self.key, counter=counter)).random(n)
        return np.floor(u * 2**24) / 2**24 if use == ACCEPT else u


def exact_type(device: torch.device) -> torch.dtype:
    """The widest float type of a device, used for decisions. MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn from logits: temperature, then top-k, then top-p; 0 means greedy.

    Raises
    ------
    ParameterError
        If a value is not a number, temperature or top_k is negative, temperature is positive but too small,
        or top_p is not in (0, 1].
    """

    temperature: float = 0.0
    top_k: Annotated[int, Range(0, MOST)] = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.temperature < float("inf"):
            raise ParameterError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        if 0 < self.temperature < COLDEST:
            raise ParameterError(
                f"temperature must be 0 (greedy) or at least {COLDEST:g}, below which logits overflow; got "
                f"{self.temperature}"
            )
        if not 0 < self.top_p <= 1:
            raise ParameterError(f"top_p must lie in (0, 1], got {self.top_p}")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without a random number."""
        return self.temperature == 0

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution to sample from, with the shape and type of `logits` [..., vocabulary].

        Ties at the k-th place are kept, as in transformers' warpers; top-p keeps the smallest set of
        likeliest tokens whose sum reaches p (Holtzman et al. 2020, equation 2).
        """
        if self.greedy:
            return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        return self.scores(logits).softmax(-1)

    def scores(self, logits: Tensor) -> Tensor:
        """Tempered logits, with -inf for what is not drawn."""
        return self.limited(logits / self.temperature)

    def limited(self, scores: Tensor) -> Tensor:
        """The scores, with -inf for what top-k and then top-p exclude."""
        if 0 < self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k).values[..., -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if self.top_p < 1:
            p = scores.softmax(-1)
            kept = nucleus(p.flatten(0, -2) if p.ndim > 1 else p[None], self.top_p).view(p.shape)
            scores = scores.masked_fill(~kept, -torch.inf)
        return scores


class TemperatureLast(Sampling):
    """llama.cpp's order: top-k and top-p limit the untempered distribution; the temperature comes last."""

    def scores(self, logits: Tensor) -> Tensor:
        return self.limited(logits) / self.temperature


def nucleus(p: Tensor, share: float) -> Tensor:
    """The smallest set of likeliest tokens whose sum reaches `share`, bool like `p` [n, vocabulary].

    Of equal probabilities at its edge, the lowest ids are kept. Source: Holtzman et al. 2020, equation 2.
    """
    if p.device.type != "cpu":
        return _sorted_nucleus(p, share)
    # Sorting a whole row's ids takes a third of a pass. Its likeliest tokens nearly always suffice; otherwise
    # its values are sorted, without ids.
    kept, done = _nucleus_of(p, top(p, LIKELIEST)[0], share)
    if not done.all():
        rest = p[~done]
        kept[~done], _ = _nucleus_of(rest, torch.from_numpy(-np.sort(-rest.numpy())), share)
    return kept


def _nucleus_of(p: Tensor, best: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The set, from each row's largest values in order; and for which rows [n] these suffice."""
    sums = best.cumsum(-1)
    count = (sums - best < share).sum(-1).clamp_(min=1)  # even if the share is too small for the format
    least = best.gather(-1, count[:, None] - 1)
    kept = p >= least
    over = (kept.sum(-1) > count).nonzero()[:, 0]
    if len(over):  # ties at the edge, common in bfloat16: keep the lowest ids
        some, end = p[over], least[over]
        equal = some == end
        room = count[over] - (some > end).sum(-1)
        kept[over] &= ~equal | (equal.cumsum(-1) <= room[:, None])
    return kept, (sums[:, -1] >= share) | (best.shape[1] == p.shape[1])


def _sorted_nucleus(p: Tensor, share: float) -> Tensor:
    p, order = p.sort(dim=-1, descending=True, stable=True)
    kept = p.cumsum(-1) - p < share
    kept[..., 0] = True
    return kept.scatter(-1, order, kept)


def check_drawing(drawn: bool, top_k: int, top_p: float) -> None:
    """Refuse (`ParameterError`) limits on what is drawn if nothing is drawn."""
    if not drawn and (top_k or top_p < 1):
        raise ParameterError(
            "top_k and top_p limit what is drawn, and temperature 0 draws nothing: raise temperature, or "
            "drop them"
        )


def draw(p: Tensor, u: Tensor | np.ndarray | float) -> Tensor:
    """Draw token indices [...] from `p` [..., vocabulary] by inverse CDF at `u` [...], on p's device.

    `p` need not be normalised. The sum runs in float64 (float32 on MPS). A token of probability 0
    is never drawn.
    """
    kind = exact_type(p.device)
    return located(p.to(kind).cumsum(-1), send(u, p.device, kind)[..., None])[..., 0]


def located(cdf: Tensor, u: Tensor) -> Tensor:
    """Token indices [..., n] at which `u` [..., n] falls in the cumulative sums `cdf` [..., vocabulary].

    If all sums are 0, nothing can be drawn, and the index is the vocabulary's size.
    """
    if cdf.dtype != torch.float64:
        u = u.clamp(max=1 - 2**-24)  # the largest u below 1 may have been rounded up to 1
    # The first index whose sum exceeds u * total. With u at most 1 - 2^-53 (2^-24 in float32)
    # the product rounds to less than the total, so there is one.
    return torch.searchsorted(cdf, u * cdf[..., -1:], right=True)
