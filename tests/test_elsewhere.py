"""Every method on a separate device: nothing is left on the CPU or read before it is copied over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from elsewhere import CUDA, Elsewhere, move, there
from tiny import llama

import specviz
from specviz import methods
from specviz.draft import Draft
from specviz.loop import clock
from specviz.loop.updates import decode_stream
from specviz.methods.sampling import Sampling
from specviz.models import Model, kernels
from specviz.streams import Stream, Update

PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 8, 5, 6], [9, 3]]


def pair() -> tuple[Model, Model]:
    target = llama(eos=())
    return target, llama(seed=3, eos=(), like=target, noise=0.3)


@pytest.fixture
def no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the host's clock and no memory figures, the other code that calls CUDA itself."""
    monkeypatch.setattr(clock, "EventClock", lambda device: clock.Clock())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "none")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)


@pytest.mark.usefixtures("no_events")
@pytest.mark.parametrize(
    ("temperature", "plain"), [(0.0, None), (0.9, None), (0.0, False)],
    ids=["greedy", "sampled", "transformers' modules"],
)  # fmt: skip
@pytest.mark.parametrize(
    "name", [n for n in methods.names("prompt") if methods.find(n).drafts_with == "model"]
)
def test_a_run_on_a_device(name: str, temperature: float, plain: bool | None) -> None:
    if temperature and methods.find(name).only_greedy:
        pytest.skip("it only decodes greedily")
    if plain is False and name == "calm":
        pytest.skip("its passes exit early, which transformers' modules cannot")

    def run(nets: list[torch.nn.Module]) -> specviz.Trace:
        target, draft = (Model(net, name=str(i), plain=plain) for i, net in enumerate(nets))
        given = {"draft": draft} if methods.find(name).needs_draft else {}
        return specviz.generate(
            target, PROMPTS, name, max_new_tokens=8, temperature=temperature,
            top_p=0.9 if temperature else 1.0, record="dense" if temperature == 0 else "all", **given,
        )  # fmt: skip

    want = run([model.net for model in pair()])
    away = [move(model.net) for model in pair()]
    with Elsewhere():
        assert next(away[0].parameters()).device == CUDA
        found = run(away)
    assert found.outputs["token"].tolist() == want.outputs["token"].tolist()
    assert found.nodes["status"].tolist() == want.nodes["status"].tolist()
    np.testing.assert_allclose(found.nodes["p"], want.nodes["p"], atol=1e-4)


def test_packed_matrices_that_move_are_plain_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(kernels.VARIABLE)
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    packed = {layout: {1: [float(layout != kernels.ONEDNN)]} for layout in kernels.LAYOUTS}
    monkeypatch.setattr(
        kernels, "measure", lambda matrices, layouts: {each: packed[each] for each in layouts}
    )
    model = llama(eos=())
    if model.kernels != kernels.ONEDNN:
        pytest.skip("oneDNN's layout does not serve this processor")
    draft = Draft.chain([3, 4])
    want = model.open([[1, 2]], 4).forward(draft).logits[0]
    for weight in model.net.parameters():
        weight.data = weight.data.clone()  # a device has memory of its own
    move(model.net)
    with Elsewhere():
        found = model.open([[1, 2]], 4).forward(draft).logits[0]
        assert model.kernels == kernels.PLAIN and found.device == CUDA
        np.testing.assert_allclose(found.cpu(), want, atol=1e-4)


@pytest.mark.usefixtures("no_events")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(
    "values", [{"mode": "rt"}, {"beta": 0.2}, {"beta": 0.9, "k": 2}, {"mode": "cd"}], ids=str
)
def test_a_stream_on_a_device(values: dict[str, object], temperature: float) -> None:
    sources = [PROMPTS[0][:4], PROMPTS[0], PROMPTS[0][:6], PROMPTS[0][:6], PROMPTS[1]]

    def run(net: torch.nn.Module) -> list[int]:
        model = Model(net)
        stream = Stream([Update(" ".join(map(str, source))) for source in sources])
        method = methods.make("retranslate", **values)
        cycles = decode_stream(
            model, stream, method, sampling=Sampling(temperature), max_new_tokens=9,
            template=lambda text: [2, *map(int, text.split()), 3],
        )  # fmt: skip
        return [token for cycle in cycles for token in cycle.tokens]

    want = run(pair()[0].net)
    away = move(pair()[0].net)
    with Elsewhere():
        assert run(away) == want


def test_marks_are_compared_in_pairs() -> None:
    mark = object()
    assert clock.EventClock().seconds([mark, mark], [mark, mark]).tolist() == [0, 0]
    with pytest.raises(ValueError, match="longer"):
        clock.EventClock().seconds([mark], [mark, mark])


@pytest.mark.usefixtures("no_events")
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_an_inherited_verifier_takes_tokens_that_stay_on_the_device(temperature: float) -> None:
    class Copies(methods.Method):
        name = "copies"

        def draft(self, left: int) -> Draft:
            tokens = torch.tensor([8, 5][: left - 1], dtype=torch.long)
            if left == 1:
                return Draft.empty()
            return Draft.chain(there(tokens) if self.session.target.device == CUDA else tokens)

    def run(net: torch.nn.Module) -> list[int]:
        given = {"max_new_tokens": 8, "temperature": temperature}
        return specviz.generate(Model(net), PROMPTS[:1], Copies(), **given).outputs["token"].tolist()

    want = run(pair()[0].net)
    away = move(pair()[0].net)
    with Elsewhere():
        assert run(away) == want


def test_events_are_recorded_on_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: SimpleNamespace(record=asked.append))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    clock.clock_for("cuda:1").mark()
    assert asked == ["the stream of cuda:1"]


def test_what_a_device_refuses_is_refused() -> None:
    row, other = there(torch.arange(4.0)), torch.ones(4)
    with Elsewhere():
        for wrong in (
            lambda: row + other, lambda: torch.cat([other, row]), lambda: other[row.long()],
            lambda: row.numpy(), lambda: np.asarray(row),
        ):  # fmt: skip
            with pytest.raises((RuntimeError, TypeError), match="cuda:0"):
                wrong()
        assert (row + other.to(row.device)).device == torch.zeros(2, device=CUDA).device == CUDA
        assert row[1:].cpu().numpy().tolist() == [1, 2, 3]
        row[0] = 7
        row += 1
        assert row.device == CUDA
        assert row.tolist() == [8, 2, 3, 4]
