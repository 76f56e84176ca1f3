"""Split a text into words, also in scripts without spaces; joined, they are the text.

In other scripts a word is the text between spaces. Chinese, Japanese and Thai are cut by BudouX (the extra
``streams``): Japanese into phrases, a word with its particles. Without BudouX, runs of one script are used,
see `RUN`. No word ends inside a character as a reader sees it (a grapheme cluster).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata, util
from types import ModuleType

import regex

from specviz.errors import ParameterError

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}"
# Without a model: a kanji word includes the kana after it (its ending, its particle), katakana and Thai are
# kept as runs, Chinese is cut every two characters (most of its words have one or two), and characters that
# are not letters stay with the text before them.
KANJI = r"\p{Han}+\p{Hiragana}*|\p{Hiragana}+|[\p{Katakana}ー]+"
RUN = {
    "ja": regex.compile(rf"(?:{KANJI}|[^{UNSPACED}\p{{P}}]+)\P{{L}}*|\P{{L}}+|."),
    "zh": regex.compile(r"(?:\p{Han}{1,2}|[^\p{Han}\p{P}]+)\P{L}*|\P{L}+|."),
    "th": regex.compile(r".+", regex.DOTALL),
}
PARSERS = {
    "ja": "japanese", "zh": "simplified_chinese", "zh-hant": "traditional_chinese", "th": "thai"
}  # fmt: skip
TRADITIONAL = ("zh-hant", "zh-tw", "zh-hk", "zh-mo")
TIGHT = regex.compile(rf"[{UNSPACED}\u3000-\u303f\uff00-\uff65]")  # with their full-width punctuation
LETTER = rf"(?![{UNSPACED}])\w"
BEGUN = regex.compile(rf"(?:{LETTER})*\Z")  # an unfinished word at the end
GOES_ON = regex.compile(LETTER)
SPACE = r"\s\x1c-\x1f"  # characters that str.strip removes: four separators more than \s
CHUNK = regex.compile(rf"[{SPACE}]*[^{SPACE}]+")
CLUSTER = regex.compile(r"\X")


def words(text: str, language: str | None = None) -> list[str]:
    """Split a text into words, each with the space before it; joined, they are the text.

    Parameters
    ----------
    text : str
    language : str, optional
        A tag such as ``en``, ``ja`` or ``zh-Hant``, which selects the model for text without spaces. Without
        it, kana mean Japanese, and Chinese characters alone mean Chinese.

    Raises
    ------
    ParameterError
        If either is not a string.
    """
    for name, value in (("the text", text), ("language", language or "")):
        if not isinstance(value, str):
            raise ParameterError(f"{name} must be a string, got {type(value).__name__}")
    kind = _kind(text, language)
    cut = _parser(kind) if kind else None
    pieces: list[str] = []
    end = 0
    for match in CHUNK.finditer(text):
        chunk = match[0].lstrip()
        first, *rest = cut(chunk) if cut is not None and unspaced(chunk) else [chunk]
        pieces += [match[0][: -len(chunk)] + first, *rest]
        end = match.end()
    if pieces:
        pieces[-1] += text[end:]
    return list(_whole(pieces))


def segmenter(text: str, language: str | None = None) -> str:
    """Name of the splitter for this text: spaces, BudouX (with version and model), or runs of one script."""
    kind = _kind(text, language)
    if kind is None:
        return "spaces"
    if _library() is None:
        return f"script runs ({kind})"
    return f"budoux {metadata.version('budoux')} ({kind})"


def clusters(text: str) -> list[str]:
    """The grapheme clusters of a text: its characters as a reader sees them."""
    return CLUSTER.findall(text)


def kept(before: str, after: str) -> int:
    """Number of characters of a text that are kept at the beginning of the next one.

    A word that changed counts as changed from its first letter; a last word that only grew counts as kept.
    """
    n = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    while n and not (_boundary(before, n) and _boundary(after, n)):
        n -= 1
    if n < len(before) and (GOES_ON.match(before, n) or GOES_ON.match(after, n)):
        n = BEGUN.search(before[:n]).start()
    return n


def unspaced(text: str) -> bool:
    """Whether the text has a character of a script without spaces, including its punctuation."""
    return TIGHT.search(text) is not None


def _kind(text: str, language: str | None) -> str | None:
    """The model that splits the text; None if spaces do."""
    if not unspaced(text):
        return None
    tag = (language or "").lower().replace("_", "-")
    if tag.startswith(TRADITIONAL):
        return "zh-hant"
    if tag[:2] in PARSERS:
        return tag[:2]
    if regex.search(r"[\p{Hiragana}\p{Katakana}]", text):
        return "ja"
    return "zh" if regex.search(r"\p{Han}", text) else "th"


@cache
def _library() -> ModuleType | None:
    if util.find_spec("budoux") is None:
        return None
    import budoux

    return budoux


@cache
def _parser(kind: str) -> Callable[[str], list[str]]:
    library = _library()
    if library is None:
        return lambda text: RUN[kind[:2]].findall(text)
    load = getattr(library, f"load_default_{PARSERS[kind]}_parser")
    return load().parse


def _boundary(text: str, at: int) -> bool:
    """Whether a cluster ends at `at`; only the 64 characters before it are examined."""
    if at in (0, len(text)):
        return True
    begin = max(0, at - 64)
    part = text[begin : at + 1]
    return any(match.end() == at - begin for match in CLUSTER.finditer(part))


def _whole(pieces: list[str]) -> Iterator[str]:
    """The words, joined if their boundary falls inside a cluster."""
    held = ""
    for word in pieces:
        if held and _boundary(held + word, len(held)):
            yield held
            held = ""
        held += word
    if held:
        yield held
