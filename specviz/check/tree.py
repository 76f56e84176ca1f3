"""Exercise: a tree's attention mask and depths from its parents."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from ..draft import ROOT, Draft
from .exercise import Case, Exercise, Misfit, Mistake, Returned, array, two


def answer(parents: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The mask, bool [n, n], and the depths, int [n]."""
    draft = Draft(parents, np.asarray(parents))
    return draft.mask, draft.depths


def of_mask(rule: Callable[[list[int], np.ndarray, np.ndarray], np.ndarray], says: str) -> Mistake:
    """A wrong mask: a function of (parents, mask, depth)."""

    def variant(parents: list[int]) -> tuple[np.ndarray, np.ndarray]:
        mask, depth = answer(parents)
        return rule(parents, mask.copy(), depth).astype(bool), depth

    return Mistake(variant, says)


def of_depth(rule: Callable[[np.ndarray, np.ndarray], np.ndarray], says: str) -> Mistake:
    """Wrong depths: a function of (parents, depth)."""

    def variant(parents: list[int]) -> tuple[np.ndarray, np.ndarray]:
        mask, depth = answer(parents)
        return mask, rule(np.asarray(parents), depth)

    return Mistake(variant, says)


def parent_only(parents: list[int], mask: np.ndarray, depth: np.ndarray) -> np.ndarray:
    seen = np.eye(len(parents), dtype=bool)
    for i, parent in enumerate(parents):
        if parent != ROOT:
            seen[i, parent] = True
    return seen


def wrapped(parents: list[int], mask: np.ndarray, depth: np.ndarray) -> np.ndarray:
    seen = np.eye(len(parents), dtype=bool)
    for i, parent in enumerate(parents):
        seen[i] |= seen[parent]  # -1 is the last row
    return seen


def siblings(parents: list[int]) -> np.ndarray:
    """Which nodes have the same parent, bool [n, n]."""
    p = np.asarray(parents)
    return p[:, None] == p


MISTAKES = (
    of_mask(lambda parents, mask, depth: np.tri(len(parents)),
        "a sibling leaks into the mask: each node sees every node before it, as in a chain. In a tree it "
        "sees only its ancestors and itself."),
    of_mask(lambda parents, mask, depth: mask | (siblings(parents) & np.tri(len(parents), dtype=bool)),
        "a sibling leaks into the mask. Two children of one parent are rival continuations: neither sees "
        "the other."),
    of_mask(lambda parents, mask, depth: mask | siblings(parents),
        "siblings leak into the mask, in both directions. Two children of one parent are rival "
        "continuations: neither sees the other."),
    of_mask(lambda parents, mask, depth: (depth[:, None] > depth) | np.eye(len(parents), dtype=bool),
        "nodes of other branches leak into the mask: each node sees all shallower ones. Only its own "
        "ancestors count."),
    of_mask(lambda parents, mask, depth: mask & ~np.eye(len(parents), dtype=bool),
        "the node itself is missing: the diagonal must be true. A token attends to its own key and value, "
        "too."),
    of_mask(parent_only,
        "only the parent and the node itself are seen. All ancestors must be: go from parent to parent up "
        "to the root."),
    of_mask(lambda parents, mask, depth: parent_only(parents, mask, depth) & ~np.eye(len(mask), dtype=bool),
        "only the parent is seen. The node itself and all its ancestors must be."),
    of_mask(lambda parents, mask, depth: mask.T,
        "the mask is transposed: it says who sees the column's node in its row. Row i is what node i sees, "
        "its ancestors, not its descendants."),
    of_mask(lambda parents, mask, depth: mask | mask.T,
        "descendants are seen, too. Row i is what node i sees: its ancestors and itself."),
    of_mask(wrapped,
        "-1 was used as an index. In Python that is the last one, so every node sees the last node. The "
        "root is not a node of the draft: handle -1 separately or stop the walk there."),
    of_mask(lambda parents, mask, depth: np.ones_like(mask),
        "every node sees every node. It should see only its ancestors and itself."),
    of_depth(lambda parents, depth: depth - 1,
        "wrong depth: it starts at 0. The root, the last committed token, has depth 0; the first level of "
        "the draft comes one position after it and has depth 1."),
    of_depth(lambda parents, depth: np.arange(1, len(parents) + 1),
        "wrong depth: the nodes are numbered through, as in a chain. Siblings have the same position in the "
        "text, so they have the same depth: one more than their parent's."),
    of_depth(lambda parents, depth: np.arange(len(parents)),
        "wrong depth: it is the node's number. Siblings have the same position in the text, so they have "
        "the same depth: one more than their parent's, and 1 on the first level."),
    of_depth(lambda parents, depth: parents + 2,
        "wrong depth: it counts from the parent's number. It is one more than the parent's depth."),
)  # fmt: skip


def parse(returned: Returned, parents: list[int]) -> tuple[np.ndarray, np.ndarray]:
    n = len(parents)
    if isinstance(returned, np.ndarray):
        raise Misfit("Return two things, mask and depth; it returned one array.")
    mask, depth = two(returned, "mask and depth")
    mask = array(mask, (n, n), "mask")
    if mask.dtype.kind == "f" and (mask < 0).any():
        raise Misfit(
            "mask must hold True where a node is seen and False elsewhere, not what is added to the scores."
        )
    if not np.isin(mask, (0, 1)).all():
        raise Misfit("mask must hold True or False (or 1 and 0).")
    depth = array(depth, (n,), "depth")
    if not np.isfinite(depth).all() or (depth != np.round(depth)).any():
        raise Misfit("depth must hold integers.")
    return mask.astype(bool), depth.astype(int)


def cases() -> list[Case]:
    """Every tree of at most five nodes, then larger random ones."""
    trees = []
    for n in range(1, 6):
        trees += [list(parents) for parents in product(*(range(-1, i) for i in range(n)))]
    rng = np.random.default_rng(3)
    for _ in range(60):
        trees.append([int(rng.integers(-1, i)) if i else -1 for i in range(int(rng.integers(8, 13)))])
    return [Case({"parents": parents}) for parents in trees]


EXERCISE = Exercise(
    name="tree_mask",
    answer=answer,
    parts=("mask", "depth"),
    parse=parse,
    cases=cases(),
    stages=("",),
    mistakes=MISTAKES,
    tried="every tree of at most 5 nodes, then larger ones",
    further="every node also sees the whole committed text. How large is the full mask with 1,000 committed"
    " tokens and a draft of 64 nodes, and which part of it is the same for each node?",
)
