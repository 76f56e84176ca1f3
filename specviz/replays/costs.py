"""Why a method pays here or does not: what its cycles bring, and what they cost in cycles without drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specviz.errors import ParameterError
from specviz.replays.cells import Plain

if TYPE_CHECKING:
    from specviz.models.protocols import Model

PHASES = ("draft", "forward", "verify", "commit", "between")  # as `specviz.measure.phases` sums them
EXITS = ("calm", "early_exit")  # whose passes end at a layer that no shape tells
HEADINGS = (
    "contender", "τ", "break-even τ", "speedup", "tokens a pass", "a cycle's passes", "its drafting",
    *(f"{name} %" for name in PHASES),
)  # fmt: skip
IN_WORDS = (
    "The reference decodes the same texts without drafts. A cycle pays if it writes more tokens (τ) than it "
    "costs: the break-even τ is the time of a cycle in cycles of the reference, times the reference's own τ. "
    "Passes and drafting are in passes of the reference, the papers' s(g) and c; the shares are of the time "
    "after the prefill, by phase."
)


@dataclass(frozen=True)
class Cost(Plain):
    """What a contender's cycles bring and cost.

    Attributes
    ----------
    contender, task, by : str
        As the figures' provenance has them.
    texts : int
    sums, plain : dict
        Over the texts' cycles, as `specviz.measure.phases.SUMS` names them: of the contender, and of the
        reference on the same texts.
    elsewhere : dict
        Device: what a cycle's passes and its drafting cost there, in passes of the reference; modelled by a
        roofline. Empty where a shape is not known.
    """

    contender: str
    task: str
    by: str
    texts: int
    sums: dict[str, float]
    plain: dict[str, float]
    elsewhere: dict[str, list[float]] = field(default_factory=dict)

    @property
    def tau(self) -> float:
        """Tokens a cycle writes."""
        return self.sums["emitted"] / self.sums["cycles"]

    @property
    def plain_tau(self) -> float:
        """The same of the reference: 1, but for canvases."""
        return self.plain["emitted"] / self.plain["cycles"]

    @property
    def break_even(self) -> float:
        """The τ at which a cycle would be worth its time."""
        return self.plain_tau * _seconds(self.sums) / _seconds(self.plain)

    @property
    def speedup(self) -> float:
        """Tokens per second over the reference's, without the prefill."""
        return self.tau / self.break_even

    @property
    def tokens(self) -> float:
        """Tokens that a pass of the target reads."""
        return self.sums["fed"] / self.sums["passes"] if self.sums["passes"] else 0.0

    def passes(self, phase: str, plain: bool = False) -> float:
        """Seconds of a phase in a cycle, in passes of the reference."""
        sums = self.plain if plain else self.sums
        unit = self.plain["forward"] / self.plain["cycles"]
        return sums[phase] / sums["cycles"] / unit

    @property
    def shares(self) -> dict[str, float]:
        """Share of each phase in the time."""
        whole = sum(self.sums[name] for name in PHASES)
        return {name: self.sums[name] / whole for name in PHASES}

    def row(self) -> list[str]:
        """What `HEADINGS` name."""
        return [
            f"{self.contender} ({self.by})" if self.by else self.contender,
            *(f"{value:.2f}" for value in (self.tau, self.break_even, self.speedup)), f"{self.tokens:.1f}",
            f"{self.passes('forward'):.2f}", f"{self.passes('draft'):.2f}",
            *(f"{100 * share:.0f}" for share in self.shares.values()),
        ]  # fmt: skip


def _seconds(sums: Mapping[str, float]) -> float:
    """Of a cycle."""
    return sum(sums[name] for name in PHASES) / sums["cycles"]


def cost_of(
    contender: str, task: str, by: str,
    mine: Sequence[Mapping[str, float]], plain: Sequence[Mapping[str, float]],
) -> Cost | None:  # fmt: skip
    """What some texts' cycles bring and cost; None where one has no times, or nothing was written.

    Parameters
    ----------
    mine, plain : sequence of mapping
        Of each text, the contender's sums and the reference's.
    """
    if not mine or not all(mine) or not all(plain):
        return None
    sums, others = total(mine), total(plain)
    needed = sums["emitted"], *(others[name] for name in ("emitted", "passes", "forward"))
    if not all(needed) or not _seconds(sums):
        return None
    return Cost(contender, task, by, len(mine), sums, others)


def total(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums of sums."""
    return {name: sum(one[name] for one in each) for name in each[0]}


def pooled(costs: Sequence[Cost]) -> list[Cost]:
    """One of each contender, over all tasks."""
    groups: dict[tuple[str, str], list[Cost]] = {}
    for each in costs:
        groups.setdefault((each.contender, each.by), []).append(each)
    several = Counter(contender for contender, _ in groups)
    out = []
    for (contender, by), those in groups.items():
        cycles = [each.sums["cycles"] for each in those]
        devices = [name for name in those[0].elsewhere if all(name in each.elsewhere for each in those)]
        elsewhere = {
            name: [
                sum(n * each.elsewhere[name][i] for n, each in zip(cycles, those)) / sum(cycles)
                for i in range(2)
            ]
            for name in devices
        }
        sums, plain = (total([getattr(each, name) for each in those]) for name in ("sums", "plain"))
        texts = sum(each.texts for each in those)
        by = by if several[contender] > 1 else ""  # the table's own model goes without saying
        out.append(Cost(contender, "", by, texts, sums, plain, elsewhere))
    return out


def modelled(cost: Cost, method: str, model: Model, draft: Model | None) -> dict[str, list[float]]:
    """What a cycle's passes and its drafting cost on other devices, in passes of the reference.

    Nothing where a drafter's work is not a model's passes, or a shape is not known.
    """
    from specviz.measure.advice.devices import PRESETS, pass_seconds

    sums, plain = cost.sums, cost.plain
    if method in EXITS or (draft is not None and not sums["draft_passes"]):
        return {}
    if sums["draft_passes"] and draft is None:
        return {}
    elsewhere = {}
    try:
        for name, device in PRESETS.items():
            # What the passes of a cycle take, each of the mean size after the mean context.
            target, reference, drafting = (
                0.0
                if not of[f"{who}passes"]
                else of[f"{who}passes"] / of["cycles"]
                * pass_seconds(
                    device, which, of[f"{who}fed"] / of[f"{who}passes"], of["context"] / of["cycles"]
                )
                for of, who, which in (
                    (sums, "", model), (plain, "", model), (sums, "draft_", draft or model),
                )
            )  # fmt: skip
            elsewhere[name] = [target / reference, drafting / reference]
    except ParameterError:  # a shape is not known
        return {}
    return elsewhere
