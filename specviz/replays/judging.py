"""Judge a paper's claims by the measured differences and their significance.

A difference is clear if two things hold: its p-value, corrected for all comparisons of the table (Holm), is
at most 0.05; and, for times, it is larger than the control's. The control is one contender that decoded the
same texts twice under two names in the same run. Both sides of a comparison are resampled on the same texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from specviz.errors import plural
from specviz.measure.report import Row, Values
from specviz.replays.cells import (
    ABILITY,
    ALL_TASKS,
    CONTROL,
    FAILS,
    FASTER,
    HOLDS,
    IDLE,
    LOSSLESS,
    OPEN,
    ORDER,
    PAYS,
    SAME,
    SAME_NUMBER,
    SIZE,
    Cell,
    Check,
    Comparison,
    Figure,
    Verdict,
)

LEVEL = 0.05  # largest corrected p of a clear difference
TIMES = ("speedup", "throughput", "latency", "draft_latency", "forward_time", "expected_throughput")
SPEEDS = ("speedup", "throughput")  # with one reference, both give two contenders the same ratio
NO_CONTROL = math.inf  # without a control, no difference of times is large enough


# ---------------------------------------------------------------- how sure


def chance(value: float, draws: np.ndarray | None, texts: int) -> float:
    """Two-sided p-value of the hypothesis that a value is zero, from its t over the texts.

    The t distribution is Wallace's normal approximation (1959). If all draws agree, p is 2 ** (1 - texts):
    the probability that all texts go one way by chance. It is 1 without draws, as for fewer than six texts.
    """
    if draws is None or texts < 2 or not math.isfinite(value):
        return 1.0
    if abs(value) < SAME_NUMBER:
        return 1.0
    spread = float(np.nanstd(draws)) * math.sqrt(texts / (texts - 1))
    if not spread > abs(value) * 1e-9:
        return 2.0 ** (1 - texts)
    free, t = texts - 1, value / spread
    z = (8 * free + 1) / (8 * free + 3) * math.sqrt(free * math.log1p(t * t / free))
    return math.erfc(z / math.sqrt(2))


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p-values for their number: the smallest times n, the next times n - 1, ... (Holm 1979)."""
    out, worst = [1.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        worst = max(worst, min(1.0, (len(ps) - rank) * ps[i]))
        out[i] = worst
    return out


@dataclass
class Difference:
    """A measured difference: `beyond` says whether it exceeds the control's, `corrected` is Holm's p."""

    value: float
    low: float | None
    high: float | None
    p: float
    beyond: bool
    corrected: float = 1.0

    @property
    def clear(self) -> bool:
        return self.beyond and self.corrected <= LEVEL

    def turned(self, sign: int) -> str:
        """The difference in words, seen from the first of the two (1) or from the second (-1)."""
        ends = ""
        if self.low is not None and self.high is not None:
            low, high = sorted((sign * self.low, sign * self.high))
            ends = f" [{low:+.3g}, {high:+.3g}]"
        return f"{sign * self.value:+.3g}{ends}, p {self.corrected:.2g}"


def spread_of(figure: Figure) -> np.ndarray | None:
    """Values of a figure on resampled texts, or approximated from its interval if it kept none."""
    return figure.draws if figure.draws is not None else normal(figure.value, figure.low, figure.high)


def normal(value: float, low: float | None, high: float | None) -> np.ndarray | None:
    """Values that are normally distributed with a 95 % interval; None without an interval."""
    if low is None or high is None:
        return None
    return value + np.random.default_rng(0).permutation(NORMAL) * (high - low) / (2 * 1.96)


# Quantiles of the normal distribution (approximated by a logistic one to within 0.01).
_SHARES = (np.arange(2000) + 0.5) / 2000
NORMAL = np.log(_SHARES / (1 - _SHARES)) / 1.702
NORMAL = NORMAL / NORMAL.std()


Ends = tuple[float | None, float | None]  # of an interval


def difference(a: Figure, b: Figure | float, noise: float, ends: Ends | None = None) -> Difference:
    """One figure minus another, or minus a number; `noise` is the control's.

    `ends` is the interval of a difference that was measured on shared texts, whose draws were not saved.
    """
    other = b if isinstance(b, float) else b.value
    value, draws, texts = a.value - other, spread_of(a), a.texts
    if not isinstance(b, float):
        theirs, texts = spread_of(b), min(a.texts, b.texts)
        if ends is not None:
            draws = normal(value, *ends)
        elif draws is not None and theirs is not None:
            # Figures of a column with equally many texts share these; others are resampled independently.
            aligned = a.texts == b.texts and a.draws is not None and b.draws is not None
            theirs = theirs if aligned else np.random.default_rng(1).permutation(theirs)
            draws = draws - theirs
        else:
            draws = None
    elif draws is not None:
        draws = draws - other
    low, high = (None, None) if draws is None else np.nanquantile(draws, (0.025, 0.975)).tolist()
    low, high = ends or (low, high)
    ratio = a.value / other if other else math.inf
    timed = a.metric in TIMES
    beyond = not timed or (ratio > 0 and abs(math.log(ratio)) > noise)
    # The best of several settings is partly best by chance: Bonferroni's correction.
    tried = max(a.source.tried, 1 if isinstance(b, float) else b.source.tried)
    return Difference(value, low, high, min(1.0, tried * chance(value, draws, texts)), beyond)


def noise_of(checks: Iterable[Check]) -> float:
    """How far apart the controls put one contender's two speeds, as the logarithm of their ratio.

    Controls with too few texts for an interval are ignored; if no other is left, the noise is infinite.
    """
    ends = [
        (check.low, check.high)
        for check in checks
        if check.kind == CONTROL and check.low is not None and check.high is not None
    ]
    logs = [abs(math.log(end)) if end > 0 else NO_CONTROL for both in ends for end in both]
    return max(logs, default=NO_CONTROL)


# ---------------------------------------------------------------- a table


Pair = frozenset[int]  # indices of two figures


@dataclass
class Judge:
    """Judges a table, from its cells, their figures and every difference between these.

    `total` is a column, and its value that is the mean of the others. `before` holds comparisons that were
    made when the figures had draws: a pair then keeps its interval.
    """

    cells: list[Cell]
    figures: list[Figure]
    compare: tuple[str, ...]
    checks: list[Check]
    claims: Sequence[Values] = ()
    total: Sequence[str] = ()
    before: Sequence[Comparison] = ()

    def __post_init__(self) -> None:
        self.noise = noise_of(self.checks)
        ability = [check for check in self.checks if check.kind == ABILITY]
        self.tested = {check.task for check in ability}
        self.unable = {check.task for check in ability if not check.count}
        self.pairs: dict[Pair, Difference] = {}
        self.firsts: dict[Pair, int] = {}  # the figure from which the other one was subtracted
        self.ones: dict[int, Difference] = {}  # speedups minus 1
        kinds: dict[tuple, int] = {}  # one measurement may appear in several rows
        self.original = [kinds.setdefault((f.source, f.metric), i) for i, f in enumerate(self.figures)]
        self.ends: dict[tuple[int, int], Ends] = {}
        for old in self.before:
            a, b = (self.measurement(self.cells[i]) for i in (old.first, old.second))
            low, high = (None if end is None else -end for end in (old.high, old.low))
            self.ends |= {(a, b): (old.low, old.high), (b, a): (low, high)}
        self.columns = self._columns()
        for column in self.columns:
            for i, j in combinations(column, 2):
                self._compare(self.cells[i], self.cells[j])
        self.listed = self._listed()
        family = set(self.listed)  # what the p-values are corrected for: no copies
        for claim in self.claims:
            if "over" in claim:
                for one, other, _ in self.steps(claim, self.selected(claim)):
                    self._compare(one, other)
                    family.add(frozenset((self.measurement(one), self.measurement(other))))
        for number in dict.fromkeys(self.original):
            figure = self.figures[number]
            if figure.metric == "speedup" and figure.texts and self.able(number):
                self.ones[number] = difference(figure, 1.0, self.noise)
        every = [*(each for pair, each in self.pairs.items() if pair in family), *self.ones.values()]
        for each, p in zip(every, holm([each.p for each in every])):
            each.corrected = p

    def able(self, number: int) -> bool:
        """Whether the model can do a figure's task, unless a test denies it; for a mean, all tasks."""
        figure = self.figures[number]
        if self.tested == {ALL_TASKS}:
            return not self.unable
        if figure.derived and figure.source.task not in self.tested:
            return not self.unable
        return figure.source.task not in self.unable

    def _columns(self) -> list[list[int]]:
        """Indices of the cells of each column that were both printed and measured."""
        groups: dict[tuple, list[int]] = {}
        for i, cell in enumerate(self.cells):
            if cell.figure is not None and cell.value is not None and self.able(cell.figure):
                shared = [*cell.keys, "metric", "device", "model"]
                key = tuple(cell.column(name) for name in shared if name not in self.compare)
                groups.setdefault(key, []).append(i)
        return list(groups.values())

    def distinct(self, a: int, b: int) -> bool:
        """Whether two figures are separate measurements and both were measured on texts."""
        one, two = self.figures[a], self.figures[b]
        return a != b and one.source != two.source and bool(one.texts and two.texts)

    def measurement(self, cell: Cell) -> int:
        """The number of the figure that first showed a cell's measurement."""
        assert cell.figure is not None
        return self.original[cell.figure]

    def _compare(self, one: Cell, other: Cell) -> None:
        a, b = self.measurement(one), self.measurement(other)
        pair = frozenset((a, b))
        if pair in self.pairs or not self.distinct(a, b):
            return
        ends = self.ends.get((a, b))
        self.pairs[pair] = difference(self.figures[a], self.figures[b], self.noise, ends)
        self.firsts[pair] = a

    def _listed(self) -> dict[Pair, tuple[int, int, float, bool]]:
        """The pairs of figures to show: both cells, the printed difference, whether the paper's rows differ.

        Each pair of a column is shown once, whatever models and devices are printed for it. Left out are one
        contender under two names, figures not measured on texts (node counts, bounds, references), gains
        (differences of figures that are compared themselves), and the second of speedup and throughput of
        the same two contenders.
        """
        made: dict[Pair, tuple[int, int, float, bool]] = {}
        speeds: set[tuple] = set()
        for column in self.columns:
            for i, j in combinations(column, 2):
                one, two = self.cells[i], self.cells[j]
                mine, theirs = self.measurement(one), self.measurement(two)
                pair = frozenset((mine, theirs))
                if pair not in self.pairs or one.metric.endswith("_gain"):
                    continue
                assert one.value is not None and two.value is not None
                first, second = (i, j) if self.firsts[pair] == mine else (j, i)
                printed = one.value - two.value if first == i else two.value - one.value
                if pair in made:
                    first, second, before, _ = made[pair]
                    if printed * before < 0 or (printed == 0) != (before == 0):
                        made[pair] = first, second, before, True
                    continue
                a, b = self.figures[mine], self.figures[theirs]
                if one.metric in SPEEDS and min(a.value, b.value) > 0:
                    copy = frozenset((a.source, b.source)), round(abs(math.log(a.value / b.value)), 6)
                    if copy in speeds:
                        continue
                    speeds.add(copy)
                made[pair] = first, second, printed, False
        return made

    def comparisons(self) -> list[Comparison]:
        """The comparisons to show, as `_listed` chooses them."""
        made = []
        for pair, (first, second, printed, split) in self.listed.items():
            seen, derived = self.pairs[pair], any(self.figures[number].derived for number in pair)
            measured = seen.value, seen.low, seen.high, seen.corrected, bool(seen.clear)
            made.append(Comparison(first, second, printed, *measured, split, derived))
        return made

    # ------------------------------------------------------------ claims

    def verdicts(self) -> list[Verdict]:
        """The verdicts on the paper's claims."""
        return [self.verdict(claim) for claim in self.claims]

    def selected(self, claim: Values) -> list[Cell]:
        """The cells that a claim is about, if they were measured with a model that can do the task."""
        those = (cell for cell in self.cells if cell.selected(claim["of"]))
        return [cell for cell in those if cell.figure is not None and self.able(cell.figure)]

    def verdict(self, claim: Values) -> Verdict:
        """The verdict on a claim; its question selects the test."""
        questions: dict[str, Callable[[Values, list[Cell]], tuple[str, str, str]]] = {
            ORDER: self.ordered, PAYS: self.ordered if "over" in claim else self.paying,
            FASTER: self.paying, SIZE: self.sized, LOSSLESS: self.same,
        }  # fmt: skip
        those = [cell for cell in self.cells if cell.selected(claim["of"])]
        able = self.selected(claim)
        if not able:
            why = next((cell.why for cell in those if cell.why), "none of it was measured")
            if any(cell.figure is not None for cell in those):
                why = self.inability()
            outcome = OPEN, "", why
        else:
            verdict, numbers, why = questions[claim["question"]](claim, able)
            lacking = self.lacking(claim, those, self.entered(claim, able))
            if verdict == HOLDS and claim.get("every") in lacking:
                verdict = OPEN
            scope = f"judged for {', '.join(lacking.values())}" if lacking else ""
            outcome = verdict, numbers, "; ".join(filter(None, [why, scope, self.idle(able)]))
        return Verdict(claim["text"], claim["question"], *outcome)

    def entered(self, claim: Values, able: list[Cell]) -> list[Cell]:
        """The cells that a claim's verdict rests on: those that have something to be compared with."""
        if claim["question"] in (SIZE, LOSSLESS):
            return able
        numbers = set(self.ones)
        if "over" in claim:
            pairs = (frozenset(map(self.measurement, each[:2])) for each in self.steps(claim, able))
            numbers = {number for pair in pairs if pair in self.pairs for number in pair}
        return [cell for cell in able if self.measurement(cell) in numbers]

    def lacking(self, claim: Values, those: list[Cell], judged: list[Cell]) -> dict[str, str]:
        """The columns in which only some of a claim's values are judged, each with how many, in words."""
        out, over, members = {}, claim.get("over"), claim.get("members")
        for name in those[0].keys:
            every = {cell.keys[name] for cell in those if (name, cell.keys[name]) != tuple(self.total)}
            if name == over and members is not None:
                every = {value for value in every if str(value) in members}
            # A baseline whose figure is exact, such as a speedup of one, needs no comparison.
            exact = [
                cell for cell in those
                if name == over and cell.figure is not None and not self.figures[cell.figure].texts
            ]  # fmt: skip
            here = every & {cell.keys[name] for cell in (*judged, *(exact if judged else ()))}
            if 0 < len(here) < len(every):
                out[name] = f"{len(here)} of {plural(len(every), name.replace('_', ' ').removesuffix('s'))}"
        return out

    def inability(self) -> str:
        """Why the figures of a model that cannot do the task are not judged."""
        return "; ".join(c.text for c in self.checks if c.kind == ABILITY and not c.count)

    def steps(self, claim: Values, cells: list[Cell]) -> list[tuple[Cell, Cell, int]]:
        """The comparisons of a claim of order: two cells, and 1 if the first should be larger, else -1."""
        over, looked = claim["over"], list[tuple[Cell, Cell, int]]()
        sign = -1 if claim.get("by") == "min" or claim["check"] == "falling" else 1
        for group in groups_of(claim, cells):
            if claim["check"] == "best":
                leader = [cell for cell in group if str(cell.column(over)) == str(claim["is"])]
                looked += [(leader[0], other, sign) for other in group if leader and other is not leader[0]]
            else:
                looked += [(after, before, sign) for before, after in pairwise(group)]
                looked += [(group[-1], group[0], sign)] if len(group) > 2 else []
        return looked

    def idle(self, cells: list[Cell]) -> str:
        """A remark if the large model never ran in at least half of a claim's texts; else empty."""
        names = {(cell.source.contender, cell.source.task) for cell in cells if cell.source is not None}
        those = [c for c in self.checks if c.kind == IDLE and (c.contender, c.task) in names]
        count, of = sum(check.count for check in those), sum(check.of for check in those)
        return (
            f"in {count:,} of {plural(of, 'text')} the large model never ran" if 2 * count >= of > 0 else ""
        )

    def ordered(self, claim: Values, cells: list[Cell]) -> tuple[str, str, str]:
        """Whether one contender is ahead of the others, or figures rise or fall along a column."""
        looked = self.steps(claim, cells)
        seen: dict[Pair, tuple[Cell, Cell, int]] = {}
        one = alike = 0  # not comparable; of these, the same contender
        for ahead, other, sign in looked:
            pair = frozenset((self.measurement(ahead), self.measurement(other)))
            if pair in self.pairs:
                seen.setdefault(pair, (ahead, other, sign))
            else:
                one += 1
                alike += ahead.source == other.source
        outcomes = []
        for pair, (ahead, other, sign) in seen.items():
            gap = self.pairs[pair]
            first = 1 if self.firsts[pair] == self.measurement(ahead) else -1
            name = f"{self.name(ahead, claim['over'])} against {self.name(other, claim['over'])}"
            outcomes.append((sign * first * gap.value, gap, name, ahead, other, first))
        if not outcomes:
            why = "the contenders are identical here, or were not measured text by text"
            return OPEN, "", why if one else self.unmatched(claim, cells)
        wrong = [each for each in outcomes if each[0] < 0 and each[1].clear]
        right = [each for each in outcomes if each[0] > 0 and each[1].clear]
        # In a rising series, neighbours may be level, but each group's last must clearly exceed its first.
        sure = {frozenset(map(self.measurement, each[3:5])) for each in right}
        ends = [frozenset(map(self.measurement, (g[-1], g[0]))) for g in groups_of(claim, cells)]
        steady = claim["check"] != "best" and len(outcomes) > 1 and sure.issuperset(ends)
        of = wrong or outcomes
        counts = f"{len(right)} of {len(outcomes)} clearly so, {len(wrong)} clearly not"
        if claim["check"] == "best" and alike:
            counts += f"; in {plural(alike, 'more comparison')} both sides are the same contender here"
        if steady and not wrong and len(right) < len(outcomes):
            of = [each for each in outcomes if frozenset(map(self.measurement, each[3:5])) in ends]
            counts += "; these are the ends, and neighbours may be level"
        shown = min(of, key=lambda each: each[0])
        numbers = f"{shown[2]}: {number(shown[3])} and {number(shown[4])} ({shown[1].turned(shown[5])})"
        if wrong:
            return FAILS, numbers, counts
        if steady or (len(right) == len(outcomes) and not (claim["check"] == "best" and alike)):
            return HOLDS, numbers, counts
        if len(right) == len(outcomes):
            return OPEN, numbers, counts
        return OPEN, numbers, f"{counts}; {self.doubt(each[1] for each in outcomes)}"

    def unmatched(self, claim: Values, cells: list[Cell]) -> str:
        """Why nothing can be compared: the reasons of the missing leader, or else those of its rivals."""

        def leads(cell: Cell) -> bool:
            return str(cell.column(claim["over"])) == str(claim.get("is"))

        there = any(map(leads, cells))
        those = (cell for cell in self.cells if cell.figure is None and cell.selected(claim["of"]))
        whys = dict.fromkeys(cell.why for cell in those if leads(cell) != there)
        return "; ".join(filter(None, whys)) or "their rivals were not measured"

    def paying(self, claim: Values, cells: list[Cell]) -> tuple[str, str, str]:
        """Whether speedups are above 1."""
        seen = self.once(cells)
        outcomes = [(self.ones[i], cell) for i, cell in seen.items() if i in self.ones]
        if not outcomes:
            return OPEN, "", "no speedup was measured text by text"
        wrong = [each for each in outcomes if each[0].value < 0 and each[0].clear]
        right = [each for each in outcomes if each[0].value > 0 and each[0].clear]
        worst = min(wrong or outcomes, key=lambda each: each[0].value)
        span = sorted(cell.measured for _, cell in outcomes if cell.measured is not None)
        numbers = f"{self.name(worst[1])}: {number(worst[1])} times as fast, p {worst[0].corrected:.2g}"
        if len(span) > 1:
            numbers += f"; all: {span[0]:.2f} to {span[-1]:.2f}"
        numbers += self.break_even(worst[1])
        counts = f"{len(right)} of {len(outcomes)} clearly above 1, {len(wrong)} clearly below"
        if wrong:
            return FAILS, numbers, counts
        if len(right) == len(outcomes):
            return HOLDS, numbers, counts
        return OPEN, numbers, f"{counts}; {self.doubt(each for each, _ in outcomes)}"

    def break_even(self, cell: Cell) -> str:
        """Explain a speedup by a cycle's tokens and its cost in passes of one token each."""
        for other in self.cells:
            same = (other.keys, other.device, other.model) == (cell.keys, cell.device, cell.model)
            if same and other.metric == "tau" and other.measured and cell.measured:
                cost = other.measured / cell.measured
                return (
                    f"; a cycle writes {other.measured:.2f} tokens and costs as much as {cost:.2f} plain "
                    f"tokens: below τ = {cost:.2f} it does not pay"
                )
        return ""

    def sized(self, claim: Values, cells: list[Cell]) -> tuple[str, str, str]:
        """Whether each figure is as large as printed, up to the rounding of the printed value.

        A figure with several printed values may lie anywhere between them.
        """
        seen, given = self.once(cells), [cell for cell in cells if cell.value is not None]
        printed = [cell.value for cell in given if cell.value is not None]
        meets, gaps, shown = 0, [], []
        for first, cell in seen.items():
            shown.append(f"{self.name(cell)}: {number(cell)}")
            those = [c for c in cells if c.figure is not None and self.original[c.figure] == first]
            own = [c for c in those if c.value is not None]
            low, high = printed_range(own or given)  # a cell without a printed value is judged by the others'
            assert cell.measured is not None
            if cell.low is not None and cell.high is not None and cell.low <= high and low <= cell.high:
                meets += 1
            else:
                nearest = min(max(cell.measured, low), high)
                gaps.append(difference(self.figures[first], nearest, self.noise))
        # Figures within the range count, too: all of them had the chance to miss it.
        for gap, p in zip(gaps, holm([*(gap.p for gap in gaps), *[1.0] * meets])):
            gap.corrected = p
        outside = sum(gap.clear for gap in gaps)
        span = f"{min(printed):g}" if len(set(printed)) == 1 else f"{min(printed):g} to {max(printed):g}"
        numbers = f"printed {span}; {'; '.join(shown[:3])}"
        if outside:
            verb = "is" if outside == 1 else "are"
            return FAILS, numbers, f"{outside} of {len(seen)} {verb} clearly not what was printed"
        if meets == len(seen):
            return HOLDS, numbers, "the intervals include the printed values"
        return OPEN, numbers, self.doubt(gaps)

    def once(self, cells: list[Cell]) -> dict[int, Cell]:
        """The first cell that shows each measurement, by the measurement's number."""
        seen: dict[int, Cell] = {}
        for cell in cells:
            if cell.figure is not None:
                seen.setdefault(self.original[cell.figure], cell)
        return seen

    def same(self, claim: Values, cells: list[Cell]) -> tuple[str, str, str]:
        """Whether the texts equal the reference's."""
        names = {(each.contender, by) for cell in cells if (each := cell.source) for by in ("", each.by)}
        # Older replays have a copy for each row that shows a contender.
        checks = dict.fromkeys(each for each in self.checks if each.kind == SAME)
        those = [each for each in checks if (each.contender, each.by) in names]
        count, of = sum(check.count for check in those), sum(check.of for check in those)
        if not of:
            return OPEN, "", "no texts were compared (sampling writes different ones each time)"
        numbers = f"{count:,} of {plural(of, 'text')} are the reference's"
        if count < of:
            return FAILS, numbers, "specviz audit shows where they diverge and whether it is a tie"
        return HOLDS, numbers, f"compared {those[0].text or 'token for token'}"

    def name(self, cell: Cell, *over: str) -> str:
        """A cell in a few words: its contender, the columns `over`, and its task."""
        names = dict.fromkeys((*self.compare, *over))
        parts = [str(cell.column(name)) for name in names]
        parts += [str(cell.keys[k]) for k in ("task", "language", "dataset") if k in cell.keys]
        pair = cell.source.task if cell.source is not None and "→" in cell.source.task else ""
        if "language" in cell.keys and pair not in ("", cell.keys["language"]):
            parts[-1] += f" (here {pair})"
        return ", ".join(dict.fromkeys(part for part in parts if part not in ("", "-")))

    def doubt(self, differences: Iterable[Difference]) -> str:
        """Why differences are not clear."""
        unsure = [each for each in differences if not each.clear]
        if all(each.low is None for each in unsure):
            return "too few texts for an interval"
        if self.noise == NO_CONTROL and any(not each.beyond for each in unsure):
            return "times without a control, or with one of too few texts"
        if any(not each.beyond for each in unsure):
            return f"times within {math.expm1(self.noise):.1%}, the control's"
        return "the difference is too small for so few texts"


def number(cell: Cell) -> str:
    """A measured figure with its interval."""
    ends = "" if cell.low is None or cell.high is None else f" [{cell.low:.3g}, {cell.high:.3g}]"
    return f"{cell.measured:.3g}{ends}"


def printed_range(cells: Iterable[Cell]) -> tuple[float, float]:
    """Range of printed values, widened by half a unit of each one's last digit; trailing zeros count."""
    ends = []
    for cell in cells:
        if cell.value is not None:
            half = 0.5 * 10.0 ** -len((cell.printed or f"{cell.value:.10g}").partition(".")[2])
            ends += [cell.value - half, cell.value + half]
    return min(ends), max(ends)


def groups_of(claim: Values, cells: Sequence[Cell]) -> list[list[Cell]]:
    """The groups of cells within which a claim of order compares."""
    over = claim["over"]
    return grouped(cells, (over, *claim.get("ignore", ())), over, claim.get("members"))


def grouped(
    cells: Sequence[Cell], free: Sequence[str], over: str, members: Sequence[str] | None
) -> list[list[Cell]]:
    """Groups of cells that differ only in the columns `free`; `members` restricts the values of `over`."""
    groups: dict[tuple, list[Cell]] = {}
    for cell in cells:
        if members is None or str(cell.column(over)) in members:
            rest = [*cell.keys, "metric", "device", "model"]
            key = tuple(cell.column(name) for name in rest if name not in free)
            groups.setdefault(key, []).append(cell)
    return [group for group in groups.values() if len(group) > 1]


# ---------------------------------------------------------------- remarks and setup


def remarks(checks: Sequence[Check]) -> list[str]:
    """The checks in sentences, for the notes of a replay."""
    lines = []
    for each in checks:
        if each.kind == CONTROL:
            ends = "" if each.low is None else f" [{each.low:.3f}, {each.high:.3f}]"
            name = ", ".join(filter(None, [each.contender, each.task]))
            lines.append(f"control: {name} run twice under two names, speed ratio "
                         f"{each.value:.3f}{ends} over {plural(each.of, 'text')}")  # fmt: skip
        elif each.kind == ABILITY:
            lines.append(each.text)
        elif each.kind == IDLE and each.count:
            lines.append(f"{each.contender}, {each.task}: in {each.count:,} of {plural(each.of, 'text')} the "
                f"large model never ran: the small model wrote them alone")  # fmt: skip
    same = [each for each in dict.fromkeys(checks) if each.kind == SAME]
    whole = [each for each in same if each.count == each.of]
    lines += [
        f"{each.contender}, {each.task}: {each.count:,} of {plural(each.of, 'text')} are the reference's"
        for each in same if each.count < each.of
    ]  # fmt: skip
    if whole:
        n, who = sum(each.of for each in whole), list(dict.fromkeys(each.contender for each in whole))
        name = who[0] if len(who) == 1 else plural(len(who), "contender")
        lines.append(f"{plural(n, 'text')} of {name}: {whole[0].text or 'token for token'} the reference's")
    return lines


def setup(cells: Sequence[Cell], theirs: Mapping[str, str], defined: Sequence[Sequence[str]]) -> list[Row]:
    """How the setup differs from the paper's; our side is taken from the provenance of the cells."""
    sources = list(dict.fromkeys(cell.source for cell in cells if cell.source is not None))

    def joined(values: Iterable[str]) -> str:
        some = list(dict.fromkeys(filter(None, values)))
        return "; ".join(some[:8]) + (f"; and {len(some) - 8} more" if len(some) > 8 else "")

    def model(name: str, weights: str, size: int) -> str:
        if not name:
            return ""
        about = [f"{size / 1e6:.1f} M parameters"] * bool(size) + [f"weights {weights}"] * bool(weights)
        return f"{name} ({', '.join(about)})" if about else name

    def printed(column: str) -> str:
        return joined(str(cell.column(column)) for cell in cells) or "does not say"

    data = (
        f"{s.task + ': ' if s.task else ''}{s.suite}, {plural(s.texts, 'text')}"
        for s in sources if s.suite and s.texts
    )  # fmt: skip
    lengths = (f"at most {s.max_new_tokens} tokens" for s in sources if s.max_new_tokens)
    clocks = (f"{s.clock}, {plural(s.rounds, 'round')}" for s in sources if s.clock)
    rows = [
        ("model", printed("model"), joined(model(s.model, s.weights, s.parameters) for s in sources)),
        ("drafter", "", joined(model(s.drafter, s.drafter_weights, 0) for s in sources)),
        ("device", printed("device"), joined(s.place for s in sources)),
        ("data", "", joined(data)), ("length", "", joined(lengths)), ("clock", "", joined(clocks)),
        ("methods", "", joined(" ".join(filter(None, [s.method, s.settings])) for s in sources)),
    ]  # fmt: skip
    out = [
        {"what": what, "paper": theirs.get(what) or paper or "does not say", "here": here}
        for what, paper, here in rows
        if here or theirs.get(what)
    ]
    if "precision" in theirs:
        formats = joined(s.dtype for s in sources)
        out.insert(-1, {"what": "precision", "paper": theirs["precision"], "here": formats})
    return out + [{"what": what, "paper": paper, "here": ours} for what, paper, ours in defined]
