"""Replays of CM-ASD and SpecDec, from the recorded drafts of a run of either.

Like BiLD, they write a text of their own: another setting is followed exactly, cycle for cycle, up to the
first position where it would write another token. The run's own drafts hold what a replay needs at a
position: the drafter's token and its signals, and the gap between that token and the target's own. The record
says nothing about positions that no draft of the run covered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specviz.rules import gap as rules
from specviz.rules.speculative import common_prefix
from specviz.trace import Trace
from specviz.whatifs.texts import Rounding, Row, Setting, TextRecord, is_chain, number
from specviz.whatifs.walk import STOPPED, TIE, UNRATED, DraftSize, Halt, Replay, Step

SIGNALS = ("entropy", "logit_margin", "margin", "variance")
SURE = 2e-5  # error of a confidence that is recomputed from float32 signals
COLUMNS = ("prompt", "keep", "node_token", "node_parent", "node_gap", "node_rank", "node_p", "pred_node",
           "pred_top_p", "top_k", "out_token", *(f"node_{name}" for name in SIGNALS))  # fmt: skip
UNASKED = "the run has no draft here, so what the draft model would write is unknown"
SHORT = (
    "the run's draft ended before this point, and what is sent depends on what the draft model would write "
    "next"
)


@dataclass(eq=False)
class DraftRecord:
    """What the drafts of a run recorded along one text.

    Parameters
    ----------
    signals : array [tokens, 4]
        `SIGNALS` of the drafter's prediction at each position; NaN where it made none.
    gap, rank : arrays [tokens]
        Gap and rank of the drafter's token under the target.
    tails : dict of int to (tokens, signals [n, 4])
        What the drafter wrote after its own token, by the position where that differs from the text.
    """

    signals: np.ndarray
    gap: np.ndarray
    rank: np.ndarray
    tails: dict[int, tuple[list[int], np.ndarray]] = field(default_factory=dict)


def read_drafts(trace: Trace, texts: list[TextRecord]) -> list[DraftRecord]:
    """Read what the run's drafts recorded along each text."""
    records = {}
    for text in texts:
        signals = np.full((len(text.text), len(SIGNALS)), np.nan)
        records[text.prompt] = DraftRecord(signals, *np.full((2, len(text.text)), np.nan))
    tokens = {text.prompt: text.text.tolist() for text in texts}
    for row in trace.arrow(COLUMNS).to_pylist():
        if row["node_token"] and is_chain(row) and row["node_entropy"] is not None:
            _read_draft(records[row["prompt"]], row, tokens[row["prompt"]])
    return [records[text.prompt] for text in texts]


def _read_draft(record: DraftRecord, row: Row, text: list[int]) -> None:
    """Add what one draft recorded."""
    nodes, start = row["node_token"], row["keep"] or 0
    signals = np.array([[number(x) for x in row[f"node_{name}"]] for name in SIGNALS]).T
    here = text[start : start + len(nodes)]
    right = common_prefix(nodes, here)
    k = row["top_k"] or 0
    most = {node: row["pred_top_p"][i * k] for i, node in enumerate(row["pred_node"] or ())}
    for i in range(min(right + 1, len(here))):
        record.signals[start + i] = signals[i]
        gap = number((row["node_gap"] or [None] * len(nodes))[i])
        p, rank = ((row[f"node_{name}"] or [None] * len(nodes))[i] for name in ("p", "rank"))
        if gap != gap and p and i - 1 in most:  # not sent, but the pass happened to cover its position
            gap = max(0.0, math.log(most[i - 1] / p))
        if gap == gap and rank is not None:
            record.gap[start + i], record.rank[start + i] = gap, rank
    if right < len(here) and len(nodes) - right - 1 > len(record.tails.get(start + right, ([],))[0]):
        record.tails[start + right] = nodes[right + 1 :], signals[right + 1 :]


class Chain(NamedTuple):
    """The drafter's tokens and confidences from a position on, as far as they are recorded.

    Parameters
    ----------
    tokens, confidences : lists
    matched : int
        How many of them match the text.
    more : bool
        Whether unrecorded tokens would follow.
    """

    tokens: list[int]
    confidences: list[float]
    matched: int
    more: bool


class GapReplay(Replay):
    """Replay of `specviz.methods.cm_asd` or, with nothing adaptive, of `specviz.methods.specdec`.

    Parameters
    ----------
    record, eos, rounding
        As in `Replay`.
    drafts : DraftRecord
    vocabulary : int
        Size of the drafter's vocabulary.
    values : mapping
        CM-ASD's parameters.
    """

    def __init__(
        self, record: TextRecord, eos: frozenset[int], rounding: Rounding, drafts: DraftRecord,
        vocabulary: int, values: Setting,
    ) -> None:  # fmt: skip
        super().__init__(record, eos, rounding)
        self.drafts, self.vocabulary, self.values = drafts, vocabulary, values
        self.width = SURE + rounding.draft  # a pass of another shape may swap confidences this close
        self.adaptive: bool = values["adaptive_drafting"]
        self.early = self.adaptive and values["controller"] == "early_stop"
        self.confidences = self.confidence(drafts.signals).tolist()
        self.tails = {
            at: (tokens, self.confidence(signals).tolist()) for at, (tokens, signals) in drafts.tails.items()
        }

    # -- the rules, in this setting

    def confidence(self, signals: np.ndarray) -> np.ndarray:
        return rules.confidence(signals, self.vocabulary, self.values)

    def clipped_window(self, mean: float) -> int:
        return rules.window(mean, self.values)

    def threshold(self, confidence: float) -> float:
        return rules.threshold(confidence, self.values)

    def window(self, mean: float, at: int) -> int:
        """The window for a mean confidence; halts if rounding could change it."""
        low, high = (self.clipped_window(mean + away) for away in (-self.width, self.width))
        if low != high:
            raise Halt(at, TIE)
        return low

    # -- a cycle

    def cycle(self, start: int, count: int) -> Step:
        most, why = self.reach(start, self.values["k_max"])
        chain = self.chain(start, most)
        size = self.size(start, chain, most, why)
        sent, matched = size.sent, chain.matched
        if sent != size.sent_high and sent <= matched:
            raise Halt(start + matched, SHORT)
        accepted = self.review(start, chain, sent)
        cut = 0
        if matched and start + matched == self.n and self.record.end == "eos" and accepted == matched:
            cut = max(0, sent - accepted)
        return self.step(start, count, size, accepted, min(accepted + 1, self.n - start), cut)

    def chain(self, start: int, most: int) -> Chain:
        """The drafter's tokens from a position on: at most `most`, up to an end token or the window's end."""
        tokens: list[int] = []
        confidences: list[float] = []
        matched = 0
        while len(tokens) < most:
            at = start + matched
            if matched < len(tokens):  # after a token that differs from the text
                tail, of_tail = self.tails.get(at, ([], []))
                i = len(tokens) - matched - 1
                if i >= len(tail):
                    return Chain(tokens, confidences, matched, True)
                token, confidence = tail[i], of_tail[i]
            else:
                token, confidence = self.drafted(at)
                matched += int(token == self.text[at])
            tokens.append(token)
            confidences.append(confidence)
            if token in self.eos:
                break
            if self.early and self.window(sum(confidences) / len(tokens), at) <= len(tokens):
                break
        return Chain(tokens, confidences, matched, False)

    def drafted(self, at: int) -> tuple[int, float]:
        """The drafter's token at a position of the text, and its confidence."""
        if at >= self.n:
            raise Halt(self.n, STOPPED)
        if self.record.draft[at] < 0 or np.isnan(self.drafts.signals[at, 0]):
            raise Halt(at, UNASKED)
        if self.record.draft_lead[at] < self.rounding.draft:
            raise Halt(at, TIE)
        return int(self.record.draft[at]), self.confidences[at]

    def size(self, start: int, chain: Chain, most: int, why: str) -> DraftSize:
        """How much of a chain is sent."""
        tokens, confidences, matched, more = chain
        n = len(tokens)
        if not self.adaptive:
            return DraftSize.exactly(most, most, why)
        if not n:
            return DraftSize.exactly(0, 0, why)
        if more and self.early:  # the next one is drafted and may be sent; the record says nothing beyond it
            return DraftSize(n, most, n + 1, most, "")
        total = sum(confidences)
        if more:
            low = self.clipped_window(total / most - self.width)
            high = self.clipped_window((total + most - n) / most + self.width)
            return DraftSize(min(low, n), min(high, most), most, most, "")
        window = self.window(total / n, start + matched)
        sent, why = rules.sent(tokens, window, self.eos, most, why)
        return DraftSize.exactly(sent, n if self.early else most, why)

    def review(self, start: int, chain: Chain, sent: int) -> int:
        """How many of the sent tokens the target accepts."""
        wrong = len(chain.tokens) > chain.matched  # the next token differs from the text
        for i in range(min(sent, chain.matched + wrong)):
            at = start + i
            if not self.passes(at, chain.confidences[i]):
                self.check_target(at)
                return i
            if self.record.draft[at] != self.text[at]:
                token = int(self.record.draft[at])
                raise Halt(at, "the draft model's token would be accepted here", token)
        accepted = min(sent, chain.matched)
        self.check_next(start + accepted)
        return accepted

    def passes(self, at: int, confidence: float) -> bool:
        """Whether the drafter's token at a position is accepted."""
        record, top_beta = self.record, self.values["top_beta"]
        if record.target_lead[at] < self.rounding.target:
            raise Halt(at, TIE)
        if record.target[at] == record.draft[at]:
            return True
        gap, rank = float(self.drafts.gap[at]), float(self.drafts.rank[at])
        if gap != gap:
            raise Halt(at, UNRATED)
        threshold = self.threshold(confidence)
        moved = self.values["gamma"] * self.width if self.values["adaptive_verification"] else 0.0
        width = moved + SURE * (1 + gap) + 4 * self.rounding.target
        if rank < top_beta and abs(gap - threshold) <= width:
            raise Halt(at, TIE)
        return bool(rules.passes(gap, rank, threshold, top_beta))
