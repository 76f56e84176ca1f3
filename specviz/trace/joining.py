"""Joins a method's runs over different texts, such as the files of `specviz bench run --traces`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from specviz import schema
from specviz.errors import TraceError
from specviz.trace.files import Record, encode_pieces
from specviz.trace.reading import StoredRun
from specviz.trace.trace import pieces_in, with_column

if TYPE_CHECKING:
    from specviz.trace.trace import Trace

# Fields in which runs of one method, models, settings and machine may differ.
OWN = ("run", "prompts", "pieces", "created", "memory", "peak_memory", "complete", "stopped")


def contenders(runs: Sequence[Trace]) -> list[list[Trace]]:
    """Group runs that differ only in their texts."""
    groups: dict[str, list[Trace]] = {}
    for run in runs:
        about = {name: run.run.get(name) for name in schema.RUN_FIELDS if name not in OWN}
        about["sampling"] = {k: v for k, v in (about["sampling"] or {}).items() if k != "seed"}
        groups.setdefault(json.dumps(about, sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def join(runs: Sequence[Trace]) -> StoredRun:
    """Join the texts of runs that differ in nothing else into one run, on one clock."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = runs[0].run
    mark = hashlib.sha256("\n".join(run.run["run"] for run in runs).encode()).hexdigest()[:8]
    name = f"{first['method']}-{mark}"
    prompts: list[Record] = []
    pieces: dict[int, bytes] = {}
    first_only = True  # whether each run is its first text alone
    tables, clock = [], 0.0
    for run in runs:
        own = sorted(set(run.cycles["prompt"].tolist()))
        table = run.arrow([column.name for column in schema.COLUMNS])
        numbers = np.searchsorted(own, table.column("prompt").to_numpy()) + len(prompts)
        table = with_column(table, "prompt", numbers)
        table = with_column(table, "run", [name] * len(table))
        start, duration = (table.column(each).to_numpy() for each in ("start", "duration"))
        passes = table.column("pass_start").combine_chunks()
        begun = pa.ListArray.from_arrays(passes.offsets, pc.add(passes.values, clock), mask=passes.is_null())
        tables.append(with_column(with_column(table, "start", start + clock), "pass_start", begun))
        clock += max(0.0, float(np.nanmax(start + duration, initial=0.0)))
        pieces |= run.pieces
        first_only &= own == [0]
        every = run.run["prompts"] or [{}] * (1 + max(own, default=0))
        prompts += [every[number] for number in own]
    if len(runs) > 1 and any(p.get("length") and not p.get("tokens") for p in prompts):
        raise TraceError(
            f"the prompts of {first['method']} were redacted, so nothing shows whether its {len(runs)} runs "
            "decoded the same ones: take one with select(run=...), or join before redacting"
        )
    _check_once(prompts, first["method"])
    about = dict(first) | {
        "run": name, "prompts": prompts, "pieces": encode_pieces(pieces),
        "complete": all(run.run["complete"] for run in runs), "peak_memory": None,
        "stopped": next((run.run["stopped"] for run in runs if not run.run["complete"]), None),
    }  # fmt: skip
    if len(runs) > 1 or own != list(range(len(own))):  # otherwise it is one run from its start
        about["memory"] = _memory(runs, first_only)
    table = pa.concat_tables(tables).unify_dictionaries()
    return StoredRun(about | {"pieces": pieces_in(about, table)}, table=table)


def _memory(runs: Sequence[Trace], first_only: bool) -> Record | None:
    """The memory with which every text of the runs began; None if it is not the same for all."""
    start, *others = [(run.run["memory"] or {}).get("start") for run in runs]
    if not start or any(other != start for other in others):
        return None
    return {"start": start | {"keep": "prompt"}} if first_only or start.get("keep") == "prompt" else None


def _check_once(prompts: Sequence[Record], method: str) -> None:
    """Refuse a prompt that occurs twice: a second round or seed is not another text."""
    seen = [tuple(prompt["tokens"]) for prompt in prompts if prompt.get("tokens")]
    if len(set(seen)) < len(seen):
        raise TraceError(
            f"{method} decoded {len(seen) - len(set(seen))} of {len(seen)} prompts more than once (another "
            f"round or seed): take one run of each with select(run=[...]), then join"
        )
