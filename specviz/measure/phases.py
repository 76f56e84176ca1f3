"""Time of a text by the phases of its cycles, and the tokens that their passes read."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from specviz.loop.clock import Clock
from specviz.measure.timing import QuietClock, clock_of
from specviz.schema import PHASES

if TYPE_CHECKING:
    from specviz.loop import Run
    from specviz.loop.cycle import Cycle

COUNTS = ("cycles", "emitted", "context", "passes", "fed", "draft_passes", "draft_fed")
SUMS = (*COUNTS, *PHASES, "between")  # of a text, without its prefill


class Phases:
    """Sums over a text's cycles after the prefill.

    ``cycles`` and the tokens that they ``emitted``; ``context``, the committed tokens before each; ``passes``
    of the target, and the tokens ``fed`` to them; the same for a draft model; seconds of each phase, and
    ``between``: from the end of a cycle to the start of the next.

    Parameters
    ----------
    clock : Clock, optional
        The run's clock. Without one there are no seconds, and `sums` returns nothing.
    """

    def __init__(self, clock: Clock | None) -> None:
        self.clock = clock
        self._counts = dict.fromkeys(COUNTS, 0)
        self._marks: list[tuple[bool, list]] = []  # of each cycle, and whether it follows another one
        self._follows = False

    def take(self, cycle: Cycle) -> None:
        """Add a cycle of one text that is decoded alone."""
        if cycle.number == 0:
            self._follows = False
            return
        counts = self._counts
        counts["cycles"] += 1
        counts["emitted"] += len(cycle.tokens)
        counts["context"] += cycle.context
        for name, _, tokens, *_ in cycle.passes:
            of = "" if name == "target" else "draft_"
            counts[f"{of}passes"] += 1
            counts[f"{of}fed"] += tokens
        if self.clock is not None:
            self._marks.append((self._follows, cycle.marks))
        self._follows = True

    def sums(self) -> dict[str, float]:
        """Sums since the last call, by the names of `SUMS`; they start again from zero."""
        marks, counts = self._marks, self._counts
        self._marks, self._counts, self._follows = [], dict.fromkeys(COUNTS, 0), False
        if self.clock is None:
            return {}
        if not marks:  # the text ended with its prefill
            return dict.fromkeys(SUMS, 0.0)
        ends = [list(each) for each in zip(*(each for _, each in marks))]
        spent = [float(self.clock.seconds(a, b).sum()) for a, b in pairwise(ends)]
        gaps = [(before[-1], now[0]) for (_, before), (follows, now) in pairwise(marks) if follows]
        between = float(self.clock.seconds(*map(list, zip(*gaps))).sum()) if gaps else 0.0
        return {**counts, **dict(zip(PHASES, spent)), "between": between}


def phases_of(run: Run) -> Phases:
    """Sums for a run that has not begun; without a clock it gets one on the CPU, where marks cost nothing."""
    model = run.model
    if run.clock is None and torch.device(model.device).type == "cpu":
        quiet = clock_of(model)[0] is not time.perf_counter
        run.clock = QuietClock() if quiet else Clock()
    return Phases(run.clock)
