"""Exercises: cases, the right answer and known mistakes, and how a student's function is judged."""

from __future__ import annotations

import copy
import inspect
import linecache
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from itertools import takewhile
from types import FrameType, TracebackType
from typing import Any, TypeAlias

import numpy as np

from .result import RIGHT, SIGNS, TODO, WRONG, Result, words

MOST_STEPS = 200_000  # interpreter steps per case; the right functions take a few hundred


Given: TypeAlias = dict[str, Any]  # a case's arguments by name
Returned: TypeAlias = Any  # what a student's function returned: anything at all
Answer: TypeAlias = tuple[Any, ...]  # an entry for each part of the right form
Student: TypeAlias = Callable[..., Returned]
TraceFunction: TypeAlias = "Callable[[FrameType, str, object], TraceFunction | None]"


class Misfit(Exception):
    """An answer that does not have the requested form; the message describes the form."""


class Endless(BaseException):
    """A function that ran for too long; a student's ``except Exception`` does not catch it."""


@dataclass(frozen=True)
class Case:
    """Arguments by name, in order; the stage; the values that a table shows (default: the arguments)."""

    given: Given
    stage: int = 0
    shown: Given | None = None


@dataclass(frozen=True)
class Mistake:
    """A wrong variant that returns the same parts as the right one, and the sentence that names it."""

    answer: Callable[..., Answer]
    says: str


@dataclass(frozen=True)
class Exercise:
    """One exercise: cases, the right answer and wrong ones.

    An earlier part is judged before a later one, and a stage only if the earlier ones are right, so that two
    mistakes do not hide each other.
    """

    name: str  # of the student's function
    answer: Callable[..., Answer]  # the right function
    parts: tuple[str, ...]  # names of the returned parts
    parse: Callable[..., Answer]  # parse(returned, **given) gives the parts, or raises `Misfit`
    cases: list[Case]  # in the order in which they are shown: the smallest first, stage by stage
    stages: tuple[str, ...]  # description of each stage's cases
    mistakes: tuple[Mistake, ...]  # if two explain the same cases, the earlier one is named
    tried: str  # what the cases cover
    further: str  # a question for those who have finished


@dataclass
class Attempt:
    """Outcome of a function on a case: its value or the problem, and the right answer."""

    case: Case
    right: Answer
    value: Answer | None = None
    raw: Returned = None
    problem: str = ""
    todo: bool = False
    raised: bool = False
    printed: str = field(default="", repr=False)


def judge(exercise: Exercise, function: Student) -> Result:
    """Run a function on every case of an exercise and say what is wrong with it."""

    def wrong(headline: str, says: str, *rows: tuple[str, str, str], state: str = WRONG) -> Result:
        return Result(exercise.name, state, headline, says, list(rows))

    if not callable(function):
        return wrong(
            "give the function itself",
            f"Pass the function itself, without calling it: sv.check.{exercise.name}({exercise.name}). "
            f"It got {words(function)}.",
        )
    try:
        inspect.signature(function).bind(*exercise.cases[0].given)
    except TypeError:
        call = f"{exercise.name}({', '.join(exercise.cases[0].given)})"
        says = f"It is called as {call}, and yours takes {inspect.signature(function)}."
        return wrong("the arguments do not fit", says)
    except ValueError:  # a builtin without a signature: its first call will show
        pass
    attempts: list[Attempt] = []
    for stage in range(len(exercise.stages)):
        for case in (c for c in exercise.cases if c.stage == stage):
            attempt = run(exercise, function, case)
            if attempt.todo:
                says = "Fill in the stub above, run its cell, then run this cell again."
                return wrong("not implemented yet", says, state=TODO)
            if attempt.problem:
                headline = "your code stopped with an error" if attempt.raised else "not the requested form"
                return wrong(headline, attempt.problem, *table(exercise, attempt))
            attempts.append(attempt)
        for part in range(len(exercise.parts)):
            result = compare(exercise, attempts, part, stage)
            if result is not None:
                return result
    headline = f"right, in all {len(exercise.cases)} cases tried ({exercise.tried})"
    return Result(exercise.name, RIGHT, headline, "Go further: " + exercise.further)


def compare(exercise: Exercise, attempts: list[Attempt], part: int, stage: int) -> Result | None:
    """Compare one part of the answers up to a stage; None if all are right, else the result.

    All wrong answers are of this stage. The right ones of earlier stages rule out mistakes that would show
    there.
    """
    wrong = [a for a in attempts if a.value and not same(a.value[part], a.right[part])]
    if not wrong:
        return None
    explained = [(explains(mistake, attempts, part), mistake.says) for mistake in exercise.mistakes]
    best, says = max(explained, key=lambda pair: len(pair[0]))
    says = f"Likely mistake: {says}"
    if not best:
        says = "This is none of the mistakes that the check recognises. The smallest case that fails:"
    what = f"{exercise.parts[part]} is wrong" if len(exercise.parts) > 1 else "wrong"
    count = sum(a.case.stage == stage for a in attempts)
    headline = f"{what} in {len(wrong)} of {count} cases {exercise.stages[stage]}".rstrip()
    return Result(exercise.name, WRONG, headline, says, table(exercise, (best or wrong)[0]))


def explains(mistake: Mistake, attempts: list[Attempt], part: int) -> list[Attempt]:
    """The attempts in which a mistake shows; none if one of them does not equal the mistake's answer."""
    explained = []
    for attempt in attempts:
        theirs = mistake.answer(**attempt.case.given)[part]
        if not same(theirs, attempt.right[part]):
            if attempt.value is None or not same(theirs, attempt.value[part]):
                return []
            explained.append(attempt)
    return explained


def table(exercise: Exercise, attempt: Attempt) -> list[tuple[str, str, str]]:
    """The example's rows: given, yours, right."""
    given = attempt.case.given if attempt.case.shown is None else attempt.case.shown
    rows = [("given", name, words(value)) for name, value in given.items()]
    parts = [f" {part}" for part in exercise.parts] if len(exercise.parts) > 1 else [""]
    if attempt.value is not None:
        for part, mine, right in zip(parts, attempt.value, attempt.right):
            sign = "" if same(mine, right) else f" {SIGNS[WRONG]}"
            rows.append(("yours", f"yours returned{part}{sign}", words(mine)))
    elif not attempt.raised:
        rows.append(("yours", "yours returned", words(attempt.raw)))
    rows += [("right", f"right is{part}", words(value)) for part, value in zip(parts, attempt.right)]
    if attempt.printed:
        rows.append(("given", "yours printed", attempt.printed[-400:]))
    return rows


def same(one: Returned, other: Returned) -> bool:
    """Whether two parts agree: float arrays to within 1e-6, all else exactly."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if np.shape(one) != np.shape(other):
            return False
        if one.dtype.kind == "f" or other.dtype.kind == "f":
            return bool((np.abs(one - other) <= 1e-6).all())
    return bool(np.all(one == other))


# ---------------------------------------------------------------- running a student's function


def run(exercise: Exercise, function: Student, case: Case) -> Attempt:
    """Call a function on copies of a case's arguments, and catch all that it raises or prints."""
    attempt = Attempt(case, exercise.answer(**case.given))
    out = StringIO()
    try:
        with redirect_stdout(out), np.errstate(all="ignore"), limited(function):
            attempt.raw = function(*copy.deepcopy(list(case.given.values())))
    except NotImplementedError:
        attempt.todo = True
    except Endless as error:
        attempt.raised, line = True, place(function, error.__traceback__)
        attempt.problem = (
            f"It does not finish in the case below{line}. Does a loop forget to increment its counter?"
        )
    except Exception as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        attempt.raised = True
        attempt.problem = f"{message}{place(function, error.__traceback__)}. It happens in the case below."
    else:
        try:
            if attempt.raw is None or attempt.raw is Ellipsis:
                raise Misfit("It returned nothing (None). Is the return missing or never reached?")
            attempt.value = exercise.parse(attempt.raw, **case.given)
        except Misfit as error:
            attempt.problem = str(error)
    attempt.printed = out.getvalue().rstrip()
    return attempt


def place(function: Student, trace: TracebackType | None) -> str:
    """Location of an error in the student's own code: line number and line."""
    file = home(function)
    number = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            number = trace.tb_lineno
        trace = trace.tb_next
    if number is None:
        return ""
    line = linecache.getline(file, number).strip()
    return f", in line {number} of its cell" + (f": {line}" if line else "")


def home(function: Student) -> str:
    """The file (in a notebook, the cell) that a function was written in."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if code else ""


@contextmanager
def limited(function: Student) -> Iterator[None]:
    """Stop a function after `MOST_STEPS` steps in its own file, so that an endless loop gets an answer.

    If something else already follows each step (a debugger, a coverage run), do nothing.
    """
    if sys.gettrace() is not None or not home(function):
        yield
        return
    file, left = home(function), MOST_STEPS

    def follow(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        nonlocal left
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = True  # a loop on one line makes no line events
        left -= 1
        if left < 0:
            raise Endless
        return follow

    sys.settrace(follow)
    try:
        yield
    finally:
        sys.settrace(None)


# ---------------------------------------------------------------- parsing a student's answer


def before(tests: Iterable[bool]) -> int:
    """Number of tests before the first that is true."""
    return sum(1 for _ in takewhile(operator.not_, tests))


def one_list(returned: Returned, **given: object) -> tuple[list[int]]:
    """Parse a list of token ids, the only part of an answer, or raise `Misfit`."""
    if isinstance(returned, np.ndarray) and returned.ndim == 1:
        returned = returned.tolist()
    if isinstance(returned, int | np.integer) and not isinstance(returned, bool):
        raise Misfit("It returned one number. Return the list of emitted tokens, not their number.")
    if not isinstance(returned, list | tuple):
        raise Misfit(f"It returned something of type {type(returned).__name__}. Return a list of token ids.")
    for entry in returned:
        if isinstance(entry, bool) or not isinstance(entry, int | np.integer):
            raise Misfit(f"The list holds {words(entry)}, but token ids must be integers (int).")
    return ([int(entry) for entry in returned],)


def two(returned: Returned, names: str) -> tuple[Returned, Returned]:
    """Parse a pair, or raise `Misfit`."""
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        several = isinstance(returned, list | tuple)
        got = f"{len(returned)} things" if several else f"something of type {type(returned).__name__}"
        raise Misfit(f"Return two things, {names}; it returned {got}.")
    return returned[0], returned[1]


def array(value: Returned, shape: tuple[int, ...], name: str) -> np.ndarray:
    """Parse an array of numbers of the given shape, or raise `Misfit`."""
    try:
        array = np.asarray(value)
    except Exception:  # rows of different lengths, or something that NumPy cannot read
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise Misfit(f"{name} must be an array of numbers of shape {list(shape)}.")
    if array.shape != shape:
        raise Misfit(f"{name} must have shape {list(shape)} here; yours has {list(array.shape)}.")
    return array
