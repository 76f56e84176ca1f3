"""The audit runs only the methods that a model can serve, and names the others with the reason."""

from __future__ import annotations

import json

import pytest
from models.seq2seq import make
from tiny import llama

from specviz import audit, cli
from specviz.audit import law, text, updates
from specviz.errors import ModelError, ParameterError
from specviz.methods import find
from specviz.models import load
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.streams import fixed_lag

PROMPTS = [[5, 6, 7, 8, 5, 6], [9, 3]]


@pytest.fixture(scope="module")
def target():
    return EncoderDecoder(make("t5", 0).float(), name="t5")


@pytest.fixture
def say(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # The laws use toy vocabularies, whatever the model.
    monkeypatch.setattr(text, "_enumerated", lambda make: [])
    monkeypatch.setattr(updates, "check", lambda make: [])

    def call(*arguments):
        status = cli.run(["audit", *map(str, arguments)])
        return status, *capsys.readouterr()

    return call


SHORT = ("--number", 2, "-n", 6, "--sampled", 0, "--streams", 1)


def test_an_encoder_decoder_is_audited_on_prompts_and_streams(say, tmp_path):
    status, out, err = say("--model", "town-t5", *SHORT, "--json", "a.json")
    assert status == 0, out + err
    (line,) = [line for line in out.splitlines() if line.startswith("left out: ")]
    assert line == "left out: eagle (needs an EAGLE drafter of the target)"
    result = json.loads((tmp_path / "a.json").read_text(encoding="utf8"))
    assert {"autoregressive", "blockwise", "speculative", "retranslate"} <= {
        row["method"].split()[0] for row in result["rows"]
    }
    assert set(result["left_out"]) == {"eagle"}


def test_stream_methods_that_cannot_be_served_are_in_the_file_too(say, tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "stream_methods", lambda target: ["ssd"])
    status, out, err = say("--model", "town-t5", *SHORT, "--json", "a.json")
    assert status == 0 and "ssd (" in out, out + err
    assert set(json.loads((tmp_path / "a.json").read_text(encoding="utf8"))["left_out"]) == {"eagle", "ssd"}


def test_a_context_too_short_for_every_test_text_is_named(say, monkeypatch):
    monkeypatch.setattr(cli.auditing, "_test_streams", lambda target, number: [])
    status, _, err = say("--model", "town", "--method", "retranslate:beta=0")
    assert status == 2 and "every test text is too long for town" in err


def test_a_named_method_that_cannot_be_served_is_refused(say):
    for arguments, words in (
        (
            ("--model", "town-diffusion", "--method", "speculative"),
            "is a masked-diffusion model: use one of",
        ),
        (("--model", "town-diffusion", "--method", "retranslate:beta=0"), "is a masked-diffusion model"),
        (("--model", "town", "--method", "ssd"), "and town is causal: use another model"),
        (("--model", "town", "--method", "calm", "--batch", 2), "drop batch"),
        (
            (
                "--model",
                "town-t5-heads",
            ),
            "not a model by itself but heads on town-t5",
        ),
        (
            (
                "--model",
                "town-eagle",
            ),
            "not a model by itself but an EAGLE drafter",
        ),
        (("--model", "town", "--draft", "town-t5-heads"), "was trained on town-t5"),
    ):
        status, out, err = say(*arguments, *SHORT[:-2])
        assert (status, out) == (2, ""), arguments
        assert words in err.splitlines()[-1], arguments


def test_a_gguf_file_is_asked_no_early_exit():
    model = load("gguf:town-translator", threads=1)
    names = ["autoregressive", "calm:threshold=1", "early_exit:fallback=1", *audit.stream_methods(model)]
    able, left_out = audit.served(model, names)
    assert able == [name for name in names if not name.startswith("early_exit")]
    assert "cannot stop after layer 1" in left_out["early_exit"]
    with pytest.raises(ModelError, match="cannot stop after layer 1"):
        audit.run(model, [], PROMPTS, ["early_exit:rollback=0,cap=2,review_end=true"])


def test_python_says_so_too(target):
    found = audit.run(target, [], PROMPTS, max_new_tokens=4, sampled=0, laws=False)
    assert found.holds and found.left_out["speculative"] == "speculative needs a draft model"
    assert {"bild", "cm_asd"} <= found.left_out.keys() and "prompt_lookup" not in found.left_out
    able, left_out = audit.served(target, ["prompt_lookup", "retranslate:beta=0", "ssd"])
    assert able == ["prompt_lookup", "retranslate:beta=0"]
    assert set(left_out) == {"ssd"}
    with pytest.raises(ParameterError, match="has no tokenizer, so a template cannot be read"):
        audit.streams(target, [fixed_lag("one two three")])
    with pytest.raises(ModelError, match="not a model by itself"):
        audit.run("town-t5-heads", [], PROMPTS)


def test_the_law_of_an_encoder_decoder_is_that_of_its_text():
    target = load("town-t5")
    result = law.chi_square(target, None, "Paul's brother does", 200, find("autoregressive"))
    assert result.freedom > 3
    assert result.holds, result


def test_a_model_that_no_method_may_decode_is_refused():
    model = llama(name="penalised")
    model.net.generation_config.repetition_penalty = 1.2
    for ask in (
        lambda: audit.run(model, [], PROMPTS, ["autoregressive"]),
        lambda: audit.batches(model, [], PROMPTS, ["autoregressive"]),
        lambda: audit.streams(model, [fixed_lag("one two three")]),
    ):
        with pytest.raises(ModelError, match="repetition_penalty"):
            ask()


def test_heads_are_left_out_where_none_are_given():
    found = audit.run(load("town"), ["town-draft"], ["Hello"], max_new_tokens=4, sampled=0, laws=False)
    assert found.left_out == {
        "blockwise": "blockwise needs heads on the target",
        "eagle": "eagle needs an EAGLE drafter of the target",
    }
