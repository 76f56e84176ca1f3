"""Replaying a text cycle by cycle under another setting, from what is known of its places.

While a draft follows the text, every prediction it needs stands in `Known`. Behind its first token that is
not the text's own it is on a tail: what it wrote there is known as far as the dense record followed it, or
the run itself wrote it. In an exact method that concerns what was drafted in vain and nothing else. In a
lossy one the text may part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specviz.rules.ngrams import continuation
from specviz.whatifs.known import Known, Rounding


class Step(NamedTuple):
    """A replayed cycle.

    Parameters
    ----------
    prompt, cycle, start : int
        Its text, its number, and how many tokens stood before it.
    sent, sent_high : int
        Drafted tokens that went to the target: at least, at most.
    drafted, drafted_high : int
        The same with the token that the drafter was too unsure of to send.
    accepted, cut, unreviewed, emitted : int
        As in `specviz.Trace.cycles`.
    stop : str
        Why drafting stopped; empty where that is not known.
    """

    prompt: int
    cycle: int
    start: int
    sent: int
    sent_high: int
    drafted: int
    drafted_high: int
    accepted: int
    cut: int
    unreviewed: int
    emitted: int
    stop: str

    @property
    def certain(self) -> bool:
        """Whether nothing of it is only bounded."""
        return self.drafted == self.drafted_high and self.sent == self.sent_high


class Place(NamedTuple):
    """Where a replay had to stop.

    Parameters
    ----------
    prompt, cycle, position : int
        Its text, the cycle that could not be replayed, the output position.
    token : int or None
        What would stand there in place of the text's token, where that is known.
    why : str
    """

    prompt: int
    cycle: int
    position: int
    token: int | None
    why: str


@dataclass
class Walk:
    """The replay of one text: its cycles, up to `place` where it could not go on to the end.

    From `modelled` on, if it is a place, the cycles are a model of what would have been. Of trees `nodes`
    holds each cycle's columns of the record.
    """

    steps: list[Step] = field(default_factory=list)
    place: Place | None = None
    modelled: Place | None = None
    nodes: list[dict[str, list]] = field(default_factory=list)

    @property
    def exact(self) -> int:
        """How many of the cycles are no model."""
        return len(self.steps) if self.modelled is None else self.modelled.cycle - 1


class Halt(Exception):
    """Raised where the record does not say what comes next."""

    def __init__(self, position: int, why: str, token: int | None = None) -> None:
        super().__init__(why)
        self.position, self.why, self.token = position, why, token


HOLE = "the record does not hold what the draft model would write here: a dense record does (sv.densify)"
UNRATED = "the record does not hold what the target thinks of this token: a dense record does (sv.densify)"
BEHIND = "what the draft model writes behind this token is not recorded, and it could end the text there"
TIE = "two choices are closer here than passes of different shape round"
STOPPED = "the run was stopped here"
TURN = "the answer before it may be another, and with it this prompt"


def replayed(known: Known, cycle: Callable[[int, int], Step]) -> Walk:
    """Cycle after cycle until the text is whole, or the record says no more."""
    found = Walk()
    start, count = 0, 0
    while start < len(known.text):
        count += 1
        try:
            step = cycle(start, count)
        except Halt as halt:
            found.place = Place(known.prompt, count, halt.position, halt.token, halt.why)
            return found
        found.steps.append(step)
        start += step.emitted
    if known.end not in ("eos", "length", "context"):
        found.place = Place(known.prompt, count + 1, start, None, STOPPED)
    return found


def _near(values: np.ndarray, width: float) -> np.ndarray:
    """For each place the next one, itself included, where a value is closer to zero than `width`; [n + 1]."""
    return following(np.abs(values) < width)


def following(marks: np.ndarray) -> np.ndarray:
    """For each place the next marked one, itself included; the length where there is none; int [n + 1]."""
    n = len(marks)
    places = np.where(marks, np.arange(n), n)
    return np.append(np.minimum.accumulate(places[::-1])[::-1], n)


def _tail(
    known: Known,
    at: int,
    room: int,
    goes_on: Callable[[float], bool | None],
    ends: frozenset[int],
    width: float,
) -> tuple[int, int, int, int, str]:
    """How much was drafted behind the drafter's own token at a place, at least and at most.

    Returns
    -------
    sent, sent_high, drafted, drafted_high : int
        Of at most `room` tokens.
    stop : str
        ``unsure``, ``eos``, ``length``; empty if the record does not say.
    """
    tail = known.tails.get(at, [])
    for i, (token, sure, lead) in enumerate(tail[:room]):
        on = goes_on(sure)
        if on is None:
            return i, room, i + 1, room, ""
        if not on:
            return i, i, i + 1, i + 1, "unsure"
        if lead < width:  # it goes on, but with which token?
            return i + 1, room, i + 1, room, ""
        if token in ends:
            return i + 1, i + 1, i + 1, i + 1, "eos"
    if len(tail) >= room:
        return room, room, room, room, "length"
    return len(tail), room, len(tail) + 1, room, ""


def speculative(
    known: Known, eos: frozenset[int], rounding: Rounding, draft_length: int, stop: float
) -> Walk:
    """`specviz.methods.speculative`, greedy: the draft's own choices, kept while they are the text's."""
    text, n = known.text, len(known.text)
    other = following(known.draft != text)  # the next place where the drafter writes something else
    hole = following(known.draft < 0)
    unsure = following(known.sure < stop)
    close = _near(known.gap, rounding.draft)
    if stop:
        close = np.minimum(close, _near(known.sure - stop, rounding.draft))
    tie = _near(known.edge, rounding.target)

    def goes_on(sure: float) -> bool | None:
        return sure >= stop if abs(sure - stop) >= rounding.draft else None

    def cycle(start: int, count: int) -> Step:
        left = known.limit - start
        most = max(0, min(draft_length, left - 1, known.full - len(known.ids) - start))
        matched = min(most, int(other[start]) - start)
        quits = int(unsure[start]) - start
        asked = start + min(
            matched, quits, most - 1
        )  # the last place where the drafter was asked on the text
        if most and (at := min(int(hole[start]), int(close[start]))) <= min(asked, n - 1):
            raise Halt(at, HOLE if known.draft[at] < 0 else TIE)
        ended = start + matched == n and quits >= matched
        if ended and known.end != "eos":
            raise Halt(n, STOPPED)
        accepted = min(matched, quits)
        emitted = accepted + (not ended)
        if int(tie[start]) < start + emitted:
            raise Halt(int(tie[start]), TIE)
        why = "length" if most == draft_length else "room"
        cut = 0
        if ended and stop:
            sent = high = drafted = drafted_high = matched
            why = "eos"
        elif ended:  # without a look at its tokens it drafts on behind the end
            sent = high = drafted = drafted_high = most
            cut = most - matched
        elif quits <= matched and quits < most:
            sent = high = quits
            drafted = drafted_high = quits + 1
            why = "unsure"
        elif matched == most or not stop:
            sent = high = drafted = drafted_high = most
        else:
            room = most - matched - 1
            first = int(known.draft[start + matched])
            if first in eos:
                more = (0, 0, 0, 0, "eos")
            else:
                more = _tail(known, start + matched, room, goes_on, eos, rounding.draft)
            sent, high, drafted, drafted_high = (matched + 1 + x for x in more[:4])
            why = more[4] if more[4] != "length" else why
        return Step(
            known.prompt, count, start, sent, high, drafted, drafted_high, accepted, cut, 0, emitted, why
        )

    return replayed(known, cycle)


def prompt_lookup(
    known: Known, eos: frozenset[int], rounding: Rounding, ngram_max: int, ngram_min: int, draft_length: int
) -> Walk:
    """`specviz.methods.prompt_lookup`, greedy: from the tokens alone."""
    whole = np.concatenate([known.ids, known.text])
    tie = _near(known.edge, rounding.target)

    def cycle(start: int, count: int) -> Step:
        drafted, why = copied(known, eos, start, ngram_max, ngram_min, draft_length, whole)
        here = known.text[start : start + len(drafted)]
        wrong = np.flatnonzero(drafted[: len(here)] != here)
        accepted = int(wrong[0]) if len(wrong) else len(here)
        ended = start + accepted == len(known.text)
        if ended and known.end != "eos":
            raise Halt(len(known.text), STOPPED)
        emitted = accepted + (not ended)
        if int(tie[start]) < start + emitted:
            raise Halt(int(tie[start]), TIE)
        k = len(drafted)
        return Step(known.prompt, count, start, k, k, k, k, accepted, 0, 0, emitted, why)

    return replayed(known, cycle)


def copied(
    known: Known,
    eos: frozenset[int],
    start: int,
    ngram_max: int,
    ngram_min: int,
    draft_length: int,
    whole: np.ndarray | None = None,
) -> tuple[np.ndarray, str]:
    """What prompt lookup drafts when `start` tokens stand there, and why no more."""
    whole = np.concatenate([known.ids, known.text]) if whole is None else whole
    most = min(draft_length, known.limit - start - 1)
    if most < 1:
        return whole[:0], "room"
    found = continuation(whole[: len(known.ids) + start], ngram_max, ngram_min, most)
    ends = np.flatnonzero(np.isin(found, list(eos)))
    if len(ends):
        return found[: ends[0] + 1], "eos"
    if not len(found):
        return found, "none"
    return found, "length" if len(found) == draft_length else "room" if len(found) == most else "text"


def bild(
    known: Known,
    eos: frozenset[int],
    rounding: Rounding,
    fallback: float,
    rollback: float,
    cap: int,
    review_end: bool,
) -> Walk:
    """`specviz.methods.bild`, greedy (Algorithm 1), up to where another token would be written."""
    text, n = known.text, len(known.text)
    least = math.exp(-rollback)  # equation 3: a token stays while the target's p of it is not below this

    def goes_on(sure: float) -> bool | None:
        return sure > fallback if abs(sure - fallback) >= rounding.draft else None

    def stays(at: int, p: float) -> bool:
        if least == 0:
            return True
        if p != p:
            raise Halt(at, UNRATED)
        if abs(p - least) < rounding.target:
            raise Halt(at, TIE)
        return p >= least

    def own(at: int) -> None:
        """The target writes its own token here: it must be the text's."""
        if known.best[at] < 0:
            raise Halt(at, UNRATED)
        if known.edge[at] < rounding.target:
            raise Halt(at, TIE)
        if known.best[at] != text[at]:
            raise Halt(at, "the target's own token stands here, and it is another", int(known.best[at]))

    def cycle(start: int, count: int) -> Step:
        left = known.limit - start
        most = max(0, min(cap, left - review_end, known.full - len(known.ids) - start))
        why = "length" if most == cap else "room"
        matched, unsent, off = 0, 0, False
        while matched < most:  # lines 3-6
            at = start + matched
            if at == n:
                raise Halt(at, STOPPED)
            if known.draft[at] < 0:
                raise Halt(at, HOLE)
            on = goes_on(float(known.sure[at]))
            if on is None or known.gap[at] < rounding.draft:
                raise Halt(at, TIE)
            if not on:
                unsent, why = 1, "fallback"
                break
            if known.draft[at] != text[at]:
                off = True
                break
            matched += 1
            if text[at] in eos:
                why = "eos"
                break
        sent = high = matched
        drafted = drafted_high = matched + unsent
        if off:
            at = start + matched
            first, room = int(known.draft[at]), most - matched - 1
            more = (
                (0, 0, 0, 0, "eos") if first in eos else _tail(known, at, room, goes_on, eos, rounding.draft)
            )
            sent, high, drafted, drafted_high = (matched + 1 + x for x in more[:4])
            why = {"unsure": "fallback", "length": why}.get(more[4], more[4])
            if not review_end:  # line 2: what ends the text is not reviewed, and this is not how it ended
                if why == "eos" or sent == left:
                    raise Halt(at, "the small model would end the text from here on, unreviewed", first)
                if high > sent or drafted_high > drafted:
                    raise Halt(at, BEHIND)
        elif matched and not review_end and (why == "eos" or matched == left):
            return Step(known.prompt, count, start, 0, 0, matched, matched, 0, 0, matched, matched, why)
        for i in range(matched):  # lines 9-16
            at = start + i
            if not stays(at, float(known.p[at])):
                own(at)
                accepted = i
                break
        else:
            accepted, at = matched, start + matched
            if off and stays(at, float(known.rated[at])):
                raise Halt(at, "the small model's token would stay here", int(known.draft[at]))
            if at < n:
                own(at)
            elif known.end != "eos":  # an end token was reviewed and kept
                raise Halt(at, STOPPED)
        emitted = min(accepted + 1, n - start)
        return Step(
            known.prompt, count, start, sent, high, drafted, drafted_high, accepted, 0, 0, emitted, why
        )

    return replayed(known, cycle)
