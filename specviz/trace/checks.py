"""Checks made before a file is trusted: metadata, types, sizes, lengths and numbers.

A trace file is untrusted data. Any defect raises a `TraceError` of one line that names the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz import files, schema
from specviz.errors import TraceError
from specviz.trace.files import KEY, KEYS, METADATA_LIMIT, TOKEN_COLUMNS, Record, arrow_schema, dump

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

DATA_LIMIT = 4 << 30  # maximum bytes of a file in memory, by its own account ...
SMALL, SWELL = 256 << 20, 1000  # ... and above SMALL, at most SWELL times its length
ROW = ["prompt", "row", "update", "cycle"]  # the key: no two rows may be equal in these
TIMES = tuple(c.name for c in schema.COLUMNS if "double" in c.type and c.name != "control_value")
WORD_LIMIT = 256  # maximum bytes of a word in a column ...
TEXT_LIMIT = 1 << 20  # ... and of a source text: more than contexts hold


# ---------------------------------------------------------------- metadata


def check_run(run: Any, where: str) -> Record:
    """Return the run's metadata, if every field has the right type."""
    from specviz.trace.metadata import Run

    if isinstance(run, dict) and isinstance(kind := run.get("specviz"), str):
        raise TraceError(f"{where} is not a trace, but {files.shown(kind)}: specviz.results reads such files")
    version = run.get("schema") if isinstance(run, dict) else None
    if type(version) is not int or version < 1:
        raise TraceError(f"{where}: the run's metadata names no schema version")
    if version not in (schema.VERSION, *schema.OLDER):
        age, remedy = ("a newer", "upgrade") if version > schema.VERSION else ("an older", "record it again")
        raise TraceError(
            f"{where} is from {age} specviz (schema {files.shown(version)}; this one reads "
            f"{schema.VERSION}): {remedy}"
        )
    checked = files.checked(Run, run, f"{where}: the run's metadata", "the file is damaged: record it again")
    return {name: dict(checked).get(name) for name in schema.RUN_FIELDS} | {"schema": schema.VERSION}


def plain_run(run: Mapping[str, Any]) -> Record:
    """The metadata of a run of this process as its file would hold it: every field, as plain data."""
    plain = json.loads(dump(run))
    return {name: plain.get(name) for name in schema.RUN_FIELDS}


def check_new_run(run: Mapping[str, Any]) -> None:
    """Refuse the metadata of a run of this process that no reader of its file would accept.

    Raises
    ------
    TraceError
        The message names the field.
    """
    from specviz.trace.metadata import Run

    files.checked(Run, plain_run({**run, "schema": schema.VERSION}), "the run's metadata")


def load_metadata(metadata: dict[bytes, bytes] | None, where: str) -> Record:
    text = (metadata or {}).get(KEY)
    if text is None:
        raise TraceError(f"{where} is not a specviz trace (its metadata has no '{KEY.decode()}')")
    if len(text) > METADATA_LIMIT:
        raise TraceError(f"{where}: the run's metadata is longer than {METADATA_LIMIT >> 20} MiB")
    run = files.parsed(text, f"{where}: the run's metadata")
    try:
        if b"\\u" in text:
            json.dumps(run, ensure_ascii=False).encode("utf8")
    except (UnicodeEncodeError, RecursionError):
        raise TraceError(f"{where}: the run's metadata is not JSON (half a surrogate pair)") from None
    return check_run(run, where)


# ---------------------------------------------------------------- before columns are read


def check_schema(arrow: pa.Schema, where: str) -> None:
    import pyarrow as pa

    for field in arrow_schema():
        if field.name in schema.ADDED and field.name not in arrow.names:
            continue
        index = arrow.get_field_index(field.name)  # -1 if missing or twice
        if index < 0:
            raise TraceError(f"{where}: column '{field.name}' is missing or occurs twice")
        kind = arrow.field(index).type
        inner = kind.value_type if pa.types.is_list(kind) else kind
        if isinstance(inner, pa.DictionaryType):
            kind = pa.list_(inner.value_type) if pa.types.is_list(kind) else inner.value_type
        if field.name == "seed" and kind == pa.int64():
            continue  # recorded when seeds were at most 2^63 - 1
        if isinstance(inner, pa.BaseExtensionType) or kind != field.type:
            raise TraceError(f"{where}: column '{field.name}' is {str(kind)[:60]}, not {field.type}")


def check_size(file: pq.ParquetFile, path: Path) -> None:
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


def plain_message(metadata: bytes) -> bool:
    """Whether an Arrow message is a schema or an uncompressed record batch, the two kinds that a run writes.

    Compressed buffers state their own size, so a small file could fill the memory. Arrow's reader has no
    option to refuse them, so this reads the message's flatbuffer: Message (header_type 1, header 2) and
    RecordBatch (compression 3), with the field numbers of Arrow's Message.fbs.
    """

    def field(table: int, number: int) -> int:
        """Offset of a table's field, 0 if absent."""
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


# ---------------------------------------------------------------- columns


def flattened(column: pa.ChunkedArray, size: np.ndarray) -> pa.Array:
    """A list column as one long Arrow array; rows without a list get as many nulls as `size` says."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.list_flatten(column)
    present = np.repeat(list_sizes(column) >= 0, size)
    return values if present.all() else values.take(pa.array(np.cumsum(present) - 1, mask=~present))


def list_sizes(column: pa.ChunkedArray) -> np.ndarray:
    """Length of each row's list, -1 for null."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_value_length(column), -1).to_numpy().astype(np.int64)


def index_within(size: np.ndarray) -> np.ndarray:
    """0, 1, ... within each row, for rows of the given sizes."""
    return np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)


def check_lengths(sizes: dict[str, np.ndarray], top_k: Any, where: str) -> None:
    """Check that lists of one group have equal lengths in every row, and top lists `top_k` times those.

    `sizes` holds each list column's length per row, -1 for null.
    """
    rows = len(next(iter(sizes.values()), []))
    k = np.zeros(rows, np.int64)
    if any(name in schema.FLAT for name in sizes):
        k = top_k.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if {"signal_name", "signal_value", "node_token"} <= sizes.keys():
        wanted = np.maximum(sizes["signal_name"], 0) * np.maximum(sizes["node_token"], 0)
        if (bad := wanted != np.maximum(sizes["signal_value"], 0)).any():
            i = int(np.argmax(bad))
            size = sizes["signal_value"][i]
            raise TraceError(
                f"{where}: cycle {i} has {size} of signal_value; its nodes and names require {wanted[i]}"
            )
    for group in (*schema.GROUPS, "control"):
        expected, first = np.full(rows, -1), group
        for name in (
            n for n in sizes if n.startswith(group + "_")
        ):  # in the schema's order: flat lists come late
            size, flat = sizes[name], name in schema.FLAT
            wanted = np.maximum(expected, 0) * k if flat else expected
            bad = (size >= 0) & (wanted >= 0) & (size != wanted)
            if bad.any():
                i = int(np.argmax(bad))
                raise TraceError(f"{where}: cycle {i} has {size[i]} of {name}; {first} requires {wanted[i]}")
            if not flat:
                expected, first = np.maximum(expected, size), name
    pairs = [(n, n.replace("_token", "_p")) for n in sizes if n.endswith(("_top_token", "_draft_token"))]
    for name, other in (*pairs, ("out_token", "out_position"), ("control_name", "control_value")):
        if {name, other} <= sizes.keys() and (bad := sizes[name] != sizes[other]).any():
            i = int(np.argmax(bad))
            raise TraceError(f"{where}: cycle {i} has only one of {name} and {other}")


def check_words(name: str, words: pa.Array, where: str) -> None:
    """Check that no text of a column is longer than readers allow."""
    import pyarrow.compute as pc

    limit = TEXT_LIMIT if name == "source" else WORD_LIMIT
    if (pc.max(pc.binary_length(words)).as_py() or 0) > limit:
        raise TraceError(f"{where}: column '{name}' has words longer than {limit} bytes")


def check_values(table: pa.Table, where: str) -> None:
    """Check what the readers of a table rely on: no index is out of range, no count is negative."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def fail(name: str, what: str) -> None:
        raise TraceError(f"{where}: column '{name}' {what}")

    names = table.schema.names
    for name in (name for name in names if name in TIMES):
        column = table.column(name)
        seconds = pc.list_flatten(column) if pa.types.is_list(column.type) else column
        if pc.any(pc.invert(pc.is_finite(seconds))).as_py():
            fail(name, "has times that are not finite")
    for name in KEYS:
        if name in names and table.column(name).null_count:
            fail(name, "has empty cells")
    for name in names:
        column = table.column(name)
        words = column.type.value_type if pa.types.is_list(column.type) else column.type
        if isinstance(words, pa.DictionaryType):
            flat = pc.list_flatten(column) if pa.types.is_list(column.type) else column
            for chunk in flat.chunks:
                check_words(name, chunk.dictionary, where)
        if column.type == pa.int32() and pc.any(pc.less(column, 0)).as_py():
            fail(name, "has negative numbers")
        if name == "top_k" and (pc.max(column).as_py() or 0) > 1_000_000:
            fail(name, "has numbers out of range")
    for name in ("control_name", "signal_name"):
        if name in names and pc.list_flatten(table.column(name)).null_count:
            fail(name, "has empty entries")
    indices = (*TOKEN_COLUMNS, "node_parent", "pred_node", "out_position", "tail_position", "pass_tokens",
               "pass_rows")  # fmt: skip
    for name in (n for n in names if n in indices):
        flat = pc.list_flatten(table.column(name))
        least = -1 if name in ("node_parent", "pred_node") else 0
        if flat.null_count or pc.any(pc.less(flat, least)).as_py():
            fail(name, "has empty or negative entries")
    if "node_parent" in names:
        size = np.maximum(list_sizes(table.column("node_parent")), 0)
        parent = pc.list_flatten(table.column("node_parent")).to_numpy()
        if (parent >= index_within(size)).any():
            fail("node_parent", "has a parent that does not come before its child")
    if "pred_node" in names and "node_token" in names:
        nodes = np.maximum(list_sizes(table.column("node_token")), 0)
        size = np.maximum(list_sizes(table.column("pred_node")), 0)
        if (pc.list_flatten(table.column("pred_node")).to_numpy() >= np.repeat(nodes, size)).any():
            fail("pred_node", "names a node that does not exist")
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
    if set(ROW) <= set(names):
        rows = table.select(ROW).group_by(ROW, use_threads=False).aggregate([([], "count_all")])
        if len(rows) < len(table):
            fail("cycle", "has the same cycle of a prompt twice")
