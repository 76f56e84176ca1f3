"""A paper's claims, compared with measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specviz.measure.report import Bar, Estimate


@dataclass(frozen=True)
class Claim:
    """A paper's claim, and the value measured in one place.

    Parameters
    ----------
    name, where : str
    value, limit, kind
        As in `Bar`.
    shown : Estimate, optional
        The estimate that `value` is an end of.
    """

    name: str
    where: str
    value: float
    limit: float = 0.0
    kind: str = "more than"
    shown: Estimate | None = None

    @property
    def slack(self) -> float:
        """Margin by which the claim holds; negative if it is missed."""
        by = self.limit - self.value if self.kind == "at most" else self.value - self.limit
        return by if by == by else -float("inf")


def bars_of(claims: Sequence[Claim]) -> list[Bar]:
    """One bar per claim: the place where it has the smallest margin."""
    names: dict[str, list[Claim]] = {}
    for claim in claims:
        names.setdefault(claim.name, []).append(claim)
    bars = []
    for name, those in names.items():
        least = min(those, key=lambda claim: claim.slack)
        missed = list(dict.fromkeys(c.where for c in those if not Bar(name, c.value, c.limit, c.kind).held))
        words = f"{name} ({least.where}" + (f" {least.shown}" if least.shown else "")
        words += f", of {len(those)} the least clear)" if len(those) > 1 else ")"
        words += f", missed in {'; '.join(missed)}" if len(missed) > 1 else ""
        bars.append(Bar(words, least.value, least.limit, least.kind))
    return bars
