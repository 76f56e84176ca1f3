"""A box for a typed source, with its translation below, rewritten at each update.

This package may not run a model itself: the caller passes the function that decodes, as `specviz.live` does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import traitlets as t
from anywidget import AnyWidget
from traitlets import Bunch

from specviz.errors import SpecvizError
from specviz.streams import Live, Shown, Stream, Update, follow
from specviz.trace import Trace
from specviz.widgets.assets import script, style
from specviz.widgets.columns import Json
from specviz.widgets.job import decoding
from specviz.widgets.stateful import error_line, joined

if TYPE_CHECKING:
    from specviz.loop.run import Run

SETTINGS = ("mode", "beta", "k", "target_language")


class Interpreter(AnyWidget):
    """A box to type into; the text is decoded in a thread, which skips to the newest version.

    Parameters
    ----------
    decode : callable
        ``decode(stream, **settings)`` returns an iterator of finished cycles with ``close()`` and, at its
        end, ``trace``, as `specviz.stream` does. It runs in a thread.
    show : callable
        ``show(token ids)`` returns their text.
    settings : mapping
        Initial ``mode``, ``beta``, ``k`` and ``target_language``.
    modes, languages : sequence of str
        The options to choose from; without languages the widget offers and names none.
    title : str
        Heading above the box.

    Notes
    -----
    Set ``source`` to type from Python; call `finish` once it is complete. Changing a setting or clearing the
    box ends the run; the next one starts with the text in the box. `traces` holds the finished runs,
    ``shown`` the newest update, and ``figures`` its metrics. ``waiting`` says whether an update waits until
    another decode in this process has ended.
    """

    _esm = script("live")
    _css = style("live")
    title = t.Unicode().tag(sync=True)
    source = t.Unicode().tag(sync=True)
    mode = t.Unicode().tag(sync=True)
    beta = t.Float(0.2, min=0, max=1).tag(sync=True)
    k = t.Int(0, min=0).tag(sync=True)
    target_language = t.Unicode().tag(sync=True)
    modes: t.List[str] = t.List().tag(sync=True)
    languages: t.List[str] = t.List().tag(sync=True)
    shown = t.Dict().tag(sync=True)
    figures = t.Dict().tag(sync=True)
    waiting = t.Bool(False).tag(sync=True)
    error = t.Unicode().tag(sync=True)
    theme = t.Enum(["auto", "light", "dark"], "auto").tag(sync=True)

    def __init__(
        self,
        decode: Callable[..., Run],
        show: Callable[[list[int]], str],
        settings: Mapping[str, float | str],
        modes: Sequence[str],
        languages: Sequence[str],
        title: str = "",
    ) -> None:
        self.traces: list[Trace] = []
        self._decode, self._show = decode, show
        self._live: Live | None = None
        self._pushed = ""
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._turn = threading.Lock()  # one decode at a time
        super().__init__(modes=list(modes), languages=list(languages), title=title, **settings)
        self.observe(self._typed, names="source")
        self.observe(self._anew, names=SETTINGS)
        self.on_msg(self._on_message)

    def __repr__(self) -> str:
        """Explain how to use the widget from a script, where no notebook draws it."""
        into = f" into {self.target_language}" if self.languages else ""
        return (
            f"<live translation of {self.source!r}{into}: a widget, drawn by a notebook (specviz lab); in a "
            f"script, set .source, call .finish() and .wait(), and read .traces>"
        )

    def finish(self) -> None:
        """Mark the source as complete: the hidden tokens are displayed and the run ends."""
        if self._live is not None:
            self._live.finish()
            self._live = None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait up to `seconds` for the ending run and return whether it has ended."""
        return joined(self._thread, seconds)

    def close(self) -> None:
        """Stop decoding and close the widget."""
        self._leave()
        super().close()

    # ------------------------------------------------------------ events from the browser

    def _typed(self, change: Bunch | None = None) -> None:
        text = self.source.strip()
        if not text:
            self._leave()
            self.shown, self.figures, self.error = {}, {}, ""
            return
        if self._live is None or self._thread is None or not self._thread.is_alive():
            self._begin()
        elif text == self._pushed:
            self.error = ""
            return
        assert self._live is not None
        self.error = ""  # before the decode, which may fail
        try:
            self._live.push(text)
        except SpecvizError as error:  # for example an incomplete character
            self.error = str(error)
            return
        self._pushed = text

    def _anew(self, change: Bunch | None = None) -> None:
        """Start a new run with the changed settings and the whole source."""
        self._leave()
        self._typed()

    def _on_message(self, _: AnyWidget, content: Json, buffers: list[bytes]) -> None:
        if content.get("do") == "finish":
            self.finish()

    def _begin(self) -> None:
        self._live, self._stop, self.error = Live("typed"), threading.Event(), ""
        settings = {name: getattr(self, name) for name in SETTINGS}
        arguments = self._live, self._stop, settings
        self._thread = threading.Thread(target=self._work, args=arguments, daemon=True)
        self._thread.start()

    def _leave(self) -> None:
        """Stop the run after its current update."""
        self._stop.set()
        self.finish()

    # ------------------------------------------------------------ the thread

    def _work(self, live: Live, stop: threading.Event, settings: Json) -> None:
        run, updates = None, self._until(live, stop)
        with self._turn, closing(updates):
            try:
                run = self._decode(Stream(updates, live.id), **settings)
                over_all = Counter[str]()
                for update in follow(run, self._show):
                    over_all.update(updates=1, erased=update.erased_tokens)
                    over_all.update(drafted=update.drafted, accepted=update.accepted)
                    if not stop.is_set():
                        self._tell(update, over_all, live.skipped, run.recorder.run["exactness"])
            except Exception as error:  # any failure of the decode is shown as one line below the box
                if not stop.is_set():
                    self.error = error_line(error)
            trace = getattr(run, "trace", None)
            if trace is not None and len(trace.cycles):
                self.traces.append(trace)

    def _until(self, live: Live, stop: threading.Event) -> Generator[Update, None, None]:
        for update in live:
            while not decoding.acquire(timeout=0.05):
                self.waiting = not stop.is_set()
                if not self.waiting:
                    return
            try:  # held until the next update is requested: other decodes would distort its timing
                self.waiting = False
                if stop.is_set():
                    return
                yield update
            finally:
                decoding.release()

    def _tell(self, now: Shown, over_all: Mapping[str, int], skipped: int, exactness: str) -> None:
        self.figures = {
            "exactness": exactness,
            "ms": None if now.seconds != now.seconds else 1e3 * now.seconds,
            "updates": over_all["updates"],
            "skipped": skipped,
            "erased": now.erased_tokens,
            **{name: getattr(now, name) for name in ("drafted", "accepted", "reused", "prompt", "tokens")},
            **{f"all_{name}": over_all[name] for name in ("erased", "drafted", "accepted")},
        }
        self.shown = {name: getattr(now, name) for name in ("kept", "new", "erased", "hidden", "source")}
