"""Auditing another engine's answers: honest ones pass, tampered ones do not, and doubtful ones are unsure."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny
import torch

import specviz as sv
from specviz import cli
from specviz.audit import answer_files, answer_report
from specviz.audit import answers as audit
from specviz.audit.answer_report import NOISE, OTHER, OWN, UNSURE, Sibling
from specviz.audit.reference import Reference
from specviz.errors import ParameterError, PromptError
from specviz.measure.advice.readings import sampling_of
from specviz.methods.sampling import Sampling, TemperatureLast

PROMPTS = [
    "The cook saw the cook.", "What does the baker do?", "Name the animals.", "Who is in the garden?",
    "Where is the ferry?", "Tell me of the doctor.", "Why does the sailor sing?", "How old is the bridge?",
]  # fmt: skip
LIMIT = 20


@pytest.fixture(scope="module")
def town():
    return sv.load("town", dtype="float32")


@pytest.fixture(scope="module")
def honest(town):
    """The target's own answers by transformers' ``generate``, with their ids."""
    return [written(town, prompt) for prompt in PROMPTS]


@torch.inference_mode()
def written(model, prompt, **sampling):
    messages = [{"role": "user", "content": prompt}]
    ids = torch.tensor([model.encode(messages)])
    options = {"do_sample": False, "max_new_tokens": LIMIT, "eos_token_id": list(model.eos)} | sampling
    out = model.net.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=model.eos[0], **options)
    out = out[0, ids.shape[1] :].tolist()
    reason = "stop" if out[-1] in model.eos else "length"
    return {
        "messages": messages, "answer": model.decode(out), "token_ids": out, "finish_reason": reason,
        "max_tokens": options["max_new_tokens"],
    }  # fmt: skip


def verdicts(lines, model, **rest):
    return [text.verdict for text in audit(lines, model, **rest).texts]


def words_alone(line):
    return {key: value for key, value in line.items() if key != "token_ids"}


def spaced(seed):
    """A random model whose tokenizer puts a space in front of every text, as SentencePiece does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(ord("a") + i) for i in range(20)]
    merges = [("\u2581", "a"), ("\u2581", "b"), ("c", "d"), ("e", "f"), ("\u2581a", "b")]
    pieces = ["<s>", "</s>", "<unk>", "\u2581", *letters, *map("".join, merges)]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    return sv.load(tiny.llama(seed, vocabulary=len(pieces)).net, tokenizer=tokenizer)


@pytest.mark.parametrize("seed", range(4))
def test_a_tokenizer_that_puts_a_blank_in_front_of_texts(seed):
    model, lines = spaced(seed), []
    for prompt in ("ab c", "cd", "e f", "a", "b", "cd ab", "g h", "ab ab", "k", "s t"):
        ids = sv.generate(model, prompt, "autoregressive", max_new_tokens=8).outputs["token"].tolist()
        if min(ids) > 2:
            text = "".join(model.piece(token).decode() for token in ids)
            lines.append({"prompt": prompt, "answer": text, "finish_reason": "length", "max_tokens": 8})
    stripped = [line | {"answer": line["answer"].lstrip()} for line in lines if line["answer"].strip()]
    made = verdicts([*lines, *stripped], model)
    assert set(made) <= {OWN, UNSURE} and made.count(OWN) > len(made) / 2 and stripped
    changed = [line | {"answer": line["answer"][:3] + "s" + line["answer"][3:]} for line in stripped]
    assert OWN not in verdicts(changed, model)
    (unknown,) = audit([lines[0] | {"answer": "a\u3042<unk>b"}], model).texts
    assert unknown.verdict == UNSURE and "characters that the tokenizer does not know" in unknown.reason


def test_nothing_holds_where_nothing_could_be_judged(town):
    lost = {"prompt": "Hello", "answer": "a\ufffdb", "finish_reason": "length", "max_tokens": 3}
    result = audit([lost], town)
    assert [text.verdict for text in result.texts] == [UNSURE] and not result.holds


def test_the_targets_own_answers_are_its_own_with_ids_and_without(town, honest):
    result = audit([*honest, *(words_alone(line) for line in honest if "\ufffd" not in line["answer"])], town)
    assert {text.verdict for text in result.texts} == {OWN} and result.holds
    assert all(text.largest < 1e-6 for text in result.texts)
    assert result.against["weights"] == f"SHA-256 {town.content}"
    head = "\n".join(result.head)
    for words in (
        "float32",
        "margins in float64",
        "template: SHA-256",
        "end tokens: 4 <|end|>",
        "starts with",
    ):
        assert words in head
    assert str(result).startswith("model: town")


def runner_up(model, line):
    """The place at which the runner-up's logit is nearest to the best one."""
    prompt, ids = model.encode(line["messages"]), line["token_ids"]
    with torch.inference_mode():
        rows = model.net(torch.tensor([[*prompt, *ids[:-1]]])).logits[0, len(prompt) - 1 :]
    top = rows.topk(2).values
    return int((top[:, 0] - top[:, 1]).argmin())


def replaced(model, line, place, least):
    """The line with the token at `place` replaced by the one whose margin is the smallest above `least`."""
    prompt, ids = model.encode(line["messages"]), list(line["token_ids"])
    with torch.inference_mode():
        row = model.net(torch.tensor([[*prompt, *ids[:place]]])).logits[0, -1].double()
    gap = row.max() - row
    gap[gap <= least] = torch.inf
    gap[list(model.text.special)] = torch.inf
    ids[place] = int(gap.argmin())
    return line | {"token_ids": ids, "answer": model.decode(ids)}, float(gap.min())


def test_a_replaced_token_is_named_and_its_margin_measured(town, honest):
    long = [line for line in honest if len(line["token_ids"]) > 8]
    assert len(long) > 3
    for line in long:
        bad, margin = replaced(town, line, 4, 0.5)
        (text,) = audit([bad], town).texts
        assert text.verdict == OTHER and text.place == 4
        assert text.margin == pytest.approx(margin, abs=1e-3)
        assert f"token 4 is {text.actual!r}" in text.reason and "envelope is 0.5" in text.reason
        # The same text is noise to an engine whose envelope covers every margin in it.
        (wide,) = audit([bad], town, envelope=text.largest + 0.1).texts
        assert wide.verdict == NOISE and wide.largest == text.largest


def test_messages_that_were_taken_for_prompts_are_hinted_at(town, honest):
    plain = [{"prompt": each["messages"][0]["content"], "answer": each["answer"]} for each in honest]
    found = audit(plain, town)
    assert found.count(OTHER) == len(plain) and "give them as 'messages'" in found.against["hint"]
    assert "hint" not in audit(honest, town).against
    assert "hint" not in audit([*plain, honest[0]], town).against


def test_an_end_that_was_moved_is_not_the_targets(town, honest):
    whole = next(line for line in honest if line["finish_reason"] == "stop" and len(line["token_ids"]) > 6)
    ids = whole["token_ids"]
    dropped = whole | {"token_ids": ids[:-4], "answer": town.decode(ids[:-4])}
    (text,) = audit([dropped], town).texts
    assert text.verdict == OTHER and text.place == len(ids) - 4 and "continues with" in text.reason
    on = written(town, PROMPTS[0], min_new_tokens=LIMIT)  # past the end token
    assert verdicts([on], town) == [OTHER]
    assert verdicts([whole | {"token_ids": ids[:-1]}], town) == [OWN]  # an engine may leave the end token out


def test_an_end_token_ends_an_answer_whatever_its_line_says(town, honest):
    whole = next(line for line in honest if line["finish_reason"] == "stop" and len(line["token_ids"]) > 6)
    ids = whole["token_ids"]
    bare = {"messages": whole["messages"], "token_ids": ids}
    more = whole | {"token_ids": [*ids, *ids[:3]], "finish_reason": "length", "max_tokens": len(ids) + 3}
    late = bare | {"token_ids": [*ids[:3], ids[-1]]}
    padded = bare | {"token_ids": [*ids, ids[-1], ids[-1]]}
    short, on, early, full = audit([bare, more | {"answer": ""}, late, padded], town).texts
    assert short.verdict == full.verdict == OWN and short.tokens == full.tokens == len(ids) - 1
    assert on.verdict == OTHER and on.place == len(ids) and "continues after its end token" in on.reason
    assert early.verdict == OTHER and early.place == 3 and "marked as ended" in early.reason
    with pytest.raises(PromptError, match="continues after its end token"):
        audit([whole], town, honest=[more] * 8)


def test_another_system_prompt_is_not_the_targets(town, honest):
    lines = []
    for line in honest:
        other = written(town, "Sing a song of the sea and the old harbour.")
        lines.append(other | {"messages": line["messages"]})
    assert verdicts(lines, town).count(OTHER) >= len(lines) - 1


def test_what_cannot_be_told_is_not_guessed(town, honest):
    line = next(each for each in honest if each["finish_reason"] == "length")
    ended = next(each for each in honest if each["finish_reason"] == "stop")
    doubtful = {
        "no finish_reason": {k: v for k, v in line.items() if k != "finish_reason"},
        "does not depend on the target": line | {"finish_reason": "tool_calls"},
        "cut off at 64 tokens, but it has 20": line | {"max_tokens": 64},
        "spell a different text": line | {"answer": "something else"},
        "outside the vocabulary": line | {"token_ids": [10**6]},
        "U+FFFD": words_alone(line) | {"answer": "a \ufffd b"},
        "exceeds the context": line | {"token_ids": line["token_ids"] * 1000, "answer": ""},
    }
    for words, each in doubtful.items():
        (text,) = audit([each], town).texts
        assert text.verdict == UNSURE and words in text.reason, (words, text)
    # An answer that ends where the target ends needs no finish_reason.
    assert verdicts([{k: v for k, v in ended.items() if k != "finish_reason"}], town) == [OWN]
    # A wrong token stays wrong, whatever ended the answer.
    bad, _ = replaced(town, line, 3, 1.0)
    assert verdicts([{k: v for k, v in bad.items() if k != "finish_reason"}], town) == [OTHER]


def test_an_engines_name_for_a_cut_answer_does_not_matter(town, honest):
    line = next(each for each in honest if each["finish_reason"] == "length")
    for reason in ("limit", "max_tokens", "maxPredictedTokensReached", "contextLengthReached"):
        assert verdicts([line | {"finish_reason": reason}], town) == [OWN], reason
    # A full context may cut an answer before it has as many tokens as it could have.
    more = line | {"max_tokens": 64}
    assert verdicts([more | {"finish_reason": "contextLengthReached"}], town) == [OWN]
    assert verdicts([more | {"finish_reason": "limit"}], town) == [UNSURE]


def test_an_engines_name_for_an_answer_that_ended_does_not_matter(town, honest):
    line = next(each for each in honest if each["finish_reason"] == "stop")
    for reason, verdict in (("eos_token", OWN), ("eosFound", OWN), ("stop_sequence", UNSURE)):
        assert verdicts([line | {"finish_reason": reason}], town) == [verdict], reason


def test_an_answer_that_was_cut_off_is_not_read_again_in_float64(town, honest, monkeypatch):
    """The target goes on after it, which decides nothing."""
    cut = [line for line in honest if line["finish_reason"] == "length"]
    monkeypatch.setattr(Reference, "double", None)
    assert cut and set(verdicts(cut, town)) == {OWN}
    ended = cut[0] | {"finish_reason": "stop"}
    with pytest.raises(TypeError):
        audit([ended], town)


NEUTRAL = {
    "min_p": 0, "typical_p": 1.0, "repetition_penalty": 1, "repeat_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0, "logit_bias": {}, "response_format": {"type": "text"}, "ignore_eos": False,
    "grammar": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("typical_p", 0.9, "typical_p 0.9"),
        ("repetition_penalty", 1.05, "repetition_penalty 1.05"),
        ("repeat_penalty", 1.1, "repeat_penalty 1.1"),
        ("presence_penalty", -0.5, "presence_penalty -0.5"),
        ("frequency_penalty", 1, "frequency_penalty 1"),
        ("logit_bias", {"5": -100}, "logit_bias"),
        ("logit_bias", [[5, False]], "logit_bias"),
        ("response_format", {"type": "json_object"}, "response_format"),
        ("grammar", 'root ::= "a"', "grammar"),
    ],
)
def test_a_setting_that_is_not_computed_leaves_the_answer_unjudged(town, honest, name, value, words):
    bad, _ = replaced(town, next(line for line in honest if len(line["token_ids"]) > 6), 3, 1.0)
    assert verdicts([honest[0] | NEUTRAL, bad | NEUTRAL], town) == [OWN, OTHER]
    for line in (honest[0], bad):
        (text,) = audit([line | {name: value}], town).texts
        assert text.verdict == UNSURE and f"it was decoded with {words}, but only" in text.reason
    with pytest.raises(PromptError, match="is not an honest answer: it was decoded with"):
        audit(honest[:1], town, honest=[line | {name: value} for line in honest])


def test_min_p_matters_only_when_sampling(town, honest, drawn):
    assert verdicts([honest[0] | {"min_p": 0.05}], town) == [OWN]
    result = audit([line | {"min_p": 0.05} for line in drawn], town)
    assert result.drawn == [] and not result.holds
    assert all("it was decoded with min_p 0.05" in text.reason for text in result.texts)


def test_a_model_without_a_template_reads_no_messages(tmp_path):
    from checkpoints import checkpoint

    checkpoint(tmp_path / "plain", template=False)
    line = {"messages": [{"role": "user", "content": "a"}], "answer": "b", "finish_reason": "stop"}
    (text,) = audit([line], str(tmp_path / "plain")).texts
    assert text.verdict == UNSURE and "template is unknown" in text.reason
    prompt = {"prompt": "a", "answer": "b", "finish_reason": "length"}
    assert audit([prompt], str(tmp_path / "plain")).texts[0].tokens == 1


class Spelling:
    """A reference that continues a prompt with given tokens and then ends the text."""

    def __init__(self, model, prompt, ids, height=9.0):
        self.model, self.after, self.height = model, {}, height
        for i, token in enumerate([*ids, model.eos[0]]):
            self.after[(*prompt, *ids[:i])] = token

    def rows(self, prompt, text):
        rows = torch.zeros(len(text), self.model.vocabulary)
        for i in range(len(text)):
            rows[i, self.after.get((*prompt, *text[:i]), self.model.eos[-1])] = self.height
        return rows

    double = rows


def test_the_same_text_in_other_tokens_is_the_targets_own(town, monkeypatch):
    messages = [{"role": "user", "content": "x"}]
    prompt, text = town.encode(messages), "the cook and the baker"
    letters = [token for letter in text for token in town.text.plain(letter)]
    common = town.text.plain(text)
    assert b"".join(map(town.piece, letters)) == text.encode() and len(common) < len(letters)
    mixed = [*town.text.plain("the c"), *town.text.plain("ook and the baker")]
    line = {"messages": messages, "answer": text, "finish_reason": "stop"}
    import sys

    from specviz.audit import answers as _  # noqa: F401

    module = sys.modules["specviz.audit.answers"]
    for ids in (common, mixed):
        monkeypatch.setattr(module, "reference_of", lambda model, ids=ids: Spelling(model, prompt, ids))
        assert verdicts([line], town) == [OWN]
    assert verdicts([line | {"answer": "the cook and the doctor"}], town) == [OTHER]
    assert verdicts([line | {"token_ids": common}], town) == [OTHER]  # given ids are not respelled
    # A space that the engine stripped at either end is restored.
    blank = [*town.text.plain(" the cook"), *town.text.plain("\n")]
    monkeypatch.setattr(module, "reference_of", lambda model: Spelling(model, prompt, blank))
    assert verdicts([line | {"answer": "the cook"}], town) == [OWN]
    # With more spellings than are tried, the verdict is unsure.
    monkeypatch.setattr(module, "SPELLINGS", 1)
    monkeypatch.setattr(module, "reference_of", lambda model: Spelling(model, prompt, mixed))
    assert verdicts([line], town) == [UNSURE]


# -- envelopes ------------------------------------------------------------------------------------------


def test_an_engines_noise_is_measured_on_its_honest_answers(town, honest):
    noisy, margins = [], []
    for line in honest:  # cut after its least certain token, which is replaced by the runner-up
        n = runner_up(town, line)
        bad, margin = replaced(town, line | {"token_ids": line["token_ids"][: n + 1]}, n, 1e-3)
        noisy.append(bad | {"engine": "e", "finish_reason": "length", "max_tokens": n + 1})
        margins.append(margin)
    assert max(margins) < 2.0  # otherwise these would not pass as honest answers
    result = audit(noisy, town, honest=noisy)
    own, default = result.envelopes
    assert own.value == pytest.approx(2 * max(margins), rel=1e-3) and (own.engine, own.texts) == ("e", 8)
    assert {text.verdict for text in result.texts} == {NOISE}
    assert default.value == 0.5 and "not measured" in str(default)
    assert "twice" in str(own)
    with pytest.raises(PromptError, match="are too few to measure: give at least 8"):
        audit(noisy, town, honest=noisy[:3])
    wild = [replaced(town, honest[0], 2, 4.0)[0] | {"engine": "e"}, *noisy]
    with pytest.raises(PromptError, match="is not an honest answer of town"):
        audit(noisy, town, honest=wild)
    with pytest.raises(PromptError, match="was sampled"):
        audit(noisy, town, honest=[noisy[0] | {"temperature": 1.0}])
    with pytest.raises(ParameterError, match="above 0 and below 100"):
        audit(noisy, town, envelope=0)


def test_honest_answers_that_name_no_engine_are_measured_too(town, honest):
    tried = [(n, *replaced(town, line, n, 0.5)) for line in honest for n in range(len(line["token_ids"]) - 1)]
    place, bad, margin = min(tried, key=lambda each: each[2])
    assert 0.5 < margin < 2
    bad |= {"token_ids": bad["token_ids"][: place + 1], "finish_reason": "length"}
    del bad["max_tokens"]
    del bad["answer"]
    assert verdicts([bad], town, honest=honest) == [OTHER] != verdicts([bad], town, honest=[*honest, bad])
    result = audit([bad, bad | {"engine": "vllm"}, bad | {"engine": "ollama"}], town, honest=[*honest, bad])
    assert [(each.engine, each.texts) for each in result.envelopes] == [("ollama", 0), ("", 9)]
    assert {text.verdict for text in result.texts[:2]} == {NOISE}
    # A given envelope is for engines that were not measured.
    both = audit([bad, bad | {"engine": "vllm"}], town, honest=[*honest, bad], envelope=0.4)
    assert [text.verdict for text in both.texts] == [NOISE, OTHER]
    first, second = map(str, both.envelopes)
    assert "logits of answers that name no engine: twice" in first
    assert second == "0.4 logits of any engine, given"
    assert "logits of any engine: twice" in str(result.envelopes[1])


def shifted(monkeypatch, **changes):
    """Change the margins that are computed of every answer."""
    import sys
    from dataclasses import replace

    judge = sys.modules["specviz.audit.answers"]._Judge
    real = judge.places
    monkeypatch.setattr(
        judge,
        "places",
        lambda *given, **rest: replace(
            real(*given, **rest), **{name: change(real(*given, **rest)) for name, change in changes.items()}
        ),
    )


def test_the_envelope_covers_the_ends_of_honest_answers(town, honest, monkeypatch):
    ended = [line for line in honest if line["finish_reason"] == "stop"] * 8
    with monkeypatch.context() as change:
        shifted(change, end=lambda places: 0.3)
        (own,) = audit(ended[:8], town, honest=ended[:8]).envelopes
        assert own.largest == 0.3 and own.value == 0.6
        cut = [line | {"finish_reason": "length"} for line in ended[:8]]
        assert audit(cut, town, honest=cut).envelopes[0].value == 0.01
    with monkeypatch.context() as change:
        shifted(change, end=lambda places: 3.0)
        with pytest.raises(PromptError, match="one of its tokens or its end is 3"):
            audit(ended, town, honest=ended)
    empty = {"messages": honest[0]["messages"], "token_ids": [], "finish_reason": "length"}
    with pytest.raises(PromptError, match="7 honest answers with tokens are too few"):
        audit(honest, town, honest=[*honest[:7], empty])


def test_an_envelope_is_not_wider_than_what_no_honest_answer_exceeds(town, honest, monkeypatch):
    shifted(monkeypatch, margin=lambda places: places.margin + 1.5)
    own = audit(honest, town, honest=honest).envelopes[0]
    assert own.largest == pytest.approx(1.5) and own.value == 2.0 and "at most 2" in str(own)


def test_an_honest_text_is_measured_in_its_nearest_spelling(town, monkeypatch):
    import sys

    messages = [{"role": "user", "content": "x"}]
    mixed = [*town.text.plain("the c"), *town.text.plain("ook and the baker")]
    reference = Spelling(town, town.encode(messages), mixed, height=1.5)  # any other spelling is 1.5 below
    monkeypatch.setattr(sys.modules["specviz.audit.answers"], "reference_of", lambda model: reference)
    line = {"messages": messages, "answer": "the cook and the baker", "finish_reason": "stop"}
    assert audit([line], town, honest=[line] * 8).envelopes[0].value == 0.01


def test_an_engine_that_rounds_more_has_a_wider_envelope(town, honest):
    lines = [line | {"engine": engine} for engine in ("llama.cpp", "vllm") for line in honest[:1]]
    assert [(each.engine, each.value) for each in audit(lines, town).envelopes] == [
        ("llama.cpp", 0.75),
        ("", 0.5),
    ]
    assert [each.value for each in audit(lines, town, envelope=0.3).envelopes] == [0.3]
    assert [each.value for each in audit(lines[1:], town).envelopes] == [0.5]
    for engine in ("llama-server", "llama.cpp b9235", "LM Studio", "Ollama", "llama_cpp_python"):
        own, _ = audit([honest[0] | {"engine": engine}], town).envelopes
        assert (own.engine, own.value) == (engine, 0.75)
    for engine in ("LM Studio mlx-engine 0.9", "SGLang", ""):
        assert [each.value for each in audit([honest[0] | {"engine": engine}], town).envelopes] == [0.5]


# -- sampled answers ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn(town):
    torch.manual_seed(0)
    options = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "top_k": 0}
    stated = {"temperature": 0.9, "top_p": 0.95, "engine": "transformers"}
    return [written(town, p, **options) | stated for p in PROMPTS * 3]


def test_sampled_answers_are_tested_as_a_set(town, drawn, honest):
    result = audit(drawn, town)
    (test,) = result.drawn
    assert test.verdict == OWN and abs(test.z) < 3.5 and test.texts == len(drawn)
    assert {text.verdict for text in result.texts} == {UNSURE} and result.holds
    (hot,) = audit([line | {"temperature": 1.8, "top_p": 1.0} for line in drawn], town).drawn
    assert hot.verdict == OTHER and hot.z > 5 and "lower temperature" in str(hot)
    greedy = audit([line | {"temperature": 0.9} for line in honest * 2], town)
    assert greedy.drawn[0].verdict == OTHER and not greedy.holds
    two = audit([*drawn, *(line | {"engine": "vllm"} for line in drawn)], town).drawn
    assert [each.engine for each in two] == ["transformers", "vllm"] and two[0].p == test.p
    assert "sampled answers of vllm (temperature 0.9" in str(two[1])
    few = audit(drawn[:1], town).drawn[0]
    assert few.verdict == UNSURE and "needs 100 tokens" in str(few)
    assert str(few).startswith("1 sampled answer of transformers (")


def test_llama_cpp_applies_the_temperature_last(town):
    """Top-p then keeps fewer tokens if the temperature is high."""
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).double()
    first, last = (kind(4.0, 0, 0.8).probabilities(logits) for kind in (Sampling, TemperatureLast))
    assert (first > 0).tolist() == [True, True, True, False]
    assert last.tolist() == pytest.approx([*torch.tensor([0.75, 0.5]).softmax(0).tolist(), 0, 0])
    assert torch.equal(TemperatureLast(4.0, 2).probabilities(logits), Sampling(4.0, 2).probabilities(logits))
    torch.manual_seed(0)
    options = {"temperature": 2.0, "top_p": 0.7}
    prompts = [town.encode([{"role": "user", "content": prompt}]) for prompt in PROMPTS * 2]
    lines = []
    for ids in prompts:
        tokens = list[int]()
        while len(tokens) < LIMIT and not set(tokens) & set(town.eos):
            with torch.inference_mode():
                row = town.net(torch.tensor([[*ids, *tokens]])).logits[0, -1].double()
            tokens.append(int(torch.multinomial(TemperatureLast(2.0, 0, 0.7).probabilities(row), 1)))
        end = "stop" if tokens[-1] in town.eos else "length"
        lines.append({"prompt": ids, "token_ids": tokens, "finish_reason": end} | options)
    verdict = {}
    for engine in ("llama.cpp", "vllm", "", "mlx-lm", "ollama"):
        result = audit([line | {"engine": engine} for line in lines], town)
        verdict[engine] = [test.verdict for test in result.drawn]
        assert engine == "vllm" or OTHER not in {text.verdict for text in result.texts}
    assert verdict == {"llama.cpp": [OWN], "vllm": [OTHER], "": [], "mlx-lm": [], "ollama": []}
    assert "before or after top-p is not known" in result.texts[0].reason
    settings = [
        sampling_of(answer_files.read([lines[0] | {"engine": each}])) for each in ("vllm", "llamafile")
    ]
    assert settings == [Sampling(2.0, 0, 0.7), TemperatureLast(2.0, 0, 0.7)]


def test_the_end_token_of_a_sampled_answer_was_drawn_too(town, drawn):
    plain = [{k: v for k, v in line.items() if k != "finish_reason"} for line in drawn]
    (test,), (bare,) = audit(drawn, town).drawn, audit(plain, town).drawn
    assert bare.tokens == test.tokens == sum(len(line["token_ids"]) for line in drawn)
    ended = next(line for line in drawn if line["finish_reason"] == "stop")
    (text,) = audit(
        [ended | {"token_ids": ended["token_ids"] + ended["token_ids"][:2], "answer": ""}], town
    ).texts
    assert text.verdict == OTHER and text.place == len(ended["token_ids"])


def test_a_token_that_cannot_be_drawn_is_not_the_targets(town, drawn):
    line = next(each for each in drawn if len(each["token_ids"]) > 6)
    bad, _ = replaced(town, line, 2, 12.0)
    (text,) = audit([bad], town).texts
    assert text.verdict == OTHER and text.place == 2
    assert "cannot be drawn there (temperature 0.9, top-p 0.95)" in text.reason
    (text,) = audit([bad | {"top_p": 1.0, "top_k": 1}], town).texts
    assert text.verdict == OTHER and "cannot be drawn there (temperature 0.9, top-k 1)" in text.reason
    assert audit([words_alone(bad)], town).texts[0].verdict == UNSURE


# -- a sibling --------------------------------------------------------------------------------------------


def coarse(model, name="town-coarse", step=0.03):
    """The same weights, rounded to a coarser grid."""
    import copy

    net = copy.deepcopy(model.net)
    with torch.no_grad():
        for weight in net.parameters():
            scale = step * weight.abs().max()
            weight.copy_((weight / scale).round() * scale)
    return type(model)(net, model.tokenizer, name=name)


def test_a_set_of_a_siblings_answers_is_named(town, honest):
    other = coarse(town)
    theirs = [written(other, prompt) for prompt in [*PROMPTS, *(f"{p} And then?" for p in PROMPTS)]]
    result = audit(theirs, town, sibling=other)
    assert result.sibling.like == "town-coarse" and result.sibling.error < 0.01
    assert result.sibling.margin > result.sibling.sibling_margin and not result.holds
    assert "look like town-coarse, not like town" in str(result.sibling)
    back = audit(
        [written(town, p) for p in [*PROMPTS, *(f"{p} And then?" for p in PROMPTS)]], town, sibling=other
    )
    assert back.sibling.like == "town" and back.holds
    few = audit(honest[:2], town, sibling=other).sibling
    assert few.like == "" and "cannot be distinguished (the test needs at least 8)" in str(few)


def test_a_template_is_a_sibling_too(town, tmp_path):
    from checkpoints import TEMPLATE

    path = tmp_path / "other.jinja"
    path.write_text(
        town.tokenizer.chat_template.replace("add_generation_prompt", "not add_generation_prompt")
    )
    assert path.read_text() != town.tokenizer.chat_template and TEMPLATE
    before = town.encode([{"role": "user", "content": "a"}])
    lines = [written(town, prompt) for prompt in [*PROMPTS, *(f"{p} And then?" for p in PROMPTS)]]
    result = audit(lines, town, sibling=f"template:{path}")
    assert result.sibling.like == "town" and result.sibling.name == "the template other.jinja"
    assert town.encode([{"role": "user", "content": "a"}]) == before
    with pytest.raises(ParameterError, match="cannot read the template"):
        audit(lines, town, sibling="template:none")


def test_the_sign_flips_error_rate(monkeypatch):
    assert Sibling.of("s", "t", [1.0] * 20, [0.0] * 20).error < 1e-4
    assert Sibling.of("s", "t", [0.0] * 20, [0.0] * 20).like == ""
    rng = np.random.default_rng(0)
    errors = [Sibling.of("s", "t", *rng.random((2, 12))).error for _ in range(60)]
    assert 0.1 < np.mean(np.array(errors) < 0.25) < 0.4
    assert Sibling.of("s", "t", [1.0] * 3, [0.0] * 3).error == pytest.approx(2 / 8, abs=0.02)  # +++ or ---
    least = [Sibling.of("s", "t", [1.0] * n, [0.0] * n) for n in (7, 8)]
    assert [each.like for each in least] == ["", "s"]
    assert "needs at least 8" in str(least[0]) and "nearer to the sibling; p = 0.0" in str(least[1])
    margins = rng.random((2, 12))
    at_once = Sibling.of("s", "t", *margins)
    monkeypatch.setattr(answer_report, "FLIPPED", 100)  # in blocks
    assert Sibling.of("s", "t", *margins) == at_once


# -- files and the command --------------------------------------------------------------------------------

BAD = [
    ("{}", "lacks 'prompt', 'turns' or 'messages'"),
    (
        '{"prompt": "a", "messages": [{"role": "user", "content": "b"}], "answer": "c"}',
        "has several of 'prompt'",
    ),
    ('{"prompt": "a"}', "lacks 'answer'"),
    ('{"turns": [], "answer": "a"}', "turns"),
    ('{"prompt": "", "answer": "a"}', "has an empty prompt"),
    ('{"prompt": "a", "answer": 1}', "answer should be a string, not 1"),
    ('{"prompt": "a", "answer": "b", "temperature": -1}', "temperature"),
    ('{"prompt": "a", "answer": "b", "top_p": 0}', "top_p"),
    ('{"prompt": "a", "answer": "b", "top_k": -2}', "top_k"),
    ('{"prompt": "a", "answer": "b", "repeat_penalty": "1.1"}', "repeat_penalty should be a number"),
    ('{"prompt": "a", "token_ids": [-1]}', "token_ids[0]"),
    ("[", "is not JSON"),
    ("3", "should be an object"),
]


@pytest.mark.parametrize(("line", "words"), BAD)
def test_a_bad_line_is_named(tmp_path, town, line, words):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n")
    with pytest.raises(PromptError, match="line 2") as error:
        audit(path, town)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("top_k", [-1, 0, None])
def test_engines_spell_all_tokens_differently(top_k):
    (line,) = answer_files.read([{"prompt": "a", "answer": "b", "temperature": 1.0, "top_k": top_k}])
    assert line.top_k == 0


def test_a_tilde_is_the_home_folder(tmp_path, town, honest, monkeypatch):
    """A shell leaves it in --answers=~/a.jsonl and in template:~/b.jinja."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.jsonl").write_text(json.dumps(honest[0]) + "\n")
    (tmp_path / "b.jinja").write_text(town.tokenizer.chat_template)
    result = audit("~/a.jsonl", town, sibling="template:~/b.jinja")
    assert result.holds and result.sibling.name == "the template b.jinja"


def test_the_command(tmp_path, honest, town, capsys):
    path, report = tmp_path / "a.jsonl", tmp_path / "r.json"
    path.write_text("".join(json.dumps(line) + "\n" for line in honest))
    assert cli.run(["audit", "--answers", str(path), "--model", "town", "--json", str(report)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("model: town\nweights: SHA-256 ") and "8 the target's own" in out
    assert json.loads(report.read_text())["holds"] is True
    bad, _ = replaced(town, next(line for line in honest if len(line["token_ids"]) > 6), 3, 1.0)
    path.write_text(json.dumps(bad) + "\n")
    assert cli.run(["audit", "--answers", str(path), "--model", "town"]) == 1
    assert "line 1: not the target's: token 3" in capsys.readouterr().out
    for arguments, words in (
        (["--answers", str(path)], "name it with --model"),
        (["--answers", str(path), "--model", "town", "--method", "bild"], "read, not decoded"),
        (["--sibling", "town"], "need --answers"),
        (["--answers", str(tmp_path / "none"), "--model", "town"], "cannot read"),
    ):
        assert cli.run(["audit", *arguments]) == 2
        err = capsys.readouterr().err
        assert words in err and err.count("\n") == 1


def test_a_canvas_has_no_answers(honest):
    with pytest.raises(ParameterError, match="masked-diffusion"):
        audit(honest, "town-diffusion")
