"""Shared parts of the widgets: the base class of the views, and helpers for threads, errors and rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import traitlets as t
from anywidget import AnyWidget

from specviz.errors import ParameterError, SpecvizError
from specviz.view.static import Page
from specviz.widgets.page import View, document

Value: TypeAlias = bool | float | str | Sequence[float]  # value of a trait that reflects the view's state


class Stateful(Page, AnyWidget):
    """A widget whose data is sent once, as bytes; its other traits reflect the view's state and can be set.

    A subclass sets `NAME`, its name in error messages, and `STATE`, the traits that make up its state.
    """

    NAME: ClassVar[str]
    STATE: ClassVar[tuple[str, ...]]
    data = t.Bytes().tag(sync=True)
    playing = t.Bool(False).tag(sync=True)
    theme = t.Enum(["auto", "light", "dark"], "auto").tag(sync=True)
    projector = t.Bool(False).tag(sync=True)

    def __init__(self, data: bytes, state: dict[str, Value], **more: bytes) -> None:
        if unknown := [name for name in state if name not in self.STATE]:
            raise ParameterError(f"{self.NAME} has no {unknown[0]!r}; it has {', '.join(self.STATE)}")
        try:
            super().__init__(data=data, **more, **state)
        except t.TraitError as error:
            raise ParameterError(f"{self.NAME} cannot start with these settings: {error}") from None

    def _document(
        self, view: str, title: str, still: str, chunks: Sequence[bytes] = (), numbers: Sequence[int] = ()
    ) -> str:
        """Return an offline page of the current state, paused; the view requests `chunks` by ``want``.

        `numbers` are those of its prompts, for the page's address.
        """
        state = {name: getattr(self, name) for name in self.STATE} | {"playing": False}
        if chunks:
            state["want"] = 0
        return document(title, [View(view, view.capitalize(), self.data, state, chunks, numbers)], still)


def joined(thread: threading.Thread | None, seconds: float | None) -> bool:
    """Wait up to `seconds` for a decode's thread and return whether it has ended."""
    if thread is None:
        return True
    thread.join(seconds)
    return not thread.is_alive()


def error_line(error: Exception) -> str:
    """Format an error as one line."""
    text = " ".join(str(error).split())[:500]
    own = isinstance(error, SpecvizError) and text
    return text if own else f"{type(error).__name__}: {text}".rstrip(": ")
