"""Judge mutants in a process that has imported everything: in the root of a repository,
``python -m tests.mutants.warm``.

pytest collects the test files once. A fork of this process runs each of them without a mutant, and records
how long every test takes and which mutants it reaches: a probe is inserted before each statement that is to
be changed. Then a fork for each mutant puts the changed code into the loaded functions and runs the tests
that reach it, short ones first, up to the first failure. Code that runs only while a module is imported, or
in another process, is not changed here: survivors are judged again in a copy of the repository.

Standard input holds the arguments of `Judge` and the test files, as JSON. Standard output gets one line of
JSON for each test file that has run and for each outcome.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutants.planting import Mutant

Answer = dict[str, Any]
MEMORY = 6 * 2**30  # bytes of data that a fork may allocate


def probed(source: bytes, mutants: dict[int, Mutant]) -> ast.Module:
    """Parse a file and insert ``__reached__(number)`` before each statement that a mutant changes."""
    tree = ast.parse(source)
    blocks = [
        block
        for node in ast.walk(tree)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list)
    ]
    for number, mutant in mutants.items():
        at = mutant.line, mutant.start - source.rfind(b"\n", 0, mutant.start) - 1
        around = [
            (each, block)
            for block in blocks
            for each in block
            if (each.lineno, each.col_offset) <= at < (each.end_lineno, each.end_col_offset)
        ]
        statement, block = max(around, key=lambda pair: (pair[0].lineno, pair[0].col_offset))
        call = ast.parse(f"__reached__({number})").body[0]
        for node in ast.walk(call):
            ast.copy_location(node, statement)
        block.insert(block.index(statement), call)
    return tree


def place(code: CodeType) -> tuple[object, ...]:
    """Key that identifies a function within its file."""
    return code.co_qualname, tuple(code.co_positions())


def pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield each code object of a compiled file with its counterpart in the changed file."""
    yield before, after
    inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (before, after)]
    for pair in zip(*inner, strict=True):
        yield from pairs(*pair)


class Judge:
    """pytest plugin that replaces the loop over the tests.

    Parameters
    ----------
    mutants : list of dict
    jobs : int
        Forks that run at once.
    limit : float
        Seconds that a test may take beyond ten times its time without a mutant.
    budget : float
        Seconds for all tests of a file, and for all tests of a mutant; the remaining tests are skipped.
    end : float
        Time of day, in seconds, after which no mutant is started.
    tell : callable
        Called with each outcome.
    """

    def __init__(
        self,
        mutants: list[Answer],
        jobs: int,
        limit: float,
        budget: float,
        end: float,
        tell: Callable[[Answer], None],
    ) -> None:
        self.mutants = dict(enumerate(Mutant(**each) for each in mutants))
        self.jobs, self.limit, self.budget, self.end, self.tell = jobs, limit, budget, end, tell
        self.items: list[pytest.Item] = []
        self.functions: dict[FunctionType, tuple[object, ...]] = {}
        self.reached: set[int] = set()
        self.of_fixture: defaultdict[object, set[int]] = defaultdict(set)
        self.seconds: dict[int, float] = {}
        self.failures: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = session.items
        if session.testsfailed or not self.items:
            raise session.Interrupted("the tests cannot be collected")
        files = {mutant.file for mutant in self.mutants.values()}
        for file in files:
            importlib.import_module(file.removesuffix(".py").replace("/", "."))
        paths = {str(Path(file).resolve()) for file in files}
        self.functions = {
            each: place(each.__code__)
            for each in gc.get_objects()
            if type(each) is FunctionType and each.__code__.co_filename in paths
        }
        for file in files:
            here = {number: each for number, each in self.mutants.items() if each.file == file}
            self.change(file, probed(Path(file).read_bytes(), here))
        gc.freeze()  # keeps a collection in a fork from copying shared pages
        tests = self.surveyed()
        for number, answer in self.forked(list(self.mutants), lambda n: self.judged(n, tests[n]), self.end):
            self.tell({"number": number} | answer)
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: object) -> Iterator[None]:
        """Record what a fixture reaches, so that it counts for every test that shares the fixture."""
        before, self.reached = self.reached, set()
        try:
            return (yield)
        finally:
            self.of_fixture[fixturedef] |= self.reached
            self.reached |= before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failures.append(report.nodeid)

    def surveyed(self) -> dict[int, list[int]]:
        """List, for each mutant, the numbers of the tests that reach it."""
        files: defaultdict[Path, list[int]] = defaultdict(list)
        for number, item in enumerate(self.items):
            files[item.path].append(number)
        tests: dict[int, list[int]] = {number: [] for number in self.mutants}
        for path, answer in self.forked(list(files), lambda path: self.survey(files[path])):
            if answer.get("outcome") == "killed" or answer.get("failures"):
                self.tell({"failures": answer.get("failures") or [f"{path}: {answer['by']}"]})
                os._exit(1)
            self.tell({"file": str(path), "seconds": answer["seconds"]})
            for item, seconds, reached in answer.get("tests", ()):  # a file that ran out of time has no entry
                self.seconds[item] = seconds
                for number in reached:
                    tests[number].append(item)
        return tests

    def survey(self, numbers: list[int]) -> Answer:
        """Measure the time of some tests, and the mutants that each reaches."""
        tests = []
        for number, seconds in self.run(numbers):
            shared = self.items[number]._fixtureinfo.name2fixturedefs.values()
            reached = self.reached.union(*(self.of_fixture[each] for found in shared for each in found))
            tests.append((number, seconds, sorted(reached)))
            self.reached = set()
            if sum(each[1] for each in tests) > self.budget:
                break
        return {"tests": tests, "failures": self.failures}

    def judged(self, number: int, tests: list[int]) -> Answer:
        """Judge one mutant; return the outcome and the test that kills it."""
        mutant = self.mutants[number]
        self.change(mutant.file, mutant.applied(Path(mutant.file).read_bytes()))
        tests = sorted(tests, key=lambda test: (round(math.log(self.seconds[test], 4)), test))
        left = self.budget
        for test, _ in self.run(tests):
            if self.failures:
                return {"outcome": "killed", "by": self.failures[0]}
            left -= self.seconds[test]
            if left < 0:
                break
        return {"outcome": "survived"}

    def change(self, file: str, changed: ast.Module | bytes) -> None:
        """Replace the code of a file's loaded functions."""
        path = Path(file).resolve()
        codes = (
            compile(source, str(path), "exec", dont_inherit=True) for source in (path.read_bytes(), changed)
        )
        new = {place(old): code for old, code in pairs(*codes)}
        for function, where in self.functions.items():
            if where in new and function.__code__.co_filename == str(path):
                function.__code__ = new[where]
                function.__globals__["__reached__"] = lambda number: self.reached.add(number)

    def run(self, numbers: list[int]) -> Iterator[tuple[int, float]]:
        """Run tests in sequence; an alarm ends a fork that takes too long."""
        items = [self.items[number] for number in numbers]
        for number, item, following in zip(numbers, items, [*items[1:], None]):
            signal.alarm(math.ceil(self.limit + 10 * self.seconds.get(number, self.budget / 10)))
            begin = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield number, time.monotonic() - begin

    def forked(
        self, tasks: list[Any], work: Callable[[Any], Answer], end: float = math.inf
    ) -> Iterator[tuple[Any, Answer]]:
        """Do each task in a fork; yield tasks and answers in the order of completion."""
        waiting, running = tasks[::-1], {}
        while running or (waiting and time.time() < end):
            if waiting and len(running) < self.jobs and time.time() < end:
                folder, begin = Path(tempfile.mkdtemp(prefix="mutant-")), time.monotonic()
                pid = os.fork()
                if not pid:
                    _answer(folder, work, waiting[-1])
                running[pid] = waiting.pop(), folder, begin
                continue
            pid, status = os.wait()
            task, folder, begin = running.pop(pid)
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # kill processes that a test left running
            path, late = folder / "answer.json", os.waitstatus_to_exitcode(status) == -signal.SIGALRM
            ended = {"outcome": "out of time" if late else "killed", "by": f"the process ends with {status}"}
            answer = json.loads(path.read_text()) if path.exists() else ended
            shutil.rmtree(folder, ignore_errors=True)
            yield task, answer | {"seconds": round(time.monotonic() - begin, 1)}


def _answer(folder: Path, work: Callable[[Any], Answer], task: object) -> None:
    """Run one task in a fork and exit: without output, in its own process group and temporary folder."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    tempfile.tempdir = os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder)
    try:
        content = json.dumps(work(task))
        (folder / "answer.part").write_text(content)
        (folder / "answer.part").rename(folder / "answer.json")
    finally:
        os._exit(0)


if __name__ == "__main__":
    given, told = json.load(sys.stdin), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # pytest's output goes to standard error
    files = given.pop("files")
    judge = Judge(**given, tell=lambda entry: print(json.dumps(entry), file=told, flush=True))
    sys.exit(pytest.main(["-s", "-p", "no:cacheprovider", "-p", "no:faulthandler", *files], plugins=[judge]))
