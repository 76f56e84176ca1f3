"""Questions whose answer would look exact and be wrong: a part of a run, another drafter, shared passes."""

from __future__ import annotations

import pytest
from tiny import llama

import specviz as sv
from specviz.errors import ModelError, ParameterError, TraceError
from specviz.loop import densify

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15]]


@pytest.fixture(scope="module")
def target():
    return llama(seed=1, vocabulary=24, eos=(), name="target")


@pytest.fixture(scope="module")
def drafter(target):
    return llama(seed=1, vocabulary=24, eos=(), like=target, noise=0.05, name="drafter")


def test_a_store_that_learnt_from_prompts_that_are_gone(target):
    run = sv.generate(target, PROMPTS, "unispec", max_new_tokens=12, record="all")
    whole = sv.whatif(run).unispec().table
    assert whole["badge"].tolist() == ["exact"] and whole["cycles"].tolist() == [len(run.cycles) - 3]
    assert sv.whatif(run.select(prompt=[0, 1])).unispec().table["badge"].tolist() == ["exact"]
    answer = sv.whatif(run.select(prompt=2)).unispec()
    assert answer.table["badge"].tolist() == ["needs a rerun"] and "are not in this trace" in answer.why
    forgetful = sv.generate(target, PROMPTS, "unispec", max_new_tokens=12, record="all", keep="prompt")
    assert sv.whatif(forgetful.select(prompt=2)).unispec().table["badge"].tolist() == ["exact"]


def test_confidences_of_one_drafter_and_tokens_of_another(target, drafter):
    run = sv.generate(target, PROMPTS, "cm_asd", draft=drafter, max_new_tokens=12)
    assert sv.whatif(densify(run, target, drafter)).cm_asd().table["badge"].tolist() == ["exact"]
    answer = sv.whatif(densify(run, target, target)).cm_asd()
    assert answer.table["badge"].tolist() == ["needs a rerun"]
    assert "the dense record is of target" in answer.why


def test_times_of_passes_that_rows_share(target, drafter):
    options = {"draft": drafter, "max_new_tokens": 12, "record": "dense"}
    for batch in (1, 3):
        asked = sv.whatif(sv.generate(target, PROMPTS, "speculative", batch=batch, **options))
        if batch == 1:
            assert asked.clock(asked.speculative()).table["seconds"].gt(0).all()
        else:
            with pytest.raises(TraceError, match="shared by the rows of a batch"):
                asked.clock(asked.speculative())


@pytest.mark.parametrize("method", ["unispec", "token_recycling"])
def test_lists_that_the_run_has_keep_their_length(target, drafter, method, tmp_path):
    run = sv.generate(target, PROMPTS[:1], method, max_new_tokens=12, record="all")
    made = densify(run, target, drafter)
    made.save(tmp_path / "a.parquet")
    again = sv.open(tmp_path / "a.parquet")
    assert again.run["record"] == "all" and again.run["dense"]["name"] == "drafter"
    assert sv.whatif(again).speculative().table["badge"].tolist() == ["exact"]
    if method == "unispec":
        assert sv.whatif(again).unispec().table["badge"].tolist() == ["exact"]


def test_what_is_densified_is_checked(target):
    town = sv.load("town")
    run = sv.generate(town, "Translate into German: a", "autoregressive", max_new_tokens=2)
    with pytest.raises(ModelError, match="of the target's kind"):
        densify(run, town, "town-t5-small")
    canvas = sv.generate("town-diffusion", "Translate into German: a", "stepwise", max_new_tokens=4)
    with pytest.raises(ParameterError, match="decoded a canvas"):
        densify(canvas, target)
