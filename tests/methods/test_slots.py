"""The parallel drafter, used by the methods that draft with a model."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from identities import validate

import specviz
from specviz.errors import ParameterError
from specviz.loop import decode
from specviz.methods import find
from specviz.methods.sampling import Sampling

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import added

torch.set_num_threads(1)
PROMPTS = [[3, 1, 4, 2], [2], [0, 0, 1], [4, 3]]
EXACT = [
    ("specdec", {"draft_length": 5, "top_beta": 1}),
    ("specdec", {"draft_length": added.SLOTS, "tau_base": 0.0}),
    ("cm_asd", {"k_max": 6, "tau_base": 0.0, "gamma": 0.0, "top_beta": 1}),
    ("cm_asd", {"k_max": 6, "tau_base": 0.0, "gamma": 0.0, "top_beta": 1, "controller": "early_stop"}),
    ("cm_asd", {"k_max": 6, "tau_base": 0.0, "gamma": 0.0, "top_beta": 1, "adaptive_drafting": False}),
    ("speculative", {"draft_length": 4}),
    ("speculative", {"draft_length": 6, "stop": 0.3}),
    ("bild", {"cap": 4, "rollback": 0.0, "review_end": True, "fallback": 0.2}),
    ("oracle", {"least": 1.0}),
]


@pytest.fixture(scope="module")
def model():
    return added.target("mt5", seed=4)


def text(cycles):
    return [t for cycle in cycles for t in cycle.tokens]


def run(model, name, values, prompt, limit=24, eos=(), **options):
    drafter = added.slots(model, seed=3).on(model)
    method = find(name)(**values)
    return list(decode(model, prompt, method, drafter=drafter, max_new_tokens=limit, eos=eos, **options))


@pytest.mark.parametrize(("name", "values"), EXACT)
@pytest.mark.parametrize("eos", [(), (1,)])
def test_an_exact_setting_is_the_targets_text(model, name, values, eos) -> None:
    accepted = 0
    for prompt in PROMPTS:
        for limit in (1, 2, 24):
            own = text(decode(model, prompt, find("autoregressive")(), max_new_tokens=limit, eos=eos))
            cycles = run(model, name, values, prompt, limit, eos)
            assert text(cycles) == own
            accepted += sum(c.status.count("accepted") for c in cycles)
    assert accepted > 3 or name in ("bild", "oracle")


@pytest.mark.parametrize(("name", "values"), EXACT)
def test_a_cycle_has_one_pass_of_it_and_drafts_what_the_trained_module_says(model, name, values) -> None:
    made = added.slots(model, seed=3)
    seen = 0
    for prompt in PROMPTS:
        written: list[int] = []
        for cycle in run(model, name, values, prompt):
            if cycle.draft is not None and len(cycle.draft):
                unsent = cycle.verdict.unsent
                tokens = [*cycle.draft.tokens.tolist(), *(unsent.tokens if unsent else [])]
                rows = [*cycle.draft.logits, *(unsent.logits if unsent else [])]
                want = added.filled(model, made, prompt, written, len(tokens))
                torch.testing.assert_close(torch.stack(rows), want, atol=1e-5, rtol=0)
                assert tokens == want.argmax(-1).tolist()
                fed = [tokens for model_, _, tokens, *_ in cycle.passes if model_ == "draft"]
                assert len(fed) == 1
                seen += 1
            written += cycle.tokens
    assert seen > 8


def test_a_lossy_window_follows_the_confidences_of_the_block(model) -> None:
    method = find("cm_asd")(k_max=6, alpha=0.8)
    drafter = added.slots(model, seed=3).on(model)
    cycles = list(decode(model, PROMPTS[3], method, drafter=drafter, max_new_tokens=30, eos=()))
    sent, left = set(), 30
    for cycle in cycles[1:-1]:
        drafted = len(cycle.draft) + (len(cycle.verdict.unsent.tokens) if cycle.verdict.unsent else 0)
        mean = cycle.control["confidence"]
        assert drafted == min(6, left - 1)
        assert len(cycle.draft) == min(drafted, max(1, math.floor(0.8 * mean * 6)))
        sent.add(len(cycle.draft))
        left -= len(cycle.tokens)
    assert len(sent) > 1


def test_a_sampled_token_is_tested_against_the_slots_own_distribution(model) -> None:
    made, sampling = added.slots(model, seed=3), Sampling(temperature=0.8, top_p=0.95)
    for prompt in PROMPTS:
        written: list[int] = []
        for cycle in run(model, "speculative", {"draft_length": 5}, prompt, sampling=sampling):
            if cycle.draft is not None and len(cycle.draft):
                rows = added.filled(model, made, prompt, written, len(cycle.draft))
                want = torch.stack([sampling.probabilities(row) for row in rows])
                torch.testing.assert_close(cycle.draft.q, want, atol=1e-5, rtol=0)
            written += cycle.tokens


def test_the_record(model) -> None:
    trace = specviz.generate(
        model, PROMPTS, "cm_asd", draft=added.slots(model, seed=3), k_max=6, max_new_tokens=20
    )
    validate(trace)
    assert set(trace.nodes["source"]) == {"slots"}
    assert {"accepted", "unsent"} <= set(trace.nodes["status"])
    assert trace.nodes[["entropy", "confidence", "score"]].notna().all(axis=None)
    passes = trace.passes[trace.passes["model"] == "draft"]
    cycles = trace.cycles[trace.cycles["cycle"] > 0].set_index(["prompt", "cycle"])
    assert passes.groupby(["prompt", "cycle"]).size().max() == 1
    # A pass reads the tokens written since the last one, and the slots.
    said = passes.set_index(["prompt", "cycle"])["tokens"]
    emitted = trace.outputs.groupby(["prompt", "cycle"]).size()
    drafted = trace.nodes.groupby(["prompt", "cycle"]).size()
    for key, tokens in said.items():
        before = 1 if key[1] == 1 else emitted[key[0], key[1] - 1]
        assert tokens == before + drafted[key]
    assert len(said) >= len(cycles) - len(PROMPTS)
    assert trace.run["draft"]["kind"] == "slots"


def test_the_encoder_runs_once(model, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = model.encoder.net.forward
    monkeypatch.setattr(model.encoder.net, "forward", lambda *a, **k: (calls.append(1), forward(*a, **k))[1])
    specviz.generate(
        model, PROMPTS, "specdec", draft=added.slots(model, seed=3), draft_length=5, max_new_tokens=12
    )
    assert len(calls) == len(PROMPTS)


@pytest.mark.parametrize(("name", "values"), EXACT[:3] + EXACT[5:6])
def test_a_batch_is_what_each_prompt_gives_alone(model, name, values) -> None:
    options = {"draft": added.slots(model, seed=3), "max_new_tokens": 16} | values
    alone = specviz.generate(model, PROMPTS, name, **options)
    for rows in (2, 4):
        found = specviz.generate(model, PROMPTS, name, batch=rows, **options)
        assert found.texts == alone.texts
        assert np.array_equal(np.sort(found.nodes["token"]), np.sort(alone.nodes["token"]))


def test_a_lowered_block_is_whole_again_with_another_drafter(model) -> None:
    method = specviz.methods.find("specdec")()
    for draft, length in ((added.slots(model, seed=3), 7), (model, 10)):
        trace = specviz.generate(model, PROMPTS[:1], method, draft=draft, max_new_tokens=4)
        assert trace.run["parameters"]["draft_length"] == length
        if length == 7:
            copy = method.again()
    assert specviz.methods.settings_of(copy, {}) == ("specdec", {})
    trace = specviz.generate(model, PROMPTS[:1], copy, draft=model, max_new_tokens=4)
    assert trace.run["parameters"]["draft_length"] == 10


def test_a_block_beyond_the_slots_is_refused(model) -> None:
    for name, values in (("specdec", {"draft_length": 8}), ("cm_asd", {"k_max": 8}), ("bild", {"cap": 8})):
        with pytest.raises(ParameterError, match=rf"slots for 7: set {next(iter(values))} to at most that"):
            specviz.generate(model, PROMPTS, name, draft=added.slots(model, seed=3), **values)
