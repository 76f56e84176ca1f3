"""Early exit: BiLD's decisions with the target's own first layers, causal and encoder-decoder alike."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from tiny import TableModel, llama

import specviz
from specviz.errors import ModelError, ParameterError
from specviz.loop import decode
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.view.picture import headline

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
from seq2seq import make

torch.set_num_threads(1)
PROMPT = [3, 4, 5, 6]


@pytest.fixture(scope="module", params=["llama", "t5", "bart"])
def model(request: pytest.FixtureRequest):
    return llama(seed=4, layers=3) if request.param == "llama" else EncoderDecoder(make(request.param, 3))


def tokens(trace) -> list[int]:
    return trace.outputs["token"].tolist()


def test_it_is_bild_with_the_first_layers(model) -> None:
    for layers in (1, 2):
        own = specviz.generate(
            model, PROMPT, "early_exit", layers=layers, fallback=0.3, rollback=3.0, max_new_tokens=24
        )
        other = specviz.generate(
            model, PROMPT, "bild", draft=model.first(layers), fallback=0.3, rollback=3.0, max_new_tokens=24
        )
        assert tokens(own) == tokens(other)
        assert own.nodes["status"].tolist() == other.nodes["status"].tolist()
        assert own.run["draft"]["name"] == f"{model.name}[:{layers}]"
        assert (own.passes["model"] == "draft").any()
        again = own.recheck()
        assert again["agrees"].all()
        assert again["margin"].tolist() == other.recheck()["margin"].tolist()
        assert [name for name, *_ in headline(own)] == [name for name, *_ in headline(other)]


def test_without_a_rollback_threshold_it_is_greedy(model) -> None:
    greedy = specviz.generate(model, PROMPT, "autoregressive", max_new_tokens=24)
    made = specviz.generate(
        model, PROMPT, "early_exit", fallback=0.0, rollback=0.0, cap=3, review_end=True, max_new_tokens=24
    )
    assert tokens(made) == tokens(greedy)
    assert made.run["exactness"] == "exact up to ties"


def test_a_layer_that_is_not_there_is_refused_before_any_work(model) -> None:
    with pytest.raises(ModelError, match=r"has 3 layers; first\(4\) is out of range"):
        specviz.generate(model, PROMPT, "early_exit", layers=4)
    with pytest.raises(ParameterError, match="layers must be at least 1"):
        specviz.generate(model, PROMPT, "early_exit", layers=0)


def test_a_loop_without_a_run_finds_the_drafter_too() -> None:
    target = TableModel(6, 3)
    method = specviz.method("early_exit", fallback=0.0, rollback=0.0, cap=2, review_end=True)
    cycles = list(decode(target, [1, 2], method, max_new_tokens=12))
    plain = list(decode(target, [1, 2], specviz.method("autoregressive"), max_new_tokens=12))
    assert [t for c in cycles for t in c.tokens] == [t for c in plain for t in c.tokens]
