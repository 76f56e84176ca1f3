"""A vLLM server's log lines, read back into counts."""

import numpy as np
import pytest

from specviz import metrics
from specviz.errors import ParameterError, TraceError
from specviz.explanations import explain
from specviz.trace import read_counts
from specviz.trace.engines import origin_of

LINE = (
    "(APIServer pid=1) INFO 05-03 18:51:05 [metrics.py:101] SpecDecoding metrics: "
    "Mean acceptance length: {m:.2f}, "
    "Accepted throughput: 27.10 tokens/s, Drafted throughput: 27.80 tokens/s, Accepted: {a} tokens, "
    "Drafted: {d} tokens, Per-position acceptance rate: {r}, Avg Draft acceptance rate: {share:.1f}%\n"
)
OLDER = (
    "INFO 09-09 11:51:35 [metrics.py:96] SpecDecoding metrics: Draft acceptance rate: 88.8%, Mean acceptance "
    "length: 5.44, Accepted throughput: 4.37 tokens/s, Drafted throughput: 4.92 tokens/s, "
    "Accepted: 262 tokens, Drafted: 295 tokens, "
    "Per-position acceptance rate: 0.983, 0.949, 0.915, 0.881, 0.712\n"
)
START = "INFO vLLM API server version 0.19.1\nEngine 000: Avg generation throughput: 41.0 tokens/s\n"


def printed(n, at, drafted):
    """The line of `n` drafts, as vLLM formats it."""
    rates = ", ".join(f"{count / n:.3f}" for count in at)
    a = sum(at)
    return LINE.format(m=1 + a / n, a=a, d=drafted, r=rates, share=100 * a / drafted)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "server.log"


def test_counts_are_those_that_were_printed(file):
    rng = np.random.default_rng(0)
    for _ in range(200):
        most, n = int(rng.integers(1, 8)), int(rng.integers(1, 900))
        at = np.sort(rng.integers(0, n + 1, most))[::-1].tolist()
        file.write_text(START + printed(n, at, n * most))
        assert origin_of(file) == "vllm-log"
        counts = read_counts(file, "vllm-log")
        assert counts.total("drafts") == n and counts.total("accepted") == sum(at)
        assert metrics.by_position(counts)["accepted"].tolist() == at
        assert metrics.tau(counts) == pytest.approx(1 + sum(at) / n)
    assert counts.version == "vLLM 0.19.1" and counts.pooled


@pytest.mark.parametrize(("least", "most"), [(900, 3000), (3000, 30_000)])
def test_positions_with_nearly_the_same_rate_are_counted(file, least, most):
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(least, most))
        first = int(rng.integers(n // 2, n))
        at = [first - int(step) for step in np.cumsum(rng.integers(0, 4, 4))]
        file.write_text(printed(n, at, 4 * n))
        counts = read_counts(file, "vllm-log")
        assert counts.total("drafts") == n and counts.total("accepted") == sum(at)


def test_lines_without_an_accepted_token_are_counted_where_drafts_are_full(file):
    nothing = LINE.format(m=1, a=0, d=30, r="0.000, 0.000, 0.000", share=0)
    uneven = LINE.format(m=1, a=0, d=7, r="0.000, 0.000, 0.000", share=0)
    file.write_text(printed(10, [5, 2, 1], 30) + nothing + uneven * 2)
    counts = read_counts(file, "vllm-log")
    assert counts.total("drafts") == 20
    (left,) = counts.left_out["why"]
    assert "2 lines from here on with 14 drafted tokens" in left


def test_lines_without_an_accepted_token_are_unknown_where_drafts_are_not_full(file):
    nothing = LINE.format(m=1, a=0, d=30, r="0.000, 0.000, 0.000", share=0)
    file.write_text(nothing + printed(10, [5, 2, 1], 25))
    counts = read_counts(file, "vllm-log")
    assert counts.total("drafts") == 10 and counts.total("drafted") == 25
    assert counts.left_out["line"].tolist() == [1] and "30 drafted tokens" in counts.left_out["why"][0]


def test_a_log_of_a_long_time_is_explained_in_little_memory(file):
    n = 300_000_000
    file.write_text(printed(n, [n // 2, n // 4], 2 * n))
    why = explain(file)
    assert why.costs.tau == pytest.approx(1.75)
    assert any("steps without a draft" in each for each in why.missing)
    assert not any("--plain" in each for each in why.missing)  # it would be refused


def test_very_many_drafts_stay_within_the_last_decimal(file):
    n, at = 123_457, [98_431, 70_222, 51_003]
    file.write_text(printed(n, at, 3 * n))
    counts = read_counts(file, "vllm-log")
    assert counts.total("drafts") == n and counts.total("accepted") == sum(at)
    np.testing.assert_allclose(
        metrics.by_position(counts)["accepted"].to_numpy() / n, np.array(at) / n, atol=6e-4
    )


def test_drafts_of_several_lengths_are_counted_by_the_rates(file):
    file.write_text(printed(100, [71, 40, 13], 260))
    counts = read_counts(file, "vllm-log")
    assert counts.total("drafts") == 100
    assert counts.steps["depth"].isna().all()


def test_lines_add_up_and_an_older_order_of_the_fields_is_read(file):
    file.write_text(START + OLDER * 2)
    counts = read_counts(file, "vllm-log")
    assert (counts.total("drafts"), counts.total("drafted"), counts.total("accepted")) == (118, 590, 524)
    assert metrics.by_position(counts)["accepted"].tolist() == [116, 112, 108, 104, 84]
    assert "exact counts: the log rounds" in explain(file).text()
    file.write_bytes(b"INFO prompt: caf\xe9\n" + OLDER.encode())
    assert origin_of(file) == "vllm-log" and read_counts(file, "vllm-log").total("accepted") == 262


BROKEN = [
    (OLDER.replace("262", "300"), "accepted 300 of 295 drafted tokens"),
    (OLDER.replace("0.949", "0.749"), "rates per position that rise"),
    (OLDER.replace("5.44", "4.44"), "that no number of drafts explains"),
    (OLDER.replace("0.712", "0.702"), "that no number of drafts explains"),
    (OLDER.replace("0.712", "0.7.2"), "rates that are not numbers"),
    (OLDER.replace("Drafted: 295", "Drafted: many"), "lacks the accepted and the drafted tokens"),
    (OLDER + printed(10, [5, 2], 20), "line 2 has 2 positions, but earlier lines 5"),
    ("SpecDecoding metrics: Draft acceptance rate: 100.0%, Accepted: 66 tokens, Drafted: 66 tokens\n",
     "does not print the acceptance by position"),
    (LINE.format(m=1, a=0, d=7, r="0.000, 0.000", share=0), "7 drafted tokens, none accepted, do not"),
    (START, "it has no line 'SpecDecoding metrics:'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), BROKEN)
def test_a_broken_log_is_refused_in_one_line(file, text, words):
    file.write_text(text)
    with pytest.raises(TraceError) as error:
        read_counts(file, "vllm-log")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_log_is_no_baseline(file):
    file.write_text(OLDER)
    with pytest.raises(ParameterError, match="drop the baseline"):
        read_counts(file, "vllm-log", plain=True)


def test_sglang_s_log_is_refused_by_name(file):
    file.write_text(
        "Decode batch, #running-req: 1, #token: 90, accept len: 2.35, gen throughput (token/s): 80.1\n"
    )
    with pytest.raises(TraceError, match="SGLang's log, whose 'accept len' is a mean"):
        origin_of(file)
