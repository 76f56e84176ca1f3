"""The tokenizer in a GGUF file, through llama.cpp's own functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from specviz.errors import ModelError
from specviz.models.llamacpp.library import library
from specviz.models.text import Text

if TYPE_CHECKING:
    from specviz.models.llamacpp.model import Weights

SENTENCEPIECE, BYTES = 1, 2  # LLAMA_VOCAB_TYPE_SPM, _BPE
KINDS = {0: "none", 3: "WordPiece", 4: "Unigram", 5: "RWKV", 6: "PLaMo-2"}
UNKNOWN, UNUSED, CONTROL, DEFINED = 1 << 0, 1 << 1, 1 << 3, 1 << 4  # LLAMA_TOKEN_ATTR_*
SPECIAL = UNKNOWN | CONTROL


class Tokenizer:
    """A GGUF file's vocabulary, with the part of a transformers tokenizer's interface that `Text` uses.

    Parameters
    ----------
    weights : specviz.models.llamacpp.model.Weights
    name : str

    Raises
    ------
    ModelError
        If the file has no vocabulary or one of an unsupported kind, or its chat template is not UTF-8.
    """

    split_special_tokens = True

    def __init__(self, weights: Weights, name: str) -> None:
        lib = self._lib = library()
        self._weights = weights  # they own the vocabulary
        self._vocab = lib.llama_model_get_vocab(weights.pointer)
        self.name_or_path = name
        kind = self._kind = int(lib.llama_vocab_type(self._vocab))
        if kind not in (SENTENCEPIECE, BYTES):
            raise ModelError(
                f"{name} is not supported: its tokenizer is of the kind {KINDS.get(kind, kind)}; only "
                f"byte-level BPE and sentencepiece are"
            )
        size = int(lib.llama_vocab_n_tokens(self._vocab))
        self.names = [lib.llama_vocab_get_text(self._vocab, i).decode("utf8", "replace") for i in range(size)]
        # Some that llama.cpp counts as byte-level BPE spell characters like sentencepiece (Gemma 4).
        self.byte_level = kind == BYTES and "Ġ" in self.names
        self._attributes = [int(lib.llama_vocab_get_attr(self._vocab, i)) for i in range(size)]
        template = lib.llama_model_chat_template(weights.pointer, None)
        try:
            self.chat_template = template.decode("utf8") if template else None
        except UnicodeDecodeError:
            raise ModelError(
                f"{name} is not supported: its tokenizer.chat_template is not a UTF-8 string"
            ) from None
        self.all_special_ids = [i for i, a in enumerate(self._attributes) if a & SPECIAL]
        own = SPECIAL | DEFINED
        self.added_tokens_decoder = {i: self.names[i] for i, a in enumerate(self._attributes) if a & own}

    def __len__(self) -> int:
        return len(self.names)

    def __call__(
        self, text: str, add_special_tokens: bool = True, split_special_tokens: bool = True,
        verbose: bool = False,
    ) -> dict[str, list[int]]:  # fmt: skip
        """Tokenize a text; names of control tokens in it are ordinary text if `split_special_tokens`.

        For a byte without a piece, llama.cpp drops it in a byte-level vocabulary and aborts the process in a
        sentencepiece one; `Text` rejects such a text first.
        """
        raw = text.encode()
        room = len(raw) + 8
        while True:
            out = (ctypes.c_int32 * room)()
            count = self._lib.llama_tokenize(
                self._vocab, raw, len(raw), out, room, add_special_tokens, not split_special_tokens
            )
            if count >= 0:
                return {"input_ids": out[:count]}
            room = -count

    def piece(self, token: int) -> bytes:
        """The bytes of a token; for a control token, its name."""
        room = 256
        while True:
            buffer = ctypes.create_string_buffer(room)  # its own: widgets and recorders call this in threads
            count = self._lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, True)
            if count >= 0:
                return buffer.raw[:count]
            room = -count

    def convert_ids_to_tokens(self, token: int) -> str:
        """The token's name in the file; empty if the id is unused."""
        return "" if self._unused(token) else self.names[token]

    def _unused(self, token: int) -> bool:
        """Whether an id only pads the head; control tokens count as used even if marked as unused."""
        return self._attributes[token] & (UNUSED | SPECIAL) == UNUSED

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names) if not self._unused(i)}

    def get_vocab(self) -> dict[str, int]:
        """Mapping from token to id, without the ids that only pad the head."""
        return self._ids

    @cached_property
    def eos(self) -> tuple[int, ...]:
        """Ids at which generation ends, the file's end token first."""
        first, assumed = self._named("eos", self._lib.llama_vocab_eos), self._lib.llama_vocab_eos(self._vocab)
        ends = [i for i in range(len(self)) if self._lib.llama_vocab_is_eog(self._vocab, i)]
        ends = [i for i in ends if i == first or i != assumed]
        return tuple(sorted(ends, key=lambda i: (i != first, i)))

    def _named(self, name: str, ask: Callable[[ctypes.c_void_p], int]) -> int:
        """The id of ``bos`` or ``eos``, or -1 if there is none.

        If a byte-level file names none, or one outside the vocabulary, llama.cpp assumes GPT-2's id 11, which
        is a different token here.
        """
        stated = self._weights.meta(f"tokenizer.ggml.{name}_token_id") or ""
        declared = stated.isdecimal() and int(stated) < len(self)
        return int(ask(self._vocab)) if declared or self._kind == SENTENCEPIECE else -1

    def special(self) -> dict[str, str]:
        """The special tokens that a chat template may use by name: ``bos_token`` and ``eos_token``."""
        lib, tokens = self._lib, {}
        for name, ask in (("bos", lib.llama_vocab_bos), ("eos", lib.llama_vocab_eos)):
            token = self._named(name, ask)
            tokens[f"{name}_token"] = self.names[token] if token >= 0 else ""
        return tokens

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        **chat: bool | float | str,
    ) -> str:
        """The chat as text, by transformers' own sandboxed rendering; `chat` are the template's variables."""
        from transformers.utils.chat_template_utils import render_jinja_template

        # Annotated as returning a string, but it returns the texts and the spans of the answers in them.
        rendered = tuple(
            render_jinja_template(
                [messages],
                None,
                None,
                self.chat_template,
                False,
                False,
                add_generation_prompt,
                **self.special() | chat,
            )
        )
        return rendered[0][0]


class GgufText(Text):
    """`Text` over llama.cpp's tokenizer, with llama.cpp's own token bytes."""

    tokenizer: Tokenizer

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, eos: tuple[int, ...]) -> None:
        super().__init__(tokenizer, vocabulary, eos)
        self.scheme = "bytes" if tokenizer.byte_level else "sentencepiece"

    def _falls_back(self) -> bool:
        return True

    def _bytes(self, token: int) -> bytes:
        return self.tokenizer.piece(token) if token < len(self.tokenizer) else b""
