"""SSD on a masked-diffusion model: passes saved, cost of several canvases, correctness of the texts.

Gao et al. 2025 (Tables 1 and 3), for any diffusion model. All ways decode the same prompts under one cache
policy, text by text in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from specviz.draft import Draft
from specviz.errors import ParameterError
from specviz.measure.canvases import Measured, Way, ssd, stepwise, timed
from specviz.measure.prompts import first_turns
from specviz.measure.report import Bar, Entry, Estimate, Part, Report, Row, Settings, Tick, Values
from specviz.measure.timing import counter, counts, quiet_clock, seconds_of, setting, settled, synchroniser

if TYPE_CHECKING:
    from specviz.models.diffusion import Diffusion
    from specviz.models.protocols import TextModel

DRAFTS = 4  # N of the paper's tables
COLUMNS = [
    ("cells", "cells", "{:d}"), ("way", "way", ""), ("passes", "passes", "{:,.0f}"),
    ("saved", "passes saved", "{:.1%}"), ("speed", "valid tokens/s [95%]", ""),
    ("over", "over stepwise [95%]", ""),
    ("device", "where N + 1 cost one", "{:.2f}"), ("same", "same text", ""), ("right", "right", ""),
]  # fmt: skip
COSTS = [
    ("cells", "cells", "{:d}"),
    ("canvases", "canvases", "{:d}"),
    ("ms", "ms [95%]", ""),
    ("times", "over one", "{:.2f}"),
]
NOTES = [
    "passes saved: relative to stepwise decoding. over stepwise: stepwise decoding's seconds divided by the "
    "method's, median over texts, with the same cache. where N + 1 cost one: stepwise decoding's passes "
    "divided by the method's, the speedup on a device where a pass over N + 1 canvases costs the same as a "
    "pass over one.",
    "same text: texts with stepwise decoding's token in every cell. right: texts that equal the prompt's "
    "reference up to the end token. valid tokens: those before the first end token.",
]


def bench(
    model: Any,
    entries: list[Entry],
    *,
    cells: Annotated[Sequence[int], "Cells of a canvas, such as 64,128,256."] = (64,),
    block: Annotated[int, "Cells of a block."] = 8,
    refresh: Annotated[int, "Tokens between two refresh passes."] = 8,
    cache: Annotated[str, "Cache policy: none or dual."] = "dual",
    ended: Annotated[
        bool, "Stop after the block in which the text ends; otherwise write every cell, as the paper does."
    ] = False,
    exact: Annotated[bool, "Skip fast_dllm and entropy_bounded, which are lossy."] = False,
    number: Annotated[int, "Prompts."] = 20,
    rounds: Annotated[int, "Number of rounds over all prompts."] = 1,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Measure SSD against stepwise decoding on a diffusion model.

    Parameters
    ----------
    model : Diffusion
    entries : list of dict
        Prompts; ``reference``, if present, is the right answer.
    cells : sequence of int
        Lengths of canvases.
    block, refresh, cache, ended
        Decoding policy of all ways.
    exact, number, rounds

    Returns
    -------
    Report
        Bars: SSD with N = 4 saves 55 % of the passes and is 1.6 times as fast as stepwise decoding, at the
        first length.

    Raises
    ------
    ParameterError
        If the model writes no canvases, or the policy is impossible.
    """
    if model.kind != "diffusion":
        raise ParameterError(
            f"{model.name} writes no canvases: name a diffusion model, such as -m town-diffusion"
        )
    entries = entries[:number]
    ids = first_turns(model, entries)
    lengths = counts(cells, "lengths of canvases")
    policy: Settings = {"block": block, "cache": cache, "refresh": refresh, "whole": not ended}
    ways = [
        stepwise(**policy),
        *(ssd(n, tree, **policy) for n in (3, DRAFTS, 5) for tree in ("chain", "mix")),
    ]
    if not exact:
        ways += [Way(name, dict(policy)) for name in ("fast_dllm", "entropy_bounded")]
    for way in ways:
        way()  # refuses a policy before any work
    step = counter(tick, len(lengths) * rounds * len(ids) * len(ways))
    rows: list[Row] = []
    costs: list[Row] = []
    bars: list[Bar] = []
    for length in lengths:
        costs += pass_costs(model, ids[0], length, policy)
        results = timed(model, ids, ways, length, rounds, lambda: step("canvases"))
        base = results[0]
        for each in results:
            rows.append(row(each, base, length, model, entries))
        if not bars:
            main = next(each for each in results if each.way == ssd(DRAFTS, **policy))
            bars = [
                Bar(f"ssd, N {DRAFTS}: passes saved", 1 - main.passes / base.passes, 0.55),
                Bar(f"ssd, N {DRAFTS}: over stepwise", main.over(base).median, 1.6, goal=2.4),
            ]
    about = setting(model, [], prompts=len(ids), rounds=rounds, **policy)
    title = f"SSD on {len(ids)} prompts, whole canvases" if not ended else f"SSD on {len(ids)} prompts"
    parts = [Part("What a pass over several canvases costs", COSTS, costs)]
    return Report("canvases", title, about, COLUMNS, rows, bars, NOTES, ("device", "right"), parts)


def row(each: Measured, base: Measured, length: int, model: TextModel, entries: Sequence[Entry]) -> Row:
    """A way's row of the table."""
    n = len(entries)
    same = sum(sorted(a.order) == sorted(b.order) for a, b in zip(each.texts[:n], base.texts[:n]))
    answers = [entry.get("reference") for entry in entries]
    texts = [model.decode(text.text(model.eos)).strip() for text in each.texts[:n]]
    references = [[a] if isinstance(a, str) else list(a or ()) for a in answers]
    right = sum(text in [a.strip() for a in some] for text, some in zip(texts, references))
    return {
        "cells": length, "way": each.way.label, "passes": each.passes,
        "saved": None if each is base else 1 - each.passes / base.passes, "speed": each.speed(model.eos),
        "over": None if each is base else each.over(base),
        "device": None if each is base else base.passes / each.passes, "same": f"{same} of {n}",
        "right": f"{right} of {sum(map(bool, references))}",
    }  # fmt: skip


def pass_costs(model: Diffusion, prompt: list[int], length: int, policy: Values) -> list[Row]:
    """Milliseconds of a pass over the current canvas and up to five canvases of a chain, after a refresh."""
    wait, clock = synchroniser(model.device), quiet_clock(model.device)[0]
    sizes = [n for n in range(6) if n < min(policy["refresh"], policy["block"], length)]
    kept = {name: policy[name] for name in ("block", "cache", "refresh")}
    times: dict[int, list[float]] = {n: [] for n in sizes}
    with settled(), closing(model.open([prompt], length, canvases=max(sizes), **kept)) as canvas:
        canvas.forward(Draft.empty())
        canvas.commit([])
        token = next(t for t in range(model.vocabulary) if t != model.mask)
        for turn in range(12):
            for n in sizes:
                draft = Draft.chain([token] * n, positions=np.arange(n)) if n else Draft.empty()
                seconds = seconds_of(partial(canvas.forward, draft), wait, clock)
                if turn:  # the first one warms up
                    times[n].append(seconds)
                canvas.commit([])
    one = float(np.median(times[0]))
    return [
        {"cells": length, "canvases": 1 + n, "ms": Estimate.of([1e3 * t for t in times[n]]),
         "times": float(np.median(times[n])) / one}
        for n in sizes
    ]  # fmt: skip
