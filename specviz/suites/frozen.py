"""Prompts on which this package measures and audits itself, stored in ``data/suites/frozen``.

They were generated once; ``data/town`` in the repository regenerates them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from ..errors import ParameterError
from ..paths import folder
from .files import Prompt

Item = TypeVar("Item")


@cache
def frozen(name: str) -> tuple[Prompt, ...]:
    """All entries of a frozen file, in their order.

    Parameters
    ----------
    name : str
        ``audit``, ``practice``, ``pairs``, ``streams`` or ``canvases``.
    """
    path = folder("suites") / "frozen" / f"{name}.jsonl.gz"
    return tuple(map(json.loads, gzip.decompress(path.read_bytes()).decode("utf8").splitlines()))


def take(entries: Sequence[Item], n: int, what: str) -> list[Item]:
    """The first `n` entries.

    Raises
    ------
    ParameterError
        If there are fewer.
    """
    if n > len(entries):
        raise ParameterError(
            f"{n} {what} were requested, but {len(entries)} are bundled: ask for fewer, or name a suite or "
            f"a file"
        )
    return list(entries[:n])
