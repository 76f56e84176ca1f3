"""Attention for a few queries over a long cache, and its registration with transformers.

transformers' own SDPA path copies the cache once per query-head group and layer. Here the group's
heads become further query rows of their shared key-value head instead, so the cache is read as it lies.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from specviz.errors import ModelError

NAME = "specviz"  # transformers makes no mask of its own for a name that it has no mask function for
UNSERVED = {"softcap": "attention soft-capping", "s_aux": "attention sinks", "sinks": "attention sinks"}


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | bool | None,
    scale: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Grouped-query attention without copies of the cache.

    Parameters
    ----------
    query : tensor [rows, heads, queries, dim]
    key, value : tensor [rows, key-value heads, slots, dim]
        May be views of a longer storage.
    mask : tensor [rows or 1, 1, group * queries, slots], None or False
        Added to the scores; row ``g * queries + t`` belongs to head g of a group and query t.
        None: a single query sees everything, several see what stands before them (a prefill from slot 0).
        False: every query sees everything.

    Returns
    -------
    tensor [rows, heads, queries, dim]
    """
    rows, heads, queries, dim = query.shape
    groups = key.shape[1]
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


def _interface(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attention_mask: torch.Tensor | None, scaling: float | None = None, dropout: float = 0.0, **rest: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    for name, meaning in UNSERVED.items():
        if rest.get(name) is not None:
            raise ModelError(f"{type(module).__name__} uses {meaning}, which this backend does not serve")
    return attend(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _interface)
