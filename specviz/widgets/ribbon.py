"""The ribbon's door: one name for what stands still and for what moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specviz.view.updates import Traces
    from specviz.widgets.stateful import Value

    from ..view.flicker import Flicker
    from .flicker import LiveFlicker


def flicker(
    traces: Traces, prompt: int | None = None, *, live: bool = False, **state: Value
) -> Flicker | LiveFlicker:
    """What a stream's display showed, erased and hid: time runs down, words run across, runs side by side.

    Parameters
    ----------
    traces : Trace, list of Trace, or dict of name to Trace
        Runs over one stream; each run is a column. In a live ribbon, runs that differ only in β share a
        column, and its slider switches between them.
    prompt : int, optional
        Which stream of the runs; default the first.
    live : bool
        Return a widget with a cursor and sliders for β and k instead of a static picture.
    **state
        Initial state of a live ribbon: ``update``, ``k``, ``beta``, ``theme``, ``projector``.

    Returns
    -------
    Flicker or LiveFlicker
        Shows itself in a notebook; ``to_html(path)`` writes one offline page.

    Raises
    ------
    TraceError
        If a run is not of a stream, or the sources differ.
    ParameterError
        If there is no such state.
    """
    if live:
        from .flicker import LiveFlicker

        return LiveFlicker(traces, prompt, **state)
    from ..errors import ParameterError
    from ..view.flicker import flicker as still

    if state:
        raise ParameterError(f"a static ribbon has no {next(iter(state))!r}: use live=True")
    return still(traces, prompt)
