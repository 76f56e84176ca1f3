"""Simulation of every setting on a text, cycle by cycle, from the record of its positions.

A draft of at most n tokens is a prefix of the longest one, so one look at every position of a text serves all
lengths. Each decision is the method's own (`specviz.rules`, through `specviz.whatifs.walk`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from specviz.methods import Method, find
from specviz.metrics.interval import LEAST
from specviz.whatifs.answer import BOUNDED, EXACT, MODELLED
from specviz.whatifs.texts import Rounding
from specviz.whatifs.walk import PromptLookupReplay, Replay, SpeculativeReplay

from .readings import LONGEST, Reading

Value: TypeAlias = bool | float | str
Values: TypeAlias = tuple[tuple[str, Value], ...]  # parameters by name
Family: TypeAlias = tuple[str, str]  # a method and its drafter
BASELINE = "autoregressive"
COUNTED = "counted"  # badge of a τ that comes from decoding
LOOKUP, CHAIN, BLOCKS, TREE = "prompt_lookup", "speculative", "blockwise", "eagle"
STORES = ("token_recycling", "unispec", "lookahead", "spectra")
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
NGRAMS = ((1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (4, 3))  # longest, shortest
STOPS = (0.0, 0.2, 0.4, 0.6, 0.8)
NO_TIES = Rounding(0.0, 0.0)  # ties are handled by `Reading.close` instead


@dataclass(frozen=True)
class Candidate:
    """A method with its drafter and the values of its parameters.

    Parameters
    ----------
    method, draft : str
        `draft` is empty if the method needs none.
    values : tuple of (str, value)
    length : int
        Maximum number of draft tokens that can be accepted; the depth of a tree.
    """

    method: str
    draft: str = ""
    values: Values = ()
    length: int = 0

    @property
    def family(self) -> Family:
        """Method and drafter, which share the cost of a cycle beyond its passes."""
        return self.method, self.draft

    @property
    def nodes(self) -> int:
        """Maximum number of tokens in a draft."""
        return int(dict(self.values).get("draft_size", self.length))

    @property
    def by_place(self) -> bool:
        """Whether its draft at a position depends on the text alone, not on where its cycles start."""
        return self.method not in (TREE, *STORES)

    @property
    def setting(self) -> str:
        """The parameters as text."""
        return " ".join(f"{name}={value:g}" for name, value in self.values if not isinstance(value, str))

    @property
    def label(self) -> str:
        """Method, drafter and parameters as text."""
        return " ".join(filter(None, (self.method, self.draft and f"({self.draft})", self.setting)))

    def build(self) -> Method:
        """The method with these parameters."""
        return find(self.method)(**dict(self.values))


@dataclass(eq=False)
class Places:
    """The cycle that would start at each position of a text, with the longest draft; arrays [tokens].

    Parameters
    ----------
    sent : array of int
        Drafted tokens that the target would read.
    drafted, drafted_high : array of int
        Bounds on the number of tokens that the drafter would compute.
    accepted : array of int
        Accepted tokens of a greedy text; for a sampled one see `odds`.
    odds : array of float, optional
        For a sampled text: the probability that a draft of each position's token is accepted.
    agreeing : array of int, optional
        For a sampled text with copied drafts: how many leading tokens of each draft agree with the text; the
        others count as rejected.
    """

    sent: np.ndarray
    drafted: np.ndarray
    drafted_high: np.ndarray
    accepted: np.ndarray
    odds: np.ndarray | None = None
    agreeing: np.ndarray | None = None


@dataclass(eq=False)
class Cycles:
    """The cycles of a setting on a text; arrays over the positions where one may start.

    Parameters
    ----------
    at : array of int
        Position where the cycle starts.
    weight : array
        Probability that a cycle starts there; 1 in a greedy text.
    sent : array of int
    drafted : array
        Passes of the drafter: the mean of the bounds on a chain's tokens, or the levels of a tree.
    full : array
        Probability that all sent tokens are accepted and the drafter has yet to read the last; 0 if none is
        sent.
    accepted : array
        Expected number of accepted draft tokens. A cycle whose draft reaches the text's end adds no bonus
        token to them.
    variance : float
        Variance of the number of cycles, given the text.
    certain : bool
        Whether `drafted` is exact, not the mean of different bounds.
    """

    at: np.ndarray
    weight: np.ndarray
    sent: np.ndarray
    drafted: np.ndarray
    full: np.ndarray
    accepted: np.ndarray
    variance: float = 0.0
    certain: bool = True

    @property
    def count(self) -> float:
        """Expected number of cycles."""
        return float(self.weight.sum())


def look(replay: Replay, n: int) -> Places:
    """Replay a cycle at every position of a text."""
    steps = [replay.cycle(start, 0) for start in range(n)]
    columns = np.array([(s.sent, s.drafted, s.drafted_high, s.accepted) for s in steps], np.int64)
    return Places(*columns.reshape(n, 4).T)


def lookup_places(reading: Reading, longest: int, shortest: int) -> Places:
    """The cycles of prompt lookup, greedy or sampled: a copy has draft probability 1, so in a finished text
    it is accepted where it agrees."""
    text = reading.text
    values = {"ngram_max": longest, "ngram_min": shortest, "draft_length": LONGEST}
    places = look(PromptLookupReplay(text.record(0), text.eos, NO_TIES, **values), len(text.tokens))
    places.drafted = places.drafted_high = np.zeros_like(places.sent)  # no drafter pass
    if reading.copied is not None:
        places.odds, places.agreeing = reading.copied, places.accepted
    return places


def chain_places(reading: Reading, draft: str, stop: float) -> Places:
    """The cycles of a draft model's chains."""
    text, record = reading.text, reading.records[draft]
    if draft not in reading.odds:
        return look(SpeculativeReplay(record, text.eos, NO_TIES, LONGEST, stop), len(text.tokens))
    n = len(text.tokens)
    start = np.arange(n)
    sent = np.minimum(LONGEST, np.minimum(text.limit - start - 1, record.full - len(text.ids) - start))
    sent = sent.clip(0)
    return Places(sent, sent, sent, np.zeros(n, np.int64), reading.odds[draft])


def block_places(reading: Reading, draft: str) -> Places:
    """The cycles of heads, which draft a block from the hidden state that wrote the last token."""
    text, guesses = reading.text, reading.guesses[draft]
    n, most = guesses.shape
    start = np.arange(n)
    sent = np.minimum(most, text.limit - start - 1).clip(0)
    sent[:1] = 0  # the prefill leaves no state of the prompt's last token
    tokens = np.concatenate([text.tokens, np.full(most, -2)])
    right = guesses == tokens[start[:, None] + np.arange(most)]
    right &= np.arange(most) < sent[:, None]
    accepted = right.cumprod(1).sum(1)
    nothing = np.zeros(n, np.int64)
    return Places(sent, nothing, nothing, accepted)


def walk(places: Places, length: int) -> Cycles:
    """Walk along a greedy text with drafts of at most `length` tokens."""
    sent = np.minimum(places.sent, length)
    low, high = np.minimum(places.drafted, length), np.minimum(places.drafted_high, length)
    drafted = (low + high) / 2
    accepted = np.minimum(places.accepted, length)
    step = accepted + 1
    at, starts, jumps = 0, list[int](), step.tolist()
    while at < len(jumps):
        starts.append(at)
        at += jumps[at]
    chosen = np.array(starts, np.int64)
    # A drafter that was unsure of the next token has read the last one that was sent.
    full = ((accepted == sent) & (sent > 0) & (drafted <= sent))[chosen].astype(float)
    certain = bool((low == high)[chosen].all())
    return Cycles(
        chosen, np.ones(len(chosen)), sent[chosen], drafted[chosen], full, accepted[chosen], 0.0, certain
    )


def walk_sampled(every: Sequence[Places], length: int) -> list[Cycles]:
    """Cycles of sampled texts: the probability of one at each position, and the variance of their number.

    All texts are walked at once, because a Python loop over the positions of each takes many times as long.
    """
    sizes = np.array([len(each.sent) for each in every])
    most = int(sizes.max())
    sent, right = np.zeros((2, len(every), most), np.int64)  # sent tokens, and how many can be accepted
    odds = np.zeros((len(every), most + length))
    for row, (each, n) in enumerate(zip(every, sizes)):
        assert each.odds is not None
        sent[row, :n] = np.minimum(np.minimum(each.sent, length), n - np.arange(n))
        right[row, :n] = sent[row, :n] if each.agreeing is None else np.minimum(sent[row, :n], each.agreeing)
        odds[row, :n] = each.odds
    kept = np.ones((len(every), most, length + 1))  # probability that at least 0, 1, ... tokens are accepted
    kept[..., 1:] = np.lib.stride_tricks.sliding_window_view(odds, length, 1)[:, :most].cumprod(-1)
    kept[np.arange(length + 1) > right[..., None]] = 0
    p = -np.diff(kept, append=0)  # that exactly so many are
    full = np.where(sent > 0, np.take_along_axis(kept, sent[..., None], -1)[..., 0], 0)
    accepted = p @ np.arange(length + 1)
    visited, mean, square = np.zeros((3, len(every), most + length + 1))  # moments: of the remaining cycles
    visited[:, 0] = 1
    for at in range(most):
        visited[:, at + 1 : at + length + 2] += visited[:, at, None] * p[:, at]
    for at in range(most - 1, -1, -1):
        ahead = slice(at + 1, at + length + 2)
        rest = (p[:, at] * mean[:, ahead]).sum(1)
        mean[:, at] = (at < sizes) * (1 + rest)
        square[:, at] = (at < sizes) * (1 + 2 * rest + (p[:, at] * square[:, ahead]).sum(1))
    variance = np.maximum(0, square[:, 0] - mean[:, 0] ** 2)
    return [
        Cycles(
            np.arange(n), visited[row, :n], np.minimum(each.sent, length),
            (np.minimum(each.drafted, length) + np.minimum(each.drafted_high, length)) / 2,
            full[row, :n], accepted[row, :n], float(variance[row]),
        )
        for row, (each, n) in enumerate(zip(every, sizes))
    ]  # fmt: skip


def plain(n: int) -> Cycles:
    """The cycles of decoding without drafts."""
    nothing = np.zeros(n)
    return Cycles(np.arange(n), np.ones(n), np.zeros(n, np.int64), nothing, nothing, nothing)


def candidates(drafters: Mapping[str, str], most: Mapping[str, int], greedy: bool) -> Iterator[Candidate]:
    """Yield every setting to simulate.

    Parameters
    ----------
    drafters : mapping of str to str
        Kind by name.
    most : mapping of str to int
        Largest block size of heads, by name.
    greedy : bool
    """
    yield Candidate(BASELINE)
    for longest, shortest in NGRAMS:
        for length in LENGTHS:
            named = (("ngram_max", longest), ("ngram_min", shortest), ("draft_length", length))
            yield Candidate(LOOKUP, "", named, length)
    for name, kind in drafters.items():
        if kind == "heads" and greedy:
            for k in range(2, most[name] + 1):
                yield Candidate(BLOCKS, name, (("k", k),), k - 1)
        elif kind not in ("heads", "eagle"):
            for stop in STOPS if greedy else (0.0,):
                for length in LENGTHS:
                    if stop and length == 1:
                        continue
                    values = (("draft_length", length), *((("stop", stop),) if stop else ()))
                    yield Candidate(CHAIN, name, values, length)


class Simulation:
    """Simulates all settings on all texts.

    Parameters
    ----------
    readings : sequence of Reading
    listed : sequence of Candidate
    greedy : bool
        Whether the texts were written greedily.
    grown : mapping of Candidate to list of Cycles, optional
        Cycles of trees, which were grown along the texts, and of stores, which decoded them.
    wide : bool
        Whether models compute in float64, in which no two nodes of a tree count as a tie.
    unchecked : bool
        Whether the texts are sampled answers, which need not be the target's own.
    """

    def __init__(
        self, readings: Sequence[Reading], listed: Sequence[Candidate], greedy: bool = True,
        grown: Mapping[Candidate, list[Cycles]] | None = None, wide: bool = False, unchecked: bool = False,
    ) -> None:  # fmt: skip
        self.readings, self.candidates, self.greedy = list(readings), list(listed), greedy
        self.wide, self.unchecked = wide, unchecked
        self.places: dict[tuple[Family, Values], list[Places]] = {}
        self.cycles = dict(grown or {})
        for each in listed:
            if each.by_place:
                self.cycles[each] = self._walked(each)

    def _walked(self, candidate: Candidate) -> list[Cycles]:
        if candidate.method == BASELINE:
            return [plain(len(each.text.tokens)) for each in self.readings]
        every = self.at_places(candidate)
        if every[0].odds is not None:
            return walk_sampled(every, candidate.length)
        return [walk(each, candidate.length) for each in every]

    def at_places(self, candidate: Candidate) -> list[Places]:
        """Cycles of a method and its drafter at each position of each text, with the longest draft."""
        values = dict(candidate.values)
        rest = tuple((name, v) for name, v in values.items() if name not in ("draft_length", "k"))
        key = candidate.family, rest
        if key not in self.places:
            if candidate.method == LOOKUP:
                made = [
                    lookup_places(each, int(values["ngram_max"]), int(values["ngram_min"]))
                    for each in self.readings
                ]
            elif candidate.method == BLOCKS:
                made = [block_places(each, candidate.draft) for each in self.readings]
            else:
                stop = float(values.get("stop", 0.0))
                made = [chain_places(each, candidate.draft, stop) for each in self.readings]
            self.places[key] = made
        return self.places[key]

    @property
    def tokens(self) -> np.ndarray:
        """Number of tokens of each text."""
        return np.array([len(each.text.tokens) for each in self.readings])

    def counts(self, candidate: Candidate) -> np.ndarray:
        """Expected number of cycles on each text."""
        return np.array([each.count for each in self.cycles[candidate]])

    def tau(self, candidate: Candidate) -> float:
        """Tokens per cycle, over all texts."""
        return float(self.tokens.sum() / self.counts(candidate).sum())

    def tau_bounds(self, candidate: Candidate) -> tuple[float, float]:
        """Bounds on τ of a run on these prompts.

        If two tokens are closer than the rounding between passes of different shape, a run may write or draft
        the other one, and if a confidence is as close to the threshold, stop elsewhere: only the draft length
        and the number of tokens then bound the cycles of that text. If the tokens are the target's, that
        number itself may be anything up to the text's limit, where τ is extreme.
        A sampled run writes other texts: the bounds are four standard deviations on either side, over texts
        and the run's randomness, or all that the draft length allows if there are too few texts.
        """
        counts, tokens = self.counts(candidate), self.tokens
        here, longest = tokens.sum() / counts.sum(), candidate.length + 1
        low, high = counts.copy(), counts.copy()
        draft, stop = candidate.draft, float(dict(candidate.values).get("stop", 0.0))
        for i, each in enumerate(self.readings if candidate.method not in STORES else ()):
            if each.close:
                tokens[i] = high[i] = each.text.limit
                low[i] = tokens[i] / longest  # of a length at which the last draft is whole
            elif draft and (each.close_drafts.get(draft) or (stop and each.near(draft, stop))):
                low[i], high[i] = math.ceil(tokens[i] / longest), tokens[i]
        least, most = low.sum(), high.sum()
        if not self.greedy:
            n = len(tokens)
            rest = counts - counts.sum() / tokens.sum() * tokens
            chance = sum(each.variance for each in self.cycles[candidate])
            spread = 4 * math.sqrt(chance + 2 * float((rest**2).sum()) * n / max(1, n - 1))
            spread = spread if n >= LEAST else math.inf
            least, most = least - spread, most + spread
        total = tokens.sum()
        least, most = max(least, total / longest), min(most, total)
        return float(min(total / most, here)), float(max(total / least, here))

    def badge(self, candidate: Candidate) -> str:
        """How certain τ is: exact, bounded, modelled, or counted in a run.

        Modelled if a text is not, or need not be, the target's own, and for trees unless in float64, as nodes
        may nearly tie.
        """
        if candidate.method in STORES:
            return COUNTED
        own = not self.unchecked and all(each.own.all() for each in self.readings)
        if not own or (candidate.method == TREE and not self.wide):
            return MODELLED
        low, high = self.tau_bounds(candidate)
        return EXACT if low == high else BOUNDED

    def accepted_share(self, candidate: Candidate) -> float:
        """Accepted tokens over sent ones; NaN if none is sent."""
        cycles = self.cycles[candidate]
        sent = sum(float((each.weight * each.sent).sum()) for each in cycles)
        accepted = sum(float((each.weight * each.accepted).sum()) for each in cycles)
        return accepted / sent if sent else math.nan
