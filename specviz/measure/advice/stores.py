"""Methods that learn while decoding: they must decode, because their memory depends on earlier drafts.

Token Recycling, UniSpec, Lookahead and SPECTRA also store the target's predictions at rejected tokens. No
reading of the finished text contains those, so each setting needs a run, with one target pass per cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from specviz.loop.cycle import decode
from specviz.models.protocols import Model

from .readings import Text
from .simulation import STORES, Candidate, Cycles

SIZE = 16  # tokens of a draft


def settings() -> list[Candidate]:
    """One setting for each store."""
    return [Candidate(name, "", (("draft_size", SIZE),), SIZE) for name in STORES]


Columns: TypeAlias = list[list[float]]  # of a text's cycles: where they start, sent, full, accepted


def decoded(
    model: Model, candidate: Candidate, texts: Sequence[Text], done: Callable[[], None]
) -> list[Columns]:
    """Decode the texts in order with one method, which keeps its memory; the cycles of each as plain data."""
    method, made = candidate.build(), list[Columns]()
    for number, text in enumerate(texts):
        rows = []
        for cycle in decode(model, text.ids, method, max_new_tokens=text.limit, prompt=number):
            if cycle.number and cycle.draft is not None and cycle.verdict is not None:
                judged = len(cycle.verdict.path)
                rows.append((cycle.keep, len(cycle.draft), judged, min(judged, len(cycle.tokens))))
        # Draft tokens after an end token are cut from the output, so they do not count as accepted.
        at, sent, path, accepted = np.array(rows, np.int64).reshape(-1, 4).T
        full = ((path == sent) & (sent > 0)).astype(float)
        made.append([each.tolist() for each in (at, sent, full, accepted)])
        done()
    return made


def cycles_of(columns: Columns) -> Cycles:
    """The cycles of a text from the plain data of `decoded`."""
    at, sent, accepted = (np.array(columns[i], np.int64) for i in (0, 1, 3))
    return Cycles(at, np.ones(len(at)), sent, np.zeros(len(at)), np.array(columns[2]), accepted)


def table_bytes(model: Model, candidate: Candidate) -> int:
    """Bytes of the table that a store keeps for a model's vocabulary; it has this size from the start."""
    method = candidate.build()
    method.prepare(model)
    assert method.memory is not None
    return int(method.memory["bytes"])
