"""Counts from other tools' files: accepted and refused entries, fault positions; AIPerf round trips."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
from test_definitions import A, R, decode

import specviz
import traces
from specviz import cli, metrics
from specviz.errors import ParameterError, TraceError
from specviz.trace import Counts, Trace, read_counts

REAL = Path(__file__).parents[2] / "shared" / "real" / "spec-bench" / "question.jsonl"

# Each tool's output, field by field: vllm 0.33.0, aiperf 0.13.0 (which leaves out nulls) and the
# eval.py of Spec-Bench (whose older scripts write ``idxs`` for ``decoding_steps``).
VLLM = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1787366173,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "one", "refusal": None, "tool_calls": []},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
        }
    ],
    "service_tier": None,
    "system_fingerprint": "vllm-0.33.0",
    "usage": {"prompt_tokens": 7, "total_tokens": 18, "completion_tokens": 11, "prompt_tokens_details": None},
    "prompt_logprobs": None,
    "metrics": {
        "time_to_first_token_ms": 50.0,
        "generation_time_ms": 450.0,
        "queue_time_ms": 12.5,
        "mean_itl_ms": 45.0,
        "tokens_per_second": 22.0,
        "speculative_decoding": {
            "mean_acceptance_length": 2.5,
            "draft_acceptance_rate": 0.6,
            "acceptance_histogram": [1, 1, 1, 1],
            "num_spec_steps": 4,
            "num_accepted_draft_tokens": 6,
            "num_draft_tokens": 10,
            "num_spec_tokens": 3,
            "per_step_accepted": [3, 0, 1, 2],
            "per_step_drafted": [3, 3, 2, 2],
        },
    },
}
AIPERF = {
    "metadata": {
        "session_num": 0,
        "x_request_id": "1b0c",
        "x_correlation_id": "77aa",
        "conversation_id": "talk",
        "turn_index": 0,
        "credit_issued_ns": 999_000_000,
        "request_start_ns": 1_000_000_000,
        "request_ack_ns": 1_010_000_000,
        "request_end_ns": 3_000_000_000,
        "worker_id": "worker_1",
        "record_processor_id": "record_processor_1",
        "benchmark_phase": "profiling",
        "was_cancelled": False,
        "agent_depth": 0,
    },
    "metrics": {
        "input_sequence_length": {"value": 7, "unit": "tokens"},
        "output_sequence_length": {"value": 11, "unit": "tokens"},
        "time_to_first_token": {"value": 50.0, "unit": "ms"},
        "request_latency": {"value": 2000.0, "unit": "ms"},
        "spec_decode_acceptance_length": {"value": 2.5, "unit": "ratio"},
        "spec_decode_draft_acceptance_rate": {"value": 60.0, "unit": "%"},
    },
    "spec_decode_acceptance": {
        "engine": "vllm",
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.6,
        "acceptance_histogram": {"0": 1, "1": 1, "2": 1, "3": 1},
        "num_accepted_draft_tokens": 6,
        "num_draft_tokens": 10,
        "num_spec_steps": 4,
        "num_spec_tokens": 3,
        "completion_tokens": 11,
    },
}
BENCH = {
    "question_id": 81,
    "category": "writing",
    "answer_id": "x",
    "model_id": "m",
    "choices": [
        {
            "index": 0,
            "turns": ["one", "two"],
            "decoding_steps": [3, 2],
            "new_tokens": [6, 4],
            "wall_time": [0.5, 0.25],
            "accept_lengths": [3, 1, 2, 3, 1],
        }
    ],
    "tstamp": 0.0,
}
GOOD = {"vllm": VLLM, "aiperf": AIPERF, "spec-bench": BENCH}
SPEC = {
    "vllm": ("metrics", "speculative_decoding"),
    "aiperf": ("spec_decode_acceptance",),
    "spec-bench": ("choices", 0),
}


def write(path: Path, *entries) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf8")
    return path


def changed(origin: str, where: tuple, value) -> dict:
    """A good entry with one value replaced, or removed if it is ``...``."""
    entry = copy.deepcopy(GOOD[origin])
    inner = entry
    for key in where[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    return entry


def refused(path: Path, origin: str, **options) -> str:
    with pytest.raises(TraceError) as error:
        read_counts(path, origin, **options)
    assert "\n" not in str(error.value) and str(path) in str(error.value)
    return str(error.value)


def at(path: Path | str, line: str) -> str:
    """The position and the fault reported for the second line of a file."""
    return f"{path}, line 2{'' if line.startswith(',') else ' '}{line}"


def test_vllm_detailed_metrics_by_hand(tmp_path):
    second = changed("vllm", ("usage", "completion_tokens"), 9)  # cut by two in its last step
    found = specviz.read_counts(write(tmp_path / "r.jsonl", VLLM, second), "vllm")
    row = found.requests.iloc[0]
    assert row[["steps", "drafts", "drafted", "accepted", "emitted", "output"]].tolist() == [
        4,
        4,
        10,
        6,
        10,
        11,
    ]
    assert (row["seconds"], row["prefill"], row["first"], row["eos"]) == (0.5, 0.05, 0.05, True)
    assert found.steps["accepted"].tolist() == [3, 0, 1, 2] * 2
    assert found.steps["depth"].tolist() == [3, 3, 2, 2] * 2
    assert found.most == 3
    stopped = read_counts(
        write(tmp_path / "s.jsonl", changed("vllm", ("choices", 0, "stop_reason"), "##")), "vllm"
    )
    assert not stopped.requests["eos"].any()  # a stop string is not an end token
    assert metrics.tau(found) == 20 / 8
    assert metrics.acceptance_rate(found) == 12 / 20
    assert metrics.mean_accepted(found) == 12 / 8
    assert metrics.mean_sent(found) == 20 / 8
    table = metrics.rosetta(found)
    assert table["value"]["1 + accepted a draft"] == 1 + 12 / 8
    assert table["value"]["tokens a verify"] == 20 / 8  # 11 with the prefill's, 9 without the last two
    assert table["value"]["at the second position"] == 4 / 8
    assert table["value"]["1-α"] == 4 / 6
    assert table["value"]["accepted of judged"] == 12 / (12 + 4)
    assert table["badge"]["1 + accepted a draft"] == "exact"
    assert table["badge"]["tau, emitted tokens"] == "as counted"


def test_vllm_summary_knows_no_order_and_no_draft_of_a_step(tmp_path):
    entry = copy.deepcopy(VLLM)
    spec = entry["metrics"]["speculative_decoding"]
    del spec["per_step_accepted"], spec["per_step_drafted"]
    found = read_counts(write(tmp_path / "r.jsonl", entry), "vllm")
    assert sorted(found.steps["accepted"]) == [0, 1, 2, 3]
    table = metrics.rosetta(found)
    assert table["value"]["accepted of drafted"] == 0.6
    assert np.isnan(table["value"]["accepted of judged"])
    assert table["why"]["accepted of judged"] == "vllm does not say how long the draft of each step was"
    # Each of its steps had a draft, so vLLM's own rates follow from the histogram.
    assert table["value"]["at the second position"] == 2 / 4
    places = metrics.by_position(found)
    assert places["accepted"].tolist() == [3, 2, 1] and places["rate"].tolist() == [3 / 4, 2 / 4, 1 / 4]
    assert places["given"].isna().all()
    # A streamed response reports it in its last chunk, which has no choices.
    chunk = {**entry, "object": "chat.completion.chunk", "choices": []}
    streamed = read_counts(write(tmp_path / "s.jsonl", chunk), "vllm")
    assert streamed.requests.drop(columns="eos").equals(found.requests.drop(columns="eos"))
    assert streamed.requests["eos"].isna().all()
    # If every step drafted all it could, each step's draft is known.
    spec |= {"num_draft_tokens": 12, "draft_acceptance_rate": 0.5}
    full = read_counts(write(tmp_path / "full.jsonl", entry), "vllm")
    assert metrics.rosetta(full)["value"]["accepted of judged"] == 6 / (6 + 3)


def test_a_request_for_which_nothing_was_drafted(tmp_path):
    none = {
        "mean_acceptance_length": 1.0, "draft_acceptance_rate": 0.0, "acceptance_histogram": [0, 0, 0, 0],
        "num_spec_steps": 0, "num_accepted_draft_tokens": 0, "num_draft_tokens": 0, "num_spec_tokens": 3,
    }  # fmt: skip
    entry = changed("vllm", ("metrics", "speculative_decoding"), none)
    found = read_counts(write(tmp_path / "r.jsonl", VLLM, entry), "vllm")
    assert found.requests["drafts"].tolist() == [4, 0]
    assert found.requests["steps"].tolist() == [4, 10]  # 11 tokens, one of them the prefill's
    value = metrics.rosetta(found)["value"]
    assert value["1 + accepted a draft"] == value["1 + accepted a draft, by request"] == 2.5


def test_a_response_of_vllm_without_counts(tmp_path):
    """A server that reports them for others drafted nothing for it; with n > 1, that is not known."""
    none = changed("vllm", ("metrics", "speculative_decoding"), ...)
    several = {**none, "choices": VLLM["choices"] * 2}
    chunk = {**none, "usage": None, "object": "chat.completion.chunk"}
    found = read_counts(write(tmp_path / "r.jsonl", VLLM, none, several, chunk), "vllm")
    assert found.requests["steps"].tolist() == [4, 10] and found.requests["drafts"].tolist() == [4, 0]
    assert [why.split(":")[0] for why in found.left_out["why"]] == [
        "no metrics.speculative_decoding", "it is a chunk of a streamed answer, but not the last one",
    ]  # fmt: skip
    sentence = specviz.explain(tmp_path / "r.jsonl").sentence
    assert sentence.endswith("This covers only 2 of 3 requests: the others have no counts.")
    assert "no metrics.speculative_decoding" in refused(write(tmp_path / "n.jsonl", chunk, several), "vllm")
    left = read_counts(write(tmp_path / "u.jsonl", VLLM, {**none, "usage": None}), "vllm").left_out
    assert left["why"].tolist() == ["no usage.completion_tokens"]  # whole, but its length is missing
    assert "covers only 1 of 2 requests" in specviz.explain(tmp_path / "u.jsonl").sentence


def test_aiperf_may_tell_what_steps_accepted_and_not_what_they_drafted(tmp_path):
    entry = copy.deepcopy(AIPERF)
    spec = entry["spec_decode_acceptance"]
    spec["per_step_accepted"] = [3, 0, 1, 2]
    found = read_counts(write(tmp_path / "a.jsonl", entry), "aiperf")
    assert found.steps["accepted"].tolist() == [3, 0, 1, 2] and found.steps["drafted"].isna().all()
    spec["per_step_drafted"] = [3, 3, 2, 2]
    found = read_counts(write(tmp_path / "b.jsonl", entry), "aiperf")
    assert found.steps["drafted"].tolist() == found.steps["depth"].tolist() == [3, 3, 2, 2]
    tree = read_counts(
        write(tmp_path / "t.jsonl", {**entry, "spec_decode_acceptance": spec | {"engine": "x"}}), "aiperf"
    )
    assert tree.steps["drafted"].tolist() == [3, 3, 2, 2] and tree.steps["depth"].isna().all()
    assert "how long the draft" in metrics.rosetta(tree)["why"]["all accepted"]
    del spec["per_step_accepted"]
    found = read_counts(write(tmp_path / "d.jsonl", entry), "aiperf")
    assert found.steps["accepted"].tolist() == [0, 1, 2, 3] and found.steps["drafted"].isna().all()


@pytest.mark.parametrize("length", [2, 30])
def test_a_length_that_aiperf_counted_itself_says_nothing_of_steps(tmp_path, length):
    """By default it is the text's length in the client's own tokens."""
    entry = changed("aiperf", ("metrics", "output_sequence_length", "value"), length)
    found = read_counts(write(tmp_path / "a.jsonl", entry), "aiperf")
    assert found.total("output") == 11 and found.total("steps") == 4
    del entry["spec_decode_acceptance"]["completion_tokens"]
    found = read_counts(write(tmp_path / "a.jsonl", entry), "aiperf")
    assert found.requests[["steps", "emitted"]].isna().all(axis=None) and found.total("drafts") == 4
    # Nor of those of requests without drafts, if no record shows that the server counted the same.
    plain = changed("aiperf", ("spec_decode_acceptance",), ...)
    short = copy.deepcopy(plain)
    short["metrics"]["output_sequence_length"]["value"] = 1
    for drafted in (entry, changed("aiperf", ("metrics", "output_sequence_length", "value"), length)):
        found = read_counts(write(tmp_path / "a.jsonl", drafted, plain, short), "aiperf")
        assert found.left_out["line"].tolist() == [2] and found.requests["steps"].tolist()[1] == 0
        assert "covers only 2 of 3 requests" in specviz.explain(tmp_path / "a.jsonl").sentence


def test_half_a_surrogate_pair_in_a_category_is_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({**BENCH, "category": "a\ud800b"}), "utf8")
    found = read_counts(path, "spec-bench")
    assert found.requests["kind"].tolist() == ["a?b"]
    assert "a?b" in found.requests.to_csv()
    found.requests.to_parquet(tmp_path / "a.parquet")


def test_an_answer_longer_than_its_steps_had_steps_without_a_draft(tmp_path):
    """30 tokens: the prefill's, 6 accepted ones, and one of each of 23 steps, 4 of which had a draft."""
    path = tmp_path / "r.jsonl"
    assert not read_counts(write(path, VLLM), "vllm").least_steps
    longer = changed("vllm", ("usage", "completion_tokens"), 30)
    counts = read_counts(write(path, longer), "vllm")
    assert counts.requests[["steps", "drafts", "emitted"]].iloc[0].tolist() == [23, 4, 29]
    assert counts.least_steps and metrics.tau(counts) == 29 / 23
    table = metrics.rosetta(counts)
    assert table["value"]["tokens a verify"] == 30 / 23 and table["value"]["nothing accepted"] == 20 / 23
    assert table["value"]["1 + accepted a draft"] == 2.5 and table["value"]["at the second position"] == 2 / 4
    assert table["badge"]["tau, whole steps"] == "as counted"
    assert table["badge"]["1 + accepted a draft"] == "exact"
    # Without the draft of each step, it is still known that the counted steps had one.
    for name in ("per_step_accepted", "per_step_drafted"):
        del longer["metrics"]["speculative_decoding"][name]
    places = metrics.by_position(read_counts(write(path, longer), "vllm"))
    assert places["rate"].tolist() == [3 / 4, 2 / 4, 1 / 4] and places["given"].isna().all()
    # Its records are still vLLM's, but those of other records may have been written by this package.
    again = read_counts(counts.to_aiperf(tmp_path / "p.jsonl"), "aiperf")
    names = ["steps", "drafts", "emitted", "output"]
    assert again.requests[names].equals(counts.requests[names]) and again.least_steps
    again = read_counts(again.to_aiperf(tmp_path / "q.jsonl"), "aiperf")
    assert again.total("drafts") == 4 and again.requests["steps"].isna().all()
    huge = changed("vllm", ("usage", "completion_tokens"), 2**31 - 1)
    assert "is where the file exceeds 20,000,000 steps" in refused(write(path, huge), "vllm")


def test_one_response_or_a_list_of_them(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps(VLLM, indent=2), "utf8")
    assert len(read_counts(path, "vllm").requests) == 1
    path.write_text(json.dumps([VLLM, VLLM], indent=2), "utf8")
    assert len(read_counts(path, "vllm").requests) == 2
    bare = VLLM["metrics"]["speculative_decoding"]
    assert metrics.tau(read_counts(write(path, bare), "vllm")) == 2.5


def test_aiperf_records_and_what_they_leave_out(tmp_path):
    failed = {**AIPERF, "metrics": {}, "error": {"code": 499, "type": "Cancelled", "message": "m"}}
    warm = changed("aiperf", ("metadata", "benchmark_phase"), "warmup")
    none = changed("aiperf", ("spec_decode_acceptance",), ...)
    later = changed("aiperf", ("metadata", "request_end_ns"), 6_000_000_000)
    found = read_counts(write(tmp_path / "p.jsonl", failed, AIPERF, warm, none, later), "aiperf")
    assert found.left_out["line"].tolist() == [1, 3]
    assert [why.split(":")[0] for why in found.left_out["why"]] == [
        "the request failed", "it belongs to the phase warmup",
    ]  # fmt: skip
    assert found.requests["id"].tolist() == ["talk"] * 3
    assert found.requests["seconds"].tolist() == [2.0] * 3
    assert found.requests["drafts"].tolist() == [4, 0, 4]
    assert found.requests["steps"].tolist() == [4, 10, 4]  # 11 tokens, one of them the prefill's
    assert found.least_steps and found.most == 3
    assert found.wall == 5.0
    assert "2 lines skipped" in repr(found)
    assert "no verify step" in refused(write(tmp_path / "n.jsonl", none), "aiperf")
    bare = changed("aiperf", ("spec_decode_acceptance", "num_spec_tokens"), ...)
    assert read_counts(write(tmp_path / "b.jsonl", bare, none), "aiperf").most is None
    # (A + N) / (D + N)
    assert metrics.rosetta(found)["value"]["accepted per verified"] == 10 / 14


def test_aiperf_speedup_over_a_run_without_speculation(tmp_path):
    plain = changed("aiperf", ("spec_decode_acceptance",), ...)
    plain["metrics"]["request_latency"]["value"] = 5000.0
    plain["metrics"]["output_sequence_length"]["value"] = 21.0
    plain["metadata"]["request_end_ns"] = 6_000_000_000
    # Both twice, and at the same time: throughput is measured over the run's seconds.
    base = read_counts(write(tmp_path / "b.jsonl", plain, plain), "aiperf", plain=True)
    found = read_counts(write(tmp_path / "p.jsonl", AIPERF, AIPERF), "aiperf")
    assert (found.wall, base.wall) == (2.0, 5.0)
    values = metrics.rosetta(found, base)["value"]
    assert values["time per input"] == values["paired latency"] == 2.5  # by half for it wrote less
    assert values["throughput"] == values["mean tokens/s"] == pytest.approx((11 / 2) / (21 / 5))
    assert values["time per token"] == pytest.approx((5 / 21) / (2 / 11))
    assert values["time per output token"] == pytest.approx((4.95 / 20) / (1.95 / 10))
    assert "used speculation" in refused(tmp_path / "p.jsonl", "aiperf", plain=True)


def test_spec_bench_answers_as_its_own_script_reads_them(tmp_path):
    second = changed("spec-bench", ("question_id",), 82)
    second["choices"][0] |= {"turns": ["x"], "new_tokens": [8], "wall_time": [1.0], "accept_lengths": [4, 4]}
    base = []
    for entry, new, times in ((BENCH, [6, 4], [1.0, 0.5]), (second, [8], [4.0])):
        plain = copy.deepcopy(entry)
        plain["choices"][0] |= {"new_tokens": new, "wall_time": times, "accept_lengths": [1] * sum(new)}
        base.append(plain)
    found = read_counts(write(tmp_path / "a.jsonl", BENCH, second), "spec-bench")
    plain = read_counts(write(tmp_path / "b.jsonl", *base), "spec-bench", plain=True)
    table = metrics.rosetta(found, plain)
    value = table["value"]
    assert value["tau, whole steps"] == np.mean([3, 1, 2, 3, 1, 4, 4])
    assert value["accepted a step"] == pytest.approx(value["tau, whole steps"] - 1)
    # each request against its own, in any order of the baseline's file
    assert value["paired latency"] == pytest.approx((1.5 / 0.75 + 4 / 1) / 2)
    turned = read_counts(write(tmp_path / "c.jsonl", *base[::-1]), "spec-bench", plain=True)
    assert metrics.rosetta(found, turned)["value"].equals(value)
    # speeds 10/0.75 and 8/1, the baseline's 10/1.5 and 8/4
    assert value["mean tokens/s"] == pytest.approx((10 / 0.75 + 8) / (10 / 1.5 + 2))
    assert value["throughput"] == pytest.approx(5.5 / 1.75)
    assert table["why"]["accepted of drafted"] == "spec-bench does not say how many tokens were drafted"
    assert table["why"]["decode tokens/s"] == "spec-bench does not say how long the prefill took"
    assert found.requests["kind"].tolist() == ["writing", "writing"]
    assert table["why"]["at the second position"] == "spec-bench does not say which steps had a draft"
    with pytest.raises(TraceError, match="spec-bench does not say which steps had a draft"):
        metrics.by_position(found)


def test_drafters_of_spec_bench_count_their_ends_differently(tmp_path):
    # Cut in the last step; the same; with an end token after it; the first step with the prompt's last token.
    for new, lengths in (([8], [4, 4, 3]), ([11], [4, 4, 3]), ([12], [4, 4, 3]), ([2], [1, 1, 1])):
        entry = copy.deepcopy(BENCH)
        entry["choices"][0] |= {"turns": ["x"], "new_tokens": new, "wall_time": [1.0]}
        entry["choices"][0] |= {"accept_lengths": lengths, "idxs": [3]}
        del entry["choices"][0]["decoding_steps"]
        found = read_counts(write(tmp_path / "a.jsonl", entry), "spec-bench")
        assert (found.total("output"), found.total("emitted")) == (new[0], sum(lengths))


def test_a_failed_turn_of_spec_bench_is_left_out_whole(tmp_path):
    failed = changed("spec-bench", ("choices", 0, "turns"), ["one", "ERROR"])
    other = changed("spec-bench", ("question_id",), 82)
    found = read_counts(write(tmp_path / "a.jsonl", failed, other), "spec-bench")
    assert found.requests["id"].tolist() == ["82"]
    assert found.left_out["line"].tolist() == [1]
    assert "holds no counted requests: a turn failed" in refused(
        write(tmp_path / "b.jsonl", failed), "spec-bench"
    )


@pytest.mark.skipif(not REAL.exists(), reason="needs the real question file")
def test_answers_to_the_real_questions_and_the_questions_themselves(tmp_path):
    assert "has no choices: this is a file of questions" in refused(REAL, "spec-bench")
    rng, entries = np.random.default_rng(0), []
    for line in REAL.read_text("utf8").splitlines():
        question = json.loads(line)
        lengths = [rng.integers(1, 6, 20).tolist() for _ in question["turns"]]
        choice = {
            "turns": question["turns"],
            "new_tokens": [sum(turn) for turn in lengths],
            "wall_time": [0.5] * len(lengths),
            "accept_lengths": [n for turn in lengths for n in turn],
        }
        entries.append(
            {"question_id": question["question_id"], "category": question["category"], "choices": [choice]}
        )
    found = read_counts(write(tmp_path / "a.jsonl", *entries), "spec-bench")
    assert len(found.requests) == 480 and found.total("steps") == 20 * (400 + 2 * 80)
    assert metrics.tau(found) == np.mean(np.concatenate([e["choices"][0]["accept_lengths"] for e in entries]))


SHARED = [  # of vLLM's object and AIPerf's record
    ("num_spec_steps", ..., ", {place} lacks 'num_spec_steps'"),
    ("num_spec_steps", 5, "counts 4 steps in its acceptance_histogram, but num_spec_steps is 5"),
    (
        "num_accepted_draft_tokens",
        7,
        "counts 6 tokens in its acceptance_histogram, but num_accepted_draft_",
    ),
    ("num_draft_tokens", 5, "accepted 6 of 5 drafted tokens"),
    ("num_draft_tokens", -1, ", {place}, num_draft_tokens should be greater than or"),
    ("num_draft_tokens", 2.5, ", {place}, num_draft_tokens should be a whole number, not 2.5"),
    ("num_draft_tokens", True, ", {place}, num_draft_tokens should be a whole number, not true"),
    (
        "num_draft_tokens",
        10**400,
        ", {place}, num_draft_tokens should be less than or",
    ),
    ("num_draft_tokens", "10", ", {place}, num_draft_tokens should be a whole number, not '10'"),
    ("acceptance_histogram", "1111", ", {place}, acceptance_histogram should be a list, not '1111'"),
    (
        "acceptance_histogram",
        {"0": 1, "-1": 3},
        ", {place}, acceptance_histogram.-1 is not a key of this object",
    ),
    (
        "acceptance_histogram",
        [1, 1, None, 1],
        ", {place}, acceptance_histogram[2] should be a whole number, not null",
    ),
    ("per_step_accepted", [3, 0, 1], "has "),
]
DETAILED = [
    ("per_step_accepted", [3, 0, 1], "has 3 entries of per_step_accepted, but num_spec_steps is 4"),
    ("per_step_accepted", [3, 0, 1, 1], "has per_step_accepted that adds up to 5, but num_accepted_draft_"),
    ("per_step_drafted", [3, 3, 2, 3], "has per_step_drafted that adds up to 11, but num_draft_tokens is 10"),
    ("per_step_drafted", [3, 3, 3, 1], "accepted 2 of 1 drafted tokens in step 4"),
    ("per_step_accepted", [3, 1, 1, 1], "has per_step_accepted that its acceptance_histogram does not count"),
    ("num_draft_tokens", 13, "drafted 13 tokens in 4 steps, but num_spec_tokens is 3"),
    ("num_spec_tokens", 4, "has 4 entries of acceptance_histogram, but num_spec_tokens is 4"),
]  # fmt: skip


@pytest.mark.parametrize("origin", ["vllm", "aiperf"])
@pytest.mark.parametrize(("name", "value", "line"), SHARED)
def test_a_broken_identity_of_acceptance_names_its_line(tmp_path, origin, name, value, line):
    bad = changed(origin, (*SPEC[origin], name), value)
    said = refused(write(tmp_path / "f.jsonl", GOOD[origin], bad), origin)
    assert at(tmp_path / "f.jsonl", line.format(place=".".join(SPEC[origin]))) in said


@pytest.mark.parametrize(("name", "value", "line"), DETAILED)
def test_a_broken_identity_of_steps_names_its_line(tmp_path, name, value, line):
    bad = changed("vllm", (*SPEC["vllm"], name), value)
    assert f", line 2 {line}" in refused(write(tmp_path / "f.jsonl", VLLM, bad), "vllm")


@pytest.mark.parametrize(("where", "value", "line"), [
    (("usage", "completion_tokens"), 7, "has 7 completion tokens, but its steps emitted 8 before"),
    (("usage", "completion_tokens"), "11", ", usage.completion_tokens should be a whole number"),
    (("metrics", "time_to_first_token_ms"), -1, ", metrics.time_to_first_token_ms"),
    (("metrics", "generation_time_ms"), float("nan"), ", metrics.generation_time_ms should be a finite"),
    (("metrics", "speculative_decoding"), [1], ", metrics.speculative_decoding should be an object"),
    (("metrics",), 3, ", metrics should be an object, not 3"),
])  # fmt: skip
def test_what_else_a_response_can_get_wrong(tmp_path, where, value, line):
    bad = changed("vllm", where, value)
    assert at("", line) in refused(write(tmp_path / "f.jsonl", VLLM, bad), "vllm")


@pytest.mark.parametrize(("where", "value", "line"), [
    (("metadata",), ..., "is not a record of AIPerf: it has neither metadata nor num_spec_steps"),
    (("metadata", "conversation_id"), [], ", metadata.conversation_id should be a string, not a list"),
    (("metadata", "turn_index"), 1.5, ", metadata.turn_index should be a whole number, not 1.5"),
    (("metadata", "request_end_ns"), 999, "ends (request_end_ns) before it starts"),
    (("metadata", "request_start_ns"), "1", ", metadata.request_start_ns should be a whole number"),
    (("metrics", "request_latency"), 3, ", metrics.request_latency should be an object, not 3"),
    (("metrics", "request_latency", "unit"), "h", ", metrics.request_latency.unit should be 'ns'"),
    (("metrics", "request_latency", "unit"), ["ms"], ", metrics.request_latency.unit should be 'ns'"),
    (("metrics", "output_sequence_length", "value"), 1.5, ", metrics.output_sequence_length.value should"),
    (("spec_decode_acceptance", "completion_tokens"), 7, "has 7 completion tokens, but its steps emitted 7"),
    (("error",), "e", ", error should be an object, not 'e'"),
    (("spec_decode_acceptance", "num_spec_tokens"), 2, "accepted 3 tokens in a step, but num_spec_tokens is"),
])  # fmt: skip
def test_what_else_a_record_can_get_wrong(tmp_path, where, value, line):
    bad = changed("aiperf", where, value)
    if "emitted 7" in line:  # without an order the longest step may have been the last
        assert read_counts(write(tmp_path / "f.jsonl", bad), "aiperf").total("output") == 7
        bad["spec_decode_acceptance"]["completion_tokens"] = 6
        line = line.replace("has 7", "has 6")
    assert at("", line) in refused(write(tmp_path / "f.jsonl", AIPERF, bad), "aiperf")


@pytest.mark.parametrize(("where", "value", "line"), [
    (("question_id",), ..., "is not an answer of Spec-Bench: it has no question_id"),
    (("question_id",), 81, "answers question 81, and so does line 1: keep one of them"),
    (("question_id",), None, ", question_id should be a string, not null"),
    (("choices",), ..., "has no choices: this is a file of questions, not of answers"),
    (("choices",), [], ", choices is too short"),
    (("choices", 0), 1, ", choices[0] should be an object, not 1"),
    (("choices", 0, "turns"), [1], ", choices[0], turns[0] should be a string, not 1"),
    (("choices", 0, "accept_lengths"), ..., "has no accept_lengths (EAGLE's own scripts write none)"),
    (("choices", 0, "new_tokens"), ..., ", choices[0] lacks 'new_tokens'"),
    (("choices", 0, "wall_time"), 1.0, ", choices[0], wall_time should be a list, not 1.0"),
    (("choices", 0, "wall_time"), [0.5, 0], ", choices[0], wall_time[1] should be greater"),
    (("choices", 0, "wall_time"), [0.5], "has 2 turns, 2 new_tokens and 1 wall_time"),
    (("choices", 0, "accept_lengths"), [3, 0, 2, 3, 1], ", choices[0], accept_lengths[1] should be greater"),
    (("choices", 0, "new_tokens"), [6, 7], "has 13 new_tokens, but its 5 accept_lengths add up to 10"),
    (("choices", 0, "new_tokens"), [3, 2], "has 5 new_tokens, but its 5 accept_lengths add up to 10"),
])  # fmt: skip
def test_what_an_answer_can_get_wrong(tmp_path, where, value, line):
    bad = changed("spec-bench", where, value)
    if where != ("question_id",):
        bad["question_id"] = 82
    assert at("", line) in refused(write(tmp_path / "f.jsonl", BENCH, bad), "spec-bench")


def test_what_a_file_can_get_wrong(tmp_path):
    path = tmp_path / "f.jsonl"
    assert "No such file" in refused(path, "vllm")
    path.write_text("\n \n")
    assert "is empty" in refused(path, "vllm")
    path.write_bytes(b"\xff\xfe{}")
    assert "is not UTF-8" in refused(path, "vllm")
    path.write_text(json.dumps(VLLM) + '\n{"metrics": \n')
    assert ", line 2 is not JSON (Expecting value, column" in refused(path, "vllm")
    path.write_text(json.dumps(VLLM) + "\n[1]\n")
    assert ", line 2 should be an object, not a list" in refused(path, "vllm")
    path.write_text("[" * 100_000)
    assert ", line 1 is nested too deep" in refused(path, "vllm")
    path.write_text('{"a": 1}\n')
    assert ", line 1 is not a response of vLLM" in refused(path, "vllm")
    path.write_text('# HELP x\nvllm:spec_decode_num_drafts_total{engine="0"} 10.0\n')
    assert "is a server's /metrics page: read its sums with --from vllm-metrics" in refused(path, "vllm")
    path.write_text('{"date": "now", "spec_decode_acceptance_length": 2.8}')
    assert "is the result of vllm bench serve" in refused(path, "vllm")
    assert "used speculation" in refused(write(path, VLLM), "vllm", plain=True)
    assert "has steps of more than one token" in refused(write(path, BENCH), "spec-bench", plain=True)
    with pytest.raises(
        ParameterError, match="no origin 'tgi': choose one of vllm, aiperf, spec-bench, llama"
    ):
        read_counts(path, "tgi")


def test_a_histogram_of_more_steps_than_memory_holds_is_refused(tmp_path):
    bad = changed("aiperf", ("spec_decode_acceptance", "acceptance_histogram"), {"0": 2 * 10**9})
    bad["spec_decode_acceptance"] |= {"num_spec_steps": 2 * 10**9, "num_accepted_draft_tokens": 0}
    assert "has more than 20,000,000 steps" in refused(write(tmp_path / "f.jsonl", bad), "aiperf")
    plain = changed("aiperf", ("metrics", "output_sequence_length", "value"), 2 * 10**9)
    plain["spec_decode_acceptance"] = None
    said = refused(write(tmp_path / "f.jsonl", plain), "aiperf", plain=True)
    assert "has more than 20,000,000 steps" in said


def test_what_counts_cannot_tell_is_refused_in_one_line(tmp_path):
    found = read_counts(write(tmp_path / "a.jsonl", BENCH), "spec-bench")
    for ask in (metrics.recheck, metrics.summary, metrics.by_depth, metrics.by_prompt, metrics.seconds):
        with pytest.raises(
            TraceError, match=r"a\.jsonl \(spec-bench\) says how many .* this needs a trace's"
        ):
            ask(found)
    assert not hasattr(found, "_repr_mimebundle_")
    assert np.isnan(metrics.acceptance_rate(found))


@pytest.mark.parametrize("method", ["speculative", "tree", "bild"])
def test_aiperf_records_of_a_trace_and_back(tmp_path, method):
    trace = traces.build(method, prompts=4, tokens=60, cut=False)
    ours = metrics.counts(trace)
    theirs = read_counts(ours.to_aiperf(tmp_path / "p.jsonl"), "aiperf")
    names = ["id", "prompt_tokens", "drafts", "drafted", "accepted", "output"]
    assert theirs.requests[names].equals(ours.requests[names])
    for name in ("seconds", "first", "begin"):
        assert theirs.requests[name].to_numpy() == pytest.approx(ours.requests[name].to_numpy(), nan_ok=True)
    times = [json.loads(line)["metadata"] for line in (tmp_path / "p.jsonl").read_text("utf8").splitlines()]
    lasted = [(each["request_end_ns"] - each["request_start_ns"]) / 1e9 for each in times]
    assert lasted == pytest.approx(ours.requests["seconds"].tolist(), abs=1e-6)
    some = ours.steps[ours.steps["drafted"] > 0]
    for name in ("request", "drafted", "accepted"):
        assert theirs.steps[name].tolist() == some[name].tolist()
    mine, other = metrics.rosetta(trace)["value"], metrics.rosetta(theirs)["value"]
    for name in (
        "1 + accepted a draft",
        "accepted of drafted",
        "accepted per verified",
        "accepted of output",
    ):
        assert other[name] == pytest.approx(mine[name])


def test_aiperf_records_hold_every_identity_that_aiperf_checks(tmp_path):
    trace = decode([[A, A, R], [], [R]], [[]])
    path = metrics.counts(trace).to_aiperf(tmp_path / "p.jsonl")
    first, second = map(json.loads, path.read_text("utf8").splitlines())
    assert first["spec_decode_acceptance"] == {
        "engine": "specviz", "mean_acceptance_length": 2.0, "draft_acceptance_rate": 0.5,
        "acceptance_histogram": {"0": 1, "2": 1}, "num_accepted_draft_tokens": 2, "num_draft_tokens": 4,
        "num_spec_steps": 2, "num_spec_tokens": 3, "completion_tokens": 5, "per_step_accepted": [2, 0],
        "per_step_drafted": [3, 1],
    }  # fmt: skip
    assert "spec_decode_acceptance" not in second
    again = read_counts(path, "aiperf")
    # One of its steps had no draft, which the record does not show.
    assert again.requests[["steps", "emitted"]].isna().all(axis=None) and np.isnan(metrics.tau(again))
    assert again.total("drafts") == 2 and again.left_out["line"].tolist() == [2]
    words = specviz.explain(path).sentence
    assert "does not say how many cycles" in words and "covers only 1 of 2 requests" in words
    assert "request_start_ns" not in first["metadata"]  # the start of this run is unknown
    with pytest.raises(TraceError, match="exists: choose another name"):
        metrics.counts(trace).to_aiperf(path)
    bench = read_counts(write(tmp_path / "a.jsonl", BENCH), "spec-bench")
    with pytest.raises(TraceError, match="spec-bench does not say how many tokens were drafted"):
        bench.to_aiperf(tmp_path / "b.jsonl")
    assert not (tmp_path / "b.jsonl").exists()


def test_compare_like_with_like(tmp_path):
    found = read_counts(write(tmp_path / "p.jsonl", AIPERF), "aiperf")
    plain = decode([[]], method="autoregressive")
    with pytest.raises(
        TraceError, match="is from aiperf, but the baseline is from specviz: use the same tool for both"
    ):
        metrics.rosetta(found, plain)
    other = changed("aiperf", ("metrics", "input_sequence_length", "value"), 8)
    other["spec_decode_acceptance"] = None
    base = read_counts(write(tmp_path / "b.jsonl", other), "aiperf", plain=True)
    with pytest.raises(TraceError, match="decoded different prompts: 1 against 1, 0 in common"):
        metrics.rosetta(found, base)


def test_the_command_line_reads_checks_and_writes(tmp_path, capsys):
    path = write(tmp_path / "r.jsonl", VLLM, {**VLLM, "metrics": {}})
    assert cli.run(["import", str(path), "--from", "vllm", "--aiperf", str(tmp_path / "p.jsonl")]) == 0
    out, _ = capsys.readouterr()
    assert "Counts of 1 request from vllm" in out and "1 + ΣA / ΣN" in out and "2.500" in out
    assert f"skipped: {path}, line 2: no metrics.speculative_decoding" in out
    assert "steps: those without a draft" not in out
    longer = write(tmp_path / "l.jsonl", changed("vllm", ("usage", "completion_tokens"), 30))
    assert cli.run(["import", str(longer), "--from", "vllm"]) == 0
    assert "steps: those without a draft follow from the lengths of the answers" in capsys.readouterr()[0]
    assert isinstance(read_counts(tmp_path / "p.jsonl", "aiperf"), Counts)
    assert cli.run(["import", str(path), "--from", "vllm", "--aiperf", str(tmp_path / "p.jsonl")]) == 2
    assert cli.run(["import", str(path), "--from", "tgi"]) == 2
    _, said = capsys.readouterr()
    assert said.splitlines()[-1].startswith("specviz: no origin 'tgi'")
    trace = traces.build("speculative", path=tmp_path / "t.parquet")
    assert isinstance(trace, Trace)
    assert cli.run(["metrics", str(tmp_path / "t.parquet"), "--aiperf", str(tmp_path / "t.jsonl")]) == 0
    out, _ = capsys.readouterr()
    assert "EAGLE (τ)" in out and "speedups: pass the same prompts" in out and "speedup\n" not in out
    assert cli.run(["metrics", str(tmp_path / "t.parquet"), "--baseline", str(tmp_path / "t.parquet")]) == 2
    assert "is not autoregressive" in capsys.readouterr()[1]
