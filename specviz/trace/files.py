"""Format of a run's file, and how the file is written in one piece.

The columns of `specviz.schema` are Arrow types, the run's metadata is JSON, and the finished file is Parquet.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specviz import schema
from specviz.errors import TraceError
from specviz.files import replacing

if TYPE_CHECKING:
    import pyarrow as pa

Plain: TypeAlias = Any  # what JSON can hold
Record: TypeAlias = dict[str, Plain]  # a JSON object: the metadata of a run, a row, a line
PARTIAL = ".partial"  # suffix of a run's stream until the run has ended; see `partial_of`
KEY = b"specviz"  # key of the run's metadata in the file
GROUP_BYTES = 64 << 20  # approximate size of a row group of the finished file
METADATA_LIMIT = 64 << 20  # maximum bytes of a file's footer or header that is read ...
RUN_LIMIT = 60 << 20  # ... and of the run's metadata that is written in it, next to Parquet's own
GROWTH = 4 << 20  # bytes of metadata that a run is expected to add, such as its tokens' pieces
SEVERAL = "decode the prompts in several runs"
KEYS = ("run", "method", "prompt", "row", "update", "cycle")
TOKEN_COLUMNS: tuple[str, ...] = ("node_token", "node_top_token", "pred_top_token", "out_token")
TOKEN_COLUMNS += ("out_top_token", "out_draft_token", "tail_token")


def partial_of(path: Path) -> Path:
    """Path of the stream of a run in progress, next to its file; readers of folders skip names with ``_``."""
    return path.with_name(f"_{path.name}{PARTIAL}")


def arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    if name.startswith("list<"):
        return pa.list_(arrow_type(name[5:-1]))
    plain = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "uint64": pa.uint64()}
    return {**plain, "float": pa.float32(), "double": pa.float64(), "bool": pa.bool_()}[name]


def arrow_schema(run: Record | None = None) -> pa.Schema:
    """The record's columns as an Arrow schema, with the run's metadata if given."""
    import pyarrow as pa

    fields = [pa.field(c.name, arrow_type(c.type)) for c in schema.COLUMNS]
    return pa.schema(fields, {KEY: dump(run)} if run is not None else None)


def dump(value: Plain) -> bytes:
    def plain(x: Plain) -> Plain:
        if hasattr(x, "item"):  # a NumPy number
            return x.item()
        if isinstance(x, os.PathLike):
            return os.fspath(x)
        raise TypeError(f"run metadata cannot hold a {type(x).__name__}")

    return json.dumps(value, default=plain, ensure_ascii=False).encode("utf8", "replace")


def encode_pieces(pieces: dict[int, bytes]) -> dict[str, str]:
    return {str(token): base64.b64encode(piece).decode("ascii") for token, piece in pieces.items()}


def reason(error: BaseException) -> str:
    """The system's error message, or the first line of the error's own."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error).splitlines()[0][:200]


def check_fits(run: Record, remedy: str = SEVERAL, growth: int = 0) -> bytes:
    """Return the run's metadata as JSON, if a file can hold it and `growth` more bytes.

    Raises
    ------
    TraceError
        If it is longer than `RUN_LIMIT`; the message ends with the remedy.
    """
    text, limit = dump(run), RUN_LIMIT - growth
    if len(text) > limit:
        raise TraceError(
            f"the run's metadata takes {len(text) >> 20} MiB, and a file has room for {limit >> 20} MiB "
            f"(the ids of all prompts count): {remedy}"
        )
    return text


def write_parquet(path: Path, run: Record, batches: Iterable[pa.RecordBatch], remedy: str = SEVERAL) -> None:
    """Write a run's file under another name, then rename it, so that there is never half a file.

    Raises
    ------
    TraceError
        If the run's metadata is too long; see `check_fits`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    text, names = check_fits(run, remedy), arrow_schema()
    with replacing(path) as part, open(part, "xb") as file:
        # Without Arrow's copy of the schema, which would hold the metadata again or hide it from its readers.
        with pq.ParquetWriter(file, names, compression="zstd", store_schema=False) as writer:
            held: list[pa.RecordBatch] = []
            size = 0
            for batch in batches:
                held.append(batch)
                size += batch.nbytes
                if size > GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held, names))
                    held, size = [], 0
            writer.write_table(pa.Table.from_batches(held, names))
            writer.add_key_value_metadata({KEY: text})
        file.flush()
        os.fsync(file.fileno())
