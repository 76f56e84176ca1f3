"""Many settings of many methods on the same texts: the time of each, and the quality of its texts.

All settings decode text 0, then text 1, and so on, in an order that rotates
(`specviz.measure.timing.paired`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from specviz.arguments import MOST, Range, checked
from specviz.errors import ParameterError
from specviz.loop import Run
from specviz.loop.checks import check_prompts, check_single_turns
from specviz.loop.drafters import load_if_needed
from specviz.measure.claims import BootstrapEstimate, ratio, resampled
from specviz.measure.pairs import Score
from specviz.measure.peers import generated
from specviz.measure.phases import phases_of
from specviz.measure.plan import once
from specviz.measure.report import Entry, Settings, Values
from specviz.measure.timing import BASELINE, clock_of, closing, finish, paired
from specviz.methods import Method, find, settings_of
from specviz.models.loading import find as find_model
from specviz.models.protocols import Model

BEAM = "beam"  # in place of a method: transformers' own beam search, values {"beams": n}
OWN = ("bonus", "correction", "resampled", "fallback", "plain")  # origins of tokens that the target wrote
WARM = 8  # tokens that each setting decodes first, untimed
HANDED_OVER = ("fallback", "length")  # why a draft ended: low confidence, or maximum length
TAKEN_BACK = ("correction", "resampled")


@dataclass(frozen=True)
class Point:
    """A setting to measure."""

    label: str  # unique
    method: str | type[Method] | Method
    values: Values = field(default_factory=dict)  # the method's parameters; an instance has its own
    model: Any = None
    draft: Model | None = None
    options: Values = field(default_factory=dict)  # of the sampling: temperature, top_p
    base: str = BASELINE  # label of the setting that its speed and its quality are compared with
    group: str = ""  # the curve that it belongs to


class Advanced:
    """A run that is advanced one text at a time, with counts of each text."""

    def __init__(self, run: Run, texts: int) -> None:
        self.run = run
        names = ("tokens", "cycles", "drafted", "sent", "accepted", "own", "fallbacks", "rollbacks", "passes")
        self.sums = {name: np.zeros(texts) for name in names}
        self.phases: list[dict[str, float]] = []  # of each text
        self._phases = phases_of(run)

    def __call__(self, number: int) -> list[int]:
        """Decode the next text; return its tokens."""
        tokens: list[int] = []
        sums = self.sums
        for cycle in self.run:
            self._phases.take(cycle)
            tokens += cycle.tokens
            sums["cycles"][number] += cycle.number > 0
            sums["passes"][number] += cycle.number > 0 and cycle.scores is not None
            if cycle.verdict is not None and cycle.draft is not None:
                unsent = cycle.verdict.unsent
                sums["sent"][number] += len(cycle.status) if cycle.draft.read else 0
                sums["drafted"][number] += len(cycle.status) + (len(unsent.tokens) if unsent else 0)
                sums["accepted"][number] += cycle.status.count("accepted")
                sums["own"][number] += sum(origin in OWN for origin in cycle.origins)
                handed = cycle.draft.stop in HANDED_OVER and "unreviewed" not in cycle.status
                sums["fallbacks"][number] += handed  # rolled back or not, as `metrics.fallback_share`
                sums["rollbacks"][number] += any(origin in TAKEN_BACK for origin in cycle.origins)
            if cycle.end is not None:
                sums["tokens"][number] = len(tokens)
                self.phases.append(self._phases.sums())
                return tokens
        raise KeyboardInterrupt  # the run was interrupted, and has kept its trace


class Stock:
    """transformers' own `generate`, one text at a time; one beam is greedy decoding."""

    def __init__(self, model: Any, entries: Sequence[Entry], beams: int, most: int) -> None:
        self.model, self.beams, self.most = model, beams, most
        self.ids = [model.encode(entry["prompt"]) for entry in entries]
        self.sums = {"tokens": np.zeros(len(entries)), "cycles": np.zeros(len(entries))}
        self.phases: list[dict[str, float]] = []  # `generate` reports none

    def __call__(self, number: int) -> list[int]:
        """Decode a text; return its tokens."""
        options: Settings = {"num_beams": self.beams, "do_sample": False, "max_new_tokens": self.most}
        tokens = generated(self.model.net, self.ids[number], **options)
        self.sums["tokens"][number] = self.sums["cycles"][number] = len(tokens)
        return tokens


@dataclass
class Measured:
    """A setting's results on every text: arrays [texts] of counts, of seconds, and of summands of the score.

    ``fallbacks`` counts cycles that handed over to the target, ``rollbacks`` those that it corrected, ``own``
    the tokens that the target wrote, and ``passes`` the target's passes after the prompt's.
    """

    point: Point
    sums: dict[str, np.ndarray]
    texts: list[str]
    score: Score
    phases: list[dict[str, float]] = field(default_factory=list)  # of each text, as `Phases.sums`
    tokens: list[list[int]] = field(default_factory=list)  # of each text

    @property
    def quality(self) -> BootstrapEstimate:
        """BLEU or ROUGE-L."""
        return resampled(self.score.of, self.sums["score"])

    def lost(self, base: Measured) -> BootstrapEstimate:
        """How much lower the score is than another setting's, with the texts resampled jointly."""
        return resampled(
            lambda a, b: self.score.of(b) - self.score.of(a), self.sums["score"], base.sums["score"]
        )

    def over(self, base: Measured) -> BootstrapEstimate:
        """How many times as fast as `base` on the same texts, prefill included (the paper's latency)."""
        return resampled(lambda mine, other: other / mine, self.sums["seconds"], base.sums["seconds"])

    def share(self, above: str, below: str) -> BootstrapEstimate:
        """A ratio of sums."""
        return resampled(ratio, self.sums[above], self.sums[below])


@checked
def sweep(
    points: Sequence[Point],
    entries: list[Entry],
    *,
    max_new_tokens: Annotated[int, Range(1, MOST)] = 128,
    rounds: Annotated[int, Range(1)] = 1,
    seed: int = 0,
    tick: Callable[[str], None] = lambda label: None,
) -> dict[str, Measured]:
    """Decode the texts with every setting in turn; with several rounds a text's median time counts.

    Parameters
    ----------
    points : sequence of Point
        Their labels differ. A model given by name is loaded once.
    entries : list of dict
        Entries of one task (`specviz.measure.pairs.suite`), of one turn each.
    rounds, seed : int
        Counts and texts come from the first round; each round samples with its own seed.
    tick : callable
        Called after each text with the setting that decoded it.

    Raises
    ------
    ParameterError, ModelError, PromptError
        For an unknown model, an impossible setting, equal labels, a conversation, no settings or no texts,
        before anything runs.
    """
    if not points or not entries:
        raise ParameterError("a sweep needs points (settings) and entries (texts), at least one of each")
    once("points", (point.label for point in points))
    check_single_turns(check_prompts(entries))
    points = [_named(point) for point in points]
    for point in points:
        if isinstance(point.model, str | Path):
            find_model(point.model)  # refuse an unknown name before the others are loaded
    models = {each: load_if_needed(each, None, None) for each in dict.fromkeys(p.model for p in points)}
    points = [replace(point, model=models[point.model]) for point in points]
    device = points[0].model.device
    clock, _ = clock_of(points[0].model)
    score = Score(entries)
    seconds: dict[str, list[list[float]]] = {point.label: [] for point in points}
    results: dict[str, Measured] = {}
    for number in range(rounds):
        runs: dict[str, Run] = {}
        decoders: dict[str, Advanced | Stock] = {}
        with closing(runs):
            for point in points:
                if point.method == BEAM:
                    decoders[point.label] = Stock(point.model, entries, point.values["beams"], max_new_tokens)
                    decoders[point.label](0)
                    continue
                shared: Settings = {"draft": point.draft, "max_new_tokens": max_new_tokens}
                shared |= {"record": None, "seed": seed + number, **point.options, **point.values}
                warm = shared | {"max_new_tokens": min(WARM, max_new_tokens)}
                finish(Run(point.model, entries[:1], point.method, **warm))
                runs[point.label] = Run(point.model, entries, point.method, **shared)
                decoders[point.label] = Advanced(runs[point.label], len(entries))
            timed = paired(decoders, len(entries), device, tick, clock)
        for point in points:
            seconds[point.label].append(timed[point.label].seconds)
            if not number:
                outputs = [point.model.decode(ids) for ids in timed[point.label].texts]
                sums = decoders[point.label].sums | {"score": score.statistics(outputs)}
                results[point.label] = Measured(
                    point, sums, outputs, score, decoders[point.label].phases, timed[point.label].texts
                )
    for label, measured in results.items():
        measured.sums["seconds"] = np.median(seconds[label], axis=0)
    return results


def _named(point: Point) -> Point:
    """A setting with its method by name, and with checked parameters."""
    if point.method == BEAM:
        return point
    name, values = settings_of(point.method, point.values)
    find(name)(**values)
    return replace(point, method=name, values=values)


def packed(results: dict[str, Measured]) -> Settings:
    """Convert the results of a sweep to plain data."""

    def plain(each: Measured) -> Settings:
        sums = {name: array.tolist() for name, array in each.sums.items()}
        return {"sums": sums, "texts": each.texts, "phases": each.phases, "tokens": each.tokens}

    return {label: plain(each) for label, each in results.items()}


def unpacked(content: Settings, points: Sequence[Point], entries: list[Entry]) -> dict[str, Measured]:
    """Restore the results of a sweep of these points and texts from the plain data of `packed`."""
    score = Score(entries)
    results: dict[str, Measured] = {}
    for point in map(_named, points):
        saved = content[point.label]
        sums = {name: np.array(column) for name, column in saved["sums"].items()}
        texts, phases, tokens = (list(saved[name]) for name in ("texts", "phases", "tokens"))
        results[point.label] = Measured(point, sums, texts, score, phases, tokens)
    return results
