"""The explorer: a prompt box, pickers and parameter controls; the text appears while it is decoded.

This package may not run a model itself: the caller passes a `Decoder`, as `specviz.explore` does.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import traitlets as t
from anywidget import AnyWidget
from traitlets import Bunch

from specviz import metrics
from specviz.errors import ParameterError, SpecvizError, TraceError
from specviz.files import plain_data
from specviz.rules.parameters import LARGE
from specviz.trace import Trace
from specviz.whatifs import BADGES, WhatIf, whatif
from specviz.widgets.assets import script, style
from specviz.widgets.columns import Json
from specviz.widgets.feed import Feed, cycle_seconds
from specviz.widgets.job import BASELINE, Decoder, Decoding, DecodingPanel, Job, Value, Values
from specviz.widgets.live_race import LiveRace
from specviz.widgets.player import Player, player
from specviz.widgets.race import Race
from specviz.widgets.race import fields as raced
from specviz.widgets.stateful import error_line

if TYPE_CHECKING:
    import pandas as pd

    from specviz.loop.run import Run
    from specviz.methods import Given
    from specviz.rules.parameters import Parameter

TABLE = 1.0  # time limit in seconds for the answers along a slider
STEPS = 100  # positions of a slider over a range of real numbers
RERUN = BADGES[-1]
COUNTS = {"cycles": "{:.0f} cycles", "tau": "τ {:.2f}", "A/D": "A/D {:.2f}", "drafted": "{:.0f} drafted"}

# The table's metrics: key, heading, digits and unit, meaning.
COLUMNS = [
    ["tokens", "tokens", [0, ""], "tokens of the text"],
    ["tokens_per_second", "tokens/s", [0, ""], "tokens per second of decoding, without the prefill"],
    ["speedup", "speedup", [2, "×"], "relative to the first complete autoregressive result"],
    ["tau", "τ", [2, ""], "emitted tokens per cycle, including the bonus token"],
    ["A/D", "A/D", [2, ""], "accepted over sent tokens"],
    ["A/O", "A/O", [2, ""], "share of the text that came from drafts"],
    ["target_passes", "target passes", [0, ""], "forward passes of the target"],
    ["draft_passes", "draft passes", [0, ""], "forward passes of the drafter"],
]


@dataclass(frozen=True)
class Result:
    """One finished or cancelled decode.

    Parameters
    ----------
    number : int
        Its row in the table, counted from 1.
    method : str
    values : dict
        The method's parameters as they were set; the trace has those it ran with (a drafter or a template may
        replace a default).
    trace : Trace
    """

    number: int
    method: str
    values: Values
    trace: Trace

    @property
    def task(self) -> tuple[str, str]:
        """Model and prompt; only results of the same task can be compared."""
        run = self.trace.run
        return str((run["model"] or {}).get("name")), str(run["prompts"])

    def row(self, baseline: Trace | None) -> Json:
        """The result's row in the table: settings, standard metrics, and the speedup over the baseline."""
        run, trace = self.trace.run, self.trace
        speed = metrics.tokens_per_second(trace)
        whole = bool(run["complete"])
        return {
            "run": self.number,
            "method": self.method,
            **{name: (run["parameters"] or {}).get(name, value) for name, value in self.values.items()},
            "tokens": metrics.output(trace),
            "seconds": metrics.seconds(trace),
            "tokens_per_second": speed,
            "speedup": speed / metrics.tokens_per_second(baseline) if baseline is not None else float("nan"),
            "tau": metrics.tau(trace),
            "A/D": metrics.acceptance_rate(trace),
            "A/O": metrics.accepted_share(trace),
            "target_passes": metrics.target_passes(trace),
            "draft_passes": metrics.draft_passes(trace),
            "exactness": metrics.exactness(trace),
            "same_text": None if baseline is None or not whole else trace.text == baseline.text,
            "complete": whole,
        }


def slider(parameter: Parameter) -> Json:
    """Describe the control for a declared parameter (`specviz.methods.Parameter`).

    Returns
    -------
    dict
        ``name``, ``kind`` (bool, int, float, str), ``default``, ``low`` and ``high`` of the slider,
        ``step``, ``open`` (whether values beyond the slider's ends are legal; the number field accepts
        them), ``choices``, ``unit``, ``meaning``, ``symbol``.
    """
    kind = type(parameter.default).__name__
    names = ("name", "default", "unit", "meaning", "symbol")
    control = {name: getattr(parameter, name) for name in names}
    control |= {"kind": kind, "choices": list(parameter.choices)}
    if kind in ("int", "float"):
        low, high = parameter.low, parameter.high
        if low is None:
            low = min(0, 4 * parameter.default)
        if high is None or high >= LARGE:  # four times the default is useful; larger values can be typed
            high = max(4 * abs(parameter.default), low + 10)
        step = 1 if kind == "int" else (high - low) / STEPS
        control |= {"low": low, "high": high, "step": step}
        control["open"] = (low, high) != (parameter.low, parameter.high)
    return control


def positions(control: Json) -> list[float]:
    """Every value that a slider can take, rounded to six digits as in the browser."""
    low, step = control["low"], control["step"]
    count = int((control["high"] - low) / step + 1e-6) + 1
    if control["kind"] == "int":
        return [low + k for k in range(count)]
    return [float(f"{low + k * step:.6g}") for k in range(count)]


class Panel(DecodingPanel):
    """The explorer's controls, decoded text and results table, with the state as traits."""

    _esm = script("explore")
    _css = style("explore")
    models: t.List[str] = t.List().tag(sync=True)
    method = t.Unicode().tag(sync=True)
    idea = t.Unicode().tag(sync=True)
    examples: t.List[tuple[str, str]] = t.List().tag(sync=True)
    parameters: t.List[Json] = t.List().tag(sync=True)
    columns = t.List(default_value=COLUMNS).tag(sync=True)
    values = t.Dict().tag(sync=True)
    code = t.Unicode().tag(sync=True)
    limit = t.Int().tag(sync=True)
    rows: t.List[Json] = t.List().tag(sync=True)
    badges = t.Dict().tag(sync=True)
    answer = t.Dict().tag(sync=True)
    lookup = t.Dict().tag(sync=True)
    chosen = t.Int(-1).tag(sync=True)
    note = t.Unicode().tag(sync=True)


class Explorer(Decoding):
    """A control panel with the decoded text, and below it the opened player or race.

    Parameters
    ----------
    decoder : Decoder
        Lists the available models and methods, and decodes.
    model, method, prompt : str
        The initial choices.
    values : mapping, optional
        Initial settings of the method; the others start at their defaults.

    Notes
    -----
    The first decode starts when the explorer is shown in a notebook. `panel` carries the state as traits
    (``model``, ``method``, ``prompt``, ``values``, ``state``, ``shown``, ``rows``, ``code``, ``error``,
    ``theme``). `results` and `table` hold the decodes so far.
    """

    keep: Callable[[str, Trace], str] | None = None  # saves a trace and returns a message that says where

    def __init__(
        self,
        decoder: Decoder,
        model: str,
        method: str,
        prompt: str,
        values: Values | None = None,
    ) -> None:
        self.results: list[Result] = []
        self._decoder = decoder
        self._questions: dict[str, tuple[Result, WhatIf]] = {}  # newest complete result by method
        self._refusals: dict[str, str] = {}  # why a method's newest result cannot answer what-ifs
        self._last: dict[str, Values] = {}  # last settings by method
        self.panel = Panel(
            models=decoder.models, model=model, methods=decoder.methods(model), method=method,
            examples=decoder.examples(model), prompt=prompt, limit=decoder.limit,
        )  # fmt: skip
        super().__init__([self.panel])
        self._choose_method(values)
        self.panel.observe(self._model_changed, names="model")
        self.panel.observe(self._method_changed, names="method")
        self.panel.observe(self._changed, names=["values", "prompt"])
        self.panel.on_msg(self._on_message)

    # ------------------------------------------------------------ settings

    @property
    def method(self) -> str:
        """The chosen method's name."""
        return str(self.panel.method)

    def _model_changed(self, change: Bunch) -> None:
        panel, old = self.panel, {text for _, text in self.panel.examples}
        with panel.hold_sync():
            panel.methods = self._decoder.methods(panel.model)
            panel.examples = self._decoder.examples(panel.model)
            if panel.examples and (panel.prompt in old or not panel.prompt):
                panel.prompt = panel.examples[0][1]
            if self.method not in panel.methods:
                panel.method = panel.methods[0]
        self._changed()

    def _method_changed(self, change: Bunch) -> None:
        old, self.panel.error = dict(self.panel.values), ""
        with suppress(SpecvizError):  # illegal settings of the old method are dropped
            self._last[change["old"]] = self._checked(old)
        self._choose_method(self._last.get(self.method))

    def _choose_method(self, values: Values | None = None) -> None:
        """Show the chosen method's controls, set to `values` and otherwise to its defaults."""
        declared = self._decoder.parameters(self.method)
        self._parameters = {p.name: p for p in declared}
        start = self._checked({p.name: p.default for p in declared} | dict(values or {}))
        with self.panel.hold_sync():
            self.panel.idea = self._decoder.idea(self.method)
            self.panel.parameters = [slider(p) for p in declared]
            self.panel.lookup, self.panel.answer = {}, {}
            self.panel.values = start
        self._say_badges()
        self._changed()

    def _checked(self, values: Values) -> Values:
        for name in values:
            if name not in self._parameters:
                raise ParameterError(
                    f"{self.method} has no parameter {name!r}; there is "
                    + (", ".join(self._parameters) or "none")
                )
        return {name: self._parameters[name].check(value) for name, value in values.items()}

    @property
    def values(self) -> Values:
        """The current settings.

        Raises
        ------
        ParameterError
            If a value is illegal.
        """
        return self._checked(self.panel.values)

    def set(self, **values: Value) -> None:
        """Set parameters of the chosen method, which moves their controls."""
        self.panel.values = self.panel.values | self._checked(values)

    @property
    def code(self) -> str:
        """One line of Python that decodes with the current settings."""
        return self._code(self.values)

    def _code(self, values: Values) -> str:
        return self._decoder.code(self.panel.model, self.panel.prompt, self.method, values)

    def _changed(self, change: Bunch | None = None) -> None:
        try:
            self.panel.code = self.code
        except SpecvizError as error:
            self.panel.error = str(error)
            return
        self.panel.error = ""
        self._answer()

    # ------------------------------------------------------------ what-if answers from a recorded trace

    def _answer(self) -> None:
        """Show what the chosen method's newest complete result predicts for the current settings."""
        self.panel.answer = self._answer_to(self.values)

    def _tabulate(self, name: str) -> None:
        """Tabulate the answers and code along one slider, other settings fixed, for lookup during a drag.

        Positions near the slider's value come first. Those not computed within `TABLE` seconds stay empty;
        Python answers them when the slider is released.
        """
        values, places = self.values, positions(slider(self._parameters[name]))
        fixed = {other: value for other, value in values.items() if other != name}
        entries: list[Json | None] = [None] * len(places)
        until = time.monotonic() + TABLE
        for k in sorted(range(len(places)), key=lambda k: abs(places[k] - float(values[name]))):
            if time.monotonic() > until:
                break
            try:
                moved = self._checked(values | {name: places[k]})
                entries[k] = {"code": self._code(moved), "answer": self._answer_to(moved), "error": ""}
            except SpecvizError as error:
                entries[k] = {"code": "", "answer": {}, "error": str(error)}
        self.panel.lookup = {"name": name, "fixed": fixed, "entries": entries}

    def _answer_to(self, values: Values) -> Json:
        """The answer for these settings, as the panel shows it; empty without a result to query."""
        if self.method not in self._questions:
            return {}
        result, question = self._questions[self.method]
        moved = [name for name, value in values.items() if value != result.values[name]]
        words = ", ".join(f"{name} = {values[name]}" for name in moved)
        answer: Json = {"run": result.number, "words": words, "badge": "", "why": "", "text": ""}
        try:
            if moved:
                answer |= _answer_words(question, values, moved)
        except SpecvizError as error:
            answer |= {"badge": RERUN, "why": str(error)}
        return answer

    def _question(self, result: Result) -> None:
        """Answer what-ifs from this new result from now on."""
        method = result.method
        self._questions.pop(method, None)
        self._refusals.pop(method, None)
        try:
            self._questions[method] = result, whatif(result.trace)
        except SpecvizError as error:  # for example a sampled run
            self._refusals[method] = str(error)
        self.panel.lookup = {}
        self._say_badges()

    def _say_badges(self) -> None:
        """Show how certain each slider's answer is, given the chosen method's newest result."""
        answerable: dict[str, tuple[str, str]] = {}
        try:
            if self.method in self._questions:
                question = self._questions[self.method][1]
                answerable = {name: question.can_answer(name) for name in self._parameters}
        except SpecvizError as error:
            self._refusals[self.method] = str(error)
        if why := self._refusals.get(self.method):
            answerable = dict.fromkeys(self._parameters, (RERUN, why))
        self.panel.badges = {name: {"badge": badge, "why": why} for name, (badge, why) in answerable.items()}

    # ------------------------------------------------------------ decoding

    def _check_model(self) -> None:
        """Refuse a model that is not in the list: a page's user may not name an arbitrary folder."""
        if self.panel.model not in self._decoder.models:
            raise ParameterError("There is no such model in the list.")

    def run(self, method: Given | None = None) -> None:
        """Decode in the background with the current settings, once no other decode runs in this process.

        Parameters
        ----------
        method : str, class or Method, optional
            A method other than the chosen one, run with its defaults or, for an instance, its parameters.
            The panel's baseline button runs ``autoregressive``.
        """
        panel = self.panel
        try:
            self._check_model()
            values = self.values if method in (None, self.method) else {}
        except SpecvizError as error:
            panel.error = str(error)
            return
        if self.busy:
            panel.error = "A decode is running: stop it or wait until it has ended."
            return
        panel.error, panel.shown = "", []  # before the state, so that a view that opens now shows no old text
        panel.state = "waiting"
        model, prompt, given = panel.model, panel.prompt, method or self.method
        self._job = Job(lambda stopped: self._work(stopped, model, prompt, given, values))
        self._job.start()

    def _work(self, stopped: threading.Event, model: str, prompt: str, method: Given, values: Values) -> None:
        run, state, message = None, "done", ""
        self.panel.state = "loading"
        try:
            run = self._decoder.start(model, prompt, method, values, dense=True)
            if self.panel.model == model:  # the user may have chosen another one in the meantime
                self.panel.methods = self._decoder.methods(model)
            self.panel.state = "running"
            self._follow(run, stopped)
            if stopped.is_set():
                state = "stopped"
        except Exception as error:  # any failure of the decode is shown as one line in the panel
            state, message = "error", error_line(error)
        try:
            trace = getattr(run, "trace", None)
            if trace is not None and len(trace.cycles):
                own = values or trace.run["parameters"] or {}
                self._append(Result(len(self.results) + 1, trace.run["method"], own, trace))
            self._changed()  # names a bad value that was typed meanwhile
        except Exception as error:
            state, message = "error", error_line(error)
        self.panel.error = message or self.panel.error
        self.panel.state = state

    def _follow(self, run: Run, stopped: threading.Event) -> None:
        """Run the decode to its end, or until stopped, while a feed sends its cycles to the page."""
        feed = self._feed = Feed(lambda cycles: self.panel.send({"do": "cycles", "cycles": cycles}), [run])
        seconds = 0.0
        try:
            for cycle in run:
                seconds += cycle_seconds(run, cycle)
                feed.add(cycle, seconds)
                if stopped.is_set():
                    run.close()
                    break
        finally:
            self._feed = None
            feed.close()
            self.panel.shown = feed.sent

    # ------------------------------------------------------------ results

    def _baseline(self, result: Result) -> Trace | None:
        """The first complete autoregressive result of the same task, the reference for the speedup."""
        whole = (r for r in self.results if r.method == BASELINE and r.trace.run["complete"])
        return next((r.trace for r in whole if r.task == result.task), None)

    def _append(self, result: Result) -> None:
        self.results.append(result)
        self.panel.rows = plain_data([r.row(self._baseline(r)) for r in self.results])
        if result.trace.run["complete"]:
            self._question(result)

    @property
    def table(self) -> pd.DataFrame:
        """One row per result: settings, metrics, and whether the text equals the baseline's."""
        import pandas as pd

        return pd.DataFrame([result.row(self._baseline(result)) for result in self.results])

    def play(self, run: int) -> None:
        """Show a result in the player below the panel."""
        result = self._result(run)
        self._below(player(result.trace))
        self.panel.chosen = run

    def race(self, runs: Iterable[int] | None = None) -> None:
        """Race results against each other below the panel; by default all those of the newest task."""
        if runs is not None:
            chosen = [self._result(number) for number in runs]
        else:
            chosen = [r for r in self.results if r.task == self._result(len(self.results)).task]
        self._below(Race(raced([result.trace for result in chosen])))
        self.panel.chosen = 0

    def contest(self) -> LiveRace:
        """Create a live race of the chosen settings against the baseline (or the first other method).

        Raises
        ------
        ParameterError
            If the model is not in the list, or runs no method but the chosen one.
        """
        self._check_model()
        moved = {p.name: p.default for p in self._parameters.values()}
        moved = {name: value for name, value in self.values.items() if value != moved[name]}
        own = ":".join(filter(None, [self.method, ",".join(f"{k}={v}" for k, v in moved.items())]))
        model = self.panel.model
        others = [name for name in self._decoder.methods(model) if name != self.method]
        if not others:
            raise ParameterError(f"{model} runs no method but {self.method}: race on another model")
        rival = BASELINE if BASELINE in others else others[0]  # a diffusion model cannot run the baseline
        entrants = sorted([own, rival], key=lambda name: name != BASELINE)
        return LiveRace(self._decoder, model, self.panel.prompt, entrants, self.panel.theme)

    def race_live(self) -> None:
        """Show the live race of `contest` below the panel; it starts as soon as it is visible."""
        self._below(self.contest())
        self.panel.chosen = 0

    panel: Panel

    def _below(self, view: Player | Race | LiveRace) -> None:
        if not isinstance(view, LiveRace):
            view.theme = self.panel.theme
        before = self.children[1:]
        self.children = (self.panel, view)
        for old in before:
            old.close()

    def _result(self, run: int) -> Result:
        if not 1 <= run <= len(self.results):
            there = f"runs are numbered 1 to {len(self.results)}" if self.results else "nothing has run yet"
            raise TraceError(f"no run {run}; {there}")
        return self.results[run - 1]

    def save(self, run: int) -> tuple[str, bytes]:
        """Return a result's trace as a file: its name and its bytes."""
        name = self._file_name(run)
        with tempfile.TemporaryDirectory() as folder:
            return name, self._result(run).trace.save(Path(folder) / name).read_bytes()

    def _file_name(self, run: int) -> str:
        return f"{re.sub(r'[^A-Za-z0-9_-]', '_', self._result(run).method)}-{run}.parquet"

    def _on_message(self, _: AnyWidget, content: Json, buffers: list[bytes]) -> None:
        """Run the action of a pressed button of the panel."""
        verbs: dict[str, Callable[[], None]] = {
            "open": self._open,
            "run": lambda: self._run_as(content),
            "baseline": lambda: self._run_as(content, BASELINE),
            "stop": self.stop,
            "play": lambda: self.play(int(content["run"])),
            "race": self.race,
            "live": self.race_live,
            "save": lambda: self._save(int(content["run"])),
            "use": lambda: self._use(int(content["run"])),
            "tabulate": lambda: self._tabulate(str(content["name"])),
        }
        try:
            verbs[content["do"]]()
        except Exception as error:
            self.panel.error = error_line(error)

    def _open(self) -> None:
        """Start the first decode when the panel is first shown."""
        if self._job is None and not self.results:
            self.run()
        self._catch_up()

    def _run_as(self, content: Json, method: str | None = None) -> None:
        """Decode the prompt in the message, because the trait may lag behind the last keystrokes."""
        self.panel.prompt = str(content.get("prompt", self.panel.prompt))
        self.run(method)

    def _save(self, run: int) -> None:
        """Pass a result to `keep` if it is set, otherwise to the browser as a download."""
        if self.keep is not None:
            self.panel.note = ""  # so that repeating the same message still triggers a change
            self.panel.note = self.keep(self._file_name(run), self._result(run).trace)
            return
        name, data = self.save(run)
        self.panel.send({"do": "file", "name": name}, [data])

    def _use(self, run: int) -> None:
        result = self._result(run)
        if result.method in self.panel.methods:
            self.panel.method = result.method
            self.set(**{name: value for name, value in result.values.items() if name in self._parameters})


def _answer_words(question: WhatIf, values: Values, moved: list[str]) -> dict[str, str]:
    """The answer for these settings: badge, reason, and the numbers in words with their bounds."""
    cannot = [why for badge, why in map(question.can_answer, moved) if badge == RERUN]
    if cannot:
        return {"badge": RERUN, "why": cannot[0]}
    answer = question.ask(**{name: values[name] for name in moved})
    row = answer.table.iloc[0]
    if row["badge"] == RERUN:
        place = answer.places.iloc[0]
        where = f"in cycle {place['cycle']}, at token {place['position']}"
        return {"badge": RERUN, "why": f"{where}: {place['why']}"}
    words = []
    for name, form in COUNTS.items():
        low, high = row.get(f"{name}_lo", row[name]), row.get(f"{name}_hi", row[name])
        if row[name] == row[name]:
            words.append(form.format(row[name]) + (f" [{low:.4g}, {high:.4g}]" if low != high else ""))
    return {"badge": row["badge"], "why": answer.why, "text": ", ".join(words)}
