"""Blockwise parallel decoding: the target guesses a whole block, and its next pass verifies the guesses.

Stern, Shazeer and Uszkoreit 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models". Sections 3
and 4: predict, verify, accept, with verification and the next prediction in one pass (Figure 2 there). The
looser acceptance of section 5 (top-k, distance, least block size) is left out: a token is accepted only if
the target would write it itself.
"""

from __future__ import annotations

from torch import Tensor

from ..draft import Draft
from ..models.protocols import Model, Pass
from .base import Method, Parameter, Session, Verdict
from .sampling import Sampling
from .speculative import verify_greedy


class Blockwise(Method):
    """Heads on the target predict the next k tokens from one state; the target keeps those it would write
    itself."""

    name = "blockwise"
    title = "Blockwise parallel decoding"
    paper = "Stern et al. 2018"
    parameters = (
        Parameter(
            "k",
            10,
            1,
            64,
            "tokens",
            "Number of heads used, including the target's own: the length of a block.",
            "k",
        ),
    )
    pseudocode = (
        ("", "h = the target's state after the prompt;  y = argmax head_1(h)"),
        ("", "repeat until the text ends:"),
        ("draft", "    for i = 2 .. k:   # all at once, from the state that wrote y"),
        ("draft", "        x_i = argmax head_i(h)"),
        ("forward", "    h_1 .. h_k = target(text + x_2 .. x_k)   # the text ends with y"),
        ("verify", "    for i = 2 .. k, until one fails:"),
        ("verify:accepted", "        accept x_i if x_i = argmax head_1(h_i-1)"),
        ("verify:rejected", "        else stop; later tokens are not judged"),
        ("commit", "    h = the last state whose token was accepted;  y = argmax head_1(h)"),
        ("commit:correction", "    y replaces the failed token"),
        ("commit:bonus", "    all were accepted: y follows them, a bonus"),
        ("commit", "    text = text + accepted + [y]"),
    )
    needs_draft = True
    drafts_with = "heads"
    only_greedy = True
    block_length_param = "k"
    k: int

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact up to ties"

    def hidden_layers(self, drafter: Model | None) -> tuple[int, ...]:
        return (-1,)

    def start(self, session: Session) -> None:
        self.session = session
        self.state: Tensor | None = None  # the prefill computes no state for the prompt's last token

    def draft(self, left: int) -> Draft:
        n = min(self.k, left) - 1  # the target's own token counts towards the block
        if self.state is None or n == 0:
            return Draft.empty("none" if self.state is None else "length" if self.k == 1 else "room")
        logits = self.session.drafter.guesses(self.state, n)
        stop = "length" if n == self.k - 1 else "room"
        return Draft.chain(logits.argmax(-1), logits=logits, source="heads", stop=stop)

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        return verify_greedy(draft, scores)

    def learn(self, draft: Draft, result: Pass | None, verdict: Verdict) -> None:
        assert result is not None
        self.state = result.hidden[-1][0][len(verdict.path)]  # of the root, or of the last accepted node
