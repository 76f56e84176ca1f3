"""Token Recycling's default tree: ``python -m town.template [FILE]`` measures rates and grows it.

Measured per level: how often the successor of each rank in the matrix is the target's next token, given that
the tree held the right tokens so far. The prompts are those reserved for practice: none of them is in a suite
or a training text.
"""

from __future__ import annotations

import heapq
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specviz.loop import generate
from specviz.measure.timing import threads
from specviz.methods.template import MOST, Path_, bundled
from specviz.methods.token_recycling import TokenRecycling
from specviz.models import load
from specviz.suites.frozen import frozen

K = 8
DEPTH = 16
PROMPTS = 210
LENGTH = 128
ROUNDS = 2  # the first tree is a guess, the second grows from the rates measured with it
ENOUGH = 50  # levels reached less often count as never reached


def grow(rates: Sequence[Sequence[float]], n: int) -> list[Path_]:
    """The tree of at most `n` nodes with the highest expected number of accepted ones, best node first.

    A node's probability of being accepted is the product of the rates on its path, and the expectation is the
    sum of these over the tree. No node's product exceeds its parent's, so the `n` largest form a tree.
    Repeatedly taking the best child of the nodes taken so far yields it, and its first g nodes are the best
    tree of g.

    Parameters
    ----------
    rates : list of lists
        ``rates[level][rank]``: how often the successor of that rank is right if all nodes above it are.
        Missing rates count as 0, and no node of rate 0 is taken.
    n : int

    Returns
    -------
    list of rank paths
    """
    paths: list[Path_] = []
    # Break ties by depth, then probability.
    front: list[tuple[float, int, Path_]] = [(-1.0, 0, ())]
    while front and len(paths) <= n:
        value, depth, path = heapq.heappop(front)
        paths.append(path)
        for rank, rate in enumerate(rates[depth] if depth < len(rates) else ()):
            if rate > 0:
                heapq.heappush(front, (value * rate, depth + 1, (*path, rank)))
    return paths[1:]


def expected(rates: Sequence[Sequence[float]], paths: Iterable[Path_]) -> float:
    """Mean number of a template's nodes accepted per cycle, if rates multiply."""
    return float(sum(np.prod([rates[level][rank] for level, rank in enumerate(path)]) for path in paths))


class Probe(TokenRecycling):
    """Token Recycling that counts which rank was right, whether or not its node was in the tree."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.right = np.zeros((DEPTH, self.candidates), np.int64)
        self.reached = np.zeros(DEPTH, np.int64)

    def learn(self, draft: Any, result: Any, verdict: Any) -> None:
        """Count the next token's rank at the root and at each accepted node, before the matrix changes."""
        words = np.append(self.root, draft.tokens[verdict.path])[:DEPTH]
        following = np.append(draft.tokens[verdict.path], verdict.token)[:DEPTH]
        self.right[: len(words)] += self.store.tokens[words] == following[:, None]
        self.reached[: len(words)] += 1
        super().learn(draft, result, verdict)


def measure(model: Any, prompts: list[Any], paths: list[Path_], length: int = LENGTH) -> list[list[float]]:
    """Acceptance rates with a tree, ``rates[level][rank]``, for the levels that were reached often enough.

    Parameters
    ----------
    model : Model
    prompts : list
        As `specviz.generate` takes them; the matrix is kept from one prompt to the next.
    paths : list of rank paths
        The tree to run: the deeper and wider it is, the more precise the low rates are.
    length : int
        Most tokens of each text.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "paths.json"
        file.write_text(json.dumps(paths), encoding="utf8")
        probe = Probe(template=str(file), draft_size=MOST, candidates=K)
    generate(model, prompts, probe, max_new_tokens=length, record=None)
    enough = int(np.argmax(np.append(probe.reached < ENOUGH, True)))
    return (probe.right[:enough] / probe.reached[:enough, None]).round(4).tolist()


def derive(model: Any, prompts: list[Any], length: int = LENGTH) -> dict[str, Any]:
    """The template file's content: the measured rates, and the tree of `MOST` nodes, best first."""
    rates = [[0.5 ** (rank + 1) for rank in range(K)]] * DEPTH
    for _ in range(ROUNDS):
        rates = measure(model, prompts, grow(rates, MOST), length)
    return {
        "about": "Token Recycling's tree as rank paths, best node first: the first g are the best tree of g. "
        "Written by python -m town.template.",
        "model": model.name,
        "prompts": f"{len(prompts)} for practice, up to {length} tokens each, greedy",
        "rates": rates,
        "paths": grow(rates, MOST),
    }


def main() -> int:
    """Write the file and print a summary of it."""
    path = Path(sys.argv[1]) if sys.argv[1:] else bundled()
    with threads(1):
        found = derive(load("town"), [entry["messages"] for entry in frozen("practice")[:PROMPTS]])
    lines = ["{"]
    for name, value in found.items():
        if isinstance(value, str):
            text = json.dumps(value)
        else:  # one row of rates per line; all paths on one line
            rows = [json.dumps(row) for row in value]
            text = "[\n  " + (",\n  " if name == "rates" else ", ").join(rows) + "\n ]"
        lines.append(f" {json.dumps(name)}: {text}" + ("," if name != "paths" else ""))
    path.write_text("\n".join([*lines, "}"]) + "\n", encoding="utf8")
    for n in (8, 24, 80, len(found["paths"])):
        tree = found["paths"][:n]
        levels = np.bincount([len(p) for p in tree])[1:].tolist()
        print(f"{n:3} nodes, levels {levels}: {expected(found['rates'], tree):.2f} accepted a cycle expected")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
