"""COMET scores, computed in a separate environment: export the texts, read back their scores.

A replay of re-translation writes ``comet.jsonl``, one line per text: source, hypothesis and reference.
``data/comet/score.py`` scores them in an environment with unbabel-comet, which needs older libraries than
this package. `scored` reads the scores back into the replay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import TraceError, plural
from specviz.files import read_json_lines, write_text
from specviz.measure.claims import ratio, resampled
from specviz.measure.report import Row, Values
from specviz.replays.cells import Cell, Figure

if TYPE_CHECKING:
    from specviz.replays.replays import Replay

TEXTS, METRIC = "comet.jsonl", "comet"
MOST_BYTES = 256 << 20  # size limit of a file to read
HOW = "scored in a separate environment, see data/comet/README.md: --score comet=FILE"


def identity(source: str, hypothesis: str, reference: str) -> str:
    """Hash that identifies a text both in the exported file and in the file of scores."""
    text = json.dumps([source, hypothesis, reference])
    return hashlib.sha256(text.encode("utf8", "surrogatepass")).hexdigest()[:16]


def rows(
    where: Values, sources: Sequence[str], texts: Sequence[str], references: Iterable[Sequence[str]]
) -> list[Row]:
    """Build a line for each text of a contender; `where` holds its columns of the printed table."""
    return [
        {"id": identity(source, text, right[0]), "where": dict(where), "source": source, "hypothesis": text,
         "reference": right[0]}
        for source, text, right in zip(sources, texts, references)
    ]  # fmt: skip


def write(folder: Path, lines: Sequence[Row]) -> None:
    """Write ``comet.jsonl``, if there is anything to score."""
    if lines:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(folder / TEXTS, text, force=True)


def read(file: Path, kind: type, remedy: str) -> list[Row]:
    """Read and validate the lines of a file.

    Raises
    ------
    TraceError
        If there is no file, it is too large, or a line is invalid; the message gives the line's number.
    """
    if not file.is_file():
        raise TraceError(f"there is no {file}: {remedy}")
    if file.stat().st_size > MOST_BYTES:
        raise TraceError(f"{file} is too large for a file of scores: {file.stat().st_size:,} bytes")
    return read_json_lines(file, kind, remedy)


def scored(replay: Replay, file: Path) -> Replay:
    """Add the scores of its texts to a replay, judge it again and save it.

    Raises
    ------
    TraceError
        If the replay wrote no texts or they were changed, or if the scores are damaged, come from several
        models or do not cover all texts.
    """
    from specviz.replays.comet_schema import Score, Text

    texts = read(replay.path / TEXTS, Text, "only re-translation replays with references write it")
    lines = read(file, Score, "data/comet/score.py writes it")
    models = {str(line["model"]) for line in lines}
    if len(models) != 1:
        raise TraceError(f"{file} has scores from {len(models)} models: score all texts with one model")
    by_id = {str(line["id"]): float(line["score"]) for line in lines}
    lacking = sum(text["id"] not in by_id for text in texts)
    if lacking:
        raise TraceError(f"{file} lacks the scores of {lacking} of {plural(len(texts), 'text')}: score "
                         f"{replay.path / TEXTS} again")  # fmt: skip
    for text in texts:
        if text["id"] != identity(text["source"], text["hypothesis"], text["reference"]):
            raise TraceError(f"{replay.path / TEXTS} was changed: replay the table into another folder")
    made = _judged(replay, texts, by_id)
    name = models.pop()
    note = f"COMET ({name}) of {plural(len(texts), 'text')}, {HOW.partition(':')[0]}"
    made.notes = [*(each for each in made.notes if not each.startswith("COMET (")), note]
    made.save()
    return made


def _judged(replay: Replay, texts: Sequence[Row], by_id: dict[str, float]) -> Replay:
    """Fill the replay's COMET cells, then compare and judge the whole table, whose p-values depend on it."""
    from specviz.replays.replays import FILE, covers, figures_of, judged

    groups: dict[str, list[Row]] = {}
    for text in texts:
        groups.setdefault(json.dumps(text["where"], sort_keys=True), []).append(text)
    cells = [replace(cell) for cell in replay.cells]
    others = [cell for cell in cells if cell.metric != METRIC]
    figures = figures_of(others, replay, replay.path / FILE)
    for some in groups.values():
        where: Values = some[0]["where"]
        source = next((c.source for c in cells if c.source is not None and covers(where, columns(c))), None)
        those = [cell for cell in cells if cell.metric == METRIC and covers(where, columns(cell))]
        if source is None or not those:
            continue
        values = np.array([by_id[text["id"]] for text in some])
        mean = resampled(ratio, values, np.ones(len(values)))
        low, high = (None if end != end else float(end) for end in (mean.low, mean.high))
        number = 1 + max(figures, default=-1)
        for cell in those:
            cell.measured, cell.low, cell.high, cell.why = float(mean.median), low, high, ""
            cell.figure, cell.source = number, source
        figures[number] = Figure(
            where, METRIC, float(mean.median), low, high, len(values), mean.values, source
        )
    before = [each for each in replay.comparisons if replay.cells[each.first].metric != METRIC]
    return judged(replay, cells, figures, before)


def columns(cell: Cell) -> Row:
    """A cell's columns of the printed table."""
    return cell.keys | {"model": cell.model}
