"""Predicted speed of every setting with its interval, the oracle's bound, and changes at other conditions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from specviz.measure.report import Row
from specviz.metrics.interval import LEAST
from specviz.metrics.speedups import Drafter, PassTimes, Setting

from .prices import TARGET, Prices
from .readings import LONGEST, TEMPERATURES
from .simulation import BASELINE, CHAIN, LOOKUP, Candidate, Family, Simulation, Values

DRAWS = 400
SURE = (0.025, 0.975)
WORTH = 1.02  # a smaller speedup counts as no gain
NOT = "do not draft"


@dataclass(frozen=True)
class Prediction:
    """Prediction for one setting.

    Parameters
    ----------
    candidate : Candidate
    tau, tau_low, tau_high : float
        Tokens per cycle, and bounds on those of a run on the same prompts.
    badge : str
        How certain τ is (`Simulation.badge`).
    accepted : float
        Accepted share of the sent tokens; NaN if none is sent.
    speed, speed_low, speed_high : float
        Tokens per second, without the prefill.
    speedup, low, high : float
        Over decoding without drafts; the interval is for a run on as many other texts like these, or NaN.
    cycle : float
        Time of a cycle in units of a plain cycle, and its parts: `forward` (the target's pass), `drafting`,
        `rest`. Only the passes of a draft model are priced separately; for other drafters `drafting` is NaN
        and part of `rest`.
    certain : bool
        Whether the number of tokens drafted in each cycle is exact.
    memory : int or None
        Bytes in addition to the target and its KV cache; None if unknown.
    """

    candidate: Candidate
    tau: float
    tau_low: float
    tau_high: float
    badge: str
    accepted: float
    speed: float
    speed_low: float
    speed_high: float
    speedup: float
    low: float
    high: float
    cycle: float
    forward: float
    drafting: float
    rest: float
    certain: bool
    memory: int | None = None

    @property
    def drafts(self) -> bool:
        """Whether the setting drafts at all."""
        return self.candidate.method != BASELINE

    def as_dict(self) -> Row:
        """The prediction as plain data."""
        made = asdict(self) | {"label": self.candidate.label, "nodes": self.candidate.nodes}
        made["candidate"]["values"] = dict(self.candidate.values)
        return made


def distinct(predictions: Iterable[Prediction]) -> list[Prediction]:
    """The settings that draft, without those that repeat an earlier one's family, τ and accepted share."""
    kept: dict[tuple[Family, float, float], Prediction] = {}
    for each in predictions:
        if each.drafts:
            kept.setdefault((each.candidate.family, each.tau, each.accepted), each)
    return list(kept.values())


LOADS = (1, 2, 4, 8)  # draft lengths in the table of loads


class Ranking:
    """Ranks the simulated settings at the given prices.

    Parameters
    ----------
    simulation : Simulation
    prices : Prices
    """

    def __init__(self, simulation: Simulation, prices: Prices) -> None:
        self.simulation, self.prices = simulation, prices
        self.prompts = [len(each.text.ids) for each in simulation.readings]
        # Trees and stores are simulated only at the starts of their own cycles: the oracle leaves them out.
        self.chosen = [each for each in simulation.candidates if each.by_place]
        kinds: dict[tuple[Family, Values], Candidate] = {}  # the oracle tries all of their lengths
        for each in self.chosen:
            rest = tuple(value for value in each.values if value[0] not in ("draft_length", "k"))
            kinds.setdefault((each.family, rest), each)
        self.options = [
            (each, length)
            for each in kinds.values()
            for length in (range(1, LONGEST + 1) if each.length else (0,))
        ]
        self.counts = {each: self._counts(each) for each in simulation.candidates}

    def _counts(self, candidate: Candidate) -> np.ndarray:
        """How often each price occurs on each text: [texts, prices]."""
        cycles = self.simulation.cycles[candidate]
        return np.stack(
            [self.prices.counts(candidate.family, each, n) for each, n in zip(cycles, self.prompts)]
        )

    def speedups(self, vector: np.ndarray) -> dict[Candidate, float]:
        """Speedup of every setting at given prices."""
        plain = float((self.counts[Candidate(BASELINE)] @ vector).sum())
        return {each: plain / float((counts @ vector).sum()) for each, counts in self.counts.items()}

    def best(self, vector: np.ndarray) -> tuple[Candidate, float]:
        """The fastest setting at given prices, and its speedup."""
        speedups = self.speedups(vector)
        chosen = max(speedups, key=lambda each: speedups[each])
        return chosen, speedups[chosen]

    def predictions(self) -> list[Prediction]:
        """Predict every setting; the fastest comes first."""
        # Drawn only here: other figures need no intervals, and drawing takes seconds.
        draw = np.random.default_rng(0)
        self.texts = draw.integers(len(self.prompts), size=(2, DRAWS, len(self.prompts)))
        self.draws = np.stack([self.prices.vector(draw=draw) for _ in range(DRAWS)])
        self.chances = draw.standard_normal(DRAWS)  # randomness of acceptance in sampled texts
        # The two sets of texts are timed apart: prices drawn for one do not hold for the other.
        self.orders = np.stack([np.arange(DRAWS), draw.permutation(DRAWS)])
        vector = self.prices.vector()
        plain = self.counts[Candidate(BASELINE)]
        above = self._drawn(plain)
        tokens = self.simulation.tokens
        written = tokens[self.texts].sum(-1)
        first = float((plain @ vector).sum()) / float(tokens.sum())
        made = [self._predicted(each, vector, above, written, first) for each in self.simulation.candidates]
        return sorted(made, key=lambda each: -each.speedup)

    def _drawn(self, counts: np.ndarray) -> np.ndarray:
        """Times of resampled texts at resampled prices: [2, draws]."""
        ms = counts @ self.draws.T  # [texts, draws]
        drawn: np.ndarray = ms[self.texts, self.orders[..., None]].sum(-1)
        return drawn

    def _predicted(
        self, candidate: Candidate, vector: np.ndarray, above: np.ndarray, written: np.ndarray, first: float
    ) -> Prediction:
        simulation, counts = self.simulation, self.counts[candidate]
        time, tokens = float((counts @ vector).sum()), float(simulation.tokens.sum())
        number = float(simulation.counts(candidate).sum())
        speedup, speed = first * tokens / time, 1e3 * tokens / time
        below = self._drawn(counts)
        cycles = simulation.cycles[candidate]
        # Randomness of a run: the variance of its number of cycles given the text, at the mean cycle's cost.
        chance = np.array([each.variance / each.count**2 for each in cycles]) * (counts @ vector) ** 2
        below[1] += self.chances * np.sqrt(chance[self.texts[1]].sum(-1))
        low, high = self._interval(speedup, above / below)
        speed_low, speed_high = self._interval(speed, 1e3 * written / below)
        parts = self.prices.groups(counts.sum(0), vector)
        unit = number * first
        return Prediction(
            candidate, simulation.tau(candidate), *simulation.tau_bounds(candidate),
            simulation.badge(candidate), simulation.accepted_share(candidate), speed, speed_low, speed_high,
            speedup, low, high, time / unit, parts["pass"] / unit,
            parts["draft"] / unit if candidate.method in (BASELINE, CHAIN) else float("nan"),
            parts["rest"] / unit,
            all(each.certain for each in cycles),
        )  # fmt: skip

    def _interval(self, value: float, drawn: np.ndarray) -> tuple[float, float]:
        """Interval for a run on as many other texts: both sets of texts vary, and so does the acceptance of
        sampled texts."""
        if len(self.prompts) < LEAST:
            return float("nan"), float("nan")
        if not (drawn > 0).all():
            return float("nan"), float("nan")
        off = np.log(drawn / value)
        low, high = value * np.exp(np.quantile(off[0] + off[1], SURE))
        return float(low), float(high)

    def oracle(self) -> dict[str, float]:
        """The best drafter and draft length at every cycle: the most that a controller could gain.

        Drafted and accepted tokens are exact for greedy texts; times follow from the prices.

        Returns
        -------
        dict
            ``speedup``, ``tau``, and ``share``, the share of cycles that draft.
        """
        vector = self.prices.vector()
        plain_time = float((self.counts[Candidate(BASELINE)] @ vector).sum())
        best = cycles = drafting = 0.0
        for number, reading in enumerate(self.simulation.readings):
            n = len(reading.text.tokens)
            ends, costs = self._choices(number, n, vector)
            total, chosen = np.zeros(n + 1), np.zeros(n, np.int64)
            for at in range(n - 1, -1, -1):
                sums = costs[:, at] + total[ends[:, at]]
                chosen[at] = sums.argmin()
                total[at] = sums[chosen[at]]
            best += total[0]
            at = 0
            while at < n:
                cycles += 1
                drafting += self.options[chosen[at]][0].method != BASELINE
                at = int(ends[chosen[at], at])
        return {
            "speedup": plain_time / best, "tau": float(self.simulation.tokens.sum() / cycles),
            "share": drafting / cycles,
        }  # fmt: skip

    def _choices(self, number: int, n: int, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """End and cost of each option's cycle from each position: two arrays [options, positions]."""
        prompt, start = self.prompts[number], np.arange(n)
        context = prompt + start
        ends, costs = [], []
        for candidate, length in self.options:
            sent = drafted = accepted = np.zeros(n, np.int64)
            if candidate.method != BASELINE:
                places = self.simulation.at_places(candidate)[number]
                sent = np.minimum(places.sent, length)
                drafted = np.minimum(places.drafted, length)
                accepted = np.minimum(places.accepted, length)
            cost = self._priced(TARGET, sent + 1, context, vector)
            if candidate.method == CHAIN:
                cost = cost + drafted * self._priced(candidate.draft, np.ones(n), context, vector)
            at = self.prices.fixed[candidate.family]
            costs.append(cost + vector[at] + vector[at + 1] * np.maximum(sent, drafted))
            ends.append(np.minimum(start + accepted + 1, n))
        return np.stack(ends), np.stack(costs)

    def _priced(self, name: str, size: np.ndarray, context: np.ndarray, vector: np.ndarray) -> np.ndarray:
        index, weight = self.prices.passes[name, 1].weights(np.asarray(size), context)
        priced: np.ndarray = (vector[self.prices.offsets[name] + index] * weight).sum(1)
        return priced

    def passes(self) -> PassTimes:
        """Times of the target's passes, for a surface of speedups."""
        one = self.prices.passes[TARGET, 1]
        columns = dict(zip(one.contexts, one.medians().T))
        columns |= {c: self.prices.elsewhere[TARGET, c].medians()[:, 0] for c in self.prices.contexts}
        contexts = sorted(columns)
        middle = one.medians().mean(1)
        many = [
            np.ones(len(middle)) if rows == 1 else self.prices.passes[TARGET, rows].medians()[:, 0] / middle
            for rows in self.prices.batches
        ]
        plain = float(self.prices.vector()[self.prices.fixed[BASELINE, ""]])
        ms = np.stack([columns[each] for each in contexts], 1)
        return PassTimes(one.sizes, contexts, self.prices.batches, ms, np.stack(many), plain)

    def drafters(self) -> list[Drafter]:
        """Methods and drafters with their settings, for a surface of speedups; without trees and stores."""
        vector, made = self.prices.vector(), []
        families = dict.fromkeys(each.family for each in self.chosen if each.method != BASELINE)
        for family in families:
            ms = float(self.prices.passes[family[1], 1].medians()[0].mean()) if family[0] == CHAIN else 0.0
            settings = []
            for each in (each for each in self.chosen if each.family == family):
                cycles, number = self.simulation.cycles[each], self.simulation.counts(each).sum()
                sent = sum(float((some.weight * some.sent).sum()) for some in cycles) / number
                settings.append(Setting(each.label, sent, self.simulation.tau(each)))
            at = self.prices.fixed[family]
            name = f"{family[0]} ({family[1]})" if family[1] else family[0]
            made.append(Drafter(name, ms, float(vector[at]), float(vector[at + 1]), settings))
        return made

    def elsewhere(self) -> list[Row]:
        """The best setting at other contexts and batches, with the acceptance of these texts."""
        rows = []
        for context in self.prices.contexts:
            best, speedup = self.best(self.prices.vector(context=context))
            rows.append(self._changed(f"context {context}", best, speedup))
        for batch in self.prices.batches:
            speeds = {each: self._speed(each, batch) for each in self.counts}
            best = max(speeds, key=lambda each: speeds[each])
            plain = speeds[Candidate(BASELINE)]
            row = self._changed(f"batch {batch}", best, speeds[best] / plain)
            rows.append(row | {"batch": batch, "speed": plain if row["best"] == NOT else speeds[best]})
        return rows if len(rows) > 1 or self.prices.contexts else []

    def loads(self) -> list[Row]:
        """Tokens per second by batch size, without drafts and with the fastest method at several lengths.

        See `Prices.batch_ms`.

        Returns
        -------
        list of dict
            ``batch``, ``method``, ``plain`` and by draft length ``"1"`` ... (tokens/s of all rows),
            ``latency`` (milliseconds between a row's tokens, at the best of these) and ``gain`` (of the best
            length over no draft); empty if no batch was priced.
        """
        if len(self.prices.batches) < 2:
            return []
        fastest = self.speedups(self.prices.vector())
        drafting = [each for each in self.chosen if each.method in (CHAIN, LOOKUP)]
        best = max(drafting, key=lambda each: fastest[each])
        rest = [value for value in best.values if value[0] not in ("draft_length", "stop")]
        listed = {
            each.length: each for each in drafting
            if each.family == best.family and "stop" not in dict(each.values)
            and all(value in each.values for value in rest)
        }  # fmt: skip
        rows = []
        for batch in self.prices.batches:
            plain = self._speed(Candidate(BASELINE), batch)
            speeds = {length: self._speed(listed[length], batch) for length in LOADS if length in listed}
            most = max(plain, *speeds.values())
            rows.append(
                {"batch": batch, "method": " ".join(filter(None, best.family)), "plain": plain}
                | {str(length): speed for length, speed in speeds.items()}
                | {"latency": 1e3 * batch / most, "gain": max(speeds.values()) / plain}
            )
        return rows

    def sampled(self) -> list[Row]:
        """The best setting at temperatures above 0, by the odds of acceptance along the greedy texts.

        Only prompt lookup and draft models take part: heads and trees draft greedily, and stores must decode.
        """
        if not self.simulation.greedy or not all(each.sampled for each in self.simulation.readings):
            return []
        fastest = self.speedups(self.prices.vector())
        lookup = max((each for each in fastest if each.method == LOOKUP), key=lambda each: fastest[each])
        ngrams = [value for value in lookup.values if value[0] != "draft_length"]
        listed = [
            each for each in self.chosen
            if each.method == BASELINE or (each.method == CHAIN and "stop" not in dict(each.values))
            or (each.method == LOOKUP and all(value in each.values for value in ngrams))
        ]  # fmt: skip
        rows = []
        for temperature in TEMPERATURES:
            readings = [each.at(temperature) for each in self.simulation.readings]
            ranking = Ranking(Simulation(readings, listed, greedy=False), self.prices)
            best, speedup = ranking.best(self.prices.vector())
            row = self._changed(f"temperature {temperature:g}", best, speedup)
            if any(each.method not in (BASELINE, CHAIN, LOOKUP) for each in self.chosen):
                row["best"] += " (trees, heads and stores left out)"
            rows.append(row)
        return rows

    def _speed(self, candidate: Candidate, batch: int) -> float:
        """Tokens per second of all rows of a batch."""
        if batch == 1:
            ms = float((self.counts[candidate] @ self.prices.usual).sum())
        else:
            ms = self.prices.batch_ms(candidate.family, self.simulation.cycles[candidate], batch)
        return 1e3 * float(self.simulation.tokens.sum()) / ms

    def _changed(self, where: str, best: Candidate, speedup: float) -> Row:
        pays = best.method != BASELINE and speedup >= WORTH
        name = best.label if pays else NOT
        return {"where": where, "best": name, "speedup": speedup if pays else 1.0, "badge": "modelled"}
