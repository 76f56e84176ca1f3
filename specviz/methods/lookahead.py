"""Lookahead decoding: the target builds n-grams from its own guesses and tries those that fit.

Fu et al. 2024 ("Break the Sequential Dependency of LLM Inference Using Lookahead Decoding"), section 3. One
pass holds two branches below the last token: the lookahead branch, a window whose nodes are read and not
judged (`window.py`), and the verification branch, the n-grams of the pool that begin with the last token,
merged where they share a prefix. Guesses depend only on the past, so they are judged like any tree
(`tree.py`).

The authors send up to (W + G)(N - 1) tokens per pass, 120 for their W = G = 15 and N = 5: the "120" of
UniSpec's Table 17. Here ``draft_size`` caps the nodes of both branches, so that calibration can choose it as
for any other method. The window gets the columns that fit into half of it, as with the authors' W = G; the
n-grams, most recent first, get the rest. W and G are upper bounds: ``draft_size=120, ngram=5`` is the
authors' own setting. The defaults are for a CPU, where each further node soon costs time: 24 nodes, as in
`unispec`, and N = 3, which gives so small a window six columns (N = 5 would give three).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..draft import ROOT, Draft
from ..models.protocols import Pass
from ..rules.parameters import Value
from ..schema import Signal
from .base import Parameter, Session, Unsent, Verdict
from .memory import KEEP, Remembering
from .pool import Pool
from .prefix_tree import merge, until
from .signals import likeliest_tokens
from .tree import judge
from .window import Window, widest

GHOSTS = 24  # maximum number of unsent guesses that are recorded

DRAFT_SIZE = Parameter(
    "draft_size",
    24,
    1,
    512,
    "tokens",
    "Number of nodes in a pass, window and guesses together, without the root.",
    "g",
)
WINDOW = Parameter(
    "window", 15, 1, 128, "columns",
    "Columns of the lookahead branch; fewer if they would take more than half of the draft size, and none "
    "where not one fits (for n-grams of 8, below 30 nodes).", "W",
)  # fmt: skip
NGRAM = Parameter("ngram", 3, 3, 16, "tokens", "Length of an n-gram; the window has one row fewer.", "N")
GUESSES = Parameter(
    "guesses", 15, 1, 128, "n-grams", "N-grams kept per first token: the most recent ones.", "G"
)


class Lookahead(Remembering):
    """The target guesses ahead while it writes and later tries its guesses."""

    name = "lookahead"
    trees = True
    title = "Lookahead"
    paper = "Fu et al. 2024"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        DRAFT_SIZE, WINDOW, NGRAM, GUESSES,
        Parameter(
            "from_text", False,
            meaning="Whether the prompt and the output also supply n-grams, not only the window.",
        ),
        KEEP,
    )  # fmt: skip
    size = "draft_size"
    shape: ClassVar[tuple[str, ...]] = ("ngram", "guesses")
    signals: ClassVar[tuple[Signal, ...]] = (
        Signal("columns", "columns", "Number of columns of the window.", "cycle"),
        Signal("guesses", "n-grams", "Number of candidates from the pool.", "cycle"),
    )
    pseudocode: ClassVar[tuple[tuple[str, str], ...]] = (
        ("", "repeat until the text ends:"),
        ("draft", "    T = n-grams of the pool that begin with x_t, as one tree"),
        ("draft", "    W = the window: rows of guesses of the tokens to come"),
        ("forward", "    p = target(text + W + T)   # one pass over both branches"),
        ("verify", "    from the root down T, as long as a child survives:"),
        ("verify:accepted", "        go to the child that the target writes itself"),
        ("verify:rejected", "        its siblings are rejected"),
        ("commit", "    text = text + path + [the target's next token]"),
        ("commit", "    below each column of W: argmax p where it ends"),
        ("commit", "    pool += the columns; the oldest n-gram of a token goes"),
        ("commit", "    W moves on: its first row goes, the new one is its last"),
    )
    draft_size: int
    window: int
    ngram: int
    guesses: int
    from_text: bool

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        self.extra_cache_slots = self.draft_size

    def fresh(self, vocabulary: int) -> Any:
        return Pool(vocabulary, self.guesses, self.ngram - 1)

    def start(self, session: Session) -> None:
        super().start(session)
        self.length = len(session.prompt)
        self.text = np.empty(self.length + session.limit, np.int64)
        self.text[: self.length] = session.prompt
        self.ends = np.array(sorted(session.eos), np.int64)
        self.ahead = Window(widest(self.window, self.ngram, self.draft_size // 2), self.ngram, session.prompt)
        if self.from_text:
            self.store.learn(self._written(self.length))

    def draft(self, left: int) -> Draft:
        if left < 2:
            return Draft.empty("room")
        # No node may be deeper than the number of tokens that can be emitted before the target's own.
        cells, above = self.ahead.comb(left - 1)
        self.cells = len(cells)
        rows, source = self.guess(left - 1)
        tree = merge(until(rows, self.ends))
        sent = min(len(tree), self.draft_size - len(cells))
        self.session.control |= {"columns": self.ahead.columns, "guesses": int((source == "ngram").sum())}
        below = np.where(tree.parents == ROOT, ROOT, tree.parents + len(cells))
        origin = source[tree.row].tolist()
        few = slice(sent, sent + GHOSTS)
        self.unsent = Unsent(
            tree.tokens[few].tolist(), below[few].tolist(), signals={}, source=origin[few]
        )  # fmt: skip
        if not len(cells) + sent:
            return Draft.empty("none")
        shallow = tree.level.max(initial=0) == left - 1 < self.deepest
        return Draft(
            np.concatenate([cells, tree.tokens[:sent]]),
            np.concatenate([above, below[:sent]]),
            judge=np.arange(len(cells) + sent) >= len(cells),
            source=["window"] * len(cells) + origin[:sent],
            stop="budget" if sent < len(tree) else "room" if shallow else "store" if sent else "none",
        )

    @property
    def deepest(self) -> int:
        """Length of the longest candidate, if the text has room for it."""
        return self.ngram - 1

    def guess(self, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Candidates, best first: token sequences [m, longest] and the source of each."""
        grams = self.store.get(self.text[self.length - 1])[:, :depth]
        return grams, np.full(len(grams), "ngram")

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        # The window moves greedily even when sampling: guesses must depend on the past alone.
        best = likeliest_tokens(scores)
        verdict, (after,) = judge(draft, scores, self.session, best, best=best)
        self.after = after[1:].astype(np.int64)
        verdict.unsent = self.unsent if len(draft) and self.unsent.tokens else None
        return verdict

    def learn(self, draft: Draft, result: Pass | None, verdict: Verdict) -> None:
        grams = self.ahead.move(int(self.text[self.length - 1]), self.after[: self.cells])
        assert verdict.token is not None
        new = [*(verdict.tokens[node] for node in verdict.path), verdict.token]
        self.text[self.length : self.length + len(new)] = new
        self.length += len(new)
        if self.from_text:  # n-grams of the text itself count as the most recent
            grams = np.concatenate([grams, self._written(len(new))])
        self.store.learn(grams)

    def _written(self, new: int) -> np.ndarray:
        """The text's n-grams that end within its last `new` tokens, [m, N]."""
        last = self.length - self.ngram
        first = np.arange(max(last - new + 1, 0), last + 1)
        return self.text[first[:, None] + np.arange(self.ngram)]
