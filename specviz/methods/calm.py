"""CALM: Schuster et al. 2022, "Confident Adaptive Language Modeling".

Each token runs through as many of the target's layers as it needs. This implements the paper's two confidence
measures that need no training, its decaying threshold, and its state propagation (done by `Context.forward`).
Kim et al. 2023 (BiLD), appendix 7.2, compares with it, using saturation as the measure, λ in [0.7, 0.98] and
τ (there t) in {0, 1, 2, 4, 8}. Lossy by design.

Every tested layer copies a number to the host, and the softmax response also runs the head there. This is the
cost of skipping the later layers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, ParameterError
from ..models.protocols import Model
from ..rules.parameters import Value
from ..schema import Signal
from .autoregressive import NOTHING, Autoregressive
from .base import Parameter, Session, Verdict
from .signals import margin


class Calm(Autoregressive):
    """No draft; each token exits the target after the first layer that is confident enough of it."""

    name = "calm"
    title = "CALM"
    paper = "Schuster et al. 2022"
    parameters = (
        Parameter(
            "measure", "state",
            meaning="Confidence measured after a layer: how saturated its hidden state is (the cosine with "
                "the previous layer, from the second layer on), or the softmax response (largest minus "
                "second largest probability).", choices=("state", "softmax"),
        ),
        Parameter(
            "threshold", 0.9, 0, 1, "confidence",
            "A token exits where its confidence exceeds the threshold given by this and the decay.", "λ",
        ),
        Parameter(
            "decay", 0.0, 0, None, "1/length",
            "How fast the threshold falls, by up to 0.1, towards the end of the text; 0: constant.", "τ",
        ),
        Parameter("first", 1, 1, None, "layers", "The earliest layer after which a token may exit."),
    )  # fmt: skip
    signals = (
        Signal("layers", "layers", "Number of layers that the token ran through.", "cycle"),
        Signal("threshold", "", "What the confidence had to exceed for an early exit.", "cycle"),
        Signal("confidence", "", "Confidence at the last tested layer.", "cycle"),
    )
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    λ_t = clip(9/10 λ + 1/10 exp(−τ t / N)) to [0, 1]"),
        ("forward", "    for each layer i = 1 .. L of the target:"),
        ("forward", "        d_i = layer i of d_i-1 and the text's keys and values"),
        ("forward", "        c = cos(d_i, d_i-1), or p's largest − second with p = head(d_i)"),
        ("forward", "        if c > λ_t: leave; d_i also makes keys and values of i+1 .. L"),
        ("verify", "    x = argmax p, or a draw from p = head(d_i)"),
        ("commit", "    text = text + [x]"),
    )
    exact = {"threshold": 1.0, "decay": 0.0}  # noqa: RUF012
    measure: str
    threshold: float
    decay: float
    first: int

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        self.exit_rule = self.sure

    def guarantee(self, sampling: Any, dtype: str) -> str:
        return "exact" if self._stays else "lossy"

    @property
    def _stays(self) -> bool:
        """Whether no token can exit early: no confidence exceeds 1."""
        return threshold_at(self.threshold, self.decay, 0, 1) >= 1 and self.decay == 0

    def prepare(self, target: Model) -> None:
        if not getattr(target, "leaves", False):
            if self._stays:
                return  # nothing is tested: every token runs through all layers, on any model
            if hasattr(target, "check_leaves"):
                target.check_leaves()
            raise ModelError(
                f"calm exits passes early, and {target.name} cannot: use a model of the Llama family in "
                f"transformers' format"
            )
        if self.first >= target.layers:
            raise ParameterError(
                f"first={self.first}: {target.name} has {target.layers} layers, so a token can exit after "
                f"layers 1 to {target.layers - 1}"
            )

    def start(self, session: Session) -> None:
        self.session = session
        self.exit_rule = self.sure if getattr(session.target, "leaves", False) else None
        self.earliest = max(self.first, 2) if self.measure == "state" else self.first

    def draft(self, left: int) -> Any:
        limit = self.session.limit
        self.limit = threshold_at(self.threshold, self.decay, limit - left, limit)
        self.left, self.confidence = 0, math.nan
        return NOTHING

    def sure(self, door: Any) -> bool:
        """Whether c > λ_t after this layer. (With ≥, a token could exit even at λ = 1.)"""
        if door.layer < self.earliest:
            return False
        state = self.measure == "state"
        self.confidence = saturation(door.before, door.after) if state else response(door.logits())
        if self.confidence > self.limit:
            self.left = door.layer
        return self.left > 0

    def verify(self, draft: Any, scores: Tensor | None) -> Verdict:
        if self.exit_rule is not None:
            control = {"layers": self.left or self.session.target.layers, "threshold": self.limit}
            if not math.isnan(self.confidence):  # at the last tested layer
                control["confidence"] = self.confidence
            self.session.control = control
        return super().verify(draft, scores)


def threshold_at(threshold: float, decay: float, t: int, n: int) -> float:
    """λ'(λ, t) = clip_[0, 1] (9/10 λ + 1/10 e^(−τ t / N)), for the token after `t` generated ones.

    `n` is N, the maximum number of generated tokens. Early tokens, on which all later ones depend, need more
    confidence than those at the end.
    """
    return min(max(0.9 * threshold + 0.1 * math.exp(-decay * t / n), 0.0), 1.0)


def saturation(before: Tensor, after: Tensor) -> float:
    """Cosine of a token's hidden states [1, size] before and after a layer, at most 1."""
    both = torch.cat((before, after)).float()
    (aa, ab), (_, bb) = (both @ both.T).tolist()  # one product, one synchronisation
    return min(ab / math.sqrt(aa * bb), 1.0) if aa * bb > 0 else 0.0


def response(logits: Tensor) -> float:
    """The softmax response of logits [1, vocabulary]: largest minus second largest probability."""
    return min(float(margin(logits)), 1.0)
