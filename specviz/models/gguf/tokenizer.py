"""Converts the tokenizer in a GGUF file to a fast tokenizer of transformers.

It yields the same ids as llama.cpp, so it follows the rules of llama.cpp's ``llama-vocab.cpp``: how a text is
split before the merges, which tokens are special whatever the file says, and which of them end a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specviz.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from specviz.models.gguf.header import Metadata

TEMPLATE = "tokenizer.chat_template"
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED = range(1, 6)  # values of tokenizer.ggml.token_type
# Roles of special tokens in the file: those with a name in transformers, then the others.
NAMED = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
OTHERS = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# Control tokens by name, whatever their type in the file: those that end a text, and fill-in-the-middle ones.
ENDS = """
<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s>
<|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>
<｜end▁of▁sentence｜> [e~[ <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD] <|fim_repo|> <|repo_name|> <fim-repo>
<REPO> <reponame> <|file_sep|>
"""
GAPS = """
<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>
<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|> <|fim_middle|>
<fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>
"""
SHOWN = "<|channel|> <|message|> <|start|> <|constrain|>"  # never control tokens
TYPES = (
    dict.fromkeys(ENDS.split(), CONTROL)
    | dict.fromkeys(GAPS.split(), CONTROL)
    | dict.fromkeys(SHOWN.split(), DEFINED)
)

# How a text is split before the merges. Each pattern splits the parts left by the pattern before it; the text
# between two matches is a part, too.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SHORT = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (  # a run of letters ends before an ASCII capital
    r"[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])*(?:(?=\p{L})[^A-Z])+|"
    r"[^\r\n\p{L}\p{N}]?(?:(?=\p{L})[^a-z])+(?:(?=\p{L})[^A-Z])*|"
    rf"\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
MARKED = (  # ASCII punctuation attaches to the word after it; combining marks attach to their letters
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
)
CJK = "[\u0800-\u9fa5\uac00-\ud7ff]+"
CASED = (  # letters with upper and lower case, as listed by DeepSeek
    "[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙ"
    "ὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ"
    "-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]"
)
SENTENCES = " ?[^(\\s|.,!?…。，、।۔،)]+"
CUTS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}$+<=>^~|]+", WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"),
    "deepseek-llm": (
        r"[\r\n]", rf"\s?{CASED}+", "\\s?[!-/:-~！-／：-～‘-‟、。]+", r"\s+\z", CJK, r"\p{N}+"
    ),
    "deepseek-v3": (r"\p{N}{1,3}", "[一-龥\u3040-ヿ]+", MARKED),
    "falcon": (r"[\p{P}$+<=>^~|`]+", WORDS, "[0-9][0-9][0-9]"),
    "gpt-2": (WORDS,),
    "llama-bpe": (rf"{SHORT}|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}|{SPACES}",),
    "minicpm5": (r"\p{N}{1,3}", rf"{SHORT}|{LETTERS}|\p{{N}}+|{SIGNS}|{SPACES}"),
    "poro-chat": (SENTENCES,),
    "qwen2": (rf"{SHORT}|{LETTERS}|\p{{N}}|{SIGNS}|{SPACES}",),
    "seed-coder": (rf"{SHORT}|{LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|{SPACES}",),
    "smollm": (r"\p{N}", WORDS),
    "tekken": (TEKKEN,),
    "viking": (SENTENCES, r"\p{N}"),
}  # fmt: skip
# Other values of tokenizer.ggml.pre that split in the same way.
ALIKE = {
    "deepseek-v3": "hunyuan-dense joyai-llm",
    "gpt-2": "a.x-4.0 exaone4 gigachat granite-docling jais mellum modern-bert mpt olmo phi-2 trillion",
    "llama-bpe": "dbrx falcon3 falcon-h1 lfm2 llama3 llama-v3 midm-2.0 pixtral smaug-bpe",
    "qwen2": "deepseek-r1-qwen f2llmv2 grok-2 hunyuan kormo megrez solar-open stablelm2",
    "smollm": "codeshell command-r exaone mellum2 minerva-7b refact starcoder",
}
CUTS |= {other: CUTS[name] for name, others in ALIKE.items() for other in others.split()}
# With these, a text starts with the begin token unless the file says otherwise.
BEGUN = "falcon3 falcon-h1 lfm2 llama3 llama-bpe llama-v3 midm-2.0 pixtral tekken"
WHOLE = f"{BEGUN} minicpm5"  # with these, a part that is itself a piece is one token, whatever the merges


def tokenizer(fields: Metadata, name: str) -> tuple[PreTrainedTokenizerFast, tuple[int, ...]]:
    """Build the tokenizer of a GGUF file, and list the ids that end a text, the file's own end token first.

    Names of control tokens in a text are ordinary text unless a call sets ``split_special_tokens=False``.

    Parameters
    ----------
    fields : mapping
        The file's metadata, from `specviz.models.gguf.header.read_header`.
    name : str
        Name of the model, for errors.

    Raises
    ------
    ModelError
        If the file has no tokenizer, or if the tokenizer is neither byte-level BPE nor sentencepiece, splits
        text in an unsupported way, or is damaged.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    vocabulary = _Vocabulary(fields, name)
    template = fields.get(TEMPLATE)
    try:
        (template or "").encode()
    except (AttributeError, UnicodeEncodeError):
        raise vocabulary.error(f"its {TEMPLATE} is not a UTF-8 string") from None
    raw = vocabulary.sentencepiece() if vocabulary.kind == "llama" else vocabulary.byte_level()
    special = vocabulary.of(UNKNOWN, CONTROL)
    for add, pieces in ((raw.add_special_tokens, special), (raw.add_tokens, vocabulary.of(DEFINED))):
        add([AddedToken(piece, normalized=False, rstrip=piece in vocabulary.stripped) for piece in pieces])
    roles = {NAMED[role]: vocabulary.pieces[i] for role, i in vocabulary.roles.items() if role in NAMED}
    named = {role: piece for role, piece in roles.items() if piece in special}
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        chat_template=template,
        extra_special_tokens=[piece for piece in special if piece not in named.values()],
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        add_bos_token=vocabulary.begins and "bos_token" in named,
        add_eos_token=bool(vocabulary.get("add_eos_token")) and "eos_token" in named,
        **named,
    )
    made.name_or_path = name  # set last: given a name and a large vocabulary, transformers queries the hub
    return made, vocabulary.ends()


class _Vocabulary:
    """The checked vocabulary of a file."""

    def __init__(self, fields: Metadata, name: str) -> None:
        self._fields, self._name = fields, name
        self.kind = self.get("model")
        if self.kind not in ("gpt2", "llama"):
            raise self.error(
                f"its tokenizer is of the kind {self.kind or 'none'}; only gpt2 and llama are supported"
            )
        # Pieces by id. `ids` below maps pieces to ids, without those that only pad the head.
        self.pieces = [piece or f"[EMPTY_{i}]" for i, piece in enumerate(self.texts("tokens"))]
        types = self.get("token_type") or [NORMAL] * len(self.pieces)
        size = len(self.pieces)
        if not isinstance(types, list) or not 0 < size <= len(types) or len(set(self.pieces)) < size:
            raise self.error("its vocabulary is empty, has pieces without a type or two with the same name")
        self.types = [TYPES.get(piece, kind) for piece, kind in zip(self.pieces, types)]
        assumed = {"bos": 1, "eos": 2, "unknown": 0} if self.kind == "llama" else {}
        ids = {role: self.get(f"{role}_token_id", assumed.get(role)) for role in (*NAMED, *OTHERS)}
        self.roles = {role: i for role, i in ids.items() if isinstance(i, int) and 0 <= i < size}
        for role in {"bos", "eos"} & self.roles.keys():
            self.types[self.roles[role]] = CONTROL
        self.ids = {piece: i for i, piece in enumerate(self.pieces) if self.types[i] != UNUSED}
        # llama.cpp decides by the model's name here.
        spaced = "phi-3" in (title := str(fields.get("general.name")).lower()) or "phi3" in title
        added = set(self.of(UNKNOWN, CONTROL, DEFINED) if spaced else ())
        # Added tokens that also consume the spaces after them.
        self.stripped = added - {"<unk>", "<s>", "<|endoftext|>"}
        self.pre = self.get("pre") or "default"
        self.begins = self.get("add_bos_token", self.kind == "llama" or self.pre in BEGUN.split())

    def get(self, key: str, default: Any = None) -> Any:
        return self._fields.get(f"tokenizer.ggml.{key}", default)

    def texts(self, key: str) -> list[str]:
        """A field that is a list of strings."""
        values = self.get(key) or []
        try:
            "".join(values).encode()
        except (TypeError, UnicodeEncodeError):
            raise self.error(f"its tokenizer.ggml.{key} is not a list of UTF-8 strings") from None
        return values

    def error(self, reason: str) -> ModelError:
        return ModelError(f"{self._name} is not supported: {reason}")

    def ends(self) -> tuple[int, ...]:
        """Ids that end a text, the file's own end token first."""
        first = self.roles.get("eos")
        own = {i for role, i in self.roles.items() if role not in NAMED}
        named = {self.ids[piece] for piece in ENDS.split() if piece in self.ids}
        rest = sorted((own | named) - {first})
        return tuple(rest if first is None else [first, *rest])

    def of(self, *types: int) -> list[str]:
        """The pieces of these types."""
        return [piece for piece, i in self.ids.items() if self.types[i] in types]

    def byte_level(self) -> Tokenizer:
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        if not isinstance(self.pre, str) or self.pre not in CUTS:
            raise self.error(f"it splits text by tokenizer.ggml.pre = {self.pre!r}, which is unknown here")
        if self.get("merges") is None:
            raise self.error("its vocabulary has no merges: convert the model again")
        merges: dict[tuple[str, str], None] = {}
        for line in self.texts("merges"):
            left, _, right = line.partition(" ")
            if left in self.ids and right in self.ids:  # others never apply: text with them is refused
                if left + right not in self.ids:
                    raise self.error(f"its vocabulary is damaged: the merge {line!r} makes no piece")
                merges[left, right] = None  # of duplicates, the first counts
        raw = Tokenizer(models.BPE(self.ids, list(merges), ignore_merges=self.pre in WHOLE.split()))
        cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in CUTS[self.pre]]
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        raw.pre_tokenizer = pre_tokenizers.Sequence([*cuts, level])
        raw.decoder = decoders.ByteLevel()
        return raw

    def sentencepiece(self) -> Tokenizer:
        from tokenizers import Tokenizer, decoders, models, normalizers
        from transformers.convert_slow_tokenizer import generate_merges

        scores = self.get("scores")
        if not isinstance(scores, list) or len(scores) < len(self.pieces):
            raise self.error("its vocabulary is damaged: pieces without a score")
        merges = generate_merges(self.ids, {piece: scores[i] for piece, i in self.ids.items()})
        raw = Tokenizer(models.BPE(self.ids, merges, byte_fallback=True))
        prefix = self.get("add_space_prefix", True)
        first = [normalizers.Prepend("▁")] if prefix else []
        raw.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", "▁")])
        last = [decoders.Strip(" ", 1, 0)] if prefix else []
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        raw.decoder = decoders.Sequence([*steps, *last])
        return raw
