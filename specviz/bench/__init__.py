"""Measuring: prompt suites, paired runs, and benches that print a table and keep bars.

A bench is a function that returns a `Report`; `BENCHES` says where each one lives. Importing this loads
no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from specviz.errors import ParameterError

if TYPE_CHECKING:
    from specviz.bench.report import Report

# Name: what it measures, in one line. Each is the module of that name, and its function `bench`.
BENCHES: dict[str, str] = {
    "overhead": "what recording costs: paired runs with and without, every method (bar: at most 3 %)",
    "peers": "this package against transformers: same models, prompts and threads, in one run",
    "whatif": "what-ifs against reruns, cycle for cycle (bars: exact ones equal, bounded ones contain)",
    "player": "what the player sends, and its time to open and to step, in Chromium (no model is loaded)",
    "trees": "the training-free methods at equal draft size, cold and warm (bars: order of τ, speed)",
    "stores": "building a tree and updating its store (bars: 10 % of a cycle, 1 ms at 150 k words)",
    "passes": "what a pass over g tokens costs in units of a pass over one",
}


def find(name: str) -> Callable[..., Report]:
    """The bench's function.

    Raises
    ------
    ParameterError
        If there is no such bench; near names are offered.
    """
    if name not in BENCHES:
        from specviz.methods import near

        raise ParameterError(f"no bench {name!r}" + near(name, BENCHES, ""))
    return import_module(f"specviz.bench.{name}").bench
