"""Sliders made from a method's declared parameters, live decoding, and a table of what each setting did.

This wing may not run a model: whoever makes an explorer hands it the function that decodes
(`specviz.explore` does).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import ipywidgets
import traitlets as t
from anywidget import AnyWidget
from traitlets import Bunch

from specviz import metrics
from specviz.errors import ParameterError, SpecvizError, TraceError
from specviz.trace import Trace
from specviz.whatifs import BADGES, WhatIf, whatif
from specviz.widgets.assets import script, style
from specviz.widgets.columns import Json
from specviz.widgets.player import Player, player
from specviz.widgets.race import Race, race
from specviz.widgets.stateful import error_line, joined

if TYPE_CHECKING:
    import pandas as pd

    from specviz.loop.run import Run
    from specviz.methods import Given, Parameter

Value: TypeAlias = bool | float | str  # of a parameter
Values: TypeAlias = dict[str, Value]

PAUSE = 0.05  # seconds between two reports of a running decode: enough for the eye, little for the kernel
TABLE = 1.0  # seconds that the answers along a slider may take
STEPS = 100  # positions of a slider over a range of real numbers
BASELINE = "autoregressive"
RERUN = BADGES[-1]
COUNTS = {"cycles": "{:.0f} cycles", "tau": "τ {:.2f}", "A/D": "A/D {:.2f}", "drafted": "{:.0f} drafted"}

# The table's metrics: key, heading, digits and unit, meaning.
COLUMNS = [
    ["tokens", "tokens", [0, ""], "tokens of the text"],
    ["tokens_per_second", "tokens/s", [0, ""], "tokens a second of decoding, the prefill left out"],
    ["speedup", "speedup", [2, "×"], "over the first whole autoregressive result"],
    ["tau", "τ", [2, ""], "emitted tokens a cycle, the bonus counted"],
    ["A/D", "A/D", [2, ""], "accepted over drafted tokens"],
    ["A/O", "A/O", [2, ""], "share of the text that came from drafts"],
    ["target_passes", "target passes", [0, ""], "forward passes of the target"],
    ["draft_passes", "draft passes", [0, ""], "forward passes of the drafter"],
]

# One decode at a time in this process: a second one would spoil the first one's times.
_decoding = threading.Lock()


@dataclass(frozen=True)
class Result:
    """One finished or cancelled decode.

    Parameters
    ----------
    number : int
        Its row in the table; the first is 1.
    method : str
    values : dict
        The method's parameters.
    trace : Trace
    """

    number: int
    method: str
    values: Values
    trace: Trace

    def row(self, baseline: Trace | None) -> Json:
        """What the table shows: the field's metrics, and the speedup over the baseline's decoding."""
        run, trace = self.trace.run, self.trace
        speed = metrics.tokens_per_second(trace)
        whole = bool(run["complete"])
        return {
            "run": self.number,
            "method": self.method,
            **self.values,
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
    """A declared parameter (`specviz.methods.Parameter`) as what a control needs to know.

    Returns
    -------
    dict
        ``name``, ``kind`` (bool, int, float, str), ``default``, ``low`` and ``high`` of the slider,
        ``step``, ``open`` (whether legal values go on beyond the slider's end: the number field takes
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
        if high is None:  # four times the default shows what matters; more can be typed
            high = max(4 * abs(parameter.default), low + 10)
        step = 1 if kind == "int" else (high - low) / STEPS
        control |= {"low": low, "high": high, "step": step}
        control["open"] = parameter.low is None or parameter.high is None
    return control


def positions(control: Json) -> list[float]:
    """Every value that a slider can stand at, as a browser says it: six digits."""
    low, step = control["low"], control["step"]
    count = int((control["high"] - low) / step + 1e-6) + 1
    if control["kind"] == "int":
        return [low + k for k in range(count)]
    return [float(f"{low + k * step:.6g}") for k in range(count)]


class Panel(AnyWidget):
    """The explorer's controls and table; its state as traits."""

    _esm = script("explore")
    _css = style("explore")
    method = t.Unicode().tag(sync=True)
    title = t.Unicode().tag(sync=True)
    baseline = t.Unicode().tag(sync=True)
    parameters: t.List[Json] = t.List().tag(sync=True)
    columns = t.List(default_value=COLUMNS).tag(sync=True)
    values = t.Dict().tag(sync=True)
    code = t.Unicode().tag(sync=True)
    state = t.Enum(["idle", "running", "done", "cancelled", "error"], "idle").tag(sync=True)
    progress = t.Dict().tag(sync=True)
    rows: t.List[Json] = t.List().tag(sync=True)
    badges = t.Dict().tag(sync=True)
    answer = t.Dict().tag(sync=True)
    lookup = t.Dict().tag(sync=True)
    error = t.Unicode().tag(sync=True)
    chosen = t.Int(-1).tag(sync=True)
    theme = t.Enum(["auto", "light", "dark"], "auto").tag(sync=True)


class Explorer(ipywidgets.VBox):
    """A control panel, and below it the player or the race that was asked for.

    Parameters
    ----------
    method : str
        Name of the method.
    parameters : sequence of `specviz.methods.Parameter`
        The method's declared parameters: one control each.
    decode : callable
        ``decode(method, **values)`` gives an iterator of finished cycles (each with its ``tokens``) that
        has ``trace`` at its end and ``close()``, as `specviz.stream` does. It runs in a thread.
    call : callable
        ``call(**values)`` gives the line of code that decodes with these values.
    limit : int
        Most tokens that a decode may emit, for the progress bar.
    values : mapping, optional
        Settings to begin with; the others start at their defaults.
    title : str
        What stands above the sliders.
    show : callable, optional
        ``show(token ids)`` gives text, for the text that grows while a decode runs.

    Notes
    -----
    `panel` carries the state as traits (``values``, ``state``, ``progress``, ``rows``, ``code``,
    ``error``, ``theme``). `results` and `table` hold what has run.
    """

    def __init__(
        self,
        method: str,
        parameters: Sequence[Parameter],
        decode: Callable[..., Run],
        call: Callable[..., str],
        limit: int,
        values: Values | None = None,
        title: str = "",
        show: Callable[[list[int]], str] | None = None,
    ) -> None:
        self.method = method
        self.results: list[Result] = []
        self._parameters = {p.name: p for p in parameters}
        self._decode, self._call, self._limit, self._show = decode, call, limit, show
        self._last_question: tuple[Result, WhatIf] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        start = {p.name: p.default for p in parameters} | dict(values or {})
        self.panel = Panel(
            method=method,
            title=title or method,
            parameters=[slider(p) for p in parameters],
            values=self._checked(start),
            baseline="" if method == BASELINE else BASELINE,
        )
        super().__init__([self.panel])
        self.panel.observe(self._changed, names="values")
        self.panel.on_msg(self._on_message)
        self._changed()

    # ------------------------------------------------------------ settings

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
            If one is illegal.
        """
        return self._checked(self.panel.values)

    def set(self, **values: Value) -> None:
        """Move sliders."""
        self.panel.values = self.panel.values | self._checked(values)

    @property
    def code(self) -> str:
        """One line that decodes with the current settings."""
        return self._call(**self.values)

    def _changed(self, change: Bunch | None = None) -> None:
        try:
            self.panel.code = self.code
        except SpecvizError as error:
            self.panel.error = str(error)
            return
        self.panel.error = ""
        self._answer()

    # ------------------------------------------------------------ what a saved trace can say

    def _answer(self) -> None:
        """What the newest whole result of the explorer's method says of the current settings."""
        if self._last_question is not None:
            self.panel.answer = self._answer_to(self.values)

    def _tabulate(self, name: str) -> None:
        """The answers and the code along one slider, the others as they stand: a drag looks them up.

        Those near the slider's value come first; what takes longer than `TABLE` stays empty, and Python is
        asked for it when the slider is let go.
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
                entries[k] = {"code": self._call(**moved), "answer": self._answer_to(moved), "error": ""}
            except SpecvizError as error:
                entries[k] = {"code": "", "answer": {}, "error": str(error)}
        self.panel.lookup = {"name": name, "fixed": fixed, "entries": entries}

    def _answer_to(self, values: Values) -> Json:
        """The answer to a setting, as the panel shows it; empty before there is a result to ask."""
        if self._last_question is None:
            return {}
        result, question = self._last_question
        moved = [name for name, value in values.items() if value != result.values[name]]
        words = ", ".join(f"{name} = {values[name]}" for name in moved)
        answer: Json = {"run": result.number, "words": words, "badge": "", "why": "", "text": ""}
        try:
            if moved:
                answer |= _answer_words(question, values, moved)
        except SpecvizError as error:
            answer |= {"badge": RERUN, "why": str(error)}
        return answer

    def _can_answer(self, result: Result) -> None:
        """Ask a new result from now on, and say how sure each slider's answer would be."""
        try:
            question = whatif(result.trace)
            answerable = {name: question.can_answer(name) for name in self._parameters}
        except SpecvizError as error:  # a sampled run, for one
            self._last_question = None
            self.panel.answer = {}
            answerable = dict.fromkeys(self._parameters, (RERUN, str(error)))
        else:
            self._last_question = (result, question)
            self._answer()
        self.panel.lookup = {}
        self.panel.badges = {name: {"badge": badge, "why": why} for name, (badge, why) in answerable.items()}

    # ------------------------------------------------------------ decoding

    def run(self, method: Given | None = None) -> None:
        """Decode in the background with the current settings.

        Parameters
        ----------
        method : str, class or Method, optional
            Another method than the explorer's own, with its defaults or, of an instance, its parameters; the
            panel's baseline button runs ``autoregressive``.
        """
        panel = self.panel
        try:
            values = self.values if method in (None, self.method) else {}
        except SpecvizError as error:
            panel.error = str(error)
            return
        if not _decoding.acquire(blocking=False):
            panel.error = "A decode is running: cancel it, or wait until it has ended."
            return
        self._stop.clear()
        panel.error = ""
        panel.progress = {"tokens": 0, "cycles": 0, "limit": self._limit, "seconds": 0.0, "text": ""}
        panel.state = "running"
        self._thread = threading.Thread(target=self._work, args=(method or self.method, values), daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Ask the running decode to stop after its current cycle; the trace so far is kept."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the running decode; whether it has ended."""
        return joined(self._thread, seconds)

    def _work(self, method: Given, values: Values) -> None:
        run, state, message = None, "done", ""
        try:
            run = self._decode(method, **values)
            self._follow(run)
            if self._stop.is_set():
                state = "cancelled"
        except Exception as error:  # whatever the decode raises is one line in the panel
            state, message = "error", error_line(error)
        try:
            trace = getattr(run, "trace", None)
            if trace is not None and len(trace.cycles):
                self._append(Result(len(self.results) + 1, trace.run["method"], values, trace))
        except Exception as error:
            state, message = "error", error_line(error)
        finally:
            _decoding.release()
        self.panel.error = message
        self.panel.state = state

    def _follow(self, run: Run) -> None:
        """Exhaust the decode, reporting now and then."""
        begun = reported = time.monotonic()
        tokens: list[int] = []
        cycles = 0

        def report() -> None:
            text = self._show(tokens) if self._show else ""
            self.panel.progress = {
                "tokens": len(tokens), "cycles": cycles, "limit": self._limit,
                "seconds": time.monotonic() - begun, "text": text,
            }  # fmt: skip

        for cycle in run:
            cycles += 1
            keep = getattr(cycle, "keep", None)
            if keep is not None:
                del tokens[keep:]
            tokens += cycle.tokens
            if self._stop.is_set():
                run.close()
                break
            if time.monotonic() - reported >= PAUSE:
                reported = time.monotonic()
                report()
        report()

    # ------------------------------------------------------------ results

    @property
    def _baseline(self) -> Trace | None:
        """The first whole autoregressive result, which speeds are given over."""
        whole = (r.trace for r in self.results if r.method == BASELINE and r.trace.run["complete"])
        return next(whole, None)

    def _append(self, result: Result) -> None:
        self.results.append(result)
        base = self._baseline
        self.panel.rows = [_plain(r.row(base)) for r in self.results]
        if result.method == self.method and result.trace.run["complete"]:
            self._can_answer(result)

    @property
    def table(self) -> pd.DataFrame:
        """One row a result: settings, metrics, and whether the text is the baseline's."""
        import pandas as pd

        base = self._baseline
        return pd.DataFrame([result.row(base) for result in self.results])

    def play(self, run: int) -> None:
        """Show a result in the player, below the panel."""
        result = self._result(run)
        self._below(player(result.trace))
        self.panel.chosen = run

    def race(self, runs: Iterable[int] | None = None) -> None:
        """Race results against each other, below the panel; all of them if none are named."""
        chosen = [self._result(n) for n in runs] if runs is not None else self.results
        self._below(race([result.trace for result in chosen]))
        self.panel.chosen = 0

    children: tuple[ipywidgets.DOMWidget, ...]

    def _below(self, view: Player | Race) -> None:
        view.theme = self.panel.theme
        before = self.children[1:]
        self.children = (self.panel, view)
        for old in before:
            old.close()

    def _result(self, run: int) -> Result:
        if not 1 <= run <= len(self.results):
            there = f"there are 1 to {len(self.results)}" if self.results else "nothing has run yet"
            raise TraceError(f"no run {run}; {there}")
        return self.results[run - 1]

    def _on_message(self, _: AnyWidget, content: Json, buffers: list[bytes]) -> None:
        """A button of the panel was pressed."""
        verbs: dict[str, Callable[[], None]] = {
            "run": self.run,
            "baseline": lambda: self.run(BASELINE),
            "cancel": self.cancel,
            "play": lambda: self.play(int(content["run"])),
            "race": self.race,
            "use": lambda: self._use(int(content["run"])),
            "tabulate": lambda: self._tabulate(str(content["name"])),
        }
        try:
            verbs[content["do"]]()
        except Exception as error:
            self.panel.error = error_line(error)

    def _use(self, run: int) -> None:
        result = self._result(run)
        if result.method == self.method:
            self.set(**result.values)


def _answer_words(question: WhatIf, values: Values, moved: list[str]) -> dict[str, str]:
    """The answer to a setting: badge, reason and the numbers in words, each with its bounds."""
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


def _plain(row: Json) -> Json:
    """A row as JSON knows it: NaN is null."""
    return {k: None if isinstance(v, float) and v != v else v for k, v in row.items()}
