"""Questions whose answer would look exact but be wrong: a partial run, another drafter, shared passes."""

from __future__ import annotations

import pytest
from tiny import llama

import specviz as sv
from specviz.errors import ModelError, ParameterError, TraceError
from specviz.loop import densify
from specviz.trace import Recorder
from specviz.whatifs.texts import spacing

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


def test_guesses_that_depend_on_where_a_draft_began():
    """An EAGLE layer continues from the target's states and then from its own, so it is no draft model."""
    prompt = "Translate into German: The doctor bought a red bicycle."
    run = sv.generate("town", prompt, "eagle", draft="town-eagle3-en", branches=1, max_new_tokens=12)
    answer = sv.whatif(run).speculative(draft_length=[1, 2])
    assert (
        set(answer.table["badge"]) == {"needs a rerun"} and "no dense record of a draft model" in answer.why
    )


def test_a_run_cut_off_before_its_first_text(target):
    run = sv.generate(target, PROMPTS[:1], "unispec", max_new_tokens=4, record="all")
    nothing = Recorder(run.run | {"prompts": []}).close()
    for method in ("unispec", "prompt_lookup", "speculative"):
        answer = getattr(sv.whatif(nothing), method)()
        assert "the trace holds no text" in answer.why


def test_roundings_of_formats_that_have_no_name_here():
    assert spacing("float32") == spacing("float64") == spacing(None) == 1.2e-7
    assert spacing("Q8_0") == spacing("Q4_K_M") == 2**-8 > spacing("float16")


def test_another_setting_of_bild_has_another_guarantee(target, drafter):
    options = {"draft": drafter, "max_new_tokens": 12, "record": "dense"}
    strict = {"rollback": 0.0, "review_end": True}
    run = sv.generate(target, PROMPTS, "bild", **strict, **options)
    shown = set()
    for values in ({}, {"review_end": False}, {"cap": 3}, {"cap": 3, "review_end": False}, {"fallback": 1.0}):
        answer = sv.whatif(run).bild(**values)
        if answer.table["badge"].tolist() == ["exact"]:
            again = sv.generate(target, PROMPTS, "bild", **strict | values, **options)
            assert answer.trace(0).run["exactness"] == again.run["exactness"], values
            shown.add(again.run["exactness"])
    assert shown == {"exact", "exact up to ties"}


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


def test_a_turn_without_room_hides_no_prompts():
    """It has no tokens, like a redacted prompt; and it added nothing to a store."""
    market = "Tell me about the market."
    prompts = [{"turns": [market, market * 200]}, "Translate into German: The cat sleeps."]
    for method in ("prompt_lookup", "unispec"):
        run = sv.generate("town", prompts, method, max_new_tokens=12, record="all")
        assert run.cycles["prompt"].unique().tolist() == [0, 2]
        assert "needs a rerun" not in set(sv.whatif(run).ask().table["badge"])
        with pytest.raises(TraceError, match="redacted"):
            sv.whatif(run.redact())
