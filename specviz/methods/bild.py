"""BiLD, the Big Little Decoder: Kim et al. 2023, "Speculative Decoding with Big Little Decoder".

Section 3.3 (fallback), section 3.4 and equation 3 (rollback), Algorithm 1. The aligned small model of
section 3.5.1 is an ordinary draft model. Lossy by design.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from ..draft import Draft
from ..models.devices import send
from ..rules.bild import BILD, goes_on, guarantee, rolls_back
from ..rules.parameters import Parameter
from ..rules.speculative import chain_status
from .base import Drafting, Verdict
from .draft_model import DraftModelMethod
from .sampling import FINAL, Sampling, draw


class BiLD(DraftModelMethod):
    """A small model writes until it is uncertain; the large one writes the next token and rolls back unlikely
    ones."""

    name = "bild"
    title = "BiLD"
    paper = "Kim et al. 2023"
    parameters: ClassVar[tuple[Parameter, ...]] = BILD
    pseudocode: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "repeat until the text ends:"),
        ("draft", "    while the small model is confident:"),
        ("draft", "        q = small(text + x_1 .. x_i-1);  x_i = argmax q"),
        ("draft:fallback", "        if max q ≤ α_FB: fall back, x_i is not drafted"),
        ("draft:length", "        at the cap: hand over as well"),
        ("draft:eos", "        if x_i ends the text: stop without the large model"),
        ("forward", "    p_1 .. p_n+1 = large(text + x_1 .. x_n)"),
        ("verify", "    for i = 1 .. n, until one fails:"),
        ("verify:accepted", "        keep x_i if −ln p_i(x_i) ≤ α_RB"),
        ("verify:rejected", "        else roll back: drop x_i and everything after it"),
        ("commit:correction", "    after a rollback: the large model's own token in its place"),
        ("commit:fallback", "    after a fallback: the large model's own token comes next"),
        ("commit", "    text = text + kept + that token"),
    )
    exact = {"rollback": 0.0, "cap": 2, "review_end": True}  # noqa: RUF012
    block_length_param = "cap"
    fallback: float
    rollback: float
    cap: int
    review_end: bool

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return guarantee(self.fallback, self.rollback, self.review_end and sampling.greedy)

    def draft(self, left: int) -> Drafting:
        """Algorithm 1, lines 3-6, until line 7 or the cap (appendix 7.1.2: 10 tokens)."""
        # Without a review of the end, the small model may write the last token itself.
        n, stop = self.drafter.reach(self.cap, left - self.review_end)
        draft = yield from self.drafter.chain(
            n, stop, lambda p: bool(goes_on(p, self.fallback)), "fallback", q_signal=True
        )
        self.unsent = self.drafter.unsent
        ended = draft.stop == "eos" or len(draft) == left
        return replace(draft, read=self.review_end or not ended)

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Algorithm 1, lines 9-16."""
        n = len(draft)
        if scores is None:  # line 2: the small model ended the text, and the large one verified nothing
            return Verdict(list(range(n)), draft.tokens.tolist(), None, "", ["unreviewed"] * n)
        sampling = self.session.sampling
        drafted = send(draft.tokens, scores.device)
        back = rolls_back(distances(scores, drafted), self.rollback)  # line 10
        kept = (~back).long().cumprod(0).sum()
        row = scores[kept.view(1)][0]  # indexing with a 0-d tensor would synchronise with the host
        if sampling.greedy:  # lines 13 and 16: sample(p_L[m]), here the argmax
            u, p, token = None, None, row.argmax()
        else:
            u = float(self.session.uniforms(FINAL, 1)[0])
            p = sampling.probabilities(row)
            token = draw(p, u)
        k, t, *tokens = torch.cat([kept[None], token[None], drafted]).tolist()  # the synchronisation
        origin = "correction" if k < n else "fallback"  # reaching the cap also hands over to the large model
        if n == 0 and draft.stop != "fallback":  # nothing could be drafted, so no policy applied
            origin = "plain"
        return Verdict(
            list(range(k)), tokens, t, origin, chain_status(n, k), token_u=u,
            token_p=None if p is None else p[t], unsent=self.unsent,
        )  # fmt: skip


def distances(scores: Tensor, tokens: Tensor) -> Tensor:
    """Equation 3 with section 4.1's metric: -log p_L(y_m), in nats, [n].

    It is the cross-entropy between the small model's hard label and the large model's soft one.
    `scores` [1 + n, vocabulary]: row m is the large model's prediction at the position of node m.
    """
    return torch.nn.functional.cross_entropy(scores[: len(tokens)], tokens, reduction="none")
