"""Measurement of re-translation: settings of `retranslate` on the same streams.

Every setting decodes the same streams, text by text in turns. Quality, erasure and acceptance do not depend
on time, so one round is enough for them; only the speed needs several. Intervals and comparisons come from
resampling the texts, with the same draws for both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specviz import metrics
from specviz.loop import Run
from specviz.measure.claims import BootstrapEstimate, Quality, quotient, resampled
from specviz.measure.phases import phases_of
from specviz.measure.report import Settings, Values
from specviz.measure.timing import clock_of, closing, finish, paired, synchroniser
from specviz.models.protocols import Model
from specviz.streams import Stream
from specviz.trace import Trace

METHOD = "retranslate"
RT = "RT"


@dataclass(frozen=True)
class Setting:
    """A way to decode the streams: its name in the tables, and the method's parameters."""

    label: str
    values: Values


@dataclass(frozen=True)
class Sources:
    """The streams to decode.

    Attributes
    ----------
    language : str
        The output language, as the prompt names it.
    streams : sequence of Stream
    references : sequence of sequences of str, optional
        Reference translations of each stream. Default: the last output of re-translation.
    """

    language: str
    streams: Sequence[Stream]
    references: Sequence[Sequence[str]] | None = None


class Follow:
    """A run of `given` that is advanced one stream at a time, with times and counts of each stream."""

    def __init__(self, run: Run, given: Sequence[Stream], clock: Callable[[], float]) -> None:
        self.run, self.clock = run, clock
        self.updates = [len(list(stream)) for stream in given]
        self.wait = synchroniser(run.model.device)
        names = ("emitted", "drafted", "accepted", "passes", "seconds", "prefill")
        self.sums: dict[str, np.ndarray] = {name: np.zeros(len(given)) for name in names}
        self.phases: list[dict[str, float]] = []  # of each stream
        self._phases = phases_of(run)

    def __call__(self, number: int) -> list[int]:
        """Decode the next stream; return all emitted tokens."""
        left, tokens, sums = self.updates[number], [0][:0], self.sums
        begin = self.clock()
        for cycle in self.run:
            if cycle.number == 0:  # prefill is asynchronous: synchronize
                self.wait()
            now = self.clock()
            sums["seconds" if cycle.number else "prefill"][number] += now - begin
            self._phases.take(cycle)
            sums["passes"][number] += cycle.scores is not None
            sums["drafted"][number] += len(cycle.status)
            sums["accepted"][number] += sum(each in ("accepted", "unreviewed") for each in cycle.status)
            tokens += cycle.tokens
            left -= cycle.end is not None
            if not left:
                sums["emitted"][number] = len(tokens)
                self.phases.append(self._phases.sums())
                return tokens
            begin = self.clock()
        raise KeyboardInterrupt  # the run was interrupted, and has kept its trace


@dataclass
class Decoded:
    """A setting's results on every text.

    Parameters
    ----------
    sums : dict of str to array [texts, ...]
        ``emitted``, ``drafted`` and ``accepted`` tokens; ``passes`` after the prompts'; ``erased`` tokens,
        and ``final`` ones of the last output; ``seconds`` without and ``total`` with the prompts' passes;
        ``lag``, average lagging; ``read`` and ``reused`` tokens of the updates' prompts, and how many of
        these were not computed again; ``bleu`` [texts, 10], the summands of BLEU.
    chrf : float
        Score of the last outputs.
    texts : list of str
        The last outputs.
    tokens : list of list of int
        The tokens of each stream, over all of its updates.
    """

    setting: Setting
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    chrf: float = float("nan")
    texts: list[str] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)  # of each stream, as `Phases.sums`
    tokens: list[list[int]] = field(default_factory=list)

    def of(self, function: Callable[..., Any], *names: str) -> BootstrapEstimate:
        """Apply a function to sums over the texts."""
        return resampled(function, *(self.sums[name] for name in names))

    def over(self, other: Decoded, prefill: bool = False) -> BootstrapEstimate:
        """Tokens per second relative to the other's."""
        names = ("emitted", "total" if prefill else "seconds")
        return resampled(quotient, *(side.sums[name] for side in (self, other) for name in names))


def measure(
    model: Model,
    sources: Sources,
    chosen: Sequence[Setting],
    *,
    rounds: int = 1,
    max_new_tokens: int = 128,
    template: str | None = None,
    tick: Callable[[str], None] = lambda label: None,
) -> tuple[dict[str, Decoded], Quality]:
    """Let every setting decode the streams of a language, text by text in turns.

    With several rounds, a text's median time counts. The default template is the model's own.
    """
    given = sources.streams
    clock, _ = clock_of(model)
    shared: Settings = {"target_language": sources.language, "max_new_tokens": max_new_tokens}
    shared |= {"record": None} | ({} if template is None else {"template": template})
    tokenize = metrics.tokenizer({"parameters": shared}).name  # refuses before hours of decoding
    followed: list[dict[str, Follow]] = []
    for _ in range(rounds):
        runs: dict[str, Run] = {}
        with closing(runs):
            for each in chosen:
                finish(Run(model, given[:1], METHOD, **shared, **each.values))  # warm-up
                runs[each.label] = Run(model, given, METHOD, **shared, **each.values)
            followed.append({name: Follow(run, given, clock) for name, run in runs.items()})
            timed = paired(followed[-1], len(given), model.device, tick, clock)
            traces = {name: finish(run) for name, run in runs.items()}
    references = sources.references
    if references is None:
        references = [[text] for text in last_texts(traces[RT])]
    quality = Quality(tokenize, references)
    made = {}
    for each in chosen:
        made[each.label] = judged(each, [f[each.label].sums for f in followed], traces[each.label], quality)
        made[each.label].phases = followed[0][each.label].phases
        made[each.label].tokens = timed[each.label].texts
    return made, quality


def judged(of: Setting, rounds: list[dict[str, np.ndarray]], trace: Trace, quality: Quality) -> Decoded:
    """A setting's results: counts of one round, median times of all rounds, and the quality of its texts."""
    sums = dict(rounds[0])
    for name in ("seconds", "prefill"):
        sums[name] = np.median([each[name] for each in rounds], axis=0)
    sums["total"] = sums["seconds"] + sums["prefill"]
    prompts = trace.updates.groupby("prompt")[["prompt_tokens", "reused"]].sum()
    sums["read"], sums["reused"] = prompts.to_numpy(float).T
    words = metrics.erasure(trace).groupby("prompt")
    sums["erased"] = words["erased"].sum().to_numpy(float)
    sums["final"] = words["tokens"].last().to_numpy(float)
    sums["lag"] = metrics.lagging(trace)["AL"].to_numpy(float)
    sums["texts"] = np.ones(len(sums["lag"]))
    outputs = last_texts(trace)
    sums["bleu"] = quality.statistics(outputs)
    return Decoded(of, sums, quality.chrf(outputs), texts=outputs)


def last_texts(trace: Trace) -> list[str]:
    """The text of each stream's last update."""
    texts: list[str] = trace.updates.groupby("prompt")["text"].last().tolist()
    return texts


def packed(results: tuple[dict[str, Decoded], Quality]) -> Settings:
    """Convert the results of `measure` to plain data."""
    decoded, quality = results

    def plain(each: Decoded) -> Settings:
        written = {"chrf": each.chrf, "texts": each.texts, "phases": each.phases, "tokens": each.tokens}
        return {"sums": {name: array.tolist() for name, array in each.sums.items()}, **written}

    made = {label: plain(each) for label, each in decoded.items()}
    return {"decoded": made, "tokenize": quality.tokenize, "right": list(map(list, quality.right))}


def unpacked(content: Settings, chosen: Sequence[Setting]) -> tuple[dict[str, Decoded], Quality]:
    """Restore the results of these settings from the plain data of `packed`."""
    decoded = {}
    for each in chosen:
        saved = dict(content["decoded"][each.label])
        sums = {name: np.array(column) for name, column in saved.pop("sums").items()}
        decoded[each.label] = Decoded(each, sums, **saved)
    return decoded, Quality(content["tokenize"], content["right"])
