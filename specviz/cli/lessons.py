"""``specviz lab`` and ``exercises``: the walkthroughs and the students' copy."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from specviz.cli.arguments import writable
from specviz.cli.options import Force
from specviz.errors import SpecvizError, install


def lab(
    folder: Annotated[Path, typer.Argument(help="Where the copy goes; your edits in it stay.")] = Path(
        "specviz-notebooks"
    ),
    copy_only: Annotated[
        bool, typer.Option("--copy-only", help="Copy, and do not start JupyterLab.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    force: Force = False,
) -> None:
    """Open JupyterLab on a copy of the walkthroughs."""
    from importlib.util import find_spec

    from specviz.paths import walkthroughs

    source = walkthroughs()
    if not copy_only and find_spec("jupyterlab") is None:
        raise SpecvizError(f"JupyterLab is not installed: {install('lab')}")
    if folder.exists() and not folder.is_dir():
        raise SpecvizError(f"{folder} is a file; name a folder for the walkthroughs")
    writable(folder / "x", True)
    new = 0
    for path in sorted(source.rglob("*")):
        part = path.relative_to(source)
        hidden = any(name.startswith((".", "__")) for name in part.parts)
        if path.is_dir() or hidden or (path.with_suffix(".ipynb").exists() and path.suffix == ".py"):
            continue
        copy = folder / part
        if copy.exists() and not force:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        new += 1
    print(
        f"walkthroughs: {folder} ({new} files copied, what was there stays)"
        if new
        else f"walkthroughs: {folder}"
    )
    if not copy_only:
        import subprocess

        command = [sys.executable, "-m", "jupyterlab", str(folder)] + ([] if browser else ["--no-browser"])
        raise typer.Exit(subprocess.run(command, check=False).returncode)


def exercises(
    folder: Annotated[Path, typer.Argument(help="Where the students' copy goes.")] = Path(
        "specviz-exercises"
    ),
    force: Force = False,
) -> None:
    """Write the exercises for students: hints and checks, no solutions."""
    from specviz.check.students import copy_exercises

    for path in copy_exercises(folder, force):
        print(f"exercises: {path}")
