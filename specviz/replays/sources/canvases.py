"""SSD's tables: diffusion models, measured by their benches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from specviz import metrics
from specviz.errors import ParameterError
from specviz.measure.canvases import Measured, Way, ssd, stepwise, timed
from specviz.measure.claims import BootstrapEstimate, derived, quotient, ratio, resampled
from specviz.measure.report import Entry, Values
from specviz.measure.timing import decoded
from specviz.replays.canvases import PAPER, suite
from specviz.replays.cells import ABILITY
from specviz.replays.recipes import Recipe, Row
from specviz.replays.sources.shared import Measurement, RunOptions, exact, references_of, totals
from specviz.replays.tasks import own_prompts, single
from specviz.trace import Trace

STEPWISE: tuple[str, int | None] = ("stepwise", None)
TWICE: tuple[str, int | None] = ("stepwise again", None)  # the control
WRITING = "writing canvases"
DRAFTS = (3, 4, 5)  # Table 3's
BATCH = 8  # prompts per batch if nothing is timed
BUNDLED = "generated prompts (bundled)"


def refuse(options: RunOptions) -> None:
    """Reject a model that is not a masked-diffusion model."""
    if getattr(options.model, "kind", None) != "diffusion":
        raise ParameterError(
            f"this table needs a masked-diffusion model, and {options.model.name} is not one"
        )


def prompts_of(recipe: Recipe, options: RunOptions, made: Measurement) -> dict[str, list[Entry]]:
    """The prompts of each task."""

    def bundled(task: str, part: Values, start: int) -> list[Entry]:
        return suite(start + options.number, 0, part["kind"])[start:]

    return options.prompts(recipe, made, bundled)


def mixed(options: RunOptions) -> list[Entry]:
    """The prompts of a figure without tasks: the user's own, or bundled ones."""
    given = [entry for each in options.suites.values() for entry in each]
    return list(map(single, given[: options.number])) or suite(options.number)


def with_shots(
    entries: dict[str, list[Entry]], recipe: Recipe, options: RunOptions, shots: int
) -> dict[str, list[Entry]]:
    """Put `shots` examples before each prompt: bundled prompts have their own, others use each other.

    Raises
    ------
    ParameterError
        If there are too few other prompts with an answer.
    """
    if not shots:
        return entries
    if not options.suites:
        few = {task: [each["id"] for each in some] for task, some in entries.items()}
        kinds = {task: part["kind"] for task, part in recipe.parts["task"].items() if task in entries}
        every = {kind: suite(2 * options.number, shots, kind) for kind in set(kinds.values())}
        return {task: [e for e in every[kinds[task]] if e["id"] in few[task]] for task in entries}
    longer: dict[str, list[Entry]] = {}
    for task, some in entries.items():
        given = own_prompts(options.suites, task, recipe.parts["task"][task])[0]
        answered = [(e["prompt"], references_of(e.get("reference"))) for e in map(single, given)]
        pairs = [(question, right[0]) for question, right in answered if isinstance(question, str) and right]
        longer[task] = []
        for entry in some:
            others = [pair for pair in pairs if pair[0] != entry["prompt"]][:shots]
            if len(others) < shots or not isinstance(entry["prompt"], str):
                raise ParameterError(
                    f"{shots} examples are needed before each prompt, but {options.suite_of(task, '')} has "
                    f"{len(others)} other single prompts with an answer"
                )
            turns = [
                turn for question, right in others for turn in (("user", question), ("assistant", right))
            ]
            chat = [{"role": role, "content": text} for role, text in (*turns, ("user", entry["prompt"]))]
            longer[task].append({**entry, "prompt": chat})
    return longer


def encoded(options: RunOptions, entries: Sequence[Entry]) -> list[list[int]]:
    """Encode prompts as token ids."""
    return [options.model.encode(entry["prompt"]) for entry in entries]


@dataclass
class Texts:
    """What a way wrote over all rounds, text by text."""

    seconds: list[float]
    tokens: list[list[int]]  # valid ones: section 4.1 counts up to the first end token
    passes: list[int]
    phases: list[dict[str, float]]  # as `Phases.sums`

    @classmethod
    def of(cls, way: Measured, ends: Sequence[int]) -> Texts:
        """Take a way's texts from a paired run."""
        tokens = [text.text(ends) for text in way.texts]
        passes, phases = [text.passes for text in way.texts], [text.phases.sums() for text in way.texts]
        return cls(way.seconds, tokens, passes, phases)

    def speed(self, rounds: int) -> tuple[np.ndarray, np.ndarray]:
        """Valid tokens and seconds of each text."""
        return each_text(list(map(len, self.tokens)), rounds), each_text(self.seconds, rounds)


def measured(
    options: RunOptions, ids: list[list[int]], ways: Sequence[Way], length: int, step: Callable[[str], None]
) -> list[Texts]:
    """Let the ways write the prompts' canvases; in the replay's folder the result outlasts a kill."""

    def make() -> list[Texts]:
        written = timed(options.model, ids, ways, length, options.rounds, lambda: step(WRITING))
        return [Texts.of(each, options.model.eos) for each in written]

    return options.outlasting(
        {"ways": [[way.method, way.values] for way in ways], "texts": ids, "length": length},
        make,
        lambda written: {"ways": list(map(asdict, written))},
        lambda content: [Texts(**each) for each in content["ways"]],
        step,
        len(ids) * len(ways) * options.rounds,
    )


def each_text(values: Sequence[float], rounds: int) -> np.ndarray:
    """Sum of each text's values over the rounds; `values` lists all texts of one round after the other."""
    return np.reshape(np.asarray(values, float), (rounds, -1)).sum(0)


def saved(mine: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Share of passes saved, in percent."""
    return 100 * (1 - mine / base)


def canvases(recipe: Recipe, options: RunOptions) -> Measurement:
    """Tables 1 and 3: throughput, speedup and saved passes of each setting against stepwise decoding."""
    refuse(options)
    made = Measurement.begin(options)
    ways: dict[tuple[str, int | None], Way] = {STEPWISE: stepwise(**PAPER), TWICE: stepwise(**PAPER)}
    for tree, n in map(key_of, recipe.rows):
        if n is not None:
            ways[tree, n] = ssd(n, tree, **PAPER)
    entries = prompts_of(recipe, options, made)
    rounds = options.rounds
    step = options.counter(rounds * len(ways) * sum(map(len, entries.values())))
    twice: list[np.ndarray] = []
    for task, some in entries.items():
        with made.keeping({"task": task}):
            twice.append(one_task(recipe, options, made, task, some, ways, step))
    if twice:
        made.control("stepwise", *np.concatenate(twice, 1))
    further(recipe, made)
    totals(made, recipe)
    means(recipe, made)
    return made


def one_task(
    recipe: Recipe, options: RunOptions, made: Measurement, task: str, entries: list[Entry],
    ways: dict[tuple[str, int | None], Way], step: Callable[[str], None],
) -> np.ndarray:  # fmt: skip
    """Add a task's figures; return the speeds of the control and of stepwise decoding, [2, texts]."""
    ids, length, rounds = encoded(options, entries), options.max_new_tokens, options.rounds
    written = dict(zip(ways, measured(options, ids, list(ways.values()), length, step)))
    made.of_prompts(task, options.suite_of(task, BUNDLED), entries)
    base = written[STEPWISE]
    first = base.tokens[: len(ids)]
    made.by("stepwise", PAPER)
    made.ability(task, list(map(options.model.decode, first)), [e.get("reference") for e in entries])
    their_tokens, their_seconds = base.speed(rounds)
    for row in recipe.rows:
        key = key_of(row)
        mine, where = written[key], {**row.where, "task": task}
        tokens, seconds = mine.speed(rounds)
        made.by(ways[key].method, ways[key].values)
        made.add(where, "throughput", resampled(ratio, tokens, seconds))
        if mine is not base:
            made.cost(mine.phases, base.phases, options.model)
            made.add(where, "speedup", resampled(quotient, tokens, seconds, their_tokens, their_seconds))
            passes = [each_text(each.passes, rounds) for each in (mine, base)]
            made.add(where, "step_reduction", resampled(saved, *passes))
            made.add(where, "verification_nodes", exact(1 + ways[key]().nodes))
            made.same_texts(task, mine.tokens[: len(ids)], first)
    if not made.traces:
        fast = max((w for w in ways if w[1] is not None), key=lambda w: -sum(written[w].seconds))
        speeds = [np.divide(*written[w].speed(rounds)) for w in (fast, STEPWISE)]
        decode = partial(trace_of, options, ids, ways[fast])
        made.by(ways[fast].method, ways[fast].values)
        made.record(options, f"{ways[fast].label}, {task}", speeds[0] / speeds[1], decode)
    return np.stack([np.divide(*written[w].speed(rounds)) for w in (TWICE, STEPWISE)])


def trace_of(options: RunOptions, ids: list[list[int]], way: Way, i: int) -> Trace:
    """Decode a text again and return its trace."""
    return decoded(options.model, [ids[i]], way(), max_new_tokens=options.max_new_tokens)


def key_of(row: Row) -> tuple[str, int | None]:
    """A contender's tree and draft length."""
    return (row.values["tree"], row.values["draft_length"]) if row.method == "ssd" else STEPWISE


def means(recipe: Recipe, made: Measurement) -> None:
    """Set the speedup of the column Mean to the ratio of the two mean throughputs, as in the paper."""
    if recipe.total is None:
        return
    column, name = recipe.total
    kept = [f for f in made.figures if f.metric != "speedup" or f.where.get(column) != name]
    made.figures = kept
    speeds = [f for f in kept if f.metric == "throughput" and f.where.get(column) == name]
    for base in [f for f in speeds if f.where["draft_length"] == "-"]:
        for figure in speeds:
            if figure is not base:
                made.source = figure.source
                made.add(figure.where, "speedup", derived(np.divide, figure.estimate, base.estimate))
                made.figures[-1] = replace(made.figures[-1], derived=True)


def further(recipe: Recipe, made: Measurement) -> None:
    """Add Table 3's numbers in brackets, which are what mix-order adds to the chain, and its bound."""
    if "bounds" not in recipe.options:
        return
    figures = {(f.where["method"], f.where["draft_length"], f.metric): f for f in made.figures}
    if not figures:
        return
    gains = {"verification_nodes": "added_nodes", "step_reduction": "step_reduction_gain"}
    for n in DRAFTS:
        for metric, gain in gains.items():
            mix, chain = (figures.get((name, n, metric)) for name in ("Mix-order", "Greedy"))
            if mix is not None and chain is not None:
                more = derived(np.subtract, mix.estimate, chain.estimate)
                made.source = mix.source
                made.add({"method": "Mix-order", "draft_length": n}, gain, more)
        made.add({"method": "-", "draft_length": n}, "step_reduction_bound", exact(100 * n / (n + 1)))


def limits(recipe: Recipe, options: RunOptions) -> Measurement:
    """Table 2: the most passes that self-drafts could save, from recorded stepwise passes."""
    refuse(options)
    made = Measurement.begin(options)
    policy = {**PAPER, "cache": "none"}
    for task, entries in prompts_of(recipe, options, made).items():
        with made.keeping({"task": task}):
            texts, counts = counted(options, encoded(options, entries), policy)
            made.of_prompts(task, options.suite_of(task, BUNDLED), entries)
            made.by("stepwise", policy)
            made.ability(task, texts, [entry.get("reference") for entry in entries])
            last: dict[int, BootstrapEstimate] = {}
            grouped: Any = counts.groupby(["draft_length", "top"])
            for (n, k), own in grouped:
                where = {"draft_length": n, "k": str(k), "task": task}
                made.by("stepwise", {**policy, "draft": n, "best": k})
                reduction = resampled(ratio, own["matched"].to_numpy(), own["steps"].to_numpy()).times(100)
                made.add(where, "step_reduction", reduction)
                if n in last:
                    made.add(where, "step_reduction_gain", derived(np.subtract, reduction, last[n]))
                last[n] = reduction
                bound = exact(100 * n / (n + 1))
                made.add({"draft_length": n, "k": "-", "task": task}, "step_reduction_bound", bound)
    return made


def counted(options: RunOptions, ids: list[list[int]], policy: Values) -> tuple[list[str], pd.DataFrame]:
    """Decode stepwise and count the steps that self-drafts could save; the result outlasts a kill."""

    step = options.counter(1)

    def make() -> tuple[list[str], pd.DataFrame]:
        length = options.max_new_tokens
        trace = decoded(options.model, ids, stepwise(**policy)(), max_new_tokens=length, batch=BATCH)
        step("stepwise decoding recorded")
        return list(trace.texts), metrics.limits_by_text(trace, lengths=DRAFTS)

    return options.outlasting(
        {"policy": policy, "lengths": DRAFTS, "texts": ids},
        make,
        lambda result: {"texts": result[0], "counts": result[1].to_dict("list")},
        lambda content: (content["texts"], pd.DataFrame(content["counts"])),
        step,
        1,
    )


def lengths(recipe: Recipe, options: RunOptions) -> Measurement:
    """Figure 3: throughput by generated length, and by the number of examples before the prompt.

    The lengths keep the paper's ratios to the default one: half of it, and twice.
    """
    refuse(options)
    normal = options.max_new_tokens
    made = Measurement.begin(options)
    ways = [stepwise(**PAPER), ssd(3, **PAPER), stepwise(**PAPER)]
    names = ({"method": "Origin", "draft_length": "-"}, {"method": "Origin+SSD", "draft_length": "3"})
    share = {theirs: Fraction(each) for theirs, each in recipe.options["cells"].items()}
    plans: list[tuple[dict[str, str], int, int]] = [
        *(({"generation_length": theirs, "shots": "-"}, max(1, round(normal * each)), 0)
          for theirs, each in share.items()),
        *(({"generation_length": "-", "shots": str(n)}, normal, n) for n in recipe.options["shots"]),
    ]  # fmt: skip
    rounds = options.rounds
    entries = prompts_of(recipe, options, made)
    step = options.counter(rounds * len(ways) * len(plans) * sum(map(len, entries.values())))
    twice: list[np.ndarray] = []
    for where, length, examples in plans:
        for task, few in entries.items():
            with made.keeping({**where, "task": task}):
                some = with_shots({task: few}, recipe, options, examples)[task]
                ids = encoded(options, some)
                made.of_prompts(task, options.suite_of(task, BUNDLED), some)
                made.on(max_new_tokens=length)
                written = measured(options, ids, ways, length, step)
                texts = [each.tokens[: len(ids)] for each in written]
                for name, way, each, mine in zip(names, ways, written, texts):
                    made.by(way.method, {**way.values, "shots": examples, "length": length})
                    tokens, seconds = each.speed(rounds)
                    made.add({**where, **name, "task": task}, "throughput", resampled(ratio, tokens, seconds))
                    if way is not ways[0]:
                        made.cost(each.phases, written[0].phases, options.model)
                        made.same_texts(task, mine, texts[0])
                if not any(c.kind == ABILITY and c.task == task for c in made.checks):
                    right = [entry.get("reference") for entry in some]
                    made.ability(task, list(map(options.model.decode, texts[0])), right)
                speeds = [np.divide(*each.speed(rounds)) for each in (written[2], written[0])]
                twice.append(np.stack(speeds))
    if twice:
        made.control("stepwise", *np.concatenate(twice, 1))
    return made
