"""Why a run is slow or fast: the factors multiply to the measured speedup; which drafts reach a position."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tiny
from test_engines import ENGINES, LOG, PLAIN_LOG, write
from test_foreign import AIPERF

import specviz as sv
import traces
from specviz import cli
from specviz.errors import ParameterError, TraceError
from specviz.explanations import acceptance, costs, sources
from specviz.methods import find
from specviz.trace import Recorder, Trace

PAIR = ["Translate into German: The doctor bought a red bicycle.", "Translate into German: The cat sleeps."]


@pytest.fixture(scope="module")
def plain():
    return sv.open(sv.example("autoregressive"))


@pytest.mark.parametrize("name", ["prompt_lookup", "unispec"])
def test_the_factors_multiply_to_the_ratio_of_speeds(name, plain):
    trace = sv.open(sv.example(name))
    why = sv.explain(trace, plain)
    assert why.badge == "exact"
    table = sv.metrics.compare({name: trace, "plain": plain}, "plain").set_index("name")
    assert why.speedup.median == pytest.approx(table.loc[name, "speedup"], rel=1e-9)
    assert why.factors["speedup"].iloc[-1] == pytest.approx(why.speedup.median, rel=1e-12)
    parts = why.factors["plain_steps"].iloc[1:]
    assert 1 + parts.sum() == pytest.approx(why.cost, rel=1e-12)
    assert why.costs.tau / why.cost == pytest.approx(why.speedup.median, rel=1e-12)
    free = why.factors[why.factors["factor"] == "forward"].iloc[0]
    assert free["without"] == pytest.approx(why.costs.tau / (why.cost - free["plain_steps"]))
    names, lows, highs = zip(*why.bars())
    assert names[0] == "plain decoding" and highs[-1] == pytest.approx(why.speedup.median)
    assert list(lows[1:-1]) == list(highs[:-2])  # each bar begins where the last one ended
    for words in (
        f"at {why.speedup.median:.2f} times",
        f"{why.costs.tau:.2f} tokens",
        f"{why.cost:.2f} plain",
    ):
        assert words in why.sentence


def test_without_a_plain_run_its_own_empty_steps_stand_for_one(plain):
    trace = sv.open(sv.example("prompt_lookup"))
    why = sv.explain(trace)
    assert why.badge == "modelled" and why.speedup.low < why.speedup.median < why.speedup.high
    assert any("autoregressive" in each for each in why.missing)
    steps = trace.cycles[(trace.cycles["cycle"] > 0) & (trace.cycles["sent"] == 0)]
    assert why.plain.cycle == pytest.approx((steps["duration"] - steps["draft_time"]).mean())
    none = sv.explain(sv.example("unispec"))  # it always drafts
    assert none.plain is None and np.isnan(none.speedup.median) and not none.bars()
    assert "if a plain step takes longer than that" in none.sentence


def test_where_a_run_breaks_even():
    depths = np.array([4] * 30)
    for rate in (0.2, 0.5, 0.9):
        tau = (1 - rate**5) / (1 - rate)
        assert acceptance.even_rate(depths, tau) == pytest.approx(rate, abs=1e-9)
    assert np.isnan(acceptance.even_rate(depths, 5.1))  # four drafted tokens give at most five
    assert acceptance.even_rate(depths, 0.9) == 0.0


def test_the_first_position_is_the_mean_over_where_cycles_begin(plain):
    trace = sv.open(sv.example("prompt_lookup"))
    why = sv.explain(trace, plain)
    first = why.positions["rate"].iloc[0]
    assert (why.starts["rate"] * why.starts["share"]).sum() == pytest.approx(first)
    assert why.starts["share"].sum() == pytest.approx(1)
    whole = 0  # drafts that follow a fully accepted draft
    for _, cycles in trace.cycles[trace.cycles["cycle"] > 0].groupby("prompt"):
        ends = (cycles["sent"] > 0) & (cycles["accepted"] == cycles["depth"])
        whole += (ends.shift(fill_value=False) & (cycles["sent"] > 0)).sum()
    assert why.starts.set_index("after").loc["a draft accepted to its end", "cycles"] == whole > 0
    # At the recorded length the model reproduces the record; shorter drafts start at easier positions.
    longest = why.lengths.iloc[-1]
    assert longest["first"] == pytest.approx(first) and longest["tau"] == pytest.approx(why.costs.tau)
    assert why.lengths["first"].iloc[0] > first + 0.1
    origin = trace.outputs["origin"]
    right, wrong = (origin == "draft").sum(), (origin == "correction").sum()
    assert why.places == pytest.approx(right / (right + wrong))
    assert f"{first:.2f} accepted" in why.selection
    easy, turned = "a longer draft also covers the easy positions", replace(why, lengths=why.lengths[::-1])
    assert easy in why.selection and easy not in turned.selection and turned.selection.endswith("right.")


def test_acceptance_by_context_covers_each_cycle_once(plain):
    trace = sv.open(sv.example("prompt_lookup"))
    table = acceptance.contexts(trace, acceptance.draft_counts(trace))
    assert table["cycles"].sum() == (trace.cycles["cycle"] > 0).sum() and len(table) == 4
    assert (table["low"].iloc[1:].to_numpy() > table["high"].iloc[:-1].to_numpy()).all()
    cycles = trace.cycles  # with nulls, as another tool may write them
    trace.cycles = cycles.assign(context=cycles["context"].where(cycles.index < len(cycles) - 40))
    fewer = acceptance.contexts(trace, acceptance.draft_counts(trace))
    assert fewer["cycles"].sum() == table["cycles"].sum() - 40


def test_no_part_of_an_explanation_changes_the_counts_of_the_next(plain):
    trace = sv.open(sv.example("unispec"))
    why, counts = sv.explain(trace, plain), acceptance.draft_counts(trace)
    assert why.contexts.equals(acceptance.contexts(trace, counts.copy()))
    assert why.starts.equals(acceptance.starts(trace, counts.copy()))
    assert why.lengths.equals(acceptance.by_length(trace, counts.copy()))
    assert why.worst.equals(sources._worst(trace, counts.copy(), why.plain))


def test_the_worst_cycles_are_those_that_lost_most(plain):
    trace = sv.open(sv.example("unispec"))
    why = sv.explain(trace, plain)
    cycles = trace.cycles[trace.cycles["cycle"] > 0]
    lost = cycles["duration"] - cycles["emitted"] * why.plain.cycle
    assert why.worst["lost"].iloc[0] == pytest.approx(lost.max())
    worst = cycles.loc[lost.idxmax()]
    assert tuple(why.worst.iloc[0][["prompt", "cycle"]]) == (worst["prompt"], worst["cycle"])
    assert "cycles that lost the most time:" in why.text()
    floats = replace(why, worst=why.worst.astype({"sent": float}))  # as beside a run without drafts
    assert floats.text() == why.text()
    counts = acceptance.draft_counts(trace)
    slow = replace(why.plain, cycle=1.0)  # if a plain step takes a second, every cycle gains
    assert len(sources._worst(trace, counts, why.plain)) == 5 and sources._worst(trace, counts, slow).empty
    assert "cycles that took longest per token:" in sv.explain(trace).text()


def test_what_cannot_be_compared_is_refused_or_marked(plain, tmp_path):
    trace = sv.open(sv.example("unispec"))
    with pytest.raises(TraceError, match="has no drafts"):
        sv.explain(plain)
    with pytest.raises(TraceError, match="a plain run must be autoregressive"):
        sv.explain(trace, trace)
    with pytest.raises(ParameterError, match="another tool's log"):
        sv.explain(trace, write(tmp_path / "a.jsonl", ENGINES["sglang"]))
    synthetic = traces.build("speculative")
    with pytest.raises(TraceError, match="both must use the same model"):
        sv.explain(synthetic, plain)
    some = sv.explain(trace, plain.select(prompt=[0, 1]))
    assert some.badge == "modelled" and "other prompts" in some.plain.source
    assert "This is modelled: the cost of a plain step is from an autoregressive" in some.sentence
    assert "modelled" not in sv.explain(trace, plain).sentence


def test_redacted_prompts_are_not_the_same():
    own, base = (traces.build(method, prompts=2) for method in ("speculative", "autoregressive"))
    assert sv.explain(own, base).badge == "exact"
    for one, other in ((own.redact(), base), (own, base.redact()), (own.redact(), base.redact())):
        step = sv.explain(one, other).plain
        assert step.badge == "modelled" and "(not recorded)" in step.source and step.by_text is None


def test_a_folder_brings_its_own_plain_run(plain, tmp_path):
    trace = sv.open(sv.example("unispec"))
    for name, each in (("a", plain), ("b", trace)):
        each.save(tmp_path / f"{name}.parquet")
    assert sv.explain(tmp_path).speedup.median == sv.explain(trace, plain).speedup.median
    sv.open(sv.example("prompt_lookup")).save(tmp_path / "c.parquet")
    with pytest.raises(TraceError, match="holds 2 settings"):
        sv.explain(tmp_path)


def test_another_tools_log_is_explained_as_far_as_it_tells(tmp_path):
    (tmp_path / "s.log").write_text(LOG)
    (tmp_path / "p.log").write_text(PLAIN_LOG)
    why = sv.explain(tmp_path / "s.log", tmp_path / "p.log")
    assert why.origin == "llama.cpp-log" and why.costs.tau == pytest.approx(255 / 88)
    assert why.plain.cycle == pytest.approx(5.1 / 255)
    assert why.speedup.median == pytest.approx((255 / 2.29672) / (255 / 5.1))
    assert why.factors["factor"].tolist() == ["tau", "draft", "cycle"]
    assert why.factors["plain_steps"].iloc[1] == pytest.approx(0.325555 / 88 / 0.02)
    assert why.factors["speedup"].iloc[-1] == pytest.approx(why.speedup.median)
    alone = sv.explain(write(tmp_path / "l.jsonl", ENGINES["llama.cpp"]))
    assert alone.version == "llama.cpp b6123-0a1b2c3" and alone.plain is None
    assert any("plain step" in each for each in alone.missing)
    assert any("how many tokens each step accepted" in each for each in alone.missing)
    for name, entry in ENGINES.items():
        assert sv.explain(write(tmp_path / "x.jsonl", entry)).origin == name
        assert sv.explain(tmp_path / "x.jsonl").text()


def test_a_plain_run_without_a_time_of_decoding_is_refused(tmp_path):
    (tmp_path / "s.log").write_text(LOG)
    (tmp_path / "p.log").write_text(PLAIN_LOG.replace("5100.00 ms", "0.00 ms"))
    with pytest.raises(TraceError, match="no time passed after the first tokens"):
        sv.explain(tmp_path / "s.log", tmp_path / "p.log")


def test_a_count_that_no_draft_has_is_refused(tmp_path):
    """Otherwise the table would take gigabytes."""
    bare = {"num_spec_steps": 1, "num_accepted_draft_tokens": 0, "num_draft_tokens": 1,
            "acceptance_histogram": {"0": 1}}  # fmt: skip
    assert sv.explain(write(tmp_path / "f.jsonl", bare), origin="aiperf").origin == "aiperf"
    for more in ({"num_spec_tokens": 2**31 - 1}, {"acceptance_histogram": {"999999999": 1}}):
        with pytest.raises(TraceError, match="line 1"):
            sv.explain(write(tmp_path / "f.jsonl", bare | more), origin="aiperf")


def test_it_is_a_picture_a_page_and_json(plain, tmp_path):
    why = sv.explain(sv.example("prompt_lookup"), plain)
    assert why.to_png(tmp_path / "w.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(TraceError, match="exists"):
        why.to_png(tmp_path / "w.png")
    assert "<img" in why._repr_html_() and "<script" not in why._repr_html_()
    content = json.loads(why.to_json())
    assert content["speedup"]["median"] == pytest.approx(why.speedup.median) and len(content["worst"]) == 5
    assert "NaN" not in sv.explain(sv.example("unispec")).to_json()


def test_its_page_has_a_player_next_to_it_and_neither_file_is_replaced(plain, tmp_path, capsys):
    name, base, page = (
        str(sv.example("prompt_lookup")),
        str(sv.example("autoregressive")),
        tmp_path / "w.html",
    )
    assert cli.run(["explain", name, "--plain", base, "--html", str(page)]) == 0
    assert f"page: {page}" in capsys.readouterr().out
    player = tmp_path / "w-player.html"
    written, worst = page.read_text("utf8"), sv.explain(name, base).worst
    assert player.exists() and written.count("w-player.html#run=1&amp;prompt=") == len(worst)
    assert f"cycle={worst['cycle'].iloc[0]}" in written and "<script" not in written
    page.unlink()
    before = player.read_bytes()
    with pytest.raises(TraceError, match=r"w-player\.html exists"):
        sv.explain(name, base).to_html(page)
    assert not page.exists() and player.read_bytes() == before, "nothing is half-written"
    log = {"num_spec_steps": 3, "num_accepted_draft_tokens": 2, "num_draft_tokens": 6,
           "acceptance_histogram": {"0": 1, "1": 2}}  # fmt: skip
    why = sv.explain(write(tmp_path / "f.jsonl", log), origin="aiperf")
    why.to_html(tmp_path / "log.html")
    assert not (tmp_path / "log-player.html").exists(), "another tool's log has no cycles to open"


def test_the_command_prints_it_and_needs_no_torch(tmp_path, capsys):
    name, base = str(sv.example("prompt_lookup")), str(sv.example("autoregressive"))
    png = tmp_path / "w.png"
    assert cli.run(["explain", name, "--plain", base, "--png", str(png)]) == 0
    out = capsys.readouterr().out
    assert "breaks even at" in out and f"specviz show {name} --prompt" in out and png.exists()
    assert cli.run(["explain", str(tmp_path / "none.jsonl")]) == 2
    assert capsys.readouterr().err.startswith("specviz: cannot read")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import specviz as sv; print(len(sv.explain({name!r}, {base!r}).text()) > 100)"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "True"


def test_rows_that_ran_together_share_their_time():
    program = "Nhờ bạn giúp tôi: Viết hàm Python multiply_list trả về tích các số trong danh sách data."
    trace = sv.generate("town", [PAIR[1], program], "prompt_lookup", max_new_tokens=80, batch=2)
    steps = costs.steps_of(trace)
    assert (steps["share"] < 1).any() and ((steps["share"] == 1) & (steps["sent"] == 0)).sum() > 5
    own, once = costs.of_trace(trace), trace.cycles.query("cycle > 0").drop_duplicates("start")
    assert own.cycle * own.steps == pytest.approx(once["duration"].sum())
    assert own.forward * own.steps == pytest.approx(once["forward_time"].sum())
    # In a batch, no step shows the cost of a plain one: a row that runs alone pays for a whole pass.
    assert costs.within(trace) is None
    assert costs.within(sv.generate("town", PAIR, "prompt_lookup", max_new_tokens=48)) is not None


def test_a_plain_run_of_another_batch_or_temperature_is_no_exact_comparison():
    trace = sv.generate("town", PAIR, "prompt_lookup", max_new_tokens=8, batch=2)
    plain = {
        "": sv.generate("town", PAIR, "autoregressive", max_new_tokens=8, batch=2),
        "batch": sv.generate("town", PAIR, "autoregressive", max_new_tokens=8),
        "temperature": sv.generate(
            "town", PAIR, "autoregressive", max_new_tokens=8, batch=2, temperature=0.5
        ),
    }
    for name, each in plain.items():
        why = sv.explain(trace, each)
        assert (why.plain.badge, f"(other {name})" in why.plain.source) == (
            ("modelled", True) if name else ("exact", False)
        )


def test_a_plain_run_of_other_weights_is_no_exact_comparison():
    """Two models may have one name."""
    target, other = (tiny.llama(seed, name="llama") for seed in (1, 2))
    prompts = [[3, 4, 5], [6, 7]]
    trace = sv.generate(target, prompts, "prompt_lookup", max_new_tokens=8)
    for model, differs in ((target, False), (other, True)):
        plain = sv.explain(trace, sv.generate(model, prompts, "autoregressive", max_new_tokens=8)).plain
        assert (plain.badge == "modelled", "(other weights)" in plain.source) == (differs, differs)


def test_requests_are_the_same_only_if_their_source_names_them(tmp_path):
    """A place in a file is no name, and unknown lengths of prompts are not equal lengths."""
    named = {"metadata": {"conversation_id": "a"}, "metrics": {
        "time_to_first_token": {"value": 1, "unit": "s"}, "request_latency": {"value": 3, "unit": "s"},
        "input_sequence_length": {"value": 7}, "output_sequence_length": {"value": 21},
    }}  # fmt: skip
    spec = {"num_spec_steps": 10, "num_accepted_draft_tokens": 10, "num_draft_tokens": 10,
            "completion_tokens": 21, "acceptance_histogram": {"1": 10}}  # fmt: skip
    timed = ENGINES["llama.cpp"]["timings"]
    without = {name: value for name, value in timed.items() if "draft" not in name}
    unknown = {name: value for name, value in without.items() if name not in ("prompt_n", "cache_n")}
    short = named | {"metrics": {k: v for k, v in named["metrics"].items() if k != "input_sequence_length"}}
    for drafted, plain, badge, words in (
        (short | {"spec_decode_acceptance": spec}, short, "modelled", "requests of the same names"),
        (named | {"spec_decode_acceptance": spec}, named, "exact", "the same requests"),
        (timed, without, "modelled", "requests with the same prompt lengths"),
        (timed, without | {"prompt_n": 1}, "modelled", "other requests"),
        ({**unknown, "draft_n": 259, "draft_n_accepted": 167}, unknown, "modelled", "other requests"),
    ):
        why = sv.explain(write(tmp_path / "s.jsonl", drafted), write(tmp_path / "p.jsonl", plain))
        assert (why.badge, f", {words} without speculation" in why.plain.source) == (badge, True)


def test_a_plain_requests_first_token_is_the_prefills(tmp_path):
    """20 steps of 20 ms after a prefill of 100 ms."""
    metrics = {"time_to_first_token_ms": 100.0, "generation_time_ms": 400.0}
    usage = {"prompt_tokens": 5, "completion_tokens": 21}
    plain = {"choices": [{"finish_reason": "length"}], "usage": usage, "metrics": metrics}
    spec = {
        "num_spec_steps": 10, "num_spec_tokens": 1, "num_draft_tokens": 10, "num_accepted_draft_tokens": 10,
        "acceptance_histogram": [0, 10],
    }  # fmt: skip
    drafted = plain | {"metrics": metrics | {"generation_time_ms": 200.0, "speculative_decoding": spec}}
    files = [write(tmp_path / f"{name}.jsonl", each) for name, each in (("s", drafted), ("p", plain))]
    why = sv.explain(*files, origin="vllm")
    assert (why.plain.cycle, why.costs.cycle) == pytest.approx((0.02, 0.02))
    assert why.speedup.median == pytest.approx(2.0)


def ngram(output, histogram, seconds):
    """A vLLM server's response with n-gram drafts of three tokens; `output` includes the prefill's token."""
    steps, accepted = sum(histogram), sum(j * n for j, n in enumerate(histogram))
    spec = {
        "mean_acceptance_length": 1 + accepted / max(steps, 1), "num_spec_steps": steps, "num_spec_tokens": 3,
        "num_draft_tokens": 3 * steps, "num_accepted_draft_tokens": accepted,
        "acceptance_histogram": histogram,
    }  # fmt: skip
    times = {"time_to_first_token_ms": 50.0, "generation_time_ms": 1e3 * seconds}
    return {
        "choices": [{"index": 0, "finish_reason": "length", "stop_reason": None}],
        "usage": {"prompt_tokens": 40, "completion_tokens": output},
        "metrics": times | {"speculative_decoding": spec},
    }


def test_n_gram_drafts_leave_most_steps_without_a_draft(tmp_path):
    """128 tokens after the prefill's: 112, 128 and 119 steps of 10 ms, of which 8, 0 and 4 had a draft."""
    entries = [
        ngram(129, [2, 1, 0, 5], 1.12),
        ngram(129, [0, 0, 0, 0], 1.28),
        ngram(129, [1, 0, 0, 3], 1.19),
    ]
    drafted = write(tmp_path / "s.jsonl", *entries)
    for entry in entries:
        del entry["metrics"]["speculative_decoding"]
        entry["metrics"]["generation_time_ms"] = 1280.0
    why = sv.explain(drafted, write(tmp_path / "p.jsonl", *entries), origin="vllm")
    assert (why.costs.steps, why.costs.tokens) == (359, 384)
    assert (why.costs.cycle, why.plain.cycle) == pytest.approx((0.01, 0.01))
    assert why.speedup.median == pytest.approx(384 / 359)
    assert why.positions["rate"].tolist() == [9 / 12, 8 / 12, 8 / 12]
    assert 12 * (why.rate + why.rate**2 + why.rate**3) == pytest.approx(25)  # as many as were accepted
    assert any("those without a draft follow from the lengths" in each for each in why.missing)
    # If every step had a draft, the number of steps is the server's own.
    whole = sv.explain(write(tmp_path / "a.jsonl", ngram(17, [2, 1, 0, 3], 0.06)))
    assert whole.costs.steps == 6 and not any("those without a draft" in each for each in whole.missing)


def test_positions_are_shown_where_the_number_of_steps_is_not_known(tmp_path):
    """AIPerf counted the answer in its own tokens, which say nothing about the server's steps."""
    entry = copy.deepcopy(AIPERF)
    del entry["spec_decode_acceptance"]["completion_tokens"]
    entry["metrics"]["output_sequence_length"]["value"] = 30
    why = sv.explain(write(tmp_path / "a.jsonl", entry))
    assert why.positions["rate"].tolist() == [3 / 4, 2 / 4, 1 / 4]
    assert np.isnan(why.costs.tau) and np.isnan(why.rate)
    assert "aiperf: unknown number of cycles" in why.text() and "does not say how many cycles" in why.sentence
    assert "how many steps had no draft" in why.missing[0] and "completion_tokens" in why.missing[0]
    assert json.loads(why.to_json())["tau"] is None


def test_a_file_without_a_step_is_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", ngram(1, [0, 0, 0, 0], 0.0))
    with pytest.raises(TraceError, match="counts no verify step: explain needs answers of several tokens"):
        sv.explain(path)


def test_skipped_lines_that_are_not_listed_are_counted(tmp_path):
    none = {"error": {"code": 500}}
    for number, words in ((3, None), (4, "1 more line skipped"), (5, "2 more lines skipped")):
        why = sv.explain(write(tmp_path / "l.jsonl", ENGINES["llama.cpp"], *[none] * number))
        assert len([each for each in why.missing if "is skipped: the request failed" in each]) == 3
        rest = [each for each in why.missing if "more line" in each]
        assert rest == ([] if words is None else [f"{words}; specviz import lists all of them"])


def test_texts_are_paired_only_in_one_order(plain):
    """A plain run of the same prompts in another order keeps its cost per step, but gives no pairs."""
    trace = sv.generate("town", PAIR, "prompt_lookup", max_new_tokens=8)
    same, turned = (
        sv.explain(trace, sv.generate("town", prompts, "autoregressive", max_new_tokens=8))
        for prompts in (PAIR, PAIR[::-1])
    )
    assert same.plain.badge == turned.plain.badge == "exact"
    assert same.plain.by_text is not None and turned.plain.by_text is None


def test_texts_of_one_run_each_are_paired_as_those_of_one_run(tmp_path):
    """In runs of one prompt each, every prompt has the number 0."""
    prompts = [*PAIR, "The doctor slept.", "Tell me about the market.", "Tom was tired.", "The cat sleeps."]
    for method in ("prompt_lookup", "autoregressive"):
        (tmp_path / method).mkdir()
        for i, prompt in enumerate(prompts):
            run = sv.generate("town", prompt, method, max_new_tokens=24)
            run.save(tmp_path / method / f"{i}.parquet")
    apart, plain = (Trace.open(tmp_path / method) for method in ("prompt_lookup", "autoregressive"))
    joined = sv.explain(apart.join(), plain.join()).speedup
    assert joined.low == joined.low and joined.pairs == 6
    for own, other in ((apart, plain), (apart, plain.join()), (apart.join(), plain)):
        assert vars(sv.explain(own, other).speedup) == pytest.approx(vars(joined))


def test_a_run_of_text_alone_is_explained_as_far_as_it_tells():
    why = sv.explain(sv.generate("town", PAIR[1], "prompt_lookup", record=None, max_new_tokens=12))
    assert why.lengths.empty and any("recorded only its text" in each for each in why.missing)


def test_runs_of_other_sampling_are_other_settings(tmp_path):
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        run = sv.generate("town", PAIR[1], "prompt_lookup", max_new_tokens=8, temperature=temperature)
        run.save(tmp_path / f"{name}.parquet")
    with pytest.raises(TraceError, match="holds 2 settings"):
        sv.explain(tmp_path)


def test_the_window_of_lookahead_is_no_draft():
    method = find("lookahead")(draft_size=8)
    trace = sv.generate("town", PAIR, method, max_new_tokens=40)
    drafts = int(sv.metrics.counts(trace).requests["drafts"].sum())
    assert 0 < drafts < (trace.cycles["cycle"] > 0).sum()
    counts = acceptance.draft_counts(trace)
    assert acceptance.starts(trace, counts)["cycles"].sum() == drafts
    found = sv.metrics.drafts(trace)
    ngrams = trace.nodes[trace.nodes["source"] != "window"]
    assert found["drafted"].sum() == len(ngrams) < trace.cycles["sent"].sum()
    worst = sources._worst(trace, counts, None).merge(found, on=["run", "prompt", "cycle"])
    assert (worst["sent"] == worst["drafted"]).all()
    why = sv.explain(trace)
    assert why.plain is None, "no step is a plain one"


def test_a_cycle_begins_after_what_the_last_token_says():
    """In a tree of depth 3, a one-token path is accepted to its end, so nothing on it is rejected."""
    recorder = Recorder({"run": "r", "method": "m"})
    tree = {
        "node_token": [5, 6, 7, 8], "node_parent": [-1, -1, 1, 2],
        "node_status": ["accepted", "rejected", "unjudged", "unjudged"], "depth": 3, "keep": 0,
        "out_position": [0, 1], "out_token": [5, 9], "out_origin": ["draft", "bonus"],
    }  # fmt: skip
    refused = {
        "node_token": [5], "node_parent": [-1], "node_status": ["rejected"], "depth": 1, "keep": 2,
        "out_position": [2], "out_token": [9], "out_origin": ["correction"],
    }  # fmt: skip
    window = refused | {"node_status": ["unjudged"], "out_position": [3], "out_origin": ["plain"], "keep": 3}
    last = refused | {"out_position": [4], "keep": 4}
    for number, cycle in enumerate([{}, tree, refused, window, last]):
        recorder.add({"prompt": 0, "cycle": number, "context": 3, **cycle})
    trace = recorder.close()
    table = acceptance.starts(trace, acceptance.draft_counts(trace)).set_index("after")["cycles"]
    assert table.to_dict() == {
        "the prompt": 1,
        "a draft accepted to its end": 1,
        "a rejection": 1,
        "no draft": 1,
    }
