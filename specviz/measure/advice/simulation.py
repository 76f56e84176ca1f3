"""What every setting would have done with a text, cycle by cycle, from the record of its places.

A draft of at most n tokens begins as the longest one does, so one look at every place of a text serves all
lengths. Each decision is the method's own (`specviz.rules`, by way of `specviz.whatifs.walk`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from specviz.metrics.interval import LEAST
from specviz.whatifs.answer import BOUNDED, EXACT, MODELLED
from specviz.whatifs.texts import Rounding
from specviz.whatifs.walk import PromptLookupReplay, Replay, SpeculativeReplay

from .readings import LONGEST, Reading

Value: TypeAlias = bool | float | str
Values: TypeAlias = tuple[tuple[str, Value], ...]  # of parameters, by name
Family: TypeAlias = tuple[str, str]  # a method and its drafter
BASELINE = "autoregressive"
COUNTED = "counted"  # the badge of what was decoded
LOOKUP, CHAIN, BLOCKS, TREE = "prompt_lookup", "speculative", "blockwise", "eagle"
STORES = ("token_recycling", "unispec", "lookahead", "spectra")
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
NGRAMS = ((1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (4, 3))  # longest, shortest
STOPS = (0.0, 0.2, 0.4, 0.6, 0.8)
NO_TIES = Rounding(0.0, 0.0)  # ties are counted apart: see `Reading`


@dataclass(frozen=True)
class Candidate:
    """A method with its drafter and the values of its parameters.

    Parameters
    ----------
    method, draft : str
        `draft` is empty where the method needs none.
    values : tuple of (str, value)
    length : int
        Most tokens of a draft that can be accepted; of a tree its levels.
    """

    method: str
    draft: str = ""
    values: Values = ()
    length: int = 0

    @property
    def family(self) -> Family:
        """What shares the cost of a cycle beside its passes: method and drafter."""
        return self.method, self.draft

    @property
    def nodes(self) -> int:
        """Most tokens of a draft."""
        return int(dict(self.values).get("draft_size", self.length))

    @property
    def by_place(self) -> bool:
        """Whether what it drafts at a place follows from the text alone, and not from its own cycles."""
        return self.method not in (TREE, *STORES)

    @property
    def setting(self) -> str:
        """The parameters in words."""
        return " ".join(f"{name}={value:g}" for name, value in self.values if not isinstance(value, str))

    @property
    def label(self) -> str:
        """Method, drafter and parameters."""
        return " ".join(filter(None, (self.method, self.draft and f"({self.draft})", self.setting)))


@dataclass(eq=False)
class Places:
    """What a cycle that begins at each place of a text would do, with the longest draft; arrays [tokens].

    Parameters
    ----------
    sent : array of int
        Drafted tokens that the target would read.
    drafted, drafted_high : array of int
        Tokens that the drafter would compute: at least, at most.
    accepted : array of int
        Of a sampled text they are not known: see `odds`.
    odds : array of float, optional
        Of a sampled text: the probability that a draft of each place's token is accepted.
    agreeing : array of int, optional
        Of a sampled text whose drafts are copies: how many tokens of each agree with the text; what follows
        them counts as rejected.
    """

    sent: np.ndarray
    drafted: np.ndarray
    drafted_high: np.ndarray
    accepted: np.ndarray
    odds: np.ndarray | None = None
    agreeing: np.ndarray | None = None


@dataclass(eq=False)
class Cycles:
    """The cycles of a setting on a text; arrays over the places where one may begin.

    Parameters
    ----------
    at : array of int
        The place where it begins.
    weight : array
        How probable that is: 1 in a greedy text.
    sent : array of int
    drafted : array
        The mean of the bounds.
    full : array
        The probability that all sent tokens are accepted, 0 where none is sent.
    accepted : array
        Tokens of the draft that are accepted, in the mean. A cycle whose draft holds the text's end adds none
        to them.
    variance : float
        Of the number of cycles, given the text.
    certain : bool
        Whether `drafted` is no mean of bounds.
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
        """How many there are, in the mean."""
        return float(self.weight.sum())


def look(replay: Replay, n: int) -> Places:
    """A replay's cycle at every place of its text."""
    steps = [replay.cycle(start, 0) for start in range(n)]
    columns = np.array([(s.sent, s.drafted, s.drafted_high, s.accepted) for s in steps], np.int64)
    return Places(*columns.reshape(n, 4).T)


def lookup_places(reading: Reading, longest: int, shortest: int) -> Places:
    """Of prompt lookup, greedy or sampled: what is copied was drawn with certainty, so it is accepted
    where the text has it."""
    text = reading.text
    values = {"ngram_max": longest, "ngram_min": shortest, "draft_length": LONGEST}
    places = look(PromptLookupReplay(text.record(0), text.eos, NO_TIES, **values), len(text.tokens))
    places.drafted = places.drafted_high = np.zeros_like(places.sent)  # it takes no pass of a drafter
    if reading.copied is not None:
        places.odds, places.agreeing = reading.copied, places.accepted
    return places


def chain_places(reading: Reading, draft: str, stop: float) -> Places:
    """Of a draft model's chains."""
    text, record = reading.text, reading.records[draft]
    if draft not in reading.odds:
        return look(SpeculativeReplay(record, text.eos, NO_TIES, LONGEST, stop), len(text.tokens))
    n = len(text.tokens)
    start = np.arange(n)
    sent = np.minimum(LONGEST, np.minimum(text.limit - start - 1, record.full - len(text.ids) - start))
    sent = sent.clip(0)
    return Places(sent, sent, sent, np.zeros(n, np.int64), reading.odds[draft])


def block_places(reading: Reading, draft: str) -> Places:
    """Of heads, which guess a block from the state that wrote the last token."""
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
    """The cycles of a draft of at most so many tokens."""
    sent = np.minimum(places.sent, length)
    low, high = np.minimum(places.drafted, length), np.minimum(places.drafted_high, length)
    drafted = (low + high) / 2
    if places.odds is not None:
        return _walk_sampled(sent, drafted, places.odds, places.agreeing)
    accepted = np.minimum(places.accepted, length)
    step = accepted + 1
    at, starts, jumps = 0, list[int](), step.tolist()
    while at < len(jumps):
        starts.append(at)
        at += jumps[at]
    chosen = np.array(starts, np.int64)
    full = ((accepted == sent) & (sent > 0))[chosen].astype(float)
    certain = bool((low == high)[chosen].all())
    return Cycles(
        chosen, np.ones(len(chosen)), sent[chosen], drafted[chosen], full, accepted[chosen], 0.0, certain
    )


def _walk_sampled(
    sent: np.ndarray, drafted: np.ndarray, odds: np.ndarray, agreeing: np.ndarray | None = None
) -> Cycles:
    """How probable a cycle at each place is, given the text, and the variance of their number."""
    n = len(sent)
    visited, full, accepted = np.zeros(n + 1), np.zeros(n), np.zeros(n)
    visited[0] = 1
    outcomes = []  # by place, the probability that 0, 1 ... tokens are accepted
    for at in range(n):
        m = min(int(sent[at]), n - at)
        kept = np.concatenate([[1.0], odds[at : at + m].cumprod()])
        if agreeing is not None:
            kept[1 + agreeing[at] :] = 0
        p = np.append(kept[:-1] - kept[1:], kept[-1])
        outcomes.append(p)
        full[at] = kept[-1] if m else 0.0
        accepted[at] = p @ np.arange(m + 1)
        ends = np.minimum(at + 1 + np.arange(m + 1), n)
        np.add.at(visited, ends, visited[at] * p)
    mean, square = np.zeros(n + 1), np.zeros(n + 1)  # of the cycles that are still to come
    for at in range(n - 1, -1, -1):
        p = outcomes[at]
        ends = np.minimum(at + 1 + np.arange(len(p)), n)
        mean[at] = 1 + p @ mean[ends]
        square[at] = 1 + 2 * (p @ mean[ends]) + p @ square[ends]
    variance = max(0.0, float(square[0] - mean[0] ** 2))
    return Cycles(np.arange(n), visited[:n], sent, drafted, full, accepted, variance)


def plain(n: int) -> Cycles:
    """The cycles of decoding without drafts."""
    nothing = np.zeros(n)
    return Cycles(np.arange(n), np.ones(n), np.zeros(n, np.int64), nothing, nothing, nothing)


def candidates(drafters: Mapping[str, str], most: Mapping[str, int], greedy: bool) -> Iterator[Candidate]:
    """Every setting that is simulated.

    Parameters
    ----------
    drafters : mapping of str to str
        Kind by name.
    most : mapping of str to int
        Of heads, how many tokens they guess.
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
    """All settings on all texts.

    Parameters
    ----------
    readings : sequence of Reading
    listed : sequence of Candidate
    greedy : bool
        Whether the texts were written greedily.
    grown : mapping of Candidate to list of Cycles, optional
        Of trees, which were grown along the texts, and of stores, which decoded them.
    wide : bool
        Whether models compute in float64: there no two of a tree's nodes are taken for a tie.
    """

    def __init__(
        self, readings: Sequence[Reading], listed: Sequence[Candidate], greedy: bool = True,
        grown: Mapping[Candidate, list[Cycles]] | None = None, wide: bool = False,
    ) -> None:  # fmt: skip
        self.readings, self.candidates, self.greedy = list(readings), list(listed), greedy
        self.wide = wide
        self.places: dict[tuple[Family, Values], list[Places]] = {}
        self.cycles = dict(grown or {})
        for each in listed:
            if each.by_place:
                self.cycles[each] = [self._walk(each, i) for i in range(len(readings))]

    def _walk(self, candidate: Candidate, number: int) -> Cycles:
        if candidate.method == BASELINE:
            return plain(len(self.readings[number].text.tokens))
        return walk(self.at_places(candidate)[number], candidate.length)

    def at_places(self, candidate: Candidate) -> list[Places]:
        """What a method and its drafter would do at each place of each text, with the longest draft."""
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
        """Tokens of each text."""
        return np.array([len(each.text.tokens) for each in self.readings])

    def counts(self, candidate: Candidate) -> np.ndarray:
        """Cycles on each text."""
        return np.array([each.count for each in self.cycles[candidate]])

    def tau(self, candidate: Candidate) -> float:
        """Tokens per cycle, over all texts."""
        return float(self.tokens.sum() / self.counts(candidate).sum())

    def tau_bounds(self, candidate: Candidate) -> tuple[float, float]:
        """Between which τ of a run on these prompts lies.

        Where two tokens are nearer than passes of different shape round, a run may write or draft the other
        one: such a text may take as few cycles as its length allows, or as many as it has tokens. A sampled
        run writes other texts: four standard deviations on either side, over texts and over its chances, and
        all that the draft's length allows where texts are too few to tell.
        """
        counts, tokens = self.counts(candidate), self.tokens
        low, high = counts.copy(), counts.copy()
        for i, each in enumerate(self.readings if candidate.method not in STORES else ()):
            if each.close or (candidate.draft and each.close_drafts.get(candidate.draft)):
                low[i], high[i] = math.ceil(tokens[i] / (candidate.length + 1)), tokens[i]
        least, most = low.sum(), high.sum()
        if not self.greedy:
            n = len(tokens)
            rest = counts - counts.sum() / tokens.sum() * tokens
            chance = sum(each.variance for each in self.cycles[candidate])
            spread = 4 * math.sqrt(chance + 2 * float((rest**2).sum()) * n / max(1, n - 1))
            spread = spread if n >= LEAST else math.inf
            least, most = least - spread, most + spread
        total = tokens.sum()
        least, most = max(least, total / (candidate.length + 1)), min(most, total)
        return float(total / most), float(total / least)

    def badge(self, candidate: Candidate) -> str:
        """How sure τ is: exact, bounded, modelled, or counted in a run.

        Modelled where the text is not the target's own; and of trees, whose nodes may nearly tie.
        """
        if candidate.method in STORES:
            return COUNTED
        if not all(each.own.all() for each in self.readings) or (candidate.method == TREE and not self.wide):
            return MODELLED
        low, high = self.tau_bounds(candidate)
        return EXACT if low == high else BOUNDED

    def accepted_share(self, candidate: Candidate) -> float:
        """Accepted tokens over sent ones; NaN where none is sent."""
        cycles = self.cycles[candidate]
        sent = sum(float((each.weight * each.sent).sum()) for each in cycles)
        accepted = sum(float((each.weight * each.accepted).sum()) for each in cycles)
        return accepted / sent if sent else math.nan
