"""The player: step through a decode to see the drafts, probabilities, verdicts, emitted tokens and costs."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import traitlets as t
from traitlets import Bunch

from specviz import view
from specviz.trace import Trace, is_trace
from specviz.widgets import assets
from specviz.widgets.columns import Chunks, columns, pack
from specviz.widgets.page import STILLS
from specviz.widgets.stateful import Stateful, Value

WHOLE = 4_000_000  # size of the columns in bytes up to which the first chunk is sent along


class Player(Stateful):
    """An interactive view of a trace that can be scrubbed, played and queried; created by `player`.

    The columns are sent once, as bytes; stepping happens in the browser. These traits reflect the view's
    state and can be set:

    - ``prompt``: which of the trace's prompts, from 0 in the trace's order.
    - ``cycle``: row of the prompt's cycles; 0 is the prefill. The default cycle accepts and rejects tokens.
    - ``phase``: ``draft`` (not yet judged), ``verify`` (judged) or ``commit`` (tokens appended).
    - ``playing``, and ``speed`` in cycles per second.
    - ``predict``: whether verdicts are hidden until the reader guesses; ``score`` is (right, guesses) so far.
    - ``substeps``: whether a step is one phase (draft, verify, commit) instead of a whole cycle.
    - ``growth``: whether drafts grow level by level, then show the nodes cut by threshold and budget.
    - ``theme``: ``auto``, ``light`` or ``dark``; ``projector``: whether everything is larger.
    """

    _esm = assets.script("player")
    _css = assets.style("player")
    NAME = "the player"
    STATE = (
        "prompt", "cycle", "phase", "playing", "speed", "predict", "substeps", "growth", "theme", "projector",
    )  # fmt: skip
    VIEW = "player"  # the module in `assets`
    chunk = t.Bytes().tag(sync=True)
    want = t.Int(-1).tag(sync=True)
    prompt = t.Int(0).tag(sync=True)
    cycle = t.Int(0).tag(sync=True)
    phase = t.Enum(["draft", "verify", "commit"], "commit").tag(sync=True)
    speed = t.Float(1.0).tag(sync=True)
    predict = t.Bool(False).tag(sync=True)
    score = t.List(t.Int(), [0, 0]).tag(sync=True)
    substeps = t.Bool(False).tag(sync=True)
    growth = t.Bool(False).tag(sync=True)

    def __init__(self, trace: Trace, prompts: Iterable[int] | None = None, **state: Value) -> None:
        header, arrays = columns(trace, prompts)
        self._trace, self._chunks = trace, Chunks(trace, prompts)
        self._prompts = [each["prompt"] for each in header["prompts"]]
        self._lengths = [each["last"] - each["first"] for each in header["prompts"]]
        data = pack(header, arrays)
        chunk = pack(*self._chunks[0]) if len(data) <= WHOLE else b""
        shown = state.get("prompt", 0)
        if isinstance(shown, int) and 0 <= shown < len(header["prompts"]):
            state = {"cycle": header["prompts"][shown]["opens"]} | state
        super().__init__(data, state, chunk=chunk)
        self.observe(self._wanted, names="want")

    @t.validate("prompt", "cycle", "speed")
    def _legal_value(self, proposal: Bunch) -> float:
        name, value = proposal["trait"].name, proposal["value"]
        if name == "speed":
            if not 0 < value < inf:
                raise t.TraitError(f"speed takes a positive number of cycles per second, got {value}")
            return float(value)
        prompt = value if name == "prompt" else self.prompt
        if not 0 <= prompt < len(self._lengths):
            raise t.TraitError(f"there is no prompt {prompt}: the player has {len(self._lengths)}")
        if name == "cycle" and not 0 <= value < self._lengths[prompt]:
            raise t.TraitError(f"there is no cycle {value}: the prompt has {self._lengths[prompt]}")
        if name == "prompt":
            self.cycle = min(self.cycle, self._lengths[prompt] - 1)
        return int(value)

    def _wanted(self, change: Bunch) -> None:
        if 0 <= change["new"] < len(self._chunks):
            self.chunk = pack(*self._chunks[change["new"]])

    def _page(self) -> str:
        chunks = [pack(*self._chunks[i]) for i in range(len(self._chunks))]
        title = f"specviz: {self._trace.run['method']}"
        still = view.html(self._trace.select(prompt=self._prompts), STILLS)
        return self._document(self.VIEW, title, still, chunks, [prompt + 1 for prompt in self._prompts])


class CanvasPlayer(Player):
    """The player of a trace that fills masked canvases, with the additional scripts such traces need."""

    VIEW = "canvas"
    _esm = assets.script("canvas")
    _css = assets.style("canvas")


def player(trace: Trace, prompts: Iterable[int] | None = None, **state: Value) -> Player:
    """Open a trace in an interactive notebook view: step, play, inspect verdicts and predict them.

    Parameters
    ----------
    trace : Trace
        A trace of one run; its prompts can be selected in the view.
    prompts : iterable of int, optional
        Show only these prompts.
    **state
        Initial state: traits of `Player`, for example ``cycle=3`` or ``predict=True``.

    Returns
    -------
    Player
        Its traits reflect the view's state; ``to_html(path)`` writes it as one offline page that opens at the
        same place, and ``trace.to_html(path)`` writes a page with the player of every run.

    Raises
    ------
    TraceError
        If the trace holds several runs or no cycles.
    ParameterError
        If `state` names an unknown trait or gives an invalid value.

    Examples
    --------
    >>> specviz.player(trace, cycle=3, predict=True)  # doctest: +SKIP
    """
    filled = len(is_trace(trace).split()) == 1 and trace.run.get("canvas") is not None
    return (CanvasPlayer if filled else Player)(trace, prompts, **state)
