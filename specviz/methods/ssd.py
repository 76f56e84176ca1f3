"""Self speculative decoding of diffusion language models: the model drafts for itself, and one pass verifies.

Gao et al. 2025 ("Self Speculative Decoding for Diffusion Large Language Models"); line numbers are those of
Algorithm 1 (appendix A). A pass predicts a most likely token for every masked cell, and only one of them is
placed. The others are drafts: if the next passes would place exactly these, in this order, they can be
verified in one pass.

A node is accepted if its parent's canvas would have unmasked *this cell with this token next*. The same
token placed a step later is another state, and its canvas is not the one that stepwise decoding would read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..draft import Draft
from ..rules.cells import SSD as PARAMETERS
from ..rules.cells import judge_cells, pick_cells
from ..rules.speculative import next_origin
from .base import Session
from .sampling import Sampling
from .unmasking import (
    BLOCK,
    CACHE,
    CACHE_RULE,
    REFRESH,
    SURE,
    WHOLE,
    CellReading,
    Unmasked,
    Unmasking,
    check_length,
    placed,
)  # fmt: skip

if TYPE_CHECKING:
    from ..models.canvas import Canvas


class SSD(Unmasking):
    """Drafts the last pass's guesses for the most confident cells, one canvas each, verified in one pass."""

    name = "ssd"
    title = "Self speculative decoding"
    paper = "Gao et al. 2025"
    parameters = (*PARAMETERS, BLOCK, CACHE, REFRESH, CACHE_RULE, SURE, WHOLE)
    pseudocode = (
        ("", "x = prompt + L masks; no cell has a draft"),
        ("", "until no mask is left, or a complete block holds an end token:"),
        ("draft", "    C = the N most confident drafts, those of the current block first,"),
        ("draft:refresh", "        fewer if the cache is refreshed before"),
        ("draft:tail", "        none if fewer than N cells are masked"),
        ("draft", "    tree: the root is x; node k adds the k-th of C to its parent"),
        ("forward", "    p = model(all canvases of the tree), in one pass"),
        ("verify", "    from the root: (i, y) = the most confident cell and its token"),
        ("verify:accepted", "        a child that places y at i: accept it, go on there"),
        ("verify:rejected", "        no child does: reject them and everything after"),
        ("commit", "    x = the last accepted canvas + its own (i, y)"),
        ("commit", "    drafts and confidences: those of the accepted canvases"),
    )
    draft_length: int
    tree: str
    tail: str

    @property
    def nodes(self) -> int:
        refreshed = self.cache != "none" and self.cache_rule == "predictor"  # fast_dllm: once per block
        most = min(self.draft_length, self.refresh - 1) if refreshed else self.draft_length
        return max(2 * most - 1, 0) if self.tree == "mix" else most

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        # The pass over several canvases can flip a near-tie, as a block pass can flip an argmax.
        return "exact up to ties"

    def fits(self, length: int) -> None:
        # With the default, a shorter canvas is decoded without drafts; tail="shorter" drafts fewer cells.
        if "draft_length" in self.chosen and self.tail == "stepwise":
            check_length(self, length, self.draft_length, "a draft_length")

    def start(self, session: Session) -> None:
        super().start(session)
        # For each cell, the token and log-odds from the latest verified pass; -inf: never read.
        self.guess = np.zeros(session.limit, np.int64)
        self.belief = np.full(session.limit, -np.inf)

    def propose(self, canvas: Canvas, row: int) -> Draft:
        cells, parents, stop = pick_cells(
            canvas.open_cells(row), np.minimum(self.belief, self.sure), self.block, canvas.room(row),
            self.draft_length, self.tree, self.tail, self.first(canvas.model.shift),
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

    def judge(self, draft: Draft, reading: CellReading) -> Unmasked:
        def place(node: int) -> tuple[int, int] | None:
            at = reading.surest(node)
            return None if at is None else (int(reading.cell[at]), int(reading.token[at]))

        path, status = judge_cells(draft, place)
        *kept, own = (reading.surest(node) for node in [-1, *path])
        odds = [float(reading.odds[at]) for at in kept if at is not None]
        # Line 14: predictions of the canvases along the path; later ones overwrite earlier ones.
        seen = np.isin(reading.canvas, [-1, *path])
        self.guess[reading.cell[seen]] = reading.token[seen]
        self.belief[reading.cell[seen]] = reading.odds[seen]
        rejected = bool((draft.parents == (path[-1] if path else -1)).any())
        origin = next_origin(len(draft), rejected)
        return placed(path, reading, [own], [origin], draft, status, odds)  # type: ignore[list-item]
