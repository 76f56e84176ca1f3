"""Self speculative decoding of diffusion language models: the model drafts for itself, and one pass verifies.

Gao et al. 2025 ("Self Speculative Decoding for Diffusion Large Language Models"); line numbers are those of
Algorithm 1 (appendix A). A pass says a likeliest token of every masked cell, and only one of them is placed.
The others are drafts: if the next passes would place just these, in this order, they can be verified at once.

A node is verified where its parent's canvas would have unmasked *this cell with this token next*. The same
token placed a step later is another state, and its canvas is not the one that stepwise decoding would read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..draft import Draft
from ..rules.cells import picked
from .base import Parameter, Session
from .sampling import Sampling
from .unmasking import BLOCK, CACHE, REFRESH, SURE, WHOLE, Said, Unmasked, Unmasking, check_length, placed

if TYPE_CHECKING:
    from ..models.canvas import Canvas


class SSD(Unmasking):
    """The last pass' guesses for the surest cells, one canvas for each, verified in one pass."""

    name = "ssd"
    title = "Self speculative decoding"
    paper = "Gao et al. 2025"
    parameters = (
        Parameter("draft_length", 4, 1, 64, "tokens", "Cells that are drafted in a cycle.", "N"),
        Parameter(
            "tree", "chain", choices=("chain", "mix"),
            meaning="A chain of N canvases, or mix-order: beside each but the last its successor, 2N − 1.",
        ),
        Parameter(
            "tail", "stepwise", choices=("stepwise", "shorter"),
            meaning="Where fewer than N cells are masked: one token a pass, as written, or fewer drafts.",
        ),
        BLOCK, CACHE, REFRESH, SURE, WHOLE,
    )  # fmt: skip
    pseudocode = (
        ("", "x = prompt + L masks; no cell has a draft"),
        ("", "until no mask is left, or a complete block holds an end token:"),
        ("draft", "    C = the N surest drafts, those of the block in work first,"),
        ("draft:refresh", "        fewer if the cache is refreshed before"),
        ("draft:tail", "        none if fewer than N cells are masked"),
        ("draft", "    tree: the root is x; node k adds the k-th of C to its parent"),
        ("forward", "    p = model(all canvases of the tree), in one pass"),
        ("verify", "    from the root: (i, y) = the surest cell and its token"),
        ("verify:accepted", "        a child that places y at i: accept it, go on there"),
        ("verify:rejected", "        no child does: reject them, and all behind"),
        ("commit", "    x = the last accepted canvas + its own (i, y)"),
        ("commit", "    drafts and confidences: those of the accepted canvases"),
    )
    draft_length: int
    tree: str
    tail: str

    @property
    def nodes(self) -> int:
        most = self.draft_length if self.cache == "none" else min(self.draft_length, self.refresh - 1)
        return max(2 * most - 1, 0) if self.tree == "mix" else most

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        # The pass over several canvases can turn a near-tie, as a block pass can turn an argmax.
        return "exact up to ties"

    def fits(self, length: int) -> None:
        check_length(self, length, self.draft_length, "a draft_length")

    def start(self, session: Session) -> None:
        super().start(session)
        # Of each cell the token and the log-odds that the latest verified pass gave it; -inf: never read.
        self.guess = np.zeros(session.limit, np.int64)
        self.belief = np.full(session.limit, -np.inf)

    def propose(self, canvas: Canvas, row: int) -> Draft:
        cells, parents, stop = picked(
            canvas.open_cells(row), self.belief, self.block, canvas.room(row), self.draft_length, self.tree,
            self.tail,
        )  # fmt: skip
        if not len(cells):
            return Draft.empty(stop)
        odds = self.belief[cells]
        with np.errstate(over="ignore"):
            confidence = 1 / (1 + np.exp(-odds))
        return Draft(
            self.guess[cells], parents, positions=cells, source="self", stop=stop,
            signals={"score": odds, "confidence": confidence},
        )  # fmt: skip

    def judge(self, draft: Draft, told: Said) -> Unmasked:
        path: list[int] = []
        odds: list[float] = []
        status = ["unjudged"] * len(draft)
        at = told.surest(-1)
        while at is not None:
            children = np.flatnonzero(draft.parents == (path[-1] if path else -1))
            next_ = [
                node for node in children.tolist()
                if draft.positions[node] == told.cell[at] and draft.tokens[node] == told.token[at]  # type: ignore[index]
            ]  # fmt: skip
            for node in children.tolist():
                status[node] = "accepted" if node in next_ else "rejected"
            if not next_:
                break
            path.append(next_[0])
            odds.append(float(told.odds[at]))
            at = told.surest(path[-1])
        seen = np.isin(
            told.canvas, [-1, *path]
        )  # line 14: canvases along the path, the later over the earlier
        self.guess[told.cell[seen]], self.belief[told.cell[seen]] = told.token[seen], told.rank[seen]
        missed = (draft.parents == (path[-1] if path else -1)).any()
        origin = "plain" if not len(draft) else "correction" if missed else "bonus"
        return placed(path, told, [at], [origin], draft, status, odds)  # type: ignore[list-item]
