"""A running decode as a page hears of it: a few bytes per token, at most twenty messages per second.

The thread that decodes appends each finished cycle to a queue. Another thread makes text of the cycles and
sends them: the first at once, later ones `PAUSE` after the message before, so that no token waits longer.
"""

from __future__ import annotations

import codecs
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specviz.escape import visible
from specviz.widgets.columns import END, Json, kind_numbers

if TYPE_CHECKING:
    from specviz.loop import Cycle, Run

PAUSE = 0.05  # seconds between two messages
MOST_TRIED = 2  # of a tree's rejected tokens that are written out
DROPPED = ("rejected", "unjudged")  # statuses of nodes that were sent and are not in the text


class Writing:
    """One run's text as it grows: finished cycles in, what a page draws of each out.

    Parameters
    ----------
    run : Run
        Its model gives the tokens' bytes, its method the meaning of their origins.
    """

    def __init__(self, run: Run) -> None:
        self._piece, self._eos = run.model.piece, frozenset(run.model.eos)
        self._kinds = kind_numbers(run.method.name)
        self._decoder = codecs.getincrementaldecoder("utf8")("replace")
        self._length = 0

    def cycle(self, cycle: Cycle) -> Json:
        """What the page needs of a cycle.

        Returns
        -------
        dict
            ``cycle``: its number; ``keep``: tokens of the text that it leaves; ``tokens``: text and index
            into `KINDS` of each new one, the text empty where a later token completes a character;
            ``dropped``: the text of the draft tokens that were not accepted; ``cells``: of a canvas, where
            tokens stand.
        """
        if cycle.keep < self._length:
            self._decoder.reset()
        self._length = cycle.keep + len(cycle.tokens)
        texts = [self._text(token, bool(cycle.cells)) for token in cycle.tokens]
        kinds = [self._kinds.get(origin, 0) for origin in cycle.origins]
        return {
            "cycle": cycle.number, "keep": cycle.keep, "tokens": list(zip(texts, kinds)),
            "dropped": self._dropped(cycle), "cells": [int(cell) for cell in cycle.cells],
        }  # fmt: skip

    def _text(self, token: int, alone: bool) -> str:
        if token in self._eos:
            return END
        piece = self._piece(token)
        return visible(piece.decode("utf8", "replace") if alone else self._decoder.decode(piece))

    def _dropped(self, cycle: Cycle) -> str:
        """The text of the drafts that were not accepted; of a tree the best few where the target left it."""
        draft, verdict = cycle.draft, cycle.verdict
        if draft is None or verdict is None:
            return ""
        statuses = list(enumerate(cycle.status[: len(draft)]))
        gone = [i for i, status in statuses if status in DROPPED]
        if draft.is_chain or not gone:
            return visible(b"".join(self._piece(verdict.tokens[i]) for i in gone).decode("utf8", "replace"))
        tried = [i for i, status in statuses if status == "rejected"] or gone
        deepest = max(draft.depths[i] for i in tried)
        shown = [i for i in tried if draft.depths[i] == deepest][:MOST_TRIED]
        texts = [visible(self._piece(verdict.tokens[i]).decode("utf8", "replace")) for i in shown]
        more = [f"… {len(gone) - len(shown)} more"] if len(gone) > len(shown) else []
        return " │".join([text.replace("\n", "⏎") for text in texts] + more)


class Feed:
    """Sends the cycles of one or more runs while they are decoded.

    Parameters
    ----------
    send : callable
        ``send(cycles)`` is called from a thread of the feed's own with a list of what `Writing.cycle` gives,
        each with its ``lane`` and the ``seconds`` on that lane's clock.
    runs : sequence of Run
        One a lane.

    Notes
    -----
    `sent` holds all cycles that were sent.
    """

    def __init__(self, send: Callable[[list[Json]], None], runs: Sequence[Run]) -> None:
        self.sent: list[Json] = []
        self._send = send
        self._writings = [Writing(run) for run in runs]
        self._queue: deque[tuple[int, Cycle, float]] = deque()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, cycle: Cycle, seconds: float, lane: int = 0) -> None:
        """Take a finished cycle of a lane, whose clock stands at `seconds`."""
        self._queue.append((lane, cycle, seconds))
        self._wake.set()

    def close(self) -> None:
        """Send what is left, and wait until it is sent; raise what went wrong meanwhile."""
        self._ended.set()
        self._wake.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        ended = False
        while not ended:
            self._wake.wait()
            self._wake.clear()
            ended = self._ended.is_set()
            try:
                self._flush()
            except Exception as error:  # raised where the feed is closed
                self._error = error
                return
            self._ended.wait(PAUSE)

    def _flush(self) -> None:
        cycles = []
        while self._queue:
            lane, cycle, seconds = self._queue.popleft()
            cycles.append(self._writings[lane].cycle(cycle) | {"lane": lane, "seconds": round(seconds, 4)})
        if cycles:
            self.sent += cycles
            self._send(cycles)


def cycle_seconds(run: Run, cycle: Cycle) -> float:
    """What a cycle took on its run's own clock, recording left out; 0 where no times are taken."""
    if run.clock is None or not cycle.marks:
        return 0.0
    return float(run.clock.seconds(cycle.marks[:1], cycle.marks[-1:])[0])
