"""Types that lines of other tools' files are checked against; `specviz.trace.foreign` reads the lines."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from specviz.trace.files import Record
from specviz.trace.foreign import STEP_LIMIT

MOST = 2**31 - 1  # maximum of any count
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "sec": 1.0, "s": 1.0, "seconds": 1.0}

Count = Annotated[int, Field(ge=0, le=MOST)]
Counts = Annotated[list[Count], Field(max_length=STEP_LIMIT)]
Step = Annotated[int, Field(ge=1, le=MOST)]
Digits = Annotated[str, Field(pattern=r"^[0-9]{1,4}$")]
Depth = Annotated[int, Field(ge=0, le=9999)]  # tokens of one step's draft
Depths = Annotated[list[Depth], Field(max_length=STEP_LIMIT)]
Name = Annotated[str, Field(min_length=1, max_length=256)] | int
Nanoseconds = Annotated[int, Field(ge=0, lt=2**63)]
Time = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]


class Acceptance(TypedDict):
    """vLLM's ``speculative_decoding``: the histogram is a list."""

    num_spec_steps: Count
    num_accepted_draft_tokens: Count
    num_draft_tokens: Count
    acceptance_histogram: Counts
    num_spec_tokens: NotRequired[Depth | None]
    per_step_accepted: NotRequired[Depths | None]
    per_step_drafted: NotRequired[Depths | None]
    completion_tokens: NotRequired[Count | None]
    engine: NotRequired[Any]


class AcceptanceByCount(Acceptance):
    """AIPerf's record: the histogram is an object."""

    acceptance_histogram: dict[Digits, Count]  # type: ignore[misc]


class VllmUsage(TypedDict, total=False):
    """``usage`` of a response."""

    prompt_tokens: Count | None
    completion_tokens: Count | None


class VllmMetrics(TypedDict, total=False):
    """``metrics`` of a response."""

    time_to_first_token_ms: Time | None
    generation_time_ms: Time | None
    speculative_decoding: Record | None


class VllmResponse(TypedDict, total=False):
    """A response of vLLM."""

    usage: VllmUsage | None
    metrics: VllmMetrics | None
    choices: Any


class Duration(TypedDict):
    """A duration in AIPerf's records."""

    value: Time
    unit: Literal["ns", "us", "µs", "ms", "sec", "s", "seconds"]


class Length(TypedDict):
    """A count in AIPerf's records, which write some as 12.0."""

    value: Annotated[float, Field(ge=0, le=MOST, multiple_of=1)]


class AiperfMetadata(TypedDict, total=False):
    """``metadata`` of a record."""

    conversation_id: Name | None
    x_request_id: Name | None
    session_num: Name | None
    turn_index: Count | None
    request_start_ns: Nanoseconds | None
    request_end_ns: Nanoseconds | None
    benchmark_phase: str | None


class AiperfMetrics(TypedDict, total=False):
    """``metrics`` of a record."""

    request_latency: Duration | None
    time_to_first_token: Duration | None
    input_sequence_length: Length | None
    output_sequence_length: Length | None


class AiperfRecord(TypedDict):
    """A record of AIPerf."""

    metadata: AiperfMetadata
    metrics: NotRequired[AiperfMetrics | None]
    error: NotRequired[Record | None]
    spec_decode_acceptance: NotRequired[Record | None]


class Answer(TypedDict):
    """An answer of Spec-Bench."""

    question_id: Name
    category: NotRequired[Any]
    choices: Annotated[list[Any], Field(min_length=1)]


class Choice(TypedDict):
    """The content of an answer."""

    turns: Annotated[list[str], Field(min_length=1)]
    new_tokens: Counts
    wall_time: list[Annotated[float, Field(ge=1e-9, lt=1e12, allow_inf_nan=False)]]
    accept_lengths: Annotated[list[Step], Field(max_length=STEP_LIMIT)]


class Timings(TypedDict):
    """``timings`` of llama-server."""

    predicted_n: Count
    predicted_ms: NotRequired[Time | None]
    prompt_n: NotRequired[Count | None]
    prompt_ms: NotRequired[Time | None]
    cache_n: NotRequired[Count | None]
    draft_n: NotRequired[Count | None]
    draft_n_accepted: NotRequired[Count | None]


class MetaInfo(TypedDict, total=False):
    """``meta_info`` of SGLang, with the names of both versions."""

    id: Name | None
    prompt_tokens: Count | None
    completion_tokens: Count | None
    e2e_latency: Time | None
    finish_reason: Record | str | None
    spec_verify_ct: Count | None
    spec_num_correct_drafts: Count | None
    spec_num_proposed_drafts: Count | None
    spec_accepted_drafts: Count | None
    spec_proposed_drafts: Count | None
    spec_accept_token_num: Count | None
    spec_draft_token_num: Count | None
    spec_correct_drafts_histogram: Counts | None
    spec_accept_histogram: Counts | None


class Statistics(TypedDict, total=False):
    """``stats`` and ``usage`` of LM Studio, with the SDK's names in the REST interface's spelling."""

    completion_tokens: Count | None
    predicted_tokens_count: Count | None
    prompt_tokens: Count | None
    prompt_tokens_count: Count | None
    tokens_per_second: Time | None
    time_to_first_token: Time | None
    time_to_first_token_sec: Time | None
    generation_time: Time | None
    stop_reason: str | None
    total_draft_tokens_count: Count | None
    accepted_draft_tokens_count: Count | None
    rejected_draft_tokens_count: Count | None
    ignored_draft_tokens_count: Count | None


class Token(TypedDict):
    """A response of mlx-lm's ``stream_generate``."""

    from_draft: bool
    generation_tokens: Step
    generation_tps: NotRequired[Time | None]
    prompt_tokens: NotRequired[Count | None]
    prompt_tps: NotRequired[Time | None]
    finish_reason: NotRequired[str | None]
