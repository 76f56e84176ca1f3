"""Figures that moved in the last result of a bench, beyond the noise between its earlier ones.

A bench's ``--json`` file holds its figures, medians of paired measurements. Their intervals show how much
texts or rounds differ within one run, not how much two runs differ, so at least two earlier results are
needed. The noise is their relative spread, pooled over all figures of the bench: after a change that is
wanted, remove the results from before it, which would count as noise. A figure of the last result
has moved if it is farther from the earlier results' mean than normal noise, equal in all figures, would move
any of them in one of twenty comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, NotRequired, TypeAlias

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict

from specviz.errors import TraceError, plural
from specviz.files import read_json
from specviz.measure.report import Report, Row, Values
from specviz.measure.schema import Fields, ModelName, Text

CHANCE = 0.05  # probability that a comparison without any change lists a figure
EARLIER = 2  # minimum number of results before the last one
LARGEST = 1e300  # largest figure
REMEDY = "name files that this version's specviz bench NAME --json wrote"
WHERE = (
    "device", "processor", "threads", "dtype", "prompts", "texts", "max_new_tokens", "invariant",
    "gpu_layers", "options", "entries",
)  # fmt: skip
# Settings that may explain why a figure moved; other fields differ from run to run anyway.
EXPLANATORY = ("system", "versions", "kernels", "rounds", "clock")
# Columns that identify a row; a contender's name is enough.
CONTENDER = "contender"
KEYS = (
    "model", "layout", "format", "decoder", "method", "draft", "way", "pass", "part", "kernel",
    "unit", "what", "group", "setting", "label", "task", "language", "signal", "trace", "book", "question",
    "policy", "g", "size", "batch", "rows", "cells", "canvases", "block", "nodes", "cycles", "id",
    "temperature",
)  # fmt: skip
COLUMNS = [
    ("bench", "bench", ""), ("row", "row", ""), ("figure", "figure", ""), ("before", "before", "{:.3f}"),
    ("after", "after", "{:.3f}"), ("change", "change", "{:+.1%}"), ("noise", "noise", "±{:.1%}"),
]  # fmt: skip

Key: TypeAlias = tuple[str, str, str]  # of a figure: its table's title, row and column
Figures: TypeAlias = dict[Key, float]


class PlaceFile(TypedDict):
    """The part of a result's setting that says where it was measured."""

    model: ModelName
    drafts: list[ModelName]
    device: Text
    processor: Text
    threads: int
    dtype: Text


class PartFile(TypedDict):
    """A table of a result."""

    title: Text
    rows: list[Fields]


class BarFile(TypedDict):
    """A bar of a result."""

    name: Text
    held: bool


class BenchFile(TypedDict):
    """The result of a bench, as `Report.write` writes it."""

    bench: Text
    commit: NotRequired[Text | None]  # missing in results before 26 November 2026
    date: Annotated[Text, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")]
    setting: PlaceFile
    rows: list[Fields]
    parts: list[PartFile]
    bars: list[BarFile]


class History(Report):
    """A report of the figures that moved."""

    where = ""  # each series names its own place

    @property
    def summary(self) -> str:
        """The final line: how many figures moved."""
        return f"history: {len(self.rows)} of {plural(len(self.measurements), 'figure')} moved"


@dataclass(frozen=True)
class Series:
    """Results of one bench at one place, the oldest first."""

    results: list[BenchFile]
    apart: list[str] = field(default_factory=list)  # other circumstances in which the series differ

    @property
    def place(self) -> str:
        """The bench, the model and the place as text."""
        last, s = self.results[-1], self.results[-1]["setting"]
        where = f"{s['device']}, {plural(s['threads'], 'thread')}, {s['dtype']}"
        return ", ".join([f"{last['bench']} of {s['model'].get('name')}", where, *self.apart])

    @property
    def words(self) -> str:
        """The place and the dates as text."""
        return f"{self.place}, {self.results[0]['date'][:10]} to {self.results[-1]['date'][:10]}"

    def rows(self) -> list[Row]:
        """A row for every figure that all results have and that varies, with ``moved``."""
        each = [figures(result) for result in self.results]
        shared = [key for key in each[-1] if all(key in one for one in each)]
        if not shared:
            return []
        logs = np.log([[one[key] for key in shared] for one in each])
        varied = np.ptp(logs, axis=0) > 0  # a figure over itself is always 1: it has no noise
        if not varied.any():
            return []
        shared, logs = [key for key, own in zip(shared, varied) if own], logs[:, varied]
        earlier, last = logs[:-1], logs[-1]
        count = len(earlier)
        # A few results say little about one figure's noise, so the noise is pooled over all figures.
        spread = float(np.sqrt(earlier.var(axis=0, ddof=1).mean()))
        # The spread is estimated from few results and figures: Student's t, not the normal distribution.
        far = t_quantile(1 - CHANCE / 2 / len(shared), (count - 1) * len(shared))
        limit = far * spread * math.sqrt(1 + 1 / count)
        center = earlier.mean(axis=0)
        return [
            {
                "bench": self.place, "row": " · ".join(filter(None, key[:2])), "figure": key[2],
                "before": float(np.exp(a)), "after": each[-1][key], "change": float(np.expm1(b - a)),
                "noise": math.expm1(limit), "moved": bool(abs(b - a) > limit),
            }
            for key, a, b in zip(shared, center, last)
        ]  # fmt: skip

    def remarks(self) -> list[str]:
        """Notes on figures that were not compared, limits newly missed or met, and other changes."""
        before, after = self.results[-2:]
        lines = []
        commits = [str(each.get("commit") or "an unknown commit") for each in (before, after)]
        if commits[0] != commits[1]:
            lines.append(f"{self.words}: measured at {commits[1]}, before at {commits[0]}")
        if left := sorted(
            {" · ".join(filter(None, key)) for key in set(figures(before)) ^ set(figures(after))}
        ):
            lines.append(f"{self.words}: {plural(len(left), 'figure')} only before or after: {left[0]} ...")
        held = {bar["name"]: bar["held"] for bar in before["bars"]}
        for bar in after["bars"]:
            if held.get(bar["name"], bar["held"]) != bar["held"]:
                lines.append(
                    f"{self.words}: the limit on {bar['name']} is {'met' if bar['held'] else 'missed'} now"
                )
        if changed := _changes(before["setting"], after["setting"]):
            lines.append(f"{self.words}: not only this package changed: {'; '.join(changed)}")
        return lines


def history(paths: Sequence[Path]) -> History:
    """Find what moved in the last result of each bench at each place, beyond the noise of the earlier ones.

    Parameters
    ----------
    paths : sequence of Path
        Results of benches, or folders of them. A place is a device, processor, number of threads and number
        format, with the models, prompts and tokens.

    Returns
    -------
    History
        A row for each figure that moved; `measurements` has all figures that were compared.

    Raises
    ------
    TraceError
        If a file is not the result of a bench, or no bench has three results at one place.
    """
    files = _files(paths)
    results = [read_json(file, BenchFile, REMEDY) for file in files]
    places: dict[tuple[str, ...], list[BenchFile]] = {}
    for each in sorted(results, key=lambda result: result["date"]):
        if each["bench"] != "history":  # what this function reported, not a measurement
            places.setdefault(_place(each), []).append(each)
    listed = [Series(each) for each in places.values() if len(each) > EARLIER]
    named = {name: [one for one in listed if one.place == name] for name in {one.place for one in listed}}
    for alike in named.values():
        for key in ("drafts", *WHERE):
            values = [_circumstance(one.results[-1]["setting"], key) for one in alike]
            if len(set(values)) > 1:
                for number, (one, value) in enumerate(zip(alike, values), 1):
                    one.apart.append(f"{key} {value}" if len(value) < 40 else f"{key} of kind {number}")
    judged = [(one, one.rows()) for one in listed]
    series = [each for each, rows in judged if rows]
    rows = [row for _, rows in judged for row in rows]
    without = [
        f"not compared, because its results share no figure with an interval that varies: {each.words}"
        for each, rows in judged
        if not rows
    ]
    if without and not rows:
        raise TraceError(without[0])
    if not rows:
        raise TraceError(
            f"{plural(len(results), 'result')}, but no three of one bench with the same models, prompts, "
            "tokens, device, processor, threads and number format: two before a change say how much runs "
            "differ, one after it is judged"
        )
    moved = [row for row in rows if row["moved"]]
    title = f"{len(moved)} of {plural(len(rows), 'figure')} moved beyond noise"
    notes = [
        "noise: how far a figure may be from the earlier results' mean before it counts as moved. It follows "
        "from the spread of the earlier results. If nothing changed and all figures were equally noisy, one "
        f"comparison in {1 / CHANCE:.0f} would list a figure. Measure again what it lists.",
        *(f"compared: {plural(len(each.results), 'result')} of {each.words}" for each in series),
        *without,
        *(line for each, _ in judged for line in each.remarks()),
    ]
    return History(
        "history",
        title,
        dict(series[-1].results[-1]["setting"]),
        COLUMNS,
        moved,
        notes=notes,
        measurements=rows,
    )


def figures(result: BenchFile) -> Figures:
    """A result's positive figures, each once, without those of rows that share their keys."""
    made: Figures = {}
    for title, rows in [("", result["rows"]), *((part["title"], part["rows"]) for part in result["parts"])]:
        names = [_name(row) for row in rows]
        for name, row in zip(names, rows):
            if names.count(name) > 1:
                continue
            for column, value in row.items():
                if not isinstance(value, dict) or set(value) != {"median", "low", "high", "pairs"}:
                    continue
                median = value["median"]
                new = not any(key[1:] == (name, column) for key in made)
                if new and isinstance(median, int | float) and 0 < median < LARGEST:
                    made[title, name, column] = float(median)
    return made


def t_quantile(share: float, free: int) -> float:
    """Quantile of Student's t with `free` degrees of freedom, by inverting Wallace's approximation (1959).

    With two degrees it is a few percent too large, with one a third: fewer figures are listed, not more.
    """
    z = NormalDist().inv_cdf(share) * (8 * free + 3) / (8 * free + 1)
    return math.sqrt(free * math.expm1(z * z / free))


def _name(row: Fields) -> str:
    if CONTENDER in row:
        return str(row[CONTENDER])
    return " ".join(str(row[key]) for key in KEYS if isinstance(row.get(key), str | int | float))


def _files(paths: Sequence[Path]) -> list[Path]:
    files = []
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path} does not exist")
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise TraceError(
                f"{path} holds no .json file: name a folder of results that bench NAME --json wrote"
            )
        files += inside
    return list(dict.fromkeys(file.resolve() for file in files))


def _place(result: BenchFile) -> tuple[str, ...]:
    """Bench, models and circumstances of a result; only results that share them are compared."""
    setting: Values = result["setting"]
    models = (setting["model"], *setting["drafts"])
    return result["bench"], *(str(each.get("name")) for each in models), *(str(setting.get(k)) for k in WHERE)


def _circumstance(setting: Values, key: str) -> str:
    """One of the circumstances of a result as a short text."""
    value = setting.get(key)
    if key == "drafts":
        return ", ".join(str(each.get("name")) for each in setting["drafts"]) or "none"
    return str(value)


def _changes(before: Values, after: Values) -> list[str]:
    """Differences between two settings that may move a figure, in words."""
    lines = []
    for key in EXPLANATORY:
        a, b = before.get(key), after.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names = [name for name in {**a, **b} if a.get(name) != b.get(name) and name != "specviz"]
            lines += [f"{name} {a.get(name)}, now {b.get(name)}" for name in names]
        elif a != b:
            lines.append(f"{key} {a}, now {b}")
    return lines
