"""Settings side by side: every contender decodes the same texts in turn; its speed and τ by kind of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specviz.bench.timing import BASELINE, Texts, Timed, closing, paired, quiet_clock
from specviz.loop import Run
from specviz.methods import find
from specviz.methods.base import Method
from specviz.metrics import Estimate, pooled
from specviz.suites import spread

KINDS = {  # headings of the bundled suite's kinds of work
    "conversation": "conv.",
    "translation": "transl.",
    "summarization": "summ.",
    "arithmetic": "math",
}


@dataclass(frozen=True)
class Contender:
    """A method with its setting.

    Parameters
    ----------
    label : str
        Names it among the others.
    method : str
    parameters : mapping
        The method's.
    against : str
        Label of the one that its speed is compared with.
    cells : mapping
        What its row of the table says of it.
    model : Model, optional
        Default: the comparison's.
    temperature : float
    """

    label: str
    method: str = BASELINE
    parameters: Mapping[str, Any] = field(default_factory=dict)
    against: str = BASELINE
    cells: Mapping[str, Any] = field(default_factory=dict)
    model: Any = None
    temperature: float = 0.0

    def fresh(self) -> Method:
        """The method with its parameters, remembering nothing."""
        return find(self.method)(**self.parameters)


@dataclass
class Decoded:
    """What a contender did with every text, over all rounds: its times, and arrays [texts]."""

    contender: Contender
    timed: Timed = field(default_factory=Timed)
    kinds: list[str] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)  # tokens
    steps: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def take(self, times: Timed, trace: Any) -> None:
        """Add a round."""
        self.timed.seconds += times.seconds
        self.timed.texts += times.texts
        cycles = trace.cycles[trace.cycles["cycle"] > 0]
        for name in ("emitted", "sent"):
            sums = cycles.groupby("prompt")[name].sum().reindex(range(len(times.texts)), fill_value=0)
            getattr(self, name).extend(sums.tolist())
        self.steps += cycles.groupby("prompt").size().reindex(range(len(times.texts)), fill_value=0).tolist()
        self.kinds += trace.prompts["kind"].fillna("").astype(str).tolist()
        self.prompt += trace.prompts["tokens"].tolist()

    def of(self, kind: str | None) -> np.ndarray:
        """Which texts are of a kind, bool [texts]; of all kinds for None."""
        return np.array([kind is None or kind == each for each in self.kinds], bool)

    def tau(self, kind: str | None = None) -> Estimate:
        """τ, pooled over the texts."""
        chosen = self.of(kind)
        return pooled(np.array(self.emitted)[chosen], np.array(self.steps)[chosen])

    def nodes(self) -> float:
        """Nodes sent a cycle."""
        return sum(self.sent) / max(1, sum(self.steps))

    def over(self, other: Decoded, kind: str | None = None) -> Estimate:
        """How many times as fast as `other`: the median over texts of the ratio of tokens a second."""
        speeds = np.array(self.timed.speeds()) / np.array(other.timed.speeds())
        return Estimate.of(speeds[self.of(kind)].tolist())

    def same(self, other: Decoded, kind: str | None = None) -> str:
        """How many texts are token for token those of `other`, of how many."""
        pairs = zip(self.timed.texts, other.timed.texts, self.of(kind))
        found = [a == b for a, b, chosen in pairs if chosen]
        return f"{sum(found)}/{len(found)}"


def others(entries: list[dict[str, Any]], chosen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As many prompts again as are measured, if there are any: what methods remember warms up with them."""
    taken = {id(entry) for entry in chosen}
    rest = [entry for entry in entries if id(entry) not in taken]
    return spread(rest, len(chosen)) if rest else []


def compare(
    model: Any,
    contenders: Sequence[Contender],
    chosen: list[dict[str, Any]],
    warm: list[dict[str, Any]],
    *,
    max_new_tokens: int,
    rounds: int = 1,
    tick: Callable[[str], None] = lambda label: None,
) -> dict[str, Decoded]:
    """Let all contenders decode the texts of `chosen` in turns; who begins rotates.

    Parameters
    ----------
    model : Model
    contenders : sequence of Contender
    chosen : list of dict
        Prompts; a conversation's turns are a text each.
    warm : list of dict
        Other prompts, decoded before the clock runs: a method that remembers has met them. Without any its
        memory is empty when the first text begins.
    rounds : int
        Each round begins with fresh methods. The seed of a sampled run is the number of its round.
    tick : callable
        Told after each text who decoded it.

    Returns
    -------
    dict of label to Decoded
    """
    found = {each.label: Decoded(each) for each in contenders}
    for each in contenders:  # parameters are checked before anything runs
        each.fresh()
    clock, _ = quiet_clock(model.device)
    texts = sum(len(entry.get("turns", [0])) for entry in chosen)
    for number in range(rounds):
        runs: dict[str, Run] = {}
        with closing(runs):
            for each in contenders:
                options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "seed": number}
                options["temperature"] = each.temperature
                target, method = each.model or model, each.fresh()
                for _ in Run(target, warm or chosen[:1], method, record=None, **options):
                    pass
                runs[each.label] = Run(target, chosen, method if warm else each.fresh(), **options)
            decoders = {label: Texts(run) for label, run in runs.items()}
            times = paired(decoders, texts, model.device, tick, clock)
            traces = {label: decoder.finish() for label, decoder in decoders.items()}
        for label, trace in traces.items():
            found[label].take(times[label], trace)
    return found


def tabulate(found: dict[str, Decoded]) -> tuple[list[dict[str, Any]], list[tuple[str, str, str]]]:
    """A row for each contender, over all texts and by kind of work, and the columns of the kinds.

    A kind's cell holds the speedup and τ; ``<kind>_speedup`` and ``<kind>_tau`` hold them with intervals.
    """
    kinds = list(dict.fromkeys(next(iter(found.values())).kinds))
    kinds = kinds if len(kinds) > 1 else []
    rows = []
    for decoded in found.values():
        base = found[decoded.contender.against]
        sampled = decoded.contender.temperature > 0
        row: dict[str, Any] = dict(decoded.contender.cells)
        row |= {
            "speed": decoded.timed.speed,
            "speedup": against(decoded, base),
            "tau": decoded.tau(),
            "nodes": decoded.nodes(),
            "same": None if sampled or decoded is base else decoded.same(base),
            "tokens": decoded.timed.tokens,
        }
        for kind in kinds:
            speed, tau = against(decoded, base, kind), decoded.tau(kind)
            row |= {
                kind: f"{speed.median:.2f} {tau.median:.2f}",
                f"{kind}_speedup": speed,
                f"{kind}_tau": tau,
            }
        rows.append(row)
    return rows, [(kind, f"{KINDS.get(kind, kind[:9])} ×, τ", "") for kind in kinds]


def against(decoded: Decoded, base: Decoded, kind: str | None = None) -> Estimate:
    """The speedup over `base`, which itself has 1."""
    return Estimate(1.0, float("nan"), float("nan"), 0) if decoded is base else decoded.over(base, kind)
