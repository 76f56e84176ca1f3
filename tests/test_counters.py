"""A vLLM server's counters: handmade pages in its layout, the values derived, and errors with their line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import specviz
from specviz import cli, metrics
from specviz.errors import ParameterError, TraceError
from specviz.explanations import explain
from specviz.trace import read_counts

# As vLLM's server answers, with the page's other metrics shortened. 100 drafts of 3: 20 accepted none, 30
# one, 10 two and 40 all three.
PAGE = """\
# HELP python_info Python platform information
# TYPE python_info gauge
python_info{implementation="CPython",major="3",minor="12",patchlevel="11",version="3.12.11"} 1.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/m"} 0.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="org/m"} 272.0
# HELP vllm:generation_tokens_created Number of generation tokens processed.
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{engine="0",model_name="org/m"} 1.7855387441382e+09
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="org/m"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="org/m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="org/m"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="org/m"} 0.25
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="org/m"} 100.0
# HELP vllm:spec_decode_num_drafts_created Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="org/m"} 1.785538744138251e+09
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="org/m"} 300.0
# HELP vllm:spec_decode_num_accepted_tokens_total Number of accepted tokens.
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="org/m"} 170.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/m",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/m",position="1"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="org/m",position="2"} 40.0
# HELP vllm:spec_decode_num_accepted_tokens_per_pos_created Accepted tokens per draft position.
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_created gauge
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="org/m",position="0"} 1.7855387e+09
"""
NAMES = {
    "drafts": "spec_decode_num_drafts",
    "drafted": "spec_decode_num_draft_tokens",
    "accepted": "spec_decode_num_accepted_tokens",
    "output": "generation_tokens",
}


def page(text: str = PAGE, **changes: str) -> str:
    """The page with other values: of a counter by name, of a position as ``at0``."""
    for name, value in changes.items():
        at = re.escape(f'position="{name[2:]}"') if name.startswith("at") else ""
        full = "spec_decode_num_accepted_tokens_per_pos" if at else NAMES[name]
        text, n = re.subn(rf"(?m)^(vllm:{full}_total\{{.*{at}\}}) .*$", rf"\g<1> {value}", text)
        assert n == 1, name
    return text


def line(start: str) -> int:
    """The number of the line that starts so."""
    return next(i for i, each in enumerate(PAGE.split("\n"), 1) if each.startswith(f"vllm:{start}"))


def read(tmp_path: Path, text: str, since: str | None = None):
    (tmp_path / "after").write_text(text, "utf8")
    if since is None:
        return read_counts(tmp_path / "after", "vllm-metrics")
    (tmp_path / "before").write_text(since, "utf8")
    return read_counts(tmp_path / "after", "vllm-metrics", since=tmp_path / "before")


def refused(tmp_path: Path, text: str, since: str | None = None) -> str:
    with pytest.raises(TraceError) as error:
        read(tmp_path, text, since)
    said = str(error.value)
    assert "\n" not in said and str(tmp_path / "after") in said
    return said.replace(f"{tmp_path}/", "")


LATER = page(drafts="160", drafted="480", accepted="260", at0="120", at1="80", at2="60", output="412")


def test_sums_tell_the_pooled_definitions_by_hand(tmp_path):
    found = read(tmp_path, PAGE)
    assert found.requests["id"].tolist() == ["engine 0, model_name org/m"]
    assert found.steps["accepted"].tolist() == [0, 1, 2, 3]
    assert found.steps["times"].tolist() == [20, 30, 10, 40]
    assert found.most == 3 and found.pooled
    assert metrics.acceptance_rate(found) == 170 / 300
    assert metrics.tau(found) == 270 / 100
    table = metrics.rosetta(found)
    told = table[table["average"] == "pooled"]["value"].to_dict()
    assert told == pytest.approx({
        "tau, whole steps": 270 / 100,
        "tau, emitted tokens": 270 / 100,
        "1 + accepted a draft": 1 + 170 / 100,
        "tokens a verify": 272 / 100,
        "accepted a step": 170 / 100,
        "matches a round": 170 / 100,
        "accepted of drafted": 170 / 300,
        "accepted of the budget": 170 / 300,
        "at the second position": 50 / 100,
        "1-α": 50 / 80,
        "accepted of judged": 170 / (170 + 60),
        "all accepted": 40 / 100,
        "nothing accepted": 20 / 100,
        "accepted of output": 170 / 272,
    })  # fmt: skip
    # Truncated tokens could hide steps without a draft.
    assert table["badge"]["1 + accepted a draft"] == table["badge"]["at the second position"] == "exact"
    assert table["badge"]["tau, whole steps"] == table["badge"]["nothing accepted"] == "as counted"
    means = table[table["average"] != "pooled"]
    assert len(means) == 6 and means["value"].isna().all()
    assert set(means["why"]) == {"the file holds sums over all requests"}
    places = metrics.by_position(found)
    assert places["accepted"].tolist() == [80, 50, 40]
    assert places["rate"].tolist() == [0.8, 0.5, 0.4]
    assert places["given"].tolist() == [80 / 100, 50 / 80, 40 / 50]


def test_a_page_says_what_as_many_written_out_requests_say(tmp_path):
    """One response with the same histogram: every pooled value agrees."""
    spec = """{"acceptance_histogram": [20, 30, 10, 40], "num_spec_steps": 100, "num_spec_tokens": 3,
        "num_accepted_draft_tokens": 170, "num_draft_tokens": 300}"""
    (tmp_path / "r.json").write_text(spec, "utf8")
    one, sums = read_counts(tmp_path / "r.json", "vllm"), read(tmp_path, PAGE)
    mine, theirs = (metrics.rosetta(each)["value"] for each in (sums, one))
    both = mine.notna() & theirs.notna()
    assert both.sum() == 12 and mine[both].to_dict() == theirs[both].to_dict()
    assert metrics.by_position(sums).equals(metrics.by_position(one))


def test_a_server_of_years_needs_no_more_memory(tmp_path):
    """Values as the client prints large ones; one row per way a step can end, however many steps ran."""
    big = page(drafts="2e+09", drafted="6e+09", accepted="3.4e+09", at0="1.6e+09", at1="1e+09",
               at2="8e+08", output="1e+09")  # fmt: skip
    found = read(tmp_path, big)
    assert len(found.steps) == 4 and found.total("accepted") == 3_400_000_000
    assert metrics.by_position(found)["accepted"].tolist() == [1_600_000_000, 1_000_000_000, 800_000_000]


def test_steps_without_a_draft_wrote_what_drafts_and_prefills_did_not(tmp_path):
    """295 tokens: 4 of prefills, 170 accepted ones, and one of each of 121 steps; 100 had a draft."""
    whole = read(tmp_path, page(output="274"))  # 170 + 100, and a token of each prefill
    assert metrics.steps(whole) == 100 and not whole.least_steps
    counts = read(tmp_path, page(output="295"))
    assert (metrics.steps(counts), counts.total("drafts"), counts.total("emitted")) == (121, 100, 291)
    assert counts.least_steps and metrics.tau(counts) == 291 / 121
    table = metrics.rosetta(counts)
    assert table["value"]["accepted a step"] == 170 / 121 and table["value"]["nothing accepted"] == 41 / 121
    assert table["badge"]["accepted a step"] == table["badge"]["nothing accepted"] == "as counted"
    assert table["value"]["1 + accepted a draft"] == 2.7 and table["value"]["at the second position"] == 0.5
    places = metrics.by_position(counts)
    assert places["rate"].tolist() == [0.8, 0.5, 0.4]
    assert places["given"].tolist() == [80 / 100, 50 / 80, 40 / 50]
    short = metrics.by_position(read(tmp_path, page(output="295", drafted="299")))
    assert short["rate"].tolist() == [0.8, 0.5, 0.4] and short["given"].isna().all()


def test_missing_counters_and_short_drafts_leave_less_to_tell(tmp_path):
    for lacks in ("generation_tokens_total", "time_to_first_token_seconds_count"):
        cut = re.sub(rf"(?m)^vllm:{lacks}.*\n", "", PAGE)
        told = metrics.rosetta(read(tmp_path, cut))["value"].notna()
        assert told.sum() == 6 + (lacks[0] == "t") and told["accepted of output"] == (lacks[0] == "t")
        why = explain(tmp_path / "after")
        assert why.positions["rate"].tolist() == [0.8, 0.5, 0.4]
        assert "unknown number of cycles" in why.text() and not re.search(r"\bnan\b", why.text())
        assert "keep vllm:generation_tokens_total" in why.missing[0]
    short = read(tmp_path, page(drafted="299"))  # which step's draft was shorter is unknown
    table = metrics.rosetta(short)
    assert (
        table["value"]["at the second position"] == 0.5 and table["value"]["accepted of drafted"] == 170 / 299
    )
    assert table["why"]["1-α"] == "vllm-metrics does not say how long the draft of each step was"
    places = metrics.by_position(short)
    assert places["rate"].tolist() == [0.8, 0.5, 0.4] and places["given"].isna().all()


def test_two_engines_are_two_rows_and_two_models_a_question(tmp_path):
    other = page(drafts="10", drafted="30", accepted="9", at0="9", at1="0", at2="0", output="20")
    both = PAGE + other.replace('engine="0"', 'engine="1"')
    found = read(tmp_path, both)
    assert found.requests["id"].tolist() == ["engine 0, model_name org/m", "engine 1, model_name org/m"]
    assert found.requests["drafts"].tolist() == [100, 10]
    assert metrics.rosetta(found)["value"]["1 + accepted a draft"] == 1 + 179 / 110
    assert metrics.by_position(found)["accepted"].tolist() == [89, 50, 40]
    assert "of all requests of 2 engines from vllm-metrics" in repr(found)
    said = refused(tmp_path, PAGE + other.replace("org/m", "org/n"))
    assert said == "after counts 2 models (org/m, org/n): keep only one model's lines in the file"
    # Order of positions and escapes in labels are up to the client.
    turned = PAGE.replace("org/m", r"a\"}, position=\"7")
    lines = turned.split("\n")
    assert metrics.by_position(read(tmp_path, "\n".join(reversed(lines))))["accepted"].tolist() == [
        80,
        50,
        40,
    ]
    bare = re.sub(r'engine="0",model_name="org/m",?', "", PAGE).replace("_total", "").replace("{}", "")
    assert metrics.tau(read(tmp_path, bare)) == 2.7


def test_two_pages_give_what_lies_between(tmp_path):
    found = read(tmp_path, LATER, since=PAGE)
    row = found.requests.iloc[0]
    assert row[["drafts", "drafted", "accepted", "output", "steps"]].tolist() == [60, 180, 90, 140, 60]
    assert found.steps["times"].tolist() == [20, 10, 10, 20]
    assert metrics.rosetta(found)["value"]["1 + accepted a draft"] == 2.5
    assert found.where.endswith("after since " + str(tmp_path / "before"))
    # Prefills did not go on, so one token more than the drafts' had a step without one.
    more = page(LATER, output="423")
    assert found.requests["steps"].tolist() == [60]
    assert read(tmp_path, more, since=PAGE).requests["steps"].tolist() == [61]
    # A counter missing from one of the pages is unknown for the interval between them.
    cut = re.sub(r"(?m)^vllm:generation_tokens_total.*\n", "", PAGE)
    assert read(tmp_path, LATER, since=cut).requests[["output", "steps"]].isna().all(axis=None)


AT = "spec_decode_num_accepted_tokens_per_pos_total"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"drafted": "301"}, "counts 301 tokens in 100 drafts of at most 3"),
        ({"accepted": "171"}, "counts 171 accepted tokens, but at all positions 170"),
        ({"accepted": "169"}, "counts 169 accepted tokens, but at all positions 170"),
        ({"accepted": "301"}, "counts 301 accepted tokens of 300 drafted ones"),
        ({"at0": "101"}, "counts 101 accepted tokens at position 0, but there were 100 drafts"),
        ({"at1": "81"}, "counts 81 accepted tokens at position 1, but 80 at the previous position"),
        ({"drafts": "-1"}, "has -1, which is not a count"),
        ({"drafts": "99.5"}, "has 99.5, which is not a count"),
        ({"drafts": "NaN"}, "has NaN, which is not a count"),
        ({"accepted": "1e+30"}, "has 1e+30, which is not a count"),
        ({"accepted": "1.7.0"}, "has 1.7.0, which is not a count"),
        ({"output": "1e999"}, "has 1e999, which is not a count"),
    ],
)
def test_what_breaks_a_page_names_its_line(tmp_path, change, said):
    (name,) = change
    number = line(AT) + int(name[2:]) if name.startswith("at") else line(f"{NAMES[name]}_total")
    assert refused(tmp_path, page(**change)) == f"after, line {number} {said}"


def test_what_else_a_page_can_get_wrong(tmp_path):
    none = (
        "after has no vllm:spec_decode_num_drafts_total: it is not a /metrics page of a vLLM that speculates"
    )
    assert refused(tmp_path, "\n".join(PAGE.split("\n")[:18])) == none
    assert refused(tmp_path, '{"a": 1}') == refused(tmp_path, "") == none
    first, at = line("spec_decode_num_drafts_total"), line(AT)
    of = f"after, line {first} counts an engine's drafts, but its vllm:spec_decode_num_"
    for lacks in ("draft_tokens_total", "accepted_tokens_total"):
        cut = re.sub(rf"(?m)^vllm:spec_decode_num_{lacks}.*$", "", PAGE)
        assert refused(tmp_path, cut) == f"{of}{lacks} is missing"
    cut = re.sub(r'(?m)^vllm:.*_per_pos_total.*position="1".*$', "", PAGE)
    assert refused(tmp_path, cut) == f'{of}accepted_tokens_per_pos_total{{position="1"}} is missing'
    cut = re.sub(r"(?m)^vllm:.*_per_pos_total.*$", "", PAGE)
    assert refused(tmp_path, cut) == f'{of}accepted_tokens_per_pos_total{{position="0"}} is missing'
    lines = PAGE.split("\n")
    number = len(lines) + 1
    twice = "\n".join([*lines, lines[first - 1]])
    assert refused(tmp_path, twice).startswith(f"after, line {first} and line {number} count the same thing")
    for broken in ('{engine="0} 1.0', '{engine="0"}', " one two three", '{engine="0"x="1"} 1.0'):
        said = refused(tmp_path, PAGE + f"vllm:spec_decode_num_drafts_total{broken}")
        assert (
            said == f"after, line {number - 1} is not a sample of vllm:spec_decode_num_drafts as Prometheus "
            f"writes it"
        )
    no_place = PAGE.replace('position="2"', 'position="two"')
    assert refused(tmp_path, no_place).startswith(f"after, line {at + 2} is not a sample of")
    zero = page(drafts="0", drafted="0", accepted="0", at0="0", at1="0", at2="0")
    assert refused(tmp_path, zero) == "after counts no drafts"


def test_pages_that_do_not_belong_together(tmp_path):
    first = line("spec_decode_num_drafts_total")
    assert refused(tmp_path, PAGE, since=PAGE) == "after since before counts no drafts"
    swapped = "the server was restarted between them, or the two are swapped"
    said = refused(tmp_path, PAGE, since=LATER)
    assert said == f"after, line {line('generation_tokens_total')} counts 272, but before 412: {swapped}"
    fell = page(LATER, at2="39", at0="141")  # one counter fell, the rest rose
    assert (
        refused(tmp_path, fell, since=PAGE)
        == f"after, line {line(AT) + 2} counts 39, but before 40: {swapped}"
    )
    anew = LATER.replace("1.785538744138251e+09", "1.785599e+09")
    said = refused(tmp_path, anew, since=PAGE)
    assert (
        said == f"after, line {first} and before are from two starts of the server, which resets its counters"
    )
    other = "after and before differ in engines, model or positions"
    assert refused(tmp_path, LATER, since=PAGE.replace('engine="0"', 'engine="1"')) == other
    assert refused(tmp_path, LATER, since=PAGE + PAGE.replace('engine="0"', 'engine="1"')) == other
    short = re.sub(r'(?m)^vllm:.*_per_pos_total.*position="2".*$', "", page(accepted="130", drafted="200"))
    assert refused(tmp_path, LATER, since=short) == other
    # Each page is consistent, but their difference is not: more accepted than drafted.
    odd = page(LATER, drafted="340")
    assert "counts 90 accepted tokens of 40 drafted ones" in refused(tmp_path, odd, since=PAGE)


def test_what_sums_do_not_serve_for_is_refused_in_one_line(tmp_path):
    found = read(tmp_path, PAGE)
    with pytest.raises(
        TraceError, match="holds sums over all requests, but AIPerf's records are per request"
    ):
        found.to_aiperf(tmp_path / "p.jsonl")
    with pytest.raises(ParameterError, match="speedups compare requests"):
        read_counts(tmp_path / "after", "vllm-metrics", plain=True)
    with pytest.raises(ParameterError, match="since works only for a server's counters"):
        read_counts(tmp_path / "after", "vllm", since=tmp_path / "after")


def test_the_command_line_reads_a_page_and_two(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(PAGE, "utf8")
    (tmp_path / "b.txt").write_text(LATER, "utf8")
    after = ["import", str(tmp_path / "b.txt"), "--from", "vllm-metrics"]
    assert cli.run([*after, "--since", str(tmp_path / "a.txt")]) == 0
    out, _ = capsys.readouterr()
    assert "Counts of all requests of 1 engine from vllm-metrics" in out and "60 drafts" in out
    assert "share of all drafts accepted at each position: 0.667 0.500 0.333\n" in out and "2.500" in out
    assert "\nsteps: those with a draft;" in out
    assert "speedups: unknown: the file holds sums over all requests" in out
    assert "unknown: AIPerf (draft acceptance rate): the file holds sums over all requests" in out
    (tmp_path / "c.txt").write_text(page(LATER, output="430"), "utf8")
    assert cli.run(["import", str(tmp_path / "c.txt"), "--from", "vllm-metrics"]) == 0
    assert "\nsteps: those without a draft follow from" in capsys.readouterr()[0]
    assert cli.run([*after, "--baseline", str(tmp_path / "a.txt")]) == 2
    assert "speedups compare requests" in capsys.readouterr()[1]


def test_explain_subtracts_an_earlier_page_too(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(PAGE, "utf8")
    (tmp_path / "b.txt").write_text(LATER, "utf8")
    assert cli.run(["explain", str(tmp_path / "b.txt"), "--since", str(tmp_path / "a.txt")]) == 0
    out, _ = capsys.readouterr()
    assert "vllm-metrics: 60 cycles, 150 tokens" in out and "1: 0.67 (0.67)  2: 0.50 (0.75)" in out
    trace = str(specviz.example("prompt_lookup"))
    assert cli.run(["explain", trace, "--since", str(tmp_path / "a.txt")]) == 2
    assert "since works only for a file of a server's counters (vllm-metrics)" in capsys.readouterr()[1]
    with pytest.raises(ParameterError, match="since works only for a file of a server's counters"):
        explain(read(tmp_path, PAGE), since=tmp_path / "a.txt")
