"""Confidence signals from logits, one function each: how sure a model is of its next token."""

from __future__ import annotations

import torch
from torch import Tensor

from ..rules import gap as rules

BLOCKS = 128  # see `top`
FEW, SMALL = 16, 1 << 14  # see `ranked`: numbers of rows and of tokens


def likeliest(row: Tensor) -> int:
    """The token with the largest logit of one row [vocabulary] or [1, vocabulary], the first of equals."""
    # Between passes, code leaves the CPU's caches: torch's argmax then takes five times as long as NumPy's.
    return int(row.numpy().argmax()) if row.device.type == "cpu" else int(row.argmax())


def likeliest_tokens(logits: Tensor) -> Tensor:
    """The token with the largest logit of each row [n, vocabulary], the first of equals: [n]."""
    if logits.device.type == "cpu":  # see `likeliest`
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def likeliest_token(row: Tensor) -> Tensor:
    """As `likeliest`, as a tensor [1] on the row's device, without waiting for it."""
    return torch.tensor([likeliest(row)]) if row.device.type == "cpu" else row.argmax(-1).view(1)


def sayable(logits: Tensor) -> int | Tensor:
    """Number of tokens that a drafter can predict, called |V| below; the others have a logit of -inf.

    An int on a CPU; on other devices a tensor, so that nothing waits for it.
    """
    row = logits.reshape(-1, logits.shape[-1])[:1]
    count = (row > -torch.inf).sum().clamp(min=2)
    return int(count) if count.device.type == "cpu" else count


def share_of_entropy(entropy: Tensor, size: int | Tensor) -> Tensor:
    """`rules.entropy_share`, also for |V| as a tensor."""
    return rules.entropy_share(entropy, size) if isinstance(size, int) else entropy / size.log()


def share_of_margin(margin: Tensor, size: int | Tensor) -> Tensor:
    """`rules.margin_share`, also for |V| as a tensor."""
    if isinstance(size, int):
        return rules.margin_share(margin, size)
    return (margin / (1 - 1 / size)).clamp(max=1)


def confidence(logits: Tensor) -> Tensor:
    """The largest probability, max_y p(y), in (0, 1]; shape [...] from [..., vocabulary].

    Source: BiLD, section 3.3.
    """
    # p of the top token alone is 1 / sum(exp(x - max)): no need for the whole softmax.
    return (logits.amax(-1) - logits.logsumexp(-1)).exp()


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy in nats, from 0 (sure) to log |V|; shape [...] from [..., vocabulary]."""
    logp = logits.log_softmax(-1)
    # 0 * -inf (a truncated token) counts as 0.
    return -(logp.exp() * logp.clamp(min=-1e30)).sum(-1)


def entropy_share(logits: Tensor) -> Tensor:
    """H / log |V|, from 0 (sure) to 1 (no idea); shape [...] from [..., vocabulary].

    Source: CM-ASD, section III (1), which calls this a confidence, though it rises with uncertainty.
    """
    return share_of_entropy(entropy(logits), sayable(logits))


def entropy_complement(logits: Tensor) -> Tensor:
    """1 - H / log |V|, from 0 (no idea) to 1 (sure); shape [...] from [..., vocabulary].

    Source: CM-ASD, read as a confidence: the complement of the formula as written.
    """
    return 1 - entropy_share(logits)


def margin(logits: Tensor) -> Tensor:
    """Largest minus second largest probability, in [0, 1]; shape [...] from [..., vocabulary].

    Source: CM-ASD's softmax margin.
    """
    first, second = logits.softmax(-1).topk(2).values.unbind(-1)
    return first - second


def softmax_margin(logits: Tensor) -> Tensor:
    """`margin` divided by 1 - 1 / |V|, as CM-ASD scales it; shape [...] from [..., vocabulary]."""
    return share_of_margin(margin(logits), sayable(logits))


def logit_margin(logits: Tensor) -> Tensor:
    """Largest minus second largest logit, z1 - z2, at least 0; shape [...] from [..., vocabulary]."""
    first, second = logits.topk(2).values.unbind(-1)
    return first - second


def logit_margin_sigmoid(logits: Tensor, scale: float = 1.0) -> Tensor:
    """1 / (1 + exp(-scale (z1 - z2))); shape [...] from [..., vocabulary].

    Source: CM-ASD, which gives its range as (0, 1). A margin is never negative, so the range is [1/2, 1]:
    even a drafter with no idea gets 1/2.
    """
    return (scale * logit_margin(logits)).sigmoid()


def variance(logits: Tensor) -> Tensor:
    """Variance of the logits over the `sayable` tokens, at least 0; [...] from [..., vocabulary]."""
    size = sayable(logits)
    if isinstance(size, int) and size == logits.shape[-1]:
        away = logits - logits.mean(-1, keepdim=True)  # torch's own `var` takes thirty times as long on a CPU
    else:
        finite = logits > -torch.inf
        mean = torch.where(finite, logits, 0).sum(-1, keepdim=True) / size
        away = torch.where(finite, logits - mean, 0)
    return torch.linalg.vecdot(away, away) / size


def variance_share(logits: Tensor) -> Tensor:
    """v / (v + 2 log |V|) for the `variance` v, in [0, 1); shape [...] from [..., vocabulary].

    The scale is ours, see `specviz.rules.gap.variance_share`.
    """
    size, value = sayable(logits), variance(logits)
    return rules.variance_share(value, size) if isinstance(size, int) else value / (value + 2 * size.log())


def ensemble(
    logits: Tensor, weights: tuple[float, float, float, float], scale: float = 1.0, complement: bool = True
) -> Tensor:
    """The weighted confidence C_t = sum of weight times signal, in [0, 1], float32 [...].

    Source: CM-ASD, section III (1), "Unified confidence score"; the fourth weight is ours.

    Parameters
    ----------
    logits : tensor [..., vocabulary]
    weights : four numbers that sum to 1
        Weights of `entropy_complement`, `logit_margin_sigmoid`, `softmax_margin` and `variance_share`.
    scale : float
        Scale of the logit margin.
    complement : bool
        False: use `entropy_share`, the paper's formula as written.
    """
    # One softmax and one top-2 serve all signals; those without weight are not computed.
    w_entropy, w_margin, w_softmax, w_variance = weights
    size, parts = sayable(logits), [(0.0, torch.zeros((), device=logits.device))]
    if w_entropy or w_margin or w_softmax:
        best, tokens = logits.topk(2)
        lead = best[..., 0] - best[..., 1]
    if w_entropy or w_softmax:
        p = logits.softmax(-1)
        p_best = p.gather(-1, tokens)
    if w_entropy:
        # H = log sum exp(z) - sum p z, and log sum exp(z) = z1 - log p1. The clamp: 0 * -inf counts as 0.
        least = torch.finfo(logits.dtype).min
        rest = torch.linalg.vecdot(p, logits.clamp(min=least))
        share = share_of_entropy((best[..., 0] - p_best[..., 0].log() - rest).clamp(min=0), size)
        parts.append((w_entropy, 1 - share if complement else share))
    if w_margin:
        parts.append((w_margin, (scale * lead).sigmoid()))
    if w_softmax:
        parts.append((w_softmax, share_of_margin(p_best[..., 0] - p_best[..., 1], size)))
    if w_variance:
        parts.append((w_variance, variance_share(logits).nan_to_num(1)))  # NaN if a logit is infinite
    return rules.blend(parts).float()


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
    if padding := width * blocks_of_row - vocabulary:
        logits = torch.nn.functional.pad(logits, (0, padding), value=-torch.inf)
    blocks = logits.reshape(rows * blocks_of_row, width)
    chosen = blocks.amax(-1).view(rows, -1).topk(k).indices
    first = torch.arange(0, len(blocks), blocks_of_row, device=logits.device)  # each row's first block
    candidates = blocks.index_select(0, (chosen + first[:, None]).view(-1))
    values, at = candidates.view(rows, -1).topk(k)
    return values, chosen.gather(1, at // width) * width + at % width


def ranked(logits: Tensor, k: int) -> Tensor:
    """The `k` likeliest tokens of each row [n, vocabulary], best first: [n, k].

    If several tie for first, the lowest id is first, as in argmax.
    """
    # For few rows, one cold call costs a CPU less than the many calls of `top`.
    best, tokens = logits.topk(k) if len(logits) <= FEW and logits.shape[1] <= SMALL else top(logits, k)
    # A top-k may order equals in any way. A CPU can check for them; other devices would have to synchronise.
    if logits.device.type == "cpu" and k > 1 and not bool((best[:, 0] == best[:, 1]).any()):
        return tokens
    first = logits.argmax(-1, keepdim=True)  # if more than k tie, it may not be in `tokens`
    return torch.cat([first, torch.where(tokens == first, tokens[:, :1], tokens)[:, 1:]], 1)


def successors(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `ranked`, and their probabilities [n, k]. Source: UniSpec, Algorithm 1, lines 39-40."""
    tokens = ranked(logits, k)
    return tokens, logits.softmax(-1).gather(1, tokens)  # exactly the numbers that are recorded
