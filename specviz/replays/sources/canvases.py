"""Diffusion models: SSD's tables, by the benches that measure them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from specviz import metrics
from specviz.errors import ParameterError
from specviz.loop import generate
from specviz.measure.canvases import Measured, Way, ssd, stepwise, timed
from specviz.measure.claims import derived, resampled
from specviz.metrics import Estimate
from specviz.replays.canvases import PAPER, suite
from specviz.replays.recipes import Recipe, Row
from specviz.replays.sources.shared import Measurement, RunOptions, about, exact, totals
from specviz.trace import Trace

STEPWISE: tuple[str, int | None] = ("stepwise", None)
WRITING = "writing canvases"
DRAFTS = (3, 4, 5)  # Table 3's
BATCH = 8  # prompts decoded together where nothing is timed


def refuse(options: RunOptions) -> None:
    """Only a masked-diffusion model writes canvases."""
    if getattr(options.model, "kind", None) != "diffusion":
        raise ParameterError(f"this table is of a masked-diffusion model, and {options.model.name} is none")


def prompt_ids(recipe: Recipe, options: RunOptions, shots: int = 0) -> dict[str, list[list[int]]]:
    """The prompts of each task as ids; tasks of one kind of work have different ones."""
    taken: Counter[str] = Counter()
    out = {}
    for task, part in recipe.parts["task"].items():
        kind = part["kind"]
        first, taken[kind] = taken[kind], taken[kind] + options.number
        if options.suite is not None:
            entries = list(options.suite.select(kind=kind))
        else:
            entries = suite(taken[kind], shots, kind)
        entries = entries[first : taken[kind]] or entries[: options.number]
        out[task] = [options.model.encode(entry["prompt"]) for entry in entries if "prompt" in entry]
    return out


def data(options: RunOptions, length: int) -> str:
    """The prompts in words."""
    name = options.suite.name if options.suite is not None else "generated prompts (bundled)"
    return f"{name}: {options.number} a task, canvases of {length} cells written whole"


def speed(measured: Measured, ends: Sequence[int], rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Valid tokens and seconds of each text: section 4.1 counts up to the first end token."""
    tokens = [len(text.text(ends)) for text in measured.texts]
    return each_text(tokens, rounds), each_text(measured.seconds, rounds)


def each_text(values: Sequence[float], rounds: int) -> np.ndarray:
    """What each text adds up to, of the values of all texts in one round after the other."""
    return np.reshape(np.asarray(values, float), (rounds, -1)).sum(0)


def over(tokens: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Tokens a second, all texts pooled."""
    return tokens / taken


def faster(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
    """The ratio of two speeds."""
    return (a / b) / (c / d)


def saved(mine: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Share of passes saved, in percent."""
    return 100 * (1 - mine / base)


def canvases(recipe: Recipe, options: RunOptions) -> Measurement:
    """Tables 1 and 3: throughput, speedup and passes saved of each way against stepwise decoding."""
    refuse(options)
    made = Measurement(environment=about(options.model), data=data(options, options.max_new_tokens))
    ways: dict[tuple[str, int | None], Way] = {STEPWISE: stepwise(**PAPER)}
    for tree, n in map(key_of, recipe.rows):
        if n is not None:
            ways[tree, n] = ssd(n, tree, **PAPER)
    prompts = prompt_ids(recipe, options)
    rounds = options.rounds
    step = options.counter(rounds * len(ways) * sum(map(len, prompts.values())))
    for task, ids in prompts.items():
        length, tick = options.max_new_tokens, lambda: step(WRITING)
        written = dict(zip(ways, timed(options.model, ids, list(ways.values()), length, rounds, tick)))
        base = written[STEPWISE]
        their_tokens, their_seconds = speed(base, options.model.eos, rounds)
        for row in recipe.rows:
            key = key_of(row)
            mine, where = written[key], {**row.where, "task": task}
            tokens, seconds = speed(mine, options.model.eos, rounds)
            made.add(where, "throughput", resampled(over, tokens, seconds))
            if mine is not base:
                made.add(where, "speedup", resampled(faster, tokens, seconds, their_tokens, their_seconds))
                passes = [each_text([t.passes for t in each.texts], rounds) for each in (mine, base)]
                made.add(where, "step_reduction", resampled(saved, *passes))
                made.add(where, "verification_nodes", exact(1 + ways[key]().nodes))
        if not made.traces:
            fast = max((w for w in ways if w != STEPWISE), key=lambda w: -sum(written[w].seconds))
            speeds = [np.divide(*speed(written[w], options.model.eos, rounds)) for w in (fast, STEPWISE)]
            decode = partial(again, options, ids, ways[fast])
            made.record(options, f"{ways[fast].label}, {task}", speeds[0] / speeds[1], decode)
    further(recipe, made)
    totals(made, recipe)
    means(recipe, made)
    return made


def again(options: RunOptions, ids: list[list[int]], way: Way, i: int) -> Trace:
    """A text once more, recorded."""
    return generate(options.model, [ids[i]], way(), max_new_tokens=options.max_new_tokens)


def key_of(row: Row) -> tuple[str, int | None]:
    """A contender's tree and draft length."""
    return (row.values["tree"], row.values["draft_length"]) if row.method == "ssd" else STEPWISE


def means(recipe: Recipe, made: Measurement) -> None:
    """The speedup of the column Mean: the ratio of the two mean throughputs, as the paper has it."""
    if recipe.total is None:
        return
    column, name = recipe.total
    kept = [f for f in made.figures if f.metric != "speedup" or f.where.get(column) != name]
    made.figures = kept
    speeds = [f for f in kept if f.metric == "throughput" and f.where.get(column) == name]
    for base in [f for f in speeds if f.where["draft_length"] == "-"]:
        for figure in speeds:
            if figure is not base:
                made.add(figure.where, "speedup", derived(np.divide, figure.estimate, base.estimate))


def further(recipe: Recipe, made: Measurement) -> None:
    """Table 3's numbers in brackets, and its bound: what mix-order adds to the chain."""
    if "bounds" not in recipe.options:
        return
    figures = {(f.where["method"], f.where["draft_length"], f.metric): f for f in made.figures}
    gains = {"verification_nodes": "added_nodes", "step_reduction": "step_reduction_gain"}
    for n in DRAFTS:
        for metric, gain in gains.items():
            mix, chain = (figures.get((name, n, metric)) for name in ("Mix-order", "Greedy"))
            if mix is not None and chain is not None:
                more = derived(np.subtract, mix.estimate, chain.estimate)
                made.add({"method": "Mix-order", "draft_length": n}, gain, more)
        made.add({"method": "-", "draft_length": n}, "step_reduction_bound", exact(100 * n / (n + 1)))


def limits(recipe: Recipe, options: RunOptions) -> Measurement:
    """Table 2: passes that self-drafts could save at most, from recorded stepwise passes."""
    refuse(options)
    made = Measurement(environment=about(options.model), data=data(options, options.max_new_tokens))
    policy = {**PAPER, "cache": "none"}
    for task, ids in prompt_ids(recipe, options).items():
        trace = generate(
            options.model, ids, stepwise(**policy)(), max_new_tokens=options.max_new_tokens, batch=BATCH
        )
        options.counter(1)("stepwise decoding recorded")
        last: dict[int, float] = {}
        limited: Any = metrics.acceptance_limit(trace, lengths=DRAFTS).itertuples()
        for row in limited:
            n, k = int(row.draft_length), int(row.top)
            where = {"draft_length": n, "k": str(k), "task": task}
            value, ends = 100 * float(row.reduction), (100 * row.reduction_lo, 100 * row.reduction_hi)
            made.add(where, "step_reduction", Estimate(value, *ends, len(ids)))
            if n in last:
                made.add(where, "step_reduction_gain", value - last[n])
            last[n] = value
            bound = exact(100 * float(row.bound))
            made.add({"draft_length": n, "k": "-", "task": task}, "step_reduction_bound", bound)
    return made


def lengths(recipe: Recipe, options: RunOptions) -> Measurement:
    """Figure 3: throughput by the length generated, and by the examples in front of the prompt."""
    refuse(options)
    cells, shots = recipe.options["cells"], recipe.options["shots"]
    normal = recipe.options["normal"]
    made = Measurement(environment=about(options.model), data=data(options, normal))
    ways = [stepwise(**PAPER), ssd(3, **PAPER)]
    names = ({"method": "Origin", "draft_length": "-"}, {"method": "Origin+SSD", "draft_length": "3"})
    plans: list[tuple[dict[str, str], int, int]] = [
        *(({"generation_length": theirs, "shots": "-"}, ours, 0) for theirs, ours in cells.items()),
        *(({"generation_length": "-", "shots": str(n)}, normal, n) for n in shots),
    ]
    rounds = options.rounds
    step = options.counter(rounds * len(ways) * len(plans) * options.number * len(recipe.parts["task"]))
    for where, length, examples in plans:
        for task, ids in prompt_ids(recipe, options, examples).items():
            for name, written in zip(
                names, timed(options.model, ids, ways, length, rounds, lambda: step(WRITING))
            ):
                tokens, seconds = speed(written, options.model.eos, rounds)
                made.add({**where, **name, "task": task}, "throughput", resampled(over, tokens, seconds))
    return made
