"""Paired runs: every contender decodes the same text, one after another, in an order that rotates."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias, TypeVar

import torch

from specviz import calibration, methods
from specviz.arguments import check_threads
from specviz.errors import ParameterError, PromptError, SpecvizError
from specviz.loop import Run
from specviz.loop.checks import Prompts
from specviz.loop.clock import Clock, clock_for
from specviz.loop.cycle import Cycle
from specviz.loop.machine import calibration_setting as calibration_setting
from specviz.loop.machine import machine, versions
from specviz.loop.machine import thread_count as computing
from specviz.measure.report import Estimate, Settings, Tick
from specviz.methods import Method
from specviz.models.protocols import Model
from specviz.models.ranks import holding
from specviz.suites.frozen import frozen, take
from specviz.trace import Trace

BASELINE = "autoregressive"
K = TypeVar("K", bound=Hashable)  # a contender's name
Call: TypeAlias = Callable[[], object]  # a call to time


@dataclass(frozen=True)
class Entrant:
    """A method with its draft model, and its names in tables and files."""

    method: str
    draft: Model | None = None

    @property
    def label(self) -> str:
        return f"{self.method}, {self.draft.name}" if self.draft is not None else self.method

    @property
    def file(self) -> str:
        """Name of its trace file."""
        name = f"{self.method}-{self.draft.name}" if self.draft is not None else self.method
        return "".join(c if c.isalnum() or c in "-_." else "_" for c in name) + ".parquet"


def lineup(drafts: list[Model], names: list[str] | None = None) -> list[Entrant]:
    """Every installed method that decodes prompts: the baseline first, drafting ones once with each draft.

    Parameters
    ----------
    drafts : list of Model
        Without any, methods that need one are left out.
    names : list of str or class, optional
        Only these methods.

    Raises
    ------
    ParameterError
        If they all need a drafter, and none fits.
    """
    chosen = [methods.name_of(name) for name in names] if names else methods.names("prompt")
    order = sorted({*chosen}, key=lambda name: (name != BASELINE, name))
    entrants = []
    for name in order:
        entrants += [Entrant(name, draft) for draft in methods.find(name).suited(drafts)]
    if not entrants:
        why = "none of the drafters fits: name one that does" if drafts else "name a drafter"
        raise ParameterError(f"no method here can run: {why} with --draft")
    return entrants


def finish(run: Run) -> Trace:
    """Decode the rest of a run and return its whole trace.

    Raises
    ------
    KeyboardInterrupt
        If the run was interrupted: `Run.finish` itself returns the trace so far, as if nothing had happened.
    """
    trace = run.finish()
    if not trace.run["complete"]:
        raise KeyboardInterrupt
    return trace


def decoded(model: Model, prompts: Prompts, method: str | type[Method] | Method, **options: Any) -> Trace:
    """As `specviz.generate`, but Ctrl-C raises `KeyboardInterrupt`: see `finish`."""
    return finish(Run(model, prompts, method, **options))


class Texts:
    """A run that is advanced one text at a time, so that several runs can take turns."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, number: int = 0) -> list[int]:
        """Decode the next text and return its tokens.

        Raises
        ------
        KeyboardInterrupt
            If the run was interrupted; its trace so far is kept.
        PromptError
            If text `number` is a turn without room in its conversation: the run has gone on to another text.
        """
        tokens: list[int] = []
        for cycle in self.run:
            if cycle.prompt != number:
                break
            self.notice(cycle)
            del tokens[cycle.keep :]
            tokens += cycle.tokens
            if cycle.end is not None:
                return tokens
        if self.run.trace is not None and not self.run.trace.run["complete"]:
            raise KeyboardInterrupt
        raise PromptError(
            "runs that are compared need every turn of a conversation, and one has no room, as the line "
            "above says: shorten or remove that prompt, or lower --max-new-tokens"
        )

    def notice(self, cycle: Cycle) -> None:
        """Hook that is called with each finished cycle, including the prefill."""


class Phased(Texts):
    """A `Texts` that records the seconds of each text's prefill and the number of cycles after it."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(run)
        self.clock, self.wait = clock, synchroniser(run.model.device)
        self.prefills: list[float] = []
        self.cycles: list[int] = []

    def __call__(self, number: int = 0) -> list[int]:
        self.begin = self.clock()
        self.cycles.append(0)
        return super().__call__(number)

    def notice(self, cycle: Cycle) -> None:
        if cycle.number:
            self.cycles[-1] += 1
        else:
            self.wait()
            self.prefills.append(self.clock() - self.begin)


def counter(tick: Tick, of: int) -> Callable[[str], None]:
    """Return a function that reports one finished step, given its description."""
    done = itertools.count(1)
    return lambda what: tick(next(done), of, what)


@dataclass
class Timed:
    """Seconds and tokens of every text that a contender decoded."""

    seconds: list[float] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def speed(self) -> float:
        """Tokens per second over all texts, prefill included."""
        return self.tokens / sum(self.seconds) if self.seconds else float("nan")

    def speeds(self) -> list[float]:
        """Tokens per second of each text."""
        return [len(t) / s for t, s in zip(self.texts, self.seconds)]

    def over(self, other: Timed) -> Estimate:
        """How many times as fast as `other`: the median over texts of the ratio of tokens per second."""
        return Estimate.of([a / b for a, b in zip(self.speeds(), other.speeds()) if b])

    def same(self, other: Timed) -> int:
        """How many texts equal those of `other`, token for token."""
        return sum(a == b for a, b in zip(self.texts, other.texts))


def paired(
    contenders: Mapping[K, Callable[[int], list[int]]],
    texts: int,
    device: str | torch.device = "cpu",
    tick: Callable[[K], object] = lambda name: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[K, Timed]:
    """Let all contenders decode text 0, then text 1, and so on, in an order that rotates.

    Parameters
    ----------
    contenders : mapping of name to callable
        ``decode(i)`` returns the tokens of text `i`. They are called in order of `i`.
    texts : int
    device : str or torch.device
        Synchronised before the clock is read.
    tick : callable
        Called after each text with the contender that decoded it.
    clock : callable
        Seconds; see `quiet_clock`.
    """
    names = list(contenders)
    times = {name: Timed() for name in names}
    wait = synchroniser(device)
    with settled():
        for i in range(texts):
            first = i % len(names)
            for name in names[first:] + names[:first]:
                _forget_encodings(contenders[name])
                wait()
                begin = clock()
                tokens = contenders[name](i)
                wait()
                times[name].seconds.append(clock() - begin)
                times[name].texts.append(tokens)
                tick(name)
    return times


def _forget_encodings(contender: Callable[[int], list[int]]) -> None:
    """Let a run encode its own prompt: other runs' open contexts may hold the encoding of the same prompt."""
    run = getattr(contender, "run", None)
    for model in (getattr(run, "model", None), getattr(run, "drafter", None)):
        if (encodings := getattr(getattr(model, "encoder", None), "encodings", None)) is not None:
            encodings.clear()


def seconds_of(call: Call, wait: Callable[[], None], clock: Callable[[], float]) -> float:
    """Seconds of a call, until the device has finished it."""
    wait()
    begin = clock()
    call()
    wait()
    return clock() - begin


def synchroniser(device: str | torch.device) -> Callable[[], None]:
    """A function that waits until the device is idle."""
    kind = torch.device(device).type
    if kind == "cuda":
        return partial(torch.cuda.synchronize, torch.device(device))
    return torch.mps.synchronize if kind == "mps" else lambda: None


def quiet_clock(device: str | torch.device) -> tuple[Callable[[], float], str]:
    """A clock for differences of a few percent, and its name.

    One thread on a CPU is timed by the processor time of the process, which other work on the machine does
    not stretch and which equals wall time on a free core. Everything else is timed by the wall clock.
    """
    if torch.device(device).type == "cpu" and torch.get_num_threads() == 1:
        return time.process_time, "processor time"
    return time.perf_counter, "wall clock"


class QuietClock(Clock):
    """A clock for the phases of runs on the CPU, with the time source of `quiet_clock`."""

    def __init__(self) -> None:
        self.ticks = quiet_clock("cpu")[0]

    def mark(self) -> float:
        return self.ticks()


def phase_clock(device: str | torch.device) -> Clock:
    """The clock for a run's phases, with the same time source as for whole texts."""
    clock = clock_for(device)
    return QuietClock() if type(clock) is Clock else clock


def clock_of(model: Model) -> tuple[Callable[[], float], str]:
    """`quiet_clock` for a model.

    A model that is split over ranks, runs on several threads, or uses a GPU through llama.cpp is timed by the
    wall clock: waiting uses no processor time, and the processor time of several threads adds up.
    """
    if holding(model).size > 1 or computing(model) > 1 or getattr(model, "gpu_layers", None):
        return time.perf_counter, "wall clock"
    return quiet_clock(model.device)


_blocks: list[None] = []  # open blocks of `settled`; gc's own count walks over all frozen objects


@contextmanager
def settled() -> Iterator[None]:
    """Keep existing objects out of garbage collection while the clock runs.

    A nested block collects only objects that are new since the outer one, which takes no time.
    """
    gc.collect()
    if not _blocks:
        gc.freeze()
    _blocks.append(None)
    try:
        yield
    finally:
        _blocks.pop()
        if not _blocks:
            gc.unfreeze()


@contextmanager
def threads(n: int | None) -> Iterator[int]:
    """Run on `n` threads, and restore the previous number afterwards. Yields the number in use."""
    if n is not None:
        check_threads(n)
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield n or before
    finally:
        torch.set_num_threads(before)


def setting(model: Model, drafts: list[Model], **more: Any) -> Settings:
    """The circumstances that a reader needs to judge a measurement."""
    return {
        "model": {"name": model.name, "parameters": model.parameters},
        "drafts": [{"name": d.name, "parameters": d.parameters} for d in drafts],
        "dtype": str(model.dtype).removeprefix("torch."),
        "kernels": getattr(model, "kernels", None),
        "threads": computing(model),
        **({"gpu_layers": layers} if (layers := getattr(model, "gpu_layers", 0)) else {}),
        **machine(model.device),
        "versions": versions(),
        **more,
    }


def counts(given: Sequence[int | str], what: str) -> list[int]:
    """Parse whole numbers of at least 1, each once, from the command line (else `ParameterError`)."""
    if wrong := [each for each in given if not str(each).isdecimal() or int(each) < 1]:
        raise ParameterError(f"{what} must be whole numbers of at least 1, got {wrong[0]!r:.40}")
    return list(dict.fromkeys(map(int, given)))


def calibrated(model: Model, name: str) -> int | None:
    """A method's calibrated draft size for this model, device and number of threads; None without one."""
    try:
        return calibration.stored(calibration_setting(model, methods.find(name)())).g
    except SpecvizError:
        return None


def practice(model: Model, n: int) -> list[list[int]]:
    """Token ids of `n` prompts that a method may learn from before a suite.

    They share no clause with the bundled suites. Prompts that the model has no room for are left out.
    """
    chats: list[Any] = [entry["messages"] for entry in take(frozen("practice"), n, "warm-up prompts")]
    if not getattr(
        getattr(model, "tokenizer", None), "chat_template", None
    ):  # a base model continues the user's words
        chats = [chat[-1]["content"] for chat in chats]
    return [ids for ids in map(model.encode, chats) if model.left(len(ids)) > 0]


@contextmanager
def closing(runs: Mapping[K, Run]) -> Iterator[None]:
    """Close all open runs however the block ends; each keeps its trace so far, with the reason."""
    stopped = "closed by the caller"
    try:
        yield
    except KeyboardInterrupt:
        stopped = "interrupted"
        raise
    except Exception as error:
        stopped = f"{type(error).__name__}: {error}"[:500]
        raise
    finally:
        for run in runs.values():
            if run.trace is None:
                with suppress(Exception):  # must not hide the block's own error
                    run.close(stopped)


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder for one block. A Ctrl-C in it loses its message: nothing in the folder is kept."""
    with TemporaryDirectory(prefix="specviz-") as folder:
        try:
            yield folder
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None


def phase_seconds(trace: Trace) -> dict[str, float]:
    """Seconds of each phase between the first cycle's start and the last one's end.

    ``prefill`` is cycle 0; ``between`` is the time outside cycles: recording, and the loop's caller.
    """
    # Rows of a batch start at the same time, and the time that they share counts once.
    cycles = trace.cycles.drop_duplicates("start")
    steps = cycles[cycles["cycle"] > 0]
    texts = trace.cycles.assign(stop=trace.cycles["start"] + trace.cycles["duration"]).groupby("prompt")
    wall, reached = 0.0, float("-inf")
    for begin, stop in sorted(zip(texts["start"].min(), texts["stop"].max())):
        wall += max(0.0, stop - max(begin, reached))
        reached = max(reached, stop)
    spent = {"prefill": float(cycles.loc[cycles["cycle"] == 0, "duration"].sum())}
    spent |= {name: float(steps[f"{name}_time"].sum()) for name in ("draft", "forward", "verify", "commit")}
    return spent | {"between": wall - sum(spent.values())}


def phases(trace: Trace) -> dict[str, float]:
    """Share of each phase in the time of `phase_seconds`; empty without times."""
    spent = phase_seconds(trace)
    wall = sum(spent.values())
    return {name: seconds / wall for name, seconds in spent.items()} if wall else {}
