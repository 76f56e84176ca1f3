"""Calibration: s(g) and τ(g) of a method on this device, and the draft size where τ/s is largest.

UniSpec (Do et al.), Algorithm 1, lines 3-11, and Appendix F. Real decoding runs give both: τ(g) is the tokens
a cycle, s(g) the time of a whole cycle, drafting and committing included. The paper takes the forward pass
for the whole cycle, which on a small model it is not.

Two things are ours. A method that remembers is measured warm, for the paper does not say: its memory is
first filled by other texts, decoded once at its default size, and at every size every text begins with a copy
of that. And all sizes decode a text one right after the other, in an order that changes, so that a machine's
slow moments are shared by all.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specviz import calibration, methods
from specviz.calibration import Calibration, Point
from specviz.errors import ModelError, ParameterError, PromptError, TraceError
from specviz.loop import decode
from specviz.loop.run import partner, ready, refuse_processors, setting, whole
from specviz.loop.run import prompts as entries_of
from specviz.measure import fits
from specviz.measure.report import Bar, Report
from specviz.measure.timing import clock_of, settled, synchroniser
from specviz.measure.timing import setting as circumstances
from specviz.methods import Method
from specviz.models.ranks import holding
from specviz.suites import spread, suite

PROMPTS, WARM_UP = 5, 20
ROUNDS = 5
LOOKS = 2  # texts of the first look at each size
SIZES = (
    1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256,
)  # fmt: skip
LOST = 0.6  # larger sizes are left out when the throughput has fallen below this share of the best
Tick = Callable[[int, int, str], None]


def calibrate(
    model: Any,
    method: str | type[Method] = "unispec",
    prompts: Any = None,
    sizes: Sequence[int] | None = None,
    draft: Any = None,
    *,
    warm_up: Any = WARM_UP,
    max_new_tokens: int = 128,
    rounds: int = ROUNDS,
    folder: str | Path | None = None,
    force: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    tick: Tick | None = None,
    **parameters: Any,
) -> Calibration:
    """Find the draft size that is fastest on this device, and keep it.

    Afterwards ``specviz.generate(model, ..., method, draft_size="calibrated")`` takes it, where model, draft
    model, method, its other parameters, device, number format, threads and versions are the same.

    Parameters
    ----------
    model, draft : as in `specviz.generate`
    method : str or class
        Any method with a draft size.
    prompts : int, or as in `specviz.generate`
        What is decoded, or how many of the bundled suite; default 5, one for each of five kinds of work. Of a
        conversation the first turn. Greedy.
    sizes : sequence of int, optional
        Draft sizes to measure, at least four. Default: from 1 in growing steps up to 256, the method's
        largest, or where throughput has fallen below 60 % of the best.
    warm_up : int, or as `prompts`
        Texts that fill the method's memory before; 0: it is measured cold. Default: the suite's next 20.
        With ``keep="prompt"`` every text begins cold, whatever this says.
    max_new_tokens : int
    rounds : int
        How often each text is timed at each size.
    folder : path, optional
        Where calibrations are kept; default what ``SPECVIZ_CALIBRATIONS`` names, or the user's cache.
    force : bool
        Measure anew what was measured before.
    device, dtype : str, optional
        For models that are still to be loaded.
    tick : callable
        Told (done, of, what) as it goes on; default: a progress bar with the time left, where it is seen.
    **parameters
        The method's other ones.

    Returns
    -------
    Calibration
        The one that is there, if it was measured in just this way. Ctrl-C keeps what was measured, and the
        same call goes on from there. If memory runs out at a size, the range ends below it, which ``ended``
        says.

    Raises
    ------
    ParameterError, ModelError, PromptError, SpecvizError
        Before any work, with one line that says what to do.
    """
    fits.needed()
    method = methods.name_of(method)
    kind = methods.find(method)
    if not kind.size:
        able = ", ".join(name for name in methods.names() if methods.find(name).size)
        raise ParameterError(f"{method} has no draft size that could be calibrated; {able} have one")
    if kind.size in parameters:
        raise ParameterError(f"{kind.size} is what calibration finds: leave it out")
    built = kind(**parameters)
    asked = _sizes(kind, sizes)
    whole("rounds", rounds, 1)
    whole("max_new_tokens", max_new_tokens, 2)
    given = {"device": device, "dtype": dtype}
    model = ready(model, **given)
    drafter = partner(model, built, draft, **given)
    refuse_processors(model)
    if drafter is not None:
        model.check_vocabulary(drafter)
    texts, warm = _texts(model, drafter, prompts, warm_up)
    how = {
        "prompts": len(texts),
        "warm_up": len(warm),
        "texts": hashlib.sha256(json.dumps([texts, warm]).encode()).hexdigest()[:16],
        "sizes": asked,
        "open": sizes is None,
        "max_new_tokens": max_new_tokens,
        "rounds": rounds,
        "clock": clock_of(model)[1],
    }
    where = setting(model, built, drafter)
    path = calibration.file(where, folder)
    partial = path.with_suffix(".partial")
    together = holding(model)  # where it is split over processes, the first one's files and times count

    def look() -> dict[str, Any]:
        for there in () if force else (path, partial):
            with suppress(TraceError):  # missing, or damaged: it is measured anew
                found = Calibration.open(there)
                if (found.setting, found.how) == (where, how):
                    return asdict(found)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return asdict(Calibration(where, kind.size, how, [], created=now))

    def keep() -> None:
        found.save(path)
        partial.unlink(missing_ok=True)

    found = Calibration.of(together.told(look))
    if found.complete:
        return found
    turns = Turns(model, kind, built.values, drafter, max_new_tokens)
    shown = bar() if tick is None else nullcontext(tick)
    with shown if together.leads else nullcontext(lambda *_: None) as told:
        _measure(found, turns, texts, warm, told, lambda: found.save(partial) if together.leads else None)
    if len(found.points) < fits.LEAST:
        raise ModelError(f"only {len(found.points)} sizes could be measured ({found.ended}): nothing to fit")
    g, tau, s, _, _ = found.measured()
    found.fits, found.chosen = fits.fit(g, s, tau), fits.CHOSEN
    together.told(keep)
    return found


@contextmanager
def bar() -> Iterator[Tick]:
    """A progress bar in a notebook or a terminal; nothing where output goes to a file."""
    from tqdm.auto import tqdm
    from tqdm.notebook import tqdm as page

    seen = issubclass(tqdm, page) or sys.stderr.isatty()
    with tqdm(total=1, leave=False, disable=not seen, mininterval=0.5) as bar:

        def tell(done: int, of: int, what: str) -> None:
            if of != bar.total:
                bar.reset(of)
                bar.n = bar.initial = bar.last_print_n = done  # what was there before took no time
            bar.set_description(what, refresh=False)
            bar.update(done - bar.n)

        yield tell
        # Fewer steps than foreseen are no failure, which a notebook's bar would show in red.
        bar.total = bar.n


def _sizes(kind: type[Method], sizes: Sequence[int] | None) -> list[int]:
    parameter = next(p for p in kind.parameters if p.name == kind.size)
    if sizes is None:
        return [g for g in SIZES if (parameter.low or 1) <= g <= (parameter.high or SIZES[-1])]
    found = sorted({parameter.check(g) for g in sizes})
    if len(found) < fits.LEAST:
        raise ParameterError(f"at least {fits.LEAST} sizes are needed to fit curves, got {len(found)}")
    return found


def _texts(model: Any, drafter: Any, prompts: Any, warm_up: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of the texts to measure and of those before; numbers are taken from the bundled suite."""
    first = PROMPTS if prompts is None else prompts
    counts = [
        whole(n, v, low) for n, v, low in (("prompts", first, 1), ("warm_up", warm_up, 0)) if _number(v)
    ]
    bundled = spread(suite("town"), sum(counts)) if counts else []
    if len(bundled) < sum(counts):
        raise PromptError(
            f"the bundled suite has {len(bundled)} prompts, and {' + '.join(map(str, counts))} are wanted "
            "(those to measure, and those before that fill the memory): lower --prompts, or name a file"
        )
    both = []
    for value in (first, warm_up):
        taken, bundled = (
            (bundled[:value], bundled[value:]) if _number(value) else (entries_of(value), bundled)
        )
        both.append([model.encode(e["turns"][0] if "turns" in e else e["prompt"]) for e in taken])
    for ids in both[0] + both[1]:
        for each in filter(None, (model, drafter)):
            if each.left(len(ids)) < 2:
                raise PromptError(
                    f"a prompt has {len(ids)} tokens and leaves no room in {each.name}'s context of "
                    f"{each.max_length}: shorten it"
                )
    return both[0], both[1]


def _number(value: Any) -> bool:
    return hasattr(value, "__index__")


# ---------------------------------------------------------------- measuring


@dataclass
class Turns:
    """One method at several draft sizes that take turns at texts; each text begins with the same memory."""

    model: Any
    kind: type[Method]
    values: dict[str, Any]
    drafter: Any
    max_new_tokens: int
    memory: Method | None = None

    def method(self, g: int) -> Method:
        """The method at one size, with a copy of what was learnt before."""
        method = self.kind(**(self.values | {self.kind.size: g}))
        if self.memory is not None:
            method.like(self.memory)
        return method

    def fill(self, warm: list[list[int]], tick: Callable[[int], None]) -> None:
        """Learn from texts, at the method's default draft size."""
        method = self.kind(**self.values)
        for i, ids in enumerate(warm):
            tick(i)
            self.text(method, ids)
        self.memory = method if warm else None

    def text(self, method: Method, ids: list[int]) -> tuple[int, int, float]:
        """Decode a text: tokens, cycles, and seconds of all cycles; the prefill is left out of all three."""
        wait, (clock, _), together = (
            synchroniser(self.model.device),
            clock_of(self.model),
            holding(self.model),
        )
        tokens = cycles = 0
        begin = clock()
        try:
            for cycle in decode(
                self.model, ids, method, drafter=self.drafter, max_new_tokens=self.max_new_tokens
            ):
                if cycle.number:
                    tokens, cycles = tokens + len(cycle.tokens), cycles + 1
                else:
                    wait()
                    begin = clock()
        except Exception as error:
            together.stop(error)
            raise
        wait()
        taken = clock() - begin
        return tokens, cycles, together.told(lambda: taken)


def _measure(
    found: Calibration,
    turns: Turns,
    texts: list[list[int]],
    warm: list[list[int]],
    tick: Tick,
    keep: Callable,
) -> None:
    """Measure what `found` still lacks; `keep` writes it down after each text."""
    rounds = found.how["rounds"]
    before, begin = found.spent, time.perf_counter()
    worked, start = found.worked, time.process_time()

    def full(g: int) -> None:
        """Memory ran out at a size: it and the larger ones are left out."""
        found.points = [point for point in found.points if point.g < g]
        found.ended = f"out of memory at g = {g}"
        gc.collect()
        if torch.device(turns.model.device).type == "cuda":
            torch.cuda.empty_cache()

    resumed = bool(found.points)
    sizes = [point.g for point in found.points] if resumed else found.how["sizes"]
    first = len(warm) + len(sizes)
    total = first + len(sizes) * rounds * len(texts)
    turns.fill(warm, lambda done: tick(done, total, "filling the memory"))
    # One quick look at each size finds where memory or throughput ends, and warms up what is slow at first.
    best = 0.0
    for i, g in enumerate([] if resumed else sizes):
        tick(len(warm) + i, total, f"looking at g = {g}")
        try:
            seen = [turns.text(turns.method(g), ids) for ids in texts[:LOOKS]]
        except Exception as error:
            if not out_of_memory(error):
                raise
            full(g)
            break
        found.points.append(Point(g, seconds=[[None] * len(texts) for _ in range(rounds)]))
        speed = sum(tokens for tokens, _, _ in seen) / sum(seconds for _, _, seconds in seen)
        best = max(best, speed)
        if found.how["open"] and i > 2 * fits.LEAST and speed < LOST * best:
            found.ended = f"at g = {g} throughput had fallen below {LOST:.0%} of the best"
            break
    done = first
    with settled():
        for turn in range(rounds):
            for t, ids in enumerate(texts):
                points = list(found.points)
                if points and all(point.seconds[turn][t] is not None for point in points):
                    done += len(points)
                    continue
                rows: dict[int, tuple[int, int, float]] = {}
                for at in np.random.default_rng([turn, t]).permutation(len(points)):
                    g = points[at].g
                    if all(point.g != g for point in found.points):  # memory ran out at a smaller size
                        continue
                    of = first + len(found.points) * rounds * len(texts)
                    tick(min(done, of), of, f"round {turn + 1} of {rounds}, g = {g}")
                    done += 1
                    try:
                        rows[g] = turns.text(turns.method(g), ids)
                    except Exception as error:
                        if not out_of_memory(error):
                            raise
                        full(g)
                for point in found.points:
                    if point.g not in rows:
                        continue
                    tokens, cycles, seconds = rows[point.g]
                    if len(point.tokens) == t:
                        point.tokens.append(tokens)
                        point.cycles.append(cycles)
                    point.seconds[turn][t] = seconds
                found.spent = before + time.perf_counter() - begin
                found.worked = worked + time.process_time() - start
                keep()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, the machine's or the device's."""
    words = ("out of memory", "allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ModelError) and any(word in str(error) for word in words)
    )


# ---------------------------------------------------------------- is it right?

COLUMNS = [
    ("prompts", "prompts", ""),
    ("tokens", "tokens", "{:d}"),
    ("seconds", "s", "{:.0f}"),
    ("worked", "processor s", "{:.0f}"),
    ("paper", "paper's g*", "{:d}"),
    ("paper_share", "of the best", "{:.3f}"),
    ("grid", "grid's g*", "{:d}"),
    ("grid_share", "of the best", "{:.3f}"),
    ("monotone", "monotone g*", "{:d}"),
    ("monotone_share", "of the best", "{:.3f}"),
]
NUMBERS = (1, 2, 5, 10, 20)  # of prompts, Figure 6
EVERY = range(1, 65)
HELD_OUT = 20  # texts on which every size is tried
SHARE, TIME = 0.97, 90.0


def bench(
    model: Any,
    drafts: list[Any],
    entries: list[dict[str, Any]],
    *,
    prompts: int = HELD_OUT,
    max_new_tokens: int = 128,
    rounds: int = 4,
    method: str | type[Method] = "unispec",
    tick: Tick = lambda done, of, what: None,
) -> Report:
    """What every draft size really brings on texts that no calibration saw, and what calibrations chose.

    `prompts` is the number of those texts and `rounds` how often each is timed at each size; of `entries`
    calibrations of 1, 2, 5, 10 and 20 prompts take the first ones, and two more of 5 take others.
    """
    if rounds < 2:
        raise ParameterError(f"rounds must be at least 2, each half is judged by the other; got {rounds}")
    need = max(NUMBERS) + prompts
    mixed = spread(entries, len(entries))
    warm, rest = mixed[need:], mixed[:need]
    if len(rest) < need or not warm:
        raise PromptError(f"this bench takes {need} prompts and some to warm up; there are {len(mixed)}")
    method = methods.name_of(method)
    drafter = drafts[0] if drafts and methods.find(method).needs_draft else None
    sets = [(str(n), rest[:n]) for n in NUMBERS] + [("5 others", rest[n : n + 5]) for n in (5, 10)]
    common: dict[str, Any] = {"warm_up": warm, "draft": drafter, "max_new_tokens": max_new_tokens}
    made = []
    with tempfile.TemporaryDirectory() as place:
        for name, some in sets:
            made.append((name, calibrate(model, method, some, folder=place, **common, tick=tick)))
        # The same measuring, of every size and without any fit, is the truth that they are held against.
        whole_range = [g for g in EVERY if g <= max(c.points[-1].g for _, c in made)]
        truth = calibrate(
            model, method, rest[max(NUMBERS) :], whole_range, folder=place, rounds=rounds, **common, tick=tick
        )
    shares = shares_of_best(truth)
    rows = []
    for name, found in made:
        row = {
            "prompts": name,
            "seconds": found.spent,
            "worked": found.worked,
            "tokens": sum(found.points[0].tokens),
        }
        for label, fit in found.fits.items():
            row |= {label: fit.g, f"{label}_share": shares.get(fit.g)}
        rows.append(row)
    g, tau, s, _, _ = truth.measured()
    speed = tau / s
    five = next(c for name, c in made if name == "5")
    fives = [shares.get(c.g, 0.0) for name, c in made if name.startswith("5")]
    bars = [
        Bar("throughput at g* of 5 prompts over the best of every g", shares.get(five.g, 0.0), SHARE),
        Bar("the same, the worst of three sets of 5", min(fives), SHARE),
        Bar("seconds of the calibration of 5 prompts", five.spent, TIME, "at most"),
    ]
    near = g[[shares[int(each)] >= SHARE for each in g]]
    fit = five.fits[five.chosen]
    expected = fit.tau[five.g - 1] / fit.s[five.g - 1]
    notes = [
        f"every g of 1 to {g[-1]} on {prompts} other texts: best g = {g[speed.argmax()]} "
        f"({speed.max():,.0f} tokens/s, prefill left out); within 3 % of it: {_ranges(near)}",
        "tokens/s at "
        + ", ".join(f"{each}: {speed[g == each][0]:,.0f}" for each in (1, 2, 4, 8, 16, 32, 64) if each in g),
        f"at g* = {five.g} the calibration expected {expected:,.0f} tokens/s, there it was "
        f"{speed[g == five.g][0]:,.0f}",
        "of the best: the best is looked for in one half of the rounds and compared in the other, both ways; "
        f"times of cycles are {five.how['clock']}, those of calibrations the wall clock",
    ]
    about = circumstances(model, drafts[:1] if drafter else [], prompts=prompts, rounds=rounds, method=method)
    title = f"Calibrated draft size of {method} on {model.name} against trying every size"
    return Report("calibrate", title, about, COLUMNS, rows, bars, notes)


def shares_of_best(truth: Calibration) -> dict[int, float]:
    """Throughput at each size over the best one's.

    The best of many noisy numbers is too good. So it is looked for in one half of the rounds, and the ratio
    is taken in the other half; the mean of both ways.
    """
    halves = []
    for half in (0, 1):
        points = [replace(p, seconds=p.seconds[half::2]) for p in truth.points]
        g, tau, s, _, _ = replace(truth, points=points).measured()
        halves.append(tau / s)
    ratios = [ours / ours[other.argmax()] for ours, other in (halves, halves[::-1])]
    return dict(zip(g.tolist(), np.mean(ratios, 0).tolist()))


def _ranges(numbers: np.ndarray) -> str:
    """1-4, 7"""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts if len(p)) or "none"
