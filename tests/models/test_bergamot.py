"""Marian files and the recurrent decoder: reading, passes, and what is refused."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch
from marian_files import INNER, WIDTH, WORDS, config, folder, items, packed, parts, words
from safetensors.torch import load_file, save_file

import specviz
from specviz.draft import Draft
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.finetune import answers as finetune_answers
from specviz.finetune.align import align
from specviz.finetune.answers import AnswerOptions
from specviz.finetune.cut import cut
from specviz.methods import find
from specviz.models import kernels
from specviz.models.bergamot import marian
from specviz.models.bergamot.model import RecurrentDecoder
from specviz.models.torch_model import hashed

SOURCES = ["a b c", "the cab is bad", "d e f g h i j"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return specviz.load(f"bergamot:{folder(tmp_path_factory.mktemp('bergamot') / 'tiny')}")


def whole(model, prompt: list[int], text: list[int]) -> torch.Tensor:
    """Logits after each prefix of a text, from the modules."""
    with torch.inference_mode():
        return model.net(
            input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([[0, *text]])
        ).logits[0]


def one_by_one(model, prompt: list[int], text: list[int]) -> torch.Tensor:
    context, rows = model.open([prompt], len(text)), []
    context.prefill()
    for token in [*text, None]:
        rows.append(context.forward(Draft.empty()).logits[0][0])
        if token is not None:
            context.extend([token])
    return torch.stack(rows)


def test_a_file_is_read_as_it_was_written(tmp_path) -> None:
    contents = marian.read(folder(tmp_path / "a") / "model.bin")
    for name, value in items().items():
        read = contents.tensors[name].reshape(value.shape).numpy()
        assert np.abs(read - value).max() <= np.abs(value).max() / 254 * 1.01, name
    assert contents.config["dec-cell"] == "ssru"


def test_weights_are_rounded_to_float16_by_name(tmp_path, drafter) -> None:
    if not kernels.multiplies_halves():
        pytest.skip("torch has no product with weights in float16 here")
    made = specviz.load(f"bergamot:{folder(tmp_path / 'tiny')}", kernels="fp16")
    for each in (made, specviz.load(drafter).on(made)):
        assert each.kernels == "fp16" and all(map(kernels.in_halves, kernels.matrices(each.net)))


def test_its_name_says_what_it_is(model) -> None:
    assert model.name == "tiny (8-bit, dequantised)"
    assert "Marian" in model.source and len(model.content) == 64
    assert model.encode("a b")[-1] == 0, "the encoder reads an end token"
    assert (
        specviz.generate(model, "a b", "autoregressive", max_new_tokens=2).run["model"]["name"] == model.name
    )


def test_a_pass_over_a_chain_computes_what_the_modules_do(model) -> None:
    prompt, text = model.encode(SOURCES[1]), [5, 9, 20, 7, 7, 31, 4]
    context = model.open([prompt], len(text))
    context.prefill()
    scores = context.forward(Draft.chain(np.array(text))).logits[0]
    assert torch.allclose(scores, whole(model, prompt, text), atol=1e-4)
    assert torch.allclose(scores, one_by_one(model, prompt, text), atol=1e-4)


@pytest.mark.parametrize("kept", range(5))
def test_rolling_back_chooses_an_earlier_state(model, kept) -> None:
    """After part of a draft is committed, and after a rewind, the next pass is that of the plain text."""
    prompt, text, after = model.encode(SOURCES[0]), [5, 9, 20, 7], [33, 12]
    context = model.open([prompt], 16)
    context.prefill()
    context.forward(Draft.chain(np.array(text)))
    context.commit(range(kept))
    context.extend([8])
    scores = context.forward(Draft.chain(np.array(after))).logits[0]
    right = whole(model, prompt, [*text[:kept], 8, *after])[kept + 1 :]
    assert torch.allclose(scores, right, atol=1e-4)
    context.commit([])
    context.rewind(len(prompt) + kept // 2)
    again = context.forward(Draft.chain(np.array(after))).logits[0]
    right = whole(model, prompt, [*text[: kept // 2], *after])[kept // 2 :]
    assert torch.allclose(again, right, atol=1e-4)


def test_rows_of_a_batch_are_what_each_is_alone(model) -> None:
    prompts = [model.encode(source) for source in SOURCES]
    texts = [[5, 9, 20], [7], [12, 30, 8, 25, 6]]
    context = model.open(prompts, 16)
    context.prefill()
    for _ in range(2):  # the second time, the rows start at different positions
        result = context.forward([Draft.chain(np.array(text)) for text in texts])
        for prompt, text, row, written in zip(prompts, texts, result.logits, context.tokens):
            before = written[len(prompt) :]
            right = whole(model, prompt, [*before, *text])[len(before) :]
            assert torch.allclose(row, right, atol=1e-4)
        context.commit([range(len(text) - i % 2) for i, text in enumerate(texts)])
        context.extend([[3], [4], [5]])


@pytest.mark.parametrize("fault", ["zeros", "one later"])
def test_a_wrong_state_is_noticed(model, monkeypatch, fault) -> None:
    own = RecurrentDecoder.before

    def broken(self, i, rows, store):
        state, padding = own(self, i, rows, store)
        if fault == "one later" and store.start:
            kept = store.data[i][:, :, :, store.start]
            return kept.transpose(0, 1).reshape(rows, self.size), padding
        return (torch.zeros_like(state) if fault == "zeros" else state), padding

    monkeypatch.setattr(RecurrentDecoder, "before", broken)
    with pytest.raises(AssertionError):
        test_rolling_back_chooses_an_earlier_state(model, 2)


def test_methods_that_draft_chains_write_its_own_text(model) -> None:
    options = {"max_new_tokens": 24}
    plain = specviz.generate(model, SOURCES, "autoregressive", **options)
    assert specviz.generate(model, SOURCES, "prompt_lookup", **options).texts == plain.texts
    assert specviz.generate(model, SOURCES, "autoregressive", batch=3, **options).texts == plain.texts
    drafted = specviz.generate(model, SOURCES, "speculative", draft=model, draft_length=3, **options)
    assert drafted.texts == plain.texts
    assert drafted.summary()["A/D"][0] == 1.0


def test_methods_that_draft_trees_say_why_they_do_not(model) -> None:
    for method in ("unispec", "spectra", "token_recycling", "lookahead"):
        with pytest.raises(ParameterError, match="reads only chains: its decoder is recurrent"):
            specviz.generate(model, "a b", method, **({"draft_size": 4} if method == "unispec" else {}))
    context = model.open([model.encode("a b")], 8)
    context.prefill()
    tree = Draft(torch.tensor([5, 6]), np.array([-1, -1]))
    with pytest.raises(ModelError, match="a state for each branch"):
        context.forward(tree)


def test_retranslation_at_zero_is_retranslation(model) -> None:
    stream = specviz.streams.fixed_lag("the cab is bad and a bad cab is a cab", 1)
    options = {"max_new_tokens": 16}
    plain = specviz.generate(model, stream, "retranslate", mode="rt", **options)
    drafted = specviz.generate(model, stream, "retranslate", beta=0.0, **options)
    assert drafted.updates["text"].tolist() == plain.updates["text"].tolist()
    assert len(drafted.cycles) < len(plain.cycles)
    assert drafted.updates["reused"].max() == 0, "every state depends on the whole source"
    assert drafted.run["parameters"]["template"] == "plain"
    result = specviz.audit.streams(model, [stream], max_new_tokens=16, sampled=0, laws=False)
    assert result.holds


def test_the_live_widget_offers_no_language_that_the_prompt_cannot_name(model) -> None:
    pytest.importorskip("anywidget", reason="needs the lab extra")
    live = specviz.live(model, max_new_tokens=16)
    assert live.languages == [] and "into" not in repr(live)
    live.source = "the cab"
    live.finish()
    assert live.wait(20) and live.traces[0].run["parameters"]["template"] == "plain" and not live.error
    named = specviz.live(model, template="{target_language}: {source}")
    assert named.languages[0] == "German" and "into German" in repr(named)


# ---------------------------------------------------------------- a drafter cut from it


@pytest.fixture(scope="module")
def answers_file(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    prompts = [model.encode(" ".join(source)) for source in ("abc", "bad", "cab", "fed", "hid", "jig", "ace")]
    finetune_answers.answer(model, prompts, path, AnswerOptions(max_new_tokens=10), say=lambda line: None)
    return path


@pytest.fixture(scope="module")
def drafter(model, answers_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("drafters") / "cut"
    return cut(model, finetune_answers.read(answers_file), out, layers=1, vocabulary=12)


def test_a_drafter_holds_its_layers_alone(model, drafter) -> None:
    names = set(load_file(drafter / "model.safetensors"))
    assert all(name == "tokens" or name.startswith("layers.0.") for name in names)
    bound = specviz.load(drafter).on(model)
    assert 1 < len(bound.tokens) <= 12 and set(model.eos) <= set(bound.tokens.tolist())
    assert (bound.layers, bound.vocabulary, bound.kind) == (1, model.vocabulary, "encoder-decoder")
    prompt, text = model.encode(SOURCES[1]), [5, 9, 20]
    context = bound.open([prompt], 8)
    context.prefill()
    scores = context.forward(Draft.chain(np.array(text))).logits[0]
    right = whole(bound, prompt, text)
    assert torch.allclose(scores[:, bound.tokens], right, atol=1e-4)
    assert torch.isneginf(scores).sum() == 4 * (WORDS - len(bound.tokens))


def test_what_a_drafter_drafts_the_target_verifies(model, drafter) -> None:
    options = {"max_new_tokens": 20, "draft": drafter}
    plain = specviz.generate(model, SOURCES, "autoregressive", max_new_tokens=20)
    drafted = specviz.generate(model, SOURCES, "speculative", draft_length=3, **options)
    assert drafted.texts == plain.texts
    assert drafted.summary()["A/D"][0] > 0
    assert specviz.generate(model, SOURCES, "speculative", batch=3, **options).texts == plain.texts
    for method in ("cm_asd", "bild", "specdec"):
        trace = specviz.generate(model, SOURCES, method, **options, **find(method).exact)
        assert trace.texts == plain.texts, method
    encoded = drafted.passes[(drafted.passes["model"] == "draft") & (drafted.passes["cycle"] == 0)]
    assert encoded["tokens"].sum() <= len(SOURCES), "the target's encoding is shared"


def test_it_is_aligned_and_bound_to_its_target(model, drafter, answers_file, tmp_path) -> None:
    given = finetune_answers.read(answers_file)
    result = align(model, drafter, given, tmp_path / "aligned", soft=True, epochs=30, rate=0.01,
                   say=lambda line: None)  # fmt: skip
    assert result.after >= result.before
    trained = specviz.load(tmp_path / "aligned")
    before, after = (load_file(path / "model.safetensors") for path in (drafter, tmp_path / "aligned"))
    assert before.keys() == after.keys()
    assert not torch.equal(before["layers.0.rnn.forget.weight"], after["layers.0.rnn.forget.weight"])
    assert specviz.generate(model, SOURCES[0], "speculative", draft=trained, max_new_tokens=8).text
    other = specviz.load(f"bergamot:{folder(tmp_path / 'tiny', seed=5)}")
    with pytest.raises(ModelError, match=r"this tiny .* has different weights"):
        specviz.generate(other, SOURCES[0], "speculative", draft=trained, max_new_tokens=8)
    with pytest.raises(ModelError, match="is not a Bergamot translator"):
        specviz.load(drafter).on(specviz.load("town-t5"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dec-cell": "gru"}, "has an unsupported architecture: its dec-cell is 'gru'"),
        ({"transformer-postprocess": "da"}, "has an unsupported architecture: its transformer-postprocess"),
        ({"dim-vocabs": [WORDS, 50]}, "its sizes do not fit together"),
        ({"transformer-heads": 5}, "its sizes do not fit together"),
        ({"transformer-heads": 1}, "its sizes do not fit together"),
        ({"dec-depth": 10**9}, "its sizes do not fit together"),
        ({"enc-depth": "many"}, "does not say how large"),
        ({"dec-depth": 3}, "it has no decoder_l3_rnn_Wf"),
        ({"dim-emb": 20}, "the matrix for"),
        ({"dim-emb": float("inf")}, "does not say how large"),
        ({"dim-emb": 10**12}, "its sizes do not fit together"),
        ({"dim-emb": 10**30}, "its sizes do not fit together"),
        ({"transformer-dim-ffn": 10**30}, "its sizes do not fit together"),
        ({"dim-emb": 2, "transformer-heads": 2}, "its sizes do not fit together"),
        ({"transformer-pool": True}, "has an unsupported architecture: its transformer-pool is True"),
        ({"transformer-rnn-projection": True}, "has an unsupported architecture: its transformer-rnn-proj"),
        ({"dec-cell": "gru" * 1000}, "has an unsupported architecture: its dec-cell is 'gru"),
        ({"dec-depth": 1}, "'decoder_l2_context_Wk' has no place in it"),
    ],
)
def test_another_architecture_is_refused_by_name(tmp_path, change, words) -> None:
    with pytest.raises(ModelError, match=words) as error:
        specviz.load(f"bergamot:{folder(tmp_path / 'other', config(**change))}")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_an_option_that_a_file_does_not_name_is_off(tmp_path) -> None:
    settings = config()
    del settings["transformer-pool"], settings["transformer-rnn-projection"]
    assert specviz.load(f"bergamot:{folder(tmp_path / 'older', settings)}").layers == 2


@pytest.mark.parametrize(
    "text", [b"dim-emb: !!bool maybe", b"dim-emb: !!int ''", b"a: !!timestamp ''", b"[" * 9999]
)
def test_settings_that_yaml_cannot_build_are_refused(tmp_path, text) -> None:
    with pytest.raises(ModelError, match="is not a list of settings"):
        specviz.load(f"bergamot:{folder(tmp_path / 'other', text)}")


@pytest.mark.parametrize(
    ("name", "kind", "shape", "content", "words"),
    [
        ("decoder_l1_rnn_W", marian.INTGEMM8, (), struct.pack("<bf", 1, 1.0), "the matrix for"),
        ("decoder_l1_rnn_W", marian.FLOAT32, (WIDTH, WIDTH), bytes(4 * WIDTH**2), "not quantised.*float32"),
        ("decoder_l1_ffn_W1", marian.INT8, (WIDTH, INNER), bytes(WIDTH * INNER), "not quantised.*int8"),
        ("extra\n_W", marian.FLOAT32, (1, 2), bytes(8), r"'extra\\n_W' has no place in it"),
        *(
            ("decoder_l1_rnn_W", marian.INTGEMM8, (1, 1), struct.pack("<bf", 1, scale), "the scale of")
            for scale in (0.0, -1.0, float("nan"), float("inf"))
        ),
    ],
)
def test_an_item_that_is_not_read_right_is_refused_by_name(
    tmp_path, name, kind, shape, content, words
) -> None:
    root = folder(tmp_path / "item")
    others = [part for part in parts(items(), config()) if part[0] != name]
    (root / "model.bin").write_bytes(packed([*others, (name, kind, shape, content)]))
    with pytest.raises(ModelError, match=words) as error:
        specviz.load(f"bergamot:{root}")
    assert "\n" not in str(error.value)


def test_scales_of_activations_are_left_out(model, tmp_path) -> None:
    root = folder(tmp_path / "tiny")
    scales = [
        ("Wemb_QuantMultA", marian.INTGEMM8, (1, 1), bytes(261)),
        ("none_QuantMultA", marian.FLOAT32, (1, 1), bytes(4)),
    ]
    (root / "model.bin").write_bytes(packed([*scales, *parts(items(), config())]))
    assert specviz.load(f"bergamot:{root}").content == model.content


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_its_content_is_that_of_its_file_in_any_format(model, drafter, tmp_path, dtype) -> None:
    assert model.content == hashed(model.net, model.tokenizer)  # in float32
    other = specviz.load(f"bergamot:{folder(tmp_path / 'tiny')}", dtype=dtype)
    assert other.content == model.content
    assert specviz.load(drafter).on(other).dtype == other.dtype


@pytest.mark.parametrize(
    ("change", "ids", "words"),
    [
        ({"decoder_layers": 10**9}, None, "a drafter has 1 to 256 decoder_layers"),
        ({"decoder_layers": 0}, None, "a drafter has 1 to 256 decoder_layers"),
        ({"encoder_layers": 10**9}, None, "does not fit tiny"),
        ({}, [0, WORDS], "one beyond the 40 of its target"),
        ({}, [-1, 0], "one beyond the 40 of its target"),
        ({}, [], "or none: its file"),
    ],
)
def test_a_damaged_drafter_is_refused(model, drafter, tmp_path, change, ids, words) -> None:
    settings = json.loads((drafter / "config.json").read_text())
    settings["shape"] |= change
    (tmp_path / "config.json").write_text(json.dumps(settings))
    tensors = load_file(drafter / "model.safetensors")
    if ids is not None:
        tensors["tokens"] = torch.tensor(ids, dtype=torch.int32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=words):
        specviz.load(tmp_path).on(model)


def test_a_damaged_file_is_refused(tmp_path) -> None:
    root = folder(tmp_path / "damaged")
    file = root / "model.bin"
    data = file.read_bytes()
    for size in (0, 7, 40, 900, len(data) - 1):
        file.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"truncated|not a Marian binary"):
            specviz.load(f"bergamot:{root}")
    file.write_bytes(packed(parts(items(), config()), version=2))
    with pytest.raises(ModelError, match="not a Marian binary file of version 1"):
        specviz.load(f"bergamot:{root}")
    file.write_bytes(data.replace(struct.pack("<Q", marian.FLOAT32), struct.pack("<Q", 0x0402), 1))
    with pytest.raises(ModelError, match="in an unsupported type"):
        specviz.load(f"bergamot:{root}")


def test_what_is_missing_is_named(tmp_path) -> None:
    with pytest.raises(ModelError, match="no folder"):
        specviz.load(f"bergamot:{tmp_path / 'nowhere'}")
    root = folder(tmp_path / "parts")
    (root / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        specviz.load(f"bergamot:{root}")
    words(root / "tokenizer.json", WORDS + 3)
    with pytest.raises(ModelError, match="does not fit the model"):
        specviz.load(f"bergamot:{root}")
    (root / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="is not a tokenizer"):
        specviz.load(f"bergamot:{root}")
    (root / "model.bin").unlink()
    with pytest.raises(ModelError, match="holds 0 Marian files"):
        specviz.load(f"bergamot:{root}")
    with pytest.raises(ModelError, match="brings its own threads"):
        specviz.load(f"bergamot:{root}", threads=1)


def test_a_source_beyond_its_places_is_refused(model) -> None:
    with pytest.raises(PromptError, match=r"leaves no room in tiny .* context of 1024"):
        specviz.generate(model, [5] * 1025, "autoregressive", max_new_tokens=2)


def test_the_downloaded_translator_translates(bergamot) -> None:
    assert bergamot.name == "bergamot-en-pt (8-bit, dequantised)"
    trace = specviz.generate(
        bergamot, "The doctor bought a red bicycle.", "autoregressive", max_new_tokens=24
    )
    assert trace.text.strip() == "O médico comprou uma bicicleta vermelha."


def test_it_translates_a_text_that_arrives_word_by_word(bergamot) -> None:
    """The bias saves passes and leaves this sentence's last text intact."""
    sentence = "The farmer keeps twelve geese, because he says that they are better than any dog."
    heard = specviz.streams.fixed_lag(sentence, 1)
    runs = [
        specviz.generate(bergamot, heard, "retranslate", **values)
        for values in ({"mode": "rt"}, {"beta": 0.0}, {"beta": 0.2})
    ]
    plain, exact, biased = (run.updates["text"].tolist() for run in runs)
    assert exact == plain
    assert "gansos" in biased[-1] and len(biased) == len(sentence.split())
    assert len(runs[2].cycles) <= len(runs[1].cycles) < len(runs[0].cycles) / 2
