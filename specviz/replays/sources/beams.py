"""CM-ASD: its tables compare with beam search, which is transformers' own here."""

from __future__ import annotations

from typing import Any

import numpy as np

from specviz.measure.claims import BootstrapEstimate, Quality, ratio, resampled
from specviz.measure.report import Entry
from specviz.measure.sweep import Measured, Point
from specviz.measure.timing import BASELINE
from specviz.metrics import Estimate
from specviz.metrics.rouge import Rouge
from specviz.replays import contenders
from specviz.replays.recipes import Recipe
from specviz.replays.sources.shared import Measurement, RunOptions, about, exact
from specviz.replays.sources.thresholds import drafter, entries, record_fastest, swept


def beams(recipe: Recipe, options: RunOptions) -> Measurement:
    """Each row's setting on each task's texts, against five beams and against greedy decoding."""
    made, timed = Measurement(environment=about(options.model)), list[tuple[str, Measured, Measured]]()
    for task, part in (recipe.parts.get("task") or {"": {"task": "en-de"}}).items():
        every, times, texts = measured(part["task"], recipe, options)
        base, greedy = every[contenders.BEAMS], every[BASELINE]
        for row in recipe.rows:
            mine = every[row.values["point"]]
            where = {**row.where, **({"task": task} if task else {})}
            if mine is not base and mine is not greedy:
                timed.append((part["task"], mine, base))
            made.add(where, "speedup", exact() if mine is base else mine.over(base))
            made.add(where, "relative_bleu", relative(mine, greedy))
            made.add(where, "accepted_tokens", taken(mine))
            made.add(where, "draft_latency", times.get(row.values["point"]))
            if mine.score.name == "BLEU":
                made.add(where, "bleu", mine.quality)
            else:
                for name, value in rouges(mine, texts).items():
                    made.add(where, name, value)
    record_fastest(made, options, timed)
    made.data = f"{options.number} generated texts a task (bundled), one at a time"
    return made


def taken(mine: Measured) -> Estimate:
    """Accepted draft tokens an iteration; without a draft it is one token of its own."""
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
    each = [rouge(entry["reference"], text) for entry, text in zip(texts, mine.texts)]
    out = {}
    for name in ("1", "2", "L"):
        values = np.array([scores[f"rouge{name}"] for scores in each])
        out[f"rouge_{name.lower()}"] = resampled(ratio, values, np.ones(len(values)))
    return out


def measured(
    task: str, recipe: Recipe, options: RunOptions
) -> tuple[dict[str, Measured], dict[str, float], list[Any]]:
    """The settings on a task's texts, milliseconds of drafting where asked for, and the texts' prompts."""
    which = recipe.options["points"]

    def make() -> tuple[dict[str, Measured], dict[str, float], list[Any]]:
        points, texts = POINTS[which](options), entries(options, task)
        results = swept(points, task, options)
        drafts = points if recipe.options.get("drafting") else []
        return results, contenders.drafting(drafts, texts, options.max_new_tokens)[0], texts

    return options.once(("beams", which, task), make)


def lineup(options: RunOptions) -> list[Point]:
    """Beams, greedy, blockwise, SpecDec and CM-ASD, in the paper's setting."""
    points = contenders.lineup(options.model, drafter(options, "small"), drafter(options, "heads"))
    return [p for p in points if not p.label.startswith(("speculative", "greedy (transformers)"))]


def ablation(options: RunOptions) -> list[Point]:
    """CM-ASD whole and in parts, and beams."""
    small = drafter(options, "small")
    points = contenders.lineup(options.model, small) + contenders.ablation(options.model, small)
    return [p for p in points if p.label in PARTS or p.label == BASELINE]


PARTS = (
    contenders.BEAMS, "w/o adaptive drafting", "w/o adaptive verification", "w/o confidence",
    "entropy only", "margin only", "softmax only", "CM-ASD",
)  # fmt: skip
POINTS = {"lineup": lineup, "ablation": ablation}
