"""Damage a sound file's values, text or bytes; the same seed always gives the same damage."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

EXTREMES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 5, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.5, 1e308, 1e-320, float("nan"),
    float("inf"), "", " ", "0.7", "x" * 1000, "\x1b[31mred\x1b[0m", "\u202eabc", "=1+1", "a\nb", "\ud800",
    "../../etc/passwd", "<img src=x>", [], [None], [[1]], {}, {"a": 1}, {"": []}, "[/x]",
)  # fmt: skip
DEEP = 100_000


def nested(depth: int) -> Any:
    """Return lists nested `depth` deep."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def places(value: Any, limit: int = 5_000) -> list[tuple[Any, Any]]:
    """List every (container, key) of a JSON value, up to `limit`."""
    waiting, result = [value], []
    while waiting and len(result) < limit:
        inner = waiting.pop(0)
        keys = (
            list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        )
        for key in keys:
            result.append((inner, key))
            if isinstance(inner[key], dict | list):
                waiting.append(inner[key])
    return result


def swapped(value: Any, random: Random) -> Any:
    """Return a similar value, often of another type."""
    choices = [[value], {"value": value}, str(value), None]
    if isinstance(value, int | float) and value == value and abs(value) < 1e300:
        choices += [-value, value + 0.5, value * 1000, not value]
    if isinstance(value, list):
        choices += [value + value, value[:-1], {str(i): each for i, each in enumerate(value)}, value[::-1]]
    if isinstance(value, dict):
        choices += [list(value), list(value.values()), {**value, "extra": 1}]
    if isinstance(value, str):
        choices += [value + "x", value[:-1], value.upper(), [*value]]
    return random.choice(choices)


def damaged(value: Any, random: Random) -> Any:
    """Return a copy with one to three faults."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if random.random() < 0.02:
            return random.choice(EXTREMES)
        everywhere = places(value)
        if not everywhere:
            return value
        inner, key = random.choice(everywhere)
        action = random.random()
        if action < 0.2:
            del inner[key]
        elif action < 0.6:
            inner[key] = copy.deepcopy(random.choice(EXTREMES))
        elif action < 0.9:
            inner[key] = swapped(inner[key], random)
        elif action < 0.95:
            inner[key] = nested(random.choice((3, 50, 400)))
        else:
            other, there = random.choice(everywhere)
            if there in (other if isinstance(other, dict) else range(len(other))):
                inner[key] = copy.deepcopy(other[there])
    return value


def spoiled(content: bytes, random: Random) -> bytes:
    """Return bytes with one fault: truncated, with bits flipped, with a part cut out, or with bytes added."""
    if not content:
        return b"\x00"
    action, at = random.random(), random.randrange(len(content))
    if action < 0.3:
        return content[:at]
    if action < 0.6:
        changed = bytearray(content)
        for _ in range(random.choice((1, 4, 16))):
            changed[random.randrange(len(changed))] ^= random.randrange(1, 256)
        return bytes(changed)
    if action < 0.7:
        end = random.randrange(at, len(content)) + 1
        return content[:at] + content[end:]
    put = random.choice(
        (b"[" * DEEP, b'{"a":' * DEEP, b"\xff\xfe", b"\x00", b"1" * 5000, b"\\ud800", b"NaN", b"\n")
    )
    return content[:at] + put + content[at:]


def text_of(value: Any, random: Random) -> bytes:
    """Return a value as JSON, mostly damaged, and now and then with damaged bytes as well or instead."""
    action = random.random()
    try:
        whole = value if action < 0.2 else damaged(value, random)
        content = json.dumps(whole).encode("utf8", "surrogatepass")
    except (RecursionError, ValueError):
        content = b"[" * DEEP
    return spoiled(content, random) if action < 0.25 else content
