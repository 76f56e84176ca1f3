"""What an audit found: differences, rows, and the one rule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from .law import ChiSquare, LawResult
from .reference import Bound

SHARE = 0.01  # of the prompts may differ by ties and noise
VERDICTS = ("equal", "tie", "noise", "reference noise", "bug")  # the worst last


@dataclass
class Difference:
    """A place where something is not as the target alone has it.

    Parameters
    ----------
    prompt, position : int
        Index of the prompt; place in the output (0 is the first generated token), -1 where there is none.
    verdict : str
        tie; noise (of kernels: float64 sides with what was compared with); reference noise (float64 sides
        with the method, and the other row is off within the bound); or bug.
    reason : str
        One sentence.
    expected, found : int or None
        The two tokens, and what they read (`expected_text`, `found_text`).
    gap, gap_alone, gap_double : float or None
        Logit of `expected` minus that of `found`: in the method's own pass, in a pass of width 1 over the
        committed prefix, in float64.
    distance : float or None
        Largest difference between the row that the method read there and the float64 row.
    update : int or None
        Of a stream, which update; `prompt` is then the stream's index.
    cells : (int, int) or None
        Of a canvas, the cells of `expected` and `found`; `position` then counts steps of unmasking, and the
        gaps are of log-odds.
    """

    prompt: int
    position: int
    verdict: str
    reason: str
    expected: int | None = None
    found: int | None = None
    expected_text: str = ""
    found_text: str = ""
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


@dataclass
class Row:
    """What the audit found of one method with one draft.

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
        So many prompts may differ by ties and noise however few there are: one in batches, where passes have
        other shapes than alone, so that no method is more than exact up to ties.
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
        """The one rule: no bug, and ties and noise in at most 1 % of the prompts, or in those spared."""
        small = self.tie + self.noise + self.reference_noise
        return self.bug == 0 and small <= max(self.spared, SHARE * self.prompts) and self.prompts > 0

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "does not hold"

    def count(self, found: list[Difference]) -> None:
        """Enter one prompt with all its differences."""
        worst = max((d.verdict for d in found), key=VERDICTS.index, default="equal")
        self.prompts += 1
        self._move(worst, 1)
        self.differences += found

    def blame(self, found: list[Difference]) -> None:
        """Bugs that were found after the prompts were counted, in the records."""
        ranked = sorted(self.differences, key=lambda d: VERDICTS.index(d.verdict))
        known = {d.prompt: d.verdict for d in ranked}  # the worst is last
        for prompt in {d.prompt for d in found}:
            before = known.get(prompt, "equal")
            if before != "bug":
                self._move(before, -1)
                self.bug += 1
        self.differences += found

    def _move(self, verdict: str, by: int) -> None:
        name = verdict.replace(" ", "_")
        setattr(self, name, getattr(self, name) + by)


@dataclass
class Drawn:
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

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "does not hold"

    def __str__(self) -> str:
        with_draft = f" with {self.draft}" if self.draft else ""
        found = f"it raised {self.reason}" if self.test is None else self.test
        return f"{self.method}{with_draft}, {self.sampling}, first tokens of prompt {self.prompt}: {found}"


COLUMNS = (
    *("method", "draft", "sampling", "prompts", "tokens"),
    *(*VERDICTS, "bound", "verdict"),
)


@dataclass
class AuditResult:
    """What `run` found.

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
        How the target's matrices lay; None of a model that is not torch's.
    left_out : dict of str to str
        Methods that nobody named and the model cannot serve, or that no drafter was given for; each with the
        reason.
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

    @property
    def holds(self) -> bool:
        """Whether every method holds."""
        found: list[Row | LawResult | Drawn] = [*self.rows, *self.laws, *self.drawn]
        return bool(self.rows) and all(each.holds for each in found)

    @property
    def differences(self) -> list[tuple[Row, Difference]]:
        """Every difference with the row it belongs to."""
        return [(row, difference) for row in self.rows for difference in row.differences]

    def joined(self, other: AuditResult) -> AuditResult:
        """This one with another's rows, laws and tests of the same model behind its own."""
        return replace(
            self, rows=self.rows + other.rows, laws=self.laws + other.laws, drawn=self.drawn + other.drawn,
            left_out=self.left_out | other.left_out,
        )  # fmt: skip

    def table(self) -> list[dict[str, Any]]:
        """Rows to print, keys `COLUMNS`.

        A law has no prompts, and its bound is of probabilities; a chi-square test's bound is the p-value
        below which it fails. Of each method the ones that hold are one row, with the worst of them.
        """
        found = [{name: getattr(row, name.replace(" ", "_")) for name in COLUMNS} for row in self.rows]

        def add(each: LawResult | Drawn, **values: Any) -> None:
            line = dict.fromkeys(COLUMNS) | {"method": each.method, "verdict": each.verdict}
            found.append(line | {"bug": int(not each.holds)} | values)

        for laws in _alike(self.laws, lambda law: law.method):
            worst = max(laws, key=lambda law: law.error)
            off = "raised" if worst.reason else f"off by {'at most ' * (len(laws) > 1)}{worst.error:.0e}"
            add(worst, draft="toy", sampling=f"law, {_counted(laws)}: {off}", bound=worst.bound)
        for tests in _alike(self.drawn, lambda each: (each.method, each.draft)):
            least = min(tests, key=lambda each: 0.0 if each.test is None else each.test.p)
            if least.test is None:
                p, bound = "raised", None
            else:
                p = f"{least.test.draws} draws, {'least ' * (len(tests) > 1)}p = {least.test.p:.2g}"
                bound = least.test.threshold
            said = f"chi-square, {_counted(tests)}: {p}"
            add(least, draft=least.draft, sampling=said, prompts=len(tests), bound=bound)
        return found

    @property
    def summary(self) -> str:
        """One line."""
        failed = [
            f"{row.method}{f' with {row.draft}' if row.draft else ''}, {row.sampling}"
            for row in self.rows
            if not row.holds
        ]
        for law in self.laws:
            if not law.holds:
                reason = f" (it raised {law.reason})" if law.reason else ""
                failed.append(f"{law.method}'s law, {law.sampling}{reason}")
        failed += [str(each) for each in self.drawn if not each.holds]
        updates = [row.prompts for row in self.rows if row.streams]
        prompts = [row.prompts for row in self.rows if not row.streams]
        most = [
            f"{max(some)} {word}{'s' * (max(some) != 1)}"
            for some, word in ((prompts, "prompt"), (updates, "update"))
            if some
        ]
        head = (
            f"audit of {self.model}, {self.dtype}{f', {self.kernels} kernels' if self.kernels else ''} on "
            f"{self.device}, {self.threads} thread"
            f"{'s' * (self.threads != 1)}: {' and '.join(most) or 'nothing'}, "
        )
        numbers = ", ".join(
            f"{sum(getattr(row, name) for row in self.rows)} {word}"
            for name, word in (
                ("tie", "ties"),
                ("noise", "kernel noise"),
                ("reference_noise", "reference noise"),
                ("bug", "bugs"),
            )
        )
        verdict = (
            "every method holds" if self.holds else "does not hold: " + "; ".join(failed or ["nothing ran"])
        )
        return f"{head}{numbers}; {verdict} (bound on a logit {self.bound})"

    def to_json(self) -> str:
        """All of it as JSON."""
        result = asdict(self) | {"holds": self.holds, "summary": self.summary}
        for row, made in zip(self.rows, result["rows"]):
            made["verdict"] = row.verdict
        for law, made in zip(self.laws, result["laws"]):
            made["verdict"] = law.verdict
        for each, made in zip(self.drawn, result["drawn"]):
            made["verdict"] = each.verdict
        return json.dumps(_finite(result), ensure_ascii=False, allow_nan=False)


def _alike(found: list[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    """What holds, by its key; what does not, each by itself."""
    groups: dict[Any, list[Any]] = {}
    for number, each in enumerate(found):
        groups.setdefault((key(each), -1 if each.holds else number), []).append(each)
    return list(groups.values())


def _counted(found: list[Any]) -> str:
    return found[0].sampling if len(found) == 1 else f"{len(found)} settings"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
