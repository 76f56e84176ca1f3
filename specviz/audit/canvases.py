"""The audit of canvases: are the same cells unmasked, with the same tokens, in the same order?

The reference for an exact method is stepwise decoding under the same cache policy (block, cache, refresh
interval, end), one prompt at a time. Stepwise decoding under each policy is itself compared with
transformers' own forward, at passes that compute every position: all passes without a cache, and those that
refresh with one. A fault there counts against every method with this policy.

Up to the place where two orders diverge, the state is the same, and there are two candidates, each a cell and
its token. The pass at that state is computed again by stepwise decoding alone, from the same placements, in
the model's format and in float64. Rounding explains the choice if the log-odds of both candidates are closer
than rounding may move them, and both passes are off by no more than the bound; anything else is a bug. For an
invariant model, the logits of every step are first compared bit for bit.

Lossy methods are listed with the number of their texts that differ, whatever the order. In batches, their
rows are compared with their single runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from .. import methods as catalogue
from ..arguments import check_int
from ..draft import Draft
from ..errors import ParameterError
from ..loop.cycle import Cycle
from ..loop.drafters import Loadable
from ..loop.machine import number_format
from ..loop.unmasking import decode_canvases
from ..methods.stepwise import Stepwise
from ..methods.unmasking import COARSE, GRID, Unmasked, Unmasking, in_work
from ..models.canvas import Read
from ..models.diffusion import Diffusion
from ..rules.speculative import common_prefix
from . import setup
from .reference import Net, Reference, Wide, distance
from .result import AuditResult, Difference, Row
from .text import SAMPLE, TIE, result_of, spread

STATES = 4  # passes of a text that are compared with the stock module's
Make: TypeAlias = Callable[[], Unmasking]  # makes a fresh method
Named: TypeAlias = Mapping[str, Any]  # a method's name and its parameters
Logits: TypeAlias = dict[int, Tensor]  # by cell


@dataclass
class CanvasRow(Row):
    """The row of a method that writes canvases.

    Parameters
    ----------
    passes, steps : int
        Passes of the method, and those of stepwise decoding under the same policy.
    lossy : bool
        Whether a different text is allowed; `differ` then counts these texts.
    """

    passes: int = 0
    steps: int = 0
    lossy: bool = False

    @property
    def differ(self) -> int:
        """Number of prompts with a different text."""
        return self.prompts - self.equal

    @property
    def holds(self) -> bool:
        return self.bug == 0 and self.prompts > 0 if self.lossy else super().holds

    @property
    def verdict(self) -> str:
        return f"lossy, {self.differ} differ" if self.lossy and self.holds else super().verdict


@dataclass
class Written:
    """A canvas, in the order in which it was written; one entry per token."""

    placed: list[tuple[int, int]] = field(default_factory=list)  # cell and token
    cycle: list[int] = field(default_factory=list)  # the pass that decided it ...
    canvas: list[int] = field(default_factory=list)  # ... and which of its canvases
    # Log-odds of every masked cell of the current block in that canvas.
    odds: list[dict[int, float]] = field(default_factory=list)
    # Hashes of those cells' logits; of an invariant model alone, for these are copied from its device.
    bits: list[dict[int, bytes]] = field(default_factory=list)
    passes: int = 0
    end: str | None = None
    refreshed: list[int] = field(default_factory=list)  # entries whose pass computed every position

    def add(self, cycle: Cycle, block: int, invariant: bool) -> None:
        """Add a cycle."""
        self.end = cycle.end
        verdict, read = cycle.verdict, cycle.cells_read
        if not isinstance(verdict, Unmasked) or read is None:
            return
        self.passes += 1
        canvases = [-1, *verdict.path]
        for i, place in enumerate(zip(cycle.cells, cycle.tokens)):
            canvas = canvases[min(i, len(verdict.path))]
            if cycle.refreshed and canvas == -1:
                self.refreshed.append(len(self.placed))
            self.placed.append(place)
            self.cycle.append(cycle.number)
            self.canvas.append(canvas)
            mine = cells_in_work(read, canvas, block)
            odds = np.asarray(verdict.read_odds)[mine]
            cells = read.cell[mine].tolist()
            self.odds.append(dict(zip(cells, odds.tolist())))
            if invariant:
                self.bits.append(dict(zip(cells, map(_hashed, read.logits[torch.as_tensor(mine)]))))

    def same_text(self, other: Written) -> bool:
        """Whether both have the same tokens in the same cells, in any order."""
        return dict(self.placed) == dict(other.placed)


class Canvases(Reference):
    """A masked-diffusion model's predictions by transformers' own forward, over whole canvases."""

    def __init__(self, model: Diffusion) -> None:
        super().__init__(model)
        self.model = model

    def forward(self, net: Net, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Logits of each cell of a canvas `text` (with masks in empty cells), by one call of the module."""
        ids = torch.tensor([[*prompt, *text]], device=net.device)
        sees = torch.zeros((1, 1, ids.shape[1], ids.shape[1]), dtype=net.dtype, device=net.device)
        logits = net(input_ids=ids, attention_mask=sees, use_cache=False).logits[0]
        logits[:, self.model.mask] = -torch.inf  # a mask is never written
        begin = len(prompt) - self.model.shift
        return logits[begin : begin + len(text)]

    def measured(self, prompt: list[int], text: list[int]) -> tuple[list[int], list[int]]:
        """The part of a canvas over which rounding is measured: all of it."""
        return prompt, text

    @cached_property
    def wide(self) -> Diffusion:
        """The model in float64, run by our own code: the stock module has no such cache."""
        return Diffusion(self.wide_net, None, self.model.name, mask=self.model.mask, shift=self.model.shift)


def run(
    model: Loadable,
    prompts: Sequence[setup.Entry] = (),
    methods: Sequence[setup.Given | Named] | Named | None = None,
    batch: int = 1,
    max_new_tokens: int = 64,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    progress: setup.Progress = None,
) -> AuditResult:
    """Audit methods that write canvases: each against stepwise decoding under its own cache policy.

    Parameters
    ----------
    model : Diffusion or what `specviz.load` takes
    prompts : list of str, token ids, chat messages, or dicts with ``prompt``, ``turns`` or ``messages``
        Of several turns, the first is decoded. A single text is one prompt.
    methods : list of str, dict, class, Method or factory, optional
        ``"ssd:draft_length=3,cache=dual"``, or ``{"method": "ssd", "draft_length": 3, "cache": "dual"}``.
        Default: every method, with and without a cache; ssd with both trees.
    batch : int
        Number of prompts that are decoded in one batch. Their references are decoded alone.
    max_new_tokens : int
        Cells of a canvas.
    dtype, device, threads, progress
        As in `specviz.audit.run`.

    Returns
    -------
    AuditResult
        A `CanvasRow` for each of `methods`, in their order. Without laws: nothing is drawn.

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work.
    """
    batch, length = check_int("batch", batch, 1), check_int("max_new_tokens", max_new_tokens, 1)
    with setup.on_backend(threads):
        target = setup.audited_model(model, device, dtype)
        if not isinstance(target, Diffusion):
            raise ParameterError(f"{target.name} is not a masked-diffusion model: audit it with audit.run")
        ids = setup.encoded(target, prompts)
        given = DEFAULT if methods is None else methods
        makers = [
            _made(each) for each in ([given] if isinstance(given, Mapping) else catalogue.as_list(given))
        ]
        for make in makers:
            make().fits(length)
        for prompt in ids:
            target.open([prompt], length).close()  # a prompt that is too long is refused before any work
        audit = _Audit(target, length, ids)
        named = "greedy" + (f", {batch} rows" if batch > 1 else "")
        rows = [
            CanvasRow(
                setup.label(make()), "", named, audit.bound.value, spared=int(batch > 1),
                lossy=setup.is_lossy(make(), number_format(target)),
            )
            for make in makers
        ]  # fmt: skip
        for first in range(0, len(ids), batch):
            audit.prompts(first, ids[first : first + batch], makers, rows, batch)
            if progress:
                progress(min(first + batch, len(ids)), len(ids))
        return result_of(target, length, audit.bound, rows)


DEFAULT = tuple(
    f"{name}:{tree}cache={cache}"
    for cache in ("none", "dual")
    for name, tree in (
        ("stepwise", ""), ("ssd", ""), ("ssd", "tree=mix,"), ("fast_dllm", "threshold=1,"),
        ("fast_dllm", ""), ("entropy_bounded", ""),
    )
)  # fmt: skip


class _Audit:
    """Decodes and judges canvases.

    The bound is measured over canvases spread evenly among the prompts (`picks`), each in several states.
    """

    def __init__(self, target: Diffusion, length: int, ids: list[list[int]]) -> None:
        self.target, self.reference, self.length = target, Canvases(target), length
        self.grid = GRID.get(target.dtype, COARSE)
        self.picks = spread(len(ids), SAMPLE)
        states = []
        for pick in self.picks:
            placed = self.alone(ids[pick], Stepwise(cache="dual")).placed
            for share in (0.0, 0.5, 1.0):
                states.append((ids[pick], self.cells(placed[: int(share * len(placed))])))
        self.bound = self.reference.bound(states)

    @property
    def most(self) -> float:
        """The largest difference between the log-odds of two candidates that rounding can explain.

        Logits off by at most b move the log-odds of a token by at most 2 b, and those of two candidates apart
        by at most 4 b; the grid then moves each by half a step.
        """
        return 4 * self.bound.value + self.grid

    def decode(
        self, prompts: list[list[int]], method: Unmasking, keep: int = 0
    ) -> tuple[list[Written], list[Cycle]]:
        """Write the canvases of the prompts in one batch; also return the cycles of row `keep`."""
        written = [Written() for _ in prompts]
        kept = []
        for cycles in decode_canvases(self.target, prompts, method, max_new_tokens=self.length):
            for cycle in cycles:
                written[cycle.row].add(cycle, method.block, self.target.invariant)
                if cycle.row == keep:
                    kept.append(cycle)
        return written, kept

    def alone(self, prompt: list[int], method: Unmasking) -> Written:
        """Write the canvas of one prompt."""
        return self.decode([prompt], method)[0][0]

    def prompts(
        self, first: int, some: list[list[int]], makers: list[Make], rows: list[CanvasRow], batch: int
    ) -> None:
        """Decode some prompts with each method, and judge."""
        own: dict[tuple, tuple[list[Written], list[list[Difference]]]] = {}
        for make, row in zip(makers, rows):
            method = make()
            key = tuple((name, value) for name, value in policy_of(method).items()
                        if name not in ("refresh", "cache_rule") or method.cache != "none")  # fmt: skip
            try:
                if key not in own:
                    alone = [self.alone(prompt, like(method)) for prompt in some]
                    faults = [
                        self.stock(first + i, prompt, like(method)) if first + i in self.picks else []
                        for i, prompt in enumerate(some)
                    ]
                    own[key] = alone, faults
                expected, faults = own[key]
                stepwise = expected
                if row.lossy and batch > 1:
                    expected = [self.alone(prompt, make()) for prompt in some]
                is_own = batch == 1 and type(method) is Stepwise
                written = stepwise if is_own else self.decode(some, make())[0]
            except Exception as error:  # a method that raises has not written its texts
                for i in range(len(some)):
                    row.count([Difference(first + i, -1, "bug", f"it raised {setup.raised(error)}")])
                continue
            for i, one in enumerate(written):
                row.tokens += len(one.placed)
                row.passes += one.passes
                row.steps += stepwise[i].passes
                differences = list(faults[i])
                if not row.lossy or batch > 1:
                    pair = _Pair(self, first + i, some, i, method, one, expected[i])
                    differences += pair.compare(row.lossy)
                if row.lossy and not differences:
                    row.prompts += 1
                    row.equal += one.same_text(stepwise[i])
                else:
                    row.count(differences)

    def at(
        self, model: Diffusion, prompt: list[int], method: Unmasking, written: Written, part: int
    ) -> Logits:
        """Logits of each masked cell of the current block before step `part`, by the passes of `method`.

        With a cache, every earlier pass is repeated, because the cache depends on them. Without one, a single
        pass is enough.
        """
        wide = Wide() if model.dtype == torch.float64 else nullcontext()
        with wide, closing(model.open([prompt], self.length, **method.policy())) as canvas:
            start = 0
            for step in range(1, part + 1):
                if step < part and written.cycle[step] == written.cycle[start]:
                    continue
                if method.cache == "dual":
                    canvas.forward(Draft.empty())
                    canvas.commit([])
                cells, tokens = zip(*written.placed[start:step])
                canvas.fill(cells, tokens)
                start = step
            return rows_of(canvas.forward(Draft.empty())[0], -1, method.block)

    def stock(self, number: int, prompt: list[int], method: Unmasking) -> list[Difference]:
        """Compare passes over every position with transformers' own forward."""
        (written,), cycles = self.decode([prompt], method.again())
        by_number = {cycle.number: cycle for cycle in cycles}
        for step in (written.refreshed[i] for i in spread(len(written.refreshed), STATES)):
            cycle = by_number[written.cycle[step]]
            exact = self.reference.rows(prompt, self.cells(written.placed[:step]))
            rows = rows_of(cycle.cells_read, -1, method.block)
            apart = max(distance(row, exact[cell]) for cell, row in rows.items())
            if not apart <= self.bound.value:
                words = f"logits of step {step} differ by {apart:.1e} from those of {self.reference.name}"
                words += f" (bound {self.bound.value:.1e})"
                return [Difference(number, step, "bug", words, distance=apart)]
        return []

    def cells(self, placed: list[tuple[int, int]]) -> list[int]:
        """The cells of a canvas after these placements."""
        cells = [self.target.mask] * self.length
        for cell, token in placed:
            cells[cell] = token
        return cells


@dataclass
class _Pair:
    """A prompt's canvas as it was written (in row `i` of `prompts`) and as expected."""

    audit: _Audit
    number: int
    prompts: list[list[int]]
    i: int
    method: Unmasking
    written: Written
    expected: Written

    def bug(self, step: int, reason: str, distance: float | None = None) -> list[Difference]:
        """A bug at a step."""
        return [Difference(self.number, step, "bug", reason, distance=distance)]

    def compare(self, lossy: bool) -> list[Difference]:
        """Judge the first difference, if there is one."""
        written, expected = self.written, self.expected
        part = common_prefix(expected.placed, written.placed)
        if self.audit.target.invariant:
            for step, (mine, theirs) in enumerate(zip(written.bits[: part + 1], expected.bits)):
                if mine != theirs:
                    words = f"logits of step {step} are not bit-identical to those of a separate pass"
                    return self.bug(step, words)
        if part < min(len(expected.placed), len(written.placed)):
            return [self.turned(part) if lossy else self.place(part)]
        if len(written.placed) != len(expected.placed) or written.end != expected.end:
            words = f"{len(written.placed)} cells are written, up to {written.end}; expected are "
            return self.bug(part, f"{words}{len(expected.placed)}, up to {expected.end}")
        if self.method.cache == "dual" and written.refreshed != expected.refreshed:
            words = f"every position is computed at steps {written.refreshed}; expected are "
            step = min(set(written.refreshed) ^ set(expected.refreshed))
            return self.bug(step, f"{words}{expected.refreshed}")
        for j, (a, b) in enumerate(zip(written.odds, expected.odds)):
            if a.keys() != b.keys():
                words = f"step {j} reads cells {sorted(a)} of the current block; expected are {sorted(b)}"
                return self.bug(j, words)
            apart = max((abs(a[cell] - b[cell]) for cell in a if a[cell] != b[cell]), default=0.0)
            if not apart <= self.audit.most:
                words = f"the pass of step {j} is wrong: log-odds differ by {apart:.1e} (at most "
                return self.bug(j, f"{words}{self.audit.most:.1e}), though no token changed", apart)
        return []

    def place(self, part: int) -> Difference:
        """Judge the first step at which two orders diverge: tie, noise, reference noise, or bug."""
        audit, stepwise, prompt = self.audit, like(self.method), self.prompts[self.i]
        rows = self.own(self.written.cycle[part], self.written.canvas[part])
        alone = audit.at(audit.target, prompt, stepwise, self.expected, part)
        exact = audit.at(audit.reference.wide, prompt, stepwise, self.expected, part)
        theirs, mine = self.expected.placed[part], self.written.placed[part]
        words = [audit.target.piece(t).decode("utf8", "backslashreplace") for _, t in (theirs, mine)]
        named = f"cell {mine[0]} {words[1]!r} where stepwise has cell {theirs[0]} {words[0]!r}"
        cells = theirs[0], mine[0]
        result = Difference(
            self.number, part, "bug", named, theirs[1], mine[1], words[0], words[1], cells=cells
        )
        if not set(cells) <= rows.keys() & alone.keys() & exact.keys():
            result.reason += ": the pass of this step does not read both cells"
            return result

        def odds(rows: Logits, cell: int, token: int) -> float:
            return min(log_odds(rows[cell], token), self.method.sure)

        gaps = [odds(each, *theirs) - odds(each, *mine) for each in (rows, alone, exact)]
        result.gap, result.gap_alone, result.gap_double = gaps
        off = [max(distance(each[cell], exact[cell]) for cell in exact) for each in (rows, alone)]
        result.distance = off[0]
        best = max(odds(exact, cell, int(row.argmax())) for cell, row in exact.items())
        below = best - min(odds(exact, *theirs), odds(exact, *mine))
        if max(off) <= audit.bound.value and below <= audit.most:
            result.verdict = "tie" if below < TIE else "noise" if gaps[2] > 0 else "reference noise"
        result.reason += (
            f"; difference of log-odds: in its own pass {gaps[0]:+.2e}, alone {gaps[1]:+.2e}, in float64 "
            f"{gaps[2]:+.2e} (at most {audit.most:.1e}); its logits are off by {off[0]:.1e}, those alone by "
            f"{off[1]:.1e} (bound {audit.bound.value:.1e})"
        )
        return result

    def turned(self, part: int) -> Difference:
        """Judge whether rounding alone can explain a lossy method's row that differs from its single run.

        The first pass that placed something else decides: the states were equal, so both must have read the
        same logits within the bound.
        """
        number = min(self.written.cycle[part], self.expected.cycle[part])
        step = self.expected.cycle.index(number)
        rows = self.own(number, -1)
        prompt = self.prompts[self.i]
        alone = self.audit.at(self.audit.target, prompt, self.method, self.expected, step)
        if rows.keys() != alone.keys():
            return self.bug(part, f"step {step} reads cells {sorted(rows)}; alone it reads {sorted(alone)}")[
                0
            ]
        apart, bound = max(distance(rows[cell], alone[cell]) for cell in rows), 2 * self.audit.bound.value
        words = f"pass {number} places different cells or tokens than when decoded alone"
        verdict = "noise" if apart <= bound else "bug"
        numbers = f"its logits differ by {apart:.1e} (bound {bound:.1e})"
        return Difference(self.number, part, verdict, f"{words}; {numbers}", distance=apart)

    def own(self, number: int, canvas: int) -> Logits:
        """Logits of each masked cell of a canvas' current block, from the method's own pass."""
        _, cycles = self.audit.decode(self.prompts, self.method.again(), keep=self.i)
        cycle = next(cycle for cycle in cycles if cycle.number == number)
        return rows_of(cycle.cells_read, canvas, self.method.block)


def policy_of(method: Unmasking) -> dict[str, Any]:
    """The parameters that stepwise decoding shares with a method."""
    return {each.name: getattr(method, each.name) for each in Unmasking.parameters}


def like(method: Unmasking) -> Stepwise:
    """Stepwise decoding under a method's cache policy."""
    return Stepwise(**policy_of(method))


def cells_in_work(read: Read, canvas: int, block: int) -> np.ndarray:
    """Indices of a pass's entries in a canvas' current block."""
    return np.flatnonzero((read.canvas == canvas) & in_work(read, block))


def rows_of(read: Read | None, canvas: int, block: int) -> Logits:
    """Logits of each cell of a canvas' current block that a pass read."""
    assert read is not None
    return {int(read.cell[i]): read.logits[int(i)] for i in cells_in_work(read, canvas, block)}


def _hashed(row: Tensor) -> bytes:
    """A hash of a row's bits."""
    return hashlib.blake2b(row.cpu().numpy().tobytes(), digest_size=16).digest()


def log_odds(row: Tensor, token: int) -> float:
    """log p - log (1 - p) of a token from its cell's logits, accurate even for p near 1."""
    row = row.cpu().double()
    others = row.clone()
    others[token] = -torch.inf
    return float(row[token] - others.logsumexp(-1))


def _made(given: setup.Given | Named) -> Make:
    """As `factory`, for a method that writes canvases; also takes a dict of its name and parameters."""
    if isinstance(given, Mapping):
        values = {name: value for name, value in given.items() if name != "method"}
        given = partial(catalogue.find(given["method"]), **values)
    make = catalogue.factory(given)
    method = make()
    if not isinstance(method, Unmasking):
        raise ParameterError(f"{method.name} writes no canvases: audit it with audit.run")
    return cast("Make", make)
