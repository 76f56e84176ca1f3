"""Canvases decoded in several ways on the same prompts, with the counts and times of each text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specviz.loop.clock import Clock
from specviz.loop.cycle import Cycle
from specviz.loop.unmasking import decode_canvases
from specviz.measure.phases import Phases
from specviz.measure.report import Estimate, Values
from specviz.measure.timing import paired, phase_clock, quiet_clock, settled
from specviz.methods import find
from specviz.models.diffusion import Diffusion


@dataclass(frozen=True)
class Way:
    """A method with its parameters."""

    method: str
    values: Values = field(default_factory=dict)

    def __call__(self) -> Any:
        """Build the method."""
        return find(self.method)(**self.values)

    @property
    def label(self) -> str:
        """The method and its draft parameters as text, without the policy."""
        v = self.values
        if self.method == "ssd":
            return f"ssd, {v.get('tree', 'chain')}, N {v.get('draft_length', 4)}"
        return {"fast_dllm": "fast_dllm, τ 0.9", "entropy_bounded": "entropy_bounded, γ 0.1"}.get(
            self.method, self.method
        )


def stepwise(**policy: Any) -> Way:
    """Stepwise decoding, the reference."""
    return Way("stepwise", policy)


def ssd(n: int, tree: str = "chain", **policy: Any) -> Way:
    """Self speculative decoding."""
    return Way("ssd", {"draft_length": n, "tree": tree, **policy})


@dataclass
class Written:
    """A decoded text: its tokens in the order of placement, and the counts of its passes."""

    order: list[tuple[int, int]] = field(default_factory=list)  # (cell, token)
    passes: int = 0
    fed: int = 0
    refreshes: int = 0
    canvases: int = 0  # including the roots
    marks: list[list[Any]] = field(default_factory=list)  # clock marks of every pass
    phases: Phases = field(default_factory=lambda: Phases(None))

    def take(self, cycle: Cycle) -> None:
        """Add a cycle; its logits are not kept."""
        self.phases.take(cycle)
        if cycle.number == 0:
            return
        self.order += zip(cycle.cells, cycle.tokens)
        self.passes += 1
        self.fed += cycle.passes[0][2]
        self.refreshes += bool(cycle.refreshed)
        self.canvases += 1 + len(cycle.status)
        self.marks.append(cycle.marks)

    def text(self, ends: Iterable[int]) -> list[int]:
        """Tokens from left to right, up to the first end token: those that count (section 4.1)."""
        tokens = [token for _, token in sorted(self.order)]
        ends = set(ends)
        return tokens[: next((i for i, token in enumerate(tokens) if token in ends), len(tokens))]


def write(
    model: Diffusion,
    ids: Sequence[list[int]],
    way: Way,
    length: int,
    batch: int = 1,
    clock: Clock | None = None,
) -> list[Written]:
    """Decode the prompts' canvases, `batch` at a time, without a record."""
    texts = [Written(phases=Phases(clock)) for _ in ids]
    method = way()
    for first in range(0, len(ids), batch):
        some = list(ids[first : first + batch])
        numbers = range(first, first + len(some))
        for cycles in decode_canvases(
            model, some, method, max_new_tokens=length, numbers=numbers, clock=clock
        ):
            for cycle in cycles:
                texts[cycle.prompt].take(cycle)
    return texts


@dataclass
class Measured:
    """A way's texts of a paired run, over all rounds, and the seconds of each."""

    way: Way
    count: int  # texts of a round
    seconds: list[float] = field(default_factory=list)
    texts: list[Written] = field(default_factory=list)

    def over(self, other: Measured) -> Estimate:
        """How many times as fast as `other`: the median over texts of the ratio of their seconds."""
        return self._by_text([b / a for a, b in zip(self.seconds, other.seconds)])

    def speed(self, ends: Iterable[int]) -> Estimate:
        """Valid tokens per second: the median over texts."""
        return self._by_text([len(text.text(ends)) / s for text, s in zip(self.texts, self.seconds)])

    def _by_text(self, values: list[float]) -> Estimate:
        """Estimate over texts, from each text's median over rounds."""
        return Estimate.of(np.median(np.reshape(values, (-1, self.count)), axis=0).tolist())

    @property
    def passes(self) -> int:
        return sum(text.passes for text in self.texts)


def timed(
    model: Diffusion,
    ids: Sequence[list[int]],
    ways: Sequence[Way],
    length: int,
    rounds: int,
    tick: Callable[[], None],
) -> list[Measured]:
    """Let all ways decode a warm-up text, then text 0, then text 1, and so on, in an order that rotates."""
    results = [Measured(way, len(ids)) for way in ways]
    clock, ticks = phase_clock(model.device), quiet_clock(model.device)[0]

    def decoder(measured: Measured) -> Callable[[int], list[int]]:
        def decode(i: int) -> list[int]:
            (text,) = write(model, [ids[i]], measured.way, length, clock=clock)
            measured.texts.append(text)
            tick()
            return [token for _, token in text.order]

        return decode

    for way in ways:
        write(model, ids[:1], way, length)
    with settled():
        for _ in range(rounds):
            decoders = {i: decoder(measured) for i, measured in enumerate(results)}
            times = paired(decoders, len(ids), model.device, clock=ticks)
            for i, measured in enumerate(results):
                measured.seconds += times[i].seconds
    return results
