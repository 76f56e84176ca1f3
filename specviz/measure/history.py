"""What moved between two results of the same bench, beyond noise.

A bench's ``--json`` file holds its figures with their 95 % intervals. Two figures of the same row have moved
where these intervals do not overlap; figures without an interval are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict

from specviz.errors import TraceError, plural
from specviz.files import read_json
from specviz.measure.report import Report, Row, Values
from specviz.measure.schema import Fields, ModelName, Plain, Text
from specviz.metrics import Estimate

REMEDY = "it is not the result of a bench: name files that specviz bench NAME --json wrote"
PLACE = ("device", "processor", "threads", "dtype")  # of a setting: where it was measured
COLUMNS = [
    ("bench", "bench", ""), ("row", "row", ""), ("figure", "figure", ""), ("before", "before", ""),
    ("after", "after", ""), ("change", "change", "{:+.1%}"),
]  # fmt: skip
NOTES = [
    "A figure has moved if its two 95 % intervals do not overlap. If nothing changed, about one figure in "
    "two hundred does so by chance.",
]


class Place(TypedDict):
    """Of a result's setting, where and of what it was measured."""

    model: ModelName
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
    date: Annotated[Text, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")]
    setting: Place
    rows: list[Fields]
    parts: list[PartFile]
    bars: list[BarFile]


@dataclass(frozen=True)
class Pair:
    """Two results of one bench at one place, the older one first."""

    before: BenchFile
    after: BenchFile

    def rows(self) -> list[Row]:
        """The figures that both have, with ``moved``."""
        bench, figures = self.before["bench"], []
        for title, one, other in self._tables():
            for label, old, new in _matched(one, other):
                for key in old:
                    a, b = _estimate(old[key]), _estimate(new.get(key))
                    if a is None or b is None:
                        continue
                    figures.append({
                        "bench": bench, "part": title, "row": label, "figure": key, "before": a, "after": b,
                        "change": b.median / a.median - 1 if a.median else None,
                        "moved": a.high < b.low or b.high < a.low,
                    })  # fmt: skip
        return figures

    def _tables(self) -> list[tuple[str, list[Fields], list[Fields]]]:
        tables = [("", self.before["rows"], self.after["rows"])]
        later = {part["title"]: part["rows"] for part in self.after["parts"]}
        return tables + [(p["title"], p["rows"], later.get(p["title"], [])) for p in self.before["parts"]]

    def remarks(self) -> list[str]:
        """Bars that are newly missed or met, and what differs between the two settings."""
        bench, lines = self.before["bench"], []
        held = {bar["name"]: bar["held"] for bar in self.before["bars"]}
        for bar in self.after["bars"]:
            if held.get(bar["name"], bar["held"]) != bar["held"]:
                lines.append(
                    f"{bench}: the limit on {bar['name']} is {'met' if bar['held'] else 'missed'} now"
                )
        changed = _changes(self.before["setting"], self.after["setting"])
        if changed:
            lines.append(f"{bench}: not only the code may have changed: {'; '.join(changed)}")
        return lines


class History(Report):
    """The figures that moved."""

    @property
    def summary(self) -> str:
        """The one line at the end."""
        return f"history: {len(self.rows)} of {plural(len(self.measurements), 'figure')} moved ({self.where})"


def history(paths: Sequence[Path]) -> History:
    """What moved between the last two results of each bench at each place.

    Parameters
    ----------
    paths : sequence of Path
        Results of benches, or folders of them; a place is a device, processor, number of threads and number
        format, with the model.

    Returns
    -------
    History
        A row for each figure that moved; its `measurements` has all that were compared.

    Raises
    ------
    TraceError
        If a file is not the result of a bench, or no bench has two results at one place.
    """
    results = sorted(
        (read_json(file, BenchFile, REMEDY) for file in _files(paths)), key=lambda each: each["date"]
    )
    places: dict[tuple[str, ...], list[BenchFile]] = {}
    for each in results:
        places.setdefault(_place(each), []).append(each)
    pairs = [Pair(*listed[-2:]) for listed in places.values() if len(listed) > 1]
    if not pairs:
        raise TraceError(
            f"{plural(len(results), 'result')}, but no two of the same bench, model, device, threads and "
            "number format: measure again with --json and another file name"
        )
    rows = [row for pair in pairs for row in pair.rows()]
    moved = [row for row in rows if row["moved"]]
    spans = ", ".join(
        f"{pair.before['bench']} ({pair.before['date'][:10]} to {pair.after['date'][:10]})" for pair in pairs
    )
    title = f"{len(moved)} of {plural(len(rows), 'figure')} moved beyond noise: {spans}"
    remarks = [line for pair in pairs for line in pair.remarks()]
    for row in moved:
        row["row"] = " · ".join(filter(None, (row["part"], row["row"])))
    return History(
        "history",
        title,
        dict(pairs[-1].after["setting"]),
        COLUMNS,
        moved,
        notes=NOTES + remarks,
        measurements=rows,
    )


def _place(result: BenchFile) -> tuple[str, ...]:
    """Of what and where a result is: only those that share it are compared."""
    setting: Values = result["setting"]
    return result["bench"], str(setting["model"].get("name")), *(str(setting[key]) for key in PLACE)


def _files(paths: Sequence[Path]) -> list[Path]:
    files = []
    for path in paths:
        if not path.exists():
            raise TraceError(f"{path} does not exist")
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return list(dict.fromkeys(file.resolve() for file in files))


def _estimate(value: Plain) -> Estimate | None:
    """A figure with its interval; None for all else, and for what is 1 by definition."""
    if not isinstance(value, dict) or set(value) != {"median", "low", "high", "pairs"}:
        return None
    if not all(isinstance(each, int | float) for each in value.values()) or value["low"] == value["high"]:
        return None
    return Estimate(**value)


Identity: TypeAlias = tuple[tuple[str, Plain], ...]  # of a row: what it is a row of


def _identity(row: Fields, kinds: tuple[type, ...]) -> Identity:
    return tuple((key, value) for key, value in row.items() if isinstance(value, kinds))


def _matched(one: Sequence[Fields], other: Sequence[Fields]) -> list[tuple[str, Fields, Fields]]:
    """Rows of two tables that are of the same thing: by their words and whole numbers, or by words alone."""
    pairs: list[tuple[str, Fields, Fields]] = []
    left, right = list(one), list(other)
    for kinds in ((str, int), (str,)):
        old, new = _by_identity(left, kinds), _by_identity(right, kinds)
        for key, row in old.items():
            if key in new:
                words = " ".join(str(value) for _, value in key if not isinstance(value, bool))
                pairs.append((words, row, new[key]))
        used = {id(row) for _, *both in pairs for row in both}
        left, right = ([row for row in rows if id(row) not in used] for rows in (left, right))
    return pairs


def _by_identity(rows: Sequence[Fields], kinds: tuple[type, ...]) -> dict[Identity, Fields]:
    """Rows by what they are of; those that share it with another are left out."""
    made: dict[Identity, list[Fields]] = {}
    for row in rows:
        made.setdefault(_identity(row, kinds), []).append(row)
    return {key: each[0] for key, each in made.items() if len(each) == 1}


def _changes(before: Values, after: Values) -> list[str]:
    """What differs between two settings, in words."""
    lines = []
    for key in {**before, **after}:
        a, b = before.get(key), after.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += [f"{key} {line}" for line in _changes(a, b)]
        elif a != b:
            lines.append(f"{key} {_words(a)}, now {_words(b)}")
    return lines


def _words(value: Plain) -> str:
    return "none" if value is None else str(value) if isinstance(value, str | int | float) else "others"
