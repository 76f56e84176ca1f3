"""A live race: two or three methods decode one prompt, each in its own column on its own clock.

This package may not run a model itself: the caller passes a `Decoder`, as `specviz.race` does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import traitlets as t
from anywidget import AnyWidget

from specviz.errors import ParameterError
from specviz.files import plain_data
from specviz.trace import Trace
from specviz.widgets.assets import script, style
from specviz.widgets.columns import Json
from specviz.widgets.feed import Feed, cycle_seconds
from specviz.widgets.job import Decoder, Decoding, DecodingPanel, Job
from specviz.widgets.race import Race
from specviz.widgets.race import fields as raced
from specviz.widgets.stateful import error_line

MOST = 3  # maximum number of methods in a race


class RacePanel(DecodingPanel):
    """The live race's prompt, pickers and columns, with the state as traits."""

    _esm = script("live_race")
    _css = style("live_race")
    entrants: t.List[str] = t.List().tag(sync=True)  # as chosen for the next race
    lanes: t.List[str] = t.List().tag(sync=True)  # the methods of the race that is shown
    finishes: t.List[Json] = t.List().tag(sync=True)
    over: t.List[int] = t.List().tag(sync=True)  # lanes that have ended, in order of finishing


class LiveRace(Decoding):
    """Methods that decode one prompt live; once they have ended, the recorded race is shown below.

    Parameters
    ----------
    decoder : Decoder
        Lists the available models and methods, and decodes.
    model, prompt : str
    methods : sequence of str
        Two or three, each with its non-default settings: ``bild:fallback=0.5``.
    theme : {"auto", "light", "dark"}

    Notes
    -----
    The methods take turns in one thread: the one with the earliest clock time runs its next cycle. A clock
    counts only the cycles of its own method, so no method is timed while another one computes. Each method
    first decodes a few untimed tokens to warm up. The race starts when a notebook shows it. `traces` holds
    the decodes.
    """

    def __init__(
        self, decoder: Decoder, model: str, prompt: str, methods: Sequence[str], theme: str = "auto"
    ) -> None:
        self.traces: list[Trace] = []
        self._decoder, self._model = decoder, model
        entrants = check_entrants(methods)
        self._choices = list(dict.fromkeys([*entrants, *decoder.methods(model)]))
        self.panel = RacePanel(
            model=model, prompt=prompt, entrants=entrants, lanes=entrants, methods=self._choices, theme=theme
        )
        super().__init__([self.panel])
        self.panel.on_msg(self._on_message)

    def run(self) -> None:
        """Start the race in the background as soon as no other decode runs."""
        if self.busy:
            self.panel.error = "The race is running: stop it or wait until it has ended."
            return
        prompt, methods = self.panel.prompt, list(self.panel.entrants)
        self.panel.error, self.panel.over, self.panel.finishes, self.panel.shown = "", [], [], []
        self.traces, self.panel.lanes = [], methods
        self.panel.state = "waiting"
        before, self.children = self.children[1:], (self.panel,)
        for old in before:  # ipywidgets would otherwise keep it and its traces until the kernel ends
            old.close()
        self._job = Job(lambda stopped: self._work(stopped, prompt, methods))
        self._job.start()

    def _work(self, stopped: threading.Event, prompt: str, methods: list[str]) -> None:
        state, message = "done", ""
        self.panel.state = "loading"
        try:
            runs = [self._decoder.start(self._model, prompt, method, {}) for method in methods]
            feed = self._feed = Feed(lambda cycles: self.panel.send({"do": "cycles", "cycles": cycles}), runs)
            self.panel.state = "running"
            clocks = dict.fromkeys(range(len(runs)), 0.0)
            turns = dict.fromkeys(clocks, 0)
            going = set(clocks)
            try:
                while going and not stopped.is_set():
                    lane = min(going, key=lambda lane: (clocks[lane], turns[lane]))
                    cycle = next(runs[lane], None)
                    if cycle is None:
                        going.remove(lane)
                        self.panel.over = [*self.panel.over, lane]
                        continue
                    turns[lane] += 1
                    clocks[lane] += cycle_seconds(runs[lane], cycle)
                    feed.add(cycle, clocks[lane], lane)
                for lane in going:
                    state = "stopped"
                    runs[lane].close()
            finally:
                self._feed = None
                feed.close()
                self.panel.shown = feed.sent
            self.traces = [run.trace for run in runs if run.trace is not None]
            # Otherwise it was stopped before every method finished its prefill, or closed.
            if all(turns.values()) and self.comm is not None:
                self._end(methods)
        except Exception as error:  # any failure of a decode is shown as one line in the panel
            state, message = "error", error_line(error)
        self.panel.error = message
        self.panel.state = state

    def _end(self, methods: Sequence[str]) -> None:
        """Show the results, on the clocks of the traces, and below them the recorded race."""
        (field,) = raced(dict(zip(methods, self.traces)))
        end = max(lane.finish for lane in field.lanes)
        again = Race([field], theme=self.panel.theme, time=end)
        rows = [
            {
                "seconds": lane.finish, "speed": lane.speed(), "ended": bool(lane.end),
                "speedup": field.speedup(i), "exactness": lane.exactness,
            }
            for i, lane in enumerate(field.lanes)
        ]  # fmt: skip
        self.panel.finishes = plain_data(rows)
        self.children = (self.panel, again)

    panel: RacePanel

    def _on_message(self, _: AnyWidget, content: Json, buffers: list[bytes]) -> None:
        """Run the action of a pressed button of the panel."""
        verbs = {"open": self._open, "run": lambda: self._run_as(content), "stop": self.stop}
        try:
            verbs[content["do"]]()
        except Exception as error:
            self.panel.error = error_line(error)

    def _open(self) -> None:
        """Start the first race when the panel is first shown."""
        if self._job is None:
            self.run()
        self._catch_up()

    def _run_as(self, content: Json) -> None:
        """Race with the prompt and methods in the message, because the traits may lag behind the page."""
        self.panel.prompt = str(content["prompt"])
        entrants = check_entrants(content["entrants"])
        if strangers := [name for name in entrants if name not in self._choices]:
            raise ParameterError(f"method {strangers[0]!r:.80} is not in the list")
        self.panel.entrants = entrants
        self.run()


def check_entrants(methods: Sequence[str]) -> list[str]:
    """Return the methods of a race after checking their number and that they differ.

    Raises
    ------
    ParameterError
        If there are not two or three methods, or one is listed twice.
    """
    entrants = [str(method) for method in methods]
    if not 2 <= len(entrants) <= MOST:
        raise ParameterError(f"a live race needs two or three methods, got {len(entrants)}")
    if len(set(entrants)) < len(entrants):
        raise ParameterError("a live race needs different methods or settings: one is listed twice")
    return entrants
