"""The rules of prompt lookup: which earlier place matches the text's end, and which tokens to copy."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from .parameters import Parameter, Settings

PROMPT_LOOKUP = (
    Parameter("ngram_max", 3, 1, 16, "tokens", "Longest run of last tokens to look up."),
    Parameter("ngram_min", 1, 1, 16, "tokens", "Shortest run of last tokens to look up."),
    Parameter("draft_length", 10, 1, 64, "tokens", "Maximum number of tokens copied after the match."),
)


def problem(values: Settings) -> str:
    """Why the parameter values contradict each other; empty if they do not."""
    if values["ngram_min"] > values["ngram_max"]:
        return f"ngram_min must be at most ngram_max, got {values['ngram_min']} and {values['ngram_max']}"
    return ""


def lookup(text: np.ndarray, values: Settings, left: int, eos: Collection[int]) -> tuple[np.ndarray, str]:
    """The draft after a text, and the reason why it ends.

    Parameters
    ----------
    text : array of int [length]
    values : mapping
        Prompt lookup's parameters.
    left : int
        Tokens that may still be emitted. The target adds one to every draft, so the draft has at least
        one less.
    eos : collection of int
        The draft ends with the first of these: nothing after it could be emitted.
    """
    most = min(values["draft_length"], left - 1)
    if most < 1:
        return text[:0], "room"
    tokens = continuation(text, values["ngram_max"], values["ngram_min"], most)
    if not len(tokens):
        return tokens, "none"
    ends = np.flatnonzero(np.isin(tokens, list(eos)))
    if len(ends):
        return tokens[: ends[0] + 1], "eos"
    return tokens, "text" if len(tokens) < most else "length" if most == values["draft_length"] else "room"


def continuation(text: np.ndarray, longest: int, shortest: int, count: int) -> np.ndarray:
    """The tokens after an earlier occurrence of the text's last n tokens, at most `count` of them.

    The longest n that occurs earlier wins; of several places, the leftmost. This is the rule of transformers'
    ``PromptLookupCandidateGenerator`` (Saxena 2023, "Prompt Lookup Decoding").

    Parameters
    ----------
    text : array of int, shape [length]
    longest, shortest : int
        Largest and smallest n.
    count : int
        Maximum number of tokens.

    Returns
    -------
    array of int, shape [at most count]
        Empty if no n-gram occurs earlier. It ends with the text at the latest.
    """
    last = len(text) - 1
    # A match may end at any earlier place with the last token. Each further token leaves fewer places.
    ends = np.flatnonzero(text[:last] == text[last]) if last > 0 else np.empty(0, np.int64)
    match = None
    for n in range(1, longest + 1):
        if n > 1:
            ends = ends[ends >= n - 1]
            ends = ends[text[ends - n + 1] == text[last - n + 1]]
        if not len(ends):
            break
        if n >= shortest:
            match = int(ends[0])
    return text[:0] if match is None else text[match + 1 : match + 1 + count]
