"""Replaying a stream update by update: what another bias, mask or mode would have kept, shown and written.

An update's output is known, and with it what the target said at each of its places, the text before given:
the verification pass has that up to where the draft was left, and the passes of one token from there on.
Another setting verifies another draft, or accepts another part of it; it writes the same output as long as

- each draft token that is the output's own is kept, and no other is (equation 3 of Zeng et al.: a token y is
  kept iff max p - p(y) ≤ β / (1 - β)), and
- behind the last kept one every token of the output is the target's first choice.

The first update where that is not so has another text, and everything behind it another draft: a rerun would
have to say. What a display hides changes no text at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from specviz.errors import TraceError
from specviz.metrics.tokens import MODEL, tokenizer
from specviz.metrics.updates import shared
from specviz.trace import Recorder
from specviz.trace.text import begun_text
from specviz.whatifs.answer import EXACT, RERUN
from specviz.whatifs.known import EPSILON, FLOOR, SINGLE, number, whole
from specviz.whatifs.walk import STOPPED, TIE, Halt, Place, Step, Walk

if TYPE_CHECKING:
    import pandas as pd

    from specviz.trace import Trace

PARTS = "the text parts here"
UNSEEN = "the record does not hold what the target thinks of this token here"
COLUMNS = (
    "prompt", "update", "cycle", "context", "keep", "end", "top_k", "source", "arrival", "reused", "shown",
    "node_token", "node_status", "node_p", "pred_node", "pred_top_token", "pred_top_p", "out_token",
)  # fmt: skip
SAID = ("prompt", "update", "source", "arrival", "reused", "context")  # of an update in its cycle 0


class Choice(NamedTuple):
    """What a stream is asked with: the parameters of `specviz.methods.retranslate` that may be another."""

    mode: str
    beta: float
    k: int
    mask: str


@dataclass(eq=False)
class Told:
    """An update, and what is known at the places of its output.

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
        Whether the source was complete, and so everything displayed.
    draft : list of int
        What the run's draft was, and `accepted` tokens of it.
    top : dict of int to list of (token, probability)
        By place the target's candidates, best first.
    rated : dict of int to (token, probability)
        The draft token that was refused, and the target's probability of it.
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
    top: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    rated: dict[int, tuple[int, float]] = field(default_factory=dict)


class Shown(NamedTuple):
    """A replayed update.

    Parameters
    ----------
    told : Told
        What it is a replay of: its output is that one's.
    draft : list of int
    kept : int
        Tokens of the draft that stay: accepted, or in continuous decoding carried on unreviewed.
    shown : int
        Tokens that are displayed.
    """

    told: Told
    draft: list[int]
    kept: int
    shown: int


@dataclass
class StreamWalk(Walk):
    """The replay of one stream: its cycles and updates, up to the update (`place.cycle`) whose text parts."""

    updates: list[Shown] = field(default_factory=list)


def read_updates(trace: Trace) -> list[list[Told]]:
    """What is told of each stream of a run, update by update.

    Raises
    ------
    TraceError
        If the trace does not say how long the model's context is, or holds no updates.
    """
    run = trace.run
    longest = whole((run["model"] or {}).get("max_length"))
    most = whole((run["sampling"] or {}).get("max_new_tokens"))
    if longest is None or most is None:
        raise TraceError(
            "the trace does not say how long its model's context is (an older one): record it anew"
        )
    masked = (run["parameters"] or {}).get("k") or 0
    ends = frozenset(run["eos"] or ())
    streams: dict[int, list[Told]] = {}
    for row in trace.arrow(COLUMNS).to_pylist():
        found = streams.setdefault(row["prompt"], [])
        if row["cycle"] == 0:
            if row["source"] is None:
                raise TraceError("this is for runs whose source arrives in updates")
            limit = min(most, longest - row["context"])
            about = {name: row[name] for name in SAID}
            found.append(Told(**about, limit=limit))
        _learn(found[-1], row)
        if row["end"] is not None:
            told = found[-1]
            told.last = bool(masked) and row["shown"] == len(bare(told.text, ends))
    if not masked:  # nothing was hidden, so the record cannot tell: a stream's last update is its last
        for number_, found in streams.items():
            found[-1].last = bool(run["complete"]) or number_ != max(streams)
    return list(streams.values())


def _learn(told: Told, row: dict[str, Any]) -> None:
    """What a cycle says of the places it stands at."""
    start, k = row["keep"] or 0, row["top_k"] or 0
    nodes, status = row["node_token"] or [], row["node_status"] or []
    accepted = sum(word == "accepted" for word in status)
    if nodes:
        told.draft, told.accepted = nodes, accepted + status.count("unreviewed")
    for i, node in enumerate(row["pred_node"] or ()):
        if node < accepted:  # behind a refused token the pass read another text
            candidates = slice(i * k, i * k + k)
            told.top[start + node + 1] = list(
                zip(row["pred_top_token"][candidates], map(number, row["pred_top_p"][candidates]))
            )
    if accepted < len(nodes) and status[accepted] == "rejected":
        told.rated[start + accepted] = (
            nodes[accepted],
            number((row["node_p"] or [None] * len(nodes))[accepted]),
        )
    told.text += row["out_token"] or []
    told.end = row["end"] or told.end


def bare(text: list[int], ends: frozenset[int]) -> list[int]:
    """An output without its end."""
    return text[:-1] if text and text[-1] in ends else text


def tolerance(run: dict[str, Any]) -> float:
    """How near two probabilities must be for a pass of another shape to swap them."""
    return FLOOR * EPSILON.get(run["dtype"] or "", SINGLE)


def replay(
    stream: list[Told], own: Choice, choice: Choice, ends: frozenset[int], width: float, second_pass: bool
) -> StreamWalk:
    """`specviz.methods.retranslate`, greedy, up to where its text would be another than the run's.

    Parameters
    ----------
    stream : list of Told
    own, choice : Choice
        The run's, and the one that is asked for.
    ends : frozenset of int
    width : float
        Decisions nearer than this are ties, unless every pass so far had the run's own shape.
    second_pass : bool
        Whether the token at the divergence took a pass of its own.
    """
    found = StreamWalk()
    previous: list[int] = []
    same = True  # whether each pass so far was over the run's own tokens: then not a bit can differ
    for told in stream:
        draft = _draft(previous, choice, ends)[: told.limit]
        try:
            if told.end in (None, "interrupted"):
                raise Halt(len(told.text), STOPPED)
            same = same and draft == told.draft and (own.mode == choice.mode or not draft)
            if same and (own.beta == choice.beta or not draft or choice.mode == "cd"):
                kept = told.accepted
            else:
                kept = _kept(told, draft, choice, width, same)
        except Halt as halt:
            found.place = Place(told.prompt, told.update, halt.position, halt.token, halt.why)
            return found
        own_tokens = len(bare(told.text, ends))
        shown = own_tokens if told.last else max(0, own_tokens - choice.k)
        found.updates.append(Shown(told, draft, kept, shown))
        found.steps += _steps(told, draft, kept, choice, second_pass)
        previous = told.text
    return found


def _draft(previous: list[int], choice: Choice, ends: frozenset[int]) -> list[int]:
    """Algorithm 1, line 1."""
    if choice.mode == "rt":
        return []
    tokens = bare(previous, ends)
    return tokens[: max(0, len(tokens) - choice.k)] if choice.mask == "draft" else tokens


def _kept(told: Told, draft: list[int], choice: Choice, width: float, same: bool) -> int:
    """How many tokens of a draft stay.

    Raises
    ------
    Halt
        Where the text would part, or the record does not say whether it does.
    """
    text, at = told.text, 0
    # A pass over the run's own tokens gives the run's own scores: no first choice can turn.
    close = 0.0 if same else width
    while at < len(draft) and (choice.mode == "cd" or _stays(told, at, draft[at], choice.beta, width, close)):
        if draft[at] != text[at]:
            raise Halt(at, PARTS, draft[at])
        at += 1
    for place in range(at, 0 if same and at == told.accepted else len(text)):
        _own(told, place, close)
    return at


def _stays(told: Told, at: int, token: int, beta: float, width: float, close: float) -> bool:
    """Algorithm 1, lines 6 and 7, of a draft token at a place of the text.

    Decisions about probabilities nearer than `width` are ties, and first choices nearer than `close`.
    """
    top = _top(told, at)
    (best, most), room = top[0], beta / (1 - beta) if beta < 1 else float("inf")
    if best == token:
        if room < close and len(top) > 1 and most - top[1][1] < close:
            raise Halt(at, TIE)
        return True
    if beta == 0 and not close:
        return False
    rated = dict([*top, *([told.rated[at]] if at in told.rated else [])])
    p = rated.get(token)
    if p is None or p != p:  # it is none of the candidates, so no likelier than the last of them
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
    return most - p <= room


def _own(told: Told, at: int, width: float) -> None:
    """The target writes its first choice here: it must be the text's."""
    top = _top(told, at)
    if top[0][0] != told.text[at]:
        raise Halt(at, PARTS, top[0][0])
    if len(top) > 1 and top[0][1] - top[1][1] < width:
        raise Halt(at, TIE)


def _top(told: Told, at: int) -> list[tuple[int, float]]:
    top = told.top.get(at)
    if not top:
        raise Halt(at, UNSEEN)
    return top


def _steps(told: Told, draft: list[int], kept: int, choice: Choice, second_pass: bool) -> Iterator[Step]:
    """The cycles of a replayed update."""
    n, total, start, count = len(draft), len(told.text), 0, 1
    if n:
        carried = choice.mode == "cd"
        alone = carried or (second_pass and kept < n)  # no token of the target's own goes with it
        emitted = min(total, kept + (not alone))
        sent = 0 if carried else n
        yield Step(
            told.prompt,
            count,
            0,
            sent,
            sent,
            n,
            n,
            0 if carried else kept,
            0,
            kept if carried else 0,
            emitted,
            "",
        )
        start, count = emitted, 2
    for place in range(start, total):
        yield Step(told.prompt, count + place - start, place, 0, 0, 0, 0, 0, 0, 0, 1, "")


def tabulate_updates(
    trace: Trace, rows: list[tuple[Choice, list[StreamWalk]]], tokenize: str | None
) -> pd.DataFrame:
    """One row a choice, over the updates that are told; see `specviz.WhatIf.retranslate`."""
    import pandas as pd

    run, pieces = trace.run, trace.pieces
    ends = frozenset(run["eos"] or ())
    cut = None if tokenize == MODEL else tokenizer(run, tokenize)

    def display(update: Shown) -> Sequence[Any]:
        ids = bare(update.told.text, ends)[: update.shown]
        return ids if cut is None else cut(begun_text(pieces, ids))

    table = []
    for choice, walks in rows:
        updates = [update for walk in walks for update in walk.updates]
        unjudged = choice.mode == "cd"
        kept, drafted = sum(u.kept for u in updates), sum(len(u.draft) for u in updates)
        emitted = sum(len(u.told.text) for u in updates)
        tokens = erased = 0
        for walk in walks:
            displays = [display(update) for update in walk.updates]
            erased += sum(len(a) - shared(a, b) for a, b in pairwise(displays))
            tokens += len(displays[-1]) if displays else 0
        told = sum(walk.place is None for walk in walks)
        table.append(
            choice._asdict()
            | {"streams": told, "updates": len(updates), "of": len(trace.updates)}
            | {"drafted": 0 if unjudged else drafted, "accepted": 0 if unjudged else kept, "emitted": emitted}
            | {"A/D": kept / drafted if drafted and not unjudged else float("nan")}
            | {"A/O": kept / emitted if emitted else float("nan")}
            | {"target_passes": sum(not step.unreviewed for walk in walks for step in walk.steps)}
            | {"tokens": tokens, "erased": erased, "NE": erased / tokens if tokens else float("nan")}
            | {"badge": EXACT if told == len(walks) else RERUN}
        )
    return pd.DataFrame(table)


def build_updates(trace: Trace, walks: list[StreamWalk], choice: Choice, label: str) -> Trace:
    """The replayed updates as a trace, so that every view shows them; without times: none were measured."""
    run = dict(trace.run)
    for name in ("machine", "threads", "created", "timing", "peak_memory", "stopped"):
        run[name] = None
    words = f"replayed from run {run['run']}; times were not measured"
    if cut := sum(walk.place is not None for walk in walks):
        words += f"; {cut} of {len(walks)} streams end where a rerun would have to say"
    exactness = {"rt": "exact", "cd": "lossy"}.get(
        choice.mode, "lossy" if choice.beta else "exact up to ties"
    )
    run |= {"run": label, "parameters": run["parameters"] | choice._asdict(), "replayed": words}
    run["exactness"] = exactness
    pieces = trace.pieces
    recorder = Recorder(run, piece=lambda token: pieces.get(token, b""))
    for walk in walks:
        steps = iter(walk.steps)
        for shown in walk.updates:
            recorder.add(_head(shown, choice))
            start = 0
            while start < len(shown.told.text):
                step = next(steps)
                start += step.emitted
                recorder.add(_cycle(shown, step, start == len(shown.told.text)))
    return recorder.close().select(prompt=[walk.updates[0].told.prompt for walk in walks if walk.updates])


def _head(update: Shown, choice: Choice) -> dict[str, Any]:
    """An update's cycle 0."""
    told = update.told
    row = {name: getattr(told, name) for name in SAID} | {"cycle": 0, "keep": 0}
    fed = told.context - 1 - (told.reused or 0)
    if choice.mode == "cd" and update.draft:
        return row  # it reads what is carried, too; whether the prompt's last token as well is not recorded
    return row | ({"pass_model": ["target"], "pass_rows": [1], "pass_tokens": [fed]} if fed > 0 else {})


def _cycle(update: Shown, step: Step, last: bool) -> dict[str, Any]:
    """A replayed cycle as the recorder takes it."""
    told, start = update.told, step.start
    verified = step.cycle == 1 and bool(update.draft)
    n = len(update.draft) if verified else 0
    kept = update.kept if verified else 0
    status, origin, nodes, p = [], [], [], []
    if verified:
        nodes = update.draft
        if step.unreviewed:
            status, origin = ["unreviewed"] * n, ["unreviewed"] * kept
        else:
            status = (["accepted"] * kept + ["rejected"] + ["unjudged"] * n)[:n]
            origin = ["draft"] * kept
            for i, token in enumerate(nodes[: kept + 1]):
                found = dict([*told.top.get(i, []), *([told.rated[i]] if i in told.rated else [])])
                p.append(found.get(token, float("nan")))
            p += [float("nan")] * (n - len(p))
    if len(origin) < step.emitted:
        origin.append("plain" if not n else "bonus" if kept == n else "correction")
    places = [] if step.unreviewed else [i for i in range(kept + 1) if start + i in told.top]
    k = max((len(told.top[start + i]) for i in places), default=0)
    row: dict[str, Any] = {
        "prompt": told.prompt, "update": told.update, "cycle": step.cycle, "context": told.context + start,
        "keep": start, "depth": n, "width": min(n, 1), "end": told.end if last else None,
        "shown": update.shown if last else None,
        "node_token": nodes, "node_parent": list(range(-1, n - 1)), "node_position": list(range(1, n + 1)),
        "node_source": ["previous"] * n, "node_status": status,
        "pred_node": [i - 1 for i in places],
        "out_position": list(range(start, start + step.emitted)),
        "out_token": told.text[start : start + step.emitted], "out_origin": origin,
    }  # fmt: skip
    if p:
        row["node_p"] = p
    if k:
        row["top_k"] = k
        row["pred_top_token"] = [token for i in places for token, _ in told.top[start + i]]
        row["pred_top_p"] = [share for i in places for _, share in told.top[start + i]]
    if not step.unreviewed:
        row |= {"pass_model": ["target"], "pass_rows": [1], "pass_tokens": [1 + n]}
    return row
