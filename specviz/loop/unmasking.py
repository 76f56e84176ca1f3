"""Decode prompts with a masked-diffusion model, cell by cell.

The loop has the usual phases (draft, forward, verify, commit, record), but works on canvases: a pass reads
the state and the canvases of a draft, a verdict names cells as well as tokens, and the method decides where
the text ends. Several prompts are rows of one context and share its passes; a finished row drops out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from ..draft import Draft
from ..errors import ParameterError
from ..methods.base import Session
from ..methods.sampling import Sampling
from ..methods.unmasking import Unmasked, Unmasking, read_cells
from ..models.canvas import Canvas, Read
from ..models.diffusion import Diffusion
from .clock import Clock, Mark
from .cycle import Cycle, cut


@dataclass
class Writing:
    """A row being written: its method, its progress, and what ended it."""

    row: int
    prompt: int
    begin: int
    method: Unmasking
    placed: int = 0
    number: int = 0
    end: str | None = None
    passes: list[tuple] = field(default_factory=list)


def decode_canvases(
    target: Diffusion, prompts: Sequence[list[int]], method: Unmasking, *, max_new_tokens: int = 128,
    eos: Iterable[int] | None = None, numbers: Sequence[int] | None = None, clock: Clock | None = None,
) -> Iterator[list[Cycle]]:  # fmt: skip
    """Decode prompts together; yield the cycles that ran together.

    Parameters
    ----------
    target : Diffusion
    prompts : list of lists of int
    method : Unmasking
        Each prompt gets its own copy.
    max_new_tokens : int
        Cells of each canvas.
    eos : iterable of int, optional
        Ids that end the text. Default: the target's.
    numbers : sequence of int, optional
        Number of each prompt in the record. Default: its index in the list.
    clock : Clock, optional
        Default None: record no times.

    Yields
    ------
    list of Cycle
        First cycle 0 of each prompt, which opens its canvas and computes nothing; then one cycle of every
        row that has not ended.
    """
    mark = clock.mark if clock else lambda: None
    length = max_new_tokens
    ends = frozenset(target.eos if eos is None else eos)
    begin = mark()
    numbers = range(len(prompts)) if numbers is None else numbers
    rows = [Writing(row, numbers[row], len(tokens), copy(method)) for row, tokens in enumerate(prompts)]
    with closing(target.open(prompts, length, **method.policy(), canvases=method.nodes)) as canvas:
        for each, tokens in zip(rows, prompts):
            each.method.start(session_of(tokens, target, ends, length))
        marks = [begin, mark(), mark()]
        yield [Cycle(r.prompt, 0, r.begin, 0, marks=marks, row=r.row) for r in rows]
        while rows:
            yield step(canvas, rows, mark, ends)
            rows = [r for r in rows if r.end is None]


def step(canvas: Canvas, rows: list[Writing], mark: Callable[[], Mark], ends: frozenset[int]) -> list[Cycle]:
    """Run one cycle of every row, all in one pass."""
    method = rows[0].method
    begin = mark()
    drafts = [r.method.propose(canvas, r.row) for r in rows]
    drafted = mark()
    reads = canvas.forward(drafts, [r.row for r in rows])
    passed = mark()
    scored = read_cells(reads, method.block, method.sure, method.entropies, method.first(canvas.model.shift))
    verdicts = [r.method.judge(draft, of) for r, draft, of in zip(rows, drafts, scored)]
    for r, read in zip(rows, reads):
        r.passes = [("target", read.rows, read.fed, drafted, passed)]
    verified = mark()
    for r, draft, verdict in zip(rows, drafts, verdicts):
        keep(canvas, r, draft, verdict, ends)
    marks = [begin, drafted, passed, verified, mark()]
    return [cycle(*each, marks) for each in zip(rows, drafts, reads, verdicts)]


def session_of(tokens: list[int], target: Diffusion, ends: frozenset[int], length: int) -> Session:
    """Session for a canvas method: no draft model, no uniforms, a canvas of `length` cells."""

    def nothing(*_: object) -> NoReturn:
        raise ParameterError("a canvas is written greedily by its own model")

    return Session(list(tokens), Sampling(), target, None, ends, length, nothing, nothing)


def keep(canvas: Canvas, r: Writing, draft: Draft, verdict: Unmasked, ends: frozenset[int]) -> None:
    """Commit a verdict to the canvas, up to the token that ends the text.

    `verdict` is cut to what is emitted; drafted nodes after it become ``cut``.
    """
    masked, cells = canvas.open_cells(r.row).copy(), canvas.cells(r.row).copy()
    tokens = [*(verdict.tokens[node] for node in verdict.path), *verdict.own]
    count = 0
    for cell, token in zip(verdict.cells, tokens):
        cells[cell], masked[cell] = token, False
        count += 1
        if r.method.ends(cells, masked, ends):
            end = np.isin(cells, list(ends)).any()
            r.end = "eos" if end else "length"
            break
    path = verdict.path[:count]
    own = verdict.own[: count - len(path)]
    if r.end is not None:
        verdict.status = cut(draft, verdict, count)
    canvas.commit(path, r.row)
    canvas.fill(verdict.own_cells[: len(own)], own, r.row)
    verdict.path, verdict.own, verdict.origins = path, own, verdict.origins[: len(own)]
    verdict.token = own[0] if own else None
    verdict.cells, verdict.odds = verdict.cells[:count], verdict.odds[:count]


def cycle(r: Writing, draft: Draft, read: Read, verdict: Unmasked, marks: list[Mark]) -> Cycle:
    """Return the cycle that ends with this verdict."""
    r.number += 1
    tokens = [*(verdict.tokens[node] for node in verdict.path), *verdict.own]
    made = Cycle(
        r.prompt, r.number, r.begin + r.placed, r.placed, tokens,
        ["draft"] * len(verdict.path) + verdict.origins,
        r.end, draft, verdict, verdict.status, read.logits, r.passes, marks, row=r.row, cells_read=read,
        block=int(read.block[0]), refreshed=read.refreshed, cells=verdict.cells,
    )  # fmt: skip
    r.placed += len(tokens)
    return made
