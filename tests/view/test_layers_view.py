"""The picture of each token's exit layer."""

from __future__ import annotations

import matplotlib
import pytest
import torch
from tiny import llama

import specviz
import traces
from specviz import view
from specviz.errors import TraceError

matplotlib.use("agg")
torch.set_num_threads(1)


def test_a_column_a_token_filled_as_far_as_it_went() -> None:
    model = llama(seed=3, layers=5, eos=())
    trace = specviz.generate(model, [[5, 9, 3]], "calm", max_new_tokens=12, measure="softmax", threshold=0.6)
    cycles = trace.cycles
    layers = cycles.loc[cycles["cycle"] > 0, "control_layers"].astype(int).tolist()
    ax = view.exit_layers(trace)
    grey = matplotlib.colors.to_rgba(view.layers.SKIPPED)
    for at, layer in enumerate(layers):
        column = [bar for bar in ax.patches if abs(bar.get_x() + bar.get_width() / 2 - at) < 0.1]
        assert [bar.get_facecolor() == grey for bar in column] == [i >= layer for i in range(5)]
    assert len(ax.get_xticklabels()) == len(layers) == 12
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert f"ran through all 5 ({layers.count(5)})" in words
    assert words[0] == f"exited after layer {min(layers)} ({layers.count(min(layers))})"
    assert words[-1] == "skipped"
    assert [text.get_text() for text in ax.get_yticklabels()] == list("12345")
    deep = llama(seed=3, layers=30, eos=())
    many = specviz.generate(deep, [[5, 9, 3]], "calm", max_new_tokens=4, measure="softmax", threshold=0.6)
    ax = view.exit_layers(many)
    assert ax.get_legend() is None and "exit layer" in ax.figure.axes[-1].get_ylabel()
    assert [text.get_text() for text in ax.get_yticklabels()] == [str(n) for n in range(2, 31, 2)]
    few = view.exit_layers(trace, most=4)
    assert "8 more tokens are in the trace" in few.get_title(loc="left")
    with pytest.raises(TraceError, match="no pass of prompt 0 could exit early"):
        view.exit_layers(traces.build("autoregressive"))
