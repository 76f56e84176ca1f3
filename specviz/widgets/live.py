"""A source that is typed, and beneath it its translation, written anew at each update.

This wing may not run a model: whoever makes the widget hands it the function that decodes (`specviz.live`
does).
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
    """A box to type into; what was typed is decoded in a thread, the newest text first.

    Parameters
    ----------
    decode : callable
        ``decode(stream, **settings)`` gives an iterator of finished cycles that has ``trace`` at its end and
        ``close()``, as `specviz.stream` does. It runs in a thread.
    show : callable
        ``show(token ids)`` gives text.
    settings : mapping
        ``mode``, ``beta``, ``k`` and ``target_language`` to begin with.
    modes, languages : sequence of str
        What can be chosen.
    title : str
        What stands above the box.

    Notes
    -----
    Set ``source`` to type from Python; `finish` says that it is complete. Another setting, or an empty box,
    begins a new run; `traces` holds those that have ended. ``shown`` is the newest update, ``figures`` what
    it took.
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
        """What a script sees, where no notebook draws the box."""
        return (
            f"<live translation of {self.source!r} into {self.target_language}: a widget, drawn by a "
            f"notebook (specviz lab); in a script, set .source, call .finish() and .wait(), and read .traces>"
        )

    def finish(self) -> None:
        """The source is complete: what was masked is displayed, and the run ends."""
        if self._live is not None:
            self._live.finish()
            self._live = None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the run that is ending; whether it has ended."""
        return joined(self._thread, seconds)

    def close(self) -> None:
        """Stop decoding, and close the widget."""
        self._leave()
        super().close()

    # ------------------------------------------------------------ what the browser does

    def _typed(self, change: Bunch | None = None) -> None:
        text = self.source.strip()
        if not text:
            self._leave()
            self.shown, self.figures, self.error = {}, {}, ""
            return
        if self._live is None or self._thread is None or not self._thread.is_alive():
            self._begin()
        elif text == self._pushed:
            return
        assert self._live is not None
        try:
            self._live.push(text)
        except SpecvizError as error:  # half a character
            self.error = str(error)
            return
        self._pushed = text

    def _anew(self, change: Bunch | None = None) -> None:
        """Another setting holds for a new run, which begins with all that was typed."""
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
        """Drop the run after the update that it is at."""
        self._stop.set()
        self.finish()

    # ------------------------------------------------------------ the thread

    def _work(self, live: Live, stop: threading.Event, settings: Json) -> None:
        run, updates = None, _until(live, stop)
        with self._turn, closing(updates):
            try:
                run = self._decode(Stream(updates, live.id), **settings)
                over_all = Counter[str]()
                for update in follow(run, self._show):
                    over_all.update(updates=1, erased=update.erased_tokens)
                    over_all.update(drafted=update.drafted, accepted=update.accepted)
                    if not stop.is_set():
                        self._tell(update, over_all, live.skipped, run.recorder.run["exactness"])
            except Exception as error:  # whatever the decode raises is one line beneath the box
                if not stop.is_set():
                    self.error = error_line(error)
            trace = getattr(run, "trace", None)
            if trace is not None and len(trace.cycles):
                self.traces.append(trace)

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


def _until(live: Live, stop: threading.Event) -> Generator[Update, None, None]:
    for update in live:
        if stop.is_set():
            return
        with decoding:  # until the next one is asked for: other decodes would spoil its times
            if stop.is_set():
                return
            yield update
