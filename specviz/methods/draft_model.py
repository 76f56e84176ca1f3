"""A small model that drafts a chain, one token a pass; what draft-model methods share."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..draft import Draft
from ..sampling import DRAFT, draw, exact_type
from ..signals import confidence
from .base import Session, Unsent


class DraftModel:
    """The drafter's context beside the target's, kept in step with the committed text.

    Parameters
    ----------
    session : Session
        The prompt, the sampling and the draft model.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.unsent: Unsent | None = None  # what the last chain stopped before
        self.length = len(session.prompt)  # committed tokens
        self.full = self.length + session.drafter.left(self.length)  # as long as a text may get
        room = min(session.limit, self.full - self.length)
        self.context = session.open(session.drafter, session.prompt, room, "draft")
        self.context.prefill()

    def reach(self, most: int, left: int) -> tuple[int, str]:
        """How many of `most` tokens to draft, when `left` may be, and why no more: ``length`` or ``room``."""
        # The whole block must fit into the drafter's own context when it is accepted.
        n = max(0, min(most, left, self.full - self.length))
        return n, "length" if n == most else "room"

    def chain(self, n: int, stop: str, least: float = 0.0) -> Generator[Any, Any, Draft]:
        """n tokens, drawn as the target draws (same temperature, top-k and top-p), without looking at them.

        Leviathan et al. 2023, Algorithm 1, lines 1-5: q_i from the small model, x_i from q_i.

        With `least` above 0 it does look: it stops before a token where its largest probability is below
        that, and behind an end token. What it was unsure of is left in `unsent`. The look is at the
        distribution before the draw: were x_i dropped for what it is, the law of the output would change.
        """
        self.unsent = None
        if n == 0:
            return Draft.empty(stop)
        greedy = self.session.sampling.greedy
        u = None if greedy else self.session.uniforms(DRAFT, n)
        tokens: list[Tensor] = []
        scores: list[Tensor] = []
        chosen: list[Tensor] = []
        for i in range(n):
            row = yield from self.predict()
            if u is None:
                q, token = None, row.argmax(-1, keepdim=True)
            else:
                q = self.session.sampling.probabilities(row)
                token = draw(q, float(u[i])).view(1)
            choice = None
            if least:
                sure, choice = pair(confidence(row), token[0])
                if sure < least:
                    unsure = {"met": np.zeros(1, bool)}
                    self.unsent = Unsent([choice], [i - 1], logits=[row], signals=unsure)
                    stop = "unsure"
                    break
            tokens.append(token)
            scores.append(row)
            if q is not None:
                chosen.append(q)
            self.context.extend(token)
            if choice in self.session.eos:
                stop = "eos"
                break
        if not tokens:
            return Draft.empty(stop)
        q_all = torch.stack(chosen) if chosen else None
        signals = {"met": np.ones(len(tokens), bool)} if least else {}
        return Draft.chain(torch.cat(tokens), q=q_all, logits=scores, signals=signals, stop=stop)

    def block(self, n: int) -> Generator[Any, Any, tuple[Tensor, Tensor]]:
        """n greedy tokens [n] and the logits that they were chosen from [n, vocabulary], without a look.

        A drafter that fills n places in one pass has this face, too.
        """
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        for _ in range(n):
            row = yield from self.predict()
            tokens.append(row.argmax(-1, keepdim=True))
            rows.append(row)
            self.context.extend(tokens[-1])
        return torch.cat(tokens), torch.stack(rows)

    def predict(self) -> Generator[Any, Any, Tensor]:
        """The drafter's logits after the committed text and what it drafted, [vocabulary].

        The pass is asked for by yielding the context: the loop runs it, for all rows of a batch at once.
        """
        result = yield self.context
        return result.logits[0][0]

    @property
    def device(self) -> Any:
        return self.session.drafter.device

    def follow(self, kept: int, token: int | None) -> None:
        """Keep the first `kept` drafted tokens, which it has computed; then the target's own token."""
        self.length += kept
        if self.length < self.full:  # else its context is full: it drafts no more
            self.context.rewind(self.length)
            if token is not None:
                self.context.extend([[token]])
        self.length += token is not None


def pair(sure: Tensor, token: Tensor) -> tuple[float, int]:
    """Two numbers from the device in one synchronisation."""
    wide = exact_type(sure.device)
    p, choice = torch.stack([sure.to(wide), token.to(wide)]).tolist()
    return p, int(choice)
