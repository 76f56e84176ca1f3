"""Adding the dense record's columns to a finished run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specviz import schema
from specviz.trace.checks import list_sizes, plain_run
from specviz.trace.files import TOKEN_COLUMNS, arrow_schema, arrow_type, encode_pieces
from specviz.trace.reading import Store
from specviz.trace.trace import Trace

TYPES = {c.name: c.type for c in schema.COLUMNS}
DENSE = tuple(name for name in TYPES if name.startswith(("out_top_", "out_draft_")))
TAILS = tuple(name for name in TYPES if name.startswith("tail_"))


def attach(
    trace: Trace,
    rows: np.ndarray,
    values: dict[str, np.ndarray],
    top_k: int,
    about: dict[str, Any] | None,
    piece: Callable[[int], bytes],
) -> Trace:
    """A copy of a run with its dense columns filled.

    Parameters
    ----------
    trace : Trace
        Of one run.
    rows : array of int, shape [n]
        Rows of `trace.outputs` that the values belong to; the others get 0 and no probability.
    values : dict of str to array [n] or [n, top_k]
        Columns of `DENSE`; those left out stay null. With ``tail`` [n], how many tokens each row's tail has,
        the columns of `TAILS` as well, one row's tail after another's.
    top_k : int
        Candidates in each top list. Lists that the run has already must be as long.
    about : dict or None
        The run's field ``dense``.
    piece : callable
        Bytes of a token id.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    run = dict(trace.run)
    table = trace.arrow([c.name for c in schema.COLUMNS]).cast(arrow_schema())
    count = np.maximum(list_sizes(table.column("out_token")), 0)
    new: set[int] = set()
    for name in DENSE:
        array: Any = pa.nulls(len(table), arrow_type(TYPES[name]))
        if name in values:
            given = values[name]
            whole = np.zeros((int(count.sum()), *given.shape[1:]), given.dtype)
            if given.dtype.kind == "f":
                whole[:] = np.nan
            whole[rows] = given
            each = given.shape[1] if given.ndim > 1 else 1
            ends = np.append(0, np.cumsum(count * each)).astype(np.int32)
            flat = pa.array(whole.ravel(), from_pandas=given.dtype.kind == "f").cast(array.type.value_type)
            array = pa.ListArray.from_arrays(ends, flat)
            if name in TOKEN_COLUMNS:
                new.update(np.unique(given).tolist())
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), array)
    row = np.repeat(rows, values.get("tail", 0))  # of each token of a tail
    cycle = np.repeat(np.arange(len(table)), count)[row]
    ends = np.append(0, np.cumsum(np.bincount(cycle, minlength=len(table)))).astype(np.int32)
    for name in TAILS:
        array = pa.nulls(len(table), arrow_type(TYPES[name]))
        if name in values:
            given = values[name][np.argsort(row, kind="stable")]
            array = pa.ListArray.from_arrays(ends, pa.array(given).cast(array.type.value_type))
            if name in TOKEN_COLUMNS:
                new.update(np.unique(given).tolist())
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), array)
    at = table.schema.get_field_index("top_k")
    table = table.set_column(
        at, table.schema.field(at), pc.fill_null(table.column(at), pa.scalar(top_k, pa.int32()))
    )
    pieces = trace.pieces
    pieces |= {token: piece(token) for token in new if token not in pieces}
    run |= {"dense": about, "record": "dense", "pieces": encode_pieces(pieces)}
    made = Trace([Store(plain_run(run), table=table)])
    return made.select(prompt=trace.cycles["prompt"].unique().tolist())
