"""Acceptance by rank and gap: a drafted token may differ from the target's own if nearly as likely.

Xia et al. 2023 ("Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq
Generation"), Spec-Verification; CM-ASD (Sen et al. 2025), section III (c), has the same two conditions, with
a separate threshold for each token. Both are greedy: drafted tokens are compared with the target's likeliest
token. Lossy by design.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..draft import Draft
from ..models.devices import send
from ..rules.gap import passes
from ..rules.speculative import chain_status, next_origin
from .base import Verdict
from .signals import likeliest_tokens


def verify_gap(draft: Draft, scores: Tensor, threshold: Tensor | float, top_beta: int) -> Verdict:
    """Accept the longest prefix in which every token passes both conditions; add the target's next token.

    Parameters
    ----------
    draft : Draft
        A chain.
    scores : tensor [1 + n, vocabulary]
        Row i predicts node i, the last row the bonus.
    threshold : tensor [n] or float
        τ of each node, in nats.
    top_beta : int
        β: an accepted token must be among this many likeliest tokens.
    """
    n = len(draft)
    drafted = send(draft.tokens, scores.device)
    best = likeliest_tokens(scores)
    gap = gaps(scores, best, drafted)
    if not isinstance(threshold, float | int):  # the drafter may be on another device
        threshold = send(threshold, scores.device)
    passed = passes(gap, ranks(scores, drafted), threshold, top_beta)
    both = torch.cat([best, drafted, passed]).tolist()  # the synchronisation
    tokens = both[n + 1 : 2 * n + 1]
    kept = both[2 * n + 1 :].index(0) if 0 in both[2 * n + 1 :] else n  # the first failure ends the block
    gap[kept + 1 :] = torch.nan  # later tokens were not judged
    # The target's own token follows even if none was accepted: CM-ASD's step (2) alone would stall.
    origin, status = next_origin(n, kept < n), chain_status(n, kept)
    return Verdict(list(range(kept)), tokens, both[kept], origin, status, signals={"gap": gap})


def gaps(scores: Tensor, best: Tensor, tokens: Tensor) -> Tensor:
    """log p(y1) - log p(y) of each node, in nats, float32 [n]; the softmax's normaliser cancels."""
    n = len(tokens)
    most = scores[:n].gather(1, best[:n, None])
    return (most - scores[:n].gather(1, tokens[:, None]))[:, 0].float()


def ranks(scores: Tensor, tokens: Tensor) -> Tensor:
    """How many tokens are likelier than each node's, int [n]."""
    rows = scores[: len(tokens)]
    return (rows > rows.gather(1, tokens[:, None])).sum(-1)
