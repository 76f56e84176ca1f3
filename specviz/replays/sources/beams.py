"""CM-ASD's tables, which compare with beam search; here it is that of transformers."""

from __future__ import annotations

import numpy as np

from specviz.measure.claims import BootstrapEstimate, Quality, ratio, resampled
from specviz.measure.report import Entry
from specviz.measure.sweep import Measured, Point
from specviz.measure.timing import BASELINE
from specviz.metrics import Estimate
from specviz.metrics.rouge import Rouge
from specviz.replays import contenders
from specviz.replays.recipes import Recipe
from specviz.replays.sources.shared import Measurement, RunOptions, Where, exact, references_of
from specviz.replays.sources.thresholds import (
    NO_REFERENCES,
    Timed,
    able,
    bundled,
    control,
    finish,
    named_suite,
    no_drafter,
    of,
    spent,
    summary_level,
    swept,
    texts_of,
)


def beams(recipe: Recipe, options: RunOptions) -> Measurement:
    """Measure each row's setting on each task's texts, against five beams and greedy decoding."""
    made, timed = Measurement.begin(options), list[Timed]()
    if recipe.parts:
        texts = options.prompts(recipe, made, bundled(recipe, options))
    else:
        texts = {"": texts_of(recipe, options)}
    for task, entries in texts.items():
        where = {"task": task} if task else {}
        with made.keeping(where):
            one_task(recipe, options, made, task, entries, where, timed)
    finish(made, options, timed)
    return made


def one_task(
    recipe: Recipe, options: RunOptions, made: Measurement, task: str, texts: list[Entry],
    part: Where, timed: list[Timed],
) -> None:  # fmt: skip
    """Add the figures of a task."""
    made.of_prompts(task, options.suite_of(task, named_suite(recipe)), texts)
    every, times = measured(task, texts, recipe, options)
    base, greedy = every.get(contenders.BEAMS), every[BASELINE]
    able(made, task, greedy, texts)
    if base is None:
        made.absent.append(({**part, "metric": "speedup"}, lacking(contenders.BEAMS, options)))
    for row in recipe.rows:
        point, where = row.values["point"], {**row.where, **part}
        if point not in every:
            made.absent.append((where, lacking(point, options)))
            continue
        mine = every[point]
        of(made, mine)
        if mine is not base and mine is not greedy:
            timed.append((task, texts, mine, base or greedy))
            spent(made, mine, greedy)
        if base is not None:
            made.add(where, "speedup", exact() if mine is base else mine.over(base))
        made.add(where, "relative_bleu", relative(mine, greedy))
        made.add(where, "accepted_tokens", taken(mine))
        made.add(where, "draft_latency", times.get(point))
        if mine.point.method == "blockwise":
            made.same_texts(task, mine.tokens, greedy.tokens)
        if mine.score.name == "BLEU":
            made.add(where, "bleu", mine.quality)
        elif mine.score.name:
            for name, value in rouges(mine, texts).items():
                made.add(where, name, value)
            made.notes.append(f"{task}, {mine.point.label}: {summary_level(mine, texts)}")
    if not every[BASELINE].score.name:
        metrics = ["bleu", "rouge_1", "rouge_2", "rouge_l"]
        made.absent.append(({**part, "metric": metrics}, NO_REFERENCES))
    control(made, task, every)
    made.notes += [f"{task}: {note}" for note in equal_thresholds(every)]


def lacking(point: str, options: RunOptions) -> str:
    """Why a setting could not be measured."""
    if point == contenders.BEAMS:
        return f"transformers does not run {options.model.name}, and beams are its own"
    return no_drafter(options, "heads" if point.startswith("blockwise") else "small")


def equal_thresholds(every: dict[str, Measured]) -> list[str]:
    """A note on the threshold of the ablation's settings with a fixed one."""
    fixed = every.get("w/o adaptive verification")
    if fixed is None or "tau_base" not in fixed.point.values:
        return []
    return [
        f"the settings with a fixed threshold have τ_base = {fixed.point.values['tau_base']:.3f}, the mean "
        f"of CM-ASD's own: with its τ_base they could only accept less"
    ]


def taken(mine: Measured) -> Estimate:
    """Accepted draft tokens per cycle; 1 for a method without drafts."""
    if "accepted" not in mine.sums or mine.point.method == BASELINE:
        return exact()
    return mine.share("accepted", "cycles")


def relative(mine: Measured, greedy: Measured) -> Estimate:
    """BLEU of the texts against those of greedy decoding."""
    if mine is greedy:
        return exact(100.0)
    against = Quality("13a", [[text] for text in greedy.texts])
    return resampled(against.bleu, against.statistics(mine.texts))


def rouges(mine: Measured, texts: list[Entry]) -> dict[str, BootstrapEstimate]:
    """Mean ROUGE of the summaries."""
    rouge = Rouge()
    each = [rouge(references_of(entry["reference"]), text) for entry, text in zip(texts, mine.texts)]
    out = {}
    for name in ("1", "2", "L"):
        values = np.array([scores[f"rouge{name}"] for scores in each])
        out[f"rouge_{name.lower()}"] = resampled(ratio, values, np.ones(len(values)))
    return out


def measured(
    task: str, texts: list[Entry], recipe: Recipe, options: RunOptions
) -> tuple[dict[str, Measured], dict[str, float]]:
    """Measure the settings on a task's texts, and milliseconds of drafting if the recipe needs them."""
    which, left_out = recipe.options["points"], recipe.options.get("without", ())

    def make() -> tuple[dict[str, Measured], dict[str, float]]:
        points = [point for point in POINTS[which](options, texts) if point.label not in left_out]
        results = swept(points, task, texts, options)
        drafts = points if recipe.options.get("drafting") else []
        return results, contenders.drafting(drafts, texts, options.max_new_tokens)

    return options.once(("beams", which, *left_out), texts, make)


def lineup(options: RunOptions, texts: list[Entry]) -> list[Point]:
    """Greedy decoding, beams, blockwise, SpecDec and CM-ASD in the paper's setting, if they have drafters."""
    return contenders.lineup(options.model, options.drafter("small"), options.drafter("heads"))


def ablation(options: RunOptions, texts: list[Entry]) -> list[Point]:
    """CM-ASD, its ablations, and beams.

    CM-ASD's threshold is never below its τ_base, so a threshold fixed at τ_base could only accept less. The
    settings with a fixed threshold get the mean of CM-ASD's own on the same texts.
    """
    small = options.drafter("small")
    if small is None:
        return contenders.lineup(options.model, None)
    points = contenders.lineup(options.model, small)
    (whole,) = (p for p in points if p.label == "CM-ASD")
    base = contenders.mean_threshold(whole, texts, options.max_new_tokens)
    points += contenders.ablation(options.model, small, base)
    return [p for p in points if p.label in PARTS or p.label == BASELINE]


PARTS = (
    contenders.BEAMS, "w/o adaptive drafting", "w/o adaptive verification", "w/o confidence",
    "entropy only", "margin only", "softmax only", "CM-ASD",
)  # fmt: skip
POINTS = {"lineup": lineup, "ablation": ablation}
