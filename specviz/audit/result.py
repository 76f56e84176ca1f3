"""The results of an audit: differences, rows, and the rule by which a method holds."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from specviz.errors import plural

from .reference import Bound

# A chi-square test fails below this p. By chance, a right method does so up to 8 times as often, since the
# distribution only approximates counts of as few as 5 expected draws (simulated with 300 draws).
CHANCE = 1e-4

SHARE = 0.01  # share of the prompts that may differ by ties and noise
VERDICTS = ("equal", "tie", "noise", "reference noise", "bug")  # worst last


@dataclass
class Difference:
    """A place where something differs from the target alone.

    Parameters
    ----------
    prompt, position : int
        Index of the prompt; place in the output (0 is the first generated token), -1 if there is none.
    verdict : str
        tie; noise (of kernels: float64 does not agree with the method, whose row is off within the bound);
        reference noise (float64 agrees with the method, and the other row is off within the bound); or bug.
    reason : str
        One sentence.
    expected, actual : int or None
        The two tokens; `expected_text` and `actual_text` are their texts.
    gap, gap_alone, gap_double : float or None
        Logit of `expected` minus that of `actual`: in the method's own pass, in a pass of width 1 over the
        committed prefix, in float64.
    distance : float or None
        Largest difference between the row that the method read there and the float64 row.
    update : int or None
        In a stream, the update; `prompt` is then the stream's index.
    cells : (int, int) or None
        In a canvas, the cells of `expected` and `actual`; `position` then counts steps of unmasking, and the
        gaps are differences of log-odds.
    """

    prompt: int
    position: int
    verdict: str
    reason: str
    expected: int | None = None
    actual: int | None = None
    expected_text: str = ""
    actual_text: str = ""
    gap: float | None = None
    gap_alone: float | None = None
    gap_double: float | None = None
    distance: float | None = None
    update: int | None = None
    cells: tuple[int, int] | None = None

    def __str__(self) -> str:
        stream = f"stream {self.prompt}, update {self.update}"
        place = f"prompt {self.prompt}" if self.update is None else stream
        unit = "token" if self.cells is None else "step"
        place += f", {unit} {self.position}" if self.position >= 0 else ""
        return f"{place}: {self.verdict}: {self.reason}"


class Judged(ABC):
    """A result that holds or does not hold."""

    @property
    @abstractmethod
    def holds(self) -> bool: ...

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "does not hold"


@dataclass
class Row(Judged):
    """The audit's result for one method with one draft.

    Parameters
    ----------
    method, draft, sampling : str
        What was audited; `sampling` is ``greedy`` or the settings.
    prompts, tokens : int
    equal, tie, noise, reference_noise, bug : int
        Prompts by their worst verdict.
    bound : float
        How far rounding may move a logit (for a law: a probability).
    differences : list of Difference
    streams : bool
        Whether its prompts are the updates of streams.
    spared : int
        Number of prompts that may differ by ties and noise, however few there are: one in batches, where
        passes have other shapes than in single runs, so that no method is more than exact up to ties. On an
        invariant model in 16 bits: all autoregressive texts, which the stock module rounds differently, and
        all texts of methods that take ties (``cm_asd``, ``specdec``), as scores of 16 bits often tie. The
        texts of other methods must equal the autoregressive ones.
    """

    method: str
    draft: str
    sampling: str
    bound: float
    prompts: int = 0
    tokens: int = 0
    equal: int = 0
    tie: int = 0
    noise: int = 0
    reference_noise: int = 0
    bug: int = 0
    differences: list[Difference] = field(default_factory=list)
    streams: bool = False
    spared: int = 0

    @property
    def holds(self) -> bool:
        """Whether there is no bug, and ties and noise in at most 1 % of the prompts or `spared` prompts."""
        small = self.tie + self.noise + self.reference_noise
        return self.bug == 0 and small <= max(self.spared, SHARE * self.prompts) and self.prompts > 0

    def __str__(self) -> str:
        return with_draft(self.method, self.draft, self.sampling)

    def count(self, differences: list[Difference]) -> None:
        """Count one prompt with all its differences."""
        worst = max((d.verdict for d in differences), key=VERDICTS.index, default="equal")
        self.prompts += 1
        self._move(worst, 1)
        self.differences += differences

    def blame(self, bugs: list[Difference]) -> None:
        """Add bugs that the records showed after the prompts were counted."""
        ranked = sorted(self.differences, key=lambda d: VERDICTS.index(d.verdict))
        worst = {d.prompt: d.verdict for d in ranked}
        for prompt in {d.prompt for d in bugs}:
            self._move(worst.get(prompt, "equal"), -1)
            self._move("bug", 1)
        self.differences += bugs

    def _move(self, verdict: str, by: int) -> None:
        name = verdict.replace(" ", "_")
        setattr(self, name, getattr(self, name) + by)


@dataclass(frozen=True)
class LawResult(Judged):
    """The distance of a method's law from the target's.

    Parameters
    ----------
    method, sampling : str
    error : float
        Largest difference between the probabilities of a text under the method and under the target.
    bound : float
        Maximum error allowed.
    cells : int
        Cells of the uniform space that were run.
    reason : str
        What the method raised, if it has no law; `error` is then infinite.
    """

    method: str
    sampling: str
    error: float
    bound: float
    cells: int
    reason: str = ""

    @property
    def holds(self) -> bool:
        return self.error <= self.bound

    def __str__(self) -> str:
        return (
            f"{self.method}'s distribution, "
            f"{self.sampling}{f' (it raised {self.reason})' if self.reason else ''}"
        )


@dataclass(frozen=True)
class ChiSquare(Judged):
    """A chi-square test of the first tokens' distribution.

    Parameters
    ----------
    statistic : float
    freedom : int
        Degrees of freedom: cells after pooling, minus one.
    p : float
        Chance of a statistic at least as large if the law is the target's.
    draws, cells : int
    threshold : float
        The test fails if p is below it.
    impossible : int
        Draws of texts that the target never writes; if there are any, `statistic` is infinite.
    """

    statistic: float
    freedom: int
    p: float
    draws: int
    cells: int
    threshold: float = CHANCE
    impossible: int = 0

    @property
    def holds(self) -> bool:
        return self.p >= self.threshold

    def __str__(self) -> str:
        if self.impossible:
            many = f"{self.impossible} of {self.draws} draws"
            return f"{many} gave a text that the target never writes: {self.verdict}"
        return (
            f"chi-square {self.statistic:.1f}, {self.freedom} degrees of freedom, {self.draws} draws: "
            f"p = {self.p:.3g}, {self.verdict} (threshold {self.threshold:g})"
        )


@dataclass
class Drawn(Judged):
    """A chi-square test of a method's first two tokens on the model itself.

    Parameters
    ----------
    method, draft, sampling : str
    prompt : int
        Index of the prompt.
    test : ChiSquare or None
        None if the method raised; `reason` then says what.
    """

    method: str
    draft: str
    sampling: str
    prompt: int
    test: ChiSquare | None = None
    reason: str = ""

    @property
    def holds(self) -> bool:
        return self.test is not None and self.test.holds

    def __str__(self) -> str:
        outcome = f"it raised {self.reason}" if self.test is None else self.test
        words = with_draft(self.method, self.draft, self.sampling)
        return f"{words}, first tokens of prompt {self.prompt}: {outcome}"


COLUMNS = ("method", "draft", "sampling", "prompts", "tokens", *VERDICTS, "bound", "verdict")
Line: TypeAlias = dict[str, str | int | float | None]  # of a table: value by column
Plain: TypeAlias = Any  # what JSON holds
R = TypeVar("R", LawResult, Drawn)


@dataclass
class AuditResult:
    """The result of an audit.

    Parameters
    ----------
    model, device, dtype : str
    threads, max_new_tokens : int
    bound : Bound
    rows : list of Row
        One for each method and draft, greedy; then sampled.
    laws : list of LawResult
        The exact laws of sampling, on a toy vocabulary.
    drawn : list of Drawn
        The law of sampling on the model itself, by chi-square; empty where no prompt's first tokens vary.
    kernels : str or None
        Layout of the target's matrices; None if the model does not run on torch.
    left_out : dict of str to str
        Methods that the caller did not name and that the model cannot serve or that have no drafter, and
        ``chi-square`` if no prompt's first tokens vary enough for that test; each with the reason.
    invariant : bool
        Whether the target's rows are the same in every pass; then they were compared bit for bit.
    """

    model: str
    device: str
    dtype: str
    threads: int
    max_new_tokens: int
    bound: Bound
    rows: list[Row]
    laws: list[LawResult]
    drawn: list[Drawn]
    kernels: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    invariant: bool = False

    @property
    def holds(self) -> bool:
        """Whether every method holds."""
        return bool(self.rows) and not self.failed

    @property
    def failed(self) -> list[Row | LawResult | Drawn]:
        """All results that do not hold."""
        results: list[Row | LawResult | Drawn] = [*self.rows, *self.laws, *self.drawn]
        return [each for each in results if not each.holds]

    @property
    def differences(self) -> list[tuple[Row, Difference]]:
        """Every difference with the row it belongs to."""
        return [(row, difference) for row in self.rows for difference in row.differences]

    @property
    def parted(self) -> tuple[int, int]:
        """Number of greedy texts or updates that differ from the reference for any reason, and of all.

        Canvases of lossy methods, which may differ, are not counted.
        """
        greedy = [
            row for row in self.rows if row.sampling.startswith("greedy") and not getattr(row, "lossy", False)
        ]
        return sum(row.prompts - row.equal for row in greedy), sum(row.prompts for row in greedy)

    def joined(self, other: AuditResult) -> AuditResult:
        """This result followed by another's rows, laws and tests of the same model."""
        return replace(
            self, rows=self.rows + other.rows, laws=self.laws + other.laws, drawn=self.drawn + other.drawn,
            left_out=self.left_out | other.left_out,
        )  # fmt: skip

    def table(self) -> list[Line]:
        """Rows to print, with keys `COLUMNS`.

        A law has no prompts, and its bound is on probabilities; a chi-square test's bound is the p-value
        below which it fails. Those of a method that hold share one row, which shows the worst of them.
        """
        lines: list[Line] = [
            {name: getattr(row, name.replace(" ", "_")) for name in COLUMNS} for row in self.rows
        ]
        for laws in _alike(self.laws):
            worst = max(laws, key=lambda law: law.error)
            off = "raised" if worst.reason else f"off by {'at most ' * (len(laws) > 1)}{worst.error:.0e}"
            words = f"law, {_counted(laws)}: {off}"
            lines.append(_line(worst) | {"draft": "toy", "sampling": words, "bound": worst.bound})
        for tests in _alike(self.drawn):
            least = min(tests, key=lambda each: 0.0 if each.test is None else each.test.p)
            p, bound = "raised", None
            if least.test is not None:
                p = f"{least.test.draws} draws, {'least ' * (len(tests) > 1)}p = {least.test.p:.2g}"
                bound = least.test.threshold
            words = f"chi-square, {_counted(tests)}: {p}"
            numbers: Line = {"prompts": len(tests), "bound": bound}
            lines.append(_line(least) | {"draft": least.draft, "sampling": words} | numbers)
        return lines

    @property
    def summary(self) -> str:
        """The result in one line."""
        sizes = []
        for word, streams in (("prompt", False), ("update", True)):
            if some := [row.prompts for row in self.rows if row.streams == streams]:
                sizes.append(plural(max(some), word))
        kernels = f", {self.kernels} kernels" if self.kernels else ""
        kernels += ", compared bit for bit" * self.invariant
        machine = f"{self.device}, {plural(self.threads, 'thread')}"
        tie, noise, reference, bug = (
            sum(getattr(row, name) for row in self.rows)
            for name in ("tie", "noise", "reference_noise", "bug")
        )
        numbers = [plural(tie, "tie"), f"{noise:,} kernel noise", f"{reference:,} reference noise",
                   plural(bug, "bug")]  # fmt: skip
        parted, texts = self.parted
        if texts and not self.invariant:
            verb = "differs" if parted == 1 or texts == 1 else "differ"
            numbers.append(f"{parted:,} of {plural(texts, 'greedy text')} {verb} ({parted / texts:.1%})")
        failed = "; ".join(map(str, self.failed)) or "nothing ran"
        return (
            f"audit of {self.model}, {self.dtype}{kernels} on {machine}: {' and '.join(sizes) or 'nothing'}, "
            f"{', '.join(numbers)}; {'every method holds' if self.holds else f'does not hold: {failed}'} "
            f"(bound on a logit {self.bound})"
        )

    def to_json(self) -> str:
        """The whole result as JSON."""
        result = asdict(self) | {"holds": self.holds, "summary": self.summary, "parted": self.parted}
        for name in ("rows", "laws", "drawn"):
            for each, plain in zip(getattr(self, name), result[name]):
                plain["verdict"] = each.verdict
        return json.dumps(finite(result), ensure_ascii=False, allow_nan=False)


def with_draft(method: str, draft: str, sampling: str) -> str:
    """The method, its draft if it has one, and the sampling, in words."""
    return f"{method}{f' with {draft}' if draft else ''}, {sampling}"


def _line(of: LawResult | Drawn) -> Line:
    """A row of the table for a result without prompts to count."""
    verdict: Line = {"method": of.method, "bug": int(not of.holds), "verdict": of.verdict}
    return dict.fromkeys(COLUMNS) | verdict


def _alike(results: list[R]) -> list[list[R]]:
    """Group results that hold by method and draft; each of the others is a group by itself."""
    groups: dict[tuple[str, str, int], list[R]] = {}
    for number, each in enumerate(results):
        key = each.method, getattr(each, "draft", ""), -1 if each.holds else number
        groups.setdefault(key, []).append(each)
    return list(groups.values())


def _counted(results: Sequence[LawResult | Drawn]) -> str:
    return results[0].sampling if len(results) == 1 else f"{len(results)} settings"


def finite(value: Plain) -> Plain:
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
