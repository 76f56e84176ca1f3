"""Optional hooks that the loop, the audit and the measurements call, with defaults that suit most methods.

A method overrides a hook only if its answer differs; `specviz.methods.base.Method` has the members that
methods usually define.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Self

from ..errors import ParameterError
from ..rules.parameters import Value

if TYPE_CHECKING:
    from pathlib import Path

    from ..models.protocols import ExitRule, Model

ADDITIONS = {  # drafters trained on top of one target, in words
    "heads": "heads on the target",
    "eagle": "an EAGLE drafter of the target",
}


ADDED = ("heads", "slots", "eagle", "trimmed")  # kinds of drafters that are not models by themselves


class Hooks:
    """Optional declarations and hooks, each with its default."""

    name: ClassVar[str] = ""
    exact: ClassVar[dict[str, Value]] = {}  # parameters that make a lossy method exact, for the audit
    law_check_params: ClassVar[dict[str, Value]] = {}  # parameters small enough to enumerate the sampling law
    files: ClassVar[tuple[str, ...]] = ()  # parameters that name a file tied to one vocabulary
    needs_draft: ClassVar[bool] = False
    drafts_with: ClassVar[str] = "model"  # the kind of drafter that it needs: model, heads or eagle
    block_length_param: ClassVar[str] = ""  # the parameter that sets the longest block the drafter predicts
    set_by_model: ClassVar[tuple[str, ...]] = ()  # parameters whose default the target can replace
    size: ClassVar[str] = ""  # the parameter that sets the number of drafted nodes: see `SizedMethod`
    trees: ClassVar[bool] = False  # whether its drafts branch
    canvas: ClassVar[bool] = False  # whether it writes masked canvases of a diffusion model, and only those
    streams: ClassVar[bool] = False  # whether it decodes sources that arrive in updates: `Retranslate`
    reads_prompt: ClassVar[bool] = False  # whether the prefill returns `hidden_layers` in `Session.states`
    exit_rule: ExitRule | None = None  # decides after each layer whether the target's pass ends there
    extra_cache_slots: int = 0  # slots for side branches, beyond the tokens that may still be emitted
    learned_top_k: int = 0  # successors that it learns from each row: record="all" keeps as many

    @property
    def memory(self) -> dict[str, Value] | None:
        """The memory of earlier texts: state (cold, warm), keep, known, bytes; None if it has none."""
        return None

    def save(self, path: str | Path, model: Model) -> Path:
        """Write the memory to a file; see `specviz.methods.memory`."""
        raise ParameterError(f"{self.name} keeps no memory between texts")

    def load(self, path: str | Path, model: Model) -> None:
        """Start from a saved memory."""
        raise ParameterError(f"{self.name} keeps no memory between texts")

    def like(self, other: Self) -> None:
        """Copy the memory of another method of the same kind."""

    def prepare(self, target: Model) -> None:
        """Prepare a run with this model; refuse a model that does not fit here, before any work."""

    @classmethod
    def suited(cls, drafters: Iterable[Model]) -> list[Model | None]:
        """Those of `drafters` that the method can draft with; [None] if it needs none."""
        if not cls.needs_draft:
            return [None]
        return [d for d in drafters if cls.drafts_with == (d.kind if d.kind in ADDITIONS else "model")]

    def drafter_of(self, target: Model) -> Model | None:
        """The part of the target that drafts, for methods without a draft model; None if there is none."""
        return None

    def hidden_layers(self, drafter: Model | None) -> tuple[int, ...]:
        """Layers of the target whose hidden states every pass returns, when it drafts with `drafter`."""
        return ()
