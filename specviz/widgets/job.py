"""Background decoding for widgets: a stoppable thread that waits its turn, and the decoder's protocol.

`Decoding` is the widget, and `DecodingPanel` is its front-end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import ipywidgets
import traitlets as t
from anywidget import AnyWidget

from specviz.widgets.columns import KINDS_SENT, Json
from specviz.widgets.stateful import joined

if TYPE_CHECKING:
    from specviz.loop.run import Run
    from specviz.methods import Given
    from specviz.rules.parameters import Parameter
    from specviz.widgets.feed import Feed

Value: TypeAlias = bool | float | str  # a parameter's value
Values: TypeAlias = dict[str, Value]

BASELINE = "autoregressive"
STATES = ("idle", "waiting", "loading", "running", "done", "stopped", "error")

# Only one decode runs at a time in this process: a second one would distort the timing of the first.
decoding = threading.Lock()


class Job(threading.Thread):
    """A thread that runs `work` as soon as no other decode runs in this process.

    Parameters
    ----------
    work : callable
        ``work(stopped)`` decodes until the event is set. It is not called if the job was stopped before
        its turn.
    """

    def __init__(self, work: Callable[[threading.Event], None]) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self._work = work

    def run(self) -> None:
        """Wait for the decoding lock, then run the work."""
        while not decoding.acquire(timeout=0.05):
            if self.stopped.is_set():
                return
        try:
            if not self.stopped.is_set():
                self._work(self.stopped)
        finally:
            decoding.release()


class DecodingPanel(AnyWidget):
    """The choice of model and prompt, the growing text and the progress, with the state as traits."""

    model = t.Unicode().tag(sync=True)
    prompt = t.Unicode().tag(sync=True)
    methods: t.List[str] = t.List().tag(sync=True)
    kinds = t.List(default_value=KINDS_SENT).tag(sync=True)
    state = t.Enum(STATES, "idle").tag(sync=True)
    shown: t.List[Json] = t.List().tag(sync=True)
    error = t.Unicode().tag(sync=True)
    theme = t.Enum(["auto", "light", "dark"], "auto").tag(sync=True)


class Decoding(ipywidgets.VBox):
    """A panel whose decode runs in the background until it ends or is stopped."""

    panel: DecodingPanel
    children: tuple[ipywidgets.DOMWidget, ...]
    _job: Job | None = None
    _feed: Feed | None = None  # of a decode in progress

    def _catch_up(self) -> None:
        """Send a view that opens during a decode the text so far."""
        if (feed := self._feed) is not None:
            with feed.lock:
                self.panel.shown = list(feed.sent)

    @property
    def busy(self) -> bool:
        """Whether a decode runs or waits for its turn."""
        return self._job is not None and self._job.is_alive()

    def stop(self) -> None:
        """Stop after the current cycle and keep the cycles decoded so far."""
        if self._job is not None:
            self._job.stopped.set()
            if self.panel.state == "waiting":
                self.panel.state = "idle"

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds` for the decode and return whether it has ended."""
        return joined(self._job, seconds)

    def close(self) -> None:
        """Stop the decode and close the widget with its views: an open one would keep the models."""
        self.stop()
        children = self.children
        super().close()
        for each in children:
            each.close()


class Decoder(Protocol):
    """The models and methods that a widget offers, by name, and the function that decodes.

    Attributes
    ----------
    models : list of str
    limit : int
        Maximum number of tokens that a decode may emit.
    """

    models: list[str]
    limit: int

    def methods(self, model: str) -> list[str]:
        """Methods that can be chosen with a model; once it is loaded, only those that it supports."""

    def idea(self, method: str) -> str:
        """One sentence that describes a method."""

    def parameters(self, method: str) -> Sequence[Parameter]:
        """A method's declared parameters."""

    def examples(self, model: str) -> list[tuple[str, str]]:
        """Example prompts, each preceded by its kind of task."""

    def start(self, model: str, text: str, method: Given, values: Values, *, dense: bool = False) -> Run:
        """Load the models and return a decode that has not begun; `dense` records it for what-ifs."""

    def code(self, model: str, text: str, method: str, values: Values) -> str:
        """One line of Python that decodes with these arguments."""
