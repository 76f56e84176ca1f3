"""The display of a stream while it is decoded: text kept, added and erased in each update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from .segmentation import kept

Cycle: TypeAlias = Any  # a finished cycle of the loop, which imports this package
UNJUDGED = ("unsent", "below_budget", "cut", "unreviewed")  # not counted in A/D


@dataclass(frozen=True)
class Shown:
    """One decoded update.

    Parameters
    ----------
    stream, update : int
        Index of the stream in the run, and of the update in the stream, from 0.
    source : str
        The source at that time; `arrival` is when it came, in seconds.
    text : str
        The displayed text: `kept`, which was displayed before, and `new`.
    erased : str
        The text that followed `kept` before.
    erased_tokens, hidden : int
        Displayed tokens of the previous update that are gone; masked tokens of this output.
    drafted, accepted : int
        Draft tokens that the target judged, and those it accepted.
    tokens : int
        Tokens of the output, including masked ones and an end token.
    prompt, reused : int
        Cache rows of the prompt, and how many of them were kept from the previous update.
    seconds : float
        Time that decoding took, by the run's clock; NaN without one.
    """

    stream: int
    update: int
    source: str
    arrival: float | None
    kept: str
    new: str
    erased: str
    erased_tokens: int
    hidden: int
    drafted: int
    accepted: int
    tokens: int
    prompt: int
    reused: int
    seconds: float

    @property
    def text(self) -> str:
        return self.kept + self.new


def follow(run: Iterable[Cycle], show: Callable[[list[int]], str]) -> Iterator[Shown]:
    """Yield the display after each update of a run of streams, as soon as it is decoded.

    Parameters
    ----------
    run : iterable of finished cycles
        As `specviz.stream` yields them for a method that decodes streams; its ``clock`` gives the times.
    show : callable
        ``show(token ids)`` gives text, as a model's ``decode`` does.
    """
    clock = getattr(run, "clock", None)
    stream = -1
    before: list[int] = []  # displayed tokens of the previous update
    stood = ""
    output: list[int] = []
    drafted = accepted = 0
    for cycle in run:
        if cycle.number == 0:
            first, output, drafted, accepted = cycle, [], 0, 0
            if cycle.prompt != stream:
                stream, before, stood = cycle.prompt, [], ""
        output += cycle.tokens
        drafted += sum(status not in UNJUDGED for status in cycle.status)
        accepted += cycle.status.count("accepted")
        if cycle.end is None:
            continue
        displayed = output[: cycle.shown]
        written = len(output) - (cycle.end == "eos")
        text = show(displayed).lstrip(" ")
        if written > len(displayed):  # an incomplete character waits for masked tokens
            text = text.rstrip("\ufffd")
        stays = kept(stood, text)
        same = next((i for i, (a, b) in enumerate(zip(before, displayed)) if a != b), None)
        same = min(len(before), len(displayed)) if same is None else same
        yield Shown(
            stream, cycle.update, first.source, first.arrival, text[:stays], text[stays:], stood[stays:],
            len(before) - same, written - len(displayed), drafted, accepted, len(output),
            first.context, first.reused or 0,
            float("nan") if clock is None else float(clock.seconds([first.marks[0]], [cycle.marks[-1]])[0]),
        )  # fmt: skip
        before, stood = displayed, text
