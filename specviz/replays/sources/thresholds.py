"""BiLD: its tables hold the best of many thresholds, so a grid of them is measured and searched as there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specviz.loop import generate
from specviz.measure.pairs import suite
from specviz.measure.report import Entry, Settings
from specviz.measure.sweep import Measured, Point, sweep
from specviz.measure.timing import BASELINE
from specviz.replays import contenders
from specviz.replays.recipes import ALIGNED, REJECTION, UNALIGNED, Recipe, Row
from specviz.replays.sources.shared import Measurement, RunOptions, about

NO_FALLBACK = "speculative sampling never falls back; what the paper counts there it does not say"
Sweep = dict[str, Measured]


def thresholds(recipe: Recipe, options: RunOptions) -> Measurement:
    """The rows of a table of BiLD's, each the setting that the paper's rule picks of what was measured."""
    made = Measurement(environment=about(options.model))
    settings, timed = 0, list[tuple[str, Measured, Measured]]()
    for dataset, part in recipe.parts["dataset"].items():
        every: Sweep = {}
        for curve in recipe.options["curves"]:
            every |= measured(curve, part["task"], options)
        settings += len(every)
        base = every[recipe.options.get("base", BASELINE)]
        metric = "bleu" if base.score.name == "BLEU" else "rouge_l"
        for row in recipe.rows:
            where = {**row.where, "dataset": dataset}
            mine = base if row.method == BASELINE else picked(row, every, base)
            if mine is None:
                why = f"no setting of the grid loses so little ({row.values['lose']:g})"
                made.absent.append((where, why))
                continue
            made.add(where, metric, mine.quality)
            if mine is base:
                continue
            made.notes.append(f"{dataset}, {', '.join(map(str, row.where.values()))}: {mine.point.label}")
            timed.append((part["task"], mine, base))
            made.add(where, "speedup", mine.over(base))
            made.add(where, f"{metric}_gain", mine.lost(base).times(-1))
            for name in ("fallback", "rollback"):
                if name == "rollback" or mine.point.method == "bild":
                    made.add(where, name, mine.share(f"{name}s", "tokens").times(100))
    record_fastest(made, options, timed)
    made.absent.append(({"metric": "fallback"}, NO_FALLBACK))
    made.absent += [({"dataset": name}, why) for name, why in recipe.options.get("left", {}).items()]
    made.data = (
        f"{options.number} generated texts a task (bundled), of which the best of {settings} settings in all"
    )
    return made


def record_fastest(
    made: Measurement, options: RunOptions, timed: Sequence[tuple[str, Measured, Measured]]
) -> None:
    """Keep traces of the fastest of some settings: (task, setting, what it is compared with)."""
    if not timed:
        return
    task, mine, base = max(timed, key=lambda each: each[1].over(each[2]).median)
    point, texts = mine.point, entries(options, task)
    given = {"draft": point.draft, "max_new_tokens": options.max_new_tokens, **point.options, **point.values}
    made.record(
        options, f"{point.label}, {task}", base.sums["seconds"] / mine.sums["seconds"],
        lambda i: generate(point.model, [texts[i]], point.method, **given),
    )  # fmt: skip


def entries(options: RunOptions, task: str) -> list[Entry]:
    """The texts of a task."""
    return list(options.suite)[: options.number] if options.suite is not None else suite(task, options.number)


def picked(row: Row, every: Sweep, base: Measured) -> Measured | None:
    """The setting that a row stands for: by a rule, or by its label."""
    rule = row.values["pick"]
    those = [each for each in every.values() if each.point.group == row.values["curve"]]
    if rule == "fastest":
        if "lose" not in row.values:
            return max(those, key=lambda each: each.over(every[each.point.base]).median)
        return contenders.fastest(those, base, row.values["lose"])
    if rule == "number":
        return those[row.values["at"]]
    other = picked(Row({}, "", {"curve": row.values["like"], "pick": "fastest"}), every, base)
    assert other is not None
    if rule == "as fast":  # the best score of those that are at least nearly as fast
        goal = 0.97 * other.over(base).median
        able = [each for each in those if each.over(base).median >= goal] or those
        return max(able, key=lambda each: each.quality.median)
    able = [each for each in those if each.quality.median >= other.quality.median]
    if not able:
        return max(those, key=lambda each: each.quality.median)
    return max(able, key=lambda each: each.over(base).median)


def measured(curve: str, task: str, options: RunOptions) -> Sweep:
    """A curve's settings on a task's texts; one process measures them once for all tables."""
    return options.once(
        ("sweep", curve, task), lambda: swept(CURVES[curve](options, options.extra), task, options)
    )


def swept(points: list[Point], task: str, options: RunOptions) -> Sweep:
    """Settings on a task's texts."""
    texts = entries(options, task)
    step = options.counter(len(points) * len(texts))
    return sweep(
        points, texts, max_new_tokens=options.max_new_tokens, tick=lambda label: step(f"{task}: {label}")
    )


def drafter(options: RunOptions, role: str) -> Any:
    """A drafter, loaded once."""
    from specviz.loop.drafters import load_drafter

    name = options.drafts[role]
    key = ("draft", name, options.model.name)
    if key not in options.memory:
        options.memory[key] = load_drafter(options.model, name, None, None)
    return options.memory[key]


def with_base(points: list[Point], options: RunOptions) -> list[Point]:
    """Greedy decoding of the large model in front."""
    return [Point(BASELINE, BASELINE, model=options.model), *points]


def grid(role: str, curve: str) -> Callable[[RunOptions, Settings], list[Point]]:
    """BiLD with a small model at every pair of thresholds."""

    def points(options: RunOptions, numbers: Settings) -> list[Point]:
        small = drafter(options, role)
        pairs = [(f, r) for r in numbers["rollbacks"] for f in numbers["fallbacks"]]
        return with_base([contenders.bild(options.model, small, f, r, curve) for f, r in pairs], options)

    return points


def rejection(options: RunOptions, numbers: Settings) -> list[Point]:
    """Speculative sampling at temperature 1 with fixed windows."""
    points = contenders.rejection(options.model, drafter(options, "small"))
    sampled = [p for p in points if p.group != "speculative, greedy"]
    kept = [p for p in sampled if p.method == BASELINE or p.values["draft_length"] in numbers["windows"]]
    return with_base(kept, options)


def nucleus(options: RunOptions, numbers: Settings) -> list[Point]:
    """Nucleus sampling."""
    return with_base(contenders.nucleus(options.model, drafter(options, "aligned")), options)


def exits(options: RunOptions, numbers: Settings) -> list[Point]:
    """The first layer drafts."""
    points = [
        replace(point, base=BASELINE)
        for point in contenders.leaving(options.model, None)
        if point.values.get("fallback") in numbers["fallbacks"]
        and point.values["rollback"] in numbers["rollbacks"]
    ]
    return with_base(points, options)


def named(
    *groups: str, make: Callable[[Any, Any], list[Point]]
) -> Callable[[RunOptions, Settings], list[Point]]:
    """Those settings of one of the bench's lists that lie on some curves."""

    def points(options: RunOptions, numbers: Settings) -> list[Point]:
        role = "small" if make is contenders.oracle else "aligned"
        made = [p for p in make(options.model, drafter(options, role)) if p.group in groups]
        some = [p for p in made if allowed(p, numbers)]
        return with_base(some, options)

    return points


def allowed(point: Point, numbers: Settings) -> bool:
    """Whether a setting's thresholds are among those that are asked for."""
    choices = {
        "fallback": (0.0, *numbers["fallbacks"]),
        "rollback": (contenders.NEVER, *numbers["rollbacks"]),
    }
    return all(point.values[name] in values for name, values in choices.items() if name in point.values)


def calm(options: RunOptions, numbers: Settings) -> list[Point]:
    """CALM, on the model that was tuned for it."""
    points = [p for p in contenders.leaving(None, options.model) if p.values.get("decay") == 4]
    return with_base([replace(p, base=BASELINE) for p in points], options)


CURVES: dict[str, Callable[[RunOptions, Settings], list[Point]]] = {
    UNALIGNED: grid("small", UNALIGNED),
    ALIGNED: grid("aligned", ALIGNED),
    REJECTION: rejection,
    "nucleus": nucleus,
    "early exit": exits,
    "without": named(contenders.NO_ROLLBACK, contenders.NO_FALLBACK, make=contenders.without),
    "oracle": named("oracle", make=contenders.oracle),
    "CALM": calm,
}
