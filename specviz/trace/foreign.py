"""What other tools write down of speculation, read as `Counts`.

vLLM's per-request acceptance metrics, AIPerf's acceptance records, Spec-Bench's answer files; a server's sums
are read in `specviz.trace.counters`. A file is read whole or not at all: identities between its integers must
hold, and the first line that breaks one is named. Means and rates that stand in a file are not read, for they
follow from the counts. Lines that hold nothing to count (a failed request, one without speculation) are
listed in `Counts.left_out`, not dropped.

These files are untrusted data: only numbers and names are taken from them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specviz.errors import ParameterError, TraceError
from specviz.trace.counts import Counts, left_out_table, request_table, step_table
from specviz.trace.files import reason

FILE_LIMIT = 1 << 30  # bytes of a file
STEP_LIMIT = 20_000_000  # steps of a file: a histogram names many in a few characters
MOST = 2**31 - 1  # of any count
COUNTERS = "vllm-metrics"  # a page of sums, not a file of requests
NAME_LIMIT = 256  # characters of a name
EACH = "responses of a server with --per-request-spec-decode-metrics have each request's counts"
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0, "seconds": 1.0}


def read_counts(
    path: str | Path, origin: str, *, plain: bool = False, since: str | Path | None = None
) -> Counts:
    """Read what another tool counted.

    Parameters
    ----------
    path : str or Path
        One JSON object a line (of vLLM also one response, or a list of them); of ``vllm-metrics`` a page.
    origin : {"vllm", "vllm-metrics", "aiperf", "spec-bench"}
        ``vllm``: responses of a server with ``--per-request-spec-decode-metrics``, which have
        ``metrics.speculative_decoding`` (``detailed``: step by step; ``summary``: a histogram), or only that
        object; of a streamed one the last chunk with ``usage``. Times: ``--enable-per-request-metrics``.
        Source: vllm 0.33.0, v1/metrics/stats.py and entrypoints/generate/base/protocol.py.
        ``vllm-metrics``: what ``curl HOST:8000/metrics`` printed. It holds sums over all requests since the
        server was started: pooled definitions and `by_position` are told, means over requests and speedups
        are not. A row of `Counts.requests` is an engine. Where no more tokens were generated than drafts and
        prefills account for, every verify step is taken to have had a draft; what was cut off at texts' ends
        can hide a few that had none.
        ``aiperf``: ``profile_export.jsonl``, written with ``--export-level records``, or only its acceptance
        records. Source: aiperf 0.13.0, common/models/{record_models,spec_decode_models}.py.
        ``spec-bench``: an answer file; of each question the first choice, as its ``speed.py`` reads it.
        Source: github.com/hemingkx/Spec-Bench 132ba4c, evaluation/speed.py; 70f8b28, evaluation/eval.py.
    plain : bool
        Whether the file is a run without speculation, to compare with.
    since : str or Path, optional
        An earlier page of the same server: count what came after it (``vllm-metrics`` alone).

    Raises
    ------
    ParameterError
        For another origin, or what it does not take.
    TraceError
        If the file cannot be read, or a line is not what it should be; its number is named.
    """
    if origin not in (names := [*READERS, COUNTERS]):
        raise ParameterError(f"no origin {origin!r}: choose one of {', '.join(names)}")
    path = Path(path)
    if origin == COUNTERS:
        from specviz.trace.counters import read_counters

        return read_counters(path, None if since is None else Path(since), plain)
    if since is not None:
        raise ParameterError(f"since is for the counters of a server ({COUNTERS}), not for {origin}")
    requests: list[dict[str, Any]] = []
    steps: dict[str, list[Any]] = {
        name: [] for name in ("request", "drafted", "depth", "accepted", "emitted")
    }
    left_out: list[dict[str, Any]] = []
    lengths: list[int] = []
    seen: dict[str, int] = {}
    spans: list[tuple[float, float] | None] = []
    for line in _lines(path):
        found = READERS[origin](line, plain)
        if isinstance(found, str):
            left_out.append({"line": line.number, "why": found})
            continue
        name = found.request["id"]
        if origin == "spec-bench" and (before := seen.setdefault(name, line.number)) != line.number:
            line.fail(f"answers question {name}, as line {before} does: keep one of them")
        if len(steps["request"]) + len(found.accepted) > STEP_LIMIT:
            line.fail(f"is the one with which the file has more than {STEP_LIMIT:,} steps")
        steps["request"] += [len(requests)] * len(found.accepted)
        steps["accepted"] += found.accepted
        steps["drafted"] += found.drafted
        steps["depth"] += found.drafted if found.chain else [None] * len(found.accepted)
        steps["emitted"] += [a + 1 for a in found.accepted]
        requests.append(found.request)
        spans.append(found.span)
        if found.most is not None:
            lengths.append(found.most)
    if not requests:
        why = f": {left_out[0]['why']}" if left_out else ""
        raise TraceError(f"{path} holds no request that was counted{why}")
    known = [d for d in steps["drafted"] if d is not None]
    whole = len(known) == len(steps["drafted"])
    return Counts(
        origin=origin,
        where=str(path),
        requests=request_table(requests),
        steps=step_table({**steps, "beyond": [0] * len(steps["request"])}),
        most=max(lengths) if lengths else max(known, default=None) if whole and known else None,
        wall=_wall(origin, requests, spans),
        left_out=left_out_table(left_out),
        plain=plain,
    )


def _wall(origin: str, requests: list[dict[str, Any]], spans: list[tuple[float, float] | None]) -> float:
    """Seconds of the whole run: Spec-Bench answers one question at a time, of AIPerf from first to last."""
    if origin == "spec-bench":
        return float(sum(request["seconds"] for request in requests))
    if origin == "aiperf" and all(spans):
        return max(span[1] for span in spans if span) - min(span[0] for span in spans if span)
    return math.nan


# ---------------------------------------------------------------- lines


@dataclass(frozen=True)
class Line:
    """An object of a file, and where it stands."""

    path: Path
    number: int
    entry: dict[str, Any]
    only: bool = False  # the file is this object

    def fail(self, what: str) -> NoReturn:
        raise TraceError(f"{self.path}{'' if self.only else f', line {self.number}'} {what}")

    def part(self, value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(f"has a {name} that is {_kind(value)}, not an object")
        return value

    def whole(self, value: Any, name: str, least: int = 0) -> int:
        """A count."""
        if type(value) is not int or not least <= value <= MOST:
            self.fail(f"has {name} {_shown(value)}, which is no count" + f" from {least}" * bool(least))
        return value

    def wholes(self, value: Any, name: str, least: int = 0) -> list[int]:
        if not isinstance(value, list):
            self.fail(f"has {name} that is {_kind(value)}, not a list")
        if len(value) > STEP_LIMIT:
            self.fail(f"has more than {STEP_LIMIT:,} {name}")
        for i, each in enumerate(value):
            if type(each) is not int or not least <= each <= MOST:
                self.whole(each, f"{name}[{i}]", least)
        return value

    def real(self, value: Any, name: str, least: float = 0.0) -> float:
        """A time."""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value < 1e12:  # also of NaN
            self.fail(f"has {name} {_shown(value)}, which is no time")
        return float(value)

    def name(self, value: Any, name: str) -> str:
        if type(value) not in (str, int) or not 0 < len(str(value)) <= NAME_LIMIT:
            self.fail(f"has {name} that is no name")
        return str(value)


def _kind(value: Any) -> str:
    names = {
        "dict": "an object",
        "list": "a list",
        "str": "a text",
        "NoneType": "null",
        "bool": "true or false",
    }
    return names.get(type(value).__name__, "a number")


def _shown(value: Any) -> str:
    """A number as a person can read it; of anything else what it is."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if number and (value != value or abs(value) < 1e18) else _kind(value)


def text_of(path: Path) -> str:
    """The whole text of a file that is no larger than `FILE_LIMIT`."""
    try:
        if (size := path.stat().st_size) > FILE_LIMIT:
            raise TraceError(f"{path} is {size >> 20} MiB; the limit is {FILE_LIMIT >> 20} MiB")
        return path.read_text("utf-8-sig")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError:
        raise TraceError(f"{path} is not UTF-8 text") from None


def _lines(path: Path) -> Iterator[Line]:
    text = text_of(path)
    numbered = [(i, line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise TraceError(f"{path} is empty")
    if any(line.startswith("vllm:") for _, line in numbered):
        raise TraceError(
            f"{path} is a server's /metrics page: its sums are read with --from vllm-metrics; {EACH}"
        )
    if not isinstance(_json(numbered[0][1]), dict):  # one object, or one list, over several lines
        whole = _json(text)
        if isinstance(whole, dict | list):
            for i, entry in enumerate(whole if isinstance(whole, list) else [whole], 1):
                yield _checked(path, i, entry, only=isinstance(whole, dict))
            return
    for i, line in numbered:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = f" ({error.msg}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
            raise TraceError(f"{path}, line {i} is not JSON{what}") from None
        yield _checked(path, i, entry)


def _json(text: str) -> Any:
    """What a text says; None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _checked(path: Path, number: int, entry: Any, only: bool = False) -> Line:
    line = Line(path, number, entry, only)
    if not isinstance(entry, dict):
        line.fail(f"is {_kind(entry)}, not an object")
    return line


# ---------------------------------------------------------------- what a line says


@dataclass(frozen=True)
class Found:
    """A request and its steps; whether drafts are chains, so that each is as long as it has tokens."""

    request: dict[str, Any]
    accepted: list[int]
    drafted: list[int | None]
    chain: bool
    most: int | None = None
    span: tuple[float, float] | None = None


def _vllm(line: Line, plain: bool) -> Found | str:
    entry = line.entry
    if "num_spec_steps" in entry:  # the bare object
        return _acceptance(line, entry, {"id": f"line {line.number}"}, engine="vllm")
    metrics, usage = (line.part(entry.get(name) or {}, name) for name in ("metrics", "usage"))
    spec = metrics.get("speculative_decoding")
    choices = entry.get("choices")
    if not metrics and not usage and not isinstance(choices, list):
        bench = "spec_decode_acceptance_length" in entry
        line.fail(
            f"is the result of vllm bench serve, which has sums and rates alone: the server's /metrics page "
            f"before and after it tells more (--from vllm-metrics); {EACH}"
            if bench
            else "is no response of vLLM: it has neither metrics nor usage nor choices"
        )
    request: dict[str, Any] = {"id": f"line {line.number}"}
    for name, there in (("prompt_tokens", "prompt_tokens"), ("output", "completion_tokens")):
        if usage.get(there) is not None:
            request[name] = line.whole(usage[there], f"usage.{there}")
    first, rest = (metrics.get(f"{name}_ms") for name in ("time_to_first_token", "generation_time"))
    if first is not None:
        request["first"] = request["prefill"] = line.real(first, "metrics.time_to_first_token_ms") / 1e3
        if rest is not None:
            request["seconds"] = request["first"] + line.real(rest, "metrics.generation_time_ms") / 1e3
    last = choices[-1] if isinstance(choices, list) and choices and isinstance(choices[-1], dict) else {}
    if last.get("finish_reason") in ("stop", "length"):  # a stop string, or another id, is a stop_reason
        request["eos"] = last["finish_reason"] == "stop" and last.get("stop_reason") is None
    if plain:
        if spec:
            line.fail("was speculated, so this is no run to compare with")
        return _plain(line, request, "usage.completion_tokens")
    if spec is None:
        return "no metrics.speculative_decoding: n > 1, or the server runs without speculation or its metrics"
    return _acceptance(line, line.part(spec, "metrics.speculative_decoding"), request, engine="vllm")


def _aiperf(line: Line, plain: bool) -> Found | str:
    entry = line.entry
    if "num_spec_steps" in entry:  # the bare record
        return _acceptance(line, entry, {"id": f"line {line.number}"})
    if "metadata" not in entry:
        line.fail("is no record of AIPerf: it has neither metadata nor num_spec_steps")
    about = line.part(entry["metadata"], "metadata")
    if entry.get("error") is not None:
        error = line.part(entry["error"], "error")
        return f"the request failed: {str(error.get('type') or error.get('message') or 'error')[:80]}"
    if about.get("benchmark_phase") not in (None, "profiling"):
        return f"it belongs to the phase {str(about['benchmark_phase'])[:40]}"
    name = next(
        (about[k] for k in ("conversation_id", "x_request_id", "session_num") if about.get(k) is not None),
        None,
    )
    request: dict[str, Any] = {"id": line.name(name, "metadata.conversation_id")}
    if turn := about.get("turn_index"):
        request["id"] += f"/{line.whole(turn, 'metadata.turn_index')}"
    metrics = line.part(entry.get("metrics") or {}, "metrics")

    def value(tag: str) -> Any:
        return line.part(metrics[tag], f"metrics.{tag}") if metrics.get(tag) is not None else None

    for tag, names in (("request_latency", ["seconds"]), ("time_to_first_token", ["first", "prefill"])):
        if (found := value(tag)) is not None:
            unit = found.get("unit")
            if unit not in UNITS:
                line.fail(f"has metrics.{tag} in {str(unit)[:20]}; known units are {', '.join(UNITS)}")
            request |= dict.fromkeys(names, line.real(found.get("value"), f"metrics.{tag}") * UNITS[unit])
    for tag, column in (("input_sequence_length", "prompt_tokens"), ("output_sequence_length", "output")):
        if (found := value(tag)) is not None:
            request[column] = line.whole(_integer(found.get("value")), f"metrics.{tag}")
    span = None
    if about.get("request_start_ns") is not None and about.get("request_end_ns") is not None:
        span = tuple(_nanoseconds(line, about, f"request_{which}_ns") for which in ("start", "end"))
        if span[1] < span[0]:
            line.fail("ends (request_end_ns) before it starts")
        request["begin"] = span[0]
    spec = entry.get("spec_decode_acceptance")
    if plain:
        if spec:
            line.fail("was speculated, so this is no run to compare with")
        return _plain(line, request, "metrics.output_sequence_length", span)
    if spec is None:
        return "no spec_decode_acceptance: no verify step, or a server without speculation or its metrics"
    return _acceptance(line, line.part(spec, "spec_decode_acceptance"), request, span)


def _integer(value: Any) -> Any:
    """AIPerf writes some counts as 12.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _nanoseconds(line: Line, about: dict[str, Any], name: str) -> float:
    value = about[name]
    if type(value) is not int or not 0 <= value < 2**63:
        line.fail(f"has metadata.{name} that is no time in nanoseconds")
    return value / 1e9


def _spec_bench(line: Line, plain: bool) -> Found | str:
    entry = line.entry
    if "question_id" not in entry:
        line.fail("is no answer of Spec-Bench: it has no question_id")
    if "choices" not in entry:
        line.fail("has no choices: this is a file of questions, and answers are wanted")
    name = line.name(entry["question_id"], "question_id")
    choices = entry["choices"]
    if not isinstance(choices, list) or not choices:
        line.fail("has no choice")
    choice = line.part(choices[0], "choice")
    turns = choice.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        line.fail("has turns that are no list of texts")
    for needed in ("new_tokens", "wall_time", "accept_lengths"):
        if needed not in choice:
            more = " (EAGLE's own scripts write none)" if needed == "accept_lengths" else ""
            line.fail(f"has no {needed}{more}")
    new = line.wholes(choice["new_tokens"], "new_tokens")
    times = choice["wall_time"]
    if not isinstance(times, list):
        line.fail("has wall_time that is no list")
    seconds = [line.real(each, f"wall_time[{i}]", 1e-9) for i, each in enumerate(times)]
    if not len(new) == len(seconds) == len(turns):
        line.fail(f"has {len(turns)} turns, {len(new)} new_tokens and {len(seconds)} wall_time")
    lengths = line.wholes(choice["accept_lengths"], "accept_lengths", 1)
    if "ERROR" in turns:
        return "a turn failed (ERROR), and the numbers beside it are an earlier call's"
    if plain and any(length != 1 for length in lengths):
        line.fail("has steps of more than one token, so this is no run to compare with")
    emitted, answer, n = sum(lengths), sum(new), len(turns)
    # The drafters there count differently: of each turn the prefill may have emitted a token more, what the
    # last step accepted be cut off, or the prompt's last token be counted with the first (Token Recycling).
    if not emitted - n * max(1, max(lengths, default=1) - 1) <= answer <= emitted + n:
        line.fail(f"has {answer} new_tokens, but its {len(lengths)} accept_lengths add up to {emitted}")
    request = {"id": name, "kind": _word(entry.get("category")), "steps": len(lengths), "emitted": emitted,
               "accepted": emitted - len(lengths), "output": answer, "seconds": sum(seconds)}  # fmt: skip
    if plain:
        request |= {"drafts": 0, "drafted": 0}
    return Found(request, [length - 1 for length in lengths], [0 if plain else None] * len(lengths), plain)


def _word(value: Any) -> str | None:
    return value[:NAME_LIMIT] if isinstance(value, str) else None


def _plain(
    line: Line, request: dict[str, Any], name: str, span: tuple[float, ...] | None = None
) -> Found | str:
    """A request without speculation: every token had a step of its own."""
    output = request.get("output")
    if output is None:
        return f"no {name}"
    if output > STEP_LIMIT:
        line.fail(f"has more than {STEP_LIMIT:,} steps")
    request |= dict.fromkeys(("steps", "emitted"), output) | dict.fromkeys(
        ("drafts", "drafted", "accepted"), 0
    )
    return Found(request, [0] * output, [0] * output, True, 0, (span[0], span[1]) if span else None)


def _acceptance(
    line: Line,
    spec: dict[str, Any],
    request: dict[str, Any],
    span: tuple[float, ...] | None = None,
    engine: str | None = None,
) -> Found:
    """vLLM's object and AIPerf's record, which have the same fields and identities."""
    chain = (engine or spec.get("engine")) == "vllm"  # others verify trees, too
    for name in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens", "acceptance_histogram"):
        if name not in spec:
            line.fail(f"has no {name}")
    steps, accepted, drafted = (
        line.whole(spec[name], name)
        for name in ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    )
    most = (
        None
        if spec.get("num_spec_tokens") is None
        else line.whole(spec["num_spec_tokens"], "num_spec_tokens")
    )
    counted = _histogram(line, spec["acceptance_histogram"])
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
    each, of = _per_step(line, spec, steps, accepted, drafted, counted)
    if of is None:  # no draft of a step: it is known only if all did their most
        full = most is not None and drafted == most * steps
        of = [most if full else None] * steps
    if request.get("output") is None and spec.get("completion_tokens") is not None:
        request["output"] = line.whole(spec["completion_tokens"], "completion_tokens")
    output, emitted = request.get("output"), accepted + steps
    last = each[-1] if each and spec.get("per_step_accepted") is not None else longest
    if output is not None and output < emitted - last:
        line.fail(
            f"has {output} completion tokens, but its steps emitted {emitted - last} before the last was cut"
        )
    request |= {"drafts": steps, "drafted": drafted, "accepted": accepted}
    # A step without a draft is not counted. An answer longer than these steps and the prefill wrote had some.
    if output is None or output <= emitted + 1:
        request |= {"steps": steps, "emitted": emitted}
    return Found(request, each, of, chain, most, (span[0], span[1]) if span else None)


def _histogram(line: Line, given: Any) -> dict[int, int]:
    """Steps by how many tokens they accepted; vLLM writes a list, AIPerf an object."""
    name = "acceptance_histogram"
    if isinstance(given, dict):
        counted = {}
        for key, value in given.items():
            if not (key.isascii() and key.isdigit() and len(key) < 10):
                line.fail(f"has {name} with the key {key[:20]!r}, which is no count")
            counted[int(key)] = line.whole(value, f"{name}[{key}]")
        return counted
    return dict(enumerate(line.wholes(given, name)))


def _per_step(
    line: Line, spec: dict[str, Any], steps: int, accepted: int, drafted: int, counted: dict[int, int]
) -> tuple[list[int], list[int | None] | None]:
    """Accepted and drafted tokens of each step; in the histogram's order where the first array is not there.

    vLLM writes both arrays or none, AIPerf what the engine tells.
    """
    found: dict[str, list[int]] = {}
    for name, whole, total in (
        ("per_step_accepted", "num_accepted_draft_tokens", accepted),
        ("per_step_drafted", "num_draft_tokens", drafted),
    ):
        if spec.get(name) is None:
            continue
        found[name] = values = line.wholes(spec[name], name)
        if len(values) != steps:
            line.fail(f"has {len(values)} entries of {name}, but num_spec_steps is {steps}")
        if sum(values) != total:
            line.fail(f"has {name} that adds up to {sum(values)}, but {whole} is {total}")
    each, of = found.get("per_step_accepted"), found.get("per_step_drafted")
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


READERS: dict[str, Callable[[Line, bool], Found | str]] = {
    "vllm": _vllm,
    "aiperf": _aiperf,
    "spec-bench": _spec_bench,
}
