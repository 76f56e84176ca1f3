"""Writes `Counts` as AIPerf's records, so that tools for those can read a run of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specviz.errors import TraceError
from specviz.files import write_text
from specviz.trace.counts import SUMS, Counts
from specviz.trace.files import Record


def write_aiperf(counts: Counts, path: Path, force: bool = False) -> Path:
    """Write one line per request in the format of AIPerf's ``profile_export.jsonl``.

    As in AIPerf, a request that drafted nothing has no acceptance record, and unknown values are left out.
    Steps are those with a draft; tokens that a step accepted after the text's end are not counted. AIPerf's
    own loader (`MetricRecordInfo` of aiperf 0.13.0) requires times of day.

    Raises
    ------
    TraceError
        If the file exists (unless `force`) or cannot be written, or the counts do not say how much each
        request drafted.
    """
    import pandas as pd

    if path.exists() and not force:
        raise TraceError(f"{path} exists: choose another name, or replace it with force=True")
    if counts.pooled:
        raise TraceError(f"{counts.where} holds {SUMS}, but AIPerf's records are per request")
    table = counts.requests
    if table[["drafted", "accepted"]].isna().any(axis=None):
        raise TraceError(
            f"{counts.origin} does not say how many tokens were drafted, which AIPerf's records hold"
        )
    if (table["drafts"].isna() & (table["drafted"] > 0)).any():
        raise TraceError(f"{counts.origin} does not say which steps had a draft, which AIPerf's records hold")
    by = dict(iter(counts.steps.groupby("request")))
    lines = []
    for i, given in enumerate(table.to_dict("records")):
        row = {str(name): None if pd.isna(value) else value for name, value in given.items()}
        lines.append(json.dumps(_record(i, row, by.get(i), counts), ensure_ascii=False))
    return write_text(path, "\n".join(lines) + "\n", force)


def _record(number: int, row: Record, steps: Any, counts: Counts) -> Record:
    metadata: Record = {
        "session_num": number, "conversation_id": row["id"], "turn_index": 0, "worker_id": "specviz",
        "record_processor_id": "specviz", "benchmark_phase": "profiling", "was_cancelled": False,
    }  # fmt: skip
    if row["begin"] is not None and row["seconds"] is not None:
        metadata["request_start_ns"] = round(row["begin"] * 1e9)
        metadata["request_end_ns"] = round((row["begin"] + row["seconds"]) * 1e9)
    metrics = {}
    for tag, column, unit, scale in (
        ("input_sequence_length", "prompt_tokens", "tokens", 1),
        ("output_sequence_length", "output", "tokens", 1),
        ("time_to_first_token", "first", "ms", 1e3),
        ("request_latency", "seconds", "ms", 1e3),
    ):
        if row[column] is not None:
            metrics[tag] = {"value": row[column] * scale, "unit": unit}
    request: Record = {"metadata": metadata, "metrics": metrics}
    accepted, drafted, n = int(row["accepted"]), int(row["drafted"]), int(row["drafts"] or 0)
    if n and steps is not None:
        some = steps[steps["depth"].fillna(steps["drafted"]).fillna(1) > 0]
        histogram = some["accepted"].value_counts().sort_index()
        record = {
            "engine": counts.origin.removesuffix("-log"), "mean_acceptance_length": 1 + accepted / n,
            "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
            "acceptance_histogram": {str(j): int(count) for j, count in histogram.items()},
            "num_accepted_draft_tokens": accepted, "num_draft_tokens": drafted, "num_spec_steps": n,
        }  # fmt: skip
        for name, value in (("num_spec_tokens", counts.most), ("completion_tokens", row["output"])):
            if value is not None:
                record[name] = value
        # Lookahead's window is read in steps without a draft too; then the list does not add up.
        if not some["drafted"].isna().any() and some["drafted"].sum() == drafted:
            record["per_step_accepted"] = [int(a) for a in some["accepted"]]
            record["per_step_drafted"] = [int(d) for d in some["drafted"]]
        request["spec_decode_acceptance"] = record
    return request
