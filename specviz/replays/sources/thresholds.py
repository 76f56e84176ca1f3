"""BiLD: its tables hold the best of many thresholds, so a grid of them is measured and searched as there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specviz.loop import generate
from specviz.measure.pairs import suite
from specviz.measure.sweep import Measured, Point, sweep
from specviz.measure.timing import BASELINE
from specviz.replays import contenders
from specviz.replays.recipes import Recipe, Row
from specviz.replays.sources.shared import Found, How, about

NO_FALLBACK = "speculative sampling never falls back; what the paper counts there it does not say"
Sweep = dict[str, Measured]


def thresholds(recipe: Recipe, how: How) -> Found:
    """The rows of a table of BiLD's, each the setting that the paper's rule picks of what was measured."""
    found = Found(environment=about(how.model))
    settings, made = 0, list[tuple[str, Measured, Measured]]()
    for dataset, part in recipe.parts["dataset"].items():
        every: Sweep = {}
        for curve in recipe.options["curves"]:
            every |= measured(curve, part["task"], recipe, how)
        settings += len(every)
        base = every[recipe.options.get("base", BASELINE)]
        metric = "bleu" if base.score.name == "BLEU" else "rouge_l"
        for row in recipe.rows:
            where = {**row.where, "dataset": dataset}
            mine = base if row.method == BASELINE else picked(row, every, base)
            if mine is None:
                found.absent.append(
                    (where, f"no setting of the grid loses so little ({row.values['lose']:g})")
                )
                continue
            found.add(where, metric, mine.quality)
            if mine is base:
                continue
            found.notes.append(f"{dataset}, {', '.join(map(str, row.where.values()))}: {mine.point.label}")
            made.append((part["task"], mine, base))
            found.add(where, "speedup", mine.over(base))
            found.add(where, f"{metric}_gain", mine.lost(base).times(-1))
            for name in ("fallback", "rollback"):
                if name == "rollback" or mine.point.method == "bild":
                    found.add(where, name, mine.share(f"{name}s", "tokens").times(100))
    recorded(found, how, made)
    found.absent.append(({"metric": "fallback"}, NO_FALLBACK))
    found.absent += [({"dataset": name}, why) for name, why in recipe.options.get("left", {}).items()]
    found.data = (
        f"{how.prompts} generated texts a task (bundled), of which the best of {settings} settings in all"
    )
    return found


def recorded(found: Found, how: How, made: Sequence[tuple[str, Measured, Measured]]) -> None:
    """Keep traces of the fastest of some settings: (task, setting, what it is compared with)."""
    if not made:
        return
    task, mine, base = max(made, key=lambda each: each[1].over(each[2]).median)
    point, texts = mine.point, entries(how, task)
    options = {"draft": point.draft, "max_new_tokens": how.max_new_tokens, **point.options, **point.values}
    found.record(
        how, f"{point.label}, {task}", base.sums["seconds"] / mine.sums["seconds"],
        lambda i: generate(point.model, [texts[i]], point.method, **options),
    )  # fmt: skip


def entries(how: How, task: str) -> list[dict[str, Any]]:
    """The texts of a task."""
    return list(how.suite)[: how.prompts] if how.suite is not None else suite(task, how.prompts)


def picked(row: Row, every: Sweep, base: Measured) -> Measured | None:
    """The setting that a row stands for: by a rule, or by its label."""
    rule = row.values["pick"]
    those = [each for each in every.values() if each.point.group == row.values["curve"]]
    if rule == "fastest":
        if "lose" not in row.values:
            return max(those, key=lambda each: each.over(each_base(every, each)).median)
        return contenders.fastest(those, base, row.values["lose"])
    if rule == "number":
        return those[row.values["at"]]
    other = picked(Row({}, "", {"curve": row.values["like"], "pick": "fastest"}), every, base)
    assert other is not None
    if rule == "as fast":  # the best score of those that are at least nearly as fast
        goal = 0.97 * other.over(base).median
        able = [each for each in those if each.over(base).median >= goal] or those
        return max(able, key=lambda each: each.quality.median)
    goal = other.quality.median
    able = [each for each in those if each.quality.median >= goal]
    return (
        max(able, key=lambda each: each.over(base).median)
        if able
        else max(those, key=lambda e: e.quality.median)
    )


def each_base(every: Sweep, each: Measured) -> Measured:
    """What a setting's speed is compared with."""
    return every[each.point.base]


def measured(curve: str, task: str, recipe: Recipe, how: How) -> Sweep:
    """A curve's settings on a task's texts; one process measures them once for all tables."""
    key = ("sweep", how.model.name, tuple(how.drafts.items()), curve, task, how.prompts, how.max_new_tokens)
    if key not in how.memory:
        points = CURVES[curve](how, how.options)
        texts = entries(how, task)
        of, done = len(points) * len(texts), 0

        def told(label: str) -> None:
            nonlocal done
            done += 1
            how.tick(done, of, f"{task}: {label}")

        how.memory[key] = sweep(points, texts, max_new_tokens=how.max_new_tokens, tick=told)
    return dict(how.memory[key])


def drafter(how: How, role: str) -> Any:
    """A drafter, loaded once."""
    from specviz.loop.drafters import load_drafter

    name = how.drafts[role]
    key = ("draft", name, how.model.name)
    if key not in how.memory:
        how.memory[key] = load_drafter(how.model, name, None, None)
    return how.memory[key]


def with_base(points: list[Point], how: How) -> list[Point]:
    """Greedy decoding of the large model in front."""
    return [Point(BASELINE, BASELINE, model=how.model), *points]


def grid(role: str, curve: str) -> Callable[[How, dict[str, Any]], list[Point]]:
    """BiLD with a small model at every pair of thresholds."""

    def points(how: How, numbers: dict[str, Any]) -> list[Point]:
        small = drafter(how, role)
        pairs = [(f, r) for r in numbers["rollbacks"] for f in numbers["fallbacks"]]
        return with_base([contenders.bild(how.model, small, f, r, curve) for f, r in pairs], how)

    return points


def rejection(how: How, numbers: dict[str, Any]) -> list[Point]:
    """Speculative sampling at temperature 1 with fixed windows."""
    drawn = [
        p for p in contenders.rejection(how.model, drafter(how, "small")) if p.group != "speculative, greedy"
    ]
    kept = [p for p in drawn if p.method == BASELINE or p.values["draft_length"] in numbers["windows"]]
    return with_base(kept, how)


def nucleus(how: How, numbers: dict[str, Any]) -> list[Point]:
    """Nucleus sampling."""
    return with_base(contenders.nucleus(how.model, drafter(how, "aligned")), how)


def exits(how: How, numbers: dict[str, Any]) -> list[Point]:
    """The first layer drafts."""
    points = [
        replace(point, base=BASELINE)
        for point in contenders.leaving(how.model, None)
        if point.values.get("fallback") in numbers["fallbacks"]
        and point.values["rollback"] in numbers["rollbacks"]
    ]
    return with_base(points, how)


def named(
    *groups: str, make: Callable[[Any, Any], list[Point]]
) -> Callable[[How, dict[str, Any]], list[Point]]:
    """Those settings of one of the bench's lists that lie on some curves."""

    def points(how: How, numbers: dict[str, Any]) -> list[Point]:
        role = "small" if make is contenders.oracle else "aligned"
        made = [p for p in make(how.model, drafter(how, role)) if p.group in groups]
        some = [p for p in made if allowed(p, numbers)]
        return with_base(some, how)

    return points


def allowed(point: Point, numbers: dict[str, Any]) -> bool:
    """Whether a setting's thresholds are among those that are asked for."""
    known = {"fallback": (0.0, *numbers["fallbacks"]), "rollback": (contenders.NEVER, *numbers["rollbacks"])}
    return all(point.values[name] in values for name, values in known.items() if name in point.values)


def calm(how: How, numbers: dict[str, Any]) -> list[Point]:
    """CALM, on the model that was tuned for it."""
    points = [replace(p, base=BASELINE) for p in contenders.leaving(None, how.model) if p.method != BASELINE]
    return with_base([p for p in points if p.values["decay"] == 4], how)


CURVES: dict[str, Callable[[How, dict[str, Any]], list[Point]]] = {
    contenders.UNALIGNED_CURVE: grid("small", contenders.UNALIGNED_CURVE),
    contenders.ALIGNED_CURVE: grid("aligned", contenders.ALIGNED_CURVE),
    "speculative, sampling": rejection,
    "nucleus": nucleus,
    "early exit": exits,
    "without": named(contenders.NO_ROLLBACK, contenders.NO_FALLBACK, make=contenders.without),
    "oracle": named("oracle", make=contenders.oracle),
    "CALM": calm,
}
