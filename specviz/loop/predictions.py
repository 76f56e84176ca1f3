"""Reduce rows of logits to a few numbers, many cycles at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from ..methods import signals
from ..methods.signals import top
from ..models.devices import send

TOP = 5  # candidates in each top list
HELD_LOGITS = 1 << 22  # approximate maximum of logits that are held
CHUNK = 1 << 19  # logits reduced at once on a CPU: more would not fit into its cache


@dataclass
class Reduced:
    """Rows of logits, reduced to a few numbers."""

    entropy: np.ndarray  # [rows], in nats
    top_token: np.ndarray  # [rows, k], best first
    top_p: np.ndarray
    p: np.ndarray  # [pairs], of the pairs given to `reduce`
    rank: np.ndarray
    lead: np.ndarray  # [rows], the best logit minus the second
    variance: np.ndarray  # [rows], of the logits; NaN unless `spread`

    def at(self, rows: np.ndarray) -> Reduced:
        """Select rows [n], repeats allowed; the pairs stay as they are."""
        parts = ("entropy", "top_token", "top_p", "lead", "variance")
        return replace(self, **{name: getattr(self, name)[rows] for name in parts})


class Predictions:
    """Logits of many cycles, reduced in one go: top-k, entropy, and p and rank of chosen tokens.

    With `spread`, also the variance of the logits.
    """

    def __init__(self, top: int = TOP, spread: bool = False) -> None:
        self.top, self.spread = top, spread
        self.chunks: list[list[Tensor]] = []
        self.rows: list[int] = []  # rows in each chunk
        self.limit = 0  # maximum number of rows in a chunk

    def add(self, logits: Tensor | list[Tensor]) -> None:
        """Queue rows [n, vocabulary], or a list of rows."""
        if not self.chunks:
            row = logits[0]
            self.limit = CHUNK // len(row) if row.device.type == "cpu" else HELD_LOGITS // len(row)
        if not self.chunks or self.rows[-1] + len(logits) > self.limit:
            self.chunks.append([])
            self.rows.append(0)
        if isinstance(logits, list):
            self.chunks[-1] += logits
        else:
            self.chunks[-1].append(logits)
        self.rows[-1] += len(logits)

    @torch.inference_mode()
    def reduce(self, rows: Sequence[int] | np.ndarray, tokens: Sequence[int] | np.ndarray) -> Reduced | None:
        """Reduce the queued rows on the device and fetch the results; None if nothing was queued.

        Parameters
        ----------
        rows, tokens : arrays of int [pairs]
            Pairs of a queued row and a token, for which `Reduced.p` and `rank` are computed.
        """
        if not self.chunks:
            return None
        rows, tokens = np.asarray(rows, np.int64), np.asarray(tokens, np.int64)
        order = np.argsort(rows, kind="stable")
        ends = np.cumsum(self.rows)
        pairs = np.split(order, np.searchsorted(rows[order], ends)[:-1])
        some = self.chunks[0][0]
        vocabulary = some.shape[-1]
        # Every chunk uses the same memory, which stays in the cache.
        room = torch.empty(2, max(self.rows) * vocabulary, dtype=some.dtype, device=some.device)
        parts = []
        for blocks, count, end, pair in zip(self.chunks, self.rows, ends.tolist(), pairs):
            logits, p = room[:, : count * vocabulary]
            torch.cat([block.reshape(-1) for block in blocks], out=logits)
            shape, at = (count, vocabulary), rows[pair] - (end - count)
            parts.append(reduced(logits.view(shape), at, tokens[pair], p.view(shape), self.top, self.spread))
        self.chunks = []
        names = [field.name for field in fields(Reduced)]
        whole = Reduced(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
        back = np.argsort(order)
        return replace(whole, p=whole.p[back], rank=whole.rank[back])


def reduced(
    logits: Tensor, rows: np.ndarray, tokens: np.ndarray, room: Tensor, k: int = TOP, spread: bool = False
) -> Reduced:
    """Reduce `logits` [n, vocabulary], also at the pairs (rows[i], tokens[i]); overwrites `room`."""
    at, words = send(rows, logits.device), send(tokens, logits.device)
    head = None
    if spread and bool((logits[0] == -torch.inf).any()):  # a drafter's head may lack most of the tokens
        ids = (logits.amax(0) != -torch.inf).index_fill_(0, words, True).nonzero()[:, 0]
        some = logits.index_select(1, ids)
        if len(ids) >= k and bool(some.amin() > -torch.inf):  # all rows have the same head
            head, logits, words = ids, some, torch.searchsorted(ids, words)
            room = room.flatten()[: some.numel()].view_as(some)
    best, places = top(logits, k)
    tied = best[:, 0] == best[:, 1]
    if bool(tied.any()):  # among equal logits, the first token comes first, as with argmax
        equal = tied.nonzero()[:, 0]
        first = logits[equal].argmax(-1)
        same = (places[equal] == first[:, None]).long()
        same = torch.where(same.any(1), same.argmax(1), places.shape[1] - 1)
        places[equal, same], places[equal, 0] = places[equal, 0], first
    p = torch.softmax(logits, -1, out=room)
    top_p = p.gather(1, places)
    # H = log sum exp(x) - sum p x, and log sum exp(x) = max x - log max p. A p of 0 may meet -inf.
    bound = best[:, 0] - top_p[:, 0].log()
    entropy = (bound - torch.linalg.vecdot(p, logits)).clamp_(min=0).cpu().numpy()
    if np.isnan(entropy).any():
        finite = logits.clamp(min=torch.finfo(logits.dtype).min)
        entropy = (bound - torch.linalg.vecdot(p, finite)).clamp_(min=0).cpu().numpy()
    own = logits[at, words]
    ranks = (best[at] > own[:, None]).sum(1).cpu().numpy()
    if len(beyond := np.flatnonzero(ranks == best.shape[1])):  # outside the top list: count all logits
        some = torch.from_numpy(beyond).to(logits.device)
        ranks[beyond] = (logits[at[some]] > own[some, None]).sum(1).cpu().numpy()
    lead = (best[:, 0] - best[:, 1]).cpu().numpy() if best.shape[1] > 1 else np.full(len(ranks), np.nan)
    own_p = p[at, words].cpu().numpy()
    variance = np.full(len(lead), np.nan, np.float32)
    if spread and bool((logits[0] == -torch.inf).any()):  # a head over a part of the vocabulary
        variance = signals.variance(logits).cpu().numpy()
    elif spread:  # like `signals.variance`, but in the memory of the probabilities, which are used up
        away = torch.sub(logits, logits.mean(-1, keepdim=True), out=room)
        variance = (torch.linalg.vecdot(away, away) / logits.shape[-1]).cpu().numpy()
    places = places if head is None else head[places]
    return Reduced(entropy, places.cpu().numpy(), top_p.cpu().numpy(), own_p, ranks, lead, variance)
