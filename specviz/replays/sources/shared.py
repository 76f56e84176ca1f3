"""What all sources share: the options they take and the measurements they return."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from specviz import calibration
from specviz.errors import SpecvizError, plural
from specviz.files import write_text
from specviz.loop.machine import computed_by, content
from specviz.measure.claims import BootstrapEstimate, ratio, resampled
from specviz.measure.report import Entry, Estimate, Settings, Tick, Values
from specviz.measure.rows import words
from specviz.measure.timing import counter
from specviz.methods import Method
from specviz.metrics.interval import LEAST, RESAMPLES
from specviz.models.protocols import Model
from specviz.replays.cells import ABILITY, AGAIN, CONTROL, SAME, Check, Figure, Provenance
from specviz.replays.costs import Cost, cost_of, modelled
from specviz.replays.recipes import Best, Recipe, Row
from specviz.replays.tasks import PLAIN, filled_by, own_prompts, single, tasks_of, wanted
from specviz.suites import Suite

if TYPE_CHECKING:
    from specviz.calibration import Calibration
    from specviz.trace import Trace

Where = Values
T = TypeVar("T")
Text: TypeAlias = "str | Sequence[str]"  # a correct text, or several
Written: TypeAlias = "str | Sequence[int]"  # a text, or its tokens
Number: TypeAlias = "float | str | None"  # a cell's value
NOWHERE = Provenance()
UNTESTED = "whether the model can do {} was not tested"
SERVED = "other columns took the bundled texts of its kind"

# How to calibrate if there is no calibration yet: texts, warm-up texts, and arguments of `calibrate`.
HASTE = 1, 1
CALM = 5, 5
IN_HASTE: Settings = {"sizes": (4, 8, 16, 32, 64), "max_new_tokens": 24, "rounds": 1}
IN_CALM: Settings = {
    "sizes": (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256), "max_new_tokens": 64, "rounds": 2,
}  # fmt: skip
FITS = {"paper": "the paper's fit", "monotone": "ours"}  # readings of calibration points, in words


@dataclass
class RunOptions:
    """How to run a recipe."""

    model: Any  # a name or path, replaced by the model once it is loaded
    drafts: dict[str, str]  # role: name of the drafter
    suites: dict[str, Suite]  # prompts in place of the recipe's, by task; `PLAIN` for all
    number: int  # of prompts
    max_new_tokens: int
    threads: int  # on a CPU
    extra: Settings  # the recipe's other numbers: ``rounds``, thresholds
    path: Path  # the replay's folder
    shared: Path  # the folder of calibrations that several replays use
    memory: dict[tuple, Any]  # models and measurements of this process that several tables share
    template: str | None = None  # text around the sources of streams
    chat: Settings = field(default_factory=dict)  # variables of the model's chat template
    peers: tuple[Recipe, ...] = ()  # recipes of other tables that decode the same prompts
    quick: bool = False
    fit: str = "paper"  # a key of `FITS`
    practice: tuple[Entry, ...] = ()  # prompts of the run's own suite that are not measured
    tick: Tick = lambda done, of, what: None
    kernels: str | None = None  # of the model
    invariant: bool | None = None  # whether the model is
    # Date and seconds of each measurement that an interrupted replay had finished.
    kept: list[tuple[str, float]] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """How often everything is timed."""
        return int(self.extra.get("rounds", 1))

    def counter(self, of: int) -> Callable[[str], None]:
        """A function that reports one finished step, given a label for it."""
        return counter(self.tick, of)

    @property
    def target(self) -> tuple[str, str, str, int]:
        """Key of the target's measurements: its name, number format, device and threads."""
        return self.model.name, str(self.model.dtype), str(self.model.device), self.threads

    def once(self, key: tuple[str, ...], entries: Sequence[Entry], make: Callable[[], T]) -> T:
        """The result of `make` for the prompts; tables with equal settings in one process share it."""
        numbers = self.number, self.max_new_tokens, self.quick, self.template
        suites = ((task, each.digest) for task, each in self.suites.items())
        more = (json.dumps(each, sort_keys=True, default=str) for each in (self.extra, self.chat))
        prompts = json.dumps(entries, sort_keys=True, default=str)  # two suites may use the same ids
        key_of_all = (*key, prompts, *self.target, *self.drafts.items(), *suites, *numbers, *more)
        if key_of_all not in self.memory:
            before = len(self.kept)
            made = make()
            self.memory[key_of_all] = made, [date for date, _ in self.kept[before:]]
            return made
        result: T
        result, dates = self.memory[key_of_all]
        self.kept.extend((date, 0.0) for date in dates)  # the first table counts its seconds
        return result

    def outlasting(
        self, key: Settings, make: Callable[[], T], pack: Callable[[T], Settings],
        unpack: Callable[[Settings], T], step: Callable[[str], None], steps: int,
    ) -> T:  # fmt: skip
        """The result of `make`, kept in the replay's folder with its date and seconds: it outlasts a kill.

        Parameters
        ----------
        key : dict
            What the result depends on, besides the model, its environment and the number of rounds.
        pack, unpack : callable
            Convert the result to plain data and back. What `unpack` cannot read is measured again.
        step, steps : callable, int
            Of a result that was kept before, all steps are reported at once.
        """
        every = [key, self.max_new_tokens, self.rounds, about(self.model), computed_by(self.model)]
        mark = hashlib.sha256(json.dumps(every, sort_keys=True, default=str).encode()).hexdigest()[:16]
        file = self.path / "measured" / f"{mark}.json"
        with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):  # missing or damaged
            stored = json.loads(file.read_text(encoding="utf8"))
            result = unpack(stored["result"])
            self.kept.append((str(stored["date"]), float(stored["seconds"])))
            for _ in range(steps):
                step("measured before")
            return result
        begin, date = perf_counter(), datetime.now(UTC).date().isoformat()
        result = make()
        stored = {"date": date, "seconds": perf_counter() - begin, "result": pack(result)}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(stored), force=True)
        return result

    def drafter(self, role: str) -> Any:
        """The drafter of a role, loaded once; None if none is named."""
        from specviz.loop.drafters import load_drafter

        name = self.drafts.get(role)
        if not name:
            return None
        key = ("draft", name, *self.target)
        if key not in self.memory:
            self.memory[key] = load_drafter(self.model, name, None, None)
        return self.memory[key]

    def prompts(
        self, recipe: Recipe, made: Measurement, bundled: Callable[[str, Values, int], list[Entry]]
    ) -> dict[str, list[Entry]]:
        """The prompts of each task of a table; a task without any is noted as absent.

        Parameters
        ----------
        bundled : callable
            ``bundled(task, part, start)`` returns the recipe's prompts, from number `start` on.

        Two tasks never share prompts, as one figure under two names would count twice.
        """
        column, tasks = next(iter(recipe.parts), ""), tasks_of(recipe)
        taken: Counter[tuple] = Counter()
        chosen: dict[str, list[Entry]] = {}
        for task, part in tasks.items():
            key = (task in self.suites, task if task in self.suites else "", *wanted(part).values())
            start, where = taken[key], {column: task}
            if self.suites:
                some, why = self.own_share(task, tasks, start)
            else:
                some = bundled(task, part, start)
                why = SERVED if start else "no texts of its kind are bundled"
            taken[key] += len(some)
            if some:
                chosen[task] = list(map(single, some))
            else:
                made.absent.append((where, why))
        return chosen

    def own_share(self, task: str, tasks: Mapping[str, Values], start: int) -> tuple[list[Entry], str]:
        """A task's share of the user's prompts, from number `start` on, or the reason why it has none."""
        part = tasks[task]
        every, why = own_prompts(self.suites, task, part)
        some = every[start : start + self.number]
        if task in self.suites or not every:
            return some, why
        plain, remedy = self.suites[PLAIN], f"name a suite with --suite '{task}=SUITE'"
        rivals = [each for each in tasks if each not in self.suites and wanted(tasks[each]) == wanted(part)]
        if task not in filled_by(plain, rivals):
            return [], f"{plain.name} fills another column of its kind: {remedy}"
        if not some:
            why = f"no prompt of {plain.name} is left for it, as other columns took them: {remedy}"
        return some, why

    def suite_of(self, task: str, bundled: str) -> str:
        """The name of the suite from which a task's prompts come."""
        given = self.suites.get(task) or self.suites.get(PLAIN)
        return bundled if given is None else Path(given.name).name

    def calibration(self, method: str, values: Values = MappingProxyType({})) -> Calibration:
        """The user's own calibration of a method, else one made here on prompts that are not measured.

        `values` are its parameters other than the draft size.
        """
        from specviz.loop.machine import calibration_setting
        from specviz.measure.calibrate import calibrate
        from specviz.methods import find

        with suppress(SpecvizError):
            return calibration.stored(calibration_setting(self.model, find(method)(**values)))
        practice = json.dumps(list(map(single, self.practice)), sort_keys=True, default=str)
        key = ("g*", method, words(values), *self.target, self.quick, practice)
        if key not in self.memory:
            (n, before), how = (HASTE, IN_HASTE) if self.quick else (CALM, IN_CALM)
            some, given = list(map(single, self.practice)), Settings(values)
            if some:
                n = min(n, max(1, len(some) // 2))
                given |= {"suite": some[:n], "warm_up": some[n : n + before] or 0}
            else:
                given["number"] = n
            made = calibrate(self.model, method, folder=self.shared, tick=self.tick, **how, **given)
            self.memory[key] = made
        calibrated: Calibration = self.memory[key]
        return calibrated

    def best(self, method: str, values: Values = MappingProxyType({})) -> int:
        """The calibrated draft size of a method with these other parameters."""
        return self.calibration(method, values).fits[self.fit].g

    def calibrated_words(self, method: str, values: Values = MappingProxyType({})) -> str:
        """A method's g* by each reading and the prompts of its calibration, in words."""
        from specviz.measure.calibrate import SUITE

        calibrated = self.calibration(method, values)
        here = any(each is calibrated for each in self.memory.values())
        apart = here and bool(self.practice)  # else on bundled prompts, as no others are left
        sizes = [point.g for point in calibrated.points]
        first, *others = sorted(FITS, key=lambda name: name != self.fit)
        ends = f" ({calibrated.fits[first].g} is at the end of the range)" * (
            calibrated.fits[first].g in (sizes[0], sizes[-1])
        )
        front = " ".join(filter(None, [method, words(values)]))
        return (
            f"{front}: g* = {calibrated.fits[first].g} by {FITS[first]}, "
            + ", ".join(f"{calibrated.fits[name].g} by {FITS[name]}" for name in others)
            + f", of {len(sizes)} sizes from {sizes[0]} to {sizes[-1]}{ends} on "
            + plural(calibrated.how["prompts"], "other prompt" if apart else "prompt")
            + ("" if apart else f" of the bundled suite {SUITE}" if here else " of your own calibration")
            + ("" if apart else ", which may be among those measured here")
        )

    def sized(self, row: Row) -> Settings:
        """A row's parameters, with the calibrated draft size filled in."""
        values = dict(row.values)
        for name, value in values.items():
            if isinstance(value, Best):
                values[name] = max(1, round(self.best(row.method, value.values) * value.times))
        return values


@dataclass
class Measurement:
    """What a source measured for a table."""

    figures: list[Figure] = field(default_factory=list)
    absent: list[tuple[Where, str]] = field(default_factory=list)  # rows without a figure, and why
    environment: Settings = field(default_factory=dict)  # device, processor, threads, versions ...
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)  # folders of runs, below the replay's
    # Recorded texts, below the replay's folder: ``name``, ``of``, ``figure``, ``file``; ``contender`` and
    # ``task`` as in the figures' source.
    traces: list[dict[str, str]] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)  # where the time goes, by contender and task
    source: Provenance = NOWHERE  # provenance of the figures that are added next
    earlier: float = 0.0  # seconds of rows that an interrupted replay had decoded

    @classmethod
    def begin(cls, options: RunOptions) -> Measurement:
        """Start a measurement whose provenance is the model, its environment and the run's settings."""
        place = about(options.model)
        made = cls(environment=place)
        made.on(max_new_tokens=options.max_new_tokens, rounds=options.rounds, **placed(place))
        made.on(date=datetime.now(UTC).date().isoformat())
        made.target(options.model)
        return made

    def date_from(self, first: str) -> None:
        """Date the figures from the day on which the interrupted replay began."""
        for i, each in enumerate(self.figures):
            days = " to ".join(dict.fromkeys((min(first, each.source.date), each.source.date)))
            self.figures[i] = replace(each, source=replace(each.source, date=days))

    def target(self, model: Model) -> None:
        """Set the target of the figures that are added next."""
        self.on(model=model.name, parameters=model.parameters)
        if digest := content(model):
            self.on(weights=digest[:16])

    def on(self, **what: Any) -> None:
        """Change the provenance of the figures that are added next; settings become words."""
        if isinstance(what.get("settings"), Mapping):
            what["settings"] = words(what["settings"])
        self.source = replace(self.source, **what)

    def of_prompts(self, task: str, suite: str, entries: Sequence[Entry]) -> None:
        """Set the prompts of the figures that are added next, and the language that all of them state."""
        languages = {str(entry.get("language") or "") for entry in entries}
        language = languages.pop() if len(languages) == 1 else ""
        self.on(task=task, suite=suite, texts=len(entries), language=language)

    def by(self, method: str, values: Values = MappingProxyType({}), draft: Any = None) -> None:
        """Set the contender of the figures that are added next."""
        name = "" if draft is None else str(getattr(draft, "name", draft))
        weights = content(draft) if hasattr(draft, "name") else None
        self.on(method=method, settings=values, drafter=name, drafter_weights=(weights or "")[:16])

    @contextmanager
    def keeping(self, where: Where) -> Iterator[None]:
        """Note an error within the block as the reason why these rows are empty; keep earlier figures."""
        try:
            yield
        except SpecvizError as error:
            self.absent.append((where, str(error)))

    def control(self, contender: str, mine: np.ndarray, other: np.ndarray, task: str = "") -> None:
        """Note how much a contender's speeds [texts] differ from its speeds under another name."""
        n, speeds = len(mine), resampled(ratio, np.asarray(mine, float), np.asarray(other, float))
        if not math.isfinite(speeds.median):  # no text, or nothing was written
            return
        low, high = (None if end != end else float(end) for end in (speeds.low, speeds.high))
        self.checks.append(Check(CONTROL, contender, task, n, n, float(speeds.median), low, high))

    def cost(
        self, mine: Sequence[Values], plain: Sequence[Values], model: Model,
        draft: Callable[[], Model | None] = lambda: None,
    ) -> None:  # fmt: skip
        """Note where the current contender's time goes, from its and the reference's sums for each text."""
        source = self.source
        made = cost_of(source.contender, source.task, source.by, mine, plain)
        there = {(each.contender, each.task, each.by) for each in self.costs}
        if made is not None and (made.contender, made.task, made.by) not in there:
            elsewhere = modelled(made, source.method, model, draft() if source.drafter else None)
            self.costs.append(replace(made, elsewhere=elsewhere))

    def same_texts(self, task: str, mine: Sequence[Written], reference: Sequence[Written]) -> None:
        """Note how many texts of the current contender equal the reference's."""
        count = sum(a == b for a, b in zip(mine, reference))
        check = Check(SAME, self.source.contender, task, count, len(mine), by=self.source.by)
        self.checks += [check] * (check not in self.checks)  # several rows may show one contender

    def ability(
        self, task: str, texts: Sequence[str], right: Sequence[Text | None], originals: Sequence[str] = (),
        kinds: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Note whether the model can do a task, judging by its texts, the references and the sources."""
        check = ability(task, self.source.model, texts, right, originals, kinds)
        if check is not None:
            self.checks.append(check)
            return
        why = "too few references" if any(map(references_of, right)) else "no references"
        note = UNTESTED.format(task or "these tasks") + f" ({why})"
        self.notes += [note] * (note not in self.notes)

    def record(
        self, options: RunOptions, of: str, ratios: np.ndarray, decode: Callable[[int], Trace]
    ) -> None:
        """Decode the current contender's best, median and worst text again and save their traces.

        `ratios` [texts] are its speedups; `of` names it.
        """
        order = np.argsort(ratios)
        for name, i in (("best", order[-1]), ("median", order[len(order) // 2]), ("worst", order[0])):
            file = options.path / "traces" / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            decode(int(i)).save(file, force=True)
            words = f"{ratios[i]:.2f} × as fast"
            self.keep_trace(name, of, words, file)

    def keep_trace(self, name: str, of: str, figure: str, file: Path) -> None:
        """Note a saved trace of the current contender."""
        self.traces.append({
            "name": name, "of": of, "figure": figure, "file": f"traces/{file.name}",
            "contender": self.source.contender, "task": self.source.task,
        })  # fmt: skip

    def add(
        self,
        where: Where,
        metric: str,
        value: Number | Estimate,
        low: Number = None,
        high: Number = None,
    ) -> None:
        """Add a figure of the current contender; an `Estimate` has its interval. Skips what is not finite."""
        draws, texts = getattr(value, "values", None), 0
        if isinstance(value, Estimate):
            low, high, texts, value = value.low, value.high, value.pairs, value.median
        if value is None or not math.isfinite(float(value)):
            return
        ends = (None if end is None else float(end) for end in (low, high))
        low, high = (None if end is None or not math.isfinite(end) else end for end in ends)
        source = replace(self.source, texts=texts or self.source.texts)
        self.figures.append(Figure(dict(where), metric, float(value), low, high, texts, draws, source))


def placed(place: Values) -> Settings:
    """The environment of a measurement, as fields of a `Provenance`."""
    model = place.get("model") or {}
    return {
        "model": str(model.get("name") or ""), "weights": str(model.get("weights") or ""),
        "parameters": int(model.get("parameters") or 0), "device": str(place.get("device") or ""),
        "processor": str(place.get("processor") or ""), "threads": int(place.get("threads") or 0),
        "dtype": str(place.get("dtype") or ""), "kernels": str(place.get("kernels") or ""),
        "clock": str(place.get("clock") or ""),
    }  # fmt: skip


def ability(
    task: str, model: str, texts: Sequence[str], right: Sequence[Text | None], originals: Sequence[str] = (),
    kinds: Sequence[str] = (),
) -> Check | None:  # fmt: skip
    """Test whether texts fit their own references better than others'; None with too few references.

    The similarity of a text to a reference is the share of the reference's trigrams that the text has, for an
    answer may stand within a long text. The texts are re-paired with the references 2,000 times; p is the
    share of pairings that fit at least as well. Translations are as long as their references, so theirs is
    the F-score, and they must fit at least as well as their sources (`originals`): no copy passes.
    Texts of several `kinds` are re-paired within each kind: otherwise the kind's form alone would fit better.
    Of more than `MOST_TESTED` texts, that many are tested, spread evenly.
    """
    number, whole = len(texts), bool(originals)
    entries = zip(texts, map(references_of, right), kinds or [""] * number, originals or [""] * number)
    pairs = [each for each in entries if each[1]]
    number = len(pairs)
    pairs = [pairs[i * number // MOST_TESTED] for i in range(MOST_TESTED)] if number > MOST_TESTED else pairs
    copies = [max(alike(source, each, whole) for each in some) for _, some, _, source in pairs if whole]
    least = max(UNLIKE, float(np.mean(copies)) if copies else 0.0)
    kept = [kind for _, _, kind, _ in pairs]
    alternatives = math.prod(math.factorial(number) for number in Counter(kept).values())
    if alternatives < math.factorial(FEWEST):
        return None
    likeness = np.array(
        [[max(alike(text, each, whole) for each in some) for _, some, _, _ in pairs] for text, *_ in pairs]
    )
    own = float(np.diag(likeness).mean())
    random = np.random.default_rng(0)
    places = [np.flatnonzero(np.array(kept) == kind) for kind in dict.fromkeys(kept)]

    def repaired() -> float:
        return float(np.concatenate([likeness[at, random.permutation(at)] for at in places]).mean())

    others = np.array([repaired() for _ in range(2000)])
    p = (1 + float((others >= own).sum())) / (1 + len(others))
    able = p <= 0.05 and own >= least
    front = f"{task}: " if task else ""
    sentence = (f"{front}{model}'s texts are {100 * own:.0f} % similar to their own references, "
            f"{100 * float(others.mean()):.0f} % like others (p {p:.2g})")  # fmt: skip
    sentence += f", judging by {len(pairs)} of {number:,} texts" * (number > len(pairs))
    sentence += "" if able else ": it cannot do this task, so its results are not compared"
    return Check(ABILITY, model, task, int(able), len(pairs), p, text=sentence)


UNLIKE = 0.1  # texts that are less similar to their references do not solve the task
MOST_TESTED = 200  # the time and the memory grow with the square of this number
FEWEST = 5  # with this many texts, the right pairing arises by chance in fewer than 1 of 20 cases


def references_of(value: Text | None) -> list[str]:
    """The correct answers to a prompt as a list, without empty ones."""
    some = [value] if isinstance(value, str) else list(value or ())
    return [each for each in some if isinstance(each, str) and each.strip()]


def alike(text: str, reference: str, whole: bool) -> float:
    """Share of a reference's trigrams that a text has; with `whole` the F-score, which counts the rest, too.

    A reference of one or two characters has none: it must be a word of the text.
    """
    mine, theirs = trigrams(text), trigrams(reference)
    if not theirs:
        word = re.escape(reference.strip().lower())
        return float(re.search(rf"(?<![a-z0-9]){word}(?![a-z0-9])", text.lower()) is not None)
    both = (mine & theirs).total()
    return 2 * both / (mine.total() + theirs.total()) if whole else both / theirs.total()


@lru_cache(maxsize=4096)
def trigrams(text: str) -> Counter[str]:
    """How often each trigram is in a text, ignoring case and spaces."""
    letters = "".join(text.lower().split())
    return Counter(letters[i : i + 3] for i in range(len(letters) - 2))


def again(method: type[Method]) -> type[Method]:
    """The method under another name: the control, whose speed should be the same."""
    return type(method.__name__, (method,), {"name": f"{method.name}_{AGAIN}"})


def exact(value: float = 1.0) -> Estimate:
    """A value that needs no measurement, such as a reference's speedup over itself."""
    return Estimate(value, value, value, 0)


def totals(made: Measurement, recipe: Recipe) -> None:
    """Add the means over the parts of a column, like the paper's own total.

    The parts have different texts, so each part's draws are shuffled in an order of its own, the same for all
    contenders. The variance of draws of n texts is too small by the factor (n - 1) / n, and each part has its
    own n, so its draws are widened here. If a part has too few texts for draws, the parts themselves are
    resampled, if there are enough: the interval then also covers the differences between parts and is wider.
    """
    if recipe.total is None:
        return
    column, name = recipe.total
    parts = {part: np.random.default_rng(i) for i, part in enumerate(recipe.parts.get(column, ()))}
    orders = {part: random.permutation(RESAMPLES) for part, random in parts.items()}
    n = len(parts)
    shares = np.random.default_rng(n).multinomial(n, np.full(n, 1 / n), RESAMPLES) / n if n >= LEAST else None
    over_parts = False
    groups: dict[Any, dict[str, Figure]] = {}
    for each in made.figures:
        if column in each.where:
            rest = tuple(sorted((k, v) for k, v in each.where.items() if k != column))
            groups.setdefault((rest, each.metric), {})[each.where[column]] = each
    for (rest, metric), figures in groups.items():
        if len(figures) < len(orders):
            continue  # a mean of some parts is not the paper's
        first = next(iter(figures.values())).source
        texts = sum(each.texts for each in figures.values())
        languages = {each.source.language for each in figures.values()}
        language = first.language if len(languages) == 1 else ""
        made.source = replace(first, task=name, suite="", language=language, texts=texts)
        value = float(np.mean([each.value for each in figures.values()]))
        mean = exact(value)
        if any(each.low is None or each.high is None or each.low < each.high for each in figures.values()):
            draws = [
                each.value + (each.draws[orders[p]] - each.value) * math.sqrt(each.texts / (each.texts - 1))
                for p, each in figures.items() if each.draws is not None
            ]  # fmt: skip
            drawn, units = None, texts
            if len(draws) == len(figures):  # the t has a degree of freedom less for each part
                drawn, units = np.mean(draws, 0), texts - len(figures) + 1
            elif shares is not None:
                drawn, units, over_parts = shares @ [figures[part].value for part in parts], n, True
            mean = BootstrapEstimate.on(value, drawn, units)
        made.add(dict(rest) | {column: name}, metric, mean)
        made.figures[-1] = replace(made.figures[-1], derived=True, source=made.source)
    if over_parts:
        made.notes.append(
            f"the interval of {name} is over its {n} parts: at least one of them has fewer than {LEAST} texts"
        )


def about(model: Model) -> Settings:
    """The environment of a measurement that left no run's folder."""
    from specviz.loop.machine import identity
    from specviz.measure.timing import clock_of, setting

    place = setting(model, [])
    place["kernels"] = getattr(model, "kernels", None)
    return place | {"model": identity(model), "clock": clock_of(model)[1]}


def middle(value: Estimate | float) -> float:
    """The value of a figure, with or without an interval."""
    return float(value.median if isinstance(value, Estimate) else value)
