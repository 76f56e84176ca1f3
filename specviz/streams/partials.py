"""Partial results of a speech recogniser: texts that grow, shrink and are revised, as JSON lines.

A line is ``{"text": ..., "time": ..., "final": ...}``: all that was heard of the utterance so far, when (in
seconds; optional), and whether the utterance is complete. After a final result the next utterance begins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

from specviz.arguments import check_int
from specviz.errors import ParameterError, PromptError
from specviz.files import checked, parsed, write_text
from specviz.paths import expanded

from .lag import read, split
from .segmentation import clusters, segmenter
from .stream import Stream, Update

Line: TypeAlias = str | Mapping[str, Any]  # JSON or its parsed object; `schema.Partial` checks it
# Words that sound alike in English. Any other word, and any of another language, is misheard as cut off.
ALIKE = (
    "their there", "to two too", "for four", "hear here", "know no", "right write", "see sea", "one won",
    "by buy", "our hour", "new knew", "son sun", "week weak", "would wood", "meet meat", "which witch",
    "wait weight", "its it's", "your you're", "of off", "than then", "affect effect", "weather whether",
)  # fmt: skip
SOUND = {w: [o for o in group.split() if o != w] for group in ALIKE for w in group.split()}


def from_partials(source: str | Path | Iterable[Line], *, clock: str = "utterance") -> list[Stream]:
    """Read the utterances of a file of partial results, one stream each.

    Parameters
    ----------
    source : str, path, or iterable
        A file of JSON lines, or its lines, or the objects themselves. Empty lines are skipped.
    clock : str
        ``utterance``: times are kept as written. ``file``: times run on through the file, and each
        utterance's are counted from the end of the last one.

    Returns
    -------
    list of Stream
        Named by the file and the utterance's number. If the file ends without a final result, the last one
        counts as final. Blank results at the start of an utterance are left out, as are utterances without
        any other.

    Raises
    ------
    ParameterError
        If `clock` is neither.
    PromptError
        If a line is not JSON, lacks ``text``, has a wrong type, or a time before the previous one on the
        same clock; the message names the line.
    """
    if clock not in ("utterance", "file"):
        raise ParameterError(f"clock must be utterance or file, got {clock!r:.60}")
    if isinstance(source, str | Path):
        name = str(source)
        lines: Iterable[Line] = read(expanded(source, PromptError)).split("\n")
        stem = Path(source).stem
    else:
        if not isinstance(source, Iterable) or isinstance(source, Mapping):
            raise PromptError("from_partials takes a file, or lines with text, time and final")
        name, lines, stem = "partials", source, "utterance"
    grouped: list[list[Update]] = [[]]
    begin, previous = 0.0, -math.inf
    for number, line in enumerate(lines, 1):
        if isinstance(line, str) and not line.strip():
            continue
        update = _update(line, f"{name}, line {number}")
        if update.time is not None:
            if update.time < previous:
                raise PromptError(
                    f"{name}, line {number}: its time {update.time:g} s is before the previous {previous:g} s"
                )
            previous = update.time
            if begin:
                update = replace(update, time=round(update.time - begin, 9))
        grouped[-1].append(update)
        if update.last:
            grouped.append([])
            if clock == "file":
                begin = max(begin, previous)
            else:
                previous = -math.inf
    spoken = [list(dropwhile(lambda update: not update.text.strip(), updates)) for updates in grouped]
    if not any(spoken):
        raise PromptError(f"{name} has no partial results")
    return [Stream(updates, id=f"{stem}:{n}") for n, updates in enumerate(spoken, 1) if updates]


def _update(line: Line, where: str) -> Update:
    from .schema import Partial

    given = parsed(line, where, error=PromptError) if isinstance(line, str) else line
    partial = checked(Partial, given, where, error=PromptError)
    time = partial.get("time")
    return Update(partial["text"], None if time is None else float(time), partial.get("final", False))


def save_partials(streams: Stream | Iterable[Stream], path: str | Path, *, force: bool = False) -> Path:
    """Write streams as a file of partial results, atomically.

    Parameters
    ----------
    streams : Stream, or iterable of Stream
        Each becomes an utterance; its last update is final.
    path : str or Path
        JSON lines in UTF-8.
    force : bool
        Whether an existing file may be replaced.

    Raises
    ------
    TraceError
        If the file exists (unless `force`) or cannot be written.
    """
    lines = []
    for stream in [streams] if isinstance(streams, Stream) else streams:
        updates = list(stream)
        for i, update in enumerate(updates, 1):
            line: dict[str, str | float | bool] = {"text": update.text}
            if update.time is not None:
                line["time"] = update.time
            line["final"] = update.last or i == len(updates)
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
    return write_text(Path(path), "".join(lines), force)


def simulate_partials(
    text: str,
    seed: int = 0,
    *,
    language: str | None = "en",
    revise: float = 0.3,
    shrink: float = 0.08,
    pace: float = 0.35,
    id: str | None = None,
    reference: str | None = None,
) -> Stream:
    """Simulate a recogniser's partial results for a text; the last one is the text.

    One to three words come at a time. Each of the last two may be misheard, as a word that sounds alike (in
    English) or cut off, until two more have been heard. Some updates take the last words back.

    Parameters
    ----------
    text : str
    seed : int
        The same seed and text give the same stream.
    language : str, optional
        As in `fixed_lag`.
    revise : float
        Probability that one of the last two words is misheard, drawn anew for each word and update.
    shrink : float
        Probability that an update takes words back instead of adding some.
    pace : float
        Seconds per word.
    id, reference : str, optional
        As in `Stream`.

    Raises
    ------
    ParameterError
        If a probability is outside [0, 1), or `pace` negative.
    PromptError
        If the text is empty, or has too many words for a stream.
    """
    seed = check_int("seed", seed, 0)
    for name, value, high in (("revise", revise, 1.0), ("shrink", shrink, 1.0), ("pace", pace, math.inf)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < high:
            raise ParameterError(f"{name} must lie in [0, {high:g}), got {value!r}")
    if isinstance(text, str) and not text.strip():
        raise PromptError("the text is empty; a stream needs at least one word")
    units = split(text, language)
    sounds = SOUND if (language or "en").lower().startswith("en") else {}
    random = Random(seed)
    updates: list[Update] = []
    heard, time = 0, 0.0
    while heard < len(units):
        new = 1 + int(3 * random.random())
        if heard > 2 and random.random() < shrink:
            guess, time = units[: heard - min(2, new)], time + pace / 2
        else:
            new = min(new, len(units) - heard)
            heard, time = heard + new, time + pace * new
            guess = units[:heard]
        for i in range(max(0, len(guess) - 2), len(guess)):
            if random.random() < revise:
                guess[i] = _misheard(guess[i], sounds, random)
        updates.append(Update("".join(guess).rstrip(), round(time, 3)))
    updates.append(Update(text, round(time + pace, 3), last=True))
    return Stream(updates, id, language, reference, segmenter(text, language))


def _misheard(unit: str, sounds: Mapping[str, list[str]], random: Random) -> str:
    """A word as first heard: one of its `sounds`, or its beginning. Its leading space stays."""
    word = unit.lstrip()
    space, bare = unit[: len(unit) - len(word)], word.rstrip(".,;:!? ")
    if alike := sounds.get(bare.lower()):
        return space + alike[int(len(alike) * random.random())]
    letters = clusters(bare)
    return space + "".join(letters[: max(1, math.ceil(len(letters) * (0.3 + 0.4 * random.random())))])
