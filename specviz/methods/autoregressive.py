"""Autoregressive decoding: one pass of the target for each token. The baseline of all other methods."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ..draft import Draft
from .base import Method, Verdict
from .sampling import FINAL, Sampling, draw
from .signals import likeliest

NOTHING = Draft.empty()


class Autoregressive(Method):
    """No draft; each cycle the target writes one token."""

    name = "autoregressive"
    title = "Autoregressive"
    pseudocode: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "repeat until the text ends:"),
        ("forward", "    p = target(text)              # one pass for one token"),
        ("verify", "    x = argmax p, or a draw from p"),
        ("commit", "    text = text + [x]"),
    )

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact"

    def draft(self, left: int) -> Draft:
        return NOTHING

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        sampling = self.session.sampling
        if sampling.greedy:
            return Verdict([], [], likeliest(scores), "plain", [])
        p = sampling.probabilities(scores[0])
        u = float(self.session.uniforms(FINAL, 1)[0])
        token = int(draw(p, u))
        return Verdict([], [], token, "plain", [], token_u=u, token_p=p[token])
