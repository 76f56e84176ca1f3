"""Error of a projection: speedups in another format, layout and thread count, predicted and measured.

A replay's page combines the acceptance measured here with other costs of a pass. This bench also decodes at
the other costs: each contender decodes the same prompts both here and there, and the speedup there is
predicted from the cycles here and from timed passes there alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from specviz.errors import ParameterError, PromptError, plural
from specviz.measure.benches.passes import REFERENCE, measure_models, variants
from specviz.measure.prompts import first_turns
from specviz.measure.report import Bar, Entry, Report, Row, Tick
from specviz.measure.sweep import Measured, Point, sweep
from specviz.measure.timing import BASELINE, clock_of, counter, setting, threads
from specviz.measure.work import cores
from specviz.methods import find
from specviz.models.protocols import Model
from specviz.schema import PHASES

COLUMNS = [
    ("change", "from this to", ""), ("contender", "contender", ""), ("tau", "τ", "{:.2f}"),
    ("tau_there", "τ there", "{:.2f}"), ("here", "speedup", "{:.2f}"),
    ("predicted", "predicted there", "{:.2f}"), ("measured", "measured there", "{:.2f}"),
    ("error", "error", "{:+.1%}"),
]  # fmt: skip
NOTES = [
    "predicted: what was accepted here, with the times of passes there; the loop, and drafting without a "
    "model, keep their seconds. Speedups are over decoding without drafts, prefills left out.",
    "A page's presets have a roofline in place of timed passes: specviz bench roofline prints how far that "
    "is from the times of this machine.",
]
MOST = 0.1  # limit on the median error
Sums = dict[str, float]


def bench(
    model: Model,
    drafts: list[Model],
    entries: Sequence[Entry],
    *,
    number: int = 8,
    max_new_tokens: int = 64,
    rounds: int = 15,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Predict speedups in other formats, layouts and thread counts from those here, and measure them.

    `rounds` is the number of passes of each size. Bar: a median error of at most 10 %.
    """
    if torch.device(model.device).type != "cpu":
        raise ParameterError(
            f"{model.name} is on {model.device}: projections are checked on a CPU, load it there"
        )
    points = contenders(model, drafts)
    texts = [ids for ids in first_turns(model, entries) if model.left(len(ids)) >= max_new_tokens][:number]
    if not texts:
        raise PromptError(f"no prompt leaves room for {max_new_tokens} new tokens: lower --max-new-tokens")
    prompts: list[Entry] = [{"prompt": ids} for ids in texts]
    ways = changes(model)
    if not ways:
        raise ParameterError(
            f"{model.name} has one format, one layout and one thread here: there is nothing to project to"
        )
    step = counter(tick, len(prompts) * (1 + len(ways)) * len(points))

    def decoded(there: Model, count: int) -> dict[str, Measured]:
        with threads(count):
            those = [Point(p.label, p.method, p.values, there, p.draft) for p in points]
            return sweep(those, prompts, max_new_tokens=max_new_tokens, tick=step)

    here = decoded(model, 1)
    rows: list[Row] = []
    for change, there, count in ways:
        measured = decoded(there, count)
        for point in points[1:]:
            mine, plain = total(here[point.label]), total(here[BASELINE])
            after = [total(measured[label]) for label in (point.label, BASELINE)]
            with threads(count):
                guess = predicted(mine, plain, there, point.draft, rounds)
            true = rate(after[0]) / rate(after[1])
            rows.append({
                "change": change, "contender": point.label, "tau": mine["emitted"] / mine["cycles"],
                "tau_there": after[0]["emitted"] / after[0]["cycles"],
                "here": rate(mine) / rate(plain), "predicted": guess, "measured": true,
                "error": guess / true - 1,
            })  # fmt: skip
    error = float(np.median([abs(row["error"]) for row in rows]))
    with threads(1):  # as `here` was measured
        about = setting(model, drafts, prompts=len(prompts), max_new_tokens=max_new_tokens, rounds=rounds,
                        clock=clock_of(model)[1])  # fmt: skip
    title = f"Speedups of {model.name} elsewhere, {plural(len(prompts), 'prompt')}"
    bars = [Bar("median error of a projected speedup", error, MOST, "at most")]
    return Report("projection", title, about, COLUMNS, rows, bars, NOTES)


def contenders(model: Model, drafts: Sequence[Model]) -> list[Point]:
    """Decoding without drafts, two methods that need no drafter, and chains of each draft model."""
    points = [
        Point(BASELINE, BASELINE, model=model), Point("prompt_lookup", "prompt_lookup", model=model),
        Point("unispec 5", "unispec", {"draft_size": 5}, model),
    ]  # fmt: skip
    chains = [each for each in drafts if find("speculative").suited([each])]
    return points + [
        Point(f"speculative 2, {each.name}", "speculative", {"draft_length": 2}, model, each)
        for each in chains
    ]


def changes(model: Model) -> list[tuple[str, Model, int]]:
    """Other formats, layouts and thread counts, each as (description, model, number of threads)."""
    number = str(model.dtype).removeprefix("torch.")
    made = variants(model)
    other = {"float32": "bfloat16", "bfloat16": "float32"}.get(number)
    ways: list[tuple[str, Model, int]] = []
    fastest = [m for (layout, dtype), m in made.items() if dtype == other and "," not in layout]
    if fastest:
        from specviz.models.model import Model as Causal

        chosen = Causal(fastest[0].net, fastest[0].tokenizer, model.name)
        ways.append((f"{other}, {chosen.kernels} kernels", chosen, 1))
    plain = made.get((REFERENCE[0], number))
    if plain is not None and plain.kernels != getattr(model, "kernels", None):
        ways.append((f"{REFERENCE[0]} kernels", plain, 1))
    if cores() > 1:
        ways.append(("two threads", model, 2))
    return ways


def total(measured: Measured) -> Sums:
    """Sums of counts and phases over the texts."""
    return {name: sum(each[name] for each in measured.phases) for name in measured.phases[0]}


def rate(sums: Sums) -> float:
    """Tokens per second."""
    return sums["emitted"] / sum(sums[name] for name in (*PHASES, "between"))


def predicted(mine: Sums, plain: Sums, there: Model, draft: Model | None, rounds: int) -> float:
    """Predict the speedup there, from passes timed there at the mean context and the loop's seconds here."""
    per_pass = mine["fed"] / mine["passes"]
    low = int(per_pass)
    context = max(1, round(mine["context"] / mine["cycles"]))
    sizes = [1, low, low + 1]
    passes = timed(there, sizes, context, rounds)
    share = per_pass - low
    forward = mine["passes"] / mine["cycles"] * ((1 - share) * passes[low] + share * passes[low + 1])
    loop = [sum(sums[name] for name in ("verify", "commit", "between")) / sums["cycles"]
            for sums in (mine, plain)]  # fmt: skip
    drafting = mine["draft"] / mine["cycles"]
    if draft is not None and mine["draft_passes"]:
        fed = max(1, round(mine["draft_fed"] / mine["draft_passes"]))
        drafting = mine["draft_passes"] / mine["cycles"] * timed(draft, [1, fed], context, rounds)[fed]
    gain = mine["emitted"] / mine["cycles"] * plain["cycles"] / plain["emitted"]
    return gain * (passes[1] + loop[1]) / (forward + drafting + loop[0])


def timed(model: Model, sizes: Sequence[int], context: int, rounds: int) -> dict[int, float]:
    """Median seconds of a pass of each size."""
    spent = measure_models({"": model}, sizes, context, rounds)[""]
    return {g: float(np.median(ms)) / 1e3 for g, ms in spent.items()}
