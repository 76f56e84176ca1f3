"""Texts that go round in circles, as greedy ones of small models do."""

from __future__ import annotations

from collections.abc import Sequence

LOOP, TIMES = 20, 3  # so many tokens in a row that occur so many times are a loop


def cut_loop(tokens: Sequence[int]) -> int:
    """How much of a text is no loop: all, or as far as the first of three equal runs of 20 tokens goes."""
    places: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) - LOOP + 1):
        each = places.setdefault(tuple(tokens[start : start + LOOP]), [])
        each.append(start)
        if len(each) == TIMES:
            return each[0] + LOOP
    return len(tokens)
