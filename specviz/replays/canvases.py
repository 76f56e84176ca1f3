"""Prompts for canvases, the settings of the paper's models, and throughput by batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from specviz.errors import ParameterError
from specviz.measure.canvases import Written, ssd, stepwise, write
from specviz.measure.report import Entry, Estimate, Row, Settings, Tick, Values
from specviz.measure.timing import counter, paired, quiet_clock, settled
from specviz.models.diffusion import Diffusion
from specviz.suites.frozen import frozen, take

# -- prompts ------------------------------------------------------------------------------------

SHOTS = 3  # examples stored with each prompt


def suite(n: int, shots: int = 0, only: str | None = None) -> list[Entry]:
    """Bundled prompts: every second one translates, the others cycle through the other six kinds of work.

    Parameters
    ----------
    n : int
    shots : int
        Answered examples of the same kind to put before each prompt, as earlier chat turns; at most `SHOTS`.
    only : str, optional
        Take only prompts of this kind of work.

    Raises
    ------
    ParameterError
        If there are not enough prompts or examples.
    """
    if shots > SHOTS:
        raise ParameterError(f"{shots} examples were requested, but a prompt has only {SHOTS}: ask for fewer")
    group = only or "mix"
    entries = [entry for entry in frozen("canvases") if entry["group"] == group]
    prompts = []
    for entry in take(entries, n, "prompts" + (f" of {only}" if only else "")):
        before = []
        for question, answer in entry["shots"][:shots]:
            before += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        prompts.append({name: entry[name] for name in ("id", "kind", "language", "reference")}
                     | {"prompt": before + entry["messages"]})  # fmt: skip
    return prompts


# -- by batch size --------------------------------------------------------------------------------

# Gao et al., section 4.1: the settings of its models.
PAPER: Settings = {"block": 8, "cache": "dual", "refresh": 8, "whole": True}
SIZES = (1, 2, 4, 8, 16)  # prompts per batch


def batches(
    model: Diffusion, prompts: Sequence[Entry], rounds: int, tick: Tick, length: int
) -> tuple[list[Row], list[str]]:
    """Measure Figure 1, throughput by batch size with and without a cache, as rows and notes."""
    ids = sorted((model.encode(entry["prompt"]) for entry in prompts), key=len)
    ways = [stepwise(**PAPER), stepwise(**PAPER | {"cache": "none"}), ssd(4, **PAPER)]
    sizes = [size for size in SIZES if size <= len(ids)]
    runs = [(i, size) for i in range(len(ways)) for size in sizes]
    step = counter(tick, rounds * len(runs))
    clock = quiet_clock(model.device)[0]
    seconds: dict[tuple[int, int], list[float]] = {run: [] for run in runs}
    texts: dict[tuple[int, int], list[Written]] = {}
    for i, size in runs:
        write(model, ids[:size], ways[i], length, size)

    def decoder(i: int, size: int) -> Callable[[int], list[int]]:
        def decode(_: int) -> list[int]:
            texts[i, size] = write(model, ids, ways[i], length, size)
            step(f"batches: {ways[i].label}, {size} together")
            return []

        return decode

    with settled():
        for turn in range(rounds):
            k = turn * len(sizes) % len(runs)
            times = paired({run: decoder(*run) for run in runs[k:] + runs[:k]}, 1, model.device, clock=clock)
            for run in runs:
                seconds[run] += times[run].seconds
    rows = []
    for i, size in runs:
        valid = sum(len(text.text(model.eos)) for text in texts[i, size])
        times_1 = Estimate.of([a / b for a, b in zip(seconds[i, 1], seconds[i, size])])
        shared = passes_shared(texts[i, size], size)
        rows.append({
            "way": f"{ways[i].label}, cache {ways[i].values['cache']}", "batch": size,
            "speed": Estimate.of([valid / s for s in seconds[i, size]]), "times": times_1,
            "ms": 1e3 * float(np.median(seconds[i, size])) / shared,
            "fed": sum(text.fed for text in texts[i, size]) / shared,
            "same": sum(a.order == b.order for a, b in zip(texts[i, size], texts[i, 1])) / len(ids),
        })  # fmt: skip
    notes = [
        "In a batch, a cycle takes two passes if some rows refresh and others do not (ssd's rows drift "
        "apart)."
    ]
    names = dict.fromkeys(row["way"] for row in rows)
    return rows, [*notes, *(turning([row for row in rows if row["way"] == name]) for name in names)]


def passes_shared(texts: Sequence[Written], size: int) -> int:
    """Cycles of a batched run: the texts of a batch share them, so its longest text counts."""
    return sum(max(t.passes for t in texts[i : i + size]) for i in range(0, len(texts), size))


def turning(rows: Sequence[Values]) -> str:
    """Say from which batch size doubling it gains less than 1.5 times, as passes become compute-bound."""
    for small, large in pairwise(rows):
        gain = large["times"].median / small["times"].median
        if gain < 1.5:
            grows = f"from batch {small['batch']} to {large['batch']} throughput grows {gain:.2f} times"
            return (
                f"{small['way']}: {grows}; past {small['fed']:.0f} positions per cycle, arithmetic is "
                f"the limit."
            )
    if len(rows) == 1:
        return f"{rows[0]['way']}: only one batch size was measured, so nothing is said of larger ones."
    return (
        f"{rows[0]['way']}: throughput grows at least 1.5 times with each doubling up to {rows[-1]['batch']}."
    )
