"""SmolLM2-135M itself: its weights on torch and llama.cpp, and the exact methods' texts on it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import specviz
from specviz.draft import Draft
from specviz.loop.drafters import bundled_draft, default_drafts, load_fitting
from specviz.methods import find
from specviz.models.zoo import bundled

torch.set_num_threads(1)
PROMPTS = [
    "What is the capital of France? Answer in one sentence.",
    "Repeat this sentence twice: The ferry leaves the old harbour at seven and comes back at nine.",
    "Write a Python function that adds two numbers, with a docstring.",
    "Explain why the sky is blue, in a short paragraph.",
]


def texts(trace) -> list[list[int]]:
    """The tokens generated after each prompt."""
    rows = trace.outputs.sort_values(["prompt", "position"])
    return [rows[rows["prompt"] == i]["token"].tolist() for i in range(len(trace.prompts))]


def test_its_name_says_what_it_is(smollm2) -> None:
    assert smollm2.name == "smollm2 (4-bit, dequantised)"
    assert smollm2.source == "GGUF, Q4_1, dequantised; not the publisher's checkpoint"
    assert (smollm2.layers, smollm2.vocabulary, smollm2.eos) == (30, 49152, (2, 0, 4))
    assert 134e6 < smollm2.parameters < 135e6
    assert len(smollm2.content) == 64


@pytest.fixture(scope="module")
def plain(smollm2):
    """Its own text, without drafts."""
    return specviz.generate(smollm2, PROMPTS, "autoregressive", max_new_tokens=32)


def test_exact_methods_write_the_text_of_autoregressive_decoding(smollm2, plain) -> None:
    options = {"max_new_tokens": 32}
    assert "Paris" in plain.texts[0]
    assert plain.run["model"]["name"] == smollm2.name
    for method, more in (
        ("prompt_lookup", {}),
        ("unispec", {"draft_size": 5}),
        ("unispec", {"draft_size": 16}),
    ):
        trace = specviz.generate(smollm2, PROMPTS, method, **options, **more)
        assert texts(trace) == texts(plain), method
        assert trace.summary()["tau"][0] > 1.0


def test_its_drafters_are_known_by_each_of_its_names(smollm2) -> None:
    named = default_drafts(smollm2.name)
    assert set(named.values()) <= set(bundled())
    for name in ("smollm2", "gguf:smollm2", "SmolLM2-135M-Instruct.Q4_1"):
        assert default_drafts(name) == named
    assert default_drafts("smollm") == {}
    own = {method: bundled_draft(find(method), smollm2.name) for method in ("bild", "speculative")}
    assert own == {"bild": "smollm2-draft-aligned", "speculative": "smollm2-draft"}


def test_what_does_not_fit_a_target_is_left_out_with_a_line(smollm2, capsys) -> None:
    """llama.cpp exposes no hidden states, which EAGLE and heads read."""
    there = specviz.load("gguf:smollm2", threads=1)
    drafts = load_fitting(there, ["smollm2-eagle3", "smollm2-draft", "smollm2-heads"], None, None)
    assert [each.name for each in drafts] == ["smollm2-draft"]
    lines = capsys.readouterr().err.splitlines()
    without = [line.split(": ")[1] for line in lines if line.startswith("specviz: without")]
    assert without == ["without smollm2-eagle3", "without smollm2-heads"]


@pytest.mark.parametrize(
    "draft", sorted(name for name in bundled() if name.startswith("smollm2-") and name != "smollm2-diffusion")
)
def test_its_drafters_draft_its_text(smollm2, plain, draft) -> None:
    method = next(
        name
        for name, what in (("eagle", "eagle"), ("blockwise", "heads"), ("speculative", "draft"))
        if what in draft
    )
    trace = specviz.generate(smollm2, PROMPTS, method, draft=draft, max_new_tokens=32)
    assert texts(trace) == texts(plain)
    assert trace.summary()["tau"][0] > 1.15  # 1.22 with the heads, 2.20 with EAGLE


def test_self_drafting_writes_the_text_of_stepwise_decoding(smollm2_file) -> None:
    model = specviz.load("smollm2-diffusion")
    assert (model.kind, model.shift, model.source) == (
        "diffusion",
        1,
        "adapter of smollm2 (4-bit, dequantised)",
    )
    prompts = list(specviz.suite("narrow"))[:2]
    options = {"max_new_tokens": 16, "block": 8, "cache": "dual", "refresh": 4}
    stepwise, drafted = (specviz.generate(model, prompts, m, **options) for m in ("stepwise", "ssd"))
    assert texts(drafted) == texts(stepwise)
    assert len(drafted.cycles) < len(stepwise.cycles)


def test_torch_and_llama_cpp_read_the_same_weights(smollm2) -> None:
    """The engines differ only in rounding (llama.cpp multiplies 4-bit weights by 8-bit activations)."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    other = specviz.load("gguf:smollm2", threads=1)
    ids = smollm2.encode(PROMPTS[1])
    assert other.encode(PROMPTS[1]) == ids
    draft = Draft.chain(np.array(ids[1:]))
    ours, theirs = (model.open([ids[:1]], len(ids)) for model in (smollm2, other))
    a, b = (context.forward(draft).logits[0].float().numpy() for context in (ours, theirs))
    for context in (ours, theirs):
        context.close()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"  # 0.27 was met on a processor without it
    assert np.abs(a - b).mean() < (0.25 if wide else 0.3) < a.std() / 4
    assert (a.argmax(1) == b.argmax(1)).mean() > 0.85


def test_bfloat16_is_loaded_too(smollm2_file) -> None:
    half = specviz.load("smollm2", dtype="bfloat16", kernels="plain")
    assert half.dtype == torch.bfloat16
    assert "Paris" in specviz.generate(half, PROMPTS[0], "autoregressive", max_new_tokens=12).text


def test_llama_cpps_own_classes_read_a_long_prompt(smollm2_file) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    # In a separate process, because kernels that the CPU does not support kill it.
    script = """
import specviz
from specviz.measure.peers import LlamaCppPeer
model = specviz.load("gguf:smollm2", threads=1)
ids = model.encode("The lighthouse keeper counted the boats that came home. " * 8)
print(len(ids), len(list(LlamaCppPeer(model, 4).tokens(ids))))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-300:]
    read, new = map(int, done.stdout.split())
    assert read > 64 and 1 <= new <= 4
