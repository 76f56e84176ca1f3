"""The same prompt by several methods, aligned by output position and played at true relative speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import traitlets as t

from specviz.escape import html
from specviz.view.static import table
from specviz.view.updates import Traces
from specviz.widgets import columns
from specviz.widgets.assets import script, style
from specviz.widgets.lanes import Field, fields, flat
from specviz.widgets.stateful import Stateful, Value

if TYPE_CHECKING:
    import pandas as pd


class Race(Stateful):
    """A race that can be scrubbed and played; made by `race`.

    Everything travels once, as bytes; playing happens in the browser. These traits follow what is shown and
    can be set:

    - ``prompt``: which of the fields, from 0.
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

    @t.validate("prompt")
    def _legal_prompt(self, proposal: t.Bunch) -> int:
        if not 0 <= proposal["value"] < len(self.fields):
            raise t.TraitError(f"there is no prompt {proposal['value']}: the race has {len(self.fields)}")
        return int(proposal["value"])

    @property
    def table(self) -> pd.DataFrame:
        """One row a prompt and lane: finish in seconds, tokens, passes, speedup (NaN if clocks differ)."""
        import pandas as pd

        rows = []
        for number, field in enumerate(self.fields):
            for i, lane in enumerate(field.lanes):
                row = {"prompt": number, "name": lane.name, "exactness": lane.exactness}
                row |= {
                    "tokens": lane.output,
                    "prefill": lane.prefill,
                    "finish": lane.finish,
                    "passes": len(lane.blocks["end"]),
                }
                row |= {"speedup": field.speedup(i), "speedup_with_prefill": field.speedup(i, prefill=True)}
                rows.append(row | {"ended": lane.end, "parts": lane.parts})
        return pd.DataFrame(rows)

    def _page(self) -> str:
        names = ", ".join(lane.name for lane in self.fields[self.prompt].lanes)
        notes = "".join(f"<p>{html(note)}</p>" for note in self.fields[self.prompt].notes)
        still = f'<div class="specviz">{notes}{table(self.table.round(4))}</div>'
        return self._document("race", f"specviz race: {names}", still)


def race(traces: Traces, **state: Value) -> Race:
    """Race several methods on the same prompt, each on its own recorded clock.

    Parameters
    ----------
    traces : list of Trace, dict of name to Trace, or a Trace of several runs
        At least two runs that decoded the same prompts in the same order. Prompts that differ between the
        runs are left out, and the picture says so.
    **state
        Where to begin: traits of `Race`, for example ``prompt=2``.

    Returns
    -------
    Race
        Its traits follow what is shown; ``race.to_html(path)`` writes it as one offline page.

    Raises
    ------
    TraceError
        If there are fewer than two runs, they share no prompt, or one recorded no times.
    ParameterError
        If there is no such state.
    """
    return Race(fields(traces), **state)
