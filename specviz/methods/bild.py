"""BiLD, the Big Little Decoder: Kim et al. 2023, "Speculative Decoding with Big Little Decoder".

Section 3.3 (fallback), section 3.4 and equation 3 (rollback), Algorithm 1. The aligned small model of
section 3.5.1 is just another draft model. Lossy by design.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..devices import send
from ..draft import Draft
from .base import Method, Parameter, Session, Unsent, Verdict
from .draft_model import drafter_of, pair
from .sampling import DRAFT, FINAL, Sampling, draw
from .signals import confidence


class BiLD(Method):
    """A small model writes until it is unsure; the large one writes there and takes back what is unlikely."""

    name = "bild"
    title = "BiLD"
    paper = "Kim et al. 2023"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "fallback", 0.5, 0, 1, "probability",
            "The small model goes on while its largest probability is above this.", "α_FB",
        ),
        Parameter(
            "rollback", 2.0, 0, None, "nats",
            "A token is taken back when the large model's -log p of it is above this.", "α_RB",
        ),
        Parameter("cap", 10, 1, 64, "tokens", "Most tokens that the small model writes in a row."),
        Parameter(
            "review_end", False,
            meaning="Whether the large model also looks at a block in which the small model ended the text; "
            "Algorithm 1 (line 2) stops without.",
        ),
    )  # fmt: skip
    pseudocode: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "repeat until the text ends:"),
        ("draft", "    while the small model is sure:"),
        ("draft", "        q = small(text + x_1 .. x_i-1);  x_i = argmax q"),
        ("draft:fallback", "        if max q ≤ α_FB: fall back, x_i is not drafted"),
        ("draft:length", "        at the cap: hand over as well"),
        ("draft:eos", "        if x_i ends the text: stop without the large model"),
        ("forward", "    p_1 .. p_n+1 = large(text + x_1 .. x_n)"),
        ("verify", "    for i = 1 .. n, until one fails:"),
        ("verify:accepted", "        keep x_i if −ln p_i(x_i) ≤ α_RB"),
        ("verify:rejected", "        else roll back: drop x_i and all behind it"),
        ("commit:correction", "    after a rollback: the large model's own token in its place"),
        ("commit:fallback", "    after a fallback: the large model's own token comes next"),
        ("commit", "    text = text + kept + that token"),
    )
    exact = {"rollback": 0.0, "cap": 2, "review_end": True}  # noqa: RUF012
    needs_draft = True
    block_length_param = "cap"
    fallback: float
    rollback: float
    cap: int
    review_end: bool

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        if self.fallback == 1:  # no probability is above 1: every token is the large model's
            return "exact"
        if self.rollback == 0 and self.review_end and sampling.greedy:
            return "exact up to ties"  # only a token of probability 1, the argmax, survives the review
        return "lossy"

    def start(self, session: Session) -> None:
        self.session = session
        self.drafter = drafter_of(session)

    def draft(self, left: int) -> Generator[Any, Any, Draft]:
        """Algorithm 1, lines 3-6, until line 7 or the cap (appendix 7.1.2: 10 tokens)."""
        # Without a review of the end, the small model may write the last token itself.
        self.unsent: Unsent | None = None
        n, stop = self.drafter.reach(self.cap, left - self.review_end)
        if n == 0:
            return Draft.empty(stop)
        sampling, tail = self.session.sampling, self.drafter
        u = np.empty(0) if sampling.greedy else self.session.uniforms(DRAFT, n)
        tokens: list[int] = []
        scores: list[Tensor] = []
        drawn: list[Tensor] = []
        met = True
        for i in range(n):
            row = yield from tail.predict()  # line 3
            q = None if sampling.greedy else sampling.probabilities(row)
            token = row.argmax() if q is None else draw(q, float(u[i]))
            sure, choice = pair(confidence(row), token)
            met = goes_on(sure, self.fallback)
            tokens.append(choice)
            scores.append(row)
            if q is not None:
                drawn.append(q[choice])
            if not met:  # line 7: this token is the large model's to choose
                stop = "fallback"
                break
            tail.context.extend(token.view(1))  # line 6
            if choice in self.session.eos:  # line 2
                stop = "eos"
                break
        sent = len(tokens) - (not met)
        if not met:
            # The candidate is not drafted, but the record shows what the small model was unsure of.
            signals = {"met": np.zeros(1, bool)} | ({"q": drawn[-1][None]} if drawn else {})
            self.unsent = Unsent(
                tokens[sent:], [sent - 1], logits=scores[sent:], signals=signals, source=tail.source
            )
        ended = stop == "eos" or sent == left
        signals = {"met": np.ones(sent, bool)} | ({"q": torch.stack(drawn[:sent])} if drawn[:sent] else {})
        return Draft.chain(
            send(tokens[:sent], tail.device, torch.long),
            read=self.review_end or not ended,
            logits=scores[:sent],
            signals=signals,
            source=tail.source,
            stop=stop,
        )

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Algorithm 1, lines 9-16."""
        n = len(draft)
        if scores is None:  # line 2: the text ended without the large model, which accepted nothing of it
            return Verdict(list(range(n)), draft.tokens.tolist(), None, "", ["unreviewed"] * n)
        sampling = self.session.sampling
        drafted = send(draft.tokens, scores.device)
        far = distances(scores, drafted) > self.rollback  # line 10, equation 3
        kept = (~far).long().cumprod(0).sum()
        row = scores[kept.view(1)][0]  # an index that is a single number would be read by the host
        if sampling.greedy:  # lines 13 and 16: sample(p_L[m]), here the argmax
            u, p, token = None, None, row.argmax()
        else:
            u = float(self.session.uniforms(FINAL, 1)[0])
            p = sampling.probabilities(row)
            token = draw(p, u)
        k, t, *tokens = torch.cat([kept[None], token[None], drafted]).tolist()  # the synchronisation
        status = (["accepted"] * k + ["rejected"] + ["unjudged"] * n)[:n]
        origin = "correction" if k < n else "fallback"  # the cap, too, hands over to the large model
        if n == 0 and draft.stop != "fallback":  # nothing could be drafted: no policy spoke
            origin = "plain"
        drawn = None if p is None else p[t]
        return Verdict(
            list(range(k)), tokens, t, origin, status, token_u=u, token_p=drawn, unsent=self.unsent
        )

    def learn(self, draft: Draft, result: Any, verdict: Verdict) -> None:
        self.drafter.follow(len(verdict.path), verdict.token)


def goes_on(sure: float, fallback: float) -> bool:
    """Line 4: max p_S > α_FB. At equality it falls back, though section 3.3's rule (<) would go on."""
    return sure > fallback


def distances(scores: Tensor, tokens: Tensor) -> Tensor:
    """Equation 3 with section 4.1's metric: -log p_L(y_m), in nats, [n].

    It is the cross-entropy between the small model's hard label and the large model's soft one.
    `scores` [1 + n, vocabulary]: row m is what the large model predicts in the place of node m.
    """
    return torch.nn.functional.cross_entropy(scores[: len(tokens)], tokens, reduction="none")
