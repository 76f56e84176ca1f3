"""Adds the dense record's columns to a finished run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from specviz import schema
from specviz.trace.checks import list_sizes, plain_run
from specviz.trace.files import TOKEN_COLUMNS, Record, arrow_schema, arrow_type, encode_pieces
from specviz.trace.reading import StoredRun
from specviz.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

TYPES = {c.name: c.type for c in schema.COLUMNS}
DENSE = tuple(name for name in TYPES if name.startswith(("out_top_", "out_draft_")))
TAILS = tuple(name for name in TYPES if name.startswith("tail_"))


def attach(
    trace: Trace, rows: np.ndarray, values: dict[str, np.ndarray], top_k: int, about: Record | None,
    piece: Callable[[int], bytes],
) -> Trace:  # fmt: skip
    """A copy of a run with its dense columns filled.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    rows : array of int, shape [n]
        Rows of `trace.outputs` that the values belong to; the others get 0 and no probability.
    values : dict of str to array [n] or [n, top_k]
        Columns of `DENSE`; those left out stay null. With ``tail`` [n], the length of each row's tail, also
        the columns of `TAILS`, one row's tail after another's.
    top_k : int
        Candidates in each top list. Lists that the run already has must be of this length.
    about : dict or None
        The run's metadata field ``dense``.
    piece : callable
        Returns the bytes of a token id.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    run = dict(trace.run)
    table = trace.arrow([c.name for c in schema.COLUMNS]).cast(arrow_schema())
    count = np.maximum(list_sizes(table.column("out_token")), 0)
    row = np.repeat(rows, values.get("tail", 0))  # the row of each tail token
    tails = np.bincount(np.repeat(np.arange(len(table)), count)[row], minlength=len(table))
    new: set[int] = set()
    for name in (*DENSE, *TAILS):
        array: pa.Array = pa.nulls(len(table), arrow_type(TYPES[name]))
        if name in values:
            given, dense = values[name], name in DENSE
            flat = _spread(given, rows, int(count.sum())) if dense else given[np.argsort(row, kind="stable")]
            sizes = count * (given.shape[1] if given.ndim > 1 else 1) if dense else tails
            entries = pa.array(flat.ravel(), from_pandas=dense and flat.dtype.kind == "f")
            ends = np.append(0, np.cumsum(sizes)).astype(np.int32)
            array = pa.ListArray.from_arrays(ends, entries.cast(array.type.value_type))
            if name in TOKEN_COLUMNS:
                new.update(np.unique(given).tolist())
        table = _with(table, name, array)
    table = _with(table, "top_k", pc.fill_null(table.column("top_k"), pa.scalar(top_k, pa.int32())))
    pieces = trace.pieces
    pieces |= {token: piece(token) for token in new if token not in pieces}
    record = run["record"] if run["record"] == "all" else "dense"
    run |= {"dense": about, "record": record, "pieces": encode_pieces(pieces)}
    return Trace([StoredRun(plain_run(run), table=table)], trace._prompts)


def _spread(values: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Put values into their rows of `count`; the other rows are 0, or NaN for floats."""
    whole = np.zeros((count, *values.shape[1:]), values.dtype)
    if values.dtype.kind == "f":
        whole[:] = np.nan
    whole[rows] = values
    return whole


def _with(table: pa.Table, name: str, array: pa.Array) -> pa.Table:
    """The table with the column `name` replaced."""
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), array)
