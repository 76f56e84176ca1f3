"""Measure CM-ASD: Tables I to V of Sen et al., on the bundled encoder-decoders.

Quality is BLEU of translations and ROUGE-L of summaries; speed is the time of beam search (transformers,
five beams) over the time of the same texts here, as in the paper. Speed over our greedy loop is also given,
since beams make every other method look fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specviz import audit, metrics
from specviz.errors import ParameterError
from specviz.measure.benches import batches
from specviz.measure.pairs import suite
from specviz.measure.report import Bar, Estimate, Part, Report
from specviz.measure.sweep import BEAM, Measured, Point, sweep
from specviz.measure.timing import BASELINE, decoded, quiet_clock, setting
from specviz.methods import find
from specviz.metrics.tokens import ABSENT
from specviz.replays.contenders import BEAMS, FULL, ablation, drafting, lineup, with_draft

from . import printed

TARGET, DRAFTS = "town-t5", ("town-t5-small",)  # defaults
COMPANIONS = {"heads": "town-t5-heads", "slots": "town-t5-slots"}
TASKS = ("de-en", "en-de", "sum-en")
SEEDS = 3  # sets of texts, as the paper's three seeds: greedy decoding has no other randomness
EXACT = 6  # prompts of the exactness check, per text of a set
BATCHED, BATCHED_METHODS = 2, ("autoregressive", "speculative", "specdec", "cm_asd", "unispec")

# Readings of the paper that its tables do not have.
READINGS = {
    "variance only": {"w_entropy": 0.0, "w_margin": 0.0, "w_softmax": 0.0, "w_variance": 1.0},
    "early-stopping controller": {"controller": "early_stop"},
    "gap as described": {"gap": "as_described"},
    "entropy as written": {"entropy": "as_written"},
}
# Column of Table III: its metric.
PARTS = {"paper_tok": "accepted_tokens", "paper_td": "draft_latency", "paper": "speedup"}
COLUMNS = [
    ("label", "", ""),
    ("score", "score", ""),
    ("beam", "× beam 5 [95%]", ""),
    ("speed", "× greedy [95%]", ""),
    ("relative", "relative BLEU", "{:.1f}"),
    ("tok", "Tok", "{:.2f}"),
    ("drafting", "t_d ms", "{:.2f}"),
    ("sent", "sent", "{:.1f}"),
    ("drafted", "drafted", "{:.1f}"),
    ("taken", "rollbacks", "{:.1%}"),
    ("paper", "paper: ×", "{:.1f}"),
    ("paper_score", "score", "{:.2f}"),
]
DROP_ORDER = ("paper_score", "drafted", "sent", "taken", "drafting", "paper", "relative")
NOTES = [
    "score: BLEU (sacrebleu, 13a) or ROUGE-L (rouge-score) in percent against up to eight right answers to "
    "a text: mean and deviation over the sets of texts. relative BLEU: against our greedy texts (Table V). "
    "Tok: accepted draft tokens an iteration; t_d: time of drafting an iteration, of recorded runs; sent, "
    "drafted: tokens an iteration. rollbacks: iterations whose draft was cut, of all. Intervals: 95 % "
    "bootstrap over texts, both sides drawn together.",
    "paper: an A100, batches of 16, other models and texts: only directions compare. Its text says that "
    "CM-ASD matches SpecDec at larger k; its tables, printed here, say 4.7 against 5.1. α, γ, the weights, "
    "k_min, k_max and β have no published values: ours are defaults.",
]


def bench(
    target: Any,
    drafts: Sequence[Any],
    heads: Any = None,
    slots: Any = None,
    *,
    tasks: Sequence[str] = TASKS,
    number: int = 50,
    seeds: int = SEEDS,
    exact: int | None = None,
    max_new_tokens: int = 128,
    batch: Sequence[int] = (1, 2, 4, 8, 16),
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """Compare CM-ASD and related methods: speed, quality, ablations, predictive signals, batches.

    Parameters
    ----------
    target : Model
    drafts : sequence of one Model
    heads, slots : Model, optional
        Blockwise heads, and a masked-slot drafter, on the target.
    tasks : sequence of str
        Keys of `specviz.measure.pairs.TASKS`.
    number, seeds : int
        Texts per set, and sets per task.
    exact : int, optional
        Prompts of the check that the exact setting is lossless; 0 omits it. Default: `EXACT` per text of a
        set.
    batch : sequence of int
        Batch sizes of the last part; empty omits it.

    Raises
    ------
    ParameterError
        For an unknown task, fewer than one set, or another number of drafts.
    """
    if len(drafts) != 1:
        raise ParameterError(f"bench confidence takes one draft, got {len(drafts)}")
    draft = drafts[0]
    if seeds < 1:
        raise ParameterError(f"seeds must be at least 1, got {seeds}")
    entries = {task: [suite(task, number, i * number) for i in range(seeds)] for task in tasks}
    points = lineup(target, draft, heads)
    if any(point.method == BEAM for point in points):
        points.append(Point("greedy (transformers)", BEAM, {"beams": 1}, target))
    points.append(Point("speculative, k 4", "speculative", {}, target, draft))
    points += [] if slots is None else with_draft(target, slots, ", one pass")
    more = ablation(target, draft)
    more += [Point(name, "cm_asd", FULL | values, target, draft) for name, values in READINGS.items()]
    of, done = seeds * number * (len(tasks) * len(points) + len(more)), 0

    def advance(label: str) -> None:
        nonlocal done
        done += 1
        tick(done, of, label)

    head: list[dict[str, Any]] = []
    parts: list[Part] = []
    judged: list[Any] = []
    for task in tasks:
        plan = points + (more if task == tasks[0] else [])
        sets = [sweep(plan, each, max_new_tokens=max_new_tokens, tick=advance) for each in entries[task]]
        found = pooled(sets)
        times = drafting(plan, entries[task][0], max_new_tokens)
        rows = {label: row(task, label, sets, found, times) for label in found}
        head += [{"task": task} | rows[point.label] for point in points]
        if len(plan) > len(points):
            names = ["CM-ASD", *(point.label for point in plan[len(points) :])]
            chosen = [rows[name] | {column: printed.point("cm_asd/table3", metric, "en-de", name)
                                    for column, metric in PARTS.items()}
                      for name in names]  # fmt: skip
            columns = [*COLUMNS[:-2], ("paper_tok", "paper: Tok", "{:.2f}"), ("paper_td", "t_d", "{:.2f}"),
                       ("paper", "×", "{:.1f}")]  # fmt: skip
            parts.append(Part(f"Table III: {task}, either half alone, one signal alone, other readings",
                              columns, chosen, DROP_ORDER))  # fmt: skip
        fixed = {"draft": draft, "draft_length": 10, "max_new_tokens": max_new_tokens}
        judged.append((task, decoded(target, entries[task][0], "specdec", **fixed)))
    parts.append(telling(judged))
    bars: list[Bar] = []
    notes = list(NOTES)
    exact = EXACT * number if exact is None else exact
    if exact:
        kept, said = lossless(target, draft, exact, max_new_tokens)
        bars += kept
        notes += said
    if batch:
        entries_of_a_batch = suite(tasks[0], BATCHED * max(batch))
        report = batches.bench(target, [draft], entries_of_a_batch, only=BATCHED_METHODS, sizes=batch)
        parts.append(replace(report.table, title=f"Figure 2, {tasks[0]}: {report.title}"))
        bars += report.bars
        notes += report.notes
    about = setting(target, [draft], texts=number, sets=seeds, tasks=list(tasks))
    about["clock"] = quiet_clock(target.device)[1]
    title = f"Tables I, II, IV and V: {target.name} with {draft.name}, {seeds} sets of {number} texts a task"
    return Report("confidence", title, about, [("task", "", ""), *COLUMNS], head, bars,
                  [*notes, f"Time: {about['clock']}."], DROP_ORDER, parts)  # fmt: skip


def pooled(sets: Sequence[dict[str, Measured]]) -> dict[str, Measured]:
    """Combine measurements of the same settings on several sets of texts into one of all texts."""
    results = {}
    for label, first in sets[0].items():
        parts = [each[label] for each in sets]
        sums = {name: np.concatenate([part.sums[name] for part in parts]) for name in first.sums}
        texts = [text for part in parts for text in part.texts]
        phases = [each for part in parts for each in part.phases]
        results[label] = Measured(first.point, sums, texts, first.score, phases)
    return results


def row(
    task: str, label: str, sets: Sequence[dict[str, Measured]], found: dict[str, Measured],
    times: dict[str, float],
) -> dict[str, Any]:  # fmt: skip
    """A table row with a setting's figures over all sets."""
    measured, base = found[label], found[BASELINE]
    scores = [each[label].quality.median for each in sets]
    deviation = float(np.std(scores, ddof=1)) if len(scores) > 1 else float("nan")
    cycled = measured.point.method not in (BEAM, BASELINE)
    published = printed.speedup_and_score(task, label)
    return {
        "label": "greedy" if label == BASELINE else label,
        "score": f"{np.mean(scores):.1f} ± {deviation:.1f}",
        "scores": scores,
        "beam": measured.over(found[BEAMS]),
        "speed": None if measured is base else measured.over(base),
        "relative": None if measured is base else relative(measured, base),
        "tok": measured.share("accepted", "cycles").median if cycled else None,
        "drafting": times.get(label),
        "sent": measured.share("sent", "cycles").median if cycled else None,
        "drafted": measured.share("drafted", "cycles").median if cycled else None,
        "taken": measured.share("rollbacks", "cycles").median if cycled else None,
        "paper": published[0],
        "paper_score": published[1],
    }


def relative(measured: Measured, base: Measured) -> float:
    """BLEU of the texts against those of greedy decoding (Table V)."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError:
        raise ParameterError(ABSENT) from None
    return float(BLEU(tokenize="13a").corpus_score(measured.texts, [base.texts]).score)


def telling(judged: Sequence[tuple[str, Any]]) -> Part:
    """AUROC of each signal for acceptance, on drafts that no signal has cut."""
    rows = []
    for task, trace in judged:
        table = metrics.signals(trace)
        first = metrics.auroc(table, outcome="first").set_index("signal")["auroc"].to_dict()
        for name, found in metrics.auroc(table).set_index("signal").iterrows():
            area = Estimate(found["auroc"], found["low"], found["high"], int(found["prompts"]))
            gain = Estimate(found["gain"], found["gain_lo"], found["gain_hi"], int(found["prompts"]))
            rows.append({"task": task, "signal": name, "area": area, "gain": gain,
                         "first": first[name], "ece": found["ece"]})  # fmt: skip
    columns = [("task", "", ""), ("signal", "", ""), ("area", "AUROC [95%]", ""),
               ("gain", "over the ensemble [95%]", ""), ("first", "for the target's own", "{:.3f}"),
               ("ece", "off the diagonal", "{:.3f}")]  # fmt: skip
    title = "AUROC for acceptance, of every judged token of SpecDec, k 10; the ensemble has equal weights"
    return Part(title, columns, rows, ("ece", "first"))


def lossless(target: Any, draft: Any, prompts: int, max_new_tokens: int) -> tuple[list[Bar], list[str]]:
    """Audit the exact setting on many prompts, with fixed and with adaptive windows."""
    share = -(-prompts // len(TASKS))
    entries = [entry["prompt"] for task in TASKS for entry in suite(task, share, start=300)][:prompts]
    exact = find("cm_asd").exact
    bars, notes = [], []
    for adaptive in (False, True):

        def made(adaptive: bool = adaptive) -> Any:
            return find("cm_asd")(**exact, adaptive_drafting=adaptive)

        result = audit.run(target, draft, entries, [made], max_new_tokens, sampled=0, laws=False)
        found = result.rows[0]
        said = "adaptive" if adaptive else "fixed"
        bars.append(Bar(f"γ = 0, τ_base = 0, top-β = 1, {said} window is greedy on {prompts} prompts: bugs",
                        0.0 if found.holds else max(found.bug, 1), 0, "at most"))  # fmt: skip
        notes.append(f"Audit, {said} window: {result.summary}")
    return bars, notes
