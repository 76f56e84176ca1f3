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
from specviz.measure.claims import derived, resampled
from specviz.metrics import Estimate
from specviz.replays.canvases import PAPER, Way, ssd, stepwise, suite, timed
from specviz.replays.recipes import Recipe, Row
from specviz.replays.sources.shared import Found, How, about, figure, known, totals

STEPWISE = ("stepwise", None)
DRAFTS = (3, 4, 5)  # Table 3's
TOGETHER = 8  # prompts decoded together where nothing is timed


def refuse(how: How) -> None:
    """Only a masked-diffusion model writes canvases."""
    if getattr(how.model, "kind", None) != "diffusion":
        raise ParameterError(f"this table is of a masked-diffusion model, and {how.model.name} is none")


def asked(recipe: Recipe, how: How, shots: int = 0) -> dict[str, list[list[int]]]:
    """The prompts of each task as ids; tasks of one kind of work have different ones."""
    taken: Counter[str] = Counter()
    found = {}
    for task, part in recipe.parts["task"].items():
        kind = part["kind"]
        first, taken[kind] = taken[kind], taken[kind] + how.prompts
        if how.suite is not None:
            entries = list(how.suite.select(kind=kind))
        else:
            entries = suite(taken[kind], shots, kind)
        entries = entries[first : taken[kind]] or entries[: how.prompts]
        found[task] = [how.model.encode(entry["prompt"]) for entry in entries if "prompt" in entry]
    return found


def data(how: How, length: int) -> str:
    """The prompts in words."""
    name = how.suite.name if how.suite is not None else "generated prompts (bundled)"
    return f"{name}: {how.prompts} a task, canvases of {length} cells written whole"


class Counted:
    """Progress in texts."""

    def __init__(self, how: How, of: int) -> None:
        self.how, self.of, self.done = how, of, 0

    def __call__(self) -> None:
        self.done += 1
        self.how.tick(self.done, self.of, "writing canvases")


def speed(measured: Any, ends: Sequence[int], rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Valid tokens and seconds of each text: section 4.1 counts up to the first end token."""
    tokens = [len(text.text(ends)) for text in measured.texts]
    return each_text(tokens, rounds), each_text(measured.seconds, rounds)


def each_text(values: Sequence[float], rounds: int) -> np.ndarray:
    """What each text adds up to, of the values of all texts in one round after the other."""
    return np.reshape(np.asarray(values, float), (rounds, -1)).sum(0)


def over(tokens: Any, taken: Any) -> Any:
    """Tokens a second, all texts pooled."""
    return tokens / taken


def faster(a: Any, b: Any, c: Any, d: Any) -> Any:
    """The ratio of two speeds."""
    return (a / b) / (c / d)


def saved(mine: Any, base: Any) -> Any:
    """Share of passes saved, in percent."""
    return 100 * (1 - mine / base)


def canvases(recipe: Recipe, how: How) -> Found:
    """Tables 1 and 3: throughput, speedup and passes saved of each way against stepwise decoding."""
    refuse(how)
    found = Found(environment=about(how.model), data=data(how, how.max_new_tokens))
    ways: dict[tuple[str, Any], Way] = {STEPWISE: stepwise(**PAPER)}
    for tree, n in map(key_of, recipe.rows):
        if n is not None:
            ways[tree, n] = ssd(n, tree, **PAPER)
    prompts = asked(recipe, how)
    rounds = how.options.get("rounds", 1)
    tick = Counted(how, rounds * len(ways) * sum(map(len, prompts.values())))
    for task, ids in prompts.items():
        made = dict(zip(ways, timed(how.model, ids, list(ways.values()), how.max_new_tokens, rounds, tick)))
        base = made[STEPWISE]
        their_tokens, their_seconds = speed(base, how.model.eos, rounds)
        for row in recipe.rows:
            key = key_of(row)
            mine, where = made[key], {**row.where, "task": task}
            tokens, seconds = speed(mine, how.model.eos, rounds)
            found.add(where, "throughput", resampled(over, tokens, seconds))
            if mine is not base:
                found.add(where, "speedup", resampled(faster, tokens, seconds, their_tokens, their_seconds))
                passes = [each_text([t.passes for t in each.texts], rounds) for each in (mine, base)]
                found.add(where, "step_reduction", resampled(saved, *passes))
                found.add(where, "verification_nodes", known(1 + ways[key]().nodes))
        if not found.traces:
            fast = max((w for w in ways if w != STEPWISE), key=lambda w: -sum(made[w].seconds))
            mine, theirs = (np.divide(*speed(made[w], how.model.eos, rounds)) for w in (fast, STEPWISE))
            found.record(
                how, f"{ways[fast].label}, {task}", mine / theirs, partial(again, how, ids, ways[fast])
            )
    further(recipe, found)
    totals(found, recipe)
    means(recipe, found)
    return found


def again(how: How, ids: list[list[int]], way: Way, i: int) -> Any:
    """A text once more, recorded."""
    return generate(how.model, [ids[i]], way(), max_new_tokens=how.max_new_tokens)


def key_of(row: Row) -> tuple[str, Any]:
    """A contender's tree and draft length."""
    return (row.values["tree"], row.values["draft_length"]) if row.method == "ssd" else STEPWISE


def means(recipe: Recipe, found: Found) -> None:
    """The speedup of the column Mean: the ratio of the two mean throughputs, as the paper has it."""
    if recipe.total is None:
        return
    column, name = recipe.total
    found.rows = [r for r in found.rows if not (r["metric"] == "speedup" and r["where"].get(column) == name)]
    speeds = [r for r in found.rows if r["metric"] == "throughput" and r["where"].get(column) == name]
    for base in [r for r in speeds if r["where"]["draft_length"] == "-"]:
        for row in speeds:
            if row is not base:
                found.add(row["where"], "speedup", derived(np.divide, figure(row), figure(base)))


def further(recipe: Recipe, found: Found) -> None:
    """Table 3's numbers in brackets, and its bound: what mix-order adds to the chain."""
    if "bounds" not in recipe.options:
        return
    rows = {(r["where"]["method"], r["where"]["draft_length"], r["metric"]): r for r in found.rows}
    for n in DRAFTS:
        for metric, gain in (
            ("verification_nodes", "added_nodes"),
            ("step_reduction", "step_reduction_gain"),
        ):
            mix, chain = (rows.get((name, n, metric)) for name in ("Mix-order", "Greedy"))
            if mix is not None and chain is not None:
                more = derived(np.subtract, figure(mix), figure(chain))
                found.add({"method": "Mix-order", "draft_length": n}, gain, more)
        found.add({"method": "-", "draft_length": n}, "step_reduction_bound", known(100 * n / (n + 1)))


def limits(recipe: Recipe, how: How) -> Found:
    """Table 2: passes that self-drafts could save at most, from recorded stepwise passes."""
    refuse(how)
    found = Found(environment=about(how.model), data=data(how, how.max_new_tokens))
    policy = {**PAPER, "cache": "none"}
    for task, ids in asked(recipe, how).items():
        trace = generate(
            how.model, ids, stepwise(**policy)(), max_new_tokens=how.max_new_tokens, batch=TOGETHER
        )
        how.tick(1, 1, "stepwise decoding recorded")
        last: dict[int, float] = {}
        limited: Any = metrics.acceptance_limit(trace, lengths=DRAFTS).itertuples()
        for row in limited:
            n, k = int(row.draft_length), int(row.top)
            where = {"draft_length": n, "k": str(k), "task": task}
            value, ends = 100 * float(row.reduction), (100 * row.reduction_lo, 100 * row.reduction_hi)
            found.add(where, "step_reduction", Estimate(value, *ends, len(ids)))
            if n in last:
                found.add(where, "step_reduction_gain", value - last[n])
            last[n] = value
            bound = known(100 * float(row.bound))
            found.add({"draft_length": n, "k": "-", "task": task}, "step_reduction_bound", bound)
    return found


def lengths(recipe: Recipe, how: How) -> Found:
    """Figure 3: throughput by the length generated, and by the examples in front of the prompt."""
    refuse(how)
    cells, shots = recipe.options["cells"], recipe.options["shots"]
    normal = recipe.options["normal"]
    found = Found(environment=about(how.model), data=data(how, normal))
    ways = [stepwise(**PAPER), ssd(3, **PAPER)]
    names = ({"method": "Origin", "draft_length": "-"}, {"method": "Origin+SSD", "draft_length": "3"})
    plans: list[tuple[dict[str, str], int, int]] = [
        *(({"generation_length": theirs, "shots": "-"}, ours, 0) for theirs, ours in cells.items()),
        *(({"generation_length": "-", "shots": str(n)}, normal, n) for n in shots),
    ]
    rounds = how.options.get("rounds", 1)
    tick = Counted(how, rounds * len(ways) * len(plans) * how.prompts * len(recipe.parts["task"]))
    for where, length, examples in plans:
        for task, ids in asked(recipe, how, examples).items():
            for name, made in zip(names, timed(how.model, ids, ways, length, rounds, tick)):
                tokens, seconds = speed(made, how.model.eos, rounds)
                found.add({**where, **name, "task": task}, "throughput", resampled(over, tokens, seconds))
    return found
