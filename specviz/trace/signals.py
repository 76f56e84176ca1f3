"""Node signals without a column of their own: packed into two columns of the record, and unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from specviz import schema
from specviz.errors import TraceError
from specviz.trace.checks import index_within, list_sizes

if TYPE_CHECKING:
    import pyarrow as pa

DISTINCT = 64  # maximum number of such signals in a trace
Lists = tuple[Any, np.ndarray]  # all entries of a list column, and each cycle's count (-1: null)


def pack(columns: dict[str, Lists], cycles: int) -> dict[str, Lists]:
    """Pack one list column per signal into the columns ``signal_name`` and ``signal_value``."""
    names = sorted(columns)
    counts = np.stack([columns[name][1] for name in names], 1)  # [cycles, names]
    present = counts >= 0
    size = np.maximum(counts, 0)
    values = np.concatenate([np.asarray(columns[name][0], np.float32).reshape(-1) for name in names])
    if len(values) != size.sum():
        raise TraceError(f"the signals {', '.join(names)} have {len(values)} values for {size.sum()} nodes")
    cycle = np.concatenate([np.repeat(np.arange(cycles), size[:, i]) for i in range(len(names))])
    values = values[np.argsort(cycle, kind="stable")]
    none = ~present.any(1)
    return {
        "signal_name": (np.array(names, object)[present.nonzero()[1]].tolist(), present.sum(1) - none),
        "signal_value": (values, size.sum(1) - none),
    }


def unpack(table: pa.Table, nodes: np.ndarray, taken: set[str], where: str) -> dict[str, np.ndarray]:
    """Unpack one array over all nodes per signal, NaN where a cycle did not give it.

    Parameters
    ----------
    table : pa.Table
        Holds ``signal_name`` and ``signal_value``, with checked lengths.
    nodes : array [cycles]
        Number of nodes of each cycle.
    taken : set of str
        Columns whose names a signal must not have.

    Raises
    ------
    TraceError
        If a name is invalid or is that of another column, or there are too many.
    """
    import pyarrow.compute as pc

    given = np.maximum(list_sizes(table.column("signal_name")), 0)
    names = pc.list_flatten(table.column("signal_name")).to_numpy(zero_copy_only=False).astype(object)
    values = pc.list_flatten(table.column("signal_value")).to_numpy(zero_copy_only=False)
    distinct = sorted({name for name in names if isinstance(name, str)})
    wrong = [name for name in distinct if not schema.is_signal(name) or name in taken]
    if wrong or len(distinct) > DISTINCT or any(name is None for name in names):
        raise TraceError(
            f"{where}: a signal cannot be called {wrong[0][:40]!r}" if wrong
            else f"{where}: column 'signal_name' has empty entries or more than {DISTINCT} names"
        )  # fmt: skip
    owner, place = np.repeat(np.arange(len(given)), given), index_within(given)
    first_value = np.cumsum(given * nodes) - given * nodes
    first_node = np.cumsum(nodes) - nodes
    columns = {}
    for name in distinct:
        cycle, at = owner[names == name], place[names == name]
        size = nodes[cycle]
        within = index_within(size)
        column = columns[name] = np.full(int(nodes.sum()), np.nan, np.float32)
        column[np.repeat(first_node[cycle], size) + within] = values[
            np.repeat(first_value[cycle] + at * size, size) + within
        ]
    return columns
