"""Readers of what llama.cpp, SGLang, LM Studio and mlx-lm record of speculation; see `specviz.trace.foreign`.

``llama.cpp``
    Responses of ``llama-server`` with ``timings`` (``predicted_n``, ``draft_n``,
    ``draft_n_accepted``), or only these. The first token of an answer is the prefill's, and each verify
    step adds one to what it accepts, so there are at least predicted_n - 1 - draft_n_accepted steps: tokens
    that the last one accepted after the answer's end are in draft_n_accepted, but not in predicted_n. How
    many tokens each step accepted is not recorded.
    Source: llama.cpp, tools/server (README and pull requests 12603, 14104 and 24536).
``llama.cpp-log``
    The server's log: for each request "prompt eval time", "eval time" and "draft acceptance"; and the
    "statistics" of each drafter, a slot's sums since the server was started: how long a draft takes. Newer
    servers print "acc per pos" on a line of its own (-lv 4); of llama-cli's log the runs are read.
    Source: llama.cpp, docs/speculative.md and tools/server/server-context.cpp.
``sglang``
    Responses of ``/generate`` or of a chat with ``return_meta_info``: ``meta_info`` with ``spec_verify_ct``,
    accepted and proposed drafts under the names of either version, and a histogram of accepted ones. Drafts
    may be trees. The first token is the prefill's. Source: sglang, managers/tokenizer_manager.py.
``lm-studio``
    Responses of ``/api/v0``, whose ``stats`` or ``usage`` has ``total_draft_tokens_count`` and its parts, or
    the SDK's statistics (``totalDraftTokensCount``). Source: LM Studio's REST reference and release 0.3.10.
``mlx-lm``
    Responses of ``stream_generate`` as JSON lines, one per token: ``from_draft``, ``generation_tokens``
    and ``generation_tps``. How many tokens were drafted is not recorded.
    Source: mlx-lm, generate.py (GenerationResponse).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from specviz.errors import TraceError
from specviz.files import parsed
from specviz.trace.files import Record
from specviz.trace.foreign import (
    CHUNK,
    COUNTERS,
    NO_COUNTS,
    STEP_LIMIT,
    Line,
    Request,
    json_of,
    lines_of,
    text_of,
    unframed,
    word_of,
)
from specviz.trace.vllm_log import NUMBER, SIGN, VLLM_LOG

if TYPE_CHECKING:
    from specviz.trace.foreign_schema import Token

# Engines' names for an answer that was cut off, and for one that ended by itself.
CONTEXT_FULL = "contextLengthReached"
CUT = ("length", "limit", "max_tokens", "maxPredictedTokensReached", CONTEXT_FULL)
ENDED = ("stop", "eos", "eos_token", "end_turn", "eosFound")
SPECULATED = "used speculation, so it cannot be the baseline"
NO_DRAFTS = "it reports no drafts"


# ---------------------------------------------------------------- requests with counts only


def _counted(
    line: Line, output: int, accepted: int, drafted: int, row: Record, plain: bool,
    version: str | None = None, steps: int | None = None, each: list[int] | None = None,
    most: int | None = None,
) -> Request | str:  # fmt: skip
    """A request of which only sums are known; its first token is the prefill's."""
    if accepted > drafted:
        line.fail(f"accepted {accepted} of {drafted} drafted tokens")
    if plain and drafted:
        line.fail(SPECULATED)
    if plain and output > STEP_LIMIT:
        line.fail(f"has more than {STEP_LIMIT:,} steps")
    if not drafted:
        n = max(output - 1, 0)
        row |= dict.fromkeys(("drafts", "drafted", "accepted"), 0) | dict.fromkeys(("steps", "emitted"), n)
        row["output"] = output
        if plain:
            return Request(row, [0] * n, [0] * n, True, 0, version=version)
        return Request(row, [], [], True, version=version, undrafted=n, idle=NO_DRAFTS)
    accepts = each or []
    # Tokens accepted after an answer's end hide steps.
    counted = max(1, output - 1 - accepted, len(accepts)) if steps is None else steps
    row |= {
        "steps": counted,
        "emitted": accepted + counted,  # the last step may be cut
        "accepted": accepted,
        "drafted": drafted,
        "output": output,
    }
    if accepts:
        row["drafts"] = len(accepts)
    return Request(
        row, accepts, [None] * len(accepts), False, most, version=version, least_steps=steps is None
    )


def _reason(row: Record, reason: Record | str | None) -> None:
    if isinstance(reason, str) and reason in (*ENDED, *CUT):
        row["eos"] = reason in ENDED


def _times(row: Record, prefill: float | None, decode: float | None) -> None:
    if prefill is not None:
        row["first"] = row["prefill"] = prefill
        if decode is not None:
            row["seconds"] = prefill + decode


def _choice(line: Line) -> Record:
    choices = line.entry.get("choices")
    last = choices[-1] if isinstance(choices, list) and choices else {}
    return last if isinstance(last, dict) else {}


def _llama_cpp(line: Line, plain: bool) -> Request | str:
    from specviz.trace.foreign_schema import Timings

    entry, choice = line.entry, _choice(line)
    own = "predicted_n" in entry
    timed, chat = own or "timings" in entry, "delta" in choice
    # A chat may end before the chunk with the timings.
    if entry.get("stop") is False or not choice.get("finish_reason", not chat) or (chat and not timed):
        return CHUNK
    if not timed:
        if "error" in entry:
            return "the request failed"
        line.fail("is not a response of llama-server: it has no timings")
    timings = line.checked(Timings, entry if own else entry["timings"], "" if own else "timings")
    row: Record = {"id": f"line {line.number}"}  # a response's own id is different in every run
    if (read := timings.get("prompt_n")) is not None:
        row["prompt_tokens"] = read + (timings.get("cache_n") or 0)
    prefill, decode = timings.get("prompt_ms"), timings.get("predicted_ms")
    _times(row, None if prefill is None else prefill / 1e3, None if decode is None else decode / 1e3)
    _reason(row, entry.get("stop_type") or choice.get("finish_reason"))
    version = entry.get("system_fingerprint")
    counts = timings.get("draft_n_accepted") or 0, timings.get("draft_n") or 0
    version = f"llama.cpp {word_of(version, 40)}" if isinstance(version, str) else None
    return _counted(line, timings["predicted_n"], *counts, row, plain, version)


def _sglang(line: Line, plain: bool) -> Request | str:
    from specviz.trace.foreign_schema import MetaInfo

    entry, place = line.entry, "meta_info"
    meta = entry.get("meta_info")
    if meta is None:
        meta, place = _choice(line).get("meta_info"), "choices[-1].meta_info"
    if meta is None and ("spec_verify_ct" in entry or "completion_tokens" in entry):
        meta, place = entry, ""
    if meta is None:
        line.fail("is not a response of SGLang: it has no meta_info (a chat wants return_meta_info)")
    given = line.checked(MetaInfo, meta, place)
    if "finish_reason" in given and given["finish_reason"] is None:
        return CHUNK
    if (output := given.get("completion_tokens")) is None:
        line.fail("has a meta_info without completion_tokens")
    row: Record = {"id": f"line {line.number}"}
    if (read := given.get("prompt_tokens")) is not None:
        row["prompt_tokens"] = read
    if (whole := given.get("e2e_latency")) is not None:
        row["seconds"] = whole
    reason = given.get("finish_reason")
    _reason(row, reason.get("type") if isinstance(reason, dict) else reason)
    steps = given.get("spec_verify_ct")
    names = (
        ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
        ("spec_accepted_drafts", "spec_proposed_drafts"),
        ("spec_accept_token_num", "spec_draft_token_num"),
    )  # fmt: skip
    counted: Record = {**given}
    pairs = [(counted.get(a), counted.get(d)) for a, d in names]
    if plain and steps:
        line.fail(SPECULATED)
    if not steps:
        return _counted(line, output, 0, 0, row, plain)
    if (pair := next((pair for pair in pairs if None not in pair), None)) is None:
        return NO_COUNTS
    accepted, drafted = (int(count or 0) for count in pair)
    if output > 1 + accepted + steps:
        line.fail(
            f"has {output} completion tokens, but {steps} verify steps that accepted {accepted} drafts give "
            f"{accepted + steps}, and the prefill gives one"
        )
    histogram = given.get("spec_correct_drafts_histogram") or given.get("spec_accept_histogram")
    each: list[int] = []
    if histogram:
        for count, total, name in (
            (sum(histogram), steps, "spec_verify_ct"),
            (sum(j * n for j, n in enumerate(histogram)), accepted, names[0][0]),
        ):
            if count != total:
                line.fail(f"has a histogram that counts {count}, but {name} is {total}")
        if steps > STEP_LIMIT:
            line.fail(f"has more than {STEP_LIMIT:,} steps")
        each = [j for j, n in enumerate(histogram) for _ in range(n)]
    return _counted(line, output, accepted, drafted, row, False, steps=steps, each=each)


def _lm_studio(line: Line, plain: bool) -> Request | str:
    from specviz.trace.foreign_schema import Statistics

    entry = line.entry
    parts = [each for each in (entry.get("stats"), entry.get("usage")) if isinstance(each, dict)]
    merged: Record = {}
    for part in parts or [entry]:
        merged |= {_snake(name): value for name, value in part.items() if isinstance(name, str)}
    given = line.checked(Statistics, merged, "stats")
    output = given.get("completion_tokens")
    output = given.get("predicted_tokens_count") if output is None else output
    if output is None:
        line.fail("is not a response of LM Studio: neither usage nor stats says how many tokens it wrote")
    row: Record = {"id": f"line {line.number}"}  # a response's own id is different in every run
    read = given.get("prompt_tokens", given.get("prompt_tokens_count"))
    if read is not None:
        row["prompt_tokens"] = read
    first = given.get("time_to_first_token", given.get("time_to_first_token_sec"))
    rate, decode = given.get("tokens_per_second"), given.get("generation_time")
    _times(row, first, output / rate if decode is None and rate else decode)
    _reason(row, given.get("stop_reason") or _choice(line).get("finish_reason"))
    runtime = entry.get("runtime")
    version = None
    if isinstance(runtime, dict) and isinstance(runtime.get("name"), str):
        number = word_of(str(runtime.get("version", "")), 20)
        version = f"LM Studio's {word_of(runtime['name'], 60)} {number}".strip()
    total, accepted = given.get("total_draft_tokens_count"), given.get("accepted_draft_tokens_count")
    rejected, ignored = given.get("rejected_draft_tokens_count"), given.get("ignored_draft_tokens_count")
    if None not in (total, accepted, rejected):
        parts_of_it = (accepted or 0) + (rejected or 0) + (ignored or 0)
        if parts_of_it != total:
            line.fail(f"counts {total} draft tokens, but {parts_of_it} accepted, rejected and ignored ones")
    if accepted is None or total is None:
        return _counted(line, output, 0, 0, row, plain, version)
    return _counted(line, output, accepted, total - (ignored or 0), row, plain, version)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


LINES: dict[str, Callable[[Line, bool], Request | str]] = {
    "llama.cpp": _llama_cpp,
    "sglang": _sglang,
    "lm-studio": _lm_studio,
}


# ---------------------------------------------------------------- files whose lines are not requests


def _mlx_lm(path: Path, plain: bool) -> Iterator[tuple[Line, Request | str]]:
    from specviz.trace.foreign_schema import Token

    group: list[tuple[Line, Token]] = []
    for line in lines_of(path):
        if "from_draft" not in line.entry:
            line.fail("is not a response of mlx-lm's stream_generate: it has no from_draft")
        token = line.checked(Token, line.entry)
        last = group[-1][1] if group else None
        if last and (token["generation_tokens"] < last["generation_tokens"] or last.get("finish_reason")):
            yield group[0][0], _spoken(group, plain)
            group = []
        expected = group[-1][1]["generation_tokens"] + 1 if group else 1
        number = token["generation_tokens"]
        # The last response comes twice, the second time with the reason why the text ended.
        if number != expected and not (group and number == expected - 1 and token.get("finish_reason")):
            line.fail(
                f"is token {number} of its text, but token {expected} is expected here: keep every response"
            )
        if group and number == expected - 1:
            group[-1] = (group[-1][0], token)
        else:
            group.append((line, token))
    if group:
        yield group[0][0], _spoken(group, plain)


def _spoken(group: list[tuple[Line, Token]], plain: bool) -> Request | str:
    """A text from its responses, one per token: a step is a run of drafted tokens and the token after it.

    mlx-lm starts its clock at the first token, so its time of generation lacks the first step, whose time is
    part of the prefill's.
    """
    first, last = group[0][0], group[-1][1]
    row: Record = {"id": f"line {first.number}", "output": len(group)}
    if (prompt := last.get("prompt_tokens")) is not None:
        row["prompt_tokens"] = prompt
    read, rate = last.get("prompt_tps"), last.get("generation_tps")
    prefill = prompt / read if read and prompt is not None else None
    _times(row, prefill, len(group) / rate if rate else None)
    _reason(row, last.get("finish_reason"))
    each, run = [], 0
    for _, token in group:
        if token["from_draft"]:
            run += 1
            continue
        each.append(run)
        run = 0
    each += [run] * (run > 0)  # the text ended inside a draft
    if plain:
        if any(each):
            first.fail(SPECULATED)
        n = len(each) - 1  # the first token is the prefill's
        row |= {"steps": n, "emitted": n, "drafts": 0, "drafted": 0, "accepted": 0}
        return Request(row, [0] * n, [0] * n, True, 0)
    row |= {"steps": len(each), "emitted": len(group), "accepted": sum(each)}
    idle = "" if any(each) else "no token came from a draft"
    return Request(row, each, [None] * len(each), False, idle=idle)


PROMPT = re.compile(rf"prompt eval time\s*=\s*{NUMBER} ms /\s*(\d+) tokens")
EVAL = re.compile(rf"(?<!prompt )eval time\s*=\s*{NUMBER} ms /\s*(\d+) (tokens|runs)")
DRAFT = re.compile(
    rf"draft acceptance(?: rate)?\s*=\s*{NUMBER}\s*\(\s*(\d+) accepted\s*/\s*(\d+) generated\)"
)
MEAN = re.compile(rf"mean (?:acceptance length|len)\s*=\s*{NUMBER}")
RATES = re.compile(r"(?:acceptance rate per position|acc per pos)\s*=\s*\(([0-9., ]*)\)")
SLOT = re.compile(r"print_timing: id\s+(\d+)")
SUMS = re.compile(
    r"statistics\s+([\w+-]{1,40}):.*?#gen drafts\s*=\s*(\d+),.*?#gen tokens\s*=\s*(\d+),"
    r"\s*#acc tokens\s*=\s*(\d+)"
)
SPENT = re.compile(rf"dur\(b,g,a\)\s*=\s*{NUMBER},\s*{NUMBER},\s*{NUMBER} ms")
BUILD = re.compile(r"\bbuild(?::|\s)\s*(\d{3,6})\b")
FINEST = 1000  # from this many steps on, rates of three decimals cannot tell neighbouring counts apart
LONGEST = 4096  # characters of a line that are read


def _llama_cpp_log(path: Path, plain: bool) -> Iterator[tuple[Line, Request | str]]:
    """Requests of a server's log; the drafters' total seconds are divided among them by drafted tokens."""
    blocks: list[tuple[Line, Record]] = []
    sums: dict[tuple[str, str], list[tuple[list[int], float]]] = {}  # of each drafter and slot
    version, slot = None, ""
    for number, text in enumerate(text_of(path, "replace").split("\n"), 1):
        text, line = text[:LONGEST], Line(path, number, {})
        if build := BUILD.search(text):
            version = f"llama.cpp build {build[1]}"
        if named := SLOT.search(text):
            slot = named[1]
        if match := PROMPT.search(text):
            blocks.append((line, {"prompt": (_ms(line, match[1]), _whole(line, match[2]))}))
        elif match := EVAL.search(text):
            if not blocks or "eval" in blocks[-1][1]:
                blocks.append((line, {}))
            # llama-cli counts the passes after the one that gave the first token.
            output = _whole(line, match[2]) + (match[3] == "runs")
            blocks[-1][1]["eval"] = _ms(line, match[1]), output
        elif match := DRAFT.search(text):
            if not blocks or "draft" in blocks[-1][1]:
                line.fail("reports drafts without an 'eval time' before it: keep the server's whole log")
            accepted, drafted = _whole(line, match[2]), _whole(line, match[3])
            if drafted and abs(accepted / drafted - float(match[1])) > 6e-6 + 5e-6:
                line.fail(f"has an acceptance of {match[1]}, which is not {accepted} / {drafted}")
            blocks[-1][1].update(draft=(accepted, drafted), mean=MEAN.search(text), at=line)
        elif match := SUMS.search(text):
            counts = [_whole(line, match[i]) for i in (2, 3, 4)]
            if counts[2] > counts[1]:
                line.fail(f"accepted {counts[2]} of {counts[1]} drafted tokens")
            times = SPENT.search(text)
            seconds = math.nan if times is None else _ms(line, times[2])
            own = sums.setdefault((match[1], slot), [])
            if own and all(a <= b for a, b in zip(own[-1][0], counts)):
                own.pop()  # smaller sums are another slot's, or those of a server that was started again
            elif own and not slot:
                seconds = math.nan  # of slots without names, the next line may continue either
            own.append((counts, seconds))
        if blocks and (match := RATES.search(text)):
            blocks[-1][1]["rates"] = line, match[1]
    drafted = sum(counts[1] for own in sums.values() for counts, _ in own)
    spent = sum(seconds for own in sums.values() for _, seconds in own)
    each = spent / drafted if drafted else math.nan  # seconds per drafted token
    if not blocks:
        raise TraceError(f"{path} has no 'eval time' line: it is not a log of llama-server with timings")
    for number, (line, block) in enumerate(blocks, 1):
        yield line, _logged(line, block, number, version, each, plain)


def _logged(
    line: Line, block: Record, number: int, version: str | None, each: float, plain: bool
) -> Request | str:
    if "eval" not in block:
        return "it has no 'eval time'"
    seconds, output = block["eval"]
    row: Record = {"id": f"request {number}"}
    if "prompt" in block:
        row["prompt_tokens"] = block["prompt"][1]
        _times(row, block["prompt"][0], seconds)
    accepted, drafted = block.get("draft", (0, 0))
    line = block.get("at", line)
    most = None
    histogram: list[int] = []
    if block.get("mean") is not None and "rates" in block and not plain:
        where, rates = block["rates"]
        histogram, most = _steps(where, rates, float(block["mean"][1]), accepted)
    made = _counted(line, output, accepted, drafted, row, plain, version, each=histogram, most=most)
    return made if isinstance(made, str) else replace(made, drafting=each * drafted)


def _steps(line: Line, rates: str, mean: float, accepted: int) -> tuple[list[int], int | None]:
    """Accepted tokens of each step with a draft, from rates of three decimals; empty if several counts fit.

    The rates are per such step, and the mean length is 1 + accepted / steps.
    """
    try:
        values = [float(part) for part in rates.split(",") if part.strip()]
    except ValueError:
        line.fail(f"has rates that are not numbers: {rates[:40]}")
    if any(np.diff(values) > 0) or any(value > 1 for value in values):
        line.fail("has rates per position that rise or exceed 1")
    fitting = []
    if accepted and mean > 1.0:
        least, most = accepted / (mean - 1 + 0.0051), accepted / max(mean - 1 - 0.0051, 1e-3)
        for steps in range(max(1, math.floor(least)), min(math.ceil(most), STEP_LIMIT) + 1):
            at = [round(value * steps) for value in values]
            near = all(abs(a / steps - value) < 5.1e-4 for a, value in zip(at, values))
            if near and sum(at) == accepted:
                fitting.append((steps, at))
            if len(fitting) > 1 or steps >= FINEST:
                return [], len(values)
    if not fitting:
        return [], len(values)
    steps, at = fitting[0]
    return [j for j, n in enumerate(a - b for a, b in zip([steps, *at], [*at, 0])) for _ in range(n)], len(
        values
    )


def _ms(line: Line, text: str) -> float:
    """Parse milliseconds, and return seconds."""
    value = float(text) / 1e3
    if not value < 1e9:
        line.fail(f"has a time of {text[:20]} ms")
    return value


def _whole(line: Line, text: str) -> int:
    if len(text) > 9:
        line.fail(f"has {text[:20]}, which is not a count")
    return int(text)


FILES: dict[str, Callable[[Path, bool], Iterator[tuple[Line, Request | str]]]] = {
    "mlx-lm": _mlx_lm,
    "llama.cpp-log": _llama_cpp_log,
}


# ---------------------------------------------------------------- which tool wrote a file

SUPPORTED = (
    "traces (.parquet), responses of vLLM, SGLang, llama-server and LM Studio as JSON lines, vLLM's /metrics "
    "page and log, llama-server's log, mlx-lm's responses, AIPerf's profile_export.jsonl and "
    "Spec-Bench's answers"
)


def origin_of(path: Path) -> str:
    """Identify the tool that wrote a file, as `specviz.trace.read_counts` names it.

    Raises
    ------
    TraceError
        If it cannot be read or is not supported; unsupported formats that are known are named.
    """
    text = unframed(text_of(path, "replace"))  # one byte of a log may be no text
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise TraceError(f"{path} is empty")
    # Logs may begin with a bracket, too.
    if (start := lines[0].lstrip()[:1]) == "{" or (start == "[" and _is_json(lines[0], text)):
        first, later = _entries(path, text, lines)
        # The last chunk of a streamed answer has the counts, and a failed request has none.
        return next(filter(None, map(_sign_of, chain([first], later))), None) or _unknown(path, first)
    pages = {"vllm:": COUNTERS, "sglang:": "", "llamacpp:": "", "trtllm_": ""}
    for prefix, origin in pages.items():
        if any(line.startswith(prefix) for line in lines):
            if origin:
                return origin
            name = {"sglang:": "SGLang", "llamacpp:": "llama-server", "trtllm_": "TensorRT-LLM"}[prefix]
            _unsupported(path, f"a /metrics page of {name}, whose gauges do not count steps")
    if any(EVAL.search(line[:LONGEST]) for line in lines):
        return "llama.cpp-log"
    if any(SIGN in line[:LONGEST] for line in lines):
        return VLLM_LOG
    if any(" accept len: " in line[:LONGEST] for line in lines):
        _unsupported(
            path,
            "SGLang's log, whose 'accept len' is a mean over steps that it does not count (a response of "
            "/generate, or of a chat with return_meta_info, counts them)",
        )
    if "\ufffd" in text or "\0" in text:
        raise TraceError(f"{path} is not UTF-8 text")
    _unsupported(path, "in an unknown format")


def _is_json(*texts: str) -> bool:
    return any(json_of(text) is not None for text in texts)


def _entries(path: Path, text: str, lines: list[str]) -> tuple[Record, Iterator[Record]]:
    """First entry of a file, that of its first line or of the whole file, and the entries after it."""
    try:
        entry = parsed(lines[0], str(path))
    except TraceError:
        entry, lines = parsed(text, str(path)), []
    rest: list[object] = []
    while isinstance(entry, list) and entry:
        entry, *rest = entry
    if not isinstance(entry, dict):
        _unsupported(path, "JSON without entries")
    return entry, (each for each in chain(rest, map(json_of, lines[1:])) if isinstance(each, dict))


def _sign_of(entry: Record) -> str | None:
    """The tool whose fields an entry has."""
    choices = entry.get("choices")
    choice = choices[-1] if isinstance(choices, list) and choices and isinstance(choices[-1], dict) else {}
    stats = entry.get("stats")
    signs: list[tuple[bool, str]] = [
        ("from_draft" in entry, "mlx-lm"),
        ("question_id" in entry, "spec-bench"),
        ("metadata" in entry and "metrics" in entry, "aiperf"),
        ("timings" in entry or "predicted_n" in entry, "llama.cpp"),
        ("meta_info" in entry or "meta_info" in choice or "spec_verify_ct" in entry, "sglang"),
        (isinstance(stats, dict) or "totalDraftTokensCount" in entry, "lm-studio"),
        ("num_spec_steps" in entry, "aiperf" if "engine" in entry else "vllm"),
        ("metrics" in entry or "spec_decode_acceptance_length" in entry, "vllm"),
    ]
    return next((origin for holds, origin in signs if holds), None)


def _unknown(path: Path, entry: Record) -> NoReturn:
    if "resourceSpans" in entry:
        _unsupported(path, "an export of OpenTelemetry spans")
    if isinstance(entry.get("choices"), list):
        _unsupported(path, "a response without draft counts: the engine's own field must be enabled")
    keys = ", ".join(repr(str(key)[:20]) for key in list(entry)[:4]) or "nothing"
    _unsupported(path, f"JSON in an unknown format (it has {keys})")


def _unsupported(path: Path, what: str) -> NoReturn:
    raise TraceError(f"{path} is {what}; supported are {SUPPORTED}")
