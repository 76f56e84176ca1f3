"""Transcripts with the time of each word: JSON of speech recognisers, WebVTT and SRT subtitles."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from specviz.arguments import check_int
from specviz.errors import ParameterError, PromptError
from specviz.files import checked, parsed
from specviz.paths import expanded

from .lag import read
from .segmentation import unspaced
from .stream import Stream, Update

Entry: TypeAlias = Mapping[str, Any]  # a word with its times, as `schema.Word` checks it
Document: TypeAlias = Any  # parsed JSON
ARROW = re.compile(r"^\s*([\d:.,]+)\s*-->\s*([\d:.,]+)")
CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{2})[.,](\d{3})$")
MARKUP = re.compile(r"<[^>]*>")


def word_timed(
    source: str | Path | Iterable[Entry],
    words: int | None = None,
    seconds: float | None = None,
    *,
    language: str | None = None,
    id: str | None = None,
    reference: str | None = None,
) -> Stream:
    """A transcript on its own clock, with an update every few words or every few seconds.

    Parameters
    ----------
    source : str, path, or iterable of dict
        A file, or its entries. JSON or JSON lines of ``{"word": ..., "start": ..., "end": ...}`` (seconds),
        alone or under ``words`` or ``segments``, as Whisper and similar tools write them; or WebVTT
        (``.vtt``) or SRT (``.srt``), where a whole cue counts as heard when it ends.
    words : int, optional
        Words (cues) that each update adds. Default, without `seconds`: 3.
    seconds : float, optional
        Update at each multiple of this that brings something new, with all words that have ended by then.
    language, id, reference : str, optional
        As in `Stream`.

    Returns
    -------
    Stream
        Each update's ``time`` is the end of its last word, or its tick.

    Raises
    ------
    ParameterError
        If both `words` and `seconds` are given, or one is not above 0.
    PromptError
        If the transcript cannot be read, lacks a key, or its times go backwards; the message names the word.
    """
    if words is not None and seconds is not None:
        raise ParameterError("word_timed takes either words or seconds, not both")
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf
    ):
        raise ParameterError(f"seconds must be above 0, got {seconds!r}")
    step = check_int("words", 3 if words is None else words, 1)
    heard = _checked(*_entries(source))
    updates = []
    text = ""
    for i, (word, end) in enumerate(heard):
        glue = "" if not text or word[:1].isspace() or (unspaced(text[-1]) and unspaced(word[0])) else " "
        text += glue + word if text else word.lstrip()
        last = i + 1 == len(heard)
        if seconds is None:
            if last or (i + 1) % step == 0:
                updates.append(Update(text, end))
        elif last or _tick(heard[i + 1][1], seconds) > _tick(end, seconds):
            updates.append(Update(text, _tick(end, seconds) * seconds))
    name = id if id is not None else Path(source).stem if isinstance(source, str | Path) else None
    return Stream(updates, name, language, reference, "the transcript's words")


def _tick(end: float, seconds: float) -> int:
    """Number of the first tick at or after a word's end."""
    return math.ceil(end / seconds - 1e-9)


def _entries(source: str | Path | Iterable[Entry]) -> tuple[str, list[Entry]]:
    """Name of an entry for error messages, and the entries."""
    if not isinstance(source, str | Path):
        if isinstance(source, Mapping) or not isinstance(source, Iterable):
            raise PromptError("word_timed takes a file, or a list of words with word, start and end")
        return "word", list(source)
    path = expanded(source, PromptError)
    text = read(path)
    if path.suffix.lower() in (".vtt", ".srt"):
        return f"{path}, cue", _cues(text, path)
    try:
        document = parsed(text, str(path), error=PromptError)
    except PromptError:
        if text.lstrip()[:1] != "{":  # otherwise each line may be an object
            raise
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        objects = [parsed(line, f"{path}, line {number}", error=PromptError) for number, line in lines]
        return f"{path}, word", objects
    return f"{path}, word", _words(document)


def _words(document: Document) -> list[Entry]:
    """The words of a JSON document: a list, under ``words``, or under the ``words`` of its ``segments``."""
    if isinstance(document, Mapping):
        if "word" in document:
            return [document]
        for key in ("words", "word_segments"):
            if isinstance(document.get(key), list):
                return document[key]
        document = document.get("segments")
        if isinstance(document, list) and not all(isinstance(s, Mapping) and "words" in s for s in document):
            raise PromptError("the transcript's segments have no words: write it with word timestamps")
    if not isinstance(document, list):
        raise PromptError("the transcript has no list of words of the form {word, start, end}")
    inner = [s["words"] if isinstance(s, Mapping) and "words" in s else [s] for s in document]
    if not all(isinstance(part, list) for part in inner):
        raise PromptError("the transcript's words must be a list")
    return [word for part in inner for word in part]


def _cues(text: str, path: Path) -> list[Entry]:
    cues: list[Entry] = []
    escaped = path.suffix.lower() == ".vtt"  # WebVTT writes & and < as entities, SubRip as they are
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        lines = block.strip("\n").split("\n")
        at = next((i for i, line in enumerate(lines) if "-->" in line), None)
        if at is None:
            continue
        times = ARROW.match(lines[at])
        clocks = [CLOCK.match(t) for t in times.groups()] if times else [None]
        if not all(clocks):
            raise PromptError(f"{path}, cue {len(cues) + 1} has no readable times: {lines[at]!r}")
        start, end = (
            3600 * int(c[1] or 0) + 60 * int(c[2]) + int(c[3]) + int(c[4]) / 1e3 for c in clocks if c
        )
        written = (MARKUP.sub("", line).strip() for line in lines[at + 1 :])
        words = " ".join(html.unescape(line) if escaped else line for line in written).strip()
        if words:
            cues.append({"word": words, "start": start, "end": end})
    return cues


def _checked(what: str, entries: list[Entry]) -> list[tuple[str, float]]:
    """Check the entries, and return the words with their end times."""
    from .schema import Word

    ends: list[tuple[str, float]] = []
    before = -math.inf
    for number, entry in enumerate(entries, 1):
        where = f"{what} {number}"
        checked(Word, entry, where, "each word needs word, start and end (seconds)", PromptError)
        start, end = float(entry["start"]), float(entry["end"])
        if end < start or end < before:
            raise PromptError(f"{where}: its times go backwards ({start:g} to {end:g} s)")
        before = end
        if entry["word"].strip():
            ends.append((entry["word"], end))
    if not ends:
        raise PromptError(f"{what.partition(',')[0]}: it contains no words")
    return ends
