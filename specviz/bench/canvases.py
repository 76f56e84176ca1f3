"""Canvases written many ways on the same prompts: the ways, the prompts, the clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.bench.report import Estimate
from specviz.bench.timing import paired, quiet_clock, settled
from specviz.corpus import tasks
from specviz.loop.clock import Clock, clock_for
from specviz.loop.cycle import Cycle
from specviz.loop.unmasking import decode_canvases
from specviz.methods import find


@dataclass(frozen=True)
class Way:
    """A method with its parameters."""

    method: str
    values: Mapping[str, Any] = field(default_factory=dict)

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


def spelt(policy: Mapping[str, Any]) -> str:
    """A cache policy in words."""
    kept = f"dual, refresh {policy['refresh']}" if policy["cache"] == "dual" else "none"
    sure = f", sure {policy['sure']:g}" if "sure" in policy else ""
    return f"B {policy['block']}, cache {kept}{sure}"


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
    model: Any, ids: Sequence[list[int]], way: Way, length: int, batch: int = 1, clock: Clock | None = None
) -> list[Written]:
    """Write the prompts' canvases, so many together; nothing is recorded."""
    found = [Written() for _ in ids]
    method = way()
    for first in range(0, len(ids), batch):
        some = list(ids[first : first + batch])
        for cycles in decode_canvases(model, some, method, max_new_tokens=length, first=first, clock=clock):
            for cycle in cycles:
                found[cycle.prompt].take(cycle)
    return found


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

    def split(self, clock: Clock) -> dict[str, float]:
        """Milliseconds a pass of each phase; ``rest`` is what no phase covers, the canvas' opening first."""
        marks = [mark for text in self.texts for mark in text.marks]
        spans = [list(each) for each in zip(*marks)]
        names = ("draft", "forward", "verify", "commit")
        sums = {name: float(clock.seconds(spans[i], spans[i + 1]).sum()) for i, name in enumerate(names)}
        sums["rest"] = sum(self.seconds) - sum(sums.values())
        return {name: 1e3 * seconds / len(marks) for name, seconds in sums.items()}


def timed(
    model: Any,
    ids: Sequence[list[int]],
    ways: Sequence[Way],
    length: int,
    rounds: int,
    tick: Callable[[], None],
) -> list[Measured]:
    """Let all ways write text 0, then text 1 ..., in an order that rotates; each has written one before."""
    found = [Measured(way) for way in ways]
    clock, ticks = clock_for(model.device), quiet_clock(model.device)[0]
    if type(clock) is Clock:  # phases and texts by the same clock
        clock.mark = ticks  # type: ignore[method-assign]

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
            decoders = {i: decoder(measured) for i, measured in enumerate(found)}
            times = paired(decoders, len(ids), model.device, clock=ticks)
            for i, measured in enumerate(found):
                measured.seconds += times[i].seconds
    return found


# -- prompts ------------------------------------------------------------------------------------

MIX = "every other one a translation from English into German, those between of the other six kinds in turn"


def suite(n: int, shots: int = 0, only: str | None = None) -> list[dict[str, Any]]:
    """Prompts of the corpus' test split: `MIX`.

    Parameters
    ----------
    n : int
    shots : int
        Examples of the same kind in front, of the dev split, with their answers: earlier turns of the chat.
    only : str, optional
        A kind of work that all are of.
    """
    others = [kind for kind in tasks.KINDS if kind != "translation"]
    found = []
    for i in range(n):
        rng = random.Random(f"diffusion:{i}")
        given: dict[str, Any] = {"language": "en", "target": "de"} if i % 2 == 0 else {}
        kind = others[i // 2 % len(others)] if i % 2 else "translation"
        if only is not None:
            given, kind = {}, only
        made = tasks.sample(rng, "test", kind, **given)
        given |= {"language": made.language}
        before = []
        for _ in range(shots):
            asked, answer = tasks.sample(rng, "dev", kind, **given).turns[-1]
            before += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        found.append({"id": f"{kind}-{i:03d}", "kind": kind, "language": made.target or made.language,
                      "prompt": before + made.messages, "reference": [made.turns[-1][1]]})  # fmt: skip
    return found
