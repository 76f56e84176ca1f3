"""Measure the cost of late updates in a long stream, and the memory of a very long one.

One text grows and restarts over and over. Every period does the same work, so any growth from period to
period is a cost of the past, which should cost nothing. Memory is measured in a run that is recorded to a
file.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from specviz.loop import Run
from specviz.measure.report import Estimate, Part
from specviz.measure.timing import quiet_clock, settled, synchroniser
from specviz.metrics.interval import RESAMPLES
from specviz.replays.translations import LAG, TARGETS, texts
from specviz.streams import Stream, Update, fixed_lag

AGE, OLD = 200, 5000  # updates
GROWTH, LEAK = 0.05, 8.0  # most growth of an update's cost, as a share; most growth of memory, in MB
BLOCKS = 10  # rows of the table
COLUMNS = [
    ("updates", "updates", ""),
    ("ms", "ms an update", "{:.2f}"),
    ("prefill", "of it prompt", "{:.2f}"),
    ("relative", "over its period's usual cost", "{:.3f}"),
    ("memory", "resident MB", "{:.1f}"),
]


def period(code: str) -> list[Update]:
    """The updates of the longest of the first 20 test texts."""
    made = max(texts(code, 20), key=lambda each: len(each.source.split()))
    return list(fixed_lag(made.source, LAG))


def costs(model: Any, code: str, updates: int, **options: Any) -> Iterator[tuple[float, float]]:
    """Yield the seconds of each update of a long stream, in all and for its prefill."""
    one = period(code)
    clock, _ = quiet_clock(model.device)
    wait = synchroniser(model.device)
    stream = Stream(one[i % len(one)] for i in range(updates))
    begin, prefill = clock(), 0.0
    for cycle in Run(model, stream, "retranslate", target_language=TARGETS[code], **options):
        if cycle.number == 0:
            wait()
            prefill = clock() - begin
        if cycle.end is not None:
            yield clock() - begin, prefill
            begin = clock()


def relative(seconds: np.ndarray, length: int) -> np.ndarray:
    """Each update's cost over the median cost at the same place in periods of `length` updates."""
    place = np.arange(len(seconds)) % length
    return seconds / np.array([np.median(seconds[place == i]) for i in place])


def growth(costs: np.ndarray) -> Estimate:
    """Relative growth of the median from the first quarter to the last, with its 95 % interval."""
    sides = costs[: len(costs) // 4], costs[-(len(costs) // 4) :]
    rng = np.random.default_rng(0)
    early, late = (np.median(rng.choice(side, (RESAMPLES, len(side))), axis=1) for side in sides)
    low, high = np.quantile(late / early - 1, (0.025, 0.975)).tolist()
    return Estimate(float(np.median(sides[1]) / np.median(sides[0]) - 1), low, high, len(costs))


def resident() -> float:
    """Resident MB of this process now, or its peak if the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError, IndexError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def part(
    model: Any,
    code: str,
    age: int,
    old: int,
    max_new_tokens: int,
    template: str,
    advance: Callable[[str], None] = lambda name: None,
) -> tuple[Part, list[tuple[str, str, float, float, str, Estimate | None]]]:
    """The table of a model, and its claims: (name, where, value, limit, kind, estimate)."""
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "template": template}
    rows: list[dict[str, Any]] = []
    claims: list[tuple[str, str, float, float, str, Estimate | None]] = []
    length = len(period(code))
    where = f"{model.name}, {code}"
    if age:
        with settled():  # the first period warms up, and its first update has no draft
            found = np.array(list(costs(model, code, age + length, record=None, **options)))[length:]
        advance("late updates")
        over = relative(found[:, 0], length)
        for some in np.array_split(np.arange(age), BLOCKS):
            rows.append({
                "updates": f"{some[0] + 1} to {some[-1] + 1}", "ms": 1e3 * found[some, 0].mean(),
                "prefill": 1e3 * found[some, 1].mean(), "relative": float(over[some].mean()),
            })  # fmt: skip
        grown = growth(over)
        claims.append((f"the last quarter of {age} updates costs more than the first, by: interval's end",
                       where, grown.high, GROWTH, "at most", grown))  # fmt: skip
    if old:
        base = peak = 0.0
        with tempfile.TemporaryDirectory() as folder:  # recorded to a file, as any long run is
            options |= {"out": Path(folder) / "late.parquet"}
            for number, _ in enumerate(costs(model, code, old, **options), 1):
                if number % max(1, old // BLOCKS) == 0:
                    gc.collect()
                    now = resident()
                    rows.append({"updates": f"{number:,}", "memory": now})
                    base = base or now
                    peak = max(peak, now)
        advance("memory")
        claims.append((f"resident memory grows over {old:,} updates, behind the first tenth, MB",
                       where, peak - base, LEAK, "at most", None))  # fmt: skip
    title = f"Late updates: {model.name}, one text of {length} updates again and again, β = 0.2"
    return Part(title, COLUMNS, rows), claims
