"""Calibrated draft sizes against trying every size on texts that no calibration saw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specviz import methods
from specviz.calibration import Calibration
from specviz.errors import ParameterError, PromptError
from specviz.measure.calibrate import Tick, calibrate
from specviz.measure.report import Bar, Entry, Report, Settings
from specviz.measure.timing import setting as circumstances
from specviz.measure.timing import temporary_folder
from specviz.models.protocols import Model
from specviz.suites import spread

COLUMNS = [
    ("prompts", "prompts", ""), ("tokens", "tokens", "{:d}"), ("seconds", "s", "{:.0f}"),
    ("worked", "processor s", "{:.0f}"), ("paper", "paper's g*", "{:d}"),
    ("paper_share", "of the best", "{:.3f}"), ("grid", "grid's g*", "{:d}"),
    ("grid_share", "of the best", "{:.3f}"), ("monotone", "monotone g*", "{:d}"),
    ("monotone_share", "of the best", "{:.3f}"),
]  # fmt: skip
NUMBERS = (1, 2, 5, 10, 20)  # of prompts, Figure 6
EVERY = range(1, 65)
HELD_OUT = 20  # texts on which every size is tried
SHARE, TIME = 0.97, 90.0


def bench(
    model: Model,
    drafts: list[Model],
    entries: list[Entry],
    *,
    number: int = HELD_OUT,
    max_new_tokens: int = 128,
    rounds: int = 4,
    method: str = "unispec",
    tick: Tick = lambda done, of, what: None,
) -> Report:
    """Measure every draft size on texts that no calibration saw, and compare the calibrated sizes.

    `number` is how many of these texts there are, and `rounds` how often each is timed at each size.
    Calibrations of 1, 2, 5, 10 and 20 prompts use the first of `entries`, and two more of 5 use others.
    `method` is one with a draft size. Bars: the size calibrated on 5 prompts has at least 0.97 of the best
    throughput, also with the worst of the three sets of 5, and took at most 90 s.
    """
    if rounds < 2:
        raise ParameterError(
            f"rounds must be at least 2, because each half is compared with the other; got {rounds}"
        )
    need = max(NUMBERS) + number
    mixed = spread(entries, len(entries))
    warm, rest = mixed[need:], mixed[:need]
    if len(rest) < need or not warm:
        raise PromptError(f"this bench takes {need} prompts and some to warm up; there are {len(mixed)}")
    method = methods.name_of(method)
    drafter = next(iter(methods.find(method).suited(drafts)), None)
    sets = [(str(n), rest[:n]) for n in NUMBERS] + [("5 others", rest[n : n + 5]) for n in (5, 10)]
    common: Settings = {"warm_up": warm, "draft": drafter, "max_new_tokens": max_new_tokens}
    made = []
    with temporary_folder() as place:
        for name, some in sets:
            made.append((name, calibrate(model, method, some, folder=place, **common, tick=tick)))
        # The same measurement at every size, without a fit, is the ground truth.
        every_size = [g for g in EVERY if g <= max(c.points[-1].g for _, c in made)]
        every_size = sorted({*every_size, *(fit.g for _, c in made for fit in c.fits.values())})
        truth = calibrate(
            model, method, rest[max(NUMBERS) :], every_size, folder=place, rounds=rounds, **common, tick=tick
        )
    shares = shares_of_best(truth)
    rows = []
    for name, calibration in made:
        row = {
            "prompts": name,
            "seconds": calibration.spent,
            "worked": calibration.worked,
            "tokens": sum(calibration.points[0].tokens),
        }
        for label, fit in calibration.fits.items():
            row |= {label: fit.g, f"{label}_share": shares.get(fit.g)}
        rows.append(row)
    bars, notes = judged(made, truth, shares, number)
    used = [drafter] if drafter is not None else []
    about = circumstances(model, used, prompts=number, rounds=rounds, method=method)
    title = f"Calibrated draft size of {method} on {model.name} against trying every size"
    return Report("calibrate", title, about, COLUMNS, rows, bars, notes)


def judged(
    made: list[tuple[str, Calibration]], truth: Calibration, shares: dict[int, float], number: int
) -> tuple[list[Bar], list[str]]:
    """The bars, and notes on the throughput of the draft sizes on `number` texts."""
    g, tau, s, _, _ = truth.measured()
    speed = tau / s
    five = next(c for name, c in made if name == "5")
    fives = [shares.get(c.g, 0.0) for name, c in made if name.startswith("5")]
    bars = [
        Bar("throughput at g* of 5 prompts over the best of every g", shares.get(five.g, 0.0), SHARE),
        Bar("the same for the worst of three sets of 5", min(fives), SHARE),
        Bar("seconds of the calibration of 5 prompts", five.spent, TIME, "at most"),
    ]
    near = g[[shares[int(each)] >= SHARE for each in g]]
    fit = five.fits[five.chosen]
    expected = fit.tau[five.g - 1] / fit.s[five.g - 1]
    real = f"{speed[g == five.g][0]:,.0f}" if five.g in g else "unavailable (that size was not timed)"
    some = (f"{each}: {speed[g == each][0]:,.0f}" for each in (1, 2, 4, 8, 16, 32, 64) if each in g)
    return bars, [
        f"every g of 1 to {g[-1]} on {number} other texts: best g = {g[speed.argmax()]} "
        f"({speed.max():,.0f} tokens/s, without the prefill); within 3 % of it: {_ranges(near)}",
        f"tokens/s at {', '.join(some)}",
        f"at g* = {five.g} the calibration predicted {expected:,.0f} tokens/s; the measured value was {real}",
        "of the best: the best is chosen in one half of the rounds and compared in the other, both ways; "
        f"cycles are timed by {five.how['clock']}, calibrations by the wall clock",
    ]


def shares_of_best(truth: Calibration) -> dict[int, float]:
    """Throughput at each size relative to the best one.

    The maximum of many noisy numbers is biased. So the best size is chosen in one half of the rounds and the
    ratio is taken in the other half, both ways, and the two are averaged.
    """
    halves = []
    for half in (0, 1):
        points = [replace(p, seconds=p.seconds[half::2]) for p in truth.points]
        g, tau, s, _, _ = replace(truth, points=points).measured()
        halves.append(tau / s)
    ratios = [ours / ours[other.argmax()] for ours, other in (halves, halves[::-1])]
    return dict(zip(g.tolist(), np.mean(ratios, 0).tolist()))


def _ranges(numbers: np.ndarray) -> str:
    """Format ascending numbers as ranges, such as ``1-4, 7``."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts if len(p)) or "none"
