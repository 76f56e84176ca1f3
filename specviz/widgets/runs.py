"""Table of a folder's traces: sort, search and filter them, open one in the player, compare or race them."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import ipywidgets
import traitlets as t
from anywidget import AnyWidget

from specviz import metrics
from specviz.errors import TraceError
from specviz.escape import visible
from specviz.paths import expanded
from specviz.trace import Trace
from specviz.trace.files import PARTIAL
from specviz.view.difference import diff
from specviz.view.picture import name_of, prompts
from specviz.widgets.assets import script, style
from specviz.widgets.columns import Json
from specviz.widgets.lanes import fields
from specviz.widgets.player import player
from specviz.widgets.race import Race
from specviz.widgets.stateful import error_line

if TYPE_CHECKING:
    import pandas as pd

MOST_FILES = 2000  # maximum number of files listed; a note tells if there are more
AT_ONCE = 40  # files that are read before the table is shown; a thread reads the others
UPLOAD_LIMIT = 64 << 20  # maximum size of a dropped file in bytes
TRACE = re.compile(r"[^.].*\.parquet(" + re.escape(PARTIAL) + ")?")
# The table's columns: key, heading, digits (None: text), meaning.
COLUMNS: list[tuple[str, str, int | None, str]] = [
    ("file", "file", None, "the trace's file"),
    ("method", "method", None, "the decoding method"),
    ("model", "model", None, "the target"),
    ("draft", "drafter", None, "the draft model, if any"),
    ("exactness", "exactness", None, "whether the text is the target's own"),
    ("prompts", "prompts", 0, "how many prompts were decoded"),
    ("tokens", "tokens", 0, "tokens of the final texts"),
    ("tau", "τ", 2, "tokens emitted per cycle, including the bonus token"),
    ("tokens_per_second", "tokens/s", 1, "tokens per second, without the prefill"),
    ("created", "recorded", None, "when the run began, UTC"),
    ("state", "state", None, "whether the run finished by itself"),
]


@dataclass
class Listed:
    """A file of the table.

    Parameters
    ----------
    name : str
        Name shown in the table.
    path : Path
    uploaded : bool
        Whether it was dropped into the page and is stored in a temporary folder.
    """

    name: str
    path: Path
    uploaded: bool = False

    def row(self) -> Json:
        """Build the file's row of the table; for a file that is not a trace, one line that says why."""
        # dropped files may share a name, but their names in the temporary folder are unique
        own = f"uploaded {self.path.name}" if self.uploaded else f"folder {visible(self.name)}"
        about: Json = {"id": own, "file": visible(self.name), "uploaded": self.uploaded, "problem": ""}
        try:
            return about | summary_row(Trace.open(self.path))
        except Exception as error:  # any failure to read a broken file is shown in its row
            return about | {"problem": visible(error_line(error).replace(str(self.path), self.name))}


def summary_row(trace: Trace) -> Json:
    """Names and metrics of a trace of one run, by the keys of `COLUMNS`."""
    run = trace.run
    numbers = {
        "tokens": metrics.output(trace),
        "tau": metrics.tau(trace),
        "tokens_per_second": metrics.tokens_per_second(trace),
    }
    texts = {
        "method": run["method"],
        "model": name_of(run["model"]),
        "draft": name_of(run["draft"]),
        "exactness": run["exactness"],
        "created": str(run["created"] or "")[:19].replace("T", " "),
        "state": "whole" if run["complete"] else f"cut off: {run['stopped'] or 'no end was written'}",
    }
    return {
        **{name: visible(str(value or "")) for name, value in texts.items()},
        "prompts": len(run["prompts"] or []),
        **{name: None if value != value else float(value) for name, value in numbers.items()},
    }


def trace_files(folder: Path) -> list[Path]:
    """List the trace files in a folder and its subfolders, sorted; links to folders are not followed."""
    paths = []
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        paths += [Path(place, name) for name in sorted(names) if TRACE.fullmatch(name)]
        if len(paths) > MOST_FILES:
            break
    return sorted(paths)


def unused(folder: Path, stem: str) -> Path:
    """Path of a new trace file in a folder: ``stem.parquet``, or with the next free number."""
    names = (f"{stem}{'' if n == 1 else f' ({n})'}.parquet" for n in count(1))
    return next(path for name in names if not (path := folder / name).exists())


class Table(AnyWidget):
    """The table's front-end: takes rows as JSON and reports pressed buttons and dropped files."""

    _esm = script("runs")
    _css = style("runs")
    folder = t.Unicode().tag(sync=True)
    columns: t.List[Json] = t.List().tag(sync=True)
    rows: t.List[Json] = t.List().tag(sync=True)
    reading = t.Bool(False).tag(sync=True)  # whether more rows follow
    chosen = t.List(t.Int()).tag(sync=True)
    note = t.Unicode().tag(sync=True)
    error = t.Unicode().tag(sync=True)
    limit = t.Int(UPLOAD_LIMIT).tag(sync=True)
    theme = t.Enum(["auto", "light", "dark"], "auto").tag(sync=True)


class Runs(ipywidgets.VBox):
    """A folder's traces as a table; created by `runs`.

    ``table`` holds the rows; ``play``, ``diff`` and ``race`` show files by their row number.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.panel = Table(folder=visible(str(folder)), columns=[list(each) for each in COLUMNS])
        self.panel.on_msg(self._on_message)
        self._files: list[Listed] = []
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._upload: Upload | None = None
        self._reading: threading.Thread | None = None
        self._readings, self._lock = 0, threading.Lock()  # counts them: an earlier one adds no more rows
        self._uploads = count()
        super().__init__([self.panel])
        self.refresh()

    # ------------------------------------------------------------ rows

    def refresh(self) -> None:
        """Read the folder again; files dropped into the page stay listed."""
        paths = trace_files(self.folder)
        uploaded = [each for each in self._files if each.uploaded]
        files = [Listed(str(p.relative_to(self.folder)), p) for p in paths[:MOST_FILES]]
        more = f"Only the first {MOST_FILES} files are listed." if len(paths) > MOST_FILES else ""
        with self._lock:
            self._readings += 1
            self._files = [*files, *uploaded]
            none = f"{visible(str(self.folder))} holds no traces (*.parquet)."
            self.panel.note = more if self._files else none
            self.panel.chosen = []
            self.panel.reading = len(self._files) > AT_ONCE  # before the rows: later ones keep their marks
            self.panel.rows = [each.row() for each in self._files[:AT_ONCE]]
        if len(self._files) > AT_ONCE:
            arguments = list(self._files), self._readings
            self._reading = threading.Thread(target=self._read, args=arguments, daemon=True)
            self._reading.start()

    def _read(self, files: list[Listed], number: int) -> None:
        """Read the rows after the first `AT_ONCE`, in portions of that size."""
        for start in range(AT_ONCE, len(files), AT_ONCE):
            rows = [each.row() for each in files[start : start + AT_ONCE]]
            with self._lock:
                if self._readings != number:  # the folder was read again in the meantime
                    return
                self.panel.rows = [*self.panel.rows, *rows]
                self.panel.reading = start + AT_ONCE < len(files)

    def _wait(self) -> None:
        """Wait until all of the folder's rows are read."""
        if self._reading is not None:
            self._reading.join()

    @property
    def table(self) -> pd.DataFrame:
        """One row per file: names, metrics, and in ``problem`` the reason if it is not a trace."""
        import pandas as pd

        self._wait()
        names = [*(key for key, *_ in COLUMNS), "problem"]
        return pd.DataFrame(self.panel.rows, columns=names)

    # ------------------------------------------------------------ views below the table

    def trace(self, number: int) -> Trace:
        """Open the trace in a row of the table, counted from 0.

        Raises
        ------
        TraceError
            If there is no such row, or its file is not a trace.
        """
        if not 0 <= number < len(self._files):
            raise TraceError(f"there is no row {number}; the table has {len(self._files)}")
        return Trace.open(self._files[number].path)

    def play(self, number: int) -> None:
        """Show a trace in the player below the table."""
        view = player(self.trace(number))
        view.theme = self.panel.theme
        self._below([view], [number])

    def diff(self, one: int, other: int) -> None:
        """Compare two traces of the same prompts side by side below the table."""
        a, b = self.trace(one), self.trace(other)
        shared = [p for p in prompts(a) if p in prompts(b)]
        if not shared:
            raise TraceError("the two traces share no prompt: a difference needs two decodes of one prompt")
        place = ipywidgets.HTML(diff(a, b, prompt=shared[0])._repr_html_())
        given = a.prompts.drop_duplicates("prompt").set_index("prompt")["kind"].dropna()
        kinds = {p: kind if isinstance(kind, str) else f"{kind:g}" for p, kind in given.items()}
        choice = ipywidgets.Dropdown(
            options=[(f"prompt {p + 1}" + (f": {kinds[p]}" if p in kinds else ""), p) for p in shared],
            description="Prompt", layout={"width": "20em"},
        )  # fmt: skip

        def show(change: t.Bunch) -> None:
            try:
                place.value, self.panel.error = diff(a, b, prompt=change["new"])._repr_html_(), ""
            except TraceError as error:
                self.panel.error = error_line(error)

        choice.observe(show, "value")
        self._below([choice, place] if len(shared) > 1 else [place], [one, other])

    def race(self, numbers: Iterable[int]) -> None:
        """Race traces of the same prompts below the table."""
        chosen = list(numbers)
        view = Race(fields([self.trace(number) for number in chosen]))
        view.theme = self.panel.theme
        self._below([view], chosen)

    children: tuple[ipywidgets.DOMWidget, ...]

    def _below(self, views: list[ipywidgets.DOMWidget], numbers: list[int]) -> None:
        before = self.children[1:]
        self.children = (self.panel, *views)
        self.panel.chosen = numbers
        for old in before:
            old.close()

    # ------------------------------------------------------------ messages from the page

    def _on_message(self, _: AnyWidget, content: Json, buffers: list[memoryview]) -> None:
        """Handle a pressed button or a received part of a dropped file."""
        if content.get("do") != "upload":  # the page sends "clear" before the first file of a batch
            self.panel.error = ""
        try:
            numbers = [int(n) for n in content.get("rows", [])]
            match content.get("do"):
                case "open":
                    self.play(numbers[0])
                case "diff":
                    self.diff(*numbers[:2])
                case "race":
                    self.race(numbers)
                case "refresh":
                    self.refresh()
                case "save":
                    self.save(numbers[0])
                case "upload":
                    self._receive(content, buffers)
        except Exception as error:  # any failure is shown as one line above the table
            self.panel.error = "\n".join(filter(None, [self.panel.error, error_line(error)]))

    def _receive(self, content: Json, buffers: list[memoryview]) -> None:
        """Receive a part of a dropped file; once complete, the file is checked and shown."""
        if content.get("first"):
            self._upload = Upload(visible(str(content.get("name", "")))[:200])
        upload = self._upload
        if upload is None:
            return
        try:
            for part in buffers:
                upload.add(part)
        except TraceError:
            self._upload = None
            self.panel.send({"upload": "refused"})
            raise
        if not content.get("last"):
            self.panel.send({"upload": "more"})
            return
        self._upload = None
        self.panel.send({"upload": "done"})
        self.receive(upload.name, bytes(upload.data))

    def receive(self, name: str, data: bytes) -> None:
        """Add a dropped file to the table, keep it in a temporary folder until it is saved, and play it.

        Raises
        ------
        TraceError
            If it is larger than `UPLOAD_LIMIT` or is not a trace.
        """
        if len(data) > UPLOAD_LIMIT:
            raise TraceError(
                f"{name} is larger than {UPLOAD_LIMIT >> 20} MiB: put it into the folder instead"
            )
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="specviz-")
        self._wait()  # otherwise its row would not be the last one
        number = len(self._files)
        end = PARTIAL if name.endswith(PARTIAL) else ""
        path = Path(self._scratch.name, f"{next(self._uploads)}.parquet{end}")
        path.write_bytes(data)
        each = Listed(name, path, uploaded=True)
        row = each.row()
        if row["problem"]:
            path.unlink()
            raise TraceError(row["problem"])
        self._files.append(each)
        self.panel.note = ""
        self.panel.rows = [*self.panel.rows, row]
        self.play(number)

    def save(self, number: int) -> Path:
        """Save a dropped trace in the folder under its own name, with unsafe characters replaced.

        If that name is in use, it gets a number: ``name (2).parquet``.

        Raises
        ------
        TraceError
            If there is no such row, or the folder cannot be written.
        """
        trace = self.trace(number)
        self._wait()
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", self._files[number].name.split(".parquet")[0])[:80].lstrip("_")
        path = trace.save(unused(self.folder, stem or "trace"))
        self._files[number] = Listed(path.name, path)
        rows = list(self.panel.rows)
        rows[number] = self._files[number].row()
        self.panel.rows = rows
        return path

    def close(self) -> None:
        """Delete the dropped files and close the widget with its views: an open one would keep its traces."""
        if self._scratch is not None:
            self._scratch.cleanup()
        children = self.children
        super().close()
        for each in children:
            each.close()


class Upload:
    """A file that is received in parts."""

    def __init__(self, name: str) -> None:
        self.name, self.data = name or "trace.parquet", bytearray()

    def add(self, part: memoryview) -> None:
        """Append one part.

        Raises
        ------
        TraceError
            If the file becomes larger than `UPLOAD_LIMIT`.
        """
        if len(self.data) + len(part) > UPLOAD_LIMIT:
            raise TraceError(f"{self.name} is larger than {UPLOAD_LIMIT >> 20} MiB: put it into the folder")
        self.data += part


def runs(folder: str | Path = ".") -> Runs:
    """Show the traces of a folder as a table in a notebook: sort, search, filter, open and compare them.

    Parameters
    ----------
    folder : path
        The table lists the ``*.parquet`` files in this folder and its subfolders, and runs that are in
        progress or were interrupted. For a file that is not a trace, the row says why.

    Returns
    -------
    Runs
        An ipywidgets box. Opening a row shows its player; two rows of one prompt can be compared with
        `specviz.diff`, and several can be raced. A dropped trace is checked like any other file and kept in a
        temporary folder until it is saved. ``table`` holds the rows as a data frame.

    Raises
    ------
    TraceError
        If the folder does not exist or is a file.
    """
    path = expanded(folder, TraceError)
    if not path.is_dir():
        raise TraceError(f"{path} is {'a file: open it with specviz.open' if path.exists() else 'missing'}")
    return Runs(path)
