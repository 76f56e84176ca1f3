"""Looking up how a text went on the last time: the n-gram match of prompt lookup."""

from __future__ import annotations

import numpy as np


def continuation(text: np.ndarray, longest: int, shortest: int, count: int) -> np.ndarray:
    """What followed the text's last n tokens where they stood before, at most `count` tokens.

    The longest n that occurs earlier wins; of several places the first one from the left. That is what
    transformers' ``PromptLookupCandidateGenerator`` does (Saxena 2023, "Prompt Lookup Decoding").

    Parameters
    ----------
    text : array of int, shape [length]
    longest, shortest : int
        Largest and smallest n.
    count : int
        Most tokens wanted.

    Returns
    -------
    array of int, shape [at most count]
        Empty if no n-gram occurs again. It ends where the text ends.
    """
    last = len(text) - 1
    # Where a match may end: an earlier place with the last token. Each further token leaves fewer of them.
    ends = np.flatnonzero(text[:last] == text[last]) if last > 0 else np.empty(0, np.int64)
    found = None
    for n in range(1, longest + 1):
        if n > 1:
            ends = ends[ends >= n - 1]
            ends = ends[text[ends - n + 1] == text[last - n + 1]]
        if not len(ends):
            break
        if n >= shortest:
            found = int(ends[0])
    return text[:0] if found is None else text[found + 1 : found + 1 + count]
