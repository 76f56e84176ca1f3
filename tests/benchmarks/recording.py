"""Write the file of recorded replays in ``data/runs``; `specviz.replays.recorded` reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specviz.files import write_bytes
from specviz.replays.recorded import KEY, PROVENANCE, SCHEMA
from specviz.replays.replays import Replays


def write_replays(every: Replays, path: str | Path, force: bool = False) -> Path:
    """Record replays, one row per cell: the published number, the measured one and its provenance.

    Raises
    ------
    TraceError
        If the file exists (unless `force`).
    """
    tables, rows = [], []
    for each in every.tables:
        content = each.content
        sources, cells = content.pop("sources"), content.pop("cells")
        tables.append(content | {"runs": [], "traces": []})
        for row in cells:
            keys = {name: row[name] for name in each.keys}
            here = {} if row["source"] is None else sources[row["source"]]
            own = {name: value for name, value in row.items() if name not in keys and name != "source"}
            rows.append(
                {"table": each.table, "keys": json.dumps(keys, ensure_ascii=False)}
                | own
                | {f"here_{name}": here.get(name) for name in PROVENANCE}
            )
    about = {"specviz": "recorded replays", "schema": SCHEMA, "tables": tables, "left": every.left}
    table = pa.Table.from_pylist(rows).replace_schema_metadata({KEY: json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return write_bytes(Path(path), sink.getvalue().to_pybytes(), force)
