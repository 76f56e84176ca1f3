"""Result of a bench: rows, bars and the setting, as data and as text, with tables that fit the terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import plural
from specviz.escape import visible
from specviz.files import plain_data, write_text
from specviz.measure.checkout import commit
from specviz.metrics import Estimate

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

Row = dict[str, Any]  # of a table or of a run: values by column
Entry = dict[str, Any]  # a prompt of a suite, as `specviz.suites.read` returns it
Settings = dict[str, Any]  # of a run, a method or a machine, by name
Values = Mapping[str, Any]  # read-only settings, or a read-only row
Tick = Callable[[int, int, str], None]  # progress: done, of, what

SCHEMA = 1
FOLD = ("decoder", "exactness")  # columns whose cells hold several words


@dataclass(frozen=True)
class Bar:
    """A limit on `value`: at least, more than, or at most `limit`; `goal` is a stricter, optional limit."""

    name: str
    value: float
    limit: float
    kind: str = "at least"  # at least, more than, at most
    goal: float | None = None

    @property
    def held(self) -> bool:
        """Whether `value` meets the limit; NaN meets none."""
        return self._meets(self.limit)

    def _meets(self, limit: float) -> bool:
        return {
            "at least": self.value >= limit,
            "more than": self.value > limit,
            "at most": self.value <= limit,
        }[self.kind]

    def __str__(self) -> str:
        by = f"{abs(self.value / self.limit - 1):.1%}" if self.limit else f"{abs(self.value):.3f}"
        verdict = "met" if self.held else f"missed by {by}"
        line = f"{self.name}: {self.value:.3f}, limit {self.kind} {self.limit:g}: {verdict}"
        if self.goal is None:
            return line
        return f"{line}; goal {self.goal:g}: {'met' if self._meets(self.goal) else 'missed'}"


@dataclass(frozen=True)
class Part:
    """A further table of the same measurement, with fields as in `Report`."""

    title: str
    columns: list[tuple[str, str, str]]
    rows: list[Row]
    dropped: tuple[str, ...] = ()

    def cells(self) -> list[list[str]]:
        """The table's cells as text; a missing value is a dash."""
        return [[_cell(row.get(key), form) for key, _, form in self.columns] for row in self.rows]

    def frame(self) -> pd.DataFrame:
        """The table as it is printed."""
        import pandas as pd

        return pd.DataFrame(self.cells(), columns=[heading for _, heading, _ in self.columns])

    def print(self, console: Console) -> None:
        """Print the table on a rich console."""
        columns = [
            Column(
                heading,
                right=bool(form) or any(isinstance(row.get(key), Estimate) for row in self.rows),
                folds=14 if key in FOLD else None,
                drop_rank=self.dropped.index(key) if key in self.dropped else None,
            )
            for key, heading, form in self.columns
        ]
        print_table(console, columns, self.cells())


def print_lines(console: Console, *lines: str) -> None:
    """Print lines; they are wrapped on a terminal only."""
    from rich.text import Text

    for line in lines:
        console.print(Text(visible(line)), soft_wrap=not console.is_terminal)


@dataclass
class Report:
    """A bench's result.

    Parameters
    ----------
    name, title : str
        The bench, and what the table shows.
    setting : dict
        Device, threads, dtype, models, versions, numbers of prompts and tokens.
    columns : list of (key, heading, format)
        Keys of the rows to print, with their headings and formats.
    rows : list of dict
        Numbers, texts or `Estimate`.
    bars : list of Bar
    notes : list of str
        Sentences below the table.
    dropped : tuple of str
        Keys of columns that a narrow terminal leaves out, in this order.
    parts : list of Part
        Tables below the first one.
    measurements : list of dict
        Every single measurement, for the JSON only.
    """

    name: str
    title: str
    setting: Settings
    columns: list[tuple[str, str, str]]
    rows: list[Row]
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    dropped: tuple[str, ...] = ()
    parts: list[Part] = field(default_factory=list)
    measurements: list[Row] = field(default_factory=list)

    @property
    def table(self) -> Part:
        """The first table."""
        return Part(self.title, self.columns, self.rows, self.dropped)

    @property
    def held(self) -> bool:
        """Whether every limit was met."""
        return all(bar.held for bar in self.bars)

    @property
    def where(self) -> str:
        """Device, threads, number format and kernels in words."""
        s = self.setting
        kernels = f", {s['kernels']} kernels" if s.get("kernels") else ""
        return f"{s['device']}, {plural(s['threads'], 'thread')}, {s['dtype']}{kernels}"

    @property
    def summary(self) -> str:
        """The final line: whether the limits were met."""
        missed = [bar for bar in self.bars if not bar.held]
        if not self.bars:
            return f"{self.name}: measured; it has no limits ({self.where})"
        limits = plural(len(self.bars), "limit")
        if not missed:
            return f"{self.name}: {'all ' * (len(self.bars) > 1)}{limits} met ({self.where})"
        names = "; ".join(str(bar) for bar in missed)
        return f"{self.name}: {len(missed)} of {limits} missed ({self.where}): {names}"

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data, ready for JSON: NaN becomes null."""
        content = {
            "schema": SCHEMA, "bench": self.name, "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "title": self.title, "setting": self.setting, "rows": self.rows,
            "parts": [{"title": part.title, "rows": part.rows} for part in self.parts],
            "bars": [asdict(bar) | {"held": bool(bar.held)} for bar in self.bars],
            "notes": self.notes, "held": bool(self.held), "summary": self.summary,
        }  # fmt: skip
        if self.measurements:
            content["measurements"] = self.measurements
        return plain_data(content)

    def write(self, path: Path, force: bool = False) -> Path:
        """Write the report as JSON, whole or not at all.

        Raises
        ------
        TraceError
            If the file exists (unless `force`) or cannot be written.
        """
        return write_text(path, json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", force)

    def show(self, console: Console) -> None:
        """Print the table, notes, bars and the summary line on a rich console."""
        print_lines(console, *filter(None, (self.title, self.where)), "")
        self.table.print(console)
        for part in self.parts:
            print_lines(console, "", part.title)
            part.print(console)
        print_lines(console, "", *self.notes, *map(str, self.bars), self.summary)


@dataclass(frozen=True)
class Column:
    """A column of a table on the terminal."""

    heading: str
    right: bool = False
    folds: int | None = None  # if space is short, cells wrap between words, down to this width
    drop_rank: int | None = None  # the column with the lowest number is left out first


def print_table(
    console: Console, columns: list[Column], rows: list[list[str]], headings: bool = True
) -> None:
    """Print a table that is at most as wide as the console.

    If space is short, the table shrinks in this order: headings and folding columns wrap between words, gaps
    shrink from two spaces to one, and columns with a drop rank are left out, as a line below reports. Cells
    are never cut.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    columns = [replace(column, heading=visible(column.heading)) for column in columns]
    rows = [list(map(visible, row)) for row in rows]
    least, most = zip(*(_widths(each, [row[i] for row in rows], headings) for i, each in enumerate(columns)))
    kept = list(range(len(columns)))

    def missing(gap: int) -> int:
        return sum(least[i] for i in kept) + gap * (len(kept) - 1) - console.width

    gap = 2 if missing(2) <= 0 else 1
    left_out = []
    order = sorted((c.drop_rank, i) for i, c in enumerate(columns) if c.drop_rank is not None)
    for _, i in order:
        if missing(gap) <= 0:
            break
        kept.remove(i)
        left_out.append(columns[i].heading)
    room = -missing(gap)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    table.show_header = headings
    widths = dict(zip(kept, (least[i] for i in kept)))
    for i in sorted(kept, key=lambda i: columns[i].folds is None):  # folding columns need the room most
        more = most[i] - widths[i]
        if more <= room or columns[i].folds is not None:
            widths[i] += max(0, min(more, room))
            room -= max(0, min(more, room))
    for i in kept:
        width = widths[i] if missing(gap) <= 0 else None  # too narrow: leave it to rich
        heading = Text(columns[i].heading)
        table.add_column(
            heading, justify="right" if columns[i].right else "left", width=width, overflow="fold"
        )
    for row in rows:
        table.add_row(
            *(Text(folded(row[i], widths[i]) if columns[i].folds is not None else row[i]) for i in kept)
        )
    console.print(table)
    if left_out:
        line = f"left out, because the terminal is {console.width} columns wide: {', '.join(left_out)}"
        console.print(Text(line))


def _widths(column: Column, cells: list[str], headings: bool) -> tuple[int, int]:
    """The least and the greatest useful width of a column, in characters."""
    from rich.cells import cell_len

    def longest(texts: Iterable[str]) -> int:
        return max(map(cell_len, texts), default=1)

    heading = [column.heading] if headings else []
    least = longest(word for text in heading for word in text.split())
    if column.folds is not None and longest(cells) > column.folds:
        least = max(least, column.folds, longest(word for text in cells for word in words(text)))
    else:
        least = max(least, longest(cells))
    return least, max(least, longest(cells), longest(heading))


def words(text: str) -> list[str]:
    """Split a cell into parts that stay on one line: words and whole intervals."""
    return re.findall(r"\[[^\]]*\]|\S+", text)


def folded(text: str, width: int) -> str:
    """Wrap a cell into lines of at most `width` characters, as far as its words allow."""
    from rich.cells import cell_len

    lines: list[str] = []
    for word in words(text):
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return "\n".join(lines)


def _cell(value: Any, form: str) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, Estimate):
        if value.median != value.median:
            return "–"
        bounded = value.low == value.low
        return f"{value.median:.2f}" + (f" [{value.low:.2f}, {value.high:.2f}]" if bounded else "")
    return form.format(value) if form else str(value)
