"""Replay UniSpec under another draft size or threshold, with the store that it would have had.

The text is the target's own, so it determines which nodes of a tree survive. The store determines which tree
grows, and the store depends on what earlier passes read. The replay updates its own store with what the
recorded passes read (``record="all"`` keeps all of their rows). Another setting also reads text that the run
never read; a word's successors are then stale. Once a tree grows from a stale word, the replay is a model and
no longer exact. Answers name the first cycle of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from specviz.draft import ROOT, Draft
from specviz.errors import TraceError
from specviz.rules.speculative import common_prefix, longest_path
from specviz.rules.store import EMPTY, Growth, Rest, Store, grow
from specviz.trace import Trace
from specviz.whatifs.texts import Rounding, Setting, TextRecord
from specviz.whatifs.walk import DraftSize, Place, Replay, Step, Walk, following

STALE = "the store would hold the target's predictions on text that the run never read"
NOT_ALL = "the record does not hold what the store learnt: record with record='all'"
COLUMNS = (
    "prompt", "keep", "top_k", "node_token", "node_parent", "pred_node", "pred_top_token", "pred_top_p",
)  # fmt: skip
Row = tuple[np.ndarray, np.ndarray]  # tokens [k] and their probabilities, best first


@dataclass
class Lessons:
    """The successors that the passes of one text read.

    Parameters
    ----------
    rows : dict of (position, tokens after it that leave the text) to Row
        Keyed by the text that a pass read.
    in_order : list of (position, word, Row)
        The same rows in the order in which the run's own store learnt them; the position is the start of the
        cycle.
    """

    rows: dict[tuple[int, ...], Row] = field(default_factory=dict)
    in_order: list[tuple[int, int, Row]] = field(default_factory=list)


def read_lessons(trace: Trace, texts: list[TextRecord], k: int) -> list[Lessons]:
    """What the run's passes read for each text, with `k` successors per row.

    Raises
    ------
    TraceError
        If the record holds fewer successors of a row than the store keeps.
    """
    lessons = {record.prompt: Lessons() for record in texts}
    records = {record.prompt: record for record in texts}
    for row in trace.arrow(COLUMNS).to_pylist():
        if not row["pred_node"]:
            continue
        size, start = row["top_k"], row["keep"] or 0
        if size < k:
            if trace.run["record"] != "all":
                raise TraceError(NOT_ALL)
            raise TraceError(
                f"the record holds {size} successors per token, but the store kept up to {k}: set "
                f"candidates to {size} or less"
            )
        record, lesson = records[row["prompt"]], lessons[row["prompt"]]
        nodes, parents = (np.array(row[name] or (), np.int64) for name in ("node_token", "node_parent"))
        draft = Draft(nodes, parents)
        tokens, p = (np.array(row[name]).reshape(-1, size)[:, :k] for name in COLUMNS[-2:])
        for i, node in enumerate(row["pred_node"]):
            path = [int(draft.tokens[j]) for j in draft.path(node)]
            entry = tokens[i], p[i].astype(np.float32)
            lesson.rows[prefix(record, start, path)] = entry
            lesson.in_order.append((start, path[-1] if path else record.before(start), entry))
    return list(lessons.values())


def prefix(record: TextRecord, start: int, path: list[int]) -> tuple[int, ...]:
    """The text's prefix that a path follows, and the path's tokens that leave it: (length, *tokens)."""
    same = common_prefix(path, record.text[start : start + len(path)].tolist())
    return (start + same, *path[same:])


class Trees:
    """The replay of one run, text after text, with the store carried along.

    Parameters
    ----------
    texts : list of TextRecord
    lessons : list of Lessons
        The lessons of each text.
    vocabulary : int
        An id above every token's.
    parameters : dict
        All parameters of the method, with the replay's values.
    """

    def __init__(
        self, texts: list[TextRecord], lessons: list[Lessons], vocabulary: int, parameters: Setting
    ) -> None:
        self.parameters, self.vocabulary = parameters, vocabulary
        self.k: int = parameters["candidates"]
        self.lessons = dict(zip((record.prompt for record in texts), lessons))
        self._forget()

    def _forget(self) -> None:
        self.store = Store(self.vocabulary, self.k)
        self.own = Store(self.vocabulary, self.k)  # the run's store at the same position
        self.stale = np.zeros(self.vocabulary, bool)  # words whose successors may be wrong
        self.modelled = False  # the store depends on a modelled tree

    def __call__(self, record: TextRecord, eos: frozenset[int], rounding: Rounding) -> Walk:
        """Replay greedy `specviz.methods.unispec` over one text."""
        if self.parameters["keep"] == "prompt":
            self._forget()
        return TreeReplay(self, record, eos, rounding).walk()


class TreeReplay(Replay):
    """One text's replay; it reads and updates the stores of `run`."""

    def __init__(self, run: Trees, record: TextRecord, eos: frozenset[int], rounding: Rounding) -> None:
        super().__init__(record, eos, rounding)
        self.run, lessons = run, run.lessons[record.prompt]
        self.rows = lessons.rows
        # A store learns nothing from the cycle that ends a text.
        last = max((start for start, _, _ in lessons.in_order), default=0)
        self.untaught = [lesson for lesson in reversed(lessons.in_order) if lesson[0] < last]
        lead = np.ones(self.n)
        if run.k > 1:
            lead = np.array([p[0] - p[1] for i in range(self.n) for p in self.rows[(i,)][1:]])
        self.next_tie = following(lead < rounding.target)
        self.neighbours: Row = np.full(run.k, EMPTY), np.zeros(run.k, np.float32)
        self.modelled = Place(record.prompt, 1, 0, None, STALE) if run.modelled else None
        self.nodes: list[dict[str, list]] = []

    def walk(self) -> Walk:
        walk = super().walk()
        walk.nodes, walk.modelled = self.nodes, self.modelled
        self.teach_own(self.n)
        # After a text that was not replayed to its end, the store lacks what it would have learnt.
        self.run.modelled |= self.modelled is not None or walk.place is not None
        return walk

    def cycle(self, start: int, count: int) -> Step:
        n, root = self.n, self.record.before(start)
        draft, rest = self.draft(start, count, root)
        at = start + draft.depths - 1
        right = (at < n) & (draft.tokens == self.text[np.minimum(at, n - 1)])
        last, _ = longest_path(draft, right)
        accepted = int(draft.depths[last]) if last != ROOT else 0
        emitted = self.emitted(start, accepted)
        cut = int(draft.mask[:, last].sum()) - 1 if start + accepted == n else 0
        self.teach_own(start + emitted)
        if start + emitted < n:
            self.teach(start, root, draft, last)
        self.nodes.append(_nodes(draft, rest, last, cut))
        size = DraftSize.exactly(len(draft), len(draft) + len(rest.tokens), draft.stop)
        return self.step(start, count, size, accepted, emitted, cut)

    def draft(self, start: int, count: int, root: int) -> tuple[Draft, Rest]:
        """The tree that grows from the replay's store, and its nodes that are not sent."""
        left, values = self.record.limit - start, self.run.parameters
        if left < 2:
            return Draft.empty("room"), Rest([], [], np.empty(0, np.float32), [])
        growth = Growth.of(values, left)
        tree = grow(self.run.store, root, self.neighbours, growth)
        expanded = tree.tokens[tree.score >= growth.threshold]
        if self.modelled is None and (self.run.stale[root] or self.run.stale[expanded].any()):
            self.modelled = Place(self.record.prompt, count, start, None, STALE)
        return tree.cut(values["draft_size"], growth)

    def teach_own(self, end: int) -> None:
        """Bring the run's own store to its state when the text was `end` tokens long."""
        own = self.run.own
        while self.untaught and (end == self.n or self.untaught[-1][0] < end):
            _, word, row = self.untaught.pop()
            own.tokens[word], own.p[word] = row

    def teach(self, start: int, root: int, draft: Draft, last: int) -> None:
        """Lines 38-46, in order: update the replay's store and the neighbours of the new root."""
        run = self.run
        for node in range(-1, len(draft)):
            word = root if node == ROOT else int(draft.tokens[node])
            row = self.rows.get(prefix(self.record, start, [int(draft.tokens[i]) for i in draft.path(node)]))
            unread = row is None
            if row is None:  # closest to it is what the run's store had learnt of the word by then
                row = run.own.tokens[word], run.own.p[word]
            if node == last:
                self.neighbours = row
            if word not in self.eos:
                run.stale[word] = unread
                run.store.tokens[word], run.store.p[word] = row


def _nodes(draft: Draft, rest: Rest, last: int, cut: int) -> dict[str, list]:
    """The record's columns for a replayed tree."""
    path = draft.path(last)
    parents, n = draft.parents.tolist(), len(draft)
    judged = np.isin(draft.parents, [ROOT, *path])
    status = np.where(np.isin(np.arange(n), path), "accepted", np.where(judged, "rejected", "unjudged"))
    if cut:
        below = draft.mask[:, last].copy()
        below[last] = False
        status[below] = "cut"
    positions = draft.offsets.tolist()
    for parent in rest.parents:
        positions.append(1 if parent == ROOT else positions[parent] + 1)
    score = draft.signals["score"].tolist() if n else []
    return {
        "node_token": draft.tokens.tolist() + rest.tokens,
        "node_parent": parents + rest.parents,
        "node_position": positions,
        "node_source": (list(draft.source) if n else []) + rest.source,
        "node_status": status.tolist() + ["below_budget"] * len(rest.tokens),
        "node_score": score + rest.score.tolist(),
    }
