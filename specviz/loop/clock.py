"""Clocks for phases and passes, and contexts that time and log their passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..models.protocols import ExitRule, Pass

if TYPE_CHECKING:
    from ..draft import Draft


Mark: TypeAlias = Any  # a point in time: seconds, or a device event; None if times are not recorded


class Clock:
    """Host clock; accurate if passes are synchronous (a CPU)."""

    timing = "host clock"

    def mark(self) -> Mark:
        """Mark the current time; `seconds` compares lists of marks later."""
        return time.perf_counter()

    def seconds(self, first: list[Mark], second: list[Mark]) -> np.ndarray:
        """Seconds from each mark of `first` to the mark of `second` at the same index."""
        return np.subtract(second, first, dtype=np.float64)


class EventClock(Clock):
    """CUDA events in the device's own queue, compared after the fact, so that nothing waits for them."""

    timing = "device events, read after the fact; about 5 us of host time each"

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, first: list[Mark], second: list[Mark]) -> np.ndarray:
        return np.array([elapsed(a, b) for a, b in zip(first, second, strict=True)], np.float64)


class SynchronisedClock(Clock):
    """MPS: the host clock, read after the device has finished; each mark stalls the queue."""

    timing = "synchronised: the device is drained at each phase, which slows the run"

    def mark(self) -> Mark:
        torch.mps.synchronize()
        return time.perf_counter()


def elapsed(first: Mark, second: Mark) -> float:
    """Seconds between two events; waits for the second."""
    if first is second:
        return 0.0
    second.synchronize()
    return first.elapsed_time(second) / 1e3


def clock_for(device: torch.device | str) -> Clock:
    """Return the clock that measures a device correctly."""
    kind = torch.device(device).type
    if kind == "cuda":
        return EventClock(device)
    return SynchronisedClock() if kind == "mps" else Clock()


class Watched:
    """A single-row context that logs its passes: model, rows, tokens, begin and end.

    Everything else is delegated to the context.
    """

    def __init__(self, context: Any, name: str, clock: Clock | None, passes: list[tuple]) -> None:
        self.context = context
        self._name, self._clock, self._passes = name, clock, passes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)

    def forward(self, draft: Draft, hidden: Sequence[int] = (), **options: ExitRule) -> Pass:
        """The context's forward, timed."""
        start = self._clock.mark() if self._clock else None
        result: Pass = self.context.forward(draft, hidden, **options)
        self._note(result.tokens, start)
        return result

    def read(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """The context's read (`EagleContext`), timed."""
        start = self._clock.mark() if self._clock else None
        result: tuple[Tensor, Tensor] = self.context.read(tokens, states)
        self._note(len(tokens), start)
        return result

    def grow(self, tokens: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """The context's grow (`EagleContext`), timed."""
        start = self._clock.mark() if self._clock else None
        result: tuple[Tensor, Tensor] = self.context.grow(tokens, states, above)
        self._note(len(tokens), start)
        return result

    def _note(self, tokens: int, start: Mark) -> None:
        self._passes.append((self._name, 1, tokens, start, self._clock.mark() if self._clock else None))

    def prefill(self, hidden: tuple[int, ...] = ()) -> int:
        """The context's prefill, timed."""
        start = self._clock.mark() if self._clock else None
        tokens: int = self.context.prefill(hidden=hidden) if hidden else self.context.prefill()
        if tokens:  # a prompt of one token leaves nothing to compute
            self._note(tokens, start)
        return tokens
