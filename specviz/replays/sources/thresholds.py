"""BiLD's tables, which print the best of many thresholds: measure a grid of them and search it likewise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specviz.errors import ParameterError
from specviz.loop.machine import computed_by, drafter_identity, identity
from specviz.measure import pairs
from specviz.measure.pairs import Score
from specviz.measure.report import Entry, Settings, Values
from specviz.measure.sweep import Measured, Point, packed, sweep, unpacked
from specviz.measure.timing import BASELINE, decoded
from specviz.metrics.rouge import Rouge
from specviz.replays import contenders
from specviz.replays.cells import AGAIN, IDLE, Check
from specviz.replays.recipes import ALIGNED, REJECTION, UNALIGNED, Recipe, Row
from specviz.replays.sources.shared import Measurement, RunOptions, references_of
from specviz.replays.tasks import PLAIN, own_prompts, single
from specviz.suites import suite

NO_FALLBACK = "speculative sampling never falls back; the paper does not say what it counts there"
NO_REFERENCES = "the prompts have no references, so their texts cannot be scored"
PAIRS, BUNDLED = "pairs", "generated texts (bundled)"  # a recipe's suite, and its name in words
Sweep = dict[str, Measured]
Timed = tuple[str, list[Entry], Measured, Measured]  # a task, its texts, a setting, its reference


def thresholds(recipe: Recipe, options: RunOptions) -> Measurement:
    """Measure a table of BiLD's; each row is the setting that the paper's rule picks from the grid."""
    made = Measurement.begin(options)
    timed = list[Timed]()
    lacking = without_role(recipe, options, made)
    prompts = options.prompts(recipe, made, bundled(recipe, options))
    if all(row.method == BASELINE or by_score(row) for row in recipe.rows):
        prompts = scorable(prompts, made)
    for dataset, entries in prompts.items():
        with made.keeping({"dataset": dataset}):
            one_dataset(recipe, options, made, dataset, entries, lacking, timed)
    finish(made, options, timed)
    made.absent.append(({"metric": "fallback"}, NO_FALLBACK))
    made.absent += [({"dataset": name}, why) for name, why in recipe.options.get("left", {}).items()]
    return made


def one_dataset(
    recipe: Recipe, options: RunOptions, made: Measurement, dataset: str, entries: list[Entry],
    lacking: set[str], timed: list[Timed],
) -> None:  # fmt: skip
    """Add the figures of a data set."""
    made.of_prompts(dataset, options.suite_of(dataset, named_suite(recipe)), entries)
    made.on(settings="")
    curves = [curve for curve in recipe.options["curves"] if curve not in lacking]
    sweeps = {curve: measured(curve, dataset, entries, options) for curve in curves}
    if not sweeps:
        return
    # A sweep times its settings in turn with its own greedy decoding, so a curve is compared with that.
    named = recipe.options.get("base", BASELINE)
    bases = {curve: every[named] for curve, every in sweeps.items()}
    greedy = bases[curves[0]]
    able(made, dataset, greedy, entries)
    metric = {"BLEU": "bleu", "ROUGE-L": "rouge_l"}.get(greedy.score.name)
    if metric is None:
        made.absent.append(({"dataset": dataset, "metric": ["bleu", "rouge_l"]}, NO_REFERENCES))
    for row in recipe.rows:
        where = {**row.where, "dataset": dataset}
        if row.values.get("curve") in lacking:
            continue
        if metric is None and by_score(row):
            made.absent.append((where, NO_REFERENCES))
            continue
        base = bases.get(str(row.values.get("curve")), greedy)
        mine = base if row.method == BASELINE else picked(row, sweeps, bases)
        if mine is None:
            like = row.values.get("like")
            why = f"no setting of the grid scores as {like} does"
            if row.values.get("pick") == "as fast":
                why = f"no setting of the grid is as fast as {like}"
            if "lose" in row.values:
                why = f"no setting of the grid loses this little ({row.values['lose']:g})"
            made.absent.append((where, why))
            continue
        of(made, mine)
        if mine is not base:
            made.on(tried=tried(row, sweeps))
        if metric is not None:
            made.add(where, metric, mine.quality)
        if metric == "rouge_l":
            note = f"{dataset}, {mine.point.label}: {summary_level(mine, entries)}"
            made.notes += [note] * (note not in made.notes)
        if mine is base:
            continue
        made.notes.append(f"{dataset}, {', '.join(map(str, row.where.values()))}: {mine.point.label}")
        timed.append((dataset, entries, mine, base))
        made.add(where, "speedup", mine.over(base))
        spent(made, mine, base)
        if recipe.options.get("costs"):
            counted = contenders.costs(mine.point, base.point, entries, options.max_new_tokens)
            made.add(where, "byte_reduction", 1 / counted["bytes"])
            made.add(where, "intensity_ratio", counted["intensity"])
            made.notes.append(
                f"{dataset}: {counted['flops']:.2f} times the FLOPs of greedy decoding, "
                f"{counted['bytes']:.2f} times its bytes per token, counted from the recorded passes"
            )
        if metric is not None:
            made.add(where, f"{metric}_gain", mine.lost(base).times(-1))
        for name in ("fallback", "rollback"):
            if name == "rollback" or mine.point.method == "bild":
                made.add(where, name, mine.share(f"{name}s", "tokens").times(100))
        if "passes" in mine.sums:
            idle = int((mine.sums["passes"] == 0).sum())
            check = Check(IDLE, made.source.contender, dataset, idle, len(entries))
            made.checks += [check] * (check not in made.checks)
    for every in sweeps.values():
        control(made, dataset, every)


def by_score(row: Row) -> bool:
    """Whether a row's setting is picked by the score of its texts."""
    return row.values.get("pick") not in (None, "fastest", "number") or "lose" in row.values


def scorable(prompts: dict[str, list[Entry]], made: Measurement) -> dict[str, list[Entry]]:
    """The data sets whose texts can be scored; the others are noted as absent.

    Raises
    ------
    ParameterError
        If there are only others, before anything is decoded.
    """
    scored = {dataset: some for dataset, some in prompts.items() if Score(some).name}
    if prompts and not scored:
        raise ParameterError(f"{NO_REFERENCES}: give them references")
    made.absent += [({"dataset": dataset}, NO_REFERENCES) for dataset in prompts if dataset not in scored]
    return scored


def bundled(recipe: Recipe, options: RunOptions) -> Callable[[str, Values, int], list[Entry]]:
    """Make a function that returns the recipe's texts of a task; generated texts serve only one task."""

    def some(name: str, part: Values, start: int) -> list[Entry]:
        if recipe.suite == PAIRS:
            return [] if start else pairs.suite(part["task"], options.number)
        return own_prompts({PLAIN: suite(recipe.suite)}, name, part)[0][start : start + options.number]

    return some


def texts_of(recipe: Recipe, options: RunOptions) -> list[Entry]:
    """The texts of a table without tasks: the user's own, or the recipe's."""
    given = [entry for each in options.suites.values() for entry in each]
    if not given and recipe.suite == PAIRS:
        return pairs.suite("en-de", options.number)
    return list(map(single, (given or list(suite(recipe.suite)))[: options.number]))


def named_suite(recipe: Recipe) -> str:
    """The recipe's suite in words."""
    return BUNDLED if recipe.suite == PAIRS else recipe.suite


def without_role(recipe: Recipe, options: RunOptions, made: Measurement) -> set[str]:
    """The curves that lack their drafter; their rows are noted as absent."""
    lacking = set()
    for row in recipe.rows:
        curve = str(row.values.get("curve", ""))
        role = ROLES.get(curve, "")
        if role in recipe.drafts and not options.drafts.get(role):
            lacking.add(curve)
            made.absent.append((row.where, no_drafter(options, role)))
    return lacking


def no_drafter(options: RunOptions, role: str) -> str:
    """Why a row without its drafter is empty."""
    return f"no drafter for {options.model.name}: name one with --draft {role}=NAME"


def of(made: Measurement, mine: Measured) -> None:
    """Set the contender of the figures that are added next."""
    point = mine.point
    made.on(tried=1)
    if point.model is not None:  # the early-exit curve has another model
        made.target(point.model)
    made.by(str(point.method), {**point.values, **point.options}, point.draft)


def spent(made: Measurement, mine: Measured, plain: Measured) -> None:
    """Note where the current contender's time goes, compared with decoding without drafts."""
    point = mine.point
    made.cost(mine.phases, plain.phases, point.model, lambda: point.draft)


def able(made: Measurement, task: str, base: Measured, entries: list[Entry]) -> None:
    """Note whether the model can do the task, judging by the texts of greedy decoding."""
    originals = [entry["source"] for entry in entries if isinstance(entry.get("source"), str)]
    if entries[0].get("kind") != "translation" or len(originals) < len(entries):
        originals = []
    of(made, base)
    made.ability(task, base.texts, [entry.get("reference") for entry in entries], originals)


def summary_level(mine: Measured, texts: list[Entry]) -> str:
    """ROUGE-L and ROUGE-Lsum; judging by their size, the papers' CNN/DailyMail figures are the latter."""
    rouge = Rouge()
    each = [rouge(references_of(entry["reference"]), text) for entry, text in zip(texts, mine.texts)]
    means = {name: np.mean([scores[name] for scores in each]) for name in ("rougeL", "rougeLsum")}
    return f"ROUGE-L {means['rougeL']:.2f}, ROUGE-Lsum {means['rougeLsum']:.2f}"


def control(made: Measurement, task: str, sweep: Sweep) -> None:
    """Note the control: greedy decoding against itself, timed in turn with the settings of a sweep."""
    once, again = (sweep[name].sums["seconds"] for name in (BASELINE, AGAIN))
    made.control(BASELINE, once, again, task)


def finish(made: Measurement, options: RunOptions, timed: Sequence[Timed]) -> None:
    """Save traces of the fastest of some settings."""
    if not timed:
        return
    task, texts, mine, base = max(timed, key=lambda each: each[2].over(each[3]).median)
    point = mine.point
    made.on(task=task)
    of(made, mine)
    given = {"draft": point.draft, "max_new_tokens": options.max_new_tokens, **point.options, **point.values}
    made.record(
        options, point.label, base.sums["seconds"] / mine.sums["seconds"],
        lambda i: decoded(point.model, [texts[i]], point.method, **given),
    )  # fmt: skip


def picked(row: Row, sweeps: dict[str, Sweep], bases: Mapping[str, Measured]) -> Measured | None:
    """The setting for a row, picked by a rule or by its index in the sweep."""
    rule, curve = row.values["pick"], row.values["curve"]
    those, base = settings_on(curve, sweeps), bases[curve]
    if rule == "fastest":
        if "lose" not in row.values:
            return max(those, key=lambda each: each.over(sweeps[curve][each.point.base]).median)
        if not base.score.name:  # without a score, a setting's loss is unknown
            return None
        return contenders.fastest(those, base, row.values["lose"])
    if rule == "number":
        return those[row.values["at"]]
    like = row.values["like"]
    other = picked(Row({}, "", {"curve": like, "pick": "fastest"}), sweeps, bases)
    assert other is not None
    if rule == "as fast":  # the best score of those that are at least nearly as fast
        goal = 0.97 * other.over(bases[like]).median
        able = [each for each in those if each.over(base).median >= goal]
        return max(able, key=lambda each: each.quality.median, default=None)
    able = [each for each in those if each.quality.median >= other.quality.median]
    return max(able, key=lambda each: each.over(base).median, default=None)


def tried(row: Row, sweeps: Mapping[str, Sweep]) -> int:
    """Number of settings from which a rule picked a row's; 1 if the row's index names it."""
    return 1 if row.values["pick"] == "number" else len(settings_on(row.values["curve"], sweeps))


def settings_on(curve: str, sweeps: Mapping[str, Sweep]) -> list[Measured]:
    """A curve's settings; for some curves they include plain decoding."""
    return [each for each in sweeps[curve].values() if each.point.group == curve]


def measured(curve: str, task: str, entries: list[Entry], options: RunOptions) -> Sweep:
    """Measure a curve's settings on a task's texts, once per process for all tables."""
    return options.once(
        ("sweep", curve),
        entries,
        lambda: swept(CURVES[curve](options, options.extra), task, entries, options),
    )


def swept(points: list[Point], task: str, entries: list[Entry], options: RunOptions) -> Sweep:
    """Measure settings and the control on a task's texts; in the replay's folder they outlast a kill."""
    points = [*points, Point(AGAIN, BASELINE, model=options.model)]
    how = [
        [p.label, str(p.method), p.values, p.options, identity(p.model), computed_by(p.model),
         p.draft and drafter_identity(p.draft, p.model)]
        for p in points
    ]  # fmt: skip
    steps = len(points) * len(entries) * options.rounds
    count = options.counter(steps)

    def step(label: str) -> None:
        count(f"{task}: {label}")

    return options.outlasting(
        {"settings": how, "texts": entries},
        lambda: sweep(
            points, entries, max_new_tokens=options.max_new_tokens, rounds=options.rounds,
            tick=step,
        ),
        packed,
        lambda content: unpacked(content, points, entries),
        step,
        steps,
    )  # fmt: skip


def with_base(points: list[Point], options: RunOptions) -> list[Point]:
    """Put greedy decoding of the large model before the settings."""
    return [Point(BASELINE, BASELINE, model=options.model), *points]


def grid(role: str, curve: str) -> Callable[[RunOptions, Settings], list[Point]]:
    """BiLD with a small model at every pair of thresholds."""

    def points(options: RunOptions, numbers: Settings) -> list[Point]:
        small = options.drafter(role)
        both = [(f, r) for r in numbers["rollbacks"] for f in numbers["fallbacks"]]
        return with_base([contenders.bild(options.model, small, f, r, curve) for f, r in both], options)

    return points


def rejection(options: RunOptions, numbers: Settings) -> list[Point]:
    """Speculative sampling at temperature 1 with fixed windows."""
    points = contenders.rejection(options.model, options.drafter("small"))
    kept = [p for p in points if p.method == BASELINE or p.values["draft_length"] in numbers["windows"]]
    return with_base(kept, options)


def nucleus(options: RunOptions, numbers: Settings) -> list[Point]:
    """Nucleus sampling."""
    return with_base(contenders.nucleus(options.model, options.drafter("aligned")), options)


def exits(options: RunOptions, numbers: Settings) -> list[Point]:
    """Early exit: drafting with the first layer of the table's model or of the tuned one (role ``exit``)."""
    own = options.drafts.get("exit")
    points = contenders.leaving(model_of(options, own) if own else options.model, None)
    greedy, drafting = points[0], points[1:]
    kept = [
        point
        for point in drafting
        if point.values["fallback"] in numbers["fallbacks"]
        and point.values["rollback"] in numbers["rollbacks"]
    ]
    if own:
        return with_base([greedy, *kept], options)
    return with_base([replace(point, base=BASELINE) for point in kept], options)


def model_of(options: RunOptions, name: str) -> Any:
    """Another model of the table, loaded once."""
    from specviz.models import load

    dtype = str(options.model.dtype).removeprefix("torch.")
    key = ("model", name, str(options.model.device), dtype)
    if key not in options.memory:
        options.memory[key] = load(
            name, str(options.model.device), dtype, kernels=options.kernels, invariant=options.invariant
        )
    return options.memory[key]


def without(options: RunOptions, numbers: Settings) -> list[Point]:
    """BiLD without rollback, and without fallback."""
    grids = (numbers[name] for name in ("fallbacks", "rollbacks", "windows"))
    return with_base(contenders.without(options.model, options.drafter("aligned"), *grids), options)


def oracle(options: RunOptions, numbers: Settings) -> list[Point]:
    """The oracle at each of its thresholds."""
    return with_base(contenders.oracle(options.model, options.drafter("small")), options)


def calm(options: RunOptions, numbers: Settings) -> list[Point]:
    """CALM on the model tuned for it, with each of the recipe's decays of its threshold."""
    points = [
        p for p in contenders.leaving(None, options.model) if p.values.get("decay") in numbers["decays"]
    ]
    return with_base([replace(p, base=BASELINE) for p in points], options)


CURVES: dict[str, Callable[[RunOptions, Settings], list[Point]]] = {
    UNALIGNED: grid("small", UNALIGNED),
    ALIGNED: grid("aligned", ALIGNED),
    REJECTION: rejection,
    "nucleus": nucleus,
    "early exit": exits,
    "without": without,
    "oracle": oracle,
    "CALM": calm,
}
# Curve: the role of the drafter that it needs.
ROLES = {
    UNALIGNED: "small", ALIGNED: "aligned", REJECTION: "small", "nucleus": "aligned", "without": "aligned",
    "oracle": "small", "early exit": "exit",
}  # fmt: skip
