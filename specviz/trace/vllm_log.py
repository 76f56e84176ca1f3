"""Reads what a vLLM server logs of speculation as `Counts`: sums over all requests.

Every few seconds vLLM prints a line ``SpecDecoding metrics``: the tokens drafted and accepted since the last
one, the mean acceptance length (two decimals) and the share of drafts accepted at each position (three). The
number of drafts is not printed, but inferred: it is drafted tokens / positions, if that fits these numbers
(drafts of full length), otherwise the count that is nearest to the rates. For drafts of full length the
counts are exact up to about a thousand drafts per line; above that each rate stays within its last decimal.
A line without an accepted token fits any count: its drafts are assumed full only if those of all lines with
one are. Every verify step is assumed to have had a draft.

Source: vllm, v1/spec_decode/metrics.py (SpecDecodingLogging), 0.9 to 0.26; the order of the fields differs.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from specviz.errors import ParameterError, TraceError, plural
from specviz.trace.counts import STEP, SUMS, Counts, left_out_table, request_table, step_table
from specviz.trace.files import Record
from specviz.trace.foreign import Line, text_of

VLLM_LOG = "vllm-log"
DRAFTING_ONLY = "steps without a draft, which the log does not count: with them tokens per step are fewer"
SIGN = "SpecDecoding metrics:"
NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
MEAN = re.compile(rf"Mean acceptance length: {NUMBER}")
ACCEPTED, DRAFTED = (re.compile(rf"\b{name}: ([0-9]{{1,9}}) tokens") for name in ("Accepted", "Drafted"))
RATES = re.compile(r"Per-position acceptance rate: ([0-9.]+(?:, [0-9.]+)*)")
VERSION = re.compile(r"vLLM API server version ([\w.+-]{1,40})")
LONGEST = 4096  # characters of a line that are read
WIDEST = 5000  # how far below and above the likely number of drafts to search
HALF_RATE, HALF_MEAN = 5.01e-4, 5.01e-3  # half of the last printed decimal, with a margin


def read_vllm_log(path: Path, plain: bool = False) -> Counts:
    """Read the sums of all lines of the log `path`, as one row.

    Arguments and errors are those of `specviz.trace.read_counts`.
    """
    if plain:
        raise ParameterError(f"speedups compare requests, but a server's log has {SUMS}: drop the baseline")
    total = dict.fromkeys(("drafts", "drafted", "accepted"), 0)
    at: list[int] = []
    left_out: list[Record] = []
    unknown: list[tuple[int, int]] = []  # lines whose number of drafts is unknown, and their drafted tokens
    nothing: list[tuple[int, int, int]] = []  # lines without accepted tokens: number, full drafts, tokens
    version, full = None, True
    for number, text in enumerate(text_of(path, "replace").split("\n"), 1):
        text, line = text[:LONGEST], Line(path, number, {})
        if match := VERSION.search(text):
            version = f"vLLM {match[1]}"
        if SIGN not in text:
            continue
        counted = _interval(line, text)
        if isinstance(counted, str):
            left_out.append({"line": number, "why": counted})
            continue
        if isinstance(counted, int):
            unknown.append((number, counted))
            continue
        drafts, drafted, accepted = counted
        if at and len(at) != len(accepted):
            line.fail(
                f"has {len(accepted)} positions, but earlier lines {len(at)}: use the log of one server start"
            )
        at = [a + b for a, b in zip(at or [0] * len(accepted), accepted)]
        if not any(accepted):
            nothing.append((number, drafts, drafted))
            continue
        full = full and drafted == drafts * len(accepted)
        for name, count in zip(total, (drafts, drafted, sum(accepted))):
            total[name] += count
    for number, drafts, drafted in nothing:
        if full:
            total["drafts"] += drafts
            total["drafted"] += drafted
        else:
            unknown.append((number, drafted))
    if unknown:
        tokens = sum(drafted for _, drafted in unknown)
        why = (
            f"{plural(len(unknown), 'line')} from here on with {tokens:,} drafted tokens, none accepted, do "
            "not show how many drafts these were; without them tokens per step are too high"
        )
        left_out.append({"line": min(unknown)[0], "why": why})
    if not at:
        why = f": {left_out[0]['why']}" if left_out else f": it has no line '{SIGN}'"
        raise TraceError(f"{path} counts no drafts{why}")
    n, accepted_tokens = total["drafts"], total["accepted"]
    row = {"id": "all requests", **total, "steps": n, "emitted": n + accepted_tokens}
    depth = len(at) if full else None
    steps = [
        (0, depth, depth, a, a + 1, 0, times)
        for a, times in enumerate(b - c for b, c in zip([n, *at], [*at, 0]))
    ]
    return Counts(
        origin=VLLM_LOG,
        where=str(path),
        requests=request_table([row]),
        steps=step_table(dict(zip(STEP, zip(*steps)))),
        most=len(at),
        left_out=left_out_table(left_out),
        pooled=True,
        version=version,
    )


def _interval(line: Line, text: str) -> tuple[int, int, list[int]] | int | str:
    """Drafts, drafted tokens and tokens accepted at each position, from one line.

    If none was accepted and the drafts cannot be counted, only the drafted tokens; if the line says nothing,
    the reason why.
    """
    fields = [pattern.search(text) for pattern in (ACCEPTED, DRAFTED, MEAN, RATES)]
    if fields[0] is None or fields[1] is None:
        line.fail(f"is not a line '{SIGN}' as vLLM prints it: it lacks the accepted and the drafted tokens")
    accepted, drafted = int(fields[0][1]), int(fields[1][1])
    if accepted > drafted:
        line.fail(f"accepted {accepted} of {drafted} drafted tokens")
    if not drafted:
        return "nothing was drafted"
    if fields[2] is None or fields[3] is None:
        return "this version of vLLM does not print the acceptance by position"
    try:
        mean, rates = float(fields[2][1]), np.array([float(part) for part in fields[3][1].split(", ")])
    except ValueError:
        line.fail(f"has rates that are not numbers: {fields[3][1][:40]}")
    if (np.diff(rates) > 0).any() or rates[0] > 1:
        line.fail("has rates per position that rise or exceed 1")
    for drafts in _candidates(rates, drafted, accepted):
        at = _at_positions(rates, drafts, accepted)
        if at is not None and abs(1 + accepted / drafts - mean) <= HALF_MEAN:
            return drafts, drafted, at
    if not accepted:
        return drafted
    line.fail(
        f"has a mean length of {mean}, {accepted} accepted and {drafted} drafted tokens and rates per "
        f"position that no number of drafts explains"
    )


def _candidates(rates: np.ndarray, drafted: int, accepted: int) -> list[int]:
    """Draft counts consistent with the summed rates: full drafts first, then by likelihood."""
    most, share = len(rates), float(rates.sum())
    full = [drafted // most] if drafted % most == 0 else []
    if not accepted:
        return full
    least = accepted / (share + most * HALF_RATE)
    largest = accepted / (share - most * HALF_RATE) if share > most * HALF_RATE else drafted
    likely = min(max(accepted / share if share else drafted / most, least), largest)
    first, last = max(math.floor(least), -(-drafted // most)), min(math.ceil(largest), drafted)
    near = range(max(first, int(likely) - WIDEST), min(last, int(likely) + WIDEST) + 1)
    return full + sorted(near, key=lambda n: abs(n - likely))


def _at_positions(rates: np.ndarray, drafts: int, accepted: int) -> list[int] | None:
    """Falling counts at each position that add up to `accepted` and print as `rates`; None if none do."""
    low = np.ceil((rates - HALF_RATE) * drafts).clip(0).astype(int)
    high = np.floor((rates + HALF_RATE) * drafts).clip(0, drafts).astype(int)
    at = np.rint(rates * drafts).astype(int).clip(low, high)
    if (low > high).any():
        return None
    rest = accepted - int(at.sum())
    # A shortfall is added at the first positions and an excess taken from the last, so the counts still fall.
    room = high - at if rest > 0 else (at - low)[::-1]
    before = np.concatenate([[0], np.cumsum(room)[:-1]])
    change = (abs(rest) - before).clip(0, room)
    at = at + change if rest > 0 else at - change[::-1]
    if int(at.sum()) != accepted or (np.diff(at) > 0).any():
        return None
    return [int(count) for count in at]
