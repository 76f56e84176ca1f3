"""Verification of a tree of drafted tokens: the greedy rule, and sampling with siblings tried in turn.

UniSpec (Do et al.), Algorithms 2 to 4; the rules are those of SpecInfer (Miao et al. 2024) for a
deterministic drafter. A chain is a tree without branches, so these serve both. Siblings may carry the same
token: when greedy, they are right or wrong alike; when sampling, only the first is tried.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..draft import ROOT, Draft
from ..models.devices import send
from ..rules.speculative import accepts, longest_path, next_origin
from .base import Session, Verdict
from .sampling import ACCEPT, FINAL, Sampling, draw, exact_type
from .signals import likeliest_tokens


def judge(
    draft: Draft, scores: Tensor, session: Session, *more: Tensor, best: Tensor | None = None
) -> tuple[Verdict, list[np.ndarray]]:
    """Judge a draft under the session's sampling; its tokens must be on the host.

    Parameters
    ----------
    draft : Draft
        Drafted deterministically, without ``q``. ``judge`` names the candidates.
    scores : tensor [1 + n, vocabulary]
        The target's logits, row 0 the root's.
    *more : tensors of the device
        Copied to the host in the same synchronisation, and returned as int32 and float32.
    best : tensor [1 + n], optional
        The argmax of each row, if already computed.

    Returns
    -------
    Verdict, list of arrays
    """
    if session.sampling.greedy:
        own, *brought = bring(likeliest_tokens(scores) if best is None else best, *more)
        return judge_greedy(draft, own), brought
    u, last = session.uniforms(ACCEPT, len(draft)), float(session.uniforms(FINAL, 1)[0])
    return judge_sampled(draft, scores, session.sampling, u, last, *more)


def bring(*tensors: Tensor) -> list[np.ndarray]:
    """Copy tensors to the host in one synchronisation; integers as int32, others as float32."""
    kinds = [torch.float32 if t.is_floating_point() else torch.int32 for t in tensors]
    if tensors[0].device.type == "cpu":
        return [t.to(kind).numpy() for t, kind in zip(tensors, kinds)]
    bits = torch.cat([t.to(kind).reshape(-1).view(torch.int32) for t, kind in zip(tensors, kinds)]).cpu()
    parts = bits.split([t.numel() for t in tensors])
    return [part.view(kind).view(t.shape).numpy() for part, t, kind in zip(parts, tensors, kinds)]


def judge_greedy(draft: Draft, best: np.ndarray) -> Verdict:
    """Algorithm 3: the longest path of the target's own tokens, then its next one.

    `best` [1 + n] holds what the target writes after the root and after each node.
    """
    tokens, parents = np.asarray(draft.tokens), draft.parents
    candidate = np.ones(len(draft), bool) if draft.judge is None else np.asarray(draft.judge, bool)
    last, alive = longest_path(draft, candidate & (tokens == best[parents + 1]))
    path = draft.path(last)
    kept = np.zeros(len(draft), bool)
    kept[path] = True
    read = np.append(kept, True)[parents] & candidate  # entry -1 is the root's
    # Another sibling with the same right token is neither accepted nor rejected.
    return _verdict(draft, path, kept, read & ~alive, int(best[last + 1]), "correction")


def judge_sampled(
    draft: Draft, scores: Tensor, sampling: Sampling, u: np.ndarray, last: float, *more: Tensor
) -> tuple[Verdict, list[np.ndarray]]:
    """Algorithm 4: siblings are tried in order; each rejection removes its token from p.

    A sibling x is accepted with probability p(x) / q, where q is 1 less the probability of those rejected
    before it. It is written as u q < p, so that the record repeats the decision. All nodes are decided at
    once, and only then is the path walked.
    """
    n, device = len(draft), scores.device
    p = sampling.probabilities(scores)
    if not n:
        token, p_token = _draw_token(p[0], last)
        t, p_t, *brought = bring(token, p_token, *more)
        return Verdict([], [], int(t), "plain", [], np.empty(0), last, token_p=float(p_t)), brought
    tokens, parents = np.asarray(draft.tokens), draft.parents
    candidate = np.ones(n, bool) if draft.judge is None else np.asarray(draft.judge, bool)
    order = np.arange(n)
    before = (parents[:, None] == parents) & (order < order[:, None]) & candidate  # [node, earlier sibling]
    again = (before & (tokens[:, None] == tokens)).any(1)  # its token was tried already
    tried = candidate & ~again
    row, word, family, fair = _send(device, parents + 1, tokens, before & tried, tried)
    p_node = p[row, word]
    # A masked sum, not a product with the mask: the same order of additions on every machine.
    left = (1 - torch.where(family, p_node, 0).sum(1)).clamp(min=torch.finfo(p.dtype).tiny)
    chance = send(u, device, exact_type(device))
    accept = fair & accepts(p_node, left, chance)
    steps, chosen = _walk(draft, accept, row)
    end = steps[-1]
    p_end = p.index_select(0, end.view(1))[0]
    rest = p_end.clone()  # lines 27 and 35: without the children's tokens, all rejected
    taken = torch.where(fair & (row == end), 0.0, torch.inf).to(rest.dtype)
    rest.scatter_reduce_(0, word, taken, "amin")
    rest = torch.where(rest.sum() > 0, rest, p_end)  # if rounding leaves nothing
    token, _ = _draw_token(rest, last)
    walk, first, t, p_t, *brought = bring(steps, chosen, token, p_end.take(token), *more)
    verdict = _sampled_verdict(draft, walk, first, candidate, int(t))
    verdict.u = np.where(again, np.nan, _used_uniforms(verdict, u))
    verdict.token_u, verdict.token_p = last, float(p_t)
    verdict.p, verdict.q = p_node, left
    return verdict, brought


def judge_drawn(draft: Draft, scores: Tensor, sampling: Sampling, u: np.ndarray, last: float) -> Verdict:
    """Judge a tree whose nodes were drawn from ``q``, siblings without replacement.

    Leviathan's rule, sibling by sibling (Jeon et al. 2024, "Recursive Speculative Decoding"; EAGLE's own
    verification of trees). The first is accepted with probability p(x) / q(x). Its rejection leaves
    p' = max(0, p − q), normalised, and the next, drawn from q without the first, is tried against p'. All
    nodes of one rank are decided at once.

    Parameters
    ----------
    draft : Draft
        At least one node. Row i of ``q`` is the distribution of node i, without its elder siblings.
    scores : tensor [1 + n, vocabulary]
    u : array [n]
        Uniforms for the accepts.
    last : float
        Uniform for the token after the accepted ones.
    """
    n, device = len(draft), scores.device
    p = sampling.probabilities(scores)
    parents, order = draft.parents, np.arange(n)
    rank = ((parents[:, None] == parents) & (order < order[:, None])).sum(1)
    by_rank = np.argsort(rank, kind="stable")
    row, word, turn = _send(device, parents + 1, np.asarray(draft.tokens), by_rank)
    q = send(draft.q, device, p.dtype)
    q_node = q.gather(1, word[:, None])[:, 0]
    left, rest = torch.empty_like(q_node), p.clone()  # `rest`: p of each row, less its rejected children
    for nodes in turn.split(np.bincount(rank).tolist()):
        above = row[nodes]
        before = rest.index_select(0, above)
        left[nodes] = before.gather(1, word[nodes, None])[:, 0]
        after = (before - q[nodes]).clamp_(min=0)
        total = after.sum(1, keepdim=True)
        # If nothing is left, p equalled q, and the node was accepted.
        rest[above] = torch.where(total > 0, after / total, before)
    chance = send(u, device, exact_type(device))
    accept = accepts(left, q_node, chance)
    steps, chosen = _walk(draft, accept, row)
    end = steps[-1:]
    token, _ = _draw_token(rest.index_select(0, end)[0], last)
    walk, first, t, p_t, own = bring(
        steps, chosen, token, p.index_select(0, end)[0].take(token), p[row, word]
    )
    verdict = _sampled_verdict(draft, walk, first, np.ones(n, bool), int(t))
    verdict.u = _used_uniforms(verdict, u)
    verdict.token_u, verdict.token_p = last, float(p_t)
    verdict.p, verdict.q, verdict.own_p = left, q_node, own
    return verdict


def _walk(draft: Draft, accept: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Walk down the first accepted children: the rows visited, and that child of each row (n: none)."""
    n, device = len(draft), accept.device
    index = torch.arange(n, device=device)
    chosen = torch.full((n + 1,), n, device=device)
    chosen.scatter_reduce_(0, row, torch.where(accept, index, n), "amin")
    steps = [torch.zeros((), dtype=torch.long, device=device)]
    for _ in range(draft.depth):
        child = chosen.take(steps[-1])  # indexing with brackets would synchronise with the host
        steps.append(torch.where(child < n, child + 1, steps[-1]))
    return torch.stack(steps), chosen


def _sampled_verdict(
    draft: Draft, walk: np.ndarray, first: np.ndarray, candidate: np.ndarray, token: int
) -> Verdict:
    """The verdict for the rows visited and the first accepted child of each row."""
    path = draft.path(int(walk[-1]) - 1)
    kept = np.zeros(len(draft), bool)
    kept[path] = True
    read = np.append(kept, True)[draft.parents] & candidate
    judged = read & (np.arange(len(draft)) <= first[draft.parents + 1])  # none after an accepted sibling
    return _verdict(draft, path, kept, judged & ~kept, token, "resampled")


def _used_uniforms(verdict: Verdict, u: np.ndarray) -> np.ndarray:
    """The uniforms of the nodes that were judged; NaN elsewhere."""
    return np.where(np.array(verdict.status) == "unjudged", np.nan, u)


def _draw_token(p: Tensor, u: float) -> tuple[Tensor, Tensor]:
    token = draw(p, u)
    return token, p.take(token)


def _send(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    return [send(np.ascontiguousarray(array), device) for array in arrays]


def _verdict(
    draft: Draft, path: list[int], kept: np.ndarray, rejected: np.ndarray, token: int, instead: str
) -> Verdict:
    """The verdict for a path; `instead` is the origin of a token that replaces a rejected one."""
    status = np.where(kept, "accepted", np.where(rejected, "rejected", "unjudged")).tolist()
    last = path[-1] if path else ROOT
    refused = bool((rejected & (draft.parents == last)).any())
    tried = len(draft) if draft.judge is None else np.any(draft.judge)
    origin = next_origin(int(tried), refused, instead)
    tokens: Any = np.asarray(draft.tokens).tolist()
    return Verdict(path, tokens, token, origin, status)
