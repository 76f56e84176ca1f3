"""Speculative decoding with a draft model: greedy matching, or rejection sampling.

Leviathan, Kalman and Matias 2023 ("Fast Inference from Transformers via Speculative Decoding",
Algorithm 1); Chen et al. 2023 ("Accelerating Large Language Model Decoding with Speculative
Sampling", Algorithm 2). Both give the same rule; line numbers below are Leviathan's.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..draft import Draft
from ..models.devices import send
from ..rules.speculative import (
    SPECULATIVE,
    accepts,
    chain_status,
    common_prefix,
    is_unsure,
    next_origin,
    residual,
)
from .base import Drafting, Verdict
from .draft_model import DraftModelMethod
from .kinds import SizedMethod
from .sampling import ACCEPT, FINAL, Sampling, draw, exact_type


class Speculative(SizedMethod, DraftModelMethod):
    """A draft model writes a few tokens; the target keeps those it would have written itself."""

    name = "speculative"
    title = "Speculative decoding"
    paper = "Leviathan et al. 2023; Chen et al. 2023"
    parameters = SPECULATIVE
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    for i = 1 .. γ:"),
        ("draft", "        q_i = draft(text + x_1 .. x_i-1)"),
        ("draft:unsure", "        if max q_i < stop: no more drafting, x_i is not sent"),
        ("draft", "        x_i = argmax q_i, or a draw from q_i"),
        ("forward", "    p_1 .. p_γ+1 = target(text + x_1 .. x_γ)"),
        ("verify", "    for i = 1 .. γ, until one fails:"),
        ("verify:accepted", "        accept x_i if argmax p_i is x_i, or u < p_i(x_i) / q_i(x_i)"),
        ("verify:rejected", "        else reject it; later tokens are not judged"),
        ("commit:correction", "    if x_n was rejected, greedy:   y = argmax p_n"),
        ("commit:resampled", "    if x_n was rejected, sampling: y is drawn from max(0, p_n − q_n)"),
        ("commit:bonus", "    if all were accepted:          y comes from p_γ+1, a bonus"),
        ("commit", "    text = text + accepted + [y]; forget the other rows"),
    )
    block_length_param = size = "draft_length"
    draft_length: int
    stop: float

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        # Greedy compares argmaxes of a block pass, which can flip where two logits nearly tie. When sampling,
        # the output's law is the target's (Leviathan, theorem in appendix A.1), whatever a draw rounds to.
        return "exact up to ties" if sampling.greedy else "exact in law"

    def draft(self, left: int) -> Drafting:
        # The target adds a token to every draft, so one of the tokens left is its own.
        n, stop = self.drafter.reach(self.draft_length, left - 1)
        goes_on = (lambda p: not is_unsure(p, self.stop)) if self.stop else None
        return (yield from self.drafter.chain(n, stop, goes_on))

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        if self.session.sampling.greedy:
            verdict = verify_greedy(draft, scores)
        else:
            u, last = self.session.uniforms(ACCEPT, len(draft)), float(self.session.uniforms(FINAL, 1)[0])
            verdict = verify_sampled(draft, self.session.sampling.probabilities(scores), u, last)
        verdict.unsent = self.drafter.unsent
        return verdict


def verify_greedy(draft: Draft, scores: Tensor) -> Verdict:
    """Keep the longest prefix that equals the target's own argmaxes, then its next one.

    `scores` [1 + n, vocabulary]: row i predicts node i, the last row the bonus.
    """
    n = len(draft)
    if scores.device.type == "cpu":  # see `signals.likeliest`
        best, tokens = scores.numpy().argmax(-1).tolist(), draft.tokens.tolist()
    else:
        drafted = send(draft.tokens, scores.device)
        both = torch.cat([scores.argmax(-1), drafted]).tolist()  # the synchronisation
        best, tokens = both[: n + 1], both[n + 1 :]
    kept = common_prefix(tokens, best)
    return Verdict(list(range(kept)), tokens, best[kept], next_origin(n, kept < n), chain_status(n, kept))


def verify_sampled(draft: Draft, p: Tensor, u: np.ndarray, last: float) -> Verdict:
    """Rejection sampling of a chain: lines 8-15 of Algorithm 1.

    Parameters
    ----------
    draft : Draft
        With ``q`` [n, vocabulary], the distributions its tokens were actually drawn from.
    p : tensor [1 + n, vocabulary]
        The target's distributions, warped as q was.
    u : array [n]
        Uniforms for the accepts.
    last : float
        Uniform for the token after the accepted ones.
    """
    n = len(draft)
    tokens = send(draft.tokens, p.device)
    blank = torch.zeros_like(p[:1])  # for the row after the draft
    q = torch.cat([send(draft.q, p.device, p.dtype), blank]) if n else blank
    p_node = p[:n].gather(1, tokens[:, None])[:, 0]
    q_node = q[:n].gather(1, tokens[:, None])[:, 0]
    passed = accepts(p_node, q_node, send(u, p.device, exact_type(p.device)))
    kept = passed.long().cumprod(0).sum()  # line 9: the first rejection ends the block
    token = draw(after(p, q, kept), last)
    k, t, *drafted = torch.cat([kept[None], token[None], tokens]).tolist()  # the synchronisation
    origin = next_origin(n, k < n, "resampled")
    used = np.where(np.arange(n) <= k, u, np.nan)
    status = chain_status(n, k)
    return Verdict(list(range(k)), drafted, t, origin, status, used, last, p_node, q_node, p[k, t])


def after(p: Tensor, q: Tensor, kept: Tensor) -> Tensor:
    """Lines 11-14: the distribution of the token after `kept` accepted ones, [vocabulary], unnormalised.

    After a rejection the residual max(0, p - q); after the whole block q is zero and it is p, the bonus.
    """
    at = kept.view(1)  # indexing with a 0-d tensor would synchronise with the host
    return residual(p[at][0], q[at][0])
