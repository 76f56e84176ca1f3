"""The students' copy of the exercises: the same notebook without its solutions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import SpecvizError
from ..files import write_bytes, write_text
from ..paths import expanded, walkthroughs

Notebook: TypeAlias = dict[str, Any]  # or one of its cells: parsed JSON
PICTURE = re.compile(r"\]\((stills/\w+\.png)\)")  # a still that a notebook shows
TAG = "solution"  # tag of the cells that students do not get


def without_solutions(book: Notebook) -> Notebook:
    """A notebook (format 4, as parsed JSON) without the cells tagged ``solution``, and without outputs."""
    blank: Notebook = {"outputs": [], "execution_count": None}
    cells = [
        cell | (blank if cell["cell_type"] == "code" else {}) for cell in book["cells"] if not solves(cell)
    ]
    return book | {"cells": cells}


def solves(cell: Notebook) -> bool:
    """Whether a cell gives a solution."""
    return TAG in cell.get("metadata", {}).get("tags", [])


def copy_exercises(folder: str | Path, force: bool = False) -> list[Path]:
    """Write each walkthrough that holds solutions into a folder, without them.

    Parameters
    ----------
    folder : str or Path
        Created if it does not exist.
    force : bool
        Overwrite existing files.

    Returns
    -------
    list of Path
        The notebooks written.

    Raises
    ------
    SpecvizError
        If a notebook exists already, the folder cannot be written, or there are no walkthroughs.
    """
    folder = expanded(folder)
    books = {}
    for source in sorted(walkthroughs().glob("*.ipynb")):
        book = json.loads(source.read_text(encoding="utf8"))
        if not any(solves(cell) for cell in book["cells"]):
            continue
        path = folder / source.name
        if path.exists() and not force:
            raise SpecvizError(f"{path} exists: choose another folder, or overwrite it with --force")
        books[path] = json.dumps(without_solutions(book), ensure_ascii=False, indent=1)
    for path, text in books.items():  # only now, so that an error leaves no partial copy
        write_text(path, text + "\n", force)
        for picture in PICTURE.findall(text):
            write_bytes(folder / picture, (walkthroughs() / picture).read_bytes(), force=True)
    return list(books)
