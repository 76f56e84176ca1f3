"""A run as one small Parquet file, with its rows and environments, for others to compare with.

A row is one contender's decode of one prompt. It holds a digest of the text, which is enough to tell whether
two texts are equal: prompts and answers may be under a licence that forbids redistribution. The file's
metadata hold the plan, the environments and the versions. Reading needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from typing_extensions import TypedDict

from specviz.errors import ParameterError, TraceError
from specviz.files import checked, parsed, write_bytes
from specviz.measure.report import Entry, Row, Settings
from specviz.measure.rows import Results
from specviz.measure.schema import FailedRow, Plain, RowEnvironment, RunFile, Text, TimedRow, UntimedRow
from specviz.paths import expanded, folder
from specviz.replays.cells import Provenance
from specviz.replays.replays import Replays, of_content

if TYPE_CHECKING:
    import pyarrow as pa

    from specviz.trace import Trace

SCHEMA = 1
KINDS = ("recorded run", "recorded replays")
PROVENANCE = tuple(field.name for field in fields(Provenance))
HEX = re.compile(r"[0-9a-f ]*")
KEY = b"specviz"  # of the file's metadata
SUFFIX = ".parquet"
LEFT_OUT = ("text", "memory", "wall_seconds", "started", "parameters", "model", "method", "draft", "suite")
REMEDY = "the file is damaged: get it from the repository again or record the run again"


class About(RunFile):
    """The metadata of a recorded run."""

    specviz: Literal["recorded run"]
    schema: Literal[1]
    name: Text
    environments: dict[Text, RowEnvironment]


class RecordedReplays(TypedDict):
    """The metadata of recorded replays; each table is validated like a replay."""

    tables: list[dict[str, Plain]]
    left: dict[Text, Text]


def read(path: Path) -> tuple[pa.Table, Settings]:
    """Read a recorded file's rows and metadata.

    Raises
    ------
    TraceError
        If it is not a recorded file, is damaged or has another schema.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or "it is not a complete Parquet file"
        raise TraceError(f"cannot read {path}: {why}") from None
    about = parsed((table.schema.metadata or {}).get(KEY, b"{}"), str(path), REMEDY)
    if not isinstance(about, dict) or about.get("specviz") not in KINDS:
        raise TraceError(f"{path} is not a recorded run: specviz.replays.recorded.write makes one")
    if about.get("schema") != SCHEMA:
        raise TraceError(f"{path} has a schema that this version of specviz cannot read")
    return table, about


class Recorded(Results):
    """A recorded run: tables, failures and notes as for a run's folder, but no prompts, texts or traces.

    Parameters
    ----------
    path : str or Path
        The Parquet file.

    Raises
    ------
    TraceError
        If it is not a recorded run, is damaged or has another schema.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        table, about = read(self.path)
        if about["specviz"] != KINDS[0]:
            raise TraceError(f"{self.path} holds replays, not a run")
        checked(About, about, str(self.path), REMEDY)
        self.name: str = about["name"]
        self._settle(about["plan"], about["created"])
        self._environments: dict[str, Settings] = about["environments"]
        cells = {cell["cell"]: cell for cell in self.cells}
        self._rows: dict[str, Row] = {}
        for row in table.to_pylist():
            place, words = row.get("cell"), row.pop("digest", None)
            cell = cells.get(place, {}) if isinstance(place, int) else {}
            row |= {name: cell.get(name) for name in ("model", "method", "draft", "parameters", "suite")}
            if not isinstance(words, str) or not HEX.fullmatch(words):
                raise TraceError(f"{self.path} has a row without a digest of its text: {REMEDY}")
            row["ids"] = [[int(word, 16)] for word in words.split()]
            kind = FailedRow if row.get("error") is not None else TimedRow if row.get("timed") else UntimedRow
            row = dict(checked(kind, row, str(self.path), REMEDY))
            self._rows[key_of_row(row)] = row
        if not self._rows.keys() <= self.wanted.keys():
            raise TraceError(f"{self.path} has rows that are not in its plan: {REMEDY}")

    @property
    def done(self) -> set[str]:
        """Names of the recorded rows."""
        return set(self._rows)

    @property
    def environments(self) -> dict[str, Settings]:
        """Environments of the rows by digest: device, processor, threads, number format, clock, versions."""
        return self._environments

    def records(self) -> list[Row]:
        """Every row, in order of cells, rounds and prompts; ``ids`` is a digest, one number per output."""
        return [self._rows[key] for key in self.wanted if key in self._rows]

    def prompts(self, suite: str) -> list[Entry]:
        """Raise an error, as a recorded run has no prompts.

        Raises
        ------
        ParameterError
        """
        raise ParameterError(f"{self.path.name} keeps no prompts; specviz.replays.recordings.plan has them")

    def trace(self, cell: int, prompt: int, round: int = 0) -> Trace:
        """Raise an error, as a recorded run has no traces.

        Raises
        ------
        TraceError
        """
        raise TraceError(f"{self.path.name} keeps no traces: run its plan with traces = true")


def key_of_row(row: Row) -> str:
    """Name of a row within its run."""
    from specviz.measure.rows import key_of

    return key_of(row["cell"], row["round"], row["prompt"])


def digest(ids: list[list[int]]) -> str:
    """Digest of a text's outputs: a word of eight hexadecimal digits for each."""
    return " ".join(hashlib.sha256(json.dumps(each).encode()).hexdigest()[:8] for each in ids)


def write(results: Results, path: str | Path, name: str, force: bool = False) -> Path:
    """Record a run: the prompts that every contender has finished, as one Parquet file.

    Parameters
    ----------
    results : Results
        A run's folder, finished or not.
    path : str or Path
    name : str
        Name of the run: one that `specviz.replays.recordings.plan` takes, or another.

    Raises
    ------
    TraceError
        If nothing is complete, or the file exists (unless `force`).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    every = results.records()
    suites = {cell["cell"]: cell["suite"] for cell in results.cells}
    of = Counter(suites.values())
    finished = Counter((row["round"], row["prompt"], suites[row["cell"]]) for row in every)
    rows = [
        row
        for row in every
        if finished[row["round"], row["prompt"], suites[row["cell"]]] == of[suites[row["cell"]]]
    ]
    if not rows:
        raise TraceError(f"{results.path} has no prompt that every contender finished")
    left_out = (*LEFT_OUT, "ids")
    kept = [
        {"written": row.get("tokens")}  # for rows that do not separate padding
        | {k: v for k, v in row.items() if k not in left_out}
        | {"digest": digest(row.get("ids") or [])}
        for row in rows
    ]
    used = {row.get("environment") for row in kept}
    about = {
        "specviz": "recorded run", "schema": SCHEMA, "name": name, "created": results.created,
        "plan": results.plan,
        "environments": {key: place for key, place in results.environments.items() if key in used},
    }  # fmt: skip
    table = pa.Table.from_pylist(kept).replace_schema_metadata({KEY: json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return write_bytes(Path(path), sink.getvalue().to_pybytes(), force)


def _replays(table: pa.Table, about: Settings, path: Path) -> Replays:
    """Read recorded replays, each validated as its ``replay.json`` would be."""
    checked(RecordedReplays, about, str(path), REMEDY)
    columns = {"table", "keys", "source", *(f"here_{name}" for name in PROVENANCE)}
    if missing := columns - {"source", "here_tried"} - set(table.column_names):  # older files lack it
        raise TraceError(f"{path} lacks the column {min(missing)}: {REMEDY}")
    rows: dict[str, list[Row]] = {}
    for row in table.to_pylist():
        rows.setdefault(row["table"], []).append(row)
    made = []
    for content in about["tables"]:
        sources: list[Row] = []
        cells = []
        for row in rows.get(content.get("table"), []):
            here = {name: row[f"here_{name}"] for name in PROVENANCE if f"here_{name}" in row}
            number = None
            if here["date"] is not None:
                sources += [here] * (here not in sources)
                number = sources.index(here)
            keys = parsed(row["keys"] or "{}", str(path), REMEDY)
            own = {name: value for name, value in row.items() if name not in columns}
            cells.append(checked(dict, keys, str(path), REMEDY) | own | {"source": number})
        made.append(of_content(content | {"sources": sources, "cells": cells}, path, path.parent))
    return Replays(path, made, about["left"])


def results(path: str | Path) -> Results | Replays:
    """Open a run's folder, finished or not, or a file of ``data/runs``: a recorded run, or recorded replays.

    Raises
    ------
    TraceError
        If it is none of these or is damaged.
    """
    path = expanded(path, TraceError)
    if path.suffix != SUFFIX:
        return Results(path)
    table, about = read(path)
    return _replays(table, about, path) if about["specviz"] == KINDS[1] else Recorded(path)


def list_recorded() -> dict[str, Path]:
    """The recorded runs that come with the package, by name."""
    return {path.stem: path for path in sorted(folder("runs").glob(f"*{SUFFIX}"))}
