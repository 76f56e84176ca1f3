"""The metrics: their identities, their pooling, and decisions that can be rechecked."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import traces
from specviz import metrics
from specviz.errors import TraceError
from specviz.trace import Recorder, Trace

METHODS = ["autoregressive", "speculative", "bild", "tree"]


def record(*cycles: dict, **run) -> Trace:
    recorder = Recorder({"run": "r", "method": "m", **run})
    for i, cycle in enumerate(cycles):
        recorder.add({"cycle": i, **cycle})
    return recorder.close()


def chain(status: list[str], out: int, **more) -> dict:
    """A cycle with a chain draft of these statuses that emits `out` tokens."""
    n = len(status)
    accepted = status.count("accepted")
    return {
        "node_token": np.arange(n) + 5,
        "node_parent": np.arange(-1, n - 1),
        "node_status": status,
        "out_token": np.arange(out) + 5,
        "out_position": np.arange(out),
        "out_origin": ["draft"] * accepted + ["bonus"] * (out - accepted),
        **more,
    }


A, R, U, C, P = "accepted", "rejected", "unjudged", "cut", "below_budget"
PREFILL = {"start": 0.0, "duration": 0.5, "pass_model": ["target"], "pass_rows": [1], "pass_tokens": [9]}


def test_a_run_counted_by_hand():
    def passes(at: float) -> dict:
        return {
            "start": at,
            "duration": 0.25,
            "pass_model": ["draft", "draft", "target"],
            "pass_rows": [1] * 3,
            "pass_tokens": [1, 1, 5],
            "pass_start": [at, at + 0.05, at + 0.1],
            "pass_duration": [0.05, 0.05, 0.1],
        }

    trace = record(
        PREFILL,
        chain([A, A, R, U], 3, stop="length", **passes(1.0)),
        chain([A, P], 2, stop="fallback", **passes(2.0)),
        chain([A, C, C], 1, stop="eos", end="eos", **passes(3.0)),
        peak_memory={"process": 10**9, "device": None},
        exactness="exact up to ties",
    )
    assert metrics.steps(trace) == 3
    assert metrics.emitted(trace) == metrics.output(trace) == 6
    assert metrics.drafted(trace) == 9
    assert metrics.accepted(trace) == 4
    assert metrics.tau(trace) == 2.0
    assert (
        metrics.acceptance_rate(trace) == 4 / 6
    )  # the one below the budget and the two cut nodes do not count
    assert metrics.accepted_share(trace) == 4 / 6
    assert metrics.mean_accepted(trace) == 4 / 3
    assert metrics.target_passes(trace) == 3
    assert metrics.draft_passes(trace) == 6
    assert metrics.seconds(trace) == 1.25
    assert metrics.seconds(trace, prefill=False) == 0.75
    assert metrics.tokens_per_second(trace, prefill=True) == 6 / 1.25
    assert metrics.tokens_per_second(trace) == 6 / 0.75
    assert metrics.fallback_share(trace) == 2 / 6
    assert metrics.rollback_share(trace) == 1 / 6
    assert metrics.peak_memory(trace) == 1e9
    assert metrics.exactness(trace) == "exact up to ties"
    depth = metrics.by_depth(trace)
    assert depth["depth"].tolist() == [1, 2, 3, 4]
    assert depth["sent"].tolist() == [3, 1, 1, 1]
    assert depth["judged"].tolist() == [3, 1, 1, 0]
    assert depth["accepted"].tolist() == [3, 1, 0, 0]
    assert depth["given"].tolist()[:3] == [1, 1, 0]
    assert np.isnan(depth["given"].iloc[3])
    assert depth["overall"].tolist() == [1, 1 / 3, 0, 0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_identities_where_nothing_is_cut(method, temperature):
    trace = traces.build(method, prompts=4, temperature=temperature, tokens=60, cut=False)
    assert not trace.cycles["cut"].any()
    emitted, accepted, steps = metrics.emitted(trace), metrics.accepted(trace), metrics.steps(trace)
    assert emitted == accepted + steps
    assert metrics.tau(trace) == emitted / steps
    assert metrics.accepted_share(trace) == pytest.approx(1 - 1 / metrics.tau(trace))
    assert metrics.mean_accepted(trace) == pytest.approx(metrics.tau(trace) - 1)
    assert metrics.target_passes(trace) == steps
    if method == "autoregressive":
        assert metrics.tau(trace) == 1.0
        assert metrics.accepted_share(trace) == 0.0
        assert np.isnan(metrics.acceptance_rate(trace))
        assert metrics.draft_passes(trace) == 0


def test_pooling_is_a_ratio_of_sums():
    trace = record(
        PREFILL,
        chain([A] * 9, 10),
        {"prompt": 1, **PREFILL, "cycle": 0},
        {**chain([R], 1), "prompt": 1, "cycle": 1},
        {**chain([R], 1), "prompt": 1, "cycle": 2, "keep": 1},
    )
    assert metrics.tau(trace) == 12 / 3  # the mean of the prompts' means would be 5.5
    assert metrics.acceptance_rate(trace) == 9 / 11


def test_what_was_emitted_unreviewed_is_neither_accepted_nor_sent():
    end = chain(["unreviewed"] * 2, 2, stop="length", end="length", keep=2, out_origin=["unreviewed"] * 2)
    trace = record(PREFILL, chain([A, R, U], 2, stop="fallback"), {**end, "out_position": [2, 3]})
    assert metrics.emitted(trace) == 4
    assert metrics.drafted(trace) == 5
    assert metrics.accepted(trace) == 1
    assert metrics.acceptance_rate(trace) == 1 / 3
    assert metrics.accepted_share(trace) == 1 / 4
    assert metrics.mean_accepted(trace) == 1 / 2
    assert metrics.fallback_share(trace) == 1 / 4  # the last block was full, but the target did not run
    depth = metrics.by_depth(trace)
    assert depth["sent"].tolist() == [1, 1, 1]
    assert depth["overall"].tolist() == [1, 0, 0]
    assert len(metrics.recheck(trace)) == 0


def test_tokens_taken_back_are_no_output():
    trace = record(PREFILL, chain([], 5), chain([], 2, keep=1))
    assert metrics.emitted(trace) == 7
    assert metrics.output(trace) == 3


def test_rows_of_a_batch_share_the_clock_and_the_pass():
    both = {"start": 1.0, "duration": 0.5, "pass_model": ["target"], "pass_start": [1.1]}
    both |= {"pass_rows": [2], "pass_tokens": [8], "cycle": 1}
    trace = record({**chain([A], 2), **both}, {**chain([A], 2), **both, "row": 1, "prompt": 1})
    assert metrics.seconds(trace) == 0.5
    assert metrics.target_passes(trace) == 1
    overlapping = record(
        {"start": 0.0, "duration": 2.0}, {"start": 1.0, "duration": 0.5}, {"start": 1.5, "duration": 1}
    )
    assert metrics.seconds(overlapping) == 2.5


def test_rejected_siblings_are_no_rollback():
    tree = {
        "node_token": [5, 6, 7],
        "node_parent": [-1, -1, 1],
        "node_status": [R, A, R],
        "out_token": [6, 9],
        "out_position": [0, 1],
        "out_origin": ["draft", "correction"],
    }
    assert (
        metrics.rollback_share(record(PREFILL, tree)) == 1 / 2
    )  # the leaf; not the sibling of an accepted one
    leaf = {**tree, "node_status": [R, A, A], "out_token": [6, 7, 9], "out_position": [0, 1, 2]}
    assert metrics.rollback_share(record(PREFILL, {**leaf, "out_origin": ["draft", "draft", "bonus"]})) == 0


def test_summary_and_comparison(tmp_path):
    for method in METHODS:
        traces.build(method, prompts=2, path=tmp_path / f"{method}.parquet")
    trace = Trace.open(tmp_path)
    table = trace.summary().set_index("method")
    assert list(table.index) == sorted(METHODS)
    for method in METHODS:
        part = trace.select(method=method)
        assert table.loc[method, "tau"] == metrics.tau(part)
        assert table.loc[method, "tokens_per_second"] == metrics.tokens_per_second(part)
    assert table.loc["autoregressive", "tau"] == 1.0
    assert table.loc["bild", "exactness"] == "lossy"
    assert metrics.exactness(trace) == "lossy"
    parts = {m: trace.select(method=m) for m in METHODS}
    compared = metrics.compare(parts, "autoregressive").set_index("name")
    assert compared.loc["autoregressive", "speedup"] == 1.0
    expected = metrics.tokens_per_second(parts["tree"]) / metrics.tokens_per_second(parts["autoregressive"])
    assert compared.loc["tree", "speedup"] == pytest.approx(expected)
    with pytest.raises(TraceError, match="autoregressive, speculative"):
        metrics.compare(parts, "medusa")


def test_an_empty_trace_has_no_numbers():
    trace = Recorder({"run": "r", "method": "m"}).close()
    row = trace.summary().iloc[0]
    assert row["steps"] == 0
    assert row[["tau", "A/D", "A/O", "tokens_per_second", "peak_memory"]].isna().all()
    assert len(metrics.by_depth(trace)) == len(metrics.recheck(trace)) == 0


def test_a_run_that_kept_its_text_alone_counts_what_it_can():
    full, bare = traces.build("tree", prompts=2), traces.build("tree", prompts=2, record=None)
    for metric in (metrics.tau, metrics.accepted_share, metrics.accepted, metrics.output, metrics.steps):
        assert metric(bare) == metric(full)
    row = bare.summary().iloc[0]
    names = ["drafted", "A/D", "tokens_per_second", "target_passes", "draft_passes"]
    assert row[[*names, "fallback_share", "rollback_share"]].isna().all()


# ------------------------------------------------------------ rechecking


@pytest.mark.parametrize(
    ("method", "temperature", "rule"),
    [
        ("speculative", 0.0, "greedy"),
        ("tree", 0.0, "greedy"),
        ("speculative", 1.0, "sampling"),
        ("bild", 0.0, "rollback"),
    ],
)
def test_every_decision_can_be_made_again(method, temperature, rule):
    trace = traces.build(method, prompts=4, temperature=temperature, tokens=80)
    table = metrics.recheck(trace)
    assert set(table["rule"]) == {rule}
    assert len(table) == trace.cycles["judged"].sum()
    assert set(table["status"]) == {A, R}
    assert table["agrees"].all()


@pytest.mark.parametrize(
    ("method", "temperature"), [("speculative", 0.0), ("speculative", 1.0), ("bild", 0.0)]
)
def test_a_wrong_decision_is_found(method, temperature):
    cycles = traces.cycles(method, temperature=temperature, tokens=80)
    victim = next(c for c in cycles if R in (c.get("node_status") or []))
    at = victim["node_status"].index(R)
    victim["node_status"][at] = A
    run = traces.metadata(method)
    run["sampling"]["temperature"] = temperature
    recorder = Recorder(run)
    for cycle in cycles:
        recorder.add(cycle)
    table = metrics.recheck(recorder.close())
    wrong = table[~table["agrees"]]
    assert wrong[["cycle", "node"]].to_numpy().tolist() == [[victim["cycle"], at]]


def test_greedy_goes_by_the_first_candidate_where_probabilities_tie():
    tie = chain(
        [A, R], 2, pred_node=[-1, 0], pred_top_token=[5, 6, 9, 6], pred_top_p=[0.5, 0.5, 0.5, 0.5], top_k=2
    )
    trace = record(PREFILL, {**tie, "node_rank": [0, 0]}, sampling={"temperature": 0.0})
    assert metrics.recheck(trace)["agrees"].tolist() == [True, True]
    bare = record(PREFILL, chain([A, R], 2, node_rank=[0, 0]), sampling={"temperature": 0.0})
    assert metrics.recheck(bare)["agrees"].tolist() == [True, False]
    unknown = record(PREFILL, chain([A, R], 2), sampling={"temperature": 0.0})
    assert len(metrics.recheck(unknown)) == 0


def test_sampling_and_rollback_at_their_edges():
    sampled = chain(
        [A, R, A], 3, node_p=[0.3, 0.3, 0.9], node_q=[0.6, 0.6, np.nan], node_u=[0.49, 0.51, 0.89]
    )
    table = metrics.recheck(record(PREFILL, sampled, sampling={"temperature": 1.0}))
    assert table["expected"].tolist() == [True, False, True]
    np.testing.assert_allclose(table["margin"], [0.01, -0.01, 0.01], atol=1e-6)
    rounding = chain([A], 2, node_p=[0.3], node_q=[0.6], node_u=[0.5])  # as close as float32 allows
    assert metrics.recheck(record(PREFILL, rounding, sampling={"temperature": 1.0}))["agrees"].all()
    bild = chain([A, R, R, R], 2, node_p=[np.exp(-1.9), np.exp(-2.1), 0.0, np.exp(-2.0001)])
    run = {"method": "bild", "parameters": {"rollback": 2.0}}
    assert metrics.recheck(record(PREFILL, bild, **run))["agrees"].all()
    zero = chain([A, R], 2, node_p=[1.0, 0.999])
    assert metrics.recheck(record(PREFILL, zero, method="bild", parameters={"rollback": 0}))["agrees"].all()
    wrong = chain([A], 2, node_p=[0.0])
    assert not metrics.recheck(record(PREFILL, wrong, **run))["agrees"].any()
    with pytest.raises(TraceError, match="rollback threshold"):
        metrics.recheck(record(PREFILL, bild, method="bild", parameters={}))


def test_tables_are_plain_frames():
    trace = traces.build("tree")
    for table in (trace.summary(), metrics.by_depth(trace), metrics.recheck(trace)):
        assert type(table) is pd.DataFrame
        assert not any(name.startswith("_") for name in table)


# A tree of six nodes: 0 and 1 are children of the root, 2 and 3 of 0, 4 of 1, 5 of 2.
TREE = [-1, -1, 0, 0, 1, 2]


def tree(status: list[str], tokens: list[int], out: list[int], **more) -> dict:
    """A cycle with that tree; nodes beyond its six are unsent children of the root."""
    n = len(status)
    parents = TREE + [-1] * (n - len(TREE))
    accepted = status.count("accepted")
    own = ["correction"] * (len(out) - accepted)
    return {
        "node_token": tokens, "node_parent": parents, "node_status": status,
        "node_source": ["store"] * 4 + ["neighbour"] * (n - 4),
        "node_score": [0.5, 0.05, 0.45, 0.02, 0.01, 0.25] + [0.001] * (n - len(TREE)),
        "out_token": out, "out_position": np.arange(len(out)) + more.get("keep", 0),
        "out_origin": ["draft"] * accepted + own,
        "context": 3 + more.get("keep", 0), **more,
    }  # fmt: skip


def grown(**run) -> Trace:
    """Two cycles: the path 0, 2 and a correction; then, the text ending, node 1 alone."""
    prompts = [{"tokens": [7, 8, 9], "kind": "k"}]
    first = tree([A, R, A, R, U, R, "unsent"], [10, 11, 12, 13, 12, 15, 77], [10, 12, 99], keep=0)
    second = tree([R, A, U, U, C, U], [20, 21, 22, 23, 24, 25], [21], keep=3, end="eos")
    return record(
        PREFILL,
        first,
        second,
        prompts=prompts,
        memory={"start": {"state": "cold", "keep": "run", "known": 0}},
        **run,
    )


def test_a_tree_counted_by_hand():
    trace = grown()
    assert metrics.tau(trace) == 4 / 2
    assert metrics.drafted(trace) == 13
    assert metrics.sent(trace) == 12  # neither the root nor the unsent nodes
    assert metrics.acceptance_rate(trace) == 3 / 11  # every node sent but the cut one
    assert metrics.mean_accepted(trace) == 3 / 2
    assert metrics.rollback_share(trace) == 1 / 4  # only in the first cycle was every child refused
    depth = metrics.by_depth(trace).set_index("depth")
    assert depth["sent"].tolist() == [4, 5, 2]
    assert depth["judged"].tolist() == [4, 2, 1]
    assert depth["accepted"].tolist() == [2, 1, 0]
    assert depth["rate"].tolist() == [2 / 4, 1 / 2, 0]  # of the verified nodes
    assert depth["given"].tolist() == [1, 1, 0]  # of the cycles that got there
    assert depth["overall"].tolist() == [1, 1 / 2, 0]


def test_in_a_chain_a_node_and_a_cycle_are_the_same():
    depth = metrics.by_depth(traces.build("speculative", prompts=4, tokens=60))
    pd.testing.assert_series_equal(depth["rate"], depth["given"], check_names=False)


def test_on_text_rates_what_was_never_judged():
    trace = grown()
    # The text is 10 12 99 21. It ended after the second cycle's path; a wrong node's child is wrong there.
    first = [1, 0, 1, 0, 0, 0, 0]  # node 4 has the right token, but not the right parent
    second = [0, 1, 0, 0, np.nan, 0]
    np.testing.assert_array_equal(metrics.on_text(trace), [*first, *second])


@pytest.mark.parametrize("method", ["speculative", "tree"])
def test_in_a_greedy_run_what_is_accepted_stands_in_the_text(method):
    trace = traces.build(method, prompts=4, tokens=60, seed=3)
    right, status = metrics.on_text(trace), trace.nodes["status"]
    assert (right[status == "accepted"] == 1).all()
    assert (right[status == "rejected"] != 1).all()
    assert {"accepted", "rejected"} <= set(status)


def test_acceptance_by_score_in_both_readings():
    trace = grown()
    judged = metrics.by_score(trace, bins=2).set_index(["source", "low"])
    assert judged.loc[("all", 0.0), ["sent", "counted", "right"]].tolist() == [9, 5, 2]
    assert judged.loc[("all", 0.5), ["sent", "counted", "right"]].tolist() == [2, 2, 1]
    assert judged.loc[("all", 0.0), "share"] == 9 / 11  # the density: of the nodes sent
    assert judged.loc[("store", 0.5), "rate"] == 1 / 2
    assert ("neighbour", 0.5) not in judged.index
    text = metrics.by_score(trace, bins=2, reading="text").set_index(["source", "low"])
    assert text.loc[("all", 0.0), ["sent", "counted", "right"]].tolist() == [9, 9, 2]
    low, rate, high = judged.loc[("all", 0.0), ["rate_lo", "rate", "rate_hi"]]
    assert (round(low, 3), rate, round(high, 3)) == (0.118, 0.4, 0.769)  # Wilson's interval of 2 in 5
    with pytest.raises(TraceError, match="judged, text"):
        metrics.by_score(trace, reading="x")


def test_rightness_by_source_and_level():
    trace = grown()
    table = metrics.by_source(trace)
    source = table.groupby("source", observed=True)[["sent", "right"]].sum()
    assert source.loc["store"].tolist() == [8, 3]
    assert source.loc["neighbour"].tolist() == [3, 0]
    assert table.groupby("depth")["right"].sum().tolist() == [2, 1, 0]
    right, status = metrics.on_text(trace), trace.nodes["status"]
    assert right[status == "unsent"].tolist() == [0] and np.isnan(right[status == "cut"]).all()


def test_by_prompt():
    trace = traces.build("tree", prompts=3, tokens=40)
    table = metrics.by_prompt(trace)
    assert table["prompt"].tolist() == [0, 1, 2]
    for number, tau in enumerate(table["tau"]):
        assert tau == metrics.tau(trace.select(prompt=number))
    assert table["sent"].sum() == metrics.sent(trace)
    silent = traces.build("tree", seed=1, record=None)
    assert metrics.by_prompt(silent)["sent"].isna().all()
    mixed = metrics.by_prompt(Trace([*trace._stores, *silent._stores]))
    assert mixed["sent"].isna().tolist() == [False] * 3 + [True]
    assert mixed["sent"].sum() == metrics.sent(trace)


def test_what_is_not_recorded_was_not_drafted_by_nobody():
    trace, silent = traces.build("tree", prompts=3, tokens=40), traces.build("tree", seed=1, record=None)
    assert metrics.drafts(silent)[["drafted", "depth"]].isna().all(axis=None)
    recorded = metrics.drafts(trace)
    assert recorded["drafted"].dtype == int and recorded["drafted"].sum() > 0
    mixed = metrics.drafts(Trace([*trace._stores, *silent._stores]))
    assert mixed["drafted"].isna().tolist() == [False] * len(recorded) + [True] * len(silent.cycles)
    assert mixed["depth"].sum() == recorded["depth"].sum()


def test_what_a_store_has_learnt():
    table = metrics.learnt(grown())
    # Root 9 and the nodes' six tokens, of which 12 occurs twice; nothing where the text ends.
    assert table["new"].tolist() == [6, 0]
    assert table["tokens"].tolist() == [6, 6]
    assert table["root_known"].tolist() == [False, False]
    with pytest.raises(TraceError, match="has no memory"):
        metrics.learnt(traces.build("speculative"))
    with pytest.raises(TraceError, match="redacted"):
        metrics.learnt(grown().redact())


def test_n_grams_are_no_successors():
    from tiny import llama

    import specviz

    trace = specviz.generate(llama(seed=5, vocabulary=40, eos=()), [[3, 4, 5]], "lookahead", max_new_tokens=9)
    with pytest.raises(TraceError, match="lookahead keeps no successors"):
        metrics.learnt(trace)


@pytest.mark.parametrize("keep", ["run", "prompt"])
def test_what_was_counted_is_what_the_store_holds(keep):
    from tiny import llama

    import specviz

    model = llama(seed=5, vocabulary=40, eos=(3,))
    trace = specviz.generate(
        model, [[3, 4, 5], [6, 7], [4, 9]], "unispec", max_new_tokens=20, draft_size=4, keep=keep
    )
    table = metrics.learnt(trace)
    assert table["tokens"].iloc[-1] == trace.run["memory"]["end"]["known"] > 4
    assert table["root_known"].any() and not table["root_known"].all()


def conversations(method: str = "prompt_lookup", **options) -> Trace:
    """Two conversations, the second without room for its last turn, then a prompt; all have references."""
    import specviz

    market = "Tell me about the market."
    prompts = [
        {"turns": [market, "Translate into German: Tom was tired."], "reference": "Tom war müde."},
        {"turns": [market, market * 200], "reference": "The market is by the harbour."},
        {"prompt": "Translate into German: The cat sleeps.", "reference": "Die Katze schläft."},
    ]
    return specviz.generate("town", prompts, method, max_new_tokens=16, **options)


def test_a_reference_is_of_its_conversations_last_turn():
    from specviz.metrics.quality import pairs

    trace = conversations()
    assert trace.cycles["prompt"].unique().tolist() == [0, 1, 2, 4]  # there was no room for 3
    texts, references = pairs(trace)
    assert texts == [trace.texts[1], trace.texts[3]]
    assert references == [["Tom war müde."], ["Die Katze schläft."]]
    assert metrics.quality(trace, resamples=1)["texts"] == 2
    with pytest.raises(TraceError, match="no text of the trace has a reference"):
        pairs(trace.select(prompt=0))


def test_a_text_that_did_not_end_is_not_rated():
    from specviz.metrics.quality import pairs

    recorder = Recorder(traces.metadata(prompts=2), None, "judged", piece=traces.piece)
    for cycle in traces.cycles(prompts=2)[:-1]:
        recorder.add(cycle)
    cut = recorder.close(complete=False, stopped="interrupted")
    assert pairs(cut)[0] == cut.texts[:1]
    with pytest.raises(TraceError, match=r"no text of the trace has a reference .* or it did not end"):
        pairs(cut.select(prompt=1))


def test_a_turn_without_room_is_no_reason_to_pair_other_prompts():
    prompts = [{"tokens": [n + 3], "id": f"p{n}", "turn": n} for n in range(2)] + [{"tokens": [9], "id": "q"}]
    own = [{"prompt": i, "cycle": 1, **chain([A] * (i + 1), i + 2)} for i in range(3)]
    every, some = (record(*cycles, prompts=prompts) for cycles in (own, [own[0], own[2]]))
    with pytest.raises(TraceError, match="decoded other prompts"):
        metrics.tau_difference(every, some)
    assert metrics.tau_difference(some, some).pairs == 2


def test_a_store_is_not_counted_from_a_part_of_its_run():
    from tiny import llama

    import specviz

    model = llama(seed=5, vocabulary=40, eos=(3,))
    prompts = [[3, 4, 5], [6, 7], [4, 9]]
    for keep in ("run", "prompt"):
        trace = specviz.generate(model, prompts, "unispec", max_new_tokens=12, draft_size=4, keep=keep)
        whole = metrics.learnt(trace)
        begun = metrics.learnt(trace.select(prompt=[0, 1]))
        assert begun["tokens"].tolist() == whole["tokens"].tolist()[: len(begun)]
        if keep == "run":
            with pytest.raises(TraceError, match="pass the whole run"):
                metrics.learnt(trace.select(prompt=2))
        else:
            assert len(metrics.learnt(trace.select(prompt=2)))


def test_a_store_is_counted_where_a_turn_had_no_room():
    assert len(metrics.learnt(conversations("unispec")))


def test_without_times_there_are_no_seconds():
    untimed = record({"pass_model": ["target"]}, chain([A], 2))
    assert np.isnan(metrics.seconds(untimed)) and np.isnan(metrics.tokens_per_second(untimed))
    assert metrics.seconds(record(PREFILL), prefill=False) == 0


def test_an_encoder_is_counted_where_tokens_are_carried():
    import specviz
    from specviz.metrics.costs import Shape

    stream = specviz.streams.fixed_lag("The cook went to the village. She was tired. Tom was tired.", words=2)
    options = {"target_language": "German", "max_new_tokens": 24}
    anew, carried = (
        specviz.generate("town-t5", stream, "retranslate", mode=mode, **options) for mode in ("ssbd", "cd")
    )
    shape = Shape(carried.run["model"]["shape"])
    alone, costs = (metrics.pass_costs(trace).query("prefill") for trace in (anew, carried))
    n = costs["tokens"].to_numpy() - alone["tokens"].to_numpy()  # carried ones, after the prefix but one
    assert n[0] == 0 and (n[1:] > 0).all()
    before = shape.widths["prefix"] - 1
    seen = n * before + n * (n + 1) // 2
    source = alone["tokens"].to_numpy() - before
    more = costs["flops"].to_numpy() - alone["flops"].to_numpy()
    assert more.tolist() == shape.flops(n, seen, 0, n * source).tolist()


def test_a_drafter_without_a_shape_is_no_damage():
    import specviz

    prompt = "Translate into German: Tom was tired."
    trace = specviz.generate("town-t5", prompt, "specdec", draft="town-t5-slots", max_new_tokens=24)
    with pytest.raises(TraceError, match="does not say the shape of town-t5-slots"):
        metrics.cost_summary(trace)
