"""Calibration: s(g) and τ(g) of a method on this device, and the draft size where τ/s is largest.

UniSpec (Do et al.), Algorithm 1, lines 3-11, and Appendix F. Real decoding runs give both: τ(g) is the number
of tokens per cycle, s(g) the time of a whole cycle, including drafting and committing. The paper counts the
forward pass as the whole cycle, which is wrong for a small model.

Two choices are ours. A method with a memory is measured warm, which the paper leaves open: other texts,
decoded once at the default size, fill the memory, and every text at every size starts with a copy of it. And
all sizes decode a text in direct succession, in a changing order, so that a machine's slow moments affect all
alike.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specviz import calibration, methods
from specviz.arguments import MOST, check_int
from specviz.calibration import Calibration, Point
from specviz.errors import ModelError, ParameterError, PromptError, TraceError
from specviz.loop import Run, decode
from specviz.loop.checks import check_alone, check_processors, check_served
from specviz.loop.checks import check_prompts as entries_of
from specviz.loop.drafters import choose_drafter, load_if_needed
from specviz.loop.machine import calibration_setting
from specviz.measure import fits
from specviz.measure.progress import bar
from specviz.measure.prompts import check_room, first_turns
from specviz.measure.report import Entry, Settings, Tick, Values
from specviz.measure.timing import clock_of, finish, settled, synchroniser
from specviz.methods import Method
from specviz.methods.kinds import CALIBRATED
from specviz.models.protocols import Model
from specviz.models.ranks import holding
from specviz.suites import spread
from specviz.suites import suite as load_suite
from specviz.trace import Trace

SUITE, PROMPTS, WARM_UP = "town", 5, 20
ROUNDS = 5
LOOKS = 2  # texts of the first look at each size
SIZES = (
    1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256,
)  # fmt: skip
LOST = 0.6  # larger sizes are left out when the throughput has fallen below this share of the best


def calibrate(
    model: Any,
    method: str | type[Method] | Method = "unispec",
    suite: Any = None,
    sizes: Sequence[int] | None = None,
    draft: Any = None,
    *,
    number: int | None = None,
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
    """Find the draft size that is fastest on this device, and save it.

    Afterwards ``specviz.generate(model, ..., method, draft_size="calibrated")`` uses it, if the model, draft
    model, method, other parameters, device, number format, threads and versions are the same.

    Parameters
    ----------
    model, draft : as in `specviz.generate`
    method : str, class or Method
        Any method with a draft size; of an instance only the parameters are used, not the memory.
    suite : str, Path or list of prompts
        What to decode, greedily: a suite or a file as for `specviz.suite`, or prompts; default ``town``. Only
        the first turn of a conversation is used.
    sizes : sequence of int, optional
        Draft sizes to measure, at least four. Default: from 1 in growing steps up to 256, to the method's
        largest, or until throughput falls below 60 % of the best.
    number : int, optional
        How many prompts; default: 5 for ``town``, one for each of five kinds of task; all for other suites.
    warm_up : int, or as `suite`
        Texts that fill the method's memory first; a number takes unmeasured ones from ``town``; 0: measure
        cold. Default: 20. With ``keep="prompt"`` every text starts cold in any case.
    max_new_tokens : int
    rounds : int
        How often each text is timed at each size.
    folder : path, optional
        Folder for calibrations; default ``SPECVIZ_CALIBRATIONS`` or the user's cache.
    force : bool
        Repeat earlier measurements.
    device, dtype : str, optional
        For models that are not loaded yet.
    tick : callable
        Called with (done, of, what); default: a progress bar with the time left; where none can be
        shown, a line a minute on standard error.
    **parameters
        The method's other parameters.

    Returns
    -------
    Calibration
        The existing one, if it was measured in exactly this way. Ctrl-C keeps the measurements; repeat the
        call to continue. If memory runs out at a size, the range ends below it, and ``ended`` says so.

    Raises
    ------
    ParameterError, ModelError, PromptError, SpecvizError
        Before any work, with one line that says what to do.
    """
    fits.needed()
    method, parameters = methods.settings_of(method, parameters)
    kind = _sized(method, parameters)
    built = kind(**parameters)
    draft_sizes = check_sizes(kind, sizes)
    rounds = check_int("rounds", rounds, 1)
    max_new_tokens = check_int("max_new_tokens", max_new_tokens, 2, MOST)
    model = load_if_needed(model, device, dtype)
    check_alone(model)
    check_served(model, built)
    drafter = choose_drafter(model, built, draft, device, dtype)
    check_processors(model)
    if drafter is not None:
        model.check_vocabulary(drafter)
    texts, warm = _texts(model, drafter, suite, number, warm_up)
    how = {
        "prompts": len(texts), "warm_up": len(warm),
        "texts": hashlib.sha256(json.dumps([texts, warm]).encode()).hexdigest()[:16],
        "sizes": draft_sizes, "open": sizes is None, "max_new_tokens": max_new_tokens, "rounds": rounds,
        "clock": clock_of(model)[1],
    }  # fmt: skip
    where = calibration_setting(model, built, drafter)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    empty = Calibration(where, kind.size, how, [], created=now)
    turns = Turns(model, kind, built.values, drafter, max_new_tokens)
    return _completed(empty, turns, texts, warm, calibration.file(where, folder), force, tick)


def size_traces(
    model: Model, result: Calibration, suite: Any = None, draft: Any = None, number: int | None = None,
    warm_up: Any = WARM_UP,
) -> dict[int, Trace]:  # fmt: skip
    """Decode the first text of a calibration once more at each of its sizes, with a record.

    Parameters
    ----------
    model : Model
    result : Calibration
        Calibration of an installed method.
    suite, draft, number, warm_up
        As passed to `calibrate`.

    Returns
    -------
    dict of int to Trace
        Traces that the points of `specviz.view.interactive.curve` open; memory is filled as in `calibrate`.
    """
    kind, values = methods.find(result.setting["method"]), result.setting["parameters"]
    drafter = choose_drafter(model, kind(**values), draft, device=None, dtype=None)
    texts, warm = _texts(model, drafter, suite, number, warm_up)
    turns = Turns(model, kind, values, drafter, result.how["max_new_tokens"])
    turns.fill(warm, lambda done: None)
    options = {"max_new_tokens": turns.max_new_tokens} | ({} if drafter is None else {"draft": drafter})
    sizes = [point.g for point in result.points]
    return {g: finish(Run(model, texts[0], turns.method(g), **options)) for g in sizes}


def _completed(
    empty: Calibration, turns: Turns, texts: list[list[int]], warm: list[list[int]], path: Path, force: bool,
    tick: Tick | None,
) -> Calibration:  # fmt: skip
    """The calibration that was made in exactly this way, or a new one, measured and saved."""
    # A forced calibration keeps its progress in a file of its own: repeat it with force to continue.
    partial = path.with_suffix(".forced.partial" if force else ".partial")
    ranks = holding(turns.model)  # if split over processes, only the first one's files and times count

    def look() -> Settings:
        for file in (partial,) if force else (path, partial):
            with suppress(TraceError):  # missing or damaged: measure again
                stored = Calibration.open(file)
                same = (stored.setting, stored.how) == (empty.setting, empty.how)
                if same and len(stored.points) >= fits.LEAST:  # an earlier version kept fewer, of no use
                    return asdict(stored)
        return asdict(empty)

    def try_writing() -> None:  # an unwritable folder is an error now, not after minutes of work
        if not partial.exists():
            result.save(partial)
            partial.unlink()

    def keep() -> None:
        result.save(path)
        partial.unlink(missing_ok=True)

    result = Calibration.of(ranks.from_leader(look))
    if result.complete:
        return result
    ranks.from_leader(try_writing)
    shown = bar() if tick is None else nullcontext(tick)
    with shown if ranks.leads else nullcontext(lambda *_: None) as progress:
        try:
            Measuring(result, turns, texts, warm, progress, partial if ranks.leads else None)()
        except KeyboardInterrupt:
            if any(point.tokens for point in result.points):  # a text was timed, and so saved
                kept = "measurements are kept: run the same command again to continue"
                raise KeyboardInterrupt(*[kept] * ranks.leads) from None
            raise
    g, tau, s, _, _ = result.measured()
    result.fits, result.chosen = fits.fit(g, s, tau), fits.CHOSEN
    ranks.from_leader(keep)
    return result


def _sized(method: str, parameters: Values) -> type[Method]:
    """The method's class, if it has a draft size that is still to be chosen."""
    kind = methods.find(method)
    if not kind.size:
        able = ", ".join(name for name in methods.names("prompt") if methods.find(name).size)
        raise ParameterError(f"{method} has no draft size to calibrate; {able} have one")
    if parameters.get(kind.size, CALIBRATED) != CALIBRATED:  # an instance may ask for the calibrated size
        raise ParameterError(f"calibration determines {kind.size}: drop it")
    return kind


def check_sizes(kind: type[Method], sizes: Sequence[int] | None) -> list[int]:
    """The draft sizes to measure, in order.

    Raises
    ------
    ParameterError
        If there are too few to fit curves, or the method does not take one.
    """
    parameter = next(p for p in kind.parameters if p.name == kind.size)
    if sizes is None:
        draft_sizes = [g for g in SIZES if (parameter.low or 1) <= g <= (parameter.high or SIZES[-1])]
    else:
        draft_sizes = sorted({parameter.check(g) for g in sizes})
    if len(draft_sizes) < fits.LEAST:
        raise ParameterError(f"at least {fits.LEAST} sizes are needed to fit curves, got {len(draft_sizes)}")
    return draft_sizes


def _texts(
    model: Model, drafter: Model | None, suite: Any, number: int | None, warm_up: Any
) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of the texts to measure, and of those that first fill the memory."""
    if _number(suite):
        raise ParameterError(f"suite must name a suite or hold prompts; for a count, use number = {suite}")
    bundled = suite is None or suite == SUITE
    count = PROMPTS if number is None else check_int("number", number, 1)
    before = check_int("warm_up", warm_up, 0) if _number(warm_up) else 0
    wanted = [count] * bundled + [before] * bool(before)
    town = spread(load_suite(SUITE), sum(wanted)) if wanted else []
    if len(town) < sum(wanted):
        raise PromptError(
            f"the bundled suite has {len(town)} prompts, and {' + '.join(map(str, wanted))} are needed "
            f"(those to measure and those that fill the memory first): lower --number or name a file"
        )
    if bundled:
        chosen, town = town[:count], town[count:]
    else:
        chosen = _prompts(suite)
        chosen = chosen if number is None else spread(chosen, count)
    given = town if _number(warm_up) else _prompts(warm_up)
    texts, warm = (first_turns(model, entries) for entries in (chosen, given))
    models = [each for each in (model, drafter) if each is not None]
    check_room(models, chosen, texts)
    if not _number(warm_up):
        check_room(models, given, warm)
    # Warm-up texts that are too long are dropped: the user chose none of the bundled ones.
    return texts, [ids for ids in warm if all(each.left(len(ids)) >= 2 for each in models)]


def _prompts(given: Any) -> list[Entry]:
    """The prompts of a suite or a file, or the given ones."""
    return list(load_suite(given)) if isinstance(given, str | Path) else entries_of(given)


def _number(value: Any) -> bool:
    return hasattr(value, "__index__")


# ---------------------------------------------------------------- measurement


@dataclass
class Turns:
    """One method at several draft sizes that take turns at texts; each text starts with the same memory."""

    model: Model
    kind: type[Method]
    values: Settings
    drafter: Model | None
    max_new_tokens: int
    memory: Method | None = None

    def method(self, g: int) -> Method:
        """The method at one size, with a copy of the filled memory."""
        method = self.kind(**(self.values | {self.kind.size: g}))
        if self.memory is not None:
            method.like(self.memory)
        return method

    def fill(self, warm: list[list[int]], tick: Callable[[int], None]) -> None:
        """Fill the memory by decoding texts at the method's default draft size."""
        method = self.kind(**self.values)
        for i, ids in enumerate(warm):
            tick(i)
            self.text(method, ids)
        self.memory = method if warm else None

    def text(self, method: Method, ids: list[int]) -> tuple[int, int, float]:
        """Decode a text; return its tokens, cycles and seconds, all without the prefill."""
        wait, (clock, _), ranks = (synchroniser(self.model.device), clock_of(self.model), holding(self.model))
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
            ranks.stop(error)
            raise
        wait()
        taken = clock() - begin
        return tokens, cycles, ranks.from_leader(lambda: taken)


@dataclass
class Measuring:
    """Measures what a calibration still lacks, and saves it to `partial` after each text."""

    result: Calibration
    turns: Turns
    texts: list[list[int]]
    warm: list[list[int]]
    tick: Tick
    partial: Path | None

    def __call__(self) -> None:
        """Fill the memory, look at each size, then time every text at every size."""
        self.begun = self.result.spent - time.perf_counter(), self.result.worked - time.process_time()
        resumed = bool(self.result.points)
        sizes = [point.g for point in self.result.points] if resumed else self.result.how["sizes"]
        self.first = len(self.warm) + len(sizes)
        total = self.first + len(sizes) * self.result.how["rounds"] * len(self.texts)
        self.turns.fill(self.warm, lambda done: self.tick(done, total, "filling the memory"))
        if not resumed:
            self.look(sizes, total)
        with settled():
            self.time_all()

    def look(self, sizes: Sequence[int], total: int) -> None:
        """Try each size briefly, to warm up and to find where memory ends or throughput drops."""
        best, result = 0.0, self.result
        for i, g in enumerate(sizes):
            self.tick(len(self.warm) + i, total, f"looking at g = {g}")
            counts = []
            for ids in self.texts[:LOOKS]:
                row = self.decode(g, ids)
                if row is None:
                    return
                counts.append(row)
            seconds: list[list[float | None]] = [
                [None] * len(self.texts) for _ in range(result.how["rounds"])
            ]
            result.points.append(Point(g, seconds=seconds))
            speed = sum(tokens for tokens, _, _ in counts) / sum(seconds for _, _, seconds in counts)
            best = max(best, speed)
            if result.how["open"] and i > 2 * fits.LEAST and speed < LOST * best:
                result.ended = f"in a first look g = {g} reached under {LOST:.0%} of the best size's tokens/s"
                return

    def time_all(self) -> None:
        """Time every text at every size in turns, round by round."""
        result, done, rounds = self.result, self.first, self.result.how["rounds"]
        for turn in range(rounds):
            for t, ids in enumerate(self.texts):
                points = list(result.points)
                if points and all(point.seconds[turn][t] is not None for point in points):
                    done += len(points)
                    continue
                rows: dict[int, tuple[int, int, float]] = {}
                for at in np.random.default_rng([turn, t]).permutation(len(points)):
                    g = points[at].g
                    if all(point.g != g for point in result.points):  # memory ran out at a smaller size
                        continue
                    of = self.first + len(result.points) * rounds * len(self.texts)
                    self.tick(min(done, of), of, f"round {turn + 1} of {rounds}, g = {g}")
                    done += 1
                    if (row := self.decode(g, ids)) is not None:
                        rows[g] = row
                for point in result.points:
                    if point.g in rows:
                        tokens, cycles, point.seconds[turn][t] = rows[point.g]
                        if len(point.tokens) == t:
                            point.tokens.append(tokens)
                            point.cycles.append(cycles)
                result.spent = self.begun[0] + time.perf_counter()
                result.worked = self.begun[1] + time.process_time()
                if self.partial is not None:
                    self.result.save(self.partial)

    def decode(self, g: int, ids: list[int]) -> tuple[int, int, float] | None:
        """Decode a text at one size; None if memory runs out, which drops that size and all larger ones.

        Raises
        ------
        ModelError
            If too few sizes are left to fit curves.
        """
        try:
            return self.turns.text(self.turns.method(g), ids)
        except Exception as error:
            if not out_of_memory(error):
                raise
        self.result.points = [point for point in self.result.points if point.g < g]
        self.result.ended = f"out of memory at g = {g}"
        gc.collect()
        if torch.device(self.turns.model.device).type == "cuda":
            torch.cuda.empty_cache()
        if len(self.result.points) < fits.LEAST:
            raise ModelError(
                f"{self.result.ended}, and curves need {fits.LEAST} sizes below it: free some memory, or "
                "name a smaller model or smaller sizes, and run the same command again"
            )
        return None


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the machine or the device ran out of memory."""
    words = ("out of memory", "allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError | ModelError) and any(word in str(error) for word in words)
    )
