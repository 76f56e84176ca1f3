"""Race of several methods on the same prompt, aligned by output position, at true relative speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

import traitlets as t

from specviz.errors import ParameterError
from specviz.escape import html
from specviz.view.static import table
from specviz.view.updates import Traces
from specviz.widgets import columns
from specviz.widgets.assets import script, style
from specviz.widgets.lanes import Field, fields, flat
from specviz.widgets.stateful import Stateful, Value

if TYPE_CHECKING:
    import pandas as pd

    from specviz.loop.checks import Prompts
    from specviz.loop.drafters import Loadable
    from specviz.methods import Method
    from specviz.widgets.live_race import LiveRace


class Race(Stateful):
    """A race that can be scrubbed and played; created by `race`.

    All data is sent once, as bytes; playback happens in the browser. These traits reflect the view's state
    and can be set:

    - ``prompt``: index of the field, from 0; setting it resets the time.
    - ``time``: seconds on the race's clock.
    - ``playing``, and ``pace``: how many seconds the slowest lane takes on the screen.
    - ``theme``: ``auto``, ``light`` or ``dark``; ``projector``: whether everything is larger.
    """

    _esm = script("race")
    _css = style("race")
    NAME = "the race"
    STATE = ("prompt", "time", "playing", "pace", "theme", "projector")
    prompt = t.Int(0).tag(sync=True)
    time = t.Float(0.0).tag(sync=True)
    pace = t.Float(12.0).tag(sync=True)

    def __init__(self, fields: Sequence[Field], **state: Value) -> None:
        self.fields = list(fields)
        super().__init__(columns.pack(*flat(self.fields)), state)
        self._from_page = False
        self.observe(self._restart, names="prompt")  # after the initial state, which may hold a time

    def set_state(self, sync_data: Mapping[str, Value]) -> None:
        """Take over the page's state; a page that changes the prompt restarts itself."""
        self._from_page = True
        try:
            super().set_state(sync_data)
        finally:
            self._from_page = False

    @t.validate("prompt")
    def _legal_prompt(self, proposal: t.Bunch) -> int:
        if not 0 <= proposal["value"] < len(self.fields):
            raise t.TraitError(f"there is no prompt {proposal['value']}: the race has {len(self.fields)}")
        return int(proposal["value"])

    def _restart(self, change: t.Bunch) -> None:
        # here and not in the page: its answer could arrive after a time that is set next
        if not self._from_page:
            self.time, self.playing = 0.0, False

    @t.validate("pace")
    def _legal_pace(self, proposal: t.Bunch) -> float:
        if not 0 < proposal["value"] < inf:
            raise t.TraitError(f"pace takes a positive number of seconds, got {proposal['value']}")
        return float(proposal["value"])

    @property
    def table(self) -> pd.DataFrame:
        """One row per field and lane: prefill and finish in seconds, speedup (NaN if clocks differ)."""
        import pandas as pd

        rows = []
        for number, field in enumerate(self.fields):
            for i, lane in enumerate(field.lanes):
                row = {"prompt": number, "name": lane.name, "exactness": lane.exactness}
                row |= {
                    "tokens": lane.output,
                    "prefill": lane.prefill,
                    "finish": lane.finish,
                    "cycles": len(lane.blocks["end"]),
                }
                row |= {"speedup": field.speedup(i), "speedup_with_prefill": field.speedup(i, prefill=True)}
                rows.append(row | {"ended": lane.end, "parts": lane.parts})
        return pd.DataFrame(rows)

    def _page(self) -> str:
        names = ", ".join(lane.name for lane in self.fields[self.prompt].lanes)
        notes = "".join(f"<p>{html(note)}</p>" for note in self.fields[self.prompt].notes)
        numbers = [field.number for field in self.fields]
        shown = self.table.round(4).rename(columns={name: f"{name}, s" for name in ("prefill", "finish")})
        shown["prompt"] = [numbers[k] for k in shown["prompt"]]
        still = f'<div class="specviz">{notes}{table(shown)}</div>'
        return self._document("race", f"specviz race: {names}", still, numbers=numbers)


def race(
    traces: Traces | None = None,
    *,
    live: bool = False,
    model: Loadable = None,
    prompt: Prompts = None,
    methods: Sequence[str | Method | type[Method]] = ("autoregressive", "speculative"),
    draft: Loadable = None,
    **state: Value,
) -> Race | LiveRace:
    """Race several methods on the same prompt: recorded runs, or with ``live=True`` runs decoded live.

    Parameters
    ----------
    traces : list of Trace, dict of name to Trace, or a Trace of several runs
        At least two runs that decoded the same prompts in the same order. Prompts that differ between the
        runs are skipped, which a note in the view reports.
    live : bool
        Decode two or three methods live, each in its own column on its own clock. They take turns in one
        thread, so that none is timed while another one computes; once they have ended, the recorded race
        opens below.
    model : str, path, transformers model or specviz model, optional
        For a live race; by default SmolLM2 if it is downloaded, otherwise ``town``.
    prompt : int, or any one prompt that `specviz.generate` takes
        For recorded runs the first prompt to show; for a live race the prompt to decode.
    methods : sequence of str, class or Method
        For a live race; a name may include settings: ``"bild:fallback=0.5"``.
    draft : like `model`, optional
        For a live race, the draft model; by default the package's drafter for the model.
    **state
        Initial state: traits of `Race`, for example ``pace=24``. For a live race, arguments of
        `specviz.generate`: ``max_new_tokens``, ``temperature``, ``top_k``, ``top_p``, ``seed``, ``record``,
        ``device`` and ``dtype``.

    Returns
    -------
    Race or LiveRace
        A race's traits reflect the view's state; ``race.to_html(path)`` writes it as one offline page. A live
        race decodes as soon as a notebook shows it; its ``traces`` hold the decodes.

    Raises
    ------
    TraceError
        If there are fewer than two runs, they share no prompt, only some fill a canvas, a run recorded no
        times, or a run decodes streams.
    ParameterError
        If an argument conflicts with `live`, or a state, method or option is unknown or invalid.
    ModelError, PromptError
        For a live race, if the model is missing or the prompt is invalid.

    Examples
    --------
    >>> specviz.race([trace, another])  # doctest: +SKIP
    >>> specviz.race(live=True)  # doctest: +SKIP
    >>> specviz.race(live=True, model="town", methods=["autoregressive", "bild"])  # doctest: +SKIP
    """
    if live:
        from .explorer import race_live

        if traces is not None:
            raise ParameterError("a live race decodes: pass model, prompt and methods, not traces")
        return race_live(model, prompt, methods, draft, dict(state))
    if traces is None:
        raise ParameterError("race takes traces, or live=True to decode: specviz.race(live=True)")
    if model is not None or draft is not None:
        raise ParameterError("model, methods and draft are only for live=True; recorded runs have their own")
    return Race(fields(traces), **state | ({} if prompt is None else {"prompt": prompt}))
