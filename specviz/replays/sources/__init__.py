"""Sources measure recipes: each turns a recipe into figures under the keys of the paper's table.

One file per family: `prompts` (with the runner, and in batches), `streams` (re-translation), `canvases`
(diffusion models), `thresholds` (BiLD), `beams` (CM-ASD), `curves` (figures without printed values).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from specviz.replays.recipes import Recipe

from .shared import Measurement, RunOptions

__all__ = ["Measurement", "RunOptions", "find"]

SOURCES = {
    "run": "prompts:run",
    "batches": "prompts:batches",
    "streams": "streams:streams",
    "canvases": "canvases:canvases",
    "limits": "canvases:limits",
    "lengths": "canvases:lengths",
    "thresholds": "thresholds:thresholds",
    "beams": "beams:beams",
    "sizes": "curves:sizes",
    "scores": "curves:scores",
    "calibrated": "curves:calibrated",
    "fitted": "curves:fitted",
    "samples": "curves:samples",
    "batched": "curves:batched",
    "canvas batches": "curves:canvases",
    "settings": "curves:settings",
}


def find(name: str) -> Callable[[Recipe, RunOptions], Measurement]:
    """Import the function of a source."""
    module, _, function = SOURCES[name].partition(":")
    return getattr(import_module(f"specviz.replays.sources.{module}"), function)  # type: ignore[no-any-return]
