"""Records a run, cycle by cycle, as it runs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import numpy as np

from specviz import schema
from specviz.errors import TraceError
from specviz.paths import expanded
from specviz.trace.checks import check_lengths, check_new_run, check_words, plain_run
from specviz.trace.files import (
    TOKEN_COLUMNS,
    Record,
    arrow_schema,
    arrow_type,
    check_fits,
    dump,
    encode_pieces,
    partial_of,
    reason,
    write_parquet,
)
from specviz.trace.reading import StoredRun
from specviz.trace.signals import DISTINCT, pack
from specviz.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa
    from filelock import FileLock

BATCH = 256  # cycles that are written at once
WAIT = 2.0  # seconds after which a smaller batch is written, so that a kill loses only a moment
TEXT_COLUMNS = (
    "run", "method", "prompt", "row", "seed", "update", "cycle", "context", "keep", "end", "source",
    "arrival", "reused", "shown", "out_position", "out_token", "out_origin",
)  # fmt: skip
Column: TypeAlias = Any  # an array, or a list of numbers or words
Columns: TypeAlias = dict[str, Column]  # by name; a list column is a pair of entries and each cycle's count


def _flat(values: list[Column]) -> tuple[Column, np.ndarray]:
    """Flatten one value per row (array, list or None); also return each row's length, -1 for None."""
    given = np.array([v is not None for v in values])
    parts = [v for v in values if v is not None]
    if any(isinstance(v, list | tuple) for v in parts):
        parts = [v if isinstance(v, list | tuple) else np.ravel(v).tolist() for v in parts]
        flat: Column = list(chain.from_iterable(parts))
    else:
        flat = np.concatenate(parts, axis=None) if parts else []
    counts = np.full(len(values), -1, np.int64)
    counts[given] = [v.size if isinstance(v, np.ndarray) else len(v) for v in parts]
    return flat, counts


def _array(values: Column, kind: pa.DataType) -> pa.Array:
    """Convert numbers or words to an Arrow array; NaN becomes null."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        return pa.array(values, kind, from_pandas=True)
    if values.dtype == np.float64 and kind == pa.float32():
        values = values.astype(np.float32)  # several times as fast as Arrow's checked cast
    array = pa.array(values, from_pandas=values.dtype.kind == "f")
    return array if array.type == kind else array.cast(kind)


def _lists(flat: Column, counts: np.ndarray, kind: pa.ListType) -> pa.Array:
    """Build a list column from the entries of all rows, in order, and each row's length, -1 for null."""
    import pyarrow as pa

    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(np.maximum(counts, 0), out=offsets[1:])
    if offsets[-1] != len(flat):
        raise ValueError(f"{len(flat)} entries for {offsets[-1]}")
    missing = counts < 0
    mask = pa.array(missing) if missing.any() else None
    return pa.ListArray.from_arrays(offsets, _array(flat, kind.value_type), mask=mask)


class Recorder:
    """Records a run, cycle by cycle.

    During the run, batches of cycles go to an Arrow stream next to the target
    (``_<name>.partial``), so memory stays flat and a kill loses only a moment; `close` turns it into Parquet.

    Parameters
    ----------
    run : dict
        The run's metadata, fields of `schema.RUN_FIELDS`. It may be changed until `close`.
    path : path, optional
        The file to write, ``*.parquet``. None keeps the run in memory.
    record : {"judged", "all", None}
        What the loop chose to keep; None drops everything except the text.
    piece : callable, optional
        Returns the bytes of a token id; called once for each id that occurs.
    force : bool
        Whether an existing file may be replaced.
    saved : pyarrow table, optional
        Cycles of a cut-off run that continues here: they come first, and the files that held them may be
        replaced.

    Raises
    ------
    TraceError
        If the file exists, another run is writing it, or it cannot be written; or if no reader would accept
        the run's metadata.
    """

    def __init__(
        self,
        run: Record,
        path: str | Path | None = None,
        record: str | None = "judged",
        *,
        piece: Callable[[int], bytes] | None = None,
        force: bool = False,
        saved: pa.Table | None = None,
    ) -> None:
        unknown = set(run) - set(schema.RUN_FIELDS)
        if unknown or not isinstance(run.get("run"), str) or not isinstance(run.get("method"), str):
            raise TraceError(f"run metadata needs 'run' and 'method' and no unknown fields {sorted(unknown)}")
        self.run = {**dict.fromkeys(schema.RUN_FIELDS), **run, "schema": schema.VERSION, "record": record}
        check_new_run(self.run)
        self.path = None if path is None else expanded(path, TraceError)
        self.cycles = 0
        self._rows: list[Record] = []
        self._piece = piece
        self._pieces: dict[int, bytes] = {}
        self._prompts = 0  # how many of the run's prompts are written
        self._schema = arrow_schema()
        self._names = {c.name for c in schema.COLUMNS}
        self._kept = self._names if record is not None else set(TEXT_COLUMNS)
        self._signals = {  # names that have occurred
            "node": _words(saved, "signal_name"),
            "cycle": _words(saved, "control_name"),
        }
        self._batches: list[pa.RecordBatch] = []
        self._failed: TraceError | None = None
        self._file: BinaryIO | None = None
        self.closed = False
        self._lock: FileLock | None = None
        if self.path is not None:
            check_fits(self.run)
            self._open(force, saved)
        # Load what the conversion needs now, rather than in the middle of a run.
        _lists(np.zeros(1), np.ones(1, np.int64), arrow_type("list<float>"))
        self._flushed = time.perf_counter()

    @property
    def partial(self) -> Path:
        """Path of the stream that is next to the target during the run."""
        assert self.path is not None
        return partial_of(self.path)

    def _open(self, force: bool, saved: pa.Table | None) -> None:
        """Lock the file, and begin the stream next to it, with the saved cycles if a run is resumed."""
        assert self.path is not None
        if self.path.suffix != ".parquet":
            raise TraceError(f"a trace's file must end in .parquet, but {self.path} does not")
        # A stream with saved cycles is written separately and takes its place once it is complete.
        stream = self.partial if saved is None else self.partial.with_name(f"{self.partial.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = lock(self.path)
            check_absent(self.path, force or saved is not None)
            self._begin(stream)
            if saved is not None:
                for batch in saved.to_batches():
                    self._prepare(batch)()
                os.replace(stream, self.partial)
        except OSError as error:
            self._abandon(stream)
            raise TraceError(f"cannot write {self.path}: {reason(error)}") from error
        except TraceError:
            self._abandon(stream)
            raise

    def _begin(self, stream: Path) -> None:
        """Open the stream and write its header."""
        import pyarrow as pa

        self._file = open(stream, "wb", buffering=0)  # noqa: SIM115
        self._sink = pa.PythonFile(self._file, "w")
        # Prompts can be added during the run, so they are written with the batches.
        self._writer = pa.ipc.new_stream(self._sink, arrow_schema(self.run | {"prompts": None}))
        # An empty batch makes the header reach the file before the first cycle does.
        self._writer.write_batch(pa.RecordBatch.from_pylist([], arrow_schema()))

    def _abandon(self, stream: Path) -> None:
        """Remove a stream that could not begin; what another run has written stays."""
        if self._file is not None:
            self._file.close()
            stream.unlink(missing_ok=True)
        unlock(self._lock)

    def add(self, cycle: Record) -> None:
        """Add one finished cycle.

        Parameters
        ----------
        cycle : dict
            Keys are columns of `schema.COLUMNS`, or those that `schema.column_of` gives for further node
            signals; values are Python scalars, lists or NumPy arrays, top-k arrays also of shape [n, top_k].
            Missing values and NaN become null. The recorder keeps references and converts whole batches
            later: do not change an array after handing it over.

        Raises
        ------
        TraceError
            If the file cannot be written (full disk).
        """
        self._rows.append(cycle)
        if self.due(len(self._rows)):
            self.flush()

    def due(self, held: int) -> bool:
        """Whether `held` cycles should be written: they are many, or a kill would lose more than a moment."""
        late = self._file is not None and time.perf_counter() - self._flushed > WAIT
        return held >= BATCH or late

    def extend(self, columns: Columns, cycles: int) -> None:
        """Add many finished cycles, column by column, and write them.

        Parameters
        ----------
        columns : dict
            Keys as in `add`. Values are one number or word per cycle, and for list
            columns a pair: all entries, one cycle's after another's, and each cycle's count, -1 for null.
            Missing values and NaN become null.
        cycles : int
            Number of cycles.

        Raises
        ------
        TraceError
            If a column is invalid, or the file cannot be written (full disk).
        """
        self.prepare(columns, cycles)()

    def prepare(self, columns: Columns, cycles: int) -> Callable[[], None]:
        """Convert the cycles of `extend`; return the function that writes them, to be called once."""
        self.flush()
        return self._prepare(self._convert(columns, cycles))

    def flush(self) -> None:
        """Write the cycles added so far."""
        if self._failed is not None:
            raise self._failed
        self._flushed = time.perf_counter()
        if rows := self._rows:
            given = set().union(*rows)
            lists = {c.name for c in schema.COLUMNS if c.type.startswith("list<")} | (given - self._names)
            fixed = self._fixed()
            columns = {name: [row.get(name, fixed.get(name)) for row in rows] for name in given}
            batch = self._convert({n: _flat(v) if n in lists else v for n, v in columns.items()}, len(rows))
            self._prepare(batch)()
            self._rows = []

    def _prepare(self, batch: pa.RecordBatch) -> Callable[[], None]:
        prompts = (self.run["prompts"] or [])[self._prompts :]
        new = self._new_pieces(batch, prompts)
        more = {} if self._file is None else {b"pieces": dump(encode_pieces(new)), b"prompts": dump(prompts)}
        return partial(self._write, batch, new, len(prompts), more)

    def _write(
        self, batch: pa.RecordBatch, new: dict[int, bytes], prompts: int, more: dict[bytes, bytes]
    ) -> None:
        if self._file is None:
            self._batches.append(batch)
        else:
            try:
                self._writer.write_batch(batch, custom_metadata=more)
            except OSError as error:
                self._failed = TraceError(
                    f"cannot write {self.path}: {reason(error)}; {self.cycles} cycles are in {self.partial}"
                )
                unlock(self._lock)
                raise self._failed from error
        self._pieces.update(new)
        self._prompts += prompts
        self.cycles += len(batch)

    def _fixed(self) -> Record:
        """Values of columns that are the same in all cycles, unless a cycle gives its own."""
        seed = (self.run.get("sampling") or {}).get("seed")
        run = {"run": self.run["run"], "method": self.run["method"], "seed": seed}
        return run | {"prompt": 0, "row": 0, "update": 0}

    def _convert(self, columns: Columns, cycles: int) -> pa.RecordBatch:
        import pyarrow as pa

        unknown = set(columns) - self._names
        signals = {schema.signal_of(name) or "": columns[name] for name in unknown}
        if "" in signals:
            wrong = sorted(name for name in unknown if schema.signal_of(name) is None)
            raise TraceError(f"a cycle has no columns {wrong}; see specviz.schema.COLUMNS")
        new = {"node": set(signals), "cycle": set(columns.get("control_name", ((), ()))[0]) - {None}}
        for level, names in new.items() if self._kept == self._names else ():
            self._signals[level] |= names
            if len(self._signals[level]) > DISTINCT:
                raise TraceError(f"a run holds at most {DISTINCT} {level} signals besides the fixed columns")
        if signals:
            columns = {n: v for n, v in columns.items() if n not in unknown} | pack(signals, cycles)
        fixed = self._fixed()
        arrays, counts = [], {}
        for field in self._schema:
            name = field.name
            try:
                if name not in self._kept or (name not in columns and fixed.get(name) is None):
                    array = pa.nulls(cycles, field.type)
                elif name not in columns:
                    array = pa.repeat(pa.scalar(fixed[name], field.type), cycles)
                elif pa.types.is_list(field.type):
                    flat, counts[name] = columns[name]
                    array = _lists(flat, counts[name], field.type)
                else:
                    array = _array(columns[name], field.type)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise TraceError(f"column {name} cannot hold the value of a cycle: {error}") from error
            words = array.values if pa.types.is_list(field.type) else array
            if words.type == pa.string():
                check_words(name, words, "the record")
            arrays.append(array)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        check_lengths(counts, batch.column("top_k"), "the record")
        return batch

    def _new_pieces(self, batch: pa.RecordBatch | None, prompts: list[Record]) -> dict[int, bytes]:
        """Bytes of the tokens that occur here for the first time."""
        if self._piece is None:
            return {}
        seen = {token for prompt in prompts for token in prompt.get("tokens") or []}
        columns = [] if batch is None else [batch.column(name).values for name in TOKEN_COLUMNS]
        for values in columns:
            if len(values):
                seen.update(np.unique(values.drop_null().to_numpy()).tolist())
        return {token: self._piece(token) for token in seen if token not in self._pieces}

    def close(self, complete: bool = True, stopped: str | None = None) -> Trace:
        """End the run and return its trace.

        Parameters
        ----------
        complete : bool
            Whether the run ended normally.
        stopped : str, optional
            Why it did not.

        Raises
        ------
        TraceError
            If the file cannot be written; the cycles written so far stay in ``_<name>.partial``.
        """
        if self.closed:
            raise TraceError("the recorder is closed")
        self.closed = True
        try:
            return self._close(complete, stopped)
        finally:
            unlock(self._lock)

    def _close(self, complete: bool, stopped: str | None) -> Trace:
        import pyarrow as pa

        try:
            self.flush()
        finally:
            if self._file is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    if self._failed is None:
                        self._writer.close()
                self._file.close()
        self._pieces.update(self._new_pieces(None, (self.run["prompts"] or [])[self._prompts :]))
        self.run |= {"complete": complete, "stopped": stopped, "pieces": encode_pieces(self._pieces)}
        if self.path is None:
            table = pa.Table.from_batches(self._batches, self._schema)
            return Trace([StoredRun(plain_run(self.run), table=table)])
        try:
            with pa.OSFile(str(self.partial)) as file, pa.ipc.open_stream(file) as stream:
                write_parquet(self.path, self.run, stream)
            trace = Trace.open(self.path)
            self.partial.unlink(missing_ok=True)
        except (OSError, pa.ArrowException, TraceError) as error:
            opens = ""
            with contextlib.suppress(TraceError):
                Trace.open(self.partial)
                opens = ", which can also be opened"
            raise TraceError(
                f"cannot write {self.path}: {reason(error)}; the run is in {self.partial}{opens}"
            ) from error
        return trace


def _words(table: pa.Table | None, name: str) -> set[str]:
    """The distinct words of a table's list column."""
    import pyarrow.compute as pc

    if table is None:
        return set()
    return set(pc.unique(pc.list_flatten(table.column(name))).to_pylist()) - {None}


def check_absent(path: Path, force: bool) -> None:
    """Refuse to replace a finished run, or the saved part of one that was cut off.

    Raises
    ------
    TraceError
        The message says what can be done.
    """
    if force:
        return
    if path.exists():
        raise TraceError(f"{path} exists: choose another path, or overwrite it with --force (force=True)")
    partial = partial_of(path)
    if begun(partial):
        raise TraceError(
            f"{partial} exists from an interrupted run: look at it (specviz show), continue it (--resume, "
            f"resume=True), or move it away"
        )


def begun(partial: Path) -> bool:
    """Whether a cut-off run has saved something; a run cut off before that leaves an empty stream."""
    return partial.exists() and partial.stat().st_size > 0


def lock(path: Path) -> FileLock | None:
    """Keep other runs from writing this file; None if the file system does not support locks.

    Raises
    ------
    TraceError
        If another run is writing it.
    """
    from filelock import FileLock, Timeout

    held = FileLock(path.with_name(f"_{path.name}.lock"), timeout=0, thread_local=False)
    try:
        held.acquire()
    except Timeout:
        raise TraceError(
            f"{path} is being written by another run: wait until it ends or choose another path"
        ) from None
    except NotImplementedError:
        return None
    return held


def unlock(held: FileLock | None) -> None:
    """Release the lock, so that other runs can write the file."""
    if held is not None:
        with contextlib.suppress(OSError):
            Path(held.lock_file).unlink(missing_ok=True)
        held.release()
