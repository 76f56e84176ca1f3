"""Dense runs of the bundled pair, recorded on first use: one text of each kind of work."""

from __future__ import annotations

from functools import cache

import specviz
from specviz.loop.dense import TAIL
from specviz.suites import suite
from specviz.trace import Trace

IDS = (
    "translation-00", "conversation-01", "summarization-00", "qa-05", "arithmetic-02", "rag-00", "code-00",
)  # fmt: skip


@cache
def town_run(method: str) -> Trace:
    """The run of a method of `town` with `town-draft`, including the drafter's full tails."""
    entries = {entry["id"]: entry for entry in suite("town")}
    target, draft = specviz.load("town"), specviz.load("town-draft")
    trace = specviz.generate(target, [entries[name] for name in IDS], method, draft=draft, max_new_tokens=96)
    return specviz.densify(trace, target, draft, TAIL)
