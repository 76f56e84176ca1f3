"""Reads what other tools record of speculation, as `Counts`.

This module reads vLLM's per-request acceptance metrics, AIPerf's acceptance records and Spec-Bench's answer
files; `specviz.trace.engines` reads what llama.cpp, SGLang, LM Studio and mlx-lm write, and
`specviz.trace.counters` a server's sums. A file is read whole or not at all: identities between its integers
must hold, and the first line that breaks one is named. Means and rates in a file are not read, because they
follow from the counts. Lines that hold nothing to count (a failed request, a chunk of an answer) are listed
in `Counts.left_out`, not dropped. If any request of a file drafted, those that did not are counted too: as
plain steps, one for each token after the prefill's; AIPerf's only if its lengths are the server's.

These files are untrusted data: only numbers and names are taken from them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from specviz.errors import ParameterError, TraceError
from specviz.files import checked, parsed
from specviz.paths import expanded
from specviz.trace.counts import Counts, left_out_table, request_table, step_table
from specviz.trace.files import Record, reason

if TYPE_CHECKING:
    from specviz.trace.foreign_schema import Acceptance

Kind = TypeVar("Kind")
FILE_LIMIT = 1 << 30  # maximum bytes of a file
STEP_LIMIT = 20_000_000  # maximum steps of a file: a histogram stands for many in a few characters
COUNTERS = "vllm-metrics"  # a page of sums, not a file of requests
NAME_LIMIT = 256  # maximum characters of a name
CHUNK = "it is a chunk of a streamed answer, but not the last one"
# Reasons why a finished request is left out although it may have drafted, or written plain steps.
NO_COUNTS = "a server whose meta_info does not count drafts"
NO_SPEC, NO_ACCEPTANCE = "no metrics.speculative_decoding", "no spec_decode_acceptance"
VLLM_LENGTH, AIPERF_LENGTH = "usage.completion_tokens", "metrics.output_sequence_length"
UNCLEAR = (NO_COUNTS, NO_SPEC, NO_ACCEPTANCE, f"no {VLLM_LENGTH}", f"no {AIPERF_LENGTH}")
EACH = "responses of a server with --per-request-spec-decode-metrics have each request's counts"


def read_counts(
    path: str | Path, origin: str, *, plain: bool = False, since: str | Path | None = None
) -> Counts:
    """Read the counts that another tool recorded.

    vLLM counts no verify step without a draft, and n-gram speculation has many. A step adds one token to the
    draft tokens that it accepts, so the number of these steps follows from the length of the answer. It is a
    lower bound (`Counts.least_steps`): a token that was cut off at an answer's end hides a step. Without the
    length, only steps with a draft are counted.

    Parameters
    ----------
    path : str or Path
        One JSON object per line (for vLLM also one response, or a list of them); for ``vllm-metrics`` a page.
    origin : {"vllm", "vllm-metrics", "aiperf", "spec-bench", "llama.cpp", "llama.cpp-log", "sglang", \
"lm-studio", "mlx-lm", "vllm-log"}
        ``vllm``: responses of a server with ``--per-request-spec-decode-metrics``, which have
        ``metrics.speculative_decoding`` (``detailed``: step by step; ``summary``: a histogram), or only that
        object; for a streamed response, the last chunk with ``usage``. Times need
        ``--enable-per-request-metrics``. Source: vllm 0.33.0, v1/metrics/stats.py and
        entrypoints/generate/base/protocol.py.
        ``vllm-metrics``: the output of ``curl HOST:8000/metrics``. It holds sums over all requests since the
        server was started: pooled definitions and `by_position` can be computed, means over requests and
        speedups cannot. Each row of `Counts.requests` is an engine. If drafts and prefills account for all
        generated tokens, every verify step is assumed to have had a draft.
        ``vllm-log``: the server's log, from its lines ``SpecDecoding metrics``; these are sums too: see
        `specviz.trace.vllm_log`.
        ``aiperf``: ``profile_export.jsonl``, written with ``--export-level records``, or only its acceptance
        records. Source: aiperf 0.13.0, common/models/{record_models,spec_decode_models}.py.
        ``spec-bench``: an answer file; the first choice of each question, as its ``speed.py`` reads it.
        Source: github.com/hemingkx/Spec-Bench 132ba4c, evaluation/speed.py; 70f8b28, evaluation/eval.py.
        The others: see `specviz.trace.engines`.
    plain : bool
        Whether the file is a run without speculation, used as the baseline.
    since : str or Path, optional
        An earlier page of the same server: count only what came after it (only for ``vllm-metrics``).

    Raises
    ------
    ParameterError
        For an unknown origin, or an option that it does not take.
    TraceError
        If the file cannot be read or a line is invalid; the message gives the line's number.
    """
    from specviz.trace import engines
    from specviz.trace.vllm_log import VLLM_LOG, read_vllm_log

    if origin not in (names := [*READERS, *engines.LINES, *engines.FILES, COUNTERS, VLLM_LOG]):
        raise ParameterError(f"no origin {origin!r}: choose one of {', '.join(names)}")
    path = expanded(path, TraceError)
    if origin == COUNTERS:
        from specviz.trace.counters import read_counters

        return read_counters(path, None if since is None else expanded(since, TraceError), plain)
    if since is not None:
        raise ParameterError(f"since works only for a server's counters ({COUNTERS}), not for {origin}")
    if origin == VLLM_LOG:
        return read_vllm_log(path, plain)
    requests: list[Record] = []
    columns = ("request", "drafted", "depth", "accepted", "emitted")
    steps: dict[str, list[int | None]] = {name: [] for name in columns}
    left_out: list[Record] = []
    lengths: list[int] = []
    seen: dict[str, int] = {}
    spans: list[tuple[float, float] | None] = []
    versions: set[str] = set()
    drafting: list[float] = []
    idle: list[str] = []
    least_steps = unlisted = False
    lines: Iterable[Line]
    if origin in engines.FILES:
        entries = engines.FILES[origin](path, plain)
    else:
        reader, lines = READERS.get(origin) or engines.LINES[origin], lines_of(path)
        if origin == "aiperf":
            lines = list(lines)
            reader = partial(_aiperf, servers=_servers_lengths(lines))
        entries = ((line, reader(line, plain)) for line in lines)
    for line, request in entries:
        if isinstance(request, str):
            left_out.append({"line": line.number, "why": request})
            continue
        name = request.row["id"]
        if origin == "spec-bench" and (before := seen.setdefault(name, line.number)) != line.number:
            line.fail(f"answers question {name}, and so does line {before}: keep one of them")
        if len(steps["request"]) + len(request.accepted) + request.undrafted > STEP_LIMIT:
            line.fail(f"is where the file exceeds {STEP_LIMIT:,} steps")
        steps["request"] += [len(requests)] * len(request.accepted)
        steps["accepted"] += request.accepted
        steps["drafted"] += request.drafted
        steps["depth"] += request.drafted if request.chain else [None] * len(request.accepted)
        steps["emitted"] += [a + 1 for a in request.accepted]
        # They come last, because their order among the others is not recorded.
        without = {"request": len(requests), "drafted": 0, "depth": 0, "accepted": 0, "emitted": 1}
        for column, value in without.items():
            steps[column] += [value] * request.undrafted
        least_steps = least_steps or request.least_steps
        listed = len(request.accepted) + request.undrafted
        unlisted = unlisted or request.row.get("steps", 0) > listed
        requests.append(request.row)
        idle += [request.idle] * bool(request.idle)
        spans.append(request.span)
        if request.version is not None:
            versions.add(request.version)
        drafting.append(request.drafting)
        if request.most is not None:
            lengths.append(request.most)
    if len(idle) == len(requests):
        reasons = sorted(idle + [each["why"] for each in left_out], key=CHUNK.__eq__)
        why = f": {reasons[0]}" if reasons else ""
        raise TraceError(f"{path} holds no counted requests{why}")
    if unlisted:  # a share of the plain steps alone would be wrong
        keep = [d != 0 for d in steps["drafted"]]
        steps = {name: list(compress(values, keep)) for name, values in steps.items()}
    drafts = [d for d in steps["drafted"] if d is not None]
    whole = len(drafts) == len(steps["drafted"])
    return Counts(
        origin=origin,
        where=str(path),
        requests=request_table(requests),
        steps=step_table({**steps, "beyond": [0] * len(steps["request"])}),
        most=max(lengths) if lengths else max(drafts, default=None) if whole and drafts else None,
        wall=_wall(origin, requests, spans),
        left_out=left_out_table(left_out),
        plain=plain,
        version=", ".join(sorted(versions)) or None,
        drafting=sum(drafting),
        least_steps=least_steps,
    )


def _wall(origin: str, requests: list[Record], spans: list[tuple[float, float] | None]) -> float:
    """Seconds of the whole run: the sum for Spec-Bench, which runs one by one; first to last for AIPerf."""
    if origin == "spec-bench":
        return float(sum(request["seconds"] for request in requests))
    if origin == "aiperf" and all(spans):
        return max(span[1] for span in spans if span) - min(span[0] for span in spans if span)
    return math.nan


# ---------------------------------------------------------------- lines


@dataclass(frozen=True)
class Line:
    """An object of a file, and where it is."""

    path: Path
    number: int
    entry: Record
    only: bool = False  # the file holds only this object

    def fail(self, what: str) -> NoReturn:
        raise TraceError(f"{self.where} {what}")

    @property
    def where(self) -> str:
        """The file and the line."""
        return f"{self.path}{'' if self.only else f', line {self.number}'}"

    def checked(self, kind: type[Kind], data: Any, place: str = "") -> Kind:
        """Return a part of the line, if it has the declared form."""
        return checked(kind, data, f"{self.where}{place and f', {place}'}")


# What frames the objects of a streamed answer (server-sent events), which ``curl -N`` saves.
FRAME = re.compile(r"^(?:data:[ \t]*(?:\[DONE\][ \t\r]*$)?|(?:event|id|retry)?:.*$)", re.MULTILINE)


def unframed(text: str) -> str:
    """The text without the frame of server-sent events, if it begins with one; lines keep their numbers."""
    return FRAME.sub("", text) if FRAME.match(text[:4096].lstrip()) else text


def text_of(path: Path, errors: str = "strict") -> str:
    """Read the whole text of a file of at most `FILE_LIMIT` bytes; `errors` as of `bytes.decode`."""
    try:
        if (size := path.stat().st_size) > FILE_LIMIT:
            raise TraceError(f"{path} is {size >> 20} MiB; the limit is {FILE_LIMIT >> 20} MiB")
        return path.read_text("utf-8-sig", errors)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not UTF-8 text") from None


def lines_of(path: Path) -> Iterator[Line]:
    """Yield the objects of a file: one per line, a single one, or a list of them."""
    text = unframed(text_of(path))
    numbered = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise TraceError(f"{path} is empty")
    if any(line.startswith("vllm:") for _, line in numbered):
        raise TraceError(
            f"{path} is a server's /metrics page: read its sums with --from vllm-metrics; {EACH}"
        )
    if not isinstance(json_of(numbered[0][1]), dict):  # one object, or one list, over several lines
        whole = json_of(text)
        if isinstance(whole, dict | list):
            for i, entry in enumerate(whole if isinstance(whole, list) else [whole], 1):
                yield _checked(path, i, entry, only=isinstance(whole, dict))
            return
    for i, line in numbered:
        yield _checked(path, i, parsed(line, f"{path}, line {i}"))


def json_of(text: str) -> Any:
    """Parse JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _checked(path: Path, number: int, entry: Any, only: bool = False) -> Line:
    line = Line(path, number, entry, only)
    line.checked(Record, entry)
    return line


# ---------------------------------------------------------------- the content of a line


@dataclass(frozen=True)
class Request:
    """A request's row and its steps; `chain`: drafts are chains, each as deep as it has tokens.

    If single steps were not recorded, the lists are empty and only the row says how many steps there were.
    """

    row: Record
    accepted: list[int]
    drafted: list[int | None]
    chain: bool
    most: int | None = None
    span: tuple[float, float] | None = None
    version: str | None = None  # of the tool, if it is given
    drafting: float = math.nan  # seconds that its drafts took
    undrafted: int = 0  # steps without a draft, which the tool does not count
    least_steps: bool = False  # whether there may be more of them
    idle: str = ""  # why it counts only in a file whose other requests drafted


def _vllm(line: Line, plain: bool) -> Request | str:
    from specviz.trace.foreign_schema import VllmResponse

    entry = line.entry
    if "num_spec_steps" in entry:  # the bare object
        if plain:
            line.fail("used speculation, so it cannot be the baseline")
        return _acceptance(line, entry, {"id": f"line {line.number}"}, engine="vllm")
    response = line.checked(VllmResponse, entry)
    metrics, usage = response.get("metrics") or {}, response.get("usage") or {}
    spec = metrics.get("speculative_decoding")
    choices = entry.get("choices")
    if not metrics and not usage and not isinstance(choices, list):
        bench = "spec_decode_acceptance_length" in entry
        line.fail(
            "is the result of vllm bench serve, which has only sums and rates: the server's /metrics page "
            f"before and after it has more (--from vllm-metrics); {EACH}"
            if bench
            else "is not a response of vLLM: it has neither metrics nor usage nor choices"
        )
    request: Record = {"id": f"line {line.number}"}
    for name, field in (("prompt_tokens", "prompt_tokens"), ("output", "completion_tokens")):
        if (count := usage.get(field)) is not None:
            request[name] = count
    first, rest = metrics.get("time_to_first_token_ms"), metrics.get("generation_time_ms")
    if first is not None:
        request["first"] = request["prefill"] = first / 1e3
        if rest is not None:
            request["seconds"] = request["first"] + rest / 1e3
    last = choices[-1] if isinstance(choices, list) and choices and isinstance(choices[-1], dict) else {}
    if last.get("finish_reason") in ("stop", "length"):  # a stop string, or another id, is a stop_reason
        request["eos"] = last["finish_reason"] == "stop" and last.get("stop_reason") is None
    if plain:
        if spec:
            line.fail("used speculation, so it cannot be the baseline")
        return _plain(line, request, VLLM_LENGTH)
    if spec is None:
        part = not last or entry.get("object") in ("chat.completion.chunk", "text_completion")
        if (part and not usage) or (last and last.get("finish_reason") is None):
            return CHUNK
        why = f"{NO_SPEC}: n > 1, or the server runs without speculation or its metrics"
        alone = metrics and isinstance(choices, list) and len(choices) == 1
        return _plain(line, request, VLLM_LENGTH, idle=why) if alone else why
    return _acceptance(line, spec, request, engine="vllm", place="metrics.speculative_decoding")


def _servers_lengths(lines: Sequence[Line]) -> bool:
    """Whether AIPerf's lengths are those that the server counted, as far as records have both."""
    equal = []
    for line in lines:
        with suppress(LookupError, TypeError):  # the reader reports the fault
            own = line.entry["spec_decode_acceptance"]["completion_tokens"]
            equal.append(own == line.entry["metrics"]["output_sequence_length"]["value"])
    return bool(equal) and all(equal)


def _aiperf(line: Line, plain: bool, servers: bool = False) -> Request | str:
    from specviz.trace.foreign_schema import UNITS, AiperfRecord

    entry = line.entry
    if "num_spec_steps" in entry:  # the bare record
        if plain:
            line.fail("used speculation, so it cannot be the baseline")
        return _acceptance(line, entry, {"id": f"line {line.number}"})
    if "metadata" not in entry:
        line.fail("is not a record of AIPerf: it has neither metadata nor num_spec_steps")
    record = line.checked(AiperfRecord, entry)
    about, metrics = record["metadata"], record.get("metrics") or {}
    if (error := record.get("error")) is not None:
        return f"the request failed: {str(error.get('type') or error.get('message') or 'error')[:80]}"
    if about.get("benchmark_phase") not in (None, "profiling"):
        return f"it belongs to the phase {str(about['benchmark_phase'])[:40]}"
    names = (about.get("conversation_id"), about.get("x_request_id"), about.get("session_num"))
    name = next((name for name in names if name is not None), None)
    if name is None:
        line.fail("has metadata without a conversation_id, x_request_id or session_num")
    request: Record = {"id": str(name)}
    if turn := about.get("turn_index"):
        request["id"] += f"/{turn}"
    if (latency := metrics.get("request_latency")) is not None:
        request["seconds"] = latency["value"] * UNITS[latency["unit"]]
    if (first := metrics.get("time_to_first_token")) is not None:
        request["first"] = request["prefill"] = first["value"] * UNITS[first["unit"]]
    lengths = metrics.get("input_sequence_length"), metrics.get("output_sequence_length")
    for column, length in zip(("prompt_tokens", "output"), lengths):
        if length is not None:
            request[column] = int(length["value"])
    span = None
    start, end = about.get("request_start_ns"), about.get("request_end_ns")
    if start is not None and end is not None:
        if end < start:
            line.fail("ends (request_end_ns) before it starts")
        span = start / 1e9, end / 1e9
        request["begin"] = span[0]
    spec = record.get("spec_decode_acceptance")
    if plain:
        if spec:
            line.fail("used speculation, so it cannot be the baseline")
        return _plain(line, request, AIPERF_LENGTH, span)
    if spec is None:
        why = f"{NO_ACCEPTANCE}: no verify step, or a server without speculation or its metrics"
        own = entry["metadata"].get("worker_id") == "specviz"  # its answers may lack the prefill's token
        if own or not (servers or request.get("output", 0) <= 1):  # the length says nothing about steps
            return why
        return _plain(line, request, AIPERF_LENGTH, span, why)
    return _acceptance(line, spec, request, span, place="spec_decode_acceptance")


def _spec_bench(line: Line, plain: bool) -> Request | str:
    from specviz.trace.foreign_schema import Answer, Choice

    entry = line.entry
    if "question_id" not in entry:
        line.fail("is not an answer of Spec-Bench: it has no question_id")
    if "choices" not in entry:
        line.fail("has no choices: this is a file of questions, not of answers")
    answer = line.checked(Answer, entry)
    first = answer["choices"][0]
    if isinstance(first, dict) and "accept_lengths" not in first:
        line.fail("has no accept_lengths (EAGLE's own scripts write none)")
    choice = line.checked(Choice, first, "choices[0]")
    name, turns, seconds = str(answer["question_id"]), choice["turns"], choice["wall_time"]
    new, lengths = choice["new_tokens"], choice["accept_lengths"]
    if not len(new) == len(seconds) == len(turns):
        line.fail(f"has {len(turns)} turns, {len(new)} new_tokens and {len(seconds)} wall_time")
    if "ERROR" in turns:
        return "a turn failed (ERROR), and its numbers are from an earlier call"
    if plain and any(length != 1 for length in lengths):
        line.fail("has steps of more than one token, so it cannot be the baseline")
    emitted, output, n = sum(lengths), sum(new), len(turns)
    # Drafters there count differently: in each turn, the prefill may have emitted one more token, the last
    # step may be cut off, or the prompt's last token may be counted with the first (Token Recycling).
    if not emitted - n * max(1, max(lengths, default=1) - 1) <= output <= emitted + n:
        line.fail(f"has {output} new_tokens, but its {len(lengths)} accept_lengths add up to {emitted}")
    request = {"id": name, "kind": word_of(entry.get("category")), "steps": len(lengths), "emitted": emitted,
               "accepted": emitted - len(lengths), "output": output, "seconds": sum(seconds)}  # fmt: skip
    if plain:
        request |= {"drafts": 0, "drafted": 0}
    return Request(request, [length - 1 for length in lengths], [0 if plain else None] * len(lengths), plain)


def word_of(value: Any, most: int = NAME_LIMIT) -> str | None:
    """The start of a text, None for other values; half a surrogate pair becomes a question mark."""
    return value[:most].encode("utf8", "replace").decode() if isinstance(value, str) else None


def _plain(
    line: Line, request: Record, name: str, span: tuple[float, float] | None = None, idle: str = ""
) -> Request | str:
    """A request without drafts: every token but the first, the prefill's, had its own step."""
    output = request.get("output")
    if output is None:
        return f"no {name}"
    if output > STEP_LIMIT:
        line.fail(f"has more than {STEP_LIMIT:,} steps")
    n = max(output - 1, 0)
    request |= dict.fromkeys(("drafts", "drafted", "accepted"), 0) | dict.fromkeys(("steps", "emitted"), n)
    most = None if idle else 0  # other requests of the file drafted
    return Request(request, [0] * n, [0] * n, True, most, span, idle=idle, least_steps=bool(idle))


def _acceptance(
    line: Line, given: Record, request: Record, span: tuple[float, float] | None = None,
    engine: str | None = None, place: str = "",
) -> Request:  # fmt: skip
    """Read vLLM's object or AIPerf's record, which have the same fields and identities."""
    from specviz.trace.foreign_schema import Acceptance, AcceptanceByCount

    by_count = isinstance(given.get("acceptance_histogram"), dict)
    spec = cast("Acceptance", line.checked(AcceptanceByCount if by_count else Acceptance, given, place))
    chain = (engine or spec.get("engine")) == "vllm"  # others verify trees too
    steps, accepted, drafted = (
        spec["num_spec_steps"], spec["num_accepted_draft_tokens"], spec["num_draft_tokens"],
    )  # fmt: skip
    most, histogram = spec.get("num_spec_tokens"), given["acceptance_histogram"]
    counted = {int(j): n for j, n in (histogram.items() if by_count else enumerate(histogram))}
    if engine and most is not None and len(counted) != most + 1:
        line.fail(f"has {len(counted)} entries of acceptance_histogram, but num_spec_tokens is {most}")
    if (total := sum(counted.values())) != steps:
        line.fail(f"counts {total} steps in its acceptance_histogram, but num_spec_steps is {steps}")
    if (total := sum(j * n for j, n in counted.items())) != accepted:
        line.fail(
            f"counts {total} tokens in its acceptance_histogram, but num_accepted_draft_tokens is {accepted}"
        )
    if accepted > drafted:
        line.fail(f"accepted {accepted} of {drafted} drafted tokens")
    longest = max((j for j, n in counted.items() if n), default=0)
    if most is not None and longest > most:
        line.fail(f"accepted {longest} tokens in a step, but num_spec_tokens is {most}")
    if chain and most is not None and drafted > most * steps:
        line.fail(f"drafted {drafted} tokens in {steps} steps, but num_spec_tokens is {most}")
    if steps > STEP_LIMIT:
        line.fail(f"has more than {STEP_LIMIT:,} steps")
    each, of = _per_step(line, spec, counted)
    if of is None:  # the drafts of single steps are known only if all were full
        full = most is not None and drafted == most * steps
        of = [most if full else None] * steps
    own = spec.get("completion_tokens")
    if own is not None and (engine is None or request.get("output") is None):
        request["output"] = own
    # Unless told to trust the server, AIPerf measures an answer in the client's tokens. That length may be
    # another, and then it says nothing about the steps.
    counted_there = engine is not None or own is not None
    output, emitted = request.get("output"), accepted + steps
    last = each[-1] if each and spec.get("per_step_accepted") is not None else longest
    short = output is not None and output < emitted - last
    if short and counted_there:
        line.fail(
            f"has {output} completion tokens, but its steps emitted {emitted - last} before the last was cut"
        )
    request |= {"drafts": steps, "drafted": drafted, "accepted": accepted}
    # Steps without a draft are not counted. Each wrote one token; the answer's first token is the prefill's,
    # but not in records that this package wrote of its own runs, whose answers may also hold tokens that no
    # step verified, or of another file of AIPerf's.
    undrafted = max((output or 0) - 1 - emitted, 0)
    if spec.get("engine") in ("specviz", "aiperf") or (not counted_there and (undrafted or short)):
        return Request(request, each, of, chain, most, span)
    request |= {"steps": steps + undrafted, "emitted": emitted + undrafted}
    unsure = undrafted > 0 or output is None
    return Request(request, each, of, chain, most, span, undrafted=undrafted, least_steps=unsure)


def _per_step(
    line: Line, spec: Acceptance, counted: dict[int, int]
) -> tuple[list[int], list[int | None] | None]:
    """Accepted and drafted tokens of each step; without ``per_step_accepted``, in the histogram's order.

    vLLM writes both arrays or neither, AIPerf what the engine reports.
    """
    each, of, steps = spec.get("per_step_accepted"), spec.get("per_step_drafted"), spec["num_spec_steps"]
    for name, values, whole, total in (
        ("per_step_accepted", each, "num_accepted_draft_tokens", spec["num_accepted_draft_tokens"]),
        ("per_step_drafted", of, "num_draft_tokens", spec["num_draft_tokens"]),
    ):
        if values is None:
            continue
        if len(values) != steps:
            line.fail(f"has {len(values)} entries of {name}, but num_spec_steps is {steps}")
        if sum(values) != total:
            line.fail(f"has {name} that adds up to {sum(values)}, but {whole} is {total}")
    if each is None:
        return [j for j, n in sorted(counted.items()) for _ in range(n)], None
    if Counter(each) != Counter(counted):
        line.fail("has per_step_accepted that its acceptance_histogram does not count")
    if of is None:
        return each, None
    for i, (a, d) in enumerate(zip(each, of), 1):
        if a > d:
            line.fail(f"accepted {a} of {d} drafted tokens in step {i}")
    return each, list(of)


READERS: dict[str, Callable[[Line, bool], Request | str]] = {
    "vllm": _vllm,
    "aiperf": _aiperf,
    "spec-bench": _spec_bench,
}
