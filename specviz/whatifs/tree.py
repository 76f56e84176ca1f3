"""Replaying UniSpec under another draft size or threshold, with the store that it would have had.

The text is the target's own, so which nodes of a tree survive follows from the text. Which tree grows
follows from the store, and the store from what earlier passes read: the replay keeps a store of its own and
teaches it what the recorded passes said (``record="all"`` keeps every row of them). Another setting also
reads what the run never asked. Then a word's successors are stale; once a tree grows from such a word, it is
a model of what would have been and no longer exact. The first such cycle is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.draft import ROOT, Draft
from specviz.errors import TraceError
from specviz.rules.store import EMPTY, Growth, Rest, Store, grow
from specviz.whatifs.known import Known, Rounding
from specviz.whatifs.walk import STOPPED, TIE, Halt, Place, Step, Walk, following, replayed

if TYPE_CHECKING:
    from specviz.trace import Trace

STALE = "the store would hold what the target thinks of a text that the run never read"
NOT_ALL = "the record does not hold what the store learnt: record with record='all'"
COLUMNS = (
    "prompt",
    "keep",
    "top_k",
    "node_token",
    "node_parent",
    "pred_node",
    "pred_top_token",
    "pred_top_p",
)
Row = tuple[np.ndarray, np.ndarray]


@dataclass
class Lessons:
    """What the passes of one text said.

    Parameters
    ----------
    said : dict of (place, tokens off the text behind it) to Row
        The successors of each text that was read.
    taught : list of (place, word, Row)
        The same in the order in which the run's own store learnt it; a cycle's place is where it began.
    """

    said: dict[tuple[int, ...], Row] = field(default_factory=dict)
    taught: list[tuple[int, int, Row]] = field(default_factory=list)


def lessons(trace: Trace, texts: list[Known], k: int) -> list[Lessons]:
    """What the run's passes taught, of each text, with `k` successors a row.

    Raises
    ------
    TraceError
        If the record holds fewer successors of a row than the store keeps.
    """
    found = [Lessons() for _ in texts]
    place = {known.prompt: i for i, known in enumerate(texts)}
    for row in trace.arrow(COLUMNS).to_pylist():
        if not row["pred_node"]:
            continue
        size, start = row["top_k"], row["keep"] or 0
        if size < k:
            if trace.run["record"] != "all":
                raise TraceError(NOT_ALL)
            raise TraceError(
                f"the record holds {size} successors of a token, the store kept up to {k}: set candidates to "
                f"{size} or less"
            )
        known, lesson = texts[place[row["prompt"]]], found[place[row["prompt"]]]
        draft = Draft(
            np.array(row["node_token"] or (), np.int64), np.array(row["node_parent"] or (), np.int64)
        )
        tokens, p = (np.array(row[name]).reshape(-1, size)[:, :k] for name in COLUMNS[-2:])
        for i, node in enumerate(row["pred_node"]):
            path = [int(draft.tokens[j]) for j in draft.path(node)]
            said = tokens[i], p[i].astype(np.float32)
            lesson.said[prefix(known, start, path)] = said
            lesson.taught.append((start, path[-1] if path else known.before(start), said))
    return found


def prefix(known: Known, start: int, path: list[int]) -> tuple[int, ...]:
    """A prefix of the text, and what stands behind it that is not the text's: (its length, *tokens)."""
    same = 0
    while same < len(path) and start + same < len(known.text) and path[same] == known.text[start + same]:
        same += 1
    return (start + same, *path[same:])


class Trees:
    """The replay of one run, text after text: the store goes with it.

    Parameters
    ----------
    texts : list of Known
    taught : list of Lessons
        Of each.
    vocabulary : int
        An id above every token's.
    parameters : dict
        All of the method's, as the replay has them.
    """

    def __init__(
        self, texts: list[Known], taught: list[Lessons], vocabulary: int, parameters: dict[str, Any]
    ) -> None:
        self.parameters, self.vocabulary = parameters, vocabulary
        self.k = parameters["candidates"]
        self.lessons = dict(zip((known.prompt for known in texts), taught))
        self._forget()

    def _forget(self) -> None:
        self.store = Store(self.vocabulary, self.k)
        self.own = Store(self.vocabulary, self.k)  # the run's, as far as it had come at the same place
        self.stale = np.zeros(self.vocabulary, bool)  # words whose successors are not known to be right
        self.modelled = False  # what was taught since hangs on which tree grew, and that is a model

    def __call__(self, known: Known, eos: frozenset[int], rounding: Rounding) -> Walk:
        """`specviz.methods.unispec`, greedy, over one text."""
        if self.parameters["keep"] == "prompt":
            self._forget()
        self.eos = eos
        lesson, values = self.lessons[known.prompt], self.parameters
        said, untaught = lesson.said, list(reversed(lesson.taught))
        text, n = known.text, len(known.text)
        edge = np.array([p[0] - p[1] for i in range(n) for p in said[(i,)][1:]]) if self.k > 1 else np.ones(n)
        tie = following(edge < rounding.target)
        near: Row = np.full(self.k, EMPTY), np.zeros(self.k, np.float32)
        first: list[Place] = [Place(known.prompt, 1, 0, None, STALE)] if self.modelled else []

        def cycle(start: int, count: int) -> Step:
            nonlocal near
            left = known.limit - start
            root = known.before(start)
            draft, rest = Draft.empty("room"), None
            if left >= 2:
                how = Growth(
                    min(values["depth"], left - 1), self.k, values["threshold"], values["scores"],
                    values["score"] == "least", values["root_token"] == "drop",
                )  # fmt: skip
                tree = grow(self.store, root, near if values["neighbours"] else None, how)
                expanded = tree.tokens[tree.score >= values["threshold"]] if values["scores"] else tree.tokens
                if not first and (self.stale[root] or self.stale[expanded].any()):
                    first.append(Place(known.prompt, count, start, None, STALE))
                draft, rest = tree.cut(values["draft_size"], values["threshold"] if values["scores"] else 0)
            at = start + draft.depths - 1
            right = (at < n) & (draft.tokens == text[np.minimum(at, n - 1)])
            alive = ~(draft.mask & ~right).any(1)
            last = int(np.where(alive, draft.depths, 0).argmax()) if alive.any() else ROOT
            accepted = int(draft.depths[last]) if last != ROOT else 0
            ended = start + accepted == n
            if ended and known.end != "eos":
                raise Halt(n, STOPPED)
            emitted = accepted + (not ended)
            if int(tie[start]) < start + emitted:
                raise Halt(int(tie[start]), TIE)
            cut = int(draft.mask[:, last].sum()) - 1 if ended else 0
            while untaught and untaught[-1][0] < start + emitted:
                _, word, row = untaught.pop()
                self.own.tokens[word], self.own.p[word] = row
            if start + emitted < n:
                near = self._teach(known, start, root, draft, said, last)
            nodes.append(_nodes(draft, rest, last, cut))
            k, more = len(draft), len(rest.tokens) if rest else 0
            return Step(
                known.prompt, count, start, k, k, k + more, k + more, accepted, cut, 0, emitted, draft.stop
            )

        nodes: list[dict[str, list]] = []
        walk = replayed(known, cycle)
        walk.nodes = nodes
        while untaught:
            _, word, row = untaught.pop()
            self.own.tokens[word], self.own.p[word] = row
        walk.modelled = first[0] if first else None
        self.modelled = bool(first)
        return walk

    def _teach(
        self, known: Known, start: int, root: int, draft: Draft, said: dict[tuple[int, ...], Row], last: int
    ) -> Row:
        """Lines 38-46, in order; gives what stood where the new root was predicted."""
        near: Row = np.full(self.k, EMPTY), np.zeros(self.k, np.float32)
        for node in range(-1, len(draft)):
            word = root if node == ROOT else int(draft.tokens[node])
            row = said.get(prefix(known, start, [int(draft.tokens[i]) for i in draft.path(node)]))
            unknown = row is None
            if row is None:  # what the run's store had learnt of the word by then is the nearest to it
                row = self.own.tokens[word], self.own.p[word]
            if node == last:
                near = row
            if word not in self.eos:
                self.stale[word] = unknown
                self.store.tokens[word], self.store.p[word] = row
        return near


def _nodes(draft: Draft, rest: Rest | None, last: int, cut: int) -> dict[str, list]:
    """The record's columns of a replayed tree."""
    path = draft.path(last)
    parents, n = draft.parents.tolist(), len(draft)
    judged = np.isin(draft.parents, [ROOT, *path])
    status = np.where(np.isin(np.arange(n), path), "accepted", np.where(judged, "rejected", "unjudged"))
    if cut:
        below = draft.mask[:, last].copy()
        below[last] = False
        status[below] = "cut"
    rest = rest or Rest([], [], np.empty(0, np.float32), [], [])
    positions = draft.offsets.tolist()
    for parent in rest.parents:
        positions.append(1 if parent == ROOT else positions[parent] + 1)
    score = draft.signals["score"].tolist() if n else []
    return {
        "node_token": draft.tokens.tolist() + rest.tokens,
        "node_parent": parents + rest.parents,
        "node_position": positions,
        "node_source": (list(draft.source) if n else []) + rest.source,
        "node_status": status.tolist() + rest.status,
        "node_score": score + rest.score.tolist(),
    }
