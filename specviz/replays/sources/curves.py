"""Curves that the papers draw without printing a value: there is nothing to compare but shapes."""

from __future__ import annotations

from specviz import metrics
from specviz.loop import generate
from specviz.measure.benches import batches as together
from specviz.measure.benches import passes
from specviz.measure.pairs import suite
from specviz.replays import canvases as canvases_of
from specviz.replays.recipes import Recipe
from specviz.replays.sources.canvases import refuse
from specviz.replays.sources.prompts import prompts_of
from specviz.replays.sources.shared import Found, How, about, known
from specviz.replays.sources.thresholds import drafter, measured


def sizes(recipe: Recipe, how: How) -> Found:
    """UniSpec's Figure 2: tokens a cycle, and a pass' time, by the number of draft tokens."""
    (chosen, warm), data = prompts_of(recipe, how)
    found = Found(environment=about(how.model), data=data)
    most = recipe.options["sizes"]
    times = {row["g"]: row["median"] for row in passes.measure(how.model, [g + 1 for g in most], 128, 15, 3)}
    for i, g in enumerate(most):
        trace = generate(how.model, warm + chosen, "unispec", draft_size=g, max_new_tokens=how.max_new_tokens)
        trace = trace.select(prompt=list(range(len(warm), len(warm) + len(chosen))))
        found.add({"draft size": g}, "tau", metrics.tau(trace))
        found.add({"draft size": g}, "forward_time", times[g + 1] / 1e3)
        how.tick(i + 1, len(most), f"draft size {g}")
    return found


def scores(recipe: Recipe, how: How) -> Found:
    """UniSpec's Figure 3: how often nodes of a confidence score are accepted, and how many have it."""
    (chosen, warm), data = prompts_of(recipe, how)
    found = Found(environment=about(how.model), data=data)
    trace = generate(how.model, warm + chosen, "unispec", draft_size=32, max_new_tokens=how.max_new_tokens)
    trace = trace.select(prompt=list(range(len(warm), len(warm) + len(chosen))))
    how.tick(1, 1, "decoded")
    table = metrics.by_score(trace)
    for row in table[table["source"] == "all"].to_dict("records"):
        where = {"score": f"{row['low']:.1f} to {row['high']:.1f}"}
        found.add(where, "acceptance_rate", row["rate"], row["rate_lo"], row["rate_hi"])
        found.add(where, "density", row["share"])
    return found


def calibrated(recipe: Recipe, how: How) -> Found:
    """UniSpec's Figure 5: the draft size that calibration finds in this environment."""
    found = Found(environment=about(how.model), data="what the calibration decodes")
    g, origin = how.best("unispec")
    found.add({"method": "UNISPEC"}, "draft_size", float(g))
    found.notes.append(origin)
    return found


def batched(recipe: Recipe, how: How) -> Found:
    """CM-ASD's latency against throughput, batch by batch."""
    entries = list(how.suite)[: how.prompts] if how.suite is not None else suite("en-de", how.prompts)
    made = together.bench(
        how.model, [drafter(how, "small")], entries, recipe.options["methods"], recipe.options["sizes"],
        how.options.get("rounds", 1), how.max_new_tokens, how.threads, how.tick,
    )  # fmt: skip
    found = Found(environment=about(how.model), data=f"{len(entries)} generated texts, English to German")
    for row in made.rows:
        where = {"method": row["method"], "batch size": row["batch"]}
        found.add(where, "throughput", row["speed"])
        found.add(where, "latency", row["latency"])
    return found


def canvases(recipe: Recipe, how: How) -> Found:
    """SSD's Figure 1: throughput by batch size, with and without the cache."""
    refuse(how)
    made = canvases_of.batches(how.model, how.prompts, how.options.get("rounds", 1), how.tick)
    found = Found(environment=about(how.model), data=f"{how.prompts} generated prompts, canvases of 64 cells")
    for row in made.tables[0].rows:
        found.add({"method": row["way"], "batch size": row["batch"]}, "throughput", row["speed"])
    found.notes += made.notes
    return found


def settings(recipe: Recipe, how: How) -> Found:
    """BiLD's trade-offs: quality against speed, setting by setting."""
    found = Found(environment=about(how.model), data=f"{how.prompts} generated texts a task (bundled)")
    for dataset, part in recipe.parts["dataset"].items():
        for name in recipe.options["curves"]:
            every = measured(name, part["task"], recipe, how)
            for each in every.values():
                base = every[each.point.base]
                curve = each.point.group or "greedy"
                setting = each.point.label.removeprefix(curve).lstrip(":, ")
                where = {"dataset": dataset, "curve": curve, "setting": setting}
                found.add(where, "bleu" if each.score.name == "BLEU" else "rouge_l", each.quality)
                found.add(where, "speedup", known() if each is base else each.over(base))
    return found
