"""The definitions of acceptance length, rate and speedup that tools use, against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

import traces
from specviz import metrics
from specviz.errors import TraceError
from specviz.trace import Recorder, Trace, read_counts

A, R, U, C, P = "accepted", "rejected", "unjudged", "cut", "below_budget"


def decode(
    *texts: list[list[str]], method: str = "m", ends: tuple[int, ...] = (), pause: float = 0.0, **run
) -> Trace:
    """Record a run with one text per list of chain drafts; a step takes a second, a prefill half a second.

    Every step emits its accepted tokens and one of its own, except the last step of a text in `ends`, which
    ended with an accepted end token.
    """
    prompts = [{"tokens": [7, i]} for i in range(len(texts))]
    about = {"run": method, "method": method, "prompts": prompts, "model": {"name": "m"}, "dtype": "float32"}
    recorder = Recorder({**about, **run})
    clock = 0.0
    for prompt, steps in enumerate(texts):
        times = {"prompt": prompt, "start": clock, "duration": 0.5}
        recorder.add({"cycle": 0, **times})
        clock, emitted = clock + 0.5 + pause, 0
        for i, status in enumerate(steps):
            n, last = status.count(A), i + 1 == len(steps)
            out = n + (not (last and prompt in ends))
            recorder.add({
                "cycle": i + 1, "prompt": prompt, "keep": emitted, "start": clock, "duration": 1.0,
                "node_token": np.arange(len(status)) + 5, "node_parent": np.arange(-1, len(status) - 1),
                "node_status": status, "out_token": np.arange(out) + 5,
                "out_position": np.arange(emitted, emitted + out),
                "out_origin": ["draft"] * n + ["bonus"] * (out - n),
                "end": "eos" if last else None,
            })  # fmt: skip
            clock, emitted = clock + 1 + pause, emitted + out
    return recorder.close()


def values(*args) -> dict[str, float]:
    return metrics.rosetta(*args)["value"].to_dict()


# Both runs write the same two texts, of 5 and 18 tokens. One is faster on the short text, one on the long.
# (Walkthrough 13 uses these numbers. vLLM and SpecForge differed in this way: vllm-project/vllm#42508.)
SPRINT = decode([[A] * 4], [[A, R]] * 9, method="sprint")
STEADY = decode([[A, R], [A, R], [R]], [[A, A]] * 6, method="steady")
PLAIN = decode([[]] * 5, [[]] * 18, method="autoregressive")


def test_pooled_and_per_request_averages_name_different_winners():
    sprint, steady = values(SPRINT), values(STEADY)
    # Pooled over all drafts: sprint has 1 + (4 + 9) / 10, steady 1 + (2 + 12) / 9.
    assert sprint["1 + accepted a draft"] == pytest.approx(2.3)
    assert steady["1 + accepted a draft"] == pytest.approx(23 / 9)
    # The mean over requests: sprint has (5 + 2) / 2, steady (5/3 + 3) / 2.
    assert sprint["1 + accepted a draft, by request"] == pytest.approx(3.5)
    assert steady["1 + accepted a draft, by request"] == pytest.approx(7 / 3)
    # Sprint takes 1 and 9 passes, steady 3 and 6. Pooled: 2.30 < 2.56; the mean over requests: 3.50 > 2.33.
    assert (sprint["tokens a verify"], steady["tokens a verify"]) == pytest.approx((23 / 10, 23 / 9))
    each = sprint["tokens a verify, by request"], steady["tokens a verify, by request"]
    assert each == pytest.approx(((5 / 1 + 18 / 9) / 2, (5 / 3 + 18 / 6) / 2))
    assert metrics.tau(SPRINT) < metrics.tau(STEADY)


def test_speedups_of_the_same_texts_flip_likewise():
    sprint, steady = values(SPRINT, PLAIN), values(STEADY, PLAIN)
    # Seconds with prefill: sprint 1.5 and 9.5, steady 3.5 and 6.5, the baseline 5.5 and 18.5.
    base = (5 / 5.5 + 18 / 18.5) / 2
    assert sprint["mean tokens/s"] == pytest.approx((5 / 1.5 + 18 / 9.5) / 2 / base)
    assert steady["mean tokens/s"] == pytest.approx((5 / 3.5 + 18 / 6.5) / 2 / base)
    assert sprint["throughput"] == pytest.approx(24 / 11)
    assert steady["throughput"] == pytest.approx(24 / 10)
    assert sprint["paired latency"] == pytest.approx((5.5 / 1.5 + 18.5 / 9.5) / 2)
    assert steady["paired latency"] == pytest.approx((5.5 / 3.5 + 18.5 / 6.5) / 2)
    turned = [{"tokens": [7, 1]}, {"tokens": [7, 0]}]  # the baseline decoded the long text first
    other = decode([[]] * 18, [[]] * 5, method="autoregressive", prompts=turned)
    assert values(SPRINT, other) == pytest.approx(sprint, nan_ok=True)
    assert sprint["decode tokens/s"] == pytest.approx(2.3)
    assert steady["decode tokens/s"] == pytest.approx(23 / 9)
    # Seconds for the 4 and 17 tokens after the first step: sprint 0 and 8, steady 2 and 5, baseline 4 and 17.
    assert sprint["time per output token"] == pytest.approx(1 / ((0 / 4 + 8 / 17) / 2))
    assert steady["time per output token"] == pytest.approx(1 / ((2 / 4 + 5 / 17) / 2))
    for each in ("mean tokens/s", "paired latency"):
        assert sprint[each] > steady[each]
    for pooled in ("throughput", "decode tokens/s", "time per token", "time per input"):
        assert sprint[pooled] < steady[pooled]


def test_pauses_between_cycles_are_no_decoding_time():
    paused = decode([[A] * 4], [[A, R]] * 9, method="sprint", pause=0.7)
    assert values(paused, PLAIN) == pytest.approx(values(SPRINT, PLAIN), nan_ok=True)
    alone = metrics.rosetta(decode([[A] * 4], pause=0.7), decode([[]] * 5, method="autoregressive"))
    assert alone.loc["time per output token", ["badge", "why"]].tolist() == ["", "nothing to divide by"]


def test_every_acceptance_definition_by_hand():
    # Accepted of sent in each step: none, 3 of 4, 1 of 4, 2 of 2; in the other text 2 of 2, 0 of 1, 1 of 1.
    trace = decode([[], [A, A, A, R], [A, R, U, U, P], [A, A, P]], [[A, A], [R], [A]])
    table = metrics.rosetta(trace)
    assert table["badge"].eq("exact").all()
    assert list(table.index) == [d.name for d in metrics.DEFINITIONS if not d.compares]
    found = table["value"].to_dict()
    # The two texts have 4 and 3 steps, 3 and 3 drafts, 10 and 4 sent tokens, 6 and 3 accepted ones, 10 and 6
    # output tokens. The budget is 4.
    assert found == pytest.approx({
        "tau, whole steps": 16 / 7,
        "tau, emitted tokens": 16 / 7,
        "1 + accepted a draft": 1 + 9 / 6,
        "1 + accepted a draft, by request": (3 + 2) / 2,
        "tokens a verify, by request": (10 / 4 + 6 / 3) / 2,
        "tokens a verify": 16 / 7,
        "accepted a step": 9 / 7,
        "matches a round": 16 / 7 - 1,
        "tokens an index": (10 / 3 + 6 / 2) / 2,
        "accepted of drafted": 9 / 14,
        "accepted of drafted, by request": (6 / 10 + 3 / 4) / 2,
        "accepted of the budget": 9 / 28,
        "accepted of the budget, by request": (6 / 16 + 3 / 12) / 2,
        "accepted per verified": ((6 + 3) / (10 + 3) + (3 + 3) / (4 + 3)) / 2,
        "at the second position": 3 / 6,
        "1-α": 3 / 4,
        "accepted of judged": 9 / (9 + 3),
        "all accepted": 3 / 6,
        "nothing accepted": 2 / 7,
        "accepted of output": 9 / 16,
    })  # fmt: skip


def test_a_text_cut_in_mid_draft_bounds_what_counts_whole_steps():
    # The second draft's first token is accepted and ends the text. The other two tokens are not verified.
    trace = decode([[A, A, R], [A, C, C]], ends=(0,))
    table = metrics.rosetta(trace)
    value = table["value"]
    # The steps emit 3 + 1 tokens. Whole steps would emit 3 + (1 to 3, and the target's own). There are two
    # steps with a draft each, 6 sent tokens, and 3 to 5 accepted ones. The budget is 3.
    whole = {
        "tau, whole steps": (5 / 2, 7 / 2),
        "1 + accepted a draft": (1 + 3 / 2, 1 + 5 / 2),
        "1 + accepted a draft, by request": (1 + 3 / 2, 1 + 5 / 2),
        "accepted a step": (3 / 2, 5 / 2),
        "tokens an index": (5 / 1, 7 / 1),
        "accepted of drafted": (3 / 6, 5 / 6),
        "accepted of drafted, by request": (3 / 6, 5 / 6),
        "accepted of the budget": (3 / 6, 5 / 6),
        "accepted of the budget, by request": (3 / 6, 5 / 6),
        "accepted per verified": (5 / 8, 7 / 8),
        "at the second position": (1 / 2, 2 / 2),
        "1-α": (1 / 2, 2 / 2),
    }
    bounded = table[table["badge"] == "bounded"]
    assert dict(zip(bounded.index, zip(bounded["value"], bounded["high"]))) == whole
    assert set(table.index[table["end"] == "whole steps"]) == {*whole, "nothing accepted"}
    assert value["tau, emitted tokens"] == 2.0
    assert value["accepted of output"] == 3 / 4
    # transformers truncates a round before it counts: 2 and 0 matches, and one mismatch in each round.
    assert (value["matches a round"], value["accepted of judged"]) == (2 / 2, 2 / 4)
    assert value["all accepted"] == 0
    whole_draft = decode([[A, A]], ends=(0,))  # the last token counts as the target's own
    assert values(whole_draft)["all accepted"] == 0
    assert metrics.tau(trace) == value["tau, emitted tokens"]


def test_a_method_without_a_token_of_its_own_gets_none():
    recorder = Recorder({"run": "o", "method": "oracle", "prompts": [{"tokens": [7]}]})
    recorder.add({"cycle": 0, "prompt": 0})
    for i, status in enumerate([A, A, R, A]):  # each step keeps its one draft token or replaces it
        recorder.add({
            "cycle": i + 1, "prompt": 0, "keep": i, "node_token": [5], "node_parent": [-1],
            "node_status": [status], "out_token": [5], "out_position": [i],
            "out_origin": ["draft" if status == A else "correction"], "end": "length" if i == 3 else None,
        })  # fmt: skip
    trace = recorder.close()
    found = values(trace)
    assert found["tau, whole steps"] == found["tau, emitted tokens"] == metrics.tau(trace) == 1
    assert found["tokens an index"] == 4 / 3
    for name in ("matches a round", "accepted of judged", "all accepted", "accepted a step"):
        assert found[name] == 3 / 4


def test_a_draft_is_what_the_target_read():
    trace = decode([[A, R, "below_budget"], [A, "unsent", "unsent"], ["unreviewed"]])
    steps = metrics.counts(trace).steps
    assert steps["drafted"].tolist() == steps["depth"].tolist() == [2, 1, 0]


def test_counts_are_the_callers_own():
    trace = decode([[A, R], [A]])
    own, want = metrics.counts(trace), values(trace)
    own.requests["accepted"], own.steps["accepted"] = 0, 0
    own.left_out.loc[0] = 1, "mine"
    again = metrics.counts(trace)
    assert values(trace) == want and again.total("accepted") == 2 and again.left_out.empty
    longer = decode([[A, R], [A]], [[A]])
    parts = (longer, longer.select(prompt=0), longer.select(prompt=1))
    assert [metrics.counts(part).total("accepted") for part in parts] == [3, 2, 1]


def test_a_window_is_sent_but_is_no_draft(tmp_path):
    recorder = Recorder({"run": "l", "method": "lookahead", "prompts": [{"tokens": [7]}]})
    recorder.add({"cycle": 0, "prompt": 0})
    keep = 0
    for cycle in range(1, 5):  # a window six tokens deep; in two of the four steps a draft, accepted
        n = 2 * (cycle % 2)
        recorder.add({
            "cycle": cycle, "prompt": 0, "keep": keep,
            "node_token": np.arange(6 + n), "node_parent": [*range(-1, 5), *[-1, 6][:n]],
            "node_status": [U] * 6 + [A] * n, "node_source": ["window"] * 6 + ["ngram"] * n,
            "out_token": np.arange(n + 1), "out_position": np.arange(keep, keep + n + 1),
            "out_origin": ["draft"] * n + ["bonus"],
        })  # fmt: skip
        keep += n + 1
    trace = recorder.close()
    steps = metrics.counts(trace).steps
    assert (steps["drafted"].tolist(), steps["depth"].tolist()) == ([8, 6, 8, 6], [2, 0, 2, 0])
    found = values(trace)
    assert (found["1 + accepted a draft"], found["accepted of judged"], found["all accepted"]) == (3, 1, 1)
    assert metrics.by_position(trace)["given"].tolist() == [1, 1]
    again = read_counts(metrics.counts(trace).to_aiperf(tmp_path / "w.jsonl"), "aiperf")
    assert (again.total("drafts"), again.total("drafted"), again.total("accepted")) == (2, 28, 4)
    table = metrics.by_depth(trace).set_index("depth")
    assert table["overall"][1] == 1
    assert table["sent"].sum() == metrics.sent(trace) == 28


def test_what_a_later_step_took_back_is_no_output():
    recorder = Recorder({"run": "b", "method": "bild", "prompts": [{"tokens": [7]}]})
    recorder.add({"cycle": 0, "prompt": 0})
    for cycle, keep in ((1, 0), (2, 1)):  # the second cycle takes back one of the first cycle's two tokens
        recorder.add({
            "cycle": cycle, "prompt": 0, "keep": keep,
            "node_token": [5], "node_parent": [-1], "node_status": [A],
            "out_token": [5, 6], "out_position": [keep, keep + 1], "out_origin": ["draft", "bonus"],
        })  # fmt: skip
    found = metrics.counts(recorder.close())
    assert (found.total("emitted"), found.total("output")) == (4, 3)


def test_canvases_and_streams_have_metrics_of_their_own():
    canvas = {"length": 4, "block": 4, "cache": "none", "refresh": None}
    recorder = Recorder({"run": "c", "method": "ssd", "prompts": [{"tokens": [7]}], "canvas": canvas})
    recorder.add({"cycle": 0, "prompt": 0})
    with pytest.raises(TraceError, match="writes canvases: acceptance is defined only for texts that grow"):
        metrics.rosetta(recorder.close())
    recorder = Recorder({"run": "s", "method": "retranslate", "prompts": [{"tokens": [7]}]})
    recorder.add({"cycle": 0, "prompt": 0, "update": 0, "source": "a", "arrival": 0.0})
    with pytest.raises(TraceError, match=r"is a stream: its updates have their own metrics \(by_stream\)"):
        metrics.rosetta(recorder.close())


def test_steps_without_a_draft_are_what_vllm_does_not_see():
    # vLLM's pull request 24344 counts 993 drafts, 3,562 accepted tokens and 821 tokens without a draft, and
    # reports 4.59 and 2.96.
    accepted = np.diff(np.linspace(0, 3562, 994).astype(int))
    trace = decode([[A] * n for n in accepted] + [[]] * 821)
    found = values(trace)
    assert round(found["1 + accepted a draft"], 2) == 4.59
    assert round(found["tau, whole steps"], 2) == 2.96


def test_the_baseline_loses_its_end_token_where_text_is_encoded_again():
    found = values(SPRINT, PLAIN)
    base = (4 / 5.5 + 17 / 18.5) / 2
    assert found["mean tokens/s, baseline from text"] == pytest.approx((5 / 1.5 + 18 / 9.5) / 2 / base)


def test_positions_as_vllm_and_as_eagle_divide():
    table = metrics.by_position(decode([[A, A, A, R], [A, R, U, U], [R], [A, A], []]))
    assert table["accepted"].tolist() == [3, 2, 1, 0]
    assert table["rate"].tolist() == [3 / 4, 2 / 4, 1 / 4, 0]
    assert table["given"].tolist() == [3 / 4, 2 / 3, 1 / 1, 0]


@pytest.mark.parametrize("method", ["autoregressive", "speculative", "bild", "tree", "unispec"])
def test_the_common_ones_agree_with_the_metrics_of_the_house(method):
    trace = traces.build(method, prompts=3, tokens=50)
    found, counts = values(trace), metrics.counts(trace)
    assert found["tau, emitted tokens"] == metrics.tau(trace)
    assert found["accepted of output"] == metrics.accepted_share(trace)
    for name in ("steps", "emitted", "accepted", "output", "drafted"):
        of = metrics.sent if name == "drafted" else getattr(metrics, name)
        assert counts.total(name) == of(trace)
    assert counts.wall == metrics.seconds(trace)
    for name in ("drafted", "accepted", "emitted"):
        per = counts.steps.groupby("request")[name].sum()
        assert per.reindex(range(3), fill_value=0).tolist() == counts.requests[name].tolist()


def test_what_is_no_baseline_is_refused_in_one_line():
    def refused(baseline) -> str:
        with pytest.raises(TraceError) as error:
            metrics.rosetta(SPRINT, baseline)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "run steady) is not autoregressive" in refused(STEADY)
    other = decode([[]] * 5, [[]] * 18, method="autoregressive", model={"name": "n"})
    assert "the baseline ran n (float32), not m (float32)" in refused(other)
    assert "decoded different prompts: 1 against 2, 1 in common" in refused(
        decode([[]] * 5, method="autoregressive")
    )
    assert "holds no prompts" in refused(PLAIN.redact())


def test_a_text_that_was_cut_off_is_not_compared():
    parts = []
    for method, end in (("speculative", "interrupted"), ("autoregressive", None)):
        recorder = Recorder(traces.metadata(method), None, "judged", piece=traces.piece)
        *begin, last = traces.cycles(method)[:6]
        for cycle in (*begin, last | {"end": end}):
            recorder.add(cycle)
        parts.append(recorder.close(complete=False, stopped="interrupted"))
    for own, base, name in (
        (traces.build("speculative"), parts[1], "autoregressive"),
        (parts[0], traces.build("autoregressive"), "speculative"),
    ):
        with pytest.raises(TraceError, match=f"run {name}-0, prompt 0: the text was cut off before its end"):
            metrics.rosetta(own, base)
    assert metrics.rosetta(parts[0])["value"].notna().all()


def test_answers_of_nothing_but_an_end_token_have_no_speed():
    table = metrics.rosetta(decode([[A]], [[A]]), decode([[]], [[]], method="autoregressive"))
    row = table.loc["mean tokens/s, baseline from text"]
    assert np.isnan(row["value"]) and row["why"] == "nothing to divide by"
    assert table.loc["mean tokens/s", "value"] == 2


def test_a_run_without_steps_says_so():
    why = metrics.rosetta(decode([]))["why"]
    assert set(why[["tau, whole steps", "1-α", "all accepted"]]) == {"run m has no steps"}
