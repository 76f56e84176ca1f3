"""Walkthroughs as pages, run on request, each cell with its printed, drawn and displayed output."""

from __future__ import annotations

import base64
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import SpecvizError, one_line
from specviz.escape import html
from specviz.site.links import binder, colab, source

if TYPE_CHECKING:
    from nbclient import NotebookClient
    from nbformat import NotebookNode

LONGEST = "03", "02", "10", "15", "06", "07b", "14"  # started first, so that none runs alone at the end
TIMEOUT = 1200  # seconds for one cell
WIDGET = "application/vnd.jupyter.widget-view+json"
LIVE = (
    '<p class="wide">This control needs a kernel: open this walkthrough in Binder, in Colab or with '
    "<code>specviz lab</code>.</p>"
)
OUTPUT = '<div class="output" role="region" aria-label="Output" tabindex="0">{}</div>'
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def executed(paths: list[Path], out: Path, workers: int, say: Callable[[str], None]) -> list[NotebookNode]:
    """Run walkthroughs, `workers` at a time; players and pages that they write go to `out`.

    Raises
    ------
    SpecvizError
        If a cell fails; the message names the walkthrough and the error.
    """
    (out / "players").mkdir(parents=True, exist_ok=True)

    def run(path: Path) -> NotebookNode:
        began = time.monotonic()
        book = _run(path, out)
        say(f"{path.stem} ran in {time.monotonic() - began:.0f} s")
        return book

    def place(path: Path) -> int:
        number = path.stem.partition("_")[0]
        return LONGEST.index(number) if number in LONGEST else len(LONGEST)

    with ThreadPoolExecutor(workers) as pool:
        runs = {path: pool.submit(run, path) for path in sorted(paths, key=place)}
        return [runs[path].result() for path in paths]


def runner(book: NotebookNode, folder: str | Path, timeout: int = TIMEOUT) -> NotebookClient:
    """Make a client that runs a notebook's cells in a folder.

    nbclient sends the kernel the content of an ipywidgets output. It sees a reply that arrives meanwhile only
    when the cell's time is over (nbclient issue 312): a cell with `interact` sometimes took 20 minutes. No
    walkthrough reads that content, so nothing is sent.
    """
    from nbclient import NotebookClient
    from nbclient.output_widget import OutputWidget

    class Output(OutputWidget):
        def sync_state(self) -> None:
            pass

    client = NotebookClient(
        book, timeout=timeout, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.widget_registry["@jupyter-widgets/output"]["OutputModel"] = Output
    return client


def _run(path: Path, out: Path) -> NotebookNode:
    import nbformat
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    book = nbformat.read(path, as_version=4)
    name = path.stem.partition("_")[0]
    call = f"from specviz.site.kernel import install; install({str(out / 'players')!r}, {name!r})"
    book.cells.insert(0, nbformat.v4.new_code_cell(call))
    with tempfile.TemporaryDirectory() as folder:
        client = runner(book, folder)
        try:
            client.execute(env=os.environ | {"OMP_NUM_THREADS": "1"})
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            last = ANSI.sub("", str(error)).strip().splitlines()[-1:]
            raise SpecvizError(f"walkthrough {path.stem} does not run: {one_line(''.join(last))}") from None
        del book.cells[0]
        for made in {page.relative_to(folder).parts[0] for page in Path(folder).rglob("*.html")}:
            kept = out / "walkthroughs" / f"{path.stem}-files" / made
            kept.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (Path(folder) / made).is_dir() else shutil.copy
            copy(Path(folder) / made, kept)
            _moved(book, made, f"{path.stem}-files/{made}")
    return book


def _moved(book: NotebookNode, name: str, now: str) -> None:
    """Redirect links in outputs from files that a walkthrough wrote to their place on the site."""
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/html" in data:
                data["text/html"] = data["text/html"].replace(f'"{name}/', f'"{now}/')


def markdown(book: NotebookNode, path: Path, folder: Path) -> str:
    """Convert a walkthrough to a page's Markdown; its pictures are written into `folder`."""
    parts = []
    for number, cell in enumerate(book.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code" and cell.source.strip():
            parts.append(f"{_fence(cell.source)}python\n{cell.source}\n{_fence(cell.source)}")
            for k, output in enumerate(cell.get("outputs", ())):
                parts += _shown(output, f"{path.stem}-{number}-{k}.png", folder)
    title, _, rest = "\n\n".join(parts).partition("\n")
    doors = (
        f"[Binder]({binder(f'notebooks/{path.name}')}) · [Colab]({colab(f'notebooks/{path.name}')}) · "
        f"[source]({source(f'notebooks/{path.name}')})"
    )
    return f"{title}\n\n{doors}\n{rest}\n"


def _shown(output: NotebookNode, picture: str, folder: Path) -> Iterator[str]:
    """Convert one output to Markdown."""
    data = output.get("data", {})
    if output.output_type == "stream":
        if output.name == "stdout":
            yield _raw(OUTPUT.format(f"<pre>{html(ANSI.sub('', output.text))}</pre>"))
    elif WIDGET in data:
        yield _raw(LIVE)
    elif "text/html" in data:
        yield _raw(OUTPUT.format(data["text/html"]))
    elif "image/png" in data:
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
        (folder / "pictures" / picture).write_bytes(base64.b64decode(data["image/png"]))
        yield f"![What the cell above draws]({'../pictures/' + picture})"
    elif "text/plain" in data:
        yield _raw(OUTPUT.format(f"<pre>{html(data['text/plain'])}</pre>"))


def _fence(text: str) -> str:
    """A code fence longer than any run of backticks in the text."""
    return "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)


def _raw(text: str) -> str:
    return f"{_fence(text)}{{raw}} html\n{text}\n{_fence(text)}"
