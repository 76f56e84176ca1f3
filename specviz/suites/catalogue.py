"""Which suites there are, and how a name becomes one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import ParameterError, PromptError
from specviz.paths import folder

from . import files
from .fetching import File, fetch, forget
from .prompts import Suite, near

if TYPE_CHECKING:
    import pandas as pd

Prompts = Iterable[dict[str, Any]]
_told: set[str] = set()  # suites whose licence has been printed


@dataclass(frozen=True)
class Entry:
    """A suite of the catalogue.

    Parameters
    ----------
    about : str
        What it holds, in a few words.
    licence : str
        Of its texts.
    read : callable
        ``read(paths, part)``: the prompts of its files.
    files : callable, optional
        ``files(part)``: the files that are fetched; None for a bundled suite.
    parts : sequence of str
        What may stand behind the name and a colon; the first one is taken when nothing does. Empty: nothing.
    note : str
        What else has to be said of it when it is first used.
    """

    about: str
    licence: str
    read: Callable[[Sequence[Path], str], Prompts]
    files: Callable[[str], Sequence[File]] | None = None
    parts: Sequence[str] = field(default=())
    note: str = ""


def _bundled(name: str) -> Callable[[Sequence[Path], str], Prompts]:
    return lambda paths, part: files.read(folder("suites") / name)


def _english(paths: Sequence[Path], part: str) -> Prompts:
    """Spec-Bench's form; its translations are from German into English."""
    return [{"language": "en", **prompt} for prompt in files.read(paths[0])]


def _spec_bench(part: str) -> list[File]:
    url = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"
    return [File("spec-bench/question.jsonl", url=url)]


CATALOGUE = {
    "town": Entry(
        "generated: seven kinds of work in mixed languages, ten prompts a kind", "Apache-2.0",
        _bundled("town.jsonl"),
    ),
    "multi-town": Entry(
        "generated: seven kinds of work in seven languages, 80 prompts each", "Apache-2.0",
        _bundled("multi-town.jsonl.gz"),
    ),
    "spec-bench": Entry(
        "Spec-Bench (Xia et al. 2024): MT-bench, translation, summarization, qa, arithmetic, rag",
        "Apache-2.0", _english, _spec_bench,
    ),
}  # fmt: skip


def suite(
    name: str | Path,
    path: str | Path | None = None,
    *,
    kind: str | Iterable[str] | None = None,
    language: str | Iterable[str] | None = None,
    each: int | None = None,
    limit: int | None = None,
    template: str | None = None,
) -> Suite:
    """A suite of prompts.

    Parameters
    ----------
    name : str or Path
        One of `list_suites`, with a part behind a colon where it has parts (``flores:en-de``); or a file of
        prompts. ``NAME=PATH`` is `name` and `path` in one.
    path : str or Path, optional
        A local file or folder to read the suite from, in the form that its makers publish. Default: it is
        fetched once and kept.
    kind, language, each, limit
        As `Suite.select` takes them.
    template : str, optional
        Other words around the bare text, as `Suite.worded` takes them.

    Returns
    -------
    Suite

    Raises
    ------
    ParameterError
        For a part, kind or language that it has not.
    PromptError
        If there is no such suite or file, a line of it cannot be read (its number is named), or it is
        neither on this disk nor reachable.
    """
    if path is None and isinstance(name, str) and name.partition("=")[0].partition(":")[0] in CATALOGUE:
        name, _, given = name.partition("=")
        path = given or None
    base, _, part = str(name).partition(":")
    if base in CATALOGUE:
        found = _known(base, part, path)
    elif path is not None:
        raise PromptError(f"no suite {str(name)!r}" + near(base, CATALOGUE))
    elif Path(name).exists():
        found = Suite(files.read(name), str(name))
    else:
        told = near(base, CATALOGUE).removeprefix("; it has ")
        known = told if told.startswith("; did") else f" ({told})"
        raise PromptError(f"no prompts {str(name)!r}: neither a suite nor a file{known}")
    if template is not None:
        found = found.worded(template)
    if (kind, language, each, limit) != (None,) * 4:
        found = found.select(kind, language, each=each, limit=limit)
    return found


def _known(base: str, part: str, path: str | Path | None) -> Suite:
    """A suite of the catalogue, from `path` or from where it is kept."""
    entry = CATALOGUE[base]
    if part and part not in entry.parts:
        if not entry.parts:
            raise ParameterError(f"{base} has no parts: leave :{part} out")
        raise ParameterError(f"{base} has no part {part!r}" + near(part, entry.parts))
    part = part or (entry.parts[0] if entry.parts else "")
    name = f"{base}:{part}" if part else base
    if path is not None:
        if entry.files is None:
            raise ParameterError(f"{base} comes with the package: leave the path out, or give the path alone")
        if not Path(path).exists():
            raise PromptError(f"there is no {path} to read {name} from")
        paths = [Path(path)]
    else:
        paths = [fetch(file, name) for file in entry.files(part)] if entry.files else []
    try:
        found = Suite(entry.read(paths, part), name, entry.licence)
    except PromptError:
        for fetched in paths if path is None else ():
            forget(fetched)
        raise
    if entry.files is not None and base not in _told:
        _told.add(base)
        note = f" {entry.note}" if entry.note else ""
        print(f"specviz: {base} is its makers' work; licence: {entry.licence}.{note}", file=sys.stderr)
    return found


def list_suites() -> pd.DataFrame:
    """The suites there are.

    Returns
    -------
    DataFrame
        ``name``, ``parts``, ``licence``, ``bundled``, ``about``.
    """
    import pandas as pd

    return pd.DataFrame(
        {
            "name": name,
            "parts": ", ".join(entry.parts),
            "licence": entry.licence,
            "bundled": entry.files is None,
            "about": entry.about,
        }
        for name, entry in CATALOGUE.items()
    )
