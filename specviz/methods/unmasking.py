"""The base of methods that write masked canvases: the order of cells, a pass's readings, the verdict.

The reference decodes one token per pass, block by block (LLaDA's semi-autoregressive sampling with
low-confidence remasking): the most confident masked cell of the current block gets its most likely token.
Confidences are compared as the log-odds of that token, log p − log (1 − p), because float32 probabilities
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
    meaning="none: compute every position in every pass; dual, as SSD's paper runs it with refresh=8: cache "
        "everything outside the current block.",
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
# The papers compare probabilities, which round to 1 above log-odds of 6.2 in bfloat16 and 17.3 in float32.
# Such ties go to the leftmost cell.
SURE = Parameter(
    "sure", 10.0, 0, 100, "nats",
    "Cells with log-odds of at least this count as equally confident and are placed from left to right. The "
        "value is ours, and another one can change the text.",
)  # fmt: skip
WHOLE = Parameter(
    "whole",
    False,
    meaning="Write every cell, as in the papers; otherwise stop after a block with an end token.",
)


@dataclass
class CellReading:
    """A pass's predictions for a row's cells, on the host.

    Attributes
    ----------
    canvas, cell : array of int [n]
        As in `Read`.
    token : array of int [n]
        The likeliest token of each cell.
    odds : array of float [n]
        Its log-odds, rounded to the grid.
    entropy : array of float [n]
        Entropy of the cell's distribution, in nats.
    work : array of bool [n]
        Whether the cell is in its canvas' current block.
    sure : float
        Log-odds from which cells count as equally sure.
    block : int
        Cells per block.
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
        """Log-odds by which cells are compared, capped at `sure`."""
        return np.minimum(self.odds, self.sure)

    def surest(self, canvas: int) -> int | None:
        """The entry to unmask next in a canvas; None if none of its cells is masked."""
        mine = self.order(canvas)
        return mine[0] if mine else None

    def order(self, canvas: int = -1) -> list[int]:
        """Entries of a canvas' current block, surest first, and the leftmost first among equals.

        If the block's first cell is masked and must come first, it is the only entry.
        """
        mine = np.flatnonzero((self.canvas == canvas) & self.work)
        if self.first and len(start := mine[self.cell[mine] % self.block == 0]):
            return start.tolist()
        return mine[np.argsort(-self.rank[mine], kind="stable")].tolist()


@dataclass
class Unmasked(Verdict):
    """A verdict over canvases: the accepted `path`, then the pass's own tokens in `own_cells`.

    Parameters
    ----------
    cells : list of int
        Cells of all emitted tokens: the path's, then `own_cells`.
    own_cells, own, origins : list
        Cells, tokens and origins of what is placed after the path.
    odds : list of float
        Log-odds of all emitted tokens, from the verifying pass.
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
    """The likeliest token of each row of logits [n, vocabulary] and its log-odds, both on the grid."""
    grid = GRID.get(logits.dtype, COARSE)
    rounded = (logits * (1 / grid)).round_()  # the grid is a power of two: only this rounds
    token = rounded.max(-1).indices  # of equals the first
    best = logits.gather(1, token[:, None])
    rest = logits.scatter(1, token[:, None], -torch.inf)
    # Logsumexp by a kernel that sums each row alone: `logsumexp` itself varies with the number of rows.
    others = rest.amax(-1) - rest.log_softmax(-1).amax(-1)
    return token, ((best[:, 0] - others) / grid).round_() * grid


def read_cells(
    reads: Sequence[Read], block: int, sure: float = np.inf, entropies: bool = False, first: bool = False
) -> list[CellReading]:
    """A pass's predictions for each row, copied to the host in one transfer.

    Parameters
    ----------
    reads : list of Read
        One for each row of a pass.
    block : int
        Cells per block.
    sure : float
        Log-odds from which cells count as equally sure.
    entropies : bool
        Whether to compute entropies; otherwise they are zero.
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
    """A method that writes canvases: the loop calls `propose` with the canvas, `judge` with the readings."""

    canvas = True
    only_greedy = True
    parameters: ClassVar[tuple[Parameter, ...]] = (BLOCK, CACHE, REFRESH, CACHE_RULE, SURE, WHOLE)
    entropies = False  # whether its rule uses the cells' entropies
    block: int
    cache: str
    refresh: int
    cache_rule: str
    sure: float
    whole: bool

    @property
    def nodes(self) -> int:
        """Maximum number of canvases in a draft, without the root."""
        return 0

    def policy(self) -> dict[str, Value]:
        """Options for opening its canvases; runs can be compared if these are equal."""
        return {"block": self.block, "cache": self.cache, "refresh": self.refresh,
                "cache_rule": self.cache_rule}  # fmt: skip

    def first(self, shift: int) -> bool:
        """Whether a block's first cell is placed before its others; `shift` is the model's."""
        return starts_with_first(self.policy() | {"shift": shift})

    def fits(self, length: int) -> None:
        """Refuse (`ParameterError`) a canvas length that the method cannot write."""

    def start(self, session: Session) -> None:
        self.session = session

    def propose(self, canvas: Canvas, row: int) -> Draft:
        """Nodes to read in addition to the state; their ``positions`` are cells."""
        return Draft.empty()

    def judge(self, draft: Draft, reading: CellReading) -> Unmasked:
        """Decide which nodes to accept and what to place after them: by default, the surest cell's token."""
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
    """The verdict that accepts `path` of the draft and then places the entries `own` of the reading."""
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
