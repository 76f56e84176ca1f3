"""Measurements: paired runs, and benches that return a table with limits to meet.

`specviz.run` decodes a plan (models x methods x parameters x suites x seeds) and keeps every row in a folder,
which `specviz.results` opens. A bench is a function that returns a `Report`; `BENCHES` says what each
measures. Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from specviz.errors import ParameterError, near

if TYPE_CHECKING:
    from specviz.measure.report import Report

# Name: one-line description.
BENCHES: dict[str, str] = {
    "speed": "our methods against transformers and llama.cpp, cold and warm (limits for SmolLM2)",
    "drafters": "trained drafters, each method at its best setting (limits for SmolLM2)",
    "advise": "advice against measurement: τ in float64, speeds on other prompts (limit: 90 % within 10 %)",
    "trees": "training-free methods at equal draft size, cold and warm (limits: unispec leads in τ, speed)",
    "streams": "re-translation of texts that arrive word by word: speed and flicker over the bias",
    "canvases": "diffusion: what SSD saves, what canvases cost (limits: 55 % of passes, 1.6 times as fast)",
    "batches": "throughput and latency by batch size (limit: 3 times the throughput at batch size 8)",
    "passes": "what a pass over g tokens costs in units of a pass over one",
    "roofline": "cost of passes in FLOPs and bytes, and their time against the machine's measured ceilings",
}


def find(name: str) -> Callable[..., Report]:
    """Import a bench and return its function.

    Raises
    ------
    ParameterError
        If there is no bench of this name; the message suggests similar names.
    """
    if name not in BENCHES:
        raise ParameterError(f"no bench {name!r}" + near(name, BENCHES))
    return import_module(f"specviz.measure.benches.{name}").bench
