"""The oracle of BiLD's Figure 2: the large model checks every token and replaces the unlikely ones.

Kim et al. 2023, section 3.1. It shows how few replacements keep the large model's quality. Both models run
for every token, so no time is saved: it is a measurement. Lossy by design.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..draft import Draft
from ..models.devices import send
from ..schema import Signal
from .base import Drafting, Parameter, Session, Verdict
from .draft_model import DraftModelMethod
from .sampling import Sampling


class Oracle(DraftModelMethod):
    """The small model writes; where the large one finds a token unlikely, it replaces it with its own."""

    name = "oracle"
    title = "Oracle of BiLD's Figure 2"
    paper = "Kim et al. 2023"
    parameters = (
        Parameter(
            "least", 0.1, 0, 1, "probability",
            "The large model replaces a token to which it gives a probability below this.",
        ),
    )  # fmt: skip
    signals = (Signal("engaged", "", "Share of the text's tokens that the target wrote.", "cycle"),)
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    x = argmax small(text)"),
        ("forward", "    p = large(text)"),
        ("verify:accepted", "    if p(x) ≥ least: keep x"),
        ("verify:rejected", "    else the large model is engaged:"),
        ("commit:correction", "        y = argmax p replaces it"),
        ("commit", "    text = text + [x or y]"),
    )
    exact = {"least": 1.0}  # noqa: RUF012
    only_greedy = True
    least: float

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        # A token of probability 1 is the argmax, up to differences below rounding.
        return "exact up to ties" if self.least == 1 else "lossy"

    def start(self, session: Session) -> None:
        super().start(session)
        self.written = self.engaged = 0

    def draft(self, left: int) -> Drafting:
        n, stop = self.drafter.reach(1, left)
        if n == 0:
            return Draft.empty(stop)
        tokens, rows = yield from self.drafter.block(1)
        return Draft.chain(tokens, logits=rows, source=self.drafter.source, stop=stop)

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        n, row = len(draft), scores[0]
        drafted = send(draft.tokens, scores.device)
        kept = row.softmax(-1)[drafted] >= self.least
        token, *rest = torch.cat([row.argmax()[None], drafted, kept]).tolist()  # the synchronisation
        keep = bool(n and rest[1])
        self.written += 1
        self.engaged += not keep
        self.session.control["engaged"] = self.engaged / self.written  # Figure 2's axis, for the text so far
        if keep:
            return Verdict([0], rest[:1], None, "", ["accepted"])
        return Verdict([], rest[:n], token, "correction" if n else "plain", ["rejected"] * n)
