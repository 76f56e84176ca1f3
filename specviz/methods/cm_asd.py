"""CM-ASD: how far a draft goes, and how strictly it is judged, follow the drafter's confidence.

Sen, Dasgupta and Waghela 2025, "Confidence-Modulated Speculative Decoding for Large Language Models", section
III and Algorithm 1. The paper contradicts itself in three places; each reading is a value of a parameter:
`entropy` (what counts as confidence), `gap` (in which direction doubt moves the threshold), `controller` (the
window needs the confidences of tokens that an autoregressive drafter must have written already).
Lossy by design.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..devices import send
from ..draft import Draft
from ..errors import ParameterError
from ..schema import Signal
from .base import Method, Parameter, Session, Unsent, Verdict
from .draft_model import drafter_of, pair
from .gap import verify_gap
from .sampling import Sampling, exact_type
from .signals import ensemble
from .specdec import TOP_BETA

WEIGHTS = ("w_entropy", "w_margin", "w_softmax", "w_variance")
ROUNDING = 1e-5  # three thirds in five digits sum to less than 1


class CMASD(Method):
    """The surer the drafter, the longer its window; how strictly it is judged depends on that, too."""

    name = "cm_asd"
    title = "CM-ASD"
    paper = "Sen et al. 2025"
    # The paper gives no values of α, γ, λ, k_min, k_max and β, and 0.1 as an example of τ_base: the defaults
    # are ours.
    parameters = (
        Parameter("k_max", 10, 1, 64, "tokens", "Most tokens of a window; of a fixed one, all.", "k_max"),
        Parameter("k_min", 1, 1, 64, "tokens", "Fewest tokens of a window.", "k_min"),
        Parameter("alpha", 1.0, 0, 1, "share", "How much of the window the mean confidence may claim.", "α"),
        Parameter("tau_base", 0.1, 0, None, "nats", "The gap that is always allowed.", "τ_base"),
        Parameter("gamma", 0.5, 0, None, "nats", "How much confidence moves the allowed gap.", "γ"),
        TOP_BETA,
        Parameter("w_entropy", 1 / 3, 0, 1, "share", "Weight of the entropy's signal.", "λ_1"),
        Parameter("w_margin", 1 / 3, 0, 1, "share", "Weight of the logit margin's sigmoid.", "λ_2"),
        Parameter("w_softmax", 1 / 3, 0, 1, "share", "Weight of the softmax margin.", "λ_3"),
        Parameter("w_variance", 0.0, 0, 1, "share", "Weight of the logits' variance.", "λ_4"),
        Parameter("margin_scale", 1.0, 0, None, "1 / logit", "Sharpness of that sigmoid.", "β_m"),
        Parameter(
            "entropy", "complement", choices=("complement", "as_written"),
            meaning="complement: 1 − H / log |V|, which rises with confidence; as_written: H / log |V|.",
        ),
        Parameter(
            "gap", "as_written", choices=("as_written", "as_described"),
            meaning="as_written: τ = τ_base + γ (1 − C), wider in doubt; as_described: τ_base + γ C.",
        ),
        Parameter("adaptive_drafting", True, meaning="False: every window is k_max tokens."),
        Parameter("adaptive_verification", True, meaning="False: every threshold is τ_base."),
        Parameter(
            "controller", "look_ahead", choices=("look_ahead", "early_stop"),
            meaning="look_ahead: k_max tokens are drafted, the window's are sent; early_stop: drafting ends "
            "where the mean confidence so far justifies no further token.",
        ),
    )  # fmt: skip
    signals = (
        Signal("window", "tokens", "Tokens that the controller sends, k_j.", "cycle"),
        Signal("confidence", "", "Mean C_t of what was drafted, from which the window follows.", "cycle"),
    )
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    for i = 1 .. k_max:"),
        ("draft", "        q_i = draft(text + x_1 .. x_i-1);  x_i = argmax q_i"),
        ("draft", "        C_i = λ1 entropy + λ2 logit margin + λ3 softmax margin, of q_i"),
        ("draft:eos", "        behind an end token: nothing more to send"),
        ("draft", "    k = clip(⌊α · mean(C) · k_max⌋, k_min, k_max)"),
        ("draft:window", "    send x_1 .. x_k; what stands behind is not sent"),
        ("forward", "    p_1 .. p_k+1 = target(text + x_1 .. x_k)"),
        ("verify", "    for i = 1 .. k, until one fails:"),
        ("verify", "        τ_i = τ_base + γ (1 − C_i), or as described: τ_base + γ C_i"),
        (
            "verify:accepted",
            "        accept x_i if log max p_i − log p_i(x_i) ≤ τ_i, and x_i is in p_i's top β",
        ),
        ("verify:rejected", "        else halt; what stands behind is not judged"),
        ("commit:correction", "    if x_n failed:        y = argmax p_n"),
        ("commit:bonus", "    if all were accepted: y = argmax p_k+1, a bonus"),
        ("commit", "    text = text + accepted + [y]; forget the other rows"),
    )
    exact = {"tau_base": 0.0, "gamma": 0.0, "top_beta": 1}  # noqa: RUF012
    needs_draft = True
    only_greedy = True
    guessed = "k_max"
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

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.weights = tuple(getattr(self, name) for name in WEIGHTS)
        if abs(sum(self.weights) - 1) > ROUNDING:
            terms = " + ".join(f"{name} {w:.4g}" for name, w in zip(WEIGHTS, self.weights) if w)
            raise ParameterError(
                f"the weights of the signals must sum to 1, but {terms or 'all'} = {sum(self.weights):.6g}: "
                f"set {', '.join(WEIGHTS)} together"
            )
        if self.k_min > self.k_max:
            raise ParameterError(f"k_min must be at most k_max, got {self.k_min} and {self.k_max}")

    def exactness(self, sampling: Sampling, dtype: str) -> str:
        # Rank 0 and a gap of 0 are the same, as likely as the likeliest: one of the limits is enough.
        no_gap = self.tau_base == 0 and (self.gamma == 0 or not self.adaptive_verification)
        return "exact up to ties" if sampling.greedy and (no_gap or self.top_beta == 1) else "lossy"

    def start(self, session: Session) -> None:
        self.session = session
        self.drafter = drafter_of(session)

    def draft(self, left: int) -> Generator[Any, Any, Draft]:
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
        if self.adaptive_drafting:  # the window needs a look
            drafted, sure = torch.stack([tokens.to(exact_type(rows.device)), scores]).tolist()
            seen = [int(token) for token in drafted], sure
        return self.sent(tokens, rows, scores, seen, n, stop)

    def one_by_one(self, n: int, stop: str) -> Generator[Any, Any, Draft]:
        """The early-stopping controller: the mean over what is drafted stands for the one over k_max tokens.

        Token i is sent if the window of the first i confidences, its own among them, has room for i tokens;
        if it has room for no more, drafting ends with it. So at most one token is drafted in vain, and of the
        drafted ones those are sent that the look-ahead controller would send.
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
        """C of each row (lines 6-9), [...] from [..., vocabulary]."""
        return ensemble(logits, self.weights, self.margin_scale, self.entropy == "complement")

    def sent(
        self,
        tokens: Tensor,
        rows: Tensor,
        scores: Tensor,
        seen: tuple[list[int], list[float]] | None,
        asked: int,
        stop: str,
    ) -> Draft:
        """Lines 10-12: of the n drafted tokens those that go to the target.

        Parameters
        ----------
        tokens : tensor [n]
        rows : tensor [n, vocabulary]
            The drafter's logits, from n passes or from one.
        scores : tensor [n]
            C of each.
        seen : (tokens, scores) or None
            The same on the host; None where the window is fixed.
        asked : int
            How many could be drafted, and `stop`, why no more.
        """
        n = k = len(tokens)
        if seen is None:
            self.session.control |= {"window": self.k_max}
        else:
            drafted, sure = seen
            end = next((i for i, token in enumerate(drafted, 1) if token in self.session.eos), n)
            mean = sum(sure[:end]) / end
            window = self.window(mean)
            k = min(window, end)
            self.session.control |= {"window": window, "confidence": mean}
            stop = "eos" if drafted[k - 1] in self.session.eos else "window" if k < asked else stop
            if k < n:
                behind = {"score": scores[k:], "met": np.zeros(n - k, bool)}
                parents = list(range(k - 1, n - 1))
                self.unsent = Unsent(
                    drafted[k:], parents, logits=list(rows[k:]), signals=behind, source=self.drafter.source
                )
        signals = {
            "score": scores[:k],
            "threshold": self.threshold(scores[:k]),
            "met": np.ones(k, bool),
        }
        source = self.drafter.source
        return Draft.chain(tokens[:k], logits=rows[:k], signals=signals, source=source, stop=stop)

    def window(self, mean: float) -> int:
        """k_j = min(k_max, max(k_min, ⌊α C̄ k_max⌋)), section III (b)."""
        return min(self.k_max, max(self.k_min, math.floor(self.alpha * mean * self.k_max)))

    def threshold(self, scores: Tensor) -> Tensor:
        """τ_t of each node (line 16), in nats, float32 [n]."""
        if not self.adaptive_verification:
            return torch.full_like(scores, self.tau_base)
        moved = 1 - scores if self.gap == "as_written" else scores
        return self.tau_base + self.gamma * moved

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Lines 13-20."""
        assert scores is not None
        verdict = verify_gap(draft, scores, draft.signals.get("threshold", self.tau_base), self.top_beta)
        verdict.unsent = self.unsent
        return verdict

    def learn(self, draft: Draft, result: Any, verdict: Verdict) -> None:
        self.drafter.follow(len(verdict.path), verdict.token)
