"""Metrics of canvases, on small handwritten records and on tiny models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specviz
from specviz import metrics
from specviz.errors import ParameterError, TraceError
from specviz.trace import Recorder, Trace, written

sys.path.insert(0, str(Path(__file__).parent / "models"))
from canvases import tiny

EOS, TOP = 0, 2


def run_of(method: str, length: int, block: int, cache: str = "none", **parameters) -> dict[str, Any]:
    canvas = {"length": length, "block": block, "cache": cache, "refresh": 8, "mask": 99, "shift": 0}
    own = {"block": block, "cache": cache, "refresh": 8, "whole": False} | parameters
    return {
        "run": method, "method": method, "canvas": canvas, "parameters": own, "eos": [EOS],
        "record": "judged", "sampling": {"temperature": 0.0}, "exactness": "exact", "dtype": "float32",
        "prompts": [{"tokens": [5, 6]}] * 4,
    }  # fmt: skip


def cycle(number: int, keep: int, out: list[tuple], ranked: list[tuple], nodes: Any = (), **more) -> dict:
    """A row of the record.

    `out` holds (cell, token, origin), `ranked` (node, cell, odds, tokens), and `nodes` (cell, token, parent,
    status).
    """
    row = {
        "prompt": 0, "cycle": number, "keep": keep, "context": 2 + keep,
        "start": float(number), "duration": 0.5,
        "out_position": [c for c, *_ in out], "out_token": [t for _, t, _ in out],
        "out_origin": [o for *_, o in out], "out_odds": [1.0] * len(out), "out_p": [0.7] * len(out),
        "out_order": list(range(keep, keep + len(out))),
        "pred_node": [n for n, *_ in ranked], "pred_position": [c for _, c, *_ in ranked],
        "pred_odds": [o for _, _, o, _ in ranked], "pred_entropy": [1.0] * len(ranked),
        "pred_top_token": [t for *_, top in ranked for t in top],
        "pred_top_p": [p for _ in ranked for p in (0.6, 0.3)], "top_k": TOP,
        "node_position": [n[0] for n in nodes], "node_token": [n[1] for n in nodes],
        "node_parent": [n[2] for n in nodes], "node_status": [n[3] for n in nodes],
        "node_source": ["self"] * len(nodes), "node_confidence": [0.55] * len(nodes),
        "node_score": [9.0] * len(nodes), "stop": "length", "refreshed": True, "block": 0,
        "pass_model": ["target"], "pass_rows": [1], "pass_tokens": [9],
    }  # fmt: skip
    return row | more


def trace_of(run: dict[str, Any], *cycles: dict) -> Trace:
    recorder = Recorder(run)
    seen = {row["prompt"] for row in cycles}
    for prompt in sorted(seen):
        own = [row for row in cycles if row["prompt"] == prompt]
        recorder.add({"prompt": prompt, "cycle": 0, "context": 2, "keep": 0, "start": 0.0, "duration": 0.25})
        for row in own:
            recorder.add(row)
    return recorder.close()


def stepwise(order: list[tuple[int, int]], ranked: list[dict[int, tuple]], length: int, block: int) -> Trace:
    """Record one token per pass, by `order` (cell, token); `ranked`: each pass's likeliest tokens by cell."""
    rows = [
        cycle(i + 1, i, [(*order[i], "plain")], [(-1, c, 1.0, top) for c, top in ranked[i].items()])
        for i in range(len(order))
    ]
    rows[-1]["end"] = "length"
    return trace_of(run_of("stepwise", length, block), *rows)


# Five steps over a canvas of five cells in one block. The first pass ranks the token that a later step places
# first in cells 1 and 3, second in cell 2, and not at all in cell 4.
ORDER = [(0, 10), (2, 12), (1, 11), (3, 13), (4, 14)]
RANKED = [
    {0: (10, 1), 1: (11, 1), 2: (1, 12), 3: (13, 1), 4: (1, 2)},
    {1: (11, 1), 2: (12, 1), 3: (13, 1), 4: (1, 14)},
    {1: (11, 1), 3: (13, 1), 4: (14, 1)},
    {3: (13, 1), 4: (1, 2)},
    {4: (14, 1)},
]


def test_the_limit_by_hand() -> None:
    trace = stepwise(ORDER, RANKED, 5, 5)
    table = metrics.acceptance_limit(trace, lengths=[2, 4], top=[1, 2]).set_index(["draft_length", "top"])
    # N = 2 gives the rounds 0 1 2 | 3 4. With one candidate, step 2 matches; 1 (12 is second) and 4 miss.
    row = table.loc[2, 1]
    assert (row["steps"], row["rounds"], row["matched"], row["unread"]) == (5, 2, 1, 0)
    assert row["reduction"] == pytest.approx(1 / 5)
    # If a round ends at a miss, they are 0 | 1 2 3 | 4, because the pass before step 1 ranks 11 and 13 first.
    assert (row["restarts"], row["restarted"]) == (3, pytest.approx(2 / 5))
    # With two candidates, 12 counts. The rounds are 0 1 2 | 3 | 4, because at step 3 cell 4 has no match.
    row = table.loc[2, 2]
    assert (row["matched"], row["restarts"]) == (2, 3)
    # N = 4 gives a single round. Steps 2 and 3 match; step 4 never does.
    assert (
        table.loc[
            4,
            1,
        ]["matched"]
        == 2
    )
    assert table.loc[4, 2]["matched"] == 3
    assert table["bound"].tolist() == pytest.approx([2 / 3, 2 / 3, 4 / 5, 4 / 5])
    assert (table["reduction"] <= table["bound"]).all()


def test_a_cell_that_the_round_did_not_read_is_unread() -> None:
    ranked = [dict(RANKED[0]), *RANKED[1:]]
    del ranked[0][3]  # like a cell after the next block, or outside the window of a cached pass
    row = metrics.acceptance_limit(stepwise(ORDER, ranked, 5, 5), lengths=[4], top=[1]).iloc[0]
    assert (row["matched"], row["unread"]) == (1, 1)


def test_the_limit_refuses_in_one_line() -> None:
    trace = stepwise(ORDER, RANKED, 5, 5)
    with pytest.raises(ParameterError, match="the record holds 2 candidates per cell, not 3"):
        metrics.acceptance_limit(trace, top=[3])
    with pytest.raises(ParameterError, match="at least 1"):
        metrics.acceptance_limit(trace, lengths=[0])
    with pytest.raises(ParameterError, match="lists of whole numbers, not 3"):
        metrics.acceptance_limit(trace, lengths=3)
    rows = [
        cycle(
            1, 0, [(0, 10, "plain"), (1, 11, "parallel")], [(-1, c, 1.0, top) for c, top in RANKED[0].items()]
        ),
        cycle(2, 2, [(2, 12, "plain")], [(-1, 2, 1.0, (12, 1))], end="length"),
    ]
    with pytest.raises(TraceError, match="no pass at the state with 1 tokens"):
        metrics.acceptance_limit(trace_of(run_of("fast_dllm", 5, 5), *rows), top=[1])


def test_step_reduction_and_valid_tokens_by_hand() -> None:
    # Three passes fill six cells. The text is 20 21 and its end token; the block's padding is not text.
    read = [(-1, c, 1.0, (1, 2)) for c in range(6)]
    rows = [
        cycle(1, 0, [(0, 20, "plain"), (1, 21, "parallel")], read),
        cycle(2, 2, [(3, EOS, "plain"), (2, EOS, "parallel"), (4, 7, "parallel")], read[2:]),
        cycle(3, 5, [(5, EOS, "plain")], read[5:], end="eos"),
    ]
    trace = trace_of(run_of("fast_dllm", 6, 6), *rows)
    table = metrics.by_canvas(trace).iloc[0]
    assert (table["placed"], table["valid"], table["passes"], table["reduction"]) == (6, 2, 3, 0.5)
    assert metrics.step_reduction(trace).median == 0.5
    assert metrics.tau(trace) == 2  # placed tokens, padding included
    assert metrics.output(trace) == 3  # the text and its end token
    assert metrics.seconds(trace) == 1.75
    assert metrics.valid_tokens_per_second(trace) == pytest.approx(2 / 1.75)
    assert metrics.tokens_per_second(trace) == pytest.approx(3 / 1.5)
    assert metrics.target_share(trace) == 1
    base = stepwise([(i, 20 + i) for i in range(4)], [{i: (20 + i, 1)} for i in range(4)], 6, 6)
    assert metrics.step_reduction(trace, base).median == pytest.approx(1 / 4)  # that took four passes
    assert metrics.by_canvas(trace, base)["saved"].tolist() == [0.25]
    with pytest.raises(TraceError, match="stepwise"):
        metrics.step_reduction(base, trace)
    other = stepwise([(i, 20 + i) for i in range(4)], [{i: (20 + i, 1)} for i in range(4)], 4, 4)
    with pytest.raises(TraceError, match="the same length, block and cache"):
        metrics.step_reduction(trace, other)


def test_a_canvas_that_was_cut_off_is_not_compared() -> None:
    read = [(-1, c, 1.0, (1, 2)) for c in range(6)]
    own = [(0, 20, "plain"), (2, 21, "parallel"), (3, EOS, "parallel")]  # cell 1 is still masked
    cut = trace_of(run_of("fast_dllm", 6, 6), cycle(1, 0, own, read))
    assert metrics.by_canvas(cut)["valid"].tolist() == [metrics.output(cut)] == [1]
    base = stepwise([(i, 20 + i) for i in range(4)], [{i: (20 + i, 1)} for i in range(4)], 6, 6)
    early = trace_of(run_of("stepwise", 6, 6), cycle(1, 0, own[:1], read))
    for name, compare in (
        ("fast_dllm", lambda: metrics.step_reduction(cut, base)),
        ("stepwise", lambda: metrics.step_reduction(base, early)),
        ("fast_dllm", lambda: metrics.compare_canvases({"cut": cut}, base)),
    ):
        with pytest.raises(TraceError, match=f"run {name}, prompt 0: the text was cut off before its end"):
            compare()


def test_canvases_are_compared_by_order_and_by_text() -> None:
    base = stepwise(ORDER, RANKED, 5, 5)
    swapped = [ORDER[0], ORDER[2], ORDER[1], *ORDER[3:]]  # the same text in another order
    read = [(-1, c, 1.0, (1, 2)) for c in range(5)]
    wide = trace_of(
        run_of("fast_dllm", 5, 5, cache="dual") | {"exactness": "lossy"},
        cycle(1, 0, [(*ORDER[0], "plain"), (*ORDER[1], "parallel")], read),
        cycle(2, 2, [(1, 99, "plain"), (3, 13, "parallel"), (4, 14, "parallel")], read, end="length"),
    )
    table = metrics.compare_canvases(
        {"itself": base, "swapped": stepwise(swapped, RANKED, 5, 5), "wide": wide}, base
    )
    assert table["same_order"].tolist() == [1, 0, 0]
    assert table["same_text"].tolist() == [1, 1, 0]
    assert table["passes"].tolist() == [5, 5, 2]
    assert table["saved"].tolist() == pytest.approx([0, 0, 0.6])
    assert table["exactness"].tolist() == ["exact", "exact", "lossy"]
    other = cycle(1, 0, [(*ORDER[0], "plain")], read, prompt=1, end="length")
    moved = trace_of(run_of("stepwise", 5, 5), other)
    with pytest.raises(TraceError, match="moved wrote other prompts"):
        metrics.compare_canvases({"moved": moved}, base)


# The predictions of the previous pass, from which the drafts below come. A block has four cells.
FIRST = [(-1, 0, 9.0, (10, 1)), (-1, 1, 3.0, (11, 1)), (-1, 2, 2.0, (12, 1)), (-1, 3, 1.0, (13, 1))]
FIRST += [(-1, 4, 8.0, (14, 1)), (-1, 5, 7.0, (15, 1))]


def broken(out: list[tuple], nodes: list[tuple], ranked: list[tuple], begin: int = 1, **more) -> str:
    """What breaks the second cycle's chain, if the first cycle placed the first `begin` cells."""
    first = cycle(1, 0, [(i, 10 + i, "plain" if not i else "parallel") for i in range(begin)], FIRST)
    second = cycle(2, begin, out, ranked, nodes, **more)
    table = metrics.failures(trace_of(run_of("ssd", 8, 4, draft_length=2), first, second))
    assert table["share"].sum() == pytest.approx(1)
    assert table["chains"].sum() == 1
    row = table[table["chains"] == 1].iloc[0]
    return row["cause"] + ("!" if row["held"] else "")


def test_the_causes_of_failure_by_hand() -> None:
    root, node = [(-1, 3, 1.0, (13, 1))], [(0, 3, 1.0, (13, 1))]
    chain = [(1, 11, -1, "accepted"), (2, 12, 0, "accepted")]
    last = [(1, 3, 1.0, (13, 1))]
    good = [(1, 11, "draft"), (2, 12, "draft"), (3, 13, "bonus")]
    assert broken(good, chain, root + node + last) == "none"
    assert broken([*good[:1], (2, 12, "bonus")], chain[:1], root + node) == "short"
    ended = [(1, 11, -1, "accepted"), (2, 12, 0, "cut")]
    assert broken(good[:1], ended, root + node, end="eos") == "none"
    refused = [(1, 11, -1, "accepted"), (2, 12, 0, "rejected")]
    assert broken([*good[:1], (2, 1, "correction")], refused, root + node) == "token"
    assert (
        broken([*good[:1], (3, 13, "correction")], refused, root + node) == "order"
    )  # part of a longer draft
    assert broken([*good[:1], (3, 1, "correction")], refused, root + node) == "token"
    early = [(1, 11, -1, "rejected"), (2, 12, 0, "unjudged")]
    assert broken([(2, 12, "correction")], early, root) == "order!"  # Figure 4 (a)
    assert broken([(2, 1, "correction")], early, root) == "token"
    skip = [(1, 11, -1, "rejected"), (2, 12, 0, "unjudged"), (2, 12, -1, "accepted")]
    assert broken([(2, 12, "draft"), (3, 13, "bonus")], skip, [*root, (2, 3, 1.0, (13, 1))]) == "order!"
    # The block is full. The drafts for the next block come from a pass that did not decode it.
    border = [(4, 14, -1, "rejected"), (5, 15, 0, "unjudged")]
    assert broken([(6, 1, "correction")], border, [(-1, 6, 1.0, (1, 2))], begin=4) == "border"


def test_failures_refuse_other_methods() -> None:
    with pytest.raises(TraceError, match="whatif"):
        metrics.failures(stepwise(ORDER, RANKED, 5, 5))


def test_what_is_no_canvas_is_refused(tmp_path: Path) -> None:
    from tiny import TableModel

    trace = specviz.generate(TableModel(), [1, 2], "autoregressive", max_new_tokens=4)
    for metric in (metrics.step_reduction, metrics.valid_tokens_per_second, metrics.acceptance_limit):
        with pytest.raises(TraceError, match="wrote no canvas"):
            metric(trace)
    text = specviz.generate(tiny(0), [1, 2], "stepwise", max_new_tokens=4, block=4, record=None)
    with pytest.raises(TraceError, match="only the text"):
        metrics.step_reduction(text)


def test_a_damaged_canvas_is_refused() -> None:
    for wrong in ({"out_position": [1, 1]}, {"out_position": [0, 9]}, {"pred_position": [0] * 4 + [5]}):
        row = cycle(1, 0, [(0, 1, "plain"), (1, 2, "parallel")], [(-1, c, 1.0, (1, 2)) for c in range(5)])
        with pytest.raises(TraceError, match="not those of a canvas"):
            written(trace_of(run_of("fast_dllm", 5, 5), row | wrong))


def test_nodes_of_canvases_are_rated_by_their_cells() -> None:
    # The draft's second token is placed in its cell, but later than drafted. The third is never placed.
    nodes = [(2, 12, -1, "accepted"), (1, 11, 0, "rejected"), (3, 1, 1, "unjudged")]
    rows = [
        cycle(1, 0, [(0, 10, "plain")], FIRST),
        cycle(2, 1, [(2, 12, "draft"), (3, 13, "correction")], [(-1, 3, 1.0, (13, 1))], nodes),
        cycle(3, 3, [(1, 11, "plain")], [(-1, 1, 1.0, (11, 1))], end="length"),
    ]
    trace = trace_of(run_of("ssd", 4, 4, draft_length=3), *rows)
    assert metrics.on_text(trace).tolist() == [1, 1, 0]
    with pytest.raises(TraceError, match="log-odds"):
        metrics.by_score(trace)
    assert metrics.signals(trace)["score"].isna().all()
    assert metrics.acceptance_rate(trace) == pytest.approx(1 / 3)
    assert metrics.accepted_share(trace) == pytest.approx(1 / 4)
    assert metrics.by_depth(trace)["accepted"].tolist() == [1, 0, 0]
    with pytest.raises(TraceError, match="windows of canvases"):
        metrics.pass_costs(trace)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_the_states_of_ssd_are_those_of_stepwise(cache: str) -> None:
    options = {"cache": cache, "refresh": 6, "block": 4, "max_new_tokens": 10, "whole": True}
    model, prompt = tiny(3, 1), [14, 2, 30, 31, 8]
    one, two = (
        written(specviz.generate(model, prompt, method, **options, **more))[0]
        for method, more in (("stepwise", {}), ("ssd", {"draft_length": 3, "tree": "mix"}))
    )
    assert len(two.passes) < len(one.passes) == len(one) == len(two)
    assert list(zip(one.cell, one.token)) == list(zip(two.cell, two.token))
    for state in range(len(one)):
        mine, other = one.readings[state], two.readings[state]
        assert mine.cell.tolist() == other.cell.tolist()
        assert mine.token.tolist() == other.token.tolist()
        np.testing.assert_allclose(mine.odds, other.odds, rtol=1e-6, atol=1e-6)
    assert [one.work(state) for state in (0, 4, 9, 10)] == [0, 1, 2, -1]
