"""Draft models, which draft a chain in one pass per token or one pass for all, and their methods' base."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..draft import Draft
from ..models.protocols import Pass
from ..rules.speculative import reach
from .base import Drafting, Method, Request, Session, Unsent, Verdict
from .sampling import DRAFT, draw, exact_type
from .signals import confidence, likeliest_token


class DraftModelMethod(Method):
    """Base class of methods with a draft model."""

    needs_draft = True

    def start(self, session: Session) -> None:
        self.session = session
        self.drafter = drafter_of(session)

    def learn(self, draft: Draft, result: Pass | None, verdict: Verdict) -> None:
        self.drafter.follow(len(verdict.path), verdict.token)


def drafter_of(session: Session) -> DraftModel:
    """Wrap the session's draft model, which writes token by token or fills slots."""
    return SlotDraft(session) if session.drafter.kind == "slots" else DraftModel(session)


class DraftModel:
    """The drafter with its own context, kept in step with the committed text.

    Parameters
    ----------
    session : Session
        The prompt, the sampling and the draft model.
    """

    source = "model"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.unsent: Unsent | None = None  # the token before which the last chain stopped
        self.length = len(session.prompt)  # committed tokens
        self.full = self.length + session.drafter.left(self.length)  # maximum length of a text
        room = min(session.limit, self.full - self.length)
        self.context = session.open(session.drafter, session.prompt, room, "draft")
        self.context.prefill()

    def reach(self, most: int, left: int) -> tuple[int, str]:
        """How many tokens to draft, at most `most` and `left`, and the reason: ``length`` or ``room``."""
        return reach(most, left, self.full - self.length)

    def chain(
        self, n: int, stop: str, goes_on: Callable[[float], bool] | None = None, reason: str = "unsure",
        q_signal: bool = False,
    ) -> Drafting:  # fmt: skip
        """Draft n tokens with the target's sampling settings, without reading them on the host.

        Leviathan et al. 2023, Algorithm 1, lines 1-5: q_i from the small model, x_i from q_i.

        With `goes_on` the host reads each token: drafting stops, for `reason`, before a token whose largest
        probability the rule refuses, and after an end token. The refused token is left in `unsent`. The rule
        sees the distribution before the draw: if the value of x_i decided, the output's law would change.

        With `q_signal` the draft keeps only its tokens' own probabilities, as the signal ``q``.
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
            q = None
            if u is None:
                token = likeliest_token(row)
            else:
                q = self.session.sampling.probabilities(row)
                token = draw(q, float(u[i])).view(1)
                q = q.take(token) if q_signal else q
            choice = None
            if goes_on is not None:
                p, choice = pair(confidence(row), token[0])
                if not goes_on(p):
                    signals = {"met": np.zeros(1, bool)} | ({"q": q} if q_signal and q is not None else {})
                    self.unsent = Unsent([choice], [i - 1], logits=[row], signals=signals, source=self.source)
                    stop = reason
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
        signals = {"met": np.ones(len(tokens), bool)} if goes_on is not None else {}
        q_all = None
        if chosen and q_signal:
            signals["q"] = torch.cat(chosen)
        elif chosen:
            q_all = torch.stack(chosen)
        return Draft.chain(
            torch.cat(tokens), q=q_all, logits=scores, signals=signals, source=self.source, stop=stop
        )

    def block(self, n: int) -> Generator[Request, Pass, tuple[Tensor, Tensor]]:
        """Draft n tokens greedily; return them [n] and their logits [n, vocabulary], on the device."""
        tokens: list[Tensor] = []
        rows: list[Tensor] = []
        for _ in range(n):
            row = yield from self.predict()
            tokens.append(likeliest_token(row))
            rows.append(row)
            self.context.extend(tokens[-1])
        return torch.cat(tokens), torch.stack(rows)

    def predict(self) -> Generator[Request, Pass, Tensor]:
        """The drafter's logits after the committed text and the drafted tokens, [vocabulary].

        Yielding the context requests the pass: the loop runs it, for all rows of a batch at once.
        """
        result = yield self.context
        return self.as_target(result.logits[0][0])

    def as_target(self, rows: Tensor) -> Tensor:
        """Pad the drafter's logits to the target's head: heads of one tokenizer may be padded differently."""
        missing = self.session.target.vocabulary - rows.shape[-1]
        return F.pad(rows, (0, missing), value=-torch.inf) if missing else rows

    @property
    def device(self) -> Any:
        return self.session.drafter.device

    def follow(self, kept: int, token: int | None) -> None:
        """Keep the first `kept` drafted tokens, already computed, and append the target's own token."""
        self.length += kept
        if token is not None and token >= self.session.drafter.vocabulary:
            self.full = self.length  # an id beyond the drafter's head, which it cannot read
        if self.length < self.full:  # otherwise its context is full, and drafting ends
            self.context.rewind(self.length)
            if token is not None:
                self.context.extend([[token]])
        self.length += token is not None


class SlotDraft(DraftModel):
    """A parallel drafter (`specviz.models.slots`): one pass predicts all places of a block independently.

    A prediction does not depend on the earlier tokens of the block, so the tokens can be chosen afterwards by
    any rule: greedily, or each drawn from its own distribution, against which it is then tested. The pass
    reads the committed tokens that it has not yet read, and the slots.
    """

    source = "slots"

    def reach(self, most: int, left: int) -> tuple[int, str]:
        """As `DraftModel.reach`; the next `predict` fills this many slots."""
        self.slots_wanted, stop = super().reach(most, left)
        self.rows: Tensor | None = None
        self.slots_used = 0
        return self.slots_wanted, stop

    def block(self, n: int) -> Generator[Request, Pass, tuple[Tensor, Tensor]]:
        """As `DraftModel.block`, in one pass."""
        rows = yield from self.fill(n)
        tokens = rows.argmax(-1)
        self.context.extend(tokens)  # not computed: the next pass reads the kept tokens as text
        return tokens, rows

    def predict(self) -> Generator[Request, Pass, Tensor]:
        """The next slot's logits, [vocabulary]; the first call fills all slots that `reach` allowed."""
        if self.rows is None:
            self.rows = yield from self.fill(self.slots_wanted)
        self.slots_used += 1
        return self.rows[self.slots_used - 1]

    def fill(self, n: int) -> Generator[Request, Pass, Tensor]:
        """Logits of n slots after the committed text, [n, vocabulary]."""
        result = yield self.context, Draft.chain(self.session.drafter.slots[:n])
        # Row 0 is at the last committed token, where the drafter was not trained to predict.
        return self.as_target(result.logits[0][1:])


def pair(sure: Tensor, token: Tensor) -> tuple[float, int]:
    """Copy two numbers from the device in one synchronisation."""
    wide = exact_type(sure.device)
    p, choice = torch.stack([sure.to(wide), token.to(wide)]).tolist()
    return p, int(choice)
