"""``specviz lab`` and ``exercises``: the walkthroughs and the students' copy."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from specviz.cli.arguments import writable
from specviz.cli.options import Force, argument, option
from specviz.errors import SpecvizError, install, plural
from specviz.files import write_bytes
from specviz.paths import expanded


def lab(
    arguments: Annotated[
        list[str] | None,
        argument(
            "Folder of the copy (specviz-notebooks; your edits in it are kept), and options for JupyterLab.",
            metavar="[FOLDER] [OPTIONS OF JUPYTERLAB]...",
        ),
    ] = None,
    copy_only: Annotated[bool, option("Copy without starting JupyterLab.", "--copy-only")] = False,
    no_browser: Annotated[bool, option("Do not open a browser.", "--no-browser")] = False,
    force: Force = False,
) -> None:
    """Open JupyterLab on a copy of the walkthroughs. Other options are passed to JupyterLab."""
    from importlib.util import find_spec

    words = arguments or []
    named = words[:1] if words and not words[0].startswith("-") else []
    folder, options = expanded("".join(named) or "specviz-notebooks"), words[len(named) :]
    if options and (copy_only or not options[0].startswith("-")):
        raise SpecvizError(f"lab takes one folder, and {shlex.join(options)} is not one of its options")
    if not copy_only and find_spec("jupyterlab") is None:
        raise SpecvizError(f"JupyterLab is not installed: {install('lab')}")
    copied, existing = _copy(folder, force)
    others = f", existing ones {'replaced' if force else 'kept'}" if existing else ""
    print(f"walkthroughs: {folder}" + (f" ({plural(copied, 'file')} copied{others})" if copied else ""))
    if copy_only:
        return
    import subprocess

    if no_browser:
        options = ["--no-browser", *options]
    if hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in options:
        options = ["--allow-root", *options]  # without it JupyterLab refuses to run as root
    command = [sys.executable, "-m", "jupyterlab", str(folder), *options]
    server = subprocess.Popen(command)
    while True:
        try:
            raise typer.Exit(server.wait())
        except KeyboardInterrupt:  # JupyterLab gets it too, and stops its kernels
            continue


def _copy(folder: Path, force: bool) -> tuple[int, int]:
    """Copy the walkthroughs that do not exist yet (`force`: all); count the copied and the existing ones."""
    from specviz.paths import walkthroughs

    source = walkthroughs()
    if folder.exists() and not folder.is_dir():
        raise SpecvizError(f"{folder} is a file; name a folder for the walkthroughs")
    writable(folder / "start.ipynb", True)
    copied = existing = 0
    for path in sorted(source.rglob("*")):
        part = path.relative_to(source)
        hidden = any(name.startswith((".", "__")) for name in part.parts)
        if path.is_dir() or hidden or (path.with_suffix(".ipynb").exists() and path.suffix == ".py"):
            continue
        copy = folder / part
        existing += copy.exists()
        if copy.exists() and not force:
            continue
        write_bytes(copy, path.read_bytes(), force)
        copied += 1
    return copied, existing


def exercises(
    folder: Annotated[Path, argument("Folder for the students' copy.")] = Path("specviz-exercises"),
    force: Force = False,
) -> None:
    """Write the students' copy of the exercises. It has hints and checks, but no solutions."""
    from specviz.check.students import copy_exercises

    for path in copy_exercises(folder, force):
        print(f"exercises: {path}")
