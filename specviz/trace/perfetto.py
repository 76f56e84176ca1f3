"""Writes a trace as a Chrome trace-event file, which ui.perfetto.dev, chrome://tracing and speedscope read.

The format is Google's *Trace Event Format* (JSON object form): complete events ``X``, counters ``C`` and
metadata ``M``, times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import TraceError
from specviz.escape import visible
from specviz.schema import PHASES
from specviz.trace.files import Record
from specviz.trace.text import token_bytes

if TYPE_CHECKING:
    import pandas as pd

    from specviz.trace.trace import Trace

TRACKS = ("cycles", "passes")  # per batch row


def perfetto(trace: Trace) -> str:
    """The file's text: one process per run; per batch row, a track of cycles and one of forward passes.

    Raises
    ------
    TraceError
        If no cycle has a start and a duration.
    """
    events = [event for number, run in enumerate(trace.split(), 1) for event in _run(run, number)]
    if not any(event["ph"] == "X" for event in events):
        raise TraceError("the trace has no times: record it with record='judged' or 'all'")
    whole = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"writer": "specviz"}}
    return json.dumps(whole, ensure_ascii=False, allow_nan=False)


def _run(run: Trace, pid: int) -> Iterator[Record]:
    cycles, passes = run.cycles, run.passes
    timed = cycles[np.isfinite(cycles["start"]) & np.isfinite(cycles["duration"])]
    yield _event("M", "process_name", pid, 0, args={"name": visible(f"{pid}: {run.run['method']}")})
    pieces = run.pieces
    tokens: dict[tuple[int, ...], list[int]] = {}  # of each cycle
    columns = (run.outputs[name].tolist() for name in ("prompt", "update", "cycle", "token"))
    for *cycle, token in zip(*columns):
        tokens.setdefault(tuple(cycle), []).append(token)
    words = {
        cycle: b"".join(b for _, b in token_bytes(pieces, ids)).decode("utf8", "backslashreplace")
        for cycle, ids in tokens.items()
    }
    for row, of_row in timed.groupby("row"):
        tracks = {name: 1 + len(TRACKS) * int(row) + k for k, name in enumerate(TRACKS)}
        for name, tid in tracks.items():
            title = name if timed["row"].nunique() == 1 else f"{name}, batch row {int(row)}"
            yield _event("M", "thread_name", pid, tid, args={"name": title})
        yield from _cycles(of_row, words, pid, tracks["cycles"])
        yield from _passes(passes[passes["row"] == row], pid, tracks["passes"])
    yield from _counters(timed, pid)


def _cycles(cycles: pd.DataFrame, words: dict[tuple[int, ...], str], pid: int, tid: int) -> Iterator[Record]:
    """Each cycle as a slice that contains its phases in order."""
    begins = _ns(cycles["start"].to_numpy(float))
    ends = np.minimum(begins + _ns(cycles["duration"].to_numpy(float)), np.append(begins[1:], 2**62))
    spent = np.nan_to_num(cycles[[f"{phase}_time" for phase in PHASES]].to_numpy(float))
    edges = np.minimum(begins[:, None] + _ns(np.cumsum(spent, axis=1)), ends[:, None])
    edges = np.column_stack([begins, edges])
    for i, cycle in enumerate(cycles.to_dict("records")):
        key = (cycle["prompt"], cycle["update"], cycle["cycle"])
        counts = {
            name: int(cycle[name]) for name in ("prompt", "cycle", "drafted", "sent", "accepted", "emitted")
        }
        name = f"cycle {counts['cycle']}" if counts["cycle"] else "prefill"
        text = visible(words.get(key, ""))
        yield _event("X", name, pid, tid, begins[i], ends[i] - begins[i], counts | {"text": text})
        for k, phase in enumerate(PHASES):
            if edges[i, k + 1] > edges[i, k]:
                yield _event("X", phase, pid, tid, edges[i, k], edges[i, k + 1] - edges[i, k])


def _passes(passes: pd.DataFrame, pid: int, tid: int) -> Iterator[Record]:
    timed = passes[np.isfinite(passes["start"]) & np.isfinite(passes["duration"])].sort_values("start")
    begins = _ns(timed["start"].to_numpy(float))
    ends = np.minimum(begins + _ns(timed["duration"].to_numpy(float)), np.append(begins[1:], 2**62))
    for i, one in enumerate(timed.to_dict("records")):
        facts = {"rows": int(one["rows"]), "tokens": int(one["tokens"])}
        yield _event("X", f"{one['model']} pass", pid, tid, begins[i], ends[i] - begins[i], facts)


def _counters(cycles: pd.DataFrame, pid: int) -> Iterator[Record]:
    """Counters of sent tokens, accepted or not, and the acceptance rate, set when each cycle starts.

    Rows of a batch begin their cycles at the same time, so their counts are summed.
    """
    begins = _ns(cycles["start"].to_numpy(float))
    counts_at = cycles[["sent", "accepted"]].groupby(begins).sum()
    for at, sent, accepted in counts_at.itertuples():
        counts = {"accepted": int(accepted), "not accepted": int(sent - accepted)}
        yield _event("C", "draft tokens", pid, 0, at, args=counts)
        yield _event(
            "C", "acceptance rate", pid, 0, at, args={"rate": float(accepted / sent) if sent else 0.0}
        )
    if len(cycles):
        last = int((begins + _ns(cycles["duration"].to_numpy(float))).max())
        yield _event("C", "draft tokens", pid, 0, last, args={"accepted": 0, "not accepted": 0})
        yield _event("C", "acceptance rate", pid, 0, last, args={"rate": 0.0})


def _ns(seconds: np.ndarray) -> np.ndarray:
    """Whole nanoseconds, so that adjacent slices do not overlap by a rounding error."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _event(
    ph: str, name: str, pid: int, tid: int, ts: int = 0, dur: int | None = None, args: Record | None = None
) -> Record:
    """One event; `ts` and `dur` in nanoseconds."""
    event: Record = {"ph": ph, "name": name, "pid": pid, "tid": tid, "ts": int(ts) / 1e3}
    if dur is not None:
        event |= {"dur": int(dur) / 1e3, "cat": "decode"}
    return event | ({"args": args} if args else {})
