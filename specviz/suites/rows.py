"""Rows of data files, and texts in folders and archives; errors name the place."""

from __future__ import annotations

import csv
import html
import io
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

from specviz.errors import PromptError, one_line
from specviz.files import checked, parsed, shown

from . import files

# Exceptions that a damaged, encrypted or unusual archive raises.
DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, RuntimeError,
)  # fmt: skip
SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL)  # of WMT's SGML and IWSLT's XML


class Row:
    """A row of a data file.

    Parameters
    ----------
    where : str
        File and line, for errors.
    values : mapping
    """

    def __init__(self, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise PromptError(f"{where}: needs an object with named fields, not {shown(values)}")
        self.where, self.values = where, values

    def text(self, *names: str) -> str:
        """The first of these fields that the row has.

        Raises
        ------
        PromptError
            If it has none of them, or the field is not a text or is empty.
        """
        from specviz.suites.schema import Words

        name = next((n for n in names if self.values.get(n) is not None), None)
        if name is None:
            has = ", ".join(repr(str(n)[:20]) for n in list(self.values)[:8]) or "nothing"
            raise PromptError(f"{self.where}: {' or '.join(map(repr, names))} is missing; it has {has}")
        return checked(Words, self.values[name], f"{self.where}, {name!r}", error=PromptError)

    def part(self, name: str) -> Row:
        """A field that is itself a row of named fields."""
        return Row(f"{self.where}, {name!r}", self.values.get(name))

    def each(self, name: str) -> Iterator[Row]:
        """The items of a list field, as rows; there may be none."""
        for number, values in enumerate(self.listed(name), 1):
            yield Row(f"{self.where}, {name} {number}", values)

    def listed(self, name: str) -> list[Any]:
        """A list field; it may be empty or missing.

        Raises
        ------
        PromptError
            If it is something else.
        """
        return checked(list[Any], self.values.get(name) or [], f"{self.where}, {name!r}", error=PromptError)

    def texts(self, name: str) -> list[str]:
        """A list field whose items are texts; see `listed`."""
        from specviz.suites.schema import Text

        return checked(list[Text], self.listed(name), f"{self.where}, {name!r}", error=PromptError)


def rows(paths: Path | Iterable[Path], columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Read the rows of files: Parquet, JSON lines, JSON, CSV or TSV; ``.gz`` files are unpacked.

    Parameters
    ----------
    paths : path or paths
    columns : sequence of str, optional
        For Parquet: read only these columns, if present. For TSV and CSV: the column names, if the file has
        no header line.

    Raises
    ------
    PromptError
        If a file cannot be read; the message gives the number of a bad line.
    """
    for path in [paths] if isinstance(paths, Path) else paths:
        ending = Path(path.name.lower().removesuffix(".gz")).suffix
        if ending == ".parquet":
            yield from _parquet(path, columns)
        elif ending in (".tsv", ".csv"):
            yield from _table(path, "\t" if ending == ".tsv" else ",", columns)
        elif ending == ".json":
            yield from _json(path)
        else:
            yield from _lines(path, _text(path, files.load(path)))


def _lines(path: Path, text: str) -> Iterator[Row]:
    """Read the rows of JSON lines."""
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield Row(where, parsed(line, where, error=PromptError))


def _parquet(path: Path, columns: Sequence[str] | None) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pq.ParquetFile(path)
        names = source.schema_arrow.names
        wanted = None if columns is None else [c for c in columns if c in names]
        batches = source.iter_batches(1024, columns=wanted)
        for number, values in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
            yield Row(f"{path}, row {number}", values)
    except (pa.ArrowException, OSError) as error:
        raise PromptError(f"{path} is not a complete Parquet file ({one_line(error, 120)})") from None


def _table(path: Path, between: str, columns: Sequence[str] | None) -> Iterator[Row]:
    text = io.StringIO(_text(path, files.load(path)), newline="")  # a quoted field may hold line breaks
    lines = csv.reader(
        text, delimiter=between, quoting=csv.QUOTE_NONE if between == "\t" else csv.QUOTE_MINIMAL
    )
    try:
        names = list(columns) if columns is not None else next(lines, [])
        with files.long_fields():
            numbered = [(lines.line_num, values) for values in lines]
        for number, values in numbered:
            if not any(values):
                continue
            where = f"{path}, line {number}"
            if len(values) != len(names):
                raise PromptError(
                    f"{where}: {len(names)} fields are needed ({', '.join(names)}), not {len(values)}"
                )
            yield Row(where, dict(zip(names, values)))
    except csv.Error as error:
        raise PromptError(f"{path}, line {lines.line_num} is not a table's: {error}") from None


def _json(path: Path) -> Iterator[Row]:
    text = _text(path, files.load(path))
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        lines = [line for line in text.split("\n") if line.strip()]
        if len(lines) > 1 and lines[0].strip().endswith("}"):  # JSON lines under another name
            yield from _lines(path, text)
            return
        raise PromptError(f"{path}, line {error.lineno}: no JSON ({error.msg})") from None
    except (RecursionError, ValueError):
        raise PromptError(f"{path} is nested too deep, or has a number that is too long") from None
    if isinstance(content, list):
        for number, values in enumerate(content, 1):
            yield Row(f"{path}, item {number}", values)
    else:
        yield Row(str(path), content)


def _text(where: Path | str, content: bytes) -> str:
    try:
        return content.removeprefix(b"\xef\xbb\xbf").decode("utf8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PromptError(f"{where}, line {line}: not UTF-8 text") from None


def member(path: Path, pattern: str) -> tuple[str, str]:
    """Read the file whose path matches, in a folder or a zip or tar archive, or the given file itself.

    Returns
    -------
    (str, str)
        Its name and its text.

    Raises
    ------
    PromptError
        If there is none, or it cannot be read.
    """
    matches = re.compile(pattern).search
    try:
        if path.is_dir():
            matching = sorted(
                p for p in path.rglob("*") if p.is_file() and matches(p.relative_to(path).as_posix())
            )
            if matching:
                return str(matching[0]), _text(matching[0], files.load(matching[0]))
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = sorted(name for name in archive.namelist() if matches(name))
                if names:
                    with archive.open(names[0]) as file:
                        return f"{path}, {names[0]}", _text(names[0], _limited(path, names[0], file))
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                for info in archive:
                    if info.isfile() and matches(info.name):
                        content = _limited(path, info.name, archive.extractfile(info))
                        return f"{path}, {info.name}", _text(info.name, content)
        elif matches(path.as_posix()):
            return str(path), _text(path, files.load(path))
    except DAMAGED as error:
        raise PromptError(f"cannot read {path}: {one_line(error, 120)}") from None
    raise PromptError(f"{path} has no file like {pattern}")


def _limited(path: Path, name: str, file: IO[bytes] | None) -> bytes:
    assert file is not None  # a file of an archive
    content = file.read(files.LIMIT + 1)
    if len(content) > files.LIMIT:
        raise PromptError(f"{path}, {name} is larger than {files.LIMIT >> 20} MiB")
    return content


def segments(text: str) -> list[str]:
    """The sentences of a translation task's file: one per line, or between ``<seg>`` tags."""
    if "<seg" in text:
        return [html.unescape(" ".join(part.split())) for part in SEGMENT.findall(text)]
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def squad(row: Row) -> Iterator[tuple[str, Row, list[str]]]:
    """Passages, questions and answers in SQuAD's format, which nests articles, paragraphs and questions."""
    for article in row.each("data"):
        for paragraph in article.each("paragraphs"):
            context = paragraph.text("context")
            for question in paragraph.each("qas"):
                yield context, question, [answer.text("text") for answer in question.each("answers")]
