"""Confidence signals from logits, one function each: what a model believes about its next token."""

from __future__ import annotations

import math

from torch import Tensor


def confidence(logits: Tensor) -> Tensor:
    """The largest probability, max_y p(y), in (0, 1]; shape [...] from [..., vocabulary].

    Source: BiLD, section 3.3; CM-ASD's first signal.
    """
    # p of the top token alone is 1 / sum(exp(x - max)): no need for the whole softmax.
    return (logits.amax(-1) - logits.logsumexp(-1)).exp()


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy in nats, from 0 (sure) to log |V|; shape [...] from [..., vocabulary]."""
    logp = logits.log_softmax(-1)
    # 0 * -inf (a truncated token) counts as 0.
    return -(logp.exp() * logp.clamp(min=-1e30)).sum(-1)


def entropy_complement(logits: Tensor) -> Tensor:
    """1 - H / log |V|, from 0 (no idea) to 1 (sure); shape [...] from [..., vocabulary].

    Source: CM-ASD, whose text writes H / log |V|; that rises with doubt, so a confidence is its complement.
    """
    return 1 - entropy(logits) / math.log(logits.shape[-1])


def margin(logits: Tensor) -> Tensor:
    """Largest minus second largest probability, in [0, 1]; shape [...] from [..., vocabulary]."""
    top = logits.softmax(-1).topk(2).values
    return top[..., 0] - top[..., 1]
