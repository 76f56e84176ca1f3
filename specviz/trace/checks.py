"""What is checked before a file is believed: metadata, types, sizes, lengths and numbers.

A trace file is untrusted data. What is wrong with it is a `TraceError` of one line that names the file.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz import schema
from specviz.errors import TraceError
from specviz.trace.files import KEY, KEYS, TOKEN_COLUMNS, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

METADATA_LIMIT = 64 << 20  # bytes of a file's footer or header
DATA_LIMIT = 4 << 30  # bytes a file may need in memory, by its own account ...
SMALL, SWELL = 256 << 20, 1000  # ... and not above SMALL if that is SWELL times its length
WORD_LIMIT = 256  # bytes of a word in a column ...
TEXT_LIMIT = 1 << 20  # ... and of a source text: more than contexts hold
LINES_LIMIT = 64  # of pseudocode


# ---------------------------------------------------------------- metadata


def check_run(run: Any, where: str) -> dict[str, Any]:
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
    if version < schema.VERSION:
        raise TraceError(
            f"{where} is from an older specviz (schema {version}; this one reads {schema.VERSION}): "
            "record it anew"
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
    if not all(_signal(entry) for entry in run.get("signals") or []):
        raise TraceError(f"{where}: the run's 'signals' are not what they should be")
    for name in ("model", "draft", "dense", "peak_memory"):
        about = dict(run.get(name) or {})
        shape = about.pop("shape", None)
        if not all(isinstance(v, (*words, float)) for v in about.values()) or not _known(shape):
            raise TraceError(f"{where}: the run's '{name}' is not what it should be")
    lines = run.get("pseudocode") or []
    if len(lines) > LINES_LIMIT or not all(_line(line) for line in lines):
        raise TraceError(f"{where}: the run's 'pseudocode' is not a short list of [when, line]")
    if not _ids(run.get("eos") or []):
        raise TraceError(f"{where}: the run's 'eos' is not a list of token ids")
    decode_pieces(run.get("pieces"), where)
    return {name: run.get(name) for name in schema.RUN_FIELDS}


def _line(line: Any) -> bool:
    two = isinstance(line, list | tuple) and len(line) == 2
    return two and all(isinstance(word, str) and len(word) <= WORD_LIMIT for word in line)


def _signal(entry: Any) -> bool:
    """Whether an entry of a run's signals is one that `schema.Signal` takes."""
    if not isinstance(entry, dict) or set(entry) != {"name", "unit", "meaning", "level"}:
        return False
    if not all(isinstance(word, str) and len(word) <= WORD_LIMIT for word in entry.values()):
        return False
    named = schema.is_signal if entry["level"] == "node" else schema.is_name
    return entry["level"] in schema.LEVELS and named(entry["name"])


def _known(shape: Any) -> bool:
    """Whether a model's shape is one; not every model's is known."""
    if not isinstance(shape, dict):
        return shape is None
    own = dict(shape)
    encoder, eagle = own.pop("encoder", None), own.pop("eagle", None)
    if encoder is None:
        before = eagle is None or _shape(eagle, set(schema.EAGLE_FIELDS))
        return before and _shape(own, set(schema.SHAPE_FIELDS))
    return _shape(own, {*schema.SHAPE_FIELDS, "prefix"}) and _shape(encoder, set(schema.ENCODER_FIELDS))


def _shape(shape: Any, fields: set[str]) -> bool:
    """Whether a model's shape has these fields, all of them above zero or, of norms and yes-or-no, at it."""
    if not isinstance(shape, dict) or set(shape) != fields:
        return False
    least = dict.fromkeys(("vectors", "last", "gated", "tied", "entered", "fused"), 0)
    return all(isinstance(v, int | float) and least.get(name, 1e-6) <= v < 1e12 for name, v in shape.items())


def _ids(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**31 for v in values)


def decode_pieces(pieces: Any, where: str) -> dict[int, bytes]:
    try:
        if pieces is not None and not isinstance(pieces, dict):
            raise ValueError
        return {int(token): base64.b64decode(text, validate=True) for token, text in (pieces or {}).items()}
    except (ValueError, TypeError, binascii.Error):
        raise TraceError(f"{where}: the token pieces are not base64 by token id") from None


def load_metadata(metadata: dict[bytes, bytes] | None, where: str) -> dict[str, Any]:
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
    return check_run(run, where)


# ---------------------------------------------------------------- before columns are read


def check_schema(found: pa.Schema, where: str) -> None:
    import pyarrow as pa

    for field in arrow_schema():
        if field.name in schema.ADDED and field.name not in found.names:
            continue
        index = found.get_field_index(field.name)  # -1 if missing or twice
        if index < 0:
            raise TraceError(f"{where}: column '{field.name}' is missing or stands there twice")
        kind = found.field(index).type
        inner = kind.value_type if pa.types.is_list(kind) else kind
        if isinstance(inner, pa.DictionaryType):
            kind = pa.list_(inner.value_type) if pa.types.is_list(kind) else inner.value_type
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


# ---------------------------------------------------------------- columns


def list_sizes(column: Any) -> np.ndarray:
    """Length of each row's list, -1 for null."""
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_value_length(column), -1).to_numpy().astype(np.int64)


def index_within(size: np.ndarray) -> np.ndarray:
    """0, 1, ... within each row, for rows of the given sizes."""
    return np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)


def check_lengths(sizes: dict[str, np.ndarray], top_k: Any, where: str) -> None:
    """Lists of one group are as long as each other in every row; top lists `top_k` times as long.

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
                f"{where}: cycle {i} has {size} of signal_value; its nodes and names ask for {wanted[i]}"
            )
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


def check_values(table: pa.Table, where: str) -> None:
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
            limit = TEXT_LIMIT if name == "source" else WORD_LIMIT
            if max((n or 0 for n in longest), default=0) > limit:
                fail(name, f"has words longer than {limit} bytes")
        if column.type == pa.int32() and pc.any(pc.less(column, 0)).as_py():
            fail(name, "has negative numbers")
        if name == "top_k" and (pc.max(column).as_py() or 0) > 1_000_000:
            fail(name, "has absurd numbers")
    indices = (*TOKEN_COLUMNS, "node_parent", "pred_node", "out_position", "tail_position", "pass_tokens")
    for name in (n for n in names if n in indices):
        flat = pc.list_flatten(table.column(name))
        least = -1 if name in ("node_parent", "pred_node") else 0
        if flat.null_count or pc.any(pc.less(flat, least)).as_py():
            fail(name, "has empty or negative entries")
    if "node_parent" in names:
        size = np.maximum(list_sizes(table.column("node_parent")), 0)
        parent = pc.list_flatten(table.column("node_parent")).to_numpy()
        if (parent >= index_within(size)).any():
            fail("node_parent", "has a parent that does not stand before its child")
    if "pred_node" in names and "node_token" in names:
        nodes = np.maximum(list_sizes(table.column("node_token")), 0)
        size = np.maximum(list_sizes(table.column("pred_node")), 0)
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
