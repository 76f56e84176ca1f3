"""Streams: the source in successive updates, each as far as it is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specviz.errors import PromptError
from specviz.files import HALF


@dataclass(frozen=True)
class Update:
    """The source as far as it is known.

    Parameters
    ----------
    text : str
        The whole source, not only the new part; it may be shorter than before, or differ.
    time : float, optional
        When it came, in seconds of the stream's own clock.
    last : bool
        Whether the source is complete.

    Raises
    ------
    PromptError
        If the text is not a string or holds a lone surrogate, or the time is not a number of seconds.
    """

    text: str
    time: float | None = None
    last: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise PromptError(f"an update's text must be a string, got {self.text!r:.60}")
        if HALF.search(self.text):
            raise PromptError("an update's text holds half a character (a lone surrogate)")
        if self.time is not None and not is_seconds(self.time):
            raise PromptError(f"an update's time must be seconds, got {self.time!r:.60}")


@dataclass(frozen=True)
class Stream:
    """One source in updates, as `specviz.generate` takes it for a method that decodes streams.

    Parameters
    ----------
    updates : iterable of Update
        A list, or an iterator that waits for the next one. The last update of a list is its last.
    id, language, reference : str, optional
        Kept in the trace: a name, the source's language, and the right output for the whole source.
    segmented : str, optional
        Kept in the trace: the word splitter, for a source that was cut into words.

    Raises
    ------
    PromptError
        If `updates` is a text, or a list of anything other than updates.
    """

    updates: Iterable[Update]
    id: str | None = None
    language: str | None = None
    reference: str | None = None
    segmented: str | None = None

    def __post_init__(self) -> None:
        listed = self.updates if isinstance(self.updates, list | tuple) else ()
        iterable = isinstance(self.updates, Iterable) and not isinstance(self.updates, str)
        if not iterable or not all(isinstance(update, Update) for update in listed):
            raise PromptError(
                "a stream is a list of specviz.streams.Update(text), each with the whole source so far; "
                "specviz.streams.fixed_lag(text) makes one from plain text"
            )

    def __iter__(self) -> Iterator[Update]:
        """Yield the updates; the last one of a list is marked as last."""
        if isinstance(self.updates, list | tuple):
            for i, update in enumerate(self.updates, 1):
                yield Update(update.text, update.time, update.last or i == len(self.updates))
            return
        for update in self.updates:
            if not isinstance(update, Update):
                raise PromptError(f"a stream takes specviz.streams.Update objects, got {update!r:.60}")
            yield update


def is_seconds(value: object) -> bool:
    """Whether a value is a finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False
