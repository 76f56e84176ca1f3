"""Detects texts that repeat themselves, as greedy texts of small models do."""

from __future__ import annotations

from collections.abc import Sequence

LOOP, TIMES = 20, 3  # a loop is a run of LOOP tokens that occurs TIMES times


def cut_loop(tokens: Sequence[int]) -> int:
    """Length of a text before it loops: all of it, or up to the end of the first of three equal runs."""
    places: dict[tuple[int, ...], list[int]] = {}
    for start in range(len(tokens) - LOOP + 1):
        each = places.setdefault(tuple(tokens[start : start + LOOP]), [])
        each.append(start)
        if len(each) == TIMES:
            return each[0] + LOOP
    return len(tokens)
