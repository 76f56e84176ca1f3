"""Who decodes for a widget, and the thread that it is done in: it waits for its turn, and can be stopped.

`Decoding` is the widget, `DecodingPanel` what its page shows.
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

Value: TypeAlias = bool | float | str  # of a parameter
Values: TypeAlias = dict[str, Value]

BASELINE = "autoregressive"
STATES = ("idle", "waiting", "loading", "running", "done", "stopped", "error")

# One decode at a time in this process: a second one would spoil the first one's times.
decoding = threading.Lock()


class Job(threading.Thread):
    """Runs `work` as soon as no other decode runs in this process.

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
        """The thread."""
        while not decoding.acquire(timeout=0.05):
            if self.stopped.is_set():
                return
        try:
            self._work(self.stopped)
        finally:
            decoding.release()


class DecodingPanel(AnyWidget):
    """What is decoded, the text while it grows, and how far it is; its state as traits."""

    model = t.Unicode().tag(sync=True)
    prompt = t.Unicode().tag(sync=True)
    methods: t.List[str] = t.List().tag(sync=True)
    kinds = t.List(default_value=KINDS_SENT).tag(sync=True)
    state = t.Enum(STATES, "idle").tag(sync=True)
    shown: t.List[Json] = t.List().tag(sync=True)
    error = t.Unicode().tag(sync=True)
    theme = t.Enum(["auto", "light", "dark"], "auto").tag(sync=True)


class Decoding(ipywidgets.VBox):
    """A panel whose decode runs in the background until it has ended or is stopped."""

    panel: DecodingPanel
    _job: Job | None = None

    @property
    def busy(self) -> bool:
        """Whether a decode runs or waits for its turn."""
        return self._job is not None and self._job.is_alive()

    def stop(self) -> None:
        """Stop after the current cycle; what was decoded until then is kept."""
        if self._job is not None:
            self._job.stopped.set()
            if self.panel.state == "waiting":
                self.panel.state = "idle"

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the decode; whether it has ended."""
        return joined(self._job, seconds)

    def close(self) -> None:
        """Stop the decode, and close the widget."""
        self.stop()
        super().close()


class Decoder(Protocol):
    """What a widget may choose from, and what decodes it; models and methods are meant by name.

    Attributes
    ----------
    models : list of str
    limit : int
        Most tokens that a decode may emit.
    """

    models: list[str]
    limit: int

    def methods(self, model: str) -> list[str]:
        """The methods that can be chosen with a model; once it is loaded, those that it serves."""

    def idea(self, method: str) -> str:
        """What a method does, in a sentence."""

    def parameters(self, method: str) -> Sequence[Parameter]:
        """A method's declared parameters."""

    def examples(self, model: str) -> list[tuple[str, str]]:
        """Prompts to choose from, each with its kind of work."""

    def start(self, model: str, text: str, method: Given, values: Values, *, dense: bool = False) -> Run:
        """A decode that has not begun; what must be loaded is loaded. `dense`: recorded for what-ifs."""

    def code(self, model: str, text: str, method: str, values: Values) -> str:
        """One line that decodes so."""
