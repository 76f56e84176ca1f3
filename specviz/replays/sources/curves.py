"""Curves that the papers draw without printing a value: there is nothing to compare but shapes."""

from __future__ import annotations

from specviz import metrics
from specviz.loop import generate
from specviz.measure.benches import batches as batch_bench
from specviz.measure.benches import passes
from specviz.measure.pairs import suite
from specviz.replays import canvases as canvases_of
from specviz.replays.recipes import Recipe
from specviz.replays.sources.canvases import refuse
from specviz.replays.sources.prompts import prompts_of
from specviz.replays.sources.shared import Measurement, RunOptions, about, exact
from specviz.replays.sources.thresholds import drafter, measured


def sizes(recipe: Recipe, options: RunOptions) -> Measurement:
    """UniSpec's Figure 2: tokens a cycle, and a pass' time, by the number of draft tokens."""
    (chosen, warm), data = prompts_of(recipe, options)
    made = Measurement(environment=about(options.model), data=data)
    most = recipe.options["sizes"]
    times = {row["g"]: row["median"] for row in passes.measure(options.model, [g + 1 for g in most], 128, 15)}
    step = options.counter(len(most))
    for g in most:
        trace = generate(
            options.model, warm + chosen, "unispec", draft_size=g, max_new_tokens=options.max_new_tokens
        )
        trace = trace.select(prompt=list(range(len(warm), len(warm) + len(chosen))))
        made.add({"draft size": g}, "tau", metrics.tau(trace))
        made.add({"draft size": g}, "forward_time", times[g + 1] / 1e3)
        step(f"draft size {g}")
    return made


def scores(recipe: Recipe, options: RunOptions) -> Measurement:
    """UniSpec's Figure 3: how often nodes of a confidence score are accepted, and how many have it."""
    (chosen, warm), data = prompts_of(recipe, options)
    made = Measurement(environment=about(options.model), data=data)
    trace = generate(
        options.model, warm + chosen, "unispec", draft_size=32, max_new_tokens=options.max_new_tokens
    )
    trace = trace.select(prompt=list(range(len(warm), len(warm) + len(chosen))))
    options.counter(1)("decoded")
    table = metrics.by_score(trace)
    for row in table[table["source"] == "all"].to_dict("records"):
        where = {"score": f"{row['low']:.1f} to {row['high']:.1f}"}
        made.add(where, "acceptance_rate", row["rate"], row["rate_lo"], row["rate_hi"])
        made.add(where, "density", row["share"])
    return made


def calibrated(recipe: Recipe, options: RunOptions) -> Measurement:
    """UniSpec's Figure 5: the draft size that calibration finds in this environment."""
    made = Measurement(environment=about(options.model), data="what the calibration decodes")
    g, origin = options.best("unispec")
    made.add({"method": "UNISPEC"}, "draft_size", float(g))
    made.notes.append(origin)
    return made


def batched(recipe: Recipe, options: RunOptions) -> Measurement:
    """CM-ASD's latency against throughput, batch by batch."""
    entries = (
        list(options.suite)[: options.number] if options.suite is not None else suite("en-de", options.number)
    )
    report = batch_bench.bench(
        options.model, [drafter(options, "small")], entries, only=recipe.options["methods"],
        sizes=recipe.options["sizes"], rounds=options.rounds, max_new_tokens=options.max_new_tokens,
        tick=options.tick,
    )  # fmt: skip
    made = Measurement(
        environment=about(options.model), data=f"{len(entries)} generated texts, English to German"
    )
    for row in report.rows:
        where = {"method": row["method"], "batch size": row["batch"]}
        made.add(where, "throughput", row["speed"])
        made.add(where, "latency", row["latency"])
    return made


def canvases(recipe: Recipe, options: RunOptions) -> Measurement:
    """SSD's Figure 1: throughput by batch size, with and without the cache."""
    refuse(options)
    result = canvases_of.batches(options.model, options.number, options.rounds, options.tick)
    made = Measurement(
        environment=about(options.model), data=f"{options.number} generated prompts, canvases of 64 cells"
    )
    for row in result.tables[0].rows:
        made.add({"method": row["way"], "batch size": row["batch"]}, "throughput", row["speed"])
    made.notes += result.notes
    return made


def settings(recipe: Recipe, options: RunOptions) -> Measurement:
    """BiLD's trade-offs: quality against speed, setting by setting."""
    made = Measurement(
        environment=about(options.model), data=f"{options.number} generated texts a task (bundled)"
    )
    for dataset, part in recipe.parts["dataset"].items():
        for name in recipe.options["curves"]:
            every = measured(name, part["task"], recipe, options)
            for each in every.values():
                base = every[each.point.base]
                curve = each.point.group or "greedy"
                setting = each.point.label.removeprefix(curve).lstrip(":, ")
                where = {"dataset": dataset, "curve": curve, "setting": setting}
                made.add(where, "bleu" if each.score.name == "BLEU" else "rouge_l", each.quality)
                made.add(where, "speedup", exact() if each is base else each.over(base))
    return made
