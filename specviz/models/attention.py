"""Attention for a few queries over a long cache, and its registration with transformers.

transformers' own SDPA path copies the cache once per query-head group and layer. Here the heads of a group
become additional query rows of their shared key-value head, so the cache is read in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from specviz.errors import ModelError

NAME = "specviz"  # transformers creates no mask for a name without a registered mask function
UNSERVED = {"s_aux": "attention sinks", "sinks": "attention sinks"}
MOST_SCORES = 1 << 24  # scores of a soft-capped pass in memory at once


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | bool | None,
    scale: float | None = None, cap: float | None = None, window: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Grouped-query attention that does not copy the cache.

    Parameters
    ----------
    query : tensor [rows, heads, queries, dim]
    key, value : tensor [rows, key-value heads, slots, dim]
        May be views of a longer storage.
    mask : tensor [rows or 1, 1, group * queries, slots], None or False
        Added to the scores; row ``g * queries + t`` belongs to head g of a group and query t.
        None: a single query sees everything; several are causal (a prefill from slot 0).
        False: every query sees everything.
    cap : float, optional
        Scores become ``cap * tanh(score / cap)``.
    window : int, optional
        Without a mask, a query sees only the last `window` positions, including its own.

    Returns
    -------
    tensor [rows, heads, queries, dim]
    """
    rows, heads, queries, dim = query.shape
    groups = key.shape[1]
    if cap is not None or (window is not None and mask is None):
        return _capped(query, key, value, mask, dim**-0.5 if scale is None else scale, cap, window)
    if mask is None and queries > 1:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=heads != groups
        )
    if isinstance(mask, bool):
        mask = None
    if heads == groups:
        return F.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    folded = query.reshape(rows, groups, heads // groups * queries, dim)
    out = F.scaled_dot_product_attention(folded, key, value, mask, scale=scale)
    return out.reshape(rows, heads, queries, out.shape[-1])


def _capped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | bool | None,
    scale: float, cap: float | None, window: int | None,
) -> torch.Tensor:  # fmt: skip
    """`attend` with soft-capped scores or a window, which no fused kernel computes on every device."""
    (rows, heads, queries, dim), groups, slots = query.shape, key.shape[1], key.shape[2]
    folded = query.view(rows, groups, heads // groups, queries, dim)
    parts, step = [], max(1, MOST_SCORES // (rows * heads * slots))
    for first in range(0, queries, step):
        some = folded[:, :, :, first : first + step]
        scores = torch.matmul(some.flatten(2, 3), key.transpose(2, 3))
        scores = scores.mul_(scale) if cap is None else scores.mul_(scale / cap).tanh_().mul_(cap)
        scores = scores.view(*some.shape[:-1], slots)
        if isinstance(mask, torch.Tensor):
            scores += mask.view(len(mask), 1, -1, queries, slots)[:, :, :, first : first + step]
        elif mask is None:
            place = slots - queries + first + torch.arange(some.shape[3], device=key.device)[:, None]
            slot = torch.arange(slots, device=key.device)
            unseen = slot > place if window is None else (slot > place) | (slot <= place - window)
            scores.masked_fill_(unseen, -torch.inf)
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(-1, dtype=wide).to(value.dtype)
        parts.append(torch.matmul(weights.flatten(2, 3), value).view(*some.shape))
    return torch.cat(parts, 3).view(rows, heads, queries, dim)


def _interface(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0,
    softcap: float | None = None, **rest: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    for name, meaning in UNSERVED.items():
        if rest.get(name) is not None:
            raise ModelError(f"{type(module).__name__} uses {meaning}, which this backend does not support")
    return attend(query, key, value, attention_mask, scaling, softcap).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _interface)
