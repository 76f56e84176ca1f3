"""Settings that the tables of BiLD and CM-ASD compare, as points of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from specviz.measure.report import Entry, Settings
from specviz.measure.sweep import BEAM, Measured, Point
from specviz.measure.timing import BASELINE, decoded
from specviz.methods import find
from specviz.metrics.costs import relative_costs
from specviz.models.protocols import Model

# ---------------------------------------------------------------- BiLD (Kim et al.)

NEVER = 1e6  # nats: no token is that unlikely
WINDOWS = range(3, 11)
EXIT_FALLBACKS, EXIT_ROLLBACKS = (0.2, 0.5, 0.8), (0.5, 1.0, 1.5)
CALM_THRESHOLDS, CALM_DECAYS = (0.7, 0.8, 0.9, 0.95, 0.98), (0, 1, 2, 4, 8)
ORACLE = (0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
NUCLEUS = {"temperature": 1.0, "top_p": 0.8}
NUCLEUS_GRID = ((0.7, 1.0), (0.7, 2.0), (0.5, 4.0))  # fallback and rollback
NO_ROLLBACK, NO_FALLBACK = "no rollback", "no fallback"


def bild(
    target: Model, draft: Model | None, fallback: float, rollback: float, group: str, label: str = ""
) -> Point:
    """BiLD at a pair of thresholds."""
    values = {"fallback": fallback, "rollback": rollback}
    label = label or f"{group}: fallback {fallback:g}, rollback {rollback:g}"
    return Point(label, "bild", values, target, draft, group=group)


def without(
    target: Model,
    draft: Model,
    fallbacks: Sequence[float],
    rollbacks: Sequence[float],
    windows: Sequence[int],
) -> list[Point]:
    """Figure 5: without rollback, and without fallback, so that the small model always fills its window."""
    points = [bild(target, draft, f, NEVER, NO_ROLLBACK, f"{NO_ROLLBACK}, fallback {f:g}") for f in fallbacks]
    for window, r in product(windows, rollbacks):
        label = f"{NO_FALLBACK}, window {window}, rollback {r:g}"
        point = bild(target, draft, 0.0, r, NO_FALLBACK, label)
        points.append(replace(point, values={**point.values, "cap": window}))
    return points


def rejection(target: Model, draft: Model) -> list[Point]:
    """Tables 3 and 4: rejection sampling at temperature 1 with fixed windows."""
    options, group = {"temperature": 1.0}, "speculative, sampling"
    points = [Point("sampling: autoregressive", BASELINE, model=target, options=options, group="sampling")]
    for w in WINDOWS:
        values = {"draft_length": w}
        points.append(
            Point(f"{group}: window {w}", "speculative", values, target, draft, options, group=group)
        )
    return points


def nucleus(target: Model, draft: Model) -> list[Point]:
    """Table 5: nucleus sampling, p = 0.8."""
    base = Point("nucleus: autoregressive", BASELINE, model=target, options=NUCLEUS, group="nucleus")
    points = [bild(target, draft, f, r, "nucleus") for f, r in NUCLEUS_GRID]
    return [base, *(replace(point, options=NUCLEUS, base=base.label) for point in points)]


def leaving(exits: Model | None, calm: Model | None) -> list[Point]:
    """Figures 6 and 7: drafting with the first layer, and CALM, each on the model tuned for it."""
    points: list[Point] = []
    if exits is not None:
        base = "early exit: greedy"
        points.append(Point(base, BASELINE, model=exits, base=base, group="early exit"))
        for r in EXIT_ROLLBACKS:
            drafted = [bild(exits, None, f, r, "early exit") for f in EXIT_FALLBACKS]
            points += [replace(point, method="early_exit", base=base) for point in drafted]
    if calm is not None:
        base = "CALM: greedy"
        points.append(Point(base, BASELINE, model=calm, base=base, group="CALM"))
        for measure in ("state", "softmax"):
            for t in CALM_THRESHOLDS:
                for d in CALM_DECAYS:
                    values = {"measure": measure, "threshold": t, "decay": d}
                    label, group = f"CALM: {measure}, λ {t:g}, t {d}", f"CALM, {measure}"
                    points.append(Point(label, "calm", values, calm, base=base, group=group))
    return points


def oracle(target: Model, draft: Model) -> list[Point]:
    """Figure 2: the large model steps in only if it finds the small model's token too unlikely."""
    return [
        Point(f"oracle: least p {p:g}", "oracle", {"least": p}, target, draft, group="oracle") for p in ORACLE
    ]


def fastest(those: Sequence[Measured], base: Measured, lost: float) -> Measured | None:
    """The fastest setting that loses at most `lost` in quality; None if there is none."""
    good = [each for each in those if each.lost(base).median <= lost]
    return max(good, key=lambda each: each.over(base).median, default=None)


# ---------------------------------------------------------------- CM-ASD (Sen et al.)

LONG = (10, 25)  # the paper's k
FULL = {"k_max": 10}
BEAMS = "beam 5 (transformers)"


def lineup(target: Model, draft: Model | None, heads: Model | None = None) -> list[Point]:
    """Tables I and II: greedy decoding, beams, blockwise, SpecDec and CM-ASD, as far as there are drafters.

    Beams are left out for a model that transformers cannot run.
    """
    points = [Point(BASELINE, BASELINE, model=target)]
    if hasattr(getattr(target, "net", None), "generate"):
        points.append(Point(BEAMS, BEAM, {"beams": 5}, target))
    if heads is not None:
        points += [Point(f"blockwise, k {k}", "blockwise", {"k": k}, target, heads) for k in LONG]
    return points if draft is None else points + with_draft(target, draft)


def with_draft(target: Model, draft: Model, suffix: str = "") -> list[Point]:
    """SpecDec with the paper's window lengths, and CM-ASD, whose window adapts."""
    points = [Point(f"SpecDec, k {k}{suffix}", "specdec", {"draft_length": k}, target, draft) for k in LONG]
    return [*points, Point(f"CM-ASD{suffix}", "cm_asd", FULL, target, draft)]


def mean_threshold(whole: Point, entries: list[Entry], max_new_tokens: int) -> float:
    """The mean of CM-ASD's own thresholds τ_t of the judged tokens, in nats; τ_base if there are none."""
    options = {"draft": whole.draft, "max_new_tokens": max_new_tokens, **whole.options, **whole.values}
    trace = decoded(whole.model, entries, whole.method, **options)
    judged = trace.nodes[trace.nodes["status"].isin(["accepted", "rejected"])]
    base = find(str(whole.method))(**whole.values).values["tau_base"]
    return float(judged["threshold"].mean() if len(judged) else base)


def ablation(target: Model, draft: Model, fixed: float | None = None) -> list[Point]:
    """Table III: either half switched off, or one signal alone.

    `fixed` is the threshold of the settings without adaptive verification; default: CM-ASD's τ_base.
    """
    base = {} if fixed is None else {"tau_base": fixed}

    def only(name: str) -> dict[str, float]:
        return {f"w_{each}": float(each == name) for each in ("entropy", "margin", "softmax", "variance")}

    settings: dict[str, Settings] = {
        "w/o adaptive drafting": {"adaptive_drafting": False},
        "w/o adaptive verification": {"adaptive_verification": False, **base},
        "w/o confidence": {"adaptive_drafting": False, "adaptive_verification": False, **base},
        "entropy only": only("entropy"),
        "margin only": only("margin"),
        "softmax only": only("softmax"),
    }
    return [Point(name, "cm_asd", FULL | values, target, draft) for name, values in settings.items()]


def drafting(points: Sequence[Point], entries: list[Entry], max_new_tokens: int) -> dict[str, float]:
    """Milliseconds of drafting per cycle."""
    times = {}
    for point in points:
        if point.method in (BEAM, BASELINE):
            continue
        options = {"draft": point.draft, "max_new_tokens": max_new_tokens, **point.options, **point.values}
        trace = decoded(point.model, entries, point.method, **options)
        cycles = trace.cycles[trace.cycles["cycle"] > 0]
        times[point.label] = 1e3 * float(cycles["draft_time"].mean())
    return times


def costs(mine: Point, base: Point, entries: list[Entry], max_new_tokens: int) -> Settings:
    """BiLD's Figure 8, counted from traces: FLOPs, bytes and intensity per token over the reference's."""
    traces = {}
    for name, point in (("mine", mine), ("base", base)):
        options = {"draft": point.draft, "max_new_tokens": max_new_tokens, **point.options, **point.values}
        traces[name] = decoded(point.model, entries, point.method, **options)
    (row,) = (each for each in relative_costs(traces, "base").to_dict("records") if each["name"] == "mine")
    return {name: float(row[f"relative_{name}"]) for name in ("flops", "bytes", "intensity")}
