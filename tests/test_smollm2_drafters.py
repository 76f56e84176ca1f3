"""SmolLM2's own drafters in batches, in sampling, in what-ifs and on llama.cpp."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import specviz
from specviz.audit.decisions import Records
from specviz.files import read_json
from specviz.methods.sampling import Sampling
from specviz.models.schema import Card
from specviz.paths import folder

torch.set_num_threads(1)
PROMPTS = [
    "What is the capital of France? Answer in one sentence.",
    "Repeat this sentence: The ferry leaves the old harbour at seven.",
    "Write a Python function that adds two numbers.",
]
DRAFTERS = {"speculative": "smollm2-draft", "eagle": "smollm2-eagle3", "blockwise": "smollm2-heads"}
LENGTH = {"max_new_tokens": 16}


@pytest.fixture(scope="module")
def plain(smollm2):
    return specviz.generate(smollm2, PROMPTS, "autoregressive", **LENGTH)


@pytest.mark.parametrize("method", DRAFTERS)
def test_a_batch_writes_the_targets_texts(smollm2, plain, method) -> None:
    trace = specviz.generate(smollm2, PROMPTS, method, draft=DRAFTERS[method], batch=2, **LENGTH)
    assert trace.texts == plain.texts
    assert trace.cycles["accepted"].sum() > 3


@pytest.mark.parametrize("method", ["speculative", "eagle"])
def test_sampled_decisions_can_be_taken_again_from_the_record(smollm2, method) -> None:
    sampling = {"temperature": 0.7, "top_p": 0.9}
    trace = specviz.generate(smollm2, PROMPTS, method, draft=DRAFTERS[method], seed=3, **sampling, **LENGTH)
    texts = {i: rows["token"].tolist() for i, rows in trace.outputs.groupby("prompt")}
    records = Records([(0, trace, texts)], Sampling(**sampling), 0.01, len(PROMPTS))
    for number in range(len(PROMPTS)):
        records.compare(number, lambda prompt, text: rows_of(smollm2, prompt, text))
    assert records.bugs == []
    status = trace.nodes["status"]
    assert (status == "accepted").any() and (status == "rejected").any()


def rows_of(model, prompt: list[int], text: list[int]) -> torch.Tensor:
    """The target's logits after the prompt and after each token of the text but the last."""
    with torch.inference_mode():
        scores = model.net(torch.tensor([prompt + text])).logits[0]
    return scores[len(prompt) - 1 : -1].double()


@pytest.mark.parametrize(
    ("method", "draft"), [("bild", "smollm2-draft-aligned"), ("cm_asd", "smollm2-draft")]
)
def test_lossy_methods_accept_their_drafts(smollm2, method, draft) -> None:
    trace = specviz.generate(smollm2, PROMPTS, method, draft=draft, **LENGTH)
    assert trace.run["draft"]["name"] == draft
    assert (trace.nodes["status"] == "accepted").sum() > 3


def test_a_whatif_says_what_a_shorter_draft_does(smollm2) -> None:
    options = {"draft": DRAFTERS["speculative"], **LENGTH}
    trace = specviz.generate(smollm2, PROMPTS, "speculative", draft_length=4, **options)
    dense = specviz.densify(trace, smollm2, specviz.load(options["draft"]).on(smollm2))
    row = specviz.whatif(dense).speculative(draft_length=[1]).table.iloc[0]
    assert row["badge"] == "exact"
    shorter = specviz.generate(smollm2, PROMPTS, "speculative", draft_length=1, **options)
    assert row["cycles"] == (shorter.cycles["cycle"] > 0).sum()
    assert row["tau"] == pytest.approx(shorter.summary()["tau"][0])


def test_the_cut_draft_drafts_for_llama_cpp(smollm2_file) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    there = specviz.load("gguf:smollm2", threads=1)
    runs = [
        specviz.generate(there, PROMPTS[:2], method, draft=draft, **LENGTH)
        for method, draft in (("autoregressive", None), ("speculative", DRAFTERS["speculative"]))
    ]
    assert runs[1].texts == runs[0].texts
    assert np.asarray(runs[1].cycles["accepted"]).sum() > 2


@pytest.mark.parametrize("name", ["smollm2-draft", "smollm2-draft-aligned"])
def test_a_cards_hash_is_that_of_the_drafter(smollm2, name) -> None:
    """The papers' pages compare it with the recorded replays'."""
    card = read_json(folder("models") / name / "scores.json", Card)
    assert card["content"] == specviz.load(name).on(smollm2).content
