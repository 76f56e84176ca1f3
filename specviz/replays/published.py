"""The papers' results: every number of their tables, as printed.

The tables are in ``data/published``, one folder per paper; its README describes the files. `published`
returns one table and `list_published` lists them all.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import ParameterError, near
from specviz.measure.report import Settings
from specviz.paths import folder

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["list_published", "published"]

LAST = ("metric", "value", "unit", "device", "model")  # the columns after a table's keys


def published(name: str) -> pd.DataFrame:
    """A paper's result table, one printed number per row, in the paper's order.

    Parameters
    ----------
    name : str
        A paper and a table, ``"unispec/table1"``. `list_published` lists them.

    Returns
    -------
    pandas.DataFrame
        - ``paper``, ``table``: the two parts of the name.
        - The table's keys (``method``, ``task``, ``language``, ...), which differ from table to table, in the
          paper's words. Keys that are all numbers come as numbers; ``-`` is a key that does not apply.
        - ``metric``; ``value`` (float); ``printed``, the number as printed in the paper, with its digits;
        ``unit``.
        - ``device`` and ``model``, spelled the same throughout a paper; empty if the paper does not say.

        ``frame.attrs`` holds ``caption``, ``place``, ``note`` and ``known``: sentences on where this table
        disagrees with itself, with another table or with the paper's text.

    Raises
    ------
    ParameterError
        If there is no such table; the message suggests similar names.

    Examples
    --------
    >>> frame = specviz.published("unispec/table1")
    >>> mine = frame[(frame.method == "UNISPEC (ours)") & (frame.metric == "speedup")]
    >>> mine.pivot(index=["device", "model"], columns="task", values="value")  # doctest: +SKIP
    """
    import pandas as pd

    paper, table, entry = _find(name)
    frame = pd.read_csv(_file(paper, table), dtype=str, keep_default_na=False)
    keys = list(frame)[: -len(LAST)]
    for key in keys:
        if frame[key].str.fullmatch(r"\d+(\.\d+)?").all():
            frame[key] = pd.to_numeric(frame[key])
    frame.insert(len(keys) + 2, "printed", frame["value"])
    frame["value"] = frame["value"].astype(float)
    frame.insert(0, "paper", paper)
    frame.insert(1, "table", table)
    frame.attrs = {
        "caption": entry["caption"], "place": entry["place"], "note": entry.get("note", ""),
        "known": [remark["text"] for remark in entry.get("known", [])],
    }  # fmt: skip
    return frame


def list_published(paper: str | None = None) -> pd.DataFrame:
    """The tables for `published`, one per row, papers sorted by name and tables in the paper's order.

    Parameters
    ----------
    paper : {"ssbd", "unispec", "cm_asd", "ssd", "bild"}, optional
        List only this paper's tables.

    Returns
    -------
    pandas.DataFrame
        ``name`` (what `published` takes), ``paper``, ``table``, ``caption``, ``place`` (section or appendix),
        ``numbers`` (how many it holds) and ``known`` (the number of known inconsistencies).

    Raises
    ------
    ParameterError
        If there is no such paper.
    """
    import pandas as pd

    papers = _papers()
    if paper is not None and paper not in papers:
        raise ParameterError(f"no published paper {paper!r}" + near(paper.lower(), papers))
    rows = []
    for each in papers if paper is None else [paper]:
        for table, entry in _tables(each).items():
            with _file(each, table).open(encoding="utf8", newline="") as lines:
                numbers = sum(1 for _ in csv.reader(lines)) - 1
            rows.append([
                f"{each}/{table}", each, table, entry["caption"], entry["place"], numbers,
                len(entry.get("known", [])),
            ])  # fmt: skip
    columns = ["name", "paper", "table", "caption", "place", "numbers", "known"]
    return pd.DataFrame(rows, columns=columns)


def claims(name: str) -> list[Settings]:
    """A paper's claims about a table's numbers, in the form that ``data/published/README.md`` describes."""
    paper, _, table = name.partition("/")
    made: list[Settings] = _tables(paper).get(table, {}).get("claims", [])
    return made


def title(paper: str) -> str:
    """A paper's title."""
    return str(_about(paper)["title"])


def _papers() -> list[str]:
    return sorted(path.parent.name for path in folder("published").glob("*/tables.json"))


def _about(paper: str) -> Settings:
    path = folder("published") / paper / "tables.json"
    content: Settings = json.loads(path.read_text(encoding="utf8"))
    return content


def _tables(paper: str) -> dict[str, Settings]:
    tables: dict[str, Settings] = _about(paper)["tables"]
    return tables


def _file(paper: str, table: str) -> Path:
    return folder("published") / paper / f"{table}.csv"


def _find(name: str) -> tuple[str, str, Settings]:
    papers = _papers()
    paper, _, table = str(name).partition("/")
    if paper not in papers:
        raise ParameterError(f"no published table {name!r}: no paper {paper!r}" + near(paper.lower(), papers))
    tables = _tables(paper)
    if table not in tables:
        if not table:
            first = next(iter(tables))
            raise ParameterError(f"name a table of {paper!r}, such as '{paper}/{first}'" + near("", tables))
        raise ParameterError(f"{paper} has no table {table!r}" + near(table.lower(), tables))
    return paper, table, tables[table]
