"""The parts of a replay: numbers with their provenance, comparisons, checks and verdicts.

Everything is plain data and compares by value. Reading and judging it needs no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

import numpy as np

from specviz.errors import plural
from specviz.measure.claims import BootstrapEstimate
from specviz.measure.report import Row, Values

AGAIN = "again"  # suffix to the name of a method that a run decodes a second time as its control
HOLDS, FAILS, OPEN = "holds here", "fails here", "cannot be judged here"
ORDER, PAYS, FASTER, SIZE, LOSSLESS = "order", "pays", "faster", "size", "lossless"  # what a claim is about
CONTROL, ABILITY, SAME, IDLE = "control", "ability", "same texts", "idle target"  # kinds of checks
ALL_TASKS = ""  # the task of a check on all texts of a table
SAME_NUMBER = 1e-12  # smaller differences count as zero

Tally = tuple[int, int, int]  # comparisons: clearly as in the paper, unclear, clearly not


class Plain:
    """Base of dataclasses that are saved as a dict of their fields and read back from one."""

    @classmethod
    def read(cls, row: Values) -> Self:
        """Read from a dict with at least the fields that have no default; unknown keys are ignored."""
        return cls(**{each.name: row[each.name] for each in fields(cls) if each.name in row})  # type: ignore[arg-type]

    def as_dict(self) -> Row:
        """Return the fields as a dict."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Provenance(Plain):
    """What a figure was measured on. An empty string or 0 means none or unknown."""

    model: str = ""
    weights: str = ""  # a digest of the model's content
    parameters: int = 0
    drafter: str = ""
    drafter_weights: str = ""
    method: str = ""
    settings: str = ""  # the parameters given to the method
    suite: str = ""
    task: str = ""  # the paper's name for the prompts
    language: str = ""
    texts: int = 0
    max_new_tokens: int = 0
    rounds: int = 1
    device: str = ""
    processor: str = ""
    threads: int = 0
    dtype: str = ""
    kernels: str = ""
    clock: str = ""
    date: str = ""
    tried: int = 1  # number of settings tried, of which this one did best on these texts

    @property
    def contender(self) -> str:
        """Method, settings and drafter in words."""
        return " ".join(filter(None, [self.method, self.settings, self.drafter]))

    @property
    def by(self) -> str:
        """Model and number format in words."""
        return " ".join(filter(None, [self.model, self.dtype]))

    @property
    def place(self) -> str:
        """Device, threads, format and kernels in words."""
        where = self.device
        if where.startswith("cpu") and self.processor:
            where += f" ({self.processor}), {plural(self.threads, 'thread')}"
        return ", ".join(filter(None, [where, self.dtype, self.kernels and f"{self.kernels} kernels"]))


@dataclass(frozen=True)
class Figure:
    """A measured figure, which several printed numbers may share."""

    where: Values  # columns of the published table and their values
    metric: str  # the paper's name of it
    value: float
    low: float | None = None  # its interval
    high: float | None = None
    texts: int = 0  # number of texts it was measured on; 0: it was not measured on texts
    draws: np.ndarray | None = field(default=None, repr=False, compare=False)  # values on resampled texts
    source: Provenance = Provenance()  # what it was measured on
    derived: bool = False  # whether it is a mean of other figures

    @property
    def estimate(self) -> BootstrapEstimate:
        """The figure as an estimate, from which others can be derived."""
        low, high = (float("nan") if end is None else end for end in (self.low, self.high))
        return BootstrapEstimate(self.value, low, high, self.texts, self.draws)


@dataclass
class Cell:
    """A number of a published table and its measurement here."""

    keys: Row  # the table's key columns and their values
    metric: str
    value: float | None  # the printed number; None for a curve without printed values
    printed: str  # `value` as the paper prints it
    unit: str
    device: str  # the paper's
    model: str  # the paper's
    measured: float | None  # None if nothing was measured
    low: float | None
    high: float | None
    why: str  # why nothing was measured, else empty
    figure: int | None = None  # number of the measured figure, which several printed numbers may share
    source: Provenance | None = None  # what it was measured on

    @classmethod
    def of(cls, row: Values, sources: list[Provenance]) -> Cell:
        """Read from a row of ``replay.json``, whose ``source`` is an index into `sources`."""
        names = [each.name for each in fields(cls)[1:]]
        keys = {name: value for name, value in row.items() if name not in names}
        values = {name: row[name] for name in names}
        values["source"] = None if row["source"] is None else sources[row["source"]]
        return cls(keys, **values)

    def as_dict(self) -> Row:
        """Return the cell as a row without its provenance."""
        return self.keys | {each.name: getattr(self, each.name) for each in fields(self)[1:-1]}

    def column(self, name: str) -> Any:
        """The value of a column: a key, ``metric``, ``device`` or ``model``."""
        return self.keys[name] if name in self.keys else getattr(self, name)

    @property
    def ratio(self) -> float | None:
        """Measured over printed value; None if either is missing or the printed one is zero."""
        return self.measured / self.value if self.measured is not None and self.value else None

    def selected(self, where: Values) -> bool:
        """Whether the cell has these values in these columns. Lists give alternatives; 1 equals ``"1"``."""
        for name, value in where.items():
            choices = value if isinstance(value, list) else [value]
            mine = self.column(name)
            if not any(mine == each or _number(mine) == _number(each) != "" for each in choices):
                return False
        return True


def _number(value: float | str | None) -> float | str:
    if value is None:
        return ""
    try:
        return float(value)
    except ValueError:
        return ""


@dataclass(frozen=True)
class Comparison(Plain):
    """A comparison of two printed contenders that were measured here separately.

    Attributes
    ----------
    first, second : int
        Indices of their cells; if several cells share the two figures, the first of them.
    printed, measured : float
        The first's figure minus the second's.
    low, high : float, optional
        95 % interval of the measured difference, both sides resampled on the same texts.
    p : float
        The p-value of the measured difference, corrected for all comparisons of the table (Holm).
    clear : bool
        Whether p is at most 0.05 and, for times, the difference exceeds the control's.
    split : bool
        Whether the paper's own rows, for several models or devices, differ in direction.
    derived : bool
        Whether either side is a mean of figures that are compared themselves; it is then not counted.
    """

    first: int
    second: int
    printed: float
    measured: float
    low: float | None
    high: float | None
    p: float
    clear: bool
    split: bool = False
    derived: bool = False

    @property
    def verdict(self) -> str:
        """``agrees``, ``against``, ``tied`` (in print), ``split`` (in print) or ``level`` (here)."""
        if self.split:
            return "split"
        if abs(self.printed) < SAME_NUMBER:
            return "tied"
        if abs(self.measured) < SAME_NUMBER:
            return "level"
        return "agrees" if self.printed * self.measured > 0 else "against"

    @property
    def place(self) -> int | None:
        """Index into a `Tally`; None if there is nothing to agree with."""
        if self.verdict not in ("agrees", "against"):
            return None
        return 1 if not self.clear else 0 if self.verdict == "agrees" else 2


@dataclass(frozen=True)
class Check(Plain):
    """A check that a run makes on itself.

    Attributes
    ----------
    kind : str
        ``control``: a contender under two names; `value` is the ratio of their speeds, `low` and `high` its
        interval. ``ability``: whether the model can do the task; `value` is the p-value of the hypothesis
        that its texts fit their own references no better than others'.
        ``same texts``: `count` of `of` texts equal the reference's; `text` says how they were compared, if
        not token for token. ``idle target``: in `count` of `of` texts the large model did not run after the
        prompt.
    """

    kind: str
    contender: str
    task: str
    count: int
    of: int
    value: float | None = None
    low: float | None = None
    high: float | None = None
    text: str = ""
    by: str = ""  # the model and its format, as in `Provenance.by`; empty: all models


@dataclass(frozen=True)
class Verdict(Plain):
    """What the measurements here say about one of the paper's claims."""

    claim: str
    question: str  # order, pays, faster, size or lossless
    verdict: str
    numbers: str
    reason: str
