"""Token Recycling: a static tree, filled with the target's latest predictions after each token.

Luo et al. 2025 ("Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
Recycling"). The matrix starts empty and learns from the passes; it does not learn from the prompt, because
the prefill keeps no logits. It holds no probabilities, so nodes have no score.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..draft import ROOT, Draft
from ..errors import ParameterError
from ..models.protocols import Pass
from ..paths import expanded
from ..rules.parameters import Value
from ..rules.store import EMPTY, Adjacency
from ..schema import Signal
from .base import Parameter, Session, Verdict
from .memory import KEEP, Remembering
from .signals import ranked
from .template import BUNDLED, MOST, Template, bundled_paths, read
from .tree import judge


class TokenRecycling(Remembering):
    """The target's unused candidates are kept and tried when the same token occurs again."""

    name = "token_recycling"
    trees = True
    title = "Token Recycling"
    paper = "Luo et al. 2025"
    parameters = (
        Parameter(
            "draft_size", 80, 1, MOST, "tokens",
            "Number of template nodes used, from the first on, without the root; a smaller template is used "
            "whole.",
        ),
        Parameter("candidates", 8, 1, 64, "tokens", "Successors kept per token: the matrix's columns.", "k"),
        Parameter(
            "template", "",
            meaning="A JSON file of rank paths such as [[0], [1], [0, 0]], or authors: the tree of 80 nodes "
            "that the paper's authors publish; empty: one fitted to the bundled model.",
        ),
        KEEP,
    )  # fmt: skip
    size = "draft_size"
    shape = ("candidates",)
    signals = (Signal("empty", "nodes", "Number of template nodes without a token.", "cycle"),)
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    T = the template, x_t at its root"),
        ("draft", "    for level = 1 .. its depth:"),
        ("draft", "        for each node of the level, of rank r under parent u:"),
        ("draft", "            its token = M[u, r]"),
        ("draft:store", "            if there is none: drop it and all below"),
        ("forward", "    p = target(text + T)   # one pass over the tree"),
        ("verify", "    from the root down, as long as a child survives:"),
        ("verify:accepted", "        go to the child that the target writes itself"),
        ("verify:rejected", "        its siblings are rejected"),
        ("commit", "    text = text + path + [the target's next token]"),
        ("commit", "    M[u] = top-k of p(· | u), for every node u, the rejected too"),
    )
    draft_size: int
    candidates: int
    template: str

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        if self.template not in BUNDLED:
            paths = read(expanded(self.template, ParameterError), self.candidates)
        else:  # ranks beyond k are left out, and the rest is still in order
            paths = [path for path in bundled_paths(self.template) if max(path) < self.candidates]
        self.paths = paths[: self.draft_size]
        self.extra_cache_slots = len(self.paths)
        self.learned_top_k = self.candidates

    def fresh(self, vocabulary: int) -> Adjacency:
        return Adjacency(vocabulary, min(self.candidates, vocabulary))

    def start(self, session: Session) -> None:
        super().start(session)
        self.root = session.prompt[-1]
        self.ends = np.array(sorted(session.eos), np.int64)
        width = self.store.tokens.shape[1]
        self.tree = Template([path for path in self.paths if max(path) < width])

    def draft(self, left: int) -> Draft:
        """Fill the template level by level, no deeper than what may be emitted before the bonus token."""
        if left < 2:
            return Draft.empty("room")
        successors, tree = self.store.tokens, self.tree
        word = np.full(len(tree) + 1, EMPTY, np.int64)  # the root's token, then every node's
        word[0] = self.root
        for level in tree.levels[: left - 1]:
            above = word[level.above]
            word[level.at] = np.where(above != EMPTY, successors[above, level.rank], EMPTY)
        sent = np.flatnonzero(word[1:] != EMPTY)
        if not len(sent):
            return Draft.empty("none")
        self.session.control |= {"empty": len(tree) - len(sent)}
        place = np.empty(len(tree) + 1, np.int64)
        place[sent] = np.arange(len(sent))
        place[ROOT] = ROOT
        stop = "room" if left <= len(tree.levels) else "budget" if len(sent) == len(tree) else "store"
        return Draft(word[sent + 1], place[tree.parents[sent]], source="store", stop=stop)

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        # What is learned from the pass is copied with the verdict: one synchronisation.
        tokens = ranked(scores, self.store.tokens.shape[1])
        verdict, (self.lesson,) = judge(draft, scores, self.session, tokens, best=tokens[:, 0])
        return verdict

    def learn(self, draft: Draft, result: Pass | None, verdict: Verdict) -> None:
        self.store.learn(np.append(self.root, draft.tokens), self.lesson)  # rejected nodes too, in order
        self.store.forget(self.ends)
        assert verdict.token is not None
        self.root = verdict.token
