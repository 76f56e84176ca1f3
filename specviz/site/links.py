"""Links to this repository, to Binder and to Colab, all made from the address in ``pyproject.toml``."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from urllib.parse import quote

from specviz.errors import SpecvizError
from specviz.paths import HERE

NAME = "specviz-lm"  # of the distribution
BRANCH = "main"
START = "notebooks/start.ipynb"  # opened by Binder and Colab, unless another is named


def repository() -> str:
    """The repository's address, from the checkout's ``pyproject.toml`` or else from the installed package.

    Raises
    ------
    SpecvizError
        If neither states one.
    """
    file = HERE.parent / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf8")).get("project", {}) if file.is_file() else {}
    if project.get("name") == NAME and "Repository" in project.get("urls", {}):
        return str(project["urls"]["Repository"]).rstrip("/")
    try:
        for line in metadata(NAME).get_all("Project-URL") or []:
            name, _, address = line.partition(",")
            if name.strip() == "Repository":
                return str(address).strip().rstrip("/")
    except PackageNotFoundError:
        pass
    raise SpecvizError("no repository address: set Repository in [project.urls] of pyproject.toml")


def _owner_and_name() -> str:
    return "/".join(repository().split("/")[-2:])


def source(path: str) -> str:
    """The address of a repository file's page."""
    return f"{repository()}/blob/{BRANCH}/{quote(path)}"


def binder(notebook: str = START) -> str:
    """The address at which Binder opens a notebook."""
    return (
        f"https://mybinder.org/v2/gh/{_owner_and_name()}/{BRANCH}?urlpath={quote(f'lab/tree/{notebook}', '')}"
    )


def colab(notebook: str = START) -> str:
    """The address at which Colab opens a notebook."""
    return f"https://colab.research.google.com/github/{_owner_and_name()}/blob/{BRANCH}/{quote(notebook)}"


def install() -> str:
    """The requirement for pip if there is no checkout, as on Colab."""
    return f"specviz-lm[run,lab] @ git+{repository()}"
