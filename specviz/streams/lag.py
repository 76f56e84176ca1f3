"""Streams that reveal a text a fixed number of words at a time."""

from __future__ import annotations

from pathlib import Path

from specviz.arguments import check_int
from specviz.errors import ParameterError, PromptError
from specviz.paths import expanded

from . import segmentation
from .stream import Stream, Update

MOST = 10_000  # words of a stream: every update holds all of its words so far


def fixed_lag(
    text: str,
    words: int = 3,
    language: str | None = "en",
    *,
    id: str | None = None,
    reference: str | None = None,
    pace: float | None = None,
) -> Stream:
    """A stream that reveals the next words of a text in each update, as the paper simulates it on Flores.

    Parameters
    ----------
    text : str
        The last update is exactly this text; every other one is a prefix of the next.
    words : int
        Number of words that each update adds.
    language : str, optional
        Language of the text. For scripts without spaces, see `specviz.streams.words`.
    id, reference : str, optional
        As in `Stream`.
    pace : float, optional
        Seconds per word; with it, every update's time is the end of its last word.

    Raises
    ------
    ParameterError
        If `words` is below 1, or `pace` negative.
    PromptError
        If the text is empty, or has more than `MOST` words.

    Notes
    -----
    Zeng et al., section 4.1: w = 3.
    """
    step = check_int("words", words, 1)
    if pace is not None and (isinstance(pace, bool) or not isinstance(pace, int | float) or not pace >= 0):
        raise ParameterError(f"pace must be at least 0 seconds per word, got {pace!r}")
    if isinstance(text, str) and not text.strip():
        raise PromptError("the text is empty; a stream needs at least one word")
    units = split(text, language)
    updates = []
    for k in range(step, len(units) + step, step):
        heard = min(k, len(units))
        time = None if pace is None else heard * pace
        updates.append(Update("".join(units[:heard]), time))
    return Stream(updates, id, language, reference, segmentation.segmenter(text, language))


def from_file(
    path: str | Path, words: int = 3, language: str | None = "en", *, lines: bool = True
) -> list[Stream]:
    """Streams of fixed lag from a text file: one per non-empty line, or one for the whole file.

    Parameters
    ----------
    path : str or Path
        A UTF-8 file.
    words, language
        See `fixed_lag`.
    lines : bool
        Make each line a separate source (a sentence of Flores, for example); False makes one stream of all.

    Returns
    -------
    list of Stream
        Named by the file and the line's number, from 1.

    Raises
    ------
    PromptError
        If the file cannot be read, is not UTF-8, or has no words or too many for a stream.
    """
    path = expanded(path, PromptError)
    text = read(path)
    numbered = enumerate(text.split("\n"), 1) if lines else [(1, text.strip())]
    updates = [
        fixed_lag(line.strip(), words, language, id=f"{path.stem}:{number}" if lines else path.stem)
        for number, line in numbered
        if line.strip()
    ]
    if not updates:
        raise PromptError(f"{path} has no words")
    return updates


def split(text: str, language: str | None) -> list[str]:
    """Split a text into words.

    Raises
    ------
    PromptError
        If it has more than `MOST`.
    """
    units = segmentation.words(text, language)
    if len(units) > MOST:
        raise PromptError(
            f"a text has {len(units):,} words, and a stream takes at most {MOST:,}: split it into lines"
        )
    return units


def read(path: Path) -> str:
    """Read a file's text.

    Raises
    ------
    PromptError
        If it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 (byte {error.start})") from None
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise PromptError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
