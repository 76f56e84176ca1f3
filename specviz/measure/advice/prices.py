"""Cost of passes and cycles on this device, from timed passes and the cycles of short runs.

A cycle costs the target's pass over its draft, the drafter's passes, and the rest: selecting, verifying,
committing. The passes are timed alone, between the texts of short runs. The rest is the time of these runs'
cycles beyond their passes, as a constant plus a slope per drafted token, or per level of a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from specviz.loop import Run
from specviz.loop.cycle import Cycle
from specviz.measure.benches.passes import Rounds
from specviz.measure.report import Settings
from specviz.measure.timing import Texts, clock_of, settled, synchroniser
from specviz.methods import find
from specviz.models.protocols import Model

from .simulation import BASELINE, BLOCKS, CHAIN, LENGTHS, TREE, Candidate, Cycles, Family

TARGET = ""  # the target's name among the priced models
ROUNDS = 15
PILOTS, PILOT_TOKENS = 4, 32  # texts of the short runs, and tokens of each
FEW, MANY = 3, 8  # draft lengths of the short runs
Timed: TypeAlias = Callable[[str], None]  # called with a description of each finished step
Opened: TypeAlias = list[tuple[str, Rounds[str]]]  # passes to time: a model's name, and one context each


@dataclass(eq=False)
class Passes:
    """Timed passes of one model.

    Parameters
    ----------
    sizes, contexts : list of int
        Tokens per row in the pass, and before it; ascending.
    ms : array [sizes, contexts, rounds]
        Milliseconds.
    """

    sizes: list[int]
    contexts: list[int]
    ms: np.ndarray

    def medians(self, draw: np.random.Generator | None = None) -> np.ndarray:
        """Medians over rounds, or over rounds drawn with replacement: array [sizes, contexts]."""
        ms = self.ms
        if draw is not None:
            ms = ms[..., draw.integers(ms.shape[-1], size=ms.shape[-1])]
        median: np.ndarray = np.median(ms, axis=-1)
        return median

    def weights(self, size: np.ndarray, context: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights that interpolate a pass's time between the measured ones.

        Returns
        -------
        index, weight : arrays [passes, 4]
            Indices into the flattened `medians`, and weights linear in size and in context.
        """
        s, fraction = _between(self.sizes, size)
        c, part = _between(self.contexts, context)
        width = len(self.contexts)
        up, on = (min(1, len(self.sizes) - 1), min(1, width - 1))
        index = np.stack([(s + i * up) * width + c + j * on for i in (0, 1) for j in (0, 1)], 1)
        weight = np.stack([a * b for a in (1 - fraction, fraction) for b in (1 - part, part)], 1)
        return index, weight


def _between(nodes: Sequence[int], at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the node before each point, and the fraction of the way to the next; extrapolates at ends."""
    if len(nodes) == 1:
        return np.zeros(len(at), np.int64), np.zeros(len(at))
    places = np.asarray(nodes, np.float64)
    low = np.clip(np.searchsorted(places, at, side="right") - 1, 0, len(nodes) - 2)
    return low, (at - places[low]) / (places[low + 1] - places[low])


@dataclass(eq=False)
class Pilot:
    """Cycles of short runs of one method: arrays [cycles].

    Parameters
    ----------
    ms : array
        Time of each cycle.
    sent, context : arrays of int
    drafted : array of int
        Passes of the drafter: one for each token of a chain, or for each level of a tree.
    two : array of int
        1 if the previous draft was accepted in full: the drafter's first pass then reads two tokens.
    """

    ms: np.ndarray
    sent: np.ndarray
    drafted: np.ndarray
    context: np.ndarray
    two: np.ndarray


@dataclass(eq=False)
class Prices:
    """Costs of passes, and of cycles beyond their passes.

    Parameters
    ----------
    passes : dict of (model, rows) to Passes
        The target's name is `TARGET`; `rows` is the batch size.
    elsewhere : dict of (model, context) to Passes
        Passes of one row at the requested contexts.
    pilots : dict of family to Pilot
    clock : str
    """

    passes: dict[tuple[str, int], Passes]
    elsewhere: dict[tuple[str, int], Passes] = field(default_factory=dict)
    pilots: dict[Family, Pilot] = field(default_factory=dict)
    clock: str = ""

    def __post_init__(self) -> None:
        self.models = [name for name, rows in self.passes if rows == 1]
        self.offsets, at = dict[str, int](), 0
        for name in self.models:
            self.offsets[name] = at
            at += int(np.prod(self.passes[name, 1].ms.shape[:2]))
        self.fixed = {family: at + 2 * i for i, family in enumerate(self.pilots)}
        self.size = at + 2 * len(self.pilots)

    @property
    def batches(self) -> list[int]:
        """Batch sizes with prices, ascending."""
        return sorted({rows for _, rows in self.passes})

    @property
    def contexts(self) -> list[int]:
        """Requested contexts, ascending."""
        return sorted({context for _, context in self.elsewhere})

    def counts(self, family: Family, cycles: Cycles, prompt: int) -> np.ndarray:
        """How often each price occurs in the cycles of a text: array [prices].

        Parameters
        ----------
        family : (method, drafter)
        cycles : Cycles
        prompt : int
            Number of prompt tokens.
        """
        out = np.zeros(self.size)
        self._add(out, TARGET, cycles.sent + 1, prompt + cycles.at, cycles.weight)
        method, draft = family
        if method == CHAIN:
            # The drafter's first pass reads the tokens that it has not computed yet: the target's own token,
            # and after a draft that was accepted in full also the last draft token.
            one = np.ones(len(cycles.at))
            self._add(out, draft, one, prompt + cycles.at, cycles.weight * cycles.drafted)
            second = np.zeros(len(cycles.at))
            if len(cycles.at) > 1:
                second[1:] = (cycles.weight * cycles.full)[:-1]
            self._add(out, draft, 2 * one, prompt + cycles.at, second)
            self._add(out, draft, one, prompt + cycles.at, -second)
        at = self.fixed[family]
        out[at] += cycles.weight.sum()
        out[at + 1] += (cycles.weight * _steps(method, cycles.sent, cycles.drafted)).sum()
        return out

    def _add(
        self, out: np.ndarray, name: str, size: np.ndarray, context: np.ndarray, weight: np.ndarray
    ) -> None:
        index, parts = self.passes[name, 1].weights(np.asarray(size), np.asarray(context))
        np.add.at(out, self.offsets[name] + index, parts * weight[:, None])

    def batch_ms(self, family: Family, every: Sequence[Cycles], rows: int) -> float:
        """Milliseconds of all texts' cycles in batches that stay full, with `rows` rows.

        A pass of a batch is as long as its longest row, and drafting takes as many steps as the row that
        drafts most: both are the maximum over `rows` cycles drawn from all texts. The rows share these costs
        and the rest of a plain cycle. What drafting adds to that rest is counted once per row.
        """
        weight = np.concatenate([each.weight for each in every])
        sent = np.concatenate([each.sent for each in every])
        drafted = np.concatenate([each.drafted for each in every])
        count, draft = weight.sum(), family[1]
        shared = _largest(sent, weight, rows) @ self._costs(TARGET, rows, np.arange(1, sent.max() + 2))
        if family[0] == CHAIN:
            steps = np.round(drafted).astype(np.int64)
            p = _largest(steps, weight, rows)
            one, two = self._costs(draft, rows, np.array([1, 2]))
            whole = (weight * np.concatenate([each.full for each in every])).sum() / count
            shared += one * float(p @ np.arange(len(p))) + (two - one) * (1 - (1 - whole) ** rows)
        constant, slope = self.usual[self.fixed[family] :][:2].tolist()
        loop = max(0.0, float(self.usual[self.fixed[BASELINE, ""]]))  # noise can push it below 0
        each = slope * float((weight * _steps(family[0], sent, drafted)).sum()) / count
        own = max(0.0, constant - loop) + max(0.0, each)
        return float(count * ((shared + loop) / rows + own))

    @cached_property
    def usual(self) -> np.ndarray:
        """`vector` at the measured contexts, without resampling."""
        return self.vector()

    def _costs(self, name: str, rows: int, sizes: np.ndarray) -> np.ndarray:
        """Milliseconds of a batch's passes, by their tokens per row."""
        passes = self.passes[name, rows]
        index, parts = passes.weights(sizes, np.full(len(sizes), passes.contexts[0]))
        costs: np.ndarray = (passes.medians().ravel()[index] * parts).sum(1)
        return costs

    def vector(self, context: int | None = None, draw: np.random.Generator | None = None) -> np.ndarray:
        """Milliseconds of each price, for one row: array [prices].

        Parameters
        ----------
        context : int, optional
            A requested context at which to price all passes, in place of their own.
        draw : Generator, optional
            Resamples the measurements with replacement.
        """
        out = np.zeros(self.size)
        for name in self.models:
            own = self.passes[name, 1]
            values = own.medians(draw)
            if context is not None:
                values = np.repeat(self.elsewhere[name, context].medians(draw)[:, :1], values.shape[1], 1)
            at = self.offsets[name]
            out[at : at + values.size] = values.ravel()
        for family, pilot in self.pilots.items():
            at, steps = self.fixed[family], _steps(family[0], pilot.sent, pilot.drafted)
            out[at : at + 2] = _line(steps, self.residuals[family], draw)
        return out

    @cached_property
    def residuals(self) -> dict[Family, np.ndarray]:
        """Milliseconds of each short run's cycles beyond their passes: every draw of `vector` needs them."""
        return {family: self._residuals(family, pilot) for family, pilot in self.pilots.items()}

    def _residuals(self, family: Family, pilot: Pilot) -> np.ndarray:
        """Milliseconds of each cycle of the short runs beyond its passes."""
        left = pilot.ms.copy()
        jobs = [(TARGET, pilot.sent + 1, np.ones(len(left)))]
        if family[0] == CHAIN:
            two, one = np.minimum(pilot.two, pilot.drafted), np.ones(len(left))
            jobs.append((family[1], one, (pilot.drafted - two).astype(float)))
            jobs.append((family[1], 2 * one, two.astype(float)))
        for name, size, times in jobs:
            passes = self.passes[name, 1]
            index, weight = passes.weights(np.asarray(size), pilot.context)
            left -= times * (passes.medians().ravel()[index] * weight).sum(1)
        return left

    def groups(self, counts: np.ndarray, vector: np.ndarray) -> dict[str, float]:
        """Split the time of `counts` prices into the target's pass, drafting and the rest."""
        spent = counts * vector
        first = sum(
            self.passes[name, 1].ms.shape[0] * self.passes[name, 1].ms.shape[1] for name in self.models
        )
        end = self.offsets[TARGET] + self.passes[TARGET, 1].ms[..., 0].size
        target = float(spent[self.offsets[TARGET] : end].sum())
        return {
            "pass": target, "draft": float(spent[:first].sum()) - target, "rest": float(spent[first:].sum()),
        }  # fmt: skip


def _largest(values: np.ndarray, weight: np.ndarray, rows: int) -> np.ndarray:
    """Probability of 0, 1, 2, ... as the maximum of `rows` weighted draws."""
    below = np.bincount(values, weight).cumsum() / weight.sum()
    return np.diff(below**rows, prepend=0.0)


def _steps(method: str, sent: np.ndarray, drafted: np.ndarray) -> np.ndarray:
    """What the rest of a cycle grows with: the levels of a tree, or the tokens of any other draft."""
    return drafted if method == TREE else np.maximum(sent, drafted)


def _line(steps: np.ndarray, left: np.ndarray, draw: np.random.Generator | None) -> tuple[float, float]:
    """Fit a constant and a slope per step of drafting to the median time at each number of steps."""
    if draw is not None:
        chosen = draw.integers(len(left), size=len(left))
        left, steps = left[chosen], steps[chosen]
    if not len(left):  # every text ended with its first token
        return 0.0, 0.0
    sizes, counts = np.unique(steps, return_counts=True)
    medians = np.array([np.median(left[steps == size]) for size in sizes])
    if len(sizes) < 2:
        return float(medians[0]), 0.0
    slope, constant = np.polyfit(sizes, medians, 1, w=np.sqrt(counts))
    return float(constant), float(slope)


class TimedRun(Texts):
    """A run that records the duration of each cycle."""

    def __init__(self, run: Run, clock: Callable[[], float]) -> None:
        super().__init__(run)
        self.clock, self.wait = clock, synchroniser(run.model.device)
        self.rows: list[tuple[float, int, int, int, int]] = []
        self.last, self.whole = 0.0, False

    def notice(self, cycle: Cycle) -> None:
        self.wait()
        now = self.clock()
        if cycle.number:
            sent = 0 if cycle.draft is None else len(cycle.draft)
            accepted = 0 if cycle.verdict is None else len(cycle.verdict.path)
            drafted = sum(name == "draft" for name, *_ in cycle.passes)
            took = 1e3 * (now - self.last)
            self.rows.append((took, sent, drafted, cycle.context, int(self.whole)))
            self.whole = accepted == sent > 0
        else:
            self.whole = False
        self.last = now


def pilots_of(
    families: Sequence[Family], most: Mapping[str, int], others: Sequence[Candidate] = ()
) -> Iterator[tuple[Family, Settings]]:
    """Yield the settings of the short runs of each family."""
    for family in families:
        method, draft = family
        if method == BASELINE:
            yield family, {}
        elif method == BLOCKS:
            for k in sorted({2, most[draft]}):
                yield family, {"k": k}
        elif any(each.family == family and not each.by_place for each in others):
            for each in others:
                if each.family == family:
                    yield family, dict(each.values)
        else:
            for length in (FEW, MANY):
                yield family, {"draft_length": length}


def run_pilots(
    model: Model, drafters: Mapping[str, Model], candidates: Sequence[Candidate], texts: Sequence[list[int]],
    options: Settings, done: Timed, between: Callable[[], None] = lambda: None,
) -> dict[Family, Pilot]:  # fmt: skip
    """Decode short runs of every family in turns; the order rotates from text to text.

    `between` is called before every text and after the last one.
    """
    clock = clock_of(model)[0]
    families = list(dict.fromkeys(each.family for each in candidates))
    most = {name: int(getattr(each, "most", 0)) for name, each in drafters.items()}
    runs = []
    for family, values in pilots_of(families, most, candidates):
        prompts = [{"prompt": ids} for ids in texts]
        run = Run(
            model, prompts, find(family[0])(**values), draft=drafters.get(family[1]), record=None, **options
        )
        runs.append((family, TimedRun(run, clock)))
    try:
        with settled():
            for number in range(len(texts)):
                between()
                first = number % len(runs)
                for family, timing in runs[first:] + runs[:first]:
                    timing(number)
                    done(f"short runs of {family[0]}")
            between()
    finally:
        for _, timing in runs:
            timing.run.close()
    rows: dict[Family, list[tuple[float, int, int, int, int]]] = {}
    for family, timing in runs:
        rows.setdefault(family, []).extend(timing.rows)
    made = {}
    for family, each in rows.items():
        columns = np.array(each, np.float64).reshape(-1, 5).T
        made[family] = Pilot(columns[0], *(column.astype(np.int64) for column in columns[1:]))
    return made


def pass_sizes(candidates: Sequence[Candidate]) -> list[int]:
    """Sizes of the target's passes to time, in tokens."""
    return sorted({1, *(each.nodes + 1 for each in candidates), *(n + 1 for n in LENGTHS[:4])})


def steps(
    candidates: Sequence[Candidate], most: Mapping[str, int], texts: int, batches: Sequence[int],
    contexts: Sequence[int],
) -> int:  # fmt: skip
    """How many times `measure` calls `done`; `most` holds block sizes, `contexts` are those of one row."""
    families = list(dict.fromkeys(each.family for each in candidates))
    runs = sum(1 for _ in pilots_of(families, most, candidates))
    models = 1 + sum(method == CHAIN for method, _ in families)
    return runs * texts + ROUNDS * models * (len([b for b in batches if b > 1]) + len(contexts))


@dataclass(eq=False)
class Stopwatch:
    """Times each model's passes in succession, as a drafter's passes also follow one another in a cycle.

    Parameters
    ----------
    models : mapping of str to Model
    sizes : sequence of int
        Sizes of the target's passes; a drafter's passes read one or two tokens.
    done : callable
    text : sequence of int
        Tokens that the passes read.
    """

    models: Mapping[str, Model]
    sizes: Sequence[int]
    done: Timed
    text: Sequence[int] = ()

    def sizes_of(self, name: str) -> list[int]:
        """Sizes of a model's passes, in tokens."""
        return list(self.sizes) if name == TARGET else [1, 2]

    def open(self, stack: ExitStack, contexts: Sequence[int], rows: int = 1) -> Opened:
        """Open passes of every model at each context, to time round by round until `stack` is closed."""
        opened = []
        for name, model in self.models.items():
            for context in contexts:
                rounds = Rounds({"": model}, self.sizes_of(name), context, rows, text=self.text)
                opened.append((name, stack.enter_context(closing(rounds))))
        return opened

    def time(self, opened: Opened, count: int) -> None:
        """Time `count` rounds of each model's passes at each context."""
        for _, rounds in opened:
            rows = f", {rounds.rows} rows" if rounds.rows > 1 else ""
            for _ in range(count):
                rounds()
                self.done(f"passes after {rounds.context} tokens{rows}")

    def __call__(self, contexts: Sequence[int], rows: int = 1) -> dict[str, Passes]:
        """Time all rounds of every model's passes at each context."""
        with ExitStack() as stack, settled():
            opened = self.open(stack, contexts, rows)
            self.time(opened, ROUNDS)
            return passes_of(opened)


def passes_of(opened: Opened) -> dict[str, Passes]:
    """The timed passes of each model, over all its contexts."""
    made = {}
    for name in dict.fromkeys(name for name, _ in opened):
        mine = [rounds for owner, rounds in opened if owner == name]
        ms = np.stack([np.stack(list(each.spent()[""].values())) for each in mine], 1)
        made[name] = Passes(mine[0].sizes, [each.context for each in mine], ms)
    return made


def measure(
    model: Model, drafters: Mapping[str, Model], candidates: Sequence[Candidate], texts: Sequence[list[int]],
    between: tuple[int, int], batches: Sequence[int], contexts: Sequence[int], options: Settings,
    done: Timed, saved: Prices | None = None, keep: Callable[[Prices], None] = lambda made: None,
) -> Prices:  # fmt: skip
    """Time passes and short runs.

    A machine drifts by more than the rest of a cycle. The passes that the short runs are compared with are
    therefore timed between the texts of these runs, not before them.

    Parameters
    ----------
    model : Model
    drafters : mapping of str to Model
    candidates : sequence of Candidate
    texts : sequence of list of int
        Prompts of the short runs.
    between : (int, int)
        Contexts that bracket the texts.
    batches, contexts : sequence of int
        Further batch sizes and contexts at which to time passes.
    options : mapping
        Options of the short runs.
    done : callable
    saved : Prices, optional
        Those measured so far. Only further batch sizes and contexts may be lacking, because short runs are
        compared with passes of the same minute.
    keep : callable
        Called with all prices so far whenever a part is measured.
    """
    families = list(dict.fromkeys(each.family for each in candidates))
    chains = {draft for method, draft in families if method == CHAIN}
    models = {TARGET: model} | {name: drafters[name] for name in drafters if name in chains}
    timed = Stopwatch(models, pass_sizes(candidates), done, [token for text in texts for token in text])
    if saved is None:
        with ExitStack() as stack:
            opened = timed.open(stack, sorted(set(between)))
            counts = iter(np.diff(np.linspace(0, ROUNDS, len(texts) + 2).round().astype(int)).tolist())
            time_passes = lambda: timed.time(opened, next(counts))
            pilots = run_pilots(model, drafters, candidates, texts, options, done, time_passes)
            made = {(name, 1): each for name, each in passes_of(opened).items()}
        saved = Prices(made, pilots=pilots, clock=clock_of(model)[1])
        keep(saved)
    for rows in (rows for rows in batches if rows not in saved.batches):
        saved.passes |= {(name, rows): each for name, each in timed([sum(between) // 2], rows).items()}
        keep(saved)
    for context in (context for context in contexts if context not in saved.contexts):
        saved.elsewhere |= {(name, context): each for name, each in timed([context]).items()}
        keep(saved)
    return saved
