"""What the methods that write masked canvases share: which cell is next, the state they see, the verdict.

The reference decodes one token per pass, block by block (LLaDA's semi-autoregressive sampling with
low-confidence remasking): the most confident masked cell of the current block gets its most likely token.
How sure a cell is, is compared as the log-odds of that token, log p − log (1 − p): probabilities of float32
saturate at 1 and tie there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from ..draft import Draft
from ..errors import ModelError, ParameterError
from ..rules.cells import COARSE, FINE, starts_with_first
from ..rules.parameters import Value
from .base import Method, Parameter, Session, Verdict
from .sampling import Sampling

if TYPE_CHECKING:
    from ..models.canvas import Canvas, Read

GRID = {torch.float64: FINE}

BLOCK = Parameter(
    "block", 8, 1, 4096, "cells", "Cells per block; each block is completed before the next.", "B"
)
CACHE = Parameter(
    "cache", "none", choices=("none", "dual"),
    meaning="none: compute every position in every pass; dual: cache everything outside the current block.",
)  # fmt: skip
REFRESH = Parameter(
    "refresh", 8, 1, 1 << 20, "tokens", "With a cache: recompute every position after this many tokens."
)
CACHE_RULE = Parameter(
    "cache_rule", "predictor", choices=("predictor", "fast_dllm"),
    meaning="With a cache: also compute the position that predicts a block's first cell (for Dream the one "
        "before it); or, as in Fast-dLLM's code, compute everything at each block's start, place Dream's "
        "first cell there, and then compute only the block, whatever refresh says.",
)  # fmt: skip
# The papers compare probabilities: those are 1 from log-odds of 6.2 on in bfloat16, of 17.3 on in float32,
# and which of such cells comes first is left to a library. Here it is the leftmost.
SURE = Parameter(
    "sure", 10.0, 0, 100, "nats",
    "Cells with log-odds of at least this count as equally confident and are placed from left to right.",
)  # fmt: skip
WHOLE = Parameter(
    "whole",
    False,
    meaning="Write every cell, as in the papers; otherwise stop after a block with an end token.",
)


@dataclass
class CellReading:
    """What a pass says of a row's cells, on the host.

    Attributes
    ----------
    canvas, cell : array of int [n]
        As in `Read`.
    token : array of int [n]
        The likeliest token of each cell.
    odds : array of float [n]
        Its log-odds on the grid.
    entropy : array of float [n]
        Of the cell's distribution, in nats.
    work : array of bool [n]
        Whether the cell is in its canvas' current block.
    sure : float
        Log-odds from which on cells are equally sure.
    block : int
        Cells of a block.
    first : bool
        Whether a block's first cell is placed before its others, however sure they are.
    """

    canvas: np.ndarray
    cell: np.ndarray
    token: np.ndarray
    odds: np.ndarray
    entropy: np.ndarray
    work: np.ndarray
    sure: float = np.inf
    block: int = 1
    first: bool = False

    @property
    def rank(self) -> np.ndarray:
        """Log-odds as cells are compared by them: at most `sure`."""
        return np.minimum(self.odds, self.sure)

    def surest(self, canvas: int) -> int | None:
        """Which entry is unmasked next in a canvas; None if none of its cells is masked."""
        mine = self.order(canvas)
        return mine[0] if mine else None

    def order(self, canvas: int = -1) -> list[int]:
        """Entries of a canvas' current block, the surest first, the leftmost of equals before the others.

        Where a block's first cell must come first, it is the only one.
        """
        mine = np.flatnonzero((self.canvas == canvas) & self.work)
        if self.first and len(start := mine[self.cell[mine] % self.block == 0]):
            return start.tolist()
        return mine[np.argsort(-self.rank[mine], kind="stable")].tolist()


@dataclass
class Unmasked(Verdict):
    """A verdict over canvases: `path` as ever, then tokens of the pass' own in `own_cells`.

    Parameters
    ----------
    cells : list of int
        Cells of all that is emitted: the path's, then `own_cells`.
    own_cells, own, origins : list
        What is placed after the path: cells, tokens, how each came about.
    odds : list of float
        Log-odds of all that is emitted, as the verifying pass had them.
    read_odds : array of float
        Log-odds of every cell read.
    """

    cells: list[int] = field(default_factory=list)
    own_cells: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    odds: list[float] = field(default_factory=list)
    read_odds: Any = None


def log_odds(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest token of each row of logits [n, vocabulary], and its log-odds, both by the grid."""
    grid = GRID.get(logits.dtype, COARSE)
    rounded = (logits * (1 / grid)).round_()  # a power of two: nothing but the grid rounds
    token = rounded.max(-1).indices  # of equals the first
    best = logits.gather(1, token[:, None])
    rest = logits.scatter(1, token[:, None], -torch.inf)
    # Their logsumexp, by a kernel that adds each row by itself: that of `logsumexp` varies with their number.
    others = rest.amax(-1) - rest.log_softmax(-1).amax(-1)
    return token, ((best[:, 0] - others) / grid).round_() * grid


def read_cells(
    reads: Sequence[Read], block: int, sure: float = np.inf, entropies: bool = False, first: bool = False
) -> list[CellReading]:
    """What a pass says of each row, brought to the host in one transfer.

    Parameters
    ----------
    reads : list of Read
        Of the rows of one pass.
    block : int
        Cells of a block.
    sure : float
        Log-odds from which on cells are equally sure.
    entropies : bool
        Whether they are wanted; else they are zero.
    first : bool
        Whether a block's first cell is placed before its others.

    Raises
    ------
    ModelError
        If a score is not a number.
    """
    logits = reads[0].logits if len(reads) == 1 else torch.cat([read.logits for read in reads])
    token, odds = log_odds(logits)
    entropy = torch.zeros_like(odds)
    if entropies:
        log_p = logits.log_softmax(-1)
        entropy = -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)
    values = torch.stack((token.to(odds.dtype), odds, entropy)).cpu().numpy()  # ids below 2^24 are exact
    if np.isnan(values[1]).any():
        raise ModelError(
            "the model's scores are not numbers (NaN): load it with dtype='float32' or check its weights"
        )
    ends = np.cumsum([len(read.cell) for read in reads])[:-1]
    rows = []
    for read, (tokens, odds_of, spread) in zip(reads, np.split(values, ends, axis=1)):
        numbers = odds_of.astype(np.float64), spread.astype(np.float64)
        rows.append(
            CellReading(
                read.canvas,
                read.cell,
                tokens.astype(np.int64),
                *numbers,
                in_work(read, block),
                sure,
                block,
                first,
            )
        )
    return rows


def in_work(read: Read, block: int) -> np.ndarray:
    """Which of the cells read are in their canvas' current block, bool [n]."""
    return read.cell // block == read.block[1 + read.canvas]


class Unmasking(Method):
    """Writes canvases; the loop calls `draft` with the canvas, `judge` with what the pass said."""

    canvas = True
    only_greedy = True
    parameters: ClassVar[tuple[Parameter, ...]] = (BLOCK, CACHE, REFRESH, CACHE_RULE, SURE, WHOLE)
    entropies = False  # whether its rule reads them
    block: int
    cache: str
    refresh: int
    cache_rule: str
    sure: float
    whole: bool

    @property
    def nodes(self) -> int:
        """Most canvases of a draft, the root apart."""
        return 0

    def policy(self) -> dict[str, Value]:
        """How its canvases are opened; runs compare where these are equal."""
        return {"block": self.block, "cache": self.cache, "refresh": self.refresh,
                "cache_rule": self.cache_rule}  # fmt: skip

    def first(self, shift: int) -> bool:
        """Whether a block's first cell is placed before its others; `shift` is the model's."""
        return starts_with_first(self.policy() | {"shift": shift})

    def fits(self, length: int) -> None:
        """Check that a canvas of so many cells can be written (`ParameterError`)."""

    def start(self, session: Session) -> None:
        self.session = session

    def propose(self, canvas: Canvas, row: int) -> Draft:
        """Nodes to read beside the state; their ``positions`` are cells."""
        return Draft.empty()

    def judge(self, draft: Draft, reading: CellReading) -> Unmasked:
        """What of a draft is kept and what is placed after it: by default the surest cell's token."""
        at = reading.surest(-1)
        assert at is not None
        return placed([], reading, [at], ["plain"])

    def ends(self, cells: np.ndarray, masked: np.ndarray, eos: Collection[int]) -> bool:
        """Whether a state is the last one: no cell is masked, or a complete block holds an end token."""
        if not masked.any():
            return True
        done = int(masked.argmax()) // self.block * self.block
        return not self.whole and bool(np.isin(cells[:done], list(eos)).any())

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact"


def placed(
    path: list[int], reading: CellReading, own: Sequence[int], origins: list[str], draft: Draft | None = None,
    status: list[str] | None = None, odds: Sequence[float] = (),
) -> Unmasked:  # fmt: skip
    """A verdict: `path` of the draft, then the entries `own` of what the pass said."""
    own = list(own)
    cells = [] if draft is None else [int(draft.positions[node]) for node in path]  # type: ignore[index]
    own_cells, tokens = reading.cell[own].tolist(), reading.token[own].tolist()
    drafted = [] if draft is None else np.asarray(draft.tokens).tolist()
    return Unmasked(
        path, drafted, tokens[0] if tokens else None, origins[0] if origins else "", status or [],
        cells=cells + own_cells, own_cells=own_cells, own=tokens, origins=origins,
        odds=[*odds, *reading.odds[own].tolist()], read_odds=reading.odds,
    )  # fmt: skip


def check_length(method: Method, length: int, least: int, what: str) -> None:
    """Refuse a canvas that is shorter than what a method places in one pass (`ParameterError`)."""
    if length < least:
        raise ParameterError(
            f"{method.name}: {what} of {least} is more than the canvas' {length} cells; lower it or raise "
            f"max_new_tokens"
        )
