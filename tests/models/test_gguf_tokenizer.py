"""A GGUF file's tokenizer on torch against llama.cpp's: ids, pieces, special tokens and refusals."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

import gguf
from gguf import TokenType
from sample_texts import ROOT, sample_texts
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

import specviz as sv
from specviz.errors import ModelError, PromptError
from specviz.models import load
from specviz.models.gguf.header import read_header
from specviz.models.gguf.tokenizer import ALIKE, CUTS, tokenizer
from specviz.models.llamacpp.model import Weights
from specviz.models.llamacpp.text import GgufText
from specviz.models.llamacpp.text import Tokenizer as LlamaCppTokenizer
from specviz.models.template import Template
from specviz.models.text import Text, _alphabet

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
CONTROLS = ("<|im_start|>", "<|im_end|>")
OTHERS = [name for names in ALIKE.values() for name in names.split()]  # that split as another one does
FIRST = sorted(CUTS.keys() - set(OTHERS))


def write(path: Path, fields: dict[str, Any]) -> Path:
    """Write a GGUF file that has only a header."""
    out = gguf.GGUFWriter(path, "llama")
    for key, value in {"general.name": "made", **fields}.items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        if isinstance(value, list):
            out.add_array(name, value)
        elif isinstance(value, bool):
            out.add_bool(name, value)
        else:
            (out.add_uint32 if isinstance(value, int) else out.add_string)(name, value)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    return path


def both(path: Path) -> tuple[Text, Text]:
    """The tokenizer on torch and llama.cpp's."""
    fields = read_header(path).fields
    size = len(fields["tokenizer.ggml.tokens"])
    theirs = LlamaCppTokenizer(Weights(path, 0, words=True), "made")
    words, end = tokenizer(fields, "made")
    return (
        Text(words, size, end),
        GgufText(theirs, size, theirs.eos),
    )


@cache
def trained(kind: str) -> tuple[list[str], list[str]]:
    """Pieces and merges of a small vocabulary, trained on whole lines so that every split shows."""
    names = ["README.md", "specviz/models/text.py", "data/suites/town.jsonl"]
    rng = random.Random(0)
    lines = [line[:60] for name in names for line in (ROOT / name).read_text().splitlines(keepends=True)]
    lines += ["".join(texts) for texts in zip(*[iter(sample_texts()["numbers"])] * 3)]
    rng.shuffle(lines)
    raw = Tokenizer(models.BPE())
    alphabet = sorted(_alphabet())
    if kind == "gpt2":
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        lines, alphabet = [f"▁{line.replace(' ', '▁')}" for line in lines], []
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(lines, trainer)
    model = json.loads(raw.to_str())["model"]
    return list(model["vocab"]), [" ".join(pair) for pair in model["merges"]]


def byte_level(pre: str, lacking: bytes = b"", **others: Any) -> dict[str, Any]:
    """The fields of a byte-level BPE, without the pieces of some bytes."""
    pieces, merges = trained("gpt2")
    spelled = {byte: name for name, byte in _alphabet().items()}
    gone = {spelled[byte] for byte in lacking}
    pieces = [piece for piece in pieces if not gone & set(piece)]
    merges = [merge for merge in merges if not gone & set(merge)]
    # No merge makes these two, so they are tokens only if a whole split is looked up as a piece.
    pieces = [*CONTROLS, "<mine>", *pieces, "Ġzebrafish", "qx"]
    types = [TokenType.CONTROL] * 2 + [TokenType.USER_DEFINED] + [TokenType.NORMAL] * (len(pieces) - 3)
    return {
        "model": "gpt2", "pre": pre, "tokens": pieces, "token_type": [int(each) for each in types],
        "merges": merges, "bos_token_id": 0, "eos_token_id": 1, "tokenizer.chat_template": CHAT, **others,
    }  # fmt: skip


def sentencepiece(lacking: bytes = b"", **others: Any) -> dict[str, Any]:
    """The fields of a SentencePiece BPE, without the pieces of some bytes."""
    pieces, _ = trained("llama")
    characters = sorted(piece for piece in pieces if len(piece) == 1)
    merged = [piece for piece in pieces if len(piece) > 1]
    spelled = [f"<0x{byte:02X}>" for byte in range(256) if byte not in lacking]
    first = ["<unk>", *CONTROLS, "<mine>"]
    types = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, TokenType.USER_DEFINED]
    types += [TokenType.BYTE] * len(spelled) + [TokenType.NORMAL] * (len(merged) + len(characters))
    ranks = range(len(merged) + len(characters))
    return {
        "model": "llama", "tokens": [*first, *spelled, *merged, *characters],
        "scores": [0.0] * (len(first) + len(spelled)) + [-float(i) for i in ranks],
        "token_type": [int(each) for each in types], "bos_token_id": 1, "eos_token_id": 2,
        "tokenizer.chat_template": CHAT, **others,
    }  # fmt: skip


READ: dict[str, Callable[[Text, str], list[int]]] = {
    "plain": lambda text, prompt: text.plain(prompt),
    "raw": lambda text, prompt: text.encode(prompt, raw=True),
    "control": lambda text, prompt: text._tokens(prompt, False, False),
    "chat": lambda text, prompt: text.encode(prompt),
}


def outcome(read: Callable[..., list[int]], *given: Any) -> list[int] | str:
    """Token ids, or the reason that there are none."""
    try:
        return read(*given)
    except PromptError as error:
        return str(error)


def check(pair: tuple[Text, Text], texts: list[str], ways: str = "plain raw control chat") -> int:
    """Check that both give the same ids for each text and way; count the refusals in the first way."""
    refused = 0
    for prompt in texts:
        for way in ways.split():
            mine, theirs = (outcome(READ[way], text, prompt) for text in pair)
            assert mine == theirs, (way, prompt)
            assert isinstance(mine, list) or "\n" not in mine
            refused += isinstance(mine, str) and ways.startswith(way)
    return refused


def few(step: int) -> list[str]:
    return [text for texts in sample_texts().values() for text in texts[::step]] + [
        "a zebrafish qx qxqx", "<mine>x<mine> <|im_end|>",
    ]  # fmt: skip


# -- the same ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", FIRST)
def test_ids_are_those_of_llama_cpp(pre: str, tmp_path: Path) -> None:
    mine, theirs = pair = both(write(tmp_path / "x.gguf", byte_level(pre)))
    assert check(pair, few(4), "plain") == 5  # the lone surrogates
    assert check(pair, few(40)) == 1
    assert (mine.begin, mine.special, mine.added) == (theirs.begin, theirs.special, theirs.added)


@pytest.mark.parametrize("pre", OTHERS)
def test_names_of_one_cut(pre: str, tmp_path: Path) -> None:
    mine, theirs = pair = both(write(tmp_path / "x.gguf", byte_level(pre)))
    check(pair, few(40), "plain")
    assert mine.begin == theirs.begin


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("lacking", [b"", b"\x04\xf0"])
def test_sentencepiece(prefix: bool, lacking: bytes, tmp_path: Path) -> None:
    fields = sentencepiece(lacking, add_space_prefix=prefix, add_bos_token=prefix)
    mine, theirs = pair = both(write(tmp_path / "x.gguf", fields))
    refused = check(pair, few(4), "plain")
    assert refused > 100 if lacking else refused == 5
    check(pair, few(40))
    assert mine.begin == theirs.begin == (1 if prefix else None)
    assert (mine.special, mine.added) == (theirs.special, theirs.added)
    assert [mine.piece(i) for i in range(mine.vocabulary)] == [
        theirs.piece(i) for i in range(mine.vocabulary)
    ]
    assert mine.piece(4) == b"\x00" and mine.difference(theirs) is None


def test_the_cuts_differ(tmp_path: Path) -> None:
    """Otherwise the tests above could not fail."""
    texts = few(4)
    ids = set()
    for pre in FIRST:
        words, _ = tokenizer(read_header(write(tmp_path / "x.gguf", byte_level(pre))).fields, "x")
        mine = Text(words, 3000)
        ids.add(str([outcome(mine.plain, text) for text in texts]))
    assert len(ids) == len(FIRST)


def test_what_looks_like_a_control_token_is_text_unless_the_template_wrote_it(tmp_path: Path) -> None:
    for fields in (byte_level("smollm"), sentencepiece()):
        pair = both(write(tmp_path / "x.gguf", fields))
        prompt = "a<|im_end|> <|im_start|>user <mine> <unk>"
        for text in pair:
            special = [i for i in text.encode(prompt) if i in text.special]
            assert [text.added[i] for i in special] == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
            begin = [] if text.begin is None else [text.begin]
            assert text.encode(prompt, raw=True) == begin + text.plain(prompt)
            assert not text.special & {*text.plain(prompt)}
            assert text.specials["<mine>"] in text.plain(prompt)
            assert len(text.special & {*text._tokens(prompt, False, False)}) >= 2
            assert text.decode(text.plain(prompt)).split() == prompt.split()
        assert check(pair, [prompt, "\ufdd0<|im_end|>"]) == 0
        open_end = fields | {"tokenizer.chat_template": "<|im_start|>{{ messages[0].content }}"}
        for text in both(write(tmp_path / "x.gguf", open_end)):
            first, *rest = text.encode(prompt)
            assert text.added[first] == "<|im_start|>" and not text.special & {*rest}


def test_special_tokens_by_name_whatever_their_type(tmp_path: Path) -> None:
    fields = byte_level("llama-bpe")
    added = ["<|eot_id|>", "<|channel|>", "<fim_prefix>", "<PAD>", "[PAD7]", "", "<|unused_3|>", "last"]
    kinds = [TokenType.NORMAL] * 4 + [TokenType.UNUSED, TokenType.NORMAL, TokenType.CONTROL, TokenType.NORMAL]
    size = len(fields["tokens"])
    fields["tokens"] += added
    fields["token_type"] += [int(kind) for kind in kinds]
    mine, theirs = both(write(tmp_path / "x.gguf", fields | {"eom_token_id": size + 6}))
    assert mine.eos == theirs.eos == (1, size, size + 3, size + 6)
    assert (mine.special, mine.added) == (theirs.special, theirs.added)
    assert mine.special == {0, 1, size, size + 2, size + 3, size + 6}
    assert [mine.piece(i) for i in range(size + 8)] == [theirs.piece(i) for i in range(size + 8)]
    assert mine.piece(size + 4) == b"" and mine.piece(size + 7) == b"last"  # no piece; the last id
    assert mine.difference(theirs) is None
    assert check((mine, theirs), ["<|eot_id|><|channel|>\n <PAD>x", *few(30)]) == 1


def test_phi_3_drops_the_spaces_behind_control_tokens(tmp_path: Path) -> None:
    fields = sentencepiece() | {"general.name": "My Phi-3"}
    added = ["<s>", "</s>", "<|endoftext|>"]
    fields["tokens"] += added
    fields["token_type"] += [int(TokenType.CONTROL)] * 3
    fields["scores"] += [-1e4] * 3
    mine, _ = pair = both(write(tmp_path / "x.gguf", fields))
    prompt = "".join(f"{name} \n b" for name in [*CONTROLS, *added, "<unk>"])
    check(pair, [prompt, *few(100)])
    kept = mine.decode(mine._tokens(prompt, False, False))
    assert kept == " b b  \n b b  \n b  \n b"


# -- what cannot be written -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_only_a_text_that_needs_a_missing_byte_is_refused(kind: str, tmp_path: Path) -> None:
    fields = byte_level("smollm", b"\x04\xf1") if kind == "gpt2" else sentencepiece(b"\x04\xf1")
    pair = both(write(tmp_path / "x.gguf", fields))
    line = "character {} of {}, {}, needs the byte 0x{}, for which this vocabulary has no piece: remove it"
    for text in pair:
        for prompt, at, name, byte in (
            ("a\x04b", 2, "'\\x04'", "04"),
            ("é \U00050000", 3, "'\\U00050000'", "F1"),
        ):
            assert outcome(text.plain, prompt) == line.format(at, "the text", name, byte)
            assert outcome(READ["raw"], text, prompt) == line.format(at, "the text", name, byte)
            assert outcome(text.encode, prompt) == line.format(at, "the prompt", name, byte)
            chat = [{"role": "user", "content": f"{prompt}<|im_end|>" if i else "x"} for i in range(2)]
            assert outcome(text.encode, chat) == line.format(at, "message 1", name, byte)
            model = type("Model", (), {"text": text, "name": "made"})
            assert outcome(Template(model, "<|im_start|>", "\n"), prompt).startswith(f"character {at} of")
        assert text.plain("a\x05b\U000c0000") and text.encode("<mine>\n")
    quoted = fields | {
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    }
    pair = both(write(tmp_path / "x.gguf", quoted))
    for text in pair:
        assert b"\\u0004" in b"".join(
            map(text.piece, text.encode("a\x04b"))
        )  # the template does not need this byte
    assert check(pair, ["a\x04b"], "chat") == 0


def test_a_character_with_a_piece_needs_no_bytes(tmp_path: Path) -> None:
    pair = both(write(tmp_path / "x.gguf", sentencepiece(b"\xc3")))
    assert check(pair, ["é"], "plain raw chat") == 0
    assert check(pair, ["é\xc3"], "plain raw chat") == 1


def test_an_added_token_may_hold_a_missing_byte(tmp_path: Path) -> None:
    fields = byte_level("smollm", b"|\x04")
    fields["tokens"][2] = "<\x04>"
    pair = both(write(tmp_path / "x.gguf", fields))
    assert check(pair, ["<\x04>"], "plain raw chat") == 0
    assert check(pair, ["<\x04> \x04"]) == check(pair, ["<|im_end|>"], "plain chat") == 1
    assert check(pair, ["<|im_end|>x"], "control") == 0


def test_half_a_character_is_refused_by_any_tokenizer(tmp_path: Path) -> None:
    line = "character 3 of {}, '\\udc41', is half of a surrogate pair, which is not a character: remove it"
    pair = both(write(tmp_path / "x.gguf", byte_level("gpt-2")))
    for text in (*pair, load("town").text):
        assert outcome(text.plain, "a \udc41") == line.format("the text")
        assert outcome(text.encode, [{"role": "user", "content": "a \udc41"}]) == line.format("the prompt")


# -- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "line"), [
    ({"model": "bert"}, "its tokenizer is of the kind bert; only gpt2 and llama are supported"),
    ({"pre": "bloom"}, "it splits text by tokenizer.ggml.pre = 'bloom', which is unknown here"),
    ({"pre": 3}, "it splits text by tokenizer.ggml.pre = 3"),
    ({"tokens": []}, "its vocabulary is empty"),
    ({"tokens": ["a", "a"]}, "its vocabulary is empty, has pieces without a type or two with the same name"),
    ({"tokens": ["a", "\udc80"]}, r"its tokenizer.ggml.tokens is not a list of UTF-8 strings"),
    ({"tokens": 3}, "its tokenizer.ggml.tokens is not a list of UTF-8 strings"),
    ({"token_type": [1]}, "pieces without a type"),
    ({"merges": ["a b", "b <mine>"]}, "the merge 'b <mine>' makes no piece"),
    ({"merges": [1]}, "its tokenizer.ggml.merges is not a list of UTF-8 strings"),
    ({"merges": None}, "its vocabulary has no merges: convert the model again"),
    ({"pre": ["smollm"]}, "it splits text by tokenizer.ggml.pre = "),
    ({"model": "llama"}, "pieces without a score"),
    ({"template": ["a", "b"]}, "its tokenizer.chat_template is not a UTF-8 string"),
    ({"model": "llama", "scores": 5}, "pieces without a score"),
])  # fmt: skip
def test_damaged_and_unknown_tokenizers(change: dict[str, Any], line: str) -> None:
    fields = {f"tokenizer.ggml.{key}": value for key, value in (byte_level("gpt-2") | change).items()}
    if "template" in change:
        fields["tokenizer.chat_template"] = change["template"]
    with pytest.raises(ModelError, match=f"^made is not supported: .*{line}") as raised:
        tokenizer(fields, "made")
    assert "\n" not in str(raised.value)


# -- a published file -----------------------------------------------------------------------------------


@pytest.mark.smollm2
def test_smollm2_on_five_thousand_texts(smollm2_file: Path) -> None:
    mine, theirs = pair = both(smollm2_file)
    texts = [text for kind in sample_texts().values() for text in kind]
    assert len(texts) > 5000
    refused = check(pair, texts)
    assert 0 < refused < 1000  # its vocabulary lacks 21 bytes
    assert len(mine._missing) == 21
    size = mine.vocabulary
    assert [mine.piece(i) for i in range(size)] == [theirs.piece(i) for i in range(size)]
    assert mine.eos == theirs.eos and mine.special == theirs.special and mine.difference(theirs) is None


@pytest.mark.smollm2
def test_smollm2_decodes_on_llama_cpp(smollm2_file: Path) -> None:
    trace = sv.generate(f"gguf:{smollm2_file}", "What is 12 plus 30?", "autoregressive", max_new_tokens=12)
    assert len(trace.texts[0]) > 10
    with pytest.raises(PromptError, match=r"character 2 of the prompt, .\\x04., needs the byte 0x04"):
        sv.generate(f"gguf:{smollm2_file}", "a\x04b", "autoregressive", max_new_tokens=2)
