"""The record of a run: written cycle by cycle, kept in Parquet, read without torch.

`Recorder` takes finished cycles from a loop; `Trace` is what everything else reads. The columns and
their meaning are in `specviz.schema`. A trace file is untrusted data: its types, lengths and numbers
are checked before use, and nothing in it is ever executed.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import contextlib
import json
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from specviz import schema
from specviz.errors import TraceError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

PARTIAL = ".partial"  # what a run's file is called, after its name, while the run goes on
KEY = b"specviz"  # where the run's metadata stands in the file
BATCH = 256  # cycles that are written at once
WAIT = 1.0  # seconds after which fewer are
GROUP_BYTES = 64 << 20  # a row group of the finished file
METADATA_LIMIT = 64 << 20  # bytes of a file's footer or header
DATA_LIMIT = 4 << 30  # bytes a file may need in memory, by its own account ...
SMALL, SWELL = 256 << 20, 1000  # ... and not above SMALL if that is SWELL times its length
WORD_LIMIT = 256  # characters of a word in a column
KEYS = ("run", "method", "prompt", "row", "update", "cycle")
TEXT_COLUMNS: tuple[str, ...] = (
    "run",
    "method",
    "prompt",
    "row",
    "seed",
    "update",
    "cycle",
    "context",
    "keep",
    "end",
)
TEXT_COLUMNS += ("out_position", "out_token", "out_origin")
TOKEN_COLUMNS = ("node_token", "node_top_token", "pred_top_token", "out_token")


def _arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    if name.startswith("list<"):
        return pa.list_(_arrow_type(name[5:-1]))
    plain = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64()}
    return {**plain, "float": pa.float32(), "double": pa.float64(), "bool": pa.bool_()}[name]


def arrow_schema(run: dict[str, Any] | None = None) -> pa.Schema:
    """The record's columns as an Arrow schema, with the run's metadata if given."""
    import pyarrow as pa

    fields = [pa.field(c.name, _arrow_type(c.type)) for c in schema.COLUMNS]
    return pa.schema(fields, {KEY: _dump(run)} if run is not None else None)


def _dump(value: Any) -> bytes:
    def plain(x: Any) -> Any:
        if hasattr(x, "item"):  # a NumPy number
            return x.item()
        if isinstance(x, os.PathLike):
            return os.fspath(x)
        raise TypeError(f"run metadata cannot hold a {type(x).__name__}")

    return json.dumps(value, default=plain, ensure_ascii=False).encode("utf8", "replace")


# ---------------------------------------------------------------- writing


def _lists(values: list[Any], kind: pa.ListType) -> tuple[pa.Array, np.ndarray]:
    """A list column from one value per row (array, list or None; NaN becomes null), and its lengths."""
    import pyarrow as pa

    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return pa.nulls(len(values), kind), np.full(len(values), -1, np.int64)
    parts = [v for v in values if v is not None]
    flat: Any
    if list in kinds or tuple in kinds:
        parts = [v if isinstance(v, list | tuple) else np.ravel(v).tolist() for v in parts]
        flat = list(chain.from_iterable(parts))
        lengths = list(map(len, parts))
    else:
        flat = np.concatenate(parts, axis=None)
        lengths = [v.size for v in parts]
    counts, mask = np.array(lengths, np.int64), None
    if len(parts) < len(values):
        given = np.array([v is not None for v in values])
        counts, mask = np.full(len(values), -1, np.int64), pa.array(~given)
        counts[given] = lengths
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(np.maximum(counts, 0), out=offsets[1:])
    if isinstance(flat, list):
        inner = pa.array(flat, kind.value_type, from_pandas=True)
    else:
        if flat.dtype == np.float64 and kind.value_type == pa.float32():
            flat = flat.astype(np.float32)  # several times as fast as Arrow's checked cast
        inner = pa.array(flat, from_pandas=flat.dtype.kind == "f")
        inner = inner if inner.type == kind.value_type else inner.cast(kind.value_type)
    return pa.ListArray.from_arrays(offsets, inner, mask=mask), counts


class Recorder:
    """Writes down a run, cycle by cycle.

    While the run goes on, batches of cycles go to an Arrow stream beside the target
    (``<path>.partial``), so memory stays flat and a kill loses a moment; `close` turns it into Parquet.

    Parameters
    ----------
    run : dict
        The run's metadata, fields of `schema.RUN_FIELDS`. It stays open to changes until `close`.
    path : path, optional
        The file to write, ``*.parquet``. None keeps the run in memory.
    record : {"judged", "all", None}
        What the loop chose to keep; None drops everything but the text.
    piece : callable, optional
        Bytes of a token id; asked once for each id that occurs.
    force : bool
        Whether an existing file may be replaced.

    Raises
    ------
    TraceError
        If the file exists or cannot be written.
    """

    def __init__(
        self,
        run: dict[str, Any],
        path: str | Path | None = None,
        record: str | None = "judged",
        *,
        piece: Callable[[int], bytes] | None = None,
        force: bool = False,
    ) -> None:
        unknown = set(run) - set(schema.RUN_FIELDS)
        if unknown or not isinstance(run.get("run"), str) or not isinstance(run.get("method"), str):
            raise TraceError(f"run metadata needs 'run' and 'method' and no unknown fields {sorted(unknown)}")
        self.run = {**dict.fromkeys(schema.RUN_FIELDS), **run, "schema": schema.VERSION, "record": record}
        self.path = None if path is None else Path(path)
        self.cycles = 0
        self._rows: list[dict[str, Any]] = []
        self._piece = piece
        self._pieces: dict[int, bytes] = {}
        self._prompts = 0  # how many of the run's prompts are written
        self._schema = arrow_schema()
        self._names = {c.name for c in schema.COLUMNS}
        self._kept = self._names if record is not None else set(TEXT_COLUMNS)
        self._batches: list[pa.RecordBatch] = []
        self._failed: TraceError | None = None
        self._file: Any = None
        self._closed = False
        if self.path is not None:
            self._open(force)
        _lists(
            [np.zeros(1)], _arrow_type("list<float>")
        )  # loads what converting needs now, not in the middle of a run
        self._flushed = time.perf_counter()

    @property
    def partial(self) -> Path:
        """The stream beside the target while the run goes on."""
        assert self.path is not None
        return self.path.with_name(self.path.name + PARTIAL)

    def _open(self, force: bool) -> None:
        import pyarrow as pa

        assert self.path is not None
        if self.path.suffix != ".parquet":
            raise TraceError(f"a trace's file ends in .parquet, {self.path} does not")
        if self.path.exists() and not force:
            raise TraceError(f"{self.path} exists: choose another name, or force to replace it")
        if self.partial.exists() and not force:
            raise TraceError(f"{self.partial} exists (a run that goes on or was cut off): move it, or force")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.partial, "wb" if force else "xb", buffering=0)  # noqa: SIM115
            self._sink = pa.PythonFile(self._file, "w")
            # Prompts can be added while the run goes on, so they go with the batches.
            self._writer = pa.ipc.new_stream(self._sink, arrow_schema(self.run | {"prompts": None}))
            # An empty batch makes the header reach the file before the first cycle does.
            self._writer.write_batch(pa.RecordBatch.from_pylist([], arrow_schema()))
        except OSError as error:
            if self._file is not None:
                self._file.close()
                self.partial.unlink(missing_ok=True)
            raise TraceError(f"cannot write {self.path}: {_reason(error)}") from error

    def add(self, cycle: dict[str, Any]) -> None:
        """Take one finished cycle.

        Parameters
        ----------
        cycle : dict
            Keys are columns of `schema.COLUMNS`; values are Python scalars, lists or NumPy arrays, top-k
            arrays also of shape [n, top_k]. Missing is null, and so is NaN. The recorder keeps references
            and converts whole batches later: do not change an array after handing it over.

        Raises
        ------
        TraceError
            If the file cannot be written (full disk).
        """
        self._rows.append(cycle)
        if len(self._rows) >= BATCH or time.perf_counter() - self._flushed > WAIT:
            self.flush()

    def flush(self) -> None:
        """Write the cycles taken so far."""
        if self._failed is not None:
            raise self._failed
        self._flushed = time.perf_counter()
        if not self._rows:
            return
        batch = self._convert(self._rows)
        prompts = (self.run["prompts"] or [])[self._prompts :]
        new = self._new_pieces(batch, prompts)
        if self._file is None:
            self._batches.append(batch)
        else:
            try:
                more = {b"pieces": _dump(_encode_pieces(new)), b"prompts": _dump(prompts)}
                self._writer.write_batch(batch, custom_metadata=more)
            except OSError as error:
                self._failed = TraceError(
                    f"cannot write {self.path}: {_reason(error)}; {self.cycles} cycles are in {self.partial}"
                )
                raise self._failed from error
        self._pieces.update(new)
        self._prompts += len(prompts)
        self.cycles += len(self._rows)
        self._rows = []

    def _convert(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        import pyarrow as pa

        given: set[str] = set().union(*rows)
        if unknown := given - self._names:
            raise TraceError(f"a cycle has no columns {sorted(unknown)}; see specviz.schema.COLUMNS")
        sampling = self.run.get("sampling") or {}
        fixed = {"run": self.run["run"], "method": self.run["method"], "seed": sampling.get("seed")}
        fixed |= {"prompt": 0, "row": 0, "update": 0}
        arrays, counts = [], {}
        for field in self._schema:
            name = field.name
            try:
                if (name not in given and name not in fixed) or name not in self._kept:
                    array = pa.nulls(len(rows), field.type)
                elif pa.types.is_list(field.type):
                    array, counts[name] = _lists([row.get(name) for row in rows], field.type)
                else:
                    values = [row.get(name, fixed.get(name)) for row in rows]
                    array = pa.array(values, field.type, from_pandas=True)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise TraceError(f"column {name} cannot hold what a cycle gave it: {error}") from error
            arrays.append(array)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        _check_lengths(counts, batch.column("top_k"), "the record")
        return batch

    def _new_pieces(self, batch: pa.RecordBatch, prompts: list[dict[str, Any]]) -> dict[int, bytes]:
        """Pieces of the tokens that occur here for the first time."""
        if self._piece is None:
            return {}
        seen = {token for prompt in prompts for token in prompt.get("tokens") or []}
        for name in TOKEN_COLUMNS:
            values = batch.column(name).values
            if len(values):
                seen.update(np.unique(values.drop_null().to_numpy()).tolist())
        return {token: self._piece(token) for token in seen if token not in self._pieces}

    def close(self, complete: bool = True, stopped: str | None = None) -> Trace:
        """End the run and return its trace.

        Parameters
        ----------
        complete : bool
            Whether the run ended by itself.
        stopped : str, optional
            Why it did not.

        Raises
        ------
        TraceError
            If the file cannot be written; the cycles written so far stay in ``<path>.partial``.
        """
        import pyarrow as pa

        if self._closed:
            raise TraceError("the recorder is closed")
        self._closed = True
        try:
            self.flush()
        finally:
            if self._file is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    if self._failed is None:
                        self._writer.close()
                self._file.close()
        self._pieces.update(self._new_pieces(self._convert([]), (self.run["prompts"] or [])[self._prompts :]))
        self.run |= {"complete": complete, "stopped": stopped, "pieces": _encode_pieces(self._pieces)}
        if self.path is None:
            table = pa.Table.from_batches(self._batches, self._schema)
            return Trace([_Store(_check_run(json.loads(_dump(self.run)), "the run"), table=table)])
        try:
            with pa.OSFile(str(self.partial)) as file, pa.ipc.open_stream(file) as stream:
                _write_parquet(self.path, self.run, stream)
        except (OSError, pa.ArrowException) as error:
            raise TraceError(
                f"cannot write {self.path}: {_reason(error)}; the run is in {self.partial}, which opens too"
            ) from error
        self.partial.unlink(missing_ok=True)
        return Trace.open(self.path)


def _reason(error: BaseException) -> str:
    """What the system said, in words."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error).splitlines()[0][:200]


def _encode_pieces(pieces: dict[int, bytes]) -> dict[str, str]:
    return {str(token): base64.b64encode(piece).decode("ascii") for token, piece in pieces.items()}


def _write_parquet(path: Path, run: dict[str, Any], batches: Iterable[pa.RecordBatch]) -> None:
    """Write a run's file under another name, then rename it: there is never half a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = arrow_schema(run)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(hidden, "wb") as file:
            with pq.ParquetWriter(file, names, compression="zstd") as writer:
                held: list[pa.RecordBatch] = []
                size = 0
                for batch in batches:
                    held.append(batch)
                    size += batch.nbytes
                    if size > GROUP_BYTES:
                        writer.write_table(pa.Table.from_batches(held, names))
                        held, size = [], 0
                writer.write_table(pa.Table.from_batches(held, names))
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    finally:
        hidden.unlink(missing_ok=True)


# ---------------------------------------------------------------- checking


def _check_run(run: Any, where: str) -> dict[str, Any]:
    """The run's metadata, if every field is of the type it should be."""
    if not isinstance(run, dict):
        raise TraceError(f"{where}: the run's metadata is not an object")
    version = run.get("schema")
    if type(version) is not int or version < 1:
        raise TraceError(f"{where}: the run's metadata names no schema version")
    if version > schema.VERSION:
        raise TraceError(
            f"{where} is from a newer specviz (schema {version}; this one reads {schema.VERSION}): upgrade"
        )
    for name, kind in schema.RUN_TYPES.items():
        value = run.get(name)
        if value is None and name not in ("schema", "run", "method"):
            continue
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            raise TraceError(f"{where}: the run's '{name}' is a {type(value).__name__}")
    words = (str, int, type(None))
    for prompt in run.get("prompts") or []:
        whole = isinstance(prompt, dict) and _ids(prompt.get("tokens") or [])
        if not whole or not all(
            isinstance(prompt.get(k), words) for k in ("id", "kind", "language", "length", "turn")
        ):
            raise TraceError(f"{where}: the run's 'prompts' are not what they should be")
    for name in ("model", "draft", "peak_memory"):
        if not all(isinstance(v, (*words, float)) for v in (run.get(name) or {}).values()):
            raise TraceError(f"{where}: the run's '{name}' is not what it should be")
    if not _ids(run.get("eos") or []):
        raise TraceError(f"{where}: the run's 'eos' is not a list of token ids")
    _decode_pieces(run.get("pieces"), where)
    return {name: run.get(name) for name in schema.RUN_FIELDS}


def _ids(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**31 for v in values)


def _decode_pieces(pieces: Any, where: str) -> dict[int, bytes]:
    try:
        if pieces is not None and not isinstance(pieces, dict):
            raise ValueError
        return {int(token): base64.b64decode(text, validate=True) for token, text in (pieces or {}).items()}
    except (ValueError, TypeError, binascii.Error):
        raise TraceError(f"{where}: the token pieces are not base64 by token id") from None


def _load_metadata(metadata: dict[bytes, bytes] | None, where: str) -> dict[str, Any]:
    text = (metadata or {}).get(KEY)
    if text is None:
        raise TraceError(f"{where} is not a specviz trace (its metadata has no '{KEY.decode()}')")
    if len(text) > METADATA_LIMIT:
        raise TraceError(f"{where}: the run's metadata is longer than {METADATA_LIMIT >> 20} MiB")
    try:
        run = json.loads(text)
        if b"\\u" in text:
            json.dumps(run, ensure_ascii=False).encode("utf8")  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        raise TraceError(f"{where}: the run's metadata is not JSON") from None
    return _check_run(run, where)


def _check_schema(found: pa.Schema, where: str) -> None:
    import pyarrow as pa

    for field in arrow_schema():
        index = found.get_field_index(field.name)  # -1 if missing or twice
        if index < 0:
            raise TraceError(f"{where}: column '{field.name}' is missing or stands there twice")
        kind = found.field(index).type
        inner = kind.value_type if pa.types.is_list(kind) else kind
        if isinstance(inner, pa.DictionaryType):
            kind = pa.list_(inner.value_type) if pa.types.is_list(kind) else inner.value_type
        if isinstance(inner, pa.BaseExtensionType) or kind != field.type:
            raise TraceError(f"{where}: column '{field.name}' is {str(kind)[:60]}, not {field.type}")


def _sizes(column: Any) -> np.ndarray:
    """Length of each row's list, -1 for null."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_value_length(column), -1).to_numpy().astype(np.int64)


def _check_lengths(sizes: dict[str, np.ndarray], top_k: Any, where: str) -> None:
    """Lists of one group are as long as each other in every row; top lists `top_k` times as long.

    `sizes` holds each list column's length per row, -1 for null.
    """
    rows = len(next(iter(sizes.values()), []))
    k = np.zeros(rows, np.int64)
    if any(name in schema.FLAT for name in sizes):
        k = top_k.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    for group in (*schema.GROUPS, "control"):
        known, first = np.full(rows, -1), group
        for name in (
            n for n in sizes if n.startswith(group + "_")
        ):  # the schema's order: flat lists come late
            size, flat = sizes[name], name in schema.FLAT
            wanted = np.maximum(known, 0) * k if flat else known
            bad = (size >= 0) & (wanted >= 0) & (size != wanted)
            if bad.any():
                i = int(np.argmax(bad))
                raise TraceError(f"{where}: cycle {i} has {size[i]} of {name}; {first} asks for {wanted[i]}")
            if not flat:
                known, first = np.maximum(known, size), name


def _check_values(table: pa.Table, where: str) -> None:
    """What the code that reads a table relies on: no index points outside, no count is negative."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def fail(name: str, what: str) -> None:
        raise TraceError(f"{where}: column '{name}' {what}")

    names = table.schema.names
    for name in KEYS:
        if name in names and table.column(name).null_count:
            fail(name, "has empty cells")
    for name in names:
        column = table.column(name)
        words = column.type.value_type if pa.types.is_list(column.type) else column.type
        if isinstance(words, pa.DictionaryType):
            flat = pc.list_flatten(column) if pa.types.is_list(column.type) else column
            longest = (pc.max(pc.binary_length(chunk.dictionary)).as_py() for chunk in flat.chunks)
            if max((n or 0 for n in longest), default=0) > WORD_LIMIT:
                fail(name, f"has words longer than {WORD_LIMIT} bytes")
        if column.type == pa.int32() and pc.any(pc.less(column, 0)).as_py():
            fail(name, "has negative numbers")
        if name == "top_k" and (pc.max(column).as_py() or 0) > 1_000_000:
            fail(name, "has absurd numbers")
    for name in (
        n for n in names if n in (*TOKEN_COLUMNS, "node_parent", "pred_node", "out_position", "pass_tokens")
    ):
        flat = pc.list_flatten(table.column(name))
        least = -1 if name in ("node_parent", "pred_node") else 0
        if flat.null_count or pc.any(pc.less(flat, least)).as_py():
            fail(name, "has empty or negative entries")
    if "node_parent" in names:
        size = np.maximum(_sizes(table.column("node_parent")), 0)
        parent = pc.list_flatten(table.column("node_parent")).to_numpy()
        if (parent >= _within(size)).any():
            fail("node_parent", "has a parent that does not stand before its child")
    if "pred_node" in names and "node_token" in names:
        nodes = np.maximum(_sizes(table.column("node_token")), 0)
        size = np.maximum(_sizes(table.column("pred_node")), 0)
        if (pc.list_flatten(table.column("pred_node")).to_numpy() >= np.repeat(nodes, size)).any():
            fail("pred_node", "names a node that is not there")
    for name, words in (
        ("node_status", schema.STATUSES),
        ("out_origin", schema.ORIGINS),
        ("end", schema.ENDS),
    ):
        if name in names:
            column = table.column(name)
            flat = pc.list_flatten(column) if pa.types.is_list(column.type) else column
            extra = set(pc.unique(flat).to_pylist()) - {*words, None}
            if extra:
                fail(name, f"has the unknown word {min(extra)[:40]!r}")


def validate(trace: Trace) -> None:
    """Check the integer identities that every trace fulfils.

    In each cycle: an accepted node's parent is accepted or the root, and no two accepted nodes share
    a parent; tokens of origin ``draft`` are as many as accepted nodes; output positions start at `keep`
    and rise by one; every text's cycles are numbered without a gap. Lengths, indices and words are
    checked whenever a trace is read.

    Raises
    ------
    TraceError
        Naming the first run, prompt and cycle that does not fulfil one.
    """
    nodes, outputs, cycles = trace.nodes, trace.outputs, trace.cycles

    def fail(rows: pd.DataFrame, what: str) -> None:
        if len(rows):
            at = rows.iloc[0]
            raise TraceError(f"run {at['run']}, prompt {at['prompt']}, cycle {at['cycle']}: {what}")

    keys = list(KEYS)
    accepted = nodes[nodes["status"] == "accepted"]
    parents = accepted[[*keys, "parent"]]
    fail(accepted[parents.duplicated().to_numpy()], "two accepted nodes share a parent")
    known = accepted[[*keys, "node"]].rename(columns={"node": "parent"})
    inner = parents[parents["parent"] >= 0].merge(known, how="left", indicator=True)
    fail(inner[inner["_merge"] == "left_only"], "an accepted node has a parent that was not accepted")
    judged = cycles[cycles["drafted"] > 0]
    drafts = outputs[outputs["origin"] == "draft"].groupby(keys, observed=True).size().rename("drafts")
    joined = judged.merge(drafts.reset_index(), how="left", on=keys).fillna({"drafts": 0})
    fail(
        joined[joined["drafts"] != joined["accepted"]],
        "accepted nodes and emitted draft tokens differ in number",
    )
    first = (
        outputs.groupby(keys, observed=True, sort=False)["position"]
        .agg(["min", "max", "count"])
        .reset_index()
    )
    first = first.merge(cycles[[*keys, "keep"]], on=keys)
    fail(first[(first["max"] - first["min"] + 1) != first["count"]], "output positions have gaps")
    fail(
        first[first["keep"].notna() & (first["keep"] != first["min"])],
        "output does not start where 'keep' ends",
    )
    ordered = cycles.sort_values(keys)
    step = ordered.groupby(["run", "prompt", "row", "update"], observed=True)["cycle"].diff()
    fail(ordered[(step.notna() & (step != 1)).to_numpy()], "the cycle before it is missing")


# ---------------------------------------------------------------- reading


def _within(size: np.ndarray) -> np.ndarray:
    """0, 1, ... within each row, for rows of the given sizes."""
    return np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)


def _coded(field: pa.Field) -> pa.Field:
    """The field with words as dictionary codes: small, and ready to become pandas categories."""
    import pyarrow as pa

    words = pa.dictionary(pa.int32(), pa.string())
    kind = field.type
    if pa.types.is_list(kind) and kind.value_type == pa.string():
        kind = pa.list_(words)
    return pa.field(field.name, words if kind == pa.string() else kind)


class _Store:
    """One run's metadata and columns; columns are read when first asked for."""

    def __init__(
        self, run: dict[str, Any], *, table: pa.Table | None = None, path: Path | None = None
    ) -> None:
        self.run = run
        self.path = path
        self._table = table
        self._read: dict[str, pa.ChunkedArray] = {}

    @cached_property
    def pieces(self) -> dict[int, bytes]:
        return _decode_pieces(self.run.get("pieces"), self.where)

    @property
    def where(self) -> str:
        return str(self.path or "the trace")

    def columns(self, names: Sequence[str]) -> pa.Table:
        """These columns of all cycles, checked."""
        import pyarrow as pa

        if self._table is not None:
            found = self._table.select(list(names))
        else:
            missing = [n for n in names if n not in self._read]
            if missing:
                assert self.path is not None
                with _parquet(self.path, words=True) as file:
                    # One group at a time: Arrow cannot join lists of dictionary codes across groups.
                    groups = [file.read_row_group(i, missing) for i in range(file.num_row_groups)]
                new = pa.concat_tables(groups) if groups else arrow_schema().empty_table().select(missing)
                new.validate(full=True)
                self._read |= {name: new.column(name) for name in missing}
            found = pa.table({name: self._read[name] for name in names})
        return found.cast(pa.schema([_coded(found.field(name)) for name in names]))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns whatever the reader of a broken file says into one line."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise TraceError(f"{path} cannot be read as a trace: {_reason(error)}") from error


@contextlib.contextmanager
def _parquet(path: Path, words: bool = False) -> Iterator[pq.ParquetFile]:
    """The file, if its footer is small.

    With `words`, strings are read as dictionary codes: one long string, repeated a million times, stays
    one string.
    """
    import pyarrow.parquet as pq

    with _reading(path):
        with open(path, "rb") as raw:
            raw.seek(0, os.SEEK_END)
            size = raw.tell()
            raw.seek(max(0, size - 8))
            tail = raw.read(8)
        if size < 12 or tail[4:] != b"PAR1":
            raise TraceError(f"{path} is not a whole Parquet file (cut off, or something else)")
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
        known = {c.name for c in schema.COLUMNS if "string" in c.type}
        coded = [leaf for leaf in leaves if leaf.split(".")[0] in known]
        with pq.ParquetFile(path, read_dictionary=coded, **limits) as file:
            yield file


def _check_size(file: pq.ParquetFile, path: Path) -> None:
    meta = file.metadata
    total = 0
    for group in range(meta.num_row_groups):
        for column in range(meta.num_columns):
            chunk = meta.row_group(group).column(column)
            if chunk.num_values < 0 or chunk.total_uncompressed_size < 0:
                raise TraceError(f"{path}: its metadata counts are negative")
            total += max(8 * chunk.num_values, chunk.total_uncompressed_size)
    limit = min(DATA_LIMIT, max(SMALL, SWELL * path.stat().st_size))
    if total > limit:
        raise TraceError(f"{path} would need {total >> 20} MiB in memory; the limit is {limit >> 20} MiB")


def _open_file(path: Path) -> _Store:
    with _parquet(path) as file:
        run = _load_metadata(file.metadata.metadata, str(path))
        _check_schema(file.schema_arrow, str(path))
        _check_size(file, path)
    return _Store(run, path=path)


def _plain(metadata: bytes) -> bool:
    """Whether an Arrow message is a schema or an uncompressed record batch, the two that a run writes.

    Compressed buffers state their own size, so a small file could fill the memory. The reader has no
    switch for them; this looks into the message's flatbuffer: Message (header_type 1, header 2) and
    RecordBatch (compression 3), field numbers of Arrow's Message.fbs.
    """

    def field(table: int, number: int) -> int:
        """Place of a table's field, 0 if absent."""
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        slot = 4 + 2 * number
        if slot >= struct.unpack_from("<H", metadata, fields)[0]:
            return 0
        place = int(struct.unpack_from("<H", metadata, fields + slot)[0])
        return table + place if place else 0

    try:
        message = struct.unpack_from("<I", metadata, 0)[0]
        kind = metadata[field(message, 1)]
        if kind != 3:
            return kind == 1
        at = field(message, 2)
        return not field(at + struct.unpack_from("<I", metadata, at)[0], 3)
    except (struct.error, IndexError):
        return False


def _open_partial(path: Path) -> _Store:
    """A run that was cut off, to its last whole batch."""
    import pyarrow as pa

    with _reading(path):
        size = path.stat().st_size
        if size > DATA_LIMIT:
            raise TraceError(f"{path} is longer than {DATA_LIMIT >> 30} GiB")
        content = pa.py_buffer(path.read_bytes())
        with contextlib.suppress(pa.ArrowInvalid, OSError), pa.BufferReader(content) as file:
            for message in pa.ipc.MessageReader.open_stream(file):  # ends where the file was cut off
                if not _plain(message.metadata.to_pybytes()):
                    raise TraceError(f"{path} is not what a run writes (compressed, or another kind of data)")
        with pa.BufferReader(content) as file, pa.ipc.open_stream(file) as stream:
            run = _load_metadata(stream.schema.metadata, str(path))
            _check_schema(stream.schema, str(path))
            pieces, prompts = dict(run["pieces"] or {}), list(run["prompts"] or [])
            batches = []
            while True:
                try:
                    batch, extra = stream.read_next_batch_with_custom_metadata()
                    if not len(batch):  # its offsets can point anywhere: Arrow's validation passes over them
                        continue
                    batch.validate(full=True)
                except (StopIteration, pa.ArrowException, OSError):
                    break
                if batch.get_total_buffer_size() > size:
                    raise TraceError(f"{path}: a batch is longer than the file")
                if extra is not None:
                    pieces.update(json.loads(extra.get(b"pieces", b"{}")))
                    prompts.extend(json.loads(extra.get(b"prompts", b"[]")))
                batches.append(batch)
            table = pa.Table.from_batches(batches, stream.schema).replace_schema_metadata(None)
    if run["complete"] is None:
        run |= {"complete": False, "stopped": "cut off"}
    run = _check_run(run | {"pieces": pieces, "prompts": prompts}, str(path))
    return _Store(run, table=table, path=path)


class Trace:
    """One run, or several, as tables.

    Made by `specviz.generate`, `Recorder.close` or `Trace.open`. Everything is read when first asked
    for. In Jupyter it shows itself as a static picture.
    """

    def __init__(self, stores: Sequence[_Store], prompts: frozenset[int] | None = None) -> None:
        self._stores = list(stores)
        self._prompts = prompts

    # ------------------------------------------------------------ files

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a trace file, a cut-off run (``.partial``) or a folder of them.

        Raises
        ------
        TraceError
            If there is none, or a file is truncated, foreign, from a newer schema or not what it says.
        """
        path = Path(path)
        ends = (".parquet", ".parquet" + PARTIAL)
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.name.endswith(ends) and p.name[0] not in "._")
            if not files:
                raise TraceError(f"{path} holds no traces (*.parquet)")
        elif path.exists():
            files = [path]
        elif (partial := path.with_name(path.name + PARTIAL)).exists():
            raise TraceError(f"{path} is not there, but a run that goes on or was cut off is: open {partial}")
        else:
            raise TraceError(f"{path} is not there")
        stores = [_open_partial(p) if p.name.endswith(PARTIAL) else _open_file(p) for p in files]
        seen: dict[str, _Store] = {}
        for store in stores:
            if (other := seen.setdefault(store.run["run"], store)) is not store:
                raise TraceError(f"{other.path} and {store.path} hold the same run: move one away")
        return cls(stores)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the trace: one run to a file ``*.parquet``, several to a folder of files.

        Raises
        ------
        TraceError
            If the file exists (unless `force`) or cannot be written.
        """
        path = Path(path)
        single = path.suffix == ".parquet"
        if single and len(self._stores) != 1:
            raise TraceError(f"{len(self._stores)} runs need a folder, not the file {path}")
        names = (
            [path] if single else [path / f"{re.sub(r'[^A-Za-z0-9_-]', '_', r)}.parquet" for r in self._ids]
        )
        for name in names:
            if name.exists() and not force:
                raise TraceError(f"{name} exists: choose another name, or force to replace it")
        for name, store in zip(names, self._stores, strict=True):
            table = Trace([store], self._prompts)._table([c.name for c in schema.COLUMNS])
            try:
                name.parent.mkdir(parents=True, exist_ok=True)
                _write_parquet(name, store.run, table.cast(arrow_schema()).to_batches())
            except OSError as error:
                raise TraceError(f"cannot write {name}: {_reason(error)}") from error
        return path

    def redact(self) -> Trace:
        """A copy that is safer to share: without prompts, references, paths and names of machines.

        Dropped: every prompt's tokens, name and reference (its kind, language and length stay), pieces
        of tokens that occur only in prompts, folders in front of model and tokenizer names, the
        machine (its kind of device stays), why a run stopped, and text in parameters that looks like a
        path. What remains: the generated text and what was drafted and predicted, which can
        repeat a prompt's words; numbers, times, parameters and versions.
        """
        stores = []
        for store in self._stores:
            table = Trace([store], self._prompts)._table([c.name for c in schema.COLUMNS])
            stores.append(_Store(_redact(store, table), table=table))
        return Trace(stores)

    # ------------------------------------------------------------ parts

    @property
    def _ids(self) -> list[str]:
        return [store.run["run"] for store in self._stores]

    @property
    def run(self) -> dict[str, Any]:
        """The run's metadata (`schema.RUN_FIELDS`), without the token pieces.

        Raises
        ------
        TraceError
            If the trace holds several runs.
        """
        if len(self._stores) != 1:
            raise TraceError(f"the trace holds {len(self._stores)} runs: select(run=...) one, or use .runs")
        return {k: v for k, v in self._stores[0].run.items() if k != "pieces"}

    def select(
        self,
        *,
        prompt: int | Iterable[int] | None = None,
        method: str | Iterable[str] | None = None,
        run: str | Iterable[str] | None = None,
    ) -> Trace:
        """The part of the trace with these prompts, methods and runs (one, or several of each)."""

        def some(value: Any) -> set[Any]:
            return {value} if isinstance(value, str | int | np.integer) else set(value)

        stores = self._stores
        if method is not None:
            stores = [s for s in stores if s.run["method"] in some(method)]
        if run is not None:
            stores = [s for s in stores if s.run["run"] in some(run)]
        if not stores:
            raise TraceError(f"no such run; there are {', '.join(self._ids[:8])}")
        prompts = self._prompts
        if prompt is not None:
            chosen = frozenset(int(p) for p in some(prompt))
            count = max(len(s.run["prompts"] or []) for s in stores)
            if count and not any(0 <= p < count for p in chosen):
                raise TraceError(f"no such prompt; there are {count}, the first is 0")
            prompts = chosen if prompts is None else prompts & chosen
        return Trace(stores, prompts)

    def split(self) -> list[Trace]:
        """One trace for each run."""
        return [Trace([store], self._prompts) for store in self._stores]

    @property
    def pieces(self) -> dict[int, bytes]:
        """Bytes of each token id that occurs (one run)."""
        _ = self.run
        return self._stores[0].pieces

    def _table(self, names: Sequence[str]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = []
        for store in self._stores:
            with _reading(store.path or Path("the trace")):
                table = store.columns(list(dict.fromkeys([*KEYS, *names])))
                lists = [f.name for f in table.schema if pa.types.is_list(f.type)]
                sizes = {name: _sizes(table.column(name)) for name in lists}
                _check_lengths(
                    sizes, table.column("top_k") if "top_k" in table.schema.names else None, store.where
                )
                _check_values(table, store.where)
                for name in ("run", "method"):
                    if not set(pc.unique(table.column(name)).to_pylist()) <= {store.run[name]}:
                        raise TraceError(f"{store.where}: rows name another {name} than the file")
                if self._prompts is not None:
                    chosen = pa.array(sorted(self._prompts), pa.int32())
                    table = table.filter(pc.is_in(table.column("prompt"), chosen))
                parts.append(table.select(list(names)))
        return pa.concat_tables(parts).unify_dictionaries()

    # ------------------------------------------------------------ tables

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row a run: what `schema.RUN_FIELDS` says of it; nested fields as JSON text."""
        import pandas as pd

        rows = []
        for store in self._stores:
            row = {k: v for k, v in store.run.items() if k not in ("prompts", "pieces")}
            for name in ("model", "draft"):
                row[name] = (store.run[name] or {}).get("name")
            row["prompts"] = len(store.run["prompts"] or [])
            for name, value in row.items():
                if isinstance(value, dict | list):
                    row[name] = json.dumps(value, ensure_ascii=False)
            rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def prompts(self) -> pd.DataFrame:
        """One row a prompt: id, turn, kind, language, number of tokens, text and reference."""
        import pandas as pd

        rows = []
        for store in self._stores:
            for i, prompt in enumerate(store.run["prompts"] or []):
                if self._prompts is None or i in self._prompts:
                    ids = prompt.get("tokens") or []
                    row = {"run": store.run["run"], "prompt": i}
                    row |= {name: prompt.get(name) for name in ("id", "turn", "kind", "language")}
                    row |= {"tokens": prompt.get("length", len(ids)), "text": _text(store, ids)}
                    rows.append(row | {"reference": prompt.get("reference")})
        names = ["run", "prompt", "id", "turn", "kind", "language", "tokens", "text", "reference"]
        return pd.DataFrame(rows, columns=names)

    @cached_property
    def cycles(self) -> pd.DataFrame:
        """One row a cycle: the scalar columns, controller values (``control_*``) and counts.

        Counts: `drafted` nodes of the draft; `sent` of them to the target (all but pruned and unsent);
        `judged` (accepted or rejected); `accepted`; `cut` by the end of the text; `emitted` tokens.
        """
        import pandas as pd
        import pyarrow.compute as pc

        scalars = [c.name for c in schema.COLUMNS if not c.type.startswith("list")]
        names = [*scalars, "control_name", "control_value", "node_token", "node_status", "out_token"]
        table = self._table(names)
        frame = pd.DataFrame({name: _numpy(table.column(name)) for name in scalars})
        drafted = np.maximum(_sizes(table.column("node_token")), 0)
        size = np.maximum(_sizes(table.column("node_status")), 0)
        row = np.repeat(np.arange(len(table)), size)
        status = pc.list_flatten(table.column("node_status"))

        def count(*words: str) -> np.ndarray:
            import pyarrow as pa

            chosen = pc.is_in(status, pa.array(words)).to_numpy()
            return np.bincount(row[chosen], minlength=len(table))

        frame["drafted"] = drafted
        frame["sent"] = drafted - count("pruned", "unsent")
        frame["judged"] = count("accepted", "rejected")
        frame["accepted"] = count("accepted")
        frame["rejected"] = count("rejected")
        frame["cut"] = count("cut")
        frame["emitted"] = np.maximum(_sizes(table.column("out_token")), 0)
        size = np.maximum(_sizes(table.column("control_name")), 0)
        row = np.repeat(np.arange(len(table)), size)
        control = pc.list_flatten(table.column("control_name")).to_numpy(zero_copy_only=False)
        value = _flat(table.column("control_value"), size)
        for name in sorted(set(control) - {None})[:64]:
            column = np.full(len(table), np.nan)
            chosen = control == name
            column[row[chosen]] = value[chosen]
            frame[f"control_{name}"] = column
        return frame

    def _long(self, group: str, index: str | None) -> pd.DataFrame:
        """A group's list columns as one long table, with the keys of their cycles."""
        import pandas as pd

        columns = [
            c.name for c in schema.COLUMNS if c.name.startswith(group + "_") and c.name not in schema.FLAT
        ]
        table = self._table([*KEYS, *columns])
        size = np.zeros(len(table), np.int64)
        for name in columns:
            np.maximum(size, _sizes(table.column(name)), out=size)
        data: dict[str, Any] = {}
        for name in KEYS:
            values = _numpy(table.column(name))
            data[name] = (
                values.repeat(size) if isinstance(values, pd.Categorical) else np.repeat(values, size)
            )
        if index:
            data[index] = _within(size)
        for name in columns:
            data[name[len(group) + 1 :]] = _flat(table.column(name), size)
        return pd.DataFrame(data)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """One row a drafted node: index, parent, depth, token, text, status, probabilities and signals.

        `text` is the token's own bytes; bytes that are only part of a character show as ``\\x..``.
        """
        frame = self._long("node", "node")
        starts = np.flatnonzero(frame["node"].to_numpy() == 0)
        base = np.repeat(starts, np.diff([*starts, len(frame)]))
        parent = frame["parent"].to_numpy().astype(np.int64)
        depth = _depths(np.where(parent < 0, -1, parent + base))
        _insert(frame, "parent", "depth", depth)
        _insert(frame, "token", "text", self._piece_texts(frame))
        return frame

    @cached_property
    def outputs(self) -> pd.DataFrame:
        """One row an emitted token: position, token, text, origin, probability, uniform number, kept.

        `kept` is false where a later cycle's `keep` took the token back.
        """
        frame = self._long("out", None)
        _insert(frame, "token", "text", self._piece_texts(frame))
        kept = np.zeros(len(frame), bool)
        for _, _, index in self._survivors:
            kept[index] = True
        frame["kept"] = kept
        return frame

    @cached_property
    def passes(self) -> pd.DataFrame:
        """One row a forward pass: model, rows, tokens, start and duration in seconds."""
        return self._long("pass", None)

    def tops(self, group: str = "pred") -> pd.DataFrame:
        """The top-k candidates as one long table.

        Parameters
        ----------
        group : {"pred", "node"}
            The target's, at each prediction (`node` is the node it stands after, -1 the root); or the
            drafter's, where it chose each node.

        Returns
        -------
        DataFrame
            Keys of the cycle, ``node``, ``place`` (0 is the best), ``token``, ``text``, ``p``.
        """
        if group not in ("pred", "node"):
            raise TraceError(f"group is 'pred' or 'node', not {group!r}")
        import pandas as pd

        own = "pred_node" if group == "pred" else "node_token"
        names = (f"{group}_top_token", f"{group}_top_p")
        table = self._table([*KEYS, "top_k", own, "node_token", *names])
        size = np.maximum(_sizes(table.column(names[0])), 0)
        k = np.maximum(_numpy(table.column("top_k"), 0), 1).astype(np.int64)
        within = _within(size)
        each = np.repeat(k, size)
        data: dict[str, Any] = {}
        for name in KEYS:
            values = _numpy(table.column(name))
            data[name] = (
                values.repeat(size) if isinstance(values, pd.Categorical) else np.repeat(values, size)
            )
        entry = within // each
        if group == "pred":
            count = np.maximum(_sizes(table.column(own)), 0)
            start = np.cumsum(count) - count
            entry = _flat(table.column(own), count)[np.repeat(start, size) + entry]
        data |= {"node": entry, "place": within % each, "token": _flat(table.column(names[0]), size)}
        frame = pd.DataFrame(data | {"p": _flat(table.column(names[1]), size)})
        _insert(frame, "token", "text", self._piece_texts(frame))
        return frame

    # ------------------------------------------------------------ text

    @cached_property
    def _survivors(self) -> list[tuple[_Store, int, np.ndarray]]:
        """For each run and prompt, which rows of the long output table make up its text."""
        result = []
        base = 0
        for store in self._stores:
            table = Trace([store], self._prompts)._table([*KEYS, "keep", "out_token"])
            size = np.maximum(_sizes(table.column("out_token")), 0)
            ends = np.cumsum(size) + base
            prompts = table.column("prompt").to_numpy()
            keep = table.column("keep").to_pylist()
            texts: dict[int, list[int]] = {}
            for i, prompt in enumerate(prompts.tolist()):
                text = texts.setdefault(prompt, [])
                if (survive := keep[i]) is not None:
                    if survive > len(text):
                        raise TraceError(f"{store.where}: cycle {i} keeps {survive} of {len(text)} tokens")
                    del text[survive:]
                text.extend(range(int(ends[i] - size[i]), int(ends[i])))
            result += [(store, prompt, np.array(text, np.int64)) for prompt, text in texts.items()]
            base += int(size.sum())
        return result

    @cached_property
    def texts(self) -> list[str]:
        """The text of each prompt of each run, in the order they were decoded; end tokens left out."""
        token = self.outputs["token"].to_numpy()
        return [_text(store, token[index].tolist()) for store, _, index in self._survivors]

    @property
    def text(self) -> str:
        """The generated text.

        Raises
        ------
        TraceError
            If the trace holds several texts.
        """
        if len(self.texts) > 1:
            raise TraceError(
                f"the trace holds {len(self.texts)} texts: select(prompt=...) one, or use .texts"
            )
        return self.texts[0] if self.texts else ""

    def tokens(self, prompt: int | None = None) -> list[tuple[str, list[int]]]:
        """A text as it can be shown: whole characters, each with the token ids that make it up.

        Parameters
        ----------
        prompt : int, optional
            Which prompt; needed if there are several.
        """
        found = [s for s in self._survivors if prompt is None or s[1] == prompt]
        if len(found) != 1:
            raise TraceError(f"{len(found)} texts fit: select one run and name its prompt")
        store, _, index = found[0]
        ids = self.outputs["token"].to_numpy()[index].tolist()
        return whole_characters([(token, _piece(store, token)) for token in ids])

    def _piece_texts(self, frame: pd.DataFrame) -> np.ndarray:
        """Each row's token as text."""
        texts = np.empty(len(frame), object)
        runs, tokens = frame["run"], frame["token"].to_numpy()
        for store in self._stores:
            rows = (runs == store.run["run"]).to_numpy()
            ids, index = np.unique(tokens[rows], return_inverse=True)
            shown = [_piece(store, token).decode("utf8", "backslashreplace") for token in ids.tolist()]
            texts[rows] = np.array(shown, object)[index]
        return texts

    # ------------------------------------------------------------ numbers and pictures

    def summary(self) -> pd.DataFrame:
        """One row a run with the field's metrics; `specviz.metrics` defines each."""
        from specviz import metrics

        return metrics.summary(self)

    def recheck(self) -> pd.DataFrame:
        """Every judged node decided again from what was recorded; see `specviz.metrics.recheck`."""
        from specviz import metrics

        return metrics.recheck(self)

    def to_html(self, path: str | Path) -> Path:
        """Write one offline page that shows the trace."""
        from specviz import view

        return cast(Path, view.page(self, Path(path)))

    def _repr_html_(self) -> str:
        from specviz import view

        return cast(str, view.html(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        with contextlib.suppress(ImportError):  # without matplotlib the words are left
            from specviz.view import html, png

            bundle["text/html"] = html(self)
            bundle["image/png"] = base64.b64encode(png(self)).decode("ascii")
        return bundle

    def __repr__(self) -> str:
        try:
            from specviz.view import text

            return cast(str, text(self))
        except ImportError:
            methods = ", ".join(dict.fromkeys(s.run["method"] for s in self._stores))
            return f"<Trace of {len(self._stores)} run(s): {methods}; {len(self.cycles)} cycles>"


def whole_characters(pieces: Iterable[tuple[int, bytes]]) -> list[tuple[str, list[int]]]:
    """Join tokens until their bytes are whole characters.

    Byte-level tokenizers split Chinese, Japanese and emoji between tokens; a piece alone is not text.

    Parameters
    ----------
    pieces : iterable of (token id, bytes)

    Returns
    -------
    list of (text, token ids)
        Texts in order. Bytes that are no UTF-8 at all show as the replacement character.
    """
    result: list[tuple[str, list[int]]] = []
    decoder = codecs.getincrementaldecoder("utf8")("replace")
    text, ids = "", []
    for token, piece in pieces:
        text += decoder.decode(piece)
        ids.append(token)
        if not decoder.getstate()[0]:  # nothing left over: the characters are complete
            result.append((text, ids))
            text, ids = "", []
    if ids:
        result.append((text + decoder.decode(b"", True), ids))
    return result


def _piece(store: _Store, token: int) -> bytes:
    piece = store.pieces.get(token)
    return f"<{token}>".encode() if piece is None else piece


def _text(store: _Store, ids: list[int]) -> str:
    ends = set(store.run["eos"] or [])
    return b"".join(_piece(store, token) for token in ids if token not in ends).decode("utf8", "replace")


def _numpy(column: Any, empty: float | None = None) -> Any:
    """A column as NumPy (null is NaN) or, for words, as a pandas categorical."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(column.type, pa.DictionaryType):
        return pd.Categorical(column.to_pandas())
    return (column if empty is None else column.fill_null(empty)).to_numpy()


def _flat(column: Any, size: np.ndarray) -> Any:
    """A list column as one long array; rows that lack the list get as many nulls as `size` says."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.list_flatten(column)
    present = np.repeat(_sizes(column) >= 0, size)
    if not present.all():
        values = values.take(pa.array(np.cumsum(present) - 1, mask=~present))
    if values.type == pa.bool_():
        return values.to_pandas().to_numpy()
    return _numpy(values)


def _insert(frame: pd.DataFrame, after: str, name: str, values: Any) -> None:
    frame.insert(list(frame.columns).index(after) + 1, name, values)


def _depths(parent: np.ndarray) -> np.ndarray:
    """Depth of every node of a forest, the first level is 1; by pointer doubling."""
    depth = np.ones(len(parent), np.int64)
    up = parent.copy()
    while (live := np.flatnonzero(up >= 0)).size:
        depth[live] += depth[up[live]]
        up[live] = up[up[live]]
    return depth


PATH_LIKE = re.compile(r"[\\/~]")


def _redact(store: _Store, table: pa.Table) -> dict[str, Any]:
    """The run's metadata without what names a person, a machine or a prompt."""
    import pyarrow.compute as pc

    def scrub(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: scrub(v) for k, v in value.items()}
        if isinstance(value, list):
            return [scrub(v) for v in value]
        return re.split(r"[\\/]", value)[-1] if isinstance(value, str) and PATH_LIKE.search(value) else value

    run = store.run
    kept = {
        name: scrub(run[name]) for name in schema.RUN_FIELDS if name not in ("prompts", "pieces", "machine")
    }
    kept["stopped"] = None if run["stopped"] is None else "stopped"
    device = (run["machine"] or {}).get("device")
    known = isinstance(device, str) and re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", device)
    kept["machine"] = {"device": device} if known else None
    kept["prompts"] = [
        {name: p.get(name) for name in ("kind", "language", "turn")} | {"length": len(p.get("tokens") or [])}
        for p in run["prompts"] or []
    ]
    used: set[int] = set()
    for name in TOKEN_COLUMNS:
        used.update(pc.unique(pc.list_flatten(table.column(name))).to_pylist())
    kept["pieces"] = {token: text for token, text in (run["pieces"] or {}).items() if int(token) in used}
    return kept
