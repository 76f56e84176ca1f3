"""Turn finished cycles into the record's columns, many cycles at once.

Between two passes of a model the processor's caches are cold, so reducing one cycle alone costs several times
as much as reducing it among many. Cycles are therefore held and reduced in batches. Their words and numbers
are appended to long lists, one per column; their logits are reduced to a few numbers. Logits are large, so
few cycles with a large vocabulary can be held. Recording a few cycles costs as much as recording a hundred,
so reduced ones wait until the recorder wants them.

Predictions (``pred_*``, ranks) and the drafter's signals (``node_confidence`` ...) use the plain
softmax, so that runs at different temperatures can be compared. ``node_p``, ``node_q`` and ``out_p`` are the
probabilities that were tested and drawn from; in greedy decoding they are the plain softmax too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .. import schema
from ..methods.eagle import ChosenRows
from ..methods.unmasking import Unmasked
from ..models.devices import send
from ..trace.checks import index_within
from ..trace.recorder import Columns, Recorder
from .clock import Clock, Mark
from .cycle import Cycle
from .predictions import HELD_LOGITS, TOP, Predictions, Reduced

# Attributes of a cycle that hold a single value, and their columns.
SCALARS = {
    name: name
    for name in ("prompt", "row", "update", "context", "keep", "end", "source", "arrival", "reused", "shown")
} | {"number": "cycle", "block": "block", "refreshed": "refreshed"}
KEPT = ("accepted", "rejected", "unsent", "below_budget")  # nodes whose target probability is recorded

Entry: TypeAlias = Any  # an entry of a list column: a word or a number

scalars_of = attrgetter(*SCALARS)
SINGLE = {column.name for column in schema.COLUMNS if not column.type.startswith("list<")}


class Reducer:
    """Collects cycles and hands them to the recorder, many at a time.

    Parameters
    ----------
    recorder : specviz.trace.Recorder
        Receives the columns.
    record : {"judged", "all", None}
        ``judged`` keeps the predictions that verification read, ``all`` every row of the pass, None the text.
    clock : Clock or None
        The clock that took the cycles' marks.
    learned_top_k : int
        Successors that the method learns from each row; with ``all`` the top lists hold at least as many.
    """

    def __init__(
        self, recorder: Recorder, record: str | None, clock: Clock | None, learned_top_k: int = 0
    ) -> None:
        self.recorder, self.record, self.clock = recorder, record, clock
        self.top = max(TOP, learned_top_k) if record == "all" else TOP
        self.held: list[Cycle] = []
        self.rows = self.vocabulary = 0  # rows of logits held, and their length
        self.reduced: list[Columns] = []  # reduced cycles that the recorder has not received yet
        self.last: tuple[Mark, float] | None = None  # last begin mark, and its seconds from the run's start

    def add(self, *cycles: Cycle) -> None:
        """Add finished cycles that ran together."""
        for cycle in cycles:
            self._hold(cycle)
        due = self.recorder.due(sum(map(cycle_count, self.reduced)) + len(self.held) - len(cycles))
        if due or self.rows * self.vocabulary > HELD_LOGITS:
            self._reduce(self._first_held_back())
        if due:
            self._write()

    def _hold(self, cycle: Cycle) -> None:
        draft, scores = cycle.draft, cycle.scores
        if self.record is None:  # keep only the text
            cycle = replace(cycle, draft=None, verdict=None, scores=None, status=[], passes=[])
        elif cycle.cells_read is not None:
            cycle = kept_cells(cycle, self.record == "all")
        elif self.record == "judged" and draft is not None and scores is not None and not draft.is_chain:
            # Few rows of a tree are kept. Holding only those leaves room for many more cycles.
            rows = send(np.array(kept_rows(cycle, False)) + 1, scores.device)
            cycle = replace(cycle, scores=scores.index_select(0, rows))
        self.held.append(cycle)
        if cycle.draft is not None:
            self.rows += (0 if cycle.scores is None else len(cycle.scores)) + drafter_rows(cycle)
            if not self.vocabulary and cycle.scores is not None:
                self.vocabulary = cycle.scores.shape[-1]

    def _last(self) -> dict[int, int]:
        """Index of the last held cycle of each prompt whose text has not ended."""
        last = {cycle.prompt: i for i, cycle in enumerate(self.held)}
        return {prompt: i for prompt, i in last.items() if self.held[i].end is None}

    def _first_held_back(self) -> int:
        """Index of the first cycle to hold back, in case it must be marked interrupted.

        Cycles that ran together stay together: their begin times must be identical, rounding included.
        """
        first = min(self._last().values(), default=len(self.held))
        while 0 < first < len(self.held):
            before, begin = self.held[first - 1].marks[0], self.held[first].marks[0]
            if begin is None or before is not begin:
                break
            first -= 1
        return first

    def interrupt(self) -> None:
        """Mark the last held cycle of each unfinished text as interrupted."""
        for i in self._last().values():
            self.held[i].end = "interrupted"

    def flush(self) -> None:
        """Hand all held cycles to the recorder; if they cannot be reduced, those that were are not lost."""
        try:
            self._reduce(len(self.held))
        finally:
            self._write()

    def _reduce(self, count: int) -> None:
        """Reduce the first `count` held cycles; they stay held until then, so that Ctrl-C loses none."""
        if not count:
            self.rows = 0
            return
        batch = Batch(self.record, self.top)
        with torch.inference_mode():
            for cycle in self.held[:count]:
                batch.add(cycle)
            columns = batch.columns()
        last = self.last
        if self.record is not None and self.clock is not None:
            columns |= self._times(batch, columns, self.clock)
            last = batch.marks[-5], float(columns["start"][-1])
        reduced = [*self.reduced, columns]
        self.reduced, self.held, self.rows, self.last = reduced, self.held[count:], 0, last

    def _write(self) -> None:
        """Hand the reduced cycles to the recorder; they are kept until only the writing is left."""
        if self.reduced:
            columns = joined(self.reduced)
            write = self.recorder.prepare(columns, cycle_count(columns))
            self.reduced = []
            write()

    def _times(self, batch: Batch, columns: Columns, clock: Clock) -> Columns:
        """Phase and pass times from the marks."""
        begin, *rest = (batch.marks[i::5] for i in range(5))
        # Event times are float32 and lose precision over a long run, so each start builds on the last one.
        before, start = self.last or (begin[0], 0.0)
        starts = np.cumsum(np.append(start, clock.seconds([before, *begin[:-1]], begin)))[1:]
        one, two, three, four = map(clock.seconds, [begin, *rest[:-1]], rest)
        prefill = columns["node_token"][1] < 0  # here the target runs before the drafter
        passes = columns["pass_model"][1]
        owner = np.repeat(np.arange(len(begin)), passes)
        since = clock.seconds([begin[i] for i in owner.tolist()], batch.pass_begin)
        return {
            "start": starts,
            "duration": clock.seconds(begin, rest[-1]),
            "draft_time": np.where(prefill, two, one),
            "forward_time": np.where(prefill, one, two),
            "verify_time": np.where(prefill, np.nan, three),
            "commit_time": np.where(prefill, np.nan, four),
            "pass_start": (starts[owner] + since, passes),
            "pass_duration": (clock.seconds(batch.pass_begin, batch.pass_end), passes),
        }


@dataclass
class ListColumns:
    """List columns that have equal numbers of entries in every cycle; read only once all cycles are added."""

    entries: dict[str, list[Entry]]  # by column, the entries of all cycles, in order
    count: list[int] = field(default_factory=list)  # entries of each cycle; -1 for a null list

    @classmethod
    def named(cls, *names: str) -> ListColumns:
        """Create empty columns with these names."""
        return cls({name: [] for name in names})

    def add(self, count: int, *values: Iterable[Entry]) -> None:
        """Add a cycle's lists, in the columns' order; none if `count` is -1."""
        for entries, new in zip(self.entries.values(), values):
            entries.extend(new)
        self.count.append(count)

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array(self.entries[name])

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of entries of each cycle, -1 for null."""
        return np.array(self.count)

    @cached_property
    def cycle(self) -> np.ndarray:
        """Cycle of each entry."""
        return np.repeat(np.arange(len(self.count)), np.maximum(self.counts, 0))

    def columns(self) -> Columns:
        """Return the columns in the form that the recorder takes."""
        counts = self.counts
        return {name: (entries, counts) for name, entries in self.entries.items()}


@dataclass
class NodeTable:
    """Drafted nodes, sent or not."""

    lists: ListColumns = field(
        default_factory=partial(
            ListColumns.named, "node_token", "node_parent", "node_position", "node_source", "node_status"
        )
    )
    u: ListColumns = field(default_factory=partial(ListColumns.named, "node_u"))
    tested: list[int] = field(default_factory=list)  # per cycle, nodes with a p under the target; -1: no p
    own_p: list[bool] = field(default_factory=list)  # per cycle, whether the verifier gave p
    drafter: list[int] = field(default_factory=list)  # per cycle, rows of drafter logits; -1: none
    # By signal, the method's own values: (cycle, first node, nodes, sent, values, values of unsent nodes).
    overrides: dict[str, list[tuple]] = field(default_factory=dict)
    size: int = 0

    def skip(self) -> None:
        """Add a cycle without a draft."""
        self.lists.add(-1)
        self.u.add(-1)
        self.tested.append(-1)
        self.own_p.append(False)
        self.drafter.append(-1)

    def add(self, cycle: Cycle) -> None:
        """Add a cycle's nodes: those of the draft, then those that were not sent."""
        draft, verdict = cycle.draft, cycle.verdict
        assert draft is not None
        assert verdict is not None
        sent, unsent = len(draft), verdict.unsent
        tokens, status = verdict.tokens, cycle.status
        source = each(draft.source, sent)
        if draft.is_chain:
            parents, positions = list(range(-1, sent - 1)), list(range(1, sent + 1))
        else:
            parents, positions = draft.parents.tolist(), draft.offsets.tolist()
        if unsent is not None and (more := len(unsent.tokens)):
            tokens, status = tokens + unsent.tokens, status + each(unsent.status, more)
            source += each(unsent.source, more)
            parents += unsent.parents
            for parent in unsent.parents:
                positions.append(1 if parent < 0 else positions[parent] + 1)
        n = len(tokens)
        if n:
            self._override(cycle, n)
        self.lists.add(n, tokens, parents, positions, source, status)
        if verdict.u is not None and n:
            self.u.add(n, [*verdict.u.tolist(), *[np.nan] * (n - sent)])
        else:
            self.u.add(-1)
        judged = cycle.cells_read is not None or cycle.scores is not None or verdict.p is not None
        self.tested.append(n if n and judged else -1)
        self.own_p.append(verdict.p is not None)
        self.drafter.append(drafter_rows(cycle) or -1)
        self.size += n

    def _override(self, cycle: Cycle, n: int) -> None:
        """Store the signals, and the tested probabilities where they differ from the plain softmax."""
        draft, verdict = cycle.draft, cycle.verdict
        assert draft is not None
        assert verdict is not None
        where = (len(self.tested), self.size, n, len(draft))
        unsent = verdict.unsent.signals if verdict.unsent is not None else {}
        signals = draft.signals | verdict.signals
        for name in {**signals, **unsent}:
            self.overrides.setdefault(name, []).append((*where, signals.get(name), unsent.get(name)))
        for name, values in (("q", verdict.q), ("p", verdict.p)):
            if values is not None:
                self.overrides.setdefault(name, []).append((*where, values, None))


@dataclass
class OutputTable:
    """Emitted tokens."""

    lists: ListColumns = field(default_factory=partial(ListColumns.named, "out_token", "out_origin"))
    u: ListColumns = field(default_factory=partial(ListColumns.named, "out_u"))
    order: ListColumns = field(default_factory=partial(ListColumns.named, "out_order", "out_odds"))
    path: ListColumns = field(
        default_factory=partial(ListColumns.named, "node")
    )  # the draft's nodes that became a cycle's first tokens
    drawn: list[tuple[int, Tensor | float]] = field(default_factory=list)  # (token's index, its p as drawn)
    cells: list[tuple[int, list[int]]] = field(default_factory=list)  # canvases: (first token's index, cells)
    size: int = 0

    def add(self, cycle: Cycle) -> None:
        """Add a cycle's tokens."""
        count = len(cycle.tokens)
        if cycle.cells:
            self.cells.append((self.size, cycle.cells))
        self.lists.add(count, cycle.tokens, cycle.origins)
        self.size += count

    def skip(self) -> None:
        """Leave the verdict's columns null for a cycle without a draft."""
        for lists in (self.u, self.order, self.path):
            lists.add(-1)

    def add_verdict(self, cycle: Cycle) -> None:
        """Fill the verdict's columns for the cycle added last."""
        verdict, count = cycle.verdict, len(cycle.tokens)
        assert verdict is not None
        first, path = self.size - count, verdict.path[:count]
        own = count > len(verdict.path)
        self.path.add(len(path), path)
        if verdict.token_u is not None and own:
            self.u.add(len(path) + 1, [*[np.nan] * len(path), verdict.token_u])
        else:
            self.u.add(-1)
        if verdict.token_p is not None and own:
            self.drawn.append((self.size - 1, verdict.token_p))
        if verdict.own_p is not None:
            self.drawn += [(first + i, verdict.own_p[node]) for i, node in enumerate(path)]
        if isinstance(verdict, Unmasked):
            self.order.add(count, range(cycle.keep, cycle.keep + count), verdict.odds)
        else:
            self.order.add(-1)

    def position(self, keep: Sequence[int]) -> np.ndarray:
        """Position of each token in its text, given how many tokens each cycle keeps."""
        counts = self.lists.counts
        position = np.repeat(np.array(keep, np.int64), counts) + index_within(counts)
        for first, cells in self.cells:
            position[first : first + len(cells)] = cells
        return position


@dataclass
class PredictionTable:
    """The target's predictions that are recorded."""

    target_logits: Predictions
    lists: ListColumns = field(
        default_factory=partial(ListColumns.named, "pred_node")
    )  # the node before each prediction, -1 the root; or the canvas
    cells: ListColumns = field(
        default_factory=partial(ListColumns.named, "pred_position", "pred_odds")
    )  # canvases only

    def skip(self) -> None:
        """Add a cycle without predictions of the target."""
        self.lists.add(-1)
        self.cells.add(-1)

    def add(self, cycle: Cycle, everything: bool) -> None:
        """Queue a cycle's predictions: those that verification read, or all."""
        scores = cycle.scores
        if cycle.cells_read is not None:  # a canvas always has scores
            assert isinstance(cycle.verdict, Unmasked)
            canvas = cycle.cells_read.canvas.tolist()
            self.lists.add(len(canvas), canvas)
            self.cells.add(len(canvas), cycle.cells_read.cell.tolist(), cycle.verdict.read_odds.tolist())
        elif scores is not None:
            rows = kept_rows(cycle, everything)
            self.lists.add(len(rows), rows)
            self.cells.add(-1)
            if len(rows) < len(scores):
                prefix = len(rows) == rows[-1] + 2  # true for chains, whose rows need no copy
                scores = scores[: len(rows)] if prefix else scores[[node + 1 for node in rows]]
        if scores is None:
            self.skip()
        else:
            self.target_logits.add(scores)

    def find(self, cycle: np.ndarray, node: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Index of the prediction after each node of each cycle (canvases: of each cell); -1 if not recorded.

        Without canvases the cells are ignored.
        """
        held, held_cell = self.lists["pred_node"], self.cells["pred_position"]
        if not len(held) or not len(node):
            return np.full(len(node), -1)
        if not len(held_cell):
            held_cell, cell = np.zeros_like(held), np.zeros_like(cell)
        nodes = 2 + max(held.max(initial=0), node.max(initial=0))
        cells = 1 + max(held_cell.max(initial=0), cell.max(initial=0))
        keys = (self.lists.cycle * nodes + held + 1) * cells + held_cell
        wanted = (cycle * nodes + node + 1) * cells + cell
        order = np.argsort(keys, kind="stable")
        at = np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)
        return np.where(keys[order][at] == wanted, order[at], -1)


class Batch:
    """Builds the columns of several cycles.

    Parameters
    ----------
    record : {"judged", "all", None}
    top : int
        Candidates in each top list.
    """

    def __init__(self, record: str | None, top: int) -> None:
        self.record = record
        self.scalars: list[tuple] = []
        self.drafts: list[tuple] = []  # stop, depth, width
        self.nodes, self.outputs = NodeTable(), OutputTable()
        self.predictions, self.drafter_logits = PredictionTable(Predictions(top)), Predictions(top, True)
        self.passes = ListColumns.named("pass_model", "pass_rows", "pass_tokens")
        self.control = ListColumns.named("control_name", "control_value")
        self.drafter_rows: list[np.ndarray] = []  # for each node, the drafter's prediction that chose it
        self.queued = 0  # number of those predictions
        self.marks: list[Mark] = []  # five per cycle
        self.pass_begin: list[Mark] = []
        self.pass_end: list[Mark] = []

    def add(self, cycle: Cycle) -> None:
        """Add one cycle."""
        self.scalars.append(scalars_of(cycle))
        self.outputs.add(cycle)
        if self.record is None:
            return
        names, rows, tokens, begins, ends = zip(*cycle.passes) if cycle.passes else ((),) * 5
        self.passes.add(len(names), names, rows, tokens)
        self.pass_begin += begins
        self.pass_end += ends
        self.marks += cycle.marks
        self.marks += cycle.marks[-1:] * (5 - len(cycle.marks))
        self.control.add(len(cycle.control) or -1, cycle.control.keys(), cycle.control.values())
        draft = cycle.draft
        if draft is None:
            self.drafts.append((None, None, None))
            for table in (self.nodes, self.outputs, self.predictions):
                table.skip()
            return
        self.drafts.append((draft.stop, draft.depth, draft.width))
        self.nodes.add(cycle)
        self.outputs.add_verdict(cycle)
        self.predictions.add(cycle, self.record == "all")
        logits, chosen = drafter_logits(cycle)
        if logits:
            self.drafter_rows.append(chosen + self.queued)
            self.drafter_logits.add(logits)
            self.queued += len(logits)

    def columns(self) -> Columns:
        """Return the columns: one value per cycle, or (flat entries, each cycle's count)."""
        columns: Columns = dict(zip(SCALARS.values(), zip(*self.scalars)))
        nodes, outputs, predictions = self.nodes, self.outputs, self.predictions
        position = outputs.position(columns["keep"])
        columns |= {"out_position": (position, outputs.lists.counts)} | outputs.lists.columns()
        if self.record is None:
            return columns
        columns |= dict(zip(("stop", "depth", "width"), zip(*self.drafts)))
        for lists in (
            self.passes, self.control, nodes.lists, nodes.u, outputs.u, outputs.order,
            predictions.lists, predictions.cells,
        ):  # fmt: skip
            columns |= lists.columns()
        columns["top_k"] = np.full(len(self.scalars), np.nan)
        self._add_drafter(columns)
        self._add_target(columns, position)
        self._add_signals(columns)
        return columns

    def _add_drafter(self, columns: Columns) -> None:
        """Add the columns that the drafter's logits are reduced to."""
        count = np.array(self.nodes.drafter)
        tokens = self.nodes.lists["node_token"][count[self.nodes.lists.cycle] >= 0]
        rows = np.concatenate([*self.drafter_rows, np.zeros(0, np.int64)])
        drafter = self.drafter_logits.reduce(rows, tokens)
        if drafter is None:
            return
        drafter = drafter.at(rows)
        k, best = drafter.top_p.shape[1], drafter.top_p[:, 0]
        columns["top_k"][count >= 0] = k
        columns |= {
            "node_q": (drafter.p, count),
            "node_entropy": (drafter.entropy, count),
            "node_confidence": (best, count),
            "node_margin": (best - drafter.top_p[:, 1], count),
            "node_logit_margin": (drafter.lead, count),
            "node_variance": (drafter.variance, count),
            "node_top_token": (drafter.top_token.ravel(), times(count, k)),
            "node_top_p": (drafter.top_p.ravel(), times(count, k)),
        }

    def _add_target(self, columns: Columns, position: np.ndarray) -> None:
        """Add the columns that the target's logits are reduced to, and drafted and emitted tokens' p.

        An unsent node's probability is recorded too if the pass happened to compute it.
        """
        nodes, outputs, predictions = self.nodes, self.outputs, self.predictions
        counts, cycle, status = nodes.lists.counts, nodes.lists.cycle, nodes.lists["node_status"]
        everything = self.record == "all"
        node_row = predictions.find(cycle, nodes.lists["node_parent"], nodes.lists["node_position"])
        judged = np.flatnonzero((node_row >= 0) & (everything | np.isin(status, KEPT)))
        own, own_row = self._own_tokens(position)
        target = predictions.target_logits.reduce(
            np.concatenate([node_row[judged], own_row]),
            np.concatenate([nodes.lists["node_token"][judged], outputs.lists["out_token"][own]]),
        )
        p, out_p = np.full(nodes.size, np.nan, np.float32), np.full(outputs.size, np.nan, np.float32)
        if target is not None:
            p[judged], out_p[own] = target.p[: len(judged)], target.p[len(judged) :]
            self._add_predictions(columns, target, judged)
        overlay(p, nodes.overrides.pop("p", []))
        if not everything:  # after the first rejection nothing was tested
            p[np.array(nodes.own_p)[cycle] & ~np.isin(status, ("accepted", "rejected"))] = np.nan
        columns["node_p"] = present(p, np.array(nodes.tested), counts)
        drafted = outputs.path
        at = starts(outputs.lists.counts)[drafted.cycle] + index_within(np.maximum(drafted.counts, 0))
        out_p[at] = p[starts(counts)[drafted.cycle] + drafted["node"].astype(np.int64)]
        for token, value in outputs.drawn:
            out_p[token] = float(value)
        columns["out_p"] = out_p, np.where(drafted.counts < 0, -1, outputs.lists.counts)

    def _add_predictions(self, columns: Columns, target: Reduced, judged: np.ndarray) -> None:
        """Add the target's candidates, and the ranks of the nodes that it judged."""
        nodes, count = self.nodes.lists.counts, self.predictions.lists.counts
        k = target.top_p.shape[1]
        columns["top_k"][count >= 0] = k
        rank = np.full(self.nodes.size, np.nan)
        rank[judged] = target.rank[: len(judged)]
        columns |= {
            "pred_entropy": (target.entropy, count),
            "pred_top_token": (target.top_token.ravel(), times(count, k)),
            "pred_top_p": (target.top_p.ravel(), times(count, k)),
            "node_rank": present(rank, np.where((count >= 0) & (nodes > 0), nodes, -1), nodes),
        }

    def _own_tokens(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Indices of emitted tokens that are the target's own, and of the predictions they come from."""
        outputs, path = self.outputs, self.outputs.path
        cycle = outputs.lists.cycle
        drafted = np.maximum(path.counts, 0)
        own = index_within(outputs.lists.counts) >= drafted[cycle]
        own &= (self.predictions.lists.counts >= 0)[cycle]
        node, last = path["node"].astype(np.int64), np.cumsum(drafted)[cycle] - 1
        after = np.where(drafted[cycle] > 0, node[last] if len(node) else -1, -1)
        row = self.predictions.find(cycle[own], after[own], position[own])
        if (row < 0).any():
            raise ValueError("a token was emitted after a node whose prediction is not kept")
        return np.flatnonzero(own), row

    def _add_signals(self, columns: Columns) -> None:
        """Add the method's own values, replacing reduced ones."""
        nodes = self.nodes.lists.counts
        for name, overrides in self.nodes.overrides.items():
            column = schema.column_of(name)
            values, count = columns.get(column, ((), np.full(len(nodes), -1)))
            flags = any(host(v).dtype == bool for v in overrides[0][4:] if v is not None)
            full = np.zeros(self.nodes.size, bool) if flags else np.full(self.nodes.size, np.nan, np.float32)
            full[np.repeat(count >= 0, np.maximum(nodes, 0))] = values
            overlay(full, overrides)
            count, cycles = count.copy(), [cycle for cycle, *_ in overrides]
            count[cycles] = nodes[cycles]
            columns[column] = present(full, count, nodes)


def cycle_count(columns: Columns) -> int:
    """Number of cycles that the columns hold."""
    return len(columns["prompt"])


def joined(parts: list[Columns]) -> Columns:
    """Join the columns of successive cycles; a list column that one of the parts lacks is null there."""
    columns: Columns = {}
    for name in dict.fromkeys(chain.from_iterable(parts)):
        given = [part[name] for part in parts if name in part]
        if name in SINGLE:
            columns[name] = concatenated(given)
        else:
            counts = [part[name][1] if name in part else np.full(cycle_count(part), -1) for part in parts]
            columns[name] = concatenated([entries for entries, _ in given]), np.concatenate(counts)
    return columns


def concatenated(parts: Sequence[Sequence[Entry] | np.ndarray]) -> list[Entry] | np.ndarray:
    """Concatenate lists and tuples; an array if one of the parts is one, as its NaN stands for null."""
    if any(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate([part for part in parts if len(part)] or parts)
    return [*chain.from_iterable(parts)]


def starts(count: np.ndarray) -> np.ndarray:
    """Index of each cycle's first entry."""
    count = np.maximum(count, 0)
    return np.cumsum(count) - count


def times(count: np.ndarray, k: int) -> np.ndarray:
    """Counts of a flat list with `k` values per entry; null stays null."""
    return np.where(count < 0, -1, count * k)


def present(full: np.ndarray, count: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop the nodes of cycles without a list (`count` -1) from a node column; return it with the counts."""
    return full[np.repeat(count >= 0, np.maximum(nodes, 0))], count


def overlay(full: np.ndarray, overrides: list[tuple]) -> None:
    """Overwrite whole cycles of a column with the method's own values."""
    blank = False if full.dtype == bool else np.nan
    for _, first, n, sent, values, unsent in overrides:
        if values is not None:
            full[first + sent : first + n] = blank
            full[first : first + sent] = host(values)
        if unsent is not None:
            full[first + sent : first + n] = host(unsent)


def drafter_rows(cycle: Cycle) -> int:
    """Number of rows that `drafter_logits` returns, without fetching anything."""
    if cycle.draft is None:
        return 0
    unsent = cycle.verdict.unsent if cycle.verdict else None
    own = 0 if cycle.draft.logits is None else len(cycle.draft.logits)
    return own + (len(unsent.logits) if unsent else 0)


def drafter_logits(cycle: Cycle) -> tuple[list[Tensor], np.ndarray]:
    """The drafter's predictions, if any, and for each node, sent or not, the prediction that chose it."""
    assert cycle.draft is not None
    unsent = cycle.verdict.unsent if cycle.verdict else None
    parts = [each for each in (cycle.draft.logits, unsent.logits if unsent else None) if each is not None]
    trees = [part for part in parts if isinstance(part, ChosenRows)]
    if trees and len(trees) == len(parts):  # siblings share a prediction
        return ChosenRows.distinct(trees)
    rows = [row for part in parts for row in part]
    return rows, np.arange(len(rows))


def each(value: str | Sequence[str], n: int) -> list[str]:
    """One word per node, from a single word or from one word each."""
    return [value] * n if isinstance(value, str) else list(value)


def kept_cells(cycle: Cycle, everything: bool) -> Cycle:
    """Reduce a canvas cycle to the recorded cells: those of the root and of accepted nodes, or all."""
    verdict, cells = cycle.verdict, cycle.cells_read
    if everything:
        return cycle
    assert isinstance(verdict, Unmasked)
    assert cells is not None
    kept = np.flatnonzero(np.isin(cells.canvas, [-1, *verdict.path]))
    if len(kept) == len(cells.canvas):
        return cycle
    scores = cells.logits.index_select(0, send(kept, cells.logits.device))
    some = replace(cells, logits=scores, canvas=cells.canvas[kept], cell=cells.cell[kept])
    verdict = replace(verdict, read_odds=verdict.read_odds[kept])
    return replace(cycle, scores=scores, cells_read=some, verdict=verdict)


def kept_rows(cycle: Cycle, everything: bool) -> list[int]:
    """Nodes whose target prediction is recorded, the root (-1) first: those verification read, or all."""
    return [-1, *(i for i, s in enumerate(cycle.status) if everything or s == "accepted")]


def host(values: Tensor | np.ndarray | Sequence[float]) -> np.ndarray:
    """Copy a tensor or array to the host, as NumPy."""
    return values.float().cpu().numpy() if torch.is_tensor(values) else np.asarray(values)
