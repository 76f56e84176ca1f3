"""Test the context interface early: ten-line sketches of future methods, written against its verbs.

Sketches that the causal context supports run on a real (tiny, random) model and are compared with its own
greedy text. The others run on fakes that document the shape of their future contexts. No sketch is a
method of the package: each only shows that the verbs suffice.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from specviz.draft import ROOT, Draft
from specviz.models.context import Pass
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.model import Model

sys.path.insert(0, str(Path(__file__).parent / "models"))
import seq2seq
from families import make

torch.set_num_threads(1)
PROMPT, LENGTH = [1, 2, 3, 1, 2], 16


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(make("llama", seed=3), name="tiny")


@pytest.fixture(scope="module")
def greedy(model: Model) -> list[int]:
    """The model's own greedy text, one token per pass."""
    context, out = model.open([PROMPT], 64), []
    while len(out) < LENGTH:
        out.append(int(context.forward(Draft.empty()).logits[0][0].argmax()))
        context.extend(out[-1:])
    return out


def longest(draft: Draft, best: np.ndarray) -> list[int]:
    """The path of verified nodes that match the target's choices; `best` starts with the root's."""
    path, at = [], ROOT
    judged = np.ones(len(draft), bool) if draft.judge is None else draft.judge
    while True:
        found = [
            i for i in np.flatnonzero((draft.parents == at) & judged) if int(draft.tokens[i]) == best[1 + at]
        ]
        if not found:
            return path
        at = int(found[0])
        path.append(at)


def decode(model: Model, propose, learn=lambda draft, best: None) -> tuple[list[int], int]:
    """Draft, forward, verify, commit, learn: the whole loop, for the sketches. Returns text and passes."""
    context, passes = model.open([PROMPT], 64), 0
    context.prefill()
    while context.length[0] < len(PROMPT) + LENGTH:
        draft = propose(context.tokens[0])
        best = context.forward(draft).logits[0].argmax(-1).numpy()
        path = longest(draft, best)
        context.commit(path)
        context.extend([int(best[1 + path[-1]] if path else best[0])])
        learn(draft, best)
        passes += 1
    return context.tokens[0][len(PROMPT) :][:LENGTH], passes


# -- sketches that the causal context supports -------------------------------------------------------


def test_prompt_lookup(model: Model, greedy: list[int]) -> None:
    def propose(text: list[int]) -> Draft:  # the tokens that last followed the current two
        for i in range(len(text) - 3, -1, -1):
            if text[i : i + 2] == text[-2:]:
                return Draft.chain(np.array(text[i + 2 : i + 6]), source="prompt")
        return Draft.empty()

    out, passes = decode(model, propose)
    assert out == greedy
    assert passes < LENGTH, passes


def test_token_recycling(model: Model, greedy: list[int]) -> None:
    seen = np.random.default_rng(0).integers(0, model.vocabulary, (model.vocabulary, 2))  # likely successors
    shape = np.array([-1, -1, 0, 0, 1, 2])  # a fixed tree, filled from the matrix

    def propose(text: list[int]) -> Draft:
        tokens: list[int] = []
        for i, parent in enumerate(shape):
            before = text[-1] if parent == ROOT else tokens[parent]
            tokens.append(int(seen[before, list(shape[:i]).count(parent)]))
        return Draft(np.array(tokens), shape, source="store")

    def learn(draft: Draft, best: np.ndarray) -> None:  # every node teaches, the rejected ones too
        for token, successor in zip(draft.tokens, best[1:]):
            seen[token] = successor, seen[token, 0]

    out, passes = decode(model, propose, learn)
    assert out == greedy
    assert passes < LENGTH, passes


def test_lookahead_comb(model: Model, greedy: list[int]) -> None:
    """Lookahead: n-grams to verify, and a read-only window, in one tree (Fu et al. 2024, figure 4)."""
    pool: dict[int, list[tuple[int, int]]] = {}
    window = [5, 6, 7]  # the last step's guesses of positions 1 to 3, updated from the pass

    def propose(text: list[int]) -> Draft:
        grams = pool.get(text[-1], [])[-2:]
        parents = [-1, 0, 1] + [p for i in range(len(grams)) for p in (-1, 3 + 2 * i)]
        tokens = window + [token for gram in grams for token in gram]
        return Draft(np.array(tokens), np.array(parents), judge=np.arange(len(tokens)) >= 3)

    def learn(draft: Draft, best: np.ndarray) -> None:
        for i in range(2):
            pool.setdefault(window[i], []).append((int(best[1 + i]), int(best[2 + i])))
        window[:] = [int(t) for t in best[1:4]]

    out, passes = decode(model, propose, learn)
    assert out == greedy
    assert passes < LENGTH, passes


def test_early_exit(model: Model, greedy: list[int]) -> None:
    drafter = model.first(1)  # shares the weights; has its own storage
    context = drafter.open([PROMPT], 64)

    def propose(text: list[int]) -> Draft:
        same = next((i for i, (a, b) in enumerate(zip(context.tokens[0], text)) if a != b), None)
        context.rewind(min(same or len(text), context.length[0], len(text)))
        context.extend(text[context.length[0] :])
        for _ in range(3):
            context.extend([int(context.forward(Draft.empty()).logits[0][0].argmax())])
        return Draft.chain(np.array(context.tokens[0][len(text) :]), source="layer")

    out, _ = decode(model, propose)
    assert out == greedy


def test_rows_of_a_batch_draft_what_they_like(model: Model, greedy: list[int]) -> None:
    context = model.open([PROMPT, [4, 5]], 32)
    drafts = [Draft.chain(np.array(greedy[:3])), Draft.empty()]
    found = context.forward(drafts)
    assert found.logits[0].argmax(-1).tolist() == greedy[:4]
    context.commit([[0, 1, 2], []])
    context.extend([[greedy[3]], [9]])
    assert context.length == [len(PROMPT) + 4, 3]


def test_canvas_positions(model: Model) -> None:
    """A diffusion canvas is a draft with explicit positions: cells of several guesses in one pass."""
    context = model.open([PROMPT], 32)
    canvas = Draft(np.array([7, 8, 7, 9]), np.array([-1, 0, -1, 2]), positions=np.array([1, 4, 1, 4]))
    scores = context.forward(canvas).logits[0]
    torch.testing.assert_close(scores[1], scores[3])  # the same cell in two canvases
    assert not torch.allclose(scores[2], scores[4])
    context.commit([0, 1])  # cells that were read out of place are recomputed in place
    text = [*PROMPT, 7, 8]
    again = model.open([text], 32).forward(Draft.empty()).logits[0]
    torch.testing.assert_close(context.forward(Draft.empty()).logits[0], again, atol=1e-4, rtol=0)


def test_encoder_decoder_takes_new_source_text() -> None:
    """Re-translation: a source that grew is encoded again, and the last output is the draft."""
    served = EncoderDecoder(seq2seq.make("t5", 3), name="tiny")

    def written(source: list[int]) -> list[int]:
        context, out = served.open([source], 8), []
        while len(out) < 6:
            out.append(int(context.forward(Draft.empty()).logits[0][0].argmax()))
            context.extend(out[-1:])
        return out

    previous, context = written([3, 4]), served.open([[3, 4, 5]], 8)
    draft = Draft.chain(np.array(previous), source="previous output")
    best = context.forward(draft).logits[0].argmax(-1).numpy()
    path = longest(draft, best)
    context.commit(path)
    context.extend([int(best[len(path)])])
    assert context.tokens[0][3:][:6] == written([3, 4, 5])[: len(path) + 1]


# -- sketches on fakes: the shape of future contexts ----------------------------------------------------


class Fake:
    """A context over a lookup table: token t is followed by t + 1. It has the verbs and nothing else."""

    vocabulary, room = 50, 50

    def __init__(self, prompt: list[int]) -> None:
        self.tokens = [list(prompt)]

    def forward(self, draft: Draft, hidden: tuple[int, ...] = ()) -> Pass:
        fed = [self.tokens[0][-1], *(int(t) for t in draft.tokens)]
        self.draft = draft
        return Pass([torch.eye(self.vocabulary)[[self.after(t) for t in fed]]], len(fed), {})

    def after(self, token: int) -> int:
        return (token + 1) % self.vocabulary

    def commit(self, path: list[int]) -> None:
        self.tokens[0] += [int(self.draft.tokens[i]) for i in path]

    def extend(self, tokens: list[int]) -> None:
        self.tokens[0] += tokens

    def rewind(self, length: int) -> None:
        del self.tokens[0][length:]


def test_calm_leaves_a_forward_early() -> None:
    """CALM: a forward that may leave early, at the layer where the top two are far enough apart."""

    class Leaving(Fake):
        def forward(self, draft: Draft, hidden=(), leave=lambda layer, logits: False) -> Pass:
            found = super().forward(draft, hidden)
            for layer in (1, 2, 3):
                if leave(layer, found.logits[0] * layer):
                    break
            return Pass(found.logits, found.fed, {layer: found.logits})

    def sure(layer: int, logits: torch.Tensor) -> bool:
        top = logits[-1].topk(2).values
        return bool(top[0] - top[1] > 1.5)

    found = Leaving([1]).forward(Draft.empty(), leave=sure)
    assert list(found.hidden) == [2]
    assert int(found.logits[0][0].argmax()) == 2


def test_diffusion_canvases_share_a_prefix() -> None:
    """Masked diffusion: canvases packed as branches; a pass fills the surest cell of each."""
    mask = 49

    class Filling(Fake):
        def forward(self, draft: Draft, hidden: tuple[int, ...] = ()) -> Pass:
            logits = torch.eye(self.vocabulary)[[0, *(10 + draft.offsets)]]  # a cell's token is its position
            return Pass([logits * torch.tensor([0, *range(len(draft), 0, -1)])[:, None]], [len(draft)], {})

    context, cells = Filling([1, 2]), [mask] * 3
    parents = np.array([-1, 0, 1] * 2) + np.array([0, 0, 0, 0, 3, 3])
    for _ in range(3):
        draft = Draft(np.array(cells * 2), parents, positions=np.array([1, 2, 3] * 2))
        scores = context.forward(draft).logits[0][1:]
        open_cells = [i for i in range(3) if cells[i] == mask]
        surest = max(open_cells, key=lambda i: float(scores[i].max()))
        cells[surest] = int(scores[surest].argmax())
    context.extend(cells)
    assert context.tokens[0] == [1, 2, 11, 12, 13]


def test_several_drafters_vote() -> None:
    """A staged method: one context's drafts are another's prompts; only tokens pass between them."""
    contexts = [Fake([1, 2]), Fake([1, 2])]
    votes = Counter(int(c.forward(Draft.empty()).logits[0][0].argmax()) for c in contexts)
    token, count = votes.most_common(1)[0]
    assert (token, count) == (3, 2)
