"""Confidence signals from logits, one function each: what a model believes about its next token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCKS = 128  # see `top`
FEW, SMALL = 16, 1 << 14  # see `ranked`: rows, and a vocabulary


def likeliest(row: Tensor) -> int:
    """The token of the largest logit of one row [vocabulary] or [1, vocabulary], the first of equals."""
    # Between two passes code is out of the caches: torch's argmax then takes five times as long as NumPy's.
    return int(row.numpy().argmax()) if row.device.type == "cpu" else int(row.argmax())


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
    first, second = logits.softmax(-1).topk(2).values.unbind(-1)
    return first - second


def top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, best first: values and indices [rows, k].

    Over a large vocabulary the k best lie in the k blocks with the largest maxima: finding those first
    costs a half to a third of a plain top-k on a CPU.
    """
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    width = max(64, -(-vocabulary // BLOCKS))
    blocks_of_row = -(-vocabulary // width)
    if vocabulary < 2048 or k > blocks_of_row:
        return logits.topk(k)
    if spare := width * blocks_of_row - vocabulary:
        logits = torch.nn.functional.pad(logits, (0, spare), value=-torch.inf)
    blocks = logits.reshape(rows * blocks_of_row, width)
    chosen = blocks.amax(-1).view(rows, -1).topk(k).indices
    first = torch.arange(0, len(blocks), blocks_of_row, device=logits.device)  # each row's first block
    found = blocks.index_select(0, (chosen + first[:, None]).view(-1))
    values, at = found.view(rows, -1).topk(k)
    return values, chosen.gather(1, at // width) * width + at % width


def ranked(logits: Tensor, k: int) -> Tensor:
    """The `k` likeliest tokens of each row [n, vocabulary], best first: [n, k].

    Of equal first ones the first id, as argmax has it.
    """
    # A few rows cost a CPU less in one step than in the many of `top`, each of which is cold between passes.
    best, tokens = logits.topk(k) if len(logits) <= FEW and logits.shape[1] <= SMALL else top(logits, k)
    # A top-k may order equals as it likes. A CPU can look whether there are any; others would have to wait.
    if logits.device.type == "cpu" and k > 1 and not bool((best[:, 0] == best[:, 1]).any()):
        return tokens
    first = torch.where(best == best[:, :1], tokens, logits.shape[-1]).amin(-1, keepdim=True)
    return torch.cat([first, torch.where(tokens == first, tokens[:, :1], tokens)[:, 1:]], 1)


def successors(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `ranked`, and their probabilities [n, k]. Source: UniSpec, Algorithm 1, lines 39-40."""
    tokens = ranked(logits, k)
    return tokens, logits.softmax(-1).gather(1, tokens)  # the very numbers that a record holds
