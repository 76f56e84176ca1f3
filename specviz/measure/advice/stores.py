"""Methods that learn as they go: they are decoded, for what they hold depends on what they drafted before.

Token Recycling, UniSpec, Lookahead and SPECTRA keep what the target said at tokens that were rejected, too.
No reading of the finished text holds that, so each setting takes a pass of the target a cycle: a run's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from specviz.loop.cycle import decode
from specviz.methods import find
from specviz.models.protocols import Model

from .readings import Text
from .simulation import STORES, Candidate, Cycles

SIZE = 16  # tokens of a draft


def settings() -> list[Candidate]:
    """The stores that are decoded."""
    return [Candidate(name, "", (("draft_size", SIZE),), SIZE) for name in STORES]


def decoded(
    model: Model, candidate: Candidate, texts: Sequence[Text], done: Callable[[], None]
) -> list[Cycles]:
    """The cycles of a setting on each text, one after the other: what one teaches serves the next."""
    method, made = find(candidate.method)(**dict(candidate.values)), []
    for number, text in enumerate(texts):
        rows = []
        for cycle in decode(model, text.ids, method, max_new_tokens=text.limit, prompt=number):
            if cycle.number and cycle.draft is not None and cycle.verdict is not None:
                judged = len(cycle.verdict.path)
                rows.append((cycle.keep, len(cycle.draft), judged, min(judged, len(cycle.tokens))))
        # What follows an end token in the draft is no longer accepted: it is cut.
        at, sent, path, accepted = np.array(rows, np.int64).reshape(-1, 4).T
        full = ((path == sent) & (sent > 0)).astype(float)
        made.append(Cycles(at, np.ones(len(at)), sent, np.zeros(len(at)), full, accepted))
        done()
    return made
