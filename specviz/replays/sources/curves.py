"""Curves that the papers draw without printing values, so that only shapes can be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from specviz import metrics
from specviz.errors import ParameterError
from specviz.measure.benches import batches as batch_bench
from specviz.measure.benches import passes
from specviz.measure.timing import decoded
from specviz.methods import find
from specviz.metrics import Estimate
from specviz.replays import canvases as canvases_of
from specviz.replays.cells import AGAIN
from specviz.replays.recipes import Recipe, Where
from specviz.replays.sources.canvases import BUNDLED as PROMPTS
from specviz.replays.sources.canvases import mixed, refuse
from specviz.replays.sources.prompts import Entries, divided, filled, prompts_of
from specviz.replays.sources.shared import FITS, Measurement, RunOptions, exact
from specviz.replays.sources.thresholds import (
    ROLES,
    bundled,
    control,
    measured,
    named_suite,
    no_drafter,
    of,
    scorable,
    spent,
    texts_of,
)
from specviz.trace import Trace

if TYPE_CHECKING:
    from specviz.calibration import Calibration


def sizes(recipe: Recipe, options: RunOptions) -> Measurement:
    """UniSpec's Figure 2: tokens per cycle and time per pass, by number of draft tokens."""
    made = Measurement.begin(options)
    entries = prompts_of(recipe, options, made)
    made.on(suite=options.suite_of("", recipe.suite), texts=len(entries[0]))
    most = recipe.options["sizes"]
    times = {row["g"]: row["median"] for row in passes.measure(options.model, [g + 1 for g in most], 128, 15)}
    step = options.counter(len(most))
    for g in most:
        trace = warmed(options, entries, g)
        made.by("unispec", {"draft_size": g})
        made.add({"draft size": g}, "tau", metrics.tau(trace))
        made.add({"draft size": g}, "forward_time", times[g + 1] / 1e3)
        step(f"draft size {g}")
    return made


def warmed(options: RunOptions, entries: Entries, size: int) -> Trace:
    """UniSpec's trace of the measured prompts, decoded after the warm-up prompts."""
    chosen, warm = entries
    trace = decoded(
        options.model, warm + chosen, "unispec", draft_size=size, max_new_tokens=options.max_new_tokens
    )
    return trace.select(prompt=list(range(len(warm), len(warm) + len(chosen))))


def scores(recipe: Recipe, options: RunOptions) -> Measurement:
    """UniSpec's Figure 3: how often nodes are accepted, and how many there are, by confidence score."""
    made = Measurement.begin(options)
    entries = prompts_of(recipe, options, made)
    made.on(suite=options.suite_of("", recipe.suite), texts=len(entries[0]))
    trace = warmed(options, entries, 32)
    made.by("unispec", {"draft_size": 32})
    options.counter(1)("decoded")
    table = metrics.by_score(trace)
    for row in table[table["source"] == "all"].to_dict("records"):
        where = {"score": f"{row['low']:.1f} to {row['high']:.1f}"}
        made.add(where, "acceptance_rate", row["rate"], row["rate_lo"], row["rate_hi"])
        made.add(where, "density", row["share"])
    return made


def practised(recipe: Recipe, options: RunOptions, made: Measurement) -> Calibration:
    """UniSpec's calibration on prompts of the recipe's suite."""
    entries, rest = divided(recipe, options, made)
    options = replace(options, practice=tuple(rest or (*entries[0], *entries[1])))
    calibration = options.calibration("unispec")
    how = calibration.how
    made.on(
        suite=options.suite_of("", recipe.suite), texts=how["prompts"],
        max_new_tokens=how["max_new_tokens"], rounds=how["rounds"],
    )  # fmt: skip
    made.by("unispec")
    made.notes.append(options.calibrated_words("unispec"))
    return calibration


def calibrated(recipe: Recipe, options: RunOptions) -> Measurement:
    """UniSpec's Figure 5: the draft size that calibration selects in this environment, by each reading."""
    made = Measurement.begin(options)
    calibration = practised(recipe, options, made)
    for name, words in FITS.items():
        made.add({"method": f"UNISPEC, {words}"}, "draft_size", float(calibration.fits[name].g))
    return made


def fitted(recipe: Recipe, options: RunOptions) -> Measurement:
    """UniSpec's Table 14 as curves: the measurement at each draft size, and each fit."""
    made = Measurement.begin(options)
    calibration = practised(recipe, options, made)
    sizes, tau, seconds, _, _ = calibration.measured()
    lines = {"measured": (sizes, tau, seconds)} | {
        words: (calibration.sizes, np.array(calibration.fits[name].tau), np.array(calibration.fits[name].s))
        for name, words in FITS.items()
    }
    for words, (every, taus, times) in lines.items():
        for g, accepted, time in zip(every.tolist(), taus.tolist(), times.tolist()):
            where = {"method": words, "draft size": g}
            made.add(where, "throughput", accepted / time if time > 0 else None)
            made.add(where, "forward_time", time)
            made.add(where, "tau", accepted)
    return made


def samples(recipe: Recipe, options: RunOptions) -> Measurement:
    """UniSpec's Figure 6: g*, τ and cycle time at g*, and calibration time, by number of prompts."""
    from specviz.measure import fits

    made = Measurement.begin(options)
    calibration = practised(recipe, options, made)
    for n in range(1, calibration.how["prompts"] + 1):
        points = [
            replace(p, tokens=p.tokens[:n], cycles=p.cycles[:n], seconds=[row[:n] for row in p.seconds])
            for p in calibration.points
        ]
        g, tau, seconds, _, _ = replace(calibration, points=points).measured()
        taken = float(np.sum([point.seconds for point in points]))
        for name, words in FITS.items():
            fit = fits.FITS[name](g, seconds, tau)
            where = {"method": words, "prompts": n}
            made.add(where, "draft_size", float(fit.g))
            made.add(where, "tau", fit.tau[fit.g - int(g[0])])
            made.add(where, "forward_time", fit.s[fit.g - int(g[0])])
            made.add(where, "calibration_time", taken)
    return made


def batched(recipe: Recipe, options: RunOptions) -> Measurement:
    """CM-ASD's latency against throughput, by batch size."""
    made = Measurement.begin(options)
    small = options.drafter("small")
    if small is None:
        raise ParameterError(no_drafter(options, "small"))
    entries = texts_of(recipe, options)
    sizes = filled(recipe.options["sizes"], len(entries), made, "batch size")
    report = batch_bench.bench(
        options.model, [small], entries, only=recipe.options["methods"], sizes=sizes,
        rounds=options.rounds, max_new_tokens=options.max_new_tokens, tick=options.tick,
    )  # fmt: skip
    made.on(suite=options.suite_of("", named_suite(recipe)), texts=len(entries))
    for row in report.rows:
        made.by(row["method"], {}, small if find(row["method"]).needs_draft else None)
        where = {"method": row["method"], "batch size": row["batch"]}
        add_of_all(made, where, "throughput", row["speed"])
        add_of_all(made, where, "latency", row["latency"])
    return made


def add_of_all(made: Measurement, where: Where, metric: str, value: Estimate) -> None:
    """Add a figure of all texts at once, whose interval is over rounds instead of texts."""
    made.add(where, metric, value.median, value.low, value.high)


def canvases(recipe: Recipe, options: RunOptions) -> Measurement:
    """SSD's Figure 1: throughput by batch size, with and without the cache."""
    refuse(options)
    entries = mixed(options)
    rows, notes = canvases_of.batches(
        options.model, entries, options.rounds, options.tick, options.max_new_tokens
    )
    made = Measurement.begin(options)
    made.notes += notes
    made.on(suite=options.suite_of("", PROMPTS), texts=len(entries))
    filled(canvases_of.SIZES, len(entries), made, "batch size")
    for row in rows:
        made.by(row["way"])
        add_of_all(made, {"method": row["way"], "batch size": row["batch"]}, "throughput", row["speed"])
    return made


def settings(recipe: Recipe, options: RunOptions) -> Measurement:
    """BiLD's trade-offs: quality against speed, setting by setting."""
    made = Measurement.begin(options)
    made.notes += [why for _, why in recipe.absent]
    prompts = options.prompts(recipe, made, bundled(recipe, options))
    for dataset, entries in scorable(prompts, made).items():
        with made.keeping({"dataset": dataset}):
            made.of_prompts(dataset, options.suite_of(dataset, named_suite(recipe)), entries)
            for name in recipe.options["curves"]:
                role = ROLES.get(name, "")
                if role in recipe.drafts and not options.drafts.get(role):
                    made.notes.append(f"{name}: {no_drafter(options, role)}")
                    continue
                every = measured(name, dataset, entries, options)
                control(made, dataset, every)
                for each in every.values():
                    if each.point.label == AGAIN:
                        continue
                    base = every[each.point.base]
                    curve = each.point.group or "greedy"
                    setting = each.point.label.removeprefix(curve).lstrip(":, ")
                    where = {"dataset": dataset, "curve": curve, "setting": setting}
                    of(made, each)
                    made.add(where, "bleu" if each.score.name == "BLEU" else "rouge_l", each.quality)
                    made.add(where, "speedup", exact() if each is base else each.over(base))
                    if each is not base:
                        spent(made, each, base)
    if not made.figures:
        raise ParameterError("; ".join([*made.notes, *(why for _, why in made.absent)]) or "nothing to draw")
    return made
