"""Run each walkthrough that needs no torch in a kernel, and measure the kernel's peak memory.

``python -m tests.benchmarks.walkthroughs`` prints the table. In these kernels ``import torch`` fails, as on a
machine without torch. Needs nbclient (the test extra).
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError
from specviz.measure.report import Bar, Report
from specviz.paths import walkthroughs
from specviz.site.books import runner

LIMIT = 1.0  # GB, the limit of a free Binder
FREE = "no torch"  # marks a walkthrough that needs no torch
# Prints the peak memory of the kernel's process. On Linux, ru_maxrss starts at the peak of the parent, so
# VmHWM (in KiB) is read instead. On macOS, ru_maxrss is in bytes and counts the process alone.
PEAK = """
import pathlib, resource, sys
status = pathlib.Path("/proc/self/status")
size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if status.exists():
    size = 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
print(size, "torch" in sys.modules)
"""


def torchless(folder: Path) -> dict[str, str]:
    """Environment variables that make ``import torch`` and ``import transformers`` fail in a process.

    Parameters
    ----------
    folder : Path
        Folder for the modules that raise on import.
    """
    for name in ("torch", "transformers"):
        (folder / f"{name}.py").write_text(f'raise ModuleNotFoundError("No module named {name!r}")\n')
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path)}


def free(source: Path) -> bool:
    """Whether a walkthrough declares that it needs no torch."""
    return FREE in source.read_text(encoding="utf8")[:3000]


def peak(book: Path) -> int:
    """Peak bytes of a kernel that runs a walkthrough without torch.

    Raises
    ------
    SpecvizError
        If a cell fails, or a module named torch is loaded after all.
    """
    import nbformat
    from nbclient.exceptions import CellExecutionError

    cells = nbformat.read(book, as_version=4)
    cells.cells.append(nbformat.v4.new_code_cell(PEAK))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "blocked").mkdir()
        variables = os.environ | torchless(place / "blocked") | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        client = runner(cells, folder, 600)
        try:
            client.execute(env=variables)
        except CellExecutionError as error:
            said = f"{error.ename}: {error.evalue}"
            raise SpecvizError(f"{book.name} does not run without torch: {said}") from None
    size, loaded = cells.cells[-1].outputs[0].text.split()
    if loaded == "True":
        raise SpecvizError(f"{book.name} loads torch")
    return int(size)


def bench(books: Sequence[Path] = ()) -> Report:
    """Measure the peak memory of each walkthrough's kernel.

    Parameters
    ----------
    books : sequence of Path, optional
        Notebooks. Default: the walkthroughs that declare that they need no torch.
    """
    import platform

    chosen = list(books) or [p for p in sorted(walkthroughs().glob("[0-9]*.ipynb")) if free(p)]
    rows: list[dict[str, Any]] = [{"book": book.stem, "peak": peak(book) / 1e6} for book in chosen]
    return Report(
        "walkthroughs",
        "Peak resident memory of each walkthrough's kernel, run from top to bottom without torch",
        {"device": "cpu", "threads": 1, "dtype": "no model", "python": platform.python_version()},
        [("book", "walkthrough", ""), ("peak", "MB", "{:.0f}")],
        rows,
        [Bar(f"{row['book']}, GB", row["peak"] / 1e3, LIMIT, "at most") for row in rows],
        ["The server beside it is not counted: JupyterLab held 116 MB where that was looked up."],
    )


if __name__ == "__main__":
    from rich.console import Console

    found = bench([Path(name) for name in sys.argv[1:]])
    found.show(Console())
    raise SystemExit(0 if found.held else 1)
