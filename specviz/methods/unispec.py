"""UniSpec: a draft tree from the target's own earlier predictions, scored, and cut to a size.

Do, Nguyen and Nguyen ("UniSpec: Training-Free Speculative Decoding for Robust LLM Acceleration Across
Languages and Hardware"), Algorithm 1, to which line numbers below refer. If the paper leaves a detail open,
the parameter's meaning gives our reading: ``score``, ``root_token``.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..draft import ROOT, Draft
from ..models.protocols import Pass
from ..rules.parameters import Value
from ..rules.store import EMPTY, UNISPEC, Growth, Store, grow
from ..schema import Signal
from .base import Session, Unsent, Verdict
from .memory import KEEP, Remembering
from .signals import successors
from .tree import judge


class UniSpec(Remembering):
    """Drafts likely continuations, as the target itself scored them when it last read these tokens."""

    name = "unispec"
    trees = True
    title = "UniSpec"
    paper = "Do et al."
    parameters = (*UNISPEC, KEEP)
    size = "draft_size"
    shape = ("candidates",)
    signals = (Signal("candidates", "nodes", "Number of nodes grown, sent or not.", "cycle"),)
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    level 1 = x_t's successors in the store, and C"),
        ("draft", "    for level = 2 .. d:"),
        ("draft", "        expand the k best nodes of the level above"),
        ("draft", "            but none whose score is below r"),
        ("draft:below_budget", "    T = the g* nodes of highest score"),
        ("forward", "    p = target(text + T)   # one pass over the tree"),
        ("verify", "    from the root down, as long as a child survives:"),
        ("verify:accepted", "        go to the child that the target writes itself"),
        ("verify:rejected", "        its siblings are rejected"),
        ("commit", "    text = text + path + [the target's next token]"),
        ("commit", "    store[u] = top-k of p(· | u), for every node u"),
        ("commit", "    C = top-k where the new root was predicted"),
    )
    draft_size: int
    depth: int
    candidates: int
    threshold: float
    scores: bool
    neighbours: bool
    score: str
    root_token: str

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        self.extra_cache_slots, self.learned_top_k = self.draft_size, self.candidates

    def fresh(self, vocabulary: int) -> Store:
        return Store(vocabulary, min(self.candidates, vocabulary))

    def start(self, session: Session) -> None:
        super().start(session)
        self.root = session.prompt[-1]
        self.ends = np.array(sorted(session.eos), np.int64)
        k = self.store.tokens.shape[1]
        self.near = np.full(k, EMPTY, np.int32), np.zeros(k, np.float32)

    def draft(self, left: int) -> Draft:
        """Lines 16-30. The tree is no deeper than what may still be emitted before the target's token."""
        if left < 2:
            return Draft.empty("room")
        growth = Growth.of(self.values, left)
        tree = grow(self.store, self.root, self.near, growth)
        draft, rest = tree.cut(self.draft_size, growth)
        self.unsent = Unsent(
            rest.tokens, rest.parents, "below_budget", signals={"score": rest.score}, source=rest.source
        )
        self.session.control["candidates"] = len(tree.tokens)
        return draft

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        # What is learned from the pass is copied with the verdict: one synchronisation.
        tokens, p = successors(scores, self.store.tokens.shape[1])
        verdict, self.lesson = judge(draft, scores, self.session, tokens, p, best=tokens[:, 0])
        verdict.unsent = self.unsent if len(draft) else None
        return verdict

    def learn(self, draft: Draft, result: Pass | None, verdict: Verdict) -> None:
        tokens, p = self.lesson
        self.store.learn(np.append(self.root, draft.tokens), tokens, p)  # lines 38-44, rejected nodes too
        self.store.forget(self.ends)
        last = verdict.path[-1] if verdict.path else ROOT
        self.near = tokens[last + 1], p[last + 1]  # lines 46-47
        assert verdict.token is not None
        self.root = verdict.token
