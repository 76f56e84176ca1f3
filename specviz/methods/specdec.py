"""SpecDec: drafts of a fixed length; tokens are accepted if they are nearly as likely as the target's own.

Xia et al. 2023, "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation".
The paper's drafter fills all positions in one pass; here the drafter may be of this kind or any draft model.
Lossy by design.
"""

from __future__ import annotations

from torch import Tensor

from ..draft import Draft
from ..rules.gap import SPECDEC, lossless
from .base import Drafting, Verdict
from .draft_model import DraftModelMethod
from .gap import verify_gap
from .kinds import SizedMethod
from .sampling import Sampling


class SpecDec(SizedMethod, DraftModelMethod):
    """The draft model writes k tokens; the target keeps those that are nearly as likely as its own."""

    name = "specdec"
    title = "SpecDec"
    paper = "Xia et al. 2023"
    parameters = SPECDEC
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    for i = 1 .. k:"),
        ("draft", "        x_i = argmax draft(text + x_1 .. x_i-1)"),
        ("forward", "    p_1 .. p_k+1 = target(text + x_1 .. x_k)"),
        ("verify", "    for i = 1 .. k, until one fails:"),
        (
            "verify:accepted",
            "        accept x_i if log max p_i − log p_i(x_i) ≤ τ, and x_i is in p_i's top β",
        ),
        ("verify:rejected", "        else stop; later tokens are not judged"),
        ("commit:correction", "    if x_n failed:        y = argmax p_n"),
        ("commit:bonus", "    if all were accepted: y = argmax p_k+1, a bonus"),
        ("commit", "    text = text + accepted + [y]; forget the other rows"),
    )
    exact = {"top_beta": 1}  # noqa: RUF012
    only_greedy = True
    takes_ties = True
    block_length_param = size = "draft_length"
    draft_length: int
    top_beta: int
    tau_base: float

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact up to ties" if lossless(self.top_beta, self.tau_base) else "lossy"

    def draft(self, left: int) -> Drafting:
        n, stop = self.drafter.reach(self.draft_length, left - 1)
        if n == 0:
            return Draft.empty(stop)
        tokens, rows = yield from self.drafter.block(n)
        signals = {"threshold": rows.new_full((n,), self.tau_base)}
        return Draft.chain(tokens, logits=rows, signals=signals, source=self.drafter.source, stop=stop)

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        return verify_gap(draft, scores, self.tau_base, self.top_beta)
