"""Files of llama.cpp, SGLang, LM Studio and mlx-lm: read as counts, checked, or refused with the line."""

from __future__ import annotations

import copy
import json
import math

import pytest

import specviz as sv
from specviz import metrics
from specviz.errors import TraceError
from specviz.trace import read_counts
from specviz.trace.engines import origin_of

# Field by field each tool's output for one request; the numbers are a server's own, or consistent.
ENGINES = {
    "llama.cpp": {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "finish_reason": "length", "message": {"content": "a"}}],
        "system_fingerprint": "b6123-0a1b2c3",
        "usage": {"completion_tokens": 256, "prompt_tokens": 20, "total_tokens": 276},
        "timings": {
            "cache_n": 2, "prompt_n": 18, "prompt_ms": 300.11, "prompt_per_second": 66.64, "predicted_n": 256,
            "predicted_ms": 2296.72, "predicted_per_second": 111.46, "draft_n": 259, "draft_n_accepted": 167,
        },
    },
    "sglang": {
        "text": "a",
        "meta_info": {
            "id": "r1", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 7,
            "completion_tokens": 12, "e2e_latency": 1.5, "spec_accept_rate": 0.5, "spec_accept_length": 3.0,
            "spec_verify_ct": 4, "spec_num_correct_drafts": 8, "spec_num_proposed_drafts": 16,
            "spec_correct_drafts_histogram": [1, 0, 1, 2],
        },
    },
    "lm-studio": {
        "id": "chatcmpl-2",
        "choices": [{"index": 0, "finish_reason": "length"}],
        "usage": {
            "prompt_tokens": 66, "completion_tokens": 300, "total_draft_tokens_count": 492,
            "accepted_draft_tokens_count": 176, "rejected_draft_tokens_count": 316,
        },
        "stats": {"tokens_per_second": 17.93, "time_to_first_token": 1.16, "stop_reason": "eosFound"},
        "runtime": {"name": "llama.cpp-mac-arm64", "version": "1.3.0"},
    },
}  # fmt: skip
LOG = """\
build: 6123 (0a1b2c3) with clang
I slot print_timing: id 1 | task 0 | prompt eval time =  300.11 ms /  20 tokens ( 15.01 ms per token)
I slot print_timing: id 1 | task 0 |        eval time = 2296.72 ms / 256 tokens (  8.97 ms per token)
I slot print_timing: id 1 | task 0 | draft acceptance = 0.64479 (  167 accepted /   259 generated), \
mean acceptance length =  2.92, acceptance rate per position = (0.805, 0.632, 0.483)
I statistics draft-eagle3: #calls(b,g,a) = 1 87 87, #gen drafts = 87, #acc drafts = 70, #gen tokens = 259, \
#acc tokens = 167, #mean acc len = 2.92, dur(b,g,a) = 0.005, 325.555, 0.114 ms
"""
PLAIN_LOG = """\
prompt eval time = 300.00 ms / 20 tokens
eval time = 5100.00 ms / 256 tokens
"""


@pytest.mark.parametrize("data", ['{"a": 1}'.encode("utf-16"), b"\0\1\2", b"\x89PNG"])
def test_a_file_that_is_no_text_is_called_so(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(TraceError, match="x is not UTF-8 text"):
        origin_of(tmp_path / "x")


def test_a_share_of_steps_that_nobody_counted_is_not_zero(tmp_path):
    counts = read_counts(write(tmp_path / "x.jsonl", ENGINES["llama.cpp"]), "llama.cpp")
    row = metrics.rosetta(counts).loc["nothing accepted"]
    assert math.isnan(row["value"])
    assert row["why"] == "llama.cpp does not say how many tokens each step accepted"


def tokens(drafts=(False, True, True, False, True, False)):
    """mlx-lm's responses for a text, one per line."""
    return [
        {
            "from_draft": each,
            "generation_tokens": i,
            "generation_tps": 30.0,
            "prompt_tokens": 5,
            "prompt_tps": 50.0,
        }
        for i, each in enumerate(drafts, 1)
    ]


def write(path, *entries):
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "f.jsonl"


def test_requests_of_each_tool_are_counted(file):
    totals = {
        "llama.cpp": (88, 259, 167, 255, 256), "sglang": (4, 16, 8, 12, 12),  # its own accept length is 3
        "lm-studio": (123, 492, 176, 299, 300),
    }  # fmt: skip
    for name, entry in ENGINES.items():
        assert origin_of(write(file, entry)) == name
        counts = read_counts(file, name)
        columns = ("steps", "drafted", "accepted", "emitted", "output")
        assert tuple(counts.total(column) for column in columns) == totals[name]
        assert metrics.tau(counts) == totals[name][3] / totals[name][0]
    assert read_counts(write(file, ENGINES["llama.cpp"]), "llama.cpp").version == "llama.cpp b6123-0a1b2c3"
    row = read_counts(file, "llama.cpp").requests.iloc[0]
    assert (row["prompt_tokens"], row["eos"]) == (20, False)
    assert row["first"] == pytest.approx(0.30011) and row["seconds"] == pytest.approx(2.59683)
    assert read_counts(write(file, ENGINES["lm-studio"]), "lm-studio").version.endswith("mac-arm64 1.3.0")


def test_a_streamed_answer_has_its_counts_in_the_last_chunk(file):
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]}
    chunk["choices"][0]["finish_reason"] = None
    last = chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    last["timings"] = ENGINES["llama.cpp"]["timings"]
    part = {"index": 0, "content": "a", "stop": False}
    for lines in ([chunk, chunk, last], [part, part | {"stop": True, "timings": last["timings"]}]):
        assert origin_of(write(file, *lines)) == "llama.cpp"
        assert read_counts(file, "llama.cpp").total("accepted") == 167
    with pytest.raises(TraceError, match="a response without draft counts"):
        origin_of(write(file, chunk, chunk))
    text = {"object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": None}]}
    end = text | {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "timings": last["timings"]}
    for lines in ([[chunk, last]], [text, text, end], [{"error": {"code": 500}}, last]):
        assert origin_of(write(file, *lines)) == "llama.cpp"
        assert read_counts(file, "llama.cpp").total("accepted") == 167
    with pytest.raises(TraceError, match="it has 'error'"):
        origin_of(write(file, {"error": {"code": 500}}, chunk))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_streamed_answer_is_read_as_curl_saves_it(file, end):
    part = {"index": 0, "content": "a", "stop": False}
    last = part | {"stop": True, "timings": ENGINES["llama.cpp"]["timings"]}
    events = [
        f"data: {json.dumps(part)}",
        "",
        ": ping",
        "event: end",
        f"data:{json.dumps(last)}",
        "data: [DONE]",
    ]
    file.write_text(end.join([*events, ""]), newline="")
    assert origin_of(file) == "llama.cpp"
    counts = read_counts(file, "llama.cpp")
    assert counts.total("accepted") == 167 and counts.requests["id"].tolist() == ["line 5"]
    file.write_text("data: {", newline="")
    assert "line 1 is not JSON" in refused(file, "llama.cpp")


def test_older_names_and_shapes_are_read_too(file):
    meta = ENGINES["sglang"]["meta_info"]
    older = {k: v for k, v in meta.items() if "correct" not in k and "proposed" not in k}
    older |= {"spec_accept_token_num": 8, "spec_draft_token_num": 16, "spec_accept_histogram": [1, 0, 1, 2]}
    chat = {"choices": [{"meta_info": meta}]}
    for entry in ({"meta_info": older}, chat, meta):
        assert origin_of(write(file, entry)) == "sglang"
        assert metrics.by_position(read_counts(file, "sglang"))["accepted"].tolist() == [3, 3, 2]
    sdk = {"stats": {"totalDraftTokensCount": 10, "acceptedDraftTokensCount": 4, "predictedTokensCount": 9,
                     "rejectedDraftTokensCount": 5, "ignoredDraftTokensCount": 1}}  # fmt: skip
    counts = read_counts(write(file, sdk), "lm-studio")
    assert (counts.total("drafted"), counts.total("steps")) == (9, 4)
    assert read_counts(write(file, ENGINES["llama.cpp"]["timings"]), "llama.cpp").total("steps") == 88


def test_a_log_gives_back_the_counts_that_its_rates_were_made_of(file):
    file.write_text(LOG)
    assert origin_of(file) == "llama.cpp-log"
    counts = read_counts(file, "llama.cpp-log")
    assert metrics.by_position(counts)["accepted"].tolist() == [70, 55, 42]
    assert (counts.total("drafts"), counts.total("steps"), counts.most) == (87, 88, 3)
    assert counts.drafting == pytest.approx(0.325555) and counts.version == "llama.cpp build 6123"
    # Rates that do not match the accepted count give no counts, nor do those that several counts would match,
    # as with very many steps.
    loose = LOG.replace("167 accepted /   259", "16700 accepted / 25900").replace(
        "256 tokens", "25600 tokens"
    )
    for text in (loose, LOG.replace("0.483)", "0.471)")):
        file.write_text(text)
        assert not len(read_counts(file, "llama.cpp-log").steps)


def test_tokens_of_mlx_lm_are_put_into_steps(file):
    write(file, *tokens(), *tokens((True, True, False)))
    assert origin_of(file) == "mlx-lm"
    counts = read_counts(file, "mlx-lm")
    assert counts.steps["accepted"].tolist() == [0, 2, 1, 2]
    assert counts.requests["output"].tolist() == counts.requests["emitted"].tolist() == [6, 3]
    first = read_counts(write(file, *tokens((True, True, False, False, True, True))), "mlx-lm")
    assert (first.total("steps"), metrics.accepted_share(first)) == (3, 4 / 6)
    assert read_counts(write(file, *tokens((False,) * 4)), "mlx-lm", plain=True).total("steps") == 3


def test_a_text_of_mlx_lm_whose_drafts_were_all_rejected_counts(tmp_path):
    """15 tokens in 3 steps and 6 s, and 19 tokens in 19 steps of 2 s, against plain steps of 1 s."""
    texts = {"s": (((True,) * 4 + (False,)) * 4, 6.0), "r": ((False,) * 20, 38.0), "p": ((False,) * 20, 19.0)}
    lines = {
        name: [each | {"generation_tps": 20 / seconds} for each in tokens(drafts)]
        for name, (drafts, seconds) in texts.items()
    }
    drafted = write(tmp_path / "s.jsonl", *lines["s"], *lines["r"])
    why = sv.explain(drafted, write(tmp_path / "p.jsonl", *lines["p"]))
    assert (why.costs.steps, why.costs.tokens) == (22, 34)
    assert why.speedup.median == pytest.approx(34 / 44)
    assert "no token came from a draft" in refused(write(drafted, *lines["r"]), "mlx-lm")


def test_the_clock_of_mlx_lm_lacks_the_first_step(tmp_path):
    """4 steps of 2 s and 5 tokens, against plain steps of 1 s: 2.5 times."""
    names = [tmp_path / name for name in ("s.jsonl", "p.jsonl")]
    for path, drafts, seconds in zip(names, ((True,) * 4 + (False,), (False,)), (6.0, 19.0)):
        text = tokens(drafts * (20 // len(drafts)))
        write(path, *(each | {"generation_tps": 20 / seconds} for each in text))
    why = sv.explain(*names)
    assert (why.costs.cycle, why.plain.cycle, why.speedup.median) == pytest.approx((2.0, 1.0, 2.5))


def test_tokens_accepted_after_the_end_hide_steps(file):
    """llama-server counts them as accepted, but not in the answer's length."""
    short = {"predicted_n": 3, "draft_n": 4, "draft_n_accepted": 4}
    counts = read_counts(write(file, ENGINES["llama.cpp"], short), "llama.cpp")
    assert counts.requests["steps"].tolist() == [88, 1] and counts.least_steps
    assert counts.requests["emitted"].tolist() == [255, 5]
    assert read_counts(write(file, ENGINES["lm-studio"]), "lm-studio").least_steps
    assert not read_counts(write(file, ENGINES["sglang"]), "sglang").least_steps  # counted there
    # The rates show 87 steps, and the answer's length only 85.
    file.write_text(LOG.replace("256 tokens", "253 tokens"))
    counts = read_counts(file, "llama.cpp-log")
    assert (counts.total("steps"), counts.total("emitted"), counts.least_steps) == (87, 254, True)
    assert metrics.by_position(counts)["accepted"].tolist() == [70, 55, 42]
    assert any("or accepted after it, hide some" in each for each in sv.explain(file).missing)


def test_rates_on_a_line_of_their_own_are_read(file):
    rates = ", mean len =  2.92\nT slot print_timing: id 1 |      acc per pos = (0.805, 0.632, 0.483)\n"
    file.write_text(LOG.replace(LOG[LOG.index(", mean acceptance") : LOG.index("I statistics")], rates))
    counts = read_counts(file, "llama.cpp-log")
    assert metrics.by_position(counts)["accepted"].tolist() == [70, 55, 42] and counts.most == 3


def test_runs_of_llama_cli_are_steps(file):
    file.write_text("eval time = 990.00 ms / 99 runs")
    counts = read_counts(file, "llama.cpp-log", plain=True)
    assert (counts.total("steps"), counts.total("output")) == (99, 100)


def test_the_time_of_generation_of_lm_studio_is_its_own(file):
    """The numbers are those of its documentation: the rate is over all tokens."""
    stats = {"tokens_per_second": 9 / 0.156, "time_to_first_token": 0.299}
    for more, seconds in (({}, 0.156), ({"generation_time": 0.2}, 0.2)):
        write(file, {"usage": {"completion_tokens": 9}, "stats": stats | more})
        row = read_counts(file, "lm-studio", plain=True).requests.iloc[0]
        assert row["seconds"] == pytest.approx(0.299 + seconds)


def test_a_server_that_rejects_nothing_may_not_count_it(file):
    timings = ENGINES["llama.cpp"]["timings"]
    for accepted, doubt in ((259, True), (258, False)):
        why = sv.explain(write(file, timings | {"draft_n_accepted": accepted, "predicted_n": 300}))
        assert any("possibly rejected drafts" in each for each in why.missing) == doubt


def test_a_run_without_drafts_is_a_baseline(file):
    for name, entry in ENGINES.items():
        plain = copy.deepcopy(entry)
        part = {"llama.cpp": "timings", "sglang": "meta_info", "lm-studio": "usage"}[name]
        plain[part] = {k: v for k, v in plain[part].items() if "draft" not in k and "spec" not in k}
        if "id" in plain:  # a response has a new one
            plain["id"] = "chatcmpl-other"
        if "id" in plain[part]:
            plain[part]["id"] = "r9"
        base = read_counts(write(file, plain), name, plain=True)
        assert base.total("drafted") == 0
        table = metrics.rosetta(read_counts(write(file, entry), name), base)  # the same request
        assert "time per input" in table.index
        both = read_counts(write(file, entry, plain), name)  # of a run with drafts, steps without one
        own = read_counts(write(file, entry), name)
        for column in ("steps", "emitted", "output", "drafted"):
            assert both.total(column) == own.total(column) + base.total(column)
        listed = len(base.steps) if name == "sglang" else 0  # all or none are listed
        assert both.requests["drafts"].tolist()[1] == 0 and len(both.steps) == len(own.steps) + listed
        share = metrics.rosetta(both)["value"]["nothing accepted"]
        assert share == (1 + 11) / (4 + 11) if listed else math.isnan(share)
        write(file, plain)
        assert "no drafts" in refused(file, name)
        assert "used speculation" in refused(write(file, entry), name, plain=True)


def test_requests_that_drafted_nothing_are_part_of_the_run(tmp_path):
    """100 tokens in 50 steps and 1 s, and nine times 100 in 100 steps and 2 s; plain steps take 20 ms."""

    def answer(seconds, **drafts):
        return {"predicted_n": 101, "predicted_ms": 1e3 * seconds, "prompt_n": 5, "prompt_ms": 100.0} | drafts

    plain = write(tmp_path / "p.jsonl", *[answer(2.0)] * 10)
    drafted = write(tmp_path / "s.jsonl", *[answer(2.0)] * 9, answer(1.0, draft_n=60, draft_n_accepted=50))
    why = sv.explain(drafted, plain)
    assert (why.costs.steps, why.costs.tokens) == (950, 1000) and not why.scope
    assert why.speedup.median == pytest.approx(20 / 19)
    counts = read_counts(drafted, "llama.cpp")
    table = metrics.rosetta(counts, read_counts(plain, "llama.cpp", plain=True))
    assert table["value"]["time per input"] == pytest.approx(21 / 20)
    assert not len(counts.left_out) and metrics.tau(counts) == pytest.approx(1000 / 950)
    log = "".join(
        f"eval time = {1e3 * seconds} ms / 101 tokens\n" + more
        for seconds, more in ((2.0, ""), (1.0, "draft acceptance = 0.83333 ( 50 accepted / 60 generated)\n"))
    )
    drafted.write_text(log)
    assert read_counts(drafted, "llama.cpp-log").requests["steps"].tolist() == [100, 50]


def test_counts_of_sglang_that_are_null_are_not_there(file):
    meta = ENGINES["sglang"]["meta_info"]
    older = {"spec_accept_token_num": 8, "spec_draft_token_num": 16}
    null = meta | {"spec_num_correct_drafts": None, "spec_num_proposed_drafts": None}
    assert read_counts(write(file, {"meta_info": null | older}), "sglang").total("accepted") == 8
    assert "does not count drafts" in refused(write(file, {"meta_info": null}), "sglang")
    counts = read_counts(write(file, {"meta_info": null}, {"meta_info": meta}), "sglang")
    assert counts.left_out["line"].tolist() == [1]
    assert sv.explain(file).sentence.endswith("This covers only 1 of 2 requests: the others have no counts.")


def refused(path, origin, **rest):
    with pytest.raises(TraceError) as error:
        read_counts(path, origin, **rest)
    assert "\n" not in str(error.value)
    return str(error.value)


WRONG = [
    ("llama.cpp", ("timings", "draft_n_accepted"), 260, "accepted 260 of 259 drafted"),
    ("llama.cpp", ("timings", "predicted_ms"), -1, "predicted_ms"),
    ("llama.cpp", ("timings",), [], "timings should be an object"),
    ("sglang", ("meta_info", "spec_verify_ct"), 3, "has a histogram that counts 4, but spec_verify_ct is 3"),
    ("sglang", ("meta_info", "completion_tokens"), 14, "has 14 completion tokens, but 4 verify steps"),
    (
        "sglang",
        ("meta_info", "spec_correct_drafts_histogram"),
        [2, 0, 0, 2],
        "counts 6, but spec_num_correct",
    ),
    ("lm-studio", ("usage", "rejected_draft_tokens_count"), 1, "counts 492 draft tokens, but 177 accepted"),
    ("lm-studio", ("usage", "completion_tokens"), "300", "completion_tokens should be a whole number"),
]


@pytest.mark.parametrize(("origin", "path", "value", "words"), WRONG)
def test_a_broken_identity_names_its_line(file, origin, path, value, words):
    bad = copy.deepcopy(ENGINES[origin])
    inner = bad
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    line = refused(write(file, ENGINES[origin], bad), origin)
    assert words in line and ", line 2" in line


LOGS = [
    ("0.64479", "0.74479", "has an acceptance of 0.74479, which is not 167 / 259"),
    ("0.805, 0.632", "0.605, 0.632", "has rates per position that rise"),
    ("2296.72 ms / 256", "2296.72 ms / 99999999999", "is not a count"),
    ("#acc tokens = 167", "#acc tokens = 300", "accepted 300 of 259"),
    ("eval time", "evil time", "without an 'eval time' before it"),
]


@pytest.mark.parametrize(("good", "bad", "words"), LOGS)
def test_a_broken_log_names_its_line(file, good, bad, words):
    file.write_text(LOG.replace(good, bad))
    assert words in refused(file, "llama.cpp-log")


def test_a_missing_token_is_noticed(file):
    some = tokens()
    assert "is token 4 of its text, but token 3 is expected" in refused(
        write(file, *some[:2], *some[3:]), "mlx-lm"
    )
    assert "it has no from_draft" in refused(write(file, {"token": 1}), "mlx-lm")


UNKNOWN = [
    ("sglang:spec_accept_length{} 2.9\n", "a /metrics page of SGLang, whose gauges do not count steps"),
    ("llamacpp:n_decode_total 5\n", "a /metrics page of llama-server"),
    ('{"resourceSpans": []}', "an export of OpenTelemetry spans"),
    ('{"choices": []}', "a response without draft counts"),
    ('{"what": 1}', "JSON in an unknown format (it has 'what')"),
    ("[[1]]", "JSON without entries"),
    ("[2025-08-01 12:00:00] Decode batch. accept len: 2.91, cuda graph: True\n", "SGLang's log"),
    ("hello\n", "in an unknown format"),
]


@pytest.mark.parametrize(("content", "words"), UNKNOWN)
def test_what_is_not_read_is_refused_by_name_with_what_is(file, content, words):
    file.write_text(content)
    with pytest.raises(TraceError, match="supported are traces") as error:
        origin_of(file)
    assert words in str(error.value)


def test_other_origins_are_still_told_apart(file):
    file.write_text('vllm:spec_decode_num_drafts_total{engine="0"} 10.0\n')
    assert origin_of(file) == "vllm-metrics"
    assert origin_of(write(file, {"question_id": 1, "choices": []})) == "spec-bench"
    assert origin_of(write(file, {"metadata": {}, "metrics": {}})) == "aiperf"
    assert origin_of(write(file, {"usage": {}, "metrics": {}, "choices": []})) == "vllm"


def test_a_step_that_the_answers_end_cut_counts_whole(file):
    """Its accepted tokens are in the histogram, although the text lacks the last of them."""
    entry = copy.deepcopy(ENGINES["sglang"])
    entry["meta_info"]["completion_tokens"] = 10
    counts = read_counts(write(file, entry), "sglang")
    assert counts.total("emitted") == counts.steps["emitted"].sum() == 12
    assert metrics.tau(counts) == 12 / 4


def test_sglang_may_accept_more_than_the_answer_kept(file):
    """Its overlap scheduler counts the last step before the answer is cut."""
    entry = copy.deepcopy(ENGINES["sglang"])
    accepted = read_counts(write(file, entry), "sglang").total("accepted")
    entry["meta_info"]["completion_tokens"] = int(accepted)
    counts = read_counts(write(file, entry), "sglang")
    assert counts.total("accepted") == accepted and counts.total("emitted") == 12


def test_a_log_that_begins_with_a_bracket_is_a_log(file):
    file.write_text("[INFO] loaded\n" + LOG)
    assert origin_of(file) == "llama.cpp-log"


def test_a_byte_of_a_log_may_be_no_text(file):
    file.write_bytes(b"I prompt: caf\xe9\n" + LOG.encode())
    assert origin_of(file) == "llama.cpp-log"
    assert read_counts(file, "llama.cpp-log").total("accepted") == 167
    file.write_bytes(json.dumps(ENGINES["llama.cpp"]).encode() + b'\n{"a": "\xe9"}')
    assert origin_of(file) == "llama.cpp" and "is not UTF-8 text" in refused(file, "llama.cpp")


def test_a_damaged_rate_in_a_log_names_its_line(file):
    file.write_text(LOG.replace("(0.805, ", "(0.805. "))
    assert "rates that are not numbers" in refused(file, "llama.cpp-log")


def test_an_answer_of_one_token_ends_a_text_of_mlx_lm(file):
    one = tokens((False,))[-1] | {"finish_reason": "stop"}
    every = read_counts(write(file, one, *tokens((False,) * 4), one), "mlx-lm", plain=True)
    assert every.requests["output"].tolist() == [1, 4, 1]


def test_chunks_of_a_streamed_answer_are_left_out(file):
    chunk = copy.deepcopy(ENGINES["llama.cpp"])
    chunk["choices"] = [{"index": 0, "finish_reason": None, "delta": {"content": "a"}}]
    chunk["timings"] |= {"predicted_n": 100, "draft_n": 99, "draft_n_accepted": 60}
    counts = read_counts(write(file, chunk, chunk, ENGINES["llama.cpp"]), "llama.cpp")
    assert counts.total("output") == 256 and len(counts.requests) == 1
    bare = [
        {"choices": [{"index": 0, "finish_reason": None, "delta": {"content": "Hi"}}]},
        {"choices": [{"index": 0, "finish_reason": None, "text": "Hi"}]},
        {"content": "Hi", "stop": False},
        {"choices": [{"index": 0, "finish_reason": "stop", "delta": {}}]},  # the next chunk has the timings
    ]
    last = {"choices": [], "timings": ENGINES["llama.cpp"]["timings"]}
    counts = read_counts(write(file, *bare, last), "llama.cpp")
    assert counts.requests["output"].tolist() == [256] and len(counts.left_out) == 4
    entry = ENGINES["sglang"]
    part = entry | {"meta_info": entry["meta_info"] | {"finish_reason": None}}
    assert read_counts(write(file, part, entry), "sglang").requests["output"].tolist() == [12]
    few = {name: {"completion_tokens": n, "finish_reason": end} for name, n, end in
           (("part", 3, None), ("whole", 9, {"type": "stop"}))}  # fmt: skip
    write(file, *({"meta_info": each} for each in few.values()))
    assert read_counts(file, "sglang", plain=True).requests["output"].tolist() == [9]


def test_the_sums_of_all_slots_are_added(file):
    other = LOG.replace("id 1", "id 0").replace("tokens = 259", "tokens = 518").replace("325.555", "976.665")
    unnamed = (other + LOG).replace("print_timing: id", "print_timing: slot")
    for text in (LOG + other, other + LOG, unnamed):
        file.write_text(text)
        drafting = read_counts(file, "llama.cpp-log").drafting
        want = 2 * 259 * (0.325555 + 0.976665) / (259 + 518)
        # Which slot's sums a line without its number continues is unknown.
        assert drafting == pytest.approx(math.nan if text == unnamed else want, nan_ok=True)


def test_counts_without_their_drafting_steps_are_no_records_of_aiperf(file, tmp_path):
    counts = read_counts(write(file, ENGINES["llama.cpp"]), "llama.cpp")
    with pytest.raises(TraceError, match="does not say which steps had a draft, which AIPerf"):
        counts.to_aiperf(tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
