"""Text to ids and back: every tokenizer's pieces join to the text, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from specviz.errors import PromptError
from specviz.models.text import Text

SAMPLES = [
    "the old bridge, the mill",
    "Die Brücke über den Fluß",
    "橋の下で水が流れる。",
    "def f(x):\n\treturn x + 1",
] * 3
SPECIAL = ["<s>", "</s>", "<unk>"]
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def wrap(tokenizer: Tokenizer, **rest: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **rest
    )


def byte_level(**rest: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SAMPLES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 1)])
    return wrap(tokenizer, **rest)


def sentencepiece() -> PreTrainedTokenizerFast:
    words = ["▁", "t", "h", "e", "th", "the", "▁the", "o", "l", "d", "橋"]
    raw = [f"<0x{b:02X}>" for b in range(256)]
    vocabulary = {piece: i for i, piece in enumerate(SPECIAL + raw + words)}
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return wrap(tokenizer)


def test_a_run_of_spaces_that_was_added_is_spaces():
    """As in Gemma's tokenizers."""
    words = sentencepiece()
    words.add_tokens("▁▁▁▁")
    words.add_special_tokens({"additional_special_tokens": ["<▁>"]})
    text = Text(words, len(words), ())
    run, special = words.convert_tokens_to_ids(["▁▁▁▁", "<▁>"])
    assert text.piece(run) == b"    " and text.piece(special) == "<▁>".encode()


ENGINES = {"bytes": byte_level(), "sentencepiece": sentencepiece()}


@pytest.mark.parametrize("name", ENGINES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), min_size=1))
def test_pieces_join_to_the_text(name: str, text: str) -> None:
    tokenizer = ENGINES[name]
    if any(mark in text for mark in SPECIAL):
        return
    words = Text(tokenizer, len(tokenizer), (1,))
    assert words.scheme == name
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(words.piece(i) for i in ids) == text.encode()
    assert words.decode(ids) == text


def test_wordpiece_and_unknown_ids() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "now": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    words = Text(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"), 8)
    assert words.scheme == "wordpiece"
    assert [words.piece(i) for i in (1, 2, 3)] == [b" play", b"ing", b" now"]
    assert words.piece(6) == b""  # a head row without a token


def test_a_mark_at_the_end_of_a_word_is_a_space_after_it() -> None:
    """As in the vocabularies of the first GPT and of CLIP."""
    pieces = ["<unk>", "mil", "l</w>", "the</w>", "na", "ve</w>"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    words = Text(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"), 6)
    assert words.decode([3, 1, 2, 4, 5]) == "the mill nave "
    assert [words.piece(i) for i in (1, 2, 3)] == [b"mil", b"l ", b"the "]


def test_tokens_that_are_bytes_keep_those_beyond_ascii() -> None:
    """ByT5's own decode drops a byte that is not a whole character."""
    tokenizer = ByT5Tokenizer()
    words, text = Text(tokenizer, 384, (tokenizer.eos_token_id,), source=True), "naïve café, 橋 🙂"
    ids = words.encode(text)
    assert b"".join(words.piece(i) for i in ids[:-1]) == text.encode()
    assert words.decode(ids) == text
    assert [words.piece(i) for i in (65 + 3, 0xC3 + 3, 384)] == [b"A", b"\xc3", b""]


def test_begin_is_kept_and_an_end_behind_the_prompt_is_not() -> None:
    tokenizer = ENGINES["bytes"]
    words = Text(tokenizer, len(tokenizer), (1,))
    ids = words.encode("the mill")
    assert ids[0] == 0
    assert ids[-1] != 1
    assert words.decode(ids) == "the mill"
    assert words.piece(0) == b"<s>"
    assert words.encode("the mill</s>")[-1] == 1  # unless the prompt itself ends with one
    assert words.encode([3, 4]) == [3, 4]


def test_chat_messages_go_through_the_template() -> None:
    tokenizer = byte_level(chat_template=CHAT)
    words = Text(tokenizer, len(tokenizer), (1,))
    ids = words.encode([{"role": "user", "content": "the mill"}])
    assert ids[0] == 0
    assert ids.count(0) == 1
    assert words.decode(ids) == "[user]the mill[assistant]"
    assert words.encode("the mill") == ids  # a text is a user message
    assert words.decode(words.encode("the mill", raw=True)) == "the mill"  # unless raw
    with pytest.raises(PromptError, match="visible"):
        words.encode("  ")
    with pytest.raises(PromptError, match="message 0 needs a role and a content"):
        words.encode([{"role": "user"}])
    bare, message = Text(ENGINES["bytes"], 400), {"role": "user", "content": "x"}
    assert bare.encode([message]) == bare.encode("x")
    for messages in ([message, message], [{"role": "system", "content": "x"}], [{"role": "user"}]):
        with pytest.raises(
            PromptError, match=f"no chat template and takes single texts, not {len(messages)} m"
        ):
            bare.encode(messages)


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        ("", "empty"),
        ([], "empty"),
        ([1, 999], "token id 999 is outside m's vocabulary of 400"),
        ([-1], "token id -1 is outside"),
        ([True], "a list of token ids"),
        ([1, "x"], "a list of token ids"),
    ],
)
def test_bad_prompts(prompt: object, line: str) -> None:
    with pytest.raises(PromptError, match=line):
        Text(ENGINES["bytes"], 400).encode(prompt, "m")
    with pytest.raises(PromptError, match="no tokenizer: pass token ids"):
        Text(None, 400).encode("x", "m")
