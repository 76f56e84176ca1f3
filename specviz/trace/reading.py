"""Opens a run's file, or what a cut-off run left; nothing in it is ever executed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from specviz import schema
from specviz.errors import TraceError
from specviz.files import checked, parsed
from specviz.trace.checks import (
    DATA_LIMIT,
    check_run,
    check_schema,
    check_size,
    load_metadata,
    plain_message,
)
from specviz.trace.files import METADATA_LIMIT, Record, arrow_schema, reason

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def _coded(field: pa.Field) -> pa.Field:
    """The field with words as dictionary codes, which are small and become pandas categories."""
    import pyarrow as pa

    words = pa.dictionary(pa.int32(), pa.string())
    kind = field.type
    if pa.types.is_list(kind) and kind.value_type == pa.string():
        kind = pa.list_(words)
    if field.name == "seed":
        kind = pa.uint64()
    return pa.field(field.name, words if kind == pa.string() else kind)


class StoredRun:
    """One run's metadata and columns; columns are read when first needed."""

    def __init__(
        self, run: Record, *, table: pa.Table | None = None, path: Path | None = None,
        written: dict[bytes, bytes] | None = None,
    ) -> None:  # fmt: skip
        self.run = run
        self.path = path
        self._table = table
        self._written = written  # the file's own metadata: columns read later must be of the same run
        self._read: dict[str, pa.ChunkedArray] = {}

    @cached_property
    def pieces(self) -> dict[int, bytes]:
        from specviz.trace.metadata import pieces_of

        return pieces_of(self.run["pieces"] or {})

    @property
    def where(self) -> str:
        return str(self.path or "the trace")

    def columns(self, names: Sequence[str]) -> pa.Table:
        """Return these columns of all cycles, checked."""
        import pyarrow as pa

        if self._table is not None:
            table = self._table.select(list(names))
        else:
            missing = [n for n in names if n not in self._read]
            if missing:
                assert self.path is not None
                with _parquet(self.path, words=True) as file:
                    if self._written is not None and file.metadata.metadata != self._written:
                        raise TraceError(f"{self.path} was replaced since it was opened: open it again")
                    # One group at a time: Arrow cannot join lists of dictionary codes across groups.
                    groups = [file.read_row_group(i, missing) for i in range(file.num_row_groups)]
                new = pa.concat_tables(groups) if groups else arrow_schema().empty_table().select(missing)
                new.validate(full=True)
                new = _with_added(new, missing, sum(group.num_rows for group in groups))
                new = _renamed(new, self.run)
                self._read |= {name: new.column(name) for name in missing}
            table = pa.table({name: self._read[name] for name in names})
        return table.cast(pa.schema([_coded(table.field(name)) for name in names]), safe=False)


def _renamed(table: pa.Table, run: Record) -> pa.Table:
    """Replace an older version's words with today's; UniSpec had two for nodes that its budget left out."""
    import pyarrow as pa

    for name, words in schema.RENAMED.items():
        if name not in table.column_names:
            continue
        words = words | ({"unsent": "below_budget"} if run["method"] == "unispec" else {})
        chunks = []
        for chunk in table.column(name).chunks:
            coded = chunk.values
            coded = coded if pa.types.is_dictionary(coded.type) else coded.dictionary_encode()
            today = pa.array([words.get(word, word) for word in coded.dictionary.to_pylist()], pa.string())
            flat = today.take(coded.indices).dictionary_encode()
            chunks.append(pa.ListArray.from_arrays(chunk.offsets, flat, mask=chunk.is_null()))
        if chunks:
            at = table.column_names.index(name)
            table = table.set_column(at, name, pa.chunked_array([c.cast(chunks[0].type) for c in chunks]))
    return table


def _with_added(table: pa.Table, names: Sequence[str], rows: int) -> pa.Table:
    """Add those of the columns `names` that an earlier specviz did not write, as nulls."""
    import pyarrow as pa

    absent = [f for f in arrow_schema() if f.name in names and f.name not in table.column_names]
    for field in absent:
        table = (
            table.append_column(field, pa.nulls(rows, field.type))
            if table.num_columns
            else pa.table({field.name: pa.nulls(rows, field.type)})
        )
    return table


@contextlib.contextmanager
def as_trace_error(path: Path) -> Iterator[None]:
    """Turn any error while a broken file is read into a `TraceError` of one line."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise TraceError(f"{path} cannot be read as a trace: {reason(error)}") from error


@contextlib.contextmanager
def _parquet(path: Path, words: bool = False) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, if its footer is small.

    With `words`, strings are read as dictionary codes, so that a long string repeated a million times is
    stored once.
    """
    import pyarrow.parquet as pq

    with as_trace_error(path):
        with open(path, "rb") as raw:
            raw.seek(0, os.SEEK_END)
            size = raw.tell()
            raw.seek(max(0, size - 8))
            tail = raw.read(8)
        if size < 12 or tail[4:] != b"PAR1":
            raise TraceError(f"{path} is not a complete Parquet file (truncated, or another kind of file)")
        if int.from_bytes(tail[:4], "little") > min(METADATA_LIMIT, size):
            raise TraceError(
                f"{path}: its metadata is longer than the file or than {METADATA_LIMIT >> 20} MiB"
            )
        limits = {"thrift_string_size_limit": METADATA_LIMIT, "thrift_container_size_limit": 1_000_000}
        with pq.ParquetFile(path, **limits) as file:
            if not words:
                yield file
                return
            leaves = [file.schema.column(i).path for i in range(len(file.schema))]
        texts = {c.name for c in schema.COLUMNS if "string" in c.type}
        coded = [leaf for leaf in leaves if leaf.split(".")[0] in texts]
        with pq.ParquetFile(path, read_dictionary=coded, **limits) as file:
            yield file


def open_file(path: Path) -> StoredRun:
    with _parquet(path) as file:
        written = file.metadata.metadata
        run = load_metadata(written, str(path))
        check_schema(file.schema_arrow, str(path))
        check_size(file, path)
    return StoredRun(run, path=path, written=written)


def open_partial(path: Path) -> StoredRun:
    """Open the stream of a run that was cut off, up to its last complete batch."""
    import pyarrow as pa

    from specviz.trace.metadata import BatchExtra

    with as_trace_error(path):
        size = path.stat().st_size
        if size > DATA_LIMIT:
            raise TraceError(f"{path} is larger than {DATA_LIMIT >> 30} GiB")
        if not size:
            raise TraceError(f"{path} holds nothing yet: its run had not finished a cycle")
        content = pa.py_buffer(path.read_bytes())
        with contextlib.suppress(pa.ArrowInvalid, OSError), pa.BufferReader(content) as file:
            for message in pa.ipc.MessageReader.open_stream(file):  # ends where the file was cut off
                if not plain_message(message.metadata.to_pybytes()):
                    raise TraceError(f"{path} was not written by a run (compressed, or other data)")
        with pa.BufferReader(content) as file, pa.ipc.open_stream(file) as stream:
            run = load_metadata(stream.schema.metadata, str(path))
            check_schema(stream.schema, str(path))
            pieces, prompts = dict(run["pieces"] or {}), list(run["prompts"] or [])
            batches = []
            while True:
                try:
                    batch, extra = stream.read_next_batch_with_custom_metadata()
                    if not len(batch):  # Arrow does not validate its offsets, which can point anywhere
                        continue
                    batch.validate(full=True)
                except (StopIteration, pa.ArrowException, OSError):
                    break
                if batch.get_total_buffer_size() > size:
                    raise TraceError(f"{path}: a batch is longer than the file")
                if extra is not None:
                    more = {
                        name: parsed(extra.get(name.encode(), empty), f"{path}: a batch's {name}")
                        for name, empty in (("pieces", b"{}"), ("prompts", b"[]"))
                    }
                    added = checked(BatchExtra, more, f"{path}: a batch's metadata")
                    pieces.update(added["pieces"])
                    prompts.extend(added["prompts"])
                batches.append(batch)
            table = pa.Table.from_batches(batches, stream.schema).replace_schema_metadata(None)
            table = _renamed(_with_added(table, schema.ADDED, len(table)), run)
    if run["complete"] is None:
        run |= {"complete": False, "stopped": "cut off"}
    run = check_run(run | {"pieces": pieces, "prompts": prompts}, str(path))
    return StoredRun(run, table=table, path=path)
