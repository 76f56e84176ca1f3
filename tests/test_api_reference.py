"""The API reference: docs/design.md's command builds it, with every public name on its first page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import specviz

ROOT = Path(__file__).parents[1]


def build(folder: Path, *only: str) -> None:
    pytest.importorskip("pdoc", reason="needs the test extra")
    (line,) = re.findall(
        r"^python -m pdoc .*$", (ROOT / "docs" / "design.md").read_text("utf8"), re.MULTILINE
    )
    given = shlex.split(line.replace("-o site", f"-o {shlex.quote(str(folder))}"))[1:]
    command = [sys.executable, *given[:3], *only, *given[3:]]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_on_the_first_page(tmp_path):
    modules = [
        f"specviz.{name}" for name in specviz.__all__ if isinstance(getattr(specviz, name), ModuleType)
    ]
    build(tmp_path, "!specviz.[a-z]+", *modules, "!specviz.[a-z]+[.].+")  # a few seconds, not half a minute
    page = (tmp_path / "specviz.html").read_text("utf8")
    missing = [name for name in specviz.__all__ if f'id="{name}"' not in page and f"/{name}.html" not in page]
    assert not missing


def test_what_methods_are_written_against_has_pages():
    pytest.importorskip("sphinx", reason="needs the site extra")
    from specviz.site.build import API, REFERENCE

    modules = {import_module(name).__name__ for name in REFERENCE}
    linked = {page.replace("/", ".") for page in re.findall(r'href="api/([\w/]+)\.html"', API)}
    assert linked <= modules and "specviz.methods.base" in linked
