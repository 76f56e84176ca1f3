"""Entry point of the ribbon: one function for the static picture and the live widget."""

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
    """Show what a stream's display showed, erased and hid: time runs down, words across, runs side by side.

    Parameters
    ----------
    traces : Trace, list of Trace, or dict of name to Trace
        Runs over one stream; each run is a column. In a live ribbon, runs that differ only in β share a
        column, and its slider switches between them.
    prompt : int, optional
        The stream to show; the first by default.
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
        If a run does not decode a stream, or the sources differ.
    ParameterError
        If `state` names an unknown trait, gives an invalid value, or is given for a static ribbon.
    SpecvizError
        If a live ribbon's packages are not installed.
    """
    if live:
        from ..errors import loading

        with loading():
            from .flicker import LiveFlicker
        return LiveFlicker(traces, prompt, **state)
    from ..errors import ParameterError
    from ..view.flicker import Flicker
    from ..view.updates import side_by_side

    if state:
        raise ParameterError(f"a static ribbon has no {next(iter(state))!r}: use live=True")
    return Flicker(side_by_side(traces, prompt))
