"""Measure BiLD: the tables and figures of Kim et al., on the bundled encoder-decoders.

Quality is BLEU of translations and ROUGE-L of summaries; speed is the time of plain greedy decoding by the
large model over the time of the same texts here, encoder passes included (the paper's latency).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specviz import metrics
from specviz.errors import ParameterError
from specviz.measure.pairs import suite
from specviz.measure.report import Estimate, Part, Report
from specviz.measure.sweep import Measured, Point, sweep
from specviz.measure.timing import BASELINE, quiet_clock, setting
from specviz.replays.contenders import (  # fmt: skip
    NO_FALLBACK,
    NO_ROLLBACK,
    WINDOWS,
    bild,
    fastest,
    leaving,
    nucleus,
    oracle,
    rejection,
    without,
)
from specviz.replays.recipes import ALIGNED, UNALIGNED

from . import printed
from .claims import Claim, bars_of

TARGET, DRAFTS = "town-t5", ("town-t5-small", "town-t5-small-aligned")  # defaults
COMPANIONS = {"exits": "town-t5-exit", "calm": "town-t5-calm"}
TASKS = ("de-en", "en-de", "sum-en", "sum-de")
FALLBACKS = (0.3, 0.5, 0.7, 0.9)  # the paper: 0.5 to 0.9 for translation, 0.2 to 0.6 for summaries
ROLLBACKS = (1.0, 2.0, 4.0, 8.0)  # the paper: 1 to 10, and 2 to 6
GREEDY = "speculative, greedy"
NO_LOSS, ONE_POINT = 0.2, 1.0  # points: a minimal loss, and a loss of about one
GOALS = {NO_LOSS: 1.3, ONE_POINT: 1.5}  # required speedup by the points that may be lost
COLUMNS = [
    ("label", "", ""),
    ("score", "score [95%]", ""),
    ("lost", "lost [95%]", ""),
    ("speed", "speedup [95%]", ""),
    ("own", "large's tokens", "{:.1%}"),
    ("fallbacks", "fallbacks", "{:.1%}"),
    ("rollbacks", "rollbacks", "{:.1%}"),
    ("sent", "sent a cycle", "{:.1f}"),
]
DROP_ORDER = ("sent", "own", "rollbacks", "fallbacks")
NOTES = [
    "score: BLEU of translations (sacrebleu, 13a), ROUGE-L of summaries (rouge-score), in percent, against "
    "up to eight right answers a text. lost: what the large model's greedy texts have more. speedup: seconds "
    "of greedy decoding of the same texts by our own loop over seconds here, encoders inside. Fallbacks, "
    "rollbacks and the large model's own tokens: of the tokens written; the paper names no denominator. "
    "Intervals: 95 % bootstrap over texts, both sides drawn together."
]


def bench(
    target: Any,
    drafts: Sequence[Any],
    exits: Any = None,
    calm: Any = None,
    *,
    tasks: Sequence[str] = TASKS,
    number: int = 100,
    rounds: int = 1,
    max_new_tokens: int = 128,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """Compare BiLD with either small model, its ablations, rejection sampling, early exits, and the oracle.

    Parameters
    ----------
    target : Model
    drafts : sequence of two Model
        The small model, and the aligned one.
    exits, calm : Model, optional
        Tuned for an exit after the first layer, and after each layer; they decode only German to English.
    tasks : sequence of str
        Keys of `specviz.measure.pairs.TASKS`.
    number, rounds : int
        Texts per task, and timings of each.

    Raises
    ------
    ParameterError
        For an unknown task or another number of drafts.
    """
    if len(drafts) != 2:
        raise ParameterError(
            f"bench bild takes two drafts, the small model and the aligned one, got {len(drafts)}"
        )
    small, aligned = drafts
    entries = {task: suite(task, number) for task in tasks}
    plans: dict[str, list[Point]] = {}
    for task in tasks:
        points = [Point(BASELINE, BASELINE, model=target)]
        points += [Point(f"{each.name} alone", BASELINE, model=each, group="small alone") for each in drafts]
        for draft, group in ((small, UNALIGNED), (aligned, ALIGNED)):
            points += [bild(target, draft, f, r, group) for r in ROLLBACKS for f in FALLBACKS]
        points += without(target, aligned, FALLBACKS, ROLLBACKS, WINDOWS) + rejection(target, small)
        for w in WINDOWS:
            values = {"draft_length": w}
            points.append(Point(f"{GREEDY}: window {w}", "speculative", values, target, small, group=GREEDY))
        points += nucleus(target, aligned)
        points += oracle(target, small)
        plans[task] = points + (leaving(exits, calm) if task == "de-en" else [])
    of, done = rounds * number * sum(map(len, plans.values())), 0

    def advance(label: str) -> None:
        nonlocal done
        done += 1
        tick(done, of, label)

    parts: list[Part] = []
    claims: list[Claim] = []
    head: list[dict[str, Any]] = []
    for task, points in plans.items():
        found = sweep(points, entries[task], max_new_tokens=max_new_tokens, rounds=rounds, tick=advance)
        head += summary(task, found)
        parts += tables(task, found)
        claims += claims_of(task, found)
    about = setting(target, list(drafts), texts=number, rounds=rounds, tasks=list(tasks))
    about["clock"] = quiet_clock(target.device)[1]
    title = f"Table 1: {target.name} with {small.name} and {aligned.name}, {number} texts a task"
    columns = [("task", "", ""), *COLUMNS, ("paper", "paper: ×", "")]
    return Report("bild", title, about, columns, head, bars_of(claims), [*NOTES, f"Time: {about['clock']}."],
                  ("paper", *DROP_ORDER), parts)  # fmt: skip


def row(measured: Measured, found: dict[str, Measured], label: str | None = None) -> dict[str, Any]:
    """A table row with a setting's figures."""
    base = found[measured.point.base]
    itself = measured is base
    return {
        "label": label or measured.point.label,
        "score": measured.quality,
        "lost": None if itself else measured.lost(base),
        "speed": Estimate(1.0, float("nan"), float("nan"), 0) if itself else measured.over(base),
        "own": measured.share("own", "tokens").median,
        "fallbacks": measured.share("fallbacks", "tokens").median,
        "rollbacks": measured.share("rollbacks", "tokens").median,
        "sent": measured.share("sent", "cycles").median,
    }


def group(found: dict[str, Measured], *names: str) -> list[Measured]:
    """The settings that belong to the named curves."""
    return [each for each in found.values() if each.point.group in names]


def summary(task: str, found: dict[str, Measured]) -> list[dict[str, Any]]:
    """A task's rows of Table 1."""
    base = found[BASELINE]
    kind = "translation" if base.score.name == "BLEU" else "summarization"
    rows = [row(base, found, f"greedy ({base.score.name})") | {"task": task}]
    rows += [row(each, found) | {"task": task} for each in group(found, "small alone")]
    for curve in (UNALIGNED, ALIGNED):
        for lost in (NO_LOSS, ONE_POINT):
            best = fastest(group(found, curve), base, lost)
            if best is not None:
                label = f"{best.point.label} (≤ {lost:g} lost)"
                rows.append(row(best, found, label) | {"task": task, "paper": printed.speedups(kind, curve)})
    return rows


def tables(task: str, found: dict[str, Measured]) -> list[Part]:
    """A task's other tables and figures."""
    base = found[BASELINE]
    parts = []
    curves = group(found, UNALIGNED, ALIGNED)
    ahead = metrics.front([e.quality.median for e in curves], [e.over(base).median for e in curves])
    best = [each for each, kept in zip(curves, ahead) if kept]
    for title, those in (
        ("Figures 4 and 10: the settings that no other one beats in both", best),
        ("Figure 5: without rollback, and without fallback; aligned", group(found, NO_ROLLBACK, NO_FALLBACK)),
        ("Tables 3 and 4: fixed windows, unaligned", group(found, GREEDY)),
        ("Tables 3 and 4: rejection sampling at temperature 1, unaligned",
         group(found, "sampling", "speculative, sampling")),
        ("Table 5: nucleus sampling, p = 0.8, aligned", group(found, "nucleus")),
        ("Figure 2: the oracle (both models run at every token)", group(found, "oracle")),
        ("Figures 6 and 7: the first layer drafts", group(found, "early exit")),
        ("Figures 6 and 7: CALM", group(found, "CALM", "CALM, state", "CALM, softmax")),
    ):  # fmt: skip
        if those:
            parts.append(Part(f"{task}: {title}", COLUMNS, [row(each, found) for each in those], DROP_ORDER))
    return parts


def claims_of(task: str, found: dict[str, Measured]) -> list[Claim]:
    """The claims that must hold for a task."""
    base = found[BASELINE]
    nothing = Estimate(float("nan"), float("nan"), float("nan"), 0)
    aligned, unaligned = group(found, ALIGNED), group(found, UNALIGNED)
    claims = []
    for lost, goal in GOALS.items():
        best, other = fastest(aligned + unaligned, base, lost), fastest(unaligned, base, lost)
        mine = fastest(aligned, base, lost)
        speed = best.over(base) if best else nothing
        claims.append(
            Claim(f"BiLD over greedy, at most {lost:g} lost", task, speed.median, goal, "at least", speed)
        )
        # If every unaligned setting loses more, compare with greedy decoding instead.
        ahead = mine.over(other or base) if mine else nothing
        claims.append(Claim(f"aligned over unaligned, each at its fastest with at most {lost:g} lost",
                            task, ahead.median, 1.0, "more than", ahead))  # fmt: skip
    chosen = fastest(aligned, base, ONE_POINT)
    little = min(each.lost(base).median for each in group(found, "small alone"))
    if (
        chosen is not None and little > ONE_POINT
    ):  # else the small model alone is as good, and nothing can be shown
        values = chosen.point.values
        bare = found[f"no rollback, fallback {values['fallback']:g}"]
        worse = bare.lost(chosen)
        claims.append(Claim("without rollback the score falls by", task, worse.median, 0, "more than", worse))
        blind = found[f"no fallback, window {max(WINDOWS)}, rollback {values['rollback']:g}"]
        slower = chosen.over(blind)
        claims.append(Claim("with fallback over without it, same rollback",
                            task, slower.median, 1.0, "more than", slower))  # fmt: skip
    return claims


def points_of(found: dict[str, Measured]) -> list[dict[str, Any]]:
    """The sweep as rows for a scatter: quality, speed and parameters of each setting."""
    return [
        {"label": each.point.label, "group": each.point.group, "quality": each.quality.median,
         "speed": each.over(found[each.point.base]).median, **each.point.values}
        for each in found.values()
    ]  # fmt: skip
