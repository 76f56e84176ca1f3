"""Bugs to plant in the real code, each as a context manager, and a small tree method for some of them."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch

from specviz.draft import ROOT, Draft
from specviz.loop import cycle as loop_cycle
from specviz.methods import cm_asd, gap, speculative, tree
from specviz.methods.base import Method, Verdict
from specviz.methods.bild import BiLD
from specviz.methods.cm_asd import CMASD
from specviz.methods.draft_model import DraftModel
from specviz.models.context import Context, Store
from specviz.models.model import Model


class SmallTree(Method):
    """Draft a greedy tree of ten nodes: two children of the root, two of each of these, then one of each.

    Nodes are stored level by level, so an accepted path is seldom a prefix of the storage.
    """

    name = "small-tree"
    needs_draft = True
    extra_cache_slots = 12
    branches = (2, 2, 1)

    def guarantee(self, sampling, dtype):
        return "exact up to ties" if sampling.greedy else "lossy"

    def start(self, session):
        self.session = session
        room = session.limit + self.extra_cache_slots
        self.drafter = session.open(session.drafter, session.prompt, room, "draft")
        self.drafter.prefill()

    def draft(self, left):
        tokens, parents, level = [], [], [ROOT]
        for branch in self.branches[: left - 1]:
            scores = self.drafter.forward(Draft(np.array(tokens, int), np.array(parents, int))).logits[0]
            new = []
            for node in level:
                for token in scores[node + 1].topk(branch).indices.tolist():
                    new.append(len(tokens))
                    tokens.append(token)
                    parents.append(node)
            level = new
        return Draft(np.array(tokens, int), np.array(parents, int))

    def verify(self, draft, scores):
        best, tokens = scores.argmax(-1).tolist(), draft.tokens.tolist()
        status, path, at = ["unjudged"] * len(draft), [], ROOT
        while True:
            children = [i for i, parent in enumerate(draft.parents) if parent == at]
            for child in children:
                status[child] = "accepted" if tokens[child] == best[at + 1] else "rejected"
            chosen = [child for child in children if status[child] == "accepted"]
            if not chosen:
                break
            (at,) = chosen
            path.append(at)
        leaf = path and not any(parent == at for parent in draft.parents)
        origin = "plain" if not len(draft) else "bonus" if leaf else "correction"
        return Verdict(path, tokens, best[at + 1], origin, status)

    def learn(self, draft, result, verdict):
        self.drafter.extend([[verdict.tokens[node] for node in verdict.path] + [verdict.token]])


@contextmanager
def sibling_in_the_mask():
    """A node sees the other children of its parent."""
    real = Draft.mask.func

    def mask(self):
        seen = real(self).copy()
        if not self.is_chain:
            seen |= np.tri(len(self), dtype=bool) & (self.parents[:, None] == self.parents[None])
        return seen

    with patch.object(Draft, "mask", property(mask)):
        yield


@contextmanager
def wrong_depth():
    """A node's position is its index in the storage, not its depth in the tree."""
    with patch.object(Draft, "offsets", property(lambda self: np.arange(1, len(self) + 1))):
        yield


@contextmanager
def trim_instead_of_gather():
    """The accepted path's rows are not moved: the cache keeps the draft's first rows instead."""

    def keep(self, row, path, draft):
        start = self.length[row]
        self.ids[row, start : start + len(path)] = self.ids[row, [start + node for node in path]]
        self.length[row] = self.cached[row] = start + len(path)

    with patch.object(Context, "_keep", keep):
        yield


@contextmanager
def stale_row():
    """A cache slot written for a rejected token is not overwritten by the token that replaces it."""
    both, single = Store.write_both, Store.write

    def kept(self, layer, new):
        old = self.target[layer]
        return torch.where(old.abs().amax((0, 1, 2, 4), keepdim=True) > 0, old, new)

    def write_both(self, layer, new):
        return both(self, layer, new if self.index is not None else kept(self, layer, new))

    def write(self, layer, key, value):
        if self.index is None:
            key, value = kept(self, layer, torch.stack((key, value)))
        return single(self, layer, key, value)

    with patch.object(Store, "write_both", write_both), patch.object(Store, "write", write):
        yield


@contextmanager
def off_by_one_bonus():
    """The bonus token is read from the last row but one."""
    real = speculative.verify_greedy

    def verify(draft, scores):
        verdict = real(draft, scores)
        if len(draft) and len(verdict.path) == len(draft):
            verdict.token = int(scores[len(draft) - 1].argmax())
        return verdict

    with patch.object(speculative, "verify_greedy", verify):
        yield


@contextmanager
def eos_in_mid_block():
    """An end token ends the text only at the end of a block."""

    def ending(emitted, eos, left, full):
        if len(emitted) <= left and emitted[-1] in eos:
            return len(emitted), "eos"
        return (left, full) if len(emitted) >= left else (len(emitted), None)

    with patch.object(loop_cycle, "ending", ending):
        yield


@contextmanager
def shifted_vocabulary():
    """Logits are shifted by one id, for every method alike."""
    real = Model.logits
    with patch.object(Model, "logits", lambda self, last: real(self, last).roll(1, -1)):
        yield


@contextmanager
def wrong_residual():
    """After a rejection, the next token is drawn from p itself, not from the residual."""
    with patch.object(speculative, "residual", lambda p, q: p):
        yield


@contextmanager
def untempered_q():
    """Tokens are drawn at the set temperature but judged as if drawn at temperature 1."""
    real = DraftModel.chain

    def chain(self, *given, **named):
        draft = yield from real(self, *given, **named)
        return (
            draft if draft.q is None else dataclasses.replace(draft, q=torch.stack(draft.logits).softmax(-1))
        )

    with patch.object(DraftModel, "chain", chain):
        yield


@contextmanager
def rollback_keeps_the_token():
    """The token that the large model rolls back stays in the text, and its correction follows it."""
    real = BiLD.verify

    def verify(self, draft, scores):
        verdict = real(self, draft, scores)
        if len(verdict.path) < len(draft):
            verdict.path = [*verdict.path, len(verdict.path)]
        return verdict

    with patch.object(BiLD, "verify", verify):
        yield


@contextmanager
def undivided_siblings():
    """A sibling is tested against p itself, not against the residual that earlier rejections left."""
    real = tree._send

    def to(device, row, word, family, fair):
        return real(device, row, word, family & False, fair)

    with patch.object(tree, "_send", to):
        yield


@contextmanager
def accepts_one_too_far():
    """The token that failed the test is kept, and the one after it comes from the next row."""
    real = cm_asd.verify_gap

    def verify(draft, scores, threshold, top_beta):
        verdict = real(draft, scores, threshold, top_beta)
        if (kept := len(verdict.path)) < len(draft):
            verdict.path = [*verdict.path, kept]
            verdict.status[kept] = "accepted"
            verdict.token = int(scores[kept + 1].argmax())
        return verdict

    with patch.object(cm_asd, "verify_gap", verify):
        yield


@contextmanager
def token_from_the_wrong_row():
    """The target's own token is read one row too late."""
    real = cm_asd.verify_gap

    def verify(draft, scores, threshold, top_beta):
        verdict = real(draft, scores, threshold, top_beta)
        verdict.token = int(scores[min(len(verdict.path) + 1, len(draft))].argmax())
        return verdict

    with patch.object(cm_asd, "verify_gap", verify):
        yield


@contextmanager
def turned_gap():
    """The gap has the wrong sign, so it is within any threshold."""
    real = gap.gaps
    with patch.object(gap, "gaps", lambda scores, best, tokens: -real(scores, best, tokens)):
        yield


@contextmanager
def turned_threshold():
    """The threshold narrows when the drafter is unsure, although the setting is as_written."""
    with patch.object(CMASD, "threshold", lambda self, scores: self.tau_base + self.gamma * scores):
        yield


@contextmanager
def longer_window():
    """The window holds one token more than it should."""
    real = CMASD.window
    with patch.object(CMASD, "window", lambda self, mean: min(self.k_max, real(self, mean) + 1)):
        yield


@contextmanager
def shorter_window():
    """The window holds one token fewer than it should."""
    real = CMASD.window
    with patch.object(CMASD, "window", lambda self, mean: max(self.k_min, real(self, mean) - 1)):
        yield
