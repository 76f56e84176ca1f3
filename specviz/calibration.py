"""Calibrations of the best draft size on a device: the measurements, their file, and when to reuse one.

UniSpec (Do et al., Algorithm 1, lines 3-11, and Appendix F) chooses g* where τ(g)/s(g) is largest. Both
depend on where the model runs, so a calibration is valid for one setting only: model, method, device, number
format, threads and versions. `specviz.measure.calibrate` measures; this record of it needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from typing_extensions import TypedDict

from specviz.errors import SpecvizError, TraceError, plural
from specviz.files import read_json, write_text
from specviz.paths import expanded, home

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1  # of the file, as `_File` declares it
FOLDER = "SPECVIZ_CALIBRATIONS"  # the environment variable that names another folder
# Settings that must be the same, most important first, and the words for a difference.
SETTING = {
    "device": "another device", "dtype": "another number format", "threads": "another number of threads",
    "model": "another model", "draft": "another draft model", "parameters": "other parameters",
    "versions": "other versions", "method": "another method",
}  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """One way to read the measured points.

    Parameters
    ----------
    g : int
        The draft size with the highest throughput by this reading.
    s : list of float
        Seconds of a cycle at every draft size from the smallest measured one to the largest.
    tau : list of float
        Tokens per cycle, likewise.
    """

    g: int
    s: list[float]
    tau: list[float]


@dataclass
class Point:
    """Measurements of the texts at one draft size.

    Parameters
    ----------
    g : int
        Maximum nodes of a draft, not counting the root.
    tokens, cycles : list of int, [texts]
        Emitted tokens and draft-verify cycles of each text. Greedy decoding repeats them in every round.
    seconds : list of lists of float or None, [rounds, texts]
        Time of all cycles of a text, without the prefill; None if it is not measured yet.
    """

    g: int
    tokens: list[int] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    seconds: list[list[float | None]] = field(default_factory=list)


@dataclass
class Calibration:
    """Draft sizes, the gain and cost of each, and the best one.

    Parameters
    ----------
    setting : dict
        The setting for which it is valid; the keys of `SETTING`.
    size : str
        The method's parameter that was varied.
    how : dict
        How it was measured: ``prompts`` and ``warm_up`` (numbers of texts), ``texts`` (a digest of their
        ids), ``max_new_tokens``, ``rounds``, ``clock``.
    points : list of Point
        In order of size.
    fits : dict of str to Fit
        ``paper``, ``grid`` and ``monotone``; see `specviz.measure.fits`. Empty while measuring.
    chosen : str
        The fit that was used to choose g*.
    ended : str or None
        Why no larger sizes were measured, unless the caller left them out.
    spent : float
        Wall-clock seconds of the measurement.
    worked : float
        Its processor time, summed over all threads.
    created : str
        ISO 8601, UTC.
    """

    setting: dict[str, Any]
    size: str
    how: dict[str, Any]
    points: list[Point]
    fits: dict[str, Fit] = field(default_factory=dict)
    chosen: str = ""
    ended: str | None = None
    spent: float = 0.0
    worked: float = 0.0
    created: str = ""

    @property
    def complete(self) -> bool:
        """Whether everything was measured and fitted."""
        return bool(self.fits)

    @property
    def g(self) -> int:
        """g*, the draft size to use.

        Raises
        ------
        SpecvizError
            If the measurement was not finished.
        """
        if not self.complete:
            raise SpecvizError("this calibration was interrupted: run specviz calibrate again to continue")
        return self.fits[self.chosen].g

    @property
    def at_end(self) -> bool:
        """Whether g* is the largest size measured, so that a larger one may be better."""
        return self.complete and self.ended is None and self.g == self.points[-1].g

    @property
    def table(self) -> pd.DataFrame:
        """One row per measured size: g, tau, ms (s(g) in milliseconds), ms_q25, ms_q75, tokens_per_second."""
        import pandas as pd

        g, tau, s, low, high = self.measured()
        columns = {"g": g, "tau": tau, "ms": 1e3 * s, "ms_q25": 1e3 * low, "ms_q75": 1e3 * high}
        return pd.DataFrame(columns | {"tokens_per_second": tau / s})

    def measured(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """g, τ(g), s(g) and its quartiles over rounds, each [sizes]; seconds.

        A machine's speed varies over time by much more than one size differs from the next. All sizes decode
        a text in immediate succession, so this variation is divided out: each time is taken relative to the
        geometric mean over the sizes, then the median over rounds (and the quartiles), text by text.
        """
        seconds = np.array([point.seconds for point in self.points], np.float64)  # [sizes, rounds, texts]
        cycles = np.array([point.cycles for point in self.points], np.float64)  # [sizes, texts]
        tokens = np.array([point.tokens for point in self.points], np.float64)
        moment = np.exp(np.log(seconds).mean(0))  # [rounds, texts]
        relative, usual = seconds / moment, np.median(moment, 0)
        total = cycles.sum(1)
        s = (np.median(relative, 1) * usual).sum(1) / total
        low, high = (np.quantile(relative, (0.25, 0.75), axis=1) * usual).sum(2) / total
        return np.array([p.g for p in self.points]), tokens.sum(1) / total, s, low, high

    @property
    def sizes(self) -> np.ndarray:
        """Every draft size from the smallest measured one to the largest, where the fits have values."""
        return np.arange(self.points[0].g, self.points[-1].g + 1)

    @property
    def device(self) -> str:
        """Name of the device and, for a processor, the number of threads."""
        threads = self.setting["threads"]
        return self.setting["device"] + ("" if threads is None else f", {plural(threads, 'thread')}")

    @property
    def summary(self) -> str:
        """The result in one line."""
        fit = self.fits[self.chosen]
        tau, s = (curve[fit.g - self.points[0].g] for curve in (fit.tau, fit.s))
        what = f"{self.setting['model']['name']}, {self.setting['method']} on {self.device}"
        return (
            f"{what}: g* = {self.g} (τ {tau:.2f}, a cycle {1e3 * s:.2f} ms, expected {tau / s:,.0f} tokens/s)"
        )

    def __repr__(self) -> str:
        return f"<Calibration {self.summary}>" if self.complete else "<Calibration, interrupted>"

    # -- its file ---------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the calibration atomically; an existing file is replaced.

        Raises
        ------
        TraceError
            If it cannot be written.
        """
        text = json.dumps({"specviz": "calibration", "schema": SCHEMA} | asdict(self), ensure_ascii=False)
        return write_text(Path(path), text + "\n", force=True)

    @classmethod
    def open(cls, path: str | Path) -> Calibration:
        """Read a calibration.

        Raises
        ------
        TraceError
            If the file is missing, damaged, of another schema version, or not a calibration.
        """
        path, remedy = expanded(path, TraceError), "delete it and run specviz calibrate"
        calibration = cls.of(read_json(path, _File, remedy))
        if fault := calibration._fault():
            raise TraceError(f"{path} is not a usable calibration ({fault}): {remedy}")
        return calibration

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Calibration:
        """Build a calibration from plain data, as from ``dataclasses.asdict``."""
        points = [Point(p["g"], p["tokens"], p["cycles"], p["seconds"]) for p in content["points"]]
        fits = {name: Fit(fit["g"], fit["s"], fit["tau"]) for name, fit in content["fits"].items()}
        own = {each.name: content[each.name] for each in fields(cls)}
        return cls(**{**own, "points": points, "fits": fits})

    def _fault(self) -> str:
        """What of the sizes, times and curves is missing or does not fit the rest; empty if nothing."""
        if not math.isfinite(self.spent + self.worked):
            return "its duration is no number"
        sizes = [point.g for point in self.points]
        if not sizes or sizes[0] < 1 or sizes != sorted(set(sizes)):
            return "its sizes are not in order"
        if not all(self._timed(point) for point in self.points):
            return "its times are incomplete"
        if not self.complete:
            return ""
        if self.chosen not in self.fits:
            return f"it chose {self.chosen!r:.60}, which it does not have"
        count = sizes[-1] - sizes[0] + 1
        for fit in self.fits.values():
            if not sizes[0] <= fit.g <= sizes[-1]:
                return "its draft size was not measured"
            if not len(fit.s) == len(fit.tau) == count or not np.isfinite([fit.s, fit.tau]).all():
                return "its curves are incomplete"
        best = self.fits[self.chosen]
        if best.s[best.g - sizes[0]] <= 0:
            return "a cycle of its draft size takes no time"
        with np.errstate(all="ignore"):
            usable = all(np.isfinite(values).all() for values in self.measured())
        return "" if usable else "its times are incomplete"

    def _timed(self, point: Point) -> bool:
        """Whether a size has a place for each time, and tokens and cycles of each text that was timed."""
        rounds, texts, count = self.how["rounds"], self.how["prompts"], len(point.tokens)
        if not len(point.seconds) == rounds >= 1 or any(len(row) != texts for row in point.seconds):
            return False
        first, times = point.seconds[0], [time for row in point.seconds for time in row]
        return (
            len(point.cycles) == count
            and all(0 <= number < 2**63 for number in point.tokens + point.cycles)
            and [time is not None for time in first] == [number < count for number in range(texts)]
            and all(0 <= time < math.inf if time is not None else not self.complete for time in times)
        )


class _Point(TypedDict):
    """A `Point` as its file holds it."""

    g: int
    tokens: list[int]
    cycles: list[int]
    seconds: list[list[float | None]]


class _Fit(TypedDict):
    """A `Fit` as its file holds it."""

    g: int
    s: list[float]
    tau: list[float]


class _Model(TypedDict):
    """The model of a setting."""

    name: str


class _Setting(TypedDict):
    """The keys of `SETTING`."""

    device: str
    dtype: str
    threads: int | None
    model: _Model
    draft: dict[str, Any] | None
    parameters: dict[str, Any]
    versions: dict[str, Any]
    method: str


class _How(TypedDict):
    """How it was measured."""

    prompts: int
    warm_up: int
    max_new_tokens: int
    rounds: int
    clock: str


class _File(TypedDict):
    """The content of a calibration's file."""

    specviz: Literal["calibration"]
    schema: Literal[1]
    setting: _Setting
    size: str
    how: _How
    points: list[_Point]
    fits: dict[str, _Fit]
    chosen: str
    ended: str | None
    spent: float
    worked: float
    created: str


# ---------------------------------------------------------------- storage and lookup


def folder(given: str | Path | None = None) -> Path:
    """Folder for calibrations: `given`, or else ``SPECVIZ_CALIBRATIONS``, or else one in `paths.home`."""
    if given is not None:
        return expanded(given)
    if os.environ.get(FOLDER):
        return expanded(os.environ[FOLDER])
    return home() / "calibrations"


def file(setting: Mapping[str, Any], place: str | Path | None = None) -> Path:
    """Path of a setting's file, which may not exist; its name describes the setting and ends in a digest."""
    words = [setting["model"]["name"], setting["method"], setting["device"]]
    label = "-".join(re.sub(r"[^\w.]+", "_", str(word))[:24].strip("_") for word in words)
    digest = hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()[:12]
    return folder(place) / f"{label}-{digest}.json"


def calibrations(place: str | Path | None = None) -> Iterator[Calibration]:
    """Every finished calibration in the folder; files that cannot be read are skipped."""
    for path in sorted(folder(place).glob("*.json")):
        with suppress(TraceError):
            calibration = Calibration.open(path)
            if calibration.complete:
                yield calibration


def stored(
    setting: Mapping[str, Any],
    place: str | Path | None = None,
    options: str = "",
    program: str = "specviz",
    model_as: str = "",
) -> Calibration:
    """The calibration of exactly this setting.

    Parameters
    ----------
    setting : mapping
    place : path, optional
        See `folder`.
    options : str
        Options of the command that makes it, besides the method and the model.
    program : str
        Beginning of that command.
    model_as : str
        How the command names the model; default: by its name.

    Raises
    ------
    SpecvizError
        If there is none or it is unfinished; if there is one of the same model and method for another
        setting, the message says what differs.
    TraceError
        If its file is damaged.
    """
    path = file(setting, place)
    model = setting["model"]["name"]
    command = f"{program} calibrate {setting['method']} --model {shlex.quote(model_as or model)}{options}"
    if path.exists():
        calibration = Calibration.open(path)
        wrong = differences(calibration.setting, setting)
        if calibration.complete and not wrong:
            return calibration
        why = f"{path} is for {wrong[0]}" if wrong else "its calibration was interrupted"
        raise SpecvizError(f"{why}; run: {command}")
    near = [
        c
        for c in calibrations(place)
        if (c.setting["method"], c.setting["model"]["name"]) == (setting["method"], model)
    ]
    if not near:
        raise SpecvizError(
            f"{setting['method']} was not calibrated for {model} on this device yet; run: {command}"
        )
    if same := [c for c in near if not differences(c.setting, setting)]:  # in a file of another name
        return max(same, key=lambda c: c.created)
    wrong = min((differences(c.setting, setting) for c in near), key=len)
    raise SpecvizError(
        f"the calibration of {setting['method']} for {model} is for {wrong[0]}; run: {command}"
    )


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The differences between two settings in words, most important first."""
    lines = []
    for name, other in SETTING.items():
        a, b = theirs.get(name), ours.get(name)
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
            a, b = (", ".join(f"{key} {side.get(key)}" for key in keys) for side in (a, b))
        lines.append(f"{other} ({a}, here {b})")
    return lines
