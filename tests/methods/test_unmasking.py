"""Methods that write canvases: the order of cells, the end of a text, what is refused and recorded."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import specviz
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.methods.unmasking import COARSE, GRID, CellReading, log_odds
from specviz.rules.cells import mix_order

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from canvases import plain, tiny

torch.set_num_threads(1)
PROMPT = [9, 2, 11, 4]
METHODS = ("stepwise", "ssd", "fast_dllm", "entropy_bounded")


def told(cells: list[int], odds: list[float], work: list[bool] | None = None) -> CellReading:
    n = len(cells)
    mine = np.ones(n, bool) if work is None else np.array(work)
    return CellReading(np.full(n, -1), np.array(cells), np.arange(n), np.array(odds), np.zeros(n), mine)


def test_log_odds_do_not_saturate() -> None:
    logits = torch.zeros(4, 7)
    logits[:, 2] = torch.tensor([3.0, 40.0, 60.0, 130.0])
    token, odds = log_odds(logits)
    assert token.tolist() == [2, 2, 2, 2]
    want = torch.tensor([3.0, 40.0, 60.0, 130.0]) - np.log(6)
    torch.testing.assert_close(odds, want, rtol=0, atol=COARSE)
    assert (logits.softmax(-1)[1:, 2] == 1).all()  # although the probabilities tie
    p = logits.double().softmax(-1)[0, 2]
    torch.testing.assert_close(odds[0].double(), (p / (1 - p)).log(), rtol=0, atol=COARSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_equal_but_for_rounding_ties(dtype: torch.dtype) -> None:
    grid = GRID.get(dtype, COARSE)
    logits = torch.tensor([[1.0, 4.0, 4.0], [1.0, 4.0, 4.0]], dtype=dtype)
    logits[0, 2] += grid / 100
    token, odds = log_odds(logits)
    assert token.tolist() == [1, 1]
    assert odds[0] == odds[1]
    logits[0, 2] += 2 * grid
    assert log_odds(logits)[0].tolist() == [2, 1]


def test_the_surest_cell_of_the_block_in_work_is_next() -> None:
    assert told([0, 3, 4], [1.0, 2.0, 3.0], [True, True, False]).surest(-1) == 1
    assert told([0, 3, 4], [2.0, 2.0, 2.0]).surest(-1) == 0  # the leftmost of equal cells
    assert told([0], [1.0]).surest(0) is None
    certain = told([0, 3, 4], [9.0, 12.0, 14.0])
    assert certain.surest(-1) == 2
    certain.sure = 10.0
    assert certain.surest(-1) == 1  # above `sure` all cells count as equally sure


def test_the_mix_order_tree_counts_as_table_3_does() -> None:
    for n, count in ((3, 6), (4, 8), (5, 10)):
        cells, parents = mix_order(np.arange(n), block=8)
        assert 1 + len(cells) == count
        skips = range(n, len(cells))
        assert [cells[i] for i in skips] == list(range(1, n))
        assert [parents[i] for i in skips] == list(range(-1, n - 2))
    cells, _ = mix_order(np.array([6, 7, 8, 9]), block=8)  # 8 cannot precede 7: it is in another block
    assert cells.tolist() == [6, 7, 8, 9, 7, 9]


@pytest.mark.parametrize("shift", [0, 1])
def test_stepwise_is_what_transformers_would_write(shift: int) -> None:
    model = tiny(2, shift)
    trace = specviz.generate(model, PROMPT, "stepwise", block=3, max_new_tokens=8, whole=True)
    text, order = [*PROMPT, *[model.mask] * 8], []
    for step in range(8):
        cells = [
            c for c in range(step // 3 * 3, min(step // 3 * 3 + 3, 8)) if c not in [at for at, _ in order]
        ]
        token, odds = log_odds(plain(model, text)[[4 + c for c in cells]])
        best = int(odds.argmax())
        order.append((cells[best], int(token[best])))
        text[4 + cells[best]] = int(token[best])
    out = trace.outputs
    assert list(zip(out["position"], out["token"])) == order
    assert out["order"].tolist() == list(range(8))
    assert trace.cycles["block"].tolist()[1:] == [0, 0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("method", METHODS)
def test_a_text_ends_behind_a_complete_block_with_an_end_token(method: str) -> None:
    model = tiny(2, eos=())
    plenty = {"block": 3, "max_new_tokens": 12}
    everything = specviz.generate(model, PROMPT, method, **plenty)
    assert len(everything.outputs) == 12 and everything.cycles["end"].tolist()[-1] == "length"
    by_cell = everything.outputs.sort_values("position")["token"].tolist()
    model.eos = (by_cell[4],)
    first = by_cell.index(by_cell[4])
    trace = specviz.generate(model, PROMPT, method, **plenty)
    assert len(trace.outputs) == first // 3 * 3 + 3
    assert trace.cycles["end"].tolist()[-1] == "eos"
    kept = trace.outputs[trace.outputs["kept"]]
    assert sorted(kept["position"]) == list(
        range(first + 1)
    )  # the text, up to and with its end token; what follows is padding
    again = specviz.generate(model, PROMPT, method, whole=True, **plenty)
    assert len(again.outputs) == 12 and again.cycles["end"].tolist()[-1] == "eos"
    assert again.text == trace.text


def test_parallel_samplers_place_what_their_rules_say() -> None:
    model = tiny(3)
    for method, setting in (("fast_dllm", {"threshold": 0.2}), ("entropy_bounded", {"bound": 4.0})):
        trace = specviz.generate(model, PROMPT, method, block=6, max_new_tokens=12, record="all", **setting)
        assert len(trace.passes) < 12
        assert set(trace.outputs["origin"]) == {"plain", "parallel"}
    one = specviz.generate(model, PROMPT, "fast_dllm", threshold=1.0, block=6, max_new_tokens=12)
    step = specviz.generate(model, PROMPT, "stepwise", block=6, max_new_tokens=12)
    assert one.outputs["token"].tolist() == step.outputs["token"].tolist()
    assert (one.run["exactness"], trace.run["exactness"]) == ("exact", "lossy")
    all_at_once = specviz.generate(model, PROMPT, "fast_dllm", threshold=0.0, block=6, max_new_tokens=12)
    assert len(all_at_once.passes) == 2


def test_what_is_recorded_of_a_pass() -> None:
    model = tiny(4)
    trace = specviz.generate(model, PROMPT, "ssd", block=4, cache="dual", refresh=5, max_new_tokens=12)
    assert trace.run["canvas"] == {
        "length": 12, "block": 4, "cache": "dual", "refresh": 5, "cache_rule": "predictor",
        "mask": model.mask, "shift": 0,
    }  # fmt: skip
    cycles = trace.cycles[1:]
    placed = cycles["keep"].to_numpy()
    since = 0
    for refreshed, before, after in zip(cycles["refreshed"], placed, [*placed[1:], 12]):
        assert refreshed == (before == 0 or since >= 5)
        since = (0 if refreshed else since) + after - before
        assert since <= 5  # a refresh limits the chain
    nodes, out = trace.nodes, trace.outputs
    assert set(nodes["status"]) <= {"accepted", "rejected", "unjudged", "cut"}
    assert sorted(out["position"]) == list(range(12))
    drafted = nodes[nodes["status"] == "accepted"]
    assert drafted["position"].tolist() == out[out["origin"] == "draft"]["position"].tolist()
    assert np.isfinite(out["p"].to_numpy(float)).all()
    assert np.isfinite(nodes[nodes["status"] != "unjudged"]["p"].to_numpy(float)).all()


def test_nothing_is_recorded_that_was_not_asked_for() -> None:
    model = tiny(4)
    trace = specviz.generate(model, PROMPT, "ssd", max_new_tokens=12, record=None)
    full = specviz.generate(model, PROMPT, "ssd", max_new_tokens=12, record="all")
    assert trace.text == full.text
    assert trace.tokens() == full.tokens()


def test_no_cell_ends_as_a_mask() -> None:
    for seed in range(5):
        model = tiny(seed, eos=())
        free = specviz.generate(model, PROMPT, "stepwise", block=4, max_new_tokens=12).outputs["token"]
        model.mask = int(free.mode()[0])  # otherwise the most frequent token
        out = specviz.generate(model, PROMPT, "ssd", block=4, max_new_tokens=12).outputs
        assert len(out) == 12 and model.mask not in set(out["token"])


def test_scores_that_are_no_numbers_are_refused() -> None:
    model = tiny(0)
    model.net.lm_head.weight.data[7] = torch.nan
    with pytest.raises(ModelError, match="not numbers"):
        specviz.generate(model, PROMPT, "ssd", max_new_tokens=8)


def test_an_open_cell_ends_the_text() -> None:
    model = tiny(2)
    run = specviz.stream(model, PROMPT, "stepwise", block=8, max_new_tokens=8)
    cells = []
    while 0 not in cells or len(cells) == 1:
        cells += next(run).cells
    run.close()
    begun = next(cell for cell in range(9) if cell not in cells)
    assert len(run.trace.outputs[run.trace.outputs["kept"]]) == begun < 8


def test_what_is_held_for_the_record_is_what_is_kept() -> None:
    model = tiny(3)
    from specviz.loop.reduce import kept_cells
    from specviz.loop.unmasking import decode_canvases
    from specviz.methods import make

    smaller = 0
    for (cycle,) in decode_canvases(model, [PROMPT], make("ssd", tree="mix", block=8), max_new_tokens=16):
        if cycle.cells_read is not None:
            kept = kept_cells(cycle, False)
            read = kept.cells_read
            assert len(kept.scores) == len(read.logits) == len(read.cell) == len(kept.verdict.read_odds)
            assert set(read.canvas) == {-1, *cycle.verdict.path}
            smaller += len(read.canvas) < len(cycle.cells_read.canvas)
    assert smaller


@pytest.mark.parametrize("tail", ["stepwise", "shorter"])
def test_a_short_canvas_is_drafted_as_far_as_it_goes(tail):
    model = tiny(0)
    for length in (1, 2, 3):
        plain = specviz.generate(model, PROMPT, "stepwise", max_new_tokens=length)
        assert specviz.generate(model, PROMPT, "ssd", tail=tail, max_new_tokens=length).texts == plain.texts


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(0)
    with pytest.raises(ParameterError, match="draft_length of 9 is more than the canvas' 8 cells"):
        specviz.generate(model, PROMPT, "ssd", draft_length=9, max_new_tokens=8)
    specviz.generate(model, PROMPT, "ssd", draft_length=9, tail="shorter", max_new_tokens=8)
    with pytest.raises(
        ParameterError, match="continues a text token by token, and tiny is a masked-diffusion"
    ):
        specviz.generate(model, PROMPT, "autoregressive")
    with pytest.raises(ParameterError, match="ssd decodes greedily"):
        specviz.generate(model, PROMPT, "ssd", temperature=1.0)
    with pytest.raises(PromptError, match="a canvas of 61 cells after it exceeds tiny's 64"):
        specviz.generate(model, PROMPT, "stepwise", max_new_tokens=61)
    with pytest.raises(ParameterError, match="a canvas does not have"):
        specviz.generate(model, PROMPT, "ssd", record="dense")
    with pytest.raises(ParameterError, match="cache must be one of none, dual"):
        specviz.generate(model, PROMPT, "ssd", cache="prefix")


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_writes_what_single_prompts_do(method: str) -> None:
    model = tiny(5, 1)
    prompts = [PROMPT, [1, 2], [12, 3, 4, 5, 6, 7]]
    for cache in ("none", "dual"):
        setting = {"block": 4, "cache": cache, "refresh": 3, "max_new_tokens": 10}
        one, two = (specviz.generate(model, prompts, method, batch=b, **setting).outputs for b in (1, 2))
        for column in ("prompt", "position", "token", "order", "origin"):
            assert one[column].tolist() == two[column].tolist()
