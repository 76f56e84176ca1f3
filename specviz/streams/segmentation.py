"""A text's words, also where nothing stands between them; joined, they are the text.

Between spaces a word is what stands there. Chinese, Japanese and Thai are cut by BudouX (the extra
``streams``): Japanese into phrases, a word with its particles. Without it runs of one script take their
place, see `RUN`. No word ends inside a character as a reader sees it (a grapheme cluster).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata, util
from types import ModuleType

import regex

from specviz.errors import ParameterError

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}"
# Without a model: a kanji word takes the kana after it along (its ending, its particle), katakana and Thai
# stand as a run, Chinese goes two characters at a time (most of its words have one or two), and whatever is
# no letter stays with what is before it.
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
TIGHT = regex.compile(rf"[{UNSPACED}\u3000-\u303f\uff00-\uff65]")  # punctuation as wide as they are
LETTER = rf"(?![{UNSPACED}])\w"
BEGUN = regex.compile(rf"(?:{LETTER})*$")  # a word that is not at its end
GOES_ON = regex.compile(LETTER)
SPACE = r"\s\x1c-\x1f"  # what str.strip takes away: four separators more than \s
CHUNK = regex.compile(rf"[{SPACE}]*[^{SPACE}]+")
CLUSTER = regex.compile(r"\X")


def words(text: str, language: str | None = None) -> list[str]:
    """The words of a text, each with the space before it; joined, they are the text.

    Parameters
    ----------
    text : str
    language : str, optional
        A tag such as ``en``, ``ja`` or ``zh-Hant``: which model reads what has no spaces. Without it
        kana mean Japanese, other Chinese characters Chinese.

    Raises
    ------
    ParameterError
        If either is not a text.
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
    """What tells this text's words apart: spaces, BudouX (its version and model), or runs of one script."""
    kind = _kind(text, language)
    if kind is None:
        return "spaces"
    if _library() is None:
        return f"script runs ({kind})"
    return f"budoux {metadata.version('budoux')} ({kind})"


def clusters(text: str) -> list[str]:
    """Its characters, as a reader sees them."""
    return CLUSTER.findall(text)


def kept(before: str, after: str) -> int:
    """How many characters of a text still stand at the beginning of the next one.

    A word that changed counts as changed from its first letter, one that only grew as kept.
    """
    n = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
    while n and not (_boundary(before, n) and _boundary(after, n)):
        n -= 1
    if n < len(before) and (GOES_ON.match(before, n) or GOES_ON.match(after, n)):
        n = BEGUN.search(before[:n]).start()
    return n


def unspaced(text: str) -> bool:
    """Whether a character of it, its punctuation included, belongs to a script without spaces."""
    return TIGHT.search(text) is not None


def _kind(text: str, language: str | None) -> str | None:
    """Which model reads it; None if spaces tell."""
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
    """Whether a cluster ends there; what is before a line's worth of text cannot matter."""
    if at in (0, len(text)):
        return True
    begin = max(0, at - 64)
    part = text[begin : at + 1]
    return any(match.end() == at - begin for match in CLUSTER.finditer(part))


def _whole(pieces: list[str]) -> Iterator[str]:
    """The words, those drawn together that meet inside a cluster."""
    held = ""
    for word in pieces:
        if held and _boundary(held + word, len(held)):
            yield held
            held = ""
        held += word
    if held:
        yield held
