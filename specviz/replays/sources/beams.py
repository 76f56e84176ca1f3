"""CM-ASD: its tables compare with beam search, which is transformers' own here."""

from __future__ import annotations

from typing import Any

import numpy as np

from specviz.measure.claims import Drawn, Quality, ratio, resampled
from specviz.measure.sweep import Measured, Point, sweep
from specviz.measure.timing import BASELINE
from specviz.metrics import Estimate
from specviz.metrics.rouge import Rouge
from specviz.replays import contenders
from specviz.replays.recipes import Recipe
from specviz.replays.sources.shared import Found, How, about, known
from specviz.replays.sources.thresholds import drafter, entries, recorded


def beams(recipe: Recipe, how: How) -> Found:
    """Each row's setting on each task's texts, against five beams and against greedy decoding."""
    found, made = Found(environment=about(how.model)), list[tuple[str, Measured, Measured]]()
    for task, part in (recipe.parts.get("task") or {"": {"task": "en-de"}}).items():
        every, times, texts = measured(part["task"], recipe, how)
        base, greedy = every[contenders.BEAMS], every[BASELINE]
        for row in recipe.rows:
            mine = every[row.values["point"]]
            where = {**row.where, **({"task": task} if task else {})}
            if mine is not base and mine is not greedy:
                made.append((part["task"], mine, base))
            found.add(where, "speedup", known() if mine is base else mine.over(base))
            found.add(where, "relative_bleu", relative(mine, greedy))
            found.add(where, "accepted_tokens", taken(mine))
            found.add(where, "draft_latency", times.get(row.values["point"]))
            if mine.score.name == "BLEU":
                found.add(where, "bleu", mine.quality)
            else:
                for name, value in rouges(mine, texts).items():
                    found.add(where, name, value)
    recorded(found, how, made)
    found.data = f"{how.prompts} generated texts a task (bundled), one at a time"
    return found


def taken(mine: Measured) -> Estimate:
    """Accepted draft tokens an iteration; without a draft it is one token of its own."""
    if "accepted" not in mine.sums or mine.point.method == BASELINE:
        return known()
    return mine.share("accepted", "cycles")


def relative(mine: Measured, greedy: Measured) -> Estimate:
    """BLEU of the texts against those of greedy decoding."""
    if mine is greedy:
        return known(100.0)
    against = Quality("13a", [[text] for text in greedy.texts])
    return resampled(against.bleu, against.statistics(mine.texts))


def rouges(mine: Measured, texts: list[dict[str, Any]]) -> dict[str, Drawn]:
    """Mean ROUGE of the summaries."""
    rouge = Rouge()
    each = [rouge(entry["reference"], text) for entry, text in zip(texts, mine.texts)]
    found = {}
    for name in ("1", "2", "L"):
        values = np.array([scores[f"rouge{name}"] for scores in each])
        found[f"rouge_{name.lower()}"] = resampled(ratio, values, np.ones(len(values)))
    return found


def measured(task: str, recipe: Recipe, how: How) -> tuple[dict[str, Measured], dict[str, float], list[Any]]:
    """The settings on a task's texts, milliseconds of drafting where asked for, and the texts' prompts.

    One process measures them once for all tables.
    """
    which = recipe.options["points"]
    key = ("beams", how.model.name, tuple(how.drafts.items()), which, task, how.prompts, how.max_new_tokens)
    if key not in how.memory:
        points = POINTS[which](how)
        texts = entries(how, task)
        of, done = len(points) * len(texts), 0

        def told(label: str) -> None:
            nonlocal done
            done += 1
            how.tick(done, of, f"{task}: {label}")

        found = sweep(points, texts, max_new_tokens=how.max_new_tokens, tick=told)
        times: dict[str, float] = {}
        if recipe.options.get("drafting"):
            times, _ = contenders.drafting(points, texts, how.max_new_tokens)
        how.memory[key] = found, times, texts
    return how.memory[key]  # type: ignore[no-any-return]


def lineup(how: How) -> list[Point]:
    """Beams, greedy, blockwise, SpecDec and CM-ASD, in the paper's setting."""
    points = contenders.lineup(how.model, drafter(how, "small"), drafter(how, "heads"))
    return [p for p in points if not p.label.startswith(("speculative", "greedy (transformers)"))]


def ablation(how: How) -> list[Point]:
    """CM-ASD whole and in parts, and beams."""
    small = drafter(how, "small")
    named = {row["point"] for row in PARTS}
    points = contenders.lineup(how.model, small) + contenders.ablation(how.model, small)
    return [p for p in points if p.label in named or p.label == BASELINE]


PARTS = tuple(
    {"point": name}
    for name in (
        contenders.BEAMS, "w/o adaptive drafting", "w/o adaptive verification", "w/o confidence",
        "entropy only", "margin only", "softmax only", "CM-ASD",
    )
)  # fmt: skip
POINTS = {"lineup": lineup, "ablation": ablation}
