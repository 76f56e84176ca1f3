"""``python -m smollm2.sums OUT``: word problems with known answers, for measuring lossy methods.

No drafter is trained on them: their wordings differ from those of `topics.SUMS`. The output is deterministic.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

Numbers = dict[str, int]
EACH = 5  # sums per wording
NAMES = ["Ines", "Jakub", "Mira", "Oscar", "Petra", "Samir", "Tove", "Yusuf"]
THINGS = ["stamps", "marbles", "plates", "tickets", "shells", "buttons", "candles", "postcards"]
# A wording, the ranges of its numbers, and the result.
WORDINGS: list[tuple[str, dict[str, range], Callable[[Numbers], int]]] = [
    ("{name} had {a} {things}. Today {b} more came by post. How many {things} are there now?",
     {"a": range(3, 30), "b": range(2, 20)}, lambda n: n["a"] + n["b"]),
    ("There were {a} {things} on the table, and {name} took {b} away. How many are left on the table?",
     {"a": range(20, 50), "b": range(2, 18)}, lambda n: n["a"] - n["b"]),
    ("{name} puts {b} {things} into each of {a} bags. How many {things} is that altogether?",
     {"a": range(2, 10), "b": range(2, 12)}, lambda n: n["a"] * n["b"]),
    ("{name} pays {a} coins for a cup and {b} coins for a plate. What do the two cost together?",
     {"a": range(4, 40), "b": range(4, 40)}, lambda n: n["a"] + n["b"]),
    ("What is {a} plus {b}?", {"a": range(11, 70), "b": range(11, 70)}, lambda n: n["a"] + n["b"]),
    ("What is {a} minus {b}?", {"a": range(50, 100), "b": range(5, 45)}, lambda n: n["a"] - n["b"]),
    ("What is {a} times {b}?", {"a": range(3, 13), "b": range(3, 13)}, lambda n: n["a"] * n["b"]),
    ("A class has {a} girls and {b} boys. {c} of the children are away. How many are in class?",
     {"a": range(8, 16), "b": range(8, 16), "c": range(2, 7)}, lambda n: n["a"] + n["b"] - n["c"]),
    ("{name} cycles {a} kilometres every day. How many kilometres are that in {b} days?",
     {"a": range(3, 20), "b": range(2, 8)}, lambda n: n["a"] * n["b"]),
    ("A bench seats {b} people. How many people can sit on {a} such benches and {c} chairs?",
     {"a": range(2, 9), "b": range(3, 6), "c": range(2, 10)}, lambda n: n["a"] * n["b"] + n["c"]),
    ("{name} is {a} years old. How old will {name} be in {b} years?",
     {"a": range(6, 40), "b": range(3, 25)}, lambda n: n["a"] + n["b"]),
    ("{name} cuts a rope of {a} metres into two pieces. One is {b} metres long. How long is the other one?",
     {"a": range(10, 40), "b": range(2, 9)}, lambda n: n["a"] - n["b"]),
]  # fmt: skip


def sums() -> list[dict[str, str | list[str]]]:
    """Fill every wording with random numbers, in `EACH` rounds over all wordings."""
    draw, made = random.Random("sums"), []
    for _ in range(EACH):
        for wording, ranges, right in WORDINGS:
            numbers = {name: draw.choice(values) for name, values in ranges.items()}
            text = wording.format(name=draw.choice(NAMES), things=draw.choice(THINGS), **numbers)
            made.append(
                {"id": f"sum-{len(made)}", "kind": "arithmetic", "language": "en", "prompt": text,
                 "reference": [str(right(numbers))]}
            )  # fmt: skip
    return made


def main() -> None:
    """Write the sums to OUT."""
    lines = (json.dumps(each, ensure_ascii=False) + "\n" for each in sums())
    Path(sys.argv[1]).write_text("".join(lines), encoding="utf8")


if __name__ == "__main__":
    main()
