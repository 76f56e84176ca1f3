"""What the file of a run looks like, and how it is written whole.

The columns of `specviz.schema` as Arrow types, the run's metadata as JSON, Parquet at the end.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from specviz import schema
from specviz.files import replacing

if TYPE_CHECKING:
    import pyarrow as pa

Plain: TypeAlias = Any  # what JSON holds, and what is written as such
Record: TypeAlias = dict[str, Plain]  # an object of it: the metadata of a run, a row, a line
PARTIAL = ".partial"  # how the name of a run's stream ends while the run goes on; see `partial_of`
KEY = b"specviz"  # where the run's metadata stands in the file
GROUP_BYTES = 64 << 20  # a row group of the finished file
KEYS = ("run", "method", "prompt", "row", "update", "cycle")
TOKEN_COLUMNS: tuple[str, ...] = ("node_token", "node_top_token", "pred_top_token", "out_token")
TOKEN_COLUMNS += ("out_top_token", "out_draft_token", "tail_token")


def partial_of(path: Path) -> Path:
    """The stream beside a run's file while it goes on; what reads a folder as one table passes over ``_``."""
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
    """What the system said, in words."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if number else str(error).splitlines()[0][:200]


def write_parquet(path: Path, run: Record, batches: Iterable[pa.RecordBatch]) -> None:
    """Write a run's file under another name, then rename it: there is never half a file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = arrow_schema(run)
    with replacing(path) as part, open(part, "xb") as file:
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
