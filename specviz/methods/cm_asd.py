"""CM-ASD: the drafter's confidence sets the draft length and how strictly the draft is judged.

Sen, Dasgupta and Waghela 2025, "Confidence-Modulated Speculative Decoding for Large Language Models", section
III and Algorithm 1. The paper contradicts itself in three places; each reading is a value of a parameter:
`entropy` (what counts as confidence), `gap` (in which direction uncertainty moves the threshold), and
`controller` (the window needs the confidences of tokens that an autoregressive drafter must already have
written). It gives no values for α, γ, λ, k_min, k_max and β, and 0.1 as an example of τ_base: the defaults
are ours. Lossy by design.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..draft import Draft
from ..errors import ParameterError
from ..models.devices import send
from ..rules import gap as rules
from ..rules.gap import CM_ASD, WEIGHTS
from ..rules.parameters import Value
from ..schema import Signal
from .base import Drafting, Signals, Unsent, Verdict
from .draft_model import DraftModelMethod, pair
from .gap import verify_gap
from .sampling import Sampling, exact_type
from .signals import ensemble


class CMASD(DraftModelMethod):
    """A more confident drafter gets a longer window; confidence also sets how strictly its tokens are
    judged."""

    name = "cm_asd"
    title = "CM-ASD"
    paper = "Sen et al. 2025"
    parameters = CM_ASD
    signals = (
        Signal(
            "window",
            "tokens",
            "Number of tokens that the controller asks for, k_j; fewer are sent where no more were drafted.",
            "cycle",
        ),
        Signal("confidence", "", "Mean C_t of the drafted tokens, which determines the window.", "cycle"),
    )
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    for i = 1 .. k_max:"),
        ("draft", "        q_i = draft(text + x_1 .. x_i-1);  x_i = argmax q_i"),
        ("draft", "        C_i = λ1 entropy + λ2 logit margin + λ3 softmax margin, of q_i"),
        ("draft:eos", "        after an end token: nothing more to send"),
        ("draft", "    k = clip(⌊α · mean(C) · k_max⌋, k_min, k_max)"),
        ("draft:window", "    send x_1 .. x_k; later tokens are not sent"),
        ("forward", "    p_1 .. p_k+1 = target(text + x_1 .. x_k)"),
        ("verify", "    for i = 1 .. k, until one fails:"),
        ("verify", "        τ_i = τ_base + γ (1 − C_i), or as described: τ_base + γ C_i"),
        (
            "verify:accepted",
            "        accept x_i if log max p_i − log p_i(x_i) ≤ τ_i, and x_i is in p_i's top β",
        ),
        ("verify:rejected", "        else halt; later tokens are not judged"),
        ("commit:correction", "    if x_n failed:        y = argmax p_n"),
        ("commit:bonus", "    if all were accepted: y = argmax p_k+1, a bonus"),
        ("commit", "    text = text + accepted + [y]; forget the other rows"),
    )
    exact = {"tau_base": 0.0, "gamma": 0.0, "top_beta": 1}  # noqa: RUF012
    only_greedy = True
    takes_ties = True
    block_length_param = "k_max"
    k_max: int
    k_min: int
    alpha: float
    tau_base: float
    gamma: float
    top_beta: int
    w_entropy: float
    w_margin: float
    w_softmax: float
    w_variance: float
    margin_scale: float
    entropy: str
    gap: str
    adaptive_drafting: bool
    adaptive_verification: bool
    controller: str

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        self.weights = tuple(getattr(self, name) for name in WEIGHTS)
        if words := rules.problem(self.values):
            raise ParameterError(words)

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        strict = rules.lossless(self.top_beta, self.tau_base, self.gamma, self.adaptive_verification)
        return "exact up to ties" if strict else "lossy"

    def draft(self, left: int) -> Drafting:
        """Algorithm 1, lines 3-12."""
        self.unsent: Unsent | None = None
        n, stop = self.drafter.reach(self.k_max, left - 1)
        self.session.control |= {"window": 0.0, "confidence": math.nan}
        if n == 0:
            return Draft.empty(stop)
        if self.controller == "early_stop" and self.adaptive_drafting:
            return (yield from self.one_by_one(n, stop))
        tokens, rows = yield from self.drafter.block(n)
        scores = self.confidence(rows)
        seen = None
        if self.adaptive_drafting:  # the window needs the values on the host
            drafted, sure = torch.stack([tokens.to(exact_type(rows.device)), scores]).tolist()
            seen = [int(token) for token in drafted], sure
        return self.sent(tokens, rows, scores, seen, n, stop)

    def one_by_one(self, n: int, stop: str) -> Drafting:
        """The early-stopping controller: average the tokens drafted so far instead of k_max tokens.

        Token i is sent if the window from the first i confidences, its own included, holds at least i tokens;
        if it holds exactly i, drafting ends there. So at most one drafted token is wasted, and the tokens
        sent are those that the look-ahead controller would send of the drafted ones.
        """
        tokens: list[int] = []
        sure: list[float] = []
        rows: list[Tensor] = []
        scores: list[Tensor] = []
        for i in range(1, n + 1):
            row = yield from self.drafter.predict()
            scores.append(self.confidence(row))
            c, token = pair(scores[-1], row.argmax())
            tokens.append(token)
            sure.append(c)
            rows.append(row)
            k = self.window(sum(sure) / i)
            if k < i:
                break
            self.drafter.context.extend([[token]])
            if k == i or token in self.session.eos:
                break
        drafted = send(tokens, self.drafter.device, torch.long)
        return self.sent(drafted, torch.stack(rows), torch.stack(scores), (tokens, sure), n, stop)

    def confidence(self, logits: Tensor) -> Tensor:
        """Confidence C of each row (lines 6-9), [...] from [..., vocabulary]."""
        return ensemble(logits, self.weights, self.margin_scale, self.entropy == "complement")

    def sent(
        self, tokens: Tensor, rows: Tensor, scores: Tensor, seen: tuple[list[int], list[float]] | None,
        most: int, stop: str,
    ) -> Draft:  # fmt: skip
        """Lines 10-12: make a draft of the tokens that go to the target; the others become `unsent`.

        Parameters
        ----------
        tokens : tensor [n]
        rows : tensor [n, vocabulary]
            The drafter's logits, from n passes or from one.
        scores : tensor [n]
            Confidence C of each token.
        seen : (tokens, scores) or None
            Tokens and confidences on the host; None if the window is fixed.
        most : int
            Maximum number of tokens that could be drafted; `stop` is the reason for this limit.
        """
        n = k = len(tokens)
        if seen is None:
            self.session.control |= {"window": self.k_max}
        else:
            drafted, confidences = seen
            end = next((i for i, token in enumerate(drafted, 1) if token in self.session.eos), n)
            mean = sum(confidences[:end]) / end
            window = self.window(mean)
            k, stop = rules.sent(drafted[:end], window, self.session.eos, most, stop)
            self.session.control |= {"window": window, "confidence": mean}
            if k < n:
                after: Signals = {"score": scores[k:], "met": np.zeros(n - k, bool)}
                parents = list(range(k - 1, n - 1))
                self.unsent = Unsent(
                    drafted[k:], parents, logits=list(rows[k:]), signals=after, source=self.drafter.source
                )
        signals = {"score": scores[:k], "threshold": self.threshold(scores[:k]), "met": np.ones(k, bool)}
        source = self.drafter.source
        return Draft.chain(tokens[:k], logits=rows[:k], signals=signals, source=source, stop=stop)

    def window(self, mean: float) -> int:
        """k_j = min(k_max, max(k_min, ⌊α C̄ k_max⌋)), section III (b)."""
        return rules.window(mean, self.values)

    def threshold(self, scores: Tensor) -> Tensor:
        """τ_t of each node (line 16), in nats, float32 [n]."""
        return rules.threshold(scores, self.values)

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Lines 13-20."""
        assert scores is not None
        verdict = verify_gap(draft, scores, draft.signals.get("threshold", self.tau_base), self.top_beta)
        verdict.unsent = self.unsent
        return verdict
