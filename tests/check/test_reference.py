"""The exercises' reference answers match the real methods."""

from __future__ import annotations

import numpy as np
import pytest

from specviz.check import greedy, rejection, rollback, tree

torch = pytest.importorskip("torch")

from specviz.draft import Draft  # noqa: E402
from specviz.loop.cycle import ending  # noqa: E402
from specviz.methods.bild import BiLD  # noqa: E402
from specviz.methods.sampling import Sampling  # noqa: E402
from specviz.methods.speculative import accepts, after, verify_greedy  # noqa: E402


def given(module, most=150):
    """A sample of an exercise's cases, including the last eight, which are special."""
    cases = module.EXERCISE.cases
    return [c.given for c in cases[:: max(1, len(cases) // most)] + cases[-8:]]


def test_greedy():
    for g in given(greedy):
        scores = torch.zeros(len(g["best"]), 50_257)
        scores[torch.arange(len(g["best"])), torch.tensor(g["best"])] = 1
        draft = Draft.chain(torch.tensor(g["drafted"], dtype=torch.long))
        verdict = verify_greedy(draft, scores)
        emitted = [*(verdict.tokens[i] for i in verdict.path), verdict.token]
        count, _ = ending(emitted, frozenset([g["eos"]]), 99, "length")
        assert greedy.answer(**g) == (emitted[:count],)


def test_rejection():
    for g in given(rejection):
        n, sampling = len(g["drafted"]), Sampling(g["temperature"])
        p = sampling.probabilities(torch.tensor(g["target_logits"]))
        q = sampling.probabilities(torch.tensor(g["draft_logits"]).reshape(n, 3))
        at = (torch.arange(n), torch.tensor(g["drafted"], dtype=torch.long))
        kept = int(accepts(p[at], q[at], torch.tensor(g["u"])).long().cumprod(0).sum())
        law = after(p, torch.cat([q, torch.zeros(1, 3)]), torch.tensor(kept))
        ours, mine = rejection.answer(**g)
        assert ours == kept
        np.testing.assert_allclose(mine, (law / law.sum()).numpy(), atol=1e-9)
        assert mine.sum() == pytest.approx(1)


def test_rollback():
    for g in given(rollback):
        method = BiLD(rollback=g["threshold"], review_end=True)
        method.session = type("Session", (), {"sampling": Sampling()})()
        method.unsent = None
        draft = Draft.chain(torch.tensor(g["drafted"], dtype=torch.long), stop="fallback")
        with np.errstate(divide="ignore"):
            verdict = method.verify(draft, torch.tensor(np.log(g["p"])))
        assert rollback.answer(**g) == ([*(verdict.tokens[i] for i in verdict.path), verdict.token],)


def test_tree():
    """The mask equals a walk from each node up to the root."""
    for g in given(tree):
        mask, depth = tree.answer(**g)
        for i in range(len(g["parents"])):
            seen, node = set(), i
            while node != -1:
                seen.add(node)
                node = g["parents"][node]
            assert set(np.flatnonzero(mask[i])) == seen
            assert depth[i] == len(seen)
