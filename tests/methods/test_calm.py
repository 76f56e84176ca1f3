"""CALM on a small model: its threshold and measures by hand, and its text against the pass it describes."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from tiny import TableModel, llama

import specviz
from specviz import metrics
from specviz.draft import Draft
from specviz.errors import ModelError, ParameterError, TraceError
from specviz.methods.calm import Calm, response, saturation, threshold_at
from specviz.methods.sampling import Sampling
from specviz.models import Model
from specviz.models.encoder_decoder import EncoderDecoder

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import seq2seq

torch.set_num_threads(1)
PROMPTS = [[5, 9, 3, 5, 9], [7, 2, 36]]


@pytest.fixture(scope="module")
def model() -> Model:
    return llama(seed=3, layers=5, eos=())


@pytest.fixture(scope="module")
def t5() -> EncoderDecoder:
    return EncoderDecoder(seq2seq.make("t5", dtype=torch.float32, num_decoder_layers=5, eos_token_id=None))


def run(model: Model | EncoderDecoder, method: str = "calm", **values):
    return specviz.generate(model, PROMPTS, method, max_new_tokens=20, **values)


def test_the_threshold_by_hand() -> None:
    assert threshold_at(0.8, 0.0, 7, 10) == pytest.approx(0.82)  # 0.72 + 0.1, whatever the position
    assert threshold_at(0.8, 4.0, 0, 10) == pytest.approx(0.82)
    assert threshold_at(0.8, 4.0, 5, 10) == pytest.approx(0.72 + 0.1 * math.exp(-2))
    assert threshold_at(0.0, 4.0, 10, 10) == pytest.approx(0.1 * math.exp(-4))
    assert threshold_at(1.0, 0.0, 3, 10) == 1.0
    assert threshold_at(1.0, 1e-3, 3, 10) < 1.0


def test_the_measures_by_hand() -> None:
    assert saturation(torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]])) == pytest.approx(24 / 25)
    assert saturation(torch.tensor([[1.0, 0.0]]), torch.tensor([[-2.0, 0.0]])) == pytest.approx(-1)
    assert saturation(torch.zeros(1, 2), torch.ones(1, 2)) == 0
    same = torch.full((1, 7), 0.1)
    assert saturation(same, 3 * same) <= 1  # rounding must not let it exceed the largest threshold
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    assert response(logits) == pytest.approx(0.2)


@pytest.mark.parametrize("measure", ["state", "softmax"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_threshold_that_nothing_exceeds_writes_the_target_s_text(model, measure, temperature) -> None:
    trace = run(model, threshold=1.0, measure=measure, temperature=temperature)
    want = run(model, "autoregressive", temperature=temperature)
    assert trace.run["exactness"] == "exact"
    assert trace.outputs["token"].tolist() == want.outputs["token"].tolist()
    assert trace.outputs["p"].tolist() == want.outputs["p"].tolist()
    assert set(layers(trace)) == {5}
    assert metrics.mean_layers(trace) == 5


def layers(trace) -> list[int]:
    cycles = trace.cycles
    return cycles.loc[cycles["cycle"] > 0, "control_layers"].astype(int).tolist()


@pytest.mark.parametrize(
    ("measure", "threshold", "decay", "first"),
    [("state", 0.42, 0.0, 1), ("state", 0.75, 4.0, 3), ("softmax", 0.6, 0.0, 1), ("softmax", 0.7, 8.0, 2)],
)
def test_every_token_leaves_where_it_is_first_sure(model, measure, threshold, decay, first) -> None:
    trace = run(model, measure=measure, threshold=threshold, decay=decay, first=first)
    assert trace.run["exactness"] == "lossy"
    cycles = trace.cycles[trace.cycles["cycle"] > 0].reset_index(drop=True)
    for number, prompt in enumerate(PROMPTS):
        context = model.open([prompt], 24)
        context.prefill()
        of = cycles[cycles["prompt"] == number].reset_index(drop=True)
        tokens = trace.outputs[trace.outputs["prompt"] == number]["token"].tolist()
        for t, (cycle, token) in enumerate(zip(of.itertuples(), tokens, strict=True)):
            states: dict[int, torch.Tensor] = {}
            limit = 0.9 * threshold + 0.1 * math.exp(-decay * t / 20)
            sure: list[float] = []

            def look(door, sure=sure, states=states, limit=limit):
                if measure == "softmax":
                    best = door.logits().softmax(-1)[0].sort().values
                    sure.append(float(best[-1] - best[-2]))
                else:
                    states[door.layer] = door.after[0]
                    before = states.get(door.layer - 1)
                    cosine = torch.nn.functional.cosine_similarity
                    sure.append(-1.0 if before is None else float(cosine(before, door.after[0], 0)))
                return door.layer >= first and sure[-1] > limit

            found = context.forward(Draft.empty(), leave=look)
            assert found.layers == cycle.control_layers
            assert cycle.control_threshold == pytest.approx(limit)
            assert cycle.control_confidence == pytest.approx(sure[-1], abs=1e-5)
            assert int(found.logits[0].argmax()) == token
            context.extend([token])
    assert len(set(layers(trace))) > 1  # some passes did exit early


def test_an_encoder_decoder(t5) -> None:
    want = run(t5, "autoregressive").outputs["token"].tolist()
    assert run(t5, threshold=1.0, measure="softmax").outputs["token"].tolist() == want
    trace = run(t5, threshold=0.0)
    assert min(layers(trace)) < 5
    assert trace.outputs["token"].tolist() != want


def test_how_deep_the_tokens_went(model) -> None:
    trace = run(model, measure="softmax", threshold=0.6)
    table = metrics.by_layer(trace)
    assert table["tokens"].tolist() == [layers(trace).count(i) for i in range(1, len(table) + 1)]
    assert table["share"].sum() == pytest.approx(1)
    assert metrics.mean_layers(trace) == pytest.approx(sum(layers(trace)) / len(layers(trace)))
    plain = run(model, "autoregressive")
    assert math.isnan(metrics.mean_layers(plain))
    with pytest.raises(TraceError, match="no pass of this trace could exit early"):
        metrics.by_layer(plain)


def test_refused_before_any_work(model) -> None:
    modules = Model(model.net, name="modules", plain=False)
    with pytest.raises(
        ModelError, match=r"^a pass of modules \(llama\) cannot exit early: .* modules"
    ) as error:
        run(modules)
    assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match=r"^calm exits passes early, and table cannot: "):
        run(TableModel())
    with pytest.raises(ParameterError, match=r"^first=5: llama-3 has 5 layers, .* layers 1 to 4"):
        run(model, first=5)
    with pytest.raises(ParameterError, match=r"^calm exits each token's pass at a different layer"):
        run(model, batch=2)
    for wrong in ({"threshold": 1.1}, {"decay": -1}, {"first": 0}, {"measure": "entropy"}):
        with pytest.raises(ParameterError, match=f"^{next(iter(wrong))} must"):
            Calm(**wrong)
    # A threshold of 1 never exits, so any model will do.
    assert len(run(modules, threshold=1.0).outputs) == 40
    assert Calm(threshold=1.0, decay=0.1).exactness(Sampling(), "float32") == "lossy"
