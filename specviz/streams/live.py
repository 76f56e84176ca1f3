"""A stream that other code pushes into while it is decoded."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

from specviz.errors import PromptError

from .stream import Stream, Update


class Live(Stream):
    """A stream that other code pushes into; the decoder waits for the next push.

    Parameters
    ----------
    id, language, reference : str, optional
        As in `Stream`.
    skip : bool
        If the decoder is slower than the pushes: whether it continues with the newest text and leaves out
        those in between (`skipped` counts them), or takes every text in turn. The last push is never left
        out.

    Examples
    --------
    >>> live = Live()
    >>> live.push("Good"), live.push("Good morning"), live.finish()
    (None, None, None)
    >>> [(update.text, update.last) for update in live]
    [('Good morning', True)]

    Notes
    -----
    Push from any thread; read from one. An update's ``time`` is in seconds since the first push.
    """

    updates: _Feed

    def __init__(
        self,
        id: str | None = None,
        language: str | None = None,
        reference: str | None = None,
        *,
        skip: bool = True,
    ) -> None:
        super().__init__(_Feed(skip), id, language, reference)

    def push(self, text: str) -> None:
        """Set the source to its current text, all of it.

        Raises
        ------
        PromptError
            If it is not a text, or the stream is finished.
        """
        self.updates.push(text)

    def finish(self, text: str | None = None) -> None:
        """Mark the source as complete, as last pushed or as `text`; a second call without text does nothing.

        The last push becomes the last update. If it has been read already, it is sent once more, so that text
        that is displayed only at the end is displayed.
        """
        if text is not None:
            self.push(text)
        self.updates.finish()

    @property
    def skipped(self) -> int:
        """Number of pushes that were left out."""
        return self.updates.skipped


class _Feed:
    """The queue between the code that pushes and the code that reads."""

    def __init__(self, skip: bool) -> None:
        self.skip, self.skipped = skip, 0
        self._changed = threading.Condition()
        self._waiting: deque[Update] = deque()
        self._newest: Update | None = None
        self._begun = 0.0
        self._finished = False

    def push(self, text: str) -> None:
        if not isinstance(text, str):
            raise PromptError(f"a live stream takes texts, got {type(text).__name__}")
        with self._changed:
            if self._finished:
                raise PromptError("the stream is finished: start a new one")
            now = time.monotonic()
            if self._newest is None:
                self._begun = now
            self._newest = Update(text, now - self._begun)
            if self.skip:
                self.skipped += len(self._waiting)
                self._waiting.clear()
            self._waiting.append(self._newest)
            self._changed.notify()

    def finish(self) -> None:
        with self._changed:
            if self._finished:
                return
            self._finished = True
            if self._newest is not None:
                end = self._waiting.pop() if self._waiting else self._newest
                self._waiting.append(Update(end.text, end.time, last=True))
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        with self._changed:
            while not self._waiting:
                if self._finished:
                    raise StopIteration
                self._changed.wait()
            return self._waiting.popleft()
