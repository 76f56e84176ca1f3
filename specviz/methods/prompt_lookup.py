"""Prompt lookup: the draft is copied from an earlier occurrence of the text's last tokens; no draft model.

Saxena 2023 ("Prompt Lookup Decoding", https://github.com/apoorvumang/prompt-lookup-decoding). The match is
chosen as in transformers' ``PromptLookupCandidateGenerator``: the longest n-gram first, and its leftmost
occurrence. Two things differ. The prompt and the output are searched down to the requested smallest n, not
always to 1. And a draft keeps an end token and stops after it; transformers omits it, because its loop could
not stop inside a block.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..draft import Draft
from ..errors import ParameterError
from ..models.devices import send
from ..models.protocols import Pass
from ..rules.ngrams import PROMPT_LOOKUP, lookup, problem
from ..rules.parameters import Value
from .base import Session, Verdict
from .kinds import SizedMethod
from .sampling import ACCEPT, FINAL, Sampling
from .speculative import verify_greedy, verify_sampled


class PromptLookup(SizedMethod):
    """The text itself is the drafter: what followed its last tokens before may follow them again."""

    name = "prompt_lookup"
    title = "Prompt lookup"
    paper = "Saxena 2023"
    parameters = PROMPT_LOOKUP
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
        ("verify:rejected", "        else reject it; later tokens are not judged"),
        ("commit", "    text = text + accepted + [the target's own next token]"),
    )
    ngram_max: int
    ngram_min: int
    draft_length: int

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        if words := problem(self.values):
            raise ParameterError(words)

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact up to ties" if sampling.greedy else "exact in law"  # as in speculative decoding

    def start(self, session: Session) -> None:
        self.session = session
        self.length = len(session.prompt)
        self.text = np.empty(self.length + session.limit, np.int64)
        self.text[: self.length] = session.prompt

    def draft(self, left: int) -> Draft:
        tokens, stop = lookup(self.text[: self.length], self.values, left, self.session.eos)
        return Draft.chain(tokens.copy(), source="prompt", stop=stop) if len(tokens) else Draft.empty(stop)

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        sampling = self.session.sampling
        if sampling.greedy:
            return verify_greedy(draft, scores)
        n = len(draft)
        p = sampling.probabilities(scores)
        tokens = send(draft.tokens, p.device)
        # A copied token counts as drawn from a distribution that gives it probability 1.
        q = torch.zeros_like(p[:n]).scatter_(1, tokens[:, None], 1.0)
        u, last = self.session.uniforms(ACCEPT, n), float(self.session.uniforms(FINAL, 1)[0])
        return verify_sampled(Draft.chain(tokens, q=q), p, u, last)

    def learn(self, draft: Draft, result: Pass | None, verdict: Verdict) -> None:
        new = [verdict.tokens[node] for node in verdict.path]
        new += [] if verdict.token is None else [verdict.token]
        self.text[self.length : self.length + len(new)] = new
        self.length += len(new)
