"""The host waits for the device once per cycle, and once per token if a method must read each token."""

from __future__ import annotations

import pytest
import torch
from elsewhere import Elsewhere, move
from reads import Waits
from tiny import llama

from specviz import methods
from specviz.loop.cycle import decode
from specviz.loop.updates import decode_stream
from specviz.methods.sampling import Sampling
from specviz.models import Model
from specviz.streams import Stream, Update

GREEDY, WARM = Sampling(), Sampling(temperature=0.9, top_p=0.95)
PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("autoregressive", {}),
        ("speculative", {}),
        ("speculative", {"stop": 0.3}),
        ("prompt_lookup", {}),
        ("bild", {"fallback": 0.3}),
        ("unispec", {}),
        ("token_recycling", {}),
        ("lookahead", {}),
        ("spectra", {}),
    ],
)
def test_the_host_waits_once_a_cycle(name: str, given: dict[str, float], sampling: Sampling) -> None:
    target = llama(eos=())
    draft = llama(seed=3, eos=(), like=target, noise=0.3)
    method = methods.find(name)(**given)
    looks = 0  # reads of drafted tokens, by methods that stop when the draft model is unsure
    nets = [move(model.net) for model in (target, draft)]
    with Elsewhere():
        target, draft = (Model(net) for net in nets)
        run = decode(
            target, PROMPT, method, drafter=draft if method.needs_draft else None, sampling=sampling,
            max_new_tokens=16,
        )  # fmt: skip
        next(run)  # the prefill
        with Waits("cuda") as waits, torch.inference_mode():
            cycles = list(run)
    drafted = sum(len(cycle.draft) for cycle in cycles)
    if given:
        looks = sum(name == "draft" for cycle in cycles for name, *_ in cycle.passes)
    assert drafted or name == "autoregressive"
    assert waits.reads.total() == len(cycles) + looks
    assert not waits.sends


@pytest.mark.parametrize(
    ("name", "given", "look"),
    [
        ("specdec", {}, ""),
        ("oracle", {}, ""),
        ("cm_asd", {"adaptive_drafting": False}, ""),
        ("cm_asd", {}, "draft"),  # the window follows from the draft
        ("cm_asd", {"controller": "early_stop"}, "token"),
    ],
)
def test_what_looks_at_confidences_waits_for_them(name: str, given: dict[str, object], look: str) -> None:
    target = llama(eos=())
    draft = llama(seed=3, eos=(), like=target, noise=0.3)
    nets = [move(model.net) for model in (target, draft)]
    with Elsewhere():
        target, draft = (Model(net) for net in nets)
        run = decode(target, PROMPT, methods.find(name)(**given), drafter=draft, max_new_tokens=16)
        next(run)
        with Waits("cuda") as waits, torch.inference_mode():
            cycles = list(run)
    drafted = sum(len(cycle.draft) > 0 for cycle in cycles)
    asked = sum(name == "draft" for cycle in cycles for name, *_ in cycle.passes)
    looks = {"": 0, "draft": drafted, "token": asked}[look]
    assert drafted and waits.reads.total() == len(cycles) + looks
    assert not waits.sends


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("given", [{"mode": "rt"}, {"beta": 0.2}, {"mode": "cd"}])
def test_an_update_costs_no_wait_of_its_own(given: dict[str, object], sampling: Sampling) -> None:
    net = move(llama(eos=()).net)
    stream = Stream([Update("x" * n) for n in (3, 9, 30, 30, 5)])
    method = methods.find("retranslate")(**given)
    with Elsewhere():
        target = Model(net)
        with Waits("cuda") as waits, torch.inference_mode():
            cycles = list(
                decode_stream(
                    target,
                    stream,
                    method,
                    template=lambda text: [2] * len(text),
                    sampling=sampling,
                    max_new_tokens=12,
                )
            )
    judged = [c for c in cycles if c.verdict is not None and c.scores is not None]
    carried = sum(c.scores is None for c in cycles if c.verdict is not None)  # cd: known without a pass
    assert carried == (4 if given.get("mode") == "cd" else 0)
    assert waits.reads.total() == len(judged) + carried
    assert not waits.sends


def test_what_waits_is_counted() -> None:
    row, at = torch.arange(4.0), torch.tensor(2)
    for read in (
        lambda: row[at], lambda: at.item(), lambda: bool(at), lambda: row[row > 1], lambda: row.tolist(),
        lambda: row.numpy(), lambda: torch.equal(row, row),
    ):  # fmt: skip
        for mode in (torch.inference_mode(), torch.no_grad()):
            with mode, Waits() as waits:
                read()
            assert (waits.reads.total(), waits.sends.total()) == (1, 0)
    for send in (lambda: torch.tensor([1], device=row.device), lambda: row[[1, 2]]):
        with Waits() as waits:
            send()
        assert (waits.reads.total(), waits.sends.total()) == (0, 1)
    with Waits() as waits:
        row.index_select(0, at.view(1)).softmax(-1)
    assert not waits.reads + waits.sends


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("given", [{"depth": 3, "branches": 3}, {"tree": "static"}])
def test_a_drafter_of_trees_waits_for_its_tree_and_for_the_verdict(
    given: dict[str, object], sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaConfig

    from specviz.models import eagle_model
    from specviz.models.additions import EagleHead
    from specviz.models.eagle import Eagle

    target = llama(eos=())
    own = target.net.config
    config = LlamaConfig(
        vocab_size=own.vocab_size, hidden_size=own.hidden_size, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, max_position_embeddings=96,
    )  # fmt: skip
    weights = Eagle(config, 3).requires_grad_(False).eval()
    head = EagleHead(weights, {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}, "head")
    net, own = move(target.net), move(weights)
    monkeypatch.setattr(eagle_model, "bound", lambda *_: own)  # modules cannot move to a fake device
    with Elsewhere():
        target = Model(net)
        run = decode(
            target, PROMPT, methods.find("eagle")(**given), drafter=head.on(target), sampling=sampling,
            max_new_tokens=24,
        )  # fmt: skip
        next(run)
        with Waits("cuda") as waits, torch.inference_mode():
            cycles = list(run)
    trees = sum(len(cycle.draft) > 0 for cycle in cycles)
    assert trees
    assert waits.reads.total() == len(cycles) + trees
    assert not waits.sends
