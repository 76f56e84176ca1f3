"""The audit of canvases: are the same cells unmasked, with the same tokens, in the same order?

The reference of an exact method is stepwise decoding under the same cache policy (block, cache, refresh
interval, where it ends), one prompt at a time. Stepwise decoding is itself compared with transformers' own
forward, at passes that compute every position: without a cache all do, with one those that refresh.

Where two orders part, the state is the same up to there, and two candidates stand against each other, each a
cell and its token. The pass of that state is computed again by stepwise decoding alone, from the same
placements, in the model's format and in float64. Rounding has turned the choice, if the log-odds of both
candidates are nearer than rounding may move them, and both passes are off by no more than the bound; anything
else is a bug.

Lossy methods are listed with how many of their texts differ, the order left aside. In batches their rows are
compared with their single runs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import methods as catalogue
from ..arguments import check_int
from ..draft import Draft
from ..errors import ParameterError
from ..loop.cycle import Cycle
from ..loop.unmasking import decode_canvases
from ..methods.sampling import Sampling
from ..methods.unmasking import COARSE, GRID, Unmasking
from ..models.diffusion import Diffusion
from .reference import Reference, Wide, distance
from .result import AuditResult, Difference, Row
from .text import (
    SAMPLE,
    TIE,
    _backend,
    _factory,
    _label,
    _raised,
    audited_model,
    encoded,
    number_format,
    result_of,
)  # fmt: skip

STATES = 4  # passes of a text that are compared with the stock module's


@dataclass
class CanvasRow(Row):
    """What was found of a method that writes canvases.

    Parameters
    ----------
    passes, steps : int
        Passes that it took, and those of stepwise decoding under the same policy.
    lossy : bool
        Whether another text is no fault: `differ` then counts them.
    """

    passes: int = 0
    steps: int = 0
    lossy: bool = False

    @property
    def differ(self) -> int:
        """Prompts with another text."""
        return self.prompts - self.equal

    @property
    def holds(self) -> bool:
        return self.bug == 0 and self.prompts > 0 if self.lossy else super().holds

    @property
    def verdict(self) -> str:
        return f"lossy, {self.differ} differ" if self.lossy and self.holds else super().verdict


@dataclass
class Written:
    """A canvas, in the order in which it was written; one entry a token.

    Attributes
    ----------
    placed : list of (cell, token)
    cycle, canvas : list of int
        The pass that decided it, and which of its canvases.
    odds : list of dict of int to float
        Log-odds of every masked cell of the block in work, as that canvas had them.
    passes : int
    end : str or None
    """

    placed: list[tuple[int, int]] = field(default_factory=list)
    cycle: list[int] = field(default_factory=list)
    canvas: list[int] = field(default_factory=list)
    odds: list[dict[int, float]] = field(default_factory=list)
    passes: int = 0
    end: str | None = None
    refreshed: list[int] = field(default_factory=list)  # entries whose pass computed every position

    def add(self, cycle: Cycle, block: int) -> None:
        """A cycle more."""
        self.end = cycle.end
        verdict: Any = cycle.verdict
        if verdict is None:
            return
        self.passes += 1
        path = verdict.path
        canvases = [-1, *path]
        for i, place in enumerate(zip(cycle.cells, cycle.tokens)):
            canvas = canvases[min(i, len(path))]
            if cycle.refreshed and canvas == -1:
                self.refreshed.append(len(self.placed))
            self.placed.append(place)
            self.cycle.append(cycle.number)
            self.canvas.append(canvas)
            mine = cells_in_work(cycle.cells_read, canvas, block)
            odds = np.asarray(verdict.read_odds)[mine]
            self.odds.append(dict(zip(cycle.cells_read.cell[mine].tolist(), odds.tolist())))


class Canvases(Reference):
    """A masked-diffusion model's predictions by transformers' own forward, over whole canvases."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.model = model
        self._double = copy.deepcopy(self.net).to("cpu", torch.float64).eval()
        if self._double.config._attn_implementation not in ("eager", "sdpa"):
            self._double.set_attn_implementation("eager")

    def forward(self, net: Any, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Logits of each cell of a canvas `text` (masks where nothing stands), by one call of the module."""
        ids = torch.tensor([[*prompt, *text]], device=net.device)
        sees = torch.zeros((1, 1, ids.shape[1], ids.shape[1]), dtype=net.dtype, device=net.device)
        logits = net(input_ids=ids, attention_mask=sees, use_cache=False).logits[0]
        logits[:, self.model.mask] = -torch.inf  # no cell ends as a mask
        begin = len(prompt) - self.model.shift
        return logits[begin : begin + len(text)]

    def measured(self, prompt: list[int], text: list[int]) -> tuple[list[int], list[int]]:
        """All of a canvas."""
        return prompt, text

    @property
    def wide(self) -> Diffusion:
        """The model in float64, run by our own code: for what the stock module has no form of, the cache."""
        return Diffusion(self._double, None, self.model.name, mask=self.model.mask, shift=self.model.shift)


def run(
    model: Any,
    prompts: Sequence[Any] = (),
    methods: Sequence[Any] | None = None,
    batch: int = 1,
    max_new_tokens: int = 64,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> AuditResult:
    """Audit methods that write canvases: each against stepwise decoding under its own cache policy.

    Parameters
    ----------
    model : Diffusion or what `specviz.load` takes
    prompts : list of str, token ids, chat messages, or dicts with ``prompt`` or ``turns``
        Of several turns the first is decoded.
    methods : list of str, dict, Method or factory, optional
        ``"ssd:draft_length=3,cache=dual"``, or ``{"method": "ssd", "draft_length": 3, "cache": "dual"}``.
        Default: every method, with and without a cache; ssd with both trees.
    batch : int
        So many prompts are decoded together. What they are compared with is decoded alone.
    max_new_tokens : int
        Cells of a canvas.
    dtype, device, threads, progress
        As `specviz.audit.run` takes them.

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
    with _backend(threads):
        target = audited_model(model, device, dtype)
        if target.kind != "diffusion":
            raise ParameterError(f"{target.name} is no masked-diffusion model: audit it with audit.run")
        ids = encoded(target, prompts)
        given = DEFAULT if methods is None else methods
        factories = [
            _made(each) for each in ([given] if isinstance(given, dict) else catalogue.as_list(given))
        ]
        for make in factories:
            make().fits(length)
        for prompt in ids:
            target.open([prompt], length).close()  # one that is too long is refused before any work
        reference = Canvases(target)
        audit = _Audit(target, reference, length)
        bound = audit.measure(ids)
        named, spared = _spell(batch), int(batch > 1)
        rows = [CanvasRow(_label(make()), "", named, bound.value, spared=spared) for make in factories]
        for row, make in zip(rows, factories):
            row.lossy = make().exactness(Sampling(), number_format(target)) == "lossy"
        for first in range(0, len(ids), batch):
            audit.prompts(first, ids[first : first + batch], factories, rows, batch)
            if progress:
                progress(min(first + batch, len(ids)), len(ids))
        return result_of(target, length, bound, rows)


DEFAULT = tuple(
    f"{name}:{tree}cache={cache}"
    for cache in ("none", "dual")
    for name, tree in (
        ("stepwise", ""), ("ssd", ""), ("ssd", "tree=mix,"), ("fast_dllm", "threshold=1,"),
        ("fast_dllm", ""), ("entropy_bounded", ""),
    )
)  # fmt: skip


class _Audit:
    """Decodes and judges; what stepwise decoding writes is kept for the prompts at hand."""

    def __init__(self, target: Any, reference: Canvases, length: int) -> None:
        self.target, self.reference, self.length = target, reference, length
        self.grid = GRID.get(target.dtype, COARSE)

    def measure(self, ids: list[list[int]]) -> Any:
        """The bound, over canvases spread evenly among the prompts, each at several states."""
        picks = sorted({round(i) for i in np.linspace(0, len(ids) - 1, min(SAMPLE, len(ids)))})
        texts = []
        for pick in picks:
            written = self.alone(ids[pick], catalogue.make("stepwise", cache="dual"))
            for share in (0.0, 0.5, 1.0):
                texts.append((ids[pick], self.cells(written.placed[: int(share * len(written.placed))])))
        self.picks, self.bound = set(picks), self.reference.bound(texts)
        return self.bound

    @property
    def most(self) -> float:
        """How far apart the log-odds of two candidates may lie where rounding has turned a choice.

        A logit off by at most b moves the log-odds of a token by at most 2 b, and those of two candidates
        apart by 4 b; the grid then moves each by half a step.
        """
        return 4 * self.bound.value + self.grid

    def decode(self, prompts: list[list[int]], method: Unmasking, keep: int | None = None) -> Any:
        """What is written behind each of the prompts, together; and the cycles of row `keep`."""
        written = [Written() for _ in prompts]
        kept = []
        for cycles in decode_canvases(self.target, prompts, method, max_new_tokens=self.length):
            for cycle in cycles:
                written[cycle.row].add(cycle, method.block)
                if cycle.row == keep:
                    kept.append(cycle)
        return written if keep is None else (written[keep], kept)

    def alone(self, prompt: list[int], method: Any) -> Written:
        """One prompt."""
        return self.decode([prompt], method)[0]

    def prompts(
        self, first: int, some: list[list[int]], factories: list[Any], rows: list[CanvasRow], batch: int
    ) -> None:
        """Decode some prompts with each method, and judge."""
        own: dict[Any, list[Written]] = {}
        for make, row in zip(factories, rows):
            method = make()
            key = tuple(sorted((method.policy() | {"sure": method.sure, "whole": method.whole}).items()))
            if method.cache == "none":
                key = tuple((name, value) for name, value in key if name != "refresh")
            stepwise = like(method)
            try:
                if key not in own:
                    own[key] = [self.alone(prompt, stepwise) for prompt in some]
                single = own[key]
                if row.lossy and batch > 1:
                    single = [self.alone(prompt, make()) for prompt in some]
                found = own[key]
                if batch > 1 or type(method) is not type(stepwise):
                    found = self.decode(some, make())
            except Exception as error:  # a method that raises has not written its texts
                for i in range(len(some)):
                    row.count([Difference(first + i, -1, "bug", f"it raised {_raised(error)}")])
                continue
            for i, (written, expected) in enumerate(zip(found, single)):
                row.tokens += len(written.placed)
                row.passes += written.passes
                row.steps += own[key][i].passes
                if row.lossy and batch == 1:
                    row.prompts += 1
                    row.equal += dict(written.placed) == dict(expected.placed)
                    continue
                differences = self.compare(first + i, some, i, method, written, expected, row.lossy)
                if type(method) is type(stepwise) and first + i in self.picks:
                    differences += self.stock(first + i, some[i], method)
                if row.lossy and not differences:
                    row.prompts += 1
                    row.equal += dict(written.placed) == dict(own[key][i].placed)
                    continue
                row.count(differences)

    def compare(
        self, number: int, some: list[list[int]], i: int, method: Any, written: Written, expected: Written,
        lossy: bool,
    ) -> list[Difference]:  # fmt: skip
        """What sets what was written apart from what was expected."""
        pairs = enumerate(zip(expected.placed, written.placed))
        part = next((j for j, (a, b) in pairs if a != b), None)
        if part is not None:
            judge = self.turned if lossy else self.place
            return [judge(number, some, i, method, part, written, expected)]
        if len(written.placed) != len(expected.placed) or written.end != expected.end:
            words = f"{len(written.placed)} cells are written, up to {written.end}; expected are "
            words += f"{len(expected.placed)}, up to {expected.end}"
            return [Difference(number, min(len(written.placed), len(expected.placed)), "bug", words)]
        if method.cache == "dual" and written.refreshed != expected.refreshed:
            words = f"every position is computed at steps {written.refreshed}; expected are "
            step = next(iter(sorted(set(written.refreshed) ^ set(expected.refreshed))))
            return [Difference(number, step, "bug", f"{words}{expected.refreshed}")]
        for j, (a, b) in enumerate(zip(written.odds, expected.odds)):
            if a.keys() != b.keys():
                words = f"step {j} reads cells {sorted(a)} of the block in work; expected are {sorted(b)}"
                return [Difference(number, j, "bug", words)]
            apart = max((abs(a[cell] - b[cell]) for cell in a if a[cell] != b[cell]), default=0.0)
            if not apart <= self.most:
                words = (
                    f"the pass of step {j} is off: log-odds differ by {apart:.1e} (at most "
                    f"{self.most:.1e}), though no token changed"
                )
                return [Difference(number, j, "bug", words, distance=apart)]
        return []

    def place(
        self, number: int, some: list[list[int]], i: int, method: Any, part: int, written: Written,
        expected: Written,
    ) -> Difference:  # fmt: skip
        """Judge the first step at which two orders part: tie, noise, reference noise, or bug."""
        stepwise = like(method)
        rows = self.own(some, i, method, written.cycle[part], written.canvas[part])
        alone = self.at(self.target, some[i], stepwise, expected, part)
        exact = self.at(self.reference.wide, some[i], stepwise, expected, part)
        theirs, mine = expected.placed[part], written.placed[part]
        said = [self.target.piece(t).decode("utf8", "backslashreplace") for _, t in (theirs, mine)]
        named = f"cell {mine[0]} {said[1]!r} where stepwise has cell {theirs[0]} {said[0]!r}"
        cells = theirs[0], mine[0]
        result = Difference(number, part, "bug", named, theirs[1], mine[1], said[0], said[1], cells=cells)
        if not set(cells) <= rows.keys() & alone.keys() & exact.keys():
            result.reason += ": the pass of this step does not read both cells"
            return result

        def odds(rows: dict[int, Tensor], cell: int, token: int) -> float:
            return min(log_odds(rows[cell], token), method.sure)

        gaps = [odds(each, *theirs) - odds(each, *mine) for each in (rows, alone, exact)]
        result.gap, result.gap_alone, result.gap_double = gaps
        off = [max(distance(each[cell], exact[cell]) for cell in exact) for each in (rows, alone)]
        result.distance = off[0]
        best = max(odds(exact, cell, int(row.argmax())) for cell, row in exact.items())
        behind = best - min(odds(exact, *theirs), odds(exact, *mine))
        if max(off) <= self.bound.value and behind <= self.most:
            result.verdict = "tie" if behind < TIE else "noise" if gaps[2] > 0 else "reference noise"
        result.reason += (
            f"; log-odds apart: in its own pass {gaps[0]:+.2e}, alone {gaps[1]:+.2e}, in float64 "
            f"{gaps[2]:+.2e} (at most {self.most:.1e}); its logits are off by {off[0]:.1e}, those alone by "
            f"{off[1]:.1e} (bound {self.bound.value:.1e})"
        )
        return result

    def turned(
        self, number: int, some: list[list[int]], i: int, method: Any, part: int, written: Written,
        expected: Written,
    ) -> Difference:  # fmt: skip
        """Whether rounding alone can have parted a lossy method's row from its single run.

        Judged at the first pass that placed something else: behind equal states both must have read the same
        logits within the bound.
        """
        number_of = min(written.cycle[part], expected.cycle[part])
        step = expected.cycle.index(number_of)
        rows = self.own(some, i, method, number_of, -1)
        alone = self.at(self.target, some[i], method, expected, step)
        if rows.keys() != alone.keys():
            words = f"step {step} reads cells {sorted(rows)}; alone it reads {sorted(alone)}"
            return Difference(number, part, "bug", words)
        apart = max(distance(rows[cell], alone[cell]) for cell in rows)
        words = f"pass {number_of} places something else than alone; its logits differ by {apart:.1e} "
        words += f"(bound {2 * self.bound.value:.1e})"
        verdict = "noise" if apart <= 2 * self.bound.value else "bug"
        return Difference(number, part, verdict, words, distance=apart)

    def own(self, some: list[list[int]], i: int, method: Any, number: int, canvas: int) -> dict[int, Tensor]:
        """Logits of each masked cell of the block in work that a method's own pass read of a canvas."""
        _, cycles = self.decode(some, method.again(), keep=i)
        cycle = next(cycle for cycle in cycles if cycle.number == number)
        return rows_of(cycle.cells_read, cycle.scores, canvas, method.block)

    def at(
        self, model: Any, prompt: list[int], method: Any, written: Written, part: int
    ) -> dict[int, Tensor]:
        """Logits of each masked cell of the block in work before step `part`, by the passes of `method`.

        Every pass up to there is run again: the cache holds what they left. Without a cache one is enough.
        """
        with Wide() if model.dtype == torch.float64 else nullcontext():
            return self.replayed(model, prompt, method, written, part)

    def replayed(
        self, model: Any, prompt: list[int], method: Any, written: Written, part: int
    ) -> dict[int, Tensor]:
        """As `at`."""
        canvas = model.open([prompt], self.length, **method.policy())
        try:
            start = 0
            for step in range(1, part + 1):
                if step < part and written.cycle[step] == written.cycle[start]:
                    continue
                if method.cache == "dual":
                    canvas.forward(Draft.empty())
                    canvas.commit([])
                canvas.fill(*zip(*written.placed[start:step]))
                start = step
            read = canvas.forward(Draft.empty())[0]
            return rows_of(read, read.logits, -1, method.block)
        finally:
            canvas.close()

    def stock(self, number: int, prompt: list[int], method: Any) -> list[Difference]:
        """Whether passes over every position say what transformers' own forward says."""
        written, cycles = self.decode([prompt], method.again(), keep=0)
        known = {cycle.number: cycle for cycle in cycles}
        spread = np.linspace(0, len(written.refreshed) - 1, min(STATES, len(written.refreshed)))
        for step in sorted({written.refreshed[round(i)] for i in spread}):
            cycle = known[written.cycle[step]]
            exact = self.reference.rows(prompt, self.cells(written.placed[:step]))
            rows = rows_of(cycle.cells_read, cycle.scores, -1, method.block)
            apart = max(distance(row, exact[cell]) for cell, row in rows.items())
            if not apart <= self.bound.value:
                words = f"logits of step {step} differ by {apart:.1e} from those of {self.reference.name}"
                words += f" (bound {self.bound.value:.1e})"
                return [Difference(number, step, "bug", words, distance=apart)]
        return []

    def cells(self, placed: list[tuple[int, int]]) -> list[int]:
        """The cells of a canvas in which these tokens were placed."""
        found = [self.target.mask] * self.length
        for cell, token in placed:
            found[cell] = token
        return found


def like(method: Any) -> Any:
    """Stepwise decoding under a method's cache policy."""
    names = ("block", "cache", "refresh", "sure", "whole")
    return catalogue.make("stepwise", **{name: getattr(method, name) for name in names})


def cells_in_work(read: Any, canvas: int, block: int) -> np.ndarray:
    """Which entries of a pass are of a canvas' block in work."""
    return np.flatnonzero((read.canvas == canvas) & (read.cell // block == read.block[1 + canvas]))


def rows_of(read: Any, logits: Tensor, canvas: int, block: int) -> dict[int, Tensor]:
    """Logits of each cell that a pass read of a canvas' block in work."""
    return {int(read.cell[i]): logits[int(i)] for i in cells_in_work(read, canvas, block)}


def log_odds(row: Tensor, token: int) -> float:
    """log p - log (1 - p) of a token by its cell's logits, without the loss of a p near 1."""
    row = row.cpu().double()
    others = row.clone()
    others[token] = -torch.inf
    return float(row[token] - others.logsumexp(-1))


def _made(given: Any) -> Callable[[], Any]:
    make = _factory(given) if not isinstance(given, dict) else None
    if make is None:
        values = {name: value for name, value in given.items() if name != "method"}
        make = partial(catalogue.find(given["method"]), **values)
    method = make()
    if not isinstance(method, Unmasking):
        raise ParameterError(f"{method.name} writes no canvases: audit it with audit.run")
    return make


def _spell(batch: int) -> str:
    return "greedy" + (f", {batch} rows" if batch > 1 else "")
