"""From finished cycles to the record's columns, many cycles at once.

Between two passes of a model everything is out of the processor's caches, so the same work on one cycle
costs several times what it does as one of many: cycles are held, then taken apart together. Their words
and numbers go to the ends of long lists, one a column; their logits are reduced to a few numbers.

Predictions (``pred_*``, ranks) and the drafter's signals (``node_confidence`` ...) are of the plain
softmax, so that runs with other temperatures compare. ``node_p``, ``node_q`` and ``out_p`` are what was
tested and drawn from; in greedy decoding that is the plain softmax too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import schema
from ..devices import send
from ..methods.signals import top
from ..methods.unmasking import Unmasked
from ..trace.checks import index_within
from .clock import Clock
from .cycle import Cycle

TOP = 5  # candidates in each top list
HELD = 1 << 22  # logits that are held at most, about
CHUNK = 1 << 19  # logits reduced at once on a CPU: more would fall out of its cache
# What each cycle has one of and says itself, and the columns that it goes to.
SAID = {
    name: name
    for name in ("prompt", "row", "update", "context", "keep", "end", "source", "arrival", "reused", "shown")
} | {"number": "cycle", "block": "block", "refreshed": "refreshed"}
KEPT = ("accepted", "rejected", "unsent", "pruned")  # nodes of which the target's opinion is kept


class Reducer:
    """Takes cycles and hands them to the recorder, many at a time.

    Parameters
    ----------
    recorder : specviz.trace.Recorder
        Takes the columns.
    record : {"judged", "all", None}
        ``judged`` keeps the predictions that judging read, ``all`` every row of the pass, None the text.
    clock : Clock or None
        What the cycles' marks were taken with.
    taught : int
        Successors that the method learns from each row: with ``all`` the top lists hold no fewer.
    """

    def __init__(self, recorder: Any, record: str | None, clock: Clock | None, taught: int = 0) -> None:
        self.recorder, self.record, self.clock = recorder, record, clock
        self.top = max(TOP, taught) if record == "all" else TOP
        self.held: list[Cycle] = []
        self.rows = self.vocabulary = 0  # rows of logits held, and their length
        self.last: tuple[Any, float] | None = None  # the mark before, in seconds from the start of the run

    def add(self, *cycles: Cycle) -> None:
        """Take finished cycles that ran together."""
        for cycle in cycles:
            self._hold(cycle)
        if self.rows * self.vocabulary > HELD or self.recorder.due(len(self.held) - len(cycles)):
            late = self._late()
            back, self.held = self.held[late:], self.held[:late]
            self.flush()
            self.held = back

    def _hold(self, cycle: Cycle) -> None:
        draft, scores = cycle.draft, cycle.scores
        if cycle.read is not None and self.record is not None:
            cycle = kept_cells(cycle, self.record == "all")
        elif self.record == "judged" and draft is not None and scores is not None and not draft.is_chain:
            # Of a tree few rows are kept: only those are held, and many more cycles with them.
            rows = send(np.array(read(cycle, False)) + 1, scores.device)
            cycle = replace(cycle, scores=scores.index_select(0, rows))
        self.held.append(cycle)
        if cycle.draft is not None:
            self.rows += (0 if cycle.scores is None else len(cycle.scores)) + beliefs(cycle)
            if not self.vocabulary and cycle.scores is not None:
                self.vocabulary = cycle.scores.shape[-1]

    def _last(self) -> dict[int, int]:
        """Of each prompt held, where its last cycle stands, if its text has not ended."""
        last = {cycle.prompt: i for i, cycle in enumerate(self.held)}
        return {prompt: i for prompt, i in last.items() if self.held[i].end is None}

    def _late(self) -> int:
        """Where those begin that are held back: one may turn out to be the last before an interruption.

        What ran together is not parted: its cycles begin at the very same time, rounding included.
        """
        late = min(self._last().values(), default=len(self.held))
        while 0 < late < len(self.held):
            before, begin = self.held[late - 1].marks[0], self.held[late].marks[0]
            if begin is None or before is not begin:
                break
            late -= 1
        return late

    def interrupt(self) -> None:
        """Decoding stopped here: say so in each text's last cycle, if it had not ended."""
        for i in self._last().values():
            self.held[i].end = "interrupted"

    def flush(self) -> None:
        """Hand over all that is held."""
        held, self.held, self.rows = self.held, [], 0
        if not held:
            return
        batch = Batch(self.record, self.top)
        with torch.inference_mode():
            for cycle in held:
                batch.add(cycle)
            columns = batch.columns()
        if self.record is not None and self.clock is not None:
            columns |= self._times(batch, columns, self.clock)
        self.recorder.extend(columns, len(batch.rows))

    def _times(self, batch: Batch, columns: dict[str, Any], clock: Clock) -> dict[str, Any]:
        """Phase and pass times from the marks."""
        begin, *rest = (batch.marks[i::5] for i in range(5))
        # Event times are float32 and lose precision over a long run, so each start builds on the last one.
        before, start = self.last or (begin[0], 0.0)
        starts = np.cumsum(np.append(start, clock.seconds([before, *begin[:-1]], begin)))[1:]
        self.last = begin[-1], float(starts[-1])
        one, two, three, four = map(clock.seconds, [begin, *rest[:-1]], rest)
        prefill = columns["node_token"][1] < 0  # target first, then the drafter's
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


class Batch:
    """The columns of some cycles in the making.

    A list column is one flat list for all cycles, and each cycle's count of entries, -1 where it has none
    to speak of (null). Places in the flat lists stand for nodes, predictions and emitted tokens.

    Parameters
    ----------
    record : {"judged", "all", None}
    top : int
        Candidates in each top list.
    """

    def __init__(self, record: str | None, top: int) -> None:
        self.record = record
        self.drafted, self.read = Predictions(top, True), Predictions(top)  # the drafter's and the target's
        self.rows: list[tuple] = []  # what each cycle has one of: tuples of words and numbers
        self.flat: dict[str, list[Any]] = defaultdict(list)
        self.marks: list[Any] = []  # five a cycle
        self.pass_begin: list[Any] = []
        self.pass_end: list[Any] = []
        self.nodes = self.emitted = 0  # how many so far
        self.wanted: list[
            int
        ] = []  # nodes of which the target's opinion was asked, and the place of the answer
        self.wanted_at: list[int] = []
        self.own: list[int] = []  # emitted tokens that are the target's own, likewise
        self.own_at: list[int] = []
        self.followed: list[int] = []  # emitted tokens that were drafted, and their nodes
        self.followed_node: list[int] = []
        self.drawn: list[tuple[int, Any]] = []  # emitted tokens and their probability as it was drawn from
        self.given: dict[
            str, list[tuple]
        ] = {}  # of nodes: (cycle, first node, nodes, sent, values, of unsent)
        self.untested: list[int] = []  # nodes behind the first rejection, where `given` has probabilities
        self.cells: list[tuple[int, list[int]]] = []  # of canvases: first emitted token, and everyone's cell

    def add(self, cycle: Cycle) -> None:
        """Take a cycle apart."""
        text = (*(getattr(cycle, name) for name in SAID), len(cycle.tokens))
        flat = self.flat
        flat["out_token"] += cycle.tokens
        flat["out_origin"] += cycle.origins
        if cycle.cells:
            self.cells.append((len(flat["out_token"]) - len(cycle.cells), cycle.cells))
        if self.record is None:
            self.rows.append(text)
            return
        for name, rows, tokens, begin, end in cycle.passes:
            flat["pass_model"].append(name)
            flat["pass_rows"].append(rows)
            flat["pass_tokens"].append(tokens)
            self.pass_begin.append(begin)
            self.pass_end.append(end)
        self.marks += cycle.marks
        self.marks += cycle.marks[-1:] * (5 - len(cycle.marks))
        flat["control_name"] += cycle.control
        flat["control_value"] += cycle.control.values()
        more = (len(cycle.passes), len(cycle.control) or -1)
        step = (None, None, None, *[-1] * 9) if cycle.draft is None else self._step(cycle)
        self.rows.append(text + more + step)

    def _step(self, cycle: Cycle) -> tuple:
        """What was drafted and decided, as far as the host knows it; the logits are queued."""
        draft, verdict, flat = cycle.draft, cycle.verdict, self.flat
        assert draft is not None
        assert verdict is not None
        sent, unsent = len(draft), verdict.unsent
        tokens, status = verdict.tokens, cycle.status
        source = each(draft.source, sent)
        if draft.is_chain:
            parents, positions = list(range(-1, sent - 1)), list(range(1, sent + 1))
            depth, width = sent, min(sent, 1)
        else:
            parents, positions = draft.parents.tolist(), draft.offsets.tolist()
            depth, width = draft.depth, draft.width
        if unsent is not None:
            more = len(unsent.tokens)
            tokens, status = tokens + unsent.tokens, status + each(unsent.status, more)
            source += each(unsent.source, more)
            parents += unsent.parents
            for parent in unsent.parents:
                positions.append(1 if parent < 0 else positions[parent] + 1)
        for name, values in (
            ("node_token", tokens),
            ("node_status", status),
            ("node_source", source),
            ("node_parent", parents),
            ("node_position", positions),
        ):
            flat[name] += values
        n, first, n_drafted, n_read = len(tokens), self.nodes, -1, -1
        if logits := believed(cycle):
            n_drafted = len(logits)
            self.drafted.add(logits, range(n_drafted), tokens)
        n_cells = n_order = -1
        if cycle.read is not None:
            n_read = n_cells = self._canvas(cycle, tokens, status, parents, positions)
            n_order = len(cycle.tokens)
        elif cycle.scores is not None:
            n_read = self._read(cycle, tokens, status, parents)
        u, own = -1, emitted_own(cycle)
        if verdict.u is not None and n:
            flat["node_u"] += verdict.u.tolist()
            flat["node_u"] += [np.nan] * (n - sent)
            u = n
        own_u = -1
        if verdict.token_u is not None and own:
            flat["out_u"] += [np.nan] * len(verdict.path)
            flat["out_u"].append(verdict.token_u)
            own_u = len(verdict.path) + 1
        if n:
            self._tested(cycle, n, status)
        if verdict.token_p is not None and own:
            self.drawn.append((self.emitted + len(cycle.tokens) - 1, verdict.token_p))
        path = verdict.path[: len(cycle.tokens)]
        if verdict.own_p is not None:
            self.drawn += [(self.emitted + i, verdict.own_p[node]) for i, node in enumerate(path)]
        self.followed += range(self.emitted, self.emitted + len(path))
        self.followed_node += [first + node for node in path]
        self.nodes += n
        self.emitted += len(cycle.tokens)
        tested = n or -1 if n_read >= 0 or verdict.p is not None else -1
        return (
            draft.stop,
            depth,
            width,
            n,
            n_drafted,
            n_read,
            tested,
            u,
            own_u,
            len(cycle.tokens),
            n_cells,
            n_order,
        )

    def _canvas(
        self, cycle: Cycle, tokens: list[int], status: list[str], parents: list[int], cells: list[int]
    ) -> int:
        """Queue the cells that are kept, and ask for the probabilities of what was drafted and placed."""
        verdict, read, everything = cycle.verdict, cycle.read, self.record == "all"
        assert isinstance(verdict, Unmasked)
        canvas, cell = read.canvas.tolist(), read.cell.tolist()
        place = {at: i for i, at in enumerate(zip(canvas, cell))}
        wanted = [
            (i, place[parents[i], cells[i]])
            for i, s in enumerate(status)
            if (everything or s in KEPT) and (parents[i], cells[i]) in place
        ]
        at, asked = [where for _, where in wanted], [tokens[i] for i, _ in wanted]
        start = self.read.pairs
        self.wanted += [self.nodes + i for i, _ in wanted]
        self.wanted_at += range(start, start + len(wanted))
        last, count = verdict.path[-1] if verdict.path else -1, len(verdict.path)
        for i in range(count, len(cycle.tokens)):
            at.append(place[last, cycle.cells[i]])
            asked.append(cycle.tokens[i])
            self.own.append(self.emitted + i)
            self.own_at.append(start + len(asked) - 1)
        self.read.add(cycle.scores, at, asked)
        flat = self.flat
        flat["pred_node"] += canvas
        flat["pred_position"] += cell
        flat["pred_odds"] += verdict.read_odds.tolist()
        flat["out_order"] += range(cycle.keep, cycle.keep + len(cycle.tokens))
        flat["out_odds"] += verdict.odds
        return len(canvas)

    def _read(self, cycle: Cycle, tokens: list[int], status: list[str], parents: list[int]) -> int:
        """Queue the target's rows that are kept, and the probabilities that are wanted of them.

        Of an unsent node too the target's opinion is kept, where the pass happened to hold it.
        """
        verdict, scores, everything = cycle.verdict, cycle.scores, self.record == "all"
        assert verdict is not None
        nodes = read(cycle, everything)
        place = {node: i for i, node in enumerate(nodes)}
        wanted = [i for i, s in enumerate(status) if (everything or s in KEPT) and parents[i] in place]
        at = [place[parents[i]] for i in wanted]
        asked = [tokens[i] for i in wanted]
        start = self.read.pairs
        self.wanted += [self.nodes + i for i in wanted]
        self.wanted_at += range(start, start + len(wanted))
        if emitted_own(cycle):
            at.append(place[verdict.path[-1] if verdict.path else -1])
            asked.append(verdict.token)  # type: ignore[arg-type]
            self.own.append(self.emitted + len(cycle.tokens) - 1)
            self.own_at.append(start + len(wanted))
        if len(nodes) < len(scores):
            prefix = len(nodes) == nodes[-1] + 2  # a chain's needs no copy
            scores = scores[: len(nodes)] if prefix else scores[[node + 1 for node in nodes]]
        self.read.add(scores, at, asked)
        self.flat["pred_node"] += nodes
        return len(nodes)

    def _tested(self, cycle: Cycle, n: int, status: list[str]) -> None:
        """Signals, and probabilities as they were tested where those are not the plain softmax's."""
        draft, verdict = cycle.draft, cycle.verdict
        assert draft is not None
        assert verdict is not None
        where = (len(self.rows), self.nodes, n, len(draft))
        unsent = verdict.unsent.signals if verdict.unsent is not None else {}
        said = draft.signals | verdict.signals
        for name in {**said, **unsent}:
            self.given.setdefault(name, []).append((*where, said.get(name), unsent.get(name)))
        for name, values in (("q", verdict.q), ("p", verdict.p)):
            if values is not None:
                self.given.setdefault(name, []).append((*where, values, None))
        if verdict.p is not None and self.record != "all":  # behind the first rejection nothing was tested
            self.untested += [
                self.nodes + i for i, s in enumerate(status) if s not in ("accepted", "rejected")
            ]

    def columns(self) -> dict[str, Any]:
        """The columns: one value a cycle, or (flat entries, each cycle's count)."""
        columns = list(zip(*self.rows))
        found: dict[str, Any] = dict(zip(SAID.values(), columns))
        emitted, *more = columns[len(SAID) :]
        out = np.array(emitted)
        position = np.repeat(np.array(found["keep"]), out) + index_within(out)
        for first, where in self.cells:
            position[first : first + len(where)] = where
        found |= {"out_position": (position, out)} | self._lists(out, "out_token", "out_origin")
        if self.record is None:
            return found
        passes, control, stop, depth, width, *sizes = more
        nodes, drafted, read, tested, u, out_u, spoken, cells, placed = map(np.array, sizes)
        found |= {"stop": stop, "depth": depth, "width": width}
        found |= self._lists(np.array(passes), "pass_model", "pass_rows", "pass_tokens")
        found |= self._lists(np.array(control), "control_name", "control_value")
        found |= self._lists(
            nodes, "node_token", "node_parent", "node_position", "node_source", "node_status"
        )
        found |= self._lists(u, "node_u") | self._lists(out_u, "out_u") | self._lists(read, "pred_node")
        found |= self._lists(cells, "pred_position", "pred_odds")
        found |= self._lists(placed, "out_order", "out_odds")
        return found | self._reduced(nodes, drafted, read, tested, spoken)

    def _lists(self, count: np.ndarray, *names: str) -> dict[str, Any]:
        return {name: (self.flat[name], count) for name in names}

    def _reduced(
        self, nodes: np.ndarray, drafted: np.ndarray, read: np.ndarray, tested: np.ndarray, spoken: np.ndarray
    ) -> dict[str, Any]:
        """What the logits were reduced to, and what stands in its place where the method gave numbers."""
        own, target = self.drafted.reduce(), self.read.reduce()
        top_k = np.full(len(nodes), np.nan)
        found: dict[str, Any] = {"top_k": top_k}
        p, out_p = np.full(self.nodes, np.nan, np.float32), np.full(self.emitted, np.nan, np.float32)
        if own is not None:
            k = own.top_p.shape[1]
            top_k[drafted >= 0] = k
            best = own.top_p[:, 0]
            found |= {
                "node_q": (own.p, drafted),
                "node_entropy": (own.entropy, drafted),
                "node_confidence": (best, drafted),
                "node_margin": (best - own.top_p[:, 1], drafted),
                "node_logit_margin": (own.lead, drafted),
                "node_variance": (own.variance, drafted),
                "node_top_token": (own.top_token.ravel(), times(drafted, k)),
                "node_top_p": (own.top_p.ravel(), times(drafted, k)),
            }
        if target is not None:
            k = target.top_p.shape[1]
            top_k[read >= 0] = k
            rank, ranked = np.full(self.nodes, np.nan), np.where((read >= 0) & (nodes > 0), nodes, -1)
            p[self.wanted], rank[self.wanted] = target.p[self.wanted_at], target.rank[self.wanted_at]
            out_p[self.own] = target.p[self.own_at]
            found |= {
                "pred_entropy": (target.entropy, read),
                "pred_top_token": (target.top_token.ravel(), times(read, k)),
                "pred_top_p": (target.top_p.ravel(), times(read, k)),
                "node_rank": present(rank, ranked, nodes),
            }
        overlay(p, self.given.pop("p", []))
        p[self.untested] = np.nan
        found["node_p"] = present(p, tested, nodes)
        out_p[self.followed] = p[self.followed_node]
        for at, value in self.drawn:
            out_p[at] = float(value)
        found["out_p"] = out_p, spoken
        for name, given in self.given.items():
            column = schema.column_of(name)
            values, count = found.get(column, ((), np.full(len(nodes), -1)))
            said = any(host(v).dtype == bool for v in given[0][4:] if v is not None)
            full = np.zeros(self.nodes, bool) if said else np.full(self.nodes, np.nan, np.float32)
            full[np.repeat(count >= 0, np.maximum(nodes, 0))] = values
            overlay(full, given)
            count = count.copy()
            count[[cycle for cycle, *_ in given]] = nodes[[cycle for cycle, *_ in given]]
            found[column] = present(full, count, nodes)
        return found


def times(count: np.ndarray, k: int) -> np.ndarray:
    """Counts of a flat list of `k` entries each; null stays null."""
    return np.where(count < 0, -1, count * k)


def present(full: np.ndarray, count: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A node column without the nodes of cycles that have no list (`count` -1), and the counts."""
    return full[np.repeat(count >= 0, np.maximum(nodes, 0))], count


def overlay(full: np.ndarray, given: list[tuple]) -> None:
    """Put a method's own numbers over those of whole cycles."""
    blank = False if full.dtype == bool else np.nan
    for _, first, n, sent, values, unsent in given:
        if values is not None:
            full[first + sent : first + n] = blank
            full[first : first + sent] = host(values)
        if unsent is not None:
            full[first + sent : first + n] = host(unsent)


def beliefs(cycle: Cycle) -> int:
    """How many rows `believed` would give; nothing is fetched."""
    if cycle.draft is None:
        return 0
    unsent = cycle.verdict.unsent if cycle.verdict else None
    own = 0 if cycle.draft.logits is None else len(cycle.draft.logits)
    return own + (len(unsent.logits) if unsent else 0)


def believed(cycle: Cycle) -> list[Tensor]:
    """The drafter's predictions where it chose each node, unsent ones included; empty if it gave none."""
    assert cycle.draft is not None
    logits = cycle.draft.logits
    rows = list(logits) if logits is not None else []
    unsent = cycle.verdict.unsent if cycle.verdict else None
    return [*rows, *unsent.logits] if unsent else rows


def each(value: str | Sequence[str], n: int) -> list[str]:
    """A word for each of n nodes, given for all at once or one by one."""
    return [value] * n if isinstance(value, str) else list(value)


def kept_cells(cycle: Cycle, everything: bool) -> Cycle:
    """A canvas' cycle with the cells that are kept: those of the root and of what was accepted, or all."""
    verdict, read = cycle.verdict, cycle.read
    if everything:
        return cycle
    assert isinstance(verdict, Unmasked)
    kept = np.flatnonzero(np.isin(read.canvas, [-1, *verdict.path]))
    if len(kept) == len(read.canvas):
        return cycle
    scores = cycle.scores.index_select(0, send(kept, cycle.scores.device))
    some = replace(read, logits=scores, canvas=read.canvas[kept], cell=read.cell[kept])
    return replace(
        cycle, scores=scores, read=some, verdict=replace(verdict, read_odds=verdict.read_odds[kept])
    )


def read(cycle: Cycle, everything: bool) -> list[int]:
    """Nodes after which the target's prediction is kept, the root first: what judging read, or all."""
    return [-1, *(i for i, s in enumerate(cycle.status) if everything or s == "accepted")]


def emitted_own(cycle: Cycle) -> bool:
    """Whether the token behind the accepted ones was emitted."""
    return cycle.verdict is not None and len(cycle.tokens) > len(cycle.verdict.path)


def host(values: Any) -> np.ndarray:
    """A tensor or array on the host."""
    return values.float().cpu().numpy() if torch.is_tensor(values) else np.asarray(values)


@dataclass
class Reduced:
    """Rows of logits in a few numbers.

    Parameters
    ----------
    entropy : array [rows]
        In nats.
    top_token, top_p : array [rows, k]
        Best first.
    p, rank : array [pairs]
        Of the tokens that were asked for.
    lead, variance : array [rows]
        The best logit minus the second; the logits' variance, NaN where it was not asked for.
    """

    entropy: np.ndarray
    top_token: np.ndarray
    top_p: np.ndarray
    p: np.ndarray
    rank: np.ndarray
    lead: np.ndarray
    variance: np.ndarray


class Predictions:
    """Rows of logits of many cycles, reduced together: top-k, entropy, and chosen tokens' p and rank.

    With `spread` also the variance of the logits.
    """

    def __init__(self, top: int = TOP, spread: bool = False) -> None:
        self.top, self.spread = top, spread
        self.chunks: list[tuple[list[Tensor], list[int], list[int]]] = []  # logits, and the pairs asked for
        self.rows: list[int] = []  # of each chunk
        self.most = self.pairs = 0

    def add(self, logits: Any, at: Any, tokens: list[int]) -> None:
        """Queue rows [n, vocabulary] (or a list of rows) and ask for ``p[at[i], tokens[i]]``."""
        if not self.chunks:
            row = logits[0]
            self.most = CHUNK // len(row) if row.device.type == "cpu" else HELD
        if not self.chunks or self.rows[-1] + len(logits) > self.most:
            self.chunks.append(([], [], []))
            self.rows.append(0)
        blocks, rows_asked, tokens_asked = self.chunks[-1]
        if isinstance(logits, list):
            blocks += logits
        else:
            blocks.append(logits)
        first = self.rows[-1]
        rows_asked += [first + i for i in at]
        tokens_asked += tokens
        self.rows[-1] = first + len(logits)
        self.pairs += len(tokens)

    @torch.inference_mode()
    def reduce(self) -> Reduced | None:
        """Do the work on the device and bring the few numbers over; None if nothing was queued."""
        if not self.chunks:
            return None
        some = self.chunks[0][0][0]
        vocabulary = some.shape[-1]
        # The same memory for every chunk: it stays in the cache.
        room = torch.empty(2, max(self.rows) * vocabulary, dtype=some.dtype, device=some.device)
        parts = []
        for (blocks, at, tokens), rows in zip(self.chunks, self.rows):
            logits, p = room[:, : rows * vocabulary]
            torch.cat([block.reshape(-1) for block in blocks], out=logits)
            shape = rows, vocabulary
            parts.append(reduced(logits.view(shape), at, tokens, p.view(shape), self.top, self.spread))
        self.chunks = []
        names = [field.name for field in fields(Reduced)]
        return Reduced(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def reduced(
    logits: Tensor, rows: list[int], tokens: list[int], room: Tensor, k: int = TOP, spread: bool = False
) -> Reduced:
    """What `logits` [n, vocabulary] come to, also at (rows[i], tokens[i]); `room` is written over."""
    at = torch.tensor(rows, dtype=torch.long, device=logits.device)
    asked = torch.tensor(tokens, dtype=torch.long, device=logits.device)
    best, places = top(logits, k)
    tied = best[:, 0] == best[:, 1]
    if bool(tied.any()):  # the first of equals stands first, as argmax has it
        equal = tied.nonzero()[:, 0]
        first = logits[equal].argmax(-1)
        same = (places[equal] == first[:, None]).long()
        same = torch.where(same.any(1), same.argmax(1), places.shape[1] - 1)
        places[equal, same], places[equal, 0] = places[equal, 0], first
    p = torch.softmax(logits, -1, out=room)
    top_p = p.gather(1, places)
    # H = log sum exp(x) - sum p x, and log sum exp(x) = max x - log max p. A p of 0 may meet -inf.
    # (nansum is ten times the price of a dot product, so it is kept for the rows that need it.)
    bound = best[:, 0] - top_p[:, 0].log()
    entropy = (bound - torch.linalg.vecdot(p, logits)).clamp_(min=0).cpu().numpy()
    own = logits[at, asked]
    ranks = (best[at] > own[:, None]).sum(1).cpu().numpy()
    if len(unsure := np.flatnonzero(np.isnan(entropy))):
        some = torch.from_numpy(unsure).to(logits.device)
        exact = bound[some] - (p[some] * logits[some]).nansum(-1)
        entropy[unsure] = exact.clamp_(min=0).cpu().numpy()
    if len(beyond := np.flatnonzero(ranks == best.shape[1])):  # outside the top list: counted in full
        some = torch.from_numpy(beyond).to(logits.device)
        ranks[beyond] = (logits[at[some]] > own[some, None]).sum(1).cpu().numpy()
    lead = (best[:, 0] - best[:, 1]).cpu().numpy() if best.shape[1] > 1 else np.full(len(ranks), np.nan)
    own_p = p[at, asked].cpu().numpy()
    variance = np.full(len(lead), np.nan, np.float32)
    if spread:  # as `signals.variance`, without new memory: the probabilities are not needed any more
        away = torch.sub(logits, logits.mean(-1, keepdim=True), out=room)
        variance = (torch.linalg.vecdot(away, away) / logits.shape[-1]).cpu().numpy()
    return Reduced(entropy, places.cpu().numpy(), top_p.cpu().numpy(), own_p, ranks, lead, variance)
