"""Replay a text cycle by cycle under another setting, from the record of its positions.

While a draft follows the text, the `TextRecord` holds every prediction it needs. After its first token that
differs from the text, it is on a tail. A tail is recorded as far as the dense record followed it, or as far
as the run itself wrote it. In an exact method this affects only tokens that are drafted in vain. In a lossy
one the text may diverge.

Each decision is the method's own (`specviz.rules`). A replay adds only one outcome: the record does not say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specviz.rules import bild
from specviz.rules.ngrams import lookup
from specviz.rules.speculative import common_prefix, is_unsure, reach
from specviz.whatifs.texts import Rounding, Tail, TextRecord


class Step(NamedTuple):
    """A replayed cycle.

    Parameters
    ----------
    prompt, cycle, start : int
        Its text, its number, and the length of the output before it.
    sent, sent_high : int
        Bounds on the number of draft tokens sent to the target.
    drafted, drafted_high : int
        The same bounds, including the token that the drafter was too unsure of to send.
    accepted, cut, unreviewed, emitted : int
        As in `specviz.Trace.cycles`.
    stop : str
        Why drafting stopped; empty if the record does not say.
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
        """Whether all of its counts are exact."""
        return self.drafted == self.drafted_high and self.sent == self.sent_high


class DraftSize(NamedTuple):
    """Bounds on how many tokens of a draft are sent and drafted, and why no more."""

    sent: int
    sent_high: int
    drafted: int
    drafted_high: int
    stop: str

    @classmethod
    def exactly(cls, sent: int, drafted: int, stop: str) -> DraftSize:
        """The size of a draft that is recorded completely."""
        return cls(sent, sent, drafted, drafted, stop)

    def after(self, tokens: int) -> DraftSize:
        """The size with `tokens` more tokens before it."""
        sent, drafted = tokens + self.sent, tokens + self.drafted
        return DraftSize(sent, tokens + self.sent_high, drafted, tokens + self.drafted_high, self.stop)


class Place(NamedTuple):
    """Where a replay had to stop.

    Parameters
    ----------
    prompt, cycle, position : int
        Its text, the cycle that could not be replayed, the output position.
    token : int or None
        The token that would replace the text's there, if it is recorded.
    why : str
    """

    prompt: int
    cycle: int
    position: int
    token: int | None
    why: str


@dataclass
class Walk:
    """The replay of one text: its cycles, up to `place` if it could not reach the end.

    From `modelled` on, if it is a place, the cycles are only a model. For trees, `nodes` holds each cycle's
    columns of the record.
    """

    steps: list[Step] = field(default_factory=list)
    place: Place | None = None
    modelled: Place | None = None
    nodes: list[dict[str, list]] = field(default_factory=list)

    @property
    def exact(self) -> int:
        """Number of cycles that are not modelled."""
        return len(self.steps) if self.modelled is None else self.modelled.cycle - 1


class Halt(Exception):
    """Raised when the record does not say what comes next."""

    def __init__(self, position: int, why: str, token: int | None = None) -> None:
        super().__init__(why)
        self.position, self.why, self.token = position, why, token


HOLE = "the record does not hold what the draft model would write here: a dense record does (sv.densify)"
UNRATED = "the record does not hold the target's probability of this token: a dense record does (sv.densify)"
UNREAD = (
    "where it stopped, the record holds no prediction of the target, so a tie would not be noticed; a dense "
    "record holds all (sv.densify)"
)
UNRECORDED_TAIL = (
    "what the draft model writes after this token is not recorded, and it could end the text there"
)
TIE = "two choices are closer here than the rounding error between passes of different shapes"
STOPPED = "the run was stopped here"
TURN = "the previous answer may differ, and this prompt with it"


def following(marks: np.ndarray) -> np.ndarray:
    """For each position, the next marked one, itself included, or the length without one; int [n + 1]."""
    n = len(marks)
    places = np.where(marks, np.arange(n), n)
    return np.append(np.minimum.accumulate(places[::-1])[::-1], n)


class Replay:
    """One text under another setting; a subclass replays a cycle.

    Parameters
    ----------
    record : TextRecord
    eos : frozenset of int
        Ids that end a text.
    rounding : Rounding
    """

    def __init__(self, record: TextRecord, eos: frozenset[int], rounding: Rounding) -> None:
        self.record, self.eos, self.rounding = record, eos, rounding
        self.text, self.n = record.text, len(record.text)
        # A place without a recorded lead could be a tie.
        self.next_tie = following(~(np.abs(record.target_lead) >= rounding.target))

    def walk(self) -> Walk:
        """Replay cycles until the text is complete or the record does not say what comes next."""
        walk, start, count = Walk(), 0, 0
        while start < self.n:
            count += 1
            try:
                step = self.cycle(start, count)
            except Halt as halt:
                walk.place = Place(self.record.prompt, count, halt.position, halt.token, halt.why)
                return walk
            walk.steps.append(step)
            start += step.emitted
        if self.record.end not in ("eos", "length", "context"):
            walk.place = Place(self.record.prompt, count + 1, start, None, STOPPED)
        return walk

    def cycle(self, start: int, count: int) -> Step:
        """Replay the cycle that begins at output position `start`."""
        raise NotImplementedError

    def step(
        self, start: int, count: int, size: DraftSize, accepted: int, emitted: int, cut: int = 0,
        unreviewed: int = 0,
    ) -> Step:  # fmt: skip
        """Make a step of this text."""
        return Step(
            self.record.prompt, count, start, size.sent, size.sent_high, size.drafted, size.drafted_high,
            accepted, cut, unreviewed, emitted, size.stop,
        )  # fmt: skip

    def reach(self, start: int, longest: int, reserved: int = 1) -> tuple[int, str]:
        """How many tokens can be drafted with `reserved` left for the target, and why no more."""
        record = self.record
        return reach(longest, record.limit - start - reserved, record.full - len(record.ids) - start)

    def emitted(self, start: int, accepted: int) -> int:
        """Number of tokens that a cycle emits, for a method whose text is the target's own."""
        ended = start + accepted == self.n
        if ended and self.record.end != "eos":
            raise Halt(self.n, STOPPED)
        emitted = accepted + (not ended)
        at = int(self.next_tie[start])
        if at < start + emitted:
            raise Halt(at, UNREAD if np.isnan(self.record.target_lead[at]) else TIE)
        return emitted

    def check_target(self, at: int) -> None:
        """Check that the token that the target itself writes here is the text's."""
        record = self.record
        if record.target[at] < 0:
            raise Halt(at, UNRATED)
        if record.target_lead[at] < self.rounding.target:
            raise Halt(at, TIE)
        if record.target[at] != self.text[at]:
            raise Halt(at, "the target's own token is different here", int(record.target[at]))

    def check_next(self, at: int) -> None:
        """Check the token that the target adds to a fully accepted draft, unless the text ends there."""
        if at < self.n:
            self.check_target(at)
        elif self.record.end != "eos":
            raise Halt(at, STOPPED)

    def tail(self, at: int, room: int, goes_on: Callable[[float], bool | None]) -> DraftSize:
        """How much is drafted from a position on where the drafter's own token differs from the text.

        Parameters
        ----------
        at : int
        room : int
            Most tokens after that one.
        goes_on : callable
            Whether a token of this probability is sent; None if rounding could decide.
        """
        if int(self.record.draft[at]) in self.eos:
            return DraftSize.exactly(1, 1, "eos")
        tail = self.record.tails.get(at, [])[:room]
        return read_tail(tail, room, goes_on, self.eos, self.rounding.draft).after(1)


def read_tail(
    tail: Tail, room: int, goes_on: Callable[[float], bool | None], eos: frozenset[int], width: float
) -> DraftSize:
    """How much of a tail of at most `room` tokens is sent and drafted."""
    for i, (token, p, lead) in enumerate(tail):
        on = goes_on(p)
        if on is None:
            return DraftSize(i, room, i + 1, room, "")
        if not on:
            return DraftSize.exactly(i, i + 1, "unsure")
        if lead < width:  # drafting continues, but rounding could choose another token
            return DraftSize(i + 1, room, i + 1, room, "")
        if token in eos:
            return DraftSize.exactly(i + 1, i + 1, "eos")
    if len(tail) == room:
        return DraftSize.exactly(room, room, "length")
    return DraftSize(len(tail), room, len(tail) + 1, room, "")


class SpeculativeReplay(Replay):
    """Greedy `specviz.methods.speculative`: the drafter's own choices, kept while they match the text."""

    def __init__(
        self, record: TextRecord, eos: frozenset[int], rounding: Rounding, draft_length: int, stop: float
    ) -> None:
        super().__init__(record, eos, rounding)
        self.draft_length, self.stop = draft_length, stop
        self.next_other = following(record.draft != self.text)  # where the drafter writes something else
        self.next_hole = following(record.draft < 0)
        unsure = is_unsure(record.draft_p, stop)
        self.next_unsure = following(unsure)
        close = (np.abs(record.draft_lead) < rounding.draft) & ~unsure  # an unsure token is not sent
        if stop:
            close |= np.abs(record.draft_p - stop) < rounding.draft
        self.next_close = following(close)

    def goes_on(self, p: float) -> bool | None:
        return not is_unsure(p, self.stop) if abs(p - self.stop) >= self.rounding.draft else None

    def cycle(self, start: int, count: int) -> Step:
        record = self.record
        most, why = self.reach(start, self.draft_length)
        matched = min(most, int(self.next_other[start]) - start)
        sure = int(self.next_unsure[start]) - start
        last = start + min(matched, sure, most - 1)  # the last position where the draft so far is the text
        if most and (at := min(int(self.next_hole[start]), int(self.next_close[start]))) <= min(
            last, self.n - 1
        ):
            raise Halt(at, HOLE if record.draft[at] < 0 else TIE)
        accepted = min(matched, sure)
        emitted = self.emitted(start, accepted)
        size, cut = self.size(start, most, why, matched, sure), 0
        if start + accepted == self.n and not self.stop:  # it drafts past the end without noticing
            cut = most - matched
        return self.step(start, count, size, accepted, emitted, cut)

    def size(self, start: int, most: int, why: str, matched: int, sure: int) -> DraftSize:
        """How much is drafted if the first `matched` tokens match the text and the first `sure` are sure."""
        if not self.stop:
            return DraftSize.exactly(most, most, why)
        if start + matched == self.n and sure >= matched:
            return DraftSize.exactly(matched, matched, "eos")
        if sure <= matched and sure < most:
            return DraftSize.exactly(sure, sure + 1, "unsure")
        if matched == most:
            return DraftSize.exactly(most, most, why)
        size = self.tail(start + matched, most - matched - 1, self.goes_on).after(matched)
        return size._replace(stop=why) if size.stop == "length" else size


class PromptLookupReplay(Replay):
    """Greedy `specviz.methods.prompt_lookup`, whose drafts follow from the tokens alone."""

    def __init__(self, record: TextRecord, eos: frozenset[int], rounding: Rounding, **values: int) -> None:
        super().__init__(record, eos, rounding)
        self.values = values
        self.tokens = np.concatenate([record.ids, record.text])

    def draft(self, start: int) -> tuple[np.ndarray, str]:
        """The tokens drafted after `start` tokens of output, and why no more."""
        end = len(self.record.ids) + start
        return lookup(self.tokens[:end], self.values, self.record.limit - start, self.eos)

    def cycle(self, start: int, count: int) -> Step:
        tokens, stop = self.draft(start)
        accepted = common_prefix(tokens.tolist(), self.text[start : start + len(tokens)].tolist())
        size = DraftSize.exactly(len(tokens), len(tokens), stop)
        return self.step(start, count, size, accepted, self.emitted(start, accepted))


class BiLDReplay(Replay):
    """Greedy `specviz.methods.bild` (Algorithm 1), up to the first token that would differ."""

    def __init__(
        self, record: TextRecord, eos: frozenset[int], rounding: Rounding, fallback: float, rollback: float,
        cap: int, review_end: bool,
    ) -> None:  # fmt: skip
        super().__init__(record, eos, rounding)
        self.fallback, self.rollback, self.cap, self.review_end = fallback, rollback, cap, review_end

    def goes_on(self, p: float) -> bool | None:
        clear = self.fallback in (0, 1) or abs(p - self.fallback) >= self.rounding.draft
        return bool(bild.goes_on(p, self.fallback)) if clear else None

    def stays(self, at: int, p: float) -> bool:
        """Whether a token of this probability under the target is kept."""
        least = math.exp(-self.rollback)
        if least == 0:
            return True
        if p != p:
            raise Halt(at, UNRATED)
        if abs(p - least) < self.rounding.target:
            raise Halt(at, TIE)
        return not bild.rolls_back(-math.log(p) if p > 0 else math.inf, self.rollback)

    def cycle(self, start: int, count: int) -> Step:
        most, why = self.reach(start, self.cap, int(self.review_end))
        matched, why, parts = self.draft(start, most, why)
        size = DraftSize.exactly(matched, matched + (why == "fallback"), why)
        if parts:
            size = self.size(start, matched, most, why)
        elif matched and not self.review_end and (why == "eos" or matched == self.record.limit - start):
            return self.step(start, count, DraftSize.exactly(0, matched, why), 0, matched, unreviewed=matched)
        accepted = self.review(start, matched, parts)
        return self.step(start, count, size, accepted, min(accepted + 1, self.n - start))

    def draft(self, start: int, most: int, why: str) -> tuple[int, str, bool]:
        """Lines 3-6 along the text: how many tokens, why no more, and whether the next one differs."""
        record = self.record
        for at in range(start, start + most):
            if at == self.n:
                raise Halt(at, STOPPED)
            if record.draft[at] < 0:
                raise Halt(at, HOLE)
            on = self.goes_on(float(record.draft_p[at]))
            if on is False:  # whatever the token
                return at - start, "fallback", False
            if on is None or record.draft_lead[at] < self.rounding.draft:
                raise Halt(at, TIE)
            if record.draft[at] != self.text[at]:
                return at - start, why, True
            if self.text[at] in self.eos:
                return at - start + 1, "eos", False
        return most, why, False

    def size(self, start: int, matched: int, most: int, why: str) -> DraftSize:
        """How much is drafted if the small model leaves the text after `matched` tokens."""
        at = start + matched
        size = self.tail(at, most - matched - 1, self.goes_on).after(matched)
        size = size._replace(stop={"unsure": "fallback", "length": why}.get(size.stop, size.stop))
        if self.review_end:
            return size
        # Line 2: an end of the text is not reviewed, but the text did not end like this.
        if size.stop == "eos" or size.sent == self.record.limit - start:
            first = int(self.record.draft[at])
            raise Halt(at, "the small model would end the text from here on, unreviewed", first)
        if size.sent_high > size.sent or size.drafted_high > size.drafted:
            raise Halt(at, UNRECORDED_TAIL)
        return size

    def review(self, start: int, matched: int, parts: bool) -> int:
        """Lines 9-16: how many of the tokens that match the text are kept."""
        record = self.record
        for at in range(start, start + matched):
            if not self.stays(at, float(record.p[at])):
                self.check_target(at)
                return at - start
        at = start + matched
        if parts and self.stays(at, float(record.draft_target_p[at])):
            raise Halt(at, "the small model's token would stay here", int(record.draft[at]))
        self.check_next(at)  # at the text's end, its end token was reviewed and kept
        return matched
