"""Sends a running decode to its page: a few bytes per token, at most twenty messages per second.

The decoding thread appends each finished cycle to a queue. Another thread converts the cycles to text and
sends them, the first at once and later ones `PAUSE` seconds after the previous message.
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
MOST_TRIED = 2  # maximum number of a tree's rejected tokens to show
DROPPED = ("rejected", "unjudged")  # statuses of nodes that were sent but are not in the text


class Writing:
    """Converts one run's finished cycles to the text that a page draws.

    Parameters
    ----------
    run : Run
        Its model provides the tokens' bytes, and its method determines the kinds of their origins.
    """

    def __init__(self, run: Run) -> None:
        self._piece, self._eos = run.model.piece, frozenset(run.model.eos)
        self._kinds = kind_numbers(run.method.name)
        self._decoder = codecs.getincrementaldecoder("utf8")("replace")
        self._pieces: list[bytes] = []  # of the tokens in the text

    def cycle(self, cycle: Cycle) -> Json:
        """Convert a finished cycle to the data that the page draws.

        Returns
        -------
        dict
            ``cycle``: its number; ``keep``: number of earlier tokens that it keeps; ``tokens``: text and
            index into `KINDS` of each new token, with empty text if a later token completes the character;
            ``dropped``: text of the draft tokens that were not accepted; ``cells``: on a canvas, the new
            tokens' positions.
        """
        if cycle.keep < len(self._pieces):
            del self._pieces[cycle.keep :]
            self._decoder.reset()
            self._decoder.decode(b"".join(self._pieces))  # the kept text may end inside a character
        texts = [self._text(token, bool(cycle.cells)) for token in cycle.tokens]
        kinds = [self._kinds.get(origin, 0) for origin in cycle.origins]
        return {
            "cycle": cycle.number, "keep": cycle.keep, "tokens": list(zip(texts, kinds)),
            "dropped": self._dropped(cycle), "cells": [int(cell) for cell in cycle.cells],
        }  # fmt: skip

    def _text(self, token: int, alone: bool) -> str:
        if token in self._eos:
            self._pieces.append(b"")
            return END
        piece = self._piece(token)
        self._pieces.append(piece)
        return visible(piece.decode("utf8", "replace") if alone else self._decoder.decode(piece))

    def _dropped(self, cycle: Cycle) -> str:
        """Text of the draft tokens not accepted; for a tree, the first few at the deepest rejection."""
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
        ``send(cycles)`` is called from the feed's thread with a list of results of `Writing.cycle`, each with
        its ``lane`` and the ``seconds`` on that lane's clock.
    runs : sequence of Run
        One per lane.

    Notes
    -----
    `sent` holds all cycles sent so far. They neither grow nor are sent while another thread holds `lock`.
    """

    def __init__(self, send: Callable[[list[Json]], None], runs: Sequence[Run]) -> None:
        self.sent: list[Json] = []
        self.lock = threading.Lock()
        self._send = send
        self._writings = [Writing(run) for run in runs]
        self._queue: deque[tuple[int, Cycle, float]] = deque()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, cycle: Cycle, seconds: float, lane: int = 0) -> None:
        """Queue a finished cycle of a lane whose clock reads `seconds`."""
        self._queue.append((lane, cycle, seconds))
        self._wake.set()

    def close(self) -> None:
        """Send the remaining cycles and wait until they are sent; re-raise any error of the feed's thread."""
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
            except Exception as error:  # re-raised by `close`
                self._error = error
                return
            self._ended.wait(PAUSE)

    def _flush(self) -> None:
        cycles = []
        while self._queue:
            lane, cycle, seconds = self._queue.popleft()
            cycles.append(self._writings[lane].cycle(cycle) | {"lane": lane, "seconds": round(seconds, 4)})
        if cycles:
            with self.lock:
                self.sent += cycles
                self._send(cycles)


def cycle_seconds(run: Run, cycle: Cycle) -> float:
    """Duration of a cycle on its run's clock, excluding recording; 0 if the run takes no times."""
    if run.clock is None or not cycle.marks:
        return 0.0
    return float(run.clock.seconds(cycle.marks[:1], cycle.marks[-1:])[0])
