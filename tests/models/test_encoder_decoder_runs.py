"""Encoder-decoders through the whole package: loading, decoding, traces, the audit and what-ifs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from families import make as causal
from seq2seq import CONFIGS, VOCABULARY, make, prefix
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedTokenizerFast

import specviz
from specviz.audit.text import run as audit
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.measure.timing import Texts, closing, paired
from specviz.models import load
from specviz.models.encoder_decoder import EncoderDecoder

torch.set_num_threads(1)
PROMPT = [3, 4, 5, 6, 7]
NAMES = sorted(CONFIGS)


def tokens(trace) -> list[int]:
    return trace.outputs["token"].tolist()


def ended(net, count: int) -> list[int]:
    """transformers' greedy text without the decoder's prefix."""
    ids = torch.tensor([PROMPT])
    # The default cache has as many layers as the encoder, which has fewer here.
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    made = net.generate(
        ids, max_new_tokens=count + len(prefix(net)) - 1, do_sample=False, past_key_values=cache
    )
    return made[0, len(prefix(net)) :].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_greedy_is_transformers_greedy(name: str) -> None:
    for seed in range(3):
        net = make(name, seed)
        model, draft = load(net), load(make(name, seed + 7))
        want = ended(make(name, seed), 20)
        options = {"max_new_tokens": 20}
        for made in (
            specviz.generate(model, PROMPT, "autoregressive", **options),
            specviz.generate(model, PROMPT, "speculative", draft=draft, **options),
            specviz.generate(model, PROMPT, "speculative", draft=model.first(2), **options),
            specviz.generate(
                model,
                PROMPT,
                "bild",
                draft=draft,
                fallback=0.0,
                rollback=0.0,
                cap=4,
                review_end=True,
                **options,
            ),
            specviz.generate(model, PROMPT, "unispec", **options),  # trees
        ):
            assert tokens(made) == want
            assert made.run["model"]["kind"] == "encoder-decoder"
            assert made.run["model"]["prefix"] == len(prefix(net))


def test_the_prompt_counts_in_the_context() -> None:
    made = specviz.generate(load(make("t5")), PROMPT, "autoregressive", max_new_tokens=4)
    assert made.cycles["context"].tolist()[:3] == [5, 5, 6]
    first = made.passes.iloc[0]
    assert (first["cycle"], first["tokens"]) == (0, 5)  # the encoder's pass


def test_the_audit_of_every_method() -> None:
    model = load(make("t5", 2, torch.float32))
    result = audit(
        model, drafts=[load(make("t5", 5, torch.float32))], prompts=[PROMPT, [9, 8]], max_new_tokens=16,
        sampled=0, laws=False,
    )  # fmt: skip
    assert result.holds, result
    assert {"early_exit", "lookahead", "speculative"} <= {row.method.split(" ")[0] for row in result.rows}
    with pytest.raises(ModelError, match="only the first layers"):
        audit(model.first(2), methods=["autoregressive"], prompts=[PROMPT])


def test_the_audit_sees_a_cross_cache_of_another_prompt() -> None:
    model = load(make("t5", 2, torch.float32))
    read = model.encoder.read
    model.encoder.read = lambda prompts, decoder: read([prompt[::-1] for prompt in prompts], decoder)
    result = audit(
        model, methods=["autoregressive"], prompts=[PROMPT], max_new_tokens=8, sampled=0, laws=False
    )
    assert not result.holds


def test_a_dense_record_and_its_what_if() -> None:
    model, draft = load(make("bart", 1)), load(make("bart", 8))
    made = specviz.generate(
        model, PROMPT, "speculative", draft=draft, draft_length=2, record="dense", max_new_tokens=24
    )
    asked = specviz.whatif(made).speculative(draft_length=5)
    really = specviz.generate(model, PROMPT, "speculative", draft=draft, draft_length=5, max_new_tokens=24)
    assert asked.badge == "exact"
    found = [step.emitted for step in asked.walks[0][0].steps]
    assert found == really.cycles["emitted"].tolist()[1:]


def test_a_drafter_is_of_the_targets_kind() -> None:
    one, other = load(make("t5", dtype=torch.float32)), load(causal("llama"))
    for target, draft, said in ((one, other, "is causal"), (other, one, "is encoder-decoder")):
        with pytest.raises(ModelError, match=f"of the target's kind: .*{said}") as caught:
            specviz.generate(target, PROMPT, "speculative", draft=draft)
        assert "\n" not in str(caught.value)
    with pytest.raises(ParameterError, match="has no tokenizer, so a template cannot be read"):
        specviz.generate(one, specviz.streams.fixed_lag("a b"), "retranslate")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved T5 with a SentencePiece tokenizer that appends its end token."""
    path = tmp_path_factory.mktemp("models") / "hamlet"
    words = ["<pad>", "</s>", "<unk>", "▁to", "▁be", "▁or", "▁not", "▁", *"abcdefghijklmnopqrstuvwxyz."]
    model = Tokenizer(Unigram([(word, -float(i)) for i, word in enumerate(words)], unk_id=2))
    model.normalizer = normalizers.Nmt()
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    model.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    net = make("t5", dtype=torch.float32, pad_token_id=0, decoder_start_token_id=0)
    net.generation_config.decoder_start_token_id = 0
    net.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_folder_with_a_sentencepiece_tokenizer(home: Path) -> None:
    model = load(home)
    assert isinstance(model, EncoderDecoder)
    assert (model.name, model.prefix, model.eos, model.layers) == ("hamlet", [0], (1,), 3)
    ids = model.encode("to be or")
    assert ids == [3, 4, 5, 1]  # with the end token
    assert [model.piece(i) for i in ids] == [b" to", b" be", b" or", b"</s>"]
    assert model.encode([{"role": "user", "content": "not"}, {"role": "user", "content": "to be or"}]) == ids
    with pytest.raises(PromptError, match="reads the user's last message"):
        model.encode([{"role": "system", "content": "be"}])
    made = specviz.generate(str(home), "to be or", "autoregressive", max_new_tokens=6)
    assert made.text == model.decode(tokens(made))
    assert "to be" in made._repr_html_()


@pytest.mark.parametrize("name", ["mt5", "bart", "marian"])
def test_a_saved_model_is_the_one_in_memory(name: str, home: Path, tmp_path: Path) -> None:
    net = make(name, dtype=torch.float32)
    net.save_pretrained(tmp_path)
    for words in home.glob("tokenizer*"):
        shutil.copy(words, tmp_path)
    again = load(tmp_path)
    made = (specviz.generate(m, PROMPT, "autoregressive", max_new_tokens=8) for m in (load(net), again))
    first, second = (tokens(trace) for trace in made)
    assert first == second


def test_a_prompt_that_is_too_long(home: Path) -> None:
    with pytest.raises(PromptError, match=r"65 tokens and leaves no room in Bart.*'s context of 64"):
        specviz.generate(load(make("bart")), [3] * 65, "autoregressive")


@torch.no_grad()
def test_bad_words_of_one_token_are_never_written() -> None:
    """Marian's models forbid their padding token this way; its logit would be the largest."""
    net = make("marian")
    words = [5, *(word for word in range(VOCABULARY) if word > 20)]
    net.final_logits_bias[0, 5] = 100.0
    net.generation_config.bad_words_ids = [[word] for word in words]
    want = ended(net, 8)
    model = EncoderDecoder(net)
    for method in ("autoregressive", "prompt_lookup"):
        assert tokens(specviz.generate(model, PROMPT, method, max_new_tokens=8)) == want
    assert want and not {*want} & {*words}
    net.generation_config.bad_words_ids = [[3, 4]]
    with pytest.raises(ModelError, match="bad_words_ids"):
        specviz.generate(EncoderDecoder(net), PROMPT, "autoregressive")


def test_every_run_that_is_timed_encodes_its_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that take turns on a text leave contexts open; a later one must not take their encodings."""
    model = load(make("t5", 2, torch.float32))
    read, fed = model.encoder.read, []
    monkeypatch.setattr(model.encoder, "read", lambda *given: (made := read(*given), fed.append(made[1]))[0])
    runs = {n: specviz.stream(model, [PROMPT, [9, 8]], "autoregressive", max_new_tokens=4) for n in range(2)}
    draft = model.first(1)  # shares its target's encoder, and the encodings of its own run
    runs[2] = specviz.stream(model, [PROMPT, [9, 8]], "speculative", draft=draft, max_new_tokens=4)
    with closing(runs):
        paired({name: Texts(run) for name, run in runs.items()}, 2)
    assert sorted(fed) == [0, 0, 2, 2, 2, 5, 5, 5], "tokens that the encoder reads"


def test_a_stream_with_unknown_characters_warns(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    updates = [specviz.streams.Update("to be"), specviz.streams.Update("to be 中")]
    given = [specviz.streams.Stream(updates[:1]), specviz.streams.Stream(updates)]
    specviz.generate(load(home), given, "retranslate", template="plain", max_new_tokens=2)
    line = "specviz: 1 stream (2) contains characters that hamlet's tokenizer does not know"
    assert capsys.readouterr().err.startswith(line)
