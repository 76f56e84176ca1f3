"""BiLD, the Big Little Decoder: Kim et al. 2023, "Speculative Decoding with Big Little Decoder".

Section 3.3 (fallback), section 3.4 and equation 3 (rollback), Algorithm 1. The aligned small model of
section 3.5.1 is just another draft model. Lossy by design.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..draft import Draft
from ..sampling import DRAFT, FINAL, Sampling, draw
from ..signals import confidence
from .base import Method, Parameter, Session, Verdict
from .draft_model import DraftModel


class BiLD(Method):
    """A small model writes until it is unsure; the large one writes there, and takes back what it finds unlikely."""

    name = "bild"
    title = "BiLD"
    paper = "Kim et al. 2023"
    parameters = (
        Parameter(
            "fallback", 0.5, 0, 1, "probability",
            "The small model goes on while its largest probability is above this.", "α_FB",
        ),
        Parameter(
            "rollback", 2.0, 0, None, "nats",
            "A token is taken back when the large model's -log p of it is above this.", "α_RB",
        ),
        Parameter("cap", 10, 1, 64, "tokens", "Most tokens that the small model writes before the large one looks."),
        Parameter(
            "review_end", True,
            meaning="Whether the large model also looks at a block in which the small model ended the text; "
            "Algorithm 1 (line 2) stops without.",
        ),
    )  # fmt: skip
    needs_draft = True
    fallback: float
    rollback: float
    cap: int
    review_end: bool

    def exactness(self, sampling: Sampling, dtype: str) -> str:
        if self.fallback == 1:  # no probability is above 1: every token is the large model's
            return "exact"
        if self.rollback == 0 and self.review_end and sampling.greedy:
            return "exact up to ties"  # only a token of probability 1, the argmax, survives the review
        return "lossy"

    def start(self, session: Session) -> None:
        self.session = session
        self.drafter = DraftModel(session)

    def draft(self, left: int) -> Draft:
        """Algorithm 1, lines 3-6, until line 7 or the cap (appendix 7.1.2: 10 tokens)."""
        # Without a review of the end, the small model may write the last token itself.
        most = left - 1 if self.review_end else left
        n = self.drafter.room(min(self.cap, most))
        if n <= 0:
            return Draft.empty("length" if most <= 0 else "room")
        sampling, tail = self.session.sampling, self.drafter
        u = None if sampling.greedy else self.session.uniforms(DRAFT, n)
        tokens: list[int] = []
        scores: list[Tensor] = []
        drawn: list[Tensor] = []
        stop = "length"
        for i in range(n):
            row = tail.predict()  # line 3
            q = None if u is None else sampling.probabilities(row)
            token = row.argmax() if q is None else draw(q, float(u[i]))
            sure, choice = torch.stack(
                [confidence(row).double(), token.double()]
            ).tolist()  # a synchronisation
            if not goes_on(sure, self.fallback):  # line 7: this token is the large model's to choose
                stop = "fallback"
                break
            tokens.append(int(choice))  # line 6
            scores.append(row)
            if q is not None:
                drawn.append(q[token])
            tail.context.extend(token.view(1))
            if tokens[-1] in self.session.eos:  # line 2
                stop = "eos"
                break
        ended = stop == "eos" or len(tokens) == left
        return Draft.chain(
            torch.tensor(tokens, dtype=torch.long, device=tail.device),
            judge=None if self.review_end or not ended else [False] * len(tokens),
            logits=scores,
            signals={"q": torch.stack(drawn)} if drawn else {},
            stop=stop,
        )

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Algorithm 1, lines 9-16."""
        n = len(draft)
        q = draft.signals.get("q")
        if scores is None:  # line 2: the text ended without the large model
            return Verdict(list(range(n)), draft.tokens.tolist(), None, "draft", ["accepted"] * n, q=q)
        sampling = self.session.sampling
        drafted = torch.as_tensor(draft.tokens, device=scores.device)
        far = distances(scores, drafted) > self.rollback  # line 10, equation 3
        kept = (~far).long().cumprod(0).sum()
        if sampling.greedy:  # lines 13 and 16: sample(p_L[m]), here the argmax
            u, p, token = None, None, scores[kept].argmax()
        else:
            u = float(self.session.uniforms(FINAL, 1)[0])
            p = sampling.probabilities(scores[kept])
            token = draw(p, u)
        k, t, *tokens = torch.cat([kept[None], token[None], drafted]).tolist()  # the synchronisation
        status = (["accepted"] * k + ["rejected"] + ["unjudged"] * n)[:n]
        origin = "correction" if k < n else "fallback"  # the cap, too, hands over to the large model
        if n == 0 and draft.stop != "fallback":  # nothing could be drafted: no policy spoke
            origin = "plain"
        return Verdict(
            list(range(k)), tokens, t, origin, status, q=q, token_u=u, token_p=None if p is None else p[t]
        )

    def learn(self, draft: Draft, result: Any, verdict: Verdict) -> None:
        self.drafter.follow(len(verdict.path), verdict.token)


def goes_on(sure: float, fallback: float) -> bool:
    """Line 4: max p_S > α_FB. At equality it falls back, though section 3.3's rule (<) would go on."""
    return sure > fallback


def distances(scores: Tensor, tokens: Tensor) -> Tensor:
    """Equation 3 with section 4.1's metric: -log p_L(y_m), the small model's hard label under the large one, [n].

    `scores` [1 + n, vocabulary]: row m is what the large model predicts in the place of node m.
    """
    return torch.nn.functional.cross_entropy(scores[: len(tokens)], tokens, reduction="none")
