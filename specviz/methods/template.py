"""A static tree as rank paths: [0, 2] is the third likeliest successor of the likeliest one.

Token Recycling (Luo et al. 2025) fills such a template in each cycle. `python -m town.template` (in ``data``)
measures acceptance rates and writes the best tree for them, the bundled one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..draft import ROOT, depths
from ..errors import ParameterError
from ..paths import folder

Path_ = tuple[int, ...]
MOST = 512  # maximum number of nodes
# Files by name. The first lists the best node first, the second goes level by level.
BUNDLED = {"": "token_recycling.json", "authors": "token_recycling_authors.json"}
FORM = "it needs a list of rank paths such as [[0], [1], [0, 0]]"


def bundled(name: str = "") -> Path:
    """The file of the default template, or of another one that comes with the package (`BUNDLED`)."""
    return folder("templates") / BUNDLED[name]


@cache
def bundled_paths(name: str) -> tuple[Path_, ...]:
    """The rank paths of a template that comes with the package, read once."""
    return tuple(read(bundled(name), MOST))


def read(path: Path, candidates: int) -> list[Path_]:
    """Read the rank paths of a JSON file, parents first: a list, or an object with a list ``paths``.

    Raises
    ------
    ParameterError
        If the file cannot be read, its paths are not a tree, a rank is not below `candidates`, or there are
        too many nodes.
    """
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except OSError as error:
        raise ParameterError(f"template {path} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):
        raise ParameterError(f"template {path} is not JSON: {FORM}") from None
    return ordered(
        content.get("paths") if isinstance(content, dict) else content, f"template {path}", candidates
    )


def ordered(given: Any, name: str, candidates: int) -> list[Path_]:
    """Check rank paths and return them in the given order, except that parents precede their children.

    Raises
    ------
    ParameterError
        As in `read`; `name` is the subject of the message.
    """
    if not isinstance(given, list) or not given:
        raise ParameterError(f"{name}: {FORM}")
    if len(given) > MOST:
        raise ParameterError(f"{name} has {len(given):,} nodes, and at most {MOST} can be sent")
    paths: dict[Path_, None] = {}
    for path in given:
        if not isinstance(path, list) or not path or not all(type(rank) is int for rank in path):
            raise ParameterError(f"{name} holds {_short(path)}: {FORM}")
        if not 0 <= min(path) <= max(path) < candidates:
            raise ParameterError(
                f"{name} holds {_short(path)}: ranks go from 0 to {candidates - 1}, as many as there are "
                "candidates"
            )
        if tuple(path) in paths:
            raise ParameterError(f"{name} holds {_short(path)} twice")
        paths[tuple(path)] = None
    for path in paths:
        if len(path) > 1 and path[:-1] not in paths:
            raise ParameterError(
                f"{name} holds {_short(list(path))} without its parent {_short(list(path[:-1]))}"
            )
    return list(dict.fromkeys(path[: i + 1] for path in paths for i in range(len(path))))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


@dataclass(frozen=True)
class Level:
    """The nodes of a level: index of each one's token, of its parent's (0: the root's), and its rank."""

    at: np.ndarray
    above: np.ndarray
    rank: np.ndarray


class Template:
    """Rank paths as arrays.

    Attributes
    ----------
    parents : array of int, shape [n]
        As in `Draft`.
    levels : list of Level
        From the first one down.
    """

    def __init__(self, paths: Sequence[Path_]) -> None:
        number = {path: i for i, path in enumerate(paths)} | {(): ROOT}
        self.parents = np.array([number[path[:-1]] for path in paths], np.int64)
        rank, depth = np.array([path[-1] for path in paths], np.int64), depths(self.parents)
        nodes = [np.flatnonzero(depth == level) for level in range(1, int(depth.max(initial=0)) + 1)]
        self.levels = [Level(each + 1, self.parents[each] + 1, rank[each]) for each in nodes]

    def __len__(self) -> int:
        return len(self.parents)
