"""Prompt lookup: the draft is copied from where the text's last words stood before; no draft model.

Saxena 2023 ("Prompt Lookup Decoding", https://github.com/apoorvumang/prompt-lookup-decoding). Which match
is taken follows transformers' ``PromptLookupCandidateGenerator``: the longest n-gram first, of its places
the first from the left. Two things differ. The prompt and the output are searched to the smallest n that is
asked for, not always to 1. And a draft keeps an end token, behind which it stops; transformers leaves it out,
for its loop could not stop inside a block.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..devices import send
from ..draft import Draft
from ..errors import ParameterError
from ..rules.ngrams import continuation
from .base import Parameter, Session, Verdict
from .kinds import SizedMethod
from .sampling import ACCEPT, FINAL, Sampling
from .speculative import verify_greedy, verify_sampled


class PromptLookup(SizedMethod):
    """The text itself is the drafter: what followed its last words before may follow them again."""

    name = "prompt_lookup"
    title = "Prompt lookup"
    paper = "Saxena 2023"
    parameters = (
        Parameter("ngram_max", 3, 1, 16, "tokens", "Longest run of last tokens that is looked for."),
        Parameter("ngram_min", 1, 1, 16, "tokens", "Shortest run of last tokens that is looked for."),
        Parameter("draft_length", 10, 1, 64, "tokens", "Most tokens that are copied from behind the match."),
    )
    size = "draft_length"
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    for n = longest .. shortest:"),
        ("draft", "        find the text's last n tokens earlier in the text, from the left"),
        ("draft", "        if found: x_1 .. x_k = what followed them; go on"),
        ("draft:none", "    if never found: no draft"),
        ("forward", "    p_1 .. p_k+1 = target(text + x_1 .. x_k)   # one pass"),
        ("verify", "    for i = 1 .. k, until one fails:"),
        ("verify:accepted", "        accept x_i if argmax p_i is x_i, or u < p_i(x_i)"),
        ("verify:rejected", "        else reject it; what stands behind is not judged"),
        ("commit", "    text = text + accepted + [the target's own next token]"),
    )
    ngram_max: int
    ngram_min: int
    draft_length: int

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.ngram_min > self.ngram_max:
            raise ParameterError(
                f"ngram_min must be at most ngram_max, got {self.ngram_min} and {self.ngram_max}"
            )

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact up to ties" if sampling.greedy else "exact"  # as in speculative decoding

    def start(self, session: Session) -> None:
        self.session = session
        self.length = len(session.prompt)
        self.text = np.empty(self.length + session.limit, np.int64)
        self.text[: self.length] = session.prompt

    def draft(self, left: int) -> Draft:
        # The target adds a token to every draft, so one token of what is left is its own.
        most = min(self.draft_length, left - 1)
        if most < 1:
            return Draft.empty("room")
        found = continuation(self.text[: self.length], self.ngram_max, self.ngram_min, most)
        if not len(found):
            return Draft.empty("none")
        ends = np.flatnonzero(np.isin(found, list(self.session.eos)))
        stop = "length" if len(found) == self.draft_length else "room" if len(found) == most else "text"
        if len(ends):  # nothing behind an end token can be emitted
            found, stop = found[: ends[0] + 1], "eos"
        return Draft.chain(found.copy(), source="prompt", stop=stop)

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        sampling = self.session.sampling
        if sampling.greedy:
            return verify_greedy(draft, scores)
        n = len(draft)
        p = sampling.probabilities(scores)
        tokens = send(draft.tokens, p.device)
        # A copied token was drawn from a distribution that gives it probability 1.
        q = torch.zeros_like(p[:n]).scatter_(1, tokens[:, None], 1.0)
        u, last = self.session.uniforms(ACCEPT, n), float(self.session.uniforms(FINAL, 1)[0])
        return verify_sampled(Draft.chain(tokens, q=q), p, u, last)

    def learn(self, draft: Draft, result: Any, verdict: Verdict) -> None:
        new = [verdict.tokens[node] for node in verdict.path]
        new += [] if verdict.token is None else [verdict.token]
        self.text[self.length : self.length + len(new)] = new
        self.length += len(new)
