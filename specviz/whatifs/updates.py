"""Replay a stream update by update: what another bias, mask or mode would have kept, shown and written.

The record holds an update's output and the target's predictions at each of its positions, given the text
before: from the verification pass up to the first rejection, and from passes over one token after it. Another
setting verifies another draft, or accepts another part of it. It writes the same output as long as

- each draft token that matches the output is kept, and no other is (equation 3 of Zeng et al.,
  `specviz.rules.retranslation.keeps`), and
- after the last kept one, every token of the output is the target's first choice.

The first update for which this fails has another text, and every later one another draft: only a rerun can
tell. What a display hides does not change the text.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from specviz.errors import TraceError
from specviz.metrics.tokens import MODEL, tokenizer
from specviz.rules import retranslation as rules
from specviz.rules.speculative import chain_status, common_prefix, next_origin
from specviz.trace import Trace
from specviz.trace.text import begun_text
from specviz.whatifs.answer import EXACT, RERUN
from specviz.whatifs.cell import prefix_of, recorded, replayed_run
from specviz.whatifs.texts import FLOOR, Candidates, Row, number, positive, spacing
from specviz.whatifs.walk import STOPPED, TIE, Halt, Place, Step, Walk

PARTS = "the text diverges here"
UNSEEN = "the record does not hold the target's probability of this token here"
COLUMNS = (
    "prompt", "update", "cycle", "context", "keep", "end", "top_k", "source", "arrival", "reused", "shown",
    "node_token", "node_status", "node_p", "pred_node", "pred_top_token", "pred_top_p", "out_token",
)  # fmt: skip
HEAD = ("prompt", "update", "source", "arrival", "reused", "context")  # an update's columns in its cycle 0


class Choice(NamedTuple):
    """The parameters of `specviz.methods.retranslate` that a what-if can change."""

    mode: str
    beta: float
    k: int
    mask: str


@dataclass(eq=False)
class UpdateRecord:
    """An update and the record of the positions of its output.

    Parameters
    ----------
    prompt, update : int
    source, arrival, reused
        As in the record.
    context : int
        Tokens of its prompt.
    limit : int
        Most tokens that could be generated.
    text : list of int
        The output, an end token included.
    end : str or None
        What ended it.
    last : bool
        Whether the source was complete, so that everything was displayed.
    draft : list of int
        The run's draft, of which `accepted` tokens stayed.
    top : dict of int to list of (token, probability)
        The target's candidates by position, best first.
    rejected : dict of int to (token, probability)
        The rejected draft token by position, with the target's probability of it.
    """

    prompt: int
    update: int
    source: str
    arrival: float | None
    reused: int | None
    context: int
    limit: int
    text: list[int] = field(default_factory=list)
    end: str | None = None
    last: bool = False
    draft: list[int] = field(default_factory=list)
    accepted: int = 0
    top: dict[int, Candidates] = field(default_factory=dict)
    rejected: dict[int, tuple[int, float]] = field(default_factory=dict)

    def p(self, at: int) -> dict[int, float]:
        """The recorded probabilities of the target at a position."""
        return dict([*self.top.get(at, []), *([self.rejected[at]] if at in self.rejected else [])])


class ReplayedUpdate(NamedTuple):
    """A replayed update.

    Parameters
    ----------
    record : UpdateRecord
        The update that it replays, with the same output.
    draft : list of int
    kept : int
        Draft tokens that stay: accepted, or in continuous decoding carried over unreviewed.
    shown : int
        Tokens on display.
    """

    record: UpdateRecord
    draft: list[int]
    kept: int
    shown: int


@dataclass
class StreamWalk(Walk):
    """The replay of one stream: cycles and updates, up to the update (`place.cycle`) that diverges."""

    updates: list[ReplayedUpdate] = field(default_factory=list)


def read_updates(trace: Trace) -> list[list[UpdateRecord]]:
    """Read the record of each stream of a run, update by update.

    Raises
    ------
    TraceError
        If the trace does not say how long the model's context is, or holds no updates.
    """
    run = trace.run
    longest = positive((run["model"] or {}).get("max_length"))
    most = positive((run["sampling"] or {}).get("max_new_tokens"))
    if longest is None or most is None:
        raise TraceError(
            "the trace does not say how long its model's context is (an older one): record it again"
        )
    prefix = positive((run["model"] or {}).get("prefix"))  # an encoder-decoder's, which replaces the source
    masked = (run["parameters"] or {}).get("k") or 0
    ends = frozenset(run["eos"] or ())
    streams: dict[int, list[UpdateRecord]] = {}
    for row in trace.arrow(COLUMNS).to_pylist():
        stream = streams.setdefault(row["prompt"], [])
        if row["cycle"] == 0:
            if row["source"] is None:
                raise TraceError("this needs runs whose source arrives in updates")
            limit = min(most, longest - (row["context"] if prefix is None else prefix))
            stream.append(UpdateRecord(**{name: row[name] for name in HEAD}, limit=limit))
        record = stream[-1]
        _read_cycle(record, row)
        if row["end"] is not None:
            record.last = bool(masked) and row["shown"] == len(rules.without_end(record.text, ends))
    if not masked:  # nothing was hidden, so the record does not say: assume the last recorded update
        begun = max([len(run["prompts"] or ()) - 1, *streams])  # the run's last one, selected or not
        for prompt, stream in streams.items():
            stream[-1].last = bool(run["complete"]) or prompt != begun
    return list(streams.values())


def _read_cycle(record: UpdateRecord, row: Row) -> None:
    """Add what a cycle says about the positions that it covers."""
    start, k = row["keep"] or 0, row["top_k"] or 0
    nodes, status = row["node_token"] or [], row["node_status"] or []
    accepted = sum(word == "accepted" for word in status)
    if nodes:
        record.draft, record.accepted = nodes, accepted + status.count("unreviewed")
    for i, node in enumerate(row["pred_node"] or ()):
        if node < accepted:  # after a rejected token the pass read another text
            candidates = slice(i * k, i * k + k)
            record.top[start + node + 1] = list(
                zip(row["pred_top_token"][candidates], map(number, row["pred_top_p"][candidates]))
            )
    if accepted < len(nodes) and status[accepted] == "rejected":
        p = number((row["node_p"] or [None] * len(nodes))[accepted])
        record.rejected[start + accepted] = nodes[accepted], p
    record.text += row["out_token"] or []
    record.end = row["end"] or record.end


def tolerance(run: Row) -> float:
    """How close two probabilities must be for a pass of another shape to swap them."""
    return FLOOR * spacing(run["dtype"])


def replay(
    stream: list[UpdateRecord], own: Choice, choice: Choice, ends: frozenset[int], width: float,
    second_pass: bool,
) -> StreamWalk:  # fmt: skip
    """Replay greedy `specviz.methods.retranslate` up to where its text would differ from the run's.

    Parameters
    ----------
    stream : list of UpdateRecord
    own, choice : Choice
        The run's, and the one to replay.
    ends : frozenset of int
    width : float
        Decisions closer than this are ties, unless every pass so far had the run's own shape.
    second_pass : bool
        Whether the token at the divergence took a pass of its own.
    """
    walk = StreamWalk()
    previous: list[int] = []
    same = True  # whether each pass so far read the run's own tokens, so that its results are identical
    for record in stream:
        draft = rules.drafted(previous, choice.k, choice.mask, ends) if choice.mode != "rt" else []
        draft = draft[: record.limit]
        try:
            if record.end in (None, "interrupted"):
                raise Halt(len(record.text), STOPPED)
            same = same and draft == record.draft and (own.mode == choice.mode or not draft)
            if same and (own.beta == choice.beta or not draft or choice.mode == "cd"):
                kept = record.accepted
            else:
                kept = _kept(record, draft, choice, width, same)
        except Halt as halt:
            walk.place = Place(record.prompt, record.update, halt.position, halt.token, halt.why)
            return walk
        shown = rules.displayed(len(rules.without_end(record.text, ends)), choice.k, record.last)
        walk.updates.append(ReplayedUpdate(record, draft, kept, shown))
        walk.steps += _steps(record, draft, kept, choice, second_pass)
        previous = record.text
    return walk


def _kept(record: UpdateRecord, draft: list[int], choice: Choice, width: float, same: bool) -> int:
    """How many tokens of a draft stay.

    Raises
    ------
    Halt
        If the text would diverge, or the record does not say whether it does.
    """
    text, at = record.text, 0
    # A pass over the run's own tokens gives the same scores, so no first choice can change.
    close = 0.0 if same else width
    while at < len(draft) and (
        choice.mode == "cd" or _stays(record, at, draft[at], choice.beta, width, close)
    ):
        if draft[at] != text[at]:
            raise Halt(at, PARTS, draft[at])
        at += 1
    for place in range(at, 0 if same and at == record.accepted else len(text)):
        _check_target(record, place, close)
    return at


def _stays(record: UpdateRecord, at: int, token: int, beta: float, width: float, close: float) -> bool:
    """Algorithm 1, lines 6 and 7: whether a draft token stays at a position of the text.

    Decisions about probabilities closer than `width` are ties, as are first choices closer than `close`.
    """
    room = beta / (1 - beta) if beta < 1 else float("inf")
    if room >= 1:  # no probability is further below the largest one
        return True
    top = _candidates(record, at)
    best, most = top[0]
    if best == token:
        if room < close and len(top) > 1 and most - top[1][1] < close:
            raise Halt(at, TIE)
        return True
    if beta == 0 and not close:
        return False
    p = record.p(at).get(token)
    if p is None or p != p:  # it is not a candidate, so it is no likelier than the last one
        least = max(0.0, most - top[-1][1])
        if room > most + width:
            return True
        if room < least - width:
            return False
        raise Halt(at, UNSEEN)
    if beta == 0:
        if most - p < close:
            raise Halt(at, TIE)
        return False
    if abs(most - p - room) < width:
        raise Halt(at, TIE)
    return bool(rules.keeps(most, p, beta))


def _check_target(record: UpdateRecord, at: int, width: float) -> None:
    """Check that the target's first choice here is the text's token."""
    top = _candidates(record, at)
    if top[0][0] != record.text[at]:
        raise Halt(at, PARTS, top[0][0])
    if len(top) > 1 and top[0][1] - top[1][1] < width:
        raise Halt(at, TIE)


def _candidates(record: UpdateRecord, at: int) -> Candidates:
    top = record.top.get(at)
    if not top:
        raise Halt(at, UNSEEN)
    return top


def _steps(
    record: UpdateRecord, draft: list[int], kept: int, choice: Choice, second_pass: bool
) -> Iterator[Step]:
    """The cycles of a replayed update."""
    n, total, start, count, prompt = len(draft), len(record.text), 0, 1, record.prompt
    if n:
        carried = choice.mode == "cd"
        alone = carried or second_pass  # the pass adds no token of the target's own
        start, count = min(total, kept + (not alone)), 2
        if carried:
            yield Step(prompt, 1, 0, 0, 0, n, n, 0, 0, kept, start, "")
        else:
            yield Step(prompt, 1, 0, n, n, n, n, kept, 0, 0, start, "")
    for place in range(start, total):
        yield Step(prompt, count + place - start, place, 0, 0, 0, 0, 0, 0, 0, 1, "")


def tabulate_updates(
    trace: Trace, rows: list[tuple[Choice, list[StreamWalk]]], tokenize: str | None
) -> pd.DataFrame:
    """One row per choice, over the updates that could be replayed; see `WhatIf.retranslate`."""
    run, pieces = trace.run, trace.pieces
    ends = frozenset(run["eos"] or ())
    cut = None if tokenize == MODEL else tokenizer(run, tokenize)

    def display(update: ReplayedUpdate) -> Sequence[Hashable]:
        ids = rules.without_end(update.record.text, ends)[: update.shown]
        return ids if cut is None else cut(begun_text(pieces, ids))

    table = []
    for choice, walks in rows:
        updates = [update for walk in walks for update in walk.updates]
        unjudged = choice.mode == "cd"
        kept, drafted = sum(u.kept for u in updates), sum(len(u.draft) for u in updates)
        emitted = sum(len(u.record.text) for u in updates)
        tokens = erased = 0
        for walk in walks:
            displays = [display(update) for update in walk.updates]
            erased += sum(len(a) - common_prefix(a, b) for a, b in pairwise(displays))
            tokens += len(displays[-1]) if displays else 0
        complete = sum(walk.place is None for walk in walks)
        table.append(
            choice._asdict()
            | {"streams": complete, "updates": len(updates), "of": len(trace.updates)}
            | {"drafted": 0 if unjudged else drafted, "accepted": 0 if unjudged else kept, "emitted": emitted}
            | {"A/D": kept / drafted if drafted and not unjudged else float("nan")}
            | {"A/O": kept / emitted if emitted else float("nan")}
            | {"target_passes": sum(not step.unreviewed for walk in walks for step in walk.steps)}
            | {"tokens": tokens, "erased": erased, "NE": erased / tokens if tokens else float("nan")}
            | {"badge": EXACT if complete == len(walks) else RERUN}
        )
    return pd.DataFrame(table)


def build_updates(trace: Trace, walks: list[StreamWalk], choice: Choice, label: str) -> Trace:
    """The replayed updates as a trace, so that every view shows them; it has no times: none were measured."""
    run = replayed_run(trace)
    if cut := sum(walk.place is not None for walk in walks):
        run["replayed"] += f"; {cut} of {len(walks)} streams end where only a rerun could tell"
    own = str(run["parameters"]["mode"])
    run |= {"run": label, "parameters": run["parameters"] | choice._asdict()}
    run["exactness"] = rules.exactness(choice.mode, choice.beta, True)
    cycles = _cycles(walks, choice, own, prefix_of(run["model"]))
    return recorded(run, trace.pieces, cycles)


def _cycles(walks: list[StreamWalk], choice: Choice, own: str, prefix: int) -> Iterator[Row]:
    """Every replayed cycle in the recorder's form; `own` is the recorded run's mode."""
    for walk in walks:
        steps = iter(walk.steps)
        for update in walk.updates:
            row = _head(update, choice, prefix)
            if (choice.mode == "cd") != (own == "cd"):  # the next prompt may reuse carried tokens, too
                row["reused"] = None
            yield row
            start = 0
            while start < len(update.record.text):
                step = next(steps)
                start += step.emitted
                yield _cycle(update, step, start == len(update.record.text), choice.mode)


def _head(update: ReplayedUpdate, choice: Choice, prefix: int) -> Row:
    """An update's cycle 0; an encoder-decoder reads its prefix with the source."""
    record = update.record
    row = {name: getattr(record, name) for name in HEAD} | {"cycle": 0, "keep": 0}
    fed = record.context + prefix - 1 - (record.reused or 0)
    if choice.mode == "cd" and update.draft:
        # This pass also reads the carried tokens; whether it reads the prompt's last one is not recorded.
        return row
    return row | ({"pass_model": ["target"], "pass_rows": [1], "pass_tokens": [fed]} if fed > 0 else {})


def _cycle(update: ReplayedUpdate, step: Step, last: bool, mode: str) -> Row:
    """A replayed cycle in the recorder's form."""
    record, start = update.record, step.start
    nodes, kept = (update.draft, update.kept) if step.cycle == 1 else ([], 0)
    n = len(nodes)
    status, origins = chain_status(n, kept), ["draft"] * kept
    p: list[float] = []
    if step.unreviewed:
        status, origins = ["unreviewed"] * n, ["unreviewed"] * kept
    else:
        p = [record.p(i).get(token, float("nan")) for i, token in enumerate(nodes[: kept + 1])]
        p += [float("nan")] * (n - len(p))
    if len(origins) < step.emitted:
        # A second pass writes the token after the draft's.
        second = mode != "cd" and step.cycle == 2 and start == update.kept
        drafted = len(update.draft) if second else n
        origins.append(next_origin(drafted, update.kept < drafted))
    places = [] if step.unreviewed else [i for i in range(kept + 1) if start + i in record.top]
    k = max((len(record.top[start + i]) for i in places), default=0)
    row: Row = {
        "prompt": record.prompt, "update": record.update, "cycle": step.cycle,
        "context": record.context + start, "keep": start, "depth": n, "width": min(n, 1),
        "end": record.end if last else None,
        "shown": update.shown if last else None,
        "node_token": nodes, "node_parent": list(range(-1, n - 1)), "node_position": list(range(1, n + 1)),
        "node_source": ["previous"] * n, "node_status": status,
        "pred_node": [i - 1 for i in places],
        "out_position": list(range(start, start + step.emitted)),
        "out_token": record.text[start : start + step.emitted], "out_origin": origins,
    }  # fmt: skip
    if p:
        row["node_p"] = p
    if k:
        row["top_k"] = k
        row["pred_top_token"] = [token for i in places for token, _ in record.top[start + i]]
        row["pred_top_p"] = [share for i in places for _, share in record.top[start + i]]
    if not step.unreviewed:
        row |= {"pass_model": ["target"], "pass_rows": [1], "pass_tokens": [1 + n]}
    return row
