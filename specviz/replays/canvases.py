"""Canvases written many ways on the same prompts: the ways, the prompts, the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from specviz.errors import ParameterError
from specviz.loop.clock import Clock
from specviz.loop.cycle import Cycle
from specviz.loop.unmasking import decode_canvases
from specviz.measure.report import Entry, Estimate, Row, Settings, Tick, Values
from specviz.measure.timing import counter, paired, phase_clock, quiet_clock, settled
from specviz.methods import find
from specviz.models.diffusion import Diffusion
from specviz.suites.frozen import frozen, take


@dataclass(frozen=True)
class Way:
    """A method with its parameters."""

    method: str
    values: Values = field(default_factory=dict)

    def __call__(self) -> Any:
        """The method."""
        return find(self.method)(**self.values)

    @property
    def label(self) -> str:
        """What it drafts, in words; its policy is said elsewhere."""
        v = self.values
        if self.method == "ssd":
            return f"ssd, {v.get('tree', 'chain')}, N {v.get('draft_length', 4)}"
        return {"fast_dllm": "fast_dllm, τ 0.9", "entropy_bounded": "entropy_bounded, γ 0.1"}.get(
            self.method, self.method
        )


def stepwise(**policy: Any) -> Way:
    """The reference."""
    return Way("stepwise", policy)


def ssd(n: int, tree: str = "chain", **policy: Any) -> Way:
    """Self speculative decoding."""
    return Way("ssd", {"draft_length": n, "tree": tree, **policy})


@dataclass
class Written:
    """A text: what was placed, in order, and what it took."""

    order: list[tuple[int, int]] = field(default_factory=list)  # (cell, token)
    passes: int = 0
    fed: int = 0
    refreshes: int = 0
    canvases: int = 0  # the roots among them
    marks: list[list[Any]] = field(default_factory=list)  # of every pass

    def take(self, cycle: Cycle) -> None:
        """Add a cycle; its logits are not kept."""
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
    """Write the prompts' canvases, so many together; nothing is recorded."""
    texts = [Written() for _ in ids]
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
    seconds: list[float] = field(default_factory=list)
    texts: list[Written] = field(default_factory=list)

    def over(self, other: Measured) -> Estimate:
        """How many times as fast as `other`: the median over texts of the ratio of their seconds."""
        return Estimate.of([b / a for a, b in zip(self.seconds, other.seconds)])

    def speed(self, ends: Iterable[int]) -> Estimate:
        """Valid tokens a second: the median over texts."""
        return Estimate.of([len(text.text(ends)) / s for text, s in zip(self.texts, self.seconds)])

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
    """Let all ways write text 0, then text 1 ..., in an order that rotates; each has written one before."""
    results = [Measured(way) for way in ways]
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


# -- prompts ------------------------------------------------------------------------------------

MIX = "every other one a translation from English into German, those between of the other six kinds in turn"
SHOTS = 3  # examples that lie beside a prompt


def suite(n: int, shots: int = 0, only: str | None = None) -> list[Entry]:
    """Bundled prompts: `MIX`.

    Parameters
    ----------
    n : int
    shots : int
        Examples of the same kind in front, with their answers: earlier turns of the chat; at most `SHOTS`.
    only : str, optional
        A kind of work that all are of.

    Raises
    ------
    ParameterError
        If there are fewer prompts or examples.
    """
    if shots > SHOTS:
        raise ParameterError(f"{shots} examples are wanted, and {SHOTS} lie beside a prompt: ask for fewer")
    group = only or "mix"
    entries = [entry for entry in frozen("canvases") if entry["group"] == group]
    prompts = []
    for entry in take(entries, n, "prompts" + (f" of {only}" if only else "")):
        before = []
        for question, answer in entry["shots"][:shots]:
            before += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        prompts.append({name: entry[name] for name in ("id", "kind", "language", "reference")}
                     | {"prompt": before + entry["messages"]})  # fmt: skip
    return prompts


# -- by batch size --------------------------------------------------------------------------------

# Gao et al., section 4.1: how its models are run.
PAPER: Settings = {"block": 8, "cache": "dual", "refresh": 8, "whole": True}
LENGTH = 64  # cells
SIZES = (1, 2, 4, 8, 16)  # prompts decoded together


def batches(model: Diffusion, prompts: int, rounds: int, tick: Tick) -> tuple[list[Row], list[str]]:
    """Figure 1: throughput by batch size, with and without cache; a row each, and notes."""
    ids = sorted((model.encode(entry["prompt"]) for entry in suite(prompts)), key=len)
    ways = [stepwise(**PAPER), stepwise(**PAPER | {"cache": "none"}), ssd(4, **PAPER)]
    sizes = [size for size in SIZES if size <= len(ids)]
    runs = [(i, size) for i in range(len(ways)) for size in sizes]
    step = counter(tick, rounds * len(runs))
    clock = quiet_clock(model.device)[0]
    seconds: dict[tuple[int, int], list[float]] = {run: [] for run in runs}
    texts: dict[tuple[int, int], list[Written]] = {}
    for i, size in runs:
        write(model, ids[:size], ways[i], LENGTH, size)

    def decoder(i: int, size: int) -> Callable[[int], list[int]]:
        def decode(_: int) -> list[int]:
            texts[i, size] = write(model, ids, ways[i], LENGTH, size)
            step(f"batches: {ways[i].label}, {size} together")
            return []

        return decode

    with settled():
        for turn in range(rounds):
            k = turn * len(sizes) % len(runs)
            times = paired({run: decoder(*run) for run in runs[k:] + runs[:k]}, 1, model.device, clock=clock)
            for run in runs:
                seconds[run] += times[run].seconds
    rows = []
    for i, size in runs:
        valid = sum(len(text.text(model.eos)) for text in texts[i, size])
        times_1 = Estimate.of([a / b for a, b in zip(seconds[i, 1], seconds[i, size])])
        shared = passes_shared(texts[i, size], size)
        rows.append({
            "way": f"{ways[i].label}, cache {ways[i].values['cache']}", "batch": size,
            "speed": Estimate.of([valid / s for s in seconds[i, size]]), "times": times_1,
            "ms": 1e3 * float(np.median(seconds[i, size])) / shared,
            "fed": sum(text.fed for text in texts[i, size]) / shared,
            "same": sum(a.order == b.order for a, b in zip(texts[i, size], texts[i, 1])) / len(ids),
        })  # fmt: skip
    notes = [
        "In a batch a cycle is two passes where some rows refresh and others do not (ssd's drift apart)."
    ]
    names = dict.fromkeys(row["way"] for row in rows)
    return rows, [*notes, *(turning([row for row in rows if row["way"] == name]) for name in names)]


def passes_shared(texts: Sequence[Written], size: int) -> int:
    """Cycles of a batch run: rows that go on share theirs."""
    return sum(max(t.passes for t in texts[i : i + size]) for i in range(0, len(texts), size))


def turning(rows: Sequence[Values]) -> str:
    """Where twice the batch no longer gives half as much again: passes have become bound by arithmetic."""
    for small, large in pairwise(rows):
        gain = large["times"].median / small["times"].median
        if gain < 1.5:
            grows = f"from batch {small['batch']} to {large['batch']} throughput grows {gain:.2f} times"
            return f"{small['way']}: {grows}; past {small['fed']:.0f} positions a cycle arithmetic bounds it."
    return (
        f"{rows[0]['way']}: throughput grows at least 1.5 times with each doubling up to {rows[-1]['batch']}."
    )
