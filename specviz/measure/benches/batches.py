"""Throughput and latency by batch size (UniSpec's Table 8; CM-ASD's figure).

Every method decodes the same prompts at each batch size. In each round all of them take turns, starting with
a different method, so that other load on the machine affects all alike. Batch 1 is the plain loop. Nothing
is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

import numpy as np

from specviz import methods
from specviz.errors import ParameterError, PromptError
from specviz.loop.batch import decode_batch
from specviz.loop.clock import Clock
from specviz.loop.cycle import Cycle, decode
from specviz.measure import timing
from specviz.measure.prompts import first_turns
from specviz.measure.report import Bar, Entry, Estimate, Report, Row, Settings, Tick, Values
from specviz.measure.timing import BASELINE, Entrant
from specviz.methods.base import Method
from specviz.metrics.interval import LEAST
from specviz.models.protocols import Model

SIZES = (1, 2, 4, 8, 16)
METHODS = ("autoregressive", "speculative", "cm_asd", "unispec")
WANTED = 3.0  # throughput of autoregressive decoding at batch 8 over batch 1
COLUMNS = [
    ("decoder", "decoder", ""), ("batch", "batch", "{:d}"), ("speed", "tokens/s", "{:,.0f}"),
    ("times", "times batch 1", "{:.2f}"), ("whole", "with prefill", "{:.2f}"),
    ("latency", "latency s", "{:.3f}"), ("token", "ms per token", "{:.2f}"), ("tau", "tau", "{:.2f}"),
    ("same", "same texts", ""),
]  # fmt: skip


def bench(
    model: Model,
    drafts: list[Model],
    entries: list[Entry],
    *,
    only: Annotated[Sequence[str], "Methods, such as autoregressive,unispec."] = METHODS,
    sizes: Annotated[Sequence[int], "Batch sizes; the first is 1."] = SIZES,
    rounds: Annotated[int, "Number of rounds in which all take turns."] = 5,
    max_new_tokens: Annotated[int, "Maximum number of tokens per prompt."] = 64,
    values: Mapping[str, Values] = MappingProxyType({}),
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Measure each method at each batch size.

    Parameters
    ----------
    model, drafts : Model
    entries : list of dict
        Prompts, best a multiple of the largest batch; only the first turn of a conversation is used.
    only : sequence of str
        Methods.
    sizes : sequence of int
        Batch sizes; the first is 1, the reference for the others.
    rounds : int
    max_new_tokens : int
    values : mapping of str to mapping
        Parameters by method; default: each method's own.
    tick : callable
        Called with (measurements done, of, decoder).

    Returns
    -------
    Report
        A row for each method and size: ``speed``, tokens of all texts per second of decoding, where shared
        time counts once; ``times``, its ratio to batch 1, round by round; ``whole``, the same with the
        prefill and everything else included; ``latency``, median seconds from the start of a prompt's prefill
        to its end; ``token``, the same per token, in ms; ``tau``; ``same``, texts equal to batch 1's.

    Raises
    ------
    ParameterError, PromptError
        If the sizes are wrong, no method can run, or there are fewer prompts than the largest batch.
    """
    sizes = timing.counts(sizes, "batch sizes")  # strings from the command line
    if not sizes or sizes[0] != 1:
        raise ParameterError(f"the first batch size must be 1, the reference for the others, got {sizes}")
    if max(sizes) > len(entries):
        raise PromptError(f"a batch of {max(sizes)} needs as many prompts, not {len(entries)}: lower --sizes")
    ids = first_turns(model, entries)
    clock_name = timing.clock_of(model)[1]
    runs = [(entrant, size) for entrant in timing.lineup(drafts, list(only)) for size in sizes]
    makes = {entrant: cold(entrant, values.get(entrant.method, {})) for entrant, _ in runs}
    results: dict[tuple[Entrant, int], list[Once]] = {each: [] for each in runs}
    for entrant, size in runs:  # warm-up
        once(model, entrant, makes[entrant], ids[:size], size, min(8, max_new_tokens))
    step = timing.counter(tick, rounds * len(runs))
    with timing.settled():
        for turn in range(rounds):
            first = turn * len(runs) // rounds  # each run is early in some rounds and late in others
            for entrant, size in runs[first:] + runs[:first]:
                made = once(model, entrant, makes[entrant], ids, size, max_new_tokens)
                results[entrant, size].append(made)
                step(entrant.label)
    rows = [row(entrant, size, results[entrant, size], results[entrant, 1]) for entrant, size in runs]
    where = timing.setting(model, drafts, prompts=len(ids), max_new_tokens=max_new_tokens, rounds=rounds)
    own = [each for each in rows if each["method"] == BASELINE and each["batch"] == 8]
    bars = [Bar("autoregressive, batch 8 over batch 1", each["times"].median, WANTED) for each in own]
    notes = [
        f"Medians of {rounds} interleaved rounds; {clock_name}. 95 % bootstrap intervals: of latency over "
        f"prompts, of the others over rounds; {LEAST} or more are needed.",
        "latency: from the start of a prompt's prefill to the end of its text, excluding the wait for a "
        "free row.",
    ]
    title = f"Throughput and latency by batch size, {len(ids)} prompts of up to {max_new_tokens} tokens"
    return Report("batches", title, where, COLUMNS, rows, bars, notes, ("tau", "token", "whole"))


class Once:
    """All prompts decoded once: total and decoding seconds, latency of each prompt, tokens and texts."""

    def __init__(self, seconds: float, cycles: list[list[Cycle]], clock: Clock) -> None:
        self.seconds = seconds
        # Rows of one batch share their marks: each span counts once.
        spans = {(c.marks[0], c.marks[-1]) for some in cycles for c in some[1:]}
        self.decoding = float(clock.seconds(*map(list, zip(*spans))).sum())
        self.latency = [float(clock.seconds([c[0].marks[0]], [c[-1].marks[-1]])[0]) for c in cycles]
        self.texts = [[token for cycle in some for token in cycle.tokens] for some in cycles]
        self.tokens = sum(map(len, self.texts))
        self.steps = sum(len(some) - 1 for some in cycles)


def once(
    model: Model, entrant: Entrant, make: Callable[[], Method], ids: list[list[int]], size: int, limit: int
) -> Once:
    """Decode the prompts, `size` at a time; 1 is the plain loop."""
    ticks, wait = timing.clock_of(model)[0], timing.synchroniser(model.device)
    clock = timing.phase_clock(model.device)
    options: Settings = {"drafter": entrant.draft, "max_new_tokens": limit, "clock": clock}
    cycles: list[list[Cycle]] = [[] for _ in ids]
    method = make()
    method.prepare(model)
    wait()
    begin = ticks()
    if size == 1:
        for i, prompt in enumerate(ids):
            for cycle in decode(model, prompt, method, prompt=i, **options):
                cycles[i].append(bare(cycle))
    else:
        for group in decode_batch(model, ids, method, rows=size, **options):
            for cycle in group:
                cycles[cycle.prompt].append(bare(cycle))
    wait()
    return Once(ticks() - begin, cycles, clock)


def bare(cycle: Cycle) -> Cycle:
    """Drop a cycle's draft, verdict and scores, whose logits would fill the memory."""
    cycle.draft = cycle.verdict = cycle.scores = None
    return cycle


def cold(entrant: Entrant, values: Values) -> Callable[[], Method]:
    """A factory of the method; its memory, if any, lasts for one prompt, as the rows of a batch require."""
    kind = methods.find(entrant.method)
    own = {"keep": "prompt"} if kind().memory is not None else {}
    return lambda: kind(**own, **values)


def row(entrant: Entrant, size: int, made: list[Once], single: list[Once]) -> Row:
    """A row of the table."""
    speeds, alone = ([each.tokens / each.decoding for each in some] for some in (made, single))
    whole = [b.seconds / a.seconds for a, b in zip(made, single)]
    latency = np.median([each.latency for each in made], axis=0).tolist()  # of each prompt
    tokens = [len(text) for text in made[0].texts]
    same = sum(a == b for a, b in zip(made[0].texts, single[0].texts))
    return {
        "decoder": entrant.label, "method": entrant.method, "batch": size, "speed": Estimate.of(speeds),
        "times": Estimate.of([a / b for a, b in zip(speeds, alone)]), "whole": Estimate.of(whole),
        "latency": Estimate.of(latency),
        "token": 1e3 * float(np.median([s / max(n, 1) for s, n in zip(latency, tokens)])),
        "tau": made[0].tokens / max(made[0].steps, 1), "same": f"{same} of {len(made[0].texts)}",
    }  # fmt: skip
