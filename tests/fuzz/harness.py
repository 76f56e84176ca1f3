"""Run damaged inputs of a format and count those that give neither a result nor a one-line error."""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from specviz.errors import SpecvizError
from specviz.escape import UNSEEN

from .formats import FORMATS

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # in memory, so that no disk is used
PATIENCE = 30  # seconds of processor time for one input


@dataclass
class Report:
    """Counts of results, refusals and crashes for the inputs of a format."""

    results: int = 0
    refused: int = 0
    crashes: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def __add__(self, more: Report) -> Report:
        return Report(
            self.results + more.results, self.refused + more.refused,
            self.crashes + more.crashes, more.examples | self.examples,
        )  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{self.results} results, {self.refused} refused in one line, {self.crashes.total()} tracebacks"
        ]
        lines += [f"  {n} x {what} (input {self.examples[what]})" for what, n in self.crashes.most_common()]
        return "\n".join(lines)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the libraries' logging."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def patience() -> Iterator[None]:
    """Limit one input to `PATIENCE` seconds of processor time."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {PATIENCE} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fuzz(name: str, inputs: int, seed: int = 0, first: int = 0) -> Report:
    """Try inputs `first` to `first + inputs` of a format; each depends only on its number and the seed."""
    report = Report()
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        form = FORMATS[name](Path(folder))
        for number in range(first, first + inputs):
            try:
                with (
                    contextlib.redirect_stdout(io.StringIO()),
                    contextlib.redirect_stderr(io.StringIO()),
                    patience(),
                ):
                    form.attempt(Random(f"{name}-{seed}-{number}"))
                report.results += 1
            except SpecvizError as error:
                line = str(error)
                if "\n" in line or not line or UNSEEN.search(line):
                    _count(report, f"no clean line: {line[:80]!r}", number)
                else:
                    report.refused += 1
            except Exception as error:
                frames = [f for f in traceback.extract_tb(error.__traceback__) if "specviz" in f.filename]
                own = [f for f in frames if "tests/fuzz" not in f.filename] or frames
                at = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "?"
                _count(report, f"{type(error).__name__} at {at}: {str(error)[:80]!r}", number)
    return report


def _count(report: Report, what: str, number: int) -> None:
    report.crashes[what] += 1
    report.examples.setdefault(what, str(number))
