"""Converts text to token ids and back, with the exact bytes of every token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from specviz.errors import ModelError, PromptError

if TYPE_CHECKING:
    from specviz.models.protocols import AnyTokenizer, Prompt, Settings, TextModel

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
NONCHARACTERS = [chr(0xFDD0 + i) for i in range(32)]  # no real text contains all of them
SURROGATE = "\ud800"  # cannot occur in text that can be encoded


class Text:
    """A tokenizer with the interface that this package needs.

    Parameters
    ----------
    tokenizer : transformers tokenizer or None
    vocabulary : int
        Rows of the model's head; ids must be smaller.
    eos : tuple of int
        Ids that end a text; removed if a tokenizer adds one after a prompt.
    source : bool
        Whether prompts go to an encoder: they are then complete texts, with all tokens that the tokenizer
        adds and without a chat template.
    """

    def __init__(
        self, tokenizer: AnyTokenizer, vocabulary: int, eos: tuple[int, ...] = (), source: bool = False
    ) -> None:
        self.tokenizer, self.vocabulary, self.eos, self.source = tokenizer, vocabulary, eos, source
        self.scheme = _scheme(tokenizer) if tokenizer is not None else "none"
        self.special = frozenset(getattr(tokenizer, "all_special_ids", ()))
        added = getattr(tokenizer, "added_tokens_decoder", None) or {}
        self.added = {i: str(token) for i, token in added.items()}
        self._pieces: dict[int, bytes] = {}
        self.reported: set[tuple[int, ...]] = set()  # prompts with `unknown` tokens already reported
        self.chat: Settings = {}  # variables of the chat template other than the messages

    @cached_property
    def unknown(self) -> int | None:
        """The id for unknown text; None if the tokenizer can represent every text."""
        own, *others = (getattr(self.tokenizer, f"{name}_token_id", None) for name in ("unk", "bos", "eos"))
        return None if own in others else own

    def encode(self, prompt: Prompt, model: str = "the model", *, raw: bool = False) -> list[int]:
        """Convert a text, chat messages or ids to checked token ids.

        Parameters
        ----------
        prompt : str, list of int, or list of {"role": ..., "content": ...}
            For a model with a chat template, a text becomes the user's turn; for others it is used unchanged,
            with the begin token that the tokenizer adds. Ids are used unchanged. An encoder reads a text with
            its end token, and of messages only the user's last one. For a model without a chat template, a
            single user message is treated as a text.
        model : str
            Name of the model, for errors.
        raw : bool
            Whether to use a text without the chat template.

        Raises
        ------
        PromptError
            If the prompt is empty, has an id outside the vocabulary or a character (or half of one) that the
            vocabulary cannot represent, or needs a tokenizer or chat template that the model lacks.
        """
        if not isinstance(prompt, str):
            items: list[Any] = list(prompt)
            if items and all(isinstance(item, dict) for item in items):
                return self._chat(items, model)
            return self._ids(items, model)
        if self.tokenizer is None:
            raise PromptError(f"{model} has no tokenizer: pass token ids, or load it with tokenizer=")
        if not prompt:
            raise PromptError("the prompt is empty; give at least one character")
        if self.chats and not raw and not self.source:
            if not prompt.strip():
                raise PromptError("the prompt has no tokens; give at least one visible character")
            return self._chat([{"role": "user", "content": prompt}], model)
        bare = self._tokens(prompt, False)
        ids = self._tokens(prompt, True)
        added = len(ids) > len(bare) and ids[-1] in self.eos and (not bare or bare[-1] != ids[-1])
        if added and not self.source:
            ids = ids[:-1]  # the text is to be continued
        if not bare:
            raise PromptError("the prompt has no tokens; give at least one visible character")
        return self._ids(ids, model)

    def _tokens(
        self, text: str, begin: bool, split: bool | None = None, parts: Mapping[str, str] | None = None
    ) -> list[int]:
        """Tokenize a text.

        `split` says whether special tokens in it count as text; `parts` are its named sources, for errors.
        """
        split = self._splits if split is None else split
        self._check(text, split, {} if parts is None else parts)
        options = {} if split == self._splits else {"split_special_tokens": split}
        # Not verbose: the caller checks the length against the available room.
        return self.tokenizer(text, add_special_tokens=begin, verbose=False, **options)["input_ids"]

    def plain(self, text: str) -> list[int]:
        """Tokenize a text without recognising or adding special tokens."""
        return self._tokens(text, False, True) if text else []

    @cached_property
    def _splits(self) -> bool:
        """Whether the tokenizer treats special tokens in a text as text by default."""
        return getattr(self.tokenizer, "split_special_tokens", False)

    def _check(self, text: str, split: bool, parts: Mapping[str, str]) -> None:
        """Reject characters that token ids cannot represent."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            where = _place(text, error.start, parts)
            raise PromptError(
                f"{where} is half of a surrogate pair, which is not a character: remove it"
            ) from None
        if not self._missing:
            return
        doubtful = {c for c in set(text) - self._whole if not self._missing.isdisjoint(c.encode())}
        if not doubtful:
            return
        # Characters inside an added token's name need no byte pieces.
        names = [name for i, name in self.added.items() if not (split and i in self.special)]
        if names:
            text = _either(names).sub(lambda match: SURROGATE * len(match[0]), text)
        at = next((i for i, c in enumerate(text) if c in doubtful), None)
        if at is not None:
            byte = next(b for b in text[at].encode() if b in self._missing)
            raise PromptError(
                f"{_place(text, at, parts)} needs the byte 0x{byte:02X}, for which this vocabulary has no "
                f"piece: remove it"
            )

    @cached_property
    def _missing(self) -> frozenset[int]:
        """Bytes without a piece, for a vocabulary that spells characters as bytes; empty for others."""
        if self.scheme == "bytes":
            spelled = {byte: name for name, byte in _alphabet().items()}
        elif self.scheme == "sentencepiece" and self._falls_back():
            spelled = {byte: f"<0x{byte:02X}>" for byte in range(256)}
        else:
            return frozenset()
        vocabulary = self.tokenizer.get_vocab()
        return frozenset(byte for byte, name in spelled.items() if name not in vocabulary)

    @cached_property
    def _whole(self) -> frozenset[str]:
        """Characters that have their own piece and thus need no byte pieces."""
        if self.scheme == "bytes":
            return frozenset()
        return frozenset(name.replace("▁", " ") for name in self.tokenizer.get_vocab() if len(name) == 1)

    def _falls_back(self) -> bool:
        """Whether characters without a piece are spelled as bytes."""
        model = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "model", None)
        return bool(getattr(model, "byte_fallback", False))

    @cached_property
    def specials(self) -> dict[str, int]:
        """Ids of the added tokens, by the names that a template may use."""
        return {name: i for i, name in self.added.items()}

    @cached_property
    def begin(self) -> int | None:
        """The token that the tokenizer adds before every text, or None."""
        bare, ids = self._tokens("a", False), self._tokens("a", True)
        return ids[0] if ids[:1] != bare[:1] else None

    def _ids(self, ids: Sequence[Any], model: str) -> list[int]:
        if not ids:
            raise PromptError("the prompt is empty; give at least one token")
        for i in ids:
            if isinstance(i, bool) or not hasattr(i, "__index__"):
                raise PromptError(
                    "a prompt must be a text, a list of token ids or a list of messages; got an item "
                    f"{i!r:.60}"
                )
            if not 0 <= i < self.vocabulary:
                raise PromptError(f"token id {int(i)} is outside {model}'s vocabulary of {self.vocabulary}")
        return [int(i) for i in ids]

    def _chat(self, messages: list[dict], model: str) -> list[int]:
        if self.source:
            turns = [message.get("content") for message in messages if message.get("role") == "user"]
            if not turns or not isinstance(turns[-1], str):
                raise PromptError(f"{model} reads the user's last message, but no user message has text")
            return self.encode(turns[-1], model)
        text, alone = messages[0].get("content"), len(messages) == 1 and messages[0].get("role") == "user"
        if alone and not self.chats and isinstance(text, str):
            return self.encode(text, model)
        # The template writes the begin-of-text token itself.
        text = self._rendered(messages, model)
        names = [f"message {i}" for i in range(len(messages))] if len(messages) > 1 else ["the prompt"]
        parts = {name: message["content"] for name, message in zip(names, messages)}
        if not self._splits or not any(map(self._controls.search, parts.values())):
            return self._ids(self._tokens(text, False, False, parts), model)
        # A mark inside each look-alike in a message distinguishes it from the template's special tokens.
        mark = next((c for c in NONCHARACTERS if c not in "".join(parts.values())), None)
        if mark is None:
            raise PromptError("the messages hold every noncharacter from U+FDD0 to U+FDEF; remove one")
        contents = [
            self._controls.sub(lambda match: match[0][0] + mark + match[0][1:], part)
            for part in parts.values()
        ]
        marked = [message | {"content": content} for message, content in zip(messages, contents)]
        text, ids, at = self._rendered(marked, model), [], 0
        for match in self._controls.finditer(text):
            ids += self._tokens(text[at : match.start()].replace(mark, ""), False, True, parts)
            ids.append(self.specials[match[0]])
            at = match.end()
        return self._ids(ids + self._tokens(text[at:].replace(mark, ""), False, True, parts), model)

    @property
    def chats(self) -> bool:
        """Whether it has a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    @cached_property
    def _controls(self) -> re.Pattern:
        """Pattern that matches the names of special tokens."""
        return _either(self.added[i] for i in self.special if i in self.added)

    def _rendered(self, messages: list[dict], model: str) -> str:
        """Render the chat with the model's template, ending with the start of the answer."""
        if not self.chats:
            raise PromptError(
                f"{model} has no chat template and takes single texts, not {len(messages)} messages"
            )
        for number, message in enumerate(messages):
            if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
                raise PromptError(f"message {number} needs a role and a content, both strings")
        try:
            return self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False, **self.chat
            )
        except Exception as error:  # a template is a program and can raise anything
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise PromptError(f"{model}'s chat template rejects these messages: {why}") from None

    def decode(self, ids: Sequence[int]) -> str:
        """Decode `ids`: join their pieces, omit special tokens, and replace invalid UTF-8."""
        return b"".join(self.piece(i) for i in ids if i not in self.special).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """The bytes of a token; the bytes of all tokens of a text, concatenated, are the text.

        A sentencepiece token at the start of a word includes the space before it, so the first word of a text
        gains a space. An id that the tokenizer lacks has no bytes.
        """
        token = int(token)
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._bytes(token)
        return piece

    def name(self, token: int) -> str:
        """The token's name in the tokenizer's vocabulary; empty if it has none."""
        if self.tokenizer is None:
            return ""
        # If ids are not contiguous, a fast tokenizer has ids beyond its length.
        if token < len(self.tokenizer) or getattr(self.tokenizer, "is_fast", False):
            return self.tokenizer.convert_ids_to_tokens(token) or ""
        return ""

    def difference(self, other: Text) -> int | None:
        """The first id that the two tokenizers spell differently, or None."""
        if self.tokenizer is None or other.tokenizer is None or self.tokenizer is other.tokenizer:
            return None
        mine, theirs = self.tokenizer.get_vocab(), other.tokenizer.get_vocab()
        if mine == theirs:
            return None
        return min(i for _, i in mine.items() ^ theirs.items())

    def _bytes(self, token: int) -> bytes:
        if self.tokenizer is None:
            return f"<{token}>".encode()
        if token in self.added:
            name = self.added[token]  # includes Gemma's runs of spaces
            spaces = self.scheme == "sentencepiece" and token not in self.special
            return (name.replace("▁", " ") if spaces else name).encode()
        name = self.name(token)
        if not name:
            return b""
        if self.scheme == "bytes":
            table = _alphabet()
            return bytes(table[c] for c in name) if all(c in table for c in name) else name.encode()
        if self.scheme == "sentencepiece":
            raw = BYTE.fullmatch(name)
            return bytes([int(raw[1], 16)]) if raw else name.replace("▁", " ").encode()
        if self.scheme == "characters":  # each character represents the byte with its code point
            return name.encode("latin-1")
        if self.scheme == "wordpiece":
            return name[2:].encode() if name.startswith("##") else b" " + name.encode()
        if self.scheme == "endings":  # a suffix marks the end of a word, which is followed by a space
            inner = name.removesuffix(self.tokenizer.backend_tokenizer.decoder.suffix)
            return (inner + " " * (inner != name)).encode()
        # Unknown scheme: use the text that the token adds after a copy of itself.
        before = self.tokenizer.decode([token], skip_special_tokens=False)
        twice = self.tokenizer.decode([token, token], skip_special_tokens=False)
        return (twice[len(before) :] if twice.startswith(before) else before).encode()


def _scheme(tokenizer: AnyTokenizer) -> str:
    """Determine from a tokenizer's decoder how its tokens spell bytes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a slow tokenizer: sentencepiece, ByT5's, or one of an unknown scheme
        if type(tokenizer).__name__ == "ByT5Tokenizer":
            return "characters"
        return "sentencepiece" if {"sp_model", "spm_source"} & set(dir(tokenizer)) else "unknown"
    decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {}
    kinds = [part["type"] for part in decoder.get("decoders", [decoder]) if "type" in part]
    if "ByteLevel" in kinds:
        return "bytes"
    if "ByteFallback" in kinds or "Metaspace" in kinds or "▁" in json.dumps(decoder, ensure_ascii=False):
        return "sentencepiece"
    if decoder.get("type") == "BPEDecoder":
        return "endings"
    return "wordpiece" if "WordPiece" in kinds else "unknown"


def _either(names: Iterable[str]) -> re.Pattern:
    """Pattern that matches any of these names, longest first; matches nothing if there are none."""
    ordered = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) if ordered else r"(?!)")


def _place(text: str, at: int, parts: Mapping[str, str]) -> str:
    """Describe the location of a character for a user: its index in the one of `parts` that contains it."""
    character = text[at]
    name, start = next(
        ((name, part.index(character)) for name, part in parts.items() if character in part), ("the text", at)
    )
    return f"character {start + 1} of {name}, {character!a},"


@lru_cache(1)
def _alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary represents.

    Printable Latin-1 characters represent their own byte; the other bytes are represented by code points from
    256 on, in order (Radford et al. 2019, GPT-2).
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


class TokenizedModel:
    """Mixin with the methods of a model that use its tokenizer."""

    name: str
    text: Text
    vocabulary: int
    eos: tuple[int, ...]
    max_length: int

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Convert a text, chat messages or ids to checked token ids; see `Text.encode`."""
        return self.text.encode(prompt, self.name, raw=raw)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special tokens."""
        return self.text.decode(ids)

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        return self.text.piece(token)

    def left(self, prompt: int) -> int:
        """Number of tokens that can follow a prompt of `prompt` tokens."""
        return self.max_length - prompt

    def check_vocabulary(self, other: TextModel) -> None:
        """Check that token ids mean the same in both models.

        Raises
        ------
        ModelError
            Naming the first id whose pieces differ, or the sizes if there are no tokenizers to compare.

        Notes
        -----
        Heads within a family may be padded to different sizes (Qwen2.5 0.5B and 7B). Ids beyond the tokenizer
        are never generated, so different sizes alone are accepted.
        """
        differing = self.text.difference(other.text)
        sizes = f"{self.name} has {self.vocabulary} ids, {other.name} has {other.vocabulary}"
        if differing is not None:
            mine, theirs = (repr(text.name(differing)) for text in (self.text, other.text))
            raise ModelError(
                f"{self.name} and {other.name} have different vocabularies: id {differing} is {mine} in the "
                f"one and {theirs} in the other ({sizes}); use two models with the same tokenizer"
            )
        if self.vocabulary != other.vocabulary and None in (self.text.tokenizer, other.text.tokenizer):
            raise ModelError(
                f"the vocabularies differ in size: {sizes}; use two models with the same tokenizer"
            )
