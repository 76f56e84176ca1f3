"""The tokenizer that stands in a GGUF file, through llama.cpp's own functions."""

from __future__ import annotations

import ctypes
import re
from functools import cached_property
from typing import Any

from specviz.errors import ModelError, PromptError
from specviz.models.llamacpp.library import library
from specviz.models.text import Text, _alphabet

SENTENCEPIECE, BYTES = 1, 2  # LLAMA_VOCAB_TYPE_SPM, _BPE
KINDS = {0: "none", 3: "WordPiece", 4: "Unigram", 5: "RWKV", 6: "PLaMo-2"}
UNUSED, CONTROL, DEFINED = 1 << 1, 1 << 3, 1 << 4  # LLAMA_TOKEN_ATTR_*
NONCHARACTERS = [chr(0xFDD0 + i) for i in range(32)]  # no text holds one, or at least not all


class Tokenizer:
    """A GGUF's vocabulary with as much of a transformers tokenizer's face as `Text` looks at.

    Parameters
    ----------
    weights : specviz.models.llamacpp.model.Weights
    name : str

    Raises
    ------
    ModelError
        If the file has no vocabulary, one of a kind not served, or one that lacks bytes.
    """

    def __init__(self, weights: Any, name: str) -> None:
        lib = self._lib = library()
        self._weights = weights  # the vocabulary lives in them
        self._vocab = lib.llama_model_get_vocab(weights.pointer)
        self.name_or_path = name
        kind = self._kind = int(lib.llama_vocab_type(self._vocab))
        if kind not in (SENTENCEPIECE, BYTES):
            raise ModelError(
                f"{name} cannot be served: its tokenizer is of the kind {KINDS.get(kind, kind)}; "
                f"byte-level BPE "
                "and sentencepiece are"
            )
        size = int(lib.llama_vocab_n_tokens(self._vocab))
        self.names = [lib.llama_vocab_get_text(self._vocab, i).decode("utf8", "replace") for i in range(size)]
        self._attributes = [int(lib.llama_vocab_get_attr(self._vocab, i)) for i in range(size)]
        bytes_ = _alphabet() if kind == BYTES else {f"<0x{b:02X}>": b for b in range(256)}
        known = set(self.names)
        missing = sorted(value for piece, value in bytes_.items() if piece not in known)
        if missing:  # llama.cpp would drop such bytes, or end the process
            raise ModelError(
                f"{name} cannot be served: its vocabulary has no piece for {len(missing)} of the 256 bytes "
                f"(the "
                f"first is 0x{missing[0]:02X}), so not every text can be written in it; convert the model "
                f"again"
            )
        found = lib.llama_model_chat_template(weights.pointer, None)
        self.chat_template = found.decode("utf8") if found else None
        self.all_special_ids = [i for i, a in enumerate(self._attributes) if a & CONTROL]
        own = CONTROL | DEFINED
        self.added_tokens_decoder = {i: self.names[i] for i, a in enumerate(self._attributes) if a & own}
        self._buffer = ctypes.create_string_buffer(256)

    def __len__(self) -> int:
        return len(self.names)

    def __call__(
        self,
        text: str,
        add_special_tokens: bool = True,
        split_special_tokens: bool = True,
        verbose: bool = False,
    ) -> dict[str, list[int]]:
        """Token ids of a person's text: what looks like a control token in it is text, unless not split."""
        return {"input_ids": self.ids(text, add_special_tokens, not split_special_tokens)}

    def ids(self, text: str, begin: bool = False, control: bool = False) -> list[int]:
        """Token ids; `begin` adds what the file says stands around a text, `control` reads control tokens."""
        raw = text.encode("utf8", "surrogatepass")
        room = len(raw) + 8
        while True:
            out = (ctypes.c_int32 * room)()
            count = self._lib.llama_tokenize(self._vocab, raw, len(raw), out, room, begin, control)
            if count >= 0:
                return out[:count]
            room = -count

    def piece(self, token: int) -> bytes:
        """The bytes of a token; those of a control token are its name."""
        count = self._lib.llama_token_to_piece(self._vocab, token, self._buffer, len(self._buffer), 0, True)
        if count < 0:
            self._buffer = ctypes.create_string_buffer(-count)
            return self.piece(token)
        return self._buffer.raw[:count]

    def convert_ids_to_tokens(self, token: int) -> str:
        """The token as the file writes it."""
        return "" if self._attributes[token] & UNUSED else self.names[token]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names) if not self._attributes[i] & UNUSED}

    def get_vocab(self) -> dict[str, int]:
        """Token to id, without the ids that only fill the head up."""
        return self._ids

    @cached_property
    def eos(self) -> tuple[int, ...]:
        """Ids at which generation ends, the file's end token first."""
        first, assumed = self._named("eos", self._lib.llama_vocab_eos), self._lib.llama_vocab_eos(self._vocab)
        ends = [i for i in range(len(self)) if self._lib.llama_vocab_is_eog(self._vocab, i)]
        ends = [i for i in ends if i == first or i != assumed]
        return tuple(sorted(ends, key=lambda i: (i != first, i)))

    def _named(self, name: str, ask: Any) -> int:
        """The id of ``bos`` or ``eos``, -1 where there is none.

        Where a byte-level file names none llama.cpp assumes id 11, GPT-2's, which means something else here.
        """
        declared = self._weights.meta(f"tokenizer.ggml.{name}_token_id") is not None
        return int(ask(self._vocab)) if declared or self._kind == SENTENCEPIECE else -1

    def special(self) -> dict[str, str]:
        """What a chat template may call by name: ``bos_token`` and ``eos_token``."""
        lib, found = self._lib, {}
        for name, ask in (("bos", lib.llama_vocab_bos), ("eos", lib.llama_vocab_eos)):
            token = self._named(name, ask)
            found[f"{name}_token"] = self.names[token] if token >= 0 else ""
        return found

    def apply_chat_template(self, messages: list[dict], **_: Any) -> str:
        """The chat as text, by transformers' own sandboxed rendering, the answer's beginning last."""
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, _ = render_jinja_template(
            [messages], chat_template=self.chat_template, add_generation_prompt=True, **self.special()
        )
        return rendered[0]

    @cached_property
    def controls(self) -> re.Pattern:
        """Matches the control tokens, longer ones first, as llama.cpp looks for them."""
        names = sorted({self.names[i] for i in self.all_special_ids}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names)) if names else r"(?!)")


class GgufText(Text):
    """`Text` over a GGUF's tokenizer: exact bytes, and control tokens only where the template wrote them."""

    tokenizer: Tokenizer

    def _chat(self, messages: list[dict], model: str) -> list[int]:
        words, controls = self.tokenizer, self.tokenizer.controls
        said = "".join(str(message.get("content")) for message in messages)
        if not controls.search(said):
            return self._ids(words.ids(self._rendered(messages, model), control=True), model)
        # A mark inside each look-alike keeps it apart from what the template writes; then it is taken out.
        mark = next((c for c in NONCHARACTERS if c not in said), None)
        if mark is None:
            raise PromptError("the messages hold every noncharacter from U+FDD0 to U+FDEF; leave one out")
        marked = [
            message
            | {"content": controls.sub(lambda found: found[0][0] + mark + found[0][1:], message["content"])}
            if isinstance(message.get("content"), str)
            else message
            for message in messages
        ]
        text, ids, at = self._rendered(marked, model), [], 0
        for found in controls.finditer(text):
            ids += words.ids(text[at : found.start()].replace(mark, ""))
            ids.append(words.get_vocab()[found[0]])
            at = found.end()
        return self._ids(ids + words.ids(text[at:].replace(mark, "")), model)

    def _bytes(self, token: int) -> bytes:
        return self.tokenizer.piece(token) if token < len(self.tokenizer) else b""
