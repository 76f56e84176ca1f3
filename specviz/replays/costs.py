"""Why a method pays here or does not: what its cycles yield, and what they cost in cycles without drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specviz import schema
from specviz.errors import ParameterError
from specviz.replays.cells import Plain

if TYPE_CHECKING:
    from specviz.models.protocols import Model

PHASES = (*schema.PHASES, "between")  # as `specviz.measure.phases` sums them
EXITS = ("calm", "early_exit")  # methods whose passes may end at a layer that the shape does not give
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
    """What a contender's cycles yield and cost.

    Attributes
    ----------
    contender, task, by : str
        As in the figures' provenance.
    texts : int
    sums, plain : dict
        Sums over the cycles of the texts, named as in `specviz.measure.phases.SUMS`, of the contender and of
        the reference.
    elsewhere : dict
        For each other device, the cost of a cycle's passes and of its drafting, in passes of the reference,
        modelled by a roofline. Empty if a shape is unknown.
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
        """Tokens per cycle."""
        return self.sums["emitted"] / self.sums["cycles"]

    @property
    def plain_tau(self) -> float:
        """Tokens per cycle of the reference: 1, except for canvases."""
        return self.plain["emitted"] / self.plain["cycles"]

    @property
    def break_even(self) -> float:
        """The τ at which a cycle is worth its time."""
        return self.plain_tau * _seconds(self.sums) / _seconds(self.plain)

    @property
    def speedup(self) -> float:
        """Tokens per second over the reference's, without the prefill."""
        return self.tau / self.break_even

    @property
    def tokens(self) -> float:
        """Mean tokens per pass of the target."""
        return self.sums["fed"] / self.sums["passes"] if self.sums["passes"] else 0.0

    def passes(self, phase: str, plain: bool = False) -> float:
        """Time of a phase per cycle, in passes of the reference."""
        sums = self.plain if plain else self.sums
        unit = self.plain["forward"] / self.plain["cycles"]
        return sums[phase] / sums["cycles"] / unit

    @property
    def shares(self) -> dict[str, float]:
        """Each phase's share of the time."""
        whole = sum(self.sums[name] for name in PHASES)
        return {name: self.sums[name] / whole for name in PHASES}

    def row(self) -> list[str]:
        """The values for `HEADINGS`, as text."""
        return [
            f"{self.contender} ({self.by})" if self.by else self.contender,
            *(f"{value:.2f}" for value in (self.tau, self.break_even, self.speedup)), f"{self.tokens:.1f}",
            f"{self.passes('forward'):.2f}", f"{self.passes('draft'):.2f}",
            *(f"{100 * share:.0f}" for share in self.shares.values()),
        ]  # fmt: skip


def _seconds(sums: Mapping[str, float]) -> float:
    """Seconds per cycle."""
    return sum(sums[name] for name in PHASES) / sums["cycles"]


def cost_of(
    contender: str, task: str, by: str,
    mine: Sequence[Mapping[str, float]], plain: Sequence[Mapping[str, float]],
) -> Cost | None:  # fmt: skip
    """What some texts' cycles yield and cost; None if a text has no times or nothing was written.

    Parameters
    ----------
    mine, plain : sequence of mapping
        The contender's sums and the reference's, for each text.
    """
    if not mine or not all(mine) or not all(plain):
        return None
    sums, others = total(mine), total(plain)
    needed = sums["emitted"], *(others[name] for name in ("emitted", "passes", "forward"))
    if not all(needed) or not _seconds(sums):
        return None
    return Cost(contender, task, by, len(mine), sums, others)


def total(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Add up sums, name by name."""
    return {name: sum(one[name] for one in each) for name in each[0]}


def pooled(costs: Sequence[Cost]) -> list[Cost]:
    """Pool each contender's costs over all tasks."""
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
    """Model the cost of a cycle's passes and drafting on other devices, in passes of the reference.

    Empty if a pass may exit early, a drafter's work is not a model's passes, or a shape is unknown.
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
            # Seconds of a cycle's passes, each taken to have the mean size and the mean context.
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
    except ParameterError:  # a shape is unknown
        return {}
    return elsewhere
